"""Discovery: the current set of sources, from folders, links files and other collections."""

import dataclasses
import hashlib
import os
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pair import errors, files
from pair.sync.collection import CollectionSettings
from pair.sync.patterns import FileSelection, make_rules, read_ignore_files_above
from pair.sync.rules import FileSeen, matches_pattern, parse_links
from pair.sync.state import LlmsFile, SyncState, read_collection
from pair.values import redact_url

QUESTIONS_NAME = "questions.jsonl"
"""Test questions of a KB, in its folder. The file is not a document: a search would find the question itself."""


@dataclass(frozen=True)
class FoundFiles:
    files: dict[str, FileSeen]
    skipped: dict[str, str]
    """The reasons why entries are not sources, by path."""
    unreadable: dict[str, str] = field(default_factory=dict)
    """The reasons why folders or files cannot be read, by path. Their former content may still exist."""
    excluded: Counter[str] = field(default_factory=Counter)
    """Number of files and folders that each rule excluded."""

    def may_hold(self, path: str) -> bool:
        """Return whether this file exists, or is in a folder that could not be read."""
        return path in self.files or any(path == name or path.startswith(f"{name}/") for name in self.unreadable)

    def fingerprint(self) -> str:
        """Return a hash that changes when a file is added, removed, or changed in size or time."""
        lines = [f"{path}\0{seen.size_bytes}\0{seen.mtime_ns}" for path, seen in self.files.items()]
        lines += [*self.skipped, *(f"unreadable {path}" for path in self.unreadable)]
        return hashlib.sha256("\n".join(lines).encode(errors="surrogateescape")).hexdigest()


@dataclass(frozen=True)
class _Walk:
    """A walk through one folder."""

    root: str
    listing: FoundFiles
    collection: str = ""
    others: frozenset[str] = frozenset()
    """Folders of other collections, which are not entered."""

    def list_folder(
        self, prefix: str, folder: str, selection: FileSelection | None
    ) -> list[tuple[str, str, FileSelection | None]]:
        """Add the files of one folder to the listing. Return the folders in it."""
        with os.scandir(folder) as scan:
            if selection is None:
                return self._add_entries(scan, prefix, None)
            entries = list(scan)
        names = [name for name in selection.ignore_files if any(entry.name == name for entry in entries)]
        if names:
            selection = selection.with_ignore_files(folder, names, prefix)
        return self._add_entries(entries, prefix, selection)

    def _add_entries(
        self, entries: Iterable[os.DirEntry[str]], prefix: str, selection: FileSelection | None
    ) -> list[tuple[str, str, FileSelection | None]]:
        subfolders = []
        for entry in entries:
            name = entry.name
            if name.startswith("."):
                continue
            path = prefix + name
            try:
                is_folder = entry.is_dir(follow_symlinks=False)
                if selection is not None and self._excludes(selection, path, name, is_folder=is_folder):
                    continue
                if is_folder:
                    below = selection.enter(path, name) if selection is not None else None
                    if selection is not None and below is None:
                        self.listing.excluded[selection.explain_missing(path, name, is_folder=True)] += 1
                    elif entry.path not in self.others:
                        subfolders.append((path, entry.path, below))
                elif (reason := find_entry_fault(entry, path, self.root)) is not None:
                    self.listing.skipped[path] = reason
                elif entry.is_file():
                    seen = entry.stat()
                    self.listing.files[path] = FileSeen(seen.st_size, seen.st_mtime_ns, self.collection)
            except OSError as fault:
                _note_unreadable(path, fault, self.listing)
        return subfolders

    def _excludes(self, selection: FileSelection, path: str, name: str, *, is_folder: bool) -> bool:
        rule = selection.find_exclusion(path, name, is_folder=is_folder)
        if rule is not None:
            self.listing.excluded[str(rule)] += 1
            return True
        if is_folder or selection.includes(path, name):
            return False
        self.listing.excluded[selection.explain_missing(path, name)] += 1
        return True


def find_files(folder: Path, *, others: frozenset[str] = frozenset()) -> FoundFiles:
    """Return the files below the folder by relative path, except hidden ones and links that lead out of it.

    `others`: folders of other collections, which are not entered.
    """
    root = os.path.realpath(folder)  # sync-11
    return _find_below("", _Walk(root, FoundFiles({}, {}), others=others), None)


