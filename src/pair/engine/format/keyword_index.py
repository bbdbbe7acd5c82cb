"""The keyword index of a shard: the rows of each term, and its frequency in each row, in one mapped file."""

import bisect
import functools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pair.engine.format.array_file import ArrayFile, RangeOutline, ShardFile, check_utf8, outline_sections, write_arrays
from pair.engine.format.columns import KeywordRows, make_starts
from pair.text import tokenizer
from pair.text.languages import LANGUAGES, count_edits

Selection = npt.NDArray[np.bool_]
_KEY_BYTES = 8
_LETTER_BYTES = 3
"""Maximum size of a letter in UTF-8, for the alphabets in use today."""
_UNSIGNED = ("|u1", "<u2", "<u4", "<u8")


def write_keywords(path: Path, rows: KeywordRows, search_file: Path | None = None) -> ShardFile:
    """Write the index. `search_file`: the search file of the shard. Its stored outline allows range requests."""
    # One number for term and posting: sorting such numbers is faster than a stable argsort.
    keys = rows.terms.astype(np.uint64) << 32
    keys |= np.arange(len(keys), dtype=np.uint64)
    keys.sort()
    order, terms = keys.astype(np.uint32), (keys >> 32).astype(np.uint32)
    del keys
    row_of = np.repeat(np.arange(rows.count, dtype=np.uint32), np.diff(rows.starts))[order]
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
            **({"languages": rows.languages} if rows.languages.any() else {}),
            **(outline_sections(search_file) if search_file is not None else {}),
        },
    )


