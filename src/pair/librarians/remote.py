"""A librarian behind HTTP that passes on the deadline, chain, budget and trace of a question.

Invariants
    The body does not name the user: the server trusts only the credential.
    Redirects are not followed, so that the credential is sent to the endpoint only.
    Ids of citations start with the librarian, because the KB is on its server.
"""

import asyncio
import json
import weakref
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import httpx2

from pair import telemetry
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
    """A librarian at `endpoint`, such as `https://host/librarians/handbook/ask`."""

    def __init__(self, endpoint: str, *, token: str = "", timeout_seconds: float = 30.0) -> None:
        self.endpoint = endpoint
        self._token = token
        self._timeout_seconds = timeout_seconds
        # A connection is bound to the event loop that opened it.
        self._clients: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, httpx2.AsyncClient] = (
            weakref.WeakKeyDictionary()
        )

    async def __call__(self, query: str, context: Context | None = None) -> Response:
        context = context or Context()
        seconds = self._timeout_seconds if context.timeout_ms is None else context.timeout_ms / 1000
        try:
            async with asyncio.timeout(seconds):
                response = await self._ask(query, context)
        except TimeoutError:
            return self._fail(ErrorCode.TIMEOUT, "did not answer in time")
        except httpx2.HTTPError as fault:
            return self._fail(ErrorCode.SERVICE_UNAVAILABLE, f"cannot be reached ({type(fault).__name__})")
        return response if context.librarian is None else mark_remote(response, context.librarian.id)

    async def _ask(self, query: str, context: Context) -> Response:
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None:
            client = self._clients[loop] = httpx2.AsyncClient(timeout=self._timeout_seconds, follow_redirects=False)
        content, headers = _build_body(query, context), self._build_headers(context)
        answer = await client.send(
            client.build_request("POST", self.endpoint, content=content, headers=headers), stream=True
        )
        try:
            body = await _read_body(answer)
        finally:
            await answer.aclose()
        if body is None:
            return self._fail(ErrorCode.DATA_SOURCE_ERROR, "sent an answer that is too long or encoded")
        return self._parse(answer.status_code, body)

    def _parse(self, status: int, body: bytes) -> Response:
        try:
            value = json.loads(body)
            if not isinstance(value, Mapping):
                raise ValueError("not an object")
            error = value.get("error")
            if isinstance(error, Mapping) and error.get("code") not in _CODES:
                return self._fail_by_status(status, str(error.get("message", "")))
            response = Response.from_json(value)
        except (ValueError, TypeError, RecursionError):
            if status != 200:
                return self._fail_by_status(status)
            return self._fail(ErrorCode.DATA_SOURCE_ERROR, "sent an answer that cannot be read")
        return self._fail_by_status(status) if status != 200 and response.error is None else response

    def _fail_by_status(self, status: int, message: str = "") -> Response:
        detail = f": {message[:500]}" if message.strip() else ""
        code = _CODES_OF_STATUS.get(status, ErrorCode.DATA_SOURCE_ERROR)
        return self._fail(code, f"answered with status {status}{detail}")

    def _fail(self, code: ErrorCode, what: str) -> Response:
        return Response.failing(
            code,
            f"The librarian at {redact_url(self.endpoint)} {what}",
            recoverable=code in {ErrorCode.TIMEOUT, ErrorCode.SERVICE_UNAVAILABLE, ErrorCode.RATE_LIMITED},
        )

    def _build_headers(self, context: Context) -> dict[str, str]:
        headers = {
            "content-type": "application/json",
            "accept": "application/json",
            "accept-encoding": "identity",  # no compression: the limit applies to the bytes that are read
        }
        if self._token:
            headers["authorization"] = f"Bearer {self._token}"
        trace = context.trace
        if trace is not None and (parent := telemetry.format_traceparent(trace.trace_id, trace.span_id)):
            headers["traceparent"] = parent
        return headers


def _build_body(query: str, context: Context) -> bytes:
    """Return the request body without the user, the local delegates and this librarian, which the server adds."""
    passed_on = replace(
        context, librarian=None, user=None, available_delegates=(), delegation_chain=context.delegation_chain[:-1]
    )
    value: dict[str, Any] = {"query": query, "context": passed_on.to_json(), "version": VERSION}
    if context.request_id:
        value["requestId"] = context.request_id
    return json.dumps(value, default=str).encode()


async def _read_body(answer: httpx2.Response) -> bytes | None:
    """Return the body; None when it is too long or encoded."""
    if answer.headers.get("content-encoding", "identity") != "identity":
        return None
    body = bytearray()
    async for block in answer.aiter_raw():
        body += block
        if len(body) > MAX_ANSWER_BYTES:
            return None
    return bytes(body)