def _find_below(prefix: str, walk: _Walk, selection: FileSelection | None) -> FoundFiles:
    waiting = walk.list_folder(prefix, walk.root, selection)
    while waiting:
        path, current, below = waiting.pop()
        try:
            waiting += walk.list_folder(f"{path}/", current, below)
        except OSError as fault:
            _note_unreadable(path, fault, walk.listing)
    return walk.listing


def _note_unreadable(path: str, fault: OSError, listing: FoundFiles) -> None:
    """Note a path that cannot be read. A file that was deleted during the listing is not a fault."""
    if not isinstance(fault, FileNotFoundError | NotADirectoryError):
        listing.unreadable[path] = f"cannot be read: {files.describe_os_error(fault)}"


def find_name_fault(name: str, what: str = "name") -> str | None:
    """Return why a name cannot be a line of the index."""
    if not name.isprintable():
        if any("\ud800" <= character <= "\udfff" for character in name):
            return f"{what} is not valid Unicode"
        if len(name.splitlines()) > 1 or any(unicodedata.category(character) == "Cc" for character in name):
            return f"control character in the {what}"
    return None


def find_entry_fault(entry: os.DirEntry[str], path: str, root: str) -> str | None:
    """Return why an entry of a folder is not a source: its path cannot be a line of the index, or it is a bad link."""
    fault = find_name_fault(path)
    if fault is not None:
        return fault
    if entry.name == QUESTIONS_NAME and os.path.dirname(entry.path) == root:  # noqa: PTH120
        return "test questions are not stored; run them with: pair test"
    if not entry.is_symlink():
        return None
    real = os.path.realpath(entry.path)
    if not os.path.exists(real):  # noqa: PTH110 - a loop of links does not exist either
        return "link to nothing"
    if os.path.isdir(real):  # noqa: PTH112
        return "link to a folder"
    return None if real.startswith(root + os.sep) else "link out of the folder"


def find_addresses(path: Path) -> dict[str, str]:
    """Return the URLs of the links file with their credentials, by their ids. Raises FileNotFoundError."""
    addresses: dict[str, str] = {}
    for url in parse_links(path.read_text(encoding="utf-8", errors="replace")):
        addresses.setdefault(redact_url(url), url)
    return addresses


@dataclass(frozen=True)
class NamedCollection:
    """A collection of the synced KB, and its path."""

    name: str
    collection: CollectionSettings
    path: Path | None = None
    """Its folder or links file."""
    where: str = "kb.collections"
    """The line of the configuration."""
    fault: str = ""
    """The reason why it cannot be read; its documents are kept."""

    @property
    def prefix(self) -> str:
        """The start of the ids of its files and items."""
        return f"{self.name}/"

    def make_selection(self) -> FileSelection:
        """Return the rules about its files, including the rules of ignore files above the folder."""
        given, start = self.collection, len(self.prefix)
        include, exclude = (
            make_rules(((text, self.where) for text in patterns), ignore_case=given.ignore_case)._replace(start=start)
            for patterns in (given.include, given.exclude)
        )
        if not given.ignore_files or self.path is None:
            return FileSelection(include, exclude, ignore_files=(), ignore_case=given.ignore_case)
        above = read_ignore_files_above(Path(os.path.realpath(self.path)), start)
        return FileSelection(include, exclude, above, ignore_case=given.ignore_case)


@dataclass(frozen=True)
class SyncPaths:
    """The paths of a sync. A path that the user named must exist; a default path may be missing."""

    sources_dir: Path
    links_file: Path
    index: Path
    cache: Path
    page_copies: Path
    is_sources_dir_named: bool = False
    is_links_file_named: bool = False
    llms: LlmsFile | None = None
    collections: tuple[NamedCollection, ...] = ()
    is_named_only: bool = False
    """Whether only named collections feed the KB; the sources folder and the links file are then ignored."""
    own_files: tuple[Path, ...] = ()
    """Files that are never documents."""

    @property
    def lock(self) -> Path:
        return self.cache.with_name(f".{self.cache.name}.lock")

    @property
    def version_file(self) -> Path:
        """The file that records the address and the version of the store that match the signature of the state."""
        return self.cache.with_name(f".{self.cache.name}.stored")

    @property
    def links_files(self) -> tuple[Path, ...]:
        named = [
            entry.path for entry in self.collections if entry.collection.kind == "links" and entry.path is not None
        ]
        return tuple(named) if self.is_named_only else (self.links_file, *named)

    @property
    def folders(self) -> dict[str, Path]:
        """The folders of all collections by name; the one of `kb.sources_dir` has no name."""
        named = {
            entry.name: entry.path
            for entry in self.collections
            if entry.collection.kind == "path" and entry.path is not None
        }
        return named if self.is_named_only else {"": self.sources_dir, **named}


