"""KB packages: make, verify and describe a zip with `manifest.json`, the same bytes for the same input."""

import dataclasses
import datetime
import hashlib
import json
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from pair import errors, files
from pair.packages import archive, folders, record, rules
from pair.packages.record import RecordHeader
from pair.packages.rules import SourcesSettings

if TYPE_CHECKING:
    from pair.packages.signing import TrustedKeys

SCHEMA_VERSION = 1
_ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)
_DENSE_RATIO = 50
UNDATED = "1980-01-01T00:00:00Z"


@dataclass(frozen=True)
class Label:
    """How a package describes itself. None: take it from a manifest in the folder, or the default."""

    name: str | None = None
    version: str | None = None
    description: str | None = None
    author: str | None = None
    license: str | None = None
    tags: tuple[str, ...] | None = None


class PackagedFile(msgspec.Struct, frozen=True, rename={"size_bytes": "size"}):
    size_bytes: int
    sha256: str


class PackagedIndex(msgspec.Struct, frozen=True):
    """What a package says of its index: the shards of a KB, and the manifest that names them."""

    kb_id: str
    """Of the KB that it was taken from."""
    manifest_version: int
    embedder: str
    dimension: int
    documents: int
    chunks: int
    shards: int


@dataclass(frozen=True)
class IndexFile:
    size_bytes: int
    sha256: str
    chunks: Callable[[], Iterable[bytes]]


@dataclass(frozen=True)
class IndexToPackage:
    """An index, and its description."""

    described: PackagedIndex
    files: Mapping[str, IndexFile]
    """By the name in the index."""


class PackageManifest(msgspec.Struct, frozen=True):
    name: str
    version: str
    description: str = ""
    author: str = ""
    license: str = ""
    tags: tuple[str, ...] = ()
    created_at: str = UNDATED
    files: dict[str, PackagedFile] = {}
    """Of the index too: below INDEX_FOLDER."""
    index: PackagedIndex | None = None

    @property
    def is_dated(self) -> bool:
        return self.created_at != UNDATED

    @property
    def size_bytes(self) -> int:
        return sum(entry.size_bytes for entry in self.files.values())

    @property
    def texts(self) -> dict[str, PackagedFile]:
        """The files that are installed."""
        return {path: entry for path, entry in self.files.items() if not rules.is_of_index(path)}

    @property
    def content_checksum(self) -> str:
        return folders.content_checksum({path: entry.sha256 for path, entry in self.files.items()})

    def to_json(self) -> dict[str, Any]:
        label = msgspec.to_builtins(self)
        listed, index = label.pop("files"), label.pop("index")
        return {
            "schema_version": SCHEMA_VERSION,
            **label,
            "content_checksum": f"sha256:{self.content_checksum}",
            **({"index": index} if index is not None else {}),
            "files": dict(sorted(listed.items())),
        }

    def differences(self, present: dict[str, str]) -> dict[str, list[str]]:
        """Return the paths that are missing, modified or not listed, given the SHA-256 of each file present."""
        listed = self.files.keys()
        return {
            "missing": sorted(listed - present.keys()),
            "modified": sorted(path for path in listed & present.keys() if self.files[path].sha256 != present[path]),
            "unlisted": sorted(present.keys() - listed),
        }


def parse_manifest(content: bytes) -> PackageManifest | None:
    """Return None for what is not the manifest of a KB package, as one of another tool. Raises E006, E018."""
    try:
        value = json.loads(content)
        # Before anything else: one that is newer may look otherwise.
        if "content_checksum" in value and value.get("schema_version", SCHEMA_VERSION) != SCHEMA_VERSION:
            raise errors.package_of_another_schema(f"{value.get('name')!s:.80}", value["schema_version"])
        claimed = value["content_checksum"]
        hashes = {path: entry["sha256"] for path, entry in value["files"].items()}
        actual = f"sha256:{folders.content_checksum(hashes)}"
        is_of_package = claimed == actual or not all(isinstance(sha256, str) for sha256 in hashes.values())
        manifest = msgspec.convert(value, PackageManifest)
    except msgspec.ValidationError as fault:
        if not is_of_package:
            return None
        raise errors.checksum_failed("manifest.json", f"it is damaged: {fault}", is_local=True) from fault
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    if claimed != actual:
        reason = "its content checksum is not that of the files it lists"
        raise errors.checksum_failed("manifest.json", reason, is_local=True)
    return manifest


