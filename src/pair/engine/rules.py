"""What is decided about shards: which to ask, to merge, to compact, to collect, to evict.

Invariants
    Nothing here reads a file, a clock or the network: what was observed is an argument.
"""

import datetime
import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pair import errors
from pair.engine.format.manifest import Manifest, ShardRef
from pair.engine.settings import EngineSettings

_KB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def check_kb_id(kb_id: str) -> str:
    """Raises E212."""
    if not isinstance(kb_id, str) or not _KB_ID.fullmatch(kb_id):
        raise errors.kb_id_invalid(kb_id)
    return kb_id


# ── asking ─────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Ranked:
    """A shard of a clustering, with how near its documents are and could be."""

    position: int
    """In the manifest."""
    distance: float
    """To its nearest centroid."""
    least_distance: float
    """That anything in it can have."""


@dataclass(frozen=True, slots=True)
class AskingOrder:
    first: tuple[int, ...]
    """Asked in any case; the nearest of each run before others."""
    fanned_out: tuple[Ranked, ...] = ()
    """Asked in any case as well, one after another, the nearest first; fetched together."""
    further: tuple[Ranked, ...] = ()
    """Asked while likely to hold something nearer; fetched when they are asked, unless many rows are wanted."""
    rest: tuple[Ranked, ...] = ()
    """Asked while they could hold something nearer, where the cap on shards must hide nothing: `may_exceed_cap`."""


def order_shards(
    shards: Sequence[ShardRef], ranked: Mapping[str, Sequence[Ranked]], policy: EngineSettings, *, ask_all: bool
) -> AskingOrder:
    """`ranked`: the shards of each run. A shard that belongs to none, or has no centroid, is always asked."""
    positions = range(len(shards))
    if ask_all or len(shards) <= policy.small_kb_max_shards:
        return AskingOrder(tuple(positions))
    in_runs = {each.position for run in ranked.values() for each in run}
    first = [position for position in positions if position not in in_runs]
    near: list[int] = []
    fanned_out: list[Ranked] = []
    further: list[Ranked] = []
    rest: list[Ranked] = []
    cap = max(policy.query_shard_fanout, policy.query_shard_fanout_adaptive_max)
    for run in ranked.values():
        order = sorted(run, key=_nearness)
        near += [each.position for each in order[:1]]
        fanned_out += order[1 : policy.query_shard_fanout]
        further += order[policy.query_shard_fanout : cap]
        rest += order[cap:]
    rest.sort(key=lambda each: (each.least_distance, each.position))
    return AskingOrder(
        (*near, *first),
        tuple(sorted(fanned_out, key=_nearness)),
        tuple(sorted(further, key=_nearness)),
        tuple(rest),
    )


def _nearness(shard: Ranked) -> tuple[float, int]:
    return shard.distance, shard.position


def may_exceed_cap(*, found: int, wanted: int, is_filtered: bool) -> bool:
    """Nearness says nothing about who meets a condition, and a cap is no reason to return fewer than there are."""
    return is_filtered or found < wanted


LIKELY_REACH = 1.1
"""In many dimensions hardly a vector lies straight between its centroid and the query, so that few are much nearer than
the centroid is: a shard whose centroid is farther than this many times the last hit is asked for nothing."""


def is_likely_nearer(shard: Ranked, farthest_hit: float | None) -> bool:
    """`farthest_hit`: distance of the last hit that would be returned now; None while there are too few."""
    return farthest_hit is None or shard.distance < LIKELY_REACH * farthest_hit


def could_be_nearer(shard: Ranked, farthest_hit: float | None) -> bool:
    """The same, beyond doubt."""
    return farthest_hit is None or shard.least_distance < farthest_hit


# ── cutting and merging ────────────────────────────────────────────────────────────────────────────

TIER_WIDTH = 8
"""So many shards of about one size are merged into one of the next size."""


def tier_of(rows: int) -> int:
    return int(math.log(max(rows, 1), TIER_WIDTH) + 1e-9)


