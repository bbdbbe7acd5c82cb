"""A server with a bad network to its bucket: a real SeaweedFS behind a proxy with seeded faults.

`PAIR_BAD_NETWORK_ROUNDS` sets the number of rounds.
"""

import collections
import contextlib
import dataclasses
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from pair.blobs.leases import BlobLeases
from pair.clock import SystemClock
from pair.kb.kb import KnowledgeBase
from pair.kb.open import open_kb
from support.bad_proxy import BadProxy, Plan, SeededPlan, Trouble, no_trouble
from support.engine_parts import all_ids, engine_settings, ids_of, numbered
from support.errors import raises_code
from support.s3_server import S3Server
from support.served import Served
from support.torture import EXPECTED_STATUSES, Book, revision_of, text_of, word_of

ROUNDS = int(os.environ.get("PAIR_BAD_NETWORK_ROUNDS", "40"))
SHARES: dict[Trouble, float] = {
    "delay": 0.03,
    "reset": 0.04,
    "cut request": 0.04,
    "corrupt request": 0.04,
    "lose answer": 0.04,
    "cut answer": 0.04,
    "corrupt answer": 0.04,
}
DAMAGED = "E207"


@dataclass
class Line:
    """A bucket behind the proxy."""

    s3: S3Server
    proxy: BadProxy

    @contextlib.contextmanager
    def open(self, folder: Path, prefix: str) -> Iterator[KnowledgeBase]:
        """Open a KB that uses the store through the proxy."""
        store = dataclasses.replace(self.s3, options=dataclasses.replace(self.s3.options, endpoint_url=self.proxy.url))
        with open_kb("default", store=store.store(prefix), settings=engine_settings(folder, lease="blob")) as kb:
            yield kb

    def fetches(self, part: str, since: int) -> int:
        return sum(each.method == "GET" and part in each.path for each in self.proxy.passed[since:])


@pytest.fixture
def line(s3: S3Server) -> Iterator[Line]:
    with BadProxy(s3.options.endpoint_url) as proxy:
        yield Line(s3, proxy)


def on(part: str, trouble: Trouble, *, times: int = 1_000_000, method: str = "GET") -> Plan:
    """Return a plan with a fault for the first requests whose path has this part."""
    left = [times]

    def plan(asked: str, path: str) -> Trouble:
        if asked != method or part not in path or left[0] == 0:
            return "none"
        left[0] -= 1
        return trouble

    return plan


# ── corrupted ──────────────────────────────────────────────────────────────────────────────────────


def test_a_shard_that_arrives_corrupted_is_refused_and_fetched_again(line: Line, tmp_path: Path) -> None:
    with line.open(tmp_path / "one", "refetched") as kb:
        kb.upsert(numbered(20))
        expected = ids_of(kb.search("rivers", limit=20))
    for trouble in ("corrupt answer", "cut answer"):
        line.proxy.plan = on(".search", trouble, times=1)
        with line.open(tmp_path / trouble, "refetched") as kb:
            found = kb.search("rivers", limit=20)
        assert ids_of(found) == expected
        assert not found.partial


def test_a_shard_that_is_corrupted_whenever_it_is_fetched_is_an_error_after_a_few_times(
    line: Line, tmp_path: Path
) -> None:
    with line.open(tmp_path / "one", "never-whole") as kb:
        kb.upsert(numbered(20))
        expected = ids_of(kb.search("rivers", limit=20))
    line.proxy.plan = on(".search", "corrupt answer")
    with line.open(tmp_path / "two", "never-whole") as kb:
        count = len(line.proxy.passed)
        with raises_code(DAMAGED):
            kb.search("rivers", limit=20)
        assert 2 <= line.fetches(".search", count) <= 4
        assert list((tmp_path / "two").rglob("*.search")) == [], "nothing that is damaged is kept"
        line.proxy.plan = no_trouble
        assert ids_of(kb.search("rivers", limit=20)) == expected


def test_a_manifest_that_arrives_corrupted_is_read_again_and_never_used(line: Line, tmp_path: Path) -> None:
    with line.open(tmp_path, "manifest") as kb:
        kb.upsert(numbered(20))
        expected = all_ids(kb, 50)
    for times, is_answered in ((1, True), (2, False)):
        line.proxy.plan = on("manifest.json", "corrupt answer", times=times)
        with line.open(tmp_path, "manifest") as kb:
            count = len(line.proxy.passed)
            if is_answered:
                assert all_ids(kb, 50) == expected
                continue
            with raises_code(DAMAGED):
                all_ids(kb, 50)
            assert line.fetches("manifest.json", count) == 2


