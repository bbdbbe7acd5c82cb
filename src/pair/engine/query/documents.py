"""Documents of one manifest: pages by id, single documents, and counts of metadata values."""

import heapq
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pair import errors
from pair.engine.filters import Filter, StoredValue
from pair.engine.format.columns import hash_ids
from pair.engine.format.manifest import Manifest
from pair.engine.format.metadata_index import Mask
from pair.engine.format.shard import ListedDocument, SearchFile
from pair.engine.storage.shard_cache import ShardCache
from pair.engine.write.writer import DocumentLocation, find_stored, live_mask

_MOST_LOOKED_AT = 5000
"""Maximum number of documents to examine for one page of matches."""
_Listed = tuple[ListedDocument, int]


@dataclass(frozen=True, slots=True)
class StoredDocument:
    """A document in the KB."""

    id: str
    text: str
    title: str
    url: str
    metadata: Mapping[str, Any]
    owner: str
    content_hash: str
    chunks: int
    vector: Sequence[float] | None = None
    """The vector of its only chunk, if requested."""

    def to_json(self) -> dict[str, Any]:
        names = ("id", "title", "url", "owner", "metadata", "chunks", "content_hash", "text")
        value = {name: getattr(self, name) for name in names}
        return value if self.vector is None else value | {"vector": list(self.vector)}


class DocumentPage(list[StoredDocument]):
    """A page of documents, in the order of their ids."""

    next: str | None
    """The `after` of the next page; None at the end."""

    def __init__(self, documents: Iterable[StoredDocument], following: str | None) -> None:
        super().__init__(documents)
        self.next = following


@dataclass(frozen=True, slots=True)
class Facet:
    """A value of a metadata key, and the number of documents that have it. True and false are strings."""

    value: str | int | float
    count: int


@dataclass(frozen=True, slots=True)
class DocumentSelection:
    """A selection of documents by owner, metadata and ids, which must all match. None matches any document."""

    owner: str | None = None
    condition: Filter | None = None
    ids: frozenset[str] | None = None


_EVERYTHING = DocumentSelection()


@dataclass(frozen=True, slots=True)
class DocumentReader:
    """The documents of one manifest. Raises ShardMissingError, E205, E206, E207."""

    manifest: Manifest
    cache: ShardCache
    now: float

    def page(self, selection: DocumentSelection, after: str, limit: int) -> DocumentPage:
        """Return the selected documents in the order of their ids, starting after `after`."""
        documents = [
            self._document(position, listed.doc, listed.content_hash)
            for listed, position in itertools.islice(self._live(after, selection), limit)
        ]
        return DocumentPage(documents, documents[-1].id if documents and len(documents) == limit else None)

    def add_vectors(self, page: DocumentPage) -> DocumentPage:
        """Return the page with the vectors of documents of one chunk."""
        places = find_stored(self.manifest, self.cache, [document.id for document in page if document.chunks == 1])
        vectors: dict[str, list[float]] = {}
        for document_id, place in places.items():
            search = self._search_file(place.position)
            rows = np.flatnonzero(search.doc_of_row == place.doc)
            vectors[document_id] = search.row_vectors(rows)[0].tolist()
        documents = (replace(document, vector=vectors.get(document.id)) for document in page)
        return DocumentPage(documents, page.next)

    def holding(self, text: str, selection: DocumentSelection, after: str, limit: int) -> DocumentPage:
        """Return the selected documents with this text in their id or title. A page may be empty before the end."""
        wanted = text.casefold()
        documents: list[StoredDocument] = []
        for number, (listed, position) in enumerate(self._live(after, selection), 1):
            title = self._search_file(position).header(listed.doc).title
            if wanted in listed.id.casefold() or wanted in title.casefold():
                documents.append(self._document(position, listed.doc, listed.content_hash))
            if len(documents) == limit or number == _MOST_LOOKED_AT:
                return DocumentPage(documents, listed.id)
        return DocumentPage(documents, None)

    def count(self, selection: DocumentSelection) -> int:
        """Return the number of selected documents."""
        positions = range(len(self.manifest.shards))
        return sum(int(np.count_nonzero(self._select(position, selection))) for position in positions)

    def facets(self, key: str, selection: DocumentSelection, limit: int) -> list[Facet]:
        """Return the most frequent values of a key among the selected documents."""
        counts: Counter[StoredValue] = Counter()
        for position, shard in enumerate(self.manifest.shards):
            counts.update(self.cache.open(shard).metadata().count(key, self._select(position, selection)))
        values = (Facet(_to_python(*value), count) for value, count in counts.items())
        return heapq.nsmallest(
            limit, values, key=lambda facet: (-facet.count, isinstance(facet.value, str), facet.value)
        )

    def document(self, document_id: str) -> StoredDocument:
        """Return a document. Raises E214."""
        place = self.place(document_id)
        return self._document(place.position, place.doc, place.content_hash)

    def place(self, document_id: str) -> DocumentLocation:
        """Return where a document is stored. Raises E214."""
        place = find_stored(self.manifest, self.cache, [document_id]).get(document_id)
        if place is None:
            raise errors.no_such_document(self.manifest.kb_id, document_id)
        return place

    def text(self, document_id: str) -> str | None:
        """Return the text of a document; None if there is no such document."""
        place = find_stored(self.manifest, self.cache, [document_id]).get(document_id)
        return None if place is None else self._search_file(place.position).text(place.doc)

    def hashes(self, owner: str) -> dict[str, str]:
        """Return the content hash of each document of this owner."""
        chosen = DocumentSelection(owner)
        return {listed.id: listed.content_hash for listed, _ in self._live("", chosen)}

    def packaged_ids(self) -> set[str]:
        """Return the ids of documents that came with a package."""
        return {listed.id for listed, position in self._live("") if self.manifest.shards[position].origin}

    def _live(self, after: str, selection: DocumentSelection = _EVERYTHING) -> Iterator[_Listed]:
        """Yield the selected live documents by id, each with the position of its shard."""
        shards = (
            zip(
                self.cache.open(shard).ids().after(after, self._select(position, selection)), itertools.repeat(position)
            )
            for position, shard in enumerate(self.manifest.shards)
        )
        return heapq.merge(*shards, key=lambda entry: entry[0].id)

    def _select(self, position: int, selection: DocumentSelection) -> Mask:
        """Return a flag for each document of a shard: whether it is live and selected."""
        shard = self.manifest.shards[position]
        opened, chosen = self.cache.open(shard), live_mask(shard)
        if selection.owner is not None:
            is_owned = np.zeros_like(chosen)
            is_owned[opened.ids().numbers_of_owner(selection.owner)] = True
            chosen = chosen & is_owned
        if selection.ids is not None:
            has_id = np.zeros_like(chosen)
            directory = opened.ids()
            lines = directory.find(hash_ids([*selection.ids]))
            has_id[[directory.read_line(line).doc for line in lines[lines >= 0].tolist()]] = True
            chosen = chosen & has_id
        return chosen if selection.condition is None else chosen & opened.metadata().select(selection.condition)

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


def _to_python(text: str | None, number: float | None) -> str | int | float:
    """Return the Python value of a stored value; true and false as texts."""
    if text is not None:
        return text if number is None else int(text, 16 if "x" in text else 10)
    return int(number) if number is not None and number.is_integer() else number or 0.0
