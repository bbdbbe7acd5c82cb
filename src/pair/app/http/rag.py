"""Reading and care of KBs: query, list, show, delete, compact, collect, sweep."""

import dataclasses
import time
from typing import Any

from starlette.responses import Response

from pair import errors, request_errors
from pair.access import rules
from pair.app.http import shapes
from pair.app.http.service import Call, Service, answer
from pair.kb import Hits, Neighbourhood, StoredDocument
from pair.values import SearchOptions
from pair.wiring.server import DEFAULT_KB


async def query(service: Service, call: Call) -> Response:
    body = await call.body(service.policy)
    asked = shapes.read(shapes.QueryRequest, body)
    kb_id = call.use_kb(asked.kb_id)
    began = time.perf_counter()
    try:
        hits, is_known = await service.reading(lambda: _found(service, kb_id, asked, body))
    except errors.PairError:
        service.figures.note_failed_query(kb_id, (time.perf_counter() - began) * 1000)
        raise
    took_ms = (time.perf_counter() - began) * 1000
    service.figures.note_query(kb_id, took_ms, hits, is_known=is_known)
    value: dict[str, Any] = {
        "kb_id": kb_id,
        "search_mode": asked.search_mode,
        "mode_used": hits.mode_used,
        "took_ms": round(took_ms, 3),
        "manifest_version": hits.manifest_version,
        "partial": hits.partial,
        "results": [hit.to_json() for hit in hits],
    }
    if hits.reason:
        value["reason"] = hits.reason
    return answer(value)


def _found(service: Service, kb_id: str, asked: shapes.QueryRequest, body: bytes) -> tuple[Hits, bool]:
    """And whether that was known before."""
    kb = service.kbs.get(kb_id)
    known = service.remembered.get(kb_id, body, kb.version)
    if known is not None:
        return known, True
    hits = kb.search(
        asked.query,
        limit=asked.k,
        mode=asked.search_mode,
        filter=asked.filter,
        explain=asked.explain,
        options=SearchOptions(max_distance=asked.max_distance, highlights=asked.highlights),
    )
    version = kb.version(last_seen=True)
    if version[0] == hits.manifest_version and not hits.partial:
        service.remembered.keep(kb_id, body, version, hits)
    return hits, False


async def list_kbs(service: Service, call: Call) -> Response:
    """Those that the caller may use."""

    def found() -> list[dict[str, Any]]:
        listed = []
        for kb_id in service.kbs.stored():
            if call.principal.kbs is None or kb_id in call.principal.kbs:
                stats = service.kbs.get(kb_id).stats()
                listed += [] if stats is None else [stats.to_json()]
        return listed

    return answer({"kbs": await service.reading(found)})


async def list_documents(service: Service, call: Call) -> Response:
    asked = call.parameters(shapes.ListParameters)
    kb_id = call.use_kb(asked.kb_id)

    def found() -> tuple[list[StoredDocument], str | None]:
        kb = service.kbs.get(kb_id)
        if asked.contains:
            return kb.documents_holding(asked.contains, after=asked.after, limit=asked.limit, owner=asked.owner)
        listed = kb.documents(after=asked.after, limit=asked.limit, owner=asked.owner)
        return listed, listed[-1].id if len(listed) == asked.limit else None

    documents, following = await service.reading(found)
    entries = [{key: value for key, value in each.to_json().items() if key != "text"} for each in documents]
    return answer({"kb_id": kb_id, "documents": entries, "next": following})


async def graph(service: Service, call: Call) -> Response:
    asked = call.parameters(shapes.GraphParameters)
    if bool(asked.document) == bool(asked.entity):
        raise request_errors.request_invalid("give one of document and entity")
    kb_id = call.use_kb(asked.kb_id)

    def found() -> Neighbourhood:
        kb = service.kbs.get(kb_id)
        if asked.document:
            return kb.around_document(asked.document, limit=asked.limit)
        return kb.around_entity(asked.entity, limit=asked.limit)

    around = await service.reading(found)
    return answer({"kb_id": kb_id, "document": asked.document, "entity": asked.entity, **around.to_json()})


async def get_document(service: Service, call: Call) -> Response:
    kb_id = call.use_kb(call.parameters(shapes.KbParameters).kb_id)
    found = await service.reading(lambda: service.kbs.get(kb_id).document(call.path_value))
    return answer({"kb_id": kb_id, **found.to_json()})


async def delete_document(service: Service, call: Call) -> Response:
    kb_id = call.use_kb(call.parameters(shapes.KbParameters).kb_id)
    began = time.perf_counter()
    async with service.turn(kb_id):
        report = await service.working(lambda: service.kbs.get(kb_id).delete([call.path_value]))
    if not report.deleted:
        raise errors.no_such_document(kb_id, call.path_value)
    service.figures.note_write(kb_id, (time.perf_counter() - began) * 1000, [report])
    return answer(
        {"status": "ok", "kb_id": kb_id, "deleted": report.deleted, "manifest_version": report.manifest_version}
    )


async def compact(service: Service, call: Call) -> Response:
    asked = await call.read(shapes.CompactRequest, service.policy, empty=b"{}")
    kb_id = call.use_kb(asked.kb_id)
    began = time.perf_counter()
    async with service.turn(kb_id):
        report = await service.working(lambda: service.kbs.get(kb_id).compact(everything=asked.everything))
    service.figures.note_compaction(kb_id, time.perf_counter() - began, report.conflicts, is_good=True)
    return answer({"status": "ok", "kb_id": kb_id, **dataclasses.asdict(report)})


async def collect(service: Service, call: Call) -> Response:
    asked = await call.read(shapes.GcRequest, service.policy, empty=b"{}")
    kb_id = call.use_kb(asked.kb_id)
    async with service.turn(kb_id):
        report = await service.working(lambda: service.kbs.get(kb_id).collect(grace_seconds=asked.grace_seconds))
    return answer({"status": "ok", "kb_id": kb_id, **dataclasses.asdict(report)})


async def sweep(service: Service, call: Call) -> Response:
    """All KBs share the cache, so whoever may use some of them only may not sweep it."""
    await call.read(shapes.SweepRequest, service.policy, empty=b"{}")
    if not call.principal.sees_all:
        rules.check_kb(call.principal, "*")
    return answer({"status": "ok", **await service.reading(lambda: _swept(service))})


def _swept(service: Service) -> dict[str, Any]:
    report = service.kbs.get(DEFAULT_KB).sweep()
    service.figures.note_sweep(report)
    return dataclasses.asdict(report)
