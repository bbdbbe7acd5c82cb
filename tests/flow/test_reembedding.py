"""Re-embedding of a live KB, with concurrent writers and kills."""

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pair import errors
from pair.blobs.local import MemoryStore
from pair.engine.format.array_file import ArrayFile
from pair.engine.format.columns import CHUNK_TYPE, DOC_TYPE
from pair.engine.format.manifest import Manifest, from_bytes, manifest_key
from pair.engine.maintenance.reembed import VectorJournal, hash_text
from pair.kb.kb import KnowledgeBase
from pair.testing.clock import NOON, ManualClock
from pair.testing.faulty_store import Fault, FaultyStore
from pair.values import MODES, Document
from support.engine_parts import (
    DIMENSION,
    MANY_SHARDS,
    CountingEmbedder,
    Ground,
    MirroredEmbedder,
    all_ids,
    flip_a_bit,
    ids_of,
    numbered,
    placed,
    random_vectors,
    read_blob,
    truncate,
)
from support.engine_worker import Job, Workers, read_log
from support.errors import code_of, raises_code

KB = "default"
OTHER = f"mirrored-{DIMENSION}-v1"
BATCH = 256
MANUAL = """# Manual

## Install

### Linux

The Tinker Workshop keeps the installer for Linux. Ask the Harbour Office for a key before you begin with it.

### Windows

Run the installer, and restart. The Tinker Workshop helps.

## Operate

The Harbour Office watches the gauges.
"""


def manifest_of(ground: Ground) -> Manifest:
    return from_bytes(read_blob(ground.blobs(), manifest_key(KB)), "manifest")


def vectors_of(ground: Ground) -> dict[str, Any]:
    """Return the stored vector of every live chunk, by id."""
    found: dict[str, Any] = {}
    for shard in manifest_of(ground).shards:
        pack = ArrayFile.open(ground.store / shard.key("search"))
        chunks, docs = pack.array("chunks", CHUNK_TYPE), pack.array("docs", DOC_TYPE)
        vectors, content = pack.array("vectors", "<f4", dimensions=2), pack.bytes("texts")
        for row, chunk in enumerate(chunks):
            doc = int(chunk["doc"])
            if shard.tombstones is not None and shard.tombstones[doc]:
                continue
            begin = int(docs[doc]["offset"])
            header = json.loads(bytes(content[begin : begin + int(docs[doc]["header_size"])]))
            found[f"{header['id']}#{row - int(docs[doc]['first_chunk'])}"] = vectors[row]
    return found


def stored_of(kb: KnowledgeBase) -> list[Any]:
    return [kb.document(name) for name in all_ids(kb, page=100)]


# ── what changes, and what does not ────────────────────────────────────────────────────────────────


@pytest.mark.rule("engine-33")
@pytest.mark.parametrize(("chunk_size", "usual"), [(None, 90), (90, 0)])
def test_the_result_is_that_of_a_kb_made_with_the_other_embedder(
    tmp_path: Path, chunk_size: int | None, usual: int
) -> None:
    policy: dict[str, Any] = {"graph": "text", "chunker": "structure", "chunk_size_bytes": usual, **MANY_SHARDS}
    documents = [*numbered(14), Document("ключ 🔑", MANUAL, title="Manual"), Document("dot", ".\n")]
    ground, fresh = Ground(tmp_path / "a", **policy), Ground(tmp_path / "b", **policy)
    for each, embedder in ((ground, CountingEmbedder()), (fresh, MirroredEmbedder())):
        with each.open(embedder=embedder) as kb:
            kb.upsert(documents, chunk_size=chunk_size)
            kb.upsert([Document("of sync", "Synced.")], owner="sync")
            kb.delete(["doc-0004", "doc-0007"])
    with ground.open() as kb:
        before = stored_of(kb)
        shards = manifest_of(ground).shards
    with ground.open(embedder=MirroredEmbedder()) as kb, fresh.open(embedder=MirroredEmbedder()) as made:
        report = kb.maintenance.reembed()
        assert (report.embedder_before, report.embedder, report.changed) == (f"ngram-{DIMENSION}-v1", OTHER, True)
        assert (report.documents, report.chunks) == (len(before), len(vectors_of(fresh)))
        assert stored_of(kb) == before, "texts, metadata, owners and hashes stay"
        assert {shard.folder for shard in shards}.isdisjoint(shard.folder for shard in manifest_of(ground).shards)
        found, expected = vectors_of(ground), vectors_of(fresh)
        assert found.keys() == expected.keys()
        assert all(np.array_equal(found[name], expected[name]) for name in found)
        for mode in MODES:
            for query in ("castles item2", "Harbour Office", "installer for Linux"):
                hits, wanted = (each.search(query, mode=mode, exact=True, limit=8) for each in (kb, made))
                assert [(hit.chunk_id, hit.text, round(hit.score, 5)) for hit in hits] == [
                    (hit.chunk_id, hit.text, round(hit.score, 5)) for hit in wanted
                ], (mode, query)


