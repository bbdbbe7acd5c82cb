"""Folder and links file as the current set of sources."""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from pair import errors
from pair.sync.rules import FileSeen, parse_links
from pair.sync.state import SyncState


@dataclass(frozen=True)
class FoundFiles:
    files: dict[str, FileSeen]
    skipped: dict[str, str]
    """Why something that looks like a file is none, by path."""

    def fingerprint(self) -> str:
        """Changes when a file comes, goes, or changes in size or time."""
        lines = [f"{path}\0{seen.size_bytes}\0{seen.mtime_ns}" for path, seen in self.files.items()]
        lines += self.skipped
        return hashlib.sha256("\n".join(lines).encode(errors="surrogateescape")).hexdigest()


def find_files(folder: Path) -> FoundFiles:
    """Files below the folder by relative path, but for hidden ones and links that lead out of it."""  # sync-11
    root = os.path.realpath(folder)
    found: dict[str, FileSeen] = {}
    skipped: dict[str, str] = {}
    waiting = [("", root)]
    while waiting:
        prefix, current = waiting.pop()
        with os.scandir(current) as entries:
            for entry in entries:
                name = entry.name
                if name.startswith("."):
                    continue
                path = prefix + name
                if entry.is_dir(follow_symlinks=False):
                    waiting.append((path + "/", entry.path))
                elif entry.is_symlink() and (fault := _link_fault(entry.path, root)) is not None:
                    skipped[path] = fault
                elif entry.is_file():
                    seen = entry.stat()
                    found[path] = FileSeen(seen.st_size, seen.st_mtime_ns)
    return FoundFiles(found, skipped)


def _link_fault(path: str, root: str) -> str | None:
    real = os.path.realpath(path)
    if not os.path.exists(real):  # noqa: PTH110 - a loop of links does not exist either
        return "link to nothing"
    if os.path.isdir(real):  # noqa: PTH112
        return "link to a folder"
    return None if real.startswith(root + os.sep) else "link out of the folder"


def find_links(path: Path) -> list[str]:
    """URLs of the links file; raises FileNotFoundError."""
    return parse_links(path.read_text(encoding="utf-8", errors="replace"))


@dataclass(frozen=True)
class Places:
    """Where things are; a place that the user named must be there, one by default may be missing."""

    sources_dir: Path
    links_file: Path
    index: Path
    cache: Path
    page_copies: Path
    is_sources_dir_named: bool = False
    is_links_file_named: bool = False

    @property
    def lock(self) -> Path:
        return self.cache.with_name(f".{self.cache.name}.lock")


@dataclass(frozen=True)
class Discovered:
    """The current source set. None for a half that is not there."""

    files: FoundFiles | None
    urls: list[str] | None
    faults: tuple[str, ...] = ()

    def fingerprint(self, conditions: str) -> str:
        files_part = self.files.fingerprint() if self.files is not None else ""
        return hashlib.sha256("\n".join([conditions, files_part, *(self.urls or [])]).encode()).hexdigest()


def discover(places: Places) -> Discovered:
    files_found = find_files(places.sources_dir) if places.sources_dir.is_dir() else None
    try:
        urls = find_links(places.links_file)
    except FileNotFoundError:
        urls = None
    return Discovered(files_found, urls)


def judge(found: Discovered, places: Places, state: SyncState) -> Discovered:
    """A half that is missing is empty, or an error: then nothing of it may be deleted."""  # sync-50
    files_found, urls, faults = found.files, found.urls, []
    if files_found is None:
        if places.is_sources_dir_named or state.ids("file"):
            faults.append(errors.sync_place_missing("sources folder", str(places.sources_dir)).message)
        else:
            files_found = FoundFiles({}, {})
    if urls is None:
        if places.is_links_file_named:
            faults.append(errors.sync_place_missing("links file", str(places.links_file)).message)
        else:
            urls = []
    return Discovered(files_found, urls, tuple(faults))
