"""Does a server keep answering under abuse, with and without read credentials?

    python benchmarks/abuse.py [--minutes 20] [--threads 16] [--seed 1]

It starts two servers, one with keys and one with tokens. Another process abuses them: headers and bodies that are
endless, slow, truncated or invalid; filters at and above the limits; floods of requests; unread answers; tokens of
unknown keys; random bytes for every route. Meanwhile, `/healthz` is requested every 0.2 s, and a normal client
searches.

The exit status is 1 if one of these checks fails:
    memory of each server: the mean of the last quarter is at most 10 % above that of the second quarter
    `/healthz` always answers within 1 s
    every search of the normal client is answered with 200
    no answer with a status of 500, and no error without a code of pair
"""

import argparse
import base64
import collections
import contextlib
import json
import multiprocessing
import os
import random
import secrets
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from pair.auth.keys import KeyFile
from pair.clock import SystemClock

DOCUMENTS = 2_000
MOST_HEALTH_SECONDS = 1.0
MOST_GROWTH = 1.10
PROBE_SECONDS = 0.2
SEARCH_SECONDS = 0.3
PATIENCE_SECONDS = 60.0
ROUTES = (
    *("/rag/query", "/rag/ingest", "/rag/kbs", "/rag/docs", "/rag/docs/1", "/rag/graph", "/rag/versions", "/rag/diff"),
    *("/rag/rollback", "/rag/compact", "/rag/gc", "/cache/sweep", "/librarians", "/librarians/default/ask", "/ask"),
    *("/sync", "/v1/models", "/v1/chat/completions", "/metrics", "/metrics/app", "/metrics/cache", "/openapi.json"),
    *("/mcp", "/", "/ui/app.js", "/readyz", "/nowhere", "/%2e%2e/etc/passwd", "/rag/docs/%ff"),
)


# ── the abuser ─────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Target:
    """The addresses that are abused, and a key with read scope."""

    port: int
    token_port: int
    key: str
    seed: int
    ends_at: float


@dataclass
class Tally:
    """The answers to the abuser."""

    attempts: collections.Counter[str] = field(default_factory=collections.Counter)
    statuses: collections.Counter[int] = field(default_factory=collections.Counter)
    bad: list[str] = field(default_factory=list)

    def note(self, kind: str, answer: bytes) -> None:
        """Count the first answer on a connection. Later ones may be truncated."""
        self.attempts[kind] += 1
        head, separator, rest = answer.partition(b"\r\n\r\n")
        if not separator:
            return
        status = int(head.split()[1])
        self.statuses[status] += 1
        if status >= 400 and (status == 500 or not is_typed(head, rest)):
            self.bad.append(f"{kind}: {answer[-330:]!r}")


def is_typed(head: bytes, body: bytes) -> bool:
    """Return whether an error has a code of pair, or is an error of MCP."""
    if b"transfer-encoding: chunked" in head.lower():
        body = body.partition(b"\r\n")[2].partition(b"\r\n")[0]
    length = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    body = body[: int(length[0].split(b":")[1])] if length else body
    try:
        error = json.loads(body)["error"]
        return bool(error.get("code"))
    except (ValueError, KeyError, TypeError, AttributeError):
        return False


