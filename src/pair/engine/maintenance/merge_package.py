"""Take up the index of a package: upload the shards that are missing, then name them all in one swap.

Invariants
    Nothing is embedded, and no shard is rewritten. Readers see the KB as it was, or with the whole package.
    What did not come with a package stays: documents that were ingested, pages, files that were edited here.
    Of two documents with one id, one is live.
Not here
    What travels: packing.py. Fetching and unpacking packages: the stage `sources`.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pair import errors
from pair.ai.caching_embedder import CachingEmbedder
from pair.blobs.contract import BlobStore, LinkingStore
from pair.blobs.leases import HeldLease
from pair.engine.format.columns import hash_id
from pair.engine.format.manifest import FileRole, Manifest, ShardRef
from pair.engine.format.shard import OPENERS, IdFile, SearchFile, open_ids, open_search
from pair.engine.maintenance.portable_index import files_of, packed_name
from pair.engine.storage.manifest_store import StoredManifest
from pair.engine.storage.shard_cache import ShardCache
from pair.engine.write.writer import EngineContext, Writer, WriteReport
from pair.files import sha256_of

_Identities = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class PackageShards:
    """The index of a package, as it is to be taken up."""

    manifest: Manifest
    """Already of the KB that takes it up."""
    name: str
    """Of the package: of two versions of it, the later takes the place of the earlier."""
    label: str
    index_sha256: str
    path_of: Callable[[str], Path | None]
    """Where a file of a shard is, by its name in the index; None for what was not brought as it is stored already."""
    owner: str
    """Of documents that come and go with the package."""
    is_verified: bool
    """Whether the files are known to be what they should be."""
    text_of: Callable[[str], str | None] = lambda document_id: None
    """The text of the packaged file that a document was made of; None when there is none that can be read."""
    edited: frozenset[str] = frozenset()
    """Ids of documents that are kept as they are here."""
    gone: frozenset[str] = frozenset()
    """Ids of documents that shall not be here: their files were deleted, here or in the package."""


@dataclass(frozen=True, slots=True)
class MergeReport:
    manifest_version: int
    documents: int


class MissingFileError(Exception):
    """A file that the store lacks was not brought either; the message names it."""


class PackageMerger:
    def __init__(self, parts: EngineContext, store: BlobStore, writer: Writer, embedding: CachingEmbedder) -> None:
        self._parts = parts
        self._store = store
        self._writer = writer
        self._embedding = embedding

    def refuse(self, manifest: Manifest) -> None:
        """Raises E220 when it was made with another embedder than the KB has or would get, E304 when that differs."""
        if (manifest.embedder, manifest.dimension) != (self._embedding.name, self._embedding.dimension):
            raise errors.index_of_another_embedder(self._parts.kb_id, manifest.embedder, self._embedding.name)
        before = self._parts.publication.current()
        if before is not None and before.manifest.shards:
            self._writer.check_embedder(before.manifest)

    def check(self, parcel: PackageShards) -> frozenset[str]:
        """Open every file of the package, and return the ids of documents whose text is not that of the packaged file.

        Raises E221 for a file that is damaged, or anything but data; MissingFileError. Changes nothing.
        """
        differing: set[str] = set()
        for shard in parcel.manifest.shards:
            with _index_errors(parcel.label):
                ids, search = self._opened_files(parcel, shard)
                differing |= _differing(parcel, shard, ids, search)
        return frozenset(differing)

    def _opened_files(self, parcel: PackageShards, shard: ShardRef) -> tuple[IdFile, SearchFile]:
        """Of a shard that is stored already, what is stored: it has the same bytes, and may not have been brought."""
        if self._is_stored(shard):
            opened = self._parts.cache.open(shard)
            return opened.ids(), opened.search(0.0)
        paths = {role: _sound_path(parcel, shard, role) for role in shard.files}
        for role, path in paths.items():
            if path.stat().st_size != shard.files[role].size_bytes:
                raise errors.index_damaged(parcel.label, f"{path.name} has another size than its manifest says")
            OPENERS[role](shard, path)
        return open_ids(shard, paths["ids"]), open_search(shard, paths["search"])

    def bring(self, parcel: PackageShards, named: frozenset[str] = frozenset()) -> int:
        """Upload the shards that the store lacks, and tell how many. Raises MissingFileError; none is visible yet.

        `named`: folders of shards that need not be looked for.
        """
        self._parts.publication.read_for_write()
        unnamed = [shard for shard in parcel.manifest.shards if shard.folder not in named]
        lacking = [shard for shard in unnamed if not self._is_stored(shard)]
        for shard, role in files_of(tuple(lacking)):
            path = _sound_path(parcel, shard, role)
            self._parts.on_step("upload")
            self._put(shard.key(role), path, shard.files[role].sha256 if parcel.is_verified else "")
        self._parts.on_step("uploaded")
        return len(lacking)

    def _put(self, key: str, path: Path, sha256: str) -> None:
        """`sha256`: of a file that was just unpacked for this; such a file need not be copied again."""
        if sha256 and isinstance(self._store, LinkingStore):
            self._store.take(key, path, sha256)
        else:
            self._store.upload(key, path)

    def _is_stored(self, shard: ShardRef) -> bool:
        """Its name is made of the hashes of its files, so what is there under it is what is meant, if it is whole."""
        found = {info.key: info.size_bytes for info in self._store.list(f"{shard.folder}/")}
        return all(found.get(shard.key(role)) == each.size_bytes for role, each in shard.files.items())

    def take_up(self, parcel: PackageShards) -> MergeReport:
        """Raises E203 and what any write raises, E236, and MissingFileError."""
        found = self._parts.publication.current()
        writer = self._writer.since(found.manifest.number if found is not None else 0)
        self.refuse(parcel.manifest)
        self.bring(parcel)
        outcome: list[Manifest] = []

        def attempt(lease: HeldLease, before: StoredManifest | None) -> WriteReport:
            if before is not None:
                # Garbage collection may have taken what nobody named yet: also one that began before we did, and was
                # still deleting. It holds the lease until it is done.
                self.bring(parcel, before.manifest.folders)
            self.refuse(parcel.manifest)
            manifest = before.manifest if before is not None else self._writer.nothing_yet()
            shards = merged(manifest, parcel, self._parts.cache)
            if manifest.index_sha256 != parcel.index_sha256 or not _are_same(manifest.shards, shards):
                manifest = self._publish(lease, before, manifest, shards, parcel)
            outcome[:] = [manifest]
            return WriteReport(manifest_version=manifest.number)

        writer.retried(attempt)
        return MergeReport(outcome[0].number, outcome[0].documents)

    def _publish(
        self,
        lease: HeldLease,
        before: StoredManifest | None,
        manifest: Manifest,
        shards: Sequence[ShardRef],
        parcel: PackageShards,
    ) -> Manifest:
        now = self._writer.moment_for(manifest, shards)
        after = manifest.make_next(self._parts.new_id(), now, shards, "install")
        is_alone = all(shard.origin == parcel.name for shard in after.shards)
        after = replace(
            after,
            label=parcel.label,
            index_sha256=parcel.index_sha256,
            restored=0,
            hashed_as=parcel.manifest.hashed_as if is_alone else after.hashed_as,
        )
        return self._writer.publish(lease, before, after).manifest


@contextlib.contextmanager
def _index_errors(label: str) -> Iterator[None]:
    """Raises E221 for E207: what is damaged is the package, and not the KB."""
    try:
        yield
    except errors.DataError as fault:
        if fault.code != errors.STORED_DATA_DAMAGED:
            raise
        raise errors.index_damaged(label, f"{fault.details['key']}: {fault.details['reason']}") from fault


def _differing(parcel: PackageShards, shard: ShardRef, ids: IdFile, search: SearchFile) -> set[str]:
    """Live documents whose text is not that of the packaged file. Raises E221, E207."""
    found: set[str] = set()
    live = _live(shard)
    for listed in ids.after(""):
        if search.header(listed.doc).id != listed.id:
            raise errors.index_damaged(parcel.label, f"{listed.id} is the id of two documents")
        expected = parcel.text_of(listed.id) if live[listed.doc] else None
        if expected is not None and search.text(listed.doc) != expected:
            found.add(listed.id)
    return found


def _sound_path(parcel: PackageShards, shard: ShardRef, role: FileRole) -> Path:
    """Where a file of the package is. Raises MissingFileError."""
    name = packed_name(shard, role)
    path = parcel.path_of(name)
    if path is None or not (parcel.is_verified or sha256_of(path) == shard.files[role].sha256):
        raise MissingFileError(name)
    return path


def _are_same(one: Sequence[ShardRef], other: Sequence[ShardRef]) -> bool:
    return [(each.folder, each.gone) for each in one] == [(each.folder, each.gone) for each in other]


# ── which documents are live ───────────────────────────────────────────────────────────────────────


def merged(manifest: Manifest, parcel: PackageShards, cache: ShardCache) -> list[ShardRef]:
    """The shards of the package, and those of the KB that did not come with it, each document live in one of them."""
    brought = [replace(shard, origin=parcel.name) for shard in parcel.manifest.shards]
    folders = {shard.folder for shard in brought}
    own = [shard for shard in manifest.shards if shard.origin != parcel.name and shard.folder not in folders]
    brought = [_without(shard, _numbers_in(shard, _identities(parcel.gone), cache)) for shard in brought]
    if not own:
        return brought
    edited = _identities(parcel.edited)
    local: list[ShardRef] = []
    for shard in own:
        yielding = _yielding(shard, parcel, cache)
        doubled = [_numbers_among(shard, each, cache) for each in brought]
        losing = np.setdiff1d(yielding, _numbers_in(shard, edited, cache))
        gone = np.intersect1d(_numbers_in(shard, _identities(parcel.gone), cache), yielding)
        here = np.concatenate([mine for mine, _ in doubled])
        local.append(_without(shard, np.union1d(np.intersect1d(here, losing), gone)))
        brought = [
            _without(each, theirs[~np.isin(mine, losing)])
            for each, (mine, theirs) in zip(brought, doubled, strict=True)
        ]
    return [*local, *brought]


def _yielding(shard: ShardRef, parcel: PackageShards, cache: ShardCache) -> npt.NDArray[np.int64]:
    """Documents that give way to those of the package: those of its owner, and of other packages."""
    if shard.origin:
        return np.arange(shard.documents)
    return cache.open(shard).ids().numbers_of_owner(parcel.owner)


def _numbers_among(
    shard: ShardRef, other: ShardRef, cache: ShardCache
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Live documents that both hold: their numbers in the one and in the other."""
    here, there = cache.open(shard).ids(), cache.open(other).ids()
    identities, numbers = there.identities()
    lines = here.find(identities)
    found = lines >= 0
    mine, theirs = here.numbers_at(lines[found]), numbers[found]
    live = _live(shard)[mine] & _live(other)[theirs]
    return mine[live], theirs[live]


def _numbers_in(shard: ShardRef, identities: _Identities, cache: ShardCache) -> npt.NDArray[np.int64]:
    if not len(identities):
        return np.empty(0, np.int64)
    ids = cache.open(shard).ids()
    lines = ids.find(identities)
    return ids.numbers_at(lines[lines >= 0])


def _identities(ids: frozenset[str]) -> _Identities:
    return np.array([np.frombuffer(hash_id(each), "<u8") for each in sorted(ids)], "<u8").reshape(-1, 2)


def _live(shard: ShardRef) -> npt.NDArray[np.bool_]:
    return np.ones(shard.documents, np.bool_) if shard.tombstones is None else ~shard.tombstones


def _without(shard: ShardRef, numbers: npt.NDArray[np.int64]) -> ShardRef:
    return shard.without(numbers) if len(numbers) else shard
