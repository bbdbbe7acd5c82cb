"""Starting runs, and waiting for running ones."""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Self

import pytest

from pair import errors
from pair.sync.scheduling import Ticker
from support.errors import raises_code
from support.sync_parts import UNUSABLE, Page, Project, nothing
from support.sync_runs import INTERVAL, TICK, URL, assert_set, did, entry


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
def test_a_first_sync_continues_while_the_program_that_started_it_does(project: Project) -> None:
    project.write("a.md", "text")
    may_go_on = threading.Event()
    project.summariser.on_call = lambda _: assert_set(may_go_on)
    background = threading.Thread(target=project.run)
    background.start()
    may_go_on.set()  # reached while the run may still be in progress
    background.join(60)
    assert project.index == entry("a.md", "text")


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
    """A run of the project that is paused in its summariser until it is released."""

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

    def release(self) -> None:
        self._may_go_on.set()

    def __exit__(self, *_: object) -> None:
        self.release()
        self._thread.join(60)


@pytest.mark.rule("sync-8")
@pytest.mark.rule("sync-48")
def test_a_tick_during_another_run_is_skipped_without_touching_anything(project: Project) -> None:
    project.write("a.md", "text")
    other = Project(project.folder / "other")
    other.places = project.places
    with HeldRun(project):
        before = project.made
        with raises_code("E101", errors.ConflictError) as caught:
            other.run(wait=False)
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
        held.release()
        waiting.join(60)
    assert other.observer.said == [f"waiting for another sync: process {os.getpid()}"]
    assert did(other) == ([], [])
