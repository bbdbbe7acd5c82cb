"""A simulated day in one process, with a manual clock: resource use does not grow.

Every quarter of an hour, sources are synced, documents are written, replaced and deleted, and a query runs. Every
half hour, shards are compacted and the cache is swept. Every hour, garbage is collected.
`PAIR_LIFE_HOURS` sets another length.
"""

import contextlib
import gc
import itertools
import os
import random
import threading
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from pair.ai.ngram import NgramEmbedder
from pair.blobs.leases import MemoryLeases
from pair.blobs.local import MemoryStore
from pair.engine.format.manifest import shards_prefix
from pair.engine.storage.manifest_store import ManifestStore
from pair.engine.storage.shard_cache import ShardCache
from pair.engine.write.commit import EngineContext
from pair.kb.kb import KnowledgeBase
from pair.kb.sync import SyncService
from pair.reading.process import ReaderProcesses
from pair.settings import Settings
from pair.sync.report import SyncReport
from pair.sync.scheduling import Ticker
from pair.sync.source_text import FileTextReader, SyncedDocuments
from pair.testing.clock import ManualClock
from pair.values import MODES, Document
from support.engine_parts import engine_settings, make_core
from support.sync_parts import Project

HOURS = float(os.environ.get("PAIR_LIFE_HOURS", "24"))
TICK_SECONDS = 900.0
KB = "default"
FILES, PAGES = 8, 24
POOLED_THREADS = 4
"""Threads that fetch shards in parallel, started on first use: engine.query_shard_parallelism."""
WORDS = ("river", "bridge", "castle", "garden", "engine", "Ada Lovelace", "Alan Turing", "harbour")


@dataclass
class Taken:
    """The resources that a process and its KB use."""

    store_bytes: int
    store_blobs: int
    cache_bytes: int
    cache_files: int
    descriptors: int
    threads: int
    resident_bytes: int
    objects: int


class Sources(SyncService):
    """The sync of a project into a KB."""

    def __init__(self, project: Project) -> None:
        super().__init__(Settings())
        self._project = project

    def sync(
        self, kb: KnowledgeBase | None = None, *, wait: bool = True, refresh: str | None = None, resume: bool = True
    ) -> SyncReport:
        assert kb is not None
        report = self._project.run(wait=wait)
        return kb.maintenance.reconcile(resume=resume).complete_report(report)

    def read_texts(self) -> SyncedDocuments:
        return SyncedDocuments(
            self._project.places,
            lambda: FileTextReader(self._project.places.sources_dir, 1_000_000, ReaderProcesses()),
        )

    current_texts = read_texts


