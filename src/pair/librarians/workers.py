"""Blocking work of librarians, in threads that nobody has to wait for.

`asyncio.to_thread` would do, but for one thing: Python does not end before the last of its threads has, so that a model
that does not reply would keep a command from ending long after its answer was given up.
"""

import asyncio
import contextlib
import contextvars
import queue
import threading
from collections.abc import Callable
from typing import TypeVar

_Result = TypeVar("_Result")

_MOST_WORKERS = 64
_IDLE_SECONDS = 10.0


class _Workers:
    """As many threads as there is work for, up to a limit; those without work end by and by."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)
        """Threads that wait for work and have not been promised any."""
        self._lock = threading.Lock()
        self._count = 0

    def submit(self, job: Callable[[], None]) -> None:
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
    """What `work` gives or raises, with the context variables of whoever wants it."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[_Result] = loop.create_future()
    context = contextvars.copy_context()

    def settle(result: _Result | None, fault: BaseException | None) -> None:
        if outcome.done():
            return
        if fault is not None:
            outcome.set_exception(fault)
        else:
            outcome.set_result(result)  # type: ignore[arg-type]

    def job() -> None:
        if outcome.cancelled():
            return
        result, fault = None, None
        try:
            result = context.run(work)
        except BaseException as caught:  # noqa: BLE001 - raised where it is awaited
            fault = caught
        with contextlib.suppress(RuntimeError):  # nobody is there any more
            loop.call_soon_threadsafe(settle, result, fault)

    _workers.submit(job)
    return await outcome
