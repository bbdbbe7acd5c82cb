"""Detection and repair of damage in a KB, without blocking readers and writers.

Damage is repaired from, in this order: a copy of the file; the other files of the shard; the synced sources. Documents
of sources are dropped here, and the caller stores them again.
Invariants
    A missing shard that the current manifest no longer names is not damage, so the manifest is read again first.
    A document is dropped only if a source has it. Lost documents and versions are dropped only on request.
    The lease is held only for swaps. Damage without a remedy is not changed.
    A lost manifest is replaced by one with the shards of a copy: the copy that the damaged bytes name, else the
    newest. Without a copy, an empty manifest is written only on request.
"""

import contextlib
import datetime
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from pair import errors
from pair.blobs.contract import Blob, BlobStore, Version
from pair.clock import to_timestamp
from pair.engine.backup.shard_repair import Replicas, ShardRebuilder, VerifiedShard, verify_shard
from pair.engine.format.manifest import (
    DroppedShard,
    FileRole,
    Manifest,
    ShardRef,
    from_bytes,
    manifest_key,
    shards_prefix,
    to_bytes,
    version_in_key,
    versions_prefix,
)
from pair.engine.format.shard import ListedDocument, open_ids
from pair.engine.format.shard_builder import build_shard
from pair.engine.storage.manifest_store import ManifestCopy, StoredManifest
from pair.engine.storage.shard_cache import ShardMissingError
from pair.engine.write.commit import Change, EngineContext, commit, next_manifest
from pair.engine.write.prepare import Preparation
from pair.engine.write.writer import Writer, list_live, scratch_folder

_ROUNDS = 5
_SOURCES = "the synced sources"
_COMMIT = re.compile(rb'"commit_id":"([0-9a-f]{8,64})"')


class Fault(msgspec.Struct, frozen=True):
    """One damaged or missing file."""

    key: str = msgspec.field(name="file")
    reason: str
    documents: int
    """Number of live documents of the shard; of all documents for a manifest."""
    ids: tuple[str, ...] = ()
    """Ids of lost documents, if known."""
    remedy: str = ""
    """The source of the repair, planned or done; empty if the file cannot be repaired."""
    is_repaired: bool = msgspec.field(name="repaired", default=False)
    """Whether the file was repaired or, without a remedy, dropped."""


@dataclass(frozen=True, slots=True)
class FsckOptions:
    repair: bool = False
    drop_lost: bool = False
    """Drop shards that cannot be repaired."""
    archives: tuple[Path, ...] = ()
    """Packages that may hold copies of damaged files."""
    obtainable_owner: str = ""
    """Owner of the documents that can be stored again."""
    list_obtainable: Callable[[], frozenset[str]] = frozenset
    """A function that returns the ids of these documents. It is slow, and called only if something is lost."""


class FsckReport(msgspec.Struct, frozen=True, kw_only=True):
    kb_id: str
    manifest_version: int
    is_sound: bool = msgspec.field(name="sound")
    """Whether every fault is repaired."""
    shards: int
    files: int
    size_bytes: int
    dropped: int
    """Number of dropped documents. The caller stores the documents of sources again."""
    faults: tuple[Fault, ...]

    def to_json(self) -> dict[str, Any]:
        return dict(msgspec.to_builtins(self))


@dataclass(frozen=True, eq=False)
class _LostShard:
    """A shard that neither copies nor its other files can restore."""

    ref: ShardRef
    faults: Mapping[FileRole, str]
    listed: list[ListedDocument] | None
    """The live documents; None if they are unknown."""


