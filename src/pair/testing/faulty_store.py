"""A store that wraps another store and injects planned faults: lost, late and repeated requests, lost answers."""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal, Protocol, TypeVar

from pair import errors
from pair.blobs.contract import Blob, BlobInfo, BlobStore, BlobUnchanged, Version, VersionMismatchError

Fault = Literal["none", "before", "after", "twice", "delay", "late", "again"]
"""`before`: the request is lost (E206). `after`: the answer is lost (E206). `twice`: the request arrives twice, and the
second answer is returned. `delay`: the hook runs first. `late`: E206, and a write arrives later, when the test runs
it. `again`: the request succeeds, and a write arrives a second time when the test runs it."""

Plan = Callable[[str, str], Fault]
"""A function that returns the fault of an operation (by its name) on a key."""

Arrival = Callable[[], None]
"""A delayed write. Call it to let the write arrive. Its answer is lost."""

_Answer = TypeVar("_Answer")


class Dice(Protocol):
    """A source of random numbers, such as `random.Random`."""

    def random(self) -> float: ...


def planned(faults: Iterable[Fault], *, only: Sequence[str] = ()) -> Plan:
    """Plan one fault for each request, in this order, then none. `only`: the operations that count; empty for all."""
    waiting = iter(list(faults))
    lock = threading.Lock()

    def plan(operation: str, _key: str) -> Fault:
        if only and operation not in only:
            return "none"
        with lock:
            return next(waiting, "none")

    return plan


def drawn(dice: Dice, *, share: float, kinds: Sequence[Fault] = ("before", "after", "twice", "delay")) -> Plan:
    """Plan a fault for this share of the requests. In one thread, equal dice give equal faults."""
    lock = threading.Lock()

    def plan(_operation: str, _key: str) -> Fault:
        with lock:
            number = dice.random()
        return kinds[int(number / share * len(kinds))] if number < share else "none"

    return plan


class FaultyStore:
    """A store with planned faults. `on_late` receives each delayed write."""

    def __init__(
        self,
        store: BlobStore,
        plan: Plan,
        *,
        on_delay: Callable[[], None] = lambda: None,
        on_late: Callable[[Arrival], None] = lambda _: None,
    ) -> None:
        self.address = store.address
        self._store = store
        self._plan = plan
        self._on_delay = on_delay
        self._on_late = on_late

    def get(self, key: str) -> Blob | None:
        return self._send("get", key, lambda: self._store.get(key))

    def get_if_changed(self, key: str, version: Version) -> Blob | BlobUnchanged | None:
        return self._send("get_if_changed", key, lambda: self._store.get_if_changed(key, version))

    def get_range(self, key: str, start: int, length: int) -> bytes | None:
        return self._send("get_range", key, lambda: self._store.get_range(key, start, length))

    def download(self, key: str, path: Path) -> bool:
        done: set[bool] = set()

        def download_again() -> bool:
            if True in done:
                path.unlink()
            done.add(is_done := self._store.download(key, path))
            return is_done

        return self._send("download", key, download_again)

    def put(self, key: str, data: bytes) -> Version:
        return self._write("put", key, lambda: self._store.put(key, data))

    def upload(self, key: str, path: Path) -> Version:
        def with_content() -> Callable[[], Version]:
            return functools.partial(self._store.put, key, path.read_bytes())  # the file may be deleted later

        return self._send("upload", key, lambda: self._store.upload(key, path), with_content)

    def put_if(self, key: str, data: bytes, version: Version) -> Version:
        return self._write("put_if", key, lambda: self._store.put_if(key, data, version))

    def create(self, key: str, data: bytes) -> Version:
        return self._write("create", key, lambda: self._store.create(key, data))

    def list(self, prefix: str) -> Iterator[BlobInfo]:
        return iter(self._send("list", prefix, lambda: [*self._store.list(prefix)]))

    def delete(self, key: str) -> None:
        self._write("delete", key, lambda: self._store.delete(key))

    def close(self) -> None:
        self._store.close()

    def _write(self, operation: str, key: str, act: Callable[[], _Answer]) -> _Answer:
        return self._send(operation, key, act, lambda: act)

    def _send(
        self,
        operation: str,
        key: str,
        act: Callable[[], _Answer],
        later: Callable[[], Callable[[], object]] | None = None,
    ) -> _Answer:
        """Send a request with its planned fault. `later` returns the write that may arrive later; None for a read."""
        fault = self._plan(operation, key)
        if fault in {"late", "again"} and later is not None:
            self._on_late(functools.partial(_arrive, later()))
        if fault in {"before", "late"}:
            raise errors.store_unreachable(self.address, "The request was lost")
        if fault == "delay":
            self._on_delay()
        answer = act()
        if fault == "after":
            raise errors.store_unreachable(self.address, "The answer was lost")
        return act() if fault == "twice" else answer


def _arrive(act: Callable[[], object]) -> None:
    with contextlib.suppress(VersionMismatchError, errors.StorageError):
        act()
