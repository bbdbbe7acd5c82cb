"""Rate limits, answers to repeated requests, and pages of other origins."""

import asyncio
import collections
import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.responses import Response

from pair import errors
from pair.auth.rules import Bucket, take_token
from pair.auth.settings import ServerSettings
from pair.clock import Clock

_MOST_CLIENTS = 10_000
_MOST_KEYS = 10_000
_MOST_ANSWER_BYTES = 32_000_000
Headers = dict[bytes, bytes]


class RateLimit:
    """A token bucket for each client. The clients that were not seen for longest are dropped first."""

    def __init__(self, settings: ServerSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._buckets: collections.OrderedDict[str, Bucket] = collections.OrderedDict()

    def take(self, client: str) -> float:
        """Return the seconds after which this client may come again; 0 when it may now."""
        if not self._settings.rate_limit_per_second:
            return 0.0
        bucket, wait = take_token(
            self._buckets.get(client),
            self._clock.monotonic(),
            per_second=self._settings.rate_limit_per_second,
            burst=self._settings.rate_limit_burst,
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
            is_room = len(self._answers) <= _MOST_KEYS and self._bytes <= _MOST_ANSWER_BYTES
            if is_room and now - self._answers[oldest].at < self._seconds:
                return
            self._bytes -= self._answers.pop(oldest).size


class CrossOrigin:
    """Pages of other origins: those in the settings may call, all others may not."""

    def __init__(self, origins: str) -> None:
        """`origins`: with commas between; empty for none."""
        self._allowed = frozenset(origin.strip().rstrip("/").lower() for origin in origins.split(",") if origin.strip())

    def allows(self, headers: Headers) -> bool:
        return headers.get(b"origin", b"").decode("latin-1").lower() in self._allowed

    def answer_preflight(self, method: str, headers: Headers) -> Response | None:
        """Return the answer to a preflight request of a browser; None for any other request."""
        is_preflight = method == "OPTIONS" and headers.get(b"access-control-request-method")
        if not is_preflight or not self.allows(headers):
            return None
        answer = {
            "Access-Control-Allow-Methods": "GET, POST, DELETE",
            "Access-Control-Allow-Headers": "Accept, Authorization, Content-Type, Idempotency-Key, "
            "MCP-Protocol-Version, Traceparent, X-KB-ID, X-Request-ID",
            "Access-Control-Max-Age": "600",
        }
        return Response(status_code=204, headers=answer)

    def response_headers(self, headers: Headers) -> list[tuple[bytes, bytes]]:
        """Return headers that let the page read the answer. The page sends credentials, never the browser for it."""
        if not self._allowed:
            return []
        if not self.allows(headers):
            return [(b"vary", b"Origin")]
        return [
            (b"vary", b"Origin"),
            (b"access-control-allow-origin", headers[b"origin"]),
            (b"access-control-expose-headers", b"idempotent-replayed, retry-after, x-kb-id, x-request-id"),
        ]
