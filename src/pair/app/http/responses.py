"""Responses: JSON, streams and errors. Errors below /v1/ follow the OpenAI API."""

import re
from collections.abc import AsyncIterator
from typing import Any

import pydantic_core
from starlette.responses import Response

from pair import errors
from pair.librarians.contract import ErrorCode
from pair.librarians.contract import Response as LibrarianResponse

JSON = "application/json"
LINES = "application/x-ndjson"
EVENTS = "text/event-stream"
MARKDOWN = "text/markdown"

_RETRY_SECONDS = {409: 1, 429: 1, 503: 2}
"""Seconds of `Retry-After` if the wait is not known."""
_LIBRARIAN_STATUSES = {
    ErrorCode.INVALID_QUERY: 400,
    ErrorCode.UNAUTHORIZED: 403,
    ErrorCode.NOT_FOUND: 404,
    ErrorCode.RATE_LIMITED: 429,
    ErrorCode.INTERNAL_ERROR: 500,
    ErrorCode.LOOP_DETECTED: 400,
    ErrorCode.MAX_DEPTH_EXCEEDED: 400,
}
"""HTTP statuses of error codes. All other codes are 503."""
_OPENAI_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    429: "rate_limit_error",
}
_PARAMETER = re.compile(r"([a-z_]+(?:\.\w+)*): ")


def answer(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return a JSON response. Infinite numbers and NaN become null."""
    return Response(pydantic_core.to_json(value), status, headers, JSON)


class Streamed(Response):
    """A response sent in parts. Unlike Starlette's, it does not read the body of the request, which handlers read."""

    def __init__(self, media_type: str, parts: AsyncIterator[bytes]) -> None:
        super().__init__(headers={"content-type": media_type})
        del self.headers["content-length"]
        self._parts = parts

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for part in self._parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def error_status(fault: errors.PairError) -> int:
    return errors.HTTP_STATUSES.get(fault.code, fault.http_status)


def response_status(response: LibrarianResponse) -> int:
    """Return the HTTP status of a librarian's response: 200 if it has an answer, even with an error."""
    if response.error is None or response.answer:
        return 200
    code = str(response.error.details.get("code", ""))
    if code in errors.CODES:
        return errors.HTTP_STATUSES.get(code, errors.CODES[code][0].http_status)
    return _LIBRARIAN_STATUSES.get(ErrorCode(response.error.code), 503)


def retry_headers(status: int, seconds: float | None = None) -> dict[str, str]:
    if status not in _RETRY_SECONDS:
        return {}
    return {"Retry-After": str(max(1, round(seconds + 0.5)) if seconds is not None else _RETRY_SECONDS[status])}


def error_body(fault: errors.PairError, path: str = "") -> bytes:
    if not speaks_openai(path):
        return pydantic_core.to_json(fault.to_public_json())
    parameter = fault.details.get("parameter")
    if parameter is None:  # `messages.0.role: field required` -> `messages.0.role`
        match = _PARAMETER.match(str(fault.details.get("reason", "")))
        parameter = match[1] if match else None
    message = ". ".join([fault.public_message.removesuffix("."), *fault.hints])
    error = openai_error(error_status(fault), fault.code, message, None if parameter is None else str(parameter))
    return pydantic_core.to_json({"error": error})


def bug_body(request_id: str, path: str = "") -> bytes:
    message = f"Internal error. The log has the details of request {request_id}"
    error = {"code": "INTERNAL_ERROR", "message": message, "recoverable": False}
    is_openai = speaks_openai(path)
    return pydantic_core.to_json({"error": openai_error(500, "INTERNAL_ERROR", message) if is_openai else error})


def speaks_openai(path: str) -> bool:
    """Return whether errors of this path follow the OpenAI API."""
    return path.startswith("/v1/")


def openai_error(status: int, code: str, message: str, parameter: str | None = None) -> dict[str, Any]:
    kind = _OPENAI_TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"message": message, "type": kind, "param": parameter, "code": code}
