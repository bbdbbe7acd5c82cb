"""Installs and updates: make a target folder equal to the content of a source, all or nothing.

Invariants
    The target and its record change in one step, from the old state to the new one.
    Files that the user edited, added or deleted are never overwritten without --force.
"""

import contextlib
import dataclasses
import functools
import logging
import os
import shutil
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import msgspec

from pair import errors, files
from pair.clock import Clock, to_timestamp
from pair.packages import folders, record, rules
from pair.packages.content import DamagedCopyError, KbFolder, Observer, SourceContent
from pair.packages.lockfile import Locked, make_relative, refuse_links
from pair.packages.package import PackagedIndexFiles
from pair.packages.record import InstalledFile, Record, RecordHeader
from pair.packages.release_index import is_older
from pair.values import KbSource, check_kb_id

logger = logging.getLogger(__name__)

Mode = Literal["install", "update"]
Recorded = TypeVar("Recorded")
_TRIES_WHILE_TARGET_CHANGES = 3
_RACY_NANOSECONDS = 20_000_000


@dataclass(frozen=True)
class InstallRequest:
    """The options of one install or update."""

    mode: Mode
    target: Path
    force: bool = False
    dry_run: bool = False
    kb_id: str | None = None
    """The id of the KB; None for the recorded one, else `default` or the name of the folder."""
    locked: Locked | None = None
    """The only bytes that may be installed."""
    with_index: bool = True
    """Whether the engine installs the index of a package, if there is one."""

    def __post_init__(self) -> None:
        """Check the id of the KB. Raises E212."""
        if self.kb_id is not None:
            check_kb_id(self.kb_id)


@dataclass(frozen=True)
class InstalledIndex:
    """The state of a KB after an index was installed."""

    kb_id: str
    manifest_version: int
    documents: int
    shards: int
    """Number of shards of the package."""
    new_shards: int = 0
    """Number of shards that were not stored before."""


PublishIndex = Callable[[frozenset[str], frozenset[str]], InstalledIndex]
"""A function that makes a stored index visible in one step, given the paths of edited and removed files.

Raises DamagedCopyError.
"""


class IndexInstaller(Protocol):
    """The install of indexes into one KB of the engine."""

    def is_current(self, index_sha256: str) -> bool:
        """Return whether this index was the last one installed."""

    def stage(self, index: PackagedIndexFiles, *, dry_run: bool) -> PublishIndex | None:
        """Store the missing shards, not visible yet; return None for a dry run, which changes nothing.

        Raises E221 for an index that is damaged or disagrees with its files, and DamagedCopyError for a missing file.
        """


@dataclass(frozen=True)
class InstallReport:
    """The outcome of an install or update."""

    mode: Mode
    target: Path
    source: KbSource
    name: str
    version: str
    verified: bool | None
    signed_by: str | None = None
    """Id of the key with a valid signature of the archive."""
    index: InstalledIndex | None = None
    dry_run: bool = False
    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    kept: tuple[rules.KeptFile, ...] = ()
    unchanged: int = 0
    skipped: tuple[tuple[str, str], ...] = ()

    def to_json(self) -> dict[str, Any]:
        value = msgspec.to_builtins(self, enc_hook=str)
        skipped = [{"path": path, "reason": reason} for path, reason in self.skipped]
        source = rules.describe_source(self.source)
        return {"command": value.pop("mode"), **value, "source": source, "skipped": skipped}


@dataclass(frozen=True)
class _FileComparison:
    """The installed, offered and present files, and the plan that follows."""

    offer: SourceContent
    kb: KbFolder
    current: folders.FileListing
    installed: dict[str, InstalledFile]
    offered: dict[str, str | None]
    plan: rules.UpdatePlan


