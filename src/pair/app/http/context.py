"""The request that handlers receive, its admission and its limits, and the state that all requests share."""

import asyncio
import collections
import hashlib
import ipaddress
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from email.message import Message
from typing import Annotated, Any, TypeVar, cast
from urllib.parse import parse_qsl

from fastapi import Depends, Request, Security
from fastapi.security import HTTPBearer, SecurityScopes
from starlette.responses import Response

from pair import errors
from pair.app.http import schemas
from pair.app.http.response_cache import Idempotency, ResponseCache, RunningQueries, SharedRuns
from pair.app.http.responses import JSON
from pair.app.kb_access import KbAccess, KbService
from pair.auth import rules
from pair.auth.rules import ANYBODY, Bucket, Principal, Scope, take_token
from pair.auth.settings import ServerSettings
from pair.clock import Clock
from pair.kb.trust import token_verifier, verifier
from pair.librarians.threads import ThreadShare, in_thread, share
from pair.settings import Settings

MAX_QUERY_BYTES = 1_048_576
"""Maximum size of a request that stores nothing."""
MAX_VALUES = 1_000_000
"""Maximum number of JSON values in a body: parsing blocks all threads of the process, so it must not take long."""
MAX_QUERY_VALUES = 50_000
"""Maximum number of JSON values in a request that stores nothing."""
_LONG_BYTES = 65_536
_MOST_PARSING = 2
_MOST_READING = 8
"""Maximum number of uploaded files that are read at once: each takes a thread, for a minute at worst."""
_KEYS_SECONDS = 5.0
_MOST_CLIENTS = 10_000
Headers = dict[bytes, bytes]
_bearer = HTTPBearer(
    scheme_name="credentials", description="A key made by `pair keys add`, or a JWT.", auto_error=False
)
_Shape = TypeVar("_Shape")


class HttpContext:
    """State that all requests of a server share. Belongs to one event loop."""

    def __init__(self, settings: Settings) -> None:
        """Prepare the state. Raises E401 for invalid settings, such as a public address without authentication."""
        self.settings = settings.server
        self._tokens = token_verifier(settings) if self.settings.auth == "jwt" else None
        self._verify = verifier(settings) if self._tokens is None else None
        self._key_reading: asyncio.Task[None] | None = None
        self.service = KbService(settings)
        self.cross_origin = CrossOrigin(self.settings.cors_origins)
        self.rate_limit = RateLimit(self.settings, self.service.clock)
        self.idempotency = Idempotency(self.settings.idempotency_seconds, self.service.clock)
        self.responses = ResponseCache()
        self.running_queries = RunningQueries()
        self.shared_runs = SharedRuns()
        self.parsing = asyncio.Semaphore(_MOST_PARSING)
        self.reading = asyncio.Semaphore(_MOST_READING)
        self._body_bytes = 0

    async def verify(self, credential: str) -> Principal:
        """Return the principal of a credential. Raises E602, E614.

        Requests that need new public keys share one download, and wait at most 5 seconds for it.
        """
        if self._tokens is None:
            return self._verify(credential) if self._verify is not None else ANYBODY
        if self._tokens.needs_keys(credential):
            if self._key_reading is None or self._key_reading.done():
                self._key_reading = asyncio.ensure_future(in_thread(self._tokens.read_keys))
            await asyncio.wait([self._key_reading], timeout=_KEYS_SECONDS)
        return self._tokens.authenticate(credential, may_read=False)

    def take_memory(self, size: int) -> None:
        """Reserve memory for a part of a body; a negative size releases it. Raises E617."""
        if self._body_bytes + size > self.settings.max_buffered_bytes:
            raise errors.server_full("other request bodies use all memory for bodies")
        self._body_bytes += size


