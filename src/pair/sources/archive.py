"""Unpack a KB archive: nothing outside the folder, nothing of unbounded size, nothing left after a refusal.

Every entry is judged from the archive's directory before the first byte is written.
"""

import hashlib
import os
import shutil
import stat
import struct
import unicodedata
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from pair import errors, files
from pair.sources.rules import SourcesPolicy, name_fault, own_name_fault

_MEBIBYTE = 1024 * 1024
_END_RECORD = struct.Struct("<4s4H2LH")
_END64_LOCATOR = struct.Struct("<4sLQL")
_END64_RECORD = struct.Struct("<4sQ2H2L4Q")
_DIRECTORY_BYTES_PER_ENTRY = 512
_ENCRYPTED_FLAGS = 0x1 | 0x40
_METHODS = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})


class _RefusedError(Exception):
    """Why an archive is refused; becomes E009 with the archive's name."""


@dataclass(frozen=True, slots=True)
class UnpackedFile:
    sha256: str
    size_bytes: int


def unpack(archive: Path, folder: Path, policy: SourcesPolicy) -> dict[str, UnpackedFile]:
    """Unpack into `folder`, which must not exist yet; raises E009 and leaves no folder."""
    try:
        with _opened(archive, policy) as opened:
            entries = _checked_entries(opened, policy)
            try:
                return _write_entries(opened, entries, folder)
            except BaseException:
                files.remove_tree(folder)
                raise
    except _RefusedError as refusal:
        raise errors.archive_refused(archive.name, str(refusal)) from refusal.__cause__


def hash_entries(archive: Path, policy: SourcesPolicy) -> dict[str, UnpackedFile]:
    """Read the whole archive under the same rules, without writing anything."""
    try:
        with _opened(archive, policy) as opened:
            entries = _checked_entries(opened, policy)
            return {path: _hash_entry(opened, entry) for path, entry in entries.items() if not entry.is_dir()}
    except _RefusedError as refusal:
        raise errors.archive_refused(archive.name, str(refusal)) from refusal.__cause__


def read_entry(archive: Path, name: str, policy: SourcesPolicy) -> bytes | None:
    """One small file out of the archive, or None when it is not there."""
    try:
        with _opened(archive, policy) as opened:
            try:
                entry = opened.getinfo(name)
            except KeyError:
                return None
            if entry.file_size > 64 * _MEBIBYTE:
                raise _RefusedError(f"{name} is too large")
            return b"".join(_chunks(opened, entry))
    except _RefusedError as refusal:
        raise errors.archive_refused(archive.name, str(refusal)) from refusal.__cause__


# ── the archive as a whole ─────────────────────────────────────────────────────────────────────────


def _opened(archive: Path, policy: SourcesPolicy) -> zipfile.ZipFile:
    try:
        _check_directory_size(archive, policy)
        return zipfile.ZipFile(archive)
    except (zipfile.BadZipFile, ValueError, struct.error, NotImplementedError, EOFError) as fault:
        raise _RefusedError("it is not a whole zip archive") from fault


def _check_directory_size(archive: Path, policy: SourcesPolicy) -> None:
    """`zipfile` reads the whole directory at once: refuse a huge one before."""
    with archive.open("rb") as stream:
        size = stream.seek(0, os.SEEK_END)
        tail_size = min(size, _END_RECORD.size + 65535 + _END64_LOCATOR.size)
        stream.seek(size - tail_size)
        tail = stream.read(tail_size)
        at = tail.rfind(b"PK\x05\x06")
        if at < 0:
            raise zipfile.BadZipFile
        _, _, _, _, entries, directory_bytes, _, _ = _END_RECORD.unpack_from(tail, at)
        if entries == 0xFFFF or directory_bytes == 0xFFFFFFFF:
            entries, directory_bytes = _sizes_from_zip64(stream, tail, at) or (entries, directory_bytes)
    if entries > policy.max_archive_entries:
        raise _RefusedError(f"it has {entries} entries, more than {policy.max_archive_entries}")
    if directory_bytes > policy.max_archive_entries * _DIRECTORY_BYTES_PER_ENTRY:
        raise _RefusedError(f"its directory takes {directory_bytes} bytes")


def _sizes_from_zip64(stream: BinaryIO, tail: bytes, at: int) -> tuple[int, int] | None:
    start = at - _END64_LOCATOR.size
    if start < 0 or tail[start : start + 4] != b"PK\x06\x07":
        return None
    _, _, offset, _ = _END64_LOCATOR.unpack_from(tail, start)
    stream.seek(offset)
    record = stream.read(_END64_RECORD.size)
    if not record.startswith(b"PK\x06\x06"):
        raise zipfile.BadZipFile
    unpacked = _END64_RECORD.unpack(record)
    return unpacked[7], unpacked[8]


# ── its entries ────────────────────────────────────────────────────────────────────────────────────


def _checked_entries(opened: zipfile.ZipFile, policy: SourcesPolicy) -> dict[str, zipfile.ZipInfo]:
    """Entries by path; raises _RefusedError at the first that may not be unpacked."""
    entries = opened.infolist()
    if len(entries) > policy.max_archive_entries:
        raise _RefusedError(f"it has {len(entries)} entries, more than {policy.max_archive_entries}")
    checked: dict[str, zipfile.ZipInfo] = {}
    for entry in entries:
        path = entry.orig_filename.removesuffix("/")
        if (fault := _entry_fault(entry, path)) is not None:
            raise _RefusedError(f"{fault}: {path!r}")
        if path in checked:
            raise _RefusedError(f"two entries with one name: {path!r}")
        checked[path] = entry
    _check_total_size(opened, entries, policy)
    _check_overlaps(entries)
    _check_collisions(checked)
    return checked


