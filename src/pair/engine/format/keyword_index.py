"""The keyword index of a shard, one mapped file: the rows of each term, and how often it occurs in each."""

import bisect
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pair.engine.format.array_file import ArrayFile, RangeOutline, ShardFile, check_utf8, outline_sections, write_arrays
from pair.engine.format.columns import KeywordRows, make_starts
from pair.text import tokenizer

Selection = npt.NDArray[np.bool_]
_KEY_BYTES = 8
_UNSIGNED = ("|u1", "<u2", "<u4", "<u8")
_WORTH_REMEMBERING = 128
_REMEMBERED_ROUNDS = 8


def write_keywords(path: Path, rows: KeywordRows, search_file: Path | None = None) -> ShardFile:
    """Write the index. `search_file`: of the same shard; without its outline it can only be fetched whole."""
    order = np.argsort(rows.terms, kind="stable")
    terms = rows.terms[order]
    row_of = np.repeat(np.arange(rows.count), np.diff(rows.starts))[order]
    counts = rows.counts[order]
    starts = np.searchsorted(terms, np.arange(len(rows.words) + 1))
    begins = starts[:-1]
    forms = [form for form, _ in rows.forms]
    about = np.array([tokenizer.VERSION, rows.count, int(rows.lengths.sum(dtype=np.int64))], np.int64)
    return write_arrays(
        path,
        {
            "about": about,
            "keys": make_sort_keys(rows.words),
            "word_starts": make_starts([len(word) for word in rows.words]).astype(np.uint32),
            "starts": starts.astype(np.uint32 if len(terms) < 1 << 32 else np.uint64),
            "most": _small(np.maximum.reduceat(counts, begins) if len(begins) else counts),
            "shortest": np.minimum.reduceat(rows.lengths[row_of], begins) if len(begins) else rows.lengths[:0],
            "lengths": rows.lengths,
            "rows": _small(row_of),
            "counts": _small(counts),
            "form_keys": make_sort_keys(forms),
            "form_starts": make_starts([len(form) for form in forms]).astype(np.uint32),
            "form_terms": np.array([term for _, term in rows.forms], np.uint32),
            "words": list(rows.words),
            "forms": forms,
            **(outline_sections(search_file) if search_file is not None else {}),
        },
    )


