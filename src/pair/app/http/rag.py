"""Routes of knowledge bases: query, documents, ingest, graph, versions, maintenance and sync."""

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
from pair.app.http.openapi import ANY_TYPE, describe
from pair.app.http.response_cache import CachedResponse
from pair.app.http.responses import JSON, LINES, MARKDOWN, Streamed, answer
from pair.app.kb_access import IngestRun
from pair.auth import rules
from pair.engine.query.documents import DocumentPage, Facet
from pair.engine.query.graph_view import Neighbourhood
from pair.kb.configure import add_link
from pair.kb.diff import DiffReport, DiffRequest, diff_versions
from pair.kb.ingest import read_document
from pair.kb.kb import KnowledgeBase
from pair.kb.open import DEFAULT_KB
from pair.kb.sync import ProjectSync
from pair.librarians.threads import share
from pair.reading.contract import UnreadableDocument
from pair.values import Document, Hits, SearchOptions, parse_json

router = APIRouter()

_MOST_DIFF_LINES = 200
"""Maximum number of lines for one document."""
_MOST_LINE_CHARACTERS = 1_000
_MOST_SHOWN_CHARACTERS = 80
"""Maximum length of a filter in an error."""
_MOST_DIFF_CHARACTERS = 1_000_000
"""Maximum length of all diffs on a page."""
_UNDECLARED = frozenset({"application/octet-stream", "application/x-www-form-urlencoded"})
"""Content types that clients send by default: they say nothing about a file."""
Json = dict[str, Any]


@router.post("/rag/query", **describe(schemas.QueryResponse, 404, body=schemas.QueryRequest))
async def query(request: Reader) -> Response:
    """Search for passages"""
    body = await request.json_body()
    began = time.perf_counter()
    response = await _find_cached(request, body, began)
    running = request.context.running_queries
    own = request.access.principal.client.encode() + b"\0" + body  # a caller does not wait for other callers
    if response is None and await running.wait(own):
        response = await _find_cached(request, body, began)
    if response is None:
        with running.enter(own):
            response = await _search(request, body)
    return response


async def _find_cached(request: HttpRequest, body: bytes, began: float) -> Response | None:
    """Return the cached response if the KB still has its version."""
    context, service = request.context, request.service
    cached = context.responses.get(body)
    if cached is None:
        return None
    kb_id, at = request.access.use_kb(cached.kb_id), cached.at

    async def read_version() -> tuple[int, str]:
        share.set(None)  # several callers share the read, so it counts for none of them
        return await request.access.read(kb_id, at, lambda kb: kb.version())

    if cached.version != await context.shared_runs.next(("version", kb_id, at), read_version):
        context.responses.drop(body)
        return None
    took_ms = (time.perf_counter() - began) * 1000
    service.metrics.note_cached_query(kb_id, took_ms, cached.results)
    return Response(cached.to_bytes(took_ms), media_type=JSON)


async def _search(request: HttpRequest, body: bytes) -> Response:
    asked = await request.parse(schemas.QueryRequest, body)
    if not asked.query and asked.vector is None:
        raise errors.request_invalid("query: field required")
    options = SearchOptions(
        max_distance=asked.max_distance,
        highlights=asked.highlights,
        diversity=asked.diversity,
        allow_weak=asked.allow_weak,
        vector=asked.vector,
    )

    def search(kb: KnowledgeBase) -> Hits:
        if not asked.query and asked.vector is not None:
            return kb.search_vector(asked.vector, limit=asked.k, filter=asked.filter, max_distance=asked.max_distance)
        return kb.search(
            asked.query,
            limit=asked.k,
            mode=asked.search_mode,
            filter=asked.filter,
            explain=asked.explain,
            options=options,
        )

    if isinstance(asked.kb_id, list):
        if asked.at is not None:
            raise errors.request_invalid("at: the versions of several knowledge bases have different numbers")
        kb_ids = request.access.use_kbs(asked.kb_id)
        hits, versions, took_ms = await request.access.search_several(kb_ids, asked.k, search)
        value = {**_format_hits(asked, hits), "kb_id": kb_ids, "took_ms": round(took_ms, 3)}
        return answer({**value, "manifest_version": versions})
    kb_id = request.access.use_kb(asked.kb_id)
    hits, version, took_ms = await request.access.search(kb_id, asked.at, search)
    value = {"kb_id": kb_id, **_format_hits(asked, hits)}
    response = CachedResponse(kb_id, asked.at, version, len(hits), pydantic_core.to_json(value))
    if version[0] == hits.manifest_version and not hits.partial:
        request.context.responses.put(body, response)
    return Response(response.to_bytes(took_ms), media_type=JSON)


