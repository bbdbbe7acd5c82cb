"""Replace a folder by another so that nobody ever sees half of it.

Invariants
    On Linux the two folders trade places in one step. Where a folder cannot be moved (it is a mount point) or the
    system cannot trade places, the entries of the folder are moved one by one and a note beside them lets the next run
    undo a move that was cut off.
Not here
    Deciding what the new folder holds: rules.py. Filling it: installation.py.
"""

import ctypes
import errno
import os
import sys
from pathlib import Path

from pair import files

_RENAME_EXCHANGE = 2
_AT_FDCWD = -100
_STAGING = "staging"
_NOTE_NAME = "moving"
_OLD_NAME = "old"
_NEW_NAME = "new"


def staging_for(target: Path, token: str) -> Path:
    """A new, empty folder that `put_in_place` can bring to `target`: beside it, or inside a mount point."""
    new = staging_path(target, token) / _NEW_NAME
    new.mkdir(parents=True)
    return new


def staging_path(target: Path, token: str) -> Path:
    home = target if _moves_entry_by_entry(target) else target.parent
    return home / f".{target.name}.{_STAGING}-{token}"


def put_in_place(new: Path, target: Path) -> None:
    """`new` comes from `staging_for`; what was in the target is gone afterwards."""
    staging = new.parent
    if not target.exists():
        new.rename(target)
    elif _moves_entry_by_entry(target) or not _exchange(new, target):
        _move_entries(staging, target)
    files.remove_tree(staging)


def clear_leftovers(target: Path) -> None:
    """Undo what a killed run left behind. Call under the target's lock."""
    for home in (target.parent, target):
        if not home.is_dir():
            continue
        for staging in [home / name for name in _names_in(home) if _is_leftover(name, target)]:
            if (staging / _NOTE_NAME).exists():
                _undo_moves(staging, target)
            files.remove_tree(staging)


def _names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def _is_leftover(name: str, target: Path) -> bool:
    return name.startswith(f".{target.name}.{_STAGING}-")


def _moves_entry_by_entry(target: Path) -> bool:
    """A mount point cannot be moved, nor a folder in one that is closed to us.

    And a shell in the folder should not find itself in a deleted one.
    """
    return os.path.ismount(target) or Path.cwd().is_relative_to(target) or files.is_closed(target.parent)


def _exchange(first: Path, second: Path) -> bool:
    """Let two folders trade places; False where the system cannot."""
    if not sys.platform.startswith("linux"):
        return False
    library = ctypes.CDLL(None, use_errno=True)
    if not hasattr(library, "renameat2"):
        return False
    arguments = (_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE)
    if library.renameat2(*arguments) == 0:
        return True
    code = ctypes.get_errno()
    if code in {errno.EINVAL, errno.ENOSYS, errno.EBUSY, errno.EXDEV}:
        return False
    raise OSError(code, os.strerror(code), str(second))


def _move_entries(staging: Path, target: Path) -> None:
    new, old = staging / _NEW_NAME, staging / _OLD_NAME
    old.mkdir()
    incoming = _names_in(new)
    outgoing = [name for name in _names_in(target) if not _is_leftover(name, target)]
    files.write_atomically(staging / _NOTE_NAME, "\0".join(incoming).encode(errors="surrogateescape"))
    try:
        for name in outgoing:
            (target / name).rename(old / name)
        for name in incoming:
            (new / name).rename(target / name)
    except OSError:
        _undo_moves(staging, target)
        raise
    (staging / _NOTE_NAME).unlink()


def _undo_moves(staging: Path, target: Path) -> None:
    """Safe to repeat: an entry that has come is told from one that has not left by where it lies."""
    new, old = staging / _NEW_NAME, staging / _OLD_NAME
    incoming = (staging / _NOTE_NAME).read_bytes().decode(errors="surrogateescape").split("\0")
    for name in incoming:
        if name and not os.path.lexists(new / name) and os.path.lexists(target / name):
            (target / name).rename(new / name)
    for name in _names_in(old):
        (old / name).rename(target / name)
    (staging / _NOTE_NAME).unlink()