def _small(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Convert values to the smallest type that holds them."""
    return values.astype(np.min_scalar_type(int(values.max(initial=0))))


def make_sort_keys(words: Iterable[bytes]) -> npt.NDArray[np.uint64]:
    """Return the first bytes of each word as a number that sorts as the word does."""
    joined = b"".join(word[:_KEY_BYTES].ljust(_KEY_BYTES, b"\0") for word in words)
    return np.frombuffer(joined, ">u8").astype("<u8")


class _Vocabulary(Sequence[bytes]):
    """Sorted words in a mapped file."""

    def __init__(self, pack: ArrayFile, keys: str, starts: str, content: str) -> None:
        """`keys`, `starts`, `content`: names of sections. Raises ValueError."""
        self.keys: npt.NDArray[np.uint64] = pack.array(keys, "<u8")
        self._content = pack.bytes(content)
        self._starts = pack.starts(starts, "<u4", keys=len(self.keys), entries=len(self._content))
        check_utf8(content, self._content, self._starts)

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, number: Any) -> Any:
        return bytes(self._content[self._starts[number] : self._starts[number + 1]])

    def find(self, words: Sequence[bytes], keys: npt.NDArray[np.uint64]) -> dict[bytes, int]:
        """Return the numbers of the words that are here. `keys`: of the words."""
        numbers: dict[bytes, int] = {}
        for word, key, first in zip(words, keys, self.keys.searchsorted(keys).tolist(), strict=True):
            if first == len(self.keys) or self.keys[first] != key:
                continue
            # Of words that begin alike, one that is all of its key is the first.
            is_long = len(word) > _KEY_BYTES
            last = int(self.keys.searchsorted(key, "right")) if is_long else first + 1
            place = bisect.bisect_left(self, word, first, last) if is_long else first
            if place < last and self[place] == word:
                numbers[word] = place
        return numbers

    def beginning_with(self, prefix: bytes) -> range:
        first = bisect.bisect_left(self, prefix)
        # No byte of UTF-8 is as great as this one.
        return range(first, bisect.bisect_left(self, prefix + b"\xff", first))


class KeywordIndex:
    """Raises ValueError for a file that is no index: everything that a query follows is here."""

    def __init__(self, pack: ArrayFile) -> None:
        self.version, self.count, self.total_length = pack.array("about", "<i8", length=3).tolist()
        self.vocabulary = _Vocabulary(pack, "keys", "word_starts", "words")
        terms = len(self.vocabulary)
        self.most_counts = pack.array("most", *_UNSIGNED, length=terms)
        """Of each term, how often it stands in one row at most."""
        self.shortest_rows = pack.array("shortest", "<u4", length=terms)
        """Of each term, the length of the shortest row that it stands in."""
        self.lengths = pack.array("lengths", "<u4", length=self.count)
        if self.total_length != int(self.lengths.sum(dtype=np.int64)):
            raise ValueError("the section about has another length than its rows")
        self._rows = pack.array("rows", *_UNSIGNED, below=self.count)
        self._counts = pack.array("counts", *_UNSIGNED, length=len(self._rows))
        self._starts = pack.starts("starts", "<u4", "<u8", keys=terms, entries=len(self._rows))
        self._forms = _Vocabulary(pack, "form_keys", "form_starts", "forms")
        self._form_terms = pack.array("form_terms", "<u4", length=len(self._forms), below=terms)
        self.search_outline = (
            RangeOutline(bytes(pack.bytes("search_head")), pack.array("search_hashes", "|u1", dimensions=2))
            if "search_hashes" in pack
            else None
        )
        """None in a file of an older pair."""
        self._live_totals: tuple[Selection, tuple[int, int]] | None = None
        self._impacts: Impacts | None = None

    @property
    def is_current(self) -> bool:
        """Whether its terms are those that a query is made of today."""
        return bool(self.version == tokenizer.VERSION)

    def expand(self, prefix: bytes) -> set[bytes]:
        """Return the terms that begin so, or that are the term of a word that begins so."""
        numbers = set(self.vocabulary.beginning_with(prefix))
        forms = self._forms.beginning_with(prefix)
        numbers.update(self._form_terms[forms.start : forms.stop].tolist())
        return {self.vocabulary[number] for number in numbers}

    def frequency(self, number: int) -> int:
        return int(self._starts[number + 1]) - int(self._starts[number])

    def postings(self, number: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Return the rows of a term in ascending order, and how often it occurs in each."""
        begin, end = self._starts[number], self._starts[number + 1]
        return self._rows[begin:end], self._counts[begin:end]

    def merge_postings(self, numbers: Sequence[int]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Return the rows of several terms, as if they were one."""
        lists = [self.postings(number) for number in numbers]
        if len(lists) == 1:
            return lists[0]
        rows = np.concatenate([rows for rows, _ in lists])
        counts = np.bincount(rows, np.concatenate([counts for _, counts in lists]))
        merged = np.flatnonzero(counts)
        return merged.astype(self._rows.dtype), counts[merged].astype(np.int64)

    def totals(self, live: Selection | None) -> tuple[int, int]:
        """Count the live rows, and the words in them. Cached for the last selection."""
        if live is None:
            return self.count, self.total_length
        remembered = self._live_totals
        if remembered is None or remembered[0] is not live:
            totals = int(np.count_nonzero(live)), int(self.lengths[live].sum(dtype=np.int64))
            self._live_totals = remembered = (live, totals)
        return remembered[1]

    def impacts(self, k1: float, b: float, average_length: float) -> "Impacts":
        """Return the impacts of terms. Cached for the last average."""
        remembered = self._impacts
        if remembered is None or remembered.average_length != average_length:
            self._impacts = remembered = Impacts(self, k1, b, average_length)
        return remembered

    def read_rows(self, rows: npt.NDArray[np.int64]) -> KeywordRows:
        """Return these rows, in ascending order, as columns for another shard."""
        new_row = np.full(self.count, -1, np.int64)
        new_row[rows] = np.arange(len(rows))
        row_of = new_row[self._rows]
        chosen = np.flatnonzero(row_of >= 0)
        row_of = row_of[chosen]
        order = np.argsort(row_of, kind="stable")
        sizes = self._starts[1:].astype(np.int64) - self._starts[:-1].astype(np.int64)
        terms = np.repeat(np.arange(len(self.vocabulary)), sizes)[chosen]
        kept, renumbered = np.unique(terms, return_inverse=True)
        new_number = np.full(len(self.vocabulary), -1, np.int64)
        new_number[kept] = np.arange(len(kept))
        form_terms = new_number[self._form_terms]
        return KeywordRows(
            [self.vocabulary[number] for number in kept.tolist()],
            make_starts(np.bincount(row_of, minlength=len(rows))),
            renumbered[order].astype(np.uint32),
            self._counts[chosen][order].astype(np.uint32),
            self.lengths[rows],
            [(self._forms[place], int(form_terms[place])) for place in np.flatnonzero(form_terms >= 0).tolist()],
        )


class Impacts:
    """How much of its weight a term brings to a row: f / (f + k1 · (1 - b + b · length / average length)).

    Those of terms that stand in many rows are remembered, up to as many as there are rows, a few times over.
    """

    def __init__(self, index: KeywordIndex, k1: float, b: float, average_length: float) -> None:
        self._index = index
        self._k1, self._b = k1, b
        self.average_length = average_length
        self._remembered: dict[int, npt.NDArray[np.float32]] = {}
        self._room = _REMEMBERED_ROUNDS * index.count

    def read(self, number: int) -> tuple[npt.NDArray[Any], npt.NDArray[np.float32]]:
        rows, counts = self._index.postings(number)
        impacts = self._remembered.get(number)
        if impacts is None:
            impacts = self.compute(rows, counts)
            if _WORTH_REMEMBERING <= len(impacts) <= self._room:
                self._room -= len(impacts)
                self._remembered[number] = impacts
        return rows, impacts

    def compute(self, rows: npt.NDArray[Any], counts: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        lengths = self._index.lengths[rows].astype(np.float32)
        norms = np.float32(self._k1 * (1.0 - self._b)) + np.float32(self._k1 * self._b / self.average_length) * lengths
        frequencies = counts.astype(np.float32)
        impacts: npt.NDArray[np.float32] = frequencies / (frequencies + norms)
        return impacts

    def most(self, number: int) -> float:
        """Return the largest impact that a row can get."""
        most, shortest = int(self._index.most_counts[number]), int(self._index.shortest_rows[number])
        return most / (most + self._k1 * (1.0 - self._b + self._b * shortest / self.average_length))
