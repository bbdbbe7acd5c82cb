"""Atomic write, one-writer lock, SHA-256, and file-system faults as pair's own error."""

import contextlib
import errno
import fcntl
import hashlib
import logging
import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from pair import errors, folders

_TEMPORARY_NAME = re.compile(r"\.(?P<name>.+)\.(?:\d+|[0-9a-f]{8})\.tmp")
"""Earlier versions of pair used the number of their process."""
_SCRATCH_NAME = re.compile(r"scratch-[0-9a-f]{16}")
_HOLDER = re.compile(rb"(?:process \d+\n)?")

logger = logging.getLogger(__name__)

CHUNK_BYTES = 1024 * 1024


def expanded(named: str) -> Path:
    """Return a path of the settings: `~` is the home folder, and links of an absolute path are followed.

    A relative path stays as it is, and may have no link: see `folders`.
    """
    path = Path(os.path.expanduser(named))  # noqa: PTH111 - Path.expanduser fails without a home
    return Path(os.path.realpath(path)) if path.is_absolute() else path


def sha256_of(path: str | Path) -> str:
    digest = hashlib.sha256()
    descriptor = os.open(path, os.O_RDONLY)
    try:
        while chunk := os.read(descriptor, CHUNK_BYTES):
            digest.update(chunk)
    finally:
        os.close(descriptor)
    return digest.hexdigest()


