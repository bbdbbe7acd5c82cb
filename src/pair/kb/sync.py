"""SyncService: update the index of a project from its sources, and the KB from the index."""

import contextlib
import functools
import itertools
import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pair import errors, files
from pair.ai import prompts as model_rules
from pair.ai.contract import Summariser
from pair.clock import Clock, SystemClock
from pair.engine.summary import peek
from pair.kb.open import DEFAULT_KB, blob_store, open_kb, open_reader
from pair.reading.process import list_readers
from pair.settings import COLLECTIONS, Settings
from pair.sync import report
from pair.sync.collection import CollectionSettings
from pair.sync.contract import SyncObserver
from pair.sync.discover import NamedCollection, SyncPaths, choose_refreshed, discover
from pair.sync.explain import Explanation, explain
from pair.sync.pages import WebPages
from pair.sync.report import SourceStatus, SyncPlan, SyncReport, SyncStatus
from pair.sync.run import SyncDependencies, SyncRun
from pair.sync.scheduling import Ticker, Watcher
from pair.sync.source_text import FileTextReader, SyncedDocuments, make_file_reader
from pair.sync.state import LlmsFile, holds_text, read_collection
from pair.sync.store import read_signature, read_state
from pair.values import is_kb_id, redact_url

if TYPE_CHECKING:
    from pair.kb.kb import KnowledgeBase
    from pair.sources.contract import Source
    from pair.web.pages import PageClient

_COMMAND_SECONDS = 300.0
"""Default time limit of a command."""
_Result = TypeVar("_Result")


class SilentSyncObserver:
    """An observer that ignores all events, for callers that need only the report."""

    def say(self, text: str) -> None:
        pass

    def planned(self, total: int, phase: str = "reading") -> None:
        pass

    def finished(self, source_id: str) -> None:
        pass


