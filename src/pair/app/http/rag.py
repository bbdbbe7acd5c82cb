"""Reading and care of KBs: query, list, show, delete, compact, collect, sweep."""

import dataclasses
import time
from typing import Any

import pydantic_core
from starlette.responses import Response

from pair import errors
from pair.app.http import schemas
from pair.app.http.context import RequestCall, Service, answer
from pair.app.http.response_cache import CachedResponse, QueryPlace
from pair.auth import rules
from pair.engine.query.documents import StoredDocument
from pair.engine.query.graph_view import Neighbourhood
from pair.engine.query.request import Hits
from pair.kb.kb import KnowledgeBase
from pair.kb.open import DEFAULT_KB
from pair.values import SearchOptions


async def query(service: Service, call: RequestCall) -> Response:
    body = await call.body(service.policy)
    began = time.perf_counter()
    response = await _known(service, call, body, began)
    own = call.principal.client.encode() + b"\0" + body  # nobody waits for the turn of somebody else
    if response is None and await service.under_way.ended(own):
        response = await _known(service, call, body, began)
    if response is None:
        with service.under_way.begun(own):
            response = await _searched(service, call, body)
    return response


async def _known(service: Service, call: RequestCall, body: bytes, began: float) -> Response | None:
    """What was found before, if it still holds."""
    known = service.remembered.get(body)
    if known is None:
        return None
    kb_id = call.use_kb(known.place.kb_id)
    if known.version != await service.versions.current(known.place):
        service.remembered.forget(body)
        return None
    took_ms = (time.perf_counter() - began) * 1000
    service.figures.note_known_query(kb_id, took_ms, known.results)
    return Response(b"%b%.3f%b" % (known.before, took_ms, known.after), media_type="application/json")


async def _searched(service: Service, call: RequestCall, body: bytes) -> Response:
    asked = await service.parsed(schemas.QueryRequest, body)
    kb_id = call.use_kb(asked.kb_id)
    hits, version, took_ms = await found(service, kb_id, asked)
    before = {"kb_id": kb_id, "search_mode": asked.search_mode, "mode_used": hits.mode_used}
    after: dict[str, Any] = {
        "manifest_version": hits.manifest_version,
        "partial": hits.partial,
        **({"reason": hits.reason} if hits.reason else {}),
        "results": [hit.to_json() for hit in hits],
    }
    known = CachedResponse(
        QueryPlace(kb_id, asked.at),
        version,
        pydantic_core.to_json(before)[:-1] + b',"took_ms":',
        b"," + pydantic_core.to_json(after)[1:],
        len(hits),
    )
    if version[0] == hits.manifest_version and not hits.partial:
        service.remembered.keep(body, known)
    return Response(b"%b%.3f%b" % (known.before, took_ms, known.after), media_type="application/json")


async def found(service: Service, kb_id: str, asked: schemas.QueryRequest) -> tuple[Hits, tuple[int, str], float]:
    """With the version that was last seen, and the milliseconds that it took."""
    began = time.perf_counter()
    try:
        hits, version = await service.reading(lambda: _found(service, kb_id, asked))
    except errors.PairError:
        service.figures.note_failed_query(kb_id, (time.perf_counter() - began) * 1000)
        raise
    took_ms = (time.perf_counter() - began) * 1000
    service.figures.note_query(kb_id, took_ms, hits)
    return hits, version, took_ms


def _found(service: Service, kb_id: str, asked: schemas.QueryRequest) -> tuple[Hits, tuple[int, str]]:
    """And the version that was last seen, which is that of the hits unless somebody wrote meanwhile."""

    def searched(kb: KnowledgeBase) -> tuple[Hits, tuple[int, str]]:
        hits = kb.search(
            asked.query,
            limit=asked.k,
            mode=asked.search_mode,
            filter=asked.filter,
            explain=asked.explain,
            options=SearchOptions(max_distance=asked.max_distance, highlights=asked.highlights),
        )
        return hits, kb.version(last_seen=True)

    return service.kbs.read(kb_id, asked.at, searched)


async def list_kbs(service: Service, call: RequestCall) -> Response:
    return answer({"kbs": await usable_kbs(service, call.principal)})


async def usable_kbs(service: Service, principal: rules.Principal) -> list[dict[str, Any]]:
    """Those that the caller may use, by name."""

    def listed() -> list[dict[str, Any]]:
        usable = [each for each in service.kbs.stored() if principal.kbs is None or each in principal.kbs]
        known = [service.kbs.stats_of(kb_id) for kb_id in usable]
        return [stats.to_json() for stats in known if stats is not None]

    return await service.reading(listed)


