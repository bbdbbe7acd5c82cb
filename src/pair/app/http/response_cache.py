"""The response cache for queries, work shared by concurrent requests, and idempotency keys.

Invariants
    A cached response is used only if the KB still has its version. The version is read after the request arrives.
    Concurrent requests share one read of the version, and equal queries share one search.
"""

import asyncio
import collections
import contextlib
import hashlib
from collections.abc import Awaitable, Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from pair import errors
from pair.app.kb_access import Version
from pair.clock import Clock

_MOST_ANSWERS = 1000
_MOST_BYTES = 32_000_000
"""Total size of the cached responses, and of the responses kept for idempotency keys."""
_MOST_KEYS = 10_000


@dataclass(frozen=True, slots=True)
class CachedResponse:
    """The response to a query, without its duration."""

    kb_id: str
    at: int | str | None
    """The requested version; None for the current one."""
    version: Version
    results: int
    json: bytes
    """The body with `"took_ms":null`. No earlier text contains these bytes, because JSON escapes quotes."""

    def to_bytes(self, took_ms: float) -> bytes:
        return self.json.replace(b'"took_ms":null', b'"took_ms":%.3f' % took_ms, 1)


class ResponseCache:
    """Responses by request body; the least recently used are dropped. Belongs to one event loop."""

    def __init__(self) -> None:
        self._responses: collections.OrderedDict[bytes, CachedResponse] = collections.OrderedDict()
        self._bytes = 0

    def get(self, body: bytes) -> CachedResponse | None:
        response = self._responses.get(body)
        if response is not None:
            self._responses.move_to_end(body)
        return response

    def put(self, body: bytes, response: CachedResponse) -> None:
        self.drop(body)
        self._responses[body] = response
        self._bytes += len(body) + len(response.json)
        while len(self._responses) > _MOST_ANSWERS or self._bytes > _MOST_BYTES:
            self.drop(next(iter(self._responses)))

    def drop(self, body: bytes) -> None:
        response = self._responses.pop(body, None)
        if response is not None:
            self._bytes -= len(body) + len(response.json)


class RunningQueries:
    """Queries in progress. Belongs to one event loop."""

    def __init__(self) -> None:
        self._ends: dict[bytes, asyncio.Event] = {}

    async def wait(self, query: bytes) -> bool:
        """Wait for an equal query in progress. Return False if there is none."""
        end = self._ends.get(query)
        if end is None:
            return False
        await end.wait()
        return True

    @contextlib.contextmanager
    def enter(self, query: bytes) -> Iterator[None]:
        if query in self._ends:  # several callers waited for a query that failed: each caller searches
            yield
            return
        end = self._ends[query] = asyncio.Event()
        try:
            yield
        finally:
            del self._ends[query]
            end.set()


class SharedRuns:
    """Shared runs of work: for each key, at most one runs and one waits. Belongs to one event loop."""

    def __init__(self) -> None:
        self._running: dict[Hashable, asyncio.Task[Any]] = {}
        self._waiting: dict[Hashable, asyncio.Task[Any]] = {}

    async def next(self, key: Hashable, work: Callable[[], Awaitable[Any]]) -> Any:
        """Return the result of the next run. A run that has begun may miss changes made before this call."""
        run = self._waiting.get(key)
        if run is None:
            run = self._waiting[key] = asyncio.ensure_future(self._run(key, work))
            # If all callers are cancelled, this retrieves the exception, which asyncio would log.
            run.add_done_callback(lambda task: None if task.cancelled() else task.exception())
        return await asyncio.shield(run)

    async def _run(self, key: Hashable, work: Callable[[], Awaitable[Any]]) -> Any:
        if key in self._running:
            await asyncio.wait([self._running[key]])
        self._running[key] = self._waiting.pop(key)
        try:
            return await work()
        finally:
            del self._running[key]


@dataclass
class _StoredAnswer:
    fingerprint: bytes
    at: float
    outcome: "asyncio.Future[Response]"
    size: int = 0
    """Size of the response in bytes; 0 until there is one."""


class Idempotency:
    """Responses by Idempotency-Key: a repeated request gets the first response and changes nothing."""

    def __init__(self, seconds: float, clock: Clock) -> None:
        self._seconds = seconds
        self._clock = clock
        self._answers: collections.OrderedDict[tuple[str, str], _StoredAnswer] = collections.OrderedDict()
        self._bytes = 0

    async def once(
        self, client: str, key: str, body: bytes, work: Callable[[], Awaitable[Response]]
    ) -> tuple[Response, bool]:
        """Return the response, and whether an earlier request made it. A failed request can be repeated."""
        now, name = self._clock.monotonic(), (client, key)
        self._drop_old(now)
        fingerprint = hashlib.sha256(body).digest()
        earlier = self._answers.get(name)
        if earlier is not None:
            if earlier.fingerprint != fingerprint:
                raise errors.request_invalid("this Idempotency-Key was used with another body")
            return await asyncio.shield(earlier.outcome), True
        outcome: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        stored = self._answers[name] = _StoredAnswer(fingerprint, now, outcome)
        try:
            answer = await work()
        except BaseException as fault:
            if self._answers.get(name) is stored:
                del self._answers[name]  # its size is still 0
            outcome.set_exception(fault if isinstance(fault, Exception) else ConnectionResetError())
            outcome.exception()  # retrieved, in case no other request waits for it
            raise
        outcome.set_result(answer)
        if self._answers.get(name) is stored:
            stored.size = len(answer.body)
            self._bytes += stored.size
            self._drop_old(now)
        return answer, False

    def _drop_old(self, now: float) -> None:
        while self._answers:
            oldest = next(iter(self._answers))
            is_room = len(self._answers) <= _MOST_KEYS and self._bytes <= _MOST_BYTES
            if is_room and now - self._answers[oldest].at < self._seconds:
                return
            self._bytes -= self._answers.pop(oldest).size
