"""A real HTTP server on loopback that behaves like good and bad web servers."""

import itertools
import ssl
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from typing import cast

from support.listening import LoopbackServer, QuietHandler

_DRIP_SECONDS = 0.02


@dataclass(frozen=True)
class Asked:
    path: str
    headers: dict[str, str]


@dataclass(frozen=True)
class Reply:
    """A scripted reply.

    `declared_length`: a false Content-Length; -1 omits it, and the body ends with the connection. `pieces`: sent
    instead of `body` until the client or the server ends.
    """

    status: int = 200
    headers: Sequence[tuple[str, str]] = ()
    body: bytes = b""
    declared_length: int | None = None
    pieces: Callable[["PageServer"], Iterator[bytes]] | None = None


@dataclass(frozen=True)
class RawReply:
    """A reply given as raw bytes, in pieces."""

    pieces: Callable[["PageServer"], Iterator[bytes]]


Answering = Callable[[Asked], Reply | RawReply]


class PageServer(LoopbackServer):
    """The server: `with PageServer() as server: server.pages["/"] = Reply(...)`. `asked` lists every request."""

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        self.pages: dict[str, Reply | RawReply | Answering] = {}
        self.asked: list[Asked] = []
        self.connections = 0
        self.stopped = threading.Event()
        httpd = _Httpd((host, port), _Handler)
        httpd.pages = self
        super().__init__(httpd)

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        super().__exit__()

    def use_tls(self, context: ssl.SSLContext) -> None:
        """Use TLS from now on. Must be called before the first connection."""
        self._httpd.socket = context.wrap_socket(self._httpd.socket, server_side=True, do_handshake_on_connect=False)

    def url(self, path: str = "/", *, host: str | None = None) -> str:
        return f"http://{host or self._httpd.server_address[0]!s}:{self.port}{path}"


class _Httpd(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64
    pages: PageServer

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients that close the connection: many tests do that."""


class _Handler(QuietHandler):
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        super().setup()
        self._pages().connections += 1

    def do_GET(self) -> None:
        pages = self._pages()
        asked = Asked(self.path, {name.lower(): value for name, value in self.headers.items()})
        pages.asked.append(asked)
        page = pages.pages.get(self.path, Reply(404))
        reply = page(asked) if callable(page) else page
        if isinstance(reply, RawReply):
            self.close_connection = True
            self._send(reply.pieces(pages))
            return
        self.send_response(reply.status)
        for name, value in reply.headers:
            self.send_header(name, value)
        if reply.pieces is not None or reply.declared_length == -1:
            self.close_connection = True
        else:
            length = len(reply.body) if reply.declared_length is None else reply.declared_length
            self.send_header("Content-Length", str(length))
        if reply.declared_length is not None:
            self.close_connection = True
        self.end_headers()
        self._send(reply.pieces(pages) if reply.pieces is not None else iter((reply.body,)))

    def _send(self, pieces: Iterator[bytes]) -> None:
        for piece in pieces:
            self.wfile.write(piece)
            if self._pages().stopped.is_set():
                return

    def _pages(self) -> PageServer:
        return cast("_Httpd", self.server).pages


def html(text: str) -> Reply:
    body = f"<!doctype html><html><head><title>page</title></head><body>{text}</body></html>".encode()
    return Reply(headers=[("Content-Type", "text/html; charset=utf-8")], body=body)


def redirect(location: str, status: int = 302) -> Reply:
    return Reply(status, headers=[("Location", location)])


def silence(server: PageServer) -> Iterator[bytes]:
    """Yield nothing until the server stops."""
    server.stopped.wait()
    yield b""


def dripping(data: bytes) -> Callable[[PageServer], Iterator[bytes]]:
    """Send one byte at a time, without end."""

    def pieces(server: PageServer) -> Iterator[bytes]:
        for number in itertools.cycle(data):
            yield bytes((number,))
            server.stopped.wait(_DRIP_SECONDS)

    return pieces


def endless(_server: PageServer) -> Iterator[bytes]:
    return itertools.repeat(b"x" * 65536)


def gzip_bomb(unpacked_bytes: int) -> bytes:
    """Return a gzip body that unpacks to a thousand times its size, by repeating one block."""
    unit = 1024 * 1024
    packer = zlib.compressobj(9, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    head = packer.compress(bytes(unit)) + packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(bytes(unit)) + packer.flush(zlib.Z_FULL_FLUSH)
    return head + block * (unpacked_bytes // unit - 1) + packer.flush()


@dataclass
class Names:
    """A resolver with scripted answers for each name. The last answer repeats. `asked` lists every question."""

    answers: dict[str, list[Sequence[str]]]
    asked: list[str] = field(default_factory=list)

    def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        turns = self.answers.get(host)
        if turns is None:
            raise OSError(-2, "Name or service not known")
        return turns.pop(0) if len(turns) > 1 else turns[0]


def only_first_loopback(address: str) -> str | None:
    """Treat 127.0.0.1 as a public address, and every other address as forbidden."""
    return None if address == "127.0.0.1" else "a private address"
