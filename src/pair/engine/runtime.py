"""Engine: upsert, delete, search, list, export, import, compact, reembed, collect, sweep, stats, for one KB."""

import contextlib
import copy
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np

from pair import errors
from pair.ai.caching_embedder import CachingEmbedder
from pair.ai.contract import Reranker
from pair.blobs.contract import BlobStore
from pair.engine import rules
from pair.engine.backup.export import (
    ExportOptions,
    ExportReport,
    Snapshot,
    SpooledSnapshot,
    count_export_bytes,
    export_documents,
)
from pair.engine.backup.export_format import DocumentLines, detect_export_kind
from pair.engine.backup.fsck import Fsck, FsckOptions, FsckReport
from pair.engine.backup.restore import Importer
from pair.engine.backup.shard_archive import ShardArchive, ShardImporter, export_shards
from pair.engine.filters import Filter
from pair.engine.format.manifest import Manifest
from pair.engine.maintenance import gc, versions
from pair.engine.maintenance.compaction import BulkMerge, CompactionReport, Compactor
from pair.engine.maintenance.diff import CURRENT, ManifestDiff, compare
from pair.engine.maintenance.gc import GarbageReport
from pair.engine.maintenance.merge_package import PackageMerger, PortableFile, PortableIndex, pack_index
from pair.engine.maintenance.reembed import Reembedder, ReembedReport
from pair.engine.maintenance.versions import ListedVersion, Rollback
from pair.engine.query.documents import DocumentReader, StoredDocument
from pair.engine.query.graph_view import GraphView, Neighbourhood
from pair.engine.query.prefetch import Prefetcher, PrefetchReport
from pair.engine.query.request import EmbeddedRequest, Hits, Limits, SearchRequest
from pair.engine.query.search import Search, reranked
from pair.engine.query.shard_access import ShardReader
from pair.engine.settings import EngineSettings
from pair.engine.storage.history import is_number
from pair.engine.storage.pending_shards import PendingShards
from pair.engine.storage.shard_cache import ShardMissingError, SweepReport
from pair.engine.write.bulk_load import Build, BuildProgress, BulkLoad, LocalRunner, PartBuilder, Runner
from pair.engine.write.commit import EngineContext
from pair.engine.write.prepare import Batch, Preparation, describe_chunking, hash_revision, split_batches
from pair.engine.write.writer import Writer, WriteReport, find_stored, scratch_folder
from pair.files import CHUNK_BYTES
from pair.text import tokenizer
from pair.text.entity_rules import Grapher
from pair.values import Document, GraphRows

logger = logging.getLogger(__name__)

_MOST_COMPACTIONS = 16
_TIDY_SHARDS = 3
"""After a long ingest even a few shards that arrived as they came are worth merging: the next thing is asking."""
_READING_TRIES = 5
_RERANKED = 30
"""Hits that a reranker sees at least."""

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class EngineStats:
    kb_id: str
    documents: int
    chunks: int
    shards: int
    size_bytes: int
    deleted_documents: int
    """That still take room until compaction."""
    manifest_version: int
    embedder: str
    dimension: int
    cache: Mapping[str, int] = field(default_factory=dict)
    compaction_debt: str = ""

    def to_json(self) -> dict[str, Any]:
        return {
            "kb_id": self.kb_id,
            "documents": self.documents,
            "chunks": self.chunks,
            "shards": self.shards,
            "size_bytes": self.size_bytes,
            "deleted_documents": self.deleted_documents,
            "manifest_version": self.manifest_version,
            "embedder": self.embedder,
            "dimension": self.dimension,
            "cache": dict(self.cache),
            "compaction_debt": self.compaction_debt,
        }