@dataclass
class SyncService:
    """The sync of the sources of a project into its index and its KB."""

    settings: Settings
    observer: SyncObserver = field(default_factory=SilentSyncObserver)
    clock: Clock = field(default_factory=SystemClock)
    kb_id: str = DEFAULT_KB
    is_named_only: bool = False
    """Whether only named collections feed the KB, not the sources folder or the links file."""
    _known: tuple[str, SyncedDocuments] | None = field(default=None, init=False, repr=False)

    def sync(
        self,
        kb: "KnowledgeBase | None" = None,
        *,
        wait: bool = True,
        refresh: str | None = None,
        resume: bool = True,
    ) -> SyncReport:
        """Sync once and update the KB. Raises E236 when the KB is rolled back during the sync.

        `kb`: the open KB; without it, the KB is opened if something changed. `wait`: wait for another sync instead of
        raising E101. `refresh`: check URLs that match this pattern now; "*" for all. `resume`: also update a KB that
        was rolled back before.
        """
        began, paths = self.clock.monotonic(), self.places
        # Read the stored version before the run, so that a rollback during the run is noticed.
        head, version, address = None, None, ""
        since = kb.versions.current_number() if kb is not None and resume else None
        if kb is None:
            with contextlib.closing(blob_store(self.settings.engine.store, self.settings, self.clock)) as store:
                with contextlib.suppress(errors.StorageError):
                    head = peek(store, self.kb_id)
                    version = head.stored_version if head is not None else ""
                address = store.address
        with contextlib.ExitStack() as kept:
            report = self._run(paths, kept, wait=wait, refresh=refresh)
            if kb is not None:
                report = kb.maintenance.reconcile(resume=resume, since=since).complete_report(report)
            else:
                sides = f"{address}\n{read_signature(paths.cache)}\n"
                with contextlib.suppress(OSError, ValueError):
                    if paths.version_file.read_text(encoding="utf-8") == f"{sides}{version}\n":
                        return report  # Neither side changed since the last sync, so the engine is not loaded.
                if resume and version is not None:
                    since = head.number if head is not None else 0
                with open_kb(self.kb_id, settings=self.settings, sources=self) as opened:
                    done = opened.maintenance.reconcile(resume=resume, since=since)
                    if paths.cache.exists() and not done.held_at:
                        with files.storage_errors():
                            files.write_atomically(paths.version_file, f"{sides}{done.seen_version}\n".encode())
                report = done.complete_report(report)
        return replace(report, seconds=round(self.clock.monotonic() - began, 3))

    def _run(self, paths: SyncPaths, kept: contextlib.ExitStack, *, wait: bool, refresh: str | None) -> SyncReport:
        """Update the index from the sources. `kept`: ends the time for which readings are kept."""
        with contextlib.ExitStack() as stack:

            def start_work() -> Summariser:
                kept.enter_context(reader.keep_readings())  # The engine will read the same documents.
                return self._open_summariser(stack)

            opener, reader, readers = SourceOpener(self.settings, self.clock, stack), open_reader(), list_readers()
            pages = WebPages(self.settings.kb, paths.links_files, self.clock, reader)
            stack.callback(pages.close)
            dependencies = SyncDependencies(
                start_work,
                pages,
                reader,
                self.clock,
                self.observer,
                open_source=opener.open,
                readers=readers,
            )
            return SyncRun(self.settings.kb, paths, dependencies).run(wait=wait, refresh=refresh)

    def read_texts(self) -> SyncedDocuments:
        """Return the synced documents as last saved. Raises E102."""
        return SyncedDocuments(self.places, lambda: self.reader)

    def current_texts(self) -> SyncedDocuments:
        """Return the synced documents; read them again only if they were saved since. Raises E102."""
        known, places = self._known, self.places
        signature = read_signature(places.cache)  # Read first, to notice a later save.
        if known is None or known[0] != signature:
            known = self._known = signature, SyncedDocuments(places, lambda: self.reader)
        return known[1]

    def plan(self, *, refresh: str | None = None) -> SyncPlan:
        model = self.settings.ai

        def calls_for(text: str) -> int:
            return model_rules.calls_for(text, model.max_input_tokens) if model.base_url else 0

        planner = report.Planner(self.settings.kb, self.places, self.reader, self.clock, calls_for)
        return report.make_plan(planner, refresh)

    def matches(self, pattern: str) -> bool:
        """Return whether a URL or a source of this KB matches the pattern of a refresh."""
        places = self.places
        with files.storage_errors():
            try:
                return bool(choose_refreshed(discover(places), places, pattern))
            except errors.NotFoundError:
                return False

    @property
    def reader(self) -> FileTextReader:
        return make_file_reader(self.places, self.settings.kb, open_reader())

    @property
    def places(self) -> SyncPaths:
        """The paths of the sync. Raises E401 for paths that conflict."""
        settings = self.settings.kb
        collections = self._list_collections()
        _check_places(self.settings, collections, is_named_only=self.is_named_only)
        sources_dir = files.expand_path(settings.sources_dir)
        folders = {entry.name: entry.path for entry in collections if entry.collection.path and entry.path is not None}
        llms_path = files.expand_path(settings.llms_txt_path) if settings.llms_txt_path else None
        return SyncPaths(
            sources_dir=sources_dir,
            links_file=files.expand_path(settings.links_file_path),
            index=files.expand_path(settings.index_path),
            cache=files.expand_path(settings.index_cache_path),
            page_copies=files.expand_path(settings.web_fetch_cache_dir),
            is_sources_dir_named="kb.sources_dir" in self.settings.named,
            is_links_file_named="kb.links_file_path" in self.settings.named,
            llms=LlmsFile(llms_path, sources_dir, folders) if llms_path is not None else None,
            collections=collections,
            is_named_only=self.is_named_only,
            own_files=(self.settings.config_path,) if collections and self.settings.config_path is not None else (),
        )

    def _list_collections(self) -> tuple[NamedCollection, ...]:
        """Return the collections that feed this KB. An untrusted collection is reported as a fault, and its documents
        are kept.
        """
        config, found = self.settings.folder_config, []
        ignored = {request.key for request in config.ignored} if config is not None else set()
        for name, collection in self.settings.kb.collections.items():
            if collection.kb != self.kb_id:
                continue
            key = f"{COLLECTIONS}.{name}"
            where, fault, path = self.settings.places.get(key, key), "", None
            if key in ignored:
                fault = f"Cannot sync collection {name}: {where} is not trusted. Review and trust it: pair trust"
            elif collection.path or collection.links:
                path = files.expand_path(collection.path or collection.links)
            found.append(NamedCollection(name, collection, path, where, fault))
        return tuple(found)

    def _open_summariser(self, stack: contextlib.ExitStack) -> Summariser:
        if not self.settings.ai.base_url:
            from pair.ai.summariser import ExtractiveSummariser  # noqa: PLC0415 - needed only when a source changed

            return ExtractiveSummariser()
        from pair.ai.openai import OpenAiSummariser  # noqa: PLC0415 - needed only with a model

        summariser = OpenAiSummariser(self.settings.ai)
        stack.callback(summariser.close)
        return summariser


