"""One sync run after another over real files: every rule of the specification about sync, through `SyncRun`."""

import json
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import pytest

from pair import errors
from pair.sync import store
from pair.sync.contract import UnreadableDocument
from pair.sync.discovery import Places
from pair.sync.index_file import index_text
from pair.sync.rules import SyncPolicy
from pair.sync.ticker import Ticker
from support.sync_parts import (
    UNREACHABLE,
    UNUSABLE,
    Page,
    Project,
    Request,
    copy_as_if_killed,
    hash_of,
    later,
    nothing,
    places_in,
    summary_of,
)

URL = "https://example.com/page"
OTHER = "https://other.example/page"
TICK = 300
INTERVAL = 3600
FAULTS = [UNREACHABLE, UNUSABLE]
both_faults = pytest.mark.parametrize("fault", FAULTS, ids=["unreachable", "unusable"])


@pytest.fixture
def project(tmp_path: Path) -> Project:
    policy = SyncPolicy(
        url_refresh_min_interval_seconds=INTERVAL, runtime_refresh_tick_seconds=TICK, max_source_bytes=10_000
    )
    return Project(tmp_path, policy)


def text_at(seconds: float) -> str:
    """An instant so many seconds after the clock's first, as it is stored."""
    return later(seconds).isoformat().replace("+00:00", "Z")


def entry(source_id: str, text: str) -> str:
    """What the index must say of a source with this text."""
    return f"{source_id}\n{summary_of(source_id, text)}\n".replace("\n\n", "\n")


def did(project: Project) -> tuple[list[str], list[str]]:
    """Sources that were summarised, and URLs that were requested, by the last run."""
    return sorted(project.summariser.calls), project.pages.urls


def changed_fields(before: dict[str, Any], after: dict[str, Any]) -> set[str]:
    def flat(record: dict[str, Any]) -> dict[str, Any]:
        return {**record, **record.get("url", {}), **record.get("file", {})}

    was, has = flat(before), flat(after)
    return {name for name in was.keys() | has.keys() if was.get(name) != has.get(name)} - {"url", "file"}


# ── goals ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.rule("sync-1")
@pytest.mark.rule("sync-2")
@pytest.mark.rule("sync-36")
def test_a_second_run_over_nothing_new_does_nothing_and_changes_no_byte(project: Project) -> None:
    for number in range(20):
        project.write(f"dir-{number % 3}/{number}.md", f"text {number}")
    project.write("logo.png", b"\x89PNG\xff")
    for number in range(5):
        project.serve(f"https://h{number}.example/", Page(f"page {number}", etag=f'"{number}"'))
    first = project.run()
    assert (first.added, first.fetched, first.pending, first.model_calls) == (25, 5, 0, 25)
    before = project.made
    project.clock.advance(INTERVAL - 1)
    second = project.run()
    assert did(project) == ([], [])
    assert project.made == before
    assert second.did_nothing
    assert (second.unchanged, second.bytes_read, second.model_calls) == (25, 0, 0)
    assert second.skipped == first.skipped == (("logo.png", "not UTF-8 text"),)


@pytest.mark.rule("sync-1")
def test_a_run_that_changes_nothing_changes_no_byte_after_a_failure_either(project: Project) -> None:
    """A check that failed, a new page that keeps failing, a summary that keeps failing."""
    project.write("stuck.md", "text")
    project.summariser.faults["stuck.md"] = UNUSABLE
    known = project.serve(URL, Page("page", etag='"1"'))
    new = project.serve(f"{URL}/new", Page().failing())
    project.run()
    project.serve(known, Page().failing())
    project.clock.advance(INTERVAL)
    project.run()
    before = project.made
    report = project.run()
    assert (report.failed, report.pending) == (1, 1)
    assert project.made == before
    assert project.state["problems"].keys() == {known, new, "stuck.md"}


def test_a_check_that_failed_is_not_due_until_its_time(project: Project) -> None:
    project.serve(URL, Page("page", etag='"1"'))
    project.run()
    project.serve(URL, Page().failing())
    project.clock.advance(INTERVAL)
    project.run()
    before = project.made
    assert project.run().unchanged == 1
    assert project.made == before
    project.serve(URL, Page("page", etag='"1"'))
    project.clock.advance(TICK)
    assert project.run().not_modified == 1
    assert project.state["problems"] == {}


@pytest.mark.rule("sync-1")
def test_a_run_with_nothing_to_do_reads_no_source(project: Project) -> None:
    project.write("a.md", "text")
    project.run()
    path = project.path("a.md")
    os.utime(path, ns=(1, path.stat().st_mtime_ns))
    path_before = path.stat().st_atime_ns
    project.run()
    assert path.stat().st_atime_ns == path_before


@pytest.mark.rule("sync-3")
@pytest.mark.rule("sync-38")
@pytest.mark.rule("sync-39")
def test_the_index_lists_files_then_urls_each_sorted_and_readable(project: Project) -> None:
    project.serve("https://z.example", Page("z"))
    project.serve("https://a.example", Page("a"))
    project.write("b.md", "b")
    project.write("a/z.md", "az")
    project.write("B.md", "B")
    project.run()
    assert project.index == "\n".join(
        [
            entry("B.md", "B"),
            entry("a/z.md", "az"),
            entry("b.md", "b"),
            entry("https://a.example", "a"),
            entry("https://z.example", "z"),
        ]
    )
    assert re.search(r"\n\n\n|^\n|\n\n\Z", project.index) is None


@pytest.mark.rule("sync-3")
def test_the_same_sources_give_the_same_index_however_it_came_about(tmp_path: Path) -> None:
    texts = {f"{number}.md": f"text {number}" for number in range(12)}
    at_once, one_by_one = Project(tmp_path / "one"), Project(tmp_path / "two")
    for name, text in texts.items():
        at_once.write(name, text)
    at_once.run()
    for name, text in reversed(texts.items()):
        one_by_one.write(name, "draft")
        one_by_one.run()
        one_by_one.write(name, text)
        one_by_one.run()
    assert one_by_one.index == at_once.index


# ── entry points ───────────────────────────────────────────────────────────────────────────────────


def ticked(project: Project) -> None:
    Ticker(lambda: project.run(wait=False), lambda _: True, nothing, project.clock, TICK).loop()


@pytest.mark.rule("sync-4")
def test_a_run_by_hand_and_a_run_by_tick_leave_the_same(tmp_path: Path) -> None:
    entry_points: list[Callable[[Project], object]] = [Project.run, ticked]
    results = []
    for number, start in enumerate(entry_points):
        project = Project(tmp_path / str(number))
        project.write("a.md", "text")
        project.write("b.md", "text")
        project.serve(URL, Page("page", etag='"1"'))
        project.summariser.faults["b.md"] = UNUSABLE
        start(project)
        project.write("a.md", "other")
        project.clock.advance(INTERVAL)
        start(project)
        results.append((project.records, project.index, did(project)))
    assert results[0] == results[1]


@pytest.mark.rule("sync-5")
def test_a_run_goes_over_every_source_once_and_leaves_no_thread_behind(project: Project) -> None:
    for number in range(30):
        project.write(f"{number}.md", f"text {number}")
        project.serve(f"https://example.com/{number}", Page(f"page {number}"))
    threads = set(threading.enumerate())
    report = project.run()
    assert set(threading.enumerate()) == threads
    assert len(project.summariser.calls) == len(set(project.summariser.calls)) == 60
    assert len(project.pages.requests) == 30
    assert report.pending == 0
    assert (project.observer.totals, sorted(project.observer.done)) == ([60], sorted(project.records))


