"""A lost manifest does not count as a new KB; a killed first write does."""

import functools
import os
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from pair import errors
from pair.engine.format.manifest import first_write_key, manifest_key
from pair.kb.kb import KnowledgeBase
from pair.kb.open import open_kb
from support.command import Workplace, write_files
from support.engine_parts import Ground, all_ids, numbered
from support.engine_worker import Job, Workers, documents_of, settings_of
from support.errors import raises_code
from support.threads import run_together

KB = "kb"
VECTOR = [1.0] * 8
KEEPING = [0, 10]
"""Settings with and without copies of manifests."""


@pytest.fixture(params=KEEPING)
def ground(request: pytest.FixtureRequest, tmp_path: Path) -> Ground:
    """Return a KB with two versions and a deleted manifest."""
    made = Ground(tmp_path, keep_versions=request.param)
    with made.open() as kb:
        kb.upsert(numbered(5))
        kb.backup.export(tmp_path / "export.jsonl")
        kb.upsert(numbered(3, begin=10))
    lose_manifest(made)
    return made


def lose_manifest(ground: Ground, kb_id: str = "default") -> None:
    (ground.store / manifest_key(kb_id)).unlink()


def stored(ground: Ground) -> set[str]:
    return {info.key for info in ground.blobs().list("default.duckdb.")}


WRITES: dict[str, Callable[[KnowledgeBase, Path], object]] = {
    "upsert": lambda kb, folder: kb.upsert(numbered(1, begin=50)),
    "delete": lambda kb, folder: kb.delete(["doc-0001"]),
    "import": lambda kb, folder: kb.backup.import_from(folder / "export.jsonl"),
    "compact": lambda kb, folder: kb.maintenance.compact(everything=True),
    "collect": lambda kb, folder: kb.maintenance.collect(grace_seconds=0),
    "rollback": lambda kb, folder: kb.versions.rollback(1),
    "reembed": lambda kb, folder: kb.maintenance.reembed(),
}


@pytest.mark.parametrize("name", WRITES)
def test_a_write_without_the_manifest_is_refused_and_leaves_the_store_unchanged(ground: Ground, name: str) -> None:
    before = stored(ground)
    with ground.open() as kb, raises_code("E237", errors.DataError) as raised:
        WRITES[name](kb, ground.folder)
    assert "pair fsck --repair" in raised.value.hints[0]
    assert stored(ground) == before


def test_a_process_that_knew_the_manifest_is_refused_as_well(tmp_path: Path) -> None:
    ground = Ground(tmp_path)
    with ground.open() as kb:
        kb.upsert(numbered(5))
        lose_manifest(ground)
        with raises_code("E237", errors.DataError):
            kb.upsert(numbered(1, begin=50))


def test_fsck_does_not_call_it_sound_and_brings_it_back_from_history(tmp_path: Path) -> None:
    ground = Ground(tmp_path, keep_versions=10)
    with ground.open() as kb:
        kb.upsert(numbered(5))
        kb.upsert(numbered(3, begin=10))
        ids = all_ids(kb)
        lose_manifest(ground)
        assert not kb.maintenance.fsck().is_sound
        assert kb.maintenance.fsck(repair=True).is_sound
        assert all_ids(kb) == ids
        kb.upsert(numbered(1, begin=50))
        kb.maintenance.collect(grace_seconds=0)
        assert kb.maintenance.fsck().is_sound
        assert len(all_ids(kb)) == len(ids) + 1


def test_without_history_only_giving_up_lost_data_starts_again(tmp_path: Path) -> None:
    ground = Ground(tmp_path)
    with ground.open() as kb:
        kb.upsert(numbered(5))
        lose_manifest(ground)
        assert not kb.maintenance.fsck(repair=True).is_sound
        with pytest.raises(errors.DataError):
            kb.upsert(numbered(1))
        assert ground.stored_files(".ids"), "nothing was deleted"
        assert kb.maintenance.fsck(repair=True, drop_lost=True).is_sound
        kb.upsert(numbered(1))
        assert len(all_ids(kb)) == 1
        assert kb.maintenance.collect(grace_seconds=0).deleted_shards == 1


def test_a_marker_left_behind_by_a_killed_first_write_does_not_hide_a_second_version(tmp_path: Path) -> None:
    ground = Ground(tmp_path, keep_versions=10)
    with ground.open() as kb:
        kb.upsert(numbered(5))
        kb.upsert(numbered(3, begin=10))
        lose_manifest(ground)
        ground.blobs().put(first_write_key("default"), b"")
        with pytest.raises(errors.DataError):
            kb.upsert(numbered(1, begin=50))
        assert kb.maintenance.fsck(repair=True).is_sound
        assert len(all_ids(kb)) == 8


def test_a_new_kb_starts_and_leaves_no_marker(tmp_path: Path) -> None:
    ground = Ground(tmp_path)
    ground.fill(numbered(2), "one")
    ground.fill(numbered(2), "one.more")
    assert not [info.key for info in ground.blobs().list("") if "first-write" in info.key]


