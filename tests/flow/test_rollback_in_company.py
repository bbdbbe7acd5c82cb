"""Rollbacks during other operations: operations that began earlier do not undo the rollback, and report it."""

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from pair.engine.format.manifest import from_bytes, manifest_key
from pair.engine.maintenance.merge_package import PackageShards
from pair.errors import ConflictError
from pair.kb.kb import KnowledgeBase
from pair.values import Document
from support.command import Workplace, write_files
from support.engine_parts import DIMENSION, CountingEmbedder, Ground, MirroredEmbedder, Once
from support.engine_worker import Job, Workers, read_log
from support.errors import raises_code
from support.fed_ingest import FedIngest, lines_of
from support.server import Received, Server
from support.synced_project import SyncedProject

KB = "kb"
PART_BYTES = 2_500


def pages(count: int, told: str = "first") -> list[Document]:
    return [
        Document(f"page-{number:03}", f"The bridge of page {number} was {told} told of.") for number in range(count)
    ]


def texts_in(kb: KnowledgeBase) -> dict[str, str]:
    return {each.id: each.text for each in kb.documents(limit=1000)}


def texts_of(documents: list[Document]) -> dict[str, str]:
    return {each.id: each.text for each in documents}


# ── a package ──────────────────────────────────────────────────────────────────────────────────────


def test_a_package_whose_index_came_before_a_rollback_is_not_installed_after_it(tmp_path: Path) -> None:
    def house(colour: str) -> PackageShards:
        origin = Ground(tmp_path / colour)
        with origin.open("origin") as made:
            made.upsert([Document("door", f"The door is {colour}.")])
            packed = made.backup.pack_index()
        paths = {each.name: origin.store / each.key for each in packed.files}
        return PackageShards(
            packed.manifest, "house", f"house {colour}", colour, paths.get, owner="package", is_verified=True
        )

    ground, meanwhile = Ground(tmp_path / "kb", keep_versions=10), Once("uploaded")
    with ground.open() as other, ground.open(on_step=meanwhile) as kb:
        for colour in ("red", "green"):
            other.backup.package_merger().install(house(colour))
        meanwhile.act = lambda: other.versions.rollback("red")
        with raises_code("E236", ConflictError):
            kb.backup.package_merger().install(house("blue"))
        assert (texts_in(other), other.versions.list()[0].restored) == ({"door": "The door is red."}, 1)
        kb.backup.package_merger().install(house("blue"))
        assert texts_in(other) == {"door": "The door is blue."}


# ── a build ────────────────────────────────────────────────────────────────────────────────────────


def listed(workplace: Workplace) -> set[str]:
    found = workplace.pair("docs", "list", "--kb", KB, "--limit", "1000", "--json").json
    return {each["id"] for each in found["documents"]}


def folders_in(workplace: Workplace) -> set[str]:
    """Return all folders of shards, referenced or not."""
    return {path.parent.name for path in (workplace.folder / ".pair" / "store").rglob("*.search")}


def named_by(workplace: Workplace) -> set[str]:
    """Return the folders of shards of the current version."""
    manifest = (workplace.folder / ".pair" / "store" / manifest_key(KB)).read_bytes()
    return {each.folder.rpartition("/")[2] for each in from_bytes(manifest, "").shards}


def test_a_build_that_began_before_a_rollback_is_refused_and_resumed(workplace: Workplace) -> None:
    workplace.environment |= {
        "PAIR__ENGINE__BUILD_PART_BYTES": str(PART_BYTES),
        "PAIR__ENGINE__COMPACTION_ENABLED": "false",
    }
    for name, documents in (("few", pages(2)), ("more", pages(40)[:10])):
        (workplace.folder / f"{name}.jsonl").write_text(lines_of(documents))
        assert workplace.pair("ingest", f"{name}.jsonl", "--kb", KB).status == 0
    running = FedIngest(workplace, KB, pages(90))
    running.workers_when_built(20)
    assert workplace.pair("rollback", "1", "--kb", KB, "--json").json["manifest_version"] == 3
    status, told = running.finish()
    assert (status, "E236" in told, "Run the same command again" in told) == (4, True, True)
    assert listed(workplace) == {"page-000", "page-001"}, "as it was rolled back"
    built = folders_in(workplace) - named_by(workplace)
    (workplace.folder / "all.jsonl").write_text(lines_of(pages(90)))
    again = workplace.pair("ingest", "all.jsonl", "--kb", KB, "--runner", "local", "--workers", "2", "--json").json
    assert (again["added"], again["unchanged"]) == (88, 2), "also what was stored when it began"
    assert listed(workplace) == {each.id for each in pages(90)}
    assert named_by(workplace) & built, "what was built is not built again"


