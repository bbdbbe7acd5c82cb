"""Where every request comes in: request id, credentials, limits, the log, figures, and errors to answers."""

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
from pair.app.http.context import RequestCall, Service
from pair.app.http.cross_origin import CrossOrigin
from pair.app.http.request_body import BodyShare, RequestBody
from pair.app.http.routes import Operation, matched
from pair.auth import rules
from pair.auth.rules import ANYBODY, Principal
from pair.librarians.daemon_threads import ThreadShare, share

logger = logging.getLogger("pair.http")

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_KB_HEADER = re.compile(r"[A-Za-z0-9._-]{1,128}")
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
    """The ASGI application."""

    def __init__(self, service: Service, on_start: Callable[[], None], on_stop: Callable[[], Awaitable[None]]) -> None:
        self._service = service
        self._on_start = on_start
        self._on_stop = on_stop
        self._cross_origin = CrossOrigin(service.policy.cors_origins)

    async def __call__(self, scope: Any, receive: Any, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            await self._answer(scope, receive, send)

    async def _live(self, receive: Any, send: Send) -> None:
        await receive()
        self._on_start()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._on_stop()
        await send({"type": "lifespan.shutdown.complete"})

    async def _answer(self, scope: Any, receive: Any, send: Send) -> None:
        began = time.perf_counter()
        headers = dict(scope["headers"])
        given = headers.get(b"x-request-id", b"").decode("latin-1")
        request_id = given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(16)
        held = BodyShare(self._service.body_memory)
        call = RequestCall(scope, RequestBody(receive, headers, held), request_id, headers)
        sent = _Sent(send, call, self._cross_origin)
        route = f"{scope['method']} (none)"
        figures = self._service.figures
        figures.in_flight += 1
        try:
            preflight = self._cross_origin.preflight(call)
            if preflight is not None:
                await sent.whole(preflight)
                return
            operation, call.path_value = matched(scope["method"], scope["path"])
            route = operation.route
            await self._let_in(operation, call)
            response = await operation.handler(self._service, call)
            await response(scope, receive, sent)
        except errors.PairError as fault:
            await self._refuse(fault, call, sent)
        except ConnectionResetError:
            sent.status = 499
        except asyncio.CancelledError:
            sent.status = 499
            if not self._service.is_stopping:
                raise
        except Exception:  # the outermost boundary of the service
            logger.exception("a bug", extra={"request_id": request_id})
            await sent.whole(
                Response(error_responses.bug_body(request_id, scope["path"]), 500, media_type="application/json")
            )
        finally:
            figures.in_flight -= 1
            held.release()
            self._note(route, call, sent.status, (time.perf_counter() - began) * 1000)

    async def _let_in(self, operation: Operation, call: RequestCall) -> None:
        """Raises E602, E603, E608."""
        service = self._service
        origin = call.header(b"origin")
        is_named = self._cross_origin.allows(origin)
        only_loopback = not service.asks_for_credentials
        rules.check_origin(call.header(b"host"), origin, only_loopback=only_loopback, is_named=is_named)
        client = _address_of(call.scope)
        if operation.scope is None:
            share.set(ThreadShare(f"unknown {client}", service.policy.client_workers))
            return
        if service.asks_for_credentials:
            try:
                call.principal = await self._verified(call)
            except errors.AccessError:
                self._take(f"unknown {client}", call)
                raise
            client = call.principal.client
            share.set(ThreadShare(client, service.policy.client_workers))
        self._take(client, call)
        rules.check_scope(call.principal, operation.scope)

    def _take(self, client: str, call: RequestCall) -> None:
        wait = self._service.rate.wait_of(client)
        if wait:
            call.told["retry_after"] = wait
            raise errors.too_many_requests()

    async def _verified(self, call: RequestCall) -> Principal:
        scheme, _, credential = call.header(b"authorization").partition(" ")
        if scheme.lower() != "bearer" or not credential.strip():
            raise errors.credentials_refused("there are none")
        return await self._service.verified(credential.strip())

    async def _refuse(self, fault: errors.PairError, call: RequestCall, sent: "_Sent") -> None:
        status = error_responses.status_of(fault)
        headers = error_responses.retry_headers(status, call.told.get("retry_after"))
        if status == 401:
            headers["WWW-Authenticate"] = 'Bearer realm="pair"'
        if status == 405:
            headers["Allow"] = fault.hints[0].removeprefix("Allowed: ")
        if status in {408, 413}:
            headers["Connection"] = "close"  # what was not read is not wanted
        call.told["error"] = fault.code
        if status >= 500:
            logger.warning(
                "failed", extra={"request_id": call.request_id, "reason": fault.message, "why": fault.explanation}
            )
        if fault.code == errors.CACHE_FULL:
            self._service.figures.cache_budget_exceeded += 1
        if status in {401, 403, 429}:
            self._service.figures.refused[str(status)] += 1
        await sent.whole(
            Response(error_responses.body_of(fault, call.scope["path"]), status, headers, "application/json")
        )

    def _note(self, route: str, call: RequestCall, status: int, milliseconds: float) -> None:
        about = {
            "method": call.scope["method"],
            "path": call.scope["path"][:200],
            "status": status,
            "latency_ms": round(milliseconds, 3),
            "request_id": call.request_id,
            "client": _address_of(call.scope),
        }
        if call.principal is not ANYBODY:
            about["user"] = call.principal.id
        if call.kb_id:
            about["kb_id"] = call.kb_id[:128]
        about |= {key: call.told[key] for key in ("tool", "error") if key in call.told}
        self._service.figures.note_request(route, status, milliseconds, about)
        level = logging.ERROR if status >= 500 else logging.WARNING if status >= 400 else logging.INFO
        if logger.isEnabledFor(level):
            logger.log(level, "request", extra=about)


class _Sent:
    """What is sent, with the headers that every answer has."""

    def __init__(self, send: Send, call: RequestCall, cross_origin: CrossOrigin) -> None:
        self._send = send
        self._call = call
        self._cross_origin = cross_origin
        self.status = 0

    async def __call__(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            about = [(b"x-request-id", self._call.request_id.encode())]
            kb_id = self._call.kb_id or self._call.header(b"x-kb-id")
            if _KB_HEADER.fullmatch(kb_id):
                about.append((b"x-kb-id", kb_id.encode()))
            headers = message.get("headers", [])
            own = {name for name, _ in headers}  # the page has its own policy
            guards = [each for each in _SECURITY if each[0] not in own]
            message = {**message, "headers": [*headers, *about, *guards, *self._cross_origin.headers(self._call)]}
        await self._send(message)

    async def whole(self, response: Response) -> None:
        """Unless something was sent already: then the connection ends where it broke off."""
        if self.status:
            raise ConnectionResetError
        await response(self._call.scope, self._call.incoming.receive, self)


def _address_of(scope: Any) -> str:
    """Of the client; of IPv6 the network, which one client has all of."""
    host = scope["client"][0] if scope.get("client") else ""
    if ":" not in host:
        return host
    try:
        return str(ipaddress.ip_network(f"{host.partition('%')[0]}/64", strict=False))
    except ValueError:
        return hashlib.sha256(host.encode()).hexdigest()[:12]
