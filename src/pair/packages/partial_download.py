"""Partial downloads: fetch only the missing files of a package, by ranges of its archive.

Invariants
    Every file has the SHA-256 of the published manifest, wherever it was copied from.
    All ranges are of one version of the archive. If the archive changes, the download starts over.
"""

import contextlib
import functools
import hashlib
import io
import itertools
import logging
import os
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from pair import errors, files
from pair.packages import archive, package, record, rules
from pair.packages.cache import CacheEntry, Facts, Validators
from pair.packages.package import IndexSelection, PackageManifest
from pair.values import KbSource

if TYPE_CHECKING:
    from pair.packages.content import SourceContents

logger = logging.getLogger(__name__)

_WORTH_IT = 0.7
"""Maximum missing share; above it, the whole archive is fetched."""
_NEAR_BYTES = 4096
"""Maximum gap between entries that are fetched with one request."""
_MORE_THAN_MANIFEST_BYTES = 128 * 1024
"""Maximum number of bytes by which the directory of an archive may exceed its manifest, which is usually longer."""
_TRIES = 3


class UnfitError(Exception):
    """An archive that differs from the published manifest: it was replaced, or cannot be read in parts."""


class ChangedError(Exception):
    """A file that was replaced while it was read in parts."""


class RemoteFile(Protocol):
    """A file that is read in parts of one version. Reading raises ChangedError after a replacement."""

    @property
    def size_bytes(self) -> int: ...

    def read(self, start: int, length: int) -> bytes: ...

    def copy(self, start: int, length: int, path: Path) -> None:
        """Copy into a new file, in bounded memory. A broken transfer is resumed."""


@dataclass(frozen=True)
class RemotePackage:
    """An archive that can be read in ranges, with its published manifest and SHA-256."""

    manifest: bytes
    sha256: str
    file: RemoteFile
    validators: Validators


@dataclass(frozen=True)
class Supplies:
    """The local files, and the needed part of the index."""

    path_of: Callable[[str], Path | None]
    """A function that returns a local file with this SHA-256, if there is one."""
    selection: IndexSelection


def download_missing(
    contents: "SourceContents", source: KbSource, earlier: CacheEntry | None, folder: Path, target: Path
) -> Facts | None:
    """Assemble a package in a folder, from the cache, the target and ranges of the archive.

    Return None if the archive must be fetched as a whole, or not at all. A partial download needs an installed package
    with an index, whose files it can reuse, or a request without the index.
    """
    fetcher, settings, selection = contents.fetcher, contents.settings, contents.selection
    installed = None
    with contextlib.suppress(errors.DataError):  # The install reports a damaged record.
        installed = record.read_record(target)
    if installed is not None and not installed.header.embedder:
        installed = None
    is_new = installed is None and selection.is_wanted
    if fetcher is None or is_new or (settings.require_checksum and source.manifest_sha256 is None):
        return None
    recorded = installed.files if installed is not None else {}
    paths = {file.sha256: target / name for name, file in recorded.items()} | contents.cache.files_by_hash()

    @functools.cache
    def path_of(sha256: str) -> Path | None:
        path = paths.get(sha256)
        return path if path is not None and path.is_file() and files.hash_file(path) == sha256 else None

    supplies = Supplies(path_of, selection)
    for _ in range(_TRIES):
        remote = fetcher.parts(source.location, sha256=source.sha256)
        if remote is None or (earlier is not None and remote.sha256 == earlier.facts.identity):
            return None
        manifest = package.parse_manifest(remote.manifest)
        key = _find_manifest_signer(contents, source, remote.manifest, folder)
        manifest_sha256 = hashlib.sha256(remote.manifest).hexdigest()
        # A release index that names the archive must name its manifest too.
        is_published = source.sha256 is None or manifest_sha256 == source.manifest_sha256
        if manifest is None or manifest.index is None or key is None or not is_published:
            return None
        missing = find_missing(manifest, supplies, settings)
        if missing is None:
            return None
        try:
            hashes = assemble(remote.manifest, manifest, missing, remote.file, folder, supplies)
        except (ChangedError, UnfitError) as fault:
            logger.debug("not put together", extra={"reason": str(fault)})
            files.remove_tree(folder)
            continue
        return Facts(
            identity=remote.sha256,
            # A `.sha256` covers the archive, which was not hashed.
            verified=source.manifest_sha256 is not None,
            etag=remote.validators.etag,
            last_modified=remote.validators.last_modified,
            hashes=hashes | {rules.MANIFEST_NAME: manifest_sha256},
            signed_by=key or None,
            is_assembled=True,
            is_without_index=not selection.is_wanted,
            size_bytes=remote.file.size_bytes,
        )
    return None


