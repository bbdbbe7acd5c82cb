"""The versions, maintenance, backups and graph of an open knowledge base."""

import contextlib
import functools
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast, get_args

from pair import errors
from pair.engine.backup.export import ExportOptions, ExportReport, export_documents, open_export, take_snapshot
from pair.engine.backup.fsck import Fsck, FsckOptions, FsckReport
from pair.engine.backup.restore import Importer
from pair.engine.backup.site import PutFile, SiteData, write_site
from pair.engine.format.manifest import Manifest
from pair.engine.maintenance import gc, versions
from pair.engine.maintenance.compaction import BulkMerge, CompactionReport, Compactor
from pair.engine.maintenance.gc import GarbageReport
from pair.engine.maintenance.merge_package import PackageMerger, PortableFile, PortableIndex, pack_index
from pair.engine.maintenance.reembed import Reembedder, ReembedReport
from pair.engine.maintenance.versions import CURRENT, DocumentChanges, ListedVersion, ManifestDiff, Rollback, compare
from pair.engine.query.graph_view import GraphView, Neighbourhood
from pair.engine.query.shard_access import Prefetcher, PrefetchReport
from pair.engine.settings import EmbedderKind
from pair.engine.storage.manifest_store import is_number
from pair.engine.storage.shard_cache import SweepReport
from pair.engine.write.bulk_load import Build, BuildProgress, BulkLoad, LocalRunner, PartBuilder, Runner
from pair.engine.write.prepare import Batch, check_document, describe_chunking, hash_revision, split_batches
from pair.engine.write.writer import Writer, WriteReport
from pair.files import CHUNK_BYTES
from pair.settings import CONFIG_PLACES, Settings
from pair.sync.contract import SyncObserver
from pair.sync.report import SyncReport
from pair.sync.source_text import SyncedDocuments
from pair.values import INGEST_OWNER, SYNC_OWNER, Document, check_load

if TYPE_CHECKING:
    from pair.kb.kb import KnowledgeBase
    from pair.kb.open import KbCore
    from pair.kb.sync import SyncService

Progress = Callable[[int, int], None]
"""A function that is called with the finished work and the total."""


def ignore_progress(_done: int, _total: int) -> None:
    """Do nothing."""


class KbVersions:
    """The versions of a KB, named by their number or by the package version that they had installed."""

    def __init__(self, core: "KbCore", open_at: "Callable[[str], KnowledgeBase]") -> None:
        self._core = core
        self._open_at = open_at

    def open(self, version: int | str) -> "KnowledgeBase":
        """Open an earlier version for reading. Raises E201, E218.

        It shares the open files of this KB: `close` it before this one.
        """
        return self._open_at(str(version))

    def list(self) -> Sequence[ListedVersion]:
        """Return the current version and those that can be restored, newest first. Raises E201."""
        return versions.list_versions(self._core.context)

    def current_number(self) -> int:
        """Return the number of the current version; 0 before the first write."""
        return self._core.current_number()

    def numbers(self) -> Sequence[int]:
        """Return the numbers of all readable versions, also those that `list` omits, newest first. Raises E201."""
        history = self._core.context.manifests.history
        return self._core.read(lambda current: [copy.number for copy in history.copies(current).line])

    def number(self, version: int | str) -> int:
        """Return the number of a version. A number needs no lookup. Raises E201, E218."""
        wanted, manifests = str(version), self._core.context.manifests
        if is_number(wanted) and int(wanted) <= manifests.known().manifest.number:
            return int(wanted)
        return self._core.read(lambda current: manifests.history.find(current, wanted).number)

    def diff(self, a: int | str, b: int | str = CURRENT) -> DocumentChanges:
        """Return the ids of documents that differ between two versions. Raises E201, E218."""
        return self.compare(a, b).changes

    def compare(self, a: int | str, b: int | str = CURRENT) -> ManifestDiff:
        """Compare two versions like `diff`, with access to their texts. Raises E201, E218, E207."""
        return self._core.read(
            lambda current: compare(self._find(current, a), self._find(current, b), self._core.context.cache)
        )

    def text_at(self, version: int | str, document_id: str) -> str | None:
        """Return the text of a document in a version; None if there was none. Raises E201, E218, E207."""
        return self._core.read(
            lambda current: self._core.document_reader(self._find(current, version)).text(document_id)
        )

    def _find(self, current: Manifest, version: int | str) -> Manifest:
        if version == CURRENT:
            return current
        return self._core.context.manifests.history.find(current, str(version))

    def rollback(self, version: int | str) -> Rollback:
        """Make an earlier version the current one. Raises E201, E218.

        The result is a new version. Background syncs do not change it; the next explicit sync does.
        """
        return versions.roll_back(self._core.context, self._core.writer, str(version))