def test_a_build_that_begins_after_a_rollback_is_published(workplace: Workplace) -> None:
    for documents in (pages(2), pages(4)):
        (workplace.folder / "some.jsonl").write_text(lines_of(documents))
        workplace.pair("ingest", "some.jsonl", "--kb", KB)
    workplace.pair("rollback", "1", "--kb", KB)
    running = FedIngest(workplace, KB, pages(30))
    assert running.finish()[0] == 0
    assert listed(workplace) == {each.id for each in pages(30)}


# ── writes, imports ────────────────────────────────────────────────────────────────────────────────


def test_a_batch_that_comes_after_a_rollback_is_an_ordinary_write(tmp_path: Path) -> None:
    ground, meanwhile = Ground(tmp_path, keep_versions=10, ingest_batch_documents=2), Once("released")
    with ground.open() as other, ground.open(on_step=meanwhile) as kb:
        other.upsert(pages(1))
        other.upsert([Document("other", "Something else.")])
        meanwhile.act = lambda: other.versions.rollback(1)
        kb.upsert(pages(6)[2:])
        assert texts_in(kb).keys() == {"page-000", "page-004", "page-005"}


def test_an_import_that_began_before_a_rollback_is_refused(tmp_path: Path) -> None:
    ground, meanwhile = Ground(tmp_path / "here", keep_versions=10), Once("upload")
    file = tmp_path / "export"
    with Ground(tmp_path / "there").open() as origin:
        origin.upsert(pages(5, "elsewhere"))
        origin.backup.export(file)
    with ground.open() as other, ground.open(on_step=meanwhile) as kb:
        other.upsert(pages(2))
        other.upsert(pages(3))
        meanwhile.act = lambda: other.versions.rollback(1)
        with raises_code("E236", ConflictError):
            kb.backup.import_from(file, replace_all=True)
        assert texts_in(kb) == texts_of(pages(2))
        assert kb.versions.list()[0].made_by == "rollback"
        kb.backup.import_from(file, replace_all=True)
        assert texts_in(kb) == texts_of(pages(5, "elsewhere"))


# ── a re-embedding ─────────────────────────────────────────────────────────────────────────────────


def roll_back_during_a_re_embedding(ground: Ground, workers: Workers, step: str, kb: KnowledgeBase) -> None:
    """Another process re-embeds, and pauses at a step while the KB is rolled back."""
    options: dict[str, Any] = {"chunker": "seed", "graph": "off", "embedding_dimension": DIMENSION, "keep_versions": 10}
    places = {"store": str(ground.store), "cache_dir": str(ground.cache)}
    at = (step, 1, int(signal.SIGSTOP))
    job = Job("default", options | places, [("reembed", None)], str(ground.folder / "log"), at=at, mirrored=True)
    process = workers.start(job)
    assert workers.wait(process) == signal.SIGSTOP
    kb.versions.rollback(1)
    os.kill(process, signal.SIGCONT)
    assert workers.wait(process) == 0


@pytest.mark.parametrize("step", ["embed", "lease"])
def test_a_rollback_to_another_embedder_is_not_undone_by_a_re_embedding_that_began_before_it(
    tmp_path: Path, workers: Workers, step: str
) -> None:
    ground = Ground(tmp_path, keep_versions=10)
    ground.fill(pages(3), embedder=CountingEmbedder(24))
    with ground.open(embedder=CountingEmbedder()) as kb:
        kb.maintenance.reembed()
        roll_back_during_a_re_embedding(ground, workers, step, kb)
    assert [each.error for each in read_log(ground.folder / "log")] == ["E236"]
    with ground.open(embedder=CountingEmbedder(24)) as kb:
        assert kb.versions.list()[0].made_by == "rollback"
        assert kb.search("the bridge of page 1", limit=1)
    again = MirroredEmbedder()
    with ground.open(embedder=again) as kb:
        assert kb.maintenance.reembed().changed
        assert again.texts == [], "what was embedded is not embedded again"


def test_a_rollback_of_documents_is_taken_up_by_a_re_embedding_that_began_before_it(
    tmp_path: Path, workers: Workers
) -> None:
    ground = Ground(tmp_path, keep_versions=10)
    with ground.open() as kb:
        kb.upsert(pages(3))
        kb.upsert([*pages(2, "then"), Document("late", "Not here for long.")])
        roll_back_during_a_re_embedding(ground, workers, "lease", kb)
    assert [each.error for each in read_log(ground.folder / "log")] == [""]
    with ground.open(embedder=MirroredEmbedder()) as kb:
        assert texts_in(kb) == texts_of(pages(3))
        assert (kb.versions.list()[0].made_by, kb.versions.list()[0].restored) == ("reembed", 1)


