"""Choose shards, ask them, merge: the same hits in the same order, whatever the layout and the timing.

Invariants
    A query sees one manifest. When garbage collection took a shard from under it, it starts over with the current one.
    Hits are ordered by distance, then document, then chunk.
"""

import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pair import errors
from pair.clock import Clock
from pair.engine import rules
from pair.engine.filters import Filter
from pair.engine.manifest import Manifest
from pair.engine.policy import EnginePolicy
from pair.engine.publication import Publication, Published
from pair.engine.shard import SearchFile
from pair.engine.shard_cache import OpenShard, ShardCache, ShardMissingError
from pair.engine.vectors import Selection, Vectors
from pair.values import Hit

_TRIES_AFTER_COLLECTION = 5
_NOTHING = np.empty(0, np.float32)


@dataclass(frozen=True, slots=True)
class Hits:
    """What a search found, best first; a sequence of hits that also says how far it can be trusted."""

    found: tuple[Hit, ...]
    manifest_version: int
    shards_asked: int
    partial: bool = False
    """Some shards could not be asked."""
    faults: tuple[str, ...] = ()
    """Which, and why."""

    def __iter__(self) -> Iterator[Hit]:
        return iter(self.found)

    def __len__(self) -> int:
        return len(self.found)

    def __getitem__(self, position: int) -> Hit:
        return self.found[position]


@dataclass(frozen=True, slots=True)
class Query:
    vector: Vectors
    limit: int
    condition: Filter | None = None
    max_distance: float | None = None
    """Strictly nearer than this."""
    exact: bool = False


