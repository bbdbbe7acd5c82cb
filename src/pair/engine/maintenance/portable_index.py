"""The index of a KB as it travels: one manifest, and the files of the shards that it names.

Layout: `manifest.json`, and `shards/<content hash>/<file>` for each file of each shard.
Invariants
    Names inside tell nothing of the KB that an index was taken from: it can be taken up by one of another name.
    The same state of a KB gives the same bytes.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from pair import errors
from pair.engine.format.manifest import (
    FileRole,
    Manifest,
    ShardRef,
    file_name,
    from_bytes,
    hash_files,
    manifest_key,
    shards_prefix,
    to_bytes,
)

MANIFEST_NAME = "manifest.json"


@dataclass(frozen=True, slots=True)
class PortableFile:
    """A file of a shard: what it is called in the index, and where it is in the store."""

    name: str
    key: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True)
class PortableIndex:
    manifest: Manifest
    content: bytes
    """Of the manifest, as it is written into the index."""
    files: tuple[PortableFile, ...]

    @property
    def sha256(self) -> str:
        """Names the whole index: the manifest names every file by its hash."""
        return hashlib.sha256(self.content).hexdigest()


def packed(manifest: Manifest) -> PortableIndex:
    """Without what only concerns the store that it is in."""
    travelling = replace(manifest, dropped=(), recent_commits=(), restored=0, rolled_back=0, collections=0)
    files = tuple(
        PortableFile(packed_name(shard, role), shard.key(role), each.size_bytes, each.sha256)
        for shard in manifest.shards
        for role, each in shard.files.items()
    )
    return PortableIndex(manifest, to_bytes(travelling), files)


def packed_name(shard: ShardRef, role: FileRole) -> str:
    return f"shards/{content_hash_of(shard)}/{file_name(shard.shard_id, role)}"


def content_hash_of(shard: ShardRef) -> str:
    return shard.folder.rpartition("/")[2]


def unpacked(content: bytes, hashes: Mapping[str, str], label: str, kb_id: str) -> Manifest:
    """As the manifest of another KB would name the same shards. `hashes`: of the files of the index, by name.

    Raises E221 for one whose shards are not called by their bytes, or not made of these files: taken up, it could put
    something else in the place of a shard that is there.
    """
    try:
        manifest = from_bytes(content, MANIFEST_NAME)
    except errors.DataError as fault:
        raise errors.index_damaged(label, fault.explanation or fault.message) from fault
    for shard in manifest.shards:
        named = {packed_name(shard, role): each.sha256 for role, each in shard.files.items()}
        if content_hash_of(shard) != hash_files(shard.files):
            raise errors.index_damaged(label, f"a shard is not called by its bytes: {shard.folder}")
        if any(hashes.get(name) != sha256 for name, sha256 in named.items()):
            raise errors.index_damaged(label, f"a shard is not the one that is packaged: {shard.folder}")
    prefix = shards_prefix(kb_id)
    shards = tuple(replace(shard, folder=prefix + content_hash_of(shard)) for shard in manifest.shards)
    return replace(manifest, kb_id=kb_id, shards=shards)


def packed_name_of(key: str, kb_id: str) -> str | None:
    """What a blob of this KB is called in its index; None for one that does not travel."""
    if key == manifest_key(kb_id):
        return MANIFEST_NAME
    prefix = shards_prefix(kb_id)
    return f"shards/{key.removeprefix(prefix)}" if key.startswith(prefix) else None


def files_of(shards: tuple[ShardRef, ...]) -> Iterator[tuple[ShardRef, FileRole]]:
    for shard in shards:
        for role in shard.files:
            yield shard, role
