"""Versions of a KB: listed, gone back to, and let go again.

Invariants
    Going back is a new manifest that names what an earlier one named: nothing is copied, and nothing is lost by it.
Not here
    Where earlier manifests are kept: history.py.
"""

from dataclasses import dataclass
from typing import Any

from pair import errors
from pair.blobs.leases import HeldLease
from pair.engine.format.manifest import Manifest
from pair.engine.storage.manifest_store import StoredManifest
from pair.engine.write.writer import EngineContext, Writer, WriteReport


@dataclass(frozen=True, slots=True)
class ListedVersion:
    """What is told of a manifest."""

    number: int
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
    is_current: bool

    def to_json(self) -> dict[str, Any]:
        return {
            "version": self.number,
            "created_at": self.created_at,
            "made_by": self.made_by,
            "documents": self.documents,
            "chunks": self.chunks,
            "shards": self.shards,
            "size_bytes": self.size_bytes,
            "embedder": self.embedder,
            "label": self.label,
            "restored": self.restored,
            "current": self.is_current,
        }


@dataclass(frozen=True, slots=True)
class Rollback:
    """What going back did."""

    kb_id: str
    restored: int
    manifest_version: int
    documents: int
    embedder: str
    label: str
    is_changed: bool
    """False when it was the current one already."""

    def to_json(self) -> dict[str, Any]:
        return {
            "kb_id": self.kb_id,
            "restored": self.restored,
            "manifest_version": self.manifest_version,
            "documents": self.documents,
            "embedder": self.embedder,
            "label": self.label,
            "changed": self.is_changed,
        }


def list_versions(parts: EngineContext) -> list[ListedVersion]:
    """The current one and those that can be gone back to, the newest first. Raises E201, E207."""
    current = parts.publication.require().manifest
    shown, after = [_told(current, current)], current
    for each in parts.publication.history.past(current):
        if not (after.is_rearranged and after.number == each.number + 1):  # else it holds what the next one holds
            shown.append(_told(each, current))
        after = each
    return shown


def _told(manifest: Manifest, current: Manifest) -> ListedVersion:
    return ListedVersion(
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
        is_current=manifest.number == current.number,
    )


def roll_back(parts: EngineContext, writer: Writer, wanted: str) -> Rollback:
    """Raises E201, E218, and what any write raises."""
    parts.publication.require_for_write()  # before a lease makes a folder for a KB that is not there
    outcome: list[tuple[Manifest, StoredManifest]] = []

    def attempt(lease: HeldLease, before: StoredManifest | None) -> WriteReport:
        if before is None:
            raise errors.kb_uninitialised(parts.kb_id)
        # Under the lease, so that garbage collection does not take what was just found.
        past = parts.publication.history.find(before.manifest, wanted)
        published = before
        if past.number != before.manifest.number:
            parts.publication.keep(before.manifest)
            now = writer.moment_for(before.manifest, past.shards)
            published = writer.publish(lease, before, before.manifest.make_rolled_back(past, parts.new_id(), now))
        outcome[:] = [(past, published)]
        return WriteReport(manifest_version=published.manifest.number)

    writer.retried(attempt)
    past, published = outcome[0]
    return Rollback(
        kb_id=parts.kb_id,
        restored=past.number,
        manifest_version=published.manifest.number,
        documents=past.documents,
        embedder=past.embedder,
        label=past.label,
        is_changed=published.manifest.number != past.number,
    )


def release(parts: EngineContext, writer: Writer) -> None:
    """Let sync bring the KB forward again after a roll-back."""

    def attempt(lease: HeldLease, before: StoredManifest | None) -> WriteReport:
        if before is not None and before.manifest.restored:
            writer.publish(lease, before, before.manifest.make_released(parts.new_id(), parts.clock.now()))
        return WriteReport()

    writer.retried(attempt)
