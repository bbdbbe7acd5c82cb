"""Load for a running server: requests over persistent connections, as fast as it answers or at a fixed rate.

Invariants
    It ends after the given seconds, plus a few for answers in progress. Results survive an interruption.
"""

import array
import asyncio
import collections
import contextlib
import itertools
import json
import math
import re
import ssl
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import urlsplit

_LAST_ANSWERS_SECONDS = 10.0
_PAUSE_SECONDS = 0.05
"""Pause before a broken connection is opened again."""
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_TOOK = re.compile(rb'"took_ms": *([0-9.]+)')
BROKEN = "broken connection"
UNANSWERED = "unanswered"


@dataclass(frozen=True, slots=True)
class Plan:
    """The load to generate."""

    seconds: float
    connections: int
    rate: float = 0.0
    """Requests per second, independent of answers; 0 to send the next request after each answer."""


@dataclass
class Seen:
    """The results, which may be read at any time."""

    began_at: float = 0.0
    ended_at: float = 0.0
    took_ms: "array.array[float]" = field(default_factory=lambda: array.array("d"))
    """Milliseconds of each answer since its request was sent or, with a rate, since it was due."""
    server_took_ms: "array.array[float]" = field(default_factory=lambda: array.array("d"))
    """Milliseconds that the server reports, if it reports them."""
    outcomes: collections.Counter[str] = field(default_factory=collections.Counter)
    """Number of answers by status, and of requests without an answer by reason."""
    not_sent: int = 0
    """Number of due requests that were not sent because all connections were busy."""

    @property
    def per_second(self) -> float:
        seconds = (self.ended_at or time.perf_counter()) - self.began_at
        return len(self.took_ms) / seconds if self.began_at and seconds > 0 else 0.0

    def to_json(self) -> dict[str, Any]:
        ended_at = self.ended_at or time.perf_counter()
        return {
            "answers": len(self.took_ms),
            "seconds": round(ended_at - self.began_at, 3) if self.began_at else 0.0,
            "per_second": round(self.per_second, 1),
            **_percentiles(self.took_ms),
            "server": _percentiles(self.server_took_ms),
            "outcomes": dict(sorted(self.outcomes.items())),
            "not_sent": self.not_sent,
        }


def _percentiles(values: Sequence[float]) -> dict[str, float | None]:
    ordered = sorted(values)
    shares = {"p50_ms": 0.50, "p90_ms": 0.90, "p99_ms": 0.99, "max_ms": 1.0}
    return {name: percentile(ordered, share) for name, share in shares.items()}


def percentile(ordered: Sequence[float], share: float) -> float | None:
    """Return the lowest value that this share of the values does not exceed."""
    return round(ordered[max(0, math.ceil(share * len(ordered)) - 1)], 3) if ordered else None


@dataclass(frozen=True, slots=True)
class Server:
    host: str
    port: int
    is_secure: bool
    path: str
    """The prefix of every route."""
    key: str = ""

    @classmethod
    def of(cls, url: str, key: str = "") -> "Server":
        parts = urlsplit(url)
        is_secure = parts.scheme == "https"
        port = parts.port or (443 if is_secure else 80)
        return cls(parts.hostname or "", port, is_secure, parts.path.rstrip("/"), key)

    def get(self, route: str) -> bytes:
        return self._head("GET", route) + b"\r\n"

    def query(self, text: str, kb_id: str, hits: int = 10) -> bytes:
        body = json.dumps({"kb_id": kb_id, "query": text, "k": hits}).encode()
        told = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        return self._head("POST", "/rag/query") + told.encode() + body

    def _head(self, method: str, route: str) -> bytes:
        host = f"[{self.host}]" if ":" in self.host else self.host
        key = f"Authorization: Bearer {self.key}\r\n" if self.key else ""
        return f"{method} {self.path}{route} HTTP/1.1\r\nHost: {host}:{self.port}\r\n{key}".encode()