@dataclass(frozen=True)
class FoundCollection:
    """The current content of a collection; unknown if there is a fault, or if its place is missing."""

    files: FoundFiles = field(default_factory=lambda: FoundFiles({}, {}))
    urls: tuple[str, ...] = ()
    is_source: bool = False
    fault: str = ""
    is_missing: bool = False

    def holds(self, source_id: str, source_type: str) -> bool:
        """Return whether a file or item may still exist, for example in an unreadable folder."""
        is_unknown = bool(self.fault) or self.is_missing
        return is_unknown or (self.files.may_hold(source_id) if source_type == "file" else self.is_source)

    def refuse_missing(self, what: str, path: Path) -> "FoundCollection":
        """Treat a missing place as a fault, which keeps its documents."""
        return FoundCollection(fault=errors.sync_place_missing(what, str(path)).message) if self.is_missing else self


@dataclass(frozen=True)
class Discovered:
    """The current source set: `kb.sources_dir`, the links file, and the named collections."""

    folder: FoundCollection
    links: FoundCollection
    collections: Mapping[str, FoundCollection]

    @property
    def faults(self) -> tuple[str, ...]:
        return tuple(found.fault for found in (self.folder, self.links, *self.collections.values()) if found.fault)

    def fingerprint(self, conditions: str) -> str:
        found = [*([] if self.folder.is_missing else [self.folder]), *self.collections.values()]
        files_part = "".join(entry.files.fingerprint() for entry in found)
        urls = [f"{url}\0{name}" if name else url for url, name in self.owners().items()]
        return hashlib.sha256("\n".join([conditions, files_part, *urls]).encode()).hexdigest()

    def owners(self) -> dict[str, str]:
        """Return each URL with the name of its collection; empty for URLs of the links file."""
        owners = dict.fromkeys(self.links.urls, "")
        for name, found in self.collections.items():
            owners = dict.fromkeys(found.urls, name) | owners
        return owners

    def listing(self) -> FoundFiles:
        """Return the files of all collections together."""
        if not self.collections:
            return self.folder.files
        every = FoundFiles({}, {})
        for found in (self.folder, *self.collections.values()):
            every.files.update(found.files.files)
            every.skipped.update(found.files.skipped)
            every.unreadable.update(found.files.unreadable)
            every.excluded.update(found.files.excluded)
        return every

    def may_hold(self, path: str) -> bool:
        """Return whether a path may exist although it was not listed, for example in an unreadable folder."""
        return self.collections.get(path.partition("/")[0], self.folder).holds(path, "file")


def discover(paths: SyncPaths) -> Discovered:
    """Return the current source set. Raises ELOOP if the default sources folder is a link; a named one may be."""
    folder = links = FoundCollection(is_missing=True)
    roots = {entry.name: os.path.realpath(entry.path) for entry in paths.collections if entry.path is not None}
    if not paths.is_named_only:
        if not paths.is_sources_dir_named:
            files.resolve(paths.sources_dir)
        others = frozenset(roots.values())
        folder = _look(
            lambda path: FoundCollection(_drop_own_files(find_files(path, others=others), paths, path)),
            paths.sources_dir,
        )
        links = _look(_find_urls, paths.links_file)
        roots[""] = os.path.realpath(paths.sources_dir)
    found = {entry.name: _find_collection(entry, paths, roots) for entry in paths.collections}
    sources = Discovered(folder, links, found)
    return _refuse_shared_ids(sources, paths) if found else sources


