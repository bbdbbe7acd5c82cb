"""The release index `releases.json`: read it, choose a release, publish to a folder or a bucket; E019-E021.

Invariants
    Readers see complete files only. A file is published before the index names it.
    Concurrent publishers never remove each other's releases from the index.
    A published version never changes: the first writer of its `.sha256` decides on its bytes.
    After a kill at any moment the old index is intact, and the same command finishes the publication.
"""

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from pair import errors, files
from pair.blobs.contract import BlobStore, VersionMismatchError
from pair.clock import Clock, to_timestamp
from pair.network import RequestFault
from pair.packages import rules
from pair.packages.cache import Facts, Validators
from pair.packages.package import PackageManifest
from pair.packages.partial_download import ChangedError, RemotePackage
from pair.packages.resolve import FEED_NAME, FeedAddress, locate_archive
from pair.values import KbSource, convert_json

if TYPE_CHECKING:
    from pair.web.http_client import HttpClient

SCHEMA_VERSION = 1
LIMIT_BYTES = 8 * 1024 * 1024
_MOST_ATTEMPTS = 30
_BLOCK_BYTES = 8 * 1024 * 1024

_Text = Annotated[rules.OneLine, Meta(max_length=1000)]


class Release(msgspec.Struct, frozen=True):
    version: _Text
    file: _Text
    """The archive: a file name beside the index, or a URL."""
    size_bytes: Annotated[int, Meta(ge=0)]
    sha256: rules.Sha256
    content_checksum: _Text = ""
    manifest_sha256: _Text = ""
    """Hash of the manifest beside the archive, if there is one."""
    embedder: _Text = ""
    """The embedder of the packaged index, if there is one."""
    signature: bool = False
    """Whether a signature is beside the archive."""
    published_at: _Text = ""


class _StoredReleases(msgspec.Struct):
    releases: list[Release]


@dataclass(frozen=True)
class ReleaseIndex:
    kbs: Mapping[str, tuple[Release, ...]]

    def find(self, name: str, version: str) -> Release | None:
        return next((release for release in self.kbs.get(name, ()) if release.version == version), None)

    def with_release(self, name: str, release: Release) -> "ReleaseIndex":
        others = [other for other in self.kbs.get(name, ()) if other.version != release.version]
        return ReleaseIndex({**self.kbs, name: _sort_releases([*others, release])})

    def to_bytes(self) -> bytes:
        """Encode the index. The same releases give the same bytes."""
        kbs = {
            name: {"releases": [msgspec.structs.asdict(release) for release in _sort_releases(self.kbs[name])]}
            for name in sorted(self.kbs)
        }
        value = {"schema_version": SCHEMA_VERSION, "kbs": kbs}
        return json.dumps(value, indent=2, ensure_ascii=False).encode() + b"\n"


def _sort_releases(releases: Iterable[Release]) -> tuple[Release, ...]:
    return tuple(sorted(releases, key=lambda release: version_key(release.version)))


# ── versions ───────────────────────────────────────────────────────────────────────────────────────

_PRE_RELEASE = re.compile(
    r"""[vV]?(?P<core>[0-9]+(?:\.[0-9]+)*)
    (?:-(?P<hyphened>[^+]*[A-Za-z][^+]*)           # 1.2.0-rc1
    |[._]?(?P<glued>(?:a|b|c|rc|alpha|beta|pre|preview|dev)[._]?[0-9]*))  # 1.2.0rc1
    (?:\+.*)?""",
    re.VERBOSE | re.DOTALL,
)

_Parts = tuple[tuple[int, int, str], ...]


def is_pre_release(version: str) -> bool:
    """Return whether a version is a pre-release: `1.2.0-rc1`, `1.2.0rc1`; not `2026-01-31`."""
    return _PRE_RELEASE.fullmatch(version) is not None


