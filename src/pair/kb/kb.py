"""KnowledgeBase: write, search, ask and sync one KB."""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from pair import errors, values
from pair.ai.caching_embedder import CachingEmbedder
from pair.engine.filters import Filter, parse_assignments, parse_filter
from pair.engine.query.retrieve import SearchRequest
from pair.engine.query.search import rerank
from pair.text import tokenizer
from pair.values import DEFAULT_MODE, MODES, Document, Hits, SearchOptions

if TYPE_CHECKING:  # a search does not wait for what writes, maintains and answers
    from pair.engine.query.documents import StoredDocument
    from pair.engine.summary import EngineStats
    from pair.engine.write.bulk_load import BuildProgress, Runner
    from pair.engine.write.writer import WriteReport
    from pair.kb.librarians import KbLibrarians
    from pair.kb.maintenance import KbBackup, KbGraph, KbMaintenance, KbVersions
    from pair.kb.open import KbCore
    from pair.kb.sync import SyncService
    from pair.librarians.contract import Context, Response
    from pair.sync.report import SyncReport

INGEST_OWNER = "ingest"
_RERANKED = 30
"""The least number of hits that a reranker sees."""

Conditions = Mapping[str, Any] | Sequence[str]
"""On metadata: `{"year": {"gte": 2020}}`, or as on the command line, `["year>=2020"]`. All must hold."""


