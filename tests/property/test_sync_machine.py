"""For any events of files, pages, model, clock and process, sync equals a plain implementation of the rules.

`HYPOTHESIS_PROFILE=nightly pytest tests/property/test_sync_machine.py` tries 1,000 histories instead of 50.
"""

import dataclasses
import datetime
import hashlib
import json
import os
import re
import shutil
import tempfile
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pair.errors import ModelError
from pair.sync import store
from pair.sync.report import SyncReport
from pair.sync.rules import SyncSettings
from pair.testing.clock import NOON
from support.sync_parts import (
    UNREACHABLE,
    UNUSABLE,
    Page,
    Project,
    Request,
    copy_as_if_killed,
    later,
    nothing,
    restore,
    summary_of,
)

_QUIET = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much)
# Shrinking a failing history takes minutes, so only the nightly profile does it.
_SHORT = (Phase.explicit, Phase.reuse, Phase.generate)
_BASE = settings(deadline=None, suppress_health_check=_QUIET)
PROFILES = {
    "default": settings(_BASE, max_examples=50, stateful_step_count=30, phases=_SHORT),
    "nightly": settings(_BASE, max_examples=1000, stateful_step_count=50),
}
settings.register_profile("nightly", PROFILES["nightly"])
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", settings.get_current_profile_name())

INTERVAL, TICK, WEEK, LARGEST = 3600, 300, 7 * 24 * 3600, 60
POLICY = SyncSettings(
    url_refresh_min_interval_seconds=INTERVAL,
    runtime_refresh_tick_seconds=TICK,
    max_source_bytes=LARGEST,
    url_download_concurrency=1,
    summarization_concurrency=1,
)

FILES = ("a.md", "b.txt", "dir/c.md", "dir/deep/d", ".hidden.md")
URLS = ("https://one.example/a", "https://one.example/b", "https://two.example/", "https://two.example/ü#x")
# Some are the same text once normalised, some are blank, one is no text, one is too large.
CONTENTS = (
    b"one\ntwo",
    b"one  \r\ntwo\r\n\r\n",
    b"\xef\xbb\xbfone\ntwo",
    b"ONE\nTWO",
    b"three",
    b"",
    b" \n\t",
    b"caf\xe9\0",
    b"x" * (LARGEST + 1),
    b"y" * LARGEST,
)
PAGES = ("page one", "page one\r\n\r\n", "PAGE ONE", "page two", "", " \n ")
ETAGS = (None, '"1"', 'W/"2"')
PASSING = st.sampled_from([0, 0, 0.25, TICK - 1, TICK, INTERVAL, INTERVAL, 2 * WEEK])
DATES = (None, "Mon, 02 Mar 2026 00:00:00 GMT")

Record = dict[str, Any]


# ── the rules, read plainly ────────────────────────────────────────────────────────────────────────


def normalised_hash(text: str) -> str:
    lines = [line.rstrip() for line in re.split("\r\n|\r|\n", text)]
    return hashlib.sha256("\n".join(lines).strip("\n").encode()).hexdigest()


@dataclass
class World:
    """Everything outside the sync."""

    files: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    """The content and the time of every visible file."""
    links: list[str] = field(default_factory=list)
    pages: dict[str, Page] = field(default_factory=dict)
    now: datetime.datetime = NOON
    model_is_down: bool = False
    model_faults: set[str] = field(default_factory=set)


@dataclass
class Expected:
    """The expected actions of a run: the successive records of each source (None: no record), and the requests."""

    stages: dict[str, list[Record | None]] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)


