"""What is told of a response, a question or a hand-over that is refused: people read these sentences."""

from typing import Any

import pytest

from pair.librarians import Citation, Context, DelegateRequest, ErrorInfo, Response, User
from pair.librarians.rules import (
    cut,
    fault_of,
    fault_of_context,
    is_number,
    is_share,
    order_sources,
    query_refusal,
    refusal,
    renumber_marks,
    tidy_response,
)


def answered(**changes: Any) -> Response:
    return Response(**({"answer": "Yes."} | changes))


def cited(**changes: Any) -> Response:
    return answered(sources=(Citation("Good"), Citation(**({"name": "Handbook"} | changes))))


def handed(**changes: Any) -> Response:
    return Response(delegate=(DelegateRequest("good"), DelegateRequest(**({"to": "shelf"} | changes))))


def failed(**changes: Any) -> Response:
    return Response(error=ErrorInfo(**({"code": "TIMEOUT", "message": "too slow"} | changes)))


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        (None, "it gave back None and no Response"),
        ({}, "it gave back a dict and no Response"),
        (answered(answer=7), "answer is 7: no text"),
        (answered(partial=1), "partial is 1: neither true nor false"),
        (answered(confidence=1.5), "confidence is 1.5: no number from 0 to 1"),
        (answered(confidence=True), "confidence is True: no number from 0 to 1"),
        (answered(sources="Handbook"), "sources is 'Handbook': no list"),
        (answered(sources=(Citation("Good"), "Handbook")), "sources[1] is a str and no Citation"),
        (cited(name=" "), "sources[1].name is ' ': no text, or a blank one"),
        (cited(url=None), "sources[1].url is None: no text"),
        (cited(provenance={}), "sources[1].provenance is a dict: no Provenance"),
        (cited(metadata=7), "sources[1].metadata is 7: no object"),
        (Response(delegate="shelf"), "delegate is a str and no DelegateRequest"),  # type: ignore[arg-type]
        (handed(to=" "), "delegate.to is ' ': does not say to whom"),
        (handed(fallback=7), "delegate.fallback is 7: no text"),
        (Response(error="late"), "error is a str and no ErrorInfo"),  # type: ignore[arg-type]
        (failed(code="LATE"), "error.code is 'LATE': no known code"),
        (failed(suggestion=None), "error.suggestion is None: no text"),
        (failed(details=7), "error.details is 7: no object"),
        (answered(metadata=7), "metadata is 7: no object"),
        (Response(), "it has neither answer, delegate nor error"),
        (cited(relevance=2), None),
        (failed(recoverable=False), None),
    ],
)
def test_what_is_wrong_with_a_response_is_told_in_one_sentence(given: object, fault: str | None) -> None:
    assert fault_of(given) == fault


@pytest.mark.parametrize(
    ("context", "fault"),
    [
        ({}, "context is a dict and no Context"),
        (Context(delegation_chain="desk"), "context.delegationChain is 'desk': no list of ids"),  # type: ignore[arg-type]
        (Context(delegation_chain=("a", 7)), "context.delegationChain is a tuple: no list of ids"),  # type: ignore[arg-type]
        (Context(timeout_ms=True), "context.timeout is True: no number of milliseconds"),
        (Context(trace="1"), "context.trace is '1': no TraceContext"),  # type: ignore[arg-type]
        (Context(request_id=7), "context.requestId is 7: no text"),  # type: ignore[arg-type]
        (Context(user=User("ada"), timeout_ms=5, delegation_chain=("a",)), None),
    ],
)
def test_what_is_wrong_with_a_context_is_told_in_one_sentence(context: Any, fault: str | None) -> None:
    assert fault_of_context(context) == fault


def told(response: Response | None) -> tuple[str, str, str]:
    assert response is not None
    assert response.error is not None
    return response.error.code, response.error.message, response.error.suggestion