@pytest.mark.rule("engine-33")
def test_one_manifest_changes_embedder_dimension_and_all_shards(ground: Ground) -> None:
    with ground.open() as kb:
        kb.upsert(numbered(5))
        kb.upsert(numbered(5, begin=5))
    before = manifest_of(ground)
    with ground.open(embedder=CountingEmbedder(24)) as kb:
        kb.maintenance.reembed()
    after = manifest_of(ground)
    assert (after.number, after.embedder, after.dimension) == (before.number + 1, "ngram-24-v1", 24)
    assert {each.folder for each in after.dropped} == {each.folder for each in before.shards}
    assert {len(vector) for vector in vectors_of(ground).values()} == {24}


def test_files_without_vectors_are_kept_unchanged(ground: Ground) -> None:
    with ground.open() as kb:
        kb.upsert(numbered(3))
        kb.upsert(numbered(3, begin=3))
        kb.delete(["doc-0004"])
    whole, worn = sorted(manifest_of(ground).shards, key=lambda shard: shard.gone)
    with ground.open(embedder=MirroredEmbedder()) as kb:
        kb.maintenance.reembed()
    after = {shard.documents: shard for shard in manifest_of(ground).shards}
    for role in ("rows", "ids", "keywords"):
        assert after[3].files[role] == whole.files[role]
    assert after[3].files["search"] != whole.files["search"]
    assert after[2].gone == 0, "what was deleted is left behind"
    assert worn.gone == 1


@pytest.mark.rule("engine-33")
def test_unchanged_documents_cost_nothing_when_they_are_stored_again(ground: Ground) -> None:
    ground.fill(numbered(6))
    for embedder in (MirroredEmbedder(), CountingEmbedder(24)):
        with ground.open(embedder=embedder) as kb:
            kb.maintenance.reembed()
            embedder.texts.clear()
            assert kb.upsert(numbered(6)).unchanged == 6
            assert embedder.texts == []
            changed = Document("doc-0001", "Something else.")
            assert kb.upsert([changed]).replaced == 1
            assert kb.upsert([changed]).unchanged == 1
            assert kb.upsert(numbered(6)).replaced == 1


def test_a_kb_that_has_the_vectors_already_is_left_alone(ground: Ground) -> None:
    with ground.open() as kb:
        assert code_of(kb.maintenance.reembed) == "E201"
        kb.upsert(numbered(3))
        report = kb.maintenance.reembed()
        assert (report.changed, report.embedded, report.manifest_version) == (False, 0, 1)
        kb.delete(ids=all_ids(kb))
    with ground.open(embedder=MirroredEmbedder()) as kb:
        assert kb.maintenance.reembed().changed, "an empty one, too, has an embedder"
        assert kb.upsert(numbered(1)).added == 1


def test_a_dry_run_lists_the_work_and_changes_nothing(ground: Ground) -> None:
    ground.fill([*numbered(4), *(Document(f"twin-{number}", "The same text.") for number in range(3))])
    before = manifest_of(ground)
    embedder = MirroredEmbedder()
    with ground.open(embedder=embedder) as kb:
        planned = kb.maintenance.reembed(dry_run=True)
        assert embedder.texts == []
        assert not planned.changed
        assert manifest_of(ground).commit_id == before.commit_id
        done = kb.maintenance.reembed()
    assert sorted(embedder.texts) == sorted(set(embedder.texts)), "a text is embedded once"
    for report in (planned, done):
        assert (report.embedded, report.kept) == (5, 2)
        assert report.characters == sum(map(len, embedder.texts))


