"""Retrieval of candidates for a search: rows found by keyword and by vector, with both scores of each.

Invariants
    Every candidate has both of its scores, whichever list found it: a row of one list does not get 0 for the other.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from pair.engine import rules
from pair.engine.filters import Filter
from pair.engine.format.vectors import Vectors, compute_distances, rank_nearest
from pair.engine.query.bm25 import KeywordSearch
from pair.engine.query.shard_access import Rows, ShardAccess, by_shard
from pair.engine.settings import EngineSettings
from pair.text.tokenizer import KeywordQuery
from pair.values import SearchMode, SearchOptions

Floats = npt.NDArray[np.float64]
Distances = npt.NDArray[np.float32]

NEAR_ROWS = 200
"""Number of nearest rows that become candidates. Their distances set the scale of vector scores."""
KEYWORD_ROWS = 100
_PER_HIT = 2
_FOLDED = 10
"""Extra rows for a query by vector alone, because some rows merge into one passage."""
_BLOCK_ROWS = 4096
_MANY_ROWS = 100
"""Number of wanted rows at which nearly every shard within the cap holds one of the nearest."""
_NO_ROWS: Rows = np.empty(0, np.int64)
_NO_DISTANCES: Distances = np.empty(0, np.float32)


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """An analysed and embedded query: the conditions for hits, and how they are ranked."""

    limit: int
    mode: SearchMode = "hybrid"
    text: str = ""
    words: KeywordQuery | None = None
    """The words of the text; None if words do not count."""
    names: Sequence[str] = ()
    """The entities that the text names, for the modes that use the graph."""
    vector: Vectors | None = None
    """The vector; None if it does not count."""
    vector_weight: float = 0.0
    """The weight of the vector in a hybrid score."""
    embedder: str = ""
    """The embedder that made the vector."""
    condition: Filter | None = None
    exact: bool = False
    """Whether to search every row of every shard."""
    explain: bool = False
    options: SearchOptions = field(default_factory=SearchOptions)


@dataclass(frozen=True, eq=False)
class Candidates:
    """Rows that may answer a query, in no order."""

    shards: Rows
    rows: Rows
    keyword: Floats
    """BM25; 0 for a row without any word of the query."""
    held: Floats
    """The highest BM25 that the words of the query in the row allow."""
    distances: Distances
    """Distances; NaN if the query has no vector."""
    near_distances: Distances
    """The distances of the nearest rows, at most NEAR_ROWS, ascending."""
    keywords: KeywordSearch | None
    """The keyword search; None if words do not count."""
    shards_asked: int
    is_complete: bool
    """Whether a wider search cannot find another row."""

    def __len__(self) -> int:
        return len(self.rows)

    def add_rows(self, access: ShardAccess, request: SearchRequest, shards: Rows, rows: Rows) -> "Candidates":
        """Return these candidates together with more rows."""
        together = np.concatenate([self.shards, shards]), np.concatenate([self.rows, rows])
        known = np.concatenate([self.distances, np.full(len(rows), np.nan, np.float32)])
        shards, rows, keyword, held, distances = _score_rows(access, request, self.keywords, *together, known)
        return replace(self, shards=shards, rows=rows, keyword=keyword, held=held, distances=distances)


def retrieve(access: ShardAccess, settings: EngineSettings, request: SearchRequest, limit: int) -> Candidates:
    """Find candidates by keywords and by vector, or by one of them if the query lacks the other. Raises RangeError."""
    wanted, words = _PER_HIT * limit, request.words
    near_limit = wanted + _FOLDED if words is None else max(NEAR_ROWS, wanted)
    keyword_limit = max(KEYWORD_ROWS, wanted)
    # A query that only excludes words finds nothing by keyword, but has to read the keywords.
    has_words = words is not None and bool(words.terms or words.prefixes or words.excluded)
    vectors = None
    if request.vector is not None:
        vectors = VectorSearch(access, settings, request, request.vector, near_limit)
    if words is not None and (words.phrases or words.excluded):
        access.in_pieces = False  # Phrases are checked in the texts of any shard.
        access.fetch(range(len(access.shards)), keywords=has_words)
    else:
        access.fetch(vectors.surely_asked if vectors is not None else (), keywords=has_words)
    keywords = access.search_keywords(words) if words is not None and has_words else None
    near_shards, near_rows, near = vectors.nearest() if vectors is not None else (_NO_ROWS, _NO_ROWS, _NO_DISTANCES)
    by_keyword = {}
    if keywords is not None:
        # Start with the shards of the nearest rows: they are likely to hold the best rows, which set the lower bound.
        order = np.argsort(-np.bincount(near_shards, minlength=len(access.shards)), kind="stable")
        by_keyword = keywords.best_together(order.tolist(), keyword_limit, access.allowed_rows)
    shards, rows = [near_shards], [near_rows]
    for position, (_, keyword_rows) in by_keyword.items():
        shards.append(np.full(len(keyword_rows), position, np.int64))
        rows.append(keyword_rows)
    all_rows = np.concatenate(rows)
    known = np.concatenate([near, np.full(len(all_rows) - len(near), np.nan, np.float32)])
    is_strict = words is not None and bool(words.phrases) and words.is_strict
    has_all_near = vectors is None or len(near) < near_limit or is_strict
    return Candidates(
        *_score_rows(access, request, keywords, np.concatenate(shards), all_rows, known),
        near_distances=np.sort(near)[:NEAR_ROWS],
        keywords=keywords,
        shards_asked=vectors.shards_asked if vectors is not None else 0,
        is_complete=has_all_near and sum(map(len, rows[1:])) < keyword_limit,
    )


def _score_rows(
    access: ShardAccess,
    request: SearchRequest,
    keywords: KeywordSearch | None,
    shards: Rows,
    rows: Rows,
    distances: Distances,
) -> tuple[Rows, Rows, Floats, Floats, Distances]:
    """Return the distinct rows with their scores, without rows that the query refuses.

    `distances`: NaN for a row whose distance is not known. Of equal rows, the first counts.
    """
    order = np.lexsort((rows, shards))
    shards, rows, distances = shards[order], rows[order], distances[order]
    if len(rows) > 1:
        is_new = np.concatenate([[True], (shards[1:] != shards[:-1]) | (rows[1:] != rows[:-1])])
        shards, rows, distances = shards[is_new], rows[is_new], distances[is_new]
    keyword, held, chosen = np.zeros(len(rows)), np.zeros(len(rows)), np.ones(len(rows), np.bool_)
    vector, is_unknown = request.vector, np.isnan(distances)
    wanted, unknown = by_shard(shards, rows), {}
    if vector is not None:
        unknown = by_shard(shards[is_unknown], rows[is_unknown])
    access.fetch_rows({position: unknown.get(position, _NO_ROWS) for position in wanted})
    if keywords is not None:
        keyword, held = keywords.score_rows(shards, rows)
    for position in wanted:
        search = access.search(position)
        if search is None:
            chosen[shards == position] = False
        elif vector is not None and position in unknown:
            own = unknown[position]
            # Read in blocks: if a text is stored very often, all its rows are candidates.
            blocks = [own[begin : begin + _BLOCK_ROWS] for begin in range(0, len(own), _BLOCK_ROWS)]
            distances[is_unknown & (shards == position)] = np.concatenate(
                [compute_distances(search.row_vectors(block), vector) for block in blocks]
            )
    chosen &= keyword > -np.inf
    max_distance = request.options.max_distance
    if max_distance is not None and vector is not None:
        chosen &= distances < max_distance
    if chosen.all():
        return shards, rows, keyword, held, distances
    return shards[chosen], rows[chosen], keyword[chosen], held[chosen], distances[chosen]


@dataclass(eq=False)
class VectorSearch:
    """A search for the nearest rows, in the nearest shards, and in others while these may hold nearer rows."""

    access: ShardAccess
    settings: EngineSettings
    request: SearchRequest
    vector: Vectors
    limit: int
    shards_asked: int = 0
    _answers: list[tuple[Rows, Rows, Distances]] = field(default_factory=list)

    def __post_init__(self) -> None:
        # Not a cached property: in Python 3.11 its lock is shared by all queries.
        self._order = self._choose_order()

    def _choose_order(self) -> rules.AskingOrder:
        request, routing = self.request, self.access.routing
        max_distance = request.options.max_distance
        if self.limit <= 0 or (max_distance is not None and max_distance <= 0):
            return rules.AskingOrder(())
        ranked = {} if request.exact else routing.rank_shards(self.vector)
        return rules.order_shards(routing.shards, ranked, self.settings, ask_all=request.exact)

    @property
    def surely_asked(self) -> list[int]:
        """The shards that are fetched before any result is known."""
        ranked = self._order.fanned_out
        if self.limit >= _MANY_ROWS:
            ranked += self._order.further
        return [*self._order.first, *(shard.position for shard in ranked)]

    def nearest(self) -> tuple[Rows, Rows, Distances]:
        """Return shards, rows and distances, in no order: the nearest rows with all ties of the last one."""
        order = self._order
        self.access.fetch(self.surely_asked)
        self._ask([*order.first, *(shard.position for shard in order.fanned_out)])  # engine-12
        further = [shard.position for shard in order.further if self._is_worth_asking(shard)]
        self.access.fetch(further)
        self._ask(further)
        self._ask_beyond_cap(order.rest)
        if not self._answers:
            return _NO_ROWS, _NO_ROWS, _NO_DISTANCES
        shards, rows, distances = (np.concatenate(parts) for parts in zip(*self._answers, strict=True))
        farthest = self._farthest()
        if farthest is None:
            return shards, rows, distances
        is_full = len(self._near_enough()) >= self.limit
        near = distances <= farthest if is_full else distances < farthest
        return shards[near], rows[near], distances[near]

    def _ask(self, positions: Sequence[int]) -> None:
        self.shards_asked += len(positions)
        searches = {position: search for position in positions if (search := self.access.search(position)) is not None}
        if not searches:
            return
        farthest, exact = self._farthest(), self.request.exact
        found = [
            search.index.estimate(
                self.vector, self.limit, allowed=self.access.allowed_rows(position), exact=exact, within=farthest
            )
            for position, search in searches.items()
        ]
        numbers, rows, distances = rank_nearest(found, self.vector, self.limit, farthest)
        self._answers.append((np.array([*searches])[numbers], rows, distances))

    def _is_worth_asking(self, shard: rules.Ranked) -> bool:
        """Return whether a shard may hold nearer rows."""
        is_worth = rules.could_be_nearer if self.request.condition is not None else rules.is_likely_nearer
        return is_worth(shard, self._farthest())

    def _ask_beyond_cap(self, ranked: Sequence[rules.Ranked]) -> None:
        """Search shards, nearest bound first, until one cannot hold nearer rows; then no later one can."""
        size = self.settings.query_shard_fanout
        for begin in range(0, len(ranked), size):
            group = ranked[begin : begin + size]
            worth = [*itertools.takewhile(self._is_worth_beyond_cap, group)]
            self.access.fetch([shard.position for shard in worth])
            for shard in worth:
                if not self._is_worth_beyond_cap(shard):
                    return
                self._ask([shard.position])
            if len(worth) < len(group):
                return

    def _is_worth_beyond_cap(self, shard: rules.Ranked) -> bool:
        may_exceed = rules.may_exceed_cap(
            found=len(self._near_enough()), wanted=self.limit, is_filtered=self.request.condition is not None
        )
        return may_exceed and rules.could_be_nearer(shard, self._farthest())

    def _near_enough(self) -> Distances:
        """Return the distances so far that are below `max_distance`."""
        if not self._answers:
            return _NO_DISTANCES
        distances = np.concatenate([distances for _, _, distances in self._answers])
        max_distance = self.request.options.max_distance
        return distances if max_distance is None else distances[distances < max_distance]

    def _farthest(self) -> float | None:
        """Return the distance of the last row among the nearest so far."""
        distances = self._near_enough()
        if len(distances) < self.limit:
            return self.request.options.max_distance
        return float(np.partition(distances, self.limit - 1)[self.limit - 1])
