"""Differences between operating systems: both kinds of locks, and imports without POSIX modules."""

import errno
import importlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pair import files
from pair.files import FileLocks, PosixLocks, WindowsLocks

WITHOUT_POSIX = """
import importlib, os, pkgutil, signal, sys

def import_all():
    import pair
    names = [module.name for module in pkgutil.walk_packages(pair.__path__, "pair.")]
    for name in ["pair", *names]:
        if name != "pair.__main__":
            importlib.import_module(name)
    return len(names)

import_all()  # loads the libraries, which are not under test
for name in [name for name in sys.modules if name.partition(".")[0] == "pair"]:
    del sys.modules[name]

POSIX = {"fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "posix_ipc", "uvloop", "syslog", "crypt"}

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in POSIX:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None

class Windows:
    LK_LOCK, LK_NBLCK, LK_UNLCK = 1, 2, 0

for name in POSIX:
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Blocked())
sys.modules["msvcrt"] = Windows
sys.platform = "win32"
for name in ["O_NOFOLLOW", "O_DIRECTORY", "O_CLOEXEC", "O_NONBLOCK", "O_PATH", "getuid", "geteuid", "getgid", "fchmod",
             "chown", "fork", "pread", "pwrite", "sched_getaffinity", "killpg", "setsid", "getloadavg", "statvfs"]:
    if hasattr(os, name):
        delattr(os, name)
for name in ["SIGKILL", "SIGHUP", "SIGXCPU", "SIGTRAP", "SIGUSR1", "SIGUSR2", "SIGPIPE", "SIGCHLD", "SIGALRM"]:
    delattr(signal, name)

print(import_all())
from pair import files
assert isinstance(files.locks, files.WindowsLocks), files.locks
assert files.resource is None
"""


class ByteRanges:
    """A stand-in for the locks of the Windows module `msvcrt`: byte ranges that belong to an open file."""

    LK_UNLCK, LK_LOCK, LK_NBLCK = 0, 1, 2

    def __init__(self) -> None:
        self.held: dict[int, tuple[int, range]] = {}
        self.waits = 0
        self._changed = threading.Condition()

    def locking(self, descriptor: int, mode: int, count: int) -> None:
        begin, file = os.lseek(descriptor, 0, os.SEEK_CUR), os.fstat(descriptor).st_ino
        wanted = range(begin, begin + count)
        with self._changed:
            if self._is_taken(file, wanted):
                if mode == self.LK_NBLCK:
                    raise OSError(errno.EACCES, "Permission denied")
                self.waits += 1
                if self.waits % 2:  # it gives up after some tries, and the caller asks again
                    raise OSError(errno.EDEADLK, "Resource deadlock avoided")
                assert self._changed.wait_for(lambda: not self._is_taken(file, wanted), timeout=60)
            self.held[descriptor] = file, wanted

    def _is_taken(self, file: int, wanted: range) -> bool:
        return any(
            own == file and taken.start < wanted.stop and wanted.start < taken.stop for own, taken in self.held.values()
        )

    def close(self, descriptor: int) -> None:
        """Close a file, which frees its lock."""
        with self._changed:
            self.held.pop(descriptor, None)
            os.close(descriptor)
            self._changed.notify_all()


class Opened:
    """A file that is opened several times; the end of the block closes all descriptors."""

    def __init__(self, path: Path, kind: str) -> None:
        self.path = path
        self.windows = ByteRanges() if kind == "windows" else None
        self.locks: FileLocks = (
            WindowsLocks(self.windows) if self.windows is not None else PosixLocks(importlib.import_module("fcntl"))
        )
        self.descriptors: list[int] = []

    def open(self) -> int:
        self.descriptors.append(os.open(self.path, os.O_RDWR | os.O_CREAT))
        return self.descriptors[-1]

    def close(self, descriptor: int) -> None:
        self.descriptors.remove(descriptor)
        (self.windows.close if self.windows is not None else os.close)(descriptor)


@pytest.fixture(params=["posix", "windows"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opened]:
    opened = Opened(tmp_path / "lock", request.param)
    yield opened
    for descriptor in [*opened.descriptors]:
        opened.close(descriptor)


def test_an_exclusive_lock_refuses_another_until_its_file_is_closed(opened: Opened) -> None:
    first, second = opened.open(), opened.open()
    opened.locks.try_lock(first)
    with pytest.raises(BlockingIOError):
        opened.locks.try_lock(second)
    opened.close(first)
    opened.locks.try_lock(second)


def test_shared_locks_coexist_and_refuse_an_exclusive_one(opened: Opened) -> None:
    readers = [opened.open() for _ in range(20)]
    for reader in readers:
        opened.locks.share(reader)
    writer = opened.open()
    for reader in readers:
        with pytest.raises(BlockingIOError):
            opened.locks.try_lock(writer)
        opened.close(reader)
    opened.locks.try_lock(writer)


@pytest.mark.parametrize("kind", ["lock", "share"])
def test_a_lock_is_waited_for(opened: Opened, kind: str) -> None:
    first, second = opened.open(), opened.open()
    opened.locks.lock(first)
    taken = threading.Event()

    def wait() -> None:
        getattr(opened.locks, kind)(second)
        taken.set()

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert not taken.is_set()
    opened.close(first)
    waiting.join(timeout=60)
    assert taken.is_set()


def test_a_lock_changes_neither_the_content_nor_the_position(opened: Opened) -> None:
    descriptor = opened.open()
    os.write(descriptor, b"process 42\n")
    opened.locks.lock(descriptor)
    assert os.lseek(descriptor, 0, os.SEEK_CUR) == 11
    assert opened.path.read_bytes() == b"process 42\n"


def test_another_fault_of_windows_is_not_taken_for_a_lock(tmp_path: Path) -> None:
    opened = Opened(tmp_path / "lock", "windows")
    assert opened.windows is not None

    def fail(descriptor: int, mode: int, count: int) -> None:
        raise OSError(errno.EBADF, "Bad file descriptor")

    opened.windows.locking = fail  # type: ignore[method-assign]
    with pytest.raises(OSError, match="Bad file") as raised:
        opened.locks.try_lock(descriptor := opened.open())
    opened.close(descriptor)
    assert not isinstance(raised.value, BlockingIOError)


def test_this_system_has_the_locks_of_posix() -> None:
    assert isinstance(files.locks, PosixLocks)


def test_every_module_is_imported_without_the_modules_and_names_of_posix() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_POSIX], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 200
