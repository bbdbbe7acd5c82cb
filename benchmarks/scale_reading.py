"""How do servers that share only a store scale, and what does a new one fetch for its first answer?

    python benchmarks/scale_reading.py [--documents N] [--texts FILE.jsonl] [--parts read cold]

`read`: one and two servers on one S3 server, each with its own clients, which never repeat a query. On few cores, the
cores are the limit, so the output has the CPU time of each answer and the load of the cores. A second run uses a proxy
that adds 10 ms to every answer of the store, and so few clients that none waits for a core. `cold`: a KB of about
thirty shards on the S3 server, behind the proxy. A new process with an empty cache answers each query. A *round* is a
group of parallel requests: it ends when none is in progress. *Waited for* is the number of consecutive answers of the
store that a query waits for: its extra time when each answer takes 200 ms longer, divided by 200 ms.
"""

import argparse
import contextlib
import itertools
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pair import Document, KnowledgeBase
    from support.s3_server import S3Server

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

HITS = 10
SECONDS = 6.0
ROUNDS = 3
CONNECTIONS = 8
FEW_CONNECTIONS = 2
DELAY_SECONDS = 0.01
LONG_DELAY_SECONDS = 0.2
COLD_QUERIES = 5
SHARDS = 30
_TICKS = os.sysconf("SC_CLK_TCK")
_RUNS = itertools.count()


# ── the KB ─────────────────────────────────────────────────────────────────────────────────────────


def texts_of(given: Path | None, count: int) -> list[tuple[str, str]]:
    """Yield titles and texts: from a file of JSON lines, or random ones."""
    if given is not None:
        with given.open(encoding="utf-8") as stream:
            values = [json.loads(line) for line in itertools.islice(stream, count)]
        return [(value.get("title", ""), value["text"]) for value in values]
    from serving import some_text, words

    known, source = words(), random.Random(11)
    return [(some_text(source, known, 4), some_text(source, known, 60)) for _ in range(count)]


def documents_of(texts: Sequence[tuple[str, str]]) -> "Iterator[Document]":
    from pair import Document

    for number, (title, text) in enumerate(texts):
        yield Document(id=f"{number:07}", title=title, text=text or "-")


