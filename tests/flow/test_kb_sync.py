"""`sync` keeps sources, index and engine consistent."""

import dataclasses
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pair.errors import PairError, UsageError
from pair.kb.sync import SyncService
from pair.sync.report import SyncReport
from pair.values import Document
from support.command import write_files
from support.errors import raises_code
from support.synced_project import SyncedProject

PAGES: dict[str, str | bytes] = {
    "deploy.md": "# Deploying\n\nWe deploy on Tuesdays with `make ship`.\n",
    "guides/rollback.md": "# Rolling back\n\nRun `make undo` and tell the channel.\n",
    "notes.txt": "Lunch is at one.\n",
}


@pytest.fixture
def project(tmp_path: Path) -> SyncedProject:
    project = SyncedProject(tmp_path)
    write_files(project.sources, PAGES)
    return project


def by_service(project: SyncedProject) -> SyncReport:
    return project.sync()


def by_kb(project: SyncedProject) -> SyncReport:
    with project.open() as kb:
        return kb.sync()


both_ways = pytest.mark.parametrize("sync", [by_service, by_kb])
Sync = Callable[[SyncedProject], SyncReport]


@both_ways
@pytest.mark.rule("engine-22")
def test_files_that_come_change_and_go_do_so_in_the_engine(project: SyncedProject, sync: Sync) -> None:
    report = sync(project)
    assert (report.stored, report.unstored) == (3, 0)
    assert project.stored() == PAGES
    write_files(project.sources, {"notes.txt": "Lunch is at two.\n", "new.md": "# New\n"})
    (project.sources / "deploy.md").unlink()
    report = sync(project)
    assert (report.stored, report.unstored) == (2, 1)
    expected = PAGES | {"notes.txt": "Lunch is at two.\n", "new.md": "# New\n"}
    del expected["deploy.md"]
    assert project.stored() == expected
    report = sync(project)
    assert (report.stored, report.unstored) == (0, 0)


def version_of(project: SyncedProject) -> int:
    with project.open() as kb:
        return kb.version()[0]


@both_ways
@pytest.mark.parametrize("batch_documents", [5000, 4], ids=["one batch", "several batches"])
def test_a_sync_that_adds_changes_and_removes_makes_one_version(
    tmp_path: Path, sync: Sync, batch_documents: int
) -> None:
    project = SyncedProject(tmp_path, ingest_batch_documents=batch_documents, compaction_enabled=False)
    write_files(project.sources, {f"{number:02}.md": f"# Page {number}\n" for number in range(20)})
    assert sync(project).stored == 20
    assert version_of(project) == 1
    write_files(project.sources, {f"{number:02}.md": f"# Other page {number}\n" for number in range(6, 24)})
    for number in range(6):
        (project.sources / f"{number:02}.md").unlink()
    report = sync(project)
    assert (report.stored, report.unstored) == (18, 6)
    assert version_of(project) == 2
    assert project.stored() == {f"{number:02}.md": f"# Other page {number}\n" for number in range(6, 24)}
    for number in range(6, 24):
        (project.sources / f"{number:02}.md").unlink()
    assert sync(project).unstored == 18
    assert version_of(project) == 3


def test_a_large_sync_that_fails_midway_changes_nothing_and_the_next_one_continues(tmp_path: Path) -> None:
    project = SyncedProject(tmp_path, ingest_batch_documents=4)
    write_files(project.sources, {f"{number:02}.md": f"# Page {number}\n" for number in range(20)})
    project.sync()
    before = version_of(project)
    write_files(project.sources, {f"{number:02}.md": f"# Other page {number}\n" for number in range(20)})

    def fail(step: str) -> None:
        if step == "swap":
            raise KeyboardInterrupt

    project.sync_index()
    with pytest.raises(KeyboardInterrupt), project.open(on_step=fail) as kb:
        kb.maintenance.reconcile()
    assert version_of(project) == before
    assert project.sync().stored == 20
    assert project.stored() == {f"{number:02}.md": f"# Other page {number}\n" for number in range(20)}


