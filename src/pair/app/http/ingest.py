"""Putting documents in: all at once as JSON, or a line each as they come."""

import hashlib
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pydantic_core
from starlette.responses import Response

from pair import errors
from pair.app.http import error_responses, request_body, schemas
from pair.app.http.context import RequestCall, Service, Streamed, answer
from pair.values import Document


async def ingest(service: Service, call: RequestCall) -> Response | Streamed:
    key = call.idempotency_key
    given = call.parameters(schemas.IngestParameters)
    if request_body.media_type(call.headers) == request_body.LINES:
        return await _stream(service, call, given, key)
    body = await call.body(service.policy, service.policy.max_body_bytes)
    asked = await service.parsed(schemas.IngestRequest, body)
    kb_id = call.use_kb(asked.kb_id or given.kb_id)
    graph = given.graph if asked.graph_enabled is None else asked.graph_enabled
    chunk_size = asked.chunk_size or given.chunk_size
    load = _IngestRun(service, kb_id, graph, chunk_size, _DocumentNames(call.principal.client, kb_id, key))

    async def written() -> Response:
        await load.write(asked.documents)
        return answer(load.told())

    return await service.once(call, kb_id, body, written)


async def stored(
    service: Service, call: RequestCall, kb_id: str, documents: Sequence[schemas.DocumentIn]
) -> dict[str, Any]:
    """All at once, as the settings say."""
    load = _IngestRun(service, kb_id, None, None, _DocumentNames(call.principal.client, kb_id, ""))
    await load.write(documents)
    return load.told()


async def _stream(service: Service, call: RequestCall, given: schemas.IngestParameters, key: str) -> Streamed:
    """Answers with an error as every route does until something was stored; from then on, with lines."""
    kb_id = call.use_kb(given.kb_id)
    load = _IngestRun(service, kb_id, given.graph, given.chunk_size, _DocumentNames(call.principal.client, kb_id, key))
    events = _events(service, call, load)
    first = await anext(events)

    async def parts() -> AsyncIterator[bytes]:
        yield _line(first)
        try:
            async for event in events:
                yield _line(event)
        except errors.PairError as fault:
            told = pydantic_core.from_json(error_responses.body_of(fault))
            yield _line({"type": "error", **told, **load.counts()})

    return Streamed(request_body.LINES, parts())


async def _events(service: Service, call: RequestCall, load: "_IngestRun") -> AsyncIterator[dict[str, Any]]:
    """One for each batch that is stored, and one for the end."""
    most, number = service.settings.engine.ingest_batch_documents, 0
    waiting: list[schemas.DocumentIn] = []
    size = 0
    async for lines in call.incoming.lines(service.policy):
        for line in lines:
            number += 1
            waiting.append(await service.parsed(schemas.DocumentIn, line, where=f"line {number}: "))
            size += len(line)
            if len(waiting) >= most or size >= service.policy.max_body_bytes:
                ids = await load.write(waiting)
                yield {"type": "progress", "doc_ids": ids, **load.counts()}
                waiting, size = [], 0
                call.incoming.held.release()
    if not number:
        raise errors.request_invalid("there is no document in it")
    if waiting:
        ids = await load.write(waiting)
        yield {"type": "progress", "doc_ids": ids, **load.counts()}
    yield {"type": "result", "status": "ok", "kb_id": load.kb_id, **load.counts()}


def _line(value: dict[str, Any]) -> bytes:
    return pydantic_core.to_json(value) + b"\n"


@dataclass
class _DocumentNames:
    """Ids for documents that came without one: with a key the same ones each time, so that it may be sent again."""

    client: str
    kb_id: str
    key: str
    given: int = 0

    def next(self) -> str:
        self.given += 1
        if not self.key:
            return f"doc-{secrets.token_hex(12)}"
        text = "\0".join([self.client, self.kb_id, self.key, str(self.given)])
        return f"doc-{hashlib.sha256(text.encode()).hexdigest()[:24]}"


@dataclass
class _IngestRun:
    """What one request stores, batch by batch."""

    service: Service
    kb_id: str
    graph: bool | None
    chunk_size: int | None
    names: _DocumentNames
    ids: list[str] = field(default_factory=list)
    stored: int = 0
    replaced: int = 0
    unchanged: int = 0
    chunks: int = 0
    manifest_version: int = 0

    async def write(self, given: Sequence[schemas.DocumentIn]) -> list[str]:
        """Ids of these documents, once they are stored. Raises E213 for a blank one."""
        documents = [self._document(each) for each in given]
        ids = [each.id for each in documents]
        figures, began = self.service.figures, time.perf_counter()
        try:
            async with self.service.turn(self.kb_id):
                report = await self.service.working(
                    lambda: self.service.kbs.get(self.kb_id, for_writing=True, graph=self.graph).upsert(
                        documents, chunk_size=self.chunk_size
                    )
                )
        except errors.PairError as fault:
            is_conflict = isinstance(fault, errors.ConflictError)
            figures.note_failed_write(self.kb_id, (time.perf_counter() - began) * 1000, is_conflict=is_conflict)
            raise
        figures.note_write(self.kb_id, (time.perf_counter() - began) * 1000, [report])
        self.ids += ids
        self.stored += report.added + report.replaced
        self.replaced += report.replaced
        self.unchanged += report.unchanged
        self.chunks += report.chunks
        self.manifest_version = max(self.manifest_version, report.manifest_version)
        return ids

    def counts(self) -> dict[str, Any]:
        return {
            "ingested_docs": self.stored,
            "ingested_chunks": self.chunks,
            "replaced_docs": self.replaced,
            "unchanged_docs": self.unchanged,
            "manifest_version": self.manifest_version,
        }

    def told(self) -> dict[str, Any]:
        return {"status": "ok", "kb_id": self.kb_id, **self.counts(), "doc_ids": self.ids}

    def _document(self, given: schemas.DocumentIn) -> Document:
        document_id = given.id or self.names.next()
        if not given.text.strip():
            raise errors.document_invalid(document_id, "its text is blank")
        return Document(document_id, given.text, given.title or "", given.url or "", given.metadata or {})
