"""A librarian behind HTTP, same contract: deadline, chain, budget and trace are passed on.

Invariants
    Who asks is not told in the body: the other side believes its own credential only.
    No redirect is followed, so the credential goes to the endpoint and nowhere else.
    Citations name the librarian before the KB: what they point to is on its server.
"""

import asyncio
import json
import weakref
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import httpx2

from pair import telemetry
from pair.librarians import provenance
from pair.librarians.citations import mark_remote
from pair.librarians.contract import Context, ErrorCode, Response
from pair.values import redact_url

VERSION = "1.0"
MAX_ANSWER_BYTES = 2_000_000
_CODES = frozenset(code.value for code in ErrorCode)
_CODES_OF_STATUS = {
    400: ErrorCode.INVALID_QUERY,
    401: ErrorCode.UNAUTHORIZED,
    403: ErrorCode.UNAUTHORIZED,
    404: ErrorCode.NOT_FOUND,
    408: ErrorCode.TIMEOUT,
    413: ErrorCode.INVALID_QUERY,
    422: ErrorCode.INVALID_QUERY,
    429: ErrorCode.RATE_LIMITED,
    502: ErrorCode.SERVICE_UNAVAILABLE,
    503: ErrorCode.SERVICE_UNAVAILABLE,
    504: ErrorCode.TIMEOUT,
}


class RemoteLibrarian:
    """Asks the librarian at `endpoint`, such as `https://host/librarians/handbook/ask`."""

    def __init__(self, endpoint: str, *, token: str = "", timeout_seconds: float = 30.0) -> None:
        self.endpoint = endpoint
        self._token = token
        self._timeout_seconds = timeout_seconds
        # Connections belong to the loop they were made on.
        self._clients: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, httpx2.AsyncClient] = (
            weakref.WeakKeyDictionary()
        )

    async def __call__(self, query: str, context: Context | None = None) -> Response:
        given = context or Context()
        seconds = self._timeout_seconds if given.timeout_ms is None else given.timeout_ms / 1000
        try:
            async with asyncio.timeout(seconds):
                response = await self._asked(query, given)
        except TimeoutError:
            return self._failed(ErrorCode.TIMEOUT, "did not answer in time")
        except httpx2.HTTPError as fault:
            return self._failed(ErrorCode.SERVICE_UNAVAILABLE, f"cannot be reached ({type(fault).__name__})")
        if given.librarian is None:
            return response
        librarian_id = given.librarian.id
        return replace(
            response,
            sources=tuple(mark_remote(source, librarian_id) for source in response.sources),
            metadata=provenance.mark_remote(response.metadata, librarian_id),
        )

    async def _asked(self, query: str, context: Context) -> Response:
        request = self._client().build_request(
            "POST", self.endpoint, content=body_of(query, context), headers=self._headers(context)
        )
        answer = await self._client().send(request, stream=True)
        try:
            body = await _body(answer)
        finally:
            await answer.aclose()
        if body is None:
            return self._failed(ErrorCode.DATA_SOURCE_ERROR, "gave an answer that is too long or encoded")
        return self._understood(answer.status_code, body)

    def _understood(self, status: int, body: bytes) -> Response:
        try:
            value = json.loads(body)
            if not isinstance(value, Mapping):
                raise ValueError("no object")
            error = value.get("error")
            if isinstance(error, Mapping) and error.get("code") not in _CODES:
                return self._of_status(status, str(error.get("message", "")))
            response = Response.from_json(value)
        except (ValueError, TypeError, RecursionError):
            if status != 200:
                return self._of_status(status, "")
            return self._failed(ErrorCode.DATA_SOURCE_ERROR, "gave an answer that is not understood")
        if status != 200 and response.error is None:
            return self._of_status(status, "")
        return response

    def _of_status(self, status: int, message: str) -> Response:
        said = f": {message[:500]}" if message.strip() else ""
        return self._failed(
            _CODES_OF_STATUS.get(status, ErrorCode.DATA_SOURCE_ERROR), f"answered with status {status}{said}"
        )

    def _failed(self, code: ErrorCode, what: str) -> Response:
        return Response.failing(
            code,
            f"The librarian at {redact_url(self.endpoint)} {what}",
            recoverable=code in {ErrorCode.TIMEOUT, ErrorCode.SERVICE_UNAVAILABLE, ErrorCode.RATE_LIMITED},
        )

    def _headers(self, context: Context) -> dict[str, str]:
        headers = {
            "content-type": "application/json",
            "accept": "application/json",
            "accept-encoding": "identity",  # what is counted is what is read
        }
        if self._token:
            headers["authorization"] = f"Bearer {self._token}"
        trace = context.trace
        if trace is not None and (parent := telemetry.format_traceparent(trace.trace_id, trace.span_id)):
            headers["traceparent"] = parent
        return headers

    def _client(self) -> httpx2.AsyncClient:
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None:
            client = self._clients[loop] = httpx2.AsyncClient(timeout=self._timeout_seconds, follow_redirects=False)
        return client


def body_of(query: str, context: Context) -> bytes:
    """Without what is ours alone: who asks, whom we know, and ourselves, whom the other side adds to the chain."""
    passed_on = replace(
        context, librarian=None, user=None, available_delegates=(), delegation_chain=context.delegation_chain[:-1]
    )
    value: dict[str, Any] = {"query": query, "context": passed_on.to_json(), "version": VERSION}
    if context.request_id:
        value["requestId"] = context.request_id
    return json.dumps(value, default=str).encode()


async def _body(answer: httpx2.Response) -> bytes | None:
    if answer.headers.get("content-encoding", "identity") != "identity":
        return None
    body = bytearray()
    async for block in answer.aiter_raw():
        body += block
        if len(body) > MAX_ANSWER_BYTES:
            return None
    return bytes(body)
