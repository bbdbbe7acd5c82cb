"""The contracts of blob stores and leases, for implementers, and checks of keys and of stores.

Invariants
    A blob appears whole or not at all. A reader that starts after a put returned sees that put or a later one.
    Of several `put_if` with one version, and of several `create` of one key, exactly one succeeds.
    Versions are opaque: they are only compared for equality. Equal versions mean equal content. On stores whose
    versions are hashes, a blob with its earlier content has its earlier version.
"""

import contextlib
import datetime
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NewType, Protocol, runtime_checkable

from pair import errors
from pair.values import find_key_fault

Version = NewType("Version", str)


class VersionMismatchError(Exception):
    """The blob does not have the version that the caller expects. Nothing was written."""


@dataclass(frozen=True, slots=True)
class Blob:
    data: bytes
    version: Version


@dataclass(frozen=True, slots=True)
class BlobUnchanged:
    """The blob still has the version that the caller knows."""


@dataclass(frozen=True, slots=True)
class BlobInfo:
    key: str
    size_bytes: int
    modified_at: datetime.datetime
    """The time of the last write in UTC, by the clock of the store."""
    version: Version | None = None
    """The version; None if the store does not list versions."""


class BlobStore(Protocol):
    """A store of blobs, which threads may share. Keys are `/`-separated and case-sensitive on every store.

    All methods raise ValueError for a key that `check_key` refuses, E206 if the store is unreachable or refuses the
    request, and E010 if it is full. After E206 from a write, the write may or may not have happened.
    """

    @property
    def address(self) -> str:
        """The address for messages, without secrets."""

    def get(self, key: str) -> Blob | None:
        """Return the blob; None if it does not exist."""

    def get_if_changed(self, key: str, version: Version) -> Blob | BlobUnchanged | None:
        """Return the blob if it changed, as cheaply as the store allows; None if it does not exist."""

    def get_range(self, key: str, start: int, length: int) -> bytes | None:
        """Return a range of bytes, shorter at the end of the blob; None if it does not exist."""

    def download(self, key: str, path: Path) -> bool:
        """Write the blob to a new file, in bounded memory. Return False if the blob does not exist."""

    def put(self, key: str, data: bytes) -> Version:
        """Write a blob, without any condition."""

    def upload(self, key: str, path: Path) -> Version:
        """Write the content of a file, in bounded memory, without any condition."""

    def put_if(self, key: str, data: bytes, version: Version) -> Version:
        """Replace a blob that has this version. Raises VersionMismatchError, even if the blob was deleted."""

    def create(self, key: str, data: bytes) -> Version:
        """Write a blob that does not exist. Raises VersionMismatchError if it does."""

    def list(self, prefix: str) -> Iterator[BlobInfo]:
        """List all blobs with this prefix, in the order of their keys."""

    def delete(self, key: str) -> None:
        """Delete a blob, if it exists."""

    def close(self) -> None: ...


@runtime_checkable
class LinkingStore(Protocol):
    """A store that can link a file instead of copying it."""

    def link(self, key: str, path: Path, sha256: str) -> Version:
        """Store a file as `upload` does. The caller guarantees its SHA-256, and never writes to it again."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The exclusive right to write under a name, for a limited time."""

    name: str
    holder: str
    """Host and process, for messages."""
    token: str
    """A secret of the holder."""
    fence: int
    """A number greater than that of every earlier lease of this name."""
    expires_at: datetime.datetime


class LeaseLostError(Exception):
    """The lease ended before it was renewed, and another writer may hold it."""


class Leases(Protocol):
    """A source of leases, which threads may share."""

    def acquire(self, name: str, *, seconds: float) -> Lease:
        """Acquire the lease without waiting. Raises E203 with the holder and the end of the lease, and E206."""

    def renew(self, lease: Lease, *, seconds: float) -> Lease:
        """Renew the lease. Raises LeaseLostError, E206."""

    def release(self, lease: Lease) -> None:
        """Release the lease, even if it was lost. Raises E206."""

    def close(self) -> None: ...


# ── checks ─────────────────────────────────────────────────────────────────────────────────────────


def find_folder(prefix: str) -> tuple[str, ...] | None:
    """Return the folder that contains all keys with this prefix; None if no key can have this prefix."""
    parts = tuple(prefix.split("/")[:-1])
    return None if parts and find_key_fault("/".join(parts)) else parts


def refuse_without_compare_and_swap(store: BlobStore, key_prefix: str, token: str) -> None:
    """Raise E209 for a store that ignores conditional writes, as some S3 servers do.

    `token` makes the key of the probe unique. The probe does not detect a store that fails only in a race.
    """
    key = f"{key_prefix}probe-{token}"
    try:
        if reason := _find_cas_fault(store, key):
            raise errors.store_without_compare_and_swap(store.address, reason)
    finally:
        # An error of the probe matters more than a leftover blob.
        with contextlib.suppress(errors.StorageError):
            store.delete(key)


def _find_cas_fault(store: BlobStore, key: str) -> str:
    first = _send(store, key, b"first", lambda: store.create(key, b"first"))
    if not _is_refused(lambda: store.create(key, b"again")):
        return "a blob was created twice under one key"
    second = _send(store, key, b"second", lambda: store.put_if(key, b"second", first))
    if not _is_refused(lambda: store.put_if(key, b"stale", first)):
        return "a blob was replaced by a writer that had not seen its latest version"
    blob = store.get(key)
    if blob is None or blob.data != b"second" or blob.version != second:
        return "a blob that was written is not what is read afterwards"
    store.delete(key)
    if not _is_refused(lambda: store.put_if(key, b"gone", second)):
        return "a write that should only replace a blob created it again after its deletion"
    return ""


def _send(store: BlobStore, key: str, data: bytes, write: Callable[[], Version]) -> Version:
    """Send a write. If it is refused, read the blob: our own request may have arrived twice."""
    try:
        return write()
    except VersionMismatchError:
        blob = store.get(key)
        if blob is None or blob.data != data:
            raise errors.store_without_compare_and_swap(
                store.address, "a write was refused although its condition was met"
            ) from None
        return blob.version


def _is_refused(write: Callable[[], Version]) -> bool:
    try:
        write()
    except VersionMismatchError:
        return True
    return False
