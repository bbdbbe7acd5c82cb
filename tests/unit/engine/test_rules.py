"""The rules about shards."""

import dataclasses
import datetime
import math
from dataclasses import replace

import numpy as np
import pytest

from pair.engine import rules
from pair.engine.format.array_file import ShardFile
from pair.engine.format.manifest import DroppedShard, FileRole, Manifest, ShardRef
from pair.engine.rules import AskingOrder, CachedShard, Ranked
from pair.engine.settings import EngineSettings
from pair.errors import UsageError
from pair.values import check_kb_id

NOON = datetime.datetime(2024, 5, 1, 12, tzinfo=datetime.UTC)
ROLES: tuple[FileRole, ...] = ("rows", "search", "ids", "keywords")
POLICY = EngineSettings()


def shard(name: str, rows: int = 1, *, run: str = "", gone: int = 0) -> ShardRef:
    """Return a shard whose documents have one row each."""
    ref = ShardRef(
        shard_id="shard-00000",
        folder=f"kb.duckdb.shards/{name}",
        files={role: ShardFile(rows, name) for role in ROLES},
        rows=rows,
        documents=rows,
        run=run,
        centroids=np.zeros((1, 4), np.float32),
        radii=(1.0,),
        graph_available=False,
        created_at="",
    )
    return ref.without(range(gone)) if gone else ref


def manifest(*shards: ShardRef, dropped: tuple[DroppedShard, ...] = ()) -> Manifest:
    return Manifest("kb", 1, "commit", "", "ngram-4-v1", 4, shards, dropped)


def names_of(shards: list[ShardRef] | tuple[ShardRef, ...]) -> list[str]:
    return [each.folder.rpartition("/")[2] for each in shards]


# ── names ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kb_id", ["a", "default", "Team-7_notes.v2", "0", "x" * 128])
def test_names_of_kbs_that_are_allowed(kb_id: str) -> None:
    assert check_kb_id(kb_id) == kb_id


