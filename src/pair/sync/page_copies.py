"""Copies of fetched pages on disk, by URL hash, so that a summary never needs a second request."""

import contextlib
import hashlib
from collections.abc import Iterable
from pathlib import Path

from pair import files


class PageCopies:
    """The text of each fetched page, in a file named by the SHA-256 of its URL."""  # sync-44

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, url: str, text: str) -> str:
        """Returns the text as it was written, without what UTF-8 cannot hold: that is what is hashed."""
        self._folder.mkdir(parents=True, exist_ok=True)
        content = text.encode("utf-8", errors="replace")
        files.write_atomically(self._path(url), content)
        return content.decode("utf-8")

    def read(self, url: str) -> str | None:
        try:
            return self._path(url).read_bytes().decode("utf-8", errors="replace")
        except FileNotFoundError:
            return None

    def exists(self, url: str) -> bool:
        return self._path(url).exists()

    def remove(self, url: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._path(url).unlink()

    def remove_half_written(self, urls: Iterable[str]) -> None:
        files.remove_half_written(*map(self._path, urls))

    def _path(self, url: str) -> Path:
        return self._folder / hashlib.sha256(url.encode()).hexdigest()
