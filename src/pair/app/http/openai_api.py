"""Librarians for chat clients: each is a model, spoken to as OpenAI's API has it.

Invariants
    A model that the caller may not ask is one that is not there.
    What is streamed is the answer as it was checked: its numbers are those of the sources at its end.
Not here
    The question in a conversation: conversation.py.
"""

import asyncio
import dataclasses
import re
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pydantic_core
from starlette.responses import Response as HttpResponse

from pair import __version__, errors
from pair.app.http import ask, error_responses, schemas
from pair.app.http.context import RequestCall, Service, Streamed, answer
from pair.app.http.conversation import ChatQuestion, ChatRequest, check_supported, question_of
from pair.auth.rules import Principal
from pair.kb.librarians import KbLibrarians
from pair.kb.open import DEFAULT_KB
from pair.librarians.budget import CHARACTERS_PER_TOKEN, tokens_of
from pair.librarians.contract import Citation, Context, Response
from pair.librarians.rules import cut

DEFAULT_MODEL = "pair"
_PATIENCE_SECONDS = 1.0
"""What goes wrong within this time has a status of its own; then the stream begins, and errors are part of it."""
_LEAST_SHARE = 0.2
"""Of the time for an answer: with less left, no second question is asked."""
_MARK = re.compile(r"\[(\d{1,4}(?:\s*,\s*\d{1,4})*)\](?!\()")
_PIECE = re.compile(r".{1,60}(?:\s+|$)|.{1,60}", re.DOTALL)
_LINKABLE = re.compile(r"https?://[^\s<>]+", re.IGNORECASE)

Json = dict[str, Any]


# ── models ─────────────────────────────────────────────────────────────────────────────────────────


async def list_models(service: Service, call: RequestCall) -> HttpResponse:
    names = await service.reading(lambda: _names(service, call.principal))
    return answer({"object": "list", "data": [_model(service, name) for name in names]})


async def get_model(service: Service, call: RequestCall) -> HttpResponse:
    await service.reading(lambda: _chosen(service, call.principal, call.path_value))
    return answer(_model(service, call.path_value))


def _model(service: Service, name: str) -> Json:
    return {"id": name, "object": "model", "created": int(service.started_at.timestamp()), "owned_by": "pair"}


def _names(service: Service, principal: Principal) -> list[str]:
    """Of all that the caller may ask: librarians, and the shelves of KBs."""
    desk, user = service.kbs.desk(DEFAULT_KB), ask.user_of(principal)
    names = [
        each.card.id
        for each in desk.list_all()
        if desk.registry.allows(user, each.card.id) and ask.is_open_to(principal, desk, each.card.id)
    ]
    names += [kb_id for kb_id in service.kbs.stored() if principal.kbs is None or kb_id in principal.kbs]
    first = [DEFAULT_MODEL] if _first(principal, desk) else []
    return list(dict.fromkeys([*first, *names]))


def _first(principal: Principal, desk: KbLibrarians) -> str:
    """Whom the model `pair` stands for; "" when the caller has to choose."""
    if principal.kbs is None:
        return desk.first
    if DEFAULT_KB in principal.kbs:
        return DEFAULT_KB
    return next(iter(principal.kbs)) if len(principal.kbs) == 1 else ""


@dataclass(frozen=True)
class _Chosen:
    desk: KbLibrarians
    librarian: str
    kb_id: str


def _chosen(service: Service, principal: Principal, model: str) -> _Chosen:
    """Raises E605, also for what exists and is not the caller's to use."""
    desk = service.kbs.desk(DEFAULT_KB)
    name = _first(principal, desk) if model == DEFAULT_MODEL and model not in desk.registry else model
    if name in desk.registry and _may_ask(principal, desk, name):
        return _Chosen(desk, name, DEFAULT_KB)
    if name and (principal.kbs is None or name in principal.kbs):
        try:
            own = service.kbs.desk(name)
        except (errors.NotFoundError, errors.UsageError):
            own = None  # no such KB, or no name of one
        if own is not None and _may_ask(principal, own, name):
            return _Chosen(own, name, name)
    raise errors.no_such_model(model, _names(service, principal))


def _may_ask(principal: Principal, desk: KbLibrarians, librarian: str) -> bool:
    allowed = desk.registry.allows(ask.user_of(principal), librarian)
    return allowed and ask.is_open_to(principal, desk, librarian)


# ── completions ────────────────────────────────────────────────────────────────────────────────────


async def complete(service: Service, call: RequestCall) -> HttpResponse | Streamed:
    asked = await call.read(service, ChatRequest)
    check_supported(asked)
    question = question_of(asked.messages)
    chosen = await service.reading(lambda: _chosen(service, call.principal, asked.model))
    call.kb_id = chosen.kb_id
    about = schemas.AskRequest(question.text, context=schemas.AskContext(metadata={"conversation": [*question.turns]}))
    context, seconds = ask.context_of(service, call, about)
    task = asyncio.ensure_future(_answered(service, chosen, question, context, seconds))
    completion = _Completion(f"chatcmpl-{call.request_id}", int(service.clock.now().timestamp()), asked, question)
    if asked.stream:
        await asyncio.wait([task], timeout=_PATIENCE_SECONDS)
        if not task.done() or error_responses.status_of_response(task.result()) == 200:
            return Streamed(ask.EVENTS, completion.chunks(task))
    response = await task
    status = error_responses.status_of_response(response)
    if status != 200:
        body = pydantic_core.to_json({"error": _error_of(response)})
        return HttpResponse(body, status, error_responses.retry_headers(status), "application/json")
    return answer(completion.whole(response))


