"""A manifest that is damaged or gone, from the copies that are kept of each.

Invariants
    What is put back is a new manifest with the shards of the copy: whoever saw the lost one goes on from there.
    Which copy: the one whose commit the damaged bytes still tell, else the newest that can be read.
    Where a manifest is missing and there is no copy, an empty one is put only for a caller that gives up what is lost.
"""

import contextlib
import datetime
import re
from dataclasses import dataclass, replace

from pair import errors
from pair.blobs.contract import Blob, BlobStore
from pair.blobs.leases import HeldLease
from pair.engine.backup.verify_files import Fault
from pair.engine.format.manifest import (
    DroppedShard,
    Manifest,
    from_bytes,
    manifest_key,
    shards_prefix,
    version_in_key,
    versions_prefix,
)
from pair.engine.storage.manifest_store import StoredManifest
from pair.engine.write.writer import EngineContext

_COMMIT = re.compile(rb'"commit_id":"([0-9a-f]{8,64})"')


@dataclass(frozen=True, slots=True)
class FoundManifest:
    """What there is to go by."""

    manifest: Manifest | None
    """None when neither the manifest nor any copy can be read."""
    fault: Fault | None = None


class ManifestRepair:
    def __init__(self, parts: EngineContext, store: BlobStore) -> None:
        self._parts = parts
        self._store = store
        self._key = manifest_key(parts.kb_id)

    def find(self, *, repair: bool, empty: Manifest | None = None) -> FoundManifest:
        """Raises E201 for a KB of which there is nothing; E203 and what a swap raises when it is repaired.

        `empty`: what to put in the place of a missing manifest without a copy; None to leave the KB as it is.
        """
        try:
            published = self._parts.publication.current()
        except errors.DataError as fault:
            return self._mended(str(fault.details["reason"]), repair=repair)
        if published is not None:
            return FoundManifest(published.manifest)
        publication = self._parts.publication
        is_new = not publication.has_leftovers() or publication.is_first_write_unfinished()
        if is_new and self._copy(None) is None:
            raise errors.kb_uninitialised(self._parts.kb_id)
        return self._mended("it is missing", repair=repair, empty=empty)

    def _mended(self, reason: str, *, repair: bool, empty: Manifest | None = None) -> FoundManifest:
        copy = self._copy(self._store.get(self._key))
        if copy is None and empty is None:
            return FoundManifest(None, Fault(self._key, reason, 0))
        remedy = "" if copy is None else f"the copy of version {copy.number}"
        fault = Fault(self._key, reason, copy.documents if copy else 0, (), remedy, is_repaired=repair)
        return FoundManifest(self._put_back(empty) if repair else copy, fault)

    def _copy(self, damaged: Blob | None) -> Manifest | None:
        told = _COMMIT.search(damaged.data) if damaged is not None else None
        commit = told[1].decode() if told else ""
        found = [
            (version[1] == commit, version[0], info.modified_at, info.key)
            for info in self._store.list(versions_prefix(self._parts.kb_id))
            if (version := version_in_key(info.key)) is not None
        ]
        for *_, key in sorted(found, reverse=True):
            blob = self._store.get(key)
            try:
                if blob is not None:
                    return from_bytes(blob.data, key)
            except errors.DataError:
                continue
        return None

    def _put_back(self, empty: Manifest | None) -> Manifest:
        """Waits for the lease as a writer does."""
        with self._parts.hold_lease() as lease:
            return self._swapped(lease, empty)

    def _swapped(self, lease: HeldLease, empty: Manifest | None) -> Manifest:
        parts, blob = self._parts, self._store.get(self._key)
        with contextlib.suppress(errors.DataError):
            if blob is not None:
                return from_bytes(blob.data, self._key)  # somebody else was faster
        copy = self._copy(blob) or empty
        if copy is None:
            raise errors.stored_data_damaged(self._key, "there is no copy of it that can be read")
        now = parts.publication.now()
        after = copy.make_next(parts.new_id(), now, copy.shards, "repair")
        after = replace(after, dropped=self._waiting(after, now))
        lease.check()
        return parts.publication.swap(None if blob is None else StoredManifest(copy, blob.version), after).manifest

    def _waiting(self, manifest: Manifest, now: datetime.datetime) -> tuple[DroppedShard, ...]:
        """What nobody names: when it was dropped is lost, and slow readers may have it still."""
        stored = {info.key.rpartition("/")[0] for info in self._store.list(shards_prefix(manifest.kb_id))}
        at = now.astimezone(datetime.UTC).isoformat()
        return tuple(DroppedShard(folder, at) for folder in sorted(stored - manifest.folders))
