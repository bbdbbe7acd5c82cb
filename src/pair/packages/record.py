"""The install record: the source of an installed KB, and the hash, size and time of each installed file.

The record is a file in the target, so that it changes together with the files. Its first line describes the KB; the
second lists the files and is read only if something may have changed.
"""

import contextlib
import json
import stat
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from pair import errors, files
from pair.packages import folders
from pair.packages.rules import RECORD_NAME, make_name, stays_inside
from pair.values import KbSource, convert_json, parse_json

SCHEMA_VERSION = 1
DEFAULT_KB_ID = "default"
_LONGEST_KB_ID = 128


class InstalledFile(NamedTuple):
    """An installed file. `source_mtime_ns` is the time of its source, or 0 if that is not reliable."""

    sha256: str
    size_bytes: int
    mtime_ns: int
    source_mtime_ns: int


class RecordHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    source: KbSource
    name: str
    version: str
    installed_at: str
    verified: bool | None
    """Whether a published SHA-256 matched the archive; None for a folder."""
    file_count: int
    size_bytes: int
    source_fingerprint: str
    target_fingerprint: str
    kept_files: int
    """Number of paths where the files of the user were kept."""
    kb_id: str = DEFAULT_KB_ID
    archive_sha256: str = ""
    """Hash of the archive; empty for a folder and for git."""
    commit: str = ""
    content_sha256: str = ""
    """Hash of the names and contents of all files of the source; empty in an old record."""
    embedder: str = ""
    """The embedder of the packaged index, if there is one."""
    manifest_version: int = 0
    """The version of the packaged index; 0 without one."""
    index_sha256: str = ""
    """Hash of the packaged index, if the engine installed it."""
    signed_by: str | None = None
    """Id of the key with a valid signature of the archive."""

    def to_json(self) -> dict[str, Any]:
        value = {"schema_version": SCHEMA_VERSION, **msgspec.structs.asdict(self), "source": self.source.to_json()}
        if self.signed_by is None:
            del value["signed_by"]
        return value


class Record(msgspec.Struct, frozen=True):
    header: RecordHeader
    files: dict[str, InstalledFile]

    def to_bytes(self) -> bytes:
        listed = dict(sorted(self.files.items()))
        lines = [json.dumps(self.header.to_json()), json.dumps({"files": listed}, separators=(",", ":"))]
        return ("\n".join(lines) + "\n").encode()


def read_header(target: Path) -> RecordHeader | None:
    """Return the first line of the record; None if nothing is installed in the target. Raises E013."""
    path = target / RECORD_NAME
    try:
        with path.open("rb") as stream:
            return _parse_header(stream.readline(), path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def find_kb_id(target: Path, *, default_target: Path) -> str:
    """Return the recorded id of the KB in a target, else `default` for the default target, else the folder name."""
    with contextlib.suppress(errors.DataError):  # The install reports a damaged record.
        if (header := read_header(target)) is not None:
            return header.kb_id
    real = target.resolve()
    if real == default_target.resolve():
        return DEFAULT_KB_ID
    name = make_name(real.name)[:_LONGEST_KB_ID]
    return name if name != DEFAULT_KB_ID else f"{name}-kb"


def read_record(target: Path) -> Record | None:
    """Return the record; None if nothing is installed in the target. Raises E013."""
    path = target / RECORD_NAME
    try:
        first, _, second = path.read_bytes().partition(b"\n")
    except (FileNotFoundError, NotADirectoryError):
        return None
    header = _parse_header(first, path)
    try:
        installed = parse_json(second, dict[str, dict[str, InstalledFile]])["files"]
        if not all(stays_inside(name) for name in installed):
            raise ValueError("a path leads out of the target")
    except (ValueError, KeyError, RecursionError) as fault:
        raise errors.record_unreadable(str(path), "the list of files is damaged") from fault
    return Record(header, installed)


def _parse_header(line: bytes, path: Path) -> RecordHeader:
    try:
        value = json.loads(line)
        schema_version = value.pop("schema_version")
        if schema_version == SCHEMA_VERSION:
            return convert_json(value | {"source": KbSource.from_json(value["source"])}, RecordHeader)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as fault:
        raise errors.record_unreadable(str(path), "its first line is damaged") from fault
    raise errors.record_unreadable(str(path), f"it was written by another version (schema {schema_version!r:.40})")


class FileChanges(NamedTuple):
    """The differences from the record, sorted."""

    modified: list[str]
    missing: list[str]
    extra: list[str]


def find_changes(path: Path, installed: Record) -> FileChanges:
    """Compare the content of every installed file with the record."""
    present = folders.list_folder(path).files
    present.pop(RECORD_NAME, None)
    modified = sorted(
        name
        for name, entry in installed.files.items()
        if name in present
        and not (stat.S_ISREG(present[name].st_mode) and files.hash_file(path / name) == entry.sha256)
    )
    missing = sorted(name for name in installed.files if name not in present)
    return FileChanges(modified, missing, sorted(present.keys() - installed.files.keys()))
