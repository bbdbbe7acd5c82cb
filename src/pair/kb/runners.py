"""Runners of a bulk load: workers that are processes of this machine, or tasks of a Ray cluster.

A process reads tasks from a socket and answers with the built part or an error. It ends with the driver.
Ray runs in a cluster, or is started on this machine for one load.
Invariants
    A process has one task at a time, so that the task of a dead process is known.
"""

import contextlib
import gc
import itertools
import logging
import os
import queue
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pair import errors, files
from pair.clock import SystemClock

if TYPE_CHECKING:
    from pair.engine.write.bulk_load import Built, PartBuilder, Task
    from pair.settings import Settings

_DYING_SECONDS = 5
# Variables that keep libraries from starting a thread on each core.
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
_LEAST_OBJECT_BYTES = 80 << 20
"""Minimum memory that Ray accepts for objects."""
_PARTS_PER_WORKER = 2
"""Number of parts for each worker of Ray: one in progress, and one that waits."""
_SHARED_CACHE = Path(os.path.realpath(tempfile.gettempdir())) / f"pair-cache-{getattr(os, 'getuid', int)()}"
_IDLE_SECONDS = 3600.0
"""Keep shards of earlier loads this long on the machine of a worker."""


@dataclass(frozen=True)
class Setup:
    """The setup of a worker, which is sent between processes."""

    kb_id: str
    settings: "Settings"
    """Settings with absolute paths: a worker may run in another folder."""
    cache: str
    """Folder for shards; empty for a temporary one on the machine of the worker."""


# ── processes ──────────────────────────────────────────────────────────────────────────────────────


class ProcessRunner:
    """A runner with processes. Starts workers for the first task, and ends them with the block."""

    def __init__(self, setup: Setup, workers: int, attempts: int) -> None:
        """Create a runner; nothing is started yet. `attempts`: how many workers may die on one task."""
        self._setup = setup
        self.workers = workers
        self._attempts = attempts
        self._running: list[_Worker] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._running:
            worker.end()
        self._running.clear()

    def expect_work(self) -> None:
        while len(self._running) < self.workers:
            self._running.append(_Worker(self._setup))

    def built(self, tasks: "Iterator[Task]") -> "Iterator[Built]":
        ready: deque[Task] = deque()
        deaths: dict[int, int] = {}
        is_planned = False
        while True:
            while not is_planned and len(ready) < self.workers:
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
        """Yield finished tasks; repeat a task whose worker died. Raises errors of workers, and E216."""
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
    """The driver's handle of one worker."""

    def __init__(self, setup: Setup) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            code = f"import sys; sys.path[:] = {sys.path!r}; from pair.kb.runners import serve; serve(0)"
            # Ctrl-C does not reach another session: the driver decides when the worker ends.
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
        """Return the answer; None if the worker died."""
        try:
            answer: Built | errors.PairError = self.connection.recv()
        except (EOFError, OSError):
            return None
        self.task = None
        return answer

    def describe_death(self) -> str:
        """Return how a worker without an answer ended."""
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
        with contextlib.suppress(OSError):  # `answer` reports the death of the worker
            self.connection.send(value)


# ── Ray ────────────────────────────────────────────────────────────────────────────────────────────


class RayRunner:
    """A runner on Ray. Connects with the block, and does not change a cluster."""

    def __init__(self, setup: Setup, workers: int, attempts: int) -> None:
        """Create a runner; it connects later. `workers`: 0 for one per core of the cluster. `attempts`: workers that
        may die on one task.
        """
        self._setup = setup
        self._wanted = workers
        self._attempts = attempts
        self.workers = workers

    def __enter__(self) -> Self:
        address = self._setup.settings.engine.ray_address
        try:
            if address:
                self._ray().init(address=address, log_to_driver=False, logging_level=logging.ERROR)
            else:
                self._start()
        except (ConnectionError, ValueError, RuntimeError) as fault:
            raise errors.settings_invalid("engine.ray_address", f"Ray cannot be used: {fault}") from fault
        self.workers = self._wanted or max(1, int(self._ray().cluster_resources().get("CPU", 1)))
        return self

    def _start(self) -> None:
        """Start Ray for this process. Ray listens on every address, so it gets a token, before it is imported."""
        if "ray" not in sys.modules:
            os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex())
        from pair.kb.open import cores  # noqa: PLC0415 - as in `make_part_builder`

        part_bytes = self._setup.settings.engine.build_part_bytes
        self._ray().init(
            num_cpus=self._wanted or None,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            object_store_memory=_LEAST_OBJECT_BYTES + (self._wanted or cores()) * _PARTS_PER_WORKER * 2 * part_bytes,
        )

    def _ray(self) -> Any:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Send no usage statistics.
        import ray  # noqa: PLC0415 - see `_start`

        return ray

    def __exit__(self, *_: object) -> None:
        self._ray().shutdown()

    def expect_work(self) -> None:
        """Do nothing: Ray starts its processes."""

    def built(self, tasks: "Iterator[Task]") -> "Iterator[Built]":
        ray = self._ray()
        setup = ray.put(self._setup)
        build: Any = ray.remote(num_cpus=1, max_retries=self._attempts - 1)(_build)
        running: dict[Any, Task] = {}
        while True:
            for task in itertools.islice(tasks, self.workers * _PARTS_PER_WORKER - len(running)):
                running[build.remote(setup, task)] = task
            if not running:
                return
            [done], _ = ray.wait(list(running), num_returns=1)
            yield self._answer(done, running.pop(done))

    def _answer(self, reference: Any, task: "Task") -> "Built":
        ray = self._ray()
        try:
            answer: Built | errors.PairError = ray.get(reference)
        except ray.exceptions.RayTaskError:
            raise  # A bug in our own code.
        except ray.exceptions.RayError as fault:
            reason = f"died: {str(fault).partition(chr(10))[0]}"
            raise errors.workers_died(task.number + 1, self._attempts, reason) from fault
        if isinstance(answer, errors.PairError):
            raise answer
        return answer


