"""The swap of a manifest: winners, losers, and lost answers that a read settles."""

import dataclasses
import datetime
import itertools
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pair import errors
from pair.app.render import format_error
from pair.blobs.contract import BlobInfo, BlobStore
from pair.blobs.local import MemoryStore
from pair.engine.format.manifest import (
    Manifest,
    from_bytes,
    manifest_key,
    no_manifest,
    older_keys,
    to_bytes,
    version_key,
    versions_prefix,
)
from pair.engine.format.shard_builder import BuiltShard
from pair.engine.storage.manifest_store import ManifestStore, StoredManifest
from pair.testing.clock import NOON, ManualClock
from pair.testing.faulty_store import Fault, FaultyStore, Plan, planned

EMPTY = no_manifest("kb", "ngram-4-v1", 4)
KEY = manifest_key("kb")
COMMITS = (f"commit-{number}" for number in itertools.count())


def memory() -> MemoryStore:
    return MemoryStore(ManualClock())


def publication(
    store: BlobStore, steps: list[str] | None = None, *, keeps_versions: bool = False, at: str | None = None
) -> ManifestStore:
    heard = [] if steps is None else steps
    return ManifestStore(
        store,
        "kb",
        before_first_write=lambda: heard.append("probe"),
        on_step=heard.append,
        keeps_versions=keeps_versions,
        at=at,
    )


def next_of(before: StoredManifest | None) -> Manifest:
    return (before.manifest if before else EMPTY).make_next(next(COMMITS), NOON, ())


def stored(store: BlobStore) -> Manifest:
    blob = store.get(KEY)
    assert blob is not None
    return from_bytes(blob.data, KEY)


class Watched:
    """A plan without faults that records the requests."""

    def __init__(self, plan: Plan = lambda _operation, _key: "none") -> None:
        self.asked: list[str] = []
        self._plan = plan

    def __call__(self, operation: str, key: str) -> Fault:
        self.asked.append(operation)
        return self._plan(operation, key)


# ── reading ────────────────────────────────────────────────────────────────────────────────────────


def test_nothing_is_published_until_something_was_written() -> None:
    published = publication(memory())
    assert published.current() is None
    for ask in (published.require, published.known):
        with pytest.raises(errors.PairError) as raised:
            ask()
        assert (raised.value.code, raised.value.details["kb_id"]) == ("E201", "kb")


def test_a_manifest_that_did_not_change_is_neither_fetched_nor_read_again() -> None:
    watched = Watched()
    published = publication(FaultyStore(memory(), watched))
    first = published.swap(None, next_of(None))
    watched.asked.clear()
    assert published.current() is first
    assert published.known() is first
    assert watched.asked == ["get_if_changed"]


def test_the_last_known_manifest_costs_nothing_however_old_it_is() -> None:
    store = memory()
    writer, reader = publication(store), publication(store)
    first = writer.swap(None, next_of(None))
    assert reader.known().manifest.number == 1
    second = writer.swap(first, next_of(first))
    assert reader.known().manifest.number == 1
    seen = reader.current()
    assert seen is not None
    assert seen.version == second.version
    assert reader.known().manifest.number == 2


def test_a_reader_that_was_overtaken_does_not_go_back() -> None:
    store = memory()
    published = publication(store)
    first = published.swap(None, next_of(None))
    second = published.swap(first, next_of(first))
    before = store.get(KEY)
    assert before is not None
    late = publication(FaultyStore(store, lambda operation, key: "none"))
    late.current()
    store.put(KEY, publish_bytes(first))
    assert late.current() is not None
    assert late.known().manifest.number == second.manifest.number


def publish_bytes(published: StoredManifest) -> bytes:
    store = memory()
    publication(store).swap(None, published.manifest)
    blob = store.get(KEY)
    assert blob is not None
    return blob.data


def test_a_manifest_of_the_same_number_in_its_place_is_seen() -> None:
    store = memory()
    published = publication(store)
    assert published.seen() is None
    first = published.swap(None, next_of(None))
    assert published.seen() is first
    store.delete(KEY)
    other = publication(store).swap(None, next_of(None))
    assert published.current() is not None
    assert published.known().manifest.commit_id == other.manifest.commit_id


def test_a_deleted_manifest_is_missing() -> None:
    store = memory()
    published = publication(store)
    published.swap(None, next_of(None))
    store.delete(KEY)
    assert published.current() is None