# ── documents that came with their vectors ─────────────────────────────────────────────────────────


@pytest.mark.rule("engine-34")
def test_a_given_vector_is_replaced_by_that_of_its_text(ground: Ground) -> None:
    ground.fill([placed(name, vector) for name, vector in zip("ab", random_vectors(2), strict=True)])
    embedder = MirroredEmbedder()
    with ground.open(embedder=embedder) as kb:
        kb.maintenance.reembed()
        hit = kb.search_vector(embedder.embed(["text of b"])[0], limit=1)[0]
        assert (hit.document_id, hit.distance) == ("b", 0.0)


@pytest.mark.rule("engine-34")
def test_documents_with_nothing_but_a_vector_are_named_and_nothing_is_done(ground: Ground) -> None:
    vectors = random_vectors(13)
    with ground.open() as kb:
        kb.upsert([Document(f"image-{number:02}", " ", vector=vectors[number]) for number in range(12)])
        kb.upsert([*numbered(2), Document("titled", "", title="A title", vector=vectors[12])])
    embedder = MirroredEmbedder()
    with ground.open(embedder=embedder) as kb:
        for dry_run in (True, False):
            with pytest.raises(errors.UsageError) as caught:
                kb.maintenance.reembed(dry_run=dry_run)
            assert (caught.value.code, caught.value.details["count"]) == ("E307", 12)
            assert "'image-00'" in caught.value.message
            assert "'image-09', …" in caught.value.message
        assert embedder.texts == []
    with ground.open() as kb:
        kb.delete([f"image-{number:02}" for number in range(12)])
    with ground.open(embedder=embedder) as kb:
        assert kb.maintenance.reembed().documents == 3


# ── others, meanwhile ──────────────────────────────────────────────────────────────────────────────


class Meanwhile:
    """A hook that calls a function when a step is reported for the n-th time."""

    def __init__(self) -> None:
        self.plans: dict[tuple[str, int], Callable[[], object]] = {}
        self.seen: dict[str, int] = {}

    def __call__(self, step: str) -> None:
        self.seen[step] = self.seen.get(step, 0) + 1
        if (act := self.plans.pop((step, self.seen[step]), None)) is not None:
            act()


@pytest.mark.rule("engine-33")
@pytest.mark.parametrize("step", ["embed", "uploaded", "lease"])
@pytest.mark.parametrize("layout", ["tail", "runs"])
def test_documents_that_others_write_and_delete_meanwhile_are_taken_over(
    tmp_path: Path, step: str, layout: str
) -> None:
    ground = Ground(tmp_path, **(MANY_SHARDS if layout == "runs" else {}))
    meanwhile, embedder = Meanwhile(), MirroredEmbedder()
    with ground.open() as other, ground.open(embedder=embedder, on_step=meanwhile) as kb:
        other.upsert(numbered(24))

        def act() -> None:
            other.upsert([*numbered(4, begin=24), Document("doc-0003", "Replaced meanwhile.")])
            other.delete(["doc-0005", "doc-0006"])

        meanwhile.plans[step, 1] = act
        report = kb.maintenance.reembed()
        assert meanwhile.plans == {}
        expected = [f"doc-{number:04}" for number in range(28) if number not in {5, 6}]
        assert all_ids(kb) == expected
        assert report.documents == len(expected)
        assert kb.document("doc-0003").text == "Replaced meanwhile."
        assert ids_of(kb.search("Replaced meanwhile.", mode="vector", limit=1, exact=True)) == ["doc-0003"]
        texts = {each.id: f"{each.title}\n\n{each.text}" if each.title else each.text for each in stored_of(kb)}
        found = vectors_of(ground)
        for name in expected:
            assert np.array_equal(found[f"{name}#0"], embedder.embed([texts[name]])[0])
        assert code_of(lambda: other.upsert(numbered(1, begin=90))) == "E304"