def test_a_swap_with_an_unknown_outcome_is_reported_as_such(line: Line, tmp_path: Path) -> None:
    with line.open(tmp_path, "unknown") as kb:
        kb.upsert(numbered(3))
        swap = on("manifest.json", "lose answer", times=1, method="PUT")

        def plan(method: str, path: str) -> Trouble:
            """Make the manifest unreadable from the swap on."""
            is_swapped = len(line.proxy.requests("PUT", "manifest.json")) > swaps
            return (
                "corrupt answer" if method == "GET" and is_swapped and "manifest.json" in path else swap(method, path)
            )

        swaps = len(line.proxy.requests("PUT", "manifest.json"))
        line.proxy.plan = plan
        with raises_code("E208"):
            kb.upsert(numbered(1, begin=3))
        line.proxy.plan = no_trouble
        assert len(all_ids(kb)) == 4


def test_a_lease_that_arrives_corrupted_is_not_taken_from_its_holder(line: Line) -> None:
    tokens = (f"token-{number}" for number in range(100))
    direct = BlobLeases(line.s3.store("leases"), holder="one", new_token=lambda: next(tokens), clock=SystemClock())
    store = dataclasses.replace(line.s3, options=dataclasses.replace(line.s3.options, endpoint_url=line.proxy.url))
    other = BlobLeases(store.store("leases"), holder="two", new_token=lambda: next(tokens), clock=SystemClock())
    lease = direct.acquire("kb", seconds=60.0)
    for times in (1, 2):
        line.proxy.plan = on("kb.lease.json", "corrupt answer", times=times)
        with raises_code("E203"):
            other.acquire("kb", seconds=60.0)
    assert direct.renew(lease, seconds=60.0).fence == lease.fence


# ── everything at once ─────────────────────────────────────────────────────────────────────────────


class Bystander:
    """A client that writes and reads through a server, and knows the allowed results."""

    def __init__(self, server: Served, seed: int) -> None:
        self._server = server
        self._dice = random.Random(seed)
        self._books = {f"page-{number}": Book() for number in range(6)}
        self.statuses: collections.Counter[str] = collections.Counter()

    def act(self) -> None:
        name = self._dice.choice([*self._books])
        self._dice.choice([self._write, self._write, self._delete, self.read, self._search])(name)

    def settle(self) -> None:
        for name in self._books:
            assert self.read(name), f"{name} cannot be read when all is well"

    def _write(self, name: str) -> None:
        revision = max(self._books[name].possible) + 1
        document = {"id": name, "text": text_of(name, revision)}
        self._change(name, revision, self._server.post("/rag/ingest", {"documents": [document]}))

    def _delete(self, name: str) -> None:
        self._change(name, 0, self._server.request("DELETE", f"/rag/docs/{name}"))

    def _change(self, name: str, revision: int, answer: object) -> None:
        book = self._books[name]
        book.tried.append(revision)
        if self._status(answer) in {200, 404}:
            book.acknowledged, book.tried = revision, []

    def read(self, name: str) -> bool:
        answer = self._server.get(f"/rag/docs/{name}")
        if self._status(answer) not in {200, 404}:
            return False
        self._judge(name, revision_of(answer.json()["text"]) if answer.status_code == 200 else 0)
        return True

    def _search(self, name: str) -> None:
        answer = self._server.post("/rag/query", {"query": word_of(name), "search_mode": "keyword", "k": 9})
        if self._status(answer) == 200 and not answer.json().get("partial"):
            found = [revision_of(each["content"]) for each in answer.json()["results"] if each["id"] == name]
            assert len(found) <= 1, "half of a write is visible"
            self._judge(name, found[0] if found else 0)

    def _judge(self, name: str, found: int) -> None:
        assert found in self._books[name].possible, (name, found, self._books[name])

    def _status(self, answer: object) -> int:
        assert hasattr(answer, "status_code")
        assert hasattr(answer, "json")
        status: int = answer.status_code
        code = "" if status == 200 else answer.json()["error"]["code"]
        self.statuses[f"{status} {code}".strip()] += 1
        # Data that is damaged on every read is reported as E207, and as no other 500.
        assert status in {200, 404} | EXPECTED_STATUSES or (status, code) == (500, DAMAGED), answer
        return status


def served_through(folder: Path, line: Line) -> Served:
    return Served(
        folder,
        **line.s3.variables("served", line.proxy.url),
        PAIR__ENGINE__LEASE="blob",
        PAIR__ENGINE__LEASE_SECONDS="2",
        PAIR__ENGINE__GRAPH="off",
        PAIR__SERVER__SYNC="false",
        PAIR__SERVER__COMPACTION_INTERVAL_SECONDS="2",
        PAIR__SERVER__GC_INTERVAL_SECONDS="2",
    )


def test_a_server_on_a_bad_line_loses_nothing_and_answers_nothing_wrong(line: Line, tmp_path: Path) -> None:
    with served_through(tmp_path, line) as server:
        bystander = Bystander(server, seed=8)
        assert server.ingest({"first": "The first."}).status_code == 200
        line.proxy.plan = SeededPlan(8, SHARES)
        for _ in range(ROUNDS):
            bystander.act()
        troubles = collections.Counter(each.trouble for each in line.proxy.passed)
        line.proxy.plan = no_trouble
        bystander.settle()
    assert troubles.keys() >= SHARES.keys(), troubles
    assert bystander.statuses["200"] > ROUNDS / 4, bystander.statuses
