"""Counts and times since the process started. They are bounded: routes exist, and KBs were opened."""

import collections
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

BUCKETS_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_RECENT = 200
Json = dict[str, Any]


@dataclass
class Timing:
    """Number, duration and failures of one kind of work."""

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

    def to_json(self) -> Json:
        return {
            "count": self.count,
            "error_count": self.error_count,
            "latency_sum_ms": round(self.latency_sum_ms, 3),
            "latency_min_ms": round(self.latency_min_ms, 3),
            "latency_max_ms": round(self.latency_max_ms, 3),
        }


@dataclass
class QueryCounts:
    total_results: int = 0
    top_distance_sum: float = 0.0
    shards_asked: int = 0
    known: int = 0
    """Queries that were answered from the response cache."""
    capped: int = 0
    """Queries that asked fewer shards than there were."""
    shard_failures: int = 0

    def to_json(self) -> Json:
        return {**vars(self), "top_distance_sum": round(self.top_distance_sum, 6)}


@dataclass
class IngestCounts:
    total_docs: int = 0
    total_chunks: int = 0
    unchanged_docs: int = 0
    deleted_docs: int = 0


@dataclass
class CareCounts:
    compaction_runs: int = 0
    compaction_failures: int = 0
    compaction_seconds: float = 0.0
    cas_conflicts: int = 0
    lease_conflicts: int = 0

    def to_json(self) -> Json:
        return {**vars(self), "compaction_seconds": round(self.compaction_seconds, 3)}


@dataclass
class KbMetrics:
    """Counts of one KB. The names of counts are those in JSON."""

    queries: Timing = field(default_factory=Timing)
    query_counts: QueryCounts = field(default_factory=QueryCounts)
    ingests: Timing = field(default_factory=Timing)
    ingest_counts: IngestCounts = field(default_factory=IngestCounts)
    care: CareCounts = field(default_factory=CareCounts)
    shards: int = 0
    """Live shards, when they were last counted."""


class ServerMetrics:
    """Counts of one process. Used from several threads at once."""

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
        self.recent: collections.deque[Json] = collections.deque(maxlen=_RECENT)

    def note_request(self, route: str, status: int, milliseconds: float, log_fields: Json) -> None:
        with self.lock:
            self.routes.setdefault(route, Timing()).note(milliseconds, is_error=status >= 400)
            self.statuses[route, status] += 1
            self.recent.append(log_fields)

    def _kb(self, kb_id: str) -> KbMetrics:
        """Call it under the lock, for KBs that are open."""
        return self.kbs.setdefault(kb_id, KbMetrics())

    def note_cached_query(self, kb_id: str, milliseconds: float, results: int) -> None:
        with self.lock:
            kb = self._kb(kb_id)
            kb.queries.note(milliseconds, is_error=False)
            kb.query_counts.total_results += results
            kb.query_counts.known += 1

    def note_query(self, kb_id: str, milliseconds: float, hits: Any) -> None:
        with self.lock:
            kb = self._kb(kb_id)
            kb.queries.note(milliseconds, is_error=False)
            counts = kb.query_counts
            counts.total_results += len(hits)
            counts.shards_asked += hits.shards_asked
            counts.capped += hits.shards_asked < kb.shards
            counts.shard_failures += len(hits.faults)
            if len(hits) and hits[0].distance is not None:
                counts.top_distance_sum += hits[0].distance

    def note_failed_query(self, kb_id: str, milliseconds: float) -> None:
        with self.lock:
            if kb_id in self.kbs:
                self.kbs[kb_id].queries.note(milliseconds, is_error=True)

    def note_write(self, kb_id: str, milliseconds: float, report: Any) -> None:
        with self.lock:
            kb = self._kb(kb_id)
            kb.ingests.note(milliseconds, is_error=False)
            kb.ingest_counts.total_docs += report.added + report.replaced
            kb.ingest_counts.unchanged_docs += report.unchanged
            kb.ingest_counts.total_chunks += report.chunks
            kb.ingest_counts.deleted_docs += report.deleted
            kb.care.cas_conflicts += report.conflicts

    def note_failed_write(self, kb_id: str, milliseconds: float, *, is_conflict: bool) -> None:
        with self.lock:
            if kb_id in self.kbs:
                self.kbs[kb_id].ingests.note(milliseconds, is_error=True)
                self.kbs[kb_id].care.lease_conflicts += is_conflict

    def note_compaction(self, kb_id: str, seconds: float, conflicts: int, is_good: bool) -> None:
        with self.lock:
            care = self._kb(kb_id).care
            care.compaction_runs += 1
            care.compaction_failures += not is_good
            care.compaction_seconds += seconds
            care.cas_conflicts += conflicts

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

    def to_json(self, shards: Mapping[str, int]) -> Json:
        """`shards`: live shards of the KBs that could be read."""
        with self.lock:
            for kb_id, count in shards.items():
                self._kb(kb_id).shards = count
            return {
                "route_stats": {route: timing.to_json() for route, timing in self.routes.items()},
                "query_stats": {
                    kb_id: {**kb.queries.to_json(), **kb.query_counts.to_json()} for kb_id, kb in self.kbs.items()
                },
                "ingest_stats": {
                    kb_id: {**kb.ingests.to_json(), **vars(kb.ingest_counts)} for kb_id, kb in self.kbs.items()
                },
                "librarian_stats": {name: timing.to_json() for name, timing in self.librarians.items()},
                "refused": dict(self.refused),
                "cache": {
                    "evictions": dict(self.cache_evictions),
                    "budget_exceeded": self.cache_budget_exceeded,
                    "prefetched_files": self.prefetched_files,
                    "prefetched_bytes": self.prefetched_bytes,
                },
                "recent_requests": list(self.recent),
            }
