"""The manifests of one KB in the store, and records of shards that no manifest names yet.

Invariants
    No other module writes a manifest. A manifest names only shards that are already uploaded.
    A swap wins or loses (E202). If the answer is lost, the writer reads the manifest and looks for its commit id.
    A manifest that arrives damaged is read a second time before it is an error.
    The first writer of a KB puts a marker before it uploads anything, and removes the marker after its swap. Shards or
    copies without a manifest and without a marker mean that the manifest was lost: writes are refused (E237).
    A copy is stored before its manifest is published, so lost writes leave copies too. A copy counts only if its
    commit is in the line that leads to the current manifest.
    A copy is deleted before the first shard that only this copy names.
    A record is put before the first file of its shards, and garbage collection lists files before records: it sees the
    record of every file that it sees.
    A record is claimed or condemned by compare-and-swap, and never used after it is condemned. Garbage collection
    condemns records, then swaps the manifest, then deletes. So if a writer reads a manifest, finds its record intact
    and swaps that manifest, its shards exist, whatever the clocks show.
"""

import contextlib
import datetime
import json
import logging
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import msgspec

from pair import errors
from pair.blobs.contract import Blob, BlobStore, BlobUnchanged, Version, VersionMismatchError
from pair.engine.format.array_file import decode_json
from pair.engine.format.manifest import (
    FileRole,
    Manifest,
    ShardJson,
    ShardRef,
    builds_prefix,
    clock_key,
    first_write_key,
    from_bytes,
    manifest_key,
    older_keys,
    shards_prefix,
    to_bytes,
    version_in_key,
    version_key,
    versions_prefix,
)

if TYPE_CHECKING:
    from pair.engine.format.shard_builder import BuiltShard

logger = logging.getLogger(__name__)

_SETTLING_TRIES = 5
_MOST_DIGITS = 20
_BATCH_COPIES = 64
"""Number of copies to read ahead, and the minimum number that is worth a thread."""
_READ_THREADS = 16


@dataclass(frozen=True, slots=True)
class StoredManifest:
    """A manifest and the store's version of its blob."""

    manifest: Manifest
    version: Version


@dataclass(frozen=True, slots=True)
class ManifestCopy:
    """The stored copy of a manifest that was published."""

    key: str
    number: int
    stored_at: datetime.datetime
    """About when the manifest became current, by the clock of the store."""


@dataclass(frozen=True, slots=True)
class ManifestCopies:
    line: tuple[ManifestCopy, ...]
    """Copies that lead to the current manifest, and its own copy, newest first."""
    stray: tuple[str, ...]
    """Keys of copies whose manifests were not published and no longer can be."""


def is_number(wanted: str) -> bool:
    """Return whether the text can be the number of a version."""
    return wanted.isascii() and wanted.isdigit() and len(wanted) <= _MOST_DIGITS


