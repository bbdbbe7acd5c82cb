"""Whatever the text: nothing is lost, nothing comes twice, and a plain way of splitting gives the same chunks."""

import functools
import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pair.engine.write import chunking

split = functools.partial(chunking.split, chunker="seed")

PARTS = st.sampled_from(
    ["a", "bc", "def.", "3.1", "gh!", "ij?)", " ", "  ", "\n", "\n\n", "\r\n", "ä", "数", "。", "\uff01」"]
)
PLAIN_PARTS = st.sampled_from(["a", "bc", "defghijkl", "def.", "3.1", "gh!", "ij?)", " ", "  ", "\n", "\n\n", "\r\n"])
TEXTS = st.lists(PARTS, max_size=60).map("".join) | st.text(max_size=80)
SIZES = st.integers(4, 40)

LEVELS = (r"\n\s*\n", r"[\r\n]", r"(?<=[.!?])\s|(?<=[.!?]\))\s", r"\s+")


def is_fitting(text: str, size_bytes: int) -> bool:
    return len(text.encode("utf-8", "surrogatepass")) <= size_bytes


def pieces(text: str, begin: int, end: int, size_bytes: int, levels: tuple[str, ...]) -> list[tuple[int, int]]:
    """The largest pieces that fit, by the hierarchy; only for ASCII."""
    while begin < end and text[begin].isspace():
        begin += 1
    while begin < end and text[end - 1].isspace():
        end -= 1
    if begin == end:
        return []
    if end - begin <= size_bytes:
        return [(begin, end)]
    if not levels:
        cuts = [*range(begin, end, size_bytes), end]
        return list(pairwise(cuts))
    found: list[tuple[int, int]] = []
    for match in re.finditer(levels[0], text):
        if begin < match.end() <= end:
            found += pieces(text, begin, match.end(), size_bytes, levels[1:])
            begin = match.end()
    return [*found, *pieces(text, begin, end, size_bytes, levels[1:])]


def split_plainly(text: str, size_bytes: int) -> list[tuple[int, int]]:
    chunks: list[tuple[int, int]] = []
    for begin, end in pieces(text, 0, len(text), size_bytes, LEVELS):
        if chunks and end - chunks[-1][0] <= size_bytes:
            chunks[-1] = (chunks[-1][0], end)
        else:
            chunks.append((begin, end))
    return chunks


@given(TEXTS, SIZES)
def test_every_visible_character_is_in_exactly_one_chunk(text: str, size_bytes: int) -> None:
    covered = [position for chunk in split(text, size_bytes) for position in range(chunk.start, chunk.end)]
    assert covered == sorted(set(covered))
    assert set(range(len(text))) - set(covered) <= {place for place, letter in enumerate(text) if letter.isspace()}


@given(TEXTS, SIZES)
def test_a_chunk_is_a_trimmed_part_of_the_text_and_fits(text: str, size_bytes: int) -> None:
    for chunk in split(text, size_bytes):
        assert chunk.text == text[chunk.start : chunk.end] == chunk.text.strip() != ""
        assert is_fitting(chunk.text, size_bytes)


@given(st.lists(PLAIN_PARTS, max_size=80).map("".join), SIZES)
@pytest.mark.rule("engine-10")
def test_chunks_are_those_of_splitting_by_each_separator_in_turn_and_merging(text: str, size_bytes: int) -> None:
    assert [(chunk.start, chunk.end) for chunk in split(text, size_bytes)] == split_plainly(text, size_bytes)


@given(st.lists(PLAIN_PARTS, max_size=80).map("".join), SIZES)
def test_neighbours_would_not_fit_into_one_chunk(text: str, size_bytes: int) -> None:
    chunks = split(text, size_bytes)
    for left, right in pairwise(chunks):
        assert not is_fitting(text[left.start : right.end], size_bytes)


@given(TEXTS, SIZES)
def test_the_same_text_gives_the_same_chunks(text: str, size_bytes: int) -> None:
    assert split(text, size_bytes) == split(text, size_bytes)
