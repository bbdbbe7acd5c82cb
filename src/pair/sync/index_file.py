"""The state as `index.txt` and `llms.txt`: same state, same bytes."""

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

_TITLE = "Knowledge base"
_MARKUP = re.compile(r"[\\`\[\]<>]")
_KEPT_IN_ADDRESSES = "!#$%&'*+,-./:;=?@[]_~"
"""Brackets and spaces would end a link; in an address they mean the same when they are encoded."""


def format_index(sources: Mapping[str, Mapping[str, Any]]) -> str:
    """Return an entry for each source: its id, its description, a blank line. Files come first, then URLs."""
    entries = [*list_entries(sources, "file"), *list_entries(sources, "url")]  # sync-35..38
    return "\n".join(f"{source_id}\n{summary}\n" for source_id, summary in entries)


def list_entries(
    sources: Mapping[str, Mapping[str, Any]], source_type: Literal["file", "url"]
) -> Iterator[tuple[str, str]]:
    """Yield id and description, sorted by id. A source that never had a summary is left out."""
    for source_id in sorted(source_id for source_id, value in sources.items() if value["source_type"] == source_type):
        summary = tidy_summary(sources[source_id]["summary_text"])
        if summary:
            yield source_id, summary


def tidy_summary(text: str) -> str:
    """Remove blank lines, which would end an entry, and half characters, which cannot be written."""
    lines = (line.rstrip() for line in text.encode("utf-8", errors="replace").decode("utf-8").splitlines())
    return "\n".join(line for line in lines if line)


@dataclass(frozen=True)
class LlmsFile:
    """Where `llms.txt` is, and the folder of the files that it links to."""

    path: Path
    sources_dir: Path

    def content(self, sources: Mapping[str, Mapping[str, Any]]) -> bytes:
        return format_llms(sources, self._way).encode("utf-8", errors="surrogateescape")

    def make_mark(self, content: bytes) -> str:
        """Return a hash of the content and of the way to the folder: if the folder moves, links lead to nothing."""
        return hashlib.sha256(os.fsencode(self._way) + b"\0" + content).hexdigest()

    @property
    def _way(self) -> str:
        """The relative path from the folder of the file to that of the sources."""
        way = os.path.relpath(self.sources_dir, self.path.parent)
        return "" if way == "." else f"{Path(way).as_posix()}/"


def format_llms(sources: Mapping[str, Mapping[str, Any]], way: str) -> str:
    """Return the entries of the index as Markdown links. `way` leads to the files: it is empty, or ends in a slash."""
    files = [
        _format_link(source_id, quote(way + source_id, errors="surrogateescape"), text)
        for source_id, text in list_entries(sources, "file")
    ]
    pages = [
        _format_link(source_id, quote(source_id, _KEPT_IN_ADDRESSES), text)
        for source_id, text in list_entries(sources, "url")
    ]
    blocks = [f"# {_TITLE}", f"> {_count(len(files), 'file')} and {_count(len(pages), 'page')}"]
    for heading, lines in (("Files", files), ("Pages", pages)):
        if lines:
            blocks += [f"## {heading}", "\n".join(lines)]
    return "\n\n".join(blocks) + "\n"


def _format_link(source_id: str, address: str, description: str) -> str:
    return f"- [{_escape(source_id)}]({address}): {_escape(description)}"


def _escape(text: str) -> str:
    """Return the text on one line, with nothing in it that is taken for a link, for code or for HTML."""
    return _MARKUP.sub(r"\\\g<0>", " ".join(text.split()))


def _count(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
