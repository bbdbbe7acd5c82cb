"""Questions to librarians, answered at once or as a stream of events."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator
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
from pair.librarians.contract import Budget, Context, TraceContext

router = APIRouter()

KEEP_ALIVE_SECONDS = 15.0


@router.get("/librarians", **describe(schemas.LibrarianListResponse, "The librarians that the caller may ask."))
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


_ASK = describe(schemas.AskResponse, "The answer, with its sources.", 404, body=schemas.AskRequest)


@router.post("/ask", **_ASK)
async def ask(request: Reader) -> HttpResponse:
    """Ask the first librarian, or the librarian of a knowledge base

    Ask the librarian of a KB if a KB or a version is named, or the caller may not use all KBs.
    """
    asked = await request.read(schemas.AskRequest)
    kb_id = request.access.use_kb(asked.kb_id)
    needs_kb = bool(asked.kb_id) or asked.at is not None or not request.access.principal.sees_all
    return await _answer(request, asked, kb_id if needs_kb else None)


@router.post("/librarians/{id:text}/ask", **_ASK)
async def ask_librarian(request: Reader, id: schemas.PathId) -> HttpResponse:
    """Ask one librarian"""
    asked = await request.read(schemas.AskRequest)
    if asked.kb_id:
        request.access.use_kb(asked.kb_id)
    return await _answer(request, asked, id)


async def _answer(request: HttpRequest, asked: schemas.AskRequest, librarian: str | None) -> HttpResponse:
    context, seconds = read_context(request.access, asked.context or schemas.AskContext())
    run = await request.access.prepare_ask(asked.query, librarian, asked.at)
    if EVENTS in request.header(b"accept"):
        return Streamed(EVENTS, _stream_events(run, context, seconds))
    response = await run.answer(context, seconds)
    status = responses.response_status(response)
    return answer(response.to_json(), status, responses.retry_headers(status))


def read_context(access: KbAccess, given: schemas.AskContext) -> tuple[Context, float | None]:
    """Return what a request says of itself, within what it may say, and the seconds that it gives."""
    context = access.new_context()
    most = access.service.settings.librarians
    budget = context.budget
    if given.budget is not None:
        budget = Budget(min(given.budget.calls, most.max_calls), min(given.budget.tokens, most.max_tokens))
    trace = TraceContext(given.trace.traceId, given.trace.spanId) if given.trace else None
    context = dataclasses.replace(
        context,
        trace=context.trace or trace,
        delegation_chain=tuple(given.delegationChain or ()),
        metadata=given.metadata or {},
        budget=budget,
    )
    return context, None if given.timeout is None else given.timeout / 1000


async def _stream_events(run: AskRun, context: Context, seconds: float | None) -> AsyncIterator[bytes]:
    """Yield `text` for each piece as it is written, and `response` at the end; comments keep the connection open."""
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
            yield b": still at it\n\n"
            continue
        if piece:
            yield _format_event("text", {"text": piece})
    yield _format_event("response", task.result().to_json())


def _format_event(name: str, value: dict[str, Any]) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + pydantic_core.to_json(value) + b"\n\n"
