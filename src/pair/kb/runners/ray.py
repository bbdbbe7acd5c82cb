"""Workers that are tasks of a Ray cluster, or of a Ray that is started on this machine for one load."""

import logging
import os
import secrets
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Self

from pair import errors
from pair.kb.open import cores
from pair.kb.runners.worker import Setup, build_part, make_part_builder

if TYPE_CHECKING:
    from pair.engine.write.bulk_load import Built, PartBuilder, Task

_LEAST_OBJECT_BYTES = 80 << 20
"""The least memory that Ray wants for objects."""
_PARTS_UNDER_WAY = 2
"""For each worker: one that is built, and one that waits."""


class RayRunner:
    """Connects with the context, and leaves a cluster as it was found."""

    def __init__(self, setup: Setup, workers: int, attempts: int) -> None:
        """`workers`: 0 for as many as the cluster has cores. `attempts`: how many workers may die on one task."""
        self._setup = setup
        self._wanted = workers
        self._attempts = attempts
        self._workers = workers

    def __enter__(self) -> Self:
        address = self._setup.settings.engine.ray_address
        try:
            if address:
                self._ray().init(address=address, log_to_driver=False, logging_level=logging.ERROR)
            else:
                self._start()
        except (ConnectionError, ValueError, RuntimeError) as fault:
            raise errors.settings_invalid("engine.ray_address", f"Ray cannot be used: {fault}") from fault
        self._workers = self._wanted or max(1, int(self._ray().cluster_resources().get("CPU", 1)))
        return self

    def _start(self) -> None:
        """Start Ray for this process. It listens on every address of the machine, but only accepts its token.

        The token counts only if it is set before Ray is imported.
        """
        if "ray" not in sys.modules:
            os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex())
        part_bytes = self._setup.settings.engine.build_part_bytes
        self._ray().init(
            num_cpus=self._wanted or None,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            object_store_memory=_LEAST_OBJECT_BYTES + (self._wanted or cores()) * _PARTS_UNDER_WAY * 2 * part_bytes,
        )

    def _ray(self) -> Any:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no usage statistics are sent
        import ray  # noqa: PLC0415 - see `_start`

        return ray

    def __exit__(self, *_: object) -> None:
        self._ray().shutdown()

    @property
    def workers(self) -> int:
        return self._workers

    def expect_work(self) -> None:
        """Ray starts its processes by itself."""

    def built(self, tasks: "Iterator[Task]") -> "Iterator[Built]":
        ray = self._ray()
        setup = ray.put(self._setup)
        build: Any = ray.remote(num_cpus=1, max_retries=self._attempts - 1)(_build)
        under_way: dict[Any, Task] = {}
        is_planned = False
        while True:
            while not is_planned and len(under_way) < self._workers * _PARTS_UNDER_WAY:
                task = next(tasks, None)
                is_planned = task is None
                if task is not None:
                    under_way[build.remote(setup, task)] = task
            if not under_way:
                return
            done, _ = ray.wait(list(under_way), num_returns=1)
            task = under_way.pop(done[0])
            yield self._answer(done[0], task)

    def _answer(self, reference: Any, task: "Task") -> "Built":
        ray = self._ray()
        try:
            answer: Built | errors.PairError = ray.get(reference)
        except ray.exceptions.RayTaskError:
            raise  # a bug in our own code
        except ray.exceptions.RayError as fault:
            reason = f"died: {str(fault).partition(chr(10))[0]}"
            raise errors.workers_died(task.number + 1, self._attempts, reason) from fault
        if isinstance(answer, errors.PairError):
            raise answer
        return answer


# ── in the worker ──────────────────────────────────────────────────────────────────────────────────


_last: "list[tuple[Setup, PartBuilder]]" = []
"""The last builder: a process of Ray builds many parts."""


def _build(setup: Setup, task: "Task") -> "Built | errors.PairError":
    try:
        if not _last or _last[0][0] != setup:
            _last[:] = [(setup, make_part_builder(setup))]
    except errors.PairError as fault:
        return fault
    return build_part(task, _last[0][1])
