"""The contracts between packages and their surroundings: observer, fetcher, signatures, and the engine's index."""

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
        """Tell a person something: no checksum, waiting for a lock, trying again."""
        ...

    def transfer(
        self, name: str, total_bytes: int | None, have_bytes: int
    ) -> AbstractContextManager[Callable[[int], None]]:
        """Begin a transfer; the function is called with the number of bytes each time some have arrived."""
        ...


@dataclass(frozen=True)
class Validators:
    """What a server says about the version of a file."""

    etag: str | None = None
    last_modified: str | None = None

    @property
    def for_range(self) -> str | None:
        """The value of `If-Range`: only a strong ETag names the bytes; a date is the second choice."""
        is_strong = self.etag and not self.etag.startswith("W/")
        return self.etag if is_strong else self.last_modified

    def conditions(self) -> dict[str, str]:
        headers = {"If-None-Match": self.etag, "If-Modified-Since": self.last_modified}
        return {name: value for name, value in headers.items() if value}


@dataclass(frozen=True)
class CachedCopy:
    """What the cache has of an address."""

    sha256: str
    validators: Validators
    size_bytes: int = 0
    """Of the archive; 0 when it is not known."""


@dataclass(frozen=True)
class Download:
    path: Path
    sha256: str
    verified: bool
    validators: Validators

    def discard(self) -> None:
        """Delete an archive that is of no more use; until then a killed process finds it again."""
        files.unlink(self.path, missing_ok=True)
        files.unlink(note_path(self.path), missing_ok=True)


def note_path(part: Path) -> Path:
    """Return the path of the note that makes a part resumable: it says of which version the part is."""
    return part.with_name(part.name + ".json")


@dataclass(frozen=True)
class IndexSelection:
    """Which files of the index of a package are needed."""

    is_wanted: bool = True
    """False for the texts alone."""
    holds: Callable[[str], bool] = lambda path: False
    """Tells whether the engine has a file of it already, by its path in the package."""

    def leaves_out(self, path: str) -> bool:
        """Tell whether a file of the package is neither fetched nor unpacked."""
        return is_of_index(path) and (not self.is_wanted or self.holds(path))


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
class InstalledIndex:
    """A KB after an index was installed into it."""

    kb_id: str
    manifest_version: int
    documents: int
    shards: int
    """Of the package."""
    new_shards: int = 0
    """Shards that were not stored before."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class CurrentIndex:
    """The index that was installed last into a KB."""

    embedder: str
    index_sha256: str
    """Empty when there is none."""
    label: str
    """Name and version of the package, as long as the KB is as that left it."""


class IndexInstaller(Protocol):
    """One KB of the engine, as packages need it."""

    @property
    def kb_id(self) -> str: ...

    def is_current(self, index_sha256: str) -> bool:
        """Tell whether this very index is the one that was installed last."""
        ...

    def refuse(self, index: PackagedIndexFiles) -> None:
        """Raise for an index that cannot be installed; change nothing."""
        ...

    def check(self, index: PackagedIndexFiles) -> frozenset[str]:
        """Return the ids of documents that have to be indexed from their files: the index has other texts of them.

        Raises E221 for an index that is damaged, or lies about its files, and MissingIndexFileError; changes nothing.
        """
        ...

    def bring(self, index: PackagedIndexFiles) -> int:
        """Store the missing shards, none visible yet; return their number. Raises MissingIndexFileError."""
        ...

    def take_up(self, index: PackagedIndexFiles, *, edited: frozenset[str], gone: frozenset[str]) -> InstalledIndex:
        """Make the index visible in one step, without `edited` files, which stay as they are here, and `gone` ones."""
        ...


class MissingIndexFileError(Exception):
    """The engine lacks a file that it was thought to have; the message names it."""


@dataclass(frozen=True)
class Signer:
    """The owner of a valid signature."""

    key: str
    """The public key, as minisign writes it on one line."""
    key_id: str
    comment: str
    """What the signer says of the file, on one line."""


class Signatures(Protocol):
    """The trusted keys, and whether there must be a signature."""

    @property
    def is_required(self) -> bool: ...

    def accepts(self, key: str | None) -> bool:
        """Tell whether a signature by this key, or none, is good enough."""
        ...

    def signer_of(self, path: Path, signature: bytes | None, shown: str) -> Signer | None:
        """Return the signer of a file; None when it is not signed and need not be. Raises E017."""
        ...

    def refuse_unsigned(self, shown: str, reason: str) -> None:
        """Raise E017 when a signature is needed."""
        ...


class ChangedError(Exception):
    """A file that is read in parts is another one by now."""


class RemoteFile(Protocol):
    """A file that is read in parts, all of them of one version. Reading raises ChangedError when it is another now."""

    @property
    def size_bytes(self) -> int: ...

    def read(self, start: int, length: int) -> bytes: ...

    def copy(self, start: int, length: int, path: Path) -> None:
        """Copy into a new file, in bounded memory; what a broken transfer brought is not fetched again."""
        ...


@dataclass(frozen=True)
class Parts:
    """An archive that need not be fetched as a whole, and what is published about it."""

    manifest: bytes
    """The file beside the archive."""
    sha256: str
    """Of the archive."""
    file: RemoteFile
    validators: Validators


class Fetcher(Protocol):
    def parts(self, url: str, *, sha256: str | None) -> Parts | None:
        """Return None for an archive that can only be fetched as a whole. `sha256`: published by the release index."""
        ...

    def signature(self, url: str) -> bytes | None:
        """Return the `.minisig` beside an archive, if there is one."""
        ...

    def fetch(self, url: str, part: Path, *, sha256: str | None, known: CachedCopy | None) -> Download | None:
        """Download into `part`; None when what is known is still current. `sha256`: published by the release index."""
        ...
