"""Retrieve candidates for a search: rows found by keyword and by vector, with both scores of each.

Invariants
    Both scores of a candidate are its own, whichever list it came from: a row that only one list found does not get 0
    for the other.
"""

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from pair.engine import rules
from pair.engine.filters import Filter
from pair.engine.format.vectors import Vectors, compute_distances
from pair.engine.query.bm25 import KeywordSearch
from pair.engine.query.shard_access import Rows, ShardAccess, by_shard
from pair.engine.settings import EngineSettings
from pair.text.tokenizer import KeywordQuery
from pair.values import SearchMode, SearchOptions

Floats = npt.NDArray[np.float64]
Distances = npt.NDArray[np.float32]

NEAR_ROWS = 200
"""The nearest rows of a query: they are candidates, and the range of their distances is the scale of the vector."""
KEYWORD_ROWS = 100
_PER_HIT = 2
_FOLDED = 10
"""More rows of a query by vector alone: some become one passage with others."""
_BLOCK_ROWS = 4096
_MANY_ROWS = 100
"""Where so many rows are wanted, hardly a shard within the cap is too far away to hold one of them."""
_NO_ROWS: Rows = np.empty(0, np.int64)
_NO_DISTANCES: Distances = np.empty(0, np.float32)


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """A query, analysed and embedded: what every hit has to meet, and how hits are ranked."""

    limit: int
    mode: SearchMode = "hybrid"
    text: str = ""
    words: KeywordQuery | None = None
    """What the text asks of words; None where words do not count."""
    vector: Vectors | None = None
    """None where the vector does not count."""
    vector_weight: float = 0.0
    """The weight of the vector in a hybrid score."""
    embedder: str = ""
    """The embedder that made the vector."""
    condition: Filter | None = None
    exact: bool = False
    """Ask every row of every shard."""
    explain: bool = False
    options: SearchOptions = field(default_factory=SearchOptions)


@dataclass(frozen=True, eq=False)
class Candidates:
    """Rows that may answer a query, in no order."""

    shards: Rows
    rows: Rows
    keyword: Floats
    """BM25; 0 for a row without any word of the query."""
    distances: Distances
    """NaN where the query has no vector."""
    near_distances: Distances
    """Of the nearest rows, at most NEAR_ROWS."""
    keywords: KeywordSearch | None
    """None where words do not count."""
    shards_asked: int
    is_complete: bool
    """Whether a wider search could find no other row."""

    def __len__(self) -> int:
        return len(self.rows)

    def add_rows(self, access: ShardAccess, request: SearchRequest, shards: Rows, rows: Rows) -> "Candidates":
        """Return these candidates together with more rows."""
        together = np.concatenate([self.shards, shards]), np.concatenate([self.rows, rows])
        shards, rows, keyword, distances = _score_rows(access, request, self.keywords, *together)
        return replace(self, shards=shards, rows=rows, keyword=keyword, distances=distances)


def retrieve(access: ShardAccess, settings: EngineSettings, request: SearchRequest, limit: int) -> Candidates:
    """Find what the keywords and the vector find. Without a vector, or without words, the other finds alone.

    Raises RangeError.
    """
    wanted, words = _PER_HIT * limit, request.words
    near_limit = wanted + _FOLDED if words is None else max(NEAR_ROWS, wanted)
    keyword_limit = max(KEYWORD_ROWS, wanted)
    # A query that only excludes words finds nothing by them, and still has to read them.
    has_words = words is not None and bool(words.terms or words.prefixes or words.excluded)
    vectors = None
    if request.vector is not None:
        vectors = VectorSearch(access, settings, request, request.vector, near_limit)
    if words is not None and (words.phrases or words.excluded):
        access.in_pieces = False  # phrases are looked for in the texts of any shard
        access.fetch(range(len(access.shards)), keywords=has_words)
    else:
        access.fetch(vectors.surely_asked if vectors is not None else (), keywords=has_words)
    keywords = KeywordSearch(words, access.keyword_parts()) if words is not None and has_words else None
    near_shards, near_rows, near = vectors.nearest() if vectors is not None else (_NO_ROWS, _NO_ROWS, _NO_DISTANCES)
    by_keyword = {}
    if keywords is not None:
        # Where the nearest rows are, the best are likely to be: the shards after them need not look far.
        order = np.argsort(-np.bincount(near_shards, minlength=len(access.shards)), kind="stable")
        by_keyword = keywords.best_together(order.tolist(), keyword_limit, access.allowed_rows)
    shards, rows = [near_shards], [near_rows]
    for position, (_, keyword_rows) in by_keyword.items():
        shards.append(np.full(len(keyword_rows), position, np.int64))
        rows.append(keyword_rows)
    is_strict = words is not None and bool(words.phrases) and words.is_strict
    has_all_near = vectors is None or len(near) < near_limit or is_strict
    return Candidates(
        *_score_rows(access, request, keywords, np.concatenate(shards), np.concatenate(rows)),
        near_distances=np.sort(near)[:NEAR_ROWS],
        keywords=keywords,
        shards_asked=vectors.shards_asked if vectors is not None else 0,
        is_complete=has_all_near and sum(map(len, rows[1:])) < keyword_limit,
    )


