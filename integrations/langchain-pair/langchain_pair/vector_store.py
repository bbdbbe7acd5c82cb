"""PairVectorStore: a vector store of LangChain on a KB."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self

from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import VectorStore

import pair
from langchain_pair.documents import Kb, fetch, make_plain, make_stored, normalise, read_or
from pair.ai.given import GivenVectors
from pair.values import DEFAULT_MODE, Hit, SearchOptions

Condition = dict[str, Any] | None


class PairVectorStore(VectorStore):
    """Documents of a KB, found by vector, or by vector and words.

    With `embedding`, LangChain computes the vectors: open the KB with `GivenVectors`, or serve it with
    `engine.embedder: given`. Without it, pair cuts and embeds the texts.
    """

    def __init__(self, kb: Kb, embedding: Embeddings | None = None, *, mode: str = "", citations: bool = False) -> None:
        """`mode`: vector (the default with `embedding`), hybrid (the default without), keyword, graph or adaptive.

        `citations`: add the citation id of each hit to its metadata, with the key `citation`.
        """
        self.kb = kb
        self._embedding = embedding
        self._mode = mode or (DEFAULT_MODE if embedding is None else "vector")
        self._citations = citations

    @property
    def embeddings(self) -> Embeddings | None:
        return self._embedding

    @classmethod
    def from_texts(
        cls,
        texts: list[str],
        embedding: Embeddings | None = None,
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        kb: Kb | str = "default",
        **kwargs: Any,
    ) -> Self:
        """Store texts. `kb`: an open KB, or the name of a local one."""
        if isinstance(kb, str):
            given = None if embedding is None else GivenVectors(len(embedding.embed_query("dimension")))
            kb = pair.open(kb, embedder=given)
        store = cls(kb, embedding, **kwargs)
        store.add_texts(texts, metadatas, ids=ids)
        return store

    def add_texts(
        self,
        texts: Iterable[str],
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        **kwargs: Any,
    ) -> list[str]:
        """Add or replace texts, and return their ids."""
        contents = list(texts)
        names = ids or [None] * len(contents)
        rows = zip(contents, metadatas or [{}] * len(contents), names, strict=True)
        return self.add_documents([Document(id=name, page_content=text, metadata=row) for text, row, name in rows])

    def add_documents(self, documents: list[Document], **kwargs: Any) -> list[str]:
        """Add or replace documents, and return their ids. `ids`: names for all of them."""
        if (ids := kwargs.get("ids")) is not None:
            named = zip(documents, ids, strict=True)
            documents = [document.model_copy(update={"id": name}) for document, name in named]
        vectors: Sequence[Sequence[float] | None] = [None] * len(documents)
        if self._embedding is not None:
            vectors = self._embedding.embed_documents([document.page_content for document in documents])
        stored = [make_stored(document, vector) for document, vector in zip(documents, vectors, strict=True)]
        self.kb.upsert(stored)
        return [document.id for document in stored]

    def delete(self, ids: list[str] | None = None, **kwargs: Any) -> bool | None:
        """Delete documents by id, and those that meet `filter`. Missing ids are ignored."""
        self.kb.delete(ids or (), filter=kwargs.get("filter"))
        return True

    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """Return the documents with these ids; missing ids are ignored."""
        return fetch(self.kb, ids)

    def similarity_search(self, query: str, k: int = 4, filter: Condition = None, **kwargs: Any) -> list[Document]:  # noqa: A002
        """Return the best documents for a text. `filter`: conditions on metadata, `{"year": {"$gte": 2020}}`."""
        return [document for document, _ in self.similarity_search_with_score(query, k, filter=filter)]

    def similarity_search_with_score(
        self,
        query: str,
        k: int = 4,
        filter: Condition = None,  # noqa: A002 - the name in LangChain
        **kwargs: Any,
    ) -> list[tuple[Document, float]]:
        """Return documents with the probability of their relevance, or by vector alone with their cosine."""
        vector = self._embed(query)
        if vector is not None and self._mode == "vector":
            return self._find_nearest(vector, k, filter)
        options = SearchOptions(allow_weak=True, vector=vector)
        hits = read_or(
            lambda: self.kb.search(query, limit=k, mode=self._mode, filter=filter, options=options).passages, ()
        )
        return [(self._make_document(hit), hit.score) for hit in hits]

    def similarity_search_by_vector(
        self,
        embedding: list[float],
        k: int = 4,
        filter: Condition = None,  # noqa: A002 - the name in LangChain
        **kwargs: Any,
    ) -> list[Document]:
        """Return the documents whose vectors have the largest cosine."""
        return [document for document, _ in self._find_nearest(normalise(embedding), k, filter)]

    def max_marginal_relevance_search(
        self,
        query: str,
        k: int = 4,
        fetch_k: int = 20,
        lambda_mult: float = 0.5,
        **kwargs: Any,
    ) -> list[Document]:
        """Return documents that fit the query and differ from each other. pair chooses among four times as many."""
        options = SearchOptions(allow_weak=True, vector=self._embed(query), diversity=min(1 - lambda_mult, 0.999))
        condition = kwargs.get("filter")
        hits = read_or(
            lambda: self.kb.search(query, limit=k, mode="vector", filter=condition, options=options).passages, ()
        )
        return [self._make_document(hit) for hit in hits]

    def _embed(self, query: str) -> list[float] | None:
        return None if self._embedding is None else normalise(self._embedding.embed_query(query))

    def _find_nearest(self, vector: Sequence[float], k: int, condition: Condition) -> list[tuple[Document, float]]:
        hits = read_or(lambda: self.kb.search_vector(vector, limit=k, filter=condition).passages, ())
        return [(self._make_document(hit), 1.0 - (hit.distance or 0.0) ** 2 / 2.0) for hit in hits]

    def _make_document(self, hit: Hit) -> Document:
        document = make_plain(hit)
        if self._citations:
            document.metadata["citation"] = hit.cite(self.kb.kb_id)
        return document

    def _select_relevance_score_fn(self) -> Callable[[float], float]:
        return lambda score: min(max(score, 0.0), 1.0)
