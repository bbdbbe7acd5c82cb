"""A passage as sentences that can be quoted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pair.text.markdown import split_sentences


def texts(passage: str) -> list[str]:
    return [each.text for each in split_sentences(passage)]


def test_a_paragraph_is_its_sentences() -> None:
    assert texts("The first one is short. The second\nruns over a line! Is the third a question? Yes it is.") == [
        "The first one is short.",
        "The second runs over a line!",
        "Is the third a question?",
        "Yes it is.",
    ]


@pytest.mark.parametrize(
    "sentence",
    [
        "It holds for short words, e.g. Monday, and others.",
        "The table of Dr. Smith et al. Shows what is meant.",
        "See Fig. 3 of the report by J. R. Hartley for it.",
        "Version 2.0 was released on 1.2.2023 in the morning.",
    ],
)
def test_a_full_stop_that_ends_no_sentence_cuts_nothing(sentence: str) -> None:
    assert texts(sentence) == [sentence]


def test_items_rows_and_code_are_quoted_by_themselves() -> None:
    passage = (
        "Intro of the list:\n\n- the first item is here\n- the second item. It goes on\n  below.\n\n"
        "| head | of table |\n|---|---|\n| a row | with two cells |\n\n```sh\nrun this now\n```\n"
        "> quoted by somebody else"
    )
    assert texts(passage) == [
        "Intro of the list:",
        "the first item is here",
        "the second item.",
        "It goes on below.",
        "| a row | with two cells |",
        "run this now",
        "quoted by somebody else",
    ]


def test_headings_rules_and_mere_links_are_no_statements() -> None:
    passage = (
        "# A heading of words\n\nUnderlined heading here\n======\n\n---\n\n- [a link of words](https://example.org)\n"
    )
    assert texts(passage) == []


def test_sentences_of_scripts_without_spaces_end_at_their_own_stops() -> None:
    assert texts("今日は天気がいい。明日は雨が降る。") == ["今日は天気がいい。", "明日は雨が降る。"]


def test_a_text_without_full_stops_is_quoted_in_pieces() -> None:
    passage = "statin breast cancer survival " * 60
    found = split_sentences(passage)
    assert len(found) > 3
    assert all(len(each.text) <= 600 for each in found)
    assert "".join(passage[each.start : each.end] for each in found) == passage


@given(st.text(alphabet="aB .!?\n-|#>`1。[]()", max_size=300))
def test_places_are_right_whatever_the_text(passage: str) -> None:
    at = 0
    for each in split_sentences(passage):
        assert at <= each.start < each.end <= len(passage)
        assert " ".join(passage[each.start : each.end].split()) == each.text
        at = each.end
