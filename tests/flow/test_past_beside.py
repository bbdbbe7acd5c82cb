"""Earlier versions that are open beside the current one share its open files, are limited, and are closed."""

import gc
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pair.app.open_kbs import OpenVersions
from pair.engine.maintenance.merge_package import PackageShards
from pair.errors import NotFoundError
from pair.kb.kb import KnowledgeBase
from pair.testing.faulty_store import Fault, FaultyStore
from pair.values import Document
from support.engine_parts import MANY_SHARDS, Ground, counted
from support.errors import raises_code
from support.s3_server import S3Server
from support.threads import threads_running

COLOURS = ("red", "green", "blue", "amber", "violet")
NAMES = ("door", "roof")


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return Ground(tmp_path, keep_versions=10)


def paint(kb: KnowledgeBase, colour: str, names: tuple[str, ...] = NAMES) -> int:
    return kb.upsert([Document(name, f"The {name} is painted {colour}.") for name in names]).manifest_version


def colours(kb: KnowledgeBase) -> set[str]:
    """Return the colours of all hits."""
    hits = kb.search("painted", limit=100, exact=True)
    return {hit.text.rpartition(" ")[2].rstrip(".") for hit in hits}


def open_shards(folder: Path) -> set[str]:
    """Return the folders of a cache in which this process has an open or mapped file."""
    gc.collect()
    links = (os.path.realpath(f"/proc/self/fd/{each}") for each in os.listdir("/proc/self/fd"))
    mapped = (f"/{line.partition('/')[2]}" for line in Path("/proc/self/maps").read_text().splitlines())
    return {str(Path(each).parent) for each in (*links, *mapped) if each.startswith(str(folder))}


def test_a_version_stays_readable_when_its_copy_is_written_again(ground: Ground) -> None:
    with ground.open() as kb, ground.open() as other:
        paint(kb, "red")
        number = paint(kb, "blue")
        with kb.versions.open(number) as then, ground.open(at=number) as alone:
            assert (colours(then), colours(alone)) == ({"blue"}, {"blue"})
            other.versions.rollback(1)
            [copy] = ground.store.rglob(f"{number:010}-*.json")
            content = copy.read_bytes()
            copy.unlink()
            copy.write_bytes(content)  # as a repair does
            assert (colours(then), colours(alone), colours(kb)) == ({"blue"}, {"blue"}, {"red"})
            copy.unlink()
            for each in (then, alone):
                with raises_code("E218", NotFoundError):
                    colours(each)


def test_old_versions_can_be_read_beside_the_current_one(ground: Ground) -> None:
    with ground.open() as kb:
        numbers = {paint(kb, colour): colour for colour in COLOURS}
        for number, colour in numbers.items():
            with kb.versions.open(number) as then, ground.open(at=number) as alone:
                assert colours(then) == {colour}
                assert then.document("door").text == f"The door is painted {colour}."
                mine, others = (each.search("the door", exact=True) for each in (then, alone))
                assert list(mine) == list(others)
                assert (mine.manifest_version, others.manifest_version) == (number, number)
        assert colours(kb) == {"violet"}


def test_shards_that_are_open_are_shared_and_stay_while_others_are_written(ground: Ground) -> None:
    store, requests = counted(ground.blobs())
    with ground.open(store=store) as kb:
        number = paint(kb, "red")
        assert colours(kb) == {"red"}
        fetched = requests.counts["download"]
        past = OpenVersions()
        assert past.read(kb, number, colours) == {"red"}
        assert requests.counts["download"] == fetched, "the current one has it open"
        paint(kb, "green")
        assert colours(kb) == {"green"}
        written = requests.counts["download"]
        assert past.read(kb, number, colours) == {"red"}
        assert requests.counts["download"] == written, "it is held"
        past.close()
        assert colours(kb) == {"green"}
        assert requests.counts["download"] == written, "the current version is not closed with it"


def test_so_many_are_open_and_no_more_and_closing_leaves_no_file_open(ground: Ground) -> None:
    with ground.open() as kb:
        numbers = [paint(kb, colour) for colour in COLOURS]
        assert colours(kb) == {"violet"}
        before = open_shards(ground.cache)
        past = OpenVersions(most=2)
        seen = []
        for number, colour in [*zip(numbers, COLOURS, strict=True)] * 2:
            assert past.read(kb, number, colours) == {colour}
            assert past.read(kb, number, lambda then: then.document("roof").text).endswith(f" {colour}.")
            seen.append(len(open_shards(ground.cache)))
        assert max(seen) == 3, "two of the past, and the current one"
        past.close()
        assert open_shards(ground.cache) == before


def test_files_stay_open_while_they_are_read(ground: Ground) -> None:
    with ground.open() as kb:
        numbers = [paint(kb, colour) for colour in COLOURS]
        past = OpenVersions(most=1)

        def slowly(then: KnowledgeBase) -> set[str]:
            for number in numbers:
                past.read(kb, number, colours)
            past.close()
            return colours(then)

        assert past.read(kb, numbers[1], slowly) == {"green"}
        assert past.read(kb, numbers[2], colours) == {"blue"}
        past.close()


