"""Ports on loopback that nobody uses at the moment."""

import contextlib
import socket


def free_ports(count: int) -> list[int]:
    """All are taken at once before any is given back, so that no two are the same."""
    with contextlib.ExitStack() as taken:
        sockets = [taken.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