class KnowledgeBase:
    """Used from several threads at once. `close` it, or use it as a context manager."""

    sources: "SyncService | None"
    """What is synced into it."""
    collection: "KbCollection"
    """What the librarians of the KB read."""

    def __init__(
        self,
        core: "KbCore",
        sources: "SyncService | None" = None,
        make_librarians: "Callable[[KnowledgeBase], KbLibrarians] | None" = None,
    ) -> None:
        """`sources`: what is synced into it. `make_librarians`: called with the first question."""
        self._core = core
        self._make_librarians = make_librarians
        self._librarians: KbLibrarians | None = None
        self.sources = sources
        self.collection = KbCollection(self, core.embedding)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._librarians is not None:
            self._librarians.close()
        self._core.close()

    @property
    def kb_id(self) -> str:
        return self._core.kb_id

    @property
    def is_past(self) -> bool:
        """Whether it was opened at one version, and never shows the next."""
        return self._core.at is not None

    @functools.cached_property
    def versions(self) -> "KbVersions":
        """List, compare and restore versions."""
        from pair.kb.maintenance import KbVersions  # noqa: PLC0415 - see TYPE_CHECKING

        return KbVersions(self._core)

    @functools.cached_property
    def maintenance(self) -> "KbMaintenance":
        """Compact, collect garbage, re-embed, check and repair."""
        from pair.kb.maintenance import KbMaintenance  # noqa: PLC0415

        return KbMaintenance(self._core, self.sources)

    @functools.cached_property
    def backup(self) -> "KbBackup":
        """Export, import, and pack the index."""
        from pair.kb.maintenance import KbBackup  # noqa: PLC0415

        return KbBackup(self._core)

    @functools.cached_property
    def graph(self) -> "KbGraph":
        """The graph of documents and the entities that they name."""
        from pair.kb.maintenance import KbGraph  # noqa: PLC0415

        return KbGraph(self._core)

    # Writing

    def sync(self, *, wait: bool = True) -> "SyncReport":
        """Bring the index in line with files and URLs, then the engine with the index."""
        if self.sources is None:
            raise errors.settings_invalid("sync", "this knowledge base was opened without sources to sync")
        return self.sources.sync(self, wait=wait)

    def upsert(
        self,
        documents: Iterable[Document],
        *,
        owner: str = INGEST_OWNER,
        chunk_size: int | None = None,
        on_batch: "Callable[[WriteReport], None]" = lambda report: None,
    ) -> "WriteReport":
        """Add or replace documents, a stream of any length, in batches. Unchanged documents cost nothing.

        Each batch is published by itself. Raises E213, E238.
        """
        from pair.engine.write.prepare import Batch, split_batches  # noqa: PLC0415 - see TYPE_CHECKING
        from pair.engine.write.writer import WriteReport  # noqa: PLC0415

        settings = self._core.settings.engine
        checked = _check_load(documents, owner, chunk_size)
        total, batches = WriteReport(), 0
        for part in split_batches(checked, settings.ingest_batch_documents, settings.ingest_batch_bytes):
            unique = list({document.id: document for document in part}.values())
            report = self._core.writer.upsert(Batch(unique, owner, chunk_size or settings.chunk_bytes, {}, {}))
            batches += 1
            total += report
            on_batch(report)
        return self._core.compact_debt(total) if batches > 1 else total

    def build(
        self,
        documents: Iterable[Document],
        runner: "Runner",
        *,
        owner: str = INGEST_OWNER,
        chunk_size: int | None = None,
        on_progress: "Callable[[BuildProgress], None]" = lambda progress: None,
    ) -> "WriteReport":
        """Load many documents with the workers of a runner; all of them become visible at once.

        A run after an interruption does not repeat finished parts. Raises E216, E217, and what `upsert` raises.
        """
        from pair.engine.maintenance.compaction import BulkMerge  # noqa: PLC0415 - see TYPE_CHECKING
        from pair.engine.write.bulk_load import Build, BulkLoad  # noqa: PLC0415

        core = self._core
        checked = _check_load(documents, owner, chunk_size)
        build = Build(core.context, core.writer, core.preparation, core.pending_shards, on_progress)
        report = build.run(checked, BulkLoad(owner, chunk_size or core.settings.engine.chunk_bytes), runner)
        return core.compact_debt(report, BulkMerge(runner, core.pending_shards)) if report.chunks else report

    def delete(
        self,
        ids: Sequence[str] = (),
        *,
        owner: str | None = None,
        filter: Conditions | None = None,  # noqa: A002 - the public name
    ) -> "WriteReport":
        """Delete documents with these ids, all of an owner, and all whose metadata meets the filter.

        Raises E105, and deletes nothing, if a synced source would bring one of them back.
        """
        values.check_texts("ids", ids)
        values.check_text("owner", owner, optional=True)
        values.check_filter(filter)
        condition = _parse_filter(filter)
        synced = self.sources.current_texts().revisions().keys() if self.sources is not None else set[str]()
        if owner is None and condition is None:
            synced = synced & set(ids)
        return self._core.writer.delete(ids=ids, owner=owner, condition=condition, synced=sorted(synced))

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
        """Return passages that answer the query, best first.

        `exact` compares every row of every shard; `explain` tells how each hit got its score. Raises E201, E204,
        E205, E206, E215, E238, E304; E207 when no shard at all could be searched; ModelError.
        """
        values.check_search(query, limit, filter, options)
        if mode not in MODES:
            raise errors.query_invalid(f"unknown mode: {mode}", hints=[f"Modes: {', '.join(MODES)}"])
        if not query.strip():
            raise errors.query_invalid("the query is empty")
        condition = _parse_filter(filter)
        core, engine, embedding = self._core, self._core.engine, self._core.embedding
        # The first search reads the manifest once, and does not look again whether it changed.
        published = engine.manifests.first()
        vector, weight, embedder = None, 0.0, ""
        if mode != "keyword":
            stored, embedder = engine.manifests.known().manifest.embedder, embedding.name
            if stored != embedder:  # the last manifest seen may be outdated
                stored = engine.manifests.require().manifest.embedder
            if stored != embedder:
                raise errors.embedder_differs(self.kb_id, stored, embedder)
            vector, weight = embedding.embed_query(query), embedding.weight_of(query)
        request = SearchRequest(
            text=query,
            words=None if mode == "vector" else tokenizer.parse_query(query),
            vector=vector,
            vector_weight=weight,
            embedder=embedder,
            limit=limit if core.reranker is None else max(_RERANKED, limit),
            mode=mode,
            condition=condition,
            exact=exact,
            explain=explain,
            options=options or SearchOptions(),
        )
        hits = engine.search.find(request, published)
        return hits if core.reranker is None else rerank(hits, query, limit, core.reranker)

    def search_vector(
        self,
        vector: Sequence[float] | np.ndarray,
        *,
        limit: int = 5,
        filter: Conditions | None = None,  # noqa: A002 - the public name
        max_distance: float | None = None,
        exact: bool = False,
    ) -> Hits:
        """Return chunks near to a vector, nearest first. `exact` compares every row. Raises E238, E303."""
        values.check_count("limit", limit)
        values.check_filter(filter)
        options = SearchOptions(max_distance=max_distance)
        request = SearchRequest(
            vector=_check_vector(vector),
            embedder=self._core.embedding.name,
            limit=limit,
            mode="vector",
            condition=_parse_filter(filter),
            exact=exact,
            options=options,
        )
        return self._core.engine.search.nearest(request)

    def search_by_distance(self, vector: Sequence[float] | np.ndarray, max_distance: float) -> Hits:
        """Return up to 1000 chunks that are strictly nearer than this."""
        return self.search_vector(vector, limit=1000, max_distance=max_distance)

    async def ask(
        self, query: str, *, first: str | None = None, context: "Context | None" = None, timeout: float | None = None
    ) -> "Response":
        """Return an answer with its sources, or an error; failures on the way are not raised.

        `first`: the librarian to ask, by id. `timeout`: seconds, for all librarians together.
        """
        values.check_text("query", query)
        if self._librarians is None:
            if self._make_librarians is None:
                raise errors.settings_invalid("ask", f"the knowledge base {self.kb_id} was opened without librarians")
            self._librarians = self._make_librarians(self)
        return await self._librarians.ask(query, first=first, context=context, timeout=timeout)

    def documents(self, *, after: str = "", limit: int = 100, owner: str | None = None) -> "list[StoredDocument]":
        """Return stored documents by id, from the first that comes after `after`."""
        values.check_text("after", after)
        values.check_count("limit", limit)
        values.check_text("owner", owner, optional=True)
        return self._core.read_documents(lambda reader: reader.page(after, limit, owner))

    def find_documents(
        self, text: str, *, after: str = "", limit: int = 100, owner: str | None = None
    ) -> "tuple[list[StoredDocument], str | None]":
        """Return documents with this text in their id or title, and the id to go on after; None at the end.

        One call looks at a bounded number of documents: it may return few or none although there are more.
        """
        return self._core.read_documents(lambda reader: reader.holding(text, after, limit, owner))

    def document(self, document_id: str) -> "StoredDocument":
        """Raises E201, E214."""
        values.check_text("document_id", document_id)
        return self._core.read_documents(lambda reader: reader.document(document_id))

    def existing_ids(self, ids: Iterable[str]) -> frozenset[str]:
        """Return the ids that exist in the KB. Raises E201."""
        from pair.engine.write.writer import find_stored  # noqa: PLC0415 - see TYPE_CHECKING

        values.check_texts("ids", ids)
        unique, cache = list(dict.fromkeys(ids)), self._core.engine.cache
        return self._core.read(lambda manifest: frozenset(find_stored(manifest, cache, unique)))

    def at(self, version: int | str) -> "KnowledgeBase":
        """Open an earlier version for reading. Raises E201, E218.

        It shares the open files of this KB: `close` it before this one.
        """
        return KnowledgeBase(self._core.open_at(str(version)), make_librarians=self._make_librarians)

    def version(self, *, last_seen: bool = False) -> tuple[int, str]:
        """Return number and id of the current version, or of the last one seen. Each write changes both. Raises E201.

        It takes one call to the store, or none for the last one seen.
        """
        manifests = self._core.engine.manifests
        manifest = (manifests.known() if last_seen else manifests.require()).manifest
        return manifest.number, manifest.commit_id

    def stats(self) -> "EngineStats | None":
        """Return figures of what is stored; None before the first write."""
        from pair.engine.rules import plan_compaction  # noqa: PLC0415 - see TYPE_CHECKING
        from pair.engine.summary import EngineStats  # noqa: PLC0415

        engine = self._core.engine
        published = engine.manifests.current()
        if published is None:
            return None
        plan = plan_compaction(published.manifest, self._core.settings.engine)
        debt = "" if plan.reason == "no_compaction_debt" else plan.reason
        return EngineStats.of(published.manifest, engine.cache, debt)


