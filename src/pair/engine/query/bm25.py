"""A keyword query over all shards: BM25 with the statistics of all live rows, so that no score depends on the layout.

score(row) = Σ over terms: w · idf · f · (k1 + 1) / (f + k1 · (1 - b + b · length / average length))
idf = ln(1 + (N - n + ½) / (n + ½)), where N rows are live and n of them hold the term. w is how often the query has the
word; ½ for whatever is not a word of the query: compounds, parts of words, stop words and corrected spellings.

Invariants
    Stop words add to the score of a row that holds another term of the query. They find no row.
    The contributions to a score are always added in the same order: equal rows score equal to the last bit.
    A row that is left out could not have been among the best.
"""

import functools
import heapq
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pair.engine.format.keyword_index import Impacts, KeywordIndex, Selection, make_sort_keys
from pair.text.languages import COMPOUNDING, LINKS
from pair.text.spelling import allow_edits
from pair.text.tokenizer import SECONDARY, KeywordQuery, Phrase, adapt_query, fold, holds_phrase, is_compound, stem

Scores = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]

K1 = 1.2
B = 0.75
_LEAST_PART = 4
_LEAST_COMPOUND = 9
"""Letters of a part, and of a word that is searched for parts."""
_MOST_CORRECTIONS = 3
_MOST_SUBSTITUTED = 32
"""Terms of a query. In a longer one, the other words say enough, and looking for substitutes would take seconds."""
_WORTH_PRUNING = 256
"""Rows: adding a shorter list takes less time than finding out whether it is needed."""
_FEW_ROWS = 512
"""For more rows, terms are added one by one, and rows that cannot be among the best are dropped in between."""
_ROWS_TOGETHER = 1 << 17
"""Parts with fewer rows are ranked together."""
_SPARSE = 16
"""An array holds a score for each row, unless the terms have fewer postings than the rows divided by this."""
_SLACK = 1.0 + 1e-6
"""Allows for rounding when two sums are compared."""


@dataclass(frozen=True, slots=True)
class KeywordPart:
    """The keywords of one shard."""

    index: KeywordIndex | None
    """None for a shard whose keywords cannot be read: no query finds a row of it."""
    live: Selection | None
    """The live rows; None for all."""
    row_fields: Callable[[int], Sequence[str]]
    """Returns the texts of a row that may hold a phrase."""


class _QueryTerm(NamedTuple):
    """A term of the query, or several that count as one: all that begin with a prefix, or forms in other languages."""

    words: tuple[bytes, ...]
    weight: float
    is_stop_word: bool = False


class _PostingRange(NamedTuple):
    """The rows that hold a term."""

    rows: npt.NDArray[Any]
    counts: npt.NDArray[Any]
    impacts: Impacts
    numbers: tuple[int, ...]
    """The terms in the vocabulary of the part."""
    weight: float
    bound: float
    """The most that the term adds to any row."""
    is_stop_word: bool
    place: int
    """The place of the term in the query, the rarest first."""

    def read_impacts(self) -> npt.NDArray[np.float32]:
        """Return the share of its weight that the term adds to each row."""
        return self.impacts.read(self.numbers)

    def weigh_impacts(self) -> npt.NDArray[np.float32]:
        """Return what the term adds to each row."""
        return np.float32(self.weight) * self.read_impacts()

    def find_floor(self, limit: int) -> float:
        """Return a score that as many rows reach by this term alone; 0 if that is not known."""
        return self.weight * self.impacts.find_last_best(self.numbers, limit) / _SLACK


