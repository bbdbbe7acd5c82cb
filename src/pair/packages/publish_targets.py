"""Where releases are published: a folder or a bucket, with plain files under plain names that any host can serve.

Invariants
    A file that others see is whole. What a feed names is there before the feed names it.
    Of several publishers at once, none takes a release of another out of the feed.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from pair import errors, files
from pair.blobs.contract import BlobStore, VersionMismatchError
from pair.packages.contract import CachedCopy, ChangedError, Download, Parts, Validators
from pair.packages.release_index import LIMIT_BYTES
from pair.packages.release_rules import FEED_NAME
from pair.packages.rules import MANIFEST_SUFFIX, SIGNATURE_SUFFIX, SourcesSettings

_MOST_ATTEMPTS = 30
_MOST_SIGNATURE_BYTES = 64 * 1024
_MOST_MANIFEST_BYTES = 64 * 1024 * 1024
_BLOCK_BYTES = 8 * 1024 * 1024

Change = Callable[[bytes | None], bytes | None]
"""From the feed as it is, None for none yet, to what it is to be; None to leave it."""


class PublishTarget(Protocol):
    @property
    def address(self) -> str: ...

    def held(self) -> contextlib.AbstractContextManager[None]:
        """For as long as somebody publishes there."""
        ...

    def read(self, name: str) -> bytes | None:
        """A small file; a longer one is cut off where no feed can end."""
        ...

    def claim(self, name: str, content: bytes) -> bytes:
        """A small file, where there is none yet; what is there afterwards."""
        ...

    def put(self, name: str, path: Path) -> None: ...

    def change_feed(self, change: Change) -> None:
        """`change` may be asked again, when somebody else was faster."""
        ...


class FolderTarget:
    """`on_wait` is told who else publishes there."""

    def __init__(self, folder: Path, on_wait: Callable[[str], None]) -> None:
        self.address = str(folder)
        self._folder = Path(os.path.realpath(folder))
        self._on_wait = on_wait

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        with files.storage_errors(), files.lock_folder(self._folder, on_wait=self._on_wait):
            yield

    def read(self, name: str) -> bytes | None:
        return read_file(self._folder / name)

    def claim(self, name: str, content: bytes) -> bytes:
        files.remove_half_written(self._folder / name)
        if found := self.read(name):
            return found
        files.write_atomically(self._folder / name, content)
        return content

    def put(self, name: str, path: Path) -> None:
        there = self._folder / name
        files.remove_half_written(there)
        if there.exists() and there.samefile(path):
            return
        files.copy_atomically(path, there)

    def change_feed(self, change: Change) -> None:
        feed = self._folder / FEED_NAME
        files.remove_half_written(feed)
        if (content := change(self.read(FEED_NAME))) is not None:
            files.write_atomically(feed, content)


def read_file(path: Path) -> bytes | None:
    """At most one byte more than a feed may have."""
    try:
        with files.storage_errors(), path.open("rb") as stream:
            return stream.read(LIMIT_BYTES + 1)
    except errors.StorageError:
        if path.exists():
            raise
        return None


class BucketTarget:
    """`pause_before` waits before the next of several attempts."""

    def __init__(self, store: BlobStore, pause_before: Callable[[int], None]) -> None:
        self._store = store
        self._pause_before = pause_before

    @property
    def address(self) -> str:
        return self._store.address

    def held(self) -> contextlib.AbstractContextManager[None]:
        """Nobody can lock a bucket; `claim` and `change_feed` decide between those who come together."""
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
            if content is None:
                return
            try:
                if blob is None:
                    self._store.create(FEED_NAME, content)
                else:
                    self._store.put_if(FEED_NAME, content, blob.version)
            except VersionMismatchError:
                self._pause_before(attempt)
            else:
                return
        raise errors.store_unreachable(self.address, "Others kept changing the feed while it was written")


class StoredFile:
    """A file in a bucket, read in parts."""

    def __init__(self, store: BlobStore, key: str, size_bytes: int) -> None:
        self._store = store
        self._key = key
        self.size_bytes = size_bytes

    def read(self, start: int, length: int) -> bytes:
        content = self._store.get_range(self._key, start, length)
        if content is None or len(content) != min(length, self.size_bytes - start):
            raise ChangedError(self._key)
        return content

    def copy(self, start: int, length: int, path: Path) -> None:
        with path.open("xb") as stream:
            for begin in range(start, start + length, _BLOCK_BYTES):
                stream.write(self.read(begin, min(_BLOCK_BYTES, start + length - begin)))


class BucketFetcher:
    """Fetches archives from buckets; `store_at` gives the store at an address."""

    def __init__(self, store_at: Callable[[str], BlobStore], policy: SourcesSettings | None = None) -> None:
        self._store_at = store_at
        self._limit_bytes = (policy or SourcesSettings()).max_download_bytes

    def parts(self, url: str, *, sha256: str | None) -> Parts | None:
        folder, _, key = url.rpartition("/")
        store = self._store_at(folder)
        manifest = store.get_range(key + MANIFEST_SUFFIX, 0, _MOST_MANIFEST_BYTES + 1)
        size_bytes = self._size_of(store, key, url)
        if manifest is None or len(manifest) > _MOST_MANIFEST_BYTES or size_bytes is None or sha256 is None:
            return None
        return Parts(manifest, sha256, StoredFile(store, key, size_bytes), Validators())

    def _size_of(self, store: BlobStore, key: str, url: str) -> int | None:
        size_bytes = next((info.size_bytes for info in store.list(key) if info.key == key), None)
        if size_bytes is not None and size_bytes > self._limit_bytes:
            reason = f"it has more than {self._limit_bytes} bytes, the most that sources.max_download_bytes allows"
            raise errors.archive_refused(url, reason)
        return size_bytes

    def signature(self, url: str) -> bytes | None:
        folder, _, key = url.rpartition("/")
        return self._store_at(folder).get_range(key + SIGNATURE_SUFFIX, 0, _MOST_SIGNATURE_BYTES)

    def fetch(self, url: str, part: Path, *, sha256: str | None, known: CachedCopy | None) -> Download | None:
        """As the contract says. What has arrived of a broken transfer is not kept."""
        if known is not None and sha256 == known.sha256:
            return None
        folder, _, key = url.rpartition("/")
        files.make_folder(part.parent)
        files.unlink(part, missing_ok=True)
        store = self._store_at(folder)
        self._size_of(store, key, url)
        if not store.download(key, part):
            raise errors.download_failed(url, "there is no such object in the bucket")
        actual = files.hash_file(part)
        if sha256 not in {None, actual}:
            files.unlink(part)
            raise errors.checksum_failed(f"File: {url}", [f"Expected SHA-256: {sha256}", f"Actual SHA-256:   {actual}"])
        return Download(part, actual, verified=sha256 is not None, validators=Validators())
