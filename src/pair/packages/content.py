"""A KbSource as files ready to be installed: a folder as it is, an archive unpacked, a download from the cache."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from pair import errors, files
from pair.packages import archive, atomic_swap, file_listing, git, package
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
from pair.packages.delta import Delta
from pair.packages.package import PackageManifest
from pair.packages.rules import (
    INDEX_FOLDER,
    INDEX_MANIFEST,
    MANIFEST_NAME,
    SIGNATURE_SUFFIX,
    SourcesSettings,
    is_named_by_content,
    is_of_index,
    key_id_of,
    parse_checksum,
    without_credentials,
)
from pair.values import KbSource, SourceType

_MOST_SIGNATURE_BYTES = 64 * 1024


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
    """Makes offers of sources. Without a fetcher nothing is downloaded, without trusted keys no signature looked at."""

    def __init__(
        self,
        cache: Cache,
        fetcher: Fetcher | None,
        policy: SourcesSettings,
        token: str,
        signatures: Signatures | None,
        demand: IndexSelection,
    ) -> None:
        """`demand`: what of an index is needed; the rest is not unpacked."""
        self._demand = demand
        self._cache = cache
        self._fetcher = fetcher
        self._policy = policy
        self._token = token
        self._signatures = signatures

    @contextlib.contextmanager
    def offer(
        self, source: KbSource, target: Path, *, offline: bool, revalidate: bool, scratch: Path
    ) -> Iterator[SourceContent]:
        """`revalidate` asks the server whether a cached KB is still current. Raises E007 rather than download, E017.

        `scratch` is a path beside which an archive may be unpacked.
        """
        self._refuse_unsignable(source)
        if source.requires_download:
            if offline or self._fetcher is None:
                raise errors.download_while_offline()  # source-11
            with self._downloaded(source, target, revalidate=revalidate) as offered:
                yield offered
        elif Path(source.location).is_dir():
            yield _folder_offer(source, target)
        elif Path(source.location).is_file():
            with self._archive_offer(source, scratch) as offered:
                yield offered
        elif Path(source.location).exists():
            raise errors.source_format_unknown(source.location, suggestion="It is neither a folder nor a file.")
        else:
            raise errors.source_path_missing(source.location)

    def _refuse_unsignable(self, source: KbSource) -> None:
        is_folder = not source.requires_download and Path(source.location).is_dir()
        if self._signatures is not None and (is_folder or source.type == "git"):
            kind = "a folder" if is_folder else "a git repository"
            self._signatures.refuse_unsigned(without_credentials(source.location), f"{kind} carries none")

    # A download

    @contextlib.contextmanager
    def _downloaded(self, source: KbSource, target: Path, *, revalidate: bool) -> Iterator[SourceContent]:
        def fill_from_source(earlier: CacheEntry | None, folder: Path) -> Facts | None:
            if source.type == "git":
                return self._fill_from_git(source, earlier, folder)
            assert self._fetcher is not None  # noqa: S101 - `offer` asks first
            delta = Delta(self._cache, self._fetcher, self._signatures, self._policy, self._demand)
            return delta.fill(source, earlier, folder, target) or self._fill_from_archive(source, earlier, folder)

        def is_usable(entry: CacheEntry) -> bool:
            is_checked = entry.facts.verified or source.type == "git" or not self._policy.require_checksum
            is_signed = self._signatures is None or self._signatures.accepts(entry.facts.signed_by)
            has_index = not (entry.facts.is_without_index and self._demand.is_wanted)
            return is_checked and is_signed and has_index and _is_what_is_published(entry.facts, source)

        # Bytes that are named by their hash cannot be out of date.
        asks = revalidate and not is_named_by_content(source)
        with self._cache.entry_for(source, fill_from_source, is_usable, revalidate=asks) as entry:
            verified = None if source.type == "git" else entry.facts.verified
            key = entry.facts.signed_by if self._signatures is not None else None
            signed_by = key_id_of(key) if key is not None else None
            try:
                opened = functools.partial(_entry_folder, entry, source.type)
                yield SourceContent(source, entry.facts.identity, verified, opened, signed_by)
            except DamagedCopyError:
                self._cache.drop(entry)
                raise

    def _fill_from_archive(self, source: KbSource, earlier: CacheEntry | None, folder: Path) -> Facts | None:
        assert self._fetcher is not None  # noqa: S101 - `offer` asks first
        part = self._cache.part_path(source)
        known = None
        if earlier is not None:
            validators = Validators(earlier.facts.etag, earlier.facts.last_modified)
            known = CachedCopy(earlier.facts.identity, validators, earlier.facts.size_bytes)
        shown = without_credentials(source.location)
        signature = self._fetcher.signature(source.location) if self._signatures is not None else None
        if self._signatures is not None and signature is None:
            # Before much is fetched that would be refused.
            self._signatures.refuse_unsigned(shown, "there is none")
        download = self._fetcher.fetch(source.location, part, sha256=source.sha256, known=known)
        if download is None:
            return None
        size_bytes = download.path.stat().st_size
        try:
            signer = self._signer_of(download.path, signature, shown)
            # An index that nobody wanted has arrived all the same: the cache keeps it for who wants it later.
            demand = self._demand if self._demand.is_wanted else IndexSelection()
            unpacked = self._unpacked(download.path, folder, shown, demand)
        except (errors.DownloadError, errors.DataError):
            download.discard()
            raise
        download.discard()
        hashes = {path: entry.sha256 for path, entry in unpacked.items()}
        validators = download.validators
        return Facts(
            download.sha256,
            download.verified,
            validators.etag,
            validators.last_modified,
            hashes,
            signed_by=signer.key if signer is not None else None,
            size_bytes=size_bytes,
        )

    def _signer_of(self, path: Path, signature: bytes | None, shown: str) -> Signer | None:
        return self._signatures.signer_of(path, signature, shown) if self._signatures is not None else None

    def _fill_from_git(self, source: KbSource, earlier: CacheEntry | None, folder: Path) -> Facts | None:
        if earlier is not None and git.remote_commit(source.location) == earlier.facts.identity:
            return None
        commit = git.check_out(source.location, folder)
        hashes = file_listing.hash_files(folder, file_listing.list_kb_files(folder).listing.files)
        return Facts(commit, verified=False, etag=None, last_modified=None, hashes=hashes)

    # A local archive

    @contextlib.contextmanager
    def _archive_offer(self, source: KbSource, scratch: Path) -> Iterator[SourceContent]:
        """Its checksum is verified while it is unpacked: before anybody gets a file of it, and in any case."""
        path = Path(source.location)
        with files.storage_errors():
            seen = path.stat()
            wanted = _published_sha256(path, source.sha256)
            signer = self._signer_of(path, sibling_signature(path), str(path))
        signed_by = signer.key_id if signer is not None else None
        with ThreadPoolExecutor(1, thread_name_prefix="pair-hash") as hasher:
            hashing = hasher.submit(_verified_sha256, path, wanted)

            @contextlib.contextmanager
            def unpacked() -> Iterator[KbFolder]:
                folder = atomic_swap.staging_path(scratch, f"{self._token}-unpacked")
                try:
                    try:
                        written = self._unpacked(path, folder, path.name, self._demand)
                    finally:
                        sha256 = hashing.result()  # what is wrong with the whole is told first
                    kb = _kb_folder(folder, {name: entry.sha256 for name, entry in written.items()}, is_temporary=True)
                    yield dataclasses.replace(kb, archive_sha256=sha256)
                finally:
                    files.remove_tree(folder)

            yield SourceContent(source, f"zip {seen.st_size} {seen.st_mtime_ns}", bool(wanted), unpacked, signed_by)
            with files.storage_errors():
                hashing.result()

    def _unpacked(
        self, path: Path, folder: Path, shown: str, demand: IndexSelection
    ) -> dict[str, archive.UnpackedFile]:
        """Unpacked files, agreeing with the package's manifest if it has one."""
        try:
            left_out = self._left_out(path, demand, shown)
            unpacked = archive.unpack(path, folder, self._policy, shown=shown, leave_out=left_out.__contains__)
            found = left_out | {name: entry.sha256 for name, entry in unpacked.items()}
            _check_against_manifest(folder, found, shown)
        except BaseException:
            files.remove_tree(folder)
            raise
        return unpacked

    def _left_out(self, path: Path, demand: IndexSelection, shown: str) -> dict[str, str]:
        """Files of the index in an archive that are not needed, with their SHA-256 as its manifest tells it."""
        content = archive.read_entry(path, MANIFEST_NAME, self._policy, shown=shown)
        manifest = package.parse_manifest(content) if content is not None else None
        if manifest is None or manifest.index is None:
            return {}
        listed = manifest.files.items()
        return {name: each.sha256 for name, each in listed if demand.leaves_out(name)}


