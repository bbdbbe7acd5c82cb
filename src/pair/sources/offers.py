"""A KbSource as files ready to be installed: a folder as it is, an archive unpacked, a download from the cache."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from pair import errors, files
from pair.sources import archive, git, package, replacement, tree
from pair.sources.cache import Cache, CacheEntry, Facts
from pair.sources.contract import Fetcher, Known, Validators
from pair.sources.package import PackageManifest
from pair.sources.rules import (
    MANIFEST_NAME,
    SourcesPolicy,
    is_named_by_content,
    parse_checksum,
    without_credentials,
)
from pair.values import KbSource, SourceType


@dataclass(frozen=True, slots=True)
class OfferedFile:
    """`sha256` is None until somebody reads the file; `mtime_ns` is 0 where time means nothing."""

    sha256: str | None
    size_bytes: int
    mtime_ns: int

    def looks_like(self, size_bytes: int, mtime_ns: int) -> bool:
        return (self.size_bytes, self.mtime_ns) == (size_bytes, mtime_ns)


@dataclass(frozen=True)
class KbFolder:
    folder: Path
    files: dict[str, OfferedFile]
    manifest: PackageManifest | None
    is_temporary: bool
    """Its files may be taken instead of copied."""
    skipped: tuple[tuple[str, str], ...] = ()
    archive_sha256: str = ""
    commit: str = ""
    """What it was taken from: an archive, or a git repository at this commit."""


class DamagedCopyError(Exception):
    """A file in the cache is not what was fetched; the message says which. The entry is dropped: fetch it again."""


@dataclass(frozen=True)
class Offer:
    """`fingerprint` tells cheaply whether the KB is the same as last time; `open` gets the files."""

    source: KbSource
    fingerprint: str
    verified: bool | None
    """Whether a published SHA-256 matched; None where there is nothing to verify."""
    open: Callable[[], AbstractContextManager[KbFolder]]


class Offers:
    """Makes offers of sources. Without a fetcher nothing is downloaded."""

    def __init__(self, cache: Cache, fetcher: Fetcher | None, policy: SourcesPolicy, token: str) -> None:
        self._cache = cache
        self._fetcher = fetcher
        self._policy = policy
        self._token = token

    @contextlib.contextmanager
    def offer(
        self, source: KbSource, target: Path, *, offline: bool, revalidate: bool, scratch: Path
    ) -> Iterator[Offer]:
        """`revalidate` asks the server whether a cached KB is still current. Raises E007 rather than download.

        `scratch` is a path beside which an archive may be unpacked.
        """
        if source.requires_download:
            if offline or self._fetcher is None:
                raise errors.download_while_offline()  # source-11
            with self._downloaded(source, revalidate=revalidate) as offered:
                yield offered
        elif Path(source.location).is_dir():
            yield _folder_offer(source, target)
        elif Path(source.location).is_file():
            yield self._archive_offer(source, scratch)
        elif Path(source.location).exists():
            raise errors.source_format_unknown(source.location, suggestion="It is neither a folder nor a file.")
        else:
            raise errors.source_path_missing(source.location)

    # A download

    @contextlib.contextmanager
    def _downloaded(self, source: KbSource, *, revalidate: bool) -> Iterator[Offer]:
        fill = self._fill_from_git if source.type == "git" else self._fill_from_archive

        def fill_from_source(earlier: CacheEntry | None, folder: Path) -> Facts | None:
            return fill(source, earlier, folder)

        def is_usable(entry: CacheEntry) -> bool:
            is_verified = entry.facts.verified or source.type == "git" or not self._policy.require_checksum
            return is_verified and source.sha256 in {None, entry.facts.identity}

        # Bytes that are named by their hash cannot be out of date.
        asks = revalidate and not is_named_by_content(source)
        with self._cache.entry_for(source, fill_from_source, is_usable, revalidate=asks) as entry:
            verified = None if source.type == "git" else entry.facts.verified
            try:
                yield Offer(source, entry.facts.identity, verified, lambda: _entry_folder(entry, source.type))
            except DamagedCopyError:
                self._cache.drop(entry)
                raise

    def _fill_from_archive(self, source: KbSource, earlier: CacheEntry | None, folder: Path) -> Facts | None:
        assert self._fetcher is not None  # noqa: S101 - `offer` asks first
        part = self._cache.part_path(source)
        known = None
        if earlier is not None:
            validators = Validators(earlier.facts.etag, earlier.facts.last_modified)
            known = Known(earlier.facts.identity, validators)
        download = self._fetcher.fetch(source.location, part, sha256=source.sha256, known=known)
        if download is None:
            return None
        try:
            unpacked = self._unpacked(download.path, folder, without_credentials(source.location))
        except errors.DownloadError:
            download.discard()
            raise
        download.discard()
        hashes = {path: entry.sha256 for path, entry in unpacked.items()}
        validators = download.validators
        return Facts(download.sha256, download.verified, validators.etag, validators.last_modified, hashes)

    def _fill_from_git(self, source: KbSource, earlier: CacheEntry | None, folder: Path) -> Facts | None:
        if earlier is not None and git.remote_commit(source.location) == earlier.facts.identity:
            return None
        commit = git.check_out(source.location, folder)
        hashes = tree.hash_files(folder, tree.list_kb_files(folder).listing.files)
        return Facts(commit, verified=False, etag=None, last_modified=None, hashes=hashes)

    # A local archive

    def _archive_offer(self, source: KbSource, scratch: Path) -> Offer:
        path = Path(source.location)
        with files.storage_errors():
            seen = path.stat()
            verified_sha256 = _verified_sha256(path, source.sha256)

        @contextlib.contextmanager
        def unpacked() -> Iterator[KbFolder]:
            folder = replacement.staging_path(scratch, f"{self._token}-unpacked")
            try:
                sha256 = verified_sha256 or files.sha256_of(path)
                written = self._unpacked(path, folder, path.name)
                kb = _kb_folder(folder, {name: entry.sha256 for name, entry in written.items()}, is_temporary=True)
                yield dataclasses.replace(kb, archive_sha256=sha256)
            finally:
                files.remove_tree(folder)

        return Offer(source, f"zip {seen.st_size} {seen.st_mtime_ns}", verified_sha256 is not None, unpacked)

    def _unpacked(self, path: Path, folder: Path, shown: str) -> dict[str, archive.UnpackedFile]:
        """Unpacked files, agreeing with the package's manifest if it has one."""
        try:
            unpacked = archive.unpack(path, folder, self._policy, shown=shown)
            _check_against_manifest(folder, {name: entry.sha256 for name, entry in unpacked.items()}, shown)
        except BaseException:
            files.remove_tree(folder)
            raise
        return unpacked


