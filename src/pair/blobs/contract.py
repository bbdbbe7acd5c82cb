"""The contracts of blob stores and leases, for implementers, and checks of keys and of stores.

Invariants
    A blob appears whole or not at all; a reader that starts after a put returned sees that put or a later one.
    Of several `put_if` with one version, and of several `create` of one key, exactly one succeeds.
    Versions are opaque: they are compared for equality and never read. Equal versions mean equal content; on stores
    whose versions are hashes, a blob that is put back as it was has its first version again.
"""

import contextlib
import datetime
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NewType, Protocol, runtime_checkable

from pair import errors

Version = NewType("Version", str)

_PART = r"(?!\.{1,2}(?:/|\Z))[^/\\\x00-\x1f\x7f\ud800-\udfff]+"
KEY = re.compile(f"{_PART}(?:/{_PART})*")
"""What a key looks like. SeaweedFS for one takes a backslash for a slash."""
MAX_KEY_BYTES = 1000
"""S3 allows 1,024, and the prefix of the store needs some of them."""


class VersionMismatchError(Exception):
    """The blob is not, or no longer, at the version that the caller named; nothing was written."""


@dataclass(frozen=True, slots=True)
class Blob:
    data: bytes
    version: Version


@dataclass(frozen=True, slots=True)
class BlobUnchanged:
    """The blob is still at the version that the caller knows."""


@dataclass(frozen=True, slots=True)
class BlobInfo:
    key: str
    size_bytes: int
    modified_at: datetime.datetime
    """By the clock of the store, in UTC."""


class BlobStore(Protocol):
    """Used from several threads at once. Keys are `/`-separated and case-sensitive on every store; one that
    `check_key` refuses is a ValueError.

    Everything here raises E206 when the store cannot be reached or refuses, and E010 when it is full. After E206 from a
    write, the caller does not know whether the write happened.
    """

    @property
    def address(self) -> str:
        """The address as shown to people, without secrets."""
        ...

    def get(self, key: str) -> Blob | None:
        """Return None when there is no such blob."""
        ...

    def get_if_changed(self, key: str, version: Version) -> Blob | BlobUnchanged | None:
        """Return the blob if it changed, as cheaply as the store can."""
        ...

    def get_range(self, key: str, start: int, length: int) -> bytes | None:
        """Return fewer bytes than asked for where the blob ends."""
        ...

    def download(self, key: str, path: Path) -> bool:
        """Write a file that does not exist yet, in bounded memory; return False when there is no such blob."""
        ...

    def put(self, key: str, data: bytes) -> Version:
        """Write a blob, whatever was there before."""
        ...

    def upload(self, key: str, path: Path) -> Version:
        """Write the content of a file, in bounded memory, whatever was there before."""
        ...

    def put_if(self, key: str, data: bytes, version: Version) -> Version:
        """Replace only this version. Raises VersionMismatchError, also when the blob is gone."""
        ...

    def create(self, key: str, data: bytes) -> Version:
        """Write only where no blob is. Raises VersionMismatchError."""
        ...

    def list(self, prefix: str) -> Iterator[BlobInfo]:
        """List all blobs whose key begins so, in the order of their keys."""
        ...

    def delete(self, key: str) -> None:
        """Delete a blob; it is no error when there is none."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class LinkingStore(Protocol):
    """A store that can make a file its own instead of copying it."""

    def link(self, key: str, path: Path, sha256: str) -> Version:
        """Store a file as `upload` does. It has this SHA-256, is not written to any more, and may be deleted later."""
        ...


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to write under a name until it ends or is renewed."""

    name: str
    holder: str
    """For people: host and process."""
    token: str
    """Known to its holder only."""
    fence: int
    """Greater than that of every earlier lease of this name."""
    expires_at: datetime.datetime


class LeaseLostError(Exception):
    """The lease ended before it was renewed, and someone else may hold it now."""


class Leases(Protocol):
    """Used from several threads at once."""

    def acquire(self, name: str, *, seconds: float) -> Lease:
        """Acquire the lease at once. Raises E203 with its holder and end, and E206."""
        ...

    def renew(self, lease: Lease, *, seconds: float) -> Lease:
        """Renew the lease. Raises LeaseLostError, E206."""
        ...

    def release(self, lease: Lease) -> None:
        """Release the lease; it is no error when it was lost meanwhile. Raises E206."""
        ...

    def close(self) -> None: ...


# ── checks ─────────────────────────────────────────────────────────────────────────────────────────


def check_key(key: str) -> str:
    """Return the key. Raises ValueError for one that not every store can hold."""
    if reason := _find_key_fault(key):
        raise ValueError(f"{reason}: {key!r}")
    return key


def find_folder(prefix: str) -> tuple[str, ...] | None:
    """Return the folder of all keys that begin so; None when no key can."""
    parts = tuple(prefix.split("/")[:-1])
    return None if parts and _find_key_fault("/".join(parts)) else parts


def _find_key_fault(key: str) -> str:
    if not KEY.fullmatch(key):
        return "a key has no empty part, none that leads elsewhere, no control character, backslash or surrogate"
    if len(key.encode()) > MAX_KEY_BYTES:
        return f"a key has at most {MAX_KEY_BYTES} bytes in UTF-8"
    return ""


def refuse_without_compare_and_swap(store: BlobStore, key_prefix: str, token: str) -> None:
    """Raise E209 for a store that ignores conditions of writes, as some do that speak S3.

    `token` makes the key of the probe unique. A store that honours conditions except in a race is not found.
    """
    key = f"{key_prefix}probe-{token}"
    try:
        if reason := _find_cas_fault(store, key):
            raise errors.store_without_compare_and_swap(store.address, reason)
    finally:
        # An error from above says more than a probe that stays behind.
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
        return "a blob that was deleted came back by a write that should have replaced it"
    return ""


def _send(store: BlobStore, key: str, data: bytes, write: Callable[[], Version]) -> Version:
    """Write, and read after a refusal, which may answer our own request that arrived twice."""
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
