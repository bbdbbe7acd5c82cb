"""Install and update: bring a target folder in line with an offered KB, all or nothing.

Invariants
    The target changes in one step, from the old state to the new one, record included.
    What the user edited, added or deleted is never overwritten without --force.
"""

import contextlib
import dataclasses
import logging
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from pair import errors, files
from pair.clock import Clock, to_timestamp
from pair.packages import atomic_swap, file_listing, record
from pair.packages.content import DamagedCopyError, KbFolder, SourceContent
from pair.packages.contract import IndexInstaller, InstalledIndex, MissingIndexFileError, Observer
from pair.packages.lockfile import Locked, Origin, refuse_links, relative_target
from pair.packages.record import InstalledFile, Record, RecordHeader
from pair.packages.release_rules import is_older
from pair.packages.rules import (
    KEPT_REASONS,
    RECORD_NAME,
    KeptFile,
    UpdatePlan,
    folders_above,
    name_from_folder,
    plan_changes,
    shown_source,
    without_credentials,
    without_user,
)
from pair.values import KbSource

logger = logging.getLogger(__name__)

Mode = Literal["install", "update"]
Found = TypeVar("Found")
_TRIES_WHILE_TARGET_CHANGES = 3
_RACY_NANOSECONDS = 20_000_000


@dataclass(frozen=True)
class InstallRequest:
    """What is to be done to which folder."""

    mode: Mode
    target: Path
    force: bool = False
    dry_run: bool = False
    kb_id: str | None = None
    """Under which the engine is to know it; None: as recorded, else `default` or the name of the folder."""
    locked: Locked | None = None
    """What has to be installed, and nothing else."""
    with_index: bool = True
    """Whether the engine takes up the index of a package, if there is one."""


@dataclass(frozen=True)
class InstallReport:
    mode: Mode
    target: Path
    source: KbSource
    name: str
    version: str
    verified: bool | None
    dry_run: bool
    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    kept: tuple[KeptFile, ...] = ()
    unchanged: int = 0
    skipped: tuple[tuple[str, str], ...] = ()
    signed_by: str | None = None
    """Id of the key whose signature of the archive held."""
    index: InstalledIndex | None = None
    """What the engine took up with it."""

    def to_json(self) -> dict[str, Any]:
        source = shown_source(self.source)
        return {
            "command": self.mode,
            "target": str(self.target),
            "source": source,
            "name": self.name,
            "version": self.version,
            "verified": self.verified,
            "signed_by": self.signed_by,
            "index": self.index.to_json() if self.index is not None else None,
            "dry_run": self.dry_run,
            "added": list(self.added),
            "changed": list(self.changed),
            "removed": list(self.removed),
            "kept": [{"path": kept.path, "reason": kept.reason} for kept in self.kept],
            "unchanged": self.unchanged,
            "skipped": [{"path": path, "reason": reason} for path, reason in self.skipped],
        }


@dataclass(frozen=True)
class _FileComparison:
    """What was installed, what is offered and what is in the target, and what follows from it."""

    offer: SourceContent
    kb: KbFolder
    current: file_listing.FileListing
    installed: dict[str, InstalledFile]
    offered: dict[str, str | None]
    plan: UpdatePlan


