"""What is installed, as a lock would say it, and in what it differs from what a lock says."""

from collections.abc import Callable
from pathlib import Path

from pair import errors, files
from pair.packages import file_listing, record, verify
from pair.packages.contract import CurrentIndex
from pair.packages.lockfile import Lock, LockedKb, drift, is_below, locked_kb, refuse_links
from pair.packages.record import Record, RecordHeader
from pair.packages.rules import RECORD_NAME

_WORDS = {
    "id": "id",
    "source": "source",
    "name": "name",
    "version": "version",
    "archive_sha256": "archive SHA-256",
    "commit": "commit",
    "content_sha256": "content SHA-256",
    "embedder": "embedder",
    "manifest_version": "manifest version",
}
_SHOWN_DIGITS = 12

Searched = Callable[[str], CurrentIndex | None]
"""What is searched in a KB, by its id; None when there is no such KB."""


def installed_kb(target: Path, lock_path: Path) -> LockedKb:
    """Raises E012, E013, E023."""
    with files.storage_errors():
        refuse_links(target, lock_path)
        found = record.read_record(target)
    if found is None:
        raise errors.nothing_installed_at(str(target))
    return _as_locked(found, target, lock_path)


def _as_locked(found: Record, target: Path, lock_path: Path) -> LockedKb:
    return locked_kb(found.header, target, lock_path, found.header.content_sha256 or _content_of(found))


def _content_of(found: Record) -> str:
    return file_listing.content_checksum({path: entry.sha256 for path, entry in found.files.items()})


def drifts_from(lock: Lock, searched: Searched, *, also: Path) -> list[str]:
    """Each in one line. `also`: a target that has to be locked if something is installed there."""
    drifts = [each for kb in lock.kbs for each in _drifts_of(kb, lock, searched)]
    if (also / RECORD_NAME).exists() and is_below(also, lock.path) and lock.kb_at(also) is None:
        drifts.append(f"{also}: installed, and not locked")
    return drifts


def _drifts_of(kb: LockedKb, lock: Lock, searched: Searched) -> list[str]:
    target = lock.target_of(kb)
    try:
        with files.storage_errors():
            found = record.read_record(target)
            if found is None:
                return [f"{kb.id}: not installed: {target}"]
            changes = verify.changes_in(target, found)
            index_drifts = _index_drifts(kb, found.header, searched)
    except errors.DataError as fault:
        return [f"{kb.id}: {fault.message}"]
    seen = _as_locked(found, target, lock.path)
    drifts = [
        drift(kb.id, words, getattr(kb, name), getattr(seen, name))
        for name, words in _WORDS.items()
        if getattr(kb, name) != getattr(seen, name)
    ]
    drifts += [f"{kb.id}: edited: {target / path}" for path in changes.modified]
    drifts += [f"{kb.id}: missing: {target / path}" for path in changes.missing]
    return drifts + _record_drifts(kb, found, seen) + index_drifts


def _index_drifts(kb: LockedKb, header: RecordHeader, searched: Searched) -> list[str]:
    """Of what is searched, where an index is locked and the engine took it up: nobody has to want the index.

    What is stored beside the package or over it is no drift, no more than how the engine lays it out: where files were
    kept or edited, and where they were repaired from, the KB holds what its folder holds.
    """
    if not (kb.embedder and header.index_sha256):
        return []
    found = searched(header.kb_id)
    locked = _called(f"{header.name} {header.version}", header.index_sha256)
    if found is None:
        return [drift(kb.id, "index in the engine", locked, "")]
    if found.index_sha256 != header.index_sha256:
        seen = _called(found.label or "another", found.index_sha256) if found.index_sha256 else ""
        return [drift(kb.id, "index in the engine", locked, seen)]
    if found.embedder != header.embedder:
        return [drift(kb.id, "embedder in the engine", header.embedder, found.embedder)]
    return []


def _called(label: str, index_sha256: str) -> str:
    return f"{label} ({index_sha256[:_SHOWN_DIGITS]})"


def _record_drifts(kb: LockedKb, found: Record, seen: LockedKb) -> list[str]:
    """A record that lists other files than those which it says were offered; those of an index are not installed."""
    if found.header.embedder or found.header.kept_files or seen.content_sha256 == _content_of(found):
        return []
    return [drift(kb.id, "content SHA-256 of the listed files", kb.content_sha256, _content_of(found))]
