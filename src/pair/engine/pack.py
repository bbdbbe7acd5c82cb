"""Named arrays and bytes in one file that is mapped, not read.

magic · length of the header · header (JSON: place, type and shape of each section) · sections, each on a 64-byte border
"""

import hashlib
import json
import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

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


class Pack:
    """A mapped pack. Arrays are views into the mapping, and keep it alive. Raises ValueError for other files."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as stream:
            self._map = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        fixed = len(_MAGIC) + 8
        if self._map[: len(_MAGIC)] != _MAGIC:
            raise ValueError("not a pack")
        header_size = int.from_bytes(self._map[len(_MAGIC) : fixed], "little")
        self._sections: dict[str, Any] = json.loads(self._map[fixed : fixed + header_size])
        self._start = fixed + header_size
        if any(self._start + each["offset"] + each["size"] > len(self._map) for each in self._sections.values()):
            raise ValueError("a pack that was cut off")

    def __contains__(self, name: str) -> bool:
        return name in self._sections

    def span(self, name: str) -> tuple[int, int]:
        """Where the section is: from this byte of the file to before that one."""
        section = self._sections[name]
        begin = self._start + section["offset"]
        return begin, begin + section["size"]

    def array(self, name: str) -> npt.NDArray[Any]:
        section = self._sections[name]
        kind = section["type"]
        dtype = np.dtype(kind[0][1]) if len(kind) == 1 and not kind[0][0] else np.dtype([tuple(each) for each in kind])
        count = section["size"] // dtype.itemsize
        flat = np.frombuffer(self._map, dtype=dtype, count=count, offset=self._start + section["offset"])
        return flat.reshape(section["shape"])

    def bytes(self, name: str) -> memoryview:
        begin, end = self.span(name)
        return memoryview(self._map)[begin:end]
