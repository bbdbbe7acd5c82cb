"""Librarians as models of the OpenAI API, for chat clients.

Invariants
    A model that the caller may not ask does not exist for the caller.
    A stream sends the answer as a model writes it, with the citation numbers of the sources at its end. If the check
    of the finished answer changes what was sent, the checked answer follows.
"""

import asyncio
import contextlib
import dataclasses
import re
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pydantic_core
from annotated_types import MaxLen, MinLen
from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.responses import Response as HttpResponse

from pair import __version__, errors
from pair.app.http import responses, schemas
from pair.app.http.ask import KEEP_ALIVE, KEEP_ALIVE_SECONDS, read_context
from pair.app.http.context import HttpRequest, Reader
from pair.app.http.openapi import describe
from pair.app.http.responses import EVENTS, Streamed, answer
from pair.app.kb_access import AskRun, KbAccess
from pair.kb.librarians import KbLibrarians
from pair.kb.open import DEFAULT_KB
from pair.librarians.contract import Citation, Context, Response
from pair.librarians.dispatch import CHARACTERS_PER_TOKEN, tokens_of
from pair.librarians.prompting import check_citations
from pair.librarians.rules import cut

router = APIRouter()

DEFAULT_MODEL = "pair"
_MOST_TURNS = 20
_MOST_TURN_CHARACTERS = 8_000
"""Total length of the earlier turns that librarians receive."""
_STATUS_SECONDS = 1.0
"""An error within this time sets the HTTP status. Then the stream begins, and an error is an event in it."""
_LEAST_SHARE = 0.2
"""Share of the timeout that must be left for a second question."""
_MANY_PASSAGES = 10_000
"""More passages than a model gets: any number may be a citation while an answer is written."""
_CHECKED = "\n\nThe checked answer:\n\n"
_MARK = re.compile(r"\[(\d{1,4}(?:\s*,\s*\d{1,4})*)\](?!\()")
PIECE = re.compile(r".{1,60}(?:\s+|$)|.{1,60}", re.DOTALL)
_LINKABLE = re.compile(r"https?://[^\s<>]+", re.IGNORECASE)
Json = dict[str, Any]


# ── requests and responses ────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Part:
    """A part of a message."""

    type: Annotated[str, Field(examples=["text"])]
    text: str | None = None


@dataclass(frozen=True)
class Message:
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[Part] | None = None

    def text(self, where: str) -> str:
        """Return the text of all parts. Raises E601 for images, audio and tool calls."""
        if self.role in {"tool", "function"}:
            raise errors.request_invalid(f"{where}.role: librarians call no tools")
        if self.content is None or isinstance(self.content, str):
            return self.content or ""
        for number, part in enumerate(self.content):
            if part.type != "text" or part.text is None:
                shown = part.type[:40] if part.type.isprintable() else "this"
                raise errors.request_invalid(f"{where}.content.{number}.type: only text can be read, not {shown}")
        return "\n".join(part.text or "" for part in self.content)


@dataclass(frozen=True)
class StreamOptions:
    include_usage: bool | None = None


_PositiveInt = Annotated[int | None, Field(json_schema_extra={"minimum": 1})]
_EmptyList = Annotated[list[Any] | None, Field(json_schema_extra={"maxItems": 0})]


