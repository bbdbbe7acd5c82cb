"""Merge and re-cluster shards while readers and writers go on, then publish what is left of them.

Invariants
    The long part needs no lease. At the end, what was deleted meanwhile is deleted in the new shards too.
    When a shard that was read is gone from the manifest, or holds again what was deleted from it, or garbage was
    collected meanwhile, it all starts over.
"""

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from pair import errors
from pair.clock import to_timestamp
from pair.engine import rules
from pair.engine.format.columns import NO_GRAPHS
from pair.engine.format.manifest import Manifest, ShardRef
from pair.engine.format.vectors import Grouping, sample_size
from pair.engine.storage.manifest_store import StoredManifest
from pair.engine.storage.pending_shards import PendingShards
from pair.engine.storage.shard_cache import ShardMissingError
from pair.engine.write.bulk_runner import Merge, Runner
from pair.engine.write.writer import EngineContext, forget_dropped, merged_shard, scratch_folder

_TRIES = 5
_Number = TypeVar("_Number", np.float32, np.int64)


@dataclass(frozen=True, slots=True)
class CompactionReport:
    reason: str
    shards_before: int = 0
    """That were replaced."""
    shards_after: int = 0
    """That replaced them."""
    documents: int = 0
    manifest_version: int = 0
    conflicts: int = 0


@dataclass(frozen=True, slots=True)
class Output:
    """A new shard, and where its documents come from."""

    ref: ShardRef
    origins: tuple[tuple[str, npt.NDArray[np.int64]], ...]
    """Folder of the shard that documents came from, and their numbers there, in the order of their numbers here."""


