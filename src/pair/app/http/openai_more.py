"""Two more routes of the OpenAI API: responses, and embeddings by the embedder of the knowledge bases."""

import asyncio
import base64
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import pydantic_core
from annotated_types import MaxLen, MinLen
from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.responses import Response as HttpResponse

from pair import errors
from pair.app.http import openai_api, responses, schemas
from pair.app.http.ask import KEEP_ALIVE, read_context
from pair.app.http.context import Reader
from pair.app.http.openai_api import DEFAULT_MODEL, ChatQuestion, LiveAnswer, Message, read_question
from pair.app.http.openapi import describe
from pair.app.http.responses import EVENTS, Streamed, answer
from pair.kb.open import DEFAULT_KB
from pair.librarians.contract import Response
from pair.librarians.dispatch import tokens_of

router = APIRouter()
Json = dict[str, Any]
_Input = Annotated[str, MinLen(1), MaxLen(100_000)]
_EmptyTools = Annotated[list[Any] | None, Field(json_schema_extra={"maxItems": 0})]
_NoText = Annotated[str | None, Field(json_schema_extra={"type": "null"})]


@dataclass(frozen=True)
class InputPart:
    """A part of an input message."""

    type: Annotated[str, Field(examples=["input_text"])]
    text: str | None = None


@dataclass(frozen=True)
class InputMessage:
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[InputPart]

    def to_message(self, number: int) -> Message:
        """Return the message of a chat. Raises E601 for anything but text."""
        if isinstance(self.content, str):
            return Message(self.role, self.content)
        for place, part in enumerate(self.content):
            if part.type not in {"input_text", "output_text", "text"} or part.text is None:
                raise errors.request_invalid(f"input.{number}.content.{place}.type: only text can be read")
        return Message(self.role, "\n".join(part.text or "" for part in self.content))


@dataclass(frozen=True)
class ResponsesRequest:
    """A question to a librarian. Other parameters of the OpenAI API are accepted and ignored."""

    input: _Input | Annotated[list[InputMessage], MinLen(1)]
    model: Annotated[str, MaxLen(256)] = DEFAULT_MODEL
    instructions: str | None = None
    stream: bool | None = None
    max_output_tokens: Annotated[int | None, Field(json_schema_extra={"minimum": 1})] = None
    previous_response_id: _NoText = None
    tools: _EmptyTools = None

    def read(self) -> ChatQuestion:
        """Return the question. Raises E601, also for a parameter that would change the answer and is not supported."""
        faults = {
            "previous_response_id: no response is stored; send the earlier messages as input": (
                self.previous_response_id is not None
            ),
            "max_output_tokens: at least one": self.max_output_tokens is not None and self.max_output_tokens < 1,
            "tools: librarians call no tools": self.tools,
        }
        for reason, is_fault in faults.items():
            if is_fault:
                raise errors.request_invalid(reason)
        if isinstance(self.input, str):
            return read_question([Message("user", self.input)])
        return read_question([message.to_message(number) for number, message in enumerate(self.input)])


class ResponsesOutput(BaseModel, extra="allow"):
    type: Literal["message"]
    id: str
    status: str
    role: Literal["assistant"]
    content: list[dict[str, Any]]


class ResponsesResponse(BaseModel, extra="allow"):
    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["completed", "incomplete", "in_progress", "failed"]
    model: str
    output: list[ResponsesOutput]
    usage: dict[str, Any] | None
    sources: list[schemas.AnswerSource]
    confidence: float | None
    partial: bool
    librarian: str | None


@router.post("/v1/responses", **describe(ResponsesResponse, 404, body=ResponsesRequest))
async def respond(request: Reader) -> HttpResponse:
    """Ask a librarian with the Responses API

    The request and the response follow the Responses API of OpenAI; nothing is stored. With `"stream": true`, the
    response is a stream of server-sent events.
    """
    asked = await request.read(ResponsesRequest)
    question, service, access = asked.read(), request.service, request.access
    run, access.kb_id = await service.read(lambda: openai_api.choose_librarian(access, asked.model, question.text))
    context, _ = read_context(access, schemas.AskContext(metadata={"conversation": question.turns}))
    live = LiveAnswer(is_silent=not asked.stream or asked.max_output_tokens is not None)
    task = asyncio.ensure_future(openai_api.answer_question(run, question, live.listen(context)))
    shown = _ResponseFormat(access.request_id, int(service.clock.now().timestamp()), asked, question)
    if asked.stream and await live.is_good_so_far(task):
        return Streamed(EVENTS, shown.stream(task, live))
    response = await task
    status = responses.response_status(response)
    if status != 200:
        return answer({"error": openai_api.format_error(response)}, status, responses.retry_headers(status))
    return answer(shown.format(response))


