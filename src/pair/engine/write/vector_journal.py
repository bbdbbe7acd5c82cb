"""Vectors of texts, kept in a file as they are made: whoever goes on with long work does not pay for them twice.

A file of records of one size: the hash of a text, its vector, a checksum. Records are only ever appended.
Invariants
    A record that was cut off or damaged is as good as none: what a killed process left can be used.
    A text is known by its hash alone, wherever it stands: what moves from shard to shard keeps its vector.
"""

import contextlib
import hashlib
import os
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pair import files

Vectors = npt.NDArray[np.float32]
RecordNumbers = npt.NDArray[np.int64]

_KEY_BYTES = 16
_FILE_NAME = re.compile(r"[0-9a-f]{32}\.vectors")
_MOST_RECENT = 1 << 16
"""Keys that are looked up one by one, before they are sorted among the others."""


def key_of(text: str) -> bytes:
    return hashlib.sha256(text.encode(errors="surrogatepass")).digest()[:_KEY_BYTES]


class VectorJournal:
    """Of one embedder. Only one process may append: see `kept_vectors`. Reading changes nothing."""

    def __init__(self, path: Path, dimension: int) -> None:
        self._path = path
        self._type = np.dtype([("key", f"S{_KEY_BYTES}"), ("vector", "<f4", (dimension,)), ("check", "<u4")])
        self._count = _sound_records(path, self._type)
        self._is_trimmed = False
        self._recent: dict[bytes, int] = {}
        self._sort()

    def find(self, keys: Sequence[bytes]) -> RecordNumbers:
        """The number of each one's record; -1 for those that have none."""
        asked = np.array(keys, f"S{_KEY_BYTES}")
        found = np.full(len(keys), -1, np.int64)
        if len(self._keys):
            places = np.minimum(np.searchsorted(self._keys, asked), len(self._keys) - 1)
            is_here = self._keys[places] == asked
            found[is_here] = self._numbers[places[is_here]]
        if self._recent:
            for place in np.flatnonzero(found < 0).tolist():
                found[place] = self._recent.get(keys[place], -1)
        return found

    def append(self, keys: Sequence[bytes], vectors: Vectors) -> None:
        """On disk when this returns, unless the machine itself fails."""
        records = np.zeros(len(keys), self._type)
        records["key"], records["vector"] = keys, vectors
        records["check"] = _checks(records)
        with files.storage_errors():
            descriptor = files.open_file(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            try:
                if not self._is_trimmed:
                    os.ftruncate(descriptor, self._count * self._type.itemsize)
                    self._is_trimmed = True
                files.write_all(descriptor, records.tobytes())
            finally:
                os.close(descriptor)
        for key in keys:
            self._recent[key] = self._count
            self._count += 1
        if len(self._recent) >= _MOST_RECENT:
            self._sort()

    def vectors(self, numbers: RecordNumbers) -> Vectors:
        """Of these records, in this order."""
        if not len(numbers):
            return np.empty((0, self._type["vector"].shape[0]), np.float32)
        vectors: Vectors = self._mapped()["vector"][numbers].astype(np.float32)
        return vectors

    def _mapped(self) -> npt.NDArray[Any]:
        return np.memmap(self._path, self._type, mode="r", shape=(self._count,))

    def _sort(self) -> None:
        keys = np.array(self._mapped()["key"]) if self._count else np.empty(0, f"S{_KEY_BYTES}")
        self._numbers = np.argsort(keys, kind="stable")
        self._keys = keys[self._numbers]
        self._recent.clear()


def kept_path(folder: Path, embedder: str, dimension: int) -> Path:
    return folder / f"{hashlib.sha256(f'{embedder} {dimension}'.encode()).hexdigest()[:32]}.vectors"


@contextlib.contextmanager
def kept_vectors(
    folder: Path, embedder: str, dimension: int, *, on_busy: Callable[[str], None]
) -> Iterator[VectorJournal]:
    """What is kept for one KB. When the block ends without a fault, nothing is kept any longer.

    `on_busy`: told who else works in this folder; it has to raise.
    """
    with files.storage_errors(), files.exclusive_lock(folder / "lock", on_wait=on_busy):
        yield VectorJournal(kept_path(folder, embedder, dimension), dimension)
        for name in filter(_FILE_NAME.fullmatch, files.list_folder(folder)):
            files.unlink(folder / name, missing_ok=True)  # also what was begun with another embedder, and given up


def _checks(records: npt.NDArray[Any]) -> list[int]:
    """Of key and vector, which is all but the last four bytes."""
    content, size = memoryview(records.tobytes()), records.dtype.itemsize
    return [zlib.crc32(content[begin : begin + size - 4]) for begin in range(0, len(content), size)]


def _sound_records(path: Path, kind: "np.dtype[Any]") -> int:
    """How many there are before the first that is damaged or cut off."""
    if not path.exists():
        return 0
    count, sound = path.stat().st_size // kind.itemsize, 0
    mapped = np.memmap(path, kind, mode="r", shape=(count,)) if count else np.empty(0, kind)
    for begin in range(0, count, _MOST_RECENT):
        some = np.array(mapped[begin : begin + _MOST_RECENT])
        damaged = np.flatnonzero(some["check"] != np.array(_checks(some), np.uint32))
        sound += int(damaged[0]) if len(damaged) else len(some)
        if len(damaged):
            break
    return sound
