"""Access of a query to the shards: routing tables of a manifest, opened files, and files that cannot be read.

Invariants
    Each shard is opened once for a query and held until the query ends.
    A shard that cannot be read is left out and reported. The caller decides about a shard that was deleted.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from pair import clock, errors
from pair.engine import rules
from pair.engine.filters import Filter
from pair.engine.format.graph_index import GraphIndex
from pair.engine.format.keyword_index import make_sort_keys
from pair.engine.format.manifest import FileRole, Manifest, ShardRef
from pair.engine.format.shard import SearchFile
from pair.engine.format.vectors import Selection, Vectors
from pair.engine.query.bm25 import KeywordSearch
from pair.engine.query.graph import GraphShard
from pair.engine.query.postings import KeywordCorpus, KeywordPart
from pair.engine.storage.manifest_store import ManifestStore, StoredManifest
from pair.engine.storage.shard_cache import OpenShard, ShardCache, ShardMissingError
from pair.text.tokenizer import KeywordQuery

Rows = npt.NDArray[np.int64]
_Answer = TypeVar("_Answer")
_NO_ROWS: Rows = np.empty(0, np.int64)


def by_shard(shards: Rows, rows: Rows) -> dict[int, Rows]:
    """Return the rows of each shard."""
    return {position: rows[shards == position] for position in sorted(set(shards.tolist()))}


@dataclass(eq=False)
class ShardRouting:
    """Data that is computed once for each manifest: centroids of its shards, live rows, graphs."""

    published: StoredManifest
    _live: dict[int, Selection] = field(default_factory=dict)
    _graphs: dict[int, GraphShard] = field(default_factory=dict)
    _corpus: KeywordCorpus | None = None

    @property
    def shards(self) -> tuple[ShardRef, ...]:
        return self.published.manifest.shards

    @functools.cached_property
    def _clustered(self) -> list[int]:
        return [position for position, shard in enumerate(self.shards) if shard.run and len(shard.centroids)]

    @functools.cached_property
    def _centroids(self) -> tuple[Vectors, npt.NDArray[np.float32], npt.NDArray[np.float32], Rows]:
        """The centroids of all clustered shards, their squares and radii, and the first centroid of each shard."""
        shards = [self.shards[position] for position in self._clustered]
        centroids = np.concatenate([shard.centroids for shard in shards])
        radii = np.array([radius for shard in shards for radius in shard.radii], np.float32)
        starts = np.cumsum([0, *(len(shard.centroids) for shard in shards)])[:-1]
        return centroids, np.einsum("ij,ij->i", centroids, centroids), radii, starts

    def rank_shards(self, query: Vectors) -> dict[str, list[rules.Ranked]]:
        """Return the shards of each run, with their distances."""
        by_run: dict[str, list[rules.Ranked]] = {}
        if self._clustered:
            centroids, squares, radii, starts = self._centroids
            distances = np.sqrt(np.maximum(squares - 2 * np.vecdot(centroids, query) + query @ query, 0))
            nearest = np.minimum.reduceat(distances, starts)
            least = np.minimum.reduceat(np.maximum(distances - radii, 0), starts)
            for position, near, bound in zip(self._clustered, nearest.tolist(), least.tolist(), strict=True):
                by_run.setdefault(self.shards[position].run, []).append(rules.Ranked(position, near, bound))
        return by_run

    def live_rows(self, position: int, search: SearchFile) -> Selection | None:
        """Return the rows of live documents; None for all rows. The same object each time."""
        tombstones = self.shards[position].tombstones
        if tombstones is None:
            return None
        live = self._live.get(position)
        if live is None:
            live = self._live[position] = ~tombstones[search.doc_of_row]
        return live

    def keyword_corpus(self, parts: Sequence[KeywordPart]) -> KeywordCorpus:
        """Return the corpus of these parts with its cached lists, as long as the files are the same."""
        corpus = self._corpus
        if corpus is None or not corpus.is_of(parts):
            corpus = self._corpus = KeywordCorpus(parts)
        return corpus

    def graph_shard(self, position: int, file: GraphIndex, live: Selection | None) -> GraphShard:
        """Return the graph of a shard with its cached counts, as long as the shard's file is the same."""
        graph = self._graphs.get(position)
        if graph is None or graph.file is not file:
            graph = self._graphs[position] = GraphShard(file, live)
        return graph


