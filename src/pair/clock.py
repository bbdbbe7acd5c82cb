"""The only place that knows the time or sleeps, and the cancellation of work whose caller has given up."""

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
        ...

    def monotonic(self) -> float:
        """Return the seconds since some fixed moment; never goes back."""
        ...


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
    """Call the function, from another thread, if the block takes longer than this; set the event that is given then."""
    is_late = threading.Event()

    def note_and_call() -> None:
        is_late.set()
        call()

    timer = threading.Timer(seconds, note_and_call)
    timer.daemon = True
    timer.start()
    try:
        yield is_late
    finally:
        timer.cancel()


class Cancellation:
    """Stops one piece of work, from another thread, so that the work frees its thread.

    What runs below `run`, in any thread that has its context variables, calls `check_cancelled` between its steps and
    `interruptible` around a step that can be interrupted.
    """

    def __init__(self, seconds: float) -> None:
        """`seconds`: the time that the work had, for the error."""
        self._seconds = seconds
        self._lock = threading.Lock()
        self._is_cancelled = False
        self._interrupts: list[Callable[[], None]] = []

    def run(self, work: Callable[[], _Result]) -> _Result:
        """Run the work in this thread. Raises E609 once it is cancelled, and what the work raises."""
        token = _current.set(self)
        try:
            self.check()
            return work()
        finally:
            _current.reset(token)

    def cancel(self) -> None:
        with self._lock:
            self._is_cancelled = True
            for interrupt in self._interrupts:
                interrupt()

    def check(self) -> None:
        """Raises E609."""
        if self._is_cancelled:
            raise errors.took_too_long(self._seconds)

    @contextlib.contextmanager
    def interruptible(self, interrupt: Callable[[], None]) -> Iterator[None]:
        with self._lock:
            self._interrupts.append(interrupt)
        try:
            self.check()
            yield
        finally:
            with self._lock:
                self._interrupts.remove(interrupt)
            self.check()


_current: contextvars.ContextVar[Cancellation | None] = contextvars.ContextVar("cancellation", default=None)


def check_cancelled() -> None:
    """Stop here if the caller has given up. Raises E609."""
    if (cancellation := _current.get()) is not None:
        cancellation.check()


@contextlib.contextmanager
def interruptible(interrupt: Callable[[], None]) -> Iterator[None]:
    """Call `interrupt`, from another thread, if the caller gives up during this step. Raises E609 then."""
    cancellation = _current.get()
    with contextlib.nullcontext() if cancellation is None else cancellation.interruptible(interrupt):
        yield
