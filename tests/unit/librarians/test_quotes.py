"""The blocks that answer a question, and the confidence of an answer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pair.app.cli.search import describe_confidence
from pair.librarians.confidence import ANSWER_FROM, COEFFICIENTS, NOTHING_BELOW, estimate_confidence
from pair.librarians.quotes import QuoteRanking, rank_quotes
from pair.librarians.relevance import coverage
from pair.text import tokenizer
from pair.values import Hit
from support.readers import WordReader


def make_hit(title: str, text: str, name: str = "a") -> Hit:
    return Hit(name, f"{name}:0", title, "", text, 1.0, None, {}, 0, len(text))


def rank(query: str, *passages: Hit) -> QuoteRanking:
    return rank_quotes(query, passages, dict.fromkeys(tokenizer.parse_query(query).terms, 4.0), WordReader())


def best(query: str, *passages: Hit) -> str:
    return rank(query, *passages).quotes[0].text


def test_the_sentence_that_explains_it_is_quoted_with_it() -> None:
    passage = make_hit("", "Mail stopped on Monday. The disk was full of old logs.\n\nCats sleep all day long.")
    assert best("why did mail stop on Monday?", passage) == "Mail stopped on Monday. The disk was full of old logs."


def test_words_of_the_title_count() -> None:
    timers = make_hit("Timers of the scheduler", "The default is one minute. Nothing else is known about it.", "a")
    other = make_hit("Gardens and walls", "The default is one tulip. Nothing else is known about it.", "b")
    assert best("what is the default of timers?", other, timers).startswith("The default is one minute.")


def test_a_question_for_a_number_prefers_a_sentence_that_has_one() -> None:
    passage = make_hit("", "Leap seconds were inserted often.\n\nLeap seconds were inserted 27 times.")
    assert best("how many leap seconds were inserted?", passage) == "Leap seconds were inserted 27 times."


def test_the_row_of_what_is_asked_is_quoted_with_its_head() -> None:
    table = "| Item | Limit |\n|---|---|\n| columns per index | 32 |\n| columns per table | 1,600 |"
    assert best("how many columns can a table have?", make_hit("Limits", table)).endswith(
        "| columns per table | 1,600 |"
    )


def test_a_section_whose_heading_asks_the_question_answers_with_its_first_sentences() -> None:
    text = (
        "## Why are keys immutable?\n\nThe table finds a key by its hash. A new value would change the hash.\n\n"
        "Tuples are immutable, and keys of a table may be tuples."
    )
    quoted = best("Why must keys be immutable?", make_hit("Design", text))
    assert quoted.startswith("Why are keys immutable?\n\nThe table finds a key")


def test_a_passage_is_shown_with_two_blocks_where_they_are_nearly_as_good() -> None:
    guide = make_hit("Guide", "Lunch is served at 12 in the canteen.\n\nLunch is served at 13 in the canteen.")
    shown = rank("when is lunch served?", guide).choose_passages()
    assert [quote.text for quote in shown] == [
        "Lunch is served at 12 in the canteen.\n\nLunch is served at 13 in the canteen."
    ]


def test_two_blocks_are_quoted_where_they_are_nearly_as_good() -> None:
    first = make_hit("Old guide", "Lunch is served at 12 o'clock in the canteen.", "a")
    second = make_hit("New guide", "Lunch is served at 13 o'clock in the canteen.", "b")
    other = make_hit("Coffee", "The machine is cleaned on Fridays.", "c")
    answer = rank("when is lunch served in the canteen?", first, second, other).choose_answer()
    assert {quote.passage for quote in answer} == {0, 1}


def test_a_block_is_quoted_with_the_name_above_it_if_a_name_is_asked_for() -> None:
    text = "# Hooks\n\n## after-copy\n\nThis hook runs when a copy is complete.\n\n## before-copy\n\nThis is not used."
    assert best("Which hook runs when a copy is complete?", make_hit("Hooks", text)) == (
        "after-copy\n\nThis hook runs when a copy is complete."
    )
    assert best("Does a hook run when a copy is complete?", make_hit("Hooks", text)).startswith("This hook runs")


def test_a_block_is_quoted_with_the_heading_that_alone_holds_a_word_of_the_question() -> None:
    hit = make_hit(
        "Statistics", "# Statistics\n\n## mean(data)\n\nNew in version 3.4.\n\n## mode(data)\n\nNew in version 3.8."
    )
    assert best("When was mode added?", hit) == "mode(data)\n\nNew in version 3.8."


def test_the_title_of_the_document_is_not_repeated_above_a_block() -> None:
    hit = make_hit("Snapshots of Quill", "# Snapshots of Quill\n\nThey are kept for two weeks.")
    assert best("How long are snapshots kept?", hit) == "They are kept for two weeks."


def test_a_second_block_does_not_repeat_a_sentence_of_the_first() -> None:
    first = f"The cache of the server holds ten pages {'and it waits ' * 10}there."
    second = f"The cache of the server holds few pages {'and it sleeps ' * 8}then."
    ranking = rank(
        "what does the cache of the server hold?", make_hit("", f"{first} {second} {second.replace('few', 'all')}")
    )
    quoted = [quote.text for quote in ranking.choose_answer()]
    assert quoted[0] == f"{first} {second}"
    assert "\n".join(quoted).count(second) == 1


def test_the_passage_about_the_whole_question_wins_over_a_block_with_as_many_of_its_words() -> None:
    about = make_hit(
        "", "The retention of logs has limits.\n\nThe period is 14 days by default for everyone who asks.", "a"
    )
    other = make_hit("", "The period is 80 days by default for everyone who asks.", "b")
    assert best("What is the default period of the retention of logs?", other, about).startswith("The period is 14")


def test_there_are_never_more_than_three_passages() -> None:
    words = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta"]
    ranking = rank(" ".join(words), *[make_hit("", f"Here stands {word} alone.", word) for word in words])
    assert len(ranking.choose_passages()) == 3
    assert len(ranking.choose_answer()) <= 2


def test_few_blocks_are_measured_by_meaning_however_long_the_passages_are() -> None:
    reader = WordReader()
    passage = make_hit("", " ".join(f"Sentence number {number} is here." for number in range(500)))
    rank_quotes("which sentence is here?", [passage] * 6, {"sentenc": 1.0}, reader)
    assert 0 < reader.measured <= 24


def test_a_late_passage_that_holds_the_whole_question_is_quoted_from() -> None:
    others = [make_hit(f"Note {number}", "The server is fast and quiet.", f"n{number}") for number in range(14)]
    late = make_hit("Limits", "The retention period of the server is 14 days.", "limits")
    assert best("What is the retention period of the server?", *others, late) == late.text


def test_a_question_in_the_text_and_a_pointer_to_another_entry_give_way_to_what_says_something() -> None:
    pointer = make_hit("Glossary", "- GC: See garbage collector.\n", "a")
    asked = make_hit("Notes", "What does the GC do?", "b")
    told = make_hit("Memory", "The GC is a thread that frees objects without references.", "c")
    assert best("What is the GC?", pointer, asked, told) == told.text


def test_no_passages_give_no_quotes() -> None:
    assert rank("anything?").quotes == []
    assert rank("anything?", make_hit("", "")).quotes == []


def test_coverage_is_the_share_of_the_weight() -> None:
    assert coverage(frozenset({"a"}), {"a": 3.0, "b": 1.0}) == 0.75
    assert coverage(frozenset(), {}) == 0.0


FEATURES = ["coverage", *(name for name in COEFFICIENTS if name != "constant")]
share = st.floats(0, 1)


@given(st.lists(share, min_size=len(FEATURES), max_size=len(FEATURES)), share, st.sampled_from(FEATURES))
def test_confidence_is_a_share_and_more_evidence_never_lowers_it(values: list[float], form: float, name: str) -> None:
    features = {**dict(zip(FEATURES, values, strict=True)), "form": form}
    sure = estimate_confidence(features)
    assert 0 <= sure <= 1
    assert estimate_confidence({**features, name: 1.0}) >= sure
    assert estimate_confidence({**features, "form": 1.0}) >= sure


@pytest.mark.parametrize("missing", ["coverage", "form"])
def test_no_confidence_is_high_without_the_words_and_the_form_of_an_answer(missing: str) -> None:
    features = dict.fromkeys([*FEATURES, "form"], 1.0)
    assert estimate_confidence(features) >= 0.8
    assert estimate_confidence({**features, missing: 0.4}) < 0.8


def test_without_any_evidence_nothing_is_shown_and_with_all_of_it_an_answer_is() -> None:
    assert estimate_confidence(dict.fromkeys([*FEATURES, "form"], 0.0)) < NOTHING_BELOW
    assert estimate_confidence(dict.fromkeys([*FEATURES, "form"], 1.0)) > ANSWER_FROM


@pytest.mark.parametrize(
    ("confidence", "words"),
    [(0.8, "high"), (0.79, "fair"), (0.59, "moderate"), (0.49, "low"), (0.19, "very low"), (None, "unknown")],
)
def test_confidence_is_described_in_words(confidence: float | None, words: str) -> None:
    assert describe_confidence(confidence) == words
