"""Manifests, their JSON, and every key of a KB in the store.

Invariants
    A manifest of a newer pair is refused.
    Each manifest has its own commit id, so no two have equal bytes: a version of the blob identifies one manifest.
    The last field of a manifest is the SHA-256 of all bytes before it. A manifest with a wrong hash is refused.
"""

import datetime
import hashlib
import json
import weakref
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, get_args

import msgspec
import numpy as np
import numpy.typing as npt

from pair import errors
from pair.engine.format.array_file import Count, ShardFile, decode_json
from pair.values import check_key

SCHEMA_VERSION = 1
LAYOUT = "duckdb_shard_files"
_KEPT_COMMITS = 64
_MOST_ROWS = 2**28
"""Maximum number of rows in a shard: more than pair writes, and few enough for one flag each in memory."""

FileRole = Literal["rows", "search", "ids", "keywords", "graph"]


# ── keys ───────────────────────────────────────────────────────────────────────────────────────────


def manifest_key(kb_id: str) -> str:
    return f"{kb_id}.duckdb.manifest.json"


def older_keys(kb_id: str) -> tuple[str, str]:
    """Return the keys of the older layout without shards: one database and its snapshot."""
    return f"{kb_id}.duckdb", f"{kb_id}.snapshot.json"


def first_write_key(kb_id: str) -> str:
    """Return the key of the marker that exists from the first upload of a new KB until its first manifest."""
    return f"{kb_id}.duckdb.first-write"


def shards_prefix(kb_id: str) -> str:
    return f"{kb_id}.duckdb.shards/"


def builds_prefix(kb_id: str) -> str:
    """Return the prefix of the records of shards that no manifest names yet."""
    return f"{kb_id}.duckdb.builds/"


def versions_prefix(kb_id: str) -> str:
    """Return the prefix of the copies of manifests. Some servers do not list keys below `….versions/`."""
    return f"{kb_id}.duckdb.history/"


def version_key(kb_id: str, number: int, commit_id: str) -> str:
    """Return the key of a copy. Keys sort by number; the commit distinguishes manifests with equal numbers."""
    return f"{versions_prefix(kb_id)}{number:010}-{commit_id}.json"


def version_in_key(key: str) -> tuple[int, str] | None:
    """Return the number and the commit in the key of a copy; None for any other key."""
    number, mark, commit_id = key.rpartition("/")[2].removesuffix(".json").partition("-")
    return (int(number), commit_id) if mark and number.isascii() and number.isdigit() else None


def clock_key(kb_id: str) -> str:
    """Return the key whose modification time is the store's clock. Listing its folder lists nothing else."""
    return f"{kb_id}.duckdb.clock/now"


def lease_name(kb_id: str) -> str:
    return f"{kb_id}.duckdb"


def file_name(shard_id: str, role: FileRole) -> str:
    return f"{shard_id}.{'duckdb' if role == 'rows' else role}"


def hash_files(files: "Mapping[FileRole, ShardFile]") -> str:
    """Return the hash of all files of a shard, which names its folder."""
    lines = "".join(f"{role} {file.sha256} {file.size_bytes}\n" for role, file in files.items())
    return hashlib.sha256(lines.encode()).hexdigest()


# ── values ─────────────────────────────────────────────────────────────────────────────────────────


_RowCount = Annotated[int, msgspec.Meta(ge=0, le=_MOST_ROWS)]


@dataclass(frozen=True, eq=False)
class ShardRef:
    """An immutable shard, and flags of its deleted documents."""

    shard_id: str
    folder: str
    """Key of the shard's folder."""
    files: Mapping[FileRole, ShardFile]
    rows: int
    documents: int
    run: str
    """The run: shards of one run share one clustering. Empty for an unclustered shard, which every query searches."""
    centroids: npt.NDArray[np.float32]
    radii: tuple[float, ...]
    graph_available: bool
    created_at: str
    tombstones: npt.NDArray[np.bool_] | None = None
    """A flag for each document, by its number in the shard; None when none is deleted."""
    origin: str = ""
    """Name of the package that contained the shard; empty for a shard that this KB built."""

    def key(self, role: FileRole) -> str:
        return f"{self.folder}/{file_name(self.shard_id, role)}"

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files.values())

    @property
    def gone(self) -> int:
        return 0 if self.tombstones is None else int(np.count_nonzero(self.tombstones))

    @property
    def live_documents(self) -> int:
        return self.documents - self.gone

    @property
    def live_rows(self) -> int:
        """Estimated rows of live documents: every document counts as the average of its shard."""
        return round(self.rows * self.live_documents / self.documents) if self.documents else 0

    @property
    def tombstone_ratio(self) -> float:
        return self.gone / self.documents if self.documents else 0.0

    def without(self, numbers: Sequence[int] | npt.NDArray[np.int64]) -> "ShardRef":
        """Return the same shard with these documents deleted."""
        if not len(numbers):
            return self
        gone = np.zeros(self.documents, np.bool_) if self.tombstones is None else self.tombstones.copy()
        gone[np.asarray(numbers, dtype=np.int64)] = True
        return replace(self, tombstones=gone)