def _format_hits(asked: schemas.QueryRequest, hits: Hits) -> Json:
    return {
        "search_mode": asked.search_mode,
        "mode_used": hits.mode_used,
        "took_ms": None,
        "manifest_version": hits.manifest_version,
        "partial": hits.partial,
        **({"reason": hits.reason} if hits.reason else {}),
        "results": [hit.to_json() for hit in hits],
    }


@router.get("/rag/kbs", **describe(schemas.KbListResponse))
async def list_kbs(request: Reader) -> Response:
    """List knowledge bases"""
    return answer({"kbs": await request.access.list_kbs()})


@router.get("/rag/docs", **describe(schemas.DocumentListResponse, 404))
async def list_documents(request: Reader, asked: Annotated[schemas.ListParameters, Query()]) -> Response:
    """List documents"""
    kb_id = request.access.use_kb(asked.kb_id)

    def list_page(kb: KnowledgeBase) -> tuple[DocumentPage, int]:
        owner, condition = asked.owner, _split_conditions(asked.filter)
        page = kb.documents(
            after=asked.after, limit=asked.limit, owner=owner, filter=condition, contains=asked.contains
        )
        return page, kb.count(owner=owner, filter=condition)

    documents, count = await request.access.read(kb_id, asked.at, list_page)
    return _answer_page(kb_id, documents, count, with_text=asked.text == "true")


def _answer_page(kb_id: str, documents: DocumentPage, count: int, *, with_text: bool) -> Response:
    entries = [document.to_json() for document in documents]
    if not with_text:
        entries = [{key: value for key, value in entry.items() if key != "text"} for entry in entries]
    return answer({"kb_id": kb_id, "documents": entries, "next": documents.next, "count": count})


@router.post("/rag/docs", **describe(schemas.DocumentListResponse, 404, body=schemas.ListRequest))
async def fetch_documents(request: Reader) -> Response:
    """List documents by ids and filter"""
    asked = await request.parse(schemas.ListRequest, await request.json_body())
    kb_id = request.access.use_kb(asked.kb_id)

    def list_page(kb: KnowledgeBase) -> tuple[DocumentPage, int]:
        chosen: Json = {"owner": asked.owner, "filter": asked.filter}
        page = kb.documents(after=asked.after, limit=asked.limit, ids=asked.ids, vectors=asked.vectors, **chosen)
        return page, len(page) if asked.ids is not None else kb.count(**chosen)

    documents, count = await request.access.read(kb_id, asked.at, list_page)
    return _answer_page(kb_id, documents, count, with_text=asked.text)


@router.post("/rag/delete", **describe(schemas.DeleteResponse, 409, body=schemas.DeleteRequest))
async def delete_documents(request: Writer) -> Response:
    """Delete documents by ids or filter

    All of them are deleted in one version. A synced document cannot be deleted while its source exists (E105).
    """
    asked = await request.parse(schemas.DeleteRequest, await request.json_body())
    if asked.ids is None and not asked.filter:
        raise errors.request_invalid("give ids or filter")
    kb_id = request.access.use_kb(asked.kb_id)
    return answer(await request.access.delete_many(kb_id, lambda kb: kb.delete(asked.ids or (), filter=asked.filter)))


def _split_conditions(text: str) -> list[str]:
    """Return the conditions in a query parameter: one condition, a filter in JSON, or a list of them. Raises E211."""
    if not text.startswith("["):
        return [text] if text else []
    try:
        return parse_json(text, list[str])
    except ValueError as fault:
        raise errors.filter_invalid(
            text[:_MOST_SHOWN_CHARACTERS], f"it is not a JSON list of strings: {fault}"
        ) from fault


@router.get("/rag/facets", **describe(schemas.FacetListResponse, 404))
async def list_facets(request: Reader, asked: Annotated[schemas.FacetParameters, Query()]) -> Response:
    """Count the values of a metadata key"""
    kb_id, condition = request.access.use_kb(asked.kb_id), _split_conditions(asked.filter)

    def count_values(kb: KnowledgeBase) -> list[Facet]:
        return kb.facets(asked.key, limit=asked.limit, owner=asked.owner, filter=condition)

    facets = await request.access.read(kb_id, asked.at, count_values)
    values = [dataclasses.asdict(facet) for facet in facets]
    return answer({"kb_id": kb_id, "key": asked.key, "values": values})


