"""The cache of downloaded KBs: folders `<cache>/<key>/`.

Invariants
    A folder `<key>` appears by one rename after everything in it was verified, so a folder that exists is complete.
    Later damage by the disk is found when its files are copied: copying hashes them.
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
from pair.values import KbSource, convert_json, parse_json

if TYPE_CHECKING:
    from pair.packages.content import Observer

logger = logging.getLogger(__name__)

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Validators:
    """The headers by which a server names the version of a file."""

    etag: str | None = None
    last_modified: str | None = None

    @property
    def for_range(self) -> str | None:
        """The value of `If-Range`: a strong ETag, which names the bytes, else the date."""
        is_strong = self.etag and not self.etag.startswith("W/")
        return self.etag if is_strong else self.last_modified

    def conditions(self) -> dict[str, str]:
        """Return the headers of a conditional request."""
        headers = {"If-None-Match": self.etag, "If-Modified-Since": self.last_modified}
        return {name: value for name, value in headers.items() if value}


class Facts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Stored facts about a fetched KB."""

    identity: str
    """SHA-256 of its archive, or its git commit."""
    verified: bool
    etag: str | None
    last_modified: str | None
    hashes: dict[str, str]
    """SHA-256 of each file by path."""
    signed_by: str | None = None
    """The public key of the valid signature of the archive, if signatures were checked."""
    is_assembled: bool = False
    """Whether it was assembled from parts: its files match the manifest, but the archive was not hashed."""
    is_without_index: bool = False
    """Whether its index was not fetched."""
    size_bytes: int = 0
    """Size of the archive; 0 for git, and if it is unknown."""

    @property
    def validators(self) -> Validators:
        return Validators(self.etag, self.last_modified)


@dataclass(frozen=True)
class CacheEntry:
    """A complete KB in the cache."""

    folder: Path
    facts: Facts


Fill = Callable[[CacheEntry | None, Path], Facts | None]
"""A function that fetches into a folder that does not exist yet. It returns None if the given entry is current."""


@dataclass(frozen=True)
class Cache:
    """The cache folder, as one process uses it."""

    folder: Path
    clock: Clock
    observer: "Observer"
    token: str
    """A function that names the temporary folders of this process."""

    @contextlib.contextmanager
    def entry_for(
        self, source: KbSource, fill: Fill, is_usable: Callable[[CacheEntry], bool], *, revalidate: bool
    ) -> Iterator[CacheEntry]:
        """Yield the entry of a KB, fetched if necessary. It is not replaced while the block runs."""
        folder = self._folder_of(source)
        with files.storage_errors(), contextlib.ExitStack() as stack:
            lock = files.exclusive_lock(
                self.folder / ".locks" / f"{folder.name}.lock",
                on_wait=lambda holder: self.observer.say(f"waiting for {holder}, which is fetching the same KB"),
            )
            try:
                stack.enter_context(lock)
            except OSError:
                # A read-only cache cannot be locked. It needs no lock if it has the entry.
                if self._find(source) is None:
                    raise
            entry = self._find(source)
            if entry is not None and not is_usable(entry):
                entry = None
            if entry is not None and not revalidate:
                logger.debug("cache hit", extra={"key": folder.name})
            else:
                entry = self._fill(source, fill, entry)
            yield entry

    def drop(self, entry: CacheEntry) -> None:
        """Remove an entry inside the block of `entry_for`: its description first, without which there is no entry."""
        files.unlink(entry.folder / ENTRY_NAME, missing_ok=True)
        files.remove_tree(entry.folder)

    def files_by_hash(self) -> dict[str, Path]:
        """Return a file of any entry for each SHA-256. The caller verifies the hash: the disk may have damaged it."""
        paths: dict[str, Path] = {}
        for path in self.folder.glob(f"*/{ENTRY_NAME}"):
            with contextlib.suppress(OSError, ValueError, RecursionError):
                entry = parse_json(path.read_bytes(), dict[str, Any])  # Entries of any schema version.
                for name, sha256 in convert_json(entry.get("hashes", {}), dict[str, str]).items():
                    if stays_inside(name):
                        paths[sha256] = path.parent / name
        return paths

    def part_path(self, source: KbSource) -> Path:
        """Return the path of an unfinished download of this address."""
        return self.folder / ".partial" / f"{_address(source)}.part"

    def remember_release(self, feed: str, source: KbSource) -> None:
        """Store the release that a feed names now. A read-only cache stores nothing, without an error."""
        path = self._release_path(feed)
        with contextlib.suppress(OSError):
            files.make_folder(path.parent)
            files.write_atomically(path, json.dumps(source.to_json()).encode())

    def recall_release(self, feed: str) -> KbSource | None:
        """Return the release that the feed named last, if the cache has its entry."""
        try:
            source = KbSource.from_json(json.loads(self._release_path(feed).read_bytes()))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None
        return source if self._find(source) is not None else None

    def _release_path(self, feed: str) -> Path:
        return self.folder / ".releases" / f"{hashlib.sha256(feed.encode()).hexdigest()}.json"

    def _folder_of(self, source: KbSource) -> Path:
        return self.folder / make_cache_key(source, _address(source))

    def _find(self, source: KbSource) -> CacheEntry | None:
        """Return the entry if it was made from this address: two repositories may have equal versions."""
        folder = self._folder_of(source)
        try:
            value = parse_json((folder / ENTRY_NAME).read_bytes(), dict[str, Any])
            if value.pop("schema_version") != SCHEMA_VERSION or value.pop("address") != _address(source):
                return None
            del value["url"], value["fetched_at"]
            facts = convert_json(value, Facts)
        except (OSError, ValueError, KeyError, RecursionError):
            return None
        return CacheEntry(folder, facts) if all(map(stays_inside, facts.hashes)) else None

    def _fill(self, source: KbSource, fill: Fill, earlier: CacheEntry | None) -> CacheEntry:
        folder = self._folder_of(source)
        folders.clear_leftovers(folder)
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
        logger.debug("cache entry made", extra={"key": folder.name, "identity": facts.identity})
        return CacheEntry(folder, facts)


def _address(source: KbSource) -> str:
    """Return the hash that identifies an address, or content that several addresses share."""
    if is_named_by_content(source):
        return source.sha256 or ""
    return hashlib.sha256(source.location.encode()).hexdigest()
