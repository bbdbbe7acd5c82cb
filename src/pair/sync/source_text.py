"""The texts of sources: read from files, kept of fetched pages, and handed to the engine as documents."""

import hashlib
import os
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pair import files
from pair.sync.contract import Documents, UnreadableDocument
from pair.sync.discover import SyncPaths
from pair.sync.rules import FileSeen
from pair.sync.store import read_state
from pair.values import Document

DOCUMENT_SUFFIXES = frozenset({".pdf", ".docx", ".html", ".htm"})
_NEEDS_DOCUMENTS = frozenset({".pdf", ".docx"})
_TOO_LARGE = "larger than"


def decode(content: bytes) -> str | None:
    """Decode UTF-8 without its byte order mark; None when it is not text."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None


def normalise(text: str) -> str:
    """Make line ends LF, and remove space at line ends and blank lines around the text."""  # sync-46
    lines = [line.rstrip() for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n")]
    first, last = 0, len(lines)
    while first < last and not lines[first]:
        first += 1
    while last > first and not lines[last - 1]:
        last -= 1
    return "\n".join(lines[first:last])


def content_hash(text: str) -> str:
    """Return the SHA-256 of the normalised text."""  # sync-45
    return hashlib.sha256(normalise(text).encode("utf-8", errors="surrogatepass")).hexdigest()


def find_title(content: str) -> str:
    """Return the first heading of a text that has one near its top; else an empty text."""
    for line in content[:8192].splitlines()[:20]:
        if line.startswith("# "):
            return line[2:].strip()[:200]
    return ""


@dataclass(frozen=True)
class FileTextReader:
    """`documents` is None when its extra is not installed."""

    folder: Path
    max_bytes: int
    documents: Documents | None

    def text_of(self, path: str, seen: FileSeen) -> str:
        """Raises UnreadableDocument for a file that is no source, with the reason; OSError."""
        if seen.size_bytes > self.max_bytes:
            raise UnreadableDocument(f"{_TOO_LARGE} {self.max_bytes:,} bytes")
        return self.text_of_any_size(path)

    def text_of_any_size(self, path: str) -> str:
        """Raises as `text_of` does."""
        suffix = _read_suffix(path)
        if suffix in DOCUMENT_SUFFIXES and self.documents is not None:
            return self.documents.text_of(self.folder / path)
        if suffix in _NEEDS_DOCUMENTS:
            raise UnreadableDocument(_explain_extra(path))
        text = decode((self.folder / path).read_bytes())
        if text is None:
            raise UnreadableDocument("not UTF-8 text")
        return text

    def may_read_now(self, path: str, reason: str, size_bytes: int) -> bool:
        """Return whether a file that was no source may be one now: the extra was installed, or the limit raised."""
        if reason == _explain_extra(path):
            return self.documents is not None
        return reason.startswith(_TOO_LARGE) and size_bytes <= self.max_bytes


def _read_suffix(path: str) -> str:
    return os.path.splitext(path)[1].lower()  # noqa: PTH122 - no Path for each of 20,000 files


def _explain_extra(path: str) -> str:
    return f"{_read_suffix(path)} files need an extra: pip install 'pair-kb[documents]'"


class PageCache:
    """The text of each fetched page, in a file named by the SHA-256 of its URL."""  # sync-44

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._idle = threading.Condition()
        self._writing = 0
        self._is_closed = False

    def write(self, url: str, text: str) -> str:
        """Write the copy. Return the text as written, without what UTF-8 cannot hold: that is what is hashed."""
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


class SyncedDocuments:
    """The synced sources as documents, as last saved. Raises E102 for a state that cannot be read."""

    def __init__(self, paths: SyncPaths, reader: FileTextReader) -> None:
        self._reader = reader
        self._copies = PageCache(paths.page_copies)
        self._state = read_state(paths.cache)

    def revisions(self) -> dict[str, str]:
        """Return the content hash of each source, by its id."""
        return {source_id: value["content_hash"] for source_id, value in self._state.sources.items()}

    def seen_at(self, source_id: str) -> str:
        """Return when a source was last fetched, or last read if it is a file; "" for one that is not known."""
        value = self._state.sources.get(source_id, {})
        return str(value.get("url", {}).get("last_fetched_at") or value.get("last_indexed_at") or "")

    def describe_sources(self) -> Iterator[tuple[str, str, str, str]]:
        """Yield what the index says of each source: id, description, URL ("" for a file), and when it was last seen."""
        for source_id, value in sorted(self._state.sources.items()):
            url = source_id if self._state.url(source_id) is not None else ""
            yield source_id, str(value["summary_text"]), url, self.seen_at(source_id)

    def revision_of(self, content: str) -> str:
        """Return what `revisions` says of a source with this text."""
        return content_hash(content)

    def document(self, source_id: str) -> Document | None:
        """Return None for a source whose text is gone meanwhile: the next sync will tell."""
        is_url = self._state.url(source_id) is not None
        text = self._copies.read(source_id) if is_url else self._read_file(source_id)
        if text is None:
            return None
        return Document(
            id=source_id,
            text=text,
            title=find_title(text) or (source_id if is_url else Path(source_id).name),
            url=source_id if is_url else "",
            metadata={"kind": "url" if is_url else "file"},
        )

    def _read_file(self, source_id: str) -> str | None:
        try:
            return self._reader.text_of_any_size(source_id)
        except (OSError, UnreadableDocument):
            return None
