"""The open KBs of a server, their librarians, their earlier versions, and background jobs.

Invariants
    A KB that does not exist is not kept open, so invented names take no memory.
    At most 8 earlier versions are open, not counting those that are being read. A version stays open while it is read.
    A deleted version is E218, even if it was read before.
"""

import collections
import contextlib
import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from pair import errors
from pair.app.metrics import ServerMetrics
from pair.clock import Clock, SystemClock, to_timestamp
from pair.engine.summary import EngineStats, list_kbs
from pair.kb.kb import KbCollection, KnowledgeBase
from pair.kb.librarians import KbLibrarians
from pair.kb.open import DEFAULT_KB, blob_store, choose_embedder, open_kb, with_graph
from pair.kb.sync import ProjectSync, sync_service, synced_kbs
from pair.settings import Settings
from pair.sync.scheduling import Ticker
from pair.values import check_kb_id

if TYPE_CHECKING:
    from pair.ai.contract import Embedder, Vectors
    from pair.blobs.contract import BlobStore

logger = logging.getLogger("pair.jobs")

_Result = TypeVar("_Result")
_MOST_VERSIONS = 8
_Name = tuple[str, int]


class OpenKbs:
    """KBs by name, opened on first use and kept open. Thread-safe."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.embedders: dict[str, CountingEmbedder] = {}
        self._clock = SystemClock()
        self._lock = threading.RLock()
        self._kbs: dict[tuple[str, bool | None], KnowledgeBase] = {}
        self._librarians: dict[str, KbLibrarians] = {}
        self._embedder: Embedder | None = None
        self._memory: BlobStore | None = None
        self._past = OpenVersions()

    def get(self, kb_id: str, *, for_writing: bool = False, graph: bool | None = None) -> KnowledgeBase:
        """Return the open KB. Raises E212, and E201 if it does not exist and is not opened for writing.

        `graph`: whether to extract entities from stored documents; None for the configured value.
        """
        kb = self._kbs.get((kb_id, graph))
        if kb is not None:
            return kb
        check_kb_id(kb_id)
        with self._lock:
            kb = self._kbs.get((kb_id, graph))
            if kb is not None:
                return kb
            embedder = self.embedders.get(kb_id) or self._new_embedder()
            kb = self._open(kb_id, graph, embedder)
            with contextlib.ExitStack() as on_error:
                on_error.callback(kb.close)
                if not for_writing and kb_id != DEFAULT_KB and not kb.stats().manifest_version:
                    raise errors.kb_uninitialised(kb_id)
                on_error.pop_all()
            self._kbs[kb_id, graph] = kb
            self.embedders[kb_id] = embedder
            return kb

    def read(self, kb_id: str, at: int | str | None, work: Callable[[KnowledgeBase], _Result]) -> _Result:
        """Return the result of `work` on a KB, or on its version `at`. Raises E201, E212, E218."""
        if at is not None:
            return self._past.read(self.get(kb_id), at, work)
        if kb_id == DEFAULT_KB or (kb_id, None) in self._kbs:
            return work(self.get(kb_id))
        # The work fails if the KB does not exist. A check before it would read the manifest twice.
        check_kb_id(kb_id)
        embedder = self._new_embedder()
        kb = self._open(kb_id, None, embedder)
        with contextlib.ExitStack() as unless_kept:
            unless_kept.callback(kb.close)
            result = work(kb)
            with self._lock:
                if self._kbs.setdefault((kb_id, None), kb) is kb:
                    unless_kept.pop_all()
                self.embedders.setdefault(kb_id, embedder)
        return result

    def collection_at(self, kb_id: str, at: int | str) -> KbCollection:
        """Return the passages that a librarian of the KB answers from at a version. Raises E201, E212, E218."""
        kb = self.get(kb_id)
        number = self._past.read(kb, at, lambda past: past.version()[0])
        return self._past.collection(kb, number)

    def stats_of(self, kb_id: str) -> EngineStats:
        """Return the statistics of a KB without keeping it open."""
        kb = self._kbs.get((kb_id, None))
        if kb is not None:
            return kb.stats()
        with self._open(kb_id, None, self._new_embedder()) as kb:
            return kb.stats()

    def librarians(self, kb_id: str) -> KbLibrarians:
        """Return the librarians of a KB. Raises E201, E212."""
        librarians = self._librarians.get(kb_id)
        if librarians is not None:
            return librarians
        with self._lock:
            if kb_id not in self._librarians:

                def open_other(other: str) -> KnowledgeBase:
                    return self._open(other, None, self.embedders.setdefault(other, self._new_embedder()))

                self._librarians[kb_id] = KbLibrarians(self.get(kb_id), self.settings, open_other)
            return self._librarians[kb_id]

    def open_kbs(self) -> dict[str, KnowledgeBase]:
        """Return the open KBs. Do not wait for a KB that is being opened."""
        return {kb_id: kb for (kb_id, graph), kb in list(self._kbs.items()) if graph is None}

    def open_librarians(self) -> dict[str, KbLibrarians]:
        return dict(self._librarians)

    def list_stored(self) -> list[str]:
        """Return the names of all KBs in the store."""
        address = self._store()
        store = blob_store(address, self.settings, self._clock) if isinstance(address, str) else address
        with contextlib.closing(store):
            return list_kbs(store)

    def close(self) -> None:
        self._past.close()
        with self._lock:
            for librarians in self._librarians.values():
                librarians.close()
            for kb in self._kbs.values():
                kb.close()
            self._librarians.clear()
            self._kbs.clear()

    def _new_embedder(self) -> "CountingEmbedder":
        with self._lock:
            if self._embedder is None:
                self._embedder = choose_embedder(self.settings)
            return CountingEmbedder(self._embedder)

    def _open(self, kb_id: str, graph: bool | None, embedder: "CountingEmbedder") -> KnowledgeBase:
        with self._lock:
            return open_kb(
                kb_id,
                store=self._store(),
                embedder=embedder,
                settings=self.settings if graph is None else with_graph(self.settings, graph),
                sources=sync_service(self.settings, kb_id) if kb_id in synced_kbs(self.settings) else None,
            )

    def _store(self) -> "str | BlobStore":
        """Return the address of the store. A store in memory is shared: return the store itself."""
        address = self.settings.engine.store
        if address != "memory:":
            return address
        if self._memory is None:
            self._memory = blob_store(address, self.settings, self._clock)
        return self._memory


class CountingEmbedder:
    """A counter of the calls of one KB to the embedder that all KBs share."""

    def __init__(self, embedder: "Embedder") -> None:
        self.hybrid_weight = embedder.hybrid_weight
        self.fit = embedder.fit
        self._embedder = embedder
        self._lock = threading.Lock()
        self._counts = {"count": 0, "error_count": 0, "texts": 0, "latency_sum_ms": 0.0}

    @property
    def name(self) -> str:
        return self._embedder.name

    @property
    def dimension(self) -> int:
        return self._embedder.dimension

    def embed(self, texts: Sequence[str]) -> "Vectors":
        return self._measure(self._embedder.embed, texts)

    def embed_queries(self, texts: Sequence[str]) -> "Vectors":
        return self._measure(self._embedder.embed_queries, texts)

    def _measure(self, work: "Callable[[Sequence[str]], Vectors]", texts: Sequence[str]) -> "Vectors":
        began, is_good = time.perf_counter(), False
        try:
            vectors = work(texts)
            is_good = True
            return vectors
        finally:
            with self._lock:
                self._counts["count"] += 1
                self._counts["error_count"] += not is_good
                self._counts["texts"] += len(texts)
                self._counts["latency_sum_ms"] += (time.perf_counter() - began) * 1000

    def to_json(self) -> dict[str, float]:
        return {**self._counts, "latency_sum_ms": round(self._counts["latency_sum_ms"], 3)}


# ── earlier versions ───────────────────────────────────────────────────────────────────────────────


@dataclass
class _OpenVersion:
    kb: KnowledgeBase
    users: int = 2
    """Number of readers, plus 1 for the cache. The last user closes the KB. The count starts with the reader that opens
    it.
    """


class OpenVersions:
    """Earlier versions of KBs by name and number, opened on first use. Thread-safe."""

    def __init__(self, most: int = _MOST_VERSIONS) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._open: collections.OrderedDict[_Name, _OpenVersion] = collections.OrderedDict()

    def read(self, kb: KnowledgeBase, version: int | str, work: Callable[[KnowledgeBase], _Result]) -> _Result:
        """Return the result of `work` on one version of a KB. Raises E201, E218, and what the work raises."""
        number = kb.versions.number(version)
        name = kb.kb_id, number
        with self._lock:
            past = self._open.get(name)
            if past is not None:
                past.users += 1
                self._open.move_to_end(name)
        if past is not None:
            try:
                return self._work_on(name, past, work)
            except errors.NotFoundError as fault:
                if fault.code != errors.NO_SUCH_VERSION:
                    raise
        # The version is not open, or was deleted. A repaired or re-created KB may use its number again.
        return self._work_on(name, self._add(name, kb.versions.open(number)), work)

    def collection(self, kb: KnowledgeBase, number: int) -> KbCollection:
        """Return the passages of one version for librarians. `kb`: the current version."""
        return KbCollection(kb, kb.collection.embedding, lambda work: self.read(kb, number, work))

    def close(self) -> None:
        """Close all versions that are not being read. Their last readers close the others."""
        with self._lock:
            unused = list(self._open.values())
            self._open.clear()
        self._release(*unused)

    def _add(self, name: _Name, kb: KnowledgeBase) -> _OpenVersion:
        """Add an open KB. It replaces one that another thread opened at the same time."""
        past = _OpenVersion(kb)
        with self._lock:
            unused = [self._open.pop(name)] if name in self._open else []
            self._open[name] = past
            while len(self._open) > self._most:
                unused.append(self._open.popitem(last=False)[1])
        self._release(*unused)
        return past

    def _work_on(self, name: _Name, past: _OpenVersion, work: Callable[[KnowledgeBase], _Result]) -> _Result:
        try:
            return work(past.kb)
        except errors.NotFoundError as fault:
            with self._lock:
                is_gone = fault.code == errors.NO_SUCH_VERSION and self._open.get(name) is past
                if is_gone:
                    del self._open[name]
            if is_gone:
                self._release(past)
            raise
        finally:
            self._release(past)

    def _release(self, *versions: _OpenVersion) -> None:
        for past in versions:
            with self._lock:
                past.users -= 1
                is_unused = past.users == 0
            if is_unused:
                past.kb.close()


# ── background jobs ───────────────────────────────────────────────────────────────────────────────────


class BackgroundJob:
    """Work that runs at an interval in its own thread. Failed runs are counted and logged."""

    def __init__(
        self, name: str, interval_seconds: float, work: Callable[[], dict[str, Any]], *, at_once: bool
    ) -> None:
        """Create a job. `at_once`: also run at the start, not only after each interval."""
        self.name = name
        self.interval_seconds = interval_seconds
        self.failures = 0
        self.runs = 0
        self.total_seconds = 0.0
        self._work = work
        self._at_once = at_once
        self._clock: Clock = SystemClock()
        self._stop = threading.Event()
        self.is_running = False
        self._last: dict[str, Any] = {}
        self._ticker = Ticker(self._run, self._stop.wait, self._note_failure, self._clock, interval_seconds)
        self._thread = threading.Thread(target=self._loop, name=f"pair-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Tell the job to stop. `join` waits for its end."""
        self._stop.set()

    def join(self, seconds: float) -> None:
        if self._thread.is_alive():
            self._thread.join(seconds)

    @property
    def is_stopping(self) -> bool:
        return self._stop.is_set()

    def to_json(self) -> dict[str, Any]:
        return {
            "interval_seconds": self.interval_seconds,
            "running": self.is_running,
            "runs": self.runs,
            "skipped": self._ticker.skipped,
            "failures": self.failures,
            "total_seconds": round(self.total_seconds, 3),
            **self._last,
        }

    def _loop(self) -> None:
        if self._at_once or not self._stop.wait(self.interval_seconds):
            self._ticker.loop()

    def _run(self) -> None:
        began = self._clock.monotonic()
        self.is_running = True
        self._last = {**self._last, "last_started_at": to_timestamp(self._clock.now())}
        try:
            report = self._work()
        finally:
            self.is_running = False
            self.runs += 1
            seconds = self._clock.monotonic() - began
            self.total_seconds += seconds
            self._last = {**self._last, "last_seconds": round(seconds, 3)}
        self._last = {**self._last, "last_report": report, "last_error": ""}

    def _note_failure(self, fault: Exception) -> None:
        self.failures += 1
        reason, public = f"{type(fault).__name__}: {fault}", type(fault).__name__
        if isinstance(fault, errors.PairError):
            reason, public = fault.message, fault.public_message
        self._last = {**self._last, "last_error": public}
        logger.warning("background job failed", extra={"job": self.name, "reason": reason})


