"""The texts of sources: read from files, stored for fetched pages, and passed to the engine as documents."""

import codecs
import hashlib
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pair import files
from pair.reading.contract import Reader, Reading, UnreadableDocument
from pair.reading.process import explain_extra, has_ocr, read_ahead
from pair.reading.reader import find_kind, find_title
from pair.sync.discover import SyncPaths
from pair.sync.rules import FileSeen, SyncSettings
from pair.sync.state import ItemRecord, UrlRecord, read_collection
from pair.sync.store import read_state
from pair.values import Document

_TOO_LARGE = "larger than"
_EXTRA = "need an extra"


def normalise(text: str) -> str:
    """Make line ends LF, and remove space at line ends and blank lines around the text."""  # sync-46
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return "\n".join(line.rstrip() for line in lines).strip("\n")


def content_hash(text: str) -> str:
    """Return the SHA-256 of the normalised text."""  # sync-45
    return hashlib.sha256(normalise(text).encode("utf-8", errors="surrogatepass")).hexdigest()


def hash_reading(reading: Reading) -> str:
    """Return the hash of a text, and of title and metadata that are not part of the text."""
    if not reading.metadata and reading.title in {"", find_title(reading.text)}:
        return content_hash(reading.text)
    said = json.dumps([reading.title, reading.metadata], sort_keys=True)
    return content_hash(f"{normalise(reading.text)}\n\0{said}")


def describe_reading(reading: Reading) -> str:
    """Return the text to summarise: with title and description first if the text lacks them."""
    title, description = reading.title, reading.metadata.get("description")
    above = [f"# {title}"] if title and title != find_title(reading.text) else []
    above += [description] if isinstance(description, str) else []
    return "\n\n".join([*above, reading.text])


@dataclass(frozen=True)
class FileTextReader:
    """A reader of the files of a folder, and of named collections by their ids."""

    folder: Path
    max_bytes: int
    reader: Reader
    folders: Mapping[str, Path] = field(default_factory=dict)
    """The folders of named collections."""

    def read(self, path: str, seen: FileSeen) -> Reading:
        """Read a file. Raises OSError, and UnreadableDocument with the reason if it is not a source."""
        if seen.size_bytes > self.max_bytes:
            raise UnreadableDocument(f"{_TOO_LARGE} {self.max_bytes:,} bytes")
        return self.read_any_size(path, seen.collection)

    def read_any_size(self, path: str, collection: str = "") -> Reading:
        """Read a file without a size limit; raise as `read` does. `collection`: the one whose name begins the path."""
        place = self.folders[collection] / path[len(collection) + 1 :] if collection else self.folder / path
        return self.reader.read(place.read_bytes(), path)

    def is_plain(self, path: str) -> bool:
        """Return whether a file is plain text, so that every version of the reader reads the same."""
        content = (self.folder / path).read_bytes()
        return self.reader.read(content, path).text.encode() == content.removeprefix(codecs.BOM_UTF8)

    def may_read_now(self, path: str, reason: str, size_bytes: int) -> bool:
        """Return whether a skipped file may be a source now: the extra was installed, or the limit raised."""
        if _EXTRA in reason:
            return has_ocr() if "[ocr]" in reason else not explain_extra(find_kind(path))
        return reason.startswith(_TOO_LARGE) and size_bytes <= self.max_bytes


def make_file_reader(paths: SyncPaths, settings: SyncSettings, reader: Reader) -> FileTextReader:
    """Return the reader of the files of all collections."""
    folders = paths.folders
    return FileTextReader(folders.get("", Path()), settings.max_source_bytes, reader, folders)


class PageCache:
    """The text of each fetched page, in a file named by the SHA-256 of its URL."""  # sync-44

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._idle = threading.Condition()
        self._writing = 0
        self._is_closed = False

    def write(self, url: str, text: str) -> str:
        """Write the copy. Return the written text, without characters that UTF-8 cannot encode, to hash it."""
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

    def read_page(self, record: UrlRecord | ItemRecord) -> Reading | None:
        """Return the copy of a page or an item, with the fields of its record."""
        text = self.read(record.source_id)
        if text is None:
            return None
        return Reading(text, record.title or find_title(text), record.metadata)

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

    def __init__(self, paths: SyncPaths, make_reader: Callable[[], FileTextReader]) -> None:
        """Read the state. `make_reader`: called with the first file, because the state alone answers most calls."""
        self._make_reader = make_reader
        self._copies = PageCache(paths.page_copies)
        self._state = read_state(paths.cache)

    def revisions(self) -> dict[str, str]:
        """Return the content hash of each source with its collection, by its id."""
        return {
            source_id: _make_revision(value["content_hash"], read_collection(value))
            for source_id, value in self._state.sources.items()
        }

    def seen_at(self, source_id: str) -> str:
        """Return when a source was last fetched, or last read if it is a file; "" for an unknown source."""
        value = self._state.sources.get(source_id, {})
        kept = value.get("url") or value.get("item") or {}
        return str(kept.get("last_fetched_at") or value.get("last_indexed_at") or "")

    def describe_sources(self) -> Iterator[tuple[str, str, str, str]]:
        """Yield the index entry of each source: id, description, URL ("" for a file), and the time it was last seen."""
        for source_id, value in sorted(self._state.sources.items()):
            yield source_id, str(value["summary_text"]), self._find_url(source_id), self.seen_at(source_id)

    def documents(self, source_ids: Sequence[str]) -> Iterator[tuple[str, Document | None, str]]:
        """Yield each id with its document and revision, in this order. Threads read ahead."""
        for source_id, reading in zip(source_ids, read_ahead(self._read, source_ids), strict=True):
            if reading is None:
                yield source_id, None, ""
            else:
                revision = _make_revision(hash_reading(reading), self._find_collection(source_id))
                yield source_id, self._make_document(source_id, reading), revision

    def document(self, source_id: str) -> Document | None:
        """Return a document; None for a source that can no longer be read. The next sync reports it."""
        reading = self._read(source_id)
        return None if reading is None else self._make_document(source_id, reading)

    def _make_document(self, source_id: str, reading: Reading) -> Document:
        kind = self._state.sources[source_id]["source_type"]
        document = make_document(source_id, reading, url=self._find_url(source_id), kind=kind)
        name = self._find_collection(source_id)
        return replace(document, metadata={**document.metadata, "collection": name}) if name else document

    def _find_url(self, source_id: str) -> str:
        """Return the URL of a source for display; "" for a file."""
        value = self._state.sources[source_id]
        return source_id if "url" in value else str(value.get("item", {}).get("item_url", ""))

    def _find_collection(self, source_id: str) -> str:
        value = self._state.sources.get(source_id)
        return "" if value is None else read_collection(value)

    def _read(self, source_id: str) -> Reading | None:
        record = self._state.page(source_id)
        if record is not None:
            return self._copies.read_page(record)
        try:
            return self._make_reader().read_any_size(source_id, self._find_collection(source_id))
        except (OSError, LookupError, UnreadableDocument):
            return None


def _make_revision(content_hash: str, collection: str) -> str:
    """Return a hash that changes with the text, title, metadata or collection of a document."""
    return f"{content_hash} {collection}" if collection else content_hash


def make_document(source_id: str, reading: Reading, *, url: str = "", kind: str = "") -> Document:
    """Return a reading as a document. Without a title, the document is titled by its URL or file name."""
    return Document(
        id=source_id,
        text=reading.text,
        title=reading.title or url or Path(source_id).name,
        url=url,
        metadata=reading.metadata | {"kind": kind or ("url" if url else "file")},
    )
