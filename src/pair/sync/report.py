"""What a run did, what a run would do and why, and how the sources stand."""

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from pair import errors, files
from pair.clock import Clock
from pair.sync import rules, store
from pair.sync.contract import UnreadableDocument
from pair.sync.discover import Discovered, FoundFiles, SyncPaths, choose_urls, classify_missing, discover
from pair.sync.rules import Reason
from pair.sync.source_text import FileTextReader, PageCache, content_hash
from pair.sync.state import SyncState, format_time
from pair.text.characters import estimate_tokens

Count = Literal[
    "added",
    "changed",
    "removed",
    "unchanged",
    "fetched",
    "not_modified",
    "failed",
    "pending",
    "model_calls",
    "bytes_read",
]


@dataclass(frozen=True)
class SyncReport:
    """Sources by what became of them; `pending` ones still want a summary."""

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
    """Source and reason, for each that failed or is pending."""
    skipped: tuple[tuple[str, str], ...] = ()
    """Path and reason, for each file that is no source."""
    errors: tuple[str, ...] = ()
    """What kept a half of the sources from being looked at."""
    stored: int = 0
    """Documents that the search engine took up."""
    unstored: int = 0
    """Documents that it let go."""
    held_at: int = 0
    """The version that the search engine was rolled back to, and was left at; 0 when it followed."""

    @property
    def did_nothing(self) -> bool:
        return not (self.added or self.changed or self.removed or self.fetched or self.not_modified or self.failed)

    def to_json(self) -> dict[str, Any]:
        named = {"problems": ("source", "reason"), "skipped": ("path", "reason")}
        value: dict[str, Any] = asdict(self) | {"errors": list(self.errors)}
        for key, names in named.items():
            value[key] = [dict(zip(names, pair, strict=True)) for pair in getattr(self, key)]
        return value


