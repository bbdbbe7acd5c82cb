"""SyncService: keep the index of a project in line with its sources, and the KB with the index."""

import contextlib
import importlib.util
import itertools
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pair import errors, files
from pair.ai import prompts as model_rules
from pair.ai.contract import Summariser
from pair.ai.summariser import ExtractiveSummariser
from pair.clock import Clock, SystemClock
from pair.engine.summary import peek
from pair.kb.open import DEFAULT_KB, blob_store, document_loader, open_kb
from pair.settings import Settings
from pair.sync import report
from pair.sync.contract import FetchedPage, NotModified, Pages, SyncObserver
from pair.sync.discover import SyncPaths, find_addresses
from pair.sync.index_file import LlmsFile
from pair.sync.report import SourceStatus, SyncPlan, SyncReport, SyncStatus
from pair.sync.rules import SyncSettings
from pair.sync.run import SyncDependencies, SyncRun
from pair.sync.scheduling import Ticker
from pair.sync.source_text import FileTextReader, SyncedDocuments

if TYPE_CHECKING:
    from pair.blobs.contract import BlobStore
    from pair.kb.kb import KnowledgeBase
    from pair.kb.maintenance import ReconcileReport
    from pair.web.browser import BrowserRenderer


class SilentSyncObserver:
    """Observes nothing, for callers that want the report only."""

    def say(self, text: str) -> None:
        pass

    def planned(self, total: int) -> None:
        pass

    def finished(self, source_id: str) -> None:
        pass


