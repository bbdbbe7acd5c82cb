"""Where librarians work: event loops in threads of their own, so that one who blocks keeps nobody waiting.

Invariants
    Whoever has work done waits on their own loop, and gets a result, an exception or TimeoutError in time.
    A floor that does not move is left to itself; what has not begun there, and what comes later, goes to a new one.
Not here
    What the work is: dispatch.py.
"""

import asyncio
import contextlib
import contextvars
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

_Result = TypeVar("_Result")
_STALL_SECONDS = 0.2
"""A floor that has not begun a piece of work after this time is blocked."""
_MAX_FLOORS = 32
"""Threads that may be stuck at once. With so many, work waits until one of them moves."""
_LOOK_AGAIN_SECONDS = 1.0


class _Job(Generic[_Result]):
    """A piece of work, wanted on one loop and done on another."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, _Result]], loop: asyncio.AbstractEventLoop) -> None:
        self.work = work
        self.context = contextvars.copy_context()
        self.loop = loop
        self.result: asyncio.Future[_Result] = loop.create_future()
        self.task: asyncio.Task[None] | None = None
        self.floor: Floor | None = None
        """Where it was begun."""
        self._value: _Result | None = None
        self._fault: BaseException | None = None
        self._is_taken = False
        self._lock = threading.Lock()

    @property
    def is_taken(self) -> bool:
        return self._is_taken

    def take(self, floor: "Floor | None" = None) -> bool:
        """By the floor that begins it, or by whoever gives it up before it began. Only the first one has it."""
        with self._lock:
            first, self._is_taken = not self._is_taken, True
            if first:
                self.floor = floor
            return first

    async def done(self) -> None:
        """On the floor: does the work, and keeps what comes of it."""
        try:
            self._value = await self.work()
        except asyncio.CancelledError as fault:
            self._fault = fault
            raise
        except BaseException as fault:  # noqa: BLE001 - raised again where the result is wanted
            self._fault = fault

    def settle(self) -> None:
        """On the loop where the result is wanted."""
        if self.result.done():
            return
        if self._fault is None:
            self.result.set_result(self._value)  # type: ignore[arg-type]
        elif isinstance(self._fault, asyncio.CancelledError):
            self.result.cancel()
        else:
            self.result.set_exception(self._fault)


class Floor:
    """One event loop in one thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._inbox: deque[_Job[Any]] = deque()
        self._is_called = False
        self._done: dict[asyncio.AbstractEventLoop, list[_Job[Any]]] = {}
        self._is_handing_back = False
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_retired = False
        self._thread = threading.Thread(target=self._run, name="pair-floor", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Not after a fork, for instance."""
        return self._thread.is_alive()

    def submit(self, job: _Job[Any]) -> None:
        self._inbox.append(job)
        # One call wakes the floor for all that came until it looks: waking costs more than the work may take.
        if not self._is_called:
            self._is_called = True
            with contextlib.suppress(RuntimeError):  # closed a moment ago: the job will be moved
                self._loop.call_soon_threadsafe(self._begin)

    def cancel(self, job: _Job[Any]) -> None:
        with contextlib.suppress(RuntimeError):  # closed: nothing runs any more
            self._loop.call_soon_threadsafe(lambda: job.task and job.task.cancel())

    def retire(self) -> None:
        """Finish what has begun, then close."""
        self._is_retired = True
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._close_when_idle)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        while not self._loop.is_closed():
            # A task that raises SystemExit, or stops the loop, ends run_forever; those beside it go on.
            with contextlib.suppress(BaseException):
                self._loop.run_forever()
            if self._is_retired and not self._tasks:
                self._loop.close()

    def _begin(self) -> None:
        self._is_called = False
        while self._inbox:
            job = self._inbox.popleft()
            if job.take(self):
                job.task = self._loop.create_task(self._do(job), context=job.context)
                self._tasks.add(job.task)

    async def _do(self, job: _Job[Any]) -> None:
        try:
            await job.done()
        finally:
            self._finish(job)

    def _finish(self, job: _Job[Any]) -> None:
        self._done.setdefault(job.loop, []).append(job)
        if job.task is not None:
            self._tasks.discard(job.task)
        if not self._is_handing_back:
            self._is_handing_back = True
            self._loop.call_soon(self._hand_back)

    def _hand_back(self) -> None:
        """All that is finished by now together, for the same reason as above."""
        self._is_handing_back = False
        done, self._done = self._done, {}
        for loop, jobs in done.items():
            with contextlib.suppress(RuntimeError):  # nobody is there any more
                loop.call_soon_threadsafe(_settle, jobs)

    def _close_when_idle(self) -> None:
        if self._tasks or self._done or self._inbox or asyncio.all_tasks(self._loop):
            self._loop.call_later(_LOOK_AGAIN_SECONDS, self._close_when_idle)
        else:
            self._loop.stop()


def _settle(jobs: list[_Job[Any]]) -> None:
    for job in jobs:
        job.settle()


class Floors:
    """One floor that work is given to, and those that are stuck. Used from several threads at once."""

    def __init__(self) -> None:
        self._current: Floor | None = None
        self._retired: list[Floor] = []
        self._lock = threading.Lock()

    async def perform(self, work: Callable[[], Coroutine[Any, Any, _Result]], seconds: float) -> _Result:
        """What `work()` gives or raises on a floor; TimeoutError when that is not here in time.

        Work sees the context variables of whoever wants it. It is cancelled when they are.
        """
        loop = asyncio.get_running_loop()
        job = _Job(work, loop)
        post = _Post(self, job, self._open_floor(), loop.time() + seconds)
        post.look_in(min(_STALL_SECONDS, seconds / 4))
        post.floor.submit(job)
        try:
            return await job.result
        except BaseException:
            post.give_up()
            raise
        finally:
            post.close()

    def instead_of(self, stuck: Floor) -> Floor:
        """Another floor, if there may be one more."""
        with self._lock:
            self._retired = [floor for floor in self._retired if floor.is_alive]
            if self._current is stuck and len(self._retired) < _MAX_FLOORS:
                self._retired.append(stuck)
                stuck.retire()
                self._current = Floor()
            return self._current or stuck

    def _open_floor(self) -> Floor:
        floor = self._current
        if floor is not None and floor.is_alive:
            return floor
        with self._lock:
            if self._current is None or not self._current.is_alive:
                self._current = Floor()
            return self._current


class _Post:
    """Looks after a job from the loop where it is wanted."""

    def __init__(self, floors: Floors, job: _Job[Any], floor: Floor, ends_at: float) -> None:
        self.floor = floor
        self._floors = floors
        self._job = job
        self._ends_at = ends_at
        self._timer: asyncio.TimerHandle | None = None

    def look_in(self, seconds: float) -> None:
        self._timer = self._job.loop.call_later(max(0.0, seconds), self._look)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def give_up(self) -> None:
        job = self._job
        if not job.take() and job.floor is not None:
            job.floor.cancel(job)

    def _look(self) -> None:
        job = self._job
        if job.result.done():
            return
        left = self._ends_at - job.loop.time()
        if left <= 0:
            self._floors.instead_of(job.floor or self.floor)
            job.result.set_exception(TimeoutError())
            return
        if not job.is_taken:
            floor = self._floors.instead_of(self.floor)
            if floor is not self.floor:
                # Both floors have it now, and the first to take it does it.
                self.floor = floor
                floor.submit(job)
        self.look_in(left)
