"""Stalled writers, expired leases, an unavailable Redis, clock jumps, and delayed readers and writers."""

import contextlib
import datetime
import hashlib
import itertools
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from pair import errors
from pair.ai.ngram import NgramEmbedder
from pair.blobs.leases import BlobLeases
from pair.blobs.local import LocalStore
from pair.clock import SystemClock
from pair.engine.format.manifest import from_bytes, manifest_key, shards_prefix
from pair.engine.maintenance.gc import GarbageReport
from pair.engine.storage.manifest_store import ManifestStore
from pair.engine.storage.shard_cache import ShardCache
from pair.engine.write.commit import EngineContext
from pair.engine.write.writer import WriteReport
from pair.kb.kb import KnowledgeBase
from pair.kb.open import open_kb
from support.engine_parts import make_core, read_blob
from support.engine_worker import Call, Job, Workers, documents_of, read_log, settings_of, text_of
from support.errors import raises_code
from support.redis_server import RedisServer, running_redis

KB = "kb"
SHORT_SECONDS = 1.0
"""The length of a lease that ends during a write."""
LONG_SECONDS = 600.0
"""The length of a lease that does not end, however slow the machine."""
Vectors = dict[str, tuple[float, ...]]


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[RedisServer]:
    with running_redis(tmp_path) as server:
        yield server


def page(name: str, *numbers: float) -> Vectors:
    return {name: (*numbers, *[0.0] * (8 - len(numbers)))}


def ignore(_name: str) -> None:
    pass


class Ground:
    """A KB in a folder that this process and others use."""

    def __init__(self, folder: Path, workers: Workers, **options: Any) -> None:
        self.folder = folder
        self.workers = workers
        self.store = LocalStore(folder / "store")
        self.options: dict[str, Any] = {
            "store": str(folder / "store"),
            "cache_dir": str(folder / "cache"),
            "lease_seconds": LONG_SECONDS,
            **options,
        }
        self.log = folder / "log"

    def open(self, on_step: Callable[[str], None] = ignore, **options: Any) -> KnowledgeBase:
        return open_kb(KB, settings=settings_of(self.options | options), on_step=on_step)

    def stalled(self, call: Call, step: str, occurrence: int = 1) -> int:
        """Start a process that stops just before a step. It repeats a call only after a conflict."""
        at = (step, occurrence, signal.SIGSTOP)
        job = Job(KB, self.options | {"write_attempts": 1}, [call], str(self.log), at=at, insists=True)
        pid = self.workers.start(job)
        assert self.workers.wait(pid) == signal.SIGSTOP
        return pid

    def resumed(self, pid: int) -> tuple[str, dict[str, Any]]:
        """Continue the process. Return the error of the stalled call, if there was one, and the final report."""
        before = len(read_log(self.log))
        os.kill(pid, signal.SIGCONT)
        assert self.workers.wait(pid) == 0
        noted = read_log(self.log)[before:]
        assert noted[-1].error == ""
        return noted[0].error, noted[-1].report

    def blobs(self) -> set[str]:
        return {info.key for info in self.store.list(shards_prefix(KB))}

    def named(self) -> dict[str, str]:
        """Return the SHA-256 of each shard file, by key."""
        shards = from_bytes(read_blob(self.store, manifest_key(KB)), manifest_key(KB)).shards
        return {shard.key(role): shard.files[role].sha256 for shard in shards for role in shard.files}

    def assert_holds(self, *expected: Vectors) -> None:
        """Check that a new reader finds exactly these documents, and that every named shard is sound."""
        for key, sha256 in self.named().items():
            assert hashlib.sha256(read_blob(self.store, key)).hexdigest() == sha256
        with self.open(cache_dir=str(self.folder / f"cache-{next(NUMBERS)}")) as kb:
            assert_answers(kb, *expected)


NUMBERS = itertools.count()


def assert_answers(kb: KnowledgeBase, *expected: Vectors) -> None:
    texts = {name: text_of(name, vector) for vectors in expected for name, vector in vectors.items()}
    assert {each.id: each.text for each in kb.documents(limit=1000)} == texts
    hits = kb.search_vector([0.0] * 8, limit=1000, exact=True)
    assert not hits.partial
    assert sorted((hit.document_id, hit.text) for hit in hits) == sorted(texts.items())