class Client(asyncio.Protocol):
    """A connection that sends one request at a time."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._answer: asyncio.Future[bytes] | None = None
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)

    def connection_lost(self, fault: Exception | None) -> None:
        self._transport = None
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(fault if isinstance(fault, OSError) else ConnectionResetError())

    def ask(self, request: bytes) -> "asyncio.Future[bytes]":
        """Return the whole answer. Raises OSError."""
        if self._transport is None or self._transport.is_closing():
            raise ConnectionResetError
        self._received.clear()
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return self._answer

    def data_received(self, data: bytes) -> None:
        self._received += data
        end = self._received.find(b"\r\n\r\n")
        if end < 0 or self._answer is None or self._answer.done():
            return
        length = _LENGTH.search(self._received, 0, end + 2)
        if length is not None:
            is_whole = len(self._received) >= end + 4 + int(length[1])
        else:
            is_whole = self._received.endswith(b"\r\n0\r\n\r\n")  # chunked, as a proxy may forward it
        if is_whole:
            self._answer.set_result(bytes(self._received))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


async def load(server: Server, requests: Iterator[bytes], plan: Plan, seen: Seen) -> None:
    """Generate load, and fill `seen`. Raises OSError if no connection can be opened."""
    clients = [await _connected(server) for _ in range(plan.connections)]
    seen.began_at = time.perf_counter()
    run = _Run(server, requests, plan, seen)
    talks = [asyncio.ensure_future(run.talk(client)) for client in clients]
    try:
        _, late = await asyncio.wait(talks, timeout=plan.seconds + _LAST_ANSWERS_SECONDS)
        seen.outcomes[UNANSWERED] += len(late)
    finally:
        for talk in talks:
            talk.cancel()
        await asyncio.gather(*talks, return_exceptions=True)
        run.end()


async def _connected(server: Server) -> Client:
    loop = asyncio.get_running_loop()
    secure = ssl.create_default_context() if server.is_secure else None
    _, client = await loop.create_connection(Client, server.host, server.port, ssl=secure)
    return client


class _Run:
    def __init__(self, server: Server, requests: Iterator[bytes], plan: Plan, seen: Seen) -> None:
        self._server = server
        self._requests = requests
        self._plan = plan
        self._seen = seen
        self._until = seen.began_at + plan.seconds
        self._numbers = itertools.count()
        self._sent = 0

    async def talk(self, client: Client) -> None:
        """Send requests until the time is over. Each thread takes the next due request, so none is sent twice."""
        try:
            while (due_at := await self._due()) is not None:
                self._sent += 1
                try:
                    self._note(await client.ask(next(self._requests)), due_at)
                except OSError:
                    self._seen.outcomes[BROKEN] += 1
                    client = await self._again(client)
        finally:
            client.close()

    def end(self) -> None:
        self._seen.ended_at = min(time.perf_counter(), self._until) if self._seen.took_ms else time.perf_counter()
        if self._plan.rate:
            due = math.ceil((self._seen.ended_at - self._seen.began_at) * self._plan.rate)
            self._seen.not_sent = max(0, due - self._sent)
        self._seen.outcomes = +self._seen.outcomes

    async def _due(self) -> float | None:
        """Return the time of the next request; None if there is none."""
        now = time.perf_counter()
        if not self._plan.rate:
            return now if now < self._until else None
        due_at = self._seen.began_at + next(self._numbers) / self._plan.rate
        if due_at >= self._until or now >= self._until:
            return None
        if due_at > now:
            await asyncio.sleep(due_at - now)
        return due_at

    def _note(self, answer: bytes, due_at: float) -> None:
        self._seen.took_ms.append((time.perf_counter() - due_at) * 1000)
        self._seen.outcomes[answer[9:12].decode("latin-1")] += 1
        if took := _TOOK.search(answer):
            self._seen.server_took_ms.append(float(took[1]))

    async def _again(self, client: Client) -> Client:
        client.close()
        while time.perf_counter() < self._until:
            await asyncio.sleep(_PAUSE_SECONDS)
            with contextlib.suppress(OSError):
                return await _connected(self._server)
        return client
