"""Health, readiness and metrics of the server, as JSON, for Prometheus and as OpenMetrics."""

import gc
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from fastapi import APIRouter
from prometheus_client import exposition as prometheus
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.openmetrics import exposition as openmetrics
from pydantic import BaseModel
from starlette.responses import Response

from pair import errors
from pair.app.http.context import Anyone, Reader
from pair.app.http.openapi import describe
from pair.app.http.responses import answer
from pair.app.kb_access import KbService
from pair.clock import to_timestamp
from pair.files import resource
from pair.kb.open import DEFAULT_KB

router = APIRouter()

_BREAKER = {"closed": 0, "half-open": 1, "open": 2}
_CACHE_METRICS = ("pair_cache_", "pair_shard_", "pair_query_shard_", "pair_compaction_", "pair_manifest_")
_COUNTER, _GAUGE = CounterMetricFamily, GaugeMetricFamily
_STATES = (
    (_GAUGE, "pair_kb_documents", "kbs", "documents", "Number of documents."),
    (_GAUGE, "pair_kb_chunks", "kbs", "chunks", "Number of chunks."),
    (_GAUGE, "pair_kb_size_bytes", "kbs", "size_bytes", "Size of the live shards, in bytes."),
    (_GAUGE, "pair_kb_deleted_documents", "kbs", "deleted_documents", "Deleted documents that await compaction."),
    (_GAUGE, "pair_kb_manifest_version", "kbs", "manifest_version", "Number of the current version."),
    (_GAUGE, "pair_shard_count", "kbs", "shards", "Number of live shards."),
    (_COUNTER, "pair_shard_cache_hits", "caches", "hits", "Shard reads that the cache answered."),
    (_COUNTER, "pair_shard_cache_misses", "caches", "misses", "Shard reads that downloaded the shard."),
    (_COUNTER, "pair_query_shard_fanout_used", "query_stats", "shards_asked", "Shards selected by queries."),
    (_COUNTER, "pair_embeddings_errors", "embed_stats", "error_count", "Failed calls to the embedder."),
    (_COUNTER, "pair_background_runs", "background", "runs", "Runs of a background job."),
    (_COUNTER, "pair_background_failures", "background", "failures", "Failed runs of a background job."),
    (_COUNTER, "pair_background_skipped", "background", "skipped", "Skipped runs of a background job."),
    (_COUNTER, "pair_background_seconds", "background", "total_seconds", "Duration of a background job, in seconds."),
    (_GAUGE, "pair_background_running", "background", "running", "1 while a background job runs, 0 otherwise."),
)
"""Metrics read from the snapshot: the type, the name, the group and key of the snapshot, and the HELP text."""
Json = dict[str, Any]


class HealthResponse(BaseModel):
    status: Literal["ok"]


class ReadyResponse(BaseModel):
    status: Literal["ready"]


class TimingMetrics(BaseModel, extra="allow"):
    count: int
    error_count: int
    latency_sum_ms: float


class CacheMetrics(BaseModel):
    evictions: dict[str, int]
    budget_exceeded: int
    prefetched_files: int
    prefetched_bytes: int


class HistoryMetrics(BaseModel):
    interval_seconds: float
    requests: list[int]
    errors: list[int]
    latency_ms: list[float]


class RuntimeMetrics(BaseModel):
    peak_memory_bytes: int
    cpu_seconds: float
    threads: int
    num_gc: int
    processors: int | None


class MetricsResponse(BaseModel):
    route_stats: dict[str, TimingMetrics]
    query_stats: dict[str, TimingMetrics]
    ingest_stats: dict[str, TimingMetrics]
    embed_stats: dict[str, TimingMetrics]
    librarian_stats: dict[str, TimingMetrics]
    refused: dict[str, int]
    cache: CacheMetrics
    recent_requests: list[dict[str, Any]]
    history: HistoryMetrics
    kbs: dict[str, dict[str, Any]]
    care: dict[str, dict[str, float]]
    librarians: dict[str, dict[str, str]]
    background: dict[str, dict[str, Any]]
    runtime: RuntimeMetrics
    uptime_seconds: float
    start_time: str


@router.get("/healthz", **describe(HealthResponse))
async def healthz(_request: Anyone) -> Response:
    """Check that the server is running"""
    return answer({"status": "ok"})


@router.get("/readyz", **describe(ReadyResponse, 503))
async def readyz(request: Anyone) -> Response:
    """Check that the server can answer queries"""
    service = request.service
    if service.is_stopping:
        raise errors.server_stopping()
    await service.read(lambda: service.kbs.get(DEFAULT_KB).stats())
    return answer({"status": "ready"})


@router.get("/metrics/app", **describe(MetricsResponse))
async def app_metrics(request: Reader) -> Response:
    """Get metrics as JSON"""
    request.check_sees_all()
    return answer(await request.service.read(lambda: take_snapshot(request.service)))


@router.get("/metrics/cache", **describe("application/openmetrics-text"))
async def cache_metrics(request: Reader) -> Response:
    """Get metrics of shards and the shard cache"""
    request.check_sees_all()
    collector: Any = _Collector(request.service, _CACHE_METRICS)
    text = await request.service.read(lambda: openmetrics.generate_latest(collector))  # type: ignore[no-untyped-call]
    return Response(text, media_type=openmetrics.CONTENT_TYPE_LATEST)


