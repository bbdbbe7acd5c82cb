"""Find what is damaged in a KB, and repair what can be repaired, while others read and write.

From what, in this order: a copy of the very bytes (spare_files.py); the other files of the shard (recovery.py); what
synced sources still have, which is dropped here and stored anew by whoever called.
Invariants
    A shard that vanished because nobody names it any more is no damage: the manifest is read again before it is told.
    A document is dropped only if a source has it. Only who says so gives up what is lost: documents, and versions
    that cannot be gone back to.
    The lease is held for swaps only. What cannot be repaired stays as it is.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from pair import errors
from pair.blobs.contract import BlobStore, Version
from pair.blobs.leases import HeldLease
from pair.clock import to_timestamp
from pair.engine.backup.manifest_repair import ManifestRepair
from pair.engine.backup.rebuild import ShardRebuilder
from pair.engine.backup.replicas import Replicas
from pair.engine.backup.verify_files import Fault, VerifiedShard, inspect_shard
from pair.engine.format.manifest import FileRole, Manifest, ShardRef, to_bytes
from pair.engine.format.shard import IdFile, ListedDocument, open_ids
from pair.engine.format.shard_builder import BuiltShard, build_shard
from pair.engine.storage.manifest_store import ManifestCopy, StoredManifest
from pair.engine.storage.shard_cache import ShardMissingError
from pair.engine.write.prepare import Preparation
from pair.engine.write.writer import EngineContext, Writer, WriteReport, scratch_folder

_ROUNDS = 5
_SOURCES = "the synced sources"


@dataclass(frozen=True, slots=True)
class Obtainable:
    """Documents that can be stored anew."""

    owner: str
    ids: Callable[[], frozenset[str]]
    """Asked only if something is lost: somebody has to look at all of them."""


@dataclass(frozen=True, slots=True)
class FsckOptions:
    repair: bool = False
    drop_lost: bool = False
    """Name shards no longer that cannot be repaired."""
    archives: tuple[Path, ...] = ()
    """Packages and exports that may hold what is damaged here."""
    obtainable: Obtainable | None = None


@dataclass(frozen=True, slots=True)
class FsckReport:
    kb_id: str
    manifest_version: int = 0
    shards: int = 0
    files: int = 0
    size_bytes: int = 0
    faults: tuple[Fault, ...] = ()
    dropped: int = 0
    """Documents that the KB holds no longer: those that sources have are to be stored anew."""

    @property
    def is_sound(self) -> bool:
        return all(fault.is_repaired for fault in self.faults)

    def to_json(self) -> dict[str, Any]:
        return {
            "kb_id": self.kb_id,
            "manifest_version": self.manifest_version,
            "sound": self.is_sound,
            "shards": self.shards,
            "files": self.files,
            "size_bytes": self.size_bytes,
            "dropped": self.dropped,
            "faults": [
                {
                    "file": fault.key,
                    "reason": fault.reason,
                    "documents": fault.documents,
                    "ids": list(fault.ids),
                    "remedy": fault.remedy,
                    "repaired": fault.is_repaired,
                }
                for fault in self.faults
            ],
        }


@dataclass
class _FsckCounts:
    shards: int = 0
    files: int = 0
    size_bytes: int = 0
    dropped: int = 0
    faults: list[Fault] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class _Lost:
    """A shard that neither copies nor its other files bring back."""

    ref: ShardRef
    faults: dict[FileRole, str]
    listed: list[ListedDocument] | None
    """Its live documents; None when nobody can tell."""


@dataclass(frozen=True, eq=False)
class _KeptManifest:
    """A version that can be gone back to."""

    copy: ManifestCopy
    manifest: Manifest


class Fsck:
    """One look at all that is stored. Used once."""

    def __init__(
        self,
        parts: EngineContext,
        store: BlobStore,
        writer: Writer,
        preparation: Preparation,
        options: FsckOptions,
        on_progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        """`on_progress`: bytes that were looked at, and all of them."""
        self._parts = parts
        self._store = store
        self._writer = writer
        self._preparation = preparation
        self._options = options
        self._on_progress = on_progress
        self._spares = Replicas(parts.kb_id, parts.cache, store, options.archives)
        self._tally = _FsckCounts()
        self._lost: list[_Lost] = []
        self._named: tuple[Version, frozenset[str]] | None = None
        """Folders of shards, by the current manifest of this version or one that is kept with it."""

    def run(self) -> FsckReport:
        """Raises E201, E003, E225, E206, E010; ModelError where vectors have to be made anew."""
        if self._options.repair:
            self._parts.publication.refuse_past()
        options = self._options
        empty = self._writer.nothing_yet() if options.repair and options.drop_lost else None
        found = ManifestRepair(self._parts, self._store).find(repair=options.repair, empty=empty)
        self._tally.faults += [found.fault] if found.fault else []
        manifest = found.manifest
        if manifest is not None and (found.fault is None or found.fault.is_repaired):
            manifest = self._look_at_all()
            self._settle_lost(manifest)
        tally = self._tally
        return FsckReport(
            self._parts.kb_id,
            manifest.number if manifest else 0,
            tally.shards,
            tally.files,
            tally.size_bytes,
            tuple(tally.faults),
            tally.dropped,
        )

    # What is named

    def _past(self, current: Manifest, *, tell: bool = False, until: int | None = None) -> list[_KeptManifest]:
        """The versions that are kept, before the current one or `until`. `tell`: of copies that cannot be read."""
        history = self._parts.publication.history
        found: list[_KeptManifest] = []
        for copy, manifest in history.read_all(history.copies(current).line):
            if isinstance(manifest, errors.DataError):
                if tell:
                    self._tell_copy(copy, current, str(manifest.details["reason"]))
            elif manifest.number < (until or current.number):
                found.append(_KeptManifest(copy, manifest))
        return found

    def _tell_copy(self, copy: ManifestCopy, current: Manifest, reason: str) -> None:
        """That of the current manifest is made anew; others are all that was known of their version."""
        is_current = copy.number == current.number
        is_done = self._options.repair and (is_current or self._options.drop_lost)
        if is_done and is_current:
            self._store.put(copy.key, to_bytes(current.make_copy()))
        elif is_done:
            self._store.delete(copy.key)
        remedy = "the manifest" if is_current else ""
        self._tally.faults.append(Fault(copy.key, reason, 0, (), remedy, is_done))

    def _look_at_all(self) -> Manifest:
        """Also at what others publish meanwhile."""
        seen: set[str] = set()
        published = self._parts.publication.require()
        past = self._past(published.manifest, tell=True)
        for _ in range(_ROUNDS):
            manifests = [*(each.manifest for each in past), published.manifest]
            named = {shard.folder: (shard, each.embedder) for each in manifests for shard in each.shards}
            shards = [each for folder, each in named.items() if folder not in seen]
            total = self._tally.size_bytes + sum(shard.size_bytes for shard, _ in shards)
            for shard, embedder in shards:
                self._look_at(shard, embedder)
                seen.add(shard.folder)
                self._on_progress(self._tally.size_bytes, total)
            now = self._parts.publication.require()
            if now.version == published.version:
                break
            published, past = now, self._past(now.manifest)
        return self._parts.publication.require().manifest

    def _look_at(self, shard: ShardRef, embedder: str) -> None:
        with scratch_folder(self._parts.cache) as folder:
            inspected = inspect_shard(shard, self._store, folder / "shard")
            self._tally.shards += 1
            self._tally.files += len(shard.files)
            self._tally.size_bytes += shard.size_bytes
            if inspected.faults and self._is_named(shard):
                self._mend(inspected, folder, embedder)

    def _is_named(self, shard: ShardRef) -> bool:
        """By now, by the current manifest or a version that is kept."""
        published = self._parts.publication.require()
        if self._named is None or self._named[0] != published.version:
            manifests = (published.manifest, *(kept.manifest for kept in self._past(published.manifest)))
            self._named = published.version, frozenset().union(*(each.folders for each in manifests))
        return shard.folder in self._named[1]

    def _mend(self, inspected: VerifiedShard, folder: Path, embedder: str) -> None:
        shard, sound = inspected.ref, dict(inspected.sound)
        if inspected.is_as_written:
            self._tell(shard, dict(inspected.faults))
            return
        left: dict[FileRole, str] = {}
        for role, reason in inspected.faults.items():
            spare = self._spares.find(shard, role, folder)
            if spare is None:
                left[role] = reason
                continue
            if self._options.repair:
                self._store.upload(shard.key(role), spare.path)
            sound[role] = spare.path
            self._tell(shard, {role: reason}, spare.origin)
        if not left:
            return
        recovery = ShardRebuilder(shard, sound, inspected.damaged, self._parts.policy, self._preparation, embedder)
        if remedy := recovery.remedy:
            if self._options.repair:
                self._rebuild(shard, recovery, list(left), folder / "built")
            self._tell(shard, left, remedy)
        else:
            self._lost.append(_Lost(shard, left, _listed(shard, sound)))

    def _tell(self, shard: ShardRef, faults: dict[FileRole, str], remedy: str = "") -> None:
        is_repaired = bool(remedy) and self._options.repair
        self._tally.faults += [
            Fault(shard.key(role), reason, shard.live_documents, (), remedy, is_repaired)
            for role, reason in faults.items()
        ]

    # From its other files

    def _rebuild(self, shard: ShardRef, recovery: ShardRebuilder, roles: Sequence[FileRole], folder: Path) -> None:
        """The same bytes, if that is what comes of it; else another shard with the same documents in the same order."""
        parts = self._parts
        collections = parts.publication.require().manifest.collections
        tail = shard.shard_id.rpartition("-")[2]
        built = build_shard(
            folder,
            parts.kb_id,
            recovery.documents(),
            commit_id=parts.new_id(),
            run=shard.run,
            number=int(tail) if tail.isdecimal() else 0,
        )
        if all(built.ref.files.get(role) == shard.files[role] for role in roles):
            for role in roles:
                self._store.upload(shard.key(role), built.paths[role])
            return
        parts.publication.upload([built])

        def attempt(lease: HeldLease, before: StoredManifest | None) -> WriteReport:
            manifest = _required(before, parts.kb_id)
            if manifest.collections != collections:  # it may have been taken for garbage
                parts.publication.upload([built])
            for kept in self._past(manifest, until=manifest.number + 1):  # the current one will be of the past
                if shard.folder in kept.manifest.folders:
                    mended = replace(kept.manifest, shards=with_built(kept.manifest))
                    self._store.put(kept.copy.key, to_bytes(mended))
            if shard.folder in manifest.folders:
                self._writer.swap(lease, before, with_built(manifest), parts.new_id(), "repair")
            return WriteReport()

        def with_built(manifest: Manifest) -> tuple[ShardRef, ...]:
            return tuple(
                self._in_place_of(each, built, recovery) if each.folder == shard.folder else each
                for each in manifest.shards
            )

        self._writer.retried(attempt)

    def _in_place_of(self, shard: ShardRef, built: BuiltShard, recovery: ShardRebuilder) -> ShardRef:
        """Documents have the numbers that they had: what is gone stays gone."""
        changed = replace(
            shard,
            shard_id=built.ref.shard_id,
            folder=built.ref.folder,
            files=built.ref.files,
            graph_available=built.ref.graph_available,
            created_at=to_timestamp(self._parts.clock.now()),
        )
        if recovery.makes_vectors:
            return replace(changed, centroids=built.ref.centroids, radii=built.ref.radii)
        return changed

    # From sources, or not at all

    def _settle_lost(self, manifest: Manifest) -> None:
        if not self._lost:
            return
        # What was rolled back is behind its sources.
        obtainable = None if manifest.restored else self._options.obtainable
        ids = obtainable.ids() if obtainable else frozenset()
        unknown = [each for each in self._lost if each.listed is None]
        is_all_unknown_obtainable = bool(unknown) and sum(each.ref.live_documents for each in unknown) == len(
            ids - self._stored_elsewhere(manifest)
        )
        for lost in self._lost:
            if lost.ref.folder not in manifest.folders:
                self._settle(lost, [], [each.id for each in lost.listed or ()])
            elif lost.listed is None:
                self._settle(lost, None if is_all_unknown_obtainable else [], ())
            else:
                owner = obtainable.owner if obtainable else ""
                back = [each for each in lost.listed if each.owner == owner and each.id in ids]
                left = [each.id for each in lost.listed if each not in back]
                self._settle(lost, [each.doc for each in back] if left else None, left)
        self._settle_versions(self._parts.publication.require().manifest)

    def _settle_versions(self, manifest: Manifest) -> None:
        """Nobody can go back to one that needs what is lost."""
        lost = {each.ref.folder for each in self._lost}
        is_given_up = self._options.repair and self._options.drop_lost
        for kept in self._past(manifest):
            if kept.manifest.folders & lost:
                if is_given_up:
                    self._store.delete(kept.copy.key)
                reason = f"version {kept.manifest.number} needs a shard that is lost"
                self._tally.faults.append(
                    Fault(kept.copy.key, reason, kept.manifest.documents, is_repaired=is_given_up)
                )

    def _stored_elsewhere(self, manifest: Manifest) -> frozenset[str]:
        """Documents whose shards say that they are there."""
        lost = {each.ref.folder for each in self._lost if each.listed is None}
        found: set[str] = set()
        for shard in manifest.shards:
            if shard.folder not in lost:
                try:
                    found |= {each.id for each in _live(shard, self._parts.cache.open(shard).ids())}
                except (ShardMissingError, errors.DataError):
                    continue  # it is damaged, and told
        return frozenset(found)

    def _settle(self, lost: _Lost, numbers: list[int] | None, left: Sequence[str]) -> None:
        """`numbers`: of documents that sources have; None for all of them. `left`: ids of those that they have not."""
        shard = lost.ref
        is_dropped = numbers is None or self._options.drop_lost
        remedy = _SOURCES if numbers is None else ""
        if numbers:
            remedy = f"{_SOURCES}, for {len(numbers):,} of {shard.live_documents:,} documents"
        if self._options.drop_lost and numbers is not None:
            remedy = ""
        if self._options.repair and (is_dropped or numbers):
            self._drop(shard, None if is_dropped else numbers)
        is_repaired = self._options.repair and is_dropped
        self._tally.faults += [
            Fault(shard.key(role), reason, shard.live_documents, tuple(left), remedy, is_repaired)
            for role, reason in lost.faults.items()
        ]

    def _drop(self, shard: ShardRef, numbers: list[int] | None) -> None:
        gone = np.arange(shard.documents) if numbers is None else np.array(numbers, np.int64)

        def attempt(lease: HeldLease, before: StoredManifest | None) -> WriteReport:
            manifest = _required(before, self._parts.kb_id)
            if shard.folder not in manifest.folders:
                return WriteReport()
            shards = [each.without(gone) if each.folder == shard.folder else each for each in manifest.shards]
            after = self._writer.swap(lease, before, shards, self._parts.new_id(), "delete").manifest
            return WriteReport(deleted=manifest.documents - after.documents)

        self._tally.dropped += self._writer.retried(attempt).deleted


def _required(before: StoredManifest | None, kb_id: str) -> Manifest:
    if before is None:
        raise errors.kb_uninitialised(kb_id)
    return before.manifest


def _listed(shard: ShardRef, sound: dict[FileRole, Path]) -> list[ListedDocument] | None:
    return list(_live(shard, open_ids(shard, sound["ids"]))) if "ids" in sound else None


def _live(shard: ShardRef, ids: IdFile) -> list[ListedDocument]:
    return [each for each in ids.after("") if shard.tombstones is None or not shard.tombstones[each.doc]]