def matches_sibling_checksum(path: Path) -> bool:
    """False when no `.sha256` lies beside the archive; raises E006 when it says otherwise."""
    return _verified_sha256(path, None) is not None


def _verified_sha256(path: Path, published: str | None) -> str | None:
    """That of the archive, read once, if somebody published it: in a feed, or in a `.sha256` beside it. Raises E006."""
    beside = path.with_name(path.name + ".sha256")
    wanted = [published] if published is not None else []
    if beside.exists():
        expected = parse_checksum(beside.read_text(encoding="utf-8", errors="replace"), path.name)
        if expected is None:
            raise errors.checksum_failed(f"Checksum file: {beside}", "It holds no SHA-256 for this archive")
        wanted.append(expected)
    if not wanted:
        return None
    actual = files.sha256_of(path)
    for expected in wanted:
        if actual != expected:
            raise errors.checksum_failed(f"File: {path}", f"Expected SHA-256: {expected}\nActual SHA-256:   {actual}")
    return actual


def _check_against_manifest(folder: Path, hashes: dict[str, str], shown: str) -> None:
    if MANIFEST_NAME not in hashes:
        return
    manifest = package.parse_manifest((folder / MANIFEST_NAME).read_bytes())
    if manifest is None:
        return
    content = {path: sha256 for path, sha256 in hashes.items() if path != MANIFEST_NAME}
    refuse_differences(manifest, content, shown)


def refuse_differences(manifest: PackageManifest, found: dict[str, str], shown: str) -> None:
    differences = {kind: paths for kind, paths in manifest.differences(found).items() if paths}
    if differences:
        reasons = [f"{kind}: {', '.join(paths[:5])}" for kind, paths in differences.items()]
        raise errors.checksum_failed(f"Package: {shown}", "It differs from its manifest\n" + "\n".join(reasons))


def _entry_folder(entry: CacheEntry, kind: SourceType) -> AbstractContextManager[KbFolder]:
    hashes, identity = entry.facts.hashes, entry.facts.identity
    archive_sha256, commit = ("", identity) if kind == "git" else (identity, "")
    try:
        if MANIFEST_NAME in hashes and files.sha256_of(entry.folder / MANIFEST_NAME) != hashes[MANIFEST_NAME]:
            raise DamagedCopyError(MANIFEST_NAME)
        kb = _kb_folder(entry.folder, hashes, is_temporary=False)
        return contextlib.nullcontext(dataclasses.replace(kb, archive_sha256=archive_sha256, commit=commit))
    except (FileNotFoundError, NotADirectoryError) as fault:
        raise DamagedCopyError(str(fault.filename)) from fault


def _kb_folder(folder: Path, hashes: dict[str, str], *, is_temporary: bool) -> KbFolder:
    manifest = None
    if MANIFEST_NAME in hashes:
        manifest = package.parse_manifest((folder / MANIFEST_NAME).read_bytes())
    content = {
        path: OfferedFile(sha256, (folder / path).stat().st_size, 0)
        for path, sha256 in hashes.items()
        if manifest is None or path != MANIFEST_NAME
    }
    return KbFolder(folder, content, manifest, is_temporary)


def _folder_offer(source: KbSource, target: Path) -> Offer:
    folder = Path(source.location)
    real_folder, real_target = folder.resolve(), target.resolve()
    if real_folder.is_relative_to(real_target):
        raise errors.source_overlaps_target(str(folder), str(target))
    with files.storage_errors():
        found = tree.list_kb_files(folder, leave_out=_target_inside(folder, real_folder, real_target))
        manifest = _manifest_in(folder)

    def opened() -> AbstractContextManager[KbFolder]:
        offered = {
            path: OfferedFile(None, seen.st_size, seen.st_mtime_ns)
            for path, seen in found.listing.files.items()
            if manifest is None or path != MANIFEST_NAME
        }
        return contextlib.nullcontext(KbFolder(folder, offered, manifest, is_temporary=False, skipped=found.skipped))

    return Offer(source, found.listing.fingerprint(), None, opened)


def _manifest_in(folder: Path) -> PackageManifest | None:
    path = folder / MANIFEST_NAME
    return package.parse_manifest(path.read_bytes()) if path.is_file() else None


def _target_inside(folder: Path, real_folder: Path, real_target: Path) -> list[Path]:
    """What of a source folder belongs to an installation inside it, and not to the KB."""
    if not real_target.is_relative_to(real_folder):
        return []
    inside = real_target.relative_to(real_folder)
    lock = inside.with_name(f".{inside.name}.lock")
    own = [inside, lock] + ([inside.parent] if inside.parent.name == ".pair" else [])
    return [folder / path for path in own]
