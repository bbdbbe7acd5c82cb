"""One keyword query over all shards: BM25 with the statistics of all live rows, so that no score depends on the layout.

score(row) = Σ over terms: idf^1.2 · f · (k1 + 1) / (f + k1 · (1 - b + b · length / average length))
idf = ln(1 + (N - n + ½) / (n + ½)), where N rows are live and n of them hold the term; the power lets rare terms
decide a little more than in plain BM25, as questions of many words need it

Invariants
    The contributions to a score are always added in the same order: equal rows score equal to the last bit.
    What is left out could not have been among the best.
"""

import functools
import heapq
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pair.engine.format.keyword_index import KeywordIndex, Selection, make_sort_keys
from pair.text.tokenizer import KeywordQuery, Phrase, holds_phrase

Scores = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]

K1 = 1.2
B = 0.75
RARITY = 1.2
_WORTH_PRUNING = 256
"""Rows of a term: a shorter list is added faster than it is found out whether it has to be."""
_FEW_ROWS = 512
"""Up to so many are scored by themselves; for more, each row of the part has a place for its score."""
_SLACK = 1.0 + 1e-6
"""For the rounding of a sum that is compared with another."""


@dataclass(frozen=True, slots=True)
class KeywordPart:
    """The keywords of a shard, as a query sees them."""

    index: KeywordIndex | None
    """None for a shard whose keywords cannot be read: nothing is found in it."""
    live: Selection | None
    """The live rows; None for all."""
    row_fields: Callable[[int], Sequence[str]]
    """Returns the texts in which a phrase of a row may stand."""


class _QueryTerm(NamedTuple):
    """A term of the query, or all terms that begin with a prefix."""

    words: tuple[bytes, ...]
    weight: float


class _PostingRange(NamedTuple):
    """The rows that hold a term."""

    rows: npt.NDArray[Any]
    impacts: npt.NDArray[np.float32]
    """How much of its weight it brings to each of them."""
    weight: float
    bound: float
    """No row gets more from this term."""


