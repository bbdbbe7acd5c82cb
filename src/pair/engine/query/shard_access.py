"""The way of one query to the shards: routing, opening, fetching, and what could not be read."""

import functools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from pair import cancellation, errors
from pair.engine import rules
from pair.engine.filters import Filter
from pair.engine.format.graph_index import GraphIndex
from pair.engine.format.manifest import FileRole, Manifest, ShardRef
from pair.engine.format.shard import SearchFile
from pair.engine.format.vectors import Selection, Vectors
from pair.engine.query.bm25 import KeywordPart
from pair.engine.query.graph_walk import GraphShard
from pair.engine.storage.manifest_store import ManifestStore, StoredManifest
from pair.engine.storage.shard_cache import OpenShard, ShardCache, ShardMissingError


class ShardRouting:
    def __init__(self, published: StoredManifest) -> None:
        self.published = published
        self.shards = published.manifest.shards
        ranked = [position for position, shard in enumerate(self.shards) if shard.run and len(shard.centroids)]
        counts = [len(self.shards[position].centroids) for position in ranked]
        self._ranked = np.array(ranked, np.int64)
        self._starts = np.cumsum([0, *counts])[:-1] if ranked else np.empty(0, np.int64)
        dimension = published.manifest.dimension
        self._centroids = (
            np.concatenate([self.shards[position].centroids for position in ranked])
            if ranked
            else np.empty((0, dimension), np.float32)
        )
        self._squares = np.einsum("ij,ij->i", self._centroids, self._centroids)
        self._radii = np.array([radius for position in ranked for radius in self.shards[position].radii], np.float32)
        self._live: dict[int, Selection] = {}
        self._graphs: dict[int, GraphShard] = {}

    def ranked(self, query: Vectors) -> dict[str, list[rules.Ranked]]:
        """The shards of each run, with how near they are."""
        by_run: dict[str, list[rules.Ranked]] = {}
        if len(self._ranked):
            squared = self._squares - 2 * (self._centroids @ query) + query @ query
            distances = np.sqrt(np.maximum(squared, 0))
            nearest = np.minimum.reduceat(distances, self._starts)
            least = np.minimum.reduceat(np.maximum(distances - self._radii, 0), self._starts)
            for position, near, bound in zip(self._ranked.tolist(), nearest.tolist(), least.tolist(), strict=True):
                run = self.shards[position].run
                by_run.setdefault(run, []).append(rules.Ranked(position, near, bound))
        return by_run

    def live_rows(self, position: int, search: SearchFile) -> Selection | None:
        """Rows whose document is not gone; None for all of them. The same object each time."""
        tombstones = self.shards[position].tombstones
        if tombstones is None:
            return None
        live = self._live.get(position)
        if live is None:
            live = self._live[position] = ~tombstones[search.doc_of_row]
        return live

    def graph_shard(self, position: int, file: GraphIndex, live: Selection | None) -> GraphShard:
        """Kept as long as the shard's file is the same: it remembers what it counted."""
        kept = self._graphs.get(position)
        if kept is None or kept.file is not file:
            kept = self._graphs[position] = GraphShard(file, live)
        return kept


Rows = npt.NDArray[np.int64]
_Asked = TypeVar("_Asked")


def by_shard(shards: Rows, rows: Rows) -> dict[int, Rows]:
    """The rows of each shard."""
    return {position: rows[shards == position] for position in np.unique(shards).tolist()}


@dataclass(frozen=True, slots=True)
class FetchDeadlines:
    """What a query does without, once it has failed with it."""

    in_pieces: bool = True
    """Look at some rows of a shard without fetching all of it."""
    skips_missing: bool = False
    """Leave out what garbage collection took."""


class ShardReader:
    """Opens shards for queries, several at once where they have to be fetched."""

    def __init__(self, cache: ShardCache, parallelism: int) -> None:
        self.cache = cache
        self._parallelism = parallelism
        self._pool: ThreadPoolExecutor | None = None

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def fetch_together(self, fetches: Sequence[Callable[[], object]]) -> None:
        """What fails is met again, and reported, by the one who asks it."""
        if len(fetches) > 1:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._parallelism, thread_name_prefix="pair-shard")
            for future in [self._pool.submit(fetch) for fetch in fetches]:
                future.exception()


