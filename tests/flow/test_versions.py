"""Versions of a KB: every change makes one, and every kept version can be read and restored."""

import itertools
import threading
from pathlib import Path

import pytest

from pair.blobs.contract import Blob
from pair.blobs.local import LocalStore, MemoryStore
from pair.clock import SystemClock
from pair.engine.format.manifest import from_bytes, manifest_key, to_bytes, version_in_key, versions_prefix
from pair.engine.maintenance.merge_package import PackageShards
from pair.errors import ConflictError, DataError, NotFoundError, UsageError
from pair.kb.kb import KnowledgeBase
from pair.testing.clock import NOON, ManualClock
from pair.testing.faulty_store import Fault, FaultyStore
from pair.values import Document
from support.engine_parts import MANY_SHARDS, CountingEmbedder, Ground, MirroredEmbedder, Once, counted, read_blob
from support.errors import code_of, raises_code
from support.threads import threads_running

COLOURS = ("red", "green", "blue", "amber", "violet")


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return Ground(tmp_path, keep_versions=10)


def page(name: str, colour: str) -> Document:
    return Document(id=name, text=f"The {name} of the house is painted {colour}.")


def paint(kb: KnowledgeBase, colour: str, *names: str) -> int:
    return kb.upsert([page(name, colour) for name in names or ("door", "roof")]).manifest_version


def colours(kb: KnowledgeBase) -> dict[str, str]:
    return {each.id: each.text.rpartition(" ")[2].rstrip(".") for each in kb.documents()}


def kept(kb: KnowledgeBase) -> list[int]:
    return [each.number for each in kb.versions.list()]


def copies(ground: Ground) -> list[int]:
    found = (version_in_key(info.key) for info in ground.blobs().list(versions_prefix("default")))
    return sorted(version[0] for version in found if version is not None)


# ── listing ────────────────────────────────────────────────────────────────────────────────────────


def test_every_change_makes_a_version_that_says_what_made_it(ground: Ground) -> None:
    with ground.open() as kb:
        paint(kb, "red")
        kb.delete(["roof"])
        kb.versions.rollback(1)
        kb.maintenance.compact(everything=True)
        told = [(each.number, each.made_by, each.documents, each.restored) for each in kb.versions.list()]
        assert told[-3:] == [(3, "rollback", 2, 1), (2, "delete", 1, 0), (1, "upsert", 2, 0)]
        assert [each.is_current for each in kb.versions.list()] == [True, *[False] * (len(told) - 1)]


def test_a_write_that_changes_nothing_makes_no_version(ground: Ground) -> None:
    with ground.open() as kb:
        paint(kb, "red")
        paint(kb, "red")
        kb.versions.rollback(1)
        assert kept(kb) == [1]


def test_no_copies_are_made_where_no_versions_are_kept(ground: Ground) -> None:
    with ground.with_policy(keep_versions=0).open() as kb:
        paint(kb, "red")
        paint(kb, "green")
        assert (kept(kb), copies(ground)) == ([2], [])


def test_more_versions_than_a_manifest_remembers_are_listed_and_restored(ground: Ground) -> None:
    with ground.with_policy(keep_versions=200).open() as kb:
        for number in range(150):
            paint(kb, f"colour-{number}", "door")
        assert kept(kb) == list(range(150, 0, -1))
        kb.versions.rollback(2)
        assert colours(kb) == {"door": "colour-1"}


@pytest.mark.parametrize("wanted", ["7", "0", "-1", "1.0.0", "", "x", "99999999999999999999", "9" * 5000])
def test_a_version_that_is_not_kept_is_refused_with_those_that_are(ground: Ground, wanted: str) -> None:
    with ground.open() as kb:
        paint(kb, "red")
        with pytest.raises(NotFoundError) as refused:
            kb.versions.rollback(wanted)
        assert (refused.value.code, refused.value.details["kept"]) == ("E218", [1])
        with ground.open(at=wanted) as then, raises_code("E218", NotFoundError):
            then.search("door")


def test_a_kb_that_was_never_written_has_no_versions(ground: Ground) -> None:
    with ground.open() as kb:
        for ask in (kb.versions.list, lambda: kb.versions.rollback(1)):
            with raises_code("E201", NotFoundError):
                ask()
    assert not ground.store.exists()