def test_a_version_that_is_collected_between_two_questions_is_reported_as_missing(ground: Ground) -> None:
    with ground.with_policy(keep_versions=1).open() as kb:
        past = OpenVersions()
        number = paint(kb, "red")
        paint(kb, "green")
        assert past.read(kb, number, colours) == {"red"}
        collection = past.collection(kb, number)
        hits, _ = collection.search("door", limit=1, mode="hybrid")
        assert hits[0].text == "The door is painted red."
        for colour in COLOURS[2:]:
            paint(kb, colour)
        kb.maintenance.collect(grace_seconds=0)
        for ask in (
            lambda: past.read(kb, number, colours),
            lambda: past.read(kb, number, lambda then: then.document("door")),
            lambda: past.read(kb, number, lambda then: then.version()),
            lambda: collection.search("door", limit=1, mode="hybrid"),
        ):
            with raises_code("E218", NotFoundError):
                ask()
        past.close()


def test_a_version_of_a_recreated_kb_is_that_of_the_new_one(ground: Ground) -> None:
    with ground.open() as kb:
        past = OpenVersions()
        number = paint(kb, "red")
        paint(kb, "green")
        assert past.read(kb, number, colours) == {"red"}
        shutil.rmtree(ground.store)
        with ground.open() as other:
            paint(other, "blue")
            paint(other, "amber")
        assert past.read(kb, number, colours) == {"blue"}
        past.close()


def test_the_version_of_a_package_is_the_one_that_was_installed_last(ground: Ground, tmp_path: Path) -> None:
    with ground.open() as kb:
        past = OpenVersions()
        for colour in ("red", "green"):
            origin = Ground(tmp_path / colour)
            with origin.open("origin") as made:
                paint(made, colour)
                packed = made.backup.pack_index()
            paths = {each.name: origin.store / each.key for each in packed.files}
            package = PackageShards(
                packed.manifest, "house", "house 1.0.0", colour, paths.get, owner="package", is_verified=True
            )
            kb.backup.package_merger().install(package)
            paint(kb, "blue", ("hall",))
            assert past.read(kb, "1.0.0", colours) - {"blue"} == {colour}
        past.close()


def test_a_shard_that_is_collected_during_a_read_gives_an_answer_or_an_error(ground: Ground) -> None:
    """The collection runs between any two requests of the reader."""
    outcomes = set[object]()
    for step in range(0, 12, 2):
        here = Ground(ground.folder / str(step), keep_versions=1)
        with here.open() as writer:
            number = paint(writer, "red")
            paint(writer, "green")
            with here.open(store=FaultyStore(here.blobs(), _Collecting(writer, step))) as kb:
                past = OpenVersions()
                try:
                    outcomes.add(tuple(past.read(kb, number, colours)))
                except NotFoundError as gone:
                    outcomes.add(gone.code)
                past.close()
    assert outcomes == {("red",), "E218"}


def test_it_is_the_same_on_a_bucket(tmp_path: Path, s3: S3Server) -> None:
    """On a bucket, files are read in pieces, and reader and writer have separate caches."""

    def opened(name: str) -> KnowledgeBase:
        return Ground(tmp_path / name, keep_versions=1).open(store=s3.store("past"))

    with opened("writer") as writer, opened("reader") as kb:
        numbers = [paint(writer, colour) for colour in COLOURS[:2]]
        past = OpenVersions()
        assert [past.read(kb, number, colours) for number in numbers] == [{"red"}, {"green"}]
        third = paint(writer, "blue")
        assert (past.read(kb, numbers[1], colours), colours(kb)) == ({"green"}, {"blue"})
        writer.maintenance.collect(grace_seconds=0)
        with raises_code("E218", NotFoundError):
            past.read(kb, numbers[0], colours)
        assert past.read(kb, third, colours) == {"blue"}
        past.close()


class _Collecting:
    """A store that removes the version that is read before the n-th request."""

    def __init__(self, writer: KnowledgeBase, step: int) -> None:
        self._writer = writer
        self._left = step

    def __call__(self, _operation: str, _key: str) -> Fault:
        if self._left == 0:
            for colour in COLOURS[2:]:
                paint(self._writer, colour)
            self._writer.maintenance.collect(grace_seconds=0)
        self._left -= 1
        return "none"


def test_readers_of_the_past_are_right_or_refused_while_it_is_written_rolled_back_and_collected(tmp_path: Path) -> None:
    ground = Ground(tmp_path, keep_versions=6, **MANY_SHARDS)
    names = tuple(f"room {number}" for number in range(12))
    with ground.open() as kb, ground.open() as writer:
        told = {paint(writer, "red", names): "red"}
        done, wrong = threading.Event(), list[object]()
        past = OpenVersions(most=2)

        def read() -> None:
            for number in _again(done, told):
                expected = told[number]
                try:
                    found = past.read(kb, number, lambda then: [hit.text for hit in then.search("painted", limit=50)])
                except NotFoundError as gone:
                    if gone.code != "E218":
                        wrong.append(gone)
                    continue
                except Exception as fault:  # noqa: BLE001 - the main thread tells
                    wrong.append(fault)
                    continue
                if len(found) != len(names) or not all(text.endswith(f" {expected}.") for text in found):
                    wrong.append((number, expected, found))

        with threads_running(read, read):
            try:
                for turn in range(3):
                    colour = COLOURS[(turn + 1) % len(COLOURS)]
                    told[paint(writer, colour, names)] = colour
                    back = next(each for each in writer.versions.numbers() if told.get(each, colour) != colour)
                    told[writer.versions.rollback(back).manifest_version] = told[back]
                    writer.maintenance.compact(everything=True)
                    writer.maintenance.collect(grace_seconds=0)
            finally:
                done.set()
        past.close()
        assert wrong == []


def _again(done: threading.Event, told: dict[int, str]) -> Iterator[int]:
    """List the versions repeatedly, and record their numbers, newest first."""
    while not done.is_set():
        yield from sorted(told, reverse=True)[:5]
