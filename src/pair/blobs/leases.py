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
class _MemoryLease:
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
        self._kept: dict[str, _MemoryLease] = {}

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
        self._kept[lease.name] = _MemoryLease(lease, self._clock.monotonic() + seconds)
        return lease

    def _after(self, seconds: float) -> datetime.datetime:
        return self._clock.now() + datetime.timedelta(seconds=seconds)


class HeldLease:
    """A lease that a thread renews. `check` it before anything that only its holder may do."""

    refusals = 0
    """How many times it was waited for."""

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
    with renewed(HeldLease(leases, name, seconds=seconds, clock=clock), name, seconds) as lease:
        yield lease


@contextlib.contextmanager
def renewed(lease: HeldLease, name: str, seconds: float) -> Iterator[HeldLease]:
    """Renew the lease while the block runs, then release it."""
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


_NEXT_SECONDS = 10.0
"""How long a writer that died while it was next keeps others from being next."""
_MOST_TRIES = 10
_SHORT_PAUSE, _LONG_PAUSE = 1, 3


@dataclass(frozen=True, slots=True)
class _LastTurn:
    released_at: float
    fence: int
    has_rivals: bool
    """Whether another writer had the lease shortly before, or at the time when it was asked for."""


class LeaseQueue:
    """Waits for leases in turn, whatever their kind.

    The writer that is next holds a second lease, `<name>.next`, until it has the first one. A writer that was refused,
    or that released the lease a short while ago, has to be next before it may take the lease. After a turn a writer
    with rivals pauses as long as those that wait to be next, so that all of them are equally likely to be. An
    occasional writer pays for one lease only, and one without rivals never pauses. Fairness is all that `<name>.next`
    is for: it may end early, and the last try does without it.
    """

    def __init__(self, leases: Leases, clock: Clock, pause: Callable[[int], None]) -> None:
        """`pause(n)` waits about the square of n, times 10 ms."""
        self._leases = leases
        self._clock = clock
        self._pause = pause
        self._last_turns: dict[str, _LastTurn] = {}

    @contextlib.contextmanager
    def hold(
        self, name: str, *, seconds: float, attempts: int, before_try: Callable[[], None] = lambda: None
    ) -> Iterator[HeldLease]:
        """Hold the lease while the block runs. Raises E203 after all attempts; E206.

        The n-th attempt is n tries, and at most ten.
        """
        last = self._last_turns.get(name)
        if last is not None and self._clock.monotonic() >= last.released_at + seconds:
            last = None
        lease = self._acquire(name, seconds, attempts, before_try, last)
        has_rivals = bool(lease.refusals) or (last is not None and lease.fence != last.fence + 1)
        try:
            with renewed(lease, name, seconds):
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
        try:
            for refusals in tries[:-1]:
                before_try()
                pause = _LONG_PAUSE if is_queued else 0
                with contextlib.suppress(errors.ConflictError):
                    if is_queued and place is None:
                        place = self._leases.acquire(f"{name}.next", seconds=min(seconds, _NEXT_SECONDS))
                    pause = _SHORT_PAUSE if place else pause
                    return self._take(name, seconds, refusals)
                is_queued = True
                self._pause(pause)
            before_try()
            return self._take(name, seconds, attempts - 1)
        finally:
            if place is not None:
                with contextlib.suppress(errors.StorageError):  # it ends by itself
                    self._leases.release(place)

    def _take(self, name: str, seconds: float, refusals: int) -> HeldLease:
        lease = HeldLease(self._leases, name, seconds=seconds, clock=self._clock)
        lease.refusals = refusals
        return lease
