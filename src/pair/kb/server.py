"""What a server keeps: open KBs and their desks, who is let in, and work that is done again and again."""

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
from pair.engine.rules import check_kb_id
from pair.engine.summary import list_kbs
from pair.kb.embedders import choose_embedder
from pair.kb.kb import KnowledgeBase
from pair.kb.keys import key_file
from pair.kb.librarians import KbLibrarians
from pair.kb.open import DEFAULT_KB, blob_store, open_kb
from pair.kb.open_versions import OpenVersions, VersionCollection
from pair.kb.sync import SyncService
from pair.settings import Settings
from pair.sync.ticker import Ticker

if TYPE_CHECKING:
    from pair.auth.tokens import TokenVerifier
    from pair.blobs.contract import BlobStore
    from pair.engine.query.prefetch import PrefetchReport
    from pair.engine.storage.shard_cache import SweepReport
    from pair.engine.summary import EngineStats

logger = logging.getLogger(__name__)

_MOST_JWKS_BYTES = 1_000_000
_JWKS_SECONDS = 5.0
_TRACES_SECONDS = 1
_Result = TypeVar("_Result")


class OpenKbs:
    """KBs by name, opened when they are first wanted, and kept. Used from several threads at once."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._clock = SystemClock()
        self._lock = threading.RLock()
        self._kbs: dict[tuple[str, bool | None], KnowledgeBase] = {}
        self._desks: dict[str, KbLibrarians] = {}
        self._embedder: Embedder | None = None
        self._memory: BlobStore | None = None
        self._past = OpenVersions()
        self.embedding: dict[str, EmbeddingCount] = {}

    def get(self, kb_id: str, *, for_writing: bool = False, graph: bool | None = None) -> KnowledgeBase:
        """Raises E212; E201 unless it is for writing: a name that somebody made up is not kept.

        `graph`: whether what is stored gets one; None for what the settings say.
        """
        found = self._kbs.get((kb_id, graph))
        if found is not None:
            return found
        check_kb_id(kb_id)
        with self._lock:
            found = self._kbs.get((kb_id, graph))
            if found is not None:
                return found
            count = self.embedding.get(kb_id, EmbeddingCount())
            opened = self._open(kb_id, graph, count)
            try:
                if not for_writing and kb_id != DEFAULT_KB and opened.stats() is None:
                    raise errors.kb_uninitialised(kb_id)
            except errors.PairError:
                opened.close()
                raise
            self._kbs[kb_id, graph] = opened
            self.embedding[kb_id] = count
            return opened

    def read(self, kb_id: str, at: int | str | None, work: Callable[[KnowledgeBase], _Result]) -> _Result:
        """What `work` makes of a KB, or of it as it was in a version. Raises E201, E212, E218."""
        if at is None and kb_id != DEFAULT_KB and (kb_id, None) not in self._kbs:
            return self._read_first(kb_id, work)
        kb = self.get(kb_id)
        return work(kb) if at is None else self._past.read(kb, at, work)

    def _read_first(self, kb_id: str, work: Callable[[KnowledgeBase], _Result]) -> _Result:
        """Open a KB for work that tells whether it exists: then the manifest is read once, and not twice."""
        check_kb_id(kb_id)
        count = EmbeddingCount()
        opened = self._open(kb_id, None, count)
        is_kept = False
        try:
            result = work(opened)
            with self._lock:
                is_kept = self._kbs.setdefault((kb_id, None), opened) is opened
                self.embedding.setdefault(kb_id, count)
        finally:
            if not is_kept:
                opened.close()
        return result

    def shelf_at(self, kb_id: str, at: int | str) -> VersionCollection:
        """What a shelf would have answered from. Raises E201, E212, E218."""
        kb = self.get(kb_id)
        number = self._past.read(kb, at, lambda past: past.version()[0])
        return VersionCollection(kb, self._past, number)

    def stats_of(self, kb_id: str) -> "EngineStats | None":
        """Of one that need not be open, and is not kept open for it."""
        found = self._kbs.get((kb_id, None))
        if found is not None:
            return found.stats()
        with contextlib.closing(self._open(kb_id, None, EmbeddingCount())) as opened:
            return opened.stats()

    def desk(self, kb_id: str) -> KbLibrarians:
        """Who can be asked about this KB. Raises E201, E212."""
        found = self._desks.get(kb_id)
        if found is not None:
            return found
        with self._lock:
            if kb_id not in self._desks:
                self._desks[kb_id] = KbLibrarians(self.get(kb_id), self.settings, self._opened_for_a_librarian)
            return self._desks[kb_id]

    def opened(self) -> dict[str, KnowledgeBase]:
        """Without waiting for one that is being opened."""
        return {kb_id: kb for (kb_id, graph), kb in list(self._kbs.items()) if graph is None}

    def desks(self) -> dict[str, KbLibrarians]:
        return dict(self._desks)

    def stored(self) -> list[str]:
        """Names of all KBs that are in the store."""
        address = self._store()
        store = blob_store(address, self.settings, self._clock) if isinstance(address, str) else address
        with contextlib.closing(store):
            return list_kbs(store)

    def close(self) -> None:
        self._past.close()
        with self._lock:
            for desk in self._desks.values():
                desk.close()
            for kb in self._kbs.values():
                kb.close()
            self._desks.clear()
            self._kbs.clear()

    def _opened_for_a_librarian(self, kb_id: str) -> KnowledgeBase:
        return self._open(kb_id, None, self.embedding.setdefault(kb_id, EmbeddingCount()))

    def _open(self, kb_id: str, graph: bool | None, count: "EmbeddingCount") -> KnowledgeBase:
        with self._lock:
            if self._embedder is None:
                self._embedder = choose_embedder(self.settings)
            settings = self.settings if graph is None else _with_graph(self.settings, graph)
            return open_kb(
                kb_id,
                store=self._store(),
                embedder=_CountedEmbedder(self._embedder, count),
                settings=settings,
                sources=SyncService(self.settings) if kb_id == DEFAULT_KB else None,
            )

    def _store(self) -> "str | BlobStore":
        """What is in memory is one store for all; every other KB has its own connections."""
        address = self.settings.engine.store
        if address != "memory:":
            return address
        if self._memory is None:
            self._memory = blob_store(address, self.settings, self._clock)
        return self._memory


def _with_graph(settings: Settings, wanted: bool) -> Settings:
    """A graph that is wanted is made as it is configured, or from the text when none is."""
    kind = settings.engine.graph if settings.engine.graph != "off" else "text"
    return dataclasses.replace(settings, engine=dataclasses.replace(settings.engine, graph=kind if wanted else "off"))


# ── embedding, counted ─────────────────────────────────────────────────────────────────────────────


@dataclass
class EmbeddingCount:
    count: int = 0
    error_count: int = 0
    texts: int = 0
    latency_sum_ms: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def timed(self, work: Callable[[], Vectors], texts: int) -> Vectors:
        began, is_good = time.perf_counter(), False
        try:
            vectors = work()
            is_good = True
            return vectors
        finally:
            with self._lock:
                self.count += 1
                self.error_count += not is_good
                self.texts += texts
                self.latency_sum_ms += (time.perf_counter() - began) * 1000

    def to_json(self) -> dict[str, float]:
        return {
            "count": self.count,
            "error_count": self.error_count,
            "texts": self.texts,
            "latency_sum_ms": round(self.latency_sum_ms, 3),
        }


@dataclass(frozen=True)
class _CountedEmbedder:
    """The embedder that all KBs share, with what it did for one of them."""

    embedder: Embedder
    counted: EmbeddingCount

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
        return self.counted.timed(lambda: self.embedder.embed(texts), len(texts))

    def embed_queries(self, texts: Sequence[str]) -> Vectors:
        return self.counted.timed(lambda: self.embedder.embed_queries(texts), len(texts))


# ── who is let in ──────────────────────────────────────────────────────────────────────────────────


def verifier(settings: Settings) -> Callable[[str], Principal] | None:
    """What tells who presents a credential, and raises E602; None where nobody is asked. Raises E401, E404."""
    policy = settings.server
    if policy.auth == "none":
        if not is_loopback(policy.host):
            raise errors.settings_invalid(
                "server.auth",
                f"{policy.host} can be reached from other machines, and nobody would be asked who they are",
                hints=[
                    "Let keys in: server.auth: keys, then pair keys add NAME",
                    "Let signed tokens in: server.auth: jwt",
                    "Serve this machine only: --host 127.0.0.1",
                ],
            )
        return None
    if policy.auth == "keys":
        keys = key_file(settings)
        keys.all()  # a server that could let no key in does not start
        return keys.verified
    return token_verifier(settings).verified


def token_verifier(settings: Settings) -> "TokenVerifier":
    """Raises E401."""
    policy = settings.server
    from pair.auth.tokens import TokenVerifier  # noqa: PLC0415 - loads cryptography

    address = policy.jwt_jwks
    parts = urlsplit(address)
    if parts.netloc and parts.scheme != "https" and not is_loopback(parts.hostname or ""):
        raise errors.settings_invalid("server.jwt_jwks", "keys come over https, or from this machine")
    reading = _downloaded if parts.netloc else _read
    return TokenVerifier(policy, lambda: reading(address), SystemClock())


def _read(path: str) -> bytes:
    with files.storage_errors():
        return Path(files.expanded(path)).read_bytes()


def _downloaded(url: str) -> bytes:
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
    """From now on, if somewhere is configured; what is returned sends the last of them. Raises E401."""
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

    def send_the_last() -> None:
        # Somebody who does not take them keeps nobody from ending.
        sender = threading.Thread(target=provider.shutdown, name="pair-traces", daemon=True)
        sender.start()
        sender.join(_TRACES_SECONDS)

    return send_the_last


# ── work that is done again and again ──────────────────────────────────────────────────────────────


class BackgroundJob:
    """Work in a thread of its own, every so often, until it is told to stop. A run that fails is counted and told."""

    def __init__(
        self, name: str, interval_seconds: float, work: Callable[[], dict[str, Any]], *, at_once: bool
    ) -> None:
        """`at_once`: also when it is started, not only after the first interval."""
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
        self._ticker = Ticker(self._run, self._stop.wait, self._failed, self._clock, interval_seconds)
        self._thread = threading.Thread(target=self._loop, name=f"pair-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Tells it; `join` waits."""
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

    def _failed(self, fault: Exception) -> None:
        self.failures += 1
        told = fault.message if isinstance(fault, errors.PairError) else f"{type(fault).__name__}: {fault}"
        public = fault.public_message if isinstance(fault, errors.PairError) else type(fault).__name__
        self._last = {**self._last, "last_error": public}
        logger.warning("background work failed", extra={"job": self.name, "reason": told})


