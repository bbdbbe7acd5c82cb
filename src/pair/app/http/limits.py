"""How often each client may come, what it was answered when it comes twice, and work that callers share."""

import asyncio
import collections
import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from pair import errors
from pair.auth.rules import Bucket, take_token
from pair.auth.settings import ServerSettings
from pair.clock import Clock

_MOST_CLIENTS = 10_000
_MOST_KEYS = 10_000
_MOST_KEY_BYTES = 32_000_000
"""Of all answers that are remembered."""


class RateLimit:
    """A bucket of tokens for each client. Those that were not seen for longest are forgotten first."""

    def __init__(self, policy: ServerSettings, clock: Clock) -> None:
        self._policy = policy
        self._clock = clock
        self._buckets: collections.OrderedDict[str, Bucket] = collections.OrderedDict()

    def wait_of(self, client: str) -> float:
        """Seconds after which this client may come again; 0 when it may now."""
        if not self._policy.rate_limit_per_second:
            return 0.0
        bucket, wait = take_token(
            self._buckets.get(client),
            self._clock.monotonic(),
            per_second=self._policy.rate_limit_per_second,
            burst=self._policy.rate_limit_burst,
        )
        self._buckets[client] = bucket
        self._buckets.move_to_end(client)
        if len(self._buckets) > _MOST_CLIENTS:
            self._buckets.popitem(last=False)
        return wait


@dataclass
class _StoredAnswer:
    fingerprint: bytes
    at: float
    outcome: "asyncio.Future[Response]"
    size: int = 0
    """Bytes of the answer, once there is one."""


class Idempotency:
    """Requests by the key that came with them: the second is answered as the first was, and does nothing."""

    def __init__(self, seconds: float, clock: Clock) -> None:
        self._seconds = seconds
        self._clock = clock
        self._known: collections.OrderedDict[tuple[str, str], _StoredAnswer] = collections.OrderedDict()
        self._bytes = 0

    async def once(
        self, client: str, key: str, body: bytes, work: Callable[[], Awaitable[Response]]
    ) -> tuple[Response, bool]:
        """The answer, and whether it is that of an earlier request. One that failed may be tried again."""
        now = self._clock.monotonic()
        self._forget(now)
        fingerprint = hashlib.sha256(body).digest()
        known = self._known.get((client, key))
        if known is not None:
            if known.fingerprint != fingerprint:
                raise errors.request_invalid("this Idempotency-Key was sent with something else before")
            return await asyncio.shield(known.outcome), True
        outcome: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        remembered = self._known[client, key] = _StoredAnswer(fingerprint, now, outcome)
        try:
            answer = await work()
        except BaseException as fault:
            if self._known.get((client, key)) is remembered:
                self._drop((client, key))
            outcome.set_exception(fault if isinstance(fault, Exception) else ConnectionResetError())
            outcome.exception()  # nobody else may be waiting for it
            raise
        outcome.set_result(answer)
        if self._known.get((client, key)) is remembered:
            remembered.size = len(answer.body)
            self._bytes += remembered.size
            self._forget(now)
        return answer, False

    def _forget(self, now: float) -> None:
        while self._known:
            oldest = next(iter(self._known))
            is_room = len(self._known) <= _MOST_KEYS and self._bytes <= _MOST_KEY_BYTES
            if is_room and now - self._known[oldest].at < self._seconds:
                return
            self._drop(oldest)

    def _drop(self, name: tuple[str, str]) -> None:
        remembered = self._known.pop(name, None)
        self._bytes -= remembered.size if remembered is not None else 0


class SharedRun:
    """Work that is done once for all who come while it waits for its turn; one at a time."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._waiting: asyncio.Task[Any] | None = None

    async def next(self, work: Callable[[], Awaitable[Any]]) -> Any:
        """What the next run brings: one that has begun already may have missed what the caller knows of."""
        if self._waiting is None:
            self._waiting = asyncio.ensure_future(self._run(work))
        return await asyncio.shield(self._waiting)

    async def _run(self, work: Callable[[], Awaitable[Any]]) -> Any:
        async with self._turn:
            self._waiting = None
            return await work()
