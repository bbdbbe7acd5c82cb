"""Garbage collection: delete unreferenced shards, old versions and old build records after a grace period.

Invariants
    The manifest is swapped before anything is deleted. A writer that read an earlier manifest can no longer publish,
    so no shard that it uploaded becomes live after it was judged garbage.
    Each attempt to write uses new names for its shards, so garbage stays garbage.
    Unpublished shards of a build are kept as long as their record (PendingShards).
    Shards of a kept version are kept. The copy of an expired version is deleted before the manifest is swapped, so a
    rollback to it, which read an earlier manifest, can no longer publish.
    A version whose copy is unreadable is kept as long as a readable one, with every shard older than the copy, because
    the version may name any of them.
    The clock of the store measures all periods, so a wrong clock on one machine does not shorten them.
"""

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pair.blobs.contract import BlobInfo, BlobStore
from pair.engine import rules
from pair.engine.format.manifest import Manifest, shards_prefix
from pair.engine.storage.manifest_store import ManifestCopy, PendingShards
from pair.engine.write.commit import Change, EngineContext, commit_under


@dataclass(frozen=True, slots=True)
class GarbageReport:
    deleted_shards: int
    deleted_bytes: int
    kept_shards: int
    """Unreferenced shards whose grace period is not over."""
    manifest_version: int
    kept_versions: int = 0


@dataclass(frozen=True, slots=True)
class _KeptVersions:
    kept: frozenset[int]
    pinned: frozenset[str]
    """Folders of shards that kept versions name."""
    expired: tuple[str, ...]
    """Keys of copies to delete."""
    unread_at: datetime.datetime | None
    """The time when the last kept, unreadable version became current."""


@dataclass(frozen=True, slots=True)
class _Garbage:
    shards: Mapping[str, Sequence[BlobInfo]]
    """The files of each shard to delete, by folder."""
    idle: int
    """Number of unreferenced shards."""
    versions: _KeptVersions
    condemned: Sequence[str]
    """Keys of build records to delete."""


def collect(context: EngineContext, store: BlobStore, *, grace_seconds: float) -> GarbageReport:
    """Wait for the lease as a writer does, and delete garbage. Raises E203, E237.

    Raises E201 for a new KB: without a manifest to swap, a slow first writer could still publish deleted shards.
    """
    context.manifests.refuse_past()
    context.manifests.require_for_write()  # Check before the lease creates a folder for an unknown KB.

    def change(manifest: Manifest) -> Change[_Garbage]:
        context.on_step("listing")
        now = context.manifests.now()
        garbage = _find_garbage(context, store, manifest, now, grace_seconds)
        longest = max(grace_seconds, context.settings.gc_grace_seconds)
        forgotten = rules.find_old_drops(manifest, now, longest, is_swapped=bool(garbage.shards))
        if not garbage.shards and not forgotten:
            return Change(None, garbage)
        lease.check()
        _delete(store, garbage.versions.expired)
        taken = frozenset(garbage.shards)
        return Change(manifest.make_collected(context.new_id(), now, taken, forgotten), garbage)

    with context.hold_lease() as lease:
        committed = commit_under(lease, context, change)
        garbage = committed.result
        if committed.is_changed:
            context.on_step("condemned")
            for folder in sorted(garbage.shards):
                for blob in garbage.shards[folder]:
                    context.on_step("deleting")
                    store.delete(blob.key)
        _delete(store, garbage.condemned)
        if not committed.is_changed:
            _delete(store, garbage.versions.expired)
    if committed.is_changed:
        context.on_step("collected")
    return GarbageReport(
        deleted_shards=len(garbage.shards),
        deleted_bytes=sum(blob.size_bytes for blobs in garbage.shards.values() for blob in blobs),
        kept_shards=garbage.idle - len(garbage.shards),
        manifest_version=committed.manifest.number,
        kept_versions=len(garbage.versions.kept),
    )


def _find_garbage(
    context: EngineContext, store: BlobStore, manifest: Manifest, now: datetime.datetime, grace_seconds: float
) -> _Garbage:
    stored: dict[str, list[BlobInfo]] = {}
    for blob in store.list(shards_prefix(context.kb_id)):
        stored.setdefault(blob.key.rpartition("/")[0], []).append(blob)
    records = PendingShards(store, context.kb_id, context.new_id)
    protected, condemned = records.list_protected(now, context.settings.gc_build_seconds)
    versions = _choose_versions(context, manifest, now)
    written = {folder: max(blob.modified_at for blob in blobs) for folder, blobs in stored.items()}
    taken = rules.find_garbage(manifest, written, now, grace_seconds) - protected - versions.pinned
    if versions.unread_at is not None:  # The unreadable version may name every older shard.
        began = {folder: min(blob.modified_at for blob in stored[folder]) for folder in taken}
        taken = frozenset(folder for folder in taken if began[folder] > versions.unread_at)
    idle = len(stored.keys() - manifest.folders - versions.pinned)
    return _Garbage({folder: stored[folder] for folder in taken}, idle, versions, condemned)


def _choose_versions(context: EngineContext, current: Manifest, now: datetime.datetime) -> _KeptVersions:
    """Choose the versions to keep. An unreadable version does not displace a readable one."""
    history, settings = context.manifests.history, context.settings
    copies = history.copies(current)
    folders = {current.number: current.folders}  # Read no whole manifests: there may be thousands.
    rearranged = {current.number} if current.is_rearranged else set()
    earlier: list[ManifestCopy] = []
    for copy, manifest in history.read_all([copy for copy in copies.line if copy.number < current.number]):
        earlier.append(copy)
        if isinstance(manifest, Manifest):
            folders[copy.number] = manifest.folders
            rearranged |= {copy.number} if manifest.is_rearranged else set()
    stored_at = {copy.number: copy.stored_at for copy in copies.line}
    past = [
        # Fall back to the version's own time if the copy of the next version is gone.
        rules.PastVersion(number, stored_at.get(number + 1, stored_at[number]), number + 1 in rearranged)
        for number in (copy.number for copy in earlier)
    ]
    kept = rules.choose_versions([version for version in past if version.number in folders], settings, now)
    as_if_read = rules.choose_versions(past, settings, now)
    unread = [copy for copy in earlier if copy.number not in folders and copy.number in as_if_read]
    spared = kept | {copy.number for copy in unread}
    return _KeptVersions(
        kept,
        pinned=frozenset(folder for number in kept for folder in folders[number]),
        expired=(*(copy.key for copy in earlier if copy.number not in spared), *copies.stray),
        unread_at=max((copy.stored_at for copy in unread), default=None),
    )


def _delete(store: BlobStore, keys: Sequence[str]) -> None:
    for key in keys:
        store.delete(key)
