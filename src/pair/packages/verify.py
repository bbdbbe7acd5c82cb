"""Check and describe a KB: a package, or an installed one."""

import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pair import errors, files
from pair.packages import archive, file_listing, package, record
from pair.packages.content import matches_sibling_checksum, refuse_differences, sibling_signature
from pair.packages.contract import Signatures
from pair.packages.package import PackageManifest
from pair.packages.record import Record, RecordHeader
from pair.packages.rules import MANIFEST_NAME, MANIFEST_SUFFIX, RECORD_NAME, SourcesSettings, shown_source

Found = TypeVar("Found")


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


def verify(path: Path, policy: SourcesSettings, signatures: Signatures | None) -> Verification:
    """Raises E006, E009, E017 for a package, E013 for an installed KB that was changed, E012 for neither."""
    with files.storage_errors():
        if path.is_file():
            return _verify_package(path, policy, signatures)
        return _verify_installed(path, _read_or_refuse(path, record.read_record))


def _verify_package(path: Path, policy: SourcesSettings, signatures: Signatures | None) -> Verification:
    checks = []
    if matches_sibling_checksum(path):
        checks.append(f"SHA-256 of {path.name}.sha256")
    if signatures is not None:
        signer = signatures.signer_of(path, sibling_signature(path), str(path))
        if signer is not None:
            checks.append(f"signature by key {signer.key_id}: {signer.comment}")
    found = archive.hash_entries(path, policy)
    checks.append("archive is whole and safe")
    manifest = _manifest_of(path, policy)
    if (beside := path.with_name(path.name + MANIFEST_SUFFIX)).exists():
        _verify_beside(beside, found, signatures)
        checks.append(f"{beside.name} is the manifest of the package")
    content = {name: entry.sha256 for name, entry in found.items() if manifest is None or name != MANIFEST_NAME}
    if manifest is not None:
        refuse_differences(manifest, content, str(path))
        checks.append("every file is as manifest.json says")
    return Verification(path, "package", tuple(checks), len(content))


def _verify_beside(beside: Path, found: Mapping[str, archive.UnpackedFile], signatures: Signatures | None) -> None:
    """The manifest beside a package, and the signature of it: updates by parts rely on them."""
    if MANIFEST_NAME not in found or files.hash_file(beside) != found[MANIFEST_NAME].sha256:
        reason = "It is not the manifest of the package that it lies beside"
        raise errors.checksum_failed(f"File: {beside}", reason, is_local=True)
    signature = sibling_signature(beside)
    if signatures is not None and signature is not None:
        signatures.signer_of(beside, signature, str(beside))


def _verify_installed(path: Path, installed: Record) -> Verification:
    found = changes_in(path, installed)
    if found.missing or found.modified:
        raise errors.installed_kb_damaged(str(path), found.modified, found.missing)
    return Verification(
        path, "installed", ("every installed file is as it was installed",), len(installed.files), tuple(found.extra)
    )


class FileChanges(NamedTuple):
    """What is not as it was installed. The lists are sorted."""

    modified: list[str]
    missing: list[str]
    extra: list[str]


def changes_in(path: Path, installed: Record) -> FileChanges:
    """Reads every installed file."""
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
            shown = shown_source(self.header.source)
            return {"path": str(self.path), "kind": "installed", **self.header.to_json(), "source": shown}
        value: dict[str, Any] = {
            "path": str(self.path),
            "kind": "package",
            "archive_bytes": self.archive_bytes,
        }
        if self.manifest is not None:
            value |= self.manifest.to_json() | {"size_bytes": self.manifest.size_bytes}
        return value


def describe(path: Path, policy: SourcesSettings) -> Description:
    """Reads the manifest without unpacking. Raises E009, E012."""
    with files.storage_errors():
        if path.is_file():
            manifest = _manifest_of(path, policy)
            if manifest is None:
                raise errors.no_kb_at(str(path), "the archive has no package manifest")
            return Description(path, manifest=manifest, archive_bytes=path.stat().st_size)
        return Description(path, header=_read_or_refuse(path, record.read_header))


def _manifest_of(path: Path, policy: SourcesSettings) -> PackageManifest | None:
    content = archive.read_entry(path, MANIFEST_NAME, policy)
    return package.parse_manifest(content) if content is not None else None


def _read_or_refuse(path: Path, read: Callable[[Path], Found | None]) -> Found:
    if not path.exists():
        raise errors.no_kb_at(str(path), "the path does not exist")
    found = read(path)
    if found is None:
        raise errors.nothing_installed_at(str(path))
    return found
