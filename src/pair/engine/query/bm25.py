"""A keyword query over all shards: BM25 with the statistics of all live rows, so that no score depends on the layout.

score(row) = Σ over terms: w · idf · f · (k1 + 1) / (f + k1 · (1 - b + b · length / average length))
idf = ln(1 + (N - n + ½) / (n + ½)), where N rows are live and n of them hold the term. w is the frequency of the word
in the query; ½ for terms that are not words of it: compounds, parts of words, stop words and corrected spellings.

Invariants
    Stop words add to the score of a row that holds another term of the query. Alone, they match no row.
    The contributions to a score are always added in the same order: equal rows score equal to the last bit.
    A row that is left out could not have been among the best.
"""

import bisect
import functools
import heapq
import itertools
import math
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pair.engine.format.keyword_index import Selection, make_sort_keys
from pair.engine.query.postings import (
    K1,
    SLACK,
    KeywordCorpus,
    KeywordGroup,
    KeywordPart,
    Postings,
    PostingsByGroup,
    Words,
    pick_sums,
    sum_by_row,
)
from pair.text.languages import COMPOUNDING, LINKS, allow_edits
from pair.text.tokenizer import SECONDARY, KeywordQuery, Phrase, fold, holds_phrase, is_compound, stem

Scores = npt.NDArray[np.float64]
Impacts = npt.NDArray[np.float32]
Rows = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.int32]
"""Numbers of rows in a group."""
_NO_NUMBERS: Numbers = np.empty(0, np.int32)
_NO_IMPACTS: Impacts = np.empty(0, np.float32)

_LEAST_PART = 4
_LEAST_COMPOUND = 9
"""Minimum number of letters of a part, and of a word that is split into parts."""
_MOST_CORRECTIONS = 3
_MOST_SUBSTITUTED = 32
"""Maximum number of terms of a query with substitutes. A longer query has enough words, and the search would take
seconds.
"""
_WORTH_PRUNING = 256
"""Minimum length of a list that may be skipped: for a shorter list, the check takes longer than adding it."""
_START = 4
"""Number of postings to start with, for each wanted row."""
_FEW_ROWS = 512
"""Number of rows above which terms are added one by one, and rows that cannot be among the best are dropped."""


class _QueryTerm(NamedTuple):
    """A term of the query, or several that count as one: all terms with a prefix, or forms in other languages."""

    words: tuple[bytes, ...]
    weight: float
    is_stop_word: bool = False


class _WeightedList(NamedTuple):
    """The rows of a group that hold a term of the query."""

    postings: Postings
    weight: float
    is_stop_word: bool
    place: int
    """The place of the term in the query, the rarest first."""

    @property
    def bound(self) -> float:
        """The highest value that the term adds to the score of a row."""
        return self.weight * self.postings.bound


