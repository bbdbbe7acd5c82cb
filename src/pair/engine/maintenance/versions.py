"""Versions of a KB: list them, roll back to one, and end a rollback.

Invariants
    A rollback is a new manifest that names what an earlier one named: nothing is copied, and nothing is lost by it.
"""

from dataclasses import asdict, dataclass
from typing import Any

from pair.engine.format.manifest import Manifest
from pair.engine.write.commit import Change, EngineContext, commit, next_moment
from pair.engine.write.writer import Writer


@dataclass(frozen=True, slots=True)
class ListedVersion:
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
        fields = asdict(self)
        number, is_current = fields.pop("number"), fields.pop("is_current")
        return {"version": number, **fields, "current": is_current}


@dataclass(frozen=True, slots=True)
class Rollback:
    """What a rollback did."""

    kb_id: str
    restored: int
    manifest_version: int
    documents: int
    embedder: str
    label: str
    is_changed: bool
    """False when the version was current already."""

    def to_json(self) -> dict[str, Any]:
        fields = asdict(self)
        is_changed = fields.pop("is_changed")
        return {**fields, "changed": is_changed}


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
