"""The index of a package: the shards of a KB in a portable form, and their merge into another KB.

Layout of an index: `manifest.json`, and `shards/<content hash>/<file>` for each file of each shard.
Invariants
    Names in an index do not contain the name of the KB, so any KB can install it.
    The same state of a KB gives the same bytes.
    Nothing is embedded, and no shard is rewritten. Readers see the KB without the package or with all of it.
    Documents that did not come with a package stay: ingested documents, pages, edited files.
    Of two documents with one id, one is live.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from pair import errors
from pair.ai.caching_embedder import CachingEmbedder
from pair.blobs.contract import BlobStore, LinkingStore
from pair.engine.format.columns import Identities, hash_ids
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
from pair.engine.format.shard import OPENERS, IdFile, SearchFile, open_ids, open_search
from pair.engine.storage.manifest_store import find_missing_files
from pair.engine.storage.shard_cache import ShardCache
from pair.engine.write.commit import Change, EngineContext, next_manifest
from pair.engine.write.writer import Numbers, Writer, live_mask
from pair.files import hash_file

MANIFEST_NAME = "manifest.json"


@dataclass(frozen=True, slots=True)
class PortableFile:
    """A file of a shard, with its name in the index and its key in the store."""

    name: str
    key: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True)
class PortableIndex:
    manifest: Manifest
    content: bytes
    """The manifest for the index, as bytes."""
    files: tuple[PortableFile, ...]

    @property
    def sha256(self) -> str:
        """Hash of the whole index, because the manifest has the hash of every file."""
        return hashlib.sha256(self.content).hexdigest()


def pack_index(manifest: Manifest) -> PortableIndex:
    """Return the index of a KB. Its manifest lacks the fields that only concern the store of the KB."""
    portable = replace(manifest, dropped=(), recent_commits=(), restored=0, rolled_back=0, collections=0)
    files = tuple(
        PortableFile(name_in_index(shard, role), shard.key(role), file.size_bytes, file.sha256)
        for shard in manifest.shards
        for role, file in shard.files.items()
    )
    return PortableIndex(manifest, to_bytes(portable), files)


def name_in_index(shard: ShardRef, role: FileRole) -> str:
    return f"shards/{_hash_in_key(shard)}/{file_name(shard.shard_id, role)}"


def _hash_in_key(shard: ShardRef) -> str:
    return shard.folder.rpartition("/")[2]


def unpack_manifest(content: bytes, hashes: Mapping[str, str], label: str, kb_id: str) -> Manifest:
    """Return the manifest of an index, with the keys of this KB. `hashes`: SHA-256 of the packaged files, by name.

    Raises E221 for a shard that is not named by its hash or not made of these files: it could replace another shard.
    """
    try:
        manifest = from_bytes(content, MANIFEST_NAME)
    except errors.DataError as fault:
        raise errors.index_damaged(label, fault.explanation or fault.message) from fault
    for shard in manifest.shards:
        if _hash_in_key(shard) != hash_files(shard.files):
            raise errors.index_damaged(label, f"a shard is not called by its bytes: {shard.folder}")
        if any(hashes.get(name_in_index(shard, role)) != file.sha256 for role, file in shard.files.items()):
            raise errors.index_damaged(label, f"a shard is not the one that is packaged: {shard.folder}")
    moved = (replace(shard, folder=shards_prefix(kb_id) + _hash_in_key(shard)) for shard in manifest.shards)
    return replace(manifest, kb_id=kb_id, shards=tuple(moved))


def find_name_in_index(key: str, kb_id: str) -> str | None:
    """Return the name of a blob of this KB in the index; None if the index does not contain it."""
    if key == manifest_key(kb_id):
        return MANIFEST_NAME
    prefix = shards_prefix(kb_id)
    return f"shards/{key.removeprefix(prefix)}" if key.startswith(prefix) else None


@dataclass(frozen=True)
class PackageShards:
    """The index of a package to install."""

    manifest: Manifest
    """The manifest, with the keys of the KB that installs the package."""
    name: str
    """Name of the package. A later version replaces the shards of an earlier one."""
    label: str
    index_sha256: str
    path_of: Callable[[str], Path | None]
    """A function that returns the path of a shard file, by its name in the index; None if it was not downloaded."""
    owner: str
    """Owner of the documents of packaged files."""
    is_verified: bool
    """Whether the hashes of the files are verified."""
    text_of: Callable[[str], str | None] = lambda document_id: None
    """A function that returns the text of the packaged file of a document; None if it cannot be read."""
    edited: frozenset[str] = frozenset()
    """Ids of documents whose local version stays."""
    gone: frozenset[str] = frozenset()
    """Ids of documents not to install: their files were deleted, locally or in the package."""


@dataclass(frozen=True, slots=True)
class MergeReport:
    manifest_version: int
    documents: int


class MissingFileError(Exception):
    """A file is missing from the store, and was not downloaded. The message names the file."""


@dataclass(frozen=True, eq=False)
class PackageMerger:
    context: EngineContext
    store: BlobStore
    writer: Writer
    embedding: CachingEmbedder

    def refuse(self, manifest: Manifest) -> None:
        """Raise E220 if the embedders of package and process differ; E303, E304 if the KB has another embedder."""
        if (manifest.embedder, manifest.dimension) != (self.embedding.name, self.embedding.dimension):
            raise errors.index_of_another_embedder(self.context.kb_id, manifest.embedder, self.embedding.name)
        before = self.context.manifests.current()
        if before is not None and before.manifest.shards:
            self.writer.check_embedder(before.manifest)

    def check(self, package: PackageShards) -> frozenset[str]:
        """Open every file of the package. Return the ids of documents whose text differs from the packaged file.

        Raises E221 for a damaged or unsafe file; MissingFileError. Changes nothing.
        """
        differing: set[str] = set()
        for shard in package.manifest.shards:
            try:
                ids, search = self._open_files(package, shard)
                live = live_mask(shard)
                for listed in ids.after(""):
                    if search.header(listed.doc).id != listed.id:
                        raise errors.index_damaged(package.label, f"{listed.id} is the id of two documents")
                    expected = package.text_of(listed.id) if live[listed.doc] else None
                    if expected is not None and search.text(listed.doc) != expected:
                        differing.add(listed.id)
            except errors.DataError as fault:
                if fault.code != errors.STORED_DATA_DAMAGED:
                    raise
                # The package is damaged, not the KB.
                reason = f"{fault.details['key']}: {fault.details['reason']}"
                raise errors.index_damaged(package.label, reason) from fault
        return frozenset(differing)

    def _open_files(self, package: PackageShards, shard: ShardRef) -> tuple[IdFile, SearchFile]:
        """Open the files of a shard: from the store if it has the shard, else from the package."""
        if not find_missing_files(self.store, shard):
            opened = self.context.cache.open(shard)
            return opened.ids(), opened.search(0.0)
        paths = {role: _find_file(package, shard, role) for role in shard.files}
        for role, path in paths.items():
            if path.stat().st_size != shard.files[role].size_bytes:
                raise errors.index_damaged(package.label, f"the size of {path.name} differs from its manifest")
            OPENERS[role](shard, path)
        return open_ids(shard, paths["ids"]), open_search(shard, paths["search"])

    def upload_shards(self, package: PackageShards, named: frozenset[str] = frozenset()) -> int:
        """Upload the shards that the store lacks, and do not publish them. Return their number.

        `named`: folders of shards that the store is known to have. Raises MissingFileError.
        """
        self.context.manifests.read_for_write()
        unnamed = [shard for shard in package.manifest.shards if shard.folder not in named]
        missing = [shard for shard in unnamed if find_missing_files(self.store, shard)]
        for shard in missing:
            for role, file in shard.files.items():
                path = _find_file(package, shard, role)
                self.context.on_step("upload")
                # A file that was just unpacked and verified need not be copied.
                if package.is_verified and file.sha256 and isinstance(self.store, LinkingStore):
                    self.store.link(shard.key(role), path, file.sha256)
                else:
                    self.store.upload(shard.key(role), path)
        self.context.on_step("uploaded")
        return len(missing)

    def install(self, package: PackageShards) -> MergeReport:
        """Upload the shards, publish them in one swap. Raises E203, E236, MissingFileError, and errors of a write."""
        before = self.context.manifests.current()
        writer = self.writer.since(before.manifest.number if before is not None else 0)
        self.refuse(package.manifest)
        self.upload_shards(package)

        def change(manifest: Manifest) -> Change[None]:
            if manifest.number:
                # Garbage collection may have deleted unpublished shards. It holds the lease until it is done.
                self.upload_shards(package, manifest.folders)
            self.refuse(package.manifest)
            shards = merge(manifest, package, self.context.cache)
            is_same = [(shard.folder, shard.gone) for shard in manifest.shards] == [
                (shard.folder, shard.gone) for shard in shards
            ]
            if is_same and manifest.index_sha256 == package.index_sha256:
                return Change(None, None)
            after = next_manifest(self.context, manifest, shards, "install")
            is_alone = all(shard.origin == package.name for shard in after.shards)
            after = replace(
                after,
                label=package.label,
                index_sha256=package.index_sha256,
                restored=0,
                hashed_as=package.manifest.hashed_as if is_alone else after.hashed_as,
            )
            return Change(after, None)

        installed = writer.commit(change).manifest
        return MergeReport(installed.number, installed.documents)


def _find_file(package: PackageShards, shard: ShardRef, role: FileRole) -> Path:
    """Return the path of a file of the package. Raises MissingFileError."""
    name = name_in_index(shard, role)
    path = package.path_of(name)
    if path is None or not (package.is_verified or hash_file(path) == shard.files[role].sha256):
        raise MissingFileError(name)
    return path


def merge(manifest: Manifest, package: PackageShards, cache: ShardCache) -> list[ShardRef]:
    """Return the local shards and the shards of the package, with one live version of each document.

    A local document is replaceable if it belongs to the owner of packaged files, or came with another package.

    in the package | local, replaceable | edited locally | live afterwards
    yes            | yes                | no             | the packaged version
    yes            | yes                | yes            | the local version
    yes            | no                 | -              | the local version
    no             | yes                | -              | the local version, unless its file is gone
    no             | no                 | -              | the local version
    """
    packaged = [replace(shard, origin=package.name) for shard in package.manifest.shards]
    folders = {shard.folder for shard in packaged}
    own = [shard for shard in manifest.shards if shard.origin != package.name and shard.folder not in folders]
    edited, gone = hash_ids(sorted(package.edited)), hash_ids(sorted(package.gone))
    packaged = [shard.without(_find_numbers(shard, gone, cache)) for shard in packaged]
    local: list[ShardRef] = []
    for shard in own:
        replaceable = np.arange(shard.documents)
        if not shard.origin:
            replaceable = cache.open(shard).ids().numbers_of_owner(package.owner)
        local_loses = np.setdiff1d(replaceable, _find_numbers(shard, edited, cache))
        in_both = [_find_common(shard, other, cache) for other in packaged]
        replaced = np.intersect1d(np.concatenate([np.empty(0, np.int64), *(here for here, _ in in_both)]), local_loses)
        removed = np.intersect1d(_find_numbers(shard, gone, cache), replaceable)
        local.append(shard.without(np.union1d(replaced, removed)))
        packaged = [
            other.without(there[~np.isin(here, local_loses)])
            for other, (here, there) in zip(packaged, in_both, strict=True)
        ]
    return [*local, *packaged]


def _find_common(shard: ShardRef, other: ShardRef, cache: ShardCache) -> tuple[Numbers, Numbers]:
    """Return the live documents that both shards have: their numbers in `shard`, and in `other`."""
    here, there = cache.open(shard).ids(), cache.open(other).ids()
    identities, numbers = there.identities()
    lines = here.find(identities)
    is_common = lines >= 0
    mine, theirs = here.numbers_at(lines[is_common]), numbers[is_common]
    live = live_mask(shard)[mine] & live_mask(other)[theirs]
    return mine[live], theirs[live]


def _find_numbers(shard: ShardRef, identities: Identities, cache: ShardCache) -> Numbers:
    if not len(identities):
        return np.empty(0, np.int64)
    ids = cache.open(shard).ids()
    lines = ids.find(identities)
    return ids.numbers_at(lines[lines >= 0])