def _is_what_is_published(facts: Facts, source: KbSource) -> bool:
    """What was put together of parts under the SHA-256 of an archive may have nothing to do with that archive."""
    if source.sha256 is None:
        return True
    is_same_manifest = facts.hashes.get(MANIFEST_NAME) == source.manifest_sha256
    return facts.identity == source.sha256 and (is_same_manifest or not facts.is_assembled)


def matches_sibling_checksum(path: Path) -> bool:
    """False when no `.sha256` lies beside the archive; raises E006 when it says otherwise."""
    wanted = _published_sha256(path, None)
    if wanted:
        _verified_sha256(path, wanted)
    return bool(wanted)


def _published_sha256(path: Path, published: str | None) -> list[str]:
    """What somebody published of an archive: in a feed, or in a `.sha256` beside it. Raises E006."""
    beside = path.with_name(path.name + ".sha256")
    wanted = [published] if published is not None else []
    if beside.exists():
        expected = parse_checksum(beside.read_text(encoding="utf-8", errors="replace"), path.name)
        if expected is None:
            raise errors.checksum_failed(
                f"Checksum file: {beside}", "It holds no SHA-256 for this archive", is_local=True
            )
        wanted.append(expected)
    return wanted


def _verified_sha256(path: Path, wanted: Sequence[str]) -> str:
    """That of the archive. Raises E006 when it is another than it should be."""
    actual = files.hash_file(path)
    for expected in wanted:
        if actual != expected:
            hashes = [f"Expected SHA-256: {expected}", f"Actual SHA-256:   {actual}"]
            raise errors.checksum_failed(f"File: {path}", hashes, is_local=True)
    return actual


