"""Small real parts for an engine: settings for a folder, and an embedder and a store that count their calls."""

import dataclasses
import json
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pair.ai.caching_embedder import CachingEmbedder
from pair.ai.contract import Embedder
from pair.ai.ngram import NgramEmbedder
from pair.blobs.contract import BlobStore
from pair.blobs.local import LocalStore
from pair.engine.query.search import Search
from pair.engine.query.shard_access import ShardReader
from pair.engine.settings import EngineSettings
from pair.engine.summary import EngineStats
from pair.engine.write.commit import EngineContext
from pair.kb.kb import KnowledgeBase
from pair.kb.open import KbCore, KbEngine, open_kb
from pair.settings import Settings
from pair.testing.faulty_store import Fault, FaultyStore
from pair.values import Document, Hit

if TYPE_CHECKING:
    from pair.client import RemoteKnowledgeBase

DIMENSION = 16

MANY_SHARDS: dict[str, Any] = {
    "shard_trigger_vector_rows": 12,
    "max_vector_rows_per_shard": 5,
    "ingest_batch_documents": 7,
    "compaction_min_shard_count": 3,
}
"""Settings under which a few dozen documents make many shards in several runs."""


def engine_settings(folder: Path, **changes: Any) -> Settings:
    policy = EngineSettings(
        graph="off",
        chunker="seed",
        store=str(folder / "store"),
        cache_dir=str(folder / "cache"),
        embedder="ngram",
        embedding_dimension=DIMENSION,
        keep_versions=0,  # dropped shards are garbage at once; tests of versions set how many versions to keep
    )
    return Settings(engine=dataclasses.replace(policy, **changes))


def make_core(context: EngineContext, store: BlobStore, embedder: Embedder) -> KbCore:
    """Compose a KB from the parts of a test. It makes graphs if the settings of the context ask for them."""
    reader = ShardReader(context.cache, context.settings.query_shard_parallelism)
    search = Search(context.manifests, reader, context.settings, context.clock)
    return KbCore(
        context.kb_id,
        Settings(engine=context.settings),
        store,
        CachingEmbedder(embedder),
        at="past" if context.manifests.is_past else None,
        clock=context.clock,
        _engine=KbEngine(store, context.manifests, context.cache, search),
        _context=context,
    )


class CountingEmbedder:
    """The n-gram embedder, which records the texts that it embeds."""

    def __init__(self, dimension: int = DIMENSION, name: str = "") -> None:
        self._embedder = NgramEmbedder(dimension)
        self._lock = threading.Lock()
        self.name = name or self._embedder.name
        self.texts: list[str] = []

    @property
    def dimension(self) -> int:
        return self._embedder.dimension

    @property
    def hybrid_weight(self) -> float:
        return self._embedder.hybrid_weight

    def fit(self, query: str) -> float:
        return self._embedder.fit(query)

    def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        with self._lock:
            self.texts += texts
        return self._embedder.embed(texts)

    def embed_queries(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        return self.embed(texts)


class MirroredEmbedder(CountingEmbedder):
    """The opposite of the n-gram embedder: the same dimension, and every vector negated."""

    def __init__(self, dimension: int = DIMENSION) -> None:
        super().__init__(dimension, f"mirrored-{dimension}-v1")

    def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        return -super().embed(texts)


class CountedRequests:
    """A plan without faults that counts the requests of each kind."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def __call__(self, operation: str, _key: str) -> Fault:
        self.counts[operation] += 1
        return "none"


def counted(store: BlobStore) -> tuple[FaultyStore, CountedRequests]:
    requests = CountedRequests()
    return FaultyStore(store, requests), requests


class Ground:
    """A folder with a store and a cache, and the KBs on them."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        self.folder = folder
        self.settings = engine_settings(folder, **changes)
        self.store = folder / "store"
        self.cache = folder / "cache"

    def open(self, kb_id: str = "default", **more: Any) -> KnowledgeBase:
        return open_kb(kb_id, settings=self.settings, **more)

    def fill(self, documents: Iterable[Document], kb_id: str = "default", **more: Any) -> None:
        """Open a KB, store documents, and close it."""
        with self.open(kb_id, **more) as kb:
            kb.upsert(documents)

    def with_policy(self, **changes: Any) -> "Ground":
        engine = dataclasses.replace(self.settings.engine, **changes)
        other = Ground(self.folder)
        other.settings = dataclasses.replace(self.settings, engine=engine)
        return other

    def blobs(self) -> LocalStore:
        return LocalStore(self.store)

    def stored_files(self, suffix: str) -> list[Path]:
        return sorted(self.store.rglob(f"*{suffix}"))

    def cached_files(self, suffix: str) -> list[Path]:
        return sorted(self.cache.rglob(f"*{suffix}"))


def manifest_of(ground: Ground, kb_id: str = "default") -> dict[str, Any]:
    value: dict[str, Any] = json.loads(read_blob(ground.blobs(), f"{kb_id}.duckdb.manifest.json"))
    return value


def folders_of(ground: Ground) -> set[str]:
    return {blob.key.rpartition("/")[0] for blob in ground.blobs().list("default.duckdb.shards/")}


def live_folders_of(ground: Ground) -> set[str]:
    return {shard["key"] for shard in manifest_of(ground)["shards"]}


def numbered(count: int, *, begin: int = 0) -> list[Document]:
    """Return distinct documents with metadata to filter by."""
    return [
        Document(
            f"doc-{number:04}",
            f"Text number {number} is about {_SUBJECTS[number % len(_SUBJECTS)]} and item{number}.",
            title=f"Title {number}",
            metadata={"number": number, "subject": _SUBJECTS[number % len(_SUBJECTS)], "odd": bool(number % 2)},
        )
        for number in range(begin, begin + count)
    ]


_SUBJECTS = ("rivers", "bridges", "castles", "gardens", "engines")


def placed(document_id: str, vector: Sequence[float], **metadata: Any) -> Document:
    """Return a document with a given vector."""
    return Document(document_id, f"text of {document_id}", metadata=metadata, vector=vector)


def random_vectors(count: int, dimension: int = DIMENSION, seed: int = 0) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=(count, dimension)).astype(np.float32)


def stats_of(kb: "KnowledgeBase | RemoteKnowledgeBase") -> EngineStats:
    """Return the statistics of an existing KB."""
    return kb.stats()


def read_blob(store: BlobStore, key: str) -> bytes:
    """Return the content of an existing blob."""
    blob = store.get(key)
    assert blob is not None, key
    return blob.data


def ids_of(hits: Iterable[Hit]) -> list[str]:
    return [hit.document_id for hit in hits]


def all_ids(kb: KnowledgeBase, page: int = 3) -> list[str]:
    """Return the ids of all documents, read page by page."""
    found: list[str] = []
    while some := kb.documents(after=found[-1] if found else "", limit=page):
        found += [each.id for each in some]
    return found


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    replace_content(path, bytes(content))


def truncate(path: Path) -> None:
    replace_content(path, path.read_bytes()[:-7])


def replace_content(path: Path, content: bytes) -> None:
    """Overwrite the content in place, as a faulty disk or an editor does."""
    path.chmod(0o600)
    path.write_bytes(content)
    os.utime(path)


class Once:
    """A hook that calls a function when a step is reported for the first time."""

    def __init__(self, step: str) -> None:
        self._step = step
        self.act: Callable[[], object] = lambda: None

    def __call__(self, step: str) -> None:
        if step == self._step:
            act, self.act = self.act, lambda: None
            act()