class DroppedShard(msgspec.Struct, frozen=True):
    folder: str = msgspec.field(name="key")
    dropped_at: str

    def __post_init__(self) -> None:
        """Check a stored entry, so that a damaged manifest fails when it is read, not when it is used."""
        check_key(self.folder)
        if datetime.datetime.fromisoformat(self.dropped_at).tzinfo is None:
            raise ValueError(f"a time without a time zone: {self.dropped_at}")


Cause = Literal[
    "upsert", "delete", "compact", "collect", "reembed", "rollback", "release", "install", "import", "repair"
]
"""The operation that made a manifest."""
_REARRANGING: frozenset[Cause] = frozenset({"compact", "collect", "release", "repair"})
"""Causes that do not change documents."""
_CHANGING: frozenset[Cause] = frozenset({"upsert", "delete", "import"})
"""Causes after which a KB differs from its installed package."""


@dataclass(frozen=True, eq=False)
class Manifest:
    kb_id: str
    number: int
    """One more than the number of the manifest that this one replaced."""
    commit_id: str
    created_at: str
    embedder: str
    dimension: int
    shards: tuple[ShardRef, ...] = ()
    dropped: tuple[DroppedShard, ...] = ()
    """Shards that an earlier manifest named and garbage collection has not deleted yet."""
    collections: int = 0
    """Number of garbage collections so far. A file uploaded before the last one may be deleted."""
    recent_commits: tuple[str, ...] = ()
    """The last commits, newest first: a writer that lost the store's answer looks for its own commit here."""
    hashed_as: str = ""
    """The embedder that content hashes name, if it is not `embedder`: hashes survive a re-embedding."""
    made_by: Cause | Literal[""] = ""
    """The cause; empty if this version of pair does not know it."""
    label: str = ""
    """Name and version of the installed package; empty once a document was stored or deleted."""
    index_sha256: str = ""
    """Hash of the last installed index. Later writes keep it."""
    restored: int = 0
    """The version that a rollback restored, until sync is released; 0 for none."""
    rolled_back: int = 0
    """Number of the last manifest that a rollback made; 0 for none. Writes begun earlier are refused (E236)."""

    @property
    def is_rearranged(self) -> bool:
        """Whether this manifest has the same documents as its predecessor."""
        return self.made_by in _REARRANGING

    @property
    def folders(self) -> frozenset[str]:
        return frozenset(shard.folder for shard in self.shards)

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

    def drops(self, shards: Sequence[ShardRef]) -> bool:
        """Return whether a next manifest with these shards would drop a shard."""
        kept = {shard.folder for shard in shards if shard.live_documents}
        return any(shard.folder not in kept for shard in self.shards)

    def make_next(
        self, commit_id: str, now: datetime.datetime, shards: Sequence[ShardRef], made_by: Cause = "upsert"
    ) -> "Manifest":
        """Return the next manifest, with these shards. It drops shards without live documents."""
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
            made_by=made_by,
            label="" if made_by in _CHANGING else self.label,
            dropped=(*(drop for drop in self.dropped if drop.folder not in folders), *dropped),
            recent_commits=(self.commit_id, *self.recent_commits)[:_KEPT_COMMITS] if self.number else (),
        )

    def make_reembedded(
        self, commit_id: str, now: datetime.datetime, shards: Sequence[ShardRef], embedder: str, dimension: int
    ) -> "Manifest":
        """Return the next manifest, with shards whose vectors come from another embedder."""
        after = self.make_next(commit_id, now, shards, "reembed")
        return replace(after, embedder=embedder, dimension=dimension, hashed_as=self.hashing_embedder)

    def make_imported(
        self, commit_id: str, now: datetime.datetime, shards: Sequence[ShardRef], origin: "Manifest"
    ) -> "Manifest":
        """Return the next manifest, with shards that use the embedder and content hashes of `origin`."""
        return replace(_copy_origin(self.make_next(commit_id, now, shards, "import"), origin), restored=0)

    def make_collected(
        self, commit_id: str, now: datetime.datetime, taken: frozenset[str], forgotten: frozenset[str] = frozenset()
    ) -> "Manifest":
        """Return the next manifest, without the entries of folders to delete (`taken`) and of `forgotten` ones."""
        after = self.make_next(commit_id, now, self.shards, "collect")
        kept = tuple(drop for drop in after.dropped if drop.folder not in taken | forgotten)
        return replace(after, dropped=kept, collections=self.collections + (1 if taken else 0))

    def make_copy(self) -> "Manifest":
        """Return the copy for the history. Only the current manifest needs its dropped shards."""
        return replace(self, dropped=())

    def make_rolled_back(self, past: "Manifest", commit_id: str, now: datetime.datetime) -> "Manifest":
        """Return the next manifest, with the shards of an earlier one."""
        after = _copy_origin(self.make_next(commit_id, now, past.shards, "rollback"), past)
        return replace(after, restored=past.number, rolled_back=after.number)

    def make_released(self, commit_id: str, now: datetime.datetime) -> "Manifest":
        """Return the next manifest, which sync may change again."""
        return replace(self.make_next(commit_id, now, self.shards, "release"), restored=0)


