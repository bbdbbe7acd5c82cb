"""Atomic write, one-writer lock, SHA-256, and file-system faults as pair's own error."""

import contextlib
import errno
import fcntl
import hashlib
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import filelock

from pair import errors

_TEMPORARY_NAME = re.compile(r"\.(?P<name>.+)\.\d+\.tmp")

logger = logging.getLogger(__name__)

CHUNK_BYTES = 1024 * 1024


def expanded(named: str) -> Path:
    """A path of the settings, where no shell has made a home of `~`."""
    return Path(os.path.expanduser(named))  # noqa: PTH111 - Path.expanduser fails without a home


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
    with path.open("xb") as file:
        try:
            file.writelines(chunks)
            file.flush()
        except BaseException:
            path.unlink(missing_ok=True)
            raise


def write_atomically(path: Path, content: bytes) -> None:
    """Readers see the old file or the new one, after a power cut too."""
    write_together((path, content))


def copy_atomically(source: Path, path: Path) -> None:
    """The same for the bytes of another file, however many."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.unlink(missing_ok=True)
        copy_file(str(source), str(temporary))
        descriptor = os.open(temporary, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def write_together(*contents: tuple[Path, bytes]) -> None:
    """Several files whose contents belong together: all are on disk before the first takes its place."""
    temporaries = [path.with_name(f".{path.name}.{os.getpid()}.tmp") for path, _ in contents]
    try:
        for temporary, (_, content) in zip(temporaries, contents, strict=True):
            _write_synced(temporary, content)
        for temporary, (path, _) in zip(temporaries, contents, strict=True):
            temporary.replace(path)
    finally:
        for temporary in temporaries:
            temporary.unlink(missing_ok=True)
    for folder in {path.parent for path, _ in contents}:
        sync_folder(folder)


def remove_half_written(*paths: Path) -> None:
    """What killed processes left of these files while writing them. The caller knows that nobody writes them now."""
    for folder in {path.parent for path in paths}:
        names = {path.name for path in paths if path.parent == folder}
        with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
            for entry in entries:
                temporary = _TEMPORARY_NAME.fullmatch(entry.name)
                if temporary is not None and temporary["name"] in names:
                    Path(entry.path).unlink(missing_ok=True)


def _write_synced(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    try:
        write_all(descriptor, content)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_closed(folder: Path) -> bool:
    """A folder that is there and in which this process may make nothing."""
    return folder.is_dir() and not os.access(folder, os.W_OK | os.X_OK)


def remove_tree(path: Path) -> None:
    """Remove a folder if it is there; a folder without write permission inside it too."""

    def make_writable_and_retry(function: Callable[[str], object], name: str, _fault: object) -> None:
        parent = Path(name).parent
        parent.chmod(0o700)
        if Path(name).is_dir() and not Path(name).is_symlink():
            Path(name).chmod(0o700)
        function(name)

    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path, onerror=make_writable_and_retry)


@contextlib.contextmanager
def scratch_folder(parent: Path) -> Iterator[Path]:
    """A folder for as long as the block runs. Those that killed processes left beside it go too."""
    parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(parent)
    folder, descriptor = _locked_folder(parent)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def _locked_folder(parent: Path) -> tuple[Path, int]:
    while True:
        folder = Path(tempfile.mkdtemp(dir=parent))
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if folder.exists():
                return folder, descriptor
            os.close(descriptor)  # taken for an abandoned one, in the moment before it was locked


def _remove_abandoned(parent: Path) -> None:
    """A process that lives holds the lock of its folder."""
    for folder in parent.iterdir():
        with contextlib.suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(descriptor)


@contextlib.contextmanager
def exclusive_lock(path: Path, *, on_wait: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock file for as long as the block runs; it frees itself when the process dies.

    `on_wait` is called once, with who holds it, when somebody else does; it may raise rather than wait.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(path, fallback_to_soft=False, on_acquired=_write_holder)
    try:
        lock.acquire(blocking=False)
    except filelock.Timeout:
        on_wait(_holder_of(path))
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _write_holder(descriptor: int) -> None:
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"process {os.getpid()}\n".encode(), 0)


def _holder_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip() or "another process"
    except OSError:
        return "another process"


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
    """File-system faults inside the block become E010."""
    try:
        yield
    except OSError as fault:
        path = os.fsdecode(fault.filename2 or fault.filename or "")
        is_reading = os.path.exists(path) and not os.access(path, os.R_OK)  # noqa: PTH110 - "" does not exist
        raise errors.storage_failed(path, reason_of(fault), is_reading=is_reading) from fault
