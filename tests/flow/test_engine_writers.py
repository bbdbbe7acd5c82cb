"""Many processes write to one KB at once: no acknowledged document is lost or stored twice.

With `HYPOTHESIS_PROFILE=nightly`, they write the amount that the specification demands.
"""

import os
import random
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from pair.blobs.contract import BlobStore
from pair.blobs.local import LocalStore
from pair.engine.format.manifest import from_bytes, manifest_key
from pair.kb.kb import KnowledgeBase
from pair.kb.open import open_kb
from support.engine_parts import read_blob, stats_of
from support.engine_worker import Call, Job, Noted, Workers, read_log, running_workers, settings_of, text_of
from support.redis_server import RedisServer
from support.s3_server import ACCESS_KEY, SECRET_KEY, S3Server

KB = "kb"
IS_NIGHTLY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"
WRITERS = 16
BATCHES = 50 if IS_NIGHTLY else 8
"""Batches of each writer. A write waits for the disk a dozen times, so 800 consecutive writes take minutes."""
S3_BATCHES = 50 if IS_NIGHTLY else 3
"""Batches on S3. A write to the test server takes a third of a second, and seconds with concurrent writers."""
FIRST_ROUNDS = 100 if IS_NIGHTLY else 12
CONTESTED = "contested"
CONFLICTS = {"E202", "E203"}


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with running_workers({"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}) as running:
        yield running


def calls_of(writer: int, batches: int) -> list[Call]:
    """Return batches of one to three own documents; every fourth batch has one that all writers share."""
    dice = random.Random(writer)
    calls: list[Call] = []
    for batch in range(batches):
        names = [f"{writer:02}-{batch:02}-{number}" for number in range(dice.randrange(3) + 1)]
        vectors = {name: (float(writer), float(batch), *(float(dice.randrange(9)) for _ in range(6))) for name in names}
        if batch % 4 == 0:
            vectors[CONTESTED] = (float(writer), float(batch), *[0.0] * 6)
        calls.append(("upsert", vectors))
    return calls


def race(workers: Workers, folder: Path, options: Mapping[str, Any], *, batches: int) -> list[list[Noted]]:
    """Run all writers at once, and return what each of them recorded."""
    jobs = [
        Job(KB, options, calls_of(writer, batches), str(folder / f"log-{writer}"), insists=True)
        for writer in range(WRITERS)
    ]
    pids = [workers.start(job) for job in jobs]
    assert [workers.wait(pid) for pid in pids] == [0] * WRITERS
    return [read_log(Path(job.log)) for job in jobs]


def assert_everything_is_there_once(store: BlobStore, options: Mapping[str, Any], logs: list[list[Noted]]) -> None:
    batches = max(each.number for log in logs for each in log) + 1
    expected: dict[str, str] = {}
    versions: list[int] = []
    contested_at = 0
    for writer, log in enumerate(logs):
        assert {each.error for each in log if each.error} <= CONFLICTS
        done = [each for each in log if not each.error]
        assert [each.number for each in done] == list(range(batches)), "it insisted until each was acknowledged"
        seen = [each.report["manifest_version"] for each in done]
        assert seen == sorted(set(seen)), "strictly ascending"
        versions += seen
        for each, (_, vectors) in zip(done, calls_of(writer, batches), strict=True):
            assert each.report["added"] + each.report["replaced"] == len(vectors)
            for name, vector in vectors.items():
                if name != CONTESTED or each.report["manifest_version"] > contested_at:
                    expected[name] = text_of(name, vector)
            if CONTESTED in vectors:
                contested_at = max(contested_at, each.report["manifest_version"])
    assert sorted(versions) == list(range(1, len(versions) + 1)), "each write made a separate version"
    with open_kb(KB, store=store, settings=settings_of(options)) as kb:
        stats = stats_of(kb)
        assert stats.manifest_version == len(versions)
        assert stats.documents == len(expected)
        assert {each.id: each.text for each in kb.documents(limit=10_000)} == expected
        hits = kb.search_vector([0.0] * 8, limit=10_000, exact=True)
        assert sorted((hit.document_id, hit.text) for hit in hits) == sorted(expected.items())
    manifest = from_bytes(read_blob(store, manifest_key(KB)), manifest_key(KB))
    assert all(store.get(shard.key(role)) is not None for shard in manifest.shards for role in shard.files)


@pytest.mark.timeout(1800 if IS_NIGHTLY else 180)
@pytest.mark.rule("engine-4")
@pytest.mark.rule("engine-6")
def test_sixteen_processes_write_to_one_folder(workers: Workers, tmp_path: Path) -> None:
    options = {"store": str(tmp_path / "store"), "cache_dir": str(tmp_path / "cache")}
    logs = race(workers, tmp_path, options, batches=BATCHES)
    assert_everything_is_there_once(LocalStore(tmp_path / "store"), options, logs)


def test_writers_compactor_collector_and_reader_do_not_get_in_each_others_way(workers: Workers, tmp_path: Path) -> None:
    options = {"store": str(tmp_path / "store"), "cache_dir": str(tmp_path / "cache")}
    calls: list[list[Call]] = [calls_of(writer, 6) for writer in range(4)]
    care: list[Call] = [("compact", None), ("collect", 0)] * 6
    jobs = [
        Job(KB, options, each, str(tmp_path / f"log-{number}"), insists=True)
        for number, each in enumerate([*calls, [calls_of(4, 1)[0], *care]])
    ]
    pids = [workers.start(job) for job in jobs]
    with open_kb(KB, settings=settings_of(options | {"cache_dir": str(tmp_path / "reader")})) as reader:
        versions = list(seen_while_alive(reader, pids))
        assert versions == sorted(versions), "never an older state after a newer one"
        assert [workers.wait(pid) for pid in pids] == [0] * len(jobs)
        logs = [read_log(Path(job.log)) for job in jobs]
        assert {each.error for log in logs for each in log if each.error} <= CONFLICTS
        names = {name for each in [*calls, [calls_of(4, 1)[0]]] for _, vectors in each for name in vectors}
        assert [each.id for each in reader.documents(limit=1000)] == sorted(names)
        assert len(reader.search_vector([0.0] * 8, limit=1000, exact=True)) == len(names)


def seen_while_alive(reader: KnowledgeBase, pids: list[int]) -> Iterator[int]:
    """Search until these processes have ended; return the versions that were searched."""
    while any(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z" for pid in pids):
        if reader.stats().manifest_version:
            hits = reader.search_vector([0.0] * 8, limit=1000)
            assert not hits.partial
            assert len({hit.chunk_id for hit in hits}) == len(hits)
            yield hits.manifest_version


@pytest.mark.timeout(7200 if IS_NIGHTLY else 180)
@pytest.mark.parametrize("lease", ["redis", "blob"])
def test_sixteen_processes_write_to_one_bucket(
    lease: str, workers: Workers, s3: S3Server, redis_server: RedisServer, tmp_path: Path
) -> None:
    options = {
        "store": f"s3://blobs/writers-{lease}",
        "s3_endpoint": s3.options.endpoint_url,
        "s3_region": s3.options.region,
        "lease": lease,
        "redis_url": redis_server.url if lease == "redis" else "",
        "cache_dir": str(tmp_path / "cache"),
    }
    logs = race(workers, tmp_path, options, batches=S3_BATCHES)
    assert_everything_is_there_once(s3.store(f"writers-{lease}"), options, logs)


@pytest.mark.parametrize(("lease", "step"), [("file", "lease"), ("memory", "swap")])
@pytest.mark.rule("engine-4")
@pytest.mark.rule("engine-6")
def test_one_of_two_first_writers_wins_and_the_other_tries_again(
    lease: str, step: str, workers: Workers, tmp_path: Path
) -> None:
    """The writers continue at the same moment: before they request the lease, or, without a lease, before they swap."""
    for number in range(FIRST_ROUNDS):
        folder = tmp_path / str(number)
        folder.mkdir()
        options = {"store": str(folder / "store"), "cache_dir": str(folder / "cache"), "lease": lease}
        jobs = [
            Job(KB, options, calls_of(writer, 1), str(folder / f"log-{writer}"), at=(step, 1, signal.SIGSTOP))
            for writer in range(2)
        ]
        pids = [workers.start(job) for job in jobs]
        assert [workers.wait(pid) for pid in pids] == [signal.SIGSTOP] * 2
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        assert [workers.wait(pid) for pid in pids] == [0, 0]
        logs = [read_log(Path(job.log)) for job in jobs]
        assert_everything_is_there_once(LocalStore(folder / "store"), options, logs)
        in_order = sorted((each for log in logs for each in log), key=lambda each: each.report["manifest_version"])
        assert [each.report["manifest_version"] for each in in_order] == [1, 2]
        if step == "swap":
            assert [each.report["conflicts"] for each in in_order] == [0, 1]
