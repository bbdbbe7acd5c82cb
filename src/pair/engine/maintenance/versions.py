"""Versions of a KB: list them, compare two, roll back to one, and end a rollback.

Invariants
    A rollback is a new manifest that names what an earlier one named: nothing is copied, and nothing is lost by it.
    A comparison does not read a shard that both versions name with the same documents deleted.
    A document with the same content hash on both sides is the same. One with another hash is changed only if its
    text or header is: a hash also covers how a document was cut and embedded.
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
    """The version that it put back; 0 for none."""
    is_current: bool = msgspec.field(name="current")

    def to_json(self) -> dict[str, Any]:
        return dict(msgspec.to_builtins(self))


class Rollback(msgspec.Struct, frozen=True):
    """What a rollback did."""

    kb_id: str
    restored: int
    manifest_version: int
    documents: int
    embedder: str
    label: str
    is_changed: bool = msgspec.field(name="changed")
    """False when the version was current already."""

    def to_json(self) -> dict[str, Any]:
        return dict(msgspec.to_builtins(self))


def list_versions(context: EngineContext) -> list[ListedVersion]:
    """Return the current version and those that a rollback can restore, the newest first. Raises E201, E207."""
    current = context.manifests.require().manifest
    listed, after = [current], current
    for manifest in context.manifests.history.past(current):
        if not (after.is_rearranged and after.number == manifest.number + 1):  # else it holds what the next one holds
            listed.append(manifest)
        after = manifest
    return [
        ListedVersion(
            number=manifest.number,
            created_at=manifest.created_at,
            made_by=manifest.made_by,
            documents=manifest.documents,
            chunks=manifest.rows,
            shards=len(manifest.shards),
            size_bytes=manifest.size_bytes,
            embedder=manifest.embedder,
            label=manifest.label,
            restored=manifest.restored,
            is_current=manifest is current,
        )
        for manifest in listed
    ]


def roll_back(context: EngineContext, writer: Writer, wanted: str) -> Rollback:
    """Raises E201, E218, and what any write raises."""
    context.manifests.require_for_write()  # before a lease makes a folder for a KB that does not exist

    def change(manifest: Manifest) -> Change[Manifest]:
        # Under the lease, so that garbage collection does not take what was just found.
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
    """Let sync bring the KB forward again after a rollback."""

    def change(manifest: Manifest) -> Change[None]:
        if not manifest.restored:
            return Change(None, None)
        return Change(manifest.make_released(context.new_id(), context.clock.now()), None)

    writer.commit(change)


CURRENT = "current"
"""Names the current version."""

_Entry = tuple[ShardRef, ListedDocument]
"""A document in a shard."""
_Pairs = npt.NDArray[np.uint64]
"""Rows of two numbers."""


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
    """The differences of two manifests, and access to the texts."""

    kb_id: str
    before: int
    after: int
    _cache: ShardCache
    _old: dict[str, _Entry] = field(default_factory=dict)
    """Documents that were removed or changed, as they were, by id."""
    _new: dict[str, _Entry] = field(default_factory=dict)
    """Documents that were added or changed, as they are, by id."""
    _files: dict[str, SearchFile] = field(default_factory=dict)

    @property
    def changes(self) -> DocumentChanges:
        old, new = self._old.keys(), self._new.keys()
        ids = (tuple(sorted(names)) for names in (new - old, old - new, old & new))
        return DocumentChanges(self.kb_id, self.before, self.after, *ids)

    def texts(self, document_id: str) -> tuple[str | None, str | None]:
        """Return the text before and after; None where there is no such document. Raises E207."""
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
        """Note a document that was removed, added, or stored again; one with the same text and header is no change."""
        if old is not None and new is not None:
            (old_shard, was), (new_shard, now) = old, new
            before, after = self._search(old_shard), self._search(new_shard)
            header = structs.replace(before.header(was.doc), content_hash=after.header(now.doc).content_hash)
            if header == after.header(now.doc) and before.text(was.doc) == after.text(now.doc):
                return
        self._old |= {old[1].id: old} if old is not None else {}
        self._new |= {new[1].id: new} if new is not None else {}


def compare(before: Manifest, after: Manifest, cache: ShardCache) -> ManifestDiff:
    """Compare two manifests of one KB.

    Reads id directories of shards that differ, and the texts of documents whose hashes do. Raises ShardMissingError,
    E207.
    """
    old, new = _list_entries(before.shards, after.shards, cache), _list_entries(after.shards, before.shards, cache)
    diff = ManifestDiff(after.kb_id, before.number, after.number, cache)
    identities = np.concatenate([old.identities, new.identities])
    order = np.lexsort((identities[:, 1], identities[:, 0]))  # stable: of two that are the same, the older is first
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
    """Documents that only one side has in their shards, in columns."""

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
    nothing = np.empty((0, 2), np.uint64)
    positions, lines, identities, hashes = [np.empty(0, np.int64)], [np.empty(0, np.int64)], [nothing], [nothing]
    for position, shard in enumerate(own):
        is_wanted = live_mask(shard)  # here, and not in the same shard on the other side
        if shard.folder in there:
            is_wanted &= ~live_mask(there[shard.folder])
        if not is_wanted.any():
            continue
        directory = cache.open(shard).ids()
        own_lines = directory.find_lines(is_wanted)
        own_identities, own_hashes = directory.hashes_at(own_lines)
        positions.append(np.full(len(own_lines), position, np.int64))
        lines.append(own_lines)
        identities.append(own_identities)
        hashes.append(own_hashes)
    return _Entries(
        own,
        cache,
        positions=np.concatenate(positions),
        lines=np.concatenate(lines),
        identities=np.concatenate(identities),
        hashes=np.concatenate(hashes),
    )
