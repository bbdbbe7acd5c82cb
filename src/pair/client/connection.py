"""Requests to a server: retried after temporary faults, and failed with the error of the server.

Invariants
    The key is sent to the given address only: no redirect is followed. No error or traceback contains it.
"""

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

import httpx2

from pair import __version__, errors, network
from pair.clock import SystemClock
from pair.librarians.contract import ErrorCode
from pair.network import RetryPolicy, describe_fault, has_host, parse_retry_after

_FIRST_PAUSE_SECONDS = 0.2
_TEMPORARY = frozenset({409, 429, 502, 503, 504})
_FINAL = frozenset({errors.SYNC_RUNNING, errors.PUBLISH_UNKNOWN})
"""Temporary errors that are not retried; the caller decides about them."""
_NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
_LIBRARIAN_CODES = frozenset(code.value for code in ErrorCode)
_KINDS: dict[int, type[errors.PairError]] = {
    401: errors.AccessError,
    403: errors.AccessError,
    404: errors.NotFoundError,
    409: errors.ConflictError,
    429: errors.ConflictError,
    502: errors.DownloadError,
    503: errors.StorageError,
    504: errors.DownloadError,
}

Result = TypeVar("Result")
Json = dict[str, Any]


@dataclass(frozen=True)
class ClientRequest:
    method: str
    path: str
    body: bytes | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    read_seconds: float | None = None
    """Longest wait for the response; None for the timeout of the connection."""
    is_repeatable: bool = True
    """Whether it may be sent again although it may have arrived."""
    accepts_librarian_errors: bool = False
    """Whether an error of a librarian is a valid response, with any status."""


class AttemptFailed(network.RequestFault):
    """A failed attempt; becomes the error that it carries."""

    def __init__(self, error: errors.PairError, *, again: bool = False, after_seconds: float | None = None) -> None:
        super().__init__(error.message, again, after_seconds)
        self.error = error