def collect_when_free(kb: KnowledgeBase) -> GarbageReport:
    """Collect garbage as soon as the lease of the stalled writer has ended."""
    while True:
        try:
            return kb.maintenance.collect(grace_seconds=0)
        except errors.ConflictError as fault:
            if fault.code not in {"E203", "E210"}:
                raise
            threading.Event().wait(0.05)


@pytest.fixture(params=["blob", "redis"])
def ground(request: pytest.FixtureRequest, tmp_path: Path, workers: Workers) -> Ground:
    options = {"lease": request.param, "lease_seconds": SHORT_SECONDS}
    if request.param == "redis":
        options["redis_url"] = request.getfixturevalue("redis_server").url
    made = Ground(tmp_path, workers, **options)
    with made.open() as kb:
        kb.upsert(documents_of(page("first", 1)))
    return made


# ── leases that end ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("step", "code"), [("uploaded", "E210"), ("swap", "E202")])
@pytest.mark.rule("engine-8")
def test_writer_whose_lease_ended_does_not_publish_over_another(ground: Ground, step: str, code: str) -> None:
    pid = ground.stalled(("upsert", page("slow", 2)), step)
    with ground.open() as kb:
        quick = kb.upsert(documents_of(page("quick", 3) | page("first", 4)))
    error, report = ground.resumed(pid)
    assert error == code
    assert report["manifest_version"] == quick.manifest_version + 1
    ground.assert_holds(page("first", 4), page("slow", 2), page("quick", 3))


def test_a_delete_whose_lease_ended_restores_and_removes_nothing(ground: Ground) -> None:
    pid = ground.stalled(("delete", ["first", "quick"]), "swap")
    with ground.open() as kb:
        kb.upsert(documents_of(page("quick", 3) | page("first", 4)))
    error, report = ground.resumed(pid)
    assert error == "E202"
    assert report["deleted"] == 2
    ground.assert_holds()


def test_lease_of_a_writer_that_was_killed_ends_by_itself(ground: Ground) -> None:
    pid = ground.stalled(("upsert", page("slow", 2)), "swap")
    os.kill(pid, signal.SIGKILL)
    assert ground.workers.wait(pid) == -signal.SIGKILL
    with ground.open() as kb:
        kb.upsert(documents_of(page("quick", 3)))
    ground.assert_holds(page("first", 1), page("quick", 3))


@pytest.mark.rule("engine-8")
def test_a_held_lease_is_reported_with_its_holder(tmp_path: Path, workers: Workers) -> None:
    ground = Ground(tmp_path, workers)
    pid = ground.stalled(("upsert", page("slow", 2)), "read")
    with ground.open(write_attempts=2) as kb, raises_code("E203", errors.ConflictError) as raised:
        kb.upsert(documents_of(page("quick", 3)))
    assert raised.value.details["holder"].endswith(f"process {pid}")
    assert ground.blobs() == set()
    assert ground.resumed(pid)[0] == ""
    ground.assert_holds(page("slow", 2))


def test_compaction_waits_for_the_lease_and_builds_its_shards_once(tmp_path: Path, workers: Workers) -> None:
    ground = Ground(tmp_path, workers)
    steps: list[str] = []
    waiting: list[int] = []

    def on_step(name: str) -> None:
        steps.append(name)
        if name == "lease" and steps.count("lease") == 8:
            os.kill(waiting.pop(), signal.SIGCONT)

    with ground.open() as kb:
        kb.upsert(documents_of(page("first", 1) | page("second", 2)))
        kb.delete(["first"])
    waiting.append(pid := ground.stalled(("upsert", page("third", 3)), "read"))
    with ground.open(on_step) as kb:
        assert kb.maintenance.compact().shards_after == 1
    assert workers.wait(pid) == 0
    assert steps.count("uploaded") == 1
    ground.assert_holds(page("second", 2), page("third", 3))


def test_upsert_whose_documents_are_stored_does_not_fail_for_the_compaction_after_it(
    tmp_path: Path, workers: Workers
) -> None:
    ground = Ground(tmp_path, workers, ingest_batch_documents=2, write_attempts=2)
    given = [*documents_of(page("first", 1) | page("second", 2)), *documents_of(page("first", 3) | page("third", 4))]
    stalled: list[int] = []

    def on_batch(report: WriteReport) -> None:
        if report.replaced:
            stalled.append(ground.stalled(("upsert", page("slow", 5)), "read"))

    with ground.open() as kb:
        report = kb.upsert(given, on_batch=on_batch)
        assert (report.added, report.replaced) == (3, 1)
        assert ground.resumed(stalled.pop())[0] == ""
        assert_answers(kb, page("first", 3), page("second", 2), page("third", 4), page("slow", 5))


