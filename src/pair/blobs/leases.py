"""Leases within a process, between processes and between machines; holding a lease, and waiting for one.

A lease prevents two writers from doing the same work at once. It does not protect the data: a writer may stall for
longer than its lease, so the manifest is always swapped by compare-and-swap.
"""

import contextlib
import dataclasses
import datetime
import functools
import json
import logging
import os
import re
import threading
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from pair import errors, files
from pair.blobs.contract import Blob, BlobStore, Lease, LeaseLostError, Leases, Version, VersionMismatchError
from pair.clock import Clock, to_timestamp
from pair.values import convert_json

logger = logging.getLogger(__name__)

RENEWALS_PER_LEASE = 3
"""Number of renewals during one lease: two may fail before the lease is lost."""
_FENCE = re.compile(r"[0-9]{1,18}")
_FAR_AWAY = datetime.datetime.max.replace(tzinfo=datetime.UTC) - datetime.timedelta(days=36500)
_STORE_CLOCK_SECONDS = 1.0
"""Resolution of the clocks of stores. S3 has whole seconds."""
_MOST = 2**53
_MOST_SECONDS = 366 * 86_400
_READING_TRIES = 3
_NEXT_SECONDS = 10.0
"""Duration of the lease `<name>.next`: a dead writer blocks the queue for this long."""
_MOST_TRIES = 10
_SHORT_PAUSE, _LONG_PAUSE = 1, 3


def end_of_lease(clock: Clock, seconds: float) -> datetime.datetime:
    return clock.now() + datetime.timedelta(seconds=seconds)


class MemoryLeases:
    """Leases between the threads of one process."""

    def __init__(self, *, holder: str, new_token: Callable[[], str], clock: Clock) -> None:
        self._holder = holder
        self._new_token = new_token
        self._clock = clock
        self._lock = threading.Lock()
        self._current: dict[str, tuple[Lease | None, float]] = {}
        """The last lease of each name, and its end by the monotonic clock. A released lease keeps its fence."""

    def acquire(self, name: str, *, seconds: float) -> Lease:
        with self._lock:
            last, ends_at = self._current.get(name, (None, 0.0))
            if last and ends_at > self._clock.monotonic():
                raise errors.lease_held(name, last.holder, to_timestamp(last.expires_at))
            expires_at = end_of_lease(self._clock, seconds)
            lease = Lease(name, self._holder, self._new_token(), last.fence + 1 if last else 1, expires_at)
            self._current[name] = lease, self._clock.monotonic() + seconds
            return lease

    def renew(self, lease: Lease, *, seconds: float) -> Lease:
        with self._lock:
            current, ends_at = self._current.get(lease.name, (None, 0.0))
            if current is None or current.token != lease.token or ends_at <= self._clock.monotonic():
                raise LeaseLostError(lease.name)
            renewed = dataclasses.replace(lease, expires_at=end_of_lease(self._clock, seconds))
            self._current[lease.name] = renewed, self._clock.monotonic() + seconds
            return renewed

    def release(self, lease: Lease) -> None:
        with self._lock:
            current, _ = self._current.get(lease.name, (None, 0.0))
            if current and current.token == lease.token:
                self._current[lease.name] = current, self._clock.monotonic()

    def close(self) -> None:
        """Do nothing."""


