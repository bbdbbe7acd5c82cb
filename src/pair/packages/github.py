"""The latest release of a repository: which archive, which version, which published digest."""

import fnmatch
import json
import logging
from typing import Any

from pair import errors
from pair.packages.rules import SourcesSettings, without_credentials
from pair.values import KbSource
from pair.web.http_answer import RequestFault
from pair.web.http_client import HttpClient

logger = logging.getLogger(__name__)

_FEED_LIMIT_BYTES = 8 * 1024 * 1024


def latest_release(web: HttpClient, policy: SourcesSettings) -> KbSource:
    """Asks the release feed, unless `default_url` names the archive. Raises E005."""  # source-10
    if policy.default_url:
        logger.debug("default KB from the settings", extra={"url": without_credentials(policy.default_url)})
        return KbSource("github-release", policy.default_url, requires_download=True)
    address = f"{policy.github_api_url.rstrip('/')}/repos/{policy.release_repository}/releases/latest"
    release = _read_feed(web, address)
    try:
        asset = _choose_asset(release["assets"], policy.release_asset)
        if asset is None:
            tag = release["tag_name"]
            raise errors.download_failed(address, f"release {tag} has no asset {policy.release_asset}")
        source = KbSource(
            "github-release",
            str(asset["browser_download_url"]),
            requires_download=True,
            version=str(release["tag_name"]).removeprefix("v"),
            sha256=_digest_of(asset),
        )
    except (KeyError, TypeError) as fault:
        raise errors.download_failed(address, "the answer is not a release feed") from fault
    logger.debug(
        "latest release",
        extra={"feed": address, "version": source.version, "asset": without_credentials(source.location)},
    )
    return source


def _read_feed(web: HttpClient, address: str) -> Any:
    try:
        answer = web.read(address, {"Accept": "application/vnd.github+json"}, limit_bytes=_FEED_LIMIT_BYTES)
    except RequestFault as fault:
        raise errors.download_failed(address, fault.reason) from fault
    if answer.status != 200:
        reason = "no release there" if answer.status == 404 else "set GITHUB_TOKEN if access is limited"
        raise errors.download_failed(address, f"HTTP {answer.status}: {reason}")
    try:
        return json.loads(answer.body)
    except (ValueError, RecursionError) as fault:
        raise errors.download_failed(address, "the answer is not JSON") from fault


def _choose_asset(assets: list[dict[str, Any]], pattern: str) -> dict[str, Any] | None:
    """The archive with the expected name; else the only archive there is."""
    named_zip = [asset for asset in assets if isinstance(asset["name"], str) and asset["name"].endswith(".zip")]
    archives = sorted(named_zip, key=lambda asset: str(asset["name"]))
    named = [asset for asset in archives if fnmatch.fnmatch(asset["name"], pattern)]
    if named:
        return named[0]
    return archives[0] if len(archives) == 1 else None


def _digest_of(asset: dict[str, Any]) -> str | None:
    kind, _, digest = str(asset.get("digest") or "").partition(":")
    return digest.lower() if kind == "sha256" and len(digest) == 64 else None
