"""The list of live shards, its JSON, and every key in the store.

Invariants
    What an older pair wrote stays readable; what a newer one wrote is refused, not guessed at.
    No two manifests have equal bytes: the commit id sees to it, and with it a version names one manifest only.
"""

import base64
import datetime
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from pair import errors

SCHEMA_VERSION = 1
LAYOUT = "duckdb_shard_files"
_KEPT_COMMITS = 64

FileRole = Literal["rows", "search", "ids", "keywords", "graph"]
_REQUIRED_ROLES: tuple[FileRole, ...] = ("rows", "search", "ids")
"""A shard that is older has no keywords, and one whose documents name nothing has no graph."""
_SUFFIXES: dict[FileRole, str] = {
    "rows": ".duckdb",
    "search": ".search",
    "ids": ".ids",
    "keywords": ".keywords",
    "graph": ".graph",
}


# ── keys ───────────────────────────────────────────────────────────────────────────────────────────


def manifest_key(kb_id: str) -> str:
    return f"{kb_id}.duckdb.manifest.json"


def older_keys(kb_id: str) -> tuple[str, str]:
    """Of the layout before shards: one database, and a snapshot of it."""
    return f"{kb_id}.duckdb", f"{kb_id}.snapshot.json"


def shards_prefix(kb_id: str) -> str:
    return f"{kb_id}.duckdb.shards/"


def builds_prefix(kb_id: str) -> str:
    """Of what says which shards a build has made, and no manifest names yet."""
    return f"{kb_id}.duckdb.builds/"


def lease_name(kb_id: str) -> str:
    return f"{kb_id}.duckdb"


def file_name(shard_id: str, role: FileRole) -> str:
    return shard_id + _SUFFIXES[role]


# ── values ─────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class ShardFile:
    size_bytes: int
    sha256: str


@dataclass(frozen=True, eq=False)
class ShardRef:
    """One immutable shard, and which of its documents are gone."""

    shard_id: str
    folder: str
    """Key of its folder, without the file's name."""
    files: Mapping[FileRole, ShardFile]
    rows: int
    documents: int
    run: str
    """Shards of one run share one clustering. Empty: arrived as it came, and is always asked."""
    centroids: npt.NDArray[np.float32]
    radii: tuple[float, ...]
    graph_available: bool
    created_at: str
    tombstones: npt.NDArray[np.bool_] | None = None
    """By number of the document in the shard; None when none is gone."""

    def key(self, role: FileRole) -> str:
        return f"{self.folder}/{file_name(self.shard_id, role)}"

    @property
    def size_bytes(self) -> int:
        return sum(each.size_bytes for each in self.files.values())

    @property
    def gone(self) -> int:
        return 0 if self.tombstones is None else int(np.count_nonzero(self.tombstones))

    @property
    def live_documents(self) -> int:
        return self.documents - self.gone

    @property
    def live_rows(self) -> int:
        """About; a document that is gone counts for the average of its shard."""
        return round(self.rows * self.live_documents / self.documents) if self.documents else 0

    @property
    def tombstone_ratio(self) -> float:
        return self.gone / self.documents if self.documents else 0.0

    def without(self, numbers: Sequence[int] | npt.NDArray[np.int64]) -> "ShardRef":
        """The same shard with these documents gone."""
        gone = np.zeros(self.documents, np.bool_) if self.tombstones is None else self.tombstones.copy()
        gone[np.asarray(numbers, dtype=np.int64)] = True
        return replace(self, tombstones=gone)


@dataclass(frozen=True, slots=True)
class DroppedShard:
    folder: str
    dropped_at: str


@dataclass(frozen=True, eq=False)
class Manifest:
    kb_id: str
    number: int
    """Of this manifest; each one's is greater by one than that of the one it replaced."""
    commit_id: str
    created_at: str
    embedder: str
    dimension: int
    shards: tuple[ShardRef, ...] = ()
    dropped: tuple[DroppedShard, ...] = ()
    """Shards that an earlier manifest named, and garbage collection has not taken yet."""
    collections: int = 0
    """How often garbage was collected: what was uploaded before the last time may be gone."""
    recent_commits: tuple[str, ...] = field(default=())
    """The last ones, newest first: so that a writer whose answer was lost finds its own."""
    hashed_as: str = ""
    """The embedder that content hashes name, where it is not `embedder`: hashes stay when vectors are made anew."""

    @property
    def documents(self) -> int:
        return sum(shard.live_documents for shard in self.shards)

    @property
    def rows(self) -> int:
        return sum(shard.live_rows for shard in self.shards)

    @property
    def size_bytes(self) -> int:
        return sum(shard.size_bytes for shard in self.shards)

    @property
    def hashing_embedder(self) -> str:
        return self.hashed_as or self.embedder

    def holds_commit(self, commit_id: str) -> bool:
        return commit_id == self.commit_id or commit_id in self.recent_commits

    def succeeded_by(self, commit_id: str, now: datetime.datetime, shards: Sequence[ShardRef]) -> "Manifest":
        """The next manifest, with these shards. One without live documents is named no longer."""
        at = now.astimezone(datetime.UTC).isoformat()
        kept = tuple(shard for shard in shards if shard.live_documents)
        folders = {shard.folder for shard in kept}
        dropped = [DroppedShard(shard.folder, at) for shard in self.shards if shard.folder not in folders]
        return replace(
            self,
            number=self.number + 1,
            commit_id=commit_id,
            created_at=at,
            shards=kept,
            dropped=(*self.dropped, *dropped),
            recent_commits=(self.commit_id, *self.recent_commits)[:_KEPT_COMMITS] if self.number else (),
        )

    def re_embedded_by(
        self, commit_id: str, now: datetime.datetime, shards: Sequence[ShardRef], embedder: str, dimension: int
    ) -> "Manifest":
        """The next manifest, with shards whose vectors are all of another embedder."""
        after = self.succeeded_by(commit_id, now, shards)
        return replace(after, embedder=embedder, dimension=dimension, hashed_as=self.hashing_embedder)

    def after_collection(self, commit_id: str, now: datetime.datetime, taken: frozenset[str]) -> "Manifest":
        """The next manifest, once these folders are garbage for good."""
        after = self.succeeded_by(commit_id, now, self.shards)
        kept = tuple(each for each in after.dropped if each.folder not in taken)
        return replace(after, dropped=kept, collections=self.collections + 1)