class ManifestStore:
    """The manifest of one KB, read if it changed, and replaced by compare-and-swap."""

    def __init__(
        self,
        store: BlobStore,
        kb_id: str,
        *,
        before_first_write: Callable[[], None],
        on_step: Callable[[str], None] = lambda step: None,
        keeps_versions: bool = False,
        at: str | None = None,
    ) -> None:
        """Prepare access. `keeps_versions`: store a copy of every manifest. `at`: the only version to read."""
        self._store = store
        self._kb_id = kb_id
        self._key = manifest_key(kb_id)
        self._before_first_write = before_first_write
        self._on_step = on_step
        self._keeps_versions = keeps_versions
        self._at = at
        self.history = History(store, kb_id)
        self._lock = threading.Lock()
        self._last: StoredManifest | None = None
        self._is_probed = False

    @property
    def is_past(self) -> bool:
        """Whether this object reads one past version."""
        return self._at is not None

    def at(self, wanted: str) -> "ManifestStore":
        """Return a store that reads one version of the same KB."""
        past = ManifestStore(self._store, self._kb_id, before_first_write=self._before_first_write, at=wanted)
        past.history = self.history  # Share the labels that were read.
        return past

    # Reading

    def current(self) -> StoredManifest | None:
        """Return the current manifest; None for a new KB. Make one call to the store, cheap if nothing changed."""
        if self._at is not None:
            return self._read_past(self._at)
        last = self._last
        if last is None:
            return self._read(self._store.get(self._key))
        blob = self._store.get_if_changed(self._key, last.version)
        return last if isinstance(blob, BlobUnchanged) else self._read(blob)

    def _read_past(self, wanted: str) -> StoredManifest | None:
        """Return the wanted version, as long as its copy is kept. Raises E218."""
        last = self._last
        if last is None:
            newest = _decode(self._store.get(self._key), self._key, self._store)
            if newest is None:
                return None
            manifest = self.history.find(newest.manifest, wanted)
            copy = self._read_copy(manifest)
            if copy is None and manifest is not newest.manifest:
                raise errors.no_such_version(self._kb_id, wanted, ())
            # Without copies, the current version can be read as long as it is current.
            return self._remember(copy or newest)
        for key in (self._copy_key(last.manifest), self._key):
            if isinstance(self._store.get_if_changed(key, last.version), BlobUnchanged):
                return last
        copy = self._read_copy(last.manifest)  # A repair may have written it again.
        if copy is None:
            raise errors.no_such_version(self._kb_id, wanted, ())
        return self._remember(copy)

    def require(self) -> StoredManifest:
        """Return the current manifest. Raises E201."""
        published = self.current()
        if published is None:
            raise errors.kb_uninitialised(self._kb_id)
        return published

    def first(self) -> StoredManifest | None:
        """Return the current manifest if none was read yet, else None. Raises E201."""
        return self.require() if self._last is None else None

    def known(self) -> StoredManifest:
        """Return the last manifest that was read, however old; read one if there is none. Raises E201."""
        return self._last or self.require()

    def seen(self) -> StoredManifest | None:
        """Return the last manifest that was read, if any, without a call to the store."""
        return self._last

    def now(self) -> datetime.datetime:
        """Return the time by the store's clock, which all machines share. Make two calls to the store."""
        key = clock_key(self._kb_id)
        self._store.put(key, b"")
        for info in self._store.list(key):
            return info.modified_at
        raise errors.store_unreachable(self._store.address, "It does not show what was just written")

    def _read(self, blob: Blob | None) -> StoredManifest | None:
        published = _decode(blob, self._key, self._store)
        return None if published is None else self._remember(published)

    def _remember(self, published: StoredManifest) -> StoredManifest:
        with self._lock:
            if self._last is None or published.manifest.number >= self._last.manifest.number:
                self._last = published
        return published

    # Writing

    def read_for_write(self) -> StoredManifest | None:
        """Return the manifest to change; None for a new KB, which gets its marker. Raises E237, E209."""
        published = self.current() or self._refuse_lost()
        if published is None:
            self.probe()
            self._store.put(first_write_key(self._kb_id), b"")
        return published

    def current_for_write(self) -> StoredManifest | None:
        """Return the manifest to change; None before the first write. Raises E237."""
        return self.current() or self._refuse_lost()

    def require_for_write(self) -> StoredManifest:
        """Return the manifest to change, of an existing KB. Raises E201, E237."""
        published = self.current_for_write()
        if published is None:
            raise errors.kb_uninitialised(self._kb_id)
        return published

    def _refuse_lost(self) -> StoredManifest | None:
        """Raise E237 if the manifest was lost. Return the manifest if a first writer has just published it.

        The order of the reads matters: a writer puts its marker before its files, and removes it after its swap.
        """
        if not self.has_leftovers() or self.is_first_write_unfinished():
            return None
        published = self.current()
        if published is None:
            raise errors.manifest_lost(self._kb_id)
        return published

    def has_leftovers(self) -> bool:
        """Return whether the store has shards or copies of manifests of this KB."""
        prefixes = shards_prefix(self._kb_id), versions_prefix(self._kb_id)
        return any(True for prefix in prefixes for _ in self._store.list(prefix))

    def is_first_write_unfinished(self) -> bool:
        """Return whether the first write of the KB is running or was interrupted before its swap."""
        if self._store.get(first_write_key(self._kb_id)) is None:
            return False
        copies = (version_in_key(info.key) for info in self._store.list(versions_prefix(self._kb_id)))
        # A second version exists only after the first was published.
        return not any(copy is not None and copy[0] > 1 for copy in copies)

    def refuse_past(self) -> None:
        """Raise E219 if this object reads a past version."""
        if self._at is not None:
            raise errors.past_is_read_only(self._kb_id, self.require().manifest.number)

    def probe(self) -> None:
        """Raise E209 if the store ignores conditions. A store that has a manifest was probed before."""
        if self._last is None and not self._is_probed:
            self._before_first_write()
            self._is_probed = True

    def upload(self, shards: "Sequence[BuiltShard]") -> None:
        self.refuse_past()
        self.probe()
        for shard in shards:
            for role in shard.paths:
                self._on_step("upload")
                self._store.upload(shard.ref.key(role), shard.paths[role])
        self._on_step("uploaded")

    def swap(self, before: StoredManifest | None, after: Manifest) -> StoredManifest:
        """Replace the manifest. Raises E202 if another writer has replaced it, E208 if that is unknown."""
        self.refuse_past()
        self.probe()
        content = to_bytes(after)
        if self._keeps_versions:
            self._on_step("copy")
            self._store.put(self._copy_key(after), to_bytes(after.make_copy()))
        self._on_step("swap")
        for _ in range(_SETTLING_TRIES):
            try:
                if before is None:
                    version = self._store.create(self._key, content)
                else:
                    version = self._store.put_if(self._key, content, before.version)
            except VersionMismatchError:
                logger.info("swap was refused", extra={"kb": self._kb_id})
            except errors.StorageError as fault:
                logger.info("answer to a swap was lost", extra={"kb": self._kb_id, "reason": fault.message})
            else:
                published = self._remember(StoredManifest(after, version))
                # Best effort: files of the older layout, and the marker of a first write.
                for key in (*older_keys(self._kb_id), first_write_key(self._kb_id)):  # engine-23
                    with contextlib.suppress(errors.StorageError):
                        self._store.delete(key)
                return published
            if (published_before := self._settle(after, before)) is not None:
                return published_before
        raise errors.publish_unknown(self._kb_id)

    def _settle(self, after: Manifest, before: StoredManifest | None) -> StoredManifest | None:
        """Read the manifest after a swap without a clear answer: our own request may have arrived twice.

        Return our manifest if it is published, None if the old one still is. Raises E202 for any other, E208.
        """
        try:
            published = self._read(self._store.get(self._key))
        except (errors.StorageError, errors.DataError) as fault:
            raise errors.publish_unknown(self._kb_id) from fault
        if published is not None and published.manifest.holds_commit(after.commit_id):
            return published
        if (published.version if published else None) == (before.version if before else None):
            return None
        if self._keeps_versions:
            with contextlib.suppress(errors.StorageError):
                self._store.delete(self._copy_key(after))
        raise errors.manifest_changed(self._kb_id)

    # Copies

    def keep(self, manifest: Manifest) -> None:
        """Store a copy of a manifest, unless its writer did, so that a rollback can restore it."""
        if not self._keeps_versions:
            return
        with contextlib.suppress(errors.DataError):
            if self._read_copy(manifest) is not None:
                return
        self._store.put(self._copy_key(manifest), to_bytes(manifest.make_copy()))

    def _copy_key(self, manifest: Manifest) -> str:
        return version_key(self._kb_id, manifest.number, manifest.commit_id)

    def _read_copy(self, manifest: Manifest) -> StoredManifest | None:
        key = self._copy_key(manifest)
        return _decode(self._store.get(key), key, self._store)