def _copy_origin(manifest: Manifest, origin: Manifest) -> Manifest:
    """Return the manifest with the embedder and the package of `origin`, the source of its shards."""
    return replace(
        manifest,
        embedder=origin.embedder,
        dimension=origin.dimension,
        hashed_as=origin.hashed_as,
        label=origin.label,
        index_sha256=origin.index_sha256,
    )


def no_manifest(kb_id: str, embedder: str, dimension: int) -> Manifest:
    """Return the manifest that the first write builds on."""
    return Manifest(kb_id=kb_id, number=0, commit_id="", created_at="", embedder=embedder, dimension=dimension)


# ── JSON ───────────────────────────────────────────────────────────────────────────────────────────


class _FilesJson(msgspec.Struct, omit_defaults=True):
    rows: ShardFile
    search: ShardFile
    ids: ShardFile
    keywords: ShardFile | msgspec.UnsetType = msgspec.UNSET
    graph: ShardFile | msgspec.UnsetType = msgspec.UNSET


_SHARD_FIELDS = ("shard_id", "files", "documents", "run", "radii", "graph_available", "created_at", "origin")
"""Fields that have the same name in a shard and in its JSON."""


class ShardJson(msgspec.Struct, omit_defaults=True):
    """The JSON of a shard in a manifest."""

    shard_id: Annotated[str, msgspec.Meta(pattern=r"^[^/]*\Z")]
    key: str
    files: _FilesJson
    vector_rows: _RowCount
    documents: _RowCount
    run: str
    centroids: bytes
    radii: tuple[float, ...]
    graph_available: bool
    tombstone_count: int
    tombstones: bytes
    """One bit for each document, compressed; empty when none is deleted."""
    created_at: str
    origin: str = ""

    @staticmethod
    def of(shard: ShardRef) -> "ShardJson":
        packed = b""
        if shard.tombstones is not None and shard.gone:
            packed = zlib.compress(np.packbits(shard.tombstones, bitorder="little").tobytes())
        same = {name: getattr(shard, name) for name in _SHARD_FIELDS}
        return ShardJson(
            **{**same, "files": _FilesJson(**{str(role): file for role, file in shard.files.items()})},
            key=shard.folder,
            vector_rows=shard.rows,
            centroids=shard.centroids.astype("<f2").tobytes(),
            tombstone_count=shard.gone,
            tombstones=packed,
        )

    def to_ref(self, dimension: int) -> ShardRef:
        """Return the shard. Raises ValueError and zlib.error for fields that contradict each other."""
        centroids = np.frombuffer(self.centroids, "<f2").astype(np.float32).reshape(-1, dimension)
        if len(self.radii) != len(centroids):
            raise ValueError("its numbers of radii and of centroids differ")
        check_key(f"{self.key}/{file_name(self.shard_id, 'rows')}")
        tombstones = None
        if self.tombstones:
            # Bounded: a few compressed bytes can unpack to gigabytes.
            expected_bytes = (self.documents + 7) // 8
            packed = zlib.decompressobj().decompress(self.tombstones, expected_bytes + 1)
            if len(packed) != expected_bytes:
                raise ValueError("its list of deleted documents belongs to another shard")
            bits = np.unpackbits(np.frombuffer(packed, np.uint8), count=self.documents, bitorder="little")
            tombstones = bits.astype(np.bool_)
        same = {name: getattr(self, name) for name in _SHARD_FIELDS}
        files = {role: getattr(self.files, role) for role in get_args(FileRole)}
        return ShardRef(
            **{**same, "files": {role: file for role, file in files.items() if file is not msgspec.UNSET}},
            folder=self.key,
            rows=self.vector_rows,
            centroids=centroids,
            tombstones=tombstones,
        )


class _EmbedderJson(msgspec.Struct, omit_defaults=True):
    name: str
    dimension: Count
    hashed_as: str = ""


