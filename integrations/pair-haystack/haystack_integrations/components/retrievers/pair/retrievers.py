"""Three retrievers: by words, by vector, and by both."""

import asyncio
from typing import Any

from haystack import component, default_from_dict, default_to_dict
from haystack.dataclasses import Document
from haystack.document_stores.types import FilterPolicy
from haystack.document_stores.types.filter_policy import apply_filter_policy

from haystack_integrations.document_stores.pair import PairDocumentStore


class _Options:
    """The options that the retrievers share, and their serialisation."""

    def __init__(
        self,
        document_store: PairDocumentStore,
        filters: dict[str, Any] | None = None,
        top_k: int = 10,
        filter_policy: str | FilterPolicy = FilterPolicy.REPLACE,
    ) -> None:
        if not isinstance(document_store, PairDocumentStore):
            raise TypeError("document_store is a PairDocumentStore")
        if top_k <= 0:
            raise ValueError(f"top_k must be greater than 0, but got {top_k}")
        self.document_store, self.filters, self.top_k = document_store, filters, top_k
        self.filter_policy = (
            filter_policy if isinstance(filter_policy, FilterPolicy) else FilterPolicy.from_str(filter_policy)
        )

    def to_dict(self) -> dict[str, Any]:
        return default_to_dict(
            self,
            document_store=self.document_store.to_dict(),
            filters=self.filters,
            top_k=self.top_k,
            filter_policy=self.filter_policy.value,
        )

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Any:
        parameters = data["init_parameters"]
        if isinstance(parameters["document_store"], dict):
            parameters["document_store"] = PairDocumentStore.from_dict(parameters["document_store"])
        return default_from_dict(cls, data)

    def _narrow(self, filters: dict[str, Any] | None) -> dict[str, Any] | None:
        return apply_filter_policy(self.filter_policy, self.filters, filters)


@component
class PairBM25Retriever(_Options):
    """Returns passages by the words of a query. The metadata has their citation ids."""

    @component.output_types(documents=list[Document])
    def run(
        self, query: str, filters: dict[str, Any] | None = None, top_k: int | None = None
    ) -> dict[str, list[Document]]:
        limit = self.top_k if top_k is None else top_k
        return {"documents": self.document_store.search_text(query, "keyword", limit, self._narrow(filters))}

    @component.output_types(documents=list[Document])
    async def run_async(
        self, query: str, filters: dict[str, Any] | None = None, top_k: int | None = None
    ) -> dict[str, list[Document]]:
        return await asyncio.to_thread(self.run, query, filters, top_k)


@component
class PairEmbeddingRetriever(_Options):
    """Returns documents by the vector of a query. The metadata has their citation ids."""

    @component.output_types(documents=list[Document])
    def run(
        self, query_embedding: list[float], filters: dict[str, Any] | None = None, top_k: int | None = None
    ) -> dict[str, list[Document]]:
        limit = self.top_k if top_k is None else top_k
        return {"documents": self.document_store.search_vector(query_embedding, limit, self._narrow(filters))}

    @component.output_types(documents=list[Document])
    async def run_async(
        self, query_embedding: list[float], filters: dict[str, Any] | None = None, top_k: int | None = None
    ) -> dict[str, list[Document]]:
        return await asyncio.to_thread(self.run, query_embedding, filters, top_k)


@component
class PairHybridRetriever(_Options):
    """Returns passages by words and meaning. The metadata has their citation ids.

    `query_embedding`: the vector of the query, for a store with `embedding_dimension`; pair makes it for others.
    """

    @component.output_types(documents=list[Document])
    def run(
        self,
        query: str,
        query_embedding: list[float] | None = None,
        filters: dict[str, Any] | None = None,
        top_k: int | None = None,
    ) -> dict[str, list[Document]]:
        limit, narrowed = self.top_k if top_k is None else top_k, self._narrow(filters)
        return {"documents": self.document_store.search_text(query, "hybrid", limit, narrowed, query_embedding)}

    @component.output_types(documents=list[Document])
    async def run_async(
        self,
        query: str,
        query_embedding: list[float] | None = None,
        filters: dict[str, Any] | None = None,
        top_k: int | None = None,
    ) -> dict[str, list[Document]]:
        return await asyncio.to_thread(self.run, query, query_embedding, filters, top_k)
