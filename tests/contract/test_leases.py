"""The lease suite, run on every kind of lease; renewal of a held lease; and unreliable clocks."""

import itertools
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from pair import errors
from pair.blobs.contract import BlobStore, Lease, LeaseLostError, Leases
from pair.blobs.leases import BlobLeases, FileLeases, HeldLease, LeaseQueue, MemoryLeases
from pair.blobs.local import LocalStore, MemoryStore
from pair.blobs.redis_leases import RedisLeases
from pair.clock import Clock, SystemClock
from pair.testing.clock import ManualClock
from pair.testing.faulty_store import FaultyStore, drawn
from pair.testing.lease_suite import LeaseSuite
from support.engine_parts import counted
from support.errors import raises_code
from support.ports import free_ports
from support.processes import run_at_once, start_ready
from support.redis_server import PASSWORD, RedisServer, running_redis
from support.s3_server import S3Server

NUMBERS = itertools.count()


def tokens() -> str:
    return f"token-{next(NUMBERS)}"


def on_blobs(store: BlobStore, holder: str = "host-a, process 1", clock: Clock | None = None) -> BlobLeases:
    return BlobLeases(store, holder=holder, new_token=tokens, clock=clock or SystemClock(), prefix="leases/")


def on_redis(url: str, *, prefix: str, holder: str = "host-a, process 1") -> RedisLeases:
    return RedisLeases(url, holder=holder, new_token=tokens, clock=SystemClock(), prefix=prefix)


def on_files(folder: Path, holder: str = "host-a, process 1") -> FileLeases:
    return FileLeases(folder, holder=holder, new_token=tokens)


def in_memory(clock: Clock) -> MemoryLeases:
    return MemoryLeases(holder="host-a, process 1", new_token=tokens, clock=clock)


def hold(leases: Leases, *, seconds: float, clock: Clock) -> AbstractContextManager[HeldLease]:
    return LeaseQueue(leases, clock, lambda attempt: None).hold("kb", seconds=seconds, attempts=1)


class TestMemoryLeases(LeaseSuite):
    @pytest.fixture
    def leases(self) -> Leases:
        return in_memory(SystemClock())

    @pytest.fixture
    def rival(self, leases: Leases) -> Leases:
        return leases


class TestRedisLeases(LeaseSuite):
    @pytest.fixture
    def prefix(self) -> str:
        return f"test-{next(NUMBERS)}:"

    @pytest.fixture
    def leases(self, redis_server: RedisServer, prefix: str) -> Iterator[Leases]:
        made = on_redis(redis_server.url, prefix=prefix)
        yield made
        made.close()

    @pytest.fixture
    def rival(self, redis_server: RedisServer, prefix: str) -> Iterator[Leases]:
        made = on_redis(redis_server.url, prefix=prefix, holder="host-b, process 2")
        yield made
        made.close()


class TestFileLeases(LeaseSuite):
    """Leases that end when their process ends, and not before."""

    @pytest.fixture
    def leases(self, tmp_path: Path) -> Iterator[Leases]:
        made = on_files(tmp_path)
        yield made
        made.close()

    @pytest.fixture
    def rival(self, tmp_path: Path) -> Iterator[Leases]:
        made = on_files(tmp_path, "host-a, process 2")
        yield made
        made.close()

    def test_a_held_lease_is_refused_with_its_holder_and_its_end(self, leases: Leases, rival: Leases) -> None:
        lease = leases.acquire("kb", seconds=60)
        with raises_code(errors.LEASE_HELD, errors.ConflictError) as raised:
            rival.acquire("kb", seconds=60)
        assert raised.value.details["holder"] == lease.holder
        assert raised.value.details["expires_at"] == "that process ends"

    def test_a_lease_that_is_not_renewed_ends(self, leases: Leases, rival: Leases) -> None:
        lost = leases.acquire("kb", seconds=0.001)
        with pytest.raises(errors.ConflictError):
            rival.acquire("kb", seconds=60)
        leases.close()
        rival.acquire("kb", seconds=60)
        with pytest.raises(LeaseLostError):
            leases.renew(lost, seconds=60)

    def test_the_fence_increases_with_every_lease(self, leases: Leases, rival: Leases) -> None:
        fences = []
        for turn in range(12):
            who = leases if turn % 2 else rival
            lease = who.acquire("kb", seconds=60)
            fences.append(who.renew(lease, seconds=60).fence)
            who.release(lease)
        assert fences == list(range(1, 13))


class TestBlobLeasesOnALocalStore(LeaseSuite):
    @pytest.fixture
    def leases(self, tmp_path: Path) -> Leases:
        return on_blobs(LocalStore(tmp_path))

    @pytest.fixture
    def rival(self, tmp_path: Path) -> Leases:
        return on_blobs(LocalStore(tmp_path), "host-b, process 2")


