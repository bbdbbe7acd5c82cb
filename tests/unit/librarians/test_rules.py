"""What is valid, what may be handed on, and what is tidy_response."""

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
    order_sources,
    query_refusal,
    refusal,
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
def test_what_is_no_response_is_named(given: object) -> None:
    assert "no Response" in (fault_of(given) or "")


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


@pytest.mark.parametrize(
    "response",
    [
        Response(answer=7),  # type: ignore[arg-type]
        Response(answer="Yes.", partial="no"),  # type: ignore[arg-type]
        Response(answer="Yes.", sources="Handbook"),  # type: ignore[arg-type]
        Response(answer="Yes.", metadata=[1]),  # type: ignore[arg-type]
    ],
)
def test_wrong_types_are_named(response: Response) -> None:
    assert fault_of(response) is not None


@pytest.mark.rule("librarian-30")
@pytest.mark.parametrize("query", [None, 7, b"bytes", "", " \n\t", "x" * 101])
def test_what_is_no_question_is_refused(query: object) -> None:
    refused = query_refusal(query, 100)
    assert refused is not None
    assert refused.error is not None
    assert refused.error.code == ErrorCode.INVALID_QUERY


def test_odd_question_is_a_question() -> None:
    assert [query_refusal(query, 100) for query in ("?", "x" * 100, "\ud83d", "水")] == [None] * 4


@pytest.mark.parametrize(
    "context",
    [
        {},
        Context(delegation_chain="desk"),  # type: ignore[arg-type]
        Context(delegation_chain=(7,)),  # type: ignore[arg-type]
        Context(timeout_ms="soon"),  # type: ignore[arg-type]
        Context(user={"id": "ada"}),  # type: ignore[arg-type]
        Context(budget={"calls": 1}),  # type: ignore[arg-type]
        Context(metadata=[1]),  # type: ignore[arg-type]
        Context(request_id=7),  # type: ignore[arg-type]
    ],
)
def test_context_of_another_shape_is_named(context: Any) -> None:
    assert fault_of_context(context) is not None
    assert fault_of_context(Context(user=User("ada"), budget=Budget(1, 1), timeout_ms=5)) is None


# ── hand-over ──────────────────────────────────────────────────────────────────────────────────────


def step(to: str, chain: tuple[str, ...] = (), delegates_to: tuple[str, ...] | None = None) -> Response | None:
    known = {"desk", "shelf", "secret", "a", "b", "c", "d", "e", "f"}
    is_allowed = to != "secret" if to in known else None
    return refusal((*chain, to), visited=chain, delegates_to=delegates_to, max_depth=5, is_allowed=is_allowed)


@pytest.mark.parametrize(
    ("refused", "code"),
    [
        pytest.param(step("nobody"), "NOT_FOUND", marks=pytest.mark.rule("librarian-16")),
        pytest.param(step("secret", ("desk",)), "UNAUTHORIZED", marks=pytest.mark.rule("librarian-16")),
        pytest.param(step("shelf", ("desk",), ("a",)), "UNAUTHORIZED", marks=pytest.mark.rule("librarian-16")),
        pytest.param(step("desk", ("desk", "shelf")), "LOOP_DETECTED", marks=pytest.mark.rule("librarian-17")),
        pytest.param(step("desk", ("desk",)), "LOOP_DETECTED", marks=pytest.mark.rule("librarian-17")),
        pytest.param(step("desk", tuple("abcdef")), "MAX_DEPTH_EXCEEDED", marks=pytest.mark.rule("librarian-18")),
    ],
)
def test_hand_over_is_refused_for_a_reason(refused: Response | None, code: str) -> None:
    assert refused is not None
    assert refused.error is not None
    assert refused.error.code == code


@pytest.mark.rule("librarian-18")
def test_five_hand_overs_are_allowed() -> None:
    assert step("desk", tuple("abcde")) is None
    assert step("shelf", ("desk",), ("shelf",)) is None


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


def test_librarian_without_a_team_is_nobody_s() -> None:
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
    told = [-math.inf if each.relevance is None else each.relevance for each in kept]
    assert told == sorted(told, reverse=True)
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
