"""Leases on manual clocks: their end, their errors, and the blobs that remain."""

import datetime
import itertools
import json
import logging
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pair import errors
from pair.blobs.contract import Lease, LeaseLostError, Leases
from pair.blobs.leases import BlobLeases, FileLeases, HeldLease, MemoryLeases
from pair.blobs.local import MemoryStore
from pair.clock import SystemClock
from pair.testing.clock import NOON, ManualClock
from pair.testing.faulty_store import Fault, FaultyStore, planned
from support.sync_parts import later


def numbered() -> Callable[[], str]:
    numbers = itertools.count(1)
    return lambda: f"token-{next(numbers)}"


def in_memory(clock: ManualClock) -> MemoryLeases:
    return MemoryLeases(holder="host-a", new_token=numbered(), clock=clock)


def on_blobs(store: Any, clock: ManualClock, holder: str = "host-a", prefix: str = "leases/") -> BlobLeases:
    return BlobLeases(store, holder=holder, new_token=numbered(), clock=clock, prefix=prefix)


def refused(act: Callable[[], object], code: str = "E203") -> dict[str, Any]:
    with pytest.raises(errors.ConflictError) as raised:
        act()
    assert raised.value.code == code
    return raised.value.details


@pytest.fixture(params=["memory", "blob"])
def kind(request: pytest.FixtureRequest) -> Callable[[ManualClock], Leases]:
    store = MemoryStore(ManualClock())
    return in_memory if request.param == "memory" else lambda clock: on_blobs(store, clock)


def test_a_lease_describes_itself(kind: Callable[[ManualClock], Leases]) -> None:
    clock = ManualClock()
    leases = kind(clock)
    lease = leases.acquire("kb", seconds=30)
    assert lease == Lease("kb", "host-a", "token-1", 1, later(30))
    clock.advance(10)
    renewed = leases.renew(lease, seconds=60)
    assert renewed == Lease("kb", "host-a", "token-1", 1, later(70))
    leases.release(renewed)
    assert leases.acquire("kb", seconds=5) == Lease("kb", "host-a", "token-2", 2, later(15))


def test_a_refusal_names_the_holder_and_the_end_of_the_lease(kind: Callable[[ManualClock], Leases]) -> None:
    clock = ManualClock()
    leases = kind(clock)
    leases.acquire("kb", seconds=90)
    told = refused(lambda: leases.acquire("kb", seconds=30))
    assert told == {"name": "kb", "holder": "host-a", "expires_at": "2026-03-01T12:01:30Z"}


# ── in memory ──────────────────────────────────────────────────────────────────────────────────────


def test_a_memory_lease_ends_at_its_very_second() -> None:
    clock = ManualClock()
    leases = in_memory(clock)
    lease = leases.acquire("kb", seconds=30)
    clock.advance(29.5)
    refused(lambda: leases.acquire("kb", seconds=30))
    lease = leases.renew(lease, seconds=10)
    clock.advance(9.5)
    refused(lambda: leases.acquire("kb", seconds=30))
    clock.advance(0.5)
    with pytest.raises(LeaseLostError):
        leases.renew(lease, seconds=30)
    assert leases.acquire("kb", seconds=30).fence == 2


# ── as blobs ───────────────────────────────────────────────────────────────────────────────────────


def blob(store: MemoryStore, key: str = "leases/kb.lease.json") -> dict[str, Any]:
    found = store.get(key)
    assert found is not None
    value: dict[str, Any] = json.loads(found.data)
    assert value.pop("check") == zlib.crc32(json.dumps(value).encode())
    return value


def put_state(store: MemoryStore, state: dict[str, Any]) -> None:
    state = {**state, "check": zlib.crc32(json.dumps(state).encode())}
    store.put("leases/kb.lease.json", json.dumps(state).encode())


def test_a_blob_lease_is_written_down_at_every_step() -> None:
    store = MemoryStore(ManualClock())
    leases = on_blobs(store, ManualClock())
    lease = leases.acquire("kb", seconds=30)
    state = {"holder": "host-a", "token": "token-1", "fence": 1, "seconds": 30, "renewals": 0}
    assert blob(store) == state
    leases.renew(leases.renew(lease, seconds=40), seconds=50)
    assert blob(store) == state | {"seconds": 50, "renewals": 2}
    leases.release(lease)
    assert blob(store) == state | {"seconds": 50, "renewals": 3, "token": "", "holder": ""}
    leases.acquire("kb", seconds=30)
    assert blob(store) == state | {"token": "token-2", "fence": 2}
    plain = BlobLeases(store, holder="host-a", new_token=numbered(), clock=ManualClock())
    plain.acquire("kb", seconds=30)
    assert blob(store, "kb.lease.json")["fence"] == 1


