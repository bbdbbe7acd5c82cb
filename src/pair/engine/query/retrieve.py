"""Rows that may answer a query, and what each of them is worth by keyword and by vector.

Invariants
    Both values of a candidate are its own, whichever list it came from: a row that only one list found is not given 0
    for the other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pair.engine.format.shard import SearchFile
from pair.engine.format.vectors import Vectors, exact_distances
from pair.engine.query import fusion
from pair.engine.query.bm25 import KeywordSearch
from pair.engine.query.shard_access import ShardAccess, by_shard
from pair.engine.query.vector_search import NearRows, VectorQuery, VectorSearch
from pair.engine.settings import EngineSettings
from pair.text.tokenizer import KeywordQuery

Rows = npt.NDArray[np.int64]

NEAR_ROWS = 200
"""The nearest rows of a query: they are candidates, and the range of their distances is the scale of the vector."""
KEYWORD_ROWS = 100
_PER_HIT = 2
_BLOCK_ROWS = 4096
_FOLDED = 10


@dataclass(frozen=True, eq=False)
class Candidates:
    """In no order."""

    shards: Rows
    rows: Rows
    keyword: fusion.Floats
    """BM25; 0 for a row without any word of the query."""
    distances: npt.NDArray[np.float32]
    """NaN where there is no vector to go by."""

    def __len__(self) -> int:
        return len(self.rows)

    def pick(self, chosen: npt.NDArray[np.bool_]) -> "Candidates":
        return Candidates(self.shards[chosen], self.rows[chosen], self.keyword[chosen], self.distances[chosen])


@dataclass(frozen=True, slots=True)
class RetrievalRequest:
    limit: int
    max_distance: float | None
    exact: bool


def _distances(search: SearchFile, rows: Rows, vector: Vectors) -> npt.NDArray[np.float32]:
    """A block at a time: where a text is stored often, all rows with it are equally good, and candidates."""
    blocks = np.array_split(rows, len(rows) // _BLOCK_ROWS + 1)
    return np.concatenate([exact_distances(search.row_vectors(block), vector) for block in blocks])


class Retriever:
    """The candidates of one query."""

    def __init__(
        self,
        reading: ShardAccess,
        policy: EngineSettings,
        wanted: RetrievalRequest,
        vector: Vectors | None,
        words: KeywordQuery | None,
    ) -> None:
        """Without `vector`, or without `words`, the other alone finds."""
        self._reading = reading
        self._policy = policy
        self._wanted = wanted
        self._vector = vector if vector is not None and vector.any() else None
        self._words = words
        near = self._vector_search()
        speaks = words is not None and words.says_something
        reading.fetch(self._surely_read(near), keywords=speaks)
        self._keywords = KeywordSearch(words, reading.keyword_parts()) if words and speaks else None
        nothing = np.empty(0, np.int64)
        self.near = near.nearest() if near else NearRows(nothing, nothing, np.empty(0, np.float32), 0)
        self.shards_asked = self.near.asked
        self._by_keyword = self._found_by_keyword()

    @property
    def term_weights(self) -> Mapping[str, float]:
        """Of the words of the query; none where words do not count."""
        return self._keywords.weights if self._keywords is not None else {}

    def all(self) -> Candidates:
        """What the keywords and the vector find, each once."""
        shards, rows = [self.near.shards], [self.near.rows]
        for position, (_, found) in self._by_keyword.items():
            shards.append(np.full(len(found), position, np.int64))
            rows.append(found)
        return self.valued(np.concatenate(shards), np.concatenate(rows))

    def valued(self, shards: Rows, rows: Rows) -> Candidates:
        """These rows with their values, each once, without those that the query refuses."""
        order = np.lexsort((rows, shards))
        shards, rows = shards[order], rows[order]
        if len(rows) > 1:
            is_new = np.concatenate([[True], (shards[1:] != shards[:-1]) | (rows[1:] != rows[:-1])])
            shards, rows = shards[is_new], rows[is_new]
        keyword, distances = np.zeros(len(rows)), np.full(len(rows), np.nan, np.float32)
        readable = np.ones(len(rows), np.bool_)
        wanted = by_shard(shards, rows)
        self._reading.fetch_rows(wanted if self._vector is not None else dict.fromkeys(wanted, rows[:0]))
        for position in np.unique(shards).tolist():
            own = shards == position
            search = self._reading.search(position)
            if search is None:
                readable[own] = False
                continue
            if self._keywords is not None:
                keyword[own] = self._keywords.scores_of(position, rows[own])
            if self._vector is not None:
                distances[own] = _distances(search, rows[own], self._vector)
        found = Candidates(shards, rows, keyword, distances)
        chosen = readable & (keyword > -np.inf)
        if self._wanted.max_distance is not None and self._vector is not None:
            chosen &= distances < self._wanted.max_distance
        return found if chosen.all() else found.pick(chosen)

    def scale(self, weight: float, found: Candidates) -> fusion.Scale:
        """The same however many hits are wanted."""
        return fusion.scale_of(weight, found.keyword, np.sort(self.near.distances)[:NEAR_ROWS])

    @property
    def is_complete(self) -> bool:
        """Whether no other row could be found, if more were wanted."""
        by_keyword = sum(len(rows) for _, rows in self._by_keyword.values())
        has_all_near = self._vector is None or len(self.near.rows) < self._near_limit
        is_strict = self._words is not None and bool(self._words.phrases) and self._words.is_strict
        return by_keyword < self._keyword_limit and (has_all_near or is_strict)

    @property
    def _near_limit(self) -> int:
        # Some rows become one passage with others.
        wanted = _PER_HIT * self._wanted.limit
        return wanted + _FOLDED if self._words is None else max(NEAR_ROWS, wanted)

    @property
    def _keyword_limit(self) -> int:
        return max(KEYWORD_ROWS, _PER_HIT * self._wanted.limit)

    def _vector_search(self) -> VectorSearch | None:
        wanted = self._wanted
        if self._vector is None:
            return None
        query = VectorQuery(self._vector, self._near_limit, wanted.max_distance, wanted.exact)
        return VectorSearch(self._reading, self._policy, query)

    def _surely_read(self, near: VectorSearch | None) -> Sequence[int]:
        """Shards that are read in any case: phrases are looked for in the texts of any of them."""
        if self._words is not None and (self._words.phrases or self._words.excluded):
            self._reading.read_whole_files()
            return range(len(self._reading.view.shards))
        return near.surely_asked if near is not None else ()

    def _found_by_keyword(self) -> dict[int, tuple[fusion.Floats, Rows]]:
        if self._keywords is None:
            return {}
        # Where the nearest rows are, the best are likely to be: what comes after need not look far.
        near = np.bincount(self.near.shards, minlength=len(self._reading.view.shards))
        positions = np.argsort(-near, kind="stable").tolist()
        return self._keywords.best_of(positions, self._keyword_limit, self._reading.allowed)
