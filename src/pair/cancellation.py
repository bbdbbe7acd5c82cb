"""Cancellation: work whose caller has given up is told to stop, and frees its thread.

A caller runs work under a `Cancellation`. What runs below it, in any thread that has its context variables, calls
`check` between its steps and `interruptible` around a step that can be interrupted.
"""

import contextlib
import contextvars
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

from pair import errors

_Result = TypeVar("_Result")


class Cancellation:
    """Belongs to one piece of work. Used from several threads at once."""

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


def check() -> None:
    """Stop here if the caller has given up. Raises E609."""
    cancellation = _current.get()
    if cancellation is not None:
        cancellation.check()


@contextlib.contextmanager
def interruptible(interrupt: Callable[[], None]) -> Iterator[None]:
    """Call `interrupt`, from another thread, if the caller gives up during this step. Raises E609 then."""
    cancellation = _current.get()
    with contextlib.nullcontext() if cancellation is None else cancellation.interruptible(interrupt):
        yield
