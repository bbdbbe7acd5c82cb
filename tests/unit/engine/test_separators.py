"""Where a text is cut into chunks, and where it is not."""

import functools
import time

import pytest

from pair.engine.write import chunking
from pair.values import Chunk

split = functools.partial(chunking.split, chunker="seed")


def texts(text: str, size_bytes: int) -> list[str]:
    return [chunk.text for chunk in split(text, size_bytes)]


@pytest.mark.parametrize("text", ["", " ", "\n\n", " \t\r\n\u3000\u2028 "])
def test_a_blank_text_has_no_chunks(text: str) -> None:
    assert split(text) == ()


def test_a_short_text_is_one_chunk_without_the_whitespace_around_it() -> None:
    assert split("\n\n  one two\n\nthree \n") == (Chunk("one two\n\nthree", 4, 18),)


def test_offsets_are_into_the_text_that_was_given() -> None:
    text = "  ä first\n\n\n   second\n"
    assert split(text, 10) == (Chunk("ä first", 2, 9), Chunk("second", 15, 21))
    assert [text[chunk.start : chunk.end] for chunk in split(text, 10)] == ["ä first", "second"]


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
        split("a", 3)


@pytest.mark.parametrize(
    "unit",
    ["x", "\n", "a ", "a\n\n", ".", "a. ", "数", "\u0301", "\n" + " " * 999, "x" + " " * 2_999, "." + ")" * 400],
    ids=ascii,
)
def test_five_megabytes_of_anything_are_split_in_linear_time(unit: str) -> None:
    text = unit * (5_000_000 // len(unit.encode()))
    began = time.process_time()
    split(text)
    assert time.process_time() - began < 10, "it takes about a second; a machine may be slow, but not that slow"
