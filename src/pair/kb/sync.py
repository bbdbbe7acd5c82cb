"""Keeping the sources of a project in line with its index, and the engine with both."""

import contextlib
import importlib.util
import itertools
import json
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
    from pair.kb.kb import ReconcileReport
    from pair.web.browser import BrowserRenderer


class SilentSyncObserver:
    """For callers that want the report only."""

    def say(self, text: str) -> None:
        pass

    def planned(self, total: int) -> None:
        pass

    def finished(self, source_id: str) -> None:
        pass


@dataclass
class SyncService:
    """Keeps the sources of a project in line with its index, under one set of settings."""

    settings: Settings
    observer: SyncObserver = field(default_factory=SilentSyncObserver)
    clock: Clock = field(default_factory=SystemClock)
    kb_id: str = DEFAULT_KB

    def run(self, *, wait: bool = True, refresh: str | None = None) -> SyncReport:
        """One run. Raises E101 rather than wait when told so, E102, E104, E010."""
        with contextlib.ExitStack() as held:
            shop = SyncDependencies(
                summariser=self._summariser(held),
                pages=held.enter_context(
                    contextlib.closing(_PagesOnDemand(self.settings.kb, self.places.links_file, self.clock))
                ),
                documents=document_loader(),
                clock=self.clock,
                observer=self.observer,
            )
            return SyncRun(self.settings.kb, self.places, shop).run(wait=wait, refresh=refresh)

    def sync(self, *, refresh: str | None = None) -> SyncReport:
        """One run, and the engine brought in line with it. Raises E236 when it was rolled back meanwhile.

        `refresh`: check URLs that match this pattern now, whatever their next check; "*" for all.
        """
        began = self._stored_number()
        return self._synced(self.run(refresh=refresh), resume=True, since=began)

    def sync_in_background(self) -> SyncReport:
        """The same, for those who come again: waits for nobody, and leaves a KB as it is that was rolled back."""
        return self._synced(self.run(wait=False), resume=False, since=None)

    def _synced(self, report: SyncReport, *, resume: bool, since: int | None) -> SyncReport:
        done = self._bring_engine_in_line(resume=resume, since=since)
        return report if done is None else done.complete_report(report)

    def _bring_engine_in_line(self, *, resume: bool, since: int | None) -> "ReconcileReport | None":
        """None when nothing changed on either side since the last time: that is told without loading the engine."""
        store = blob_store(self.settings.engine.store, self.settings, self.clock)
        mark = self.places.cache.with_name(f".{self.places.cache.name}.stored")
        saved, head = _signature(self.places.cache), store.get(self._manifest_key)
        with contextlib.suppress(OSError, ValueError):
            if mark.read_text(encoding="utf-8") == _in_line(store, saved, head.version if head else ""):
                return None
        with open_kb(self.kb_id, settings=self.settings, store=store, sources=self.sources()) as kb:
            done = kb.reconcile(resume=resume, since=since)
            if self.places.cache.exists() and not done.held_at:
                with files.storage_errors():
                    files.write_atomically(mark, _in_line(store, saved, done.seen_version).encode())
        return done

    def _stored_number(self) -> int | None:
        """The version that is stored now, told without loading the engine; None when that cannot be told."""
        store = blob_store(self.settings.engine.store, self.settings, self.clock)
        with contextlib.closing(store), contextlib.suppress(errors.StorageError, ValueError, KeyError, TypeError):
            head = store.get(self._manifest_key)
            return int(json.loads(head.data)["version"]) if head is not None else 0
        return None

    @property
    def _manifest_key(self) -> str:
        return f"{self.kb_id}.duckdb.manifest.json"

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
        """How each source stands."""
        return report.list_source_statuses(self.places)

    def watch(self, stop: threading.Event, after_run: Callable[[SyncReport], None]) -> None:
        """Run now, whenever a source changes, and every tick, until told to stop."""
        from pair.sync.watch import Watcher  # noqa: PLC0415 - see the module's first lines

        watcher = Watcher(self.places.sources_dir, self.places.links_file, stop, self.clock)
        self.ticker(lambda: after_run(self.sync_in_background()), watcher.wait).loop()

    def sources(self) -> "_Sources":
        """The synced sources, for the engine."""
        return _Sources(self)

    def ticker(self, run: Callable[[], object], wait: Callable[[float], bool]) -> Ticker:
        tick_seconds = self.settings.kb.runtime_refresh_tick_seconds
        return Ticker(run, wait, self._say_failed, self.clock, tick_seconds)

    @property
    def places(self) -> SyncPaths:
        """Raises E401 for places that are in each other's way."""
        policy = self.settings.kb
        _check_places(self.settings)
        return SyncPaths(
            sources_dir=files.expand_path(policy.sources_dir),
            links_file=files.expand_path(policy.links_file_path),
            index=files.expand_path(policy.index_path),
            cache=files.expand_path(policy.index_cache_path),
            page_copies=files.expand_path(policy.web_fetch_cache_dir),
            is_sources_dir_named="kb.sources_dir" in self.settings.named,
            is_links_file_named="kb.links_file_path" in self.settings.named,
            llms=_llms_file(policy),
        )

    def _say_failed(self, fault: Exception) -> None:
        self.observer.say(f"sync failed, trying again next tick: {fault}")

    def _summariser(self, held: contextlib.ExitStack) -> Summariser:
        if not self.settings.ai.base_url:
            return ExtractiveSummariser()
        from pair.ai.openai import OpenAiSummariser  # noqa: PLC0415 - see the module's first lines

        summariser = OpenAiSummariser(self.settings.ai)
        held.callback(summariser.close)
        return summariser


