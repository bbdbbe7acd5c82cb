"""Chunks of texts: by headings, lists, code and tables, and by the older chunker."""

import functools
import time

import pytest

from pair.engine.write.chunking import format_for_embedding, split
from pair.values import Chunk

WORDS = "one two three four five six seven eight nine ten "


def cut(text: str, size_bytes: int) -> list[tuple[str, str]]:
    return [(chunk.context, chunk.text) for chunk in split(text, size_bytes)]


def test_a_text_that_fits_is_one_chunk_with_any_content() -> None:
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


def test_the_rest_of_a_long_section_has_its_heading_as_context() -> None:
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


def test_a_tiny_section_at_the_end_joins_its_sibling_only() -> None:
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


def test_title_and_context_precede_the_embedded_text() -> None:
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


# ── the older chunker ──────────────────────────────────────────────────────────────────────────────

split_plainly = functools.partial(split, chunker="seed")


def texts(text: str, size_bytes: int) -> list[str]:
    return [chunk.text for chunk in split_plainly(text, size_bytes)]


@pytest.mark.parametrize("text", ["", " ", "\n\n", " \t\r\n\u3000\u2028 "])
def test_a_blank_text_has_no_chunks(text: str) -> None:
    assert split_plainly(text) == ()


def test_a_short_text_is_one_chunk_without_the_whitespace_around_it() -> None:
    assert split_plainly("\n\n  one two\n\nthree \n") == (Chunk("one two\n\nthree", 4, 18),)


def test_offsets_are_into_the_text_that_was_given() -> None:
    text = "  ä first\n\n\n   second\n"
    assert split_plainly(text, 10) == (Chunk("ä first", 2, 9), Chunk("second", 15, 21))
    assert [text[chunk.start : chunk.end] for chunk in split_plainly(text, 10)] == ["ä first", "second"]


def test_paragraphs_that_fit_together_share_a_chunk() -> None:
    assert texts("aaa\n\nbbb\n\nccc\n\nddd", 8) == ["aaa\n\nbbb", "ccc\n\nddd"]


def test_whitespace_at_the_end_takes_no_room() -> None:
    assert texts("aaa\n\nbbb" + " " * 50, 8) == ["aaa\n\nbbb"]
    assert texts("aaa\n\nbbb" + " " * 50 + "\n\nccc", 8) == ["aaa\n\nbbb", "ccc"]


def test_a_paragraph_that_fits_is_not_cut_to_fill_the_chunk_before_it() -> None:
    assert texts("one. two.\n\nthree. four. five.", 20) == ["one. two.", "three. four. five."]


@pytest.mark.parametrize("blank", ["\n\n", "\n \t\n", "\r\n\r\n", "\n\n\n\n", "  \n\n  "])
def test_a_blank_line_may_be_written_in_several_ways(blank: str) -> None:
    assert texts(f"one\ntwo{blank}three\nfour", 11) == ["one\ntwo", "three\nfour"]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_a_long_paragraph_is_cut_between_lines(end: str) -> None:
    assert texts(f"one. two{end}three four{end}five", 12) == ["one. two", "three four", "five"]


def test_a_long_line_is_cut_between_sentences_and_the_mark_stays_on_the_left() -> None:
    assert texts("One two. Three four! Five six? Seven", 12) == ["One two.", "Three four!", "Five six?", "Seven"]
    assert texts('He said "no." Then he left.', 14) == ['He said "no."', "Then he left."]


def test_a_period_inside_a_number_or_a_name_ends_no_sentence() -> None:
    assert texts("see 3.14159 or example.com. Then go", 27) == ["see 3.14159 or example.com.", "Then go"]
    assert texts("at example.com now", 13) == ["at", "example.com", "now"]


def test_chinese_sentences_end_without_a_space() -> None:
    assert texts("今天。明天\uff01后天\uff1f", 9) == ["今天。", "明天\uff01", "后天\uff1f"]
    assert texts("「今天。」明天。", 15) == ["「今天。」", "明天。"]


def test_a_long_sentence_is_cut_between_words() -> None:
    assert texts("alpha beta gamma delta", 11) == ["alpha beta", "gamma delta"]


def test_a_long_word_begins_a_chunk_and_its_rest_is_joined_by_what_follows() -> None:
    assert texts("of 0123456789ab cd ef", 10) == ["of", "0123456789", "ab cd ef"]


def test_the_size_is_counted_in_bytes() -> None:
    assert texts("ää ää ää", 5) == ["ää", "ää", "ää"]
    assert texts("äääää", 5) == ["ää", "ää", "ä"]
    assert texts("😀😀😀", 9) == ["😀😀", "😀"]


@pytest.mark.parametrize(
    "cluster",
    [
        "e\u0301",
        "क्षि",
        "\U0001f44d\U0001f3fd",
        "\U0001f468\u200d\U0001f469\u200d\U0001f467",
        "\U0001f1e9\U0001f1ea",
        "\u1112\u1161\u11ab",
        "\ud83d\ude00",
        "☂\ufe0f",
    ],
)
def test_what_is_one_character_to_a_reader_is_not_parted(cluster: str) -> None:
    size_bytes = 2 * len(cluster.encode("utf-8", "surrogatepass")) - 1
    assert texts(cluster * 5, size_bytes) == [cluster] * 5


def test_a_heap_of_marks_longer_than_a_chunk_is_cut_all_the_same() -> None:
    chunks = texts("a" + "\u0301" * 1_000, 100)
    assert "".join(chunks) == "a" + "\u0301" * 1_000
    assert all(len(chunk.encode()) <= 100 for chunk in chunks)


def test_a_size_without_room_for_a_character_is_refused() -> None:
    assert texts("😀a", 4) == ["😀", "a"]
    with pytest.raises(ValueError, match="4 bytes: 3"):
        split_plainly("a", 3)


@pytest.mark.parametrize(
    "unit",
    ["x", "\n", "a ", "a\n\n", ".", "a. ", "数", "\u0301", "\n" + " " * 999, "x" + " " * 2_999, "." + ")" * 400],
    ids=ascii,
)
def test_five_megabytes_of_anything_are_split_in_linear_time(unit: str) -> None:
    text = unit * (5_000_000 // len(unit.encode()))
    began = time.process_time()
    split_plainly(text)
    assert time.process_time() - began < 10, "it takes about a second; a machine may be slow, but not that slow"
