"""Files and folders: opened without following links, written atomically, locked, removed.

Invariants
    A path is opened one name at a time, from the root or the current folder, and no name on the way may be a link.
    A link is refused with ELOOP, which `storage_errors` turns into E025. There is no gap between check and use: each
    call works below the descriptor that was opened.
    A file that is written in place is a regular file with one name; any other is refused with EMLINK, which is E026.
    Only `resolve` follows links, those of an absolute path, once, before pair works below it.
"""

import contextlib
import errno
import hashlib
import importlib
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from pair import errors

resource: Any = None
"""Limits and use of resources; None on Windows."""
with contextlib.suppress(ModuleNotFoundError):
    resource = importlib.import_module("resource")
NO_FOLLOW: int = getattr(os, "O_NOFOLLOW", 0)
DIRECTORY: int = getattr(os, "O_DIRECTORY", 0)
CLOSE_ON_EXEC: int = getattr(os, "O_CLOEXEC", getattr(os, "O_NOINHERIT", 0))
NON_BLOCKING: int = getattr(os, "O_NONBLOCK", 0)
_TEMPORARY_NAME = re.compile(r"\.(?P<name>.+)\.(?:\d+|[0-9a-f]{8})\.tmp")
"""The form of names in earlier versions of pair: with the process id."""
_SCRATCH_NAME = re.compile(r"scratch-[0-9a-f]{16}")
_HOLDER = re.compile(rb"(?:process \d+\n)?")

CHUNK_BYTES = 1024 * 1024
_FOLDER = DIRECTORY | NO_FOLLOW | CLOSE_ON_EXEC
_PASS = _FOLDER | getattr(os, "O_PATH", os.O_RDONLY)
"""A flag to open folders on the way: passing through a folder needs no permission to list it."""
_WRITING = os.O_WRONLY | os.O_RDWR


# ── folders, without following links ───────────────────────────────────────────────────────────────


def resolve(path: Path) -> Path:
    """Return the absolute path without links. Links of an absolute path are followed; a relative path may have none."""
    if path.is_absolute():
        return Path(os.path.realpath(path))
    for ancestor in (*reversed(path.parents), path):
        if ancestor.is_symlink():
            raise _link_fault(ancestor)
    return Path(os.path.abspath(path))  # noqa: PTH100 - without links, `..` can be resolved


def resolve_parent(path: Path) -> Path:
    """Follow the links above a file that the user named. The file itself must not be a link."""
    return Path(os.path.realpath(path.parent), path.name)


@contextlib.contextmanager
def open_folder(path: Path, *, make: bool = False) -> Iterator[int]:
    """Yield a descriptor of the folder, for calls with `dir_fd`. `make`: create missing folders."""
    with closing(_walk(path, make=make)) as descriptor:
        yield descriptor


@contextlib.contextmanager
def closing(descriptor: int) -> Iterator[int]:
    """Close the descriptor when the block ends."""
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def make_folder(path: Path) -> None:
    """Create the folder and its parents if missing. They survive a power cut."""
    os.close(_walk(path, make=True))


def list_folder(path: Path) -> list[str]:
    """Return the names in the folder, sorted."""
    with open_folder(path) as folder:
        return list_below(folder)


def list_below(folder: int) -> list[str]:
    """Return the names in the folder of this descriptor, sorted."""
    return sorted(os.listdir(folder))