def no_manifest(kb_id: str, embedder: str, dimension: int) -> Manifest:
    """What the first write builds on."""
    return Manifest(kb_id=kb_id, number=0, commit_id="", created_at="", embedder=embedder, dimension=dimension)


# ── JSON ───────────────────────────────────────────────────────────────────────────────────────────


def to_bytes(manifest: Manifest) -> bytes:
    value = {
        "schema_version": SCHEMA_VERSION,
        "layout": LAYOUT,
        "kb_id": manifest.kb_id,
        "version": manifest.number,
        "parent_version": manifest.number - 1,
        "commit_id": manifest.commit_id,
        "created_at": manifest.created_at,
        "embedder": {
            "name": manifest.embedder,
            "dimension": manifest.dimension,
            **({} if manifest.hashing_embedder == manifest.embedder else {"hashed_as": manifest.hashed_as}),
        },
        "documents": manifest.documents,
        "chunks": manifest.rows,
        "total_size_bytes": manifest.size_bytes,
        "collections": manifest.collections,
        "recent_commits": list(manifest.recent_commits),
        "shards": [shard_to_json(shard) for shard in manifest.shards],
        "dropped": [{"key": each.folder, "dropped_at": each.dropped_at} for each in manifest.dropped],
    }
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def from_bytes(content: bytes, key: str) -> Manifest:
    """Raises E207 for one that is damaged or newer than this pair."""
    try:
        value = json.loads(content)
        if value["schema_version"] > SCHEMA_VERSION or value["layout"] != LAYOUT:
            raise errors.stored_data_damaged(
                key, f"it has schema {value['schema_version']} ({value['layout']}), which is newer than this pair"
            )
        return Manifest(
            kb_id=value["kb_id"],
            number=value["version"],
            commit_id=value["commit_id"],
            created_at=value["created_at"],
            embedder=value["embedder"]["name"],
            dimension=value["embedder"]["dimension"],
            shards=tuple(shard_from_json(each, value["embedder"]["dimension"]) for each in value["shards"]),
            dropped=tuple(DroppedShard(each["key"], each["dropped_at"]) for each in value["dropped"]),
            collections=value["collections"],
            recent_commits=tuple(value["recent_commits"]),
            hashed_as=value["embedder"].get("hashed_as", ""),
        )
    except (ValueError, KeyError, TypeError, AttributeError, zlib.error) as fault:
        raise errors.stored_data_damaged(key, "it is not a manifest that can be read") from fault


def shard_to_json(shard: ShardRef) -> dict[str, Any]:
    return {
        "shard_id": shard.shard_id,
        "key": shard.folder,
        "files": {role: {"size_bytes": each.size_bytes, "sha256": each.sha256} for role, each in shard.files.items()},
        "vector_rows": shard.rows,
        "documents": shard.documents,
        "run": shard.run,
        "centroids": base64.b64encode(shard.centroids.astype("<f2").tobytes()).decode(),
        "radii": list(shard.radii),
        "graph_available": shard.graph_available,
        "tombstone_count": shard.gone,
        "tombstones": _bits_to_text(shard.tombstones) if shard.gone else "",
        "created_at": shard.created_at,
    }


def shard_from_json(value: Mapping[str, Any], dimension: int) -> ShardRef:
    centroids = np.frombuffer(base64.b64decode(value["centroids"]), dtype="<f2").astype(np.float32)
    return ShardRef(
        shard_id=value["shard_id"],
        folder=value["key"],
        files=_files_from_json(value["files"]),
        rows=value["vector_rows"],
        documents=value["documents"],
        run=value["run"],
        centroids=centroids.reshape(-1, dimension),
        radii=tuple(value["radii"]),
        graph_available=value["graph_available"],
        created_at=value["created_at"],
        tombstones=_bits_from_text(value["tombstones"], value["documents"]) if value["tombstones"] else None,
    )


def _files_from_json(value: Mapping[str, Any]) -> dict[FileRole, ShardFile]:
    """Those that this pair knows; each shard has the first ones, and not each has the others."""
    return {role: ShardFile(**value[role]) for role in _SUFFIXES if role in _REQUIRED_ROLES or role in value}


def _bits_to_text(bits: npt.NDArray[np.bool_] | None) -> str:
    packed = b"" if bits is None else np.packbits(bits, bitorder="little").tobytes()
    return base64.b64encode(zlib.compress(packed)).decode()


def _bits_from_text(text: str, count: int) -> npt.NDArray[np.bool_]:
    packed = np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype=np.uint8)
    return np.unpackbits(packed, count=count, bitorder="little").astype(np.bool_)