def variables(store: str, cache: Path, url: str, **more: str) -> dict[str, str]:
    from support.s3_server import ACCESS_KEY, SECRET_KEY

    engine = {"STORE": store, "CACHE_DIR": str(cache), "S3_ENDPOINT": url, "S3_REGION": "us-east-1", **more}
    named = {f"PAIR__ENGINE__{name}": value for name, value in engine.items()}
    return {**named, "AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}


def kb_of(environment: Mapping[str, str]) -> "KnowledgeBase":
    import pair

    os.environ.update({name: value for name, value in environment.items() if name.startswith("AWS_")})
    return pair.open(settings=pair.Settings.load(environment=environment))


def fill(folder: Path, server: "S3Server", texts: Sequence[tuple[str, str]], shards: int) -> str:
    """Build a KB with about this many shards, upload it to the store, and return its address."""
    from pair.blobs.local import LocalStore

    size = sum(2 * len(title) + 2 * len(text) + 1700 for title, text in texts) // shards
    local = folder / f"local-{shards}"
    cut = {"TARGET_SHARD_BYTES": str(size), "SHARD_TRIGGER_BYTES": str(2 * size)}
    with kb_of(variables(str(local / "store"), local / "cache", "", **cut)) as kb:
        kb.upsert(documents_of(texts))
        kb.maintenance.compact(everything=True)
        kb.maintenance.collect(grace_seconds=0)
    store, remote = LocalStore(local / "store"), server.store(f"bench-{shards}")
    for entry in store.list(""):
        blob = store.get(entry.key)
        assert blob is not None
        remote.put(entry.key, blob.data)
    shutil.rmtree(local)
    return f"s3://blobs/bench-{shards}"


# ── cold ───────────────────────────────────────────────────────────────────────────────────────────

FIRST_ANSWER = """
import sys, time
sys.path.insert(0, {here!r})
import scale_reading
with scale_reading.kb_of({environment!r}) as kb:
    began = time.perf_counter()
    found = kb.search({query!r}, limit=scale_reading.HITS, mode={mode!r})
    took = time.perf_counter() - began
    assert len(found) == scale_reading.HITS
    stats = kb.stats()
    print(took, stats.size_bytes, stats.shards)
"""


@dataclass(frozen=True)
class Cold:
    took_ms: float
    rounds: int
    requests: int
    share: float
    shards: int


def asked_cold(folder: Path, address: str, upstream: str, query: str, delay: float, mode: str) -> Cold:
    """Measure the first query of a new process."""
    from support.slow_proxy import SlowProxy, rounds_of

    with SlowProxy(upstream, delay) as proxy:
        shutil.rmtree(folder / "cache", ignore_errors=True)
        environment = variables(address, folder / "cache", proxy.url)
        here = str(Path(__file__).parent)
        script = FIRST_ANSWER.format(here=here, environment=environment, query=query, mode=mode)
        answer = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
        took, size, shards = answer.split()
        exchanges = proxy.exchanges[:-1]  # the last one belongs to `stats`
        return Cold(
            float(took) * 1000,
            rounds_of(exchanges),
            len(exchanges),
            sum(each.answer_bytes for each in exchanges) / int(size),
            int(shards),
        )


def cold(folder: Path, server: "S3Server", texts: Sequence[tuple[str, str]]) -> None:
    address = fill(folder, server, texts, SHARDS)
    upstream = server.options.endpoint_url
    queries = [" ".join(text.split()[2:8]) for _, text in random.Random(5).sample(list(texts), COLD_QUERIES)]
    print(f"\n## First query of a new process, {len(texts):,} documents, store {DELAY_SECONDS * 1000:.0f} ms away\n")
    print("| mode | shards | ms | rounds | waited for | requests | of the KB fetched |")
    print("|---|---|---|---|---|---|---|")
    for mode in ("hybrid", "keyword", "vector"):
        near = [asked_cold(folder, address, upstream, query, DELAY_SECONDS, mode) for query in queries]
        far = [asked_cold(folder, address, upstream, query, LONG_DELAY_SECONDS, mode) for query in queries]
        longer = statistics.median(slow.took_ms - fast.took_ms for slow, fast in zip(far, near, strict=True))
        waited = longer / (LONG_DELAY_SECONDS - DELAY_SECONDS) / 1000
        print(
            f"| {mode} | {near[0].shards} | {statistics.median(each.took_ms for each in near):.0f} "
            f"| {statistics.median(each.rounds for each in far):.0f}, at most {max(each.rounds for each in far)} "
            f"| {waited:.1f} | {statistics.median(each.requests for each in near):.0f} "
            f"| {statistics.median(each.share for each in near):.0%}, at most {max(each.share for each in near):.0%} |",
            flush=True,
        )


# ── read ───────────────────────────────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def serving(folder: Path, number: int, address: str, url: str) -> "Iterator[tuple[subprocess.Popen[str], int]]":
    """Run a server with a separate cache; yield its port."""
    place = folder / f"server-{number}"
    place.mkdir(exist_ok=True)
    options = {"PORT": "0", "LOG_FORMAT": "json", "SYNC": "false", "RATE_LIMIT_PER_SECOND": "1000000"}
    environment = {f"PAIR__SERVER__{name}": value for name, value in options.items()}
    process = subprocess.Popen(
        [sys.executable, "-m", "pair", "serve", "--log-level", "info"],
        cwd=place,
        env={**os.environ, **environment, **variables(address, place / "cache", url)},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if '"serving"' in line:
                threading.Thread(target=process.stderr.read, daemon=True).start()
                yield process, int(json.loads(line)["address"].rpartition(":")[2])
                return
        raise SystemExit(f"the server ended with {process.wait()}")
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=30)


def loaded(
    port: int, queries: Sequence[str], connections: int, seconds: float, run: int
) -> tuple[float, float, float, float]:
    """Generate load in a separate process; return answers per second, p50, p99 and CPU seconds.

    No two runs ask the same query, because a server caches recent answers.
    """
    import uvloop

    from load import Plan, Seen, Server, load, percentile

    server, seen, before = Server.of(f"http://127.0.0.1:{port}"), Seen(), time.process_time()
    asked = (
        server.query(f"{query} {run}x{number}", "default") for number, query in enumerate(itertools.cycle(queries))
    )
    uvloop.run(load(server, asked, Plan(seconds, connections), seen))
    assert set(seen.outcomes) == {"200"}, seen.outcomes
    took = sorted(seen.took_ms)
    computed = time.process_time() - before
    return seen.per_second, percentile(took, 0.5) or 0.0, percentile(took, 0.99) or 0.0, computed


def computed_by(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def idle_seconds() -> float:
    return sum(map(int, Path("/proc/stat").read_text(encoding="utf-8").split("\n")[0].split()[4:6])) / _TICKS


def measured(
    ports: Sequence[int], pids: Sequence[int], store_pid: int, queries: Sequence[str], connections: int
) -> dict[str, float]:
    """Measure servers under load, each from a separate process."""
    with ProcessPoolExecutor(len(ports), get_context("spawn")) as clients:
        for future in [clients.submit(loaded, port, queries, connections, 2.0, next(_RUNS)) for port in ports]:
            future.result()
        servers, store, idle, began = sum(map(computed_by, pids)), computed_by(store_pid), idle_seconds(), time.time()
        runs = [clients.submit(loaded, port, queries[::-1], connections, SECONDS, next(_RUNS)) for port in ports]
        answers = [run.result() for run in runs]
    seconds, count = time.time() - began, sum(each[0] for each in answers) * SECONDS
    return {
        "rate": sum(each[0] for each in answers),
        "p50": statistics.median(each[1] for each in answers),
        "p99": max(each[2] for each in answers),
        "server_ms": (sum(map(computed_by, pids)) - servers) / count * 1000,
        "store_ms": (computed_by(store_pid) - store) / count * 1000,
        "clients_ms": sum(each[3] for each in answers) / count * 1000,
        "idle": (idle_seconds() - idle) / seconds / (os.cpu_count() or 1),
    }


def read(folder: Path, server: "S3Server", texts: Sequence[tuple[str, str]]) -> None:
    from support.slow_proxy import SlowProxy

    address = fill(folder, server, texts, 2)
    queries = [" ".join(text.split()[2:7]) for _, text in texts[:2000]]
    print(f"\n## Queries that were never asked before, {len(texts):,} documents, {os.cpu_count()} cores\n")
    print("| store | servers | answers/s | p50 ms | p99 ms | core ms an answer: server, store, client | idle |")
    print("|---|---|---|---|---|---|---|")
    ratios: dict[str, float] = {}
    with SlowProxy(server.options.endpoint_url, DELAY_SECONDS) as proxy:
        for name, url, connections in (
            ("near", server.options.endpoint_url, CONNECTIONS),
            (f"{DELAY_SECONDS * 1000:.0f} ms away, {FEW_CONNECTIONS} clients a server", proxy.url, FEW_CONNECTIONS),
        ):
            best: dict[int, dict[str, float]] = {}
            with contextlib.ExitStack() as running:
                servers = [running.enter_context(serving(folder, number, address, url)) for number in range(2)]
                for _, count in itertools.product(range(ROUNDS), (1, 2)):
                    used = servers[:count]
                    pids = [process.pid for process, _ in used]
                    ports = [port for _, port in used]
                    figures = measured(ports, pids, server.process.pid, queries, connections)
                    if count not in best or figures["rate"] > best[count]["rate"]:
                        best[count] = figures
            for count, each in best.items():
                print(
                    f"| {name} | {count} | {each['rate']:,.0f} | {each['p50']:.1f} | {each['p99']:.1f} "
                    f"| {each['server_ms']:.1f}, {each['store_ms']:.1f}, {each['clients_ms']:.1f} "
                    f"| {each['idle']:.0%} |",
                    flush=True,
                )
            ratios[name] = best[2]["rate"] / best[1]["rate"]
    for name, ratio in ratios.items():
        print(f"\ntwo servers against one, store {name}: {ratio:.2f} (aim: at least 1.7)", flush=True)


PARTS = {"read": read, "cold": cold}


def main() -> None:
    from support.s3_server import running_s3

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--documents", type=int, default=20_000)
    parser.add_argument("--texts", type=Path, help="JSON lines with title and text; else texts are made up")
    parser.add_argument("--parts", nargs="*", default=list(PARTS), choices=list(PARTS))
    given = parser.parse_args()
    texts = texts_of(given.texts, given.documents)
    print(f"load before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory(prefix="pair-bench-") as name, running_s3(Path(name)) as server:
        for part in given.parts:
            PARTS[part](Path(name), server, texts)
    print(f"\nload after: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