class TestBlobLeasesOnS3(LeaseSuite):
    @pytest.fixture
    def store(self, s3: S3Server) -> BlobStore:
        return s3.store(f"leases-{next(NUMBERS)}")

    @pytest.fixture
    def leases(self, store: BlobStore) -> Leases:
        return on_blobs(store)

    @pytest.fixture
    def rival(self, store: BlobStore) -> Leases:
        return on_blobs(store, "host-b, process 2")


# ── Redis ──────────────────────────────────────────────────────────────────────────────────────────

WORKER = """
import itertools, sys, threading
from pathlib import Path
from pair import errors
from pair.blobs.leases import BlobLeases
from pair.blobs.local import LocalStore
from pair.blobs.redis_leases import RedisLeases
from pair.clock import SystemClock
url, folder, number, rounds = sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
tokens = (f"{number}-{turn}" for turn in itertools.count())
kind, where = (RedisLeases, url) if url else (BlobLeases, LocalStore(folder / "store"))
leases = kind(where, holder=number, new_token=lambda: next(tokens), clock=SystemClock(), prefix="race:")
print("ready", flush=True)
sys.stdin.readline()
for _ in range(rounds):
    while True:
        try:
            lease = leases.acquire("kb", seconds=30)
            break
        except errors.ConflictError:
            threading.Event().wait(0.001)
    (folder / "inside").open("x").close()
    count = int((folder / "count").read_text()) + 1
    (folder / "count").write_text(str(count))
    with (folder / "fences").open("a") as file:
        file.write(f"{lease.fence}\\n")
    (folder / "inside").unlink()
    leases.release(lease)
leases.close()
"""


def test_sixteen_processes_never_hold_one_redis_lease_together(redis_server: RedisServer, tmp_path: Path) -> None:
    race(redis_server.url, tmp_path, count=16, rounds=10)


def test_processes_never_hold_one_blob_lease_together(tmp_path: Path) -> None:
    race("", tmp_path, count=4, rounds=10)


def race(url: str, folder: Path, *, count: int, rounds: int) -> None:
    """Run processes that each increment a counter in a file, which only the holder of the lease may change."""
    (folder / "count").write_text("0")
    run_at_once(*[start_ready(WORKER, url, folder, number, rounds) for number in range(count)])
    assert (folder / "count").read_text() == str(count * rounds)
    assert (folder / "fences").read_text().split() == [str(fence + 1) for fence in range(count * rounds)]


def test_absent_redis_is_reported_without_the_password() -> None:
    port = free_ports(1)[0]
    leases = on_redis(f"redis://:{PASSWORD}@127.0.0.1:{port}/3", prefix="x:")
    lease = Lease("kb", "holder", "token", 1, SystemClock().now())
    acts: list[Callable[[], object]] = [
        lambda: leases.acquire("kb", seconds=1),
        lambda: leases.renew(lease, seconds=1),
        lambda: leases.release(lease),
    ]
    for act in acts:
        with raises_code("E206", errors.StorageError) as raised:
            act()
        assert raised.value.details == {"address": f"redis://127.0.0.1:{port}/3", "reason": "No connection to Redis"}
        assert PASSWORD not in f"{raised.value.to_json()} {raised.value.__cause__}"
    leases.close()


def test_a_lease_is_lost_if_redis_becomes_unavailable_during_work(tmp_path: Path) -> None:
    clock = ManualClock()
    with running_redis(tmp_path) as server:
        leases = on_redis(server.url, prefix="x:")
        with hold(leases, seconds=600, clock=clock) as lease:
            server.process.kill()
            server.process.wait()
            assert lease.renew() is True
            lease.check()
            clock.advance(601)
            with raises_code("E210", errors.ConflictError):
                lease.check()
        leases.close()


def test_an_acquisition_that_is_sent_twice_counts_once(redis_server: RedisServer) -> None:
    same = RedisLeases(redis_server.url, holder="h", new_token=lambda: "same", clock=SystemClock(), prefix="twice:")
    first = same.acquire("kb", seconds=60)
    assert same.acquire("kb", seconds=60).fence == first.fence
    same.close()


# ── blobs: clocks and lost answers ─────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("jump_seconds", [-3600, 3600])
def test_time_of_day_of_the_machines_that_ask_does_not_matter(jump_seconds: float) -> None:
    store, clock = MemoryStore(ManualClock()), ManualClock()
    leases, rival = on_blobs(store, clock=clock), on_blobs(store, clock=clock)
    lease = leases.acquire("kb", seconds=30)
    clock.jump(jump_seconds)
    with pytest.raises(errors.ConflictError):
        rival.acquire("kb", seconds=30)
    leases.renew(lease, seconds=30)


