"""A stress test: three servers on one bucket and one Redis, many clients, and killed or stopped processes.

    cd tests && python -m support.torture 120

Every client has its own documents, so it knows the allowed states: the last acknowledged revision, or a later one
whose write got no answer. Any other state is a lost write or a wrong answer.
"""

import collections
import contextlib
import itertools
import json
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from support.ports import free_ports
from support.redis_server import RedisServer, running_redis
from support.s3_server import ACCESS_KEY, SECRET_KEY, S3Server, running_s3
from support.served import Served

SERVERS, CLIENTS = 3, 16
EXPECTED_STATUSES = frozenset({409, 429, 503})
"""Statuses of expected faults. All have a Retry-After header."""
DELETED = 0
"""The revision of a deleted document. Revisions count from 1."""
_SETTLING_SECONDS = (0.2, 0.5, 1, 2, 4, 8)


@dataclass(frozen=True)
class Plan:
    """The times of a run, in seconds."""

    lasts: float
    kill_every: float
    s3_stops_for: float
    s3_stops: int = 2

    @classmethod
    def lasting(cls, seconds: float) -> "Plan":
        """Return a plan for a run of this length: 120 s is the specified one.

        Shorter runs scale down to the time of a start.
        """
        share = min(1.0, seconds / 120)
        return cls(seconds, max(4.0, 10 * share), max(1.0, 5 * share))


@dataclass
class Book:
    """The allowed revisions of one document."""

    acknowledged: int = DELETED
    tried: list[int] = field(default_factory=list)
    """Later revisions whose write got no answer."""
    lingering: set[int] = field(default_factory=set)
    """Requests that timed out at the client. The server may still execute them, even after later ones."""

    @property
    def possible(self) -> set[int]:
        return {self.acknowledged, *self.tried, *self.lingering}


@dataclass
class Counts:
    lock: threading.Lock = field(default_factory=threading.Lock)
    done: collections.Counter[str] = field(default_factory=collections.Counter)
    refused: collections.Counter[str] = field(default_factory=collections.Counter)
    faults: list[str] = field(default_factory=list)

    def note(self, what: str) -> None:
        with self.lock:
            self.done[what] += 1

    def refuse(self, why: str) -> None:
        with self.lock:
            self.refused[why] += 1

    def fail(self, what: str) -> None:
        with self.lock:
            self.faults.append(what)

    def to_json(self) -> dict[str, Any]:
        return {"done": dict(self.done), "refused": dict(self.refused), "faults": self.faults}


