"""An HTTP proxy on loopback that delays each answer, and records each request with its time."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit

_BLOCK_BYTES = 262_144


@dataclass
class Exchange:
    """A request and its answer."""

    asked_at: float
    request: str
    """The first line of the request, and its range."""
    answered_at: float = 0.0
    answer_bytes: int = 0


class SlowProxy:
    """The proxy, in a separate thread. Bytes that a client sends after an answer begin the next request."""

    def __init__(self, upstream_url: str, delay_seconds: float) -> None:
        parts = urlsplit(upstream_url)
        self._upstream = (parts.hostname, parts.port)
        self.delay_seconds = delay_seconds
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._started = threading.Event()
        self.url = ""
        self.exchanges: list[Exchange] = []

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._started.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    @property
    def answer_bytes(self) -> int:
        return sum(each.answer_bytes for each in self.exchanges)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._started.set()
        self._loop.run_forever()
        server.close()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.CancelledError):
            from_server, to_server = await asyncio.open_connection(*self._upstream)
            connection = _Connection(self, writer, to_server)
            ways = [
                asyncio.ensure_future(connection.pass_requests(reader)),
                asyncio.ensure_future(connection.pass_answers(from_server)),
            ]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
                to_server.close()
        writer.close()

    async def delay(self) -> None:
        await asyncio.sleep(self.delay_seconds)


class _Connection:
    def __init__(self, proxy: SlowProxy, to_client: asyncio.StreamWriter, to_server: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._to_client = to_client
        self._to_server = to_server
        self._exchange: Exchange | None = None

    async def pass_requests(self, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(_BLOCK_BYTES):
            if self._exchange is None or self._exchange.answer_bytes:
                self._exchange = Exchange(time.perf_counter(), _request_line(data))
                self._proxy.exchanges.append(self._exchange)
            self._to_server.write(data)
            await self._to_server.drain()

    async def pass_answers(self, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(_BLOCK_BYTES):
            exchange = self._exchange
            if exchange is not None and not exchange.answer_bytes:
                await self._proxy.delay()
            self._to_client.write(data)
            await self._to_client.drain()
            if exchange is not None:
                exchange.answer_bytes += len(data)
                exchange.answered_at = time.perf_counter()


def rounds_of(exchanges: Iterable[Exchange]) -> int:
    """Return the number of requests that were sent while none was in progress: the sequential round trips."""
    rounds, busy_until = 0, 0.0
    for each in sorted(exchanges, key=lambda exchange: exchange.asked_at):
        rounds += each.asked_at >= busy_until
        busy_until = max(busy_until, each.answered_at)
    return rounds


def _request_line(data: bytes) -> str:
    lines = data.decode("latin-1").split("\r\n")
    ranged = next((line[len("range:") :] for line in lines if line.lower().startswith("range:")), "")
    return lines[0].removesuffix(" HTTP/1.1") + ranged
