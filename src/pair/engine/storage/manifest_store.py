"""The manifests of one KB in the store: the current one, swapped by compare-and-swap, and copies of earlier ones."""

import contextlib
import datetime
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from pair import errors
from pair.blobs.contract import Blob, BlobStore, BlobUnchanged, Version, VersionMismatchError
from pair.engine.format.manifest import (
    Manifest,
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
from pair.engine.format.shard_builder import BuiltShard

logger = logging.getLogger(__name__)

_MOST_DIGITS = 20
"""Of a number that somebody may mean."""
_FEW = 64
"""Copies that are not worth a thread; and so many are read ahead."""
_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class ManifestCopy:
    """Of a manifest that was published."""

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


class History:
    """The manifests of one KB."""

    def __init__(self, store: BlobStore, kb_id: str) -> None:
        self._store = store
        self._kb_id = kb_id
        self._labels: dict[str, str] = {}
        """Of copies, by key: no copy ever gets another."""

    def copies(self, current: Manifest) -> ManifestCopies:
        """One listing; one more request for every 64 versions."""
        found = {info.key: info.modified_at for info in self._store.list(versions_prefix(self._kb_id))}
        named = ((version_in_key(key), key) for key in found)
        # What else is there is not ours, and neither read nor deleted.
        listed = {each: key for each, key in named if each is not None and key == version_key(self._kb_id, *each)}
        line = tuple(ManifestCopy(key, number, found[key]) for key, number in self._line(current, listed))
        known = {copy.key for copy in line}
        stray = (key for (number, _), key in listed.items() if number <= current.number and key not in known)
        return ManifestCopies(line, tuple(stray))

    def _line(self, current: Manifest, listed: dict[tuple[int, str], str]) -> Iterator[tuple[str, int]]:
        """Keys and numbers."""
        commits, line, unreadable = _commits(current), list[str](), set[str]()
        by_number: dict[int, dict[str, str]] = {}
        for (number, commit), key in listed.items():
            by_number.setdefault(number, {})[commit] = key
        for number in sorted((each for each in by_number if each <= current.number), reverse=True):
            if number not in commits:  # a manifest names the last ones before it only
                commits = self._commits_of_oldest(line, unreadable)
            those = by_number[number]
            # Beyond a gap, nobody can tell any more; but whoever made the gap took the strays of that time, too.
            commit = commits.get(number, next(iter(those)) if len(those) == 1 else "")
            if commit in those:
                line.append(those[commit])
                yield those[commit], number

    def _commits_of_oldest(self, line: Sequence[str], unreadable: set[str]) -> dict[int, str]:
        """That the oldest of them names which can be read. `unreadable`: those that were tried, and are not again."""
        for key in reversed(line):
            if key not in unreadable:
                if (manifest := self._readable(key)) is not None:
                    return _commits(manifest)
                unreadable.add(key)
        return {}

    def past(self, current: Manifest) -> Iterator[Manifest]:
        """Those that are kept and can be read, without the current one, the newest first."""
        for _, manifest in self.read_all([copy for copy in self.copies(current).line if copy.number < current.number]):
            if isinstance(manifest, Manifest):
                yield manifest

    def read_all(self, copies: Sequence[ManifestCopy]) -> Iterator[tuple[ManifestCopy, Manifest | errors.DataError]]:
        """Those that are there, in their order, with what is wrong with those that cannot be read.

        Many are read some at a time: waiting for a store, one after another, is what takes long.
        """
        if len(copies) <= _FEW:
            yield from self._looked_at(copies, map(self._read_or_fault, copies))
            return
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="pair-history") as pool:
            for begin in range(0, len(copies), _FEW):
                some = copies[begin : begin + _FEW]
                yield from self._looked_at(some, pool.map(self._read_or_fault, some))

    def _looked_at(
        self, copies: Iterable[ManifestCopy], read: Iterable[Manifest | errors.DataError | None]
    ) -> Iterator[tuple[ManifestCopy, Manifest | errors.DataError]]:
        for copy, found in zip(copies, read, strict=True):
            if isinstance(found, errors.DataError):
                logger.warning("a version cannot be read", extra={"key": copy.key, "reason": found.message})
            if found is not None:
                yield copy, found

    def _read_or_fault(self, copy: ManifestCopy) -> Manifest | errors.DataError | None:
        try:
            return self._read(copy.key)
        except errors.DataError as fault:
            return fault

    def _readable(self, key: str) -> Manifest | None:
        """One that is damaged hides no other: `pair fsck` tells of it."""
        try:
            return self._read(key)
        except errors.DataError as fault:
            logger.warning("a version cannot be read", extra={"key": key, "reason": fault.message})
            return None

    def find(self, current: Manifest, wanted: str) -> Manifest:
        """By number, else by the version of the package that was installed then: the newest such. Raises E218, E207."""
        found = self._numbered(current, wanted) or self._labelled(current, wanted)
        if found is None:
            kept = tuple(copy.number for copy in self.copies(current).line)
            raise errors.no_such_version(self._kb_id, wanted, kept)
        return found

    def _numbered(self, current: Manifest, wanted: str) -> Manifest | None:
        if not is_number(wanted):
            return None
        number = int(wanted)
        if number == current.number:
            return current
        copy = next((each for each in self.copies(current).line if each.number == number), None)
        return self._read(copy.key) if copy is not None else None

    def _labelled(self, current: Manifest, wanted: str) -> Manifest | None:
        if is_called(current.label, wanted):
            return current
        line = [copy for copy in self.copies(current).line if copy.number < current.number]
        labels = self._labels_of(line)
        named = next((copy for copy in line if is_called(labels.get(copy.key, ""), wanted)), None)
        return self._read(named.key) if named is not None else None

    def _labels_of(self, line: Sequence[ManifestCopy]) -> dict[str, str]:
        """Of those that can be read. Each is read once, however often somebody asks."""
        known = {copy.key: self._labels[copy.key] for copy in line if copy.key in self._labels}
        for copy, manifest in self.read_all([copy for copy in line if copy.key not in known]):
            if isinstance(manifest, Manifest):
                known[copy.key] = manifest.label
        self._labels = known
        return known

    def _read(self, key: str) -> Manifest | None:
        """One that arrives damaged is read once more before it is an error."""
        with contextlib.suppress(errors.DataError):
            return self._read_once(key)
        return self._read_once(key)

    def _read_once(self, key: str) -> Manifest | None:
        blob = self._store.get(key)
        return None if blob is None else from_bytes(blob.data, key)