class ServerConnection:
    """A connection to one server. Thread-safe."""

    def __init__(self, url: str, key: str, *, timeout_seconds: float, retries: int) -> None:
        """Check address and key. Raises E401."""
        self.address = _check_address(url)
        if not key.isascii() or not key.isprintable():
            raise errors.settings_invalid("connect", "the key has characters that a request cannot contain")
        self._timeout_seconds = timeout_seconds
        self._retry_policy = RetryPolicy(retries, _FIRST_PAUSE_SECONDS)
        headers = {"user-agent": f"pair/{__version__}", "accept": "application/json"}
        if key:
            headers["authorization"] = f"Bearer {key}"
        self._client = httpx2.Client(timeout=timeout_seconds, follow_redirects=False, headers=headers)

    def close(self) -> None:
        self._client.close()

    def fetch(self, request: ClientRequest, decode: Callable[[Json], Result]) -> Result:
        """Send a request and decode the response. Raises the error of the server, and E621."""
        return self.send(request, lambda response: self.decode(response.read(), decode))

    def send(self, request: ClientRequest, read: Callable[[httpx2.Response], Result]) -> Result:
        """Send a request until `read` returns a result for the response; `read` may raise AttemptFailed."""
        try:
            return self._retry_policy.run(lambda: self._send_once(request, read))
        except AttemptFailed as caught:
            error = caught.error
        # Raised outside the block, so that no traceback contains the request with its key.
        raise error

    def _send_once(self, request: ClientRequest, read: Callable[[httpx2.Response], Result]) -> Result:
        try:
            with self._client.stream(
                request.method,
                f"{self.address}{request.path}",
                content=request.body,
                params=request.parameters or None,
                headers={"content-type": "application/json", **request.headers},
                timeout=httpx2.Timeout(self._timeout_seconds, read=request.read_seconds or self._timeout_seconds),
            ) as response:
                if response.status_code != 200:
                    error = _parse_error(response.read())
                    is_answer = request.accepts_librarian_errors and (error or {}).get("code") in _LIBRARIAN_CODES
                    if not is_answer:
                        raise self._refusal(response, error)
                return read(response)
        except httpx2.TransportError as caught:
            again = request.is_repeatable or isinstance(caught, _NOT_SENT)
            fault = AttemptFailed(self._unreachable(describe_fault(caught)), again=again)
        except (httpx2.HTTPError, httpx2.InvalidURL) as caught:
            fault = AttemptFailed(self._unreachable(describe_fault(caught)))
        raise fault

    def decode(self, body: bytes, decode: Callable[[Json], Result]) -> Result:
        """Decode a JSON object. Raises AttemptFailed for any other body."""
        try:
            return decode(_parse_object(body))
        except (LookupError, ValueError, TypeError, RecursionError) as fault:
            raise AttemptFailed(self._unreachable("the response is not one of pair")) from fault

    def _refusal(self, response: httpx2.Response, error_value: Json | None) -> AttemptFailed:
        status = response.status_code
        if 300 <= status < 400:
            hints = []
            with contextlib.suppress(ValueError):
                parts = urlsplit(response.headers.get("location", ""))
                if parts.scheme and parts.netloc:
                    origin = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
                    hints = [f"Connect to {origin} if that is the server you mean"]
            return AttemptFailed(self._unreachable("it redirects to another address, which is not followed", hints))
        error = self.build_error(error_value, status, response.headers.get("x-request-id", ""))
        pause = parse_retry_after(
            response.headers.get("retry-after"), response.headers.get("date"), SystemClock().now()
        )
        again = status in _TEMPORARY and error.code not in _FINAL
        return AttemptFailed(error, again=again, after_seconds=pause)

    def build_error(self, value: Json | None, status: int, request_id: str = "") -> errors.PairError:
        """Return the error of a response."""
        if value is None or not isinstance(value.get("code"), str):
            return self._unreachable(f"it responds with status {status}")
        code = value["code"]
        default = errors.UsageError if 400 <= status < 500 else errors.DataError
        kind = errors.CODES[code][0] if code in errors.CODES else _KINDS.get(status, default)
        hints = str(value.get("suggestion") or "").splitlines()
        details = {"request_id": request_id} if request_id else None
        return kind(code, str(value.get("message", "")), hints=hints, details=details)

    def _unreachable(self, reason: str, hints: Sequence[str] = ()) -> errors.PairError:
        return errors.server_unreachable(self.address, reason, hints=hints)


def quote_part(value: str) -> str:
    """Quote one part of a path, with its dots: `..` would leave the path. Raises E601."""
    try:
        return quote(value, safe="").replace(".", "%2E")
    except UnicodeEncodeError as fault:
        raise errors.request_invalid("an id has characters that a request cannot contain") from fault


def encode_json(value: object) -> bytes:
    """Encode a value as JSON. Raises E601 if that is impossible."""
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()
    except (ValueError, TypeError, RecursionError) as fault:
        raise errors.request_invalid(f"not possible as JSON: {fault}") from fault


def _parse_object(body: bytes) -> Json:
    value = json.loads(body)
    if not isinstance(value, dict):
        raise TypeError("not an object")
    return value


def _parse_error(body: bytes) -> Json | None:
    try:
        error = _parse_object(body).get("error")
    except (ValueError, TypeError, RecursionError):
        return None
    return error if isinstance(error, dict) else None


def _check_address(url: str) -> str:
    """Return the address without a trailing slash. Raises E401."""
    if not has_host(url):
        raise errors.settings_invalid("connect", "the address must look like http://host:8080")
    parts = urlsplit(url)
    if "@" in parts.netloc:
        raise errors.settings_invalid("connect", "credentials do not belong in the address: pass them as key=")
    if parts.query or parts.fragment:
        raise errors.settings_invalid("connect", "the address must not have a query or a fragment")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
