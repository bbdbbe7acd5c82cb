"""Health, readiness and metrics of the server: as JSON, for Prometheus, and as OpenMetrics."""

import gc
import os
import resource
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

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
from pair.kb.open import DEFAULT_KB

router = APIRouter()

_BREAKER = {"closed": 0, "half-open": 1, "open": 2}
_CACHE_METRICS = ("pair_cache_", "pair_shard_", "pair_query_shard_", "pair_compaction_", "pair_manifest_")
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
    kbs: dict[str, dict[str, Any]]
    care: dict[str, dict[str, float]]
    librarians: dict[str, dict[str, str]]
    background: dict[str, dict[str, Any]]
    runtime: RuntimeMetrics
    uptime_seconds: float
    start_time: str


@router.get("/healthz", **describe(HealthResponse, "The process answers."))
async def healthz(_request: Anyone) -> Response:
    """Check that the process answers"""
    return answer({"status": "ok"})


@router.get("/readyz", **describe(ReadyResponse, "The default KB can be read.", 503))
async def readyz(request: Anyone) -> Response:
    """Check that the server can answer queries"""
    service = request.service
    if service.is_stopping:
        raise errors.server_stopping()
    await service.read(lambda: service.kbs.get(DEFAULT_KB).stats())
    return answer({"status": "ready"})


@router.get("/metrics/app", **describe(MetricsResponse, "All metrics."))
async def app_metrics(request: Reader) -> Response:
    """Get metrics as JSON"""
    request.check_sees_all()
    return answer(await request.service.read(lambda: take_snapshot(request.service)))


@router.get("/metrics/cache", **describe("application/openmetrics-text", "Metrics of shards and their cache."))
async def cache_metrics(request: Reader) -> Response:
    """Get metrics of shards and their cache as OpenMetrics"""
    request.check_sees_all()

    collector: Any = _Collector(request.service, _CACHE_METRICS)
    text = await request.service.read(lambda: openmetrics.generate_latest(collector))  # type: ignore[no-untyped-call]
    return Response(text, media_type=openmetrics.CONTENT_TYPE_LATEST)


@router.get("/metrics", **describe("text/plain", "All metrics."))
async def metrics(request: Reader) -> Response:
    """Get metrics for Prometheus"""
    request.check_sees_all()
    collector: Any = _Collector(request.service)
    text = await request.service.read(lambda: prometheus.generate_latest(collector))
    return Response(text, media_type=prometheus.CONTENT_TYPE_LATEST)


