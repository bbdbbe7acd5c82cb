"""The content of a source, ready to install: the files of a folder, of an unpacked archive or of a cached download."""

import contextlib
import functools
import logging
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

import msgspec

from pair import errors, files
from pair.packages import archive, folders, package, rules
from pair.packages.cache import Cache, CacheEntry, Facts
from pair.packages.package import IndexSelection, PackagedIndexFiles, PackageManifest
from pair.packages.partial_download import download_missing
from pair.values import KbSource

if TYPE_CHECKING:
    from pair.packages.download import Downloader
    from pair.packages.release_index import BucketFetcher
    from pair.packages.signing import TrustedKeys

    Fetcher: TypeAlias = Downloader | BucketFetcher

logger = logging.getLogger(__name__)


class Observer(Protocol):
    """An observer of the messages and the progress of an installation."""

    def say(self, text: str) -> None:
        """Show a message: a missing checksum, waiting for a lock, a retry."""

    def transfer(
        self, name: str, total_bytes: int | None, have_bytes: int
    ) -> AbstractContextManager[Callable[[int], None]]:
        """Begin a transfer and yield a function to call with the number of bytes that arrived."""


def discard_part(part: Path) -> None:
    """Delete a downloaded archive and its note. Until then, a run after a crash can resume the download."""
    files.unlink(part, missing_ok=True)
    files.unlink(note_path(part), missing_ok=True)


def note_path(part: Path) -> Path:
    """Return the path of the note that makes a part resumable: it names the version of the part."""
    return part.with_name(part.name + ".json")


@dataclass(frozen=True, slots=True)
class OfferedFile:
    """A file of a source. `sha256` is None until it is read; `mtime_ns` is 0 if the time means nothing."""

    sha256: str | None
    size_bytes: int
    mtime_ns: int


@dataclass(frozen=True)
class KbFolder:
    """The files of a source in a folder."""

    folder: Path
    files: dict[str, OfferedFile]
    manifest: PackageManifest | None
    is_temporary: bool
    """The files may be moved instead of copied."""
    skipped: tuple[tuple[str, str], ...] = ()
    archive_sha256: str = ""
    commit: str = ""
    """The origin of the files: an archive, or a git repository at this commit."""
    index: PackagedIndexFiles | None = None


class DamagedCopyError(Exception):
    """A file in the cache that differs from the fetched one, named by the message. The entry is dropped."""


@dataclass(frozen=True)
class SourceContent:
    """A source whose files can be opened."""

    source: KbSource
    fingerprint: str
    """A value that changes with the files and is cheap to compute."""
    verified: bool | None
    """Whether a published SHA-256 matched; None for a source without one."""
    open: Callable[[], AbstractContextManager[KbFolder]]
    signed_by: str | None = None
    """Id of the key of the valid signature, if keys are trusted."""


