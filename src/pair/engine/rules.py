"""Decisions about shards: which to query, merge, compact, delete and evict.

Invariants
    Nothing here reads a file, a clock or the network: all observations are arguments.
"""

import datetime
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pair.engine.format.manifest import Manifest, ShardRef
from pair.engine.settings import EngineSettings

# ── routing ────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Ranked:
    """A shard of a run, with its distance from the query."""

    position: int
    """Position in the manifest."""
    distance: float
    """Distance of the nearest centroid."""
    least_distance: float
    """Lower bound of the distance of every row."""


@dataclass(frozen=True, slots=True)
class AskingOrder:
    first: tuple[int, ...]
    """Shards that are always searched; the nearest of each run first."""
    fanned_out: tuple[Ranked, ...] = ()
    """Shards that are always searched after the first group, one by one, nearest first. They are fetched together."""
    further: tuple[Ranked, ...] = ()
    """Shards that are searched while they are likely to have a nearer row."""
    rest: tuple[Ranked, ...] = ()
    """Shards beyond the cap, searched while they can have a nearer row, if `may_exceed_cap`."""


def order_shards(
    shards: Sequence[ShardRef], ranked: Mapping[str, Sequence[Ranked]], settings: EngineSettings, *, ask_all: bool
) -> AskingOrder:
    """Order shards for a vector query. `ranked`: the shards of each run. Shards outside a run are always searched."""
    positions = range(len(shards))
    if ask_all or len(shards) <= settings.small_kb_max_shards:
        return AskingOrder(tuple(positions))
    in_runs = {shard.position for run in ranked.values() for shard in run}
    first = [position for position in positions if position not in in_runs]
    near: list[int] = []
    fanned_out: list[Ranked] = []
    further: list[Ranked] = []
    rest: list[Ranked] = []
    fanout = settings.query_shard_fanout
    cap = max(fanout, settings.query_shard_fanout_adaptive_max)
    for run in ranked.values():
        order = sorted(run, key=_nearness)
        near += [shard.position for shard in order[:1]]
        fanned_out += order[1:fanout]
        further += order[fanout:cap]
        rest += order[cap:]
    rest.sort(key=lambda shard: (shard.least_distance, shard.position))
    return AskingOrder(
        (*near, *first), tuple(sorted(fanned_out, key=_nearness)), tuple(sorted(further, key=_nearness)), tuple(rest)
    )


def _nearness(shard: Ranked) -> tuple[float, int]:
    return shard.distance, shard.position


def may_exceed_cap(*, found: int, wanted: int, is_filtered: bool) -> bool:
    """Return whether shards beyond the cap may be searched: with a filter, or if too few rows were found."""
    return is_filtered or found < wanted


LIKELY_REACH = 1.1
"""A shard is skipped if its centroid is farther than the last hit by this factor. In many dimensions, few vectors are
much nearer to the query than their centroid."""


def is_likely_nearer(shard: Ranked, farthest_hit: float | None) -> bool:
    """Return whether a shard probably has a nearer row. `farthest_hit`: a distance; None if there are too few hits."""
    return farthest_hit is None or shard.distance < LIKELY_REACH * farthest_hit


def could_be_nearer(shard: Ranked, farthest_hit: float | None) -> bool:
    """Return whether a shard can have a nearer row at all."""
    return farthest_hit is None or shard.least_distance < farthest_hit


# ── splitting and merging ──────────────────────────────────────────────────────────────────────────

TIER_WIDTH = 8
"""Number of shards of one size that are merged into one of the next size."""


def _size_tier(rows: int) -> int:
    return int(math.log(max(rows, 1), TIER_WIDTH) + 1e-9)


def choose_merge(tail: Sequence[ShardRef], new_rows: int) -> list[ShardRef]:
    """Choose the shards that a write merges with its new rows, so that small shards stay few.

    Each merge moves a row up by one tier, so n writes cost n·log n.
    """
    by_tier: dict[int, list[ShardRef]] = {}
    for shard in tail:
        by_tier.setdefault(_size_tier(shard.live_rows), []).append(shard)
    taken: list[ShardRef] = []
    rows = new_rows
    tier = _size_tier(rows)
    while len(by_tier.get(tier, ())) >= TIER_WIDTH - 1:
        for lower in [other for other in by_tier if other <= tier]:
            members = by_tier.pop(lower)
            taken += members
            rows += sum(shard.live_rows for shard in members)
        tier = _size_tier(rows)
    return taken


def count_cuts(rows: int, size_bytes: int, settings: EngineSettings) -> int:
    """Return the number of shards to cut these rows into."""
    if rows <= settings.shard_trigger_vector_rows and size_bytes <= settings.shard_trigger_bytes:
        return 1
    by_size = size_bytes / settings.target_shard_bytes
    by_rows = rows / settings.max_vector_rows_per_shard
    return max(1, min(math.ceil(max(by_size, by_rows)), rows))


CompactionReason = Literal["no_compaction_debt", "size_tier", "tombstone_pressure", "keywords_missing"]


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    reason: CompactionReason
    shards: tuple[ShardRef, ...]
    """Shards to replace by shards of their live documents."""


