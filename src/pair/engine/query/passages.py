"""Hits to passages: neighbours merged, duplicates folded, likeness avoided.

Invariants
    Hits come and go best first; ties keep the order in which they came. Doing it twice changes nothing more.
    No text is lost: what a hit showed is in the passage it became part of, or is said word for word by another one.
    A passage names a bounded number of other places, and counts all of them.
Not here
    Which hits there are, and what they are worth: search.py.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from pair.values import AlsoIn, Hit


def merge_neighbours(
    hits: Sequence[Hit],
    text_of: Callable[[Hit, int, int], str],
    *,
    most_gap: int = 0,
    most_characters: int = sys.maxsize,
) -> tuple[Hit, ...]:
    """Hits of one document that touch or overlap become one, in the place and with the score of the best of them.

    `text_of(hit, start, end)` reads the text of the hit's document. What lies between two hits is at most `most_gap`
    characters, or whitespace. What would become longer than `most_characters` stays apart.
    """
    by_document: dict[str, list[int]] = {}
    for number, hit in enumerate(hits):
        by_document.setdefault(hit.document_id, []).append(number)
    merged: dict[int, Hit] = {}
    for numbers in by_document.values():
        for group in _groups(hits, numbers, _Nearness(text_of, most_gap, most_characters)):
            best = min(group)
            merged[best] = _joined([hits[each] for each in sorted(group)], text_of)
    return tuple(merged[number] for number in sorted(merged))


MOST_ALSO_IN = 20
"""Other places that a passage names."""


def fold_duplicates(hits: Sequence[Hit]) -> tuple[Hit, ...]:
    """Hits that say the same, but for case and whitespace, become the best of them, which names the others."""
    alike: dict[str, list[Hit]] = {}
    for hit in hits:
        alike.setdefault(" ".join(hit.text.split()).casefold(), []).append(hit)
    return tuple(_folded(first, others) for first, *others in alike.values())


def _folded(first: Hit, others: Sequence[Hit]) -> Hit:
    if not others:
        return first
    places = {_place(each): each for each in first.also_in}
    for hit in others:
        own = AlsoIn(hit.document_id, hit.chunk_id, hit.title, hit.url, hit.start, hit.end)
        for each in (own, *hit.also_in):
            places.setdefault(_place(each), each)
    places.pop(_place(first), None)
    unnamed = sum(hit.also_in_count - len(hit.also_in) for hit in (first, *others))
    return replace(first, also_in=tuple(places.values())[:MOST_ALSO_IN], also_in_count=len(places) + unnamed)


def diversified(scores: Sequence[float], vectors: npt.NDArray[np.float32], limit: int, weight: float) -> list[int]:
    """Numbers of candidates by maximal marginal relevance: `weight` for the score, the rest for being unlike others.

    A weight of 1 gives the order of the scores, 0 what is least alike after the best one. Scores should lie between
    0 and 1, as likeness (the cosine) does; of equals the first comes first.
    """
    count = min(limit, len(scores))
    if count <= 0:
        return []
    worth = np.asarray(scores, dtype=np.float64)
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = (vectors / np.where(norms > 0, norms, 1)).astype(np.float64)
    likeness = np.full(len(worth), -np.inf)
    chosen = [int(np.argmax(worth))]
    is_free = np.ones(len(worth), dtype=bool)
    while len(chosen) < count:
        is_free[chosen[-1]] = False
        likeness = np.maximum(likeness, unit @ unit[chosen[-1]])
        marginal = np.where(is_free, weight * worth - (1 - weight) * likeness, -np.inf)
        chosen.append(int(np.argmax(marginal)))
    return chosen


def _groups(hits: Sequence[Hit], numbers: Sequence[int], nearness: "_Nearness") -> list[list[int]]:
    """Numbers of hits of one document, those together that follow each other closely."""
    groups: list[list[int]] = []
    start = end = 0
    for number in sorted(numbers, key=lambda each: (hits[each].start, hits[each].end, each)):
        hit = hits[number]
        if groups and nearness.joins(hits[groups[-1][-1]], start, end, hit):
            groups[-1].append(number)
            end = max(end, hit.end)
        else:
            groups.append([number])
            start, end = hit.start, hit.end
    return groups


_MOST_BLANK = 200
"""Whitespace between two chunks is a few characters; text further apart is not even looked at."""


@dataclass(frozen=True, slots=True)
class _Nearness:
    """Which hits of a document are one passage."""

    text_of: Callable[[Hit, int, int], str]
    most_gap: int
    most_characters: int

    def joins(self, last: Hit, start: int, end: int, hit: Hit) -> bool:
        """Whether `hit` goes on where the passage from `start` to `end` ends; `last` is in it."""
        if hit.start >= end and max(end, hit.end) - start > self.most_characters:
            return False
        if hit.start - end <= self.most_gap:
            return True
        return hit.start - end <= _MOST_BLANK and not self.text_of(last, end, hit.start).strip()


def _joined(group: Sequence[Hit], text_of: Callable[[Hit, int, int], str]) -> Hit:
    """One hit of several of a document, of which the first is the best."""
    best = group[0]
    if len(group) == 1:
        return best
    start, end = min(each.start for each in group), max(each.end for each in group)
    also_in = {_place(other): other for each in group for other in each.also_in}
    return replace(
        best,
        text=text_of(best, start, end),
        start=start,
        end=end,
        also_in=tuple(also_in.values())[:MOST_ALSO_IN],
        also_in_count=max(len(also_in), *(each.also_in_count for each in group)),
    )


def _place(cited: Hit | AlsoIn) -> tuple[str, int, int]:
    return cited.document_id, cited.start, cited.end