def _decode(blob: Blob | None, key: str, store: BlobStore) -> StoredManifest | None:
    """Decode a manifest. Read a damaged one a second time. Raises E207."""
    if blob is None:
        return None
    try:
        return StoredManifest(from_bytes(blob.data, key), blob.version)
    except errors.DataError:
        logger.warning("manifest is damaged and is read again", extra={"key": key})
        blob = store.get(key)
        return None if blob is None else StoredManifest(from_bytes(blob.data, key), blob.version)


class History:
    """The stored copies of the manifests of one KB."""

    def __init__(self, store: BlobStore, kb_id: str) -> None:
        self._store = store
        self._kb_id = kb_id
        self._labels: dict[str, str] = {}
        """The label of each copy that was read, by key. It never changes."""

    def copies(self, current: Manifest) -> ManifestCopies:
        """List the copies, with one listing and one more request for every 64 versions."""
        stored_at = {info.key: info.modified_at for info in self._store.list(versions_prefix(self._kb_id))}
        named = ((version_in_key(key), key) for key in stored_at)
        # Foreign keys are neither read nor deleted.
        keys = {name: key for name, key in named if name is not None and key == version_key(self._kb_id, *name)}
        line = tuple(ManifestCopy(key, number, stored_at[key]) for key, number in self._follow_line(current, keys))
        in_line = {copy.key for copy in line}
        stray = (key for (number, _), key in keys.items() if number <= current.number and key not in in_line)
        return ManifestCopies(line, tuple(stray))

    def _follow_line(self, current: Manifest, keys: dict[tuple[int, str], str]) -> Iterator[tuple[str, int]]:
        """Yield the keys and numbers of the copies that lead to the current manifest, newest first."""
        commits, line, unreadable = _list_commits(current), list[str](), set[str]()
        by_number: dict[int, dict[str, str]] = {}
        for (number, commit), key in keys.items():
            by_number.setdefault(number, {})[commit] = key
        for number in sorted((number for number in by_number if number <= current.number), reverse=True):
            if number not in commits:  # A manifest names only the last commits before it.
                commits = self._read_oldest_commits(line, unreadable)
            by_commit = by_number[number]
            # Beyond a gap, a single copy is the right one: the collection that made the gap removed the strays too.
            commit = commits.get(number, next(iter(by_commit)) if len(by_commit) == 1 else "")
            if commit in by_commit:
                line.append(by_commit[commit])
                yield by_commit[commit], number

    def _read_oldest_commits(self, line: Sequence[str], unreadable: set[str]) -> dict[int, str]:
        """Return the commits that the oldest readable copy names. `unreadable`: keys to skip; it gets more."""
        for key in reversed(line):
            if key not in unreadable:
                manifest = self._read_or_fault(key)
                if isinstance(manifest, Manifest):
                    return _list_commits(manifest)
                unreadable.add(key)
        return {}

    def past(self, current: Manifest) -> Iterator[Manifest]:
        """Yield the earlier manifests that are kept and readable, newest first."""
        for _, manifest in self.read_all([copy for copy in self.copies(current).line if copy.number < current.number]):
            if isinstance(manifest, Manifest):
                yield manifest

    def read_all(self, copies: Sequence[ManifestCopy]) -> Iterator[tuple[ManifestCopy, Manifest | errors.DataError]]:
        """Yield the copies that exist, in order, each with its manifest or its fault. Read many copies in parallel."""
        with ThreadPoolExecutor(_READ_THREADS, thread_name_prefix="pair-history") as pool:
            read = map if len(copies) <= _BATCH_COPIES else pool.map
            for begin in range(0, len(copies), _BATCH_COPIES):
                batch = copies[begin : begin + _BATCH_COPIES]
                manifests = read(self._read_or_fault, [copy.key for copy in batch])
                for copy, manifest in zip(batch, manifests, strict=True):
                    if manifest is not None:
                        yield copy, manifest

    def find(self, current: Manifest, wanted: str) -> Manifest:
        """Find a version by its number, else the newest with this package version. Raises E218, E207."""
        number = int(wanted) if is_number(wanted) else None
        if number == current.number:
            return current
        line = self.copies(current).line
        key = next((copy.key for copy in line if copy.number == number), None)
        if key is None and _is_called(current.label, wanted):
            return current
        key = key or self._find_label([copy for copy in line if copy.number < current.number], wanted)
        manifest = self._read(key) if key is not None else None
        if manifest is None:
            raise errors.no_such_version(self._kb_id, wanted, tuple(copy.number for copy in line))
        return manifest

    def _find_label(self, line: Sequence[ManifestCopy], wanted: str) -> str | None:
        """Return the key of the newest copy with this label."""
        labels = {copy.key: self._labels[copy.key] for copy in line if copy.key in self._labels}
        for copy, manifest in self.read_all([copy for copy in line if copy.key not in labels]):
            if isinstance(manifest, Manifest):
                labels[copy.key] = manifest.label
        self._labels = labels
        return next((copy.key for copy in line if _is_called(labels.get(copy.key, ""), wanted)), None)

    def _read_or_fault(self, key: str) -> Manifest | errors.DataError | None:
        """Return the manifest, its fault if it is damaged, or None if the copy is gone."""
        try:
            return self._read(key)
        except errors.DataError as fault:
            logger.warning("a version cannot be read", extra={"key": key, "reason": fault.message})
            return fault

    def _read(self, key: str) -> Manifest | None:
        stored = _decode(self._store.get(key), key, self._store)
        return None if stored is None else stored.manifest


