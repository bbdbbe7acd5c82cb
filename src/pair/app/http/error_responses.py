"""What went wrong, as a status, headers and a body: the same on every route but those that chat clients know."""

import re
from typing import Any

import pydantic_core

from pair import errors
from pair.librarians.contract import ErrorCode, Response

_RETRY_SECONDS = {409: 1, 429: 1, 503: 2}
"""When nobody knows better."""

_STATUS_OF_LIBRARIANS = {
    ErrorCode.INVALID_QUERY: 400,
    ErrorCode.UNAUTHORIZED: 403,
    ErrorCode.NOT_FOUND: 404,
    ErrorCode.RATE_LIMITED: 429,
    ErrorCode.INTERNAL_ERROR: 500,
    ErrorCode.LOOP_DETECTED: 400,
    ErrorCode.MAX_DEPTH_EXCEEDED: 400,
}
"""All others are about something that is away: 503."""


def status_of(fault: errors.PairError) -> int:
    return errors.HTTP_STATUSES.get(fault.code, fault.http_status)


def retry_headers(status: int, seconds: float | None = None) -> dict[str, str]:
    if status not in _RETRY_SECONDS:
        return {}
    return {"Retry-After": str(max(1, round(seconds + 0.5)) if seconds is not None else _RETRY_SECONDS[status])}


def body_of(fault: errors.PairError, path: str = "") -> bytes:
    if speaks_openai(path):
        message = ". ".join([fault.public_message, *fault.hints])
        return openai_body(status_of(fault), fault.code, message, _parameter_in(fault))
    return pydantic_core.to_json(fault.to_public_json())


def bug_body(request_id: str, path: str = "") -> bytes:
    message = f"A bug in pair. The log has it under the request {request_id}"
    if speaks_openai(path):
        return openai_body(500, "INTERNAL_ERROR", message)
    return pydantic_core.to_json({"error": {"code": "INTERNAL_ERROR", "message": message, "recoverable": False}})


def status_of_response(response: Response) -> int:
    """Of an answer: 200 also where something went wrong besides."""
    if response.error is None or response.answer:
        return 200
    details: Any = response.error.details
    ours = str(details.get("code", ""))
    if ours in errors.CODES:
        return errors.HTTP_STATUSES.get(ours, errors.CODES[ours][0].http_status)
    return _STATUS_OF_LIBRARIANS.get(ErrorCode(response.error.code), 503)


# ── as chat clients expect it ──────────────────────────────────────────────────────────────────────

_OPENAI_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    429: "rate_limit_error",
}
_PARAMETER = re.compile(r"([a-z_]+(?:\.\w+)*): ")


def speaks_openai(path: str) -> bool:
    """Whether whoever calls there expects errors as OpenAI shapes them."""
    return path.startswith("/v1/")


def openai_body(status: int, code: str, message: str, parameter: str | None = None) -> bytes:
    return pydantic_core.to_json({"error": openai_error(status, code, message, parameter)})


def openai_error(status: int, code: str, message: str, parameter: str | None = None) -> dict[str, Any]:
    kind = _OPENAI_TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"message": message, "type": kind, "param": parameter, "code": code}


def _parameter_in(fault: errors.PairError) -> str | None:
    """`messages.0.role: field required` -> `messages.0.role`"""
    if "parameter" in fault.details:
        return str(fault.details["parameter"])
    found = _PARAMETER.match(str(fault.details.get("reason", "")))
    return found[1] if found else None
