"""What requests share: open KBs, limits, figures, and turns at writing."""

import asyncio
import contextlib
import datetime
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import pydantic_core
from starlette.responses import Response

from pair import errors
from pair.app.http import request_body, schemas
from pair.app.http.limits import Idempotency, RateLimit, SharedRun
from pair.app.http.metrics import ServerMetrics
from pair.app.http.response_cache import QueryPlace, ResponseCache, RunningQueries, VersionCache
from pair.auth import rules
from pair.auth.rules import ANYBODY, Principal
from pair.auth.settings import ServerSettings
from pair.cancellation import Cancellation
from pair.clock import SystemClock
from pair.kb.open import DEFAULT_KB
from pair.kb.server import BackgroundJob, OpenKbs, care, token_verifier, verifier
from pair.librarians.daemon_threads import in_thread, share
from pair.settings import Settings

_LONG_BYTES = 65_536
_MOST_PARSING = 2
_KEYS_SECONDS = 5.0
_MOST_KEY_CHARACTERS = 255
_Result = TypeVar("_Result")
_Shape = TypeVar("_Shape")


class Service:
    """One for a server. Its coroutines belong to one event loop."""

    def __init__(self, settings: Settings) -> None:
        """Raises E401: also where nobody would be asked who they are, on an address that others can reach."""
        self.settings = settings
        self.policy: ServerSettings = settings.server
        self.clock = SystemClock()
        self._tokens = token_verifier(settings) if self.policy.auth == "jwt" else None
        self.verify: Callable[[str], Principal] | None = verifier(settings) if self._tokens is None else None
        self._key_reading: asyncio.Task[None] | None = None
        self.body_memory = request_body.BodyMemory(self.policy.max_buffered_bytes)
        self._parsing = asyncio.Semaphore(_MOST_PARSING)
        self.kbs = OpenKbs(settings)
        self.figures = ServerMetrics()
        self.rate = RateLimit(self.policy, self.clock)
        self.remembered = ResponseCache()
        self.under_way = RunningQueries()
        self.versions = VersionCache(self._look)
        self.idempotency = Idempotency(self.policy.idempotency_seconds, self.clock)
        self.syncs = SharedRun()
        self.jobs: list[BackgroundJob] = care(self.kbs, self.figures)
        self.is_stopping = False
        self.started_at: datetime.datetime = self.clock.now()
        self._turns: dict[str, asyncio.Lock] = {}
        self._lock = threading.Lock()
        self._threads_at_work = 0

    def start(self) -> None:
        for job in self.jobs:
            job.start()

    def stop(self) -> None:
        """Told once: nothing new is begun."""
        self.is_stopping = True
        for job in self.jobs:
            job.stop()

    def close(self, seconds: float) -> None:
        """Waits so long for background work, and closes the KBs if it has ended."""
        deadline = self.clock.monotonic() + seconds
        for job in self.jobs:
            job.join(max(0.0, deadline - self.clock.monotonic()))
        if not self.is_at_work:
            self.kbs.close()

    @property
    def is_at_work(self) -> bool:
        return bool(self.figures.in_flight or self._threads_at_work) or any(job.is_at_work for job in self.jobs)

    @property
    def asks_for_credentials(self) -> bool:
        return self.policy.auth != "none"

    async def verified(self, credential: str) -> Principal:
        """Tell whose credential this is. Raises E602, E614.

        Public keys that have to be read first are read once for all who wait, and nobody waits long.
        """
        if self._tokens is None:
            return self.verify(credential) if self.verify is not None else ANYBODY
        if self._tokens.needs_keys(credential):
            if self._key_reading is None or self._key_reading.done():
                self._key_reading = asyncio.ensure_future(in_thread(self._tokens.read_keys))
            await asyncio.wait([self._key_reading], timeout=_KEYS_SECONDS)
        return self._tokens.verified(credential, may_read=False)

    async def reading(self, work: Callable[[], _Result]) -> _Result:
        """In a thread. Raises E609: then the work is told to stop. Raises E608."""
        cancellation = Cancellation(self.policy.request_timeout_seconds)
        try:
            async with asyncio.timeout(self.policy.request_timeout_seconds):
                return await self.working(lambda: cancellation.run(work))
        except TimeoutError as fault:
            raise errors.took_too_long(self.policy.request_timeout_seconds) from fault
        finally:
            cancellation.cancel()

    async def parsed(self, shape: type[_Shape], body: bytes, *, where: str = "") -> _Shape:
        """A long one beside the event loop, and few of these at a time. Raises E601, E607."""
        if len(body) < _LONG_BYTES:
            return schemas.read(shape, body, where=where)

        def read() -> _Shape:
            request_body.check_values(body)
            return schemas.read(shape, body, where=where)

        async with self._parsing:
            return await in_thread(read)

    async def _look(self, place: QueryPlace) -> tuple[int, str]:
        share.set(None)  # others wait for the same look, so it is nobody's own work
        return await self.reading(lambda: self._version(place))

    def _version(self, place: QueryPlace) -> tuple[int, str]:
        return self.kbs.read(place.kb_id, place.at, lambda kb: kb.version())

    async def once(
        self, call: "RequestCall", kb_id: str, body: bytes, work: Callable[[], Awaitable[Response]]
    ) -> Response:
        """What a request with a key is answered: the second with the same one does nothing. Raises E601."""
        key = call.idempotency_key
        if not key:
            return await work()
        done, is_repeated = await self.idempotency.once(f"{call.principal.client} {kb_id}", key, body, work)
        if not is_repeated:
            return done
        return Response(done.body, done.status_code, {"Idempotent-Replayed": "true"}, "application/json")

    async def working(self, work: Callable[[], _Result]) -> _Result:
        """In a thread, for as long as it takes."""

        def counted() -> _Result:
            with self._lock:
                self._threads_at_work += 1
            try:
                return work()
            finally:
                with self._lock:
                    self._threads_at_work -= 1

        return await in_thread(counted)

    @contextlib.asynccontextmanager
    async def turn(self, kb_id: str) -> AsyncIterator[None]:
        """To write a KB: requests of one server take turns, where they would get into each other's way. Raises E203."""
        if self.is_stopping:
            raise errors.server_stopping()
        lock = self._turns.setdefault(kb_id, asyncio.Lock())
        try:
            async with asyncio.timeout(self.policy.write_wait_seconds):
                await lock.acquire()
        except TimeoutError as fault:
            raise errors.write_waiting(kb_id, self.policy.write_wait_seconds) from fault
        try:
            yield
        finally:
            lock.release()


