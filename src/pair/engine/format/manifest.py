"""The list of live shards, its JSON, and every key in the store.

Invariants
    A manifest of an older pair stays readable; one of a newer pair is refused, not guessed at.
    No two manifests have equal bytes, because of the commit id: a version of the blob names one manifest only.
    A manifest that changed since it was written is refused: its last field is the SHA-256 of all before it.
"""

import base64
import datetime
import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from pair import errors
from pair.blobs.key_encoding import KEY, MAX_KEY_BYTES
from pair.engine.format.checks import load_json

SCHEMA_VERSION = 1
LAYOUT = "duckdb_shard_files"
_KEPT_COMMITS = 64
_MOST_ROWS = 2**28
"""In a shard: far beyond what is ever cut, and few enough for a mark on each to fit into memory."""
_MOST_COUNT = 2**53
"""The largest number that every reader of JSON can hold."""

FileRole = Literal["rows", "search", "ids", "keywords", "graph"]
_REQUIRED_ROLES: tuple[FileRole, ...] = ("rows", "search", "ids")
"""An older shard has no keywords, and one whose documents name nothing has no graph."""
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
    """Return the keys of the layout before shards: one database, and a snapshot of it."""
    return f"{kb_id}.duckdb", f"{kb_id}.snapshot.json"


def first_write_key(kb_id: str) -> str:
    """Return the key of the marker that exists from before the first upload of a new KB until its first manifest."""
    return f"{kb_id}.duckdb.first-write"


def shards_prefix(kb_id: str) -> str:
    return f"{kb_id}.duckdb.shards/"


def builds_prefix(kb_id: str) -> str:
    """Return the prefix of records of shards that no manifest names yet."""
    return f"{kb_id}.duckdb.builds/"


def versions_prefix(kb_id: str) -> str:
    """Return the prefix of kept copies of manifests. Some servers do not list keys below `….versions/`."""
    return f"{kb_id}.duckdb.history/"


def version_key(kb_id: str, number: int, commit_id: str) -> str:
    """Sort by number; the commit tells apart manifests that share a number, of which only one was published."""
    return f"{versions_prefix(kb_id)}{number:010}-{commit_id}.json"


def version_in_key(key: str) -> tuple[int, str] | None:
    """Return number and commit; None for a key of something else."""
    number, mark, commit_id = key.rpartition("/")[2].removesuffix(".json").partition("-")
    return (int(number), commit_id) if mark and number.isascii() and number.isdigit() else None


def clock_key(kb_id: str) -> str:
    """Return a key in a folder of its own, so that listing it lists nothing else."""
    return f"{kb_id}.duckdb.clock/now"


def lease_name(kb_id: str) -> str:
    return f"{kb_id}.duckdb"


def file_name(shard_id: str, role: FileRole) -> str:
    return shard_id + _SUFFIXES[role]


def hash_files(files: "Mapping[FileRole, ShardFile]") -> str:
    """Return the name of a shard's folder, a hash of all its files."""
    lines = "".join(f"{role} {file.sha256} {file.size_bytes}\n" for role, file in files.items())
    return hashlib.sha256(lines.encode()).hexdigest()


# ── values ─────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class ShardFile:
    size_bytes: int
    sha256: str


@dataclass(frozen=True, eq=False)
class ShardRef:
    """One immutable shard, and which of its documents are deleted."""

    shard_id: str
    folder: str
    """The key of its folder."""
    files: Mapping[FileRole, ShardFile]
    rows: int
    documents: int
    run: str
    """Shards of one run share one clustering. Empty: not clustered, and always asked."""
    centroids: npt.NDArray[np.float32]
    radii: tuple[float, ...]
    graph_available: bool
    created_at: str
    tombstones: npt.NDArray[np.bool_] | None = None
    """By number of the document in the shard; None when none is deleted."""
    origin: str = ""
    """Name of the package that it came with; empty for one that was made here."""

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
        """An estimate: a deleted document counts for the average of its shard."""
        return round(self.rows * self.live_documents / self.documents) if self.documents else 0

    @property
    def tombstone_ratio(self) -> float:
        return self.gone / self.documents if self.documents else 0.0

    def without(self, numbers: Sequence[int] | npt.NDArray[np.int64]) -> "ShardRef":
        """Return the same shard with these documents deleted."""
        gone = np.zeros(self.documents, np.bool_) if self.tombstones is None else self.tombstones.copy()
        gone[np.asarray(numbers, dtype=np.int64)] = True
        return replace(self, tombstones=gone)