def _is_called(label: str, wanted: str) -> bool:
    """Return whether `wanted` means this label: `handbook 1.0.0`, `handbook@1.0.0` or `1.0.0`."""
    name, _, version = label.rpartition(" ")
    return bool(label) and wanted in {label, f"{name}@{version}", version}


def _list_commits(manifest: Manifest) -> dict[int, str]:
    """Return the commits that a manifest names, by number."""
    line = (manifest.commit_id, *manifest.recent_commits)
    return {manifest.number - offset: commit for offset, commit in enumerate(line)}


_CONDEMNED = b'{"condemned": true}\n'


def find_missing_files(store: BlobStore, shard: ShardRef) -> list[FileRole]:
    """Return the files of a shard that the store lacks. A shard is named by its content, so sizes are enough."""
    stored = {info.key: info.size_bytes for info in store.list(f"{shard.folder}/")}
    return [role for role, file in shard.files.items() if stored.get(shard.key(role)) != file.size_bytes]


class PendingShards:
    """Records of shards that are built and not published. A record protects its shards from garbage collection."""

    def __init__(self, store: BlobStore, kb_id: str, new_id: Callable[[], str]) -> None:
        self._store = store
        self._prefix = builds_prefix(kb_id)
        self._new_id = new_id

    def announce(self, part_key: str, shards: Sequence[ShardRef], dimension: int) -> str:
        """Put a record before the shards are uploaded. Return its key, which is never used again."""
        key = f"{self._prefix}{part_key}/{self._new_id()}.json"
        self._store.put(key, _encode_record(shards, dimension, self._new_id()))
        return key

    def find(self, part_key: str) -> tuple[str, tuple[ShardRef, ...]] | None:
        """Claim the shards that an earlier run or a dead worker built from this part. Return the record's key and
        shards.

        Incomplete shards do not count, and stay: another worker may be uploading them.
        """
        for info in list(self._store.list(f"{self._prefix}{part_key}/")):
            blob = self._store.get(info.key)
            record = None if blob is None else _decode_record(blob.data)
            if blob is None or record is None:
                continue
            shards, dimension = record
            with contextlib.suppress(VersionMismatchError):
                # Written again, so that the record counts as new.
                self._store.put_if(info.key, _encode_record(shards, dimension, self._new_id()), blob.version)
                if not any(find_missing_files(self._store, shard) for shard in shards):
                    return info.key, shards
        return None

    def is_in_order(self, key: str) -> bool:
        """Return whether a record exists and is not condemned."""
        blob = self._store.get(key)
        return blob is not None and _decode_record(blob.data) is not None

    def forget(self, key: str) -> None:
        """Delete a record whose shards are published or useless."""
        self._store.delete(key)

    def list_protected(self, now: datetime.datetime, keep_seconds: float) -> tuple[frozenset[str], list[str]]:
        """Return the folders of shards that a build may still publish, and the condemned records to delete."""
        folders: set[str] = set()
        condemned: list[str] = []
        for info in list(self._store.list(self._prefix)):
            blob = self._store.get(info.key)
            if blob is None:
                continue
            record, is_condemned = _decode_record(blob.data), blob.data == _CONDEMNED
            is_old = info.modified_at + datetime.timedelta(seconds=keep_seconds) <= now
            if is_old and not is_condemned:
                with contextlib.suppress(VersionMismatchError):  # The record was just claimed.
                    self._store.put_if(info.key, _CONDEMNED, blob.version)
                    is_condemned = True
            if is_condemned:
                condemned.append(info.key)
            elif record is not None:
                folders |= {shard.folder for shard in record[0]}
        return frozenset(folders), condemned


class _RecordJson(msgspec.Struct):
    schema_version: Literal[1]
    claim: str
    """A unique value, so that each version of a record is one claim."""
    dimension: int
    shards: tuple[ShardJson, ...]


def _encode_record(shards: Iterable[ShardRef], dimension: int, claim: str) -> bytes:
    record = _RecordJson(1, claim, dimension, tuple(map(ShardJson.of, shards)))
    return json.dumps(msgspec.to_builtins(record), separators=(",", ":")).encode() + b"\n"


def _decode_record(content: bytes) -> tuple[tuple[ShardRef, ...], int] | None:
    """Return the shards and the dimension of a record; None if it is condemned or unreadable."""
    try:
        record = decode_json(content, _RecordJson)
        return tuple(shard.to_ref(record.dimension) for shard in record.shards), record.dimension
    except (ValueError, OverflowError, zlib.error):
        return None
