"""Ask every judged query in each mode, and say how good and how fast the answers were.

A document ranks where its best chunk does. Time is that of a search for ten chunks, as people ask for them, one after
the other; the ranking comes from a deeper search that is not timed.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pair import errors
from pair.clock import Clock
from pair.evaluation import metrics
from pair.evaluation.judged_set import JudgedQuery
from pair.values import Hit

_SHOWN = 10
_DEPTH = 100
_CHUNKS_AT_FIRST = 200
"""Two for each document that is wanted; more are asked for where that was too few."""


class RankedHits(Protocol):
    """The hits of one search."""

    def __iter__(self) -> Iterator[Hit]: ...

    def __len__(self) -> int: ...

    @property
    def partial(self) -> bool: ...


class Searchable(Protocol):
    """A KB, as far as this is concerned."""

    def search(self, query: str, *, limit: int, mode: str) -> RankedHits: ...


@dataclass(frozen=True, slots=True)
class QualityFigures:
    """Of one mode: means over all queries, and times of single ones."""

    ndcg_at_10: float
    recall_at_10: float
    recall_at_100: float
    mrr_at_10: float
    p50_ms: float
    p99_ms: float
    partial: int
    """Queries that some shard did not answer: with these the figures say little."""

    def to_json(self) -> dict[str, Any]:
        return {
            "ndcg@10": round(self.ndcg_at_10, 6),
            "recall@10": round(self.recall_at_10, 6),
            "recall@100": round(self.recall_at_100, 6),
            "mrr@10": round(self.mrr_at_10, 6),
            "p50_ms": round(self.p50_ms, 3),
            "p99_ms": round(self.p99_ms, 3),
            "partial": self.partial,
        }


@dataclass(frozen=True, slots=True)
class Measured:
    modes: dict[str, QualityFigures]
    unavailable: dict[str, errors.NotFoundError]
    """Modes that this KB has no data for."""


def measure_all(
    kb: Searchable,
    queries: Sequence[JudgedQuery],
    modes: Iterable[str],
    *,
    clock: Clock,
    on_query: Callable[[str, int], None] = lambda mode, done: None,
) -> Measured:
    """Every mode that the KB has the data for. Raises what the first one raised when there is none."""
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
    # Models and shards are loaded by the first search; that is not what a search takes.
    kb.search(queries[0].text, limit=_SHOWN, mode=mode)
    rankings: list[list[str]] = []
    times_ms: list[float] = []
    partial = 0
    for done, query in enumerate(queries, 1):
        began = clock.monotonic()
        kb.search(query.text, limit=_SHOWN, mode=mode)
        times_ms.append((clock.monotonic() - began) * 1000)
        ranking, is_partial = _ranking(kb, query.text, mode)
        rankings.append(ranking)
        partial += is_partial
        on_query(mode, done)
    judged = [(ranking, query.grades) for ranking, query in zip(rankings, queries, strict=True)]
    return QualityFigures(
        ndcg_at_10=metrics.mean([metrics.ndcg(ranking, grades, 10) for ranking, grades in judged]),
        recall_at_10=metrics.mean([metrics.recall(ranking, grades, 10) for ranking, grades in judged]),
        recall_at_100=metrics.mean([metrics.recall(ranking, grades, 100) for ranking, grades in judged]),
        mrr_at_10=metrics.mean([metrics.reciprocal_rank(ranking, grades, 10) for ranking, grades in judged]),
        p50_ms=metrics.percentile(times_ms, 50),
        p99_ms=metrics.percentile(times_ms, 99),
        partial=partial,
    )


def _ranking(kb: Searchable, text: str, mode: str) -> tuple[list[str], bool]:
    """Documents, best first: a hundred, or all that are found."""
    limit, found_before = _CHUNKS_AT_FIRST, -1
    while True:
        hits = kb.search(text, limit=limit, mode=mode)
        ranked = list(dict.fromkeys(hit.document_id for hit in hits))
        if len(ranked) >= _DEPTH or len(hits) == found_before:
            return ranked, hits.partial
        limit, found_before = limit * 2, len(hits)
