"""The vector journal: an append-only file of vectors, so that an interrupted run does not embed a text twice.

All records have one size: the hash of a text, its vector and a checksum.
Invariants
    A truncated or damaged record is ignored, so the file of a killed process can be used.
    The key is the hash of the text alone, so a document that moves to another shard keeps its vector.
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
"""Maximum number of new keys in a dictionary before they are merged into the sorted keys."""


def hash_text(text: str) -> bytes:
    return hashlib.sha256(text.encode(errors="surrogatepass")).digest()[:_KEY_BYTES]


class VectorJournal:
    """Vectors of one embedder. Only one process may append: see `open_journal`. Reading does not change the file."""

    def __init__(self, path: Path, dimension: int) -> None:
        self._path = path
        self._type = np.dtype([("key", f"S{_KEY_BYTES}"), ("vector", "<f4", (dimension,)), ("check", "<u4")])
        self._count = _count_sound(path, self._type)
        self._is_trimmed = False
        self._recent: dict[bytes, int] = {}
        self._sort()

    def find(self, keys: Sequence[bytes]) -> RecordNumbers:
        """Return the number of the record of each key; -1 for an unknown key."""
        wanted = np.array(keys, f"S{_KEY_BYTES}")
        numbers = np.full(len(keys), -1, np.int64)
        if len(self._keys):
            places = np.minimum(np.searchsorted(self._keys, wanted), len(self._keys) - 1)
            is_here = self._keys[places] == wanted
            numbers[is_here] = self._numbers[places[is_here]]
        if self._recent:
            for place in np.flatnonzero(numbers < 0).tolist():
                numbers[place] = self._recent.get(keys[place], -1)
        return numbers

    def append(self, keys: Sequence[bytes], vectors: Vectors) -> None:
        """Append records to the file."""
        records = np.zeros(len(keys), self._type)
        records["key"], records["vector"] = keys, vectors
        records["check"] = _compute_checks(records)
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
        """Return the vectors of these records, in this order."""
        if not len(numbers):
            return np.empty((0, self._type["vector"].shape[0]), np.float32)
        vectors: Vectors = self._map()["vector"][numbers].astype(np.float32)
        return vectors

    def _map(self) -> npt.NDArray[Any]:
        return np.memmap(self._path, self._type, mode="r", shape=(self._count,))

    def _sort(self) -> None:
        keys = np.array(self._map()["key"]) if self._count else np.empty(0, f"S{_KEY_BYTES}")
        self._numbers = np.argsort(keys, kind="stable")
        self._keys = keys[self._numbers]
        self._recent.clear()


def journal_path(folder: Path, embedder: str, dimension: int) -> Path:
    return folder / f"{hashlib.sha256(f'{embedder} {dimension}'.encode()).hexdigest()[:32]}.vectors"


@contextlib.contextmanager
def open_journal(
    folder: Path, embedder: str, dimension: int, *, on_busy: Callable[[str], None]
) -> Iterator[VectorJournal]:
    """Open the journal of one KB; delete it if the block succeeds. `on_busy`: gets the lock holder, and raises."""
    with files.storage_errors(), files.exclusive_lock(folder / "lock", on_wait=on_busy):
        yield VectorJournal(journal_path(folder, embedder, dimension), dimension)
        for name in filter(_FILE_NAME.fullmatch, files.list_folder(folder)):
            files.unlink(folder / name, missing_ok=True)  # Also delete journals of abandoned runs with other embedders.


def _compute_checks(records: npt.NDArray[Any]) -> list[int]:
    """Return the checksum of each record, over all except its last four bytes."""
    content, size = memoryview(records.tobytes()), records.dtype.itemsize
    return [zlib.crc32(content[begin : begin + size - 4]) for begin in range(0, len(content), size)]


def _count_sound(path: Path, kind: "np.dtype[Any]") -> int:
    """Count the records before the first damaged or truncated one."""
    if not path.exists():
        return 0
    count, sound = path.stat().st_size // kind.itemsize, 0
    mapped = np.memmap(path, kind, mode="r", shape=(count,)) if count else np.empty(0, kind)
    for begin in range(0, count, _MOST_RECENT):
        block = np.array(mapped[begin : begin + _MOST_RECENT])
        damaged = np.flatnonzero(block["check"] != np.array(_compute_checks(block), np.uint32))
        sound += int(damaged[0]) if len(damaged) else len(block)
        if len(damaged):
            break
    return sound