def _llms_file(policy: SyncSettings) -> LlmsFile | None:
    if not policy.llms_txt_path:
        return None
    return LlmsFile(files.expand_path(policy.llms_txt_path), files.expand_path(policy.sources_dir))


def _check_places(settings: Settings) -> None:
    """Raises E401 for two settings that name the same place, and for a state, index or page that would be a source."""
    policy = settings.kb
    named = {
        "kb.links_file_path": policy.links_file_path,
        "kb.index_path": policy.index_path,
        "kb.index_cache_path": policy.index_cache_path,
        "kb.web_fetch_cache_dir": policy.web_fetch_cache_dir,
        "kb.llms_txt_path": policy.llms_txt_path,
    }
    places = {name: _resolve_place(files.expand_path(value)) for name, value in named.items() if value}
    for first, second in itertools.combinations(places, 2):
        if places[first] & places[second]:
            raise _refuse_place(settings, second, f"names the same place as {first}")
    folder = Path(os.path.realpath(files.expand_path(policy.sources_dir)))
    for name in ("kb.index_path", "kb.index_cache_path", "kb.web_fetch_cache_dir"):
        if any(_is_seen_in(folder, place) for place in places.get(name, ())):
            raise _refuse_place(settings, name, "lies inside kb.sources_dir, so that it would become a source")


def _resolve_place(path: Path) -> set[Path]:
    """Return where a file is, and where a link to it is."""
    return {Path(os.path.realpath(path)), Path(os.path.realpath(path.parent), path.name)}


def _is_seen_in(folder: Path, place: Path) -> bool:
    """Whether a sync of the folder would come across this place: it does not look at hidden files and folders."""
    if not place.is_relative_to(folder):
        return False
    return not any(part.startswith(".") for part in place.relative_to(folder).parts)


def _refuse_place(settings: Settings, name: str, reason: str) -> errors.UsageError:
    return errors.settings_invalid(settings.places.get(name, name), f"{name}: {reason}. Nothing was written")


def _signature(cache: Path) -> str:
    """Of the saved state: another one when it was saved again."""
    seen = cache.stat() if cache.exists() else None
    return f"{seen.st_ino} {seen.st_size} {seen.st_mtime_ns}" if seen else "none"


def _in_line(store: "BlobStore", saved: str, stored: str) -> str:
    """What is noted once both sides agree: the saved state, and the stored KB by what its store calls the manifest."""
    return f"{store.address}\n{saved}\n{stored}\n"


@dataclass
class _Sources:
    """Sync, as `KnowledgeBase` sees it."""

    desk: SyncService
    _known: tuple[str, SyncedDocuments] | None = None

    def run(self, *, wait: bool) -> SyncReport:
        return self.desk.run(wait=wait)

    def texts(self) -> SyncedDocuments:
        """Raises E102."""
        places = self.desk.places
        try:
            return SyncedDocuments(places, self.desk.reader)
        except ValueError as fault:
            raise errors.sync_state_unreadable(str(places.cache), str(fault), str(places.cache)) from fault

    def known(self) -> SyncedDocuments:
        signature = _signature(self.desk.places.cache)
        known = self._known
        if known is None or known[0] != signature:
            known = self._known = signature, self.texts()
        return known[1]


class _PagesOnDemand:
    """Loads the network and the text extraction with the first page, if there is one."""

    def __init__(self, policy: SyncSettings, links_file: Path, clock: Clock) -> None:
        self._policy = policy
        self._links_file = links_file
        self._addresses: dict[str, str] = {}
        self._clock = clock
        self._lock = threading.Lock()
        self._held = contextlib.ExitStack()
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

    def close(self) -> None:
        self._held.close()

    def _load(self) -> Pages:
        from pair.sync.pages import WebPages  # noqa: PLC0415 - see the module's first lines
        from pair.web.pages import PageClient  # noqa: PLC0415

        policy = self._policy
        client = PageClient(
            timeout_seconds=policy.web_fetch_timeout_seconds,
            max_bytes=policy.max_source_bytes,
            allow_private_addresses=policy.allow_private_addresses,
            clock=self._clock,
        )
        self._held.callback(client.close)
        if policy.web_fetch_renderer == "http":
            return WebPages(client, None, _text_of_page)
        renderer = _browser(policy)
        self._held.callback(renderer.close)
        return WebPages(client, renderer, _text_of_page)


def _text_of_page(content_type: str, charset: str | None, body: bytes) -> str:
    """Loaded while the next pages are on their way."""
    from pair.sync.page_text import extract_text  # noqa: PLC0415 - see the package's first lines

    return extract_text(content_type, charset, body)


def _browser(policy: SyncSettings) -> "BrowserRenderer":
    if importlib.util.find_spec("playwright") is None:
        raise errors.settings_invalid(
            "kb.web_fetch_renderer", "browser needs an extra", hints=["pip install 'pair-kb[browser]'"]
        )
    from pair.web.browser import BrowserRenderer  # noqa: PLC0415 - see the module's first lines

    return BrowserRenderer(
        timeout_seconds=policy.web_fetch_timeout_seconds,
        max_bytes=policy.max_source_bytes,
        allow_private_addresses=policy.allow_private_addresses,
        executable_path=None,
    )