# ── a sync ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_sync_that_began_before_a_rollback_is_refused_and_the_next_one_is_not(
    workplace: Workplace, server: Server
) -> None:
    write_files(workplace.target, {"lunch.md": "# Lunch\n\nLunch is at one.\n"})
    (workplace.folder / "config.yaml").write_text("kb: {allow_private_addresses: true}\n")
    workplace.trust()
    assert workplace.pair("sync").status == 0
    write_files(workplace.target, {"lunch.md": "# Lunch\n\nLunch is at two.\n"})
    assert workplace.pair("sync").status == 0
    asked, may_answer = threading.Event(), threading.Event()

    def wait(_: Received) -> None:
        asked.set()
        may_answer.wait(60)

    server.add("/tea", b"Tea is at five.", checksum=False, before_body=wait, headers={"Content-Type": "text/plain"})
    (workplace.folder / ".pair" / "links.txt").write_text(server.url("/tea") + "\n")
    syncing = workplace.start("sync", "--json")
    assert asked.wait(60)
    assert workplace.pair("rollback", "1").status == 0
    may_answer.set()
    stdout, _ = syncing.communicate(timeout=60)
    assert (syncing.returncode, '"E236"' in stdout) == (4, True)
    assert "at one" in workplace.pair("search", "lunch", "--json").stdout
    assert workplace.pair("sync", "--json").json["stored"] == 2
    assert "at two" in workplace.pair("search", "lunch", "--json").stdout


@pytest.mark.parametrize("resume", [True, False])
@pytest.mark.parametrize("batch_documents", [1, 5000], ids=["several batches", "one batch"])
def test_a_sync_that_began_before_a_rollback_stores_nothing_after_it(
    tmp_path: Path, batch_documents: int, *, resume: bool
) -> None:
    project, meanwhile = SyncedProject(tmp_path, ingest_batch_documents=batch_documents), Once("lease")
    write_files(project.sources, {"a.md": "one\n", "b.md": "one\n", "c.md": "one\n"})
    project.sync()
    with project.open() as other, project.open(on_step=meanwhile) as kb:
        first = other.version()[0]
        other.upsert([Document("mine", "Of somebody else.")])
        write_files(project.sources, {"a.md": "two\n", "b.md": "two\n", "c.md": "two\n"})
        project.sync_index()
        meanwhile.act = lambda: other.versions.rollback(first)
        if resume:
            with raises_code("E236", ConflictError):
                kb.maintenance.reconcile()
        else:
            assert kb.maintenance.reconcile(resume=False).held_at == first
        assert texts_in(other) == {"a.md": "one\n", "b.md": "one\n", "c.md": "one\n"}
        kb.maintenance.reconcile()
        assert set(texts_in(other).values()) == {"two\n"}


def test_a_sync_on_purpose_does_not_release_a_rollback_that_came_after_it_began(tmp_path: Path) -> None:
    project, meanwhile = SyncedProject(tmp_path, ingest_batch_documents=1), Once("lease")
    write_files(project.sources, {"a.md": "one\n"})
    project.sync()
    with project.open() as other, project.open(on_step=meanwhile) as kb:
        other.upsert([Document("mine", "Of somebody else.")])
        other.versions.rollback(1)
        meanwhile.act = lambda: other.versions.rollback(2)
        with raises_code("E236", ConflictError):
            kb.maintenance.reconcile()
        assert other.versions.list()[0].restored == 2


def test_what_is_in_line_is_what_was_seen_and_not_a_rollback_right_after_it(tmp_path: Path) -> None:
    project, meanwhile = SyncedProject(tmp_path, ingest_batch_documents=1), Once("released")
    write_files(project.sources, {"a.md": "one\n"})
    project.sync()
    with project.open() as other, project.open(on_step=meanwhile) as kb:
        write_files(project.sources, {"a.md": "two\n"})
        project.sync_index()
        meanwhile.act = lambda: other.versions.rollback(1)
        seen = kb.maintenance.reconcile().seen_version
        assert texts_in(other) == {"a.md": "one\n"}
        assert seen != other.maintenance.reconcile(resume=True).seen_version
        assert texts_in(other) == {"a.md": "two\n"}
        assert kb.maintenance.reconcile().seen_version == other.maintenance.reconcile().seen_version