@pytest.mark.parametrize(
    ("query", "message", "suggestion"),
    [
        (7, "The question is a int and no text", ""),
        (" \n", "The question is blank", "Ask in a few words"),
        ("x" * 1235, "The question has 1,235 characters, 1,234 are allowed", "Ask in fewer words"),
    ],
)
def test_why_a_question_is_none_is_told_with_what_to_do(query: object, message: str, suggestion: str) -> None:
    assert told(query_refusal(query, 1234)) == ("INVALID_QUERY", message, suggestion)
    assert query_refusal("x" * 1234, 1234) is None


def step(to: str, chain: tuple[str, ...] = ("desk",), delegates_to: tuple[str, ...] | None = None) -> Response | None:
    is_allowed = to != "secret" if to in {"desk", "shelf", "secret"} else None
    return refusal((*chain, to), visited=chain, delegates_to=delegates_to, max_depth=2, is_allowed=is_allowed)


@pytest.mark.parametrize(
    ("refused", "code", "message", "suggestion"),
    [
        (step("nobody"), "NOT_FOUND", "There is no librarian 'nobody'", "`pair librarians list` shows who there is"),
        (step("desk", ("desk", "a")), "LOOP_DETECTED", "The question came back to desk: desk → a → desk", ""),
        (
            step("shelf", ("a", "b", "c")),
            "MAX_DEPTH_EXCEEDED",
            "The question was handed on more than 2 times: a → b → c → shelf",
            "Ask one of the last librarians directly",
        ),
        (step("shelf", ("a", "b"), ("a",)), "UNAUTHORIZED", "b may not hand over to shelf", ""),
        (
            step("secret"),
            "UNAUTHORIZED",
            "You may not ask secret",
            "Log in, or ask the team that owns it for access",
        ),
    ],
)
def test_why_a_question_is_not_handed_on_is_told_with_what_to_do(
    refused: Response | None, code: str, message: str, suggestion: str
) -> None:
    assert told(refused) == (code, message, suggestion)


@pytest.mark.parametrize(
    ("value", "number", "share"),
    [
        (0, True, True),
        (1, True, True),
        (1.01, True, False),
        (-0.01, True, False),
        (True, False, False),
        (float("nan"), False, False),
        (float("inf"), False, False),
        ("1", False, False),
        (None, False, False),
    ],
)
def test_a_share_is_a_real_number_from_0_to_1(value: object, number: bool, share: bool) -> None:
    assert (is_number(value), is_share(value)) == (number, share)


def test_sources_without_an_answer_are_tidied_and_confidence_stays() -> None:
    low, high = Citation("low", relevance=0.1), Citation("high", relevance=0.9)
    assert tidy_response(Response(sources=(low, high), error=ErrorInfo("TIMEOUT", "late"))).sources == (high, low)
    tidy = tidy_response(Response("One [1], two [2].", (low, high), 0.75))
    assert (tidy.answer, tidy.confidence, tidy.partial) == ("One [2], two [1].", 0.75, False)
    assert type(tidy_response(Response("One [1], two [2].", (low, high), 1)).confidence) is float


@pytest.mark.parametrize(
    ("answer", "places", "expected"),
    [
        ("One [1], two [2], both [1, 2].", (1, 0), "One [2], two [1], both [2, 1]."),
        ("Twice [1,2].", (0, 0), "Twice [1]."),
        ("Unknown [3] and [0], [1, 3].", (1, 0), "Unknown [3] and [0], [1, 3]."),
        ("An array x[1] and a link [1](https://example.com).", (1, 0), None),
        ("The same [1] [2].", (0, 1), None),
        ("First stays [1], others move [2] [3].", (0, 2, 1), "First stays [1], others move [3] [2]."),
    ],
)
def test_marks_follow_their_sources(answer: str, places: tuple[int, ...], expected: str | None) -> None:
    assert renumber_marks(answer, places) == (answer if expected is None else expected)


def test_of_two_equal_sources_the_first_is_kept() -> None:
    first, second = Citation("one", id="a", relevance=0.5), Citation("two", id="a", relevance=0.5)
    assert order_sources([first, second]) == ((first,), (0, 0))


def test_an_answer_is_cut_without_blanks_at_its_end() -> None:
    assert cut("  One two three four", 12) == "  One two"
    assert cut("  One.   Two three four five", 9) == "  One."
    assert cut("  One two   three", 11) == "  One two"
