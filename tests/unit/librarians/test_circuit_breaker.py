"""A librarian that fails too often is left in peace."""

import pytest

from pair.librarians import ErrorCode, Response
from pair.librarians.registry import FAILURES, CircuitBreaker
from pair.librarians.settings import LibrariansSettings
from pair.testing.clock import ManualClock

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
