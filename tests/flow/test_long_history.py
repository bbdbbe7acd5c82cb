"""Many versions, and unreadable copies: the cost of a history, and garbage collection in it."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from pair.blobs.contract import BlobStore
from pair.blobs.local import MemoryStore
from pair.engine.format.manifest import Manifest, from_bytes, manifest_key, shards_prefix, to_bytes, versions_prefix
from pair.errors import NotFoundError
from pair.kb.kb import KnowledgeBase
from pair.testing.clock import NOON, ManualClock
from pair.values import Document
from support.engine_parts import Ground, counted, read_blob

VERSIONS = 110
DAY = 86_400.0


def paint(kb: KnowledgeBase, colour: str, name: str = "door") -> int:
    return kb.upsert([Document(name, f"The {name} of the house is painted {colour}.")]).manifest_version


def colour_of(kb: KnowledgeBase) -> str:
    return kb.document("door").text.rpartition(" ")[2].rstrip(".")


def copies_in(store: BlobStore) -> list[str]:
    return [info.key for info in store.list(versions_prefix("default"))]


def copy_of(store: BlobStore, number: int) -> str:
    return next(key for key in copies_in(store) if f"/{number:010}-" in key)


def folders_in(store: BlobStore) -> set[str]:
    return {info.key.rpartition("/")[0] for info in store.list(shards_prefix("default"))}


def manifest_in(store: BlobStore) -> Manifest:
    return from_bytes(read_blob(store, manifest_key("default")), "manifest")


@pytest.fixture(scope="module")
def long_history() -> dict[str, bytes]:
    """Return all blobs of a KB with many versions. Each version dropped a shard."""
    clock = ManualClock(NOON)
    store = MemoryStore(clock)
    with Ground(Path("unused"), keep_versions=1000, keep_days=365, lease="memory").open(store=store) as kb:
        for number in range(1, VERSIONS + 1):
            assert paint(kb, f"colour-{number}") == number
    return {info.key: read_blob(store, info.key) for info in store.list("")}


class Past:
    """The long history in a separate store, an hour later."""

    def __init__(self, blobs: dict[str, bytes]) -> None:
        self.clock = ManualClock(NOON)
        self.store = MemoryStore(self.clock)
        for key, content in blobs.items():
            self.store.put(key, content)
        self.clock.advance(3600)

    def ground(self, **changes: float) -> Ground:
        return Ground(Path("unused"), **{"keep_versions": 1000, "lease": "memory", **changes})


@pytest.fixture
def past(long_history: dict[str, bytes]) -> Past:
    return Past(long_history)


# ── what it costs ──────────────────────────────────────────────────────────────────────────────────


def test_the_bytes_of_a_history_grow_with_its_versions_and_not_with_their_square(past: Past) -> None:
    sizes = [len(read_blob(past.store, key)) for key in copies_in(past.store)]
    assert len(sizes) == VERSIONS
    assert max(sizes[70:]) < sizes[70] + 100, "once a manifest names as many commits as it will"
    assert len(manifest_in(past.store).dropped) == VERSIONS - 1, "which the current one alone tells"


@pytest.mark.parametrize(
    ("act", "most"),
    [
        (lambda kb: kb.versions.list(), VERSIONS + 4),
        (lambda kb: kb.versions.numbers(), 4),
        (lambda kb: kb.maintenance.collect(), VERSIONS + 8),
        (lambda kb: kb.versions.rollback(3), 12),
        (lambda kb: kb.versions.diff(3), 20),
    ],
    ids=["versions", "version_numbers", "collect", "rollback", "diff"],
)
def test_a_question_about_a_long_history_takes_few_requests(
    past: Past, act: Callable[[KnowledgeBase], object], most: int
) -> None:
    store, requests = counted(past.store)
    with past.ground().open(store=store) as kb:
        act(kb)
        assert requests.counts.total() - requests.counts["release"] <= most + 4, requests.counts
        assert requests.counts["list"] <= 4


def test_a_label_that_is_asked_for_again_and_again_takes_few_requests(past: Past) -> None:
    store, requests = counted(past.store)
    with past.ground().open(store=store) as kb:
        with pytest.raises(NotFoundError):
            kb.versions.open("1.0.0")
        for act in (kb.versions.open, kb.versions.number, kb.versions.rollback):
            for wanted in ("1.0.0", "99999"):
                requests.counts.clear()
                with pytest.raises(NotFoundError):
                    act(wanted)
                assert requests.counts.total() <= 20, (act, requests.counts)


def test_many_copies_that_cannot_be_read_take_a_few_requests_each(past: Past) -> None:
    for key in copies_in(past.store)[:-1]:
        past.store.put(key, b"{}")
    store, requests = counted(past.store)
    with past.ground().open(store=store) as kb:
        assert [each.number for each in kb.versions.list()] == [VERSIONS]
    assert requests.counts["get"] <= 5 * VERSIONS, "each is read twice before it counts as damaged"


def test_a_collection_forgets_when_shards_were_dropped_once_that_tells_nothing(past: Past) -> None:
    with past.ground().open(store=past.store) as kb:
        before = manifest_in(past.store)
        assert kb.maintenance.collect().deleted_shards == 0
        after = manifest_in(past.store)
        assert (after.number, after.dropped, after.made_by) == (before.number + 1, (), "collect")
        assert after.collections == before.collections, "nothing was taken: a running build continues"
        paint(kb, "white")
        kb.maintenance.collect()
        assert len(manifest_in(past.store).dropped) == 1, "for few, no manifest is written"
        with past.ground().open(store=past.store, at=7) as then:
            assert colour_of(then) == "colour-7"
    with past.ground(keep_versions=1).open(store=past.store) as kb:
        past.clock.advance(3600)
        assert kb.maintenance.collect().deleted_shards == VERSIONS - 1
        assert len(folders_in(past.store)) == 2, "what is current, and the version before it"
        assert manifest_in(past.store).dropped == ()


def test_shards_dropped_within_the_grace_period_are_still_listed(past: Past) -> None:
    with past.ground(gc_grace_seconds=2 * 3600.0).open(store=past.store) as kb:
        kb.maintenance.collect(grace_seconds=0)
        assert len(manifest_in(past.store).dropped) == VERSIONS - 1


def test_copies_of_an_earlier_pair_tell_what_was_dropped_and_are_read_and_collected_all_the_same(past: Past) -> None:
    dropped = manifest_in(past.store).dropped
    for key in copies_in(past.store):
        copy = from_bytes(read_blob(past.store, key), key)
        told = dropped[: copy.number - 1]
        past.store.put(key, to_bytes(Manifest(**{**vars(copy), "dropped": told})))
    past.clock.advance(3600)
    with past.ground(keep_versions=3).open(store=past.store) as kb:
        assert kb.maintenance.collect().deleted_shards == VERSIONS - 4
        assert kb.versions.rollback(VERSIONS - 1).is_changed
        assert colour_of(kb) == f"colour-{VERSIONS - 1}"


def test_a_manifest_that_was_repaired_leaves_slow_readers_what_was_just_dropped() -> None:
    clock = ManualClock(NOON)
    store = MemoryStore(clock)
    with Ground(Path("unused"), keep_versions=1, lease="memory").open(store=store) as kb:
        paint(kb, "red")
        clock.advance(3600)
        paint(kb, "green")
        paint(kb, "blue")
        stored = folders_in(store)
    store.put(manifest_key("default"), b"{}")
    with Ground(Path("unused"), keep_versions=1, lease="memory").open(store=store) as kb:
        assert kb.maintenance.fsck(repair=True).is_sound
        kb.maintenance.collect()
        assert folders_in(store) == stored, "the first shard was dropped this minute"
        clock.advance(3600)
        assert kb.maintenance.collect().deleted_shards == 1
        assert colour_of(kb) == "blue"


# ── copies that cannot be read ─────────────────────────────────────────────────────────────────────


def painted(kb: KnowledgeBase, colours: Sequence[str], clock: ManualClock, seconds: float) -> None:
    for colour in colours:
        paint(kb, colour)
        clock.advance(seconds)


@pytest.mark.parametrize(("policy", "seconds"), [({"keep_versions": 3}, 60.0), ({"keep_days": 30.0}, 10 * DAY)])
def test_shards_that_an_unreadable_copy_may_name_are_kept_as_long_as_usual(
    policy: dict[str, float], seconds: float
) -> None:
    clock = ManualClock(NOON)
    store = MemoryStore(clock)
    ground = Ground(Path("unused"), **{"keep_versions": 0, "lease": "memory", **policy})
    with ground.open(store=store) as kb:
        painted(kb, ["red", "green", "blue", "amber", "violet"], clock, seconds)
        key = copy_of(store, 3)
        sound = read_blob(store, key)
        (only_there,) = from_bytes(sound, key).folders
        store.put(key, sound[:-9])
        kb.maintenance.collect(grace_seconds=0)
        assert only_there in folders_in(store)
        assert key in copies_in(store)
        painted(kb, ["white", "black", "grey"], clock, seconds)
        kb.maintenance.collect(grace_seconds=0)
        assert key not in copies_in(store)
        assert only_there not in folders_in(store)
        assert colour_of(kb) == "grey"


def test_a_copy_that_cannot_be_read_takes_no_place_from_one_that_can() -> None:
    clock = ManualClock(NOON)
    store = MemoryStore(clock)
    with Ground(Path("unused"), keep_versions=2, lease="memory").open(store=store) as kb:
        painted(kb, ["red", "green", "blue", "amber"], clock, 60)
        store.put(copy_of(store, 3), b"{}")
        assert kb.maintenance.collect(grace_seconds=0).kept_versions == 2
        assert [each.number for each in kb.versions.list()][-2:] == [2, 1]
        kb.versions.rollback(1)
        assert colour_of(kb) == "red"


def test_a_copy_that_can_be_read_again_names_what_is_there() -> None:
    clock = ManualClock(NOON)
    store = MemoryStore(clock)
    ground = Ground(Path("unused"), keep_versions=3, lease="memory")
    with ground.open(store=store) as kb:
        painted(kb, ["red", "green", "blue", "amber", "violet"], clock, 60)
        key = copy_of(store, 4)
        sound = read_blob(store, key)
        store.put(key, b"")
        kb.maintenance.collect(grace_seconds=0)
        store.put(key, sound)
    with ground.open(store=store, at=4) as then:
        assert colour_of(then) == "amber"


def test_an_unreadable_copy_is_deleted_at_once_if_no_versions_are_kept() -> None:
    clock = ManualClock(NOON)
    store = MemoryStore(clock)
    with Ground(Path("unused"), keep_versions=3, lease="memory").open(store=store) as kb:
        painted(kb, ["red", "green", "blue"], clock, 60)
        store.put(copy_of(store, 1), b"{}")
    with Ground(Path("unused"), keep_versions=0, lease="memory").open(store=store) as kb:
        assert kb.maintenance.collect(grace_seconds=0).deleted_shards == 2
        assert all("/0000000003-" in key for key in copies_in(store))
