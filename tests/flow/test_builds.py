"""Large loads built by workers: the same KB as without workers, even if a worker dies."""

import contextlib
import dataclasses
import functools
import json
import os
import re
import select
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from pair.blobs.local import LocalStore
from pair.engine.format.manifest import builds_prefix, from_bytes, manifest_key, shards_prefix
from pair.engine.write.bulk_load import BuildPart, BuildProgress, Built, Task, split_parts
from pair.engine.write.prepare import estimate_bytes, split_batches
from pair.kb import ingest
from pair.kb.ingest import runner
from pair.kb.kb import KnowledgeBase
from pair.kb.open import open_kb
from pair.kb.runners import ProcessRunner, Setup, make_part_builder
from pair.settings import Settings
from pair.values import Document
from support.command import Workplace
from support.engine_parts import MANY_SHARDS, engine_settings
from support.errors import code_of, raises_code
from support.fed_ingest import FedIngest, lines_of

KB = "kb"
WORDS = ["castle", "river", "bridge", "harbour", "mountain", "winter", "letter", "garden", "window", "market"]
PART_BYTES = 2_500
PARTS: dict[str, Any] = {"build_part_bytes": PART_BYTES, "compaction_enabled": False}
MANY: dict[str, Any] = {**MANY_SHARDS, "build_part_bytes": PART_BYTES, "graph": "text"}


def pages(count: int, version: str = "") -> list[Document]:
    """Return documents. About ten of them make a part."""
    return [
        Document(
            f"page-{number:03}",
            f"The {WORDS[number % 10]} of {WORDS[number % 7].title()} {number}. It was {version or 'first'} told of.",
            title=f"{WORDS[number % 9]} {number}",
            metadata={"year": 1900 + number},
        )
        for number in range(count)
    ]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return engine_settings(tmp_path, **PARTS)


class InThisProcess:
    """A runner without processes, which records its tasks."""

    def __init__(self, settings: Settings) -> None:
        self.workers = 1
        self.parts: list[BuildPart] = []
        self._builder = make_part_builder(Setup(KB, settings, settings.engine.cache_dir))

    def expect_work(self) -> None:
        pass

    def built(self, tasks: Iterator[Task]) -> Iterator[Built]:
        for task in tasks:
            if isinstance(task, BuildPart):
                self.parts.append(task)
            yield self._builder.build(task)


def store_of(settings: Settings) -> LocalStore:
    return LocalStore(Path(settings.engine.store))


def folders_in(settings: Settings) -> set[str]:
    """Return the folders of the shards in the store."""
    return {blob.key.rpartition("/")[0] for blob in store_of(settings).list(shards_prefix(KB))}


def records_in(settings: Settings) -> list[str]:
    return [blob.key for blob in store_of(settings).list(builds_prefix(KB))]


def named_by_the_manifest(settings: Settings) -> set[str]:
    blob = store_of(settings).get(manifest_key(KB))
    return set() if blob is None else {shard.folder for shard in from_bytes(blob.data, "manifest").shards}


def state_of(kb: KnowledgeBase) -> list[dict[str, Any]]:
    return [each.to_json() for each in kb.documents(limit=10_000)]


def answers_of(kb: KnowledgeBase, modes: Sequence[str] = ("hybrid", "keyword", "vector", "graph")) -> list[Any]:
    found = []
    for query in ("castle of Bridge", "winter letter 12", '"was first told"', "garden -market"):
        for mode in modes:
            hits = kb.search(query, limit=20, mode=mode, exact=True)
            found.append([(hit.chunk_id, hit.text, round(hit.score, 5), hit.metadata) for hit in hits])
    return found


# ── the plan ───────────────────────────────────────────────────────────────────────────────────────


def test_a_short_load_is_divided_evenly_and_a_long_one_into_parts_that_fit() -> None:
    page = Document("page", "x" * 1_000_000)
    short = [len(part) for part in split_parts([page] * 8, 2, 16_000_000)]
    assert short == [4, 4]
    long = list(split_parts(iter([page] * 100), 2, 10_000_000))
    assert sum(map(len, long)) == 100
    assert all(sum(map(estimate_bytes, part)) <= 10_000_000 for part in long)
    assert len(long[-1]) < len(long[0]), "the last ones are smaller, so that workers finish together"
    assert [len(part) for part in split_parts([Document("large", "x" * 5000)] * 2, 1, 100)] == [1, 1]
    assert list(split_parts([], 2, 100)) == []