@dataclass(frozen=True)
class SourceContents:
    """The opener of sources. Without a fetcher nothing is downloaded; without keys no signature is checked."""

    cache: Cache
    fetcher: "Fetcher | None"
    settings: rules.SourcesSettings
    signatures: "TrustedKeys | None"
    selection: IndexSelection
    """The files of an index that are needed; the others are not unpacked."""

    def offer(
        self, source: KbSource, target: Path, *, revalidate: bool, scratch: Path
    ) -> AbstractContextManager[SourceContent]:
        """Return the content of a source. Raises E007 instead of downloading, E017.

        `revalidate`: ask the server whether a cached KB is still current. `scratch`: a path beside which archives are
        unpacked.
        """
        path = Path(source.location)
        is_folder = not source.requires_download and path.is_dir()
        if self.signatures is not None and (is_folder or source.type == "git"):
            kind = "a folder" if is_folder else "a git repository"
            self.signatures.refuse_unsigned(rules.hide_credentials(source.location), f"{kind} has no signature")
        if source.requires_download:
            if self.fetcher is None:
                raise errors.download_while_offline()  # source-11
            return self._offer_download(source, target, self.fetcher, revalidate=revalidate)
        if is_folder:
            return contextlib.nullcontext(_offer_folder(source, target))
        if path.is_file():
            return self._offer_archive(source, scratch)
        if path.exists():
            raise errors.source_format_unknown(source.location, suggestion="It is neither a folder nor a file.")
        raise errors.source_path_missing(source.location)

    # A download

    @contextlib.contextmanager
    def _offer_download(
        self, source: KbSource, target: Path, fetcher: "Fetcher", *, revalidate: bool
    ) -> Iterator[SourceContent]:
        def fill(earlier: CacheEntry | None, folder: Path) -> Facts | None:
            if source.type == "git":
                if earlier is not None and _find_remote_commit(source.location) == earlier.facts.identity:
                    return None
                commit = _check_out(source.location, folder)
                hashes = folders.hash_files(folder, folders.list_kb_files(folder).files)
                return Facts(commit, verified=False, etag=None, last_modified=None, hashes=hashes)
            facts = download_missing(self, source, earlier, folder, target)
            return facts or self._fill(source, earlier, folder, fetcher)

        is_usable = functools.partial(self._is_usable, source)
        # Bytes that are named by their hash cannot be out of date.
        revalidate = revalidate and not rules.is_named_by_content(source)
        with self.cache.entry_for(source, fill, is_usable, revalidate=revalidate) as entry:
            verified = None if source.type == "git" else entry.facts.verified
            key = entry.facts.signed_by if self.signatures is not None else None
            signed_by = rules.read_key_id(key) if key is not None else None
            open_entry = functools.partial(_open_entry, entry, is_git=source.type == "git")
            try:
                yield SourceContent(source, entry.facts.identity, verified, open_entry, signed_by)
            except DamagedCopyError:
                self.cache.drop(entry)
                raise

    def _is_usable(self, source: KbSource, entry: CacheEntry) -> bool:
        facts = entry.facts
        is_checked = facts.verified or source.type == "git" or not self.settings.require_checksum
        is_signed = self.signatures is None or self.signatures.accepts(facts.signed_by)
        has_index = not (facts.is_without_index and self.selection.is_wanted)
        # A KB that was assembled under the SHA-256 of an archive may differ from that archive.
        is_same_manifest = not facts.is_assembled or facts.hashes.get(rules.MANIFEST_NAME) == source.manifest_sha256
        is_published = source.sha256 is None or (facts.identity == source.sha256 and is_same_manifest)
        return is_checked and is_signed and has_index and is_published

    def _fill(self, source: KbSource, earlier: CacheEntry | None, folder: Path, fetcher: "Fetcher") -> Facts | None:
        known = earlier.facts if earlier is not None else None
        shown = rules.hide_credentials(source.location)
        signature = None
        if self.signatures is not None:
            signature = fetcher.signature(source.location)
            if signature is None:
                # Fail before the download.
                self.signatures.refuse_unsigned(shown, "it is missing")
        part = self.cache.part_path(source)
        facts = fetcher.fetch(source.location, part, sha256=source.sha256, known=known)
        if facts is None:
            return None
        size_bytes = part.stat().st_size
        try:
            signer = self.signatures.signer_of(part, signature, shown) if self.signatures is not None else None
            # An unwanted index was downloaded too: the cache keeps it for later.
            selection = self.selection if self.selection.is_wanted else IndexSelection()
            hashes = self._unpack(part, folder, shown, selection)
        except (errors.DownloadError, errors.DataError):
            discard_part(part)
            raise
        discard_part(part)
        signed_by = signer.key if signer is not None else None
        return msgspec.structs.replace(facts, hashes=hashes, signed_by=signed_by, size_bytes=size_bytes)

    # A local archive

    @contextlib.contextmanager
    def _offer_archive(self, source: KbSource, scratch: Path) -> Iterator[SourceContent]:
        """Yield the content of an archive. Its checksum is verified while it is unpacked, before any file is used."""
        path = Path(source.location)
        with files.storage_errors():
            seen = path.stat()
            expected = package.find_published_sha256(path, source.sha256)
            signer = None
            if self.signatures is not None:
                signer = self.signatures.signer_of(path, package.read_signature(path), str(path))
        with ThreadPoolExecutor(1, thread_name_prefix="pair-hash") as hasher:
            hashing = hasher.submit(package.verify_sha256, path, expected)

            @contextlib.contextmanager
            def open_archive() -> Iterator[KbFolder]:
                folder = folders.staging_path(scratch, f"{self.cache.token}-unpacked")
                try:
                    try:
                        hashes = self._unpack(path, folder, path.name, self.selection)
                    finally:
                        archive_sha256 = hashing.result()  # A wrong checksum is raised before a damaged entry.
                    yield _describe_folder(folder, hashes, is_temporary=True, archive_sha256=archive_sha256)
                finally:
                    files.remove_tree(folder)

            fingerprint = f"zip {seen.st_size} {seen.st_mtime_ns}"
            signed_by = signer.key_id if signer is not None else None
            yield SourceContent(source, fingerprint, bool(expected), open_archive, signed_by)
            with files.storage_errors():
                hashing.result()

    def _unpack(self, path: Path, folder: Path, shown: str, selection: IndexSelection) -> dict[str, str]:
        """Unpack the needed files. Raises E006 if they differ from the manifest of the package."""
        manifest = package.read_manifest(path, self.settings, shown=shown)
        listed = manifest.files if manifest is not None and manifest.index is not None else {}
        left_out = {name: entry.sha256 for name, entry in listed.items() if selection.leaves_out(name)}
        try:
            hashes = archive.unpack(path, folder, self.settings, shown=shown, leave_out=left_out.__contains__)
            if manifest is not None:
                present = {name: sha256 for name, sha256 in (left_out | hashes).items() if name != rules.MANIFEST_NAME}
                package.refuse_differences(manifest, present, shown)
        except BaseException:
            files.remove_tree(folder)
            raise
        return hashes


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
    index = None
    if manifest is not None and manifest.index is not None and rules.INDEX_MANIFEST in hashes:
        prefix = f"{rules.INDEX_FOLDER}/"
        listed = {path: entry.sha256 for path, entry in manifest.files.items() if rules.is_of_index(path)}
        index = PackagedIndexFiles(
            folder=folder / rules.INDEX_FOLDER,
            content=(folder / rules.INDEX_MANIFEST).read_bytes(),
            names=frozenset(path.removeprefix(prefix) for path in hashes if rules.is_of_index(path)),
            hashes={path.removeprefix(prefix): sha256 for path, sha256 in listed.items()},
            package_name=manifest.name,
            label=f"{manifest.name} {manifest.version}",
            is_fresh=is_temporary,
            packaged=frozenset(content),
        )
    return KbFolder(folder, content, manifest, is_temporary, archive_sha256=archive_sha256, commit=commit, index=index)


