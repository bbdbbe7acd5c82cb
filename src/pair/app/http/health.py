"""Health, readiness and metrics of the server: as JSON, for Prometheus, and as OpenMetrics."""

import gc
import os
import resource
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fastapi import APIRouter
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
from starlette.responses import Response

from pair import errors
from pair.app.http import response_models
from pair.app.http.access import Anyone, Reader
from pair.app.http.openapi import describe
from pair.app.http.responses import answer
from pair.app.kb_access import KbService
from pair.app.metrics import BUCKETS_SECONDS, ServerMetrics
from pair.clock import to_timestamp
from pair.kb.open import DEFAULT_KB

router = APIRouter()

_BREAKER = {"closed": 0, "half-open": 1, "open": 2}
Json = dict[str, Any]


@router.get("/healthz", **describe(response_models.HealthResponse, "The process answers."))
async def healthz(_request: Anyone) -> Response:
    """Whether the process answers"""
    return answer({"status": "ok"})


@router.get("/readyz", **describe(response_models.ReadyResponse, "The default KB can be read.", 503))
async def readyz(request: Anyone) -> Response:
    """Whether it can serve requests"""
    service = request.service
    if service.is_stopping:
        raise errors.server_stopping()
    await service.read(lambda: service.kbs.get(DEFAULT_KB).stats())
    return answer({"status": "ready"})


@router.get("/metrics/app", **describe(response_models.MetricsResponse, "All metrics."))
async def app_metrics(request: Reader) -> Response:
    """Metrics as JSON"""
    request.check_sees_all()
    return answer(await request.service.read(lambda: take_snapshot(request.service)))


@router.get("/metrics/cache", **describe("application/openmetrics-text", "Metrics of shards and their cache."))
async def cache_metrics(request: Reader) -> Response:
    """Metrics of shards and their cache, as OpenMetrics"""
    request.check_sees_all()

    def write_text() -> bytes:
        registry = _registry(_cache_families(take_snapshot(request.service)))
        return bytes(openmetrics.generate_latest(registry))  # type: ignore[no-untyped-call]

    return Response(await request.service.read(write_text), media_type=openmetrics.CONTENT_TYPE_LATEST)


@router.get("/metrics", **describe("text/plain", "All metrics."))
async def metrics(request: Reader) -> Response:
    """Metrics for Prometheus"""
    request.check_sees_all()

    def write_text() -> bytes:
        snapshot = take_snapshot(request.service)
        families = [*_request_families(request.service.metrics), *_kb_families(snapshot), *_server_families(snapshot)]
        return prometheus.generate_latest(_registry([*families, *_cache_families(snapshot)]))

    return Response(await request.service.read(write_text), media_type=prometheus.CONTENT_TYPE_LATEST)


def take_snapshot(service: KbService) -> Json:
    kbs = _read_stats(service)
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {
        **service.metrics.to_json({kb_id: stats.get("shards", 0) for kb_id, stats in kbs.items()}),
        "embed_stats": {kb_id: count.to_json() for kb_id, count in service.kbs.embedding.items()},
        "kbs": kbs,
        "care": {kb_id: kb.care.to_json() for kb_id, kb in dict(service.metrics.kbs).items()},
        "librarians": {kb_id: dict(desk.registry.breakers()) for kb_id, desk in service.kbs.desks().items()},
        "background": {job.name: job.to_json() for job in service.jobs},
        "runtime": {
            "peak_memory_bytes": used.ru_maxrss * (1 if sys.platform == "darwin" else 1024),
            "cpu_seconds": round(used.ru_utime + used.ru_stime, 3),
            "threads": threading.active_count(),
            "num_gc": sum(generation["collections"] for generation in gc.get_stats()),
            "processors": os.cpu_count(),
        },
        "uptime_seconds": round((service.clock.now() - service.started_at).total_seconds(), 3),
        "start_time": to_timestamp(service.started_at),
    }


def _read_stats(service: KbService) -> dict[str, Json]:
    """Return the statistics of open KBs; of one that cannot be read, the error."""
    kbs: dict[str, Json] = {}
    for kb_id, kb in service.kbs.opened().items():
        try:
            stats = kb.stats()
        except errors.PairError as fault:
            kbs[kb_id] = {"error": fault.public_message}
            continue
        if stats is not None:
            kbs[kb_id] = stats.to_json()
    return kbs