# ── swapping ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("is_first", [True, False])
def test_the_second_of_two_swaps_on_one_manifest_is_refused(is_first: bool) -> None:
    store = memory()
    one, other = publication(store), publication(store)
    before = None if is_first else one.swap(None, next_of(None))
    won = one.swap(before, next_of(before))
    with pytest.raises(errors.ConflictError) as raised:
        other.swap(before, next_of(before))
    assert (raised.value.code, raised.value.details["kb_id"]) == ("E202", "kb")
    assert stored(store).commit_id == won.manifest.commit_id
    assert other.known().version == won.version, "the loser has seen who won"


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("fault", ["before", "after", "twice"])
def test_a_lost_or_doubled_answer_is_settled_by_looking(fault: Fault, is_first: bool) -> None:
    store = memory()
    before = None if is_first else publication(store).swap(None, next_of(None))
    faulty = publication(FaultyStore(store, planned([fault], only=["create", "put_if"])))
    after = faulty.swap(before, next_of(before))
    assert stored(store).commit_id == after.manifest.commit_id
    assert faulty.current() is not None
    assert publication(store).require().version == after.version


def test_a_swap_that_others_have_built_on_already_was_won() -> None:
    store = memory()
    mine = next_of(None)

    def overtaken(operation: str, _key: str) -> Fault:
        if operation != "get":
            return "after" if operation == "create" else "none"
        other = publication(store)
        before = other.require()
        if before.manifest.number == 1:
            other.swap(before, next_of(before))
        return "none"

    settled = publication(FaultyStore(store, overtaken)).swap(None, mine)
    assert settled.manifest.number == 2
    assert settled.manifest.holds_commit(mine.commit_id)


def test_a_swap_that_never_succeeds_is_tried_five_times_and_its_result_is_unknown() -> None:
    watched = Watched(planned(["before"] * 50, only=["create"]))
    store = memory()
    with pytest.raises(errors.PairError) as raised:
        publication(FaultyStore(store, watched)).swap(None, next_of(None))
    assert (raised.value.code, raised.value.details["kb_id"]) == ("E208", "kb")
    assert watched.asked == ["create", "get"] * 5
    assert store.get(KEY) is None


def test_a_store_that_cannot_be_looked_at_leaves_it_unknown() -> None:
    store = FaultyStore(memory(), planned(["after", "before"], only=["create", "get"]))
    with pytest.raises(errors.PairError) as raised:
        publication(store).swap(None, next_of(None))
    assert (raised.value.code, raised.value.details["kb_id"]) == ("E208", "kb")
    assert isinstance(raised.value.__cause__, errors.StorageError)


def test_a_damaged_manifest_in_its_place_is_not_overwritten() -> None:
    store = memory()
    published = publication(store)
    first = published.swap(None, next_of(None))
    store.put(KEY, b"damaged")
    with pytest.raises(errors.ConflictError):  # it is unknown whether ours was published before the damage
        published.swap(first, next_of(first))
    blob = store.get(KEY)
    assert blob is not None
    assert blob.data == b"damaged"


def test_a_refused_swap_and_a_lost_answer_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    store = FaultyStore(memory(), planned(["twice", "after"], only=["create", "put_if"]))
    published = publication(store)
    with caplog.at_level(logging.INFO, logger="pair.engine.storage.manifest_store"):
        first = published.swap(None, next_of(None))
        published.swap(first, next_of(first))
    told = [(each.message, vars(each)["kb"], "reason" in vars(each)) for each in caplog.records]
    assert told == [("swap was refused", "kb", False), ("answer to a swap was lost", "kb", True)]


# ── around it ──────────────────────────────────────────────────────────────────────────────────────


def built(folder: Path, count: int = 1) -> list[BuiltShard]:
    made = []
    for number in range(count):
        paths = {role: folder / f"{number}-{role}" for role in ("rows", "search", "ids")}
        for role, path in paths.items():
            path.write_text(f"{number} {role}")
        made.append(made_shard(number, paths))
    return made


def made_shard(number: int, paths: dict[str, Path]) -> BuiltShard:
    golden = Path(__file__).parents[2] / "golden" / "manifest-v1.json"
    ref = from_bytes(golden.read_bytes(), "key").shards[0]
    ref = dataclasses.replace(ref, folder=f"kb.duckdb.shards/{number}")
    return BuiltShard(ref, paths)  # type: ignore[arg-type]