class ShardAccess:
    def __init__(
        self, view: ShardRouting, reader: ShardReader, condition: Filter | None, now: float, patience: FetchDeadlines
    ) -> None:
        self.view = view
        self._reader = reader
        self._condition = condition
        self._now = now
        self._patience = patience
        self._held: dict[int, OpenShard] = {}
        self._searches: dict[int, SearchFile | None] = {}
        self._allowed: dict[int, Selection | None] = {}
        self.faults: dict[str, str] = {}
        """Why each of these could not be read, by key."""

    @property
    def is_filtered(self) -> bool:
        return self._condition is not None

    def is_any_left(self, *, needs_keywords: bool) -> bool:
        """Whether there is a shard of which everything that it takes to answer could be read.

        Keywords are not needed where vectors find something, too; and whoever needs a graph asks for it.
        """
        needed: tuple[FileRole, ...] = ("search", "rows", "keywords") if needs_keywords else ("search", "rows")
        return not all(any(shard.key(role) in self.faults for role in needed) for shard in self.view.shards)

    def fetch(self, positions: Sequence[int], *, keywords: bool = False) -> None:
        """Fetch together what is not here yet: the keywords of all shards, if wanted, then the vectors of these."""
        everywhere = range(len(self.view.shards))
        if keywords:
            self._reader.fetch_together(
                [each.keywords for each in map(self._open, everywhere) if not each.has_keywords]
            )
        fetches: list[Callable[[], object]] = []
        for position in positions:
            opened = self._open(position)
            if not opened.has_search:
                asked = functools.partial(opened.fetches_of_index, in_pieces=self._patience.in_pieces)
                fetches += self._or_fault(asked) or ()
        if keywords:
            # Which rows are live decides what a word counts.
            dead = [position for position in everywhere if self.view.shards[position].tombstones is not None]
            fetches += self._fetches_of_rows(dict.fromkeys(dead, np.empty(0, np.int64)), texts=False)
        self._reader.fetch_together(fetches)
        if self._condition is not None:
            filtered = everywhere if keywords else positions
            self._reader.fetch_together([each.rows for each in map(self._open, filtered) if not each.has_rows])

    def fetch_rows(self, wanted: Mapping[int, Rows], *, texts: bool = False) -> None:
        """Fetch together how these shards are laid out, with the vectors of rows, or with what it takes to show them.

        Raises PieceError.
        """
        self._reader.fetch_together(self._fetches_of_rows(wanted, texts=texts))

    def _fetches_of_rows(self, wanted: Mapping[int, Rows], *, texts: bool) -> list[Callable[[], object]]:
        fetches: list[Callable[[], object]] = []
        for position, rows in wanted.items():
            opened = self._open(position)
            if not opened.has_search:
                asked = functools.partial(opened.fetches_of, rows, texts=texts, in_pieces=self._patience.in_pieces)
                fetches += self._or_fault(asked) or ()
        return fetches

    def read_whole_files(self) -> None:
        """From now on: for a query that looks at the texts of many rows."""
        self._patience = replace(self._patience, in_pieces=False)

    def search(self, position: int) -> SearchFile | None:
        """None when it cannot be read. Raises PieceError while pieces are allowed."""
        if position not in self._searches:
            opened = self._open(position)
            read = opened.search_rows if self._patience.in_pieces else opened.search
            self._searches[position] = self._or_fault(lambda: read(self._now))
        return self._searches[position]

    def allowed(self, position: int) -> Selection | None:
        """Rows that are live and meet the condition; None for all. `search` must have answered."""
        if position not in self._allowed:
            self._allowed[position] = self._selection(position)
        return self._allowed[position]

    def first_by_id(self, position: int, rows: Rows, count: int) -> Rows:
        """Return so many of these rows of a shard: the first by the ids of their documents, then by row."""
        search = self.search(position)
        if search is None or len(rows) <= count:
            return rows
        ids = self._or_fault(self._open(position).ids)
        if ids is None:
            return rows[:count]
        order = np.lexsort((rows, ids.ranks()[search.doc_of_row[rows]]))
        return rows[order[:count]]

    def set_aside(self, text: str, kept: Mapping[int, Rows]) -> int:
        """Find no more rows with this text but those that are kept, by shard. Return how many are not.

        Looks at shards that were read already.
        """
        content, count = text.encode(errors="surrogatepass"), 0
        for position, search in list(self._searches.items()):
            if search is None:
                continue
            allowed = self.allowed(position)
            chosen = ~search.no_rows() if allowed is None else allowed.copy()
            before, own = int(np.count_nonzero(chosen)), kept.get(position, np.empty(0, np.int64))
            chosen[search.rows_with_text(content)] = False
            chosen[own] = True
            self._allowed[position] = chosen
            count += before - int(np.count_nonzero(chosen))
        return count

    def keyword_parts(self) -> list[KeywordPart]:
        """Of all shards, for a score depends on all of them."""
        return [self._keyword_part(position) for position in range(len(self.view.shards))]

    def graph_shards(self) -> dict[int, GraphShard]:
        """Those that have a graph, by position."""
        found: dict[int, GraphShard] = {}
        everything = map(self._open, range(len(self.view.shards)))
        self._reader.fetch_together([each.graph for each in everything if not each.has_graph])
        for position, shard in enumerate(self.view.shards):
            opened = self._open(position)
            file = self._or_fault(opened.graph)
            if file is not None and (shard.tombstones is None or self.search(position) is not None):
                found[position] = self.view.graph_shard(position, file, self._live(position))
        return found

    def refuse_without(self, answer: object) -> None:
        """Raises E207 when faults are the reason that there is no answer."""
        if self.faults and not answer:
            key, reason = next(iter(self.faults.items()))
            raise errors.stored_data_damaged(key, reason)

    def _keyword_part(self, position: int) -> KeywordPart:
        opened = self._open(position)
        index = self._or_fault(opened.keywords)
        if index is not None and self.view.shards[position].tombstones is not None and self.search(position) is None:
            index = None

        def fields_of(row: int) -> Sequence[str]:
            search = self.search(position)
            return () if search is None else search.fields_of(row)

        return KeywordPart(index, self._live(position), fields_of)

    def _live(self, position: int) -> Selection | None:
        if self.view.shards[position].tombstones is None:
            return None
        search = self.search(position)
        return None if search is None else self.view.live_rows(position, search)

    def _selection(self, position: int) -> Selection | None:
        live, condition = self._live(position), self._condition
        if condition is None:
            return live
        search = self.search(position)
        if search is None:
            return None
        opened = self._open(position)
        documents = self._or_fault(lambda: opened.rows().selected(condition))
        if documents is None:
            return search.no_rows()
        chosen: Selection = documents[search.doc_of_row]
        return chosen if live is None else chosen & live

    def _open(self, position: int) -> OpenShard:
        opened = self._held.get(position)
        if opened is None:
            opened = self._held[position] = self._reader.cache.open(self.view.shards[position])
        return opened

    def _or_fault(self, ask: Callable[[], _Asked]) -> _Asked | None:
        cancellation.check()
        try:
            return ask()
        except ShardMissingError as fault:
            if not self._patience.skips_missing:
                raise
            self.faults[str(fault)] = "it is not in the store any more"
        except errors.DataError as fault:
            self.faults[fault.details["key"]] = fault.details["reason"]
        return None


