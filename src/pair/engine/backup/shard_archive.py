"""The shards of a KB as they are, in one zip, and back into a KB of any name in any store.

index/manifest.json · index/shards/<content hash>/<file>: stored, not packed, the same bytes for the same manifest
Invariants
    No byte goes in or comes out that is not what the manifest says of it.
    Nothing in a shard knows the KB that it is of: only the keys in the manifest do, and they are written anew.
    A shard is called by what is in it, here as in the store: one that is not is refused.
    What is taken in is named in a record before it is uploaded, and one swap publishes all of it. A shard may have been
    here before and be condemned: so the lease is held once after the record was put, when whoever collects is done.
"""

import contextlib
import hashlib
import shutil
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pair import errors, files, folders
from pair.blobs.contract import BlobStore
from pair.blobs.leases import HeldLease
from pair.engine.backup.export import ExportReport
from pair.engine.format.manifest import (
    Manifest,
    ShardRef,
    file_name,
    from_bytes,
    hash_files,
    no_manifest,
    shards_prefix,
)
from pair.engine.format.shard import OPENERS
from pair.engine.maintenance.portable_index import MANIFEST_NAME, content_hash_of, packed, packed_name
from pair.engine.storage.manifest_store import StoredManifest
from pair.engine.storage.pending_shards import PendingShards
from pair.engine.storage.shard_cache import ShardMissingError
from pair.engine.write.writer import EngineContext, Writer, WriteReport, scratch_folder

_FOLDER = "index/"
_MANIFEST_ENTRY = _FOLDER + MANIFEST_NAME
_ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)
_MOST_MANIFEST_BYTES = 1 << 28


# ── out ────────────────────────────────────────────────────────────────────────────────────────────


def export_shards(
    manifest: Manifest, parts: EngineContext, store: BlobStore, path: Path, on_progress: Callable[[int, int], None]
) -> ExportReport:
    """Raises E207, E206, E010, ShardMissingError; then there is no file."""
    content = packed(manifest).content
    count = sum(len(shard.files) for shard in manifest.shards)
    done = 0
    with files.storage_errors(), scratch_folder(parts.cache) as folder:
        place = folders.resolve_parent(path)
        files.remove_half_written(place)
        with files.replaced_file(place) as stream, zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
            archive.writestr(zipfile.ZipInfo(_MANIFEST_ENTRY, _ZIP_EPOCH), content)
            for shard in sorted(manifest.shards, key=lambda each: each.folder):
                for role in shard.files:
                    local = folder / "file"
                    if not store.download(shard.key(role), local):
                        raise ShardMissingError(shard.key(role))
                    if files.sha256_of(local) != shard.files[role].sha256:
                        raise errors.stored_data_damaged(shard.key(role), "its SHA-256 is not the one in the manifest")
                    entry = zipfile.ZipInfo(_FOLDER + packed_name(shard, role), _ZIP_EPOCH)
                    entry.file_size = shard.files[role].size_bytes
                    with local.open("rb") as source, archive.open(entry, "w") as sink:
                        shutil.copyfileobj(source, sink, files.CHUNK_BYTES)
                    local.unlink()
                    done += 1
                    on_progress(done, count)
    digest = hashlib.sha256(content).hexdigest()
    return ExportReport(
        manifest.kb_id, manifest.documents, manifest.rows, manifest.number, manifest.embedder, digest,
        shards=len(manifest.shards),
    )  # fmt: skip


# ── in ─────────────────────────────────────────────────────────────────────────────────────────────


