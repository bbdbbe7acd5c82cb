"""Blobs in memory, for tests and trials."""

import datetime
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pair import files
from pair.blobs.contract import Blob, BlobInfo, BlobUnchanged, Version, VersionMismatchError
from pair.blobs.key_encoding import check_key
from pair.clock import Clock


@dataclass(frozen=True, slots=True)
class _StoredBlob:
    data: bytes
    version: Version
    modified_at: datetime.datetime


class MemoryStore:
    """A dict under a lock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._blobs: dict[str, _StoredBlob] = {}
        self._writes = 0

    @property
    def address(self) -> str:
        return "memory:"

    def get(self, key: str) -> Blob | None:
        stored = self._find(key)
        return Blob(stored.data, stored.version) if stored else None

    def get_if_changed(self, key: str, version: Version) -> Blob | BlobUnchanged | None:
        blob = self.get(key)
        return BlobUnchanged() if blob and blob.version == version else blob

    def get_range(self, key: str, start: int, length: int) -> bytes | None:
        stored = self._find(key)
        return stored.data[start : start + length] if stored else None

    def download(self, key: str, path: Path) -> bool:
        stored = self._find(key)
        if stored is None:
            return False
        with files.storage_errors():
            files.write_new_file(path, (stored.data,))
        return True

    def put(self, key: str, data: bytes) -> Version:
        with self._lock:
            return self._store(key, data)

    def upload(self, key: str, path: Path) -> Version:
        with files.storage_errors():
            data = path.read_bytes()
        return self.put(key, data)

    def put_if(self, key: str, data: bytes, version: Version) -> Version:
        with self._lock:
            stored = self._blobs.get(check_key(key))
            if stored is None or stored.version != version:
                raise VersionMismatchError(key)
            return self._store(key, data)

    def create(self, key: str, data: bytes) -> Version:
        with self._lock:
            if check_key(key) in self._blobs:
                raise VersionMismatchError(key)
            return self._store(key, data)

    def list(self, prefix: str) -> Iterator[BlobInfo]:
        with self._lock:
            blobs = [(key, self._blobs[key]) for key in sorted(self._blobs) if key.startswith(prefix)]
        return (BlobInfo(key, len(stored.data), stored.modified_at) for key, stored in blobs)

    def delete(self, key: str) -> None:
        with self._lock:
            self._blobs.pop(check_key(key), None)

    def close(self) -> None:
        """Do nothing: nothing is open."""

    def _find(self, key: str) -> _StoredBlob | None:
        with self._lock:
            return self._blobs.get(check_key(key))

    def _store(self, key: str, data: bytes) -> Version:
        self._writes += 1
        version = Version(f"{self._writes}")
        self._blobs[check_key(key)] = _StoredBlob(bytes(data), version, self._clock.now())
        return version
