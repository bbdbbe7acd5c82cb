"""The state on disk: journals, saves, damage and full disks. A copy of the files at a moment simulates a kill."""

import contextlib
import dataclasses
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pair import errors
from pair.sync import store
from pair.sync.rules import FileSeen
from pair.sync.state import FileRecord, Record, UrlRecord, format_index, record_to_json
from pair.sync.store import StateStore
from pair.testing.clock import NOON, ManualClock
from support.sync_parts import Page, Project, copy_as_if_killed, later, places_in

GOLDEN = Path(__file__).parent / "golden" / "index-cache-v1.json"
URL = "https://example.com/page"


def record(path: str = "a.md", summary: str = "A file.", **others: Any) -> FileRecord:
    plain = FileRecord(path, "hash", summary, False, NOON, size_bytes=5, mtime_ns=7)
    return dataclasses.replace(plain, **others)


def page(url: str = URL, summary: str = "A page.", **others: Any) -> UrlRecord:
    plain = UrlRecord(url, "hash", summary, False, NOON, NOON, None, None, "success", later(3600))
    return dataclasses.replace(plain, **others)


def journal_line(key: str, value: dict[str, Any] | None, kind: str = "source") -> bytes:
    return json.dumps({"kind": kind, "key": key, "value": value}).encode() + b"\n"


