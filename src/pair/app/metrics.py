"""Metrics since the process started, for Prometheus and as JSON. Only open KBs have metrics, so there are few."""

import collections
import threading
from collections.abc import Mapping
from typing import Any

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, Summary

BUCKETS_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_RECENT = 200
_KB_COUNTERS = {
    "query_stats": {
        "error_count": ("pair_queries_errors", "Failed queries."),
        "total_results": ("pair_query_results", "Passages returned by queries."),
        "shards_asked": ("pair_query_shard_exec", "Shards searched by queries."),
        "known": ("pair_queries_known", "Queries answered from the response cache."),
        "capped": ("pair_query_shard_fanout_capped", "Queries that searched only some of the shards."),
        "shard_failures": ("pair_query_shard_exec_failures", "Shards that a query could not search."),
    },
    "ingest_stats": {
        "error_count": ("pair_ingests_errors", "Failed writes."),
        "total_docs": ("pair_ingest_docs", "Documents added or replaced by requests."),
        "total_chunks": ("pair_ingest_chunks", "Chunks stored by requests."),
        "unchanged_docs": ("pair_ingest_unchanged_docs", "Documents skipped because the KB already had them."),
        "deleted_docs": ("pair_ingest_deleted_docs", "Documents deleted by requests."),
    },
    "care": {
        "compaction_runs": ("pair_compaction_runs", "Compactions, including failed ones."),
        "compaction_failures": ("pair_compaction_failures", "Failed compactions."),
        "cas_conflicts": ("pair_manifest_cas_conflicts", "Manifest updates that lost to another writer."),
        "lease_conflicts": ("pair_lease_conflicts", "Writes that failed because another writer held the lease."),
    },
}
"""Counters of each KB: the metric name and the HELP text, by group and key of the JSON."""
_MOST_INTERVALS = 120
_FIRST_INTERVAL_SECONDS = 10.0
Json = dict[str, Any]

prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]


class RequestHistory:
    """Requests since the start, in at most 120 intervals. When there would be more, each becomes twice as long."""

    def __init__(self) -> None:
        self._seconds = _FIRST_INTERVAL_SECONDS
        self._intervals: list[tuple[int, int, float]] = []
        """Requests, failed requests and total milliseconds of each interval."""

    def add(self, uptime_seconds: float, is_error: bool, milliseconds: float) -> None:
        place = self._extend(uptime_seconds)
        requests, failed, total = self._intervals[place]
        self._intervals[place] = requests + 1, failed + is_error, total + milliseconds

    def to_json(self, uptime_seconds: float) -> Json:
        """Return the intervals until now."""
        self._extend(uptime_seconds)
        requests, failed, totals = map(list, zip(*self._intervals, strict=True))
        return {
            "interval_seconds": self._seconds,
            "requests": requests,
            "errors": failed,
            "latency_ms": [round(total, 3) for total in totals],
        }

    def _extend(self, uptime_seconds: float) -> int:
        """Return the place of the interval of this moment, with empty intervals before it."""
        while uptime_seconds >= self._seconds * _MOST_INTERVALS:
            padded = [*self._intervals, (0, 0, 0.0)]
            pairs = zip(padded[: len(self._intervals) : 2], padded[1::2], strict=False)
            self._intervals = [(one[0] + two[0], one[1] + two[1], one[2] + two[2]) for one, two in pairs]
            self._seconds *= 2
        place = max(0, int(uptime_seconds / self._seconds))
        self._intervals += [(0, 0, 0.0)] * (place + 1 - len(self._intervals))
        return place


