"""A sync over 300 sources, killed at 100 random moments: real processes, real files, `kill -9`."""

import contextlib
import json
import os
import random
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pair.clock import SystemClock
from pair.sync import store
from pair.sync.discover import SyncPaths
from pair.sync.state import LlmsFile, format_index
from pair.testing.clock import ManualClock
from support.prepared import PREPARED, Copy
from support.sync_parts import Page, Project, hash_of, made_files, summary_of

MOMENTS = 100
FILES = {
    f"part-{number % 10}/page-{number:03}.md": f"# Page {number}\n\nText of page {number}.\n" for number in range(200)
}
PAGES = {f"https://host-{number % 7}.example/{number:03}": f"Page {number} of the web." for number in range(100)}
TEXTS = FILES | PAGES
FETCHERS, SUMMARISERS = 8, 4

# For a copy of a process that has everything loaded, so that the kill strikes the work and not the start of Python.
# Finished work is in the log before its result is returned; `finished` and `ask` come after the record of
# the step before was put.
RUNNER = """
import os, sys
from pathlib import Path
from pair.clock import SystemClock
from pair.reading.contract import Reading
from pair.reading.process import ReaderProcesses
from pair.sync.contract import FetchedPage
from pair.sync.rules import SyncSettings
from pair.sync.discover import SyncPaths
from pair.sync.state import LlmsFile
from pair.sync.run import SyncDependencies, SyncRun
from support.prepared import PREPARED, Copy
from support.sync_parts import summary_of

sources, links, home = map(Path, sys.argv[1:4])
fetchers, summarisers = map(int, sys.argv[4:6])
log = os.open(home / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

def note(event, source_id):
    os.write(log, f"{event} {source_id}\\n".encode())

class Pages:
    def fetch(self, url, *, etag, last_modified, validated_at=None):
        text = f"Page {int(url[-3:])} of the web."
        note("fetched", url)
        return FetchedPage(Reading(text), '"1"', None, len(text))

class Summariser:
    model_calls = 0

    def summarise(self, source_id, text):
        note("asked", source_id)
        summary = summary_of(source_id, text)
        note("summarised", source_id)
        return summary

class Observer:
    def say(self, text): pass
    def planned(self, total): pass
    def finished(self, source_id): note("finished", source_id)

policy = SyncSettings(url_download_concurrency=fetchers, summarization_concurrency=summarisers)
llms = LlmsFile(home / "llms.txt", sources)
places = SyncPaths(sources, links, home / "index.txt", home / "index-cache.json", home / "web-cache", llms=llms)
run = SyncRun(policy, places, SyncDependencies(Summariser, Pages(), ReaderProcesses(), SystemClock(), Observer()))
run.run()
"""


@dataclass(frozen=True)
class Events:
    """The sources that the log of a run mentions, by event."""

    fetched: set[str] = field(default_factory=set)
    asked: set[str] = field(default_factory=set)
    summarised: set[str] = field(default_factory=set)
    finished: set[str] = field(default_factory=set)


