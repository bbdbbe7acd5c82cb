"""`pair lock --check` with a locked index: the searched index must be the locked one."""

import json
import shutil
from pathlib import Path

import pytest

from support.clocks import CHANGED, Origin, files_of
from support.command import Workplace, write_files


@pytest.fixture
def locked(origin: Origin, elsewhere: Workplace) -> Workplace:
    """Return a project with version 1.1.0 locked after 1.0.0."""
    for version, changes in (("1.0.0", {}), ("1.1.0", CHANGED)):
        package = origin.package(version, **changes)
        assert elsewhere.pair("install", "--offline", "--source", package).status == 0
    assert elsewhere.pair("lock").status == 0
    assert elsewhere.pair("lock", "--check").status == 0
    return elsewhere


def drifts(workplace: Workplace) -> list[str]:
    """Return the drifts without the hashes that identify an index."""
    done = workplace.pair("lock", "--check", "--json").fails(4, "E022")
    return [line.partition(" (")[0] for line in done.json["error"]["details"]["drifts"]]


def ingest(workplace: Workplace, **document: str) -> None:
    write_files(workplace.folder, {"mine.jsonl": json.dumps(document)})
    workplace.pair("ingest", "mine.jsonl").succeeds()


def manifest_of(workplace: Workplace) -> Path:
    [found] = (workplace.folder / ".pair" / "store").glob("**/default.duckdb.manifest.json")
    return found


def test_a_rollback_is_reported_with_the_searched_version_until_it_is_undone(locked: Workplace) -> None:
    locked.pair("rollback", "1.0.0").succeeds()
    told = locked.pair("lock", "--check").stderr
    assert "default: index in the engine: locked clocks 1.1.0 (" in told
    assert "found clocks 1.0.0 (" in told
    locked.pair("install", "--locked").succeeds()
    locked.pair("lock", "--check").succeeds()
    locked.pair("rollback", "1.0.0").succeeds()
    locked.pair("rollback", "1.1.0").succeeds()
    locked.pair("lock", "--check").succeeds()


def test_a_document_beside_those_of_the_package_is_not_drift(locked: Workplace) -> None:
    ingest(locked, id="mine", text="Water clocks drip.")
    locked.pair("lock", "--check").succeeds()


def test_a_file_that_an_update_kept_is_not_drift(locked: Workplace, origin: Origin) -> None:
    write_files(locked.target, {"water.md": "# Water\n\nOurs drip.\n"})
    locked.pair("sync").succeeds()
    newer = origin.package("1.2.0", **{"water.md": "# Water\n\nTheirs drip.\n"})
    assert locked.pair("update", "--offline", "--source", newer, "--json").json["kept"]
    locked.pair("lock").succeeds()
    locked.pair("lock", "--check").succeeds()


def test_another_embedder_is_reported(locked: Workplace) -> None:
    locked.pair("reembed", PAIR__ENGINE__EMBEDDING_DIMENSION="64").succeeds()
    assert drifts(locked) == ["default: embedder in the engine: locked ngram-384-v1, found ngram-64-v1"]


def test_another_package_in_the_same_kb_is_reported(locked: Workplace, origin: Origin) -> None:
    write_files(origin.workplace.folder / "rooms", {"red.md": "# Red\n\nIts walls are red.\n"})
    origin.workplace.pair("package", "rooms", "-o", "rooms.zip", "--with-index").succeeds()
    rooms = origin.workplace.folder / "rooms.zip"
    locked.pair("install", "rooms", "--offline", "--source", rooms, "--kb", "default").succeeds()
    told = locked.pair("lock", "--check").stderr
    assert "index in the engine: locked clocks 1.1.0" in told
    assert "found rooms 1.0.0" in told


def test_a_missing_or_damaged_kb_is_reported_and_not_created(locked: Workplace) -> None:
    manifest = manifest_of(locked)
    manifest.write_bytes(manifest.read_bytes().replace(b'"version":', b'"versinn":'))
    [damaged] = drifts(locked)
    assert damaged.startswith("default: ")
    shutil.rmtree(locked.folder / ".pair" / "store")
    before = files_of(locked)
    assert drifts(locked) == ["default: index in the engine: locked clocks 1.1.0"]
    assert files_of(locked) == before
    locked.pair("install", "--locked").succeeds()
    locked.pair("lock", "--check").succeeds()


def test_neither_compaction_nor_collection_nor_repair_is_a_drift(locked: Workplace) -> None:
    ingest(locked, id="mine", text="Water clocks drip.")
    locked.pair("docs", "delete", "mine").succeeds()
    next((locked.folder / ".pair" / "store").glob("**/*.ids")).unlink()
    for command in (("fsck", "--repair"), ("compact", "--all"), ("gc",), ("sync",)):
        locked.pair(*command).succeeds()
        locked.pair("lock", "--check").succeeds()


def test_without_an_installed_index_no_kb_is_checked(origin: Origin, elsewhere: Workplace) -> None:
    package = origin.package("1.0.0")
    elsewhere.pair("install", "--offline", "--source", package, "--no-index").succeeds()
    elsewhere.pair("lock").succeeds()
    before = files_of(elsewhere)
    elsewhere.pair("lock", "--check").succeeds()
    assert files_of(elsewhere) == before
    elsewhere.pair("sync").succeeds()
    elsewhere.pair("lock", "--check").succeeds()


def test_an_edited_file_is_reported_once_whether_or_not_it_was_synced(locked: Workplace) -> None:
    write_files(locked.target, {"almanacs.md": "# Almanacs\n\nOurs are older.\n"})
    assert drifts(locked) == ["default: edited: .pair/knowledge/almanacs.md"]
    locked.pair("sync").succeeds()
    assert drifts(locked) == ["default: edited: .pair/knowledge/almanacs.md"]
