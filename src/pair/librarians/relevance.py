"""How well texts answer a question: matching descriptions, sentences to quote, and confidence. No model is asked.

The worth of a sentence is the share of the question's words that it holds, rare ones counting more, and a little less
for words that only its surroundings hold; its nearness in meaning; and the score of its passage. A few words of a table
are worth less. Further sentences are quoted while they hold words that those before them lack.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from pair.error_tree import PairError
from pair.text.markdown import PassageWords, Sentence
from pair.text.tokenizer import find_words
from pair.values import Hit


class TextEmbedder(Protocol):
    """The embedder of a KB, as far as a librarian needs it."""

    def compare(self, query: str, texts: Sequence[str]) -> list[float]:
        """Return how near in meaning each text is to a question; 1 is the same. Raises ModelError."""
        ...


def coverage(words: frozenset[str] | set[str], weights: Mapping[str, float]) -> float:
    """Return the share of the question's words, rare ones counting more; 0 for a question without words."""
    total = sum(weights.values())
    return sum(weights.get(word, 0.0) for word in words) / total if total else 0.0


# ── descriptions ───────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Match:
    number: int
    """The index of the description."""
    score: float
    """From 0 to 1."""
    coverage: float
    """The share of the question's words that it holds; words that few descriptions hold count more."""


def match_descriptions(query: str, descriptions: Sequence[str], embedder: TextEmbedder) -> list[Match]:
    """Return the descriptions that have anything to do with the question, best first.

    Without vectors, words alone decide.
    """
    asked, *held = find_words(query, [query, *descriptions])
    # Words that no description holds are the rarest: they do not help to choose, but they are missing.
    weights = {word: math.log(1 + len(held) / (sum(word in words for words in held) + 0.5)) for word in asked}
    try:
        meanings: Sequence[float] = embedder.compare(query, descriptions)
    except PairError:
        meanings = [0.0] * len(descriptions)
    matches = []
    for number, (words, meaning) in enumerate(zip(held, meanings, strict=True)):
        covered = coverage(words, weights)
        matches.append(Match(number, 0.6 * covered + 0.4 * max(meaning, 0.0), covered))
    return sorted((match for match in matches if match.score > 0), key=lambda match: (-match.score, match.number))


# ── quotes ─────────────────────────────────────────────────────────────────────────────────────────

MOST_QUOTES = 3
QUOTABLE = 6
"""Passages that are quoted from."""
MOST_SENTENCES = 60
"""Sentences of a passage that may be quoted."""
_MEASURED = 24
"""Sentences whose meaning is looked at: a model that makes vectors may be slow."""
_WORDS_SHARE = 0.4
_MEANING_SHARE = 0.2
_PASSAGE_SHARE = 0.45
_AROUND = 0.4
"""The share that a word counts if it is only in the title or in the sentence before."""
_NUMBER_BONUS = 0.1
_FRAGMENT_MALUS = 0.1
"""A cell of a table or a heading of a list says little by itself, unless the question asks for a number."""
_FRAGMENT_WORDS = 12
_MOST_JOINED_CHARACTERS = 350
"""The best sentence is quoted with the next one of its paragraph, if both are not longer."""
_LEAST_ADDED = 0.12
"""The share of the question's words, by weight, that a further sentence must add."""
_LEAST_OF_BEST = 0.6
"""The share of the best sentence's worth that a further sentence must have."""

_ASKS_FOR_A_NUMBER = re.compile(
    r"\bhow (?:many|much|long|far|often|old|large|big|high|deep|fast)\b|\bwhen\b|\b(?:what|which) (?:year|date|day|time"
    r"|number|port|version|size|value|offset|age|percentage)\b",
    re.IGNORECASE,
)
_HAS_NUMBER = re.compile(r"\d")
_IS_WHOLE = re.compile(r"[.!?:;\u3002\uff01\uff1f][\"'\u201d\u2019)\]*_`]*$")


@dataclass(frozen=True, slots=True)
class Quote:
    passage: int
    """The index of its passage."""
    number: int
    """The index of its sentence in the passage."""
    text: str
    words: frozenset[str]
    """Words of the question in the sentence or around it."""
    worth: float