def make_jobs(kbs: OpenKbs, metrics: ServerMetrics) -> list[BackgroundJob]:
    """Return the background jobs of a server."""
    settings, server = kbs.settings, kbs.settings.server

    def compact(kb: KnowledgeBase) -> Any:
        began = time.perf_counter()
        try:
            report = kb.maintenance.compact()
        except errors.PairError:
            metrics.note_compaction(kb.kb_id, time.perf_counter() - began, 0, is_good=False)
            raise
        if report.shards_before:
            metrics.note_compaction(kb.kb_id, time.perf_counter() - began, report.conflicts, is_good=True)
        return report

    def sweep(kb: KnowledgeBase) -> Any:
        report = kb.maintenance.sweep()
        metrics.note_sweep(report)
        return report

    def prefetch(kb: KnowledgeBase) -> Any:
        report = kb.maintenance.prefetch(server.prefetch_max_bytes, lambda: not prefetching.is_stopping)
        metrics.note_prefetch(report)
        return report

    def make_job(name: str, interval_seconds: float, work: Callable[[KnowledgeBase], Any]) -> BackgroundJob:
        return BackgroundJob(name, interval_seconds, lambda: _run_for_all(kbs, work), at_once=False)

    prefetching = make_job("prefetch", server.prefetch_interval_seconds, prefetch)
    jobs = [
        prefetching,
        make_job("compaction", server.compaction_interval_seconds, compact),
        make_job("gc", server.gc_interval_seconds, lambda kb: kb.maintenance.collect()),
        make_job("sweep", server.sweep_interval_seconds, sweep),
    ]
    sync = BackgroundJob(
        "sync",
        settings.kb.runtime_refresh_tick_seconds,
        lambda: ProjectSync(settings).sync_in_background().to_json(),
        at_once=True,
    )
    return [job for job in ([sync, *jobs] if server.sync else jobs) if job.interval_seconds > 0]


def _run_for_all(kbs: OpenKbs, work: Callable[[KnowledgeBase], Any]) -> dict[str, Any]:
    """Run the work for all open KBs and return their reports. After all of them, raise the first error."""
    done: dict[str, Any] = {}
    first: errors.PairError | None = None
    for kb_id, kb in kbs.open_kbs().items():
        try:
            done[kb_id] = dataclasses.asdict(work(kb))
        except errors.NotFoundError:
            continue  # the KB has no version yet
        except errors.PairError as fault:
            first = first or fault
    if first is not None:
        raise first
    return done
