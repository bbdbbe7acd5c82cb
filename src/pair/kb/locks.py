"""Locking what a project has installed, installing what is locked, and telling the two apart."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pair import errors, files
from pair.kb.installer import Installer
from pair.packages import lockfile
from pair.packages.install import InstallReport, InstallRequest
from pair.packages.lockfile import Lock, LockedKb
from pair.packages.rules import RECORD_NAME
from pair.values import KbSource


@dataclass(frozen=True)
class LockReport:
    path: Path
    kbs: tuple[LockedKb, ...]
    is_changed: bool = False

    @property
    def with_queries(self) -> tuple[str, ...]:
        """Ids of KBs whose source has a query, in which there may be a secret."""
        return tuple(kb.id for kb in self.kbs if "://" in kb.source and "?" in kb.source)

    def to_json(self) -> dict[str, Any]:
        kbs = [dataclasses.asdict(kb) for kb in self.kbs]
        return {"lock": str(self.path), "is_changed": self.is_changed, "drifts": [], "kbs": kbs}


@dataclass(frozen=True)
class LockedInstall:
    lock: Path
    reports: tuple[InstallReport, ...]

    def to_json(self) -> dict[str, Any]:
        return {"command": "install", "lock": str(self.lock), "kbs": [report.to_json() for report in self.reports]}


@dataclass(frozen=True)
class LockService:
    """One lock file and what it is about."""

    desk: Installer
    path: Path

    def write(self, targets: Sequence[Path]) -> LockReport:
        """Lock the named targets, and leave the rest of the lock as it is; without any, all of it and the default one.

        Raises E012, E013, E023.
        """
        known = lockfile.read_lock(self.path) if self.path.exists() else Lock(self.path)
        chosen = {lockfile.make_relative(target, self.path): target for target in targets or self._usual_targets(known)}
        found = [lockfile.read_installed(target, self.path) for target in chosen.values()]
        kept = [kb for kb in known.kbs if kb.target not in chosen]
        kbs = tuple(sorted([*kept, *found], key=lambda kb: kb.id))
        try:
            lockfile.refuse_twice(kbs)
        except ValueError as fault:
            raise errors.lock_unusable(str(self.path), f"{fault}") from fault
        return LockReport(self.path, kbs, is_changed=self._save(lockfile.to_bytes(kbs)))

    def _usual_targets(self, known: Lock) -> list[Path]:
        default = self.desk.default_target
        targets = [known.target_of(kb) for kb in known.kbs]
        is_installed = (default / RECORD_NAME).exists() and lockfile.is_below(default, self.path)
        if is_installed or not targets:
            targets.append(default)
        return targets

    def _save(self, content: bytes) -> bool:
        with files.storage_errors():
            if self.path.exists() and self.path.read_bytes() == content:
                return False
            path = files.resolve_parent(self.path)
            files.make_folder(path.parent)
            files.remove_half_written(path)
            files.write_atomically(path, content)
            return True

    def check(self) -> LockReport:
        """Raises E022 with every drift, E023."""
        found = lockfile.read_lock(self.path)
        if drifts := lockfile.find_drifts(found, self.desk.searched, also=self.desk.default_target):
            raise errors.lock_differs(str(self.path), drifts)
        return LockReport(self.path, found.kbs)

    def install(
        self, target: Path | None, *, force: bool, dry_run: bool, offline: bool, with_index: bool = True
    ) -> LockedInstall:
        """What is locked, or what is locked for one target, and nothing else. Raises E022, E023.

        All is fetched and checked before the first KB changes.
        """
        found = lockfile.read_lock(self.path)
        chosen = found.kbs if target is None else (self._kb_at(found, target),)
        wanted = [
            (
                InstallRequest(
                    "install",
                    found.target_of(kb),
                    force,
                    dry_run,
                    self.desk.checked_kb_id(kb.id),
                    found.locked(kb),
                    with_index,
                ),
                self.desk.locked_source(kb, self.path, offline=offline),
            )
            for kb in chosen
        ]
        if len(wanted) > 1:
            for request, source in wanted:
                self._apply(dataclasses.replace(request, dry_run=True), source, offline=offline)
        reports = [self._apply(request, source, offline=offline) for request, source in wanted]
        return LockedInstall(self.path, tuple(reports))

    def _kb_at(self, found: Lock, target: Path) -> LockedKb:
        kb = found.kb_at(target)
        if kb is None:
            known = ", ".join(each.target for each in found.kbs) or "none"
            raise errors.lock_differs(str(self.path), [f"{target}: not locked; locked are: {known}"])
        return kb

    def _apply(self, request: InstallRequest, source: KbSource, *, offline: bool) -> InstallReport:
        """What is cached of an address that nobody knows the bytes of may be older than what is locked."""
        try:
            return self.desk.apply(request, source, offline=offline)
        except errors.ConflictError:
            if not source.requires_download or source.sha256 is not None:
                raise
        return self.desk.apply(request, source, offline=offline, revalidate=True)