class KeywordSearch:
    def __init__(self, query: KeywordQuery, parts: Sequence[KeywordPart]) -> None:
        self._query = query
        self._parts = parts
        groups: dict[bytes, tuple[tuple[bytes, ...], int]] = {
            _encode(term): ((_encode(term),), times) for term, times in query.terms.items()
        }
        indexes = [part.index for part in parts if part.index is not None]
        for prefix in query.prefixes:
            expand = {word for index in indexes for word in index.expand(_encode(prefix))}
            groups[_encode(prefix) + b"*"] = (tuple(sorted(expand)), 1)
        wanted = {word for words, _ in groups.values() for word in words}
        wanted.update(_encode(term) for phrase in query.excluded for term in phrase)
        words = list(wanted)
        keys = make_sort_keys(words)
        self._places = [part.index.vocabulary.find(words, keys) if part.index else {} for part in parts]
        """For each part, the number of each term that is in its vocabulary."""
        totals = [part.index.totals(part.live) for part in parts if part.index is not None]
        self.rows = sum(rows for rows, _ in totals)
        self._average_length = max(sum(length for _, length in totals) / max(self.rows, 1), 1e-9)
        asked = [(name, _QueryTerm(group, times * self._idf(group))) for name, (group, times) in groups.items()]
        # The rarest first: they decide, and their lists are short.
        self._terms = [term for _, term in sorted(asked, key=lambda pair: (-pair[1].weight, pair[0]))]
        self.weights = {name.decode(errors="surrogatepass"): term.weight for name, term in asked}
        """What each term of the query counts: the rarer, the more."""
        self._lists_of: dict[int, list[_PostingRange]] = {}
        self._rows_holding: dict[tuple[int, Phrase], Rows] = {}

    def best(
        self, position: int, limit: int, *, allowed: Selection | None = None, floor: float = 0.0
    ) -> tuple[Scores, Rows]:
        """Return the best rows of a part that hold any term, in no order, with all that are as good as the last one.

        `allowed`: rows that may be found; unless given, all that are live.
        `floor`: rows with a lower score may be left out.
        """
        part = self._parts[position]
        if part.index is None or limit <= 0 or not self._terms:
            return np.empty(0), np.empty(0, np.int64)
        allowed = part.live if allowed is None else allowed
        if not (self._query.phrases or self._query.excluded):
            return _keep_best(*self._rank(position, limit, allowed, floor), limit)
        return self._best_with_phrases(position, limit, allowed)

    def best_together(
        self, positions: Sequence[int], limit: int, allowed: Callable[[int], Selection | None]
    ) -> dict[int, tuple[Scores, Rows]]:
        """Return the best rows of several parts together, by part: the next part need not look below the last score."""
        best: Scores = np.empty(0)
        answers: dict[int, tuple[Scores, Rows]] = {}
        for position in positions:
            floor = float(best[0]) if len(best) == limit and limit > 0 else 0.0
            scores, rows = self.best(position, limit, allowed=allowed(position), floor=floor)
            best = np.sort(np.concatenate([best, scores]))[-limit:] if limit > 0 else best
            answers[position] = scores, rows
        if len(best) < limit or not len(best):
            return answers
        return {
            position: (scores[scores >= best[0]], rows[scores >= best[0]])
            for position, (scores, rows) in answers.items()
        }

    def score_rows(self, position: int, rows: Rows) -> Scores:
        """Score any rows of a part: 0 for a row without any term, -inf for one that the query refuses."""
        if self._parts[position].index is None:
            return np.zeros(len(rows))
        scores = _add_scores(np.zeros(len(rows)), rows, self._lists(position))
        if self._query.phrases or self._query.excluded:
            for place, row in enumerate(rows.tolist()):
                scores[place] = self._check_phrases(position, row, float(scores[place]))
        return scores

    # Statistics

    def _idf(self, words: Sequence[bytes]) -> float:
        holding = 0
        for part, places in zip(self._parts, self._places, strict=True):
            numbers = [places[word] for word in words if word in places]
            if not numbers or part.index is None:
                continue
            if len(numbers) == 1 and part.live is None:
                holding += part.index.frequency(numbers[0])
            else:
                rows, _ = part.index.merge_postings(numbers)
                holding += len(rows) if part.live is None else int(np.count_nonzero(part.live[rows]))
        rarity = math.log(1.0 + (self.rows - holding + 0.5) / (holding + 0.5))
        return math.pow(rarity, RARITY)

    # Scores without phrases

    def _lists(self, position: int) -> list[_PostingRange]:
        if position in self._lists_of:
            return self._lists_of[position]
        index, places = self._parts[position].index, self._places[position]
        lists = self._lists_of[position] = list[_PostingRange]()
        if index is None or not places:
            return lists
        impacts = index.impacts(K1, B, self._average_length)
        for term in self._terms:
            numbers = [places[word] for word in term.words if word in places]
            if not numbers:
                continue
            weight = term.weight * (K1 + 1.0)
            if len(numbers) == 1:
                rows, parts = impacts.read(numbers[0])
                lists.append(_PostingRange(rows, parts, weight, weight * impacts.most(numbers[0])))
            else:
                rows, counts = index.merge_postings(numbers)
                lists.append(_PostingRange(rows, impacts.compute(rows, counts), weight, weight))
        return lists

    def _rank(self, position: int, limit: int, allowed: Selection | None, floor: float) -> tuple[Scores, Rows]:
        """Return every row that may be among the best, with its whole score."""
        lists = self._lists(position)
        rest = _suffix_sums([postings.bound for postings in lists])
        if not lists or rest[0] * _SLACK < floor:
            return np.empty(0), np.empty(0, np.int64)
        # The first lists, as long as they have few rows together.
        taken = sum(size <= _FEW_ROWS for size in itertools.accumulate(len(postings.rows) for postings in lists))
        # Whether what is left is likely to be less than the last of the best.
        if taken and rest[taken] <= max(floor, (rest[0] - rest[taken]) / 2):
            scores, rows = _score_lists(lists[:taken])
            if allowed is not None:
                scores, rows = scores[allowed[rows]], rows[allowed[rows]]
            threshold = max(floor, _last_best_score(scores, limit))
            if taken == len(lists) or rest[taken] * _SLACK < threshold:
                return _complete(scores, rows, lists[taken:], threshold, limit)
        return self._rank_densely(position, lists, limit, allowed, floor)

    def _rank_densely(
        self, position: int, lists: Sequence[_PostingRange], limit: int, allowed: Selection | None, floor: float
    ) -> tuple[Scores, Rows]:
        """Add up a score for each row of the part, until the terms that are left cannot bring up another one."""
        index = self._parts[position].index
        every_score = np.zeros(index.count if index else 0)
        rest = _suffix_sums([postings.bound for postings in lists])
        taken, threshold = 0, floor
        while taken < len(lists):
            left = rest[taken] * _SLACK
            if taken and len(lists[taken].rows) >= _WORTH_PRUNING:
                if threshold <= left < rest[0] - rest[taken]:
                    threshold = max(
                        floor, _last_best_score(every_score if allowed is None else every_score[allowed], limit)
                    )
                if left < threshold:
                    break
            postings = lists[taken]
            every_score[postings.rows] += postings.weight * postings.impacts
            taken += 1
        reach = threshold - rest[taken] * _SLACK if taken < len(lists) else 0.0
        rows = np.flatnonzero(every_score >= reach) if reach > 0 else np.flatnonzero(every_score)
        rows = rows if allowed is None else rows[allowed[rows]]
        return _complete(every_score[rows], rows, lists[taken:], threshold, limit)

    # Phrases, and what is excluded

    def _best_with_phrases(self, position: int, limit: int, allowed: Selection | None) -> tuple[Scores, Rows]:
        """Read texts from the best possible score on, until no other row can be better."""
        query, part = self._query, self._parts[position]
        scores, rows = self._rank(position, part.index.count if part.index else 0, allowed, 0.0)
        possible = scores.copy()
        for phrase in query.phrases:
            holds = np.isin(rows, self._rows_with(position, phrase))
            if query.is_strict:
                rows, scores, possible = rows[holds], scores[holds], possible[holds]
            else:
                possible[holds] += self._bonus(phrase)
        kept: list[tuple[float, int]] = []
        best: list[float] = []
        for place in np.argsort(-possible, kind="stable").tolist():
            if len(best) >= limit and possible[place] < best[0]:
                break
            score = self._check_phrases(position, int(rows[place]), float(scores[place]))
            if score > -math.inf:
                kept.append((score, int(rows[place])))
                (heapq.heappush if len(best) < limit else heapq.heappushpop)(best, score)
        checked = np.array([score for score, _ in kept]), np.array([row for _, row in kept], np.int64)
        return _keep_best(*checked, limit)

    def _check_phrases(self, position: int, row: int, score: float) -> float:
        """Add what phrases are worth; -inf when the row lacks a phrase or holds an excluded one."""
        query = self._query
        if any(self._holds(position, row, phrase) for phrase in query.excluded):
            return -math.inf
        for phrase in query.phrases:
            holds = self._holds(position, row, phrase)
            if query.is_strict and not holds:
                return -math.inf
            score += self._bonus(phrase) if holds and not query.is_strict else 0.0
        return score

    def _bonus(self, phrase: Phrase) -> float:
        """Return what its words are worth: a phrase counts like one more word, as rare as they are together."""
        return sum(self.weights[term] for term in dict.fromkeys(phrase))

    def _holds(self, position: int, row: int, phrase: Phrase) -> bool:
        rows = self._rows_with(position, phrase)
        place = int(np.searchsorted(rows, row))
        if place == len(rows) or rows[place] != row:
            return False
        return len(phrase) == 1 or any(holds_phrase(text, phrase) for text in self._parts[position].row_fields(row))

    def _rows_with(self, position: int, phrase: Phrase) -> Rows:
        """Return the rows that hold all terms of the phrase, in any place."""
        if (position, phrase) in self._rows_holding:
            return self._rows_holding[position, phrase]
        index, places = self._parts[position].index, self._places[position]
        numbers = [places.get(_encode(term)) for term in set(phrase)]
        lists = [index.postings(number)[0] for number in numbers if index is not None and number is not None]
        rows: Rows = np.empty(0, np.int64)
        if lists and len(lists) == len(numbers):
            intersect = functools.partial(np.intersect1d, assume_unique=True)
            rows = functools.reduce(intersect, sorted(lists, key=len)).astype(np.int64)
        self._rows_holding[position, phrase] = rows
        return rows


