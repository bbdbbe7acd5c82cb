"""Reports: the result of a run, the plan of a run, and the status of each source."""

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, get_args

from pair import files
from pair.clock import Clock
from pair.reading.contract import UnreadableDocument
from pair.reading.process import explain_extra
from pair.reading.reader import CONVERTED, find_kind
from pair.sync import rules
from pair.sync.discover import FoundFiles, SyncPaths, choose_refreshed, classify_missing, discover, find_gone
from pair.sync.rules import FileSeen, Reason, SyncSettings
from pair.sync.source_text import FileTextReader, PageCache, describe_reading, hash_reading
from pair.sync.state import SourceType, SyncState, format_time, holds_text, parse_time, read_collection
from pair.sync.store import read_state
from pair.text.characters import estimate_tokens

_CONVERTED_BYTES_PER_WORD = 20
"""Approximate length of a documentation page; a PDF of the same size may be longer."""

Count = Literal[
    "added", "changed", "removed", "unchanged", "fetched", "not_modified", "failed", "model_calls", "bytes_read"
]


@dataclass(frozen=True)
class SyncReport:
    """The result of a run: sources by outcome; `pending` ones still need a summary."""

    added: int = 0
    changed: int = 0
    removed: int = 0
    unchanged: int = 0
    fetched: int = 0
    not_modified: int = 0
    failed: int = 0
    pending: int = 0
    model_calls: int = 0
    bytes_read: int = 0
    seconds: float = 0.0
    problems: tuple[tuple[str, str], ...] = ()
    """Source and reason, for each source that failed or is pending."""
    skipped: tuple[tuple[str, str], ...] = ()
    """Path and reason, for each file that is not a source."""
    newly_skipped: tuple[tuple[str, str], ...] = ()
    """The skipped files that this run found; not part of the JSON."""
    errors: tuple[str, ...] = ()
    """The reasons why folders or links files could not be read."""
    stored: int = 0
    """Documents that the search engine added."""
    unstored: int = 0
    """Documents that the search engine removed."""
    held_at: int = 0
    """The version that a rollback restored and this run did not change; 0 if the run changed the KB."""

    @property
    def did_nothing(self) -> bool:
        return not (self.added or self.changed or self.removed or self.fetched or self.not_modified or self.failed)

    def add(self, other: "SyncReport") -> "SyncReport":
        """Return the sum of the reports of two knowledge bases."""
        both = {item.name: getattr(self, item.name) + getattr(other, item.name) for item in fields(self)}
        held_at, seconds = self.held_at or other.held_at, round(both["seconds"], 3)
        return SyncReport(**(both | {"held_at": held_at, "seconds": seconds}))

    def to_json(self) -> dict[str, Any]:
        value = asdict(self) | {
            "problems": _name_reasons("source", self.problems),
            "skipped": _name_reasons("path", self.skipped),
            "errors": list(self.errors),
        }
        del value["newly_skipped"]
        return value


def _name_reasons(name: str, reasons: tuple[tuple[str, str], ...]) -> list[dict[str, str]]:
    """Return pairs of a source and a reason as JSON objects. `name`: the JSON key of the source."""
    return [{name: source, "reason": reason} for source, reason in reasons]


