"""Leases by file locks: for a store in a folder, among the processes of one machine.

Invariants
    A lease ends with its process, however it ends: nobody waits for the lease of the dead.
"""

import contextlib
import datetime
import fcntl
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path

from pair import errors, files
from pair.blobs.contract import Lease, LeaseLostError

_FENCE = re.compile(r"[0-9]{1,18}")
_FAR_AWAY = datetime.timedelta(days=36500)


class FileLeases:
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
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as fault:
            _, holder = _written(descriptor)
            os.close(descriptor)
            raise errors.lease_held(name, holder, "that process ends") from fault
        fence = _written(descriptor)[0] + 1
        try:
            with files.storage_errors():
                content = f"{fence} {self._holder}\n".encode()
                # Not the other way round: whoever dies in between must not take the fence with it.
                os.pwrite(descriptor, content, 0)
                os.ftruncate(descriptor, len(content))
        except errors.StorageError:
            os.close(descriptor)
            raise
        token = self._new_token()
        with self._lock:
            self._held[token] = descriptor
        return Lease(name, self._holder, token, fence, datetime.datetime.max.replace(tzinfo=datetime.UTC) - _FAR_AWAY)

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


def _written(descriptor: int) -> tuple[int, str]:
    """The last fence, and who had it."""
    line = os.pread(descriptor, 4096, 0).decode(errors="replace").partition("\n")[0]
    number, _, holder = line.partition(" ")
    return (int(number) if _FENCE.fullmatch(number) else 0), (holder or "another process")
