"""The ASGI application: request ids, authentication, limits, metrics, the log, and errors as responses."""

import asyncio
import hashlib
import ipaddress
import logging
import re
import secrets
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.responses import Response

from pair import errors
from pair.app.http import error_responses
from pair.app.http.context import JSON, HttpContext, HttpRequest, Operation
from pair.app.http.routes import match_route
from pair.app.kb_access import KbAccess
from pair.auth import rules
from pair.auth.rules import ANYBODY, Principal
from pair.librarians.threads import ThreadShare, share

logger = logging.getLogger("pair.http")

_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_SECURITY = [
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class HttpApp:
    def __init__(
        self, context: HttpContext, on_start: Callable[[], None], on_stop: Callable[[], Awaitable[None]]
    ) -> None:
        self._context = context
        self._metrics = context.service.metrics
        self._on_start = on_start
        self._on_stop = on_stop

    async def __call__(self, scope: Any, receive: Any, send: Send) -> None:
        if scope["type"] == "lifespan":
            await receive()
            self._on_start()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await self._on_stop()
            await send({"type": "lifespan.shutdown.complete"})
        elif scope["type"] == "http":
            await self._answer(scope, receive, send)

    async def _answer(self, scope: Any, receive: Any, send: Send) -> None:
        began = time.perf_counter()
        headers = dict(scope["headers"])
        given = headers.get(b"x-request-id", b"").decode("latin-1")
        request_id = given if _ID.fullmatch(given) else secrets.token_hex(16)
        traceparent = headers.get(b"traceparent", b"").decode("latin-1")
        access = KbAccess(self._context.service, request_id=request_id, traceparent=traceparent)
        request = HttpRequest(self._context, scope, receive, headers, access)
        sender = _Sender(send, request)
        route = f"{scope['method']} (none)"
        self._metrics.in_flight += 1
        try:
            preflight = self._context.cross_origin.answer_preflight(scope["method"], headers)
            if preflight is not None:
                await sender.send(preflight)
                return
            operation, request.path_value = match_route(scope["method"], scope["path"])
            route = operation.route
            await self._admit(operation, request)
            response = await operation.handler(request)
            await response(scope, receive, sender)
        except errors.PairError as fault:
            await self._send_error(fault, request, sender)
        except ConnectionResetError:
            sender.status = 499
        except asyncio.CancelledError:
            sender.status = 499
            if not self._context.service.is_stopping:
                raise
        except Exception:  # the outermost boundary of the server
            logger.exception("a bug", extra={"request_id": request_id})
            await sender.send(Response(error_responses.bug_body(request_id, scope["path"]), 500, media_type=JSON))
        finally:
            self._metrics.in_flight -= 1
            request.release_memory()
            self._note(route, request, sender.status, (time.perf_counter() - began) * 1000)

    async def _admit(self, operation: Operation, request: HttpRequest) -> None:
        """Check the origin, the credentials, the rate limit and the scope. Raises E602, E603, E608."""
        context = self._context
        needs_credentials = context.settings.auth != "none"
        rules.check_origin(
            request.header(b"host"),
            request.header(b"origin"),
            only_loopback=not needs_credentials,
            is_named=context.cross_origin.allows(request.headers),
        )
        client = _client_address(request.scope)
        if operation.scope is None:
            share.set(ThreadShare(f"unknown {client}", context.settings.client_workers))
            return
        if needs_credentials:
            try:
                request.access.principal = await self._authenticate(request)
            except errors.AccessError:
                self._check_rate(f"unknown {client}", request)
                raise
            client = request.access.principal.client
            share.set(ThreadShare(client, context.settings.client_workers))
        self._check_rate(client, request)
        rules.check_scope(request.access.principal, operation.scope)

    async def _authenticate(self, request: HttpRequest) -> Principal:
        """Raises E602, E614."""
        scheme, _, credential = request.header(b"authorization").partition(" ")
        if scheme.lower() != "bearer" or not credential.strip():
            raise errors.credentials_refused("there are none")
        return await self._context.verify(credential.strip())

    def _check_rate(self, client: str, request: HttpRequest) -> None:
        """Raises E608."""
        wait = self._context.rate_limit.take(client)
        if wait:
            request.access.log_fields["retry_after"] = wait
            raise errors.too_many_requests()

    async def _send_error(self, fault: errors.PairError, request: HttpRequest, sender: "_Sender") -> None:
        status = error_responses.error_status(fault)
        log_fields = request.access.log_fields
        headers = error_responses.retry_headers(status, log_fields.get("retry_after"))
        if status == 401:
            headers["WWW-Authenticate"] = 'Bearer realm="pair"'
        if status == 405:
            headers["Allow"] = fault.hints[0].removeprefix("Allowed: ")
        if status in {408, 413}:
            headers["Connection"] = "close"  # the rest of the body is not read
        log_fields["error"] = fault.code
        if status >= 500:
            details = {"request_id": request.access.request_id, "reason": fault.message, "why": fault.explanation}
            logger.warning("failed", extra=details)
        if fault.code == errors.CACHE_FULL:
            self._metrics.cache_budget_exceeded += 1
        if status in {401, 403, 429}:
            self._metrics.refused[str(status)] += 1
        body = error_responses.error_body(fault, request.scope["path"])
        await sender.send(Response(body, status, headers, JSON))

    def _note(self, route: str, request: HttpRequest, status: int, milliseconds: float) -> None:
        access = request.access
        fields = {
            "method": request.scope["method"],
            "path": request.scope["path"][:200],
            "status": status,
            "latency_ms": round(milliseconds, 3),
            "request_id": access.request_id,
            "client": _client_address(request.scope),
        }
        if access.principal is not ANYBODY:
            fields["user"] = access.principal.id
        if access.kb_id:
            fields["kb_id"] = access.kb_id[:128]
        fields |= {key: access.log_fields[key] for key in ("tool", "error") if key in access.log_fields}
        self._metrics.note_request(route, status, milliseconds, fields)
        level = logging.ERROR if status >= 500 else logging.WARNING if status >= 400 else logging.INFO
        if logger.isEnabledFor(level):
            logger.log(level, "request", extra=fields)


class _Sender:
    """Sends a response with the headers that all responses have."""

    def __init__(self, send: Send, request: HttpRequest) -> None:
        self._send = send
        self._request = request
        self.status = 0

    async def __call__(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            request = self._request
            self.status = message["status"]
            common = [(b"x-request-id", request.access.request_id.encode())]
            kb_id = request.access.kb_id or request.header(b"x-kb-id")
            if _ID.fullmatch(kb_id):
                common.append((b"x-kb-id", kb_id.encode()))
            headers = message.get("headers", [])
            own = {name for name, _ in headers}  # the page has a policy of its own
            common += [header for header in _SECURITY if header[0] not in own]
            cross_origin = request.context.cross_origin.response_headers(request.headers)
            message = {**message, "headers": [*headers, *common, *cross_origin]}
        await self._send(message)

    async def send(self, response: Response) -> None:
        """Send a response, unless another one has begun: then the connection ends where that broke off."""
        if self.status:
            raise ConnectionResetError
        await response(self._request.scope, self._request.receive, self)


def _client_address(scope: Any) -> str:
    """Return the address of the client; of IPv6 the network, which one client has all of."""
    host = scope["client"][0] if scope.get("client") else ""
    if ":" not in host:
        return host
    try:
        return str(ipaddress.ip_network(f"{host.partition('%')[0]}/64", strict=False))
    except ValueError:
        return hashlib.sha256(host.encode()).hexdigest()[:12]
