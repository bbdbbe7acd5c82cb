"""Folders that pair works in: every name is opened, changed and removed without following a link.

Invariants
    A path is walked one name at a time, from the root or the current folder, and no name on the way may be a link.
    A link is refused with ELOOP, which `files.storage_errors` turns into E025; nothing behind it is touched. There is
    no gap between the check and the use: each call works below the descriptor that the walk has opened.
    A file that is written in place is a regular file with one name; another one is refused with EMLINK, which is E026.
Not here
    Which links a user may have: `resolve` follows those of an absolute path, once, before pair works below it.
"""

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

_FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PASS = _FOLDER | getattr(os, "O_PATH", os.O_RDONLY)
"""To go through a folder, one needs no permission to list it."""
_WRITING = os.O_WRONLY | os.O_RDWR


def resolve(path: Path) -> Path:
    """Return the absolute path without links: an absolute path is followed, a relative one may have no link."""
    if path.is_absolute():
        return Path(os.path.realpath(path))
    for ancestor in (*reversed(path.parents), path):
        if ancestor.is_symlink():
            raise _link_fault(ancestor)
    return Path(os.path.abspath(path))  # noqa: PTH100 - without links, `..` can be taken away


def resolve_parent(path: Path) -> Path:
    """Follow the links above a file that the user named on the command line. The file itself may be no link."""
    return Path(os.path.realpath(path.parent), path.name)


@contextlib.contextmanager
def open_folder(path: Path, *, make: bool = False) -> Iterator[int]:
    """Give a descriptor of the folder, for calls with `dir_fd`. `make`: create what is missing of the path."""
    descriptor = _walk(path, make=make)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def make_folder(path: Path) -> None:
    """Create the folder and its parents, each of which survives a power cut. It may exist."""
    os.close(_walk(path, make=True))


def list_folder(path: Path) -> list[str]:
    """Return the names in the folder, sorted."""
    with open_folder(path) as folder:
        return list_below(folder)


def list_below(folder: int) -> list[str]:
    """Return the names in the folder of this descriptor, sorted."""
    return sorted(os.listdir(folder))


def open_file(path: Path, flags: int, mode: int = 0o666) -> int:
    """Return a descriptor of the file. One that exists and is to be written must be regular, and have no second name.

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
    """Open a file in the folder of this descriptor. A pipe is not waited for."""
    return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, mode, dir_fd=folder)


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
    """Move a file or a folder. What is moved is the name, also that of a link."""
    with open_folder(source.parent) as old, open_folder(target.parent) as new, naming(target):
        os.rename(source.name, target.name, src_dir_fd=old, dst_dir_fd=new)


def refuse_link_below(folder: int, path: Path) -> None:
    """Raise ELOOP when the last name of the path is a link in the folder of this descriptor."""
    if is_link_below(folder, path.name):
        raise _link_fault(path)


def is_link_below(folder: int, name: str) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


def remove_below(parent: int, name: str) -> None:
    """Remove a file, a link, or a folder with all that is in it, however deep; also folders without permissions."""
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
    """Remove the files of the folder, and move its folders up to `top`, so that no depth needs more descriptors."""
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
    passing = os.open(name, _PASS, dir_fd=parent)
    try:
        if os.fstat(passing).st_mode & stat.S_IRWXU != stat.S_IRWXU:
            # A descriptor that only passes through cannot be changed itself; its name in /proc can.
            os.chmod(f"/proc/self/fd/{passing}" if hasattr(os, "O_PATH") else passing, stat.S_IRWXU)  # noqa: PTH101
        descriptor = os.open(".", _FOLDER, dir_fd=passing)
    finally:
        os.close(passing)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


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
    with contextlib.suppress(FileExistsError):  # another process was faster
        os.mkdir(name, dir_fd=parent)
        above = os.open(".", _FOLDER, dir_fd=parent)
        try:
            os.fsync(above)
        finally:
            os.close(above)
    return os.open(name, flags, dir_fd=parent)


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let faults name the whole path instead of the last name."""
    try:
        yield
    except OSError as fault:
        fault.filename = str(path)
        if fault.filename2 is not None:
            fault.filename2 = fault.filename
        raise


def foreign_file(path: Path) -> OSError:
    """Return the fault of a file that pair did not make, where it would write."""
    return OSError(errno.EMLINK, os.strerror(errno.EMLINK), str(path))


def _link_fault(path: Path) -> OSError:
    return OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
