"""Differences between operating systems: locks on open files, limits of a process, flags of `os.open`.

A lock belongs to an open file and ends with it, or with its process. POSIX has `flock`. Windows locks ranges of bytes,
with no shared kind: an exclusive lock takes every slot of a range far beyond the end of a file, a shared one takes one.
"""

import contextlib
import errno
import importlib
import os
import secrets
from dataclasses import dataclass
from typing import Any, Protocol

resource: Any = None
"""Limits and use of resources; None on Windows."""
with contextlib.suppress(ModuleNotFoundError):
    resource = importlib.import_module("resource")
NO_FOLLOW: int = getattr(os, "O_NOFOLLOW", 0)
DIRECTORY: int = getattr(os, "O_DIRECTORY", 0)
CLOSE_ON_EXEC: int = getattr(os, "O_CLOEXEC", getattr(os, "O_NOINHERIT", 0))
NON_BLOCKING: int = getattr(os, "O_NONBLOCK", 0)
_SLOTS = 1024
_FIRST_SLOT = 0x7FFF_0000
_TRIES = 64
_BUSY = frozenset({errno.EACCES, errno.EAGAIN, errno.EDEADLK, getattr(errno, "EDEADLOCK", errno.EDEADLK)})
"""Error numbers that Windows reports for a range that another open file holds."""


class FileLocks(Protocol):
    """Locks on open files. A descriptor holds one lock at most; closing it frees the lock."""

    def lock(self, descriptor: int) -> None:
        """Wait for the exclusive lock."""

    def try_lock(self, descriptor: int) -> None:
        """Take the exclusive lock. Raises BlockingIOError if another open file holds a lock."""

    def share(self, descriptor: int) -> None:
        """Wait for a shared lock."""


@dataclass(frozen=True)
class PosixLocks:
    fcntl: Any
    """The module `fcntl`."""

    def lock(self, descriptor: int) -> None:
        self.fcntl.flock(descriptor, self.fcntl.LOCK_EX)

    def try_lock(self, descriptor: int) -> None:
        self.fcntl.flock(descriptor, self.fcntl.LOCK_EX | self.fcntl.LOCK_NB)

    def share(self, descriptor: int) -> None:
        self.fcntl.flock(descriptor, self.fcntl.LOCK_SH)


@dataclass(frozen=True)
class WindowsLocks:
    msvcrt: Any
    """The module `msvcrt`."""

    def lock(self, descriptor: int) -> None:
        self._wait(descriptor, 0, _SLOTS)

    def try_lock(self, descriptor: int) -> None:
        self._take(descriptor, self.msvcrt.LK_NBLCK, 0, _SLOTS)

    def share(self, descriptor: int) -> None:
        for _ in range(_TRIES):
            slot = secrets.randbelow(_SLOTS)
            try:
                return self._take(descriptor, self.msvcrt.LK_NBLCK, slot, 1)
            except BlockingIOError:  # by a shared lock that took the same slot, or by an exclusive one
                continue
        return self._wait(descriptor, secrets.randbelow(_SLOTS), 1)

    def _wait(self, descriptor: int, slot: int, count: int) -> None:
        while True:
            try:
                return self._take(descriptor, self.msvcrt.LK_LOCK, slot, count)
            except BlockingIOError:  # it gives up after 10 seconds
                continue

    def _take(self, descriptor: int, mode: int, slot: int, count: int) -> None:
        before = os.lseek(descriptor, 0, os.SEEK_CUR)
        os.lseek(descriptor, _FIRST_SLOT + slot, os.SEEK_SET)
        try:
            self.msvcrt.locking(descriptor, mode, count)
        except OSError as fault:
            if fault.errno in _BUSY:
                raise BlockingIOError(fault.errno, "another open file holds a lock") from fault
            raise
        finally:
            os.lseek(descriptor, before, os.SEEK_SET)


locks: FileLocks
try:
    locks = PosixLocks(importlib.import_module("fcntl"))
except ModuleNotFoundError:
    locks = WindowsLocks(importlib.import_module("msvcrt"))
