"""Named arrays and bytes in one mapped file, here as a whole or fetched by verified ranges; checks of what it holds."""

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

_MAGIC = b"pairpak1"
_FIXED_BYTES = len(_MAGIC) + 8
"""Before the header: what the file is, and how long its header is."""
_BORDER = 64

_Size = Annotated[int, msgspec.Meta(ge=0)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
"""Up to the largest number that every reader of JSON can hold."""

Section = npt.NDArray[Any] | Sequence[bytes]
"""An array, or pieces of bytes that follow each other."""

_Value = TypeVar("_Value")


class ShardFile(msgspec.Struct, frozen=True):
    size_bytes: Count
    sha256: str


def write_arrays(path: Path, sections: Mapping[str, Section]) -> ShardFile:
    digest, written = hashlib.sha256(), 0
    with path.open("wb") as stream:
        for piece in _list_pieces(sections):
            stream.write(piece)
            digest.update(piece)
            written += len(piece)
    return ShardFile(written, digest.hexdigest())


def _list_pieces(sections: Mapping[str, Section]) -> Iterator[bytes | memoryview]:
    """Yield the content of a file of arrays: the header, and sections that begin at borders."""
    header = _make_header(sections)
    yield _MAGIC + len(header).to_bytes(8, "little") + header
    size = 0
    for content in sections.values():
        yield b"\0" * (-size % _BORDER)
        if isinstance(content, np.ndarray):
            size = content.nbytes
            yield np.ascontiguousarray(content).data.cast("B") if size else b""
        else:
            size = sum(map(len, content))
            yield from content


def _make_header(sections: Mapping[str, Section]) -> bytes:
    """Return the header, padded with spaces so that the first section begins at a border."""
    described: dict[str, Any] = {}
    offset = 0
    for name, content in sections.items():
        offset += -offset % _BORDER
        if isinstance(content, np.ndarray):
            size = content.nbytes
            described[name] = {"offset": offset, "size": size, "type": content.dtype.descr, "shape": content.shape}
        else:
            size = sum(map(len, content))
            described[name] = {"offset": offset, "size": size}
        offset += size
    header = json.dumps(described).encode()
    return header + b" " * (-(_FIXED_BYTES + len(header)) % _BORDER)


def sections_begin_at(beginning: bytes) -> int:
    """Return where the sections of a file that begins so begin."""
    return _FIXED_BYTES + int.from_bytes(beginning[len(_MAGIC) : _FIXED_BYTES], "little")


class _SectionJson(msgspec.Struct, frozen=True):
    """A section as the header of a file describes it: from `offset` bytes after the header on."""

    offset: _Size
    size: _Size
    type: Any = None
    shape: tuple[_Size, ...] | None = None


class ArrayFile:
    """A mapped file of arrays. Arrays are views into the mapping, and keep it alive.

    Raises ValueError for a section that is missing or of another type.
    """

    def __init__(self, mapped: mmap.mmap, sections: Mapping[str, _SectionJson], start: int) -> None:
        """`start`: where the sections begin."""
        self._map = mapped
        self._sections = sections
        self._start = start

    @staticmethod
    def open(path: Path) -> "ArrayFile":
        """Raises ValueError for a file that is none, or was cut off."""
        with path.open("rb") as stream:
            mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        if mapped[: len(_MAGIC)] != _MAGIC:
            raise ValueError("not a file of arrays")
        start = sections_begin_at(mapped[:_FIXED_BYTES])
        if start > len(mapped):
            raise ValueError("it was cut off")
        sections = decode_json(mapped[_FIXED_BYTES:start], dict[str, _SectionJson])
        if any(section.offset + section.size > len(mapped) - start for section in sections.values()):
            raise ValueError("it was cut off")
        return ArrayFile(mapped, sections, start)

    def __contains__(self, name: str) -> bool:
        return name in self._sections

    def span(self, name: str) -> tuple[int, int]:
        """Return where a section is: from this byte of the file to before that one."""
        section = self._section(name)
        begin = self._start + section.offset
        return begin, begin + section.size

    def array(
        self,
        name: str,
        *types: npt.DTypeLike,
        dimensions: int = 1,
        length: int | None = None,
        below: int | None = None,
    ) -> npt.NDArray[Any]:
        """Map a section, which must have one of these types.

        `length`: how many values it must have. `below`: the length of the list that its unsigned values are indexes of.
        """
        section = self._section(name)
        # Types are compared as they are written: nothing is made of what the file says.
        known: list[np.dtype[Any]] = [np.dtype(kind) for kind in types]
        dtype = next((kind for kind in known if section.type == [list(field) for field in kind.descr]), None)
        if dtype is None or section.shape is None or len(section.shape) != dimensions:
            raise ValueError(f"the section {name} is of another type")
        begin, end = self.span(name)
        if math.prod(section.shape) * dtype.itemsize != end - begin or begin % _BORDER:
            raise ValueError(f"the section {name} has another size than its values")
        flat = np.frombuffer(self._map, dtype=dtype, count=(end - begin) // dtype.itemsize, offset=begin)
        array = flat.reshape(section.shape)
        if length is not None and len(array) != length:
            raise ValueError(f"the section {name} has another length than those beside it")
        if below is not None:
            check_below(name, array, below)
        return array

    def starts(self, name: str, *types: npt.DTypeLike, keys: int | None, entries: int) -> npt.NDArray[Any]:
        """Map a section that tells where the entries of each key begin, and where the last ones end.

        `keys`: how many there are; None for any number.
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
"""Two ranges are fetched as one if so few blocks lie between them."""
_MOST_BLOCKS = 1024
"""Of one range."""

Span = tuple[int, int]
"""From this byte to before that one."""


class RangeError(Exception):
    """A range cannot be fetched, or is damaged: the whole file is needed."""


@dataclass(frozen=True, eq=False)
class RangeOutline:
    """The head of a file, up to its sections, and the hashes of its blocks."""

    head: bytes
    hashes: npt.NDArray[np.uint8]


def outline_sections(path: Path) -> dict[str, Section]:
    """Return the outline of a file that was just written, as sections of another file."""
    with path.open("rb") as stream:
        size = sections_begin_at(stream.read(BLOCK_BYTES))
        stream.seek(0)
        head = stream.read(size)
        stream.seek(0)
        hashes = [_hash_block(block) for block in iter(lambda: stream.read(BLOCK_BYTES), b"")]
    return {
        "search_head": [head],
        "search_hashes": np.frombuffer(b"".join(hashes), np.uint8).reshape(-1, _HASH_BYTES),
    }


def _hash_block(block: bytes | memoryview) -> bytes:
    return hashlib.sha256(block).digest()[:_HASH_BYTES]


class RangeFile:
    """A file of which only some blocks are here: ranges are fetched when they are wanted.

    No byte is shown that was not compared with its hash. What one thread fetches, another that wants the same waits
    for. Used from several threads at once. Raises OSError where the local disk fails.
    """

    def __init__(
        self, path: Path, size_bytes: int, outline: RangeOutline, fetch: Callable[[int, int], bytes | None]
    ) -> None:
        """`fetch` returns so many bytes of the file from this one on; None when it is gone. Raises ValueError."""
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
        # Another process may have fetched some of it before, or is about to: what it wrote is used if it is right.
        self._is_new = os.fstat(self._descriptor).st_size != size_bytes
        if self._is_new:
            os.ftruncate(self._descriptor, size_bytes)
        os.pwrite(self._descriptor, outline.head, 0)
        self.pack = ArrayFile.open(path)
        """Only the bytes that were wanted are valid."""

    def __del__(self) -> None:
        with contextlib.suppress(OSError, AttributeError):
            os.close(self._descriptor)

    def missing(self, spans: Sequence[Span]) -> list[Span]:
        """Return the ranges of blocks that have to be fetched for these bytes, in ascending order."""
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
        """Fetch this range of blocks, unless it is here by now. Raises RangeError, E206, E205."""
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
        return bool(_hash_block(content) == self._hashes[block].tobytes())


# ── checks ─────────────────────────────────────────────────────────────────────────────────────────

MOST_VALUES = 2_000_000
"""In one text. An empty list takes 3 bytes of JSON and 64 of memory, so the length of a text is no bound."""
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"?', re.DOTALL)


def load_json(content: bytes | memoryview) -> Any:
    """Parse UTF-8 text, with lone surrogates. Raises ValueError, also for values that are too many or too deep."""
    _refuse_many_values(content)
    try:
        return json.loads(str(content, "utf-8", "surrogatepass"))
    except RecursionError as fault:
        raise ValueError("its values are nested too deeply") from fault


def decode_json(content: bytes | msgspec.Raw, kind: type[_Value]) -> _Value:
    """Parse UTF-8 text into values of this kind. Raises ValueError, also for values that are too many or too deep."""
    _refuse_many_values(memoryview(content))
    try:
        return msgspec.json.decode(content, type=kind)
    except RecursionError as fault:
        raise ValueError("its values are nested too deeply") from fault


def _refuse_many_values(content: bytes | memoryview) -> None:
    if len(content) > MOST_VALUES:
        content = bytes(content)
        if _count_values(content) > MOST_VALUES and _count_values(_STRING.sub(b"", content)) > MOST_VALUES:
            raise ValueError(f"it holds more than {MOST_VALUES:,} values")


def _count_values(content: bytes) -> int:
    """Count what begins a value; commas and brackets inside strings count too."""
    return content.count(b",") + content.count(b"[") + content.count(b"{")


@contextlib.contextmanager
def damage_errors(key: str) -> Iterator[None]:
    """Raise E207 for every error that a damaged file causes in its reader. `key`: of the file."""
    try:
        yield
    except errors.PairError:
        raise
    except (ValueError, LookupError, TypeError, ArithmeticError, RuntimeError, struct.error) as fault:
        raise make_damage_error(key, fault) from fault


def make_damage_error(key: str, fault: Exception) -> errors.DataError:
    """Return E207, for code in which `damage_errors` takes too long."""
    return errors.stored_data_damaged(key, f"it cannot be read: {fault}")


def check_below(name: str, values: npt.NDArray[Any], limit: int) -> None:
    """Refuse unsigned numbers that are no index of a list of this length."""
    if len(values) and int(values.max()) >= limit:
        raise ValueError(f"the section {name} names what is not there")


def check_utf8(name: str, content: memoryview, cuts: npt.NDArray[Any]) -> None:
    """Refuse bytes that are not text, or are cut within a character."""
    str(content, "utf-8", "surrogatepass")
    inner = cuts[cuts < len(content)]
    if bool((np.frombuffer(content, np.uint8)[inner] & 0xC0 == 0x80).any()):
        raise ValueError(f"the section {name} is cut within a character")
