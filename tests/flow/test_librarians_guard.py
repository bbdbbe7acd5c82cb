"""A broken librarian: the caller still gets a valid response in time."""

import asyncio
import contextvars
import threading
import time
from typing import Any

import pytest

from pair import errors
from pair.librarians import Citation, Context, DelegateRequest, Entry, ErrorInfo, Registry, Response, ask
from pair.librarians.rules import fault_of
from pair.librarians.settings import LibrariansSettings
from support.librarians import Recorder, answering, asked, code, hanging, raising, returning
from support.threads import run_together

SHORT = 0.1
IN_TIME = 1.0
"""The allowed delay after a deadline: far more than needed, for a busy machine."""


class Own(BaseException):
    """An exception class of a librarian."""


class Unspeakable(Exception):  # noqa: N818
    def __str__(self) -> str:
        raise Own


@pytest.mark.rule("librarian-3")
@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (ValueError("bad"), "INTERNAL_ERROR"),
        (Own("odd"), "INTERNAL_ERROR"),
        (SystemExit(3), "INTERNAL_ERROR"),
        (KeyboardInterrupt(), "INTERNAL_ERROR"),
        (GeneratorExit(), "INTERNAL_ERROR"),
        (StopAsyncIteration(), "INTERNAL_ERROR"),
        (RecursionError("deep"), "INTERNAL_ERROR"),
        (Unspeakable(), "INTERNAL_ERROR"),
        (BaseExceptionGroup("many", [Own()]), "INTERNAL_ERROR"),
        (TimeoutError("own"), "TIMEOUT"),
        (errors.model_unreachable("http://x", "away"), "AI_UNAVAILABLE"),
        (errors.store_unreachable("s3://x", "away"), "DATA_SOURCE_ERROR"),
    ],
    ids=lambda given: type(given).__name__,
)
def test_whatever_is_raised_becomes_an_error_response(fault: BaseException, expected: str) -> None:
    response = asked({"bad": raising(fault), "good": answering("Yes.")}, "bad")
    assert code(response) == expected
    assert response.error is not None
    assert response.error.librarian == "bad"


@pytest.mark.rule("librarian-3")
def test_cancellation_passes_through() -> None:
    with pytest.raises(asyncio.CancelledError):
        asked({"bad": raising(asyncio.CancelledError())}, "bad")


@pytest.mark.rule("librarian-2")
@pytest.mark.parametrize(
    ("given", "named"),
    [
        (None, "None"),
        ({"answer": "Yes."}, "dict"),
        ("Yes.", "str"),
        (Response(), "neither"),
        (Response(answer="Yes.", confidence=1.5), "confidence"),
        (Response(answer="Yes.", confidence=float("nan")), "confidence"),
        (Response(answer="Yes.", sources=(Citation(""),)), "name"),
        (Response(error=ErrorInfo("OOPS", "oops")), "OOPS"),
        (Response(delegate=DelegateRequest("")), "not the id of a librarian"),
    ],
    ids=lambda given: str(given)[:20],
)
def test_invalid_response_becomes_an_error_that_names_the_fault(given: Any, named: str) -> None:
    response = asked({"bad": returning(given)}, "bad")
    assert code(response) == "INTERNAL_ERROR"
    assert response.error is not None
    assert named in response.error.message