def test_a_blob_lease_ends_for_one_who_watched_it_all_the_time() -> None:
    clock = ManualClock()
    store = MemoryStore(ManualClock())
    on_blobs(store, clock, "host-b").acquire("kb", seconds=30)
    watcher = on_blobs(store, clock)
    assert refused(lambda: watcher.acquire("kb", seconds=5))["holder"] == "host-b"
    clock.advance(29.5)
    refused(lambda: watcher.acquire("kb", seconds=5))
    clock.advance(0.5)
    assert watcher.acquire("kb", seconds=5).fence == 2


def test_a_blob_lease_that_was_renewed_is_watched_from_then_on() -> None:
    clock = ManualClock()
    store = MemoryStore(ManualClock())
    holder, watcher = on_blobs(store, clock), on_blobs(store, clock)
    lease = holder.acquire("kb", seconds=30)
    refused(lambda: watcher.acquire("kb", seconds=5))
    clock.advance(29)
    holder.renew(lease, seconds=30)
    clock.advance(1)
    refused(lambda: watcher.acquire("kb", seconds=5))
    clock.advance(29.5)
    refused(lambda: watcher.acquire("kb", seconds=5))
    clock.advance(0.5)
    assert watcher.acquire("kb", seconds=5).fence == 2


def test_a_blob_lease_ends_a_second_later_by_the_clock_of_the_store() -> None:
    store_clock = ManualClock()
    store = MemoryStore(store_clock)
    on_blobs(store, ManualClock()).acquire("kb", seconds=30)
    store_clock.advance(30.75)
    refused(lambda: on_blobs(store, ManualClock()).acquire("kb", seconds=5))
    store_clock.advance(0.25)
    assert on_blobs(store, ManualClock()).acquire("kb", seconds=5).fence == 2


def test_a_lease_is_not_over_because_another_one_is_old() -> None:
    store_clock = ManualClock()
    store = MemoryStore(store_clock)
    leases = on_blobs(store, ManualClock())
    leases.acquire("kb-2", seconds=1)
    store_clock.advance(100)
    leases.acquire("kb", seconds=30)
    refused(lambda: leases.acquire("kb", seconds=30))
    assert leases.acquire("kb-2", seconds=30).fence == 2


def hold_it(leases: BlobLeases, store: MemoryStore) -> None:
    leases.acquire("kb", seconds=90)


def come_and_go(leases: BlobLeases, store: MemoryStore) -> None:
    leases.release(leases.acquire("kb", seconds=90))


def put_something_else(leases: BlobLeases, store: MemoryStore) -> None:
    store.put("leases/kb.lease.json", b"no lease")


@pytest.mark.parametrize(
    ("interfere", "seconds", "holder"),
    [(hold_it, 30, "host-b"), (come_and_go, 90, "another writer"), (put_something_else, 90, "another writer")],
)
def test_a_refusal_names_the_writer_that_was_faster(
    interfere: Callable[[BlobLeases, MemoryStore], None], seconds: float, holder: str
) -> None:
    inner, clock = MemoryStore(ManualClock()), ManualClock()
    rival = on_blobs(inner, clock, "host-b")
    store = FaultyStore(inner, planned(["delay"], only=["create"]), on_delay=lambda: interfere(rival, inner))
    told = refused(lambda: on_blobs(store, clock).acquire("kb", seconds=seconds))
    assert told == {"name": "kb", "holder": holder, "expires_at": "2026-03-01T12:01:30Z"}


def test_a_lease_that_is_taken_while_it_is_renewed_is_lost_and_its_release_frees_nothing() -> None:
    inner, clock = MemoryStore(ManualClock()), ManualClock()

    def take() -> None:
        state = blob(inner)
        put_state(inner, state | {"token": "theirs", "fence": 2})

    store = FaultyStore(inner, planned(["none", "delay"], only=["create", "put_if"]), on_delay=take)
    leases = on_blobs(store, clock)
    lease = leases.acquire("kb", seconds=30)
    with pytest.raises(LeaseLostError, match=r"^kb$"):
        leases.renew(lease, seconds=30)
    leases.release(lease)
    assert blob(inner)["token"] == "theirs"


