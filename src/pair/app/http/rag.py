"""Knowledge bases: query, documents, ingest, versions, maintenance and sync."""

import dataclasses
import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import Annotated, Any

import pydantic_core
from fastapi import APIRouter, Query
from starlette.responses import Response

from pair import clock, errors
from pair.app.http import responses, schemas
from pair.app.http.context import Admin, HttpRequest, Reader, Writer
from pair.app.http.openapi import describe
from pair.app.http.response_cache import CachedResponse
from pair.app.http.responses import JSON, LINES, Streamed, answer
from pair.app.kb_access import IngestRun
from pair.auth import rules
from pair.engine.query.documents import StoredDocument
from pair.engine.query.graph import Neighbourhood
from pair.kb.diff import DiffReport, DiffRequest, diff_versions
from pair.kb.kb import KnowledgeBase
from pair.kb.open import DEFAULT_KB
from pair.kb.sync import SyncService
from pair.librarians.threads import share
from pair.values import Document, Hits, SearchOptions

router = APIRouter()

_MOST_DIFF_LINES = 200
"""Of one document."""
_MOST_LINE_CHARACTERS = 1_000
_MOST_DIFF_CHARACTERS = 1_000_000
"""Of all documents."""
Json = dict[str, Any]


@router.post(
    "/rag/query",
    **describe(schemas.QueryResponse, "The matching passages, best first.", 404, body=schemas.QueryRequest),
)
async def query(request: Reader) -> Response:
    """Search for passages"""
    body = await request.json_body()
    began = time.perf_counter()
    response = await _find_cached(request, body, began)
    running = request.context.running_queries
    own = request.access.principal.client.encode() + b"\0" + body  # a caller does not wait for another's turn
    if response is None and await running.wait(own):
        response = await _find_cached(request, body, began)
    if response is None:
        with running.enter(own):
            response = await _search(request, body)
    return response


async def _find_cached(request: HttpRequest, body: bytes, began: float) -> Response | None:
    """Return the cached response if it is of the version that is current now."""
    context, service = request.context, request.service
    cached = context.responses.get(body)
    if cached is None:
        return None
    kb_id, at = request.access.use_kb(cached.kb_id), cached.at

    async def read_version() -> tuple[int, str]:
        share.set(None)  # shared by several callers, so it counts for none of them
        return await service.read(lambda: service.kbs.read(kb_id, at, lambda kb: kb.version()))

    if cached.version != await context.shared_runs.next(("version", kb_id, at), read_version):
        context.responses.drop(body)
        return None
    took_ms = (time.perf_counter() - began) * 1000
    service.metrics.note_cached_query(kb_id, took_ms, cached.results)
    return Response(cached.to_bytes(took_ms), media_type=JSON)


async def _search(request: HttpRequest, body: bytes) -> Response:
    asked = await request.parse(schemas.QueryRequest, body)
    kb_id = request.access.use_kb(asked.kb_id)
    options = SearchOptions(max_distance=asked.max_distance, highlights=asked.highlights)

    def search(kb: KnowledgeBase) -> Hits:
        return kb.search(
            asked.query,
            limit=asked.k,
            mode=asked.search_mode,
            filter=asked.filter,
            explain=asked.explain,
            options=options,
        )

    hits, version, took_ms = await request.access.search(kb_id, asked.at, search)
    value: Json = {
        "kb_id": kb_id,
        "search_mode": asked.search_mode,
        "mode_used": hits.mode_used,
        "took_ms": None,
        "manifest_version": hits.manifest_version,
        "partial": hits.partial,
        **({"reason": hits.reason} if hits.reason else {}),
        "results": [hit.to_json() for hit in hits],
    }
    response = CachedResponse(kb_id, asked.at, version, len(hits), pydantic_core.to_json(value))
    if version[0] == hits.manifest_version and not hits.partial:
        request.context.responses.put(body, response)
    return Response(response.to_bytes(took_ms), media_type=JSON)


@router.get("/rag/kbs", **describe(schemas.KbListResponse, "Statistics of the KBs that the caller may use."))
async def list_kbs(request: Reader) -> Response:
    """List knowledge bases"""
    return answer({"kbs": await request.access.list_kbs()})