@pytest.mark.rule("sync-6")
def test_a_first_sync_goes_on_while_the_program_that_started_it_does(project: Project) -> None:
    project.write("a.md", "text")
    may_go_on = threading.Event()
    project.summariser.on_call = lambda _: assert_set(may_go_on)
    background = threading.Thread(target=project.run)
    background.start()
    may_go_on.set()  # reached while the run may still be under way
    background.join(60)
    assert project.index == entry("a.md", "text")


def assert_set(event: threading.Event) -> None:
    assert event.wait(60)


@pytest.mark.rule("sync-7")
def test_ticks_refresh_urls_when_they_are_due(project: Project) -> None:
    project.serve(URL, Page("page", etag='"1"'))
    requests: list[tuple[float, str | None]] = []
    begin = project.clock.monotonic()

    def wait(seconds: float) -> bool:
        requests.extend((project.clock.monotonic() - begin, each.etag) for each in project.pages.requests)
        project.clock.advance(seconds)
        return project.clock.monotonic() - begin > 2 * INTERVAL

    Ticker(project.run, wait, nothing, project.clock, TICK).loop()
    assert requests == [(0, None), (INTERVAL, '"1"'), (2 * INTERVAL, '"1"')]


class HeldRun:
    """A run of the project that stands still in its summariser until it is let go."""

    def __init__(self, project: Project) -> None:
        self._is_in, self._may_go_on = threading.Event(), threading.Event()
        project.summariser.on_call = self._hold
        self._thread = threading.Thread(target=project.sync_run().run)

    def _hold(self, _: str) -> None:
        self._is_in.set()
        assert_set(self._may_go_on)

    def __enter__(self) -> Self:
        self._thread.start()
        assert_set(self._is_in)
        return self

    def let_go(self) -> None:
        self._may_go_on.set()

    def __exit__(self, *_: object) -> None:
        self.let_go()
        self._thread.join(60)


@pytest.mark.rule("sync-8")
@pytest.mark.rule("sync-48")
def test_a_tick_during_another_run_is_skipped_without_touching_anything(project: Project) -> None:
    project.write("a.md", "text")
    other = Project(project.folder / "other")
    other.places = project.places
    with HeldRun(project):
        before = project.made
        with pytest.raises(errors.ConflictError) as caught:
            other.run(wait=False)
        assert caught.value.code == "E101"
        assert str(os.getpid()) in caught.value.message
        assert project.made == before
        ticker = Ticker(lambda: other.run(wait=False), lambda _: True, nothing, other.clock, TICK)
        ticker.loop()
        assert (ticker.runs, ticker.skipped) == (0, 1)
    assert did(other) == ([], [])
    assert project.index == entry("a.md", "text")


@pytest.mark.rule("sync-8")
@pytest.mark.rule("sync-48")
def test_a_run_by_hand_waits_for_the_other_says_so_and_repeats_nothing(project: Project) -> None:
    project.write("a.md", "text")
    other = Project(project.folder / "other")
    other.places = project.places
    says = threading.Event()
    with HeldRun(project) as held:
        other.observer.on_say = lambda _: says.set()
        waiting = threading.Thread(target=other.run)
        waiting.start()
        assert_set(says)
        assert other.summariser.calls == []
        held.let_go()
        waiting.join(60)
    assert other.observer.said == [f"waiting for another sync: process {os.getpid()}"]
    assert did(other) == ([], [])


# ── discovery and deletions ────────────────────────────────────────────────────────────────────────


@pytest.mark.rule("sync-9")
@pytest.mark.rule("sync-12")
@pytest.mark.rule("sync-44")
def test_what_is_gone_leaves_state_index_and_copies(project: Project) -> None:
    project.write("a.md", "a")
    project.write("b.md", "b")
    project.serve(URL, Page("page"))
    project.serve(OTHER, Page("other"))
    project.run()
    assert project.copy_of(URL).exists()
    project.path("a.md").unlink()
    project.link(OTHER)
    report = project.run()
    assert report.removed == 2
    assert list(project.records) == ["b.md", OTHER]
    assert project.index == entry("b.md", "b") + "\n" + entry(OTHER, "other")
    assert not project.copy_of(URL).exists()
    assert project.copy_of(OTHER).exists()
    assert did(project) == ([], [])


@pytest.mark.rule("sync-12")
def test_the_last_source_may_go_too(project: Project) -> None:
    project.write("a.md", "a")
    project.run()
    project.path("a.md").unlink()
    project.run()
    assert (project.records, project.index) == ({}, "")


@pytest.mark.rule("sync-10")
def test_lines_of_the_links_file_are_urls_but_for_comments_and_blank_ones(project: Project) -> None:
    project.pages.pages = {URL: Page("page"), OTHER: Page("other")}
    project.places.links_file.write_bytes(f"\ufeff# pages\r\n\r\n  {URL}\t\r\n#{OTHER}\r\n{URL}\r\n{OTHER}".encode())
    project.run()
    assert did(project) == ([URL, OTHER], [URL, OTHER])
    assert list(project.records) == [URL, OTHER]


@pytest.mark.parametrize(
    ("content", "text"),
    [(b"plain", "plain"), (b"\xef\xbb\xbfmarked", "marked"), (b"x" * 10_000, "x" * 10_000), (b"a\r\nb", "a\r\nb")],
    ids=["plain", "byte order mark", "of the largest size", "CRLF"],
)
@pytest.mark.rule("sync-11")
def test_a_file_that_is_utf8_and_small_enough_is_a_source(project: Project, content: bytes, text: str) -> None:
    project.write("a.md", content)
    project.run()
    assert project.summariser.texts == {"a.md": text}
    assert project.index == entry("a.md", text)


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"caf\xe9", "not UTF-8 text"), (b"x" * 10_001, "larger than 10,000 bytes")],
    ids=["not UTF-8", "too large"],
)
@pytest.mark.rule("sync-11")
def test_a_file_that_is_no_text_is_left_out_with_the_reason_and_not_read_again(
    project: Project, content: bytes, reason: str
) -> None:
    project.write("a.bin", content)
    project.write("b.md", "b")
    report = project.run()
    assert report.skipped == (("a.bin", reason),)
    assert list(project.records) == ["b.md"]
    project.write("c.md", "c")
    again = project.run()
    assert again.skipped == report.skipped
    assert again.bytes_read == 1


@pytest.mark.parametrize("content", [b"caf\xe9", b"x" * 10_001], ids=["not UTF-8", "too large"])
@pytest.mark.rule("sync-11")
@pytest.mark.rule("sync-12")
def test_a_source_that_stops_being_text_is_removed_and_comes_back_when_it_is_text_again(
    project: Project, content: bytes
) -> None:
    project.write("a.md", "text")
    project.run()
    project.write("a.md", content)
    assert project.run().removed == 1
    assert (project.records, project.index) == ({}, "")
    project.write("a.md", "again")
    report = project.run()
    assert (report.added, report.skipped) == (1, ())
    assert project.index == entry("a.md", "again")
    assert project.state["skipped"] == {}


@pytest.mark.rule("sync-11")
def test_a_higher_limit_lets_in_what_was_too_large(project: Project) -> None:
    project.write("a.md", "x" * 10_001)
    project.run()
    project.policy = SyncPolicy(max_source_bytes=20_000)
    assert project.run().added == 1


@pytest.mark.rule("sync-11")
def test_a_lower_limit_does_not_drop_what_did_not_change(project: Project) -> None:
    project.write("a.md", "x" * 5000)
    project.run()
    project.policy = SyncPolicy(max_source_bytes=1000)
    report = project.run()
    assert (report.removed, report.model_calls) == (0, 0)