@dataclass(frozen=True, slots=True)
class DroppedShard:
    folder: str
    dropped_at: str


Cause = Literal[
    "upsert", "delete", "compact", "collect", "reembed", "rollback", "release", "install", "import", "repair"
]
"""The operation that made a manifest."""
_REARRANGING: frozenset[Cause] = frozenset({"compact", "collect", "release", "repair"})
"""Causes that change no document."""
_CHANGING: frozenset[Cause] = frozenset({"upsert", "delete", "import"})
"""Causes after which a KB is no longer as a package left it."""


@dataclass(frozen=True, eq=False)
class Manifest:
    kb_id: str
    number: int
    """Greater by one than the number of the manifest it replaced."""
    commit_id: str
    created_at: str
    embedder: str
    dimension: int
    shards: tuple[ShardRef, ...] = ()
    dropped: tuple[DroppedShard, ...] = ()
    """Shards that an earlier manifest named, and garbage collection has not deleted yet."""
    collections: int = 0
    """How often garbage was collected: files uploaded before the last time may be deleted."""
    recent_commits: tuple[str, ...] = field(default=())
    """The last commits, newest first: a writer whose answer was lost finds its own."""
    hashed_as: str = ""
    """The embedder that content hashes name, where it is not `embedder`: hashes survive a re-embedding."""
    made_by: Cause | Literal[""] = ""
    """Empty in a manifest of an older pair."""
    label: str = ""
    """Name and version of the installed package, as long as no document was stored or deleted since."""
    index_sha256: str = ""
    """The hash of the last installed index, whatever was stored since."""
    restored: int = 0
    """The version that a roll-back restored, until sync is released; 0 for none."""
    rolled_back: int = 0
    """The number of the last manifest that a roll-back made; 0 for none. Writes begun before are refused (E236)."""

    @property
    def is_rearranged(self) -> bool:
        """Whether it holds the same documents as the one before it."""
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
        """Tell whether a next manifest with these shards drops one."""
        kept = {shard.folder for shard in shards if shard.live_documents}
        return any(shard.folder not in kept for shard in self.shards)

    def make_next(
        self, commit_id: str, now: datetime.datetime, shards: Sequence[ShardRef], made_by: Cause = "upsert"
    ) -> "Manifest":
        """Return the next manifest, with these shards. A shard without live documents is dropped."""
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
        """Return the next manifest, with shards whose vectors are all of another embedder."""
        after = self.make_next(commit_id, now, shards, "reembed")
        return replace(after, embedder=embedder, dimension=dimension, hashed_as=self.hashing_embedder)

    def make_imported(
        self, commit_id: str, now: datetime.datetime, shards: Sequence[ShardRef], origin: "Manifest"
    ) -> "Manifest":
        """Return the next manifest, with shards whose vectors and content hashes are made as those of `origin`."""
        after = self.make_next(commit_id, now, shards, "import")
        return replace(
            after,
            embedder=origin.embedder,
            dimension=origin.dimension,
            hashed_as=origin.hashed_as,
            label=origin.label,
            index_sha256=origin.index_sha256,
            restored=0,
        )

    def make_collected(
        self, commit_id: str, now: datetime.datetime, taken: frozenset[str], forgotten: frozenset[str] = frozenset()
    ) -> "Manifest":
        """Return the next manifest, after folders were taken for deletion, without the dates of forgotten ones."""
        after = self.make_next(commit_id, now, self.shards, "collect")
        kept = tuple(drop for drop in after.dropped if drop.folder not in taken | forgotten)
        return replace(after, dropped=kept, collections=self.collections + (1 if taken else 0))

    def make_copy(self) -> "Manifest":
        """Return the copy for the history, without dropped shards: only the current manifest needs them."""
        return replace(self, dropped=())

    def make_rolled_back(self, past: "Manifest", commit_id: str, now: datetime.datetime) -> "Manifest":
        """Return the next manifest, with the shards of an earlier one."""
        after = self.make_next(commit_id, now, past.shards, "rollback")
        return replace(
            after,
            embedder=past.embedder,
            dimension=past.dimension,
            hashed_as=past.hashed_as,
            label=past.label,
            index_sha256=past.index_sha256,
            restored=past.number,
            rolled_back=after.number,
        )

    def make_released(self, commit_id: str, now: datetime.datetime) -> "Manifest":
        """Return the next manifest, to which sync may write again."""
        return replace(self.make_next(commit_id, now, self.shards, "release"), restored=0)