def test_batches_are_bounded_by_documents_and_by_bytes() -> None:
    assert [len(batch) for batch in split_batches([Document("page", "x" * 800)] * 7, 3, 10_000)] == [3, 3, 1]
    assert [len(batch) for batch in split_batches([Document("page", "x" * 800)] * 7, 100, 2_000)] == [2, 2, 2, 1]
    assert [len(batch) for batch in split_batches([Document("page", "x" * 8000)] * 2, 100, 2_000)] == [1, 1]
    assert estimate_bytes(Document("page", "\u00e9" * 100)) == estimate_bytes(Document("page", "x" * 200))


def test_workers_are_taken_where_they_pay_for_themselves_and_no_document_is_lost(settings: Settings) -> None:
    small = [Document(str(number), "short") for number in range(9)]
    large = [Document(str(number), "x" * 1_000_000) for number in range(9)]
    several = dataclasses.replace(settings, engine=dataclasses.replace(settings.engine, build_workers=2))
    for documents, is_large in ((small, False), (large, True), ([], False)):
        decided, left = ingest._is_large(iter(documents), several)
        assert decided is is_large
        assert list(left) == documents
    alone = dataclasses.replace(settings, engine=dataclasses.replace(settings.engine, build_workers=1))
    assert ingest._is_large(iter(large), alone)[0] is False


# ── the same as without workers ────────────────────────────────────────────────────────────────────


def test_processes_build_the_same_kb_as_a_plain_ingest(tmp_path: Path) -> None:
    """The load makes many shards in several runs, which compaction then merges."""
    documents, settings = pages(60), engine_settings(tmp_path, **MANY)
    told: list[BuildProgress] = []
    with open_kb(KB, settings=settings) as built, runner("local", KB, settings, 2) as workers:
        report = built.maintenance.build(iter(documents), workers, on_progress=told.append)
        assert (report.added, report.replaced, report.unchanged) == (60, 0, 0)
        assert told[-1] == BuildProgress(read=60, built=60, workers=2)
        with open_kb(KB, settings=engine_settings(tmp_path / "plain", **MANY)) as plain:
            plain.upsert(documents)
            assert state_of(built) == state_of(plain)
            assert answers_of(built) == answers_of(plain)
        assert records_in(settings) == [], "published, and so of no use any more"
        # Again, with a third of them changed, one gone over twice, and some that are new.
        after = [*pages(20, "again"), *documents[20:], *pages(64)[60:], Document("page-000", "the last word")]
        again = built.maintenance.build(iter(after), workers)
        assert (again.added, again.replaced, again.unchanged) == (4, 20, 40)
        assert built.document("page-000").text == "the last word"
        assert built.document("page-001").text.endswith("again told of.")


def test_unchanged_documents_cost_nothing(settings: Settings) -> None:
    with open_kb(KB, settings=settings) as kb:
        first = kb.maintenance.build(pages(30), InThisProcess(settings))
        with runner("local", KB, settings, 2) as workers:
            second = kb.maintenance.build(pages(30), workers)
            assert isinstance(workers, ProcessRunner)
            assert workers._running == [], "no worker was started"
        assert (second.added, second.unchanged) == (0, 30)
        assert second.manifest_version == first.manifest_version
        assert kb.maintenance.build([], InThisProcess(settings)).manifest_version == first.manifest_version


def test_the_last_of_several_documents_with_one_id_wins_at_any_position(settings: Settings) -> None:
    old, new = Document("twice", "the old text"), Document("twice", "the new text")
    with open_kb(KB, settings=settings) as kb:
        report = kb.maintenance.build([old, *pages(40), new], InThisProcess(settings))
        assert (report.added, kb.document("twice").text) == (41, "the new text")
        # The last is what is stored already; the first would replace it.
        kb.maintenance.build([old, *pages(40, "again"), new], InThisProcess(settings))
        assert kb.document("twice").text == "the new text"
        assert len(kb.documents(limit=100)) == 41