class Engine:
    """One KB. Used from several threads at once."""

    def __init__(
        self,
        parts: EngineContext,
        store: BlobStore,
        embedding: CachingEmbedder,
        grapher: Grapher | None = None,
        reranker: Reranker | None = None,
        reader: ShardReader | None = None,
    ) -> None:
        """`grapher` makes the graphs of documents; `reranker` has the last word on the order of hits.

        `reader`: that of the engine whose store and open shards this one borrows.
        """
        self._reranker = reranker
        self._parts = parts
        self._is_borrowing = reader is not None
        self._reader = reader or ShardReader(parts.cache, parts.settings.query_shard_parallelism)
        self._store = store
        self._embedding = embedding
        self._prefetching = Prefetcher(parts.manifests, parts.cache)
        self._preparation = Preparation(parts.kb_id, parts.settings.chunker, embedding, grapher)
        self._writer = Writer(parts, self._preparation)
        self._search = Search(parts.manifests, self._reader, parts.settings, parts.clock)

    @property
    def kb_id(self) -> str:
        return self._parts.kb_id

    @property
    def is_past(self) -> bool:
        return self._parts.manifests.is_past

    @property
    def settings(self) -> EngineSettings:
        return self._parts.settings

    # Writing

    def since(self, number: int) -> "Engine":
        """The same, for one who decided what to write when this version was current: see `Writer.since`."""
        other = copy.copy(self)
        other._writer = self._writer.since(number)  # noqa: SLF001 - of the same class
        return other

    def upsert(
        self,
        documents: Iterable[Document],
        *,
        owner: str,
        chunk_size_bytes: int | None = None,
        graphs: Mapping[str, GraphRows] | None = None,
        revisions: Mapping[str, str] | None = None,
        on_batch: Callable[[WriteReport], None] = lambda report: None,
    ) -> WriteReport:
        """In batches, each published by itself. `revisions`: what the caller knows a document's content by, by id."""
        total = WriteReport()
        batches, policy = 0, self._parts.settings
        for given in split_batches(documents, policy.ingest_batch_documents, policy.ingest_batch_bytes):
            batch = Batch(
                list({each.id: each for each in given}.values()),
                owner,
                chunk_size_bytes or policy.chunk_bytes,
                graphs or {},
                revisions or {},
            )
            report = self._writer.upsert(batch)
            batches += 1
            total = _sum(total, report)
            on_batch(report)
        if batches > 1 and policy.compaction_enabled:
            total = replace(total, manifest_version=self._pay_debt() or total.manifest_version)
        return total

    def replace(
        self, documents: Iterable[Document], *, owner: str, removed: Sequence[str], revisions: Mapping[str, str]
    ) -> WriteReport:
        """Store documents and remove others in one version, whatever their number; parameters as for `upsert`.

        More than a batch is built part by part, and nothing of it is visible before all of it is.
        """
        policy = self._parts.settings
        batches = split_batches(documents, policy.ingest_batch_documents, policy.ingest_batch_bytes)
        first, second = next(batches, []), next(batches, [])
        if not first and not removed:
            return WriteReport(manifest_version=self.current_number())
        if not second:
            return self._writer.upsert(Batch(first, owner, policy.chunk_bytes, {}, revisions), removed)
        parts = replace(self._parts, settings=replace(policy, build_part_bytes=policy.ingest_batch_bytes))
        records = PendingShards(self._store, self.kb_id, parts.new_id)
        builder = PartBuilder(
            self.kb_id, parts.settings, self._store, self._preparation, parts.clock, parts.new_id, parts.cache
        )
        load = BulkLoad(owner, policy.chunk_bytes, revisions, removed)
        given = itertools.chain(first, second, itertools.chain.from_iterable(batches))
        build = Build(parts, self._writer, self._preparation, records, lambda progress: None)
        report = build.run(given, load, LocalRunner(builder))
        if policy.compaction_enabled:
            report = replace(report, manifest_version=self._pay_debt() or report.manifest_version)
        return report

    def build(
        self,
        documents: Iterable[Document],
        runner: Runner,
        *,
        owner: str,
        chunk_size_bytes: int | None = None,
        on_progress: Callable[[BuildProgress], None] = lambda progress: None,
    ) -> WriteReport:
        """By the workers of the runner, published all at once. Raises E216, E217, and what `upsert` raises."""
        records = PendingShards(self._store, self.kb_id, self._parts.new_id)
        build = Build(self._parts, self._writer, self._preparation, records, on_progress)
        load = BulkLoad(owner, chunk_size_bytes or self._parts.settings.chunk_bytes)
        report = build.run(documents, load, runner)
        if report.chunks and self._parts.settings.compaction_enabled:
            paid = self._pay_debt(BulkMerge(runner, records))
            report = replace(report, manifest_version=paid or report.manifest_version)
        return report

    def delete(
        self,
        *,
        ids: Sequence[str] = (),
        owner: str | None = None,
        condition: Filter | None = None,
        synced: Sequence[str] = (),
    ) -> WriteReport:
        """Raises E105 for documents among those that are `synced`."""
        return self._writer.delete(ids=ids, owner=owner, condition=condition, synced=synced)

    def revised_hash(self, revision: str, owner: str) -> str:
        """What `hashes` says of a document that was stored under this revision."""
        way = describe_chunking(self._parts.settings.chunker, self._parts.settings.chunk_bytes)
        return hash_revision(revision, owner, self._preparation.name_models(self._parts.manifests.seen()), way)

    # Reading

    def search_vector(self, vector: Sequence[float] | np.ndarray, limit: int, narrowing: Limits) -> Hits:
        with np.errstate(over="ignore"):
            asked = np.ascontiguousarray(vector, dtype=np.float32)
        return self._search.nearest(asked, self._embedding.name, limit, narrowing)

    def search(self, query: SearchRequest) -> Hits:
        """Raises E201, E204, E205, E206, E215, E304; E207 when no shard at all could be asked; ModelError."""
        # Of a KB that was never asked, the manifest is read once, and not once more to see whether it changed.
        published = self._parts.manifests.first()
        vector, weight = None, 0.0
        if query.mode != "keyword":
            vector = self.embed_query(query.text)
            weight = self._embedding.weight_of(query.text)
        if self._reranker is None:
            return self._search.find(EmbeddedRequest(query, vector, weight, self._embedding.name), published)
        wide = EmbeddedRequest(replace(query, limit=max(_RERANKED, query.limit)), vector, weight, self._embedding.name)
        return reranked(self._search.find(wide, published), query, self._reranker)

    def embed_query(self, text: str) -> np.ndarray:
        """Raises E304 when the KB was made with another embedder."""
        manifest = self._parts.manifests.known().manifest
        if manifest.embedder != self._embedding.name:  # perhaps no longer: then it is the one that is in the store
            manifest = self._parts.manifests.required().manifest
        if manifest.embedder != self._embedding.name:
            raise errors.embedder_differs(self.kb_id, manifest.embedder, self._embedding.name)
        return self._embedding.embed_query(text)

    def words_in(self, query: str, texts: Sequence[str]) -> list[frozenset[str]]:
        """Which words of a question each of these texts holds, as keyword search counts them."""
        asked = tokenizer.parse_query(query).terms.keys()
        return [frozenset(asked & set(tokenizer.terms(text))) for text in texts]

    def likeness(self, query: str, texts: Sequence[str]) -> list[float]:
        """How near in meaning each of these texts is to a question: 1 is the same. Raises ModelError."""
        if not texts:
            return []
        return [float(each) for each in self._embedding.embed_all(texts) @ self._embedding.embed_query(query)]

    def documents(self, *, after: str = "", limit: int = 100, owner: str | None = None) -> list[StoredDocument]:
        """By id, from the first that comes after `after`."""
        return self._read(lambda manifest: self._listing(manifest).page(after, limit, owner))

    def documents_holding(
        self, text: str, *, after: str = "", limit: int = 100, owner: str | None = None
    ) -> tuple[list[StoredDocument], str | None]:
        """Those with this text in their id or title, in any case; and the id to go on after, if there may be more.

        So many documents are looked at and no more: there may be fewer than `limit`, even none, and still more to come.
        """
        return self._read(lambda manifest: self._listing(manifest).holding(text, after, limit, owner))

    def around_document(self, document_id: str, limit: int) -> Neighbourhood:
        """The graph around a document. Raises E201, E204, E214."""

        def read(manifest: Manifest) -> Neighbourhood:
            position, number = self._listing(manifest).place(document_id)
            return self._graph(manifest).around_document(position, number, limit)

        return self._read(read)

    def around_entity(self, name: str, limit: int) -> Neighbourhood:
        """The graph around what documents name; empty when none does. Raises E201, E204."""
        return self._read(lambda manifest: self._graph(manifest).around_entity(name, limit))

    def _graph(self, manifest: Manifest) -> GraphView:
        return GraphView(manifest, self._parts.cache, self._parts.clock.monotonic())

    def _listing(self, manifest: Manifest) -> DocumentReader:
        return DocumentReader(manifest, self._parts.cache, self._parts.clock.monotonic())

    def document(self, document_id: str) -> StoredDocument:
        """Raises E201, E214."""
        return self._read(lambda manifest: self._listing(manifest).document(document_id))

    def known(self, ids: Iterable[str]) -> frozenset[str]:
        """Raises E201."""
        asked = list(dict.fromkeys(ids))
        return self._read(lambda manifest: frozenset(find_stored(manifest, self._parts.cache, asked)))

    def hashes(self, owner: str) -> dict[str, str]:
        """The content hash of each document of this owner; {} before the first write."""
        if self._parts.manifests.current() is None:
            return {}
        return self._read(lambda manifest: self._listing(manifest).hashes(owner))

    def packaged_ids(self) -> set[str]:
        """Of documents that came with a package and are live."""
        return self._read(lambda manifest: self._listing(manifest).packaged_ids())

    def _read(self, read: Callable[[Manifest], _Answer]) -> _Answer:
        """By one manifest; by the current one when garbage collection took a shard meanwhile. Raises E201, E207."""
        tries = 0
        while True:
            published = self._parts.manifests.required()
            tries += 1
            try:
                return read(published.manifest)
            except ShardMissingError as fault:
                if tries == _READING_TRIES or self._parts.manifests.required().version == published.version:
                    raise errors.stored_data_damaged(str(fault), "it is not in the store any more") from fault

    # Backup

    def export(
        self,
        target: Path | BinaryIO,
        *,
        vectors: bool = True,
        on_progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> ExportReport:
        """Raises E201, E205, E206, E207, E010."""
        parts, options = self._parts, ExportOptions(vectors, on_progress)
        with contextlib.ExitStack() as held:

            def snapshot(manifest: Manifest) -> Snapshot | SpooledSnapshot:
                if parts.cache.may_hold(sum(map(count_export_bytes, manifest.shards))):
                    return Snapshot(manifest, parts.cache, parts.settings)
                folder = held.enter_context(scratch_folder(parts.cache))
                return SpooledSnapshot(manifest, parts.cache, parts.settings, folder, options)

            return export_documents(self._read(snapshot), target, options)

    def export_shards(
        self, path: Path, on_progress: Callable[[int, int], None] = lambda done, total: None
    ) -> ExportReport:
        """Raises E201, E206, E207, E010."""
        return self._read(lambda manifest: export_shards(manifest, self._parts, self._store, path, on_progress))

    def import_from(
        self,
        path: Path,
        *,
        replace_all: bool = False,
        embed: bool = False,
        on_progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> WriteReport:
        """Raises E003, E224, E225, E226, E227, and what a write raises."""
        if detect_export_kind(path) == "shards":
            if embed:
                raise errors.export_not_understood(str(path), "texts of shards are not embedded anew")
            shards = ShardImporter(self._parts, self._store, self._writer, on_progress)
            return shards.run(ShardArchive(path), self._embedding.name, replace_all=replace_all)
        documents = Importer(self._parts, self._store, self._writer, self._preparation, on_progress)
        report = documents.run(DocumentLines(path), replace_all=replace_all, embed=embed)
        if report.chunks and self._parts.settings.compaction_enabled:
            report = replace(report, manifest_version=self._pay_debt() or report.manifest_version)
        return report

    # Care

    def compact(
        self, *, everything: bool = False, on_progress: Callable[[int, int], None] = lambda done, total: None
    ) -> CompactionReport:
        return Compactor(self._parts, on_progress).compact(everything=everything)

    def reembed(
        self, *, dry_run: bool = False, on_progress: Callable[[int, int], None] = lambda done, total: None
    ) -> ReembedReport:
        """Vectors of this engine's embedder for what was stored with another one."""
        reembedder = Reembedder(self._parts, self._embedding, on_progress)
        return reembedder.plan() if dry_run else reembedder.run()

    def collect(self, *, grace_seconds: float | None = None) -> GarbageReport:
        grace = self._parts.settings.gc_grace_seconds if grace_seconds is None else grace_seconds
        return gc.collect(self._parts, self._store, grace_seconds=grace)

    def fsck(
        self, options: FsckOptions, on_progress: Callable[[int, int], None] = lambda done, total: None
    ) -> FsckReport:
        """Raises E201, E003, E225, E206, E010; ModelError."""
        return Fsck(self._parts, self._store, self._writer, self._preparation, options, on_progress).run()

    def packed(self) -> PortableIndex:
        """What of it would travel in a package. Raises E201."""
        return pack_index(self._parts.manifests.required().manifest)

    def packed_content(self, file: PortableFile) -> Iterator[bytes]:
        """Raises E207 when it is gone."""
        for start in range(0, file.size_bytes, CHUNK_BYTES):
            chunk = self._store.get_range(file.key, start, min(CHUNK_BYTES, file.size_bytes - start))
            if chunk is None:
                raise errors.stored_data_damaged(file.key, "it is not in the store any more")
            yield chunk

    def adoption(self) -> PackageMerger:
        return PackageMerger(self._parts, self._store, self._writer, self._embedding)

    def versions(self) -> list[ListedVersion]:
        return versions.list_versions(self._parts)

    def version_numbers(self) -> list[int]:
        """Of all that are kept, also of those that hold what the next one holds; the newest first. Raises E201."""
        history = self._parts.manifests.history
        return self._read(lambda current: [each.number for each in history.copies(current).line])

    def version_number(self, wanted: str) -> int:
        """What must be one already is not looked up; the version of a package is. Raises E201, E218."""
        if is_number(wanted) and int(wanted) <= self._parts.manifests.known().manifest.number:
            return int(wanted)
        return self._read(lambda current: self._parts.manifests.history.find(current, wanted).number)

    def at(self, wanted: str) -> "Engine":
        """As it was then, for reading, with what this one has open: to be closed before this one. Raises E201, E218."""
        parts = replace(self._parts, manifests=self._parts.manifests.at(wanted))
        past = Engine(parts, self._store, self._embedding, reranker=self._reranker, reader=self._reader)
        parts.cache.hold(past, parts.manifests.required().manifest.folders)
        return past

    def compare(self, before: str, after: str) -> ManifestDiff:
        """Two versions, each by number, by the version of a package, or as `current`. Raises E201, E218, E207."""
        return self._read(
            lambda current: compare(
                self._manifest_of(current, before), self._manifest_of(current, after), self._parts.cache
            )
        )

    def text_at(self, version: str, document_id: str) -> str | None:
        """Of a document as it was then; None where there was none. Raises E201, E218, E207."""
        return self._read(lambda current: self._listing(self._manifest_of(current, version)).text(document_id))

    def _manifest_of(self, current: Manifest, wanted: str) -> Manifest:
        return current if wanted == CURRENT else self._parts.manifests.history.find(current, wanted)

    def roll_back(self, wanted: str) -> Rollback:
        return versions.roll_back(self._parts, self._writer, wanted)

    def current_number(self) -> int:
        """Of what is stored now; 0 before the first write."""
        published = self._parts.manifests.current()
        return published.manifest.number if published is not None else 0

    def seen_version(self) -> str:
        """What the store calls the manifest that was last read or written; "" for none."""
        published = self._parts.manifests.seen()
        return published.version if published is not None else ""

    def restored_version(self) -> int:
        """That a roll-back put back and nobody let go since; 0 for none."""
        published = self._parts.manifests.current()
        return published.manifest.restored if published is not None else 0

    def release(self) -> None:
        versions.release(self._parts, self._writer)

    def sweep(self) -> SweepReport:
        return self._parts.cache.sweep()

    def prefetch(self, most_bytes: int, go_on: Callable[[], bool] = lambda: True) -> PrefetchReport:
        """Fetch what is likely to be asked, as far as there is room. Raises E206, E010."""
        return self._prefetching.fetch(most_bytes, go_on)

    def stats(self) -> EngineStats | None:
        """None before the first write."""
        published = self._parts.manifests.current()
        if published is None:
            return None
        manifest, cache = published.manifest, self._parts.cache
        plan = rules.compaction_plan(manifest, self._parts.settings)
        return EngineStats(
            kb_id=self.kb_id,
            documents=manifest.documents,
            chunks=manifest.rows,
            shards=len(manifest.shards),
            size_bytes=manifest.size_bytes,
            deleted_documents=sum(shard.gone for shard in manifest.shards),
            manifest_version=manifest.number,
            embedder=manifest.embedder,
            dimension=manifest.dimension,
            cache={
                "hits": cache.hits,
                "misses": cache.misses,
                "evictions": cache.evictions,
                "bytes_fetched": cache.bytes_fetched,
                "size_bytes": cache.size_bytes(),
            },
            compaction_debt="" if plan.reason == "no_compaction_debt" else plan.reason,
        )

    def version(self, *, last_seen: bool = False) -> tuple[int, str]:
        """Of what is stored: another one after every write. One call to the store, or none for the last one seen.

        Raises E201.
        """
        publication = self._parts.manifests
        manifest = (publication.known() if last_seen else publication.required()).manifest
        return manifest.number, manifest.commit_id

    def close(self) -> None:
        if self._is_borrowing:
            self._parts.cache.let_go(self)
            return
        self._reader.close()
        self._parts.cache.close()
        self._parts.leases.close()
        self._store.close()

    def _pay_debt(self, help_from: BulkMerge | None = None) -> int:
        """Compact until there is nothing left to do; the number of the last manifest.

        What was to be stored is stored: debts that cannot be paid now are left to whoever comes next.
        """
        number = 0
        for _ in range(_MOST_COMPACTIONS):
            try:
                report = Compactor(self._parts, help_from=help_from).compact(min_shards=_TIDY_SHARDS)
            except (errors.ConflictError, errors.StorageError) as fault:
                logger.info("not compacted after an ingest", extra={"kb": self.kb_id, "reason": fault.message})
                break
            if report.reason == "no_compaction_debt":
                break
            number = report.manifest_version
        return number


def _sum(total: WriteReport, report: WriteReport) -> WriteReport:
    return WriteReport(
        added=total.added + report.added,
        replaced=total.replaced + report.replaced,
        unchanged=total.unchanged + report.unchanged,
        deleted=total.deleted + report.deleted,
        chunks=total.chunks + report.chunks,
        manifest_version=max(total.manifest_version, report.manifest_version),
        conflicts=total.conflicts + report.conflicts,
    )
