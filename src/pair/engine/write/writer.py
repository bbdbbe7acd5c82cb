"""Upsert and delete: one batch at a time, under the lease, at the cost of the batch.

The steps of a write, each of which may be its last, as `on_step` tells them just before they begin: lease, read,
workspace, upload (each file), uploaded (the workspace is removed), swap, swapped (the lease is released), released.
Invariants
    What is unchanged is neither embedded nor written. What is replaced goes in the manifest that brings the new.
    A write that fails leaves the KB as it was; what it uploaded is garbage.
    What was decided before a roll-back is not written after it (`since`): the roll-back would be undone in part, and
    what looked stored as it is may be gone. A batch by itself is decided under the lease, and so after it.
"""

import contextlib
import datetime
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pair import errors, files
from pair.blobs.contract import Leases
from pair.blobs.leases import HeldLease, LeaseQueue
from pair.clock import Clock, to_timestamp
from pair.engine import rules
from pair.engine.filters import Filter
from pair.engine.format.columns import PreparedDocument, StoredDocuments, build_columns, concatenate, hash_id
from pair.engine.format.manifest import Cause, Manifest, ShardRef, lease_name, no_manifest
from pair.engine.format.shard_builder import BuiltShard, build_shard
from pair.engine.format.vectors import Grouping
from pair.engine.settings import EngineSettings
from pair.engine.storage.manifest_store import ManifestStore, StoredManifest
from pair.engine.storage.shard_cache import ShardCache, ShardMissingError
from pair.engine.write.bulk_runner import Merge
from pair.engine.write.prepare import Batch, Preparation
from pair.values import Document

logger = logging.getLogger(__name__)


_SETTLED = frozenset({errors.PUBLISH_UNKNOWN, errors.BUILD_LOST, errors.ROLLED_BACK_MEANWHILE})
"""Codes of what another attempt would not better."""


@dataclass(frozen=True, slots=True)
class EngineContext:
    """What a write works with."""

    kb_id: str
    policy: EngineSettings
    publication: ManifestStore
    cache: ShardCache
    leases: Leases
    clock: Clock
    new_id: Callable[[], str]
    pause: Callable[[int], None]
    """Wait before the n-th next attempt."""
    on_step: Callable[[str], None]
    _queue: LeaseQueue = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_queue", LeaseQueue(self.leases, self.clock, self.pause))

    @contextlib.contextmanager
    def hold_lease(self, *, refusals: int = 0) -> Iterator[HeldLease]:
        """Hold the write lease of the KB while the block runs, after waiting in turn. Raises E203, E206.

        `refusals`: how many of the attempts are used up.
        """
        with self._queue.hold(
            lease_name(self.kb_id),
            seconds=self.policy.lease_seconds,
            attempts=max(self.policy.write_attempts - refusals, 1),
            before_try=lambda: self.on_step("lease"),
        ) as lease:
            yield lease


@dataclass(frozen=True, slots=True)
class WriteReport:
    """What one batch did."""

    added: int = 0
    replaced: int = 0
    unchanged: int = 0
    deleted: int = 0
    chunks: int = 0
    manifest_version: int = 0
    conflicts: int = 0


@dataclass(frozen=True, slots=True)
class _Stored:
    """Where a document is now."""

    position: int
    """Of its shard, in the manifest."""
    doc: int
    content_hash: str