@dataclass(frozen=True)
class ChatRequest:
    """A conversation with a librarian. Other parameters of the OpenAI API are accepted and ignored."""

    messages: Annotated[list[Message], MinLen(1)]
    model: Annotated[str, MaxLen(256)] = DEFAULT_MODEL
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: _PositiveInt = None
    max_completion_tokens: _PositiveInt = None
    n: Annotated[int | None, Field(json_schema_extra={"const": 1})] = None
    tools: _EmptyList = None
    functions: _EmptyList = None
    response_format: dict[str, Any] | None = None
    modalities: list[str] | None = None

    @property
    def token_limit(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def wants_usage_in_stream(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    def check(self) -> None:
        """Raise E601 for a parameter that would change the answer and is not supported."""
        most = self.max_completion_tokens
        faults = {
            "n: only one answer is supported": self.n not in {None, 1},
            "max_tokens: at least one": self.max_tokens is not None and self.max_tokens < 1,
            "max_completion_tokens: at least one": most is not None and most < 1,
            "tools: librarians call no tools": self.tools,
            "functions: librarians call no functions": self.functions,
            "response_format.type: only text is supported": (self.response_format or {}).get("type", "text") != "text",
            "modalities: only text is supported": any(modality != "text" for modality in self.modalities or ()),
        }
        for reason, is_fault in faults.items():
            if is_fault:
                raise errors.request_invalid(reason)


class ModelResponse(BaseModel):
    id: str
    object: Literal["model"]
    created: int
    owned_by: Literal["pair"]


class ModelListResponse(BaseModel):
    object: Literal["list"]
    data: list[ModelResponse]


class CompletionMessage(BaseModel):
    role: Literal["assistant"]
    content: str
    refusal: None
    annotations: list[dict[str, Any]]


class CompletionChoice(BaseModel):
    index: int
    message: CompletionMessage
    logprobs: None
    finish_reason: Literal["stop", "length"]


class CompletionUsage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class CompletionResponse(BaseModel):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: CompletionUsage
    sources: list[schemas.AnswerSource]
    confidence: float | None
    partial: bool
    librarian: str | None


@dataclass(frozen=True)
class ChatQuestion:
    """The last message of the user, and the conversation around it."""

    text: str
    before: str
    """The previous question; "" if there is none."""
    turns: list[dict[str, str]]
    """The latest other messages, oldest first."""
    conversation: str
    """All texts, to count their tokens."""


def read_question(messages: Sequence[Message]) -> ChatQuestion:
    """Return the question in a conversation. Raises E601."""
    texts = [message.text(f"messages.{number}") for number, message in enumerate(messages)]
    asked = [number for number, message in enumerate(messages) if message.role == "user" and texts[number].strip()]
    if not asked:
        raise errors.request_invalid("messages: no message of the user has text")
    others = [
        (messages[number].role, text) for number, text in enumerate(texts) if number != asked[-1] and text.strip()
    ]
    turns: list[dict[str, str]] = []
    left = _MOST_TURN_CHARACTERS
    for role, text in reversed(others[-_MOST_TURNS:]):
        if left <= 0:
            break
        turns.append({"role": role, "content": text[:left]})
        left -= len(text)
    before = texts[asked[-2]].strip() if len(asked) > 1 else ""
    return ChatQuestion(texts[asked[-1]].strip(), before, turns[::-1], "\n".join(texts))


@router.get("/v1/models", **describe(ModelListResponse))
async def list_models(request: Reader) -> HttpResponse:
    """List librarians and knowledge bases as models"""
    names = await request.service.read(lambda: list_names(request.access))
    return answer({"object": "list", "data": [_describe_model(request, name) for name in names]})


@router.get("/v1/models/{id:text}", **describe(ModelResponse, 404))
async def get_model(request: Reader, id: schemas.PathId) -> HttpResponse:
    """Get a librarian or a knowledge base as a model"""
    await request.service.read(lambda: choose_librarian(request.access, id))
    return answer(_describe_model(request, id))


def _describe_model(request: HttpRequest, name: str) -> Json:
    created = int(request.service.started_at.timestamp())
    return {"id": name, "object": "model", "created": created, "owned_by": "pair"}


def list_names(access: KbAccess) -> list[str]:
    """List the models that the caller may ask: librarians and KBs."""
    kbs = access.service.kbs
    librarians = kbs.librarians(DEFAULT_KB)
    names = [DEFAULT_MODEL] if _find_first(access, librarians) else []
    names += [one.card.id for one in librarians.list_all() if access.may_ask(librarians, one.card.id)]
    names += [kb_id for kb_id in kbs.list_stored() if access.may_use(kb_id)]
    return list(dict.fromkeys(names))


def _find_first(access: KbAccess, librarians: KbLibrarians) -> str:
    """Return the librarian for the model `pair`; "" if the caller must choose."""
    kbs = access.principal.kbs
    if kbs is None:
        return librarians.first
    if DEFAULT_KB in kbs:
        return DEFAULT_KB
    return next(iter(kbs)) if len(kbs) == 1 else ""


def choose_librarian(access: KbAccess, model: str, query: str = "") -> tuple[AskRun, str]:
    """Return the question to the librarian of a model, and its KB.

    Raises E605 if there is no such model, or the caller may not ask it.
    """
    librarians = access.service.kbs.librarians(DEFAULT_KB)
    is_first = model == DEFAULT_MODEL and model not in librarians.registry
    name = _find_first(access, librarians) if is_first else model
    if name in librarians.registry and access.may_ask(librarians, name):
        return AskRun(access, librarians, name, query), DEFAULT_KB
    if name and access.may_use(name):
        try:
            own = access.service.kbs.librarians(name)
        except (errors.NotFoundError, errors.UsageError):
            own = None  # no such KB, or not a valid name
        if own is not None and access.may_ask(own, name):
            return AskRun(access, own, name, query), name
    raise errors.no_such_model(model, list_names(access))


@router.post("/v1/chat/completions", **describe(CompletionResponse, 404, body=ChatRequest))
async def complete(request: Reader) -> HttpResponse:
    """Ask a librarian with a chat client

    The request and the response follow the Chat Completions API of OpenAI. With `"stream": true`, the response is a
    stream of server-sent events.
    """
    chat = await request.read(ChatRequest)
    chat.check()
    question, service, access = read_question(chat.messages), request.service, request.access
    run, access.kb_id = await service.read(lambda: choose_librarian(access, chat.model, question.text))
    context, _ = read_context(access, schemas.AskContext(metadata={"conversation": question.turns}))
    live = LiveAnswer(is_silent=not chat.stream or chat.token_limit is not None)
    task = asyncio.ensure_future(answer_question(run, question, live.listen(context)))
    completion = _Completion(
        "chatcmpl-" + access.request_id.removeprefix("chatcmpl-"), int(service.clock.now().timestamp()), chat, question
    )
    if chat.stream and await live.is_good_so_far(task):
        return Streamed(EVENTS, completion.stream(task, live))
    response = await task
    status = responses.response_status(response)
    if status != 200:
        return answer({"error": format_error(response)}, status, responses.retry_headers(status))
    return answer(completion.format(response))


class LiveAnswer:
    """The text of an answer while a model writes it."""

    def __init__(self, *, is_silent: bool = False) -> None:
        """`is_silent`: send nothing before the answer is finished."""
        self._is_silent = is_silent
        self._loop, self._pieces = asyncio.get_running_loop(), asyncio.Queue[str]()
        self._has_begun = asyncio.Event()
        self._written = self._sent = ""

    def listen(self, context: Context) -> Context:
        return context if self._is_silent else dataclasses.replace(context, on_text=self._put)

    def _put(self, text: str) -> None:
        self._loop.call_soon_threadsafe(self._pieces.put_nowait, text)
        self._loop.call_soon_threadsafe(self._has_begun.set)

    async def is_good_so_far(self, task: "asyncio.Future[Response]") -> bool:
        """Wait a moment for the first text or the response. Return False for an error, which sets the HTTP status."""
        task.add_done_callback(lambda _: self._has_begun.set())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STATUS_SECONDS):
                await self._has_begun.wait()
        return not task.done() or responses.response_status(task.result()) == 200

    async def follow(self, task: "asyncio.Future[Response]") -> AsyncIterator[str]:
        """Yield new text until the response is complete, and "" when a keep-alive must be sent."""
        task.add_done_callback(lambda _: self._pieces.put_nowait(""))
        while not task.done() or not self._pieces.empty():
            try:
                async with asyncio.timeout(KEEP_ALIVE_SECONDS):
                    self._written += await self._pieces.get()
            except TimeoutError:
                yield ""
                continue
            if new := self._take():
                yield new

    def _take(self) -> str:
        """Return new whole words, with the citation numbers that the finished answer will have."""
        whole = re.match(r"(?s).*(?=\s)", self._written)
        numbered = check_citations(whole[0] if whole else "", _MANY_PASSAGES).answer
        if not numbered.startswith(self._sent):
            return ""
        new, self._sent = numbered[len(self._sent) :], numbered
        return new

    def finish(self, answer: str) -> str:
        """Return the rest of the answer; all of it if the check changed what was sent."""
        return answer[len(self._sent) :] if answer.startswith(self._sent) else f"{_CHECKED}{answer}"


async def answer_question(run: AskRun, question: ChatQuestion, context: Context) -> Response:
    """Ask. If a follow-up question finds nothing, ask again together with the previous question."""
    began, seconds = time.monotonic(), run.access.service.settings.librarians.timeout_seconds
    response = await run.answer(context, seconds)
    left = seconds - (time.monotonic() - began)
    if not response.metadata.get("nothingRelevant") or not question.before or left < seconds * _LEAST_SHARE:
        return response
    both = f"{question.before}\n{question.text}"
    again = await dataclasses.replace(run, query=both).answer(context, left)
    is_better = again.answer is not None and not again.metadata.get("nothingRelevant")
    return again if is_better else response


def format_error(response: Response) -> Json:
    error = response.error
    if error is None:
        return responses.openai_error(500, "INTERNAL_ERROR", "The librarian returned no answer")
    code = str(error.details.get("code", error.code))
    message = ". ".join(filter(None, [error.message, *error.suggestion.splitlines()]))
    return responses.openai_error(responses.response_status(response), code, message)


@dataclass(frozen=True)
class _Completion:
    """One answer in the format of the API."""

    id: str
    created: int
    chat: ChatRequest
    question: ChatQuestion

    def format(self, response: Response) -> Json:
        text, annotations, finish_reason, extra = self._read(response)
        message = {"role": "assistant", "content": text, "refusal": None, "annotations": annotations}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason}
        head = self._head("chat.completion", _fingerprint(response))
        return {**head, "choices": [choice], "usage": self._usage(text), **extra}

    async def stream(self, task: "asyncio.Future[Response]", live: LiveAnswer) -> AsyncIterator[bytes]:
        """Yield the role at once, comments while waiting, the text in pieces, and the sources in the last one."""
        yield _format_data(self._chunk({"role": "assistant", "content": ""}, f"pair-{__version__}"))
        async for new in live.follow(task):
            yield _format_data(self._chunk({"content": new}, f"pair-{__version__}")) if new else KEEP_ALIVE
        response = task.result()
        if responses.response_status(response) == 200:
            text, annotations, finish_reason, extra = self._read(response)
            fingerprint = _fingerprint(response)
            for piece in PIECE.findall(live.finish(text)):
                yield _format_data(self._chunk({"content": piece}, fingerprint))
            yield _format_data({**self._chunk({"annotations": annotations}, fingerprint, finish_reason), **extra})
            if self.chat.wants_usage_in_stream:
                head = self._head("chat.completion.chunk", fingerprint)
                yield _format_data({**head, "choices": [], "usage": self._usage(text)})
        else:
            yield _format_data({"error": format_error(response)})
        yield b"data: [DONE]\n\n"

    def _read(self, response: Response) -> tuple[str, list[Json], str, Json]:
        """Return the text with its sources, its annotations, the finish reason, and the fields of pair."""
        text, is_cut = format_answer(response, self.chat.token_limit)
        return text, annotate(text, response.sources), "length" if is_cut else "stop", list_extra(response, is_cut)

    def _chunk(self, delta: Json, fingerprint: str, finish_reason: str | None = None) -> Json:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        value = {**self._head("chat.completion.chunk", fingerprint), "choices": [choice]}
        return {**value, "usage": None} if self.chat.wants_usage_in_stream else value

    def _head(self, kind: str, fingerprint: str) -> Json:
        head = {"id": self.id, "object": kind, "created": self.created, "model": self.chat.model}
        return {**head, "system_fingerprint": fingerprint}

    def _usage(self, text: str) -> Json:
        read, written = tokens_of(self.question.conversation), tokens_of(text)
        return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


