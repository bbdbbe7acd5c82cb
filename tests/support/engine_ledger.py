"""The expected content of a KB for each manifest, independent of the engine; and a store that compares both.

The ledger knows the change behind each commit id. When a manifest is published, the ledger computes the expected
content, reads every shard that the manifest names without faults, and compares.
"""

import contextlib
import functools
import hashlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from pair.blobs.contract import Version
from pair.blobs.local import MemoryStore
from pair.clock import Clock
from pair.engine.format.array_file import ArrayFile
from pair.engine.format.manifest import Manifest, ShardRef, from_bytes, manifest_key, shards_prefix
from pair.engine.format.shard import IdFile, SearchFile
from pair.engine.format.vectors import compute_distances
from pair.engine.write import chunking

DIMENSION = 8
CHUNK_SIZE_BYTES = 50


class HashEmbedder:
    """An embedder that derives a vector from the hash of a text: similar texts have unrelated vectors."""

    name = "hash"
    dimension = DIMENSION
    hybrid_weight = 0.5

    def fit(self, query: str) -> float:
        return 1.0

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        return np.array([vector_of(text) for text in texts], np.float32).reshape(-1, DIMENSION)

    def embed_queries(self, texts: Sequence[str]) -> np.ndarray:
        return self.embed(texts)


@functools.cache
def vector_of(text: str) -> np.ndarray:
    numbers = np.frombuffer(hashlib.sha256(text.encode()).digest()[:DIMENSION], np.uint8).astype(np.float32) - 127.5
    return numbers / np.linalg.norm(numbers)


@dataclass(frozen=True)
class Fact:
    """The expected state of a document."""

    text: str
    owner: str
    kind: int
    """The value of `kind` in the metadata."""


Contents = Mapping[str, Fact]
FoundChunk = tuple[float, str, str, str]
"""A chunk in search results: distance, document, chunk, text."""


def nearest_chunks(contents: Contents, query: np.ndarray, limit: int) -> list[FoundChunk]:
    """Return the chunks that an exact search must return."""
    found = []
    for name, fact in contents.items():
        for number, chunk in enumerate(chunking.split(fact.text, CHUNK_SIZE_BYTES)):
            distance = float(compute_distances(vector_of(chunk.text)[None, :], query)[0])
            found.append((distance, name, number, chunk.text))
    return [(distance, name, f"{name}#{number}", text) for distance, name, number, text in sorted(found)[:limit]]


@dataclass(eq=False)
class Change:
    """The effect of one call on the content, once it is published."""

    title: str
    apply: Callable[[Contents], Contents]
    writes_documents: bool = True
    is_afterthought: bool = False
    """Whether the call has finished its work, so that this change must not fail."""
    published: list[int] = field(default_factory=list)
    """Numbers of the manifests that published it: at most one for a change of documents."""
    must_not_land: str = ""
    """The error that the caller received, if that error means that nothing was written."""


@dataclass
class Ledger:
    """The expected history of a KB. `history[n]`: the content of manifest n."""

    kb_id: str
    history: list[Contents] = field(default_factory=lambda: [{}])
    changes: dict[str, Change] = field(default_factory=dict)
    """The changes by commit id."""
    commits: set[str] = field(default_factory=set)
    manifest: Manifest | None = None
    on_note: Callable[[str], None] = lambda text: None

    @property
    def number(self) -> int:
        """Return the number of the current manifest; 0 before the first."""
        return len(self.history) - 1

    @property
    def contents(self) -> Contents:
        return self.history[-1]

    def live_keys(self) -> set[str]:
        shards = self.manifest.shards if self.manifest else ()
        return {shard.key(role) for shard in shards for role in shard.files}

    def enter(self, manifest: Manifest) -> None:
        change = self.changes[manifest.commit_id]
        self.on_note(f"manifest {manifest.number}: {change.title}, {manifest.commit_id}")
        assert manifest.number == self.number + 1, f"manifest {manifest.number} follows manifest {self.number}"
        assert manifest.commit_id not in self.commits, f"commit {manifest.commit_id} was published twice"
        assert not change.must_not_land, f"{change.title} landed after its caller got {change.must_not_land}"
        assert not (change.writes_documents and change.published), f"{change.title} landed twice"
        self.commits.add(manifest.commit_id)
        change.published.append(manifest.number)
        self.history.append(change.apply(self.contents))
        self.manifest = manifest


