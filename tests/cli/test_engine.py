"""The commands `ingest`, `search`, `docs`, `compact`, `gc`, `cache sweep` and `status`."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.command import PAIR, Outcome, Workplace, write_files

NOTES: dict[str, str | bytes] = {
    "notes/deploy.md": "# Deploying\n\nWe deploy on Tuesdays with `make ship`.\n",
    "notes/deep/rollback.md": "# Rolling back\n\nRun `make undo` and tell the channel.\n",
    "notes/lunch.txt": "Lunch is at one.\n",
    "notes/.hidden.md": "Nobody reads this.\n",
    "notes/photo.jpg": b"\xff\xd8\xff\xe0 not a text",
}
FACTS = [
    {"id": "faq/1", "text": "Leap seconds are added in June or December.", "metadata": {"year": 2020, "lang": "en"}},
    {
        "id": "faq/2",
        "text": "Schaltsekunden gibt es im Juni.",
        "title": "Zeit",
        "metadata": {"year": 2024, "lang": "de"},
    },
    {
        "id": "faq/3",
        "text": "A castle has a moat.",
        "url": "https://x.example/3",
        "metadata": {"year": 2024, "lang": "en"},
    },
]


@pytest.fixture
def project(workplace: Workplace) -> Workplace:
    write_files(workplace.folder, NOTES)
    write_files(workplace.folder, {"facts.jsonl": lines_of(FACTS)})
    return workplace


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a project after an ingest, made once."""
    workplace = Workplace(tmp_path_factory.mktemp("stored"))
    write_files(workplace.folder, NOTES)
    write_files(workplace.folder, {"facts.jsonl": lines_of(FACTS)})
    assert workplace.pair("ingest", "notes", "facts.jsonl").status == 0
    return workplace.folder / ".pair"


@pytest.fixture
def filled(project: Workplace, stored: Path) -> Workplace:
    shutil.copytree(stored, project.folder / ".pair", dirs_exist_ok=True)
    return project


def lines_of(values: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(value) + "\n" for value in values)