@dataclass
class SyncService:
    """Syncs the sources of a project into its index and its KB, under one set of settings."""

    settings: Settings
    observer: SyncObserver = field(default_factory=SilentSyncObserver)
    clock: Clock = field(default_factory=SystemClock)
    kb_id: str = DEFAULT_KB
    _known: tuple[str, SyncedDocuments] | None = field(default=None, init=False, repr=False)

    def sync(
        self,
        kb: "KnowledgeBase | None" = None,
        *,
        wait: bool = True,
        refresh: str | None = None,
        resume: bool = True,
    ) -> SyncReport:
        """Run once, and bring the KB in line with the result. Raises E236 when it was rolled back meanwhile.

        `kb`: the open KB; without one it is opened if something changed. `wait`: for another sync, rather than raise
        E101. `refresh`: check URLs that match this pattern now; "*" for all. `resume`: also bring a KB forward that was
        rolled back before.
        """
        began = None
        if resume:
            began = self._peek_number() if kb is None else kb.versions.current_number()
        report = self.run(wait=wait, refresh=refresh)
        done = self._reconcile(resume, began) if kb is None else kb.maintenance.reconcile(resume=resume, since=began)
        return report if done is None else done.complete_report(report)

    def sync_in_background(self) -> SyncReport:
        """Sync without waiting for another sync, and leave a KB as it is that was rolled back."""
        return self.sync(wait=False, resume=False)

    def run(self, *, wait: bool = True, refresh: str | None = None) -> SyncReport:
        """Bring the index in line with the sources. Raises E101 unless it may wait, E102, E104, E010."""
        with contextlib.ExitStack() as stack:
            dependencies = SyncDependencies(
                summariser=self._open_summariser(stack),
                pages=_LazyPages(self.settings.kb, self.places.links_file, self.clock, stack),
                documents=document_loader(),
                clock=self.clock,
                observer=self.observer,
            )
            return SyncRun(self.settings.kb, self.places, dependencies).run(wait=wait, refresh=refresh)

    def _open_store(self) -> "BlobStore":
        return blob_store(self.settings.engine.store, self.settings, self.clock)

    def _peek_number(self) -> int | None:
        """Return the number of the stored version without loading the engine; None when it cannot be read."""
        with contextlib.closing(self._open_store()) as store, contextlib.suppress(errors.StorageError):
            head = peek(store, self.kb_id)
            return head.number if head is not None else 0
        return None

    def _reconcile(self, resume: bool, since: int | None) -> "ReconcileReport | None":
        """Bring the KB in line; None, without loading the engine, when neither side changed since the last time."""
        store, state = self._open_store(), self.places.cache
        mark = state.with_name(f".{state.name}.stored")
        saved = _read_signature(state)
        head = peek(store, self.kb_id)
        in_line = f"{store.address}\n{saved}\n"
        with contextlib.suppress(OSError, ValueError):
            if mark.read_text(encoding="utf-8") == f"{in_line}{head.stored_version if head else ''}\n":
                return None
        with open_kb(self.kb_id, settings=self.settings, store=store, sources=self) as kb:
            done = kb.maintenance.reconcile(resume=resume, since=since)
            if state.exists() and not done.held_at:
                with files.storage_errors():
                    files.write_atomically(mark, f"{in_line}{done.seen_version}\n".encode())
        return done

    def read_texts(self) -> SyncedDocuments:
        """Return what was synced, as last saved. Raises E102."""
        places = self.places
        try:
            return SyncedDocuments(places, self.reader)
        except ValueError as fault:
            raise errors.sync_state_unreadable(str(places.cache), str(fault), str(places.cache)) from fault

    def current_texts(self) -> SyncedDocuments:
        """Return what was synced, read again only if it was saved since. Raises E102."""
        signature, known = _read_signature(self.places.cache), self._known
        if known is None or known[0] != signature:
            known = self._known = signature, self.read_texts()
        return known[1]

    def plan(self, *, refresh: str | None = None) -> SyncPlan:
        model = self.settings.ai

        def calls_for(text: str) -> int:
            return model_rules.calls_for(text, model.max_input_tokens) if model.base_url else 0

        planner = report.Planner(self.settings.kb, self.places, self.reader, self.clock, calls_for)
        return report.make_plan(planner, refresh)

    @property
    def reader(self) -> FileTextReader:
        return FileTextReader(self.places.sources_dir, self.settings.kb.max_source_bytes, document_loader())

    def status(self) -> SyncStatus:
        return report.read_status(self.places)

    def source_statuses(self) -> list[SourceStatus]:
        """Return the status of each source."""
        return report.list_source_statuses(self.places)

    def watch(self, stop: threading.Event, after_run: Callable[[SyncReport], None]) -> None:
        """Sync now, whenever a source changes, and every tick, until `stop` is set."""
        from pair.sync.watch import Watcher  # noqa: PLC0415 - only where it is used

        watcher = Watcher(self.places.sources_dir, self.places.links_file, stop, self.clock)
        Ticker(
            lambda: after_run(self.sync_in_background()),
            watcher.wait,
            lambda fault: self.observer.say(f"sync failed, trying again next tick: {fault}"),
            self.clock,
            self.settings.kb.runtime_refresh_tick_seconds,
        ).loop()

    @property
    def places(self) -> SyncPaths:
        """Raises E401 for paths that are in each other's way."""
        settings = self.settings.kb
        _check_places(self.settings)
        sources_dir = files.expand_path(settings.sources_dir)
        return SyncPaths(
            sources_dir=sources_dir,
            links_file=files.expand_path(settings.links_file_path),
            index=files.expand_path(settings.index_path),
            cache=files.expand_path(settings.index_cache_path),
            page_copies=files.expand_path(settings.web_fetch_cache_dir),
            is_sources_dir_named="kb.sources_dir" in self.settings.named,
            is_links_file_named="kb.links_file_path" in self.settings.named,
            llms=LlmsFile(files.expand_path(settings.llms_txt_path), sources_dir) if settings.llms_txt_path else None,
        )

    def _open_summariser(self, stack: contextlib.ExitStack) -> Summariser:
        if not self.settings.ai.base_url:
            return ExtractiveSummariser()
        from pair.ai.openai import OpenAiSummariser  # noqa: PLC0415 - only where it is used

        summariser = OpenAiSummariser(self.settings.ai)
        stack.callback(summariser.close)
        return summariser


