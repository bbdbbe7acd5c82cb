"""Questions: who can be asked, and what they answer, at once or as it is written.

Invariants
    Who asks is what the credentials say. A caller who may use some KBs only is answered from those, by their shelves,
    which hand nothing on.
"""

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator
from typing import Any

import pydantic_core
from starlette.responses import Response as HttpResponse

from pair import errors, telemetry
from pair.app.http import error_responses, schemas
from pair.app.http.context import RequestCall, Service, Streamed, answer
from pair.auth.rules import Principal
from pair.kb.librarians import KbLibrarians
from pair.kb.open import DEFAULT_KB
from pair.kb.open_versions import VersionCollection
from pair.librarians.contract import Budget, Context, Response, TraceContext, User

EVENTS = "text/event-stream"
SIGN_OF_LIFE_SECONDS = 15.0


async def list_librarians(service: Service, call: RequestCall) -> HttpResponse:
    desk = await service.reading(lambda: service.kbs.desk(DEFAULT_KB))
    user = user_of(call.principal)
    known = [
        {**each.card.to_json(), "answers_from": each.answers_from, "public": each.is_public}
        for each in desk.list_all()
        if desk.registry.allows(user, each.card.id) and is_open_to(call.principal, desk, each.card.id)
    ]
    return answer({"first": desk.first, "librarians": known})


async def ask(service: Service, call: RequestCall) -> HttpResponse | Streamed:
    asked = await call.read(service, schemas.AskRequest)
    return await _answered(service, call, asked, _whom(call, asked))


async def response_to(service: Service, call: RequestCall, asked: schemas.AskRequest) -> Response:
    """Raises what keeps a question from being asked; what goes wrong later is in the response."""
    asking, context = await _asking(service, call, asked, _whom(call, asked))
    return await asking.response(context)


def _whom(call: RequestCall, asked: schemas.AskRequest) -> str | None:
    """Whoever names a KB or a version wants its shelf; whoever may not use all KBs gets no other. Raises E603."""
    kb_id = call.use_kb(asked.kb_id)
    return kb_id if asked.kb_id or asked.at is not None or not call.principal.sees_all else None


async def ask_librarian(service: Service, call: RequestCall) -> HttpResponse | Streamed:
    asked = await call.read(service, schemas.AskRequest)
    call.use_kb(asked.kb_id) if asked.kb_id else None
    return await _answered(service, call, asked, call.path_value)


async def _answered(
    service: Service, call: RequestCall, asked: schemas.AskRequest, first: str | None
) -> HttpResponse | Streamed:
    asking, context = await _asking(service, call, asked, first)
    if EVENTS in call.header(b"accept"):
        return Streamed(EVENTS, asking.events(context))
    response = await asking.response(context)
    status = error_responses.status_of_response(response)
    return answer(response.to_json(), status, error_responses.retry_headers(status))


async def _asking(
    service: Service, call: RequestCall, asked: schemas.AskRequest, first: str | None
) -> "tuple[AskRun, Context]":
    """Raises E201, E218, E603, E605, E615."""
    kb_id = call.kb_id or DEFAULT_KB
    context, seconds = context_of(service, call, asked)
    desk = await service.reading(lambda: service.kbs.desk(kb_id))
    librarian = first or desk.first
    if librarian not in desk.registry:
        raise errors.no_such_librarian(librarian)
    if not is_open_to(call.principal, desk, librarian):
        raise errors.not_allowed(f"the librarian {librarian!r}")
    past = None if asked.at is None else await _past(service, desk, librarian, asked.at)
    return AskRun(service, desk, librarian, asked.query, seconds, past), context


async def _past(service: Service, desk: KbLibrarians, librarian: str, at: int | str) -> VersionCollection:
    kb_id = desk.find_kb(librarian)
    if kb_id is None:
        raise errors.librarian_without_past(librarian)
    return await service.reading(lambda: service.kbs.shelf_at(kb_id, at))


@dataclasses.dataclass
class AskRun:
    """One question to one librarian."""

    service: Service
    desk: KbLibrarians
    librarian: str
    query: str
    seconds: float
    past: VersionCollection | None = None

    async def response(self, context: Context) -> Response:
        began = time.perf_counter()
        given = await self.desk.ask(
            self.query, first=self.librarian, context=context, timeout=self.seconds, collection=self.past
        )
        code = given.error.code if given.error else ""
        self.service.figures.note_ask(self.librarian, (time.perf_counter() - began) * 1000, code)
        return given

    async def events(self, context: Context) -> AsyncIterator[bytes]:
        """`text` for each piece as it is written, `response` at the end; a comment now and then in between."""
        loop, pieces = asyncio.get_running_loop(), asyncio.Queue[str]()

        def tell(text: str) -> None:
            loop.call_soon_threadsafe(pieces.put_nowait, text)

        task = asyncio.ensure_future(self.response(dataclasses.replace(context, on_text=tell)))
        task.add_done_callback(lambda _: pieces.put_nowait(""))
        while not task.done() or not pieces.empty():
            try:
                async with asyncio.timeout(SIGN_OF_LIFE_SECONDS):
                    piece = await pieces.get()
            except TimeoutError:
                yield b": still at it\n\n"
                continue
            if piece:
                yield _event("text", {"text": piece})
        yield _event("response", task.result().to_json())


def _event(name: str, value: dict[str, Any]) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + pydantic_core.to_json(value) + b"\n\n"


def context_of(service: Service, call: RequestCall, asked: schemas.AskRequest) -> tuple[Context, float]:
    """What the request says of itself, within what it may say; and the seconds it has."""
    given, policy = asked.context or schemas.AskContext(), service.settings.librarians
    budget = given.budget or schemas.AskBudget(policy.max_calls, policy.max_tokens)
    ids = telemetry.parsed(call.header(b"traceparent"))
    if ids is None and given.trace is not None:
        ids = given.trace.traceId, given.trace.spanId
    context = Context(
        user=user_of(call.principal),
        trace=TraceContext(*ids) if ids else None,
        delegation_chain=tuple(given.delegationChain or ()),
        metadata=given.metadata or {},
        request_id=call.request_id,
        budget=Budget(min(budget.calls, policy.max_calls), min(budget.tokens, policy.max_tokens)),
    )
    seconds = policy.timeout_seconds if given.timeout is None else given.timeout / 1000
    return context, min(seconds, policy.timeout_seconds)


def user_of(principal: Principal) -> User | None:
    if not principal.user:
        return None
    return User(principal.id, principal.email, principal.teams, principal.roles)


def is_open_to(principal: Principal, desk: KbLibrarians, librarian: str) -> bool:
    if principal.kbs is None:
        return True
    source = next((each.answers_from for each in desk.list_all() if each.card.id == librarian), "")
    hands_on = desk.registry.desk(librarian).entry.delegates_to != ()
    return source.startswith("kb ") and source.removeprefix("kb ") in principal.kbs and not hands_on