@dataclass(frozen=True, slots=True)
class ReconcileReport:
    """The changes that made the engine equal to the synced sources."""

    stored: int = 0
    removed: int = 0
    unchanged: int = 0
    held_at: int = 0
    """The restored version that a background sync did not change; 0 for none."""
    seen_version: str = ""
    """The version of the manifest in the store."""
    refused: tuple[tuple[str, str], ...] = ()
    """Sources that cannot be stored, with the reason."""

    def complete_report(self, report: SyncReport) -> SyncReport:
        """Return the report of the sync with the changes in the engine."""
        problems = dict(report.problems) | dict(self.refused)
        return replace(
            report,
            stored=self.stored,
            unstored=self.removed,
            held_at=self.held_at,
            failed=report.failed + len(self.refused),
            problems=tuple(sorted(problems.items())),
        )


class KbMaintenance:
    """The maintenance of a KB: large loads, compaction, garbage collection, re-embedding, checks, and sync."""

    def __init__(self, core: "KbCore", sources: "SyncService | None") -> None:
        self._core = core
        self._sources = sources

    @functools.cached_property
    def _prefetcher(self) -> Prefetcher:
        return Prefetcher(self._core.context.manifests, self._core.context.cache)

    def compact(self, *, everything: bool = False, on_progress: Progress = ignore_progress) -> CompactionReport:
        """Merge and re-cluster shards where that is worthwhile, or all of them."""
        return Compactor(self._core.context, on_progress).compact(everything=everything)

    def build(
        self,
        documents: Iterable[Document],
        runner: Runner,
        *,
        owner: str = INGEST_OWNER,
        chunk_size: int | None = None,
        on_progress: Callable[[BuildProgress], None] = lambda progress: None,
    ) -> WriteReport:
        """Load many documents with the workers of a runner; all of them become visible at once.

        A run after an interruption does not repeat finished parts. Raises E216, E217, and the errors of `upsert`.
        """
        core = self._core
        checked = check_load(documents, owner, chunk_size)
        build = Build(core.context, core.writer, core.preparation, core.pending_shards, on_progress)
        report = build.run(checked, BulkLoad(owner, chunk_size or core.settings.engine.chunk_bytes), runner)
        return core.compact_debt(report, BulkMerge(runner, core.pending_shards)) if report.chunks else report

    def collect(self, *, grace_seconds: float | None = None) -> GarbageReport:
        """Delete shards that no manifest has named for the grace period."""
        grace = self._core.settings.engine.gc_grace_seconds if grace_seconds is None else grace_seconds
        return gc.collect(self._core.context, self._core.store, grace_seconds=grace)

    def sweep(self) -> SweepReport:
        """Evict fetched shards that are beyond the limits of age and size."""
        return self._core.context.cache.sweep()

    def prefetch(self, most_bytes: int, go_on: Callable[[], bool] = lambda: True) -> PrefetchReport:
        """Fetch the files that queries are likely to need, without evicting others. Raises E206, E010."""
        return self._prefetcher.fetch(most_bytes, go_on)

    def reembed(self, *, dry_run: bool = False, on_progress: Progress = ignore_progress) -> ReembedReport:
        """Replace the vectors of another embedder by those of the embedder of this open KB.

        Readers and writers with the former embedder work until the end, and get E304 afterwards. An interrupted run
        continues where it stopped. `dry_run`: only report the amount of work. Raises E201, E307, E308; ModelError.
        """
        reembedder = Reembedder(self._core.context, self._core.embedding, on_progress)
        return reembedder.plan() if dry_run else reembedder.run()

    def fsck(
        self,
        *,
        repair: bool = False,
        drop_lost: bool = False,
        packages: Sequence[Path] = (),
        on_progress: Progress = ignore_progress,
    ) -> FsckReport:
        """Verify every stored byte. Raises E201, E003, E225, E206, E010; ModelError.

        `repair`: repair the damage, also from `packages`. `drop_lost`: drop documents that cannot be repaired.
        """
        core, sources = self._core, self._sources

        def list_readable() -> frozenset[str]:
            if sources is None:
                return frozenset()
            texts = sources.read_texts()
            return frozenset(source_id for source_id in texts.revisions() if texts.document(source_id) is not None)

        options = FsckOptions(repair, drop_lost, tuple(packages), SYNC_OWNER, list_readable)
        report = Fsck(core.context, core.store, core.writer, core.preparation, options, on_progress).run()
        if report.dropped:
            self.reconcile(resume=False)
        return report

    def reconcile(self, *, resume: bool = True, since: int | None = None) -> ReconcileReport:
        """Compare the hashes of synced and stored documents, and store the difference.

        After a rollback nothing changes unless `resume`, for an explicit sync that began at the version `since` (None
        for the current one). Raises E236 for a rollback after `since`.
        """
        if self._sources is None:
            return ReconcileReport()
        core = self._core
        writer = core.writer.since(core.current_number() if since is None else since)
        restored = self._find_restored()
        if restored and not resume:
            return ReconcileReport(held_at=restored)
        try:
            if restored:
                versions.release(core.context, writer)
            return self._store_changes(writer, self._sources.read_texts(), self._sources.observer)
        except errors.ConflictError as fault:
            restored = self._find_restored()
            if resume or fault.code != errors.ROLLED_BACK_MEANWHILE or not restored:
                raise
            return ReconcileReport(held_at=restored)

    def _find_restored(self) -> int:
        """Return the version that a rollback restored and no explicit sync has changed since; 0 for none."""
        published = self._core.context.manifests.current()
        return published.manifest.restored if published is not None else 0

    def _store_changes(self, writer: Writer, texts: SyncedDocuments, observer: SyncObserver) -> ReconcileReport:
        core, settings = self._core, self._core.settings.engine
        revisions, stored, refused = texts.revisions(), dict[str, str](), dict[str, str]()
        if core.engine.manifests.current() is not None:
            stored = core.read_documents(lambda reader: reader.hashes(SYNC_OWNER))
        made_with = core.preparation.name_models(core.engine.manifests.seen()) if revisions else ""
        chunking = describe_chunking(settings.chunker, settings.chunk_bytes)
        changed = [
            source_id
            for source_id, revision in sorted(revisions.items())
            if stored.get(source_id) != hash_revision(revision, SYNC_OWNER, made_with, chunking)
        ]
        removed = self._list_removed(stored.keys() - revisions.keys())
        as_read = dict(revisions)
        read: list[str] = []
        note_stored = _count_stored(read, observer)

        def read_changed() -> Iterator[Document]:
            """Yield the changed documents, and note the revision of the text that was read.

            A source may change after the sync. With the synced revision, the next sync would not see the change.
            """
            for source_id, document, revision in texts.documents(changed):
                read.append(source_id)
                if document is None:
                    continue
                if not document.text.strip():  # A source without text is not stored.
                    if source_id in stored:
                        removed.append(source_id)
                    continue
                try:
                    check_document(document)
                except errors.UsageError as fault:
                    refused[source_id] = f"cannot be stored: {fault.details['reason']}"
                    continue
                as_read[source_id] = revision
                yield document

        report = WriteReport()
        if changed or removed:
            observer.planned(len(changed), "storing")
            report = self._replace(writer, read_changed(), removed, as_read, note_stored)
            note_stored(len(changed))
        seen = core.context.manifests.seen()
        return ReconcileReport(
            stored=report.added + report.replaced,
            removed=report.deleted,
            unchanged=len(revisions) - len(changed),
            seen_version=seen.version if seen is not None else "",
            refused=tuple(sorted(refused.items())),
        )

    def _list_removed(self, unknown: set[str]) -> list[str]:
        """Return stored ids without a source. Pages of a package were never sources here, and are kept."""
        pages = {document_id for document_id in unknown if document_id.startswith(("http://", "https://"))}
        packaged = self._core.read_documents(lambda reader: reader.packaged_ids()) if pages else set[str]()
        return sorted(unknown - (pages & packaged))

    def _replace(
        self,
        writer: Writer,
        documents: Iterator[Document],
        removed: Sequence[str],
        revisions: Mapping[str, str],
        on_stored: Callable[[int], None],
    ) -> WriteReport:
        """Store any number of documents and remove others, in one version.

        More than one batch is built part by part, and becomes visible at once. `on_stored` gets the number of
        documents that are built so far.
        """
        core, settings = self._core, self._core.context.settings
        batches = split_batches(documents, settings.ingest_batch_documents, settings.ingest_batch_bytes)
        first = deque(itertools.islice(batches, 2))
        if not first and not removed:
            return WriteReport(manifest_version=core.current_number())
        if len(first) < 2:
            return writer.upsert(
                Batch(first[0] if first else [], SYNC_OWNER, settings.chunk_bytes, {}, revisions), removed
            )
        context = replace(core.context, settings=replace(settings, build_part_bytes=settings.ingest_batch_bytes))
        builder = PartBuilder(
            context.kb_id, context.settings, core.store, core.preparation, context.clock, context.new_id, context.cache
        )
        build = Build(
            context, writer, core.preparation, core.pending_shards, lambda progress: on_stored(progress.built)
        )
        load = BulkLoad(SYNC_OWNER, settings.chunk_bytes, revisions, removed)
        return core.compact_debt(build.run(_join_batches(first, batches), load, LocalRunner(builder)))


