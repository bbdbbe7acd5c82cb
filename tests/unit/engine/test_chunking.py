"""How a text with headings, lists, code and tables becomes chunks, and what stands above each."""

import time

import pytest

from pair.engine.write.chunking import format_for_embedding, split
from pair.values import Chunk

WORDS = "one two three four five six seven eight nine ten "


def cut(text: str, size_bytes: int) -> list[tuple[str, str]]:
    return [(chunk.context, chunk.text) for chunk in split(text, size_bytes)]


def test_a_text_that_fits_is_one_chunk_whatever_is_in_it() -> None:
    text = "---\ntitle: x\n---\n\n# A\n\ntext\n\n## B\n\n- one\n- two\n"
    assert split(text) == (Chunk(text.strip(), 0, len(text) - 1),)


def test_sections_are_chunks_and_headings_above_them_are_their_context() -> None:
    body = WORDS * 2
    text = (
        f"# Guide\n\n{body}\n\n## Install\n\n{body}\n\n### Linux\n\n{body}\n\n### Mac\n\n{body}\n\n## Use\n\n{body}\n"
    )
    assert cut(text, 150) == [
        ("", f"# Guide\n\n{body.strip()}"),
        ("Guide", f"## Install\n\n{body.strip()}"),
        ("Guide > Install", f"### Linux\n\n{body.strip()}"),
        ("Guide > Install", f"### Mac\n\n{body.strip()}"),
        ("Guide", f"## Use\n\n{body.strip()}"),
    ]


def test_a_section_with_all_below_it_is_one_chunk_if_it_fits() -> None:
    text = f"# A\n\n{WORDS}\n\n## B\n\n{WORDS}\n\n# C\n\n{WORDS * 3}"
    assert [each.partition("\n")[0] for _, each in cut(text, 160)] == ["# A", "# C"]


def test_the_rest_of_a_long_section_stands_below_its_heading() -> None:
    chunks = cut(f"# A\n\n## B\n\n{WORDS * 8}", 120)
    assert chunks[0][1].startswith("# A\n\n## B\n\none two")
    assert [context for context, _ in chunks] == ["", *["A > B"] * (len(chunks) - 1)]


def test_a_heading_is_never_left_alone_while_text_follows() -> None:
    code = "```\n" + "x = 1\n" * 18 + "```"
    for size_bytes in range(112, 130):
        assert all("x" in text for _, text in cut(f"# Title\n\n## Sub\n\n{code}\n\n{WORDS * 9}", size_bytes)[:1])


def test_tiny_sections_share_a_chunk_and_others_do_not() -> None:
    tiny = "".join(f"## {name}\n\nshort\n\n" for name in "abcdef")
    assert [text.count("##") for _, text in cut(f"{tiny}## g\n\n{WORDS * 3}", 200)] == [4, 3]
    larger = "".join(f"## {name}\n\n{WORDS}\n\n" for name in "abcdef")
    assert [text.count("##") for _, text in cut(larger, 200)] == [1] * 6


def test_a_tiny_section_at_the_end_joins_its_sibling_but_no_stranger() -> None:
    assert [text.count("#") for _, text in cut(f"# A\n\n{WORDS * 3}\n\n# B\n\nx", 170)] == [2]
    chunks = cut(f"# A\n\n{WORDS * 2}\n\n## B\n\n{WORDS * 2}\n\n## C\n\nend\n\n# D\n\n{WORDS * 3}", 160)
    assert [text.partition("\n")[0] for _, text in chunks] == ["# A", "## B", "# D"]
    chunks = cut(f"# A\n\n{WORDS * 9}\n\n# B\n\nx", 160)
    assert chunks[-1] == ("", "# B\n\nx")


@pytest.mark.parametrize(
    "heading",
    ["# Title", "# Title #", "   # Title ##", "Title\n=====", "Title\n===", "=====\nTitle\n=====", "# [Title](a.md)",
     "# **Title**", "#\tTitle", "# Title\r", "Title\n-----", "Title\n~~~~~", "Title\n^^^^^^"],
)  # fmt: skip
def test_headings_may_be_written_in_several_ways(heading: str) -> None:
    assert cut(f"{heading}\n\n{WORDS * 9}", 100)[-1][0] == "Title"


@pytest.mark.parametrize(
    "line",
    ["#Title", "####### Title", "    # Title", "```\n# Title\n```", "~~~\n# Title\n~~~\n", "- a\n  # Title",
     "\\# Title", "> # Title", "- ```\n  # Title\n  ```", "Title\n\n---", "# " + "long " * 50, "Title\n~~~",
     "one `# Title`"],
)  # fmt: skip
def test_what_only_looks_like_a_heading_is_none(line: str) -> None:
    assert {context for context, _ in cut(f"{line}\n\n{WORDS * 9}", 100)} == {""}