class Installation:
    """Carries out one request. `token` names its temporary folder."""

    def __init__(
        self,
        request: InstallRequest,
        clock: Clock,
        observer: Observer,
        token: str,
        keeper: IndexInstaller,
    ) -> None:
        """`keeper`: who takes up the index of a package."""
        self._keeper = keeper if request.with_index else None
        self._kb_id = keeper.kb_id
        self._request = request
        with files.storage_errors():
            self._target = _resolve_target(request)
        self._clock = clock
        self._observer = observer
        self._token = token

    def apply(self, offer: SourceContent) -> InstallReport:
        """Raises E010-E013, E016, E022, E023, E027, E028 and DamagedCopyError; the target is then what it was."""
        with files.storage_errors():
            self._refuse_links()
            if self._request.dry_run:
                return self._apply(offer)
            # Of the parent, for the target itself is replaced.
            with files.lock_folder(self._target.parent, on_wait=self._say_waiting):
                atomic_swap.clear_leftovers(self._target)
                for _ in range(_TRIES_WHILE_TARGET_CHANGES - 1):
                    try:
                        return self._apply(offer)
                    except _TargetChangedError:
                        logger.debug("the target changed meanwhile", extra={"target": str(self._target)})
                try:
                    return self._apply(offer)
                except _TargetChangedError as fault:
                    raise errors.target_changing(str(self._request.target)) from fault

    def _refuse_links(self) -> None:
        """A lock may be a stranger's, and so may the links around it."""
        if self._request.locked is not None:
            refuse_links(self._request.target, Path(self._request.locked.lock))

    def _say_waiting(self, holder: str) -> None:
        self._observer.say(f"waiting for {holder}, which is working on {self._request.target}")

    def _apply(self, offer: SourceContent) -> InstallReport:
        if self._target.exists() and not self._target.is_dir():
            raise errors.files_in_the_way(str(self._request.target), [self._target.name], is_installed=False)
        found = self._readable(record.read_header)
        current = self._list_target()
        if found is not None and self._is_current(found, offer, current):
            logger.debug("nothing changed since the last run", extra={"target": str(self._target)})
            return self._report_unchanged(found, offer)
        with offer.open() as kb:
            if not kb.files:
                raise errors.no_kb_at(without_credentials(offer.source.location), "the source has no files")
            self._refuse_other_release(offer, kb, found)
            compared = self._compare(offer, kb, current)
            self._refuse_unlocked(compared)
            if self._request.mode == "install" and compared.plan.kept:
                kept = [kept.path for kept in compared.plan.kept]
                raise errors.files_in_the_way(str(self._request.target), kept, is_installed=found is not None)
            self._check_writable(compared)
            new_shards, differing = self._bring_index(kb)
            if self._request.dry_run:
                return self._report(compared)
            self._carry_out(compared)
            taken = self._take_up_index(compared, differing)
            index = None if taken is None else dataclasses.replace(taken, new_shards=new_shards)
            return dataclasses.replace(self._report(compared), index=index)

    # The index: stored before the files change, made visible after they did. Killed in between, the next run goes on.

    def _bring_index(self, kb: KbFolder) -> tuple[int, frozenset[str]]:
        """Count the shards that are new, and name the documents that the index has other texts of."""
        if self._keeper is None or kb.index is None:
            return 0, frozenset()
        self._keeper.refuse(kb.index)
        if self._request.dry_run:
            return 0, frozenset()
        with _damage_is_told():
            differing = self._keeper.check(kb.index)
            return self._keeper.bring(kb.index), differing

    def _take_up_index(self, compared: _FileComparison, differing: frozenset[str]) -> InstalledIndex | None:
        """`differing`: documents that are left out, for a sync to make them of their files."""
        if self._keeper is None or compared.kb.index is None:
            return None
        kept = {reason: {each.path for each in compared.plan.kept if each.reason == reason} for reason in KEPT_REASONS}
        gone = kept["deleted"] | set(compared.plan.removed) | differing
        if differing:
            self._observer.say(
                f"the index is used without {len(differing):,} documents whose text is not that of the packaged file: "
                f"{min(differing)}. Run pair sync to index them"
            )
        edited = kept["edited"] | kept["yours"] | kept["in the way"]
        with _damage_is_told():
            return self._keeper.take_up(compared.kb.index, edited=frozenset(edited), gone=frozenset(gone))

    def _is_index_current(self, header: RecordHeader) -> bool:
        if self._keeper is None or not header.embedder:
            return True
        return bool(header.index_sha256) and self._keeper.is_current(header.index_sha256)

    def _refuse_other_release(self, offer: SourceContent, kb: KbFolder, header: RecordHeader | None) -> None:
        """The manifest, which a signature covers, has to say what the feed says: else an old package may stand in."""
        source, manifest = offer.source, kb.manifest
        shown = without_credentials(source.feed or source.location)
        if source.name is not None and (
            manifest is None or (manifest.name, manifest.version) != (source.name, source.version)
        ):
            said = f"{manifest.name} {manifest.version}" if manifest is not None else "nothing: it has no manifest"
            raise errors.release_differs(shown, f"{source.name} {source.version}", said)
        is_asked_for = self._request.force or self._request.locked is not None
        is_chosen_by_host = source.feed is not None or (self._request.mode == "update" and source.requires_download)
        if manifest is None or header is None or is_asked_for or not is_chosen_by_host:
            return
        if manifest.name == header.name and is_older(manifest.version, header.version):
            raise errors.version_older(shown, header.name, header.version, manifest.version)

    def _refuse_unlocked(self, compared: _FileComparison) -> None:
        locked = self._request.locked
        if locked is not None and (drifts := locked.drifts(_origin_of(compared.kb, compared.offered))):
            raise errors.lock_differs(locked.lock, drifts)

    # Observing: hashes, reading only what size and time do not settle; with --force, everything

    def _readable(self, read: Callable[[Path], Found]) -> Found | None:
        """A damaged record is an error, unless everything is to be put back anyway."""
        try:
            return read(self._target)
        except errors.DataError:
            if not self._request.force:
                raise
            return None

    def _list_target(self) -> file_listing.FileListing:
        if not self._target.is_dir():
            return file_listing.FileListing({}, ())
        return _without_record(file_listing.list_folder(self._target, leave_out=self._own_staging()))

    def _own_staging(self) -> frozenset[str]:
        tokens = (self._token, f"{self._token}-unpacked")
        return frozenset(str(atomic_swap.staging_path(self._target, token)) for token in tokens)

    def _is_current(self, header: RecordHeader, offer: SourceContent, current: file_listing.FileListing) -> bool:
        locked, origin = self._request.locked, Origin(header.archive_sha256, header.commit, header.content_sha256)
        return (
            not self._request.force
            and self._kb_id == header.kb_id
            and (locked is None or not locked.drifts(origin))
            and header.content_sha256 != ""
            and header.kept_files == 0
            and _stored(offer.source) == header.source
            and header.source_fingerprint == offer.fingerprint
            and header.target_fingerprint == current.fingerprint()
            and self._is_index_current(header)
        )

    def _compare(self, offer: SourceContent, kb: KbFolder, current: file_listing.FileListing) -> _FileComparison:
        found = self._readable(record.read_record)
        installed = found.files if found is not None else {}
        offered = self._offered_hashes(kb, installed, current)
        plan = plan_changes(
            {path: entry.sha256 for path, entry in installed.items()},
            offered,
            self._present_hashes(installed, offered, current),
            force=self._request.force,
            restore=self._request.mode == "install",
        )
        return _FileComparison(offer, kb, current, installed, offered, plan)

    def _offered_hashes(
        self, kb: KbFolder, installed: dict[str, InstalledFile], current: file_listing.FileListing
    ) -> dict[str, str | None]:
        """A file that is neither installed nor in the target is hashed when it is copied, unless a lock asks first."""
        hashes: dict[str, str | None] = {}
        for path, entry in kb.files.items():
            known = installed.get(path)
            if entry.sha256 is not None:
                hashes[path] = entry.sha256
            elif known and not self._request.force and entry.looks_like(known.size_bytes, known.source_mtime_ns):
                hashes[path] = known.sha256
            elif known or path in current.files or self._request.locked is not None:
                hashes[path] = files.hash_file(kb.folder / path)
            else:
                hashes[path] = None
        return hashes

    def _present_hashes(
        self, installed: dict[str, InstalledFile], offered: dict[str, str | None], current: file_listing.FileListing
    ) -> dict[str, str | None]:
        hashes: dict[str, str | None] = {}
        for path, seen in current.files.items():
            known = installed.get(path)
            is_regular = stat.S_ISREG(seen.st_mode)
            looks_installed = known and (seen.st_size, seen.st_mtime_ns) == (known.size_bytes, known.mtime_ns)
            if known and is_regular and looks_installed and not self._request.force:
                hashes[path] = known.sha256
            elif is_regular and (known or path in offered):
                hashes[path] = files.hash_file(self._target / path)
            else:
                hashes[path] = None
        return hashes

    def _check_writable(self, compared: _FileComparison) -> None:
        """pair installs writable files, so a read-only one was protected by somebody."""
        for path in (*compared.plan.changed, *compared.plan.removed):
            mode = compared.current.files[path].st_mode
            if stat.S_ISREG(mode) and not mode & stat.S_IWUSR:
                raise errors.storage_failed(str(self._request.target / path), "the file is read-only")

    # Acting: build the whole new state beside the old one, then let them trade places

    def _carry_out(self, compared: _FileComparison) -> None:
        if compared.plan.changes_nothing and compared.current.files:
            record_bytes = self._record_bytes(compared, compared.current, {})
            files.write_atomically(self._target / RECORD_NAME, record_bytes)
            return
        staged = atomic_swap.staging_for(self._target, self._token)
        try:
            _stage_kept(self._target, staged, compared)
            hashes = _stage_placed(staged, compared)
            record_bytes = self._record_bytes(compared, file_listing.list_folder(staged), hashes)
            files.write_atomically(staged / RECORD_NAME, record_bytes)
            if self._list_target().fingerprint() != compared.current.fingerprint():
                raise _TargetChangedError
            _keep_modes(self._target, staged, compared.current.folders)
            self._refuse_links()  # again: building the new state took time
            atomic_swap.put_in_place(staged, self._target)
        finally:
            files.remove_tree(staged.parent)

    def _record_bytes(
        self, compared: _FileComparison, listing: file_listing.FileListing, hashes: dict[str, str]
    ) -> bytes:
        """`listing` is the target as it will be; `hashes` are those of the files just placed."""
        plan, kb = compared.plan, compared.kb
        now_ns = int(self._clock.now().timestamp() * 1e9)
        installed = {
            kept.path: compared.installed[kept.path]
            for kept in plan.kept
            if kept.path in compared.installed and kept.path in kb.files
        }
        is_racy = False
        for path in (*plan.placed, *plan.unchanged):
            entry, seen = kb.files[path], listing.files[path]
            sha256 = hashes.get(path) or compared.offered[path]
            assert sha256 is not None  # noqa: S101 - what is in the target was hashed to be compared
            # A source written to a moment ago may be written to again within the same tick of the clock.
            racy = entry.mtime_ns > now_ns - _RACY_NANOSECONDS
            is_racy = is_racy or racy
            source_mtime_ns = 0 if racy else entry.mtime_ns
            installed[path] = InstalledFile(sha256, seen.st_size, seen.st_mtime_ns, source_mtime_ns)
        name, version = _label(compared.offer.source, kb)
        origin = _origin_of(kb, compared.offered | hashes)
        index = kb.manifest.index if kb.manifest is not None else None
        header = RecordHeader(
            source=_stored(compared.offer.source),
            name=name,
            version=version,
            installed_at=to_timestamp(self._clock.now()),
            verified=compared.offer.verified,
            file_count=len(installed),
            size_bytes=sum(entry.size_bytes for entry in installed.values()),
            source_fingerprint="" if is_racy else compared.offer.fingerprint,
            target_fingerprint=listing.fingerprint(),
            kept_files=len(plan.kept),
            kb_id=self._kb_id,
            archive_sha256=origin.archive_sha256,
            commit=origin.commit,
            content_sha256=origin.content_sha256,
            embedder=index.embedder if index is not None else "",
            manifest_version=index.manifest_version if index is not None else 0,
            index_sha256=kb.index.sha256 if kb.index is not None and self._keeper is not None else "",
            signed_by=compared.offer.signed_by,
        )
        return Record(header, installed).to_bytes()

    # Telling

    def _report(self, compared: _FileComparison) -> InstallReport:
        plan = compared.plan
        name, version = _label(compared.offer.source, compared.kb)
        return InstallReport(
            mode=self._request.mode,
            target=self._request.target,
            source=compared.offer.source,
            name=name,
            version=version,
            verified=compared.offer.verified,
            dry_run=self._request.dry_run,
            added=plan.added,
            changed=plan.changed,
            removed=plan.removed,
            kept=plan.kept,
            unchanged=len(plan.unchanged),
            skipped=compared.kb.skipped,
            signed_by=compared.offer.signed_by,
        )

    def _report_unchanged(self, header: RecordHeader, offer: SourceContent) -> InstallReport:
        return InstallReport(
            mode=self._request.mode,
            target=self._request.target,
            source=offer.source,
            name=header.name,
            version=header.version,
            verified=header.verified,
            dry_run=self._request.dry_run,
            unchanged=header.file_count,
            signed_by=offer.signed_by,
        )


