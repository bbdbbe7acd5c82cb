"""The shard cache: which shards are kept, and which are evicted."""

import os
import threading
from pathlib import Path

import pytest

import pair
from pair.engine.settings import EngineSettings
from pair.values import Document
from support.engine_parts import Ground, all_ids, ids_of, live_folders_of, numbered, stats_of
from support.errors import code_of, raises_code
from support.processes import run_at_once, start_ready
from support.threads import run_together, threads_running

TESTS = Path(__file__).parents[2]


@pytest.mark.rule("engine-19")
def test_a_budget_smaller_than_one_shard_cannot_be_met(ground: Ground) -> None:
    ground.fill(numbered(3))
    tight = ground.with_policy(cache_max_bytes=100)
    with tight.open() as kb, raises_code("E205") as caught:
        kb.search("rivers")
    assert caught.value.exit_status == 3
    assert caught.value.hints


@pytest.mark.rule("engine-19")
def test_a_sweep_keeps_to_the_budget_by_last_use(many: Ground) -> None:
    with many.open() as kb:
        kb.upsert(numbered(30))
        kb.search("rivers", limit=100, exact=True)
        whole = kb.maintenance.sweep().kept_bytes
    half = many.with_policy(cache_max_bytes=whole // 2)
    with half.open() as kb:
        report = kb.maintenance.sweep()
        assert report.evicted_size > 0
        assert report.kept_bytes <= whole // 2
        assert report.freed_bytes + report.kept_bytes == whole
        assert sum(path.stat().st_size for path in half.cache.rglob("*") if path.is_file()) == report.kept_bytes
        assert all_ids(kb) == [each.id for each in numbered(30)], "one shard after the other fits"
        assert code_of(lambda: kb.search("rivers", limit=100, exact=True)) == "E205", "a query holds what it asked"


def test_files_in_use_stay_in_the_cache_and_others_are_removed(many: Ground) -> None:
    with many.open() as kb:
        kb.upsert(numbered(30))
        kb.search("rivers", limit=100, exact=True)
        whole = kb.maintenance.sweep().kept_bytes
        shard = max(kb._core.context.manifests.require().manifest.shards, key=lambda each: each.size_bytes)
    with many.open() as reader:
        held = reader._core.context.cache.open(shard)
        held.search(0.0)
        folder = many.cache / "pair-shards" / shard.folder.rpartition("/")[2]
        for path in folder.iterdir():
            os.utime(path, (1_000_000, 1_000_000))  # the first that would have to go
        with many.with_policy(cache_max_bytes=whole - 1).open() as kb:
            report = kb.maintenance.sweep()
            assert report.evicted_size >= 1
            assert report.kept_bytes < whole
            assert folder.exists()
        with many.with_policy(cache_max_bytes=1).open() as kb:
            assert code_of(kb.maintenance.sweep) == "E205"
            assert cached_names(many) == {folder.name}
        del held


def test_unused_files_are_evicted(many: Ground) -> None:
    with many.open() as kb:
        kb.upsert(numbered(30))
        kb.search("rivers", limit=100, exact=True)
    for path in many.cache.rglob("*"):
        os.utime(path, (1_000_000, 1_000_000))
    with many.with_policy(cache_ttl_seconds=3600.0).open() as kb:
        report = kb.maintenance.sweep()
        assert report.evicted_ttl > 0
        assert report.kept_bytes == 0
        assert len(kb.search("rivers", limit=100, exact=True)) == 30


def cached_names(ground: Ground) -> set[str]:
    return {path.name for path in (ground.cache / "pair-shards").iterdir() if path.name != ".made-by-pair"}


def test_files_that_no_manifest_names_are_removed_from_the_cache(many: Ground) -> None:
    with many.open() as writer, many.open() as reader:
        for number in range(20):
            writer.upsert(numbered(1, begin=number))
            assert len(reader.search("rivers", limit=100, exact=True)) == number + 1
        live = {folder.rpartition("/")[2] for folder in live_folders_of(many)}
        assert cached_names(many) <= live
        writer.maintenance.compact(everything=True)
        assert len(reader.search("rivers", limit=100, exact=True)) == 20
        assert cached_names(many) == {folder.rpartition("/")[2] for folder in live_folders_of(many)}
        kept = cached_names(many)
    assert cached_names(many) == kept, "what is closed is kept for the next time"


def test_a_stray_file_in_the_cache_does_no_harm(ground: Ground) -> None:
    with ground.open() as kb:
        kb.upsert(numbered(3))
        kb.search("rivers")
        (ground.cache / ".DS_Store").write_bytes(b"stray")
        assert stats_of(kb).cache["size_bytes"] > 0
        kb.maintenance.sweep()
        assert (ground.cache / ".DS_Store").exists()


@pytest.mark.rule("engine-19")
def test_eviction_under_eight_readers_hurts_none_of_them(many: Ground) -> None:
    """Every shard that is not in use counts as expired."""
    with many.open() as kb:
        kb.upsert(numbered(30))
        expected = ids_of(kb.search("castles", limit=100, exact=True))
    faults: list[BaseException] = []
    done = threading.Event()
    answers: list[list[str]] = []

    with many.with_policy(cache_ttl_seconds=0.000001).open() as kb:

        def read() -> None:
            try:
                for number in range(15):
                    answers.append(ids_of(kb.search("castles", limit=100, exact=True)))
                    assert kb.document(f"doc-{number:04}").id == f"doc-{number:04}"
            except BaseException as fault:  # noqa: BLE001 - reported by the assertion below
                faults.append(fault)

        def sweep() -> None:
            try:
                while not done.is_set():
                    kb.maintenance.sweep()
            except BaseException as fault:  # noqa: BLE001
                faults.append(fault)

        with threads_running(sweep):
            run_together(*[read] * 8)
            done.set()
    assert faults == []
    assert answers == [expected] * (8 * 15)


READER = """
import sys
from pathlib import Path
from support.engine_parts import MANY_SHARDS, Ground, ids_of

ground = Ground(Path(sys.argv[1]), **MANY_SHARDS, cache_ttl_seconds=0.000001)
expected = sys.argv[2].split(",")
print("ready", flush=True)
sys.stdin.readline()
for number in range(int(sys.argv[3])):
    with ground.open() as kb:
        assert ids_of(kb.search("castles", limit=100, exact=True)) == expected
        kb.maintenance.sweep()
        assert ids_of(kb.search("castles", limit=100, exact=True)) == expected
print("done", flush=True)
"""


def test_eviction_under_readers_in_other_processes_hurts_none_of_them(many: Ground) -> None:
    with many.open() as kb:
        kb.upsert(numbered(30))
        expected = ids_of(kb.search("castles", limit=100, exact=True))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])}
    arguments = (many.folder, ",".join(expected), 15)
    readers = [start_ready(READER, *arguments, environment=environment) for _ in range(2)]
    assert run_at_once(*readers) == ["done\n"] * 2


@pytest.mark.rule("engine-23")
def test_files_of_an_older_layout_are_removed_with_the_first_publication(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    for name in ("old.duckdb", "old.snapshot.json", "other.duckdb"):
        (store / name).write_bytes(b"of an older layout")
    policy = EngineSettings(store=str(store), cache_dir=str(tmp_path / "cache"), embedder="ngram")
    with pair.open("old", settings=pair.Settings(engine=policy)) as kb:
        kb.upsert([Document(id="a", text="first")])
    assert (store / "other.duckdb").exists()
    assert not (store / "old.duckdb").exists()
    assert not (store / "old.snapshot.json").exists()
