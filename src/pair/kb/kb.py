"""KnowledgeBase: the stages, for one KB."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, Self

import numpy as np

from pair import errors, values
from pair.engine.backup.export import ExportReport
from pair.engine.backup.fsck import FsckOptions, FsckReport, Obtainable
from pair.engine.filters import Filter, parse_assignments, parse_filter
from pair.engine.maintenance.compaction import CompactionReport
from pair.engine.maintenance.diff import CURRENT, DocumentChanges, ManifestDiff
from pair.engine.maintenance.gc import GarbageReport
from pair.engine.maintenance.merge_package import PackageMerger, PortableFile, PortableIndex
from pair.engine.maintenance.reembed import ReembedReport
from pair.engine.maintenance.versions import ListedVersion, Rollback
from pair.engine.query.documents import StoredDocument
from pair.engine.query.graph_view import Neighbourhood
from pair.engine.query.request import Hits, Limits, SearchRequest
from pair.engine.query.shard_access import PrefetchReport
from pair.engine.runtime import Engine, EngineStats
from pair.engine.storage.shard_cache import SweepReport
from pair.engine.write.bulk_load import BuildProgress, Runner
from pair.engine.write.prepare import check_document
from pair.engine.write.writer import WriteReport
from pair.sync.report import SyncReport
from pair.sync.source_text import DescribedSource, SyncedDocuments
from pair.values import DEFAULT_MODE, MODES, Document, GraphParameters, SearchOptions

if TYPE_CHECKING:  # whoever only searches does not wait for asyncio
    from pair.librarians.contract import Context, Response

__all__ = [
    "DocumentChanges",
    "GraphParameters",
    "Hits",
    "KnowledgeBase",
    "ListedVersion",
    "ManifestDiff",
    "Neighbourhood",
    "ReconcileReport",
    "SearchOptions",
    "StoredDocument",
]

SYNC_OWNER = "sync"
INGEST_OWNER = "ingest"


Conditions = Mapping[str, Any] | Sequence[str]
"""On metadata: `{"year": {"gte": 2020}}`, or as on the command line, `["year>=2020"]`. All must hold."""


class SyncedSources(Protocol):
    """The sync stage, as far as the engine is concerned."""

    def run(self, *, wait: bool) -> SyncReport: ...

    def texts(self) -> SyncedDocuments:
        """As last saved."""
        ...

    def known(self) -> SyncedDocuments:
        """The same, read again only when it was saved since."""
        ...


class AskService(Protocol):
    """Librarians, as far as a KB is concerned."""

    async def ask(
        self, query: str, *, first: str | None, context: "Context | None", timeout: float | None
    ) -> "Response": ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ReconcileReport:
    """What it took to bring the engine in line with the synced sources."""

    stored: int = 0
    removed: int = 0
    unchanged: int = 0
    held_at: int = 0
    """The version that a roll-back put back, and that was left as it is; 0 for none."""
    seen_version: str = ""
    """What the store calls the manifest that is in line; what others write later is not."""
    refused: tuple[tuple[str, str], ...] = ()
    """Source and reason, for each that cannot be stored."""

    def complete_report(self, report: SyncReport) -> SyncReport:
        """Return the report of the run with what the engine did about it."""
        problems = dict(report.problems) | dict(self.refused)
        return dataclasses.replace(
            report,
            stored=self.stored,
            unstored=self.removed,
            held_at=self.held_at,
            failed=report.failed + len(self.refused),
            problems=tuple(sorted(problems.items())),
        )


def nothing_done(_report: WriteReport) -> None:
    """For callers that want the report only."""


def _nobody(kb: "KnowledgeBase") -> AskService:
    raise errors.settings_invalid("ask", f"the knowledge base {kb.kb_id} was opened without librarians")


class KnowledgeBase:
    """Used from several threads at once. `close` it, or use it as a context manager."""

    def __init__(
        self,
        engine: Engine,
        sources: SyncedSources | None = None,
        desk: "Callable[[KnowledgeBase], AskService]" = _nobody,
    ) -> None:
        """`desk`: who answers questions, made with the first of them."""
        self._engine = engine
        self._sources = sources
        self._make_desk = desk
        self._desk: AskService | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._desk is not None:
            self._desk.close()
        self._engine.close()

    @property
    def kb_id(self) -> str:
        return self._engine.kb_id

    @property
    def is_past(self) -> bool:
        """Whether it is one version that is read, and never the next."""
        return self._engine.is_past

    # Writing

    def sync(self, *, wait: bool = True) -> SyncReport:
        """Bring the index in line with files and URLs, then the engine with the index."""
        if self._sources is None:
            raise errors.settings_invalid("sync", "this knowledge base was opened without sources to sync")
        began = self._engine.current_number()
        report = self._sources.run(wait=wait)
        done = self.reconcile(since=began)
        return done.complete_report(report)

    def reconcile(
        self,
        on_batch: Callable[[WriteReport], None] = nothing_done,
        *,
        resume: bool = True,
        since: int | None = None,
    ) -> ReconcileReport:
        """Compare the hashes of what was synced with those of what is stored, and close the difference.

        What was rolled back stays as it is, unless `resume`: somebody wants it to follow its sources again, and did so
        when the version `since` was current (None for now). Raises E236 for what was rolled back later.
        """
        if self._sources is None:
            return ReconcileReport()
        engine = self._engine.since(self._engine.current_number() if since is None else since)
        restored = engine.restored_version()
        if restored and not resume:
            return ReconcileReport(held_at=restored)
        try:
            if restored:
                engine.release()
            return self._brought_in_line(engine, self._sources.texts(), on_batch)
        except errors.ConflictError as fault:
            restored = engine.restored_version()
            if resume or fault.code != errors.ROLLED_BACK_MEANWHILE or not restored:
                raise
            return ReconcileReport(held_at=restored)

    def _brought_in_line(
        self, engine: Engine, texts: SyncedDocuments, on_batch: Callable[[WriteReport], None]
    ) -> ReconcileReport:
        revisions = texts.revisions()
        stored = engine.hashes(SYNC_OWNER)
        changed = [
            source_id
            for source_id, revision in sorted(revisions.items())
            if stored.get(source_id) != engine.revised_hash(revision, SYNC_OWNER)
        ]
        gone = self._let_go(stored.keys() - revisions.keys())
        refused: dict[str, str] = {}

        def drop(source_id: str) -> None:
            if source_id in stored:
                gone.append(source_id)

        report = WriteReport()
        if changed or gone:
            as_read = dict(revisions)
            documents = _documents(texts, changed, as_read, refused, drop)
            report = engine.replace(documents, owner=SYNC_OWNER, removed=gone, revisions=as_read)
            on_batch(report)
        return ReconcileReport(
            stored=report.added + report.replaced,
            removed=report.deleted,
            unchanged=len(revisions) - len(changed),
            seen_version=engine.seen_version(),
            refused=tuple(sorted(refused.items())),
        )

    def _let_go(self, unknown: set[str]) -> list[str]:
        """Of what is stored and no source any more. Pages that came with a package were never sources here."""
        pages = {each for each in unknown if each.startswith(("http://", "https://"))}
        return sorted(unknown - (pages & self._engine.packaged_ids() if pages else set()))

    def upsert(
        self,
        documents: Iterable[Document],
        *,
        owner: str = INGEST_OWNER,
        chunk_size: int | None = None,
        on_batch: Callable[[WriteReport], None] = nothing_done,
    ) -> WriteReport:
        """Add or replace. What is stored as it is costs nothing. Documents may be a stream of any length.

        Raises E213, E238.
        """
        checked = _check_load(documents, owner, chunk_size)
        return self._engine.upsert(checked, owner=owner, chunk_size_bytes=chunk_size, on_batch=on_batch)

    def build(
        self,
        documents: Iterable[Document],
        runner: Runner,
        *,
        owner: str = INGEST_OWNER,
        chunk_size: int | None = None,
        on_progress: Callable[[BuildProgress], None] = lambda progress: None,
    ) -> WriteReport:
        """As `upsert`, for large loads: workers do it, and all of it becomes visible at once.

        Run again after an interruption, it does not build again what was built.
        """
        checked = _check_load(documents, owner, chunk_size)
        return self._engine.build(checked, runner, owner=owner, chunk_size_bytes=chunk_size, on_progress=on_progress)

    def delete(
        self,
        ids: Sequence[str] = (),
        *,
        owner: str | None = None,
        filter: Conditions | None = None,  # noqa: A002
    ) -> WriteReport:
        """Documents with these ids, all of an owner, and all whose metadata meets the filter.

        Raises E105, and deletes nothing, if a source that is synced would bring one of them back.
        """
        values.check_texts("ids", ids)
        values.check_text("owner", owner, optional=True)
        values.check_filter(filter)
        condition = _condition(filter) if filter else None
        synced = self._sources.known().revisions().keys() if self._sources is not None else set[str]()
        if owner is None and condition is None:
            synced = synced & set(ids)
        return self._engine.delete(ids=ids, owner=owner, condition=condition, synced=sorted(synced))

    # Reading

    def search(  # noqa: PLR0913 - the one that everybody calls
        self,
        query: str,
        *,
        limit: int = 5,
        mode: str = DEFAULT_MODE,
        filter: Conditions | None = None,  # noqa: A002 - the public name
        exact: bool = False,
        explain: bool = False,
        options: SearchOptions | None = None,
    ) -> Hits:
        """Passages that answer the query, best first. Raises E201, E204, E215, E238, E304; ModelError.

        `exact` asks every row of every shard; `explain` says of each hit how it got its score.
        """
        values.check_search(query, limit, filter, options)
        if mode not in MODES:
            raise errors.query_invalid(f"unknown mode: {mode}", hints=[f"Modes: {', '.join(MODES)}"])
        if not query.strip():
            raise errors.query_invalid("the query is empty")
        more = options or SearchOptions()
        return self._engine.search(
            SearchRequest(
                text=query,
                limit=limit,
                mode=mode,
                narrowing=Limits(_condition(filter) if filter else None, more.max_distance, exact),
                graph=more.graph,
                diversity=more.diversity,
                explain=explain,
                highlights=more.highlights,
            )
        )

    def search_vector(
        self,
        vector: Sequence[float] | np.ndarray,
        *,
        limit: int = 5,
        filter: Conditions | None = None,  # noqa: A002 - the public name
        max_distance: float | None = None,
        exact: bool = False,
    ) -> Hits:
        """Chunks near to a vector, nearest first. `exact` asks every shard and every row. Raises E238, E303."""
        values.check_count("limit", limit)
        values.check_filter(filter)
        values.check_number("max_distance", max_distance)
        condition = _condition(filter) if filter else None
        return self._engine.search_vector(_check_vector(vector), limit, Limits(condition, max_distance, exact))

    def search_by_distance(self, vector: Sequence[float] | np.ndarray, max_distance: float) -> Hits:
        """Up to a thousand chunks that are strictly nearer than this."""
        return self.search_vector(vector, limit=1000, max_distance=max_distance)

    def words_in(self, query: str, texts: Sequence[str]) -> list[frozenset[str]]:
        """Which words of a question each of these texts holds, as keyword search counts them."""
        return self._engine.words_in(query, texts)

    def likeness(self, query: str, texts: Sequence[str]) -> list[float]:
        """How near in meaning each of these texts is to a question: 1 is the same. Raises ModelError."""
        return self._engine.likeness(query, texts)

    async def ask(
        self, query: str, *, first: str | None = None, context: "Context | None" = None, timeout: float | None = None
    ) -> "Response":
        """An answer with its sources, or an error; nothing is raised for what goes wrong on the way.

        `first`: who is asked, by id. `timeout`: seconds, for everybody together.
        """
        values.check_text("query", query)
        if self._desk is None:
            self._desk = self._make_desk(self)
        return await self._desk.ask(query, first=first, context=context, timeout=timeout)

    @property
    def is_synced(self) -> bool:
        """Whether it was opened with sources that are synced into it."""
        return self._sources is not None

    def described_sources(self) -> list[DescribedSource]:
        """What the index says of each synced source."""
        return self._sources.known().describe_sources() if self._sources is not None else []

    def fetched_at(self, document_ids: Sequence[str]) -> dict[str, str]:
        """When each of these was last fetched, or last read if it is a file; "" for what was not synced."""
        if self._sources is None:
            return {}
        known = self._sources.known()
        return {each: known.seen_at(each) for each in document_ids}

    def documents(self, *, after: str = "", limit: int = 100, owner: str | None = None) -> list[StoredDocument]:
        """Stored documents by id, from the first that comes after `after`."""
        values.check_text("after", after)
        values.check_count("limit", limit)
        values.check_text("owner", owner, optional=True)
        return self._engine.documents(after=after, limit=limit, owner=owner)

    def documents_holding(
        self, text: str, *, after: str = "", limit: int = 100, owner: str | None = None
    ) -> tuple[list[StoredDocument], str | None]:
        """Those with this text in their id or title, and the id to go on after; maybe none here and more to come."""
        return self._engine.documents_holding(text, after=after, limit=limit, owner=owner)

    def around_document(self, document_id: str, *, limit: int = 30) -> Neighbourhood:
        """What a document names, and which other documents name the same. Raises E204, E214."""
        return self._engine.around_document(document_id, limit)

    def around_entity(self, name: str, *, limit: int = 30) -> Neighbourhood:
        """What is named together with this, and the documents that name it. Raises E204."""
        return self._engine.around_entity(name, limit)

    def document(self, document_id: str) -> StoredDocument:
        """Raises E214."""
        values.check_text("document_id", document_id)
        return self._engine.document(document_id)

    def known(self, ids: Iterable[str]) -> frozenset[str]:
        """Those of these ids that a stored document has. Raises E201."""
        values.check_texts("ids", ids)
        return self._engine.known(ids)

    # Backup

    def export(
        self,
        target: Path | BinaryIO,
        *,
        vectors: bool = True,
        on_progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> ExportReport:
        """All documents as JSON lines into a file (packed, if its name ends in .gz) or a stream."""
        return self._engine.export(target, vectors=vectors, on_progress=on_progress)

    def export_shards(
        self, path: Path, on_progress: Callable[[int, int], None] = lambda done, total: None
    ) -> ExportReport:
        """The manifest and all shards as they are, into a zip."""
        return self._engine.export_shards(path, on_progress)

    def import_from(
        self,
        path: Path,
        *,
        replace_all: bool = False,
        embed: bool = False,
        on_progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> WriteReport:
        """What `export` or `export_shards` wrote, visible all at once. Raises E224, E225, E226, E227.

        `replace_all`: what is not in the file goes. `embed`: cut and embed anew, for files of another embedder.
        """
        return self._engine.import_from(path, replace_all=replace_all, embed=embed, on_progress=on_progress)

    # Care

    def compact(
        self, *, everything: bool = False, on_progress: Callable[[int, int], None] = lambda done, total: None
    ) -> CompactionReport:
        """Merge and re-cluster shards that are worth it, or all of them."""
        return self._engine.compact(everything=everything, on_progress=on_progress)

    def reembed(
        self, *, dry_run: bool = False, on_progress: Callable[[int, int], None] = lambda done, total: None
    ) -> ReembedReport:
        """Give all that is stored vectors of the embedder that this KB was opened with, where they are another's.

        Readers and writers with the former embedder go on until the end, and get E304 from then on. What was
        interrupted goes on where it stopped. `dry_run` says how much there is to do.
        Raises E201, E307, E308; ModelError.
        """
        return self._engine.reembed(dry_run=dry_run, on_progress=on_progress)

    def collect(self, *, grace_seconds: float | None = None) -> GarbageReport:
        """Delete shards that no manifest has named for the grace period."""
        return self._engine.collect(grace_seconds=grace_seconds)

    def fsck(
        self,
        *,
        repair: bool = False,
        drop_lost: bool = False,
        packages: Sequence[Path] = (),
        on_progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> FsckReport:
        """Verify every byte that is stored, and repair what can be: see the guide. Raises E201, E003, E225.

        `packages`: zips that may hold what is damaged. `drop_lost`: give up what cannot be repaired.
        """
        obtainable = Obtainable(SYNC_OWNER, self._readable) if self._sources is not None else None
        report = self._engine.fsck(FsckOptions(repair, drop_lost, tuple(packages), obtainable), on_progress)
        if report.dropped:
            self.reconcile(resume=False)
        return report

    def _readable(self) -> frozenset[str]:
        """Sources whose text can be had."""
        if self._sources is None:
            return frozenset()
        texts = self._sources.texts()
        return frozenset(each for each in texts.revisions() if texts.document(each) is not None)

    def packed_index(self) -> PortableIndex:
        """What of it travels in a package. Raises E201."""
        return self._engine.packed()

    def packed_content(self, file: PortableFile) -> Iterator[bytes]:
        """Of a file of that. Raises E207."""
        return self._engine.packed_content(file)

    def adoption(self) -> PackageMerger:
        """For taking up what travelled."""
        return self._engine.adoption()

    def versions(self) -> list[ListedVersion]:
        """The current one and those that can be gone back to, the newest first. Raises E201."""
        return self._engine.versions()

    def version_numbers(self) -> list[int]:
        """Of every version that can be read, the newest first: more than are worth listing. Raises E201."""
        return self._engine.version_numbers()

    def version_number(self, version: int | str) -> int:
        """Of a version that may be named by that of a package. A number is not looked up. Raises E201, E218."""
        return self._engine.version_number(str(version))

    def at(self, version: int | str) -> "KnowledgeBase":
        """As it was in this version, only for reading. Raises E201, E218.

        It shares what this one has open: `close` it before this one.
        """
        return KnowledgeBase(self._engine.at(str(version)), desk=self._make_desk)

    def diff(self, a: int | str, b: int | str = CURRENT) -> DocumentChanges:
        """Which documents differ between two versions, by id. Raises E201, E218."""
        return self.compare(a, b).changes

    def compare(self, a: int | str, b: int | str = CURRENT) -> ManifestDiff:
        """As `diff`, for those who want to see texts, too."""
        return self._engine.compare(str(a), str(b))

    def text_at(self, version: int | str, document_id: str) -> str | None:
        """The text of a document in a version; None where there was none. Raises E201, E218."""
        return self._engine.text_at(str(version), document_id)

    def rollback(self, version: int | str) -> Rollback:
        """Make an earlier version the current one, by its number, else by the version of the package installed then.

        It is a new version itself. Sync leaves it as it is until somebody syncs on purpose. Raises E201, E218.
        """
        return self._engine.roll_back(str(version))

    def sweep(self) -> SweepReport:
        """Evict fetched shards that are too old or too many."""
        return self._engine.sweep()

    def prefetch(self, most_bytes: int, go_on: Callable[[], bool] = lambda: True) -> PrefetchReport:
        """Fetch what queries are likely to want, one file after another, without evicting anything for it."""
        return self._engine.prefetch(most_bytes, go_on)

    def version(self, *, last_seen: bool = False) -> tuple[int, str]:
        """Number and id of what is stored, or of what was last seen of it: others after every write. Raises E201."""
        return self._engine.version(last_seen=last_seen)

    def stats(self) -> EngineStats | None:
        """None when nothing was ever stored."""
        return self._engine.stats()


def _documents(
    texts: SyncedDocuments,
    source_ids: Iterable[str],
    revisions: dict[str, str],
    refused: dict[str, str],
    drop: Callable[[str], None],
) -> Iterator[Document]:
    """Read one by one, as the engine takes them; each is entered into `revisions` as it was read.

    One that cannot be stored is entered into `refused`, and keeps no other from being stored.

    A source may have changed since it was synced: known by what was synced, it would be taken for that for ever.
    A source without text is not stored; `drop` is told of it.
    """
    for source_id in source_ids:
        document = texts.document(source_id)
        if document is None:
            continue
        if not document.text.strip():
            drop(source_id)
            continue
        try:
            check_document(document)
        except errors.UsageError as fault:
            refused[source_id] = f"cannot be stored: {fault.details['reason']}"
            continue
        revisions[source_id] = texts.revision_of(document.text)
        yield document


def _condition(conditions: Conditions) -> Filter:
    return parse_filter(conditions) if isinstance(conditions, Mapping) else parse_assignments(conditions)


def _check_load(documents: Iterable[Document], owner: str, chunk_size: int | None) -> Iterator[Document]:
    """Raises E238."""
    values.check_text("owner", owner)
    values.check_count("chunk_size", chunk_size, optional=True)
    return values.check_documents(documents)


def _check_vector(vector: Sequence[float] | np.ndarray) -> np.ndarray:
    """Raises E238."""
    try:
        with np.errstate(over="ignore"):
            asked = np.asarray(vector, dtype=np.float32)
    except (TypeError, ValueError) as fault:
        raise errors.argument_invalid("vector", "a list of numbers", vector) from fault
    if asked.ndim != 1:
        raise errors.argument_invalid("vector", "a list of numbers", vector)
    return asked
