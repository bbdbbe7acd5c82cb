"""PairDocumentStore: documents of Haystack in a KB."""

import asyncio
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
from haystack import default_from_dict, default_to_dict
from haystack.dataclasses import ByteStream, Document, SparseEmbedding
from haystack.document_stores.errors import DuplicateDocumentError
from haystack.document_stores.types import DuplicatePolicy
from haystack.utils import Secret, deserialize_secrets_inplace

import pair
from haystack_integrations.document_stores.pair.filters import Condition, make_filter
from pair import errors
from pair.ai.given import GivenVectors
from pair.client import RemoteKnowledgeBase
from pair.engine.query.documents import StoredDocument
from pair.kb.kb import KnowledgeBase
from pair.values import Document as PairDocument
from pair.values import Hit, SearchOptions

_OWN = "_haystack"
"""The key of what only Haystack needs: the length of the vector, a blob, a sparse vector."""
_HAS_VECTOR: Condition = {f"{_OWN}.length": {"exists": True}}
_PAGE = 1000
_TYPES = {bool: "boolean", int: "long", float: "float", str: "keyword"}
_Found = TypeVar("_Found")


class PairDocumentStore:
    """Documents of a KB in a local store, or on a server of `pair serve`.

    With `embedding_dimension`, Haystack computes the vectors, and a document without one is found by its words. Without
    it, pair cuts and embeds the texts, and documents must not have vectors.
    """

    def __init__(
        self,
        kb_id: str = "default",
        *,
        store: str | None = None,
        url: str | None = None,
        key: Secret | None = None,
        embedding_dimension: int | None = None,
        settings: pair.Settings | None = None,
    ) -> None:
        """Prepare a store; the KB is opened with its first use.

        `store`: the place of a local KB, as in `engine.store`. `url`, `key`: a server, and a key of `pair keys add`.
        `settings`: settings of a local KB; they are not serialised.
        """
        self.kb_id, self.store, self.url, self.key = kb_id, store, url, key
        self.embedding_dimension = embedding_dimension
        self._settings = settings
        self._kb: KnowledgeBase | RemoteKnowledgeBase | None = None

    @property
    def kb(self) -> KnowledgeBase | RemoteKnowledgeBase:
        """The open KB."""
        if self._kb is None:
            if self.url is not None:
                secret = "" if self.key is None else self.key.resolve_value() or ""
                self._kb = pair.connect(self.url, kb_id=self.kb_id, key=secret)
            else:
                embedder = None if self.embedding_dimension is None else GivenVectors(self.embedding_dimension)
                self._kb = pair.open(self.kb_id, store=self.store, embedder=embedder, settings=self._settings)
        return self._kb

    def close(self) -> None:
        if self._kb is not None:
            self._kb.close()
            self._kb = None

    def to_dict(self) -> dict[str, Any]:
        return default_to_dict(
            self,
            kb_id=self.kb_id,
            store=self.store,
            url=self.url,
            key=None if self.key is None else self.key.to_dict(),
            embedding_dimension=self.embedding_dimension,
        )

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "PairDocumentStore":
        deserialize_secrets_inplace(data["init_parameters"], keys=["key"])
        return default_from_dict(cls, data)

    # Reading

    def count_documents(self) -> int:
        return self.kb.count()

    def count_documents_by_filter(self, filters: dict[str, Any]) -> int:
        return self.kb.count(filter=make_filter(filters))

    def filter_documents(self, filters: dict[str, Any] | None = None) -> list[Document]:
        """Return the documents that meet the filters, sorted by id."""
        return [_make_document(stored) for stored in self._list(make_filter(filters), vectors=True)]

    def count_unique_metadata_by_filter(self, filters: dict[str, Any], metadata_fields: list[str]) -> dict[str, int]:
        """Return the number of distinct values of each field among the documents that meet the filters."""
        rows = [stored.metadata for stored in self._list(make_filter(filters))]
        return {name: len(_distinct(row.get(name.removeprefix("meta.")) for row in rows)) for name in metadata_fields}

    def get_metadata_fields_info(self) -> dict[str, dict[str, str]]:
        """Return the fields of the metadata and their types."""
        info: dict[str, dict[str, str]] = {}
        for stored in self._list(None):
            for name, value in stored.metadata.items():
                if name != _OWN and value is not None:
                    element = value[0] if isinstance(value, list) and value else value
                    info.setdefault(name, {"type": _TYPES.get(type(element), "keyword")})
        return info

    def get_metadata_field_min_max(self, metadata_field: str) -> dict[str, Any]:
        """Return the smallest and the largest number of a field; None if it has none."""
        name = metadata_field.removeprefix("meta.")
        values = [stored.metadata.get(name) for stored in self._list({name: {"exists": True}})]
        numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
        return {"min": min(numbers, default=None), "max": max(numbers, default=None)}

    def get_metadata_field_unique_values(
        self,
        metadata_field: str,
        search_term: str | None = None,
        from_: int = 0,
        size: int | None = 10,
        filters: dict[str, Any] | None = None,
    ) -> tuple[list[Any], int]:
        """Return a page of the distinct values of a field, and the number of all of them.

        `search_term`: a text in the value, in any case.
        """
        name = metadata_field.removeprefix("meta.")
        values = _distinct(stored.metadata.get(name) for stored in self._list(make_filter(filters)))
        if search_term is not None:
            values = [value for value in values if search_term.casefold() in str(value).casefold()]
        values.sort(key=lambda value: (str(value), type(value).__name__))
        return values[from_ : None if size is None else from_ + size], len(values)

    # Writing

    def write_documents(self, documents: list[Document], policy: DuplicatePolicy = DuplicatePolicy.NONE) -> int:
        """Store documents, and return how many were written. Without a policy, an existing id is an error."""
        if not isinstance(documents, list) or not all(isinstance(document, Document) for document in documents):
            raise ValueError("documents are a list of Document")
        wanted = {document.id: document for document in documents}
        if policy != DuplicatePolicy.OVERWRITE:
            ids = [document.id for document in documents]
            existing = self.kb.existing_ids(ids)
            if policy == DuplicatePolicy.SKIP:
                wanted = {name: document for name, document in wanted.items() if name not in existing}
            elif existing or len(wanted) < len(ids):
                repeated = sorted(existing or {name for name in ids if ids.count(name) > 1})
                raise DuplicateDocumentError(f"documents with these ids exist already: {', '.join(repeated[:5])}")
        self.kb.upsert([self._make_stored(document) for document in wanted.values()])
        return len(wanted)

    def delete_documents(self, document_ids: list[str]) -> None:
        """Delete documents; ids that no document has are ignored."""
        self.kb.delete(document_ids)

    def delete_all_documents(self, recreate_index: bool = False) -> None:
        """Delete all documents. A KB has no index apart from them, so `recreate_index` makes no difference."""
        self.kb.delete([stored.id for stored in self._list(None)])

    def delete_by_filter(self, filters: dict[str, Any]) -> int:
        """Delete the documents that meet the filters, and return how many they were."""
        condition = make_filter(filters)
        if condition is None:
            raise ValueError("filters are needed; delete_all_documents deletes everything")
        return self.kb.delete(filter=condition).deleted

    def update_by_filter(self, filters: dict[str, Any], meta: dict[str, Any]) -> int:
        """Set fields in the metadata of the documents that meet the filters, and return how many they were."""
        documents = self.filter_documents(filters)
        changed = [dataclasses.replace(document, meta={**document.meta, **meta}) for document in documents]
        return self.write_documents(changed, DuplicatePolicy.OVERWRITE)

    # Retrieval

    def search_text(
        self, query: str, mode: str, top_k: int, filters: dict[str, Any] | None, vector: Sequence[float] | None = None
    ) -> list[Document]:
        """Return passages, best first. `vector`: of the query, for the mode `hybrid`."""
        options = SearchOptions(allow_weak=True, vector=None if vector is None else _normalise(vector)[0])
        condition = make_filter(filters)
        if top_k <= 0 or not query.strip():
            return []
        hits = _read_or(
            lambda: self.kb.search(query, limit=top_k, mode=mode, filter=condition, options=options).passages, ()
        )
        return [self._make_found(hit, hit.score) for hit in hits]

    def search_vector(self, vector: Sequence[float], top_k: int, filters: dict[str, Any] | None) -> list[Document]:
        """Return the documents whose vectors have the largest cosine, with the cosine as score."""
        condition = make_filter(filters)
        narrowed = _HAS_VECTOR if condition is None else {"$and": [_HAS_VECTOR, condition]}
        if top_k <= 0:
            return []
        near = _normalise(vector)[0]
        hits = _read_or(lambda: self.kb.search_vector(near, limit=top_k, filter=narrowed).passages, ())
        return [self._make_found(hit, 1.0 - (hit.distance or 0.0) ** 2 / 2.0) for hit in hits]

    # The same without blocking the event loop

    async def count_documents_async(self) -> int:
        return await asyncio.to_thread(self.count_documents)

    async def count_documents_by_filter_async(self, filters: dict[str, Any]) -> int:
        return await asyncio.to_thread(self.count_documents_by_filter, filters)

    async def filter_documents_async(self, filters: dict[str, Any] | None = None) -> list[Document]:
        return await asyncio.to_thread(self.filter_documents, filters)

    async def count_unique_metadata_by_filter_async(
        self, filters: dict[str, Any], metadata_fields: list[str]
    ) -> dict[str, int]:
        return await asyncio.to_thread(self.count_unique_metadata_by_filter, filters, metadata_fields)

    async def get_metadata_fields_info_async(self) -> dict[str, dict[str, str]]:
        return await asyncio.to_thread(self.get_metadata_fields_info)

    async def get_metadata_field_min_max_async(self, metadata_field: str) -> dict[str, Any]:
        return await asyncio.to_thread(self.get_metadata_field_min_max, metadata_field)

    async def get_metadata_field_unique_values_async(
        self,
        metadata_field: str,
        search_term: str | None = None,
        from_: int = 0,
        size: int | None = 10,
        filters: dict[str, Any] | None = None,
    ) -> tuple[list[Any], int]:
        return await asyncio.to_thread(
            self.get_metadata_field_unique_values, metadata_field, search_term, from_, size, filters
        )

    async def write_documents_async(
        self, documents: list[Document], policy: DuplicatePolicy = DuplicatePolicy.NONE
    ) -> int:
        return await asyncio.to_thread(self.write_documents, documents, policy)

    async def delete_documents_async(self, document_ids: list[str]) -> None:
        await asyncio.to_thread(self.delete_documents, document_ids)

    async def delete_all_documents_async(self, recreate_index: bool = False) -> None:
        await asyncio.to_thread(self.delete_all_documents, recreate_index)

    async def delete_by_filter_async(self, filters: dict[str, Any]) -> int:
        return await asyncio.to_thread(self.delete_by_filter, filters)

    async def update_by_filter_async(self, filters: dict[str, Any], meta: dict[str, Any]) -> int:
        return await asyncio.to_thread(self.update_by_filter, filters, meta)

    # Conversion

    def _list(self, condition: Condition | None, *, vectors: bool = False) -> Iterator[StoredDocument]:
        after: str | None = ""
        while after is not None:
            read = functools.partial(self.kb.documents, after=after, limit=_PAGE, filter=condition, vectors=vectors)
            page = _read_or(read, None)
            if page is None:
                return
            yield from page
            after = page.next

    def _make_stored(self, document: Document) -> PairDocument:
        own: dict[str, Any] = {}
        vector: Sequence[float] | None = None
        if document.embedding is not None:
            if self.embedding_dimension is None:
                raise ValueError(
                    f"the document {document.id} has an embedding, and pair makes the vectors of this KB: "
                    f"set embedding_dimension={len(document.embedding)}"
                )
            vector, own["length"] = _normalise(document.embedding)
        elif not (document.content or "").strip():
            if self.embedding_dimension is None:
                raise ValueError(f"the document {document.id} has neither a text nor an embedding")
            vector = [0.0] * self.embedding_dimension
        if document.content is None:
            own["content"] = False
        for name in ("blob", "sparse_embedding"):
            if (value := getattr(document, name)) is not None:
                own[name] = value.to_dict()
        metadata = {**document.meta, **({_OWN: own} if own else {})}
        return PairDocument(id=document.id, text=document.content or "", metadata=metadata, vector=vector)

    def _make_found(self, hit: Hit, score: float) -> Document:
        document = _rebuild(hit.document_id, hit.text, hit.metadata, None)
        citation = {"citation": hit.cite(self.kb_id)}
        return dataclasses.replace(document, meta={**document.meta, **citation}, score=score)


