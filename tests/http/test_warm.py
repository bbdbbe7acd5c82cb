"""Work that concurrent requests share, and prefetched shards."""

import threading
from pathlib import Path
from typing import Any

from pair.app.metrics import ServerMetrics
from pair.app.open_kbs import OpenKbs, make_jobs
from pair.auth.settings import ServerSettings
from pair.settings import Settings
from support.s3_server import S3Server
from support.served import Served
from support.slow_proxy import SlowProxy
from support.threads import run_together, threads_running


def figures(server: Served) -> dict[str, Any]:
    value: dict[str, Any] = server.get("/metrics/app").json()
    return value


def test_equal_concurrent_searches_share_one_search(plain: Served) -> None:
    before = figures(plain)["query_stats"].get("default", {"known": 0})["known"]
    answers: list[Any] = []
    together = threading.Barrier(12)

    def ask() -> None:
        together.wait()
        answers.append(plain.post("/rag/query", {"query": "clocks at lunch", "k": 2}).json()["results"])

    run_together(*[ask] * 12)
    assert all(answer == answers[0] for answer in answers)
    assert len(answers[0]) == 2
    assert figures(plain)["query_stats"]["default"]["known"] - before == 11


def test_a_shared_search_does_not_hide_a_concurrent_write(plain: Served) -> None:
    asked = {"query": "Where do the ducks live?", "k": 1}
    stop = threading.Event()

    def ask_on() -> None:
        while not stop.is_set():
            assert plain.post("/rag/query", asked).status_code == 200

    with threads_running(*[ask_on] * 3):
        try:
            for number in range(5):
                assert plain.ingest({"ducks": f"The ducks live in pond {number}, where ducks live."}).status_code == 200
                found = plain.post("/rag/query", asked).json()["results"][0]["content"]
                assert f"pond {number}" in found
        finally:
            stop.set()


def test_prefetching_can_be_turned_off() -> None:
    settings = Settings(server=ServerSettings(prefetch_interval_seconds=0.0))
    assert "prefetch" not in {job.name for job in make_jobs(OpenKbs(settings), ServerMetrics())}
    assert "prefetch" in {job.name for job in make_jobs(OpenKbs(Settings()), ServerMetrics())}


def test_the_first_query_of_a_kb_asks_the_store_once_for_its_manifest(tmp_path: Path, s3: S3Server) -> None:
    with SlowProxy(s3.options.endpoint_url, 0.0) as proxy:
        settings = s3.variables("first", proxy.url) | {"PAIR__SERVER__SYNC": "false"}
        for job in ("PREFETCH", "COMPACTION", "GC", "SWEEP"):
            settings[f"PAIR__SERVER__{job}_INTERVAL_SECONDS"] = "0"
        with Served(tmp_path / "writing", **settings) as server:
            assert server.ingest({"a.md": "Lunch is at one."}, kb_id="notes").status_code == 200
        with Served(tmp_path / "reading", **settings) as server:
            assert server.get("/readyz").status_code == 200
            before = len(proxy.exchanges)
            answer = server.post("/rag/query", {"query": "lunch", "kb_id": "notes"})
            assert answer.json()["results"][0]["id"] == "a.md"
            asked = [each.request for each in proxy.exchanges[before:] if "notes.duckdb.manifest.json" in each.request]
            assert len(asked) == 1
            assert server.post("/rag/query", {"query": "x", "kb_id": "made-up"}).status_code == 400
            assert "made-up" not in server.get("/metrics/app").json()["kbs"]
