"""A static file host with the quirks of real ones: no ranges, odd types, compression, missing and changed files."""

import gzip
import http.server
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

TYPES = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".webmanifest": "application/manifest+json",
    ".json": "application/json",
}


@dataclass
class StaticHost:
    """A host that serves a folder below a path prefix. Its fields may be changed while it runs."""

    folder: Path
    prefix: str = "/"
    ranges: bool = True
    data_type: str = "application/octet-stream"
    page_types: Mapping[str, str] = field(default_factory=lambda: TYPES)
    """Content types by suffix. Other files have `data_type`."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers of every answer."""
    gzips: bool = False
    missing: Callable[[str], bool] = lambda path: False
    change: Callable[[str, bytes], bytes] = lambda path, content: content
    """A function that changes the bytes of a file before they are served."""
    requests: list[tuple[str, str, int]] = field(default_factory=list)
    """The path, the requested range and the size of each answer."""

    def __enter__(self) -> Self:
        host = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                host._answer(self)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop the host, so that the browser cannot reach it."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}{self.prefix}".rstrip("/")

    def _answer(self, request: http.server.BaseHTTPRequestHandler) -> None:
        path = request.path.partition("?")[0].removeprefix(self.prefix).lstrip("/") or "index.html"
        file = self.folder / path
        asked = request.headers.get("Range", "")
        if not request.path.startswith(self.prefix) or self.missing(path) or not file.is_file():
            self._send(request, 404, b"not here", {}, path, asked)
            return
        content = self.change(path, file.read_bytes())
        headers = {
            "Content-Type": self.page_types.get(file.suffix, self.data_type),
            "Cache-Control": "no-store",
            **self.headers,
        }
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", asked)
        status = 200
        if self.ranges and match:
            begin, end = int(match[1]), min(int(match[2]) + 1, len(content))
            headers["Content-Range"] = f"bytes {begin}-{end - 1}/{len(content)}"
            content, status = content[begin:end], 206
        if self.gzips and status == 200 and "gzip" in request.headers.get("Accept-Encoding", ""):
            content = gzip.compress(content, 1)
            headers["Content-Encoding"] = "gzip"
        self._send(request, status, content, headers, path, asked)

    def _send(
        self,
        request: http.server.BaseHTTPRequestHandler,
        status: int,
        content: bytes,
        headers: dict[str, str],
        path: str,
        asked: str,
    ) -> None:
        self.requests.append((path, asked, len(content)))
        request.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            request.send_header(name, value)
        request.end_headers()
        request.wfile.write(content)