class FileLeases:
    """Leases by file locks, for a store in a folder. A lease ends when its process ends or is killed."""

    def __init__(self, folder: Path, *, holder: str, new_token: Callable[[], str]) -> None:
        self._folder = folder
        self._holder = holder
        self._new_token = new_token
        self._lock = threading.Lock()
        self._held: dict[str, int] = {}

    def acquire(self, name: str, *, seconds: float) -> Lease:
        with files.storage_errors():
            path = self._folder / f"{name}.lease"
            files.make_folder(path.parent)
            descriptor = files.open_file(path, os.O_RDWR | os.O_CREAT)
        try:
            files.locks.try_lock(descriptor)
        except BlockingIOError as fault:
            _, holder = _read_holder(descriptor)
            os.close(descriptor)
            raise errors.lease_held(name, holder, "that process ends") from fault
        fence = _read_holder(descriptor)[0] + 1
        try:
            with files.storage_errors():
                content = f"{fence} {self._holder}\n".encode()
                # In this order: a process that dies in between must not lose the fence.
                os.pwrite(descriptor, content, 0)
                os.ftruncate(descriptor, len(content))
        except errors.StorageError:
            os.close(descriptor)
            raise
        token = self._new_token()
        with self._lock:
            self._held[token] = descriptor
        return Lease(name, self._holder, token, fence, _FAR_AWAY)

    def renew(self, lease: Lease, *, seconds: float) -> Lease:
        with self._lock:
            if lease.token not in self._held:
                raise LeaseLostError(lease.name)
        return lease

    def release(self, lease: Lease) -> None:
        with self._lock:
            descriptor = self._held.pop(lease.token, None)
        if descriptor is not None:
            os.close(descriptor)

    def close(self) -> None:
        with self._lock:
            for descriptor in self._held.values():
                with contextlib.suppress(OSError):
                    os.close(descriptor)
            self._held.clear()


def _read_holder(descriptor: int) -> tuple[int, str]:
    """Return the last fence and its holder."""
    line = os.pread(descriptor, 4096, 0).decode(errors="replace").partition("\n")[0]
    number, _, holder = line.partition(" ")
    return (int(number) if _FENCE.fullmatch(number) else 0), (holder or "another process")


class _State(msgspec.Struct, frozen=True):
    holder: str
    token: str
    """The holder; empty if the lease is free."""
    fence: Annotated[int, msgspec.Meta(ge=0, le=_MOST)]
    seconds: Annotated[float, msgspec.Meta(gt=0, le=_MOST_SECONDS)]
    renewals: Annotated[int, msgspec.Meta(ge=0, le=_MOST)]

    def to_json(self) -> bytes:
        value = msgspec.structs.asdict(self)
        return json.dumps({**value, "check": zlib.crc32(json.dumps(value).encode())}).encode()

    @staticmethod
    def from_json(data: bytes) -> "_State | None":
        """Parse a state. Return None for a damaged or invalid one."""
        try:
            value = json.loads(data)
            check = value.pop("check")
            state = convert_json(value, _State)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None
        return state if check == zlib.crc32(json.dumps(value).encode()) else None


@dataclass(frozen=True, slots=True)
class _ObservedLease:
    version: Version
    at: float
    """When the version was first seen, by the monotonic clock of this machine."""
    age_seconds: float
    """The age of the lease at that time, by the clock of the store."""