@router.get("/rag/graph", **describe(schemas.GraphResponse, 404))
async def graph(request: Reader, asked: Annotated[schemas.GraphQuery, Query()]) -> Response:
    """Get the graph around a document or an entity

    Give either `document` or `entity`. Other entities without a letter, such as numbers, are left out.
    """
    if bool(asked.document) == bool(asked.entity):
        raise errors.request_invalid("give either document or entity")
    kb_id = request.access.use_kb(asked.kb_id)

    def read_graph(kb: KnowledgeBase) -> Neighbourhood:
        if asked.document:
            return kb.graph.around_document(asked.document, limit=asked.limit)
        return kb.graph.around_entity(asked.entity, limit=asked.limit)

    around = await request.access.read(kb_id, asked.at, read_graph)
    return answer({"kb_id": kb_id, "document": asked.document, "entity": asked.entity, **around.to_json()})


@router.get("/rag/docs/{id:text}", **describe(schemas.DocumentResponse, 404))
async def get_document(
    request: Reader, id: schemas.PathId, asked: Annotated[schemas.DocumentParameters, Query()]
) -> Response:
    """Get a document

    With `Accept: text/markdown`, the response is the text of the document.
    """
    kb_id = request.access.use_kb(asked.kb_id)
    document = await request.access.read_document(kb_id, id, asked.at)
    if MARKDOWN in request.header(b"accept"):
        return Response(document.text, media_type=f"{MARKDOWN}; charset=utf-8")
    return answer({"kb_id": kb_id, **document.to_json()})


@router.delete("/rag/docs/{id:text}", **describe(schemas.DeleteResponse, 404, 409))
async def delete_document(
    request: Writer, id: schemas.PathId, asked: Annotated[schemas.KbParameters, Query()]
) -> Response:
    """Delete a document

    A synced document cannot be deleted while its source exists: the next sync would store it again (E105).
    """
    return answer(await request.access.delete(request.access.use_kb(asked.kb_id), id))


@router.put("/rag/docs/{id:text}", **describe(schemas.IngestResponse, 409, body=ANY_TYPE))
async def put_document(
    request: Writer,
    id: schemas.PathId,
    given: Annotated[schemas.IngestParameters, Query()],
    key: schemas.IdempotencyKey = "",
) -> Response:
    """Add or replace a document by a file

    The body is a file: text in any charset, Markdown, HTML, PDF, Office, OpenDocument, EPUB, RTF, e-mail, CSV, a
    notebook or code. Its `Content-Type` says how to read it, or else the suffix of the id. Title and metadata are those
    of the file. The next sync replaces a document that has the id of one of its sources.
    """
    kb_id = request.access.use_kb(given.kb_id)
    body = await request.body(request.context.settings.max_body_bytes)
    run = IngestRun(request.access, kb_id, key, given.graph, given.chunk_size)

    async def write() -> Response:
        await run.write([await _read_file(request, id, body)])
        return answer(run.to_json())

    return await request.once(key, body, write)


async def _read_file(request: HttpRequest, id: str, content: bytes) -> Document:
    """Read an uploaded file in a thread. Raises E213 for an unreadable file, E617 if it may be readable later."""
    content_type = "" if request.media_type in _UNDECLARED else request.media_type
    try:
        async with request.context.reading:
            return await request.service.run(lambda: read_document(content, id, content_type, request.charset))
    except UnreadableDocument as fault:
        if fault.is_passing:
            raise errors.server_full(f"the document was not read: {fault}") from fault
        raise errors.document_invalid(id, str(fault)) from fault


@router.post("/rag/ingest", **describe(schemas.IngestResponse, 409, body=schemas.IngestRequest))
async def ingest(
    request: Writer, given: Annotated[schemas.IngestParameters, Query()], key: schemas.IdempotencyKey = ""
) -> Response:
    """Add or replace documents

    Send JSON, or a stream of any length with one document per line (`application/x-ndjson`). The options of a stream
    are query parameters.
    """
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
    """Stream the progress. An error before the first batch is stored sets the HTTP status; later it is a line."""
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
    """Store documents in batches. Yield an event for each batch, and one at the end."""
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
        raise errors.request_invalid("it contains no document")
    if batch:
        ids = await run.write(batch)
        yield {"type": "progress", "doc_ids": ids, **run.counts}
    yield {"type": "result", "status": "ok", "kb_id": run.kb_id, **run.counts}


@router.get("/rag/versions", **describe(schemas.VersionListResponse))
async def list_versions(request: Reader, asked: Annotated[schemas.KbParameters, Query()]) -> Response:
    """List versions"""
    kb_id = request.access.use_kb(asked.kb_id)
    versions = await request.service.read(lambda: request.service.kbs.get(kb_id).versions.list())  # noqa: PLW0108 - opened in a thread
    may_roll_back = rules.covers(request.access.principal.scope, "admin")
    entries = [version.to_json() for version in versions]
    return answer({"kb_id": kb_id, "versions": entries, "may_roll_back": may_roll_back})