class _Collector:
    """Families in the form that the library collects."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterator[Metric]:
        return iter(self._families)


def _registry(families: Iterable[Metric]) -> CollectorRegistry:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(families))
    return registry


def _gauge(name: str, about: str, label: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(name, about, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def _counter(name: str, about: str, label: str, values: Mapping[str, float]) -> Metric:
    family = CounterMetricFamily(name, about, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def _kb_counters(snapshot: Mapping[str, Any], *rows: tuple[str, str, str, str]) -> Iterator[Metric]:
    """Yield a counter of KBs for each row: its name and text, and where its values are in the snapshot."""
    for name, about, group, field in rows:
        yield _counter(f"pair_{name}", about, "kb_id", _select(snapshot[group], field))


def _select(groups: Mapping[str, Any], field: str) -> dict[str, float]:
    """Return one value of each KB that has it."""
    return {kb_id: values[field] for kb_id, values in groups.items() if field in values}


def _cache_families(snapshot: Mapping[str, Any]) -> Iterator[Metric]:
    caches = _select(snapshot["kbs"], "cache")
    by_age = snapshot["cache"]["evictions"].get("ttl", 0)
    evictions = {"ttl": by_age, "size": max(0, sum(_select(caches, "evictions").values()) - by_age)}
    yield _counter("pair_cache_evictions", "Shards evicted from the cache", "reason", evictions)
    exceeded = snapshot["cache"]["budget_exceeded"]
    yield CounterMetricFamily("pair_cache_budget_exceeded", "Times the budget could not be met", value=exceeded)
    size = max(_select(caches, "size_bytes").values(), default=0)
    yield GaugeMetricFamily("pair_cache_bytes_current", "Bytes of fetched shards", value=size)
    yield _counter("pair_shard_cache_hits", "Shards found open or on disk", "kb_id", _select(caches, "hits"))
    yield _counter("pair_shard_cache_misses", "Shards that were fetched", "kb_id", _select(caches, "misses"))
    yield _gauge("pair_shard_count", "Live shards", "kb_id", _select(snapshot["kbs"], "shards"))
    yield from _kb_counters(
        snapshot,
        ("query_shard_fanout_used", "Shards that queries asked", "query_stats", "shards_asked"),
        ("query_shard_fanout_capped", "Queries that asked fewer shards than there were", "query_stats", "capped"),
        ("query_shard_exec", "Shards that were searched", "query_stats", "shards_asked"),
        ("query_shard_exec_failures", "Shards that could not be searched", "query_stats", "shard_failures"),
        ("compaction_runs", "Compactions", "care", "compaction_runs"),
        ("compaction_failures", "Compactions that failed", "care", "compaction_failures"),
    )
    durations = SummaryMetricFamily("pair_compaction_duration_seconds", "Time compactions took", labels=["kb_id"])
    for kb_id, care in snapshot["care"].items():
        durations.add_metric([kb_id], care["compaction_runs"], care["compaction_seconds"])
    yield durations
    conflicts = _select(snapshot["care"], "cas_conflicts")
    yield _counter("pair_manifest_cas_conflicts", "Swaps of a manifest that another writer won", "kb_id", conflicts)


def _request_families(metrics: ServerMetrics) -> Iterator[Metric]:
    with metrics.lock:
        requests = CounterMetricFamily("pair_http_requests", "Requests", labels=["method", "route", "status"])
        for (route, status), count in metrics.statuses.items():
            requests.add_metric([*route.split(" ", 1), str(status)], count)
        yield requests
        durations = HistogramMetricFamily("pair_http_request_duration_seconds", "Time", labels=["method", "route"])
        for route, timing in metrics.routes.items():
            total, buckets = 0, []
            for edge, count in zip([*map(str, BUCKETS_SECONDS), "+Inf"], timing.buckets, strict=True):
                total += count
                buckets.append((edge, total))
            durations.add_metric(route.split(" ", 1), buckets, timing.latency_sum_ms / 1000)
        yield durations
        yield GaugeMetricFamily("pair_http_requests_in_flight", "Requests under way", value=metrics.in_flight)
        yield _counter("pair_http_refused", "Requests that were not let in", "reason", metrics.refused)
        failed = CounterMetricFamily("pair_librarian_errors", "Questions that failed", labels=["librarian", "code"])
        for (librarian, code), count in metrics.librarian_errors.items():
            failed.add_metric([librarian, code], count)
        yield failed
        asked = SummaryMetricFamily("pair_librarian_duration_seconds", "Time answers took", labels=["librarian"])
        for librarian, timing in metrics.librarians.items():
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
        yield _gauge(f"pair_kb_{field}", about, "kb_id", _select(snapshot["kbs"], field))
    for name, group in (("queries", "query_stats"), ("ingests", "ingest_stats"), ("embeddings", "embed_stats")):
        family = SummaryMetricFamily(f"pair_{name}_duration_seconds", f"Time of {name}", labels=["kb_id"])
        for kb_id, figures in snapshot[group].items():
            family.add_metric([kb_id], figures["count"], figures["latency_sum_ms"] / 1000)
        yield family
        yield _counter(f"pair_{name}_errors", f"Failed {name}", "kb_id", _select(snapshot[group], "error_count"))
    about = "By requests to this server"
    yield from _kb_counters(
        snapshot,
        ("ingest_docs", about, "ingest_stats", "total_docs"),
        ("ingest_chunks", about, "ingest_stats", "total_chunks"),
        ("ingest_unchanged_docs", about, "ingest_stats", "unchanged_docs"),
        ("ingest_deleted_docs", about, "ingest_stats", "deleted_docs"),
        ("queries_known", "Queries that were answered from memory", "query_stats", "known"),
        ("query_results", "Results", "query_stats", "total_results"),
        ("lease_conflicts", "Writes given up as others wrote", "care", "lease_conflicts"),
    )


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
