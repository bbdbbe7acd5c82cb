"""Settings as working parts: the only place that names concrete adapters.

Network code is imported by the function that needs it, so that work on local files does not wait for it.
"""

import atexit
import contextlib
import dataclasses
import importlib.util
import os
import random
import shutil
import socket
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pair import errors, files
from pair.ai import rules as model_rules
from pair.ai.contract import Summariser
from pair.ai.extractive import ExtractiveSummariser
from pair.clock import Clock, SystemClock, pause
from pair.settings import Settings
from pair.sources import inspection, package, record, resolution
from pair.sources.cache import Cache, expand
from pair.sources.contract import Observer
from pair.sources.inspection import Description
from pair.sources.installation import Installation, InstallReport, Mode, Request
from pair.sources.offers import DamagedCopyError, Offers
from pair.sources.package import Label
from pair.sources.rules import RECORD_NAME, refuse_conflicting_options
from pair.sync import planning
from pair.sync.contract import Documents, FetchedPage, NotModified, Pages, SyncObserver
from pair.sync.discovery import Places
from pair.sync.planning import SyncStatus
from pair.sync.reading import Reader
from pair.sync.report import SyncPlan, SyncReport
from pair.sync.rules import SyncPolicy
from pair.sync.source_texts import SourceTexts
from pair.sync.ticker import Ticker
from pair.sync.workflow import SyncRun, Workshop
from pair.values import KbSource

if TYPE_CHECKING:
    from pair.ai.contract import Embedder
    from pair.blobs.contract import BlobStore, Leases
    from pair.inputs import Inputs
    from pair.kb import KnowledgeBase, Reconciled
    from pair.web.browser import BrowserRenderer
    from pair.web.requests import Web

__all__ = [
    "DEFAULT_KB",
    "Description",
    "Desk",
    "InstallReport",
    "Label",
    "Request",
    "SyncDesk",
    "SyncPlan",
    "SyncReport",
    "SyncStatus",
    "inputs",
    "install",
    "open_kb",
    "resolve_source",
]


def _place(named: str) -> Path:
    """A path of the settings, where no shell has made a home of `~`."""
    return Path(os.path.expanduser(named))  # noqa: PTH111 - Path.expanduser fails without a home


class SilentObserver:
    """For callers that want results only."""

    def say(self, text: str) -> None:
        pass

    @contextlib.contextmanager
    def transfer(self, name: str, total_bytes: int | None, have_bytes: int) -> Iterator[Callable[[int], None]]:
        yield lambda count: None


class SilentSyncObserver:
    """For callers that want the report only."""

    def say(self, text: str) -> None:
        pass

    def planned(self, total: int) -> None:
        pass

    def finished(self, source_id: str) -> None:
        pass