async def _answered(
    service: Service, chosen: _Chosen, question: ChatQuestion, context: Context, seconds: float
) -> Response:
    """A question that finds nothing by itself is asked again together with the one before it."""
    began = time.monotonic()
    asked = ask.AskRun(service, chosen.desk, chosen.librarian, question.text, seconds)
    response = await asked.response(context)
    left = seconds - (time.monotonic() - began)
    if not response.metadata.get("nothingRelevant") or not question.before or left < seconds * _LEAST_SHARE:
        return response
    again = await dataclasses.replace(asked, query=question.in_context(), seconds=left).response(context)
    is_better = again.answer is not None and not again.metadata.get("nothingRelevant")
    return again if is_better else response


def _error_of(response: Response) -> Json:
    error = response.error
    if error is None:
        return error_responses.openai_error(500, "INTERNAL_ERROR", "The librarian gave no answer")
    code = str(error.details.get("code", error.code))
    message = ". ".join(filter(None, [error.message, *error.suggestion.splitlines()]))
    return error_responses.openai_error(error_responses.status_of_response(response), code, message)


@dataclass(frozen=True)
class _Completion:
    """One answer, as it is told to a chat client."""

    id: str
    created: int
    asked: ChatRequest
    question: ChatQuestion

    def whole(self, response: Response) -> Json:
        told = _told(response, self.asked.token_limit)
        message = {"role": "assistant", "content": told.text, "refusal": None, "annotations": told.annotations}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": told.finish_reason}
        return {
            **self._head("chat.completion", _fingerprint(response)),
            "choices": [choice],
            "usage": self._usage(told),
            **told.about,
        }

    async def chunks(self, task: "asyncio.Future[Response]") -> AsyncIterator[bytes]:
        """The role at once, a comment now and then, then the text in pieces, and what belongs to it with the last."""
        yield self._chunk({"role": "assistant", "content": ""})
        while not task.done():
            await asyncio.wait([task], timeout=ask.SIGN_OF_LIFE_SECONDS)
            if not task.done():
                yield b": still at it\n\n"
        response = task.result()
        if error_responses.status_of_response(response) != 200:
            yield _data({"error": _error_of(response)})
            yield b"data: [DONE]\n\n"
            return
        told, mark = _told(response, self.asked.token_limit), _fingerprint(response)
        for piece in _PIECE.findall(told.text):
            yield self._chunk({"content": piece}, fingerprint=mark)
        last = self._chunk_value({"annotations": told.annotations}, told.finish_reason, mark)
        yield _data({**last, **told.about})
        if self.asked.wants_usage_in_stream:
            value = {**self._head("chat.completion.chunk", mark), "choices": [], "usage": self._usage(told)}
            yield _data(value)
        yield b"data: [DONE]\n\n"

    def _chunk(self, delta: Json, fingerprint: str = "") -> bytes:
        return _data(self._chunk_value(delta, None, fingerprint))

    def _chunk_value(self, delta: Json, finish_reason: str | None, fingerprint: str) -> Json:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        value = {**self._head("chat.completion.chunk", fingerprint), "choices": [choice]}
        return {**value, "usage": None} if self.asked.wants_usage_in_stream else value

    def _head(self, kind: str, fingerprint: str) -> Json:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.asked.model,
            "system_fingerprint": fingerprint or f"pair-{__version__}",
        }

    def _usage(self, told: "_Told") -> Json:
        read, written = tokens_of(self.question.said), tokens_of(told.text)
        return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


@dataclass(frozen=True)
class _Told:
    text: str
    finish_reason: str
    annotations: list[Json]
    about: Json = field(default_factory=dict)


def _told(response: Response, token_limit: int | None) -> _Told:
    said, is_cut = response.answer or "", bool(response.metadata.get("truncated"))
    if token_limit is not None and tokens_of(said) > token_limit:
        said, is_cut = cut(said, token_limit * CHARACTERS_PER_TOKEN), True
    text = said + _listed(response.sources)
    about = {
        "sources": [source.to_json() for source in response.sources],
        "confidence": response.confidence,
        "partial": response.partial or is_cut,
        "librarian": response.metadata.get("librarian"),
    }
    return _Told(text, "length" if is_cut else "stop", _annotations(text, response.sources), about)


def _listed(sources: Sequence[Citation]) -> str:
    """The sources by their numbers, as people read them."""
    if not sources:
        return ""
    lines = []
    for number, source in enumerate(sources, 1):
        name = " ".join(source.name.split())
        lines.append(f"- [{number}] {name}" + (f" <{source.url}>" if _LINKABLE.fullmatch(source.url) else ""))
    return "\n\nSources:\n\n" + "\n".join(lines)


def _annotations(text: str, sources: Sequence[Citation]) -> list[Json]:
    """Every mark in the text whose source has an address."""
    found: list[Json] = []
    for mark in _MARK.finditer(text):
        for number in (int(each) for each in mark[1].split(",")):
            source = sources[number - 1] if 1 <= number <= len(sources) else None
            if source is not None and _LINKABLE.fullmatch(source.url):
                place = {"start_index": mark.start(), "end_index": mark.end()}
                cited = {**place, "title": source.name, "url": source.url}
                found.append({"type": "url_citation", "url_citation": cited})
    return found


def _fingerprint(response: Response) -> str:
    """Another one after every write to what was cited."""
    versions = [source.provenance.manifest_version for source in response.sources if source.provenance]
    return f"pair-{__version__}-manifest-{max(versions)}" if versions else f"pair-{__version__}"


def _data(value: Json) -> bytes:
    return b"data: " + pydantic_core.to_json(value) + b"\n\n"