class _ManifestJson(msgspec.Struct, omit_defaults=True, kw_only=True):
    """The JSON of a manifest, in the order of its fields. Fields with a default may be missing."""

    schema_version: int
    layout: str
    kb_id: str
    version: Count
    parent_version: int
    commit_id: str
    created_at: str
    embedder: _EmbedderJson
    documents: int
    chunks: int
    total_size_bytes: int
    made_by: str | msgspec.UnsetType = msgspec.UNSET
    label: str = ""
    index_sha256: str = ""
    restored_version: Count = 0
    rolled_back_version: Count = 0
    collections: Count
    recent_commits: tuple[str, ...]
    shards: tuple[ShardJson, ...]
    dropped: tuple[DroppedShard, ...]


_MANIFEST_FIELDS = ("kb_id", "commit_id", "created_at", "label", "index_sha256", "collections", "recent_commits")
"""Fields that have the same name in a manifest and in its JSON."""


def to_bytes(manifest: Manifest) -> bytes:
    hashed_as = "" if manifest.hashing_embedder == manifest.embedder else manifest.hashed_as
    same = {name: getattr(manifest, name) for name in _MANIFEST_FIELDS}
    value = _ManifestJson(
        **same,
        schema_version=SCHEMA_VERSION,
        layout=LAYOUT,
        version=manifest.number,
        parent_version=manifest.number - 1,
        embedder=_EmbedderJson(manifest.embedder, manifest.dimension, hashed_as),
        documents=manifest.documents,
        chunks=manifest.rows,
        total_size_bytes=manifest.size_bytes,
        made_by=manifest.made_by,
        restored_version=manifest.restored,
        rolled_back_version=manifest.rolled_back,
        shards=(),
        dropped=manifest.dropped,
    )
    fields = {name: _encode_json(field) for name, field in msgspec.to_builtins(value).items()}
    for shard in manifest.shards:
        if shard not in _encoded:
            _encoded[shard] = _encode_json(msgspec.to_builtins(ShardJson.of(shard)))
    fields["shards"] = b"[%b]" % b",".join(_encoded[shard] for shard in manifest.shards)
    content = b"{%b" % b",".join(b'"%b":%b' % (name.encode(), field) for name, field in fields.items())
    return content + _seal(content)


_encoded: weakref.WeakKeyDictionary[ShardRef, bytes] = weakref.WeakKeyDictionary()
"""The JSON of shards that were written. A write into a large KB encodes only the shards that it changed."""


def _encode_json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _seal(content: bytes) -> bytes:
    """Return the last field: the hash of all bytes before it."""
    return (_SEAL % hashlib.sha256(content).hexdigest()).encode()


_SEAL = ',"content_sha256":"%s"}\n'
_SEAL_BYTES = len(_SEAL % ("0" * 64))
_UNSEALED = frozenset(
    {
        *("schema_version", "layout", "kb_id", "version", "parent_version", "commit_id", "created_at", "embedder"),
        *("documents", "chunks", "total_size_bytes", "collections", "recent_commits", "shards", "dropped"),
    }
)
"""Fields of the first manifests, which had no hash. A manifest with any other field must end with one."""


def from_bytes(content: bytes, key: str) -> Manifest:
    """Parse a manifest. Raises E207 if it is damaged or newer than this pair."""
    try:
        fields = decode_json(content, dict[str, msgspec.Raw])
        schema, layout = decode_json(fields["schema_version"], int), decode_json(fields["layout"], str)
        if schema > SCHEMA_VERSION or layout != LAYOUT:
            raise errors.stored_data_damaged(key, f"it has schema {schema} ({layout}), which is newer than this pair")
        if not fields.keys() <= _UNSEALED and content[-_SEAL_BYTES:] != _seal(content[:-_SEAL_BYTES]):
            raise errors.stored_data_damaged(key, "its SHA-256 differs from the one at its end")
        value = decode_json(content, _ManifestJson)
        if sum(shard.documents for shard in value.shards if shard.tombstones) > _MOST_ROWS:
            raise ValueError("it flags more deleted documents than fit into memory")
        same = {name: getattr(value, name) for name in _MANIFEST_FIELDS}
        return Manifest(
            **same,
            number=value.version,
            embedder=value.embedder.name,
            dimension=value.embedder.dimension,
            shards=tuple(shard.to_ref(value.embedder.dimension) for shard in value.shards),
            dropped=value.dropped,
            hashed_as=value.embedder.hashed_as,
            made_by=next((cause for cause in get_args(Cause) if cause == value.made_by), ""),
            restored=value.restored_version,
            rolled_back=value.rolled_back_version,
        )
    except (ValueError, KeyError, zlib.error) as fault:
        raise errors.stored_data_damaged(key, "it is not a readable manifest") from fault