class Writer:
    def __init__(self, parts: EngineContext, preparation: Preparation, *, began: int | None = None) -> None:
        """`began`: see `since`."""
        self._parts = parts
        self._preparation = preparation
        self._embedding = preparation.embedding
        self._began = began

    def since(self, number: int) -> "Writer":
        """The same, for what was begun when this version was current: refuses to write once a roll-back came after."""
        began = number if self._began is None else min(number, self._began)
        return Writer(self._parts, self._preparation, began=began)

    def refuse_undoing(self, before: StoredManifest | None) -> None:
        """Raises E236."""
        rolled_back = before.manifest.rolled_back if before is not None else 0
        if self._began is not None and rolled_back > self._began:
            raise errors.rolled_back_meanwhile(self._parts.kb_id, self._began, rolled_back)

    def upsert(self, batch: Batch, removed: Sequence[str] = ()) -> WriteReport:
        """Store a batch; `removed`: ids of documents that go with the same version.

        Raises E213, E303, E304 for what cannot be stored; E202, E203, E206, E208, E210 after all attempts.
        """
        before = self._parts.publication.current()
        hashes = self._preparation.checked_hashes(batch, before)
        prepared: dict[str, PreparedDocument] = {}
        # Embedding is the long part: it is done before others are kept waiting, for what looks new now.
        with contextlib.suppress(ShardMissingError):  # collected this moment: under the lease all is looked up again
            self._prepare(batch, self.changed(batch, hashes, before)[0], hashes, prepared)

        def attempt(lease: HeldLease, before: StoredManifest | None) -> WriteReport:
            changed, stored = self.changed(batch, hashes, before)
            self._prepare(batch, changed, hashes, prepared)
            # A document whose graph is still incomplete is stored already as far as it can be.
            contents = {document_id: place.content_hash for document_id, place in stored.items()}
            changed = [each for each in changed if prepared[each.id].header.content_hash != contents.get(each.id)]
            gone = find_stored(before.manifest, self._parts.cache, removed) if before else {}
            if not changed and not gone:
                number = before.manifest.number if before else 0
                return WriteReport(unchanged=len(batch.documents), manifest_version=number)
            if before is not None and not changed:
                shards = remove_stored(before.manifest.shards, gone.values())
                published = self.swap(lease, before, shards, self._parts.new_id(), "delete")
                return WriteReport(
                    unchanged=len(batch.documents), deleted=len(gone), manifest_version=published.manifest.number
                )
            fresh = build_columns([prepared[each.id] for each in changed], self._embedding.dimension)
            replaced = {each.id: stored[each.id] for each in changed if each.id in stored}
            published = self._write(lease, before, fresh, [*replaced.values(), *gone.values()])
            return WriteReport(
                added=len(changed) - len(replaced),
                replaced=len(replaced),
                unchanged=len(batch.documents) - len(changed),
                deleted=len(gone),
                chunks=len(fresh.chunks),
                manifest_version=published.manifest.number,
            )

        return self.retried(attempt)

    def delete(
        self, *, ids: Sequence[str], owner: str | None, condition: Filter | None, synced: Sequence[str] = ()
    ) -> WriteReport:
        """Documents with these ids, or all of this owner, or all that meet the condition. Raises E201.

        Raises E105 if one of them is among those that are `synced`.
        """
        self._parts.publication.require_for_write()  # before a lease makes a folder for a KB that is not there

        def attempt(lease: HeldLease, before: StoredManifest | None) -> WriteReport:
            if before is None:
                raise errors.kb_uninitialised(self._parts.kb_id)
            gone = self._chosen(before.manifest, ids, owner, condition)
            self._refuse_synced(before.manifest, gone, synced)
            count = sum(len(numbers) for numbers in gone.values())
            if not count:
                return WriteReport(manifest_version=before.manifest.number)
            shards = [
                shard.without(gone[position]) if position in gone else shard
                for position, shard in enumerate(before.manifest.shards)
            ]
            published = self.swap(lease, before, shards, self._parts.new_id(), "delete")
            return WriteReport(deleted=count, manifest_version=published.manifest.number)

        return self.retried(attempt)

    # One attempt after another

    def retried(self, attempt: Callable[[HeldLease, StoredManifest | None], WriteReport]) -> WriteReport:
        """Under the lease, with what is published then, until nobody was in the way."""
        parts, conflicts = self._parts, 0
        parts.publication.refuse_past()
        while True:
            before = None
            try:
                with parts.hold_lease(refusals=conflicts) as lease:
                    conflicts += lease.refusals
                    parts.on_step("read")
                    before = parts.publication.read_for_write()
                    self.refuse_undoing(before)
                    parts.cache.keep_only(before.manifest.folders if before else frozenset())
                    report = attempt(lease, before)
                parts.on_step("released")
                forget_dropped(parts)
                return replace(report, conflicts=conflicts)
            except (errors.ConflictError, ShardMissingError) as fault:
                conflicts += 1
                is_settled = isinstance(fault, errors.ConflictError) and fault.code in _SETTLED
                is_lost = isinstance(fault, ShardMissingError) and self._is_still(before)
                is_held = isinstance(fault, errors.ConflictError) and fault.code == errors.LEASE_HELD
                if is_lost or is_settled or is_held or conflicts >= parts.policy.write_attempts:
                    if isinstance(fault, ShardMissingError):
                        raise errors.stored_data_damaged(str(fault), "it is not in the store any more") from fault
                    raise
                logger.info("write conflict", extra={"kb": parts.kb_id, "attempt": conflicts, "reason": str(fault)})
                parts.pause(conflicts)

    def _is_still(self, before: StoredManifest | None) -> bool:
        now = self._parts.publication.current()
        return before is not None and now is not None and now.version == before.version

    # What is to be written

    def check_embedder(self, manifest: Manifest) -> None:
        """Raises E303, E304."""
        if manifest.embedder != self._embedding.name:
            raise errors.embedder_differs(self._parts.kb_id, manifest.embedder, self._embedding.name)
        if manifest.dimension != self._embedding.dimension:
            raise errors.vector_size_differs(self._parts.kb_id, manifest.dimension, self._embedding.dimension)

    def changed(
        self, batch: Batch, hashes: Mapping[str, str], before: StoredManifest | None
    ) -> tuple[list[Document], dict[str, _Stored]]:
        """Documents that are not stored as they are, and where those that are stored at all are."""
        if before is None:
            return list(batch.documents), {}
        manifest = before.manifest
        self.check_embedder(manifest)
        stored = find_stored(manifest, self._parts.cache, [each.id for each in batch.documents])
        changed = [
            each for each in batch.documents if each.id not in stored or stored[each.id].content_hash != hashes[each.id]
        ]
        return changed, stored

    def _prepare(
        self,
        batch: Batch,
        documents: Sequence[Document],
        hashes: Mapping[str, str],
        prepared: dict[str, PreparedDocument],
    ) -> None:
        """Cut, embed and analyse what is not in `prepared` yet."""
        missing = [each for each in documents if each.id not in prepared]
        prepared.update(self._preparation.prepared(batch, missing, hashes))

    # Writing it

    def _write(
        self, lease: HeldLease, before: StoredManifest | None, fresh: StoredDocuments, replaced: Sequence[_Stored]
    ) -> StoredManifest:
        parts = self._parts
        manifest = before.manifest if before else self.nothing_yet()
        shards = remove_stored(manifest.shards, replaced)
        tail = [shard for shard in shards if not shard.run and not shard.origin and shard.live_documents]
        merged = rules.choose_merge(tail, len(fresh.chunks))
        commit_id = parts.new_id()
        with scratch_folder(self._parts.cache) as folder:
            parts.on_step("workspace")
            documents = concatenate(
                [*(live_documents(each, parts.cache) for each in merged), fresh], manifest.dimension
            )
            built = cut_shards(folder, parts.kb_id, documents, commit_id, parts.policy)
            parts.publication.upload(built)
        taken = {shard.folder for shard in merged}
        kept = [shard for shard in shards if shard.folder not in taken]
        created_at = to_timestamp(parts.clock.now())
        added = [replace(each.ref, created_at=created_at) for each in built]
        return self.swap(lease, before, [*kept, *added], commit_id)

    def swap(
        self,
        lease: HeldLease,
        before: StoredManifest | None,
        shards: Sequence[ShardRef],
        commit_id: str,
        made_by: Cause = "upsert",
    ) -> StoredManifest:
        manifest = before.manifest if before else self.nothing_yet()
        after = manifest.make_next(commit_id, self.moment_for(manifest, shards), shards, made_by)
        return self.publish(lease, before, after)

    def nothing_yet(self) -> Manifest:
        return no_manifest(self._parts.kb_id, self._embedding.name, self._embedding.dimension)

    def moment_for(self, manifest: Manifest, shards: Sequence[ShardRef]) -> datetime.datetime:
        """When something was dropped is compared by others; when something was added is not."""
        return self._parts.publication.now() if manifest.drops(shards) else self._parts.clock.now()

    def publish(self, lease: HeldLease, before: StoredManifest | None, after: Manifest) -> StoredManifest:
        lease.check()
        published = self._parts.publication.swap(before, after)
        self._parts.on_step("swapped")
        self._parts.cache.keep_within_limits()
        return published

    def _chosen(
        self, manifest: Manifest, ids: Sequence[str], owner: str | None, condition: Filter | None
    ) -> dict[int, npt.NDArray[np.int64]]:
        """Live documents to delete, by position of their shard."""
        chosen: dict[int, npt.NDArray[np.int64]] = {}
        by_id: dict[int, list[int]] = {}
        for stored in find_stored(manifest, self._parts.cache, ids).values():
            by_id.setdefault(stored.position, []).append(stored.doc)
        for position, shard in enumerate(manifest.shards):
            numbers = np.array(by_id.get(position, ()), np.int64)
            opened = self._parts.cache.open(shard)
            if owner is not None:
                numbers = np.union1d(numbers, opened.ids().numbers_of_owner(owner))
            if condition is not None:
                numbers = np.union1d(numbers, np.flatnonzero(opened.rows().select(condition)))
            if shard.tombstones is not None:
                numbers = numbers[~shard.tombstones[numbers]]
            if len(numbers):
                chosen[position] = numbers
        return chosen

    def _refuse_synced(
        self, manifest: Manifest, gone: Mapping[int, npt.NDArray[np.int64]], synced: Sequence[str]
    ) -> None:
        stored = find_stored(manifest, self._parts.cache, synced) if gone else {}
        refused = [each for each, place in stored.items() if place.doc in gone.get(place.position, ())]
        if refused:
            raise errors.document_synced(refused)


