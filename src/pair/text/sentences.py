"""Split a passage into sentences that can be quoted, each with its place."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pair.text.tokenizer import find_words

_LONGEST = 600
_EXCERPT = 300
"""In characters: what is longer than the first is no sentence, and is quoted in pieces of about the second."""
_SHORTEST_WORDS = 3

_FENCE = re.compile(r"\s*(?:```|~~~)")
_KINDS = (
    ("underline", re.compile(r"\s{0,3}(?:={3,}|-{3,}|\*{3,}|_{3,})\s*$")),
    ("gap", re.compile(r"\s*$|\s{0,3}#{1,6}\s")),
    ("rule", re.compile(r"[\s|:+-]+$")),
    ("row", re.compile(r"\s*\|")),
    ("item", re.compile(r"\s*(?:[-*+•]|\d{1,3}[.)])\s+|\s*>\s?")),
)
_DENSE_END = "。\uff01\uff1f"
_END = re.compile(r"[.!?]+[\"'\u201d\u2019)\]]{0,2}\s+(?=[\"'\u201c\u2018(\[`*_]{0,3}[^\W_a-z])|[" + _DENSE_END + r"]+")
# A full stop behind these ends no sentence.
_ABBREVIATION = re.compile(
    r"(?:\b(?:e\.g|i\.e|cf|vs|etc|approx|ca|no|fig|figs|eq|sec|ch|vol|pp?|dr|mr|mrs|ms|prof|st|inc|ltd|jr|sr|al)|\b[A-Z])\.\s*$",
    re.IGNORECASE,
)
_LINK = re.compile(r"\[[^\]]*\]\([^)]*\)|https?://\S+")
_BLANKS = re.compile(r"\s+")


@dataclass(frozen=True, slots=True)
class Sentence:
    text: str
    """On one line, without the mark of a list."""
    start: int
    end: int
    """In the passage."""
    block: int
    """Its paragraph, item, row or piece of code, by number."""


def split_sentences(passage: str) -> list[Sentence]:
    """Leave out headings, rules, mere links and what is too short to be a statement."""
    sentences = []
    for number, block in enumerate(_split_blocks(passage)):
        ends = _split(passage, block.start, block.end) if block.is_prose else [(block.start, block.end)]
        for long_start, long_end in ends:
            for start, end in _cut(passage, long_start, long_end):
                text = _BLANKS.sub(" ", passage[start:end]).strip()
                if _is_statement(text):
                    sentences.append(Sentence(text, start, end, number))
    return sentences


@dataclass(frozen=True, slots=True)
class PassageWords:
    """The sentences of a passage, and the words of a question that its title, its text and each sentence contain."""

    sentences: list[Sentence]
    in_title: frozenset[str]
    in_text: frozenset[str]
    in_sentences: list[frozenset[str]]
    """Of the first sentences only, if there are many."""


def find_passage_words(query: str, passages: Iterable[tuple[str, str]], most_sentences: int) -> list[PassageWords]:
    """`passages`: title and text of each."""
    read = []
    for title, text in passages:
        sentences = split_sentences(text)
        texts = [title, text, *(sentence.text for sentence in sentences[:most_sentences])]
        in_title, in_text, *in_sentences = find_words(query, texts)
        read.append(PassageWords(sentences, in_title, in_text, in_sentences))
    return read


def _is_statement(text: str) -> bool:
    words = _LINK.sub("", text).split()
    return len(words) >= _SHORTEST_WORDS or any(mark in text for mark in _DENSE_END)


def _cut(passage: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the whole, or pieces between blanks where it is too long."""
    while end - start > _LONGEST:
        blank = max(passage.rfind(" ", start, start + _EXCERPT), passage.rfind("\n", start, start + _EXCERPT))
        cut = blank + 1 if blank > start else start + _EXCERPT
        yield start, cut
        start = cut
    yield start, end


@dataclass(slots=True)
class _TextBlock:
    start: int
    end: int
    is_prose: bool


def _split_blocks(passage: str) -> list[_TextBlock]:
    """Return paragraphs and items of lists, which are prose; rows of tables and code, which are not."""
    blocks: list[_TextBlock] = []
    is_open = is_code = is_row = False
    at = 0
    for line in passage.splitlines(keepends=True):
        start, at = at, at + len(line)
        if _FENCE.match(line):
            is_code, is_open = not is_code, False
            continue
        kind, text_begins = ("code", 0) if is_code else _kind(line)
        if kind in {"code", "text"} and is_open:
            blocks[-1].end = at
        elif kind in {"code", "text", "item", "row"}:
            blocks.append(_TextBlock(start + text_begins, at, is_prose=kind in {"text", "item"}))
        elif (kind == "underline" and is_open) or (kind == "rule" and is_row):
            blocks.pop()  # it was a heading, or the head of a table
        is_open, is_row = kind in {"code", "text", "item"}, kind == "row"
    return blocks


def _kind(line: str) -> tuple[str, int]:
    """Return what a line is, and where its text begins."""
    for kind, pattern in _KINDS:
        if match := pattern.match(line):
            return kind, match.end() if kind == "item" else 0
    return "text", 0


def _split(passage: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    begin = start
    for stop in _END.finditer(passage, start, end):
        if not _ABBREVIATION.search(passage, begin, stop.end()):
            yield begin, stop.end()
            begin = stop.end()
    if passage[begin:end].strip():
        yield begin, end