@dataclass
class Group:
    """Documents that go into one new shard."""

    run: str
    members: list[tuple[ShardRef, npt.NDArray[np.int64]]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class BulkMerge:
    """Workers who build the new shards, and where what they build is noted until it is published."""

    runner: Runner
    records: PendingShards


class Compactor:
    def __init__(
        self,
        parts: EngineContext,
        on_progress: Callable[[int, int], None] = lambda done, total: None,
        help_from: BulkMerge | None = None,
    ) -> None:
        self._parts = parts
        self._on_progress = on_progress
        self._help = help_from

    def compact(self, *, everything: bool = False, min_shards: int | None = None) -> CompactionReport:
        """Pay the most urgent debt, or all. Raises E201, E202, E203, E206, E207, E208, E210."""
        self._parts.publication.refuse_past()
        for conflicts in range(_TRIES):
            before = self._parts.publication.require_for_write()
            self._parts.cache.keep_only(before.manifest.folders)
            plan = rules.plan_compaction(
                before.manifest, self._parts.policy, everything=everything, min_shards=min_shards
            )
            if not plan.shards:
                return CompactionReport(plan.reason, manifest_version=before.manifest.number, conflicts=conflicts)
            try:
                return replace(self._carry_out(before, plan), conflicts=conflicts)
            except errors.ConflictError as fault:
                if fault.code in {errors.PUBLISH_UNKNOWN, errors.LEASE_HELD} or conflicts == _TRIES - 1:
                    raise
            except ShardMissingError as fault:
                if self._parts.publication.require().version == before.version:
                    raise errors.stored_data_damaged(str(fault), "it is not in the store any more") from fault
            self._parts.pause(conflicts + 1)
        raise errors.manifest_changed(self._parts.kb_id)

    def _carry_out(self, before: StoredManifest, plan: rules.CompactionPlan) -> CompactionReport:
        commit_id = self._parts.new_id()
        groups = self._groups(plan, commit_id)
        tasks = [Merge(number, commit_id, group.run, tuple(group.members)) for number, group in enumerate(groups)]
        if self._help is not None and len(tasks) > 1:
            return self._carry_out_with(self._help, before, plan, tasks)
        with scratch_folder(self._parts.cache) as folder:
            outputs = [self._build(folder / str(task.number), task, len(tasks)) for task in tasks]
        return self._finish(before, plan, outputs, commit_id)

    def _carry_out_with(
        self, helpers: BulkMerge, before: StoredManifest, plan: rules.CompactionPlan, tasks: Sequence[Merge]
    ) -> CompactionReport:
        outputs: dict[int, Output] = {}
        records: list[str] = []
        try:
            for built in helpers.runner.built(iter(tasks)):
                records.append(built.record)
                outputs[built.number] = Output(built.shards[0], _origins(tasks[built.number]))
                self._on_progress(len(outputs), len(tasks))
            ordered = [outputs[number] for number in sorted(outputs)]
            return self._finish(before, plan, ordered, tasks[0].commit_id)
        finally:
            for record in records:
                helpers.records.forget(record)

    def _finish(
        self, before: StoredManifest, plan: rules.CompactionPlan, outputs: Sequence[Output], commit_id: str
    ) -> CompactionReport:
        published = self._publish(before, plan.shards, outputs, commit_id)
        return CompactionReport(
            reason=plan.reason,
            shards_before=len(plan.shards),
            shards_after=len(outputs),
            documents=sum(each.ref.documents for each in outputs),
            manifest_version=published.manifest.number,
        )

    # Which document goes where

    def _groups(self, plan: rules.CompactionPlan, commit_id: str) -> list[Group]:
        if plan.reason in {"tombstone_pressure", "keywords_missing"}:
            return [Group(shard.run, [(shard, live_numbers(shard))]) for shard in plan.shards if shard.live_documents]
        live_bytes = sum(round(shard.size_bytes * (1 - shard.tombstone_ratio)) for shard in plan.shards)
        count = rules.count_cuts(sum(shard.live_rows for shard in plan.shards), live_bytes, self._parts.policy)
        if count == 1:
            members = [(shard, live_numbers(shard)) for shard in plan.shards if shard.live_documents]
            return [Group("", members)] if members else []
        return self._clustered(plan.shards, count, commit_id)

    def _clustered(self, shards: Sequence[ShardRef], count: int, commit_id: str) -> list[Group]:
        """Shard by shard, so that no more than one is in memory."""
        parts = self._parts
        per_shard = max(1, sample_size(count) // len(shards))
        sample = [sampled(parts.cache.open(shard).search(0.0).vectors, per_shard) for shard in shards]
        weight = sum(shard.live_rows for shard in shards)
        grouping = Grouping(np.concatenate(sample), count, weight)
        groups = [Group(commit_id) for _ in range(count)]
        for shard in shards:
            numbers = live_numbers(shard)
            if not len(numbers):
                continue
            documents = parts.cache.open(shard).search(0.0).documents(numbers, NO_GRAPHS)
            chosen = grouping.assign(documents.mean_vectors(), documents.chunk_counts())
            for group in np.unique(chosen):
                groups[group].members.append((shard, numbers[chosen == group]))
        return [group for group in groups if group.members]

    # Building and publishing

    def _build(self, folder: Path, task: Merge, total: int) -> Output:
        parts = self._parts
        built = merged_shard(folder, parts.kb_id, task, parts.cache)
        parts.publication.upload([built])
        shutil.rmtree(folder)
        self._on_progress(task.number + 1, total)
        return Output(replace(built.ref, created_at=to_timestamp(parts.clock.now())), _origins(task))

    def _publish(
        self, before: StoredManifest, replaced: Sequence[ShardRef], outputs: Sequence[Output], commit_id: str
    ) -> StoredManifest:
        """Waits for the lease as a writer does: what was built stays good while others write."""
        parts = self._parts
        with parts.hold_lease() as lease:
            parts.on_step("read")
            now = parts.publication.require()
            shards = _rebased(now.manifest, before.manifest, replaced, outputs)
            if shards is None:
                raise errors.manifest_changed(parts.kb_id)
            after = now.manifest.make_next(commit_id, parts.publication.now(), shards, "compact")
            lease.check()
            published = parts.publication.swap(now, after)
            parts.on_step("swapped")
        parts.on_step("compacted")
        forget_dropped(parts)
        return published


def _origins(task: Merge) -> tuple[tuple[str, npt.NDArray[np.int64]], ...]:
    return tuple((shard.folder, numbers) for shard, numbers in task.members)


def live_numbers(shard: ShardRef) -> npt.NDArray[np.int64]:
    return np.arange(shard.documents) if shard.tombstones is None else np.flatnonzero(~shard.tombstones)


def sampled(rows: npt.NDArray[_Number], count: int) -> npt.NDArray[_Number]:
    if len(rows) <= count:
        return np.array(rows)
    return rows[np.linspace(0, len(rows) - 1, count).astype(np.int64)]


def _rebased(
    now: Manifest, before: Manifest, replaced: Sequence[ShardRef], outputs: Sequence[Output]
) -> list[ShardRef] | None:
    """The shards of the next manifest; None when the work was done on something that is no longer there."""
    current = {shard.folder: shard for shard in now.shards}
    folders = {shard.folder for shard in replaced}
    if now.collections != before.collections or not folders <= current.keys():
        return None
    if not are_whole_in(outputs, [current[folder] for folder in folders]):
        return None
    kept = [shard for shard in now.shards if shard.folder not in folders]
    return kept + [with_late_deletes(output, current) for output in outputs]


def are_whole_in(outputs: Iterable[Output], shards: Iterable[ShardRef]) -> bool:
    """Whether each document that is live in these shards is in an output; not, when a roll-back brought some back."""
    taken: dict[str, list[npt.NDArray[np.int64]]] = {}
    for output in outputs:
        for folder, numbers in output.origins:
            taken.setdefault(folder, []).append(numbers)
    nothing = np.empty(0, np.int64)
    return all(
        np.isin(live_numbers(shard), np.concatenate([nothing, *taken.get(shard.folder, ())])).all() for shard in shards
    )


def with_late_deletes(output: Output, current: Mapping[str, ShardRef]) -> ShardRef:
    """`current`: shards by folder. What was in one that is no longer there is gone from here: it is somewhere else."""
    gone: list[int] = []
    begin = 0
    for folder, numbers in output.origins:
        if folder not in current:
            gone += range(begin, begin + len(numbers))
        elif (tombstones := current[folder].tombstones) is not None:
            gone += (begin + np.flatnonzero(tombstones[numbers])).tolist()
        begin += len(numbers)
    return output.ref.without(gone) if gone else output.ref