def plan_compaction(manifest: Manifest, settings: EngineSettings, *, everything: bool = False) -> CompactionPlan:
    """Choose the shards to compact.

    Runs are merged up to the largest that is at most twice as large as all smaller ones together. So a rewritten row
    is always in a run that grows by half or more, and a small addition does not rewrite a large KB. Shards of a
    package are not compacted: an update of the package then downloads only new shards.
    """
    own = [shard for shard in manifest.shards if not shard.origin]
    if everything:
        return CompactionPlan("no_compaction_debt", ()) if _is_tidy(own) else CompactionPlan("size_tier", tuple(own))
    runs = _runs_by_size(own)
    is_many = len(own) >= settings.compaction_min_shard_count
    count = _runs_worth_merging([_rows(run) for run in runs]) if is_many else 0
    if count:
        return CompactionPlan("size_tier", tuple(shard for run in runs[:count] for shard in run))
    worn = tuple(shard for shard in own if shard.tombstone_ratio >= settings.compaction_tombstone_ratio)
    if worn:
        return CompactionPlan("tombstone_pressure", worn)
    old = tuple(shard for shard in own if "keywords" not in shard.files)
    return CompactionPlan("keywords_missing", old) if old else CompactionPlan("no_compaction_debt", ())


def _runs_worth_merging(rows: Sequence[int]) -> int:
    """Count the smallest runs to merge; 0 for none. `rows`: rows of each run, ascending."""
    smaller = list(itertools.accumulate(rows))
    return max((number + 1 for number in range(1, len(rows)) if rows[number] <= 2 * smaller[number - 1]), default=0)


def _is_tidy(shards: Sequence[ShardRef]) -> bool:
    tail = [shard for shard in shards if not shard.run]
    is_whole = not any(shard.gone or "keywords" not in shard.files for shard in shards)
    return len(_runs_by_size(shards)) <= 1 and len(tail) <= 1 and is_whole


def _runs_by_size(shards: Sequence[ShardRef]) -> list[list[ShardRef]]:
    """Group shards by run. Each unclustered shard is its own run."""
    runs: dict[str, list[ShardRef]] = {}
    for shard in shards:
        runs.setdefault(shard.run or shard.folder, []).append(shard)
    return sorted(runs.values(), key=_rows)


def _rows(shards: Iterable[ShardRef]) -> int:
    return sum(shard.live_rows for shard in shards)


# ── re-embedding ───────────────────────────────────────────────────────────────────────────────────

MOST_ROWS_UNDER_LEASE = 2_000
"""Maximum number of chunks to embed and store while other writers wait."""


def group_for_reembedding(shards: Sequence[ShardRef]) -> list[list[ShardRef]]:
    """Group the shards whose documents are clustered together."""
    return _runs_by_size([shard for shard in shards if shard.live_documents])


def may_finish_under_lease(late: Iterable[ShardRef], *, is_last_round: bool) -> bool:
    """Return whether the late shards are small enough to embed under the lease; True in the last round."""
    return is_last_round or _rows(late) <= MOST_ROWS_UNDER_LEASE


# ── garbage collection ─────────────────────────────────────────────────────────────────────────────


def find_garbage(
    manifest: Manifest, stored: Mapping[str, datetime.datetime], now: datetime.datetime, grace_seconds: float
) -> frozenset[str]:
    """Return the folders to delete. `stored`: the time of the last write to each existing folder.

    The grace period keeps a dropped shard for slow readers, and an unpublished shard for its writer. Without a grace
    period, no clock is used.
    """
    live = {shard.folder for shard in manifest.shards}
    dropped_at = {drop.folder: datetime.datetime.fromisoformat(drop.dropped_at) for drop in manifest.dropped}
    grace = datetime.timedelta(seconds=grace_seconds)
    return frozenset(
        folder
        for folder, written_at in stored.items()
        if folder not in live and (not grace or max(written_at, dropped_at.get(folder, written_at)) <= now - grace)
    )


_WORTH_FORGETTING = 100
"""Number of old entries that justify writing a new manifest without them."""


def find_old_drops(
    manifest: Manifest, now: datetime.datetime, grace_seconds: float, *, is_swapped: bool
) -> frozenset[str]:
    """Return the dropped folders whose grace period is over; a few are not worth a write unless `is_swapped`."""
    until = now - datetime.timedelta(seconds=grace_seconds)
    over = frozenset(
        drop.folder for drop in manifest.dropped if datetime.datetime.fromisoformat(drop.dropped_at) <= until
    )
    return over if is_swapped or len(over) >= _WORTH_FORGETTING else frozenset()


@dataclass(frozen=True, slots=True)
class PastVersion:
    number: int
    replaced_at: datetime.datetime
    """When the next version became current."""
    is_repeated: bool
    """Whether the next version has the same documents."""


def choose_versions(past: Sequence[PastVersion], settings: EngineSettings, now: datetime.datetime) -> frozenset[int]:
    """Choose the versions to keep. `past`: newest first. Versions with the documents of the next do not count."""
    distinct = [version for version in past if not version.is_repeated]
    since = now - datetime.timedelta(days=settings.keep_days)
    return frozenset(
        version.number
        for place, version in enumerate(distinct)
        if place < settings.keep_versions or (settings.keep_days and version.replaced_at >= since)
    )


# ── eviction ───────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class CachedShard:
    name: str
    size_bytes: int
    idle_seconds: float
    """Seconds since the last use."""


def choose_evictions(
    cached: Sequence[CachedShard], *, max_bytes: int, ttl_seconds: float, wanted_bytes: int = 0
) -> tuple[list[CachedShard], list[CachedShard]]:
    """Return the expired shards, and the shards to evict for room, least recently used first."""
    old = [entry for entry in cached if ttl_seconds and entry.idle_seconds > ttl_seconds]
    if not max_bytes:
        return old, []
    kept = [entry for entry in cached if entry not in old]
    excess = sum(entry.size_bytes for entry in kept) + wanted_bytes - max_bytes
    crowded: list[CachedShard] = []
    for entry in sorted(kept, key=lambda entry: (-entry.idle_seconds, entry.name)):
        if excess <= 0:
            break
        crowded.append(entry)
        excess -= entry.size_bytes
    return old, crowded
