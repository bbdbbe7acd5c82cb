"""URLs that were fetched before: the time and the conditions of the next request."""

import dataclasses
import json
from typing import Any

import pytest

from pair import errors
from pair.sync import store
from pair.sync.rules import SyncSettings
from support.sync_parts import UNUSABLE, Page, Project, Request, hash_of, summary_of
from support.sync_runs import INTERVAL, OTHER, TICK, URL, both_faults, changed_fields, did, entry, text_at


def settled(project: Project, page: Page, url: str = URL) -> str:
    """Return a project with a URL that was fetched and summarised at the start of the clock."""
    project.serve(url, page)
    project.run()
    assert project.record(url)["summary_pending"] is False
    return url


@pytest.mark.parametrize(
    ("seconds", "is_due"),
    [(0, False), (INTERVAL - 0.000001, False), (INTERVAL, True), (10 * INTERVAL, True), (-INTERVAL, True)],
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
    """The earliest of several times counts, even if it is written with fewer digits."""
    settled(project, Page("page"))
    project.clock.advance(0.5)
    settled(project, Page("other"), OTHER)
    project.run(after=INTERVAL - 0.25)
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
    project.run(after=INTERVAL)
    assert project.pages.requests == [request_sent]


@pytest.mark.rule("sync-26")
def test_not_modified_sets_status_and_times_and_nothing_else(project: Project) -> None:
    settled(project, Page("page", etag='"1"'))
    before = project.record(URL)
    index = project.index
    report = project.run(after=INTERVAL + 5)
    after = project.record(URL)
    assert changed_fields(before, after) == {"fetch_status", "last_fetched_at", "next_check_at"}
    assert after["url"]["fetch_status"] == "not_modified"
    assert after["url"]["last_fetched_at"] == text_at(INTERVAL + 5)
    assert after["url"]["next_check_at"] == text_at(2 * INTERVAL + 5)
    assert (did(project), project.index) == (([], [URL]), index)
    assert (report.not_modified, report.fetched, report.unchanged) == (1, 0, 1)


def pending_url(project: Project, page: Page) -> None:
    """Return a project with a URL that was fetched at the start of the clock and has no summary yet."""
    project.serve(URL, page)
    project.summariser.always = UNUSABLE
    project.run()
    project.summariser.always = None


@pytest.mark.rule("sync-27")
def test_not_modified_and_pending_is_summarised_from_the_copy(project: Project) -> None:
    pending_url(project, Page("page", etag='"1"'))
    report = project.run(after=INTERVAL)
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
    project.run(after=INTERVAL)
    after = project.record(URL)
    assert changed_fields(before, after) == {"fetch_status", "last_fetched_at", "next_check_at"}
    assert after["url"]["next_check_at"] == text_at(2 * INTERVAL)


@pytest.mark.rule("sync-28")
@pytest.mark.rule("sync-31")
def test_a_page_that_was_sent_again_without_change_costs_no_summary(project: Project) -> None:
    settled(project, Page("page", etag='"1"', last_modified="Monday"))
    before = project.record(URL)
    project.serve(URL, Page("page\r\n\r\n", etag='"2"'))
    report = project.run(after=INTERVAL)
    after = project.record(URL)
    assert did(project) == ([], [URL])
    assert changed_fields(before, after) == {"etag", "last_fetched_at", "next_check_at"}
    assert (after["url"]["etag"], after["url"]["last_modified"]) == ('"2"', "Monday")
    assert after["url"]["fetch_status"] == "success"
    assert project.copy_of(URL).read_bytes() == b"page\r\n\r\n"
    assert (report.fetched, report.unchanged, report.changed) == (1, 1, 0)


@pytest.mark.rule("sync-28")
@pytest.mark.rule("sync-31")
def test_a_changed_page_is_summarised_and_rests_for_the_interval(project: Project) -> None:
    settled(project, Page("page", etag='"1"'))
    project.serve(URL, Page("new page", etag='"2"', last_modified="Tuesday"))
    report = project.run(after=INTERVAL)
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
        project.run(after=INTERVAL)
    assert project.index == entry(URL, "Rivers of Europe")


@pytest.mark.rule("sync-28")
def test_a_page_with_an_empty_summary_is_summarised_when_it_comes_again(project: Project) -> None:
    settled(project, Page("page"))
    empty = project.state
    empty["sources"][URL]["summary_text"] = "  "
    project.places.cache.write_text(json.dumps(empty))
    project.run(after=INTERVAL)
    assert did(project) == ([URL], [URL])
    assert project.index == entry(URL, "page")


@pytest.mark.rule("sync-28")
def test_a_pending_page_that_comes_again_unchanged_is_summarised(project: Project) -> None:
    pending_url(project, Page("page"))
    project.run(after=INTERVAL)
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
    project.serve(URL, Page("new page", etag='"2"'))
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
    project.run(after=TICK)
    assert project.pages.requests == [Request(URL, '"2"')]
    assert project.index == entry(URL, "new page")


@pytest.mark.parametrize("status", ["timeout", "error"])
@pytest.mark.rule("sync-32")
def test_a_failed_check_sets_status_and_next_check_and_leaves_the_content(project: Project, status: str) -> None:
    settled(project, Page("page", etag='"1"'))
    before, index, copy = project.record(URL), project.index, project.copy_of(URL).read_bytes()
    project.serve(URL, Page("gone").failing(status))
    report = project.run(after=INTERVAL)
    after = project.record(URL)
    assert changed_fields(before, after) == {"fetch_status", "next_check_at", "problem"}
    assert after["url"]["fetch_status"] == status
    assert after["url"]["next_check_at"] == text_at(INTERVAL + TICK)
    assert (project.index, project.copy_of(URL).read_bytes(), did(project)) == (index, copy, ([], [URL]))
    assert (report.failed, report.problems) == (1, ((URL, f"scripted {status}"),))
    project.serve(URL, Page("page", etag='"1"'))
    project.run(after=TICK - 1)
    assert project.pages.urls == []
    project.run(after=1)
    assert project.record(URL)["url"]["fetch_status"] == "not_modified"
    assert project.record(URL)["url"]["problem"] == ""


@pytest.mark.rule("sync-32")
def test_a_server_that_asks_for_a_pause_gets_it_for_all_its_pages(project: Project) -> None:
    project.policy = SyncSettings(url_download_concurrency=1)
    urls = [f"https://busy.example/{number}" for number in range(3)]
    for url in (*urls, OTHER):
        settled(project, Page("page"), url)
    before = project.record(urls[1])
    project.serve(urls[0], Page().failing("error", retry_after_seconds=2 * INTERVAL))
    report = project.run(after=INTERVAL)
    assert project.pages.urls == [urls[0], OTHER]
    assert project.record(urls[0])["url"]["next_check_at"] == text_at(INTERVAL + TICK), "the record knows no pause"
    assert project.record(urls[1]) == before, "the others are left for a later run"
    assert report.failed == 3
    project.serve(urls[0], Page("page"))
    project.run(after=2 * INTERVAL - 1)
    assert project.pages.urls == [OTHER], "also by another run, until the pause is over"
    project.run(after=1)
    assert project.pages.urls == urls
    assert "pauses" not in project.state


@pytest.mark.rule("sync-32")
@pytest.mark.parametrize(
    ("asked_seconds", "pause_seconds"), [(10, 10), (1e9, 7 * 24 * 3600), (float("inf"), 7 * 24 * 3600)]
)
def test_a_pause_lasts_as_long_as_the_server_asked_for_and_a_week_at_most(
    project: Project, asked_seconds: float, pause_seconds: float
) -> None:
    project.serve(URL, Page().failing("error", retry_after_seconds=asked_seconds))
    project.run()
    project.serve(URL, Page("page"))
    project.clock.advance(pause_seconds - 1)
    assert project.run().failed == 1
    assert project.pages.urls == []
    project.clock.advance(1)
    assert project.run().added == 1


@pytest.mark.rule("sync-32")
def test_a_check_that_took_longer_than_a_tick_is_not_due_again_when_it_ends(project: Project) -> None:
    settled(project, Page("page", etag='"1"'))
    project.serve(URL, Page().failing("timeout"))
    project.pages.on_request = lambda _: project.clock.advance(2 * TICK)
    project.run(after=INTERVAL)
    assert project.record(URL)["url"]["next_check_at"] == text_at(INTERVAL + 3 * TICK)
    project.run()
    assert project.pages.urls == []


@pytest.mark.rule("sync-24")
def test_a_check_that_a_clock_ahead_of_time_set_is_due(project: Project) -> None:
    project.clock.jump(10 * 365 * 24 * 3600)
    settled(project, Page("page", etag='"1"'))
    project.clock.jump(-10 * 365 * 24 * 3600)
    project.run()
    assert project.pages.urls == [URL]
    assert project.record(URL)["url"]["next_check_at"] == text_at(INTERVAL)
    project.run()
    assert project.pages.urls == []


@pytest.mark.rule("sync-24")
def test_a_lowered_interval_takes_effect_with_the_next_run(project: Project) -> None:
    settled(project, Page("page", etag='"1"'))
    project.clock.advance(TICK)
    project.policy = dataclasses.replace(project.policy, url_refresh_min_interval_seconds=2 * TICK)
    project.run()
    assert project.pages.urls == []
    assert project.record(URL)["url"]["next_check_at"] == text_at(2 * TICK)
    project.policy = dataclasses.replace(project.policy, url_refresh_min_interval_seconds=TICK)
    project.run()
    assert project.pages.urls == [URL]


@pytest.mark.rule("sync-24")
def test_a_refresh_asks_for_the_chosen_pages_before_their_time_and_for_no_others(project: Project) -> None:
    for url in (URL, OTHER):
        settled(project, Page("page", etag='"1"'), url)
    project.clock.advance(1)
    for pattern, urls in (("*", [URL, OTHER]), ("other.", [OTHER]), ("*/page", [URL, OTHER]), ("https://ex*", [URL])):
        report = project.run(refresh=pattern)
        assert (project.pages.urls, report.not_modified) == (urls, len(urls))
    assert project.record(URL)["url"]["next_check_at"] == text_at(INTERVAL + 1)
    before = project.made
    with pytest.raises(errors.NotFoundError) as caught:
        project.run(refresh="nothing")
    assert (caught.value.code, project.pages.urls, project.made) == ("E104", [], before)


@pytest.mark.rule("sync-31")
def test_a_page_that_comes_with_one_validator_keeps_the_other(project: Project) -> None:
    settled(project, Page("page", etag='"1"', last_modified="Monday"))
    project.serve(URL, Page("new page", etag='"2"'))
    project.run(after=INTERVAL)
    url = project.record(URL)["url"]
    assert (url["etag"], url["last_modified"]) == ('"2"', "Monday")


@pytest.mark.rule("sync-33")
def test_a_pending_url_that_is_not_due_is_summarised_from_its_copy_without_a_request(project: Project) -> None:
    pending_url(project, Page("page", etag='"1"'))
    before = project.record(URL)
    report = project.run(after=10)
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
    project.run(after=10)
    assert project.record(URL) == before
    assert did(project) == ([URL], [])


@pytest.mark.rule("sync-33")
@pytest.mark.rule("sync-45")
def test_the_hash_of_a_page_is_that_of_the_copy_it_was_summarised_from(project: Project) -> None:
    """A kill between the writes of copy and record leaves a copy that is newer than the hash."""
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
    project.run(after=INTERVAL)
    assert did(project) == ([URL], [URL])
    assert project.index == entry(URL, "page")


@pytest.mark.rule("sync-27")
@pytest.mark.rule("sync-34")
def test_not_modified_without_copy_stays_pending(project: Project) -> None:
    pending_url(project, Page("page", etag='"1"'))
    project.copy_of(URL).unlink()
    project.pages.always_not_modified.add(URL)
    before = project.record(URL)
    project.run(after=INTERVAL)
    assert changed_fields(before, project.record(URL)) <= {"fetch_status", "last_fetched_at", "next_check_at"}
    assert project.summariser.calls == []


@pytest.mark.rule("sync-25")
@pytest.mark.rule("sync-34")
def test_a_page_without_copy_is_fetched_whole_when_it_is_due(project: Project) -> None:
    settled(project, Page("page", etag='"1"'))
    project.copy_of(URL).unlink()
    report = project.run(after=INTERVAL)
    assert project.pages.requests == [Request(URL)]
    assert project.copy_of(URL).read_text() == "page"
    assert (report.fetched, report.unchanged, report.pending) == (1, 1, 0)
