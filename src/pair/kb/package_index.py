"""Packages with an index: make one from a KB, open one as a KB or as a site, and install one into a KB.

Invariants
    A site answers in the browser, without a server: every address in its page is relative.
    Data files of a site are named by their content and written before the signed manifest names them.
    The files of the replaced version stay, so that open pages keep working; those of the one before are removed.
    Files that another program made are not replaced: a folder without a site may hold only files of other names.
"""

import contextlib
import dataclasses
import functools
import hashlib
import html
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pair import errors, files
from pair.clock import Clock
from pair.engine.summary import peek, peek_at_history
from pair.kb.open import DEFAULT_KB, blob_store, open_kb, open_reader
from pair.packages import archive
from pair.packages.content import DamagedCopyError, Observer
from pair.packages.install import InstalledIndex, PublishIndex
from pair.packages.lockfile import CurrentIndex
from pair.packages.package import IndexFile, PackagedIndex, PackagedIndexFiles, PackageManifest
from pair.packages.rules import INDEX_FOLDER, INDEX_MANIFEST, SIGNATURE_SUFFIX, make_name
from pair.packages.signing import SecretKey, sign_digest
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


# ── the site of a package ──────────────────────────────────────────────────────────────────────────

MANIFEST_NAME = "site.json"
_PAGE = Path(__file__).parent / "site_page"
_DATA = "data"
_FIRST_LIST = "documents.html"
_LISTED_ON_PAGE = 1000


def refuse_foreign_site(label: PackageManifest, destination: Path) -> None:
    """Raise E025 or E026 if the site cannot be written without a link or a file that pair did not make."""
    folder = destination / "site" / label.name
    with files.storage_errors():
        try:
            existing = {*files.list_folder(folder)}
        except FileNotFoundError:
            return
        if _read_manifest(folder / MANIFEST_NAME):
            return
        pages = _fill_pages(label)
        made = {name for name in existing & pages.keys() if files.read_file(folder / name) == pages[name]}
        was_interrupted = made == pages.keys()
        names = {*pages, MANIFEST_NAME} if was_interrupted else {*pages, MANIFEST_NAME, _FIRST_LIST}
        for name in sorted(existing & names - made):
            raise files.foreign_file(folder / name)


def publish_site(
    package: Path, label: PackageManifest, destination: Path, key: SecretKey | None, settings: Settings
) -> str:
    """Write the site of a package with an index, and return its folder. Raises E009, E010, E014, E207, E305."""
    folder = destination / "site" / label.name
    with files.storage_errors():
        files.make_folder(folder / _DATA)
        with open_package(package, settings) as kb:
            data = kb.backup.write_site(functools.partial(_put, folder / _DATA))
        about = {
            "name": label.name,
            "version": label.version,
            "description": label.description,
            "content": f"sha256:{label.content_checksum}",
            "key": key.public.line if key is not None else "",
            **data.description,
        }
        before = _read_manifest(folder / MANIFEST_NAME)
        replaced = _list_data(before) if before.get("start") != about["start"] else before.get("previous", [])
        about["previous"] = sorted({*replaced} - {*_list_data(about)})
        for name, page in _fill_pages(label).items():
            files.write_atomically(folder / name, page)
        for name, text in _list_documents(label.name, data.documents):
            files.write_atomically(folder / name, text.encode())
        _write_manifest(folder, about, key)
        kept = {*_list_data(about), *about["previous"]}
        for name in {*before.get("previous", []), *_list_data(before)} - kept:
            files.unlink(folder / _DATA / Path(name).name, missing_ok=True)
    return str(folder)


def _put(folder: Path, name: str, content: bytes) -> None:
    if not (folder / name).is_file():  # it is named by its content
        files.write_atomically(folder / name, content)


def _read_manifest(path: Path) -> dict[str, Any]:
    """Return the manifest of the version that is replaced; empty if there is none that can be read."""
    try:
        value = json.loads(path.read_bytes())
        return value if isinstance(value, dict) and _list_data(value) else {}
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return {}


def _list_data(about: dict[str, Any]) -> list[str]:
    if "start" not in about or "files" not in about:
        return []
    return [about["start"]["name"], *(name for kind in about["files"].values() for name, _ in kind)]


def _write_manifest(folder: Path, about: dict[str, Any], key: SecretKey | None) -> None:
    path = folder / MANIFEST_NAME
    signature = path.with_name(path.name + SIGNATURE_SUFFIX)
    content = json.dumps(about, ensure_ascii=False, sort_keys=True).encode() + b"\n"
    if key is None:
        files.write_atomically(path, content)
        files.unlink(signature, missing_ok=True)
        return
    comment = f"site:{about['name']}\tversion:{about['version']}"
    signed = sign_digest(hashlib.blake2b(content).digest(), key, comment)
    files.write_together((signature, signed), (path, content))


def _fill_pages(label: PackageManifest) -> dict[str, bytes]:
    """Return the files of the page by name, with the name and the description of the package in their places."""
    pages = {}
    for path in sorted(_PAGE.iterdir()):
        text = path.read_text(encoding="utf-8")
        if path.name in {"index.html", "app.webmanifest"}:
            for name, value in (("name", label.name), ("description", label.description)):
                filled = json.dumps(value)[1:-1] if path.suffix == ".webmanifest" else html.escape(value)
                text = text.replace(f"[[{name}]]", filled)
        pages[path.name] = text.encode()
    return pages


def _list_documents(name: str, documents: Sequence[tuple[str, str, str]]) -> Iterator[tuple[str, str]]:
    """Yield pages with a plain list of the documents, for readers without JavaScript."""
    pages = max(1, -(-len(documents) // _LISTED_ON_PAGE))
    names = [_FIRST_LIST, *(f"documents-{number}.html" for number in range(2, pages + 1))]
    for number, page in enumerate(names):
        own = documents[number * _LISTED_ON_PAGE : (number + 1) * _LISTED_ON_PAGE]
        items = "\n".join(map(_format_document, own))
        following = f'<p><a href="{names[number + 1]}">Next page</a></p>' if number + 1 < pages else ""
        title = html.escape(f"Documents of {name}")
        yield (
            page,
            f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'self'; base-uri 'none'">
<title>{title}</title>
<link rel="stylesheet" href="style.css">
</head>
<body>
<main>
<h1>{title}</h1>
<p><a href="./">Search</a>. {len(documents):,} documents; page {number + 1} of {pages}.</p>
<ol start="{number * _LISTED_ON_PAGE + 1}">
{items}
</ol>
{following}
</main>
</body>
</html>
""",
        )


def _format_document(document: tuple[str, str, str]) -> str:
    document_id, title, url = document
    label = html.escape(title or document_id)
    shown = f'<a href="{html.escape(url)}">{label}</a>' if url.startswith(("https://", "http://")) else label
    other = f" <small>{html.escape(document_id)}</small>" if title and title != document_id else ""
    return f"<li>{shown}{other}</li>"
