"""Run the server: the socket, signals, connections within limits, shutdown, traces and the log.

Shutdown takes little longer than `server.stop_seconds`: running requests finish, new ones are refused. The rest is cut
off, which loses nothing that was acknowledged: a write is published in one step or not at all.

Invariants
    A connection holds at most MAX_HEAD_BYTES of a head, and a few requests that wait for the one before.
    A connection without a request can be closed at any time, to make room for another one.
    A refused request gets an error response as on every route, unless another response has begun.
"""

import asyncio
import collections
import contextlib
import ctypes
import functools
import importlib.util
import json
import logging
import math
import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import uvicorn
from uvicorn.config import Config
from uvicorn.protocols.http import httptools_impl
from uvicorn.server import ServerState

from pair import errors
from pair.app import render
from pair.app.http import responses
from pair.app.http.app import HttpApp
from pair.app.http.context import HttpContext
from pair.auth.settings import ServerSettings
from pair.kb.open import DEFAULT_KB
from pair.settings import Settings

_TRACES_SECONDS = 1
_M_ARENA_MAX = -8
"""From malloc.h of glibc."""
logger = logging.getLogger("pair.http")

_LEAST_SECONDS, _MOST_SECONDS = 1.0, 3.0
"""For background jobs to end, after requests have: more time where these were quick."""
_LOOKS_PER_TIMEOUT = 4
MAX_HEAD_BYTES = 65_536
MAX_HEADERS = 100
_MAX_PIPELINED = 32
_SLICE_BYTES = 8_192
"""Parsed at a time: the bytes of a head are counted to within one slice."""
_LINGERING_SECONDS = 1.0
"""For the client to read the error, while the bytes that it still sends are dropped."""
_SPARE_FILES = 256
"""Left for shards and stores, where the system allows few open files."""


def serve(settings: Settings, log_level: str) -> int:
    """Serve until a signal comes, and return the exit status. Raises E401, E612."""
    start_logging(settings.server.log_format, log_level)
    context = HttpContext(settings)
    send_last_traces = _send_traces(settings)
    with contextlib.closing(_listen(settings.server)) as listening:
        _allow_many_files()
        _limit_arenas()
        _Server(context, listening).server.run(sockets=[listening])
    send_last_traces()
    logger.info("stopped")
    if context.service.is_busy:
        # Python would wait for work that is cut off here, or abort in the middle of it.
        logging.shutdown()
        sys.stderr.flush()
        os._exit(0)
    return 0


class _Server:
    def __init__(self, context: HttpContext, listening: socket.socket) -> None:
        self._service = context.service
        self._listening = listening
        self._settings = context.settings
        self._connections = Connections(self._settings)
        self.server = uvicorn.Server(
            uvicorn.Config(
                HttpApp(context, self._run_jobs),
                http=cast("type[asyncio.Protocol]", functools.partial(BoundedConnection, self._connections)),
                loop="uvloop",
                ws="none",
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=bool(self._settings.trusted_proxies),
                forwarded_allow_ips=self._settings.trusted_proxies or "",
                timeout_keep_alive=math.ceil(self._settings.keep_alive_seconds),
                timeout_graceful_shutdown=math.ceil(self._settings.stop_seconds),
            )
        )
        self._signalled_at = 0.0

    @contextlib.asynccontextmanager
    async def _run_jobs(self, _api: object) -> AsyncIterator[None]:
        """Start the jobs that run beside the requests, and stop them after the last request."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._handle_signal)

        async def close_slow_connections() -> None:
            while True:
                await asyncio.sleep(self._settings.header_timeout_seconds / _LOOKS_PER_TIMEOUT)
                self._connections.close_slow(loop.time())

        def open_default_kb() -> None:
            try:
                self._service.kbs.get(DEFAULT_KB).stats()
            except errors.PairError as fault:
                logger.warning("the default knowledge base cannot be opened", extra={"reason": fault.message})

        closing_slow = asyncio.ensure_future(close_slow_connections())
        # Before the first query needs it; an earlier one waits for the same.
        threading.Thread(target=open_default_kb, name="pair-warm-up", daemon=True).start()
        self._service.start_jobs()
        host, port = self._listening.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        logger.info("serving", extra={"address": f"http://{shown}:{port}", "auth": self._settings.auth})
        yield
        closing_slow.cancel()
        self._service.stop()
        left = self._settings.stop_seconds - (loop.time() - self._signalled_at)
        self._service.close(max(_LEAST_SECONDS, min(_MOST_SECONDS, left)))

    def _handle_signal(self) -> None:
        if self._service.is_stopping:
            self.server.force_exit = True
        self._signalled_at = self._signalled_at or asyncio.get_running_loop().time()
        self._service.stop()
        self.server.should_exit = True
        logger.info("stopping", extra={"in_flight": self._service.metrics.in_flight})


def _listen(settings: ServerSettings) -> socket.socket:
    """Raises E612."""
    host, port = settings.host, settings.port
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = addresses[0]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(address)
            # From here on connections wait, and are not refused.
            listening.listen(2048)
        except OSError:
            listening.close()
            raise
    except OSError as fault:
        raise errors.address_unusable(host, port, fault.strerror or "unknown host") from fault
    return listening


def _allow_many_files() -> None:
    """Raise the limit of open files to what the system allows."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _limit_arenas() -> None:
    """Let the threads share two heaps: with more of them, glibc returns little memory to the system."""
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 2)


