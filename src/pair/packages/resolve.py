"""The source of a KB: a named source, the dataset of the monorepo, a release index, or the latest release."""

import fnmatch
import logging
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urlsplit, urlunsplit

import msgspec

from pair import errors
from pair.network import RequestFault, has_host
from pair.packages import rules
from pair.values import KbSource, parse_json

if TYPE_CHECKING:
    from pair.web.http_client import HttpClient

logger = logging.getLogger(__name__)

MONOREPO_DATASET = "packages/knowledge-hub/dataset"
FEED_NAME = "releases.json"
_GITHUB_LIMIT_BYTES = 8 * 1024 * 1024


def resolve_source(
    source: str | None,
    *,
    offline: bool,
    folder: Path,
    latest_release: Callable[[], KbSource],
    from_feed: Callable[["FeedAddress"], KbSource],
) -> KbSource:
    """Return the source. Relative paths and the monorepo are below `folder`. Raises E001-E005, E007, E019, E020."""
    refuse_conflicting_options(source, offline=offline)
    shown = rules.hide_credentials(source) if source else source
    logger.debug("resolving the KB source", extra={"source": shown, "offline": offline, "folder": str(folder)})
    if source is not None and (feed := find_feed(source, folder)) is not None:
        logger.debug("asking a feed of releases", extra={"feed": rules.hide_credentials(feed.place)})
        return from_feed(feed)
    if source is not None:
        chosen, because = _choose_named(source, folder)
    else:
        dataset = folder / MONOREPO_DATASET
        exists = dataset.is_dir()
        logger.debug("checked for the monorepo dataset", extra={"path": str(dataset), "exists": exists})
        if exists:
            chosen = KbSource("monorepo", str(dataset), requires_download=False)
            because = "no --source, and the monorepo has a dataset"
        else:
            chosen, because = latest_release(), "no --source and no monorepo dataset: the latest release"
    location = rules.hide_credentials(chosen.location)
    logger.debug("chose the KB source", extra={"type": chosen.type, "location": location, "because": because})
    return chosen


def refuse_conflicting_options(source: str | None, *, offline: bool) -> None:
    """Raise E001 or E002 for an offline install without a local source."""  # source-5, source-6
    if not offline:
        return
    if not source:
        raise errors.offline_without_source()
    if rules.is_remote(source):
        raise errors.offline_with_url()


def _choose_named(source: str, folder: Path) -> tuple[KbSource, str]:
    """Return the source that an address or a path names, and the reason for the choice."""
    if rules.is_git(source):
        return KbSource("git", source, requires_download=True), "--source is a git repository"
    if rules.is_url(source):
        if not has_host(source):
            raise errors.source_format_unknown(source, suggestion="The URL names no host.")
        return KbSource("url", source, requires_download=True), "--source is a URL"
    if rules.is_in_bucket(source):
        suggestion = "An address in a bucket must be that of a release index: s3://bucket/prefix/releases.json"
        raise errors.source_format_unknown(source, suggestion=suggestion)
    absolute = os.path.abspath(folder / source)  # noqa: PTH100 - normalises ".." without following links
    exists = os.path.exists(absolute)  # noqa: PTH110 - a name the system cannot hold does not exist
    logger.debug("checked the path", extra={"path": absolute, "exists": exists})
    if not rules.is_local_path(source):
        suggestion = f"Did you mean ./{source} ?" if exists and source else ""
        raise errors.source_format_unknown(source, suggestion=suggestion)
    if not exists:
        raise errors.source_path_missing(absolute)
    return KbSource("local", absolute, requires_download=False), "--source is a path"


# ── addresses of release indexes ───────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class FeedAddress:
    """The address of a release index, and the wanted release."""

    named: str
    """The source that the user named."""
    place: str
    """The index itself: a URL, an absolute path, or an address in a bucket."""
    name: str = ""
    """The KB; empty for the only one."""
    version: str = ""
    """The version; empty for the latest."""


def find_feed(source: str, folder: Path) -> FeedAddress | None:
    """Return the release index that a source names; None for any other source, such as an existing path."""
    if rules.is_remote(source):
        return parse_remote_feed(source)
    if not rules.is_local_path(source):
        return None
    absolute = os.path.abspath(folder / source)  # noqa: PTH100 - as above
    if os.path.exists(absolute) and not absolute.endswith(f"/{FEED_NAME}"):  # noqa: PTH110 - as above
        return None
    address = parse_local_feed(absolute)
    return address if address is not None and os.path.isfile(address.place) else None  # noqa: PTH113 - as above


