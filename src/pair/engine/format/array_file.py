"""Named arrays and bytes in one file that is mapped, not read.

magic · length of the header · header (JSON: place, type and shape of each section) · sections, each on a 64-byte border
"""

import hashlib
import json
import math
import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from pair.engine.format.bounded_json import load_json

_MAGIC = b"pairpak1"
_BORDER = 64

Section = npt.NDArray[Any] | Sequence[bytes]
"""An array, or pieces of bytes that follow each other."""


@dataclass(frozen=True, slots=True)
class WrittenFile:
    size_bytes: int
    sha256: str


def write_pack(path: Path, sections: Mapping[str, Section]) -> WrittenFile:
    with path.open("wb") as stream:
        sink = _HashingSink(stream)
        header = _header_of(sections)
        sink.write(_MAGIC + len(header).to_bytes(8, "little") + header)
        for content in sections.values():
            sink.pad()
            if isinstance(content, np.ndarray):
                sink.write(np.ascontiguousarray(content).data.cast("B") if content.size else b"")
            else:
                for piece in content:
                    sink.write(piece)
    return WrittenFile(sink.written, sink.digest.hexdigest())


def _header_of(sections: Mapping[str, Section]) -> bytes:
    """Padded with spaces, so that the first section begins at a border."""
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
    fixed = len(_MAGIC) + 8
    return header + b" " * (-(fixed + len(header)) % _BORDER)


def sections_begin_at(beginning: bytes) -> int:
    """In a pack that begins so."""
    fixed = len(_MAGIC) + 8
    return fixed + int.from_bytes(beginning[len(_MAGIC) : fixed], "little")


class _HashingSink:
    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.written = 0
        self.digest = hashlib.sha256()

    def write(self, piece: bytes | memoryview) -> None:
        self._stream.write(piece)
        self.digest.update(piece)
        self.written += len(piece)

    def pad(self) -> None:
        self.write(b"\0" * (-self.written % _BORDER))


class ArrayFile:
    """A mapped pack. Arrays are views into the mapping, and keep it alive.

    Raises ValueError for a file that is no pack, and for a section that is missing, cut off or of another type.
    """

    def __init__(self, path: Path) -> None:
        with path.open("rb") as stream:
            self._map = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        fixed = len(_MAGIC) + 8
        if self._map[: len(_MAGIC)] != _MAGIC:
            raise ValueError("not a pack")
        header_size = int.from_bytes(self._map[len(_MAGIC) : fixed], "little")
        self._start = fixed + header_size
        if self._start > len(self._map):
            raise ValueError("a pack that was cut off")
        sections = load_json(self._map[fixed : self._start])
        if not isinstance(sections, dict):
            raise ValueError("a pack without sections")
        self._sections: dict[str, Any] = sections
        for name in sections:
            _check_place(name, sections[name], len(self._map) - self._start)

    def __contains__(self, name: str) -> bool:
        return name in self._sections

    def span(self, name: str) -> tuple[int, int]:
        """Where the section is: from this byte of the file to before that one."""
        section = self._section(name)
        begin = self._start + section["offset"]
        return begin, begin + section["size"]

    def array(self, name: str, *types: npt.DTypeLike, dimensions: int = 1) -> npt.NDArray[Any]:
        """Map a section. `types`: those that it may have; without any, it is one that this pair wrote itself."""
        section = self._section(name)
        if types:
            dtype = _expected_type(name, section, types)
            if len(section["shape"]) != dimensions:
                raise ValueError(f"the section {name} has another number of dimensions")
        else:
            dtype = _described_type(section["type"])
        begin, end = self.span(name)
        if math.prod(section["shape"]) * dtype.itemsize != end - begin or begin % _BORDER:
            raise ValueError(f"the section {name} has another size than its values")
        flat = np.frombuffer(self._map, dtype=dtype, count=(end - begin) // dtype.itemsize, offset=begin)
        return flat.reshape(section["shape"])

    def bytes(self, name: str) -> memoryview:
        begin, end = self.span(name)
        return memoryview(self._map)[begin:end]

    def _section(self, name: str) -> dict[str, Any]:
        if name not in self._sections:
            raise ValueError(f"the section {name} is missing")
        section: dict[str, Any] = self._sections[name]
        return section


def _check_place(name: str, section: Any, room: int) -> None:
    offset, size = (section.get("offset"), section.get("size")) if isinstance(section, dict) else (None, None)
    if type(offset) is not int or type(size) is not int or min(offset, size) < 0:
        raise ValueError(f"the section {name} has no place")
    if offset + size > room:
        raise ValueError("a pack that was cut off")


def _expected_type(name: str, section: dict[str, Any], types: Sequence[npt.DTypeLike]) -> np.dtype[Any]:
    """The types are compared as they are written: nothing is made of what the file says."""
    shape = section.get("shape")
    is_shape = isinstance(shape, list) and all(type(length) is int and length >= 0 for length in shape)
    for kind in types:
        dtype: np.dtype[Any] = np.dtype(kind)
        if is_shape and section.get("type") == [list(field) for field in dtype.descr]:
            return dtype
    raise ValueError(f"the section {name} is of another type")


def _described_type(fields: Any) -> np.dtype[Any]:
    return (
        np.dtype(fields[0][1]) if len(fields) == 1 and not fields[0][0] else np.dtype([tuple(each) for each in fields])
    )


# ── checks of what a section holds ─────────────────────────────────────────────────────────────────


def check_length(name: str, values: npt.NDArray[Any], length: int) -> None:
    if len(values) != length:
        raise ValueError(f"the section {name} has another length than those beside it")


def check_below(name: str, values: npt.NDArray[Any], limit: int) -> None:
    """Refuse unsigned numbers that are no place in a list of this length."""
    if len(values) and int(values.max()) >= limit:
        raise ValueError(f"the section {name} names what is not there")


def check_starts(name: str, starts: npt.NDArray[Any], keys: int, entries: int) -> None:
    """Refuse what does not say, for each of these keys, where its entries begin; and after the last, where they end."""
    check_length(name, starts, keys + 1)
    if int(starts[0]) != 0 or int(starts[-1]) != entries or bool((starts[1:] < starts[:-1]).any()):
        raise ValueError(f"the section {name} is not in order")


def check_utf8(name: str, content: memoryview, cuts: npt.NDArray[Any]) -> None:
    """Refuse what is not text, or is cut within a character."""
    str(content, "utf-8", "surrogatepass")
    inner = cuts[cuts < len(content)]
    if bool((np.frombuffer(content, np.uint8)[inner] & 0xC0 == 0x80).any()):
        raise ValueError(f"the section {name} is cut within a character")
