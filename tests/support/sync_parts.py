"""Small real parts for a sync: a manual clock, a scripted summariser, scripted pages, and a project folder."""

import dataclasses
import datetime
import hashlib
import json
import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pair import errors
from pair.network import PageFault
from pair.reading.contract import Reader, Reading
from pair.reading.process import ReaderProcesses
from pair.sync.contract import FetchedPage, NotModified
from pair.sync.discover import SyncPaths
from pair.sync.report import SyncReport
from pair.sync.rules import SyncSettings
from pair.sync.run import SyncDependencies, SyncRun
from pair.testing.clock import NOON, ManualClock


def later(seconds: float, than: datetime.datetime = NOON) -> datetime.datetime:
    return than + datetime.timedelta(seconds=seconds)


def nothing(*_: object) -> None:
    """Do nothing; a default callback."""


def summary_of(source_id: str, text: str) -> str:
    """Return the reply of the scripted summariser: two lines around a blank one, different for each text."""
    return f"About {source_id}.\n\nText {hashlib.sha256(text.encode()).hexdigest()[:12]}."


UNREACHABLE = errors.model_unreachable("http://localhost:11434", "connection refused")
UNUSABLE = errors.model_reply_unusable("http://localhost:11434", "it was cut off")


class ScriptedSummariser:
    """A summariser that counts requests. It can fail always or for one source, or return a given answer."""

    def __init__(self) -> None:
        self.uses_model = True
        self._lock = threading.Lock()
        self.calls: list[str] = []
        self.texts: dict[str, str] = {}
        self.always: errors.ModelError | None = None
        self.faults: dict[str, errors.ModelError] = {}
        self.answers: dict[str, str] = {}
        self.on_call: Callable[[str], None] = nothing

    @property
    def model_calls(self) -> int:
        return len(self.calls) if self.uses_model else 0

    def summarise(self, source_id: str, text: str) -> str:
        with self._lock:
            self.calls.append(source_id)
            self.texts[source_id] = text
        self.on_call(source_id)
        fault = self.always or self.faults.get(source_id)
        if fault is not None:
            raise fault
        return self.answers.get(source_id, summary_of(source_id, text))


@dataclass(frozen=True)
class Page:
    """The answer of a server."""

    text: str = ""
    etag: str | None = None
    last_modified: str | None = None
    failure: PageFault | None = None

    def failing(self, status: str = "error", retry_after_seconds: float | None = None) -> "Page":
        kind: Any = status
        fault = PageFault(f"scripted {status}", kind=kind, retry_after_seconds=retry_after_seconds)
        return dataclasses.replace(self, failure=fault)

    def matches(self, etag: str | None, last_modified: str | None) -> bool:
        """Compare validators as a server does: by the entity tag if there is one, else by the date."""
        if etag is not None:
            return etag == self.etag
        return last_modified is not None and last_modified == self.last_modified


@dataclass(frozen=True, order=True)
class Request:
    url: str
    etag: str | None = None
    last_modified: str | None = None


class ScriptedPages:
    """Pages from a dictionary, with conditional requests and a record of them. A missing page is a 404."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.pages: dict[str, Page] = {}
        self.requests: list[Request] = []
        self.always_not_modified: set[str] = set()
        self.on_request: Callable[[str], None] = nothing

    def fetch(
        self, url: str, *, etag: str | None, last_modified: str | None, validated_at: str | None = None
    ) -> FetchedPage | NotModified:
        with self._lock:
            self.requests.append(Request(url, etag, last_modified))
        self.on_request(url)
        page = self.pages.get(url, Page().failing("error"))
        if page.failure is not None:
            raise page.failure
        if url in self.always_not_modified or page.matches(etag, last_modified):
            return NotModified()
        return FetchedPage(Reading(page.text), page.etag, page.last_modified, len(page.text.encode()))

    @property
    def urls(self) -> list[str]:
        return sorted(request.url for request in self.requests)


class RecordingObserver:
    """An observer that records all messages."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.totals: list[int] = []
        self.done: list[str] = []
        self.on_say: Callable[[str], None] = nothing
        self.on_planned: Callable[[int], None] = nothing
        self.on_finished: Callable[[str], None] = nothing

    def say(self, text: str) -> None:
        self.said.append(text)
        self.on_say(text)

    def planned(self, total: int, phase: str = "reading") -> None:
        self.totals.append(total)
        self.on_planned(total)

    def finished(self, source_id: str) -> None:
        self.done.append(source_id)
        self.on_finished(source_id)


