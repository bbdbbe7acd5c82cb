"""Validation of responses, delegation, normalisation, and the texts of refusals."""

import math
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pair.librarians import Budget, Citation, Context, DelegateRequest, ErrorCode, ErrorInfo, Response, User
from pair.librarians.rules import (
    MAX_ANSWER_CHARACTERS,
    Permissions,
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

ODD: Any = object()


@pytest.mark.parametrize(
    "response",
    [
        Response(answer="Yes."),
        Response(answer="Yes.", confidence=0),
        Response(answer="Yes.", confidence=1),
        Response(answer="Yes.", confidence=Fraction(1, 2)),  # type: ignore[arg-type]
        Response(answer="Yes.", sources=(Citation("Handbook"),)),
        Response.delegating("colleague"),
        Response(delegate=(DelegateRequest("one"), DelegateRequest("two", "refined", fallback="three"))),
        Response.failing(ErrorCode.NOT_FOUND, "Nothing found"),
        Response(answer="As far as I know.", error=ErrorInfo("TIMEOUT", "too slow")),
    ],
)
def test_valid_response_has_no_fault(response: Response) -> None:
    assert fault_of(response) is None


@pytest.mark.rule("librarian-2")
@pytest.mark.parametrize("given", [None, {}, {"answer": "Yes."}, "Yes.", 1, [Response(answer="Yes.")], Response])
def test_an_invalid_response_is_named(given: object) -> None:
    assert "not a Response" in (fault_of(given) or "")


@pytest.mark.rule("librarian-8")
@pytest.mark.parametrize(
    "response", [Response(), Response(answer=""), Response(answer=" \n"), Response(delegate=()), Response(confidence=1)]
)
def test_response_without_answer_delegate_and_error_is_none(response: Response) -> None:
    assert fault_of(response) == "it has neither answer, delegate nor error"


@pytest.mark.rule("librarian-9")
@pytest.mark.parametrize("confidence", [-0.01, 1.01, math.nan, math.inf, True, False, "0.5", 1j, ODD, [1]])
def test_confidence_is_a_number_from_0_to_1(confidence: Any) -> None:
    assert "confidence" in (fault_of(Response(answer="Yes.", confidence=confidence)) or "")


@pytest.mark.rule("librarian-10")
@pytest.mark.parametrize(
    "source",
    [
        Citation(""),
        Citation(" "),
        Citation(None),  # type: ignore[arg-type]
        {"name": "Handbook"},
        "Handbook",
        Citation("Handbook", url=7),  # type: ignore[arg-type]
        Citation("Handbook", relevance="high"),  # type: ignore[arg-type]
        Citation("Handbook", relevance=math.nan),
        Citation("Handbook", provenance={}),  # type: ignore[arg-type]
    ],
)
def test_source_is_a_citation_with_a_name(source: Any) -> None:
    assert "source" in (fault_of(Response(answer="Yes.", sources=(source,))) or "")


@pytest.mark.rule("librarian-15")
@pytest.mark.parametrize(
    "delegate",
    [
        DelegateRequest(""),
        DelegateRequest(" "),
        DelegateRequest(None),  # type: ignore[arg-type]
        (DelegateRequest("one"), DelegateRequest("")),
        "one",
        ({"to": "one"},),
        DelegateRequest("one", 7),  # type: ignore[arg-type]
        DelegateRequest("one", fallback=7),  # type: ignore[arg-type]
        DelegateRequest("one", context=[1]),  # type: ignore[arg-type]
    ],
)
def test_delegate_says_to_whom(delegate: Any) -> None:
    assert "delegate" in (fault_of(Response(delegate=delegate)) or "")


@pytest.mark.rule("librarian-20")
@pytest.mark.parametrize(
    "error",
    [
        ErrorInfo("", "message"),
        ErrorInfo("UNHEARD_OF", "message"),
        ErrorInfo("TIMEOUT", ""),
        ErrorInfo(None, "message"),  # type: ignore[arg-type]
        ErrorInfo("TIMEOUT", None),  # type: ignore[arg-type]
        ErrorInfo("TIMEOUT", "message", recoverable="yes"),  # type: ignore[arg-type]
        ErrorInfo("TIMEOUT", "message", suggestion=7),  # type: ignore[arg-type]
        ErrorInfo("TIMEOUT", "message", details=[7]),  # type: ignore[arg-type]
        {"code": "TIMEOUT", "message": "message"},
        "TIMEOUT",
    ],
)
def test_error_has_a_known_code_and_a_message(error: Any) -> None:
    assert fault_of(Response(error=error)) is not None


@pytest.mark.rule("librarian-30")
@pytest.mark.parametrize("query", [None, 7, b"bytes", "", " \n\t", "x" * 101])
def test_an_invalid_question_is_refused(query: object) -> None:
    refused = query_refusal(query, 100)
    assert refused is not None
    assert refused.error is not None
    assert refused.error.code == ErrorCode.INVALID_QUERY


def test_odd_question_is_a_question() -> None:
    assert [query_refusal(query, 100) for query in ("?", "x" * 100, "\ud83d", "水")] == [None] * 4


# ── hand-over ──────────────────────────────────────────────────────────────────────────────────────


def step(to: str, chain: tuple[str, ...] = (), delegates_to: tuple[str, ...] | None = None) -> Response | None:
    known = {"front", "manual", "secret", "a", "b", "c", "d", "e", "f"}
    is_allowed = to != "secret" if to in known else None
    return refusal((*chain, to), visited=chain, delegates_to=delegates_to, max_depth=5, is_allowed=is_allowed)


@pytest.mark.parametrize(
    ("refused", "code"),
    [
        pytest.param(step("nobody"), "NOT_FOUND", marks=pytest.mark.rule("librarian-16")),
        pytest.param(step("secret", ("front",)), "UNAUTHORIZED", marks=pytest.mark.rule("librarian-16")),
        pytest.param(step("manual", ("front",), ("a",)), "UNAUTHORIZED", marks=pytest.mark.rule("librarian-16")),
        pytest.param(step("front", ("front", "manual")), "LOOP_DETECTED", marks=pytest.mark.rule("librarian-17")),
        pytest.param(step("front", ("front",)), "LOOP_DETECTED", marks=pytest.mark.rule("librarian-17")),
        pytest.param(step("front", tuple("abcdef")), "MAX_DEPTH_EXCEEDED", marks=pytest.mark.rule("librarian-18")),
    ],
)
def test_hand_over_is_refused_for_a_reason(refused: Response | None, code: str) -> None:
    assert refused is not None
    assert refused.error is not None
    assert refused.error.code == code


@pytest.mark.rule("librarian-18")
def test_five_hand_overs_are_allowed() -> None:
    assert step("front", tuple("abcde")) is None
    assert step("manual", ("front",), ("manual",)) is None


@pytest.mark.rule("librarian-26")
@pytest.mark.parametrize(
    ("permissions", "user", "allowed"),
    [
        (Permissions(), None, True),
        (Permissions(public=True, allowed_teams=("ops",)), None, True),
        (Permissions(allowed_teams=("ops",)), None, False),
        (Permissions(public=False), None, False),
        (Permissions(public=False), User("ada"), False),
        (Permissions(public=False), User("ada", teams=("owners",)), True),
        (Permissions(allowed_teams=("ops",)), User("ada", teams=("sales",)), False),
        (Permissions(allowed_teams=("ops",)), User("ada", teams=("sales", "ops")), True),
        (Permissions(allowed_roles=("admin",)), User("ada", roles=("admin",)), True),
        (Permissions(allowed_roles=("admin",)), User("ada", teams=("admin",)), False),
    ],
)
def test_permission_by_owner_team_allowed_team_or_role(
    permissions: Permissions, user: User | None, allowed: bool
) -> None:
    assert permissions.allow(user, "owners") is allowed


def test_a_librarian_without_a_team_belongs_to_no_team() -> None:
    assert not Permissions(public=False).allow(User("ada", teams=("",)), "")


# ── tidying ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.rule("librarian-13")
@pytest.mark.parametrize(("confidence", "partial"), [(0.59, True), (0.6, False), (1.0, False), (None, False)])
def test_answer_is_partial_below_six_tenths(confidence: float | None, partial: bool) -> None:
    assert tidy_response(Response(answer="Perhaps.", confidence=confidence)).partial is partial


def test_tidy_response_stays_the_same() -> None:
    response = Response(answer="Yes [1].", sources=(Citation("a", relevance=1.0), Citation("b")), confidence=0.9)
    assert tidy_response(response) is response
    error = Response.failing(ErrorCode.NOT_FOUND, "no")
    assert tidy_response(error) is error


@pytest.mark.rule("librarian-11")
def test_sources_are_listed_once_by_relevance_and_marks_follow() -> None:
    response = Response(
        answer="First [1], then [2]; both [1, 3], code a[1], link [2](x), beyond [9], same [4].",
        sources=(
            Citation("low", url="u1", relevance=0.1),
            Citation("high", id="h", relevance=0.9),
            Citation("unsaid"),
            Citation("low again", url="u1", relevance=0.2),
        ),
    )
    tidy = tidy_response(response)
    assert [source.name for source in tidy.sources] == ["high", "low again", "unsaid"]
    assert tidy.answer == "First [2], then [1]; both [2, 3], code a[1], link [2](x), beyond [9], same [2]."


citations = st.builds(
    Citation,
    name=st.sampled_from("abc"),
    url=st.sampled_from(["", "u", "v"]),
    id=st.sampled_from(["", "1", "2"]),
    relevance=st.none() | st.floats(-1, 2),
)


@pytest.mark.rule("librarian-11")
@given(st.lists(citations, max_size=8))
def test_ordering_keeps_every_source_in_its_place(sources: list[Citation]) -> None:
    kept, places = order_sources(sources)
    assert len(places) == len(sources)
    assert set(places) == set(range(len(kept)))
    refusal_texts = [-math.inf if each.relevance is None else each.relevance for each in kept]
    assert refusal_texts == sorted(refusal_texts, reverse=True)
    assert order_sources(kept) == (kept, tuple(range(len(kept))))


@pytest.mark.rule("librarian-12")
def test_long_answer_is_cut_at_a_sentence_and_says_so() -> None:
    sentence = "The moat is nine metres wide. "
    tidy = tidy_response(Response(answer=sentence * 200, confidence=1.0))
    assert tidy.answer is not None
    assert len(tidy.answer) <= MAX_ANSWER_CHARACTERS
    assert len(tidy.answer) > MAX_ANSWER_CHARACTERS - len(sentence)
    assert tidy.answer.endswith("wide.")
    assert tidy.metadata["truncated"] is True
    assert tidy.partial
    whole = tidy_response(Response(answer="x" * MAX_ANSWER_CHARACTERS))
    assert "truncated" not in whole.metadata


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("One two. Three four five", "One two."),
        ("Does it? Indeed it does", "Does it?"),
        ("水很热。火更热一点点点点点点点点点", "水很热。"),
        ("word " * 10, "word word word"),
        ("x" * 40, "x" * 16),
        ("He said “no.” And then", "He said “no.”"),
        ("version 1.2 is the last", "version 1.2 is"),
    ],
)
def test_cut_is_at_a_sentence_or_between_words(text: str, kept: str) -> None:
    assert cut(text, 16) == kept