def test_synced_documents_are_found_by_title_kind_and_words(project: SyncedProject) -> None:
    project.sync()
    with project.open() as kb:
        hit = kb.search("how to undo a release and roll back", limit=1)[0]
        assert (hit.document_id, hit.title, hit.metadata) == ("guides/rollback.md", "Rolling back", {"kind": "file"})
        assert [each.owner for each in kb.documents()] == ["sync"] * 3


@both_ways
@pytest.mark.rule("engine-22")
def test_a_sync_never_takes_what_was_ingested(project: SyncedProject, sync: Sync) -> None:
    with project.open() as kb:
        kb.upsert([Document("by-hand", "Brought by hand")])
    sync(project)
    shutil.rmtree(project.sources / "guides")
    sync(project)
    assert project.stored().keys() == {"by-hand", "deploy.md", "notes.txt"}
    with project.open() as kb:
        assert kb.document("by-hand").owner == "ingest"


@both_ways
def test_a_document_that_was_ingested_under_the_name_of_a_source_is_set_right(
    project: SyncedProject, sync: Sync
) -> None:
    sync(project)
    with project.open() as kb:
        kb.upsert([Document("notes.txt", "Not what the file says")])
    assert sync(project).stored == 1
    assert project.stored() == PAGES


@both_ways
@pytest.mark.parametrize(
    "chosen",
    [{"ids": ["by-hand", "notes.txt"]}, {"owner": "sync"}, {"filter": {"kind": "file"}}],
    ids=["by id", "by owner", "by filter"],
)
def test_a_document_that_its_source_would_bring_back_is_not_deleted(
    project: SyncedProject, sync: Sync, chosen: dict[str, Any]
) -> None:
    sync(project)
    with project.open() as kb:
        kb.upsert([Document("by-hand", "Brought by hand")])
        before = kb.version()
        with pytest.raises(UsageError) as caught:
            kb.delete(**chosen)
        assert (caught.value.code, kb.version()) == ("E105", before)
        assert kb.delete(["by-hand", "absent"]).deleted == 1, "what no source brings can be deleted"
    (project.sources / "notes.txt").unlink()
    assert sync(project).unstored == 1
    assert project.stored().keys() == PAGES.keys() - {"notes.txt"}


@both_ways
def test_a_store_that_was_wiped_is_filled_by_the_next_sync(project: SyncedProject, sync: Sync) -> None:
    sync(project)
    before = (project.folder / "index.txt").read_bytes()
    shutil.rmtree(project.store)
    report = sync(project)
    assert (report.unchanged, report.stored) == (3, 3)
    assert project.stored() == PAGES
    assert (project.folder / "index.txt").read_bytes() == before


def test_another_store_is_filled_although_no_source_changed(project: SyncedProject) -> None:
    project.sync()
    elsewhere = str(project.folder / "elsewhere")
    engine = dataclasses.replace(project.settings.engine, store=elsewhere)
    project.settings = dataclasses.replace(project.settings, engine=engine)
    assert project.sync().stored == 3
    assert project.stored() == PAGES


@both_ways
def test_a_failure_of_the_engine_is_reported_and_repaired_by_the_next_run(project: SyncedProject, sync: Sync) -> None:
    project.store.write_text("a file where the store should be")
    with pytest.raises(PairError) as caught:
        sync(project)
    assert caught.value.code in {"E010", "E206"}
    assert "deploy.md" in (project.folder / "index.txt").read_text(), "the index was written before"
    project.store.unlink()
    report = sync(project)
    assert (report.unchanged, report.stored) == (3, 3)
    assert project.stored() == PAGES


def test_a_failure_after_a_success_is_healed_too(project: SyncedProject) -> None:
    project.sync()
    aside = project.store.rename(project.folder / "aside")
    project.store.write_text("a file where the store should be")
    write_files(project.sources, {"notes.txt": "Lunch is at two.\n"})
    with pytest.raises(PairError):
        project.sync()
    project.store.unlink()
    aside.rename(project.store)
    assert project.sync().stored == 1
    assert project.stored() == PAGES | {"notes.txt": "Lunch is at two.\n"}