def no_manifest(kb_id: str, embedder: str, dimension: int) -> Manifest:
    """Return the manifest that the first write builds on."""
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
        "made_by": manifest.made_by,
        **({"label": manifest.label} if manifest.label else {}),
        **({"index_sha256": manifest.index_sha256} if manifest.index_sha256 else {}),
        **({"restored_version": manifest.restored} if manifest.restored else {}),
        **({"rolled_back_version": manifest.rolled_back} if manifest.rolled_back else {}),
        "collections": manifest.collections,
        "recent_commits": list(manifest.recent_commits),
        "shards": [shard_to_json(shard) for shard in manifest.shards],
        "dropped": [{"key": drop.folder, "dropped_at": drop.dropped_at} for drop in manifest.dropped],
    }
    content = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()[:-1]
    return content + _seal(content)


def _seal(content: bytes) -> bytes:
    """Return the last field, a hash of all before it."""
    return (_SEAL % hashlib.sha256(content).hexdigest()).encode()


_SEAL = ',"content_sha256":"%s"}\n'
_SEAL_BYTES = len(_SEAL % ("0" * 64))
_UNSEALED = frozenset(
    {
        *("schema_version", "layout", "kb_id", "version", "parent_version", "commit_id", "created_at", "embedder"),
        *("documents", "chunks", "total_size_bytes", "collections", "recent_commits", "shards", "dropped"),
    }
)
"""The fields of manifests from before the seal. A manifest with any other field must have one."""


def from_bytes(content: bytes, key: str) -> Manifest:
    """Parse a manifest. Raises E207 for one that is damaged or newer than this pair."""
    try:
        value = load_json(content)
        if value["schema_version"] > SCHEMA_VERSION or value["layout"] != LAYOUT:
            raise errors.stored_data_damaged(
                key, f"it has schema {value['schema_version']} ({value['layout']}), which is newer than this pair"
            )
        if not set(value) <= _UNSEALED and content[-_SEAL_BYTES:] != _seal(content[:-_SEAL_BYTES]):
            raise errors.stored_data_damaged(key, "its SHA-256 is not the one that it ends with")
        dimension = _count(value["embedder"]["dimension"])
        shards = _list(value["shards"])
        if sum(_count(shard["documents"]) for shard in shards if shard["tombstones"]) > _MOST_ROWS:
            raise ValueError("it has more marks on documents than fit into memory")
        return Manifest(
            kb_id=_text(value["kb_id"]),
            number=_count(value["version"]),
            commit_id=_text(value["commit_id"]),
            created_at=_text(value["created_at"]),
            embedder=_text(value["embedder"]["name"]),
            dimension=dimension,
            shards=tuple(shard_from_json(shard, dimension) for shard in shards),
            dropped=tuple(DroppedShard(_key(drop["key"]), _moment(drop["dropped_at"])) for drop in value["dropped"]),
            collections=_count(value["collections"]),
            recent_commits=tuple(_text(commit) for commit in _list(value["recent_commits"])),
            hashed_as=_text(value["embedder"].get("hashed_as", "")),
            made_by=_cause(value.get("made_by", "")),
            label=_text(value.get("label", "")),
            index_sha256=_text(value.get("index_sha256", "")),
            restored=_count(value.get("restored_version", 0)),
            rolled_back=_count(value.get("rolled_back_version", 0)),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, zlib.error) as fault:
        raise errors.stored_data_damaged(key, "it is not a manifest that can be read") from fault