class KeywordSearch:
    """One query, with the weights of its terms in all parts."""

    def __init__(self, query: KeywordQuery, parts: Sequence[KeywordPart], corpus: KeywordCorpus | None = None) -> None:
        """Look up and weigh the terms of the query. `corpus`: the cached corpus of the same parts, if any."""
        self._parts = parts
        self._corpus = corpus = corpus or KeywordCorpus(parts)
        self.rows, languages = corpus.rows, corpus.languages
        self._query = query = corpus.adapt(query)
        self.is_telling = query.is_telling
        """Whether any word of the query is not a stop word."""
        groups = {term: self._vary(term) for term in (*query.terms, *query.stop_words)}
        for prefix in query.prefixes:
            expanded = {word for index in corpus.indexes for word in index.expand(_encode(prefix))}
            groups[prefix + "*"] = tuple(sorted(expanded))
        self._places: list[dict[bytes, int]] = [{} for _ in parts]
        """For each part, the number of each term that is in its vocabulary."""
        self._gathered: dict[Words, PostingsByGroup] = {}
        excluded = {word for phrase in query.excluded for term in phrase for word in self._vary(term)}
        for group in groups.values():
            if (known := corpus.recall(group)) is not None:
                self._gathered[group] = known
        unknown = {word for group in groups.values() if group not in self._gathered for word in group}
        phrased = {word for phrase in query.phrases for term in phrase for word in self._vary(term)}
        self._find(unknown | excluded | phrased)
        holding = {name: self._count_rows(group) for name, group in groups.items()}
        self.weights = {
            name: query.terms.get(name, 1.0) * self._weigh(holding[name])
            for name in groups
            if name not in query.stop_words
        }
        """The weight of each term of the query: rare terms weigh more."""
        # A compound that occurs nowhere does not count as missing: its words count by themselves.
        counted = [weight for name, weight in self.weights.items() if holding[name] or not is_compound(name)]
        self.ideal = (K1 + 1.0) * math.fsum(counted)
        """The highest score that the words of a row can reach."""
        asked = [_QueryTerm(groups[name], weight) for name, weight in self.weights.items()]
        self.corrected: dict[str, str] = {}
        """Words of the query that occur nowhere, and the words that are searched instead."""
        for term, words in query.written.items():
            if term in query.terms and len(query.terms) <= _MOST_SUBSTITUTED:
                asked += self._find_substitutes(words[0], holding[term], languages)
        self.may_hold_any = any(self._count_rows(term.words) for term in asked) or len(corpus.indexes) < len(parts)
        """Whether any term of the query occurs in a live row, or in a part that cannot be read."""
        asked += [
            _QueryTerm(groups[name], weight * self._weigh(holding[name]), is_stop_word=True)
            for name, weight in query.stop_words.items()
        ]
        # Start with the rarest terms: they matter most, and their lists are short. Stop words come last.
        self._terms = sorted(asked, key=lambda term: (term.is_stop_word, -term.weight, term.words))
        self._rows_holding: dict[tuple[int, Phrase], Rows] = {}

    def _vary(self, term: str) -> tuple[bytes, ...]:
        """Return the terms of a word in the languages of the KB, given its English term."""
        return tuple(map(_encode, self._query.variants.get(term, (term,))))

    def _find(self, words: Collection[bytes]) -> None:
        """Look up terms in the vocabulary of each part."""
        listed = list(words)
        keys = make_sort_keys(listed)
        for part, places in zip(self._parts, self._places, strict=True):
            if part.index is not None:
                places.update(part.index.vocabulary.find(listed, keys))

    # Words that the query does not have

    def _find_substitutes(self, word: str, holding: int, languages: Collection[str]) -> list[_QueryTerm]:
        """Return the parts of a compound that is written as one word, or corrections of a word that occurs nowhere."""
        if len(word) >= _LEAST_COMPOUND and word.isalpha() and not COMPOUNDING.isdisjoint(languages):
            parts = self._split(word, sorted(COMPOUNDING.intersection(languages)))
            if parts:
                return [self._substitute((part,)) for part in parts]
        return [] if holding else self._correct(word)

    def _substitute(self, words: tuple[bytes, ...]) -> _QueryTerm:
        return _QueryTerm(words, SECONDARY * self._weigh(self._count_rows(words)))

    def _split(self, word: str, languages: Sequence[str]) -> tuple[bytes, ...]:
        """Return the two most equal parts of a compound that both occur in live rows."""
        splits: list[tuple[int, tuple[bytes, bytes]]] = []
        for language, place in itertools.product(languages, range(_LEAST_PART, len(word) - _LEAST_PART + 1)):
            second = _encode(stem(word[place:], language))
            for link in LINKS:
                first = word[:place].removesuffix(link)
                if word[:place].endswith(link) and len(first) >= _LEAST_PART:
                    splits.append((-min(place, len(word) - place), (_encode(stem(first, language)), second)))
        self._find({part for _, parts in splits for part in parts})
        splits.sort(key=lambda split: split[0])
        return next((parts for _, parts in splits if all(self._count_rows((part,)) for part in parts)), ())

    def _correct(self, word: str) -> list[_QueryTerm]:
        """Return the nearest words of the vocabulary as one term."""
        form = fold(word)
        most = allow_edits(form)
        indexes = self._corpus.indexes if most else []
        near = {neighbour for index in indexes for neighbour in index.find_neighbours(form, most)}
        self._find({term for _, _, term in near})
        nearest = sorted((edits, -self._count_rows((term,)), label, term) for edits, label, term in near)
        live = [neighbour for neighbour in nearest if neighbour[1] < 0]
        chosen = [neighbour for neighbour in live if neighbour[0] == live[0][0]][:_MOST_CORRECTIONS]
        if not chosen:
            return []
        self.corrected[word] = ", ".join(dict.fromkeys(label for _, _, label, _ in chosen))
        return [self._substitute(tuple(sorted({term for *_, term in chosen})))]

    def best_together(
        self, positions: Sequence[int], limit: int, allowed: Callable[[int], Selection | None]
    ) -> dict[int, tuple[Scores, Rows]]:
        """Return the best rows that hold any term, by part and unordered, with all ties of the last row.

        `positions`: all parts. Groups are ranked in this order; earlier scores set the minimum score for later groups.
        `allowed`: returns the rows to choose from; None for all live rows.
        """
        best: Scores = np.empty(0)
        answers: dict[int, tuple[Scores, Rows]] = {
            position: (np.empty(0), np.empty(0, np.int64)) for position in positions
        }
        if limit <= 0 or not self._terms:
            return answers
        place_of = self._corpus.place_of
        has_phrases = bool(self._query.phrases or self._query.excluded)
        for group in dict.fromkeys(place_of[position][0] for position in positions if position in place_of):
            selections = [allowed(position) for position in group.positions]
            if has_phrases:
                scores, rows = self._best_with_phrases(group, limit, selections)
            else:
                scores, rows = self._rank(group, limit, selections, float(best[0]) if len(best) == limit else 0.0)
            best = np.sort(np.concatenate([best, scores]))[-limit:]
            if len(best) == limit:
                near = scores >= best[0]
                scores, rows = scores[near], rows[near]
            ends = rows.searchsorted(np.array(group.begins, rows.dtype)).tolist()
            for position, base, begin, end in zip(group.positions, group.begins, ends, ends[1:], strict=False):
                if begin < end:
                    answers[position] = scores[begin:end], rows[begin:end].astype(np.int64) - base
        if len(self._corpus.groups) < 2 or len(best) < limit:
            return answers
        return {
            position: (scores[scores >= best[0]], rows[scores >= best[0]])
            for position, (scores, rows) in answers.items()
        }

    def score_rows(self, shards: Rows | int, rows: Rows) -> tuple[Scores, Scores]:
        """Return the scores of these rows, and the highest scores that their terms allow.

        The score is 0 for a row without any term and -inf for one that the query refuses. `shards`: one for each row.
        """
        scores, held = np.zeros(len(rows)), np.zeros(len(rows))
        positions = np.broadcast_to(shards, rows.shape)
        for group in self._corpus.groups:
            begins = np.full(len(self._parts), -1, np.int64)
            begins[group.positions] = group.begins[:-1]
            begin = begins[positions]
            own = (begin >= 0).nonzero()[0]
            if not len(own):
                continue
            numbers = (begin[own] + rows[own]).astype(np.int32)
            scores[own], held[own] = _score(group, numbers, self._lists(group))
        if self._query.phrases or self._query.excluded:
            for place, (position, row) in enumerate(zip(positions.tolist(), rows.tolist(), strict=True)):
                if position in self._corpus.place_of:
                    scores[place] = self._check_phrases(position, row, float(scores[place]))
        return scores, held

    # Statistics

    def _count_rows(self, words: Words) -> int:
        """Return how many live rows hold any of these words."""
        return sum(postings.size for postings in self._gather(words) if postings is not None)

    def _gather(self, words: Words) -> PostingsByGroup:
        """Return the rows of each group that hold any of these words."""
        gathered = self._gathered.get(words)
        if gathered is None:
            gathered = self._gathered[words] = self._corpus.gather(words, self._places)
        return gathered

    def _weigh(self, holding: int) -> float:
        """Return the idf of a term that `holding` rows hold."""
        return math.log(1.0 + (self.rows - holding + 0.5) / (holding + 0.5))

    # Scores without phrases

    def _lists(self, group: KeywordGroup) -> list[_WeightedList]:
        number = self._corpus.groups.index(group)
        return [
            _WeightedList(postings, term.weight * (K1 + 1.0), term.is_stop_word, place)
            for place, term in enumerate(self._terms)
            if (postings := self._gather(term.words)[number]) is not None
        ]

    def _rank(
        self, group: KeywordGroup, limit: int, selections: Sequence[Selection | None], floor: float
    ) -> tuple[Scores, Numbers]:
        """Return every row that may be among the best of the group, ascending, with its complete score."""
        lists = self._lists(group)
        telling = sum(not own.is_stop_word for own in lists)
        rest = [*itertools.accumulate((own.bound for own in reversed(lists)), initial=0.0)][::-1]
        if not telling or rest[0] * SLACK < floor:
            return np.empty(0), np.empty(0, np.int32)
        mask = None if group.has_no_filter(selections) else group.join_selections(selections)
        # Start with the rarest terms. The scores of their best rows show which others must be read in full.
        taken, size = 1, lists[0].postings.size
        while taken < telling and (size < _START * limit or lists[taken].postings.size < _WORTH_PRUNING):
            size += lists[taken].postings.size
            taken += 1
        threshold, is_complete = floor, False
        while True:
            scores, rows = _add_up(group, lists[:taken], mask, threshold - rest[taken] * SLACK)
            is_complete = len(rows) <= max(_FEW_ROWS, limit)
            if is_complete:
                best = _add_scores(group, scores, rows, lists[taken:])
            else:
                places = np.sort(scores.argpartition(-limit)[-limit:])
                best = _add_scores(group, scores.take(places), rows.take(places), lists[taken:])
            if len(best) >= limit:
                threshold = max(threshold, float(np.partition(best, -limit)[-limit]))
            if taken == telling or rest[taken] * SLACK < threshold:
                break
            while taken < telling and rest[taken] * SLACK >= threshold:
                taken += 1
        while not is_complete:
            near = (scores >= threshold - rest[taken] * SLACK).nonzero()[0]
            scores, rows = scores.take(near), rows.take(near)
            is_complete = len(rows) <= _FEW_ROWS or taken == len(lists)
            last = len(lists) if is_complete else taken + 1
            _add_scores(group, scores, rows, lists[taken:last])
            taken = last
        return scores, rows

    # Phrases and exclusions

    def _best_with_phrases(
        self, group: KeywordGroup, limit: int, selections: Sequence[Selection | None]
    ) -> tuple[Scores, Numbers]:
        """Check texts in descending order of the best possible score, until no other row can be better."""
        query = self._query
        scores, rows = self._rank(group, group.count, selections, 0.0)
        possible = scores.copy()
        for phrase in query.phrases:
            with_phrase = [
                self._rows_with(position, phrase) + begin
                for position, begin in zip(group.positions, group.begins, strict=False)
            ]
            holds = np.isin(rows, np.concatenate(with_phrase))
            if query.is_strict:
                rows, scores, possible = rows[holds], scores[holds], possible[holds]
            else:
                possible[holds] += self._bonus(phrase)
        kept: list[tuple[int, float]] = []
        best: list[float] = []
        for place in np.argsort(-possible, kind="stable").tolist():
            if len(best) >= limit and possible[place] < best[0]:
                break
            row = int(rows[place])
            number = bisect.bisect_right(group.begins, row) - 1
            own_row = row - group.begins[number]
            score = self._check_phrases(group.positions[number], own_row, float(scores[place]))
            if score > -math.inf:
                kept.append((row, score))
                (heapq.heappush if len(best) < limit else heapq.heappushpop)(best, score)
        kept.sort()
        return np.array([score for _, score in kept], np.float64), np.array([row for row, _ in kept], np.int32)

    def _check_phrases(self, position: int, row: int, score: float) -> float:
        """Return the score with the bonus of its phrases; -inf if the row lacks a phrase or holds an excluded one."""
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
        """Return the bonus of a phrase, the sum of the weights of its words: it counts like one very rare word."""
        return sum(self.weights[term] for term in dict.fromkeys(phrase))

    def _holds(self, position: int, row: int, phrase: Phrase) -> bool:
        rows = self._rows_with(position, phrase)
        place = int(np.searchsorted(rows, row))
        if place == len(rows) or rows[place] != row:
            return False
        return len(phrase) == 1 or any(holds_phrase(text, phrase) for text in self._parts[position].row_fields(row))

    def _rows_with(self, position: int, phrase: Phrase) -> Rows:
        """Return the rows that hold all terms of the phrase, in any order."""
        if (position, phrase) in self._rows_holding:
            return self._rows_holding[position, phrase]
        index, places = self._parts[position].index, self._places[position]
        numbers = [[places[word] for word in self._vary(term) if word in places] for term in set(phrase)]
        rows: Rows = np.empty(0, np.int64)
        if index is not None and numbers and all(numbers):
            lists = [index.merge_postings(tuple(own))[0] for own in numbers]
            intersect = functools.partial(np.intersect1d, assume_unique=True)
            rows = functools.reduce(intersect, sorted(lists, key=len)).astype(np.int64)
        self._rows_holding[position, phrase] = rows
        return rows