def _find_manifest_signer(contents: "SourceContents", source: KbSource, manifest: bytes, folder: Path) -> str | None:
    """Return the key of the signer; "" if no signature is required, None if one is missing."""
    if contents.signatures is None or contents.fetcher is None:
        return ""
    address = rules.append_suffix(source.location, rules.MANIFEST_SUFFIX)
    signature = contents.fetcher.signature(address)
    if signature is None:
        return None
    copy = folder.with_name(f"{folder.name}{rules.MANIFEST_SUFFIX}")
    copy.write_bytes(manifest)
    signer = contents.signatures.signer_of(copy, signature, rules.hide_credentials(address))
    return signer.key if signer is not None else None


def find_missing(manifest: PackageManifest, supplies: Supplies, settings: rules.SourcesSettings) -> list[str] | None:
    """Return the paths to fetch; None if it is better to fetch the whole archive. Raises E009."""
    _refuse_unsafe(manifest, settings)
    listed, selection = manifest.files, supplies.selection
    needed = [path for path in listed if not selection.leaves_out(path)]
    missing = [path for path in needed if supplies.path_of(listed[path].sha256) is None]
    wanted_bytes = sum(listed[path].size_bytes for path in missing)
    # The whole archive would include an unwanted index.
    is_worth_it = not selection.is_wanted or wanted_bytes <= _WORTH_IT * manifest.size_bytes
    return missing if is_worth_it else None


def _refuse_unsafe(manifest: PackageManifest, settings: rules.SourcesSettings) -> None:
    """Check the paths and sizes of a manifest by the rules for archives: its paths are written to."""
    label = f"{manifest.name} {manifest.version}"
    for path, entry in manifest.files.items():
        fault = rules.find_path_fault(path)
        if path == rules.MANIFEST_NAME:
            fault = "a manifest does not list itself"
        elif entry.size_bytes < 0:
            fault = "a file has a negative size"
        elif any(folder in manifest.files for folder in rules.list_parents(path)):
            fault = "a file is inside another file"
        if fault is not None:
            raise errors.archive_refused(label, f"{fault}: {path!r}")
    if (fault := rules.find_tree_fault(manifest.files)) is not None:
        raise errors.archive_refused(label, fault)
    if len(manifest.files) > settings.max_archive_entries or manifest.size_bytes > settings.max_unpacked_bytes:
        raise errors.archive_refused(label, "it is larger than sources.max_unpacked_bytes or has too many files")


def assemble(
    content: bytes,
    manifest: PackageManifest,
    missing: Sequence[str],
    source: RemoteFile,
    folder: Path,
    supplies: Supplies,
) -> dict[str, str]:
    """Fill a new folder; return the SHA-256 of each file. `content`: the bytes of the manifest.

    Raises UnfitError; the caller then removes the folder.
    """
    folder.mkdir(parents=True)
    (folder / rules.MANIFEST_NAME).write_bytes(content)
    _fetch(content, manifest, missing, source, folder)
    hashes = {path: manifest.files[path].sha256 for path in missing}
    for path, entry in manifest.files.items():
        local = None if path in hashes or supplies.selection.leaves_out(path) else supplies.path_of(entry.sha256)
        if local is not None:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            if files.copy_file(str(local), str(folder / path)) != entry.sha256:
                raise UnfitError(f"damaged here: {path}")
            hashes[path] = entry.sha256
    return hashes


