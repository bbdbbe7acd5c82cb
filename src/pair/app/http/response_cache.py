"""Answers to repeated queries without a search, and work that callers share.

Invariants
    A cached response is used only while the KB has the version of its hits, as read after the request came.
    Requests that come at the same time share one look at the version, and equal ones share one search.
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
"""Of all answers together."""
_MOST_KEYS = 10_000


@dataclass(frozen=True, slots=True)
class CachedResponse:
    """The answer to a query, without the time that it took."""

    kb_id: str
    at: int | str | None
    """The version that was asked for; None for the current one."""
    version: Version
    results: int
    json: bytes
    """With `"took_ms":null`. No text before it can hold these bytes: JSON escapes quotes."""

    def to_bytes(self, took_ms: float) -> bytes:
        return self.json.replace(b'"took_ms":null', b'"took_ms":%.3f' % took_ms, 1)


class ResponseCache:
    """Responses by the body of their request, the latest used last. Belongs to one event loop."""

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
    """Queries that are being answered. Belongs to one event loop."""

    def __init__(self) -> None:
        self._ends: dict[bytes, asyncio.Event] = {}

    async def wait(self, query: bytes) -> bool:
        """Wait until an equal query is answered; False when there is none."""
        end = self._ends.get(query)
        if end is None:
            return False
        await end.wait()
        return True

    @contextlib.contextmanager
    def enter(self, query: bytes) -> Iterator[None]:
        if query in self._ends:  # of those who waited for one that failed, each searches for itself
            yield
            return
        end = self._ends[query] = asyncio.Event()
        try:
            yield
        finally:
            del self._ends[query]
            end.set()


class SharedRuns:
    """Runs that callers share, by a key: one at a time, and one more that waits for it. Belongs to one event loop."""

    def __init__(self) -> None:
        self._running: dict[Hashable, asyncio.Task[Any]] = {}
        self._waiting: dict[Hashable, asyncio.Task[Any]] = {}

    async def next(self, key: Hashable, work: Callable[[], Awaitable[Any]]) -> Any:
        """Return the result of the next run: one that has begun may have missed what the caller knows of."""
        run = self._waiting.get(key)
        if run is None:
            run = self._waiting[key] = asyncio.ensure_future(self._run(key, work))
            # All callers may be gone: then nobody else retrieves what it raises.
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
    """Bytes of the answer, once there is one."""


class Idempotency:
    """Answers by Idempotency-Key: a repeated request gets the first answer, and does nothing."""

    def __init__(self, seconds: float, clock: Clock) -> None:
        self._seconds = seconds
        self._clock = clock
        self._answers: collections.OrderedDict[tuple[str, str], _StoredAnswer] = collections.OrderedDict()
        self._bytes = 0

    async def once(
        self, client: str, key: str, body: bytes, work: Callable[[], Awaitable[Response]]
    ) -> tuple[Response, bool]:
        """Return the answer, and whether it is that of an earlier request. A request that failed may be repeated."""
        now, name = self._clock.monotonic(), (client, key)
        self._drop_old(now)
        fingerprint = hashlib.sha256(body).digest()
        earlier = self._answers.get(name)
        if earlier is not None:
            if earlier.fingerprint != fingerprint:
                raise errors.request_invalid("this Idempotency-Key was sent with something else before")
            return await asyncio.shield(earlier.outcome), True
        outcome: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        stored = self._answers[name] = _StoredAnswer(fingerprint, now, outcome)
        try:
            answer = await work()
        except BaseException as fault:
            if self._answers.get(name) is stored:
                del self._answers[name]  # it has no size yet
            outcome.set_exception(fault if isinstance(fault, Exception) else ConnectionResetError())
            outcome.exception()  # no other request may be waiting for it
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
