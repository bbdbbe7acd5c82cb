"""The goals of sync: no work is repeated, and nothing is lost."""

import os
import re
from pathlib import Path

import pytest

from support.sync_parts import UNUSABLE, Page, Project
from support.sync_runs import INTERVAL, TICK, URL, did, entry


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
    second = project.run(after=INTERVAL - 1)
    assert did(project) == ([], [])
    assert project.made == before
    assert second.did_nothing
    assert (second.unchanged, second.bytes_read, second.model_calls) == (25, 0, 0)
    assert second.skipped == first.skipped == (("logo.png", "not text in any known charset"),)


@pytest.mark.rule("sync-1")
def test_a_run_that_changes_nothing_changes_no_byte_after_a_failure_either(project: Project) -> None:
    """Cases: a failed check, a new page that keeps failing, and a summary that keeps failing."""
    project.write("stuck.md", "text")
    project.summariser.faults["stuck.md"] = UNUSABLE
    known = project.serve(URL, Page("page", etag='"1"'))
    new = project.serve(f"{URL}/new", Page().failing())
    project.run()
    project.serve(known, Page().failing())
    project.run(after=INTERVAL)
    before = project.made
    report = project.run()
    assert (report.failed, report.pending) == (1, 1)
    assert project.made == before
    assert project.state["problems"].keys() == {known, new, "stuck.md"}


def test_a_check_that_failed_is_not_due_until_its_time(project: Project) -> None:
    project.serve(URL, Page("page", etag='"1"'))
    project.run()
    project.serve(URL, Page().failing())
    project.run(after=INTERVAL)
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


def test_a_report_counts_what_became_of_every_source(project: Project) -> None:
    for name in ("same.md", "changed.md", "gone.md", "pending.md"):
        project.write(name, name)
    for kind in ("same", "changed", "down"):
        project.serve(f"https://{kind}.example", Page("page", etag='"1"'))
    project.summariser.faults["pending.md"] = UNUSABLE
    project.run()
    project.clock.advance(1)
    project.serve("https://rests.example", Page("page"))
    project.run()
    project.write("changed.md", "longer")
    project.write("new.md", "new")
    project.path("gone.md").unlink()
    project.serve("https://changed.example", Page("new page"))
    project.serve("https://down.example", Page().failing("timeout"))
    report = project.run(after=INTERVAL - 1)
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
            {"source": "pending.md", "reason": f"pending: {UNUSABLE.message} {UNUSABLE.explanation}"},
        ],
        "skipped": [],
        "errors": [],
        "stored": 0,
        "unstored": 0,
        "held_at": 0,
    }
