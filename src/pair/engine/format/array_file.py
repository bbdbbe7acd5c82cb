"""Files of named arrays and bytes, mapped as a whole or fetched by verified ranges; and checks of their content."""

import contextlib
import hashlib
import json
import math
import mmap
import os
import re
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from pair import errors, files
from pair.values import parse_json

_MAGIC = b"pairpak1"
_FIXED_BYTES = len(_MAGIC) + 8
"""Bytes before the header: the magic number and the length of the header."""
_BORDER = 64

_Size = Annotated[int, msgspec.Meta(ge=0)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
"""A count up to the largest integer that every JSON reader can represent."""

Section = npt.NDArray[Any] | Sequence[bytes]
"""An array, or pieces of bytes to concatenate."""

_Value = TypeVar("_Value")


class ShardFile(msgspec.Struct, frozen=True):
    size_bytes: Count
    sha256: str


def write_arrays(path: Path, sections: Mapping[str, Section]) -> ShardFile:
    """Write the header and the sections. Padding aligns every section to 64 bytes."""
    header: dict[str, Any] = {}
    pieces: list[bytes | memoryview] = []
    offset = 0
    for name, content in sections.items():
        pieces.append(b"\0" * (-offset % _BORDER))
        offset += len(pieces[-1])
        if isinstance(content, np.ndarray):
            size = content.nbytes
            header[name] = {"offset": offset, "size": size, "type": content.dtype.descr, "shape": content.shape}
            pieces.append(np.ascontiguousarray(content).data.cast("B") if size else b"")
        else:
            size = sum(map(len, content))
            header[name] = {"offset": offset, "size": size}
            pieces += content
        offset += size
    head = json.dumps(header).encode()
    head += b" " * (-(_FIXED_BYTES + len(head)) % _BORDER)
    digest, written = hashlib.sha256(), 0
    with path.open("wb") as stream:
        for piece in (_MAGIC + len(head).to_bytes(8, "little") + head, *pieces):
            stream.write(piece)
            digest.update(piece)
            written += len(piece)
    return ShardFile(written, digest.hexdigest())


def sections_begin_at(beginning: bytes) -> int:
    """Return the offset of the first section. `beginning`: the first bytes of the file."""
    return _FIXED_BYTES + int.from_bytes(beginning[len(_MAGIC) : _FIXED_BYTES], "little")


class _SectionJson(msgspec.Struct, frozen=True):
    """The entry of a section in the header. `offset` counts from the end of the header."""

    offset: _Size
    size: _Size
    type: Any = None
    shape: tuple[_Size, ...] | None = None


class ArrayFile:
    """A mapped file of arrays. Arrays are views of the mapping, and keep it open.

    Its methods raise ValueError for a section that is missing or has the wrong type.
    """

    def __init__(self, mapped: mmap.mmap, sections: Mapping[str, _SectionJson], start: int) -> None:
        """Wrap mapped bytes. `start`: the offset of the first section."""
        self._map = mapped
        self._sections = sections
        self._start = start

    @staticmethod
    def open(path: Path) -> "ArrayFile":
        """Map a file. Raises ValueError if it is truncated or is not a file of arrays."""
        with path.open("rb") as stream:
            mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        if mapped[: len(_MAGIC)] != _MAGIC:
            raise ValueError("not a file of arrays")
        start = sections_begin_at(mapped[:_FIXED_BYTES])
        if start > len(mapped):
            raise ValueError("it is truncated")
        sections = decode_json(mapped[_FIXED_BYTES:start], dict[str, _SectionJson])
        if any(section.offset + section.size > len(mapped) - start for section in sections.values()):
            raise ValueError("it is truncated")
        return ArrayFile(mapped, sections, start)

    def __contains__(self, name: str) -> bool:
        return name in self._sections

    def span(self, name: str) -> tuple[int, int]:
        """Return the first byte of a section in the file, and the byte after it."""
        section = self._section(name)
        begin = self._start + section.offset
        return begin, begin + section.size

    def array(
        self, name: str, *types: npt.DTypeLike, dimensions: int = 1, length: int | None = None, below: int | None = None
    ) -> npt.NDArray[Any]:
        """Return a section as an array of one of these types.

        `length`: the number of values that it must have. `below`: the length of the list that its values index.
        """
        section = self._section(name)
        # Types are compared as text, so that no type is built from untrusted input.
        known: list[np.dtype[Any]] = [np.dtype(kind) for kind in types]
        dtype = next((kind for kind in known if section.type == [list(field) for field in kind.descr]), None)
        if dtype is None or section.shape is None or len(section.shape) != dimensions:
            raise ValueError(f"the section {name} has the wrong type")
        begin, end = self.span(name)
        if math.prod(section.shape) * dtype.itemsize != end - begin or begin % _BORDER:
            raise ValueError(f"the section {name} has the wrong size for its values")
        flat = np.frombuffer(self._map, dtype=dtype, count=(end - begin) // dtype.itemsize, offset=begin)
        array = flat.reshape(section.shape)
        if length is not None and len(array) != length:
            raise ValueError(f"the section {name} and related sections differ in length")
        if below is not None:
            check_below(name, array, below)
        return array

    def starts(self, name: str, *types: npt.DTypeLike, keys: int | None, entries: int) -> npt.NDArray[Any]:
        """Return a section of ascending offsets: the first entry of each key, and the end of the last.

        `keys`: the number of keys; None for any.
        """
        starts = self.array(name, *types, length=None if keys is None else keys + 1)
        is_whole = len(starts) and int(starts[0]) == 0 and int(starts[-1]) == entries
        if not is_whole or bool((starts[1:] < starts[:-1]).any()):
            raise ValueError(f"the section {name} is not in order")
        return starts

    def bytes(self, name: str) -> memoryview:
        begin, end = self.span(name)
        return memoryview(self._map)[begin:end]

    def _section(self, name: str) -> _SectionJson:
        if name not in self._sections:
            raise ValueError(f"the section {name} is missing")
        return self._sections[name]


# ── ranges ─────────────────────────────────────────────────────────────────────────────────────────

BLOCK_BYTES = 4096
_HASH_BYTES = 16
_GAP_BLOCKS = 2
"""Maximum gap between two ranges that are fetched as one."""
_MOST_BLOCKS = 1024
"""Maximum number of blocks in one range."""

Span = tuple[int, int]
"""The first byte, and the byte after the last."""


class RangeError(Exception):
    """A range is damaged or cannot be fetched, so the whole file is needed."""


@dataclass(frozen=True, eq=False)
class RangeOutline:
    """The bytes of a file before its sections, and the hashes of its blocks."""

    head: bytes
    hashes: npt.NDArray[np.uint8]


def outline_sections(path: Path) -> dict[str, Section]:
    """Return the outline of a file, as sections of another file."""
    with path.open("rb") as stream:
        size = sections_begin_at(stream.read(BLOCK_BYTES))
        stream.seek(0)
        head = stream.read(size)
        stream.seek(0)
        hashes = [_hash_block(block) for block in iter(lambda: stream.read(BLOCK_BYTES), b"")]
    return {"search_head": [head], "search_hashes": np.frombuffer(b"".join(hashes), np.uint8).reshape(-1, _HASH_BYTES)}


def _hash_block(block: bytes | memoryview) -> bytes:
    return hashlib.sha256(block).digest()[:_HASH_BYTES]


class RangeFile:
    """A sparse local copy of a file, whose blocks are fetched on demand and verified by their hashes.

    Threads may share it: a thread waits for a range that another one is fetching. Raises OSError if the disk fails.
    """

    def __init__(
        self, path: Path, size_bytes: int, outline: RangeOutline, fetch: Callable[[int, int], bytes | None]
    ) -> None:
        """Create the copy. `fetch(start, size)` returns bytes of the file; None if the file is gone.

        Raises ValueError for the outline of another file.
        """
        if len(outline.hashes) != -(-size_bytes // BLOCK_BYTES):
            raise ValueError("the outline belongs to a different file")
        self.path = path
        self._size_bytes = size_bytes
        self._hashes = outline.hashes
        self._fetch = fetch
        self._here = np.zeros(len(outline.hashes), np.bool_)
        self._lock = threading.Lock()
        self._fetching: dict[Span, threading.Lock] = {}
        self._descriptor = files.open_file(path, os.O_RDWR | os.O_CREAT)
        # Blocks that another process has written are used if their hashes are right.
        self._is_new = os.fstat(self._descriptor).st_size != size_bytes
        if self._is_new:
            os.ftruncate(self._descriptor, size_bytes)
        os.pwrite(self._descriptor, outline.head, 0)
        self.pack = ArrayFile.open(path)
        """The file of arrays. Only the bytes that were fetched are valid."""

    def __del__(self) -> None:
        with contextlib.suppress(OSError, AttributeError):
            os.close(self._descriptor)

    def missing(self, spans: Sequence[Span]) -> list[Span]:
        """Return the ranges of blocks to fetch for these bytes, in ascending order."""
        wanted = np.zeros(len(self._here), np.bool_)
        for begin, end in spans:
            if begin < end:
                wanted[begin // BLOCK_BYTES : -(-end // BLOCK_BYTES)] = True
        blocks = np.flatnonzero(wanted & ~self._here)
        if not self._is_new:
            for block in blocks.tolist():
                if self._is_right(block, os.pread(self._descriptor, BLOCK_BYTES, block * BLOCK_BYTES)):
                    self._here[block] = True
            blocks = blocks[~self._here[blocks]]
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
        """Fetch a range of blocks, unless it has been fetched. Raises RangeError, E206, E205."""
        first, last = blocks
        with self._lock:
            turn = self._fetching.setdefault(blocks, threading.Lock())
        with turn, contextlib.ExitStack() as ending:
            ending.callback(self._fetching.pop, blocks, None)
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
                while view:  # A nearly full disk takes only a part.
                    written = os.pwrite(self._descriptor, view, begin)
                    view, begin = view[written:], begin + written
            except OSError as fault:  # The caller fetches the whole file, and makes room for it.
                raise RangeError from fault
            self._here[first:last] = True

    def want(self, spans: Sequence[Span]) -> None:
        """Fetch the missing blocks of these bytes, one range after another. Raises as `fill` does."""
        for blocks in self.missing(spans):
            self.fill(blocks)

    def _is_right(self, block: int, content: bytes | memoryview) -> bool:
        return bool(_hash_block(content) == self._hashes[block].tobytes())


# ── checks ─────────────────────────────────────────────────────────────────────────────────────────

MOST_VALUES = 2_000_000
"""Maximum number of values in one text. An empty list takes 3 bytes of JSON and 64 of memory, so length is not enough.
"""
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"?', re.DOTALL)


def load_json(content: bytes | memoryview) -> Any:
    """Parse JSON that may contain lone surrogates. Raises ValueError, including for too many or too deep values."""
    _refuse_many_values(content)
    try:
        return json.loads(str(content, "utf-8", "surrogatepass"))
    except RecursionError as fault:
        raise ValueError("its values are nested too deeply") from fault


def decode_json(content: bytes | msgspec.Raw, kind: type[_Value]) -> _Value:
    """Parse JSON into a value of this type. Raises ValueError, including for too many or too deep values."""
    _refuse_many_values(memoryview(content))
    try:
        return parse_json(content, kind)
    except RecursionError as fault:
        raise ValueError("its values are nested too deeply") from fault


def _refuse_many_values(content: bytes | memoryview) -> None:
    if len(content) > MOST_VALUES:
        content = bytes(content)
        if _count_values(content) > MOST_VALUES and _count_values(_STRING.sub(b"", content)) > MOST_VALUES:
            raise ValueError(f"it holds more than {MOST_VALUES:,} values")


def _count_values(content: bytes) -> int:
    """Count commas and brackets, including those inside strings."""
    return content.count(b",") + content.count(b"[") + content.count(b"{")


@contextlib.contextmanager
def damage_errors(key: str) -> Iterator[None]:
    """Raise E207 for any error that a damaged file causes in its reader. `key`: the key of the file."""
    try:
        yield
    except errors.PairError:
        raise
    except (ValueError, LookupError, TypeError, ArithmeticError, RuntimeError, struct.error) as fault:
        raise make_damage_error(key, fault) from fault


def make_damage_error(key: str, fault: Exception) -> errors.DataError:
    """Return E207, for code in which `damage_errors` is too slow."""
    return errors.stored_data_damaged(key, f"it cannot be read: {fault}")


def check_below(name: str, values: npt.NDArray[Any], limit: int) -> None:
    """Raise ValueError for an index beyond the end of a list of this length."""
    if len(values) and int(values.max()) >= limit:
        raise ValueError(f"the section {name} has an index out of range")


def check_utf8(name: str, content: memoryview, cuts: npt.NDArray[Any]) -> None:
    """Raise ValueError for bytes that are not UTF-8, or are cut within a character."""
    str(content, "utf-8", "surrogatepass")
    inner = cuts[cuts < len(content)]
    if bool((np.frombuffer(content, np.uint8)[inner] & 0xC0 == 0x80).any()):
        raise ValueError(f"the section {name} is cut within a character")
