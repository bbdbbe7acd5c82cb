"""What a sync run would do and why, and how things stand; nothing is written and nothing is fetched."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pair import errors, files
from pair.ai.characters import estimate_tokens
from pair.clock import Clock
from pair.sync import rules, store, text
from pair.sync.discovery import Discovered, FoundFiles, Places, discover, judge
from pair.sync.page_copies import PageCopies
from pair.sync.report import PlannedSource, SyncPlan
from pair.sync.state import SyncState, to_text


def plan(places: Places, clock: Clock, *, uses_model: bool) -> SyncPlan:
    """Reads files that look changed, to tell a change from a touch. Raises E102, E010."""
    with files.storage_errors():
        state = _read_state(places)
        found = judge(discover(places), places, state)
        return _plan(places, state, found, clock, uses_model=uses_model)


def _plan(places: Places, state: SyncState, found: Discovered, clock: Clock, *, uses_model: bool) -> SyncPlan:
    sources, skipped = _planned_files(places.sources_dir, state, found.files)
    sources += _planned_urls(places, state, found.urls, clock)
    gone = _gone(state, found)
    asked = [source for source in sources if source.reason != "unchanged"] if uses_model else []
    return SyncPlan(
        sources=tuple(sources),
        removed=tuple(sorted(gone)),
        skipped=tuple(sorted(skipped.items())),
        errors=found.faults,
        model_calls=len(asked),
        tokens=sum(source.tokens for source in asked),
    )


def _read_state(places: Places) -> SyncState:
    try:
        return store.read(places.cache).state
    except ValueError as fault:
        raise errors.sync_state_unreadable(str(places.cache), str(fault), str(places.cache)) from fault


def _planned_files(
    folder: Path, state: SyncState, found: FoundFiles | None
) -> tuple[list[PlannedSource], dict[str, str]]:
    planned: list[PlannedSource] = []
    skipped = found.skipped | found.unreadable if found else {}
    for path, seen in sorted(found.files.items() if found else ()):
        if state.is_skipped(path, seen.size_bytes, seen.mtime_ns):
            skipped[path] = state.skipped[path]["reason"]
        elif state.file_is_settled(path, seen.size_bytes, seen.mtime_ns):
            planned.append(PlannedSource(path, "unchanged"))
        else:
            try:
                planned.append(_planned_file(folder, path, seen, state))
            except OSError as fault:
                skipped[path] = f"cannot be read: {fault.strerror}"
    return planned, skipped


def _planned_file(folder: Path, path: str, seen: rules.FileSeen, state: SyncState) -> PlannedSource:
    record = state.file(path)
    reason = rules.file_reason(record, seen)
    content = text.decode((folder / path).read_bytes())
    if content is None:  # a document, or no text at all: the run will tell
        return PlannedSource(path, reason)
    if record is not None and not rules.file_needs_summary(record, text.content_hash(content)):
        return PlannedSource(path, "unchanged")
    return PlannedSource(path, reason, estimate_tokens(content))


def _planned_urls(places: Places, state: SyncState, urls: list[str] | None, clock: Clock) -> list[PlannedSource]:
    copies, now = PageCopies(places.page_copies), clock.now()
    planned = []
    for url in sorted(urls or ()):
        reason = rules.url_reason(state.url(url), now)
        copy = copies.read(url) if reason in {"pending", "due"} else None
        planned.append(PlannedSource(url, reason, estimate_tokens(copy) if copy else 0))
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
    """URL, and why its last fetch failed."""
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


def status(places: Places) -> SyncStatus:
    """Raises E102, E010."""
    with files.storage_errors():
        state = _read_state(places)
    urls = [record for url in sorted(state.ids("url")) if (record := state.url(url)) is not None]
    pending = sorted(source_id for source_id, value in state.sources.items() if value.get("summary_pending"))
    return SyncStatus(
        files=len(state.ids("file")),
        urls=len(urls),
        pending=tuple((source_id, _why_pending(state, source_id)) for source_id in pending),
        failing=tuple((r.source_id, r.problem) for r in urls if r.fetch_status in {"timeout", "error"}),
        skipped=tuple(sorted((path, value["reason"]) for path, value in state.skipped.items())),
        fetch_statuses=dict(Counter(record.fetch_status for record in urls)),
        next_check_at=to_text(min(record.next_check_at for record in urls)) if urls else None,
    )


def _why_pending(state: SyncState, source_id: str) -> str:
    has_old_summary = bool(state.sources[source_id]["summary_text"])
    kept = "the old one is shown until then" if has_old_summary else "it is not in the index until then"
    return f"its summary could not be written; {kept}"
