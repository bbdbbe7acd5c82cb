"""Documents of one manifest: a page of them by id, or one of them."""

import heapq
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pair import errors
from pair.engine.format.manifest import Manifest
from pair.engine.format.shard import ListedDocument, SearchFile
from pair.engine.storage.shard_cache import ShardCache
from pair.engine.write.writer import DocumentLocation, find_stored, list_live

_MOST_LOOKED_AT = 5000
"""Documents, for one page of those that hold a text."""


@dataclass(frozen=True, slots=True)
class StoredDocument:
    """A document as it is stored."""

    id: str
    text: str
    title: str
    url: str
    metadata: Mapping[str, Any]
    owner: str
    content_hash: str
    chunks: int

    def to_json(self) -> dict[str, Any]:
        names = ("id", "title", "url", "owner", "metadata", "chunks", "content_hash", "text")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, slots=True)
class DocumentReader:
    """Raises ShardMissingError, E205, E206, E207."""

    manifest: Manifest
    cache: ShardCache
    now: float

    def page(self, after: str, limit: int, owner: str | None) -> list[StoredDocument]:
        """Return documents by id, from the first after `after`."""
        wanted = (entry for entry in self._live(after) if owner is None or entry[0].owner == owner)
        return [
            self._document(position, listed.doc, listed.content_hash)
            for listed, position in itertools.islice(wanted, limit)
        ]

    def holding(self, text: str, after: str, limit: int, owner: str | None) -> tuple[list[StoredDocument], str | None]:
        """Return documents with this text in their id or title, and the id to go on after, if there may be more."""
        wanted = text.casefold()
        documents: list[StoredDocument] = []
        for number, (listed, position) in enumerate(self._live(after), 1):
            if owner is None or listed.owner == owner:
                title = self._search_file(position).header(listed.doc).title
                if wanted in listed.id.casefold() or wanted in title.casefold():
                    documents.append(self._document(position, listed.doc, listed.content_hash))
            if len(documents) == limit or number == _MOST_LOOKED_AT:
                return documents, listed.id
        return documents, None

    def document(self, document_id: str) -> StoredDocument:
        """Raises E214."""
        place = self.place(document_id)
        return self._document(place.position, place.doc, place.content_hash)

    def place(self, document_id: str) -> DocumentLocation:
        """Return where a document is stored. Raises E214."""
        place = find_stored(self.manifest, self.cache, [document_id]).get(document_id)
        if place is None:
            raise errors.no_such_document(self.manifest.kb_id, document_id)
        return place

    def text(self, document_id: str) -> str | None:
        """Return None where there is no such document."""
        place = find_stored(self.manifest, self.cache, [document_id]).get(document_id)
        return None if place is None else self._search_file(place.position).text(place.doc)

    def hashes(self, owner: str) -> dict[str, str]:
        """Return the content hash of each document of this owner."""
        return {listed.id: listed.content_hash for listed, _ in self._live("") if listed.owner == owner}

    def packaged_ids(self) -> set[str]:
        """Return the ids of documents that came with a package."""
        return {listed.id for listed, position in self._live("") if self.manifest.shards[position].origin}

    def _live(self, after: str) -> Iterator[tuple[ListedDocument, int]]:
        """Yield the live documents by id, each with the position of its shard."""
        shards = (
            zip(list_live(shard, self.cache.open(shard).ids(), after), itertools.repeat(position))
            for position, shard in enumerate(self.manifest.shards)
        )
        return heapq.merge(*shards, key=lambda entry: entry[0].id)

    def _search_file(self, position: int) -> SearchFile:
        return self.cache.open(self.manifest.shards[position]).search(self.now)

    def _document(self, position: int, doc: int, content_hash: str) -> StoredDocument:
        search = self._search_file(position)
        header = search.header(doc)
        return StoredDocument(
            id=header.id,
            text=search.text(doc),
            title=header.title,
            url=header.url,
            metadata=header.metadata,
            owner=header.owner,
            content_hash=content_hash,
            chunks=int(np.count_nonzero(search.doc_of_row == doc)),
        )