@pytest.mark.parametrize(("step", "is_collected"), [("embed", True), ("uploaded", True), ("lease", False)])
def test_shards_that_are_merged_during_the_run_are_looked_up_again(
    tmp_path: Path, step: str, is_collected: bool
) -> None:
    ground = Ground(tmp_path, **MANY_SHARDS)
    meanwhile, embedder = Meanwhile(), MirroredEmbedder()
    with ground.open() as other, ground.open(embedder=embedder, on_step=meanwhile) as kb:
        other.upsert(numbered(24))

        def act() -> None:
            other.delete(["doc-0001"])
            other.maintenance.compact(everything=True)
            if is_collected:
                other.maintenance.collect(grace_seconds=0)

        meanwhile.plans[step, 1] = act
        kb.maintenance.reembed()
        expected = [f"doc-{number:04}" for number in range(24) if number != 1]
        assert all_ids(kb) == expected
        assert len(set(embedder.texts)) == len(embedder.texts), "what was moved is not embedded again"
        assert not kb.search("castles", mode="keyword", limit=30).partial


def test_new_shards_that_were_collected_before_the_swap_are_made_again(ground: Ground) -> None:
    meanwhile = Meanwhile()
    with ground.open() as other, ground.open(embedder=MirroredEmbedder(), on_step=meanwhile) as kb:
        other.upsert(numbered(5))
        meanwhile.plans["lease", 1] = lambda: other.maintenance.collect(grace_seconds=0)
        kb.maintenance.reembed()
        assert all_ids(kb) == [f"doc-{number:04}" for number in range(5)]
        assert not kb.search("castles", limit=5).partial


def test_the_clock_of_the_store_dates_dropped_shards(tmp_path: Path) -> None:
    ground, store = Ground(tmp_path, lease="memory"), MemoryStore(ManualClock(NOON.replace(year=2200)))
    ground.fill(numbered(3), store=store)
    with ground.open(store=store, embedder=MirroredEmbedder()) as kb:
        kb.maintenance.reembed()
        assert kb.maintenance.collect(grace_seconds=120).deleted_shards == 0
        (dropped,) = kb._core.context.manifests.require().manifest.dropped
    assert dropped.dropped_at.startswith("2200-")