class Abuser:
    """A thread of abuse. Every attempt is bounded in bytes and in time."""

    def __init__(self, target: Target, number: int, tally: Tally, lock: threading.Lock) -> None:
        self.target = target
        self.random = random.Random(target.seed * 1000 + number)
        self.tally = tally
        self.lock = lock
        self.kinds: list[Callable[[], bytes]] = [
            self.long_path,
            self.endless_header,
            self.many_headers,
            self.slow_head,
            self.slow_body,
            self.no_http,
            self.filter_at_the_limit,
            self.filter_above_the_limit,
            self.half_open,
            self.hang_up,
            self.any_route,
            self.garbage_for_assistants,
            self.big_query,
            self.deep_json,
            self.big_body,
            self.unknown_key,
            self.pipelined,
            self.answers_unread,
            self.endless_trailers,
            self.question,
        ]

    def run(self) -> None:
        while time.monotonic() < self.target.ends_at:
            kind = self.random.choice(self.kinds)
            answer = b""
            with contextlib.suppress(OSError):
                answer = kind()
            with self.lock:
                self.tally.note(kind.__name__, answer)

    # Sending

    def connect(self, port: int = 0) -> socket.socket:
        return socket.create_connection(("127.0.0.1", port or self.target.port), timeout=15)

    def send(self, *parts: bytes, port: int = 0, pause: float = 0.0) -> bytes:
        """Send parts until the server answers or closes the connection. Return the beginning of its answer."""
        with self.connect(port) as connection:
            with contextlib.suppress(OSError):
                for part in parts:
                    connection.sendall(part)
                    if pause:
                        time.sleep(pause)
            return received(connection)

    def head(self, method: str, path: str, *headers: str, key: str | None = None) -> bytes:
        credentials = self.target.key if key is None else key
        lines = [f"{method} {path} HTTP/1.1", "Host: localhost", "Connection: close", *headers]
        if credentials:
            lines.append(f"Authorization: Bearer {credentials}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode()

    def post(self, path: str, body: bytes, kind: str = "application/json") -> bytes:
        return self.send(self.head("POST", path, f"Content-Type: {kind}", f"Content-Length: {len(body)}") + body)

    def query(self, **more: Any) -> bytes:
        return self.post("/rag/query", json.dumps({"query": f"lunch {self.random.random()}", **more}).encode())

    # Attempts

    def long_path(self) -> bytes:
        return self.send(b"GET /", *[b"a" * 10_000] * self.random.randint(1, 100))

    def endless_header(self) -> bytes:
        return self.send(b"GET /healthz HTTP/1.1\r\nX-Long: ", *[b"a" * 10_000] * self.random.randint(1, 100))

    def many_headers(self) -> bytes:
        return self.send(b"GET /healthz HTTP/1.1\r\n" + b"x: y\r\n" * self.random.randint(50, 20_000) + b"\r\n")

    def slow_head(self) -> bytes:
        with contextlib.ExitStack() as opened:
            slow = [opened.enter_context(self.connect()) for _ in range(20)]
            for _ in range(20):
                for connection in slow:
                    with contextlib.suppress(OSError):
                        connection.send(b"G")
                time.sleep(0.1)
        return b""

    def slow_body(self) -> bytes:
        head = self.head("POST", "/rag/query", "Content-Type: application/json", "Content-Length: 100000")
        return self.send(head, *[b"{"] * 30, pause=0.1)

    def no_http(self) -> bytes:
        return self.send(self.random.randbytes(self.random.randint(1, 3_000)) + b"\r\n\r\n")

    def filter_at_the_limit(self) -> bytes:
        number = self.random.random()
        values = [f"{number}-{each}" for each in range(19)]
        return self.query(filter={"kind": ["k1", "k2"], **{f"key-{number}-{each}": values for each in range(99)}})

    def filter_above_the_limit(self) -> bytes:
        return self.query(filter={f"key-{each}": each for each in range(self.random.choice([101, 1_001, 10_000]))})

    def half_open(self) -> bytes:
        with contextlib.ExitStack() as opened:
            for _ in range(50):
                opened.enter_context(self.connect())
            time.sleep(1)
        return b""

    def hang_up(self) -> bytes:
        body = json.dumps({"query": f"lunch {self.random.random()}"}).encode()
        head = self.head("POST", "/rag/query", "Content-Type: application/json", f"Content-Length: {len(body)}")
        for _ in range(20):
            with self.connect() as connection:
                connection.sendall((head + body)[: self.random.randint(1, len(head + body))])
        return b""

    def any_route(self) -> bytes:
        method = self.random.choice(["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE"])
        path = self.random.choice(ROUTES) + self.random.choice(["", "?", "?limit=1000", "?a=1&b=2", "?at=99", "?%ff=1"])
        body = self.random.choice([b"", b"{}", b"null", b"[]", b'{"query": 7}', b"\xff\xfe"])
        key = self.random.choice(["", self.target.key, "pair_" + "0" * 77, "x" * 5_000])
        head = self.head(method, path, "Content-Type: application/json", f"Content-Length: {len(body)}", key=key)
        return b"" if method == "HEAD" and self.send(head) else self.send(head + body)

    def garbage_for_assistants(self) -> bytes:
        call = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": self.random.choice(["tools/call", "initialize", "x", "tools/list"]),
        }
        arguments = {"query": "x" * self.random.randint(0, 5_000), "k": self.random.randint(-5, 10**9)}
        body = json.dumps({**call, "params": {"name": "search", "arguments": arguments}}).encode()
        if self.random.random() < 0.5:
            body = body[: self.random.randint(0, len(body))] + self.random.randbytes(20)
        headers = ["Content-Type: application/json", "Accept: application/json, text/event-stream"]
        return self.send(self.head("POST", "/mcp", *headers, f"Content-Length: {len(body)}") + body)

    def big_query(self) -> bytes:
        words = " ".join(f"w{self.random.randint(0, 9_999)}" for _ in range(3_000))
        return self.post(
            "/rag/query", json.dumps({"query": words, "k": 1000, "explain": True, "highlights": True}).encode()
        )

    def deep_json(self) -> bytes:
        depth = self.random.choice([100, 1_000, 100_000])
        return self.post("/rag/query", b'{"query": "x", "filter": ' + b'{"a":' * depth + b"1" + b"}" * depth + b"}")

    def big_body(self) -> bytes:
        body = b'{"query": "x", "filter": [' + b"[]," * self.random.randint(100_000, 3_000_000) + b"0]}"
        return self.post(self.random.choice(["/rag/query", "/ask", "/rag/ingest", "/mcp"]), body)

    def unknown_key(self) -> bytes:
        parts = [{"alg": "ES256", "kid": secrets.token_hex(8)}, {"sub": "eve", "exp": 10**10}]
        encoded = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts]
        return self.send(self.head("GET", "/rag/kbs", key=".".join([*encoded, "AAAA"])), port=self.target.token_port)

    def pipelined(self) -> bytes:
        return self.send(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n" * self.random.randint(2, 5_000))

    def answers_unread(self) -> bytes:
        head = self.head("GET", "/rag/docs?limit=1000&text=true").replace(b"Connection: close\r\n", b"")
        with self.connect() as connection:
            connection.sendall(head * 20)
            time.sleep(1)
        return b""

    def endless_trailers(self) -> bytes:
        head = self.head("POST", "/rag/query", "Content-Type: application/json", "Transfer-Encoding: chunked")
        return self.send(head + b"1\r\n{\r\n0\r\nX-Trailer: ", *[b"a" * 10_000] * 30)

    def question(self) -> bytes:
        if self.random.random() < 0.5:
            return self.post("/ask", json.dumps({"query": f"When is lunch {self.random.random()}?"}).encode())
        messages = [{"role": "user", "content": f"lunch {self.random.random()}"}] * self.random.randint(1, 50)
        return self.post("/v1/chat/completions", json.dumps({"model": "pair", "messages": messages}).encode())


def received(connection: socket.socket) -> bytes:
    """Return at most one megabyte of the answer."""
    answer = b""
    with contextlib.suppress(OSError):
        while len(answer) < 1_000_000 and (block := connection.recv(65_536)):
            answer += block
    return answer


def abuse(target: Target, threads: int, results: Any) -> None:
    """Run the abusing process."""
    tally, lock = Tally(), threading.Lock()
    running = [threading.Thread(target=Abuser(target, each, tally, lock).run) for each in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    results.put((dict(tally.attempts), dict(tally.statuses), tally.bad))


# ── servers and observers ──────────────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def serving(folder: Path, **settings: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Run `pair serve`, and yield its port."""
    environment = {
        name: value for name, value in os.environ.items() if name in {"PATH", "LANG", "TMPDIR", "PYTHONPATH"}
    }
    environment |= {"HOME": str(folder.parent), "PAIR__ENGINE__EMBEDDER": "ngram", "PAIR__SERVER__PORT": "0"}
    environment |= {"PAIR__SERVER__LOG_FORMAT": "json", "PAIR__SERVER__SYNC": "false", **settings}
    log = folder / "server.log"
    with log.open("w") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", "pair", "serve"], cwd=folder, env=environment, stderr=stream, text=True
        )
    try:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (port := port_in(log)) == 0:
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"The server did not start:\n{log.read_text()}")
            time.sleep(0.1)
        yield process, port
    finally:
        process.terminate()
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def port_in(log: Path) -> int:
    for line in log.read_text().splitlines():
        if '"serving"' in line:
            return int(json.loads(line)["address"].rpartition(":")[2])
    return 0


