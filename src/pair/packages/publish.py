"""Publish a package: the archive, its checksum and what lies beside it, and last of all the feed. E021.

Invariants
    A version that is published never changes. Whoever writes its `.sha256` first says what its bytes are.
    Killed at any moment, the old feed is whole, and the same command finishes what was begun.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pair import errors, files
from pair.clock import Clock, to_timestamp
from pair.packages.package import PackageManifest
from pair.packages.publish_targets import PublishTarget
from pair.packages.release_index import Release, ReleaseIndex, parse_feed
from pair.packages.release_rules import FEED_NAME
from pair.packages.rules import (
    MANIFEST_SUFFIX,
    SIGNATURE_SUFFIX,
    file_name_fault,
    is_in_bucket,
    is_local_path,
    parse_checksum,
)

_SIDECARS = (MANIFEST_SUFFIX, SIGNATURE_SUFFIX, MANIFEST_SUFFIX + SIGNATURE_SUFFIX)


@dataclass(frozen=True)
class PublishReport:
    place: str
    name: str
    release: Release
    is_new: bool
    """False when all of it was published before."""
    skipped: tuple[tuple[str, str], ...] = ()
    """Of the folder, if one was packaged."""

    @property
    def source(self) -> str:
        """What others give as --source to get it, or what comes after it."""
        place = self.place if is_in_bucket(self.place) or is_local_path(self.place) else f"./{self.place}"
        return f"{place.rstrip('/')}/{FEED_NAME}#{self.name}"

    def to_json(self) -> dict[str, Any]:
        return {
            "place": self.place,
            "feed": f"{self.place.rstrip('/')}/{FEED_NAME}",
            "source": self.source,
            "name": self.name,
            "version": self.release.version,
            "file": self.release.file,
            "size_bytes": self.release.size_bytes,
            "sha256": self.release.sha256,
            "signature": self.release.signature,
            "published_at": self.release.published_at,
            "is_new": self.is_new,
            "skipped": [{"path": path, "reason": reason} for path, reason in self.skipped],
        }


def publish(package: Path, manifest: PackageManifest, place: PublishTarget, clock: Clock) -> PublishReport:
    """`package` was verified. Raises E014, E019, E021 and what the place raises."""
    release = _release_of(package, manifest, clock)
    with place.held():
        known = _feed_at(place, place.read(FEED_NAME)).find(manifest.name, release.version)
        wanted = _agreed(place, manifest.name, known, release)
        if wanted == known:
            return PublishReport(place.address, manifest.name, known, is_new=False)
        _claim(place, manifest.name, release)
        for suffix in ("", *_SIDECARS):
            path = package.with_name(package.name + suffix)
            if path.is_file():
                place.put(release.file + suffix, path)

        def with_release(content: bytes | None) -> bytes | None:
            feed = _feed_at(place, content)
            agreed = _agreed(place, manifest.name, feed.find(manifest.name, release.version), wanted)
            return feed.with_release(manifest.name, agreed).to_bytes()

        place.change_feed(with_release)
    return PublishReport(place.address, manifest.name, wanted, is_new=True)


def _release_of(package: Path, manifest: PackageManifest, clock: Clock) -> Release:
    file = f"{manifest.name}-{manifest.version}.zip"
    if (fault := file_name_fault(file)) is not None:
        raise errors.cannot_package(str(package), fault)
    described = package.with_name(package.name + MANIFEST_SUFFIX)
    with files.storage_errors():
        return Release(
            version=manifest.version,
            file=file,
            size_bytes=package.stat().st_size,
            sha256=files.hash_file(package),
            content_checksum=f"sha256:{manifest.content_checksum}",
            manifest_sha256=files.hash_file(described) if described.is_file() else "",
            embedder=manifest.index.embedder if manifest.index is not None else "",
            signature=package.with_name(package.name + SIGNATURE_SUFFIX).is_file(),
            published_at=to_timestamp(clock.now()),
        )


def _feed_at(place: PublishTarget, content: bytes | None) -> ReleaseIndex:
    return ReleaseIndex({}) if content is None else parse_feed(content, f"{place.address.rstrip('/')}/{FEED_NAME}")


def _agreed(place: PublishTarget, name: str, known: Release | None, given: Release) -> Release:
    """What the feed is to say of a release; other bytes for a version that it has are refused."""
    if known is None:
        return given
    if known.sha256 != given.sha256:
        raise errors.version_published(place.address, f"{name} {given.version}", known.sha256, given.sha256)
    return known.with_sidecars_of(given)


def _claim(place: PublishTarget, name: str, release: Release) -> None:
    """Between two who publish one version with different bytes at one time, the checksum decides, before any bytes."""
    checksum = f"{release.file}.sha256"
    found = place.claim(checksum, f"{release.sha256}  {release.file}\n".encode())
    claimed = parse_checksum(found.decode("utf-8", errors="replace"), release.file)
    if claimed != release.sha256:
        label = f"{name} {release.version}"
        raise errors.version_published(place.address, label, claimed or "unreadable", release.sha256)