class ShardArchive:
    """A zip that was exported. Raises E224, E225, E003, E010."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._opened() as archive:
            try:
                if archive.getinfo(_MANIFEST_ENTRY).file_size > _MOST_MANIFEST_BYTES:
                    raise errors.export_not_understood(str(path), "its manifest is too large")
            except KeyError as fault:
                raise errors.export_not_understood(str(path), f"it holds no {_MANIFEST_ENTRY}") from fault
            content = archive.read(_MANIFEST_ENTRY)
        try:
            self.manifest = from_bytes(content, _MANIFEST_ENTRY)
        except errors.DataError as fault:
            reason = f"its manifest cannot be used: {fault.details['reason']}"
            raise errors.export_damaged(str(path), reason) from fault

    @contextlib.contextmanager
    def _opened(self) -> Iterator[zipfile.ZipFile]:
        if not self.path.is_file():
            raise errors.source_path_missing(str(self.path))
        try:
            with files.storage_errors(), zipfile.ZipFile(self.path) as archive:
                yield archive
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as fault:
            raise errors.export_damaged(str(self.path), f"it cannot be read to its end: {fault}") from fault

    def verify(self) -> None:
        """Every byte that its manifest names."""
        with self._opened() as archive:
            for shard in self.manifest.shards:
                if content_hash_of(shard) != hash_files(shard.files):
                    raise errors.export_damaged(str(self.path), "a shard has the name of another one")
                for role, expected in shard.files.items():
                    name = _FOLDER + packed_name(shard, role)
                    try:
                        if archive.getinfo(name).file_size != expected.size_bytes:
                            raise errors.export_damaged(str(self.path), f"{name} is not what its manifest says")
                        with archive.open(name) as stream:
                            digest = hashlib.sha256()
                            while block := stream.read(files.CHUNK_BYTES):
                                digest.update(block)
                    except KeyError as fault:
                        raise errors.export_damaged(str(self.path), f"{name} is missing") from fault
                    if digest.hexdigest() != expected.sha256:
                        raise errors.export_damaged(str(self.path), f"{name} is not what its manifest says")

    def unpack(self, shard: ShardRef, folder: Path) -> dict[str, Path]:
        """The files of a shard by name, in this folder, which is made."""
        folder.mkdir()
        unpacked: dict[str, Path] = {}
        with self._opened() as archive:
            for role in shard.files:
                name = file_name(shard.shard_id, role)
                with archive.open(_FOLDER + packed_name(shard, role)) as source, (folder / name).open("xb") as sink:
                    shutil.copyfileobj(source, sink, files.CHUNK_BYTES)
                unpacked[name] = folder / name
        return unpacked


class ShardImporter:
    def __init__(
        self, parts: EngineContext, store: BlobStore, writer: Writer, on_progress: Callable[[int, int], None]
    ) -> None:
        self._parts = parts
        self._store = store
        self._writer = writer
        self._on_progress = on_progress
        self._records = PendingShards(store, parts.kb_id, parts.new_id)

    def run(self, archive: ShardArchive, embedder: str, *, replace_all: bool) -> WriteReport:
        """`embedder`: the one that is configured. Raises E224, E226, E227, E202, E203, E206, E208, E210, E236."""
        origin, before = archive.manifest, self._parts.publication.current()
        writer = self._writer.since(before.manifest.number if before is not None else 0)
        if origin.embedder != embedder:
            raise errors.export_of_another_embedder(str(archive.path), origin.embedder, embedder, is_shards=True)
        self._refuse_others(before, replace_all=replace_all)
        archive.verify()
        shards = [self._rerooted(shard) for shard in origin.shards]
        self._parts.publication.read_for_write()
        record = self._records.announce(f"import-{origin.commit_id}", shards, origin.dimension)
        if self._parts.publication.current() is not None:  # whoever collects garbage now does not know of the record
            writer.retried(lambda lease, before: WriteReport())
        self._upload(archive, shards)  # before others are kept waiting
        report = writer.retried(
            lambda lease, before: self._publish(lease, before, archive, shards, replace_all=replace_all)
        )
        self._records.forget(record)
        return report

    def _rerooted(self, shard: ShardRef) -> ShardRef:
        return replace(shard, folder=shards_prefix(self._parts.kb_id) + content_hash_of(shard))

    def _refuse_others(self, before: StoredManifest | None, *, replace_all: bool) -> None:
        """Raises E227."""
        if before is not None and before.manifest.documents and not replace_all:
            raise errors.kb_not_empty(self._parts.kb_id, before.manifest.documents)

    def _publish(
        self,
        lease: HeldLease,
        before: StoredManifest | None,
        archive: ShardArchive,
        shards: Sequence[ShardRef],
        *,
        replace_all: bool,
    ) -> WriteReport:
        parts, origin = self._parts, archive.manifest
        self._refuse_others(before, replace_all=replace_all)
        self._upload(archive, shards)  # what is no longer there
        manifest = before.manifest if before else no_manifest(parts.kb_id, origin.embedder, origin.dimension)
        now = self._writer.moment_for(manifest, shards)
        after = manifest.make_imported(parts.new_id(), now, shards, origin)
        published = self._writer.publish(lease, before, after)
        return WriteReport(
            added=after.documents,
            deleted=manifest.documents,
            chunks=after.rows,
            manifest_version=published.manifest.number,
        )

    def _upload(self, archive: ShardArchive, shards: Sequence[ShardRef]) -> None:
        """Those that the store lacks. What is there under such a name and size is what it should be, or fsck tells."""
        for number, (source, shard) in enumerate(zip(archive.manifest.shards, shards, strict=True), 1):
            there = {info.key: info.size_bytes for info in self._store.list(f"{shard.folder}/")}
            missing = [role for role, each in shard.files.items() if there.get(shard.key(role)) != each.size_bytes]
            if missing:
                with scratch_folder(self._parts.cache) as folder:
                    unpacked = archive.unpack(source, folder / "shard")
                    _check_shard(archive.path, shard, unpacked)
                    for role in missing:
                        path = unpacked[file_name(shard.shard_id, role)]
                        if files.sha256_of(path) != shard.files[role].sha256:
                            raise errors.export_damaged(str(archive.path), f"{path.name} changed meanwhile")
                        self._parts.on_step("upload")
                        self._store.upload(shard.key(role), path)
            self._on_progress(number, len(shards))


def _check_shard(archive: Path, shard: ShardRef, unpacked: Mapping[str, Path]) -> None:
    """Raises E224 for a shard that is damaged, or anything but data, though its bytes are what the manifest says."""
    for role in shard.files:
        try:
            OPENERS[role](shard, unpacked[file_name(shard.shard_id, role)])
        except errors.DataError as fault:
            raise errors.export_damaged(str(archive), f"{shard.key(role)}: {fault.details['reason']}") from fault