@dataclass(frozen=True)
class _ResponseFormat:
    """A formatter of one answer for the Responses API."""

    id: str
    created: int
    asked: ResponsesRequest
    question: ChatQuestion

    def format(self, response: Response) -> Json:
        text, is_cut = openai_api.format_answer(response, self.asked.max_output_tokens)
        part = self._part(text, response)
        read, written = tokens_of(self.question.conversation), tokens_of(text)
        usage = {
            "input_tokens": read,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": written,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": read + written,
        }
        status = "incomplete" if is_cut else "completed"
        reason = {"reason": "max_output_tokens"} if is_cut else None
        value = {**self._head(status), "output": [self._item("completed", [part])], "usage": usage}
        return {**value, "incomplete_details": reason, **openai_api.list_extra(response, is_cut)}

    async def stream(self, task: "asyncio.Future[Response]", live: LiveAnswer) -> AsyncIterator[bytes]:
        """Yield the events of the API: the beginning, the text in pieces, the whole text, and the response."""
        number = 0

        def event(name: str, more: Json) -> bytes:
            nonlocal number
            value = {"type": f"response.{name}", "sequence_number": number, **more}
            number += 1
            return f"event: response.{name}\ndata: ".encode() + pydantic_core.to_json(value) + b"\n\n"

        place: Json = {"item_id": f"msg_{self.id}", "output_index": 0, "content_index": 0}
        yield event("created", {"response": self._head("in_progress")})
        yield event("output_item.added", {"output_index": 0, "item": self._item("in_progress", [])})
        yield event("content_part.added", {**place, "part": self._part("", None)})
        async for new in live.follow(task):
            yield event("output_text.delta", {**place, "delta": new, "logprobs": []}) if new else KEEP_ALIVE
        response = task.result()
        if responses.response_status(response) != 200:
            error = openai_api.format_error(response)
            failed = {**self._head("failed"), "error": {"code": "server_error", "message": error["message"]}}
            yield event("failed", {"response": failed})
            return
        value = self.format(response)
        item = value["output"][0]
        part = item["content"][0]
        for piece in openai_api.PIECE.findall(live.finish(part["text"])):
            yield event("output_text.delta", {**place, "delta": piece, "logprobs": []})
        yield event("output_text.done", {**place, "text": part["text"], "logprobs": []})
        yield event("content_part.done", {**place, "part": part})
        yield event("output_item.done", {"output_index": 0, "item": item})
        yield event(value["status"], {"response": value})

    def _head(self, status: str) -> Json:
        return {
            "id": "resp_" + self.id.removeprefix("resp_"),
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "instructions": self.asked.instructions,
            "max_output_tokens": self.asked.max_output_tokens,
            "model": self.asked.model,
            "output": [],
            "parallel_tool_calls": False,
            "previous_response_id": None,
            "temperature": None,
            "tool_choice": "none",
            "tools": [],
            "top_p": None,
            "metadata": {},
            "usage": None,
        }

    def _item(self, status: str, content: list[Json]) -> Json:
        return {"type": "message", "id": f"msg_{self.id}", "status": status, "role": "assistant", "content": content}

    def _part(self, text: str, response: Response | None) -> Json:
        cited = openai_api.annotate(text, response.sources) if response is not None else []
        annotations = [{"type": "url_citation", **citation["url_citation"]} for citation in cited]
        return {"type": "output_text", "text": text, "annotations": annotations, "logprobs": []}


# ── embeddings ────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class EmbeddingsRequest:
    """Texts to embed. `model`: `pair`, or the name of the embedder."""

    input: _Input | Annotated[list[_Input], MinLen(1), MaxLen(2048)]
    model: Annotated[str, MaxLen(256)] = DEFAULT_MODEL
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int | None, Field(json_schema_extra={"type": "null"})] = None


class EmbeddingItem(BaseModel):
    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingsResponse(BaseModel):
    object: Literal["list"]
    data: list[EmbeddingItem]
    model: str
    usage: dict[str, int]


@router.post("/v1/embeddings", **describe(EmbeddingsResponse, 404, body=EmbeddingsRequest))
async def embed(request: Reader) -> HttpResponse:
    """Embed texts with the embedder of the knowledge bases

    The request and the response follow the Embeddings API of OpenAI. The vectors have length 1.
    """
    asked = await request.read(EmbeddingsRequest)
    texts = [asked.input] if isinstance(asked.input, str) else asked.input
    service = request.service

    def embed_texts() -> tuple[str, list[Any]]:
        embedding = service.kbs.get(DEFAULT_KB).collection.embedding
        if asked.model not in {DEFAULT_MODEL, embedding.name}:
            raise errors.no_such_model(asked.model, [DEFAULT_MODEL, embedding.name])
        if asked.dimensions is not None and asked.dimensions != embedding.dimension:
            raise errors.request_invalid(f"dimensions: the vectors of {embedding.name} have {embedding.dimension}")
        vectors = embedding.embed_all(texts)
        if asked.encoding_format == "base64":
            return embedding.name, [
                base64.b64encode(vector.astype(np.dtype("<f4")).tobytes()).decode() for vector in vectors
            ]
        return embedding.name, vectors.tolist()

    name, vectors = await service.read(embed_texts)
    data = [{"object": "embedding", "index": number, "embedding": vector} for number, vector in enumerate(vectors)]
    tokens = sum(map(tokens_of, texts))
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return answer({"object": "list", "data": data, "model": name, "usage": usage})
