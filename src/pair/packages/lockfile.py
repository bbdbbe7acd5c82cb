"""The lockfile `pair.lock`: read, write and check the KBs of a project and their exact bytes; E022, E023.

Invariants
    The same state gives the same bytes.
    A lock names no target outside its folder: it may come with a hostile project.
"""

import errno
import os
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import tomli_w
from msgspec import Meta

from pair import errors, files
from pair.packages import folders, record, rules
from pair.packages.record import Record, RecordHeader
from pair.values import convert_json

LOCK_NAME = "pair.lock"
SCHEMA_VERSION = 1
_LIMIT_BYTES = 4 * 1024 * 1024
_SHOWN_DIGITS = 12
_HEADER = (
    "# Which knowledge bases this project has, to the byte. Written by `pair lock`, not by hand.\n"
    "# Install exactly these: `pair install --locked`. Are these installed? `pair lock --check`.\n"
)


class LockedKb(msgspec.Struct, frozen=True):
    """One table of the lock."""

    id: Annotated[rules.OneLine, Meta(min_length=1)]
    target: rules.OneLine
    """The target, relative to the folder of the lock, with `/`."""
    source: rules.OneLine
    """The source: a release index, a URL, a git repository, or a path relative to the folder of the lock."""
    name: rules.OneLine
    version: rules.OneLine
    archive_sha256: Annotated[str, Meta(pattern=r"\A(?:[0-9a-f]{64})?\Z")]
    commit: rules.OneLine
    content_sha256: rules.Sha256
    embedder: rules.OneLine
    manifest_version: int

    def drifts(self, seen: Mapping[str, object]) -> list[str]:
        """Return a line for each of these fields that differs from the lock."""
        return [
            drift(self.id, name.replace("_", " ").replace("sha256", "SHA-256"), getattr(self, name), value)
            for name, value in seen.items()
            if getattr(self, name) != value
        ]


def drift(kb_id: str, what: str, locked: object, found: object) -> str:
    return f"{kb_id}: {what}: locked {locked or 'none'}, found {found or 'none'}"


class Locked(NamedTuple):
    """An entry of a lock, and the path of the lock."""

    lock: Path
    kb: LockedKb

    def drifts(self, origin: Mapping[str, str]) -> list[str]:
        """Return a line for each difference. A field that the lock leaves empty is not compared."""
        return self.kb.drifts({name: value for name, value in origin.items() if getattr(self.kb, name)})


@dataclass(frozen=True)
class Lock:
    path: Path
    kbs: tuple[LockedKb, ...] = ()

    def target_of(self, kb: LockedKb) -> Path:
        return self.path.parent / kb.target

    def kb_at(self, target: Path) -> LockedKb | None:
        relative = os.path.relpath(target, self.path.parent)
        return next((kb for kb in self.kbs if kb.target == relative), None)


# ── targets ────────────────────────────────────────────────────────────────────────────────────────


def is_below(target: Path, lock_path: Path) -> bool:
    """Return whether a target is below the folder of the lock file."""
    return rules.stays_inside(os.path.relpath(target, lock_path.parent))


def make_relative(target: Path, lock_path: Path) -> str:
    """Return a target relative to the folder of the lock. Raises E023 for a target outside it."""
    if not is_below(target, lock_path):
        raise errors.lock_unusable(str(lock_path), f"The folder {target} is outside the folder of the lock file.")
    return os.path.relpath(target, lock_path.parent)


