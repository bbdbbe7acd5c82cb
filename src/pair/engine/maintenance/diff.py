"""What differs between two manifests: documents added, removed and changed.

Invariants
    Shards that both name with the same documents gone are not looked at, whatever is in them.
    A document with the same content hash on both sides is the same. One with another is changed only if anything of it
    is: a hash also knows how a document was cut and embedded.
Not here
    What a manifest of the past is called: history.py. Showing texts: the caller's business.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pair import errors
from pair.engine.format.manifest import Manifest, ShardRef
from pair.engine.format.shard import SearchFile
from pair.engine.storage.shard_cache import ShardCache, ShardMissingError

CURRENT = "current"
"""What is meant by no number."""

_Pairs = npt.NDArray[np.uint64]
"""Rows of two numbers."""
_Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class DocumentChanges:
    """Between two versions of a KB: ids of documents, sorted."""

    kb_id: str
    before: int
    after: int
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)

    def to_json(self) -> dict[str, Any]:
        return {
            "kb_id": self.kb_id,
            "a": self.before,
            "b": self.after,
            "added": list(self.added),
            "removed": list(self.removed),
            "changed": list(self.changed),
        }


@dataclass(frozen=True, slots=True)
class _EntryLocation:
    shard: ShardRef
    doc: int


@dataclass
class ManifestDiff:
    """Of two manifests, with what it takes to look at the texts."""

    kb_id: str
    before: int
    after: int
    _cache: ShardCache
    _old: dict[str, _EntryLocation] = field(default_factory=dict)
    """Of documents that are gone, or are another now."""
    _new: dict[str, _EntryLocation] = field(default_factory=dict)
    _files: dict[str, SearchFile] = field(default_factory=dict)

    @property
    def changes(self) -> DocumentChanges:
        old, new = self._old.keys(), self._new.keys()
        parts = (new - old, old - new, old & new)
        return DocumentChanges(self.kb_id, self.before, self.after, *(tuple(sorted(each)) for each in parts))

    def texts(self, document_id: str) -> tuple[str | None, str | None]:
        """Before and after; None where there is no such document. Raises E207."""
        try:
            return self._text(self._old.get(document_id)), self._text(self._new.get(document_id))
        except ShardMissingError as fault:
            raise errors.stored_data_damaged(str(fault), "it is not in the store any more") from fault

    def _text(self, place: _EntryLocation | None) -> str | None:
        return None if place is None else self._search(place.shard).text(place.doc)

    def _search(self, shard: ShardRef) -> SearchFile:
        if shard.folder not in self._files:
            self._files[shard.folder] = self._cache.open(shard).search(0.0)
        return self._files[shard.folder]

    def is_same(self, old: _EntryLocation, new: _EntryLocation) -> bool:
        """Whether text and everything else that its owner gave are, however it was cut and embedded."""
        before, after = self._search(old.shard), self._search(new.shard)
        header = replace(before.header(old.doc), content_hash=after.header(new.doc).content_hash)
        return header == after.header(new.doc) and before.text(old.doc) == after.text(new.doc)

    def note(self, name: str, old: _EntryLocation | None, new: _EntryLocation | None) -> None:
        if old is not None:
            self._old[name] = old
        if new is not None:
            self._new[name] = new


def compare(before: Manifest, after: Manifest, cache: ShardCache) -> ManifestDiff:
    """Of one KB. Reads id directories of shards that differ, and the texts of documents whose hashes do.

    Raises ShardMissingError, E207.
    """
    old, new = _entries(before.shards, after.shards, cache), _entries(after.shards, before.shards, cache)
    found = ManifestDiff(after.kb_id, before.number, after.number, cache)
    identities = np.concatenate([old.identities, new.identities])
    order = np.lexsort((identities[:, 1], identities[:, 0]))  # stable: of two that are the same, the older is first
    is_next_same = (identities[order[1:]] == identities[order[:-1]]).all(axis=1)
    firsts, seconds = order[:-1][is_next_same], order[1:][is_next_same] - len(old.lines)
    for number in np.setdiff1d(np.arange(len(old.lines)), firsts).tolist():
        found.note(old.name(number), old.place(number), None)
    for number in np.setdiff1d(np.arange(len(new.lines)), seconds).tolist():
        found.note(new.name(number), None, new.place(number))
    is_other = (old.hashes[firsts] != new.hashes[seconds]).any(axis=1)
    for first, second in zip(firsts[is_other].tolist(), seconds[is_other].tolist(), strict=True):
        old_place, new_place = old.place(first), new.place(second)
        if not found.is_same(old_place, new_place):
            found.note(new.name(second), old_place, new_place)
    return found


@dataclass(frozen=True, eq=False)
class _Entries:
    """Documents that only one side has where it has them, in columns."""

    shards: Sequence[ShardRef]
    cache: ShardCache
    positions: _Numbers
    """Of shards."""
    lines: _Numbers
    """Of their id directories."""
    identities: _Pairs
    hashes: _Pairs

    def name(self, number: int) -> str:
        directory = self.cache.open(self.shards[self.positions[number]]).ids()
        return directory.read_line(int(self.lines[number])).id

    def place(self, number: int) -> _EntryLocation:
        shard = self.shards[self.positions[number]]
        return _EntryLocation(shard, int(self.cache.open(shard).ids().numbers_at(self.lines[number : number + 1])[0]))


def _entries(own: Sequence[ShardRef], others: Sequence[ShardRef], cache: ShardCache) -> _Entries:
    there = {shard.folder: shard for shard in others}
    nothing = np.empty((0, 2), np.uint64)
    positions, lines, identities, hashes = [np.empty(0, np.int64)], [np.empty(0, np.int64)], [nothing], [nothing]
    for position, shard in enumerate(own):
        wanted = _only_here(shard, there.get(shard.folder))
        if wanted is None or not wanted.any():
            continue
        directory = cache.open(shard).ids()
        found = directory.find_lines(wanted)
        of_these = directory.hashes_at(found)
        positions.append(np.full(len(found), position, np.int64))
        lines.append(found)
        identities.append(of_these[0])
        hashes.append(of_these[1])
    places = np.concatenate(positions), np.concatenate(lines)
    return _Entries(own, cache, *places, np.concatenate(identities), np.concatenate(hashes))


def _only_here(shard: ShardRef, other: ShardRef | None) -> npt.NDArray[np.bool_] | None:
    """Which documents are live in this shard and not in the same one of the other side, by number; None for none."""
    live = np.ones(shard.documents, np.bool_) if shard.tombstones is None else ~shard.tombstones
    if other is None:
        return live
    return None if other.tombstones is None else live & other.tombstones
