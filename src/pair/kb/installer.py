"""Getting, making and checking KB packages, under one set of settings."""

import contextlib
import dataclasses
import tempfile
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pair import errors, files
from pair.clock import Clock, SystemClock
from pair.kb.open import blob_store, pause_before
from pair.packages import record, release_index, resolve
from pair.packages import verify as checks
from pair.packages.cache import Cache
from pair.packages.content import DamagedCopyError, SourceContents
from pair.packages.contract import CurrentIndex, Fetcher, IndexSelection, Observer, Signatures
from pair.packages.install import Installation, InstallReport, InstallRequest, Mode
from pair.packages.lockfile import LockedKb, drift
from pair.packages.package import Label, PackageReport, make_package
from pair.packages.release_index import BucketFetcher, BucketTarget, read_file
from pair.packages.resolve import FeedAddress, has_moved, refuse_conflicting_options
from pair.packages.rules import RECORD_NAME, hide_credentials, is_in_bucket, is_remote, strip_user
from pair.packages.verify import Description
from pair.settings import Settings
from pair.values import KbSource

if TYPE_CHECKING:
    from pair.blobs.contract import BlobStore
    from pair.kb.package_index import EngineIndexInstaller
    from pair.web.http_client import HttpClient


class SilentObserver:
    """For callers that want results only."""

    def say(self, text: str) -> None:
        pass

    @contextlib.contextmanager
    def transfer(self, name: str, total_bytes: int | None, have_bytes: int) -> Iterator[Callable[[int], None]]:
        yield lambda count: None


@dataclass(frozen=True)
class Packaging:
    """How a folder is packaged."""

    label: Label = field(default_factory=Label)
    with_index: bool = False
    kb_id: str | None = None
    """Of the KB whose index goes in; None for the one that the folder is known by."""
    key: Path | None = None
    """That it is signed with."""
    ask_password: Callable[[], str] = str
    """Asked when nothing else opens the key."""


