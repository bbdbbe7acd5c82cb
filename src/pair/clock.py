"""The clock, the only module that reads the time or sleeps, and the cancellation of work."""

import contextlib
import contextvars
import datetime
import threading
import time
from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

from pair import errors

_Result = TypeVar("_Result")


class Clock(Protocol):
    def now(self) -> datetime.datetime:
        """Return the current instant, in UTC."""

    def monotonic(self) -> float:
        """Return the seconds since a fixed moment; the value never decreases."""


class SystemClock:
    def now(self) -> datetime.datetime:
        return datetime.datetime.now(datetime.UTC)

    def monotonic(self) -> float:
        return time.monotonic()


def to_timestamp(instant: datetime.datetime) -> str:
    """Return a UTC instant as `2026-01-31T12:00:00Z`."""
    return instant.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def pause(seconds: float) -> None:
    time.sleep(seconds)


@contextlib.contextmanager
def call_when_late(seconds: float, call: Callable[[], object]) -> Iterator[threading.Event]:
    """Call a function from another thread if the block takes longer than this, and set the yielded event."""
    is_late = threading.Event()

    def set_and_call() -> None:
        is_late.set()
        call()

    timer = threading.Timer(seconds, set_and_call)
    timer.daemon = True
    timer.start()
    try:
        yield is_late
    finally:
        timer.cancel()


class Cancellation:
    """A way to stop work in another thread, so that the thread becomes free.

    Code below `run`, in any thread with its context variables, calls `check_cancelled` between steps.
    """

    def __init__(self, seconds: float) -> None:
        """Prepare a cancellation. `seconds`: the time limit in the error."""
        self._seconds = seconds
        self._is_cancelled = False

    def run(self, work: Callable[[], _Result]) -> _Result:
        """Run the work in this thread. Raises E609 after a cancellation, and the errors of the work."""
        token = _current.set(self)
        try:
            self.check()
            return work()
        finally:
            _current.reset(token)

    def cancel(self) -> None:
        self._is_cancelled = True

    def check(self) -> None:
        """Raise E609 after a cancellation."""
        if self._is_cancelled:
            raise errors.took_too_long(self._seconds)


_current: contextvars.ContextVar[Cancellation | None] = contextvars.ContextVar("cancellation", default=None)


def check_cancelled() -> None:
    """Raise E609 if the current work was cancelled."""
    if (cancellation := _current.get()) is not None:
        cancellation.check()
