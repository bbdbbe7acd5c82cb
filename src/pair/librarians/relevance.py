"""Matches between a question and descriptions of librarians and sources. No model is used."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pair.error_tree import PairError
from pair.text.tokenizer import find_words


class TextEmbedder(Protocol):
    """The part of an embedder that a librarian uses."""

    def compare(self, query: str, texts: Sequence[str]) -> list[float]:
        """Return the similarity of each text to a question; 1 means equal. Raises ModelError."""


def coverage(words: frozenset[str] | set[str], weights: Mapping[str, float]) -> float:
    """Return the share of the question's words that are in `words`, by weight; 0 for a question without words."""
    total = sum(weights.values())
    return sum(weights.get(word, 0.0) for word in words) / total if total else 0.0


@dataclass(frozen=True, slots=True)
class Match:
    number: int
    """The index of the description."""
    score: float
    """The score, from 0 to 1."""
    coverage: float
    """The share of the question's words that it holds; words that few descriptions hold count more."""


def match_descriptions(query: str, descriptions: Sequence[str], embedder: TextEmbedder) -> list[Match]:
    """Return the descriptions that are related to the question, best first.

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
