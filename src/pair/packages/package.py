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
from pair.packages import archive, folders, okf, record, rules
from pair.packages.record import RecordHeader
from pair.packages.rules import SourcesSettings
from pair.values import convert_json

if TYPE_CHECKING:
    from pair.packages.signing import TrustedKeys

SCHEMA_VERSION = 1
_ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)
_DENSE_RATIO = 50
UNDATED = "1980-01-01T00:00:00Z"


@dataclass(frozen=True)
class Label:
    """The description of a package. None means the value of a manifest in the folder, else the default."""

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
    """The description of an index in a package: the shards of a KB, and the manifest that names them."""

    kb_id: str
    manifest_version: int
    embedder: str
    dimension: int
    documents: int
    chunks: int
    shards: int


@dataclass(frozen=True)
class IndexFile:
    """A file to package that is not in the folder: of an index, or a list of the files."""

    size_bytes: int
    sha256: str
    chunks: Callable[[], Iterable[bytes]]


class PackageManifest(msgspec.Struct, frozen=True):
    name: str
    version: str
    description: str = ""
    author: str = ""
    license: str = ""
    tags: tuple[str, ...] = ()
    created_at: str = UNDATED
    files: dict[str, PackagedFile] = {}
    """All files by path; files of the index are below INDEX_FOLDER."""
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
    """Return the manifest of a KB package; None for the manifest.json of another tool. Raises E006, E018."""
    try:
        value = json.loads(content)
        # Checked first: a newer schema may have other fields.
        if "content_checksum" in value and value.get("schema_version", SCHEMA_VERSION) != SCHEMA_VERSION:
            raise errors.package_of_another_schema(f"{value.get('name')!s:.80}", value["schema_version"])
        claimed = value["content_checksum"]
        hashes = {path: entry["sha256"] for path, entry in value["files"].items()}
        actual = f"sha256:{folders.content_checksum(hashes)}"
        is_of_package = claimed == actual or not all(isinstance(sha256, str) for sha256 in hashes.values())
        manifest = convert_json(value, PackageManifest)
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
    """The files of a packaged index that are needed."""

    is_wanted: bool = True
    """Whether to install the index; False to install the files only."""
    holds: Callable[[str], bool] = lambda path: False
    """A function that tells whether the engine already has a file of the index, by its path in the package."""

    def leaves_out(self, path: str) -> bool:
        """Return whether a file of the package is neither fetched nor unpacked."""
        return rules.is_of_index(path) and (not self.is_wanted or self.holds(path))