@router.get("/rag/docs", **describe(schemas.DocumentListResponse, "A page of documents, sorted by id."))
async def list_documents(request: Reader, asked: Annotated[schemas.ListParameters, Query()]) -> Response:
    """List stored documents by id"""
    kb_id, kbs = request.access.use_kb(asked.kb_id), request.service.kbs

    def list_page() -> tuple[list[StoredDocument], str | None]:
        kb = kbs.get(kb_id)
        if asked.contains:
            return kb.find_documents(asked.contains, after=asked.after, limit=asked.limit, owner=asked.owner)
        page = kb.documents(after=asked.after, limit=asked.limit, owner=asked.owner)
        return page, page[-1].id if len(page) == asked.limit else None

    documents, following = await request.service.read(list_page)
    entries = [document.to_json() for document in documents]
    if asked.text != "true":
        entries = [{key: value for key, value in entry.items() if key != "text"} for entry in entries]
    return answer({"kb_id": kb_id, "documents": entries, "next": following})


@router.get("/rag/graph", **describe(schemas.GraphResponse, "Entities, edges and documents nearby.", 404))
async def graph(request: Reader, asked: Annotated[schemas.GraphQuery, Query()]) -> Response:
    """Get the graph around a document or an entity"""
    if bool(asked.document) == bool(asked.entity):
        raise errors.request_invalid("give one of document and entity")
    kb_id, kbs = request.access.use_kb(asked.kb_id), request.service.kbs

    def read_graph(kb: KnowledgeBase) -> Neighbourhood:
        if asked.document:
            return kb.graph.around_document(asked.document, limit=asked.limit)
        return kb.graph.around_entity(asked.entity, limit=asked.limit)

    around = await request.service.read(lambda: kbs.read(kb_id, asked.at, read_graph))
    return answer({"kb_id": kb_id, "document": asked.document, "entity": asked.entity, **around.to_json()})


@router.get("/rag/docs/{id:text}", **describe(schemas.DocumentResponse, "The document.", 404))
async def get_document(
    request: Reader, id: schemas.PathId, asked: Annotated[schemas.DocumentParameters, Query()]
) -> Response:
    """Get a document with its text"""
    kb_id = request.access.use_kb(asked.kb_id)
    document = await request.access.read_document(kb_id, id, asked.at)
    return answer({"kb_id": kb_id, **document.to_json()})


@router.delete("/rag/docs/{id:text}", **describe(schemas.DeleteResponse, "What was deleted.", 404, 409))
async def delete_document(
    request: Writer, id: schemas.PathId, asked: Annotated[schemas.KbParameters, Query()]
) -> Response:
    """Delete a document"""
    return answer(await request.access.delete(request.access.use_kb(asked.kb_id), id))


@router.post("/rag/ingest", **describe(schemas.IngestResponse, "What was stored.", 409, body=schemas.IngestRequest))
async def ingest(
    request: Writer, given: Annotated[schemas.IngestParameters, Query()], key: schemas.IdempotencyKey = ""
) -> Response:
    """Add or replace documents"""
    if request.media_type == LINES:
        kb_id = request.access.use_kb(given.kb_id)
        return await _ingest_lines(request, IngestRun(request.access, kb_id, key, given.graph, given.chunk_size))
    body = await request.json_body(request.context.settings.max_body_bytes)
    asked = await request.parse(schemas.IngestRequest, body)
    kb_id = request.access.use_kb(asked.kb_id or given.kb_id)
    graph = given.graph if asked.graph_enabled is None else asked.graph_enabled
    run = IngestRun(request.access, kb_id, key, graph, asked.chunk_size or given.chunk_size)

    async def write() -> Response:
        await run.write([document.to_document() for document in asked.documents])
        return answer(run.to_json())

    return await request.once(key, body, write)


