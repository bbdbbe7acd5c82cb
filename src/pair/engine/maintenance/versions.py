"""Versions of a KB: list them, compare two, roll back to one, and end a rollback.

Invariants
    A rollback is a new manifest with the shards of an earlier one. It copies and deletes nothing.
    A comparison does not read a shard that both versions have with the same deleted documents.
    Documents with equal content hashes are equal. With different hashes, a document is changed only if its text or
    header is, because the hash also covers how a document was cut and embedded.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import structs

from pair.engine.format.manifest import Manifest, ShardRef
from pair.engine.format.shard import ListedDocument, SearchFile
from pair.engine.storage.shard_cache import ShardCache, ShardMissingError
from pair.engine.write.commit import Change, EngineContext, commit, next_moment, shard_lost
from pair.engine.write.writer import Numbers, Writer, live_mask


class ListedVersion(msgspec.Struct, frozen=True):
    number: int = msgspec.field(name="version")
    created_at: str
    made_by: str
    documents: int
    chunks: int
    shards: int
    size_bytes: int
    embedder: str
    label: str
    restored: int
    """The version that a rollback restored; 0 for none."""
    is_current: bool = msgspec.field(name="current")

    def to_json(self) -> dict[str, Any]:
        return dict(msgspec.to_builtins(self))


class Rollback(msgspec.Struct, frozen=True):
    """The result of a rollback."""

    kb_id: str
    restored: int
    manifest_version: int
    documents: int
    embedder: str
    label: str
    is_changed: bool = msgspec.field(name="changed")
    """False if the version was already current."""

    def to_json(self) -> dict[str, Any]:
        return dict(msgspec.to_builtins(self))


def list_versions(context: EngineContext) -> list[ListedVersion]:
    """Return the current version and the restorable versions, newest first. Raises E201, E207."""
    current = context.manifests.require().manifest
    listed, after = [current], current
    for manifest in context.manifests.history.past(current):
        if not (after.is_rearranged and after.number == manifest.number + 1):  # Skip a version with the same documents.
            listed.append(manifest)
        after = manifest
    same = ("number", "created_at", "made_by", "documents", "size_bytes", "embedder", "label", "restored")
    return [
        ListedVersion(
            **{name: getattr(manifest, name) for name in same},
            chunks=manifest.rows,
            shards=len(manifest.shards),
            is_current=manifest is current,
        )
        for manifest in listed
    ]


def roll_back(context: EngineContext, writer: Writer, wanted: str) -> Rollback:
    """Restore an earlier version. Raises E201, E218, and the errors of any write."""
    context.manifests.require_for_write()  # Check before the lease creates a folder for an unknown KB.

    def change(manifest: Manifest) -> Change[Manifest]:
        # Search under the lease, so that garbage collection cannot delete the version in between.
        past = context.manifests.history.find(manifest, wanted)
        if past.number == manifest.number:
            return Change(None, past)
        context.manifests.keep(manifest)
        moment = next_moment(context, manifest, past.shards)
        return Change(manifest.make_rolled_back(past, context.new_id(), moment), past)

    committed = commit(context, change, since=writer.began)
    past = committed.result
    return Rollback(
        kb_id=context.kb_id,
        restored=past.number,
        manifest_version=committed.manifest.number,
        documents=past.documents,
        embedder=past.embedder,
        label=past.label,
        is_changed=committed.manifest.number != past.number,
    )


def release(context: EngineContext, writer: Writer) -> None:
    """Allow sync to change the KB again after a rollback."""

    def change(manifest: Manifest) -> Change[None]:
        if not manifest.restored:
            return Change(None, None)
        return Change(manifest.make_released(context.new_id(), context.clock.now()), None)

    writer.commit(change)


CURRENT = "current"
_Entry = tuple[ShardRef, ListedDocument]
"""A document in a shard."""
_Pairs = npt.NDArray[np.uint64]
"""Identities as rows of two numbers."""


class DocumentChanges(msgspec.Struct, frozen=True):
    """Sorted ids of documents that differ between two versions of a KB."""

    kb_id: str
    before: int = msgspec.field(name="a")
    after: int = msgspec.field(name="b")
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)

    def to_json(self) -> dict[str, Any]:
        return dict(msgspec.to_builtins(self))


@dataclass
class ManifestDiff:
    """The differences of two manifests, with access to the texts."""

    kb_id: str
    before: int
    after: int
    _cache: ShardCache
    _old: dict[str, _Entry] = field(default_factory=dict)
    """The old version of removed and changed documents, by id."""
    _new: dict[str, _Entry] = field(default_factory=dict)
    """The new version of added and changed documents, by id."""
    _files: dict[str, SearchFile] = field(default_factory=dict)

    @property
    def changes(self) -> DocumentChanges:
        old, new = self._old.keys(), self._new.keys()
        ids = (tuple(sorted(names)) for names in (new - old, old - new, old & new))
        return DocumentChanges(self.kb_id, self.before, self.after, *ids)

    def texts(self, document_id: str) -> tuple[str | None, str | None]:
        """Return the old and the new text of a document; None for a version that lacks it. Raises E207."""
        try:
            return self._text(self._old.get(document_id)), self._text(self._new.get(document_id))
        except ShardMissingError as fault:
            raise shard_lost(fault) from fault

    def _text(self, entry: _Entry | None) -> str | None:
        return None if entry is None else self._search(entry[0]).text(entry[1].doc)

    def _search(self, shard: ShardRef) -> SearchFile:
        if shard.folder not in self._files:
            self._files[shard.folder] = self._cache.open(shard).search(0.0)
        return self._files[shard.folder]

    def add(self, old: _Entry | None, new: _Entry | None) -> None:
        """Add a document that was removed, added or stored again. Skip it if its text and header are unchanged."""
        if old is not None and new is not None:
            (old_shard, was), (new_shard, now) = old, new
            before, after = self._search(old_shard), self._search(new_shard)
            header = structs.replace(before.header(was.doc), content_hash=after.header(now.doc).content_hash)
            if header == after.header(now.doc) and before.text(was.doc) == after.text(now.doc):
                return
        self._old |= {old[1].id: old} if old is not None else {}
        self._new |= {new[1].id: new} if new is not None else {}


def compare(before: Manifest, after: Manifest, cache: ShardCache) -> ManifestDiff:
    """Compare two manifests of one KB; read the texts of changed documents only. Raises ShardMissingError, E207."""
    old, new = _list_entries(before.shards, after.shards, cache), _list_entries(after.shards, before.shards, cache)
    diff = ManifestDiff(after.kb_id, before.number, after.number, cache)
    identities = np.concatenate([old.identities, new.identities])
    order = np.lexsort(
        (identities[:, 1], identities[:, 0])
    )  # The sort is stable: of two equal ids, the old side is first.
    is_next_same = (identities[order[1:]] == identities[order[:-1]]).all(axis=1)
    firsts, seconds = order[:-1][is_next_same], order[1:][is_next_same] - len(old.lines)
    for number in np.setdiff1d(np.arange(len(old.lines)), firsts).tolist():
        diff.add(old.entry(number), None)
    for number in np.setdiff1d(np.arange(len(new.lines)), seconds).tolist():
        diff.add(None, new.entry(number))
    is_other = (old.hashes[firsts] != new.hashes[seconds]).any(axis=1)
    for first, second in zip(firsts[is_other].tolist(), seconds[is_other].tolist(), strict=True):
        diff.add(old.entry(first), new.entry(second))
    return diff


@dataclass(frozen=True, eq=False)
class _Entries:
    """Columns of documents that only one side has in the same shard."""

    shards: Sequence[ShardRef]
    cache: ShardCache
    positions: Numbers
    """Positions of shards."""
    lines: Numbers
    """Lines of their id directories."""
    identities: _Pairs
    hashes: _Pairs

    def entry(self, number: int) -> _Entry:
        shard = self.shards[self.positions[number]]
        return shard, self.cache.open(shard).ids().read_line(int(self.lines[number]))


def _list_entries(own: Sequence[ShardRef], others: Sequence[ShardRef], cache: ShardCache) -> _Entries:
    there = {shard.folder: shard for shard in others}
    numbers, pairs = np.empty(0, np.int64), np.empty((0, 2), np.uint64)
    parts: list[tuple[npt.NDArray[Any], ...]] = [(numbers, numbers, pairs, pairs)]
    for position, shard in enumerate(own):
        is_wanted = live_mask(shard)  # Live on this side, and not in the same shard on the other side.
        if shard.folder in there:
            is_wanted &= ~live_mask(there[shard.folder])
        if not is_wanted.any():
            continue
        directory = cache.open(shard).ids()
        lines = directory.find_lines(is_wanted)
        parts.append((np.full(len(lines), position, np.int64), lines, *directory.hashes_at(lines)))
    return _Entries(own, cache, *map(np.concatenate, zip(*parts, strict=True)))
