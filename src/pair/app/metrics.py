"""Counts and times of what the server did, as long as it runs.

Invariants
    What can be counted is bounded: routes are those that exist, KBs those that were opened.
"""

import collections
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

BUCKETS_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_RECENT = 200


@dataclass
class Timing:
    """How often, how long, and how often it went wrong."""

    count: int = 0
    error_count: int = 0
    latency_sum_ms: float = 0.0
    latency_min_ms: float = 0.0
    latency_max_ms: float = 0.0
    buckets: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_SECONDS) + 1))

    def note(self, milliseconds: float, *, is_error: bool) -> None:
        self.latency_min_ms = min(self.latency_min_ms, milliseconds) if self.count else milliseconds
        self.latency_max_ms = max(self.latency_max_ms, milliseconds)
        self.latency_sum_ms += milliseconds
        self.count += 1
        self.error_count += is_error
        seconds = milliseconds / 1000
        place = next((place for place, edge in enumerate(BUCKETS_SECONDS) if seconds <= edge), len(BUCKETS_SECONDS))
        self.buckets[place] += 1

    def to_json(self) -> dict[str, Any]:
        return {
            "count": self.count,
            "error_count": self.error_count,
            "latency_sum_ms": round(self.latency_sum_ms, 3),
            "latency_min_ms": round(self.latency_min_ms, 3),
            "latency_max_ms": round(self.latency_max_ms, 3),
        }


@dataclass
class KbMetrics:
    """Of one KB."""

    queries: Timing = field(default_factory=Timing)
    total_results: int = 0
    top_distance_sum: float = 0.0
    shards_asked: int = 0
    queries_known: int = 0
    """Queries that were answered from memory."""
    queries_capped: int = 0
    """Queries that asked fewer shards than there were."""
    shard_failures: int = 0
    ingests: Timing = field(default_factory=Timing)
    total_docs: int = 0
    total_chunks: int = 0
    unchanged_docs: int = 0
    deleted_docs: int = 0
    cas_conflicts: int = 0
    lease_conflicts: int = 0
    compactions: int = 0
    compaction_failures: int = 0
    compaction_seconds: float = 0.0
    shards: int = 0
    """As last seen."""


class ServerMetrics:
    """Used from several threads at once."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.routes: dict[str, Timing] = {}
        self.statuses: collections.Counter[tuple[str, int]] = collections.Counter()
        self.kbs: dict[str, KbMetrics] = {}
        self.librarians: dict[str, Timing] = {}
        self.librarian_errors: collections.Counter[tuple[str, str]] = collections.Counter()
        self.in_flight = 0
        self.refused: collections.Counter[str] = collections.Counter()
        self.cache_evictions: collections.Counter[str] = collections.Counter()
        self.cache_budget_exceeded = 0
        self.prefetched_files = self.prefetched_bytes = 0
        self.recent: collections.deque[dict[str, Any]] = collections.deque(maxlen=_RECENT)

    def note_request(self, route: str, status: int, milliseconds: float, about: dict[str, Any]) -> None:
        with self.lock:
            self.routes.setdefault(route, Timing()).note(milliseconds, is_error=status >= 400)
            self.statuses[route, status] += 1
            self.recent.append(about)

    def of(self, kb_id: str) -> KbMetrics:
        """Call it under the lock, for KBs that are open."""
        return self.kbs.setdefault(kb_id, KbMetrics())

    def note_known_query(self, kb_id: str, milliseconds: float, results: int) -> None:
        with self.lock:
            figures = self.of(kb_id)
            figures.queries.note(milliseconds, is_error=False)
            figures.total_results += results
            figures.queries_known += 1

    def note_query(self, kb_id: str, milliseconds: float, hits: Any) -> None:
        with self.lock:
            figures = self.of(kb_id)
            figures.queries.note(milliseconds, is_error=False)
            figures.total_results += len(hits)
            figures.shards_asked += hits.shards_asked
            figures.queries_capped += hits.shards_asked < figures.shards
            figures.shard_failures += len(hits.faults)
            if len(hits) and hits[0].distance is not None:
                figures.top_distance_sum += hits[0].distance

    def note_failed_query(self, kb_id: str, milliseconds: float) -> None:
        with self.lock:
            if kb_id in self.kbs:
                self.kbs[kb_id].queries.note(milliseconds, is_error=True)

    def note_write(self, kb_id: str, milliseconds: float, reports: Iterable[Any]) -> None:
        with self.lock:
            figures = self.of(kb_id)
            figures.ingests.note(milliseconds, is_error=False)
            for report in reports:
                figures.total_docs += report.added + report.replaced
                figures.unchanged_docs += report.unchanged
                figures.total_chunks += report.chunks
                figures.deleted_docs += report.deleted
                figures.cas_conflicts += report.conflicts

    def note_failed_write(self, kb_id: str, milliseconds: float, *, is_conflict: bool) -> None:
        with self.lock:
            if kb_id in self.kbs:
                self.kbs[kb_id].ingests.note(milliseconds, is_error=True)
                self.kbs[kb_id].lease_conflicts += is_conflict

    def note_compaction(self, kb_id: str, seconds: float, conflicts: int, is_good: bool) -> None:
        with self.lock:
            figures = self.of(kb_id)
            figures.compactions += 1
            figures.compaction_failures += not is_good
            figures.compaction_seconds += seconds
            figures.cas_conflicts += conflicts

    def note_sweep(self, report: Any) -> None:
        with self.lock:
            self.cache_evictions["ttl"] += report.evicted_ttl
            self.cache_evictions["size"] += report.evicted_size

    def note_prefetch(self, report: Any) -> None:
        with self.lock:
            self.prefetched_files += report.files
            self.prefetched_bytes += report.fetched_bytes

    def note_ask(self, librarian: str, milliseconds: float, error_code: str) -> None:
        with self.lock:
            self.librarians.setdefault(librarian, Timing()).note(milliseconds, is_error=bool(error_code))
            if error_code:
                self.librarian_errors[librarian, error_code] += 1
