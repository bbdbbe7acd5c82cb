"""HTTP client with time limits, redirects, retries, a token for one host, and a size limit for bodies."""

import contextlib
import math
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

import httpcore2
import httpx2

from pair.clock import Clock
from pair.network import (
    LONGEST_PAUSE_SECONDS,
    RequestFault,
    RetryPolicy,
    describe_fault,
    describe_request_fault,
    has_host,
    parse_retry_after,
    read_host,
)

_MAX_REDIRECTS = 10
_READ_BYTES = 512 * 1024
_SILENT_SECONDS = 1.5
_PASSING_STATUSES = frozenset({429, 500, 502, 503, 504})
_GZIP = 16 + zlib.MAX_WBITS
_GZIP_MAGIC = b"\x1f\x8b"
_PIECE_BYTES = 16 * 1024
"""Compressed bytes that are decompressed at once; the result is at most a thousand times as large."""


@dataclass(frozen=True)
class HttpAnswer:
    status: int
    headers: Mapping[str, str]
    body: bytes


class HttpClient:
    """A client. `token` is sent only to the origin of `token_url`, even after redirects."""

    def __init__(
        self,
        *,
        timeout_seconds: float,
        retry_policy: RetryPolicy,
        clock: Clock,
        follow_redirects: bool = True,
        token: str = "",
        token_url: str = "",
    ) -> None:
        self._timeout_seconds = timeout_seconds
        self.retry_policy = retry_policy
        self._follow_redirects = follow_redirects
        self._clock = clock
        self._token = token
        self._token_origin = _origin(token_url)
        self.say: Callable[[str], None] = lambda text: None
        self._client: httpx2.Client | None = None

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    @contextlib.contextmanager
    def open(self, method: str, url: str, headers: Mapping[str, str]) -> Iterator[httpx2.Response]:
        """Send one request. Raises RequestFault for 429, 5xx and connection errors."""
        sent = dict(headers)
        if self._token and _origin(url) == self._token_origin:
            # httpx drops this header when a redirect leads to another origin.
            sent["Authorization"] = f"Bearer {self._token}"
        host = read_host(url, "the host")
        waiting = threading.Timer(_SILENT_SECONDS, self.say, [f"waiting for {host}"])
        waiting.daemon = True
        waiting.start()
        try:
            with self._get_client().stream(method, url, headers=sent) as response:
                waiting.cancel()
                if response.status_code in _PASSING_STATUSES:
                    raise self._to_fault(response)
                yield response
        except httpx2.TimeoutException as fault:
            reason = f"Connection timeout after {self._timeout_seconds:g}s"
            raise RequestFault(reason, was_reached=False, retryable=True) from fault
        except httpx2.TransportError as fault:
            was_reached = isinstance(fault, httpx2.ProtocolError)
            retryable = not isinstance(fault, httpx2.UnsupportedProtocol)
            reason = describe_request_fault(fault, host)
            raise RequestFault(reason, was_reached=was_reached, retryable=retryable) from fault
        except httpx2.TooManyRedirects as fault:
            raise RequestFault(f"more than {_MAX_REDIRECTS} redirects") from fault
        except (httpx2.InvalidURL, httpx2.HTTPError) as fault:
            raise RequestFault(describe_fault(fault)) from fault
        finally:
            waiting.cancel()

    def read(
        self, url: str, headers: Mapping[str, str], *, limit_bytes: int, limit_seconds: float = math.inf
    ) -> HttpAnswer:
        """Return the whole body of a small response, with retries. `limit_seconds` limits each attempt."""

        def attempt() -> HttpAnswer:
            deadline = self._clock.monotonic() + limit_seconds
            with self.open("GET", url, {"Accept-Encoding": "identity", **headers}) as response:
                encoding, body = response.headers.get("Content-Encoding", ""), bytearray()
                try:
                    for piece in unpack_body(response.iter_raw(), encoding, limit_bytes):
                        body += piece
                        if self._clock.monotonic() > deadline:
                            raise RequestFault(f"it did not arrive within {limit_seconds:g} s")
                except BodyError as fault:
                    raise RequestFault(str(fault)) from fault
                return HttpAnswer(response.status_code, response.headers, bytes(body))

        return self.retry_policy.run(attempt, self.say)

    def _get_client(self) -> httpx2.Client:
        if self._client is None:
            # The default of 64 kB slows down fast transfers (docs/performance.md).
            httpcore2.HTTP11Connection.READ_NUM_BYTES = _READ_BYTES
            self._client = httpx2.Client(
                timeout=self._timeout_seconds,
                follow_redirects=self._follow_redirects,
                max_redirects=_MAX_REDIRECTS,
                headers={"User-Agent": "pair"},
            )
        return self._client

    def _to_fault(self, response: httpx2.Response) -> RequestFault:
        reason = f"HTTP {response.status_code} {response.reason_phrase}".strip()
        pause = parse_retry_after(response.headers.get("Retry-After"), response.headers.get("Date"), self._clock.now())
        if pause is not None and pause > LONGEST_PAUSE_SECONDS:
            return RequestFault(f"{reason}; the server asks to retry in {pause:.0f}s")
        return RequestFault(reason, retryable=True, retry_after_seconds=pause)


