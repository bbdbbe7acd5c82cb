"""One sync run: discover, delete, read files, fetch URLs, summarise; saved as it goes.

Invariants
    One run at a time, across processes; the rules are the same for every caller.
    A source that needs nothing costs a `stat`, or a look at the clock.
Not here
    What there is: discover.py. What is decided: rules.py. How it is saved: store.py. When it runs again: scheduling.py.
"""

import dataclasses
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from pair import errors, files
from pair.ai.contract import Summariser
from pair.clock import Clock
from pair.network import PageFault, read_host
from pair.sync import rules
from pair.sync.contract import Documents, FetchedPage, NotModified, Pages, SyncObserver, UnreadableDocument
from pair.sync.discover import Discovered, SyncPaths, choose_urls, classify_missing, discover, find_gone
from pair.sync.report import SyncCounts, SyncReport
from pair.sync.rules import FileSeen, PageSeen, Reason, SyncSettings
from pair.sync.scheduling import Interrupts, ModelGate, WorkerPools
from pair.sync.source_text import FileTextReader, PageCache, content_hash
from pair.sync.state import FileRecord, UrlRecord, parse_time
from pair.sync.store import StateHead, StateStore

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SyncDependencies:
    """The parts that do the work. `documents` is None when its extra is not installed."""

    open_summariser: Callable[[], Summariser]
    """Called once there is something to do."""
    pages: Pages
    documents: Documents | None
    clock: Clock
    observer: SyncObserver
    interrupts: Interrupts = field(default_factory=Interrupts)


