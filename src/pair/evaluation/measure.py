"""Measure how good and how fast the answers to judged queries are: nDCG, recall, reciprocal rank, times.

A document ranks where its best chunk does. The time is that of a search for ten chunks; the ranking comes from a
deeper search that is not timed.

Invariants
    A ranking names a document once. Grades are above 0, and there is at least one.
    Every figure of a ranking lies between 0 and 1, and grows when a relevant document moves up.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol

from pair import errors
from pair.clock import Clock
from pair.evaluation.judged_set import JudgedQuery

if TYPE_CHECKING:
    from pair.values import Hits

_SHOWN = 10
_DEPTH = 100
_FIRST_CHUNKS = 200
"""Two for each wanted document; doubled where that is too few."""

Grades = Mapping[str, float]
"""How relevant each relevant document is."""


class Searchable(Protocol):
    """A KB that can be searched."""

    def search(self, query: str, *, limit: int, mode: str) -> "Hits": ...


@dataclass(frozen=True, slots=True)
class QualityFigures:
    """The figures of one mode: means over all queries, and percentiles of times."""

    ndcg_at_10: float
    recall_at_10: float
    recall_at_100: float
    mrr_at_10: float
    p50_ms: float
    p99_ms: float
    partial: int
    """Queries that some shard did not answer; they distort the figures."""

    def to_json(self) -> dict[str, Any]:
        digits = {"p50_ms": 3, "p99_ms": 3}
        return {name.replace("_at_", "@"): round(value, digits.get(name, 6)) for name, value in asdict(self).items()}


@dataclass(frozen=True, slots=True)
class Measured:
    modes: dict[str, QualityFigures]
    unavailable: dict[str, errors.NotFoundError]
    """Modes for which the KB has no data."""


def measure_all(
    kb: Searchable,
    queries: Sequence[JudgedQuery],
    modes: Iterable[str],
    *,
    clock: Clock,
    on_query: Callable[[str, int], None] = lambda mode, done: None,
) -> Measured:
    """Measure every mode for which the KB has data. Raises the first error when there is none."""
    measured = Measured({}, {})
    for mode in modes:
        try:
            measured.modes[mode] = measure(kb, queries, mode, clock=clock, on_query=on_query)
        except errors.NotFoundError as fault:
            measured.unavailable[mode] = fault
    if not measured.modes:
        raise next(iter(measured.unavailable.values()))
    return measured


def measure(
    kb: Searchable,
    queries: Sequence[JudgedQuery],
    mode: str,
    *,
    clock: Clock,
    on_query: Callable[[str, int], None] = lambda mode, done: None,
) -> QualityFigures:
    # The first search loads models and shards, which is not part of its time.
    kb.search(queries[0].text, limit=_SHOWN, mode=mode)
    judged: list[tuple[list[str], Grades]] = []
    times_ms: list[float] = []
    partial = 0
    for done, query in enumerate(queries, 1):
        began = clock.monotonic()
        kb.search(query.text, limit=_SHOWN, mode=mode)
        times_ms.append((clock.monotonic() - began) * 1000)
        ranking, is_partial = _rank_documents(kb, query.text, mode)
        judged.append((ranking, query.grades))
        partial += is_partial
        on_query(mode, done)
    return QualityFigures(
        ndcg_at_10=mean([ndcg(ranking, grades, 10) for ranking, grades in judged]),
        recall_at_10=mean([recall(ranking, grades, 10) for ranking, grades in judged]),
        recall_at_100=mean([recall(ranking, grades, 100) for ranking, grades in judged]),
        mrr_at_10=mean([reciprocal_rank(ranking, grades, 10) for ranking, grades in judged]),
        p50_ms=percentile(times_ms, 50),
        p99_ms=percentile(times_ms, 99),
        partial=partial,
    )


def _rank_documents(kb: Searchable, text: str, mode: str) -> tuple[list[str], bool]:
    """Return the best 100 documents, or all that match, and whether a shard did not answer."""
    limit, hits_before = _FIRST_CHUNKS, -1
    while True:
        hits = kb.search(text, limit=limit, mode=mode)
        ranking = list(dict.fromkeys(hit.document_id for hit in hits))
        if len(ranking) >= _DEPTH or len(hits) == hits_before:
            return ranking, hits.partial
        limit, hits_before = limit * 2, len(hits)


def ndcg(ranking: Sequence[str], grades: Grades, k: int) -> float:
    """Return the discounted gain of the first k, as a share of the best possible.

    A document gains its grade, not two to the power of it, as in trec_eval.
    """
    best = sorted(grades.values(), reverse=True)[:k]
    return _sum_gains([grades.get(document_id, 0.0) for document_id in ranking[:k]]) / _sum_gains(best)


def recall(ranking: Sequence[str], grades: Grades, k: int) -> float:
    """Return the share of the relevant documents that are among the first k."""
    return sum(document_id in grades for document_id in ranking[:k]) / len(grades)


def reciprocal_rank(ranking: Sequence[str], grades: Grades, k: int) -> float:
    """Return one over the rank of the first relevant document; 0 when it is not among the first k."""
    ranks = (rank for rank, document_id in enumerate(ranking[:k], 1) if document_id in grades)
    return 1.0 / next(ranks, math.inf)


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def percentile(values: Sequence[float], percent: int) -> float:
    """Return the least value that this many percent of the values do not exceed."""
    return sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)]


def _sum_gains(gains: Sequence[float]) -> float:
    return math.fsum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains, 1))
