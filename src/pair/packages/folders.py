"""Folders of a KB: list the files that a KB may hold, and replace a folder in one step.

Invariants of a replacement
    Readers see the old folder or the new one. Linux exchanges the two in one step. If a folder cannot be moved or
    exchanged, such as a mount point, entries are moved one by one. A note lets the next run undo an interrupted
    move.
"""

import contextlib
import ctypes
import errno
import hashlib
import os
import re
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pair import files
from pair.packages import rules

_RENAME_EXCHANGE = 2
_STAGING = "staging"
_TOKEN = re.compile(r"[0-9a-f]{12}(-unpacked)?")
_NOTE_NAME = "moving"
_OLD_NAME = "old"
_NEW_NAME = "new"


# ── listing ────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class FileListing:
    """The files and folders below a folder, by relative path."""

    files: dict[str, os.stat_result]
    folders: tuple[str, ...] = ()
    skipped: tuple[tuple[str, str], ...] = ()
    """Files that a KB may not hold, with the reason."""

    def fingerprint(self) -> str:
        """Return a hash that changes if a file is added or removed, or changes in size or time."""
        lines = [f"{path}\0{seen.st_size}\0{seen.st_mtime_ns}" for path, seen in self.files.items()]
        return hashlib.sha256("\n".join(lines).encode(errors="surrogateescape")).hexdigest()


def list_folder(
    root: Path, *, leave_out: frozenset[str] = frozenset(), leave_out_name: Callable[[str], bool] = lambda name: False
) -> FileListing:
    """List a folder without the absolute paths in `leave_out` and the names that `leave_out_name` matches."""
    listed: dict[str, os.stat_result] = {}
    folders: list[str] = []
    waiting = [("", os.path.abspath(root))]  # noqa: PTH100 - Path.absolute keeps ".."
    while waiting:
        prefix, folder = waiting.pop()
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.path in leave_out or leave_out_name(entry.name):
                    continue
                path = prefix + entry.name
                if not entry.is_dir(follow_symlinks=False):
                    listed[path] = entry.stat(follow_symlinks=False)
                else:
                    folders.append(path)
                    waiting.append((path + "/", entry.path))
    return FileListing(listed, tuple(folders))


def list_kb_files(root: Path, *, leave_out: Iterable[Path] = ()) -> FileListing:
    """List regular files and links to regular files inside `root`, without version control and the files of pair."""
    left_out = frozenset(os.path.abspath(path) for path in (root / rules.INDEX_FOLDER, *leave_out))  # noqa: PTH100 - as in list_folder
    everything = list_folder(root, leave_out=left_out, leave_out_name=rules.is_version_control)
    repositories = rules.find_bare_repositories(everything.files)
    real_root = root.resolve()
    listed: dict[str, os.stat_result] = {}
    skipped: list[tuple[str, str]] = []
    for path, seen in everything.files.items():
        if repositories and not repositories.isdisjoint((*rules.list_parents(path), "")):
            skipped.append((path, "inside a bare git repository"))
        elif path.count("/") > rules.MOST_FOLDERS:
            skipped.append((path, "below too many folders"))
        elif not rules.is_unicode(path):
            skipped.append((path, rules.NOT_UNICODE))
        elif stat.S_ISREG(seen.st_mode):
            listed[path] = seen
        elif (behind := _stat_inside(root / path, real_root)) is not None:
            listed[path] = behind
        else:
            is_link = stat.S_ISLNK(seen.st_mode)
            skipped.append((path, "link out of the folder, to a folder, or to nothing" if is_link else "not a file"))
    for name in rules.OWN_NAMES:
        listed.pop(name, None)
    return FileListing(listed, everything.folders, tuple(sorted(skipped)))


def _stat_inside(link: Path, real_root: Path) -> os.stat_result | None:
    """Return the status of the file that a link leads to, if it is a regular file inside the folder."""
    with contextlib.suppress(OSError, RuntimeError):
        real = link.resolve(strict=True)
        behind = real.stat()
        if stat.S_ISREG(behind.st_mode) and real.is_relative_to(real_root):
            return behind
    return None


def content_checksum(hashes: dict[str, str]) -> str:
    """Return one SHA-256 for the names and contents of many files."""
    return hashlib.sha256("".join(f"{hashes[path]}  {path}\n" for path in sorted(hashes)).encode()).hexdigest()


def hash_files(root: Path, paths: Iterable[str]) -> dict[str, str]:
    return {path: files.hash_file(root / path) for path in paths}


# ── replacement ────────────────────────────────────────────────────────────────────────────────────


def make_staging(target: Path, token: str) -> Path:
    """Make an empty folder that `put_in_place` can move to `target`: beside it, or inside a mount point."""
    staging = staging_path(target, token)
    with files.open_folder(staging.parent, make=True) as home, files.naming(staging):
        os.mkdir(staging.name, dir_fd=home)
    files.make_folder(staging / _NEW_NAME)
    return staging / _NEW_NAME


def staging_path(target: Path, token: str) -> Path:
    home = target if _moves_entry_by_entry(target) else target.parent
    return home / f".{target.name}.{_STAGING}-{token}"


def put_in_place(new: Path, target: Path) -> None:
    """Replace the target by a folder of `make_staging`, and delete the old one."""
    staging = new.parent
    if not target.exists():
        files.rename(new, target)
    elif _moves_entry_by_entry(target) or not _exchange(new, target):
        _move_entries(staging, target)
    files.remove_tree(staging)


def clear_leftovers(target: Path) -> None:
    """Undo and remove the leftovers of killed runs. The caller holds the lock of the target."""
    for home in (target.parent, target):
        names = files.list_folder(home) if home.is_dir() else []
        for staging in [home / name for name in names if _is_leftover(name, target)]:
            if _NOTE_NAME in files.list_folder(staging):
                _undo_moves(staging, target)
            files.remove_tree(staging)


def _is_leftover(name: str, target: Path) -> bool:
    prefix = f".{target.name}.{_STAGING}-"
    return name.startswith(prefix) and _TOKEN.fullmatch(name.removeprefix(prefix)) is not None


def _moves_entry_by_entry(target: Path) -> bool:
    """Return whether a folder cannot be moved: it is a mount point, in a read-only folder, or contains the cwd."""
    is_read_only = target.parent.is_dir() and not os.access(target.parent, os.W_OK | os.X_OK)
    return os.path.ismount(target) or Path.cwd().is_relative_to(target) or is_read_only


def _exchange(first: Path, second: Path) -> bool:
    """Exchange two folders; return False if the system cannot."""
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
    """Open the folders of the new entries, of the old ones, and the target, so that nothing is moved through a link."""
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
    """Undo the moves. Repeating this is safe: the place of an entry shows whether it was moved.

    The note is not trusted: a name in it must be plain, and an entry leaves the target only with the noted inode.
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
    """Return the inode of an entry, which a move keeps; "" for a missing entry."""
    try:
        return str(os.stat(name, dir_fd=folder, follow_symlinks=False).st_ino)
    except FileNotFoundError:
        return ""