class Reference:
    """The specification as dictionaries: records by source, copies by URL, and files that are not text."""

    def __init__(self) -> None:
        self.records: dict[str, Record] = {}
        self.copies: dict[str, str] = {}
        self.no_text: dict[str, tuple[int, int]] = {}
        self.pauses: dict[str, datetime.datetime] = {}

    def run(self, world: World) -> Expected:
        self.world, self.done = world, Expected()
        for source_id in [*self.records]:
            self.done.stages[source_id] = [self.records[source_id]]
            kind = self.records[source_id]["source_type"]
            if source_id not in (world.files if kind == "file" else world.links):  # deletions
                self._set(source_id, None)
                self.copies.pop(source_id, None)
        self.no_text = {path: seen for path, seen in self.no_text.items() if path in world.files}
        for path in sorted(world.files):
            self._file(path, *world.files[path])
        for url in sorted(set(world.links)):
            self._url(url)
        return self.done

    def _set(self, source_id: str, record: Record | None) -> None:
        """Set the record. All its earlier values are kept too, because a kill may leave any of them."""
        stages = self.done.stages.setdefault(source_id, [self.records.get(source_id)])
        stages.append(record)
        if record is None:
            self.records.pop(source_id, None)
        else:
            self.records[source_id] = record

    def _summary(self, source_id: str, text: str) -> str | None:
        """Return the summary; None when the model fails. Blank text needs no call."""
        if not text.strip():
            return ""
        self.done.calls.append(source_id)
        if self.world.model_is_down or source_id in self.world.model_faults:
            return None
        return summary_of(source_id, text).strip()

    def _file(self, path: str, content: bytes, mtime_ns: int) -> None:
        record, seen = self.records.get(path), (len(content), mtime_ns)
        is_same = record is not None and (record["size_bytes"], record["mtime_ns"]) == seen
        if (is_same and record and not record["summary_pending"]) or (not record and self.no_text.get(path) == seen):
            return
        try:
            text = content.decode("utf-8-sig") if len(content) <= LARGEST else None
        except UnicodeDecodeError:
            text = None
        if text is None:  # no source
            self.no_text[path] = seen
            if record is not None:
                self._set(path, None)
            return
        self.no_text.pop(path, None)
        stat = {"size_bytes": seen[0], "mtime_ns": seen[1]}
        content_hash = normalised_hash(text)
        if record is not None and not record["summary_pending"] and record["content_hash"] == content_hash:
            self._set(path, record | stat)
            return
        summary = self._summary(path, text)
        fresh = {"source_type": "file", "content_hash": content_hash, "last_indexed_at": self.world.now} | stat
        if summary is not None:
            self._set(path, fresh | {"summary_text": summary, "summary_pending": False})
        elif record is None:
            self._set(path, fresh | {"summary_text": "", "summary_pending": True})
        elif not is_same:
            self._set(path, record | stat | {"content_hash": content_hash, "summary_pending": True})

    def _url(self, url: str) -> None:
        record, now = self.records.get(url), self.world.now
        if record is not None and not self._is_due(record):
            if record["summary_pending"]:
                self._summarise_copy(url)
            return
        host = urlsplit(url).netloc
        if host in self.pauses and now < self.pauses[host] <= later(WEEK, now):
            return
        # A page without a copy needs its text, so the request has no condition.
        is_plain = record is None or url not in self.copies
        etag, date = (None, None) if is_plain or record is None else (record["etag"], record["last_modified"])
        self.done.requests.append(Request(url, etag, date))
        page = self.world.pages[url]
        if page.failure is not None:
            if page.failure.retry_after_seconds:
                self.pauses[host] = later(min(page.failure.retry_after_seconds, WEEK), now)
            if record is not None:
                self._set(url, record | {"fetch_status": page.failure.kind, "next_check_at": later(TICK, now)})
            return
        fetched = {"last_fetched_at": now, "next_check_at": later(INTERVAL, now)}
        if record is not None and page.matches(etag, date):
            self._set(url, record | fetched | {"fetch_status": "not_modified"})
            if record["summary_pending"]:
                self._summarise_copy(url)
        else:
            self._fetched(url, page, fetched)

    def _fetched(self, url: str, page: Page, fetched: Record) -> None:
        record = self.records.get(url)
        fetched = fetched | {"fetch_status": "success", "content_hash": normalised_hash(page.text)}
        self.copies[url] = page.text
        if record is None:
            first = {"source_type": "url", "last_indexed_at": self.world.now, "etag": page.etag}
            first |= {"last_modified": page.last_modified, "summary_text": "", "summary_pending": True}
            self._set(url, first | fetched)
            self._summarise_copy(url)
            return
        is_same = record["content_hash"] == fetched["content_hash"]
        etag = page.etag or (record["etag"] if is_same else None)
        keeps_date = etag is not None or (is_same and page.last_modified is None)
        date = page.last_modified or (record["last_modified"] if keeps_date else None)
        validators = {"etag": etag, "last_modified": date}
        is_needed = (
            record["content_hash"] != fetched["content_hash"]
            or record["summary_pending"]
            or not record["summary_text"].strip()
        )
        self._set(url, record | fetched | validators | {"summary_pending": is_needed})
        if is_needed and not self._summarise_copy(url):
            self._set(url, self.records[url] | {"next_check_at": later(TICK, self.world.now)})

    def _summarise_copy(self, url: str) -> bool:
        copy = self.copies.get(url)
        summary = self._summary(url, copy) if copy is not None else None
        if copy is None or summary is None:
            return False
        settled = {"summary_text": summary, "summary_pending": False, "last_indexed_at": self.world.now}
        self._set(url, self.records[url] | settled | {"content_hash": normalised_hash(copy)})
        return True

    def _is_due(self, record: Record) -> bool:
        """Return whether a check is due: its time has come, or is too far in the future to be right."""
        return not self.world.now < record["next_check_at"] <= later(INTERVAL, self.world.now)

    def index(self) -> str:
        entries = []
        for kind in ("file", "url"):
            for source_id, record in sorted(self.records.items()):
                lines = [line for line in record["summary_text"].splitlines() if line.strip()]
                if record["source_type"] == kind and lines:
                    entries.append("\n".join([source_id, *lines]) + "\n")
        return "\n".join(entries)