class WatchedStore(MemoryStore):
    """A store that compares each publication and deletion with the ledger."""

    def __init__(self, clock: Clock, ledger: Ledger, on_fault: Callable[[AssertionError], None]) -> None:
        super().__init__(clock)
        self.ledger = ledger
        self._on_fault = on_fault
        self._verified: dict[str, Version] = {}

    def put_if(self, key: str, data: bytes, version: Version) -> Version:
        answer = super().put_if(key, data, version)
        self._watch(key, data)
        return answer

    def create(self, key: str, data: bytes) -> Version:
        answer = super().create(key, data)
        self._watch(key, data)
        return answer

    def put(self, key: str, data: bytes) -> Version:
        answer = super().put(key, data)
        self._watch(key, data)
        return answer

    def delete(self, key: str) -> None:
        super().delete(key)
        if key in self.ledger.live_keys():
            self._on_fault(AssertionError(f"{key} was deleted while the manifest names it"))

    def audit(self) -> None:
        """Check that the store holds the content of the ledger, in files that verify, and each document once."""
        manifest = self.ledger.manifest
        found: dict[str, Fact] = {}
        for shard in manifest.shards if manifest else ():
            for doc, (name, fact) in enumerate(self._documents_of(shard)):
                if shard.tombstones is None or not shard.tombstones[doc]:
                    assert name not in found, f"{name} is there twice"
                    found[name] = fact
        _assert_equal(found, self.ledger.contents)

    def shard_keys(self) -> set[str]:
        return {blob.key for blob in self.list(shards_prefix(self.ledger.kb_id))}

    def _watch(self, key: str, data: bytes) -> None:
        if key != manifest_key(self.ledger.kb_id):
            return
        try:
            self.ledger.enter(from_bytes(data, key))
            self.audit()
        except AssertionError as fault:
            self._on_fault(fault)
            raise

    def _documents_of(self, shard: ShardRef) -> "tuple[tuple[str, Fact], ...]":
        blobs = {role: self.get(shard.key(role)) for role in shard.files}
        for role, blob in blobs.items():
            key = shard.key(role)
            assert blob is not None, f"{key} is named and not there"
            if self._verified.get(key) != blob.version:
                assert hashlib.sha256(blob.data).hexdigest() == shard.files[role].sha256, f"{key} does not verify"
                self._verified[key] = blob.version
        ids, search = (blob.data if (blob := blobs[role]) else b"" for role in ("ids", "search"))
        return _read_documents(ids, search)


@functools.lru_cache(maxsize=512)
def _read_documents(ids: bytes, search: bytes) -> tuple[tuple[str, Fact], ...]:
    with _as_file(ids) as ids_path, _as_file(search) as search_path:
        directory, content = IdFile(ArrayFile.open(ids_path)), SearchFile(ArrayFile.open(search_path), "a/b")
        found = {}
        for listed in directory.after(""):
            header = content.header(listed.doc)
            assert (header.id, header.owner) == (listed.id, listed.owner)
            found[listed.doc] = (header.id, Fact(content.text(listed.doc), header.owner, header.metadata["kind"]))
    assert sorted(found) == list(range(len(content.docs)))
    return tuple(found[doc] for doc in sorted(found))


@contextlib.contextmanager
def _as_file(content: bytes) -> Iterator[Path]:
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        yield Path(file.name)


def _assert_equal(found: Contents, expected: Contents) -> None:
    differing = sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name))
    shown = [f"{name}: found {found.get(name)}, expected {expected.get(name)}" for name in differing]
    assert not shown, "the shards do not hold what was written: " + "; ".join(shown)
