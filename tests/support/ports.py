"""Free ports on loopback."""

import contextlib
import os
import socket
import threading

# Below the ports of outgoing connections, which could take a port before the server does. SeaweedFS adds 10,000 to
# some of its ports.
_FIRST, _LAST = 20_000, 32_000
_lock = threading.Lock()
# Test processes begin at different ports, so two of them seldom try the same port at once.
_next = _FIRST + os.getpid() * 97 % (_LAST - _FIRST)


def free_ports(count: int) -> list[int]:
    """Return free ports. A process gets no port twice until all others were used."""
    found: list[int] = []
    while len(found) < count:
        port = _turn()
        with contextlib.suppress(OSError), socket.socket() as trial:
            trial.bind(("127.0.0.1", port))
            found.append(port)
    return found


def _turn() -> int:
    global _next  # noqa: PLW0603
    with _lock:
        _next = _next + 1 if _next < _LAST else _FIRST
        return _next
