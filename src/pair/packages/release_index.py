"""A feed of releases: which versions of which KBs there are, where, and what their bytes are. E019, E020.

The feed is `releases.json`, and it is all that makes a registry of a host of static files.
"""

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pair import errors
from pair.packages.release_rules import FeedAddress, archive_location, latest, version_order
from pair.packages.rules import (
    is_on_one_line,
    is_remote,
    is_url,
    name_fault,
    package_label_fault,
    without_credentials,
)
from pair.values import KbSource

SCHEMA_VERSION = 1
LIMIT_BYTES = 8 * 1024 * 1024
_LONGEST_TEXT = 1000


@dataclass(frozen=True, slots=True)
class Release:
    version: str
    file: str
    """Beside the feed, or a URL."""
    size_bytes: int
    sha256: str
    content_checksum: str = ""
    manifest_sha256: str = ""
    """Of the manifest that lies beside the archive, if one does."""
    embedder: str = ""
    """Of the index in it, if there is one."""
    signature: bool = False
    """Whether one lies beside the archive."""
    published_at: str = ""

    def with_sidecars_of(self, other: "Release") -> "Release":
        """What lies beside the archive may come later than the archive, and does not go."""
        return dataclasses.replace(
            self,
            manifest_sha256=other.manifest_sha256 or self.manifest_sha256,
            signature=other.signature or self.signature,
        )


@dataclass(frozen=True)
class ReleaseIndex:
    kbs: Mapping[str, tuple[Release, ...]]

    def find(self, name: str, version: str) -> Release | None:
        return next((release for release in self.kbs.get(name, ()) if release.version == version), None)

    def with_release(self, name: str, release: Release) -> "ReleaseIndex":
        others = [each for each in self.kbs.get(name, ()) if each.version != release.version]
        return ReleaseIndex({**self.kbs, name: _in_order([*others, release])})

    def to_bytes(self) -> bytes:
        """The same releases give the same bytes."""
        kbs = {
            name: {"releases": [dataclasses.asdict(release) for release in _in_order(self.kbs[name])]}
            for name in sorted(self.kbs)
        }
        value = {"schema_version": SCHEMA_VERSION, "kbs": kbs}
        return json.dumps(value, indent=2, ensure_ascii=False).encode() + b"\n"


def _in_order(releases: Iterable[Release]) -> tuple[Release, ...]:
    return tuple(sorted(releases, key=lambda release: version_order(release.version)))


# ── choosing ───────────────────────────────────────────────────────────────────────────────────────


def choose(feed: ReleaseIndex, address: FeedAddress) -> tuple[str, Release]:
    """The KB and its release that the address means. Raises E020."""
    shown = without_credentials(address.place)
    name = address.name
    if not name:
        if len(feed.kbs) != 1:
            reason = "it has several KBs" if feed.kbs else "it is empty"
            raise errors.release_missing(shown, reason, _latest_of_each(feed))
        [name] = feed.kbs
    if not feed.kbs.get(name):
        raise errors.release_missing(shown, name, _latest_of_each(feed))
    versions = [release.version for release in feed.kbs[name]]
    found = feed.find(name, address.version or latest(versions))
    if found is None:
        known = [f"{name} {version}" for version in versions]
        raise errors.release_missing(shown, f"{name} {address.version}", known)
    return name, found


def _latest_of_each(feed: ReleaseIndex) -> list[str]:
    return [
        f"{name} {latest([release.version for release in releases])}"
        for name, releases in sorted(feed.kbs.items())
        if releases
    ]


def source_of(release: Release, address: FeedAddress) -> KbSource:
    location = archive_location(address.place, release.file)
    is_away = is_remote(location)
    return KbSource(
        "url" if is_away else "local",
        location,
        is_away,
        release.version,
        sha256=release.sha256,
        manifest_sha256=release.manifest_sha256 or None,
        feed=address.named,
    )


# ── reading ────────────────────────────────────────────────────────────────────────────────────────


def parse_feed(content: bytes, shown: str) -> ReleaseIndex:
    """Everything is checked, for the feed may be anybody's. Raises E019."""
    if len(content) > LIMIT_BYTES:
        raise errors.feed_unreadable(shown, f"It is longer than {LIMIT_BYTES} bytes.")
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as fault:
        raise errors.feed_unreadable(shown, "It is not JSON.") from fault
    if not isinstance(value, dict) or "schema_version" not in value:
        raise errors.feed_unreadable(shown, "It is not a feed of releases: it has no schema_version.")
    schema_version = value["schema_version"]
    if schema_version != SCHEMA_VERSION or isinstance(schema_version, bool | float):
        reason = f"It was written by another version of pair: it has schema {schema_version!r:.40}."
        raise errors.feed_unreadable(shown, reason)
    try:
        return ReleaseIndex({name: _releases_from(name, entry["releases"]) for name, entry in value["kbs"].items()})
    except (ValueError, KeyError, TypeError, AttributeError) as fault:
        raise errors.feed_unreadable(shown, f"It is damaged: {fault!s:.200}") from fault


def _releases_from(name: str, values: Any) -> tuple[Release, ...]:
    if not isinstance(values, list):
        raise ValueError(f"the releases of {name!r:.80} are no list")
    releases = [_release_from(name, value) for value in values]
    if len({release.version for release in releases}) != len(releases):
        raise ValueError(f"a version of {name!r:.80} is there twice")
    return _in_order(releases)


def _release_from(name: str, value: Any) -> Release:
    release = Release(
        version=_text(value["version"]),
        file=_text(value["file"]),
        size_bytes=value["size_bytes"],
        sha256=_text(value["sha256"]),
        content_checksum=_text(value.get("content_checksum", "")),
        manifest_sha256=_text(value.get("manifest_sha256", "")),
        embedder=_text(value.get("embedder", "")),
        signature=value.get("signature", False),
        published_at=_text(value.get("published_at", "")),
    )
    if (fault := package_label_fault(_text(name), release.version)) is not None:
        raise ValueError(fault)
    if not _is_plain(release.file):
        raise ValueError(f"{release.file!r:.80} is neither a plain name nor a URL")
    if not re.fullmatch(r"[0-9a-f]{64}", release.sha256):
        raise ValueError(f"{release.sha256!r:.80} is no SHA-256")
    if type(release.size_bytes) is not int or release.size_bytes < 0 or type(release.signature) is not bool:
        raise ValueError("something else where a number or a truth belongs")
    return release


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > _LONGEST_TEXT or not is_on_one_line(value):
        raise ValueError(f"no text on one line: {value!r:.80}")
    return value


def _is_plain(file: str) -> bool:
    if is_url(file):
        return not re.search(r"\s", file)
    return "://" not in file and name_fault(file) is None