@dataclass(eq=False)
class ShardReader:
    """An opener of shards for queries, which fetches several at once."""

    cache: ShardCache
    parallelism: int
    _pool: ThreadPoolExecutor | None = None

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def fetch_together(self, fetches: Sequence[Callable[[], object]]) -> None:
        """Run fetches in parallel. Failures are ignored: the query that reads the file reports them."""
        if len(fetches) > 1:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self.parallelism, thread_name_prefix="pair-shard")
            for future in [self._pool.submit(fetch) for fetch in fetches]:
                future.exception()


@dataclass(eq=False)
class ShardAccess:
    """The shards of one manifest, for one query."""

    routing: ShardRouting
    reader: ShardReader
    condition: Filter | None
    now: float
    in_pieces: bool = True
    """Whether to read some rows of a shard without fetching all of it."""
    skips_missing: bool = False
    """Whether to skip shards that garbage collection removed."""
    faults: dict[str, str] = field(default_factory=dict)
    """The reasons why files could not be read, by key."""
    _opened: dict[int, OpenShard] = field(default_factory=dict)
    _searches: dict[int, SearchFile | None] = field(default_factory=dict)
    _selections: dict[int, Selection | None] = field(default_factory=dict)

    @property
    def shards(self) -> tuple[ShardRef, ...]:
        return self.routing.published.manifest.shards

    def can_answer(self, *, needs_keywords: bool) -> bool:
        """Return whether all files that an answer needs could be read from at least one shard.

        Keywords are not needed if vectors find rows as well. A query that needs a graph checks for it.
        """
        needed: list[FileRole] = ["search"]
        needed += ["ids"] if self.condition is not None else []
        needed += ["keywords"] if needs_keywords else []
        return not all(any(shard.key(role) in self.faults for role in needed) for shard in self.shards)

    def refuse_without(self, answer: object) -> None:
        """Raise E207 if there is no answer because of faults."""
        if self.faults and not answer:
            key, reason = next(iter(self.faults.items()))
            raise errors.stored_data_damaged(key, reason)

    def fetch(self, positions: Sequence[int], *, keywords: bool = False) -> None:
        """Fetch missing files in parallel: if wanted, the keywords of all shards; then the vectors of these shards."""
        everywhere = range(len(self.shards))
        if keywords:
            self._fetch_files("keywords", everywhere)
        fetches: list[Callable[[], object]] = []
        for position in positions:
            shard = self._open(position)
            if not shard.is_loaded("search"):
                plan = functools.partial(shard.plan_index_fetches, in_pieces=self.in_pieces)
                fetches += self._read_or_note(plan) or ()
        if keywords:
            # The weight of a word depends on which rows are live.
            worn = [position for position in everywhere if self.shards[position].tombstones is not None]
            fetches += self._plan_row_fetches(dict.fromkeys(worn, _NO_ROWS), texts=False)
        self.reader.fetch_together(fetches)
        if self.condition is not None:
            self._fetch_files("ids", everywhere if keywords else positions)

    def _fetch_files(self, role: FileRole, positions: Sequence[int]) -> None:
        shards = [self._open(position) for position in positions]
        self.reader.fetch_together(
            [functools.partial(shard.load, role) for shard in shards if not shard.is_loaded(role)]
        )

    def fetch_rows(self, wanted: Mapping[int, Rows], *, texts: bool = False) -> None:
        """Fetch the layouts of these shards in parallel, with the vectors or texts of rows. Raises RangeError."""
        self.reader.fetch_together(self._plan_row_fetches(wanted, texts=texts))

    def _plan_row_fetches(self, wanted: Mapping[int, Rows], *, texts: bool) -> list[Callable[[], object]]:
        fetches: list[Callable[[], object]] = []
        for position, rows in wanted.items():
            shard = self._open(position)
            if not shard.is_loaded("search"):
                plan = functools.partial(shard.plan_row_fetches, rows, texts=texts, in_pieces=self.in_pieces)
                fetches += self._read_or_note(plan) or ()
        return fetches

    def search(self, position: int) -> SearchFile | None:
        """Return the search file of a shard; None when it cannot be read. Raises RangeError while reading pieces."""
        if position not in self._searches:
            shard = self._open(position)
            read = shard.search_rows if self.in_pieces else shard.search
            self._searches[position] = self._read_or_note(lambda: read(self.now))
        return self._searches[position]

    def allowed_rows(self, position: int) -> Selection | None:
        """Return the rows that are live and meet the condition; None for all. Call `search` first."""
        if position in self._selections:
            return self._selections[position]
        chosen, condition = self._live_rows(position), self.condition
        if condition is not None and (search := self.search(position)) is not None:
            shard = self._open(position)
            documents = self._read_or_note(lambda: shard.metadata().select(condition))
            allowed = search.no_rows() if documents is None else documents[search.doc_of_row]
            chosen = allowed if chosen is None else allowed & chosen
        self._selections[position] = chosen
        return chosen

    def _live_rows(self, position: int) -> Selection | None:
        if self.shards[position].tombstones is None:
            return None
        search = self.search(position)
        return None if search is None else self.routing.live_rows(position, search)

    def first_by_id(self, position: int, rows: Rows, count: int) -> Rows:
        """Return the first `count` of these rows of a shard, by the ids of their documents, then by row."""
        search = self.search(position)
        if search is None or len(rows) <= count:
            return rows
        ids = self._read_or_note(self._open(position).ids)
        if ids is None:
            return rows[:count]
        order = np.lexsort((rows, ids.ranks()[search.doc_of_row[rows]]))
        return rows[order[:count]]

    def set_aside(self, text: str, kept: Mapping[int, Rows]) -> int:
        """Exclude rows with this text from the shards read so far, except rows to keep. Return the excluded number."""
        content, count = text.encode(errors="surrogatepass"), 0
        for position, search in list(self._searches.items()):
            if search is None:
                continue
            allowed = self.allowed_rows(position)
            chosen = ~search.no_rows() if allowed is None else allowed.copy()
            before = int(np.count_nonzero(chosen))
            chosen[search.rows_with_text(content)] = False
            chosen[kept.get(position, _NO_ROWS)] = True
            self._selections[position] = chosen
            count += before - int(np.count_nonzero(chosen))
        return count

    def search_keywords(self, query: KeywordQuery) -> KeywordSearch:
        """Return the keyword search for a query in all shards: a score depends on all shards."""
        parts = self._keyword_parts()
        return KeywordSearch(query, parts, self.routing.keyword_corpus(parts))

    def may_hold_any(self, query: KeywordQuery) -> bool:
        """Return whether any term of the query occurs in a live row, or in a shard that cannot be read."""
        parts = self._keyword_parts()
        corpus = self.routing.keyword_corpus(parts)
        known = corpus.adapt(query)
        words = [
            word.encode(errors="surrogatepass") for term in known.terms for word in known.variants.get(term, (term,))
        ]
        keys = make_sort_keys(words)
        if any(
            part.index is not None and part.live is None and part.index.vocabulary.find(words, keys) for part in parts
        ):
            return True
        return KeywordSearch(query, parts, corpus).may_hold_any  # Deletions, prefixes and substitutes may matter.

    def _keyword_parts(self) -> list[KeywordPart]:
        parts = []
        for position, shard in enumerate(self.shards):
            index = self._read_or_note(self._open(position).keywords)
            if index is not None and shard.tombstones is not None and self.search(position) is None:
                index = None
            row_fields = functools.partial(self._row_fields, position)
            parts.append(KeywordPart(index, self._live_rows(position), row_fields))
        return parts

    def _row_fields(self, position: int, row: int) -> Sequence[str]:
        search = self.search(position)
        return () if search is None else search.row_fields(row)

    def graph_shards(self) -> dict[int, GraphShard]:
        """Return the shards that have a graph, by position."""
        graphs: dict[int, GraphShard] = {}
        self._fetch_files("graph", range(len(self.shards)))
        for position, shard in enumerate(self.shards):
            file = self._read_or_note(self._open(position).graph)
            if file is not None and (shard.tombstones is None or self.search(position) is not None):
                graphs[position] = self.routing.graph_shard(position, file, self._live_rows(position))
        return graphs

    def _open(self, position: int) -> OpenShard:
        shard = self._opened.get(position)
        if shard is None:
            shard = self._opened[position] = self.reader.cache.open(self.shards[position])
        return shard

    def _read_or_note(self, read: Callable[[], _Answer]) -> _Answer | None:
        """Return None, and note the fault, when a file cannot be read."""
        clock.check_cancelled()
        try:
            return read()
        except ShardMissingError as fault:
            if not self.skips_missing:
                raise
            self.faults[str(fault)] = "it is no longer in the store"
        except errors.DataError as fault:
            self.faults[fault.details["key"]] = fault.details["reason"]
        return None