@dataclass(frozen=True)
class Installation:
    """One install or update of a target."""

    request: InstallRequest
    kb_id: str
    clock: Clock
    observer: Observer
    token: str
    """A function that names the temporary folder."""
    open_index: Callable[[], IndexInstaller]
    """A function that opens the index installer; called only if there is an index to install."""

    @functools.cached_property
    def target(self) -> Path:
        if self.request.locked is None:
            return files.resolve(self.request.target)
        # A locked target is below the folder of the lock by name: links are not followed.
        lock = self.request.locked.lock
        return Path(os.path.realpath(lock.parent)) / make_relative(self.request.target, lock)

    def apply(self, offer: SourceContent) -> InstallReport:
        """Install the content. An error leaves the target unchanged.

        Raises E010-E013, E016, E022, E023, E027, E028 and DamagedCopyError.
        """
        with files.storage_errors():
            self._refuse_links()
            if self.request.dry_run:
                return self._apply(offer)
            say, named = self.observer.say, self.request.target
            # The lock is on the parent, because the target itself is replaced.
            with files.lock_folder(
                self.target.parent, on_wait=lambda holder: say(f"waiting for {holder}, which is working on {named}")
            ):
                folders.clear_leftovers(self.target)
                for _ in range(_TRIES_WHILE_TARGET_CHANGES):
                    with contextlib.suppress(_TargetChangedError):
                        return self._apply(offer)
                    logger.debug("the target changed during the install", extra={"target": str(self.target)})
                raise errors.target_changing(str(named))

    def _refuse_links(self) -> None:
        """Refuse links on the way to a locked target: a hostile project may contain both the lock and the links."""
        if self.request.locked is not None:
            refuse_links(self.request.target, self.request.locked.lock)

    def _apply(self, offer: SourceContent) -> InstallReport:
        if self.target.exists() and not self.target.is_dir():
            raise errors.files_in_the_way(str(self.request.target), [self.target.name], is_installed=False)
        header = self._read_unless_forced(record.read_header)
        current = self._list_target()
        if header is not None and self._is_current(header, offer, current):
            logger.debug("nothing changed since the last run", extra={"target": str(self.target)})
            report = self._report(offer, (header.name, header.version), rules.UpdatePlan(), ())
            return dataclasses.replace(report, verified=header.verified, unchanged=header.file_count)
        with offer.open() as kb:
            if not kb.files:
                raise errors.no_kb_at(rules.hide_credentials(offer.source.location), "the source has no files")
            self._refuse_other_release(offer, kb, header)
            compared = self._compare(offer, kb, current)
            locked = self.request.locked
            if locked is not None and (drifts := locked.drifts(_find_origin(kb, compared.offered))):
                raise errors.lock_differs(str(locked.lock), drifts)
            if self.request.mode == "install" and compared.plan.kept:
                kept = [kept.path for kept in compared.plan.kept]
                raise errors.files_in_the_way(str(self.request.target), kept, is_installed=header is not None)
            self._check_writable(compared)
            # The index is stored before the files change and becomes visible afterwards. After a kill in between, the
            # next run continues.
            publish = None
            if self.request.with_index and kb.index is not None:
                publish = self.open_index().stage(kb.index, dry_run=self.request.dry_run)
            report = self._report(offer, _label(offer.source, kb), compared.plan, kb.skipped)
            if self.request.dry_run:
                return report
            self._carry_out(compared)
            if publish is None:
                return report
            deleted = frozenset(kept.path for kept in compared.plan.kept if kept.reason == "deleted")
            edited = frozenset(kept.path for kept in compared.plan.kept) - deleted
            return dataclasses.replace(report, index=publish(edited, deleted.union(compared.plan.removed)))

    def _refuse_other_release(self, offer: SourceContent, kb: KbFolder, header: RecordHeader | None) -> None:
        """Refuse a signed manifest that differs from the release index: it may belong to an old release."""
        source, manifest = offer.source, kb.manifest
        shown = rules.hide_credentials(source.feed or source.location)
        found = (manifest.name, manifest.version) if manifest is not None else ("nothing:", "it has no manifest")
        if source.name is not None and (manifest is None or found != (source.name, source.version)):
            raise errors.release_differs(shown, f"{source.name} {source.version}", " ".join(found))
        is_asked_for = self.request.force or self.request.locked is not None
        is_chosen_by_host = source.feed is not None or (self.request.mode == "update" and source.requires_download)
        if manifest is None or header is None or is_asked_for or not is_chosen_by_host:
            return
        if manifest.name == header.name and is_older(manifest.version, header.version):
            raise errors.version_older(shown, header.name, header.version, manifest.version)

    # Observe: hash only files whose size or time changed; with --force, all files

    def _read_unless_forced(self, read: Callable[[Path], Recorded]) -> Recorded | None:
        """Read the record. With --force, which replaces everything, ignore a damaged one."""
        try:
            return read(self.target)
        except errors.DataError:
            if not self.request.force:
                raise
            return None

    def _list_target(self) -> folders.FileListing:
        if not self.target.is_dir():
            return folders.FileListing({})
        tokens = (self.token, f"{self.token}-unpacked")
        staging = frozenset(str(folders.staging_path(self.target, token)) for token in tokens)
        listing = folders.list_folder(self.target, leave_out=staging)
        listing.files.pop(rules.RECORD_NAME, None)
        return listing

    def _is_current(self, header: RecordHeader, offer: SourceContent, current: folders.FileListing) -> bool:
        locked = self.request.locked
        needs_index = self.request.with_index and header.embedder != ""
        origin = {name: getattr(header, name) for name in ("archive_sha256", "commit", "content_sha256")}
        return (
            not self.request.force
            and self.kb_id == header.kb_id
            and (locked is None or not locked.drifts(origin))
            and header.content_sha256 != ""
            and header.kept_files == 0
            and _strip_users(offer.source) == header.source
            and header.source_fingerprint == offer.fingerprint
            and header.target_fingerprint == current.fingerprint()
            and (not needs_index or (header.index_sha256 != "" and self.open_index().is_current(header.index_sha256)))
        )

    def _compare(self, offer: SourceContent, kb: KbFolder, current: folders.FileListing) -> _FileComparison:
        previous = self._read_unless_forced(record.read_record)
        installed = previous.files if previous is not None else {}
        offered = self._hash_offered(kb, installed, current)
        plan = rules.plan_changes(
            {path: entry.sha256 for path, entry in installed.items()},
            offered,
            self._hash_present(installed, offered, current),
            force=self.request.force,
            restore=self.request.mode == "install",
        )
        return _FileComparison(offer, kb, current, installed, offered, plan)

    def _hash_offered(
        self, kb: KbFolder, installed: dict[str, InstalledFile], current: folders.FileListing
    ) -> dict[str, str | None]:
        """Return the hashes of the offered files; None for a new file, which is hashed when it is copied."""
        hashes: dict[str, str | None] = {}
        for path, entry in kb.files.items():
            known = installed.get(path)
            if entry.sha256 is not None:
                hashes[path] = entry.sha256
            elif (
                known
                and not self.request.force
                and (entry.size_bytes, entry.mtime_ns) == (known.size_bytes, known.source_mtime_ns)
            ):
                hashes[path] = known.sha256
            elif known or path in current.files or self.request.locked is not None:
                hashes[path] = files.hash_file(kb.folder / path)
            else:
                hashes[path] = None
        return hashes

    def _hash_present(
        self, installed: dict[str, InstalledFile], offered: dict[str, str | None], current: folders.FileListing
    ) -> dict[str, str | None]:
        hashes: dict[str, str | None] = {}
        for path, seen in current.files.items():
            known = installed.get(path)
            is_regular = stat.S_ISREG(seen.st_mode)
            looks_installed = known and (seen.st_size, seen.st_mtime_ns) == (known.size_bytes, known.mtime_ns)
            if known and is_regular and looks_installed and not self.request.force:
                hashes[path] = known.sha256
            elif is_regular and (known or path in offered):
                hashes[path] = files.hash_file(self.target / path)
            else:
                hashes[path] = None
        return hashes

    def _check_writable(self, compared: _FileComparison) -> None:
        """Refuse to change a read-only file: pair installs writable files, so the user protected it."""
        for path in (*compared.plan.changed, *compared.plan.removed):
            mode = compared.current.files[path].st_mode
            if stat.S_ISREG(mode) and not mode & stat.S_IWUSR:
                raise errors.storage_failed(str(self.request.target / path), "the file is read-only")

    # Act: build the new state beside the old one, then exchange the two

    def _carry_out(self, compared: _FileComparison) -> None:
        if compared.plan.changes_nothing and compared.current.files:
            record_bytes = self._record_bytes(compared, compared.current, {})
            files.write_atomically(self.target / rules.RECORD_NAME, record_bytes)
            return
        staged = folders.make_staging(self.target, self.token)
        try:
            _stage_kept(self.target, staged, compared)
            hashes = _stage_placed(staged, compared)
            record_bytes = self._record_bytes(compared, folders.list_folder(staged), hashes)
            files.write_atomically(staged / rules.RECORD_NAME, record_bytes)
            if self._list_target().fingerprint() != compared.current.fingerprint():
                raise _TargetChangedError
            _keep_modes(self.target, staged, compared.current.folders)
            self._refuse_links()  # Check again: a link may have appeared since.
            folders.put_in_place(staged, self.target)
        finally:
            files.remove_tree(staged.parent)

    def _record_bytes(self, compared: _FileComparison, listing: folders.FileListing, hashes: dict[str, str]) -> bytes:
        """Return the record. `listing`: the files of the new target. `hashes`: hashes of the new files."""
        plan, kb = compared.plan, compared.kb
        now_ns = int(self.clock.now().timestamp() * 1e9)
        installed = {
            kept.path: compared.installed[kept.path]
            for kept in plan.kept
            if kept.path in compared.installed and kept.path in kb.files
        }
        is_racy = False
        for path in (*plan.files_to_place, *plan.unchanged):
            entry, seen = kb.files[path], listing.files[path]
            sha256 = hashes.get(path) or compared.offered[path]
            assert sha256 is not None  # noqa: S101 - files in the target were hashed for the comparison
            # A source that was written just now may change again within the same tick of the clock.
            racy = entry.mtime_ns > now_ns - _RACY_NANOSECONDS
            is_racy = is_racy or racy
            source_mtime_ns = 0 if racy else entry.mtime_ns
            installed[path] = InstalledFile(sha256, seen.st_size, seen.st_mtime_ns, source_mtime_ns)
        name, version = _label(compared.offer.source, kb)
        index = kb.manifest.index if kb.manifest is not None else None
        header = RecordHeader(
            source=_strip_users(compared.offer.source),
            name=name,
            version=version,
            installed_at=to_timestamp(self.clock.now()),
            verified=compared.offer.verified,
            file_count=len(installed),
            size_bytes=sum(entry.size_bytes for entry in installed.values()),
            source_fingerprint="" if is_racy else compared.offer.fingerprint,
            target_fingerprint=listing.fingerprint(),
            kept_files=len(plan.kept),
            kb_id=self.kb_id,
            embedder=index.embedder if index is not None else "",
            manifest_version=index.manifest_version if index is not None else 0,
            index_sha256=kb.index.sha256 if kb.index is not None and self.request.with_index else "",
            signed_by=compared.offer.signed_by,
            **_find_origin(kb, compared.offered | hashes),
        )
        return Record(header, installed).to_bytes()

    # Reporting

    def _report(
        self, offer: SourceContent, label: tuple[str, str], plan: rules.UpdatePlan, skipped: tuple[tuple[str, str], ...]
    ) -> InstallReport:
        return InstallReport(
            self.request.mode,
            self.request.target,
            offer.source,
            *label,
            offer.verified,
            dry_run=self.request.dry_run,
            **{name: getattr(plan, name) for name in ("added", "changed", "removed", "kept")},
            unchanged=len(plan.unchanged),
            skipped=skipped,
            signed_by=offer.signed_by,
        )