# ── the same in both worlds ────────────────────────────────────────────────────────────────────────

_INSTANTS = ("last_indexed_at", "last_fetched_at", "next_check_at")


def plain(value: Record) -> Record:
    """Return a stored record in the terms of the reference, without fields that the specification does not name."""
    found = {**value, **value.get("file", {}), **value.get("url", {})}
    ours = {"file", "url", "rel_path", "problem", "validated_at"}
    found = {key: each for key, each in found.items() if key not in ours}
    return found | {key: datetime.datetime.fromisoformat(found[key]) for key in _INSTANTS if key in found}


class SyncMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="pair-machine-"))
        self.project = Project(self.folder / "project", POLICY)
        self.reference = Reference()
        self.world = World(pages={url: Page(f"page {url}", etag='"0"') for url in URLS})
        self._moment_lock = threading.Lock()

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    @initialize(
        files=st.lists(st.sampled_from(FILES[:3]), unique=True), urls=st.lists(st.sampled_from(URLS), unique=True)
    )
    def begin(self, files: list[str], urls: list[str]) -> None:
        for path in files:
            self.write(path, b"one\ntwo")
        self.change_links(urls, decorated=False)

    # What happens to files

    @rule(path=st.sampled_from(FILES), content=st.sampled_from(CONTENTS))
    def write(self, path: str, content: bytes) -> None:
        self._seen(path, self.project.write(path, content))

    @rule(
        kind=st.sampled_from(["touch", "delete", "rename", "write unseen"]),
        number=st.integers(0, 5),
        to=st.sampled_from(FILES),
        content=st.sampled_from(CONTENTS),
    )
    def change_file(self, kind: str, number: int, to: str, content: bytes) -> None:
        """Change an existing file."""
        present = [path for path in FILES if self.project.path(path).exists()]
        if not present:
            return
        path = present[number % len(present)]
        place = self.project.path(path)
        if kind == "touch":
            self._seen(path, self.project.touch(path))
        elif kind == "delete":
            place.unlink()
            self.world.files.pop(path, None)
        elif kind == "rename" and to != path:
            self.project.path(to).parent.mkdir(parents=True, exist_ok=True)
            place.rename(self.project.path(to))
            self.world.files.pop(path, None)
            self._seen(to, self.project.path(to))
        elif kind == "write unseen":
            unseen = place.read_bytes().swapcase() if content.isascii() else b"\xff" * place.stat().st_size
            self.project.write_unseen(path, unseen)
            self._seen(path, place)

    def _seen(self, path: str, place: Path) -> None:
        if not path.startswith("."):
            self.world.files[path] = (place.read_bytes(), place.stat().st_mtime_ns)

    # What happens to pages

    @rule(urls=st.lists(st.sampled_from(URLS), max_size=5), decorated=st.booleans())
    def change_links(self, urls: list[str], decorated: bool) -> None:
        lines = [f"  {url}\t\r" for url in urls] + ["", "# comment", *urls[:1]] if decorated else urls
        self.project.link(*lines)
        self.world.links = urls

    @rule(
        url=st.sampled_from(URLS),
        text=st.sampled_from(PAGES),
        etag=st.sampled_from(ETAGS),
        date=st.sampled_from(DATES),
    )
    def change_page(self, url: str, text: str, etag: str | None, date: str | None) -> None:
        """Change the text or the validators of a page, or both."""
        self.world.pages[url] = Page(text, etag, date)

    @rule(
        url=st.sampled_from(URLS),
        status=st.sampled_from(["timeout", "error", "works again"]),
        retry_after=st.sampled_from([None, None, 10.0, 5000.0, 1e9]),
    )
    def break_page(self, url: str, status: str, retry_after: float | None) -> None:
        page = dataclasses.replace(self.world.pages[url], failure=None)
        self.world.pages[url] = page if status == "works again" else page.failing(status, retry_after)

    # What happens to the rest

    @rule(
        is_down=st.booleans(),
        unusable=st.sets(st.sampled_from(FILES + URLS), max_size=3),
        unreachable=st.sets(st.sampled_from(FILES + URLS), max_size=2),
        silent=st.sets(st.sampled_from(FILES + URLS), max_size=2),
    )
    def break_model(self, is_down: bool, unusable: set[str], unreachable: set[str], silent: set[str]) -> None:
        """Let the model fail for some sources, too few to end the run, or for all."""
        faults: dict[str, ModelError] = dict.fromkeys(unusable, UNUSABLE) | dict.fromkeys(unreachable, UNREACHABLE)
        self.project.summariser.always = UNREACHABLE if is_down else None
        self.project.summariser.faults = faults
        self.project.summariser.answers = dict.fromkeys(silent, " \n")
        self.world.model_is_down, self.world.model_faults = is_down, set(faults) | silent

    @rule()
    def mend_everything(self) -> None:
        self.break_model(False, set(), set(), set())
        for url in URLS:
            self.break_page(url, "works again", None)

    @rule(seconds=st.sampled_from([-WEEK, -INTERVAL, -TICK, -0.5, INTERVAL, WEEK]))
    def set_the_clock(self, seconds: float) -> None:
        self.project.clock.jump(seconds)

    @rule(what=st.sampled_from(["index gone", "index edited", *URLS]))
    def spoil(self, what: str) -> None:
        """Damage the index, or the copy of a page."""
        if what in URLS:
            self.project.copy_of(what).unlink(missing_ok=True)
            self.reference.copies.pop(what, None)
        elif self.project.places.index.exists():
            self.project.places.index.write_text("edited")
            if what == "index gone":
                self.project.places.index.unlink()

    # Runs

    @rule(seconds=PASSING)
    def run(self, seconds: float) -> None:
        self.project.clock.advance(seconds)
        self._run_and_compare()

    @rule(seconds=PASSING)
    def run_again_and_again(self, seconds: float) -> None:
        """Run twice: only due and pending sources are processed. Without any, no byte changes."""
        self.run(seconds)
        now = self.project.clock.instant
        records = self.reference.records.values()
        soon, last = later(1, now), later(INTERVAL, now)
        is_busy = any(each["summary_pending"] or not now < each.get("next_check_at", soon) <= last for each in records)
        self._run_and_compare()  # may note that all is settled
        before = self.project.made
        expected = self._run_and_compare()
        if not is_busy:
            assert expected.calls == []
            assert {request.url for request in expected.requests}.isdisjoint(self.reference.records)
            assert self.project.made == before

    @rule(
        seconds=PASSING,
        moment=st.integers(0, 25),
        index_is_behind=st.booleans(),
        torn_line=st.sampled_from([b"", b"{", b'{"kind": "source", "key": "a.md", "value": {"source_ty']),
    )
    def run_and_be_killed(self, seconds: float, moment: int, index_is_behind: bool, torn_line: bytes) -> None:
        """Kill a run at its n-th request, report or save."""
        self.project.clock.advance(seconds)
        copy = self.folder / "killed"
        index = self.project.places.index
        old_index = index.read_bytes() if index.exists() else None
        finished: set[str] = set()
        is_taken = False
        left = moment

        def strike(*_: object) -> None:
            nonlocal left, is_taken
            with self._moment_lock:
                left -= 1
                if left == 0:
                    finished.update(self.project.observer.done)
                    copy_as_if_killed(self.project.places, copy)
                    is_taken = True

        project = self.project
        project.summariser.on_call = project.pages.on_request = project.observer.on_finished = strike
        project.observer.on_planned = project.clock.on_look = strike
        before = dict(self.reference.records)
        expected = self._run_and_compare()
        project.summariser.on_call = project.pages.on_request = project.observer.on_finished = nothing
        project.observer.on_planned = project.clock.on_look = nothing
        if not is_taken:
            return
        restore(copy, project.places)
        if torn_line:
            with self._newest_journal().open("ab") as journal:
                journal.write(torn_line)
        if index_is_behind:
            index.unlink(missing_ok=True)
            if old_index is not None:
                index.write_bytes(old_index)
        with self._shown():
            self._take_over(before, expected, finished)

    def _newest_journal(self) -> Path:
        """Return the journal of the killed run; a new one if it had not begun any."""
        cache = self.project.places.cache
        journals = sorted(cache.parent.glob(f"{cache.name}.journal-*"), key=lambda path: int(path.suffix[9:]))
        saved = json.loads(cache.read_bytes())["generation"] if cache.exists() else 0
        return journals[-1] if journals else cache.with_name(f"{cache.name}.journal-{saved}")

    def _take_over(self, before: dict[str, Record], expected: Expected, finished: set[str]) -> None:
        """Check that each source is at a valid stage after a kill, finished ones at the last; continue there."""
        state = store.read(self.project.places.cache).state
        left = {source_id: plain(value) for source_id, value in state.sources.items()}
        for source_id in before.keys() | expected.stages.keys() | left.keys():
            stages = expected.stages.get(source_id, [before.get(source_id)])
            allowed = stages[-1:] if source_id in finished else stages
            assert left.get(source_id) in allowed, source_id
        self.reference.records = left
        self.reference.no_text = {
            path: (value["size_bytes"], value["mtime_ns"]) for path, value in state.skipped.items()
        }
        self.reference.pauses = {host: datetime.datetime.fromisoformat(at) for host, at in state.pauses.items()}
        copies = {url: self.project.copy_of(url) for url in URLS}
        self.reference.copies = {url: path.read_bytes().decode() for url, path in copies.items() if path.exists()}

    @contextmanager
    def _shown(self) -> Iterator[None]:
        """Report a failure at once: with threads, Hypothesis may not see the same failure twice."""
        try:
            yield
        except AssertionError:
            traceback.print_exc()
            raise

    def _run_and_compare(self) -> Expected:
        with self._shown():
            return self._compared()

    def _compared(self) -> Expected:
        project = self.project
        self.world.now = project.clock.instant
        project.pages.pages = dict(self.world.pages)
        expected = self.reference.run(self.world)
        report = project.run()
        assert sorted(project.pages.requests, key=repr) == sorted(expected.requests, key=repr)
        self._compare_calls(expected.calls)
        assert {source_id: plain(value) for source_id, value in project.records.items()} == self.reference.records
        assert project.index == self.reference.index()
        for url in URLS:
            path = project.copy_of(url)
            assert (path.read_bytes().decode() if path.exists() else None) == self.reference.copies.get(url), url
        self._compare_report(report, expected)
        assert [path.name for path in project.places.cache.parent.glob("*journal*")] == []
        return expected

    def _compare_calls(self, expected: list[str]) -> None:
        calls = self.project.summariser.calls
        if not self.world.model_is_down:
            assert sorted(calls) == sorted(expected)
            return
        assert len(calls) == min(3, len(expected)), "an unavailable model is asked three times"
        assert len(set(calls)) == len(calls)
        assert set(calls) <= set(expected)

    def _compare_report(self, report: SyncReport, expected: Expected) -> None:
        ends = {source_id: (stages[0], stages[-1]) for source_id, stages in expected.stages.items()}
        assert report.pending == sum(record["summary_pending"] for record in self.reference.records.values())
        assert report.added == sum(first is None and last is not None for first, last in ends.values())
        assert report.removed == sum(first is not None and last is None for first, last in ends.values())
        assert report.errors == ()
        assert {path for path, _ in report.skipped} == set(self.reference.no_text)

    @invariant()
    def what_is_on_disk_can_be_read(self) -> None:
        store.read(self.project.places.cache)


TestSyncDoesWhatTheRulesSay = SyncMachine.TestCase
TestSyncDoesWhatTheRulesSay.settings = PROFILES.get(PROFILE, PROFILES["default"])
pytest.mark.timeout(3600)(TestSyncDoesWhatTheRulesSay)
pytest.mark.rule("sync-1")(TestSyncDoesWhatTheRulesSay)
pytest.mark.rule("sync-2")(TestSyncDoesWhatTheRulesSay)
pytest.mark.rule("sync-4")(TestSyncDoesWhatTheRulesSay)
pytest.mark.rule("sync-49")(TestSyncDoesWhatTheRulesSay)
pytest.mark.rule("sync-52")(TestSyncDoesWhatTheRulesSay)
