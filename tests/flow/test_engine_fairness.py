"""Writers that never pause do not starve others, and garbage collection waits for its turn."""

import itertools
import os
import signal
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pair.kb.open import open_kb
from support.engine_worker import Call, Job, Workers, documents_of, read_log, settings_of
from support.redis_server import RedisServer

KB = "kb"
CALLS = 2_000
"""More writes than a writer makes before it is stopped."""
LEAST_TURNS = 36
"""Minimum number of turns of all writers together, while all of them write."""
LONGEST_WAIT_TURNS = 25
"""Maximum number of turns of others between two of one writer.

With three equally likely writers, a longer wait occurs once in 30,000 waits.
"""
PATIENCE_SECONDS = 120.0


def calls_of(writer: int) -> Sequence[Call]:
    """Return calls that write one small document each."""
    return [("upsert", {f"{writer}-{number}": [float(writer), float(number), *[0.0] * 6]}) for number in range(CALLS)]


def versions_of(log: Path) -> list[int]:
    """Return the versions that a writer has published."""
    return [noted.report["manifest_version"] for noted in read_log(log) if not noted.error]


def write_together(workers: Workers, folder: Path, options: dict[str, Any], count: int) -> list[list[int]]:
    """Run several writers until they have made enough versions after the last one started.

    Return the versions of each.
    """
    logs = [folder / f"log-{number}" for number in range(count)]
    pids = [
        workers.start(Job(KB, options, calls_of(number), str(log), insists=True)) for number, log in enumerate(logs)
    ]
    waiting = threading.Event()
    try:
        for _ in range(int(PATIENCE_SECONDS * 10)):
            waiting.wait(0.1)
            versions = [versions_of(log) for log in logs]
            if sum(map(len, in_company(versions))) >= LEAST_TURNS:
                break
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            workers.wait(pid)
    return [versions_of(log) for log in logs]


def in_company(versions: Sequence[Sequence[int]]) -> list[list[int]]:
    """Count from the time when every writer had written once."""
    if not all(versions):
        return [[] for _ in versions]
    began = max(each[0] for each in versions)
    return [[version for version in each if version >= began] for each in versions]


@pytest.mark.parametrize("lease", ["file", "blob", "redis"])
def test_three_writers_without_pauses_get_about_as_many_turns(
    lease: str, workers: Workers, tmp_path: Path, redis_server: RedisServer
) -> None:
    options = {
        "store": str(tmp_path / "store"),
        "cache_dir": str(tmp_path / "cache"),
        "lease": lease,
        "redis_url": redis_server.url,
    }
    versions = in_company(write_together(workers, tmp_path, options, 3))
    turns = [len(each) for each in versions]
    assert sum(turns) >= LEAST_TURNS
    assert min(turns) >= max(turns) / 10
    gaps = [later - earlier for each in versions for earlier, later in itertools.pairwise(each)]
    assert max(gaps) <= LONGEST_WAIT_TURNS


def test_garbage_collection_waits_for_the_lease_as_a_writer_does(workers: Workers, tmp_path: Path) -> None:
    options = {"store": str(tmp_path / "store"), "cache_dir": str(tmp_path / "cache")}
    tries = threading.Semaphore(0)

    def on_step(name: str) -> None:
        if name == "lease":
            tries.release()

    with open_kb(KB, settings=settings_of(options), on_step=on_step) as kb:
        kb.upsert(documents_of({"first": [1.0] * 8}))
        job = Job(KB, options, calls_of(0)[:1], str(tmp_path / "log"), at=("read", 1, signal.SIGSTOP))
        pid = workers.start(job)
        assert workers.wait(pid) == signal.SIGSTOP
        assert tries.acquire(timeout=PATIENCE_SECONDS)
        with ThreadPoolExecutor(1) as pool:
            report = pool.submit(kb.maintenance.collect, grace_seconds=0)
            try:
                refused = [tries.acquire(timeout=PATIENCE_SECONDS) for _ in range(3) if not report.done()]
                assert refused == [True] * 3, "it tries again while another process holds the lease"
            finally:
                os.kill(pid, signal.SIGCONT)
            assert report.result(PATIENCE_SECONDS).manifest_version > 0
        assert workers.wait(pid) == 0
