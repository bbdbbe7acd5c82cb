"""Start and shutdown of a server: fast, and without losing an acknowledged write."""

import gzip
import json
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from pair.values import Document
from support.engine_parts import stats_of
from support.listening import LoopbackServer, QuietHandler, QuietServer
from support.served import Served, opened
from support.server import Page, Received, Server


class Collector(LoopbackServer):
    """A server that accepts every POST."""

    def __init__(self) -> None:
        self.received: list[bytes] = []
        received = self.received

        class Handler(QuietHandler):
            def do_POST(self) -> None:
                body = self.read_body()
                is_packed = self.headers.get("content-encoding") == "gzip"
                received.append(gzip.decompress(body) if is_packed else body)
                self.answer(200)

        super().__init__(QuietServer(("127.0.0.1", 0), Handler))
        self.url = f"http://127.0.0.1:{self.port}/v1/traces"


class Load:
    """Writers and readers that run until the server has ended, and the acknowledged documents."""

    def __init__(self, server: Served) -> None:
        self._server = server
        self.acknowledged: list[str] = []
        self.cut_reads = 0
        self.is_warm = threading.Event()
        self._threads = [threading.Thread(target=self._write, args=(name,)) for name in "ab"]
        self._threads += [threading.Thread(target=self._read)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()
        assert self.is_warm.wait(60)

    def join(self) -> None:
        for thread in self._threads:
            thread.join(timeout=60)

    def _write(self, name: str) -> None:
        with httpx2.Client(base_url=self._server.url, timeout=60) as client:
            for number in range(100_000):
                document = {"id": f"{name}-{number}", "text": f"Note {number} of writer {name}."}
                try:
                    stored = client.post("/rag/ingest", json={"documents": [document], "graph_enabled": False})
                except httpx2.TransportError:
                    return
                if stored.status_code == 200:
                    self.acknowledged.append(document["id"])
                if len(self.acknowledged) > 6:
                    self.is_warm.set()

    def _read(self) -> None:
        """Read until the server ends. It may close an idle connection, but must complete a response that has begun."""
        with httpx2.Client(base_url=self._server.url, timeout=60) as client:
            while True:
                try:
                    answer = client.post("/rag/query", json={"query": "note"})
                    self.cut_reads += answer.status_code not in {200, 400}
                except (httpx2.ReadError, httpx2.RemoteProtocolError) as fault:
                    self.cut_reads += "incomplete" in str(fault) or "peer closed" in str(fault)
                    return
                except httpx2.TransportError:
                    return


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_that_was_acknowledged_is_lost(tmp_path: Path, number: signal.Signals):
    with Served(tmp_path / "project") as server:
        load = Load(server)
        load.start()
        began = time.monotonic()
        status = server.stop(number)
        assert time.monotonic() - began < 10
        load.join()
        assert status == (0 if number == signal.SIGTERM else -signal.SIGKILL)
        if number == signal.SIGTERM:
            assert load.cut_reads == 0
    assert len(load.acknowledged) > 6
    with opened(tmp_path / "project") as kb:
        # The lease is free: its holder released it, or died.
        assert kb.upsert([Document("after", "A note.")]).added == 1
        assert kb.existing_ids(load.acknowledged) == set(load.acknowledged)
    with Served(tmp_path / "project") as again:
        assert again.get(f"/rag/docs/{load.acknowledged[-1]}").status_code == 200


def test_a_stream_of_documents_ends_between_two_batches(tmp_path: Path):
    with Served(tmp_path / "project", PAIR__ENGINE__INGEST_BATCH_DOCUMENTS="5") as server:
        told: list[dict[str, object]] = []
        has_begun = threading.Event()

        def documents() -> Iterator[bytes]:
            for number in range(5000):
                if told:
                    has_begun.set()
                yield json.dumps({"id": str(number), "text": f"Note {number}."}).encode() + b"\n"

        def send() -> None:
            with server.client.stream(
                "POST",
                "/rag/ingest?graph_enabled=false",
                content=documents(),
                headers={"content-type": "application/x-ndjson"},
            ) as response:
                for line in response.iter_lines():
                    told.append(json.loads(line))
                    has_begun.set()

        sender = threading.Thread(target=send)
        sender.start()
        assert has_begun.wait(60)
        assert server.stop() == 0
        sender.join(timeout=30)
        assert told[-1]["type"] == "error"
        assert told[-1]["error"]["code"] == "E611"  # type: ignore[index]
    with opened(tmp_path / "project") as kb:
        assert stats_of(kb).documents >= int(str(told[-1]["ingested_docs"])) > 0


def test_traces_are_sent_where_configured_and_the_last_at_the_end(tmp_path: Path):
    with Collector() as collector, Served(tmp_path / "project", PAIR__SERVER__OTLP_ENDPOINT=collector.url) as server:
        server.ingest({"lunch": "Lunch is at one."})
        trace = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
        assert server.post("/ask", {"query": "When is lunch?"}, headers=trace).status_code == 200
        assert server.stop() == 0
        sent = b"".join(collector.received)
    assert b"invoke_agent default" in sent
    assert bytes.fromhex("0af7651916cd43dd8448eb211c80319c") in sent
    assert b"When is lunch" not in sent


def test_a_long_sync_delays_no_request(tmp_path: Path):
    folder = tmp_path / "project"
    with opened(folder) as kb:
        kb.upsert([Document("lunch", "Lunch is at one.")])
    is_asked, may_go_on = threading.Event(), threading.Event()

    def wait(_: Received) -> None:
        is_asked.set()
        may_go_on.wait(60)

    with Server() as pages:
        pages.pages["/slow"] = Page(b"<p>The page says that tea is at four.</p>", before_body=wait)
        (folder / ".pair").mkdir(exist_ok=True)
        (folder / ".pair" / "links.txt").write_text(pages.url("/slow") + "\n")
        with Served(folder, PAIR__KB__ALLOW_PRIVATE_ADDRESSES="true") as server:
            began = time.monotonic()
            assert server.get("/healthz").status_code == 200
            found = server.post("/rag/query", {"query": "lunch"}).json()["results"]
            assert [each["id"] for each in found] == ["lunch"]
            assert time.monotonic() - began < 5
            assert is_asked.wait(30)
            assert server.get("/metrics/app").json()["background"]["sync"]["running"] is True
            may_go_on.set()
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline:
                state = server.get("/metrics/app").json()["background"]["sync"]
                if not state["running"] and state.get("last_report"):
                    break
            assert state["last_report"]["added"] == 1
            assert server.get("/rag/kbs").json()["kbs"][0]["documents"] == 2
