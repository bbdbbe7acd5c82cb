"""The files of a source, ready to be installed: a folder as it is, an archive unpacked, a download from the cache."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from pair import errors, files
from pair.packages import archive, atomic_swap, file_listing, git, package, rules
from pair.packages.cache import Cache, CacheEntry, Facts
from pair.packages.contract import (
    CachedCopy,
    Fetcher,
    IndexSelection,
    PackagedIndexFiles,
    Signatures,
    Signer,
    Validators,
)
from pair.packages.package import PackageManifest
from pair.packages.partial_download import PartialDownload
from pair.values import KbSource

_MOST_SIGNATURE_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class OfferedFile:
    """`sha256` is None until the file is read; `mtime_ns` is 0 where time means nothing."""

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
    """Its files may be moved instead of copied."""
    skipped: tuple[tuple[str, str], ...] = ()
    archive_sha256: str = ""
    commit: str = ""
    """What it was taken from: an archive, or a git repository at this commit."""
    index: PackagedIndexFiles | None = None


class DamagedCopyError(Exception):
    """A file in the cache is not what was fetched; the message says which. The entry is dropped: fetch it again."""


@dataclass(frozen=True)
class SourceContent:
    """`fingerprint` tells cheaply whether the KB is the same as last time; `open` gets the files."""

    source: KbSource
    fingerprint: str
    verified: bool | None
    """Whether a published SHA-256 matched; None where there is nothing to verify."""
    open: Callable[[], AbstractContextManager[KbFolder]]
    signed_by: str | None = None
    """Id of the key whose signature held, where keys are trusted."""


class SourceContents:
    """Gets the content of sources. Without a fetcher nothing is downloaded, without keys no signature is checked."""

    def __init__(
        self,
        cache: Cache,
        fetcher: Fetcher | None,
        settings: rules.SourcesSettings,
        token: str,
        signatures: Signatures | None,
        selection: IndexSelection,
    ) -> None:
        """`selection`: what of an index is needed; the rest is not unpacked."""
        self._cache = cache
        self._fetcher = fetcher
        self._settings = settings
        self._token = token
        self._signatures = signatures
        self._selection = selection

    @contextlib.contextmanager
    def offer(
        self, source: KbSource, target: Path, *, offline: bool, revalidate: bool, scratch: Path
    ) -> Iterator[SourceContent]:
        """Give the content of a source. Raises E007 rather than download, E017.

        `revalidate` asks the server whether a cached KB is still current. `scratch` is a path beside which an archive
        may be unpacked.
        """
        path = Path(source.location)
        self._refuse_unsignable(source)
        if source.requires_download:
            if offline or self._fetcher is None:
                raise errors.download_while_offline()  # source-11
            with self._offer_download(source, target, self._fetcher, revalidate=revalidate) as content:
                yield content
        elif path.is_dir():
            yield _offer_folder(source, target)
        elif path.is_file():
            with self._offer_archive(source, scratch) as content:
                yield content
        elif path.exists():
            raise errors.source_format_unknown(source.location, suggestion="It is neither a folder nor a file.")
        else:
            raise errors.source_path_missing(source.location)

    def _refuse_unsignable(self, source: KbSource) -> None:
        is_folder = not source.requires_download and Path(source.location).is_dir()
        if self._signatures is not None and (is_folder or source.type == "git"):
            kind = "a folder" if is_folder else "a git repository"
            self._signatures.refuse_unsigned(rules.hide_credentials(source.location), f"{kind} carries none")

    def _find_signer(self, path: Path, signature: bytes | None, shown: str) -> Signer | None:
        return self._signatures.signer_of(path, signature, shown) if self._signatures is not None else None

    # A download

    @contextlib.contextmanager
    def _offer_download(
        self, source: KbSource, target: Path, fetcher: Fetcher, *, revalidate: bool
    ) -> Iterator[SourceContent]:
        def fill(earlier: CacheEntry | None, folder: Path) -> Facts | None:
            if source.type == "git":
                return _fill_from_git(source, earlier, folder)
            partial = PartialDownload(self._cache, fetcher, self._signatures, self._settings, self._selection)
            return partial.fill(source, earlier, folder, target) or self._fill(source, earlier, folder, fetcher)

        is_usable = functools.partial(self._is_usable, source)
        # Bytes that are named by their hash cannot be out of date.
        revalidate = revalidate and not rules.is_named_by_content(source)
        with self._cache.entry_for(source, fill, is_usable, revalidate=revalidate) as entry:
            verified = None if source.type == "git" else entry.facts.verified
            key = entry.facts.signed_by if self._signatures is not None else None
            signed_by = rules.read_key_id(key) if key is not None else None
            open_entry = functools.partial(_open_entry, entry, is_git=source.type == "git")
            try:
                yield SourceContent(source, entry.facts.identity, verified, open_entry, signed_by)
            except DamagedCopyError:
                self._cache.drop(entry)
                raise

    def _is_usable(self, source: KbSource, entry: CacheEntry) -> bool:
        facts = entry.facts
        is_checked = facts.verified or source.type == "git" or not self._settings.require_checksum
        is_signed = self._signatures is None or self._signatures.accepts(facts.signed_by)
        has_index = not (facts.is_without_index and self._selection.is_wanted)
        # A KB put together of parts under the SHA-256 of an archive may have nothing to do with that archive.
        is_same_manifest = not facts.is_assembled or facts.hashes.get(rules.MANIFEST_NAME) == source.manifest_sha256
        is_published = source.sha256 is None or (facts.identity == source.sha256 and is_same_manifest)
        return is_checked and is_signed and has_index and is_published

    def _fill(self, source: KbSource, earlier: CacheEntry | None, folder: Path, fetcher: Fetcher) -> Facts | None:
        known = None
        if earlier is not None:
            validators = Validators(earlier.facts.etag, earlier.facts.last_modified)
            known = CachedCopy(earlier.facts.identity, validators, earlier.facts.size_bytes)
        shown = rules.hide_credentials(source.location)
        signature = fetcher.signature(source.location) if self._signatures is not None else None
        if self._signatures is not None and signature is None:
            # Before much is fetched that would be refused.
            self._signatures.refuse_unsigned(shown, "there is none")
        part = self._cache.part_path(source)
        download = fetcher.fetch(source.location, part, sha256=source.sha256, known=known)
        if download is None:
            return None
        size_bytes = download.path.stat().st_size
        try:
            signer = self._find_signer(download.path, signature, shown)
            # An index that is not wanted has arrived all the same: the cache keeps it for later.
            selection = self._selection if self._selection.is_wanted else IndexSelection()
            hashes = self._unpack(download.path, folder, shown, selection)
        except (errors.DownloadError, errors.DataError):
            download.discard()
            raise
        download.discard()
        return Facts(
            download.sha256,
            download.verified,
            download.validators.etag,
            download.validators.last_modified,
            hashes,
            signed_by=signer.key if signer is not None else None,
            size_bytes=size_bytes,
        )

    # A local archive

    @contextlib.contextmanager
    def _offer_archive(self, source: KbSource, scratch: Path) -> Iterator[SourceContent]:
        """Verify the checksum while the archive is unpacked: before a file of it is used, and in any case."""
        path = Path(source.location)
        with files.storage_errors():
            seen = path.stat()
            expected = _find_published_sha256(path, source.sha256)
            signer = self._find_signer(path, read_signature(path), str(path))
        signed_by = signer.key_id if signer is not None else None
        with ThreadPoolExecutor(1, thread_name_prefix="pair-hash") as hasher:
            hashing = hasher.submit(_verify_sha256, path, expected)
            open_archive = functools.partial(self._open_archive, path, scratch, hashing)
            fingerprint = f"zip {seen.st_size} {seen.st_mtime_ns}"
            yield SourceContent(source, fingerprint, bool(expected), open_archive, signed_by)
            with files.storage_errors():
                hashing.result()

    @contextlib.contextmanager
    def _open_archive(self, path: Path, scratch: Path, hashing: "Future[str]") -> Iterator[KbFolder]:
        folder = atomic_swap.staging_path(scratch, f"{self._token}-unpacked")
        try:
            try:
                hashes = self._unpack(path, folder, path.name, self._selection)
            finally:
                archive_sha256 = hashing.result()  # a fault of the whole archive is raised first
            yield _describe_folder(folder, hashes, is_temporary=True, archive_sha256=archive_sha256)
        finally:
            files.remove_tree(folder)

    def _unpack(self, path: Path, folder: Path, shown: str, selection: IndexSelection) -> dict[str, str]:
        """Unpack the files that are needed, in agreement with the package's manifest if it has one."""
        content = archive.read_entry(path, rules.MANIFEST_NAME, self._settings, shown=shown)
        manifest = package.parse_manifest(content) if content is not None else None
        listed = manifest.files if manifest is not None and manifest.index is not None else {}
        left_out = {name: entry.sha256 for name, entry in listed.items() if selection.leaves_out(name)}
        try:
            unpacked = archive.unpack(path, folder, self._settings, shown=shown, leave_out=left_out.__contains__)
            hashes = {name: entry.sha256 for name, entry in unpacked.items()}
            if manifest is not None:
                present = {name: sha256 for name, sha256 in (left_out | hashes).items() if name != rules.MANIFEST_NAME}
                refuse_differences(manifest, present, shown)
        except BaseException:
            files.remove_tree(folder)
            raise
        return hashes