# ── in the worker ──────────────────────────────────────────────────────────────────────────────────


def make_part_builder(setup: Setup) -> "PartBuilder":
    """Return a builder that uses one thread: there are as many workers as cores."""
    # Loaded after the thread of `serve` listens, so that the driver need not wait to send.
    from pair.ai.caching_embedder import CachingEmbedder  # noqa: PLC0415
    from pair.engine.storage.shard_cache import ShardCache  # noqa: PLC0415
    from pair.engine.write.bulk_load import PartBuilder  # noqa: PLC0415
    from pair.engine.write.prepare import Preparation  # noqa: PLC0415
    from pair.kb.open import blob_store, choose_embedder, grapher, new_id  # noqa: PLC0415

    settings, clock = setup.settings, SystemClock()
    embedding = CachingEmbedder(choose_embedder(settings, threads=1))
    store = blob_store(settings.engine.store, settings, clock)
    folder = Path(setup.cache) if setup.cache else _open_shared_cache()
    cache = ShardCache(store, folder, clock, ttl_seconds=0 if setup.cache else _IDLE_SECONDS)
    cache.keep_within_limits()
    return PartBuilder(
        setup.kb_id,
        settings.engine,
        store,
        Preparation(setup.kb_id, settings.engine.chunker, embedding, grapher(settings)),
        clock,
        new_id,
        cache,
    )


def _open_shared_cache() -> Path:
    """Return a temporary folder for shards that no other user can write to. Raises E026."""
    with files.storage_errors(), files.open_folder(_SHARED_CACHE, make=True) as descriptor:
        if os.fstat(descriptor).st_uid != os.getuid():
            raise files.foreign_file(_SHARED_CACHE)
        os.fchmod(descriptor, 0o700)
    return _SHARED_CACHE


def build_part(task: "Task", builder: "PartBuilder") -> "Built | errors.PairError":
    """Build one part, and close the shards that it opened: the driver evicts merged ones."""
    gc.disable()  # Searching millions of small values for cycles takes 10 % of the time.
    try:
        return builder.build(task)
    except errors.PairError as fault:
        return fault
    finally:
        builder.cache.close()
        gc.enable()
        gc.collect()


def serve(descriptor: int) -> None:
    """Serve tasks until the driver ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = Connection(descriptor)
    received: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(connection, received), daemon=True).start()
    refusal, builder = None, None
    try:
        builder = make_part_builder(received.get())
    except errors.PairError as fault:
        refusal = fault
    while True:
        task = received.get()
        connection.send(refusal if builder is None else build_part(task, builder))


def _receive(connection: Connection, received: "queue.SimpleQueue[Any]") -> None:
    """Receive in a thread, so that a worker ends with its driver even during a task."""
    try:
        while True:
            received.put(connection.recv())
    except (EOFError, OSError):
        os._exit(0)


_last: "list[tuple[Setup, PartBuilder]]" = []
"""The last builder: a process of Ray builds many parts."""


def _build(setup: Setup, task: "Task") -> "Built | errors.PairError":
    try:
        if not _last or _last[0][0] != setup:
            _last[:] = [(setup, make_part_builder(setup))]
    except errors.PairError as fault:
        return fault
    return build_part(task, _last[0][1])