@given(st.text(max_size=300), st.integers(1, 60))
def test_cut_is_a_beginning_that_fits(text: str, limit: int) -> None:
    assert len(cut(text, limit)) <= limit
    assert text.startswith(cut(text, limit))


# ── what a refusal says ────────────────────────────────────────────────────────────────────────────


def answered(**changes: Any) -> Response:
    return Response(**({"answer": "Yes."} | changes))


def cited(**changes: Any) -> Response:
    return answered(sources=(Citation("Good"), Citation(**({"name": "Handbook"} | changes))))


def handed(**changes: Any) -> Response:
    return Response(delegate=(DelegateRequest("good"), DelegateRequest(**({"to": "manual"} | changes))))


def failed(**changes: Any) -> Response:
    return Response(error=ErrorInfo(**({"code": "TIMEOUT", "message": "too slow"} | changes)))


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        (None, "it returned None, not a Response"),
        ({}, "it returned a dict, not a Response"),
        (answered(answer=7), "answer is 7: not a string"),
        (answered(partial=1), "partial is 1: neither true nor false"),
        (answered(confidence=1.5), "confidence is 1.5: not a number from 0 to 1"),
        (answered(confidence=True), "confidence is True: not a number from 0 to 1"),
        (answered(sources="Handbook"), "sources is 'Handbook': not a list"),
        (answered(sources=(Citation("Good"), "Handbook")), "sources[1] is a str; expected Citation"),
        (cited(name=" "), "sources[1].name is ' ': not a string, or blank"),
        (cited(url=None), "sources[1].url is None: not a string"),
        (cited(provenance={}), "sources[1].provenance is a dict: not a Provenance"),
        (cited(metadata=7), "sources[1].metadata is 7: not an object"),
        (Response(delegate="manual"), "delegate is a str; expected DelegateRequest"),  # type: ignore[arg-type]
        (handed(to=" "), "delegate.to is ' ': not the id of a librarian"),
        (handed(fallback=7), "delegate.fallback is 7: not a string"),
        (Response(error="late"), "error is a str; expected ErrorInfo"),  # type: ignore[arg-type]
        (failed(code="LATE"), "error.code is 'LATE': not a known code"),
        (failed(suggestion=None), "error.suggestion is None: not a string"),
        (failed(details=7), "error.details is 7: not an object"),
        (answered(metadata=7), "metadata is 7: not an object"),
        (Response(), "it has neither answer, delegate nor error"),
        (cited(relevance=2), None),
        (failed(recoverable=False), None),
    ],
)
def test_a_fault_of_a_response_is_described_in_one_sentence(given: object, fault: str | None) -> None:
    assert fault_of(given) == fault