@dataclass(frozen=True, slots=True)
class PrefetchReport:
    files: int = 0
    fetched_bytes: int = 0
    left_bytes: int = 0
    """That were worth fetching, and too much."""


class Prefetcher:
    """Of one KB. Used from one thread."""

    def __init__(self, publication: ManifestStore, cache: ShardCache) -> None:
        self._publication = publication
        self._cache = cache
        self._here: frozenset[str] = frozenset()
        """Shards whose search file was here, when it was last looked."""

    def fetch(self, most_bytes: int, go_on: Callable[[], bool]) -> PrefetchReport:
        """As long as `go_on`; nothing from a store that is near. Raises E206, E010."""
        published = self._publication.current() if self._cache.reads_pieces else None
        if published is None:
            return PrefetchReport()
        manifest, cache = published.manifest, self._cache
        files = fetched = left = 0
        room = min(most_bytes, cache.room_bytes())
        for shard, role in self._wanted(manifest):
            size = shard.files[role].size_bytes
            if fetched + size > room:
                left += size
            elif go_on() and self._fetched(shard, role):
                files, fetched = files + 1, fetched + size
        self._here = frozenset(shard.folder for shard in manifest.shards if cache.has(shard, "search"))
        return PrefetchReport(files, fetched, left)

    def _wanted(self, manifest: Manifest) -> list[tuple[ShardRef, FileRole]]:
        """What is not here, the most useful first."""
        cache, shards = self._cache, manifest.shards
        # What replaces a shard is asked as it was, and it has no rows that could have been asked yet.
        is_replaced = not self._here <= {shard.folder for shard in shards}
        asked = {shard.folder: cache.open(shard).rows_asked for shard in shards}
        hot = [shard for shard in shards if asked[shard.folder] or (is_replaced and shard.folder not in self._here)]
        hot.sort(key=lambda shard: -asked[shard.folder])
        wanted: list[tuple[ShardRef, FileRole]] = [(shard, "keywords") for shard in shards if "keywords" in shard.files]
        wanted += [(shard, "search") for shard in hot]
        return [(shard, role) for shard, role in wanted if not cache.has(shard, role)]

    def _fetched(self, shard: ShardRef, role: FileRole) -> bool:
        """What is damaged or gone is for a query to report."""
        opened = self._cache.open(shard)
        try:
            # Who asks it meanwhile goes on with the pieces that there are.
            opened.path(role)
            if role == "search":
                opened.search(0.0)
        except (ShardMissingError, errors.DataError):
            return False
        return True
