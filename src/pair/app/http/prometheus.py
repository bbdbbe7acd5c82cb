"""Figures as text for Prometheus, and those of the cache and the shards as OpenMetrics."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client import exposition as prometheus
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.openmetrics import exposition as openmetrics

from pair.app.metrics import BUCKETS_SECONDS, ServerMetrics

PROMETHEUS_TYPE = prometheus.CONTENT_TYPE_LATEST
OPENMETRICS_TYPE = openmetrics.CONTENT_TYPE_LATEST
_BREAKER = {"closed": 0, "half-open": 1, "open": 2}


class _Collected:
    """Families that are there already, in the shape that the library asks for."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterator[Metric]:
        return iter(self._families)


def cache_text(snapshot: Mapping[str, Any]) -> bytes:
    """Ends with `# EOF`."""
    text: bytes = openmetrics.generate_latest(_registry(_cache_families(snapshot)))  # type: ignore[no-untyped-call]
    return text


def prometheus_text(snapshot: Mapping[str, Any], figures: ServerMetrics) -> bytes:
    families = [*_request_families(figures), *_kb_families(snapshot), *_server_families(snapshot)]
    return bytes(prometheus.generate_latest(_registry([*families, *_cache_families(snapshot)])))


def _registry(families: Iterable[Metric]) -> CollectorRegistry:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collected(families))
    return registry


