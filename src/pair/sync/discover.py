"""Folder and links file as the current set of sources."""

import dataclasses
import hashlib
import os
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from pair import errors, files
from pair.sync.rules import FileSeen, matches_pattern, parse_links
from pair.sync.state import LlmsFile, SyncState
from pair.values import redact_url

_Half = TypeVar("_Half")


@dataclass(frozen=True)
class FoundFiles:
    files: dict[str, FileSeen]
    skipped: dict[str, str]
    """Why something that looks like a file is none, by path."""
    unreadable: dict[str, str] = field(default_factory=dict)
    """Why a folder or a file cannot be looked at, by path: what was there may be there still."""

    def may_hold(self, path: str) -> bool:
        """Return whether this file exists, or is in a place that could not be read."""
        return path in self.files or any(path == name or path.startswith(f"{name}/") for name in self.unreadable)

    def fingerprint(self) -> str:
        """Changes when a file comes, goes, or changes in size or time."""
        lines = [f"{path}\0{seen.size_bytes}\0{seen.mtime_ns}" for path, seen in self.files.items()]
        lines += [*self.skipped, *(f"unreadable {path}" for path in self.unreadable)]
        return hashlib.sha256("\n".join(lines).encode(errors="surrogateescape")).hexdigest()


def find_files(folder: Path) -> FoundFiles:
    """Return the files below the folder by relative path, but for hidden ones and links that lead out of it."""
    root = os.path.realpath(folder)  # sync-11
    listing = FoundFiles({}, {})
    waiting = _list_folder("", root, root, listing)
    while waiting:
        path, current = waiting.pop()
        try:
            waiting += _list_folder(f"{path}/", current, root, listing)
        except OSError as fault:
            _note_unreadable(path, fault, listing)
    return listing


def _list_folder(prefix: str, folder: str, root: str, listing: FoundFiles) -> list[tuple[str, str]]:
    """Add the files of one folder to the listing. Return the folders in it."""
    subfolders = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            path = prefix + entry.name
            try:
                if entry.is_dir(follow_symlinks=False):
                    subfolders.append((path, entry.path))
                elif (reason := _entry_fault(entry, path, root)) is not None:
                    listing.skipped[path] = reason
                elif entry.is_file():
                    seen = entry.stat()
                    listing.files[path] = FileSeen(seen.st_size, seen.st_mtime_ns)
            except OSError as fault:
                _note_unreadable(path, fault, listing)
    return subfolders


def _note_unreadable(path: str, fault: OSError, listing: FoundFiles) -> None:
    """A file that goes away while others are looked at is gone, and no fault."""
    if not isinstance(fault, FileNotFoundError | NotADirectoryError):
        listing.unreadable[path] = f"cannot be read: {files.describe_os_error(fault)}"


def _entry_fault(entry: os.DirEntry[str], path: str, root: str) -> str | None:
    """Return why an entry of a folder is no source: its path cannot be a line of the index, or it leads elsewhere."""
    if not path.isprintable():
        if any("\ud800" <= character <= "\udfff" for character in path):
            return "name is not valid Unicode"
        if len(path.splitlines()) > 1 or any(unicodedata.category(character) == "Cc" for character in path):
            return "control character in the name"
    if not entry.is_symlink():
        return None
    real = os.path.realpath(entry.path)
    if not os.path.exists(real):  # noqa: PTH110 - a loop of links does not exist either
        return "link to nothing"
    if os.path.isdir(real):  # noqa: PTH112
        return "link to a folder"
    return None if real.startswith(root + os.sep) else "link out of the folder"


def find_addresses(path: Path) -> dict[str, str]:
    """Return the URLs of the links file with their credentials, by what they are called; raises FileNotFoundError."""
    addresses: dict[str, str] = {}
    for url in parse_links(path.read_text(encoding="utf-8", errors="replace")):
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


def discover(paths: SyncPaths) -> Discovered:
    """Raises ELOOP for a link that leads to the usual folder of sources: a user who has one names it."""
    if not paths.is_sources_dir_named:
        files.resolve(paths.sources_dir)
    listing, files_fault = _look(find_files, paths.sources_dir)
    if listing is not None and paths.llms is not None:
        # What we write ourselves is no source, wherever it is; the relative path of a file elsewhere leads out.
        own = os.path.join(os.path.realpath(paths.llms.path.parent), paths.llms.path.name)  # noqa: PTH118
        listing.files.pop(os.path.relpath(own, os.path.realpath(paths.sources_dir)).replace(os.sep, "/"), None)
    addresses, urls_fault = _look(find_addresses, paths.links_file)
    return Discovered(listing, None if addresses is None else list(addresses), files_fault, urls_fault)


def _look(find: Callable[[Path], _Half], path: Path) -> tuple[_Half | None, str]:
    try:
        return find(path), ""
    except (FileNotFoundError, NotADirectoryError):
        return None, ""
    except OSError as fault:
        return None, errors.storage_failed(str(path), files.describe_os_error(fault), is_reading=True).message


def choose_urls(sources: Discovered, pattern: str | None) -> frozenset[str]:
    """Return the URLs that match the pattern; none without one. Raises E104 for a pattern that matches no URL."""
    if pattern is None:
        return frozenset()
    urls = frozenset(url for url in sources.urls or () if matches_pattern(url, pattern))
    if not urls and not sources.urls_fault:
        raise errors.no_url_matches(pattern)
    return urls


def find_gone(sources: Discovered, state: SyncState) -> set[str]:
    """Return the ids of records whose source is no longer there."""
    gone: set[str] = set()
    if sources.files is not None:
        gone |= {path for path in state.ids("file") if not sources.files.may_hold(path)}
    if sources.urls is not None:
        gone |= state.ids("url").difference(sources.urls)
    return gone


def classify_missing(sources: Discovered, paths: SyncPaths, state: SyncState) -> Discovered:
    """Make a half that is missing empty, or a fault: then nothing of it may be deleted."""  # sync-50
    if sources.files is None and not sources.files_fault:
        if paths.is_sources_dir_named or state.ids("file"):
            fault = errors.sync_place_missing("sources folder", str(paths.sources_dir)).message
            sources = dataclasses.replace(sources, files_fault=fault)
        else:
            sources = dataclasses.replace(sources, files=FoundFiles({}, {}))
    if sources.urls is None and not sources.urls_fault:
        if paths.is_links_file_named:
            fault = errors.sync_place_missing("links file", str(paths.links_file)).message
            sources = dataclasses.replace(sources, urls_fault=fault)
        else:
            sources = dataclasses.replace(sources, urls=[])
    return sources