class _TargetChangedError(Exception):
    """Somebody wrote to the target while its new state was being built."""


@contextlib.contextmanager
def _damage_is_told() -> Iterator[None]:
    """What the engine was thought to hold has to be fetched again."""
    try:
        yield
    except MissingIndexFileError as fault:
        raise DamagedCopyError(str(fault)) from fault


def _resolve_target(request: InstallRequest) -> Path:
    """A locked target is below the lock's folder by its name: a link, whenever it comes, does not count."""
    if request.locked is None:
        return files.resolve(request.target)
    lock = Path(request.locked.lock)
    return Path(os.path.realpath(lock.parent)) / relative_target(request.target, lock)


def _without_record(listing: file_listing.FileListing) -> file_listing.FileListing:
    listing.files.pop(RECORD_NAME, None)
    return listing


def _stored(source: KbSource) -> KbSource:
    feed = without_user(source.feed) if source.feed is not None else None
    return dataclasses.replace(source, location=without_user(source.location), feed=feed)


def _origin_of(kb: KbFolder, offered: Mapping[str, str | None]) -> Origin:
    if kb.manifest is not None:
        content_sha256 = kb.manifest.content_checksum
    else:
        content_sha256 = file_listing.content_checksum(
            {path: sha256 or files.hash_file(kb.folder / path) for path, sha256 in offered.items()}
        )
    return Origin(kb.archive_sha256, kb.commit, content_sha256)


