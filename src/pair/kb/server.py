"""The state of a server: open KBs and their librarians, authentication, traces and background jobs."""

import contextlib
import dataclasses
import importlib.util
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import urlsplit

from pair import errors, files
from pair.ai.contract import Embedder, Vectors
from pair.auth.rules import Principal, is_loopback
from pair.clock import Clock, SystemClock, to_timestamp
from pair.engine.summary import list_kbs
from pair.kb.kb import KbCollection, KnowledgeBase
from pair.kb.librarians import KbLibrarians
from pair.kb.open import DEFAULT_KB, blob_store, choose_embedder, open_kb, with_graph
from pair.kb.open_versions import OpenVersions, open_collection
from pair.kb.sync import SyncService
from pair.kb.trust import key_file
from pair.settings import Settings
from pair.sync.scheduling import Ticker
from pair.values import check_kb_id

if TYPE_CHECKING:
    from pair.auth.tokens import TokenVerifier
    from pair.blobs.contract import BlobStore
    from pair.engine.query.shard_access import PrefetchReport
    from pair.engine.storage.shard_cache import SweepReport
    from pair.engine.summary import EngineStats

logger = logging.getLogger(__name__)

_MOST_JWKS_BYTES = 1_000_000
_JWKS_SECONDS = 5.0
_TRACES_SECONDS = 1
_Result = TypeVar("_Result")


