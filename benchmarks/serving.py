"""What the service costs: queries over HTTP beside an endpoint that does nothing, and the start of a server.

    python benchmarks/serving.py

One `pair serve` with 20,000 passages of made-up text; clients are processes of their own that keep their connections,
and send the next request when the answer to the last is there. `known` asks 500 questions over and over, as a team
does; `new` never asks the same twice. Then `known` at 80 % of the rate that was seen, by the clock: how long a
request takes from when it was due. Rates are the best of several runs, which take turns, so that other load on the
machine falls on all of them.
"""

import asyncio
import itertools
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, cast

import uvloop

import pair

PASSAGES = 20_000
QUESTIONS = 500
CONNECTIONS = 16
ROUNDS = 4
SECONDS = 4.0
SHARE = 0.8
STARTS = 5
EMPTY = "empty endpoint"
KNOWN = "query, asked before"
NEW = "query, new"


def words() -> list[str]:
    source = random.Random(7)
    return ["".join(source.choices("aeioubcdfghklmnprstvw", k=source.randint(3, 9))) for _ in range(30_000)]


def some_text(source: random.Random, known: list[str], length: int) -> str:
    """Common words are common: the nth is about n times rarer than the first."""
    ranks = (int(len(known) ** source.random()) for _ in range(length))
    return " ".join(known[rank - 1] for rank in ranks)


def fill(folder: Path) -> None:
    known, source = words(), random.Random(11)
    options = {"STORE": str(folder / ".pair" / "store"), "CACHE_DIR": str(folder / ".pair" / "cache"), "GRAPH": "off"}
    settings = pair.Settings.load(environment={f"PAIR__ENGINE__{name}": value for name, value in options.items()})
    with pair.open(settings=settings) as kb:
        kb.upsert(
            pair.Document(id=f"{number:05}", title=some_text(source, known, 4), text=some_text(source, known, 60))
            for number in range(PASSAGES)
        )


def started(folder: Path) -> tuple["subprocess.Popen[str]", int]:
    """A server, and its port."""
    variables = {
        "PAIR__SERVER__PORT": "0",
        "PAIR__SERVER__LOG_FORMAT": "json",
        "PAIR__SERVER__RATE_LIMIT_PER_SECOND": "1000000",
        "PAIR__SERVER__SYNC": "false",
        "PAIR__ENGINE__GRAPH": "off",
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "pair", "serve"],
        cwd=folder,
        env={**os.environ, **variables},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if '"serving"' in line:
            threading.Thread(target=process.stderr.read, daemon=True).start()  # a line for each request follows
            return process, int(json.loads(line)["address"].rpartition(":")[2])
    raise SystemExit(f"the server ended with {process.wait()}")


def ended(process: "subprocess.Popen[str]") -> None:
    process.send_signal(signal.SIGTERM)
    process.wait(timeout=30)


def request_of(kind: str, number: int, source: random.Random, known: list[str]) -> bytes:
    if kind == EMPTY:
        return b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    asked = random.Random(number % QUESTIONS) if kind == KNOWN else source
    body = json.dumps({"query": some_text(asked, known, 5), "k": 5}).encode()
    head = (
        f"POST /rag/query HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    )
    return head.encode() + b"\r\n\r\n" + body


class Client(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self) -> None:
        self._received = b""
        self._answer: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)

    def ask(self, request: bytes) -> "asyncio.Future[None]":
        self._received, self._answer = b"", asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return self._answer

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, found, body = self._received.partition(b"\r\n\r\n")
        if found and self._answer is not None and not self._answer.done():
            length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
            if len(body) >= length:
                assert head.startswith(b"HTTP/1.1 200"), self._received
                self._answer.set_result(None)


async def connected(port: int) -> list[Client]:
    loop = asyncio.get_running_loop()
    return [(await loop.create_connection(Client, "127.0.0.1", port))[1] for _ in range(CONNECTIONS)]


