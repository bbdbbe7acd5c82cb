"""Merge and re-cluster shards while readers and writers go on, then publish what is left of them.

Invariants
    The long part needs no lease. At the end, what was deleted meanwhile is deleted in the new shards too.
    When a shard that was read is gone from the manifest, or garbage was collected meanwhile, it all starts over.
"""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pair import errors
from pair.blobs.leases import held
from pair.clock import to_timestamp
from pair.engine import rules
from pair.engine.manifest import Manifest, ShardRef, lease_name
from pair.engine.publication import Published
from pair.engine.shard_cache import ShardMissingError
from pair.engine.stored_documents import concatenate
from pair.engine.stored_graphs import NO_GRAPHS
from pair.engine.vectors import Grouping, sample_size
from pair.engine.workspace import BuiltShard, build_shard
from pair.engine.writing import WriteParts, forget_dropped, picked_documents, scratch_folder

_TRIES = 5


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
class _Output:
    ref: ShardRef
    origins: tuple[tuple[str, npt.NDArray[np.int64]], ...]
    """Folder of the shard that documents came from, and their numbers there, in the order of their numbers here."""


@dataclass
class _Group:
    """Documents that go into one new shard."""

    run: str
    members: list[tuple[ShardRef, npt.NDArray[np.int64]]] = field(default_factory=list)