class SyncCounts:
    """The counts of a run, from many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[Count, int] = {}
        self._problems: dict[str, str] = {}
        self._skipped: dict[str, str] = {}

    def add(self, count: Count, number: int = 1) -> None:
        with self._lock:
            self._counts[count] = self._counts.get(count, 0) + number

    @property
    def problems(self) -> dict[str, str]:
        with self._lock:
            return dict(self._problems)

    def note_problem(self, source_id: str, reason: str) -> None:
        with self._lock:
            self._problems[source_id] = reason

    def note_skipped(self, path: str, reason: str) -> None:
        with self._lock:
            self._skipped[path] = reason

    def report(self, pending: int, seconds: float, skipped: dict[str, str], faults: tuple[str, ...]) -> SyncReport:
        return SyncReport(
            **(self._counts | {"pending": pending}),
            seconds=round(seconds, 3),
            problems=tuple(sorted(self._problems.items())),
            skipped=tuple(sorted(skipped.items())),
            newly_skipped=tuple(sorted(self._skipped.items())),
            errors=faults,
        )


@dataclass(frozen=True)
class PlannedSource:
    source_id: str
    reason: Reason
    tokens: int = 0
    """Estimated number of tokens that a model would read; 0 without a model, or if only the server knows."""
    model_calls: int = 0


@dataclass(frozen=True)
class SyncPlan:
    """The plan of a run, with the action for each source."""

    sources: tuple[PlannedSource, ...] = ()
    removed: tuple[str, ...] = ()
    skipped: tuple[tuple[str, str], ...] = ()
    errors: tuple[str, ...] = ()
    model_calls: int = 0
    tokens: int = 0
    excluded: tuple[tuple[str, int], ...] = ()
    """Rules of collections, each with the number of files and folders that it excluded."""

    def add(self, other: "SyncPlan") -> "SyncPlan":
        """Return the plan of two knowledge bases together."""
        return SyncPlan(**{item.name: getattr(self, item.name) + getattr(other, item.name) for item in fields(self)})

    def counts(self) -> dict[Reason, int]:
        """Return the number of sources by reason, most work first."""
        counts = Counter(source.reason for source in self.sources)
        return {reason: counts[reason] for reason in get_args(Reason) if counts[reason]}

    def to_json(self) -> dict[str, Any]:
        return {
            "dry_run": True,
            "sources": [{"source": s.source_id, "reason": s.reason, "tokens": s.tokens} for s in self.sources],
            "removed": list(self.removed),
            "skipped": _name_reasons("path", self.skipped),
            "errors": list(self.errors),
            "model_calls": self.model_calls,
            "tokens": self.tokens,
        } | ({"excluded": [{"rule": rule, "entries": count} for rule, count in self.excluded]} if self.excluded else {})


@dataclass(frozen=True)
class Planner:
    """The inputs of a plan. `calls_for`: returns the number of model calls for a text."""

    settings: SyncSettings
    paths: SyncPaths
    reader: FileTextReader
    clock: Clock
    calls_for: Callable[[str], int]


def make_plan(planner: Planner, refresh: str | None = None) -> SyncPlan:
    """Plan from sizes, times and hashes of plain text; convert, fetch and write nothing. Raises E102, E104, E010."""
    with files.storage_errors():
        state = read_state(planner.paths.cache)
        discovered = classify_missing(discover(planner.paths), planner.paths, state)
        listing, refreshed = discovered.listing(), choose_refreshed(discovered, planner.paths, refresh)
        sources, skipped, dropped = _plan_files(planner, state, listing)
        sources += _plan_urls(planner, state, list(discovered.owners()), refreshed)
        sources += _plan_items(planner, state, refreshed)
        asked = [source for source in sources if source.model_calls]
        return SyncPlan(
            sources=tuple(sources),
            removed=tuple(sorted(dropped | find_gone(discovered, state))),
            skipped=tuple(sorted(skipped.items())),
            errors=discovered.faults,
            model_calls=sum(source.model_calls for source in asked),
            tokens=sum(source.tokens for source in asked),
            excluded=tuple(listing.excluded.most_common()),
        )


def _plan_files(
    planner: Planner, state: SyncState, listing: FoundFiles
) -> tuple[list[PlannedSource], dict[str, str], set[str]]:
    """Return the plan for files, the non-source files with reasons, and the non-source files that were sources."""
    planned: list[PlannedSource] = []
    dropped: set[str] = set()
    skipped = listing.skipped | listing.unreadable
    for path, seen in sorted(listing.files.items()):
        reason = state.skipped[path]["reason"] if state.is_skipped(path, seen.size_bytes, seen.mtime_ns) else ""
        if reason and not planner.reader.may_read_now(path, reason, seen.size_bytes):
            skipped[path] = reason
        elif not reason and state.file_is_settled(path, *seen):
            planned.append(PlannedSource(path, "unchanged"))
        else:
            try:
                planned.append(_plan_file(planner, state, path, seen))
            except UnreadableDocument as fault:
                skipped[path] = str(fault)
                dropped |= {path} & state.sources.keys()
            except OSError as fault:
                skipped[path] = f"cannot be read: {files.describe_os_error(fault)}"
    return planned, skipped, dropped


def _plan_file(planner: Planner, state: SyncState, path: str, seen: FileSeen) -> PlannedSource:
    """Return the plan for a file that looks new or changed. Raises UnreadableDocument, OSError.

    A PDF, Word document or page is not converted: the length of its text is estimated from its size.
    """
    record, kind = state.file(path), find_kind(path)
    if kind in CONVERTED and seen.size_bytes <= planner.reader.max_bytes and not explain_extra(kind):
        text = "text " * (seen.size_bytes // _CONVERTED_BYTES_PER_WORD + 1)
    else:
        reading = planner.reader.read(path, seen)
        text = describe_reading(reading)
        if not rules.file_needs_summary(record, hash_reading(reading)):
            return PlannedSource(path, "unchanged")
    return PlannedSource(path, rules.file_reason(record, seen), estimate_tokens(text), planner.calls_for(text))


def _plan_urls(planner: Planner, state: SyncState, urls: list[str], refreshed: frozenset[str]) -> list[PlannedSource]:
    """Return the plan for URLs. A page has the size of its last copy; a new page counts as short."""
    copies, now = PageCache(planner.paths.page_copies), planner.clock.now()
    planned = []
    for url in sorted(urls):
        record = state.url(url)
        if record is not None:
            record = rules.reschedule_url(record, state.interval_seconds, planner.settings)
        reason = rules.url_reason(record, now, planner.settings, refresh=url in refreshed)
        text = (copies.read(url) or "") if reason in {"pending", "due"} else ""
        calls = planner.calls_for(text or "a page") if reason != "unchanged" else 0
        planned.append(PlannedSource(url, reason, estimate_tokens(text) if text else 0, calls))
    return planned


def _plan_items(planner: Planner, state: SyncState, refreshed: frozenset[str]) -> list[PlannedSource]:
    """Return the plan for sources, whose events are unknown before they are read, and for their items."""
    planned, now = [], planner.clock.now()
    for entry in planner.paths.collections:
        if entry.collection.is_source and not entry.fault:
            reason: Reason = "new" if entry.name not in state.cursors else "due"
            if entry.name in refreshed or rules.source_is_due(
                entry.collection, state.cursors.get(entry.name), now, planner.settings
            ):
                planned.append(PlannedSource(entry.name, reason))
    copies = PageCache(planner.paths.page_copies)
    for source_id in sorted(state.ids("item")):
        if state.sources[source_id].get("summary_pending"):
            text = copies.read(source_id) or ""
            planned.append(PlannedSource(source_id, "pending", estimate_tokens(text), planner.calls_for(text)))
        else:
            planned.append(PlannedSource(source_id, "unchanged"))
    return planned


@dataclass(frozen=True)
class SyncStatus:
    """The status of all sources, as last saved."""

    files: int
    urls: int
    pending: tuple[tuple[str, str], ...]
    """Sources that need a summary, each with the reason."""
    failing: tuple[tuple[str, str], ...]
    """Sources that could not be fetched or read at the last attempt, each with the reason."""
    skipped: tuple[tuple[str, str], ...]
    fetch_statuses: dict[str, int]
    next_check_at: str | None
    """The time when the first URL or source is due."""
    items: int = 0
    """Number of documents of sources; omitted from the JSON if 0."""
    collections: dict[str, int] = field(default_factory=dict)
    """Number of documents by named collection; omitted from the JSON if empty."""

    def add(self, other: "SyncStatus") -> "SyncStatus":
        """Return the status of two knowledge bases together."""
        checks = [check for check in (self.next_check_at, other.next_check_at) if check]
        names = ("files", "urls", "pending", "failing", "skipped", "items")
        return SyncStatus(
            **{name: getattr(self, name) + getattr(other, name) for name in names},
            fetch_statuses=dict(Counter(self.fetch_statuses) + Counter(other.fetch_statuses)),
            next_check_at=min(checks, key=parse_time, default=None),
            collections=self.collections | other.collections,
        )

    def to_json(self) -> dict[str, Any]:
        value = asdict(self)
        for name in ("items", "collections"):
            if not value[name]:
                del value[name]
        return value | {
            "pending": _name_reasons("source", self.pending),
            "failing": _name_reasons("source", self.failing),
            "skipped": _name_reasons("path", self.skipped),
        }


SourceState = Literal["current", "pending", "failing", "skipped"]


@dataclass(frozen=True)
class SourceStatus:
    """The status of one source, as last saved."""

    source_id: str
    kind: SourceType
    state: SourceState
    reason: str
    """The reason why it is not current."""
    seen_at: str | None = None
    """The time when it was last read or fetched."""
    next_check_at: str | None = None
    """The time when a URL is due; every run checks all files."""
    fetch_status: str | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def list_source_statuses(paths: SyncPaths) -> list[SourceStatus]:
    """Return the status of every known source, by id. Raises E102, E010."""
    with files.storage_errors():
        state = read_state(paths.cache)
    statuses = [_read_source_status(state, source_id) for source_id in state.sources]
    failing = {source_id: reason for source_id, reason in state.problems.items() if source_id not in state.sources}
    for source_id, reason in failing.items():
        kind: SourceType = "url" if source_id.startswith(("http://", "https://")) else "file"
        statuses.append(SourceStatus(source_id, kind, "failing", reason))
    statuses += [
        SourceStatus(name, "item", "failing", str(cursor["problem"]), next_check_at=cursor["next_check_at"])
        for name, cursor in state.cursors.items()
        if cursor.get("problem") and name not in failing
    ]
    statuses += [
        SourceStatus(path, "file", "skipped", str(seen["reason"]))
        for path, seen in state.skipped.items()
        if path not in failing
    ]
    return sorted(statuses, key=lambda status: status.source_id)


def _read_source_status(state: SyncState, source_id: str) -> SourceStatus:
    value = state.sources[source_id]
    record = state.url(source_id)
    state_and_reason: tuple[SourceState, str] = "current", ""
    if value.get("summary_pending"):
        state_and_reason = "pending", _explain_pending(state, source_id)
    elif record is not None and record.fetch_status in {"timeout", "error"}:
        state_and_reason = "failing", record.problem
    elif source_id in state.problems:
        state_and_reason = "failing", state.problems[source_id]
    if record is None:
        seen_at = value.get("item", {}).get("last_fetched_at") or value.get("last_indexed_at")
        return SourceStatus(source_id, value["source_type"], *state_and_reason, str(seen_at or "") or None)
    fetched_at, next_check_at = format_time(record.last_fetched_at), format_time(record.next_check_at)
    return SourceStatus(source_id, "url", *state_and_reason, fetched_at, next_check_at, record.fetch_status)


def read_status(paths: SyncPaths) -> SyncStatus:
    """Return the saved status of all sources. Raises E102, E010."""
    with files.storage_errors():
        state = read_state(paths.cache)
    urls = [record for url in sorted(state.ids("url")) if (record := state.url(url)) is not None]
    pending = sorted(source_id for source_id, value in state.sources.items() if value.get("summary_pending"))
    failing = {source_id: reason for source_id, reason in state.problems.items() if source_id not in pending}
    failing |= {record.source_id: record.problem for record in urls if record.fetch_status in {"timeout", "error"}}
    failing |= {name: str(cursor["problem"]) for name, cursor in state.cursors.items() if cursor.get("problem")}
    checks = [record.next_check_at for record in urls]
    checks += [parse_time(cursor["next_check_at"]) for cursor in state.cursors.values()]
    by_collection = Counter(read_collection(value) for value in state.sources.values() if holds_text(value))
    return SyncStatus(
        files=len(state.ids("file")),
        urls=len(urls),
        pending=tuple((source_id, _explain_pending(state, source_id)) for source_id in pending),
        failing=tuple(sorted(failing.items())),
        skipped=tuple(sorted((path, value["reason"]) for path, value in state.skipped.items())),
        fetch_statuses=dict(Counter(record.fetch_status for record in urls)),
        next_check_at=format_time(min(checks)) if checks else None,
        items=len(state.ids("item")),
        collections={name: by_collection[name] for name in sorted(by_collection) if name},
    )


def _explain_pending(state: SyncState, source_id: str) -> str:
    has_summary = bool(state.sources[source_id]["summary_text"])
    consequence = "the old one is shown until then" if has_summary else "it is not in the index until then"
    reason = state.problems.get(source_id, "its summary could not be written").removeprefix("pending: ")
    return f"{reason}; {consequence}"