class _TargetChangedError(Exception):
    """A change of the target while its new state was being built."""


def _strip_users(source: KbSource) -> KbSource:
    feed = rules.strip_user(source.feed) if source.feed is not None else None
    return dataclasses.replace(source, location=rules.strip_user(source.location), feed=feed)


def _find_origin(kb: KbFolder, offered: Mapping[str, str | None]) -> dict[str, str]:
    """Return the hashes that identify the bytes of a KB: archive or commit, if there is one, and content."""
    if kb.manifest is not None:
        content_sha256 = kb.manifest.content_checksum
    else:
        hashes = {path: sha256 or files.hash_file(kb.folder / path) for path, sha256 in offered.items()}
        content_sha256 = folders.content_checksum(hashes)
    return {"archive_sha256": kb.archive_sha256, "commit": kb.commit, "content_sha256": content_sha256}


def _label(source: KbSource, kb: KbFolder) -> tuple[str, str]:
    """Return name and version of the package, else those of its address."""
    if kb.manifest is not None:
        return kb.manifest.name, kb.manifest.version
    location = rules.hide_credentials(source.location).partition("?")[0].partition("#")[0].rstrip("/")
    stem = location.rpartition("/")[2].removesuffix(".zip").removesuffix(".git")
    return rules.make_name(stem), source.version or ""