class Search:
    """Queries over one KB."""

    def __init__(self, publication: Publication, cache: ShardCache, policy: EnginePolicy, clock: Clock) -> None:
        self._publication = publication
        self._cache = cache
        self._policy = policy
        self._clock = clock
        self._view: _View | None = None
        self._pool: ThreadPoolExecutor | None = None

    def nearest(self, query: Query) -> Hits:
        """Raises E201, E303, E205, E206, E215; E207 when no shard at all could be asked."""
        for _ in range(_TRIES_AFTER_COLLECTION):
            published = self._publication.required()
            try:
                return _Asking(self, self._view_of(published), query).hits()
            except ShardMissingError:
                # Collected while we were about to ask it: then another manifest is there by now.
                if self._publication.required().version == published.version:
                    break
        return _Asking(self, self._view_of(self._publication.required()), query, skips_missing=True).hits()

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def _view_of(self, published: Published) -> "_View":
        view = self._view
        if view is None or view.published.version != published.version:
            view = self._view = _View(published)
            self._cache.keep_only({shard.folder for shard in published.manifest.shards})
        return view

    def _fetch_together(self, shards: Sequence[OpenShard], now: float) -> None:
        """Open several shards at once; what fails is met again, and reported, by the one who asks it."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._policy.query_shard_parallelism, thread_name_prefix="pair-shard")
        for future in [self._pool.submit(shard.search, now) for shard in shards]:
            future.exception()


class _View:
    """What can be worked out once for each manifest."""

    def __init__(self, published: Published) -> None:
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
        self._allowed: dict[int, Selection] = {}

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
        """Rows whose document is not gone; None for all of them."""
        tombstones = self.shards[position].tombstones
        if tombstones is None:
            return None
        allowed = self._allowed.get(position)
        if allowed is None:
            allowed = self._allowed[position] = ~tombstones[search.doc_of_row]
        return allowed


@dataclass(frozen=True, slots=True)
class _Found:
    """Rows of one shard, with their distances."""

    search: SearchFile
    distances: npt.NDArray[np.float32]
    rows: npt.NDArray[np.int64]


class _Asking:
    """One query, from the choice of shards to the hits."""

    def __init__(self, search: Search, view: _View, query: Query, *, skips_missing: bool = False) -> None:
        self._cache = search._cache  # noqa: SLF001 - one room, two tables
        self._policy = search._policy  # noqa: SLF001
        self._fetch_together = search._fetch_together  # noqa: SLF001
        self._now = search._clock.monotonic()  # noqa: SLF001
        self._view = view
        self._query = query
        self._skips_missing = skips_missing
        self._held: list[OpenShard] = []
        self._found: list[_Found] = []
        self._faults: list[tuple[str, str]] = []
        _check_vector(query.vector, view.published.manifest)

    def hits(self) -> Hits:
        query, shards = self._query, self._view.shards
        asked = 0
        if query.limit > 0 and (query.max_distance is None or query.max_distance > 0):
            ranked = {} if query.exact else self._view.ranked(query.vector)
            order = rules.asking_order(shards, ranked, self._policy, ask_all=query.exact)
            self._open(order.first)
            for position in order.first:
                self._ask(position)
            asked = len(order.first)
            # In ascending order of what is compared: when one is not worth asking, no later one is.
            asked += sum(1 for _ in itertools.takewhile(self._ask_if_likely, order.further))
            asked += sum(1 for _ in itertools.takewhile(self._ask_beyond_cap, order.rest))
        if self._faults and not self._found:
            raise errors.stored_data_damaged(*self._faults[0])
        hits = tuple(self._ordered())
        faults = tuple(f"{key}: {reason}" for key, reason in self._faults)
        return Hits(hits, self._view.published.manifest.number, asked, bool(faults), faults)

    def _open(self, positions: Sequence[int]) -> None:
        shards = [self._view.shards[position] for position in positions]
        closed = [self._cache.open(shard) for shard in shards if not self._cache.is_open(shard)]
        if len(closed) > 1:
            self._fetch_together(closed, self._now)

    def _ask(self, position: int) -> None:
        shard = self._view.shards[position]
        opened = self._cache.open(shard)
        self._held.append(opened)
        try:
            search = opened.search(self._now)
            allowed = self._allowed(position, opened, search)
        except ShardMissingError as fault:
            if not self._skips_missing:
                raise
            self._faults.append((str(fault), "it is not in the store any more"))
            return
        except errors.DataError as fault:
            self._faults.append((fault.details["key"], fault.details["reason"]))
            return
        query = self._query
        distances, rows = search.index.nearest(
            query.vector, query.limit, allowed=allowed, exact=query.exact, within=self._farthest()
        )
        self._found.append(_Found(search, distances, rows))

    def _ask_if_likely(self, shard: rules.Ranked) -> bool:
        is_worth = rules.is_likely_nearer(shard, self._farthest())
        if is_worth:
            self._ask(shard.position)
        return is_worth

    def _ask_beyond_cap(self, shard: rules.Ranked) -> bool:
        is_worth = self._may_exceed_cap() and rules.could_be_nearer(shard, self._farthest())
        if is_worth:
            self._ask(shard.position)
        return is_worth

    def _may_exceed_cap(self) -> bool:
        query = self._query
        return rules.may_exceed_cap(
            found=len(self._distances()), wanted=query.limit, is_filtered=query.condition is not None
        )

    def _distances(self) -> npt.NDArray[np.float32]:
        """Of what was found so far and is near enough."""
        if not self._found:
            return _NOTHING
        found = np.concatenate([each.distances for each in self._found])
        return found if self._query.max_distance is None else found[found < self._query.max_distance]

    def _allowed(self, position: int, opened: OpenShard, search: SearchFile) -> Selection | None:
        live = self._view.live_rows(position, search)
        if self._query.condition is None:
            return live
        chosen: Selection = opened.rows().selected(self._query.condition)[search.doc_of_row]
        return chosen if live is None else chosen & live

    def _farthest(self) -> float | None:
        """The distance of the last hit that would be returned now."""
        distances = self._distances()
        if len(distances) < self._query.limit:
            return self._query.max_distance
        return float(np.partition(distances, self._query.limit - 1)[self._query.limit - 1])

    def _ordered(self) -> Iterator[Hit]:
        distances = np.concatenate([each.distances for each in self._found]) if self._found else np.empty(0)
        sources = np.repeat(np.arange(len(self._found)), [len(each.rows) for each in self._found])
        rows = np.concatenate([each.rows for each in self._found]) if self._found else np.empty(0, np.int64)
        if self._query.max_distance is not None:
            near = distances < self._query.max_distance
            distances, sources, rows = distances[near], sources[near], rows[near]
        limit = self._query.limit
        if len(distances) > limit:
            # All that are as near as the last one that is wanted: their names decide between them.
            near = distances <= np.partition(distances, limit - 1)[limit - 1]
            distances, sources, rows = distances[near], sources[near], rows[near]
        named = []
        for distance, source, row in zip(distances.tolist(), sources.tolist(), rows.tolist(), strict=True):
            search = self._found[source].search
            header = search.header(int(search.doc_of_row[row]))
            named.append((distance, header.id, row, search, header))
        # Chunks of one document lie in their order.
        named.sort(key=lambda each: each[:3])
        for distance, _, row, search, header in named[:limit]:
            yield search.hit(row, distance, header)


def _check_vector(vector: Vectors, manifest: Manifest) -> None:
    if vector.shape != (manifest.dimension,):
        raise errors.vector_size_differs(manifest.kb_id, manifest.dimension, vector.shape[-1] if vector.ndim else 0)
    if not np.isfinite(vector).all():
        raise errors.query_invalid("the vector holds something that is not a number")