def fed(workplace: Workplace, text: str, *arguments: str) -> Outcome:
    done = subprocess.run(
        [*PAIR, *arguments],
        cwd=workplace.folder,
        env=workplace.environment,
        input=text,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


def listed(workplace: Workplace, *more: str) -> list[str]:
    return [each["id"] for each in workplace.pair("docs", "list", "--json", *more).json["documents"]]


# ── ingest ─────────────────────────────────────────────────────────────────────────────────────────


def test_ingest_takes_files_folders_and_lines(project: Workplace) -> None:
    done = project.pair("ingest", "notes", "facts.jsonl", "--json").succeeds()
    value = done.json
    assert (value["kb_id"], value["added"], value["replaced"], value["unchanged"]) == ("default", 6, 0, 0)
    assert value["chunks"] >= 6
    assert value["manifest_version"] == 1
    assert [each["path"] for each in value["skipped"]] == ["notes/photo.jpg"]
    assert listed(project) == [
        "faq/1",
        "faq/2",
        "faq/3",
        "notes/deep/rollback.md",
        "notes/deploy.md",
        "notes/lunch.txt",
    ]


def test_ingest_again_costs_nothing_and_a_changed_file_is_replaced(filled: Workplace) -> None:
    again = filled.pair("ingest", "notes", "facts.jsonl", "--json").json
    assert (again["added"], again["replaced"], again["unchanged"], again["chunks"]) == (0, 0, 6, 0)
    write_files(filled.folder, {"notes/lunch.txt": "Lunch is at two.\n"})
    changed = filled.pair("ingest", "notes", "facts.jsonl", "--json").json
    assert (changed["added"], changed["replaced"], changed["unchanged"]) == (0, 1, 5)
    assert filled.pair("docs", "get", "notes/lunch.txt").stdout == "Lunch is at two.\n\n"


def test_ingest_reports_what_it_did(project: Workplace) -> None:
    done = project.pair("ingest", "notes/lunch.txt").succeeds()
    assert done.stdout == ""
    assert "Ingested 1 document into default: 1 added, 0 replaced, 0 unchanged (1 chunk)." in done.stderr


def test_ingest_reads_lines_from_standard_input(project: Workplace) -> None:
    done = fed(project, lines_of(FACTS) + "\n", "ingest", "-", "--kb", "other", "--json")
    assert (done.status, done.json["added"]) == (0, 3)
    assert listed(project, "--kb", "other") == ["faq/1", "faq/2", "faq/3"]


def test_a_path_that_is_missing_stores_nothing(project: Workplace) -> None:
    project.pair("ingest", "notes", "nowhere.md", "--json").fails(1, "E003")
    project.pair("docs", "list", "--json").fails(1, "E201")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "not JSON"),
        ("[]", "not a JSON object"),
        ('{"id": "a"}', "id and text are required"),
        ('{"text": "a"}', "id and text are required"),
        ('{"id": 1, "text": "a"}', "id is not a string"),
        ('{"id": "a", "text": "a", "metadata": []}', "metadata is not an object"),
        ('{"id": "a", "text": "a", "txet": "b"}', "unknown fields: txet"),
        ('{"id": "a", "text": "a", "vector": "b"}', "vector is not a list of numbers"),
        ('{"id": "", "text": "a"}', "its id is empty"),
        ('{"id": "a", "text": "a", "metadata": {"x": NaN}}', "metadata cannot be written as JSON"),
        ('{"id": "a", "text": "a", "vector": [1e300]}', ""),
    ],
)
def test_a_bad_line_is_named_and_nothing_of_its_batch_is_stored(project: Workplace, line: str, reason: str) -> None:
    (project.folder / "bad.jsonl").write_text(lines_of(FACTS[:2]) + line + "\n")
    done = project.pair("ingest", "bad.jsonl", "--json")
    done.fails(1, "E213")
    message = done.json["error"]["message"]
    assert reason in message
    assert "Traceback" not in done.stderr
    assert list(project.folder.rglob("*manifest.json*")) == []


def test_a_bad_line_is_named_by_file_and_number(project: Workplace) -> None:
    (project.folder / "bad.jsonl").write_text(lines_of(FACTS[:2]) + "{\n")
    assert "bad.jsonl:3" in project.pair("ingest", "bad.jsonl", "--json").json["error"]["message"]


def test_vectors_of_the_wrong_size_are_refused(project: Workplace) -> None:
    done = fed(project, '{"id": "a", "text": "a", "vector": [1, 2, 3]}\n', "ingest", "-", "--json")
    done.fails(1, "E303")


def test_a_kb_name_that_could_be_a_path_is_refused(project: Workplace) -> None:
    project.pair("ingest", "notes", "--kb", "../elsewhere", "--json").fails(1, "E212")


@pytest.mark.rule("engine-25")
@pytest.mark.rule("engine-28")
def test_documents_get_a_graph_or_none_as_the_command_says(project: Workplace) -> None:
    assert project.pair("ingest", "notes", "--no-graph").status == 0
    project.pair("search", "Rolling back", "--mode", "graph", "--json").fails(1, "E204")
    without = project.pair("search", "Rolling back", "--mode", "adaptive", "--json").json
    assert (without["mode_used"], without["reason"]) == ("hybrid", "there is no graph")
    assert project.pair("ingest", "notes", "--graph", "--json", PAIR__ENGINE__GRAPH="off").json["replaced"] == 3
    with_graph = project.pair("search", "Rolling back", "--mode", "graph", "--json").json
    assert (with_graph["mode_used"], with_graph["results"][0]["id"]) == ("graph", "notes/deep/rollback.md")


# ── search ─────────────────────────────────────────────────────────────────────────────────────────