class SourceOpener:
    """The opener of sources. The network and the stores are loaded with the first source that needs them."""

    def __init__(self, settings: Settings, clock: Clock, opened: contextlib.ExitStack) -> None:
        """`opened`: closes what the sources opened."""
        self._all_settings = settings
        self._settings = settings.kb
        self._clock = clock
        self._lock = threading.Lock()
        self._opened = opened
        self._client: PageClient | None = None

    def open(self, named: NamedCollection) -> "Source":
        """Return the source that a collection is read through. Raises E401 and the errors of a store."""
        given, most_bytes = named.collection, self._settings.max_source_bytes
        if given.kind == "command":
            from pair.sources.command import CommandSource  # noqa: PLC0415 - only where it is used

            seconds = given.timeout_seconds or _COMMAND_SECONDS
            return CommandSource(given.command, Path.cwd(), seconds, most_bytes, self._open_client, self._clock)
        if given.kind == "bucket":
            from pair.sources.bucket import BucketSource  # noqa: PLC0415 - loads the object store

            store = blob_store(given.bucket, self._all_settings, self._clock)
            with self._lock:
                self._opened.callback(store.close)
            return BucketSource(store, "", most_bytes)
        if given.kind == "feed":
            from pair.sources.feed import FeedSource  # noqa: PLC0415 - loads the network

            return FeedSource(given.feed, self._open_client(), most_bytes)
        from pair.sources.site import SiteLimits, SiteSource  # noqa: PLC0415 - loads the network

        limits = {"max_pages": given.max_pages, "max_depth": given.max_depth, "limit_seconds": given.timeout_seconds}
        chosen = SiteLimits(**{name: value for name, value in limits.items() if value is not None})  # type: ignore[arg-type]
        return SiteSource(given.url, self._open_client(), chosen, self._clock)

    def _open_client(self) -> "PageClient":
        with self._lock:
            if self._client is None:
                from pair.web.pages import PageClient  # noqa: PLC0415 - loads the network

                self._client = PageClient(
                    timeout_seconds=self._settings.web_fetch_timeout_seconds,
                    max_bytes=self._settings.max_source_bytes,
                    allow_private_addresses=self._settings.allow_private_addresses,
                    clock=self._clock,
                )
                self._opened.callback(self._client.close)
            return self._client


def _check_places(settings: Settings, collections: Sequence[NamedCollection], *, is_named_only: bool) -> None:
    """Check the paths. Raises E401 for two settings with the same path, and for an output inside the sources."""

    def refuse(name: str, reason: str) -> errors.UsageError:
        where = settings.places.get(name, name)
        subject = "it" if where == name else name
        return errors.settings_invalid(where, f"{subject} {reason}. Nothing was written")

    names = ("links_file_path", "index_path", "index_cache_path", "web_fetch_cache_dir", "llms_txt_path")
    values = {f"kb.{name}": getattr(settings.kb, name) for name in names[is_named_only:]}
    places = {name: _resolve_place(files.expand_path(value)) for name, value in values.items() if value}
    folders = {"kb.sources_dir": settings.kb.sources_dir} if not is_named_only else {}
    for entry in collections:
        if entry.collection.links and entry.path is not None:
            places[f"{COLLECTIONS}.{entry.name}"] = _resolve_place(entry.path)
        elif entry.path is not None:
            folders[f"{COLLECTIONS}.{entry.name}"] = entry.collection.path
    roots = {name: {Path(os.path.realpath(files.expand_path(value)))} for name, value in folders.items()}
    for given in (places, roots):
        for first, second in itertools.combinations(given, 2):
            if given[first] & given[second]:
                raise refuse(second, f"names the same place as {first}")
    outputs = ("kb.index_path", "kb.index_cache_path", "kb.web_fetch_cache_dir")
    for (folder_name, (folder,)), name in itertools.product(roots.items(), outputs):
        if any(_is_seen_in(folder, place) for place in places.get(name, ())):
            raise refuse(name, f"is inside {folder_name}, so it would become a source")


