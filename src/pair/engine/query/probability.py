"""Estimates of the probability that a candidate is relevant, which compare between queries and modes.

ln(p / (1 - p)) = base + Σ coefficient · part, each part from 0 to 1:
    coverage   the share of the query's words that the row holds, by their weights in BM25: rare words weigh more, and
               words that occur nowhere in the KB are missing
    nearness   (c - u) / (1 - u): c, the cosine of row and query; u, the usual one, the mean of the 12 nearest rows
    standing   the ranking score of the row as a share of the best one of the query
    agreement  the lower one of K / Kmax and V (see ranking): high if words and meaning both choose the row

benchmarks/scores.py fits the coefficients and prints how reliable they are on sets that were left out of the fit.

Invariants
    The order of the ranking stays: no candidate is more probable than one that ranks above it.
    The probability of a candidate depends neither on the layout of the shards nor on how many hits are wanted.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

LEAST = 0.02
"""Minimum probability of the best result, for a query by words and meaning."""
LEAST_WITHOUT_WORDS = 0.25
"""The same minimum, for a query without any word that occurs in the KB: only its vector counts."""
_USUAL_ROWS = 12
"""Number of nearest rows whose mean is the usual nearness; every vector search finds this many."""
_UNKNOWN_ROWS = 2
"""Number of rows with cosine 0 to add to the mean, because a small KB has too few rows."""


@dataclass(frozen=True, slots=True)
class Coefficients:
    """One fit: for queries with words and a vector, with words alone, or with a vector alone."""

    base: float
    standing: float
    coverage: float = 0.0
    nearness: float = 0.0
    agreement: float = 0.0


BY_WORDS_AND_MEANING = Coefficients(base=-6.82, standing=1.95, coverage=4.13, nearness=1.98, agreement=2.39)
BY_WORDS = Coefficients(base=-7.45, standing=4.14, coverage=4.64)
BY_MEANING = Coefficients(base=-4.92, standing=0.92, nearness=9.23)


def compute_nearness(distances: npt.NDArray[np.float32], near: npt.NDArray[np.float32]) -> Floats:
    """Return the nearness of rows. `near`: ascending distances of the nearest rows."""
    cosines = _to_cosines(near[:_USUAL_ROWS])
    usual = max(float(cosines.sum()), 0.0) / (len(cosines) + _UNKNOWN_ROWS)
    return np.asarray(np.clip((_to_cosines(distances) - usual) / (1.0 - usual), 0.0, 1.0), np.float64)


def _to_cosines(distances: npt.NDArray[np.float32]) -> Floats:
    """Return the cosines of vectors of length 1."""
    return np.asarray(1.0 - distances.astype(np.float64) ** 2 / 2.0, np.float64)


def compute_standing(scores: Floats) -> Floats:
    best = float(scores.max(initial=0.0))
    return np.asarray(scores / best, np.float64) if best > 0 else np.zeros(len(scores))


def estimate_probabilities(scores: Floats, parts: dict[str, Floats]) -> Floats:
    """Return a probability for each candidate. `scores`: of the ranking, whose order it keeps."""
    fit = BY_WORDS_AND_MEANING if "agreement" in parts else BY_WORDS if "coverage" in parts else BY_MEANING
    logit = np.full(len(scores), fit.base)
    for name, values in parts.items():
        logit += getattr(fit, name) * values
    probabilities = 1.0 / (1.0 + np.exp(-logit))
    order = np.argsort(-scores, kind="stable")
    # Candidates with equal scores get the lowest probability of any of them: their order is not known here.
    ranked, falling = -scores[order], np.minimum.accumulate(probabilities[order])
    last_equal = np.searchsorted(ranked, ranked, side="right") - 1
    probabilities[order] = falling[last_equal]
    return np.asarray(probabilities, np.float64)