def _encode(term: str) -> bytes:
    return term.encode(errors="surrogatepass")


def _add_up(
    group: KeywordGroup, lists: Sequence[_WeightedList], mask: Selection | None, least: float
) -> tuple[Scores, Numbers]:
    """Return the scores of the rows that hold any of these terms, and the ascending numbers of these rows.

    `mask`: the rows to choose from; None for all. `least`: rows with a lower score may be left out.
    """
    short = [*itertools.takewhile(lambda own: not own.postings.is_long, lists)]
    numbers = np.concatenate([_NO_NUMBERS, *(own.postings.rows for own in short)])
    impacts = np.concatenate([_NO_IMPACTS, *(np.float32(own.weight) * own.postings.impacts for own in short)])
    if len(short) == len(lists):
        rows, scores = sum_by_row(numbers, impacts, group.count, least)
    else:
        sums = np.bincount(numbers, impacts, group.count).astype(np.float64, copy=False)
        for own in lists[len(short) :]:
            own.postings.add(np.float32(own.weight), sums)
        rows, scores = pick_sums(sums, least)
    if mask is not None:
        is_allowed = mask[rows]
        scores, rows = scores[is_allowed], rows[is_allowed]
    return scores, rows


def _look_up(group: KeywordGroup, rows: Numbers, lists: Sequence[_WeightedList]) -> Impacts:
    """Return a line for each term: its impacts in these rows."""
    impacts = np.empty((len(lists), len(rows)), np.float32)
    norms = group.norms.take(rows)
    for own, line in zip(lists, impacts, strict=True):
        own.postings.look_up(rows, line, norms)
    return impacts


def _add_scores(group: KeywordGroup, scores: Scores, rows: Numbers, lists: Sequence[_WeightedList]) -> Scores:
    """Add the impacts of terms to the scores of rows, each of which holds a term that is not a stop word."""
    if lists and len(rows):
        for own, impacts in zip(lists, _look_up(group, rows, lists), strict=True):
            scores += np.float32(own.weight) * impacts
    return scores


def _score(group: KeywordGroup, rows: Numbers, lists: Sequence[_WeightedList]) -> tuple[Scores, Scores]:
    """Return the scores of rows, and for each the weight of its terms except stop words."""
    scores, held = np.zeros(len(rows)), np.zeros(len(rows))
    has_any: npt.NDArray[np.bool_] | None = None
    for own, impacts in zip(lists, _look_up(group, rows, lists), strict=True):
        if own.is_stop_word:
            has_any = scores > 0 if has_any is None else has_any
            scores += np.float32(own.weight) * impacts * has_any
        else:
            scores += np.float32(own.weight) * impacts
            held += own.weight * (impacts > 0)
    return scores, held