async def _ingest_lines(request: HttpRequest, run: IngestRun) -> Streamed:
    """Answer with an error as every route does until something was stored; from then on, with lines."""
    events = _store_lines(request, run)
    first = await anext(events)

    async def format_lines() -> AsyncIterator[bytes]:
        yield pydantic_core.to_json(first) + b"\n"
        try:
            async for event in events:
                yield pydantic_core.to_json(event) + b"\n"
        except errors.PairError as fault:
            error = pydantic_core.from_json(responses.error_body(fault))
            yield pydantic_core.to_json({"type": "error", **error, **run.counts}) + b"\n"

    return Streamed(LINES, format_lines())


async def _store_lines(request: HttpRequest, run: IngestRun) -> AsyncIterator[Json]:
    """Yield an event for each batch that is stored, and one for the end."""
    most = request.service.settings.engine.ingest_batch_documents
    most_bytes = request.context.settings.max_body_bytes
    batch: list[Document] = []
    number = size = 0
    async for lines in request.lines():
        for line in lines:
            number += 1
            document = await request.parse(schemas.DocumentIn, line, where=f"line {number}: ")
            batch.append(document.to_document())
            size += len(line)
            if len(batch) >= most or size >= most_bytes:
                ids = await run.write(batch)
                yield {"type": "progress", "doc_ids": ids, **run.counts}
                batch, size = [], 0
                request.release_memory()
    if not number:
        raise errors.request_invalid("there is no document in it")
    if batch:
        ids = await run.write(batch)
        yield {"type": "progress", "doc_ids": ids, **run.counts}
    yield {"type": "result", "status": "ok", "kb_id": run.kb_id, **run.counts}


@router.get("/rag/versions", **describe(schemas.VersionListResponse, "The versions, newest first."))
async def list_versions(request: Reader, asked: Annotated[schemas.KbParameters, Query()]) -> Response:
    """List the versions that a rollback can restore

    `may_roll_back` tells pages whether to show a button for it.
    """
    kb_id = request.access.use_kb(asked.kb_id)
    versions = await request.service.read(lambda: request.service.kbs.get(kb_id).versions.list())  # noqa: PLW0108 - opened in a thread
    may_roll_back = rules.covers(request.access.principal.scope, "admin")
    entries = [version.to_json() for version in versions]
    return answer({"kb_id": kb_id, "versions": entries, "may_roll_back": may_roll_back})


@router.post(
    "/rag/rollback",
    **describe(schemas.RollbackResponse, "The version that is current now.", 404, 409, body=schemas.RollbackRequest),
)
async def roll_back(request: Admin, key: schemas.IdempotencyKey = "") -> Response:
    """Make an earlier version the current one"""
    body = await request.json_body()
    asked = await request.parse(schemas.RollbackRequest, body)
    kb_id, service = request.access.use_kb(asked.kb_id), request.service

    async def write() -> Response:
        report = await service.write(kb_id, lambda: service.kbs.get(kb_id).versions.rollback(asked.version))
        return answer({"status": "ok", **report.to_json()})

    return await request.once(key, body, write)


@router.get("/rag/diff", **describe(schemas.DiffResponse, "A page of documents, sorted by id.", 404))
async def diff(request: Reader, asked: Annotated[schemas.DiffParameters, Query()]) -> Response:
    """Compare two versions"""
    kb_id, kbs = request.access.use_kb(asked.kb_id), request.service.kbs
    value = await request.service.read(
        lambda: _format_diff(diff_versions(kbs.get(kb_id).versions.compare(asked.a, asked.b)), asked)
    )
    return answer({"kb_id": kb_id, **value})


def _format_diff(report: DiffReport, asked: schemas.DiffParameters) -> Json:
    """Show as many documents as were asked for and are not too long together; `next` says where to go on."""
    changes = [change for change in report.ids() if change[0] > asked.after]
    wanted = DiffRequest(asked.entries == "true", asked.text == "true", _MOST_DIFF_LINES, _MOST_LINE_CHARACTERS)
    documents: list[Json] = []
    characters = 0
    for document in report.describe(changes[: asked.limit], wanted):
        clock.check_cancelled()
        documents.append(document.to_json())
        characters += sum(map(len, document.entry or ())) + sum(map(len, document.text or ()))
        if characters > _MOST_DIFF_CHARACTERS:
            break
    following = documents[-1]["id"] if len(documents) < len(changes) else None
    return {"a": int(report.a), "b": int(report.b), **report.counts, "documents": documents, "next": following}


