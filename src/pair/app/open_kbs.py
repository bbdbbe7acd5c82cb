"""The KBs that a server has open, their librarians, earlier versions beside the current ones, and background jobs.

Invariants
    A KB that does not exist is not kept, whatever names are invented.
    A limited number of versions is open, besides those that are being read. One that is read stays open until then.
    A version that is gone is E218, whether or not it was read before.
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
from pair.kb.sync import SyncService
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
    """KBs by name, opened when they are first used, and kept open. Used from several threads at once."""

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
        """Raises E212; E201 unless it is for writing, so that invented names are not kept.

        `graph`: whether stored documents get one; None for what the settings say.
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
            try:
                if not for_writing and kb_id != DEFAULT_KB and kb.stats() is None:
                    raise errors.kb_uninitialised(kb_id)
            except errors.PairError:
                kb.close()
                raise
            self._kbs[kb_id, graph] = kb
            self.embedders[kb_id] = embedder
            return kb

    def read(self, kb_id: str, at: int | str | None, work: Callable[[KnowledgeBase], _Result]) -> _Result:
        """Return what `work` makes of a KB, or of one version of it. Raises E201, E212, E218."""
        if at is not None:
            return self._past.read(self.get(kb_id), at, work)
        if kb_id == DEFAULT_KB or (kb_id, None) in self._kbs:
            return work(self.get(kb_id))
        # The work itself tells whether the KB exists: then the manifest is read once, and not twice.
        check_kb_id(kb_id)
        embedder = self._new_embedder()
        kb = self._open(kb_id, None, embedder)
        is_kept = False
        try:
            result = work(kb)
            with self._lock:
                is_kept = self._kbs.setdefault((kb_id, None), kb) is kb
                self.embedders.setdefault(kb_id, embedder)
        finally:
            if not is_kept:
                kb.close()
        return result

    def collection_at(self, kb_id: str, at: int | str) -> KbCollection:
        """Return what a librarian of the KB answers from at a version. Raises E201, E212, E218."""
        kb = self.get(kb_id)
        number = self._past.read(kb, at, lambda past: past.version()[0])
        return self._past.collection(kb, number)

    def stats_of(self, kb_id: str) -> EngineStats | None:
        """Return the figures of a KB; one that is not open is not kept open."""
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
        """Return the open KBs, without waiting for one that is being opened."""
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
                sources=SyncService(self.settings) if kb_id == DEFAULT_KB else None,
            )

    def _store(self) -> "str | BlobStore":
        """Return the one store in memory; for other addresses each KB has its own connections."""
        address = self.settings.engine.store
        if address != "memory:":
            return address
        if self._memory is None:
            self._memory = blob_store(address, self.settings, self._clock)
        return self._memory


class CountingEmbedder:
    """The embedder that all KBs share, with counts of what it did for one of them."""

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
    readers: int = 0
    is_kept: bool = True
    """False once others took its place: the last reader closes it."""


class OpenVersions:
    """KBs by name and number of the version, opened when they are first used. Used from several threads at once."""

    def __init__(self, most: int = _MOST_VERSIONS) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._open: collections.OrderedDict[_Name, _OpenVersion] = collections.OrderedDict()

    def read(self, kb: KnowledgeBase, version: int | str, work: Callable[[KnowledgeBase], _Result]) -> _Result:
        """Return what `work` makes of one version of a KB. Raises E201, E218, and what the work raises."""
        number = kb.versions.number(version)
        name = kb.kb_id, number
        with self._lock:
            past = self._open.get(name)
            if past is not None:
                past.readers += 1
                self._open.move_to_end(name)
        if past is not None:
            try:
                return self._work_on(name, past, work)
            except errors.NotFoundError as fault:
                if fault.code != errors.NO_SUCH_VERSION:
                    raise
        # Not open, or gone; but a version of a KB that was repaired or created again may exist again.
        return self._work_on(name, self._add(name, kb.at(number)), work)

    def collection(self, kb: KnowledgeBase, number: int) -> KbCollection:
        """Return what a librarian reads of one version. `kb`: the current one, for what no version changes."""
        return KbCollection(kb, kb.collection.embedding, lambda work: self.read(kb, number, work))

    def close(self) -> None:
        """Close all; those that are being read are closed by their last reader."""
        with self._lock:
            unused = [self._remove(name) for name in list(self._open)]
        _close(unused)

    def _add(self, name: _Name, kb: KnowledgeBase) -> _OpenVersion:
        """Add an open KB, in place of one that another thread opened meanwhile."""
        past = _OpenVersion(kb, readers=1)
        with self._lock:
            unused = [self._remove(name)] if name in self._open else []
            self._open[name] = past
            while len(self._open) > self._most:
                unused.append(self._remove(next(iter(self._open))))
        _close(unused)
        return past

    def _work_on(self, name: _Name, past: _OpenVersion, work: Callable[[KnowledgeBase], _Result]) -> _Result:
        unused: list[KnowledgeBase | None] = []
        try:
            return work(past.kb)
        except errors.NotFoundError as fault:
            with self._lock:
                if fault.code == errors.NO_SUCH_VERSION and self._open.get(name) is past:
                    unused.append(self._remove(name))
            raise
        finally:
            with self._lock:
                past.readers -= 1
                unused.append(past.kb if not past.is_kept and not past.readers else None)
            _close(unused)

    def _remove(self, name: _Name) -> KnowledgeBase | None:
        """Return the KB to close now; None while it is being read."""
        past = self._open.pop(name)
        past.is_kept = False
        return None if past.readers else past.kb


def _close(kbs: Sequence[KnowledgeBase | None]) -> None:
    for kb in kbs:
        if kb is not None:
            kb.close()


# ── background jobs ───────────────────────────────────────────────────────────────────────────────────


class BackgroundJob:
    """Work in its own thread, at an interval, until it is stopped. Failed runs are counted and logged."""

    def __init__(
        self, name: str, interval_seconds: float, work: Callable[[], dict[str, Any]], *, at_once: bool
    ) -> None:
        """`at_once`: run also at the start, not only after the first interval."""
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
        """Ask it to stop; `join` waits for it."""
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
        logger.warning("background work failed", extra={"job": self.name, "reason": reason})


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

    def collect(kb: KnowledgeBase) -> Any:
        return kb.maintenance.collect()

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
        make_job("gc", server.gc_interval_seconds, collect),
        make_job("sweep", server.sweep_interval_seconds, sweep),
    ]
    sync = BackgroundJob(
        "sync",
        settings.kb.runtime_refresh_tick_seconds,
        lambda: SyncService(settings).sync_in_background().to_json(),
        at_once=True,
    )
    return [job for job in ([sync, *jobs] if server.sync else jobs) if job.interval_seconds > 0]


def _run_for_all(kbs: OpenKbs, work: Callable[[KnowledgeBase], Any]) -> dict[str, Any]:
    """Return the report for each KB. A KB that fails does not keep the others from their turn."""
    done: dict[str, Any] = {}
    first: errors.PairError | None = None
    for kb_id, kb in kbs.open_kbs().items():
        try:
            done[kb_id] = dataclasses.asdict(work(kb))
        except errors.NotFoundError:
            continue  # nothing was ever stored
        except errors.PairError as fault:
            first = first or fault
    if first is not None:
        raise first
    return done