def test_search_prints_results_for_programs(filled: Workplace) -> None:
    value = filled.pair("search", "castle moat", "-k", "2", "--json").json
    assert value.keys() >= {"kb_id", "query", "search_mode", "partial", "results"}
    assert (value["kb_id"], value["search_mode"], value["partial"]) == ("default", "hybrid", False)
    assert len(value["results"]) == 2
    best = value["results"][0]
    assert best.keys() == {
        "id", "chunk_id", "title", "url", "content", "score", "distance", "graph_score", "metadata", "start", "end",
        "also_in", "highlights",
    }  # fmt: skip
    assert (best["id"], best["chunk_id"], best["url"]) == ("faq/3", "faq/3#0", "https://x.example/3")
    assert best["content"] == "A castle has a moat."
    assert (best["start"], best["end"], best["metadata"]) == (0, 20, {"year": 2024, "lang": "en"})
    assert 0 < best["score"] <= 1
    assert best["distance"] < value["results"][1]["distance"]


def found(workplace: Workplace, *arguments: str) -> set[str]:
    return {each["id"] for each in workplace.pair("search", *arguments, "--json").json["results"]}


def test_search_is_narrowed_by_filters_and_distance(filled: Workplace) -> None:
    assert found(filled, "time", "-k", "10", "--filter", "lang=en") == {"faq/1", "faq/3"}
    assert found(filled, "time", "-k", "10", "--filter", "lang=en", "--filter", "year>=2024") == {"faq/3"}
    assert found(filled, "time", "-k", "10", "--filter", "year<1900") == set()
    assert found(filled, "A castle has a moat.", "-k", "10", "--max-distance", "0.1") == {"faq/3"}
    assert found(filled, "castle", "-k", "10", "--max-distance", "0") == set()
    assert found(filled, "castle", "-k", "10", "--exact") == found(filled, "castle", "-k", "10")


