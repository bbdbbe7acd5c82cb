"""Local shard files: fetched once, verified, evicted by last use, never while in use."""

import contextlib
import errno
import fcntl
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
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from pair import errors, files, folders
from pair.blobs.contract import BlobStore
from pair.clock import Clock
from pair.engine import rules
from pair.engine.format.array_file import RangeFile
from pair.engine.format.columns import NO_GRAPHS, StoredGraphs, graphs_in_columns
from pair.engine.format.graph_index import GraphIndex
from pair.engine.format.keyword_index import KeywordIndex
from pair.engine.format.manifest import FileRole, ShardRef, file_name
from pair.engine.format.shard import (
    IdFile,
    RowsFile,
    SearchFile,
    open_graph,
    open_ids,
    open_keywords,
    open_rows,
    open_search,
    span_of_index,
    spans_of_places,
    spans_of_vectors,
)
from pair.engine.rules import CachedShard

_USE = "use"


@contextlib.contextmanager
def in_use(folder: Path, *, exclusive: bool) -> Iterator[bool]:
    """Hold the lock of a shard's folder while the block runs; gives False when another holds it."""
    try:
        descriptor = folders.open_file(folder / _USE, os.O_RDWR | os.O_CREAT)
    except FileNotFoundError:
        yield exclusive  # there is nothing that could be in use
        return
    try:
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True
    finally:
        os.close(descriptor)


class ShardUse:
    """Says that a shard's files are in use, for as long as this object lives: the lock ends with its descriptor."""

    def __init__(self, make_folder: Callable[[], Path]) -> None:
        self._descriptor = -1
        while True:
            try:
                self._path = make_folder() / _USE
                self._descriptor = folders.open_file(self._path, os.O_RDWR | os.O_CREAT)
            except FileNotFoundError:
                continue  # evicted between two lines
            fcntl.flock(self._descriptor, fcntl.LOCK_SH)
            if self.is_the_one_on_disk():
                return
            os.close(self._descriptor)
            self._descriptor = -1

    def is_the_one_on_disk(self) -> bool:
        """False when the folder was evicted while we waited for its lock, or deleted since."""
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


logger = logging.getLogger(__name__)

_FETCH_TRIES = 2
"""Of one file that arrives damaged, or whose place is taken away or full."""
_OPEN_TRIES = 5
"""Of one that was fetched and is gone."""
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_RETRY_SECONDS = 0.025
_RETRY_TIMES = 6
_LEAST_ROOM_BYTES = 1_000_000
"""That is made when a disk is full, so that it is not full again at once."""
_OWN_FOLDER = "pair-shards"
_MARK = ".made-by-pair"
_ENTRY = re.compile(r"[0-9a-f]{64}")
_CONDEMNED = re.compile(r"\.[0-9a-f]{64}\.[0-9a-f]{16}")
"""An entry that is being removed."""
_STAMP = ".ok"
_PART = ".part"
_TOUCH_SECONDS = 30.0
_DISK_BLOCK_BYTES = 512
_WORTH_CUTTING_BYTES = 262_144
"""A smaller search file is fetched whole, with one request."""

_Done = TypeVar("_Done")


