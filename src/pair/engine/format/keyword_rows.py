"""How often each term stands in each row: made from texts once, then gathered, picked and put together without them.

Invariants
    The vocabulary is sorted by its bytes and holds no word that is in no row.
    A row names each term once, in ascending order.
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pair.text import tokenizer

Numbers = npt.NDArray[np.int64]

TITLE_WEIGHT = 3
"""How often each word of the title counts in each row of a document, in its frequency and in the row's length alike."""


class RowText(NamedTuple):
    text: str
    title: str = ""
    context: str = ""
    """What stands over the text, such as headings; counts as text does."""


@dataclass(frozen=True, eq=False)
class KeywordRows:
    words: Sequence[bytes]
    starts: Numbers
    """Of each row among `terms`, and the end of the last."""
    terms: npt.NDArray[np.uint32]
    counts: npt.NDArray[np.uint32]
    lengths: npt.NDArray[np.uint32]
    """Of each row, in words."""
    forms: Sequence[tuple[bytes, int]]
    """Words as they are written, in ascending order, where their term is another, and that term."""

    @property
    def count(self) -> int:
        return len(self.lengths)

    def pick(self, rows: Numbers) -> "KeywordRows":
        """Only these rows, in this order."""
        if len(rows) == self.count and np.array_equal(rows, np.arange(self.count)):
            return self
        sizes = (self.starts[1:] - self.starts[:-1])[rows]
        starts = _starts(sizes)
        places = np.repeat(self.starts[:-1][rows] - starts[:-1], sizes) + np.arange(starts[-1])
        kept, terms = np.unique(self.terms[places], return_inverse=True)
        new_number = dict(zip(kept.tolist(), itertools.count()))
        return KeywordRows(
            [self.words[term] for term in new_number],
            starts,
            terms.astype(np.uint32),
            self.counts[places],
            self.lengths[rows],
            [(form, new_number[term]) for form, term in self.forms if term in new_number],
        )


def empty_rows(count: int) -> KeywordRows:
    """Without any words."""
    nothing = np.empty(0, np.uint32)
    return KeywordRows((), np.zeros(count + 1, np.int64), nothing, nothing, np.zeros(count, np.uint32), ())


def _starts(sizes: npt.NDArray[np.integer]) -> Numbers:
    starts = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=starts[1:])
    return starts


def concatenate_rows(parts: Sequence[KeywordRows]) -> KeywordRows:
    parts = [part for part in parts if part.count]
    if len(parts) < 2:
        return parts[0] if parts else empty_rows(0)
    words = sorted(set().union(*(part.words for part in parts)))
    number = dict(zip(words, itertools.count()))
    renumbered = [np.array([number[word] for word in part.words], np.uint32)[part.terms] for part in parts]
    forms = {(form, number[part.words[term]]) for part in parts for form, term in part.forms}
    return KeywordRows(
        words,
        _starts(np.concatenate([np.diff(part.starts) for part in parts])),
        np.concatenate(renumbered),
        np.concatenate([part.counts for part in parts]),
        np.concatenate([part.lengths for part in parts]),
        sorted(forms),
    )


class _Numbered(dict[str, int]):
    """Gives each new key the next number."""

    def __missing__(self, key: str) -> int:
        number = self[key] = len(self)
        return number


def rows_of(texts: Iterable[RowText]) -> KeywordRows:
    """Each different piece of text is analysed once; the rest is counting."""
    pieces = _Numbered()
    sizes: list[int] = []
    found: list[int] = []
    for each in texts:
        in_row = f"{each.context} {each.text}".split() + each.title.split() * TITLE_WEIGHT
        found += map(pieces.__getitem__, in_row)
        sizes.append(len(in_row))
    analysed = [tokenizer.analyse(piece) for piece in pieces]
    numbers = _Numbered()
    terms_of_piece = [[numbers[term] for term in (*each.terms, *each.extras)] for each in analysed]
    forms = {(form.encode(errors="surrogatepass"), numbers[term]) for each in analysed for form, term in each.forms}
    encoded = [term.encode(errors="surrogatepass") for term in numbers]
    order = sorted(range(len(encoded)), key=encoded.__getitem__)
    final = np.empty(len(encoded), np.int64)
    final[order] = np.arange(len(encoded))
    row_of = np.repeat(np.arange(len(sizes)), sizes)
    places = np.array(found, np.int64)
    own_sizes = np.array([len(each.terms) for each in analysed], np.int64)
    keys, counts = _counted(row_of, places, terms_of_piece, final)
    rows = keys // max(len(encoded), 1)
    lengths = np.bincount(row_of, own_sizes[places], minlength=len(sizes))
    return KeywordRows(
        [encoded[number] for number in order],
        _starts(np.bincount(rows, minlength=len(sizes))),
        (keys - rows * len(encoded)).astype(np.uint32),
        counts.astype(np.uint32),
        lengths.astype(np.uint32),
        sorted((form, int(final[number])) for form, number in forms),
    )


def _counted(
    row_of: Numbers, places: Numbers, terms_of_piece: Sequence[Sequence[int]], final: Numbers
) -> tuple[Numbers, Numbers]:
    """Row and term as one number, each once and in ascending order, and how often it was there."""
    sizes = np.array([len(each) for each in terms_of_piece], np.int64)
    flat = final[np.fromiter(itertools.chain.from_iterable(terms_of_piece), np.int64, int(sizes.sum()))]
    begins = np.cumsum(sizes) - sizes
    repeats = sizes[places]
    ends = np.cumsum(repeats)
    total = int(ends[-1]) if len(ends) else 0
    sources = np.repeat(begins[places] - (ends - repeats), repeats) + np.arange(total)
    keys, counts = np.unique(np.repeat(row_of, repeats) * len(final) + flat[sources], return_counts=True)
    return keys, counts
