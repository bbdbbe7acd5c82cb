"""The manifests of one KB in the store, and records of shards that no manifest names yet.

Invariants
    No other module writes a manifest. A manifest never names a shard that is not already uploaded.
    A swap either wins, loses (E202), or is settled by reading the manifest back and looking for our commit id.
    A manifest that arrives damaged is read once more before it is an error.
    A missing manifest means a new KB only if nothing was published before. The first writer of a KB puts a marker
    before it uploads anything, and removes the marker after its swap. Shards or history without manifest and marker
    mean that the manifest was lost: writes are refused (E237).
    A copy is in the store before its manifest is published. So one of a write that lost is there too: what counts is
    whether its commit is in the line that leads to the current manifest.
    A copy is deleted before the first shard that only it names.
    A record is put before the first file of its shards, and garbage collection lists records after files: what it sees
    of a build, it sees the record of.
    A record is claimed or condemned by compare-and-swap, and never used again once it was condemned. It is condemned
    before the manifest is swapped, and that before anything is deleted: a writer that reads a manifest, finds the
    record in order and then swaps that manifest publishes shards that exist, whatever the clocks say.
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
"""Of a number that may be meant as a version."""
_BATCH_COPIES = 64
"""So many copies are read ahead; fewer are not worth a thread."""
_READ_THREADS = 16


@dataclass(frozen=True, slots=True)
class StoredManifest:
    """A manifest as it is in the store."""

    manifest: Manifest
    version: Version


@dataclass(frozen=True, slots=True)
class ManifestCopy:
    """The stored copy of a manifest that was published."""

    key: str
    number: int
    stored_at: datetime.datetime
    """By the clock of the store: about when it became current."""


@dataclass(frozen=True, slots=True)
class ManifestCopies:
    line: tuple[ManifestCopy, ...]
    """Those that lead to the current manifest, itself among them, the newest first."""
    stray: tuple[str, ...]
    """Keys of copies whose manifests were never published, and no longer can be."""


def is_number(wanted: str) -> bool:
    """Tell whether a version may have this number."""
    return wanted.isascii() and wanted.isdigit() and len(wanted) <= _MOST_DIGITS


class ManifestStore:
    """The manifest of one KB: read when it changed, swapped when no other writer did."""

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
        """`keeps_versions`: leave a copy of every manifest for later. `at`: the only version that is read."""
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
        """Whether only one version is read."""
        return self._at is not None

    def at(self, wanted: str) -> "ManifestStore":
        """Return one version of the same KB, for reading."""
        past = ManifestStore(self._store, self._kb_id, before_first_write=self._before_first_write, at=wanted)
        past.history = self.history  # what is known of copies
        return past

    # Reading

    def current(self) -> StoredManifest | None:
        """Return None when nothing was ever written. One call to the store; a cheap one when nothing changed."""
        if self._at is not None:
            return self._read_past(self._at)
        last = self._last
        if last is None:
            return self._read(self._store.get(self._key))
        blob = self._store.get_if_changed(self._key, last.version)
        return last if isinstance(blob, BlobUnchanged) else self._read(blob)

    def _read_past(self, wanted: str) -> StoredManifest | None:
        """Return a version for as long as it is kept; raises E218. The current manifest is never remembered."""
        last = self._last
        if last is None:
            newest = _decode(self._store.get(self._key), self._key, self._store)
            if newest is None:
                return None
            manifest = self.history.find(newest.manifest, wanted)
            copy = self._read_copy(manifest)
            if copy is None and manifest is not newest.manifest:
                raise errors.no_such_version(self._kb_id, wanted, ())
            # Where no versions are kept, the current one can be read for as long as it is current.
            return self._remember(copy or newest)
        for key in (self._copy_key(last.manifest), self._key):
            if isinstance(self._store.get_if_changed(key, last.version), BlobUnchanged):
                return last
        copy = self._read_copy(last.manifest)  # a repair writes it anew
        if copy is None:
            raise errors.no_such_version(self._kb_id, wanted, ())
        return self._remember(copy)

    def require(self) -> StoredManifest:
        """Raises E201."""
        published = self.current()
        if published is None:
            raise errors.kb_uninitialised(self._kb_id)
        return published

    def first(self) -> StoredManifest | None:
        """Return the manifest if none was read before, and None otherwise. Raises E201."""
        return self.require() if self._last is None else None

    def known(self) -> StoredManifest:
        """Return the last manifest that was read, however old, for what no later one changes. Raises E201."""
        return self._last or self.require()

    def seen(self) -> StoredManifest | None:
        """Return the last manifest that was read, if any. No call to the store."""
        return self._last

    def now(self) -> datetime.datetime:
        """Return the time of the store, for what writers on different machines compare. Two calls to the store."""
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
        """Return the manifest to build on; None for a new KB, which gets its marker. Raises E237, E209."""
        published = self.current()
        if published is None:
            published = self._refuse_lost()
        if published is None:
            self.probe()
            self._store.put(first_write_key(self._kb_id), b"")
        return published

    def require_for_write(self) -> StoredManifest:
        """Return the manifest of a KB that must exist already. Raises E201, E237."""
        published = self.current() or self._refuse_lost()
        if published is None:
            raise errors.kb_uninitialised(self._kb_id)
        return published

    def _refuse_lost(self) -> StoredManifest | None:
        """Raise E237 when a manifest was published and is gone. Return the one that was published this moment, if any.

        The order matters: the writer that uploaded the listed files put its marker before, and removes it after its
        swap.
        """
        if not self.has_leftovers() or self.is_first_write_unfinished():
            return None
        published = self.current()
        if published is None:
            raise errors.manifest_lost(self._kb_id)
        return published

    def has_leftovers(self) -> bool:
        """Tell whether there are shards or copies of manifests of this KB. Two listings, of one entry each."""
        prefixes = shards_prefix(self._kb_id), versions_prefix(self._kb_id)
        return any(True for prefix in prefixes for _ in self._store.list(prefix))

    def is_first_write_unfinished(self) -> bool:
        """Tell whether the first write of the KB is running, or was interrupted before its swap."""
        if self._store.get(first_write_key(self._kb_id)) is None:
            return False
        copies = (version_in_key(info.key) for info in self._store.list(versions_prefix(self._kb_id)))
        # The second version is built on the first, which was published then.
        return not any(copy is not None and copy[0] > 1 for copy in copies)

    def refuse_past(self) -> None:
        """Raises E219."""
        if self._at is not None:
            raise errors.past_is_read_only(self._kb_id, self.require().manifest.number)

    def probe(self) -> None:
        """Raises E209. A store with a manifest in it was probed before."""
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
        """Replace the manifest. Raises E202 when another one is in its place by now, E208 when that is unknown."""
        self.refuse_past()
        self.probe()
        content = to_bytes(after)
        if self._keeps_versions:
            self._on_step("copy")
            self._store.put(self._copy_key(after), to_bytes(after.make_copy()))
        self._on_step("swap")
        try:
            return self._try_swap(before, after, content)
        except errors.ConflictError as fault:
            if self._keeps_versions and fault.code == errors.MANIFEST_CHANGED:
                with contextlib.suppress(errors.StorageError):
                    self._store.delete(self._copy_key(after))
            raise

    def _try_swap(self, before: StoredManifest | None, after: Manifest, content: bytes) -> StoredManifest:
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
                # Files of the older layout and the marker of a first write are deleted as far as that succeeds.
                for key in (*older_keys(self._kb_id), first_write_key(self._kb_id)):  # engine-23
                    with contextlib.suppress(errors.StorageError):
                        self._store.delete(key)
                return published
            if (published_before := self._settle(after, before)) is not None:
                return published_before
        raise errors.publish_unknown(self._kb_id)

    def _settle(self, after: Manifest, before: StoredManifest | None) -> StoredManifest | None:
        """Return our manifest if it is there after all, None if the old one is; raises E202 if another one is.

        A refusal says as little as silence does: our own request may have arrived twice.
        """
        try:
            published = self._read(self._store.get(self._key))
        except (errors.StorageError, errors.DataError) as fault:
            raise errors.publish_unknown(self._kb_id) from fault
        if published is not None and published.manifest.holds_commit(after.commit_id):
            return published
        if (published.version if published else None) == (before.version if before else None):
            return None
        raise errors.manifest_changed(self._kb_id)

    # Copies

    def keep(self, manifest: Manifest) -> None:
        """Store a copy of a manifest whose writer may have kept none, so that a roll-back can return to it."""
        if not self._keeps_versions:
            return
        with contextlib.suppress(errors.DataError):
            if self._read_copy(manifest) is not None:
                return
        self._store.put(self._copy_key(manifest), to_bytes(manifest.make_copy()))

    def _copy_key(self, manifest: Manifest) -> str:
        return version_key(self._kb_id, manifest.number, manifest.commit_id)

    def _read_copy(self, manifest: Manifest) -> StoredManifest | None:
        """Raises E207."""
        key = self._copy_key(manifest)
        return _decode(self._store.get(key), key, self._store)


def _decode(blob: Blob | None, key: str, store: BlobStore) -> StoredManifest | None:
    """Decode a manifest. One that arrives damaged is read once more. Raises E207."""
    if blob is None:
        return None
    try:
        return StoredManifest(from_bytes(blob.data, key), blob.version)
    except errors.DataError:
        logger.warning("manifest is read again: it is damaged", extra={"key": key})
        blob = store.get(key)
        return None if blob is None else StoredManifest(from_bytes(blob.data, key), blob.version)


class History:
    """The stored copies of the manifests of one KB."""

    def __init__(self, store: BlobStore, kb_id: str) -> None:
        self._store = store
        self._kb_id = kb_id
        self._labels: dict[str, str] = {}
        """The label of each copy that was read, by key: it never changes."""

    def copies(self, current: Manifest) -> ManifestCopies:
        """List the copies. One listing; one more request for every 64 versions."""
        stored_at = {info.key: info.modified_at for info in self._store.list(versions_prefix(self._kb_id))}
        named = ((version_in_key(key), key) for key in stored_at)
        # Other keys are not ours, and neither read nor deleted.
        keys = {name: key for name, key in named if name is not None and key == version_key(self._kb_id, *name)}
        line = tuple(ManifestCopy(key, number, stored_at[key]) for key, number in self._follow_line(current, keys))
        in_line = {copy.key for copy in line}
        stray = (key for (number, _), key in keys.items() if number <= current.number and key not in in_line)
        return ManifestCopies(line, tuple(stray))

    def _follow_line(self, current: Manifest, keys: dict[tuple[int, str], str]) -> Iterator[tuple[str, int]]:
        """Yield the keys and numbers of the copies that lead to the current manifest, the newest first."""
        commits, line, unreadable = _list_commits(current), list[str](), set[str]()
        by_number: dict[int, dict[str, str]] = {}
        for (number, commit), key in keys.items():
            by_number.setdefault(number, {})[commit] = key
        for number in sorted((number for number in by_number if number <= current.number), reverse=True):
            if number not in commits:  # a manifest names the last ones before it only
                commits = self._read_oldest_commits(line, unreadable)
            by_commit = by_number[number]
            # Beyond a gap it cannot be known any more; but the collection that made the gap removed the strays, too.
            commit = commits.get(number, next(iter(by_commit)) if len(by_commit) == 1 else "")
            if commit in by_commit:
                line.append(by_commit[commit])
                yield by_commit[commit], number

    def _read_oldest_commits(self, line: Sequence[str], unreadable: set[str]) -> dict[int, str]:
        """Return the commits that the oldest readable copy names. `unreadable`: keys that are not tried again."""
        for key in reversed(line):
            if key not in unreadable:
                manifest = self._read_or_fault(key)
                if isinstance(manifest, Manifest):
                    return _list_commits(manifest)
                unreadable.add(key)
        return {}

    def past(self, current: Manifest) -> Iterator[Manifest]:
        """Yield the kept manifests that can be read, without the current one, the newest first."""
        for _, manifest in self.read_all([copy for copy in self.copies(current).line if copy.number < current.number]):
            if isinstance(manifest, Manifest):
                yield manifest

    def read_all(self, copies: Sequence[ManifestCopy]) -> Iterator[tuple[ManifestCopy, Manifest | errors.DataError]]:
        """Yield the copies that exist, in order, each with its manifest or with the reason why it cannot be read.

        Many are read some at a time: waiting for a store, one after another, is what takes long.
        """
        with ThreadPoolExecutor(_READ_THREADS, thread_name_prefix="pair-history") as pool:
            read = map if len(copies) <= _BATCH_COPIES else pool.map
            for begin in range(0, len(copies), _BATCH_COPIES):
                batch = copies[begin : begin + _BATCH_COPIES]
                manifests = read(self._read_or_fault, [copy.key for copy in batch])
                for copy, manifest in zip(batch, manifests, strict=True):
                    if manifest is not None:
                        yield copy, manifest

    def find(self, current: Manifest, wanted: str) -> Manifest:
        """Find a version by number, else by the version of its package: the newest such. Raises E218, E207."""
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
        """Return None for a copy that is gone. A damaged one hides no other: `pair fsck` reports it."""
        try:
            return self._read(key)
        except errors.DataError as fault:
            logger.warning("a version cannot be read", extra={"key": key, "reason": fault.message})
            return fault

    def _read(self, key: str) -> Manifest | None:
        stored = _decode(self._store.get(key), key, self._store)
        return None if stored is None else stored.manifest


def _is_called(label: str, wanted: str) -> bool:
    """Tell whether `handbook 1.0.0` is meant, by `handbook 1.0.0`, `handbook@1.0.0` or `1.0.0`."""
    name, _, version = label.rpartition(" ")
    return bool(label) and wanted in {label, f"{name}@{version}", version}


def _list_commits(manifest: Manifest) -> dict[int, str]:
    """Return the commits that a manifest names, by number."""
    line = (manifest.commit_id, *manifest.recent_commits)
    return {manifest.number - offset: commit for offset, commit in enumerate(line)}


# ── records of shards that no manifest names yet ───────────────────────────────────────────────────


_CONDEMNED = b'{"condemned": true}\n'


@dataclass(frozen=True, slots=True)
class Claimed:
    key: str
    shards: tuple[ShardRef, ...]


class PendingShards:
    def __init__(self, store: BlobStore, kb_id: str, new_id: Callable[[], str]) -> None:
        self._store = store
        self._prefix = builds_prefix(kb_id)
        self._new_id = new_id

    def announce(self, part_key: str, shards: Sequence[ShardRef], dimension: int) -> str:
        """Put a record before the shards are uploaded. Return its key, which no other has or had."""
        key = f"{self._prefix}{part_key}/{self._new_id()}.json"
        self._store.put(key, _encode_record(shards, dimension, self._new_id()))
        return key

    def find(self, part_key: str) -> Claimed | None:
        """Return the shards that an earlier run, or a worker that died, made of this part, if all of them are there.

        Shards that are not complete may become so: another worker may be building them at this moment.
        """
        for info in list(self._store.list(f"{self._prefix}{part_key}/")):
            claimed = self._claim(info.key)
            if claimed is not None and all(map(self._is_whole, claimed.shards)):
                return claimed
        return None

    def is_in_order(self, key: str) -> bool:
        """Tell whether a record is there, and not condemned."""
        blob = self._store.get(key)
        return blob is not None and _decode_record(blob.data) is not None

    def _claim(self, key: str) -> Claimed | None:
        """Return None when a record is gone, condemned or unreadable. Else it counts as made just now."""
        blob = self._store.get(key)
        record = None if blob is None else _decode_record(blob.data)
        if blob is None or record is None:
            return None
        shards, dimension = record
        with contextlib.suppress(VersionMismatchError):
            self._store.put_if(key, _encode_record(shards, dimension, self._new_id()), blob.version)
            return Claimed(key, shards)
        return None

    def forget(self, key: str) -> None:
        """Delete a record whose shards are published, or of no use."""
        self._store.delete(key)

    def list_protected(self, now: datetime.datetime, keep_seconds: float) -> tuple[frozenset[str], list[str]]:
        """Return folders of shards that a build may still publish, and condemned records, to be deleted."""
        folders: set[str] = set()
        condemned: list[str] = []
        for info in list(self._store.list(self._prefix)):
            blob = self._store.get(info.key)
            if blob is None:
                continue
            record = _decode_record(blob.data)
            is_old = info.modified_at + datetime.timedelta(seconds=keep_seconds) <= now
            if blob.data == _CONDEMNED or (is_old and self._condemn(info.key, blob.version)):
                condemned.append(info.key)
            elif record is not None:
                folders |= {shard.folder for shard in record[0]}
        return frozenset(folders), condemned

    def _condemn(self, key: str, version: Version) -> bool:
        """Return False for a record that was claimed this moment."""
        try:
            self._store.put_if(key, _CONDEMNED, version)
        except VersionMismatchError:
            return False
        return True

    def _is_whole(self, shard: ShardRef) -> bool:
        stored = {info.key: info.size_bytes for info in self._store.list(f"{shard.folder}/")}
        return all(stored.get(shard.key(role)) == file.size_bytes for role, file in shard.files.items())


class _RecordJson(msgspec.Struct):
    schema_version: Literal[1]
    claim: str
    """No two are equal, so that a version of a record is one claim of it."""
    dimension: int
    shards: tuple[ShardJson, ...]


def _encode_record(shards: Iterable[ShardRef], dimension: int, claim: str) -> bytes:
    record = _RecordJson(1, claim, dimension, tuple(map(ShardJson.of, shards)))
    return json.dumps(msgspec.to_builtins(record), separators=(",", ":")).encode() + b"\n"


def _decode_record(content: bytes) -> tuple[tuple[ShardRef, ...], int] | None:
    """Return None for a record that was condemned, or that this pair does not understand."""
    try:
        record = decode_json(content, _RecordJson)
        return tuple(shard.to_ref(record.dimension) for shard in record.shards), record.dimension
    except (ValueError, OverflowError, zlib.error):
        return None
