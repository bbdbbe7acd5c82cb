"""A store that wraps another and fails by a plan: before, after (the lost answer), late, twice, out of order."""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal, Protocol, TypeVar

from pair import errors
from pair.blobs.contract import Blob, BlobInfo, BlobStore, BlobUnchanged, Version, VersionMismatchError

Fault = Literal["none", "before", "after", "twice", "delay", "late", "again"]
"""`before`: nothing happens, then E206. `after`: it happens, then E206. `twice`: the request arrives a second time, and
that answer is the one that is heard. `delay`: the hook is called first. `late`: E206 now, and a write arrives whenever
the owner of the store lets it, behind requests that were made after it. `again`: all is well, and a write arrives once
more when the owner lets it."""

Plan = Callable[[str, str], Fault]
"""Returns the fault of an operation (by its name) on a key."""

Arrival = Callable[[], None]
"""A write that is still under way: call it when it arrives. The answer is lost."""

_Answer = TypeVar("_Answer")


class Dice(Protocol):
    """`random.Random` is one."""

    def random(self) -> float: ...


def planned(faults: Iterable[Fault], *, only: Sequence[str] = ()) -> Plan:
    """Plan one fault for each request, in this order, then none; only for requests named in `only`, if any are."""
    waiting = iter(list(faults))
    lock = threading.Lock()

    def plan(operation: str, _key: str) -> Fault:
        if only and operation not in only:
            return "none"
        with lock:
            return next(waiting, "none")

    return plan


def drawn(dice: Dice, *, share: float, kinds: Sequence[Fault] = ("before", "after", "twice", "delay")) -> Plan:
    """Plan a fault for this share of the requests, the same ones for the same dice as long as one thread asks."""
    lock = threading.Lock()

    def plan(_operation: str, _key: str) -> Fault:
        with lock:
            number = dice.random()
        return kinds[int(number / share * len(kinds))] if number < share else "none"

    return plan


class FaultyStore:
    """`on_late` is given each write that arrives later than its answer."""

    def __init__(
        self,
        store: BlobStore,
        plan: Plan,
        *,
        on_delay: Callable[[], None] = lambda: None,
        on_late: Callable[[Arrival], None] = lambda _: None,
    ) -> None:
        self._store = store
        self._plan = plan
        self._on_delay = on_delay
        self._on_late = on_late

    @property
    def address(self) -> str:
        return self._store.address

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
            return functools.partial(self._store.put, key, path.read_bytes())  # the file may be gone by then

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
        """`later` makes the part of a write that arrives later; a read that arrives late has no reader."""
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
