"""Summaries of many sources at once."""

import threading

import pytest

from pair.sync.rules import SyncSettings
from support.sync_parts import UNREACHABLE, UNUSABLE, Page, Project, nothing
from support.sync_runs import URL, assert_set, did, entry


@pytest.mark.rule("sync-22")
def test_every_page_is_summarised_in_the_run_that_fetched_it_however_slow_the_model(project: Project) -> None:
    project.policy = SyncSettings(url_download_concurrency=4, summarization_concurrency=1)
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
    project.policy = SyncSettings(summarization_concurrency=1)
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
def test_an_unavailable_model_is_asked_a_few_times_and_not_for_every_source(project: Project) -> None:
    project.policy = SyncSettings(summarization_concurrency=1)
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
def test_pending_sources_are_tried_after_all_new_and_changed_ones(project: Project) -> None:
    project.policy = SyncSettings(summarization_concurrency=1)
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
    project.policy = SyncSettings(summarization_concurrency=1)
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
