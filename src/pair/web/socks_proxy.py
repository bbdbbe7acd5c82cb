"""A SOCKS proxy on loopback that lets a browser reach judged addresses only.

A browser resolves names itself and follows redirects without asking, so what it may reach is decided here, where the
connection is made. With SOCKS every kind of traffic arrives in the same way: pages, TLS, web sockets.
"""

import contextlib
import selectors
import socket
import threading

from pair.clock import Clock
from pair.web.guarded_connect import GuardedConnector, RefusedAddress

_BLOCK_BYTES = 64 * 1024
_IDLE_SECONDS = 120.0

# RFC 1928
_VERSION = 5
_CONNECT = 1
_IPV4, _NAME, _IPV6 = 1, 3, 4
_DONE, _NOT_ALLOWED, _UNREACHABLE, _NOT_SUPPORTED = 0, 2, 4, 7


class SocksProxy:
    """Serves from its start until `close`. Bytes pass while there is an allowance for them."""

    def __init__(self, dialler: GuardedConnector, *, connect_seconds: float, clock: Clock) -> None:
        self._dialler = dialler
        self._connect_seconds = connect_seconds
        self._clock = clock
        self._allowance_bytes = 0
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, name="pair-gateway", daemon=True).start()

    @property
    def port(self) -> int:
        port: int = self._listener.getsockname()[1]
        return port

    def allow(self, size_bytes: int) -> None:
        """From now on this much may come back from the network, all connections together."""
        with self._lock:
            self._allowance_bytes = size_bytes

    def is_used_up(self) -> bool:
        return self._allowance_bytes < 0

    def close(self) -> None:
        with contextlib.suppress(OSError):
            # Closing alone would not wake the thread that waits in accept.
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), name="pair-gateway-client", daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError, EOFError, UnicodeError):
            client.settimeout(_IDLE_SECONDS)
            target = _read_request(client)
            if target is None:
                _reply(client, _NOT_SUPPORTED)
                return
            server = self._connected(client, *target)
            if server is not None:
                with server:
                    server.settimeout(_IDLE_SECONDS)
                    _reply(client, _DONE)
                    self._relay(client, server)

    def _connected(self, client: socket.socket, host: str, port: int) -> socket.socket | None:
        try:
            return self._dialler.connect(host, port, self._clock.monotonic() + self._connect_seconds)
        except RefusedAddress:
            _reply(client, _NOT_ALLOWED)
        except OSError:
            _reply(client, _UNREACHABLE)
        return None

    def _relay(self, client: socket.socket, server: socket.socket) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(client, selectors.EVENT_READ, server)
            selector.register(server, selectors.EVENT_READ, client)
            while ready := selector.select(timeout=_IDLE_SECONDS):
                for key, _ in ready:
                    block = client.recv(_BLOCK_BYTES) if key.fileobj is client else server.recv(_BLOCK_BYTES)
                    if not block or (key.fileobj is server and not self._may_pass(len(block))):
                        return
                    key.data.sendall(block)

    def _may_pass(self, size_bytes: int) -> bool:
        with self._lock:
            self._allowance_bytes -= size_bytes
            return self._allowance_bytes >= 0


def _read_request(client: socket.socket) -> tuple[str, int] | None:
    """Host and port that the client asks for; None when it asks for something else than a connection."""
    version, methods = _exactly(client, 2)
    if version != _VERSION:
        raise EOFError("not SOCKS 5")
    _exactly(client, methods)
    client.sendall(bytes((_VERSION, 0)))  # no authentication
    _, command, _, kind = _exactly(client, 4)
    if kind == _IPV4:
        host = socket.inet_ntop(socket.AF_INET, _exactly(client, 4))
    elif kind == _IPV6:
        host = socket.inet_ntop(socket.AF_INET6, _exactly(client, 16))
    elif kind == _NAME:
        host = _exactly(client, _exactly(client, 1)[0]).decode("ascii")
    else:
        return None
    port = int.from_bytes(_exactly(client, 2), "big")
    return (host, port) if command == _CONNECT else None


def _reply(client: socket.socket, outcome: int) -> None:
    client.sendall(bytes((_VERSION, outcome, 0, _IPV4, 0, 0, 0, 0, 0, 0)))


def _exactly(client: socket.socket, size_bytes: int) -> bytes:
    received = b""
    while len(received) < size_bytes:
        block = client.recv(size_bytes - len(received))
        if not block:
            raise EOFError("the client hung up")
        received += block
    return received
