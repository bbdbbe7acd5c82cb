"""Manifests of the past: a copy of each, under a name of its own, for as long as it is kept.

Invariants
    A copy is in the store before its manifest is published. So one of a write that lost is there too: what counts is
    whether its commit is in the line that leads to the current manifest.
    A copy is deleted before the first shard that only it names.
Not here
    Which are kept: rules.py. Writing copies: publication.py. Deleting them: garbage.py.
"""

import contextlib
import datetime
import logging
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from pair import errors
from pair.blobs.contract import BlobStore
from pair.engine.format.manifest import Manifest, from_bytes, version_in_key, version_key, versions_prefix

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
