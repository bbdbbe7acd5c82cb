"""One sync run: discover, delete, read files, fetch URLs, summarise; saved as it goes.

Invariants
    One run at a time, across processes; the rules are the same whoever starts it.
    A source that needs nothing costs a `stat`, or a look at the clock.
Not here
    What there is: discovery.py. What is decided: rules.py. How it is saved: store.py. When it runs again: ticker.py.
"""

import dataclasses
import datetime
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from pair import errors, files
from pair.ai.contract import Summariser
from pair.clock import Clock
from pair.sync import rules, source_text
from pair.sync.contract import (
    Documents,
    FetchedPage,
    NotModified,
    Pages,
    PageUnavailable,
    SyncObserver,
    UnreadableDocument,
)
from pair.sync.discover import Discovered, SyncPaths, choose_urls, classify_missing, discover
from pair.sync.report import SyncCounts, SyncReport
from pair.sync.rules import FileSeen, PageSeen, Reason, SyncSettings
from pair.sync.scheduling import Interrupts, ModelGate, WorkerPools
from pair.sync.source_text import FileTextReader, PageCache
from pair.sync.state import FileRecord, UrlRecord, parse_time
from pair.sync.store import StateHead, StateStore

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SyncDependencies:
    """The parts that do the work. `documents` is None when its extra is not installed."""

    summariser: Summariser
    pages: Pages
    documents: Documents | None
    clock: Clock
    observer: SyncObserver
    interrupts: Interrupts = field(default_factory=Interrupts)


@contextmanager
def locked(places: SyncPaths, on_wait: Callable[[str], None]) -> Iterator[None]:
    with files.exclusive_lock(places.lock, on_wait=on_wait):
        yield


def refuse_to_wait(holder: str) -> None:
    """For a tick: rather skip a run than queue up behind one."""
    raise errors.sync_running(holder)


