"""How the server is: alive, ready, and its figures."""

import gc
import os
import resource
import sys
import threading
from collections import Counter
from typing import Any

from starlette.responses import Response

from pair import errors
from pair.app.http import prometheus, schemas
from pair.app.http.context import RequestCall, Service, answer
from pair.app.http.metrics import KbMetrics
from pair.clock import to_timestamp
from pair.kb.open import DEFAULT_KB
from pair.kb.sync import SyncService


async def healthz(_service: Service, _call: RequestCall) -> Response:
    """The process answers; nothing else is looked at."""
    return answer({"status": "ok"})


async def readyz(service: Service, _call: RequestCall) -> Response:
    """The store can be read, and the server is not about to stop."""
    if service.is_stopping:
        raise errors.server_stopping()
    await service.reading(lambda: service.kbs.get(DEFAULT_KB).stats())
    return answer({"status": "ready"})


async def app_metrics(service: Service, call: RequestCall) -> Response:
    _check_sees_all(call)
    return answer(await service.reading(lambda: snapshot(service)))


async def cache_metrics(service: Service, call: RequestCall) -> Response:
    _check_sees_all(call)
    text = await service.reading(lambda: prometheus.cache_text(snapshot(service)))
    return Response(text, media_type=prometheus.OPENMETRICS_TYPE)


async def metrics(service: Service, call: RequestCall) -> Response:
    _check_sees_all(call)
    text = await service.reading(lambda: prometheus.prometheus_text(snapshot(service), service.figures))
    return Response(text, media_type=prometheus.PROMETHEUS_TYPE)


async def sync_state(service: Service, call: RequestCall) -> Response:
    """How each source stands, as the last run left it."""
    asked = call.parameters(schemas.SyncParameters)
    _check_sees_all(call)
    every = await service.reading(lambda: SyncService(service.settings).source_statuses())
    wanted = [each for each in every if asked.state in {None, each.state} and each.source_id > asked.after]
    shown = wanted[: asked.limit]
    job = next((each.to_json() for each in service.jobs if each.name == "sync"), None)
    return answer(
        {
            "enabled": job is not None,
            "run": job or {},
            "states": dict(Counter(each.state for each in every)),
            "sources": [each.to_json() for each in shown],
            "next": shown[-1].source_id if len(wanted) > len(shown) else None,
        }
    )


def _check_sees_all(call: RequestCall) -> None:
    if not call.principal.sees_all:
        raise errors.not_allowed("figures are about all knowledge bases, and these credentials are for some")


def snapshot(service: Service) -> dict[str, Any]:
    """Everything, as JSON."""
    stored = _stored(service)
    figures = service.figures
    with figures.lock:
        for kb_id, stats in stored.items():
            figures.of(kb_id).shards = stats.get("shards", 0)
        kbs = dict(figures.kbs)
        value: dict[str, Any] = {
            "route_stats": {route: timing.to_json() for route, timing in figures.routes.items()},
            "query_stats": {kb_id: _query_stats(each) for kb_id, each in kbs.items()},
            "ingest_stats": {kb_id: _ingest_stats(each) for kb_id, each in kbs.items()},
            "librarian_stats": {name: timing.to_json() for name, timing in figures.librarians.items()},
            "refused": dict(figures.refused),
            "cache": {
                "evictions": dict(figures.cache_evictions),
                "budget_exceeded": figures.cache_budget_exceeded,
                "prefetched_files": figures.prefetched_files,
                "prefetched_bytes": figures.prefetched_bytes,
            },
            "recent_requests": list(figures.recent),
        }
    value["embed_stats"] = {kb_id: count.to_json() for kb_id, count in service.kbs.embedding.items()}
    value["kbs"] = stored
    value["care"] = {
        kb_id: {
            "compaction_runs": each.compactions,
            "compaction_failures": each.compaction_failures,
            "compaction_seconds": round(each.compaction_seconds, 3),
            "cas_conflicts": each.cas_conflicts,
            "lease_conflicts": each.lease_conflicts,
        }
        for kb_id, each in kbs.items()
    }
    value["librarians"] = {kb_id: dict(desk.registry.breakers()) for kb_id, desk in service.kbs.desks().items()}
    value["background"] = {job.name: job.to_json() for job in service.jobs}
    value["runtime"] = _runtime()
    value["uptime_seconds"] = round((service.clock.now() - service.started_at).total_seconds(), 3)
    value["start_time"] = to_timestamp(service.started_at)
    return value


def _stored(service: Service) -> dict[str, dict[str, Any]]:
    """Of open KBs; one that cannot be read tells why."""
    found: dict[str, dict[str, Any]] = {}
    for kb_id, kb in service.kbs.opened().items():
        try:
            stats = kb.stats()
        except errors.PairError as fault:
            found[kb_id] = {"error": fault.public_message}
            continue
        if stats is not None:
            found[kb_id] = stats.to_json()
    return found


def _query_stats(figures: KbMetrics) -> dict[str, Any]:
    return {
        **figures.queries.to_json(),
        "total_results": figures.total_results,
        "top_distance_sum": round(figures.top_distance_sum, 6),
        "shards_asked": figures.shards_asked,
        "known": figures.queries_known,
        "capped": figures.queries_capped,
        "shard_failures": figures.shard_failures,
    }


def _ingest_stats(figures: KbMetrics) -> dict[str, Any]:
    return {
        **figures.ingests.to_json(),
        "total_docs": figures.total_docs,
        "total_chunks": figures.total_chunks,
        "unchanged_docs": figures.unchanged_docs,
        "deleted_docs": figures.deleted_docs,
    }


def _runtime() -> dict[str, Any]:
    used = resource.getrusage(resource.RUSAGE_SELF)
    collections = gc.get_stats()
    return {
        "peak_memory_bytes": used.ru_maxrss * (1 if sys.platform == "darwin" else 1024),
        "cpu_seconds": round(used.ru_utime + used.ru_stime, 3),
        "threads": threading.active_count(),
        "num_gc": sum(each["collections"] for each in collections),
        "processors": os.cpu_count(),
    }
