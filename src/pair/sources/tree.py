"""What is in a folder: its files with size and time, and which of them a KB may hold."""

import hashlib
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pair import files
from pair.sources.rules import OWN_NAMES, VERSION_CONTROL_NAMES


class FileStat(NamedTuple):
    size_bytes: int
    mtime_ns: int
    mode: int

    @property
    def is_regular(self) -> bool:
        return stat.S_ISREG(self.mode)


@dataclass(frozen=True)
class Listing:
    """Everything below a folder but folders, by path relative to it, and the folders."""

    files: dict[str, FileStat]
    folders: tuple[str, ...]

    def fingerprint(self) -> str:
        """Changes when a file comes, goes, or changes in size or time. Looks at no content."""
        lines = [f"{path}\0{seen.size_bytes}\0{seen.mtime_ns}" for path, seen in self.files.items()]
        return hashlib.sha256("\n".join(lines).encode(errors="surrogateescape")).hexdigest()


def list_folder(root: Path, *, leave_out: frozenset[str] = frozenset()) -> Listing:
    """`leave_out`: absolute paths that are not entered."""
    found: dict[str, FileStat] = {}
    folders: list[str] = []
    waiting = [("", str(root))]
    while waiting:
        prefix, folder = waiting.pop()
        with os.scandir(folder) as entries:
            for entry in entries:
                if leave_out and entry.path in leave_out:
                    continue
                path = prefix + entry.name
                if entry.is_dir(follow_symlinks=False):
                    folders.append(path)
                    waiting.append((path + "/", entry.path))
                else:
                    seen = entry.stat(follow_symlinks=False)
                    found[path] = FileStat(seen.st_size, seen.st_mtime_ns, seen.st_mode)
    return Listing(found, tuple(folders))


@dataclass(frozen=True)
class KbFiles:
    """The files of a folder that make up a KB, and those left out, with the reason."""

    listing: Listing
    skipped: tuple[tuple[str, str], ...]


def list_kb_files(root: Path, *, leave_out: Iterable[Path] = ()) -> KbFiles:
    """Regular files, and links to regular files inside `root`; not version control, nor pair's own files."""
    real_root = root.resolve()
    left_out = {str(path) for path in leave_out} | {str(root / name) for name in VERSION_CONTROL_NAMES}
    everything = list_folder(root, leave_out=frozenset(left_out))
    kept: dict[str, FileStat] = {}
    skipped: list[tuple[str, str]] = []
    for path, seen in everything.files.items():
        if path in OWN_NAMES:
            continue
        if seen.is_regular:
            kept[path] = seen
        elif (target := _file_behind_link(root / path, seen, real_root)) is not None:
            kept[path] = target
        else:
            kind = "link out of the folder, to a folder, or to nothing" if stat.S_ISLNK(seen.mode) else "not a file"
            skipped.append((path, kind))
    return KbFiles(Listing(kept, everything.folders), tuple(sorted(skipped)))


def _file_behind_link(path: Path, seen: FileStat, real_root: Path) -> FileStat | None:
    if not stat.S_ISLNK(seen.mode):
        return None
    try:
        real = path.resolve(strict=True)
        behind = real.stat()
    except (OSError, RuntimeError):
        return None
    if not stat.S_ISREG(behind.st_mode) or not real.is_relative_to(real_root):
        return None
    return FileStat(behind.st_size, behind.st_mtime_ns, behind.st_mode)


def content_checksum(hashes: dict[str, str]) -> str:
    """One SHA-256 for names and contents of many files, so that a rename is noticed too."""
    lines = [f"{hashes[path]}  {path}\n" for path in sorted(hashes)]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def hash_files(root: Path, paths: Iterable[str]) -> dict[str, str]:
    return {path: files.sha256_of(root / path) for path in paths}
