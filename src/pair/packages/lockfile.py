"""`pair.lock`: which KBs a project has, and exactly which bytes of each. Read, written, compared; E022, E023.

Invariants
    The same state gives the same bytes.
    A lock names no target outside its own folder: it may come with somebody else's project.
"""

import dataclasses
import errno
import os
import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from pair import errors, files
from pair.packages.record import RecordHeader
from pair.packages.rules import is_local_path, is_on_one_line, is_remote, is_version_control, stays_inside

LOCK_NAME = "pair.lock"
SCHEMA_VERSION = 1
_LIMIT_BYTES = 4 * 1024 * 1024
_HEADER = (
    "# Which knowledge bases this project has, to the byte. Written by `pair lock`, not by hand.\n"
    "# Install exactly these: `pair install --locked`. Are these installed? `pair lock --check`.\n"
)


@dataclass(frozen=True)
class Origin:
    """What identifies the bytes of a KB: of its archive or commit, if it has one, and of its content."""

    archive_sha256: str
    commit: str
    content_sha256: str


@dataclass(frozen=True)
class Locked:
    """What may be installed as one KB, and nothing else."""

    lock: str
    kb_id: str
    origin: Origin

    def drifts(self, found: Origin) -> list[str]:
        """What the lock leaves empty, it does not say."""
        pairs = {
            "archive SHA-256": (self.origin.archive_sha256, found.archive_sha256),
            "commit": (self.origin.commit, found.commit),
            "content SHA-256": (self.origin.content_sha256, found.content_sha256),
        }
        return [
            drift(self.kb_id, what, wanted, seen) for what, (wanted, seen) in pairs.items() if wanted not in {"", seen}
        ]


def drift(kb_id: str, what: str, locked: object, found: object) -> str:
    return f"{kb_id}: {what}: locked {locked or 'none'}, found {found or 'none'}"


@dataclass(frozen=True)
class LockedKb:
    """One table of the lock."""

    id: str
    target: str
    """From the lock's folder, with `/`."""
    source: str
    """A feed, a URL, a git repository, or a path from the lock's folder."""
    name: str
    version: str
    archive_sha256: str
    commit: str
    content_sha256: str
    embedder: str
    manifest_version: int

    @property
    def origin(self) -> Origin:
        return Origin(self.archive_sha256, self.commit, self.content_sha256)

    def to_toml(self) -> dict[str, Any]:
        value = dataclasses.asdict(self)
        if not self.commit:
            del value["commit"]
        return value


@dataclass(frozen=True)
class Lock:
    path: Path
    kbs: tuple[LockedKb, ...] = ()

    def target_of(self, kb: LockedKb) -> Path:
        return self.path.parent / kb.target

    def kb_at(self, target: Path) -> LockedKb | None:
        wanted = os.path.relpath(target, self.path.parent)
        return next((kb for kb in self.kbs if kb.target == wanted), None)

    def locked(self, kb: LockedKb) -> Locked:
        return Locked(str(self.path), kb.id, kb.origin)


def is_below(target: Path, lock_path: Path) -> bool:
    """Whether a target can be locked there."""
    return stays_inside(os.path.relpath(target, lock_path.parent))


def relative_target(target: Path, lock_path: Path) -> str:
    """Raises E023 for one outside the lock's folder."""
    if not is_below(target, lock_path):
        raise errors.lock_unusable(str(lock_path), f"The folder {target} is not below the folder of the lock.")
    return os.path.relpath(target, lock_path.parent)


