"""A large load: cut into parts, built by workers, published at once.

Invariants
    Nothing is visible before all of it is; a build that fails or is killed leaves the KB as it was.
    A part that an earlier run built is not built again.
    Of several documents with one id the last one wins, wherever in the load they stand.
    A KB that is rolled back meanwhile stays so: the build is refused, and what it built is there for the next run.
Not here
    Who the workers are: the `Runner` of contract.py. What a worker does: part_builder.py.
"""

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from pair import errors
from pair.blobs.leases import HeldLease
from pair.engine.format.columns import hash_id
from pair.engine.format.manifest import Manifest, ShardRef
from pair.engine.settings import EngineSettings
from pair.engine.storage.manifest_store import StoredManifest
from pair.engine.storage.pending_shards import PendingShards
from pair.engine.storage.shard_cache import ShardCache, ShardMissingError
from pair.engine.write.bulk_runner import BuildPart, Built, Runner
from pair.engine.write.prepare import Batch, Preparation, size_of
from pair.engine.write.writer import EngineContext, Writer, WriteReport, find_stored, remove_stored
from pair.values import Document

_LEAST_PART_BYTES = 1 << 20
_LAST_PARTS = 2
"""For each worker, of what is left at the end of a long load: so that they finish at about the same time."""

Identities = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class BulkLoad:
    """How the documents of one load are stored."""

    owner: str
    chunk_size_bytes: int
    revisions: Mapping[str, str] = field(default_factory=dict)
    """What the caller knows a document's content by, by document id."""
    removed: Sequence[str] = ()
    """Ids of stored documents that go with the same version."""


@dataclass(frozen=True, slots=True)
class BuildProgress:
    read: int
    """Documents so far."""
    built: int
    """Of them, that are stored as they are already, or will be with the swap."""
    workers: int


# ── the plan ───────────────────────────────────────────────────────────────────────────────────────