def choose_merge(tail: Sequence[ShardRef], new_rows: int) -> list[ShardRef]:
    """Shards that a write takes up into what it adds, so that small ones stay few.

    Each row moves up one tier with each merge: n writes cost n·log n.
    """
    by_tier: dict[int, list[ShardRef]] = {}
    for shard in tail:
        by_tier.setdefault(tier_of(shard.live_rows), []).append(shard)
    taken: list[ShardRef] = []
    rows = new_rows
    tier = tier_of(rows)
    while len(by_tier.get(tier, ())) >= TIER_WIDTH - 1:
        for lower in [each for each in by_tier if each <= tier]:
            members = by_tier.pop(lower)
            taken += members
            rows += sum(shard.live_rows for shard in members)
        tier = tier_of(rows)
    return taken


def count_cuts(rows: int, size_bytes: int, policy: EngineSettings) -> int:
    """How many shards so many rows should become."""
    if rows <= policy.shard_trigger_vector_rows and size_bytes <= policy.shard_trigger_bytes:
        return 1
    by_size = size_bytes / policy.target_shard_bytes
    by_rows = rows / policy.max_vector_rows_per_shard
    return max(1, min(math.ceil(max(by_size, by_rows)), rows))


CompactionReason = Literal["no_compaction_debt", "size_tier", "tombstone_pressure", "keywords_missing"]


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    reason: CompactionReason
    shards: tuple[ShardRef, ...]
    """To be replaced by what is left of them, clustered anew when they are several."""


def plan_compaction(
    manifest: Manifest, policy: EngineSettings, *, everything: bool = False, min_shards: int | None = None
) -> CompactionPlan:
    """Shards that have outlived their layout. `min_shards`: instead of the policy's.

    Runs are merged up to the largest that is not more than twice all smaller ones together: so whenever a row is
    rewritten, its run grows by half at least, and a large KB is not rewritten for a small addition. Shards that came
    with a package are left as they are: they belong to who made it, and an update brings only those that are not here.
    """
    own = [shard for shard in manifest.shards if not shard.origin]
    if everything:
        return CompactionPlan("no_compaction_debt", ()) if _is_tidy(own) else CompactionPlan("size_tier", tuple(own))
    runs = _runs_by_size(own)
    least = policy.compaction_min_shard_count if min_shards is None else min_shards
    count = _runs_worth_merging([_rows(run) for run in runs]) if len(own) >= least else 0
    if count:
        return CompactionPlan("size_tier", tuple(shard for run in runs[:count] for shard in run))
    worn = tuple(shard for shard in own if shard.tombstone_ratio >= policy.compaction_tombstone_ratio)
    if worn:
        return CompactionPlan("tombstone_pressure", worn)
    old = tuple(shard for shard in own if "keywords" not in shard.files)
    return CompactionPlan("keywords_missing", old) if old else CompactionPlan("no_compaction_debt", ())


def _runs_worth_merging(rows: Sequence[int]) -> int:
    """How many of them, the smallest first; 0 for none. `rows`: of each run, in ascending order."""
    smaller = list(itertools.accumulate(rows))
    return max((number + 1 for number in range(1, len(rows)) if rows[number] <= 2 * smaller[number - 1]), default=0)


def _is_tidy(shards: Sequence[ShardRef]) -> bool:
    tail = [shard for shard in shards if not shard.run]
    is_whole = not any(shard.gone or "keywords" not in shard.files for shard in shards)
    return len(_runs_by_size(shards)) <= 1 and len(tail) <= 1 and is_whole


def _runs_by_size(shards: Sequence[ShardRef]) -> list[list[ShardRef]]:
    """Each shard that arrived as it came is a run of its own."""
    runs: dict[str, list[ShardRef]] = {}
    for shard in shards:
        runs.setdefault(shard.run or shard.folder, []).append(shard)
    return sorted(runs.values(), key=_rows)


def _rows(shards: Iterable[ShardRef]) -> int:
    return sum(shard.live_rows for shard in shards)