def is_number(wanted: str) -> bool:
    """That a version may have."""
    return wanted.isascii() and wanted.isdigit() and len(wanted) <= _MOST_DIGITS


def is_called(label: str, wanted: str) -> bool:
    """`handbook 1.0.0` is meant by `handbook 1.0.0`, `handbook@1.0.0` and `1.0.0`."""
    name, _, version = label.rpartition(" ")
    return bool(label) and wanted in {label, f"{name}@{version}", version}


def _commits(manifest: Manifest) -> dict[int, str]:
    line = (manifest.commit_id, *manifest.recent_commits)
    return {manifest.number - offset: commit for offset, commit in enumerate(line)}


_SETTLING_TRIES = 5


@dataclass(frozen=True, slots=True)
class StoredManifest:
    """A manifest as it is in the store."""

    manifest: Manifest
    version: Version


def no_step(_name: str) -> None:
    """For those who do not watch the steps of a write."""


class ManifestStore:
    """The manifest of one KB: read when it changed, swapped when nobody else did."""

    def __init__(
        self,
        store: BlobStore,
        kb_id: str,
        *,
        before_first_write: Callable[[], None],
        on_step: Callable[[str], None] = no_step,
        keeps_versions: bool = False,
        at: str | None = None,
    ) -> None:
        """`keeps_versions`: a copy of every manifest is left for later. `at`: the only version that is read."""
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
        """Whether it is one version that is read, and never the next."""
        return self._at is not None

    def at(self, wanted: str) -> "ManifestStore":
        """Of one version of the same KB."""
        past = ManifestStore(self._store, self._kb_id, before_first_write=self._before_first_write, at=wanted)
        past.history = self.history  # what is known of copies
        return past

    def current(self) -> StoredManifest | None:
        """None when nothing was ever written. One call to the store; next to nothing when nothing changed."""
        return self._current() if self._at is None else self._past(self._at)

    def _current(self) -> StoredManifest | None:
        last = self._last
        if last is None:
            blob = self._store.get(self._key)
        else:
            answer = self._store.get_if_changed(self._key, last.version)
            if isinstance(answer, BlobUnchanged):
                return last
            blob = answer
        return self._read(blob)

    def _past(self, wanted: str) -> StoredManifest | None:
        """As it was, for as long as it is kept; raises E218. What is current now is remembered at no time."""
        last = self._last
        if last is None:
            newest = self._decoded(self._store.get(self._key))
            if newest is None:
                return None
            found = self.history.find(newest.manifest, wanted)
            copy = self._copy(found)
            if copy is None and found is not newest.manifest:
                raise errors.no_such_version(self._kb_id, wanted, ())
            # Where no versions are kept, the current one is one for as long as it is current.
            return self._remember(copy or newest)
        key = version_key(self._kb_id, last.manifest.number, last.manifest.commit_id)
        for each in (key, self._key):
            if isinstance(self._store.get_if_changed(each, last.version), BlobUnchanged):
                return last
        copy = self._copy(last.manifest)  # a repair writes it anew
        if copy is None:
            raise errors.no_such_version(self._kb_id, wanted, ())
        return self._remember(copy)

    def _copy(self, manifest: Manifest) -> StoredManifest | None:
        """As it is kept. Raises E207."""
        key = version_key(self._kb_id, manifest.number, manifest.commit_id)
        blob = self._store.get(key)
        return None if blob is None else StoredManifest(from_bytes(blob.data, key), blob.version)

    def required(self) -> StoredManifest:
        """Raises E201."""
        published = self.current()
        if published is None:
            raise errors.kb_uninitialised(self._kb_id)
        return published

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

        The order matters: whoever uploaded what is listed put its marker before, and removes it after its swap.
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

    def first(self) -> StoredManifest | None:
        """The manifest, if none was read before, and None otherwise. Raises E201."""
        return self.required() if self._last is None else None

    def known(self) -> StoredManifest:
        """The last one that was read, however old; raises E201. For what no later manifest changes."""
        return self._last or self.required()

    def seen(self) -> StoredManifest | None:
        """The last one that was read, if any was; no call to the store."""
        return self._last

    def now(self) -> datetime.datetime:
        """By the clock of the store, for what writers on different machines compare. Two calls to the store."""
        key = clock_key(self._kb_id)
        self._store.put(key, b"")
        for info in self._store.list(key):
            return info.modified_at
        raise errors.store_unreachable(self._store.address, "It does not show what was just written")

    def upload(self, shards: Sequence[BuiltShard]) -> None:
        self.refuse_past()
        self.probe()
        for shard in shards:
            for role in shard.paths:
                self._on_step("upload")
                self._store.upload(shard.ref.key(role), shard.paths[role])
        self._on_step("uploaded")

    def swap(self, before: StoredManifest | None, after: Manifest) -> StoredManifest:
        """Raises E202 when another manifest is in its place by now, E208 when nobody can tell."""
        self.refuse_past()
        self.probe()
        content = to_bytes(after)
        copy = version_key(self._kb_id, after.number, after.commit_id)
        if self._keeps_versions:
            self._on_step("copy")
            self._store.put(copy, to_bytes(after.as_kept()))
        self._on_step("swap")
        try:
            return self._swapped(before, after, content)
        except errors.ConflictError as fault:
            if self._keeps_versions and fault.code == errors.MANIFEST_CHANGED:
                with contextlib.suppress(errors.StorageError):
                    self._store.delete(copy)
            raise

    def _swapped(self, before: StoredManifest | None, after: Manifest, content: bytes) -> StoredManifest:
        for _ in range(_SETTLING_TRIES):
            try:
                published = self._remember(StoredManifest(after, self._put(content, before)))
                self._remove_obsolete()
                return published  # noqa: TRY300 - what was put is published
            except VersionMismatchError:
                logger.info("swap was refused", extra={"kb": self._kb_id})
            except errors.StorageError as fault:
                logger.info("answer to a swap was lost", extra={"kb": self._kb_id, "reason": fault.message})
            if (settled := self._settled(after, before)) is not None:
                return settled
        raise errors.publish_unknown(self._kb_id)

    def keep(self, manifest: Manifest) -> None:
        """A copy of one that may have been written by somebody who keeps none, so that it can be gone back to."""
        if self._keeps_versions and not self._is_kept(manifest):
            key = version_key(self._kb_id, manifest.number, manifest.commit_id)
            self._store.put(key, to_bytes(manifest.as_kept()))

    def _is_kept(self, manifest: Manifest) -> bool:
        try:
            return self._copy(manifest) is not None
        except errors.DataError:
            return False

    def refuse_past(self) -> None:
        """Raises E219."""
        if self._at is not None:
            raise errors.past_is_read_only(self._kb_id, self.required().manifest.number)

    def _remove_obsolete(self) -> None:
        """Delete files of the older layout and the marker of a first write, as far as that succeeds."""  # engine-23
        for key in (*older_keys(self._kb_id), first_write_key(self._kb_id)):
            with contextlib.suppress(errors.StorageError):
                self._store.delete(key)

    def _put(self, content: bytes, before: StoredManifest | None) -> Version:
        if before is None:
            return self._store.create(self._key, content)
        return self._store.put_if(self._key, content, before.version)

    def _settled(self, after: Manifest, before: StoredManifest | None) -> StoredManifest | None:
        """Ours if it is there after all, None if nothing is there yet; raises E202 if it is somebody else's.

        A refusal says as little as silence does: our own request may have arrived twice.
        """
        try:
            found = self._read(self._store.get(self._key))
        except (errors.StorageError, errors.DataError) as fault:
            raise errors.publish_unknown(self._kb_id) from fault
        if found is not None and found.manifest.holds_commit(after.commit_id):
            return found
        if (found.version if found else None) == (before.version if before else None):
            return None
        raise errors.manifest_changed(self._kb_id)

    def probe(self) -> None:
        """Raises E209. A store with a manifest in it has shown before what it can do."""
        if self._last is None and not self._is_probed:
            self._before_first_write()
            self._is_probed = True

    def _read(self, blob: Blob | None) -> StoredManifest | None:
        published = self._decoded(blob)
        return None if published is None else self._remember(published)

    def _decoded(self, blob: Blob | None) -> StoredManifest | None:
        try:
            return self._decoded_once(blob)
        except errors.DataError:
            logger.warning("manifest is read again: it is damaged", extra={"kb": self._kb_id})
            return self._decoded_once(self._store.get(self._key))

    def _decoded_once(self, blob: Blob | None) -> StoredManifest | None:
        return None if blob is None else StoredManifest(from_bytes(blob.data, self._key), blob.version)

    def _remember(self, published: StoredManifest) -> StoredManifest:
        with self._lock:
            if self._last is None or published.manifest.number >= self._last.manifest.number:
                self._last = published
        return published
