"""What a server shares between those who ask, and `pair bench serve`."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from pair.access.policy import ServerPolicy
from pair.app.http.figures import Figures
from pair.app.load import Seen, percentile
from pair.settings import Settings
from pair.wiring.server import OpenKbs, care
from support.prepared import PREPARED
from support.served import Served


def figures(server: Served) -> dict[str, Any]:
    value: dict[str, Any] = server.get("/metrics/app").json()
    return value


def run(server: Served, *arguments: str) -> tuple[int, Any]:
    command = ["bench", "serve", server.url, *arguments, "--json"]
    status, stdout, stderr = PREPARED.run(command, server.folder, server.environment)
    assert stdout, stderr
    return status, json.loads(stdout)


def test_those_who_ask_the_same_at_once_share_one_search(plain: Served) -> None:
    before = figures(plain)["query_stats"].get("default", {"known": 0})["known"]
    answers: list[Any] = []
    together = threading.Barrier(12)

    def ask() -> None:
        together.wait()
        answers.append(plain.post("/rag/query", {"query": "clocks at lunch", "k": 2}).json()["results"])

    threads = [threading.Thread(target=ask) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(answer == answers[0] for answer in answers)
    assert len(answers[0]) == 2
    assert figures(plain)["query_stats"]["default"]["known"] - before == 11


def test_what_somebody_wrote_meanwhile_is_not_hidden_by_what_others_wait_for(plain: Served) -> None:
    asked = {"query": "Where do the ducks live?", "k": 1}
    stop = threading.Event()

    def ask_on() -> None:
        while not stop.is_set():
            assert plain.post("/rag/query", asked).status_code == 200

    others = [threading.Thread(target=ask_on) for _ in range(3)]
    for other in others:
        other.start()
    try:
        for number in range(5):
            assert plain.ingest({"ducks": f"The ducks live in pond {number}, where ducks live."}).status_code == 200
            found = plain.post("/rag/query", asked).json()["results"][0]["content"]
            assert f"pond {number}" in found
    finally:
        stop.set()
        for other in others:
            other.join()


def test_prefetching_can_be_turned_off() -> None:
    settings = Settings(server=ServerPolicy(prefetch_interval_seconds=0.0))
    assert "prefetch" not in {job.name for job in care(OpenKbs(settings), Figures())}
    assert "prefetch" in {job.name for job in care(OpenKbs(Settings()), Figures())}


def test_bench_serve_tells_how_a_server_answers(plain: Served) -> None:
    status, value = run(plain, "--seconds", "0.5", "--connections", "3")
    assert status == 0
    assert value["outcomes"] == {"200": value["answers"]}
    assert value["answers"] > 0
    assert value["p50_ms"] <= value["p90_ms"] <= value["p99_ms"] <= value["max_ms"]
    assert value["server"]["p50_ms"] <= value["p50_ms"]
    assert not value["interrupted"]


def test_bench_serve_keeps_to_a_rate_and_asks_what_a_file_says(plain: Served, tmp_path: Path) -> None:
    questions = tmp_path / "questions.txt"
    questions.write_text('soup\n\n{"text": "clocks"}\n{"query": "lunch"}\n', encoding="utf-8")
    before = figures(plain)["query_stats"]["default"]["known"]
    status, value = run(plain, "--seconds", "1", "--rate", "20", "--queries", str(questions), "--unique")
    assert status == 0
    assert value["answers"] + value["not_sent"] == 20
    assert figures(plain)["query_stats"]["default"]["known"] == before


def test_bench_serve_counts_refusals_by_status(plain: Served, tmp_path: Path) -> None:
    questions = tmp_path / "questions.txt"
    questions.write_text("soup\n", encoding="utf-8")
    _, value = run(plain, "--seconds", "0.2", "--kb", "nobody", "--queries", str(questions))
    assert set(value["outcomes"]) == {"400"}


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--kb", "nobody"], "E201"),
        (["--kb", "../x"], "E212"),
        (["--queries", "missing.txt"], "E010"),
        (["--queries", "broken.txt"], "E215"),
        (["--queries", "empty.txt"], "E215"),
        (["--key-file", "missing.txt"], "E010"),
    ],
)
def test_bench_serve_refuses_what_it_cannot_ask(plain: Served, arguments: list[str], code: str) -> None:
    (plain.folder / "broken.txt").write_text('{"text": 1}\n', encoding="utf-8")
    (plain.folder / "empty.txt").write_text("\n", encoding="utf-8")
    status, value = run(plain, *arguments)
    assert status != 0
    assert value["error"]["code"] == code


def test_bench_serve_tells_that_nobody_is_there(tmp_path: Path) -> None:
    command = ["bench", "serve", "http://127.0.0.1:9", "--json"]
    status, stdout, _ = PREPARED.run(command, tmp_path, {"PATH": os.environ["PATH"], "HOME": str(tmp_path)})
    assert status != 0
    assert json.loads(stdout)["error"]["code"] == "E621"


def test_an_interrupted_bench_tells_what_it_saw(plain: Served) -> None:
    before = figures(plain)["query_stats"]["default"]["count"]
    # Whatever starts the tests may ignore the signal, and all that it starts with it.
    program = ["env", "--default-signal=INT", sys.executable, "-m", "pair"]
    command = [*program, "bench", "serve", plain.url, "--seconds", "60", "--connections", "2", "--json"]
    with subprocess.Popen(command, cwd=plain.folder, env=plain.environment, stdout=subprocess.PIPE) as bench:
        ends_at = time.monotonic() + 20
        while figures(plain)["query_stats"]["default"]["count"] < before + 5 and time.monotonic() < ends_at:
            pass
        bench.send_signal(signal.SIGINT)
        value = json.loads(bench.communicate(timeout=30)[0])
    assert bench.returncode == 0
    assert value["interrupted"]
    assert value["answers"] >= 1
    assert value["seconds"] < 60


def test_a_percentile_is_a_value_that_was_seen() -> None:
    assert percentile([1.0, 2.0, 3.0, 4.0], 0.5) == 2.0
    assert percentile([1.0, 2.0, 3.0, 4.0], 0.99) == 4.0
    assert percentile([], 0.5) is None
    assert Seen().to_json()["answers"] == 0