def _score_rows(
    access: ShardAccess, request: SearchRequest, keywords: KeywordSearch | None, shards: Rows, rows: Rows
) -> tuple[Rows, Rows, Floats, Distances]:
    """Return these rows with their scores, each once, without those that the query refuses."""
    order = np.lexsort((rows, shards))
    shards, rows = shards[order], rows[order]
    if len(rows) > 1:
        is_new = np.concatenate([[True], (shards[1:] != shards[:-1]) | (rows[1:] != rows[:-1])])
        shards, rows = shards[is_new], rows[is_new]
    keyword, distances = np.zeros(len(rows)), np.full(len(rows), np.nan, np.float32)
    chosen = np.ones(len(rows), np.bool_)
    wanted, vector = by_shard(shards, rows), request.vector
    access.fetch_rows(wanted if vector is not None else dict.fromkeys(wanted, _NO_ROWS))
    for position, own_rows in wanted.items():
        own = shards == position
        search = access.search(position)
        if search is None:
            chosen[own] = False
            continue
        if keywords is not None:
            keyword[own] = keywords.score_rows(position, own_rows)
        if vector is not None:
            # A block at a time: where a text is stored often, all rows with it are equally good, and candidates.
            blocks = np.array_split(own_rows, len(own_rows) // _BLOCK_ROWS + 1)
            distances[own] = np.concatenate([compute_distances(search.row_vectors(block), vector) for block in blocks])
    chosen &= keyword > -np.inf
    max_distance = request.options.max_distance
    if max_distance is not None and vector is not None:
        chosen &= distances < max_distance
    if chosen.all():
        return shards, rows, keyword, distances
    return shards[chosen], rows[chosen], keyword[chosen], distances[chosen]


@dataclass(eq=False)
class VectorSearch:
    """The rows nearest to a vector: asks the nearest shards, and more while they may hold something nearer."""

    access: ShardAccess
    settings: EngineSettings
    request: SearchRequest
    vector: Vectors
    limit: int
    shards_asked: int = 0
    _answers: list[tuple[int, Distances, Rows]] = field(default_factory=list)

    @functools.cached_property
    def _order(self) -> rules.AskingOrder:
        request, routing = self.request, self.access.routing
        max_distance = request.options.max_distance
        if self.limit <= 0 or (max_distance is not None and max_distance <= 0):
            return rules.AskingOrder(())
        ranked = {} if request.exact else routing.rank_shards(self.vector)
        return rules.order_shards(routing.shards, ranked, self.settings, ask_all=request.exact)

    @property
    def surely_asked(self) -> list[int]:
        """Shards that are worth fetching before anything is known of them."""
        ranked = self._order.fanned_out
        if self.limit >= _MANY_ROWS:
            ranked += self._order.further
        return [*self._order.first, *(shard.position for shard in ranked)]

    def nearest(self) -> tuple[Rows, Rows, Distances]:
        """Return shards, rows and distances, in no order.

        They are at least as many as wanted, where there are so many, with all that are as near as the last one.
        """
        order = self._order
        self.access.fetch(self.surely_asked)
        for position in (*order.first, *(shard.position for shard in order.fanned_out)):  # engine-12
            self._ask(position)
        self.access.fetch([shard.position for shard in order.further if self._is_worth_asking(shard)])
        for shard in order.further:
            if self._is_worth_asking(shard):
                self._ask(shard.position)
        self._ask_beyond_cap(order.rest)
        if not self._answers:
            return _NO_ROWS, _NO_ROWS, _NO_DISTANCES
        shards = np.repeat([position for position, _, _ in self._answers], [len(rows) for _, _, rows in self._answers])
        distances = np.concatenate([distances for _, distances, _ in self._answers])
        rows = np.concatenate([rows for _, _, rows in self._answers])
        farthest = self._farthest()
        if farthest is None:
            return shards, rows, distances
        is_full = len(self._near_enough()) >= self.limit
        near = distances <= farthest if is_full else distances < farthest
        return shards[near], rows[near], distances[near]

    def _ask(self, position: int) -> None:
        self.shards_asked += 1
        search = self.access.search(position)
        if search is not None:
            allowed = self.access.allowed_rows(position)
            distances, rows = search.index.nearest(
                self.vector, self.limit, allowed=allowed, exact=self.request.exact, within=self._farthest()
            )
            self._answers.append((position, distances, rows))

    def _is_worth_asking(self, shard: rules.Ranked) -> bool:
        """With a condition, nearness says less: then only a shard that cannot be nearer is passed over."""
        is_worth = rules.could_be_nearer if self.request.condition is not None else rules.is_likely_nearer
        return is_worth(shard, self._farthest())

    def _ask_beyond_cap(self, ranked: Sequence[rules.Ranked]) -> None:
        """Ask shards in ascending order of what is compared: when one is not worth asking, no later one is."""
        size = self.settings.query_shard_fanout
        for begin in range(0, len(ranked), size):
            group = ranked[begin : begin + size]
            worth = [*itertools.takewhile(self._is_worth_beyond_cap, group)]
            self.access.fetch([shard.position for shard in worth])
            for shard in worth:
                if not self._is_worth_beyond_cap(shard):
                    return
                self._ask(shard.position)
            if len(worth) < len(group):
                return

    def _is_worth_beyond_cap(self, shard: rules.Ranked) -> bool:
        may_exceed = rules.may_exceed_cap(
            found=len(self._near_enough()), wanted=self.limit, is_filtered=self.request.condition is not None
        )
        return may_exceed and rules.could_be_nearer(shard, self._farthest())

    def _near_enough(self) -> Distances:
        """Return the distances of the rows so far that are within the limit."""
        if not self._answers:
            return _NO_DISTANCES
        distances = np.concatenate([distances for _, distances, _ in self._answers])
        max_distance = self.request.options.max_distance
        return distances if max_distance is None else distances[distances < max_distance]

    def _farthest(self) -> float | None:
        """Return the distance of the last row that would be returned now."""
        distances = self._near_enough()
        if len(distances) < self.limit:
            return self.request.options.max_distance
        return float(np.partition(distances, self.limit - 1)[self.limit - 1])