class SyncCounts:
    """Counts from many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[Count, int] = {}
        self._problems: dict[str, str] = {}

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

    def report(self, pending: int, seconds: float, skipped: dict[str, str], faults: tuple[str, ...]) -> SyncReport:
        return SyncReport(
            **(self._counts | {"pending": pending}),
            seconds=round(seconds, 3),
            problems=tuple(sorted(self._problems.items())),
            skipped=tuple(sorted(skipped.items())),
            errors=faults,
        )


@dataclass(frozen=True)
class PlannedSource:
    source_id: str
    reason: Reason
    tokens: int = 0
    """Estimate of what a model would read; 0 when none is called, or when only the server knows."""
    model_calls: int = 0


@dataclass(frozen=True)
class SyncPlan:
    """What a run would do about each source, without doing it."""

    sources: tuple[PlannedSource, ...] = ()
    removed: tuple[str, ...] = ()
    skipped: tuple[tuple[str, str], ...] = ()
    errors: tuple[str, ...] = ()
    model_calls: int = 0
    tokens: int = field(default=0)

    def counts(self) -> dict[Reason, int]:
        """How many sources there are of each kind, most work first."""
        found = Counter(source.reason for source in self.sources)
        return {reason: found[reason] for reason in get_args(Reason) if found[reason]}

    def to_json(self) -> dict[str, Any]:
        return {
            "dry_run": True,
            "sources": [{"source": s.source_id, "reason": s.reason, "tokens": s.tokens} for s in self.sources],
            "removed": list(self.removed),
            "skipped": [{"path": path, "reason": reason} for path, reason in self.skipped],
            "errors": list(self.errors),
            "model_calls": self.model_calls,
            "tokens": self.tokens,
        }


CallsFor = Callable[[str], int]
"""How many times a model would be asked about this text."""


@dataclass(frozen=True)
class Planner:
    """What a plan is made with."""

    policy: rules.SyncSettings
    places: SyncPaths
    reader: FileTextReader
    clock: Clock
    calls_for: CallsFor


def make_plan(planner: Planner, refresh: str | None = None) -> SyncPlan:
    """Reads files that look changed, to tell a change from a touch. Raises E102, E104, E010."""
    places, reader, calls_for = planner.places, planner.reader, planner.calls_for
    with files.storage_errors():
        state = _read_state(places)
        found = classify_missing(discover(places), places, state)
        sources, skipped, dropped = _planned_files(reader, state, found.files, calls_for)
        sources += _planned_urls(planner, state, found.urls, choose_urls(found, refresh))
        asked = [source for source in sources if source.model_calls]
        return SyncPlan(
            sources=tuple(sources),
            removed=tuple(sorted(_gone(state, found) | dropped)),
            skipped=tuple(sorted(skipped.items())),
            errors=found.faults,
            model_calls=sum(source.model_calls for source in asked),
            tokens=sum(source.tokens for source in asked),
        )


def _read_state(places: SyncPaths) -> SyncState:
    try:
        return store.read(places.cache).state
    except ValueError as fault:
        raise errors.sync_state_unreadable(str(places.cache), str(fault), str(places.cache)) from fault


def _planned_files(
    reader: FileTextReader, state: SyncState, found: FoundFiles | None, calls_for: CallsFor
) -> tuple[list[PlannedSource], dict[str, str], set[str]]:
    """What to do about files, which of them are no sources and why, and which of those were sources until now."""
    planned: list[PlannedSource] = []
    dropped: set[str] = set()
    skipped = found.skipped | found.unreadable if found else {}
    for path, seen in sorted(found.files.items() if found else ()):
        reason = state.skipped[path]["reason"] if state.is_skipped(path, seen.size_bytes, seen.mtime_ns) else ""
        if reason and not reader.may_read_now(path, reason, seen.size_bytes):
            skipped[path] = reason
        elif not reason and state.file_is_settled(path, seen.size_bytes, seen.mtime_ns):
            planned.append(PlannedSource(path, "unchanged"))
        else:
            try:
                planned.append(_planned_file(reader, path, seen, state, calls_for))
            except UnreadableDocument as fault:
                skipped[path] = str(fault)
                dropped |= {path} & state.sources.keys()
            except OSError as fault:
                skipped[path] = f"cannot be read: {files.describe_os_error(fault)}"
    return planned, skipped, dropped


def _planned_file(
    reader: FileTextReader, path: str, seen: rules.FileSeen, state: SyncState, calls_for: CallsFor
) -> PlannedSource:
    record = state.file(path)
    content = reader.text_of(path, seen)
    if record is not None and not rules.file_needs_summary(record, content_hash(content)):
        return PlannedSource(path, "unchanged")
    return PlannedSource(path, rules.file_reason(record, seen), estimate_tokens(content), calls_for(content))


def _planned_urls(
    planner: Planner, state: SyncState, urls: list[str] | None, refreshed: frozenset[str]
) -> list[PlannedSource]:
    """What a page will say is known to its server alone: the last copy stands for it, or a short page."""
    copies, now, calls_for = PageCache(planner.places.page_copies), planner.clock.now(), planner.calls_for
    planned = []
    for url in sorted(urls or ()):
        record = state.url(url)
        if record is not None:
            record = rules.reschedule_url(record, state.interval_seconds, planner.policy)
        reason = rules.url_reason(record, now, planner.policy, refresh=url in refreshed)
        copy = copies.read(url) if reason in {"pending", "due"} else None
        calls = calls_for(copy or "a page") if reason != "unchanged" else 0
        planned.append(PlannedSource(url, reason, estimate_tokens(copy) if copy else 0, calls))
    return planned


def _gone(state: SyncState, found: Discovered) -> set[str]:
    gone: set[str] = set()
    if found.files is not None:
        gone |= {path for path in state.ids("file") if not found.files.may_hold(path)}
    if found.urls is not None:
        gone |= state.ids("url").difference(found.urls)
    return gone


@dataclass(frozen=True)
class SyncStatus:
    """How the sources stand, as last saved."""

    files: int
    urls: int
    pending: tuple[tuple[str, str], ...]
    """Source, and why it still wants a summary."""
    failing: tuple[tuple[str, str], ...]
    """Source, and why it could not be fetched or read when it was last tried."""
    skipped: tuple[tuple[str, str], ...]
    fetch_statuses: dict[str, int]
    next_check_at: str | None
    """When the first URL is due."""

    def to_json(self) -> dict[str, Any]:
        return {
            "files": self.files,
            "urls": self.urls,
            "pending": [{"source": source, "reason": reason} for source, reason in self.pending],
            "failing": [{"source": source, "reason": reason} for source, reason in self.failing],
            "skipped": [{"path": path, "reason": reason} for path, reason in self.skipped],
            "fetch_statuses": self.fetch_statuses,
            "next_check_at": self.next_check_at,
        }


SourceState = Literal["current", "pending", "failing", "skipped"]


@dataclass(frozen=True)
class SourceStatus:
    """How one source stands, as last saved."""

    source_id: str
    kind: Literal["file", "url"]
    state: SourceState
    reason: str
    """Why it is not current."""
    seen_at: str | None
    """When it was last read or fetched."""
    next_check_at: str | None
    """When a URL is due; files are looked at with every run."""
    fetch_status: str | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def list_source_statuses(places: SyncPaths) -> list[SourceStatus]:
    """All that is known of, by id. Raises E102, E010."""
    with files.storage_errors():
        state = _read_state(places)
    known = [_source_status(state, source_id) for source_id in state.sources]
    untold = {source: reason for source, reason in state.problems.items() if source not in state.sources}
    known += [SourceStatus(each, _kind(each), "failing", why, None, None, None) for each, why in untold.items()]
    known += [
        SourceStatus(path, "file", "skipped", str(seen["reason"]), None, None, None)
        for path, seen in state.skipped.items()
        if path not in untold
    ]
    return sorted(known, key=lambda each: each.source_id)


def _source_status(state: SyncState, source_id: str) -> SourceStatus:
    value = state.sources[source_id]
    record = state.url(source_id)
    told: tuple[SourceState, str] = "current", ""
    if value.get("summary_pending"):
        told = "pending", _why_pending(state, source_id)
    elif record is not None and record.fetch_status in {"timeout", "error"}:
        told = "failing", record.problem
    elif source_id in state.problems:
        told = "failing", state.problems[source_id]
    indexed_at = str(value.get("last_indexed_at") or "") or None
    if record is None:
        return SourceStatus(source_id, "file", *told, indexed_at, None, None)
    seen_at, next_at = format_time(record.last_fetched_at), format_time(record.next_check_at)
    return SourceStatus(source_id, "url", *told, seen_at, next_at, record.fetch_status)


def _kind(source_id: str) -> Literal["file", "url"]:
    return "url" if source_id.startswith(("http://", "https://")) else "file"


def read_status(places: SyncPaths) -> SyncStatus:
    """Raises E102, E010."""
    with files.storage_errors():
        state = _read_state(places)
    urls = [record for url in sorted(state.ids("url")) if (record := state.url(url)) is not None]
    pending = sorted(source_id for source_id, value in state.sources.items() if value.get("summary_pending"))
    failing = {source_id: reason for source_id, reason in state.problems.items() if source_id not in pending}
    failing |= {record.source_id: record.problem for record in urls if record.fetch_status in {"timeout", "error"}}
    return SyncStatus(
        files=len(state.ids("file")),
        urls=len(urls),
        pending=tuple((source_id, _why_pending(state, source_id)) for source_id in pending),
        failing=tuple(sorted(failing.items())),
        skipped=tuple(sorted((path, value["reason"]) for path, value in state.skipped.items())),
        fetch_statuses=dict(Counter(record.fetch_status for record in urls)),
        next_check_at=format_time(min(record.next_check_at for record in urls)) if urls else None,
    )


def _why_pending(state: SyncState, source_id: str) -> str:
    has_old_summary = bool(state.sources[source_id]["summary_text"])
    kept = "the old one is shown until then" if has_old_summary else "it is not in the index until then"
    reason = state.problems.get(source_id, "its summary could not be written").removeprefix("pending: ")
    return f"{reason}; {kept}"