def open_file(path: Path, flags: int, mode: int = 0o666) -> int:
    """Return a descriptor of the file. A file that is opened for writing must be regular, with one name.

    `O_TRUNC` takes effect after that check.
    """
    with open_folder(path.parent) as folder, naming(path):
        descriptor = open_below(folder, path.name, flags & ~os.O_TRUNC, mode)
    try:
        if flags & _WRITING:
            seen = os.fstat(descriptor)
            if not stat.S_ISREG(seen.st_mode) or seen.st_nlink > 1:
                raise foreign_file(path)
        if flags & os.O_TRUNC:
            os.ftruncate(descriptor, 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def open_below(folder: int, name: str, flags: int, mode: int = 0o666) -> int:
    """Open a file in the folder of this descriptor, without waiting for a pipe."""
    return os.open(name, flags | NO_FOLLOW | CLOSE_ON_EXEC | NON_BLOCKING, mode, dir_fd=folder)


def read_file(path: Path) -> bytes:
    with os.fdopen(open_file(path, os.O_RDONLY), "rb") as stream:
        return stream.read()


def unlink(path: Path, *, missing_ok: bool = False) -> None:
    """Remove the name of a file, or a link itself."""
    ignored = (FileNotFoundError,) if missing_ok else ()
    with contextlib.suppress(*ignored), open_folder(path.parent) as folder, naming(path):
        os.unlink(path.name, dir_fd=folder)


def remove_empty_folder(path: Path) -> None:
    with open_folder(path.parent) as parent, naming(path):
        os.rmdir(path.name, dir_fd=parent)


def rename(source: Path, target: Path) -> None:
    """Move a file, a folder, or a link itself."""
    with open_folder(source.parent) as old, open_folder(target.parent) as new, naming(target):
        os.rename(source.name, target.name, src_dir_fd=old, dst_dir_fd=new)


def refuse_link_below(folder: int, path: Path) -> None:
    """Raise ELOOP if the last name of the path is a link in the folder of this descriptor."""
    if is_link_below(folder, path.name):
        raise _link_fault(path)


def is_link_below(folder: int, name: str) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


def remove_below(parent: int, name: str) -> None:
    """Remove a file, a link, or a folder of any depth, even without permissions."""
    if _remove_unless_folder(parent, name):
        return
    with _open_for_removal(parent, name) as top:
        while names := list_below(top):
            for entry in names:
                if not _remove_unless_folder(top, entry):
                    with _open_for_removal(top, entry) as folder:
                        _empty(folder, top)
                    os.rmdir(entry, dir_fd=top)
    os.rmdir(name, dir_fd=parent)


def _empty(folder: int, top: int) -> None:
    """Remove the files of the folder, and move its folders up to `top`, so that depth needs no descriptors."""
    for entry in list_below(folder):
        if not _remove_unless_folder(folder, entry):
            with _open_for_removal(folder, entry):
                os.rename(entry, secrets.token_hex(16), src_dir_fd=folder, dst_dir_fd=top)


def _remove_unless_folder(folder: int, name: str) -> bool:
    """Remove the entry unless it is a folder. Return whether it was removed."""
    if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
        return False
    os.unlink(name, dir_fd=folder)
    return True


@contextlib.contextmanager
def _open_for_removal(parent: int, name: str) -> Iterator[int]:
    with closing(os.open(name, _PASS, dir_fd=parent)) as passing:
        if os.fstat(passing).st_mode & stat.S_IRWXU != stat.S_IRWXU:
            # The mode of an O_PATH descriptor can only be changed by its name in /proc.
            os.chmod(f"/proc/self/fd/{passing}" if hasattr(os, "O_PATH") else passing, stat.S_IRWXU)  # noqa: PTH101
        descriptor = os.open(".", _FOLDER, dir_fd=passing)
    with closing(descriptor):
        yield descriptor


def _walk(path: Path, *, make: bool) -> int:
    parts = path.parts[1:] if path.is_absolute() else path.parts
    descriptor = os.open(path.anchor or ".", _FOLDER if not parts else _PASS)
    for number, name in enumerate(parts, start=1):
        flags = _FOLDER if number == len(parts) else _PASS
        try:
            below = _enter(descriptor, name, flags, make=make)
        except OSError as fault:
            fault.filename = str(Path(path.anchor, *parts[:number]))
            if fault.errno in {errno.ENOTDIR, errno.ELOOP} and is_link_below(descriptor, name):
                raise _link_fault(Path(fault.filename)) from fault
            raise
        finally:
            os.close(descriptor)
        descriptor = below
    return descriptor


def _enter(parent: int, name: str, flags: int, *, make: bool) -> int:
    try:
        return os.open(name, flags, dir_fd=parent)
    except FileNotFoundError:
        if not make:
            raise
    with contextlib.suppress(FileExistsError):  # Another process was faster.
        os.mkdir(name, dir_fd=parent)
        with closing(os.open(".", _FOLDER, dir_fd=parent)) as above:
            os.fsync(above)
    return os.open(name, flags, dir_fd=parent)


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name the whole path in errors, instead of its last part."""
    try:
        yield
    except OSError as fault:
        fault.filename = str(path)
        if fault.filename2 is not None:
            fault.filename2 = fault.filename
        raise


def foreign_file(path: Path) -> OSError:
    """Return the error for a file that pair would write to but did not make."""
    return OSError(errno.EMLINK, os.strerror(errno.EMLINK), str(path))


def _link_fault(path: Path) -> OSError:
    return OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))


# ── files ──────────────────────────────────────────────────────────────────────────────────────────


def expand_path(named: str) -> Path:
    """Return a path of the settings: `~` is the home folder, and links of an absolute path are followed.

    A relative path is not changed, and may have no link: see the invariants.
    """
    path = Path(os.path.expanduser(named))  # noqa: PTH111 - Path.expanduser fails without a home
    return Path(os.path.realpath(path)) if path.is_absolute() else path


def hash_file(path: str | Path) -> str:
    with closing(os.open(path, os.O_RDONLY)) as descriptor:
        return hash_open_file(descriptor)


def hash_open_file(descriptor: int) -> str:
    digest = hashlib.sha256()
    for chunk in read_chunks(descriptor):
        digest.update(chunk)
    return digest.hexdigest()


def read_chunks(descriptor: int) -> Iterator[bytes]:
    while chunk := os.read(descriptor, CHUNK_BYTES):
        yield chunk


def copy_file(source: str, destination: str) -> str:
    """Copy the bytes (not the mode) to a new file. Return the SHA-256 of the copied bytes."""
    digest = hashlib.sha256()
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with closing(os.open(source, os.O_RDONLY)) as reader, closing(os.open(destination, flags, 0o666)) as writer:
        for chunk in read_chunks(reader):
            digest.update(chunk)
            write_all(writer, chunk)
    return digest.hexdigest()


def write_all(descriptor: int, content: bytes | bytearray) -> None:
    """Write all bytes: `os.write` may write fewer, as on a nearly full disk."""
    written = os.write(descriptor, content)
    while written < len(content):
        written += os.write(descriptor, content[written:])


def write_new_file(path: Path, chunks: Iterable[bytes]) -> None:
    """Write a new file. If a chunk cannot be read or written, remove the file."""
    with os.fdopen(open_file(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
        try:
            file.writelines(chunks)
            file.flush()
        except BaseException:
            unlink(path, missing_ok=True)
            raise


def write_atomically(path: Path, content: bytes, *, mode: int = 0o666) -> None:
    """Replace a file: readers see the old or the new one, even after a power cut. `mode`: before the umask."""
    with replace_file(path, mode=mode) as stream:
        stream.write(content)


def copy_atomically(source: Path, path: Path) -> None:
    """Replace a file by a copy of another one, like `write_atomically`."""
    with source.open("rb") as reader, replace_file(path) as stream:
        while chunk := reader.read(CHUNK_BYTES):
            stream.write(chunk)


def write_together(*contents: tuple[Path, bytes]) -> None:
    """Write a group of files. All are on disk before the first rename."""
    with contextlib.ExitStack() as stack:
        begun = [stack.enter_context(_temporary_file(path)) for path, _ in contents]
        for (stream, _), (_, content) in zip(begun, contents, strict=True):
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        for _, place in begun:
            place()
    for folder in {path.parent for path, _ in contents}:
        sync_folder(folder)


@contextlib.contextmanager
def replace_file(path: Path, *, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Yield a stream whose content replaces the file if the block succeeds; else nothing changes."""
    with _temporary_file(path, mode) as (stream, place):
        yield stream
        stream.flush()
        os.fsync(stream.fileno())
        place()
    sync_folder(path.parent)


@contextlib.contextmanager
def _temporary_file(path: Path, mode: int = 0o666) -> Iterator[tuple[BinaryIO, Callable[[], None]]]:
    """Yield a stream of a new file beside the path, and a function that renames the file to the path."""
    with _naming_if_unnamed(path), open_folder(path.parent) as folder, contextlib.ExitStack() as stack:
        with naming(path):
            refuse_link_below(folder, path)
            temporary = f".{path.name}.{secrets.token_hex(4)}.tmp"
            descriptor = open_below(folder, temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)

        def place() -> None:
            with naming(path):
                os.rename(temporary, path.name, src_dir_fd=folder, dst_dir_fd=folder)

        def remove() -> None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=folder)

        stack.callback(remove)
        yield stack.enter_context(os.fdopen(descriptor, "w+b")), place


