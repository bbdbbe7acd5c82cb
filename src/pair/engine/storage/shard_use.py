"""Locks that say which cached shards are in use, in all processes: they end with the descriptor that holds them."""

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from pair import files

_USE = "use"


class ShardUse:
    """Marks a shard's files as in use, in all processes: a shared lock that ends with its descriptor."""

    def __init__(self, make_folder: Callable[[], Path]) -> None:
        self._descriptor = -1
        while True:
            try:
                self._path = make_folder() / _USE
                self._descriptor = files.open_file(self._path, os.O_RDWR | os.O_CREAT)
            except FileNotFoundError:
                continue  # evicted between two lines
            fcntl.flock(self._descriptor, fcntl.LOCK_SH)
            if self.is_current():
                return
            os.close(self._descriptor)
            self._descriptor = -1

    def is_current(self) -> bool:
        """Tell whether the folder was neither evicted while we waited for its lock, nor deleted since."""
        try:
            on_disk, ours = self._path.lstat(), os.fstat(self._descriptor)
        except FileNotFoundError:
            return False
        return (on_disk.st_dev, on_disk.st_ino) == (ours.st_dev, ours.st_ino)

    def touch(self) -> None:
        os.utime(self._descriptor)

    def __del__(self) -> None:
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)


@contextlib.contextmanager
def try_lock(folder: Path) -> Iterator[bool]:
    """Lock the folder of a shard while the block runs. Gives False when it is in use, here or in another process."""
    try:
        descriptor = files.open_file(folder / _USE, os.O_RDWR | os.O_CREAT)
    except FileNotFoundError:
        yield True
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True
    finally:
        os.close(descriptor)
