"""How good is a ranking, when it is known what is relevant: nDCG, recall, reciprocal rank (pure).

Invariants
    A ranking names a document once. Grades are above 0, and there is at least one.
    Every figure of a ranking lies between 0 and 1, and grows when a relevant document moves up.
"""

import math
from collections.abc import Mapping, Sequence

Grades = Mapping[str, float]
"""How relevant each relevant document is."""


def ndcg(ranking: Sequence[str], grades: Grades, k: int) -> float:
    """What the first k gain, each discounted by the logarithm of its rank, out of the most that k could gain.

    A document gains its grade itself, not two to the power of it: as trec_eval counts, so that figures compare.
    """
    best = sorted(grades.values(), reverse=True)[:k]
    return _discounted([grades.get(document_id, 0.0) for document_id in ranking[:k]]) / _discounted(best)


def recall(ranking: Sequence[str], grades: Grades, k: int) -> float:
    """The share of the relevant documents that are among the first k."""
    return sum(document_id in grades for document_id in ranking[:k]) / len(grades)


def reciprocal_rank(ranking: Sequence[str], grades: Grades, k: int) -> float:
    """One over the rank of the first relevant document; 0 when it is not among the first k."""
    ranks = (rank for rank, document_id in enumerate(ranking[:k], 1) if document_id in grades)
    return 1.0 / next(ranks, math.inf)


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def percentile(values: Sequence[float], percent: int) -> float:
    """The least value that so many percent of the values do not exceed."""
    return sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)]


def _discounted(gains: Sequence[float]) -> float:
    return math.fsum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains, 1))