class Watching(Protocol):
    """Who counts what a server does by itself."""

    def note_compaction(self, kb_id: str, seconds: float, conflicts: int, is_good: bool) -> None: ...

    def note_sweep(self, report: "SweepReport") -> None: ...

    def note_prefetch(self, report: "PrefetchReport") -> None: ...


def care(kbs: OpenKbs, watching: Watching) -> list[BackgroundJob]:
    """What a server does by itself."""
    settings, policy = kbs.settings, kbs.settings.server

    def compact(kb: KnowledgeBase) -> dict[str, Any]:
        began = time.perf_counter()
        try:
            report = kb.maintenance.compact()
        except errors.PairError:
            watching.note_compaction(kb.kb_id, time.perf_counter() - began, 0, is_good=False)
            raise
        if report.shards_before:
            watching.note_compaction(kb.kb_id, time.perf_counter() - began, report.conflicts, is_good=True)
        return dataclasses.asdict(report)

    def sweep(kb: KnowledgeBase) -> dict[str, Any]:
        report = kb.maintenance.sweep()
        watching.note_sweep(report)
        return dataclasses.asdict(report)

    def collect(kb: KnowledgeBase) -> dict[str, Any]:
        return dataclasses.asdict(kb.maintenance.collect())

    def prefetch(kb: KnowledgeBase) -> dict[str, Any]:
        report = kb.maintenance.prefetch(policy.prefetch_max_bytes, lambda: not prefetching.is_stopping)
        watching.note_prefetch(report)
        return dataclasses.asdict(report)

    prefetching = BackgroundJob(
        "prefetch", policy.prefetch_interval_seconds, lambda: _each(kbs, prefetch), at_once=False
    )
    jobs = [
        prefetching,
        BackgroundJob("compaction", policy.compaction_interval_seconds, lambda: _each(kbs, compact), at_once=False),
        BackgroundJob("gc", policy.gc_interval_seconds, lambda: _each(kbs, collect), at_once=False),
        BackgroundJob("sweep", policy.sweep_interval_seconds, lambda: _each(kbs, sweep), at_once=False),
    ]
    if policy.sync:
        jobs.insert(
            0, BackgroundJob("sync", settings.kb.runtime_refresh_tick_seconds, lambda: _synced(settings), at_once=True)
        )
    return [job for job in jobs if job.interval_seconds > 0]


def _synced(settings: Settings) -> dict[str, Any]:
    return SyncService(settings).sync_in_background().to_json()


def _each(kbs: OpenKbs, work: Callable[[KnowledgeBase], dict[str, Any]]) -> dict[str, Any]:
    """What it did with each KB. One that cannot be cared for keeps nobody from caring for the others."""
    done: dict[str, Any] = {}
    first: errors.PairError | None = None
    for kb_id, kb in kbs.opened().items():
        try:
            done[kb_id] = work(kb)
        except errors.NotFoundError:
            continue  # nothing was ever stored
        except errors.PairError as fault:
            first = first or fault
    if first is not None:
        raise first
    return done