# ── reading the past ───────────────────────────────────────────────────────────────────────────────


def test_the_current_version_can_be_read_by_its_number_where_none_is_kept(ground: Ground) -> None:
    with ground.with_policy(keep_versions=0).open() as kb:
        number = paint(kb, "red")
        with ground.open(at=number) as then:
            for _ in range(2):
                assert colours(then) == {"door": "red", "roof": "red"}
            paint(kb, "green")
            with raises_code("E218", NotFoundError):
                then.documents()


def test_a_reader_of_the_past_does_not_see_what_is_written_meanwhile(ground: Ground) -> None:
    with ground.open() as kb:
        paint(kb, "red")
        with ground.open(at=1) as then:
            assert colours(then) == {"door": "red", "roof": "red"}
            paint(kb, "green")
            kb.maintenance.compact(everything=True)
            assert colours(then) == {"door": "red", "roof": "red"}


def test_the_past_cannot_be_written_to(ground: Ground) -> None:
    """This holds for a version opened alone and beside the current one."""
    with ground.open() as kb:
        paint(kb, "red")
        paint(kb, "green")
        with ground.open(at=1) as alone, kb.versions.open(1) as beside:
            for then in (alone, beside):
                for write in (
                    lambda then=then: paint(then, "blue"),
                    lambda then=then: then.delete(["door"]),
                    lambda then=then: then.versions.rollback(1),
                    lambda then=then: then.maintenance.compact(everything=True),
                    lambda then=then: then.maintenance.collect(grace_seconds=0),
                ):
                    assert code_of(write) == "E219"
        assert (kb.version()[0], colours(kb)) == (2, {"door": "green", "roof": "green"})


# ── going back ─────────────────────────────────────────────────────────────────────────────────────


def test_a_rollback_stores_no_new_shard_and_is_a_version_itself(ground: Ground) -> None:
    store, requests = counted(ground.blobs())
    with ground.open() as kb:
        for colour in COLOURS:
            paint(kb, colour)
    with ground.open(store=store) as kb:
        done = kb.versions.rollback(2)
        assert (done.restored, done.manifest_version, done.documents, done.is_changed) == (2, 6, 2, True)
        assert colours(kb) == {"door": "green", "roof": "green"}
        assert kb.versions.rollback(5).manifest_version == 7
        assert colours(kb) == {"door": "violet", "roof": "violet"}
    assert requests.counts["upload"] == 0


def test_a_write_after_a_rollback_builds_on_the_restored_version(ground: Ground) -> None:
    with ground.open() as kb:
        paint(kb, "red")
        paint(kb, "green", "door")
        kb.versions.rollback(1)
        paint(kb, "blue", "roof")
        assert colours(kb) == {"door": "red", "roof": "blue"}


def test_going_back_to_before_a_re_embedding_brings_the_embedder_back(ground: Ground) -> None:
    with ground.open(embedder=CountingEmbedder()) as kb:
        paint(kb, "red")
        before = [hit.score for hit in kb.search("the door", exact=True)]
    with ground.open(embedder=MirroredEmbedder()) as kb:
        kb.maintenance.reembed()
        assert kb.versions.rollback(1).embedder != MirroredEmbedder().name
        with raises_code("E304", UsageError):
            kb.search("the door")
    with ground.open(embedder=CountingEmbedder()) as kb:
        assert [hit.score for hit in kb.search("the door", exact=True)] == before


def test_readers_see_one_version_or_another_while_it_is_rolled_back_and_forth(tmp_path: Path) -> None:
    ground = Ground(tmp_path, keep_versions=1000, **MANY_SHARDS)
    names = [f"room {number}" for number in range(30)]
    with ground.open() as kb:
        kb.upsert(page(name, "red") for name in names)
        red = kb.version()[0]
        kb.upsert(page(name, "green") for name in names)
        green = kb.version()[0]
    done, mixed = threading.Event(), []

    def read() -> None:
        with ground.open() as reader:
            while not done.is_set():
                hits = reader.search("painted", limit=30, exact=True)
                seen = {"red" if "red" in hit.text else "green" for hit in hits}
                if len(seen) != 1 or len(hits) != len(names):
                    mixed.append((seen, len(hits)))

    with threads_running(*[read] * 4), ground.open() as kb:
        try:
            for number in itertools.islice(itertools.cycle([red, green]), 40):
                kb.versions.rollback(number)
        finally:
            done.set()
    assert mixed == []