class Project:
    """A folder with sources and links, the parts of a sync, and the results."""

    def __init__(self, folder: Path, policy: SyncSettings | None = None) -> None:
        self.folder = folder
        self.policy = policy or SyncSettings()
        self.places = places_in(folder)
        self.places.sources_dir.mkdir(parents=True)
        self.clock = ManualClock()
        self.summariser = ScriptedSummariser()
        self.pages = ScriptedPages()
        self.observer = RecordingObserver()
        self.reader: Reader = ReaderProcesses()
        self._written = 0

    # The sources

    def path(self, name: str) -> Path:
        return self.places.sources_dir / name

    def write(self, name: str, content: str | bytes) -> Path:
        """Write a file with a distinct time, because two writes within one tick of the file system look the same."""
        path = self.path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return self.touch(name)

    def touch(self, name: str) -> Path:
        self._written += 1
        instant_ns = 1_700_000_000_000_000_000 + self._written * 1_000_000_007
        os.utime(self.path(name), ns=(instant_ns, instant_ns))
        return self.path(name)

    def write_unseen(self, name: str, content: str | bytes) -> None:
        """Write other content with the same size and time."""
        path = self.path(name)
        before = path.stat()
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert path.stat().st_size == before.st_size

    def link(self, *urls: str) -> None:
        self.places.links_file.write_text("".join(f"{url}\n" for url in urls), encoding="utf-8")

    def serve(self, url: str, page: Page) -> str:
        """Serve a page, and append its URL to the links file."""
        self.pages.pages[url] = page
        links = self.places.links_file.read_text(encoding="utf-8") if self.places.links_file.exists() else ""
        if url not in links.splitlines():
            self.places.links_file.write_text(f"{links}{url}\n", encoding="utf-8")
        return url

    # The run

    def workshop(self) -> SyncDependencies:
        return SyncDependencies(lambda: self.summariser, self.pages, self.reader, self.clock, self.observer)

    def sync_run(self) -> SyncRun:
        return SyncRun(self.policy, self.places, self.workshop())

    def run(self, *, after: float = 0, wait: bool = True, refresh: str | None = None) -> SyncReport:
        """Run once after this many seconds. Record the calls, requests and events of this run only."""
        if after:
            self.clock.advance(after)
        self.summariser.calls.clear()
        self.pages.requests.clear()
        self.observer.done.clear()
        self.observer.totals.clear()
        return self.sync_run().run(wait=wait, refresh=refresh)

    # The results

    @property
    def state(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(self.places.cache.read_bytes())
        return value

    @property
    def records(self) -> dict[str, dict[str, Any]]:
        sources: dict[str, dict[str, Any]] = self.state["sources"]
        return sources

    def record(self, source_id: str) -> dict[str, Any]:
        return self.records[source_id]

    @property
    def index(self) -> str:
        return self.places.index.read_bytes().decode()

    def copy_of(self, url: str) -> Path:
        return self.places.page_copies / hashlib.sha256(url.encode()).hexdigest()

    @property
    def made(self) -> dict[str, tuple[int, int, bytes]]:
        """Return every file that sync wrote, except its lock, with the fields that change when it is rewritten."""
        return {
            path.relative_to(self.folder).as_posix(): (path.stat().st_ino, path.stat().st_mtime_ns, path.read_bytes())
            for path in made_files(self.places)
        }


def places_in(folder: Path) -> SyncPaths:
    home = folder / "home"
    return SyncPaths(
        sources_dir=folder / "knowledge",
        links_file=folder / "links.txt",
        index=home / "index.txt",
        cache=home / "index-cache.json",
        page_copies=home / "web-cache",
    )


def made_files(places: SyncPaths) -> list[Path]:
    found = sorted(path for path in places.cache.parent.rglob("*") if path.is_file())
    return [path for path in found if path != places.lock]


def hash_of(text: str) -> str:
    """Return the hash of a normalised text."""
    return hashlib.sha256(text.encode()).hexdigest()


# ── simulated kills ────────────────────────────────────────────────────────────────────────────────


def copy_as_if_killed(places: SyncPaths, target: Path) -> None:
    """Copy all files of a sync at one moment, while its threads run: the state after a kill."""
    for _ in range(1000):
        if target.exists():
            shutil.rmtree(target)
        target.mkdir(parents=True)
        try:
            before = _signature(places)
            for path in made_files(places):
                copy = target / path.relative_to(places.cache.parent)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, copy)
            if _signature(places) == before:
                return
        except FileNotFoundError:
            continue
    raise AssertionError("the files never stood still")


def _signature(places: SyncPaths) -> list[tuple[str, int, int, int]]:
    seen = [(str(path), path.stat()) for path in made_files(places)]
    return [(name, stat.st_ino, stat.st_size, stat.st_mtime_ns) for name, stat in seen]


def restore(copy: Path, places: SyncPaths) -> None:
    """Restore the files that `copy_as_if_killed` copied."""
    for path in made_files(places):
        path.unlink()
    for path in copy.rglob("*"):
        if path.is_file():
            place = places.cache.parent / path.relative_to(copy)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, place)