# ── garbage and stalled writers ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("step", "occurrence", "code"), [("upload", 2, "E210"), ("uploaded", 1, "E210"), ("swap", 1, "E202")]
)
@pytest.mark.rule("engine-18")
def test_writer_whose_shards_were_collected_meanwhile_cannot_publish_them(
    ground: Ground, step: str, occurrence: int, code: str
) -> None:
    pid = ground.stalled(("upsert", page("slow", 2)), step, occurrence)
    assert ground.blobs() > ground.named().keys()
    with ground.open() as kb:
        assert collect_when_free(kb).deleted_shards > 0
    assert ground.blobs() == ground.named().keys()
    assert ground.resumed(pid)[0] == code
    ground.assert_holds(page("first", 1), page("slow", 2))
    with ground.open() as kb:
        collect_when_free(kb)
    assert ground.blobs() == ground.named().keys()


def test_first_writer_that_stalls_does_not_publish_what_was_collected(tmp_path: Path, workers: Workers) -> None:
    ground = Ground(tmp_path, workers, lease="blob", lease_seconds=SHORT_SECONDS)
    pid = ground.stalled(("upsert", page("slow", 2)), "swap")
    with ground.open() as kb:
        with pytest.raises(errors.NotFoundError) as raised:
            collect_when_free(kb)
        assert raised.value.code == "E201", "nothing would stop it from publishing"
        kb.upsert(documents_of(page("quick", 3)))
        assert collect_when_free(kb).deleted_shards > 0
    assert ground.resumed(pid)[0] == "E202"
    ground.assert_holds(page("slow", 2), page("quick", 3))


@pytest.mark.parametrize("step", ["lease", "swap"])
def test_compaction_whose_shards_were_collected_meanwhile_starts_over(ground: Ground, step: str) -> None:
    with ground.open() as kb:
        kb.upsert(documents_of(page("second", 2) | page("third", 3)))
        kb.delete(["third"])
        pid = ground.stalled(("compact", None), step)
        assert collect_when_free(kb).deleted_shards > 0
        kb.upsert(documents_of(page("fourth", 4)))
    error, report = ground.resumed(pid)
    assert error == ""
    assert report["conflicts"] > 0
    ground.assert_holds(page("first", 1), page("second", 2), page("fourth", 4))


@pytest.mark.rule("engine-17")
def test_compaction_that_stalls_undoes_nothing_of_what_others_wrote(ground: Ground) -> None:
    with ground.open() as kb:
        kb.upsert(documents_of(page("second", 2) | page("third", 3)))
        kb.delete(["third"])
        pid = ground.stalled(("compact", None), "swap")
        kb.upsert(documents_of(page("second", 5) | page("fourth", 4)))
        kb.delete(["first"])
        ground.resumed(pid)
        assert_answers(kb, page("second", 5), page("fourth", 4))
    ground.assert_holds(page("second", 5), page("fourth", 4))


@pytest.mark.parametrize(("step", "code"), [("swap", "E202"), ("condemned", ""), ("deleting", "")])
def test_a_stalled_collector_deletes_nothing_that_became_live_meanwhile(ground: Ground, step: str, code: str) -> None:
    with ground.open() as kb:
        kb.upsert(documents_of(page("first", 2)))
        pid = ground.stalled(("collect", 0), step)
        kb.upsert(documents_of(page("second", 3)))
        kb.upsert(documents_of(page("first", 1)))  # as in an earlier release
        kb.maintenance.compact(everything=True)
        assert ground.resumed(pid)[0] == code
        assert_answers(kb, page("first", 1), page("second", 3))
        collect_when_free(kb)
    ground.assert_holds(page("first", 1), page("second", 3))
    assert ground.blobs() == ground.named().keys()


# ── Redis ──────────────────────────────────────────────────────────────────────────────────────────