@dataclass
class HttpRequest:
    """One HTTP request with the rights of its caller."""

    context: HttpContext
    scope: Any
    receive: Any
    headers: Headers
    access: KbAccess
    needed_scope: Scope = "read"
    """The scope of the route."""
    _body_bytes: int = 0

    @property
    def service(self) -> KbService:
        return self.context.service

    def header(self, name: bytes) -> str:
        return self.headers.get(name, b"").decode("latin-1")

    @property
    def media_type(self) -> str:
        """The content type without parameters: `application/json` for `application/json; charset=utf-8`."""
        return self.header(b"content-type").partition(";")[0].strip().lower()

    @property
    def charset(self) -> str | None:
        """The charset that the content type declares."""
        message = Message()
        message["content-type"] = self.header(b"content-type")
        return message.get_content_charset()

    async def once(self, key: str, body: bytes, work: Callable[[], Awaitable[Response]]) -> Response:
        """Do the work once per path and Idempotency-Key. A repeated request gets the first response. Raises E601."""
        if not key:
            return await work()
        client = f"{self.access.principal.client} {self.access.kb_id} {self.scope['path']}"
        answer, is_repeated = await self.context.idempotency.once(client, key, body, work)
        if not is_repeated:
            return answer
        return Response(answer.body, answer.status_code, {"Idempotent-Replayed": "true"}, JSON)

    def check_sees_all(self) -> None:
        """Raise E603 if the caller may not use all KBs."""
        if not self.access.principal.sees_all:
            raise errors.not_allowed("this covers all knowledge bases, and these credentials are for some of them")

    def check_parameters(self) -> None:
        """Raise E601 for query parameters that are not UTF-8 or occur twice."""
        try:
            text = self.scope.get("query_string", b"").decode("ascii")
            names = [name for name, _ in parse_qsl(text, keep_blank_values=True, errors="strict")]
        except ValueError as fault:
            raise errors.request_invalid("the query parameters are not UTF-8") from fault
        if len({*names}) != len(names):
            raise errors.request_invalid("a query parameter occurs twice")

    async def read(self, shape: type[_Shape], *, empty: bytes = b"") -> _Shape:
        """Read and parse the body of a request that stores nothing. Raises E601, E607, E610, E617."""
        return await self.parse(shape, await self.json_body() or empty)

    async def json_body(self, max_bytes: int | None = None) -> bytes:
        """Read a JSON body. The default limit is for requests that store nothing. Raises E601, E607, E610, E617."""
        body = await (self.query_body() if max_bytes is None else self.body(max_bytes))
        if body and self.media_type != JSON:
            raise errors.request_invalid("the body must be application/json")
        return body

    async def query_body(self) -> bytes:
        """Read the body of a request that stores nothing. Raises E601 if it has too many values, E607, E610, E617."""
        body = await self.body(MAX_QUERY_BYTES)
        if count_values(body, MAX_QUERY_VALUES) > MAX_QUERY_VALUES:
            raise errors.request_invalid(f"it has more than {MAX_QUERY_VALUES:,} values")
        return body

    async def parse(self, shape: type[_Shape], body: bytes, *, where: str = "") -> _Shape:
        """Parse JSON. Parse large bodies in a thread, at most two at a time. Raises E601, E607."""
        if len(body) < _LONG_BYTES:
            return schemas.read(shape, body, where=where)

        def parse() -> _Shape:
            check_values(body)
            return schemas.read(shape, body, where=where)

        async with self.context.parsing:
            return await in_thread(parse)

    async def body(self, max_bytes: int) -> bytes:
        """Read the body. Raises E607 as soon as the body is known to be too large, E610, E617."""
        settings = self.context.settings
        most = min(max_bytes, settings.max_body_bytes)
        declared = self.headers.get(b"content-length", b"")
        if declared.isdigit() and (len(declared) > 18 or int(declared) > most):
            raise errors.request_too_large("The request", most)
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(settings.body_timeout_seconds):
                while True:
                    part, has_more = await self._next_part()
                    size += len(part)
                    if size > most:
                        raise errors.request_too_large("The request", most)
                    parts.append(part)
                    if not has_more:
                        return b"".join(parts)
        except TimeoutError as fault:
            raise errors.request_too_slow(settings.body_timeout_seconds) from fault

    async def lines(self) -> AsyncIterator[list[bytes]]:
        """Yield lines that are not blank, as many at a time as arrived together.

        The next line must arrive within the timeout: blank lines and parts of a line do not extend it.
        Raises E607 for a line that is too long, E610, E617.
        """
        settings = self.context.settings
        begun: list[bytes] = []
        """Parts of a line that has not ended, to be joined once."""
        size = 0
        has_more = True
        while has_more:
            lines: list[bytes] = []
            try:
                async with asyncio.timeout(settings.body_timeout_seconds):
                    while has_more and not lines:
                        part, has_more = await self._next_part()
                        *ended, rest = part.split(b"\n")
                        if ended:
                            ended[0] = b"".join([*begun, ended[0]])
                            begun, size = [], 0
                        begun.append(rest)
                        size += len(rest)
                        if not has_more:
                            ended.append(b"".join(begun))
                        if max(size, *map(len, ended), 0) > settings.max_body_bytes:
                            raise errors.request_too_large("A line", settings.max_body_bytes)
                        lines = [line for line in ended if line.strip()]
            except TimeoutError as fault:
                raise errors.request_too_slow(settings.body_timeout_seconds) from fault
            if lines:
                yield lines

    async def _next_part(self) -> tuple[bytes, bool]:
        """Return the next part of the body, and whether another one follows. Raises E617."""
        message = await self.receive()
        if message["type"] == "http.disconnect":
            raise ConnectionResetError
        part = message.get("body", b"")
        self.context.take_memory(len(part))
        self._body_bytes += len(part)
        return part, message.get("more_body", False)

    def release_memory(self) -> None:
        """Release the memory that is reserved for the body."""
        self.context.take_memory(-self._body_bytes)
        self._body_bytes = 0


def check_values(body: bytes) -> None:
    """Raise E607 if a body has too many JSON values."""
    if count_values(body) > MAX_VALUES:
        raise errors.request_too_large("The request", MAX_VALUES, "values")


def count_values(body: bytes, most: int = MAX_VALUES, *, slice_bytes: int = 262_144) -> int:
    """Count the containers and commas of a JSON text without parsing it. Stop when the count exceeds the limit."""
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