class Disk:
    """A folder with a state file and an index."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cache = folder / "index-cache.json"
        self.index = folder / "index.txt"
        self.clock = ManualClock()

    def store(self) -> StateStore:
        return StateStore(self.cache, self.index, self.clock)

    def save(self, *records: Record) -> StateStore:
        with self.store().open() as opened:
            for each in records:
                opened.put(each)
        return opened

    def write_state(self, *records: Record, generation: int = 1, **head: Any) -> None:
        """Write a state and the matching index by hand."""
        sources = {each.source_id: record_to_json(each) for each in records}
        self.index.write_text(format_index(sources))
        value = {"schema_version": 1, "generated_at": "2026-03-01T12:00:00Z", "generation": generation} | head
        self.cache.write_text(json.dumps(value | {"sources": sources}))

    def journal(self, generation: int, content: bytes) -> Path:
        path = self.folder / f"index-cache.json.journal-{generation}"
        path.write_bytes(content)
        return path

    @property
    def names(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir())

    @property
    def sources(self) -> dict[str, Any]:
        """Return the sources of the state file alone."""
        found: dict[str, Any] = json.loads(self.cache.read_bytes())["sources"]
        return found

    @property
    def summaries(self) -> dict[str, str]:
        """Return the known summaries, journals included."""
        loaded = store.read(self.cache)
        return {source_id: value["summary_text"] for source_id, value in loaded.state.sources.items()}

    def assert_files_agree(self) -> None:
        assert format_index(self.sources) == self.index.read_bytes().decode()


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path)


# ── saves ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.rule("sync-40")
@pytest.mark.rule("sync-49")
def test_what_is_put_is_in_both_files_when_the_block_ends(disk: Disk) -> None:
    disk.save(record(), page())
    value = json.loads(disk.cache.read_bytes())
    assert value["schema_version"] == 1
    assert value["generated_at"] == "2026-03-01T12:00:00Z"
    assert value["sources"] == {"a.md": record_to_json(record()), URL: record_to_json(page())}
    assert disk.index.read_text() == f"a.md\nA file.\n\n{URL}\nA page.\n"
    assert disk.names == ["index-cache.json", "index.txt"]


@pytest.mark.rule("sync-40")
def test_the_state_is_utf8_json_with_a_source_a_line(disk: Disk) -> None:
    disk.save(record("ö.md"), record("a.md"), page())
    lines = disk.cache.read_bytes().decode("utf-8").splitlines()
    assert [line.partition(": ")[0] for line in lines[1:-1]] == ['"a.md"', f'"{URL}"', '"\\u00f6.md"']


@pytest.mark.rule("sync-12")
@pytest.mark.rule("sync-49")
def test_what_is_removed_is_in_neither_file(disk: Disk) -> None:
    disk.save(record("a.md"), record("b.md"))
    with disk.store().open() as opened:
        opened.remove("a.md")
        opened.remove("never-there.md")
    assert list(disk.sources) == ["b.md"]
    assert disk.index.read_text() == "b.md\nA file.\n"


def test_a_file_that_is_not_a_source_is_remembered_and_forgotten(disk: Disk) -> None:
    with disk.store().open() as opened:
        opened.skip("a.png", FileSeen(1, 2), "not UTF-8 text")
        opened.skip("b.png", FileSeen(1, 2), "not UTF-8 text")
        opened.unskip("b.png")
    state = store.read(disk.cache).state
    assert state.skipped == {"a.png": {"size_bytes": 1, "mtime_ns": 2, "reason": "not UTF-8 text"}}


def test_folders_are_made_for_what_is_saved(tmp_path: Path) -> None:
    with StateStore(tmp_path / "a/b/c.json", tmp_path / "d/e/index.txt", ManualClock()).open() as opened:
        opened.put(record())
    assert (tmp_path / "d/e/index.txt").read_text() == "a.md\nA file.\n"
    assert "a.md" in store.read(tmp_path / "a/b/c.json").state.sources


@pytest.mark.rule("sync-47")
@pytest.mark.rule("sync-49")
def test_many_changes_share_few_saves(disk: Disk) -> None:
    opened = disk.save(*(record(f"{number:05}.md") for number in range(3000)))
    final_bytes = disk.cache.stat().st_size + disk.index.stat().st_size
    assert opened.saves <= 60
    assert opened.bytes_written <= 20 * final_bytes
    assert len(disk.sources) == 3000
    disk.assert_files_agree()


@pytest.mark.rule("sync-49")
def test_changes_from_many_threads_are_all_saved(disk: Disk) -> None:
    with disk.store().open() as opened:

        def work(worker: int) -> None:
            for number in range(200):
                opened.put(page(f"https://h/{worker}/{number}", "", summary_pending=True))
                opened.put(page(f"https://h/{worker}/{number}", f"Page {number}."))

        threads = [threading.Thread(target=work, args=(worker,)) for worker in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [key for key, value in disk.sources.items() if value["summary_pending"]] == []
    assert len(disk.sources) == 1200
    disk.assert_files_agree()


@pytest.mark.rule("sync-49")
def test_the_later_of_two_changes_is_saved_also_when_it_comes_during_a_save(disk: Disk) -> None:
    """The second change comes during the save of a large state."""
    others = [record(f"{number:05}.md") for number in range(20_000)]
    disk.write_state(*others)
    for attempt in range(10):
        with disk.store().open() as opened:
            opened.put(page(summary="", summary_pending=True))
            for _ in range(10 * attempt):  # to strike the save at another moment
                opened.put(record("busy.md"))
            opened.put(page(summary=f"Number {attempt}."))
        assert disk.sources[URL]["summary_text"] == f"Number {attempt}."
        disk.assert_files_agree()


@pytest.mark.rule("sync-49")
def test_a_change_that_comes_while_the_state_is_being_written_is_part_of_the_next_save(disk: Disk) -> None:
    with disk.store().open() as opened:

        def change_once() -> None:
            disk.clock.on_look = lambda: None
            opened.put(page(summary="Second."))

        disk.clock.on_look = change_once  # a save asks for the time once, for `generated_at`
        opened.put(page(summary="First."))
    assert disk.summaries == {URL: "Second."}
    assert disk.sources[URL]["summary_text"] == "Second."
    disk.assert_files_agree()
    assert disk.names == ["index-cache.json", "index.txt"]


@pytest.mark.rule("sync-47")
def test_a_failure_to_save_is_raised_and_not_lost(disk: Disk) -> None:
    disk.index.mkdir()
    with pytest.raises(OSError, match="directory"):
        disk.save(record())


@pytest.mark.parametrize(
    "summary",
    ["half an emoji: \ud83d", "\udcff", "NUL \x00", "\u2028", "🙂"],
    ids=["lone surrogate", "lone low surrogate", "NUL", "line separator", "emoji"],
)
@pytest.mark.rule("sync-49")
def test_any_text_that_a_model_may_write_can_be_saved(disk: Disk, summary: str) -> None:
    disk.save(record(summary=f"About {summary} this."), page())
    assert list(disk.sources) == ["a.md", URL]
    assert "a.md\nAbout" in disk.index.read_text(encoding="utf-8", errors="replace")
    assert disk.names == ["index-cache.json", "index.txt"]


@pytest.mark.rule("sync-49")
def test_a_url_record_without_next_check_does_not_keep_the_others_from_being_saved(disk: Disk) -> None:
    bare = {"source_type": "url", "content_hash": "hash", "summary_text": "Bare.", "url": {"url": "https://bare"}}
    value = {"schema_version": 1, "generation": 1, "sources": {"https://bare": bare}}
    disk.cache.write_text(json.dumps(value))
    disk.save(record())
    assert list(disk.sources) == ["a.md", "https://bare"]
    disk.assert_files_agree()


# ── nothing to do ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.rule("sync-3")
def test_opening_and_closing_writes_nothing(disk: Disk) -> None:
    disk.save(record(), page())
    before = {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in disk.folder.iterdir()}
    disk.clock.advance(1000)
    opened = disk.save()
    assert {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in disk.folder.iterdir()} == before
    assert (opened.saves, opened.bytes_written) == (0, 0)


def test_opening_where_nothing_is_writes_nothing(disk: Disk) -> None:
    disk.save()
    assert disk.names == []


@pytest.mark.parametrize("spoil", [Path.unlink, lambda path: path.write_text("edited")], ids=["gone", "edited"])
@pytest.mark.rule("sync-49")
def test_an_index_that_differs_is_written_again(disk: Disk, spoil: Callable[[Path], object]) -> None:
    disk.save(record(), page())
    before = disk.index.read_bytes()
    spoil(disk.index)
    disk.save()
    assert disk.index.read_bytes() == before
    disk.assert_files_agree()


@pytest.mark.rule("sync-49")
def test_an_index_without_its_state_is_not_believed(disk: Disk) -> None:
    disk.save(record())
    disk.cache.unlink()
    disk.save(record("b.md"))
    assert disk.index.read_text() == "b.md\nA file.\n"


# ── killed ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.rule("sync-52")
def test_whatever_was_put_is_known_after_a_kill_at_any_later_moment(tmp_path: Path) -> None:
    places = places_in(tmp_path)
    places.cache.parent.mkdir()
    disk = Disk(places.cache.parent)
    copy = Disk(tmp_path / "copy")
    expected = {}
    with disk.store().open() as opened:
        for number in range(40):
            name = f"{number % 25}.md"
            opened.put(record(name, f"Summary {number}."))
            expected[name] = f"Summary {number}."
            if number % 7 == 6:
                opened.remove(name)
                del expected[name]
            copy_as_if_killed(places, copy.folder)
            assert copy.summaries == expected
    assert disk.summaries == expected


@pytest.mark.rule("sync-52")
def test_what_a_kill_left_in_journals_is_saved_by_the_next_opening(disk: Disk) -> None:
    disk.write_state(record("a.md"), record("b.md"), generation=4)
    disk.journal(4, journal_line("a.md", record_to_json(record("a.md", "New."))) + journal_line("b.md", None))
    disk.journal(5, journal_line(URL, record_to_json(page())))
    expected = {"a.md": "New.", URL: "A page."}
    assert disk.summaries == expected
    disk.save()
    assert disk.names == ["index-cache.json", "index.txt"]
    assert {key: value["summary_text"] for key, value in disk.sources.items()} == expected
    disk.assert_files_agree()


@pytest.mark.rule("sync-52")
def test_journals_are_replayed_oldest_first_by_number(disk: Disk) -> None:
    disk.write_state(generation=9)
    for generation in (9, 10, 11):
        disk.journal(generation, journal_line("a.md", record_to_json(record(summary=f"From {generation}."))))
    assert disk.summaries == {"a.md": "From 11."}


@pytest.mark.rule("sync-52")
def test_a_journal_older_than_the_state_is_part_of_it_already(disk: Disk) -> None:
    disk.write_state(record(summary="Newest."), generation=5)
    disk.journal(4, journal_line("a.md", record_to_json(record(summary="Old."))))
    assert disk.summaries == {"a.md": "Newest."}
    disk.save(record("b.md"))
    assert disk.names == ["index-cache.json", "index.txt"]
    assert disk.summaries == {"a.md": "Newest.", "b.md": "A file."}


@pytest.mark.rule("sync-52")
def test_a_journal_that_a_kill_left_behind_its_save_is_removed(disk: Disk) -> None:
    """Later, without the state, it would restore outdated data."""
    disk.save(record(summary="Newest."))
    disk.journal(0, journal_line("a.md", record_to_json(record(summary="Old."))))
    disk.save()
    assert disk.names == ["index-cache.json", "index.txt"]
    assert disk.summaries == {"a.md": "Newest."}


@pytest.mark.rule("sync-52")
def test_a_first_run_that_was_killed_before_its_first_save_is_in_the_journal(disk: Disk) -> None:
    disk.journal(0, journal_line("a.md", record_to_json(record())))
    assert disk.summaries == {"a.md": "A file."}
    disk.save()
    assert disk.index.read_text() == "a.md\nA file.\n"


@pytest.mark.parametrize("cut_bytes", [1, 2, 10, 100, 150])
@pytest.mark.rule("sync-52")
def test_a_last_line_that_was_cut_off_is_left_out(disk: Disk, cut_bytes: int) -> None:
    whole, last = (
        journal_line("a.md", record_to_json(record("a.md"))),
        journal_line("b.md", record_to_json(record("b.md"))),
    )
    disk.write_state(generation=1)
    disk.journal(1, whole + last[:-cut_bytes])
    expected = {"a.md": "A file."} if cut_bytes > 1 else {"a.md": "A file.", "b.md": "A file."}
    assert disk.summaries == expected
    disk.save(record("c.md"))
    assert disk.summaries == expected | {"c.md": "A file."}, "the new change does not continue the torn line"


@pytest.mark.parametrize(
    "line",
    [
        *(b"", b"{}", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b'{"kind": "source"}'),
        journal_line("x", {"source_type": "file"}),
        journal_line("x", record_to_json(record("x")), kind="unheard of"),
        journal_line("x", record_to_json(record("x")), kind="skipped"),
        journal_line("x", {"size_bytes": 1, "mtime_ns": 1, "reason": "not text"}, kind="source"),
        journal_line("\ud800", record_to_json(record("x"))),
        b'{"kind": [], "key": "x", "value": null}',
        b'{"kind": "source", "key": 7, "value": null}',
    ],
    ids=[
        *("empty", "empty object", "list", "null", "no UTF-8", "deep", "no key", "unsound record", "unknown kind"),
        *("source as skip", "skip as source", "no name", "list for a kind", "number for a key"),
    ],
)
@pytest.mark.rule("sync-52")
def test_a_line_that_says_nothing_does_not_cost_the_others(disk: Disk, line: bytes) -> None:
    disk.write_state(generation=1)
    first, last = (journal_line(name, record_to_json(record(name))) for name in ("a.md", "b.md"))
    disk.journal(1, first + line + b"\n" + last)
    assert disk.summaries == {"a.md": "A file.", "b.md": "A file."}


@pytest.mark.rule("sync-49")
@pytest.mark.rule("sync-52")
def test_a_kill_between_the_two_files_is_repaired(disk: Disk) -> None:
    disk.save(record("a.md"))
    old_index = disk.index.read_bytes()
    disk.save(record("b.md"))
    new_index = disk.index.read_bytes()
    disk.index.write_bytes(old_index)
    disk.save()
    assert disk.index.read_bytes() == new_index


def test_files_that_only_look_like_journals_are_left_alone(disk: Disk) -> None:
    disk.save(record())
    names = ["index-cache.json.journal-x", "other.json.journal-0", "index-cache.json.journal-1.bak"]
    for name in names:
        (disk.folder / name).write_bytes(journal_line("z.md", record_to_json(record("z.md"))))
    disk.save(record("b.md"))
    assert disk.names == sorted([*names, "index-cache.json", "index.txt"])
    assert "z.md" not in disk.summaries


# ── damaged, or of a newer version ─────────────────────────────────────────────────────────────────

DAMAGED = {
    "empty": b"",
    "cut off": b'{"schema_version": 1, "sources": {"a.md": {"source_ty',
    "not UTF-8": b"\xff\xfe{}",
    "too deep": b"[" * 100_000,
    "another program's": b'{"name": "x"}',
    "newer": b'{"schema_version": 2, "sources": {}}',
    "damaged record": b'{"schema_version": 1, "sources": {"a.md": {}}}',
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED.keys())
@pytest.mark.rule("sync-51")
def test_a_state_that_cannot_be_read_is_kept_aside_and_reported(disk: Disk, content: bytes) -> None:
    disk.cache.write_bytes(content)
    disk.index.write_text("a.md\nAs it was.\n")
    disk.journal(3, b"journal")
    with pytest.raises(errors.DataError) as caught:
        disk.save(record())
    assert caught.value.code == "E102"
    kept = Path(caught.value.details["kept_at"])
    assert kept.read_bytes() == content
    assert disk.index.read_text() == "a.md\nAs it was.\n"
    assert not disk.cache.exists()
    journals = [path for path in disk.folder.iterdir() if path.read_bytes() == b"journal"]
    assert [path.name.startswith(kept.name) for path in journals] == [True]
    disk.save(record("b.md"))
    assert disk.summaries == {"b.md": "A file."}
    assert kept.read_bytes() == content


@pytest.mark.rule("sync-51")
def test_reading_a_damaged_state_moves_nothing(disk: Disk) -> None:
    disk.cache.write_bytes(b"{")
    with pytest.raises(ValueError, match="valid JSON"):
        store.read(disk.cache)
    assert disk.names == ["index-cache.json"]


@pytest.mark.rule("sync-51")
def test_two_damaged_states_of_one_second_are_both_kept(disk: Disk) -> None:
    for content in (b"first", b"second"):
        disk.cache.write_bytes(content)
        with pytest.raises(errors.DataError):
            disk.save()
    assert sorted(path.read_bytes() for path in disk.folder.iterdir()) == [b"first", b"second"]


# ── a state of the first version ───────────────────────────────────────────────────────────────────


@pytest.mark.rule("sync-40")
def test_a_state_of_the_first_version_is_taken_over_whole(disk: Disk) -> None:
    shutil.copy(GOLDEN, disk.cache)
    before = disk.sources
    disk.save(record("new.md"))
    after = disk.sources
    assert after.pop("new.md") == record_to_json(record("new.md"))
    assert after == before
    assert disk.index.read_text() == (
        "getting-started.txt\nHow to install and start.\nCovers accounts and first steps.\n\n"
        "new.md\nA file.\n\n"
        "plain.md\nWritten by the smallest program that follows the specification.\n\n"
        "https://example.com/docs?page=1#top\nReference of all options.\n\n"
        "https://example.com/failing\nWhat it said before.\n"
    )


# ── disks that are full ────────────────────────────────────────────────────────────────────────────

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", folder], check=True)
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def fill(folder: Path, *, leave_bytes: int) -> Path:
    """Write a file that leaves only this many bytes free."""
    free = shutil.disk_usage(folder).free
    filler = folder / "filler"
    filler.write_bytes(bytes(free - leave_bytes))
    return filler


@needs_root
@pytest.mark.rule("sync-47")
def test_a_full_disk_is_an_error_and_keeps_the_old_files_whole(small_disk: Path) -> None:
    disk = Disk(small_disk)
    disk.save(record("a.md"), page())
    before = (disk.cache.read_bytes(), disk.index.read_bytes())
    filler = fill(small_disk, leave_bytes=8192)
    with pytest.raises(OSError, match="No space"):
        disk.save(record("b.md", "x" * 20_000))
    assert (disk.cache.read_bytes(), disk.index.read_bytes()) == before
    assert [name for name in disk.names if name.endswith(".tmp")] == []
    filler.unlink()
    disk.save(record("c.md"))
    assert sorted(disk.sources) == ["a.md", "c.md", URL]
    disk.assert_files_agree()


@needs_root
@pytest.mark.rule("sync-47")
@pytest.mark.rule("sync-52")
def test_a_disk_too_small_for_a_second_copy_is_an_error_and_loses_nothing(small_disk: Path) -> None:
    """There is room for the journal, but not for new files beside the old ones."""
    disk = Disk(small_disk)
    disk.save(record("a.md", "x" * 60_000))
    before = (disk.cache.read_bytes(), disk.index.read_bytes())
    filler = fill(small_disk, leave_bytes=16_384)
    with pytest.raises(OSError, match="No space"):
        disk.save(record("b.md"))
    assert (disk.cache.read_bytes(), disk.index.read_bytes()) == before
    filler.unlink()
    disk.save()
    assert sorted(disk.sources) == ["a.md", "b.md"], "it was in the journal"
    disk.assert_files_agree()


@needs_root
@pytest.mark.rule("sync-47")
def test_a_run_on_a_full_disk_is_a_storage_error_and_the_next_one_continues(small_disk: Path) -> None:
    project = Project(small_disk)
    project.write("a.md", "text")
    project.run()
    before = (project.places.cache.read_bytes(), project.places.index.read_bytes())
    project.serve(URL, Page("y" * 300_000))
    with pytest.raises(errors.StorageError) as caught:
        project.run()
    assert caught.value.code == "E010"
    assert "space" in caught.value.message
    assert (project.places.cache.read_bytes(), project.places.index.read_bytes()) == before
    project.serve(URL, Page("y"))
    assert project.run().pending == 0
    assert sorted(project.records) == ["a.md", URL]


@needs_root
@pytest.mark.rule("sync-52")
def test_a_change_that_did_not_fit_does_not_spoil_the_one_after_it(small_disk: Path) -> None:
    """The full disk leaves half a line in the journal. A later change must not be appended to that line."""
    disk = Disk(small_disk)
    disk.save(record("a.md"))
    filler = fill(small_disk, leave_bytes=8192)
    with contextlib.suppress(OSError), disk.store().open() as opened:
        with pytest.raises(OSError, match="No space"):
            opened.put(record("big.md", "x" * 20_000))
        filler.unlink()
        opened.put(record("b.md"))
        known = disk.summaries  # the state after a kill: in the journal, or already saved
    assert known == {"a.md": "A file.", "b.md": "A file."}
