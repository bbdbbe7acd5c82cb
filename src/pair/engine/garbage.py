"""Delete what no manifest reaches, after a grace period.

Invariants
    Before anything is deleted the manifest is swapped: a writer that read an earlier one can no longer publish, so
    nothing that it uploaded, however slow it is, can become live after it was judged garbage.
    Shards have names of their own for each attempt to write: what is garbage once is garbage for ever.
    What a build has made and not published yet is left alone for as long as its record is kept (build_records.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pair.blobs.contract import BlobInfo, BlobStore
from pair.blobs.leases import held
from pair.engine import rules
from pair.engine.build_records import BuildRecords
from pair.engine.manifest import lease_name, shards_prefix
from pair.engine.writing import WriteParts


@dataclass(frozen=True, slots=True)
class GarbageReport:
    deleted_shards: int
    deleted_bytes: int
    kept_shards: int
    """That no manifest names, but whose time has not come."""
    manifest_version: int


def collect(parts: WriteParts, store: BlobStore, *, grace_seconds: float) -> GarbageReport:
    """Raises E201: before a first manifest there is nothing that could stop a slow first writer."""
    parts.publication.required()  # before a lease makes a folder for a KB that is not there
    name, seconds = lease_name(parts.kb_id), parts.policy.lease_seconds
    parts.on_step("lease")
    with held(parts.leases, name, seconds=seconds, clock=parts.clock) as lease:
        before = parts.publication.required()
        parts.on_step("listing")
        stored = _by_folder(store, parts.kb_id)
        records = BuildRecords(store, parts.kb_id, parts.new_id)
        protected, condemned = records.protected(parts.clock.now(), parts.policy.gc_build_seconds)
        written = {folder: max(each.modified_at for each in blobs) for folder, blobs in stored.items()}
        taken = rules.garbage(before.manifest, written, parts.clock.now(), grace_seconds) - protected
        idle = len(stored.keys() - {shard.folder for shard in before.manifest.shards})
        if not taken:
            _forget(records, condemned)
            return GarbageReport(0, 0, idle, before.manifest.number)
        lease.check()
        after = before.manifest.after_collection(parts.new_id(), parts.clock.now(), taken)
        published = parts.publication.swap(before, after)
        parts.on_step("condemned")
        for folder in sorted(taken):
            for blob in stored[folder]:
                parts.on_step("deleting")
                store.delete(blob.key)
        _forget(records, condemned)
    parts.on_step("collected")
    deleted_bytes = sum(blob.size_bytes for folder in taken for blob in stored[folder])
    return GarbageReport(len(taken), deleted_bytes, idle - len(taken), published.manifest.number)


def _forget(records: BuildRecords, condemned: Sequence[str]) -> None:
    for key in condemned:
        records.forget(key)


def _by_folder(store: BlobStore, kb_id: str) -> dict[str, list[BlobInfo]]:
    found: dict[str, list[BlobInfo]] = {}
    for blob in store.list(shards_prefix(kb_id)):
        found.setdefault(blob.key.rpartition("/")[0], []).append(blob)
    return found
