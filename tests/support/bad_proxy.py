"""An HTTP proxy on loopback that cuts, delays, corrupts and resets messages by a plan, and records the requests."""

import contextlib
import http.client
import random
import socket
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal, Self
from urllib.parse import urlsplit

Trouble = Literal[
    "none",
    "delay",
    "reset",
    "cut request",
    "corrupt request",
    "lose answer",
    "cut answer",
    "corrupt answer",
]
"""`reset`: no request arrives.

`cut request`: half of it arrives. `lose answer`, `cut answer`: the server did the work.
"""

DELAY_SECONDS = 0.15
_UPSTREAM_SECONDS = 30


@dataclass(frozen=True)
class Passed:
    """A request that reached the proxy, and the fault that was injected."""

    method: str
    path: str
    """The path with its query."""
    trouble: Trouble


Plan = Callable[[str, str], Trouble]
"""A function that returns the fault for a request, by method and path."""


def no_trouble(_method: str, _path: str) -> Trouble:
    return "none"


class SeededPlan:
    """A plan that gives the same faults for the same sequence of requests.

    `shares`: the share of requests for each fault.
    """

    def __init__(self, seed: int, shares: Mapping[Trouble, float]) -> None:
        self._dice = random.Random(seed)
        self._lock = threading.Lock()
        self._troubles: Sequence[Trouble] = ("none", *shares)
        self._weights = (1 - sum(shares.values()), *shares.values())

    def __call__(self, _method: str, _path: str) -> Trouble:
        with self._lock:
            return self._dice.choices(self._troubles, self._weights)[0]


class BadProxy:
    """The proxy. `plan` may be changed while it runs."""

    def __init__(self, upstream_url: str, plan: Plan = no_trouble) -> None:
        parts = urlsplit(upstream_url)
        self.upstream = (parts.hostname or "", parts.port or 80)
        self.plan = plan
        self.passed: list[Passed] = []
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), _Exchange)
        self._server.proxy = self
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def decide(self, method: str, path: str) -> Trouble:
        trouble = self.plan(method, path)
        with self._lock:
            self.passed.append(Passed(method, path, trouble))
        return trouble

    def requests(self, method: str, part: str = "") -> list[Passed]:
        """Return the requests of this method with this text in their path, in order."""
        with self._lock:
            return [each for each in self.passed if each.method == method and part in each.path]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    proxy: BadProxy

    def handle_error(self, *_: object) -> None:
        """Ignore broken connections: the proxy breaks them on purpose."""


class _Exchange(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, *_: object) -> None: ...

    def _pass_on(self) -> None:
        proxy = self.server.proxy
        trouble = proxy.decide(self.command, self.path)
        if trouble == "delay":
            threading.Event().wait(DELAY_SECONDS)
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        if trouble == "reset":
            return self._reset()
        if trouble == "cut request":
            self._send_half(body)
            return self._reset()
        if trouble == "corrupt request":
            body = flipped(body)
        answer = self._asked(body)
        if trouble == "lose answer":
            return self._reset()
        return self._answer(*answer, trouble)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass_on  # noqa: N815 - as the library wants them

    def _asked(self, body: bytes) -> tuple[http.client.HTTPResponse, bytes]:
        connection = http.client.HTTPConnection(*self.server.proxy.upstream, timeout=_UPSTREAM_SECONDS)
        with contextlib.closing(connection):
            self._send_head(connection)
            connection.endheaders(body or None)
            answer = connection.getresponse()
            return answer, answer.read()

    def _send_head(self, connection: http.client.HTTPConnection) -> None:
        """Send the head unchanged: the signature covers the host name."""
        connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            connection.putheader(name, value)

    def _send_half(self, body: bytes) -> None:
        connection = http.client.HTTPConnection(*self.server.proxy.upstream, timeout=_UPSTREAM_SECONDS)
        with contextlib.closing(connection):
            self._send_head(connection)
            connection.endheaders(body[: len(body) // 2] or None)

    def _answer(self, answer: http.client.HTTPResponse, body: bytes, trouble: Trouble) -> None:
        self.send_response_only(answer.status, answer.reason)
        for name, value in answer.getheaders():
            if name.lower() not in {"transfer-encoding", "content-length", "connection"}:
                self.send_header(name, value)
        length = answer.getheader("content-length") if self.command == "HEAD" else str(len(body))
        if length is not None and answer.status not in {204, 304}:
            self.send_header("content-length", length)
        self.end_headers()
        if self.command == "HEAD":
            body = b""
        self.wfile.write(flipped(body) if trouble == "corrupt answer" else body[: _kept(body, trouble)])
        if trouble == "cut answer":
            self.wfile.flush()
            self._reset()

    def _reset(self) -> None:
        """Reset the connection instead of closing it."""
        with contextlib.suppress(OSError):
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.close()


def _kept(body: bytes, trouble: Trouble) -> int:
    return len(body) // 2 if trouble == "cut answer" else len(body)


def flipped(body: bytes) -> bytes:
    """Return the bytes with one flipped bit in the middle."""
    changed = bytearray(body)
    if changed:
        changed[len(changed) // 2] ^= 4
    return bytes(changed)
