"""A real Redis on loopback, in a separate process that stores nothing on disk."""

import contextlib
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import redis

from support.ports import free_ports

_READY_WITHIN_SECONDS = 30
_ATTEMPTS = 3
PASSWORD = "test-password-that-no-message-may-show"


@dataclass(frozen=True)
class RedisServer:
    port: int
    process: "subprocess.Popen[bytes]"

    @property
    def url(self) -> str:
        return f"redis://:{PASSWORD}@127.0.0.1:{self.port}/0"


@contextlib.contextmanager
def running_redis(folder: Path, port: int = 0) -> Iterator[RedisServer]:
    """Run a server. `port`: the port of an earlier one to replace; its data is not kept."""
    chosen = port
    for _ in range(_ATTEMPTS):
        port = chosen or free_ports(1)[0]
        process = subprocess.Popen(
            [
                *("redis-server", "--bind", "127.0.0.1", "--port", str(port), "--requirepass", PASSWORD),
                *("--save", "", "--appendonly", "no", "--dir", str(folder)),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        server = RedisServer(port, process)
        try:
            if _is_ready(server):
                yield server
                return
        finally:
            process.kill()
            process.wait()
    raise RuntimeError("redis-server does not start")


def _is_ready(server: RedisServer) -> bool:
    ends_at = time.monotonic() + _READY_WITHIN_SECONDS
    with redis.Redis.from_url(server.url) as client:
        while time.monotonic() < ends_at and server.process.poll() is None:
            try:
                client.ping()
            except redis.RedisError:
                time.sleep(0.01)
            else:
                return True
    return False