def shard_to_json(shard: ShardRef) -> dict[str, Any]:
    return {
        "shard_id": shard.shard_id,
        "key": shard.folder,
        "files": {role: {"size_bytes": file.size_bytes, "sha256": file.sha256} for role, file in shard.files.items()},
        "vector_rows": shard.rows,
        "documents": shard.documents,
        "run": shard.run,
        "centroids": base64.b64encode(shard.centroids.astype("<f2").tobytes()).decode(),
        "radii": list(shard.radii),
        "graph_available": shard.graph_available,
        "tombstone_count": shard.gone,
        "tombstones": _bits_to_text(shard.tombstones) if shard.gone else "",
        "created_at": shard.created_at,
        **({"origin": shard.origin} if shard.origin else {}),
    }


def shard_from_json(value: Mapping[str, Any], dimension: int) -> ShardRef:
    centroids = np.frombuffer(base64.b64decode(value["centroids"], validate=True), dtype="<f2").astype(np.float32)
    rows, documents = _count(value["vector_rows"]), _count(value["documents"])
    shard = ShardRef(
        shard_id=_text(value["shard_id"]),
        folder=_text(value["key"]),
        files=_files_from_json(value["files"]),
        rows=rows,
        documents=documents,
        run=_text(value["run"]),
        centroids=centroids.reshape(-1, dimension),
        radii=tuple(float(radius) for radius in value["radii"]),
        graph_available=value["graph_available"] is True,
        created_at=_text(value["created_at"]),
        tombstones=_bits_from_text(value["tombstones"], documents) if value["tombstones"] else None,
        origin=_text(value.get("origin", "")),
    )
    if "/" in shard.shard_id or max(documents, rows) > _MOST_ROWS or len(shard.radii) != len(shard.centroids):
        raise ValueError("what it says of a shard cannot be")
    _key(shard.key("rows"))
    return shard


def _files_from_json(value: Mapping[str, Any]) -> dict[FileRole, ShardFile]:
    """Read the files that this pair knows. Every shard has the required ones."""
    return {
        role: ShardFile(_count(value[role]["size_bytes"]), _text(value[role]["sha256"]))
        for role in _SUFFIXES
        if role in _REQUIRED_ROLES or role in value
    }


def _bits_to_text(bits: npt.NDArray[np.bool_] | None) -> str:
    packed = b"" if bits is None else np.packbits(bits, bitorder="little").tobytes()
    return base64.b64encode(zlib.compress(packed)).decode()


def _bits_from_text(text: str, count: int) -> npt.NDArray[np.bool_]:
    """Unpack at most as many bits as there can be, whatever was packed."""
    expected_bytes = (count + 7) // 8
    packed = zlib.decompressobj().decompress(base64.b64decode(text, validate=True), expected_bytes + 1)
    if len(packed) != expected_bytes:
        raise ValueError("its list of documents that are gone is of another shard")
    return np.unpackbits(np.frombuffer(packed, np.uint8), count=count, bitorder="little").astype(np.bool_)


# A fault in a manifest is found when it is read, not when it is used.


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"no text: {value!r:.40}")
    value.encode()  # a lone surrogate cannot be written again
    return value


def _cause(value: Any) -> Cause | Literal[""]:
    """Return "" for a cause that this pair does not know: it changes nothing about what is stored."""
    named = _text(value)
    return next((cause for cause in get_args(Cause) if cause == named), "")


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= _MOST_COUNT:
        raise ValueError(f"no count: {value!r:.40}")
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"no list: {value!r:.40}")
    return value


def _key(value: Any) -> str:
    key = _text(value)
    if not KEY.fullmatch(key) or len(key.encode()) > MAX_KEY_BYTES:
        raise ValueError(f"no key of a store: {key!r}")
    return key


def _moment(value: Any) -> str:
    if datetime.datetime.fromisoformat(value).tzinfo is None:
        raise ValueError(f"no time that everybody shares: {value}")
    return _text(value)