def _fill_from_git(source: KbSource, earlier: CacheEntry | None, folder: Path) -> Facts | None:
    if earlier is not None and git.remote_commit(source.location) == earlier.facts.identity:
        return None
    commit = git.check_out(source.location, folder)
    hashes = file_listing.hash_files(folder, file_listing.list_kb_files(folder).listing.files)
    return Facts(commit, verified=False, etag=None, last_modified=None, hashes=hashes)


# ── checks of archives ─────────────────────────────────────────────────────────────────────────────


def verify_sibling_checksum(path: Path) -> bool:
    """Return False when no `.sha256` lies beside the archive. Raises E006 when it says otherwise."""
    expected = _find_published_sha256(path, None)
    if expected:
        _verify_sha256(path, expected)
    return bool(expected)


def _find_published_sha256(path: Path, published: str | None) -> list[str]:
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


def _verify_sha256(path: Path, hashes: Sequence[str]) -> str:
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
            return stream.read(_MOST_SIGNATURE_BYTES)
    except FileNotFoundError:
        return None


def refuse_differences(manifest: PackageManifest, present: dict[str, str], shown: str) -> None:
    differences = {kind: paths for kind, paths in manifest.differences(present).items() if paths}
    if differences:
        reasons = ["It differs from its manifest"]
        reasons += [f"{kind}: {', '.join(paths[:5])}" for kind, paths in differences.items()]
        raise errors.checksum_failed(f"Package: {shown}", reasons, is_local="://" not in shown)


