"""The local cache of shard files. Each file is fetched once and verified. The least recently used shards are evicted.

Layout: `<cache>/pair-shards/<content hash>/<file>`, a stamp for each verified file, and `use`, which readers lock.
A marker file shows that pair created the folder `pair-shards`.
Invariants
    Only folders that are named by a content hash are removed, and only in a folder with the marker.
    A file appears under its name only after its SHA-256 was verified.
    A file that was touched later is verified again, and fetched again if it changed.
    If the folder is deleted or its disk is full, queries get slower, not wrong: missing files are fetched again, and
    unused files are evicted. Several processes may share one folder, even in different containers.
"""

import contextlib
import errno
import functools
import hashlib
import logging
import math
import os
import re
import secrets
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

from pair import errors, files
from pair.blobs.contract import BlobStore
from pair.clock import Clock
from pair.engine import rules
from pair.engine.filters import flatten_metadata
from pair.engine.format.array_file import RangeFile, Span
from pair.engine.format.columns import NO_GRAPHS, StoredGraphs
from pair.engine.format.graph_index import GraphIndex
from pair.engine.format.keyword_index import KeywordIndex
from pair.engine.format.manifest import FileRole, ShardRef, file_name
from pair.engine.format.metadata_index import MetadataIndex
from pair.engine.format.shard import (
    OPENERS,
    IdFile,
    RowsFile,
    SearchFile,
    open_search,
    span_of_index,
    spans_of_places,
    spans_of_vectors,
)

logger = logging.getLogger(__name__)

_FETCH_TRIES = 2
_OPEN_TRIES = 5
"""Number of attempts for a file that is deleted after it was fetched."""
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_RETRY_SECONDS = 0.025
_RETRY_TIMES = 6
_LEAST_ROOM_BYTES = 1_000_000
"""Minimum number of bytes to free on a full disk, so that it is not full again at once."""
_OWN_FOLDER = "pair-shards"
_MARK = ".made-by-pair"
_ENTRY = re.compile(r"[0-9a-f]{64}")
_CONDEMNED = re.compile(r"\.[0-9a-f]{64}\.[0-9a-f]{16}")
"""The name of an entry that is being removed."""
_STAMP = ".ok"
_USE = "use"
_PART = ".part"
_TOUCH_SECONDS = 30.0
_DISK_BLOCK_BYTES = 512
_WORTH_CUTTING_BYTES = 262_144
"""Minimum size of a search file that is fetched by ranges."""

_Done = TypeVar("_Done")


class ShardMissingError(Exception):
    """The store no longer has a shard: the manifest is old, or the shard is lost."""


@dataclass(frozen=True, slots=True)
class SweepReport:
    evicted_ttl: int
    evicted_size: int
    freed_bytes: int
    kept_bytes: int