@pytest.mark.parametrize(
    "block",
    [
        "```python\nfirst\n\nsecond\n\n# third\n```",
        "~~~\nfirst\n```\n\nsecond\n~~~",
        "````\nfirst\n```\n\nsecond\n````",
        "    first\n\n    second\n\n    third",
        "- first\n- second\n\n- third\n  more",
        "1. first\n\n   more\n2. second",
        "* first\n  * inner\n\n  rest",
        "1. first\n   ```\n   code\n\n   code\n   ```\n2. second",
        "> first\n>\n> second",
        "| a | b |\n|---|---|\n| 1 | 2 |\n| 3 | 4 |",
        "a | b\n--|--\n1 | 2",
    ],
)
def test_a_block_that_fits_stays_whole(block: str) -> None:
    text = f"{WORDS}\n\n{block}\n\n{WORDS}"
    for size_bytes in range(60, 120):
        assert sum(block.strip() in chunk.text for chunk in split(text, size_bytes)) == 1, size_bytes


def test_front_matter_stays_whole() -> None:
    front = "---\ntitle: x\n\ntags: [a, b]\n---"
    assert cut(f"{front}\n\n# A\n\n{WORDS * 3}\n\n{WORDS * 3}", 60)[0][1].startswith(front)


def test_long_blocks_are_cut_between_their_parts() -> None:
    code = "\n\n".join(f"def f{number}():\n    return {number}" for number in range(9))
    assert all(text.lstrip("`\n").startswith("def") for _, text in cut(f"```\n{code}\n```", 80))
    rows = "\n".join(f"| {number} | {WORDS} |" for number in range(9))
    assert all(text.startswith("|") and text.endswith("|") for _, text in cut(f"| a | b |\n|---|---|\n{rows}", 130))
    items = "\n".join(f"- item {number}\n\n  more of it" for number in range(9))
    assert all(text.startswith("- item") for _, text in cut(items, 60))
    quote = "\n>\n".join("> one two three\n> four five" for _ in range(9))
    assert all(text.startswith("> one") for _, text in cut(quote, 65))
    steps = "\n".join(f"1. {WORDS}\n   ```\n   a\n\n   b\n   ```" for _ in range(5))
    assert sum("```\n   a\n\n   b\n   ```" in text for _, text in cut(steps, 70)) == 5


def test_an_unclosed_fence_is_code_to_the_end() -> None:
    assert {context for context, _ in cut(f"```\ncode\n\n# no heading\n\n{WORDS * 9}", 100)} == {""}


def test_a_context_is_short_and_its_nearest_headings_stay() -> None:
    names = [f"{name} " + "long" * 25 for name in ("first", "second", "third")]
    text = "".join(f"{'#' * level} {name}\n\n{WORDS * 9}\n\n" for level, name in enumerate(names, start=1))
    contexts = {chunk.context for chunk in split(text, 100)}
    assert contexts == {"", names[0], f"{names[0]} > {names[1]}", f"{names[1]} > {names[2]}"}


def test_title_and_context_stand_before_the_text_that_is_embedded() -> None:
    assert format_for_embedding("", Chunk("text", 0, 4)) == "text"
    assert format_for_embedding("Title", Chunk("text", 0, 4)) == "Title\n\ntext"
    assert format_for_embedding("Guide", Chunk("text", 0, 4, "Install > Linux")) == "Guide\nInstall > Linux\n\ntext"


def test_nothing_is_said_twice_before_the_text() -> None:
    assert format_for_embedding("Guide", Chunk("# Guide\n\ntext", 0, 13)) == "# Guide\n\ntext"
    assert format_for_embedding("Guide", Chunk("text", 0, 4, "Guide > Linux")) == "Guide > Linux\n\ntext"


@pytest.mark.parametrize(
    "unit",
    ["#", "# a\n", "`", "```\n", "````\n```\n", "|", "|-|\n", "a|b\n-|-\n", ">", ">\n", "> a\n", "- a\n", "- ```\n",
     "    x\n\n", "\n    \n", "a\n=\n", "a\n~~~\n", "#" + " " * 150 + "\n", "---\na: b\n", "1) a\n\n   ```\n", "[a]("],
    ids=ascii,
)  # fmt: skip
def test_hostile_structure_is_split_in_linear_time(unit: str) -> None:
    text = unit * (100_000 // len(unit))
    began = time.process_time()
    split(text)
    assert time.process_time() - began < 5, "it takes a tenth of a second; quadratic, it would take minutes"
