"""The ASGI application: request ids, metrics, access log, errors, the page and MCP."""

import asyncio
import functools
import hashlib
import logging
import re
import secrets
import time
from collections.abc import Awaitable, Callable, MutableMapping
from importlib import resources
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.responses import Response

from pair import errors
from pair.app.http import (
    ask,
    external,
    feedback,
    health,
    openai_api,
    openai_more,
    openapi,
    rag,
    responses,
    schemas,
)
from pair.app.http.context import Anyone, HttpContext, HttpRequest, Reader, admit, admit_anyone, client_address
from pair.app.http.responses import JSON
from pair.app.http.schemas import PathId
from pair.app.kb_access import KbAccess, describe_problem
from pair.auth.rules import ANYBODY

logger = logging.getLogger("pair.http")

_HEALTH_PATH = "/healthz"
_HOT_PATHS = frozenset({_HEALTH_PATH, "/rag/query"})
_PAGE_ROUTES = frozenset({"GET /", "GET /ui/{id}"})
_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_SECURITY = [
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
]
_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_INDEX = "index.html"
_DIRECTIVES = (
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "connect-src 'self'",
    "img-src 'self'",
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
    # Text never becomes markup or code, even if a script of the page has a bug.
    "require-trusted-types-for 'script'",
    "trusted-types 'none'",
)
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

router = APIRouter(include_in_schema=False)


def make_api(lifespan: Any = None) -> FastAPI:
    """Return the FastAPI application. `HttpApp` adds the context of each request."""
    routers = (
        rag.router,
        health.router,
        ask.router,
        openai_api.router,
        openai_more.router,
        external.router,
        feedback.router,
        router,
    )
    api = FastAPI(
        routes=[route for router in routers for route in router.routes],
        lifespan=lifespan,
        openapi_url=None,
        redirect_slashes=False,
        exception_handlers={
            errors.PairError: _answer_error,
            RequestValidationError: _answer_invalid,
            HTTPException: _answer_unknown_route,
            Exception: _answer_bug,
        },
    )

    @api.get("/openapi.json", **openapi.describe(schemas.OpenApiDocument))
    async def send_document(_request: Anyone) -> Response:
        """Get the OpenAPI document"""
        return responses.answer(openapi.make_document(api))

    return api


class HttpApp:
    """The outermost ASGI application: adds request ids and response headers, counts requests and logs them."""

    def __init__(self, context: HttpContext, lifespan: Any) -> None:
        self._context = context
        self._metrics = context.service.metrics
        self._api = make_api(lifespan)
        self._hot_routes: dict[str, Any] = {}
        for route in self._api.routes:
            if isinstance(route, APIRoute) and route.path in _HOT_PATHS:
                self._hot_routes[route.path] = route

    async def __call__(self, scope: Any, receive: Any, send: Send) -> None:
        if scope["type"] != "http":
            await self._api(scope, receive, send)
            return
        began = time.perf_counter()
        headers = dict(scope["headers"])
        given = headers.get(b"x-request-id", b"").decode("latin-1")
        request_id = given if _ID.fullmatch(given) else secrets.token_hex(16)
        traceparent = headers.get(b"traceparent", b"").decode("latin-1")
        access = KbAccess(self._context.service, request_id=request_id, traceparent=traceparent)
        request = HttpRequest(self._context, scope, receive, headers, access)
        sender = _Sender(send, request)
        routed = {**scope, "pair": request, "method": "GET" if scope["method"] == "HEAD" else scope["method"]}
        self._metrics.in_flight += 1
        try:
            preflight = self._context.cross_origin.answer_preflight(scope["method"], headers)
            hot_route = self._hot_routes.get(scope["path"])
            if preflight is None and hot_route is not None and routed["method"] in hot_route.methods:
                routed["route"] = hot_route
                await _answer_at_once(routed, receive, sender)
            else:
                await (preflight or self._api)(routed, receive, sender)
        except ConnectionResetError:
            sender.status = 499
        except asyncio.CancelledError:
            sender.status = 499
            if not self._context.service.is_stopping:
                raise
        except Exception:  # the outermost boundary of the server
            logger.exception("unhandled error", extra={"request_id": request_id})
        finally:
            self._metrics.in_flight -= 1
            request.release_memory()
            self._note(request, routed, sender.status, (time.perf_counter() - began) * 1000)

    def _note(self, request: HttpRequest, routed: Any, status: int, milliseconds: float) -> None:
        access, route = request.access, routed.get("route")
        is_known = route is not None and routed["method"] in route.methods
        name = f"{routed['method']} {route.path_format}" if is_known else f"{request.scope['method']} (none)"
        fields = {
            "method": request.scope["method"],
            "path": request.scope["path"][:200],
            "status": status,
            "latency_ms": round(milliseconds, 3),
            "request_id": access.request_id,
            "client": client_address(request.scope),
        }
        if access.principal is not ANYBODY:
            fields["user"] = access.principal.id
        if access.kb_id:
            fields["kb_id"] = access.kb_id[:128]
        fields |= {key: access.log_fields[key] for key in ("tool", "error") if key in access.log_fields}
        self._metrics.note_request(name, status, milliseconds, fields, request.service.uptime_seconds())
        is_page = name in _PAGE_ROUTES  # opening the page once takes many requests
        level = logging.DEBUG if is_page else logging.INFO
        if status >= 400:
            level = logging.ERROR if status >= 500 else logging.WARNING
        if logger.isEnabledFor(level):
            logger.log(level, "request", extra=fields)