@dataclass(frozen=True)
class IndexSelection:
    """Which files of the index of a package are needed."""

    is_wanted: bool = True
    """False for the texts alone."""
    holds: Callable[[str], bool] = lambda path: False
    """Tells whether the engine has a file of it already, by its path in the package."""

    def leaves_out(self, path: str) -> bool:
        """Tell whether a file of the package is neither fetched nor unpacked."""
        return rules.is_of_index(path) and (not self.is_wanted or self.holds(path))


@dataclass(frozen=True)
class PackagedIndexFiles:
    """The index of a package, unpacked."""

    folder: Path
    content: bytes
    """Of its manifest."""
    names: frozenset[str]
    """Of the files in the folder; those that the engine has already may be missing."""
    hashes: Mapping[str, str]
    """SHA-256 of all of its files by name, as the package gives it."""
    package_name: str
    label: str
    is_fresh: bool
    """Unpacked and verified just now; files from the cache have to be verified again."""
    packaged: frozenset[str] = frozenset()
    """Paths of the files that were packaged with it, in the folder above."""

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    def path_of(self, name: str) -> Path | None:
        return self.folder / name if name in self.names else None


@dataclass(frozen=True)
class PackageReport:
    path: Path
    manifest: PackageManifest
    size_bytes: int
    sha256: str
    skipped: tuple[tuple[str, str], ...]
    signed_by: str | None = None
    """Id of the key that signed it."""

    def to_json(self) -> dict[str, Any]:
        manifest = self.manifest
        return {
            "path": str(self.path),
            "sha256_path": f"{self.path}.sha256",
            "name": manifest.name,
            "version": manifest.version,
            "files": len(manifest.texts),
            "index": msgspec.to_builtins(manifest.index),
            "size_bytes": self.size_bytes,
            "sha256": self.sha256,
            "skipped": [{"path": path, "reason": reason} for path, reason in self.skipped],
            "signed_by": self.signed_by,
            "signature_path": f"{self.path}{rules.SIGNATURE_SUFFIX}" if self.signed_by is not None else None,
        }


def make_package(
    folder: Path,
    output: Path | None,
    *,
    label: Label,
    dated: datetime.datetime | None,
    index_of: Callable[[str], IndexToPackage] | None = None,
) -> PackageReport:
    """Zip `folder`; without `output` into `<name>-<version>.zip` here. `dated` becomes `created_at`.

    Without a date the manifest carries a fixed one: the moment of packaging would make equal input unequal.
    `index_of`: makes the index of a KB of this name.
    """
    if not folder.is_dir():
        raise errors.source_path_missing(str(folder))
    with files.storage_errors():
        named = _complete_label(folder, label)
        name = f"{named.name}-{named.version}.zip"
        if output is None and (fault := rules.find_file_name_fault(name)) is not None:
            raise errors.cannot_package(str(folder), fault)
        path = output if output is not None else Path(name)
        chosen = _choose_files(folder, path)
        index = index_of(named.name) if index_of is not None else None
        hashes = folders.hash_files(folder, chosen.files)
        listed = {name: PackagedFile(seen.st_size, hashes[name]) for name, seen in chosen.files.items()}
        for name, file in index.files.items() if index is not None else ():
            listed[f"{rules.INDEX_FOLDER}/{name}"] = PackagedFile(file.size_bytes, file.sha256)
        manifest = msgspec.structs.replace(
            named,
            created_at=dated.strftime("%Y-%m-%dT%H:%M:%SZ") if dated else UNDATED,
            files=listed,
            index=index.described if index is not None else None,
        )
        return _write_package(_PackageContents(folder, manifest, index), path, chosen.skipped)


