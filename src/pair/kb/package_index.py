"""Packages with an index: make one from a KB, open one as a KB, and install one into a KB."""

import contextlib
import dataclasses
import functools
import hashlib
import os
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from pair import errors, files
from pair.clock import Clock
from pair.engine.summary import peek, peek_at_history
from pair.kb.open import DEFAULT_KB, blob_store, open_kb, open_reader
from pair.packages import archive
from pair.packages.content import DamagedCopyError, Observer
from pair.packages.install import InstalledIndex, PublishIndex
from pair.packages.lockfile import CurrentIndex
from pair.packages.package import IndexFile, PackagedIndex, PackagedIndexFiles
from pair.packages.rules import INDEX_FOLDER, INDEX_MANIFEST, make_name
from pair.reading.contract import UnreadableDocument
from pair.settings import Settings
from pair.sync.contract import SyncObserver
from pair.sync.source_text import FileTextReader
from pair.values import SYNC_OWNER, check_kb_id

if TYPE_CHECKING:
    from pair.blobs.contract import BlobStore
    from pair.engine.maintenance.merge_package import PackageMerger, PackageShards
    from pair.kb.kb import KnowledgeBase

"""The owner of documents from files."""


# ── installing ─────────────────────────────────────────────────────────────────────────────────────


@dataclasses.dataclass(frozen=True)
class EngineIndexInstaller:
    """The installer of packaged indexes into one KB, which is opened on first use."""

    settings: Settings
    kb_id: str
    clock: Clock
    observer: Observer
    stack: contextlib.ExitStack
    """The stack that closes the KB."""

    def holds(self, path: str) -> bool:
        """Return whether a file of the package is stored: `.pair-index/shards/<content hash>/<file>`."""
        match path.split("/"):
            case [folder, "shards", content_hash, _] if folder == INDEX_FOLDER:
                return content_hash in self._shards_in_store
        return False

    @functools.cached_property
    def _shards_in_store(self) -> frozenset[str]:
        """Content hashes of all shards of the current manifest and of kept versions."""
        with _open_store(self.settings, self.clock) as store:
            heads = [peek(store, self.kb_id), *peek_at_history(store, self.kb_id)]
        return frozenset(shard for head in heads if head is not None for shard in head.shards)

    def is_current(self, index_sha256: str) -> bool:
        with _open_store(self.settings, self.clock) as store:
            head = peek(store, self.kb_id)
        return head is not None and head.index_sha256 == index_sha256

    @functools.cached_property
    def _merger(self) -> "PackageMerger":
        return self.stack.enter_context(open_kb(self.kb_id, settings=self.settings)).backup.package_merger()

    def stage(self, index: PackagedIndexFiles, *, dry_run: bool) -> PublishIndex | None:
        """Store the missing shards. Raises E221 if the index has another text for a file.

        Only texts of converted documents, as PDF, may differ: converters differ between machines.
        """
        from pair.engine.maintenance.merge_package import MissingFileError  # noqa: PLC0415 - loads numpy

        merger, shards = self._merger, self._read_shards(index)
        merger.refuse(shards.manifest)
        if dry_run:
            return None
        try:
            differing = merger.check(shards)
            if lies := sorted(filter(self._make_reader(index).is_plain, differing)):
                raise errors.index_damaged(index.label, f"its text of {lies[0]} is not that of the packaged file")
            new_shards = merger.upload_shards(shards)
        except MissingFileError as fault:
            raise DamagedCopyError(str(fault)) from fault

        def publish(edited: frozenset[str], gone: frozenset[str]) -> InstalledIndex:
            if differing:
                self.observer.say(
                    f"documents that are not used, because their text differs from the packaged file: "
                    f"{len(differing):,}, such as {min(differing)}. Run pair sync to index these files"
                )
            try:
                report = merger.install(dataclasses.replace(shards, edited=edited, gone=gone | differing))
            except MissingFileError as fault:
                raise DamagedCopyError(str(fault)) from fault
            count = len(shards.manifest.shards)
            return InstalledIndex(self.kb_id, report.manifest_version, report.documents, count, new_shards)

        return publish

    def _make_reader(self, index: PackagedIndexFiles) -> FileTextReader:
        return FileTextReader(index.folder.parent, self.settings.kb.max_source_bytes, open_reader())

    def _read_shards(self, index: PackagedIndexFiles) -> "PackageShards":
        from pair.engine.maintenance.merge_package import PackageShards, unpack_manifest  # noqa: PLC0415 - loads numpy

        reader = self._make_reader(index)

        def read_text(document_id: str) -> str | None:
            """Return the text of a packaged file as sync reads it; None without text."""
            with contextlib.suppress(OSError, UnreadableDocument):
                if document_id in index.packaged:
                    return reader.read_any_size(document_id).text
            return None

        return PackageShards(
            manifest=unpack_manifest(index.content, index.hashes, index.label, self.kb_id),
            name=index.package_name,
            label=index.label,
            index_sha256=index.sha256,
            path_of=index.path_of,
            owner=SYNC_OWNER,
            is_verified=index.is_fresh,
            text_of=read_text,
        )


def _open_store(settings: Settings, clock: Clock) -> "AbstractContextManager[BlobStore]":
    return contextlib.closing(blob_store(settings.engine.store, settings, clock))


