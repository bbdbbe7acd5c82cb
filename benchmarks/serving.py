"""What does the service cost: queries over HTTP compared with an empty endpoint, and the start of a server?

    python benchmarks/serving.py

One server has 20,000 passages of random text. Clients are separate processes with persistent connections, and send the
next request after each answer. `known` repeats 500 questions, as a team does; `new` never repeats one. Then `known`
runs at 80 % of its measured rate: the time counts from the moment when a request is due. Rates are the best of several
runs, which take turns, so that other load affects all of them.
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
from typing import Any

import uvloop

import pair
from load import Client, Plan, Seen, Server, load

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
    """Return random text. The n-th word is about n times rarer than the first."""
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
    """Start a server; yield it and its port."""
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


def request_of(kind: str, number: int, source: random.Random, known: list[str], server: Server) -> bytes:
    if kind == EMPTY:
        return server.get("/healthz")
    asked = random.Random(number % QUESTIONS) if kind == KNOWN else source
    return server.query(some_text(asked, known, 5), "default", hits=5)


def load_with(port: int, kind: str, seed: int, rate: float) -> Any:
    """Generate load in a separate process; return answers per second or, with a rate, the time of each request."""
    known, source, server = words(), random.Random(seed), Server.of(f"http://127.0.0.1:{port}")
    if kind == NEW:
        requests: Iterator[bytes] = iter([request_of(kind, 0, source, known, server) for _ in range(60_000)])
    else:
        requests = itertools.cycle([request_of(kind, number, source, known, server) for number in range(QUESTIONS)])
    seen = Seen()
    uvloop.run(load(server, requests, Plan(SECONDS, CONNECTIONS, rate), seen))
    assert set(seen.outcomes) == {"200"}, seen.outcomes
    return list(seen.took_ms) if rate else seen.per_second


def first_answer(folder: Path) -> float:
    """Return the seconds from the start of a process to its first answer."""
    began_at = time.perf_counter()
    process, port = started(folder)

    async def ask() -> None:
        _, client = await asyncio.get_running_loop().create_connection(Client, "127.0.0.1", port)
        await client.ask(request_of(KNOWN, 1, random.Random(), words(), Server.of(f"http://127.0.0.1:{port}")))

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
        clients.submit(load_with, port, KNOWN, 0, 0.0).result()
        for number, kind in itertools.product(range(ROUNDS), rates):
            rates[kind].append(clients.submit(load_with, port, kind, number, 0.0).result())
        best = {kind: max(seen) for kind, seen in rates.items()}
        took = [clients.submit(load_with, port, KNOWN, 0, best[KNOWN] * SHARE).result() for _ in range(ROUNDS)]
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