@pytest.mark.rule("sync-11")
def test_hidden_files_and_links_out_are_not_sources(project: Project) -> None:
    outside = project.folder / "outside.md"
    outside.write_text("secret")
    for name in (".hidden.md", ".git/config", "a/.b/c.md", "seen.md"):
        project.write(name, name)
    project.path("link.md").symlink_to(outside)
    report = project.run()
    assert list(project.records) == ["seen.md"]
    assert report.skipped == (("link.md", "link out of the folder"),)
    assert "secret" not in project.summariser.texts.values()


@pytest.mark.rule("sync-11")
def test_a_file_that_cannot_be_opened_fails_alone_and_keeps_its_record(project: Project) -> None:
    """It goes after it was found and before it is read: that fails for root as well."""
    project.write("a.md", "a")
    project.write("b.md", "b")
    project.run()
    before = project.record("a.md")
    project.touch("a.md")
    project.touch("b.md")
    project.observer.on_planned = lambda _: project.path("a.md").unlink()
    report = project.run()
    assert report.failed == 1
    assert [source for source, _ in report.problems] == ["a.md"]
    assert project.record("a.md") == before
    assert project.index == entry("a.md", "a") + "\n" + entry("b.md", "b")


class UpperCase:
    """A document loader that can read everything but one file."""

    def text_of(self, path: Path) -> str:
        if path.name.startswith("broken"):
            raise UnreadableDocument("encrypted")
        return path.read_bytes()[4:].decode().upper()


@pytest.mark.rule("sync-11")
def test_documents_are_read_through_a_loader_when_there_is_one(project: Project) -> None:
    for name in ("a.pdf", "b.DOCX", "broken.pdf"):
        project.write(name, b"%PDFtext")
    project.write("c.html", "<p>page")
    without = project.run()
    assert [path for path, _ in without.skipped] == ["a.pdf", "b.DOCX", "broken.pdf"]
    assert all("pair-kb[documents]" in reason for _, reason in without.skipped)
    assert list(project.records) == ["c.html"]
    project.documents = UpperCase()
    report = project.run()
    assert sorted(project.records) == ["a.pdf", "b.DOCX", "c.html"]
    assert project.summariser.texts["a.pdf"] == "TEXT"
    assert report.skipped == (("broken.pdf", "encrypted"),)


@pytest.mark.rule("sync-50")
@pytest.mark.parametrize("half", ["sources folder", "links file"])
def test_a_named_place_that_is_missing_is_an_error_for_its_half_and_deletes_nothing(
    project: Project, half: str
) -> None:
    project.places = named(project.places)
    project.write("a.md", "a")
    project.serve(URL, Page("page"))
    project.run()
    before = project.records
    hidden = project.folder / "hidden"
    place = project.places.sources_dir if half == "sources folder" else project.places.links_file
    place.rename(hidden)
    project.clock.advance(INTERVAL)
    report = project.run()
    assert [half in error and str(place) in error for error in report.errors] == [True]
    assert report.removed == 0
    assert project.records.keys() == before.keys()
    assert entry("a.md", "a") in project.index
    assert entry(URL, "page") in project.index
    assert project.pages.urls == ([URL] if half == "sources folder" else []), "the other half goes on"
    hidden.rename(place)
    after = project.run()
    assert (after.errors, after.removed, after.added) == ((), 0, 0)


def named(places: Places) -> Places:
    return Places(places.sources_dir, places.links_file, places.index, places.cache, places.page_copies, True, True)


@pytest.mark.rule("sync-50")
@pytest.mark.parametrize("half", ["sources folder", "links file"])
def test_a_named_place_is_missed_also_when_nothing_ever_came_from_it(project: Project, half: str) -> None:
    project.link("# nothing yet")
    project.run()
    project.places = named(project.places)
    if half == "sources folder":
        project.places.sources_dir.rmdir()
    else:
        project.places.links_file.unlink()
    for _ in range(2):
        assert [half in error for error in project.run().errors] == [True]


@pytest.mark.rule("sync-50")
def test_naming_a_place_that_was_missing_all_along_makes_it_an_error(project: Project) -> None:
    project.places.sources_dir.rmdir()
    assert project.run().errors == ()
    project.places = named(project.places)
    assert len(project.run().errors) == 2


@pytest.mark.rule("sync-50")
def test_places_by_default_may_be_missing(project: Project) -> None:
    project.places.sources_dir.rmdir()
    report = project.run()
    assert (report.errors, report.did_nothing) == ((), True)


@pytest.mark.rule("sync-50")
def test_a_default_folder_that_vanishes_with_its_sources_deletes_nothing_either(project: Project) -> None:
    project.write("a.md", "a")
    project.run()
    project.places.sources_dir.rename(project.folder / "away")
    report = project.run()
    assert len(report.errors) == 1
    assert project.index == entry("a.md", "a")


@pytest.mark.rule("sync-12")
def test_without_the_default_links_file_there_are_no_urls(project: Project) -> None:
    project.serve(URL, Page("page"))
    project.run()
    project.places.links_file.unlink()
    report = project.run()
    assert (report.removed, report.errors, project.records) == (1, (), {})


# ── files ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.rule("sync-13")
@pytest.mark.rule("sync-41")
@pytest.mark.rule("sync-43")
def test_a_new_file_gets_a_record_with_its_summary(project: Project) -> None:
    path = project.write("dir/a.md", "one\r\ntwo  \n\n")
    report = project.run()
    assert (report.added, report.pending, report.problems) == (1, 0, ())
    assert project.record("dir/a.md") == {
        "source_type": "file",
        "content_hash": hash_of("one\ntwo"),
        "summary_text": summary_of("dir/a.md", "one\r\ntwo  \n\n"),
        "summary_pending": False,
        "last_indexed_at": text_at(0),
        "file": {"rel_path": "dir/a.md", "size_bytes": 12, "mtime_ns": path.stat().st_mtime_ns},
    }


@both_faults
@pytest.mark.rule("sync-13")
def test_a_new_file_whose_summary_fails_is_pending_and_not_in_the_index(
    project: Project, fault: errors.ModelError
) -> None:
    project.write("a.md", "text")
    project.write("b.md", "text")
    project.summariser.faults["a.md"] = fault
    report = project.run()
    record = project.record("a.md")
    assert (record["summary_text"], record["summary_pending"]) == ("", True)
    assert record["content_hash"] == hash_of("text")
    assert project.index == entry("b.md", "text")
    assert (report.pending, report.added) == (1, 2)
    assert [source for source, _ in report.problems] == ["a.md"]
    assert fault.explanation in report.problems[0][1]


@pytest.mark.parametrize("answer", ["", "  \n\t\n "], ids=["empty", "white space"])
@pytest.mark.rule("sync-13")
def test_an_empty_answer_of_the_model_is_a_failure(project: Project, answer: str) -> None:
    project.write("a.md", "text")
    project.summariser.answers["a.md"] = answer
    report = project.run()
    assert project.record("a.md")["summary_pending"] is True
    assert report.pending == 1
    project.summariser.answers.clear()
    assert project.run().pending == 0


@pytest.mark.parametrize("content", [b"", b" \n\t\r\n", b"\xef\xbb\xbf"], ids=["empty", "white space", "only a mark"])
@pytest.mark.rule("sync-13")
def test_a_blank_file_is_a_source_that_costs_no_call_and_has_no_entry(project: Project, content: bytes) -> None:
    project.write("a.md", content)
    for _ in range(2):
        report = project.run()
        assert did(project) == ([], [])
        assert (project.record("a.md")["summary_pending"], report.pending, project.index) == (False, 0, "")