# ── keeping ────────────────────────────────────────────────────────────────────────────────────────


def test_garbage_collection_leaves_what_kept_versions_name(ground: Ground) -> None:
    few = ground.with_policy(keep_versions=2)
    with few.open() as kb:
        for colour in COLOURS:
            paint(kb, colour)
        assert kb.maintenance.collect(grace_seconds=0).kept_versions == 2
        assert kept(kb) == [6, 4, 3]
        for number, colour in ((3, "blue"), (4, "amber")):
            with few.open(at=number) as then:
                assert colours(then) == {"door": colour, "roof": colour}
        kb.versions.rollback(3)
        kb.maintenance.collect(grace_seconds=0)
        assert colours(kb) == {"door": "blue", "roof": "blue"}
    assert len(ground.stored_files(".search")) == 3


def test_a_reader_of_a_version_that_is_no_longer_kept_gets_an_error(ground: Ground) -> None:
    one = ground.with_policy(keep_versions=1)
    with one.open() as kb, one.open(at=1) as fresh, one.open(at=1) as reader:
        paint(kb, "red")
        assert colours(reader) == {"door": "red", "roof": "red"}
        for colour in COLOURS[1:]:
            paint(kb, colour)
        kb.maintenance.collect(grace_seconds=0)
        for then in (reader, fresh):
            for ask in (lambda then=then: then.search("door"), then.documents):
                with raises_code("E218", NotFoundError):
                    ask()


@pytest.mark.parametrize("year", [2000, 2200])
def test_days_are_counted_by_the_clock_of_the_store(tmp_path: Path, year: int) -> None:
    clock = ManualClock(NOON.replace(year=year))
    ground = Ground(tmp_path, keep_versions=0, keep_days=30, lease="memory")
    day = 86_400.0
    with ground.open(store=MemoryStore(clock)) as kb:
        for name in ("door", "roof", "hall"):
            paint(kb, "red", name)
            clock.advance(20 * day)
        kb.maintenance.collect(grace_seconds=0)
        assert kept(kb) == [3, 2], "the first one was replaced 40 days ago, and the second one 20 days ago"


def test_a_version_that_was_only_rearranged_is_kept_once(ground: Ground) -> None:
    with ground.open() as kb:
        paint(kb, "red")
        paint(kb, "green", "door")
        paint(kb, "blue", "hall")
        compacted = kb.maintenance.compact(everything=True).manifest_version
        kb.maintenance.collect(grace_seconds=0)
        assert kept(kb) == [compacted + 1, 2, 1]
        with ground.open(at=2) as then:
            assert colours(then) == {"door": "green", "roof": "red"}


def test_copies_of_writes_that_lost_are_not_versions_and_are_collected(ground: Ground) -> None:
    with ground.open() as kb:
        paint(kb, "red")
        real = next(iter(ground.blobs().list(versions_prefix("default"))))
        ground.blobs().put(
            real.key.replace(real.key.rpartition("-")[2], "stray.json"), read_blob(ground.blobs(), real.key)
        )
        paint(kb, "green")
        assert kept(kb) == [2, 1]
        assert copies(ground) == [1, 1, 2]
        kb.maintenance.collect(grace_seconds=0)
        assert copies(ground) == [1, 2]


def test_a_lost_swap_removes_its_copy() -> None:
    store = MemoryStore(SystemClock())
    overtaken = [False]

    def plan(operation: str, key: str) -> Fault:
        if operation == "put_if" and key == manifest_key("default") and not overtaken[0]:
            overtaken[0] = True
            paint(other, "green")
        return "none"

    ground = Ground(Path("unused"), keep_versions=10, write_attempts=1, lease="memory")
    with ground.open(store=store) as other, ground.open(store=FaultyStore(store, plan)) as kb:
        paint(other, "red")
        with pytest.raises(ConflictError):
            paint(kb, "blue")
        assert kept(kb) == [2, 1]
    found = [version_in_key(info.key) for info in store.list(versions_prefix("default"))]
    assert [version[0] for version in found if version] == [1, 2]


