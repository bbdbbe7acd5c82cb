"""Shared parts of sync tests: two pages, times, and the actions of a run."""

import threading
from typing import Any

import pytest

from support.sync_parts import UNREACHABLE, UNUSABLE, Project, later, summary_of

URL = "https://example.com/page"
OTHER = "https://other.example/page"
TICK = 300
INTERVAL = 3600
FAULTS = [UNREACHABLE, UNUSABLE]
both_faults = pytest.mark.parametrize("fault", FAULTS, ids=["unreachable", "unusable"])


def text_at(seconds: float) -> str:
    """Return the stored form of the time this many seconds after the clock's start."""
    return later(seconds).isoformat().replace("+00:00", "Z")


def entry(source_id: str, text: str) -> str:
    """Return the entry of the index for a source with this text."""
    return f"{source_id}\n{summary_of(source_id, text)}\n".replace("\n\n", "\n")


def did(project: Project) -> tuple[list[str], list[str]]:
    """Return the sources that the last run summarised, and the URLs that it requested."""
    return sorted(project.summariser.calls), project.pages.urls


def changed_fields(before: dict[str, Any], after: dict[str, Any]) -> set[str]:
    def flat(record: dict[str, Any]) -> dict[str, Any]:
        return {**record, **record.get("url", {}), **record.get("file", {})}

    was, has = flat(before), flat(after)
    return {name for name in was.keys() | has.keys() if was.get(name) != has.get(name)} - {"url", "file"}


def assert_set(event: threading.Event) -> None:
    assert event.wait(60)