@pytest.mark.rule("sync-1")
@pytest.mark.rule("sync-14")
def test_a_file_with_the_same_size_and_time_is_unchanged(project: Project) -> None:
    """Other content under the same size and time is not seen: documented."""
    project.write("a.md", "text")
    project.run()
    before = project.record("a.md")
    project.write_unseen("a.md", "TEXT")
    project.write("b.md", "something to do")
    report = project.run()
    assert did(project) == (["b.md"], [])
    assert project.record("a.md") == before
    assert (report.unchanged, report.added) == (1, 1)


@both_faults
@pytest.mark.rule("sync-15")
def test_a_pending_file_that_did_not_change_is_summarised_from_its_current_content(
    project: Project, fault: errors.ModelError
) -> None:
    project.write("a.md", "text")
    project.summariser.always = fault
    project.run()
    project.summariser.always = None
    project.write_unseen("a.md", "TEXT")
    project.clock.advance(10)
    report = project.run()
    record = project.record("a.md")
    assert record["summary_text"] == summary_of("a.md", "TEXT")
    assert record["content_hash"] == hash_of("TEXT")
    assert (record["summary_pending"], record["last_indexed_at"]) == (False, text_at(10))
    assert (report.pending, did(project)) == (0, (["a.md"], []))


@both_faults
@pytest.mark.rule("sync-16")
def test_a_pending_file_that_fails_again_keeps_its_record_whole(project: Project, fault: errors.ModelError) -> None:
    project.write("a.md", "text")
    project.summariser.always = fault
    project.run()
    before = project.record("a.md")
    project.clock.advance(10)
    project.write_unseen("a.md", "TEXT")
    report = project.run()
    assert project.record("a.md") == before
    assert (report.pending, did(project)) == (1, (["a.md"], []))


@pytest.mark.rule("sync-17")
@pytest.mark.rule("sync-18")
def test_a_changed_file_is_read_and_summarised_anew(project: Project) -> None:
    project.write("a.md", "text")
    project.write("b.md", "text")
    project.run()
    path = project.write("a.md", "longer text")
    project.clock.advance(10)
    report = project.run()
    record = project.record("a.md")
    assert record["file"] == {"rel_path": "a.md", "size_bytes": 11, "mtime_ns": path.stat().st_mtime_ns}
    assert record["content_hash"] == hash_of("longer text")
    assert record["summary_text"] == summary_of("a.md", "longer text")
    assert record["last_indexed_at"] == text_at(10)
    assert (report.changed, report.unchanged, did(project)) == (1, 1, (["a.md"], []))


@pytest.mark.rule("sync-18")
def test_a_pending_file_that_was_touched_is_summarised(project: Project) -> None:
    project.write("a.md", "text")
    project.summariser.always = UNUSABLE
    project.run()
    project.summariser.always = None
    path = project.touch("a.md")
    project.run()
    record = project.record("a.md")
    assert (record["summary_pending"], record["file"]["mtime_ns"]) == (False, path.stat().st_mtime_ns)
    assert did(project) == (["a.md"], [])


@both_faults
@pytest.mark.rule("sync-19")
def test_a_changed_file_whose_summary_fails_keeps_the_old_summary_under_the_new_hash(
    project: Project, fault: errors.ModelError
) -> None:
    project.write("a.md", "text")
    project.run()
    path = project.write("a.md", "other text")
    project.summariser.always = fault
    project.clock.advance(10)
    report = project.run()
    assert project.record("a.md") == {
        "source_type": "file",
        "content_hash": hash_of("other text"),
        "summary_text": summary_of("a.md", "text"),
        "summary_pending": True,
        "last_indexed_at": text_at(0),
        "file": {"rel_path": "a.md", "size_bytes": 10, "mtime_ns": path.stat().st_mtime_ns},
    }
    assert project.index == entry("a.md", "text")
    assert (report.pending, report.changed) == (1, 1)
    project.summariser.always = None
    assert project.run().pending == 0
    assert project.index == entry("a.md", "other text")


@pytest.mark.parametrize("text", ["one\ntwo", "one\r\ntwo\r\n", "\n\none  \ntwo\t\n\n", "\ufeffone\ntwo"])
@pytest.mark.rule("sync-20")
@pytest.mark.rule("sync-46")
def test_a_file_whose_normalised_text_is_the_same_gets_new_metadata_only(project: Project, text: str) -> None:
    project.write("a.md", "one\ntwo")
    project.run()
    before = project.record("a.md")
    path = project.write("a.md", text)
    project.clock.advance(10)
    report = project.run()
    seen = path.stat()
    expected = before | {"file": {"rel_path": "a.md", "size_bytes": seen.st_size, "mtime_ns": seen.st_mtime_ns}}
    assert project.record("a.md") == expected
    assert did(project) == ([], [])
    assert (report.changed, report.unchanged, report.model_calls) == (0, 1, 0)


@pytest.mark.rule("sync-43")
def test_a_renamed_file_is_a_deletion_and_an_addition(project: Project) -> None:
    project.write("a.md", "text")
    project.run()
    project.path("dir").mkdir()
    project.path("a.md").rename(project.path("dir/b.md"))
    report = project.run()
    assert (report.removed, report.added, did(project)) == (1, 1, (["dir/b.md"], []))
    assert list(project.records) == ["dir/b.md"]
    assert project.index == entry("dir/b.md", "text")


@pytest.mark.rule("sync-43")
def test_a_file_name_that_is_no_utf8_is_left_out_of_an_index_that_is(project: Project) -> None:
    project.write(os.fsdecode(b"caf\xe9.md"), "text")
    project.write("a.md", "text")
    assert len(project.run().skipped) == 1
    assert project.index == entry("a.md", "text")
    assert project.run().did_nothing


# ── new URLs ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.rule("sync-21")
@pytest.mark.rule("sync-23")
@pytest.mark.rule("sync-42")
@pytest.mark.rule("sync-44")
@pytest.mark.rule("sync-45")
def test_a_new_url_is_fetched_copied_and_summarised(project: Project) -> None:
    project.serve(URL, Page("über\r\nall  ", etag='"1"', last_modified="Monday"))
    report = project.run()
    assert project.pages.requests == [Request(URL)]
    assert project.copy_of(URL).read_bytes().decode("utf-8") == "über\r\nall  "
    assert [path.name for path in project.places.page_copies.iterdir()] == [hash_of(URL)]
    record = project.record(URL)
    for ours in ("problem", "validated_at"):
        record["url"].pop(ours, None)
    assert record == {
        "source_type": "url",
        "content_hash": hash_of("über\nall"),
        "summary_text": summary_of(URL, "über\r\nall  "),
        "summary_pending": False,
        "last_indexed_at": text_at(0),
        "url": {
            "url": URL,
            "last_fetched_at": text_at(0),
            "etag": '"1"',
            "last_modified": "Monday",
            "fetch_status": "success",
            "next_check_at": text_at(INTERVAL),
        },
    }
    assert (report.added, report.fetched, report.bytes_read) == (1, 1, len("über\r\nall  ".encode()))


@pytest.mark.rule("sync-22")
def test_a_new_url_is_on_disk_as_pending_before_the_summary_is_asked_for(project: Project) -> None:
    project.serve(URL, Page("page", etag='"1"'))
    seen: list[dict[str, Any]] = []

    def look(_: str) -> None:
        seen.append(store.read(project.places.cache).state.sources[URL])
        assert project.copy_of(URL).read_text() == "page"

    project.summariser.on_call = look
    project.run()
    assert [(each["summary_pending"], each["summary_text"]) for each in seen] == [(True, "")]
    assert seen[0]["url"]["etag"] == '"1"'
    assert seen[0]["content_hash"] == hash_of("page")


