"""Bundles of the Open Knowledge Format 0.2: folders of Markdown files with front matter, checked and listed.

A bundle is conformant if every Markdown file except `index.md` and `log.md` has front matter with a `type`, and those
two have the prescribed form. Everything else is optional.
"""

import datetime
import posixpath
import re
from collections.abc import Callable, Iterable
from typing import NamedTuple
from urllib.parse import quote

from pair.reading.contract import UnreadableDocument
from pair.reading.encoding import decode
from pair.reading.front_matter import split_front_matter

INDEX_NAME = "index.md"
_LOG_NAME = "log.md"
_ENTRY = re.compile(r"^[*+-] +\[[^\]]+\]\([^)]+\)", re.MULTILINE)
_DATE_HEADING = re.compile(r"^## +(.*?)\s*$", re.MULTILINE)
_MARKUP = re.compile(r"[\\`*_\[\]<>]")


class Concept(NamedTuple):
    """A document of an OKF bundle."""

    path: str
    type: str
    title: str
    description: str


class Bundle(NamedTuple):
    concepts: list[Concept]
    faults: list[str]
    """The reasons why it is not conformant, each with a path."""


def read_bundle(paths: Iterable[str], read: Callable[[str], bytes]) -> Bundle:
    """Read the Markdown files of a folder or an archive. `read` returns the bytes of a file by its path."""
    bundle = Bundle([], [])
    for path in sorted(path for path in paths if path.lower().endswith(".md")):
        name = posixpath.basename(path)
        try:
            text = decode(read(path))
        except UnreadableDocument as fault:
            bundle.faults.append(f"{path}: {fault}")
            continue
        if name in {INDEX_NAME, _LOG_NAME}:
            bundle.faults.extend(f"{path}: {fault}" for fault in _find_reserved_faults(path, name, text))
            continue
        reading = split_front_matter(text)
        kind = reading.metadata.get("type")
        if reading.text == text:
            bundle.faults.append(f"{path}: it has no front matter that can be read")
        elif not isinstance(kind, str) or not kind.strip():
            bundle.faults.append(f"{path}: its front matter has no type")
        else:
            title, description = reading.title or posixpath.splitext(name)[0], reading.metadata.get("description")
            description = " ".join(description.split()) if isinstance(description, str) else ""
            bundle.concepts.append(Concept(path, kind.strip(), title, description))
    return bundle


def _find_reserved_faults(path: str, name: str, text: str) -> Iterable[str]:
    reading = split_front_matter(text)
    allowed = {"okf_version"} if path == INDEX_NAME else set()
    if reading.text != text and not (reading.metadata.keys() <= allowed and not reading.title):
        yield "it may have no front matter" + (" but okf_version" if allowed else "")
    if name == INDEX_NAME and not _ENTRY.search(reading.text):
        yield "it lists nothing: an entry has the form `* [Title](address) - description`"
    if name == _LOG_NAME:
        for heading in _DATE_HEADING.findall(reading.text):
            try:
                datetime.date.fromisoformat(heading)
            except ValueError:
                yield f"the heading {heading!r:.80} is not a date as YYYY-MM-DD"


def format_index(concepts: Iterable[Concept]) -> str:
    """Return the `index.md` of a bundle: its concepts by type, each with its description."""
    by_type: dict[str, list[Concept]] = {}
    for concept in concepts:
        by_type.setdefault(concept.type, []).append(concept)
    sections = ['---\nokf_version: "0.2"\n---']
    for kind in sorted(by_type):
        lines = [
            f"* [{_escape(concept.title)}]({quote(concept.path)})"
            + (f" - {concept.description}" if concept.description else "")
            for concept in by_type[kind]
        ]
        sections.append("\n".join([f"# {_escape(kind)}", "", *lines]))
    return "\n\n".join(sections) + "\n"


def _escape(text: str) -> str:
    return _MARKUP.sub(r"\\\g<0>", " ".join(text.split()))
