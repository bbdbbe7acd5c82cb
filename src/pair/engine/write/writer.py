"""Upsert and delete: one batch at a time, under the lease.

The steps of a write, as `on_step` reports them before they begin: lease, read, workspace, upload (each file),
uploaded (the workspace is removed), swap, swapped (the lease is released), released.
Invariants
    An unchanged document is neither embedded nor written.
    One manifest deletes the old version of a replaced document and adds the new one.
    The cost of a write depends on the size of the batch.
"""

import contextlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pair import errors, files
from pair.clock import to_timestamp
from pair.engine import rules
from pair.engine.filters import Filter
from pair.engine.format.columns import PreparedDocument, StoredDocuments, build_columns, concatenate, hash_ids
from pair.engine.format.manifest import Manifest, ShardRef, no_manifest
from pair.engine.format.shard import IdFile, ListedDocument
from pair.engine.format.shard_builder import BuiltShard, build_shard
from pair.engine.format.vectors import Grouping
from pair.engine.settings import EngineSettings
from pair.engine.storage.shard_cache import ShardCache, ShardMissingError
from pair.engine.write.commit import Change, ChangeMaker, Committed, EngineContext, Result, commit, next_manifest
from pair.engine.write.prepare import Batch, Preparation, pause_gc
from pair.values import Document

Numbers = npt.NDArray[np.int64]
"""Numbers of documents in a shard."""


@dataclass(frozen=True, slots=True)
class WriteReport:
    """The result of one write."""

    added: int = 0
    replaced: int = 0
    unchanged: int = 0
    deleted: int = 0
    chunks: int = 0
    manifest_version: int = 0
    conflicts: int = 0

    def __add__(self, other: "WriteReport") -> "WriteReport":
        """Return the sum of both reports, with the later version."""
        sums = {field.name: getattr(self, field.name) + getattr(other, field.name) for field in fields(self)}
        return WriteReport(**sums | {"manifest_version": max(self.manifest_version, other.manifest_version)})


@dataclass(frozen=True, slots=True)
class DocumentLocation:
    """The place of a stored document."""

    position: int
    """Position of the shard in the manifest."""
    doc: int
    content_hash: str