# ── prefetching ────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class PrefetchReport:
    files: int = 0
    fetched_bytes: int = 0
    left_bytes: int = 0
    """The size of files that were not fetched because of the limit."""


@dataclass(eq=False)
class Prefetcher:
    """A background fetcher of files that queries are likely to need. It evicts nothing. For one thread.

    These are the keywords of all shards, which every query by words needs; the shards with the most row reads; and
    shards that replace cached ones, for example after a compaction.
    """

    manifests: ManifestStore
    cache: ShardCache
    _cached: frozenset[str] = frozenset()
    """Shards whose search file was in the cache after the last run."""

    def fetch(self, most_bytes: int, go_on: Callable[[], bool]) -> PrefetchReport:
        """Fetch files while `go_on` is true; none from a local store. Raises E206, E010."""
        published = self.manifests.current() if self.cache.reads_pieces else None
        if published is None:
            return PrefetchReport()
        manifest, cache = published.manifest, self.cache
        files = fetched = left = 0
        room = min(most_bytes, cache.room_bytes())
        for shard, role in self._list_missing(manifest):
            size = shard.files[role].size_bytes
            if fetched + size > room:
                left += size
            elif go_on() and self._fetch_file(shard, role):
                files, fetched = files + 1, fetched + size
        self._cached = frozenset(shard.folder for shard in manifest.shards if cache.has(shard, "search"))
        return PrefetchReport(files, fetched, left)

    def _list_missing(self, manifest: Manifest) -> list[tuple[ShardRef, FileRole]]:
        """Return the files to fetch, the most useful first."""
        cache, shards = self.cache, manifest.shards
        # A shard that replaces others is as likely to be read, although no query has read its rows yet.
        is_replaced = not self._cached <= manifest.folders
        reads = {shard.folder: cache.open(shard).row_reads for shard in shards}
        hot = [shard for shard in shards if reads[shard.folder] or (is_replaced and shard.folder not in self._cached)]
        hot.sort(key=lambda shard: -reads[shard.folder])
        wanted: list[tuple[ShardRef, FileRole]] = [(shard, "keywords") for shard in shards if "keywords" in shard.files]
        wanted += [(shard, "search") for shard in hot]
        return [(shard, role) for shard, role in wanted if not cache.has(shard, role)]

    def _fetch_file(self, ref: ShardRef, role: FileRole) -> bool:
        """Fetch a file. Return False if it is damaged or deleted: a query reports that."""
        shard = self.cache.open(ref)
        try:
            # Concurrent queries continue with the pieces that are cached.
            shard.path(role)
            if role == "search":
                shard.search(0.0)
        except (ShardMissingError, errors.DataError):
            return False
        return True
