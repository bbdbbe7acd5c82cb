"""A cache that is full, deleted under a server, or shared by two of them: slower answers, never wrong ones."""

import contextlib
import gc
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support.engine_parts import Ground, all_ids, ids_of, numbered
from support.errors import raises_code
from support.served import Served

NAMES = {f"page-{number}": f"Text of page {number}, about rivers and item{number}." for number in range(12)}
QUERY = {"query": "rivers", "search_mode": "keyword", "k": 50}


# ── deleted ────────────────────────────────────────────────────────────────────────────────────────


def found_by(server: Served, query: dict[str, object]) -> set[str]:
    answer = server.post("/rag/query", query)
    assert answer.status_code == 200, answer.text
    assert not answer.json().get("partial")
    return {each["id"] for each in answer.json()["results"]}


def test_queries_succeed_when_the_cache_of_a_server_is_deleted(tmp_path: Path) -> None:
    cache = tmp_path / ".pair" / "cache"
    with Served(tmp_path, PAIR__ENGINE__GRAPH="off") as server:
        assert server.ingest(NAMES).status_code == 200
        is_over = threading.Event()

        def delete_again_and_again() -> int:
            count = 0
            while not is_over.wait(0.1):
                count += cache.exists()
                shutil.rmtree(cache, ignore_errors=True)
            return count

        with ThreadPoolExecutor(1) as pool:
            deleting = pool.submit(delete_again_and_again)
            try:
                for number in range(12):
                    for mode in ("keyword", "vector", "hybrid"):
                        assert found_by(server, QUERY | {"search_mode": mode}) == NAMES.keys()
                    filtered = {"filter": {"none": number}, "search_mode": "vector"}
                    assert found_by(server, QUERY | filtered) == set()
                    assert server.get("/rag/docs/page-3").json()["text"] == NAMES["page-3"]
                    # A new shard, of which nothing is open yet.
                    assert server.ingest({"page-0": NAMES["page-0"] + f" Again {number}."}).status_code == 200
            finally:
                is_over.set()
            assert deleting.result() > 3


def test_a_file_that_is_deleted_before_it_is_opened_is_fetched_again(ground: Ground) -> None:
    with ground.open() as kb:
        kb.upsert(numbered(9))
        expected = kb.search("rivers", limit=9)
        for _ in range(3):
            shutil.rmtree(ground.cache, ignore_errors=True)
            assert kb.search("rivers", limit=9) == expected
            assert ids_of(kb.search("rivers", limit=9, filter={"odd": True}))
            assert len(kb.documents(limit=20)) == 9
            kb.maintenance.sweep()
    with ground.open() as kb:
        assert kb.search("rivers", limit=9) == expected


def test_files_fetched_into_a_deleted_cache_are_used_again(tmp_path: Path) -> None:
    ground = Ground(tmp_path, cache_ttl_seconds=0.000_001)
    with ground.open() as kb, Ground(tmp_path, cache_ttl_seconds=0.000_001).open() as other:
        kb.upsert(numbered(9))
        [shard] = kb._core.context.manifests.require().manifest.shards
        opened = kb._core.context.cache.open(shard)
        opened.search(0.0)
        shutil.rmtree(ground.cache)
        opened.rows()
        assert other.maintenance.sweep().evicted_ttl == 0, "a reader uses it"
        assert ground.cached_files(".duckdb")


# ── full ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a small file system, if this process may."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1600k", "tmpfs", str(place)], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip("only root mounts file systems")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def filled(place: Path) -> Path:
    """Fill the remaining space with a file of another program."""
    path = place / "filler"
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    return path


def test_a_full_disk_is_reported_and_nothing_is_lost(tmp_path: Path, small_disk: Path) -> None:
    ground = Ground(tmp_path, cache_dir=str(small_disk / "cache"))
    with ground.open() as kb:
        kb.upsert(numbered(5))
        assert len(kb.search("rivers", limit=9)) == 5
        filler = filled(small_disk)
        assert len(kb.search("rivers", limit=9)) == 5, "what is open is answered from"
        with raises_code("E010") as caught:
            kb.upsert(numbered(5, begin=5))
        del caught
        gc.collect()  # what the failed write still held open would be room for the search
        shutil.rmtree(small_disk / "cache")
        filler.unlink()
        filled(small_disk)
        with ground.open() as other, raises_code("E010"):
            other.search("rivers")
        filler.unlink()
        kb.upsert(numbered(5, begin=5))
        assert len(all_ids(kb, 50)) == 10
        assert list((small_disk / "cache-scratch").iterdir()) == []