class Writer:
    """The writer of documents. `began`: the version that was current when the work began, if known."""

    def __init__(self, context: EngineContext, preparation: Preparation, *, began: int | None = None) -> None:
        self._context = context
        self._preparation = preparation
        self._embedding = preparation.embedding
        self.began = began

    def since(self, number: int) -> "Writer":
        """Return a writer for work that began with this version. It refuses to write after a later rollback (E236)."""
        began = number if self.began is None else min(number, self.began)
        return Writer(self._context, self._preparation, began=began)

    @pause_gc()
    def upsert(self, batch: Batch, removed: Sequence[str] = ()) -> WriteReport:
        """Store a batch. `removed`: ids of documents to delete in the same version.

        Raises E213, E303, E304 for invalid documents; E202, E203, E206, E208, E210 after all attempts.
        """
        before = self._context.manifests.current()
        hashes = self._preparation.hash_documents(batch, before)
        prepared: dict[str, PreparedDocument] = {}

        def prepare(documents: Sequence[Document]) -> None:
            missing = [document for document in documents if document.id not in prepared]
            prepared.update(self._preparation.prepare(batch, missing, hashes))

        # Embedding is slow: do it before the lease blocks other writers.
        with contextlib.suppress(
            ShardMissingError
        ):  # The shard was just collected: the lookup under the lease decides.
            manifest = before.manifest if before else self.empty_manifest()
            prepare(self.find_changed(batch, hashes, manifest)[0])

        def change(manifest: Manifest) -> Change[WriteReport]:
            changed, stored = self.find_changed(batch, hashes, manifest)
            prepare(changed)
            # A document whose graph is still incomplete is already stored with the same incomplete graph.
            contents = {document_id: location.content_hash for document_id, location in stored.items()}
            changed = [doc for doc in changed if prepared[doc.id].header.content_hash != contents.get(doc.id)]
            gone = find_stored(manifest, self._context.cache, removed)
            report = WriteReport(unchanged=len(batch.documents) - len(changed), deleted=len(gone))
            if not changed and not gone:
                return Change(None, report)
            if not changed:
                shards = remove_stored(manifest.shards, gone.values())
                return Change(next_manifest(self._context, manifest, shards, "delete"), report)
            fresh = build_columns([prepared[document.id] for document in changed], self._embedding.dimension)
            replaced = [stored[document.id] for document in changed if document.id in stored]
            added = len(changed) - len(replaced)
            report = replace(report, added=added, replaced=len(replaced), chunks=len(fresh.chunks))
            return Change(self._store(manifest, fresh, [*replaced, *gone.values()]), report)

        return self.write(change)

    def delete(
        self, *, ids: Sequence[str], owner: str | None, condition: Filter | None, synced: Sequence[str] = ()
    ) -> WriteReport:
        """Delete the documents with these ids, all documents of this owner, and all that meet the condition.

        `synced`: ids of documents that sync owns; E105 if one of them would be deleted.
        """
        if self._context.manifests.current_for_write() is None:  # Check before the lease creates a folder.
            return WriteReport()

        def change(manifest: Manifest) -> Change[WriteReport]:
            gone = self._select(manifest, ids, owner, condition)
            if not gone:
                return Change(None, WriteReport())
            stored = find_stored(manifest, self._context.cache, synced)
            refused = [name for name, location in stored.items() if location.doc in gone.get(location.position, ())]
            if refused:
                raise errors.document_synced(refused)
            shards = [shard.without(gone.get(position, ())) for position, shard in enumerate(manifest.shards)]
            report = WriteReport(deleted=sum(len(numbers) for numbers in gone.values()))
            return Change(next_manifest(self._context, manifest, shards, "delete"), report)

        return report_commit(commit(self._context, change, since=self.began))

    def write(self, change: ChangeMaker[WriteReport], empty: Manifest | None = None) -> WriteReport:
        """Commit a change; return its report with the new version. `empty`: see `commit`."""
        return report_commit(self.commit(change, empty))

    def commit(self, change: ChangeMaker[Result], empty: Manifest | None = None) -> Committed[Result]:
        return commit(self._context, change, empty=empty or self.empty_manifest(), since=self.began)

    def empty_manifest(self) -> Manifest:
        return no_manifest(self._context.kb_id, self._embedding.name, self._embedding.dimension)

    def check_embedder(self, manifest: Manifest) -> None:
        """Raise E303, E304 if the manifest has vectors of another embedder or size."""
        refuse_other_embedder(manifest, self._embedding.name, self._embedding.dimension)

    def find_changed(
        self, batch: Batch, hashes: Mapping[str, str], manifest: Manifest
    ) -> tuple[list[Document], dict[str, DocumentLocation]]:
        """Return the new and changed documents, and the locations of the stored ones."""
        self.check_embedder(manifest)
        stored = find_stored(manifest, self._context.cache, [document.id for document in batch.documents])
        changed = [
            document
            for document in batch.documents
            if document.id not in stored or stored[document.id].content_hash != hashes[document.id]
        ]
        return changed, stored

    def _store(self, manifest: Manifest, fresh: StoredDocuments, replaced: Sequence[DocumentLocation]) -> Manifest:
        """Upload new shards, merged with small existing ones, and return the manifest that names them."""
        context = self._context
        shards = remove_stored(manifest.shards, replaced)
        unclustered = [shard for shard in shards if not shard.run and not shard.origin and shard.live_documents]
        merged = rules.choose_merge(unclustered, len(fresh.chunks))
        commit_id = context.new_id()
        with scratch_folder(context.cache) as folder:
            context.on_step("workspace")
            existing = [pick_documents(shard, live_numbers(shard), context.cache) for shard in merged]
            documents = concatenate([*existing, fresh], manifest.dimension)
            built = cut_shards(folder, context.kb_id, documents, commit_id, context.settings)
            context.manifests.upload(built)
        merged_folders = {shard.folder for shard in merged}
        kept = [shard for shard in shards if shard.folder not in merged_folders]
        created_at = to_timestamp(context.clock.now())
        added = [replace(shard.ref, created_at=created_at) for shard in built]
        return next_manifest(context, manifest, [*kept, *added], "upsert", commit_id)

    def _select(
        self, manifest: Manifest, ids: Sequence[str], owner: str | None, condition: Filter | None
    ) -> dict[int, Numbers]:
        """Return the numbers of the live documents to delete, by position of their shard."""
        selected: dict[int, Numbers] = {}
        by_id = _group_by_shard(find_stored(manifest, self._context.cache, ids).values())
        for position, shard in enumerate(manifest.shards):
            numbers = np.array(by_id[position], np.int64)
            opened = self._context.cache.open(shard)
            if owner is not None:
                numbers = np.union1d(numbers, opened.ids().numbers_of_owner(owner))
            if condition is not None:
                numbers = np.union1d(numbers, np.flatnonzero(opened.metadata().select(condition)))
            numbers = numbers[live_mask(shard)[numbers]]
            if len(numbers):
                selected[position] = numbers
        return selected