def _join_batches(first: deque[list[Document]], others: Iterator[list[Document]]) -> Iterator[Document]:
    """Yield the documents of all batches, without a reference to a batch that is done."""
    while first:
        yield from first.popleft()
    yield from itertools.chain.from_iterable(others)


def _count_stored(read: Sequence[str], observer: SyncObserver) -> Callable[[int], None]:
    """Return a function that reports the first N of the sources that were read as stored."""
    reported = 0

    def note(stored: int) -> None:
        nonlocal reported
        for source_id in read[reported:stored]:
            observer.finished(source_id)
            reported += 1

    return note


@dataclass(frozen=True, slots=True)
class SettingChange:
    """A setting that must change to name the new embedder of a KB."""

    key: str
    value: str
    """The new value; "" for none."""
    configured: str
    where: str
    """The line of the configuration file, or the variable; "" if it is not set."""
    advice: str


def with_embedder(settings: Settings, kind: str | None, model: str | None, dimension: int | None) -> Settings:
    """Return settings with another embedder. Another kind resets model and dimension. Raises E402."""
    engine, kinds = settings.engine, get_args(EmbedderKind)
    if kind is not None and kind not in kinds:
        raise errors.command_line_invalid(f"unknown embedder: {kind}", hints=[f"One of: {', '.join(kinds)}"])
    if kind is not None and kind != engine.embedder:
        engine = replace(engine, embedder=cast("EmbedderKind", kind), embedding_model="", embedding_dimension=0)
    if model is not None:
        engine = replace(engine, embedding_model=model)
    if dimension is not None:
        engine = replace(engine, embedding_dimension=dimension)
    return replace(settings, engine=engine)