def _label(source: KbSource, kb: KbFolder) -> tuple[str, str]:
    """Name and version: the package's own, else what can be told from where it came."""
    if kb.manifest is not None:
        return kb.manifest.name, kb.manifest.version
    location = without_credentials(source.location).partition("?")[0].partition("#")[0].rstrip("/")
    stem = location.rpartition("/")[2].removesuffix(".zip").removesuffix(".git")
    return name_from_folder(stem), source.version or ""


def _stage_kept(target: Path, staged: Path, compared: _FileComparison) -> None:
    """Files that stay are linked, not copied: a program that is writing to one goes on writing to it."""
    plan, current = compared.plan, compared.current
    leaving = {*plan.removed, *plan.changed}
    emptied = {folder for path in plan.removed for folder in folders_above(path)}
    placed = set(plan.placed)
    staying = {path.rpartition("/")[0] for path in current.files if path not in leaving}
    for folder in current.folders:
        becomes_file = folder in placed or any(above in placed for above in folders_above(folder))
        if folder in staying or (folder not in emptied and not becomes_file):
            (staged / folder).mkdir(parents=True, exist_ok=True)
    for path in current.files:
        if path not in leaving:
            _link(f"{target}/{path}", f"{staged}/{path}")


def _keep_modes(target: Path, staged: Path, folders: Sequence[str]) -> None:
    """Last of all, and the innermost folders first: a folder may be closed to its owner too."""
    for folder in ("", *folders)[::-1]:
        old, new = target / folder, staged / folder
        if old.is_dir() and new.is_dir():
            seen = old.stat()
            with contextlib.suppress(PermissionError):  # only root may give folders away
                os.chown(new, seen.st_uid, seen.st_gid)
            new.chmod(stat.S_IMODE(seen.st_mode))


def _link(source: str, destination: str) -> None:
    try:
        os.link(source, destination, follow_symlinks=False)
    except OSError:  # a file system without links, a protected file
        shutil.copy2(source, destination, follow_symlinks=False)


def _stage_placed(staged: Path, compared: _FileComparison) -> dict[str, str]:
    """Copies the new files in; returns their SHA-256 as they were copied."""
    kb = compared.kb
    hashes: dict[str, str] = {}
    made = {""}
    for path in compared.plan.placed:
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
