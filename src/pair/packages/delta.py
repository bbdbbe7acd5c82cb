"""Fetch of a newer package only what is not here: the rest comes from the cache, the target, or stays in the engine."""

import contextlib
import functools
import hashlib
import logging
from collections.abc import Callable
from pathlib import Path

from pair import errors, files
from pair.packages import package, record
from pair.packages.cache import Cache, CacheEntry, Facts
from pair.packages.contract import ChangedError, Fetcher, IndexSelection, Signatures
from pair.packages.partial_download import Supplies, UnfitError, assemble, missing_files
from pair.packages.rules import MANIFEST_NAME, MANIFEST_SUFFIX, SourcesSettings, beside, without_credentials
from pair.values import KbSource

logger = logging.getLogger(__name__)

_TRIES = 3
"""While the archive is being replaced."""


class Delta:
    def __init__(
        self,
        cache: Cache,
        fetcher: Fetcher,
        signatures: Signatures | None,
        policy: SourcesSettings,
        demand: IndexSelection,
    ) -> None:
        self._cache = cache
        self._fetcher = fetcher
        self._signatures = signatures
        self._policy = policy
        self._demand = demand

    def fill(self, source: KbSource, earlier: CacheEntry | None, folder: Path, target: Path) -> Facts | None:
        """From what is here and parts of the archive; None when it is to be fetched as a whole, or not at all.

        Only where a package with an index was installed before, else there is nothing here to build on; or where
        nobody wants its index.
        """
        installed = _installed_with_index(target)
        if installed is None and self._demand.is_wanted:
            return None
        if self._policy.require_checksum and source.manifest_sha256 is None:
            return None
        supplies = Supplies(self._path_finder(installed, target), self._demand)
        for _ in range(_TRIES):
            parts = self._fetcher.parts(source.location, sha256=source.sha256)
            if parts is None or (earlier is not None and parts.sha256 == earlier.facts.identity):
                return None
            manifest = package.parse_manifest(parts.manifest)
            key = self._manifest_signer(source, parts.manifest, folder)
            if manifest is None or manifest.index is None or key is None or not _is_published(parts.manifest, source):
                return None
            missing = missing_files(manifest, supplies, self._policy)
            if missing is None:
                return None
            try:
                hashes = assemble(parts.manifest, manifest, missing, parts.file, (folder, supplies))
            except (ChangedError, UnfitError) as fault:
                logger.debug("not put together", extra={"reason": str(fault)})
                files.remove_tree(folder)
                continue
            hashes[MANIFEST_NAME] = hashlib.sha256(parts.manifest).hexdigest()
            validators = parts.validators
            return Facts(
                parts.sha256,
                # The files are those of the manifest; nobody hashed the archive that a `.sha256` beside it is about.
                source.manifest_sha256 is not None,
                validators.etag,
                validators.last_modified,
                hashes,
                signed_by=key or None,
                is_assembled=True,
                is_without_index=not self._demand.is_wanted,
                size_bytes=parts.file.size_bytes,
            )
        return None

    def _manifest_signer(self, source: KbSource, manifest: bytes, folder: Path) -> str | None:
        """Whose signature of the manifest holds; "" where nobody asks, None where there must be one and is none."""
        if self._signatures is None:
            return ""
        address = beside(source.location, MANIFEST_SUFFIX)
        signature = self._fetcher.signature(address)
        if signature is None:
            return None
        copy = folder.with_name(f"{folder.name}{MANIFEST_SUFFIX}")
        copy.write_bytes(manifest)
        signer = self._signatures.signer_of(copy, signature, without_credentials(address))
        return signer.key if signer is not None else None

    def _path_finder(self, installed: record.Record | None, target: Path) -> Callable[[str], Path | None]:
        files_there = installed.files if installed is not None else {}
        here = {each.sha256: target / name for name, each in files_there.items()} | self._cache.files_by_hash()

        def path_of(sha256: str) -> Path | None:
            path = here.get(sha256)
            return path if path is not None and path.is_file() and files.hash_file(path) == sha256 else None

        return functools.cache(path_of)


def _installed_with_index(target: Path) -> record.Record | None:
    """A damaged record is told of when it is needed."""
    with contextlib.suppress(errors.DataError):
        found = record.read_record(target)
        if found is not None and found.header.embedder:
            return found
    return None


def _is_published(manifest: bytes, source: KbSource) -> bool:
    """Where a feed says what the archive is, it has to say what its manifest is, too."""
    return source.sha256 is None or hashlib.sha256(manifest).hexdigest() == source.manifest_sha256
