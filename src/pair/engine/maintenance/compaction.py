"""Compaction: merge and re-cluster shards without blocking readers and writers, then publish the new shards.

Invariants
    Building needs no lease. At the end, documents that were deleted during the build are deleted in the new shards.
    Compaction starts again if the manifest no longer names a source shard, if deleted documents of a source shard came
    back, or if garbage was collected.
"""

import contextlib
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from pair import errors
from pair.clock import to_timestamp
from pair.engine import rules
from pair.engine.format.columns import NO_GRAPHS, StoredDocuments
from pair.engine.format.manifest import Manifest, ShardRef
from pair.engine.format.vectors import Grouping, sample_size
from pair.engine.storage.manifest_store import PendingShards, StoredManifest
from pair.engine.storage.shard_cache import ShardMissingError
from pair.engine.write.bulk_load import Merge, Runner, merge_shards
from pair.engine.write.commit import Change, EngineContext, commit_under, evict_dropped, refuse_lost_shard
from pair.engine.write.writer import Numbers, live_numbers, scratch_folder

_TRIES = 5
_Number = TypeVar("_Number", np.float32, np.int64)


@dataclass(frozen=True, slots=True)
class CompactionReport:
    reason: str
    shards_before: int = 0
    """Number of replaced shards."""
    shards_after: int = 0
    """Number of new shards."""
    documents: int = 0
    manifest_version: int = 0
    conflicts: int = 0


@dataclass(frozen=True, slots=True)
class Output:
    """A new shard and the sources of its documents."""

    ref: ShardRef
    members: Sequence[tuple[ShardRef, Numbers]]
    """Source shards, and the numbers of the documents in them, in the order of the new shard."""
    collections: int
    """Number of garbage collections before the upload."""


