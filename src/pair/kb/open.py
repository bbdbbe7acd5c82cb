"""Opening a KB: its store, leases, cache and embedder."""

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
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pair import errors, files, folders
from pair.clock import Clock, SystemClock, pause
from pair.kb.embedders import choose_embedder
from pair.settings import Settings
from pair.sync.contract import Documents

if TYPE_CHECKING:
    from pair.ai.contract import Embedder, Reranker
    from pair.blobs.contract import BlobStore, Leases
    from pair.kb.kb import KnowledgeBase
    from pair.kb.librarians import KbLibrarians
    from pair.kb.loaders import DocumentLoader
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
    """A KB by name. `store`: an address as in `engine.store`, or a store. Nothing is made before the first write.

    `at`: as it was in this version, by number, else by the version of the package installed then; only for reading.
    `librarians`: whom `ask` may ask besides those of the configuration and the KB's own.
    """
    from pair.ai.caching_embedder import CachingEmbedder  # noqa: PLC0415 - the engine is loaded when a KB is opened
    from pair.blobs.cas_check import refuse_without_compare_and_swap  # noqa: PLC0415
    from pair.engine.rules import check_kb_id  # noqa: PLC0415
    from pair.engine.storage.manifest_store import ManifestStore  # noqa: PLC0415
    from pair.engine.storage.shard_cache import ShardCache  # noqa: PLC0415
    from pair.engine.write.writer import EngineContext  # noqa: PLC0415
    from pair.kb.kb import KnowledgeBase  # noqa: PLC0415
    from pair.kb.maintenance import KbCore  # noqa: PLC0415

    check_kb_id(kb_id)
    settings, clock = settings or Settings.load(), SystemClock()
    engine = settings.engine
    address = engine.store if store is None else store
    blobs = blob_store(address, settings, clock) if isinstance(address, str) else address
    context = EngineContext(
        kb_id=kb_id,
        policy=engine,
        publication=ManifestStore(
            blobs,
            kb_id,
            before_first_write=lambda: refuse_without_compare_and_swap(blobs, f"{kb_id}.duckdb.", new_id()),
            on_step=on_step,
            keeps_versions=engine.keeps_versions,
            at=None if at is None else str(at),
        ),
        cache=ShardCache(
            blobs,
            _cache_folder(engine.cache_dir, blobs.address),
            clock,
            max_bytes=engine.cache_max_bytes,
            ttl_seconds=engine.cache_ttl_seconds,
            reads_pieces=blobs.address.startswith(OBJECT_STORES),
        ),
        leases=leases_for(settings, blobs, clock),
        clock=clock,
        new_id=new_id,
        pause=pause_before,
        on_step=on_step,
    )
    embedding = CachingEmbedder(embedder or choose_embedder(settings))
    core = KbCore(context, blobs, embedding, grapher(settings), _reranker(settings))

    def make_librarians(kb: KnowledgeBase) -> "KbLibrarians":
        from pair.kb.librarians import KbLibrarians  # noqa: PLC0415 - loads asyncio

        return KbLibrarians(kb, settings, lambda other: open_kb(other, store=blobs, settings=settings), librarians)

    return KnowledgeBase(core, sources, make_librarians)


@contextlib.contextmanager
def temporary_kb(settings: Settings) -> "Iterator[KnowledgeBase]":
    """A KB by these settings in a folder of its own, for as long as the context lasts."""
    folder = tempfile.mkdtemp(prefix="pair-kb-")
    # Also for those who interrupt the removal below.
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


def grapher(settings: Settings) -> "Grapher | None":
    if settings.engine.graph == "off":
        return None
    if settings.engine.graph == "text":
        from pair.text.entity_rules import TextGrapher  # noqa: PLC0415 - see the module's first lines

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
    from pair.ai.fastembed_reranker import FastembedReranker  # noqa: PLC0415 - see the module's first lines

    return FastembedReranker(settings.engine.reranker_model)