def _encode(term: str) -> bytes:
    return term.encode(errors="surrogatepass")


def _suffix_sums(values: Sequence[float]) -> list[float]:
    """Return the sum of each value and all behind it, and 0 at the end."""
    return [*itertools.accumulate(reversed(values), initial=0.0)][::-1]


def _score_lists(lists: Sequence[_PostingRange]) -> tuple[Scores, Rows]:
    """Return every row in these lists, with its score."""
    if len(lists) == 1:
        return (lists[0].weight * lists[0].impacts).astype(np.float64), lists[0].rows.astype(np.int64)
    rows = np.sort(np.concatenate([postings.rows for postings in lists])).astype(np.int64)
    is_first = np.ones(len(rows), np.bool_)
    np.not_equal(rows[1:], rows[:-1], out=is_first[1:])
    rows = rows[is_first]
    return _add_scores(np.zeros(len(rows)), rows, lists), rows


def _add_scores(scores: Scores, rows: Rows, lists: Sequence[_PostingRange]) -> Scores:
    """Add to the scores of these rows what they get from these terms."""
    if not lists or not len(rows):
        return scores
    wanted = rows.astype(lists[0].rows.dtype)  # all rows of a part have one type; without it, they would be copied
    for listed_rows, impacts, weight, _ in lists:
        # Without the last, so that every place is one of the list; no list is empty.
        places = listed_rows[:-1].searchsorted(wanted)
        here = (listed_rows[places] == wanted).nonzero()[0]
        if len(here):
            scores[here] += weight * impacts[places[here]]
    return scores


def _complete(
    scores: Scores, rows: Rows, lists: Sequence[_PostingRange], threshold: float, limit: int
) -> tuple[Scores, Rows]:
    """Add the lists that are left, for the rows that can still reach the threshold."""
    rest = _suffix_sums([postings.bound for postings in lists])
    for place, postings in enumerate(lists):
        if len(rows) > limit:
            threshold = max(threshold, _last_best_score(scores, limit))
            near = scores >= threshold - rest[place] * _SLACK
            scores, rows = scores[near], rows[near]
        scores = _add_scores(scores, rows, [postings])
    return scores, rows


def _last_best_score(scores: Scores, limit: int) -> float:
    positive = scores[scores > 0]
    count = len(positive)
    return float(np.partition(positive, count - limit)[count - limit]) if count >= limit else 0.0


def _keep_best(scores: Scores, rows: Rows, limit: int) -> tuple[Scores, Rows]:
    if len(scores) <= limit:
        return scores, rows
    best = scores >= np.partition(scores, len(scores) - limit)[len(scores) - limit]
    return scores[best], rows[best]