class KbCollection:
    """What the librarians of a KB read."""

    def __init__(
        self,
        kb: KnowledgeBase,
        embedding: CachingEmbedder,
        read_version: "Callable[[Callable[[KnowledgeBase], Hits]], Hits] | None" = None,
    ) -> None:
        """`read_version`: runs a search on an earlier version of the KB, whose sources are unknown."""
        self.kb_id = kb.kb_id
        self.embedding = embedding
        self._kb = kb
        self._read_version = read_version

    def search(self, query: str, *, limit: int, mode: str) -> tuple[Hits, dict[str, str]]:
        """Return passages, and when each document was last fetched, or read if it is a file; "" if it was not synced.

        Of an earlier version it is not known.
        """
        if self._read_version is not None:
            return self._read_version(lambda kb: kb.search(query, limit=limit, mode=mode, explain=True)), {}
        hits = self._kb.search(query, limit=limit, mode=mode, explain=True)
        if self._kb.sources is None:
            return hits, {}
        documents = [hit.document_id for hit in hits]
        seen_at = self._kb.sources.current_texts().seen_at
        return hits, dict(zip(documents, map(seen_at, documents), strict=True))


def _parse_filter(conditions: Conditions | None) -> Filter | None:
    if not conditions:
        return None
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
            numbers = np.asarray(vector, dtype=np.float32)
    except (TypeError, ValueError) as fault:
        raise errors.argument_invalid("vector", "a list of numbers", vector) from fault
    if numbers.ndim != 1:
        raise errors.argument_invalid("vector", "a list of numbers", vector)
    return np.ascontiguousarray(numbers)
