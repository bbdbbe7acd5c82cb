"""The registry of librarians: entries, permissions and circuit breakers."""

from typing import Any

import pytest

from pair import errors
from pair.librarians import Context, Entry, ErrorCode, LibrarianInfo, Permissions, Registry, Response, User
from pair.librarians.registry import FAILURES, CircuitBreaker
from pair.librarians.settings import LibrariansSettings
from pair.testing.clock import ManualClock


async def plain(query: str, context: Context | None = None) -> Response:
    """Knows the plain.

    And more.
    """
    return Response(answer=query)


class Shelf:
    """Knows a manual."""

    async def __call__(self, query: str, context: Context | None = None) -> Response:
        return Response(answer=query)


def test_card_is_given_or_made_of_what_the_librarian_says() -> None:
    card = LibrarianInfo("other", "The handbook", "How we work", ("work",), team="docs")
    registry = Registry({"plain": plain, "manual": Shelf(), "given": Entry(plain, card)})
    assert registry.cards() == (
        LibrarianInfo("plain", "plain", "Knows the plain."),
        LibrarianInfo("manual", "manual", "Knows a manual."),
        LibrarianInfo("given", "The handbook", "How we work", ("work",), team="docs"),
    )
    assert len(registry) == 3
    assert "plain" in registry
    assert "other" not in registry
    assert registry.breakers() == {"plain": "closed", "manual": "closed", "given": "closed"}


@pytest.mark.parametrize("bad", ["", " ", "-a", "a b", "a/b", "é", "a\n", "x" * 129, 7, None])
def test_bad_id_is_refused_by_name(bad: Any) -> None:
    with pytest.raises(errors.UsageError, match="librarians"):
        Registry({bad: plain})


@pytest.mark.parametrize("entry", ["plain", None, Entry("plain"), Entry(plain, timeout_seconds=0)])  # type: ignore[arg-type]
def test_bad_entry_is_refused_by_name(entry: Any) -> None:
    with pytest.raises(errors.UsageError, match=r"librarians\.front"):
        Registry({"front": entry})


@pytest.mark.rule("librarian-31")
def test_delegates_are_the_librarians_that_may_be_asked() -> None:
    registry = Registry(
        {
            "front": plain,
            "open": plain,
            "ops": Entry(plain, permissions=Permissions(allowed_teams=("ops",))),
        }
    )
    ids = [
        [each.id for each in registry.delegates_for(user, visited, allowed)]
        for user, visited, allowed in [
            (None, (), None),
            (None, ("front",), None),
            (User("ada", teams=("ops",)), ("front",), None),
            (User("bob", teams=("sales",)), ("front",), None),
            (User("ada", teams=("ops",)), (), ("ops", "nobody")),
        ]
    ]
    assert ids == [["front", "open"], ["open"], ["open", "ops"], ["open"], ["ops"]]


async def question_only(query: str) -> Response:
    return Response(answer=query)


async def by_name(query: str, *, context: Context | None = None) -> Response:
    return Response(answer=query)


async def anything(*given: Any) -> Response:
    return Response(answer=given[0])


@pytest.mark.rule("librarian-1")
@pytest.mark.parametrize(
    ("librarian", "way"),
    [
        (plain, "positional"),
        (Shelf(), "positional"),
        (question_only, ""),
        (by_name, "keyword"),
        (anything, "positional"),
    ],
)
def test_librarian_may_leave_out_the_context(librarian: Any, way: str) -> None:
    assert Registry({"it": librarian})["it"].gets_context == way


# ── circuit breaker ────────────────────────────────────────────────────────────────────────────────

GOOD = Response(answer="Yes.")
BAD = Response.failing(ErrorCode.DATA_SOURCE_ERROR, "away")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def breaker(clock: ManualClock) -> CircuitBreaker:
    return CircuitBreaker(LibrariansSettings(), clock)


def note(breaker: CircuitBreaker, *responses: Response) -> None:
    for response in responses:
        breaker.note(response)


@pytest.mark.rule("librarian-25")
def test_half_of_twenty_failures_open_it_for_a_minute(breaker: CircuitBreaker, clock: ManualClock) -> None:
    note(breaker, *[GOOD, BAD] * 9, GOOD)
    assert breaker.state == "closed"
    note(breaker, BAD)
    assert breaker.state == "open"
    refused = breaker.refusal()
    assert refused is not None
    assert refused.error is not None
    assert (refused.error.code, refused.error.recoverable) == (ErrorCode.SERVICE_UNAVAILABLE, True)
    assert refused.error.details["retryAfter"] == 60
    clock.advance(59)
    assert breaker.refusal() is not None
    clock.advance(1)
    assert breaker.refusal() is None
    assert breaker.state == "half-open"


@pytest.mark.rule("librarian-25")
def test_few_or_rare_failures_do_not_open_it(breaker: CircuitBreaker, clock: ManualClock) -> None:
    note(breaker, *[BAD] * 19)
    assert breaker.state == "closed"
    clock.advance(61)
    note(breaker, *[BAD] * 19)
    assert breaker.state == "closed"
    clock.advance(61)
    note(breaker, *[GOOD, GOOD, BAD] * 20)
    assert breaker.state == "closed"


@pytest.mark.rule("librarian-25")
def test_five_successes_close_it_and_one_failure_opens_it_again(breaker: CircuitBreaker, clock: ManualClock) -> None:
    note(breaker, *[BAD] * 20)
    clock.advance(60)
    note(breaker, GOOD, GOOD, GOOD, GOOD)
    assert breaker.state == "half-open"
    note(breaker, BAD)
    assert breaker.state == "open"
    clock.advance(60)
    note(breaker, *[GOOD] * 5)
    assert breaker.state == "closed"
    note(breaker, *[BAD] * 19)
    assert breaker.state == "closed"


def test_late_responses_say_nothing_while_it_is_open(breaker: CircuitBreaker, clock: ManualClock) -> None:
    note(breaker, *[BAD] * 20)
    clock.advance(30)
    note(breaker, *[GOOD] * 10, BAD)
    clock.advance(30)
    assert breaker.state == "half-open"


@pytest.mark.rule("librarian-25")
@pytest.mark.parametrize("code", list(ErrorCode))
def test_mistakes_of_the_caller_are_not_counted(breaker: CircuitBreaker, code: ErrorCode) -> None:
    note(breaker, *[Response.failing(code, "no")] * 20)
    client = {"INVALID_QUERY", "UNAUTHORIZED", "NOT_FOUND", "RATE_LIMITED", "LOOP_DETECTED", "MAX_DEPTH_EXCEEDED"}
    assert (breaker.state == "open") == (code in FAILURES) == (code not in client)