def remove_stored(shards: Sequence[ShardRef], replaced: Iterable[_Stored]) -> list[ShardRef]:
    """Return the shards without these documents."""
    gone: dict[int, list[int]] = {}
    for each in replaced:
        gone.setdefault(each.position, []).append(each.doc)
    return [shard.without(gone[position]) if position in gone else shard for position, shard in enumerate(shards)]


# ── for writing and compacting alike ───────────────────────────────────────────────────────────────


def find_stored(manifest: Manifest, cache: ShardCache, ids: Sequence[str]) -> dict[str, _Stored]:
    """Where the live documents among these are."""
    identities = np.array([np.frombuffer(hash_id(each), "<u8") for each in ids], "<u8").reshape(-1, 2)
    found: dict[str, _Stored] = {}
    for position, shard in enumerate(manifest.shards if ids else ()):
        directory = cache.open(shard).ids()
        lines = directory.find(identities)
        for number in np.flatnonzero(lines >= 0).tolist():
            listed = directory.read_line(int(lines[number]))
            if shard.tombstones is None or not shard.tombstones[listed.doc]:
                found[ids[number]] = _Stored(position, listed.doc, listed.content_hash)
    return found


def live_documents(shard: ShardRef, cache: ShardCache) -> StoredDocuments:
    live = np.arange(shard.documents) if shard.tombstones is None else np.flatnonzero(~shard.tombstones)
    return picked_documents(shard, live, cache)