def test_a_store_clock_that_is_set_back_an_hour_does_not_extend_a_lease() -> None:
    store_clock, clock = ManualClock(), ManualClock()
    store = MemoryStore(store_clock)
    on_blobs(store, clock=clock).acquire("kb", seconds=30)
    store_clock.jump(-3600)
    rival = on_blobs(store, clock=clock)
    for _ in range(3):
        with pytest.raises(errors.ConflictError):
            rival.acquire("kb", seconds=30)
        clock.advance(10)
    assert rival.acquire("kb", seconds=30).fence == 2


@pytest.mark.parametrize("seed", range(20))
def test_fence_ascends_and_no_lease_has_two_holders_on_a_store_that_fails_at_random(seed: int) -> None:
    dice = random.Random(seed)
    clock = ManualClock()
    store = FaultyStore(MemoryStore(clock), drawn(dice, share=0.3))
    clients = [on_blobs(store, f"host-{number}", clock) for number in range(3)]
    fences: list[int] = []
    holder: tuple[BlobLeases, Lease, float] | None = None
    for _ in range(60):
        client = dice.choice(clients)
        clock.advance(dice.random() * 10)
        try:
            if holder and holder[0] is client and dice.random() < 0.5:
                mine, holder = holder[1], None
                client.release(mine)
                continue
            began = clock.monotonic()
            lease = client.acquire("kb", seconds=30)
        except (errors.StorageError, errors.ConflictError):
            continue
        assert holder is None or clock.monotonic() - holder[2] >= 30
        holder = (client, lease, began)
        fences.append(lease.fence)
    assert fences
    assert all(earlier < later for earlier, later in itertools.pairwise(fences))


def test_one_who_waits_asks_the_store_once_for_each_try() -> None:
    clock = ManualClock()
    store, requests = counted(MemoryStore(clock))
    on_blobs(store, clock=clock).acquire("kb", seconds=30)
    rival = on_blobs(store, clock=clock)
    with pytest.raises(errors.ConflictError):
        rival.acquire("kb", seconds=30)
    requests.counts.clear()
    for _ in range(50):
        clock.advance(0.5)
        with pytest.raises(errors.ConflictError):
            rival.acquire("kb", seconds=30)
    assert requests.counts == {"get": 50}
    clock.advance(6.5)
    assert rival.acquire("kb", seconds=30).fence == 2


# ── held ───────────────────────────────────────────────────────────────────────────────────────────


class UnwillingLeases:
    """Leases that are granted once, and then fail as configured."""

    def __init__(self, on_renew: Exception | None = None, on_release: Exception | None = None) -> None:
        self._leases = in_memory(SystemClock())
        self._on_renew = on_renew
        self._on_release = on_release
        self.renewals = threading.Semaphore(0)

    def acquire(self, name: str, *, seconds: float) -> Lease:
        return self._leases.acquire(name, seconds=seconds)

    def renew(self, lease: Lease, *, seconds: float) -> Lease:
        self.renewals.release()
        if self._on_renew:
            raise self._on_renew
        return self._leases.renew(lease, seconds=seconds)

    def release(self, lease: Lease) -> None:
        self._leases.release(lease)
        if self._on_release:
            raise self._on_release

    def close(self) -> None:
        pass


UNREACHABLE = errors.store_unreachable("redis://example", "No connection")


def test_held_lease_is_released_when_the_work_fails() -> None:
    leases = in_memory(SystemClock())
    with pytest.raises(RuntimeError, match="work"), hold(leases, seconds=60, clock=SystemClock()):
        raise RuntimeError("work")
    leases.acquire("kb", seconds=60)


def test_failed_release_hides_neither_the_error_of_the_work_nor_its_success() -> None:
    leases = UnwillingLeases(on_release=UNREACHABLE)
    with pytest.raises(RuntimeError, match="work"), hold(leases, seconds=60, clock=SystemClock()):
        raise RuntimeError("work")
    with hold(leases, seconds=60, clock=SystemClock()) as lease:
        lease.check()


def test_a_lease_that_cannot_be_renewed_lasts_for_its_granted_time() -> None:
    leases, clock = UnwillingLeases(on_renew=UNREACHABLE), ManualClock()
    with hold(leases, seconds=0.3, clock=clock) as lease:
        for _ in range(2):
            assert leases.renewals.acquire(timeout=30), "it goes on trying"
        lease.check()
        clock.advance(0.3)
        with pytest.raises(errors.ConflictError):
            lease.check()
