"""Named arrays and bytes in one mapped file."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

from pair.engine.format.array_file import ArrayFile, Section, write_arrays

LINES = np.array([(1, 2.5, b"a" * 16), (2**63, -1.0, b"\0" * 16)], [("key", "<u8"), ("share", "<f4"), ("hash", "V16")])
SECTIONS: dict[str, Section] = {
    "lines": LINES,
    "matrix": np.arange(12, dtype=np.float32).reshape(3, 4),
    "none": np.empty((0, 4), np.float32),
    "texts": [b"one", b"", b"three"],
    "no texts": [],
    "numbers": np.arange(5, dtype=np.uint32),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "some.pack"
    write_arrays(path, SECTIONS)
    return path


def test_what_was_written_is_read_back(path: Path) -> None:
    pack = ArrayFile.open(path)
    assert pack.array("lines", LINES.dtype).dtype == LINES.dtype
    assert pack.array("lines", LINES.dtype).tobytes() == LINES.tobytes()
    assert pack.array("matrix", "<f4", dimensions=2).tolist() == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert pack.array("none", "<f4", dimensions=2).shape == (0, 4)
    assert bytes(pack.bytes("texts")) == b"onethree"
    assert bytes(pack.bytes("no texts")) == b""
    assert pack.array("numbers", "<u4").tolist() == [0, 1, 2, 3, 4]


def test_a_pack_knows_what_is_in_it(path: Path) -> None:
    assert "matrix" in ArrayFile.open(path)
    assert "index" not in ArrayFile.open(path)


def test_the_report_of_a_write_is_about_the_file(tmp_path: Path) -> None:
    written = write_arrays(tmp_path / "some.pack", SECTIONS)
    content = (tmp_path / "some.pack").read_bytes()
    assert (written.size_bytes, written.sha256) == (len(content), hashlib.sha256(content).hexdigest())


def test_arrays_begin_at_a_border_and_outlive_the_pack(path: Path) -> None:
    matrix = ArrayFile.open(path).array("matrix", "<f4", dimensions=2)
    assert matrix.ctypes.data % 64 == 0
    path.unlink()
    assert matrix.sum() == 66


def test_the_same_sections_make_the_same_bytes(tmp_path: Path) -> None:
    hashes = {write_arrays(tmp_path / name, SECTIONS).sha256 for name in ("a", "b")}
    assert len(hashes) == 1


def test_a_slice_with_gaps_is_written_whole(tmp_path: Path) -> None:
    every_second = np.arange(10)[::2]
    write_arrays(tmp_path / "some.pack", {"numbers": every_second})
    assert ArrayFile.open(tmp_path / "some.pack").array("numbers", "<i8").tolist() == [0, 2, 4, 6, 8]


def test_a_pack_that_was_cut_off_anywhere_is_refused(path: Path, tmp_path: Path) -> None:
    content = path.read_bytes()
    for size in [0, 1, 7, 8, 12, 16, 40, *range(64, len(content), 64), len(content) - 1]:
        cut = tmp_path / "cut.pack"
        cut.write_bytes(content[:size])
        with pytest.raises(ValueError):
            ArrayFile.open(cut)


@pytest.mark.parametrize(
    "content", [b"PK\3\4 a zip", b"\0" * 4096, b"pairpak1" + b"\xff" * 100, b"pairpak2" + b"\0" * 56]
)
def test_an_unrelated_file_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "foreign").write_bytes(content)
    with pytest.raises(ValueError):
        ArrayFile.open(tmp_path / "foreign")