def parse_remote_feed(source: str) -> FeedAddress | None:
    """Parse `…/releases.json`, `…/releases.json#NAME`, `…/releases.json#NAME@VERSION` or `…/NAME@VERSION`."""
    if rules.is_git(source) or not rules.is_remote(source):
        return None
    address, _, wanted = source.partition("#")
    path, mark, query = address.partition("?")
    folder, _, last = path.rpartition("/")
    if path.count("/") < 3:  # The URL has no path, only a host.
        return None
    if last == FEED_NAME:
        return FeedAddress(source, address, *_split_version(unquote(wanted)))
    name, version = _split_pinned(unquote(last))
    if not name or wanted:
        return None
    return FeedAddress(source, f"{folder}/{FEED_NAME}{mark}{query}", name, version)


def parse_local_feed(path: str) -> FeedAddress | None:
    """Parse an absolute path in the same forms. The index need not exist."""
    match = re.fullmatch(rf"(.*/{re.escape(FEED_NAME)})(?:#([^/]*))?", path, re.DOTALL)
    if match:
        return FeedAddress(path, match[1], *_split_version(match[2] or ""))
    folder, _, last = path.rpartition("/")
    name, version = _split_pinned(last)
    return FeedAddress(path, f"{folder}/{FEED_NAME}", name, version) if name else None


def _split_version(wanted: str) -> tuple[str, str]:
    name, at, version = wanted.rpartition("@")
    return (name, version) if at else (wanted, "")


def _split_pinned(last: str) -> tuple[str, str]:
    """Split `NAME@VERSION`; return empty texts for the name of an archive or a repository."""
    name, _, version = last.rpartition("@")
    return (name, version) if name and version and not last.endswith((".zip", ".git")) else ("", "")


def locate_archive(place: str, file: str) -> str:
    """Return the address of an archive: the URL in the index, else beside the index."""
    if rules.is_url(file):
        return file
    if rules.is_url(place):
        parts = urlsplit(place)
        folder = parts.path.rpartition("/")[0]
        return urlunsplit(parts._replace(path=f"{folder}/{quote(file)}", query="", fragment=""))
    return f"{place.rpartition('/')[0]}/{file}"


def has_moved(installed: KbSource, installed_name: str, installed_sha256: str, offered: KbSource) -> bool:
    """Return whether an index now has different bytes for the installed version."""
    if installed.feed is None or offered.feed is None or installed.version != offered.version:
        return False
    old, new = _parse_stored(installed.feed), _parse_stored(offered.feed)
    is_same_kb = (new.name or installed_name) == (old.name or installed_name)
    return old.place == new.place and is_same_kb and installed_sha256 not in {"", offered.sha256}


def _parse_stored(feed: str) -> FeedAddress:
    stored = rules.strip_user(feed)
    return (parse_remote_feed(stored) if rules.is_remote(stored) else parse_local_feed(stored)) or FeedAddress(
        stored, stored
    )


# ── the latest release on GitHub ───────────────────────────────────────────────────────────────────


class _GithubAsset(msgspec.Struct):
    name: str
    browser_download_url: str
    digest: str | None = None


class _GithubRelease(msgspec.Struct):
    tag_name: str
    assets: list[_GithubAsset]


def latest_release(web: "HttpClient", settings: rules.SourcesSettings) -> KbSource:
    """Return the archive of `default_url`, else of the latest release on GitHub. Raises E005."""  # source-10
    if settings.default_url:
        logger.debug("default KB from the settings", extra={"url": rules.hide_credentials(settings.default_url)})
        return KbSource("github-release", settings.default_url, requires_download=True)
    address = f"{settings.github_api_url.rstrip('/')}/repos/{settings.release_repository}/releases/latest"
    try:
        answer = web.read(address, {"Accept": "application/vnd.github+json"}, limit_bytes=_GITHUB_LIMIT_BYTES)
    except RequestFault as fault:
        raise errors.download_failed(address, fault.reason) from fault
    if answer.status != 200:
        reason = "no release there" if answer.status == 404 else "set GITHUB_TOKEN if access is limited"
        raise errors.download_failed(address, f"HTTP {answer.status}: {reason}")
    try:
        release = parse_json(answer.body, _GithubRelease)
    except (ValueError, RecursionError) as fault:
        raise errors.download_failed(address, "the answer is not a release feed") from fault
    archives = sorted((asset for asset in release.assets if asset.name.endswith(".zip")), key=lambda asset: asset.name)
    named = [asset for asset in archives if fnmatch.fnmatch(asset.name, settings.release_asset)]
    if not named and len(archives) != 1:
        raise errors.download_failed(address, f"release {release.tag_name} has no asset {settings.release_asset}")
    asset = (named or archives)[0]
    if not has_host(asset.browser_download_url):
        raise errors.download_failed(address, f"release {release.tag_name} has an asset without a valid address")
    kind, _, digest = (asset.digest or "").partition(":")
    source = KbSource(
        "github-release",
        asset.browser_download_url,
        requires_download=True,
        version=release.tag_name.removeprefix("v"),
        sha256=digest.lower() if kind == "sha256" and len(digest) == 64 else None,
    )
    shown = rules.hide_credentials(source.location)
    logger.debug("latest release", extra={"feed": address, "version": source.version, "asset": shown})
    return source
