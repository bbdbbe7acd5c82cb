"""Daemon threads for librarians: event loops for questions, and plain threads for blocking work.

Invariants
    A coroutine that blocks its thread holds up nothing else: its caller gets TimeoutError, and the thread is discarded.
    The blocking work of one owner takes at most its `ThreadShare`; the rest waits and holds up no other work.
    Python can exit while any of this runs, which `asyncio.to_thread` does not allow.
"""

import asyncio
import collections
import contextlib
import contextvars
import functools
import queue
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from pair import errors

_Result = TypeVar("_Result")

# ── event loops ────────────────────────────────────────────────────────────────────────────────────

_MAX_LOOPS = 64
"""Threads alive at once. Beyond that, coroutines share the least busy loop."""
_MAX_IDLE_LOOPS = 8
_POLL_SECONDS = 0.05

_LOCAL = threading.local()
_ABANDONED: set[asyncio.Task[Any]] = set()
"""Cancelled tasks that still run: a loop holds its tasks by weak references only."""


class _LoopThread:
    """A daemon thread with an event loop."""

    def __init__(self, lock: threading.Lock) -> None:
        self.loop = asyncio.new_event_loop()
        self.running = 0
        """Coroutines of the pool on this loop. Changed under the lock of the pool."""
        self.is_discarded = False
        self._lock = lock
        self._thread = threading.Thread(target=self._run, name="pair-loop", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Return False after a fork, too, which keeps no other thread."""
        return self._thread.is_alive() and not self.loop.is_closed()

    def discard(self) -> None:
        """End when all tasks of the loop have ended."""
        self.is_discarded = True
        with contextlib.suppress(RuntimeError):  # closed already
            self.loop.call_soon_threadsafe(self.loop.stop)

    def _run(self) -> None:
        _LOCAL.thread = self
        asyncio.set_event_loop(self.loop)
        # A task that raises SystemExit ends the loop's run; the tasks beside it go on.
        while not self.is_discarded:
            with contextlib.suppress(BaseException):
                self.loop.run_forever()
        while not self._close_if_done():
            with contextlib.suppress(BaseException):
                self.loop.run_until_complete(asyncio.sleep(_POLL_SECONDS))

    def _close_if_done(self) -> bool:
        with self._lock:
            is_done = not self.running and not asyncio.all_tasks(self.loop)
            if is_done:
                self.loop.close()
            return is_done


class LoopThreads:
    """A pool of event loops, one for each coroutine. May be used from several threads at once."""

    def __init__(self) -> None:
        self._threads: list[_LoopThread] = []
        self._lock = threading.Lock()

    async def run(self, work: Callable[[], Coroutine[Any, Any, _Result]], seconds: float) -> _Result:
        """Return the result of `work()`, run on another loop with the caller's context variables.

        Raises TimeoutError after `seconds`. Cancelling the caller cancels the work.
        """
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[_Result] = loop.create_future()
        task: asyncio.Task[_Result] | None = None

        def start() -> None:
            nonlocal task
            if not outcome.done():
                task = thread.loop.create_task(work())
                task.add_done_callback(finish)

        def finish(task: asyncio.Task[_Result]) -> None:
            fault = asyncio.CancelledError() if task.cancelled() else task.exception()
            with contextlib.suppress(RuntimeError):  # the caller's loop is closed
                loop.call_soon_threadsafe(_settle, outcome, None if fault else task.result(), fault)

        def cancel() -> None:
            if task is not None:
                task.cancel()

        thread = self._take()
        timer = loop.call_later(max(0.0, seconds), _settle, outcome, None, TimeoutError())
        thread.loop.call_soon_threadsafe(start)
        is_finished = False
        try:
            result = await outcome
            is_finished = True
            return result
        finally:
            timer.cancel()
            if not is_finished:
                with contextlib.suppress(RuntimeError):  # closed after a fork
                    thread.loop.call_soon_threadsafe(cancel)
            self._put_back(thread, is_finished=is_finished)

    def _take(self) -> _LoopThread:
        """Raises RuntimeError when the system has no thread left."""
        with self._lock:
            self._threads = [thread for thread in self._threads if thread.is_alive]
            usable = [thread for thread in self._threads if not thread.is_discarded]
            # The first idle one: async clients of a librarian are bound to a loop.
            thread = min(usable, key=lambda thread: thread.running, default=None)
            if (thread is None or thread.running) and len(self._threads) < _MAX_LOOPS:
                try:
                    thread = _LoopThread(self._lock)
                    self._threads.append(thread)
                except RuntimeError:
                    if thread is None:
                        raise
            if thread is None:  # all are discarded; one of them may run again
                thread = min(self._threads, key=lambda thread: thread.running)
            thread.running += 1
            return thread

    def _put_back(self, thread: _LoopThread, *, is_finished: bool) -> None:
        with self._lock:
            thread.running -= 1
            idle = sum(not (other.running or other.is_discarded) for other in self._threads)
            if not is_finished or (idle > _MAX_IDLE_LOOPS and not thread.running):
                thread.discard()


def abandon(task: asyncio.Task[Any]) -> None:
    """Cancel a task of the running loop that may not stop, and give the loop's thread no further work."""
    task.cancel()
    _ABANDONED.add(task)
    task.add_done_callback(_ABANDONED.discard)
    thread: _LoopThread | None = getattr(_LOCAL, "thread", None)
    if thread is not None:
        thread.discard()


# ── blocking work ──────────────────────────────────────────────────────────────────────────────────

_MAX_THREADS = 64
_MAX_WAITING = 256
"""Of one owner."""
_IDLE_SECONDS = 10.0


class ThreadShare(NamedTuple):
    """How many threads the work of one owner may take at once."""

    owner: str
    most_threads: int


share: contextvars.ContextVar[ThreadShare | None] = contextvars.ContextVar("share", default=None)
"""The limit for work that this context starts; None for no limit."""


@dataclass
class _OwnerQueue:
    running: int = 0
    waiting: collections.deque[Callable[[], None]] = field(default_factory=collections.deque)


class _DaemonThreads:
    """As many threads as there is work for, up to a limit; idle ones end."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)
        """Threads that wait for work and have not been promised any."""
        self._lock = threading.Lock()
        self._count = 0
        self._queues: dict[str, _OwnerQueue] = {}

    def submit(self, job: Callable[[], None], limit: ThreadShare | None) -> None:
        """Raises E608 when too much work of the owner waits already."""
        if limit is None:
            self._start(job)
            return
        with self._lock:
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
        with self._lock:
            owned = self._queues[owner]
            following = owned.waiting.popleft() if owned.waiting else None
            if following is None:
                owned.running -= 1
                if not owned.running:
                    del self._queues[owner]
        if following is not None:  # behind the work of others
            self._start(lambda: self._run_owned(following, owner))

    def _start(self, job: Callable[[], None]) -> None:
        self._jobs.put(job)
        if self._idle.acquire(blocking=False):
            return
        with self._lock:
            if self._count >= _MAX_THREADS:
                return
            self._count += 1
        threading.Thread(target=self._work, name="pair-librarian", daemon=True).start()

    def _work(self) -> None:
        while (job := self._next_job()) is not None:
            job()
            del job  # frees what it refers to before the next one comes
        with self._lock:
            self._count -= 1

    def _next_job(self) -> Callable[[], None] | None:
        """Return None when there was nothing to do for a while."""
        with contextlib.suppress(queue.Empty):
            return self._jobs.get_nowait()
        self._idle.release()
        with contextlib.suppress(queue.Empty):
            return self._jobs.get(timeout=_IDLE_SECONDS)
        # Unless `_start` counts on this thread since.
        return None if self._idle.acquire(blocking=False) else self._jobs.get()


_daemon_threads = _DaemonThreads()


async def in_thread(work: Callable[[], _Result]) -> _Result:
    """Run `work` in a daemon thread, with the caller's context variables. Raises E608."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[_Result] = loop.create_future()
    _daemon_threads.submit(functools.partial(_run, work, contextvars.copy_context(), loop, outcome), share.get())
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
    with contextlib.suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(settle)
    del settle, outcome  # as above


def _settle(outcome: "asyncio.Future[_Result]", result: _Result | None, fault: BaseException | None) -> None:
    if outcome.done():
        return
    if fault is not None:
        outcome.set_exception(fault)
    else:
        outcome.set_result(result)  # type: ignore[arg-type]
