"""Replace a folder by another, so that readers see the old one or the new one.

Invariants
    On Linux the two folders trade places in one step. Where a folder cannot be moved (it is a mount point) or the
    system cannot trade places, the entries of the folder are moved one by one and a note beside them lets the next run
    undo a move that was cut off.
"""

import contextlib
import ctypes
import errno
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from pair import files

_RENAME_EXCHANGE = 2
_STAGING = "staging"
_TOKEN = re.compile(r"[0-9a-f]{12}(-unpacked)?")
_NOTE_NAME = "moving"
_OLD_NAME = "old"
_NEW_NAME = "new"


def make_staging(target: Path, token: str) -> Path:
    """Make a new, empty folder that `put_in_place` can bring to `target`: beside it, or inside a mount point."""
    staging = staging_path(target, token)
    with files.open_folder(staging.parent, make=True) as home, files.naming(staging):
        os.mkdir(staging.name, dir_fd=home)
    files.make_folder(staging / _NEW_NAME)
    return staging / _NEW_NAME


def staging_path(target: Path, token: str) -> Path:
    home = target if _moves_entry_by_entry(target) else target.parent
    return home / f".{target.name}.{_STAGING}-{token}"


def put_in_place(new: Path, target: Path) -> None:
    """Bring a folder from `make_staging` to the target, and delete what was there."""
    staging = new.parent
    if not target.exists():
        files.rename(new, target)
    elif _moves_entry_by_entry(target) or not _exchange(new, target):
        _move_entries(staging, target)
    files.remove_tree(staging)


def clear_leftovers(target: Path) -> None:
    """Undo what a killed run left behind. Call under the target's lock."""
    for home in (target.parent, target):
        if not home.is_dir():
            continue
        for staging in [home / name for name in files.list_folder(home) if _is_leftover(name, target)]:
            with files.open_folder(staging) as descriptor:
                is_moving = _NOTE_NAME in files.list_below(descriptor)
            if is_moving:
                _undo_moves(staging, target)
            files.remove_tree(staging)


def _is_leftover(name: str, target: Path) -> bool:
    prefix = f".{target.name}.{_STAGING}-"
    return name.startswith(prefix) and _TOKEN.fullmatch(name.removeprefix(prefix)) is not None


def _moves_entry_by_entry(target: Path) -> bool:
    """Tell whether a folder cannot be moved: a mount point, one in a closed folder, or one with a shell in it."""
    return os.path.ismount(target) or Path.cwd().is_relative_to(target) or files.is_read_only(target.parent)


def _exchange(first: Path, second: Path) -> bool:
    """Let two folders trade places; False where the system cannot."""
    if not sys.platform.startswith("linux"):
        return False
    library = ctypes.CDLL(None, use_errno=True)
    if not hasattr(library, "renameat2"):
        return False
    with files.open_folder(first.parent) as here, files.open_folder(second.parent) as there:
        arguments = (here, os.fsencode(first.name), there, os.fsencode(second.name), _RENAME_EXCHANGE)
        if library.renameat2(*arguments) == 0:
            return True
    code = ctypes.get_errno()
    if code in {errno.EINVAL, errno.ENOSYS, errno.EBUSY, errno.EXDEV}:
        return False
    raise OSError(code, os.strerror(code), str(second))


@contextlib.contextmanager
def _open_places(staging: Path, target: Path) -> Iterator[tuple[int, int, int]]:
    """Give descriptors of the new entries, the old ones and the target: nothing is moved through a link."""
    with (
        files.open_folder(staging / _NEW_NAME) as new,
        files.open_folder(staging / _OLD_NAME) as old,
        files.open_folder(target) as present,
    ):
        yield new, old, present


def _move_entries(staging: Path, target: Path) -> None:
    files.make_folder(staging / _OLD_NAME)
    with _open_places(staging, target) as (new, old, present):
        incoming = files.list_below(new)
        outgoing = [name for name in files.list_below(present) if not _is_leftover(name, target)]
        note = "\0".join(f"{_inode(new, name)}/{name}" for name in incoming)
        files.write_atomically(staging / _NOTE_NAME, note.encode(errors="surrogateescape"))
        try:
            for name in outgoing:
                _move(name, present, old)
            for name in incoming:
                _move(name, new, present)
        except OSError:
            _undo_moves(staging, target)
            raise
    files.unlink(staging / _NOTE_NAME)


def _undo_moves(staging: Path, target: Path) -> None:
    """Undo the moves; this is safe to repeat, for where an entry lies tells whether it was moved.

    The note is not trusted: a name in it must be a plain one, and only what has the inode that it names is moved out of
    the target.
    """
    note = files.read_file(staging / _NOTE_NAME).decode(errors="surrogateescape")
    with _open_places(staging, target) as (new, old, present):
        for inode, _, name in (entry.partition("/") for entry in note.split("\0")):
            is_plain = name not in {"", ".", ".."} and "/" not in name
            if is_plain and inode == _inode(present, name) and not _inode(new, name):
                _move(name, present, new)
        for name in files.list_below(old):
            if _inode(present, name):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target / name))
            _move(name, old, present)
    files.unlink(staging / _NOTE_NAME)


def _move(name: str, source: int, destination: int) -> None:
    os.rename(name, name, src_dir_fd=source, dst_dir_fd=destination)


def _inode(folder: int, name: str) -> str:
    """Return the number of an entry as text, which a move keeps; nothing for an entry that is not there."""
    try:
        return str(os.stat(name, dir_fd=folder, follow_symlinks=False).st_ino)
    except FileNotFoundError:
        return ""
