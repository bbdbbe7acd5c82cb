"""The cache of downloaded KBs: folders `<cache>/<key>/`.

Invariants
    A folder `<key>` appears by one rename after everything in it was verified, so a folder that exists is whole. What a
    disk or a power cut makes of it later shows when its files are taken: they are hashed on the way.
    One process at a time fills a key; the others wait and then use it.
"""

import contextlib
import hashlib
import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from pair import files
from pair.clock import Clock, to_timestamp
from pair.packages import folders
from pair.packages.rules import ENTRY_NAME, hide_credentials, is_named_by_content, make_cache_key, stays_inside
from pair.values import KbSource

if TYPE_CHECKING:
    from pair.packages.content import Observer

logger = logging.getLogger(__name__)

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Validators:
    """What a server says about the version of a file."""

    etag: str | None = None
    last_modified: str | None = None

    @property
    def for_range(self) -> str | None:
        """The value of `If-Range`: only a strong ETag names the bytes; a date is the second choice."""
        is_strong = self.etag and not self.etag.startswith("W/")
        return self.etag if is_strong else self.last_modified

    def conditions(self) -> dict[str, str]:
        headers = {"If-None-Match": self.etag, "If-Modified-Since": self.last_modified}
        return {name: value for name, value in headers.items() if value}


class Facts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is known of a fetched KB. `identity` is the SHA-256 of its archive, or its git commit."""

    identity: str
    verified: bool
    etag: str | None
    last_modified: str | None
    hashes: dict[str, str]
    """SHA-256 of each file by path."""
    signed_by: str | None = None
    """The public key whose signature of the archive held, if one was looked for."""
    is_assembled: bool = False
    """Put together of parts: its files are those of the manifest, but the archive was not hashed."""
    is_without_index: bool = False
    """It has one that was not wanted."""
    size_bytes: int = 0
    """Of the archive; 0 for git, and where it is not known."""

    @property
    def validators(self) -> Validators:
        return Validators(self.etag, self.last_modified)


class _StoredHashes(msgspec.Struct):
    """What is needed of an entry of any version."""

    hashes: dict[str, str]


@dataclass(frozen=True)
class CacheEntry:
    folder: Path
    facts: Facts


Fill = Callable[[CacheEntry | None, Path], Facts | None]
"""Fetches into a folder that does not exist yet; None when the entry it was given is still current."""


@dataclass(frozen=True)
class Cache:
    folder: Path
    clock: Clock
    observer: "Observer"
    token: str
    """Tells the temporary folders of this process from those of others."""

    @contextlib.contextmanager
    def entry_for(
        self, source: KbSource, fill: Fill, is_usable: Callable[[CacheEntry], bool], *, revalidate: bool
    ) -> Iterator[CacheEntry]:
        """Give the entry of a KB, fetched if need be; it is not replaced while the block runs."""
        with files.storage_errors(), contextlib.ExitStack() as lock:
            key = make_cache_key(source, _address(source))
            path, say = self.folder / ".locks" / f"{key}.lock", self.observer.say
            try:
                lock.enter_context(
                    files.exclusive_lock(
                        path, on_wait=lambda holder: say(f"waiting for {holder}, which is fetching the same KB")
                    )
                )
            except OSError:
                # A read-only cache cannot be locked, and need not be when it has the entry.
                if self._find(key, source) is None:
                    raise
            entry = self._find(key, source)
            if entry is not None and not is_usable(entry):
                entry = None
            if entry is not None and not revalidate:
                logger.debug("cache hit", extra={"key": key})
            else:
                entry = self._fill(key, source, fill, entry)
            yield entry

    def drop(self, entry: CacheEntry) -> None:
        """Remove an entry, inside the block that got it. Its description goes first: without it there is no entry."""
        files.unlink(entry.folder / ENTRY_NAME, missing_ok=True)
        files.remove_tree(entry.folder)

    def files_by_hash(self) -> dict[str, Path]:
        """Return a file for each SHA-256, of any entry. Whether the disk damaged it shows when it is read."""
        paths: dict[str, Path] = {}
        for path in self.folder.glob(f"*/{ENTRY_NAME}"):
            with contextlib.suppress(OSError, ValueError, RecursionError):
                for name, sha256 in msgspec.json.decode(path.read_bytes(), type=_StoredHashes).hashes.items():
                    if stays_inside(name):
                        paths[sha256] = path.parent / name
        return paths

    def part_path(self, source: KbSource) -> Path:
        """Return where an unfinished download of this address waits to be resumed."""
        return self.folder / ".partial" / f"{_address(source)}.part"

    def remember_release(self, feed: str, source: KbSource) -> None:
        """Remember a release; a read-only cache remembers nothing, which is no reason to stop."""
        path = self._release_path(feed)
        with contextlib.suppress(OSError):
            files.make_folder(path.parent)
            files.write_atomically(path, json.dumps(source.to_json()).encode())

    def recall_release(self, feed: str) -> KbSource | None:
        """Return the release that the feed named last, if it is in the cache."""
        try:
            source = KbSource.from_json(json.loads(self._release_path(feed).read_bytes()))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None
        key = make_cache_key(source, _address(source))
        return source if self._find(key, source) is not None else None

    def _release_path(self, feed: str) -> Path:
        return self.folder / ".releases" / f"{hashlib.sha256(feed.encode()).hexdigest()}.json"

    def _find(self, key: str, source: KbSource) -> CacheEntry | None:
        """Return an entry that was made from this very address: versions of two repositories may be equal."""
        folder = self.folder / key
        try:
            value = msgspec.json.decode((folder / ENTRY_NAME).read_bytes(), type=dict[str, Any])
            if value.pop("schema_version") != SCHEMA_VERSION or value.pop("address") != _address(source):
                return None
            del value["url"], value["fetched_at"]
            facts = msgspec.convert(value, Facts)
        except (OSError, ValueError, KeyError, RecursionError):
            return None
        return CacheEntry(folder, facts) if all(map(stays_inside, facts.hashes)) else None

    def _fill(self, key: str, source: KbSource, fill: Fill, earlier: CacheEntry | None) -> CacheEntry:
        folder = self.folder / key
        folders.clear_leftovers(folder)
        # An address whose version is taken by another one, or an entry of an older layout, is replaced as a whole.
        staged = folders.make_staging(folder, self.token)
        try:
            staged.rmdir()
            facts = fill(earlier, staged)
            if facts is None:
                assert earlier is not None  # noqa: S101 - `fill` may only keep what it was given
                return earlier
            value = {
                "schema_version": SCHEMA_VERSION,
                "address": _address(source),
                "url": hide_credentials(source.location),
                "fetched_at": to_timestamp(self.clock.now()),
                **msgspec.structs.asdict(facts),
            }
            files.write_atomically(staged / ENTRY_NAME, json.dumps(value).encode())
            folders.put_in_place(staged, folder)
        finally:
            files.remove_tree(staged.parent)
        logger.debug("cache entry made", extra={"key": key, "identity": facts.identity})
        return CacheEntry(folder, facts)


def _address(source: KbSource) -> str:
    if is_named_by_content(source):
        return source.sha256 or ""
    return hashlib.sha256(source.location.encode()).hexdigest()
