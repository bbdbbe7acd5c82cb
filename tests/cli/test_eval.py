"""The command `pair eval`."""

import json
import signal
from pathlib import Path

import pytest

from support.command import Workplace, write_files

TEXTS = {
    "deploy": "We deploy on Tuesdays with make ship.",
    "rollback": "To roll back a release, run make undo and tell the channel.",
    "lunch": "Lunch is at one, in the room with the long table.",
    "leap": "Leap seconds are added in June or December.",
}
QUERIES = {
    "q1": "when do we deploy on tuesdays",
    "q2": "how to roll back a release",
    "q3": "leap seconds in june",
    "q4": "nobody judged this one",
}
JUDGEMENTS = "q1\tdeploy\t2\nq1\trollback\t1\nq2\trollback\t1\nq3\tleap\t1\nq4\tlunch\t0\n"


def lines_of(texts: dict[str, str]) -> str:
    return "".join(json.dumps({"id": name, "text": text}) + "\n" for name, text in texts.items())


@pytest.fixture
def project(workplace: Workplace, tmp_path: Path) -> Workplace:
    (tmp_path / "scratch").mkdir()
    workplace.environment["TMPDIR"] = str(tmp_path / "scratch")
    files: dict[str, str | bytes] = {
        "asked/corpus.jsonl": lines_of(TEXTS),
        "asked/queries.jsonl": lines_of(QUERIES),
        "asked/qrels.tsv": JUDGEMENTS,
    }
    write_files(workplace.folder, files)
    return workplace


def left_behind(project: Workplace) -> list[str]:
    """Return files that a temporary KB could have left, except the set."""
    scratch = Path(project.environment["TMPDIR"])
    return sorted(
        path.name for folder in (scratch, project.folder) for path in folder.iterdir() if path.name != "asked"
    )


def test_figures_of_every_mode_are_printed_as_json_and_nothing_stays(project: Workplace) -> None:
    done = project.pair("eval", "asked", "--json").succeeds()
    value = done.json
    assert value["set"] == "asked"
    assert value["kb_id"] is None
    assert (value["documents"], value["queries"], value["skipped_queries"], value["skipped_judgements"]) == (4, 3, 1, 0)
    assert value["embedder"]
    assert list(value["modes"]) == ["hybrid", "keyword", "vector", "graph", "adaptive"]
    for mode, figures in value["modes"].items():
        assert figures["mrr@10"] == 1.0
        # One of the relevant documents shares no word with its question.
        assert figures["recall@10"] == figures["recall@100"] == (0.833333 if mode == "keyword" else 1.0)
        assert 0.8 < figures["ndcg@10"] <= 1.0
        assert 0 < figures["p50_ms"] <= figures["p99_ms"]
    assert left_behind(project) == []


def test_the_table_names_what_was_left_out(project: Workplace) -> None:
    write_files(project.folder, {"asked/qrels.tsv": JUDGEMENTS + "q3\tgone\t1\nq9\tleap\t1\n"})
    done = project.pair("eval", "asked", "--mode", "vector", "--skip-unknown", "--limit-queries", "2").succeeds()
    about, blank, heading, row = done.stdout.splitlines()
    assert about.startswith("asked: 4 documents, 4 chunks, judged queries: 2, ")
    assert blank == ""
    assert heading.split() == ["mode", "nDCG@10", "recall@10", "recall@100", "MRR@10", "p50", "p99"]
    assert row.split()[0] == "vector"
    assert row.split()[2:5] == ["1.000"] * 3
    assert "Storing 4 documents of asked" in done.stderr
    assert "Skipped queries without a relevant document: 1" in done.stderr
    assert "Skipped judgements of unknown queries or documents: 2" in done.stderr


def test_an_existing_kb_can_be_measured(project: Workplace) -> None:
    assert project.pair("ingest", "asked/corpus.jsonl", "--kb", "team").status == 0
    (project.folder / "asked" / "corpus.jsonl").unlink()
    value = project.pair("eval", "asked", "--kb", "team", "--json").json
    assert (value["kb_id"], value["documents"]) == ("team", 4)
    assert value["modes"]["vector"]["recall@10"] == 1.0
    assert project.pair("docs", "delete", "leap", "--kb", "team").status == 0
    lacking = project.pair("eval", "asked", "--kb", "team", "--json").fails(1, "E503")
    assert lacking.json["error"]["details"]["ids"] == ["leap"]