def version_key(version: str) -> tuple[_Parts, bool, _Parts, str]:
    """Return a sort key: numbers by value, and pre-releases before their release."""
    match = _PRE_RELEASE.fullmatch(version)
    if match is None:
        return _strip_zeros(_split_version(version.lower().removeprefix("v").partition("+")[0])), True, (), version
    before = match["hyphened"] or match["glued"]
    return _strip_zeros(_split_version(match["core"])), False, _split_version(before.lower()), version


def is_older(version: str, other: str) -> bool:
    """Return whether a version is older than another one; 1.2 and 1.2.0 are equal."""
    return bool(other) and version_key(version)[:3] < version_key(other)[:3]


def find_latest(versions: list[str]) -> str:
    """Return the latest version; a pre-release only if there are no others."""
    released = [version for version in versions if not is_pre_release(version)]
    return max(released or versions, key=version_key)


def _split_version(text: str) -> _Parts:
    """Return parts that sort words before numbers, and numbers of any length by value."""
    parts = re.findall(r"([0-9]+)|([^0-9._-]+)", text)
    numbers = ((digits.lstrip("0"), word) for digits, word in parts)
    return tuple((0, 0, word) if word else (1, len(digits), digits) for digits, word in numbers)


def _strip_zeros(parts: _Parts) -> _Parts:
    """Return 1.2 for 1.2.0."""
    end = len(parts)
    while end and parts[end - 1] == (1, 0, ""):
        end -= 1
    return parts[:end]


# ── choosing ───────────────────────────────────────────────────────────────────────────────────────


def choose(feed: ReleaseIndex, address: FeedAddress) -> tuple[str, Release]:
    """Return the name of the KB and the release that the address names. Raises E020."""
    shown = rules.hide_credentials(address.place)
    name = address.name
    if not name:
        if len(feed.kbs) != 1:
            reason = "it has several KBs" if feed.kbs else "it is empty"
            raise errors.release_missing(shown, reason, _list_latest(feed))
        [name] = feed.kbs
    if not feed.kbs.get(name):
        raise errors.release_missing(shown, name, _list_latest(feed))
    versions = [release.version for release in feed.kbs[name]]
    release = feed.find(name, address.version or find_latest(versions))
    if release is None:
        available = [f"{name} {version}" for version in versions]
        raise errors.release_missing(shown, f"{name} {address.version}", available)
    return name, release


def _list_latest(feed: ReleaseIndex) -> list[str]:
    kbs = sorted((name, releases) for name, releases in feed.kbs.items() if releases)
    return [f"{name} {find_latest([release.version for release in releases])}" for name, releases in kbs]


def to_source(release: Release, address: FeedAddress) -> KbSource:
    location = locate_archive(address.place, release.file)
    requires_download = rules.is_remote(location)
    return KbSource(
        "url" if requires_download else "local",
        location,
        requires_download,
        release.version,
        sha256=release.sha256,
        manifest_sha256=release.manifest_sha256 or None,
        feed=address.named,
    )


# ── reading ────────────────────────────────────────────────────────────────────────────────────────


def read_remote_feed(web: "HttpClient", url: str) -> bytes:
    """Request the release index of a host. Raises E005, E019."""
    shown = rules.hide_credentials(url)
    try:
        answer = web.read(url, {"Accept": "application/json"}, limit_bytes=LIMIT_BYTES)
    except RequestFault as fault:
        if fault.was_reached and not fault.retryable:
            raise errors.feed_unreadable(shown, f"The answer cannot be used: {fault.reason}") from fault
        raise errors.download_failed(shown, fault.reason) from fault
    if answer.status != 200:
        reason = "there is no release index" if answer.status in {404, 410} else "the release index cannot be read"
        raise errors.download_failed(shown, f"HTTP {answer.status}: {reason}")
    return answer.body


def read_file(path: Path) -> bytes | None:
    """Return the file, cut one byte beyond the size limit of an index; None if there is no such file."""
    try:
        with files.storage_errors(), path.open("rb") as stream:
            return stream.read(LIMIT_BYTES + 1)
    except errors.StorageError:
        if path.exists():
            raise
        return None


