"""List the files of a folder, with size and time, and those of them that a KB may hold."""

import contextlib
import hashlib
import os
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from pair import files
from pair.packages import rules

_TYPE_BITS = 0o170000


@dataclass(frozen=True)
class FileListing:
    """Everything below a folder but folders, by path relative to it, and the folders."""

    files: dict[str, os.stat_result]
    folders: tuple[str, ...]

    def fingerprint(self) -> str:
        """Return a hash that changes when a file comes, goes, or changes in size or time."""
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


@dataclass(frozen=True)
class KbFiles:
    """The files of a folder that make up a KB, and those left out, with the reason."""

    listing: FileListing
    skipped: tuple[tuple[str, str], ...]


def list_kb_files(root: Path, *, leave_out: Iterable[Path] = ()) -> KbFiles:
    """List regular files, and links to regular files inside `root`; not version control, nor pair's own files."""
    real_root = root.resolve()
    left_out = frozenset(os.path.abspath(path) for path in (root / rules.INDEX_FOLDER, *leave_out))  # noqa: PTH100 - as in list_folder
    everything = list_folder(root, leave_out=left_out, leave_out_name=rules.is_version_control)
    skipped = _leave_out_unsafe(everything)
    special = [path for path, seen in everything.files.items() if seen.st_mode & _TYPE_BITS != stat.S_IFREG]
    for path in special:
        with contextlib.suppress(OSError, RuntimeError):
            real = (root / path).resolve(strict=True)
            behind = real.stat()
            if stat.S_ISREG(behind.st_mode) and real.is_relative_to(real_root):
                everything.files[path] = behind
                continue
        is_link = stat.S_ISLNK(everything.files.pop(path).st_mode)
        skipped.append((path, "link out of the folder, to a folder, or to nothing" if is_link else "not a file"))
    for name in rules.OWN_NAMES:
        everything.files.pop(name, None)
    return KbFiles(everything, tuple(sorted(skipped)))


def _leave_out_unsafe(listing: FileListing) -> list[tuple[str, str]]:
    """Take files out of a listing that no archive could bring, and return them with the reason."""
    repositories = rules.find_bare_repositories(listing.files)
    skipped = []
    for path in list(listing.files):
        is_in_repository = repositories and not repositories.isdisjoint((*rules.list_parents(path), ""))
        if is_in_repository or path.count("/") > rules.MOST_FOLDERS:
            del listing.files[path]
            skipped.append((path, "inside a bare git repository" if is_in_repository else "below too many folders"))
    return skipped


def content_checksum(hashes: dict[str, str]) -> str:
    """Return one SHA-256 for names and contents of many files, so that a rename is noticed too."""
    lines = [f"{hashes[path]}  {path}\n" for path in sorted(hashes)]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def hash_files(root: Path, paths: Iterable[str]) -> dict[str, str]:
    return {path: files.hash_file(root / path) for path in paths}