def read_current_index(settings: Settings, kb_id: str, clock: Clock) -> CurrentIndex | None:
    """Return the index that searches of a KB use; None if there is no such KB. Raises E206, E207."""
    from pair.engine.format.manifest import from_bytes, manifest_key  # noqa: PLC0415 - loads the engine

    key = manifest_key(kb_id)
    with _open_store(settings, clock) as store:
        blob = store.get(key)
    if blob is None:
        return None
    manifest = from_bytes(blob.data, key)
    return CurrentIndex(embedder=manifest.embedder, index_sha256=manifest.index_sha256, label=manifest.label)


# ── making ─────────────────────────────────────────────────────────────────────────────────────────


def pack_index(
    settings: Settings,
    folder: Path,
    kb_id: str | None,
    name: str,
    observer: Observer,
    stack: contextlib.ExitStack,
) -> tuple[PackagedIndex, dict[str, IndexFile]]:
    """Sync the KB of a folder and return its index, with files that can be read until `stack` closes the KB.

    The sources of this project are the KB `default`; the KB of another folder has the name of its package. A message
    lists documents that are not files of the folder: the publisher may not want to share them.
    """
    is_own = os.path.realpath(folder) == os.path.realpath(files.expand_path(settings.kb.sources_dir))
    own_id = kb_id or (DEFAULT_KB if is_own else make_name(name))
    _sync_folder(settings, folder, own_id, observer, is_own=is_own)
    kb = stack.enter_context(open_kb(own_id, settings=settings))
    index = kb.backup.pack_index()
    manifest, content = index.manifest, index.content
    paths = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    others = manifest.documents - len(kb.existing_ids(paths)) if manifest.documents else 0
    if others:
        observer.say(f"the index also has documents that are not in {folder}: {others:,}")
    packaged = PackagedIndex(
        kb_id=manifest.kb_id,
        manifest_version=manifest.number,
        embedder=manifest.embedder,
        dimension=manifest.dimension,
        documents=manifest.documents,
        chunks=manifest.rows,
        shards=len(manifest.shards),
    )
    sha256 = hashlib.sha256(content).hexdigest()
    listed = {INDEX_MANIFEST: IndexFile(len(content), sha256, lambda: (content,))}
    for file in index.files:
        read = functools.partial(kb.backup.read_packed, file)
        listed[f"{INDEX_FOLDER}/{file.name}"] = IndexFile(file.size_bytes, file.sha256, read)
    return packaged, listed


def _sync_folder(settings: Settings, folder: Path, kb_id: str, observer: Observer, *, is_own: bool) -> None:
    """Sync the KB of a folder. Raises E014 if the folder cannot be read, or belongs to another KB."""
    from pair.kb.sync import SilentSyncObserver, SyncService  # noqa: PLC0415

    check_kb_id(kb_id)
    if (kb_id == DEFAULT_KB) != is_own:
        raise errors.cannot_package(
            str(folder), f"the knowledge base {DEFAULT_KB} is that of {settings.kb.sources_dir}, and of no other folder"
        )
    wanted = settings if kb_id == DEFAULT_KB else _settings_for(settings, folder, kb_id)
    shown = observer if isinstance(observer, SyncObserver) else SilentSyncObserver()
    report = SyncService(wanted, kb_id=kb_id, observer=shown).sync()
    if report.errors:
        raise errors.cannot_package(str(folder), report.errors[0])


def _settings_for(settings: Settings, folder: Path, kb_id: str) -> Settings:
    """Return settings to sync one folder: without links and model, with a separate state."""
    place = files.expand_path(settings.kb.index_cache_path).parent / "packages" / kb_id
    kb = dataclasses.replace(
        settings.kb,
        collections={},
        sources_dir=str(folder),
        links_file_path=str(place / "links.txt"),
        index_path=str(place / "index.txt"),
        index_cache_path=str(place / "index-cache.json"),
        web_fetch_cache_dir=str(place / "web-cache"),
        llms_txt_path="",
    )
    named = settings.named - {"kb.links_file_path"}
    ai = dataclasses.replace(settings.ai, base_url="")
    return dataclasses.replace(settings, kb=kb, ai=ai, named=named)


# ── opening ────────────────────────────────────────────────────────────────────────────────────────


def open_package(path: Path, settings: Settings) -> "KnowledgeBase":
    """Open the KB in a package for reading. Raises E009, E012, E207. A query with another embedder raises E304."""
    from pair.blobs.local import open_zip_store  # noqa: PLC0415 - loads the engine
    from pair.engine.format.manifest import from_bytes  # noqa: PLC0415
    from pair.engine.maintenance.merge_package import find_name_in_index  # noqa: PLC0415

    with files.storage_errors():
        if not path.is_file():
            raise errors.no_kb_at(str(path), "there is no such file")
        archive.refuse_unsafe(path, settings.sources)
        content = archive.read_entry(path, INDEX_MANIFEST, settings.sources)
    if content is None:
        raise errors.no_kb_at(str(path), "the package has no index")
    kb_id = from_bytes(content, f"{path.name}: {INDEX_MANIFEST}").kb_id

    def find_entry(key: str) -> str | None:
        name = find_name_in_index(key, kb_id)
        return None if name is None else f"{INDEX_FOLDER}/{name}"

    return open_kb(kb_id, store=open_zip_store(path, find_entry), settings=settings)
