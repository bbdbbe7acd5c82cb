"""Does a store honour compare-and-swap? Asked before the first write, for not every store that answers S3 does."""

import contextlib
from collections.abc import Callable

from pair import errors
from pair.blobs.contract import BlobStore, Version, VersionMismatchError


def refuse_without_compare_and_swap(store: BlobStore, key_prefix: str, token: str) -> None:
    """E209 for a store that writes where it was told not to. `token` makes the probe's key one that nobody else uses.

    This finds a store that ignores conditions, not one that honours them except in a race.
    """
    key = f"{key_prefix}probe-{token}"
    try:
        if reason := _broken_promise(store, key):
            raise errors.store_without_compare_and_swap(store.address, reason)
    finally:
        # Whatever went wrong before says more than a probe that stays behind.
        with contextlib.suppress(errors.StorageError):
            store.delete(key)


def _broken_promise(store: BlobStore, key: str) -> str:
    first = _sent(store, key, b"first", lambda: store.create(key, b"first"))
    if not _is_refused(lambda: store.create(key, b"again")):
        return "a blob was created twice under one key"
    second = _sent(store, key, b"second", lambda: store.put_if(key, b"second", first))
    if not _is_refused(lambda: store.put_if(key, b"stale", first)):
        return "a blob was replaced by a writer that had not seen its latest version"
    found = store.get(key)
    if found is None or found.data != b"second" or found.version != second:
        return "a blob that was written is not what is read afterwards"
    store.delete(key)
    if not _is_refused(lambda: store.put_if(key, b"gone", second)):
        return "a blob that was deleted came back by a write that should have replaced it"
    return ""


def _sent(store: BlobStore, key: str, data: bytes, write: Callable[[], Version]) -> Version:
    """A refusal may answer our own request that arrived twice: what is there now settles it."""
    try:
        return write()
    except VersionMismatchError:
        found = store.get(key)
        if found is None or found.data != data:
            raise errors.store_without_compare_and_swap(
                store.address, "a write was refused although its condition was met"
            ) from None
        return found.version


def _is_refused(write: Callable[[], Version]) -> bool:
    try:
        write()
    except VersionMismatchError:
        return True
    return False