def divided(documents: Iterable[Document], workers: int, part_bytes: int) -> Iterator[list[Document]]:
    """In their order, in parts of about `part_bytes`, and evenly where the end can be seen."""
    waiting: deque[tuple[Document, int]] = deque()
    total = 0
    is_long = False
    for document in documents:
        waiting.append((document, size_of(document)))
        total += waiting[-1][1]
        if total > workers * part_bytes:
            part, size = _taken(waiting, part_bytes)
            total -= size
            is_long = True
            yield part
    count = workers * _LAST_PARTS if is_long else workers
    target = max(-(-total // count), _LEAST_PART_BYTES)
    while waiting:
        yield _taken(waiting, min(target, part_bytes))[0]


def _taken(waiting: deque[tuple[Document, int]], part_bytes: int) -> tuple[list[Document], int]:
    """At least one, and then as many as fit."""
    part: list[Document] = []
    size = 0
    while waiting and (not part or size + waiting[0][1] <= part_bytes):
        document, own = waiting.popleft()
        part.append(document)
        size += own
    return part, size


def _key_of(hashes: Sequence[str], policy: EngineSettings, load: BulkLoad) -> str:
    """Of what a part holds and how it is cut into shards."""
    triggers = [policy.shard_trigger_bytes, policy.shard_trigger_vector_rows]
    targets = [policy.target_shard_bytes, policy.max_vector_rows_per_shard]
    told = " ".join([load.owner, *map(str, triggers + targets), *hashes])
    return hashlib.sha256(told.encode(errors="surrogatepass")).hexdigest()[:40]


# ── the build ──────────────────────────────────────────────────────────────────────────────────────


class Build:
    """One load. Used once."""

    def __init__(
        self,
        parts: EngineContext,
        writer: Writer,
        preparation: Preparation,
        records: PendingShards,
        on_progress: Callable[[BuildProgress], None],
    ) -> None:
        self._parts = parts
        self._writer = writer
        self._preparation = preparation
        self._records = records
        self._on_progress = on_progress
        self._built: dict[int, Built] = {}
        self._sizes: dict[int, int] = {}
        """Documents of each part that was planned and is not built yet."""
        self._coming: set[bytes] = set()
        """Beginnings of the identities of all documents that will be stored anew."""
        self._read = self._done = self._unchanged = 0

    def run(self, documents: Iterable[Document], load: BulkLoad, runner: Runner) -> WriteReport:
        """Raises E213, E303, E304 for what cannot be stored, E216, E217, E236; and what a write raises."""
        before = self._parts.publication.read_for_write()
        self._writer = self._writer.since(before.manifest.number if before is not None else 0)
        if before is None:
            runner.expect_work()  # else it may all be stored as it is
        for part in runner.built(self._planned(documents, load, runner.workers)):
            self._take(part)
            self._tell(runner.workers)
        built = [self._built[number] for number in sorted(self._built)]
        if not built:
            published = self._parts.publication.current()
            if published is not None and load.removed:
                done = self._writer.delete(ids=load.removed, owner=None, condition=None)
                return replace(done, unchanged=self._unchanged)
            return WriteReport(
                unchanged=self._unchanged, manifest_version=published.manifest.number if published else 0
            )
        report = self._published(built, load.removed)
        for part in built:
            self._records.forget(part.record)
        return report

    def _planned(self, documents: Iterable[Document], load: BulkLoad, workers: int) -> Iterator[BuildPart]:
        """Parts that somebody has to build."""
        policy = self._parts.policy
        for number, given in enumerate(divided(documents, workers, policy.build_part_bytes)):
            self._read += len(given)
            last = list({each.id: each for each in given}.values())
            batch = Batch(last, load.owner, load.chunk_size_bytes, {}, load.revisions)
            hashes = self._preparation.checked_hashes(batch, self._parts.publication.current())
            changed = self._to_store(batch, hashes)
            self._unchanged += len(batch.documents) - len(changed)
            self._done += len(given) - len(changed)
            if changed:
                self._sizes[number] = len(changed)
                key = _key_of([hashes[each.id] for each in changed], policy, load)
                found = self._records.find(key)
                if found is None:
                    own = {each.id: hashes[each.id] for each in changed}
                    yield BuildPart(number, key, replace(batch, documents=changed), own)
                else:
                    self._take(Built(number, found.key, found.shards))
            self._tell(workers)

    def _to_store(self, batch: Batch, hashes: dict[str, str]) -> list[Document]:
        """What is stored as it is costs nothing, unless this load holds another version of it that came before."""
        before = self._parts.publication.current()
        self._writer.refuse_undoing(before)
        changed = {each.id for each in self._writer.changed(batch, hashes, before)[0]}
        beginnings = {each.id: hash_id(each.id)[:8] for each in batch.documents}
        to_store = [each for each in batch.documents if each.id in changed or beginnings[each.id] in self._coming]
        self._coming.update(beginnings[each.id] for each in to_store)
        return to_store

    def _take(self, part: Built) -> None:
        self._built[part.number] = part
        self._done += self._sizes.pop(part.number)

    def _tell(self, workers: int) -> None:
        self._on_progress(BuildProgress(self._read, self._done, workers))

    # Publishing

    def _published(self, built: Sequence[Built], removed: Sequence[str]) -> WriteReport:
        shards = [shard for part in built for shard in part.shards]
        try:
            placed = placed_shards(shards, self._parts.cache)
        except ShardMissingError as fault:
            raise errors.build_lost(self._parts.kb_id) from fault
        commit_id = self._parts.new_id()

        def attempt(lease: HeldLease, before: StoredManifest | None) -> WriteReport:
            manifest = before.manifest if before else None
            if manifest is not None:
                self._writer.check_embedder(manifest)
            known = {shard.folder for shard in manifest.shards} if manifest else set()
            self._require(built, known)
            kept, replaced = without_documents(manifest, placed, self._parts.cache)
            gone = find_stored(replace(manifest, shards=tuple(kept)), self._parts.cache, removed) if manifest else {}
            kept = remove_stored(kept, gone.values())
            fresh = [shard for shard in placed.shards if shard.folder not in known]
            if fresh or gone:
                number = self._writer.swap(lease, before, [*kept, *fresh], commit_id).manifest.number
            else:
                number = manifest.number if manifest else 0
            return WriteReport(
                added=len(placed.identities) - replaced,
                replaced=replaced,
                unchanged=self._unchanged,
                deleted=len(gone),
                chunks=sum(shard.rows for shard in shards),
                manifest_version=number,
            )

        return self._writer.retried(attempt)

    def _require(self, built: Sequence[Built], known: set[str]) -> None:
        """Raises E217 when garbage collection may have taken what is to be published.

        It condemns records before it swaps the manifest: what is in order after a manifest was read can be published
        over that manifest, or the swap fails.
        """
        for part in built:
            if not self._records.is_in_order(part.record) and not {each.folder for each in part.shards} <= known:
                raise errors.build_lost(self._parts.kb_id)


@dataclass(frozen=True, eq=False)
class ClusteredShards:
    """New shards, and the documents in them that count."""

    shards: Sequence[ShardRef]
    """Without documents that stand in a later one too."""
    identities: Identities
    """Of the others, each once."""


def placed_shards(shards: Sequence[ShardRef], cache: ShardCache) -> ClusteredShards:
    listed = [cache.open(shard).ids().identities() for shard in shards]
    identities = np.concatenate([each for each, _ in listed])
    numbers = np.concatenate([each for _, each in listed])
    owners = np.repeat(np.arange(len(shards)), [len(each) for each, _ in listed])
    order = np.lexsort((owners, identities[:, 1], identities[:, 0]))
    ordered = identities[order]
    is_last = np.ones(len(order), np.bool_)
    is_last[:-1] = (ordered[1:] != ordered[:-1]).any(axis=1)
    beaten = order[~is_last]
    left = list(shards)
    for owner in np.unique(owners[beaten]).tolist():
        left[owner] = left[owner].without(numbers[beaten[owners[beaten] == owner]])
    return ClusteredShards(left, ordered[is_last])


def without_documents(
    manifest: Manifest | None, placed: ClusteredShards, cache: ShardCache
) -> tuple[list[ShardRef], int]:
    """The shards that are there, without the documents that are stored anew; and how many those are."""
    kept: list[ShardRef] = []
    replaced = 0
    own = {shard.folder for shard in placed.shards}
    for shard in manifest.shards if manifest else ():
        if shard.folder in own:  # published by somebody else who built the same
            kept.append(shard)
            continue
        directory = cache.open(shard).ids()
        lines = directory.find(placed.identities)
        gone = directory.numbers_at(lines[lines >= 0])
        if shard.tombstones is not None:
            gone = gone[~shard.tombstones[gone]]
        replaced += len(gone)
        kept.append(shard.without(gone) if len(gone) else shard)
    return kept, replaced
