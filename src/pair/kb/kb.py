"""KnowledgeBase: the public object to write, search, ask and sync one KB."""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from pair import errors, values
from pair.ai.caching_embedder import CachingEmbedder
from pair.engine.filters import Filter, parse_assignments, parse_filter
from pair.engine.query.retrieve import SearchRequest
from pair.engine.query.search import rerank
from pair.text.entity_rules import find_question_entities
from pair.text.tokenizer import parse_query
from pair.values import DEFAULT_MODE, Document, Hits, SearchOptions

if TYPE_CHECKING:  # A search does not load the code that writes, maintains and answers.
    from pair.engine.maintenance.compaction import CompactionReport
    from pair.engine.query.documents import DocumentPage, DocumentReader, DocumentSelection, Facet, StoredDocument
    from pair.engine.storage.shard_cache import SweepReport
    from pair.engine.summary import EngineStats
    from pair.engine.write.writer import WriteReport
    from pair.kb.feedback import KbFeedback
    from pair.kb.librarians import KbLibrarians
    from pair.kb.maintenance import KbBackup, KbGraph, KbMaintenance, KbVersions
    from pair.kb.open import KbCore
    from pair.kb.sync import SyncService
    from pair.librarians.contract import Context, Response
    from pair.sync.report import SyncReport

_RERANKED = 30
"""Minimum number of hits that a reranker gets."""

Conditions = Mapping[str, Any] | Sequence[str]
"""Conditions on metadata: `{"year": {"gte": 2020}}`, or as on the command line, `["year>=2020"]`. All must hold.

Operators: `eq`, `ne`, `in`, `not_in`, `contains`, `exists`, `prefix`, `substring`, `substring_ignore_case`, `gt`,
`gte`, `lt`, `lte`. `$and`, `$or` and `$not` combine filters. A value inside another has a key with a dot:
`author.name`.
"""