@router.post("/rag/compact", **describe(schemas.CompactResponse, "What was merged.", 409, body=schemas.CompactRequest))
async def compact(request: Admin) -> Response:
    """Merge and re-cluster shards"""
    asked = await request.read(schemas.CompactRequest, empty=b"{}")
    kb_id, service = request.access.use_kb(asked.kb_id), request.service
    began = time.perf_counter()
    report = await service.write(kb_id, lambda: service.kbs.get(kb_id).maintenance.compact(everything=asked.everything))
    service.metrics.note_compaction(kb_id, time.perf_counter() - began, report.conflicts, is_good=True)
    return answer({"status": "ok", "kb_id": kb_id, **dataclasses.asdict(report)})


@router.post("/rag/gc", **describe(schemas.GcResponse, "What was deleted.", 409, body=schemas.GcRequest))
async def collect(request: Admin) -> Response:
    """Delete unreferenced shards"""
    asked = await request.read(schemas.GcRequest, empty=b"{}")
    kb_id, service = request.access.use_kb(asked.kb_id), request.service
    report = await service.write(
        kb_id, lambda: service.kbs.get(kb_id).maintenance.collect(grace_seconds=asked.grace_seconds)
    )
    return answer({"status": "ok", "kb_id": kb_id, **dataclasses.asdict(report)})


@router.post("/cache/sweep", **describe(schemas.SweepResponse, "What was evicted.", body=schemas.SweepRequest))
async def sweep(request: Admin) -> Response:
    """Evict old shards and those beyond the cache budget

    All KBs share the cache, so a caller who may use some of them only may not sweep it.
    """
    await request.read(schemas.SweepRequest, empty=b"{}")
    service = request.service
    if not request.access.principal.sees_all:
        rules.check_kb(request.access.principal, "*")

    def sweep_and_count() -> Json:
        report = service.kbs.get(DEFAULT_KB).maintenance.sweep()
        service.metrics.note_sweep(report)
        return dataclasses.asdict(report)

    return answer({"status": "ok", **await service.read(sweep_and_count)})


@router.post("/sync", **describe(schemas.SyncResponse, "What changed.", 409, body=schemas.SyncRequest))
async def sync(request: Admin) -> Response:
    """Sync the knowledge base with files and links

    Store what changed before the request: a run that has begun is waited for, and callers share the next one.
    Raises E101 unless it may wait, E401, E611.
    """
    asked = await request.read(schemas.SyncRequest, empty=b"{}")
    kb_id, service = request.access.use_kb(asked.kb_id), request.service
    if service.is_stopping:
        raise errors.server_stopping()

    async def run() -> Json:
        return await service.run(lambda: service.kbs.get(kb_id).sync(wait=asked.wait).to_json())

    is_shared = asked.wait and kb_id == DEFAULT_KB
    report = await (request.context.shared_runs.next("sync", run) if is_shared else run())
    return answer({"status": "ok", "kb_id": kb_id, **report})


@router.get("/sync", **describe(schemas.SourceListResponse, "A page of sources, sorted by id."))
async def list_sources(request: Reader, asked: Annotated[schemas.SyncParameters, Query()]) -> Response:
    """List synced sources and their states"""
    request.check_sees_all()
    service = request.service
    every = await service.read(lambda: SyncService(service.settings).source_statuses())
    wanted = [source for source in every if asked.state in {None, source.state} and source.source_id > asked.after]
    shown = wanted[: asked.limit]
    job = next((job.to_json() for job in service.jobs if job.name == "sync"), None)
    return answer(
        {
            "enabled": job is not None,
            "run": job or {},
            "states": dict(Counter(source.state for source in every)),
            "sources": [source.to_json() for source in shown],
            "next": shown[-1].source_id if len(wanted) > len(shown) else None,
        }
    )
