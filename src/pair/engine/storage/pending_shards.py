"""Which shards a build has made that no manifest names yet: what protects them from garbage collection, and what an
interrupted build finds again.

Invariants
    A record is put before the first file of its shards, and garbage collection lists records after files: what it sees
    of a build, it sees the record of.
    A record is claimed or condemned by compare-and-swap, and never used again once it was condemned. It is condemned
    before the manifest is swapped, and that before anything is deleted: whoever reads a manifest, finds the record in
    order and then swaps that manifest publishes what is there, whatever the clocks say.
"""

import contextlib
import datetime
import json
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from pair.blobs.contract import BlobStore, Version, VersionMismatchError
from pair.engine.format.manifest import ShardRef, builds_prefix, shard_from_json, shard_to_json

_SCHEMA_VERSION = 1
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
        """Before the shards are uploaded. The key of the record, which no other has or had."""
        key = f"{self._prefix}{part_key}/{self._new_id()}.json"
        self._store.put(key, _to_bytes(shards, dimension, self._new_id()))
        return key

    def find(self, part_key: str) -> Claimed | None:
        """What an earlier run, or a worker that died, made of this part, if all of it is there.

        What is not whole may become so: somebody else may be building the same at this moment.
        """
        for info in list(self._store.list(f"{self._prefix}{part_key}/")):
            claimed = self._claim(info.key)
            if claimed is not None and all(map(self._is_whole, claimed.shards)):
                return claimed
        return None

    def is_in_order(self, key: str) -> bool:
        """Whether it is there, and not condemned."""
        blob = self._store.get(key)
        return blob is not None and _from_bytes(blob.data) is not None

    def _claim(self, key: str) -> Claimed | None:
        """None when it is gone, condemned, or cannot be read. Else it counts as made just now."""
        blob = self._store.get(key)
        found = None if blob is None else _from_bytes(blob.data)
        if blob is None or found is None:
            return None
        shards, dimension = found
        with contextlib.suppress(VersionMismatchError):
            self._store.put_if(key, _to_bytes(shards, dimension, self._new_id()), blob.version)
            return Claimed(key, shards)
        return None

    def forget(self, key: str) -> None:
        """What it names is published, or of no use."""
        self._store.delete(key)

    def list_protected(self, now: datetime.datetime, keep_seconds: float) -> tuple[frozenset[str], list[str]]:
        """Folders of shards that a build may still publish; and records that are condemned, to be deleted."""
        folders: set[str] = set()
        condemned: list[str] = []
        for info in list(self._store.list(self._prefix)):
            blob = self._store.get(info.key)
            found = None if blob is None else _from_bytes(blob.data)
            if blob is None:
                continue
            is_old = info.modified_at + datetime.timedelta(seconds=keep_seconds) <= now
            if blob.data == _CONDEMNED or (is_old and self._condemn(info.key, blob.version)):
                condemned.append(info.key)
            elif found is not None:
                folders |= {shard.folder for shard in found[0]}
        return frozenset(folders), condemned

    def _condemn(self, key: str, version: Version) -> bool:
        """False when it was claimed this moment."""
        try:
            self._store.put_if(key, _CONDEMNED, version)
        except VersionMismatchError:
            return False
        return True

    def _is_whole(self, shard: ShardRef) -> bool:
        stored = {info.key: info.size_bytes for info in self._store.list(f"{shard.folder}/")}
        return all(stored.get(shard.key(role)) == each.size_bytes for role, each in shard.files.items())


def _to_bytes(shards: Iterable[ShardRef], dimension: int, claim: str) -> bytes:
    """`claim`: no two are the same, so that a version of a record is one claim of it."""
    value = {
        "schema_version": _SCHEMA_VERSION,
        "claim": claim,
        "dimension": dimension,
        "shards": [shard_to_json(shard) for shard in shards],
    }
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def _from_bytes(content: bytes) -> tuple[tuple[ShardRef, ...], int] | None:
    """None for one that was condemned, or that this pair does not understand."""
    try:
        value = json.loads(content)
        if value["schema_version"] != _SCHEMA_VERSION:
            return None
        dimension = int(value["dimension"])
        return tuple(shard_from_json(each, dimension) for each in value["shards"]), dimension
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, zlib.error):
        return None