class Ground:
    """A folder of sources, and the processes and runs over it, each with a separate home."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._given = Project(folder / "given")
        for name, text in FILES.items():
            self._given.write(name, text)
        self._given.link(*PAGES)

    def home(self, name: str) -> Path:
        path = self._folder / name
        path.mkdir()
        return path

    def places(self, home: Path) -> SyncPaths:
        given = self._given.places
        return SyncPaths(
            given.sources_dir,
            given.links_file,
            home / "index.txt",
            home / "index-cache.json",
            home / "web-cache",
            llms=LlmsFile(home / "llms.txt", given.sources_dir),
        )

    def started(self, home: Path) -> contextlib.AbstractContextManager[Copy]:
        given = [self._given.places.sources_dir, self._given.places.links_file, home, FETCHERS, SUMMARISERS]
        return PREPARED.started(["-c", RUNNER, *map(str, given)], home, dict(os.environ))

    def next_run(self, home: Path) -> Project:
        """Run in this process after a kill, with parts that record their calls."""
        project = Project(self._folder / f"next-{home.name}")
        project.places = self.places(home)
        project.clock = ManualClock(SystemClock().now())
        project.pages.pages = {url: Page(text, '"1"') for url, text in PAGES.items()}
        project.run()
        return project


def run_whole(ground: Ground, home: Path) -> float:
    began = time.monotonic()
    with ground.started(home) as copy:
        assert copy.wait() == 0, copy.printed
    return time.monotonic() - began


def run_killed(ground: Ground, home: Path, after_seconds: float) -> None:
    with ground.started(home) as copy:
        status = copy.wait(after_seconds)
        if status is None:
            status = copy.kill()
        assert status in {0, -signal.SIGKILL}, copy.printed


def events_of(home: Path) -> Events:
    events = Events()
    log = home / "log"
    for line in log.read_text().splitlines() if log.exists() else []:
        event, _, source_id = line.partition(" ")
        getattr(events, event).add(source_id)
    return events


def expected_index() -> str:
    entries = [
        f"{source_id}\n{summary_of(source_id, TEXTS[source_id])}\n" for source_id in (*sorted(FILES), *sorted(PAGES))
    ]
    return "\n".join(entry.replace("\n\n", "\n") for entry in entries)


def assert_files_parse_and_agree(ground: Ground, home: Path) -> None:
    """Check that the lists match the state, or that complete new files wait for their rename."""
    cache, index, llms = home / "index-cache.json", home / "index.txt", ground.places(home).llms
    assert llms is not None
    if not cache.exists():
        assert not index.exists()
        assert not llms.path.exists()
        return
    sources = json.loads(cache.read_bytes())["sources"]
    for path, expected in ((index, format_index(sources).encode()), (llms.path, llms.content(sources))):
        candidates = [path, *home.glob(f".{path.name}.*.tmp")]
        assert expected in [each.read_bytes() for each in candidates if each.exists()]


def assert_what_was_finished_is_known(home: Path, events: Events) -> dict[str, dict[str, Any]]:
    """Check that no finished source is lost: one whose `put` returned, such as a page whose summary was requested."""
    known = store.read(home / "index-cache.json").state.sources
    settled = {source_id for source_id, record in known.items() if not record["summary_pending"]}
    assert events.asked & PAGES.keys() <= known.keys()
    assert events.finished <= settled
    for source_id in settled:
        assert known[source_id]["summary_text"] == summary_of(source_id, TEXTS[source_id])
    for url in known.keys() & PAGES.keys():
        assert (home / "web-cache" / hash_of(url)).read_text() == PAGES[url]
    assert known.keys() & PAGES.keys() <= events.fetched, "nothing is known that did not happen"
    assert settled <= events.summarised
    assert len(events.fetched - known.keys()) <= FETCHERS, "no more is lost than was in flight"
    assert len(events.summarised - settled) <= SUMMARISERS
    return known


@pytest.mark.rule("sync-49")
@pytest.mark.rule("sync-52")
def test_a_sync_killed_at_any_moment_repeats_nothing_that_was_finished(tmp_path: Path) -> None:
    ground = Ground(tmp_path)
    whole = ground.home("whole")
    duration = run_whole(ground, whole)
    assert (whole / "index.txt").read_text() == expected_index()
    assert len(events_of(whole).finished) == 300
    dice = random.Random(44)
    struck = 0
    for home in (ground.home(f"moment-{number}") for number in range(MOMENTS)):
        run_killed(ground, home, dice.uniform(0, duration))
        events = events_of(home)
        assert_files_parse_and_agree(ground, home)
        known = assert_what_was_finished_is_known(home, events)
        after = ground.next_run(home)
        assert sorted(after.pages.urls) == sorted(PAGES.keys() - known.keys())
        unsettled = [source_id for source_id in TEXTS if known.get(source_id, {}).get("summary_pending", True)]
        assert sorted(after.summariser.calls) == sorted(unsettled)
        assert after.index == expected_index()
        assert (home / "llms.txt").read_bytes() == (whole / "llms.txt").read_bytes()
        assert_files_parse_and_agree(ground, home)
        struck += 0 < len(events.finished) < 300
    assert struck


@pytest.mark.rule("sync-47")
def test_the_run_after_a_kill_removes_what_was_left_half_written(tmp_path: Path) -> None:
    ground = Ground(tmp_path)
    duration = run_whole(ground, ground.home("whole"))
    dice = random.Random(45)
    for home in (ground.home(f"moment-{number}") for number in range(15)):
        run_killed(ground, home, dice.uniform(0, duration))
        after = ground.next_run(home)
        names = {path.relative_to(home).as_posix() for path in made_files(after.places)}
        copies = {f"web-cache/{hash_of(url)}" for url in PAGES}
        assert names - {"log"} == {"index.txt", "index-cache.json", "llms.txt"} | copies
