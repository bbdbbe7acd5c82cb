"""SyncService: keep the index of a project in line with its sources, and the KB with the index."""

import contextlib
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
from pair.clock import Clock, SystemClock
from pair.engine.summary import peek
from pair.kb.open import DEFAULT_KB, blob_store, document_loader, open_kb
from pair.settings import Settings
from pair.sync import report
from pair.sync.contract import SyncObserver
from pair.sync.discover import SyncPaths
from pair.sync.pages import WebPages
from pair.sync.report import SourceStatus, SyncPlan, SyncReport, SyncStatus
from pair.sync.run import SyncDependencies, SyncRun
from pair.sync.scheduling import Ticker, Watcher
from pair.sync.source_text import FileTextReader, SyncedDocuments
from pair.sync.state import LlmsFile
from pair.sync.store import read_signature

if TYPE_CHECKING:
    from pair.kb.kb import KnowledgeBase


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
        paths, documents, since = self.places, document_loader(), None
        # What is stored is read before the run, so that a rollback during it is noticed.
        head, version, address = None, None, ""
        if kb is not None:
            since = kb.versions.current_number() if resume else None
        else:
            with contextlib.closing(blob_store(self.settings.engine.store, self.settings, self.clock)) as store:
                with contextlib.suppress(errors.StorageError):
                    head = peek(store, self.kb_id)
                    version = head.stored_version if head is not None else ""
                address = store.address
        with contextlib.ExitStack() as stack:
            pages = WebPages(self.settings.kb, paths.links_file, self.clock)
            stack.callback(pages.close)
            dependencies = SyncDependencies(
                lambda: self._open_summariser(stack), pages, documents, self.clock, self.observer
            )
            report = SyncRun(self.settings.kb, paths, dependencies).run(wait=wait, refresh=refresh)
        if kb is not None:
            return kb.maintenance.reconcile(resume=resume, since=since).complete_report(report)
        mark = paths.cache.with_name(f".{paths.cache.name}.stored")
        in_line = f"{address}\n{read_signature(paths.cache)}\n"
        with contextlib.suppress(OSError, ValueError):
            if mark.read_text(encoding="utf-8") == f"{in_line}{version}\n":
                return report  # neither side changed since they were brought in line: the engine need not be loaded
        if resume and version is not None:
            since = head.number if head is not None else 0
        with open_kb(self.kb_id, settings=self.settings, sources=self) as opened:
            done = opened.maintenance.reconcile(resume=resume, since=since)
            if paths.cache.exists() and not done.held_at:
                with files.storage_errors():
                    files.write_atomically(mark, f"{in_line}{done.seen_version}\n".encode())
        return done.complete_report(report)

    def sync_in_background(self) -> SyncReport:
        """Sync without waiting for another sync, and leave a KB as it is that was rolled back."""
        return self.sync(wait=False, resume=False)

    def read_texts(self) -> SyncedDocuments:
        """Return what was synced, as last saved. Raises E102."""
        return self._read_texts()[1]

    def _read_texts(self) -> tuple[str, SyncedDocuments]:
        """Return the signature first: what is saved after it is read again."""
        places, reader = self.places, self.reader
        return read_signature(places.cache), SyncedDocuments(places, reader)

    def current_texts(self) -> SyncedDocuments:
        """Return what was synced, read again only if it was saved since. Raises E102."""
        known = self._known
        if known is None or known[0] != read_signature(self.places.cache):
            known = self._known = self._read_texts()
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
            from pair.ai.summariser import ExtractiveSummariser  # noqa: PLC0415 - only where something changed

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