# ── re-embedding ───────────────────────────────────────────────────────────────────────────────────

MOST_ROWS_UNDER_LEASE = 2_000
"""So many chunks are embedded and stored in a time for which other writers wait."""


def group_for_reembedding(shards: Sequence[ShardRef]) -> list[list[ShardRef]]:
    """Shards whose documents are clustered anew together; those that arrived as they came stay by themselves."""
    return _runs_by_size([shard for shard in shards if shard.live_documents])


def may_finish_under_lease(late: Iterable[ShardRef], *, is_last_round: bool) -> bool:
    """Whether shards that others wrote meanwhile are few enough to keep writers waiting for; at last, in any case."""
    return is_last_round or _rows(late) <= MOST_ROWS_UNDER_LEASE


# ── collecting ─────────────────────────────────────────────────────────────────────────────────────


def find_garbage(
    manifest: Manifest, stored: Mapping[str, datetime.datetime], now: datetime.datetime, grace_seconds: float
) -> frozenset[str]:
    """Folders to delete. `stored`: when each folder that is there was last written.

    A shard that was dropped is left to its slow readers for the grace period, and one that no manifest ever named to
    the writer that may still be about to name it. Without a grace period, no clock is asked.
    """
    live = {shard.folder for shard in manifest.shards}
    dropped_at = {each.folder: datetime.datetime.fromisoformat(each.dropped_at) for each in manifest.dropped}
    grace = datetime.timedelta(seconds=grace_seconds)
    return frozenset(
        folder
        for folder, written_at in stored.items()
        if folder not in live and (not grace or max(written_at, dropped_at.get(folder, written_at)) <= now - grace)
    )


_WORTH_FORGETTING = 100
"""Entries of a manifest, which every writer writes and every reader reads."""


def find_old_drops(
    manifest: Manifest, now: datetime.datetime, grace_seconds: float, *, is_swapped: bool
) -> frozenset[str]:
    """Folders whose grace period is over: a version or a build may keep them, and when they were dropped tells nothing
    more. `is_swapped`: the manifest is, anyway; else few of them are not worth it.
    """
    until = now - datetime.timedelta(seconds=grace_seconds)
    over = frozenset(
        each.folder for each in manifest.dropped if datetime.datetime.fromisoformat(each.dropped_at) <= until
    )
    return over if is_swapped or len(over) >= _WORTH_FORGETTING else frozenset()


@dataclass(frozen=True, slots=True)
class PastVersion:
    number: int
    replaced_at: datetime.datetime
    """When the next one took its place."""
    is_repeated: bool
    """Whether the next one holds the same documents."""


def choose_versions(past: Sequence[PastVersion], policy: EngineSettings, now: datetime.datetime) -> frozenset[int]:
    """`past`: the newest first. One that the next only rearranged is kept in that, and not besides."""
    kept = [each for each in past if not each.is_repeated]
    since = now - datetime.timedelta(days=policy.keep_days)
    return frozenset(
        each.number
        for place, each in enumerate(kept)
        if place < policy.keep_versions or (policy.keep_days and each.replaced_at >= since)
    )


# ── evicting ───────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class CachedShard:
    name: str
    size_bytes: int
    idle_seconds: float
    """Since its last use."""


def choose_evictions(
    cached: Sequence[CachedShard], *, max_bytes: int, ttl_seconds: float, wanted_bytes: int = 0
) -> tuple[list[CachedShard], list[CachedShard]]:
    """Those that are too old, and those that have to make room, in the order in which they should go."""
    old = [each for each in cached if ttl_seconds and each.idle_seconds > ttl_seconds]
    if not max_bytes:
        return old, []
    kept = [each for each in cached if each not in old]
    excess = sum(each.size_bytes for each in kept) + wanted_bytes - max_bytes
    crowded: list[CachedShard] = []
    for each in sorted(kept, key=lambda one: (-one.idle_seconds, one.name)):
        if excess <= 0:
            break
        crowded.append(each)
        excess -= each.size_bytes
    return old, crowded
