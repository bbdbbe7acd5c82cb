"""Every byte that a manifest names, compared with what the manifest says of it.

Invariants
    Nothing here writes to the store, or reads a shard through the cache: what is there is what is looked at.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pair import errors, files
from pair.blobs.contract import BlobStore
from pair.engine.format.manifest import FileRole, ShardRef, file_name
from pair.engine.format.shard import OPENERS


@dataclass(frozen=True, slots=True)
class Fault:
    """One file that is not what it should be."""

    key: str
    reason: str
    documents: int
    """Live ones that it takes part in; of a manifest, all."""
    ids: tuple[str, ...] = ()
    """Of documents that are lost, as far as they can be told."""
    remedy: str = ""
    """From what it can be repaired, or was; empty when it cannot."""
    is_repaired: bool = False
    """Without a remedy: it was given up."""


@dataclass(frozen=True, eq=False)
class VerifiedShard:
    ref: ShardRef
    sound: Mapping[FileRole, Path]
    """Local copies of the files that are as they should be."""
    damaged: Mapping[FileRole, Path]
    """Of those that are not, as far as there is anything."""
    faults: Mapping[FileRole, str]
    """Why the others are not."""
    is_as_written: bool
    """Every byte is what the manifest says; what is wrong was so from the beginning."""


def inspect_shard(ref: ShardRef, store: BlobStore, folder: Path) -> VerifiedShard:
    """`folder`: where copies are put. Raises E206, E010."""
    folder.mkdir(parents=True)
    sound: dict[FileRole, Path] = {}
    damaged: dict[FileRole, Path] = {}
    faults: dict[FileRole, str] = {}
    for role in ref.files:
        path = folder / file_name(ref.shard_id, role)
        reason = _fault_of(ref, role, store, path)
        if reason:
            faults[role] = reason
            damaged |= {role: path} if path.exists() else {}
        else:
            sound[role] = path
    is_as_written = not faults
    for role, reason in _disagreements(ref, sound).items():
        faults[role] = reason
        damaged[role] = sound.pop(role)
    return VerifiedShard(ref, sound, damaged, faults, is_as_written)


def _fault_of(ref: ShardRef, role: FileRole, store: BlobStore, path: Path) -> str:
    expected = ref.files[role]
    if not store.download(ref.key(role), path):
        return "it is missing"
    size = path.stat().st_size
    if size != expected.size_bytes:
        return f"it has {size:,} bytes instead of {expected.size_bytes:,}"
    if files.sha256_of(path) != expected.sha256:
        return "its SHA-256 is not the one in the manifest"
    return ""


def _disagreements(ref: ShardRef, paths: Mapping[FileRole, Path]) -> dict[FileRole, str]:
    """Files that are what was written, and were written wrong: damaged, or of another shard."""
    found: dict[FileRole, str] = {}
    for role, path in paths.items():
        try:
            OPENERS[role](ref, path)
        except errors.DataError as fault:
            found[role] = str(fault.details["reason"])
    return found
