"""Bulk loads: split documents into parts, let workers build shards of them, and publish all shards at once.

Invariants
    All documents become visible in one step. A load that fails or is killed does not change the KB.
    A part that an earlier run built is not built again.
    Of several documents with one id, the last in the load wins.
    A rollback during the load refuses the load. The next run can use the shards.
"""

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import numpy as np

from pair import errors
from pair.blobs.contract import BlobStore
from pair.clock import Clock, to_timestamp
from pair.engine.format.columns import Identities, build_columns, concatenate, hash_id
from pair.engine.format.manifest import Manifest, ShardRef
from pair.engine.format.shard_builder import BuiltShard, build_shard
from pair.engine.settings import EngineSettings
from pair.engine.storage.manifest_store import PendingShards
from pair.engine.storage.shard_cache import ShardCache, ShardMissingError
from pair.engine.write.commit import Change, EngineContext, next_manifest, refuse_rolled_back
from pair.engine.write.prepare import Batch, Preparation, estimate_bytes, pause_gc
from pair.engine.write.writer import (
    Numbers,
    Writer,
    WriteReport,
    cut_shards,
    find_stored,
    live_mask,
    pick_documents,
    remove_stored,
    scratch_folder,
)
from pair.values import Document

_LEAST_PART_BYTES = 1 << 20
_LAST_PARTS = 2
"""Number of parts for each worker at the end of a long load, so that all workers finish at about the same time."""


@dataclass(frozen=True, slots=True)
class BuildPart:
    """Documents that one worker stores. Sent between processes."""

    number: int
    key: str
    """Hash of the documents and of the shard limits. The same part has the same key in the next run."""
    batch: Batch
    hashes: Mapping[str, str]
    """The content hash of each document, by id."""


@dataclass(frozen=True, slots=True)
class Merge:
    """Documents of several shards that become one shard. Sent between processes."""

    number: int
    commit_id: str
    run: str
    members: Sequence[tuple[ShardRef, Numbers]]
    """Shards, and numbers of documents in each."""


Task = BuildPart | Merge


@dataclass(frozen=True, slots=True)
class Built:
    """The result of a task: shards in the store that no manifest names yet."""

    number: int
    record: str
    """Key of the record that protects the shards from garbage collection."""
    shards: tuple[ShardRef, ...]


class Runner(Protocol):
    """A runner of the workers that build the shards of a bulk load. You may implement it."""

    @property
    def workers(self) -> int:
        """Number of tasks that run at once."""

    def expect_work(self) -> None:
        """Prepare for tasks: a runner that starts slowly may start now."""

    def built(self, tasks: Iterator[Task]) -> Iterator[Built]:
        """Yield results as they are done. Take a task only when a worker will soon be free.

        Give a task whose worker died to another worker. Raises E216 after too many deaths, and errors of workers.
        """


@dataclass(frozen=True, slots=True)
class PartBuilder:
    """A worker, which builds and uploads the shards of a task. The caller publishes them."""

    kb_id: str
    settings: EngineSettings
    store: BlobStore
    preparation: Preparation
    clock: Clock
    new_id: Callable[[], str]
    cache: ShardCache

    @pause_gc()
    def build(self, task: Task) -> Built:
        """Build and upload the shards of a task. Raises ModelError, E202, E206, E010, E305."""
        with scratch_folder(self.cache) as folder:
            if isinstance(task, BuildPart):
                prepared = self.preparation.prepare(task.batch, task.batch.documents, task.hashes)
                documents = build_columns(list(prepared.values()), self.preparation.embedding.dimension)
                prepared.clear()
                built = cut_shards(folder, self.kb_id, documents, self.new_id(), self.settings)
                return self._upload(task.number, task.key, built)
            try:
                merged = merge_shards(folder, self.kb_id, task, self.cache)
            except ShardMissingError as fault:
                raise errors.manifest_changed(self.kb_id) from fault
            return self._upload(task.number, f"{task.commit_id}-{task.number}", [merged])

    def _upload(self, number: int, key: str, built: Sequence[BuiltShard]) -> Built:
        created_at = to_timestamp(self.clock.now())
        shards = tuple(replace(shard.ref, created_at=created_at) for shard in built)
        records = PendingShards(self.store, self.kb_id, self.new_id)
        record = records.announce(key, shards, self.preparation.embedding.dimension)
        for shard in built:
            for role, path in shard.paths.items():
                self.store.upload(shard.ref.key(role), path)
        return Built(number, record, shards)


@dataclass(frozen=True, slots=True)
class LocalRunner:
    """A runner that builds one part after another in this thread."""

    builder: PartBuilder
    workers: int = 1

    def expect_work(self) -> None:
        pass

    def built(self, tasks: Iterator[Task]) -> Iterator[Built]:
        return map(self.builder.build, tasks)