def _format_sources(sources: Sequence[Citation]) -> str:
    """List the numbered sources as Markdown."""
    if not sources:
        return ""
    lines = []
    for number, source in enumerate(sources, 1):
        name = " ".join(source.name.split())
        lines.append(f"- [{number}] {name}" + (f" <{source.url}>" if _LINKABLE.fullmatch(source.url) else ""))
    return "\n\nSources:\n\n" + "\n".join(lines)


def format_answer(response: Response, limit: int | None) -> tuple[str, bool]:
    """Return the answer with its sources, in at most `limit` tokens without them, and whether it was cut."""
    text, is_cut = response.answer or "", bool(response.metadata.get("truncated"))
    if limit is not None and tokens_of(text) > limit:
        text, is_cut = cut(text, limit * CHARACTERS_PER_TOKEN), True
    return text + _format_sources(response.sources), is_cut


def list_extra(response: Response, is_cut: bool) -> Json:
    """Return the fields that the API of OpenAI does not have."""
    return {
        "sources": [source.to_json() for source in response.sources],
        "confidence": response.confidence,
        "partial": response.partial or is_cut,
        "librarian": response.metadata.get("librarian"),
    }


def annotate(text: str, sources: Sequence[Citation]) -> list[Json]:
    """Return an annotation for every citation number in the text whose source has a URL."""
    annotations: list[Json] = []
    for mark in _MARK.finditer(text):
        for number in map(int, mark[1].split(",")):
            source = sources[number - 1] if 1 <= number <= len(sources) else None
            if source is not None and _LINKABLE.fullmatch(source.url):
                place = {"start_index": mark.start(), "end_index": mark.end()}
                citation = {**place, "title": source.name, "url": source.url}
                annotations.append({"type": "url_citation", "url_citation": citation})
    return annotations


def _fingerprint(response: Response) -> str:
    """Return a text that changes with the version of pair and with every write to the cited KBs."""
    versions = [source.provenance.manifest_version for source in response.sources if source.provenance]
    return f"pair-{__version__}-manifest-{max(versions)}" if versions else f"pair-{__version__}"


def _format_data(value: Json) -> bytes:
    return b"data: " + pydantic_core.to_json(value) + b"\n\n"
