"""Blob stores on this machine: in a folder, with conditional writes under file locks, in memory, and in a zip archive.

Invariants of the folder
    A file is never changed, only replaced, so an open file can be read to its end.
    A key is changed only under the lock of its stripe, which threads and processes share.
    The modification time of a key's file strictly ascends from write to write, even after a deletion.
    File names are safe on file systems that fold case or Unicode, and can be decoded to keys. Ordinary keys are not
    encoded: `handbook.duckdb.shards/0a1b/shard-00000.duckdb` is that file.
    The name of a folder has no dot, or ends in `.shards`. The name of a file has a dot and another ending. So `a` and
    `a/b` can both be blobs.
    No name in the top folder begins with a dot, so the store can use a hidden folder there.
"""

import contextlib
import datetime
import functools
import hashlib
import itertools
import os
import re
import secrets
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn
from urllib.parse import unquote

from pair import errors, files
from pair.blobs.contract import Blob, BlobInfo, BlobUnchanged, Version, VersionMismatchError, find_folder
from pair.clock import Clock
from pair.values import check_key

_OWN_FOLDER = ".pair-store"
_STRIPES = 64
_STAGED_NAME = re.compile(r"[0-9a-f]{32}\.staged")
_STEPS_NS = (1, 1_000, 1_000_000, 1_000_000_000, 2_000_000_000)
"""Time resolutions of file systems, from nanoseconds to the two seconds of FAT."""


@dataclass(frozen=True, slots=True)
class _StagedFile:
    """A complete new file that this process has locked."""

    folder: int
    """Descriptor of its folder."""
    name: str
    descriptor: int
    sha256: str


class _CannotLinkError(Exception):
    """The file is on another disk, or the file system has no hard links."""


