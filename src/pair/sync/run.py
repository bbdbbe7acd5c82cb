"""One sync run: discover, delete, read files, fetch URLs and summarise. Results are saved continuously.

Invariants
    One run at a time, across processes; the rules are the same for every caller.
    An unchanged source costs one `stat`, or one comparison of times.
Not here
    Listing of sources: discover.py. Decisions: rules.py. Saving: store.py. Timing of runs: scheduling.py.
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
from pair.reading.contract import Reader, Reading, UnreadableDocument
from pair.reading.process import is_read_by, list_readers
from pair.sources.contract import Source
from pair.sync import rules
from pair.sync.contract import FetchedPage, NotModified, Pages, SyncObserver
from pair.sync.discover import (
    Discovered,
    NamedCollection,
    SyncPaths,
    choose_refreshed,
    classify_missing,
    discover,
    find_gone,
)
from pair.sync.items import Change, ItemParts, SourceSync, move_renamed
from pair.sync.report import SyncCounts, SyncReport
from pair.sync.rules import FileSeen, PageSeen, Reason, SyncSettings
from pair.sync.scheduling import Interrupts, ModelGate, WorkerPools
from pair.sync.source_text import PageCache, describe_reading, hash_reading, make_file_reader
from pair.sync.state import READER_VERSION, FileRecord, UrlRecord, parse_time, read_collection
from pair.sync.store import StateHead, StateStore

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SyncDependencies:
    """The parts that do the work."""

    open_summariser: Callable[[], Summariser]
    """A function that is called once there is work."""
    pages: Pages
    reader: Reader
    clock: Clock
    observer: SyncObserver
    interrupts: Interrupts = field(default_factory=Interrupts)
    open_source: Callable[[NamedCollection], Source] | None = None
    """A function that opens the source of a collection."""
    readers: list[str] = field(default_factory=list_readers)


class SyncRun:
    """One run over all sources. Make a new one for each run."""

    def __init__(self, settings: SyncSettings, paths: SyncPaths, dependencies: SyncDependencies) -> None:
        self._settings = settings
        self._paths = paths
        self._dependencies = dependencies
        self._summariser: Summariser
        self._clock = dependencies.clock
        self._observer = dependencies.observer
        self._interrupts = dependencies.interrupts
        self._store = StateStore(paths.cache, paths.index, self._clock, paths.llms)
        self._copies = PageCache(paths.page_copies)
        self._reader = make_file_reader(paths, settings, dependencies.reader)
        self._counts = SyncCounts()
        self._tried: set[str] = set()
        self._refreshed: frozenset[str] = frozenset()
        self._gate = ModelGate()
        self._source_problems: set[str] = set()
        self._added_readers: frozenset[str] = frozenset()
        """Readers that were installed since the last run."""

    def run(self, *, wait: bool = True, refresh: str | None = None) -> SyncReport:
        """Update state, index and page copies from the sources. Raises E102, E104 and E010.

        `wait`: wait for another run instead of raising E101. `refresh`: check URLs that match this pattern now, even if
        they are not due.
        """
        began = self._clock.monotonic()

        def on_wait(holder: str) -> None:
            if not wait:
                raise errors.sync_running(holder)
            self._observer.say(f"waiting for another sync: {holder}")

        with files.storage_errors(), files.exclusive_lock(self._paths.lock, on_wait=on_wait):
            sources = discover(self._paths)
            # With other conditions, every source is checked again.
            readers, interval_seconds = self._dependencies.readers, self._settings.url_refresh_min_interval_seconds
            conditions = f"{self._settings.max_source_bytes} {readers} {READER_VERSION} {interval_seconds}"
            named = (f"\n{entry.name} {entry.collection} {entry.fault}" for entry in self._paths.collections)
            fingerprint = sources.fingerprint(conditions + "".join(named))
            self._refreshed = choose_refreshed(sources, self._paths, refresh)
            head = self._read_settled_head(sources, fingerprint)
            if head is not None:
                self._counts.add("unchanged", head.source_count)
                return self._report(0, {path: skip.reason for path, skip in head.skipped.items()}, sources, began)
            self._summariser = self._dependencies.open_summariser()
            calls_before = self._summariser.model_calls
            with self._interrupts.hold(), self._store.open() as store:
                sources = classify_missing(sources, self._paths, store.state)
                if store.state.readers is None:
                    store.note_reader(store.state.reader_version, readers)
                self._added_readers = frozenset(readers).difference(store.state.readers or ())
                self._prepare(sources)
                self._process(sources)
                store.note_reader(READER_VERSION, readers)
                pending = sum(1 for value in store.state.sources.values() if value.get("summary_pending"))
                # A source that was not tried again keeps its problem.
                known = store.state.problems
                untried = known.keys() & store.state.sources.keys() - self._tried
                store.note_problems({source_id: known[source_id] for source_id in untried} | self._counts.problems)
                # A failed URL with a record is due at its time; every run tries all other failed sources.
                # A source is read again when it is due, and so are the items that failed.
                timed = store.state.ids("url") | self._source_problems
                if not pending and not sources.faults and self._counts.problems.keys() <= timed:
                    store.settle(fingerprint)
            self._counts.add("model_calls", self._summariser.model_calls - calls_before)
            skipped = {path: value["reason"] for path, value in store.state.skipped.items()}
            return self._report(pending, skipped, sources, began)

    def _read_settled_head(self, sources: Discovered, fingerprint: str) -> StateHead | None:
        """Return the head of the saved state if there is nothing to do."""
        is_missed = sources.links.is_missing and self._paths.is_links_file_named
        is_missed |= sources.folder.is_missing and not self._paths.is_named_only and not self._paths.collections
        if sources.faults or is_missed or self._refreshed:
            return None
        head, now = self._store.read_settled_head(), self._clock.now()
        if head is None or head.settled != fingerprint:
            return None
        checks = (head.next_check_at, head.last_check_at) if head.next_check_at else ()
        intervals = [rules.source_interval(entry.collection, self._settings) for entry in self._paths.collections]
        intervals.append(self._settings.url_refresh_min_interval_seconds)
        settings = dataclasses.replace(self._settings, url_refresh_min_interval_seconds=max(intervals))
        return None if any(rules.is_due(parse_time(check), now, settings) for check in checks) else head

    def _report(self, pending: int, skipped: dict[str, str], sources: Discovered, began: float) -> SyncReport:
        links = sources.listing().skipped
        return self._counts.report(pending, self._clock.monotonic() - began, skipped | links, sources.faults)

    def _prepare(self, sources: Discovered) -> None:
        """Update the state to the listed sources and the settings, before anything is read or fetched."""
        listing, owners = sources.listing(), sources.owners()
        for path, reason in listing.unreadable.items():
            self._counts.add("failed")
            self._counts.note_problem(path, reason)
        self._copies.remove_half_written([*owners, *self._store.state.ids("item")])
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
                if self._is_read_otherwise(url):
                    # Without validators the server sends the page, which is then read again.
                    after = dataclasses.replace(after, etag=None, last_modified=None)
                if url in owners and owners[url] != record.collection:
                    after = dataclasses.replace(after, collection=owners[url])
                if after != record:
                    self._store.put(after)
        self._store.note_interval(self._settings.url_refresh_min_interval_seconds)

    def _delete_gone(self, sources: Discovered) -> None:
        """Delete records whose source no longer exists."""  # sync-12
        state = self._store.state
        move_renamed(self._paths.collections, self._store, self._copies)
        for source_id in find_gone(sources, state):
            is_kept = state.page(source_id) is not None
            self._store.remove(source_id)
            if is_kept:
                self._copies.remove(source_id)
            self._counts.add("removed")
        names = {entry.name for entry in self._paths.collections if entry.collection.is_source}
        for name in state.cursors.keys() - names:
            self._store.put_cursor(name, None)
        links = sources.listing().skipped
        for path in [path for path in state.skipped if not sources.may_hold(path) and path not in links]:
            self._store.unskip(path)
        for path, reason in links.items():
            if state.skipped.get(path, {}).get("reason") != reason:
                self._skip(path, FileSeen(0, 0), reason)

    def _process(self, sources: Discovered) -> None:
        state, now = self._store.state, self._clock.now()
        seen_files, owners = sources.listing().files, sources.owners()
        unsettled = sorted(
            path
            for path, seen in seen_files.items()
            if not state.file_is_settled(path, *seen) or self._is_read_otherwise(path)
        )
        reasons = {
            url: rules.url_reason(state.url(url), now, self._settings, refresh=url in self._refreshed) for url in owners
        }
        busy_urls = sorted(url for url, reason in reasons.items() if reason != "unchanged")
        due, pending = self._choose_sources()
        settled = seen_files.keys() - unsettled - state.skipped.keys()
        self._counts.add("unchanged", len(settled) + len(reasons) - len(busy_urls))
        self._tried = {*unsettled, *busy_urls, *pending, *(entry.name for entry in due)}
        if not self._tried:
            return
        self._observer.planned(len(self._tried))
        with WorkerPools(self._settings, self._interrupts, self._observer) as pools:
            for entry in due:
                pools.fetch(self._read_source, entry, frozenset(owners), pools)
            for url in busy_urls:
                pools.fetch(self._process_url, url, owners[url], reasons[url], pools)
            waiting = {path for path in unsettled if rules.file_reason(state.file(path), seen_files[path]) == "pending"}
            fresh = [path for path in unsettled if path not in waiting]
            pools.summarise_each(lambda path: self._process_file(path, seen_files[path]), fresh)
            for path in sorted(waiting):
                pools.summarise_last(self._process_file, path, seen_files[path])
            for source_id in pending:
                pools.summarise_last(self._summarise_item, source_id)
        if self._interrupts.is_stopping:
            self._copies.close()
            raise KeyboardInterrupt

    def _is_read_otherwise(self, name: str | None = None) -> bool:
        """Return whether another version of the reader read a document; without a name, whether that is possible."""
        if self._store.state.reader_version != READER_VERSION:
            return True
        return bool(self._added_readers) and (name is None or is_read_by(self._added_readers, name))

    # Items of sources

    def _choose_sources(self) -> tuple[list[NamedCollection], list[str]]:
        """Return the sources to read, and the items that still need a summary. Count the items of other sources."""
        state, now = self._store.state, self._clock.now()
        due = [
            entry
            for entry in self._paths.collections
            if entry.collection.is_source
            and not entry.fault
            and (
                self._is_read_otherwise()
                or entry.name in self._refreshed
                or rules.source_is_due(entry.collection, state.cursors.get(entry.name), now, self._settings)
            )
        ]
        names, pending = {entry.name for entry in due}, []
        for source_id in sorted(state.ids("item")):
            value = state.sources[source_id]
            if value.get("summary_pending"):
                pending.append(source_id)
            elif read_collection(value) not in names:
                self._counts.add("unchanged")
        return due, pending

    def _read_source(self, named: NamedCollection, owners: frozenset[str], pools: WorkerPools) -> None:
        def summarise(source_id: str, reason: Change) -> None:
            pools.summarise(self._summarise_page, source_id, reason)

        open_source = self._dependencies.open_source
        if open_source is None:
            raise RuntimeError("a run with sources needs a way to open them")
        parts = ItemParts(
            self._settings,
            self._store,
            self._copies,
            self._dependencies.reader,
            self._counts,
            self._clock,
            owners,
            summarise,
            lambda: self._interrupts.is_stopping,
        )
        ignore_cursor = self._is_read_otherwise()
        self._source_problems |= SourceSync(named, parts).read(open_source, ignore_cursor=ignore_cursor)
        self._observer.finished(named.name)

    def _summarise_item(self, source_id: str) -> None:
        """Summarise an item that an earlier run left without a summary, unless this run did or removed it."""
        record = self._store.state.item(source_id)
        if record is not None and record.summary_pending:
            self._summarise_page(source_id, "pending")
        else:
            self._observer.finished(source_id)

    # Files

    def _process_file(self, path: str, seen: FileSeen) -> None:
        try:
            reading = self._reader.read(path, seen)
            self._counts.add("bytes_read", seen.size_bytes)
        except OSError as fault:
            self._fail(path, f"cannot be read: {fault.strerror or fault}")
            return
        except UnreadableDocument as fault:
            if fault.is_passing:
                self._fail(path, str(fault))
                return
            if self._store.state.file(path) is not None:  # It was a source, and is not one any more.
                self._store.remove(path)
                self._counts.add("removed")
            self._skip(path, seen, str(fault))
        else:
            self._apply_file(path, seen, reading)
        self._observer.finished(path)

    def _apply_file(self, path: str, seen: FileSeen, reading: Reading) -> None:
        record = self._store.state.file(path)
        text_hash = hash_reading(reading)
        if record is not None and not rules.file_needs_summary(record, text_hash):
            self._store.put(rules.file_touched(record, seen))
            self._counts.add("unchanged")
            return
        if path in self._store.state.skipped:
            self._store.unskip(path)
        fresh = FileRecord(path, text_hash, "", True, self._clock.now(), *seen)
        summary = self._summarise(path, reading)
        if summary is not None:
            self._store.put(rules.add_summary(fresh, summary, self._clock.now()))
        elif (after := rules.file_summary_failed(record, fresh)) != record:
            self._store.put(after)
        if record is None:
            self._counts.add("added")
        elif record.content_hash != text_hash or summary is not None:
            self._counts.add("changed")

    def _skip(self, path: str, seen: FileSeen, reason: str) -> None:
        """Note that a file is not a source. The report lists the file once, and again when the reason changes."""
        known = self._store.state.skipped.get(path)
        if known is None or known["reason"] != reason:
            self._counts.note_skipped(path, reason)
        self._store.skip(path, seen, reason)

    def _fail(self, source_id: str, reason: str) -> None:
        logger.info("source failed", extra={"source": source_id, "reason": reason})
        self._counts.add("failed")
        self._counts.note_problem(source_id, reason)
        self._observer.finished(source_id)

    # URLs

    def _process_url(self, url: str, collection: str, reason: Reason, pools: WorkerPools) -> None:
        """Fetch in this thread; a summary is written in another thread."""
        record = self._store.state.url(url)
        if record is not None and reason != "due":
            pools.summarise_last(self._summarise_page, url, "pending")
            return
        try:
            # Without the copy, "not modified" would leave a page without text forever.
            known = record if record is not None and self._copies.exists(url) else None
            answer = self._fetch(url, known)  # sync-25
        except PageFault as fault:
            if record is not None:  # Without a record, the next run tries it again.
                self._store.put(rules.url_failed(record, fault, self._clock.now(), self._settings))
            self._fail(url, fault.reason)
            return
        if isinstance(answer, FetchedPage):
            self._apply_page(url, collection, record, answer, pools)
        elif answer is not None and record is not None:
            self._apply_not_modified(record, pools)
        elif answer is not None:
            self._fail(url, "its server says that nothing changed since a request that was never made")

    def _fetch(self, url: str, known: UrlRecord | None) -> FetchedPage | NotModified | None:
        """Fetch a page with the known validators. Return None while the host pauses. Raises PageFault."""
        host = read_host(url, url)
        until = self._store.state.pauses.get(host)
        if until is not None and rules.is_paused(parse_time(until), self._clock.now()):
            self._fail(url, f"its server asked for a pause until {until}")
            return None
        try:
            pages = self._dependencies.pages
            if known is None:
                return pages.fetch(url, etag=None, last_modified=None)
            return pages.fetch(url, etag=known.etag, last_modified=known.last_modified, validated_at=known.validated_at)
        except PageFault as fault:
            if fault.retry_after_seconds:
                now = self._clock.now()
                self._store.note_pause(host, rules.pause_until(now, fault.retry_after_seconds))
            raise

    def _apply_not_modified(self, record: UrlRecord, pools: WorkerPools) -> None:
        self._store.put(rules.url_not_modified(record, self._clock.now(), self._settings))
        self._counts.add("not_modified")
        if record.summary_pending:
            pools.summarise_last(self._summarise_page, record.source_id, "pending")  # sync-27
        else:
            self._counts.add("unchanged")
            self._observer.finished(record.source_id)

    def _apply_page(
        self, url: str, collection: str, record: UrlRecord | None, page: FetchedPage, pools: WorkerPools
    ) -> None:
        reading = dataclasses.replace(page.reading, text=self._copies.write(url, page.reading.text))
        text_hash, now = hash_reading(reading), self._clock.now()
        seen = PageSeen(
            text_hash, page.etag, page.last_modified, page.validated_at, reading.title, dict(reading.metadata)
        )
        if record is None:
            first = rules.url_after_first_fetch(url, seen, now, self._settings)
            after = dataclasses.replace(first, collection=collection)
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
            # After HTTP 200 a failed summary makes the next check earlier.
            self._store.put(rules.url_summary_failed(record, self._clock.now(), self._settings))
        self._observer.finished(url)

    def _summarise_copy(self, url: str) -> bool:
        """Summarise the copy on disk, without a request; on failure the record stays unchanged."""  # sync-33, sync-34
        record = self._store.state.page(url)
        reading = self._copies.read_page(record) if record is not None else None
        if record is None or reading is None:
            self._counts.note_problem(url, "pending: its copy is gone; fetched again when it is due")
            return False
        summary = self._summarise(url, reading)
        if summary is not None:
            # After a kill, the copy may be newer than its record.
            described = dataclasses.replace(record, content_hash=hash_reading(reading))
            self._store.put(rules.add_summary(described, summary, self._clock.now()))
        return summary is not None

    # Summaries

    def _summarise(self, source_id: str, reading: Reading) -> str | None:
        """Return the summary; None if there is none now. Blank text has a blank summary, without a model call."""
        if not reading.text.strip():
            self._counts.note_problem(source_id, "skipped: it holds no text")
            return ""
        if self._gate.is_closed:
            self._counts.note_problem(source_id, "pending: the model cannot be reached")
            return None
        try:
            summary = self._summariser.summarise(source_id, describe_reading(reading)).strip()
        except errors.ModelError as fault:
            self._gate.note_failure(fault)
            self._counts.note_problem(source_id, f"pending: {fault.message} {fault.explanation}")
            return None
        self._gate.note_success()
        if not summary:
            self._counts.note_problem(source_id, "pending: the summary was empty")
        return summary or None
