"""Folder and links file as the current set of sources."""

import hashlib
import os
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from pair import errors, files
from pair.sync.index_file import LlmsFile
from pair.sync.rules import FileSeen, matches_pattern, parse_links
from pair.sync.state import SyncState
from pair.values import redact_url

Half = TypeVar("Half")


@dataclass(frozen=True)
class FoundFiles:
    files: dict[str, FileSeen]
    skipped: dict[str, str]
    """Why something that looks like a file is none, by path."""
    unreadable: dict[str, str] = field(default_factory=dict)
    """Why a folder or a file cannot be looked at, by path: what was there may be there still."""

    def may_hold(self, path: str) -> bool:
        """Whether this file is there, or is where nobody could look."""
        return path in self.files or any(path == name or path.startswith(f"{name}/") for name in self.unreadable)

    def fingerprint(self) -> str:
        """Changes when a file comes, goes, or changes in size or time."""
        lines = [f"{path}\0{seen.size_bytes}\0{seen.mtime_ns}" for path, seen in self.files.items()]
        lines += [*self.skipped, *(f"unreadable {path}" for path in self.unreadable)]
        return hashlib.sha256("\n".join(lines).encode(errors="surrogateescape")).hexdigest()


def find_files(folder: Path) -> FoundFiles:
    """Files below the folder by relative path, but for hidden ones and links that lead out of it."""  # sync-11
    root = os.path.realpath(folder)
    found = FoundFiles({}, {})
    waiting = _look_into("", root, root, found)
    while waiting:
        path, current = waiting.pop()
        try:
            waiting += _look_into(f"{path}/", current, root, found)
        except OSError as fault:
            _note(path, fault, found)
    return found


def _look_into(prefix: str, folder: str, root: str, found: FoundFiles) -> list[tuple[str, str]]:
    """Notes the files of one folder; returns the folders in it."""
    folders = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            path = prefix + entry.name
            try:
                if entry.is_dir(follow_symlinks=False):
                    folders.append((path, entry.path))
                elif (reason := _entry_fault(entry, path, root)) is not None:
                    found.skipped[path] = reason
                elif entry.is_file():
                    seen = entry.stat()
                    found.files[path] = FileSeen(seen.st_size, seen.st_mtime_ns)
            except OSError as fault:
                _note(path, fault, found)
    return folders


def _note(path: str, fault: OSError, found: FoundFiles) -> None:
    """What goes while others are looked at is gone, and no fault."""
    if not isinstance(fault, FileNotFoundError | NotADirectoryError):
        found.unreadable[path] = f"cannot be read: {files.describe_os_error(fault)}"


def _entry_fault(entry: os.DirEntry[str], path: str, root: str) -> str | None:
    if not path.isprintable() and (fault := _name_fault(path)) is not None:
        return fault
    return _link_fault(entry.path, root) if entry.is_symlink() else None


def _name_fault(path: str) -> str | None:
    """Why a path cannot be a line of the index."""
    if any("\ud800" <= character <= "\udfff" for character in path):
        return "name is not valid Unicode"
    if len(path.splitlines()) > 1 or any(unicodedata.category(character) == "Cc" for character in path):
        return "control character in the name"
    return None


def _link_fault(path: str, root: str) -> str | None:
    real = os.path.realpath(path)
    if not os.path.exists(real):  # noqa: PTH110 - a loop of links does not exist either
        return "link to nothing"
    if os.path.isdir(real):  # noqa: PTH112
        return "link to a folder"
    return None if real.startswith(root + os.sep) else "link out of the folder"


def find_links(path: Path) -> list[str]:
    """URLs of the links file, as they may be shown; raises FileNotFoundError."""
    return list(find_addresses(path))


def find_addresses(path: Path) -> dict[str, str]:
    """URLs of the links file with their credentials, by what they are called; raises FileNotFoundError."""
    urls = parse_links(path.read_text(encoding="utf-8", errors="replace"))
    addresses: dict[str, str] = {}
    for url in urls:
        addresses.setdefault(redact_url(url), url)
    return addresses


@dataclass(frozen=True)
class SyncPaths:
    """Where things are; a place that the user named must be there, one by default may be missing."""

    sources_dir: Path
    links_file: Path
    index: Path
    cache: Path
    page_copies: Path
    is_sources_dir_named: bool = False
    is_links_file_named: bool = False
    llms: LlmsFile | None = None

    @property
    def lock(self) -> Path:
        return self.cache.with_name(f".{self.cache.name}.lock")


@dataclass(frozen=True)
class Discovered:
    """The current source set. None for a half that is not there, or of which a fault tells why nothing is known."""

    files: FoundFiles | None
    urls: list[str] | None
    files_fault: str = ""
    urls_fault: str = ""

    @property
    def faults(self) -> tuple[str, ...]:
        return tuple(fault for fault in (self.files_fault, self.urls_fault) if fault)

    def fingerprint(self, conditions: str) -> str:
        files_part = self.files.fingerprint() if self.files is not None else ""
        return hashlib.sha256("\n".join([conditions, files_part, *(self.urls or [])]).encode()).hexdigest()


def discover(places: SyncPaths) -> Discovered:
    """Raises ELOOP for a link that leads to the usual folder of sources: a user who has one names it."""
    if not places.is_sources_dir_named:
        files.resolve(places.sources_dir)
    files_found, files_fault = _seen(find_files, places.sources_dir)
    if files_found is not None and places.llms is not None:
        files_found.files.pop(_path_inside(places.llms.path, places.sources_dir), None)
    urls, urls_fault = _seen(find_links, places.links_file)
    return Discovered(files_found, urls, files_fault, urls_fault)


def _path_inside(path: Path, folder: Path) -> str:
    """What we write ourselves is no source, wherever it is; the path of a file that is elsewhere leads out."""
    own = os.path.join(os.path.realpath(path.parent), path.name)  # noqa: PTH118 - beside the text that realpath gives
    return os.path.relpath(own, os.path.realpath(folder)).replace(os.sep, "/")


def _seen(look: Callable[[Path], Half], place: Path) -> tuple[Half | None, str]:
    try:
        return look(place), ""
    except (FileNotFoundError, NotADirectoryError):
        return None, ""
    except OSError as fault:
        return None, errors.storage_failed(str(place), files.describe_os_error(fault), is_reading=True).message


def choose_urls(found: Discovered, pattern: str | None) -> frozenset[str]:
    """Return the URLs that match the pattern; none without one. Raises E104 for a pattern that matches no URL."""
    if pattern is None:
        return frozenset()
    chosen = frozenset(url for url in found.urls or () if matches_pattern(url, pattern))
    if not chosen and not found.urls_fault:
        raise errors.no_url_matches(pattern)
    return chosen


def classify_missing(found: Discovered, places: SyncPaths, state: SyncState) -> Discovered:
    """A half that is missing is empty, or an error: then nothing of it may be deleted."""  # sync-50
    files_found, urls, files_fault, urls_fault = found.files, found.urls, found.files_fault, found.urls_fault
    if files_found is None and not files_fault:
        if places.is_sources_dir_named or state.ids("file"):
            files_fault = errors.sync_place_missing("sources folder", str(places.sources_dir)).message
        else:
            files_found = FoundFiles({}, {})
    if urls is None and not urls_fault:
        if places.is_links_file_named:
            urls_fault = errors.sync_place_missing("links file", str(places.links_file)).message
        else:
            urls = []
    return Discovered(files_found, urls, files_fault, urls_fault)
