"""What one run did, counted, and what a run would do."""

import threading
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from pair.sync.rules import Reason

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

    def problem(self, source_id: str, reason: str) -> None:
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