def _counter(name: str, about: str, label: str, values: Mapping[str, float]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, about, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def _gauge(name: str, about: str, label: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, about, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def _of(snapshot: Mapping[str, Any], group: str, field: str) -> dict[str, float]:
    """A figure of each KB."""
    return {kb_id: each[field] for kb_id, each in snapshot[group].items() if field in each}


def _cache_of(snapshot: Mapping[str, Any], field: str) -> dict[str, float]:
    return {kb_id: each["cache"][field] for kb_id, each in snapshot["kbs"].items() if "cache" in each}


def _cache_families(snapshot: Mapping[str, Any]) -> Iterator[Metric]:
    evictions = _cache_of(snapshot, "evictions")
    by_age = snapshot["cache"]["evictions"].get("ttl", 0)
    kinds = {"ttl": by_age, "size": max(0, sum(evictions.values()) - by_age)}
    yield _counter("pair_cache_evictions", "Shards evicted from the cache", "reason", kinds)
    yield CounterMetricFamily(
        "pair_cache_budget_exceeded", "Times the budget could not be met", value=snapshot["cache"]["budget_exceeded"]
    )
    sizes = _cache_of(snapshot, "size_bytes")
    yield GaugeMetricFamily("pair_cache_bytes_current", "Bytes of fetched shards", value=max(sizes.values(), default=0))
    yield _counter("pair_shard_cache_hits", "Shards found open or on disk", "kb_id", _cache_of(snapshot, "hits"))
    yield _counter("pair_shard_cache_misses", "Shards that were fetched", "kb_id", _cache_of(snapshot, "misses"))
    yield _gauge("pair_shard_count", "Live shards", "kb_id", _of(snapshot, "kbs", "shards"))
    asked = _of(snapshot, "query_stats", "shards_asked")
    yield _counter("pair_query_shard_fanout_used", "Shards that queries asked", "kb_id", asked)
    yield _counter(
        "pair_query_shard_fanout_capped",
        "Queries that asked fewer shards than there were",
        "kb_id",
        _of(snapshot, "query_stats", "capped"),
    )
    yield _counter("pair_query_shard_exec", "Shards that were searched", "kb_id", asked)
    failed = _of(snapshot, "query_stats", "shard_failures")
    yield _counter("pair_query_shard_exec_failures", "Shards that could not be searched", "kb_id", failed)
    runs, seconds = _of(snapshot, "care", "compaction_runs"), _of(snapshot, "care", "compaction_seconds")
    yield _counter("pair_compaction_runs", "Compactions", "kb_id", runs)
    failures = _of(snapshot, "care", "compaction_failures")
    yield _counter("pair_compaction_failures", "Compactions that failed", "kb_id", failures)
    durations = SummaryMetricFamily("pair_compaction_duration_seconds", "Time compactions took", labels=["kb_id"])
    for kb_id, count in runs.items():
        durations.add_metric([kb_id], int(count), seconds[kb_id])
    yield durations
    conflicts = _of(snapshot, "care", "cas_conflicts")
    yield _counter("pair_manifest_cas_conflicts", "Swaps of a manifest that another writer won", "kb_id", conflicts)


def _request_families(figures: ServerMetrics) -> Iterator[Metric]:
    with figures.lock:
        requests = CounterMetricFamily("pair_http_requests", "Requests", labels=["method", "route", "status"])
        for (route, status), count in figures.statuses.items():
            requests.add_metric([*route.split(" ", 1), str(status)], count)
        yield requests
        durations = HistogramMetricFamily("pair_http_request_duration_seconds", "Time", labels=["method", "route"])
        for route, timing in figures.routes.items():
            total, buckets = 0, []
            for edge, count in zip([*map(str, BUCKETS_SECONDS), "+Inf"], timing.buckets, strict=True):
                total += count
                buckets.append((edge, total))
            durations.add_metric(route.split(" ", 1), buckets, timing.latency_sum_ms / 1000)
        yield durations
        yield GaugeMetricFamily("pair_http_requests_in_flight", "Requests under way", value=figures.in_flight)
        yield _counter("pair_http_refused", "Requests that were not let in", "reason", figures.refused)
        failed = CounterMetricFamily("pair_librarian_errors", "Questions that failed", labels=["librarian", "code"])
        for (librarian, code), count in figures.librarian_errors.items():
            failed.add_metric([librarian, code], count)
        yield failed
        asked = SummaryMetricFamily("pair_librarian_duration_seconds", "Time answers took", labels=["librarian"])
        for librarian, timing in figures.librarians.items():
            asked.add_metric([librarian], timing.count, timing.latency_sum_ms / 1000)
        yield asked


def _kb_families(snapshot: Mapping[str, Any]) -> Iterator[Metric]:
    for field, about in (
        ("documents", "Documents"),
        ("chunks", "Chunks"),
        ("size_bytes", "Bytes of live shards"),
        ("deleted_documents", "Documents that still take room"),
        ("manifest_version", "Number of the manifest"),
    ):
        yield _gauge(f"pair_kb_{field}", about, "kb_id", _of(snapshot, "kbs", field))
    for name, group in (("queries", "query_stats"), ("ingests", "ingest_stats"), ("embeddings", "embed_stats")):
        family = SummaryMetricFamily(f"pair_{name}_duration_seconds", f"Time of {name}", labels=["kb_id"])
        for kb_id, each in snapshot[group].items():
            family.add_metric([kb_id], each["count"], each["latency_sum_ms"] / 1000)
        yield family
        yield _counter(f"pair_{name}_errors", f"Failed {name}", "kb_id", _of(snapshot, group, "error_count"))
    for field in ("total_docs", "total_chunks", "unchanged_docs", "deleted_docs"):
        name = f"pair_ingest_{field.removeprefix('total_')}"
        yield _counter(name, "By requests to this server", "kb_id", _of(snapshot, "ingest_stats", field))
    known = _of(snapshot, "query_stats", "known")
    yield _counter("pair_queries_known", "Queries that were answered from memory", "kb_id", known)
    yield _counter("pair_query_results", "Results", "kb_id", _of(snapshot, "query_stats", "total_results"))
    conflicts = _of(snapshot, "care", "lease_conflicts")
    yield _counter("pair_lease_conflicts", "Writes given up as others wrote", "kb_id", conflicts)


def _server_families(snapshot: Mapping[str, Any]) -> Iterator[Metric]:
    for field in ("runs", "failures", "skipped", "total_seconds"):
        values = {name: job[field] for name, job in snapshot["background"].items()}
        yield _counter(f"pair_background_{field.replace('total_', '')}", "Work done by itself", "job", values)
    running = {name: float(job["running"]) for name, job in snapshot["background"].items()}
    yield _gauge("pair_background_running", "Whether it is at work now", "job", running)
    report = snapshot["background"].get("sync", {}).get("last_report", {})
    counts = {name: report[name] for name in ("added", "changed", "removed", "failed", "pending") if name in report}
    yield _gauge("pair_sync_last_sources", "Sources in the last sync, by what became of them", "outcome", counts)
    breakers = GaugeMetricFamily(
        "pair_librarian_breaker", "0 closed, 1 half-open, 2 open", labels=["kb_id", "librarian"]
    )
    for kb_id, states in snapshot["librarians"].items():
        for librarian, state in states.items():
            breakers.add_metric([kb_id, librarian], _BREAKER.get(state, 2))
    yield breakers
    yield GaugeMetricFamily("pair_uptime_seconds", "Time since the start", value=snapshot["uptime_seconds"])
    for field in ("peak_memory_bytes", "threads"):
        yield GaugeMetricFamily(f"pair_{field}", "Of the process", value=snapshot["runtime"][field])
    yield CounterMetricFamily("pair_cpu_seconds", "Of the process", value=snapshot["runtime"]["cpu_seconds"])