def _resolve_place(path: Path) -> set[Path]:
    """Return the resolved path of a file, and the path of the link to it."""
    return {Path(os.path.realpath(path)), Path(os.path.realpath(path.parent), path.name)}


def _is_seen_in(folder: Path, place: Path) -> bool:
    """Return whether a sync of the folder would read this path; hidden files and folders are skipped."""
    if not place.is_relative_to(folder):
        return False
    return not any(part.startswith(".") for part in place.relative_to(folder).parts)


# ── all knowledge bases of a project ───────────────────────────────────────────────────────────────


def synced_kbs(settings: Settings) -> list[str]:
    """Return the KBs that collections feed, the default one first.

    This includes a KB with a sync state whose last collection was removed.
    """
    cache = files.expand_path(settings.kb.index_cache_path)
    pattern = re.compile(re.escape(cache.stem) + r"-(.+)" + re.escape(cache.suffix))
    names = [path.name for path in cache.parent.iterdir()] if cache.parent.is_dir() else []
    known = {match[1] for name in names if (match := pattern.fullmatch(name)) and is_kb_id(match[1])}
    fed = {collection.kb for collection in settings.kb.collections.values()}
    return [DEFAULT_KB, *sorted((known | fed) - {DEFAULT_KB})]


def sync_service(
    settings: Settings, kb_id: str = DEFAULT_KB, observer: SyncObserver | None = None, clock: Clock | None = None
) -> SyncService:
    """Return the sync of one KB of a project. Each KB except the default has a separate state and index."""
    if kb_id != DEFAULT_KB:
        kb = settings.kb

        def derive(path: str) -> str:
            place = Path(path)
            return str(place.with_name(f"{place.stem}-{kb_id}{place.suffix}")) if path else ""

        own = replace(
            kb,
            index_path=derive(kb.index_path),
            index_cache_path=derive(kb.index_cache_path),
            web_fetch_cache_dir=derive(kb.web_fetch_cache_dir),
            llms_txt_path=derive(kb.llms_txt_path),
        )
        settings = replace(settings, kb=own, named=settings.named - {"kb.sources_dir", "kb.links_file_path"})
    is_named_only = kb_id != DEFAULT_KB
    return SyncService(settings, observer or SilentSyncObserver(), clock or SystemClock(), kb_id, is_named_only)