def changes_to(settings: Settings, wanted: Settings) -> list[SettingChange]:
    """Return the changes of the configuration that name the wanted embedder."""
    changes = []
    for name in ("embedder", "embedding_model", "embedding_dimension"):
        before, value = str(getattr(settings.engine, name) or ""), str(getattr(wanted.engine, name) or "")
        if before == value:
            continue
        where = settings.places.get(f"engine.{name}", "")
        if where.startswith("PAIR__"):
            advice = f"set {where}={value}" if value else f"unset {where}"
        elif where:
            advice = f"change {where} to `{name}: {value}`" if value else f"remove {where}, `{name}: {before}`"
        else:
            file, variable = settings.config_path or CONFIG_PLACES[0], f"PAIR__ENGINE__{name.upper()}"
            advice = f"write `{name}: {value}` below `engine:` in {file}, or set {variable}={value}"
        changes.append(SettingChange(f"engine.{name}", value, before, where, advice))
    return changes


class KbBackup:
    """Exports and imports of a KB, and its packaged index."""

    def __init__(self, core: "KbCore") -> None:
        self._core = core

    def export(
        self, target: Path | BinaryIO, *, vectors: bool = True, on_progress: Progress = ignore_progress
    ) -> ExportReport:
        """Write all documents as JSON lines into a file (compressed if its name ends in .gz) or a stream.

        Raises E201, E205, E206, E207, E010.
        """
        context, options = self._core.context, ExportOptions(vectors, on_progress)
        with contextlib.ExitStack() as cleanup:
            snapshot = self._core.read(lambda manifest: take_snapshot(manifest, context, options, cleanup))
            return export_documents(snapshot, target, options)

    def import_from(
        self,
        path: Path,
        *,
        replace_all: bool = False,
        embed: bool = False,
        on_progress: Progress = ignore_progress,
    ) -> WriteReport:
        """Store the documents of an export; all of them become visible at once.

        `replace_all`: remove documents that are not in the file. `embed`: chunk and embed again, for a file of another
        embedder. Raises E003, E224, E225, E226, and the errors of a write.
        """
        core = self._core
        importer = Importer(core.context, core.writer, core.preparation, core.pending_shards, on_progress)
        report = importer.run(open_export(path), replace_all=replace_all, embed=embed)
        return core.compact_debt(report) if report.chunks else report

    def pack_index(self) -> PortableIndex:
        """Return the index in the form of a package. Raises E201."""
        return pack_index(self._core.context.manifests.require().manifest)

    def read_packed(self, file: PortableFile) -> Iterator[bytes]:
        """Yield the content of a file of a packed index. Raises E207 if the store has lost it."""
        for start in range(0, file.size_bytes, CHUNK_BYTES):
            chunk = self._core.store.get_range(file.key, start, min(CHUNK_BYTES, file.size_bytes - start))
            if chunk is None:
                raise errors.stored_data_damaged(file.key, "it is no longer in the store")
            yield chunk

    def write_site(self, put: PutFile) -> SiteData:
        """Write the data of a site that answers in the browser. Raises E014, E201, E207, E305."""
        return self._core.read(lambda manifest: write_site(manifest, self._core.engine.cache, put))

    def package_merger(self) -> PackageMerger:
        """Return the object that merges a packaged index into this KB."""
        core = self._core
        return PackageMerger(core.context, core.store, core.writer, core.embedding)


class KbGraph:
    """The graph of documents and the entities that they name."""

    def __init__(self, core: "KbCore") -> None:
        self._core = core

    def around_document(self, document_id: str, *, limit: int = 30) -> Neighbourhood:
        """Return the entities that a document names, and other documents that name them. Raises E201, E204, E214."""

        def read(manifest: Manifest) -> Neighbourhood:
            place = self._core.document_reader(manifest).place(document_id)
            return self._open(manifest).around_document(place.position, place.doc, limit)

        return self._core.read(read)

    def around_entity(self, name: str, *, limit: int = 30) -> Neighbourhood:
        """Return the entities named together with an entity, and the documents that name it. Raises E201, E204."""
        return self._core.read(lambda manifest: self._open(manifest).around_entity(name, limit))

    def _open(self, manifest: Manifest) -> GraphView:
        return GraphView(manifest, self._core.context.cache, self._core.context.clock.monotonic())