def _stage_kept(target: Path, staged: Path, compared: _FileComparison) -> None:
    """Link the files that stay instead of copying them, because a program may still be writing to one."""
    plan, current = compared.plan, compared.current
    leaving = {*plan.removed, *plan.changed}
    emptied = {folder for path in plan.removed for folder in rules.list_parents(path)}
    placed = set(plan.files_to_place)
    staying = {path.rpartition("/")[0] for path in current.files if path not in leaving}
    for folder in current.folders:
        becomes_file = folder in placed or any(above in placed for above in rules.list_parents(folder))
        if folder in staying or (folder not in emptied and not becomes_file):
            (staged / folder).mkdir(parents=True, exist_ok=True)
    for path in current.files:
        if path not in leaving:
            source, destination = f"{target}/{path}", f"{staged}/{path}"
            try:
                os.link(source, destination, follow_symlinks=False)
            except OSError:  # A file system without links, or a protected file.
                shutil.copy2(source, destination, follow_symlinks=False)


def _keep_modes(target: Path, staged: Path, folders: Sequence[str]) -> None:
    """Copy the modes of folders, innermost first: a folder may be read-only for its owner too."""
    for folder in ("", *folders)[::-1]:
        old, new = target / folder, staged / folder
        if old.is_dir() and new.is_dir():
            seen = old.stat()
            with contextlib.suppress(PermissionError):  # Only root may change the owner of folders.
                os.chown(new, seen.st_uid, seen.st_gid)
            new.chmod(stat.S_IMODE(seen.st_mode))


def _stage_placed(staged: Path, compared: _FileComparison) -> dict[str, str]:
    """Copy or move the new files into the staging folder. Return their SHA-256."""
    kb = compared.kb
    hashes: dict[str, str] = {}
    made = {""}
    for path in compared.plan.files_to_place:
        parent = path.rpartition("/")[0]
        if parent not in made:
            (staged / parent).mkdir(parents=True, exist_ok=True)
            made.add(parent)
        source, destination = f"{kb.folder}/{path}", f"{staged}/{path}"
        if kb.is_temporary:
            os.rename(source, destination)  # noqa: PTH104 - a Path for each of 20,000 files costs more than the rename
            hashes[path] = kb.files[path].sha256 or ""
        else:
            hashes[path] = files.copy_file(source, destination)
            if kb.files[path].sha256 not in {None, hashes[path]}:
                raise DamagedCopyError(source)
    return hashes