@router.get("/metrics", **describe("text/plain"))
async def metrics(request: Reader) -> Response:
    """Get metrics for Prometheus"""
    request.check_sees_all()
    collector: Any = _Collector(request.service)
    text = await request.service.read(lambda: prometheus.generate_latest(collector))
    return Response(text, media_type=prometheus.CONTENT_TYPE_LATEST)


def take_snapshot(service: KbService) -> Json:
    """Return all metrics as JSON."""
    kbs = _read_stats(service)
    used, spent = resource and resource.getrusage(resource.RUSAGE_SELF), os.times()
    return {
        **service.metrics.to_json(service.uptime_seconds()),
        "embed_stats": {kb_id: embedder.to_json() for kb_id, embedder in service.kbs.embedders.items()},
        "kbs": kbs,
        "librarians": {
            kb_id: dict(librarians.registry.breakers()) for kb_id, librarians in service.kbs.open_librarians().items()
        },
        "background": {job.name: job.to_json() for job in service.jobs},
        "runtime": {
            "peak_memory_bytes": (used.ru_maxrss if used else 0) * (1 if sys.platform == "darwin" else 1024),
            "cpu_seconds": round(spent.user + spent.system, 3),
            "threads": threading.active_count(),
            "num_gc": sum(generation["collections"] for generation in gc.get_stats()),
            "processors": os.cpu_count(),
        },
        "uptime_seconds": round(service.uptime_seconds(), 3),
        "start_time": to_timestamp(service.started_at),
    }


def _read_stats(service: KbService) -> dict[str, Json]:
    """Return the statistics of each open KB, or the error if it cannot be read."""
    kbs: dict[str, Json] = {}
    for kb_id, kb in service.kbs.open_kbs().items():
        try:
            stats = kb.stats()
        except errors.PairError as fault:
            kbs[kb_id] = {"error": fault.public_message}
            continue
        if stats.manifest_version:
            kbs[kb_id] = stats.to_json()
    service.metrics.note_shards({kb_id: stats.get("shards", 0) for kb_id, stats in kbs.items()})
    return kbs


@dataclass(frozen=True, eq=False)
class _Collector:
    """A collector of the metrics whose names start with one of the prefixes."""

    service: KbService
    prefixes: tuple[str, ...] = ("",)

    def collect(self) -> Iterator[Metric]:
        families = (*self.service.metrics.registry.collect(), *_describe_state(take_snapshot(self.service)))
        return (family for family in families if family.name.startswith(self.prefixes))


def _describe_state(snapshot: Json) -> Iterator[Metric]:
    """Yield the metrics that are read from the state of the server, not counted by requests."""
    caches = _select(snapshot["kbs"], "cache")
    groups = {**snapshot, "caches": caches}
    for kind, name, group, key, text in _STATES:
        label = "job" if group == "background" else "kb_id"
        yield _describe(kind, name, text, label, _select(groups[group], key))
    by_age = snapshot["cache"]["evictions"].get("ttl", 0)
    evictions = {"ttl": by_age, "size": max(0, sum(_select(caches, "evictions").values()) - by_age)}
    yield _describe(_COUNTER, "pair_cache_evictions", "Shards evicted from the cache.", "reason", evictions)
    report = snapshot["background"].get("sync", {}).get("last_report", {})
    outcomes = {name: report[name] for name in ("added", "changed", "removed", "failed", "pending") if name in report}
    yield _describe(_GAUGE, "pair_sync_last_sources", "Sources of the last sync.", "outcome", outcomes)
    durations = SummaryMetricFamily(
        "pair_embeddings_duration_seconds", "Duration of calls to the embedder, in seconds.", labels=["kb_id"]
    )
    for kb_id, count in snapshot["embed_stats"].items():
        durations.add_metric([kb_id], count["count"], count["latency_sum_ms"] / 1000)
    yield durations
    text = "State of the circuit breaker of a librarian: 0 closed, 1 half-open, 2 open."
    breakers = _GAUGE("pair_librarian_breaker", text, labels=["kb_id", "librarian"])
    for kb_id, states in snapshot["librarians"].items():
        for librarian, state in states.items():
            breakers.add_metric([kb_id, librarian], _BREAKER.get(state, 2))
    yield breakers
    size, runtime = max(_select(caches, "size_bytes").values(), default=0), snapshot["runtime"]
    yield _GAUGE("pair_cache_bytes_current", "Size of the shard cache, in bytes.", value=size)
    yield _GAUGE("pair_uptime_seconds", "Seconds since the server started.", value=snapshot["uptime_seconds"])
    yield _GAUGE("pair_peak_memory_bytes", "Peak resident memory, in bytes.", value=runtime["peak_memory_bytes"])
    yield _GAUGE("pair_threads", "Number of threads.", value=runtime["threads"])
    yield _COUNTER("pair_cpu_seconds", "CPU time of the process, in seconds.", value=runtime["cpu_seconds"])


def _describe(kind: type[Any], name: str, text: str, label: str, values: Mapping[str, Any]) -> Metric:
    """Return a metric with one label. `values`: by label."""
    family: Any = kind(name, text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], float(value))
    return cast("Metric", family)


def _select(groups: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return the value of `key` from each group that has it."""
    return {name: values[key] for name, values in groups.items() if key in values}
