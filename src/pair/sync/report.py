"""What a run did, what a run would do and why, and how the sources stand."""

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from pair import files
from pair.clock import Clock
from pair.sync import rules
from pair.sync.contract import UnreadableDocument
from pair.sync.discover import FoundFiles, SyncPaths, choose_urls, classify_missing, discover, find_gone
from pair.sync.rules import Reason, SyncSettings
from pair.sync.source_text import FileTextReader, PageCache, content_hash
from pair.sync.state import SyncState, format_time
from pair.sync.store import read_state
from pair.text.characters import estimate_tokens

Count = Literal[
    "added", "changed", "removed", "unchanged", "fetched", "not_modified", "failed", "model_calls", "bytes_read"
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
    """Documents that the search engine added."""
    unstored: int = 0
    """Documents that the search engine removed."""
    held_at: int = 0
    """The version that the search engine was rolled back to, and was left at; 0 when it followed."""

    @property
    def did_nothing(self) -> bool:
        return not (self.added or self.changed or self.removed or self.fetched or self.not_modified or self.failed)

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {
            "problems": _name_reasons("source", self.problems),
            "skipped": _name_reasons("path", self.skipped),
            "errors": list(self.errors),
        }


def _name_reasons(name: str, reasons: tuple[tuple[str, str], ...]) -> list[dict[str, str]]:
    """Return pairs of a source and a reason as JSON objects. `name`: what the source is called there."""
    return [{name: source, "reason": reason} for source, reason in reasons]


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
    tokens: int = 0

    def counts(self) -> dict[Reason, int]:
        """Return how many sources have each reason, most work first."""
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
        }


@dataclass(frozen=True)
class Planner:
    """What a plan is made with. `calls_for`: how many times a model would be asked about a text."""

    settings: SyncSettings
    paths: SyncPaths
    reader: FileTextReader
    clock: Clock
    calls_for: Callable[[str], int]


def make_plan(planner: Planner, refresh: str | None = None) -> SyncPlan:
    """Read files that look changed, to tell a change from a touch; fetch and write nothing. Raises E102, E104, E010."""
    with files.storage_errors():
        state = read_state(planner.paths.cache)
        discovered = classify_missing(discover(planner.paths), planner.paths, state)
        sources, skipped, dropped = _plan_files(planner, state, discovered.files)
        sources += _plan_urls(planner, state, discovered.urls, choose_urls(discovered, refresh))
        asked = [source for source in sources if source.model_calls]
        return SyncPlan(
            sources=tuple(sources),
            removed=tuple(sorted(dropped | find_gone(discovered, state))),
            skipped=tuple(sorted(skipped.items())),
            errors=discovered.faults,
            model_calls=sum(source.model_calls for source in asked),
            tokens=sum(source.tokens for source in asked),
        )


def _plan_files(
    planner: Planner, state: SyncState, listing: FoundFiles | None
) -> tuple[list[PlannedSource], dict[str, str], set[str]]:
    """Return what to do about files, which are no sources and why, and which of those were sources until now."""
    planned: list[PlannedSource] = []
    dropped: set[str] = set()
    skipped = listing.skipped | listing.unreadable if listing else {}
    for path, seen in sorted(listing.files.items() if listing else ()):
        reason = state.skipped[path]["reason"] if state.is_skipped(path, seen.size_bytes, seen.mtime_ns) else ""
        if reason and not planner.reader.may_read_now(path, reason, seen.size_bytes):
            skipped[path] = reason
        elif not reason and state.file_is_settled(path, seen.size_bytes, seen.mtime_ns):
            planned.append(PlannedSource(path, "unchanged"))
        else:
            try:
                text = planner.reader.text_of(path, seen)
            except UnreadableDocument as fault:
                skipped[path] = str(fault)
                dropped |= {path} & state.sources.keys()
            except OSError as fault:
                skipped[path] = f"cannot be read: {files.describe_os_error(fault)}"
            else:
                record = state.file(path)
                if rules.file_needs_summary(record, content_hash(text)):
                    reason, calls = rules.file_reason(record, seen), planner.calls_for(text)
                    planned.append(PlannedSource(path, reason, estimate_tokens(text), calls))
                else:
                    planned.append(PlannedSource(path, "unchanged"))
    return planned, skipped, dropped


def _plan_urls(
    planner: Planner, state: SyncState, urls: list[str] | None, refreshed: frozenset[str]
) -> list[PlannedSource]:
    """Only its server knows what a page will say: the last copy stands for it, or a short page."""
    copies, now = PageCache(planner.paths.page_copies), planner.clock.now()
    planned = []
    for url in sorted(urls or ()):
        record = state.url(url)
        if record is not None:
            record = rules.reschedule_url(record, state.interval_seconds, planner.settings)
        reason = rules.url_reason(record, now, planner.settings, refresh=url in refreshed)
        copy = copies.read(url) if reason in {"pending", "due"} else None
        calls = planner.calls_for(copy or "a page") if reason != "unchanged" else 0
        planned.append(PlannedSource(url, reason, estimate_tokens(copy) if copy else 0, calls))
    return planned


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
        return asdict(self) | {
            "pending": _name_reasons("source", self.pending),
            "failing": _name_reasons("source", self.failing),
            "skipped": _name_reasons("path", self.skipped),
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
    seen_at: str | None = None
    """When it was last read or fetched."""
    next_check_at: str | None = None
    """When a URL is due; files are looked at with every run."""
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
        kind: Literal["file", "url"] = "url" if source_id.startswith(("http://", "https://")) else "file"
        statuses.append(SourceStatus(source_id, kind, "failing", reason))
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
        indexed_at = str(value.get("last_indexed_at") or "") or None
        return SourceStatus(source_id, "file", *state_and_reason, indexed_at)
    fetched_at, next_check_at = format_time(record.last_fetched_at), format_time(record.next_check_at)
    return SourceStatus(source_id, "url", *state_and_reason, fetched_at, next_check_at, record.fetch_status)


def read_status(paths: SyncPaths) -> SyncStatus:
    """Raises E102, E010."""
    with files.storage_errors():
        state = read_state(paths.cache)
    urls = [record for url in sorted(state.ids("url")) if (record := state.url(url)) is not None]
    pending = sorted(source_id for source_id, value in state.sources.items() if value.get("summary_pending"))
    failing = {source_id: reason for source_id, reason in state.problems.items() if source_id not in pending}
    failing |= {record.source_id: record.problem for record in urls if record.fetch_status in {"timeout", "error"}}
    return SyncStatus(
        files=len(state.ids("file")),
        urls=len(urls),
        pending=tuple((source_id, _explain_pending(state, source_id)) for source_id in pending),
        failing=tuple(sorted(failing.items())),
        skipped=tuple(sorted((path, value["reason"]) for path, value in state.skipped.items())),
        fetch_statuses=dict(Counter(record.fetch_status for record in urls)),
        next_check_at=format_time(min(record.next_check_at for record in urls)) if urls else None,
    )


def _explain_pending(state: SyncState, source_id: str) -> str:
    has_summary = bool(state.sources[source_id]["summary_text"])
    consequence = "the old one is shown until then" if has_summary else "it is not in the index until then"
    reason = state.problems.get(source_id, "its summary could not be written").removeprefix("pending: ")
    return f"{reason}; {consequence}"