async def _answer_at_once(scope: Any, receive: Any, send: Any) -> None:
    """Answer without FastAPI: its middleware and dependencies cost as much as a cached answer."""
    given = Request(scope, receive, send)
    try:
        request = await (admit_anyone(given) if scope["path"] == _HEALTH_PATH else admit(given, "read"))
        response: Response = await scope["route"].endpoint(request)
    except errors.PairError as fault:
        response = await _answer_error(given, fault)
    except Exception as bug:
        await (await _answer_bug(given, bug))(scope, receive, send)
        raise
    await response(scope, receive, send)


class _Sender:
    """A sender that adds the common headers to a response, and stores its status."""

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
            own = {name for name, _ in headers}  # the page sets its own security policy
            common += [header for header in _SECURITY if header[0] not in own]
            cross_origin = request.context.cross_origin.response_headers(request.headers)
            message = {**message, "headers": [*headers, *common, *cross_origin]}
        await self._send(message)


# ── errors ─────────────────────────────────────────────────────────────────────────────────────────


async def _answer_error(given: Request, fault: Any) -> Response:
    request: HttpRequest = given.scope["pair"]
    status, metrics, log_fields = responses.error_status(fault), request.service.metrics, request.access.log_fields
    headers = responses.retry_headers(status, log_fields.get("retry_after"))
    if status in {401, 403} and (challenge := external.make_challenge(request, status)):
        headers["WWW-Authenticate"] = challenge
    if status == 405:
        headers["Allow"] = fault.hints[0].removeprefix("Allowed: ")
    if status in {408, 413}:
        headers["Connection"] = "close"  # the rest of the body stays unread
    log_fields["error"] = fault.code
    if status >= 500:
        details = {"request_id": request.access.request_id, "reason": fault.message, "why": fault.explanation}
        logger.warning("request failed", extra=details)
    if fault.code == errors.CACHE_FULL:
        metrics.cache_budget_exceeded.inc()
    if status in {401, 403, 429}:
        metrics.refused.labels(status).inc()
    return Response(responses.error_body(fault, given.scope["path"]), status, headers, JSON)


async def _answer_invalid(given: Request, fault: Any) -> Response:
    """Answer E601 for parameters that FastAPI refused."""
    problem = fault.errors()[0]
    return await _answer_error(given, errors.request_invalid(describe_problem({**problem, "loc": problem["loc"][1:]})))


async def _answer_unknown_route(given: Request, fault: Any) -> Response:
    path = given.scope["path"]
    if fault.status_code != 405:
        return await _answer_error(given, errors.no_such_route(path))
    routes = [route for route in given.app.routes if route.path_regex.match(path)]
    allowed = sorted({method for route in routes for method in route.methods})
    return await _answer_error(
        given, errors.method_not_allowed(given.scope["pair"].scope["method"], ", ".join(allowed))
    )


async def _answer_bug(given: Request, fault: Exception) -> Response:
    if isinstance(fault, ConnectionResetError):  # the client has closed the connection
        return Response(status_code=499)
    return Response(
        responses.bug_body(given.scope["pair"].access.request_id, given.scope["path"]), 500, media_type=JSON
    )


# ── the page at `/` ───────────────────────────────────────────────────────────────────────────────────

# The files of the page contain no data, so they need no credentials.


@functools.cache
def _read_files() -> dict[str, tuple[bytes, dict[str, str]]]:
    """Return the content and the headers of each file of the page, by name."""
    files = {}
    for entry in resources.files("pair.app.ui").iterdir():
        kind = _KINDS.get("." + entry.name.rpartition(".")[2])
        if kind is not None:
            content = entry.read_bytes()
            headers = {
                "ETag": f'"{hashlib.sha256(content).hexdigest()[:32]}"',
                "Cache-Control": "no-cache",  # a browser keeps the file and revalidates it each time
                "Content-Security-Policy": "; ".join(_DIRECTIVES),
                "Content-Type": kind,
            }
            files[entry.name] = content, headers
    return files


@router.get("/")
async def send_index(request: Anyone) -> Response:
    return _send(_INDEX, request)


@router.get("/ui/{id:text}")
async def send_file(request: Anyone, id: PathId) -> Response:
    """Send a file of the page. Raises E604 for any other name."""
    if id not in _read_files() or id == _INDEX:
        raise errors.no_such_route(request.scope["path"])
    return _send(id, request)


def _send(name: str, request: HttpRequest) -> Response:
    content, headers = _read_files()[name]
    known = {tag.strip().removeprefix("W/") for tag in request.header(b"if-none-match").split(",")}
    if {headers["ETag"], "*"} & known:
        return Response(status_code=304, headers={key: headers[key] for key in headers if key != "Content-Type"})
    return Response(content, headers=headers)


# ── the route `/mcp` ──────────────────────────────────────────────────────────────────────────────────


class _McpResponse(Response):
    """The response to an MCP message whose body is already read."""

    def __init__(self, access: KbAccess, body: bytes) -> None:
        super().__init__()
        self._access = access
        self._messages = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def receive_body() -> Any:
            return next(self._messages, None) or await receive()

        answer_http = await self._access.service.run(_load_mcp)
        await answer_http(self._access, scope, receive_body, send)


@router.post("/mcp")
async def answer_message(request: Reader) -> Response:
    """Answer an MCP message as JSON. There are no sessions: each message is authenticated."""
    return _McpResponse(request.access, await request.query_body())


def _load_mcp() -> Any:
    from pair.app.mcp.server import answer_http  # noqa: PLC0415 - loads the SDK with the first request

    return answer_http