@pytest.mark.parametrize(
    ("context", "fault"),
    [
        ({}, "context is a dict; expected Context"),
        (Context(delegation_chain="front"), "context.delegationChain is 'front': not a list of ids"),  # type: ignore[arg-type]
        (Context(delegation_chain=("a", 7)), "context.delegationChain is a tuple: not a list of ids"),  # type: ignore[arg-type]
        (Context(timeout_ms=True), "context.timeout is True: not a number of milliseconds"),
        (Context(trace="1"), "context.trace is '1': not a TraceContext"),  # type: ignore[arg-type]
        (Context(user={"id": "ada"}), "context.user is a dict: not a User"),  # type: ignore[arg-type]
        (Context(budget={"calls": 1}), "context.budget is a dict: not a Budget"),  # type: ignore[arg-type]
        (Context(metadata=[1]), "context.metadata is a tuple: not an object"),  # type: ignore[arg-type]
        (Context(request_id=7), "context.requestId is 7: not a string"),  # type: ignore[arg-type]
        (Context(user=User("ada"), budget=Budget(1, 1), timeout_ms=5, delegation_chain=("a",)), None),
    ],
)
def test_a_fault_of_a_context_is_described_in_one_sentence(context: Any, fault: str | None) -> None:
    assert fault_of_context(context) == fault