def _make_document(stored: StoredDocument) -> Document:
    return _rebuild(stored.id, stored.text, stored.metadata, stored.vector)


def _rebuild(name: str, text: str, metadata: Any, vector: Sequence[float] | None) -> Document:
    own = metadata.get(_OWN, {})
    embedding = None
    if vector is not None and "length" in own:
        embedding = (np.asarray(vector, np.float64) * own["length"]).tolist()
    return Document(
        id=name,
        content=text if own.get("content", True) else None,
        meta={key: value for key, value in metadata.items() if key != _OWN},
        embedding=embedding,
        blob=ByteStream.from_dict(own["blob"]) if "blob" in own else None,
        sparse_embedding=SparseEmbedding.from_dict(own["sparse_embedding"]) if "sparse_embedding" in own else None,
    )


def _normalise(vector: Sequence[float]) -> tuple[list[float], float]:
    """Return a vector of length 1, and its length before: then the nearest vectors have the largest cosine."""
    numbers = np.asarray(vector, np.float64)
    length = float(np.linalg.norm(numbers))
    return (numbers / length if length else numbers).tolist(), length


def _distinct(values: Any) -> list[Any]:
    """Return distinct values: 1, 1.0, "1" and True are four of them. Each element of a list is a value."""
    found: dict[tuple[type, Any], Any] = {}
    for value in values:
        for element in value if isinstance(value, list) else [value]:
            if element is not None and not isinstance(element, dict):
                found.setdefault((type(element), element), element)
    return list(found.values())


def _read_or(read: Callable[[], _Found], nothing: _Found) -> _Found:
    """Return what is read, or nothing from a KB without any document."""
    try:
        return read()
    except errors.PairError as fault:
        if fault.code != errors.KB_UNINITIALISED:
            raise
        return nothing
