"""Safe unpacking of KB archives: only into the folder, with size limits, and without leftovers after a refusal.

Every entry is checked in the directory of the archive before the first byte is written.
"""

import contextlib
import hashlib
import mmap
import re
import shutil
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from pair import errors, files
from pair.packages import rules

_MEBIBYTE = 1024 * 1024
_END_RECORD = struct.Struct("<4s4H2LH")
_END64_LOCATOR_BYTES = 20
_END64_RECORD = struct.Struct("<4sQ2H2L4Q")
_DIRECTORY_ENTRY_BYTES = 46
_DIRECTORY_BYTES_PER_ENTRY = 512
_NAME_EXTRA_COMMENT = struct.Struct("<3H")
_ENCRYPTED_FLAGS = 0x1 | 0x40
_METHODS = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})
_LARGE_BYTES = 4 * _MEBIBYTE
_WRITERS = 2
UNREADABLE = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, RuntimeError, ValueError)
"""The errors of `zipfile` for an archive that is damaged, encrypted or not a zip."""


class RefusedError(Exception):
    """The reason to refuse an archive; becomes E009 with the name of the archive."""


def unpack(
    archive: Path,
    folder: Path,
    settings: rules.SourcesSettings,
    *,
    shown: str = "",
    leave_out: Callable[[str], bool] = lambda path: False,
) -> dict[str, str]:
    """Unpack into `folder`, which must not exist yet. Return the SHA-256 of each file by path.

    Raises E009 and leaves no folder. `shown`: the name of the archive in errors. `leave_out`: matches files to skip.
    """
    with _open_archive(archive, settings, shown) as opened:
        entries = _check_entries(opened, settings)
        try:
            return _write_entries(
                opened, {path: entry for path, entry in entries.items() if not leave_out(path)}, folder
            )
        except BaseException:
            files.remove_tree(folder)
            raise


def hash_entries(archive: Path, settings: rules.SourcesSettings) -> dict[str, str]:
    """Return the SHA-256 of each file by path, under the same rules, without writing anything. Raises E009."""
    with _open_archive(archive, settings) as opened:
        entries = _check_entries(opened, settings)
        return {path: _hash_entry(opened, entry) for path, entry in entries.items() if not entry.is_dir()}


def refuse_unsafe(archive: Path, settings: rules.SourcesSettings) -> None:
    """Check an archive by its directory alone. Raises E009."""
    with _open_archive(archive, settings) as opened:
        _check_entries(opened, settings)


def read_entry(archive: Path, name: str, settings: rules.SourcesSettings, *, shown: str = "") -> bytes | None:
    """Return one small file of the archive; None if there is no such file. `shown`: see `unpack`."""
    with _open_archive(archive, settings, shown) as opened:
        entries = opened.infolist()
        entry = next((entry for entry in entries if _normalise(entry.orig_filename) == name), None)
        if entry is None:
            return None
        _check_places(archive.stat().st_size, entries)
        if entry.file_size > 64 * _MEBIBYTE:
            raise RefusedError(f"{name} is too large")
        return b"".join(_read_chunks(opened, entry))


# ── the archive as a whole ─────────────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def _open_archive(archive: Path, settings: rules.SourcesSettings, shown: str = "") -> Iterator[zipfile.ZipFile]:
    """Open an archive and turn a RefusedError inside the block into E009."""
    try:
        try:
            _check_directory_size(archive, settings)
            opened = zipfile.ZipFile(archive)
        except UNREADABLE as fault:
            raise RefusedError(f"it is not a complete zip archive{_describe_other(archive)}") from fault
        with opened:
            yield opened
    except RefusedError as refusal:
        raise errors.archive_refused(shown or archive.name, str(refusal)) from refusal.__cause__


def _describe_other(archive: Path) -> str:
    """Name the actual format by the first bytes: a server may send a page instead of the archive."""
    with archive.open("rb") as stream:
        head = stream.read(1024).lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if not head:
        return " but an empty file"
    if head.startswith(b"<") and re.search(rb"<(?:!doctype html|html|head|body)\b", head):
        return " but an HTML page (a login page?)"
    kinds = {b"<": "an XML file", b"{": "a JSON file", b"\x1f\x8b": "a gzip file", b"%pdf": "a PDF file"}
    return next((f" but {kind}" for start, kind in kinds.items() if head.startswith(start)), "")


def _check_directory_size(archive: Path, settings: rules.SourcesSettings) -> None:
    """Count the entries before `zipfile` makes an object of each; the declared count is not trusted."""
    with archive.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
        at, end = _directory_bounds(content)
        if end - at > settings.max_archive_entries * _DIRECTORY_BYTES_PER_ENTRY:
            raise RefusedError(f"its directory takes {end - at} bytes")
        entries = 0
        while at < end:
            entries += 1
            if entries > settings.max_archive_entries:
                raise RefusedError(f"it has more than {settings.max_archive_entries} entries")
            at += _DIRECTORY_ENTRY_BYTES + sum(_NAME_EXTRA_COMMENT.unpack_from(content, at + 28))


def _directory_bounds(content: mmap.mmap) -> tuple[int, int]:
    """Return where the directory begins and ends, found exactly as `zipfile` finds it."""
    end = len(content) - _END_RECORD.size
    if end < 0:
        raise zipfile.BadZipFile
    if content[end : end + 4] != b"PK\5\6" or content[-2:] != b"\0\0":
        end = content.rfind(b"PK\5\6", max(0, end - 65535))
    if end < 0:
        raise zipfile.BadZipFile
    directory_bytes = _END_RECORD.unpack_from(content, end)[5]
    locator = end - _END64_LOCATOR_BYTES
    if locator >= _END64_RECORD.size and content[locator : locator + 4] == b"PK\6\7":
        record = locator - _END64_RECORD.size
        if content[record : record + 4] == b"PK\6\6":
            end, directory_bytes = record, _END64_RECORD.unpack_from(content, record)[8]
    if directory_bytes > end:
        raise zipfile.BadZipFile
    return end - directory_bytes, end