@both_faults
@pytest.mark.rule("sync-22")
@pytest.mark.rule("sync-23")
def test_a_new_url_whose_summary_fails_stays_pending_with_its_normal_next_check(
    project: Project, fault: errors.ModelError
) -> None:
    project.serve(URL, Page("page"))
    project.summariser.always = fault
    report = project.run()
    record = project.record(URL)
    assert (record["summary_pending"], record["summary_text"]) == (True, "")
    assert record["url"]["next_check_at"] == text_at(INTERVAL)
    assert (report.pending, report.added, project.index) == (1, 1, "")


@pytest.mark.parametrize("status", ["timeout", "error"])
@pytest.mark.rule("sync-23")
def test_a_new_url_that_cannot_be_fetched_gets_no_record_and_is_tried_again_next_run(
    project: Project, status: str
) -> None:
    project.serve(URL, Page("page").failing(status))
    for _ in range(2):
        report = project.run()
        assert project.pages.requests == [Request(URL)]
        assert (report.failed, report.problems) == (1, ((URL, f"scripted {status}"),))
        assert store.read(project.places.cache).state.sources == {}
        assert not project.copy_of(URL).exists()
    project.serve(URL, Page("page"))
    assert project.run().added == 1


@pytest.mark.rule("sync-23")
def test_a_new_url_that_is_answered_not_modified_is_a_failure_and_tried_again(project: Project) -> None:
    project.serve(URL, Page("page"))
    project.pages.always_not_modified.add(URL)
    for _ in range(2):
        report = project.run()
        assert project.pages.urls == [URL]
        assert (report.failed, [source for source, _ in report.problems]) == (1, [URL])
        assert project.observer.done == [URL]


# ── URLs that are known ────────────────────────────────────────────────────────────────────────────


def settled(project: Project, page: Page, url: str = URL) -> str:
    """A URL that was fetched and summarised at the clock's first moment."""
    project.serve(url, page)
    project.run()
    assert project.record(url)["summary_pending"] is False
    return url


@pytest.mark.parametrize(
    ("seconds", "is_due"),
    [(0, False), (INTERVAL - 0.000001, False), (INTERVAL, True), (10 * INTERVAL, True), (-INTERVAL, False)],
    ids=["at once", "a microsecond before", "at the moment", "long after", "the clock was set back"],
)
@pytest.mark.rule("sync-2")
@pytest.mark.rule("sync-24")
def test_a_url_is_requested_from_the_moment_of_its_next_check_and_not_before(
    project: Project, seconds: float, is_due: bool
) -> None:
    settled(project, Page("page", etag='"1"'))
    project.write("a.md", "so that the run has something to do")
    project.clock.jump(seconds)
    project.run()
    assert project.pages.urls == ([URL] if is_due else [])


@pytest.mark.rule("sync-24")
def test_each_url_is_due_at_its_own_moment_to_the_microsecond(project: Project) -> None:
    """The earliest of several moments counts, also when it is written shorter than the others."""
    settled(project, Page("page"))
    project.clock.advance(0.5)
    settled(project, Page("other"), OTHER)
    project.clock.advance(INTERVAL - 0.25)
    project.run()
    assert project.pages.urls == [URL]


@pytest.mark.parametrize(
    ("page", "request_sent"),
    [
        (Page("page"), Request(URL)),
        (Page("page", etag='W/"1"'), Request(URL, 'W/"1"')),
        (Page("page", last_modified="Monday"), Request(URL, None, "Monday")),
        (Page("page", etag='"1"', last_modified="Monday"), Request(URL, '"1"', "Monday")),
    ],
    ids=["no validators", "entity tag", "date", "both"],
)
@pytest.mark.rule("sync-25")
def test_the_first_refresh_already_sends_the_stored_validators(
    project: Project, page: Page, request_sent: Request
) -> None:
    settled(project, page)
    project.clock.advance(INTERVAL)
    project.run()
    assert project.pages.requests == [request_sent]


@pytest.mark.rule("sync-26")
def test_not_modified_sets_status_and_times_and_nothing_else(project: Project) -> None:
    settled(project, Page("page", etag='"1"'))
    before = project.record(URL)
    index = project.index
    project.clock.advance(INTERVAL + 5)
    report = project.run()
    after = project.record(URL)
    assert changed_fields(before, after) == {"fetch_status", "last_fetched_at", "next_check_at"}
    assert after["url"]["fetch_status"] == "not_modified"
    assert after["url"]["last_fetched_at"] == text_at(INTERVAL + 5)
    assert after["url"]["next_check_at"] == text_at(2 * INTERVAL + 5)
    assert (did(project), project.index) == (([], [URL]), index)
    assert (report.not_modified, report.fetched, report.unchanged) == (1, 0, 1)


def pending_url(project: Project, page: Page) -> None:
    """A URL that was fetched at the clock's first moment and has no summary yet."""
    project.serve(URL, page)
    project.summariser.always = UNUSABLE
    project.run()
    project.summariser.always = None


@pytest.mark.rule("sync-27")
def test_not_modified_and_pending_is_summarised_from_the_copy(project: Project) -> None:
    pending_url(project, Page("page", etag='"1"'))
    project.clock.advance(INTERVAL)
    report = project.run()
    record = project.record(URL)
    assert did(project) == ([URL], [URL])
    assert project.summariser.texts[URL] == "page"
    assert (record["url"]["fetch_status"], record["summary_pending"]) == ("not_modified", False)
    assert record["summary_text"] == summary_of(URL, "page")
    assert record["last_indexed_at"] == text_at(INTERVAL)
    assert record["content_hash"] == hash_of("page")
    assert (report.not_modified, report.pending) == (1, 0)


@both_faults
@pytest.mark.rule("sync-27")
def test_not_modified_and_failing_again_stays_pending_with_its_normal_next_check(
    project: Project, fault: errors.ModelError
) -> None:
    pending_url(project, Page("page", etag='"1"'))
    before = project.record(URL)
    project.summariser.always = fault
    project.clock.advance(INTERVAL)
    project.run()
    after = project.record(URL)
    assert changed_fields(before, after) == {"fetch_status", "last_fetched_at", "next_check_at"}
    assert after["url"]["next_check_at"] == text_at(2 * INTERVAL)


@pytest.mark.rule("sync-28")
@pytest.mark.rule("sync-31")
def test_a_page_that_was_sent_again_without_change_costs_no_summary(project: Project) -> None:
    settled(project, Page("page", etag='"1"', last_modified="Monday"))
    before = project.record(URL)
    project.serve(URL, Page("page\r\n\r\n", etag='"2"'))
    project.clock.advance(INTERVAL)
    report = project.run()
    after = project.record(URL)
    assert did(project) == ([], [URL])
    assert changed_fields(before, after) == {"etag", "last_modified", "last_fetched_at", "next_check_at"}
    assert (after["url"]["etag"], after["url"]["last_modified"]) == ('"2"', None)
    assert after["url"]["fetch_status"] == "success"
    assert project.copy_of(URL).read_bytes() == b"page\r\n\r\n"
    assert (report.fetched, report.unchanged, report.changed) == (1, 1, 0)


@pytest.mark.rule("sync-28")
@pytest.mark.rule("sync-31")
def test_a_changed_page_is_summarised_and_rests_for_the_interval(project: Project) -> None:
    settled(project, Page("page", etag='"1"'))
    project.serve(URL, Page("new page", etag='"2"', last_modified="Tuesday"))
    project.clock.advance(INTERVAL)
    report = project.run()
    record = project.record(URL)
    assert did(project) == ([URL], [URL])
    assert record["summary_text"] == summary_of(URL, "new page")
    assert record["content_hash"] == hash_of("new page")
    assert record["last_indexed_at"] == text_at(INTERVAL)
    assert (record["url"]["etag"], record["url"]["last_modified"]) == ('"2"', "Tuesday")
    assert record["url"]["next_check_at"] == text_at(2 * INTERVAL)
    assert project.copy_of(URL).read_text() == "new page"
    assert (report.fetched, report.changed, report.pending) == (1, 1, 0)