def _check_places(settings: Settings) -> None:
    """Raises E401 for two settings that name the same place, and for a state, index or page that would be a source."""

    def refuse(name: str, reason: str) -> errors.UsageError:
        return errors.settings_invalid(settings.places.get(name, name), f"{name}: {reason}. Nothing was written")

    names = ("links_file_path", "index_path", "index_cache_path", "web_fetch_cache_dir", "llms_txt_path")
    values = {f"kb.{name}": getattr(settings.kb, name) for name in names}
    places = {name: _resolve_place(files.expand_path(value)) for name, value in values.items() if value}
    for first, second in itertools.combinations(places, 2):
        if places[first] & places[second]:
            raise refuse(second, f"names the same place as {first}")
    folder = Path(os.path.realpath(files.expand_path(settings.kb.sources_dir)))
    for name in ("kb.index_path", "kb.index_cache_path", "kb.web_fetch_cache_dir"):
        if any(_is_seen_in(folder, place) for place in places.get(name, ())):
            raise refuse(name, "lies inside kb.sources_dir, so that it would become a source")


def _resolve_place(path: Path) -> set[Path]:
    """Return where a file is, and where a link to it is."""
    return {Path(os.path.realpath(path)), Path(os.path.realpath(path.parent), path.name)}


def _is_seen_in(folder: Path, place: Path) -> bool:
    """Whether a sync of the folder would come across this place: it does not look at hidden files and folders."""
    if not place.is_relative_to(folder):
        return False
    return not any(part.startswith(".") for part in place.relative_to(folder).parts)


def _read_signature(state: Path) -> str:
    """Return what changes whenever the state is saved."""
    seen = state.stat() if state.exists() else None
    return f"{seen.st_ino} {seen.st_size} {seen.st_mtime_ns}" if seen else "none"


class _LazyPages:
    """Fetches pages. Loads the network and the text extraction with the first one."""

    def __init__(self, settings: SyncSettings, links_file: Path, clock: Clock, stack: contextlib.ExitStack) -> None:
        """`stack` closes what was opened."""
        self._settings = settings
        self._links_file = links_file
        self._addresses: dict[str, str] = {}
        self._clock = clock
        self._lock = threading.Lock()
        self._stack = stack
        self._pages: Pages | None = None

    def fetch(
        self, url: str, *, etag: str | None, last_modified: str | None, validated_at: str | None = None
    ) -> FetchedPage | NotModified:
        with self._lock:
            if self._pages is None:
                self._pages = self._load()
                with contextlib.suppress(OSError):
                    self._addresses = find_addresses(self._links_file)
        address = self._addresses.get(url, url)  # a source is known without the credentials that its page needs
        return self._pages.fetch(address, etag=etag, last_modified=last_modified, validated_at=validated_at)

    def _load(self) -> Pages:
        from pair.sync.pages import WebPages  # noqa: PLC0415 - loads the network
        from pair.web.pages import PageClient  # noqa: PLC0415

        settings = self._settings
        client = PageClient(
            timeout_seconds=settings.web_fetch_timeout_seconds,
            max_bytes=settings.max_source_bytes,
            allow_private_addresses=settings.allow_private_addresses,
            clock=self._clock,
        )
        self._stack.callback(client.close)
        renderer = None
        if settings.web_fetch_renderer != "http":
            renderer = _open_browser(settings)
            self._stack.callback(renderer.close)
        return WebPages(client, renderer, _extract_text)


def _extract_text(content_type: str, charset: str | None, body: bytes) -> str:
    from pair.sync.page_text import extract_text  # noqa: PLC0415 - loads while the next pages are on their way

    return extract_text(content_type, charset, body)


def _open_browser(settings: SyncSettings) -> "BrowserRenderer":
    if importlib.util.find_spec("playwright") is None:
        raise errors.settings_invalid(
            "kb.web_fetch_renderer", "browser needs an extra", hints=["pip install 'pair-kb[browser]'"]
        )
    from pair.web.browser import BrowserRenderer  # noqa: PLC0415 - loads playwright

    return BrowserRenderer(
        timeout_seconds=settings.web_fetch_timeout_seconds,
        max_bytes=settings.max_source_bytes,
        allow_private_addresses=settings.allow_private_addresses,
        executable_path=None,
    )
