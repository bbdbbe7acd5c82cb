"""Packages with an index: made of a KB, opened as one, and taken up by the engine."""

import contextlib
import dataclasses
import functools
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from pair import errors, files
from pair.clock import Clock
from pair.engine.summary import peek, peek_at_history
from pair.kb.open import DEFAULT_KB, blob_store, document_loader, open_kb
from pair.packages import archive
from pair.packages.contract import CurrentIndex, InstalledIndex, MissingIndexFileError, Observer, PackagedIndexFiles
from pair.packages.package import IndexFile, IndexToPackage, PackagedIndex
from pair.packages.rules import INDEX_FOLDER, INDEX_MANIFEST, name_from_folder
from pair.settings import Settings
from pair.sync.contract import UnreadableDocument
from pair.sync.file_text import DOCUMENT_SUFFIXES, FileTextReader

if TYPE_CHECKING:
    from pair.blobs.contract import BlobStore
    from pair.engine.maintenance.merge_package import PackageShards
    from pair.engine.maintenance.portable_index import PortableIndex
    from pair.kb.kb import KnowledgeBase

_SYNCED = "sync"
"""The owner of documents that come from files."""


# ── taking up ──────────────────────────────────────────────────────────────────────────────────────


class EngineIndexInstaller:
    """Takes up the index of a package into one KB. Nothing is loaded before there is such an index."""

    def __init__(self, settings: Settings, kb_id: str, clock: Clock) -> None:
        self._settings = settings
        self.kb_id = kb_id
        self._clock = clock

    def holds(self, path: str) -> bool:
        """By its path in the package: `.pair-index/shards/<content hash>/<file>`."""
        parts = path.split("/")
        return len(parts) == 4 and parts[:2] == [INDEX_FOLDER, "shards"] and parts[2] in self._stored_shards

    @functools.cached_property
    def _stored_shards(self) -> frozenset[str]:
        """Content hashes of all shards that the current manifest names, or one that is kept."""
        with self._open_store() as store:
            heads = [peek(store, self.kb_id), *peek_at_history(store, self.kb_id)]
        return frozenset(shard for head in heads if head is not None for shard in head.shards)

    def _open_store(self) -> "AbstractContextManager[BlobStore]":
        return contextlib.closing(blob_store(self._settings.engine.store, self._settings, self._clock))

    def is_current(self, index_sha256: str) -> bool:
        with self._open_store() as store:
            head = peek(store, self.kb_id)
        return head is not None and head.index_sha256 == index_sha256

    def searched(self) -> CurrentIndex | None:
        from pair.engine.format.manifest import from_bytes, manifest_key  # noqa: PLC0415 - loads the engine

        key = manifest_key(self.kb_id)
        with self._open_store() as store:
            blob = store.get(key)
        if blob is None:
            return None
        manifest = from_bytes(blob.data, key)
        return CurrentIndex(embedder=manifest.embedder, index_sha256=manifest.index_sha256, label=manifest.label)

    def refuse(self, index: PackagedIndexFiles) -> None:
        with self._opened() as kb:
            kb.backup.package_merger().refuse(self._parcel(index).manifest)

    def check(self, index: PackagedIndexFiles) -> frozenset[str]:
        """Text files are read alike everywhere; what others read of a PDF may differ, and is then not used."""
        parcel = self._parcel(index)
        with self._opened() as kb, _missing_files():
            differing = kb.backup.package_merger().check(parcel)
        if lies := sorted(each for each in differing if Path(each).suffix.lower() not in DOCUMENT_SUFFIXES):
            raise errors.index_damaged(index.label, f"its text of {lies[0]} is not that of the packaged file")
        return differing

    def bring(self, index: PackagedIndexFiles) -> int:
        with self._opened() as kb, _missing_files():
            return kb.backup.package_merger().bring(self._parcel(index))

    def take_up(self, index: PackagedIndexFiles, *, edited: frozenset[str], gone: frozenset[str]) -> InstalledIndex:
        parcel = dataclasses.replace(self._parcel(index), edited=edited, gone=gone)
        with self._opened() as kb, _missing_files():
            done = kb.backup.package_merger().take_up(parcel)
        return InstalledIndex(self.kb_id, done.manifest_version, done.documents, len(parcel.manifest.shards))

    def _opened(self) -> "KnowledgeBase":
        return open_kb(self.kb_id, settings=self._settings)

    def _parcel(self, index: PackagedIndexFiles) -> "PackageShards":
        from pair.engine.maintenance.merge_package import PackageShards  # noqa: PLC0415 - see the package's first lines
        from pair.engine.maintenance.portable_index import unpacked  # noqa: PLC0415

        return PackageShards(
            manifest=unpacked(index.content, index.hashes, index.label, self.kb_id),
            name=index.package_name,
            label=index.label,
            index_sha256=index.sha256,
            path_of=index.path_of,
            owner=_SYNCED,
            is_verified=index.is_fresh,
            text_of=_texts_in(index, self._settings),
        )


