"""Read-only blobs inside a zip archive."""

import datetime
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

from pair import errors, files
from pair.blobs.contract import Blob, BlobInfo, BlobUnchanged, Version


class ZipStore:
    """A read-only store. `name_of` returns the name of a key in the archive, or None. A damaged entry is E009."""

    def __init__(self, path: Path, archive: zipfile.ZipFile, name_of: Callable[[str], str | None]) -> None:
        self.address = str(path)
        self._path = path
        self._archive = archive
        self._name_of = name_of
        self._entries = {entry.filename: entry for entry in archive.infolist()}

    def get(self, key: str) -> Blob | None:
        entry = self._entry(key)
        if entry is None:
            return None
        return Blob(self._read(entry, 0, entry.file_size), Version(f"{entry.CRC:x}-{entry.file_size:x}"))

    def get_if_changed(self, key: str, version: Version) -> Blob | BlobUnchanged | None:
        return BlobUnchanged() if self._entry(key) is not None else None

    def get_range(self, key: str, start: int, length: int) -> bytes | None:
        entry = self._entry(key)
        return None if entry is None else self._read(entry, start, length)

    def download(self, key: str, path: Path) -> bool:
        entry = self._entry(key)
        if entry is None:
            return False
        with files.storage_errors():
            try:
                with self._archive.open(entry) as stream:
                    files.write_new_file(path, iter(lambda: stream.read(files.CHUNK_BYTES), b""))
            except (zipfile.BadZipFile, zlib.error, EOFError) as fault:
                raise self._damage_error(entry) from fault
        return True

    def _refuse_write(self, *_: object) -> NoReturn:
        raise errors.storage_failed(self.address, "a package cannot be written to")

    put = upload = put_if = create = delete = _refuse_write

    def list(self, prefix: str) -> Iterator[BlobInfo]:
        """List the blob whose key equals the prefix. An archive has names, not keys, so other blobs cannot be found."""
        entry = self._entry(prefix)
        if entry is not None:
            yield BlobInfo(prefix, entry.file_size, datetime.datetime(*entry.date_time, tzinfo=datetime.UTC))

    def close(self) -> None:
        self._archive.close()

    def _entry(self, key: str) -> zipfile.ZipInfo | None:
        name = self._name_of(key)
        return None if name is None else self._entries.get(name)

    def _read(self, entry: zipfile.ZipInfo, start: int, length: int) -> bytes:
        try:
            with self._archive.open(entry) as stream:
                stream.seek(start)
                return stream.read(length)
        except (zipfile.BadZipFile, zlib.error, EOFError) as fault:
            raise self._damage_error(entry) from fault

    def _damage_error(self, entry: zipfile.ZipInfo) -> errors.DownloadError:
        return errors.archive_refused(self._path.name, f"damaged entry: {entry.filename!r}")


def open_zip_store(path: Path, name_of: Callable[[str], str | None]) -> ZipStore:
    """Open an archive. Raises E009, E010."""
    with files.storage_errors():
        try:
            return ZipStore(path, zipfile.ZipFile(path), name_of)
        except (zipfile.BadZipFile, ValueError, NotImplementedError) as fault:
            raise errors.archive_refused(path.name, "it is not a complete zip archive") from fault