def _complete_label(folder: Path, label: Label) -> PackageManifest:
    """Return a manifest without files: flags first, then a package manifest in the folder, then defaults."""
    named = PackageManifest(name=rules.make_name(folder.resolve().name), version="1.0.0")
    if (path := folder / rules.MANIFEST_NAME).is_file():
        manifest = parse_manifest(path.read_bytes())
        if manifest is None:
            raise errors.cannot_package(str(folder), "its manifest.json is not a package manifest; the name is taken")
        named = manifest
    given = {name: value for name, value in dataclasses.asdict(label).items() if value is not None}
    named = msgspec.structs.replace(named, **given)
    if (fault := rules.find_label_fault(named.name, named.version)) is not None:
        raise errors.cannot_package(str(folder), fault)
    return msgspec.structs.replace(named, tags=tuple(sorted(set(named.tags))))


def _choose_files(folder: Path, output: Path) -> folders.FileListing:
    outputs = [output.with_name(output.name + suffix).resolve() for suffix in ("", ".sha256", *rules.SIDECAR_SUFFIXES)]
    real = folder.resolve()
    inside = [folder / path.relative_to(real) for path in outputs if path.is_relative_to(real)]
    chosen = folders.list_kb_files(folder, leave_out=[*inside, folder / rules.MANIFEST_NAME])
    if not chosen.files:
        raise errors.no_kb_at(str(folder), "the folder has no files")
    unnamed = [path for path, reason in chosen.skipped if reason == rules.NOT_UNICODE]
    for path in (*unnamed, *chosen.files):
        if (fault := rules.find_path_fault(path)) is not None:
            raise errors.cannot_package(str(folder), f"{fault}: {path!r}")
    if (fault := rules.find_tree_fault(chosen.files)) is not None:
        raise errors.cannot_package(str(folder), fault)
    return chosen


@dataclass(frozen=True)
class _PackageContents:
    folder: Path
    manifest: PackageManifest
    index: IndexToPackage | None

    @property
    def manifest_bytes(self) -> bytes:
        return json.dumps(self.manifest.to_json(), indent=2, ensure_ascii=False).encode() + b"\n"

    def chunks(self, name: str) -> Iterator[bytes]:
        if self.index is not None and rules.is_of_index(name):
            yield from self.index.files[name.removeprefix(f"{rules.INDEX_FOLDER}/")].chunks()
            return
        with (self.folder / name).open("rb") as stream:
            while chunk := stream.read(files.CHUNK_BYTES):
                yield chunk


def _write_package(contents: _PackageContents, named: Path, skipped: tuple[tuple[str, str], ...]) -> PackageReport:
    path = files.resolve_parent(named)
    files.make_folder(path.parent)
    checksum_path = path.with_name(path.name + ".sha256")
    manifest_path = path.with_name(path.name + rules.MANIFEST_SUFFIX)
    with files.replace_file(path) as stream:
        _write_zip(stream, contents)
        stream.seek(0)
        digest = hashlib.sha256()
        while chunk := stream.read(files.CHUNK_BYTES):
            digest.update(chunk)
        # Between the renames there is nothing beside it, rather than something wrong.
        for suffix in (".sha256", *rules.SIDECAR_SUFFIXES):
            files.unlink(path.with_name(path.name + suffix), missing_ok=True)
    if contents.index is not None:
        files.write_atomically(manifest_path, contents.manifest_bytes)
    files.write_atomically(checksum_path, f"{digest.hexdigest()}  {path.name}\n".encode())
    return PackageReport(named, contents.manifest, path.stat().st_size, digest.hexdigest(), skipped)