class SyncRun:
    """One run over all sources. Make a new one for each run."""

    def __init__(self, policy: SyncSettings, places: SyncPaths, workshop: SyncDependencies) -> None:
        self._policy = policy
        self._places = places
        self._shop = workshop
        self._store = StateStore(places.cache, places.index, workshop.clock, places.llms)
        self._copies = PageCache(places.page_copies)
        self._reader = FileTextReader(places.sources_dir, policy.max_source_bytes, workshop.documents)
        self._calls_before = workshop.summariser.model_calls
        self._tally = SyncCounts()
        self._tried: set[str] = set()
        self._refreshed: frozenset[str] = frozenset()
        self._gate = ModelGate()

    def run(self, *, wait: bool = True, refresh: str | None = None) -> SyncReport:
        """Raises E101 instead of waiting for another run when told so, E102, E104 and E010.

        `refresh`: check URLs that match this pattern now, whatever their next check.
        """
        began = self._shop.clock.monotonic()
        with files.storage_errors(), locked(self._places, self._say_waiting if wait else refuse_to_wait):
            found = discover(self._places)
            fingerprint = found.fingerprint(self._conditions)
            self._refreshed = choose_urls(found, refresh)
            head = self._store.read_settled_head() if self._is_all_there(found) and not self._refreshed else None
            if head is not None and self._is_settled(head, fingerprint):
                self._tally.add("unchanged", head.sources)
                return self._report(0, head.skipped, found, began)
            with self._shop.interrupts.hold(), self._store.opened() as store:
                found = classify_missing(found, self._places, store.state)
                self._note_unreadable(found)
                self._copies.remove_half_written(found.urls or ())
                self._delete_gone(found)
                self._forget_old_skips()
                self._apply_interval()
                self._process(found)
                pending = sum(1 for value in store.state.sources.values() if value.get("summary_pending"))
                store.note_problems(self._problems_left())
                # A URL that failed and has a record is due at its time; whatever else failed is tried by every run.
                if not pending and not found.faults and self._tally.problems.keys() <= store.state.ids("url"):
                    store.settle(fingerprint)
            skipped = {path: value["reason"] for path, value in store.state.skipped.items()}
            return self._report(pending, skipped, found, began)

    def _is_all_there(self, found: Discovered) -> bool:
        is_missed = found.urls is None and self._places.is_links_file_named
        return found.files is not None and not found.faults and not is_missed

    def _is_settled(self, head: StateHead, fingerprint: str) -> bool:
        now = self._shop.clock.now()
        return head.settled == fingerprint and not any(rules.is_due(check, now, self._policy) for check in head.checks)

    def _note_unreadable(self, found: Discovered) -> None:
        for path, reason in found.files.unreadable.items() if found.files is not None else ():
            self._tally.add("failed")
            self._tally.problem(path, reason)

    @property
    def _conditions(self) -> str:
        """What else decides what a file is: with other conditions, everything is looked at again."""
        interval_seconds = self._policy.url_refresh_min_interval_seconds
        return f"{self._policy.max_source_bytes} {self._shop.documents is not None} {interval_seconds}"

    def _report(self, pending: int, skipped: dict[str, str], found: Discovered, began: float) -> SyncReport:
        links = found.files.skipped if found.files is not None else {}
        self._tally.add("model_calls", self._shop.summariser.model_calls - self._calls_before)
        return self._tally.report(pending, self._shop.clock.monotonic() - began, skipped | links, found.faults)

    def _problems_left(self) -> dict[str, str]:
        """Those of this run, and those of sources that were not tried again."""
        state = self._store.state
        untried = {
            source_id: reason
            for source_id, reason in state.problems.items()
            if source_id in state.sources and source_id not in self._tried
        }
        return untried | self._tally.problems

    def _say_waiting(self, holder: str) -> None:
        self._shop.observer.say(f"waiting for another sync: {holder}")

    def _say_stopping(self) -> None:
        self._shop.observer.say("finishing what is under way; Ctrl-C again stops at once")

    def _delete_gone(self, found: Discovered) -> None:
        """Records whose source is no longer there."""  # sync-12
        state = self._store.state
        if found.files is not None:
            for source_id in state.ids("file") - found.files.files.keys():
                if not found.files.may_hold(source_id):
                    self._store.remove(source_id)
                    self._tally.add("removed")
            for path in state.skipped.keys() - found.files.files.keys():
                if not found.files.may_hold(path):
                    self._store.unskip(path)
        if found.urls is not None:
            for source_id in state.ids("url").difference(found.urls):
                self._store.remove(source_id)
                self._copies.remove(source_id)
                self._tally.add("removed")

    def _forget_old_skips(self) -> None:
        for path, value in list(self._store.state.skipped.items()):
            if self._reader.may_read_now(path, value["reason"], value["size_bytes"]):
                self._store.unskip(path)

    def _apply_interval(self) -> None:
        """A lowered interval takes effect at once."""
        state = self._store.state
        for url in sorted(state.ids("url")):
            record = state.url(url)
            if record is not None:
                after = rules.reschedule_url(record, state.interval_seconds, self._policy)
                if after != record:
                    self._store.put(after)
        self._store.note_interval(self._policy.url_refresh_min_interval_seconds)

    def _process(self, found: Discovered) -> None:
        state, now = self._store.state, self._shop.clock.now()
        seen_files = found.files.files if found.files is not None else {}
        unsettled = sorted(
            path for path, seen in seen_files.items() if not state.file_is_settled(path, seen.size_bytes, seen.mtime_ns)
        )
        reasons = {url: self._url_reason(url, now) for url in found.urls or []}
        busy_urls = sorted(url for url, reason in reasons.items() if reason != "unchanged")
        self._tally.add("unchanged", len(seen_files) - len(unsettled) + len(reasons) - len(busy_urls))
        self._tried = {*unsettled, *busy_urls}
        if not self._tried:
            return
        self._shop.observer.planned(len(unsettled) + len(busy_urls))
        with WorkerPools(self._policy, self._shop.interrupts, self._say_stopping) as crew:
            for url in busy_urls:
                crew.fetch(self._process_url, url, reasons[url], crew)
            for path in unsettled:
                is_pending = rules.file_reason(state.file(path), seen_files[path]) == "pending"
                (crew.summarise_last if is_pending else crew.summarise)(self._process_file, path, seen_files[path])
        if self._shop.interrupts.is_stopping:
            self._copies.close()
            raise KeyboardInterrupt

    # Files

    def _process_file(self, path: str, seen: FileSeen) -> None:
        try:
            content = self._reader.text_of(path, seen)
            self._tally.add("bytes_read", seen.size_bytes)
        except OSError as fault:
            self._fail(path, f"cannot be read: {fault.strerror or fault}")
            return
        except UnreadableDocument as fault:
            if fault.is_passing:
                self._fail(path, str(fault))
            else:
                self._skip(path, seen, str(fault))
            return
        self._apply_file(path, seen, content)
        self._shop.observer.finished(path)

    def _apply_file(self, path: str, seen: FileSeen, content: str) -> None:
        record = self._store.state.file(path)
        content_hash = source_text.content_hash(content)
        if record is not None and not rules.file_needs_summary(record, content_hash):
            self._store.put(rules.file_touched(record, seen))
            self._tally.add("unchanged")
            return
        if path in self._store.state.skipped:
            self._store.unskip(path)
        now = self._shop.clock.now()
        fresh = FileRecord(path, content_hash, "", True, now, seen.size_bytes, seen.mtime_ns)
        summary = self._summary_of(path, content)
        if summary is not None:
            self._store.put(rules.file_summarised(fresh, summary, self._shop.clock.now()))
        elif (after := rules.file_summary_failed(record, fresh)) != record:
            self._store.put(after)
        if record is None:
            self._tally.add("added")
        elif record.content_hash != content_hash or summary is not None:
            self._tally.add("changed")

    def _skip(self, path: str, seen: FileSeen, reason: str) -> None:
        """A file that is no longer text is no longer a source."""
        if self._store.state.file(path) is not None:
            self._store.remove(path)
            self._tally.add("removed")
        self._store.skip(path, seen, reason)
        self._shop.observer.finished(path)

    def _fail(self, source_id: str, reason: str) -> None:
        logger.info("source failed", extra={"source": source_id, "reason": reason})
        self._tally.add("failed")
        self._tally.problem(source_id, reason)
        self._shop.observer.finished(source_id)

    # URLs

    def _url_reason(self, url: str, now: datetime.datetime) -> Reason:
        return rules.url_reason(self._store.state.url(url), now, self._policy, refresh=url in self._refreshed)

    def _process_url(self, url: str, reason: Reason, crew: WorkerPools) -> None:
        """In a fetching thread; what wants a summary is handed to a summarising one."""
        record = self._store.state.url(url)
        if record is None:
            self._fetch_new(url, crew)
        elif reason == "due":
            self._refresh(record, crew)
        else:
            crew.summarise_last(self._summarise_pending, url)

    def _fetch(self, url: str, known: UrlRecord | None) -> FetchedPage | NotModified | None:
        """On the conditions that are known. None while the host pauses; raises PageUnavailable."""
        host = _host(url)
        until = self._store.state.pauses.get(host)
        if until is not None and rules.is_paused(parse_time(until), self._shop.clock.now()):
            self._fail(url, f"its server asked for a pause until {until}")
            return None
        try:
            if known is None:
                return self._shop.pages.fetch(url, etag=None, last_modified=None)
            return self._shop.pages.fetch(
                url, etag=known.etag, last_modified=known.last_modified, validated_at=known.validated_at
            )
        except PageUnavailable as fault:
            if fault.failure.retry_after_seconds:
                now = self._shop.clock.now()
                self._store.note_pause(host, rules.pause_until(now, fault.failure.retry_after_seconds))
            raise

    def _fetch_new(self, url: str, crew: WorkerPools) -> None:
        try:
            page = self._fetch(url, None)
        except PageUnavailable as fault:
            self._fail(url, fault.failure.reason)  # no record: tried again next run
            return
        if isinstance(page, NotModified):
            self._fail(url, "its server says that nothing changed since a request that was never made")
            return
        if page is None:
            return
        seen = self._keep_copy(url, page)
        self._store.put(rules.url_after_first_fetch(url, seen, self._shop.clock.now(), self._policy))
        self._tally.add("added")
        self._count_fetch(page)
        crew.summarise(self._summarise_new, url)

    def _refresh(self, record: UrlRecord, crew: WorkerPools) -> None:
        url = record.source_id
        # Without the copy, "not modified" would leave a page without text for ever.
        can_use_304 = self._copies.exists(url)
        try:
            answer = self._fetch(url, record if can_use_304 else None)  # sync-25
        except PageUnavailable as fault:
            self._store.put(rules.url_failed(record, fault.failure, self._shop.clock.now(), self._policy))
            self._fail(url, fault.failure.reason)
            return
        if isinstance(answer, NotModified):
            self._after_not_modified(rules.url_not_modified(record, self._shop.clock.now(), self._policy), crew)
        elif answer is not None:
            self._after_fetch(record, answer, crew)

    def _after_not_modified(self, record: UrlRecord, crew: WorkerPools) -> None:
        self._store.put(record)
        self._tally.add("not_modified")
        if record.summary_pending:
            crew.summarise_last(self._summarise_pending, record.source_id)  # sync-27
        else:
            self._tally.add("unchanged")
            self._shop.observer.finished(record.source_id)

    def _after_fetch(self, record: UrlRecord, page: FetchedPage, crew: WorkerPools) -> None:
        seen = self._keep_copy(record.source_id, page)
        after = rules.url_after_fetch(record, seen, self._shop.clock.now(), self._policy)
        self._store.put(after)
        self._count_fetch(page)
        if record.content_hash != seen.content_hash:
            self._tally.add("changed")
        if after.summary_pending:
            crew.summarise(self._summarise_fetched, record.source_id)
        else:
            self._tally.add("unchanged")
            self._shop.observer.finished(record.source_id)

    def _count_fetch(self, page: FetchedPage) -> None:
        self._tally.add("fetched")
        self._tally.add("bytes_read", page.size_bytes)

    def _keep_copy(self, url: str, page: FetchedPage) -> PageSeen:
        written = self._copies.write(url, page.text)
        content_hash = source_text.content_hash(written)
        return PageSeen(content_hash, page.etag, page.last_modified, page.validated_at)

    def _summarise_new(self, url: str) -> None:
        self._summarise_copy(url)
        self._shop.observer.finished(url)

    def _summarise_pending(self, url: str) -> None:
        if self._summarise_copy(url):
            self._tally.add("changed")
        self._shop.observer.finished(url)

    def _summarise_fetched(self, url: str) -> None:
        """After HTTP 200 a failed summary brings the next check forward."""
        if not self._summarise_copy(url) and (record := self._store.state.url(url)) is not None:
            self._store.put(rules.url_summary_failed(record, self._shop.clock.now(), self._policy))
        self._shop.observer.finished(url)

    def _summarise_copy(self, url: str) -> bool:
        """From the copy on disk, without a request; on failure the record stays as it is."""  # sync-33, sync-34
        record, content = self._store.state.url(url), self._copies.read(url)
        if record is None or content is None:
            self._tally.problem(url, "pending: its copy is gone; fetched again when it is due")
            return False
        summary = self._summary_of(url, content)
        if summary is not None:
            # After a kill the copy may be newer than the record that was to describe it.
            described = dataclasses.replace(record, content_hash=source_text.content_hash(content))
            self._store.put(rules.url_summarised(described, summary, self._shop.clock.now()))
        return summary is not None

    # Summaries

    def _summary_of(self, source_id: str, content: str) -> str | None:
        """None when there is none to be had now. Blank text has a blank summary, and no model is asked."""
        if not content.strip():
            self._tally.problem(source_id, "skipped: it holds no text")
            return ""
        if self._gate.is_closed:
            self._tally.problem(source_id, "pending: the model cannot be reached")
            return None
        try:
            summary = self._shop.summariser.summarise(source_id, content).strip()
        except errors.ModelError as fault:
            self._gate.failed(fault)
            self._tally.problem(source_id, f"pending: {fault.message}: {fault.explanation}")
            return None
        self._gate.succeeded()
        if not summary:
            self._tally.problem(source_id, "pending: the summary was empty")
        return summary or None


def _host(url: str) -> str:
    try:
        return urlsplit(url).netloc.rpartition("@")[2]
    except ValueError:
        return url