def _send_traces(settings: Settings) -> Callable[[], None]:
    """Send traces from now on, if an endpoint is configured; return what sends the last of them. Raises E401."""
    endpoint = settings.server.otlp_endpoint
    if not endpoint:
        return lambda: None
    if importlib.util.find_spec("opentelemetry.sdk") is None:
        raise errors.settings_invalid(
            "server.otlp_endpoint", "sending traces needs an extra", hints=["pip install 'pair-kb[otel]'"]
        )
    from opentelemetry import trace  # noqa: PLC0415 - only where traces are sent
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

    exporter = OTLPSpanExporter(endpoint=endpoint, timeout=_TRACES_SECONDS)
    provider = TracerProvider(resource=Resource.create({"service.name": "pair"}), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)

    def send_last() -> None:
        # A collector that does not answer does not keep the process from ending.
        sender = threading.Thread(target=provider.shutdown, name="pair-traces", daemon=True)
        sender.start()
        sender.join(_TRACES_SECONDS)

    return send_last


# ── the log ────────────────────────────────────────────────────────────────────────────────────────


class _JsonFormatter(logging.Formatter):
    """One object a line."""

    def format(self, record: logging.LogRecord) -> str:
        value = {
            "time": render.format_log_time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **render.log_fields(record),
        }
        if record.exc_info is not None:
            value["exception"] = self.formatException(record.exc_info)
        return render.escape_json(json.dumps(value, default=str))


def start_logging(log_format: str, level: str) -> None:
    """Write to standard error, for pair and for the libraries of the server."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter() if log_format == "json" else render.LogFormatter(with_time=True))
    for name, least in (("pair", level.upper()), ("uvicorn", "WARNING"), ("mcp", "WARNING")):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(least)


# ── connections ───────────────────────────────────────────────────────────────────────────────────────


class Connections:
    """State that the connections of a server share. Belongs to one event loop."""

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.most = min(settings.max_connections, max(files - _SPARE_FILES, files // 2))
        self.waiting: collections.OrderedDict[BoundedConnection, float] = collections.OrderedDict()
        """Connections without a request, and since when; the first has waited longest."""

    def close_slow(self, now: float) -> None:
        """Close connections that did not send the head of a request in time. Idle ones have their own timer."""
        for connection, since in list(self.waiting.items()):
            if now - since < self.settings.header_timeout_seconds:
                return
            if connection.timeout_keep_alive_task is None:
                connection.end()

    def make_room(self) -> None:
        """Close the connection that has waited longest."""
        oldest = next(iter(self.waiting))
        del self.waiting[oldest]
        oldest.end()


class BoundedConnection(httptools_impl.HttpToolsProtocol):
    """The protocol of one connection."""

    def __init__(
        self,
        shared: Connections,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._shared = shared
        self._slice_bytes = 0
        self._head_bytes = 0
        """Bytes since the last head or part of a body: of a head, of trailers, or of the framing of a body."""
        self._fault: errors.PairError | None = None
        self._is_refused = False
        self._stuck: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self._shared.most:
            if not self._shared.waiting:
                self._refuse(errors.server_full("every connection is in use"))
                return
            self._shared.make_room()
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._shared.waiting.pop(self, None)
        if self._stuck is not None:
            self._stuck.cancel()
        super().connection_lost(exc)

    def end(self) -> None:
        """Close now, whether or not the client reads the rest of the response."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()

    def timeout_keep_alive_handler(self) -> None:
        self.end()

    def _wait(self) -> None:
        """Wait for the head of a request, from now on."""
        self._shared.waiting.pop(self, None)
        self._shared.waiting[self] = self.loop.time()

    def data_received(self, data: bytes) -> None:
        if self.timeout_keep_alive_task is not None:
            self._wait()
        for start in range(0, len(data), _SLICE_BYTES):
            if self._is_refused or self.transport.is_closing():
                return
            piece = data[start : start + _SLICE_BYTES]
            self._slice_bytes = len(piece)
            self._head_bytes += len(piece)
            super().data_received(piece)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse(errors.head_too_large(f"{MAX_HEAD_BYTES:,} bytes"))

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= _MAX_PIPELINED:
            raise self._keep(errors.too_many_requests())
        self._head_bytes = self._slice_bytes
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(self.headers) >= MAX_HEADERS:
            raise self._keep(errors.head_too_large(f"{MAX_HEADERS} headers"))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self._head_bytes = self._slice_bytes
        self._shared.waiting.pop(self, None)

    def on_body(self, body: bytes) -> None:
        self._head_bytes = self._slice_bytes
        super().on_body(body)

    def send_400_response(self, msg: str) -> None:
        """Called when a head cannot be parsed, or a callback above refused it."""
        fault, self._fault = self._fault, None
        self._refuse(fault or errors.request_invalid("it is not HTTP"))

    def _keep(self, fault: errors.PairError) -> errors.PairError:
        """Keep the error that a callback raises: the parser reports that one was raised, and not which."""
        self._fault = fault
        return fault

    def _refuse(self, fault: errors.PairError) -> None:
        if self._is_refused or self.transport.is_closing():
            return
        self._is_refused = True
        if self.cycle is not None and not self.cycle.response_complete:
            self.transport.close()
            return
        body, status = responses.error_body(fault), responses.error_status(fault)
        headers = {
            "content-type": "application/json",
            "content-length": str(len(body)),
            "connection": "close",
            "x-content-type-options": "nosniff",
            "cache-control": "no-store",
            **responses.retry_headers(status),
        }
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self.transport.write(httptools_impl.STATUS_LINE[status] + head.encode() + b"\r\n" + body)
        self.transport.write_eof()
        self.loop.call_later(_LINGERING_SECONDS, self.transport.abort)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():  # once everything is sent
            self.pause_writing()
        elif self.timeout_keep_alive_task is not None:
            self._wait()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stuck is None:
            self._stuck = self.loop.call_later(self._shared.settings.body_timeout_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None