class OpenKbs:
    """KBs by name, opened when they are first used, and kept open. Used from several threads at once."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.embedding: dict[str, EmbeddingCount] = {}
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
            count = self.embedding.get(kb_id, EmbeddingCount())
            kb = self._open(kb_id, graph, count)
            try:
                if not for_writing and kb_id != DEFAULT_KB and kb.stats() is None:
                    raise errors.kb_uninitialised(kb_id)
            except errors.PairError:
                kb.close()
                raise
            self._kbs[kb_id, graph] = kb
            self.embedding[kb_id] = count
            return kb

    def read(self, kb_id: str, at: int | str | None, work: Callable[[KnowledgeBase], _Result]) -> _Result:
        """Return what `work` makes of a KB, or of one version of it. Raises E201, E212, E218."""
        if at is None and kb_id != DEFAULT_KB and (kb_id, None) not in self._kbs:
            return self._read_first(kb_id, work)
        kb = self.get(kb_id)
        return work(kb) if at is None else self._past.read(kb, at, work)

    def _read_first(self, kb_id: str, work: Callable[[KnowledgeBase], _Result]) -> _Result:
        """Open a KB for work that tells whether it exists: then the manifest is read once, and not twice."""
        check_kb_id(kb_id)
        count = EmbeddingCount()
        kb = self._open(kb_id, None, count)
        is_kept = False
        try:
            result = work(kb)
            with self._lock:
                is_kept = self._kbs.setdefault((kb_id, None), kb) is kb
                self.embedding.setdefault(kb_id, count)
        finally:
            if not is_kept:
                kb.close()
        return result

    def shelf_at(self, kb_id: str, at: int | str) -> KbCollection:
        """Return what a librarian of the KB answers from at a version. Raises E201, E212, E218."""
        kb = self.get(kb_id)
        number = self._past.read(kb, at, lambda past: past.version()[0])
        return open_collection(kb, self._past, number)

    def stats_of(self, kb_id: str) -> "EngineStats | None":
        """Return the figures of a KB; one that is not open is not kept open."""
        kb = self._kbs.get((kb_id, None))
        if kb is not None:
            return kb.stats()
        with self._open(kb_id, None, EmbeddingCount()) as kb:
            return kb.stats()

    def desk(self, kb_id: str) -> KbLibrarians:
        """Return the librarians of a KB. Raises E201, E212."""
        librarians = self._librarians.get(kb_id)
        if librarians is not None:
            return librarians
        with self._lock:
            if kb_id not in self._librarians:
                self._librarians[kb_id] = KbLibrarians(self.get(kb_id), self.settings, self._open_other)
            return self._librarians[kb_id]

    def opened(self) -> dict[str, KnowledgeBase]:
        """Return the open KBs, without waiting for one that is being opened."""
        return {kb_id: kb for (kb_id, graph), kb in list(self._kbs.items()) if graph is None}

    def desks(self) -> dict[str, KbLibrarians]:
        return dict(self._librarians)

    def stored(self) -> list[str]:
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

    def _open_other(self, kb_id: str) -> KnowledgeBase:
        return self._open(kb_id, None, self.embedding.setdefault(kb_id, EmbeddingCount()))

    def _open(self, kb_id: str, graph: bool | None, count: "EmbeddingCount") -> KnowledgeBase:
        with self._lock:
            if self._embedder is None:
                self._embedder = choose_embedder(self.settings)
            return open_kb(
                kb_id,
                store=self._store(),
                embedder=_CountingEmbedder(self._embedder, count),
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


@dataclass
class EmbeddingCount:
    """What the embedder did for one KB."""

    count: int = 0
    error_count: int = 0
    texts: int = 0
    latency_sum_ms: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def measure(self, work: Callable[[Sequence[str]], Vectors], texts: Sequence[str]) -> Vectors:
        began, is_good = time.perf_counter(), False
        try:
            vectors = work(texts)
            is_good = True
            return vectors
        finally:
            with self._lock:
                self.count += 1
                self.error_count += not is_good
                self.texts += len(texts)
                self.latency_sum_ms += (time.perf_counter() - began) * 1000

    def to_json(self) -> dict[str, float]:
        return {
            "count": self.count,
            "error_count": self.error_count,
            "texts": self.texts,
            "latency_sum_ms": round(self.latency_sum_ms, 3),
        }


@dataclass(frozen=True)
class _CountingEmbedder:
    """The embedder that all KBs share, counted for one of them."""

    embedder: Embedder
    counts: EmbeddingCount

    @property
    def name(self) -> str:
        return self.embedder.name

    @property
    def dimension(self) -> int:
        return self.embedder.dimension

    @property
    def hybrid_weight(self) -> float:
        return self.embedder.hybrid_weight

    def fit(self, query: str) -> float:
        return self.embedder.fit(query)

    def embed(self, texts: Sequence[str]) -> Vectors:
        return self.counts.measure(self.embedder.embed, texts)

    def embed_queries(self, texts: Sequence[str]) -> Vectors:
        return self.counts.measure(self.embedder.embed_queries, texts)


# ── authentication ─────────────────────────────────────────────────────────────────────────────────


def verifier(settings: Settings) -> Callable[[str], Principal] | None:
    """Return what identifies a credential, and raises E602; None without authentication. Raises E401, E404."""
    server = settings.server
    if server.auth == "none":
        if not is_loopback(server.host):
            raise errors.settings_invalid(
                "server.auth",
                f"{server.host} can be reached from other machines, and nobody would be asked who they are",
                hints=[
                    "Let keys in: server.auth: keys, then pair keys add NAME",
                    "Let signed tokens in: server.auth: jwt",
                    "Serve this machine only: --host 127.0.0.1",
                ],
            )
        return None
    if server.auth == "keys":
        keys = key_file(settings)
        keys.all()  # a server whose keys cannot be read does not start
        return keys.authenticate
    return token_verifier(settings).authenticate


def token_verifier(settings: Settings) -> "TokenVerifier":
    """Raises E401."""
    from pair.auth.tokens import TokenVerifier  # noqa: PLC0415 - loads cryptography

    address = settings.server.jwt_jwks
    url = urlsplit(address)
    if url.netloc and url.scheme != "https" and not is_loopback(url.hostname or ""):
        raise errors.settings_invalid("server.jwt_jwks", "keys come over https, or from this machine")
    read = _download if url.netloc else _read
    return TokenVerifier(settings.server, lambda: read(address), SystemClock())


def _read(path: str) -> bytes:
    with files.storage_errors():
        return Path(files.expand_path(path)).read_bytes()


def _download(url: str) -> bytes:
    """Raises E614."""
    import httpx2  # noqa: PLC0415 - only where keys are at an address

    try:
        began = time.monotonic()
        with httpx2.stream("GET", url, timeout=_JWKS_SECONDS, follow_redirects=False) as answer:
            answer.raise_for_status()
            body = b""
            for block in answer.iter_bytes():
                body += block
                if time.monotonic() - began > _JWKS_SECONDS:
                    raise errors.jwks_unreadable(f"it did not arrive within {_JWKS_SECONDS:g} s")
                if len(body) > _MOST_JWKS_BYTES:
                    raise errors.jwks_unreadable("the document is too long")
            return body
    except httpx2.HTTPError as fault:
        raise errors.jwks_unreadable(type(fault).__name__) from fault


# ── traces ─────────────────────────────────────────────────────────────────────────────────────────


def send_traces(settings: Settings) -> Callable[[], None]:
    """Send traces from now on, if an endpoint is configured; return what sends the last of them. Raises E401."""
    endpoint = settings.server.otlp_endpoint
    if not endpoint:
        return lambda: None
    if importlib.util.find_spec("opentelemetry") is None or importlib.util.find_spec("opentelemetry.sdk") is None:
        raise errors.settings_invalid(
            "server.otlp_endpoint", "sending traces needs an extra", hints=["pip install 'pair-kb[otel]'"]
        )
    from opentelemetry import trace  # noqa: PLC0415 - only where traces are sent
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

    exporter = OTLPSpanExporter(endpoint=endpoint, timeout=_TRACES_SECONDS)
    provider = TracerProvider(resource=Resource.create({"service.name": "pair"}), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)

    def send_last() -> None:
        # A collector that does not answer does not keep the process from ending.
        sender = threading.Thread(target=provider.shutdown, name="pair-traces", daemon=True)
        sender.start()
        sender.join(_TRACES_SECONDS)

    return send_last


# ── background jobs ────────────────────────────────────────────────────────────────────────────────


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


class JobMetrics(Protocol):
    """What counts the work of background jobs."""

    def note_compaction(self, kb_id: str, seconds: float, conflicts: int, is_good: bool) -> None: ...

    def note_sweep(self, report: "SweepReport") -> None: ...

    def note_prefetch(self, report: "PrefetchReport") -> None: ...


def care(kbs: OpenKbs, metrics: JobMetrics) -> list[BackgroundJob]:
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
    for kb_id, kb in kbs.opened().items():
        try:
            done[kb_id] = dataclasses.asdict(work(kb))
        except errors.NotFoundError:
            continue  # nothing was ever stored
        except errors.PairError as fault:
            first = first or fault
    if first is not None:
        raise first
    return done
