"""Leases as blobs, for those who have a store and no Redis: `<name>.lease.json`, changed by conditional puts only.

When a lease ends
    Nobody compares their own time of day with that of another machine. The time at which a lease was written, and the
    time that it is now, are both told by the store: the second by writing a marker beside the lease and listing the
    two. A lease is over when the store's clock moved on by its duration and the precision of that clock.
    A store's clock may be set back too. So whoever has seen the same lease, not renewed, for its whole duration by its
    own monotonic clock may take it as well: asking again and again ends the wait, whatever the clocks do.
    A store's clock that is set forward ends leases early. Their holders notice at the next renewal, and the
    compare-and-swap of what they publish protects what they wrote.
Invariants
    The blob stays when a lease is released, for it holds the fence.
    No two states have equal bytes, for the versions of many stores are hashes of the content.
    A state that arrives damaged is read again: it must not pass for no lease, nor for a shorter one.
"""

import dataclasses
import datetime
import json
import threading
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pair import errors
from pair.blobs.contract import Blob, BlobStore, Lease, LeaseLostError, Version, VersionMismatchError
from pair.clock import Clock, to_timestamp

_STORE_CLOCK_SECONDS = 1.0
"""How finely stores tell times: S3 in whole seconds."""
_MOST = 2**53
_MOST_SECONDS = 366 * 86_400
_READING_TRIES = 3
_CHECK = "check"


@dataclass(frozen=True, slots=True)
class _State:
    holder: str
    token: str
    """Empty when nobody holds the lease."""
    fence: int
    seconds: float
    renewals: int

    def to_json(self) -> bytes:
        value = dataclasses.asdict(self)
        return json.dumps({**value, _CHECK: _check_of(value)}).encode()

    @staticmethod
    def from_json(data: bytes) -> "_State | None":
        """None for a blob that is no lease, says what no lease can, or is not as it was written."""
        try:
            value = json.loads(data)
            check = value.pop(_CHECK, None)  # an older pair writes none
            if check is not None and check != _check_of(value):
                return None
            state = _State(
                holder=str(value["holder"]),
                token=str(value["token"]),
                fence=int(value["fence"]),
                seconds=float(value["seconds"]),
                renewals=int(value["renewals"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            return None
        is_sound = 0 <= state.fence <= _MOST and 0 <= state.renewals <= _MOST and 0 < state.seconds <= _MOST_SECONDS
        return state if is_sound else None


def _check_of(value: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(value).encode())


@dataclass(frozen=True, slots=True)
class _ObservedLease:
    version: Version
    at: float
    """By the monotonic clock of this machine."""
    age_seconds: float
    """By the clock of the store, at that time."""


class BlobLeases:
    """`prefix` begins the keys of the leases."""

    def __init__(
        self, store: BlobStore, *, holder: str, new_token: Callable[[], str], clock: Clock, prefix: str = ""
    ) -> None:
        self._store = store
        self._holder = holder
        self._new_token = new_token
        self._clock = clock
        self._prefix = prefix
        self._lock = threading.Lock()
        self._seen: dict[str, _ObservedLease] = {}

    def acquire(self, name: str, *, seconds: float) -> Lease:
        token = self._new_token()
        expires_at = self._after(seconds)
        blob, last = self._read(name)
        if blob and last and last.token and not self._is_over(name, blob, last):
            raise self._held(name, last)
        state = _State(self._holder, token, last.fence + 1 if last else 1, seconds, renewals=0)
        if not self._swap(name, state, blob):
            _, winner = self._read(name)
            raise self._held(name, winner or dataclasses.replace(state, holder=""))
        return Lease(name, self._holder, token, state.fence, expires_at)

    def renew(self, lease: Lease, *, seconds: float) -> Lease:
        expires_at = self._after(seconds)
        blob, state = self._read(lease.name)
        if state is None or state.token != lease.token:
            raise LeaseLostError(lease.name)
        renewed = dataclasses.replace(state, seconds=seconds, renewals=state.renewals + 1)
        if not self._swap(lease.name, renewed, blob):
            raise LeaseLostError(lease.name)
        return Lease(lease.name, lease.holder, lease.token, lease.fence, expires_at)

    def release(self, lease: Lease) -> None:
        blob, state = self._read(lease.name)
        if state and state.token == lease.token:
            # A swap that is refused means that somebody took the lease meanwhile.
            self._swap(lease.name, dataclasses.replace(state, token="", holder="", renewals=state.renewals + 1), blob)

    def close(self) -> None:
        """The store belongs to whoever made it."""

    def _key(self, name: str) -> str:
        return f"{self._prefix}{name}.lease.json"

    def _after(self, seconds: float) -> datetime.datetime:
        return self._clock.now() + datetime.timedelta(seconds=seconds)

    def _read(self, name: str) -> tuple[Blob | None, _State | None]:
        """A blob without a state is no lease, however often it is read."""
        for _ in range(_READING_TRIES):
            blob = self._store.get(self._key(name))
            state = _State.from_json(blob.data) if blob else None
            if blob is None or state is not None:
                break
        return blob, state

    def _held(self, name: str, state: _State) -> errors.ConflictError:
        # Anybody's clock will do for what a person reads. It may end sooner, for it may have been renewed a while ago.
        return errors.lease_held(name, state.holder or "somebody else", to_timestamp(self._after(state.seconds)))

    def _swap(self, name: str, state: _State, over: Blob | None) -> bool:
        """False when somebody else was faster.

        A refusal may come from our own request that was sent twice, and after a lost answer nobody knows: what is
        there now settles it, as no two states are equal.
        """
        key, data = self._key(name), state.to_json()
        try:
            _ = self._store.put_if(key, data, over.version) if over else self._store.create(key, data)
        except VersionMismatchError:
            return self._is_there(key, data)
        except errors.StorageError:
            if self._is_there(key, data):
                return True
            raise
        return True

    def _is_there(self, key: str, data: bytes) -> bool:
        blob = self._store.get(key)
        return blob is not None and blob.data == data

    def _is_over(self, name: str, blob: Blob, state: _State) -> bool:
        now = self._clock.monotonic()
        with self._lock:
            seen = self._seen.get(name)
        if seen is not None and seen.version == blob.version:
            if now - seen.at >= state.seconds:
                return True
            if seen.age_seconds + now - seen.at - _STORE_CLOCK_SECONDS < state.seconds:
                return False  # one who waits need not ask for the time of the store again and again
        age_seconds = self._age_by_the_store(name)
        if seen is None or seen.version != blob.version:
            with self._lock:
                self._seen[name] = _ObservedLease(blob.version, now, age_seconds or 0.0)
        return age_seconds is not None and age_seconds - _STORE_CLOCK_SECONDS >= state.seconds

    def _age_by_the_store(self, name: str) -> float | None:
        """Since the lease was written, or less when it was renewed this moment."""
        key, marker = self._key(name), f"{self._prefix}{name}.lease.now"
        # One marker for everybody: whoever writes it, it tells a time that is not later than now.
        self._store.put(marker, b"")
        times = {info.key: info.modified_at for info in self._store.list(f"{self._prefix}{name}.lease.")}
        if key not in times or marker not in times:
            return None
        return (times[marker] - times[key]).total_seconds()
