"""Background jobs of a server: sync, prefetch, compaction, garbage collection and the sweep of the cache."""

import dataclasses
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from pair import errors
from pair.app.metrics import ServerMetrics
from pair.app.open_kbs import OpenKbs
from pair.clock import Clock, SystemClock, to_timestamp
from pair.kb.kb import KnowledgeBase
from pair.kb.sync import SyncService
from pair.sync.scheduling import Ticker

logger = logging.getLogger(__name__)


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
        self._is_running = False
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

    @property
    def is_at_work(self) -> bool:
        return self._is_running

    def to_json(self) -> dict[str, Any]:
        return {
            "interval_seconds": self.interval_seconds,
            "running": self._is_running,
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
        self._is_running = True
        self._last = {**self._last, "last_started_at": to_timestamp(self._clock.now())}
        try:
            report = self._work()
        finally:
            self._is_running = False
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