STEPS = ["lease", "read", "workspace", "upload", "uploaded", "copy", "swap", "swapped", "released"]


@pytest.mark.parametrize(
    ("step", "keep", "lease"),
    [
        *((step, 10, "file") for step in STEPS),
        *((step, 0, "file") for step in ("upload", "uploaded", "swap")),
        ("swap", 10, "blob"),
    ],
)
def test_after_a_kill_of_the_first_write_the_next_one_is_not_refused(
    step: str, keep: int, lease: str, workers: Workers, tmp_path: Path
) -> None:
    options = {
        "store": str(tmp_path / "store"),
        "cache_dir": str(tmp_path / "cache"),
        "keep_versions": keep,
        "lease": lease,
        "lease_seconds": 1.0,
    }
    killed = Job(KB, options, [("upsert", {"first": VECTOR})], str(tmp_path / "log"), at=(step, 1, signal.SIGKILL))
    assert workers.wait(workers.start(killed)) == -signal.SIGKILL
    with open_kb(KB, settings=settings_of(options)) as kb:
        kb.upsert(documents_of({"second": VECTOR}))
        kb.upsert(documents_of({"third": VECTOR}))
        ids = all_ids(kb)
        assert {"second", "third"} <= set(ids) <= {"first", "second", "third"}
        assert kb.maintenance.fsck().is_sound
        (tmp_path / "store" / manifest_key(KB)).unlink()
        with raises_code("E237", errors.DataError):
            kb.upsert(documents_of({"fourth": VECTOR}))


def test_first_writers_of_one_kb_do_not_take_each_other_for_a_lost_manifest(workers: Workers, tmp_path: Path) -> None:
    """The writers stop at different steps of their first write, and continue together."""
    for round_number, step in enumerate(["read", "upload", "swap", "swapped"]):
        folder = tmp_path / str(round_number)
        folder.mkdir()
        options = {"store": str(folder / "store"), "cache_dir": str(folder / "cache")}
        first = Job(KB, options, [("upsert", {"a": VECTOR})], str(folder / "a"), at=(step, 1, signal.SIGSTOP))
        others = [
            Job(KB, options, [("upsert", {name: VECTOR})], str(folder / name), at=("released", 9, signal.SIGSTOP))
            for name in "bcd"
        ]
        pid = workers.start(first)
        assert workers.wait(pid) == signal.SIGSTOP
        pids = [workers.start(job) for job in others]
        os.kill(pid, signal.SIGCONT)
        assert [workers.wait(each) for each in [pid, *pids]] == [0] * 4
        with open_kb(KB, settings=settings_of(options)) as kb:
            assert set(all_ids(kb)) == {"a", "b", "c", "d"}


def test_first_writers_without_a_lease_between_them_all_succeed(tmp_path: Path) -> None:
    """Each writer has its own leases, so only the swap decides."""
    ground = Ground(tmp_path, lease="memory")
    barrier, faults = threading.Barrier(4), list[BaseException]()

    def write(number: int) -> None:
        try:
            with ground.with_policy(cache_dir=str(tmp_path / f"cache-{number}")).open() as kb:
                barrier.wait()
                kb.upsert(numbered(1, begin=number))
        except BaseException as fault:  # noqa: BLE001 - shown by the test
            faults.append(fault)

    run_together(*[functools.partial(write, number) for number in range(4)])
    assert faults == []
    shutil.rmtree(ground.cache, ignore_errors=True)
    with ground.open() as kb:
        assert len(all_ids(kb)) == 4


def test_the_commands_refuse_a_lost_manifest_until_it_is_repaired(tmp_path: Path) -> None:
    workplace = Workplace(tmp_path)
    write_files(workplace.target, {"castle.md": "A castle has a moat.", "bridge.md": "A bridge spans it."})
    write_files(workplace.folder, {"more.md": "A tower stands beside it."})
    assert workplace.pair("sync").status == 0
    workplace.pair("package", ".pair/knowledge", "-o", "kb.zip", "--name", "castles", "--with-index").succeeds()
    [manifest] = (workplace.folder / ".pair" / "store").rglob(manifest_key("default"))
    manifest.unlink()
    for command in (
        ("ingest", "more.md"),
        ("ingest", "more.md", "--runner", "local", "--workers", "1"),
        ("install", "--offline", "--source", "./kb.zip", "--force"),
        ("docs", "delete", "castle.md"),
        ("compact",),
        ("gc",),
    ):
        refused = workplace.pair(*command)
        assert (refused.status, "E237" in refused.stderr) == (5, True), (command, refused.stderr)
    found = workplace.pair("fsck")
    assert (found.status, "is intact" in found.stdout) == (5, False)
    assert workplace.pair("fsck", "--repair").status == 0
    assert workplace.pair("ingest", "more.md").status == 0
    ids = [each["id"] for each in workplace.pair("docs", "list", "--json").json["documents"]]
    assert ids == ["bridge.md", "castle.md", "more.md"]
