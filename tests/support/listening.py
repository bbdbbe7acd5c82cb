"""Servers on loopback that one test starts."""

import contextlib
import sys
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


class QuietServer(ThreadingHTTPServer):
    """A server that ignores clients that are killed or disconnect. All other errors are printed."""

    def handle_error(self, request: object, client_address: object) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class QuietHandler(BaseHTTPRequestHandler):
    """A handler that logs nothing, and sends a whole answer with one call."""

    def log_message(self, format: str, *arguments: Any) -> None:
        pass

    def read_body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("content-length", 0)))

    def answer(self, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"content-length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


class LoopbackServer:
    """A server that listens while the block runs."""

    def __init__(self, httpd: ThreadingHTTPServer) -> None:
        self._httpd = httpd

    def __enter__(self) -> Self:
        # The short poll lets a test end at once.
        threading.Thread(target=self._httpd.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._httpd.shutdown()
        self._httpd.server_close()

    @property
    def port(self) -> int:
        return self._httpd.server_port


@contextlib.contextmanager
def listening(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Yield the address of a server that listens while the block runs."""
    with LoopbackServer(QuietServer(("127.0.0.1", 0), handler)) as server:
        yield f"http://127.0.0.1:{server.port}"