@dataclass(frozen=True)
class PackagedIndexFiles:
    """The unpacked index of a package."""

    folder: Path
    content: bytes
    """The bytes of its manifest."""
    names: frozenset[str]
    """Names of the files in the folder; those that the engine already has may be missing."""
    hashes: Mapping[str, str]
    """The listed SHA-256 of every file by name."""
    package_name: str
    label: str
    is_fresh: bool
    """Whether the files were just unpacked and verified; files from the cache must be verified again."""
    packaged: frozenset[str] = frozenset()
    """Paths of the other files of the package, in the folder above."""

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
    index_of: Callable[[str], tuple[PackagedIndex, Mapping[str, IndexFile]]] | None = None,
) -> PackageReport:
    """Zip `folder` into `output`, else into `<name>-<version>.zip` in the current folder.

    `dated` becomes `created_at`; without it the manifest has a fixed date, so that equal input gives equal bytes.
    `index_of`: returns the index of the KB of this name, and its files by path in the package.
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
        index, index_files = index_of(named.name) if index_of is not None else (None, {})
        index_files = {**index_files, **_list_concepts(folder, chosen)}
        hashes = folders.hash_files(folder, chosen.files)
        listed = {name: PackagedFile(seen.st_size, hashes[name]) for name, seen in chosen.files.items()}
        listed |= {name: PackagedFile(file.size_bytes, file.sha256) for name, file in index_files.items()}
        created_at = dated.strftime("%Y-%m-%dT%H:%M:%SZ") if dated else UNDATED
        manifest = msgspec.structs.replace(named, created_at=created_at, files=listed, index=index)
        contents = _PackageContents(folder, manifest, index_files)
        size_bytes, sha256 = _write_package(contents, files.resolve_parent(path))
        return PackageReport(path, manifest, size_bytes, sha256, chosen.skipped)


def _complete_label(folder: Path, label: Label) -> PackageManifest:
    """Return a manifest without files: options first, then a package manifest in the folder, then defaults."""
    named = PackageManifest(name=rules.make_name(folder.resolve().name), version="1.0.0")
    if (path := folder / rules.MANIFEST_NAME).is_file():
        manifest = parse_manifest(path.read_bytes())
        if manifest is None:
            raise errors.cannot_package(
                str(folder), "its manifest.json is not a package manifest; this name is reserved"
            )
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


def _list_concepts(folder: Path, chosen: folders.FileListing) -> dict[str, IndexFile]:
    """Return the `index.md` of a bundle of the Open Knowledge Format that has none."""
    if okf.INDEX_NAME in chosen.files:
        return {}
    bundle = okf.read_bundle(chosen.files, lambda path: (folder / path).read_bytes())
    if bundle.faults or not bundle.concepts:
        return {}
    content = okf.format_index(bundle.concepts).encode()
    return {okf.INDEX_NAME: IndexFile(len(content), hashlib.sha256(content).hexdigest(), lambda: [content])}


@dataclass(frozen=True)
class _PackageContents:
    folder: Path
    manifest: PackageManifest
    index_files: Mapping[str, IndexFile]
    """Files that are not in the folder."""

    @property
    def manifest_bytes(self) -> bytes:
        return json.dumps(self.manifest.to_json(), indent=2, ensure_ascii=False).encode() + b"\n"

    def chunks(self, name: str) -> Iterator[bytes]:
        if name in self.index_files:
            yield from self.index_files[name].chunks()
            return
        with (self.folder / name).open("rb") as stream:
            while chunk := stream.read(files.CHUNK_BYTES):
                yield chunk


def _write_package(contents: _PackageContents, path: Path) -> tuple[int, str]:
    """Write the archive and the files beside it. Return its size and SHA-256."""
    files.make_folder(path.parent)
    with files.replace_file(path) as stream:
        _write_zip(stream, contents)
        stream.seek(0)
        sha256 = files.hash_open_file(stream.fileno())
        # Between the renames, sidecar files are missing rather than wrong.
        for suffix in (".sha256", *rules.SIDECAR_SUFFIXES):
            files.unlink(path.with_name(path.name + suffix), missing_ok=True)
    if contents.manifest.index is not None:
        files.write_atomically(path.with_name(path.name + rules.MANIFEST_SUFFIX), contents.manifest_bytes)
    files.write_atomically(path.with_name(path.name + ".sha256"), f"{sha256}  {path.name}\n".encode())
    return path.stat().st_size, sha256


def _write_zip(stream: BinaryIO, contents: _PackageContents) -> None:
    """Deflate files. Store those uncompressed whose compression ratio would exceed the limit for unpacking."""
    _write_entries(stream, contents, stored=frozenset())
    whole = (contents.manifest.size_bytes, stream.tell())
    with zipfile.ZipFile(stream) as package:
        sizes = {entry.filename: (entry.file_size, entry.compress_size) for entry in package.infolist()}
    if any(rules.is_suspicious_ratio(unpacked, packed, _DENSE_RATIO) for unpacked, packed in [whole, *sizes.values()]):
        dense = frozenset(name for name, (unpacked, packed) in sizes.items() if unpacked > _DENSE_RATIO * packed)
        stream.seek(0)
        stream.truncate()
        _write_entries(stream, contents, stored=dense)


def _write_entries(stream: BinaryIO, contents: _PackageContents, *, stored: frozenset[str]) -> None:
    """Write the entries. An index is stored: it hardly compresses, and clients fetch ranges of it."""
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
    """Return an entry with a fixed time, mode and system: they must not depend on the machine."""
    entry = zipfile.ZipInfo(name, date_time=_ZIP_EPOCH)
    entry.file_size = size_bytes  # The size decides whether the entry needs the format for 2 GiB and more.
    entry.create_system = 3
    entry.external_attr = 0o100644 << 16
    entry.compress_type = method
    return entry


# ── checks of archives ─────────────────────────────────────────────────────────────────────────────


def find_published_sha256(path: Path, published: str | None) -> list[str]:
    """Return the published hashes of an archive, of a release index and of a `.sha256` beside it. Raises E006."""
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
    """Return the SHA-256 of the archive. Raises E006 if it differs from a published one."""
    actual = files.hash_file(path)
    for expected in hashes:
        if actual != expected:
            reasons = [f"Expected SHA-256: {expected}", f"Actual SHA-256:   {actual}"]
            raise errors.checksum_failed(f"File: {path}", reasons, is_local=True)
    return actual


def read_signature(path: Path) -> bytes | None:
    """Return the `.minisig` beside an archive, if there is one; a longer one is cut at the limit."""
    try:
        with path.with_name(path.name + rules.SIGNATURE_SUFFIX).open("rb") as stream:
            return stream.read(rules.SIGNATURE_LIMIT_BYTES)
    except FileNotFoundError:
        return None


def refuse_differences(manifest: PackageManifest, present: dict[str, str], shown: str) -> None:
    """Raise E006 if the files differ from the manifest."""
    differences = {kind: paths for kind, paths in manifest.differences(present).items() if paths}
    if differences:
        reasons = ["It differs from its manifest"]
        reasons += [f"{kind}: {', '.join(paths[:5])}" for kind, paths in differences.items()]
        raise errors.checksum_failed(f"Package: {shown}", reasons, is_local="://" not in shown)


# ── verifying and describing ───────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Verification:
    """The checks that passed. A check that fails raises an error."""

    path: Path
    kind: str
    checks: tuple[str, ...]
    file_count: int
    extra: tuple[str, ...] = ()
    """Files of the user in an installed KB."""

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
    """Verify a package (E006, E009, E017) or an installed KB (E013 if it was changed). Raises E012 for others."""
    with files.storage_errors():
        if path.is_file():
            return _verify_package(path, settings, signatures)
        installed = record.read_record(path)
        if installed is None:
            raise _nothing_at(path)
        changes = record.find_changes(path, installed)
        if changes.missing or changes.modified:
            raise errors.installed_kb_damaged(str(path), changes.modified, changes.missing)
        checks = ("every installed file is unchanged",)
        return Verification(path, "installed", checks, len(installed.files), tuple(changes.extra))


def verify_bundle(path: Path, settings: SourcesSettings) -> Verification:
    """Verify a package or any folder as a bundle of the Open Knowledge Format. Raises E029, E009, E012."""
    with files.storage_errors():
        if path.is_dir():
            names: Iterable[str] = folders.list_kb_files(path).files
            bundle = okf.read_bundle(names, lambda name: (path / name).read_bytes())
        elif path.is_file():
            names = archive.hash_entries(path, settings)
            bundle = okf.read_bundle(names, lambda name: archive.read_entry(path, name, settings) or b"")
        else:
            raise _nothing_at(path)
    if bundle.faults or not bundle.concepts:
        raise errors.not_conformant(str(path), bundle.faults or ["It has no Markdown files"])
    checks = ("conformant bundle of the Open Knowledge Format 0.2",)
    return Verification(path, "bundle", checks, len(bundle.concepts))


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
    checks.append("archive is complete and safe")
    manifest = read_manifest(path, settings)
    if (beside := path.with_name(path.name + rules.MANIFEST_SUFFIX)).exists():
        # Partial downloads rely on this manifest and its signature.
        if files.hash_file(beside) != entries.get(rules.MANIFEST_NAME):
            reason = "It is not the manifest of the package beside it"
            raise errors.checksum_failed(f"File: {beside}", reason, is_local=True)
        signature = read_signature(beside)
        if signatures is not None and signature is not None:
            signatures.signer_of(beside, signature, str(beside))
        checks.append(f"{beside.name} is the manifest of the package")
    content = {name: sha256 for name, sha256 in entries.items() if manifest is None or name != rules.MANIFEST_NAME}
    if manifest is not None:
        refuse_differences(manifest, content, str(path))
        checks.append("every file matches manifest.json")
    return Verification(path, "package", tuple(checks), len(content))


@dataclass(frozen=True)
class Description:
    """The manifest of a package, or the record of an installed KB."""

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
    """Describe a package, without unpacking it, or an installed KB. Raises E009, E012."""
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