@dataclass
class Group:
    """The documents of one new shard."""

    run: str
    members: list[tuple[ShardRef, Numbers]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class BulkMerge:
    """Workers that build the new shards, and the records of unpublished shards."""

    runner: Runner
    records: PendingShards


@dataclass(frozen=True, eq=False)
class Compactor:
    context: EngineContext
    on_progress: Callable[[int, int], None] = lambda done, total: None
    help_from: BulkMerge | None = None

    def compact(self, *, everything: bool = False) -> CompactionReport:
        """Compact the shards that need it most, or all. Raises E201, E202, E203, E206, E207, E208, E210."""
        context = self.context
        context.manifests.refuse_past()
        for conflicts in range(_TRIES):
            before = context.manifests.require_for_write()
            context.cache.keep_only(before.manifest.folders)
            plan = rules.plan_compaction(before.manifest, context.settings, everything=everything)
            if not plan.shards:
                return CompactionReport(plan.reason, manifest_version=before.manifest.number, conflicts=conflicts)
            try:
                return replace(self._carry_out(before, plan), conflicts=conflicts)
            except errors.ConflictError as fault:
                if fault.code in {errors.PUBLISH_UNKNOWN, errors.LEASE_HELD} or conflicts == _TRIES - 1:
                    raise
            except ShardMissingError as fault:
                refuse_lost_shard(context, before, fault)
            context.pause(conflicts + 1)
        raise errors.manifest_changed(context.kb_id)

    def _carry_out(self, before: StoredManifest, plan: rules.CompactionPlan) -> CompactionReport:
        context, commit_id = self.context, self.context.new_id()
        groups = self._group(plan, commit_id)
        tasks = [Merge(number, commit_id, group.run, tuple(group.members)) for number, group in enumerate(groups)]
        refs: dict[int, ShardRef] = {}
        self.on_progress(0, len(tasks))
        with contextlib.ExitStack() as cleanup:
            if self.help_from is not None and len(tasks) > 1:
                for done in self.help_from.runner.built(iter(tasks)):
                    cleanup.callback(self.help_from.records.forget, done.record)
                    refs[done.number] = done.shards[0]
                    self.on_progress(len(refs), len(tasks))
            else:
                with scratch_folder(context.cache) as folder:
                    for task in tasks:
                        built = merge_shards(folder / str(task.number), context.kb_id, task, context.cache)
                        context.manifests.upload([built])
                        shutil.rmtree(folder / str(task.number))
                        refs[task.number] = replace(built.ref, created_at=to_timestamp(context.clock.now()))
                        self.on_progress(len(refs), len(tasks))
            collections = before.manifest.collections
            outputs = [Output(refs[task.number], task.members, collections) for task in tasks]
            published = self._publish(before.manifest, plan.shards, outputs, commit_id)
        return CompactionReport(
            reason=plan.reason,
            shards_before=len(plan.shards),
            shards_after=len(outputs),
            documents=sum(ref.documents for ref in refs.values()),
            manifest_version=published.number,
        )

    def _publish(
        self, before: Manifest, replaced: Sequence[ShardRef], outputs: Sequence[Output], commit_id: str
    ) -> Manifest:
        """Wait for the lease as a writer does, and publish the new shards."""
        context, folders = self.context, {shard.folder for shard in replaced}

        def change(manifest: Manifest) -> Change[None]:
            current = {shard.folder: shard for shard in manifest.shards}
            is_same = manifest.collections == before.collections and folders <= current.keys()
            if not (is_same and are_whole_in(outputs, [current[folder] for folder in folders])):
                raise errors.manifest_changed(context.kb_id)
            shards = [shard for shard in manifest.shards if shard.folder not in folders]
            shards += [apply_late_deletes(output, current) for output in outputs]
            return Change(manifest.make_next(commit_id, context.manifests.now(), shards, "compact"), None)

        with context.hold_lease() as lease:
            published = commit_under(lease, context, change).manifest
        context.on_step("compacted")
        evict_dropped(context)
        return published

    def _group(self, plan: rules.CompactionPlan, commit_id: str) -> list[Group]:
        members = [(shard, live_numbers(shard)) for shard in plan.shards if shard.live_documents]
        if plan.reason in {"tombstone_pressure", "keywords_missing"}:
            return [Group(shard.run, [(shard, numbers)]) for shard, numbers in members]
        rows = sum(shard.live_rows for shard in plan.shards)
        count = rules.count_cuts(rows, count_live_bytes(plan.shards), self.context.settings)
        if count == 1:
            return [Group("", members)] if members else []
        per_shard = max(1, sample_size(count) // len(plan.shards))
        cache = self.context.cache
        sample = [take_evenly(cache.open(shard).search(0.0).vectors, per_shard) for shard in plan.shards]
        grouping = Grouping(np.concatenate(sample), count, rows)
        documents = (cache.open(shard).search(0.0).documents(numbers, NO_GRAPHS) for shard, numbers in members)
        return assign_groups(members, documents, grouping, commit_id)


def count_live_bytes(shards: Iterable[ShardRef]) -> int:
    """Estimate the bytes of the live documents."""
    return sum(round(shard.size_bytes * (1 - shard.tombstone_ratio)) for shard in shards)


def take_evenly(rows: npt.NDArray[_Number], count: int) -> npt.NDArray[_Number]:
    """Return at most `count` rows, evenly spread."""
    if len(rows) <= count:
        return np.array(rows)
    return rows[np.linspace(0, len(rows) - 1, count).astype(np.int64)]


def assign_groups(
    members: Sequence[tuple[ShardRef, Numbers]], documents: Iterable[StoredDocuments], grouping: Grouping, run: str
) -> list[Group]:
    """Put each document into the nearest group. Read one shard at a time."""
    groups: dict[int, Group] = {}
    for (shard, numbers), stored in zip(members, documents, strict=True):
        assigned = grouping.assign(stored.mean_vectors(), stored.chunk_counts())
        for group in np.unique(assigned).tolist():
            groups.setdefault(group, Group(run)).members.append((shard, numbers[assigned == group]))
    return [groups[number] for number in sorted(groups)]


def are_whole_in(outputs: Iterable[Output], shards: Iterable[ShardRef]) -> bool:
    """Return whether every live document of these shards is in an output. After a rollback, some may be missing."""
    taken: dict[str, list[Numbers]] = {}
    for output in outputs:
        for shard, numbers in output.members:
            taken.setdefault(shard.folder, []).append(numbers)
    nothing = np.empty(0, np.int64)
    return all(
        np.isin(live_numbers(shard), np.concatenate([nothing, *taken.get(shard.folder, ())])).all() for shard in shards
    )


def apply_late_deletes(output: Output, current: Mapping[str, ShardRef]) -> ShardRef:
    """Delete the documents of a new shard that were deleted during its build. `current`: shards by folder.

    If the manifest no longer names a source shard, its documents are deleted here: another shard has them.
    """
    gone: list[int] = []
    begin = 0
    for shard, numbers in output.members:
        if shard.folder not in current:
            gone += range(begin, begin + len(numbers))
        elif (tombstones := current[shard.folder].tombstones) is not None:
            gone += (begin + np.flatnonzero(tombstones[numbers])).tolist()
        begin += len(numbers)
    return output.ref.without(gone) if gone else output.ref
