"""Shard archives: the shards of a KB as they are, in one zip, and back into a KB of any name in any store.

The zip holds `index/manifest.json` and `index/shards/<content hash>/<file>`: stored, not packed, and the same bytes for
the same manifest.
Invariants
    No byte goes in or comes out that is not what the manifest says of it.
    A shard is named by its content, here as in the store: another one is refused. Only keys in the manifest depend on
    the KB, and they are rewritten.
    Imported shards are named in a record before they are uploaded, and one swap publishes all of them. A shard may have
    been here before and be condemned: so the lease is held once after the record was put, when garbage collection is
    done.
"""

import contextlib
import hashlib
import shutil
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from pair import errors, files
from pair.blobs.contract import BlobStore
from pair.engine.backup.export import ExportReport
from pair.engine.format.manifest import Manifest, ShardRef, file_name, from_bytes, no_manifest
from pair.engine.format.shard import OPENERS
from pair.engine.maintenance.merge_package import (
    MANIFEST_NAME,
    find_missing_files,
    is_named_by_content,
    move_shard,
    name_in_index,
    pack_index,
)
from pair.engine.storage.pending_shards import PendingShards
from pair.engine.storage.shard_cache import ShardMissingError
from pair.engine.write.commit import Change, EngineContext, next_moment
from pair.engine.write.writer import Writer, WriteReport, scratch_folder

_FOLDER = "index/"
_MANIFEST_ENTRY = _FOLDER + MANIFEST_NAME
_ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)
_MOST_MANIFEST_BYTES = 1 << 28


def export_shards(
    manifest: Manifest, context: EngineContext, store: BlobStore, path: Path, on_progress: Callable[[int, int], None]
) -> ExportReport:
    """Raises E207, E206, E010, ShardMissingError; then there is no file."""
    content = pack_index(manifest).content
    entries = [(shard, role) for shard in sorted(manifest.shards, key=lambda ref: ref.folder) for role in shard.files]
    with files.storage_errors(), scratch_folder(context.cache) as folder:
        place, local = files.resolve_parent(path), folder / "file"
        files.remove_half_written(place)
        with files.replace_file(place) as stream, zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
            archive.writestr(zipfile.ZipInfo(_MANIFEST_ENTRY, _ZIP_EPOCH), content)
            for done, (shard, role) in enumerate(entries, 1):
                if not store.download(shard.key(role), local):
                    raise ShardMissingError(shard.key(role))
                if files.hash_file(local) != shard.files[role].sha256:
                    raise errors.stored_data_damaged(shard.key(role), "its SHA-256 is not the one in the manifest")
                entry = zipfile.ZipInfo(_FOLDER + name_in_index(shard, role), _ZIP_EPOCH)
                entry.file_size = shard.files[role].size_bytes
                with local.open("rb") as source, archive.open(entry, "w") as sink:
                    shutil.copyfileobj(source, sink, files.CHUNK_BYTES)
                local.unlink()
                on_progress(done, len(entries))
    return ExportReport(
        kb_id=manifest.kb_id,
        documents=manifest.documents,
        chunks=manifest.rows,
        manifest_version=manifest.number,
        embedder=manifest.embedder,
        sha256=hashlib.sha256(content).hexdigest(),
        shards=len(manifest.shards),
    )


