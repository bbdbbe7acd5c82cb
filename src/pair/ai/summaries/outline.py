"""What a reader finds in a source: its title, its first sentences, its parts, and the text to take terms from."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from pair.text.characters import on_one_line

_LICENCE_MARKS = (
    "copyright", "©", "(c) 19", "(c) 20", "spdx-", "licensed under", "licenced under", "all rights reserved",
    "permission is hereby granted", "redistribution and use", "without warranty", "public license", "apache license",
)  # fmt: skip
_AUTHOR_MARKS = ("author:", "authors:", "maintainer:")
_SENTENCE_END = re.compile(r"(?<=[.!?…])[\"')\]\u201d\u2019]{0,3}\s+|(?<=[。\uff01\uff1f])")
_ABBREVIATION = re.compile(
    r"(?:^|[\s(])(?:[A-Z]|e\.g|i\.e|cf|vs|etc|approx|no|fig|dr|mr|mrs|st|ca|resp|z\.B|bzw)\.$", re.IGNORECASE
)
_LEAD_CHARACTERS = 2_000


@dataclass(frozen=True)
class OutlinePart:
    """A heading, a key, a column, a definition. `level` 1 is the highest."""

    name: str
    level: int = 1


@dataclass(frozen=True)
class Outline:
    title: str = ""
    lead: Sequence[str] = ()
    """The first sentences that say something."""
    parts: Sequence[OutlinePart] = ()
    parts_label: str = "Sections"
    body: str = ""
    """Plain text; what stands on a line of its own is a new sentence."""
    marked: Sequence[str] = ()
    """What the author set apart as code."""
    ignored: frozenset[str] = frozenset()
    """Words that say nothing in this kind of source."""


def is_licence(paragraph: str) -> bool:
    beginning = paragraph[:_LEAD_CHARACTERS].lower()
    return beginning.startswith(_AUTHOR_MARKS) or any(mark in beginning for mark in _LICENCE_MARKS)


def sentences(paragraph: str) -> list[str]:
    """Of the beginning of a paragraph; a full stop after an abbreviation ends none."""
    found: list[str] = []
    for piece in _SENTENCE_END.split(on_one_line(paragraph[:_LEAD_CHARACTERS])):
        if found and (_ABBREVIATION.search(found[-1][-10:]) or piece[:1].islower()):
            found[-1] = f"{found[-1]} {piece}"
        elif piece.strip():
            found.append(piece.strip())
    return found


def first_sentences(paragraphs: Sequence[str], *, most: int = 3) -> list[str]:
    """The licence is passed over unless there is nothing else, and so is a sentence that only announces a list."""
    telling = islice((paragraph for paragraph in paragraphs[:50] if not is_licence(paragraph)), most)
    found = [sentence for paragraph in (list(telling) or paragraphs[:most]) for sentence in sentences(paragraph)]
    return [sentence for sentence in found if not sentence.endswith((":", "\uff1a"))] or found