class Client:
    """A client that writes, replaces, deletes, reads and searches its own documents, one request at a time."""

    def __init__(self, number: int, addresses: list[str], counts: Counts) -> None:
        self._number = number
        self._addresses = addresses
        self._counts = counts
        self._dice = random.Random(number)
        self._http = httpx2.Client(timeout=60)
        self.books: dict[str, Book] = {}

    def work(self, is_over: threading.Event) -> None:
        while not is_over.is_set():
            name = f"client-{self._number}-{self._dice.randrange(6)}"
            act = self._dice.choice([self._write, self._write, self._delete, self.read, self.read, self._search])
            act(name, self._dice.choice(self._addresses))

    def settle(self, address: str) -> None:
        """After the last fault, read each document until there is an answer, and write one more."""
        name = f"client-{self._number}-0"
        if not any(self._write(name, address) or is_over(wait) for wait in _SETTLING_SECONDS):
            self._counts.fail(f"{name} cannot be written at the end")
        for each in self.books:
            if not any(self.read(each, address) or is_over(wait) for wait in _SETTLING_SECONDS):
                self._counts.fail(f"{each} cannot be read at the end")

    def close(self) -> None:
        self._http.close()

    def _write(self, name: str, address: str) -> bool:
        """Write, and return whether the write was acknowledged."""
        book = self.books.setdefault(name, Book())
        revision = max(book.possible) + 1
        body = {"documents": [{"id": name, "text": text_of(name, revision)}]}
        self._change(book, revision, "written", lambda: self._http.post(f"{address}/rag/ingest", json=body))
        return book.acknowledged == revision

    def _delete(self, name: str, address: str) -> None:
        book = self.books.get(name)
        if book is not None and book.possible != {DELETED}:
            self._change(book, DELETED, "deleted", lambda: self._http.delete(f"{address}/rag/docs/{name}"))

    def _change(self, book: Book, revision: int, what: str, request: Callable[[], httpx2.Response]) -> None:
        book.tried.append(revision)
        answer = self._answered(request, on_timeout=lambda: book.lingering.add(revision))
        if answer is None:
            return
        if answer.status_code == 200 or (answer.status_code == 404 and revision == DELETED):
            book.acknowledged, book.tried = revision, []
            self._counts.note(what)
        elif answer.status_code == 409:
            book.tried.pop()  # nothing was written

    def read(self, name: str, address: str) -> bool:
        """Read, and return whether there was an answer."""
        book = self.books.get(name)
        if book is None:
            return True
        possible = book.possible
        answer = self._answered(lambda: self._http.get(f"{address}/rag/docs/{name}"))
        if answer is None or answer.status_code not in {200, 404}:
            return False
        found = revision_of(answer.json()["text"]) if answer.status_code == 200 else DELETED
        if found not in possible:
            self._counts.fail(f"{name}: revision {found} was read, possible are {sorted(possible)}")
        self._counts.note("read")
        return True

    def _search(self, name: str, address: str) -> None:
        book = self.books.get(name)
        if book is None:
            return
        possible = book.possible
        body = {"query": word_of(name), "search_mode": "keyword", "k": 3}
        answer = self._answered(lambda: self._http.post(f"{address}/rag/query", json=body))
        if answer is None or answer.status_code != 200:
            return
        results = [each for each in answer.json()["results"] if each["id"] == name]
        found = revision_of(results[0]["content"]) if results else DELETED
        if found not in possible:
            self._counts.fail(f"{name}: revision {found} was found, possible are {sorted(possible)}")
        self._counts.note("searched")

    def _answered(
        self, request: Callable[[], httpx2.Response], on_timeout: Callable[[], None] = lambda: None
    ) -> httpx2.Response | None:
        """Return the answer; None if the connection timed out, or broke because of a kill."""
        try:
            answer = request()
        except httpx2.TimeoutException:
            on_timeout()
            self._counts.refuse("nobody waited any longer")
            return None
        except httpx2.HTTPError as fault:
            self._counts.refuse(type(fault).__name__)
            return None
        if answer.status_code in EXPECTED_STATUSES:
            self._counts.refuse(f"{answer.status_code} {answer.json()['error']['code']}")
            if "retry-after" not in answer.headers:
                self._counts.fail(f"{answer.status_code} without Retry-After")
        elif answer.status_code not in {200, 404}:
            self._counts.fail(f"{answer.status_code} {answer.text[:300]}")
        return answer


def is_over(seconds: float) -> bool:
    """Wait, and return False, because nothing sets this event."""
    return threading.Event().wait(seconds)


def word_of(name: str) -> str:
    return "w" + name.replace("-", "")


def text_of(name: str, revision: int) -> str:
    return f"Revision {revision} of {word_of(name)}, which is about nothing else."


def revision_of(text: str) -> int:
    return int(text.split()[1])