def resident_megabytes(process: subprocess.Popen[str]) -> float:
    return int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * 4096 / 1e6


@dataclass
class Seen:
    """The observations of the normal client."""

    health_seconds: dict[str, list[float]] = field(default_factory=lambda: {"keys": [], "tokens": []})
    """Durations of `/healthz` for each server.

    The server with tokens gets little abuse, and shows the load of the machine.
    """
    search_seconds: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def probe(self, name: str, port: int, ends_at: float) -> None:
        while time.monotonic() < ends_at:
            began = time.monotonic()
            try:
                answer = httpx2.get(f"http://127.0.0.1:{port}/healthz", timeout=30)
                if answer.status_code != 200:
                    self.problems.append(f"/healthz: {answer.status_code}")
            except httpx2.HTTPError as fault:
                self.problems.append(f"/healthz: {type(fault).__name__}")
            self.health_seconds[name].append(time.monotonic() - began)
            time.sleep(PROBE_SECONDS)

    def search(self, port: int, key: str, ends_at: float) -> None:
        number = 0
        while time.monotonic() < ends_at:
            number += 1
            began = time.monotonic()
            body = {"query": f"note {number} about lunch", "filter": {"n": {"lt": number + 10}}}
            headers = {"authorization": f"Bearer {key}"}
            try:
                answer = httpx2.post(f"http://127.0.0.1:{port}/rag/query", json=body, headers=headers, timeout=60)
                if answer.status_code != 200:
                    self.problems.append(f"search: {answer.status_code} {answer.text[:200]}")
            except httpx2.HTTPError as fault:
                self.problems.append(f"search: {type(fault).__name__}")
            self.search_seconds.append(time.monotonic() - began)
            time.sleep(SEARCH_SECONDS)