def parse_feed(content: bytes, shown: str) -> ReleaseIndex:
    """Parse and check an index, which may be hostile. Raises E019."""
    if len(content) > LIMIT_BYTES:
        raise errors.feed_unreadable(shown, f"It is longer than {LIMIT_BYTES} bytes.")
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as fault:
        raise errors.feed_unreadable(shown, "It is not JSON.") from fault
    if not isinstance(value, dict) or "schema_version" not in value:
        raise errors.feed_unreadable(shown, "It is not a release index: it has no schema_version.")
    schema_version = value["schema_version"]
    if schema_version != SCHEMA_VERSION or isinstance(schema_version, bool | float):
        reason = f"It was written by another version of pair: it has schema {schema_version!r:.40}."
        raise errors.feed_unreadable(shown, reason)
    try:
        kbs = convert_json(value.get("kbs"), dict[_Text, _StoredReleases])
        return ReleaseIndex({name: _check_releases(name, kb.releases) for name, kb in kbs.items()})
    except ValueError as fault:
        raise errors.feed_unreadable(shown, f"It is damaged: {fault!s:.200}") from fault


def _check_releases(name: str, releases: list[Release]) -> tuple[Release, ...]:
    """Check rules that types cannot express. Raises ValueError."""
    for release in releases:
        if (fault := rules.find_label_fault(name, release.version)) is not None:
            raise ValueError(fault)
        is_plain_name = "://" not in release.file and rules.find_name_fault(release.file) is None
        is_plain_url = rules.is_url(release.file) and not re.search(r"\s", release.file)
        if not (is_plain_name or is_plain_url):
            raise ValueError(f"{release.file!r:.80} is neither a plain name nor a URL")
    if len({release.version for release in releases}) != len(releases):
        raise ValueError(f"a version of {name!r:.80} is listed twice")
    return _sort_releases(releases)


# ── folders and buckets ────────────────────────────────────────────────────────────────────────────

Change = Callable[[bytes | None], bytes]
"""A function that returns the new index for the current one, which is None at first. It is called again after a
conflict.
"""


