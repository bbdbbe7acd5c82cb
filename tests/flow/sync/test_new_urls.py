"""URLs that were never fetched."""

from typing import Any

import pytest

from pair import errors
from pair.sync import store
from support.sync_parts import Page, Project, Request, hash_of, summary_of
from support.sync_runs import INTERVAL, URL, both_faults, text_at


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