@dataclass(eq=False)
class Fsck:
    """One check of a KB. Used once."""

    context: EngineContext
    store: BlobStore
    writer: Writer
    preparation: Preparation
    options: FsckOptions
    on_progress: Callable[[int, int], None]
    """Called with the number of checked bytes, and of all bytes."""
    _replicas: Replicas = field(init=False)
    _faults: list[Fault] = field(default_factory=list)
    _shards: int = 0
    _files: int = 0
    _size_bytes: int = 0
    _dropped: int = 0
    _lost: list[_LostShard] = field(default_factory=list)
    _named: tuple[Version, frozenset[str]] | None = None
    """The version of the current manifest, and the folders that it or a kept version names."""

    def run(self) -> FsckReport:
        """Check the KB, and repair it if the options say so. Raises E201, E003, E225, E206, E010, ModelError."""
        self._replicas = Replicas(self.context.kb_id, self.context.cache, self.store, self.options.archives)
        if self.options.repair:
            self.context.manifests.refuse_past()
        manifest = self._repair_manifest()
        if manifest is not None and all(fault.is_repaired for fault in self._faults):
            manifest = self._check_shards()
            self._settle_lost(manifest)
        return FsckReport(
            kb_id=self.context.kb_id,
            manifest_version=manifest.number if manifest else 0,
            is_sound=all(fault.is_repaired for fault in self._faults),
            shards=self._shards,
            files=self._files,
            size_bytes=self._size_bytes,
            faults=tuple(self._faults),
            dropped=self._dropped,
        )

    def _add_shard(
        self,
        shard: ShardRef,
        faults: Mapping[FileRole, str],
        remedy: str,
        *,
        ids: Sequence[str] = (),
        is_repaired: bool,
    ) -> None:
        for role, reason in faults.items():
            self._faults.append(Fault(shard.key(role), reason, shard.live_documents, tuple(ids), remedy, is_repaired))

    def _repair_manifest(self) -> Manifest | None:
        """Return the current manifest, or the copy to restore it from, even if that is done; None without a copy.

        Raises E201 for a KB that does not exist; E203 and the errors of a swap.
        """
        manifests = self.context.manifests
        try:
            published = manifests.current()
        except errors.DataError as fault:
            return self._replace_manifest(str(fault.details["reason"]), None)
        if published is not None:
            return published.manifest
        is_new = not manifests.has_leftovers() or manifests.is_first_write_unfinished()
        if is_new and self._find_copy(None) is None:
            raise errors.kb_uninitialised(self.context.kb_id)
        is_given_up = self.options.repair and self.options.drop_lost
        return self._replace_manifest("it is missing", self.writer.empty_manifest() if is_given_up else None)

    def _replace_manifest(self, reason: str, empty: Manifest | None) -> Manifest | None:
        key, repair = manifest_key(self.context.kb_id), self.options.repair
        copy = self._find_copy(self.store.get(key))
        if copy is None and empty is None:
            self._faults.append(Fault(key, reason, 0))
            return None
        remedy = "" if copy is None else f"the copy of version {copy.number}"
        self._faults.append(Fault(key, reason, copy.documents if copy else 0, (), remedy, is_repaired=repair))
        return self._restore_manifest(key, empty) if repair else copy

    def _find_copy(self, damaged: Blob | None) -> Manifest | None:
        match = _COMMIT.search(damaged.data) if damaged is not None else None
        commit_id = match[1].decode() if match else ""
        copies = [
            (version[1] == commit_id, version[0], info.modified_at, info.key)
            for info in self.store.list(versions_prefix(self.context.kb_id))
            if (version := version_in_key(info.key)) is not None
        ]
        for *_, key in sorted(copies, reverse=True):
            blob = self.store.get(key)
            try:
                if blob is not None:
                    return from_bytes(blob.data, key)
            except errors.DataError:
                continue
        return None

    def _restore_manifest(self, key: str, empty: Manifest | None) -> Manifest:
        """Wait for the lease as a writer does, and publish a copy."""
        context = self.context
        with context.hold_lease() as lease:
            blob = self.store.get(key)
            with contextlib.suppress(errors.DataError):
                if blob is not None:
                    return from_bytes(blob.data, key)  # Another process was faster.
            copy = self._find_copy(blob) or empty
            if copy is None:
                raise errors.stored_data_damaged(key, "it has no readable copy")
            now = context.manifests.now()
            after = copy.make_next(context.new_id(), now, copy.shards, "repair")
            # The times when other shards were dropped are lost, and slow readers may still use these shards.
            stored = {info.key.rpartition("/")[0] for info in self.store.list(shards_prefix(after.kb_id))}
            at = now.astimezone(datetime.UTC).isoformat()
            dropped = tuple(DroppedShard(folder, at) for folder in sorted(stored - after.folders))
            after = replace(after, dropped=dropped)
            lease.check()
            before = None if blob is None else StoredManifest(copy, blob.version)
            return context.manifests.swap(before, after).manifest

    def _read_versions(self, current: Manifest, *, report: bool = False) -> list[tuple[ManifestCopy, Manifest]]:
        """Return the kept versions with the current one. `report`: add unreadable copies to the faults."""
        history = self.context.manifests.history
        kept: list[tuple[ManifestCopy, Manifest]] = []
        for copy, manifest in history.read_all(history.copies(current).line):
            if isinstance(manifest, Manifest):
                kept.append((copy, manifest))
            elif report:
                self._settle_copy(copy, current, str(manifest.details["reason"]))
        return kept

    def _settle_copy(self, copy: ManifestCopy, current: Manifest, reason: str) -> None:
        """Write the copy of the current manifest again. The version of any other unreadable copy is lost."""
        is_current = copy.number == current.number
        is_repaired = self.options.repair and (is_current or self.options.drop_lost)
        if is_repaired and is_current:
            self.store.put(copy.key, to_bytes(current.make_copy()))
        elif is_repaired:
            self.store.delete(copy.key)
        self._faults.append(Fault(copy.key, reason, 0, (), "the manifest" if is_current else "", is_repaired))

    def _check_shards(self) -> Manifest:
        """Check all shards, even those published during the check; return the manifest that is then current."""
        seen: set[str] = set()
        published = self.context.manifests.require()
        kept = self._read_versions(published.manifest, report=True)
        for _ in range(_ROUNDS):
            manifests = [*(manifest for _, manifest in kept), published.manifest]
            named = {shard.folder: (shard, manifest.embedder) for manifest in manifests for shard in manifest.shards}
            shards = [entry for folder, entry in named.items() if folder not in seen]
            total = self._size_bytes + sum(shard.size_bytes for shard, _ in shards)
            for shard, embedder in shards:
                self._check_shard(shard, embedder)
                seen.add(shard.folder)
                self.on_progress(self._size_bytes, total)
            now = self.context.manifests.require()
            if now.version == published.version:
                break
            published, kept = now, self._read_versions(now.manifest)
        return self.context.manifests.require().manifest

    def _check_shard(self, shard: ShardRef, embedder: str) -> None:
        with scratch_folder(self.context.cache) as folder:
            verified = verify_shard(shard, self.store, folder / "shard")
            self._shards += 1
            self._files += len(shard.files)
            self._size_bytes += shard.size_bytes
            if not verified.faults or not self._is_named(shard):
                return
            if verified.is_as_written:
                self._add_shard(shard, verified.faults, "", is_repaired=False)
            else:
                self._repair_shard(verified, folder, embedder)

    def _is_named(self, shard: ShardRef) -> bool:
        """Return whether the current manifest or a kept version still names the shard."""
        published = self.context.manifests.require()
        if self._named is None or self._named[0] != published.version:
            kept = (manifest.folders for _, manifest in self._read_versions(published.manifest))
            self._named = published.version, published.manifest.folders.union(*kept)
        return shard.folder in self._named[1]

    def _repair_shard(self, verified: VerifiedShard, folder: Path, embedder: str) -> None:
        shard, sound, repair = verified.ref, dict(verified.sound), self.options.repair
        left: dict[FileRole, str] = {}
        for role, reason in verified.faults.items():
            replica = self._replicas.find(shard, role, folder)
            if replica is None:
                left[role] = reason
                continue
            sound[role], origin = replica
            if repair:
                self.store.upload(shard.key(role), sound[role])
            self._add_shard(shard, {role: reason}, origin, is_repaired=repair)
        if not left:
            return
        rebuilder = ShardRebuilder(shard, sound, self.context.settings, self.preparation, embedder)
        if remedy := rebuilder.remedy:
            if repair:
                self._rebuild(rebuilder, list(left), folder / "built")
            self._add_shard(shard, left, remedy, is_repaired=repair)
        else:
            listed = list(list_live(shard, open_ids(shard, sound["ids"]))) if "ids" in sound else None
            self._lost.append(_LostShard(shard, left, listed))

    def _rebuild(self, rebuilder: ShardRebuilder, roles: Sequence[FileRole], folder: Path) -> None:
        """Rebuild a shard. Upload the files if their bytes are the same; else publish a new shard."""
        context, shard = self.context, rebuilder.ref
        collections = context.manifests.require().manifest.collections
        number = shard.shard_id.rpartition("-")[2]
        built = build_shard(
            folder,
            context.kb_id,
            rebuilder.documents(),
            commit_id=context.new_id(),
            run=shard.run,
            number=int(number) if number.isdecimal() else 0,
        )
        if all(built.ref.files.get(role) == shard.files[role] for role in roles):
            for role in roles:
                self.store.upload(shard.key(role), built.paths[role])
            return
        context.manifests.upload([built])

        def replace_files(ref: ShardRef) -> ShardRef:
            vectors = built.ref if rebuilder.makes_vectors else ref
            return replace(
                ref,
                shard_id=built.ref.shard_id,
                folder=built.ref.folder,
                files=built.ref.files,
                graph_available=built.ref.graph_available,
                created_at=to_timestamp(context.clock.now()),
                centroids=vectors.centroids,
                radii=vectors.radii,
            )

        def replace_in(manifest: Manifest) -> tuple[ShardRef, ...]:
            return tuple(replace_files(ref) if ref.folder == shard.folder else ref for ref in manifest.shards)

        def change(manifest: Manifest) -> Change[None]:
            if manifest.collections != collections:  # Garbage collection may have deleted the new shard.
                context.manifests.upload([built])
            for copy, kept in self._read_versions(manifest):
                if shard.folder in kept.folders:
                    self.store.put(copy.key, to_bytes(replace(kept, shards=replace_in(kept))))
            if shard.folder not in manifest.folders:
                return Change(None, None)
            return Change(next_manifest(context, manifest, replace_in(manifest), "repair"), None)

        commit(context, change, since=self.writer.began)

    def _settle_lost(self, manifest: Manifest) -> None:
        if not self._lost:
            return
        # After a rollback, the sources are newer than the KB.
        ids = frozenset() if manifest.restored else self.options.list_obtainable()
        unknown = {lost.ref.folder: lost.ref for lost in self._lost if lost.listed is None}
        known_ids: set[str] = set()
        for shard in manifest.shards if unknown else ():
            if shard.folder not in unknown:
                with contextlib.suppress(ShardMissingError, errors.DataError):  # The damage is reported elsewhere.
                    known_ids |= {listed.id for listed in list_live(shard, self.context.cache.open(shard).ids())}
        lost_documents = sum(ref.live_documents for ref in unknown.values())
        is_all_unknown_obtainable = bool(unknown) and lost_documents == len(ids - known_ids)
        for lost in self._lost:
            if lost.ref.folder not in manifest.folders:
                self._settle(lost, [], [listed.id for listed in lost.listed or ()])
            elif lost.listed is None:
                self._settle(lost, None if is_all_unknown_obtainable else [], ())
            else:
                owner = self.options.obtainable_owner
                back = [listed for listed in lost.listed if listed.owner == owner and listed.id in ids]
                left = [listed.id for listed in lost.listed if listed not in back]
                self._settle(lost, [listed.doc for listed in back] if left else None, left)
        self._settle_versions(self.context.manifests.require().manifest)

    def _settle_versions(self, current: Manifest) -> None:
        """Report the versions that need a lost shard. A rollback cannot restore them."""
        folders = {lost.ref.folder for lost in self._lost}
        is_given_up = self.options.repair and self.options.drop_lost
        for copy, manifest in self._read_versions(current):
            if manifest.number < current.number and manifest.folders & folders:
                if is_given_up:
                    self.store.delete(copy.key)
                reason = f"version {manifest.number} needs a shard that is lost"
                self._faults.append(Fault(copy.key, reason, manifest.documents, is_repaired=is_given_up))

    def _settle(self, lost: _LostShard, numbers: list[int] | None, left: Sequence[str]) -> None:
        """Drop the documents of a lost shard if the options allow, and report the shard.

        `numbers`: documents that a source has; None for all. `left`: ids of documents that no source has.
        """
        shard, options = lost.ref, self.options
        is_dropped = numbers is None or options.drop_lost
        remedy = _SOURCES if numbers is None else ""
        if numbers and not options.drop_lost:
            remedy = f"{_SOURCES}, for {len(numbers):,} of {shard.live_documents:,} documents"
        gone = np.arange(shard.documents) if is_dropped else np.array(numbers, np.int64)

        def drop(manifest: Manifest) -> Change[int]:
            if shard.folder not in manifest.folders:
                return Change(None, 0)
            shards = [ref.without(gone) if ref.folder == shard.folder else ref for ref in manifest.shards]
            after = next_manifest(self.context, manifest, shards, "delete")
            return Change(after, manifest.documents - after.documents)

        if options.repair and len(gone):
            self._dropped += commit(self.context, drop, since=self.writer.began).result
        self._add_shard(shard, lost.faults, remedy, ids=left, is_repaired=options.repair and is_dropped)