def _fetch(content: bytes, manifest: PackageManifest, missing: Sequence[str], source: RemoteFile, folder: Path) -> None:
    """Copy files from the archive. Its directory must agree with the sizes in the manifest."""
    with contextlib.ExitStack() as opened_parts:
        patchwork = _Patchwork(source, len(content) + _MORE_THAN_MANIFEST_BYTES)
        scratch = Path(
            opened_parts.enter_context(tempfile.TemporaryDirectory(dir=folder.parent, prefix=".pair-ranges-"))
        )
        try:
            opened = opened_parts.enter_context(zipfile.ZipFile(patchwork))
            entries = {entry.filename: entry for entry in opened.infolist()}
            chosen = [entries[path] for path in missing]
            sizes = {path: manifest.files[path].size_bytes for path in missing} | {rules.MANIFEST_NAME: len(content)}
            if any(entries[path].file_size != size_bytes for path, size_bytes in sizes.items()):
                raise UnfitError("the sizes of its files differ from the manifest")
            # Every file is checked against the manifest later; this check fails early.
            if zlib.crc32(content) != entries[rules.MANIFEST_NAME].CRC:
                raise UnfitError("the manifest beside it belongs to another package")
        except (KeyError, *archive.UNREADABLE) as fault:
            raise UnfitError(str(fault)) from fault
        for number, (start, end) in enumerate(_find_spans(chosen, opened)):
            source.copy(start, end - start, scratch / str(number))
            patchwork.add(start, end, opened_parts.enter_context((scratch / str(number)).open("rb")))
        for path, entry in zip(missing, chosen, strict=True):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            try:
                sha256 = archive.write_entry(opened, entry, folder / path)
            except archive.RefusedError as fault:
                raise UnfitError(str(fault)) from fault
            if sha256 != manifest.files[path].sha256:
                raise UnfitError(f"the SHA-256 differs from the manifest: {path}")


def _find_spans(chosen: Sequence[zipfile.ZipInfo], opened: zipfile.ZipFile) -> list[tuple[int, int]]:
    """Return the ranges of the entries, with their headers; near ranges are joined."""
    starts = sorted({entry.header_offset for entry in opened.infolist()} | {opened.start_dir})
    ends = dict(itertools.pairwise(starts))
    spans: list[tuple[int, int]] = []
    for entry in sorted(chosen, key=lambda entry: entry.header_offset):
        start, end = entry.header_offset, ends.get(entry.header_offset)
        if end is None:
            raise UnfitError(f"outside the archive: {entry.filename}")
        if spans and start - spans[-1][1] <= _NEAR_BYTES:
            start, _ = spans.pop()
        spans.append((start, end))
    return spans


class _Patchwork(io.RawIOBase):
    """A file with some local parts; the others are read from the source."""

    def __init__(self, source: RemoteFile, most_bytes: int) -> None:
        """Begin without local parts. `most_bytes`: maximum size of a read from the source."""
        self._source = source
        self._most_bytes = most_bytes
        self._position = 0
        self._parts: list[tuple[int, int, io.BufferedReader]] = []

    def add(self, start: int, end: int, content: io.BufferedReader) -> None:
        self._parts.append((start, end, content))

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._source.size_bytes}[whence]
        self._position = max(0, base + offset)
        return self._position

    def read(self, size: int = -1) -> bytes:
        rest = max(0, self._source.size_bytes - self._position)
        length = rest if size < 0 else min(size, rest)
        start = self._position
        for begin, end, part in self._parts:
            if begin <= start and start + length <= end:
                part.seek(start - begin)
                content = part.read(length)
                break
        else:
            if length > self._most_bytes:
                raise UnfitError(f"its directory takes {length} bytes")
            content = self._source.read(start, length)
        self._position += len(content)
        return content
