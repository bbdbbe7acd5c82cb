"""Split a passage into sentences that can be quoted, each with its place."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pair.text.markdown import read_blocks
from pair.text.tokenizer import find_words

_LONGEST = 600
_EXCERPT = 300
"""In characters: what is longer than the first is no sentence, and is quoted in pieces of about the second."""
_SHORTEST_WORDS = 3

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
    for number, block in enumerate(read_blocks(passage)):
        if block.kind in {"heading", "table head", "front matter"}:
            continue
        is_prose = block.kind in {"paragraph", "item"}
        ends = find_sentences(passage, block.start, block.end) if is_prose else [(block.start, block.end)]
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


def find_sentences(passage: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield where the sentences of a paragraph begin and end; a full stop behind an abbreviation ends none."""
    begin = start
    for stop in _END.finditer(passage, start, end):
        if not _ABBREVIATION.search(passage, begin, stop.end()):
            yield begin, stop.end()
            begin = stop.end()
    if passage[begin:end].strip():
        yield begin, end
