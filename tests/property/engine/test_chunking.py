"""Whatever the text: nothing is lost, nothing comes twice, offsets and contexts are right."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pair.engine.write.chunking import split

LINES = st.sampled_from(
    [
        "# A", "## B", "### C", "# A #", "Title\n===", "Other\n---", "", "", "", "word word. Word!", "ä数 é",
        "- item", "  more", "1. step", "2. step", "```", "```py", "~~~", "    code", "\tcode", "> said", ">",
        "| a | b |", "|---|---|", "--|--", "---", "===", "***", "a: b", "+++", "   ```", "- ```", "\u3000", "\r",
        "👍🏽", "x" * 30,
    ]
)  # fmt: skip
MARKDOWN = st.lists(LINES, max_size=40).map("\n".join)
TEXTS = MARKDOWN | MARKDOWN.map(lambda text: text.replace("\n", "\r\n")) | st.text(max_size=80)
PLAIN = st.lists(
    st.sampled_from(["a", "bc", "def.", "3.1", "gh!", "ij?)", " ", "\n", "\n\n", "\r\n", "ä", "数", "。", "é"]),
    max_size=80,
).map("".join)
SIZES = st.integers(4, 120)


@given(TEXTS, SIZES)
def test_every_visible_character_is_in_exactly_one_chunk(text: str, size_bytes: int) -> None:
    covered = [place for chunk in split(text, size_bytes) for place in range(chunk.start, chunk.end)]
    assert covered == sorted(set(covered))
    assert set(range(len(text))) - set(covered) <= {place for place, letter in enumerate(text) if letter.isspace()}


@given(TEXTS, SIZES)
def test_a_chunk_is_a_trimmed_part_of_the_text_and_fits(text: str, size_bytes: int) -> None:
    for chunk in split(text, size_bytes):
        assert chunk.text == text[chunk.start : chunk.end] == chunk.text.strip() != ""
        assert len(chunk.text.encode("utf-8", "surrogatepass")) <= size_bytes


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


@given(TEXTS, SIZES)
def test_the_same_text_gives_the_same_chunks(text: str, size_bytes: int) -> None:
    assert split(text, size_bytes) == split(text, size_bytes)
