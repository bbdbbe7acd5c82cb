"""Questions to librarians, answered as JSON or as a stream of events."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pydantic_core
from fastapi import APIRouter
from starlette.responses import Response as HttpResponse

from pair.app.http import responses, schemas
from pair.app.http.context import HttpRequest, Reader
from pair.app.http.openapi import describe
from pair.app.http.responses import EVENTS, Streamed, answer
from pair.app.kb_access import AskRun, KbAccess
from pair.kb.open import DEFAULT_KB
from pair.kb.receipts import make_signed_receipt
from pair.librarians.contract import Budget, Context, Response, TraceContext

router = APIRouter()

KEEP_ALIVE_SECONDS = 15.0
KEEP_ALIVE = b": still at it\n\n"
"""A comment in a stream of events: clients ignore it, and proxies keep the connection open."""


@router.get("/librarians", **describe(schemas.LibrarianListResponse))
async def list_librarians(request: Reader) -> HttpResponse:
    """List librarians"""
    service, access = request.service, request.access
    librarians = await service.read(lambda: service.kbs.librarians(DEFAULT_KB))
    cards = [
        {**librarian.card.to_json(), "answers_from": librarian.answers_from, "public": librarian.is_public}
        for librarian in librarians.list_all()
        if access.may_ask(librarians, librarian.card.id)
    ]
    return answer({"first": librarians.first, "librarians": cards})


_ASK = describe(schemas.AskResponse, 404, body=schemas.AskRequest)


@router.post("/ask", **_ASK)
async def ask(request: Reader) -> HttpResponse:
    """Ask a question

    The first librarian answers. If the request names a KB or a version, or the caller may not use all KBs, the
    librarian of the KB answers.
    """
    asked = await request.read(schemas.AskRequest)
    kb_id = request.access.use_kb(asked.kb_id)
    needs_kb = bool(asked.kb_id) or asked.at is not None or not request.access.principal.sees_all
    return await _answer(request, asked, kb_id if needs_kb else None)


@router.post("/librarians/{id:text}/ask", **_ASK)
async def ask_librarian(request: Reader, id: schemas.PathId) -> HttpResponse:
    """Ask a librarian by id"""
    asked = await request.read(schemas.AskRequest)
    if asked.kb_id:
        request.access.use_kb(asked.kb_id)
    return await _answer(request, asked, id)


async def _answer(request: HttpRequest, asked: schemas.AskRequest, librarian: str | None) -> HttpResponse:
    context, seconds = read_context(request.access, asked.context or schemas.AskContext())
    run = await request.access.prepare_ask(asked.query, librarian, asked.at)

    async def to_json(response: Response) -> dict[str, Any]:
        if not asked.receipt or response.error is not None:
            return response.to_json()
        settings = request.service.settings
        text = await request.service.read(lambda: make_signed_receipt(asked.query, response, settings))
        return {**response.to_json(), "receipt": text.decode()}

    if EVENTS in request.header(b"accept"):
        return Streamed(EVENTS, _stream_events(run, context, seconds, to_json))
    response = await run.answer(context, seconds)
    status = responses.response_status(response)
    return answer(await to_json(response), status, responses.retry_headers(status))


def read_context(access: KbAccess, given: schemas.AskContext) -> tuple[Context, float | None]:
    """Return the context of a question, limited by the settings, and its timeout in seconds."""
    context, limits = access.new_context(), access.service.settings.librarians
    budget = context.budget
    if given.budget is not None:
        budget = Budget(min(given.budget.calls, limits.max_calls), min(given.budget.tokens, limits.max_tokens))
    trace = TraceContext(given.trace.traceId, given.trace.spanId) if given.trace else None
    context = dataclasses.replace(
        context,
        trace=context.trace or trace,
        delegation_chain=tuple(given.delegationChain or ()),
        metadata=given.metadata or {},
        budget=budget,
    )
    return context, None if given.timeout is None else given.timeout / 1000


async def _stream_events(
    run: AskRun, context: Context, seconds: float | None, to_json: Callable[[Response], Awaitable[dict[str, Any]]]
) -> AsyncIterator[bytes]:
    """Yield a `text` event for each piece of the answer, comments while waiting, and a `response` event at the end."""
    loop, pieces = asyncio.get_running_loop(), asyncio.Queue[str]()

    def put(text: str) -> None:
        loop.call_soon_threadsafe(pieces.put_nowait, text)

    task = asyncio.ensure_future(run.answer(dataclasses.replace(context, on_text=put), seconds))
    task.add_done_callback(lambda _: pieces.put_nowait(""))
    while not task.done() or not pieces.empty():
        try:
            async with asyncio.timeout(KEEP_ALIVE_SECONDS):
                piece = await pieces.get()
        except TimeoutError:
            yield KEEP_ALIVE
            continue
        if piece:
            yield b"event: text\ndata: " + pydantic_core.to_json({"text": piece}) + b"\n\n"
    yield b"event: response\ndata: " + pydantic_core.to_json(await to_json(task.result())) + b"\n\n"