def test_a_load_is_visible_at_once_and_with_one_swap(settings: Settings) -> None:
    with open_kb(KB, settings=settings) as kb:
        kb.upsert(pages(1, "before"))
        seen = set()

        def look(_: BuildProgress) -> None:
            seen.add((kb.version()[0], len(kb.documents(limit=100))))

        report = kb.maintenance.build(pages(50), InThisProcess(settings), on_progress=look)
        assert seen == {(1, 1)}
        assert report.manifest_version == 2


def test_an_invalid_document_is_refused_and_changes_nothing(settings: Settings) -> None:
    with open_kb(KB, settings=settings) as kb:
        kb.upsert(pages(2))
        for bad, code in (
            (Document("", "text"), "E213"),
            (Document("bad", "text", metadata={"no": object()}), "E213"),
            (Document("bad", "text", vector=[1.0, 2.0]), "E303"),
        ):
            with runner("local", KB, settings, 1) as workers:
                build = functools.partial(kb.maintenance.build, [*pages(30), bad], workers)
                assert code_of(build) == code
        assert [each["id"] for each in state_of(kb)] == ["page-000", "page-001"]
    memory = engine_settings(Path(settings.engine.store), store="memory:")
    assert code_of(lambda: runner("local", KB, memory)) == "E401"


# ── others write meanwhile ─────────────────────────────────────────────────────────────────────────


def test_documents_that_others_wrote_meanwhile_stay_and_the_same_ids_are_replaced(settings: Settings) -> None:
    with open_kb(KB, settings=settings) as kb, open_kb(KB, settings=settings) as other:
        kb.upsert([*pages(3), Document("theirs", "kept")])
        done: list[bool] = []

        def interfere(progress: BuildProgress) -> None:
            if progress.built and not done:
                done.append(True)
                other.upsert([Document("page-007", "from somebody else"), Document("late", "also kept")])
                other.delete(["theirs"])
                other.maintenance.compact(everything=True)

        report = kb.maintenance.build(pages(30, "again"), InThisProcess(settings), on_progress=interfere)
        assert (report.added, report.replaced) == (26, 4)
        assert kb.document("page-007").text.endswith("again told of.")
        assert {each["id"] for each in state_of(kb)} == {each.id for each in pages(30)} | {"late"}


def test_two_who_build_the_same_at_once_do_not_harm_each_other(settings: Settings) -> None:
    def building(then: Callable[[KnowledgeBase], object]) -> Callable[[], object]:
        """Run a build, and another build of the same documents before its swap."""
        done: list[bool] = []

        def overtake(progress: BuildProgress) -> None:
            if progress.built == 30 and not done:
                done.append(True)
                second = InThisProcess(settings)
                with open_kb(KB, settings=settings) as other:
                    other.maintenance.build(pages(30, KB), second)
                    assert second.parts == [], "what the first had built was not built again"
                    then(other)

        return lambda: kb.maintenance.build(pages(30, KB), InThisProcess(settings), on_progress=overtake)

    with open_kb(KB, settings=settings) as kb:
        building(lambda other: None)()
        assert len(state_of(kb)) == 30
        kb.delete([each.id for each in pages(30)])

        def sweep_away(other: KnowledgeBase) -> None:
            other.upsert(pages(31, "newer"))
            other.maintenance.compact(everything=True)
            other.maintenance.collect(grace_seconds=0)

        assert code_of(building(sweep_away)) == "E217"
        assert {each["text"].rpartition(" told")[0][-5:] for each in state_of(kb)} == {"newer"}


# ── memory ─────────────────────────────────────────────────────────────────────────────────────────


def peak_bytes(process: int) -> int:
    """Return the peak memory of a process."""
    status = Path(f"/proc/{process}/status").read_text()
    return 1024 * int(re.findall(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)[0])