def new_id() -> str:
    return uuid.uuid4().hex


def pause_before(attempt: int) -> None:
    """The square of the attempt times 10 ms, and up to as much again, so that those who collided do not do so again."""
    seconds = min(attempt * attempt * 0.010, _LONGEST_PAUSE_SECONDS)
    pause(seconds * (1 + random.random()))  # noqa: S311 - no secret


def blob_store(address: str, settings: Settings, clock: Clock) -> "BlobStore":
    if address == "memory:":
        from pair.blobs.memory import MemoryStore  # noqa: PLC0415 - see the module's first lines

        return MemoryStore(clock)
    if address.startswith(OBJECT_STORES):
        if importlib.util.find_spec("obstore") is None:
            raise errors.settings_invalid(
                "engine.store", f"{address} needs an extra", hints=["pip install 'pair-kb[s3]'"]
            )
        from pair.blobs.s3 import ObjectStore, ObjectStoreOptions  # noqa: PLC0415

        policy = settings.engine
        return ObjectStore(address, ObjectStoreOptions(endpoint_url=policy.s3_endpoint, region=policy.s3_region))
    from pair.blobs.local import LocalStore  # noqa: PLC0415

    return LocalStore(files.expanded(address).absolute())


def _cache_folder(cache_dir: str, address: str) -> Path:
    """One for each store: a KB of the same name in another store is another KB. Memory is forgotten, and so is this."""
    if address == "memory:":
        folder = tempfile.mkdtemp(prefix="pair-cache-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        return folders.resolve(Path(folder)) / "shards"
    return files.expanded(cache_dir).absolute()


def leases_for(settings: Settings, store: "BlobStore", clock: Clock) -> "Leases":
    policy = settings.engine
    holder = f"{socket.gethostname()}, process {os.getpid()}"
    kind = kind_of_lease(settings, store.address)
    if kind == "memory":
        from pair.blobs.leases import MemoryLeases  # noqa: PLC0415 - see the module's first lines

        return MemoryLeases(holder=holder, new_token=new_id, clock=clock)
    if kind == "file":
        from pair.blobs.file_leases import FileLeases  # noqa: PLC0415

        return FileLeases(Path(store.address) / ".pair-store" / "leases", holder=holder, new_token=new_id)
    if kind == "blob":
        from pair.blobs.blob_leases import BlobLeases  # noqa: PLC0415

        return BlobLeases(store, holder=holder, new_token=new_id, clock=clock)
    if not policy.redis_url:
        raise errors.settings_invalid("engine.lease", "redis needs an address", hints=["Set engine.redis_url"])
    if importlib.util.find_spec("redis") is None:
        raise errors.settings_invalid("engine.lease", "redis needs an extra", hints=["pip install 'pair-kb[redis]'"])
    from pair.blobs.redis_leases import RedisLeases  # noqa: PLC0415

    return RedisLeases(policy.redis_url, holder=holder, new_token=new_id, clock=clock)


def kind_of_lease(settings: Settings, address: str) -> str:
    """`address`: of the store."""
    if settings.engine.lease != "auto":
        return settings.engine.lease
    if settings.engine.redis_url:
        return "redis"
    if address == "memory:":
        return "memory"
    return "blob" if address.startswith(OBJECT_STORES) else "file"


def inputs(on_skip: Callable[[str, str], None]) -> "DocumentLoader":
    """Reads files, folders and JSON lines as documents."""
    from pair.kb.loaders import DocumentLoader  # noqa: PLC0415 - see the module's first lines

    return DocumentLoader(document_loader(), on_skip)


def document_loader() -> Documents | None:
    """None when the extra `documents` is not installed."""
    if importlib.util.find_spec("markitdown") is None:
        return None
    return _document_process()


@functools.cache
def _document_process() -> Documents:
    """One for all: starting it costs more than most documents."""
    from pair.sync.document_process import DocumentProcess  # noqa: PLC0415 - only for those who read documents

    return DocumentProcess()