async def list_documents(service: Service, call: RequestCall) -> Response:
    asked = call.parameters(schemas.ListParameters)
    kb_id = call.use_kb(asked.kb_id)

    def found() -> tuple[list[StoredDocument], str | None]:
        kb = service.kbs.get(kb_id)
        if asked.contains:
            return kb.find_documents(asked.contains, after=asked.after, limit=asked.limit, owner=asked.owner)
        listed = kb.documents(after=asked.after, limit=asked.limit, owner=asked.owner)
        return listed, listed[-1].id if len(listed) == asked.limit else None

    documents, following = await service.reading(found)
    left_out = set() if asked.text == "true" else {"text"}
    entries = [{key: value for key, value in each.to_json().items() if key not in left_out} for each in documents]
    return answer({"kb_id": kb_id, "documents": entries, "next": following})


async def graph(service: Service, call: RequestCall) -> Response:
    asked = call.parameters(schemas.GraphQuery)
    if bool(asked.document) == bool(asked.entity):
        raise errors.request_invalid("give one of document and entity")
    kb_id = call.use_kb(asked.kb_id)

    def found(kb: KnowledgeBase) -> Neighbourhood:
        if asked.document:
            return kb.graph.around_document(asked.document, limit=asked.limit)
        return kb.graph.around_entity(asked.entity, limit=asked.limit)

    around = await service.reading(lambda: service.kbs.read(kb_id, asked.at, found))
    return answer({"kb_id": kb_id, "document": asked.document, "entity": asked.entity, **around.to_json()})


async def get_document(service: Service, call: RequestCall) -> Response:
    asked = call.parameters(schemas.DocumentParameters)
    kb_id = call.use_kb(asked.kb_id)
    return answer({"kb_id": kb_id, **(await document(service, kb_id, call.path_value, asked.at)).to_json()})


async def document(service: Service, kb_id: str, document_id: str, at: int | str | None) -> StoredDocument:
    """Raises E214, E218."""
    return await service.reading(lambda: service.kbs.read(kb_id, at, lambda kb: kb.document(document_id)))


async def delete_document(service: Service, call: RequestCall) -> Response:
    kb_id = call.use_kb(call.parameters(schemas.KbParameters).kb_id)
    return answer(await deleted(service, kb_id, call.path_value))


async def deleted(service: Service, kb_id: str, document_id: str) -> dict[str, Any]:
    """Raises E214."""
    began = time.perf_counter()
    async with service.turn(kb_id):
        report = await service.working(lambda: service.kbs.get(kb_id).delete([document_id]))
    if not report.deleted:
        raise errors.no_such_document(kb_id, document_id)
    service.figures.note_write(kb_id, (time.perf_counter() - began) * 1000, [report])
    return {"status": "ok", "kb_id": kb_id, "deleted": report.deleted, "manifest_version": report.manifest_version}


async def compact(service: Service, call: RequestCall) -> Response:
    asked = await call.read(service, schemas.CompactRequest, empty=b"{}")
    kb_id = call.use_kb(asked.kb_id)
    began = time.perf_counter()
    async with service.turn(kb_id):
        report = await service.working(lambda: service.kbs.get(kb_id).maintenance.compact(everything=asked.everything))
    service.figures.note_compaction(kb_id, time.perf_counter() - began, report.conflicts, is_good=True)
    return answer({"status": "ok", "kb_id": kb_id, **dataclasses.asdict(report)})


async def collect(service: Service, call: RequestCall) -> Response:
    asked = await call.read(service, schemas.GcRequest, empty=b"{}")
    kb_id = call.use_kb(asked.kb_id)
    async with service.turn(kb_id):
        report = await service.working(
            lambda: service.kbs.get(kb_id).maintenance.collect(grace_seconds=asked.grace_seconds)
        )
    return answer({"status": "ok", "kb_id": kb_id, **dataclasses.asdict(report)})


async def sweep(service: Service, call: RequestCall) -> Response:
    """All KBs share the cache, so whoever may use some of them only may not sweep it."""
    await call.read(service, schemas.SweepRequest, empty=b"{}")
    if not call.principal.sees_all:
        rules.check_kb(call.principal, "*")
    return answer({"status": "ok", **await service.reading(lambda: _swept(service))})


def _swept(service: Service) -> dict[str, Any]:
    report = service.kbs.get(DEFAULT_KB).maintenance.sweep()
    service.figures.note_sweep(report)
    return dataclasses.asdict(report)