@pytest.mark.rule("sync-25")
@pytest.mark.rule("sync-31")
def test_a_page_that_once_comes_without_validators_is_not_confirmed_by_the_old_ones(project: Project) -> None:
    page = Page("Rivers of Europe", etag='"1"')
    settled(project, page)
    for served in (Page("Down for maintenance"), page):
        project.serve(URL, served)
        project.clock.advance(INTERVAL)
        project.run()
    assert project.index == entry(URL, "Rivers of Europe")


@pytest.mark.rule("sync-28")
def test_a_page_with_an_empty_summary_is_summarised_when_it_comes_again(project: Project) -> None:
    settled(project, Page("page"))
    empty = project.state
    empty["sources"][URL]["summary_text"] = "  "
    project.places.cache.write_text(json.dumps(empty))
    project.clock.advance(INTERVAL)
    project.run()
    assert did(project) == ([URL], [URL])
    assert project.index == entry(URL, "page")


@pytest.mark.rule("sync-28")
def test_a_pending_page_that_comes_again_unchanged_is_summarised(project: Project) -> None:
    pending_url(project, Page("page"))
    project.clock.advance(INTERVAL)
    project.run()
    assert did(project) == ([URL], [URL])
    assert project.record(URL)["summary_pending"] is False


@pytest.mark.rule("sync-28")
def test_a_blank_page_costs_no_call_however_often_it_comes(project: Project) -> None:
    project.serve(URL, Page(" \n "))
    for _ in range(3):
        report = project.run()
        assert did(project) == ([], [URL])
        assert (report.pending, project.record(URL)["summary_pending"], project.index) == (0, False, "")
        project.clock.advance(INTERVAL)


@pytest.mark.rule("sync-29")
def test_new_content_is_on_disk_before_its_summary_is_asked_for(project: Project) -> None:
    settled(project, Page("page", etag='"1"'))
    project.serve(URL, Page("new page", etag='"2"'))
    project.clock.advance(INTERVAL)
    seen: list[dict[str, Any]] = []
    project.summariser.on_call = lambda _: seen.append(store.read(project.places.cache).state.sources[URL])
    project.run()
    (record,) = seen
    assert record["content_hash"] == hash_of("new page")
    assert (record["summary_pending"], record["summary_text"]) == (True, summary_of(URL, "page"))
    assert (record["url"]["etag"], record["url"]["fetch_status"]) == ('"2"', "success")
    assert record["url"]["last_fetched_at"] == text_at(INTERVAL)


@both_faults
@pytest.mark.rule("sync-30")
def test_a_failed_summary_after_a_fetch_keeps_the_old_one_and_checks_again_after_a_tick(
    project: Project, fault: errors.ModelError
) -> None:
    settled(project, Page("page", etag='"1"'))
    project.serve(URL, Page("new page", etag='"2"', max_age_seconds=10 * INTERVAL))
    project.clock.advance(INTERVAL)
    project.summariser.always = fault
    report = project.run()
    record = project.record(URL)
    assert (record["summary_pending"], record["summary_text"]) == (True, summary_of(URL, "page"))
    assert record["content_hash"] == hash_of("new page")
    assert record["url"]["next_check_at"] == text_at(INTERVAL + TICK)
    assert project.index == entry(URL, "page")
    assert report.pending == 1
    project.summariser.always = None
    project.clock.advance(TICK)
    project.run()
    assert project.pages.requests == [Request(URL, '"2"')]
    assert project.index == entry(URL, "new page")


@pytest.mark.parametrize("status", ["timeout", "error"])
@pytest.mark.rule("sync-32")
def test_a_failed_check_sets_status_and_next_check_and_leaves_the_content(project: Project, status: str) -> None:
    settled(project, Page("page", etag='"1"'))
    before, index, copy = project.record(URL), project.index, project.copy_of(URL).read_bytes()
    project.serve(URL, Page("gone").failing(status))
    project.clock.advance(INTERVAL)
    report = project.run()
    after = project.record(URL)
    assert changed_fields(before, after) == {"fetch_status", "next_check_at", "problem"}
    assert after["url"]["fetch_status"] == status
    assert after["url"]["next_check_at"] == text_at(INTERVAL + TICK)
    assert (project.index, project.copy_of(URL).read_bytes(), did(project)) == (index, copy, ([], [URL]))
    assert (report.failed, report.problems) == (1, ((URL, f"scripted {status}"),))
    project.serve(URL, Page("page", etag='"1"'))
    project.clock.advance(TICK - 1)
    project.run()
    assert project.pages.urls == []
    project.clock.advance(1)
    project.run()
    assert project.record(URL)["url"]["fetch_status"] == "not_modified"
    assert project.record(URL)["url"]["problem"] == ""


@pytest.mark.rule("sync-32")
def test_a_server_that_asks_for_a_pause_gets_it_for_all_its_pages(project: Project) -> None:
    project.policy = SyncPolicy(url_download_concurrency=1)
    urls = [f"https://busy.example/{number}" for number in range(3)]
    for url in (*urls, OTHER):
        settled(project, Page("page"), url)
    before = project.record(urls[1])
    project.serve(urls[0], Page().failing("error", retry_after_seconds=2 * INTERVAL))
    project.clock.advance(INTERVAL)
    report = project.run()
    assert project.pages.urls == [urls[0], OTHER]
    assert project.record(urls[0])["url"]["next_check_at"] == text_at(3 * INTERVAL)
    assert project.record(urls[1]) == before, "the others are left for the next run"
    assert report.failed == 3
    project.run()
    assert project.pages.urls == urls[1:]


@pytest.mark.rule("sync-33")
def test_a_pending_url_that_is_not_due_is_summarised_from_its_copy_without_a_request(project: Project) -> None:
    pending_url(project, Page("page", etag='"1"'))
    before = project.record(URL)
    project.clock.advance(10)
    report = project.run()
    after = project.record(URL)
    assert did(project) == ([URL], [])
    assert project.summariser.texts[URL] == "page"
    assert changed_fields(before, after) == {"summary_text", "summary_pending", "last_indexed_at"}
    assert (after["last_indexed_at"], report.pending) == (text_at(10), 0)


@pytest.mark.rule("sync-33")
def test_a_run_that_writes_a_pending_summary_is_not_said_to_have_done_nothing(project: Project) -> None:
    pending_url(project, Page("page"))
    report = project.run()
    assert project.index == entry(URL, "page")
    assert not report.did_nothing


@both_faults
@pytest.mark.rule("sync-33")
def test_a_pending_url_that_fails_again_keeps_its_record_whole(project: Project, fault: errors.ModelError) -> None:
    pending_url(project, Page("page"))
    before = project.record(URL)
    project.summariser.always = fault
    project.clock.advance(10)
    project.run()
    assert project.record(URL) == before
    assert did(project) == ([URL], [])


@pytest.mark.rule("sync-33")
@pytest.mark.rule("sync-45")
def test_the_hash_of_a_page_is_that_of_the_copy_it_was_summarised_from(project: Project) -> None:
    """A kill between the copy and its record leaves a copy that is newer than the hash."""
    pending_url(project, Page("page"))
    project.copy_of(URL).write_text("newer page")
    project.run()
    record = project.record(URL)
    assert record["summary_text"] == summary_of(URL, "newer page")
    assert record["content_hash"] == hash_of("newer page")


