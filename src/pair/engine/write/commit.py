"""Commits of changes to a KB: take the lease, read, change, swap; retry after a conflict with another writer.

The steps, as `on_step` reports them before they begin: lease, read, (steps of the change), swap, swapped (the lease is
released), released.
Invariants
    A commit that fails does not change the KB. The shards that it uploaded are garbage.
    A change that was decided before a rollback is not committed after it (`since`): it would undo part of the rollback.
"""

import contextlib
import datetime
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from pair import errors
from pair.blobs.contract import Leases
from pair.blobs.leases import HeldLease, LeaseQueue
from pair.clock import Clock
from pair.engine.format.manifest import Cause, Manifest, ShardRef, lease_name
from pair.engine.settings import EngineSettings
from pair.engine.storage.manifest_store import ManifestStore, StoredManifest
from pair.engine.storage.shard_cache import ShardCache, ShardMissingError

logger = logging.getLogger(__name__)

_FINAL = frozenset({errors.PUBLISH_UNKNOWN, errors.BUILD_LOST, errors.ROLLED_BACK_MEANWHILE, errors.LEASE_HELD})
"""Codes of conflicts that another attempt does not solve."""

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class EngineContext:
    """The stores, settings and hooks that all operations of one KB share."""

    kb_id: str
    settings: EngineSettings
    manifests: ManifestStore
    cache: ShardCache
    leases: Leases
    clock: Clock
    new_id: Callable[[], str]
    pause: Callable[[int], None]
    """A function that waits before the n-th retry."""
    on_step: Callable[[str], None]
    _queue: LeaseQueue = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_queue", LeaseQueue(self.leases, self.clock, self.pause))

    @contextlib.contextmanager
    def hold_lease(self, *, refusals: int = 0) -> Iterator[HeldLease]:
        """Hold the write lease while the block runs. `refusals`: attempts that are used up. Raises E203, E206."""
        with self._queue.hold(
            lease_name(self.kb_id),
            seconds=self.settings.lease_seconds,
            attempts=max(self.settings.write_attempts - refusals, 1),
            before_try=lambda: self.on_step("lease"),
        ) as lease:
            yield lease


@dataclass(frozen=True, slots=True)
class Change(Generic[Result]):
    """The next manifest, or None for no change; and a result for the caller."""

    manifest: Manifest | None
    result: Result


@dataclass(frozen=True, slots=True)
class Committed(Generic[Result]):
    manifest: Manifest
    """The current manifest after the commit."""
    result: Result
    is_changed: bool
    conflicts: int = 0


ChangeMaker = Callable[[Manifest], Change[Result]]
"""A function that makes the next manifest from the current one. Every attempt calls it again, under the lease."""


def commit(
    context: EngineContext, change: ChangeMaker[Result], *, empty: Manifest | None = None, since: int | None = None
) -> Committed[Result]:
    """Make a change under the lease and publish it, in several attempts if necessary.

    `empty`: the manifest that the first write of a new KB changes. Without it, a new KB is refused (E201).
    `since`: the version that was current when the change was decided. A later rollback refuses the change (E236).
    Raises E237; E202, E203, E210 after all attempts; E206, E207, E208, E219.
    """
    context.manifests.refuse_past()
    conflicts = 0
    while True:
        try:
            with context.hold_lease(refusals=conflicts) as lease:
                conflicts += lease.refusals
                committed = commit_under(lease, context, change, empty=empty, since=since)
            context.on_step("released")
            evict_dropped(context)
            return replace(committed, conflicts=conflicts)
        except (errors.ConflictError, ShardMissingError) as fault:
            conflicts += 1
            is_final = isinstance(fault, errors.ConflictError) and fault.code in _FINAL
            if is_final or conflicts >= context.settings.write_attempts:
                if isinstance(fault, ShardMissingError):
                    raise shard_lost(fault) from fault
                raise
            logger.info("write conflict", extra={"kb": context.kb_id, "attempt": conflicts, "reason": str(fault)})
            context.pause(conflicts)


def commit_under(
    lease: HeldLease,
    context: EngineContext,
    change: ChangeMaker[Result],
    *,
    empty: Manifest | None = None,
    since: int | None = None,
) -> Committed[Result]:
    """Make one attempt to commit under a held lease; parameters and errors are those of `commit`.

    Raises ShardMissingError if garbage collection deleted a shard that the change needs; a retry may succeed.
    """
    context.on_step("read")
    manifests = context.manifests
    before: StoredManifest | None
    if empty is None:
        before = manifests.require_for_write()
        manifest = before.manifest
    else:
        before = manifests.read_for_write()
        manifest = before.manifest if before else empty
    refuse_rolled_back(manifest, since)
    context.cache.keep_only(manifest.folders)
    try:
        wanted = change(manifest)
    except ShardMissingError as fault:
        refuse_lost_shard(context, before, fault)
        raise
    if wanted.manifest is None:
        return Committed(manifest, wanted.result, is_changed=False)
    lease.check()
    published = manifests.swap(before, wanted.manifest)
    context.on_step("swapped")
    context.cache.keep_within_limits()
    return Committed(published.manifest, wanted.result, is_changed=True)


def refuse_rolled_back(manifest: Manifest, since: int | None) -> None:
    """Raise E236 if the KB was rolled back after this version."""
    if since is not None and manifest.rolled_back > since:
        raise errors.rolled_back_meanwhile(manifest.kb_id, since, manifest.rolled_back)


def refuse_lost_shard(context: EngineContext, before: StoredManifest | None, fault: ShardMissingError) -> None:
    """Raise E207 if the manifest that names a missing shard is still current: then the shard is lost."""
    now = context.manifests.current()
    if before is not None and now is not None and now.version == before.version:
        raise shard_lost(fault) from fault


def shard_lost(fault: ShardMissingError) -> errors.DataError:
    return errors.stored_data_damaged(str(fault), "it is no longer in the store")


def evict_dropped(context: EngineContext) -> None:
    """Evict the shards that the current manifest does not name from the cache."""
    context.cache.keep_only(context.manifests.known().manifest.folders)


def next_manifest(
    context: EngineContext, manifest: Manifest, shards: Sequence[ShardRef], cause: Cause, commit_id: str | None = None
) -> Manifest:
    """Return the manifest after this one, with these shards."""
    return manifest.make_next(commit_id or context.new_id(), next_moment(context, manifest, shards), shards, cause)


def next_moment(context: EngineContext, manifest: Manifest, shards: Sequence[ShardRef]) -> datetime.datetime:
    """Return the time of the next manifest. If it drops a shard, use the store's clock, which all writers share."""
    return context.manifests.now() if manifest.drops(shards) else context.clock.now()
