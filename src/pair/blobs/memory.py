"""A dict under a lock, for tests and try-outs."""

import datetime
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pair import files
from pair.blobs.contract import Blob, BlobInfo, BlobUnchanged, Version, VersionMismatchError
from pair.blobs.keys import check_key
from pair.clock import Clock


@dataclass(frozen=True, slots=True)
class _StoredBlob:
    data: bytes
    version: Version
    modified_at: datetime.datetime


class MemoryStore:
    """Lives as long as the process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._blobs: dict[str, _StoredBlob] = {}
        self._writes = 0

    @property
    def address(self) -> str:
        return "memory:"

    def get(self, key: str) -> Blob | None:
        kept = self._find(key)
        return Blob(kept.data, kept.version) if kept else None

    def get_if_changed(self, key: str, version: Version) -> Blob | BlobUnchanged | None:
        blob = self.get(key)
        return BlobUnchanged() if blob and blob.version == version else blob

    def get_range(self, key: str, start: int, length: int) -> bytes | None:
        kept = self._find(key)
        return kept.data[start : start + length] if kept else None

    def download(self, key: str, path: Path) -> bool:
        kept = self._find(key)
        if kept is None:
            return False
        with files.storage_errors():
            files.write_new_file(path, (kept.data,))
        return True

    def put(self, key: str, data: bytes) -> Version:
        with self._lock:
            return self._keep(key, data)

    def upload(self, key: str, path: Path) -> Version:
        with files.storage_errors():
            data = path.read_bytes()
        return self.put(key, data)

    def put_if(self, key: str, data: bytes, version: Version) -> Version:
        with self._lock:
            kept = self._blobs.get(check_key(key))
            if kept is None or kept.version != version:
                raise VersionMismatchError(key)
            return self._keep(key, data)

    def create(self, key: str, data: bytes) -> Version:
        with self._lock:
            if check_key(key) in self._blobs:
                raise VersionMismatchError(key)
            return self._keep(key, data)

    def list(self, prefix: str) -> Iterator[BlobInfo]:
        with self._lock:
            found = [(key, self._blobs[key]) for key in sorted(self._blobs) if key.startswith(prefix)]
        return (BlobInfo(key, len(kept.data), kept.modified_at) for key, kept in found)

    def delete(self, key: str) -> None:
        with self._lock:
            self._blobs.pop(check_key(key), None)

    def close(self) -> None:
        """Nothing is open."""

    def _find(self, key: str) -> _StoredBlob | None:
        with self._lock:
            return self._blobs.get(check_key(key))

    def _keep(self, key: str, data: bytes) -> Version:
        self._writes += 1
        version = Version(f"{self._writes}")
        self._blobs[check_key(key)] = _StoredBlob(bytes(data), version, self._clock.now())
        return version