class ShardArchive:
    """An exported zip. Raises E224, E225, E003, E010."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._open() as archive:
            try:
                if archive.getinfo(_MANIFEST_ENTRY).file_size > _MOST_MANIFEST_BYTES:
                    raise errors.export_not_understood(str(path), "its manifest is too large")
            except KeyError as fault:
                raise errors.export_not_understood(str(path), f"it holds no {_MANIFEST_ENTRY}") from fault
            content = archive.read(_MANIFEST_ENTRY)
        try:
            self.manifest = from_bytes(content, _MANIFEST_ENTRY)
        except errors.DataError as fault:
            raise self._damage(f"its manifest cannot be used: {fault.details['reason']}") from fault

    def _damage(self, reason: str) -> errors.DataError:
        return errors.export_damaged(str(self.path), reason)

    @contextlib.contextmanager
    def _open(self) -> Iterator[zipfile.ZipFile]:
        if not self.path.is_file():
            raise errors.source_path_missing(str(self.path))
        try:
            with files.storage_errors(), zipfile.ZipFile(self.path) as archive:
                yield archive
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as fault:
            raise self._damage(f"it cannot be read to its end: {fault}") from fault

    def verify(self) -> None:
        """Check every byte that the manifest names."""
        with self._open() as archive:
            for shard in self.manifest.shards:
                if not is_named_by_content(shard):
                    raise self._damage("a shard has the name of another one")
                for role, expected in shard.files.items():
                    name = _FOLDER + name_in_index(shard, role)
                    try:
                        if archive.getinfo(name).file_size != expected.size_bytes:
                            raise self._damage(f"{name} is not what its manifest says")
                    except KeyError as fault:
                        raise self._damage(f"{name} is missing") from fault
                    with archive.open(name) as stream:
                        if hashlib.file_digest(stream, "sha256").hexdigest() != expected.sha256:  # type: ignore[arg-type]
                            raise self._damage(f"{name} is not what its manifest says")

    def unpack(self, shard: ShardRef, folder: Path) -> None:
        """Put the files of a shard into this folder, which is made. Raises E224 for files that are not data."""
        folder.mkdir()
        with self._open() as archive:
            for role in shard.files:
                path = folder / file_name(shard.shard_id, role)
                with archive.open(_FOLDER + name_in_index(shard, role)) as source, path.open("xb") as sink:
                    shutil.copyfileobj(source, sink, files.CHUNK_BYTES)
        for role in shard.files:
            try:
                OPENERS[role](shard, folder / file_name(shard.shard_id, role))
            except errors.DataError as fault:
                raise self._damage(f"{shard.key(role)}: {fault.details['reason']}") from fault


class ShardImporter:
    def __init__(
        self, context: EngineContext, store: BlobStore, writer: Writer, on_progress: Callable[[int, int], None]
    ) -> None:
        self._context = context
        self._store = store
        self._writer = writer
        self._on_progress = on_progress
        self._records = PendingShards(store, context.kb_id, context.new_id)

    def run(self, archive: ShardArchive, embedder: str, *, replace_all: bool) -> WriteReport:
        """`embedder`: the one that is configured. Raises E224, E226, E227, E202, E203, E206, E208, E210, E236."""
        context, origin = self._context, archive.manifest
        before = context.manifests.current()
        writer = self._writer.since(before.manifest.number if before is not None else 0)
        if origin.embedder != embedder:
            raise errors.export_of_another_embedder(str(archive.path), origin.embedder, embedder, is_shards=True)

        def refuse_others(documents: int) -> None:
            if documents and not replace_all:
                raise errors.kb_not_empty(context.kb_id, documents)

        refuse_others(before.manifest.documents if before else 0)
        archive.verify()
        shards = [move_shard(shard, context.kb_id) for shard in origin.shards]
        context.manifests.read_for_write()
        record = self._records.announce(f"import-{origin.commit_id}", shards, origin.dimension)
        if context.manifests.current() is not None:  # a running garbage collection does not know of the record
            writer.commit(lambda manifest: Change(None, None))
        self._upload(archive, shards)  # before others are kept waiting

        def change(manifest: Manifest) -> Change[WriteReport]:
            refuse_others(manifest.documents)
            self._upload(archive, shards)  # what is no longer there
            moment = next_moment(context, manifest, shards)
            after = manifest.make_imported(context.new_id(), moment, shards, origin)
            return Change(after, WriteReport(added=after.documents, deleted=manifest.documents, chunks=after.rows))

        report = writer.write(change, empty=no_manifest(context.kb_id, origin.embedder, origin.dimension))
        self._records.forget(record)
        return report

    def _upload(self, archive: ShardArchive, shards: Sequence[ShardRef]) -> None:
        """Upload the files that the store lacks. A file of that name and size is the right one, or fsck reports it."""
        for number, shard in enumerate(shards, 1):
            missing = find_missing_files(self._store, shard)
            if missing:
                with scratch_folder(self._context.cache) as folder:
                    archive.unpack(shard, folder / "shard")
                    for role in missing:
                        path = folder / "shard" / file_name(shard.shard_id, role)
                        if files.hash_file(path) != shard.files[role].sha256:
                            raise errors.export_damaged(str(archive.path), f"{path.name} changed meanwhile")
                        self._context.on_step("upload")
                        self._store.upload(shard.key(role), path)
            self._on_progress(number, len(shards))