def test_every_file_is_uploaded_before_anything_is_swapped(tmp_path: Path) -> None:
    store, steps = memory(), list[str]()
    published = publication(store, steps)
    published.upload(built(tmp_path, 2))
    assert steps == ["probe", *["upload"] * 6, "uploaded"]
    for number, (role, suffix) in itertools.product(
        range(2), [("rows", "duckdb"), ("search", "search"), ("ids", "ids")]
    ):
        blob = store.get(f"kb.duckdb.shards/{number}/shard-00000.{suffix}")
        assert blob is not None
        assert blob.data == f"{number} {role}".encode()
    assert store.get(KEY) is None
    published.swap(None, next_of(None))
    assert steps[-1] == "swap"


@pytest.mark.parametrize("begin", ["upload", "swap"])
def test_a_store_is_probed_once_before_its_first_write(begin: str, tmp_path: Path) -> None:
    steps: list[str] = []
    published = publication(memory(), steps)
    acts: dict[str, Callable[[], object]] = {
        "upload": lambda: published.upload(built(tmp_path)),
        "swap": lambda: published.swap(published.current(), next_of(published.current())),
    }
    for act in (begin, "upload", "swap", "swap"):
        acts[act]()
    assert steps[0] == "probe"
    assert steps.count("probe") == 1


def test_a_store_that_has_a_manifest_is_not_probed() -> None:
    store, steps = memory(), list[str]()
    publication(store).swap(None, next_of(None))
    published = publication(store, steps)
    before = published.current()
    published.swap(before, next_of(before))
    assert steps == ["swap"]


def test_a_store_that_fails_its_probe_is_not_written_to() -> None:
    store = memory()

    def refuse() -> None:
        raise errors.store_unreachable("memory:", "no conditional writes")

    published = ManifestStore(store, "kb", before_first_write=refuse)
    for _ in range(2):
        with pytest.raises(errors.StorageError):
            published.swap(None, next_of(None))
    assert store.get(KEY) is None


@pytest.mark.rule("engine-23")
@pytest.mark.parametrize("fault", ["none", "before"])
def test_every_manifest_removes_the_older_layout_as_far_as_that_succeeds(fault: Fault) -> None:
    store = memory()
    for key in older_keys("kb"):
        store.put(key, b"older")
    published = publication(FaultyStore(store, planned([fault], only=["delete"])))
    first = published.swap(None, next_of(None))
    left = [key for key in older_keys("kb") if store.get(key) is not None]
    assert left == ([] if fault == "none" else ["kb.duckdb"])
    store.put("kb.duckdb", b"of an older pair that still writes")
    second = published.swap(first, next_of(first))
    assert [key for key in older_keys("kb") if store.get(key) is not None] == []
    assert published.current() == second


# ── versions ───────────────────────────────────────────────────────────────────────────────────────


def copies(store: BlobStore) -> dict[str, bytes]:
    found = {info.key: store.get(info.key) for info in store.list(versions_prefix("kb"))}
    return {key: blob.data for key, blob in found.items() if blob is not None}


def keys_of(*published: StoredManifest) -> list[str]:
    return [version_key("kb", each.manifest.number, each.manifest.commit_id) for each in published]


def test_a_copy_of_each_manifest_is_kept_before_it_is_published() -> None:
    store, steps = memory(), list[str]()
    writer = publication(store, steps, keeps_versions=True)
    first = writer.swap(None, next_of(None))
    second = writer.swap(first, next_of(first))
    assert list(copies(store)) == keys_of(first, second)
    assert [copies(store)[key] for key in keys_of(first, second)] == [
        to_bytes(first.manifest),
        to_bytes(second.manifest),
    ]
    assert steps == ["probe", "copy", "swap", "copy", "swap"]


def test_the_copy_of_a_swap_with_an_unknown_result_stays() -> None:
    store = memory()
    first = publication(store, keeps_versions=True).swap(None, next_of(None))

    def lost(operation: str, _key: str) -> Fault:
        return "before" if operation in {"put_if", "get"} else "none"

    after = next_of(first)
    with pytest.raises(errors.ConflictError) as raised:
        publication(FaultyStore(store, lost), keeps_versions=True).swap(first, after)
    assert raised.value.code == "E208"
    assert version_key("kb", after.number, after.commit_id) in copies(store)


def test_one_that_was_not_kept_can_be_kept_later() -> None:
    store = memory()
    first = publication(store).swap(None, next_of(None))
    publication(store, keeps_versions=True).keep(first.manifest)
    assert copies(store) == {keys_of(first)[0]: to_bytes(first.manifest)}