@pytest.mark.parametrize("left_bytes", [8_192, 60_000, 120_000])
def test_a_disk_that_fills_during_a_write_is_reported_and_leaves_nothing(
    tmp_path: Path, small_disk: Path, left_bytes: int
) -> None:
    ground = Ground(tmp_path, cache_dir=str(small_disk / "cache"))
    with ground.open() as kb:
        kb.upsert(numbered(3))
        free_bytes = os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize
        filler = small_disk / "filler"
        filler.write_bytes(bytes(free_bytes - left_bytes))
        with raises_code("E010") as caught:
            kb.upsert(numbered(100, begin=3))
        assert "no space left on the disk" in caught.value.message
        assert list((small_disk / "cache-scratch").iterdir()) == []
        filler.unlink()
        assert len(all_ids(kb, 50)) == 3
        kb.upsert(numbered(100, begin=3))
        assert len(all_ids(kb, 200)) == 103


def test_unused_files_are_evicted_from_a_full_disk(tmp_path: Path, small_disk: Path) -> None:
    ground = Ground(tmp_path, cache_dir=str(small_disk / "cache"))
    with Ground(tmp_path, cache_dir=str(tmp_path / "cache")).open("first") as first:
        first.upsert(numbered(150))
    with Ground(tmp_path, cache_dir=str(tmp_path / "cache")).open("second") as second:
        second.upsert(numbered(40, begin=200))
    with ground.open("first") as first:
        first.search("rivers", mode="hybrid", filter={"odd": True})
    filled(small_disk)
    with ground.open("second") as second:
        assert len(second.search("rivers", limit=100)) == 40
        assert len(all_ids(second, 100)) == 40


# ── shared ─────────────────────────────────────────────────────────────────────────────────────────


def test_an_eviction_is_not_disturbed_by_a_process_of_the_same_number(tmp_path: Path) -> None:
    """Two containers may each have a process 1."""
    ground = Ground(tmp_path, cache_ttl_seconds=0.000_001)
    with ground.open() as kb:
        kb.upsert(numbered(3))
        kb.search("rivers")
        [folder] = {path.parent for path in ground.cached_files(".search")}
        half_removed = folder.with_name(f".{folder.name}.{os.getpid()}")
        half_removed.mkdir()
        (half_removed / "file").write_text("not removed yet")
        assert kb.maintenance.sweep().evicted_ttl > 0
        assert not folder.exists()


def test_two_servers_that_share_a_cache_by_mistake_answer_as_two_that_do_not(tmp_path: Path) -> None:
    variables = {
        "PAIR__ENGINE__GRAPH": "off",
        "PAIR__ENGINE__STORE": str(tmp_path / "store"),
        "PAIR__ENGINE__CACHE_DIR": str(tmp_path / "cache"),
        "PAIR__ENGINE__CACHE_TTL_SECONDS": "0.001",
        "PAIR__SERVER__SYNC": "false",
    }
    with Served(tmp_path / "one", **variables) as one, Served(tmp_path / "two", **variables) as two:
        assert one.ingest(NAMES).status_code == 200
        servers = (one, two)

        def sweep(number: int) -> None:
            assert servers[number % 2].post("/cache/sweep", {}).status_code == 200

        def ask(number: int) -> None:
            assert found_by(servers[number % 2], QUERY) >= NAMES.keys()

        def write(number: int) -> None:
            names = {f"more-{number}": f"More about rivers, {number}."}
            answer = next(
                each for each in (servers[number % 2].ingest(names) for _ in range(20)) if each.status_code != 409
            )
            assert answer.status_code == 200, answer.text

        with ThreadPoolExecutor(4) as pool:
            acts = [pool.submit(act, number) for number in range(16) for act in (sweep, ask, write, ask)]
            for act in acts:
                act.result()
        expected = NAMES.keys() | {f"more-{number}" for number in range(16)}
        assert found_by(one, QUERY) == found_by(two, QUERY) == expected
