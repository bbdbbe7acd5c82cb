"""Getting, making and checking KB packages, under one set of settings."""

import contextlib
import dataclasses
import tempfile
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pair import errors, files, package_errors
from pair.clock import Clock, SystemClock
from pair.settings import Settings
from pair.sources import inspection, package, record, resolution
from pair.sources.cache import Cache
from pair.sources.contract import Observer, Signatures
from pair.sources.inspection import Description
from pair.sources.installation import Installation, InstallReport, Mode, Request
from pair.sources.offers import DamagedCopyError, Offers
from pair.sources.rules import RECORD_NAME, refuse_conflicting_options
from pair.values import KbSource

if TYPE_CHECKING:
    from pair.web.requests import Web


class SilentObserver:
    """For callers that want results only."""

    def say(self, text: str) -> None:
        pass

    @contextlib.contextmanager
    def transfer(self, name: str, total_bytes: int | None, have_bytes: int) -> Iterator[Callable[[int], None]]:
        yield lambda count: None


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
        return files.expanded(self.settings.kb.sources_dir)

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
        """Install or update; a damaged entry of the cache is fetched again. Raises E003-E013 and E015-E017."""
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
            locks = files.expanded(self.settings.sources.cache_dir).absolute() / ".locks"
            return Installation(request, self.clock, self.observer, token, locks).apply(offer)

    def package(
        self,
        folder: Path,
        output: Path | None,
        label: package.Label,
        *,
        key: Path | None = None,
        ask_password: Callable[[], str] = str,
    ) -> package.PackageReport:
        """With a `key`, signed too; `ask_password` is asked when nothing else opens it. Raises E010, E012, E014, E024.

        The key is opened first: one that cannot be used leaves everything as it is.
        """
        if key is None:
            return package.make_package(folder, output, label=label, dated=self.settings.source_date)
        from pair.sources.signing import read_secret_key, sign_package  # noqa: PLC0415 - see the package's first lines

        if key.resolve().is_relative_to(folder.resolve()):
            raise errors.cannot_package(str(folder), f"the secret key lies in it: {key}")
        secret = read_secret_key(key, lambda: self.settings.sign_password or ask_password())
        report = package.make_package(folder, output, label=label, dated=self.settings.source_date)
        sign_package(report, secret)
        return dataclasses.replace(report, signed_by=secret.public.id)

    def verify(self, path: Path, identity: str | None = None) -> inspection.Verification:
        """`identity` is the key that must have signed it; without one, those of the settings count."""
        signatures = self._signatures() if identity is None else _identified(identity)
        if identity is not None and signatures is not None and path.is_dir():
            signatures.refuse_unsigned(str(path), "a folder carries none")
        return inspection.verify(path, self.settings.sources, signatures)

    def describe(self, path: Path) -> inspection.Description:
        return inspection.describe(path, self.settings.sources)

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
        from pair.sources.signing import TrustedKeys, read_public_key  # noqa: PLC0415 - see the package's first lines

        name = "sources.signature_keys"
        try:
            keys = [read_public_key(each) for each in policy.signature_keys]
        except ValueError as fault:
            raise errors.settings_invalid(places.get(name, name), f"{name}: {fault}") from fault
        return TrustedKeys(keys, is_required=policy.require_signature)

    def _cache(self, token: str) -> Cache:
        return Cache(files.expanded(self.settings.sources.cache_dir).absolute(), self.clock, self.observer, token)

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
        signatures = self._signatures()
        if not with_network:
            yield Offers(self._cache(token), None, policy, token, signatures)
            return
        from pair.sources.download import Downloader  # noqa: PLC0415 - see the module's first lines

        with self._web() as web:
            yield Offers(self._cache(token), Downloader(web, policy, self.observer), policy, token, signatures)

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


def _identified(identity: str) -> Signatures:
    from pair.sources.signing import TrustedKeys, read_public_key  # noqa: PLC0415 - see the package's first lines

    try:
        return TrustedKeys([read_public_key(identity)], is_required=True)
    except ValueError as fault:
        raise package_errors.key_unusable(identity, str(fault)) from fault


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
