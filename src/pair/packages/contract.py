"""What you may implement: who is told about the work, and what fetches archives."""

import hashlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from pair import files
from pair.packages.rules import is_of_index


class Observer(Protocol):
    def say(self, text: str) -> None:
        """Something a person should know: no checksum, waiting for a lock, trying again."""
        ...

    def transfer(
        self, name: str, total_bytes: int | None, have_bytes: int
    ) -> AbstractContextManager[Callable[[int], None]]:
        """A transfer begins; call what comes back with the number of bytes each time some have arrived."""
        ...


@dataclass(frozen=True)
class Validators:
    """What a server says about the version of a file."""

    etag: str | None = None
    last_modified: str | None = None

    @property
    def for_range(self) -> str | None:
        """For `If-Range`: only a strong ETag names the bytes; a date is the second choice."""
        if self.etag and not self.etag.startswith("W/"):
            return self.etag
        return self.last_modified

    def conditions(self) -> dict[str, str]:
        headers = {}
        if self.etag:
            headers["If-None-Match"] = self.etag
        if self.last_modified:
            headers["If-Modified-Since"] = self.last_modified
        return headers


@dataclass(frozen=True)
class CachedCopy:
    """What the cache has of this address already."""

    sha256: str
    validators: Validators
    size_bytes: int = 0
    """Of the archive; 0 when nobody knows."""


@dataclass(frozen=True)
class Download:
    path: Path
    sha256: str
    verified: bool
    validators: Validators

    def discard(self) -> None:
        """The archive is of no more use; until then a killed process finds it again."""
        files.unlink(self.path, missing_ok=True)
        files.unlink(note_of(self.path), missing_ok=True)


def note_of(part: Path) -> Path:
    """What makes a part resumable: a small file that says which version of the file it is a part of."""
    return part.with_name(part.name + ".json")


@dataclass(frozen=True)
class IndexSelection:
    """What is needed of the index of a package."""

    is_wanted: bool = True
    """False for the texts alone."""
    holds: Callable[[str], bool] = lambda path: False
    """Whether the engine has a file of it already, by its path in the package."""

    def leaves_out(self, path: str) -> bool:
        """Whether a file of the package is neither fetched nor unpacked."""
        return is_of_index(path) and (not self.is_wanted or self.holds(path))


@dataclass(frozen=True)
class PackagedIndexFiles:
    """The index of a package, unpacked."""

    folder: Path
    content: bytes
    """Of its manifest."""
    names: frozenset[str]
    """Of the files that are in the folder; those that the engine holds already may be missing."""
    hashes: Mapping[str, str]
    """SHA-256 of all of its files by name, as the package gives it."""
    package_name: str
    label: str
    is_fresh: bool
    """Unpacked and verified this moment; what lay in the cache meanwhile has to be verified again."""
    packaged: frozenset[str] = frozenset()
    """Paths of the files that were packaged with it; they lie in the folder above."""

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    def path_of(self, name: str) -> Path | None:
        return self.folder / name if name in self.names else None


@dataclass(frozen=True)
class InstalledIndex:
    """A KB after it took up an index."""

    kb_id: str
    manifest_version: int
    documents: int
    shards: int
    """Of the package."""
    new_shards: int = 0
    """Those that were not stored before."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class CurrentIndex:
    """What a KB holds of the index that it took up last."""

    embedder: str
    index_sha256: str
    """Empty when no index was taken up."""
    label: str
    """Name and version of the package, as long as the KB is as that left it."""


class IndexInstaller(Protocol):
    """The engine, as far as packages are concerned: one KB of it."""

    @property
    def kb_id(self) -> str: ...

    def holds(self, path: str) -> bool:
        """Whether a file of an index is stored already, by its path in the package: it stands for bytes."""
        ...

    def is_current(self, index_sha256: str) -> bool:
        """Whether this very index is the one that was taken up last."""
        ...

    def searched(self) -> CurrentIndex | None:
        """What is searched now, by the manifest alone; None when there is no such KB. Raises E207."""
        ...

    def refuse(self, index: PackagedIndexFiles) -> None:
        """Raises for an index that cannot be taken up; changes nothing."""
        ...

    def check(self, index: PackagedIndexFiles) -> frozenset[str]:
        """Return the ids of documents that have to be made of their files; the index holds other texts of them.

        Raises E221 for an index that is damaged, or lies about its files, and MissingIndexFileError; changes nothing.
        """
        ...

    def bring(self, index: PackagedIndexFiles) -> int:
        """Store the shards of it that are missing, and tell how many; none is visible yet.

        Raises MissingIndexFileError.
        """
        ...

    def take_up(self, index: PackagedIndexFiles, *, edited: frozenset[str], gone: frozenset[str]) -> "InstalledIndex":
        """Make it visible in one step. `edited` files stay as they are here; `gone` ones are gone."""
        ...


class MissingIndexFileError(Exception):
    """What the engine was thought to hold it does not hold; the message names it."""


@dataclass(frozen=True)
class Signer:
    """Whose signature held."""

    key: str
    """The public key, as minisign writes it on one line."""
    key_id: str
    comment: str
    """What the signer said of the file, on one line."""


class Signatures(Protocol):
    """Whose signatures count, and whether there must be one."""

    @property
    def is_required(self) -> bool: ...

    def accepts(self, key: str | None) -> bool:
        """Whether what was signed by this key, or by nobody, is good enough."""
        ...

    def signer_of(self, path: Path, signature: bytes | None, shown: str) -> Signer | None:
        """Who signed a file; None when nobody did and nobody has to. Raises E017."""
        ...

    def refuse_unsigned(self, shown: str, reason: str) -> None:
        """Raises E017 when a signature is needed."""
        ...


class ChangedError(Exception):
    """What is read in parts is another file by now."""


class RemoteFile(Protocol):
    """A file that is read in parts, all of them of one version. Reading raises ChangedError when it is another now."""

    @property
    def size_bytes(self) -> int: ...

    def read(self, start: int, length: int) -> bytes: ...

    def copy(self, start: int, length: int, path: Path) -> None:
        """Into a new file, in bounded memory; what a broken transfer brought is not fetched again."""
        ...


@dataclass(frozen=True)
class Parts:
    """An archive that need not be fetched as a whole, and what is published about it."""

    manifest: bytes
    """As it lies beside the archive."""
    sha256: str
    """Of the archive."""
    file: RemoteFile
    validators: Validators


class Fetcher(Protocol):
    def parts(self, url: str, *, sha256: str | None) -> Parts | None:
        """None for an archive that can only be fetched as a whole. `sha256`: published by the release feed."""
        ...

    def signature(self, url: str) -> bytes | None:
        """The `.minisig` beside an archive, if there is one."""
        ...

    def fetch(self, url: str, part: Path, *, sha256: str | None, known: CachedCopy | None) -> Download | None:
        """Download into `part`; None when what is known is still current. `sha256`: published by the release feed."""
        ...
