"""Workers that are tasks of a Ray cluster, or of a Ray that is started on this machine for as long as it takes."""

import logging
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Self

import ray
from ray.exceptions import RayError, RayTaskError

from pair import build_errors, errors
from pair.wiring.workers import Setup, answer_to, part_builder

if TYPE_CHECKING:
    from pair.engine.contract import Built, Task
    from pair.engine.part_builder import PartBuilder

_LEAST_OBJECT_BYTES = 80 << 20
"""That Ray wants for the values that travel."""
_PARTS_UNDER_WAY = 2
"""For each worker: one that is built, and one that is on its way to it."""


class RayRunner:
    """Connects with the context, and leaves a cluster as it was."""

    def __init__(self, setup: Setup, workers: int, attempts: int) -> None:
        """`workers`: 0 for as many as the cluster has cores. `attempts`: how many workers may die over one task."""
        self._setup = setup
        self._wanted = workers
        self._attempts = attempts
        self._workers = workers

    def __enter__(self) -> Self:
        policy = self._setup.settings.engine
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # it would tell its makers
        try:
            if policy.ray_address:
                ray.init(address=policy.ray_address, log_to_driver=False, logging_level=logging.ERROR)
            else:
                ray.init(
                    num_cpus=self._wanted or None,
                    include_dashboard=False,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    object_store_memory=_LEAST_OBJECT_BYTES + self._under_way() * 2 * policy.build_part_bytes,
                    _node_ip_address="127.0.0.1",
                )
        except (ConnectionError, RayError, ValueError) as fault:
            raise errors.settings_invalid("engine.ray_address", f"Ray cannot be used: {fault}") from fault
        resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        self._workers = self._wanted or max(1, int(resources.get("CPU", 1)))
        return self

    def __exit__(self, *_: object) -> None:
        ray.shutdown()

    @property
    def workers(self) -> int:
        return self._workers

    def expect_work(self) -> None:
        """Ray starts its processes by itself."""

    def built(self, tasks: "Iterator[Task]") -> "Iterator[Built]":
        setup = ray.put(self._setup)
        build: Any = ray.remote(num_cpus=1, max_retries=self._attempts - 1)(_build)
        under_way: dict[Any, Task] = {}
        is_planned = False
        while True:
            while not is_planned and len(under_way) < self._under_way():
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
        try:
            answer: Built | errors.PairError = ray.get(reference)
        except RayTaskError:
            raise  # a bug in what we do there
        except RayError as fault:
            reason = f"died: {str(fault).partition(chr(10))[0]}"
            raise build_errors.workers_died(task.number + 1, self._attempts, reason) from fault
        if isinstance(answer, errors.PairError):
            raise answer
        return answer

    def _under_way(self) -> int:
        return max(1, self._workers) * _PARTS_UNDER_WAY


# ── in the worker ──────────────────────────────────────────────────────────────────────────────────


_kept: "list[tuple[Setup, PartBuilder]]" = []
"""The last one that was made: a process of Ray builds many parts."""


def _build(setup: Setup, task: "Task") -> "Built | errors.PairError":
    try:
        if not _kept or _kept[0][0] != setup:
            _kept[:] = [(setup, part_builder(setup))]
    except errors.PairError as fault:
        return fault
    return answer_to(task, _kept[0][1], evict=True)