def refusal_texts(response: Response | None) -> tuple[str, str, str]:
    assert response is not None
    assert response.error is not None
    return response.error.code, response.error.message, response.error.suggestion


@pytest.mark.parametrize(
    ("query", "message", "suggestion"),
    [
        (7, "The question is an int, not a string", ""),
        (" \n", "The question is blank", "Ask in a few words"),
        ("x" * 1235, "The question has 1,235 characters, 1,234 are allowed", "Ask in fewer words"),
    ],
)
def test_an_invalid_question_is_refused_with_a_hint(query: object, message: str, suggestion: str) -> None:
    assert refusal_texts(query_refusal(query, 1234)) == ("INVALID_QUERY", message, suggestion)
    assert query_refusal("x" * 1234, 1234) is None


@pytest.mark.parametrize(
    ("refused", "code", "message", "suggestion"),
    [
        (
            step("nobody", ("front",)),
            "NOT_FOUND",
            "There is no librarian 'nobody'",
            "List the librarians: pair librarians list",
        ),
        (step("front", ("front", "a")), "LOOP_DETECTED", "The question came back to front: front → a → front", ""),
        (
            step("manual", ("a", "b", "c", "d", "e", "f")),
            "MAX_DEPTH_EXCEEDED",
            "The question was delegated more than 5 times: a → b → c → d → e → f → manual",
            "Ask one of the last librarians directly",
        ),
        (step("manual", ("a", "b"), ("a",)), "UNAUTHORIZED", "b may not delegate to manual", ""),
        (
            step("secret", ("front",)),
            "UNAUTHORIZED",
            "You may not ask secret",
            "Log in, or ask the team that owns it for access",
        ),
    ],
)
def test_a_refused_delegation_is_explained_with_a_hint(
    refused: Response | None, code: str, message: str, suggestion: str
) -> None:
    assert refusal_texts(refused) == (code, message, suggestion)


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


def test_the_first_of_two_equal_sources_is_kept() -> None:
    first, second = Citation("one", id="a", relevance=0.5), Citation("two", id="a", relevance=0.5)
    assert order_sources([first, second]) == ((first,), (0, 0))


def test_an_answer_is_cut_without_blanks_at_its_end() -> None:
    assert cut("  One two three four", 12) == "  One two"
    assert cut("  One.   Two three four five", 9) == "  One."
    assert cut("  One two   three", 11) == "  One two"
