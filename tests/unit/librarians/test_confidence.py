"""From evidence to one number, and to words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pair.app.cli.ask import describe_confidence
from pair.librarians.relevance import NOTHING_RELEVANT, confidence_in

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