@pytest.mark.parametrize(
    ("files", "code", "said"),
    [
        pytest.param(
            {"asked/qrels.tsv": "q1\tgone\t1\nq1\tdeploy\t1\n"},
            "E503",
            "Cannot use asked/qrels.tsv: 1 judgement names unknown documents: gone.",
            id="missing documents",
        ),
        pytest.param(
            {"asked/qrels.tsv": "q8\tdeploy\t1\nq9\tlunch\t1\n"},
            "E503",
            "Cannot use asked/qrels.tsv: 2 judgements name unknown queries: q8, q9.",
            id="unknown queries",
        ),
        pytest.param(
            {"asked/qrels.tsv": "\n"}, "E502", "Cannot read asked/qrels.tsv: no judgements.", id="no judgements"
        ),
    ],
)
def test_a_set_that_is_not_right_is_refused_before_anything_is_built(
    project: Workplace, files: dict[str, str | bytes], code: str, said: str
) -> None:
    write_files(project.folder, files)
    done = project.pair("eval", "asked", "--json")
    assert (done.status, done.error_code, done.json["error"]["message"]) == (1, code, said)
    assert left_behind(project) == []


def test_a_missing_set_kb_or_mode_is_an_error(project: Workplace) -> None:
    project.pair("eval", "nowhere", "--json").fails(1, "E501")
    project.pair("eval", "asked", "--kb", "nobody", "--json").fails(1, "E201")
    project.pair("eval", "asked", "--mode", "telepathy", "--json").fails(1, "E215")


@pytest.mark.parametrize(
    ("content", "code", "reason"),
    [
        (None, "E010", "No such file or directory"),
        (b"\xff", "E502", "not a report of pair eval --json"),
        (b"[]", "E502", "not a report of pair eval --json"),
    ],
)
def test_a_baseline_that_cannot_be_read_is_named(
    project: Workplace, content: bytes | None, code: str, reason: str
) -> None:
    if content is not None:
        (project.folder / "last.json").write_bytes(content)
    done = project.pair("eval", "--feedback", "--baseline", "last.json", "--json")
    assert (done.error_code, done.json["error"]["message"]) == (code, f"Cannot read last.json: {reason}.")


def test_an_interrupted_measurement_leaves_nothing_behind(project: Workplace) -> None:
    many = TEXTS | {f"more-{number}": f"Page {number} tells of tides. " * 40 for number in range(2000)}
    write_files(project.folder, {"asked/corpus.jsonl": lines_of(many)})
    running = project.start("eval", "asked")
    assert running.stderr is not None
    assert "Storing 2,004 documents" in running.stderr.readline()
    assert left_behind(project) != []
    running.send_signal(signal.SIGINT)
    _, told = running.communicate(timeout=60)
    assert (running.returncode, "Interrupted" in told) == (130, True)
    assert left_behind(project) == []


# ── a gate for builds ──────────────────────────────────────────────────────────────────────────────


def test_a_figure_that_is_too_low_fails_the_command_and_is_named(project: Workplace) -> None:
    asked = ["eval", "asked", "--mode", "keyword"]
    good = project.pair(*asked, "--min", "ndcg@10=0.9", "--min", "MRR@10 = 1").succeeds()
    assert "Passed: no figure is below" in good.stdout
    report = project.pair(*asked, "--json").succeeds()
    write_files(project.folder, {"last.json": report.stdout})
    assert project.pair(*asked, "--baseline", "last.json", "--json").succeeds().json["failures"] == []
    write_files(project.folder, {"asked/qrels.tsv": "q1\tdeploy\t1\nq2\tlunch\t1\nq3\tleap\t1\n"})
    worse = project.pair(*asked, "--min", "ndcg@10=0.9", "--baseline", "last.json")
    assert worse.status == 1
    assert "Failed: 5 figures are too low." in worse.stdout
    assert "keyword   ndcg@10    0.667, the minimum is 0.900" in worse.stdout
    assert "keyword   mrr@10     0.667, the baseline is 1.000" in worse.stdout
    assert project.pair(*asked, "--baseline", "last.json", "--tolerance", "0.4").succeeds()


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["asked", "--min", "ndcg@11=0.5"], "E402"),
        (["asked", "--min", "ndcg@10=1.5"], "E402"),
        (["asked", "--baseline", "asked/qrels.tsv"], "E502"),
        (["asked", "--baseline", "nowhere.json"], "E010"),
        (["asked", "--feedback"], "E402"),
        ([], "E402"),
        (["--feedback"], "E201"),
    ],
)
def test_a_gate_that_cannot_be_checked_fails_before_anything_is_built(
    project: Workplace, options: list[str], code: str
) -> None:
    assert project.pair("eval", *options, "--json").error_code == code
    assert left_behind(project) == []
