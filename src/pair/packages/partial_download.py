"""A package put together from what is here already and from ranges of the archive elsewhere.

Invariants
    Every file has the SHA-256 that the published manifest gives it, wherever it was taken from.
    All ranges are of one version of the archive: when it changes meanwhile, all starts over.
Not here
    Fetching ranges: download.py, places.py. What may be in an archive: archive.py.
"""

import contextlib
import io
import itertools
import os
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pair import errors, files
from pair.packages import archive
from pair.packages.contract import IndexSelection, RemoteFile
from pair.packages.package import PackagedFile, PackageManifest
from pair.packages.rules import (
    MANIFEST_NAME,
    SourcesSettings,
    bare_repositories,
    collision,
    folders_above,
    name_fault,
    own_name_fault,
)

_WORTH_IT = 0.7
"""When more than this share has to be fetched anyway, the archive is fetched as it is."""
_NEAR_BYTES = 4096
"""Entries with no more than this between them are fetched with one request."""
_MORE_THAN_MANIFEST_BYTES = 128 * 1024
"""A directory tells less of each file than the manifest does, so it is not longer than that by more than this."""


class UnfitError(Exception):
    """The archive is not what the manifest says: it is another by now, or one that only makes sense as a whole."""


@dataclass(frozen=True)
class Supplies:
    """Where files come from that need not be fetched."""

    path_of: Callable[[str], Path | None]
    """A file with this SHA-256, if there is one here."""
    demand: IndexSelection
    """What of the index is needed at all."""


def missing_files(manifest: PackageManifest, supplies: Supplies, policy: SourcesSettings) -> list[str] | None:
    """What has to be fetched; None when it is better to fetch everything. Raises E009."""
    _refuse_unsafe(manifest, policy)
    listed, demand = manifest.files, supplies.demand
    needed = [path for path in listed if not demand.leaves_out(path)]
    missing = [path for path in needed if supplies.path_of(listed[path].sha256) is None]
    wanted_bytes = sum(listed[path].size_bytes for path in missing)
    # With the whole would come an index that nobody wants.
    is_worth_it = not demand.is_wanted or wanted_bytes <= _WORTH_IT * manifest.size_bytes
    return missing if is_worth_it else None


def _refuse_unsafe(manifest: PackageManifest, policy: SourcesSettings) -> None:
    """The manifest names paths that are going to be written, so it is judged as an archive is."""
    label = f"{manifest.name} {manifest.version}"
    for path, entry in manifest.files.items():
        if (fault := name_fault(path) or own_name_fault(path) or _fault_in(path, entry, manifest)) is not None:
            raise errors.archive_refused(label, f"{fault}: {path!r}")
    if (name := collision(manifest.files)) is not None:
        raise errors.archive_refused(label, f"names differ only in case or accents: {name!r}")
    if repositories := bare_repositories(manifest.files):
        raise errors.archive_refused(label, f"folder that git takes for a repository: {min(repositories)!r}")
    if len(manifest.files) > policy.max_archive_entries or manifest.size_bytes > policy.max_unpacked_bytes:
        raise errors.archive_refused(label, "it is larger than sources.max_unpacked_bytes or has too many files")


def _fault_in(path: str, entry: PackagedFile, manifest: PackageManifest) -> str | None:
    if path == MANIFEST_NAME:
        return "a manifest does not list itself"
    if entry.size_bytes < 0:
        return "file of less than no bytes"
    if any(folder in manifest.files for folder in folders_above(path)):
        return "file in what is a file too"
    return None


def assemble(
    content: bytes, manifest: PackageManifest, missing: Sequence[str], source: RemoteFile, here: tuple[Path, Supplies]
) -> dict[str, str]:
    """Into a folder that does not exist yet: the SHA-256 of each file in it. `content`: of the manifest.

    Raises UnfitError; the folder is then the caller's to remove.
    """
    folder, supplies = here
    folder.mkdir(parents=True)
    (folder / MANIFEST_NAME).write_bytes(content)
    hashes: dict[str, str] = {}
    _fetch(content, manifest, missing, (source, folder))
    for path in missing:
        hashes[path] = manifest.files[path].sha256
    for path, each in manifest.files.items():
        at_hand = None if path in hashes or supplies.demand.leaves_out(path) else supplies.path_of(each.sha256)
        if at_hand is not None:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            if files.copy_file(str(at_hand), str(folder / path)) != each.sha256:
                raise UnfitError(f"damaged here: {path}")
            hashes[path] = each.sha256
    return hashes


