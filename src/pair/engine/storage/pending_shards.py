"""Records of shards that no manifest names yet: they protect them from garbage collection, and let an interrupted
build find them again.

Invariants
    A record is put before the first file of its shards, and garbage collection lists records after files: what it sees
    of a build, it sees the record of.
    A record is claimed or condemned by compare-and-swap, and never used again once it was condemned. It is condemned
    before the manifest is swapped, and that before anything is deleted: a writer that reads a manifest, finds the
    record in order and then swaps that manifest publishes shards that exist, whatever the clocks say.
"""

import contextlib
import datetime
import json
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from pair.blobs.contract import BlobStore, Version, VersionMismatchError
from pair.engine.format.array_file import decode_json
from pair.engine.format.manifest import ShardJson, ShardRef, builds_prefix

_CONDEMNED = b'{"condemned": true}\n'


@dataclass(frozen=True, slots=True)
class Claimed:
    key: str
    shards: tuple[ShardRef, ...]


class PendingShards:
    def __init__(self, store: BlobStore, kb_id: str, new_id: Callable[[], str]) -> None:
        self._store = store
        self._prefix = builds_prefix(kb_id)
        self._new_id = new_id

    def announce(self, part_key: str, shards: Sequence[ShardRef], dimension: int) -> str:
        """Put a record before the shards are uploaded. Return its key, which no other has or had."""
        key = f"{self._prefix}{part_key}/{self._new_id()}.json"
        self._store.put(key, _to_bytes(shards, dimension, self._new_id()))
        return key

    def find(self, part_key: str) -> Claimed | None:
        """Return the shards that an earlier run, or a worker that died, made of this part, if all of them are there.

        Shards that are not complete may become so: another worker may be building them at this moment.
        """
        for info in list(self._store.list(f"{self._prefix}{part_key}/")):
            claimed = self._claim(info.key)
            if claimed is not None and all(map(self._is_whole, claimed.shards)):
                return claimed
        return None

    def is_in_order(self, key: str) -> bool:
        """Tell whether a record is there, and not condemned."""
        blob = self._store.get(key)
        return blob is not None and _from_bytes(blob.data) is not None

    def _claim(self, key: str) -> Claimed | None:
        """Return None when a record is gone, condemned or unreadable. Else it counts as made just now."""
        blob = self._store.get(key)
        record = None if blob is None else _from_bytes(blob.data)
        if blob is None or record is None:
            return None
        shards, dimension = record
        with contextlib.suppress(VersionMismatchError):
            self._store.put_if(key, _to_bytes(shards, dimension, self._new_id()), blob.version)
            return Claimed(key, shards)
        return None

    def forget(self, key: str) -> None:
        """Delete a record whose shards are published, or of no use."""
        self._store.delete(key)

    def list_protected(self, now: datetime.datetime, keep_seconds: float) -> tuple[frozenset[str], list[str]]:
        """Return folders of shards that a build may still publish, and condemned records, to be deleted."""
        folders: set[str] = set()
        condemned: list[str] = []
        for info in list(self._store.list(self._prefix)):
            blob = self._store.get(info.key)
            if blob is None:
                continue
            record = _from_bytes(blob.data)
            is_old = info.modified_at + datetime.timedelta(seconds=keep_seconds) <= now
            if blob.data == _CONDEMNED or (is_old and self._condemn(info.key, blob.version)):
                condemned.append(info.key)
            elif record is not None:
                folders |= {shard.folder for shard in record[0]}
        return frozenset(folders), condemned

    def _condemn(self, key: str, version: Version) -> bool:
        """Return False for a record that was claimed this moment."""
        try:
            self._store.put_if(key, _CONDEMNED, version)
        except VersionMismatchError:
            return False
        return True

    def _is_whole(self, shard: ShardRef) -> bool:
        stored = {info.key: info.size_bytes for info in self._store.list(f"{shard.folder}/")}
        return all(stored.get(shard.key(role)) == file.size_bytes for role, file in shard.files.items())


class _RecordJson(msgspec.Struct):
    schema_version: Literal[1]
    claim: str
    """No two are equal, so that a version of a record is one claim of it."""
    dimension: int
    shards: tuple[ShardJson, ...]


def _to_bytes(shards: Iterable[ShardRef], dimension: int, claim: str) -> bytes:
    record = _RecordJson(1, claim, dimension, tuple(map(ShardJson.of, shards)))
    return json.dumps(msgspec.to_builtins(record), separators=(",", ":")).encode() + b"\n"


def _from_bytes(content: bytes) -> tuple[tuple[ShardRef, ...], int] | None:
    """Return None for a record that was condemned, or that this pair does not understand."""
    try:
        record = decode_json(content, _RecordJson)
        return tuple(shard.to_ref(record.dimension) for shard in record.shards), record.dimension
    except (ValueError, OverflowError, zlib.error):
        return None
