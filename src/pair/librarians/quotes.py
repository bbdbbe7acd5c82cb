"""The sentences of some passages that answer a question, chosen without a model.

A sentence is worth the share of the question's words that it holds, rare ones counting more, and a little less for
words that only its surroundings hold; its nearness in meaning; and how good its passage is. It is worth less if it is
no sentence, but a few words of a table. More sentences are quoted as long as they hold words that those before them
lack.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from pair.text.sentences import Sentence, sentences

MOST_QUOTES = 3
_PASSAGES = 6
_SENTENCES_PER_PASSAGE = 60
_MEASURED = 24
"""Sentences whose meaning is looked at: a model that makes vectors may be slow."""
_WORDS_SHARE = 0.4
_MEANING_SHARE = 0.2
_PASSAGE_SHARE = 0.45
_AROUND = 0.4
"""What a word counts that stands in the title, in the heading, or in the sentence before."""
_NUMBER_BONUS = 0.1
_FRAGMENT_MALUS = 0.1
"""A cell of a table or a heading of a list says little by itself, unless a number is asked for."""
_FRAGMENT_WORDS = 12
_GOES_ON = 350
"""In characters: the best sentence is quoted with the one that follows it in its paragraph, if both are not longer."""
_LEAST_ADDED = 0.12
"""Of the question's words, by weight: a further sentence must add this much."""
_LEAST_OF_BEST = 0.6
"""And be worth this share of the best one."""

_ASKS_FOR_A_NUMBER = re.compile(
    r"\bhow (?:many|much|long|far|often|old|large|big|high|deep|fast)\b|\bwhen\b|\b(?:what|which) (?:year|date|day|time"
    r"|number|port|version|size|value|offset|age|percentage)\b",
    re.IGNORECASE,
)
_HAS_NUMBER = re.compile(r"\d")
_IS_SAID_WHOLE = re.compile(r"[.!?:;\u3002\uff01\uff1f][\"'\u201d\u2019)\]*_`]*$")


class TermReader(Protocol):
    """Knows how texts stand to a question."""

    def words_in(self, query: str, texts: Sequence[str]) -> list[frozenset[str]]: ...

    def likeness(self, query: str, texts: Sequence[str]) -> list[float]: ...


@dataclass(frozen=True, slots=True)
class Passage:
    """What quotations are taken from."""

    title: str
    text: str
    score: float


@dataclass(frozen=True, slots=True)
class Quote:
    passage: int
    """Its number among the passages."""
    sentence: Sentence
    words: frozenset[str]
    """Of the question, in the sentence or around it."""
    meaning: float
    worth: float


def coverage(words: frozenset[str] | set[str], weights: Mapping[str, float]) -> float:
    """The share of the question's words, rare ones counting more. 0 for a question without words."""
    total = sum(weights.values())
    return sum(weights.get(word, 0.0) for word in words) / total if total else 0.0


def choose_quotes(
    query: str, passages: Sequence[Passage], weights: Mapping[str, float], reader: TermReader
) -> list[Quote]:
    """The best first."""
    ranked = _valued(query, passages[:_PASSAGES], weights, reader)
    if not ranked:
        return []
    chosen = [_with_next(ranked[0], passages[ranked[0].passage])]
    held = set(ranked[0].words)
    for quote in ranked[1:]:
        if len(chosen) == MOST_QUOTES or quote.worth < _LEAST_OF_BEST * ranked[0].worth:
            break
        is_new = all(quote.sentence.text not in other.sentence.text for other in chosen)
        if is_new and coverage(quote.words - held, weights) >= _LEAST_ADDED:
            chosen.append(quote)
            held |= quote.words
    return chosen


def _with_next(quote: Quote, passage: Passage) -> Quote:
    """A statement is often explained in the next sentence."""
    found = sentences(passage.text)
    following = next((each for each in found if each.start >= quote.sentence.end), None)
    own = quote.sentence
    if following is None or following.block != own.block or len(own.text) + len(following.text) > _GOES_ON:
        return quote
    longer = Sentence(f"{own.text} {following.text}", own.start, following.end, own.block)
    return replace(quote, sentence=longer)


@dataclass(frozen=True, slots=True)
class _Candidate:
    passage: int
    sentence: Sentence
    own: frozenset[str]
    around: frozenset[str]
    by_words: float


def _valued(query: str, passages: Sequence[Passage], weights: Mapping[str, float], reader: TermReader) -> list[Quote]:
    candidates = [
        each for number, passage in enumerate(passages) for each in _candidates(query, number, passage, weights, reader)
    ]
    best = max((passage.score for passage in passages), default=0.0) or 1.0
    wants_number = bool(_ASKS_FOR_A_NUMBER.search(query))
    worths = [
        _WORDS_SHARE * each.by_words
        + _PASSAGE_SHARE * passages[each.passage].score / best
        + _NUMBER_BONUS * (wants_number and bool(_HAS_NUMBER.search(each.sentence.text)))
        - _FRAGMENT_MALUS * (not wants_number and _is_fragment(each.sentence.text))
        for each in candidates
    ]
    order = sorted(range(len(candidates)), key=lambda place: (-worths[place], place))[:_MEASURED]
    meanings = reader.likeness(query, [candidates[place].sentence.text for place in order])
    quotes = [
        Quote(
            candidates[place].passage,
            candidates[place].sentence,
            candidates[place].own | candidates[place].around,
            meaning,
            worths[place] + _MEANING_SHARE * max(meaning, 0.0),
        )
        for place, meaning in zip(order, meanings, strict=True)
    ]
    return sorted(quotes, key=lambda quote: -quote.worth)


def _is_fragment(text: str) -> bool:
    return len(text.split()) < _FRAGMENT_WORDS and not _IS_SAID_WHOLE.search(text)


def _candidates(
    query: str, number: int, passage: Passage, weights: Mapping[str, float], reader: TermReader
) -> list[_Candidate]:
    found = sentences(passage.text)[:_SENTENCES_PER_PASSAGE]
    title, *held = reader.words_in(query, [passage.title, *(each.text for each in found)])
    candidates = []
    for place, sentence in enumerate(found):
        around = title | (held[place - 1] if place else frozenset())
        by_words = coverage(held[place], weights) + _AROUND * coverage(around - held[place], weights)
        candidates.append(_Candidate(number, sentence, held[place], around, by_words))
    return candidates
