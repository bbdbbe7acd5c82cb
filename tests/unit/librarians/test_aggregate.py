"""Merging the responses of several librarians."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pair.librarians import Citation, ErrorCode, ErrorInfo, Response
from pair.librarians.rules import (
    build_blend_prompt,
    fault_of,
    merge_blend,
    merge_responses,
    read_aggregation,
    restore_answer,
)

LOW = Response(answer="Perhaps at noon [1].", sources=(Citation("diary", relevance=0.3),), confidence=0.4, partial=True)
HIGH = Response(
    answer="At one [1], says the plan [2].",
    sources=(Citation("handbook", relevance=0.9), Citation("plan", relevance=0.2)),
    confidence=0.8,
)
FAILED = Response.failing(ErrorCode.TIMEOUT, "too slow", recoverable=True)
MISSING = Response.failing(ErrorCode.NOT_FOUND, "nothing")


@pytest.mark.rule("librarian-22")
def test_all_answers_are_merged_best_first_with_mean_confidence() -> None:
    one = merge_responses([LOW, HIGH])
    assert one.answer == "At one [1], says the plan [3].\n\nPerhaps at noon [2]."
    assert [source.name for source in one.sources] == ["handbook", "diary", "plan"]
    assert one.confidence == pytest.approx(0.6)


@pytest.mark.rule("librarian-22")
def test_equal_answers_are_said_once() -> None:
    one = merge_responses([Response(answer="At one."), Response(answer="  at ONE. "), Response(answer="At two.")])
    assert one.answer == "At one.\n\nAt two."
    assert one.confidence is None


@pytest.mark.rule("librarian-14")
def test_answer_is_partial_when_some_failed() -> None:
    assert merge_responses([HIGH, FAILED]).partial
    assert merge_responses([HIGH, FAILED], "best-confidence").partial
    assert merge_responses([HIGH, FAILED]).answer == HIGH.answer
    assert merge_responses([HIGH, FAILED]).error is None
    assert not merge_responses([HIGH, HIGH]).partial


@pytest.mark.rule("librarian-22")
def test_first_success_and_best_confidence_choose_one() -> None:
    assert merge_responses([FAILED, LOW, HIGH], "first-success") is LOW
    assert merge_responses([LOW, HIGH], "best-confidence") == HIGH


@pytest.mark.rule("librarian-23")
def test_first_error_counts_when_all_failed() -> None:
    error = merge_responses([FAILED]).error
    assert error == FAILED.error
    mixed = merge_responses([FAILED, MISSING]).error
    assert mixed is not None
    assert mixed.code == ErrorCode.DELEGATION_FAILED
    assert "too slow" in mixed.message
    assert [each["code"] for each in mixed.details["errors"]] == ["TIMEOUT", "NOT_FOUND"]
    same = merge_responses([MISSING, MISSING]).error
    assert same is not None
    assert same.code == ErrorCode.NOT_FOUND


@pytest.mark.rule("librarian-23")
def test_partial_answers_of_failed_librarians_come_with_the_error() -> None:
    half = Response(answer="Half of it.", error=ErrorInfo("TIMEOUT", "too slow"))
    one = merge_responses([MISSING, half])
    assert (one.answer, one.partial) == ("Half of it.", True)
    assert one.error is not None
    assert restore_answer(FAILED, HIGH).answer == HIGH.answer
    assert restore_answer(half, HIGH) is half


def test_no_responses_are_a_failure() -> None:
    assert fault_of(merge_responses([])) is None


@pytest.mark.rule("librarian-22")
@pytest.mark.parametrize(
    ("wish", "how"),
    [
        (None, "merge-all"),
        ("blend", "blend"),
        ("first-success", "first-success"),
        ("loudest", "merge-all"),
        (7, "merge-all"),
    ],
)
def test_way_of_merging_is_asked_for_in_metadata(wish: object, how: str) -> None:
    assert read_aggregation(Response(answer="x", metadata={"aggregation": wish})) == how


@pytest.mark.rule("librarian-22")
def test_model_is_given_the_answers_as_data_with_the_marks_of_the_merged_sources() -> None:
    told = json.loads(build_blend_prompt("When is lunch?", [LOW, FAILED, HIGH]))
    assert told["question"] == "When is lunch?"
    assert [each["answer"] for each in told["answers"]] == ["At one [1], says the plan [3].", "Perhaps at noon [2]."]
    one = merge_blend(" At one [1], perhaps at noon [2]. ", [LOW, FAILED, HIGH])
    assert one.answer == "At one [1], perhaps at noon [2]."
    assert [source.name for source in one.sources] == ["handbook", "diary", "plan"]
    assert one.partial
    assert merge_blend(" \n", [LOW, HIGH]) == merge_responses([LOW, HIGH])


responses = st.lists(st.sampled_from([LOW, HIGH, FAILED, MISSING]), max_size=5)


@given(responses, st.sampled_from(["first-success", "best-confidence", "merge-all", "blend"]))
def test_one_of_many_is_valid_whatever_they_said(given: list[Response], how: str) -> None:
    one = merge_responses(given, how)  # type: ignore[arg-type]
    assert fault_of(one) is None
    assert (one.error is None) == any(each in (LOW, HIGH) for each in given)