class Compactor:
    def __init__(self, parts: WriteParts, on_progress: Callable[[int, int], None] = lambda done, total: None) -> None:
        self._parts = parts
        self._on_progress = on_progress

    def compact(self, *, everything: bool = False, min_shards: int | None = None) -> CompactionReport:
        """Pay the most urgent debt, or all. Raises E201, E202, E203, E206, E207, E208, E210."""
        for conflicts in range(_TRIES):
            before = self._parts.publication.required()
            self._parts.cache.keep_only({shard.folder for shard in before.manifest.shards})
            plan = rules.compaction_plan(
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
                if self._parts.publication.required().version == before.version:
                    raise errors.stored_data_damaged(str(fault), "it is not in the store any more") from fault
            self._parts.pause(conflicts + 1)
        raise errors.manifest_changed(self._parts.kb_id)

    def _carry_out(self, before: Published, plan: rules.CompactionPlan) -> CompactionReport:
        commit_id = self._parts.new_id()
        outputs: list[_Output] = []
        with scratch_folder(self._parts.cache) as folder:
            groups = self._groups(plan, commit_id)
            for number, group in enumerate(groups):
                outputs.append(self._build(folder / str(number), group, commit_id, number))
                self._on_progress(number + 1, len(groups))
        published = self._publish_when_free(before, plan.shards, outputs, commit_id)
        return CompactionReport(
            reason=plan.reason,
            shards_before=len(plan.shards),
            shards_after=len(outputs),
            documents=sum(each.ref.documents for each in outputs),
            manifest_version=published.manifest.number,
        )

    # Which document goes where

    def _groups(self, plan: rules.CompactionPlan, commit_id: str) -> list[_Group]:
        if plan.reason in {"tombstone_pressure", "keywords_missing"}:
            return [_Group(shard.run, [(shard, _live(shard))]) for shard in plan.shards if shard.live_documents]
        live_bytes = sum(round(shard.size_bytes * (1 - shard.tombstone_ratio)) for shard in plan.shards)
        count = rules.shards_to_cut(sum(shard.live_rows for shard in plan.shards), live_bytes, self._parts.policy)
        if count == 1:
            members = [(shard, _live(shard)) for shard in plan.shards if shard.live_documents]
            return [_Group("", members)] if members else []
        return self._clustered(plan.shards, count, commit_id)

    def _clustered(self, shards: Sequence[ShardRef], count: int, commit_id: str) -> list[_Group]:
        """Shard by shard, so that no more than one is in memory."""
        parts = self._parts
        per_shard = max(1, sample_size(count) // len(shards))
        sample = [_sampled(parts.cache.open(shard).search(0.0).vectors, per_shard) for shard in shards]
        weight = sum(shard.live_rows for shard in shards)
        grouping = Grouping(np.concatenate(sample), count, weight)
        groups = [_Group(commit_id) for _ in range(count)]
        for shard in shards:
            numbers = _live(shard)
            if not len(numbers):
                continue
            documents = parts.cache.open(shard).search(0.0).documents(numbers, NO_GRAPHS)
            chosen = grouping.assign(documents.mean_vectors(), documents.chunk_counts())
            for group in np.unique(chosen):
                groups[group].members.append((shard, numbers[chosen == group]))
        return [group for group in groups if group.members]

    # Building and publishing

    def _build(self, folder: Path, group: _Group, commit_id: str, number: int) -> _Output:
        parts = self._parts
        documents = concatenate(
            [picked_documents(shard, numbers, parts.cache) for shard, numbers in group.members],
            parts.publication.required().manifest.dimension,
        )
        built: BuiltShard = build_shard(
            folder, parts.kb_id, documents, commit_id=commit_id, run=group.run, number=number
        )
        parts.publication.upload([built])
        shutil.rmtree(folder)
        ref = replace(built.ref, created_at=to_timestamp(parts.clock.now()))
        return _Output(ref, tuple((shard.folder, numbers) for shard, numbers in group.members))

    def _publish_when_free(
        self, before: Published, replaced: Sequence[ShardRef], outputs: Sequence[_Output], commit_id: str
    ) -> Published:
        """Waits for the lease as a writer does: what was built stays good while others write."""
        attempt = 1
        while True:
            try:
                return self._publish(before, replaced, outputs, commit_id)
            except errors.ConflictError as fault:
                if fault.code != errors.LEASE_HELD or attempt >= self._parts.policy.write_attempts:
                    raise
            self._parts.pause(attempt)
            attempt += 1

    def _publish(
        self, before: Published, replaced: Sequence[ShardRef], outputs: Sequence[_Output], commit_id: str
    ) -> Published:
        parts = self._parts
        name, seconds = lease_name(parts.kb_id), parts.policy.lease_seconds
        parts.on_step("lease")
        with held(parts.leases, name, seconds=seconds, clock=parts.clock) as lease:
            parts.on_step("read")
            now = parts.publication.required()
            shards = _rebased(now.manifest, before.manifest, replaced, outputs)
            if shards is None:
                raise errors.manifest_changed(parts.kb_id)
            after = now.manifest.succeeded_by(commit_id, parts.publication.now(), shards)
            lease.check()
            published = parts.publication.swap(now, after)
            parts.on_step("swapped")
        parts.on_step("compacted")
        forget_dropped(parts)
        return published


def _live(shard: ShardRef) -> npt.NDArray[np.int64]:
    return np.arange(shard.documents) if shard.tombstones is None else np.flatnonzero(~shard.tombstones)


def _sampled(vectors: npt.NDArray[np.float32], count: int) -> npt.NDArray[np.float32]:
    if len(vectors) <= count:
        return np.array(vectors)
    return vectors[np.linspace(0, len(vectors) - 1, count).astype(np.int64)]


def _rebased(
    now: Manifest, before: Manifest, replaced: Sequence[ShardRef], outputs: Sequence[_Output]
) -> list[ShardRef] | None:
    """The shards of the next manifest; None when the work was done on something that is no longer there."""
    current = {shard.folder: shard for shard in now.shards}
    folders = {shard.folder for shard in replaced}
    if now.collections != before.collections or not folders <= current.keys():
        return None
    kept = [shard for shard in now.shards if shard.folder not in folders]
    return kept + [_with_late_deletes(output, current) for output in outputs]


def _with_late_deletes(output: _Output, current: dict[str, ShardRef]) -> ShardRef:
    gone: list[int] = []
    begin = 0
    for folder, numbers in output.origins:
        tombstones = current[folder].tombstones
        if tombstones is not None:
            gone += (begin + np.flatnonzero(tombstones[numbers])).tolist()
        begin += len(numbers)
    return output.ref.without(gone) if gone else output.ref
