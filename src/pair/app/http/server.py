"""The server process: socket, signals, connection limits, shutdown, traces and logs.

Shutdown takes little longer than `server.stop_seconds`: running requests finish, and new ones are refused. Requests
that run longer are cut off. No acknowledged write is lost: a write is published in one step or not at all.

Invariants
    A connection buffers at most MAX_HEAD_BYTES of a head, and a few pipelined requests.
    A connection without a request can be closed at any time to make room for another one.
    A refused request gets the same JSON error as on every route, unless another response has begun.
"""

import asyncio
import collections
import contextlib
import ctypes
import functools
import gc
import importlib.util
import json
import logging
import math
import os
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
from pair.files import resource
from pair.kb.open import DEFAULT_KB
from pair.settings import Settings

_TRACES_SECONDS = 1
_M_ARENA_MAX = -8
"""The constant of malloc.h in glibc."""
logger = logging.getLogger("pair.http")

_LEAST_SECONDS, _MOST_SECONDS = 1.0, 3.0
"""Time for background jobs to end after the last request."""
_CHECKS_PER_TIMEOUT = 4
MAX_HEAD_BYTES = 65_536
MAX_HEADERS = 100
_MAX_PIPELINED = 32
_SLICE_BYTES = 8_192
"""Bytes parsed at a time. The size of a head is known to within one slice."""
_LINGERING_SECONDS = 1.0
"""Time for the client to read the error. Bytes that it still sends are dropped."""
_FILES_OF_WINDOWS = 512
_SPARE_FILES = 256
"""File descriptors reserved for shards and stores if the system allows few."""


def serve(settings: Settings, log_level: str) -> int:
    """Serve until SIGTERM or SIGINT, and return the exit status. Raises E401, E612."""
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
        # A normal exit would wait for threads that are cut off here.
        logging.shutdown()
        sys.stderr.flush()
        os._exit(0)
    return 0


class _Server:
    """uvicorn with our connections, signal handlers and background jobs."""

    def __init__(self, context: HttpContext, listening: socket.socket) -> None:
        self._service = context.service
        self._listening = listening
        self._settings = context.settings
        self._connections = Connections(self._settings)
        self.server = uvicorn.Server(
            uvicorn.Config(
                HttpApp(context, self._run_jobs),
                http=cast("type[asyncio.Protocol]", functools.partial(BoundedConnection, self._connections)),
                loop="auto",
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
        """Run the background jobs until the last request has ended."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._handle_signal)

        async def close_slow_connections() -> None:
            while True:
                await asyncio.sleep(self._settings.header_timeout_seconds / _CHECKS_PER_TIMEOUT)
                self._connections.close_slow(loop.time())

        def open_default_kb() -> None:
            try:
                self._service.kbs.get(DEFAULT_KB).stats()
            except errors.PairError as fault:
                logger.warning("cannot open the default KB", extra={"reason": fault.message})

        closing_slow = asyncio.ensure_future(close_slow_connections())
        # Open the default KB before the first query needs it.
        threading.Thread(target=open_default_kb, name="pair-warm-up", daemon=True).start()
        self._service.start_jobs()
        host, port = self._listening.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        logger.info("serving", extra={"address": f"http://{shown}:{port}", "auth": self._settings.auth})
        gc.freeze()  # Searching the 100,000 objects of the loaded modules for cycles would delay a query by 60 ms.
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
    """Return the listening socket. Raises E612."""
    host, port = settings.host, settings.port
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        is_dual = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
        return socket.create_server((host, port), family=family, backlog=2048, dualstack_ipv6=is_dual)
    except OSError as fault:
        reason, _, _ = (fault.strerror or "unknown host").partition(" (while attempting")
        raise errors.address_unusable(host, port, reason) from fault


def _allow_many_files() -> None:
    """Raise the limit of open files to the maximum that the system allows."""
    if resource is None:
        return
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _limit_arenas() -> None:
    """Limit glibc to two heaps for all threads: with more of them it returns little memory to the system."""
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 2)


def _send_traces(settings: Settings) -> Callable[[], None]:
    """Start to export traces if an endpoint is configured. Return a function that flushes them. Raises E401."""
    endpoint = settings.server.otlp_endpoint
    if not endpoint:
        return lambda: None
    if importlib.util.find_spec("opentelemetry.sdk") is None:
        raise errors.settings_invalid(
            "server.otlp_endpoint", "the export of traces needs an extra", hints=["pip install 'pair-kb[otel]'"]
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
        # A collector that does not answer must not delay the end of the process.
        sender = threading.Thread(target=provider.shutdown, name="pair-traces", daemon=True)
        sender.start()
        sender.join(_TRACES_SECONDS)

    return send_last


# ── logs ───────────────────────────────────────────────────────────────────────────────────────────


class _ServerLogFormatter(render.LogFormatter):
    """One line per record: `2026-01-31T12:00:00.000Z INFO pair.http: GET /rag/query 200 in 3.2 ms client=127.0.0.1`."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - named by logging
        fields = {name: self._quote(value) for name, value in render.log_fields(record).items()}
        text = logging.Formatter.formatMessage(self, record)
        if record.message == "request":
            request = [fields.pop(name) for name in ("method", "path", "status", "latency_ms")]
            text = text.removesuffix(record.message) + "{} {} {} in {} ms".format(*request)
        return render.escape_line(" ".join([text, *(f"{name}={value}" for name, value in fields.items())]))

    @staticmethod
    def _quote(value: Any) -> str:
        """Return a plain value, or a quoted one if it has spaces or special characters."""
        text = str(value)
        return text if text.isascii() and text.isprintable() and " " not in text else json.dumps(text)


class _JsonFormatter(logging.Formatter):
    """One JSON object per line."""

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
    """Log to standard error, for pair and for the libraries of the server."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter() if log_format == "json" else _ServerLogFormatter(with_time=True))
    for name, least in (("pair", level.upper()), ("uvicorn", "WARNING"), ("mcp", "WARNING")):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(least)


# ── connections ───────────────────────────────────────────────────────────────────────────────────────


class Connections:
    """State that all connections share. Belongs to one event loop."""

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0] if resource else _FILES_OF_WINDOWS
        self.most = min(settings.max_connections, max(files - _SPARE_FILES, files // 2))
        self.waiting: collections.OrderedDict[BoundedConnection, float] = collections.OrderedDict()
        """Connections without a request, and when they began to wait; the longest wait first."""

    def close_slow(self, now: float) -> None:
        """Close connections that did not send the head of a request in time. Idle connections have another timer."""
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
    """One HTTP connection with limits on its head, its pipeline and its write buffer."""

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
        """Bytes since the last head or body part: of a head, of trailers, or of the framing of a body."""
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
        """Close now, even if the client has not read the rest of the response."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()

    def timeout_keep_alive_handler(self) -> None:
        self.end()

    def _wait(self) -> None:
        """Start to wait for the head of a request."""
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
        """Refuse a head that cannot be parsed, or that a callback above refused."""
        fault, self._fault = self._fault, None
        self._refuse(fault or errors.request_invalid("it is not HTTP"))

    def _keep(self, fault: errors.PairError) -> errors.PairError:
        """Store the error that a callback raises: the parser reports only that a callback failed."""
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
        if self.transport.is_closing():  # it closes when everything is sent
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