class KeywordSearch:
    """One query, with the weights of its terms in all parts."""

    def __init__(self, query: KeywordQuery, parts: Sequence[KeywordPart]) -> None:
        self._parts = parts
        indexes = [part.index for part in parts if part.index is not None]
        languages = frozenset().union(*(part.index.languages(part.live) for part in parts if part.index is not None))
        self._query = query = adapt_query(query, languages)
        self.is_telling = query.is_telling
        """Whether any word of the query is not a stop word."""
        groups = {term: self._vary(term) for term in (*query.terms, *query.stop_words)}
        for prefix in query.prefixes:
            groups[prefix + "*"] = tuple(sorted({word for index in indexes for word in index.expand(_encode(prefix))}))
        self._places: list[dict[bytes, int]] = [{} for _ in parts]
        """For each part, the number of each term that is in its vocabulary."""
        excluded = {word for phrase in query.excluded for term in phrase for word in self._vary(term)}
        self._find({word for words in groups.values() for word in words} | excluded)
        totals = [part.index.totals(part.live) for part in parts if part.index is not None]
        self.rows = sum(rows for rows, _ in totals)
        self._average_length = max(sum(length for _, length in totals) / max(self.rows, 1), 1e-9)
        holding = {name: self._count_rows(group) for name, group in groups.items()}
        self.weights = {
            name: query.terms.get(name, 1.0) * self._weigh(holding[name])
            for name in groups
            if name not in query.stop_words
        }
        """The weight of each term of the query: rare terms weigh more."""
        # A compound that occurs nowhere is not missing: its words count by themselves.
        counted = [weight for name, weight in self.weights.items() if holding[name] or not is_compound(name)]
        self.ideal = (K1 + 1.0) * math.fsum(counted)
        """No row can score more than this by its words."""
        asked = [_QueryTerm(groups[name], weight) for name, weight in self.weights.items()]
        self.corrected: dict[str, str] = {}
        """Words of the query that occur nowhere, and the words that are searched instead."""
        for term, words in query.written.items():
            if term in query.terms and len(query.terms) <= _MOST_SUBSTITUTED:
                asked += self._find_substitutes(words[0], holding[term], languages)
        self.may_hold_any = any(self._count_rows(term.words) for term in asked) or len(indexes) < len(parts)
        """Whether any term of the query occurs in a live row, or in a part that cannot be read."""
        asked += [
            _QueryTerm(groups[name], weight * self._weigh(holding[name]), is_stop_word=True)
            for name, weight in query.stop_words.items()
        ]
        # The rarest first: they decide, and their lists are short. Stop words last.
        self._terms = sorted(asked, key=lambda term: (term.is_stop_word, -term.weight, term.words))
        self._lists_of: dict[int, list[_PostingRange]] = {}
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
        indexes = [part.index for part in self._parts if part.index is not None] if most else []
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
        """Return the best rows of several parts that hold any term, by part, in no order, with all ties of the last.

        `allowed`: returns the rows to choose from; None for all live rows. Scores so far set the floor of later parts.
        """
        best: Scores = np.empty(0)
        answers: dict[int, tuple[Scores, Rows]] = {
            position: (np.empty(0), np.empty(0, np.int64)) for position in positions
        }
        has_phrases = bool(self._query.phrases or self._query.excluded)
        for group in self._group(positions) if limit > 0 and self._terms else ():
            selections = {position: allowed(position) for position in group}
            for position in group:
                if selections[position] is None:
                    selections[position] = self._parts[position].live
            if has_phrases:
                found = {position: self._best_with_phrases(position, limit, selections[position]) for position in group}
            else:
                found = self._rank(selections, limit, float(best[0]) if len(best) == limit else 0.0)
            best = np.sort(np.concatenate([best, *(scores for scores, _ in found.values())]))[-limit:]
            answers |= found
        if len(best) < limit or not len(best):
            return answers
        return {
            position: (scores[scores >= best[0]], rows[scores >= best[0]])
            for position, (scores, rows) in answers.items()
        }

    def _group(self, positions: Sequence[int]) -> Iterator[list[int]]:
        """Yield parts that are ranked together."""
        group, rows = list[int](), 0
        for position in positions:
            index = self._parts[position].index
            if index is None:
                continue
            if group and rows + index.count > _ROWS_TOGETHER:
                yield group
                group, rows = [], 0
            group.append(position)
            rows += index.count
        if group:
            yield group

    def score_rows(self, position: int, rows: Rows) -> tuple[Scores, Scores]:
        """Return the scores of any rows of a part, and the highest scores that the terms they hold allow.

        The score is 0 for a row without any term and -inf for one that the query refuses.
        """
        scores, held = np.zeros(len(rows)), np.zeros(len(rows))
        if self._parts[position].index is None:
            return scores, held
        _add_scores(scores, rows, self._lists(position), held)
        if self._query.phrases or self._query.excluded:
            for place, row in enumerate(rows.tolist()):
                scores[place] = self._check_phrases(position, row, float(scores[place]))
        return scores, held

    # Statistics

    def _count_rows(self, words: Sequence[bytes]) -> int:
        """Return how many live rows hold any of these words."""
        holding = 0
        for part, places in zip(self._parts, self._places, strict=True):
            numbers = tuple(places[word] for word in words if word in places)
            if not numbers or part.index is None:
                continue
            if len(numbers) == 1 and part.live is None:
                holding += part.index.frequency(numbers[0])
            else:
                rows, _ = part.index.merge_postings(numbers)
                holding += len(rows) if part.live is None else int(np.count_nonzero(part.live[rows]))
        return holding

    def _weigh(self, holding: int) -> float:
        """Return the idf of a term that `holding` rows hold."""
        return math.log(1.0 + (self.rows - holding + 0.5) / (holding + 0.5))

    # Scores without phrases

    def _lists(self, position: int) -> list[_PostingRange]:
        if position in self._lists_of:
            return self._lists_of[position]
        index, places = self._parts[position].index, self._places[position]
        lists = self._lists_of[position] = list[_PostingRange]()
        if index is None or not places:
            return lists
        impacts = index.impacts(K1, B, self._average_length)
        for place, term in enumerate(self._terms):
            numbers = tuple(places[word] for word in term.words if word in places)
            if not numbers:
                continue
            weight = term.weight * (K1 + 1.0)
            rows, counts = index.merge_postings(numbers)
            bound = weight * impacts.most(numbers)
            lists.append(_PostingRange(rows, counts, impacts, numbers, weight, bound, term.is_stop_word, place))
        return lists

    def _rank(
        self, selections: Mapping[int, Selection | None], limit: int, floor: float
    ) -> dict[int, tuple[Scores, Rows]]:
        """Return every row that may be among the best of these parts, with its complete score, by part."""
        bounds, sizes = [0.0] * len(self._terms), [0] * len(self._terms)
        for position, selection in selections.items():
            for postings in self._lists(position):
                bounds[postings.place] = max(bounds[postings.place], postings.bound)
                sizes[postings.place] += len(postings.rows)
                if selection is None and not postings.is_stop_word:
                    floor = max(floor, postings.find_floor(limit))
        rest = _suffix_sums(bounds)
        telling = sum(not term.is_stop_word for term in self._terms)
        if not any(sizes[:telling]) or rest[0] * _SLACK < floor:
            return {}
        # Begin without the terms that are likely to add less than the last of the best has.
        taken = 1
        while taken < telling:
            if sizes[taken] >= _WORTH_PRUNING and rest[taken] * _SLACK < max(floor, (rest[0] - rest[taken]) / 2):
                break
            taken += 1
        scores, rows = self._add_up(selections, taken, floor - rest[taken] * _SLACK)
        threshold = max(floor, _last_best_score(scores, limit))
        if taken < telling and rest[taken] * _SLACK >= threshold:
            taken = telling
            scores, rows = self._add_up(selections, taken, floor - rest[taken] * _SLACK)
            threshold = max(floor, _last_best_score(scores, limit))
        near = scores >= threshold - rest[taken] * _SLACK
        scores, rows = scores[near], rows[near]
        answers: dict[int, tuple[Scores, Rows]] = {}
        for position, base, end in self._number_parts(selections):
            begin, stop = rows.searchsorted([base, end]).tolist()
            if begin < stop:
                left = [postings for postings in self._lists(position) if postings.place >= taken]
                own = scores[begin:stop], rows[begin:stop] - base
                answers[position] = _complete(*own, left, threshold, limit)
        return answers

    def _number_parts(self, positions: Iterable[int]) -> Iterator[tuple[int, int, int]]:
        """Yield each part with the numbers of its first row and after its last row, if the parts follow each other."""
        base = 0
        for position in positions:
            index = self._parts[position].index
            end = base + (index.count if index is not None else 0)
            yield position, base, end
            base = end

    def _add_up(self, selections: Mapping[int, Selection | None], taken: int, least: float) -> tuple[Scores, Rows]:
        """Return the scores by the first terms of rows that hold one, and the ascending numbers of these rows.

        `least`: rows with a lower score are left out.
        """
        parts = [*self._number_parts(selections)]
        every = parts[-1][-1]
        lists = {position: [own for own in self._lists(position) if own.place < taken] for position in selections}
        if sum(len(postings.rows) for own in lists.values() for postings in own) < every // _SPARSE:
            numbers = [postings.rows + np.int64(base) for position, base, _ in parts for postings in lists[position]]
            impacts = [postings.weigh_impacts() for own in lists.values() for postings in own]
            if not numbers:
                return np.empty(0), np.empty(0, np.int64)
            rows, places = np.unique(np.concatenate(numbers), return_inverse=True)
            scores: Scores = np.bincount(places, np.concatenate(impacts)).astype(np.float64, copy=False)
        else:
            every_score = np.zeros(every)
            for position, base, end in parts:
                if own := lists[position]:
                    own_rows = np.concatenate([postings.rows for postings in own], dtype=np.intp)
                    impacts = [postings.weigh_impacts() for postings in own]
                    every_score[base:end] = np.bincount(own_rows, np.concatenate(impacts), end - base)
            rows = ((every_score >= least) if least > 0 else (every_score > 0)).nonzero()[0]
            scores = every_score[rows]
        if any(selection is not None for selection in selections.values()):
            is_allowed = np.ones(every, np.bool_)
            for position, base, end in parts:
                if (selection := selections[position]) is not None:
                    is_allowed[base:end] = selection
            scores, rows = scores[is_allowed[rows]], rows[is_allowed[rows]]
        return scores, rows

    # Phrases, and what is excluded

    def _best_with_phrases(self, position: int, limit: int, allowed: Selection | None) -> tuple[Scores, Rows]:
        """Check texts in descending order of the best possible score, until no other row can be better."""
        query, part = self._query, self._parts[position]
        found = self._rank({position: allowed}, part.index.count if part.index else 0, 0.0)
        scores, rows = found.get(position, (np.empty(0), np.empty(0, np.int64)))
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
        return np.array([score for score, _ in kept]), np.array([row for _, row in kept], np.int64)

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
        """Return the sum of the weights of its words: a phrase counts like one more, very rare word."""
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