async def _as_fast_as_it_goes(port: int, requests: Iterator[bytes]) -> float:
    """Answers a second."""
    clients, answered = await connected(port), 0
    began_at = time.perf_counter()
    until = began_at + SECONDS

    async def talk(client: Client) -> None:
        nonlocal answered
        while time.perf_counter() < until:
            await client.ask(next(requests))
            answered += 1

    await asyncio.gather(*map(talk, clients))
    return answered / (time.perf_counter() - began_at)


async def _by_the_clock(port: int, requests: Iterator[bytes], rate: float) -> list[float]:
    """Milliseconds from when each was due, also if all connections were busy then."""
    free: asyncio.Queue[Client] = asyncio.Queue()
    for client in await connected(port):
        free.put_nowait(client)
    took: list[float] = []
    began_at = time.perf_counter()

    async def one(due_at: float) -> None:
        client = await free.get()
        await client.ask(next(requests))
        took.append((time.perf_counter() - due_at) * 1000)
        free.put_nowait(client)

    under_way = []
    for number in range(int(rate * SECONDS)):
        due_at = began_at + number / rate
        if (wait := due_at - time.perf_counter()) > 0:
            await asyncio.sleep(wait)
        under_way.append(asyncio.ensure_future(one(due_at)))
    await asyncio.gather(*under_way)
    return took


def load(port: int, kind: str, seed: int, rate: float) -> Any:
    """In a process of its own: answers a second, or with a rate what each request took."""
    known, source = words(), random.Random(seed)
    if kind == NEW:
        requests: Iterator[bytes] = iter([request_of(kind, 0, source, known) for _ in range(60_000)])
    else:
        requests = itertools.cycle([request_of(kind, number, source, known) for number in range(QUESTIONS)])
    work = _by_the_clock(port, requests, rate) if rate else _as_fast_as_it_goes(port, requests)
    return uvloop.run(work)


def first_answer(folder: Path) -> float:
    """Seconds from the start of a process to its first answered query."""
    began_at = time.perf_counter()
    process, port = started(folder)

    async def ask() -> None:
        _, client = await asyncio.get_running_loop().create_connection(Client, "127.0.0.1", port)
        await client.ask(request_of(KNOWN, 1, random.Random(), words()))

    uvloop.run(ask())
    took = time.perf_counter() - began_at
    ended(process)
    return took


def main() -> None:
    with tempfile.TemporaryDirectory() as name, ProcessPoolExecutor(1, get_context("spawn")) as clients:
        folder = Path(name)
        fill(folder)
        starts = [first_answer(folder) for _ in range(STARTS)]
        process, port = started(folder)
        rates: dict[str, list[float]] = {EMPTY: [], KNOWN: [], NEW: []}
        clients.submit(load, port, KNOWN, 0, 0.0).result()
        for number, kind in itertools.product(range(ROUNDS), rates):
            rates[kind].append(clients.submit(load, port, kind, number, 0.0).result())
        best = {kind: max(seen) for kind, seen in rates.items()}
        took = [clients.submit(load, port, KNOWN, 0, best[KNOWN] * SHARE).result() for _ in range(ROUNDS)]
        ended(process)
    print("| | requests a second | of the empty endpoint |\n|---|---|---|")
    for kind, rate in best.items():
        print(f"| {kind} | {rate:,.0f} | {rate / best[EMPTY]:.2f} |")
    quiet = min(took, key=lambda each: statistics.quantiles(each, n=100)[98])
    middle, late = statistics.median(quiet), statistics.quantiles(quiet, n=100)[98]
    print(f"\nat {SHARE:.0%} of that rate: p50 {middle:.2f} ms, p99 {late:.2f} ms, {late / middle:.1f} x")
    print(f"start to first answered query: {statistics.median(starts):.2f} s (least {min(starts):.2f})")


if __name__ == "__main__":
    main()