def test_absent_redis_is_reported_at_once_and_nothing_is_written(tmp_path: Path, workers: Workers) -> None:
    steps: list[str] = []
    with contextlib.ExitStack() as held:
        with running_redis(tmp_path) as server:
            ground = Ground(tmp_path, workers, redis_url=server.url)
            kb = held.enter_context(ground.open(on_step=steps.append))
            kb.upsert(documents_of(page("first", 1)))
        before = ground.blobs(), ground.store.get(manifest_key(KB))
        steps.clear()
        acts: list[Callable[[], object]] = [
            lambda: kb.upsert(documents_of(page("second", 2))),
            lambda: kb.delete(["first"]),
            lambda: kb.maintenance.collect(grace_seconds=0),
        ]
        for act in acts:
            with raises_code("E206", errors.StorageError) as raised:
                act()
            assert raised.value.details["address"] == f"redis://127.0.0.1:{server.port}/0"
        assert steps == ["lease"] * 3, "it is not tried again and again"
        assert (ground.blobs(), ground.store.get(manifest_key(KB))) == before
        assert_answers(kb, page("first", 1))
        with running_redis(tmp_path, server.port):
            kb.upsert(documents_of(page("second", 2)))
            assert_answers(kb, page("first", 1), page("second", 2))


def test_a_write_continues_without_redis_while_its_lease_lasts(tmp_path: Path, workers: Workers) -> None:
    with running_redis(tmp_path) as server:
        ground = Ground(tmp_path, workers, redis_url=server.url)

        def on_step(name: str) -> None:
            if name == "uploaded":
                server.process.kill()
                server.process.wait()

        with ground.open(on_step) as kb:
            assert kb.upsert(documents_of(page("first", 1))).conflicts == 0
            assert_answers(kb, page("first", 1))


@pytest.mark.parametrize("step", ["uploaded", "swap"])
def test_a_lease_that_redis_lost_allows_no_overwrite(tmp_path: Path, workers: Workers, step: str) -> None:
    with running_redis(tmp_path) as server:
        ground = Ground(tmp_path, workers, redis_url=server.url)
        pid = ground.stalled(("upsert", page("slow", 2)), step)
    with running_redis(tmp_path, server.port), ground.open() as kb:
        assert kb.upsert(documents_of(page("quick", 3))).conflicts == 0
        assert ground.resumed(pid)[0] in {"E202", "E210"}
        assert_answers(kb, page("slow", 2), page("quick", 3))


# ── clocks ─────────────────────────────────────────────────────────────────────────────────────────


class WrongClock(SystemClock):
    """A wall clock that the test can set."""

    ahead_seconds = 0.0

    def now(self) -> datetime.datetime:
        return super().now() + datetime.timedelta(seconds=self.ahead_seconds)


def kb_with_clock(ground: Ground, clock: WrongClock, on_step: Callable[[str], None] = ignore) -> KnowledgeBase:
    """Open a KB with this clock and leases as blobs."""
    policy = settings_of(ground.options).engine
    new_id = map(str, itertools.count()).__next__
    made = f"{os.getpid()}-{next(NUMBERS)}"

    def unique() -> str:
        return hashlib.sha256(f"{made} {new_id()}".encode()).hexdigest()[:32]

    cache = ShardCache(ground.store, ground.folder / f"cache-{made}", clock)
    parts = EngineContext(
        KB,
        policy,
        ManifestStore(ground.store, KB, before_first_write=lambda: None, on_step=on_step),
        cache,
        BlobLeases(ground.store, holder=made, new_token=unique, clock=clock),
        clock,
        unique,
        lambda attempt: None,
        on_step,
    )
    return KnowledgeBase(make_core(parts, ground.store, NgramEmbedder(8)))


@pytest.mark.parametrize("jump_seconds", [-3600.0, 3600.0])
def test_garbage_collection_counts_its_grace_by_the_clock_of_the_store(
    tmp_path: Path, workers: Workers, jump_seconds: float
) -> None:
    ground, clock = Ground(tmp_path, workers), WrongClock()
    with kb_with_clock(ground, clock) as kb:
        kb.upsert(documents_of(page("first", 1) | page("second", 2)))
        kb.upsert(documents_of(page("first", 3)))
        clock.ahead_seconds = jump_seconds
        kb.maintenance.compact(everything=True)
        orphans = ground.blobs() - ground.named().keys()
        assert orphans
        report = kb.maintenance.collect(grace_seconds=120)
        assert_answers(kb, page("first", 3), page("second", 2))
        assert report.deleted_shards == 0, "whatever this machine takes for the time, it was dropped just now"
        version = kb.upsert(documents_of(page("third", 4))).manifest_version
        clock.ahead_seconds = 0.0
        assert kb.upsert(documents_of(page("fourth", 5))).manifest_version == version + 1
        kb.maintenance.compact(everything=True)
        assert ground.blobs() > ground.named().keys()
        kb.maintenance.collect(grace_seconds=0)
        assert ground.blobs() == ground.named().keys()
    ground.assert_holds(page("first", 3), page("second", 2), page("third", 4), page("fourth", 5))


