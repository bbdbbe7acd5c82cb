"""Copies of fetched pages on disk, by URL hash, so that a summary never needs a second request."""

import hashlib
import threading
from collections.abc import Iterable
from pathlib import Path

from pair import files


class PageCache:
    """The text of each fetched page, in a file named by the SHA-256 of its URL."""  # sync-44

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._idle = threading.Condition()
        self._writing = 0
        self._is_closed = False

    def write(self, url: str, text: str) -> str:
        """Returns the text as it was written, without what UTF-8 cannot hold: that is what is hashed."""
        with self._idle:
            if self._is_closed:
                raise RuntimeError("a page came after the run was abandoned")
            self._writing += 1
        try:
            files.make_folder(self._folder)
            content = text.encode("utf-8", errors="replace")
            files.write_atomically(self._path(url), content)
            return content.decode("utf-8")
        finally:
            with self._idle:
                self._writing -= 1
                self._idle.notify_all()

    def close(self) -> None:
        """Wait for copies that are being written, and refuse others."""
        with self._idle:
            self._is_closed = True
            self._idle.wait_for(lambda: self._writing == 0)

    def read(self, url: str) -> str | None:
        try:
            return self._path(url).read_bytes().decode("utf-8", errors="replace")
        except FileNotFoundError:
            return None

    def exists(self, url: str) -> bool:
        return self._path(url).exists()

    def remove(self, url: str) -> None:
        files.unlink(self._path(url), missing_ok=True)

    def remove_half_written(self, urls: Iterable[str]) -> None:
        files.remove_half_written(*map(self._path, urls))

    def _path(self, url: str) -> Path:
        return self._folder / hashlib.sha256(url.encode()).hexdigest()
