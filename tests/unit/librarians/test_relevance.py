"""The sentences that answer a question, and how sure an answer is."""

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pair.app.cli.search import describe_confidence
from pair.librarians.relevance import (
    MOST_QUOTES,
    MOST_SENTENCES,
    NOTHING_RELEVANT,
    Quote,
    choose_quotes,
    confidence_in,
    coverage,
)
from pair.text import tokenizer
from pair.text.markdown import find_passage_words
from pair.values import Hit
from support.readers import WordReader


def make_hit(title: str, text: str, score: float) -> Hit:
    return Hit("a", "a:0", title, "", text, score, None, {}, 0, len(text))


def quoted(query: str, *passages: Hit) -> list[str]:
    weights = dict.fromkeys(tokenizer.parse_query(query).terms, 1.0)
    return [quote.text for quote in choose(query, passages, weights, WordReader())]


def choose(query: str, passages: Sequence[Hit], weights: Mapping[str, float], embedder: WordReader) -> list[Quote]:
    read = find_passage_words(query, [(hit.title, hit.text) for hit in passages], MOST_SENTENCES)
    return choose_quotes(query, passages, read, weights, embedder)


def test_the_sentence_that_explains_it_is_quoted_with_it() -> None:
    passage = make_hit("", "Mail stopped on Monday. The disk was full of old logs.\n\nCats sleep all day long.", 1.0)
    assert quoted("why did mail stop on Monday?", passage) == ["Mail stopped on Monday. The disk was full of old logs."]


def test_words_of_the_title_count_for_every_sentence_a_little() -> None:
    timers = make_hit("Timers of the scheduler", "The default is one minute. Nothing else is known about it.", 0.9)
    other = make_hit("Gardens and walls", "The default is one tulip. Nothing else is known about it.", 1.0)
    assert quoted("what is the default of timers?", other, timers)[0].startswith("The default is one minute.")


def test_a_question_for_a_number_prefers_a_sentence_that_has_one() -> None:
    passage = make_hit("", "Leap seconds were inserted often.\n\nLeap seconds were inserted 27 times.", 1.0)
    assert quoted("how many leap seconds were inserted?", passage)[0] == "Leap seconds were inserted 27 times."


def test_a_row_of_a_table_is_quoted_for_a_number_and_not_for_a_reason() -> None:
    row = make_hit("", "| leap second of 2016 | `23:59:60` |", 1.0)
    said = make_hit("", "The slowing of the planet is the reason for the leap second.", 0.95)
    assert quoted("why is there a leap second?", row, said)[0].startswith("The slowing of the planet")
    assert "23:59:60" in quoted("what time is the leap second of 2016?", row, said)[0]


def test_a_further_sentence_is_quoted_only_for_what_it_adds() -> None:
    first = make_hit("", "Postgres clamps the date of January.", 1.0)
    again = make_hit("", "The date of January is clamped by Postgres too.", 0.9)
    second = make_hit("", "Sqlite lets the month of January overflow.", 0.9)
    found = quoted("what do postgres and sqlite do with the date of january?", first, again, second)
    assert found == ["Postgres clamps the date of January.", "Sqlite lets the month of January overflow."]


def test_there_are_never_more_than_a_few() -> None:
    words = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta"]
    passages = [make_hit("", f"Here stands {word} alone.", 1.0) for word in words]
    assert len(quoted(" ".join(words), *passages)) == MOST_QUOTES


def test_few_sentences_are_measured_by_meaning_however_long_the_passages_are() -> None:
    reader = WordReader()
    passage = make_hit("", " ".join(f"Sentence number {number} is here." for number in range(500)), 1.0)
    choose("which sentence is here?", [passage] * 6, {"sentenc": 1.0}, reader)
    assert 0 < reader.measured <= 24


def test_nothing_is_quoted_from_nothing() -> None:
    assert quoted("anything?") == []
    assert quoted("anything?", make_hit("", "", 1.0)) == []


def test_coverage_is_the_share_of_the_weight() -> None:
    assert coverage(frozenset({"a"}), {"a": 3.0, "b": 1.0}) == 0.75
    assert coverage(frozenset(), {}) == 0.0


share = st.floats(0, 1)


def weigh(coverage: float, meaning: float, agreement: float, lead: float) -> float:
    return confidence_in(coverage=coverage, meaning=meaning, agreement=agreement, lead=lead)


@given(share, share, share, share)
def test_it_is_a_share_and_more_evidence_never_lowers_it(
    coverage: float, meaning: float, agreement: float, lead: float
) -> None:
    sure = weigh(coverage, meaning, agreement, lead)
    assert 0 <= sure <= 1
    assert weigh(1, meaning, agreement, lead) >= sure
    assert weigh(coverage, 1, agreement, lead) >= sure
    assert weigh(coverage, meaning, 1, lead) >= sure
    assert weigh(coverage, meaning, agreement, 1) >= sure


def test_without_any_evidence_nothing_is_relevant_and_with_all_of_it_an_answer_is_likely() -> None:
    assert weigh(0, 0, 0, 0) < NOTHING_RELEVANT
    assert weigh(1, 0.8, 1, 0.5) >= 0.8


@pytest.mark.parametrize(
    ("confidence", "words"),
    [(0.8, "high"), (0.79, "fair"), (0.59, "moderate"), (0.49, "low"), (0.19, "very low"), (None, "not known")],
)
def test_it_is_told_in_words(confidence: float | None, words: str) -> None:
    assert describe_confidence(confidence) == words