# ── entries ────────────────────────────────────────────────────────────────────────────────────────


def _check_entries(opened: zipfile.ZipFile, settings: rules.SourcesSettings) -> dict[str, zipfile.ZipInfo]:
    """Return the entries by path. Raises RefusedError for the first that must not be unpacked."""
    entries = opened.infolist()
    checked: dict[str, zipfile.ZipInfo] = {}
    for entry in entries:
        path = _normalise(entry.orig_filename)
        if not path and entry.orig_filename.startswith("./"):
            continue  # The packed folder itself.
        if (fault := _entry_fault(entry, path)) is not None:
            raise RefusedError(f"{fault}: {path!r}")
        if path in checked:
            raise RefusedError(f"two entries with one name: {path!r}")
        checked[path] = entry
    archive_bytes = Path(str(opened.filename)).stat().st_size
    _check_total_size(archive_bytes, entries, settings)
    _check_places(archive_bytes, entries)
    if (fault := rules.find_tree_fault(checked)) is not None:
        raise RefusedError(fault)
    for folder in (folder for path in checked for folder in rules.list_parents(path)):
        if folder in checked and not checked[folder].is_dir():
            raise RefusedError(f"a file has the name of a folder: {folder!r}")
    return checked


def _normalise(name: str) -> str:
    """Remove the `./` that some programs put before every name."""
    while name.startswith("./"):
        name = name[2:]
    return name.removesuffix("/")


def _entry_fault(entry: zipfile.ZipInfo, path: str) -> str | None:
    if "\0" in entry.orig_filename:
        return "control character in the name"
    if (fault := rules.find_path_fault(path)) is not None:
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


def _check_total_size(archive_bytes: int, entries: list[zipfile.ZipInfo], settings: rules.SourcesSettings) -> None:
    total = sum(entry.file_size for entry in entries)
    if total > settings.max_unpacked_bytes:
        raise RefusedError(f"it unpacks to {total} bytes, more than {settings.max_unpacked_bytes}")
    if rules.is_suspicious_ratio(total, archive_bytes, settings.max_compression_ratio):
        raise RefusedError(f"it unpacks to {total // max(1, archive_bytes)} times its size")
    for entry in entries:
        if rules.is_suspicious_ratio(entry.file_size, entry.compress_size, settings.max_compression_ratio):
            raise RefusedError(f"an entry unpacks to more than {settings.max_compression_ratio} times its size")


def _check_places(archive_bytes: int, entries: list[zipfile.ZipInfo]) -> None:
    """Refuse entries that share bytes: they make a small archive unpack to a huge one."""
    end = 0
    for entry in sorted(entries, key=lambda entry: entry.header_offset):
        if entry.header_offset < end:
            raise RefusedError("two entries share the same bytes")
        if entry.header_offset >= archive_bytes:
            raise RefusedError(f"entry outside the archive: {entry.orig_filename!r}")
        end = entry.header_offset + 30 + len(entry.orig_filename) + entry.compress_size


# ── bytes ──────────────────────────────────────────────────────────────────────────────────────────


def _write_entries(opened: zipfile.ZipFile, entries: dict[str, zipfile.ZipInfo], folder: Path) -> dict[str, str]:
    folder.mkdir(parents=True)
    needed_bytes = sum(entry.file_size for entry in entries.values())
    if shutil.disk_usage(folder).free < needed_bytes:
        raise errors.storage_failed(str(folder), f"no space left on the disk for {needed_bytes} bytes")
    made = {""}
    written: dict[str, str] = {}
    large: dict[str, Future[str]] = {}
    # Hashing and writing release the interpreter lock, so large and small files are written in parallel.
    with ThreadPoolExecutor(_WRITERS, thread_name_prefix="pair-unpack") as writers:
        for path, entry in entries.items():
            parent = path if entry.is_dir() else path.rpartition("/")[0]
            if parent not in made:
                (folder / parent).mkdir(parents=True, exist_ok=True)
                made.add(parent)
            if entry.file_size >= _LARGE_BYTES:
                large[path] = writers.submit(write_entry, opened, entry, folder / path)
            elif not entry.is_dir():
                written[path] = write_entry(opened, entry, folder / path)
        return written | {path: writing.result() for path, writing in large.items()}


def write_entry(opened: zipfile.ZipFile, entry: zipfile.ZipInfo, destination: Path) -> str:
    """Write a new file and return its SHA-256."""
    with destination.open("xb") as stream:
        return _hash_entry(opened, entry, stream.write)


def _hash_entry(
    opened: zipfile.ZipFile, entry: zipfile.ZipInfo, write: Callable[[bytes], object] = lambda chunk: None
) -> str:
    digest = hashlib.sha256()
    for chunk in _read_chunks(opened, entry):
        digest.update(chunk)
        write(chunk)
    return digest.hexdigest()


def _read_chunks(opened: zipfile.ZipFile, entry: zipfile.ZipInfo) -> Iterator[bytes]:
    """Yield the bytes of an entry. `zipfile` checks their CRC."""
    size_bytes = 0
    try:
        with opened.open(entry) as stream:
            while chunk := stream.read(_MEBIBYTE):
                size_bytes += len(chunk)
                yield chunk
    except UNREADABLE as fault:
        raise RefusedError(f"damaged entry: {entry.orig_filename!r}") from fault
    if size_bytes != entry.file_size:
        raise RefusedError(f"the length of an entry differs from the declared one: {entry.orig_filename!r}")