def _write_zip(stream: BinaryIO, contents: _PackageContents) -> None:
    """Deflate files; store those that compress so well that unpacking them would look like an attack."""
    _write_entries(stream, contents, stored=frozenset())
    size_bytes = stream.tell()
    with zipfile.ZipFile(stream) as package:
        entries = package.infolist()
    dense = frozenset(entry.filename for entry in entries if entry.file_size > _DENSE_RATIO * entry.compress_size)
    whole = (contents.manifest.size_bytes, size_bytes)
    if any(
        rules.is_suspicious_ratio(unpacked_bytes, packed_bytes, _DENSE_RATIO)
        for unpacked_bytes, packed_bytes in [whole, *((entry.file_size, entry.compress_size) for entry in entries)]
    ):
        stream.seek(0)
        stream.truncate()
        _write_entries(stream, contents, stored=dense)


def _write_entries(stream: BinaryIO, contents: _PackageContents, *, stored: frozenset[str]) -> None:
    """Write the entries. An index is stored: it hardly compresses, and ranges of its bytes can be fetched."""
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as package:
        content, listed = contents.manifest_bytes, contents.manifest.files
        package.writestr(_entry(rules.MANIFEST_NAME, len(content), zipfile.ZIP_DEFLATED), content)
        for name in sorted(listed):
            digest = hashlib.sha256()
            method = zipfile.ZIP_STORED if name in stored or rules.is_of_index(name) else zipfile.ZIP_DEFLATED
            with package.open(_entry(name, listed[name].size_bytes, method), "w") as entry:
                for chunk in contents.chunks(name):
                    digest.update(chunk)
                    entry.write(chunk)
            if digest.hexdigest() != listed[name].sha256:
                raise errors.cannot_package(str(contents.folder), f"{name!r} changed while it was packaged")


def _entry(name: str, size_bytes: int, method: int) -> zipfile.ZipInfo:
    """Fix time, mode and system, so that they do not depend on where the package is made."""
    entry = zipfile.ZipInfo(name, date_time=_ZIP_EPOCH)
    entry.file_size = size_bytes  # from 2 GiB on, the entry needs the large format
    entry.create_system = 3
    entry.external_attr = 0o100644 << 16
    entry.compress_type = method
    return entry


# ── checks of archives ─────────────────────────────────────────────────────────────────────────────


def find_published_sha256(path: Path, published: str | None) -> list[str]:
    """Return the published hashes of an archive: by a release index, or by a `.sha256` beside it. Raises E006."""
    beside = path.with_name(path.name + ".sha256")
    hashes = [published] if published is not None else []
    if beside.exists():
        checksum = rules.parse_checksum(beside.read_text(encoding="utf-8", errors="replace"), path.name)
        if checksum is None:
            reason = "It holds no SHA-256 for this archive"
            raise errors.checksum_failed(f"Checksum file: {beside}", reason, is_local=True)
        hashes.append(checksum)
    return hashes


def verify_sha256(path: Path, hashes: Sequence[str]) -> str:
    """Return the SHA-256 of the archive. Raises E006 when it differs from a published one."""
    actual = files.hash_file(path)
    for expected in hashes:
        if actual != expected:
            reasons = [f"Expected SHA-256: {expected}", f"Actual SHA-256:   {actual}"]
            raise errors.checksum_failed(f"File: {path}", reasons, is_local=True)
    return actual


def read_signature(path: Path) -> bytes | None:
    """Return the `.minisig` beside an archive, if there is one; of one that is too long, enough to see that."""
    try:
        with path.with_name(path.name + rules.SIGNATURE_SUFFIX).open("rb") as stream:
            return stream.read(rules.SIGNATURE_LIMIT_BYTES)
    except FileNotFoundError:
        return None


def refuse_differences(manifest: PackageManifest, present: dict[str, str], shown: str) -> None:
    differences = {kind: paths for kind, paths in manifest.differences(present).items() if paths}
    if differences:
        reasons = ["It differs from its manifest"]
        reasons += [f"{kind}: {', '.join(paths[:5])}" for kind, paths in differences.items()]
        raise errors.checksum_failed(f"Package: {shown}", reasons, is_local="://" not in shown)