def take_snapshot(service: KbService) -> Json:
    kbs = _read_stats(service)
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {
        **service.metrics.to_json(),
        "embed_stats": {kb_id: embedder.to_json() for kb_id, embedder in service.kbs.embedders.items()},
        "kbs": kbs,
        "librarians": {
            kb_id: dict(librarians.registry.breakers()) for kb_id, librarians in service.kbs.open_librarians().items()
        },
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
    for kb_id, kb in service.kbs.open_kbs().items():
        try:
            stats = kb.stats()
        except errors.PairError as fault:
            kbs[kb_id] = {"error": fault.public_message}
            continue
        if stats is not None:
            kbs[kb_id] = stats.to_json()
    service.metrics.note_shards({kb_id: stats.get("shards", 0) for kb_id, stats in kbs.items()})
    return kbs


@dataclass(frozen=True, eq=False)
class _Collector:
    """The metrics whose names start with one of these prefixes, as the library collects them."""

    service: KbService
    prefixes: tuple[str, ...] = ("",)

    def collect(self) -> Iterator[Metric]:
        return (family for family in _collect(self.service) if family.name.startswith(self.prefixes))


def _collect(service: KbService) -> Iterator[Metric]:
    """Yield all metrics: what was counted, and the state of KBs, background jobs, librarians and the process."""
    snapshot = take_snapshot(service)
    yield from service.metrics.registry.collect()
    for kind, name, text, label, values in _list_states(snapshot):
        family = kind(name, text, labels=[label])
        for key, value in values.items():
            family.add_metric([key], float(value))
        yield family
    durations = SummaryMetricFamily("pair_embeddings_duration_seconds", "Duration of embeddings.", labels=["kb_id"])
    for kb_id, count in snapshot["embed_stats"].items():
        durations.add_metric([kb_id], count["count"], count["latency_sum_ms"] / 1000)
    yield durations
    breakers = GaugeMetricFamily(
        "pair_librarian_breaker",
        "Circuit breaker of a librarian: 0 closed, 1 half-open, 2 open.",
        labels=["kb_id", "librarian"],
    )
    for kb_id, states in snapshot["librarians"].items():
        for librarian, state in states.items():
            breakers.add_metric([kb_id, librarian], _BREAKER.get(state, 2))
    yield breakers
    runtime, caches = snapshot["runtime"], _select(snapshot["kbs"], "cache")
    size = max(_select(caches, "size_bytes").values(), default=0)
    yield GaugeMetricFamily("pair_cache_bytes_current", "Bytes of fetched shards.", value=size)
    yield GaugeMetricFamily("pair_uptime_seconds", "Time since the server started.", value=snapshot["uptime_seconds"])
    yield GaugeMetricFamily("pair_peak_memory_bytes", "Peak memory of the process.", value=runtime["peak_memory_bytes"])
    yield GaugeMetricFamily("pair_threads", "Threads of the process.", value=runtime["threads"])
    yield CounterMetricFamily("pair_cpu_seconds", "CPU time of the process.", value=runtime["cpu_seconds"])


def _list_states(snapshot: Json) -> Iterator[tuple[type[Any], str, str, str, dict[str, Any]]]:
    """Yield metrics with one label: the kind, the name and the HELP text, the label, and the values by label."""
    counter, gauge = CounterMetricFamily, GaugeMetricFamily
    kbs, jobs, caches = snapshot["kbs"], snapshot["background"], _select(snapshot["kbs"], "cache")
    yield gauge, "pair_kb_documents", "Documents.", "kb_id", _select(kbs, "documents")
    yield gauge, "pair_kb_chunks", "Chunks.", "kb_id", _select(kbs, "chunks")
    yield gauge, "pair_kb_size_bytes", "Bytes of live shards.", "kb_id", _select(kbs, "size_bytes")
    deleted = _select(kbs, "deleted_documents")
    yield gauge, "pair_kb_deleted_documents", "Deleted documents not yet removed by compaction.", "kb_id", deleted
    yield gauge, "pair_kb_manifest_version", "Current version.", "kb_id", _select(kbs, "manifest_version")
    yield gauge, "pair_shard_count", "Live shards.", "kb_id", _select(kbs, "shards")
    yield counter, "pair_shard_cache_hits", "Shards found open or on disk.", "kb_id", _select(caches, "hits")
    yield counter, "pair_shard_cache_misses", "Shards that were fetched.", "kb_id", _select(caches, "misses")
    selected = _select(snapshot["query_stats"], "shards_asked")
    yield counter, "pair_query_shard_fanout_used", "Shards selected by queries.", "kb_id", selected
    failed = _select(snapshot["embed_stats"], "error_count")
    yield counter, "pair_embeddings_errors", "Failed embeddings.", "kb_id", failed
    by_age = snapshot["cache"]["evictions"].get("ttl", 0)
    evictions = {"ttl": by_age, "size": max(0, sum(_select(caches, "evictions").values()) - by_age)}
    yield counter, "pair_cache_evictions", "Shards evicted from the cache.", "reason", evictions
    yield counter, "pair_background_runs", "Runs of background jobs.", "job", _select(jobs, "runs")
    yield counter, "pair_background_failures", "Failed runs of background jobs.", "job", _select(jobs, "failures")
    yield counter, "pair_background_skipped", "Skipped runs of background jobs.", "job", _select(jobs, "skipped")
    yield counter, "pair_background_seconds", "Time of background jobs.", "job", _select(jobs, "total_seconds")
    yield gauge, "pair_background_running", "Whether a background job is running.", "job", _select(jobs, "running")
    report = jobs.get("sync", {}).get("last_report", {})
    outcomes = {name: report[name] for name in ("added", "changed", "removed", "failed", "pending") if name in report}
    yield gauge, "pair_sync_last_sources", "Sources of the last sync.", "outcome", outcomes


def _select(groups: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return one value of each group that has it."""
    return {name: values[key] for name, values in groups.items() if key in values}