def test_a_damaged_copy_does_not_prevent_garbage_collection(ground: Ground) -> None:
    with ground.open() as kb:
        for colour in COLOURS:
            paint(kb, colour)
        first = next(iter(ground.blobs().list(versions_prefix("default"))))
        ground.blobs().put(first.key, b"{}")
        kb.maintenance.collect(grace_seconds=0)
        assert colours(kb) == {"door": "violet", "roof": "violet"}
        with ground.open(at=3) as then:
            assert colours(then) == {"door": "blue", "roof": "blue"}


def test_each_copy_is_the_manifest_that_was_published(ground: Ground) -> None:
    with ground.open() as kb:
        paint(kb, "red")
        paint(kb, "green")
        current = ground.blobs().get(manifest_key("default"))
        _, copy = ground.blobs().list(versions_prefix("default"))
        kept_copy = ground.blobs().get(copy.key)
        assert current is not None
        assert kept_copy is not None
        published = from_bytes(current.data, "manifest")
        assert published.dropped, "which a copy does not tell"
        assert kept_copy.data == to_bytes(published.make_copy())


def test_versions_of_an_earlier_pair_have_no_cause_and_can_be_restored(ground: Ground) -> None:
    with ground.with_policy(keep_versions=0).open() as kb:
        paint(kb, "red")
    with ground.open() as kb:
        paint(kb, "green")
        assert [(each.number, each.made_by) for each in kb.versions.list()] == [(2, "upsert")]
        paint(kb, "blue")
        kb.versions.rollback(2)
        assert kb.versions.list()[0].restored == 2


# ── in company ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("step", ["uploaded", "lease"])
def test_a_compaction_that_began_before_a_rollback_does_not_lose_restored_documents(ground: Ground, step: str) -> None:
    meanwhile = Once(step)
    with ground.open() as other, ground.open(on_step=meanwhile) as kb:
        paint(other, "red", "door", "roof")
        whole = paint(other, "green", "hall", "gate")
        other.delete(["door", "hall"])
        meanwhile.act = lambda: other.versions.rollback(whole)
        kb.maintenance.compact(everything=True)
        assert colours(kb) == {"door": "red", "roof": "red", "hall": "green", "gate": "green"}


@pytest.mark.parametrize("step", ["embed", "uploaded", "lease"])
@pytest.mark.parametrize("layout", ["tail", "runs"])
def test_a_re_embedding_that_began_before_a_rollback_does_not_lose_restored_documents(
    tmp_path: Path, step: str, layout: str
) -> None:
    ground = Ground(tmp_path, keep_versions=10, **(MANY_SHARDS if layout == "runs" else {}))
    meanwhile, names = Once(step), [f"room-{number}" for number in range(20)]
    with ground.open() as other, ground.open(embedder=MirroredEmbedder(), on_step=meanwhile) as kb:
        whole = paint(other, "red", *names)
        other.delete(names[::3])
        meanwhile.act = lambda: other.versions.rollback(whole)
        kb.maintenance.reembed()
        assert colours(kb) == dict.fromkeys(names, "red")
        assert not kb.search("room", limit=30, exact=True).partial


def test_shards_of_a_package_that_are_being_collected_are_brought_again(tmp_path: Path) -> None:
    origin, ground = Ground(tmp_path / "origin"), Ground(tmp_path / "here")
    with origin.open() as kb:
        paint(kb, "red")
        packed = kb.backup.pack_index()
    paths = {each.name: origin.store / each.key for each in packed.files}
    package = PackageShards(
        packed.manifest, "house", "house 1.0.0", "sha", paths.get, owner="package", is_verified=True
    )
    is_condemned, may_delete = threading.Event(), threading.Event()

    def wait() -> None:
        is_condemned.set()
        may_delete.wait(60)

    condemned, uploaded = Once("condemned"), Once("uploaded")
    condemned.act = wait
    with ground.open(on_step=condemned) as other, ground.open(on_step=uploaded) as kb:
        other.backup.package_merger().install(package)
        other.delete(["door", "roof"])
        collector = threading.Thread(target=lambda: other.maintenance.collect(grace_seconds=0))
        collector.start()
        is_condemned.wait(60)

        def finish() -> None:
            may_delete.set()
            collector.join()

        uploaded.act = finish
        kb.backup.package_merger().install(package)
        assert colours(kb) == {"door": "red", "roof": "red"}
        assert not kb.search("door", exact=True).partial