class Place:
    """The bucket, Redis and the servers, each of which can be killed."""

    def __init__(self, folder: Path, s3: S3Server, redis: RedisServer) -> None:
        self._s3 = s3
        ports = free_ports(SERVERS)
        shared = {
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "PAIR__ENGINE__STORE": "s3://blobs/torture",
            "PAIR__ENGINE__S3_ENDPOINT": s3.options.endpoint_url,
            "PAIR__ENGINE__S3_REGION": s3.options.region,
            "PAIR__ENGINE__LEASE": "redis",
            "PAIR__ENGINE__REDIS_URL": redis.url,
            "PAIR__ENGINE__LEASE_SECONDS": "5",
            "PAIR__ENGINE__GRAPH": "off",
            "PAIR__SERVER__SYNC": "false",
            "PAIR__SERVER__COMPACTION_INTERVAL_SECONDS": "3",
            "PAIR__SERVER__GC_INTERVAL_SECONDS": "5",
        }
        self.servers = [
            Served(folder / f"server-{number}", **shared, PAIR__SERVER__PORT=str(port))
            for number, port in enumerate(ports)
        ]
        self.addresses = [f"http://127.0.0.1:{port}" for port in ports]

    def start(self, stack: contextlib.ExitStack) -> None:
        for server in self.servers:
            stack.enter_context(server)

    def strike(self, number: int) -> None:
        """Kill a server with SIGKILL, and start another one on its port."""
        server = self.servers[number % SERVERS]
        server.stop(signal.SIGKILL)
        server.__exit__()
        server.__enter__()

    def stop_s3(self, seconds: float) -> None:
        self._s3.process.send_signal(signal.SIGSTOP)
        is_over(seconds)
        self._s3.process.send_signal(signal.SIGCONT)


def torture(seconds: float, folder: Path) -> Counts:
    """Run the test. Return the numbers of successful and refused requests, and `faults`, which must be empty."""
    plan, counts, over = Plan.lasting(seconds), Counts(), threading.Event()
    with contextlib.ExitStack() as stack:
        s3 = stack.enter_context(running_s3(folder))
        redis_stack = stack.enter_context(contextlib.ExitStack())
        redis = redis_stack.enter_context(running_redis(folder))
        place = Place(folder, s3, redis)
        place.start(stack)
        first = httpx2.post(f"{place.addresses[0]}/rag/ingest", json={"documents": [{"id": "first", "text": "First."}]})
        assert first.status_code == 200, first.text
        clients = [Client(number, place.addresses, counts) for number in range(CLIENTS)]
        with ThreadPoolExecutor(CLIENTS) as pool:
            working = [pool.submit(client.work, over) for client in clients]
            try:
                for due_at, strike in _strikes(plan, place, redis_stack, folder, redis.port):
                    is_over(max(0.0, due_at - time.monotonic()))
                    counts.note(strike())
            finally:
                over.set()
            for each in working:
                each.result()
        for client, address in itertools.product(clients, place.addresses):
            client.settle(address)
        for client in clients:
            client.close()
    return counts


def _strikes(
    plan: Plan, place: Place, redis: contextlib.ExitStack, folder: Path, port: int
) -> Iterator[tuple[float, Callable[[], str]]]:
    """Yield the time and the function of each fault; the function returns the name of the fault."""
    began_at = time.monotonic()

    def kill(number: int) -> str:
        place.strike(number)
        return "servers killed"

    def restart_redis() -> str:
        redis.close()
        redis.enter_context(running_redis(folder, port))
        return "Redis restarted"

    def stop_s3() -> str:
        place.stop_s3(plan.s3_stops_for)
        return "S3 stopped"

    kills = itertools.count()
    events: list[tuple[float, Callable[[], str]]] = [
        (number * plan.kill_every, lambda: kill(next(kills)))
        for number in range(1, max(2, int(plan.lasts / plan.kill_every)))
    ]
    events.append((plan.lasts * 0.5, restart_redis))
    events += [(plan.lasts * (number + 1) / (plan.s3_stops + 2), stop_s3) for number in range(plan.s3_stops)]
    for after, strike in sorted(events, key=lambda each: each[0]):
        yield began_at + after, strike
    yield began_at + plan.lasts, lambda: "ended"


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        counts = torture(float(sys.argv[1]) if len(sys.argv) > 1 else 120.0, Path(folder))
    sys.stdout.write(json.dumps(counts.to_json(), indent=2, sort_keys=True) + "\n")
    return 1 if counts.faults else 0


if __name__ == "__main__":
    sys.exit(main())