class ProjectSync:
    """The sync of all KBs of a project, one after the other."""

    def __init__(self, settings: Settings, observer: SyncObserver | None = None, clock: Clock | None = None) -> None:
        self._settings = settings
        self._clock = clock or SystemClock()
        self._observer = observer or SilentSyncObserver()
        self.services = [sync_service(settings, kb_id, self._observer, self._clock) for kb_id in synced_kbs(settings)]

    def sync(self, *, wait: bool = True, refresh: str | None = None, resume: bool = True) -> SyncReport:
        """Sync every KB once, as `SyncService.sync` does. Raises E104 if no URL of any KB matches `refresh`."""
        reports = self._do_each(
            lambda service, pattern: service.sync(wait=wait, refresh=pattern, resume=resume), refresh
        )
        for service, done in zip(self.services, reports, strict=True):
            if service.is_named_only and not done.held_at:
                _remove_unfed_state(service.places)
        return functools.reduce(SyncReport.add, reports)

    def sync_in_background(self) -> SyncReport:
        """Sync without waiting for another sync; do not update a KB that was rolled back."""
        return self.sync(wait=False, resume=False)

    def plan(self, *, refresh: str | None = None) -> SyncPlan:
        plans = self._do_each(lambda service, pattern: service.plan(refresh=pattern), refresh)
        return functools.reduce(SyncPlan.add, plans)

    def explain(self, target: str) -> list[Explanation]:
        """Return what the collections of each KB do with a path, a URL or a document id."""
        most = self._settings.kb.max_source_bytes
        return [entry for service in self.services for entry in explain(service.kb_id, service.places, target, most)]

    def status(self) -> SyncStatus:
        return functools.reduce(SyncStatus.add, [report.read_status(service.places) for service in self.services])

    def source_statuses(self) -> list[SourceStatus]:
        """Return the status of each source of every KB, by id."""
        every = [status for service in self.services for status in report.list_source_statuses(service.places)]
        return sorted(every, key=lambda status: status.source_id)

    def watch(self, stop: threading.Event, after_run: Callable[[SyncReport], None]) -> None:
        """Sync now, whenever a source changes, and every tick, until `stop` is set."""
        places = [service.places for service in self.services]
        folders = list(dict.fromkeys(folder for paths in places for folder in paths.folders.values()))
        links_files = [path for paths in places for path in paths.links_files]
        watcher = Watcher(folders, links_files, stop, self._clock)
        Ticker(
            lambda: after_run(self.sync_in_background()),
            watcher.wait,
            lambda fault: self._observer.say(f"sync failed; trying again at the next tick: {fault}"),
            self._clock,
            self._settings.kb.runtime_refresh_tick_seconds,
        ).loop()

    def _do_each(self, work: Callable[[SyncService, str | None], _Result], refresh: str | None) -> list[_Result]:
        """Do the work for each KB. A pattern that matches no URL of one KB may match those of another."""
        if refresh is None or len(self.services) == 1:
            return [work(service, refresh) for service in self.services]
        matching = [service for service in self.services if service.matches(refresh)]
        if not matching:
            raise errors.no_url_matches(refresh)
        return [work(service, refresh if service in matching else None) for service in self.services]


def _remove_unfed_state(places: SyncPaths) -> None:
    """Remove the state and the index of a KB without collections and synced documents."""
    if not places.collections and not read_state(places.cache).sources:
        with files.storage_errors():
            for path in (places.cache, places.index, places.version_file):
                files.unlink(path, missing_ok=True)


@dataclass(frozen=True)
class ListedCollection:
    """A row of `pair collections`."""

    name: str
    kind: str
    address: str
    kb: str
    documents: int
    fault: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def list_collections(settings: Settings) -> list[ListedCollection]:
    """Return the collections of a project: `kb.sources_dir` and the links file if they exist, then named ones."""
    listed = []
    for service in ProjectSync(settings).services:
        places = service.places
        status = report.read_status(places)
        unnamed = {"kb.sources_dir": places.sources_dir, "kb.links_file_path": places.links_file}
        for key, path in unnamed.items() if not places.is_named_only else ():
            if path.exists():
                kind = "path" if key == "kb.sources_dir" else "links"
                documents = _count_unnamed(places, kind)
                listed.append(ListedCollection(key, kind, str(path), service.kb_id, documents))
        for entry in places.collections:
            given, documents = entry.collection, status.collections.get(entry.name, 0)
            listed.append(
                ListedCollection(entry.name, given.kind, redact_url(given.address), given.kb, documents, entry.fault)
            )
    return listed


def _count_unnamed(places: SyncPaths, kind: str) -> int:
    source_type = "file" if kind == "path" else "url"
    values = read_state(places.cache).sources.values()
    return sum(1 for value in values if source_type in value and not read_collection(value) and holds_text(value))


def with_collection(settings: Settings, name: str, entry: Mapping[str, Any]) -> Settings:
    """Return settings with one more collection. Raises E401 if it is not valid, or conflicts with another."""
    try:
        given: dict[str, Any] = {key: tuple(text) if isinstance(text, list) else text for key, text in entry.items()}
        collection = CollectionSettings(**given)
    except ValueError as fault:
        raise errors.settings_invalid(f"{COLLECTIONS}.{name}", str(fault)) from fault
    kb = replace(settings.kb, collections={**settings.kb.collections, name: collection})
    changed = replace(settings, kb=kb)
    _ = sync_service(changed, collection.kb).places
    return changed