@contextlib.contextmanager
def _naming_if_unnamed(path: Path) -> Iterator[None]:
    """Name the path in errors of a stream, such as on a full disk: they have no name."""
    try:
        yield
    except OSError as fault:
        fault.filename = fault.filename or str(path)
        raise


def remove_half_written(*paths: Path) -> None:
    """Remove temporary files of killed processes for these files. The caller ensures that no process writes them."""
    for parent in {path.parent for path in paths}:
        names = {path.name for path in paths if path.parent == parent}
        with contextlib.suppress(FileNotFoundError), open_folder(parent) as folder:
            for name in list_below(folder):
                temporary = _TEMPORARY_NAME.fullmatch(name)
                if temporary is not None and temporary["name"] in names:
                    with contextlib.suppress(FileNotFoundError, IsADirectoryError):
                        os.unlink(name, dir_fd=folder)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power cut."""
    with open_folder(folder) as descriptor:
        os.fsync(descriptor)


def remove_tree(path: Path) -> None:
    """Remove a folder if it exists, even without write permission. A link is not followed."""
    with contextlib.suppress(FileNotFoundError), open_folder(path.parent) as parent, naming(path):
        remove_below(parent, path.name)


@contextlib.contextmanager
def scratch_folder(parent: Path) -> Iterator[Path]:
    """Yield a folder that exists while the block runs. Also remove scratch folders of killed processes beside it."""
    with open_folder(parent, make=True) as descriptor:
        remove_abandoned(descriptor, _SCRATCH_NAME)
        name, lock = _make_scratch_folder(descriptor)
        try:
            yield parent / name
        finally:
            with contextlib.suppress(OSError):
                remove_below(descriptor, name)
            os.close(lock)


def _make_scratch_folder(parent: int) -> tuple[str, int]:
    while True:
        name = f"scratch-{secrets.token_hex(8)}"
        os.mkdir(name, 0o700, dir_fd=parent)
        with contextlib.suppress(FileNotFoundError):  # another process may remove it before it is locked
            descriptor = open_below(parent, name, os.O_RDONLY | DIRECTORY)
            locks.lock(descriptor)
            try:
                os.stat(name, dir_fd=parent, follow_symlinks=False)
            except FileNotFoundError:
                os.close(descriptor)
            else:
                return name, descriptor


def remove_abandoned(parent: int, pattern: re.Pattern[str]) -> None:
    """Remove files and folders with matching names whose lock no living process holds."""
    for name in filter(pattern.fullmatch, list_below(parent)):
        with contextlib.suppress(OSError), closing(open_below(parent, name, os.O_RDONLY)) as descriptor:
            locks.try_lock(descriptor)
            remove_below(parent, name)


# ── locks ──────────────────────────────────────────────────────────────────────────────────────────

_SLOTS = 1024
_FIRST_SLOT = 0x7FFF_0000
_TRIES = 64
_BUSY = frozenset({errno.EACCES, errno.EAGAIN, errno.EDEADLK, getattr(errno, "EDEADLOCK", errno.EDEADLK)})
"""Error numbers that Windows reports for a range that another open file holds."""


class FileLocks(Protocol):
    """Locks on open files. A descriptor holds one lock at most; closing it frees the lock."""

    def lock(self, descriptor: int) -> None:
        """Wait for the exclusive lock."""

    def try_lock(self, descriptor: int) -> None:
        """Take the exclusive lock. Raises BlockingIOError if another open file holds a lock."""

    def share(self, descriptor: int) -> None:
        """Wait for a shared lock."""


@dataclass(frozen=True)
class PosixLocks:
    fcntl: Any
    """The module `fcntl`."""

    def lock(self, descriptor: int) -> None:
        self.fcntl.flock(descriptor, self.fcntl.LOCK_EX)

    def try_lock(self, descriptor: int) -> None:
        self.fcntl.flock(descriptor, self.fcntl.LOCK_EX | self.fcntl.LOCK_NB)

    def share(self, descriptor: int) -> None:
        self.fcntl.flock(descriptor, self.fcntl.LOCK_SH)


@dataclass(frozen=True)
class WindowsLocks:
    msvcrt: Any
    """The module `msvcrt`."""

    def lock(self, descriptor: int) -> None:
        self._wait(descriptor, 0, _SLOTS)

    def try_lock(self, descriptor: int) -> None:
        self._take(descriptor, self.msvcrt.LK_NBLCK, 0, _SLOTS)

    def share(self, descriptor: int) -> None:
        for _ in range(_TRIES):
            slot = secrets.randbelow(_SLOTS)
            try:
                return self._take(descriptor, self.msvcrt.LK_NBLCK, slot, 1)
            except BlockingIOError:  # by a shared lock that took the same slot, or by an exclusive one
                continue
        return self._wait(descriptor, secrets.randbelow(_SLOTS), 1)

    def _wait(self, descriptor: int, slot: int, count: int) -> None:
        while True:
            try:
                return self._take(descriptor, self.msvcrt.LK_LOCK, slot, count)
            except BlockingIOError:  # it gives up after 10 seconds
                continue

    def _take(self, descriptor: int, mode: int, slot: int, count: int) -> None:
        before = os.lseek(descriptor, 0, os.SEEK_CUR)
        os.lseek(descriptor, _FIRST_SLOT + slot, os.SEEK_SET)
        try:
            self.msvcrt.locking(descriptor, mode, count)
        except OSError as fault:
            if fault.errno in _BUSY:
                raise BlockingIOError(fault.errno, "another open file holds a lock") from fault
            raise
        finally:
            os.lseek(descriptor, before, os.SEEK_SET)


locks: FileLocks
try:
    locks = PosixLocks(importlib.import_module("fcntl"))
except ModuleNotFoundError:
    locks = WindowsLocks(importlib.import_module("msvcrt"))


@contextlib.contextmanager
def exclusive_lock(path: Path, *, on_wait: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock file while the block runs. The death of the process frees it.

    `on_wait`: called once with the holder if another process holds the lock; it may raise instead of waiting.
    """
    make_folder(path.parent)
    with closing(open_file(path, os.O_RDWR | os.O_CREAT)) as descriptor:
        if not _HOLDER.fullmatch(os.pread(descriptor, 64, 0)):
            raise foreign_file(path)
        _lock(descriptor, on_wait, lambda: os.pread(descriptor, 64, 0).decode().strip())
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()}\n".encode(), 0)
        yield