def _offer_folder(source: KbSource, target: Path) -> SourceContent:
    folder = Path(source.location)
    real_folder, real_target = folder.resolve(), target.resolve()
    if real_folder.is_relative_to(real_target):
        raise errors.source_overlaps_target(str(folder), str(target))
    with files.storage_errors():
        installation: list[Path] = []  # Paths in the source folder that are not part of the KB.
        if real_target.is_relative_to(real_folder):
            inside = real_target.relative_to(real_folder)
            installation = [folder / inside, folder / inside.with_name(f".{inside.name}.lock")]
            if inside.parent.name == ".pair":
                installation.append(folder / inside.parent)
        kb_files = folders.list_kb_files(folder, leave_out=installation)
        manifest = _read_manifest(folder) if (folder / rules.MANIFEST_NAME).is_file() else None

    def open_folder() -> AbstractContextManager[KbFolder]:
        offered = {
            path: OfferedFile(None, seen.st_size, seen.st_mtime_ns)
            for path, seen in kb_files.files.items()
            if manifest is None or path != rules.MANIFEST_NAME
        }
        return contextlib.nullcontext(KbFolder(folder, offered, manifest, is_temporary=False, skipped=kb_files.skipped))

    return SourceContent(source, kb_files.fingerprint(), None, open_folder)


def _read_manifest(folder: Path) -> PackageManifest | None:
    return package.parse_manifest((folder / rules.MANIFEST_NAME).read_bytes())


# ── git repositories ───────────────────────────────────────────────────────────────────────────────