class ShardMissingError(Exception):
    """The store no longer has this shard: either the manifest is old, or the shard is lost."""


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
        """`reads_pieces`: what a query wants of a few rows is fetched by ranges. For stores that are far away."""
        self.reads_pieces = reads_pieces
        self._store = store
        self._folder = folder
        self._own = folder / _OWN_FOLDER
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
        """Kept open for the next who asks, until it is evicted or named by no manifest any more."""
        shard = self._open.get(ref.folder)
        if shard is None:
            with self._lock:
                shard = self._open.setdefault(ref.folder, OpenShard(ref, self))
        elif shard.has_files:
            self.hits += 1
        return shard

    def is_open(self, ref: ShardRef) -> bool:
        shard = self._open.get(ref.folder)
        return shard is not None and shard.has_search

    def keep_only(self, keys: frozenset[str]) -> None:
        """Close and evict what was opened, and is neither among these nor held; what somebody still reads stays."""
        with self._lock:
            self._kept = keys
            dropped = self._open.keys() - keys.union(*self._held.values())
        self._drop(dropped)

    def hold(self, holder: object, keys: frozenset[str]) -> None:
        """These stay, whatever else is kept, until the holder lets them go."""
        with self._lock:
            self._held[holder] = keys

    def let_go(self, holder: object) -> None:
        """Close what nobody else holds or keeps, and evict it, unless nobody said yet what is kept."""
        with self._lock:
            held, kept = self._held.pop(holder, frozenset[str]()), self._kept or frozenset[str]()
            dropped = held - kept.union(*self._held.values())
            for folder in dropped:
                self._open.pop(folder, None)
        if self._kept is not None:
            self._drop(dropped)

    def _drop(self, keys: Iterable[str]) -> None:
        for key in keys:
            with contextlib.suppress(OSError):  # it takes room, but nobody should fail for it
                self._remove(_entry_name(key))

    def close(self) -> None:
        """Whoever still reads a shard keeps it alive."""
        with self._lock:
            self._open.clear()

    # Files

    @property
    def scratch(self) -> Path:
        """Where shards may be built: on the same disk, and not mistaken for a fetched one."""
        return self._folder.with_name(self._folder.name + "-scratch")

    @property
    def unfinished(self) -> Path:
        """Where long work keeps what it has done so far, for whoever goes on with it."""
        return self._folder.with_name(self._folder.name + "-unfinished")

    def place(self, ref: ShardRef) -> Path:
        return self._own / _entry_name(ref.folder)

    def make_place(self, ref: ShardRef) -> Path:
        """Create the folder of a shard, below one with the mark. Raises OSError."""
        with folders.open_folder(self._own, make=True) as own:
            names = folders.list_below(own)
            if all(_is_ours(name) for name in names):
                with contextlib.suppress(FileExistsError):
                    os.close(folders.open_below(own, _MARK, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
        folders.make_folder(self.place(ref))
        return self.place(ref)

    def path(self, ref: ShardRef, role: FileRole) -> Path:
        """A verified local file. Raises ShardMissingError, E207, E205, E206, E010."""
        path = self.place(ref) / file_name(ref.shard_id, role)
        if _is_verified(path, ref, role):
            self.hits += 1
            return path
        with self._lock:
            waiting = self._fetching.setdefault(path, threading.Lock())
        with waiting:
            if not _is_verified(path, ref, role):
                self._insist(lambda: self._fetch(ref, role, path), ref.files[role].size_bytes)
        return path

    def use(self, ref: ShardRef) -> ShardUse:
        """Raises E010."""
        return self._insist(lambda: ShardUse(functools.partial(self.make_place, ref)), 0)

    def _insist(self, act: Callable[[], _Done], wanted_bytes: int) -> _Done:
        """A few times, while the next time may be better. Raises E010, E207 and what the act raises."""
        tries = 0
        while True:
            tries += 1
            try:
                with files.storage_errors():
                    return act()
            except (errors.DataError, errors.StorageError) as fault:
                if tries == _FETCH_TRIES or not self._is_better_now(fault, wanted_bytes):
                    raise
                logger.warning("fetched again", extra={"reason": fault.message})

    def _is_better_now(self, fault: errors.PairError, wanted_bytes: int) -> bool:
        """What was damaged on its way, or deleted while it came, may be whole the next time. A full disk gets room."""
        number = fault.__cause__.errno if isinstance(fault.__cause__, OSError) else None
        if number in _FULL:
            return self.make_room_on_disk(wanted_bytes)
        return number == errno.ENOENT or isinstance(fault, errors.DataError)

    def make_room_on_disk(self, wanted_bytes: int) -> bool:
        """Of what nobody uses, as much as is wanted, whatever the limit. False when there is nothing to give."""
        with files.storage_errors():
            kept = max(1, self.size_bytes() - max(wanted_bytes, _LEAST_ROOM_BYTES))
            return self._evict(max_bytes=kept).freed_bytes > 0

    def has(self, ref: ShardRef, role: FileRole) -> bool:
        """Whether nothing would have to be fetched."""
        return _is_verified(self.place(ref) / file_name(ref.shard_id, role), ref, role)

    def part(self, ref: ShardRef, role: FileRole) -> Path:
        """Where what was fetched of a file is kept, as long as it is not all of it."""
        return self.place(ref) / (file_name(ref.shard_id, role) + _PART)

    def fetch_range(self, ref: ShardRef, role: FileRole, begin: int, size: int) -> bytes | None:
        """Not verified. Raises E205, E206."""
        self.misses += 1
        self._make_room(size)
        content = self._store.get_range(ref.key(role), begin, size)
        self.bytes_fetched += size
        return content

    def _fetch(self, ref: ShardRef, role: FileRole, path: Path) -> None:
        expected = ref.files[role]
        if path.exists() and files.sha256_of(path) == expected.sha256:
            _stamp(path)
            return
        self.misses += 1
        self._make_room(expected.size_bytes)
        self.make_place(ref)
        # Processes in different containers may have one number.
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
        try:
            if not self._store.download(ref.key(role), temporary):
                raise ShardMissingError(ref.key(role))
            if files.sha256_of(temporary) != expected.sha256:
                raise errors.stored_data_damaged(ref.key(role), "its SHA-256 is not the one in the manifest")
            folders.rename(temporary, path)
            folders.unlink(self.part(ref, role), missing_ok=True)
        finally:
            folders.unlink(temporary, missing_ok=True)
        self.bytes_fetched += expected.size_bytes
        _stamp(path)

    # Eviction

    def sweep(self) -> SweepReport:
        """Evict what is too old, then what is too much; what is in use stays."""
        with files.storage_errors():
            report = self._evict(max_bytes=self._max_bytes)
        if self._max_bytes and report.kept_bytes > self._max_bytes:
            raise errors.cache_budget_exceeded(str(self._folder), self._max_bytes, report.kept_bytes)
        return report

    def keep_within_limits(self) -> None:
        """As far as that is possible now; a sweep tells when it is not."""
        if self._max_bytes or self._ttl_seconds:
            with contextlib.suppress(errors.StorageError):
                self.sweep()

    def room_bytes(self) -> float:
        """What can be fetched without evicting anything."""
        return self._max_bytes - self.size_bytes() if self._max_bytes else math.inf

    def may_hold(self, size_bytes: int) -> bool:
        """Whether so much can be held at once, and others still find room to read."""
        return not self._max_bytes or size_bytes <= self._max_bytes // 2

    def size_bytes(self) -> int:
        with files.storage_errors():
            return sum(each.size_bytes for each in self._cached())

    def _make_room(self, wanted_bytes: int) -> None:
        if not self._max_bytes:
            return
        for attempt in range(_RETRY_TIMES + 1):
            report = self._evict(max_bytes=self._max_bytes, wanted_bytes=wanted_bytes)
            if report.kept_bytes + wanted_bytes <= self._max_bytes:
                return
            if attempt < _RETRY_TIMES and wanted_bytes <= self._max_bytes:
                threading.Event().wait(_RETRY_SECONDS)  # a reader may be about to finish
        raise errors.cache_budget_exceeded(str(self._folder), self._max_bytes, report.kept_bytes + wanted_bytes)

    def _evict(self, *, max_bytes: int, wanted_bytes: int = 0) -> SweepReport:
        cached = left = self._cached()
        gone_old: list[CachedShard] = []
        gone_crowded: list[CachedShard] = []
        in_use: list[CachedShard] = []
        is_done = False
        while not is_done:
            needed = wanted_bytes + sum(each.size_bytes for each in in_use)
            old, crowded = rules.shards_to_evict(
                left, max_bytes=max_bytes, ttl_seconds=self._ttl_seconds, wanted_bytes=needed
            )
            for gone, chosen in ((gone_old, old), (gone_crowded, crowded)):
                for each in chosen:
                    (gone if self._remove(each.name) else in_use).append(each)
            tried = {*old, *crowded}
            left = [each for each in left if each not in tried]
            is_done = tried.isdisjoint(in_use)  # else the next ones have to go instead
        freed = sum(each.size_bytes for each in (*gone_old, *gone_crowded))
        self.evictions += len(gone_old) + len(gone_crowded)
        kept = sum(each.size_bytes for each in cached) - freed
        return SweepReport(len(gone_old), len(gone_crowded), freed, kept)

    def _cached(self) -> list[CachedShard]:
        now = self._clock.now().timestamp()
        found: list[CachedShard] = []
        with contextlib.suppress(FileNotFoundError):
            names = folders.list_folder(self._own)
            for name in names if _MARK in names else ():
                if _is_ours(name):
                    with contextlib.suppress(OSError):  # gone meanwhile, or no folder
                        found.append(_measured(self._own / name, now))
        return found

    def _remove(self, name: str) -> bool:
        """False when somebody uses it, here or in another process."""
        with self._lock:
            for key in [key for key in self._open if _entry_name(key) == name]:
                del self._open[key]  # unless a query holds it, this ends its use
        folder = self._own / name
        with in_use(folder, exclusive=True) as is_ours:
            if is_ours:
                condemned = folder.with_name(f".{name.lstrip('.')[:64]}.{secrets.token_hex(8)}")
                with contextlib.suppress(FileNotFoundError):
                    folders.rename(folder, condemned)
                    files.remove_tree(condemned)
        return is_ours


def _is_ours(name: str) -> bool:
    return bool(_ENTRY.fullmatch(name) or _CONDEMNED.fullmatch(name))


def _entry_name(key: str) -> str:
    """Return the name of a shard in the cache: its content hash, as the last part of its key says, else one of the key.

    The key comes from a manifest, and may be that of a stranger.
    """
    name = key.rpartition("/")[2]
    return name if _ENTRY.fullmatch(name) else hashlib.sha256(key.encode(errors="surrogatepass")).hexdigest()


def _measured(folder: Path, now: float) -> CachedShard:
    size, used_at = 0, 0.0
    with folders.open_folder(folder) as descriptor, os.scandir(descriptor) as members:
        for member in members:
            seen = member.stat(follow_symlinks=False)
            size += min(seen.st_size, seen.st_blocks * _DISK_BLOCK_BYTES)  # some files are here in part only
            used_at = max(used_at, seen.st_mtime)
    return CachedShard(folder.name, size, max(0.0, now - used_at))


def _is_verified(path: Path, ref: ShardRef, role: FileRole) -> bool:
    """Verified once, and not touched since."""
    try:
        seen = path.lstat()
        stamp = path.with_name(path.name + _STAMP).read_text(encoding="ascii")
    except (OSError, ValueError):
        return False
    return seen.st_size == ref.files[role].size_bytes and stamp == _stamp_text(seen)


def _stamp(path: Path) -> None:
    """Where it cannot be written, the file is verified again the next time."""
    with contextlib.suppress(OSError):
        stamp = folders.open_file(path.with_name(path.name + _STAMP), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        with os.fdopen(stamp, "wb") as stream:
            stream.write(_stamp_text(path.lstat()).encode())


def _stamp_text(seen: os.stat_result) -> str:
    return f"{seen.st_size} {seen.st_mtime_ns} {seen.st_ino}\n"


class OpenShard:
    """The files of one shard, each opened when it is first asked for."""

    def __init__(self, ref: ShardRef, cache: ShardCache) -> None:
        self._ref = ref
        self._cache = cache
        self._lock = threading.Lock()
        # One for each file, so that several of them can be fetched at once.
        self._fetching = {role: threading.Lock() for role in ref.files}
        self.row_reads = 0
        """How often some rows were asked for while the search file was not here as a whole."""
        self._use: ShardUse | None = None
        self._touched_at = 0.0
        self._search: SearchFile | None = None
        self._pieces: RangeFile | None = None
        self._in_pieces: SearchFile | None = None
        self._ids: IdFile | None = None
        self._rows: RowsFile | None = None
        self._keywords: KeywordIndex | None = None
        self._graph: GraphIndex | None = None

    @property
    def has_files(self) -> bool:
        """Whether a file of it was opened."""
        return self._use is not None

    @property
    def has_search(self) -> bool:
        return self._search is not None

    @property
    def has_keywords(self) -> bool:
        """Nothing has to be fetched to ask them."""
        return self._keywords is not None or "keywords" not in self._ref.files

    @property
    def has_rows(self) -> bool:
        return self._rows is not None

    @property
    def has_graph(self) -> bool:
        """Nothing has to be fetched to walk it."""
        return self._graph is not None or "graph" not in self._ref.files

    def path(self, role: FileRole) -> Path:
        """A verified file, which stays for as long as somebody holds this object."""
        with self._fetching[role]:
            return self._sound_path(role)

    def search(self, now: float) -> SearchFile:
        """Whole. `now`: by the monotonic clock, for the last use. Raises as `ShardCache.path` does."""
        self._touch(now)
        if self._search is None:
            with self._fetching["search"]:
                if self._search is None:
                    self._search = self._opened("search", open_search)
                    self._in_pieces = self._pieces = None
        return self._search

    def search_rows(self, now: float) -> SearchFile:
        """For a look at some rows: in pieces, unless it is here as a whole or cannot be had in pieces.

        Raises as `search` does, and PieceError.
        """
        pieces = self._pieces_if_any()
        if pieces is None:
            return self.search(now)
        self._touch(now)
        self.row_reads += 1
        if self._in_pieces is None:
            self._in_pieces = open_search(self._ref, pieces.path, pieces)
        return self._in_pieces

    def plan_index_fetches(self, *, in_pieces: bool) -> list[Callable[[], object]]:
        """What has to be fetched to ask the vectors of this shard."""
        pieces = self._pieces_if_any() if in_pieces else None
        if pieces is None:
            return [] if self.has_search else [functools.partial(self.search, 0.0)]
        return [functools.partial(pieces.fill, blocks) for blocks in pieces.missing([span_of_index(pieces.pack)])]

    def plan_row_fetches(
        self, rows: npt.NDArray[np.int64], *, texts: bool, in_pieces: bool
    ) -> list[Callable[[], object]]:
        """What has to be fetched for the vectors of these rows, or for their texts; each can be fetched by itself."""
        pieces = self._pieces_if_any() if in_pieces else None
        if pieces is None:
            return [] if self.has_search else [lambda: self.search(0.0)]
        if texts:
            spans = self.search_rows(0.0).spans_of_texts(rows)
        else:
            spans = [*spans_of_places(pieces.pack), *spans_of_vectors(pieces.pack, rows)]
        return [functools.partial(pieces.fill, blocks) for blocks in pieces.missing(spans)]

    def _pieces_if_any(self) -> RangeFile | None:
        """None when the whole file is here, or nothing is known yet of its pieces."""
        if self._search is not None or not self._cache.reads_pieces or self._keywords is None:
            return None
        with self._lock:
            if self._pieces is None and self._search is None:
                self._pieces = self._made_pieces(self._keywords)
            return self._pieces

    def _made_pieces(self, keywords: KeywordIndex) -> RangeFile | None:
        outline = keywords.search_outline
        ref, cache = self._ref, self._cache
        if outline is None or ref.files["search"].size_bytes < _WORTH_CUTTING_BYTES or cache.has(ref, "search"):
            return None

        def fetch(begin: int, size: int) -> bytes | None:
            return cache.fetch_range(ref, "search", begin, size)

        with files.storage_errors():
            cache.make_place(ref)  # somebody may have emptied the cache
            try:
                return RangeFile(cache.part(ref, "search"), ref.files["search"].size_bytes, outline, fetch)
            except ValueError:  # of another file: the whole one tells what is wrong
                return None

    def _touch(self, now: float) -> None:
        if self._use is not None and now - self._touched_at > _TOUCH_SECONDS:
            self._touched_at = now
            self._use.touch()

    def ids(self) -> IdFile:
        if self._ids is None:
            with self._fetching["ids"]:
                if self._ids is None:
                    self._ids = self._opened("ids", open_ids)
        return self._ids

    def rows(self) -> RowsFile:
        if self._rows is None:
            with self._fetching["rows"]:
                if self._rows is None:
                    self._rows = self._opened("rows", open_rows)
        return self._rows

    def keywords(self) -> KeywordIndex | None:
        """None for a shard whose keywords this pair cannot ask: it has none, or those of another analysis."""
        if self._keywords is None and "keywords" in self._ref.files:
            with self._fetching["keywords"]:
                if self._keywords is None:
                    self._keywords = self._opened("keywords", open_keywords)
        return self._keywords if self._keywords is not None and self._keywords.is_current else None

    def graph(self) -> GraphIndex | None:
        """None when the shard has none that can be walked."""
        if self._graph is None and "graph" in self._ref.files:
            with self._fetching["graph"]:
                if self._graph is None:
                    self._graph = self._opened("graph", open_graph)
        return self._graph

    def stored_graphs(self) -> StoredGraphs:
        """Of all documents of the shard."""
        if not self._ref.graph_available:
            return NO_GRAPHS
        search, graph = self.search(0.0), self.graph()
        if graph is not None:
            return graph.graphs(search.doc_of_row, search.docs["first_chunk"])
        # A shard of an older pair has the rows alone.
        counts = np.bincount(search.doc_of_row, minlength=len(search.docs))
        return graphs_in_columns(self.rows().graphs(), counts.tolist())

    def _opened(self, role: FileRole, open_file: Callable[[ShardRef, Path], _Done]) -> _Done:
        """Raises as `ShardCache.path` does."""
        tries = 0
        while True:
            tries += 1
            path = self._sound_path(role)
            try:
                return open_file(self._ref, path)
            except FileNotFoundError as fault:  # deleted between two lines
                if tries == _OPEN_TRIES:
                    raise errors.storage_failed(str(path), "somebody deletes it again and again") from fault

    def _sound_path(self, role: FileRole) -> Path:
        with self._lock:
            # Without its lock, a folder that was deleted and made again would pass for one that nobody uses.
            if self._use is None or not self._use.is_the_one_on_disk():
                self._use = self._cache.use(self._ref)
        return self._cache.path(self._ref, role)
