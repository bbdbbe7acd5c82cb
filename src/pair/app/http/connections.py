"""Connections within limits: bytes, headers and time of a request head, number of connections, and slow readers.

Invariants
    A connection holds at most MAX_HEAD_BYTES of a head, and a few requests that wait for the one before.
    A connection without a request can be closed at any time, to make room for another one.
    A refused request gets an error response as on every route, unless another response has begun.
"""

import asyncio
import collections
import resource
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http import httptools_impl
from uvicorn.server import ServerState

from pair import errors
from pair.app.http import responses
from pair.auth.settings import ServerSettings

MAX_HEAD_BYTES = 65_536
MAX_HEADERS = 100
_MAX_PIPELINED = 32
_SLICE_BYTES = 8_192
"""Parsed at a time: the bytes of a head are counted to within one slice."""
_LINGERING_SECONDS = 1.0
"""For the client to read the error, while the bytes that it still sends are dropped."""
_SPARE_FILES = 256
"""Left for shards and stores, where the system allows few open files."""


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
