"""The record of an installed KB: reading returns what was written, or an error with the reason."""

import json
from pathlib import Path
from typing import Any

import pytest

from pair import errors
from pair.packages.record import InstalledFile, Record, RecordHeader, read_header, read_record
from pair.packages.rules import RECORD_NAME, stays_inside
from pair.values import KbSource

SOURCE = KbSource("url", "https://example.com/kb.zip", requires_download=True, version="1.2", sha256="ab")
HEADER = RecordHeader(SOURCE, "kb", "1.0.0", "2026-03-01T12:00:00Z", None, 2, 30, "source", "target", 0)
RECORD = Record(HEADER, {"a.md": InstalledFile("aa", 10, 1, 2), "deep/ä.md": InstalledFile("bb", 20, 3, 0)})


def written(folder: Path, header: Any, listed: Any) -> Path:
    encoded = [each if isinstance(each, bytes) else json.dumps(each).encode() for each in (header, listed)]
    (folder / RECORD_NAME).write_bytes(b"\n".join(encoded) + b"\n")
    return folder


def lines() -> tuple[dict[str, Any], dict[str, Any]]:
    first, second = RECORD.to_bytes().splitlines()
    return json.loads(first), json.loads(second)


def test_a_record_survives_its_file(tmp_path: Path) -> None:
    (tmp_path / RECORD_NAME).write_bytes(RECORD.to_bytes())
    assert read_record(tmp_path) == RECORD
    assert read_header(tmp_path) == HEADER


def test_a_folder_without_an_installation_has_no_record(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path, tmp_path / "nowhere", tmp_path / "file"):
        assert (read_header(folder), read_record(folder)) == (None, None)


@pytest.mark.parametrize(
    "changes",
    [
        {"schema_version": 2}, {"schema_version": None}, {"kept_files": True}, {"source": {}}, {"colour": "red"},
        {"source": SOURCE.to_json() | {"type": "carrier-pigeon"}}, {"source": SOURCE.to_json() | {"sha256": 7}},
    ],
    ids=str,
)  # fmt: skip
def test_a_damaged_first_line_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    header, listed = lines()
    for read in (read_header, read_record):
        with pytest.raises(errors.DataError) as raised:
            read(written(tmp_path, header | changes, listed))
        assert (raised.value.code, raised.value.details["path"]) == ("E013", str(tmp_path / RECORD_NAME))


@pytest.mark.parametrize(
    "listed",
    [
        b"", b"[" * 100_000, {}, {"files": {"a.md": ["aa"]}}, {"files": {"a.md": ["aa", 1, 1.0, 2]}},
        {"files": {"../a.md": ["aa", 10, 1, 2]}}, {"files": {"/etc/passwd": ["aa", 10, 1, 2]}},
        {"files": {"a\0.md": ["aa", 10, 1, 2]}}, {"files": {"": ["aa", 10, 1, 2]}},
        {"files": {".git/config": ["aa", 10, 1, 2]}}, {"files": {"a/.G\u200cit/config": ["aa", 10, 1, 2]}},
    ],
    ids=lambda listed: str(listed)[:40],
)  # fmt: skip
def test_a_damaged_list_of_files_is_refused(tmp_path: Path, listed: Any) -> None:
    with pytest.raises(errors.DataError) as raised:
        read_record(written(tmp_path, lines()[0], listed))
    assert (raised.value.code, raised.value.details["reason"]) == ("E013", "the list of files is damaged")


@pytest.mark.parametrize(
    ("path", "inside"),
    [
        *(("a", True), ("a/b..c/...", True), ("a b/ä", True)),
        *((path, False) for path in ("", "/a", "a/../b", "./a", "a//b", "a/", "..", "a\0b")),
    ],
)
def test_a_path_stays_inside_when_none_of_its_parts_leads_out(path: str, inside: bool) -> None:
    assert stays_inside(path) is inside
