"""A real HTTP server on loopback whose answers can have the faults of real servers."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

from support.listening import LoopbackServer, QuietHandler, QuietServer


@dataclass
class Received:
    method: str
    path: str
    headers: dict[str, str]


@dataclass
class Page:
    """A file on the server, and the faults of its answers.

    `cut_after`: for each request in turn, the bytes of the body before the connection is cut. `statuses`: answers
    before the file itself, each (status, headers).
    """

    body: bytes = b""
    etag: str | None = '"one"'
    last_modified: str | None = None
    redirect: str | None = None
    statuses: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    cut_after: list[int] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    has_head: bool = True
    has_length: bool = True
    honours_range: bool = True
    honours_if_range: bool = True
    content_range: str | None = None
    declared_length: int | None = None
    before_body: Callable[[Received], None] | None = None


class Server(LoopbackServer):
    """The server: `with Server() as server: server.pages["/kb.zip"] = Page(...)`. `received` lists every request."""

    def __init__(self) -> None:
        self.pages: dict[str, Page] = {}
        self.received: list[Received] = []
        self.sent_bytes: dict[str, int] = {}
        super().__init__(_Httpd(self))

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    def add(self, path: str, body: bytes, *, checksum: bool = True, **manners: Any) -> str:
        """Serve a file, by default with its `.sha256`; return its URL."""
        self.pages[path] = Page(body, **manners)
        if checksum:
            name = path.rpartition("/")[2]
            self.pages[f"{path}.sha256"] = Page(f"{hashlib.sha256(body).hexdigest()}  {name}\n".encode())
        return self.url(path)

    def requests(self, path: str, method: str | None = None) -> list[Received]:
        return [request for request in self.received if request.path == path and method in {None, request.method}]


class _Httpd(QuietServer):
    def __init__(self, owner: Server) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.owner = owner


class _Handler(QuietHandler):
    protocol_version = "HTTP/1.1"

    @property
    def _owner(self) -> Server:
        return cast("_Httpd", self.server).owner

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = self.path.partition("?")[0]
        received = Received(self.command, path, dict(self.headers))
        self._owner.received.append(received)
        page = self._owner.pages.get(path)
        if page is None:
            self._send(404, {}, b"")
        elif page.statuses and self.command == "GET":
            status, headers = page.statuses.pop(0)
            self._send(status, headers, b"")
        elif page.redirect is not None:
            self._send(302, {"Location": page.redirect}, b"")
        elif self.command == "HEAD" and not page.has_head:
            self._send(405, {}, b"")
        else:
            self._send_page(page, received)

    def _send_page(self, page: Page, received: Received) -> None:
        headers = dict(page.headers)
        if page.etag:
            headers["ETag"] = page.etag
        if page.last_modified:
            headers["Last-Modified"] = page.last_modified
        if page.etag and self.headers.get("If-None-Match") == page.etag:
            self._send(304, headers, b"")
            return
        span = self._wanted_span(page)
        if span is None:
            status, body = 200, page.body
        elif span[0] >= len(page.body):
            self._send(416, headers | {"Content-Range": f"bytes */{len(page.body)}"}, b"")
            return
        else:
            start, end = span[0], min(span[1], len(page.body))
            status, body = 206, page.body[start:end]
            headers["Content-Range"] = page.content_range or f"bytes {start}-{end - 1}/{len(page.body)}"
        if not page.has_length:
            headers["Connection"] = "close"
        elif page.declared_length is not None:
            headers["Content-Length"] = str(page.declared_length)
        if self.command == "GET" and page.before_body is not None:
            page.before_body(received)
        cut = page.cut_after.pop(0) if page.cut_after and self.command == "GET" else None
        self._send(status, headers, body, cut=cut)

    def _wanted_span(self, page: Page) -> tuple[int, int] | None:
        wanted = self.headers.get("Range", "")
        if not page.honours_range or not wanted.startswith("bytes="):
            return None
        condition = self.headers.get("If-Range")
        if page.honours_if_range and condition not in {None, page.etag, page.last_modified}:
            return None
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        if not first:
            return max(0, len(page.body) - int(last)), len(page.body)
        return int(first), int(last) + 1 if last else len(page.body)

    def _send(self, status: int, headers: dict[str, str], body: bytes, cut: int | None = None) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if "Content-Length" not in headers and headers.get("Connection") != "close":
            self.send_header("Content-Length", str(len(body)))
        if cut is not None:
            self.close_connection = True
            body = body[:cut]
        self.end_headers()
        if self.command == "GET":
            path = self.path.partition("?")[0]
            self._owner.sent_bytes[path] = self._owner.sent_bytes.get(path, 0) + len(body)
            try:
                self.wfile.write(body)
            except (ConnectionError, TimeoutError):
                self.close_connection = True
        if headers.get("Content-Length", str(len(body))) != str(len(body)):
            self.close_connection = True