def refuse_links(target: Path, lock_path: Path) -> None:
    """Raises E023 when a link is on the way from the lock's folder to a target: it may lead anywhere.

    Each folder is opened inside the one before it, so that a link which comes meanwhile is not followed.
    """
    path = lock_path.parent
    if not path.is_dir():
        return
    flags = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY
    descriptor = os.open(path, flags)
    try:
        for name in relative_target(target, lock_path).split("/"):
            path /= name
            inner = os.open(name, flags | os.O_NOFOLLOW, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
    except FileNotFoundError:
        return  # what is not there yet is made by pair
    except OSError as fault:
        if fault.errno not in {errno.ENOTDIR, errno.ELOOP}:
            raise
        reason = f"{path} is a link or a file, and a locked KB stays below the folder of the lock. Move it away."
        raise errors.lock_unusable(str(lock_path), reason) from fault
    finally:
        os.close(descriptor)


def locked_kb(header: RecordHeader, target: Path, lock_path: Path, content_sha256: str) -> LockedKb:
    """What is to be locked of an installed KB."""
    return LockedKb(
        id=header.kb_id,
        target=relative_target(target, lock_path),
        source=_portable(header.source.feed or header.source.location, lock_path.parent),
        name=header.name,
        version=header.version,
        archive_sha256=header.archive_sha256,
        commit=header.commit,
        content_sha256=content_sha256,
        embedder=header.embedder,
        manifest_version=header.manifest_version,
    )


def _portable(source: str, folder: Path) -> str:
    """A path as it is from the lock, where the two have more in common than the root."""
    if is_remote(source):
        return source
    base = os.path.abspath(folder)  # noqa: PTH100 - normalises without following links
    if os.path.commonpath([base, source]) == os.path.sep:
        return source
    relative = os.path.relpath(source, base)
    return relative if relative.startswith("..") else f"./{relative}"


# ── bytes ──────────────────────────────────────────────────────────────────────────────────────────


def to_bytes(kbs: Iterable[LockedKb]) -> bytes:
    tables = [kb.to_toml() for kb in sorted(kbs, key=lambda kb: kb.id)]
    return (_HEADER + "\n" + tomli_w.dumps({"version": SCHEMA_VERSION, "kb": tables})).encode()


def read_lock(path: Path) -> Lock:
    """Raises E023."""
    try:
        with files.storage_errors(), path.open("rb") as stream:
            content = stream.read(_LIMIT_BYTES + 1)
    except errors.StorageError as fault:
        reason = "There is no such file." if not path.exists() else f"{fault.details['reason']}."
        raise errors.lock_unusable(str(path), reason) from fault
    if len(content) > _LIMIT_BYTES:
        raise errors.lock_unusable(str(path), f"It is longer than {_LIMIT_BYTES} bytes.")
    try:
        return Lock(path, parse_lock(content))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as fault:
        raise errors.lock_unusable(str(path), f"It is damaged: {fault!s:.200}") from fault


def parse_lock(content: bytes) -> tuple[LockedKb, ...]:
    """A ValueError, KeyError, TypeError, AttributeError or RecursionError says what is wrong."""
    value = tomllib.loads(content.decode())
    if value["version"] != SCHEMA_VERSION or type(value["version"]) is not int:
        raise ValueError(f"it was written by another version of pair: it has version {value['version']!r:.40}")
    kbs = tuple(_kb_from(table) for table in value.get("kb", []))
    refuse_twice(kbs)
    return tuple(sorted(kbs, key=lambda kb: kb.id))


def refuse_twice(kbs: Sequence[LockedKb]) -> None:
    """A ValueError when two KBs have one id, or one target."""
    ids: dict[str, LockedKb] = {}
    targets: dict[str, LockedKb] = {}
    for kb in kbs:
        if (other := ids.setdefault(kb.id, kb)) is not kb:
            raise ValueError(
                f"{other.target} and {kb.target} are both the KB {kb.id!r}; "
                f"name one of them otherwise: pair update {kb.target} --kb ID"
            )
        if (other := targets.setdefault(kb.target, kb)) is not kb:
            raise ValueError(f"{kb.target} is both the KB {other.id!r} and the KB {kb.id!r}")


def _kb_from(table: dict[str, Any]) -> LockedKb:
    texts = {
        name: _text(table, name)
        for name in ("id", "target", "source", "name", "version", "archive_sha256", "content_sha256", "embedder")
    }
    commit = _text(table, "commit") if "commit" in table else ""
    manifest_version = table["manifest_version"]
    if type(manifest_version) is not int:
        raise ValueError("manifest_version is no number")
    if any(is_version_control(name) for name in texts["target"].split("/")):
        raise ValueError(f"the target {texts['target']!r:.80} belongs to version control")
    if not texts["id"] or not stays_inside(texts["target"]):
        raise ValueError(f"the target {texts['target']!r:.80} is not below the folder of the lock, or has no id")
    if not re.fullmatch(r"[0-9a-f]{64}", texts["content_sha256"]):
        raise ValueError("content_sha256 is no SHA-256")
    if not re.fullmatch(r"(?:[0-9a-f]{64})?", texts["archive_sha256"]):
        raise ValueError("archive_sha256 is no SHA-256")
    if not (is_remote(texts["source"]) or is_local_path(texts["source"])):
        raise ValueError(f"{texts['source']!r:.80} is no source")
    return LockedKb(**texts, commit=commit, manifest_version=manifest_version)


def _text(table: dict[str, Any], name: str) -> str:
    value = table[name]
    if not isinstance(value, str) or not is_on_one_line(value):
        raise ValueError(f"{name} is no text on one line")
    return value