# ── folders ────────────────────────────────────────────────────────────────────────────────────────


def _open_entry(entry: CacheEntry, *, is_git: bool) -> AbstractContextManager[KbFolder]:
    hashes, identity = entry.facts.hashes, entry.facts.identity
    archive_sha256, commit = ("", identity) if is_git else (identity, "")
    try:
        expected = hashes.get(rules.MANIFEST_NAME)
        if expected is not None and files.hash_file(entry.folder / rules.MANIFEST_NAME) != expected:
            raise DamagedCopyError(rules.MANIFEST_NAME)
        return contextlib.nullcontext(
            _describe_folder(entry.folder, hashes, is_temporary=False, archive_sha256=archive_sha256, commit=commit)
        )
    except (FileNotFoundError, NotADirectoryError) as fault:
        raise DamagedCopyError(str(fault.filename)) from fault


def _describe_folder(
    folder: Path, hashes: dict[str, str], *, is_temporary: bool, archive_sha256: str, commit: str = ""
) -> KbFolder:
    manifest = _read_manifest(folder) if rules.MANIFEST_NAME in hashes else None
    content = {
        path: OfferedFile(sha256, (folder / path).stat().st_size, 0)
        for path, sha256 in hashes.items()
        if not rules.is_of_index(path) and (manifest is None or path != rules.MANIFEST_NAME)
    }
    index = _describe_index(folder, hashes, manifest, is_temporary=is_temporary)
    return KbFolder(folder, content, manifest, is_temporary, archive_sha256=archive_sha256, commit=commit, index=index)


def _describe_index(
    folder: Path, hashes: dict[str, str], manifest: PackageManifest | None, *, is_temporary: bool
) -> PackagedIndexFiles | None:
    if manifest is None or manifest.index is None or rules.INDEX_MANIFEST not in hashes:
        return None
    prefix = f"{rules.INDEX_FOLDER}/"
    listed = {path: entry.sha256 for path, entry in manifest.files.items() if rules.is_of_index(path)}
    return PackagedIndexFiles(
        folder=folder / rules.INDEX_FOLDER,
        content=(folder / rules.INDEX_MANIFEST).read_bytes(),
        names=frozenset(path.removeprefix(prefix) for path in hashes if rules.is_of_index(path)),
        hashes={path.removeprefix(prefix): sha256 for path, sha256 in listed.items()},
        package_name=manifest.name,
        label=f"{manifest.name} {manifest.version}",
        is_fresh=is_temporary,
        packaged=frozenset(path for path in hashes if not rules.is_of_index(path) and path != rules.MANIFEST_NAME),
    )


def _offer_folder(source: KbSource, target: Path) -> SourceContent:
    folder = Path(source.location)
    real_folder, real_target = folder.resolve(), target.resolve()
    if real_folder.is_relative_to(real_target):
        raise errors.source_overlaps_target(str(folder), str(target))
    with files.storage_errors():
        installation = _list_installation(folder, real_folder, real_target)
        kb_files = file_listing.list_kb_files(folder, leave_out=installation)
        manifest = _read_manifest(folder) if (folder / rules.MANIFEST_NAME).is_file() else None
    open_folder = functools.partial(_open_folder, folder, kb_files, manifest)
    return SourceContent(source, kb_files.listing.fingerprint(), None, open_folder)


def _open_folder(
    folder: Path, kb_files: file_listing.KbFiles, manifest: PackageManifest | None
) -> AbstractContextManager[KbFolder]:
    offered = {
        path: OfferedFile(None, seen.st_size, seen.st_mtime_ns)
        for path, seen in kb_files.listing.files.items()
        if manifest is None or path != rules.MANIFEST_NAME
    }
    return contextlib.nullcontext(KbFolder(folder, offered, manifest, is_temporary=False, skipped=kb_files.skipped))


def _read_manifest(folder: Path) -> PackageManifest | None:
    return package.parse_manifest((folder / rules.MANIFEST_NAME).read_bytes())


def _list_installation(folder: Path, real_folder: Path, real_target: Path) -> list[Path]:
    """Return the paths of an installation inside a source folder, which do not belong to the KB."""
    if not real_target.is_relative_to(real_folder):
        return []
    inside = real_target.relative_to(real_folder)
    lock = inside.with_name(f".{inside.name}.lock")
    paths = [inside, lock] + ([inside.parent] if inside.parent.name == ".pair" else [])
    return [folder / path for path in paths]