class KnowledgeBase:
    """An open KB. Thread-safe. `close` it, or use it as a context manager."""

    sources: "SyncService | None"
    """The files and URLs that are synced into it."""
    collection: "KbCollection"
    """The passages that the librarians of the KB read."""

    def __init__(
        self,
        core: "KbCore",
        sources: "SyncService | None" = None,
        make_librarians: "Callable[[KnowledgeBase], KbLibrarians] | None" = None,
    ) -> None:
        """Prepare a KB; nothing is opened yet. `make_librarians`: called with the first question."""
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
        """Whether the KB was opened at one version and never shows a later one."""
        return self._core.at is not None

    @functools.cached_property
    def versions(self) -> "KbVersions":
        """List, compare and restore versions."""
        from pair.kb.maintenance import KbVersions  # noqa: PLC0415 - see TYPE_CHECKING

        def open_at(version: str) -> KnowledgeBase:
            return KnowledgeBase(self._core.open_at(version), make_librarians=self._make_librarians)

        return KbVersions(self._core, open_at)

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

    @functools.cached_property
    def feedback(self) -> "KbFeedback":
        """Judgements of users: whether documents answer a query."""
        from pair.kb.feedback import KbFeedback  # noqa: PLC0415

        return KbFeedback(self._core.engine.store, self.kb_id, self._core.clock)

    # Writing

    def sync(self, *, wait: bool = True) -> "SyncReport":
        """Update the index from files and URLs, then the engine from the index."""
        if self.sources is None:
            raise errors.settings_invalid("sync", "this knowledge base was opened without sources to sync")
        return self.sources.sync(self, wait=wait)

    def upsert(
        self,
        documents: Iterable[Document],
        *,
        owner: str = values.INGEST_OWNER,
        chunk_size: int | None = None,
        on_batch: "Callable[[WriteReport], None]" = lambda report: None,
    ) -> "WriteReport":
        """Add or replace documents from a stream of any length. Unchanged documents cost nothing.

        Each batch becomes visible when it is stored. Raises E213, E238.
        """
        from pair.engine.write.prepare import Batch, split_batches  # noqa: PLC0415 - see TYPE_CHECKING
        from pair.engine.write.writer import WriteReport  # noqa: PLC0415

        settings = self._core.settings.engine
        checked = values.check_load(documents, owner, chunk_size)
        total, batches = WriteReport(), 0
        for part in split_batches(checked, settings.ingest_batch_documents, settings.ingest_batch_bytes):
            unique = list({document.id: document for document in part}.values())
            report = self._core.writer.upsert(Batch(unique, owner, chunk_size or settings.chunk_bytes, {}, {}))
            batches += 1
            total += report
            on_batch(report)
        return self._core.compact_debt(total) if batches > 1 else total

    def delete(
        self,
        ids: Sequence[str] = (),
        *,
        owner: str | None = None,
        filter: Conditions | None = None,  # noqa: A002 - the public name
    ) -> "WriteReport":
        """Delete documents with these ids, all of an owner, and all whose metadata meets the filter.

        Ids that no document has are ignored, also before the first write.
        Raises E105 and deletes nothing if the next sync would restore one of them.
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

    def search(  # noqa: PLR0913 - the public method
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

        `exact`: compare every row of every shard. `explain`: explain the score of each hit. Raises E201, E204, E205,
        E206, E215, E238, E304; E207 if no shard could be searched; ModelError.
        """
        mode = values.check_search(query, mode, limit, filter, options)
        condition = _parse_filter(filter)
        core, engine, embedding = self._core, self._core.engine, self._core.embedding
        # The first search reads the manifest only once.
        published = engine.manifests.first()
        vector, weight, embedder = None, 0.0, ""
        if mode != "keyword":
            stored, embedder = engine.manifests.known().manifest.embedder, embedding.name
            if stored != embedder:  # The known manifest may be outdated.
                stored = engine.manifests.require().manifest.embedder
            if stored != embedder:
                raise errors.embedder_differs(self.kb_id, stored, embedder)
            given = None if options is None else options.vector
            vector = embedding.embed_query(query) if given is None else _check_vector(given)
            weight = embedding.weight_of(query)
        request = SearchRequest(
            text=query,
            words=None if mode == "vector" else parse_query(query),
            names=find_question_entities(query) if mode in {"graph", "adaptive"} else (),
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
        """Return chunks near to a vector, nearest first. `exact`: compare every row. Raises E238, E303."""
        values.check_count("limit", limit)
        values.check_filter(filter)
        request = SearchRequest(
            vector=_check_vector(vector),
            embedder=self._core.embedding.name,
            limit=limit,
            mode="vector",
            condition=_parse_filter(filter),
            exact=exact,
            options=SearchOptions(max_distance=max_distance),
        )
        return self._core.engine.search.nearest(request)

    async def ask(
        self, query: str, *, first: str | None = None, context: "Context | None" = None, timeout: float | None = None
    ) -> "Response":
        """Return an answer with its sources, or the error as a response: errors of librarians are not raised.

        `first`: the id of the librarian to ask. `timeout`: seconds for all librarians together.
        """
        values.check_text("query", query)
        if self._librarians is None:
            if self._make_librarians is None:
                raise errors.settings_invalid("ask", f"the knowledge base {self.kb_id} was opened without librarians")
            self._librarians = self._make_librarians(self)
        return await self._librarians.ask(query, first=first, context=context, timeout=timeout)

    def documents(  # noqa: PLR0913 - the public method
        self,
        *,
        after: str = "",
        limit: int = 100,
        owner: str | None = None,
        filter: Conditions | None = None,  # noqa: A002 - the public name
        contains: str = "",
        ids: Sequence[str] | None = None,
        vectors: bool = False,
    ) -> "DocumentPage":
        """Return a list of stored documents by id. Its `next` is the `after` of the next page; None at the end.

        `contains`: a text in the id or title. Then one call reads a bounded number of documents: a page may be empty
        before the end. `ids`: only these documents; missing ids are ignored. `vectors`: with the vector of each
        document of one chunk. Raises E201, E211.
        """
        values.check_text("after", after)
        values.check_count("limit", limit)
        values.check_text("contains", contains)
        if ids is not None:
            values.check_texts("ids", ids)
        chosen = _select_documents(owner, filter, ids)

        def read(reader: "DocumentReader") -> "DocumentPage":
            page = reader.holding(contains, chosen, after, limit) if contains else reader.page(chosen, after, limit)
            return reader.add_vectors(page) if vectors else page

        return self._core.read_documents(read)

    def count(self, *, owner: str | None = None, filter: Conditions | None = None) -> int:  # noqa: A002
        """Return the number of documents of an owner whose metadata meets the filter; 0 before the first write.

        Raises E211.
        """
        chosen = _select_documents(owner, filter)
        return self._core.read_documents(lambda reader: reader.count(chosen)) if self._has_manifest() else 0

    def facets(
        self,
        key: str,
        *,
        limit: int = 100,
        owner: str | None = None,
        filter: Conditions | None = None,  # noqa: A002
    ) -> "list[Facet]":
        """Return the most frequent values of a metadata key, each with the number of documents that have it.

        None of them before the first write. Raises E211.
        """
        values.check_text("key", key)
        values.check_count("limit", limit)
        chosen = _select_documents(owner, filter)
        return (
            self._core.read_documents(lambda reader: reader.facets(key, chosen, limit)) if self._has_manifest() else []
        )

    def document(self, document_id: str) -> "StoredDocument":
        """Return a document. Raises E201, E214."""
        values.check_text("document_id", document_id)
        return self._core.read_documents(lambda reader: reader.document(document_id))

    def existing_ids(self, ids: Iterable[str]) -> frozenset[str]:
        """Return the ids that exist in the KB; none of them before the first write."""
        from pair.engine.write.writer import find_stored  # noqa: PLC0415 - see TYPE_CHECKING

        values.check_texts("ids", ids)
        unique, cache = list(dict.fromkeys(ids)), self._core.engine.cache
        if not self._has_manifest():
            return frozenset()
        return self._core.read(lambda manifest: frozenset(find_stored(manifest, cache, unique)))

    def _has_manifest(self) -> bool:
        """Return whether the KB was ever written. If a manifest was read before, the store is not asked again."""
        manifests = self._core.engine.manifests
        return (manifests.seen() or manifests.current()) is not None

    def version(self, *, last_seen: bool = False) -> tuple[int, str]:
        """Return the number and the id of the current version. Each write changes both. Raises E201.

        `last_seen`: return those of the last manifest read, without a call to the store.
        """
        manifests = self._core.engine.manifests
        manifest = (manifests.known() if last_seen else manifests.require()).manifest
        return manifest.number, manifest.commit_id

    def compact(
        self, *, everything: bool = False, on_progress: "Callable[[int, int], None]" = lambda done, total: None
    ) -> "CompactionReport":
        """Merge and re-cluster shards where that is worthwhile, or all of them."""
        return self.maintenance.compact(everything=everything, on_progress=on_progress)

    def sweep(self) -> "SweepReport":
        """Evict fetched shards that are beyond the limits of age and size."""
        return self.maintenance.sweep()

    def stats(self) -> "EngineStats":
        """Return figures of the stored documents: zeros before the first write."""
        from pair.engine.rules import plan_compaction  # noqa: PLC0415 - see TYPE_CHECKING
        from pair.engine.summary import EngineStats  # noqa: PLC0415

        engine = self._core.engine
        published = engine.manifests.current()
        if published is None:
            return EngineStats.empty(self.kb_id)
        plan = plan_compaction(published.manifest, self._core.settings.engine)
        debt = "" if plan.reason == "no_compaction_debt" else plan.reason
        return EngineStats.of(published.manifest, engine.cache, debt)


class KbCollection:
    """The passages that the librarians of a KB read."""

    def __init__(
        self,
        kb: KnowledgeBase,
        embedding: CachingEmbedder,
        read_version: "Callable[[Callable[[KnowledgeBase], Hits]], Hits] | None" = None,
    ) -> None:
        """Prepare a collection. `read_version`: runs a search on an earlier version of the KB."""
        self.kb_id = kb.kb_id
        self.embedding = embedding
        self._kb = kb
        self._read_version = read_version

    def search(self, query: str, *, limit: int, mode: str) -> tuple[Hits, dict[str, str]]:
        """Return passages, and the time of the last sync by document: "" for a document that is not synced.

        An earlier version has no times.
        """
        # A librarian judges the evidence itself, and names the nearest documents if there is little evidence.
        weak = SearchOptions(allow_weak=True)
        if self._read_version is not None:
            found = self._read_version(lambda kb: kb.search(query, limit=limit, mode=mode, explain=True, options=weak))
            return found, {}
        hits = self._kb.search(query, limit=limit, mode=mode, explain=True, options=weak)
        if self._kb.sources is None:
            return hits, {}
        documents = [hit.document_id for hit in hits]
        seen_at = self._kb.sources.current_texts().seen_at
        return hits, dict(zip(documents, map(seen_at, documents), strict=True))


def _parse_filter(conditions: Conditions | None) -> Filter | None:
    if not conditions:
        return None
    return parse_filter(conditions) if isinstance(conditions, Mapping) else parse_assignments(conditions)


def _select_documents(
    owner: str | None, conditions: Conditions | None, ids: Sequence[str] | None = None
) -> "DocumentSelection":
    """Return the selection of documents. Raises E211, E238."""
    from pair.engine.query.documents import DocumentSelection  # noqa: PLC0415 - see TYPE_CHECKING

    values.check_text("owner", owner, optional=True)
    values.check_filter(conditions)
    return DocumentSelection(owner, _parse_filter(conditions), None if ids is None else frozenset(ids))


def _check_vector(vector: Sequence[float] | np.ndarray) -> np.ndarray:
    """Return a vector as an array. Raises E238."""
    try:
        with np.errstate(over="ignore"):
            numbers = np.asarray(vector, dtype=np.float32)
        if numbers.ndim == 1:
            return np.ascontiguousarray(numbers)
    except (TypeError, ValueError):
        pass
    raise errors.argument_invalid("vector", "a list of numbers", vector)