def test_the_memory_of_a_worker_does_not_grow_with_the_documents(tmp_path: Path) -> None:
    """The test compares the peak after a few parts, when everything is loaded, with the peak after many more."""
    settings = engine_settings(tmp_path, build_part_bytes=500_000, compaction_enabled=False)
    text_bytes, few, many = 10_000, 300, 800
    words = " ".join(f"word{number}" for number in range(text_bytes // 4))
    documents = (Document(f"page-{number}", words[number:][:text_bytes]) for number in range(many))
    peaks: dict[int, int] = {}
    with open_kb(KB, settings=settings) as kb, runner("local", KB, settings, 1) as workers:
        assert isinstance(workers, ProcessRunner)

        def look(progress: BuildProgress) -> None:
            (worker,) = workers._running
            peaks[progress.built] = peak_bytes(worker._process.pid)

        assert kb.maintenance.build(documents, workers, on_progress=look).added == many
    early = min(built for built in peaks if built >= few)
    assert early < many / 2
    assert peaks[many] - peaks[early] < text_bytes * (many - early), "it does not even keep the texts"


# ── who dies ───────────────────────────────────────────────────────────────────────────────────────


def test_a_worker_that_is_killed_is_replaced(settings: Settings) -> None:
    with open_kb(KB, settings=settings) as kb, runner("local", KB, settings, 2) as workers:
        assert isinstance(workers, ProcessRunner)
        killed: set[int] = set()

        def kill(progress: BuildProgress) -> None:
            busy = [worker._process.pid for worker in workers._running if worker.task]
            if busy and len(killed) < 3:
                killed.update(busy)
                for process in busy:
                    os.kill(process, signal.SIGKILL)

        report = kb.maintenance.build(pages(60), workers, on_progress=kill)
        assert len(killed) >= 2
        assert report.added == 60
        assert [each["text"] for each in state_of(kb)] == [each.text for each in pages(60)]


def test_a_part_over_which_workers_die_again_and_again_is_given_up(
    settings: Settings, capfd: pytest.CaptureFixture[str]
) -> None:
    nothing: Any = None
    with open_kb(KB, settings=settings) as kb, ProcessRunner(Setup(KB, nothing, ""), 1, attempts=2) as workers:
        with raises_code("E216") as caught:
            kb.maintenance.build(pages(3), workers)
        assert "ended with status 1" in caught.value.explanation
        assert kb.stats().manifest_version == 0
    assert "AttributeError" in capfd.readouterr().err


def test_an_error_in_a_worker_is_raised_unchanged(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "a file").touch()
    setup = Setup(KB, settings, str(tmp_path / "a file" / "below"))
    with open_kb(KB, settings=settings) as kb, ProcessRunner(setup, 1, attempts=2) as workers:
        assert code_of(lambda: kb.maintenance.build(pages(3), workers)) == "E010"


def wait_for_the_end_of(processes: list[int]) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(process)
            assert select.select([descriptor], [], [], 30)[0], "it goes on without its driver"
            os.close(descriptor)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=lambda number: str(number.name))
def test_an_interrupted_build_leaves_the_kb_unchanged_and_is_resumed(
    workplace: Workplace, number: signal.Signals
) -> None:
    workplace.environment["PAIR__ENGINE__BUILD_PART_BYTES"] = str(PART_BYTES)
    settings = engine_settings(workplace.folder / ".pair")
    documents = pages(60)
    running = FedIngest(workplace, KB, documents)
    workers = running.workers_when_built(20)
    assert len(workers) == 2
    assert running.end(number) == (130 if number is signal.SIGINT else -number)
    wait_for_the_end_of(workers)
    assert named_by_the_manifest(settings) == set()
    kept = {key.split("/")[1] for key in records_in(settings)}
    assert len(kept) >= 2
    built_before = folders_in(settings)
    (workplace.folder / "pages.jsonl").write_text(lines_of(documents))
    done = workplace.pair(
        *("ingest", "pages.jsonl", "--kb", KB, "--runner", "local", "--workers", "2", "--json"),
        PAIR__ENGINE__COMPACTION_ENABLED="false",
    )
    assert done.json["added"] == 60
    named = named_by_the_manifest(settings)
    assert len(named & built_before) >= 2, "what was built is not built again"
    found = workplace.pair("docs", "list", "--kb", KB, "--limit", "100", "--json").json
    assert len(found["documents"] if isinstance(found, dict) else found) == 60


# ── Ray ────────────────────────────────────────────────────────────────────────────────────────────


def processes_of_ray() -> list[int]:
    """Return the Ray processes that work for this process."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            ancestor = int(folder.name)
            if not (folder / "cmdline").read_bytes().startswith(b"ray::_build"):
                continue
            while ancestor > 1 and ancestor != os.getpid():
                ancestor = int((Path("/proc") / str(ancestor) / "stat").read_text().rpartition(")")[2].split()[1])
            if ancestor == os.getpid():
                found.append(int(folder.name))
    return found


def test_ray_builds_the_same_kb_and_replaces_a_worker_that_is_killed(tmp_path: Path, settings: Settings) -> None:
    killed: list[int] = []

    def kill(progress: BuildProgress) -> None:
        for process in processes_of_ray()[: 1 - len(killed)]:
            os.kill(process, signal.SIGKILL)
            killed.append(process)

    documents = pages(60)
    with open_kb(KB, settings=settings) as built, runner("ray", KB, settings, 2) as workers:
        assert workers.workers == 2
        report = built.maintenance.build(documents, workers, on_progress=kill)
        assert killed, "one of them"
        assert (report.added, report.manifest_version) == (60, 1)
        assert code_of(lambda: built.maintenance.build([*documents, Document("", "no id")], workers)) == "E213"
        with open_kb(KB, settings=engine_settings(tmp_path / "plain")) as plain:
            plain.upsert(documents)
            assert state_of(built) == state_of(plain)
            assert answers_of(built, ("hybrid", "keyword", "vector")) == answers_of(
                plain, ("hybrid", "keyword", "vector")
            )


# ── garbage ────────────────────────────────────────────────────────────────────────────────────────


class _StoppedError(Exception):
    pass


def interrupted(settings: Settings, documents: list[Document], parts: int) -> None:
    """Run a build that is stopped after this number of parts."""

    def stop(progress: BuildProgress) -> None:
        if len(records_in(settings)) >= parts:
            raise _StoppedError

    with open_kb(KB, settings=settings) as kb, pytest.raises(_StoppedError):
        kb.maintenance.build(documents, InThisProcess(settings), on_progress=stop)


def test_the_shards_of_an_interrupted_build_are_kept_for_the_next_run_but_not_for_ever(settings: Settings) -> None:
    with open_kb(KB, settings=settings) as kb:
        kb.upsert(pages(1, "before"))
        interrupted(settings, pages(40), 2)
        made = folders_in(settings) - named_by_the_manifest(settings)
        assert kb.maintenance.collect(grace_seconds=0).deleted_shards == 0
        assert folders_in(settings) >= made
        with open_kb(KB, settings=impatient(settings)) as other:
            assert other.maintenance.collect(grace_seconds=0).deleted_shards == len(made)
        assert not folders_in(settings) & made
        assert records_in(settings) == []
        again = InThisProcess(settings)
        kb.maintenance.build(pages(40), again)
        assert len(state_of(kb)) == 40
        assert sum(len(part.batch.documents) for part in again.parts) == 40


def impatient(settings: Settings) -> Settings:
    return dataclasses.replace(settings, engine=dataclasses.replace(settings.engine, gc_build_seconds=0.0))


def test_a_part_whose_files_are_gone_or_whose_record_is_damaged_is_built_again(settings: Settings) -> None:
    interrupted(settings, pages(40), 3)
    store = store_of(settings)
    first, second, *_ = records_in(settings)
    gone = json.loads(store.get(first).data)["shards"][0]["key"]  # type: ignore[union-attr]
    store.delete(next(blob.key for blob in store.list(gone)))
    store.put(second, b"no record")
    again = InThisProcess(settings)
    with open_kb(KB, settings=settings) as kb:
        kb.maintenance.build(pages(40), again)
        assert [each["text"] for each in state_of(kb)] == [each.text for each in pages(40)]
        assert 0 < sum(len(part.batch.documents) for part in again.parts) < 40


def test_a_build_that_garbage_collection_overtook_says_so(settings: Settings) -> None:
    with open_kb(KB, settings=settings) as kb, open_kb(KB, settings=impatient(settings)) as collector:
        kb.upsert(pages(1, "before"))

        def collect(progress: BuildProgress) -> None:
            if progress.built > 20:
                collector.maintenance.collect(grace_seconds=0)

        assert code_of(lambda: kb.maintenance.build(pages(40), InThisProcess(settings), on_progress=collect)) == "E217"
        assert [each["text"] for each in state_of(kb)] == [pages(1, "before")[0].text]
        kb.maintenance.build(pages(40), InThisProcess(settings))
        assert len(state_of(kb)) == 40