@pytest.mark.parametrize(
    "changes",
    [
        {"seconds": 1e300}, {"seconds": float("nan")}, {"seconds": float("inf")}, {"seconds": -1}, {"seconds": 0},
        {"fence": 10**30}, {"fence": float("inf")}, {"fence": -1}, {"renewals": -1}, {"renewals": 10**30},
        {"seconds": "soon"}, {"fence": None}, {"seconds": 366 * 86_400 + 1}, {"fence": 2**53 + 1},
    ],
    ids=str,
)  # fmt: skip
def test_what_no_lease_can_say_is_not_a_lease(changes: dict[str, Any]) -> None:
    store = MemoryStore(ManualClock())
    state = {"holder": "host-b", "token": "theirs", "fence": 7, "seconds": 30, "renewals": 0}
    put_state(store, state | changes)
    assert on_blobs(store, ManualClock()).acquire("kb", seconds=30).fence == 1


@pytest.mark.parametrize(
    "changes", [{"seconds": 366 * 86_400}, {"fence": 2**53}, {"renewals": 2**53}, {"fence": 0}], ids=str
)
def test_what_a_lease_can_say_is_held(changes: dict[str, Any]) -> None:
    store = MemoryStore(ManualClock())
    state = {"holder": "host-b", "token": "theirs", "fence": 7, "seconds": 30, "renewals": 0}
    put_state(store, state | changes)
    assert refused(lambda: on_blobs(store, ManualClock()).acquire("kb", seconds=30))["holder"] == "host-b"


def test_a_request_that_never_arrived_is_reported_and_changes_nothing() -> None:
    store = MemoryStore(ManualClock())
    faulty = on_blobs(FaultyStore(store, planned(["before"] * 3, only=["create", "put_if"])), ManualClock())
    with pytest.raises(errors.StorageError) as raised:
        faulty.acquire("kb", seconds=30)
    assert raised.value.code == "E206"
    lease = on_blobs(store, ManualClock()).acquire("kb", seconds=30)
    acts: list[Callable[[], object]] = [lambda: faulty.renew(lease, seconds=30), lambda: faulty.release(lease)]
    for act in acts:
        with pytest.raises(errors.StorageError):
            act()
    assert blob(store)["renewals"] == 0


@pytest.mark.parametrize("fault", ["after", "twice"])
def test_a_lost_or_doubled_answer_is_settled_by_looking(fault: Fault) -> None:
    inner = MemoryStore(ManualClock())
    leases = on_blobs(FaultyStore(inner, planned([fault] * 3, only=["create", "put_if"])), ManualClock())
    lease = leases.acquire("kb", seconds=30)
    assert (lease.fence, blob(inner)["token"]) == (1, lease.token)
    leases.release(leases.renew(lease, seconds=40))
    assert (blob(inner)["token"], blob(inner)["renewals"], blob(inner)["seconds"]) == ("", 2, 40)


@pytest.mark.parametrize("vanished", ["leases/kb.lease.json", "leases/kb.lease.now"])
def test_what_vanishes_while_it_is_looked_at_ends_nothing(vanished: str) -> None:
    store_clock = ManualClock()
    inner = MemoryStore(store_clock)
    on_blobs(inner, ManualClock(), "host-b").acquire("kb", seconds=30)
    store_clock.advance(3600)
    store = FaultyStore(inner, planned(["delay"], only=["list"]), on_delay=lambda: inner.delete(vanished))
    assert refused(lambda: on_blobs(store, ManualClock()).acquire("kb", seconds=30))["holder"] == "host-b"


# ── as files ───────────────────────────────────────────────────────────────────────────────────────


def on_files(folder: Path, holder: str = "host-a, process 1") -> FileLeases:
    return FileLeases(folder, holder=holder, new_token=numbered())


def test_a_file_lease_describes_itself(tmp_path: Path) -> None:
    leases = on_files(tmp_path / "deep" / "folder")
    lease = leases.acquire("team/kb", seconds=30)
    assert (lease.name, lease.holder, lease.token, lease.fence) == ("team/kb", "host-a, process 1", "token-1", 1)
    assert lease.expires_at > SystemClock().now() + datetime.timedelta(days=36500)
    assert lease.expires_at + datetime.timedelta(days=36000), "there is room to count with it"
    assert leases.renew(lease, seconds=1) is lease
    assert (tmp_path / "deep" / "folder" / "team" / "kb.lease").read_text() == "1 host-a, process 1\n"
    leases.close()


