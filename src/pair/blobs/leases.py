"""One writer per KB: leases within a process, and holding a lease of any kind while work lasts.

A lease keeps writers from doing the same work at once. It does not protect what they write: a writer may stall for
longer than its lease, so the manifest is swapped by compare-and-swap whatever the lease says.

Not here
    Leases between machines: redis_leases.py, blob_leases.py.
"""

import contextlib
import datetime
import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pair import errors
from pair.blobs.contract import Lease, LeaseLostError, Leases
from pair.clock import Clock, to_timestamp

logger = logging.getLogger(__name__)

RENEWALS_PER_LEASE = 3
"""Two of them may fail before the lease is lost."""


@dataclass(slots=True)
class _Kept:
    lease: Lease
    ends_at: float
    """By the monotonic clock."""


class MemoryLeases:
    """Among the threads of one process."""

    def __init__(self, *, holder: str, new_token: Callable[[], str], clock: Clock) -> None:
        self._holder = holder
        self._new_token = new_token
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: dict[str, _Kept] = {}

    def acquire(self, name: str, *, seconds: float) -> Lease:
        with self._lock:
            last = self._kept.get(name)
            if last and last.ends_at > self._clock.monotonic():
                raise errors.lease_held(name, last.lease.holder, to_timestamp(last.lease.expires_at))
            fence = last.lease.fence + 1 if last else 1
            return self._keep(Lease(name, self._holder, self._new_token(), fence, self._after(seconds)), seconds)

    def renew(self, lease: Lease, *, seconds: float) -> Lease:
        with self._lock:
            kept = self._kept.get(lease.name)
            if kept is None or kept.lease.token != lease.token or kept.ends_at <= self._clock.monotonic():
                raise LeaseLostError(lease.name)
            renewed = Lease(lease.name, lease.holder, lease.token, lease.fence, self._after(seconds))
            return self._keep(renewed, seconds)

    def release(self, lease: Lease) -> None:
        with self._lock:
            kept = self._kept.get(lease.name)
            if kept and kept.lease.token == lease.token:
                # The entry stays: the next fence has to be greater.
                kept.ends_at = self._clock.monotonic()

    def close(self) -> None:
        """Nothing is open."""

    def _keep(self, lease: Lease, seconds: float) -> Lease:
        self._kept[lease.name] = _Kept(lease, self._clock.monotonic() + seconds)
        return lease

    def _after(self, seconds: float) -> datetime.datetime:
        return self._clock.now() + datetime.timedelta(seconds=seconds)


class HeldLease:
    """A lease that a thread renews. `check` it before anything that only its holder may do."""

    def __init__(self, leases: Leases, name: str, *, seconds: float, clock: Clock) -> None:
        self._leases = leases
        self._seconds = seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._is_lost = False
        # Counted from before the request: by any other clock the lease ends no earlier.
        began = clock.monotonic()
        self._lease = leases.acquire(name, seconds=seconds)
        self._ends_at = began + seconds

    @property
    def fence(self) -> int:
        return self._lease.fence

    def check(self) -> None:
        """E210 when somebody else may hold the lease by now."""
        with self._lock:
            if self._is_lost or self._clock.monotonic() >= self._ends_at:
                raise errors.lease_lost(self._lease.name)

    def renew(self) -> bool:
        """False when the lease is lost for good. A store that cannot be reached may be back at the next turn."""
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
            # The work is done or has failed already, and either matters more. The lease ends by itself.
            logger.warning("lease not released", extra={"lease": self._lease.name, "reason": fault.explanation})


@contextlib.contextmanager
def held(leases: Leases, name: str, *, seconds: float, clock: Clock) -> Iterator[HeldLease]:
    """The lease for as long as the block runs, or E203 at once."""
    lease = HeldLease(leases, name, seconds=seconds, clock=clock)
    is_over = threading.Event()

    def keep_renewing() -> None:
        while not is_over.wait(seconds / RENEWALS_PER_LEASE) and lease.renew():
            pass

    thread = threading.Thread(target=keep_renewing, name=f"lease {name}", daemon=True)
    with contextlib.ExitStack() as to_do:
        to_do.callback(lease.release)
        thread.start()
        to_do.callback(thread.join)
        to_do.callback(is_over.set)
        yield lease