def test_a_reader_of_the_past_sees_that_version_and_no_other() -> None:
    store = memory()
    writer = publication(store, keeps_versions=True)
    first = writer.swap(None, next_of(None))
    second = writer.swap(first, next_of(first))
    then = publication(store, at="1")
    for read in (then.require, then.known, then.current, then.seen):
        found = read()
        assert found is not None
        assert found.manifest.commit_id == first.manifest.commit_id
    writer.swap(second, next_of(second))
    assert then.require().manifest.number == 1


def test_a_reader_of_the_past_asks_next_to_nothing_of_the_store_again() -> None:
    store = memory()
    publication(store, keeps_versions=True).swap(None, next_of(None))
    watched = Watched()
    then = publication(FaultyStore(store, watched), at="1")
    then.require()
    watched.asked.clear()
    then.require()
    assert watched.asked == ["get_if_changed"]


def test_a_version_that_is_no_longer_kept_is_reported_to_its_reader() -> None:
    store = memory()
    writer = publication(store, keeps_versions=True)
    first = writer.swap(None, next_of(None))
    writer.swap(first, next_of(first))
    then = publication(store, at="1")
    assert then.require().manifest.number == 1
    store.delete(keys_of(first)[0])
    for reader in (then, publication(store, at="1")):
        with pytest.raises(errors.NotFoundError) as raised:
            reader.require()
        assert (raised.value.code, raised.value.details["kb_id"]) == ("E218", "kb")


def test_the_past_of_nothing_is_nothing() -> None:
    then = publication(memory(), at="1")
    assert then.current() is None
    with pytest.raises(errors.NotFoundError) as raised:
        then.require()
    assert raised.value.code == "E201"


def test_the_past_is_not_written_to() -> None:
    store, steps = memory(), list[str]()
    first = publication(store, keeps_versions=True).swap(None, next_of(None))
    then = publication(store, steps, keeps_versions=True, at="1")
    writes: list[Callable[[], object]] = [
        lambda: then.swap(first, next_of(first)),
        lambda: then.upload([]),
        then.refuse_past,
    ]
    for write in writes:
        with pytest.raises(errors.UsageError) as raised:
            write()
        assert (raised.value.code, raised.value.details) == ("E219", {"kb_id": "kb", "version": 1})
    assert steps == []
    assert stored(store).number == 1
    publication(store).refuse_past()


def test_a_version_that_is_deleted_during_a_lookup_is_missing() -> None:
    store = memory()
    writer = publication(store, keeps_versions=True)
    first = writer.swap(None, next_of(None))
    writer.swap(first, next_of(first))
    reads = itertools.count()

    def going(operation: str, key: str) -> Fault:
        if operation == "get" and key == keys_of(first)[0] and next(reads):
            store.delete(key)
        return "none"

    with pytest.raises(errors.NotFoundError) as raised:
        publication(FaultyStore(store, going), at="1").require()
    assert (raised.value.code, raised.value.details) == ("E218", {"kb_id": "kb", "version": "1", "kept": []})


def test_a_copy_that_cannot_be_taken_back_is_left() -> None:
    store = memory()
    first = publication(store, keeps_versions=True).swap(None, next_of(None))
    publication(store).swap(first, next_of(first))

    def stuck(operation: str, _key: str) -> Fault:
        return "before" if operation == "delete" else "none"

    with pytest.raises(errors.ConflictError) as raised:
        publication(FaultyStore(store, stuck), keeps_versions=True).swap(first, next_of(first))
    assert raised.value.code == "E202"


# ── the clock of the store ─────────────────────────────────────────────────────────────────────────


def test_the_time_is_that_of_the_store() -> None:
    clock = ManualClock()
    published = publication(MemoryStore(clock))
    assert published.now() == NOON
    clock.advance(3600)
    assert published.now() == NOON + datetime.timedelta(hours=1)


def test_a_store_that_does_not_show_a_write_gives_no_time() -> None:
    class Forgetful(MemoryStore):
        def list(self, prefix: str) -> Iterator[BlobInfo]:
            return iter(())

    store = Forgetful(ManualClock())
    with pytest.raises(errors.StorageError) as raised:
        publication(store).now()
    assert raised.value.code == "E206"
    assert "It does not show what was just written" in format_error(raised.value)


def test_only_the_first_read_returns_a_first_manifest() -> None:
    store = memory()
    publication(store).swap(None, next_of(None))
    reader = publication(store)
    first = reader.first()
    assert first is not None
    assert first.manifest.number == 1
    assert reader.first() is None