def picked_documents(shard: ShardRef, numbers: npt.NDArray[np.int64], cache: ShardCache) -> StoredDocuments:
    """These documents of the shard, with everything; one without keywords that can be used is analysed anew."""
    opened = cache.open(shard)
    search = opened.search(0.0)
    documents = search.documents(numbers, opened.stored_graphs())
    index = opened.keywords()
    if index is None:
        return documents.add_keywords()
    return replace(documents, keywords=index.read_rows(search.rows_of(numbers)))


def forget_dropped(parts: EngineContext) -> None:
    """What was merged is in the cache, and nobody will ask for it again."""
    parts.cache.keep_only(parts.publication.known().manifest.folders)


@contextlib.contextmanager
def scratch_folder(cache: ShardCache) -> Iterator[Path]:
    """Beside the cache, where there is room for shards; gone afterwards, also after a kill with the next write."""
    with files.storage_errors(), files.scratch_folder(cache.scratch) as folder:
        yield folder


def cut_shards(
    folder: Path, kb_id: str, documents: StoredDocuments, commit_id: str, policy: EngineSettings
) -> list[BuiltShard]:
    """One shard, or several that each hold what is near to each other."""
    count = rules.count_cuts(len(documents.chunks), documents.size_bytes, policy)
    if count == 1:
        return [build_shard(folder, kb_id, documents, commit_id=commit_id, run="")]
    means = documents.mean_vectors()
    groups = Grouping(means, count, len(documents.chunks)).assign(means, documents.chunk_counts())
    return [
        build_shard(
            folder / str(number),
            kb_id,
            documents.pick(np.flatnonzero(groups == group)),
            commit_id=commit_id,
            run=commit_id,
            number=number,
        )
        for number, group in enumerate(np.unique(groups))
    ]


def merged_shard(folder: Path, kb_id: str, merge: Merge, cache: ShardCache) -> BuiltShard:
    """Raises ShardMissingError."""
    picked = [picked_documents(shard, numbers, cache) for shard, numbers in merge.members]
    documents = concatenate(picked, picked[0].vectors.shape[1])
    return build_shard(folder, kb_id, documents, commit_id=merge.commit_id, run=merge.run, number=merge.number)