class Hostile:
    """An object that lies about its class, and raises when it is inspected."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise Own

    def __repr__(self) -> str:
        raise Own


def test_hostile_value_does_no_harm() -> None:
    assert code(asked({"bad": returning(Hostile())}, "bad")) == "INTERNAL_ERROR"
    assert code(asked({"bad": returning(Response(answer=Hostile()))}, "bad")) == "INTERNAL_ERROR"  # type: ignore[arg-type]


@pytest.mark.rule("librarian-1")
def test_function_that_is_not_async_is_refused() -> None:
    def blocking(query: str, context: Context | None = None) -> Response:
        return Response(answer="Yes.")

    response = asked({"bad": blocking}, "bad")
    assert response.error is not None
    assert "not async" in response.error.message


@pytest.mark.rule("librarian-1")
def test_librarian_may_take_the_question_only() -> None:
    async def echo(query: str) -> Response:
        return Response(answer=query)

    async def by_name(query: str, *, context: Context) -> Response:
        return Response(answer=context.delegation_chain[0])

    registry = Registry({"echo": echo, "by-name": by_name})
    assert asked(registry, "echo", "Hello?").answer == "Hello?"
    assert asked(registry, "by-name").answer == "by-name"


@pytest.mark.rule("librarian-30")
@pytest.mark.parametrize("query", ["", "  ", None, 7, "x" * 20_001])
def test_an_invalid_question_reaches_no_librarian(query: Any) -> None:
    recorder = Recorder()
    assert code(asked({"it": recorder}, "it", query)) == "INVALID_QUERY"
    assert recorder.queries == []


def test_bad_arguments_are_a_response() -> None:
    registry = Registry({"it": answering("Yes.")})
    assert code(asked(registry, "nobody")) == "NOT_FOUND"
    assert code(asked(registry, 7)) == "NOT_FOUND"  # type: ignore[arg-type]
    assert code(asked(registry, "it", context={"user": "root"})) == "INVALID_QUERY"  # type: ignore[arg-type]
    assert code(asked(registry, "it", timeout="soon")) == "INVALID_QUERY"  # type: ignore[arg-type]
    assert code(asked(registry, "it", timeout=0)) == "TIMEOUT"
    assert code(asked(registry, "it", timeout=-1)) == "TIMEOUT"


# ── time ───────────────────────────────────────────────────────────────────────────────────────────


def blocking_for(seconds: float, began: threading.Event | None = None) -> Any:
    async def librarian(query: str, context: Context | None = None) -> Response:
        if began:
            began.set()
        time.sleep(seconds)  # noqa: ASYNC251 - the very fault
        return Response(answer="Late.")

    return librarian


async def stubborn(query: str, context: Context | None = None) -> Response:
    """Ignore cancellation for a while."""
    for _ in range(3):
        try:
            await asyncio.sleep(0.3)
        except asyncio.CancelledError:
            continue
    return Response(answer="Late.")


async def busy(query: str, context: Context | None = None) -> Response:
    while True:  # noqa: ASYNC110 - the very fault
        await asyncio.sleep(0)


@pytest.mark.rule("librarian-4")
@pytest.mark.parametrize("librarian", [hanging, stubborn, busy, blocking_for(0.6)])
def test_a_late_librarian_does_not_delay_the_caller(librarian: Any) -> None:
    registry = Registry({"late": librarian, "good": answering("Yes.")})
    began_at = time.monotonic()
    response = asked(registry, "late", timeout=SHORT)
    assert SHORT <= time.monotonic() - began_at < SHORT + IN_TIME
    assert code(response) == "TIMEOUT"
    assert response.error is not None
    assert response.error.recoverable is True
    assert asked(registry, "good", timeout=IN_TIME).answer == "Yes."


@pytest.mark.rule("librarian-4")
def test_questions_beside_a_blocked_one_are_moved_and_answered() -> None:
    began = threading.Event()
    registry = Registry({"late": blocking_for(1.5, began), "good": answering("Yes.")})

    async def both() -> tuple[Response, float]:
        late = asyncio.create_task(ask(registry, "late", "x", timeout=1.2))
        await asyncio.to_thread(began.wait)
        began_at = time.monotonic()
        good = await ask(registry, "good", "x", timeout=1.2)
        took = time.monotonic() - began_at
        assert not late.done()
        late.cancel()
        return good, took

    good, took = asyncio.run(both())
    assert good.answer == "Yes."
    assert took < IN_TIME


@pytest.mark.rule("librarian-4")
@pytest.mark.parametrize(
    ("timeout", "context", "own", "default"),
    [
        (SHORT, None, None, 30.0),
        (None, Context(timeout_ms=100), None, 30.0),
        (None, None, SHORT, 30.0),
        (None, None, None, SHORT),
        (9, Context(timeout_ms=100), 20.0, 30.0),
        (9, None, SHORT, 30.0),
    ],
)
def test_shortest_limit_counts(
    timeout: float | None, context: Context | None, own: float | None, default: float
) -> None:
    registry = Registry(
        {"late": Entry(hanging, timeout_seconds=own)}, policy=LibrariansSettings(timeout_seconds=default)
    )
    began_at = time.monotonic()
    assert code(asked(registry, "late", context=context, timeout=timeout)) == "TIMEOUT"
    assert time.monotonic() - began_at < SHORT + IN_TIME


def test_limit_that_is_given_may_be_longer_than_the_default() -> None:
    async def slow(query: str, context: Context | None = None) -> Response:
        await asyncio.sleep(0.05)
        return Response(answer="Yes.")

    policy = LibrariansSettings(timeout_seconds=0.01)
    assert asked({"it": slow}, "it", timeout=5, policy=policy).answer == "Yes."
    assert code(asked({"it": slow}, "it", policy=policy)) == "TIMEOUT"


@pytest.mark.rule("librarian-5")
def test_a_cancelled_question_stops_every_librarian() -> None:
    entered, left = threading.Barrier(3), threading.Semaphore(0)

    async def waits(query: str, context: Context | None = None) -> Response:
        try:
            await asyncio.to_thread(entered.wait)
            await asyncio.Event().wait()
        finally:
            left.release()
        raise AssertionError

    async def front(query: str, context: Context | None = None) -> Response:
        return Response(delegate=(DelegateRequest("one"), DelegateRequest("two")))

    registry = Registry({"front": front, "one": waits, "two": waits})

    async def goes_away() -> None:
        asking = asyncio.create_task(ask(registry, "front", "x"))
        await asyncio.to_thread(entered.wait)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking

    asyncio.run(goes_away())
    assert left.acquire(timeout=IN_TIME)
    assert left.acquire(timeout=IN_TIME)


def test_loop_that_is_closed_while_librarians_work_is_harmless() -> None:
    registry = Registry({"late": hanging, "good": answering("Yes.")})

    async def leaves() -> None:
        task = asyncio.create_task(ask(registry, "late", "x"))
        await asyncio.sleep(0)
        assert not task.done()

    asyncio.run(leaves())
    assert asked(registry, "good").answer == "Yes."


def test_a_task_that_exits_stops_no_other_librarian() -> None:
    async def exits() -> None:
        raise SystemExit(3)

    async def starts(query: str, context: Context | None = None) -> Response:
        task = asyncio.create_task(exits())
        await asyncio.wait((task,))
        return Response(answer=type(task.exception()).__name__)

    registry = Registry({"it": starts, "good": answering("Yes.")})
    assert asked(registry, "it", timeout=IN_TIME).answer == "SystemExit"
    assert asked(registry, "good", timeout=IN_TIME).answer == "Yes."


@pytest.mark.rule("librarian-4")
def test_thousand_questions_at_once() -> None:
    registry = Registry({"it": answering("Yes."), "front": returning(Response.delegating("it"))})

    async def crowd() -> list[Response]:
        return await asyncio.gather(*(ask(registry, "front", f"question {number}") for number in range(1000)))

    responses = asyncio.run(crowd())
    assert {response.answer for response in responses} == {"Yes."}
    assert len({response.metadata["requestId"] for response in responses}) == 1000


def test_thousand_questions_that_are_not_answered_in_time() -> None:
    registry = Registry({"late": hanging})

    async def crowd() -> list[Response]:
        return await asyncio.gather(*(ask(registry, "late", "x", timeout=SHORT) for _ in range(1000)))

    began_at = time.monotonic()
    responses = asyncio.run(crowd())
    assert {code(response) for response in responses} <= {"TIMEOUT", "SERVICE_UNAVAILABLE"}
    assert all(fault_of(response) is None for response in responses)
    assert time.monotonic() - began_at < 5 * IN_TIME


def test_questions_from_several_threads_and_loops() -> None:
    registry = Registry({"it": answering("Yes.")})
    answers: list[str | None] = []
    run_together(*[lambda: answers.append(asked(registry, "it").answer)] * 8)
    assert answers == ["Yes."] * 8


def test_a_librarian_sees_the_context_variables_of_the_caller() -> None:
    language: contextvars.ContextVar[str] = contextvars.ContextVar("language", default="none")

    async def speaks(query: str, context: Context | None = None) -> Response:
        seen = language.get()
        language.set("changed")
        return Response(answer=seen)

    async def front(query: str, context: Context | None = None) -> Response:
        return Response(delegate=(DelegateRequest("one"), DelegateRequest("two")))

    async def asks() -> tuple[str | None, str]:
        language.set("Welsh")
        response = await ask(Registry({"front": front, "one": speaks, "two": speaks}), "front", "x")
        return response.answer, language.get()

    assert asyncio.run(asks()) == ("Welsh", "Welsh")