@dataclass
class RequestCall:
    """One request, as handlers see it."""

    scope: Any
    incoming: request_body.RequestBody
    request_id: str
    headers: dict[bytes, bytes]
    principal: Principal = ANYBODY
    path_value: str = ""
    """What the address has in the place of {id}."""
    kb_id: str = ""
    """That it is about, once that is known."""
    told: dict[str, Any] = field(default_factory=dict)
    """For the log."""

    def use_kb(self, kb_id: str) -> str:
        """The KB that a request names. Raises E603."""
        self.kb_id = kb_id or DEFAULT_KB
        rules.check_kb(self.principal, self.kb_id)
        return self.kb_id

    @property
    def idempotency_key(self) -> str:
        """ "" for none. Raises E601."""
        key = self.header(b"idempotency-key")
        if len(key) > _MOST_KEY_CHARACTERS or not key.isprintable():
            raise errors.request_invalid("an Idempotency-Key has at most 255 printable characters")
        return key

    def header(self, name: bytes) -> str:
        return self.headers.get(name, b"").decode("latin-1")

    async def body(self, policy: ServerSettings, max_bytes: int | None = None) -> bytes:
        """JSON, by default of a request that stores nothing. Raises E601, E607, E610, E617."""
        body = await (self.incoming.query(policy) if max_bytes is None else self.incoming.whole(policy, max_bytes))
        if body and request_body.media_type(self.headers) != request_body.JSON:
            raise errors.request_invalid("the body is to be application/json")
        return body

    async def read(self, service: "Service", shape: type[_Shape], *, empty: bytes = b"") -> _Shape:
        return await service.parsed(shape, await self.body(service.policy) or empty)

    def parameters(self, shape: type[_Shape]) -> _Shape:
        """Raises E601."""
        return schemas.read_parameters(shape, _query_of(self.scope))


def _query_of(scope: Any) -> dict[str, str]:
    from_address = scope.get("query_string", b"")
    if not from_address:
        return {}
    pairs = _parsed(from_address)
    if len({name for name, _ in pairs}) != len(pairs):
        raise errors.request_invalid("a parameter is given twice")
    return dict(pairs)


def _parsed(text: bytes) -> list[tuple[str, str]]:
    try:
        return parse_qsl(text.decode("ascii"), keep_blank_values=True, strict_parsing=False, errors="strict")
    except ValueError as fault:
        raise errors.request_invalid("the parameters in the address are not UTF-8") from fault


def answer(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Numbers that JSON does not know become null."""
    return Response(pydantic_core.to_json(value), status, headers, "application/json")


@dataclass
class Streamed:
    """A response that is sent as it comes."""

    media_type: str
    parts: AsyncIterator[bytes]
    status_code: int = 200

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-type", self.media_type.encode())]
        await send({"type": "http.response.start", "status": self.status_code, "headers": headers})
        async for part in self.parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