def _origin(url: str) -> tuple[str, str, int | None]:
    parts = urlsplit(url if has_host(url) else "")
    return parts.scheme, parts.hostname or "", parts.port


# ── bodies ─────────────────────────────────────────────────────────────────────────────────────────


class BodyError(Exception):
    """A body that cannot be used. The message is shown to the user."""

    def __init__(self, reason: str, *, is_too_long: bool = False) -> None:
        super().__init__(reason)
        self.is_too_long = is_too_long


def unpack_body(chunks: Iterable[bytes], content_encoding: str, limit_bytes: int) -> Iterator[bytes]:
    """Yield the decompressed body; the limit applies to compressed and decompressed bytes. Raises BodyError."""
    unpacker = unpacker_for(content_encoding)
    if unpacker is None:
        raise BodyError(f"the answer is compressed as {content_encoding!r:.40}, which was not requested")
    raw_bytes = size_bytes = 0
    for chunk in chunks:
        raw_bytes += len(chunk)
        step = len(chunk) if isinstance(unpacker, _Plain) else _PIECE_BYTES
        for start in range(0, len(chunk), step):
            try:
                piece = unpacker.feed(chunk[start : start + step], limit_bytes - size_bytes)
            except zlib.error as fault:
                raise BodyError("the compressed answer is damaged") from fault
            size_bytes += len(piece)
            if max(raw_bytes, size_bytes) > limit_bytes:
                raise BodyError(f"answer is longer than {limit_bytes} bytes", is_too_long=True)
            yield piece
    if not unpacker.is_complete():
        raise BodyError("the compressed answer ends too early")


def unpacker_for(content_encoding: str) -> "_Plain | _Inflater | None":
    """Return the decompressor for an encoding; None for an unknown one."""
    encoding = content_encoding.strip().lower()
    if encoding in {"", "identity"}:
        return _Plain()
    return _Inflater(encoding) if encoding in {"gzip", "x-gzip", "deflate"} else None


class _Plain:
    def feed(self, chunk: bytes, limit_bytes: int) -> bytes:
        return chunk[: limit_bytes + 1]

    def is_complete(self) -> bool:
        return True


class _Inflater:
    """A decompressor for gzip with several members, and for deflate with or without a zlib header."""

    def __init__(self, encoding: str) -> None:
        self._is_gzip = encoding != "deflate"
        self._head = b""
        self._stream: zlib._Decompress | None = None

    def feed(self, chunk: bytes, limit_bytes: int) -> bytes:
        """Return the decompressed chunk, cut one byte beyond the limit. Raises zlib.error."""
        if self._stream is None:
            self._head += chunk
            if len(self._head) < 2:
                return b""
            chunk = self._head
            # RFC 1950: method 8, and a multiple of 31.
            is_zlib = chunk[0] & 0x0F == 8 and int.from_bytes(chunk[:2], "big") % 31 == 0
            bare_or_zlib = zlib.MAX_WBITS if is_zlib else -zlib.MAX_WBITS
            self._stream = zlib.decompressobj(_GZIP if self._is_gzip else bare_or_zlib)
        unpacked = bytearray()
        while chunk and len(unpacked) <= limit_bytes:
            unpacked += self._stream.decompress(chunk, limit_bytes + 1 - len(unpacked))
            chunk = self._stream.unconsumed_tail
            # Like gzip, accept another member or padding after a member.
            if self._is_gzip and self._stream.unused_data.startswith(_GZIP_MAGIC):
                chunk = self._stream.unused_data
                self._stream = zlib.decompressobj(_GZIP)
        return bytes(unpacked)

    def is_complete(self) -> bool:
        return not self._head if self._stream is None else self._stream.eof