class LocalStore:
    """Blobs as files in a folder, which the first write creates. File-system errors are E010."""

    def __init__(self, folder: Path) -> None:
        self.address = str(folder)
        self._folder = folder
        self._own = folder / _OWN_FOLDER
        self._staging = self._own / "staged"
        self._is_checked = False
        self._is_prepared = False
        self._preparing = threading.Lock()

    def get(self, key: str) -> Blob | None:
        with files.storage_errors(), self._open(key) as descriptor:
            if descriptor is None:
                return None
            data = b"".join(files.read_chunks(descriptor))
            return Blob(data, _version(os.fstat(descriptor), hashlib.sha256(data).hexdigest()))

    def get_if_changed(self, key: str, version: Version) -> Blob | BlobUnchanged | None:
        # One stat is enough because times strictly ascend: see _make_younger.
        with files.storage_errors():
            try:
                seen = self._path(key).lstat()
            except (FileNotFoundError, NotADirectoryError):
                return None
        return BlobUnchanged() if version.startswith(_signature(seen)) else self.get(key)

    def get_range(self, key: str, start: int, length: int) -> bytes | None:
        with files.storage_errors(), self._open(key) as descriptor:
            if descriptor is None:
                return None
            pieces = []
            while length > 0 and (piece := os.pread(descriptor, min(length, files.CHUNK_BYTES), start)):
                pieces.append(piece)
                start, length = start + len(piece), length - len(piece)
            return b"".join(pieces)

    def download(self, key: str, path: Path) -> bool:
        with files.storage_errors(), self._open(key) as descriptor:
            if descriptor is None:
                return False
            files.write_new_file(path, files.read_chunks(descriptor))
            return True

    def put(self, key: str, data: bytes) -> Version:
        return self._write(key, (data,), lambda _: True)

    def upload(self, key: str, path: Path) -> Version:
        with files.storage_errors(), files.closing(_open_file(path)) as descriptor:
            return self._write(key, files.read_chunks(descriptor), lambda _: True)

    def link(self, key: str, path: Path, sha256: str) -> Version:
        """Create a hard link to the file if the file system allows, else copy it."""
        with files.storage_errors():
            self._prepare()
            try:
                with self._stage_link(path, sha256) as staged:
                    return self._replace(key, staged, lambda _: True)
            except _CannotLinkError:
                return self.upload(key, path)

    def put_if(self, key: str, data: bytes, version: Version) -> Version:
        return self._write(key, (data,), lambda current: current == version)

    def create(self, key: str, data: bytes) -> Version:
        return self._write(key, (data,), lambda current: current is None)

    def list(self, prefix: str) -> Iterator[BlobInfo]:
        folder = find_folder(prefix)
        if folder is None:
            return iter(())
        with files.storage_errors():
            self._remove_abandoned()
            blobs = [info for info in _list_blobs(self._folder, encode_folders(folder)) if info.key.startswith(prefix)]
        return iter(sorted(blobs, key=lambda info: info.key))

    def delete(self, key: str) -> None:
        path = self._path(key)
        with files.storage_errors():
            if not os.path.lexists(path):
                return
        with files.storage_errors(), self._lock_key(key) as mark:
            with (
                contextlib.suppress(FileNotFoundError, NotADirectoryError),
                files.open_folder(path.parent) as folder,
                files.naming(path),
            ):
                files.refuse_link_below(folder, path)
                deleted_ns = os.stat(path.name, dir_fd=folder, follow_symlinks=False).st_mtime_ns
                if os.fstat(mark).st_mtime_ns < deleted_ns:
                    os.utime(mark, ns=(deleted_ns, deleted_ns))
                os.unlink(path.name, dir_fd=folder)
                os.fsync(folder)
            # A concurrent put creates a removed folder again: see _publish.
            with contextlib.suppress(OSError):
                for parent in itertools.takewhile(lambda parent: parent != self._folder, path.parents):
                    files.remove_empty_folder(parent)

    def close(self) -> None:
        """Do nothing: no file stays open."""

    def _path(self, key: str) -> Path:
        return self._folder / _relative_path(key)

    @contextlib.contextmanager
    def _open(self, key: str) -> Iterator[int | None]:
        """Open a blob; yield None if it does not exist. Refuse a link at its path or on the path to the store."""
        if not self._is_checked:
            with (
                contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError),
                files.open_folder(self._folder),
            ):
                self._is_checked = True
        try:
            descriptor = _open_file(self._path(key))
        except (FileNotFoundError, NotADirectoryError):
            yield None
            return
        with files.closing(descriptor):
            yield descriptor

    def _write(self, key: str, chunks: Iterable[bytes], is_wanted: Callable[[Version | None], bool]) -> Version:
        with files.storage_errors():
            self._prepare()
            with self._stage(chunks) as staged:
                return self._replace(key, staged, is_wanted)

    def _replace(self, key: str, staged: _StagedFile, is_wanted: Callable[[Version | None], bool]) -> Version:
        path = self._path(key)
        with self._lock_key(key) as mark:
            current = _read_version(path)
            if not is_wanted(current[0] if current else None):
                raise VersionMismatchError(key)
            _make_younger(staged.descriptor, max(os.fstat(mark).st_mtime_ns, current[1] if current else 0))
            self._publish(staged, path)
            return _version(os.fstat(staged.descriptor), staged.sha256)

    def _publish(self, staged: _StagedFile, path: Path) -> None:
        while True:
            try:
                with files.open_folder(path.parent, make=True) as folder, files.naming(path):
                    files.refuse_link_below(folder, path)
                    os.rename(staged.name, path.name, src_dir_fd=staged.folder, dst_dir_fd=folder)
                    os.fsync(folder)
            except FileNotFoundError:
                # A deletion under another lock removed an empty folder. Each retry needs another deletion, so this
                # loop ends.
                if staged.name in files.list_below(staged.folder):
                    continue
                raise
            return

    @contextlib.contextmanager
    def _lock_key(self, key: str) -> Iterator[int]:
        """Lock a key. Yield its mark: a file at least as new as any blob that was deleted under this lock."""
        self._prepare()
        stripe = f"{zlib.crc32(key.encode()) % _STRIPES:02d}"
        with files.closing(files.open_file(self._own / "locks" / stripe, os.O_RDWR | os.O_CREAT)) as descriptor:
            files.locks.lock(descriptor)
            path = self._own / "marks" / stripe
            is_new = not path.exists()
            with files.closing(files.open_file(path, os.O_RDWR | os.O_CREAT)) as mark:
                if is_new:
                    os.utime(mark, ns=(0, 0))
                yield mark

    @contextlib.contextmanager
    def _stage(self, chunks: Iterable[bytes]) -> Iterator[_StagedFile]:
        with files.open_folder(self._staging) as folder:
            name, descriptor = _new_staged_file(folder)
            try:
                digest = hashlib.sha256()
                for chunk in chunks:
                    digest.update(chunk)
                    files.write_all(descriptor, chunk)
                os.fsync(descriptor)
                yield _StagedFile(folder, name, descriptor, digest.hexdigest())
            except BaseException:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=folder)
                raise
            finally:
                os.close(descriptor)

    @contextlib.contextmanager
    def _stage_link(self, path: Path, sha256: str) -> Iterator[_StagedFile]:
        """Lock the file before linking it, so that the link does not count as abandoned."""
        with files.closing(_open_file(path)) as descriptor, files.open_folder(self._staging) as folder:
            files.locks.lock(descriptor)
            name = f"{secrets.token_hex(16)}.staged"
            try:
                os.link(path, name, dst_dir_fd=folder, follow_symlinks=False)
            except OSError as fault:
                raise _CannotLinkError from fault
            try:
                os.fsync(descriptor)
                yield _StagedFile(folder, name, descriptor, sha256)
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=folder)

    def _prepare(self) -> None:
        with self._preparing:
            if self._is_prepared and self._staging.is_dir():
                return
            for folder in (self._staging, self._own / "locks", self._own / "marks"):
                files.make_folder(folder)
            self._remove_abandoned()
            self._is_prepared = True

    def _remove_abandoned(self) -> None:
        """Remove the staged files of dead processes, whose locks are free. Other files stay."""
        # A process with read permission only can still list the store.
        with contextlib.suppress(FileNotFoundError, PermissionError), files.open_folder(self._staging) as folder:
            files.remove_abandoned(folder, _STAGED_NAME)