class SyncRun:
    """One run over all sources. Make a new one for each run."""

    def __init__(self, settings: SyncSettings, paths: SyncPaths, dependencies: SyncDependencies) -> None:
        self._settings = settings
        self._paths = paths
        self._open_summariser = dependencies.open_summariser
        self._summariser: Summariser
        self._pages = dependencies.pages
        self._has_documents = dependencies.documents is not None
        self._clock = dependencies.clock
        self._observer = dependencies.observer
        self._interrupts = dependencies.interrupts
        self._store = StateStore(paths.cache, paths.index, self._clock, paths.llms)
        self._copies = PageCache(paths.page_copies)
        self._reader = FileTextReader(paths.sources_dir, settings.max_source_bytes, dependencies.documents)
        self._counts = SyncCounts()
        self._tried: set[str] = set()
        self._refreshed: frozenset[str] = frozenset()
        self._gate = ModelGate()

    def run(self, *, wait: bool = True, refresh: str | None = None) -> SyncReport:
        """Bring state, index and page copies in line with the sources.

        `wait`: for another run; else raises E101. `refresh`: check URLs that match this pattern now, whatever their
        next check. Raises E102, E104 and E010.
        """
        began = self._clock.monotonic()

        def on_wait(holder: str) -> None:
            if not wait:
                raise errors.sync_running(holder)
            self._observer.say(f"waiting for another sync: {holder}")

        with files.storage_errors(), files.exclusive_lock(self._paths.lock, on_wait=on_wait):
            sources = discover(self._paths)
            # What else decides what a file is: with other conditions, everything is looked at again.
            interval_seconds = self._settings.url_refresh_min_interval_seconds
            conditions = f"{self._settings.max_source_bytes} {self._has_documents} {interval_seconds}"
            fingerprint = sources.fingerprint(conditions)
            self._refreshed = choose_urls(sources, refresh)
            head = self._read_settled_head(sources, fingerprint)
            if head is not None:
                self._counts.add("unchanged", head.source_count)
                return self._report(0, {path: skip.reason for path, skip in head.skipped.items()}, sources, began)
            self._summariser = self._open_summariser()
            calls_before = self._summariser.model_calls
            with self._interrupts.hold(), self._store.open() as store:
                sources = classify_missing(sources, self._paths, store.state)
                self._prepare(sources)
                self._process(sources)
                pending = sum(1 for value in store.state.sources.values() if value.get("summary_pending"))
                # What was not tried again still has the problem that it had.
                known = store.state.problems
                untried = known.keys() & store.state.sources.keys() - self._tried
                store.note_problems({source_id: known[source_id] for source_id in untried} | self._counts.problems)
                # A URL that failed and has a record is due at its time; whatever else failed is tried by every run.
                if not pending and not sources.faults and self._counts.problems.keys() <= store.state.ids("url"):
                    store.settle(fingerprint)
            self._counts.add("model_calls", self._summariser.model_calls - calls_before)
            skipped = {path: value["reason"] for path, value in store.state.skipped.items()}
            return self._report(pending, skipped, sources, began)

    def _read_settled_head(self, sources: Discovered, fingerprint: str) -> StateHead | None:
        """Return the head of the saved state if it says that there is nothing to do."""
        is_missed = sources.urls is None and self._paths.is_links_file_named
        if sources.files is None or sources.faults or is_missed or self._refreshed:
            return None
        head, now = self._store.read_settled_head(), self._clock.now()
        if head is None or head.settled != fingerprint:
            return None
        checks = (head.next_check_at, head.last_check_at) if head.next_check_at else ()
        return None if any(rules.is_due(parse_time(check), now, self._settings) for check in checks) else head

    def _report(self, pending: int, skipped: dict[str, str], sources: Discovered, began: float) -> SyncReport:
        links = sources.files.skipped if sources.files is not None else {}
        return self._counts.report(pending, self._clock.monotonic() - began, skipped | links, sources.faults)

    def _prepare(self, sources: Discovered) -> None:
        """Bring the state in line with what is there and with the settings, before anything is read or fetched."""
        for path, reason in sources.files.unreadable.items() if sources.files is not None else ():
            self._counts.add("failed")
            self._counts.note_problem(path, reason)
        self._copies.remove_half_written(sources.urls or ())
        self._delete_gone(sources)
        for path, value in list(self._store.state.skipped.items()):
            if self._reader.may_read_now(path, value["reason"], value["size_bytes"]):
                self._store.unskip(path)
        state = self._store.state
        # A lowered interval takes effect at once.
        for url in sorted(state.ids("url")):
            record = state.url(url)
            if record is not None:
                after = rules.reschedule_url(record, state.interval_seconds, self._settings)
                if after != record:
                    self._store.put(after)
        self._store.note_interval(self._settings.url_refresh_min_interval_seconds)

    def _delete_gone(self, sources: Discovered) -> None:
        """Delete records whose source is no longer there."""  # sync-12
        state = self._store.state
        for source_id in find_gone(sources, state):
            is_url = state.url(source_id) is not None
            self._store.remove(source_id)
            if is_url:
                self._copies.remove(source_id)
            self._counts.add("removed")
        if sources.files is not None:
            for path in [path for path in state.skipped if not sources.files.may_hold(path)]:
                self._store.unskip(path)

    def _process(self, sources: Discovered) -> None:
        state, now = self._store.state, self._clock.now()
        seen_files = sources.files.files if sources.files is not None else {}
        unsettled = sorted(
            path for path, seen in seen_files.items() if not state.file_is_settled(path, seen.size_bytes, seen.mtime_ns)
        )
        reasons = {
            url: rules.url_reason(state.url(url), now, self._settings, refresh=url in self._refreshed)
            for url in sources.urls or []
        }
        busy_urls = sorted(url for url, reason in reasons.items() if reason != "unchanged")
        self._counts.add("unchanged", len(seen_files) - len(unsettled) + len(reasons) - len(busy_urls))
        self._tried = {*unsettled, *busy_urls}
        if not self._tried:
            return
        self._observer.planned(len(unsettled) + len(busy_urls))
        with WorkerPools(self._settings, self._interrupts, self._observer) as pools:
            for url in busy_urls:
                pools.fetch(self._process_url, url, reasons[url], pools)
            for path in unsettled:
                is_pending = rules.file_reason(state.file(path), seen_files[path]) == "pending"
                (pools.summarise_last if is_pending else pools.summarise)(self._process_file, path, seen_files[path])
        if self._interrupts.is_stopping:
            self._copies.close()
            raise KeyboardInterrupt

    # Files

    def _process_file(self, path: str, seen: FileSeen) -> None:
        try:
            text = self._reader.text_of(path, seen)
            self._counts.add("bytes_read", seen.size_bytes)
        except OSError as fault:
            self._fail(path, f"cannot be read: {fault.strerror or fault}")
            return
        except UnreadableDocument as fault:
            if fault.is_passing:
                self._fail(path, str(fault))
                return
            if self._store.state.file(path) is not None:  # it was a source, and is none any more
                self._store.remove(path)
                self._counts.add("removed")
            self._store.skip(path, seen, str(fault))
        else:
            self._apply_file(path, seen, text)
        self._observer.finished(path)

    def _apply_file(self, path: str, seen: FileSeen, text: str) -> None:
        record = self._store.state.file(path)
        text_hash = content_hash(text)
        if record is not None and not rules.file_needs_summary(record, text_hash):
            self._store.put(rules.file_touched(record, seen))
            self._counts.add("unchanged")
            return
        if path in self._store.state.skipped:
            self._store.unskip(path)
        fresh = FileRecord(path, text_hash, "", True, self._clock.now(), seen.size_bytes, seen.mtime_ns)
        summary = self._summarise(path, text)
        if summary is not None:
            self._store.put(rules.file_summarised(fresh, summary, self._clock.now()))
        elif (after := rules.file_summary_failed(record, fresh)) != record:
            self._store.put(after)
        if record is None:
            self._counts.add("added")
        elif record.content_hash != text_hash or summary is not None:
            self._counts.add("changed")

    def _fail(self, source_id: str, reason: str) -> None:
        logger.info("source failed", extra={"source": source_id, "reason": reason})
        self._counts.add("failed")
        self._counts.note_problem(source_id, reason)
        self._observer.finished(source_id)

    # URLs

    def _process_url(self, url: str, reason: Reason, pools: WorkerPools) -> None:
        """Fetch in this thread; what wants a summary is handed to a summarising one."""
        record = self._store.state.url(url)
        if record is not None and reason != "due":
            pools.summarise_last(self._summarise_page, url, "pending")
            return
        try:
            # Without the copy, "not modified" would leave a page without text for ever.
            known = record if record is not None and self._copies.exists(url) else None
            answer = self._fetch(url, known)  # sync-25
        except PageFault as fault:
            if record is not None:  # without a record, it is tried again by the next run
                self._store.put(rules.url_failed(record, fault, self._clock.now(), self._settings))
            self._fail(url, fault.reason)
            return
        if isinstance(answer, FetchedPage):
            self._apply_page(url, record, answer, pools)
        elif answer is not None and record is not None:
            self._apply_not_modified(record, pools)
        elif answer is not None:
            self._fail(url, "its server says that nothing changed since a request that was never made")

    def _fetch(self, url: str, known: UrlRecord | None) -> FetchedPage | NotModified | None:
        """Fetch a page on the conditions that are known. None while the host pauses; raises PageFault."""
        host = read_host(url, url)
        until = self._store.state.pauses.get(host)
        if until is not None and rules.is_paused(parse_time(until), self._clock.now()):
            self._fail(url, f"its server asked for a pause until {until}")
            return None
        try:
            if known is None:
                return self._pages.fetch(url, etag=None, last_modified=None)
            return self._pages.fetch(
                url, etag=known.etag, last_modified=known.last_modified, validated_at=known.validated_at
            )
        except PageFault as fault:
            if fault.retry_after_seconds:
                now = self._clock.now()
                self._store.note_pause(host, rules.pause_until(now, fault.retry_after_seconds))
            raise

    def _apply_not_modified(self, record: UrlRecord, pools: WorkerPools) -> None:
        after = rules.url_not_modified(record, self._clock.now(), self._settings)
        self._store.put(after)
        self._counts.add("not_modified")
        if after.summary_pending:
            pools.summarise_last(self._summarise_page, after.source_id, "pending")  # sync-27
        else:
            self._counts.add("unchanged")
            self._observer.finished(after.source_id)

    def _apply_page(self, url: str, record: UrlRecord | None, page: FetchedPage, pools: WorkerPools) -> None:
        text_hash = content_hash(self._copies.write(url, page.text))
        seen, now = PageSeen(text_hash, page.etag, page.last_modified, page.validated_at), self._clock.now()
        if record is None:
            after = rules.url_after_first_fetch(url, seen, now, self._settings)
        else:
            after = rules.url_after_fetch(record, seen, now, self._settings)
        self._store.put(after)
        self._counts.add("fetched")
        self._counts.add("bytes_read", page.size_bytes)
        if record is None:
            self._counts.add("added")
        elif record.content_hash != text_hash:
            self._counts.add("changed")
        if after.summary_pending:
            pools.summarise(self._summarise_page, url, "new" if record is None else "changed")
        else:
            self._counts.add("unchanged")
            self._observer.finished(url)

    def _summarise_page(self, url: str, reason: Literal["new", "changed", "pending"]) -> None:
        is_summarised = self._summarise_copy(url)
        if is_summarised and reason == "pending":
            self._counts.add("changed")
        elif not is_summarised and reason == "changed" and (record := self._store.state.url(url)) is not None:
            # After HTTP 200 a failed summary brings the next check forward.
            self._store.put(rules.url_summary_failed(record, self._clock.now(), self._settings))
        self._observer.finished(url)

    def _summarise_copy(self, url: str) -> bool:
        """Summarise the copy on disk, without a request; on failure the record stays as it is."""  # sync-33, sync-34
        record, text = self._store.state.url(url), self._copies.read(url)
        if record is None or text is None:
            self._counts.note_problem(url, "pending: its copy is gone; fetched again when it is due")
            return False
        summary = self._summarise(url, text)
        if summary is not None:
            # After a kill the copy may be newer than the record that was to describe it.
            described = dataclasses.replace(record, content_hash=content_hash(text))
            self._store.put(rules.url_summarised(described, summary, self._clock.now()))
        return summary is not None

    # Summaries

    def _summarise(self, source_id: str, text: str) -> str | None:
        """Return None if there is no summary now. Blank text has a blank summary, and no model is asked."""
        if not text.strip():
            self._counts.note_problem(source_id, "skipped: it holds no text")
            return ""
        if self._gate.is_closed:
            self._counts.note_problem(source_id, "pending: the model cannot be reached")
            return None
        try:
            summary = self._summariser.summarise(source_id, text).strip()
        except errors.ModelError as fault:
            self._gate.note_failure(fault)
            self._counts.note_problem(source_id, f"pending: {fault.message}: {fault.explanation}")
            return None
        self._gate.note_success()
        if not summary:
            self._counts.note_problem(source_id, "pending: the summary was empty")
        return summary or None