class BlobLeases:
    """Leases as blobs `<prefix><name>.lease.json`, changed by conditional puts only.

    When a lease ends
        Machines do not compare their clocks. The store's clock gives the time when a lease was written, and the
        current time, by a marker that is written and listed beside the lease. A lease ends when this clock has
        advanced by its duration and the resolution of the clock.
        The store's clock may be set back. So a writer may also take a lease that it has seen, not renewed, for the
        whole duration by its own monotonic clock.
        If the store's clock is set forward, leases end early. Their holders notice at the next renewal, and
        compare-and-swap protects what they publish.
    Invariants
        A released lease keeps its blob, which stores the fence.
        No two states have equal bytes, because the versions of many stores are hashes.
        A state that arrives damaged is read again: it must not count as no lease, or as a shorter one.
    """

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
        expires_at = end_of_lease(self._clock, seconds)
        blob, last = self._read(name)
        if blob and last and last.token and not self._is_over(name, blob, last):
            raise self._refusal(name, last)
        state = _State(self._holder, token, last.fence + 1 if last else 1, seconds, renewals=0)
        if not self._swap(name, state, blob):
            _, winner = self._read(name)
            raise self._refusal(name, winner or msgspec.structs.replace(state, holder=""))
        return Lease(name, self._holder, token, state.fence, expires_at)

    def renew(self, lease: Lease, *, seconds: float) -> Lease:
        expires_at = end_of_lease(self._clock, seconds)
        blob, state = self._read(lease.name)
        if state is None or state.token != lease.token:
            raise LeaseLostError(lease.name)
        renewed = msgspec.structs.replace(state, seconds=seconds, renewals=state.renewals + 1)
        if not self._swap(lease.name, renewed, blob):
            raise LeaseLostError(lease.name)
        return dataclasses.replace(lease, expires_at=expires_at)

    def release(self, lease: Lease) -> None:
        blob, state = self._read(lease.name)
        if state and state.token == lease.token:
            # If the swap is refused, another writer has taken the lease.
            released = msgspec.structs.replace(state, token="", holder="", renewals=state.renewals + 1)
            self._swap(lease.name, released, blob)

    def close(self) -> None:
        """Do nothing: the creator of the store closes it."""

    def _key(self, name: str) -> str:
        return f"{self._prefix}{name}.lease.json"

    def _read(self, name: str) -> tuple[Blob | None, _State | None]:
        """Return the blob and its state; no state if the blob stays unreadable."""
        for _ in range(_READING_TRIES):
            blob = self._store.get(self._key(name))
            state = _State.from_json(blob.data) if blob else None
            if blob is None or state is not None:
                break
        return blob, state

    def _refusal(self, name: str, state: _State) -> errors.ConflictError:
        # An upper bound, for a message: the lease may have been renewed a while ago.
        ends_at = to_timestamp(end_of_lease(self._clock, state.seconds))
        return errors.lease_held(name, state.holder or "another writer", ends_at)

    def _swap(self, name: str, state: _State, over: Blob | None) -> bool:
        """Replace the blob. Return False if another writer was faster.

        After a refusal or a lost answer, read the blob: our own request may have succeeded. No two states are equal.
        """
        key, data = self._key(name), state.to_json()
        try:
            _ = self._store.put_if(key, data, over.version) if over else self._store.create(key, data)
        except (VersionMismatchError, errors.StorageError) as fault:
            blob = self._store.get(key)
            is_ours = blob is not None and blob.data == data
            if isinstance(fault, errors.StorageError) and not is_ours:
                raise
            return is_ours
        return True

    def _is_over(self, name: str, blob: Blob, state: _State) -> bool:
        now = self._clock.monotonic()
        with self._lock:
            seen = self._seen.get(name)
        if seen is not None and seen.version == blob.version:
            if now - seen.at >= state.seconds:
                return True
            if seen.age_seconds + now - seen.at - _STORE_CLOCK_SECONDS < state.seconds:
                return False  # a waiting writer need not read the store's clock each time
        age_seconds = self._read_age(name)
        if seen is None or seen.version != blob.version:
            with self._lock:
                self._seen[name] = _ObservedLease(blob.version, now, age_seconds or 0.0)
        return age_seconds is not None and age_seconds - _STORE_CLOCK_SECONDS >= state.seconds

    def _read_age(self, name: str) -> float | None:
        """Return the age of the lease in seconds, by the store's clock; less if it was renewed during the call."""
        key, marker = self._key(name), f"{self._prefix}{name}.lease.now"
        # All writers share one marker, whose time is never in the future.
        self._store.put(marker, b"")
        times = {info.key: info.modified_at for info in self._store.list(f"{self._prefix}{name}.lease.")}
        if key not in times or marker not in times:
            return None
        return (times[marker] - times[key]).total_seconds()


