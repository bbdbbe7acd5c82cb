"""What went wrong, as a status, headers and a body: the same on every route."""

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


def body_of(fault: errors.PairError) -> bytes:
    return pydantic_core.to_json(fault.to_public_json())


def bug_body(request_id: str) -> bytes:
    message = f"A bug in pair. The log has it under the request {request_id}"
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