@pytest.mark.rule("sync-34")
def test_a_pending_url_without_copy_keeps_its_record_and_is_fetched_when_due(project: Project) -> None:
    pending_url(project, Page("page", etag='"1"'))
    before = project.record(URL)
    project.copy_of(URL).unlink()
    report = project.run()
    assert project.record(URL) == before
    assert did(project) == ([], [])
    assert (report.pending, [source for source, _ in report.problems]) == (1, [URL])
    project.clock.advance(INTERVAL)
    project.run()
    assert did(project) == ([URL], [URL])
    assert project.index == entry(URL, "page")


@pytest.mark.rule("sync-27")
@pytest.mark.rule("sync-34")
def test_not_modified_without_copy_stays_pending(project: Project) -> None:
    pending_url(project, Page("page", etag='"1"'))
    project.copy_of(URL).unlink()
    project.pages.always_not_modified.add(URL)
    before = project.record(URL)
    project.clock.advance(INTERVAL)
    project.run()
    assert changed_fields(before, project.record(URL)) <= {"fetch_status", "last_fetched_at", "next_check_at"}
    assert project.summariser.calls == []


@pytest.mark.rule("sync-34")
def test_a_settled_url_does_not_need_its_copy(project: Project) -> None:
    settled(project, Page("page", etag='"1"'))
    project.copy_of(URL).unlink()
    project.clock.advance(INTERVAL)
    report = project.run()
    assert project.pages.requests == [Request(URL, '"1"')]
    assert (report.not_modified, report.pending) == (1, 0)


# ── summaries of many sources ──────────────────────────────────────────────────────────────────────


@pytest.mark.rule("sync-22")
def test_every_page_is_summarised_in_the_run_that_fetched_it_however_slow_the_model(project: Project) -> None:
    project.policy = SyncPolicy(url_download_concurrency=4, summarization_concurrency=1)
    urls = [project.serve(f"https://example.com/{number}", Page(f"page {number}")) for number in range(40)]
    last_request = threading.Event()
    project.pages.on_request = lambda _: last_request.set() if len(project.pages.requests) == 40 else None
    project.summariser.on_call = lambda _: assert_set(last_request)
    report = project.run()
    assert report.pending == 0
    assert sorted(project.summariser.calls) == sorted(urls)
    assert not any(record["summary_pending"] for record in project.records.values())


@pytest.mark.rule("sync-22")
def test_a_fault_in_the_last_summary_of_a_page_is_not_lost(project: Project) -> None:
    project.policy = SyncPolicy(summarization_concurrency=1)
    for number in range(10):
        project.serve(f"https://example.com/{number}", Page(f"page {number}"))
    last_request = threading.Event()
    project.pages.on_request = lambda _: last_request.set() if len(project.pages.requests) == 10 else None

    def break_at_the_last(_: str) -> None:
        assert_set(last_request)
        if len(project.summariser.calls) == 10:
            raise ZeroDivisionError("a bug in a summariser")

    project.summariser.on_call = break_at_the_last
    with pytest.raises(ZeroDivisionError):
        project.run()


@pytest.mark.rule("sync-13")
def test_a_model_that_is_away_is_asked_a_few_times_and_not_for_every_source(project: Project) -> None:
    project.policy = SyncPolicy(summarization_concurrency=1)
    for number in range(20):
        project.write(f"{number}.md", f"text {number}")
    project.summariser.always = UNREACHABLE
    report = project.run()
    assert (len(project.summariser.calls), report.model_calls, report.pending) == (3, 3, 20)
    assert all(record["summary_pending"] for record in project.records.values())
    project.summariser.always = None
    assert project.run().pending == 0
    assert len(project.summariser.calls) == 20


@pytest.mark.rule("sync-13")
def test_a_model_that_answers_badly_is_asked_for_every_source(project: Project) -> None:
    for number in range(20):
        project.write(f"{number}.md", f"text {number}")
    project.summariser.always = UNUSABLE
    assert project.run().pending == 20
    assert len(project.summariser.calls) == 20


@pytest.mark.rule("sync-13")
@pytest.mark.rule("sync-33")
def test_what_is_pending_is_tried_after_all_that_is_new_or_changed(project: Project) -> None:
    project.policy = SyncPolicy(summarization_concurrency=1)
    stuck = ["1.md", "2.md", "3.md", project.serve(URL, Page("page"))]
    for name in stuck[:3]:
        project.write(name, f"text of {name}")
    project.summariser.faults = dict.fromkeys(stuck, UNUSABLE)
    project.run()
    project.summariser.faults = dict.fromkeys(stuck, UNREACHABLE)
    project.write("zoo.md", "text")
    other = project.serve(f"{URL}/zoo", Page("other page"))
    report = project.run()
    assert project.index == "\n".join([entry("zoo.md", "text"), entry(other, "other page")])
    assert set(project.summariser.calls[:2]) == {"zoo.md", other}
    assert report.pending == 4


@pytest.mark.rule("sync-13")
def test_calls_of_a_summariser_without_model_are_not_counted_as_model_calls(project: Project) -> None:
    project.write("a.md", "text")
    project.summariser.uses_model = False
    assert project.run().model_calls == 0
    assert project.summariser.calls == ["a.md"]


@pytest.mark.rule("sync-47")
def test_work_that_is_done_is_saved_also_when_the_run_breaks(project: Project) -> None:
    project.policy = SyncPolicy(summarization_concurrency=1)
    project.write("a.md", "text")
    project.write("b.md", "text")

    def break_at_b(source_id: str) -> None:
        if source_id == "b.md":
            raise ZeroDivisionError("a bug in a summariser")

    project.summariser.on_call = break_at_b
    with pytest.raises(ZeroDivisionError):
        project.run()
    assert list(project.records) == ["a.md"]
    assert project.index == entry("a.md", "text")
    project.summariser.on_call = nothing
    project.run()
    assert did(project) == (["b.md"], [])


# ── index and state on disk ────────────────────────────────────────────────────────────────────────


@pytest.mark.rule("sync-35")
@pytest.mark.rule("sync-36")
@pytest.mark.rule("sync-37")
def test_after_any_change_the_whole_index_is_written_from_what_is_known(project: Project) -> None:
    for name in ("a.md", "b.md", "c.md"):
        project.write(name, name)
    project.serve(URL, Page("page"))
    project.run()
    project.write("b.md", "changed")
    project.path("c.md").unlink()
    project.run()
    assert project.index == "\n".join([entry("a.md", "a.md"), entry("b.md", "changed"), entry(URL, "page")])
    assert did(project) == (["b.md"], []), "the others come from the state"


@pytest.mark.parametrize("spoil", [Path.unlink, lambda path: path.write_text("edited")], ids=["gone", "edited"])
@pytest.mark.rule("sync-35")
@pytest.mark.rule("sync-37")
@pytest.mark.rule("sync-49")
def test_an_index_that_is_gone_or_edited_is_put_right_without_any_call(
    project: Project, spoil: Callable[[Path], object]
) -> None:
    project.write("a.md", "text")
    project.serve(URL, Page("page"))
    project.run()
    before = project.index
    spoil(project.places.index)
    project.run()
    assert project.places.index.exists()
    assert project.index == before
    assert did(project) == ([], [])


@pytest.mark.rule("sync-39")
def test_a_summary_is_kept_as_it_is_and_shown_without_blank_lines(project: Project) -> None:
    project.write("a.md", "text")
    project.summariser.answers["a.md"] = "\n\nOne.  \n\n\n  Two.\n\n"
    project.run()
    assert project.record("a.md")["summary_text"] == "One.  \n\n\n  Two."
    assert project.index == "a.md\nOne.\n  Two.\n"