# ── verifying and describing ───────────────────────────────────────────────────────────────────────


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
        installed = record.read_record(path)
        if installed is None:
            raise _nothing_at(path)
        changes = record.find_changes(path, installed)
        if changes.missing or changes.modified:
            raise errors.installed_kb_damaged(str(path), changes.modified, changes.missing)
        checks = ("every installed file is as it was installed",)
        return Verification(path, "installed", checks, len(installed.files), tuple(changes.extra))


def _verify_package(path: Path, settings: SourcesSettings, signatures: "TrustedKeys | None") -> Verification:
    checks = []
    if expected := find_published_sha256(path, None):
        verify_sha256(path, expected)
        checks.append(f"SHA-256 of {path.name}.sha256")
    if signatures is not None:
        signer = signatures.signer_of(path, read_signature(path), str(path))
        if signer is not None:
            checks.append(f"signature by key {signer.key_id}: {signer.comment}")
    entries = archive.hash_entries(path, settings)
    checks.append("archive is whole and safe")
    manifest = read_manifest(path, settings)
    if (beside := path.with_name(path.name + rules.MANIFEST_SUFFIX)).exists():
        _verify_beside(beside, entries, signatures)
        checks.append(f"{beside.name} is the manifest of the package")
    content = {name: sha256 for name, sha256 in entries.items() if manifest is None or name != rules.MANIFEST_NAME}
    if manifest is not None:
        refuse_differences(manifest, content, str(path))
        checks.append("every file is as manifest.json says")
    return Verification(path, "package", tuple(checks), len(content))


def _verify_beside(beside: Path, entries: Mapping[str, str], signatures: "TrustedKeys | None") -> None:
    """Verify the manifest beside a package, and its signature: partial downloads rely on them."""
    if files.hash_file(beside) != entries.get(rules.MANIFEST_NAME):
        reason = "It is not the manifest of the package that it lies beside"
        raise errors.checksum_failed(f"File: {beside}", reason, is_local=True)
    signature = read_signature(beside)
    if signatures is not None and signature is not None:
        signatures.signer_of(beside, signature, str(beside))


@dataclass(frozen=True)
class Description:
    """What a KB says about itself: the manifest of a package, or the record of an installed KB."""

    path: Path
    manifest: PackageManifest | None = None
    archive_bytes: int = 0
    header: RecordHeader | None = None

    def to_json(self) -> dict[str, Any]:
        if self.header is not None:
            shown = rules.describe_source(self.header.source)
            return {"path": str(self.path), "kind": "installed", **self.header.to_json(), "source": shown}
        value = {"path": str(self.path), "kind": "package", "archive_bytes": self.archive_bytes}
        if self.manifest is not None:
            value |= self.manifest.to_json() | {"size_bytes": self.manifest.size_bytes}
        return value


def describe(path: Path, settings: SourcesSettings) -> Description:
    """Read the manifest without unpacking. Raises E009, E012."""
    with files.storage_errors():
        if path.is_file():
            manifest = read_manifest(path, settings)
            if manifest is None:
                raise errors.no_kb_at(str(path), "the archive has no package manifest")
            return Description(path, manifest=manifest, archive_bytes=path.stat().st_size)
        header = record.read_header(path)
        if header is None:
            raise _nothing_at(path)
        return Description(path, header=header)


def read_manifest(path: Path, settings: SourcesSettings, *, shown: str = "") -> PackageManifest | None:
    """Return the manifest in an archive, if there is one. `shown`: see `archive.unpack`."""
    content = archive.read_entry(path, rules.MANIFEST_NAME, settings, shown=shown)
    return parse_manifest(content) if content is not None else None


def _nothing_at(path: Path) -> errors.PairError:
    if path.exists():
        return errors.nothing_installed_at(str(path))
    return errors.no_kb_at(str(path), "the path does not exist")