@dataclass(frozen=True)
class Installer:
    """Everything one needs to get, make and check KB packages, under one set of settings."""

    settings: Settings
    observer: Observer = field(default_factory=SilentObserver)
    clock: Clock = field(default_factory=SystemClock)
    folder: Path = field(default_factory=Path.cwd)
    """Where relative sources and the monorepo are looked for."""

    @property
    def default_target(self) -> Path:
        return files.expand_path(self.settings.kb.sources_dir)

    def checked_kb_id(self, kb_id: str | None) -> str | None:
        """The id itself; E212 for one that the engine cannot have."""
        if kb_id is None:
            return None
        from pair.engine.rules import check_kb_id  # noqa: PLC0415 - see the module's first lines

        return check_kb_id(kb_id)

    def resolve(self, source: str | None, *, offline: bool, fresh: bool = False) -> KbSource:
        """`fresh`: the release feed must answer; otherwise a cached release will do when it cannot."""
        return resolve.resolve_source(
            source,
            offline=offline,
            folder=self.folder,
            latest_release=lambda: self._latest_release(fresh=fresh),
            from_feed=self._from_feed,
        )

    def resolve_update(self, source: str | None, target: Path, *, offline: bool) -> KbSource:
        """Without a named source, the one that the target was installed from, if it was named then.

        Raises E012 when nothing is installed, before anything is asked of the network.
        """
        refuse_conflicting_options(source, offline=offline)
        # What is wrong with a named source is told first, unless one has to ask the network for that.
        asks = source is not None and is_remote(source) and resolve.find_feed(source, self.folder) is not None
        named = self.resolve(source, offline=offline) if source is not None and not asks else None
        if not (target / RECORD_NAME).exists():
            raise errors.nothing_installed_at(str(target))
        if source is not None:
            return named or self.resolve(source, offline=offline)
        header = record.read_header(target)
        if header is not None and header.source.feed is not None:
            return self.resolve(header.source.feed, offline=offline)
        if header is not None and header.source.type in {"url", "local", "git"}:
            # A record may be a stranger's: its source is judged as one that is typed.
            return self.resolve(header.source.location, offline=offline)
        return self.resolve(None, offline=offline, fresh=True)

    def locked_source(self, kb: LockedKb, lock: Path, *, offline: bool) -> KbSource:
        """Where exactly these bytes are. Those of a feed that are in the cache are not asked for again. Raises E022."""
        refuse_conflicting_options(kb.source, offline=offline)
        desk = dataclasses.replace(self, folder=lock.parent.absolute())
        address = resolve.find_feed(kb.source, desk.folder)
        if address is None:
            return desk.resolve(kb.source, offline=offline)
        name = address.name or kb.name
        known = self._cache("lock").recall_release(_release_key(address, name, kb.version, kb.archive_sha256))
        if known is not None:
            return dataclasses.replace(known, feed=address.named, name=name)
        found = self._read_feed(address.place)
        release = found.find(name, kb.version)
        if release is None:
            versions = [each.version for each in found.kbs.get(name, ())]
            drifts = [drift(kb.id, f"version of {name} in the feed", kb.version, ", ".join(versions))]
            raise errors.lock_differs(str(lock), drifts)
        if release.sha256 != kb.archive_sha256:
            what = f"archive SHA-256 of {name} {kb.version} in the feed"
            raise errors.lock_differs(str(lock), [drift(kb.id, what, kb.archive_sha256, release.sha256)])
        return self._remembered(address, name, release)

    def apply(
        self, request: InstallRequest, source: KbSource, *, offline: bool = False, revalidate: bool = False
    ) -> InstallReport:
        """Install or update; a damaged entry of the cache is fetched again. Raises E003-E013, E015-E018, E021-E028.

        An update asks the server whether what is cached is still current, and so does `revalidate`.
        """
        self._refuse_moved(request, source)
        revalidate = revalidate or request.mode == "update"
        try:
            return self._apply(request, source, offline=offline, revalidate=revalidate)
        except DamagedCopyError as damage:
            self.observer.say(f"damaged in the cache: {damage}: fetching it again")
        try:
            return self._apply(request, source, offline=offline, revalidate=revalidate, as_a_whole=True)
        except DamagedCopyError as damage:
            raise errors.checksum_failed(f"File: {damage}", "It was damaged again in the cache") from damage

    def _refuse_moved(self, request: InstallRequest, source: KbSource) -> None:
        if source.feed is None or request.force or request.locked is not None:
            return
        with contextlib.suppress(errors.DataError):  # a damaged record is told of when it is needed
            header = record.read_header(request.target)
            if header is not None and has_moved(header.source, header.name, header.archive_sha256, source):
                raise errors.version_moved(
                    hide_credentials(source.feed), header.version, header.archive_sha256, source.sha256 or ""
                )

    def _apply(
        self, request: InstallRequest, source: KbSource, *, offline: bool, revalidate: bool, as_a_whole: bool = False
    ) -> InstallReport:
        """`as_a_whole`: also what the engine seems to have of it."""
        token = uuid.uuid4().hex[:12]
        with contextlib.ExitStack() as held:
            with files.storage_errors():
                scratch = files.resolve(request.target)
            if request.dry_run:
                scratch = files.resolve(Path(held.enter_context(tempfile.TemporaryDirectory(prefix="pair-"))) / "kb")
            keeper = self._keeper(request)
            demand = (
                IndexSelection(request.with_index) if as_a_whole else IndexSelection(request.with_index, keeper.holds)
            )
            offers = held.enter_context(self._offers(token, source, demand, offline=offline))
            offer = held.enter_context(
                offers.offer(
                    source,
                    request.target,
                    offline=offline,
                    revalidate=revalidate,
                    scratch=scratch,
                )
            )
            return Installation(request, self.clock, self.observer, token, keeper).apply(offer)

    def _keeper(self, request: InstallRequest) -> "EngineIndexInstaller":
        return self._keeper_of(request.kb_id or record.find_kb_id(request.target, default_target=self.default_target))

    def _keeper_of(self, kb_id: str) -> "EngineIndexInstaller":
        from pair.kb.package_index import EngineIndexInstaller  # noqa: PLC0415 - see the package's first lines

        return EngineIndexInstaller(self.settings, kb_id, self.clock)

    def searched(self, kb_id: str) -> CurrentIndex | None:
        """What the engine finds in a KB; None when it has no such KB. Raises E206, E207."""
        return self._keeper_of(kb_id).searched()

    def package(self, folder: Path, output: Path | None, packaging: "Packaging") -> PackageReport:
        """Raises E010, E012, E014, E024. The key is opened first: a bad one leaves everything as it is."""
        key = packaging.key
        if key is None:
            return self._packaged(folder, output, packaging)
        from pair.packages.signing import read_secret_key, sign_package  # noqa: PLC0415 - see the package's first lines

        if key.resolve().is_relative_to(folder.resolve()):
            raise errors.cannot_package(str(folder), f"the secret key lies in it: {key}")
        secret = read_secret_key(key, lambda: self.settings.sign_password or packaging.ask_password())
        report = self._packaged(folder, output, packaging)
        sign_package(report, secret)
        return dataclasses.replace(report, signed_by=secret.public.id)

    def _packaged(self, folder: Path, output: Path | None, packaging: "Packaging") -> PackageReport:
        dated = self.settings.source_date
        if not packaging.with_index:
            return make_package(folder, output, label=packaging.label, dated=dated)
        if not folder.is_dir():
            raise errors.source_path_missing(str(folder))
        from pair.kb.package_index import index_maker  # noqa: PLC0415 - see the package's first lines

        with index_maker(self.settings, folder, packaging.kb_id, self.observer) as index_of:
            return make_package(folder, output, label=packaging.label, dated=dated, index_of=index_of)

    def verify(self, path: Path, identity: str | None = None) -> checks.Verification:
        """`identity` is the key that must have signed it; without one, those of the settings count."""
        signatures = self._signatures() if identity is None else _identified(identity)
        if identity is not None and signatures is not None and path.is_dir():
            signatures.refuse_unsigned(str(path), "a folder carries none")
        return checks.verify(path, self.settings.sources, signatures)

    def describe(self, path: Path) -> checks.Description:
        return checks.describe(path, self.settings.sources)

    def installed(self) -> Description | None:
        """What is in the default target, if anything."""
        if not (self.default_target / RECORD_NAME).exists():
            return None
        return self.describe(self.default_target)

    def _signatures(self) -> Signatures | None:
        """None where no key is named. Raises E401."""
        policy, places = self.settings.sources, self.settings.places
        if not policy.signature_keys:
            if not policy.require_signature:
                return None
            name = "sources.require_signature"
            raise errors.settings_invalid(places.get(name, name), f"{name} needs sources.signature_keys")
        from pair.packages.signing import TrustedKeys, read_public_key  # noqa: PLC0415 - see the package's first lines

        name = "sources.signature_keys"
        try:
            keys = [read_public_key(each) for each in policy.signature_keys]
        except ValueError as fault:
            raise errors.settings_invalid(places.get(name, name), f"{name}: {fault}") from fault
        return TrustedKeys(keys, is_required=policy.require_signature)

    def _cache(self, token: str) -> Cache:
        return Cache(files.expand_path(self.settings.sources.cache_dir).absolute(), self.clock, self.observer, token)

    @contextlib.contextmanager
    def _web(self) -> Iterator["HttpClient"]:
        from pair.web.http_client import HttpClient  # noqa: PLC0415 - see the module's first lines

        policy = self.settings.sources
        web = HttpClient(
            timeout_seconds=policy.timeout_seconds,
            retries=policy.retries,
            retry_wait_seconds=policy.retry_wait_seconds,
            clock=self.clock,
            token=self.settings.github_token,
            token_url=policy.github_api_url,
        )
        web.say = self.observer.say
        try:
            yield web
        finally:
            web.close()

    @contextlib.contextmanager
    def _offers(
        self, token: str, source: KbSource, demand: IndexSelection, *, offline: bool
    ) -> Iterator[SourceContents]:
        with contextlib.ExitStack() as held:
            fetcher: Fetcher | None = None
            if source.requires_download and not offline:
                fetcher = self._bucket_fetcher() if is_in_bucket(source.location) else self._downloader(held)
            yield SourceContents(self._cache(token), fetcher, self.settings.sources, token, self._signatures(), demand)

    def _downloader(self, held: contextlib.ExitStack) -> Fetcher:
        from pair.packages.download import Downloader  # noqa: PLC0415 - see the module's first lines

        return Downloader(held.enter_context(self._web()), self.settings.sources, self.observer)

    def _bucket_fetcher(self) -> Fetcher:
        return BucketFetcher(self._store_at, self.settings.sources)

    def _store_at(self, address: str) -> "BlobStore":
        return blob_store(address, self.settings, self.clock)

    # Feeds of releases

    def _from_feed(self, address: FeedAddress) -> KbSource:
        return self._remembered(address, *release_index.choose(self._read_feed(address.place), address))

    def _remembered(self, address: FeedAddress, name: str, release: release_index.Release) -> KbSource:
        """The source that a release is, which a locked install finds again without the feed."""
        source = dataclasses.replace(release_index.to_source(release, address), name=name)
        if source.requires_download:
            stored = dataclasses.replace(source, location=strip_user(source.location), feed=strip_user(address.named))
            key = _release_key(address, name, release.version, release.sha256)
            self._cache("feed").remember_release(key, stored)
        return source

    def _read_feed(self, place: str) -> release_index.ReleaseIndex:
        """Raises E005, E019, E206."""
        shown = hide_credentials(place)
        content: bytes | None
        if is_in_bucket(place):
            folder, _, name = place.rpartition("/")
            content = BucketTarget(self._store_at(folder), pause_before).read(name)
        elif is_remote(place):
            from pair.packages.release_index import read_remote_feed  # noqa: PLC0415 - see the module's first lines

            with self._web() as web:
                content = read_remote_feed(web, place)
        else:
            content = read_file(Path(place))
        if content is None:
            raise errors.download_failed(shown, "no feed there")
        return release_index.parse_feed(content, shown)

    def _latest_release(self, *, fresh: bool) -> KbSource:
        from pair.packages.resolve import latest_release  # noqa: PLC0415 - see the module's first lines

        policy = self.settings.sources
        cache, release_index = self._cache("feed"), f"{policy.github_api_url} {policy.release_repository}"
        try:
            with self._web() as web:
                source = latest_release(web, policy)
        except errors.DownloadError as fault:
            remembered = None if fresh or policy.default_url else cache.recall_release(release_index)
            if remembered is None:
                raise
            self.observer.say(f"{fault.explanation}: using cached release {remembered.version}")
            return remembered
        if not policy.default_url:
            cache.remember_release(release_index, source)
        return source


def _release_key(address: FeedAddress, name: str, version: str, sha256: str) -> str:
    """By which a release is remembered."""
    return f"{strip_user(address.place)} {name} {version} {sha256}"


def _identified(identity: str) -> Signatures:
    from pair.packages.signing import TrustedKeys, read_public_key  # noqa: PLC0415 - see the package's first lines

    try:
        return TrustedKeys([read_public_key(identity)], is_required=True)
    except ValueError as fault:
        raise errors.key_unusable(identity, str(fault)) from fault


def resolve_source(source: str | None = None, *, offline: bool = False, settings: Settings | None = None) -> KbSource:
    """Where the KB comes from: the named source, else the monorepo's dataset, else the latest release."""
    return Installer(settings or Settings.load()).resolve(source, offline=offline)


def install(
    source: KbSource,
    target: str | Path | None = None,
    *,
    force: bool = False,
    offline: bool = False,
    settings: Settings | None = None,
) -> Path:
    """Put the KB into a folder, which is returned; `.pair/knowledge` unless another is named."""
    desk = Installer(settings or Settings.load())
    folder = Path(target) if target is not None else desk.default_target
    mode: Mode = "install"
    desk.apply(InstallRequest(mode, folder, force=force), source, offline=offline)
    return folder
