"""Daemon threads for librarians: event loops for questions, and plain threads for blocking work.

Invariants
    A coroutine that blocks its thread delays nothing else: its caller gets TimeoutError, and the thread is discarded.
    The blocking work of one owner uses at most its `ThreadShare`; the rest waits and delays no other work.
    Python can exit while any of this runs, which `asyncio.to_thread` does not allow.
"""

import asyncio
import collections
import concurrent.futures
import contextlib
import contextvars
import functools
import operator
import os
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from pair import errors

_Result = TypeVar("_Result")

# ── event loops ────────────────────────────────────────────────────────────────────────────────────

_MAX_LOOPS = 64
"""Maximum number of threads. Beyond it, coroutines share the least busy loop."""
_MAX_IDLE_LOOPS = 8
_POLL_SECONDS = 0.05

_LOCAL = threading.local()
_ABANDONED: set[asyncio.Task[Any]] = set()
"""Cancelled tasks that still run. A loop holds only weak references to its tasks."""
_loops: "list[_LoopThread]" = []
_lock = threading.Lock()
"""The lock of `_loops` and of the number of coroutines on each."""
os.register_at_fork(after_in_child=_loops.clear)  # A forked child has no other thread.


class _LoopThread:
    """A daemon thread with an event loop."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.running = 0
        self.is_discarded = False
        threading.Thread(target=self._run, name="pair-loop", daemon=True).start()

    def discard(self) -> None:
        """Stop the thread when all tasks of the loop have ended."""
        self.is_discarded = True
        with contextlib.suppress(RuntimeError):  # The loop is closed already.
            self.loop.call_soon_threadsafe(self.loop.stop)

    def _run(self) -> None:
        _LOCAL.thread = self
        asyncio.set_event_loop(self.loop)
        while not self._close_if_done():
            # A task that raises SystemExit stops the loop; run it again for the other tasks.
            with contextlib.suppress(BaseException):
                if self.is_discarded:
                    self.loop.run_until_complete(asyncio.sleep(_POLL_SECONDS))
                else:
                    self.loop.run_forever()

    def _close_if_done(self) -> bool:
        with _lock:
            is_done = self.is_discarded and not self.running and not asyncio.all_tasks(self.loop)
            if is_done:
                _loops.remove(self)
                self.loop.close()
            return is_done


async def run_on_loop(work: Callable[[], Coroutine[Any, Any, _Result]], seconds: float) -> _Result:
    """Run `work()` on a separate event loop with the caller's context variables, and return its result.

    Raises TimeoutError after `seconds`. Cancelling the caller cancels the work.
    """
    thread = _take_loop()
    is_finished = False
    try:
        async with asyncio.timeout(max(0.0, seconds)):
            result = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work(), thread.loop))
        is_finished = True
        return result
    finally:
        with _lock:
            thread.running -= 1
            is_spare = not thread.running and sum(not other.running for other in _loops) > _MAX_IDLE_LOOPS
        if is_spare or not is_finished:
            thread.discard()


def _take_loop() -> _LoopThread:
    """Return an idle loop, or start one. Raises RuntimeError when the system has no thread left."""
    with _lock:
        # Prefer the first idle loop: async clients of a librarian are bound to a loop. A discarded loop may recover.
        usable = [thread for thread in _loops if not thread.is_discarded]
        thread = min(usable or _loops, key=operator.attrgetter("running"), default=None)
        if thread is None or (len(_loops) < _MAX_LOOPS and (thread.running or not usable)):
            try:
                thread = _LoopThread()
                _loops.append(thread)
            except RuntimeError:
                if thread is None:
                    raise
        thread.running += 1
        return thread


def abandon(task: asyncio.Task[Any]) -> None:
    """Cancel a task that may never stop, and give the thread of its loop no further work."""
    task.cancel()
    _ABANDONED.add(task)
    task.add_done_callback(_ABANDONED.discard)
    thread: _LoopThread | None = getattr(_LOCAL, "thread", None)
    if thread is not None:
        thread.discard()


# ── blocking work ──────────────────────────────────────────────────────────────────────────────────

_MAX_THREADS = 64
_MAX_WAITING = 256
"""Maximum number of waiting jobs of one owner."""
_IDLE_SECONDS = 10.0


class ThreadShare(NamedTuple):
    """Maximum number of threads for the work of one owner."""

    owner: str
    most_threads: int


share: contextvars.ContextVar[ThreadShare | None] = contextvars.ContextVar("share", default=None)
"""The limit of threads for work started in this context; None for no limit."""


@dataclass
class _OwnerQueue:
    running: int = 0
    waiting: collections.deque[Callable[[], None]] = field(default_factory=collections.deque)


@dataclass
class _DaemonThreads:
    """A pool that grows with its work up to a limit; idle threads end."""

    _changed: threading.Condition = field(default_factory=threading.Condition)
    _jobs: collections.deque[Callable[[], None]] = field(default_factory=collections.deque)
    """The jobs that the next free thread may take."""
    _count: int = 0
    _idle: int = 0
    _queues: dict[str, _OwnerQueue] = field(default_factory=dict)

    def submit(self, job: Callable[[], None], limit: ThreadShare | None) -> None:
        """Queue a job. Raises E608 when too much work of the owner is waiting."""
        if limit is None:
            self._start(job)
            return
        with self._changed:
            owned = self._queues.setdefault(limit.owner, _OwnerQueue())
            if owned.running >= limit.most_threads:
                if len(owned.waiting) >= _MAX_WAITING:
                    raise errors.too_many_requests()
                owned.waiting.append(job)
                return
            owned.running += 1
        self._start(lambda: self._run_owned(job, limit.owner))

    def _run_owned(self, job: Callable[[], None], owner: str) -> None:
        job()
        with self._changed:
            owned = self._queues[owner]
            following = owned.waiting.popleft() if owned.waiting else None
            if following is None:
                owned.running -= 1
                if not owned.running:
                    del self._queues[owner]
        if following is not None:  # Queue it behind the work of other owners.
            self._start(lambda: self._run_owned(following, owner))

    def _start(self, job: Callable[[], None]) -> None:
        with self._changed:
            self._jobs.append(job)
            self._changed.notify()
            if len(self._jobs) <= self._idle or self._count >= _MAX_THREADS:
                return
            self._count += 1
        threading.Thread(target=self._work, name="pair-librarian", daemon=True).start()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._idle += 1
                self._changed.wait_for(lambda: self._jobs, _IDLE_SECONDS)
                self._idle -= 1
                if not self._jobs:
                    self._count -= 1
                    return
                job = self._jobs.popleft()
            job()
            del job  # Free its references before waiting for the next job.


_daemon_threads = _DaemonThreads()


async def in_thread(work: Callable[[], _Result]) -> _Result:
    """Run `work` in a daemon thread, with the caller's context variables. Raises E608."""
    outcome: concurrent.futures.Future[_Result] = concurrent.futures.Future()
    _daemon_threads.submit(functools.partial(_run, work, contextvars.copy_context(), outcome), share.get())
    try:
        return await asyncio.wrap_future(outcome)
    finally:
        del outcome  # Break the reference cycle of the exception and this frame, which would keep both in memory.


def _run(
    work: Callable[[], _Result], context: contextvars.Context, outcome: "concurrent.futures.Future[_Result]"
) -> None:
    if not outcome.set_running_or_notify_cancel():
        return
    try:
        outcome.set_result(context.run(work))
    except BaseException as fault:  # noqa: BLE001 - raised where it is awaited
        outcome.set_exception(fault)
    finally:
        del outcome  # Break the cycle, as above.