def merge_shards(folder: Path, kb_id: str, merge: Merge, cache: ShardCache) -> BuiltShard:
    """Build one shard of documents of several shards. Raises ShardMissingError."""
    picked = [pick_documents(shard, numbers, cache) for shard, numbers in merge.members]
    documents = concatenate(picked, picked[0].vectors.shape[1])
    return build_shard(folder, kb_id, documents, commit_id=merge.commit_id, run=merge.run, number=merge.number)


def split_parts(documents: Iterable[Document], workers: int, part_bytes: int) -> Iterator[list[Document]]:
    """Split documents into parts of about `part_bytes`, in order. Make the last parts equal in size."""
    waiting: deque[tuple[Document, int]] = deque()
    total = 0
    is_long = False
    for document in documents:
        waiting.append((document, estimate_bytes(document)))
        total += waiting[-1][1]
        if total > workers * part_bytes:
            part, size = _take_part(waiting, part_bytes)
            total -= size
            is_long = True
            yield part
    count = workers * _LAST_PARTS if is_long and workers > 1 else workers
    target = max(-(-total // count), _LEAST_PART_BYTES)
    while waiting:
        yield _take_part(waiting, min(target, part_bytes))[0]


def _take_part(waiting: deque[tuple[Document, int]], part_bytes: int) -> tuple[list[Document], int]:
    """Take one document and as many more as fit; return them and their size."""
    part: list[Document] = []
    size = 0
    while waiting and (not part or size + waiting[0][1] <= part_bytes):
        document, document_bytes = waiting.popleft()
        part.append(document)
        size += document_bytes
    return part, size


@dataclass(frozen=True, slots=True)
class BulkLoad:
    """Options of one load."""

    owner: str
    chunk_size_bytes: int
    revisions: Mapping[str, str] = field(default_factory=dict)
    """The caller's name for the content of a document, by document id."""
    removed: Sequence[str] = ()
    """Ids of stored documents to delete in the same version."""


@dataclass(frozen=True, slots=True)
class BuildProgress:
    read: int
    """Number of documents that were read."""
    built: int
    """Number of read documents that are stored or built."""
    workers: int


@dataclass(eq=False)
class Build:
    """One load. Used once."""

    context: EngineContext
    writer: Writer
    preparation: Preparation
    records: PendingShards
    on_progress: Callable[[BuildProgress], None]
    _built: dict[int, Built] = field(default_factory=dict)
    _sizes: dict[int, int] = field(default_factory=dict)
    """Number of documents of each part that is planned and not built."""
    _coming: set[bytes] = field(default_factory=set)
    """First bytes of the identities of all documents that the load will store."""
    _read = _done = _unchanged = 0

    def run(self, documents: Iterable[Document], load: BulkLoad, runner: Runner) -> WriteReport:
        """Store the documents. Raises E213, E303, E304 for invalid ones, E216, E217, E236, and errors of a write."""
        before = self.context.manifests.read_for_write()
        self.writer = self.writer.since(before.manifest.number if before is not None else 0)
        if before is None:
            runner.expect_work()  # In an existing KB, all documents may be stored already.
        for part in runner.built(self._plan_parts(documents, load, runner.workers)):
            self._take(part)
            self.on_progress(BuildProgress(self._read, self._done, runner.workers))
        built = [self._built[number] for number in sorted(self._built)]
        if not built:
            published = self.context.manifests.current()
            if published is not None and load.removed:
                report = self.writer.delete(ids=load.removed, owner=None, condition=None)
                return replace(report, unchanged=self._unchanged)
            return WriteReport(
                unchanged=self._unchanged, manifest_version=published.manifest.number if published else 0
            )
        report = self._publish(built, load.removed)
        for part in built:
            self.records.forget(part.record)
        return report

    def _plan_parts(self, documents: Iterable[Document], load: BulkLoad, workers: int) -> Iterator[BuildPart]:
        """Yield the parts that workers have to build."""
        settings = self.context.settings
        for number, given in enumerate(split_parts(documents, workers, settings.build_part_bytes)):
            self._read += len(given)
            last = list({document.id: document for document in given}.values())
            batch = Batch(last, load.owner, load.chunk_size_bytes, {}, load.revisions)
            hashes = self.preparation.hash_documents(batch, self.context.manifests.current())
            changed = self._select(batch, hashes)
            self._unchanged += len(batch.documents) - len(changed)
            self._done += len(given) - len(changed)
            if changed:
                self._sizes[number] = len(changed)
                own = {document.id: hashes[document.id] for document in changed}
                limits = [settings.shard_trigger_bytes, settings.shard_trigger_vector_rows]
                limits += [settings.target_shard_bytes, settings.max_vector_rows_per_shard]
                content = " ".join([load.owner, *map(str, limits), *own.values()])
                key = hashlib.sha256(content.encode(errors="surrogatepass")).hexdigest()[:40]
                earlier = self.records.find(key)
                if earlier is None:
                    yield BuildPart(number, key, replace(batch, documents=changed), own)
                else:
                    self._take(Built(number, *earlier))
            self.on_progress(BuildProgress(self._read, self._done, workers))

    def _select(self, batch: Batch, hashes: dict[str, str]) -> list[Document]:
        """Return the documents to store: changed documents, and documents with an id that this load already stores."""
        before = self.context.manifests.current()
        manifest = before.manifest if before else self.writer.empty_manifest()
        refuse_rolled_back(manifest, self.writer.began)
        changed = {document.id for document in self.writer.find_changed(batch, hashes, manifest)[0]}
        heads = {document.id: hash_id(document.id)[:8] for document in batch.documents}
        selected = [doc for doc in batch.documents if doc.id in changed or heads[doc.id] in self._coming]
        self._coming.update(heads[document.id] for document in selected)
        return selected

    def _take(self, part: Built) -> None:
        self._built[part.number] = part
        self._done += self._sizes.pop(part.number)

    def _publish(self, built: Sequence[Built], removed: Sequence[str]) -> WriteReport:
        cache, commit_id = self.context.cache, self.context.new_id()
        fresh = deduplicate(built, cache, self.context.kb_id)

        def change(manifest: Manifest) -> Change[WriteReport]:
            self.writer.check_embedder(manifest)
            require_records(self.records, built, manifest)
            kept, replaced = fresh.remove_from(manifest.shards, cache)
            gone = find_stored(replace(manifest, shards=tuple(kept)), cache, removed)
            kept = remove_stored(kept, gone.values())
            added = fresh.missing_in(manifest)
            report = WriteReport(
                added=len(fresh.identities) - replaced,
                replaced=replaced,
                unchanged=self._unchanged,
                deleted=len(gone),
                chunks=fresh.chunks,
            )
            if not added and not gone:
                return Change(None, report)
            return Change(next_manifest(self.context, manifest, [*kept, *added], "upsert", commit_id), report)

        return self.writer.write(change)


@dataclass(frozen=True, eq=False)
class FreshShards:
    """New shards without duplicate documents."""

    shards: Sequence[ShardRef]
    identities: Identities
    """Identities of the live documents."""

    @property
    def chunks(self) -> int:
        return sum(shard.rows for shard in self.shards)

    def missing_in(self, manifest: Manifest) -> list[ShardRef]:
        """Return the shards that the manifest lacks: another build of the same part may have published some."""
        named = manifest.folders
        return [shard for shard in self.shards if shard.folder not in named]

    def remove_from(self, shards: Sequence[ShardRef], cache: ShardCache) -> tuple[list[ShardRef], int]:
        """Return existing shards without the documents that the new shards replace; count these documents."""
        kept: list[ShardRef] = []
        replaced = 0
        own = {shard.folder for shard in self.shards}
        for shard in shards:
            if shard.folder in own or not own:
                kept.append(shard)
                continue
            directory = cache.open(shard).ids()
            lines = directory.find(self.identities)
            gone = directory.numbers_at(lines[lines >= 0])
            gone = gone[live_mask(shard)[gone]]
            replaced += len(gone)
            kept.append(shard.without(gone))
        return kept, replaced


def deduplicate(built: Sequence[Built], cache: ShardCache, kb_id: str) -> FreshShards:
    """Return the built shards, with each document only in the last shard that has it. Raises E217 for a lost shard."""
    shards = [shard for part in built for shard in part.shards]
    if not shards:
        return FreshShards((), np.empty((0, 2), np.uint64))
    try:
        listed = [cache.open(shard).ids().identities() for shard in shards]
    except ShardMissingError as fault:
        raise errors.build_lost(kb_id) from fault
    identities = np.concatenate([rows for rows, _ in listed])
    numbers = np.concatenate([numbers for _, numbers in listed])
    positions = np.repeat(np.arange(len(shards)), [len(rows) for rows, _ in listed])
    order = np.lexsort((positions, identities[:, 1], identities[:, 0]))
    ordered = identities[order]
    is_last = np.ones(len(order), np.bool_)
    is_last[:-1] = (ordered[1:] != ordered[:-1]).any(axis=1)
    beaten = order[~is_last]
    for position in np.unique(positions[beaten]).tolist():
        shards[position] = shards[position].without(numbers[beaten[positions[beaten] == position]])
    return FreshShards(shards, ordered[is_last])


def require_records(records: PendingShards, built: Sequence[Built], manifest: Manifest) -> None:
    """Raise E217 if garbage collection may have deleted a shard to publish.

    Garbage collection condemns records before it swaps the manifest. So if a record is intact after the manifest was
    read, its shards exist, or the swap fails.
    """
    named = manifest.folders
    for part in built:
        if not records.is_in_order(part.record) and not {shard.folder for shard in part.shards} <= named:
            raise errors.build_lost(manifest.kb_id)
