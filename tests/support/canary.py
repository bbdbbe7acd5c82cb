"""A folder with the file names that pair uses, to detect writes through a link into another project."""

from collections.abc import Iterator
from pathlib import Path

from support.command import write_files

_HEX = "0123456789abcdef"
CANARY: dict[str, str | bytes] = {
    "a.md": "a",
    "sub/b.md": "b",
    ".ssh/id_ed25519": "secret",
    "scratch-0123456789abcdef/c.md": "c",
    "tmpabcdefgh/d.md": "d",
    ".a.md.0123abcd.tmp": "d",
    f"{_HEX * 2}.staged": "e",
    "4242-7f00-0": "f",
    f"{_HEX * 4}/use": "g",
    f"{'0a' * 32}/use": "g",
    f"{_HEX * 2}.vectors": "h",
    ".made-by-pair": "i",
    "default.duckdb.manifest.json": "{}",
}


def snapshot(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Return the mode and the content of every file and folder below the folder."""
    return {
        path.relative_to(folder).as_posix(): (path.lstat().st_mode, path.read_bytes() if path.is_file() else b"")
        for path in folder.rglob("*")
    }


def guard_folder(folder: Path) -> Iterator[Path]:
    """Yield the folder; fail if the block changes it."""
    write_files(folder, CANARY)
    before = snapshot(folder)
    yield folder
    assert snapshot(folder) == before
