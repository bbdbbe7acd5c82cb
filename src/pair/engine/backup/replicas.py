"""Where else a file of a shard may be, byte for byte: in the cache, in packages and exports, beside other shards."""

import shutil
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pair import errors, files
from pair.blobs.contract import BlobStore
from pair.engine.format.manifest import FileRole, ShardRef, file_name, shards_prefix
from pair.engine.storage.shard_cache import ShardCache

_IN_ARCHIVES = ("index/shards/", ".pair-index/shards/")


@dataclass(frozen=True, slots=True)
class Replica:
    path: Path
    origin: str
    """For people."""


class Replicas:
    def __init__(self, kb_id: str, cache: ShardCache, store: BlobStore, archives: Sequence[Path]) -> None:
        """Raises E003, E225 for an archive that cannot be used."""
        self._kb_id = kb_id
        self._cache = cache
        self._store = store
        self._archives = [(path, _entries_of(path)) for path in archives]

    def find(self, ref: ShardRef, role: FileRole, folder: Path) -> Replica | None:
        """A file with the right SHA-256; what has to be fetched is put into the folder. Raises E206, E010."""
        wanted = folder / f"spare-{file_name(ref.shard_id, role)}"
        for spare in self._candidates(ref, role, wanted):
            with files.storage_errors():
                if files.hash_file(spare.path) == ref.files[role].sha256:
                    return spare
            wanted.unlink(missing_ok=True)
        return None

    def _candidates(self, ref: ShardRef, role: FileRole, wanted: Path) -> Iterator[Replica]:
        kept = self._cache.place(ref) / file_name(ref.shard_id, role)
        if kept.is_file():
            yield Replica(kept, "the local cache")
        suffix, size = wanted.suffix, ref.files[role].size_bytes
        for archive, entries in self._archives:
            for entry in entries:
                if entry.file_size == size and entry.filename.endswith(suffix) and _unpacked(archive, entry, wanted):
                    yield Replica(wanted, str(archive))
        for info in list(self._store.list(shards_prefix(self._kb_id))):
            is_other = info.key != ref.key(role) and info.size_bytes == size and info.key.endswith(suffix)
            if is_other and self._store.download(info.key, wanted):
                yield Replica(wanted, "another shard of this knowledge base")


def _entries_of(path: Path) -> list[zipfile.ZipInfo]:
    if not path.is_file():
        raise errors.source_path_missing(str(path))
    try:
        with files.storage_errors(), zipfile.ZipFile(path) as archive:
            return [each for each in archive.infolist() if each.filename.startswith(_IN_ARCHIVES)]
    except zipfile.BadZipFile as fault:
        raise errors.export_not_understood(str(path), "it is not a zip") from fault


def _unpacked(path: Path, entry: zipfile.ZipInfo, wanted: Path) -> bool:
    """False for an entry that is damaged itself."""
    try:
        with (
            files.storage_errors(),
            zipfile.ZipFile(path) as archive,
            archive.open(entry) as source,
            wanted.open("wb") as sink,
        ):
            shutil.copyfileobj(source, sink, files.CHUNK_BYTES)
    except (zipfile.BadZipFile, zlib.error, EOFError):
        wanted.unlink(missing_ok=True)
        return False
    return True