def sibling_signature(path: Path) -> bytes | None:
    """The `.minisig` beside an archive, if there is one; of one that is too long, enough to see that."""
    try:
        with path.with_name(path.name + SIGNATURE_SUFFIX).open("rb") as stream:
            return stream.read(_MOST_SIGNATURE_BYTES)
    except FileNotFoundError:
        return None


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
        reasons = ["It differs from its manifest"]
        reasons += [f"{kind}: {', '.join(paths[:5])}" for kind, paths in differences.items()]
        raise errors.checksum_failed(f"Package: {shown}", reasons, is_local="://" not in shown)


def _entry_folder(entry: CacheEntry, kind: SourceType) -> AbstractContextManager[KbFolder]:
    hashes, identity = entry.facts.hashes, entry.facts.identity
    archive_sha256, commit = ("", identity) if kind == "git" else (identity, "")
    try:
        if MANIFEST_NAME in hashes and files.hash_file(entry.folder / MANIFEST_NAME) != hashes[MANIFEST_NAME]:
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
        if not is_of_index(path) and (manifest is None or path != MANIFEST_NAME)
    }
    index = _index_in(folder, hashes, manifest, is_temporary=is_temporary)
    return KbFolder(folder, content, manifest, is_temporary, index=index)


def _index_in(
    folder: Path, hashes: dict[str, str], manifest: PackageManifest | None, *, is_temporary: bool
) -> PackagedIndexFiles | None:
    if manifest is None or manifest.index is None or INDEX_MANIFEST not in hashes:
        return None
    return PackagedIndexFiles(
        folder=folder / INDEX_FOLDER,
        content=(folder / INDEX_MANIFEST).read_bytes(),
        names=frozenset(path.removeprefix(f"{INDEX_FOLDER}/") for path in hashes if is_of_index(path)),
        hashes={
            path.removeprefix(f"{INDEX_FOLDER}/"): each.sha256
            for path, each in manifest.files.items()
            if is_of_index(path)
        },
        package_name=manifest.name,
        label=f"{manifest.name} {manifest.version}",
        is_fresh=is_temporary,
        packaged=frozenset(path for path in hashes if not is_of_index(path) and path != MANIFEST_NAME),
    )


def _folder_offer(source: KbSource, target: Path) -> SourceContent:
    folder = Path(source.location)
    real_folder, real_target = folder.resolve(), target.resolve()
    if real_folder.is_relative_to(real_target):
        raise errors.source_overlaps_target(str(folder), str(target))
    with files.storage_errors():
        own = [*_target_inside(folder, real_folder, real_target), folder / INDEX_FOLDER]
        found = file_listing.list_kb_files(folder, leave_out=own)
        manifest = _manifest_in(folder)

    def opened() -> AbstractContextManager[KbFolder]:
        offered = {
            path: OfferedFile(None, seen.st_size, seen.st_mtime_ns)
            for path, seen in found.listing.files.items()
            if manifest is None or path != MANIFEST_NAME
        }
        return contextlib.nullcontext(KbFolder(folder, offered, manifest, is_temporary=False, skipped=found.skipped))

    return SourceContent(source, found.listing.fingerprint(), None, opened)


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