def _small(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Convert values to the smallest sufficient type."""
    return values.astype(np.min_scalar_type(int(values.max(initial=0))))


def make_sort_keys(words: Iterable[bytes]) -> npt.NDArray[np.uint64]:
    """Return the first bytes of each word as a number with the same sort order."""
    joined = b"".join(word[:_KEY_BYTES].ljust(_KEY_BYTES, b"\0") for word in words)
    return np.frombuffer(joined, ">u8").astype("<u8")


class _Vocabulary(Sequence[bytes]):
    """Sorted words in a mapped file."""

    def __init__(self, pack: ArrayFile, keys: str, starts: str, content: str) -> None:
        """Map the words. `keys`, `starts`, `content`: names of sections. Raises ValueError."""
        self.keys: npt.NDArray[np.uint64] = pack.array(keys, "<u8")
        self._content = pack.bytes(content)
        self._starts = pack.starts(starts, "<u4", keys=len(self.keys), entries=len(self._content))
        check_utf8(content, self._content, self._starts)
        self._letters: npt.NDArray[np.uint32] | None = None
        """The letters of each word as a bit set, made when the first word is misspelled."""

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, number: Any) -> Any:
        return bytes(self._content[self._starts[number] : self._starts[number + 1]])

    def find(self, words: Sequence[bytes], keys: npt.NDArray[np.uint64]) -> dict[bytes, int]:
        """Return the numbers of the known words. `keys`: the sort keys of the words."""
        numbers: dict[bytes, int] = {}
        if not len(self):
            return numbers
        places = self.keys.searchsorted(keys)
        is_known = self.keys.take(places, mode="clip") == keys
        for number in is_known.nonzero()[0].tolist():
            word, key, first = words[number], keys[number], int(places[number])
            # Among words with one key, a word that is as short as its key comes first.
            is_long = len(word) > _KEY_BYTES
            last = int(self.keys.searchsorted(key, "right")) if is_long else first + 1
            place = bisect.bisect_left(self, word, first, last) if is_long else first
            if place < last and self[place] == word:
                numbers[word] = place
        return numbers

    def find_neighbours(self, word: str, most_edits: int) -> list[tuple[int, int]]:
        """Return the edit distance and the number of each word within this distance."""
        if self._letters is None:
            bits = np.left_shift(np.uint32(1), np.asarray(self._content) & 31, dtype=np.uint32)
            # A word is never empty.
            self._letters = np.bitwise_or.reduceat(bits, self._starts[:-1]) if len(self) else bits[:0]
        own = functools.reduce(lambda bits, byte: bits | 1 << (byte & 31), word.encode(), 0)
        # An edit replaces at most one letter, of one byte or more.
        width = 1 if word.isascii() else _LETTER_BYTES
        sizes = np.diff(self._starts.astype(np.int64))
        near = np.abs(sizes - len(word.encode())) <= width * most_edits
        near &= np.bitwise_count(self._letters ^ np.uint32(own)) <= 2 * width * most_edits
        numbers = np.flatnonzero(near).tolist()
        edits = count_edits(word, [self[number].decode(errors="replace") for number in numbers])
        return [(count, number) for count, number in zip(edits, numbers, strict=True) if count <= most_edits]

    def beginning_with(self, prefix: bytes) -> range:
        first = bisect.bisect_left(self, prefix)
        # UTF-8 has no byte 0xff.
        return range(first, bisect.bisect_left(self, prefix + b"\xff", first))


class KeywordIndex:
    """The mapped keyword index of a shard."""

    def __init__(self, pack: ArrayFile) -> None:
        """Check all indexes that a query follows. Raises ValueError for a file that is not a keyword index."""
        self.version, self.count, self.total_length = pack.array("about", "<i8", length=3).tolist()
        self.vocabulary = _Vocabulary(pack, "keys", "word_starts", "words")
        terms = len(self.vocabulary)
        self.most_counts = pack.array("most", *_UNSIGNED, length=terms)
        """The highest frequency of each term in a row."""
        self.shortest_rows = pack.array("shortest", "<u4", length=terms)
        """The length of the shortest row of each term."""
        self.lengths = pack.array("lengths", "<u4", length=self.count)
        if self.total_length != int(self.lengths.sum(dtype=np.int64)):
            raise ValueError("the total length in the section about is wrong")
        self._rows = pack.array("rows", *_UNSIGNED, below=self.count)
        self._counts = pack.array("counts", *_UNSIGNED, length=len(self._rows))
        self._starts = pack.starts("starts", "<u4", "<u8", keys=terms, entries=len(self._rows))
        self._forms = _Vocabulary(pack, "form_keys", "form_starts", "forms")
        self._form_terms = pack.array("form_terms", "<u4", length=len(self._forms), below=terms)
        self._languages: npt.NDArray[np.uint8] | None = None
        """The languages of rows; None if all are English, and in older files without languages."""
        if "languages" in pack:
            self._languages = pack.array("languages", "|u1", length=self.count)
        self.search_outline: RangeOutline | None = None
        """The version of the tokenizer; None in the first files of this format."""
        if "search_hashes" in pack:
            hashes = pack.array("search_hashes", "|u1", dimensions=2)
            self.search_outline = RangeOutline(bytes(pack.bytes("search_head")), hashes)
        self._live_totals: tuple[Selection, tuple[int, int]] | None = None
        self._live_languages: tuple[Selection | None, frozenset[str]] | None = None

    @property
    def is_current(self) -> bool:
        """Whether the terms come from the current version of the tokenizer."""
        return bool(self.version == tokenizer.VERSION)

    def expand(self, prefix: bytes) -> set[bytes]:
        """Return the terms that begin with the prefix, and the terms of words that do."""
        numbers = set(self.vocabulary.beginning_with(prefix))
        forms = self._forms.beginning_with(prefix)
        numbers.update(self._form_terms[forms.start : forms.stop].tolist())
        return {self.vocabulary[number] for number in numbers}

    def postings(self, number: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Return the rows of a term, ascending, and its frequency in each."""
        begin, end = self._starts[number], self._starts[number + 1]
        return self._rows[begin:end], self._counts[begin:end]

    def merge_postings(self, numbers: tuple[int, ...]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Return the rows and frequencies of terms, added up as if they were one term."""
        if len(numbers) == 1:
            return self.postings(numbers[0])
        lists = [self.postings(number) for number in numbers]
        rows = np.concatenate([rows for rows, _ in lists])
        sums = np.bincount(rows, np.concatenate([counts for _, counts in lists]))
        merged = np.flatnonzero(sums)
        return merged.astype(self._rows.dtype), sums[merged].astype(np.uint32)

    def totals(self, live: Selection | None) -> tuple[int, int]:
        """Return the number of live rows and of their words. The last result is cached."""
        if live is None:
            return self.count, self.total_length
        remembered = self._live_totals
        if remembered is None or remembered[0] is not live:
            totals = int(np.count_nonzero(live)), int(self.lengths[live].sum(dtype=np.int64))
            self._live_totals = remembered = (live, totals)
        return remembered[1]

    def languages(self, live: Selection | None) -> frozenset[str]:
        """Return the languages of the live rows. The last result is cached."""
        if self._languages is None:
            return frozenset({"en"}) if self.totals(live)[0] else frozenset()
        remembered = self._live_languages
        if remembered is None or remembered[0] is not live:
            counts = np.bincount(self._languages if live is None else self._languages[live])
            numbers = counts.nonzero()[0].tolist()
            names = frozenset(LANGUAGES[number] if number < len(LANGUAGES) else "en" for number in numbers)
            self._live_languages = remembered = (live, names)
        return remembered[1]

    def find_neighbours(self, word: str, most_edits: int) -> set[tuple[int, str, bytes]]:
        """Return words within this edit distance of a word: the distance, the word, and its term."""
        found: set[tuple[int, str, bytes]] = set()
        for vocabulary, term_of in ((self.vocabulary, None), (self._forms, self._form_terms)):
            for edits, number in vocabulary.find_neighbours(word, most_edits):
                term = self.vocabulary[number if term_of is None else int(term_of[number])]
                found.add((edits, vocabulary[number].decode(errors="replace"), term))
        return found

    def read_rows(self, rows: npt.NDArray[np.int64]) -> KeywordRows:
        """Return these ascending rows as columns for another shard."""
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
            np.zeros(len(rows), np.uint8) if self._languages is None else self._languages[rows],
        )