class RateLimit:
    """A token bucket for each client. The least recently seen clients are dropped first."""

    def __init__(self, settings: ServerSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._buckets: collections.OrderedDict[str, Bucket] = collections.OrderedDict()

    def take(self, client: str) -> float:
        """Take a token. Return the seconds that the client must wait; 0 if it may send a request now."""
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


class CrossOrigin:
    """Cross-origin requests (CORS): pages of the configured origins may call the API."""

    def __init__(self, origins: str) -> None:
        """Allow these origins. `origins`: separated by commas; empty for none."""
        self._allowed = frozenset(origin.strip().rstrip("/").lower() for origin in origins.split(",") if origin.strip())

    def allows(self, headers: Headers) -> bool:
        return headers.get(b"origin", b"").decode("latin-1").lower() in self._allowed

    def answer_preflight(self, method: str, headers: Headers) -> Response | None:
        """Return the response to a preflight request of a browser; None for any other request."""
        is_preflight = method == "OPTIONS" and headers.get(b"access-control-request-method")
        if not is_preflight or not self.allows(headers):
            return None
        answer = {
            "Access-Control-Allow-Methods": "GET, POST, PUT, DELETE",
            "Access-Control-Allow-Headers": "Accept, Authorization, Content-Type, Idempotency-Key, "
            "MCP-Protocol-Version, Traceparent, X-KB-ID, X-Request-ID",
            "Access-Control-Max-Age": "600",
        }
        return Response(status_code=204, headers=answer)

    def response_headers(self, headers: Headers) -> list[tuple[bytes, bytes]]:
        """Return the headers that let the page read the response. They do not allow cookies."""
        if not self._allowed:
            return []
        if not self.allows(headers):
            return [(b"vary", b"Origin")]
        return [
            (b"vary", b"Origin"),
            (b"access-control-allow-origin", headers[b"origin"]),
            (
                b"access-control-expose-headers",
                b"idempotent-replayed, retry-after, www-authenticate, x-kb-id, x-request-id",
            ),
        ]


# ── dependencies of the routes ─────────────────────────────────────────────────────────────────────


def _check_origin(given: Request) -> HttpRequest:
    """Raise E603 for a page of another site and, without authentication, for a host name that is not loopback."""
    request: HttpRequest = given.scope["pair"]
    context = request.context
    rules.check_origin(
        request.header(b"host"),
        request.header(b"origin"),
        only_loopback=context.settings.auth == "none",
        is_named=context.cross_origin.allows(request.headers),
    )
    return request


async def admit(given: Request, scope: Scope) -> HttpRequest:
    """Check the origin, the credentials, the rate limit and the scope. Raises E602, E603, E608, E614."""
    request = _check_origin(given)
    request.needed_scope = scope
    context, client = request.context, client_address(request.scope)
    if context.settings.auth != "none":
        try:
            kind, _, credential = request.header(b"authorization").partition(" ")
            if kind.lower() != "bearer" or not credential.strip():
                raise errors.credentials_refused("credentials are missing")
            request.access.principal = await context.verify(credential.strip())
        except errors.AccessError:
            _check_rate(request, f"unknown {client}")
            raise
        client = request.access.principal.client
        share.set(ThreadShare(client, context.settings.client_workers))
    _check_rate(request, client)
    rules.check_scope(request.access.principal, scope)
    if given.scope["route"].dependant.query_params:
        request.check_parameters()
    return request


async def admit_anyone(given: Request) -> HttpRequest:
    """Check the origin only. Raises E603."""
    request = _check_origin(given)
    share.set(ThreadShare(f"unknown {client_address(request.scope)}", request.context.settings.client_workers))
    return request


async def _admit_scope(
    given: Request, needed: SecurityScopes, _credentials: Annotated[Any, Depends(_bearer)]
) -> HttpRequest:
    """Admit a caller with the scope of the route. `_credentials` is only for the OpenAPI document."""
    return await admit(given, cast("Scope", needed.scopes[0]))


def _check_rate(request: HttpRequest, client: str) -> None:
    """Raise E608 if the client sends too many requests."""
    wait = request.context.rate_limit.take(client)
    if wait:
        request.access.log_fields["retry_after"] = wait
        raise errors.too_many_requests()


def client_address(scope: Any) -> str:
    """Return the address of the client. For IPv6, return the /64 network, which belongs to one client."""
    host = scope["client"][0] if scope.get("client") else ""
    if ":" not in host:
        return host
    try:
        return str(ipaddress.ip_network(f"{host.partition('%')[0]}/64", strict=False))
    except ValueError:
        return hashlib.sha256(host.encode()).hexdigest()[:12]


Anyone = Annotated[HttpRequest, Depends(admit_anyone)]
Reader = Annotated[HttpRequest, Security(_admit_scope, scopes=["read"])]
Writer = Annotated[HttpRequest, Security(_admit_scope, scopes=["write"])]
Admin = Annotated[HttpRequest, Security(_admit_scope, scopes=["admin"])]
"""The request of a caller with this scope."""
