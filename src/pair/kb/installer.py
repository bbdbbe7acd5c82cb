"""The installer: install, package, lock and publish KBs."""

import contextlib
import dataclasses
import functools
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from pair import errors, files
from pair.clock import Clock, SystemClock
from pair.kb.open import blob_store, new_id, pause_before
from pair.packages import lockfile, record, release_index, resolve
from pair.packages.cache import Cache
from pair.packages.content import DamagedCopyError, Observer, SourceContents
from pair.packages.install import Installation, InstallReport, InstallRequest
from pair.packages.lockfile import Lock, Locked, LockedKb, drift
from pair.packages.package import (
    Description,
    IndexSelection,
    Label,
    PackageReport,
    Verification,
    describe,
    make_package,
    verify,
    verify_bundle,
)
from pair.packages.release_index import BucketFetcher, BucketTarget, FolderTarget, PublishReport, PublishTarget
from pair.packages.resolve import FeedAddress, has_moved, refuse_conflicting_options
from pair.packages.rules import RECORD_NAME, hide_credentials, is_in_bucket, is_remote, strip_user
from pair.settings import Settings
from pair.values import KbSource

if TYPE_CHECKING:
    from pair.blobs.contract import BlobStore
    from pair.kb.package_index import EngineIndexInstaller
    from pair.packages.content import Fetcher
    from pair.packages.signing import SecretKey, TrustedKeys
    from pair.web.http_client import HttpClient


class SilentObserver:
    """An observer that ignores messages and progress."""

    def say(self, text: str) -> None:
        pass

    @contextlib.contextmanager
    def transfer(self, name: str, total_bytes: int | None, have_bytes: int) -> Iterator[Callable[[int], None]]:
        yield lambda count: None


@dataclass(frozen=True)
class Packaging:
    """The options of packaging a folder."""

    label: Label = field(default_factory=Label)
    with_index: bool = False
    kb_id: str | None = None
    """The KB whose index is packaged; None for the KB of the folder."""
    key: Path | None = None
    ask_password: Callable[[], str] = str
    """Called if the settings have no password for the key."""