@pytest.mark.rule("sync-40")
def test_the_state_has_these_fields_at_the_top(project: Project) -> None:
    project.write("a.md", "text")
    project.clock.advance(0.25)
    project.run()
    state = project.state
    assert isinstance(state["schema_version"], int)
    assert state["generated_at"] == text_at(0.25)
    assert list(state["sources"]) == ["a.md"]


@pytest.mark.rule("sync-44")
def test_page_copies_are_utf8_files_named_by_the_hash_of_the_url(project: Project) -> None:
    strange = "https://example.com/ü?q=ä#ö"
    project.serve(strange, Page("Ünïcödé 🙂\r\n"))
    project.run()
    (copy,) = project.places.page_copies.iterdir()
    assert copy.name == hash_of(strange)
    assert copy.read_bytes() == "Ünïcödé 🙂\r\n".encode()


@pytest.mark.rule("sync-47")
def test_both_files_are_replaced_and_never_written_in_place(project: Project) -> None:
    project.write("a.md", "text")
    project.run()
    links = [project.folder / "old-state", project.folder / "old-index"]
    links[0].hardlink_to(project.places.cache)
    links[1].hardlink_to(project.places.index)
    before = [link.read_bytes() for link in links]
    project.write("b.md", "text")
    project.run()
    assert [link.read_bytes() for link in links] == before
    assert "b.md" in project.records
    assert sorted(path.name for path in project.places.cache.parent.iterdir()) == [
        ".index-cache.json.lock",
        "index-cache.json",
        "index.txt",
    ]


@pytest.mark.rule("sync-49")
def test_at_every_moment_of_a_run_the_two_files_show_one_state(project: Project) -> None:
    for number in range(30):
        project.write(f"{number}.md", f"text {number}")
        project.serve(f"https://example.com/{number}", Page(f"page {number}"))
    copy = places_in(project.folder / "copy")
    compared: list[bool] = []
    lock = threading.Lock()

    def is_one_state() -> bool:
        copy_as_if_killed(project.places, copy.cache.parent)
        if not copy.cache.exists():
            return not copy.index.exists()
        sources = json.loads(copy.cache.read_bytes())["sources"]
        return copy.index.exists() and index_text(sources) == copy.index.read_bytes().decode()

    def compare(_: str) -> None:
        """But for the moment between their renames, which is over when one looks again."""
        with lock:
            compared.append(any(is_one_state() for _ in range(20)))

    project.summariser.on_call = compare
    project.run()
    compare("at the end")
    assert compared
    assert all(compared)


@pytest.mark.rule("sync-49")
def test_a_source_is_said_to_be_finished_when_it_is_on_disk_as_it_will_stay(project: Project) -> None:
    for name in ("new.md", "failing.md"):
        project.write(name, name)
    project.write("image.png", b"\xff")
    project.serve(URL, Page("page"))
    for kind in ("changing", "failing", "same", "down"):
        project.serve(f"https://{kind}.example", Page("page", etag='"1"'))
    seen: dict[str, object] = {}

    def look(source_id: str) -> None:
        state = store.read(project.places.cache).state
        seen[source_id] = state.sources.get(source_id) or state.skipped.get(source_id)

    project.observer.on_finished = look
    project.summariser.faults = {"failing.md": UNUSABLE}
    project.run()
    project.clock.advance(INTERVAL)
    assert seen == project.records | project.state["skipped"]
    seen.clear()
    project.summariser.faults |= {"https://failing.example": UNUSABLE}
    for kind in ("changing", "failing"):
        project.serve(f"https://{kind}.example", Page("new page", etag='"2"'))
    project.serve("https://down.example", Page().failing())
    project.run()
    assert seen == {source_id: project.record(source_id) for source_id in seen}
    assert len(seen) == 6


@pytest.mark.parametrize("content", [b"{", b'{"schema_version": 2, "sources": {}}'], ids=["damaged", "newer"])
@pytest.mark.rule("sync-51")
def test_a_state_that_cannot_be_read_stops_the_run_is_kept_and_reported(project: Project, content: bytes) -> None:
    project.write("a.md", "text")
    project.run()
    index = project.index
    project.places.cache.write_bytes(content)
    with pytest.raises(errors.DataError) as caught:
        project.run()
    assert caught.value.code == "E102"
    assert Path(caught.value.details["kept_at"]).read_bytes() == content
    assert (project.index, did(project)) == (index, ([], []))
    assert project.run().added == 1, "the next run builds it anew, as the error says"


@pytest.mark.parametrize("kept", [0.3, 0.6, 0.9])
@pytest.mark.rule("sync-51")
def test_a_state_that_was_cut_off_is_noticed_also_when_nothing_changed(project: Project, kept: float) -> None:
    for number in range(50):
        project.write(f"{number}.md", f"text {number}")
    project.run()
    content = project.places.cache.read_bytes()
    project.places.cache.write_bytes(content[: int(kept * len(content))])
    with pytest.raises(errors.DataError) as caught:
        project.run()
    assert caught.value.code == "E102"


@pytest.mark.rule("sync-52")
def test_a_run_that_was_cut_off_repeats_nothing_that_was_finished(project: Project) -> None:
    project.policy = SyncPolicy(summarization_concurrency=1, url_download_concurrency=1)
    for number in range(10):
        project.write(f"{number}.md", f"text {number}")
        project.serve(f"https://example.com/{number}", Page(f"page {number}"))
    copy = project.folder / "copy"
    finished: set[str] = set()
    requested: set[str] = set()

    def cut_off(source_id: str) -> None:
        if len(project.summariser.calls) == 12:
            finished.update(project.observer.done)
            known = store.read(project.places.cache).state.ids("url")
            requested.update(known)
            copy_as_if_killed(project.places, copy)

    project.summariser.on_call = cut_off
    project.run()
    again = Project(project.folder / "again")
    again.places = Places(
        project.places.sources_dir, project.places.links_file, copy / "index.txt", copy / "index-cache.json",
        copy / "web-cache",
    )  # fmt: skip
    again.pages.pages = project.pages.pages
    again.run()
    assert len(finished) >= 11
    assert finished.isdisjoint(again.summariser.calls)
    assert requested.isdisjoint(again.pages.urls)
    assert again.index == project.index


# ── the report ─────────────────────────────────────────────────────────────────────────────────────


def test_a_report_counts_what_became_of_every_source(project: Project) -> None:
    for name in ("same.md", "changed.md", "gone.md", "pending.md"):
        project.write(name, name)
    for kind in ("same", "changed", "down", "rests"):
        project.serve(f"https://{kind}.example", Page("page", etag='"1"'))
    project.summariser.faults["pending.md"] = UNUSABLE
    project.serve("https://rests.example", Page("page", max_age_seconds=10 * INTERVAL))
    project.run()
    project.write("changed.md", "longer")
    project.write("new.md", "new")
    project.path("gone.md").unlink()
    project.serve("https://changed.example", Page("new page"))
    project.serve("https://down.example", Page().failing("timeout"))
    project.clock.advance(INTERVAL)
    report = project.run()
    assert report.to_json() == {
        "added": 1,
        "changed": 2,
        "removed": 1,
        "unchanged": 3,
        "fetched": 1,
        "not_modified": 1,
        "failed": 1,
        "pending": 1,
        "model_calls": 4,
        "bytes_read": len("longer") + len("new") + len("pending.md") + len("new page"),
        "seconds": 0.0,
        "problems": [
            {"source": "https://down.example", "reason": "scripted timeout"},
            {"source": "pending.md", "reason": f"pending: {UNUSABLE.message}: {UNUSABLE.explanation}"},
        ],
        "skipped": [],
        "errors": [],
        "stored": 0,
        "unstored": 0,
        "held_at": 0,
    }