class Life:
    """One KB, the operations on it, and its expected content."""

    def __init__(self, folder: Path) -> None:
        self.project = Project(folder)
        self.clock: ManualClock = self.project.clock
        self.store = MemoryStore(self.clock)
        self.cache_folder = folder / "cache" / "shards"
        policy = engine_settings(folder, graph="text", compaction_min_shard_count=4).engine
        ids = map("{:032x}".format, itertools.count(1))
        parts = EngineContext(
            KB,
            policy,
            ManifestStore(self.store, KB, before_first_write=lambda: None),
            ShardCache(self.store, self.cache_folder, self.clock, ttl_seconds=3600.0),
            MemoryLeases(holder="life", new_token=ids.__next__, clock=self.clock),
            self.clock,
            ids.__next__,
            lambda attempt: None,
            lambda step: None,
        )
        core = make_core(parts, self.store, NgramEmbedder(16))
        self.kb = KnowledgeBase(core, Sources(self.project))
        self.dice = random.Random(24)
        self.pages: dict[str, str] = {}
        self.ticks = 0
        self.faults: list[Exception] = []

    def text(self) -> str:
        return " ".join(self.dice.choices(WORDS, k=12)) + f" at {self.ticks}."

    def tick(self) -> None:
        self.ticks += 1
        self._change_files()
        self.kb.sync()
        self._change_pages()
        self._ask()
        if self.ticks % 2 == 0:
            self.kb.maintenance.compact()
            self.kb.maintenance.sweep()
        if self.ticks % 4 == 0:
            self.kb.maintenance.collect()

    def _change_files(self) -> None:
        for number in range(FILES):
            if self.ticks == 1 or self.dice.random() < 0.05:
                self.project.write(f"file-{number}.md", f"# File {number}\n\n{self.text()}\n")

    def _change_pages(self) -> None:
        written = {f"page-{self.dice.randrange(PAGES)}": self.text() for _ in range(2)}
        self.kb.upsert([Document(name, text) for name, text in written.items()])
        self.pages |= written
        if self.dice.random() < 0.3:
            gone = f"page-{self.dice.randrange(PAGES)}"
            self.kb.delete([gone])
            self.pages.pop(gone, None)

    def _ask(self) -> None:
        found = self.kb.search(self.dice.choice(WORDS), mode=MODES[self.ticks % len(MODES)], limit=100)
        assert not found.partial
        assert {each.document_id for each in found if each.document_id.startswith("page-")} <= self.pages.keys()

    def live(self, hours: float) -> None:
        ends_at = self.clock.monotonic() + hours * 3600

        def wait(seconds: float) -> bool:
            self.clock.advance(seconds)
            return bool(self.faults) or self.clock.monotonic() >= ends_at

        Ticker(self.tick, wait, self.faults.append, self.clock, TICK_SECONDS).loop()
        assert self.faults == []

    def tidied(self) -> None:
        """Delete files that are kept only for their grace period."""
        self.kb.maintenance.compact(everything=True)
        self.kb.search("river", mode="adaptive", limit=100)
        self.clock.advance(7200.0)
        self.kb.maintenance.collect()
        self.kb.maintenance.sweep()

    def taken(self) -> Taken:
        gc.collect()
        blobs = list(self.store.list(shards_prefix(KB)))
        cached = [path for path in self.cache_folder.parent.rglob("*") if path.is_file()]
        return Taken(
            sum(each.size_bytes for each in blobs),
            len(list(self.store.list(""))),
            sum(path.stat().st_size for path in cached),
            len(cached),
            len(os.listdir("/proc/self/fd")),
            threading.active_count(),
            resident_bytes(),
            len(gc.get_objects()),
        )


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@dataclass
class Day:
    morning: Taken
    busy: Taken
    evening: Taken
    stored: dict[str, str]
    expected: dict[str, str]


def lived(folder: Path) -> Day:
    life = Life(folder)
    with contextlib.closing(life.kb):
        life.live(HOURS / 12)
        life.tidied()
        morning = life.taken()
        life.live(HOURS)
        busy = life.taken()
        life.tidied()
        evening = life.taken()
        stored = {each.id: each.text for each in life.kb.documents(limit=1000) if each.id.startswith("page-")}
    return Day(morning, busy, evening, stored, life.pages)


def test_a_day_of_work_leaks_no_disk_memory_threads_or_open_files(tmp_path: Path) -> None:
    # Run in a separate process, so that resources of other tests are not counted.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as apart:
        day = apart.submit(lived, tmp_path).result()
    morning, busy, evening = day.morning, day.busy, day.evening
    assert day.stored == day.expected
    assert evening.store_bytes < 1.5 * morning.store_bytes
    assert evening.store_blobs <= morning.store_blobs + 2
    assert busy.store_bytes < 12 * evening.store_bytes, "garbage is bounded while work goes on"
    assert evening.cache_bytes < 1.5 * morning.cache_bytes
    assert evening.cache_files <= morning.cache_files + 4
    assert evening.descriptors <= morning.descriptors + 2
    assert evening.threads <= morning.threads + POOLED_THREADS
    assert evening.objects < morning.objects + 500
    assert evening.resident_bytes < morning.resident_bytes + 24_000_000