def test_a_version_that_is_not_kept_cannot_be_found_once_its_shards_are_judged(ground: Ground) -> None:
    found: list[list[int]] = []
    condemned = Once("condemned")
    condemned.act = lambda: found.append(copies(ground))
    with ground.with_policy(keep_versions=1).open(on_step=condemned) as kb:
        for colour in COLOURS:
            paint(kb, colour)
        kb.maintenance.collect(grace_seconds=0)
    assert found == [[4, 5, 6]]


def test_a_copy_that_arrives_damaged_once_is_read_again_before_its_shards_are_garbage(ground: Ground) -> None:
    with ground.open() as kb:
        for colour in COLOURS:
            paint(kb, colour)
    spoilt: set[str] = set()

    class Spoiling(LocalStore):
        """A store that truncates the first read of each copy."""

        def get(self, key: str) -> Blob | None:
            blob = super().get(key)
            if blob is None or versions_prefix("default") not in key or key in spoilt:
                return blob
            spoilt.add(key)
            return Blob(blob.data[: len(blob.data) // 2], blob.version)

    with ground.open(store=Spoiling(ground.store)) as kb:
        kb.maintenance.collect(grace_seconds=0)
    assert len(spoilt) == len(COLOURS) - 1
    for number, colour in enumerate(COLOURS, 1):
        with ground.open(at=number) as then:
            assert colours(then) == {"door": colour, "roof": colour}


def test_one_damaged_copy_among_many_hides_no_other(ground: Ground) -> None:
    many = ground.with_policy(keep_versions=200)
    with many.open() as kb:
        for number in range(70):
            paint(kb, f"colour-{number}", "door")
        listed = [info.key for info in ground.blobs().list(versions_prefix("default"))]
        last_that_the_current_one_names = next(key for key in listed if "/0000000006-" in key)
        ground.blobs().put(last_that_the_current_one_names, b"{}")
        ground.blobs().put(f"{versions_prefix('default')}0000000003-stray.json", b"{}")
        kb.maintenance.collect(grace_seconds=0)
        kb.versions.rollback(3)
        assert colours(kb) == {"door": "colour-2"}


def test_files_of_others_beside_the_copies_are_neither_versions_nor_deleted(ground: Ground) -> None:
    with ground.open() as kb:
        paint(kb, "red")
        (copy,) = [info.key for info in ground.blobs().list(versions_prefix("default"))]
        content = read_blob(ground.blobs(), copy)
        folder, _, name = copy.rpartition("/")
        foreign = [
            f"{folder}/old/{name}",
            f"{folder}/{name}.bak",
            f"{folder}/{name.lstrip('0')}",
            f"{folder}/notes.txt",
        ]
        for key in foreign:
            ground.blobs().put(key, content)
        paint(kb, "green")
        kb.maintenance.collect(grace_seconds=0)
        assert kept(kb) == [2, 1]
        assert {info.key for info in ground.blobs().list(versions_prefix("default"))} >= {copy, *foreign}


def test_a_version_that_is_damaged_hides_no_other(ground: Ground) -> None:
    with ground.open() as kb:
        for colour in COLOURS:
            paint(kb, colour)
        _, second, *_ = ground.blobs().list(versions_prefix("default"))
        ground.blobs().put(second.key, b"{}")
        assert kept(kb) == [5, 4, 3, 1]
        kb.versions.rollback(1)
        assert colours(kb) == {"door": "red", "roof": "red"}
        with ground.open(at=2) as then, raises_code("E207", DataError):
            then.documents()


def test_a_rolled_back_version_can_be_restored_even_if_it_was_not_kept(ground: Ground) -> None:
    with ground.open() as kb:
        paint(kb, "red")
    with ground.with_policy(keep_versions=0).open() as kb:
        paint(kb, "green")
    with ground.open() as kb:
        kb.versions.rollback(1)
        kb.versions.rollback(2)
        assert colours(kb) == {"door": "green", "roof": "green"}