def test_large_concurrent_writes_are_embedded_in_a_separate_round(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pair.engine.rules.MOST_ROWS_UNDER_LEASE", 3)
    meanwhile = Meanwhile()
    with ground.open() as other, ground.open(embedder=MirroredEmbedder(), on_step=meanwhile) as kb:
        other.upsert(numbered(4))
        meanwhile.plans["lease", 1] = lambda: other.upsert(numbered(4, begin=4))
        meanwhile.plans["lease", 2] = lambda: other.upsert(numbered(2, begin=8))
        report = kb.maintenance.reembed()
        assert report.rounds == 2
        assert len(all_ids(kb)) == 10


def test_writers_that_never_rest_are_kept_waiting_at_last(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pair.engine.rules.MOST_ROWS_UNDER_LEASE", 0)
    meanwhile = Meanwhile()
    with ground.open() as other, ground.open(embedder=MirroredEmbedder(), on_step=meanwhile) as kb:
        other.upsert(numbered(2))
        for number in range(1, 20):
            meanwhile.plans["lease", number] = lambda number=number: other.upsert(numbered(1, begin=10 + number))  # type: ignore[misc]
        report = kb.maintenance.reembed()
        assert report.rounds == 12
        assert len(all_ids(kb)) == 2 + 12


def test_the_second_of_two_machines_with_the_same_task_finds_it_done(tmp_path: Path) -> None:
    ground, meanwhile = Ground(tmp_path), Meanwhile()
    elsewhere = ground.with_policy(cache_dir=str(tmp_path / "elsewhere"))
    with (
        ground.open() as writer,
        ground.open(embedder=MirroredEmbedder(), on_step=meanwhile) as kb,
        elsewhere.open(embedder=MirroredEmbedder()) as second,
        ground.open(embedder=CountingEmbedder(24)) as third,
    ):
        writer.upsert(numbered(3))
        faults: list[str] = []
        meanwhile.plans["embed", 1] = lambda: faults.append(code_of(third.maintenance.reembed))
        meanwhile.plans["lease", 1] = second.maintenance.reembed
        assert kb.maintenance.reembed().manifest_version == 2
        assert faults == ["E308"], "on one machine, one at a time"
        assert all_ids(kb) == ["doc-0000", "doc-0001", "doc-0002"]


def test_an_answer_to_the_swap_that_is_lost_is_settled() -> None:
    faults: Iterator[Fault] = iter(())
    memory = MemoryStore(ManualClock())

    def plan(operation: str, key: str) -> Fault:
        return next(faults, "none") if operation == "put_if" and "manifest" in key else "none"

    ground = Ground(Path("unused"), lease="memory")
    with (
        ground.open(store=memory) as kb,
        ground.open(store=FaultyStore(memory, plan), embedder=MirroredEmbedder()) as other,
    ):
        kb.upsert(numbered(3))
        faults = iter(["after"])
        assert other.maintenance.reembed().changed
        assert len(all_ids(other)) == 3


def test_garbage_collection_takes_the_old_shards_after_the_grace_period(ground: Ground) -> None:
    ground.fill(numbered(5))
    old = [shard.folder for shard in manifest_of(ground).shards]
    with ground.open(embedder=MirroredEmbedder()) as kb:
        kb.maintenance.reembed()
        assert kb.maintenance.collect().deleted_shards == 0, "readers may still be at it"
        assert all((ground.store / folder).exists() for folder in old)
        assert kb.maintenance.collect(grace_seconds=0).deleted_shards == len(old)
        assert not any((ground.store / folder).exists() for folder in old)
        assert len(all_ids(kb)) == 5


# ── readers ────────────────────────────────────────────────────────────────────────────────────────


def job(ground: Ground, name: str, calls: Sequence[tuple[str, Any]], **more: Any) -> Job:
    options = {"store": str(ground.store), "cache_dir": str(ground.cache), "embedding_dimension": DIMENSION}
    return Job(KB, {**options, "chunker": "seed", "graph": "off"}, calls, str(ground.folder / name), **more)


@pytest.mark.rule("engine-33")
def test_no_reader_ever_compares_vectors_of_two_embedders(ground: Ground, workers: Workers, tmp_path: Path) -> None:
    ground.fill([Document(f"doc-{number}", f"word{number} and item{number * 7}") for number in range(20)])
    end = tmp_path / "end"
    watching = [("watch", str(end))]
    readers = {
        name: workers.start(job(ground, name, watching, mirrored=name.startswith("new")))
        for name in ("old-1", "old-2", "new-1", "new-2")
    }
    for pid in readers.values():
        assert workers.wait(pid) == signal.SIGSTOP, "each has asked once"
    for pid in readers.values():
        os.kill(pid, signal.SIGCONT)
    assert workers.run(job(ground, "reembed", [("reembed", None)], mirrored=True)) == 0
    end.touch()
    assert [workers.wait(pid) for pid in readers.values()] == [0] * len(readers)
    assert read_log(ground.folder / "reembed")[0].report["changed"]
    for name in readers:
        (noted,) = read_log(ground.folder / name)
        assert noted.report["order"] == (["itself", "E304"] if name.startswith("old") else ["E304", "itself"]), noted
        assert noted.report["counts"]["itself"] >= 20


@pytest.mark.rule("engine-20")
def test_a_reader_learns_of_the_new_embedder_with_the_very_query_that_meets_it(ground: Ground) -> None:
    with ground.open() as old, ground.open(embedder=MirroredEmbedder()) as new:
        old.upsert(numbered(3))
        assert len(old.search("castles", mode="vector")) == 3
        assert code_of(lambda: new.search("castles")) == "E304"
        vector = CountingEmbedder().embed(["castles"])[0]
        assert len(old.search_vector(vector)) == 3
        with ground.open(embedder=MirroredEmbedder()) as third:
            third.maintenance.reembed()
        with raises_code("E304", errors.UsageError) as caught:
            old.search_vector(vector)
        assert caught.value.details["stored"] == OTHER
        assert "pair reembed --kb default" in caught.value.hints[2]
        assert len(new.search("castles")) == 3
        assert len(old.search("castles", mode="keyword")) >= 1, "words know no embedder"


# ── kills ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a KB with more texts than one batch, in two shards."""
    ground = Ground(tmp_path_factory.mktemp("large"))
    with ground.open() as kb:
        kb.upsert([Document(f"doc-{number:04}", f"word{number} and item{number * 7}") for number in range(BATCH + 40)])
        kb.upsert(numbered(3, begin=1000))
    return ground.store


@pytest.mark.rule("engine-35")
@pytest.mark.parametrize(
    ("step", "occurrence"),
    [("embed", 1), ("embed", 2), ("upload", 2), ("uploaded", 2), ("lease", 1), ("swap", 1), ("swapped", 1)],
)
def test_a_kill_leaves_the_kb_whole_and_what_was_embedded(
    ground: Ground, workers: Workers, large: Path, step: str, occurrence: int
) -> None:
    shutil.copytree(large, ground.store)
    killed = job(ground, "log", [("reembed", None)], mirrored=True, at=(step, occurrence, signal.SIGKILL))
    assert workers.run(killed) == -signal.SIGKILL
    count, embedder = BATCH + 43, MirroredEmbedder()
    is_swapped = step == "swapped"
    with ground.open(embedder=None if not is_swapped else MirroredEmbedder()) as kb:
        assert len(all_ids(kb, page=1000)) == count
        assert ids_of(kb.search("word17", limit=1)) == ["doc-0017"]
        if not is_swapped:
            kb.upsert([Document("late", "A late one.")])
    with ground.open(embedder=embedder) as kb:
        report = kb.maintenance.reembed()
        assert report.changed is not is_swapped
        assert ids_of(kb.search("word17 and item119", mode="vector", limit=1)) == ["doc-0017"]
        assert len(all_ids(kb, page=1000)) == count + (not is_swapped)
    done_before = {("embed", 1): 0, ("embed", 2): BATCH}.get((step, occurrence), count)
    assert len(embedder.texts) - 1 == (count + 1 - done_before if not is_swapped else 0)  # one was a query
    left = list(ground.folder.rglob("*.vectors"))
    assert left == [] or is_swapped


def test_an_interrupted_run_continues_where_it_stopped(ground: Ground, large: Path) -> None:
    shutil.copytree(large, ground.store)
    commit = manifest_of(ground).commit_id

    class Moody(MirroredEmbedder):
        def embed(self, texts: Sequence[str]) -> Any:
            assert len(texts) <= BATCH, "memory is bounded"
            if len(self.texts) >= BATCH:
                raise errors.model_unreachable("http://model.example", "it sleeps")
            return super().embed(texts)

    with ground.open(embedder=Moody()) as kb:
        assert code_of(kb.maintenance.reembed) == "E301"
        assert manifest_of(ground).commit_id == commit
        assert kb.maintenance.reembed(dry_run=True).embedded == 43
    embedder = MirroredEmbedder()
    with ground.open(embedder=embedder) as kb:
        report = kb.maintenance.reembed()
        assert (report.embedded, report.kept) == (43, BATCH)
        assert report.chunks == BATCH + 43


# ── vectors that are kept ──────────────────────────────────────────────────────────────────────────


@pytest.mark.rule("engine-35")
@pytest.mark.parametrize("harm", [truncate, flip_a_bit])
def test_incomplete_kept_vectors_are_not_used(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    path, keys, vectors = (
        tmp_path / "some.vectors",
        [hash_text(f"text {number}") for number in range(9)],
        random_vectors(9),
    )
    VectorJournal(path, DIMENSION).append(keys[:4], vectors[:4])
    VectorJournal(path, DIMENSION).append(keys[4:], vectors[4:])
    whole = VectorJournal(path, DIMENSION)
    assert whole.find(keys).tolist() == list(range(9))
    assert np.array_equal(whole.vectors(whole.find(keys[::-1])), vectors[::-1])
    harm(path)
    left = VectorJournal(path, DIMENSION)
    found = left.find(keys)
    sound = int((found >= 0).sum())
    assert sound == (8 if harm is truncate else 4)
    assert np.array_equal(left.vectors(found[:sound]), vectors[:sound])
    left.append(keys[sound:], vectors[sound:])
    for each in (left, VectorJournal(path, DIMENSION)):
        assert np.array_equal(each.vectors(each.find(keys)), vectors)
    assert left.find([hash_text("unknown")]).tolist() == [-1]
