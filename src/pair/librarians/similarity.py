"""Which of several descriptions fit a question: by their words and their meaning, with the eyes of a KB."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pair.error_tree import PairError
from pair.librarians.quotes import TermReader

_WORDS_SHARE = 0.6
_MEANING_SHARE = 0.4


@dataclass(frozen=True, slots=True)
class Match:
    number: int
    """Among the descriptions."""
    score: float
    """From 0 to 1."""
    coverage: float
    """The share of the question's words that it holds; words that few descriptions hold count more."""


def matches(query: str, descriptions: Sequence[str], reader: TermReader) -> list[Match]:
    """Those that have anything to do with the question, best first. Without vectors, words alone decide."""
    asked, *held = reader.words_in(query, [query, *descriptions])
    weights = _rarity(asked, held)
    total = sum(weights.values())
    try:
        meanings: Sequence[float] = reader.likeness(query, descriptions)
    except PairError:
        meanings = [0.0] * len(descriptions)
    found = []
    for number, (words, meaning) in enumerate(zip(held, meanings, strict=True)):
        coverage = sum(weights[word] for word in words) / total if total else 0.0
        score = _WORDS_SHARE * coverage + _MEANING_SHARE * max(meaning, 0.0)
        found.append(Match(number, score, coverage))
    return sorted((each for each in found if each.score > 0), key=lambda each: (-each.score, each.number))


def _rarity(asked: frozenset[str], held: Sequence[frozenset[str]]) -> dict[str, float]:
    """Words that no description holds are the rarest: they do not help to choose, but they are missing."""
    return {word: math.log(1 + len(held) / (sum(word in words for words in held) + 0.5)) for word in asked}