_LONGEST_FETCH_SECONDS = 1800
_SETTINGS = (
    "http.lowSpeedLimit=1",
    "http.lowSpeedTime=30",
    "protocol.ext.allow=never",
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.protectHFS=true",
    "core.protectNTFS=true",
    "fetch.recurseSubmodules=false",
    "submodule.recurse=false",
)
"""Options that override the configuration of the user: the repository may be hostile."""


def _split_ref(location: str) -> tuple[str, str]:
    """Return repository and ref of `repository#ref`; HEAD without a ref. Raises E004 for another kind of address."""
    repository, _, ref = location.partition("#")
    if not rules.is_git(location):
        raise errors.source_format_unknown(rules.hide_credentials(location), suggestion="It is not a git repository.")
    return repository, ref or "HEAD"


def _find_remote_commit(location: str) -> str | None:
    """Return the commit that the ref names now; None if the server does not list the ref, as for a commit id."""
    repository, ref = _split_ref(location)
    listed = _run_git(location, "ls-remote", "--exit-code", "--", repository, ref, may_be_absent=True)
    commits = {name: commit for commit, name in (line.split("\t") for line in listed.splitlines())}
    wanted = (f"refs/tags/{ref}^{{}}", f"refs/tags/{ref}", f"refs/heads/{ref}", ref)
    return next((commits[name] for name in wanted if name in commits), None)


def _check_out(location: str, folder: Path) -> str:
    """Check out the ref into `folder`, which must not exist. Return the commit."""
    repository, ref = _split_ref(location)
    _run_git(location, "init", "--quiet", "--template=", "--", str(folder))
    try:
        _run_git(location, "-C", str(folder), "fetch", "--quiet", "--depth=1", "--no-tags", "--", repository, ref)
        # A deep tree is hard to remove: the commit is checked before any of its folders is made.
        listed = _run_git(location, "-C", str(folder), "ls-tree", "-r", "-d", "-z", "--name-only", "FETCH_HEAD")
        if any(path.count("/") >= rules.MOST_FOLDERS for path in listed.split("\0")):
            raise errors.archive_refused(rules.hide_credentials(location), "path has too many folders")
        _run_git(location, "-C", str(folder), "checkout", "--quiet", "--detach", "FETCH_HEAD")
        commit = _run_git(location, "-C", str(folder), "rev-parse", "HEAD").strip()
    except BaseException:
        files.remove_tree(folder)
        raise
    files.remove_tree(folder / ".git")
    return commit


def _run_git(location: str, *arguments: str, may_be_absent: bool = False) -> str:
    shown = rules.hide_credentials(location)
    program = shutil.which("git")
    if program is None:
        raise errors.git_failed(shown, "the git program is not installed")
    logger.debug("git", extra={"arguments": [rules.hide_credentials(argument) for argument in arguments]})
    try:
        done = subprocess.run(  # noqa: S603 - the program is git, and input of the user follows "--"
            [program, *(word for setting in _SETTINGS for word in ("-c", setting)), *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LONGEST_FETCH_SECONDS,
            stdin=subprocess.DEVNULL,
            cwd="/",  # Run outside of any repository, because its configuration would apply.
            env=_make_git_environment(),
            check=False,
        )
    except subprocess.TimeoutExpired as fault:
        raise errors.git_failed(shown, f"git did not finish within {_LONGEST_FETCH_SECONDS} s") from fault
    if done.returncode == 2 and may_be_absent:
        return ""
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("hint:")]
        reason = re.sub(r"://[^/@\s]+@", "://", " / ".join(lines[-3:])) or "git failed without a message"
        raise errors.git_failed(shown, reason)
    return done.stdout


def _make_git_environment() -> dict[str, str]:
    """Return the environment of the user without GIT_* variables: GIT_DIR would name another repository."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}  # noqa: TID251 - passed on
    return kept | {
        "GIT_ALLOW_PROTOCOL": "git:http:https:ssh",
        "GIT_TERMINAL_PROMPT": "0",  # Never ask for a password.
        "GIT_SSH_COMMAND": "ssh -o BatchMode=yes -o ConnectTimeout=30",
        "LC_ALL": "C",
    }