def _find_collection(entry: NamedCollection, paths: SyncPaths, roots: Mapping[str, str]) -> FoundCollection:
    if entry.fault or entry.path is None:
        return FoundCollection(is_source=entry.collection.is_source, fault=entry.fault)
    others = frozenset(root for name, root in roots.items() if name != entry.name)

    def find(folder: Path) -> FoundCollection:
        walk = _Walk(os.path.realpath(folder), FoundFiles({}, {}), entry.name, others)
        listing = _find_below(entry.prefix, walk, entry.make_selection())
        return FoundCollection(_drop_own_files(listing, paths, folder, entry.prefix))

    found = _look(_find_urls if entry.collection.kind == "links" else find, entry.path)
    if entry.collection.kind != "links" and entry.path.is_file():
        reason = "it is a file, not a folder"
        return FoundCollection(fault=errors.storage_failed(str(entry.path), reason, is_reading=True).message)
    return found.refuse_missing(f"collection {entry.name}", entry.path)


def _find_urls(path: Path) -> FoundCollection:
    return FoundCollection(urls=tuple(find_addresses(path)))


def _drop_own_files(listing: FoundFiles, paths: SyncPaths, folder: Path, prefix: str = "") -> FoundFiles:
    """Drop files that pair writes or reads as configuration, if they are in the listing."""
    for path in (*([paths.llms.path] if paths.llms is not None else []), *paths.own_files):
        own = os.path.join(os.path.realpath(path.parent), path.name)  # noqa: PTH118
        listing.files.pop(prefix + os.path.relpath(own, os.path.realpath(folder)).replace(os.sep, "/"), None)
    return listing


def _refuse_shared_ids(sources: Discovered, paths: SyncPaths) -> Discovered:
    """Report a fault of a collection if one of its files has the id of a file of `kb.sources_dir`."""
    known = sources.folder.files.files
    found = dict(sources.collections)
    for name, entry in found.items():
        shared = known.keys() & entry.files.files.keys() if known else set()
        if shared:
            reason = f"{min(shared)} is also a file of {paths.sources_dir}; give the collection another name"
            found[name] = FoundCollection(fault=f"Cannot sync collection {name}: {reason}.")
    return dataclasses.replace(sources, collections=found)


def _look(find: Callable[[Path], FoundCollection], path: Path) -> FoundCollection:
    try:
        return find(path)
    except (FileNotFoundError, NotADirectoryError):
        return FoundCollection(is_missing=True)
    except OSError as fault:
        reason = files.describe_os_error(fault)
        return FoundCollection(fault=errors.storage_failed(str(path), reason, is_reading=True).message)


def choose_refreshed(sources: Discovered, paths: SyncPaths, pattern: str | None) -> frozenset[str]:
    """Return the URLs and the names of sources that match the pattern, if there is one. Raises E104 if none does."""
    if pattern is None:
        return frozenset()
    chosen = {url for url in sources.owners() if matches_pattern(url, pattern)}
    for entry in paths.collections:
        if entry.collection.is_source and any(
            matches_pattern(text, pattern) for text in (entry.name, entry.collection.address)
        ):
            chosen.add(entry.name)
    if not chosen and not sources.links.fault:
        raise errors.no_url_matches(pattern)
    return frozenset(chosen)


def find_gone(sources: Discovered, state: SyncState) -> set[str]:
    """Return the ids of records whose source no longer exists."""
    owners, gone = sources.owners(), set[str]()
    for source_id, value in state.sources.items():
        kind, name = value["source_type"], read_collection(value)
        found = sources.collections.get(name) if name else {"file": sources.folder, "url": sources.links}.get(kind)
        is_kept = found.holds(source_id, kind) if found is not None else not name
        if not is_kept and source_id not in owners:
            gone.add(source_id)
    return gone


def classify_missing(sources: Discovered, paths: SyncPaths, state: SyncState) -> Discovered:
    """Treat a missing folder or links file as empty, or as a fault, which keeps its documents."""  # sync-50
    folder, links, is_read = sources.folder, sources.links, not paths.is_named_only
    if is_read and folder.is_missing:
        has_files = any("file" in value and not read_collection(value) for value in state.sources.values())
        if paths.is_sources_dir_named or has_files:
            folder = folder.refuse_missing("sources folder", paths.sources_dir)
    if is_read and paths.is_links_file_named:
        links = links.refuse_missing("links file", paths.links_file)
    folder, links = (dataclasses.replace(found, is_missing=False) for found in (folder, links))
    return dataclasses.replace(sources, folder=folder, links=links)