def _entry_fault(entry: zipfile.ZipInfo, path: str) -> str | None:
    if "\0" in entry.orig_filename:
        return "control character in the name"
    if (fault := name_fault(path) or own_name_fault(path)) is not None:
        return fault
    kind = stat.S_IFMT(entry.external_attr >> 16)
    if kind == stat.S_IFLNK:
        return "link"
    if kind not in {0, stat.S_IFREG, stat.S_IFDIR}:
        return "device or other special file"
    if kind == stat.S_IFDIR and not entry.is_dir():
        return "folder without a slash at its end"
    if entry.is_dir() and entry.file_size:
        return "folder with content"
    if entry.flag_bits & _ENCRYPTED_FLAGS:
        return "encrypted"
    if entry.compress_type not in _METHODS:
        return "unknown compression"
    return None


def _check_total_size(opened: zipfile.ZipFile, entries: list[zipfile.ZipInfo], policy: SourcesPolicy) -> None:
    total = sum(entry.file_size for entry in entries)
    if total > policy.max_unpacked_bytes:
        raise _RefusedError(f"it unpacks to {total} bytes, more than {policy.max_unpacked_bytes}")
    archive_bytes = Path(str(opened.filename)).stat().st_size
    if total > max(_MEBIBYTE, archive_bytes * policy.max_compression_ratio):
        raise _RefusedError(f"it unpacks to {total // max(1, archive_bytes)} times its size")
    for entry in entries:
        if entry.file_size > max(_MEBIBYTE, entry.compress_size * policy.max_compression_ratio):
            raise _RefusedError(f"an entry unpacks to more than {policy.max_compression_ratio} times its size")


def _check_overlaps(entries: list[zipfile.ZipInfo]) -> None:
    """Entries that share bytes make small archives huge."""
    end = 0
    for entry in sorted(entries, key=lambda entry: entry.header_offset):
        if entry.header_offset < end:
            raise _RefusedError("two entries share the same bytes")
        end = entry.header_offset + 30 + len(entry.orig_filename) + entry.compress_size


def _check_collisions(entries: dict[str, zipfile.ZipInfo]) -> None:
    """Names that fall together where case or accents do not count, and files that are folders too."""
    spellings: dict[str, str] = {}
    for path in entries:
        parts = path.split("/")
        for depth in range(1, len(parts) + 1):
            spelling = "/".join(parts[:depth])
            folded = unicodedata.normalize("NFC", spelling).casefold()
            if spellings.setdefault(folded, spelling) != spelling:
                raise _RefusedError(f"names differ only in case or accents: {spelling!r}")
            if depth < len(parts) and spelling in entries and not entries[spelling].is_dir():
                raise _RefusedError(f"file that is a folder too: {spelling!r}")


# ── their bytes ────────────────────────────────────────────────────────────────────────────────────


def _write_entries(
    opened: zipfile.ZipFile, entries: dict[str, zipfile.ZipInfo], folder: Path
) -> dict[str, UnpackedFile]:
    folder.mkdir(parents=True)
    _check_free_space(folder, sum(entry.file_size for entry in entries.values()))
    made = {""}
    written: dict[str, UnpackedFile] = {}
    for path, entry in entries.items():
        parent = path if entry.is_dir() else path.rpartition("/")[0]
        if parent not in made:
            (folder / parent).mkdir(parents=True, exist_ok=True)
            made.add(parent)
        if not entry.is_dir():
            written[path] = _write_entry(opened, entry, folder / path)
    return written


def _check_free_space(folder: Path, needed_bytes: int) -> None:
    if shutil.disk_usage(folder).free < needed_bytes:
        raise errors.storage_failed(str(folder), f"no space left on the disk for {needed_bytes} bytes")


def _write_entry(opened: zipfile.ZipFile, entry: zipfile.ZipInfo, destination: Path) -> UnpackedFile:
    digest = hashlib.sha256()
    descriptor = os.open(destination, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        for chunk in _chunks(opened, entry):
            digest.update(chunk)
            files.write_all(descriptor, chunk)
    finally:
        os.close(descriptor)
    return UnpackedFile(digest.hexdigest(), entry.file_size)


def _hash_entry(opened: zipfile.ZipFile, entry: zipfile.ZipInfo) -> UnpackedFile:
    digest = hashlib.sha256()
    for chunk in _chunks(opened, entry):
        digest.update(chunk)
    return UnpackedFile(digest.hexdigest(), entry.file_size)


def _chunks(opened: zipfile.ZipFile, entry: zipfile.ZipInfo) -> Iterator[bytes]:
    """The entry's bytes; `zipfile` checks length and CRC on the way."""
    try:
        with opened.open(entry) as stream:
            while chunk := stream.read(_MEBIBYTE):
                yield chunk
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError) as fault:
        raise _RefusedError(f"damaged entry: {entry.orig_filename!r}") from fault