class FolderTarget:
    """A folder of plain files, which any host can serve."""

    def __init__(self, folder: Path, on_wait: Callable[[str], None]) -> None:
        """Use a folder. `on_wait`: called with the name of the publisher to wait for."""
        self.address = str(folder)
        self._folder = Path(os.path.realpath(folder))
        self._on_wait = on_wait

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Exclude other publishers while the block runs."""
        with files.storage_errors(), files.lock_folder(self._folder, on_wait=self._on_wait):
            yield

    def read(self, name: str) -> bytes | None:
        return read_file(self._folder / name)

    def claim(self, name: str, content: bytes) -> bytes:
        """Create a small file if there is none. Return its content afterwards."""
        files.remove_half_written(self._folder / name)
        if present := self.read(name):
            return present
        files.write_atomically(self._folder / name, content)
        return content

    def put(self, name: str, path: Path) -> None:
        destination = self._folder / name
        files.remove_half_written(destination)
        if not (destination.exists() and destination.samefile(path)):
            files.copy_atomically(path, destination)

    def change_feed(self, change: Change) -> None:
        feed = self._folder / FEED_NAME
        files.remove_half_written(feed)
        files.write_atomically(feed, change(self.read(FEED_NAME)))


class BucketTarget:
    """A bucket, with the methods of `FolderTarget`."""

    def __init__(self, store: BlobStore, pause_before: Callable[[int], None]) -> None:
        """Use a bucket. `pause_before`: waits before the attempt of this number."""
        self.address = store.address
        self._store = store
        self._pause_before = pause_before

    def lock(self) -> contextlib.AbstractContextManager[None]:
        """Do nothing: `claim` and `change_feed` decide between concurrent publishers."""
        return contextlib.nullcontext()

    def read(self, name: str) -> bytes | None:
        return self._store.get_range(name, 0, LIMIT_BYTES + 1)

    def claim(self, name: str, content: bytes) -> bytes:
        try:
            self._store.create(name, content)
        except VersionMismatchError:
            return self.read(name) or b""
        return content

    def put(self, name: str, path: Path) -> None:
        self._store.upload(name, path)

    def change_feed(self, change: Change) -> None:
        for attempt in range(1, _MOST_ATTEMPTS + 1):
            blob = self._store.get(FEED_NAME)
            content = change(blob.data if blob is not None else None)
            try:
                if blob is None:
                    self._store.create(FEED_NAME, content)
                else:
                    self._store.put_if(FEED_NAME, content, blob.version)
            except VersionMismatchError:
                self._pause_before(attempt)
            else:
                return
        raise errors.store_unreachable(self.address, "Other publishers kept changing the feed")


PublishTarget = FolderTarget | BucketTarget


@dataclass(frozen=True)
class StoredFile:
    """A file in a bucket that is read in parts."""

    store: BlobStore
    key: str
    size_bytes: int

    def read(self, start: int, length: int) -> bytes:
        content = self.store.get_range(self.key, start, length)
        if content is None or len(content) != min(length, self.size_bytes - start):
            raise ChangedError(self.key)
        return content

    def copy(self, start: int, length: int, path: Path) -> None:
        with path.open("xb") as stream:
            for begin in range(start, start + length, _BLOCK_BYTES):
                stream.write(self.read(begin, min(_BLOCK_BYTES, start + length - begin)))


@dataclass(frozen=True)
class BucketFetcher:
    """The downloader of archives from buckets, with the methods of `Downloader`."""

    store_at: Callable[[str], BlobStore]
    settings: rules.SourcesSettings

    def parts(self, url: str, *, sha256: str | None) -> RemotePackage | None:
        store, key = self._open(url)
        manifest = store.get_range(key + rules.MANIFEST_SUFFIX, 0, rules.MANIFEST_LIMIT_BYTES + 1)
        size_bytes = self._check_size(store, key, url)
        if manifest is None or len(manifest) > rules.MANIFEST_LIMIT_BYTES or size_bytes is None or sha256 is None:
            return None
        return RemotePackage(manifest, sha256, StoredFile(store, key, size_bytes), Validators())

    def signature(self, url: str) -> bytes | None:
        store, key = self._open(url)
        return store.get_range(key + rules.SIGNATURE_SUFFIX, 0, rules.SIGNATURE_LIMIT_BYTES)

    def fetch(self, url: str, part: Path, *, sha256: str | None, known: Facts | None) -> Facts | None:
        """Download like `Downloader.fetch`. A broken transfer starts over."""
        if known is not None and sha256 == known.identity:
            return None
        files.make_folder(part.parent)
        files.unlink(part, missing_ok=True)
        store, key = self._open(url)
        self._check_size(store, key, url)
        if not store.download(key, part):
            raise errors.download_failed(url, "there is no such object in the bucket")
        actual = files.hash_file(part)
        if sha256 not in {None, actual}:
            files.unlink(part)
            raise errors.checksum_failed(f"File: {url}", [f"Expected SHA-256: {sha256}", f"Actual SHA-256:   {actual}"])
        return Facts(actual, verified=sha256 is not None, etag=None, last_modified=None, hashes={})

    def _open(self, url: str) -> tuple[BlobStore, str]:
        folder, _, key = url.rpartition("/")
        return self.store_at(folder), key

    def _check_size(self, store: BlobStore, key: str, url: str) -> int | None:
        size_bytes = next((info.size_bytes for info in store.list(key) if info.key == key), None)
        limit_bytes = self.settings.max_download_bytes
        if size_bytes is not None and size_bytes > limit_bytes:
            reason = f"it has more than {limit_bytes} bytes, the limit of sources.max_download_bytes"
            raise errors.archive_refused(url, reason)
        return size_bytes


# ── publishing ─────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class PublishReport:
    place: str
    name: str
    release: Release
    is_new: bool
    """False if the release was published before."""
    skipped: tuple[tuple[str, str], ...] = ()
    """Skipped files of the folder, if one was packaged."""
    site: str = ""
    """The folder of the site that answers in the browser, if one was written."""

    @property
    def source(self) -> str:
        """The --source that installs the latest release."""
        place = self.place if rules.is_in_bucket(self.place) or rules.is_local_path(self.place) else f"./{self.place}"
        return f"{place.rstrip('/')}/{FEED_NAME}#{self.name}"

    def to_json(self) -> dict[str, Any]:
        shown = ("version", "file", "size_bytes", "sha256", "signature", "published_at")
        return {
            "place": self.place,
            "feed": f"{self.place.rstrip('/')}/{FEED_NAME}",
            "source": self.source,
            "name": self.name,
            **{name: getattr(self.release, name) for name in shown},
            "is_new": self.is_new,
            "site": self.site,
            "skipped": [{"path": path, "reason": reason} for path, reason in self.skipped],
        }


def publish(package: Path, manifest: PackageManifest, place: PublishTarget, clock: Clock) -> PublishReport:
    """Publish a verified package, and the index last. Raises E014, E019, E021 and the errors of the target."""
    release = _describe_release(package, manifest, clock)
    with place.lock():
        known = _parse_feed_at(place, place.read(FEED_NAME)).find(manifest.name, release.version)
        wanted = _merge_release(place, manifest.name, known, release)
        if wanted == known:
            return PublishReport(place.address, manifest.name, known, is_new=False)
        # The checksum comes first: it decides between two publishers of one version with different bytes.
        content = place.claim(f"{release.file}.sha256", f"{release.sha256}  {release.file}\n".encode())
        claimed = rules.parse_checksum(content.decode("utf-8", errors="replace"), release.file)
        if claimed != release.sha256:
            label = f"{manifest.name} {release.version}"
            raise errors.version_published(place.address, label, claimed or "unreadable", release.sha256)
        for suffix in ("", *rules.SIDECAR_SUFFIXES):
            path = package.with_name(package.name + suffix)
            if path.is_file():
                place.put(release.file + suffix, path)

        def add_release(content: bytes | None) -> bytes:
            feed = _parse_feed_at(place, content)
            merged = _merge_release(place, manifest.name, feed.find(manifest.name, release.version), wanted)
            return feed.with_release(manifest.name, merged).to_bytes()

        place.change_feed(add_release)
    return PublishReport(place.address, manifest.name, wanted, is_new=True)


def _describe_release(package: Path, manifest: PackageManifest, clock: Clock) -> Release:
    file = f"{manifest.name}-{manifest.version}.zip"
    if (fault := rules.find_file_name_fault(file)) is not None:
        raise errors.cannot_package(str(package), fault)
    beside = package.with_name(package.name + rules.MANIFEST_SUFFIX)
    with files.storage_errors():
        return Release(
            version=manifest.version,
            file=file,
            size_bytes=package.stat().st_size,
            sha256=files.hash_file(package),
            content_checksum=f"sha256:{manifest.content_checksum}",
            manifest_sha256=files.hash_file(beside) if beside.is_file() else "",
            embedder=manifest.index.embedder if manifest.index is not None else "",
            signature=package.with_name(package.name + rules.SIGNATURE_SUFFIX).is_file(),
            published_at=to_timestamp(clock.now()),
        )


def _parse_feed_at(place: PublishTarget, content: bytes | None) -> ReleaseIndex:
    return ReleaseIndex({}) if content is None else parse_feed(content, f"{place.address.rstrip('/')}/{FEED_NAME}")


def _merge_release(place: PublishTarget, name: str, known: Release | None, given: Release) -> Release:
    """Return the new entry of a release. Raises E021 if a published version has different bytes."""
    if known is None:
        return given
    if known.sha256 != given.sha256:
        raise errors.version_published(place.address, f"{name} {given.version}", known.sha256, given.sha256)
    # Files beside the archive may be published later than the archive, and stay.
    return msgspec.structs.replace(
        known,
        manifest_sha256=given.manifest_sha256 or known.manifest_sha256,
        signature=given.signature or known.signature,
    )