def fill(port: int, key: str) -> None:
    for start in range(0, DOCUMENTS, 500):
        documents = [
            {
                "id": str(n),
                "text": f"Note {n} about lunch, clocks and ports.",
                "metadata": {"n": n, "kind": f"k{n % 9}"},
            }
            for n in range(start, start + 500)
        ]
        answer = httpx2.post(
            f"http://127.0.0.1:{port}/rag/ingest",
            json={"documents": documents},
            headers={"authorization": f"Bearer {key}"},
            timeout=120,
        )
        answer.raise_for_status()


def measure(minutes: float, threads: int, seed: int, folder: Path) -> int:
    keys, tokens = folder / "keys", folder / "tokens"
    keys.mkdir()
    tokens.mkdir()
    file = KeyFile(keys / ".pair" / "keys.json", SystemClock(), secrets.token_hex)
    (keys / ".pair").mkdir()
    write = file.add("writer", "write", (), None)[1]
    read, honest = (file.add(name, "read", (), None)[1] for name in ("abuser", "reader"))
    (tokens / "jwks.json").write_text('{"keys": []}')
    jwt = {"AUTH": "jwt", "JWT_JWKS": "jwks.json", "JWT_ISSUER": "issuer", "JWT_AUDIENCE": "pair"}
    with (
        serving(keys, PAIR__SERVER__AUTH="keys", PAIR__SERVER__KEYS_FILE=str(keys / ".pair" / "keys.json")) as (
            first,
            port,
        ),
        serving(tokens, **{f"PAIR__SERVER__{name}": value for name, value in jwt.items()}) as (second, token_port),
    ):
        fill(port, write)
        ends_at = time.monotonic() + minutes * 60
        context = multiprocessing.get_context("spawn")
        results = context.SimpleQueue()
        target = Target(port, token_port, read, seed, ends_at)
        abuser = context.Process(target=abuse, args=(target, threads, results))
        abuser.start()
        seen = Seen()
        watchers = [
            threading.Thread(target=seen.probe, args=("keys", port, ends_at)),
            threading.Thread(target=seen.probe, args=("tokens", token_port, ends_at)),
            threading.Thread(target=seen.search, args=(port, honest, ends_at)),
        ]
        for thread in watchers:
            thread.start()
        memory: dict[str, list[float]] = {"keys": [], "tokens": []}
        while time.monotonic() < ends_at:
            memory["keys"].append(resident_megabytes(first))
            memory["tokens"].append(resident_megabytes(second))
            time.sleep(1)
        for thread in watchers:
            thread.join()
        tally = results.get()
        abuser.join()
    return report(memory, seen, *tally)


def report(
    memory: dict[str, list[float]], seen: Seen, attempts: dict[str, int], statuses: dict[int, int], bad: list[str]
) -> int:
    """Print the results, and return the exit status."""
    broken: list[str] = []
    for name, samples in memory.items():
        quarter = max(1, len(samples) // 4)
        second, last = statistics.fmean(samples[quarter : 2 * quarter]), statistics.fmean(samples[-quarter:])
        print(f"memory of {name:7} second quarter {second:7.1f} MB, last {last:7.1f} MB, most {max(samples):7.1f} MB")
        if last > second * MOST_GROWTH:
            broken.append(f"memory of {name} grew by {last / second - 1:.0%}")
    for name, took in seen.health_seconds.items():
        print(
            f"/healthz of {name:7} {len(took)} times, median {statistics.median(took):.3f} s, at most {max(took):.3f} s"
        )
        if max(took) > MOST_HEALTH_SECONDS:
            broken.append(f"/healthz of {name} took {max(took):.3f} s")
    print(f"searches    {len(seen.search_seconds)}, at most {max(seen.search_seconds):.3f} s")
    print(f"abuse       {sum(attempts.values())} attempts of {len(attempts)} kinds")
    print(f"statuses    {dict(sorted(statuses.items()))}")
    if seen.problems:
        broken.append(f"{len(seen.problems)} honest requests failed, the first: {seen.problems[0]}")
    if bad:
        broken.append(f"{len(bad)} bad errors, the first: {bad[0]}")
    for each in broken:
        print(f"BROKEN      {each}")
    return 1 if broken else 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Abuse a server, and check that it keeps answering.")
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        return measure(given.minutes, given.threads, given.seed, Path(folder))


if __name__ == "__main__":
    sys.exit(main())
