"""Tests that every kind of lease must pass.

Name a class `Test…`, make it inherit from `LeaseSuite`, and give it two fixtures: `leases`, and `rival`, which another
process would use for the same leases. Both may be one object if leases exist only in one process.
"""

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from pair import errors
from pair.blobs.contract import Lease, LeaseLostError, Leases
from pair.blobs.leases import LeaseQueue
from pair.clock import SystemClock

LONG_SECONDS = 60.0
SHORT_SECONDS = 0.3
PATIENCE_SECONDS = 30.0
WRITERS, TURNS = 3, 24


class LeaseSuite:
    """The tests of leases. Short leases end in real time, because the tests do not control the clock."""

    def test_a_free_lease_is_acquired_at_once(self, leases: Leases) -> None:
        lease = leases.acquire("kb", seconds=LONG_SECONDS)
        assert (lease.name, lease.fence > 0, bool(lease.holder), bool(lease.token)) == ("kb", True, True, True)
        assert lease.expires_at.tzinfo is not None

    def test_a_held_lease_is_refused_with_its_holder_and_its_end(self, leases: Leases, rival: Leases) -> None:
        lease = leases.acquire("kb", seconds=LONG_SECONDS)
        with pytest.raises(errors.ConflictError) as raised:
            rival.acquire("kb", seconds=LONG_SECONDS)
        assert raised.value.code == errors.LEASE_HELD
        assert raised.value.details["holder"] == lease.holder
        assert raised.value.details["expires_at"].endswith("Z")
        assert lease.token not in str(raised.value.to_json())

    def test_leases_of_different_names_are_independent(self, leases: Leases, rival: Leases) -> None:
        leases.acquire("kb", seconds=LONG_SECONDS)
        rival.acquire("kb-2", seconds=LONG_SECONDS)
        rival.acquire("a/kb", seconds=LONG_SECONDS)

    def test_a_process_cannot_hold_a_lease_twice(self, leases: Leases) -> None:
        leases.acquire("kb", seconds=LONG_SECONDS)
        with pytest.raises(errors.ConflictError):
            leases.acquire("kb", seconds=LONG_SECONDS)

    def test_a_released_lease_is_free_at_once(self, leases: Leases, rival: Leases) -> None:
        leases.release(leases.acquire("kb", seconds=LONG_SECONDS))
        rival.acquire("kb", seconds=LONG_SECONDS)

    def test_the_fence_increases_with_every_lease(self, leases: Leases, rival: Leases) -> None:
        fences = []
        for turn in range(6):
            who = leases if turn % 2 else rival
            lease = who.acquire("kb", seconds=LONG_SECONDS)
            fences.append(who.renew(lease, seconds=LONG_SECONDS).fence)
            who.release(lease)
        last = leases.acquire("kb", seconds=SHORT_SECONDS)
        fences += [last.fence, _when_free(rival, "kb").fence]
        assert all(earlier < later for earlier, later in itertools.pairwise(fences))

    def test_a_lease_that_is_not_renewed_ends(self, leases: Leases, rival: Leases) -> None:
        lost = leases.acquire("kb", seconds=SHORT_SECONDS)
        taken = _when_free(rival, "kb")
        assert taken.token != lost.token
        with pytest.raises(LeaseLostError):
            leases.renew(lost, seconds=LONG_SECONDS)

    def test_a_renewed_lease_continues(self, leases: Leases, rival: Leases) -> None:
        lease, renewed = _renew_in_time(leases)
        assert (renewed.fence, renewed.token) == (lease.fence, lease.token)
        threading.Event().wait(2 * SHORT_SECONDS)
        with pytest.raises(errors.ConflictError):
            rival.acquire("kb", seconds=LONG_SECONDS)
        leases.renew(renewed, seconds=LONG_SECONDS)

    def test_a_lost_lease_cannot_be_renewed_and_its_release_does_not_free_the_next(
        self, leases: Leases, rival: Leases
    ) -> None:
        lost = leases.acquire("kb", seconds=LONG_SECONDS)
        leases.release(lost)
        current = rival.acquire("kb", seconds=LONG_SECONDS)
        with pytest.raises(LeaseLostError):
            leases.renew(lost, seconds=LONG_SECONDS)
        leases.release(lost)
        rival.renew(current, seconds=LONG_SECONDS)
        with pytest.raises(errors.ConflictError):
            leases.acquire("kb", seconds=LONG_SECONDS)

    def test_a_released_lease_cannot_be_renewed(self, leases: Leases) -> None:
        lease = leases.acquire("kb", seconds=LONG_SECONDS)
        leases.release(lease)
        leases.release(lease)
        with pytest.raises(LeaseLostError):
            leases.renew(lease, seconds=LONG_SECONDS)

    def test_one_of_many_callers_at_once_gets_the_lease(self, leases: Leases, rival: Leases) -> None:
        barrier = threading.Barrier(6)

        def ask(number: int) -> Lease | None:
            barrier.wait()
            try:
                return (leases if number % 2 else rival).acquire("kb", seconds=LONG_SECONDS)
            except errors.ConflictError:
                return None

        with ThreadPoolExecutor(6) as pool:
            assert len([lease for lease in pool.map(ask, range(6)) if lease]) == 1

    def test_lease_is_renewed_while_work_lasts(self, leases: Leases, rival: Leases) -> None:
        queue = LeaseQueue(leases, SystemClock(), lambda attempt: None)
        with queue.hold("kb", seconds=2.0, attempts=1) as lease:
            threading.Event().wait(2.3)
            lease.check()
            with pytest.raises(errors.ConflictError):
                rival.acquire("kb", seconds=LONG_SECONDS)
        rival.acquire("kb", seconds=LONG_SECONDS)

    def test_writers_without_pauses_take_turns(self, leases: Leases, rival: Leases) -> None:
        """Each writer has its own queue, like a process. The test ends when one writer has had all its turns."""
        barrier, turns, is_over = threading.Barrier(WRITERS), list[int](), threading.Event()

        def write(number: int) -> None:
            def pause(attempt: int) -> None:
                threading.Event().wait(0.010 * attempt * attempt * (1 + number / WRITERS))

            queue = LeaseQueue(rival if number % 2 else leases, SystemClock(), pause)
            barrier.wait()
            while not is_over.is_set():
                with queue.hold("kb", seconds=LONG_SECONDS, attempts=1000):
                    turns.append(number)
                    threading.Event().wait(0.005)
                    if turns.count(number) == TURNS:
                        is_over.set()

        with ThreadPoolExecutor(WRITERS) as pool:
            list(pool.map(write, range(WRITERS)))
        assert min(turns.count(number) for number in range(WRITERS)) >= 1, "every writer has a turn"

    def test_waiting_ends_with_the_holder_after_all_attempts(self, leases: Leases, rival: Leases) -> None:
        lease, pauses = leases.acquire("kb", seconds=LONG_SECONDS), list[int]()
        queue = LeaseQueue(rival, SystemClock(), pauses.append)
        with pytest.raises(errors.ConflictError) as raised, queue.hold("kb", seconds=LONG_SECONDS, attempts=3):
            pytest.fail("began")
        assert (raised.value.code, raised.value.details["holder"]) == (errors.LEASE_HELD, lease.holder)
        assert len(pauses) == 5, "one try, then two, then three"
        leases.release(lease)
        rival.acquire("kb.next", seconds=LONG_SECONDS)  # The queue has released its place.

    def test_an_occasional_writer_does_not_wait_for_a_reserved_turn(self, leases: Leases, rival: Leases) -> None:
        leases.acquire("kb.next", seconds=LONG_SECONDS)
        queue = LeaseQueue(rival, SystemClock(), lambda attempt: None)
        with queue.hold("kb", seconds=LONG_SECONDS, attempts=1) as lease:
            assert lease.refusals == 0


def _renew_in_time(leases: Leases) -> tuple[Lease, Lease]:
    """Return a short lease and its renewal. A busy machine may need more than one attempt."""
    while True:
        lease = _when_free(leases, "kb", seconds=SHORT_SECONDS)
        try:
            return lease, leases.renew(lease, seconds=LONG_SECONDS)
        except LeaseLostError:
            continue


def _when_free(leases: Leases, name: str, *, seconds: float = LONG_SECONDS) -> Lease:
    """Acquire the lease as soon as it is free."""
    clock = SystemClock()
    ends_at = clock.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return leases.acquire(name, seconds=seconds)
        except errors.ConflictError:
            if clock.monotonic() > ends_at:
                raise
            threading.Event().wait(SHORT_SECONDS / 10)
