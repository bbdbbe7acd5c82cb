"""The recorded public surface is unchanged: commands, formats, HTTP, MCP, errors, settings, Python.

A difference is a change for users: review it, record it with `make golden`, and write a change note.
"""

from pathlib import Path

from support.surface import GOLDEN, record


def test_the_surface_is_the_recorded_one(tmp_path: Path) -> None:
    for name, text in record(tmp_path).items():
        assert text.splitlines() == (GOLDEN / name).read_text(encoding="utf-8").splitlines(), name
