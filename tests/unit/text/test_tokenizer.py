"""The terms of a text, the parts of a query, and highlights."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pair.text import tokenizer
from pair.text.tokenizer import analyse, find_highlights, parse_query, terms

PIECES = [
    "Running",
    "run,",
    "foo_bar",
    "camelCase",
    "E0432",
    "--no-kb",
    "日本語",
    "Cafés",
    "a/b_c.py",
    "don't",
    "v1.2.3",
]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Running quickly,", ["run", "quick"]),
        ("RUNNING", ["run"]),
        ("don't", ["don't"]),
        ("the user's", ["the", "user"]),
        ("l\u2019homme", ["l", "homm"]),
        ("E0432", ["e0432", "e", "0432"]),
        ("foo_bar", ["foo", "bar", "foo_bar"]),
        ("--no-kb", ["no", "kb", "no-kb"]),
        ("v1.2.3", ["v1", "2", "3", "v", "1", "v1.2.3", "1.2.3"]),
        ("camelCase", ["camelcas", "camel", "case"]),
        ("HTTPServer", ["httpserver", "http", "server"]),
        ("a/b_c.py", ["a", "b", "c", "py", "a/b_c.py", "b_c.py", "b_c"]),
        ("https://example.com/x", ["https", "exampl", "com", "x", "https://example.com/x", "example.com"]),
        ("C++", ["c", "c++"]),
        ("(C#)", ["c", "c#"]),
        (".NET", ["net", ".net"]),
        ("end.", ["end"]),
        ("...and", ["and"]),
        ("1,000", ["1", "000", "1,000", "1000"]),
        ("caf\u00e9 cafe\u0301 CAF\u00c9", ["cafe", "cafe", "cafe"]),
        ("Stra\u00dfe", ["strass"]),
        ("\uff30\uff59\uff54\uff48\uff4f\uff4e", ["python"]),
        ("\u65e5\u672c\u8a9e", ["\u65e5\u672c", "\u672c\u8a9e", "\u65e5", "\u672c", "\u8a9e"]),
        ("\u732b", ["\u732b"]),
        ("\u4f7f\u7528Python", ["\u4f7f\u7528", "python", "\u4f7f", "\u7528"]),
        ("\u05e9\u05b8\u05c1\u05dc\u05d5\u05b9\u05dd", ["\u05e9\u05dc\u05d5\u05dd"]),
        ("\u0939\u093f\u0928\u094d\u0926\u0940", ["\u0939\u093f\u0928\u094d\u0926\u0940"]),
        ("\U0001f388 !? \u2014", []),
        ("half \ud83c", ["half"]),
    ],
)
def test_a_text_has_these_terms(text: str, expected: list[str]) -> None:
    assert terms(text) == expected


def test_the_length_counts_words_alone() -> None:
    assert len(analyse("foo_bar").terms) == 2
    assert len(analyse("camelCase").terms) == 1


def test_a_word_of_any_length_is_one_term() -> None:
    [term] = terms("x" * 10_000)
    assert len(term) == 64


@pytest.mark.parametrize(
    ("whole", "part"),
    [
        ("foo_bar", "bar"),
        ("src/pair/engine.py", "engine.py"),
        ("v1.2.3", "1.2.3"),
        ("parseQuery", "query"),
        ("IL-6", "il6"),
    ],
)
def test_a_compound_is_found_by_its_parts(whole: str, part: str) -> None:
    assert set(terms(whole)) & set(terms(part))


def test_a_query_of_stop_words_asks_for_them() -> None:
    assert set(parse_query("to be or not to be").terms) == {"to", "be", "or", "not"}
    assert set(parse_query("what is the engine?").terms) == {"engin"}
    assert set(parse_query("WHO guidelines").terms) == {"who", "guidelin"}


def test_operators_are_distinguished_from_text() -> None:
    query = parse_query('error "connection refused" -timeout inst* -"by peer" --no-kb well-known -5')
    assert query.phrases == (("connect", "refus"),)
    assert query.excluded == (("timeout",), ("by", "peer"))
    assert query.prefixes == ("inst",)
    assert {"no-kb", "well-known", "5", "error", "connect"} <= set(query.terms)


def test_highlights_give_the_places_of_the_words() -> None:
    text = "Caf\u00e9s at https://example.com: installation of \u65e5\u672c\u8a9e in foo_bar."
    found = find_highlights(text, parse_query("cafe example.com inst* \u672c\u8a9e bar"))
    assert [text[start:end] for start, end in found] == [
        "Caf\u00e9s",
        "https://example.com",
        "installation",
        "\u65e5\u672c\u8a9e"[1:],
        "bar",
    ]


@given(
    st.lists(st.sampled_from(PIECES), max_size=12).map(" ".join),
    st.lists(st.sampled_from(PIECES), max_size=3).map(" ".join),
    st.sampled_from(["", "*"]),
)
def test_highlights_miss_nothing_that_a_look_at_every_word_finds(text: str, query: str, ending: str) -> None:
    asked = parse_query(query + ending)
    marked = {place for start, end in find_highlights(text, asked) for place in range(start, end)}
    for found in re.finditer(r"\S+", text):
        for word in tokenizer._words_of(found[0]):
            if tokenizer._is_asked((word.term, *word.extras), (word.form,), asked):
                assert {found.start() + place for place in range(word.start, word.end)} <= marked
