"""Blocking work of librarians, in threads that nobody has to wait for.

`asyncio.to_thread` would do, but for one thing: Python does not end before the last of its threads has, so that a model
that does not reply would keep a command from ending long after its answer was given up.

Invariants
    Work of an owner that has a `Share` takes at most so many threads at once. The rest of it waits in a line of its
    own, and keeps no other work waiting.
"""

import asyncio
import collections
import contextlib
import contextvars
import functools
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from pair import errors

_Result = TypeVar("_Result")

_MOST_WORKERS = 64
_MOST_WAITING = 256
"""Of one owner."""
_IDLE_SECONDS = 10.0


class ThreadShare(NamedTuple):
    """How many threads the work of one owner may take at once."""

    owner: str
    most_threads: int


share: contextvars.ContextVar[ThreadShare | None] = contextvars.ContextVar("share", default=None)
"""Of whoever wants the work; None for no limit."""


@dataclass
class _Line:
    """Work of one owner."""

    running: int = 0
    waiting: collections.deque[Callable[[], None]] = field(default_factory=collections.deque)


class _Workers:
    """As many threads as there is work for, up to a limit; those without work end by and by."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)
        """Threads that wait for work and have not been promised any."""
        self._lock = threading.Lock()
        self._count = 0
        self._lines: dict[str, _Line] = {}

    def submit(self, job: Callable[[], None], limit: ThreadShare | None) -> None:
        """Raises E608 when too much work of the owner waits already."""
        if limit is None:
            self._start(job)
            return
        with self._lock:
            line = self._lines.setdefault(limit.owner, _Line())
            if line.running >= limit.most_threads:
                if len(line.waiting) >= _MOST_WAITING:
                    raise errors.too_many_requests()
                line.waiting.append(job)
                return
            line.running += 1
        self._start(lambda: self._run_in_line(job, limit.owner))

    def _run_in_line(self, job: Callable[[], None], owner: str) -> None:
        job()
        with self._lock:
            line = self._lines[owner]
            following = line.waiting.popleft() if line.waiting else None
            if following is None:
                line.running -= 1
                if not line.running:
                    del self._lines[owner]
        if following is not None:  # behind the work of others
            self._start(lambda: self._run_in_line(following, owner))

    def _start(self, job: Callable[[], None]) -> None:
        self._jobs.put(job)
        if self._idle.acquire(blocking=False):
            return
        with self._lock:
            if self._count >= _MOST_WORKERS:
                return
            self._count += 1
        threading.Thread(target=self._work, name="pair-librarian", daemon=True).start()

    def _work(self) -> None:
        while (job := self._next()) is not None:
            job()
            del job  # what it refers to goes before the next one comes
        with self._lock:
            self._count -= 1

    def _next(self) -> Callable[[], None] | None:
        """None when there was nothing to do for a while."""
        with contextlib.suppress(queue.Empty):
            return self._jobs.get_nowait()
        self._idle.release()
        with contextlib.suppress(queue.Empty):
            return self._jobs.get(timeout=_IDLE_SECONDS)
        # Unless somebody counts on this thread since.
        return None if self._idle.acquire(blocking=False) else self._jobs.get()


_workers = _Workers()


async def in_thread(work: Callable[[], _Result]) -> _Result:
    """What `work` gives or raises, with the context variables of whoever wants it. Raises E608."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[_Result] = loop.create_future()
    _workers.submit(functools.partial(_run, work, contextvars.copy_context(), loop, outcome), share.get())
    try:
        return await outcome
    finally:
        del outcome  # an error would refer to itself by this frame, and stay in memory with all that it refers to


def _run(
    work: Callable[[], _Result],
    context: contextvars.Context,
    loop: asyncio.AbstractEventLoop,
    outcome: "asyncio.Future[_Result]",
) -> None:
    if outcome.cancelled():
        return
    try:
        settle = functools.partial(_settle, outcome, context.run(work), None)
    except BaseException as fault:  # noqa: BLE001 - raised where it is awaited
        settle = functools.partial(_settle, outcome, None, fault)
    with contextlib.suppress(RuntimeError):  # nobody is there any more
        loop.call_soon_threadsafe(settle)
    del settle, outcome  # as above


def _settle(outcome: "asyncio.Future[_Result]", result: _Result | None, fault: BaseException | None) -> None:
    if outcome.done():
        return
    if fault is not None:
        outcome.set_exception(fault)
    else:
        outcome.set_result(result)  # type: ignore[arg-type]
