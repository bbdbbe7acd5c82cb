"""Documents as one manifest has them: by id, a page of them, one of them."""

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
from pair.engine.write.writer import find_stored

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
        return {
            "id": self.id,
            "title": self.title,
            "url": self.url,
            "owner": self.owner,
            "metadata": dict(self.metadata),
            "chunks": self.chunks,
            "content_hash": self.content_hash,
            "text": self.text,
        }


class DocumentReader:
    """Raises ShardMissingError, E205, E206, E207."""

    def __init__(self, manifest: Manifest, cache: ShardCache, now: float) -> None:
        self._manifest = manifest
        self._cache = cache
        self._now = now

    def page(self, after: str, limit: int, owner: str | None) -> list[StoredDocument]:
        """By id, from the first that comes after `after`."""
        wanted = (each for each in self._live(after) if owner is None or each[0].owner == owner)
        return [self._document(position, listed) for listed, position in itertools.islice(wanted, limit)]

    def holding(self, text: str, after: str, limit: int, owner: str | None) -> tuple[list[StoredDocument], str | None]:
        """Those with this text in their id or title, in any case; and the id to go on after, if there may be more."""
        wanted = text.casefold()
        found: list[StoredDocument] = []
        for number, (listed, position) in enumerate(self._live(after), 1):
            if owner is None or listed.owner == owner:
                title = self._search_file(position).header(listed.doc).title
                if wanted in listed.id.casefold() or wanted in title.casefold():
                    found.append(self._document(position, listed))
            if len(found) == limit or number == _MOST_LOOKED_AT:
                return found, listed.id
        return found, None

    def document(self, document_id: str) -> StoredDocument:
        """Raises E214."""
        position, number, content_hash = self._place(document_id)
        return self._document(position, ListedDocument(document_id, "", content_hash, number))

    def place(self, document_id: str) -> tuple[int, int]:
        """The position of its shard, and its number in it. Raises E214."""
        return self._place(document_id)[:2]

    def text(self, document_id: str) -> str | None:
        """None where there is none."""
        found = find_stored(self._manifest, self._cache, [document_id]).get(document_id)
        return None if found is None else self._search_file(found.position).text(found.doc)

    def hashes(self, owner: str) -> dict[str, str]:
        """The content hash of each document of this owner."""
        return {each.id: each.content_hash for each, _ in self._live("") if each.owner == owner}

    def packaged_ids(self) -> set[str]:
        """Of documents that came with a package."""
        return {each.id for each, position in self._live("") if self._manifest.shards[position].origin}

    def _place(self, document_id: str) -> tuple[int, int, str]:
        found = find_stored(self._manifest, self._cache, [document_id]).get(document_id)
        if found is None:
            raise errors.no_such_document(self._manifest.kb_id, document_id)
        return found.position, found.doc, found.content_hash

    def _live(self, after: str) -> Iterator[tuple[ListedDocument, int]]:
        """By id, each with the position of its shard."""
        streams = [self._live_in(position, after) for position in range(len(self._manifest.shards))]
        return heapq.merge(*streams, key=lambda each: each[0].id)

    def _live_in(self, position: int, after: str) -> Iterator[tuple[ListedDocument, int]]:
        shard = self._manifest.shards[position]
        for listed in self._cache.open(shard).ids().after(after):
            if shard.tombstones is None or not shard.tombstones[listed.doc]:
                yield listed, position

    def _search_file(self, position: int) -> SearchFile:
        return self._cache.open(self._manifest.shards[position]).search(self._now)

    def _document(self, position: int, listed: ListedDocument) -> StoredDocument:
        search = self._search_file(position)
        header = search.header(listed.doc)
        chunks = int(np.count_nonzero(search.doc_of_row == listed.doc))
        return StoredDocument(
            header.id,
            search.text(listed.doc),
            header.title,
            header.url,
            header.metadata,
            header.owner,
            listed.content_hash,
            chunks,
        )
