"""Locks that say which cached shards are in use, by whatever process: they end with the descriptor that holds them."""

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from pair import files

_USE = "use"


@contextlib.contextmanager
def in_use(folder: Path, *, exclusive: bool) -> Iterator[bool]:
    """Hold the lock of a shard's folder while the block runs; gives False when another holds it."""
    try:
        descriptor = files.open_file(folder / _USE, os.O_RDWR | os.O_CREAT)
    except FileNotFoundError:
        yield exclusive  # there is nothing that could be in use
        return
    try:
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True
    finally:
        os.close(descriptor)


class ShardUse:
    """Says that a shard's files are in use, for as long as this object lives: the lock ends with its descriptor."""

    def __init__(self, make_folder: Callable[[], Path]) -> None:
        self._descriptor = -1
        while True:
            try:
                self._path = make_folder() / _USE
                self._descriptor = files.open_file(self._path, os.O_RDWR | os.O_CREAT)
            except FileNotFoundError:
                continue  # evicted between two lines
            fcntl.flock(self._descriptor, fcntl.LOCK_SH)
            if self.is_the_one_on_disk():
                return
            os.close(self._descriptor)
            self._descriptor = -1

    def is_the_one_on_disk(self) -> bool:
        """False when the folder was evicted while we waited for its lock, or deleted since."""
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
