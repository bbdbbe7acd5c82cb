"""Verify and describe a KB: a package, or an installed one."""

import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from pair import errors, files
from pair.packages import archive, file_listing, package, record
from pair.packages.content import read_signature, refuse_differences, verify_sibling_checksum
from pair.packages.package import PackageManifest
from pair.packages.record import Record, RecordHeader
from pair.packages.rules import MANIFEST_NAME, MANIFEST_SUFFIX, RECORD_NAME, SourcesSettings, describe_source

if TYPE_CHECKING:
    from pair.packages.signing import TrustedKeys

Recorded = TypeVar("Recorded")


@dataclass(frozen=True)
class Verification:
    """What was checked and held. A check that fails is an error instead."""

    path: Path
    kind: str
    checks: tuple[str, ...]
    file_count: int
    extra: tuple[str, ...] = ()
    """Files in an installed KB that pair did not install; they are the user's."""

    def to_json(self) -> dict[str, Any]:
        return {
            "path": str(self.path),
            "kind": self.kind,
            "ok": True,
            "checks": list(self.checks),
            "files": self.file_count,
            "extra": list(self.extra),
        }


def verify(path: Path, settings: SourcesSettings, signatures: "TrustedKeys | None") -> Verification:
    """Raises E006, E009, E017 for a package, E013 for an installed KB that was changed, E012 for neither."""
    with files.storage_errors():
        if path.is_file():
            return _verify_package(path, settings, signatures)
        installed = _read_or_refuse(path, record.read_record)
        changes = find_changes(path, installed)
        if changes.missing or changes.modified:
            raise errors.installed_kb_damaged(str(path), changes.modified, changes.missing)
        checks = ("every installed file is as it was installed",)
        return Verification(path, "installed", checks, len(installed.files), tuple(changes.extra))


def _verify_package(path: Path, settings: SourcesSettings, signatures: "TrustedKeys | None") -> Verification:
    checks = []
    if verify_sibling_checksum(path):
        checks.append(f"SHA-256 of {path.name}.sha256")
    if signatures is not None:
        signer = signatures.signer_of(path, read_signature(path), str(path))
        if signer is not None:
            checks.append(f"signature by key {signer.key_id}: {signer.comment}")
    entries = archive.hash_entries(path, settings)
    checks.append("archive is whole and safe")
    manifest = _read_manifest(path, settings)
    if (beside := path.with_name(path.name + MANIFEST_SUFFIX)).exists():
        _verify_beside(beside, entries, signatures)
        checks.append(f"{beside.name} is the manifest of the package")
    content = {name: sha256 for name, sha256 in entries.items() if manifest is None or name != MANIFEST_NAME}
    if manifest is not None:
        refuse_differences(manifest, content, str(path))
        checks.append("every file is as manifest.json says")
    return Verification(path, "package", tuple(checks), len(content))


def _verify_beside(beside: Path, entries: Mapping[str, str], signatures: "TrustedKeys | None") -> None:
    """Verify the manifest beside a package, and its signature: partial downloads rely on them."""
    if MANIFEST_NAME not in entries or files.hash_file(beside) != entries[MANIFEST_NAME]:
        reason = "It is not the manifest of the package that it lies beside"
        raise errors.checksum_failed(f"File: {beside}", reason, is_local=True)
    signature = read_signature(beside)
    if signatures is not None and signature is not None:
        signatures.signer_of(beside, signature, str(beside))


class FileChanges(NamedTuple):
    """What is not as it was installed. The lists are sorted."""

    modified: list[str]
    missing: list[str]
    extra: list[str]


def find_changes(path: Path, installed: Record) -> FileChanges:
    """Compare every installed file with the record, by its content."""
    present = file_listing.list_folder(path).files
    present.pop(RECORD_NAME, None)
    modified = sorted(
        name
        for name, entry in installed.files.items()
        if name in present
        and not (stat.S_ISREG(present[name].st_mode) and files.hash_file(path / name) == entry.sha256)
    )
    missing = sorted(name for name in installed.files if name not in present)
    return FileChanges(modified, missing, sorted(present.keys() - installed.files.keys()))


@dataclass(frozen=True)
class Description:
    """What a KB says about itself: the manifest of a package, or the record of an installed KB."""

    path: Path
    manifest: PackageManifest | None = None
    archive_bytes: int = 0
    header: RecordHeader | None = None

    def to_json(self) -> dict[str, Any]:
        if self.header is not None:
            shown = describe_source(self.header.source)
            return {"path": str(self.path), "kind": "installed", **self.header.to_json(), "source": shown}
        value = {"path": str(self.path), "kind": "package", "archive_bytes": self.archive_bytes}
        if self.manifest is not None:
            value |= self.manifest.to_json() | {"size_bytes": self.manifest.size_bytes}
        return value


def describe(path: Path, settings: SourcesSettings) -> Description:
    """Read the manifest without unpacking. Raises E009, E012."""
    with files.storage_errors():
        if path.is_file():
            manifest = _read_manifest(path, settings)
            if manifest is None:
                raise errors.no_kb_at(str(path), "the archive has no package manifest")
            return Description(path, manifest=manifest, archive_bytes=path.stat().st_size)
        return Description(path, header=_read_or_refuse(path, record.read_header))


def _read_manifest(path: Path, settings: SourcesSettings) -> PackageManifest | None:
    content = archive.read_entry(path, MANIFEST_NAME, settings)
    return package.parse_manifest(content) if content is not None else None


def _read_or_refuse(path: Path, read: Callable[[Path], Recorded | None]) -> Recorded:
    if not path.exists():
        raise errors.no_kb_at(str(path), "the path does not exist")
    recorded = read(path)
    if recorded is None:
        raise errors.nothing_installed_at(str(path))
    return recorded