def choose_quotes(
    query: str,
    passages: Sequence[Hit],
    read: Sequence[PassageWords],
    weights: Mapping[str, float],
    embedder: TextEmbedder,
) -> list[Quote]:
    """Return the sentences to quote, best first. `read`: the words of the first passages."""
    ranked = _weigh(query, _weigh_words(read, weights), passages[: len(read)], embedder)
    if not ranked:
        return []
    best = ranked[0]
    chosen = [_extend(best, read[best.passage].sentences)]
    held = set(best.words)
    for quote in ranked[1:]:
        if len(chosen) == MOST_QUOTES or quote.worth < _LEAST_OF_BEST * best.worth:
            break
        is_new = all(quote.text not in other.text for other in chosen)
        if is_new and coverage(quote.words - held, weights) >= _LEAST_ADDED:
            chosen.append(quote)
            held |= quote.words
    return chosen


def _weigh_words(read: Sequence[PassageWords], weights: Mapping[str, float]) -> list[Quote]:
    """Return the sentences of all passages, with the worth of their words alone."""
    quotes = []
    for passage, words in enumerate(read):
        before = frozenset[str]()
        for number, held in enumerate(words.in_sentences):
            around = words.in_title | before
            worth = coverage(held, weights) + _AROUND * coverage(around - held, weights)
            quotes.append(Quote(passage, number, words.sentences[number].text, held | around, worth))
            before = held
    return quotes


def _weigh(query: str, candidates: Sequence[Quote], passages: Sequence[Hit], embedder: TextEmbedder) -> list[Quote]:
    """Add to the worth of words that of the passage, of numbers and of meaning. Return the best first."""
    best_score = max((passage.score for passage in passages), default=0.0) or 1.0
    wants_number = bool(_ASKS_FOR_A_NUMBER.search(query))
    weighed = [
        replace(
            quote,
            worth=_WORDS_SHARE * quote.worth
            + _PASSAGE_SHARE * passages[quote.passage].score / best_score
            + _NUMBER_BONUS * (wants_number and bool(_HAS_NUMBER.search(quote.text)))
            - _FRAGMENT_MALUS * (not wants_number and _is_fragment(quote.text)),
        )
        for quote in candidates
    ]
    measured = sorted(weighed, key=lambda quote: -quote.worth)[:_MEASURED]
    meanings = embedder.compare(query, [quote.text for quote in measured])
    quotes = [
        replace(quote, worth=quote.worth + _MEANING_SHARE * max(meaning, 0.0))
        for quote, meaning in zip(measured, meanings, strict=True)
    ]
    return sorted(quotes, key=lambda quote: -quote.worth)


def _is_fragment(text: str) -> bool:
    return len(text.split()) < _FRAGMENT_WORDS and not _IS_WHOLE.search(text)


def _extend(quote: Quote, sentences: Sequence[Sentence]) -> Quote:
    """Add the next sentence of the paragraph, which often explains a statement."""
    if quote.number + 1 == len(sentences):
        return quote
    own, following = sentences[quote.number : quote.number + 2]
    if following.block != own.block or len(own.text) + len(following.text) > _MOST_JOINED_CHARACTERS:
        return quote
    return replace(quote, text=f"{own.text} {following.text}")


# ── confidence ─────────────────────────────────────────────────────────────────────────────────────

NOTHING_RELEVANT = 0.2
"""Below this nothing is quoted as an answer."""


def confidence_in(*, coverage: float, meaning: float, agreement: float, lead: float) -> float:
    """Return how likely it is that the passages answer the question, from 0 to 1, in hundredths.

    Each number is from 0 to 1: `coverage`, the share of the question's words, rare ones counting more, that the best
    passages hold together; `meaning`, the cosine of the vectors of the best passage and the question; `agreement`, the
    lower of the best passage's two scores, by words and by meaning; `lead`, by how much the best document is better
    than the next. docs/concepts/librarians.md says how the formula was calibrated, with benchmarks/answers.py.
    """
    # Lead and agreement say little where neither words nor meaning fit.
    basis = max(coverage, meaning)
    weighed = -4.25 + 2.9 * coverage + 3.0 * meaning + 4.4 * lead * basis + 0.15 * agreement * basis
    return round(1 / (1 + math.exp(-weighed)), 2)
