"""Posting lists of several shards as one, with the BM25 impact of each posting, and the statistics of all shards.

Invariants
    A corpus belongs to one manifest: the live rows and the average length, and so all impacts, never change.
    Impacts do not depend on the layout of the shards.
    Cached lists have at most a fixed number of postings for each row.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pair.engine.format.keyword_index import KeywordIndex, Selection
from pair.text.tokenizer import KeywordQuery, adapt_query

Rows = npt.NDArray[np.int32]
Impacts = npt.NDArray[np.float32]
Words = tuple[bytes, ...]
"""Terms that count as one."""

K1 = 1.2
B = 0.75
SLACK = 1.0 + 1e-6
"""Tolerance for rounding errors when two sums are compared."""
_ROWS_TOGETHER = 1 << 17
"""Maximum number of rows of shards that are ranked together."""
_LONG_SHARE = 16
"""A list is long if it has at least one posting for this many rows."""
_LONG_ROUNDS = 8
_SHORT_ROUNDS = 2
"""Maximum number of postings in the caches of long and of short lists, for each row."""
_ENTRY = 64
"""The size of a cache entry itself, in postings."""
_SPARSE = 16
"""Rows per posting above which sums are computed only for rows with postings, not in an array for all rows."""
_WORTH_PARTITION = 128
"""Minimum number of rows of a list whose best impacts are determined."""
_MOST_CACHED_WORDS = 8
"""Maximum number of words of a cached list: forms of a word are searched often, the many words of a prefix seldom."""


@dataclass(frozen=True, slots=True)
class KeywordPart:
    """The keywords of one shard."""

    index: KeywordIndex | None
    """None for a shard whose keywords cannot be read: no query finds a row of it."""
    live: Selection | None
    """The live rows; None for all."""
    row_fields: Callable[[int], Sequence[str]]
    """A function that returns the texts of a row that may contain a phrase."""


class _ListOfPart(NamedTuple):
    """The rows of one part that hold a term. The part begins and ends at these rows of its group."""

    begin: int
    end: int
    file: KeywordIndex
    number: int
    rows: npt.NDArray[Any]
    counts: npt.NDArray[Any]
    live: Selection | None


class Postings:
    """The rows of a group that hold a term, or any of several that count as one, and its impact in each.

    Thread-safe: `merge` drops the lists last, so a method that reads them first sees either them or the result.
    """

    def __init__(self, group: "KeywordGroup", lists: Sequence[_ListOfPart]) -> None:
        self._group = group
        self._lists = lists
        self._merged: tuple[Rows, Impacts] | None = None
        self._bound: float | None = None
        self._last_best: tuple[int, float] = (0, 0.0)
        self.size = sum(len(part.rows) for part in lists)
        """The number of rows. Rows that are not live are counted until the lists are merged."""
        if len({part.begin for part in lists}) < len(lists):
            self.merge()  # A row may hold several of the terms.

    @property
    def bound(self) -> float:
        """The highest impact in the lists."""
        lists, bound = self._lists, self._bound
        if bound is None:
            bound = self._bound = max(map(self._group.bound_impacts, lists))
        return bound

    @property
    def is_merged(self) -> bool:
        return self._merged is not None

    def count_live(self) -> int:
        lists = self._lists
        if self._merged is not None or all(part.live is None for part in lists):
            return self.size
        return sum(
            len(part.rows) if part.live is None else int(np.count_nonzero(part.live[part.rows])) for part in lists
        )

    def merge(self) -> tuple[Rows, Impacts]:
        """Return the live rows, ascending, and their impacts."""
        lists, merged = self._lists, self._merged
        if merged is None:
            lists = [_drop_dead(part) for part in lists]
            rows = np.concatenate([part.rows for part in lists], dtype=np.int32, casting="unsafe")
            rows += np.array([part.begin for part in lists], np.int32).repeat([len(part.rows) for part in lists])
            counts = np.concatenate([part.counts for part in lists], dtype=np.float32, casting="unsafe")
            if len({part.begin for part in lists}) < len(lists):
                rows, sums = sum_by_row(rows, counts, self._group.count)
                counts = sums.astype(np.float32)
            impacts = self._group.compute_impacts(rows, counts)
            self.size = len(rows)
            self._bound = float(impacts.max(initial=0.0))
            self._merged = merged = rows, impacts
            self._lists = ()
        return merged

    def find_floor(self, limit: int) -> float:
        """Return an impact that at least `limit` live rows reach; 0 if none is known."""
        if self._merged is None or self.size < max(limit, _WORTH_PARTITION):
            return 0.0
        known, least = self._last_best
        if known != limit:
            least = float(np.partition(self._merged[1], self.size - limit)[self.size - limit])
            self._last_best = limit, least
        return least

    def look_up(self, rows: Rows, impacts: Impacts) -> None:
        """Write the impact of the term in each of these rows; 0 for a row without it."""
        lists, merged = self._lists, self._merged
        if merged is not None and len(merged[0]):
            own_rows, own_impacts = merged
            # Without the last row, so that every place is within the list. No list is empty.
            places = own_rows[:-1].searchsorted(rows)
            np.multiply(own_impacts.take(places), own_rows.take(places) == rows, out=impacts)
            return
        impacts[:] = 0.0
        for part in lists if merged is None else ():
            wanted = np.flatnonzero((rows >= part.begin) & (rows < part.end))
            if len(wanted):
                own = (rows[wanted] - np.int32(part.begin)).astype(part.rows.dtype)
                places = part.rows[:-1].searchsorted(own)
                held = part.rows.take(places) == own
                found = wanted[held]
                impacts[found] = self._group.compute_impacts(rows[found], part.counts.take(places[held]))


def sum_by_row(
    rows: npt.NDArray[Any], values: Impacts, count: int, least: float = 0.0
) -> tuple[Rows, npt.NDArray[np.float64]]:
    """Return the distinct rows, ascending, and the sum of the values of each, which are added in their order.

    `count`: the number of rows of the group. `least`: rows with a lower sum may be left out.
    """
    if len(rows) < count // _SPARSE:  # Not np.unique(): it takes longer, and its first call loads numpy.ma.
        order = rows.argsort(kind="stable")
        rows = rows[order]
        is_new = np.append(True, rows[1:] != rows[:-1])[: len(rows)]
        places, values = is_new.cumsum() - 1, values[order]
        return rows[is_new].astype(np.int32), np.bincount(places, values).astype(np.float64, copy=False)
    sums = np.bincount(rows, values).astype(np.float64, copy=False)
    rows = ((sums >= least) if least > 0 else (sums > 0)).nonzero()[0].astype(np.int32)
    return rows, sums[rows]


def _drop_dead(part: _ListOfPart) -> _ListOfPart:
    if part.live is None:
        return part
    is_live = part.live[part.rows]
    return part._replace(rows=part.rows[is_live], counts=part.counts[is_live])


PostingsByGroup = Sequence[Postings | None]


class KeywordGroup:
    """Shards that are ranked together: their rows are numbered one after the other."""

    def __init__(self, parts: Mapping[int, KeywordPart], average_length: float) -> None:
        """Create a group of readable shards, by position."""
        self.positions = list(parts)
        self._indexes = [part.index for part in parts.values() if part.index is not None]
        self._live = [part.live for part in parts.values()]
        self.begins = [0]
        for index in self._indexes:
            self.begins.append(self.begins[-1] + index.count)
        self.count = self.begins[-1]
        self._average_length = average_length

    @functools.cached_property
    def _norms(self) -> Impacts:
        lengths = np.concatenate([index.lengths for index in self._indexes], dtype=np.float32, casting="unsafe")
        return np.float32(K1 * (1.0 - B)) + np.float32(K1 * B / self._average_length) * lengths

    @functools.cached_property
    def live(self) -> Selection | None:
        """The live rows; None for all."""
        return self.join_selections(self._live)

    def join_selections(self, selections: Sequence[Selection | None]) -> Selection | None:
        """Return the selected rows, given the rows of each shard."""
        if all(selection is None for selection in selections):
            return None
        joined = np.ones(self.count, np.bool_)
        for begin, end, selection in zip(self.begins, self.begins[1:], selections, strict=False):
            if selection is not None:
                joined[begin:end] = selection
        return joined

    def has_no_filter(self, selections: Sequence[Selection | None]) -> bool:
        """Return whether these selections exclude no live row."""
        return all(
            selection is None or selection is live for selection, live in zip(selections, self._live, strict=True)
        )

    def compute_impacts(self, rows: Rows, counts: npt.NDArray[Any]) -> Impacts:
        """Return f / (f + k1 · (1 - b + b · length / average length)) for each row, given the frequencies f."""
        frequencies = counts.astype(np.float32, copy=False)
        impacts: Impacts = frequencies / (frequencies + self._norms[rows])
        return impacts

    def bound_impacts(self, part: _ListOfPart) -> float:
        """Return a bound of the impacts in a list."""
        most, shortest = int(part.file.most_counts[part.number]), int(part.file.shortest_rows[part.number])
        return most / (most + K1 * (1.0 - B + B * shortest / self._average_length)) * SLACK

    def gather(self, words: Words, places: Sequence[Mapping[bytes, int]]) -> Postings | None:
        """Return the rows that hold any of these words; None if no row does. `places`: word numbers, by position."""
        lists = [
            _ListOfPart(begin, begin + index.count, index, own[word], *index.postings(own[word]), live)
            for position, index, begin, live in zip(
                self.positions, self._indexes, self.begins, self._live, strict=False
            )
            for own in (places[position],)
            for word in words
            if word in own
        ]
        return Postings(self, lists) if lists else None


class KeywordCorpus:
    """The keywords of all shards of a manifest, with their statistics. Used from several threads at once."""

    def __init__(self, parts: Sequence[KeywordPart]) -> None:
        self._files = [(part.index, part.live) for part in parts]
        readable = {position: part for position, part in enumerate(parts) if part.index is not None}
        self.indexes = [part.index for part in readable.values() if part.index is not None]
        pairs = [(part.index, part.live) for part in readable.values() if part.index is not None]
        self.languages: frozenset[str] = frozenset().union(*(index.languages(live) for index, live in pairs))
        totals = [index.totals(live) for index, live in pairs]
        self.rows = sum(rows for rows, _ in totals)
        average_length = max(sum(length for _, length in totals) / max(self.rows, 1), 1e-9)
        self.groups = [KeywordGroup(group, average_length) for group in _group(readable)]
        self.place_of = {
            position: (group, begin)
            for group in self.groups
            for position, begin in zip(group.positions, group.begins, strict=False)
        }
        """The group of each shard, and its first row there."""
        self._long: dict[Words, PostingsByGroup] = {}
        self._young: dict[Words, PostingsByGroup] = {}
        self._old: dict[Words, PostingsByGroup] = {}
        self._long_room, self._short_room = _LONG_ROUNDS * self.rows, _SHORT_ROUNDS * self.rows // 2

    def adapt(self, query: KeywordQuery) -> KeywordQuery:
        """Return the query in the languages of the documents; English alone needs no change."""
        return adapt_query(query, self.languages) if self.languages - {"en"} else query

    def recall(self, words: Words) -> PostingsByGroup | None:
        """Return the cached rows of each group that hold any of these words."""
        known = self._long.get(words) or self._young.get(words)
        if known is None and (known := self._old.get(words)) is not None:
            self._remember(words, known)
        return known

    def gather(self, words: Words, places: Sequence[Mapping[bytes, int]]) -> PostingsByGroup:
        """Return the rows of each group that hold any of these words, and cache them if there is room."""
        found = [group.gather(words, places) for group in self.groups]
        present = [postings for postings in found if postings is not None]
        size = sum(postings.size for postings in present)
        if size < self.rows // _LONG_SHARE or size <= self._long_room:
            for postings in present:
                postings.merge()
            if len(words) <= _MOST_CACHED_WORDS:
                self._remember(words, found)
        return found

    def _remember(self, words: Words, found: PostingsByGroup) -> None:
        """Cache rows. If the young half of the short lists is full, it replaces the old half. Long lists stay."""
        size = _ENTRY + sum(postings.size for postings in found if postings is not None)
        if size >= self.rows // _LONG_SHARE:
            self._long_room -= size
            self._long[words] = found
            return
        if size > self._short_room:
            self._old, self._young, self._short_room = self._young, {}, _SHORT_ROUNDS * self.rows // 2
        self._short_room -= size
        self._young[words] = found

    def is_of(self, parts: Sequence[KeywordPart]) -> bool:
        """Return whether the corpus was made from these parts: the same files with the same live rows."""
        return len(parts) == len(self._files) and all(
            part.index is index and part.live is live for part, (index, live) in zip(parts, self._files, strict=True)
        )


def _group(parts: Mapping[int, KeywordPart]) -> Iterator[dict[int, KeywordPart]]:
    group: dict[int, KeywordPart] = {}
    rows = 0
    for position, part in parts.items():
        count = 0 if part.index is None else part.index.count
        if group and rows + count > _ROWS_TOGETHER:
            yield group
            group, rows = {}, 0
        group[position] = part
        rows += count
    if group:
        yield group