@pytest.mark.parametrize(
    ("content", "fence", "holder"),
    [
        (b"", 1, "another process"),
        (b"7", 8, "another process"),
        (b"7 host-b, process 2\n", 8, "host-b, process 2"),
        (b"7 host-b\nrest of an older line 9\n", 8, "host-b"),
        (b"seven host-b\n", 1, "host-b"),
        (b"-7 host-b\n", 1, "host-b"),
        (b"\xb2 host-b\n", 1, "host-b"),
        ("² host-b\n".encode(), 1, "host-b"),
        (b"9" * 5000, 1, "another process"),
        (b"7 \xff\n", 8, "�"),
    ],
)
def test_the_file_of_a_lease_holds_the_last_fence_and_its_holder(
    tmp_path: Path, content: bytes, fence: int, holder: str
) -> None:
    path = tmp_path / "kb.lease"
    path.write_bytes(content)
    first = on_files(tmp_path)
    lease = first.acquire("kb", seconds=30)
    assert lease.fence == fence
    assert path.read_text() == f"{fence} host-a, process 1\n"
    path.write_bytes(content)
    assert refused(lambda: on_files(tmp_path).acquire("kb", seconds=30)) == {
        "name": "kb",
        "holder": holder,
        "expires_at": "that process ends",
    }
    first.close()


def test_a_folder_that_cannot_be_created_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(errors.StorageError):
        on_files(tmp_path / "file").acquire("kb", seconds=30)


# ── holding one ────────────────────────────────────────────────────────────────────────────────────


class Obeying:
    """Leases with scripted answers, which record their calls."""

    def __init__(self, clock: ManualClock) -> None:
        self.asked: list[tuple[str, Lease | str, float]] = []
        self.fault: Exception | None = None
        self._clock = clock
        self.takes_seconds = 0.0

    def _answer(self, asked: tuple[str, Lease | str, float]) -> None:
        self.asked.append(asked)
        self._clock.advance(self.takes_seconds)
        if self.fault:
            raise self.fault

    def acquire(self, name: str, *, seconds: float) -> Lease:
        self._answer(("acquire", name, seconds))
        return Lease(name, "host-a", "token", 7, NOON)

    def renew(self, lease: Lease, *, seconds: float) -> Lease:
        self._answer(("renew", lease, seconds))
        return replace(lease, expires_at=later(1))

    def release(self, lease: Lease) -> None:
        self._answer(("release", lease, 0))

    def close(self) -> None:
        """Do nothing."""


def held(clock: ManualClock) -> tuple[Obeying, HeldLease]:
    leases = Obeying(clock)
    return leases, HeldLease(leases, "kb", seconds=30, clock=clock)


def test_a_held_lease_counts_from_before_it_was_asked_for() -> None:
    clock = ManualClock()
    leases = Obeying(clock)
    leases.takes_seconds = 10
    lease = HeldLease(leases, "kb", seconds=30, clock=clock)
    assert (leases.asked, lease.fence) == ([("acquire", "kb", 30)], 7)
    clock.advance(19.5)
    lease.check()
    assert lease.renew() is True
    assert leases.asked[1] == ("renew", Lease("kb", "host-a", "token", 7, NOON), 30)
    clock.advance(19.5)
    lease.check()
    clock.advance(0.5)
    assert refused(lease.check, "E210") == {"name": "kb"}
    lease.renew()
    lease.release()
    assert leases.asked[2:] == [
        ("renew", Lease("kb", "host-a", "token", 7, later(1)), 30),
        ("release", Lease("kb", "host-a", "token", 7, later(1)), 0),
    ]


def test_a_held_lease_that_is_lost_stays_lost() -> None:
    leases, lease = held(ManualClock())
    lease.check()
    leases.fault = LeaseLostError("kb")
    assert lease.renew() is False
    leases.fault = None
    assert refused(lease.check, "E210") == {"name": "kb"}
    lease.renew()
    refused(lease.check, "E210")


def test_a_store_that_cannot_be_reached_is_logged_and_does_not_end_a_lease(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    leases, lease = held(clock)
    leases.fault = errors.store_unreachable("redis://example", "No connection")
    clock.advance(10)
    with caplog.at_level(logging.WARNING):
        assert lease.renew() is True
        lease.release()
    lease.check()
    clock.advance(20)
    refused(lease.check, "E210")
    told = [(each.message, vars(each)["lease"], vars(each)["reason"].partition(".")[0]) for each in caplog.records]
    assert told == [("lease not renewed", "kb", "No connection"), ("lease not released", "kb", "No connection")]