def _suffix_sums(values: Sequence[float]) -> list[float]:
    """Return the sum of each value and all values after it, and 0 at the end."""
    return [*itertools.accumulate(reversed(values), initial=0.0)][::-1]


def _add_scores(scores: Scores, rows: Rows, lists: Sequence[_PostingRange], held: Scores | None = None) -> Scores:
    """Add the impacts of these terms to the scores of the rows, and their weights to `held`."""
    if not lists or not len(rows):
        return scores
    wanted = rows.astype(lists[0].rows.dtype)  # all rows of a part have one type; without it, they would be copied
    found, counts = [], []
    for postings in lists:
        # Without the last row, so that every place is within the list. No list is empty.
        places = postings.rows[:-1].searchsorted(wanted)
        found.append(postings.rows.take(places))
        counts.append(postings.counts.take(places))
    # All terms together: a line for each, a column for each row.
    is_held = np.concatenate(found).reshape(len(lists), -1) == wanted
    term, place = is_held.nonzero()
    impacts = lists[0].impacts.compute(rows[place], np.concatenate(counts)[is_held.ravel()])
    added = np.zeros(is_held.shape)
    added[term, place] = np.array([postings.weight for postings in lists], np.float32)[term] * impacts
    for postings, own, is_own in zip(lists, added, is_held, strict=True):
        if postings.is_stop_word:
            np.add(scores, own, out=scores, where=scores > 0)
        else:
            scores += own
            if held is not None:
                np.add(held, postings.weight, out=held, where=is_own)
    return scores


def _complete(
    scores: Scores, rows: Rows, lists: Sequence[_PostingRange], threshold: float, limit: int
) -> tuple[Scores, Rows]:
    """Add the remaining lists, for the rows that can still reach the threshold."""
    rest = _suffix_sums([postings.bound for postings in lists])
    for place in range(len(lists)):
        if len(rows) > max(limit, _WORTH_PRUNING):
            threshold = max(threshold, _last_best_score(scores, limit))
            near = scores >= threshold - rest[place] * _SLACK
            scores, rows = scores[near], rows[near]
        if len(rows) <= _FEW_ROWS:
            return _add_scores(scores, rows, lists[place:]), rows
        scores = _add_scores(scores, rows, [lists[place]])
    return scores, rows


def _last_best_score(scores: Scores, limit: int) -> float:
    positive = scores[scores > 0]
    count = len(positive)
    return float(np.partition(positive, count - limit)[count - limit]) if count >= limit else 0.0