@contextlib.contextmanager
def lock_folder(folder: Path, *, on_wait: Callable[[str], None]) -> Iterator[None]:
    """Hold a lock on the folder itself, like `exclusive_lock` but without a lock file."""
    with open_folder(folder, make=True) as descriptor:
        _lock(descriptor, on_wait, lambda: _holder_in_kernel(os.fstat(descriptor).st_ino))
        yield


def _lock(descriptor: int, on_wait: Callable[[str], None], holder: Callable[[], str]) -> None:
    try:
        locks.try_lock(descriptor)
    except BlockingIOError:
        on_wait(holder() or "another process")
        locks.lock(descriptor)


def _holder_in_kernel(inode: int) -> str:
    """Return the process that holds the lock of a file, as listed by Linux; "" if it is not listed."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
            # `1: FLOCK  ADVISORY  WRITE 4242 fd:00:131074 0 EOF`
            fields = line.split()
            if fields[1:2] == ["FLOCK"] and fields[5].rpartition(":")[2] == str(inode) and int(fields[4]) > 0:
                return f"process {fields[4]}"
    return ""


_REASONS = {
    errno.ENOSPC: "no space left on the disk",
    errno.EDQUOT: "disk quota exceeded",
    errno.EACCES: "permission denied",
    errno.EPERM: "operation not permitted",
    errno.EROFS: "the file system is read-only",
    errno.ENAMETOOLONG: "the name is too long for this file system",
    errno.ENOTDIR: "a file is in the place of a folder",
    errno.EEXIST: "it already exists",
}


def describe_os_error(fault: OSError) -> str:
    """Return the reason of an error in plain words."""
    return _REASONS.get(fault.errno or 0, fault.strerror or str(fault))


@contextlib.contextmanager
def storage_errors(*, is_reading: bool = False) -> Iterator[None]:
    """Turn OS errors inside the block into E010, errors of links into E025, and errors of foreign files into E026.

    `is_reading`: the block only reads, so that a missing file is one that cannot be read.
    """
    try:
        yield
    except OSError as fault:
        path = os.fsdecode(fault.filename2 or fault.filename or "")
        if fault.errno == errno.ELOOP:
            raise errors.link_refused(path) from fault
        if fault.errno == errno.EMLINK:
            raise errors.foreign_file(path) from fault
        is_reading = is_reading or (os.path.exists(path) and not os.access(path, os.R_OK))  # noqa: PTH110 - "" does not exist
        raise errors.storage_failed(path, describe_os_error(fault), is_reading=is_reading) from fault