def _texts_in(index: PackagedIndexFiles, settings: Settings) -> Callable[[str], str | None]:
    """Texts of packaged files, as a sync would read them; None for what is no packaged file, or cannot be read."""
    reader = FileTextReader(index.folder.parent, settings.kb.max_source_bytes, document_loader())

    def text_of(document_id: str) -> str | None:
        if document_id not in index.packaged:
            return None
        try:
            return reader.text_of_any_size(document_id)
        except (OSError, UnreadableDocument):
            return None

    return text_of


@contextlib.contextmanager
def _missing_files() -> Iterator[None]:
    from pair.engine.maintenance.merge_package import MissingFileError  # noqa: PLC0415 - see the package's first lines

    try:
        yield
    except MissingFileError as fault:
        raise MissingIndexFileError(str(fault)) from fault


# ── making ─────────────────────────────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def index_maker(
    settings: Settings, folder: Path, kb_id: str | None, observer: Observer
) -> Iterator[Callable[[str], IndexToPackage]]:
    """Makes the index of a folder, by the name of its package: a KB is brought in line with it first.

    The sources of this project are the KB `default` already; any other folder is one by its own name. What goes in
    besides the files of the folder is told to the observer: somebody may not want to give it away.
    """
    with contextlib.ExitStack() as held:

        def make(name: str) -> IndexToPackage:
            kb = held.enter_context(_in_line(settings, folder, kb_id or _kb_of(settings, folder, name)))
            index = kb.backup.pack_index()
            paths = [each.relative_to(folder).as_posix() for each in folder.rglob("*") if each.is_file()]
            others = index.manifest.documents - len(kb.existing_ids(paths)) if index.manifest.documents else 0
            if others:
                observer.say(f"the index also holds what is not in {folder}: {others:,} pages or ingested documents")
            return _to_package(kb, index)

        yield make


def _kb_of(settings: Settings, folder: Path, name: str) -> str:
    return DEFAULT_KB if _is_own(settings, folder) else name_from_folder(name)


def _is_own(settings: Settings, folder: Path) -> bool:
    return os.path.realpath(folder) == os.path.realpath(files.expanded(settings.kb.sources_dir))


def _in_line(settings: Settings, folder: Path, kb_id: str) -> "KnowledgeBase":
    """Raises E014 when the folder cannot be read, or is none of this KB's."""
    from pair.engine.rules import check_kb_id  # noqa: PLC0415 - see the package's first lines
    from pair.kb.sync import SyncService  # noqa: PLC0415

    check_kb_id(kb_id)
    if (kb_id == DEFAULT_KB) != _is_own(settings, folder):
        raise errors.cannot_package(
            str(folder), f"the knowledge base {DEFAULT_KB} is that of {settings.kb.sources_dir}, and of no other folder"
        )
    wanted = settings if kb_id == DEFAULT_KB else _settings_for(settings, folder, kb_id)
    report = SyncService(wanted, kb_id=kb_id).sync()
    if report.errors:
        raise errors.cannot_package(str(folder), report.errors[0])
    return open_kb(kb_id, settings=settings)


def _settings_for(settings: Settings, folder: Path, kb_id: str) -> Settings:
    """To sync a folder by itself: without links, without a model, with its state beside that of the project."""
    place = files.expanded(settings.kb.index_cache_path).parent / "packages" / kb_id
    kb = dataclasses.replace(
        settings.kb,
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


def _to_package(kb: "KnowledgeBase", index: "PortableIndex") -> IndexToPackage:
    manifest, content = index.manifest, index.content
    described = PackagedIndex(
        kb_id=manifest.kb_id,
        manifest_version=manifest.number,
        embedder=manifest.embedder,
        dimension=manifest.dimension,
        documents=manifest.documents,
        chunks=manifest.rows,
        shards=len(manifest.shards),
    )
    listed = {
        each.name: IndexFile(each.size_bytes, each.sha256, functools.partial(kb.backup.read_packed, each))
        for each in index.files
    }
    sha256 = hashlib.sha256(content).hexdigest()
    listed[INDEX_MANIFEST.removeprefix(f"{INDEX_FOLDER}/")] = IndexFile(len(content), sha256, lambda: (content,))
    return IndexToPackage(described, listed)


# ── opening ────────────────────────────────────────────────────────────────────────────────────────


def open_package(path: Path, settings: Settings) -> "KnowledgeBase":
    """The KB in a package, for reading. Raises E009, E012, E207; E304 with the first query by another embedder."""
    from pair.blobs.zip_store import ZipStore  # noqa: PLC0415 - see the package's first lines
    from pair.engine.format.manifest import from_bytes  # noqa: PLC0415
    from pair.engine.maintenance.portable_index import packed_name_of  # noqa: PLC0415

    with files.storage_errors():
        if not path.is_file():
            raise errors.no_kb_at(str(path), "there is no such file")
        archive.refuse_unsafe(path, settings.sources)
        content = archive.read_entry(path, INDEX_MANIFEST, settings.sources)
    if content is None:
        raise errors.no_kb_at(str(path), "the package has no index")
    kb_id = from_bytes(content, f"{path.name}: {INDEX_MANIFEST}").kb_id

    def name_of(key: str) -> str | None:
        name = packed_name_of(key, kb_id)
        return None if name is None else f"{INDEX_FOLDER}/{name}"

    return open_kb(kb_id, store=ZipStore(path, name_of), settings=settings)
