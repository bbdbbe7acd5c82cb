"""A pool of daemon threads, each with an event loop that runs one coroutine at a time.

Invariants
    A coroutine that blocks its thread holds up nothing else: its caller gets TimeoutError, and the thread is discarded.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

_Result = TypeVar("_Result")
_MAX_THREADS = 64
"""Running at once. Further coroutines run on the caller's loop, which is slower to fail and never deadlocks."""
_MAX_IDLE = 8


class _LoopThread:
    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._is_discarded = False
        self._thread = threading.Thread(target=self._run, name="pair-loop", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Return False after a fork, which keeps no other thread."""
        return self._thread.is_alive()

    def discard(self) -> None:
        """End the thread as soon as its loop runs again."""
        self._is_discarded = True
        with contextlib.suppress(RuntimeError):  # closed already
            self.loop.call_soon_threadsafe(self.loop.stop)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        while not self._is_discarded:
            # A task that raises SystemExit ends run_forever; the loop itself is still sound.
            with contextlib.suppress(BaseException):
                self.loop.run_forever()
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        with contextlib.suppress(BaseException):
            self.loop.run_until_complete(asyncio.gather(*asyncio.all_tasks(self.loop), return_exceptions=True))
        self.loop.close()


class LoopThreads:
    """The pool. May be used from several threads at once."""

    def __init__(self) -> None:
        self._idle: list[_LoopThread] = []
        self._busy: set[_LoopThread] = set()
        self._lock = threading.Lock()

    async def run(self, work: Callable[[], Coroutine[Any, Any, _Result]], seconds: float) -> _Result:
        """Return the result of `work()`, run on another loop with the caller's context variables.

        Raises TimeoutError after `seconds`. Cancelling the caller cancels the work.
        """
        thread = self._take()
        if thread is None:
            return await asyncio.wait_for(work(), seconds)
        running = asyncio.run_coroutine_threadsafe(work(), thread.loop)
        is_finished = False
        try:
            result = await asyncio.wait_for(asyncio.wrap_future(running), max(0.0, seconds))
            is_finished = True
            return result
        finally:
            self._put_back(thread, is_idle=is_finished)

    def _take(self) -> _LoopThread | None:
        with self._lock:
            self._busy = {thread for thread in self._busy if thread.is_alive}
            while self._idle:
                thread = self._idle.pop()  # the last one used: async clients of a librarian are bound to a loop
                if thread.is_alive:
                    self._busy.add(thread)
                    return thread
            if len(self._busy) >= _MAX_THREADS:
                return None
            try:
                thread = _LoopThread()
            except RuntimeError:  # the system has no thread left
                return None
            self._busy.add(thread)
            return thread

    def _put_back(self, thread: _LoopThread, *, is_idle: bool) -> None:
        with self._lock:
            if is_idle and len(self._idle) < _MAX_IDLE:
                self._busy.discard(thread)
                self._idle.append(thread)
            else:
                thread.discard()  # stays counted as busy until it has really ended