class ServerMetrics:
    """The metrics that requests and jobs count. Thread-safe."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self.in_flight = 0
        in_flight = Gauge("pair_http_requests_in_flight", "Requests in progress.", registry=registry)
        in_flight.set_function(lambda: self.in_flight)
        self.refused = Counter(
            "pair_http_refused", "Requests refused with 401, 403 or 429.", ["reason"], registry=registry
        )
        self.cache_budget_exceeded = Counter(
            "pair_cache_budget_exceeded", "Requests that failed because the shard cache was full.", registry=registry
        )
        self._requests = Counter(
            "pair_http_requests", "Finished requests.", ["method", "route", "status"], registry=registry
        )
        self._librarian_errors = Counter(
            "pair_librarian_errors", "Questions that ended with an error.", ["librarian", "code"], registry=registry
        )

        def summary(name: str, text: str, label: str = "kb_id") -> Summary:
            return Summary(name, f"{text}, in seconds.", [label], registry=registry)

        self._timings: dict[str, Histogram | Summary] = {
            "route_stats": Histogram(
                "pair_http_request_duration_seconds",
                "Duration of requests, in seconds.",
                ["method", "route"],
                buckets=BUCKETS_SECONDS,
                registry=registry,
            ),
            "librarian_stats": summary("pair_librarian_duration_seconds", "Duration of answers", "librarian"),
            "query_stats": summary("pair_queries_duration_seconds", "Duration of queries"),
            "ingest_stats": summary("pair_ingests_duration_seconds", "Duration of writes"),
            "care": summary("pair_compaction_duration_seconds", "Duration of compactions"),
        }
        self._kb_counters = {
            (group, key): Counter(name, text, ["kb_id"], registry=registry)
            for group, counters in _KB_COUNTERS.items()
            for key, (name, text) in counters.items()
        }
        self._lock = threading.Lock()
        self._extremes: dict[tuple[str, ...], tuple[float, float]] = {}
        """The shortest and the longest duration in milliseconds, by group and labels."""
        self._live_shards: dict[str, int] = {}
        """Number of live shards of each KB at the last count."""
        self._top_distances: collections.Counter[str] = collections.Counter()
        self._cache: collections.Counter[str] = collections.Counter()
        self._evictions: collections.Counter[str] = collections.Counter()
        self._recent: collections.deque[Json] = collections.deque(maxlen=_RECENT)
        self._history = RequestHistory()

    def note_request(self, route: str, status: int, milliseconds: float, log_fields: Json, uptime: float) -> None:
        """Count a finished request. `uptime`: seconds since the start."""
        method, _, path = route.partition(" ")
        with self._lock:
            self._history.add(uptime, status >= 400, milliseconds)
        self._requests.labels(method, path, status).inc()
        self._note_time("route_stats", milliseconds, method, path)
        self._recent.append(log_fields)

    def note_cached_query(self, kb_id: str, milliseconds: float, results: int) -> None:
        self._note_time("query_stats", milliseconds, kb_id)
        self._count(kb_id, "query_stats", {"total_results": results, "known": 1})

    def note_query(self, kb_id: str, milliseconds: float, hits: Any) -> None:
        self._note_time("query_stats", milliseconds, kb_id)
        counts = {"total_results": len(hits), "shards_asked": hits.shards_asked, "shard_failures": len(hits.faults)}
        self._count(kb_id, "query_stats", {**counts, "capped": hits.shards_asked < self._live_shards.get(kb_id, 0)})
        if len(hits) and hits[0].distance is not None:
            with self._lock:
                self._top_distances[kb_id] += hits[0].distance

    def note_failure(self, kb_id: str, group: str, milliseconds: float) -> None:
        """Count a failed query or write. `group`: `query_stats` or `ingest_stats`."""
        if kb_id in self._live_shards:
            self._note_time(group, milliseconds, kb_id)
            self._count(kb_id, group, {"error_count": 1})

    def note_write(self, kb_id: str, milliseconds: float, report: Any) -> None:
        self._note_time("ingest_stats", milliseconds, kb_id)
        counts = {
            "total_docs": report.added + report.replaced,
            "unchanged_docs": report.unchanged,
            "total_chunks": report.chunks,
            "deleted_docs": report.deleted,
        }
        self._count(kb_id, "ingest_stats", counts)
        self._count(kb_id, "care", {"cas_conflicts": report.conflicts})

    def note_lease_conflict(self, kb_id: str) -> None:
        if kb_id in self._live_shards:
            self._count(kb_id, "care", {"lease_conflicts": 1})

    def note_compaction(self, kb_id: str, seconds: float, conflicts: int, is_good: bool) -> None:
        self._timings["care"].labels(kb_id).observe(seconds)
        counts = {"compaction_runs": 1, "compaction_failures": not is_good, "cas_conflicts": conflicts}
        self._count(kb_id, "care", counts)

    def note_sweep(self, report: Any) -> None:
        with self._lock:
            self._evictions.update(ttl=report.evicted_ttl, size=report.evicted_size)

    def note_prefetch(self, report: Any) -> None:
        with self._lock:
            self._cache.update(prefetched_files=report.files, prefetched_bytes=report.fetched_bytes)

    def note_ask(self, librarian: str, milliseconds: float, error_code: str) -> None:
        self._note_time("librarian_stats", milliseconds, librarian)
        if error_code:
            self._librarian_errors.labels(librarian, error_code).inc()

    def note_shards(self, shards: Mapping[str, int]) -> None:
        """Store the number of live shards of each KB."""
        for kb_id, count in shards.items():
            self._count(kb_id, "care", {})
            self._live_shards[kb_id] = count

    def _note_time(self, group: str, milliseconds: float, *labels: str) -> None:
        self._timings[group].labels(*labels).observe(milliseconds / 1000)
        with self._lock:
            least, most = self._extremes.get((group, *labels), (milliseconds, milliseconds))
            self._extremes[group, *labels] = min(least, milliseconds), max(most, milliseconds)

    def _count(self, kb_id: str, group: str, counts: Mapping[str, int]) -> None:
        if kb_id not in self._live_shards:
            self._live_shards[kb_id] = 0
            per_kb = [self._timings["query_stats"], self._timings["ingest_stats"], self._timings["care"]]
            for metric in (*per_kb, *self._kb_counters.values()):
                metric.labels(kb_id)  # a KB has all of its metrics, some of them 0
        for key, count in counts.items():
            self._kb_counters[group, key].labels(kb_id).inc(count)

    def to_json(self, uptime: float) -> Json:
        """Return the metrics. `uptime`: seconds since the start."""
        with self._lock:
            history = self._history.to_json(uptime)
        failed: collections.Counter[tuple[str, str]] = collections.Counter()
        for (method, path, status), count in _read(self._requests, "_total").items():
            failed["route_stats", f"{method} {path}"] += int(count) if int(status) >= 400 else 0
        for (librarian, _), count in _read(self._librarian_errors, "_total").items():
            failed["librarian_stats", librarian] += int(count)
        groups = ("route_stats", "librarian_stats", "query_stats", "ingest_stats")
        stats = {group: self._describe_times(group, failed) for group in groups}
        compactions = _read(self._timings["care"], "_sum")
        stats["care"] = {kb_id: {"compaction_seconds": round(seconds, 3)} for (kb_id,), seconds in compactions.items()}
        for (group, key), counter in self._kb_counters.items():
            for (kb_id,), count in _read(counter, "_total").items():
                stats[group][kb_id][key] = int(count)
        for kb_id, query_stats in stats["query_stats"].items():
            query_stats["top_distance_sum"] = round(self._top_distances[kb_id], 6)
        return {
            **stats,
            "refused": {reason: int(count) for (reason,), count in _read(self.refused, "_total").items()},
            "cache": {
                "evictions": dict(self._evictions),
                "budget_exceeded": int(_read(self.cache_budget_exceeded, "_total")[()]),
                "prefetched_files": self._cache["prefetched_files"],
                "prefetched_bytes": self._cache["prefetched_bytes"],
            },
            "recent_requests": list(self._recent),
            "history": history,
        }

    def _describe_times(self, group: str, failed: Mapping[tuple[str, str], int]) -> dict[str, Json]:
        sums, described = _read(self._timings[group], "_sum"), {}
        for labels, count in _read(self._timings[group], "_count").items():
            least, most = self._extremes.get((group, *labels), (0.0, 0.0))
            described[" ".join(labels)] = {
                "count": int(count),
                "error_count": failed[group, " ".join(labels)],
                "latency_sum_ms": round(sums[labels] * 1000, 3),
                "latency_min_ms": round(least, 3),
                "latency_max_ms": round(most, 3),
            }
        return described


def _read(metric: Counter | Histogram | Summary, suffix: str) -> dict[tuple[str, ...], float]:
    """Return the values of a metric by labels."""
    samples = [sample for family in metric.collect() for sample in family.samples]
    return {tuple(sample.labels.values()): sample.value for sample in samples if sample.name.endswith(suffix)}
