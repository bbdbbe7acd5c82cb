"""Read request bodies within limits: bytes, time, memory of all requests together, and JSON values."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from pair import request_errors
from pair.access.policy import ServerPolicy

JSON = "application/json"
LINES = "application/x-ndjson"
MAX_QUERY_BYTES = 1_048_576
"""Of a request that stores nothing."""
MAX_VALUES = 1_000_000
"""JSON values in one body: parsing keeps all threads of the process waiting, so it must not take long."""
MAX_QUERY_VALUES = 50_000
"""JSON values in the body of a request that stores nothing."""


def media_type(headers: dict[bytes, bytes]) -> str:
    """`application/json; charset=utf-8` -> `application/json`"""
    return headers.get(b"content-type", b"").decode("latin-1").partition(";")[0].strip().lower()


class BodyMemory:
    """Counts the bytes of all bodies that are in memory. Belongs to one event loop."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.used_bytes = 0

    def take(self, size: int) -> None:
        """Raises E617."""
        if self.used_bytes + size > self._max_bytes:
            raise request_errors.server_full("the bodies of other requests fill its memory")
        self.used_bytes += size


@dataclass
class Held:
    """What one request holds of the memory for bodies."""

    memory: BodyMemory
    size: int = 0

    def take(self, size: int) -> None:
        """Raises E617."""
        self.memory.take(size)
        self.size += size

    def release(self) -> None:
        self.memory.used_bytes -= self.size
        self.size = 0


@dataclass(frozen=True)
class Incoming:
    """A body that is still to be read."""

    receive: Any
    headers: dict[bytes, bytes]
    held: Held

    async def whole(self, policy: ServerPolicy, max_bytes: int) -> bytes:
        """Raises E607 as soon as it is certain, E610, E617."""
        most = min(max_bytes, policy.max_body_bytes)
        declared = self.headers.get(b"content-length", b"")
        if declared.isdigit() and (len(declared) > 18 or int(declared) > most):
            raise request_errors.request_too_large("The request", most)
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(policy.body_timeout_seconds):
                while True:
                    part, more = await self._next()
                    size += len(part)
                    if size > most:
                        raise request_errors.request_too_large("The request", most)
                    parts.append(part)
                    if not more:
                        return b"".join(parts)
        except TimeoutError as fault:
            raise request_errors.request_too_slow(policy.body_timeout_seconds) from fault

    async def query(self, policy: ServerPolicy) -> bytes:
        """Return the body of a request that stores nothing. Raises E601 for too many values, E607, E610, E617."""
        body = await self.whole(policy, MAX_QUERY_BYTES)
        if count_values(body, MAX_QUERY_VALUES) > MAX_QUERY_VALUES:
            raise request_errors.request_invalid(f"it has more than {MAX_QUERY_VALUES:,} values")
        return body

    async def lines(self, policy: ServerPolicy) -> AsyncIterator[list[bytes]]:
        """Lines that are not blank, as many at a time as arrived together. Raises E607 for one that is too long, E610.

        The next one must arrive in time: blank lines, and parts of a line, are no sign of life.
        """
        begun: list[bytes] = []
        """Parts of a line whose end is still to come: joined once, however many they are."""
        size = 0
        more = True
        while more:
            wanted: list[bytes] = []
            try:
                async with asyncio.timeout(policy.body_timeout_seconds):
                    while more and not wanted:
                        part, more = await self._next()
                        *ended, rest = part.split(b"\n")
                        if ended:
                            ended[0] = b"".join([*begun, ended[0]])
                            begun, size = [], 0
                        begun.append(rest)
                        size += len(rest)
                        if not more:
                            ended.append(b"".join(begun))
                        if max(size, *map(len, ended), 0) > policy.max_body_bytes:
                            raise request_errors.request_too_large("A line", policy.max_body_bytes)
                        wanted = [line for line in ended if line.strip()]
            except TimeoutError as fault:
                raise request_errors.request_too_slow(policy.body_timeout_seconds) from fault
            if wanted:
                yield wanted

    async def _next(self) -> tuple[bytes, bool]:
        """The next part, and whether more of them follow. Raises E617."""
        message = await self.receive()
        if message["type"] == "http.disconnect":
            raise ConnectionResetError
        part = message.get("body", b"")
        self.held.take(len(part))
        return part, message.get("more_body", False)


def check_values(body: bytes) -> None:
    """Raises E607."""
    if count_values(body) > MAX_VALUES:
        raise request_errors.request_too_large("The request", MAX_VALUES, "values")


def count_values(body: bytes, most: int = MAX_VALUES, *, slice_bytes: int = 262_144) -> int:
    """Count the containers and commas of a JSON text, and stop at the slice that exceeds the limit."""
    count, is_inside, rest = 0, 0, b""
    for start in range(0, len(body), slice_bytes):
        piece = rest + body[start : start + slice_bytes]
        backslashes = len(piece) - len(piece.rstrip(b"\\"))
        rest = b"\\" if backslashes % 2 else b""
        piece = piece[: len(piece) - len(rest)].replace(b"\\\\", b"").replace(b'\\"', b"")
        parts = piece.split(b'"')
        outside = b"".join(parts[is_inside::2])
        is_inside ^= (len(parts) - 1) % 2
        count += sum(outside.count(sign) for sign in (b",", b"[", b"{"))
        if count > most:
            break
    return count
