"""Requests to a server: sent again while the fault may pass, and errors as they were raised over there.

Invariants
    The key is sent to the given address and nowhere else: no redirect is followed. No error leads to it.
Not here
    What is asked, and what the answers mean: remote_kb.py, reading.py.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

import httpx2
import stamina

from pair import __version__, errors
from pair.librarians.contract import ErrorCode
from pair.network_faults import describe_fault

_LONGEST_PAUSE_SECONDS = 120.0
_FIRST_PAUSE_SECONDS = 0.2
_PASSING = frozenset({409, 429, 502, 503, 504})
_FINAL = frozenset({errors.SYNC_RUNNING, errors.PUBLISH_UNKNOWN})
"""What passes, but is for the caller to decide."""
_NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
_OF_LIBRARIANS = frozenset(code.value for code in ErrorCode)
_SECONDS = re.compile(r"\d{1,9}")
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
    """How long to wait for an answer; None for as long as everything may take."""
    is_repeatable: bool = True
    """Whether it may be sent again although it may have arrived."""
    takes_faults_of_librarians: bool = False
    """They are answers too, whatever their status."""


class Failed(Exception):  # noqa: N818 - becomes the error that it carries
    """One try that brought nothing."""

    def __init__(self, error: errors.PairError, *, again: bool = False, after_seconds: float | None = None) -> None:
        super().__init__(error.message)
        self.error = error
        self.again = again
        self.after_seconds = after_seconds


class ServerConnection:
    """To one server. Used from several threads at once."""

    def __init__(self, url: str, key: str, *, timeout_seconds: float, retries: int) -> None:
        """Raises E401."""
        self.address = _address_of(url)
        if not key.isascii() or not key.isprintable():
            raise errors.settings_invalid("connect", "the key has characters that no request can carry")
        self._timeout_seconds = timeout_seconds
        self._retries = retries
        headers = {"user-agent": f"pair/{__version__}", "accept": "application/json"}
        if key:
            headers["authorization"] = f"Bearer {key}"
        self._client = httpx2.Client(timeout=timeout_seconds, follow_redirects=False, headers=headers)

    def close(self) -> None:
        self._client.close()

    def value(self, request: ClientRequest, of: Callable[[Json], Result]) -> Result:
        """What `of` makes of an answer. Raises what the server tells, and E621."""
        return self.read(request, lambda response: self.made(response.read(), of))

    def read(self, request: ClientRequest, read: Callable[[httpx2.Response], Result]) -> Result:
        """`read` is given an answer, of status 200 unless librarians' faults are taken, and may raise Failed."""
        tries_left = self._retries

        def pause_after(fault: Exception) -> bool | float:
            nonlocal tries_left
            if not isinstance(fault, Failed) or not fault.again or tries_left == 0:
                return False
            tries_left -= 1
            return True if fault.after_seconds is None else fault.after_seconds

        try:
            for trial in stamina.retry_context(
                on=pause_after,
                attempts=None,
                timeout=None,
                wait_initial=_FIRST_PAUSE_SECONDS,
                wait_max=10.0,
                wait_jitter=_FIRST_PAUSE_SECONDS,
            ):
                with trial:
                    return self._once(request, read)
        except Failed as caught:
            error = caught.error
        # Outside the block, so that no traceback leads to the request with its key.
        raise error

    def _once(self, request: ClientRequest, read: Callable[[httpx2.Response], Result]) -> Result:
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
                    response.read()
                    if not request.takes_faults_of_librarians or not _is_of_a_librarian(response.content):
                        raise self._refused(response)
                return read(response)
        except httpx2.TransportError as caught:
            again = request.is_repeatable or isinstance(caught, _NOT_SENT)
            fault = Failed(self._unreachable(describe_fault(caught)), again=again)
        except (httpx2.HTTPError, httpx2.InvalidURL) as caught:
            fault = Failed(self._unreachable(describe_fault(caught)))
        raise fault

    def made(self, body: bytes, of: Callable[[Json], Result]) -> Result:
        """Raises Failed for what is no JSON object, or another than expected."""
        try:
            return of(_object_in(body))
        except (LookupError, ValueError, TypeError, RecursionError) as fault:
            raise Failed(self._unreachable("the answer is not one of pair")) from fault

    def _refused(self, response: httpx2.Response) -> Failed:
        status = response.status_code
        if 300 <= status < 400:
            elsewhere = _origin_of(response.headers.get("location", ""))
            hints = [f"Connect to {elsewhere} if that is the server you mean"] if elsewhere else []
            return Failed(self._unreachable("it leads to another address, which is not followed", hints))
        error = self.told(_error_in(response.content), status, response.headers.get("x-request-id", ""))
        pause = _pause_in(response.headers.get("retry-after", ""))
        is_passing = status in _PASSING and error.code not in _FINAL and (pause or 0) <= _LONGEST_PAUSE_SECONDS
        return Failed(error, again=is_passing, after_seconds=pause)

    def told(self, value: Json | None, status: int, request_id: str = "") -> errors.PairError:
        """The error in the body of an answer."""
        if value is None or not isinstance(value.get("code"), str):
            return self._unreachable(f"it answers with status {status}")
        code = value["code"]
        default = errors.UsageError if 400 <= status < 500 else errors.DataError
        kind = errors.CODES[code][0] if code in errors.CODES else _KINDS.get(status, default)
        hints = str(value.get("suggestion") or "").splitlines()
        details = {"request_id": request_id} if request_id else None
        return kind(code, str(value.get("message", "")), hints=hints, details=details)

    def _unreachable(self, reason: str, hints: "list[str] | None" = None) -> errors.PairError:
        return errors.server_unreachable(self.address, reason, hints=hints or ())


def in_path(value: str) -> str:
    """As one part of a path, dots too: `..` would lead elsewhere. Raises E601."""
    try:
        return quote(value, safe="").replace(".", "%2E")
    except UnicodeEncodeError as fault:
        raise errors.request_invalid("an id has characters that no request can carry") from fault


def encoded(value: object) -> bytes:
    """Raises E601 for what JSON cannot say."""
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()
    except (ValueError, TypeError, RecursionError) as fault:
        raise errors.request_invalid(f"not possible as JSON: {fault}") from fault


def _object_in(body: bytes) -> Json:
    value = json.loads(body)
    if not isinstance(value, dict):
        raise TypeError("no object")
    return value


def _error_in(body: bytes) -> Json | None:
    try:
        error = _object_in(body).get("error")
    except (ValueError, TypeError, RecursionError):
        return None
    return error if isinstance(error, dict) else None


def _is_of_a_librarian(body: bytes) -> bool:
    return (_error_in(body) or {}).get("code") in _OF_LIBRARIANS


def _address_of(url: str) -> str:
    """Without a slash at its end. Raises E401."""
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_good = False
    if not is_good:
        raise errors.settings_invalid("connect", "the address is to be like http://host:8080")
    if "@" in parts.netloc:
        raise errors.settings_invalid("connect", "credentials do not belong into the address: give them as key=")
    if parts.query or parts.fragment:
        raise errors.settings_invalid("connect", "the address has something behind its path")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"


def _origin_of(url: str) -> str:
    try:
        parts = urlsplit(url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}" if parts.scheme and parts.netloc else ""
    except ValueError:
        return ""


def _pause_in(header: str) -> float | None:
    return float(header) if _SECONDS.fullmatch(header.strip()) else None