def copy_file(source: str, destination: str) -> str:
    """Copy the bytes (not the mode) to a new file; returns their SHA-256, from one reading."""
    digest = hashlib.sha256()
    reader = os.open(source, os.O_RDONLY)
    try:
        writer = os.open(destination, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            while chunk := os.read(reader, CHUNK_BYTES):
                digest.update(chunk)
                write_all(writer, chunk)
                if len(chunk) < CHUNK_BYTES:
                    break
        finally:
            os.close(writer)
    finally:
        os.close(reader)
    return digest.hexdigest()


def write_all(descriptor: int, content: bytes | bytearray) -> None:
    """`os.write` may write less than it was given, as on a disk that is nearly full."""
    written = os.write(descriptor, content)
    while written < len(content):
        written += os.write(descriptor, content[written:])


def write_new_file(path: Path, chunks: Iterable[bytes]) -> None:
    """A file that does not exist yet; there is none afterwards either when the chunks cannot all be had or written."""
    with os.fdopen(folders.open_file(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
        try:
            file.writelines(chunks)
            file.flush()
        except BaseException:
            folders.unlink(path, missing_ok=True)
            raise


def write_atomically(path: Path, content: bytes, *, mode: int = 0o666) -> None:
    """Readers see the old file or the new one, after a power cut too. `mode`: of the new file, before the umask."""
    with replaced_file(path, mode=mode) as stream:
        stream.write(content)


def copy_atomically(source: Path, path: Path) -> None:
    """The same for the bytes of another file, however many."""
    with source.open("rb") as reader, replaced_file(path) as stream:
        while chunk := reader.read(CHUNK_BYTES):
            stream.write(chunk)


def write_together(*contents: tuple[Path, bytes]) -> None:
    """Several files whose contents belong together: all are on disk before the first takes its place."""
    with contextlib.ExitStack() as held:
        begun = [held.enter_context(_temporary_file(path)) for path, _ in contents]
        for (stream, _), (_, content) in zip(begun, contents, strict=True):
            stream.write(content)
            _flush_to_disk(stream)
        for _, place in begun:
            place()
    for folder in {path.parent for path, _ in contents}:
        sync_folder(folder)


@contextlib.contextmanager
def replaced_file(path: Path, *, mode: int = 0o666) -> Iterator[BinaryIO]:
    """A stream whose content takes the place of the file when the block ends without a fault; else nothing changes."""
    with _temporary_file(path, mode) as (stream, place):
        yield stream
        _flush_to_disk(stream)
        place()
    sync_folder(path.parent)


@contextlib.contextmanager
def _temporary_file(path: Path, mode: int = 0o666) -> Iterator[tuple[BinaryIO, Callable[[], None]]]:
    """Give a stream of a new file beside the path, and the function that lets it take the place of the path."""
    with folders.open_folder(path.parent) as folder, contextlib.ExitStack() as held:
        with folders.naming(path):
            folders.refuse_link_below(folder, path)
            temporary = f".{path.name}.{secrets.token_hex(4)}.tmp"
            descriptor = folders.open_below(folder, temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)

        def place() -> None:
            with folders.naming(path):
                os.rename(temporary, path.name, src_dir_fd=folder, dst_dir_fd=folder)

        def remove() -> None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=folder)

        held.callback(remove)
        yield held.enter_context(os.fdopen(descriptor, "w+b")), place


def _flush_to_disk(stream: BinaryIO) -> None:
    stream.flush()
    os.fsync(stream.fileno())


def remove_half_written(*paths: Path) -> None:
    """What killed processes left of these files while writing them. The caller knows that nobody writes them now."""
    for parent in {path.parent for path in paths}:
        names = {path.name for path in paths if path.parent == parent}
        with contextlib.suppress(FileNotFoundError), folders.open_folder(parent) as folder:
            for name in folders.list_below(folder):
                temporary = _TEMPORARY_NAME.fullmatch(name)
                if temporary is not None and temporary["name"] in names:
                    with contextlib.suppress(FileNotFoundError, IsADirectoryError):
                        os.unlink(name, dir_fd=folder)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power cut."""
    with folders.open_folder(folder) as descriptor:
        os.fsync(descriptor)


def is_closed(folder: Path) -> bool:
    """A folder that is there and in which this process may make nothing."""
    return folder.is_dir() and not os.access(folder, os.W_OK | os.X_OK)


def remove_tree(path: Path) -> None:
    """Remove a folder if it is there; a folder without write permission inside it too. A link is not followed."""
    with contextlib.suppress(FileNotFoundError), folders.open_folder(path.parent) as parent, folders.naming(path):
        folders.remove_below(parent, path.name)


@contextlib.contextmanager
def scratch_folder(parent: Path) -> Iterator[Path]:
    """A folder for as long as the block runs. Those that killed processes left beside it go too."""
    with folders.open_folder(parent, make=True) as descriptor:
        _remove_abandoned(descriptor)
        name, lock = _make_scratch_folder(descriptor)
        try:
            yield parent / name
        finally:
            with contextlib.suppress(OSError):
                folders.remove_below(descriptor, name)
            os.close(lock)


def _make_scratch_folder(parent: int) -> tuple[str, int]:
    while True:
        name = f"scratch-{secrets.token_hex(8)}"
        os.mkdir(name, 0o700, dir_fd=parent)
        with contextlib.suppress(FileNotFoundError):  # taken for an abandoned one, in the moment before it was locked
            descriptor = folders.open_below(parent, name, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            try:
                os.stat(name, dir_fd=parent, follow_symlinks=False)
            except FileNotFoundError:
                os.close(descriptor)
            else:
                return name, descriptor


def _remove_abandoned(parent: int) -> None:
    """Remove scratch folders that no living process holds the lock of. What has another name is not ours."""
    for name in filter(_SCRATCH_NAME.fullmatch, folders.list_below(parent)):
        with contextlib.suppress(OSError):
            descriptor = folders.open_below(parent, name, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                folders.remove_below(parent, name)
            finally:
                os.close(descriptor)


@contextlib.contextmanager
def exclusive_lock(path: Path, *, on_wait: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock file for as long as the block runs; it frees itself when the process dies.

    `on_wait` is called once, with who holds it, when somebody else does; it may raise rather than wait.
    """
    folders.make_folder(path.parent)
    descriptor = folders.open_file(path, os.O_RDWR | os.O_CREAT)
    try:
        if not _HOLDER.fullmatch(os.pread(descriptor, 64, 0)):
            raise folders.foreign_file(path)
        _lock(descriptor, on_wait, lambda: os.pread(descriptor, 64, 0).decode().strip())
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def lock_folder(folder: Path, *, on_wait: Callable[[str], None]) -> Iterator[None]:
    """Hold a lock on the folder itself, which leaves no file anywhere; else as `exclusive_lock`."""
    with folders.open_folder(folder, make=True) as descriptor:
        _lock(descriptor, on_wait, lambda: _holder_in_kernel(os.fstat(descriptor).st_ino))
        yield


def _lock(descriptor: int, on_wait: Callable[[str], None], holder: Callable[[], str]) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        on_wait(holder() or "another process")
        fcntl.flock(descriptor, fcntl.LOCK_EX)


def _holder_in_kernel(inode: int) -> str:
    """Return who holds the lock of a file, as Linux lists it; nothing where it is not listed."""
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
    errno.ENOTDIR: "a file stands where a folder is needed",
    errno.EEXIST: "it exists already",
}


def reason_of(fault: OSError) -> str:
    """In words for people."""
    return _REASONS.get(fault.errno or 0, fault.strerror or str(fault))


@contextlib.contextmanager
def storage_errors() -> Iterator[None]:
    """File-system faults inside the block become E010; links E025, and files of others E026."""
    try:
        yield
    except OSError as fault:
        path = os.fsdecode(fault.filename2 or fault.filename or "")
        if fault.errno == errno.ELOOP:
            raise errors.link_refused(path) from fault
        if fault.errno == errno.EMLINK:
            raise errors.foreign_file(path) from fault
        is_reading = os.path.exists(path) and not os.access(path, os.R_OK)  # noqa: PTH110 - "" does not exist
        raise errors.storage_failed(path, reason_of(fault), is_reading=is_reading) from fault
