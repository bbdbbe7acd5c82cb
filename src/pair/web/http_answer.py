"""The answer to an HTTP request: status, body unpacked up to a limit, and the faults of a request without one."""

import datetime
import email.utils
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

_GZIP = 16 + zlib.MAX_WBITS
_GZIP_MAGIC = b"\x1f\x8b"
LONGEST_AGE_SECONDS = 2.0**31
_PIECE_BYTES = 16 * 1024
"""Of a packed body: unpacked at once, it takes at most a thousand times as much memory."""


class RequestFault(Exception):  # noqa: N818 - becomes an error of the stage that asked
    """A request that brought no usable answer. `reason` is fit for people; `was_reached`: the server took it."""

    def __init__(
        self,
        reason: str,
        *,
        was_reached: bool = True,
        retryable: bool = False,
        retry_after_seconds: float | None = None,
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.was_reached = was_reached
        self.retryable = retryable
        self.retry_after_seconds = retry_after_seconds


@dataclass(frozen=True)
class HttpAnswer:
    status: int
    headers: Mapping[str, str]
    body: bytes


def parse_retry_after(value: str | None, now: datetime.datetime) -> float | None:
    """Return the seconds of a `Retry-After` header, which holds seconds or an HTTP date; None when it holds neither."""
    if value is None:
        return None
    if re.fullmatch(r"\s*[0-9]+\s*", value, re.ASCII):
        return min(float(value), LONGEST_AGE_SECONDS)
    try:
        moment = email.utils.parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)
    return max(0.0, (moment - now).total_seconds())


class BodyError(Exception):
    """A body that cannot be used. The message is fit for people."""

    def __init__(self, reason: str, *, is_too_long: bool = False) -> None:
        super().__init__(reason)
        self.is_too_long = is_too_long


def unpack_body(chunks: Iterable[bytes], content_encoding: str, limit_bytes: int) -> Iterator[bytes]:
    """Yield the body of an answer, unpacked; neither the packed nor the unpacked one may be longer than the limit.

    Raises BodyError.
    """
    unpacker = unpacker_for(content_encoding)
    if unpacker is None:
        raise BodyError(f"the answer is packed as {content_encoding!r:.40}, which was not asked for")
    raw_bytes = size_bytes = 0
    for chunk in chunks:
        raw_bytes += len(chunk)
        step = len(chunk) if isinstance(unpacker, _Plain) else _PIECE_BYTES
        for start in range(0, len(chunk), step):
            try:
                piece = unpacker.feed(chunk[start : start + step], limit_bytes - size_bytes)
            except zlib.error as fault:
                raise BodyError("the packed answer is damaged") from fault
            size_bytes += len(piece)
            if max(raw_bytes, size_bytes) > limit_bytes:
                raise BodyError(f"answer is longer than {limit_bytes} bytes", is_too_long=True)
            yield piece
    if not unpacker.is_complete():
        raise BodyError("the packed answer ends too early")


class Decompressor(Protocol):
    def feed(self, chunk: bytes, limit_bytes: int) -> bytes:
        """Return what the chunk adds, cut off one byte beyond the limit. Raises zlib.error."""
        ...

    def is_complete(self) -> bool: ...


def unpacker_for(content_encoding: str) -> Decompressor | None:
    """Return the decompressor for an encoding; None for an unknown one."""
    encoding = content_encoding.strip().lower()
    if encoding in {"", "identity"}:
        return _Plain()
    if encoding in {"gzip", "x-gzip"}:
        return _Gzip()
    if encoding == "deflate":
        return _Deflate()
    return None


class _Plain:
    def feed(self, chunk: bytes, limit_bytes: int) -> bytes:
        return chunk[: limit_bytes + 1]

    def is_complete(self) -> bool:
        return True


class _Gzip:
    """One member after the other, as gzip files may have several."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(_GZIP)
        self._is_untouched = True

    def feed(self, chunk: bytes, limit_bytes: int) -> bytes:
        unpacked = bytearray()
        while chunk and len(unpacked) <= limit_bytes:
            self._is_untouched = False
            unpacked += self._member.decompress(chunk, limit_bytes + 1 - len(unpacked))
            chunk = self._member.unconsumed_tail
            if self._member.unused_data.startswith(_GZIP_MAGIC):  # else it is padding, as gzip itself takes it
                chunk = self._member.unused_data
                self._member = zlib.decompressobj(_GZIP)
        return bytes(unpacked)

    def is_complete(self) -> bool:
        return self._member.eof or self._is_untouched


class _Deflate:
    """A zlib stream, or the bare one that some servers send under this name."""

    def __init__(self) -> None:
        self._head = b""
        self._stream: zlib._Decompress | None = None

    def feed(self, chunk: bytes, limit_bytes: int) -> bytes:
        if self._stream is None:
            self._head += chunk
            if len(self._head) < 2:
                return b""
            chunk = self._head
            self._stream = zlib.decompressobj(zlib.MAX_WBITS if _is_zlib(chunk) else -zlib.MAX_WBITS)
        # Less than asked for means that the chunk is used up; more ends at the limit, so nothing is left over.
        return self._stream.decompress(chunk, limit_bytes + 1)

    def is_complete(self) -> bool:
        return not self._head if self._stream is None else self._stream.eof


def _is_zlib(head: bytes) -> bool:
    """Check the first two bytes by RFC 1950: method 8, and a multiple of 31."""
    return head[0] & 0x0F == 8 and int.from_bytes(head[:2], "big") % 31 == 0
