"""Workers that are processes of this machine.

A worker reads tasks from a socket and answers with what it built, or with an error. It ends with the driver.
Invariants
    A worker has one task at a time, so that it is known which task it died on.
"""

import contextlib
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any, Self

from pair import errors

if TYPE_CHECKING:
    from pair.engine.write.bulk_load import Built, Task
    from pair.kb.runners.worker import Setup

_DYING_SECONDS = 5
# Libraries that would start a thread on each core.
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


class ProcessRunner:
    """Starts workers when there is work, and ends them with the context."""

    def __init__(self, setup: "Setup", workers: int, attempts: int) -> None:
        """`attempts`: how many workers may die on one task."""
        self._setup = setup
        self._workers = workers
        self._attempts = attempts
        self._running: list[_Worker] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for worker in self._running:
            worker.end()
        self._running.clear()

    @property
    def workers(self) -> int:
        return self._workers

    def expect_work(self) -> None:
        while len(self._running) < self._workers:
            self._running.append(_Worker(self._setup))

    def built(self, tasks: "Iterator[Task]") -> "Iterator[Built]":
        ready: deque[Task] = deque()
        deaths: dict[int, int] = {}
        is_planned = False
        while True:
            while not is_planned and len(ready) < self._workers:
                task = next(tasks, None)
                is_planned = task is None
                if task is not None:
                    ready.append(task)
                    self._hand_out(ready)
                yield from self._answers(ready, deaths, timeout=0)
            self._hand_out(ready)
            if not any(worker.task for worker in self._running):
                return
            yield from self._answers(ready, deaths, timeout=None)

    def _hand_out(self, ready: "deque[Task]") -> None:
        if ready:
            self.expect_work()
        for worker in self._running:
            if ready and worker.task is None:
                worker.begin(ready.popleft())

    def _answers(self, ready: "deque[Task]", deaths: dict[int, int], timeout: float | None) -> "Iterator[Built]":
        """Yield finished tasks; a task whose worker died is next again. Raises errors of workers, and E216."""
        busy: dict[Any, _Worker] = {worker.connection: worker for worker in self._running if worker.task}
        for connection in wait(list(busy), timeout):
            worker = busy[connection]
            task = worker.task
            answer = worker.answer()
            if answer is not None:
                if isinstance(answer, errors.PairError):
                    raise answer
                yield answer
            elif task is not None:
                reason = worker.describe_death()
                self._running.remove(worker)
                deaths[task.number] = deaths.get(task.number, 0) + 1
                if deaths[task.number] >= self._attempts:
                    raise errors.workers_died(task.number + 1, deaths[task.number], reason)
                ready.appendleft(task)
                self._hand_out(ready)


class _Worker:
    """One worker, as the driver sees it."""

    def __init__(self, setup: "Setup") -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            code = f"import sys; sys.path[:] = {sys.path!r}; from pair.kb.runners.processes import serve; serve(0)"
            # Ctrl-C does not reach its own session: the driver decides when it ends.
            self._process = subprocess.Popen(  # noqa: S603 - ourselves
                [sys.executable, "-c", code],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                env=os.environ | _ONE_THREAD,
                start_new_session=True,
            )
        self.connection = Connection(ours.detach())
        self.task: Task | None = None
        self._send(setup)

    def begin(self, task: "Task") -> None:
        self.task = task
        self._send(task)

    def answer(self) -> "Built | errors.PairError | None":
        """Return the answer; None when the worker died."""
        try:
            answer: Built | errors.PairError = self.connection.recv()
        except (EOFError, OSError):
            return None
        self.task = None
        return answer

    def describe_death(self) -> str:
        """Tell how a worker ended that did not answer."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_DYING_SECONDS)
        self.end()
        status = self._process.returncode
        return f"ended with status {status}" if status >= 0 else f"was ended by {signal.Signals(-status).name}"

    def end(self) -> None:
        self.connection.close()
        self._process.kill()
        self._process.wait()

    def _send(self, value: "Setup | Task") -> None:
        with contextlib.suppress(OSError):  # it died, and its answer tells so
            self.connection.send(value)


# ── in the worker ──────────────────────────────────────────────────────────────────────────────────


def serve(descriptor: int) -> None:
    """Serve tasks until the driver ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = Connection(descriptor)
    received: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(connection, received), daemon=True).start()
    # Loaded after the thread listens, so that the driver can send meanwhile.
    from pair.kb.runners.worker import build_part, make_part_builder  # noqa: PLC0415

    setup = received.get()
    refusal, builder = None, None
    try:
        builder = make_part_builder(setup)
    except errors.PairError as fault:
        refusal = fault
    while True:
        task = received.get()
        connection.send(refusal if builder is None else build_part(task, builder))


def _receive(connection: Connection, received: "queue.SimpleQueue[Any]") -> None:
    """Receive in a thread, so that a worker ends with its driver also in the middle of a task."""
    try:
        while True:
            received.put(connection.recv())
    except (EOFError, OSError):
        os._exit(0)