@dataclass(frozen=True)
class Installer:
    """An installer of KBs, which also packages, publishes and checks them."""

    settings: Settings
    observer: Observer = field(default_factory=SilentObserver)
    clock: Clock = field(default_factory=SystemClock)
    folder: Path = field(default_factory=Path.cwd)
    """The folder that relative sources and the monorepo are below."""

    @property
    def default_target(self) -> Path:
        return files.expand_path(self.settings.kb.sources_dir)

    # Resolve a source

    def resolve(self, source: str | None, *, offline: bool, fresh: bool = False) -> KbSource:
        """Resolve a source. `fresh`: fail if the release feed does not answer, instead of using a cached release."""
        return resolve.resolve_source(
            source,
            offline=offline,
            folder=self.folder,
            latest_release=lambda: self._find_latest_release(fresh=fresh),
            from_feed=lambda address: self._remember_release(
                address, *release_index.choose(self._read_feed(address.place), address)
            ),
        )

    def resolve_update(self, source: str | None, target: Path, *, offline: bool) -> KbSource:
        """Resolve a named source, or else the source of the installed KB.

        Raises E012 if nothing is installed, before any request to the network.
        """
        refuse_conflicting_options(source, offline=offline)
        # Report the fault of a named source first, unless that needs a request to the network.
        is_remote_feed = source is not None and is_remote(source) and resolve.find_feed(source, self.folder) is not None
        named = self.resolve(source, offline=offline) if source is not None and not is_remote_feed else None
        if not (target / RECORD_NAME).exists():
            raise errors.nothing_installed_at(str(target))
        if source is not None:
            return named or self.resolve(source, offline=offline)
        header = record.read_header(target)
        if header is not None and (header.source.feed is not None or header.source.type in {"url", "local", "git"}):
            # A record may be hostile: its source is checked like one on the command line.
            return self.resolve(header.source.feed or header.source.location, offline=offline)
        return self.resolve(None, offline=offline, fresh=True)

    def resolve_locked(self, kb: LockedKb, lock: Path, *, offline: bool) -> KbSource:
        """Return a source with exactly the locked bytes. A cached release needs no request. Raises E022."""
        refuse_conflicting_options(kb.source, offline=offline)
        beside_lock = dataclasses.replace(self, folder=lock.parent.absolute())
        address = resolve.find_feed(kb.source, beside_lock.folder)
        if address is None:
            return beside_lock.resolve(kb.source, offline=offline)
        name = address.name or kb.name
        known = self._cache("lock").recall_release(_release_key(address, name, kb.version, kb.archive_sha256))
        if known is not None:
            return dataclasses.replace(known, feed=address.named, name=name)
        feed = self._read_feed(address.place)
        release = feed.find(name, kb.version)
        if release is None:
            versions = ", ".join(other.version for other in feed.kbs.get(name, ()))
            drifts = [drift(kb.id, f"version of {name} in the release index", kb.version, versions)]
            raise errors.lock_differs(str(lock), drifts)
        if release.sha256 != kb.archive_sha256:
            what = f"archive SHA-256 of {name} {kb.version} in the release index"
            raise errors.lock_differs(str(lock), [drift(kb.id, what, kb.archive_sha256, release.sha256)])
        return self._remember_release(address, name, release)

    def _remember_release(self, address: FeedAddress, name: str, release: release_index.Release) -> KbSource:
        """Return a release as a source, and store it, so that a locked install needs no feed."""
        source = dataclasses.replace(release_index.to_source(release, address), name=name)
        if source.requires_download:
            stored = dataclasses.replace(source, location=strip_user(source.location), feed=strip_user(address.named))
            key = _release_key(address, name, release.version, release.sha256)
            self._cache("feed").remember_release(key, stored)
        return source

    def _read_feed(self, place: str) -> release_index.ReleaseIndex:
        """Read a release index. Raises E005, E019, E206."""
        shown = hide_credentials(place)
        content: bytes | None
        if is_in_bucket(place):
            folder, _, name = place.rpartition("/")
            content = BucketTarget(self._open_store(folder), pause_before).read(name)
        elif is_remote(place):
            with self._open_web() as web:
                content = release_index.read_remote_feed(web, place)
        else:
            content = release_index.read_file(Path(place))
        if content is None:
            raise errors.download_failed(shown, "there is no release index")
        return release_index.parse_feed(content, shown)

    def _find_latest_release(self, *, fresh: bool) -> KbSource:
        settings = self.settings.sources
        cache, key = self._cache("feed"), f"{settings.github_api_url} {settings.release_repository}"
        try:
            with self._open_web() as web:
                source = resolve.latest_release(web, settings)
        except errors.DownloadError as fault:
            remembered = None if fresh or settings.default_url else cache.recall_release(key)
            if remembered is None:
                raise
            self.observer.say(f"{fault.explanation}: using cached release {remembered.version}")
            return remembered
        if not settings.default_url:
            cache.remember_release(key, source)
        return source

    # Install

    def apply(
        self, request: InstallRequest, source: KbSource, *, offline: bool = False, revalidate: bool = False
    ) -> InstallReport:
        """Install or update; fetch a damaged cache entry again. Raises E003-E013, E015-E018, E021-E028.

        An update and `revalidate` ask the server whether the cached KB is current.
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
        with contextlib.suppress(errors.DataError):  # The install reports a damaged record.
            header = record.read_header(request.target)
            if header is not None and has_moved(header.source, header.name, header.archive_sha256, source):
                raise errors.version_moved(
                    hide_credentials(source.feed), header.version, header.archive_sha256, source.sha256 or ""
                )

    def _apply(
        self, request: InstallRequest, source: KbSource, *, offline: bool, revalidate: bool, as_a_whole: bool = False
    ) -> InstallReport:
        """Install once. `as_a_whole`: also fetch the files that the engine seems to have."""
        token, signatures = uuid.uuid4().hex[:12], self._signatures()
        with contextlib.ExitStack() as stack:
            with files.storage_errors():
                scratch = files.resolve(request.target)
            if request.dry_run:
                temporary = stack.enter_context(tempfile.TemporaryDirectory(prefix="pair-"))
                scratch = files.resolve(Path(temporary) / "kb")
            fetcher = self._open_fetcher(source, stack) if source.requires_download and not offline else None
            cache = self._cache(token)
            kb_id = request.kb_id or record.find_kb_id(request.target, default_target=self.default_target)

            @functools.cache
            def open_index() -> "EngineIndexInstaller":
                from pair.kb.package_index import EngineIndexInstaller  # noqa: PLC0415 - only where it is used

                return EngineIndexInstaller(self.settings, kb_id, self.clock, self.observer, stack)

            selection = IndexSelection(request.with_index, lambda path: not as_a_whole and open_index().holds(path))
            contents = SourceContents(cache, fetcher, self.settings.sources, signatures, selection)
            offer = contents.offer(source, request.target, revalidate=revalidate, scratch=scratch)
            content = stack.enter_context(offer)
            return Installation(request, kb_id, self.clock, self.observer, token, open_index).apply(content)

    def _open_fetcher(self, source: KbSource, stack: contextlib.ExitStack) -> "Fetcher":
        if is_in_bucket(source.location):
            return BucketFetcher(self._open_store, self.settings.sources)
        from pair.packages.download import Downloader  # noqa: PLC0415 - loads the network

        return Downloader(stack.enter_context(self._open_web()), self.settings.sources, self.observer)

    def _cache(self, token: str) -> Cache:
        return Cache(files.expand_path(self.settings.sources.cache_dir).absolute(), self.clock, self.observer, token)

    def _open_store(self, address: str) -> "BlobStore":
        return blob_store(address, self.settings, self.clock)

    @contextlib.contextmanager
    def _open_web(self) -> Iterator["HttpClient"]:
        from pair.network import RetryPolicy  # noqa: PLC0415 - loads the network
        from pair.web.http_client import HttpClient  # noqa: PLC0415

        settings = self.settings.sources
        web = HttpClient(
            timeout_seconds=settings.timeout_seconds,
            retry_policy=RetryPolicy(settings.retries, settings.retry_wait_seconds),
            clock=self.clock,
            token=self.settings.github_token,
            token_url=settings.github_api_url,
        )
        web.say = self.observer.say
        with contextlib.closing(web):
            yield web

    # Make and check packages

    def package(self, folder: Path, output: Path | None, packaging: Packaging) -> PackageReport:
        """Package a folder, and sign the package if there is a key. Raises E010, E012, E014, E024.

        The key is opened first: with a bad key nothing is written.
        """
        key = packaging.key
        if key is None:
            return self._make_package(folder, output, packaging)
        from pair.packages.signing import sign_package  # noqa: PLC0415 - loads cryptography

        if key.resolve().is_relative_to(folder.resolve()):
            raise errors.cannot_package(str(folder), f"the folder contains the secret key {key}")
        secret = _read_key(self.settings, packaging)
        report = self._make_package(folder, output, packaging)
        sign_package(report, secret)
        return dataclasses.replace(report, signed_by=secret.public.id)

    def _make_package(self, folder: Path, output: Path | None, packaging: Packaging) -> PackageReport:
        dated = self.settings.source_date
        if not packaging.with_index:
            return make_package(folder, output, label=packaging.label, dated=dated)
        if not folder.is_dir():
            raise errors.source_path_missing(str(folder))
        from pair.kb.package_index import pack_index  # noqa: PLC0415 - only where it is used

        with contextlib.ExitStack() as stack:
            return make_package(
                folder,
                output,
                label=packaging.label,
                dated=dated,
                index_of=lambda name: pack_index(self.settings, folder, packaging.kb_id, name, self.observer, stack),
            )

    def verify(self, path: Path, identity: str | None = None, *, as_bundle: bool = False) -> Verification:
        """Verify a package or an installed KB. `identity`: the required signer; None for the keys of the settings.

        `as_bundle`: also as a bundle of the Open Knowledge Format, which may be any folder.
        """
        if as_bundle:
            bundle = verify_bundle(path, self.settings.sources)
            if path.is_dir() and not (path / RECORD_NAME).exists():
                return bundle
            verified = self.verify(path, identity)
            return dataclasses.replace(verified, checks=(*verified.checks, *bundle.checks))
        trusted = self.trusted_keys(identity)
        if trusted is not None and identity is not None and path.is_dir():
            trusted.refuse_unsigned(str(path), "a folder has no signature")
        return verify(path, self.settings.sources, trusted)

    def trusted_keys(self, identity: str | None = None) -> "TrustedKeys | None":
        """Return the required key, else those of the settings, if there are any. Raises E024, E401."""
        if identity is None:
            return self._signatures()
        from pair.packages.signing import TrustedKeys, read_public_key  # noqa: PLC0415 - loads cryptography

        try:
            return TrustedKeys([read_public_key(identity)], is_required=True)
        except ValueError as fault:
            raise errors.key_unusable(identity, str(fault)) from fault

    def describe(self, path: Path) -> Description:
        return describe(path, self.settings.sources)

    def describe_installed(self) -> Description | None:
        """Describe the KB in the default target, if there is one."""
        target = self.default_target
        return self.describe(target) if (target / RECORD_NAME).exists() else None

    def _signatures(self) -> "TrustedKeys | None":
        """Return the trusted keys of the settings; None if there are none. Raises E401."""
        settings, places = self.settings.sources, self.settings.places
        if not settings.signature_keys:
            if not settings.require_signature:
                return None
            name = "sources.require_signature"
            raise errors.settings_invalid(places.get(name, name), f"{name} needs sources.signature_keys")
        from pair.packages.signing import TrustedKeys, read_public_key  # noqa: PLC0415 - loads cryptography

        name = "sources.signature_keys"
        try:
            keys = [read_public_key(key) for key in settings.signature_keys]
        except ValueError as fault:
            raise errors.settings_invalid(places.get(name, name), f"{name}: {fault}") from fault
        return TrustedKeys(keys, is_required=settings.require_signature)


def _release_key(address: FeedAddress, name: str, version: str, sha256: str) -> str:
    """Return the key of a release in the cache."""
    return f"{strip_user(address.place)} {name} {version} {sha256}"


def resolve_source(source: str | None = None, *, offline: bool = False, settings: Settings | None = None) -> KbSource:
    """Return the source of the KB: the named one, else the dataset of the monorepo, else the latest release."""
    return Installer(settings or Settings.load()).resolve(source, offline=offline)


def install(
    source: KbSource,
    target: str | Path | None = None,
    *,
    force: bool = False,
    offline: bool = False,
    settings: Settings | None = None,
) -> Path:
    """Install the KB into a folder, by default `.pair/knowledge`, and return the folder."""
    installer = Installer(settings or Settings.load())
    folder = Path(target) if target is not None else installer.default_target
    installer.apply(InstallRequest("install", folder, force=force), source, offline=offline)
    return folder


# ── publishing ─────────────────────────────────────────────────────────────────────────────────────


def publish(
    installer: Installer, destination: str, source: Path | None, packaging: Packaging, *, with_site: bool = False
) -> PublishReport:
    """Publish a package or a folder, which is packaged first; without a source, the default target.

    `with_site`: also write a site that answers in the browser. Raises E003-E021.
    """
    source = source or installer.default_target
    if with_site and "://" in destination:
        raise errors.command_line_invalid(
            f"a site cannot be written to {destination}", hints=["Publish to a folder, and upload the folder"]
        )
    if with_site and not source.is_file():
        packaging = dataclasses.replace(
            packaging, with_index=True, ask_password=functools.cache(packaging.ask_password)
        )
    if not is_in_bucket(destination) and Path(destination).resolve().is_relative_to(source.resolve()):
        # Each release would contain all earlier ones.
        raise errors.source_overlaps_target(str(source), destination)
    target = _open_target(installer, destination)
    with contextlib.ExitStack() as stack:
        package, skipped = source, tuple[tuple[str, str], ...]()
        if not source.is_file():
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="pair-"))
            report = installer.package(source, Path(folder) / "kb.zip", packaging)
            package, skipped = report.path, report.skipped
        elif dataclasses.replace(packaging, ask_password=str, key=None if with_site else packaging.key) != Packaging():
            raise errors.command_line_invalid(
                f"options of packaging do not apply to a finished package: {source}",
                hints=["Publish the folder to package it again"],
            )
        installer.verify(package)
        manifest = installer.describe(package).manifest
        assert manifest is not None  # noqa: S101 - `describe` refuses a package without a manifest
        if with_site and manifest.index is None:
            raise errors.no_kb_at(str(source), "the package has no index, which a site needs")
        key = _read_key(installer.settings, packaging) if with_site and packaging.key is not None else None
        if with_site:
            from pair.kb.package_index import publish_site, refuse_foreign_site  # noqa: PLC0415 - loads the engine

            refuse_foreign_site(manifest, Path(destination))
        release = dataclasses.replace(
            release_index.publish(package, manifest, target, installer.clock), skipped=skipped
        )
        if not with_site:
            return release
        site = publish_site(package, manifest, Path(destination), key, installer.settings)
        return dataclasses.replace(release, site=site)


def _read_key(settings: Settings, packaging: Packaging) -> "SecretKey":
    """Return the key that signs. Raises E024."""
    from pair.packages.signing import read_secret_key  # noqa: PLC0415 - loads cryptography

    assert packaging.key is not None  # noqa: S101 - the caller checks it
    return read_secret_key(packaging.key, lambda: settings.sign_password or packaging.ask_password())


def _open_target(installer: Installer, destination: str) -> PublishTarget:
    if is_in_bucket(destination):
        from pair.blobs.contract import refuse_without_compare_and_swap  # noqa: PLC0415 - only where it is used

        store = blob_store(destination, installer.settings, installer.clock)
        refuse_without_compare_and_swap(store, ".pair-", new_id())
        return BucketTarget(store, pause_before)
    if "://" in destination:
        raise errors.command_line_invalid(
            f"releases cannot be published to {destination}", hints=["Name a folder, or s3://bucket/prefix"]
        )
    folder, say = Path(destination), installer.observer.say
    return FolderTarget(folder, lambda holder: say(f"waiting for {holder}, which is publishing to {folder}"))


# ── lockfiles ──────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class LockReport:
    path: Path
    kbs: tuple[LockedKb, ...]
    is_changed: bool = False

    @property
    def with_queries(self) -> tuple[str, ...]:
        """Ids of KBs whose source has a query, which may hold a secret."""
        return tuple(kb.id for kb in self.kbs if "://" in kb.source and "?" in kb.source)

    def to_json(self) -> dict[str, Any]:
        kbs = [msgspec.structs.asdict(kb) for kb in self.kbs]
        return {"lock": str(self.path), "is_changed": self.is_changed, "drifts": [], "kbs": kbs}


@dataclass(frozen=True)
class LockService:
    """The lockfile of a project: write it, check it, and install from it."""

    installer: Installer
    path: Path

    def write(self, targets: Sequence[Path]) -> LockReport:
        """Lock the given targets and keep the other entries; without targets, lock all entries and the default target.

        Raises E012, E013, E023.
        """
        known = lockfile.read_lock(self.path) if self.path.exists() else Lock(self.path)
        if not targets:
            default = self.installer.default_target
            targets = [known.target_of(kb) for kb in known.kbs]
            if not targets or ((default / RECORD_NAME).exists() and lockfile.is_below(default, self.path)):
                targets.append(default)
        chosen = {lockfile.make_relative(target, self.path): target for target in targets}
        locked = [lockfile.read_installed(target, self.path) for target in chosen.values()]
        kept = [kb for kb in known.kbs if kb.target not in chosen]
        kbs = tuple(sorted([*kept, *locked], key=lambda kb: kb.id))
        try:
            lockfile.refuse_twice(kbs)
        except ValueError as fault:
            raise errors.lock_unusable(str(self.path), str(fault)) from fault
        content = lockfile.to_bytes(kbs)
        with files.storage_errors():
            is_changed = not self.path.exists() or self.path.read_bytes() != content
            if is_changed:
                path = files.resolve_parent(self.path)
                files.make_folder(path.parent)
                files.remove_half_written(path)
                files.write_atomically(path, content)
        return LockReport(self.path, kbs, is_changed=is_changed)

    def check(self) -> LockReport:
        """Compare the lock with the installed KBs. Raises E022 with every drift, E023."""
        from pair.kb.package_index import read_current_index  # noqa: PLC0415 - only where it is used

        lock, settings, clock = lockfile.read_lock(self.path), self.installer.settings, self.installer.clock
        drifts = lockfile.find_drifts(
            lock, lambda kb_id: read_current_index(settings, kb_id, clock), also=self.installer.default_target
        )
        if drifts:
            raise errors.lock_differs(str(self.path), drifts)
        return LockReport(self.path, lock.kbs)

    def install(
        self, target: Path | None, *, force: bool, dry_run: bool, offline: bool, with_index: bool = True
    ) -> list[InstallReport]:
        """Install the locked KBs, or only the one of a target. Raises E022, E023.

        All KBs are fetched and checked before the first one changes.
        """
        lock = lockfile.read_lock(self.path)
        kbs = lock.kbs
        if target is not None:
            wanted = lock.kb_at(target)
            if wanted is None:
                known = ", ".join(kb.target for kb in kbs) or "none"
                raise errors.lock_differs(str(self.path), [f"{target}: not locked; locked are: {known}"])
            kbs = (wanted,)
        planned = []
        for kb in kbs:
            request = InstallRequest(
                mode="install",
                target=lock.target_of(kb),
                force=force,
                dry_run=dry_run,
                kb_id=kb.id,
                locked=Locked(self.path, kb),
                with_index=with_index,
            )
            planned.append((request, self.installer.resolve_locked(kb, self.path, offline=offline)))
        if len(planned) > 1:
            for request, source in planned:
                self._apply(dataclasses.replace(request, dry_run=True), source, offline=offline)
        return [self._apply(request, source, offline=offline) for request, source in planned]

    def _apply(self, request: InstallRequest, source: KbSource, *, offline: bool) -> InstallReport:
        """Install; if an unverified cached copy may be older than the locked bytes, revalidate it and try again."""
        try:
            return self.installer.apply(request, source, offline=offline)
        except errors.ConflictError:
            if not source.requires_download or source.sha256 is not None:
                raise
        return self.installer.apply(request, source, offline=offline, revalidate=True)