@dataclass(frozen=True)
class Desk:
    """Everything one needs to get, make and check KB packages, under one set of settings."""

    settings: Settings
    observer: Observer = field(default_factory=SilentObserver)
    clock: Clock = field(default_factory=SystemClock)
    folder: Path = field(default_factory=Path.cwd)
    """Where relative sources and the monorepo are looked for."""

    @property
    def default_target(self) -> Path:
        return _place(self.settings.kb.sources_dir)

    def resolve(self, source: str | None, *, offline: bool, fresh: bool = False) -> KbSource:
        """`fresh`: the release feed must answer; otherwise a cached release will do when it cannot."""
        return resolution.resolve_source(
            source,
            offline=offline,
            folder=self.folder,
            latest_release=lambda: self._latest_release(fresh=fresh),
        )

    def resolve_update(self, source: str | None, target: Path, *, offline: bool) -> KbSource:
        """Without a named source, the one that the target was installed from, if it was named then.

        Raises E012 when nothing is installed, before anything is asked of the network.
        """
        refuse_conflicting_options(source, offline=offline)
        # To resolve a named source asks nothing of the network, and what is wrong with it is told first.
        named = self.resolve(source, offline=offline) if source is not None else None
        if not (target / RECORD_NAME).exists():
            raise errors.no_kb_at(str(target), "nothing is installed there")
        if named is not None:
            return named
        header = record.read_header(target)
        if header is not None and header.source.type in {"url", "local", "git"}:
            return header.source
        return self.resolve(None, offline=offline, fresh=True)

    def apply(self, request: Request, source: KbSource, *, offline: bool = False) -> InstallReport:
        """Install or update; a damaged entry of the cache is fetched again. Raises E003-E013 and E015-E016."""
        try:
            return self._apply(request, source, offline=offline)
        except DamagedCopyError as damage:
            self.observer.say(f"damaged in the cache: {damage}: fetching it again")
        try:
            return self._apply(request, source, offline=offline)
        except DamagedCopyError as damage:
            raise errors.checksum_failed(f"File: {damage}", "It was damaged again in the cache") from damage

    def _apply(self, request: Request, source: KbSource, *, offline: bool) -> InstallReport:
        token = uuid.uuid4().hex[:12]
        with contextlib.ExitStack() as held:
            scratch = request.target
            if request.dry_run:
                scratch = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="pair-"))) / "kb"
            offers = held.enter_context(self._offers(token, with_network=source.requires_download and not offline))
            offer = held.enter_context(
                offers.offer(
                    source,
                    request.target,
                    offline=offline,
                    revalidate=request.mode == "update",
                    scratch=scratch,
                )
            )
            locks = expand(self.settings.sources.cache_dir) / ".locks"
            return Installation(request, self.clock, self.observer, token, locks).apply(offer)

    def package(self, folder: Path, output: Path | None, label: package.Label) -> package.PackageReport:
        return package.make_package(folder, output, label=label, dated=self.settings.source_date)

    def verify(self, path: Path) -> inspection.Verification:
        return inspection.verify(path, self.settings.sources)

    def describe(self, path: Path) -> inspection.Description:
        return inspection.describe(path, self.settings.sources)

    def installed(self) -> Description | None:
        """What is in the default target, if anything."""
        if not (self.default_target / RECORD_NAME).exists():
            return None
        return self.describe(self.default_target)

    def _cache(self, token: str) -> Cache:
        return Cache(expand(self.settings.sources.cache_dir), self.clock, self.observer, token)

    @contextlib.contextmanager
    def _web(self) -> Iterator["Web"]:
        from pair.web.requests import Web  # noqa: PLC0415 - see the module's first lines

        policy = self.settings.sources
        web = Web(
            timeout_seconds=policy.timeout_seconds,
            retries=policy.retries,
            retry_wait_seconds=policy.retry_wait_seconds,
            clock=self.clock,
            token=self.settings.github_token,
            token_url=policy.github_api_url,
        )
        try:
            yield web
        finally:
            web.close()

    @contextlib.contextmanager
    def _offers(self, token: str, *, with_network: bool) -> Iterator[Offers]:
        policy = self.settings.sources
        if not with_network:
            yield Offers(self._cache(token), None, policy, token)
            return
        from pair.sources.download import Downloader  # noqa: PLC0415 - see the module's first lines

        with self._web() as web:
            yield Offers(self._cache(token), Downloader(web, policy, self.observer), policy, token)

    def _latest_release(self, *, fresh: bool) -> KbSource:
        from pair.sources.releases import latest_release  # noqa: PLC0415 - see the module's first lines

        policy = self.settings.sources
        cache, feed = self._cache("feed"), f"{policy.github_api_url} {policy.release_repository}"
        try:
            with self._web() as web:
                source = latest_release(web, policy)
        except errors.DownloadError as fault:
            remembered = None if fresh or policy.default_url else cache.recall_release(feed)
            if remembered is None:
                raise
            self.observer.say(f"{fault.explanation}: using cached release {remembered.version}")
            return remembered
        if not policy.default_url:
            cache.remember_release(feed, source)
        return source