def test_a_filtered_search_does_not_load_duckdb(filled: Workplace) -> None:
    program = """
import pair, sys
with pair.open("default") as kb:
    hits = kb.search("time", filter={"lang": {"not_in": ["en"], "exists": True}})
assert [hit.document_id for hit in hits] == ["faq/2"]
assert "duckdb" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], cwd=filled.folder, env=filled.environment, check=True)


def test_searches_that_cannot_be_asked_are_refused(filled: Workplace) -> None:
    filled.pair("search", "", "--json").fails(1, "E215")
    filled.pair("search", "  \n ", "--json").fails(1, "E215")
    filled.pair("search", "castle", "--filter", "lang", "--json").fails(1, "E211")
    filled.pair("search", "castle", "--filter", "=x", "--json").fails(1, "E211")
    filled.pair("search", "castle", "--kb", "nobody", "--json").fails(1, "E201")
    assert filled.pair("search", "castle", "-k", "0").status == 1
    assert filled.pair("search", "castle", "--mode", "psychic").status == 1


def test_the_error_for_a_missing_kb_has_hints(workplace: Workplace) -> None:
    workplace.pair("search", "castle").exits(1).says("E201", "pair ingest")
    assert not (workplace.folder / ".pair").exists(), "looking makes nothing"


def test_a_damaged_store_is_reported_with_the_shard_and_what_to_do(filled: Workplace) -> None:
    for path in (filled.folder / ".pair").rglob("*.search"):
        path.chmod(0o600)
        path.write_bytes(b"spoilt")
    done = filled.pair("search", "castle", "--json").fails(5, "E207")
    assert "default.duckdb.shards/" in done.json["error"]["message"]
    assert "backup" in done.json["error"]["suggestion"]


# ── docs ───────────────────────────────────────────────────────────────────────────────────────────


def test_docs_are_listed_page_by_page(filled: Workplace) -> None:
    value = filled.pair("docs", "list", "--limit", "4", "--json").json
    assert [each["id"] for each in value["documents"]] == ["faq/1", "faq/2", "faq/3", "notes/deep/rollback.md"]
    assert value["next"] == "notes/deep/rollback.md"
    assert "text" not in value["documents"][0]
    assert value["documents"][1]["title"] == "Zeit"
    rest = filled.pair("docs", "list", "--limit", "4", "--after", value["next"], "--json").json
    assert ([each["id"] for each in rest["documents"]], rest["next"]) == (["notes/deploy.md", "notes/lunch.txt"], None)
    told = filled.pair("docs", "list", "--limit", "1").stdout
    assert told.splitlines() == ["faq/1", "Show more: pair docs list --after faq/1"]


def test_docs_are_listed_by_owner(filled: Workplace) -> None:
    write_files(filled.target, {"synced.md": "# Synced\n"})
    assert filled.pair("sync").status == 0
    assert listed(filled, "--owner", "sync") == ["synced.md"]
    assert len(listed(filled, "--owner", "ingest")) == 6


def test_docs_are_listed_and_counted_by_metadata(filled: Workplace) -> None:
    assert listed(filled, "--filter", "lang!=en", "--filter", "lang?") == ["faq/2"]
    either = '{"$or": [{"lang": "de"}, {"year": {"gte": 2024}}]}'
    assert listed(filled, "--filter", either) == ["faq/2", "faq/3"]
    assert filled.pair("docs", "list", "--filter", "!lang?", "--count").stdout == "3\n"
    assert filled.pair("docs", "list", "--filter", either, "--count", "--json").json["count"] == 2
    assert filled.pair("docs", "list", "--filter", "lang=fr").stdout == "No documents match. Remove a --filter\n"
    assert filled.pair("docs", "facets", "lang").stdout == "2  en\n1  de\n"
    facets = filled.pair("docs", "facets", "lang", "--filter", "year<2024", "--json").json
    assert (facets["key"], facets["values"]) == ("lang", [{"value": "en", "count": 1}])
    assert filled.pair("docs", "facets", "nothing").stdout == "No document has the key nothing.\n"
    filled.pair("docs", "facets", "lang", "--filter", '{"$or": []}', "--json").fails(1, "E211")


def test_docs_are_deleted_by_id_filter_and_owner(filled: Workplace) -> None:
    assert filled.pair("docs", "delete", "faq/1", "faq/9", "--json").json["deleted"] == 1
    assert filled.pair("docs", "delete", "--filter", "lang=de", "--json").json["deleted"] == 1
    assert listed(filled) == ["faq/3", "notes/deep/rollback.md", "notes/deploy.md", "notes/lunch.txt"]
    assert "Deleted 4 documents from default." in filled.pair("docs", "delete", "--owner", "ingest").stderr
    assert listed(filled) == []
    assert filled.pair("docs", "list").stdout == "No documents. Store some: pair ingest PATH\n"
    assert filled.pair("search", "castle").stdout.startswith("No results. ")


def test_deleting_nothing_in_particular_is_refused(filled: Workplace) -> None:
    assert filled.pair("docs", "delete").status == 1
    filled.pair("docs", "delete", "--filter", "x", "--json").fails(1, "E211")
    assert len(listed(filled)) == 6


# ── care ───────────────────────────────────────────────────────────────────────────────────────────


def test_compact_gc_and_sweep_care_for_a_kb(filled: Workplace) -> None:
    filled.pair("docs", "delete", "faq/1")
    filled.pair("ingest", "facts.jsonl")
    done = filled.pair("compact", "--all", "--json").json
    assert (done["kb_id"], done["shards_after"], done["documents"]) == ("default", 1, 6)
    assert filled.pair("compact").stderr == "Nothing to compact.\n"
    kept = filled.pair("gc", "--grace", "0", "--json").json
    assert (kept["deleted_shards"], kept["kept_shards"], kept["kept_versions"] > 0) == (1, 0, True)
    filled.environment["PAIR__ENGINE__KEEP_VERSIONS"] = "0"
    waiting = filled.pair("gc", "--json", PAIR__ENGINE__GC_GRACE_SECONDS="3600").json
    assert (waiting["deleted_shards"], waiting["kept_shards"] > 0) == (0, True)
    collected = filled.pair("gc", "--grace", "0", "--json").json
    assert collected["deleted_shards"] == waiting["kept_shards"]
    assert collected["kept_versions"] == 0
    assert len(list((filled.folder / ".pair/store").rglob("*.search"))) == 1
    assert found(filled, "castle moat", "-k", "1") == {"faq/3"}
    swept = filled.pair("cache", "sweep", "--json", PAIR__ENGINE__CACHE_MAX_BYTES="1").json
    assert (swept["evicted_size"] > 0, swept["kept_bytes"]) == (True, 0)
    filled.pair("search", "castle", "--json", PAIR__ENGINE__CACHE_MAX_BYTES="1").fails(3, "E205")


@pytest.mark.parametrize(
    "command", [("compact",), ("gc",), ("docs", "list"), ("docs", "get", "a"), ("docs", "delete", "a")]
)
def test_maintenance_of_a_missing_kb_is_refused(workplace: Workplace, command: tuple[str, ...]) -> None:
    workplace.pair(*command, "--json").fails(1, "E201")
    assert not (workplace.folder / ".pair").exists()


def test_a_sweep_of_no_cache_is_not_an_error(workplace: Workplace) -> None:
    value = workplace.pair("cache", "sweep", "--json").json
    assert value == {"evicted_ttl": 0, "evicted_size": 0, "freed_bytes": 0, "kept_bytes": 0}


# ── status ─────────────────────────────────────────────────────────────────────────────────────────


def test_status_without_a_store_is_not_an_error(workplace: Workplace) -> None:
    assert "stored       nothing; run: pair sync, or pair ingest PATH" in workplace.pair("status").succeeds().stdout
    assert workplace.pair("status", "--json").json["stored"] is None
    assert not (workplace.folder / ".pair").exists(), "looking makes nothing"


def test_the_status_with_an_unreadable_store_shows_everything_else(filled: Workplace) -> None:
    [manifest] = (filled.folder / ".pair/store").rglob("*manifest.json*")
    manifest.write_bytes(b"{}")
    told = filled.pair("status").succeeds()
    assert "synced" in told.stdout
    assert "stored       unknown: Cannot read default.duckdb.manifest.json: the stored data is damaged." in told.stdout
    value = filled.pair("status", "--json").json
    assert (value["stored"], value["stored_error"]["code"]) == (None, "E207")


def test_a_store_in_memory_leaves_nothing_behind(project: Workplace, tmp_path: Path) -> None:
    (tmp_path / "temporary").mkdir()
    variables = {"PAIR__ENGINE__STORE": "memory:", "TMPDIR": str(tmp_path / "temporary")}
    assert project.pair("ingest", "facts.jsonl", "--json", **variables).json["added"] == 3
    assert list((tmp_path / "temporary").iterdir()) == []
    assert not (project.folder / ".pair").exists()


def test_settings_move_the_store_and_the_cache(project: Workplace, tmp_path: Path) -> None:
    moved = {"PAIR__ENGINE__STORE": str(tmp_path / "blobs"), "PAIR__ENGINE__CACHE_DIR": str(tmp_path / "shards")}
    assert project.pair("ingest", "facts.jsonl", **moved).status == 0
    assert project.pair("search", "castle", "--json", **moved).json["results"]
    assert (tmp_path / "blobs").is_dir()
    assert (tmp_path / "shards").is_dir()
    assert not (project.folder / ".pair").exists()


def test_a_kb_made_by_an_older_version_says_how_to_continue_with_its_embedder(filled: Workplace) -> None:
    default = {"PAIR__ENGINE__EMBEDDER": "static"}
    for command in (["search", "castle"], ["ingest", "notes"]):
        filled.pair(*command, "--json", **default).fails(1, "E304")
    assert "PAIR__ENGINE__EMBEDDER=ngram" in filled.pair("search", "castle", **default).stderr
    assert filled.pair("ingest", "notes", "--kb", "anew", **default).status == 0
    assert filled.pair("search", "castle", "--kb", "anew", "--json", **default).status == 0
