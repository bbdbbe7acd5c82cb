"""Facts about a KB that its manifest shows. This module imports nothing else of the engine."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pair.blobs.contract import BlobStore
    from pair.engine.format.manifest import Manifest
    from pair.engine.storage.shard_cache import ShardCache

_MANIFEST = ".duckdb.manifest.json"
_HISTORY = ".duckdb.history/"


@dataclass(frozen=True, slots=True)
class ManifestHead:
    """A manifest that is not verified."""

    stored_version: str
    """The store's version of the blob."""
    content: Mapping[str, Any]
    """The JSON; {} if it is damaged."""

    @property
    def number(self) -> int | None:
        number = self.content.get("version")
        return number if isinstance(number, int) else None

    @property
    def index_sha256(self) -> str:
        return str(self.content.get("index_sha256", ""))

    @property
    def shards(self) -> frozenset[str]:
        """Content hashes of the shards."""
        shards = self.content.get("shards")
        named = (shard for shard in (shards if isinstance(shards, list) else ()) if isinstance(shard, dict))
        return frozenset(str(shard.get("key")).rpartition("/")[2] for shard in named)


def list_kbs(store: "BlobStore") -> list[str]:
    """Return the names of all KBs in a store."""
    keys = (info.key for info in store.list(""))
    return sorted(key.removesuffix(_MANIFEST) for key in keys if key.endswith(_MANIFEST))


def peek(store: "BlobStore", kb_id: str) -> ManifestHead | None:
    """Return the head of the current manifest; None before the first write."""
    return _peek_at(store, f"{kb_id}{_MANIFEST}")


def peek_at_history(store: "BlobStore", kb_id: str) -> Iterator[ManifestHead]:
    """Yield the heads of the kept manifests."""
    for key in [info.key for info in store.list(f"{kb_id}{_HISTORY}")]:
        if (head := _peek_at(store, key)) is not None:
            yield head


def _peek_at(store: "BlobStore", key: str) -> ManifestHead | None:
    blob = store.get(key)
    if blob is None:
        return None
    try:
        content = json.loads(blob.data)
    except ValueError:
        content = {}
    return ManifestHead(blob.version, content if isinstance(content, dict) else {})


@dataclass(frozen=True, slots=True)
class EngineStats:
    kb_id: str
    documents: int
    chunks: int
    shards: int
    size_bytes: int
    deleted_documents: int
    """Number of deleted documents that use storage until compaction."""
    manifest_version: int
    """Number of the current manifest; 0 before the first write."""
    embedder: str
    dimension: int
    cache: Mapping[str, int] = field(default_factory=dict)
    compaction_debt: str = ""

    @staticmethod
    def empty(kb_id: str) -> "EngineStats":
        """Return the figures of a KB before its first write."""
        return EngineStats(kb_id, 0, 0, 0, 0, 0, 0, "", 0)

    @staticmethod
    def of(manifest: "Manifest", cache: "ShardCache", compaction_debt: str) -> "EngineStats":
        return EngineStats(
            kb_id=manifest.kb_id,
            documents=manifest.documents,
            chunks=manifest.rows,
            shards=len(manifest.shards),
            size_bytes=manifest.size_bytes,
            deleted_documents=sum(shard.gone for shard in manifest.shards),
            manifest_version=manifest.number,
            embedder=manifest.embedder,
            dimension=manifest.dimension,
            cache={name: getattr(cache, name) for name in ("hits", "misses", "evictions", "bytes_fetched")}
            | {"size_bytes": cache.size_bytes()},
            compaction_debt=compaction_debt,
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
