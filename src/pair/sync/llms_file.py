"""State as `llms.txt`: the entries of the index as Markdown links with descriptions; same state, same bytes."""

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pair.sync.index_file import entries

_TITLE = "Knowledge base"
_MARKUP = re.compile(r"[\\`\[\]<>]")
_KEPT_IN_ADDRESSES = "!#$%&'*+,-./:;=?@[]_~"
"""Brackets and spaces would end a link; in an address they mean the same when they are encoded."""


@dataclass(frozen=True)
class LlmsFile:
    """Where it is, and the folder of the files that it links to."""

    path: Path
    sources_dir: Path

    def content(self, sources: Mapping[str, Mapping[str, Any]]) -> bytes:
        return llms_text(sources, self._way).encode("utf-8", errors="surrogateescape")

    def mark_of(self, content: bytes) -> str:
        """Another one for other content, and for a folder that is elsewhere: links would lead to nothing."""
        return hashlib.sha256(os.fsencode(self._way) + b"\0" + content).hexdigest()

    @property
    def _way(self) -> str:
        """From the folder of the file to that of the sources."""
        way = os.path.relpath(self.sources_dir, self.path.parent)
        return "" if way == "." else f"{Path(way).as_posix()}/"


def llms_text(sources: Mapping[str, Mapping[str, Any]], way: str) -> str:
    """`way` leads to the files: it is empty, or ends in a slash."""
    files = [
        _line(source_id, quote(way + source_id, errors="surrogateescape"), text)
        for source_id, text in entries(sources, "file")
    ]
    pages = [
        _line(source_id, quote(source_id, _KEPT_IN_ADDRESSES), text) for source_id, text in entries(sources, "url")
    ]
    blocks = [f"# {_TITLE}", f"> {_counted(len(files), 'file')} and {_counted(len(pages), 'page')}"]
    for heading, lines in (("Files", files), ("Pages", pages)):
        if lines:
            blocks += [f"## {heading}", "\n".join(lines)]
    return "\n\n".join(blocks) + "\n"


def _line(source_id: str, address: str, description: str) -> str:
    return f"- [{_plain(source_id)}]({address}): {_plain(description)}"


def _plain(text: str) -> str:
    """On one line, and nothing in it is taken for a link, for code or for HTML."""
    return _MARKUP.sub(r"\\\g<0>", " ".join(text.split()))


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