def refuse_links(target: Path, lock_path: Path) -> None:
    """Raise E023 if a link is on the way from the folder of the lock to a target.

    Each folder is opened below the descriptor of the one before, so that a link made in between is not followed.
    """
    path = lock_path.parent
    if not path.is_dir():
        return
    flags = getattr(os, "O_PATH", os.O_RDONLY) | files.DIRECTORY
    descriptor = os.open(path, flags)
    try:
        for name in make_relative(target, lock_path).split("/"):
            path /= name
            inner = os.open(name, flags | files.NO_FOLLOW, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
    except FileNotFoundError:
        return  # pair creates the missing folders.
    except OSError as fault:
        if fault.errno not in {errno.ENOTDIR, errno.ELOOP}:
            raise
        reason = f"{path} is a link or a file. A locked KB needs a real folder there. Move or remove {path.name}."
        raise errors.lock_unusable(str(lock_path), reason) from fault
    finally:
        os.close(descriptor)


# ── bytes ──────────────────────────────────────────────────────────────────────────────────────────


def to_bytes(kbs: Iterable[LockedKb]) -> bytes:
    tables = [msgspec.structs.asdict(kb) for kb in sorted(kbs, key=lambda kb: kb.id)]
    for table in tables:
        if not table["commit"]:
            del table["commit"]
    return (_HEADER + "\n" + tomli_w.dumps({"version": SCHEMA_VERSION, "kb": tables})).encode()


def read_lock(path: Path) -> Lock:
    """Read and check a lock. Raises E023."""
    try:
        with files.storage_errors(), path.open("rb") as stream:
            content = stream.read(_LIMIT_BYTES + 1)
    except errors.StorageError as fault:
        reason = "There is no such file." if not path.exists() else f"{fault.details['reason']}."
        raise errors.lock_unusable(str(path), reason) from fault
    if len(content) > _LIMIT_BYTES:
        raise errors.lock_unusable(str(path), f"It is longer than {_LIMIT_BYTES} bytes.")
    try:
        return Lock(path, _parse_lock(content))
    except (ValueError, KeyError, RecursionError) as fault:
        raise errors.lock_unusable(str(path), f"It is damaged: {fault!s:.200}") from fault


def _parse_lock(content: bytes) -> tuple[LockedKb, ...]:
    value = tomllib.loads(content.decode())
    if value["version"] != SCHEMA_VERSION or type(value["version"]) is not int:
        raise ValueError(f"a different version of pair wrote it: it has version {value['version']!r:.40}")
    tables = convert_json(value.get("kb", []), list[dict[str, Any]])
    kbs = convert_json([{"commit": ""} | table for table in tables], tuple[LockedKb, ...])
    for kb in kbs:
        if any(rules.is_version_control(name) for name in kb.target.split("/")):
            raise ValueError(f"the target {kb.target!r:.80} belongs to version control")
        if not rules.stays_inside(kb.target):
            raise ValueError(f"the target {kb.target!r:.80} is outside the folder of the lock file")
        if not (rules.is_remote(kb.source) or rules.is_local_path(kb.source)):
            raise ValueError(f"{kb.source!r:.80} is not a valid source")
    refuse_twice(kbs)
    return tuple(sorted(kbs, key=lambda kb: kb.id))


def refuse_twice(kbs: Sequence[LockedKb]) -> None:
    """Raise ValueError if two KBs have one id, or one target."""
    ids: dict[str, LockedKb] = {}
    targets: dict[str, LockedKb] = {}
    for kb in kbs:
        if (other := ids.setdefault(kb.id, kb)) is not kb:
            raise ValueError(
                f"{other.target} and {kb.target} are both the KB {kb.id!r}; "
                f"give one of them another id: pair update {kb.target} --kb ID"
            )
        if (other := targets.setdefault(kb.target, kb)) is not kb:
            raise ValueError(f"{kb.target} is both the KB {other.id!r} and the KB {kb.id!r}")


# ── installed KBs ──────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class CurrentIndex:
    """The index that was installed last into a KB."""

    embedder: str
    index_sha256: str
    """Hash of the index; empty if no index was installed."""
    label: str
    """Name and version of the package; empty after a later write."""


FindIndex = Callable[[str], CurrentIndex | None]
"""A function that returns the index of a KB by its id; None if there is no such KB."""


def read_installed(target: Path, lock_path: Path) -> LockedKb:
    """Return the lock entry of an installed KB. Raises E012, E013, E023."""
    with files.storage_errors():
        refuse_links(target, lock_path)
        installed = record.read_record(target)
    if installed is None:
        raise errors.nothing_installed_at(str(target))
    return lock_kb(installed, target, lock_path)


def lock_kb(installed: Record, target: Path, lock_path: Path) -> LockedKb:
    """Return the lock entry of a record. A local source becomes relative to the lock if they share a folder."""
    header = installed.header
    source = header.source.feed or header.source.location
    base = os.path.abspath(lock_path.parent)  # noqa: PTH100 - normalises without following links
    if not rules.is_remote(source) and os.path.commonpath([base, source]) != os.path.sep:
        relative = os.path.relpath(source, base)
        source = relative if relative.startswith("..") else f"./{relative}"
    same = ("name", "version", "archive_sha256", "commit", "embedder", "manifest_version")
    return LockedKb(
        id=header.kb_id,
        target=make_relative(target, lock_path),
        source=source,
        content_sha256=header.content_sha256 or _hash_listed(installed),
        **{name: getattr(header, name) for name in same},
    )


def _hash_listed(installed: Record) -> str:
    return folders.content_checksum({path: entry.sha256 for path, entry in installed.files.items()})


def find_drifts(lock: Lock, find_index: FindIndex, *, also: Path) -> list[str]:
    """Return a line for each drift. `also`: a target that must be locked if a KB is installed there."""
    drifts = [line for kb in lock.kbs for line in _find_drifts(kb, lock, find_index)]
    if (also / rules.RECORD_NAME).exists() and is_below(also, lock.path) and lock.kb_at(also) is None:
        drifts.append(f"{also}: installed, and not locked")
    return drifts


def _find_drifts(kb: LockedKb, lock: Lock, find_index: FindIndex) -> list[str]:
    target = lock.target_of(kb)
    try:
        with files.storage_errors():
            installed = record.read_record(target)
            if installed is None:
                return [f"{kb.id}: not installed: {target}"]
            changes = record.find_changes(target, installed)
            index_drifts = _find_index_drifts(kb, installed.header, find_index)
    except errors.DataError as fault:
        return [f"{kb.id}: {fault.message}"]
    seen = msgspec.structs.asdict(lock_kb(installed, target, lock.path))
    del seen["target"]
    drifts = kb.drifts(seen)
    drifts += [f"{kb.id}: edited: {target / path}" for path in changes.modified]
    drifts += [f"{kb.id}: missing: {target / path}" for path in changes.missing]
    listed = _hash_listed(installed)
    # The record of a package with an index does not list the files of the index.
    is_exact = not (installed.header.embedder or installed.header.kept_files)
    if is_exact and seen["content_sha256"] != listed:
        drifts.append(drift(kb.id, "content SHA-256 of the listed files", kb.content_sha256, listed))
    return drifts + index_drifts


def _find_index_drifts(kb: LockedKb, header: RecordHeader, find_index: FindIndex) -> list[str]:
    """Compare the index that is searched with the locked one, if the engine installed one: an index is optional.

    Later writes and the layout of the shards do not count as drift.
    """
    if not (kb.embedder and header.index_sha256):
        return []
    current = find_index(header.kb_id)
    locked = f"{header.name} {header.version} ({header.index_sha256[:_SHOWN_DIGITS]})"
    if current is None:
        return [drift(kb.id, "index in the engine", locked, "")]
    if current.index_sha256 != header.index_sha256:
        seen = f"{current.label or 'another'} ({current.index_sha256[:_SHOWN_DIGITS]})" if current.index_sha256 else ""
        return [drift(kb.id, "index in the engine", locked, seen)]
    if current.embedder != header.embedder:
        return [drift(kb.id, "embedder in the engine", header.embedder, current.embedder)]
    return []
