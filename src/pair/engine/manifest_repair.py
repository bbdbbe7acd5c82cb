"""A manifest that is damaged or gone, from the copies that are kept of each.

Invariants
    What is put back is a new manifest with the shards of the copy: whoever saw the lost one goes on from there.
    Which copy: the one whose commit the damaged bytes still tell, else the newest that can be read.
"""

import contextlib
import datetime
import re
from dataclasses import dataclass, replace

from pair import errors
from pair.blobs.contract import Blob, BlobStore
from pair.blobs.leases import HeldLease, held
from pair.engine.inspection import Fault
from pair.engine.manifest import (
    DroppedShard,
    Manifest,
    from_bytes,
    lease_name,
    manifest_key,
    shards_prefix,
    version_in_key,
    versions_prefix,
)
from pair.engine.publication import Published
from pair.engine.writing import WriteParts

_COMMIT = re.compile(rb'"commit_id":"([0-9a-f]{8,64})"')


@dataclass(frozen=True, slots=True)
class FoundManifest:
    """What there is to go by."""

    manifest: Manifest | None
    """None when neither the manifest nor any copy can be read."""
    fault: Fault | None = None


class ManifestRepair:
    def __init__(self, parts: WriteParts, store: BlobStore) -> None:
        self._parts = parts
        self._store = store
        self._key = manifest_key(parts.kb_id)

    def find(self, *, repair: bool) -> FoundManifest:
        """Raises E201 for a KB of which there is nothing; E203 and what a swap raises when it is repaired."""
        try:
            published = self._parts.publication.current()
        except errors.DataError as fault:
            return self._mended(str(fault.details["reason"]), repair=repair)
        if published is not None:
            return FoundManifest(published.manifest)
        kb_id = self._parts.kb_id
        if not any(True for prefix in (shards_prefix, versions_prefix) for _ in self._store.list(prefix(kb_id))):
            raise errors.kb_uninitialised(kb_id)
        return self._mended("it is missing", repair=repair)

    def _mended(self, reason: str, *, repair: bool) -> FoundManifest:
        copy = self._copy(self._store.get(self._key))
        if copy is None:
            return FoundManifest(None, Fault(self._key, reason, 0))
        remedy = f"the copy of version {copy.number}"
        fault = Fault(self._key, reason, copy.documents, (), remedy, is_repaired=repair)
        return FoundManifest(self._put_back() if repair else copy, fault)

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

    def _put_back(self) -> Manifest:
        """Waits for the lease as a writer does."""
        parts, attempt = self._parts, 1
        name, seconds = lease_name(parts.kb_id), parts.policy.lease_seconds
        while True:
            try:
                parts.on_step("lease")
                with held(parts.leases, name, seconds=seconds, clock=parts.clock) as lease:
                    return self._swapped(lease)
            except errors.ConflictError as fault:
                if fault.code != errors.LEASE_HELD or attempt >= parts.policy.write_attempts:
                    raise
            parts.pause(attempt)
            attempt += 1

    def _swapped(self, lease: HeldLease) -> Manifest:
        parts, blob = self._parts, self._store.get(self._key)
        with contextlib.suppress(errors.DataError):
            if blob is not None:
                return from_bytes(blob.data, self._key)  # somebody else was faster
        copy = self._copy(blob)
        if copy is None:
            raise errors.stored_data_damaged(self._key, "there is no copy of it that can be read")
        now = parts.publication.now()
        after = copy.succeeded_by(parts.new_id(), now, copy.shards, "repair")
        after = replace(after, dropped=self._waiting(after, now))
        lease.check()
        return parts.publication.swap(None if blob is None else Published(copy, blob.version), after).manifest

    def _waiting(self, manifest: Manifest, now: datetime.datetime) -> tuple[DroppedShard, ...]:
        """What nobody names: when it was dropped is lost, and slow readers may have it still."""
        stored = {info.key.rpartition("/")[0] for info in self._store.list(shards_prefix(manifest.kb_id))}
        at = now.astimezone(datetime.UTC).isoformat()
        return tuple(DroppedShard(folder, at) for folder in sorted(stored - manifest.folders))
