"""Synced sources as documents: what the engine is brought in line with.

Not here
    Bringing it in line: kb/kb.py.
"""

from dataclasses import dataclass
from pathlib import Path

from pair.sync import store, text
from pair.sync.contract import UnreadableDocument
from pair.sync.discover import SyncPaths
from pair.sync.file_text import FileTextReader
from pair.sync.page_cache import PageCache
from pair.sync.state import SyncState
from pair.values import Document


@dataclass(frozen=True, slots=True)
class DescribedSource:
    source_id: str
    description: str
    url: str
    """"" for a file."""
    last_fetched_at: str


class SyncedDocuments:
    """What was synced, as last saved. Raises ValueError for a state that cannot be read."""

    def __init__(self, places: SyncPaths, reader: FileTextReader) -> None:
        self._reader = reader
        self._copies = PageCache(places.page_copies)
        self._state: SyncState = store.read(places.cache).state

    def revisions(self) -> dict[str, str]:
        """The content hash of each source, by its id."""
        return {source_id: value["content_hash"] for source_id, value in self._state.sources.items()}

    def seen_at(self, source_id: str) -> str:
        """When a source was last fetched, or last read if it is a file; "" for one that is not known."""
        value = self._state.sources.get(source_id, {})
        return str(value.get("url", {}).get("last_fetched_at") or value.get("last_indexed_at") or "")

    def described(self) -> list[DescribedSource]:
        """What the index says of each source."""
        return [
            DescribedSource(
                source_id,
                str(value["summary_text"]),
                source_id if self._state.url(source_id) is not None else "",
                self.seen_at(source_id),
            )
            for source_id, value in sorted(self._state.sources.items())
        ]

    def revision_of(self, content: str) -> str:
        """What `revisions` says of a source with this text."""
        return text.content_hash(content)

    def document(self, source_id: str) -> Document | None:
        """None for a source whose text is gone meanwhile: the next sync will tell."""
        is_url = self._state.url(source_id) is not None
        content = self._copies.read(source_id) if is_url else self._text_of_file(source_id)
        if content is None:
            return None
        return Document(
            id=source_id,
            text=content,
            title=text.title_of(content) or (source_id if is_url else Path(source_id).name),
            url=source_id if is_url else "",
            metadata={"kind": "url" if is_url else "file"},
        )

    def _text_of_file(self, source_id: str) -> str | None:
        try:
            return self._reader.text_of_any_size(source_id)
        except (OSError, UnreadableDocument):
            return None