@router.post("/rag/rollback", **describe(schemas.RollbackResponse, 404, 409, body=schemas.RollbackRequest))
async def roll_back(request: Admin, key: schemas.IdempotencyKey = "") -> Response:
    """Roll back to an earlier version

    A rollback makes a new version with the content of the earlier one.
    """
    body = await request.json_body()
    asked = await request.parse(schemas.RollbackRequest, body)
    kb_id, service = request.access.use_kb(asked.kb_id), request.service

    async def write() -> Response:
        report = await service.write(kb_id, lambda: service.kbs.get(kb_id).versions.rollback(asked.version))
        return answer({"status": "ok", **report.to_json()})

    return await request.once(key, body, write)


@router.get("/rag/diff", **describe(schemas.DiffResponse, 404))
async def diff(request: Reader, asked: Annotated[schemas.DiffParameters, Query()]) -> Response:
    """Compare two versions"""
    kb_id, kbs = request.access.use_kb(asked.kb_id), request.service.kbs
    value = await request.service.read(
        lambda: _format_diff(diff_versions(kbs.get(kb_id).versions.compare(asked.a, asked.b)), asked)
    )
    return answer({"kb_id": kb_id, **value})


def _format_diff(report: DiffReport, asked: schemas.DiffParameters) -> Json:
    """Return a page of diffs. A page ends early if its diffs are too long together."""
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


@router.post("/rag/compact", **describe(schemas.CompactResponse, 409, body=schemas.CompactRequest))
async def compact(request: Admin) -> Response:
    """Merge and re-cluster shards"""
    asked = await request.read(schemas.CompactRequest, empty=b"{}")
    kb_id, service = request.access.use_kb(asked.kb_id), request.service
    began = time.perf_counter()
    report = await service.write(kb_id, lambda: service.kbs.get(kb_id).maintenance.compact(everything=asked.everything))
    service.metrics.note_compaction(kb_id, time.perf_counter() - began, report.conflicts, is_good=True)
    return answer({"status": "ok", "kb_id": kb_id, **dataclasses.asdict(report)})


@router.post("/rag/gc", **describe(schemas.GcResponse, 409, body=schemas.GcRequest))
async def collect(request: Admin) -> Response:
    """Delete unreferenced shards"""
    asked = await request.read(schemas.GcRequest, empty=b"{}")
    kb_id, service = request.access.use_kb(asked.kb_id), request.service
    report = await service.write(
        kb_id, lambda: service.kbs.get(kb_id).maintenance.collect(grace_seconds=asked.grace_seconds)
    )
    return answer({"status": "ok", "kb_id": kb_id, **dataclasses.asdict(report)})


@router.post("/cache/sweep", **describe(schemas.SweepResponse, body=schemas.SweepRequest))
async def sweep(request: Admin) -> Response:
    """Evict old shards, and shards over the cache budget

    All KBs share the cache, so the credentials must be valid for all KBs.
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


@router.post("/sync", **describe(schemas.SyncResponse, 409, body=schemas.SyncRequest))
async def sync(request: Admin) -> Response:
    """Sync the knowledge base with files and links

    The response includes every change made before the request: it waits for a running sync, then syncs again.
    Concurrent requests for one KB share the next sync. A KB has sources if a collection feeds it, as does `default`.
    """
    asked = await request.read(schemas.SyncRequest, empty=b"{}")
    kb_id, service = request.access.use_kb(asked.kb_id), request.service
    if service.is_stopping:
        raise errors.server_stopping()

    async def run() -> Json:
        return await service.run(lambda: service.kbs.get(kb_id).sync(wait=asked.wait).to_json())

    report = await (request.context.shared_runs.next(("sync", kb_id), run) if asked.wait else run())
    return answer({"status": "ok", "kb_id": kb_id, **report})


@router.post("/sync/links", **describe(schemas.LinkResponse, body=schemas.LinkRequest))
async def add_page(request: Admin) -> Response:
    """Add a web page to the links file

    The next sync of the default KB reads it. Pages at private addresses are refused then, unless the settings allow
    them.
    """
    asked, service = await request.read(schemas.LinkRequest), request.service
    request.check_sees_all()
    added = await service.run(lambda: add_link(service.settings, asked.url))
    return answer({"status": "ok", "added": added})


@router.get("/sync", **describe(schemas.SourceListResponse))
async def list_sources(request: Reader, asked: Annotated[schemas.SyncParameters, Query()]) -> Response:
    """List sources and their states"""
    request.check_sees_all()
    service = request.service
    every = await service.read(lambda: ProjectSync(service.settings).source_statuses())
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
