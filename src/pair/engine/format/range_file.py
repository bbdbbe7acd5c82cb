"""A search file of which only some blocks are here: what a query wants of it is fetched by ranges.

The keyword file of a shard, which every query by words has whole, says of the search file beside it how it begins and
what each of its blocks hashes to.
Invariants
    No byte is shown that was not compared with its hash.
    What one thread fetches, another that wants the same waits for.
"""

import contextlib
import hashlib
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pair import files
from pair.engine.format.array_file import ArrayFile, Section, sections_begin_at

BLOCK_BYTES = 4096
_HASH_BYTES = 16
_GAP_BLOCKS = 2
"""Blocks that nobody asked for are fetched as well, if so few of them lie between two ranges."""
_MOST_BLOCKS = 1024
"""Of one range."""

Span = tuple[int, int]
"""From this byte to before that one."""


class RangeError(Exception):
    """A piece cannot be had, or is not what it should be: the file has to be fetched whole."""


@dataclass(frozen=True, eq=False)
class RangeOutline:
    """How a file begins, up to where its sections do, and what its blocks hash to."""

    head: bytes
    hashes: npt.NDArray[np.uint8]


def outline_sections(path: Path) -> dict[str, Section]:
    """The outline of a pack that was just written, for another pack."""
    with path.open("rb") as stream:
        size = sections_begin_at(stream.read(BLOCK_BYTES))
        stream.seek(0)
        head = stream.read(size)
        stream.seek(0)
        hashes = [_hash_of(block) for block in iter(lambda: stream.read(BLOCK_BYTES), b"")]
    return {
        "search_head": [head],
        "search_hashes": np.frombuffer(b"".join(hashes), np.uint8).reshape(-1, _HASH_BYTES),
    }


def _hash_of(block: bytes | memoryview) -> bytes:
    return hashlib.sha256(block).digest()[:_HASH_BYTES]


def sound_blocks(path: Path, outline: RangeOutline) -> npt.NDArray[np.bool_]:
    """Which blocks of a file are what they should be, where it may be damaged or cut off."""
    sound = np.zeros(len(outline.hashes), np.bool_)
    with path.open("rb") as stream:
        for number, expected in enumerate(outline.hashes):
            sound[number] = _hash_of(stream.read(BLOCK_BYTES)) == expected.tobytes()
    return sound


class RangeFile:
    """Used from several threads at once. Raises OSError where the local disk fails."""

    def __init__(
        self, path: Path, size_bytes: int, outline: RangeOutline, fetch: Callable[[int, int], bytes | None]
    ) -> None:
        """`fetch`: so many bytes of the file from this one on; None when it is gone. Raises ValueError."""
        if len(outline.hashes) != -(-size_bytes // BLOCK_BYTES):
            raise ValueError("an outline of another file")
        self.path = path
        self._size_bytes = size_bytes
        self._hashes = outline.hashes
        self._fetch = fetch
        self._here = np.zeros(len(outline.hashes), np.bool_)
        self._lock = threading.Lock()
        self._under_way: dict[Span, threading.Lock] = {}
        self._descriptor = files.open_file(path, os.O_RDWR | os.O_CREAT)
        # Somebody may have fetched some of it before, or is about to: what it wrote is used if it is right.
        self._is_new = os.fstat(self._descriptor).st_size != size_bytes
        if self._is_new:
            os.ftruncate(self._descriptor, size_bytes)
        os.pwrite(self._descriptor, outline.head, 0)
        self.pack = ArrayFile(path)
        """Of which only some bytes are true: those that were wanted."""

    def __del__(self) -> None:
        with contextlib.suppress(OSError, AttributeError):
            os.close(self._descriptor)

    def missing(self, spans: Sequence[Span]) -> list[Span]:
        """Ranges of blocks that have to be fetched for these bytes, in ascending order."""
        wanted = np.zeros(len(self._here), np.bool_)
        for begin, end in spans:
            if begin < end:
                wanted[begin // BLOCK_BYTES : -(-end // BLOCK_BYTES)] = True
        blocks = np.flatnonzero(wanted & ~self._here)
        if not self._is_new:
            blocks = blocks[[not self._was_written(block) for block in blocks.tolist()]]
        if not len(blocks):
            return []
        borders = np.flatnonzero(np.diff(blocks) > _GAP_BLOCKS) + 1
        runs = [(int(run[0]), int(run[-1]) + 1) for run in np.split(blocks, borders)]
        return [
            (begin, min(begin + _MOST_BLOCKS, last))
            for first, last in runs
            for begin in range(first, last, _MOST_BLOCKS)
        ]

    def fill(self, blocks: Span) -> None:
        """Fetch this range of blocks, unless it is here by now. Raises PieceError, E206, E205."""
        first, last = blocks
        with self._lock:
            turn = self._under_way.setdefault(blocks, threading.Lock())
        with turn, contextlib.ExitStack() as ending:
            ending.callback(self._under_way.pop, blocks, None)
            if self._here[first:last].all():
                return
            begin, end = first * BLOCK_BYTES, min(last * BLOCK_BYTES, self._size_bytes)
            content = self._fetch(begin, end - begin)
            if content is None or len(content) != end - begin:
                raise RangeError
            view = memoryview(content)
            for number in range(last - first):
                if not self._is_right(first + number, view[number * BLOCK_BYTES : (number + 1) * BLOCK_BYTES]):
                    raise RangeError
            try:
                while view:  # a disk that is about to be full takes a part
                    written = os.pwrite(self._descriptor, view, begin)
                    view, begin = view[written:], begin + written
            except OSError as fault:  # the whole file is fetched instead, and room is made for it
                raise RangeError from fault
            self._here[first:last] = True

    def want(self, spans: Sequence[Span]) -> None:
        """Fetch what is missing of these bytes, one range after the other. Raises as `fill` does."""
        for blocks in self.missing(spans):
            self.fill(blocks)

    def _was_written(self, block: int) -> bool:
        if self._is_right(block, os.pread(self._descriptor, BLOCK_BYTES, block * BLOCK_BYTES)):
            self._here[block] = True
        return bool(self._here[block])

    def _is_right(self, block: int, content: bytes | memoryview) -> bool:
        return bool(_hash_of(content) == self._hashes[block].tobytes())
