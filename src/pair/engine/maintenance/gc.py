"""Delete what no manifest reaches, after a grace period.

Invariants
    Before anything is deleted the manifest is swapped: a writer that read an earlier one can no longer publish, so
    nothing that it uploaded, however slow it is, can become live after it was judged garbage.
    Shards have names of their own for each attempt to write: what is garbage once is garbage for ever.
    What a build has made and not published yet is left alone for as long as its record is kept (build_records.py).
    What a version names that is kept is kept with it. One that is not goes before the manifest is swapped: whoever goes
    back to it has read an earlier manifest, and can no longer publish either.
    A version whose copy cannot be read is kept for as long as one that can, and as nobody can tell what it names, so is
    all that was there before it. Then it goes.
    Grace and days are counted by the clock of the store: no machine whose clock is wrong cuts them short.
"""

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pair.blobs.contract import BlobInfo, BlobStore
from pair.engine import rules
from pair.engine.format.manifest import Manifest, shards_prefix
from pair.engine.storage.manifest_store import ManifestCopy
from pair.engine.storage.pending_shards import PendingShards
from pair.engine.write.writer import EngineContext


@dataclass(frozen=True, slots=True)
class GarbageReport:
    deleted_shards: int
    deleted_bytes: int
    kept_shards: int
    """That no manifest names, but whose time has not come."""
    manifest_version: int
    kept_versions: int = 0


def collect(parts: EngineContext, store: BlobStore, *, grace_seconds: float) -> GarbageReport:
    """Waits for the lease as a writer does. Raises E203, E237.

    Raises E201: before a first manifest there is nothing that could stop a slow first writer.
    """
    parts.publication.refuse_past()
    parts.publication.require_for_write()  # before a lease makes a folder for a KB that is not there
    with parts.hold_lease() as lease:
        before = parts.publication.require_for_write()
        parts.on_step("listing")
        now = parts.publication.now()
        stored = _by_folder(store, parts.kb_id)
        records = PendingShards(store, parts.kb_id, parts.new_id)
        protected, condemned = records.list_protected(now, parts.policy.gc_build_seconds)
        written = {folder: max(each.modified_at for each in blobs) for folder, blobs in stored.items()}
        versions = _versions(parts, before.manifest, now)
        doubtful = versions.doubtful(stored)
        taken = (
            rules.find_garbage(before.manifest, written, now, grace_seconds) - protected - versions.pinned - doubtful
        )
        idle = len(stored.keys() - before.manifest.folders - versions.pinned)
        longest = max(grace_seconds, parts.policy.gc_grace_seconds)
        forgotten = rules.find_old_drops(before.manifest, now, longest, is_swapped=bool(taken))
        if not taken and not forgotten:
            _forget(records, condemned)
            _delete(store, versions.expired)
            return GarbageReport(0, 0, idle, before.manifest.number, len(versions.kept))
        lease.check()
        _delete(store, versions.expired)
        after = before.manifest.make_collected(parts.new_id(), now, taken, forgotten)
        published = parts.publication.swap(before, after)
        parts.on_step("condemned")
        for folder in sorted(taken):
            for blob in stored[folder]:
                parts.on_step("deleting")
                store.delete(blob.key)
        _forget(records, condemned)
    parts.on_step("collected")
    deleted_bytes = sum(blob.size_bytes for folder in taken for blob in stored[folder])
    return GarbageReport(len(taken), deleted_bytes, idle - len(taken), published.manifest.number, len(versions.kept))


@dataclass(frozen=True, slots=True)
class _KeptVersions:
    kept: frozenset[int]
    pinned: frozenset[str]
    """Folders of shards that those name."""
    expired: tuple[str, ...]
    """Keys of copies that nobody may go back to."""
    unread_at: datetime.datetime | None
    """When the last one of those that are kept and cannot be read became current."""

    def doubtful(self, stored: Mapping[str, Sequence[BlobInfo]]) -> frozenset[str]:
        """Folders that one that cannot be read may name: they were there before it."""
        if self.unread_at is None:
            return frozenset()
        began = {folder: min(each.modified_at for each in blobs) for folder, blobs in stored.items()}
        return frozenset(folder for folder, at in began.items() if at <= self.unread_at)


@dataclass(frozen=True, slots=True)
class _ReachableShards:
    """What is remembered of a manifest: there may be thousands of them."""

    folders: frozenset[str]
    is_rearranged: bool


def _versions(parts: EngineContext, current: Manifest, now: datetime.datetime) -> _KeptVersions:
    """One that cannot be read takes no place from one that can."""
    history, policy = parts.publication.history, parts.policy
    copies = history.copies(current)
    found = {current.number: _ReachableShards(current.folders, current.is_rearranged)}
    there: list[ManifestCopy] = []
    for copy, manifest in history.read_all([each for each in copies.line if each.number < current.number]):
        there.append(copy)
        if isinstance(manifest, Manifest):
            found[copy.number] = _ReachableShards(manifest.folders, manifest.is_rearranged)
    stored_at = {copy.number: copy.stored_at for copy in copies.line}
    past = [_past_version(copy.number, found.get(copy.number + 1), stored_at) for copy in there]
    kept = rules.choose_versions([each for each in past if each.number in found], policy, now)
    as_if_read = rules.choose_versions(past, policy, now)
    unread = [copy for copy in there if copy.number not in found and copy.number in as_if_read]
    spared = kept | {copy.number for copy in unread}
    return _KeptVersions(
        kept,
        pinned=frozenset(folder for number in kept for folder in found[number].folders),
        expired=(*(copy.key for copy in there if copy.number not in spared), *copies.stray),
        unread_at=max((copy.stored_at for copy in unread), default=None),
    )


def _past_version(
    number: int, after: _ReachableShards | None, stored_at: Mapping[int, datetime.datetime]
) -> rules.PastVersion:
    """When it was replaced is not known any more once the next one is gone: then it is as old as it is."""
    replaced_at = stored_at.get(number + 1, stored_at[number])
    return rules.PastVersion(number, replaced_at, after is not None and after.is_rearranged)


def _delete(store: BlobStore, keys: Sequence[str]) -> None:
    for key in keys:
        store.delete(key)


def _forget(records: PendingShards, condemned: Sequence[str]) -> None:
    for key in condemned:
        records.forget(key)


def _by_folder(store: BlobStore, kb_id: str) -> dict[str, list[BlobInfo]]:
    found: dict[str, list[BlobInfo]] = {}
    for blob in store.list(shards_prefix(kb_id)):
        found.setdefault(blob.key.rpartition("/")[0], []).append(blob)
    return found
