"""Make a KB package: a zip with `manifest.json`, the same bytes for the same input, and its `.sha256`."""

import dataclasses
import datetime
import hashlib
import json
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from pair import errors, files
from pair.packages import file_listing, rules

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
        return file_listing.content_checksum({path: entry.sha256 for path, entry in self.files.items()})

    def to_json(self) -> dict[str, Any]:
        return {
            "schema_version": SCHEMA_VERSION,
            "name": self.name,
            "version": self.version,
            "description": self.description,
            "author": self.author,
            "license": self.license,
            "tags": list(self.tags),
            "created_at": self.created_at,
            "content_checksum": f"sha256:{self.content_checksum}",
            **({"index": msgspec.to_builtins(self.index)} if self.index is not None else {}),
            "files": msgspec.to_builtins(dict(sorted(self.files.items()))),
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
        actual = f"sha256:{file_listing.content_checksum(hashes)}"
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
        hashes = file_listing.hash_files(folder, chosen.listing.files)
        listed = {name: PackagedFile(seen.st_size, hashes[name]) for name, seen in chosen.listing.files.items()}
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
    default = PackageManifest(name=rules.make_name(folder.resolve().name), version="1.0.0")
    given = {name: value for name, value in dataclasses.asdict(label).items() if value is not None}
    named = msgspec.structs.replace(_read_manifest(folder) or default, **given)
    if (fault := rules.find_label_fault(named.name, named.version)) is not None:
        raise errors.cannot_package(str(folder), fault)
    return msgspec.structs.replace(named, tags=tuple(sorted(set(named.tags))))


def _read_manifest(folder: Path) -> PackageManifest | None:
    path = folder / rules.MANIFEST_NAME
    if not path.is_file():
        return None
    manifest = parse_manifest(path.read_bytes())
    if manifest is None:
        raise errors.cannot_package(str(folder), "its manifest.json is not a package manifest; the name is taken")
    return manifest


def _choose_files(folder: Path, output: Path) -> file_listing.KbFiles:
    outputs = [output.with_name(output.name + suffix).resolve() for suffix in ("", ".sha256", *rules.SIDECAR_SUFFIXES)]
    real = folder.resolve()
    inside = [folder / path.relative_to(real) for path in outputs if path.is_relative_to(real)]
    chosen = file_listing.list_kb_files(folder, leave_out=[*inside, folder / rules.MANIFEST_NAME])
    if not chosen.listing.files:
        raise errors.no_kb_at(str(folder), "the folder has no files")
    for path in chosen.listing.files:
        if (fault := rules.find_path_fault(path)) is not None:
            raise errors.cannot_package(str(folder), f"{fault}: {path!r}")
    if (fault := rules.find_tree_fault(chosen.listing.files)) is not None:
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