def test_a_damaged_manifest_is_reported_by_every_sync_until_it_is_repaired(project: SyncedProject) -> None:
    project.sync()
    [manifest] = project.store.rglob("*manifest.json*")
    content = manifest.read_bytes()
    manifest.write_bytes(b"{}")
    for _ in range(2):
        with raises_code("E207"):
            project.sync()
    manifest.write_bytes(content)
    assert project.sync().stored == 0
    assert project.stored() == PAGES


def test_when_nothing_is_new_no_byte_changes(project: SyncedProject) -> None:
    project.sync()
    before = project.everything()
    report = project.sync()
    assert (report.unchanged, report.stored, report.unstored) == (3, 0, 0)
    assert project.everything() == before


def test_a_project_without_sources_makes_no_store(tmp_path: Path) -> None:
    project = SyncedProject(tmp_path)
    project.sources.mkdir()
    report = project.sync()
    assert (report.stored, report.unstored) == (0, 0)
    assert not project.store.exists()


def test_when_the_last_source_goes_the_kb_is_empty_and_usable(project: SyncedProject) -> None:
    project.sync()
    for path in [path for path in project.sources.rglob("*") if path.is_file()]:
        path.unlink()
    assert project.sync().unstored == 3
    assert project.stored() == {}
    write_files(project.sources, PAGES)
    assert project.sync().stored == 3


AGAIN = """
import sys
from pair.app.cli.commands import run
run(["sync"])
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""


def test_when_nothing_is_new_the_engine_is_not_even_loaded(tmp_path: Path) -> None:
    write_files(tmp_path / ".pair/knowledge", PAGES)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PAIR")}
    loaded = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", AGAIN], cwd=tmp_path, env=environment, check=True, capture_output=True, text=True
        )
        loaded.append(set(done.stdout.split()))
    assert {"duckdb", "faiss"} <= loaded[0]
    assert loaded[1] & {"duckdb", "faiss", "numpy"} == set()


def test_a_source_whose_text_vanished_between_the_index_and_the_engine_is_not_lost_for_good(
    project: SyncedProject,
) -> None:
    """The saved state is ahead of the files; the next sync updates it."""
    project.sync_index()
    (project.sources / "notes.txt").unlink()
    with project.open() as kb:
        done = kb.maintenance.reconcile()
    assert done.stored == 2
    project.sync()
    assert project.stored().keys() == {"deploy.md", "guides/rollback.md"}


def test_a_source_that_changed_and_changed_back_is_stored_in_its_current_state(project: SyncedProject) -> None:
    """The engine may read a file later than the index. The stored revision is that of the text that was read."""
    project.sync_index()
    write_files(project.sources, {"notes.txt": "Lunch is at two.\n"})
    with project.open() as kb:
        kb.maintenance.reconcile()
        assert kb.document("notes.txt").text == "Lunch is at two.\n"
    write_files(project.sources, {"notes.txt": PAGES["notes.txt"]})
    project.sync()
    assert project.stored() == PAGES


# ── after a roll-back ──────────────────────────────────────────────────────────────────────────────


def test_a_rolled_back_kb_is_not_changed_until_an_explicit_sync(project: SyncedProject) -> None:
    project.sync()
    write_files(project.sources, {"notes.txt": "Lunch is at two.\n"})
    project.sync()
    with project.open() as kb:
        kb.versions.rollback(1)
    write_files(project.sources, {"new.md": "# New\n"})
    for _ in range(2):
        report = SyncService(project.settings).sync(wait=False, resume=False)
        assert (report.held_at, report.stored) == (1, 0)
        assert project.stored() == PAGES
    with project.open() as kb:
        kb.upsert([Document(id="mine", text="Not a source.")])
    assert SyncService(project.settings).sync(wait=False, resume=False).held_at == 1
    report = project.sync()
    assert (report.held_at, report.stored) == (0, 2)
    assert project.stored() == PAGES | {"notes.txt": "Lunch is at two.\n", "new.md": "# New\n", "mine": "Not a source."}
    assert SyncService(project.settings).sync(wait=False, resume=False).held_at == 0