def resolve_source(source: str | None = None, *, offline: bool = False, settings: Settings | None = None) -> KbSource:
    """Where the KB comes from: the named source, else the monorepo's dataset, else the latest release."""
    return Desk(settings or Settings.load()).resolve(source, offline=offline)


def install(
    source: KbSource,
    target: str | Path | None = None,
    *,
    force: bool = False,
    offline: bool = False,
    settings: Settings | None = None,
) -> Path:
    """Put the KB into a folder, which is returned; `.pair/knowledge` unless another is named."""
    desk = Desk(settings or Settings.load())
    folder = Path(target) if target is not None else desk.default_target
    mode: Mode = "install"
    desk.apply(Request(mode, folder, force=force), source, offline=offline)
    return folder


# ── sync ───────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class SyncDesk:
    """Keeps the sources of a project in line with its index, under one set of settings."""

    settings: Settings
    observer: SyncObserver = field(default_factory=SilentSyncObserver)
    clock: Clock = field(default_factory=SystemClock)

    def run(self, *, wait: bool = True) -> SyncReport:
        """One run. Raises E101 rather than wait when told so, E102, E010."""
        with contextlib.ExitStack() as held:
            shop = Workshop(
                summariser=self._summariser(held),
                pages=held.enter_context(contextlib.closing(_PagesOnDemand(self.settings.kb, self.clock))),
                documents=_document_loader(),
                clock=self.clock,
                observer=self.observer,
            )
            return SyncRun(self.settings.kb, self.places, shop).run(wait=wait)

    def sync(self, *, wait: bool = True) -> SyncReport:
        """One run, and the engine brought in line with it."""
        report = self.run(wait=wait)
        done = self._bring_engine_in_line()
        return dataclasses.replace(report, stored=done.stored, unstored=done.removed) if done else report

    def _bring_engine_in_line(self) -> "Reconciled | None":
        """None when nothing changed on either side since the last time: that is told without loading the engine."""
        store = _blob_store(self.settings.engine.store, self.settings, self.clock)
        mark = self.places.cache.with_name(f".{self.places.cache.name}.stored")
        if mark.exists() and mark.read_text(encoding="utf-8") == _state_of(store, self.places.cache):
            return None
        with open_kb(settings=self.settings, store=store, sync=self) as kb:
            done = kb.reconcile()
            if self.places.cache.exists():
                files.write_atomically(mark, _state_of(store, self.places.cache).encode())
        return done

    def plan(self) -> SyncPlan:
        model = self.settings.ai

        def calls_for(text: str) -> int:
            return model_rules.calls_for(text, model.max_input_tokens) if model.base_url else 0

        return planning.plan(self.places, self.reader, self.clock, calls_for)

    @property
    def reader(self) -> Reader:
        return Reader(self.places.sources_dir, self.settings.kb.max_source_bytes, _document_loader())

    def status(self) -> SyncStatus:
        return planning.status(self.places)

    def watch(self, stop: threading.Event, after_run: Callable[[SyncReport], None]) -> None:
        """Run now, whenever a source changes, and every tick, until told to stop."""
        from pair.sync.watching import Watcher  # noqa: PLC0415 - see the module's first lines

        watcher = Watcher(self.places.sources_dir, self.places.links_file, stop, self.clock)
        self.ticker(lambda: after_run(self.sync(wait=False)), watcher.wait).loop()

    def sources(self) -> "_Sources":
        """The synced sources, for the engine."""
        return _Sources(self)

    def ticker(self, run: Callable[[], object], wait: Callable[[float], bool]) -> Ticker:
        tick_seconds = self.settings.kb.runtime_refresh_tick_seconds
        return Ticker(run, wait, self._say_failed, self.clock, tick_seconds)

    @property
    def places(self) -> Places:
        policy = self.settings.kb
        return Places(
            sources_dir=_place(policy.sources_dir),
            links_file=_place(policy.links_file_path),
            index=_place(policy.index_path),
            cache=_place(policy.index_cache_path),
            page_copies=_place(policy.web_fetch_cache_dir),
            is_sources_dir_named="kb.sources_dir" in self.settings.named,
            is_links_file_named="kb.links_file_path" in self.settings.named,
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


def _state_of(store: "BlobStore", cache: Path) -> str:
    """What tells whether the saved state or the stored KB changed."""
    seen = cache.stat() if cache.exists() else None
    head = store.get(f"{DEFAULT_KB}.duckdb.manifest.json")
    signature = f"{seen.st_ino} {seen.st_size} {seen.st_mtime_ns}" if seen else "none"
    return f"{store.address}\n{signature}\n{head.version if head else 'none'}\n"


@dataclass(frozen=True)
class _Sources:
    """Sync, as `KnowledgeBase` sees it."""

    desk: SyncDesk

    def run(self, *, wait: bool) -> SyncReport:
        return self.desk.run(wait=wait)

    def texts(self) -> SourceTexts:
        return SourceTexts(self.desk.places, self.desk.reader)


class _PagesOnDemand:
    """Loads the network and the text extraction with the first page, if there is one."""

    def __init__(self, policy: SyncPolicy, clock: Clock) -> None:
        self._policy = policy
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
        return self._pages.fetch(url, etag=etag, last_modified=last_modified, validated_at=validated_at)

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
            return WebPages(client, None)
        renderer = _browser(policy)
        self._held.callback(renderer.close)
        return WebPages(client, renderer)


def _browser(policy: SyncPolicy) -> "BrowserRenderer":
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


def _document_loader() -> Documents | None:
    """None when the extra `documents` is not installed."""
    if importlib.util.find_spec("markitdown") is None:
        return None
    return _DocumentsOnDemand()


class _DocumentsOnDemand:
    """Loads the document reader with the first document."""

    def text_of(self, path: Path) -> str:
        from pair.sync.documents import DocumentLoader  # noqa: PLC0415 - see the module's first lines

        return DocumentLoader().text_of(path)


# ── the engine ─────────────────────────────────────────────────────────────────────────────────────

DEFAULT_KB = "default"
_LONGEST_PAUSE_SECONDS = 1.0
_OBJECT_STORES = ("s3://", "gs://", "az://")


def open_kb(
    kb_id: str = DEFAULT_KB,
    *,
    store: "str | BlobStore | None" = None,
    embedder: "Embedder | None" = None,
    settings: Settings | None = None,
    sync: SyncDesk | None = None,
    on_step: Callable[[str], None] = lambda name: None,
) -> "KnowledgeBase":
    """A KB by name. `store`: an address as in `engine.store`, or a store. Nothing is made before the first write."""
    from pair.ai.embedding import Embedding  # noqa: PLC0415 - see the module's first lines
    from pair.blobs.probe import refuse_without_compare_and_swap  # noqa: PLC0415
    from pair.engine.publication import Publication  # noqa: PLC0415
    from pair.engine.rules import check_kb_id  # noqa: PLC0415
    from pair.engine.runtime import Engine  # noqa: PLC0415
    from pair.engine.shard_cache import ShardCache  # noqa: PLC0415
    from pair.engine.writing import WriteParts  # noqa: PLC0415
    from pair.kb import KnowledgeBase  # noqa: PLC0415

    check_kb_id(kb_id)
    settings, clock = settings or Settings.load(), SystemClock()
    policy = settings.engine
    address = policy.store if store is None else store
    blobs = _blob_store(address, settings, clock) if isinstance(address, str) else address
    publication = Publication(
        blobs,
        kb_id,
        before_first_write=lambda: refuse_without_compare_and_swap(blobs, f"{kb_id}.duckdb.", _new_id()),
        on_step=on_step,
    )
    cache = ShardCache(
        blobs,
        _cache_folder(policy.cache_dir, blobs.address),
        clock,
        max_bytes=policy.cache_max_bytes,
        ttl_seconds=policy.cache_ttl_seconds,
    )
    parts = WriteParts(
        kb_id, policy, publication, cache, _leases(settings, blobs, clock), clock, _new_id, _pause_before, on_step
    )
    engine = Engine(parts, blobs, Embedding(embedder or _embedder(settings)))
    return KnowledgeBase(engine, sync.sources() if sync is not None else None)


def _new_id() -> str:
    return uuid.uuid4().hex


def _pause_before(attempt: int) -> None:
    """The square of the attempt times 10 ms, and up to as much again, so that those who collided do not do so again."""
    seconds = min(attempt * attempt * 0.010, _LONGEST_PAUSE_SECONDS)
    pause(seconds * (1 + random.random()))  # noqa: S311 - no secret


def _blob_store(address: str, settings: Settings, clock: Clock) -> "BlobStore":
    if address == "memory:":
        from pair.blobs.memory import MemoryStore  # noqa: PLC0415 - see the module's first lines

        return MemoryStore(clock)
    if address.startswith(_OBJECT_STORES):
        if importlib.util.find_spec("obstore") is None:
            raise errors.settings_invalid(
                "engine.store", f"{address} needs an extra", hints=["pip install 'pair-kb[s3]'"]
            )
        from pair.blobs.s3 import ObjectStore, ObjectStoreOptions  # noqa: PLC0415

        policy = settings.engine
        return ObjectStore(address, ObjectStoreOptions(endpoint_url=policy.s3_endpoint, region=policy.s3_region))
    from pair.blobs.local import LocalStore  # noqa: PLC0415

    return LocalStore(expand(address))


def _cache_folder(cache_dir: str, address: str) -> Path:
    """One for each store: a KB of the same name in another store is another KB. Memory is forgotten, and so is this."""
    if address == "memory:":
        folder = tempfile.mkdtemp(prefix="pair-cache-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        return Path(folder) / "shards"
    return expand(cache_dir)


def _leases(settings: Settings, store: "BlobStore", clock: Clock) -> "Leases":
    policy = settings.engine
    holder = f"{socket.gethostname()}, process {os.getpid()}"
    kind = policy.lease if policy.lease != "auto" else _usual_lease(store.address, policy.redis_url)
    if kind == "memory":
        from pair.blobs.leases import MemoryLeases  # noqa: PLC0415 - see the module's first lines

        return MemoryLeases(holder=holder, new_token=_new_id, clock=clock)
    if kind == "file":
        from pair.blobs.file_leases import FileLeases  # noqa: PLC0415

        return FileLeases(Path(store.address) / ".pair-store" / "leases", holder=holder, new_token=_new_id)
    if kind == "blob":
        from pair.blobs.blob_leases import BlobLeases  # noqa: PLC0415

        return BlobLeases(store, holder=holder, new_token=_new_id, clock=clock)
    if not policy.redis_url:
        raise errors.settings_invalid("engine.lease", "redis needs an address", hints=["Set engine.redis_url"])
    if importlib.util.find_spec("redis") is None:
        raise errors.settings_invalid("engine.lease", "redis needs an extra", hints=["pip install 'pair-kb[redis]'"])
    from pair.blobs.redis_leases import RedisLeases  # noqa: PLC0415

    return RedisLeases(policy.redis_url, holder=holder, new_token=_new_id, clock=clock)


def _usual_lease(address: str, redis_url: str) -> str:
    if redis_url:
        return "redis"
    if address == "memory:":
        return "memory"
    return "blob" if address.startswith(_OBJECT_STORES) else "file"


def _embedder(settings: Settings) -> "Embedder":
    from pair.ai.ngram import NgramEmbedder  # noqa: PLC0415 - see the module's first lines

    return NgramEmbedder(settings.engine.embedding_dimension)


def inputs(on_skip: Callable[[str, str], None]) -> "Inputs":
    """Reads files, folders and JSON lines as documents."""
    from pair.inputs import Inputs  # noqa: PLC0415 - see the module's first lines

    return Inputs(_document_loader(), on_skip)