class HeldLease:
    """A lease that a thread renews. Call `check` before anything that only its holder may do."""

    def __init__(self, leases: Leases, name: str, *, seconds: float, clock: Clock, refusals: int = 0) -> None:
        """Acquire the lease. `refusals`: number of earlier refusals."""
        self.refusals = refusals
        self._leases = leases
        self._seconds = seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._is_lost = False
        # Measured from before the request, so that the lease does not end earlier by another clock.
        began = clock.monotonic()
        self._lease = leases.acquire(name, seconds=seconds)
        self._ends_at = began + seconds

    @property
    def fence(self) -> int:
        return self._lease.fence

    def check(self) -> None:
        """Raise E210 if another writer may hold the lease."""
        with self._lock:
            if self._is_lost or self._clock.monotonic() >= self._ends_at:
                raise errors.lease_lost(self._lease.name)

    def renew(self) -> bool:
        """Renew the lease. Return False if it is lost. An unreachable store may be back at the next renewal."""
        began = self._clock.monotonic()
        try:
            lease = self._leases.renew(self._lease, seconds=self._seconds)
        except LeaseLostError:
            with self._lock:
                self._is_lost = True
            return False
        except errors.StorageError as fault:
            logger.warning("lease not renewed", extra={"lease": self._lease.name, "reason": fault.explanation})
            return True
        with self._lock:
            self._lease, self._ends_at = lease, began + self._seconds
        return True

    def release(self) -> None:
        try:
            self._leases.release(self._lease)
        except errors.StorageError as fault:
            # The result of the work matters more, and the lease will expire.
            logger.warning("lease not released", extra={"lease": self._lease.name, "reason": fault.explanation})

    @contextlib.contextmanager
    def keep_alive(self) -> Iterator[None]:
        """Renew the lease while the block runs, then release it."""
        is_over = threading.Event()

        def keep_renewing() -> None:
            while not is_over.wait(self._seconds / RENEWALS_PER_LEASE) and self.renew():
                pass

        thread = threading.Thread(target=keep_renewing, name=f"lease {self._lease.name}", daemon=True)
        try:
            thread.start()
            try:
                yield
            finally:
                is_over.set()
                thread.join()
        finally:
            self.release()


@dataclass(frozen=True, slots=True)
class _LastTurn:
    released_at: float
    fence: int
    has_rivals: bool
    """Whether another writer held the lease when this writer requested it, or shortly before."""


class LeaseQueue:
    """A fair queue for leases of any kind.

    The next writer holds a second lease, `<name>.next`, until it has the first one. A writer that was refused, or that
    released the lease recently, must hold `<name>.next` before it may take the lease. After its turn, a writer with
    rivals pauses as long as waiting writers do, so that all are equally likely to be next. An occasional writer needs
    only one lease, and a writer without rivals never pauses. `<name>.next` is only for fairness: it may end early, and
    the last try ignores it.
    """

    def __init__(self, leases: Leases, clock: Clock, pause: Callable[[int], None]) -> None:
        """Create a queue. `pause(n)` waits about n² times 10 ms."""
        self._leases = leases
        self._clock = clock
        self._pause = pause
        self._last_turns: dict[str, _LastTurn] = {}

    @contextlib.contextmanager
    def hold(
        self, name: str, *, seconds: float, attempts: int, before_try: Callable[[], None] = lambda: None
    ) -> Iterator[HeldLease]:
        """Hold the lease while the block runs; the n-th attempt has n tries, at most 10. Raises E203, E206."""
        last = self._last_turns.get(name)
        if last is not None and self._clock.monotonic() >= last.released_at + seconds:
            last = None
        lease = self._acquire(name, seconds, attempts, before_try, last)
        has_rivals = bool(lease.refusals) or (last is not None and lease.fence != last.fence + 1)
        try:
            with lease.keep_alive():
                yield lease
        finally:
            self._last_turns[name] = _LastTurn(self._clock.monotonic(), lease.fence, has_rivals)

    def _acquire(
        self, name: str, seconds: float, attempts: int, before_try: Callable[[], None], last: _LastTurn | None
    ) -> HeldLease:
        is_queued = last is not None
        if last is not None and last.has_rivals:
            self._pause(_LONG_PAUSE)
        tries = [number for number in range(attempts) for _ in range(min(number + 1, _MOST_TRIES))]
        place: Lease | None = None
        request = functools.partial(HeldLease, self._leases, name, seconds=seconds, clock=self._clock)
        try:
            for refusals in tries[:-1]:
                before_try()
                pause = _LONG_PAUSE if is_queued else 0
                with contextlib.suppress(errors.ConflictError):
                    if is_queued and place is None:
                        place = self._leases.acquire(f"{name}.next", seconds=min(seconds, _NEXT_SECONDS))
                    pause = _SHORT_PAUSE if place else pause
                    return request(refusals=refusals)
                is_queued = True
                self._pause(pause)
            before_try()
            return request(refusals=attempts - 1)
        finally:
            if place is not None:
                with contextlib.suppress(errors.StorageError):  # The lease expires without a release.
                    self._leases.release(place)