@pytest.mark.parametrize("jump_seconds", [-3600.0, 3600.0])
def test_clock_that_jumps_in_mid_write_neither_ends_a_lease_nor_keeps_it(
    tmp_path: Path, workers: Workers, jump_seconds: float
) -> None:
    ground, clock, other_clock = Ground(tmp_path, workers), WrongClock(), WrongClock()
    other = kb_with_clock(ground, other_clock)
    refused: list[str] = []

    def on_step(name: str) -> None:
        if name == "uploaded":
            clock.ahead_seconds = other_clock.ahead_seconds = jump_seconds
            with pytest.raises(errors.ConflictError) as raised:
                other.maintenance.collect(grace_seconds=0)
            refused.append(raised.value.code)

    with other, kb_with_clock(ground, clock, on_step) as kb:
        other.upsert(documents_of(page("zeroth", 0)))
        assert kb.upsert(documents_of(page("first", 1))).conflicts == 0
        assert refused == ["E203"]
        assert other.upsert(documents_of(page("second", 2))).conflicts == 0
        assert_answers(kb, page("zeroth", 0), page("first", 1), page("second", 2))


# ── readers that come late ─────────────────────────────────────────────────────────────────────────


def tidied(ground: Ground) -> None:
    """Compact all shards in another process, and collect the old ones without a grace period."""
    log = ground.folder / f"log-{next(NUMBERS)}"
    assert ground.workers.run(Job(KB, ground.options, [("compact", None), ("collect", 0)], str(log))) == 0
    assert [each.error for each in read_log(log)] == ["", ""]
    assert read_log(log)[1].report["deleted_shards"] > 0


def test_reader_with_an_old_manifest_and_an_empty_cache_answers_from_the_current_one(
    tmp_path: Path, workers: Workers
) -> None:
    ground = Ground(tmp_path, workers)
    with ground.open(cache_dir=str(tmp_path / "reader")) as reader, ground.open() as kb:
        kb.upsert(documents_of(page("first", 1) | page("second", 2)))
        kb.upsert(documents_of(page("first", 3)))
        assert_answers(reader, page("first", 3), page("second", 2))
        kb.delete(["second"])
        tidied(ground)
        shutil.rmtree(tmp_path / "reader")
        assert_answers(reader, page("first", 3))


class MeddledStore(LocalStore):
    """A store that calls a function after the manifest is read and before the first shard is fetched."""

    meanwhile: Callable[[], None] | None = None

    def download(self, key: str, path: Path) -> bool:
        if self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile()
        return super().download(key, path)


FOUND = ["first", "second"]
ACTS: Mapping[str, Callable[[KnowledgeBase], object]] = {
    "search": lambda kb: [hit.document_id for hit in kb.search_vector([0.0] * 8)],
    "exact search": lambda kb: [hit.document_id for hit in kb.search_vector([0.0] * 8, exact=True)],
    "listing": lambda kb: [each.id for each in kb.documents()],
    "document": lambda kb: [kb.document("first").id, kb.document("second").id],
    "filter": lambda kb: [hit.document_id for hit in kb.search_vector([0.0] * 8, filter={"none": 1})] or FOUND,
    "upsert": lambda kb: kb.upsert(documents_of(page("first", 1))).unchanged and FOUND,
    "compaction": lambda kb: kb.maintenance.compact().reason and FOUND,
}


@pytest.mark.parametrize("act", ACTS)
def test_shards_that_are_collected_before_they_are_fetched_are_looked_for_in_the_current_manifest(
    tmp_path: Path, workers: Workers, act: str
) -> None:
    ground = Ground(tmp_path, workers)
    with ground.open() as kb:
        kb.upsert(documents_of(page("first", 1)))
        kb.upsert(documents_of(page("second", 2) | page("gone", 3)))
        kb.delete(["gone"])
    store = MeddledStore(tmp_path / "store")
    settings = settings_of(ground.options | {"cache_dir": str(tmp_path / "late")})
    store.meanwhile = lambda: tidied(ground)
    with open_kb(KB, store=store, settings=settings) as late:
        assert ACTS[act](late) == FOUND
    assert store.meanwhile is None
    ground.assert_holds(page("first", 1), page("second", 2))
