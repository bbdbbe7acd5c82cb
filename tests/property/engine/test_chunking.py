"""Chunks of any text: no text is lost or repeated, and offsets and contexts are right."""

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pair.engine.settings import Chunker
from pair.engine.write.chunking import split

LINES = st.sampled_from(
    [
        "# A", "## B", "### C", "# A #", "Title\n===", "Other\n---", "", "", "", "word word. Word!", "ä数 é",
        "- item", "  more", "1. step", "2. step", "```", "```py", "~~~", "    code", "\tcode", "> said", ">",
        "| a | b |", "|---|---|", "--|--", "---", "===", "***", "a: b", "+++", "   ```", "- ```", "\u3000", "\r",
        "👍🏽", "x" * 30,
    ]
)  # fmt: skip
PARTS = st.sampled_from(
    ["a", "bc", "def.", "3.1", "gh!", "ij?)", " ", "  ", "\n", "\n\n", "\r\n", "ä", "数", "。", "\uff01」"]
)
MARKDOWN = st.lists(LINES, max_size=40).map("\n".join)
SEPARATED = st.lists(PARTS, max_size=60).map("".join)
TEXTS = {
    "structure": MARKDOWN | MARKDOWN.map(lambda text: text.replace("\n", "\r\n")) | st.text(max_size=80),
    "seed": SEPARATED | st.text(max_size=80),
}
PLAIN = st.lists(
    st.sampled_from(["a", "bc", "def.", "3.1", "gh!", "ij?)", " ", "\n", "\n\n", "\r\n", "ä", "数", "。", "é"]),
    max_size=80,
).map("".join)
PLAIN_PARTS = st.sampled_from(["a", "bc", "defghijkl", "def.", "3.1", "gh!", "ij?)", " ", "  ", "\n", "\n\n", "\r\n"])
SIZES = st.integers(4, 120)
SMALL_SIZES = st.integers(4, 40)
LEVELS = (r"\n\s*\n", r"[\r\n]", r"(?<=[.!?])\s|(?<=[.!?]\))\s", r"\s+")


def draw(chunker: Chunker, data: st.DataObject) -> tuple[str, int]:
    return data.draw(TEXTS[chunker]), data.draw(SIZES if chunker == "structure" else SMALL_SIZES)


def is_fitting(text: str, size_bytes: int) -> bool:
    return len(text.encode("utf-8", "surrogatepass")) <= size_bytes


def pieces(text: str, begin: int, end: int, size_bytes: int, levels: tuple[str, ...]) -> list[tuple[int, int]]:
    """Return the largest pieces that fit, by the hierarchy of separators; for ASCII only."""
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


@pytest.mark.parametrize("chunker", ["structure", "seed"])
@given(st.data())
def test_every_visible_character_is_in_exactly_one_chunk(chunker: Chunker, data: st.DataObject) -> None:
    text, size_bytes = draw(chunker, data)
    covered = [place for chunk in split(text, size_bytes, chunker) for place in range(chunk.start, chunk.end)]
    assert covered == sorted(set(covered))
    assert set(range(len(text))) - set(covered) <= {place for place, letter in enumerate(text) if letter.isspace()}


@pytest.mark.parametrize("chunker", ["structure", "seed"])
@given(st.data())
def test_a_chunk_is_a_trimmed_part_of_the_text_and_fits(chunker: Chunker, data: st.DataObject) -> None:
    text, size_bytes = draw(chunker, data)
    for chunk in split(text, size_bytes, chunker):
        assert chunk.text == text[chunk.start : chunk.end] == chunk.text.strip() != ""
        assert is_fitting(chunk.text, size_bytes)


@given(PLAIN, SIZES)
def test_a_text_without_markdown_is_cut_by_its_separators(text: str, size_bytes: int) -> None:
    assert split(text, size_bytes) == split(text, size_bytes, "seed")


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 30)), max_size=12), st.integers(20, 200))
@pytest.mark.rule("engine-10")
def test_the_context_is_the_headings_above_every_line_of_the_chunk(
    sections: list[tuple[int, int]], size_bytes: int
) -> None:
    lines: list[tuple[str, list[str]]] = []
    above: list[tuple[int, str]] = []
    for number, (level, words) in enumerate(sections):
        above = [each for each in above if each[0] < level]
        lines.append((f"{'#' * level} h{number}", [title for _, title in above]))
        above.append((level, f"h{number}"))
        lines += [(f"w{number}-{word}.", [title for _, title in above]) for word in range(words)]
    text = "\n".join(line for line, _ in lines)
    for chunk in split(text, size_bytes):
        own = chunk.context.split(" > ") if chunk.context else []
        held = [path for line, path in lines if line in chunk.text.split("\n")]
        assert all(path[: len(own)] == own for path in held)
        assert held == [] or held[0] == own


@pytest.mark.parametrize("chunker", ["structure", "seed"])
@given(st.data())
def test_the_same_text_gives_the_same_chunks(chunker: Chunker, data: st.DataObject) -> None:
    text, size_bytes = draw(chunker, data)
    assert split(text, size_bytes, chunker) == split(text, size_bytes, chunker)


@given(st.lists(PLAIN_PARTS, max_size=80).map("".join), SMALL_SIZES)
@pytest.mark.rule("engine-10")
def test_chunks_are_those_of_splitting_by_each_separator_in_turn_and_merging(text: str, size_bytes: int) -> None:
    assert [(chunk.start, chunk.end) for chunk in split(text, size_bytes, "seed")] == split_plainly(text, size_bytes)


@given(st.lists(PLAIN_PARTS, max_size=80).map("".join), SMALL_SIZES)
def test_neighbours_would_not_fit_into_one_chunk(text: str, size_bytes: int) -> None:
    chunks = split(text, size_bytes, "seed")
    for left, right in pairwise(chunks):
        assert not is_fitting(text[left.start : right.end], size_bytes)
