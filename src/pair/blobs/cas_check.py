"""Check before the first write that a store honours compare-and-swap: not every store that speaks S3 does."""

import contextlib
from collections.abc import Callable

from pair import errors
from pair.blobs.contract import BlobStore, Version, VersionMismatchError


def refuse_without_compare_and_swap(store: BlobStore, key_prefix: str, token: str) -> None:
    """Raise E209 for a store that ignores conditions of writes. `token` makes the key of the probe unique.

    A store that honours them except in a race is not found.
    """
    key = f"{key_prefix}probe-{token}"
    try:
        if reason := _find_fault(store, key):
            raise errors.store_without_compare_and_swap(store.address, reason)
    finally:
        # An error from above says more than a probe that stays behind.
        with contextlib.suppress(errors.StorageError):
            store.delete(key)


def _find_fault(store: BlobStore, key: str) -> str:
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
