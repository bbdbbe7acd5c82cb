"""The commands `pair export` and `pair import`."""

import json
import shutil
from pathlib import Path

import pytest

from support.command import Workplace, write_files

NOTES: dict[str, str | bytes] = {
    f"sources/{number}.md": f"# Note {number}\n\nThis one is about item{number}, said Ada Lovelace.\n"
    for number in range(12)
}


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a project after a sync, made once."""
    workplace = Workplace(tmp_path_factory.mktemp("stored"))
    write_files(workplace.folder, NOTES)
    assert workplace.pair("sync", PAIR__KB__SOURCES_DIR="sources").status == 0
    return workplace.folder


@pytest.fixture
def filled(workplace: Workplace, stored: Path) -> Workplace:
    shutil.copytree(stored, workplace.folder, dirs_exist_ok=True)
    workplace.environment["PAIR__KB__SOURCES_DIR"] = "sources"
    return workplace


def results(workplace: Workplace, *more: str) -> object:
    return workplace.pair("search", "item7 Ada", "--exact", "--json", *more).json["results"]


def test_an_imported_kb_equals_the_exported_one(filled: Workplace) -> None:
    before = results(filled)
    told = filled.pair("export", "-o", "backup.jsonl.gz")
    assert (told.status, told.stdout) == (0, "")
    assert "Exported default to backup.jsonl.gz: 12 documents, 12 chunks." in told.stderr
    shutil.rmtree(filled.folder / ".pair" / "store")
    shutil.rmtree(filled.folder / ".pair" / "cache")
    done = filled.pair("import", "backup.jsonl.gz").succeeds()
    assert "Imported backup.jsonl.gz into default: 12 added, 0 replaced, 0 unchanged (12 chunks)" in done.stderr
    assert results(filled) == before
    assert filled.pair("sync", "--json").json["stored"] == 0
    value = filled.pair("import", "backup.jsonl.gz", "--replace", "--json").json
    assert (value["unchanged"], value["deleted"]) == (12, 0)
    assert filled.pair("versions", "--json").json["versions"][0]["made_by"] == "import"


def test_standard_output_gets_the_lines_and_nothing_else(filled: Workplace) -> None:
    done = filled.pair("export", "-o", "-", "--no-vectors")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert (len(lines), lines[0]["vectors"], lines[-1]["end"]["documents"]) == (14, False, 12)
    assert all("vector" not in chunk for line in lines[1:-1] for chunk in line["chunks"])
    assert "Exported default" in done.stderr


def test_errors_have_hints(filled: Workplace) -> None:
    assert filled.pair("export", "-o", "backup.jsonl").status == 0
    other = filled.pair("import", "backup.jsonl", "--kb", "other", PAIR__ENGINE__EMBEDDING_DIMENSION="24")
    assert other.status == 1
    assert "--embed" in other.stderr
    filled.pair("import", "backup.jsonl", "--kb", "other", "--embed", PAIR__ENGINE__EMBEDDING_DIMENSION="24").succeeds()
    assert filled.pair("import", "none.jsonl", "--json").error_code == "E003"
    assert filled.pair("export", "-o", "x.jsonl", "--kb", "nothing", "--json").error_code == "E201"
    assert not (filled.folder / "x.jsonl").exists()
    (filled.folder / "backup.jsonl").write_bytes((filled.folder / "backup.jsonl").read_bytes()[:-9])
    filled.pair("import", "backup.jsonl", "--kb", "cut", "--json").fails(5, "E224")
    assert filled.pair("docs", "list", "--kb", "cut", "--json").error_code == "E201"