def report_commit(committed: Committed[WriteReport]) -> WriteReport:
    """Return the report of a commit, with the new version."""
    return replace(committed.result, manifest_version=committed.manifest.number, conflicts=committed.conflicts)


def refuse_other_embedder(manifest: Manifest, embedder: str, dimension: int) -> None:
    """Raise E303, E304 if the manifest has vectors of another embedder or size."""
    if manifest.embedder != embedder:
        raise errors.embedder_differs(manifest.kb_id, manifest.embedder, embedder)
    if manifest.dimension != dimension:
        raise errors.vector_size_differs(manifest.kb_id, manifest.dimension, dimension)


def live_mask(shard: ShardRef) -> npt.NDArray[np.bool_]:
    """Return a flag for each document of the shard: whether it is live."""
    return np.ones(shard.documents, np.bool_) if shard.tombstones is None else ~shard.tombstones


def list_live(shard: ShardRef, ids: IdFile) -> Iterator[ListedDocument]:
    """Yield the live documents of a shard in the order of ids."""
    return ids.after("", live_mask(shard))


def live_numbers(shard: ShardRef) -> Numbers:
    return np.flatnonzero(live_mask(shard))


def find_stored(manifest: Manifest, cache: ShardCache, ids: Sequence[str]) -> dict[str, DocumentLocation]:
    """Return the locations of the live documents with these ids."""
    identities = hash_ids(ids)
    stored: dict[str, DocumentLocation] = {}
    for position, shard in enumerate(manifest.shards if ids else ()):
        directory = cache.open(shard).ids()
        lines = directory.find(identities)
        for number in np.flatnonzero(lines >= 0).tolist():
            listed = directory.read_line(int(lines[number]))
            if shard.tombstones is None or not shard.tombstones[listed.doc]:
                stored[ids[number]] = DocumentLocation(position, listed.doc, listed.content_hash)
    return stored


def remove_stored(shards: Sequence[ShardRef], removed: Iterable[DocumentLocation]) -> list[ShardRef]:
    """Return the shards without these documents."""
    gone = _group_by_shard(removed)
    return [shard.without(gone[position]) for position, shard in enumerate(shards)]


def _group_by_shard(locations: Iterable[DocumentLocation]) -> defaultdict[int, list[int]]:
    """Return the document numbers, by position of their shard."""
    numbers = defaultdict[int, list[int]](list)
    for location in locations:
        numbers[location.position].append(location.doc)
    return numbers


def pick_documents(shard: ShardRef, numbers: Numbers, cache: ShardCache) -> StoredDocuments:
    """Read these documents of a shard. Count the words again if the shard has no current keyword index."""
    opened = cache.open(shard)
    search = opened.search(0.0)
    documents = search.documents(numbers, opened.stored_graphs())
    index = opened.keywords()
    if index is None:
        return documents.add_keywords()
    return replace(documents, keywords=index.read_rows(search.rows_of(numbers)))


@contextlib.contextmanager
def scratch_folder(cache: ShardCache) -> Iterator[Path]:
    """Yield a folder beside the cache to build shards in. If the process is killed, a later write removes it."""
    with files.storage_errors(), files.scratch_folder(cache.scratch) as folder:
        yield folder


def cut_shards(
    folder: Path, kb_id: str, documents: StoredDocuments, commit_id: str, settings: EngineSettings
) -> list[BuiltShard]:
    """Build one shard of the documents, or one for each cluster of them."""
    count = rules.count_cuts(len(documents.chunks), documents.size_bytes, settings)
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