def _new_staged_file(folder: int) -> tuple[str, int]:
    while True:
        name = f"{secrets.token_hex(16)}.staged"
        descriptor = files.open_below(folder, name, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        files.locks.lock(descriptor)
        if os.fstat(descriptor).st_nlink:
            return name, descriptor
        os.close(descriptor)  # removed as abandoned before it was locked


def _open_file(path: Path) -> int:
    return os.open(path, os.O_RDONLY | files.CLOSE_ON_EXEC | files.NO_FOLLOW)


def _signature(seen: os.stat_result) -> str:
    return f"{seen.st_mtime_ns:x}-{seen.st_size:x}-"


def _version(seen: os.stat_result, sha256: str) -> Version:
    # Time and size show cheaply that nothing changed. The hash gives different contents different versions, even if a
    # backup restores a file with its old time.
    return Version(_signature(seen) + sha256[:32])


def _read_version(path: Path) -> tuple[Version, int] | None:
    try:
        with files.closing(_open_file(path)) as descriptor:
            sha256, seen = files.hash_open_file(descriptor), os.fstat(descriptor)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return _version(seen, sha256), seen.st_mtime_ns


def _make_younger(descriptor: int, than_ns: int) -> None:
    """Set the modification time above `than_ns`, by the smallest step that the file system can store.

    A kernel uses the time of its last tick, some milliseconds ago, and a new file may get the inode of a deleted one.
    So two contents of equal size that are written within a tick could look the same to `stat`.
    """
    for step_ns in _STEPS_NS:
        if os.fstat(descriptor).st_mtime_ns > than_ns:
            return
        os.utime(descriptor, ns=(than_ns + step_ns, than_ns + step_ns))
        os.fsync(descriptor)


def _list_blobs(root: Path, top: tuple[str, ...]) -> Iterator[BlobInfo]:
    waiting = [top]
    while waiting:
        names = waiting.pop()
        with (
            contextlib.suppress(FileNotFoundError, NotADirectoryError),
            files.open_folder(root.joinpath(*names)) as folder,
            os.scandir(folder) as entries,
        ):
            for entry in entries:
                below = (*names, entry.name)
                if below == (_OWN_FOLDER,):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(below)
                elif (key := decode_key(below)) is not None and entry.is_file(follow_symlinks=False):
                    with contextlib.suppress(FileNotFoundError):
                        seen = entry.stat(follow_symlinks=False)
                        # Not st_mtime, which _make_younger sets. The kernel sets st_ctime when the file is renamed.
                        changed_at = datetime.datetime.fromtimestamp(seen.st_ctime, datetime.UTC)
                        yield BlobInfo(key, seen.st_size, changed_at)


@functools.lru_cache(maxsize=1024)
def _relative_path(key: str) -> str:
    return "/".join(encode_key(check_key(key)))


# ── names of files ─────────────────────────────────────────────────────────────────────────────────

_UNTOUCHED = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-_.")
_DOTLESS_FILE = ".%"
"""Ending of a file name that would look like a folder. No encoded key has a `%` without two digits."""
_FOLDER_ENDING = ".shards"
_CONTINUED = "%~"
"""Ending of a folder that contains the rest of a part that is too long for one name."""
_MAX_NAME_BYTES = 240


def encode_key(key: str) -> tuple[str, ...]:
    """Return the names of the folders and of the file: `a/b.json` -> `("a", "b.json")`."""
    *folders, part = key.split("/")
    name = _quote(part)
    if "." not in name or name.endswith(_FOLDER_ENDING):
        name += _DOTLESS_FILE
    return (*encode_folders(folders), *_cut(name))


def encode_folders(parts: Sequence[str]) -> tuple[str, ...]:
    quoted = [_quote(part) for part in parts]
    names = [name if name.endswith(_FOLDER_ENDING) else name.replace(".", "%2e") for name in quoted]
    return tuple(piece for name in names for piece in _cut(name))


def decode_key(names: Sequence[str]) -> str | None:
    """Return the key of a file; None for a foreign file."""
    parts, begun = [], ""
    for name in names:
        if name.endswith(_CONTINUED):
            begun += name.removesuffix(_CONTINUED)
        else:
            parts.append(begun + name)
            begun = ""
    if begun or not parts:
        return None
    parts[-1] = parts[-1].removesuffix(_DOTLESS_FILE)
    try:
        key = "/".join(unquote(part, errors="strict") for part in parts)
    except UnicodeDecodeError:
        return None
    return key if encode_key(key) == tuple(names) else None


def _quote(part: str) -> str:
    """Quote a part, including capital letters, because `Readme` and `readme` are one name on some file systems."""
    quoted = "".join(chr(byte) if chr(byte) in _UNTOUCHED else f"%{byte:02x}" for byte in part.encode("utf-8"))
    return re.sub(r"^\.", "%2e", quoted)


def _cut(name: str) -> list[str]:
    pieces = [name[start : start + _MAX_NAME_BYTES] for start in range(0, len(name), _MAX_NAME_BYTES)]
    return [*(piece + _CONTINUED for piece in pieces[:-1]), pieces[-1]]


class MemoryStore:
    """A blob store in a dictionary, for tests and trials."""

    address = "memory:"

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._blobs: dict[str, tuple[Blob, datetime.datetime]] = {}
        """Blobs, and the times of their last writes."""
        self._writes = 0

    def get(self, key: str) -> Blob | None:
        with self._lock:
            blob, _ = self._blobs.get(check_key(key), (None, None))
        return blob

    def get_if_changed(self, key: str, version: Version) -> Blob | BlobUnchanged | None:
        blob = self.get(key)
        return BlobUnchanged() if blob and blob.version == version else blob

    def get_range(self, key: str, start: int, length: int) -> bytes | None:
        blob = self.get(key)
        return blob.data[start : start + length] if blob else None

    def download(self, key: str, path: Path) -> bool:
        blob = self.get(key)
        if blob is None:
            return False
        with files.storage_errors():
            files.write_new_file(path, (blob.data,))
        return True

    def put(self, key: str, data: bytes) -> Version:
        return self._write(key, data, lambda _: True)

    def upload(self, key: str, path: Path) -> Version:
        with files.storage_errors():
            data = path.read_bytes()
        return self.put(key, data)

    def put_if(self, key: str, data: bytes, version: Version) -> Version:
        return self._write(key, data, lambda current: current == version)

    def create(self, key: str, data: bytes) -> Version:
        return self._write(key, data, lambda current: current is None)

    def list(self, prefix: str) -> Iterator[BlobInfo]:
        with self._lock:
            blobs = [(key, *self._blobs[key]) for key in sorted(self._blobs) if key.startswith(prefix)]
        return (BlobInfo(key, len(blob.data), written_at) for key, blob, written_at in blobs)

    def delete(self, key: str) -> None:
        with self._lock:
            self._blobs.pop(check_key(key), None)

    def close(self) -> None:
        """Do nothing."""

    def _write(self, key: str, data: bytes, is_wanted: Callable[[Version | None], bool]) -> Version:
        with self._lock:
            current, _ = self._blobs.get(check_key(key), (None, None))
            if not is_wanted(current.version if current else None):
                raise VersionMismatchError(key)
            self._writes += 1
            blob = Blob(bytes(data), Version(f"{self._writes}"))
            self._blobs[key] = blob, self._clock.now()
            return blob.version


class ZipStore:
    """A read-only store. `name_of` returns the name of a key in the archive, or None. A damaged entry is E009."""

    def __init__(self, path: Path, archive: zipfile.ZipFile, name_of: Callable[[str], str | None]) -> None:
        self.address = str(path)
        self._path = path
        self._archive = archive
        self._name_of = name_of
        self._entries = {entry.filename: entry for entry in archive.infolist()}

    def get(self, key: str) -> Blob | None:
        entry = self._entry(key)
        if entry is None:
            return None
        return Blob(self._read(entry, 0, entry.file_size), Version(f"{entry.CRC:x}-{entry.file_size:x}"))

    def get_if_changed(self, key: str, version: Version) -> Blob | BlobUnchanged | None:
        return BlobUnchanged() if self._entry(key) is not None else None

    def get_range(self, key: str, start: int, length: int) -> bytes | None:
        entry = self._entry(key)
        return None if entry is None else self._read(entry, start, length)

    def download(self, key: str, path: Path) -> bool:
        entry = self._entry(key)
        if entry is None:
            return False
        with files.storage_errors():
            try:
                with self._archive.open(entry) as stream:
                    files.write_new_file(path, iter(lambda: stream.read(files.CHUNK_BYTES), b""))
            except (zipfile.BadZipFile, zlib.error, EOFError) as fault:
                raise errors.archive_refused(self._path.name, f"damaged entry: {entry.filename!r}") from fault
        return True

    def _refuse_write(self, *_: object) -> NoReturn:
        raise errors.storage_failed(self.address, "a package cannot be written to")

    put = upload = put_if = create = delete = _refuse_write

    def list(self, prefix: str) -> Iterator[BlobInfo]:
        """List the blob whose key equals the prefix. An archive has names, not keys, so other blobs cannot be found."""
        entry = self._entry(prefix)
        if entry is not None:
            yield BlobInfo(prefix, entry.file_size, datetime.datetime(*entry.date_time, tzinfo=datetime.UTC))

    def close(self) -> None:
        self._archive.close()

    def _entry(self, key: str) -> zipfile.ZipInfo | None:
        name = self._name_of(key)
        return None if name is None else self._entries.get(name)

    def _read(self, entry: zipfile.ZipInfo, start: int, length: int) -> bytes:
        try:
            with self._archive.open(entry) as stream:
                stream.seek(start)
                return stream.read(length)
        except (zipfile.BadZipFile, zlib.error, EOFError) as fault:
            raise errors.archive_refused(self._path.name, f"damaged entry: {entry.filename!r}") from fault


def open_zip_store(path: Path, name_of: Callable[[str], str | None]) -> ZipStore:
    """Open an archive. Raises E009, E010."""
    with files.storage_errors():
        try:
            return ZipStore(path, zipfile.ZipFile(path), name_of)
        except (zipfile.BadZipFile, ValueError, NotImplementedError) as fault:
            raise errors.archive_refused(path.name, "it is not a complete zip archive") from fault