class ShardCache:
    def __init__(
        self,
        store: BlobStore,
        folder: Path,
        clock: Clock,
        *,
        max_bytes: int = 0,
        ttl_seconds: float = 0.0,
        reads_pieces: bool = False,
    ) -> None:
        """Create the cache. `reads_pieces`: fetch single rows of a shard by ranges, for remote stores."""
        self.reads_pieces = reads_pieces
        self._store = store
        self._folder = folder
        self._own = folder / _OWN_FOLDER
        self.scratch = folder.with_name(folder.name + "-scratch")
        """The folder in which shards are built, on the same disk."""
        self.unfinished = folder.with_name(folder.name + "-unfinished")
        """The folder for the progress of long operations that can be resumed."""
        self._clock = clock
        self._max_bytes = max_bytes
        self._ttl_seconds = ttl_seconds
        self._lock = threading.Lock()
        self._fetching: weakref.WeakValueDictionary[Path, threading.Lock] = weakref.WeakValueDictionary()
        self._open: dict[str, OpenShard] = {}
        self._kept: frozenset[str] | None = None
        self._held: dict[object, frozenset[str]] = {}
        self.hits = self.misses = self.evictions = self.bytes_fetched = 0

    # Open shards

    def open(self, ref: ShardRef) -> "OpenShard":
        """Return a shard, which stays open until it is evicted or no manifest names it."""
        shard = self._open.get(ref.folder)
        if shard is None:
            with self._lock:
                shard = self._open.setdefault(ref.folder, OpenShard(ref, self))
        elif shard.use is not None:
            self.hits += 1
        return shard

    def keep_only(self, keys: frozenset[str]) -> None:
        """Close and evict open shards that are neither in `keys` nor held. A shard in use stays."""
        with self._lock:
            self._kept = keys
            dropped = self._open.keys() - keys.union(*self._held.values())
        self._drop(dropped)

    def hold(self, holder: object, keys: frozenset[str]) -> None:
        """Keep these shards open until the holder calls `release`."""
        with self._lock:
            self._held[holder] = keys

    def release(self, holder: object) -> None:
        """Close the shards that only this holder held, and evict them if `keep_only` has been called."""
        with self._lock:
            held, kept = self._held.pop(holder, frozenset[str]()), self._kept or frozenset[str]()
            dropped = held - kept.union(*self._held.values())
            for folder in dropped:
                self._open.pop(folder, None)
        if self._kept is not None:
            self._drop(dropped)

    def _drop(self, keys: Iterable[str]) -> None:
        for key in keys:
            with contextlib.suppress(OSError):  # A leftover takes space, but is no reason to fail.
                self._remove(_entry_name(key))

    def close(self) -> None:
        """Close all shards. A shard in use stays open until its reader is done."""
        with self._lock:
            self._open.clear()

    # Files

    def place(self, ref: ShardRef) -> Path:
        return self._own / _entry_name(ref.folder)

    def make_place(self, ref: ShardRef) -> Path:
        """Create the folder of a shard, and the marker. Raises OSError."""
        with files.open_folder(self._own, make=True) as own:
            names = files.list_below(own)
            if all(_is_ours(name) for name in names):
                with contextlib.suppress(FileExistsError):
                    os.close(files.open_below(own, _MARK, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
        files.make_folder(self.place(ref))
        return self.place(ref)

    def path(self, ref: ShardRef, role: FileRole) -> Path:
        """Return a verified local file. Raises ShardMissingError, E207, E205, E206, E010."""
        path = self.place(ref) / file_name(ref.shard_id, role)
        if _is_verified(path, ref, role):
            self.hits += 1
            return path
        with self._lock:
            waiting = self._fetching.setdefault(path, threading.Lock())
        with waiting:
            if not _is_verified(path, ref, role):
                self._retry(lambda: self._fetch(ref, role, path), ref.files[role].size_bytes)
        return path

    def use(self, ref: ShardRef) -> "ShardUse":
        """Mark a shard as in use. Raises E010."""
        return self._retry(lambda: ShardUse(functools.partial(self.make_place, ref)), 0)

    def _retry(self, act: Callable[[], _Done], wanted_bytes: int) -> _Done:
        """Run an action, and retry it if that may help. Raises E010, E207 and the errors of the action."""
        tries = 0
        while True:
            tries += 1
            try:
                with files.storage_errors():
                    return act()
            except (errors.DataError, errors.StorageError) as fault:
                if tries == _FETCH_TRIES or not self._may_succeed_now(fault, wanted_bytes):
                    raise
                logger.warning("fetched again", extra={"reason": fault.message})

    def _may_succeed_now(self, fault: errors.PairError, wanted_bytes: int) -> bool:
        """Return whether a retry may help: for a damaged or deleted file, or a full disk after an eviction."""
        number = fault.__cause__.errno if isinstance(fault.__cause__, OSError) else None
        if number not in _FULL:
            return number == errno.ENOENT or isinstance(fault, errors.DataError)
        with files.storage_errors():
            kept = max(1, self.size_bytes() - max(wanted_bytes, _LEAST_ROOM_BYTES))
            return self._evict(max_bytes=kept).freed_bytes > 0

    def has(self, ref: ShardRef, role: FileRole) -> bool:
        """Return whether a file can be read without a fetch."""
        return _is_verified(self.place(ref) / file_name(ref.shard_id, role), ref, role)

    def part(self, ref: ShardRef, role: FileRole) -> Path:
        """Return the path of the sparse copy of a file."""
        return self.place(ref) / (file_name(ref.shard_id, role) + _PART)

    def fetch_range(self, ref: ShardRef, role: FileRole, begin: int, size: int) -> bytes | None:
        """Fetch a range, without verification. Raises E205, E206."""
        self.misses += 1
        self._make_room(size)
        content = self._store.get_range(ref.key(role), begin, size)
        self.bytes_fetched += size
        return content

    def _fetch(self, ref: ShardRef, role: FileRole, path: Path) -> None:
        expected = ref.files[role]
        if path.exists() and files.hash_file(path) == expected.sha256:
            _stamp(path)
            return
        self.misses += 1
        self._make_room(expected.size_bytes)
        self.make_place(ref)
        # Not the process id: processes in different containers may have the same.
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
        try:
            if not self._store.download(ref.key(role), temporary):
                raise ShardMissingError(ref.key(role))
            if files.hash_file(temporary) != expected.sha256:
                raise errors.stored_data_damaged(ref.key(role), "its SHA-256 is not the one in the manifest")
            files.rename(temporary, path)
            files.unlink(self.part(ref, role), missing_ok=True)
        finally:
            files.unlink(temporary, missing_ok=True)
        self.bytes_fetched += expected.size_bytes
        _stamp(path)

    # Eviction

    def sweep(self) -> SweepReport:
        """Evict expired shards, then shards beyond the size limit. A shard in use stays. Raises E205, E010."""
        with files.storage_errors():
            report = self._evict(max_bytes=self._max_bytes)
        if self._max_bytes and report.kept_bytes > self._max_bytes:
            raise errors.cache_budget_exceeded(str(self._folder), self._max_bytes, report.kept_bytes)
        return report

    def keep_within_limits(self) -> None:
        """Sweep, and ignore errors."""
        if self._max_bytes or self._ttl_seconds:
            with contextlib.suppress(errors.StorageError):
                self.sweep()

    def room_bytes(self) -> float:
        """Return how many bytes can be fetched without an eviction."""
        return self._max_bytes - self.size_bytes() if self._max_bytes else math.inf

    def may_hold(self, size_bytes: int) -> bool:
        """Return whether one reader may hold this many bytes at once: at most half of the cache."""
        return not self._max_bytes or size_bytes <= self._max_bytes // 2

    def size_bytes(self) -> int:
        with files.storage_errors():
            return sum(entry.size_bytes for entry in self._list_entries())

    def _make_room(self, wanted_bytes: int) -> None:
        if not self._max_bytes:
            return
        for attempt in range(_RETRY_TIMES + 1):
            report = self._evict(max_bytes=self._max_bytes, wanted_bytes=wanted_bytes)
            if report.kept_bytes + wanted_bytes <= self._max_bytes:
                return
            if attempt < _RETRY_TIMES and wanted_bytes <= self._max_bytes:
                threading.Event().wait(_RETRY_SECONDS)  # A reader may be about to finish.
        raise errors.cache_budget_exceeded(str(self._folder), self._max_bytes, report.kept_bytes + wanted_bytes)

    def _evict(self, *, max_bytes: int, wanted_bytes: int = 0) -> SweepReport:
        entries = left = self._list_entries()
        gone_old: list[rules.CachedShard] = []
        gone_crowded: list[rules.CachedShard] = []
        in_use: list[rules.CachedShard] = []
        is_done = False
        while not is_done:
            needed = wanted_bytes + sum(entry.size_bytes for entry in in_use)
            old, crowded = rules.choose_evictions(
                left, max_bytes=max_bytes, ttl_seconds=self._ttl_seconds, wanted_bytes=needed
            )
            for gone, chosen in ((gone_old, old), (gone_crowded, crowded)):
                for entry in chosen:
                    (gone if self._remove(entry.name) else in_use).append(entry)
            tried = {*old, *crowded}
            left = [entry for entry in left if entry not in tried]
            is_done = tried.isdisjoint(in_use)  # If a shard is in use, choose others.
        freed = sum(entry.size_bytes for entry in (*gone_old, *gone_crowded))
        self.evictions += len(gone_old) + len(gone_crowded)
        kept = sum(entry.size_bytes for entry in entries) - freed
        return SweepReport(len(gone_old), len(gone_crowded), freed, kept)

    def _list_entries(self) -> list[rules.CachedShard]:
        now = self._clock.now().timestamp()
        entries: list[rules.CachedShard] = []
        with contextlib.suppress(FileNotFoundError):
            names = files.list_folder(self._own)
            for name in names if _MARK in names else ():
                if _is_ours(name):
                    with contextlib.suppress(OSError):  # It was just removed, or is not a folder.
                        entries.append(_measure(self._own / name, now))
        return entries

    def _remove(self, name: str) -> bool:
        """Remove an entry. Return False if it is in use, by this or another process."""
        with self._lock:
            for key in [key for key in self._open if _entry_name(key) == name]:
                del self._open[key]  # This ends its use, unless a query has a reference.
        folder = self._own / name
        with _try_lock(folder) as is_unused:
            if is_unused:
                condemned = folder.with_name(f".{name.lstrip('.')[:64]}.{secrets.token_hex(8)}")
                with contextlib.suppress(FileNotFoundError):
                    files.rename(folder, condemned)
                    files.remove_tree(condemned)
        return is_unused


def _is_ours(name: str) -> bool:
    return bool(_ENTRY.fullmatch(name) or _CONDEMNED.fullmatch(name))


def _entry_name(key: str) -> str:
    """Return the name of a shard in the cache: the content hash in its key; for a foreign key, a hash of the key."""
    name = key.rpartition("/")[2]
    return name if _ENTRY.fullmatch(name) else hashlib.sha256(key.encode(errors="surrogatepass")).hexdigest()


def _measure(folder: Path, now: float) -> rules.CachedShard:
    size, used_at = 0, 0.0
    with files.open_folder(folder) as descriptor, os.scandir(descriptor) as members:
        for member in members:
            seen = member.stat(follow_symlinks=False)
            size += min(seen.st_size, seen.st_blocks * _DISK_BLOCK_BYTES)  # Some files are sparse.
            used_at = max(used_at, seen.st_mtime)
    return rules.CachedShard(folder.name, size, max(0.0, now - used_at))


def _is_verified(path: Path, ref: ShardRef, role: FileRole) -> bool:
    """Return whether a file was verified and not touched since."""
    try:
        seen = path.lstat()
        stamp = path.with_name(path.name + _STAMP).read_text(encoding="ascii")
    except (OSError, ValueError):
        return False
    return seen.st_size == ref.files[role].size_bytes and stamp == _stamp_text(seen)


def _stamp(path: Path) -> None:
    """Mark a file as verified. If that fails, it is verified again the next time."""
    with contextlib.suppress(OSError):
        stamp = files.open_file(path.with_name(path.name + _STAMP), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        with os.fdopen(stamp, "wb") as stream:
            stream.write(_stamp_text(path.lstat()).encode())


def _stamp_text(seen: os.stat_result) -> str:
    return f"{seen.st_size} {seen.st_mtime_ns} {seen.st_ino}\n"


class ShardUse:
    """A shared lock that marks a shard as in use, for all processes, until the object is deleted."""

    def __init__(self, make_folder: Callable[[], Path]) -> None:
        self._descriptor = -1
        while True:
            try:
                self._path = make_folder() / _USE
                self._descriptor = files.open_file(self._path, os.O_RDWR | os.O_CREAT)
            except FileNotFoundError:
                continue  # It was just evicted.
            files.locks.share(self._descriptor)
            if self.is_current():
                return
            os.close(self._descriptor)
            self._descriptor = -1

    def is_current(self) -> bool:
        """Return whether the locked file still exists: the folder may have been evicted or deleted."""
        try:
            on_disk, ours = self._path.lstat(), os.fstat(self._descriptor)
        except FileNotFoundError:
            return False
        return (on_disk.st_dev, on_disk.st_ino) == (ours.st_dev, ours.st_ino)

    def touch(self) -> None:
        os.utime(self._descriptor)

    def __del__(self) -> None:
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)


@contextlib.contextmanager
def _try_lock(folder: Path) -> Iterator[bool]:
    """Lock the folder of a shard while the block runs. Yield False if this or another process uses it."""
    try:
        descriptor = files.open_file(folder / _USE, os.O_RDWR | os.O_CREAT)
    except FileNotFoundError:
        yield True
        return
    try:
        try:
            files.locks.try_lock(descriptor)
        except BlockingIOError:
            yield False
            return
        yield True
    finally:
        os.close(descriptor)


class OpenShard:
    """The files of one shard, each opened on first use. All methods raise as `ShardCache.path` does."""

    def __init__(self, ref: ShardRef, cache: ShardCache) -> None:
        self._ref = ref
        self._cache = cache
        self._lock = threading.Lock()
        # One lock for each file, so that several files can be fetched at once.
        self._locks = {role: threading.Lock() for role in ref.files}
        self._files: dict[FileRole, Any] = {}
        self._metadata: MetadataIndex | None = None
        self._ranges: RangeFile | None = None
        self._partial: SearchFile | None = None
        """The search file, while it is fetched by ranges."""
        self.use: ShardUse | None = None
        """The lock; None before the first file is opened."""
        self._touched_at = 0.0
        self.row_reads = 0
        """Number of reads of rows by ranges."""

    def is_loaded(self, role: FileRole) -> bool:
        """Return whether a file is open, or the shard does not have it."""
        return role in self._files or role not in self._ref.files

    def path(self, role: FileRole) -> Path:
        """Return the path of a verified file, which stays as long as this object is referenced."""
        with self._locks[role]:
            return self._fetch(role)

    def search(self, now: float) -> SearchFile:
        """Return the whole search file. `now`: the monotonic time, for the time of the last use."""
        self._touch(now)
        search: SearchFile = self.load("search")
        self._ranges = self._partial = None
        return search

    def ids(self) -> IdFile:
        return cast("IdFile", self.load("ids"))

    def metadata(self) -> MetadataIndex:
        """Return the metadata of the documents. A shard of an older version has it only in the headers."""
        if self._metadata is None:
            index = self.ids().metadata
            if index is None:
                search = self.search(0.0)
                headers = map(search.header, range(len(search.docs)))
                index = MetadataIndex.build([flatten_metadata(header.metadata) for header in headers])
            self._metadata = index
        return self._metadata

    def rows(self) -> RowsFile:
        return cast("RowsFile", self.load("rows"))

    def keywords(self) -> KeywordIndex | None:
        """Return the keyword index; None if the shard has none for this version of the tokenizer."""
        if "keywords" not in self._ref.files:
            return None
        index: KeywordIndex = self.load("keywords")
        return index if index.is_current else None

    def graph(self) -> GraphIndex | None:
        """Return the graph; None if the shard has none."""
        return self.load("graph") if "graph" in self._ref.files else None

    def stored_graphs(self) -> StoredGraphs:
        """Return the graphs of all documents of the shard."""
        search, graph = self.search(0.0), self.graph()
        return NO_GRAPHS if graph is None else graph.graphs(search.doc_of_row, search.docs["first_chunk"])

    def load(self, role: FileRole) -> Any:
        """Open a file once for all threads, and keep it open."""
        if role not in self._files:
            with self._locks[role]:
                if role not in self._files:
                    self._files[role] = self._open(role)
        return self._files[role]

    def _open(self, role: FileRole) -> object:
        for _ in range(_OPEN_TRIES):
            path = self._fetch(role)
            with contextlib.suppress(FileNotFoundError):  # It was just deleted.
                return OPENERS[role](self._ref, path)
        raise errors.storage_failed(str(path), "another process keeps deleting it")

    def _fetch(self, role: FileRole) -> Path:
        with self._lock:
            # A folder that was deleted and created again needs a new lock.
            if self.use is None or not self.use.is_current():
                self.use = self._cache.use(self._ref)
        return self._cache.path(self._ref, role)

    def _touch(self, now: float) -> None:
        if self.use is not None and now - self._touched_at > _TOUCH_SECONDS:
            self._touched_at = now
            self.use.touch()

    # Ranges of the search file

    def search_rows(self, now: float) -> SearchFile:
        """Return the search file for reading some rows, by ranges if possible. Raises RangeError."""
        ranges = self._open_ranges()
        if ranges is None:
            return self.search(now)
        self._touch(now)
        self.row_reads += 1
        partial = self._partial
        if partial is None:
            partial = self._partial = open_search(self._ref, ranges.path, ranges)
        return partial

    def plan_index_fetches(self, *, in_pieces: bool) -> list[Callable[[], object]]:
        """Return the fetches that a search by vector needs, which can run in parallel."""
        return self._plan_fetches(lambda ranges: [span_of_index(ranges.pack)], in_pieces=in_pieces)

    def plan_row_fetches(
        self, rows: npt.NDArray[np.int64], *, texts: bool, in_pieces: bool
    ) -> list[Callable[[], object]]:
        """Return the fetches for the texts of these rows, or for their vectors, which can run in parallel."""

        def list_spans(ranges: RangeFile) -> list[Span]:
            if texts:
                return self.search_rows(0.0).spans_of_texts(rows)
            return [*spans_of_places(ranges.pack), *spans_of_vectors(ranges.pack, rows)]

        return self._plan_fetches(list_spans, in_pieces=in_pieces)

    def _plan_fetches(
        self, list_spans: Callable[[RangeFile], list[Span]], *, in_pieces: bool
    ) -> list[Callable[[], object]]:
        ranges = self._open_ranges() if in_pieces else None
        if ranges is None:
            return [] if self.is_loaded("search") else [functools.partial(self.search, 0.0)]
        return [functools.partial(ranges.fill, blocks) for blocks in ranges.missing(list_spans(ranges))]

    def _open_ranges(self) -> RangeFile | None:
        """Return the sparse search file; None if the whole file is better, or the hashes of ranges are unknown."""
        ref, cache = self._ref, self._cache
        if not cache.reads_pieces or self.is_loaded("search") or "keywords" not in self._files:
            return None
        outline, size_bytes = self._files["keywords"].search_outline, ref.files["search"].size_bytes
        if outline is None or size_bytes < _WORTH_CUTTING_BYTES:
            return None
        with self._lock:
            if self._ranges is None and not self.is_loaded("search") and not cache.has(ref, "search"):
                with (
                    files.storage_errors(),
                    contextlib.suppress(ValueError),
                ):  # The outline is wrong: fetch the whole file.
                    cache.make_place(ref)  # The cache may have been emptied.
                    fetch = functools.partial(cache.fetch_range, ref, "search")
                    self._ranges = RangeFile(cache.part(ref, "search"), size_bytes, outline, fetch)
            return self._ranges
