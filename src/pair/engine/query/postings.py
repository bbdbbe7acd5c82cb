"""Posting lists of several shards as one, with the BM25 impact of each posting, and the statistics of all shards.

Invariants
    A corpus belongs to one manifest: the live rows and the average length, and so all impacts, never change.
    Impacts do not depend on the layout of the shards.
    Cached lists have at most a fixed size for each row.
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
_NO_ROWS: Rows = np.empty(0, np.int32)
_NO_IMPACTS: Impacts = np.empty(0, np.float32)

K1 = 1.2
B = 0.75
SLACK = 1.0 + 1e-6
"""Tolerance for rounding errors when two sums are compared."""
_ROWS_TOGETHER = 1 << 17
"""Maximum number of rows of shards that are ranked together."""
_LONG_SHARE = 16
"""A list is long if it has at least one posting for this many rows."""
_LONG_BYTES = 80
_SHORT_BYTES = 16
"""Maximum size of the caches of long and of short lists, for each row."""
_ENTRY_BYTES = 512
"""The size of a cache entry itself."""
_POSTING_BYTES = 8
_SPARSE = 16
"""Rows per posting above which sums are computed only for rows with postings, not in an array for all rows."""
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


class Postings:
    """The rows of a group that hold a term, or any of several that count as one, and its impact in each.

    A short list has the rows with their impacts; a long one has the count of each row of the group, which takes less
    memory, and is read in one step.
    """

    def __init__(self, group: "KeywordGroup", lists: Sequence[_ListOfPart]) -> None:
        self._group = group
        self._counts: npt.NDArray[Any] | None = None
        self.rows, self.impacts = _NO_ROWS, _NO_IMPACTS
        """The live rows of a short list, ascending, and their impacts."""
        sizes = [len(part.rows) for part in lists]
        if sum(sizes) >= group.count // _LONG_SHARE:
            most = sum(int(part.file.most_counts[part.number]) for part in lists)
            self._counts = counts = np.zeros(group.count, np.min_scalar_type(most))
            for part in lists:  # A row may hold several of the terms.
                counts[part.begin : part.end][part.rows] += part.counts.astype(counts.dtype, copy=False)
            if group.live is not None:
                counts *= group.live
            self.size = int(np.count_nonzero(counts))
            self.bound = float(self._spread(counts).max(initial=0.0))
            return
        rows = np.concatenate([part.rows for part in lists], dtype=np.int32, casting="unsafe")
        frequencies = np.concatenate([part.counts for part in lists], dtype=np.float32, casting="unsafe")
        rows += np.array([part.begin for part in lists], np.int32).repeat(sizes)
        if len({part.begin for part in lists}) < len(lists):
            rows, sums = sum_by_row(rows, frequencies, group.count)
            frequencies = sums.astype(np.float32)
        if group.live is not None:
            is_live = group.live.take(rows)
            rows, frequencies = rows[is_live], frequencies[is_live]
        self.size, self.rows, self.impacts = len(rows), rows, frequencies / (frequencies + group.norms.take(rows))
        self.bound = float(self.impacts.max(initial=0.0))
        """The highest impact."""

    def _spread(self, counts: npt.NDArray[Any]) -> Impacts:
        """Return the impact in each row of the group."""
        impacts = counts.astype(np.float32)
        impacts /= impacts + self._group.norms
        return impacts

    @property
    def is_long(self) -> bool:
        return self._counts is not None

    @property
    def size_bytes(self) -> int:
        return _ENTRY_BYTES + (_POSTING_BYTES * self.size if self._counts is None else self._counts.nbytes)

    def add(self, weight: np.float32, sums: npt.NDArray[np.float64]) -> None:
        """Add the weighted impacts to the sums of all rows of the group."""
        if self._counts is None:
            sums[self.rows] += weight * self.impacts
        else:
            sums += weight * self._spread(self._counts)

    def look_up(self, rows: Rows, impacts: Impacts, norms: Impacts) -> None:
        """Write the impact of the term in each of these rows; 0 for a row without it. `norms`: of these rows."""
        if self._counts is not None:
            impacts[:] = self._counts.take(rows)
            impacts /= impacts + norms
        elif self.size < len(rows):
            impacts[:] = 0.0
            places = rows[:-1].searchsorted(self.rows)
            is_here = rows.take(places) == self.rows
            impacts[places[is_here]] = self.impacts[is_here]
        else:
            # Without the last row, so that every place is within the list.
            places = self.rows[:-1].searchsorted(rows)
            np.multiply(self.impacts.take(places), self.rows.take(places) == rows, out=impacts)


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
    return pick_sums(sums, least)


def pick_sums(sums: npt.NDArray[np.float64], least: float) -> tuple[Rows, npt.NDArray[np.float64]]:
    """Return the rows with a sum of at least this, which is not 0, and their sums."""
    rows = ((sums >= least) if least > 0 else (sums > 0)).nonzero()[0]
    return rows.astype(np.int32), sums.take(rows)


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
    def norms(self) -> Impacts:
        """k1 · (1 - b + b · length / average length) for each row."""
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

    def gather(self, words: Words, places: Sequence[Mapping[bytes, int]]) -> Postings | None:
        """Return the rows that hold any of these words; None if no row does. `places`: word numbers, by position."""
        lists = [
            _ListOfPart(begin, begin + index.count, index, own[word], *index.postings(own[word]))
            for position, index, begin in zip(self.positions, self._indexes, self.begins, strict=False)
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
        self._long_room, self._short_room = _LONG_BYTES * self.rows, _SHORT_BYTES * self.rows // 2

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
        if len(words) <= _MOST_CACHED_WORDS:
            self._remember(words, found)
        return found

    def _remember(self, words: Words, found: PostingsByGroup) -> None:
        """Cache rows. If the young half of the short lists is full, it replaces the old half. Long lists stay."""
        size = sum(postings.size for postings in found if postings is not None)
        size_bytes = _ENTRY_BYTES + sum(postings.size_bytes for postings in found if postings is not None)
        if size >= self.rows // _LONG_SHARE:
            if size_bytes <= self._long_room:
                self._long_room -= size_bytes
                self._long[words] = found
            return
        if size_bytes > self._short_room:
            self._old, self._young, self._short_room = self._young, {}, _SHORT_BYTES * self.rows // 2
        self._short_room -= size_bytes
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
