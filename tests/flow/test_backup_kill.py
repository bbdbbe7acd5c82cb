"""`kill -9` at every step of an import and a repair leaves the whole old KB or the whole new one."""

import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from pair.kb.kb import KnowledgeBase
from pair.kb.open import open_kb
from support.engine_parts import all_ids, numbered
from support.engine_worker import Job, Workers, settings_of

OLD = [f"doc-{number:04}" for number in range(5)]
NEW = [f"doc-{number:04}" for number in range(3, 12)]
PUBLISHING = [("lease", 1), ("read", 1), ("copy", 1), ("swap", 1), ("swapped", 1)]
IMPORT_STEPS = [("upload", 1), ("upload", 6), ("uploaded", 2), *PUBLISHING]
REPAIR_STEPS = [("upload", 2), ("uploaded", 1), ("lease", 1), ("copy", 1), ("swap", 1), ("swapped", 1)]


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a KB and the export of another one, made once."""
    folder = tmp_path_factory.mktemp("stored")
    with opened(folder) as kb:
        kb.upsert(numbered(5))
    with opened(folder, "other") as kb:
        kb.upsert(numbered(9, begin=3))
        kb.backup.export(folder / "backup.jsonl")
    shutil.rmtree(folder / "cache")
    return folder


@pytest.fixture
def folder(stored: Path, tmp_path: Path) -> Path:
    shutil.copytree(stored, tmp_path, dirs_exist_ok=True)
    return tmp_path


def options(folder: Path) -> dict[str, Any]:
    places = {"store": str(folder / "store"), "cache_dir": str(folder / "cache")}
    return {**places, "build_part_bytes": 1000, "compaction_enabled": False, "keep_versions": 3}


def opened(folder: Path, kb_id: str = "kb") -> KnowledgeBase:
    return open_kb(kb_id, settings=settings_of(options(folder)))


def killed(workers: Workers, folder: Path, call: tuple[str, Any], at: tuple[str, int]) -> None:
    job = Job("kb", options(folder), [call], str(folder / "log"), at=(*at, signal.SIGKILL))
    assert workers.run(job) == -signal.SIGKILL


@pytest.mark.parametrize("at", IMPORT_STEPS, ids=str)
def test_a_killed_import_leaves_the_old_or_the_new(workers: Workers, folder: Path, at: tuple[str, int]) -> None:
    killed(workers, folder, ("import", str(folder / "backup.jsonl")), at)
    with opened(folder) as kb:
        assert all_ids(kb) == (NEW if at[0] == "swapped" else OLD)
        kb.backup.import_from(folder / "backup.jsonl", replace_all=True)
        kb.maintenance.collect(grace_seconds=0)
        assert all_ids(kb) == NEW
        assert kb.maintenance.fsck().is_sound


@pytest.mark.parametrize("at", REPAIR_STEPS, ids=str)
def test_a_killed_repair_makes_nothing_worse(workers: Workers, folder: Path, at: tuple[str, int]) -> None:
    with opened(folder) as kb:
        before = [hit.to_json() for hit in kb.search("rivers item3", exact=True)]
        kb.delete(["doc-0004"])
    shutil.rmtree(folder / "cache")
    for path in (folder / "store").rglob("kb.duckdb.shards/*/*.duckdb"):
        path.unlink()
    killed(workers, folder, ("repair", None), at)
    with opened(folder) as kb:
        assert kb.maintenance.fsck(repair=True).is_sound
        assert kb.maintenance.fsck().is_sound
        assert all_ids(kb) == OLD[:-1]
        assert kb.versions.rollback(1).documents == 5
        assert [hit.to_json() for hit in kb.search("rivers item3", exact=True)] == before