@pytest.mark.parametrize("kb_id", ["", ".", "..", ".hidden", "-x", "a/b", "a b", "ä", "a\n", "x" * 129, "a:b"])
def test_names_of_kbs_that_are_refused(kb_id: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_kb_id(kb_id)
    assert caught.value.code == "E212"
    assert repr(kb_id)[1:-1] in caught.value.message or kb_id in caught.value.message


# ── asking ─────────────────────────────────────────────────────────────────────────────────────────


def run_of(count: int, *, begin: int = 0) -> list[Ranked]:
    """Return a run of shards; the later in the manifest, the nearer."""
    return [
        Ranked(begin + number, distance=float(count - number), least_distance=float(count - number) / 2)
        for number in range(count)
    ]


@pytest.mark.rule("engine-12")
def test_a_small_kb_is_asked_as_a_whole() -> None:
    shards = [shard("a", run="r"), shard("b", run="r")]
    assert rules.order_shards(shards, {"r": run_of(2)}, POLICY, ask_all=False) == AskingOrder((0, 1), ())


def test_an_exact_search_asks_everything() -> None:
    shards = [shard(str(number), run="r") for number in range(20)]
    order = rules.order_shards(shards, {"r": run_of(20)}, POLICY, ask_all=True)
    assert order == AskingOrder(tuple(range(20)), ())


@pytest.mark.rule("engine-12")
def test_the_nearest_of_each_run_are_asked_first_and_what_is_in_no_run_always() -> None:
    shards = [
        shard("tail-a"),
        *(shard(f"r{n}", run="r") for n in range(10)),
        *(shard(f"s{n}", run="s") for n in range(3)),
    ]
    shards.append(shard("tail-b"))
    ranked = {"r": run_of(10, begin=1), "s": run_of(3, begin=11)}
    order = rules.order_shards(shards, ranked, POLICY, ask_all=False)
    assert order.first == (10, 13, 0, 14)
    assert sorted(each.position for each in order.fanned_out) == [7, 8, 9, 11, 12]
    assert [each.position for each in order.further] == [6, 5]
    assert [each.position for each in order.rest] == [4, 3, 2, 1]


def test_a_cap_below_the_fanout_takes_nothing_from_it() -> None:
    policy = EngineSettings(query_shard_fanout=4, query_shard_fanout_adaptive_max=2)
    shards = [shard(str(number), run="r") for number in range(6)]
    order = rules.order_shards(shards, {"r": run_of(6)}, policy, ask_all=False)
    assert order.first == (5,)
    assert [each.position for each in order.fanned_out] == [4, 3, 2]
    assert order.further == ()
    assert [each.position for each in order.rest] == [1, 0]


def test_shards_as_near_as_each_other_are_asked_by_position() -> None:
    ranked = [Ranked(position, 1.0, 0.5) for position in (3, 1, 2, 0, 4)]
    shards = [shard(str(number), run="r") for number in range(5)]
    assert rules.order_shards(shards, {"r": ranked}, POLICY, ask_all=False).first == (0,)


def test_a_shard_could_hold_something_nearer_unless_its_radius_rules_it_out() -> None:
    candidate = Ranked(0, distance=2.0, least_distance=1.0)
    assert rules.could_be_nearer(candidate, None)
    assert rules.could_be_nearer(candidate, 1.5)
    assert not rules.could_be_nearer(candidate, 1.0)


def test_a_shard_is_likely_to_hold_something_nearer_while_its_centroid_is_about_as_near_as_the_last_hit() -> None:
    candidate = Ranked(0, distance=2.0, least_distance=1.0)
    assert rules.is_likely_nearer(candidate, None)
    assert rules.is_likely_nearer(candidate, 1.9)
    assert not rules.is_likely_nearer(candidate, 1.5)
    assert not rules.is_likely_nearer(Ranked(0, rules.LIKELY_REACH, 1.0), 1.0), "a shard at the limit is too far"


def test_the_cap_hides_nothing_from_a_filter_or_a_search_that_found_too_little() -> None:
    assert not rules.may_exceed_cap(found=5, wanted=5, is_filtered=False)
    assert rules.may_exceed_cap(found=4, wanted=5, is_filtered=False)
    assert rules.may_exceed_cap(found=5, wanted=5, is_filtered=True)


# ── cutting and merging ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("batch", [1, 3, 50])
@pytest.mark.rule("engine-9")
def test_ten_thousand_writes_cost_n_log_n_and_leave_few_shards(batch: int) -> None:
    tail: list[ShardRef] = []
    rewritten = most = 0
    writes = 10_000
    for number in range(writes):
        taken = rules.choose_merge(tail, batch)
        merged = sum(each.rows for each in taken)
        rewritten += merged + batch
        folders = {each.folder for each in taken}
        tail = [each for each in tail if each.folder not in folders]
        tail.append(shard(str(number), merged + batch))
        most = max(most, len(tail))
    tiers = math.ceil(math.log(writes * batch, rules.TIER_WIDTH)) + 1
    assert sum(each.rows for each in tail) == writes * batch, "no row is lost or doubled"
    assert most <= rules.TIER_WIDTH * tiers
    assert rewritten <= writes * batch * (tiers + 1)


def test_a_large_write_takes_up_small_shards_only_when_there_are_many_of_its_size() -> None:
    small = [shard(f"small-{number}", 1) for number in range(7)]
    large = [shard(f"large-{number}", 1000) for number in range(6)]
    assert rules.choose_merge([*small, *large], 1000) == []
    assert len(rules.choose_merge([*small, *large, shard("large-6", 1000)], 1000)) == 14


def test_what_is_gone_does_not_count_for_the_size_of_a_shard() -> None:
    worn = [shard(str(number), 100, gone=99) for number in range(7)]
    assert len(rules.choose_merge(worn, 1)) == 7


def test_a_shard_is_cut_above_either_trigger() -> None:
    policy = EngineSettings(
        shard_trigger_bytes=1000, target_shard_bytes=500, shard_trigger_vector_rows=100, max_vector_rows_per_shard=40
    )
    assert rules.count_cuts(100, 1000, policy) == 1
    assert rules.count_cuts(101, 10, policy) == 3
    assert rules.count_cuts(10, 1001, policy) == 3
    assert rules.count_cuts(2, 10_000, policy) == 2, "no more shards than rows"
    assert rules.count_cuts(0, 10_000, policy) == 1


# ── compacting ─────────────────────────────────────────────────────────────────────────────────────


def test_a_healthy_kb_is_not_compacted() -> None:
    shards = [shard(str(number), 100, run="r") for number in range(20)]
    assert rules.plan_compaction(manifest(*shards), POLICY).reason == "no_compaction_debt"
    assert rules.plan_compaction(manifest(*shards), POLICY, everything=True).reason == "no_compaction_debt"
    assert rules.plan_compaction(manifest(), POLICY, everything=True).shards == ()


def test_runs_are_merged_from_the_smallest_up_but_never_a_large_one_for_a_small_one() -> None:
    large = [shard(f"large-{number}", 1000, run="large") for number in range(6)]
    middle = [shard(f"middle-{number}", 10, run="middle") for number in range(2)]
    tail = [shard("tail-0", 5), shard("tail-1", 8)]
    plan = rules.plan_compaction(manifest(*large, *middle, *tail), POLICY)
    assert plan.reason == "size_tier"
    assert sorted(names_of(plan.shards)) == ["middle-0", "middle-1", "tail-0", "tail-1"]
    assert sorted(names_of(rules.plan_compaction(manifest(*large, *tail), POLICY).shards)) == ["tail-0", "tail-1"]
    lonely = [*large, *(shard(f"more-{number}", 1000, run="large") for number in range(2)), shard("tail", 5)]
    assert rules.plan_compaction(manifest(*lonely), POLICY).reason == "no_compaction_debt"


@pytest.mark.parametrize(
    ("rows", "merged"),
    [([1, 16, 16, 128, 128, 128], 6), ([1, 16, 16, 1000], 3), ([1, 16, 48], 0), ([1, 3], 0), ([5], 0), ([], 0)],
)
def test_a_small_last_batch_does_not_keep_larger_runs_apart(rows: list[int], merged: int) -> None:
    shards = [shard(f"run-{number}", size, run=f"run-{number}") for number, size in enumerate(rows)]
    plan = rules.plan_compaction(manifest(*shards), replace(POLICY, compaction_min_shard_count=1))
    assert names_of(plan.shards) == [f"run-{number}" for number in range(merged)]


def test_a_shard_without_keywords_is_a_debt() -> None:
    old = shard("old")
    old = dataclasses.replace(old, files={role: old.files[role] for role in old.files if role != "keywords"})
    plan = rules.plan_compaction(manifest(shard("a"), old), POLICY)
    assert (plan.reason, names_of(plan.shards)) == ("keywords_missing", ["old"])
    assert names_of(rules.plan_compaction(manifest(old), POLICY, everything=True).shards) == ["old"]


def test_few_shards_are_not_worth_merging() -> None:
    shards = [shard("a", 10, run="r"), shard("b", 10, run="s"), shard("c", 10)]
    assert rules.plan_compaction(manifest(*shards), POLICY).reason == "no_compaction_debt"
    assert len(rules.plan_compaction(manifest(*shards), POLICY, everything=True).shards) == 3


def test_everything_is_merged_however_little_there_is_to_gain() -> None:
    for shards in (
        [shard("a", 10, run="r"), shard("b", 10, run="s")],
        [shard("a", 10, run="r"), shard("b")],
        [shard("a"), shard("b")],
    ):
        plan = rules.plan_compaction(manifest(*shards), POLICY, everything=True)
        assert (plan.reason, names_of(plan.shards)) == ("size_tier", ["a", "b"])
    assert rules.plan_compaction(manifest(shard("a")), POLICY, everything=True).shards == ()


def test_the_least_number_of_shards_may_be_named() -> None:
    shards = [shard("a", 10, run="r"), shard("b", 10, run="s")]
    assert rules.plan_compaction(manifest(*shards), replace(POLICY, compaction_min_shard_count=2)).reason == "size_tier"
    assert (
        rules.plan_compaction(manifest(*shards), replace(POLICY, compaction_min_shard_count=3)).reason
        == "no_compaction_debt"
    )


@pytest.mark.parametrize(("rows", "taken"), [(20, ["small", "next"]), (21, [])])
def test_a_run_is_merged_with_one_of_up_to_twice_its_size(rows: int, taken: list[str]) -> None:
    shards = [shard("small", 10, run="r"), shard("next", rows, run="s")]
    plan = rules.plan_compaction(manifest(*shards), replace(POLICY, compaction_min_shard_count=1))
    assert (plan.reason, names_of(plan.shards)) == ("size_tier" if taken else "no_compaction_debt", taken)


def test_a_shard_with_many_deleted_documents_is_rewritten() -> None:
    shards = [shard("fresh", 10, gone=1), shard("worn", 10, gone=2)]
    plan = rules.plan_compaction(manifest(*shards), POLICY)
    assert (plan.reason, names_of(plan.shards)) == ("tombstone_pressure", ["worn"])
    assert names_of(rules.plan_compaction(manifest(*shards), POLICY, everything=True).shards) == ["fresh", "worn"]


# ── re-embedding ───────────────────────────────────────────────────────────────────────────────────


def test_shards_of_one_run_are_re_embedded_together_and_the_smallest_run_first() -> None:
    shards = [shard("a", 30, run="r"), shard("tail", 5), shard("b", 30, run="r"), shard("c", 40, run="s")]
    empty = shard("empty", 2, gone=2)
    assert [names_of(each) for each in rules.group_for_reembedding([*shards, empty])] == [["tail"], ["c"], ["a", "b"]]


@pytest.mark.parametrize(
    ("rows", "is_last", "expected"), [(2000, False, True), (2001, False, False), (9999, True, True)]
)
def test_writers_wait_for_few_rows_and_for_any_number_in_the_last_round(
    rows: int, is_last: bool, expected: bool
) -> None:
    late = [shard("a", 1000), shard("b", rows - 1000)]
    assert rules.may_finish_under_lease(late, is_last_round=is_last) is expected


# ── collecting ─────────────────────────────────────────────────────────────────────────────────────


def ago(seconds: float) -> datetime.datetime:
    return NOON - datetime.timedelta(seconds=seconds)


def test_only_what_no_manifest_named_for_the_grace_period_is_garbage() -> None:
    prefix = "kb.duckdb.shards/"
    current = manifest(
        shard("live"),
        dropped=(
            DroppedShard(prefix + "long-gone", ago(121).isoformat()),
            DroppedShard(prefix + "just-gone", ago(119).isoformat()),
            DroppedShard(prefix + "deleted-already", ago(1000).isoformat()),
        ),
    )
    stored = {
        prefix + "live": ago(10_000),
        prefix + "long-gone": ago(10_000),
        prefix + "just-gone": ago(10_000),
        prefix + "old-orphan": ago(120),
        prefix + "new-orphan": ago(119),
    }
    assert rules.find_garbage(current, stored, NOON, 120) == {prefix + "long-gone", prefix + "old-orphan"}
    assert rules.find_garbage(current, stored, NOON, 0) == stored.keys() - {prefix + "live"}


def test_a_shard_that_was_dropped_in_the_last_moment_of_time_is_not_garbage() -> None:
    current = manifest(dropped=(DroppedShard("kb.duckdb.shards/odd", "9999-12-31T23:59:59.999999+00:00"),))
    assert rules.find_garbage(current, {"kb.duckdb.shards/odd": ago(1000)}, NOON, 120) == frozenset()


def test_a_clock_that_went_back_makes_no_garbage() -> None:
    assert rules.find_garbage(manifest(), {"kb.duckdb.shards/orphan": ago(-3600)}, NOON, 120) == frozenset()


def test_when_shards_were_dropped_is_forgotten_once_the_grace_period_is_over() -> None:
    names = [f"kb.duckdb.shards/{number}" for number in range(101)]
    few, many = (
        manifest(
            dropped=(
                DroppedShard("kb.duckdb.shards/fresh", ago(119).isoformat()),
                *(DroppedShard(name, ago(120).isoformat()) for name in chosen),
            )
        )
        for chosen in (names[:99], names[:100])
    )
    assert rules.find_old_drops(few, NOON, 120, is_swapped=True) == set(names[:99])
    assert rules.find_old_drops(few, NOON, 120, is_swapped=False) == frozenset(), "no manifest is written for few"
    assert rules.find_old_drops(many, NOON, 120, is_swapped=False) == set(names[:100])
    assert rules.find_old_drops(many, NOON, 121, is_swapped=True) == frozenset()


# ── evicting ───────────────────────────────────────────────────────────────────────────────────────

CACHED = [CachedShard("a", 100, 10), CachedShard("b", 200, 30), CachedShard("c", 300, 20)]


@pytest.mark.parametrize(
    ("max_bytes", "ttl_seconds", "wanted_bytes", "old", "crowded"),
    [
        (0, 0, 0, "", ""),
        (0, 15, 0, "bc", ""),
        (0, 30, 0, "", ""),
        (600, 0, 0, "", ""),
        (599, 0, 0, "", "b"),
        (600, 0, 1, "", "b"),
        (350, 0, 0, "", "bc"),
        (300, 25, 0, "b", "c"),
        (10, 0, 50, "", "bca"),
    ],
)
def test_old_shards_go_and_then_the_longest_idle(
    max_bytes: int, ttl_seconds: float, wanted_bytes: int, old: str, crowded: str
) -> None:
    gone = rules.choose_evictions(CACHED, max_bytes=max_bytes, ttl_seconds=ttl_seconds, wanted_bytes=wanted_bytes)
    assert tuple("".join(each.name for each in some) for some in gone) == (old, crowded)


def test_nothing_is_evicted_without_need() -> None:
    assert rules.choose_evictions(CACHED, max_bytes=600, ttl_seconds=0) == ([], [])


# ── keeping versions ───────────────────────────────────────────────────────────────────────────────


def past(*numbers: int, repeated: tuple[int, ...] = ()) -> list[rules.PastVersion]:
    """Return past versions: the newest was replaced just now, and each earlier one a day before."""
    return [
        rules.PastVersion(number, NOON - datetime.timedelta(days=place), number in repeated)
        for place, number in enumerate(numbers)
    ]


@pytest.mark.parametrize(
    ("keep_versions", "keep_days", "kept"),
    [
        (0, 0, set()),
        (2, 0, {9, 8}),
        (10, 0, {9, 8, 7, 6, 5}),
        (0, 1.5, {9, 8}),
        (0, 2, {9, 8, 7}),
        (1, 2, {9, 8, 7}),
        (4, 1, {9, 8, 7, 6}),
    ],
)
def test_versions_are_kept_that_are_among_the_last_or_recent_enough(
    keep_versions: int, keep_days: float, kept: set[int]
) -> None:
    policy = EngineSettings(keep_versions=keep_versions, keep_days=keep_days)
    assert rules.choose_versions(past(9, 8, 7, 6, 5), policy, NOON) == kept


def test_a_version_that_the_next_repeats_is_not_kept_and_takes_no_place() -> None:
    policy = EngineSettings(keep_versions=2)
    assert rules.choose_versions(past(9, 8, 7, 6, repeated=(9, 7)), policy, NOON) == {8, 6}


# ── shards of packages ─────────────────────────────────────────────────────────────────────────────


def packaged(name: str, rows: int = 1, *, gone: int = 0) -> ShardRef:
    return replace(shard(name, rows, gone=gone), origin="handbook")


def test_compaction_does_not_change_shards_of_packages() -> None:
    policy = EngineSettings(compaction_min_shard_count=2)
    theirs = [packaged(f"p{number}", 4, gone=3) for number in range(4)]
    for everything in (False, True):
        plan = rules.plan_compaction(manifest(*theirs, shard("a", 4)), policy, everything=everything)
        assert (plan.reason, plan.shards) == ("no_compaction_debt", ())
        plan = rules.plan_compaction(manifest(*theirs, shard("a", 4), shard("b", 4)), policy, everything=everything)
        assert (plan.reason, names_of(plan.shards)) == ("size_tier", ["a", "b"])
    worn = rules.plan_compaction(manifest(*theirs, shard("a", 4, gone=3)), policy)
    assert (worn.reason, names_of(worn.shards)) == ("tombstone_pressure", ["a"])
    few = EngineSettings(compaction_min_shard_count=3)
    assert rules.plan_compaction(manifest(*theirs, shard("a", 4), shard("b", 4)), few).shards == ()