def _fetch(content: bytes, manifest: PackageManifest, missing: Sequence[str], places: tuple[RemoteFile, Path]) -> None:
    """From the archive into the folder. What its directory says of sizes counts only as far as the manifest agrees."""
    source, folder = places
    with contextlib.ExitStack() as held:
        patchwork = _Patchwork(source, len(content) + _MORE_THAN_MANIFEST_BYTES)
        scratch = Path(held.enter_context(tempfile.TemporaryDirectory(dir=folder.parent, prefix=".pair-ranges-")))
        try:
            opened = held.enter_context(zipfile.ZipFile(patchwork))
            entries = {entry.filename: entry for entry in opened.infolist()}
            chosen = [entries[path] for path in missing]
            sizes = {path: manifest.files[path].size_bytes for path in missing} | {MANIFEST_NAME: len(content)}
            if any(entries[path].file_size != size_bytes for path, size_bytes in sizes.items()):
                raise UnfitError("its files are not as long as the manifest says")
            # Every file has to be as the manifest beside it says; this one only tells early that they belong together.
            if zlib.crc32(content) != entries[MANIFEST_NAME].CRC:
                raise UnfitError("the manifest beside it is of another package")
        except (KeyError, *archive.UNREADABLE) as fault:
            raise UnfitError(str(fault)) from fault
        for number, (start, end) in enumerate(_spans(chosen, opened)):
            source.copy(start, end - start, scratch / str(number))
            patchwork.add(start, end, held.enter_context((scratch / str(number)).open("rb")))
        for path, entry in zip(missing, chosen, strict=True):
            _extract(opened, entry, folder / path, manifest.files[path].sha256)


def _extract(opened: zipfile.ZipFile, entry: zipfile.ZipInfo, destination: Path, sha256: str) -> None:
    destination.parent.mkdir(parents=True, exist_ok=True)
    try:
        written = archive.write_entry(opened, entry, destination)
    except archive.RefusedError as fault:
        raise UnfitError(str(fault)) from fault
    if written.sha256 != sha256:
        raise UnfitError(f"another SHA-256 than the manifest gives: {entry.filename}")


def _spans(chosen: Sequence[zipfile.ZipInfo], opened: zipfile.ZipFile) -> Iterator[tuple[int, int]]:
    """Where the entries lie, header and all; those that lie side by side together."""
    starts = sorted({entry.header_offset for entry in opened.infolist()} | {opened.start_dir})
    ends = dict(itertools.pairwise(starts))
    span: tuple[int, int] | None = None
    for entry in sorted(chosen, key=lambda each: each.header_offset):
        start, end = entry.header_offset, ends.get(entry.header_offset)
        if end is None:
            raise UnfitError(f"outside the archive: {entry.filename}")
        if span is not None and start - span[1] <= _NEAR_BYTES:
            span = (span[0], end)
            continue
        if span is not None:
            yield span
        span = (start, end)
    if span is not None:
        yield span


class _Patchwork(io.RawIOBase):
    """A file of which some parts are here, and whose other parts are read from elsewhere."""

    def __init__(self, source: RemoteFile, most_bytes: int) -> None:
        """`most_bytes`: that are read from elsewhere at once."""
        self._source = source
        self._most_bytes = most_bytes
        self._position = 0
        self._parts: list[tuple[int, int, io.BufferedReader]] = []

    def add(self, start: int, end: int, content: io.BufferedReader) -> None:
        self._parts.append((start, end, content))

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._source.size_bytes}[whence]
        self._position = max(0, base + offset)
        return self._position

    def read(self, size: int = -1) -> bytes:
        rest = max(0, self._source.size_bytes - self._position)
        length = rest if size < 0 else min(size, rest)
        content = self._read(self._position, length)
        self._position += len(content)
        return content

    def _read(self, start: int, length: int) -> bytes:
        for begin, end, content in self._parts:
            if begin <= start and start + length <= end:
                content.seek(start - begin)
                return content.read(length)
        if length > self._most_bytes:
            raise UnfitError(f"its directory takes {length} bytes")
        return self._source.read(start, length)
