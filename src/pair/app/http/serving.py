"""Running the server: the socket, signals, connections that never say what they want, and the end.

The end comes within `server.stop_seconds` and a little: requests under way finish, new ones are not taken. What
does not finish by then is cut off, which loses nothing that was acknowledged: a write is published in one step or not
at all.
"""

import asyncio
import contextlib
import ctypes
import functools
import logging
import math
import os
import resource
import signal
import socket
import sys
import threading
from typing import cast

import uvicorn

from pair import errors
from pair.app.http import logs
from pair.app.http.app import HttpApp
from pair.app.http.connections import BoundedConnection, Connections
from pair.app.http.context import Service
from pair.auth.settings import ServerSettings
from pair.kb.open import DEFAULT_KB
from pair.kb.server import send_traces
from pair.settings import Settings

_M_ARENA_MAX = -8
"""Of glibc's malloc.h."""
logger = logging.getLogger("pair.http")

_LEAST_SECONDS, _MOST_SECONDS = 1.0, 3.0
"""For background work to end, after requests have: more of it where these were quick."""
_LOOKS_PER_TIMEOUT = 4


def serve(settings: Settings, log_level: str) -> int:
    """Until it is told to stop; the exit status. Raises E401, E612."""
    logs.start(settings.server.log_format, log_level)
    service = Service(settings)
    send_the_last_traces = send_traces(settings)
    with contextlib.closing(_listening(settings.server)) as listening:
        _allow_many_files()
        _limit_arenas()
        _Running(service, listening).run()
    send_the_last_traces()
    logger.info("stopped")
    if service.is_at_work:
        # Python would wait for what is cut off here, or abort in the midst of it.
        logging.shutdown()
        sys.stderr.flush()
        os._exit(0)
    return 0


class _Running:
    def __init__(self, service: Service, listening: socket.socket) -> None:
        self._service = service
        self._listening = listening
        policy = service.policy
        self._connections = Connections(policy)
        self._server = uvicorn.Server(
            uvicorn.Config(
                HttpApp(service, self._started, self._stopped),
                http=cast("type[asyncio.Protocol]", functools.partial(BoundedConnection, self._connections)),
                loop="uvloop",
                ws="none",
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=bool(policy.trusted_proxies),
                forwarded_allow_ips=policy.trusted_proxies or "",
                timeout_keep_alive=math.ceil(policy.keep_alive_seconds),
                timeout_graceful_shutdown=math.ceil(policy.stop_seconds),
            )
        )
        self._reaping: asyncio.Future[None] | None = None
        self._told_at = 0.0

    def run(self) -> None:
        self._server.run(sockets=[self._listening])

    def _started(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._told_to_stop)
        self._reaping = asyncio.ensure_future(self._reap())
        # Before the first question needs it; whoever asks earlier waits for the same.
        threading.Thread(target=self._warm_up, name="pair-warm-up", daemon=True).start()
        self._service.start()
        host, port = self._listening.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        logger.info("serving", extra={"address": f"http://{shown}:{port}", "auth": self._service.policy.auth})

    def _warm_up(self) -> None:
        try:
            self._service.kbs.get(DEFAULT_KB).stats()
        except errors.PairError as fault:
            logger.warning("the default knowledge base cannot be opened", extra={"reason": fault.message})

    def _told_to_stop(self) -> None:
        if self._service.is_stopping:
            self._server.force_exit = True
        self._told_at = self._told_at or asyncio.get_running_loop().time()
        self._service.stop()
        self._server.should_exit = True
        logger.info("stopping", extra={"in_flight": self._service.figures.in_flight})

    async def _stopped(self) -> None:
        if self._reaping is not None:
            self._reaping.cancel()
        self._service.stop()
        left = self._service.policy.stop_seconds - (asyncio.get_running_loop().time() - self._told_at)
        self._service.close(max(_LEAST_SECONDS, min(_MOST_SECONDS, left)))

    async def _reap(self) -> None:
        """Close connections that did not send the head of a request in time."""
        seconds = self._service.policy.header_timeout_seconds
        while True:
            await asyncio.sleep(seconds / _LOOKS_PER_TIMEOUT)
            self._connections.close_slow(asyncio.get_running_loop().time())


def _listening(policy: ServerSettings) -> socket.socket:
    """Raises E612."""
    try:
        found = socket.getaddrinfo(policy.host, policy.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(address)
            # From here on connections wait instead of being refused.
            listening.listen(2048)
        except OSError:
            listening.close()
            raise
    except OSError as fault:
        raise errors.address_unusable(policy.host, policy.port, fault.strerror or "unknown host") from fault
    return listening


def _allow_many_files() -> None:
    """As many connections as the system allows at all."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _limit_arenas() -> None:
    """Let the threads share two heaps: with one for each core and more, glibc hands little memory back."""
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 2)
