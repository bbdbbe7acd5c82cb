"""PairVectorStore: nodes of LlamaIndex as documents of a KB."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.schema import BaseNode, MetadataMode
from llama_index.core.vector_stores.types import (
    BasePydanticVectorStore,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryMode,
    VectorStoreQueryResult,
)
from llama_index.core.vector_stores.utils import metadata_dict_to_node, node_to_metadata_dict

from llama_index.vector_stores.pair.filters import Condition, make_filter
from pair import errors
from pair.client import RemoteKnowledgeBase
from pair.kb.kb import KnowledgeBase
from pair.values import Document, Hit, SearchOptions

Kb = KnowledgeBase | RemoteKnowledgeBase
_NODE_ID = "_node_id"
_PAGE = 1000
_MODES = {
    VectorStoreQueryMode.DEFAULT: "vector",
    VectorStoreQueryMode.MMR: "vector",
    VectorStoreQueryMode.TEXT_SEARCH: "keyword",
    VectorStoreQueryMode.SPARSE: "keyword",
    VectorStoreQueryMode.HYBRID: "hybrid",
    VectorStoreQueryMode.SEMANTIC_HYBRID: "hybrid",
}
_Found = TypeVar("_Found")


class PairVectorStore(BasePydanticVectorStore):
    """Nodes of a KB that `pair.open(..., embedder=GivenVectors(dimension))` or `pair.connect` returned.

    Query modes: default, mmr, text_search, sparse, hybrid and semantic_hybrid. `alpha` 0 and 1 mean words alone and
    vectors alone; pair weighs both itself for any other value. A node of a query result has its citation id in the
    metadata, with the key `citation`, which neither an embedding model nor a language model sees.
    """

    stores_text: bool = True
    flat_metadata: bool = False

    _kb: Kb = PrivateAttr()

    def __init__(self, kb: Kb, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._kb = kb

    @classmethod
    def class_name(cls) -> str:
        return "PairVectorStore"

    @property
    def client(self) -> Kb:
        return self._kb

    def add(self, nodes: Sequence[BaseNode], **kwargs: Any) -> list[str]:
        """Add or replace nodes with their embeddings."""
        self._kb.upsert([_make_document(node) for node in nodes])
        return [node.node_id for node in nodes]

    def delete(self, ref_doc_id: str, **delete_kwargs: Any) -> None:
        """Delete the nodes of a document."""
        self._kb.delete(filter={"ref_doc_id": ref_doc_id})

    def delete_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None, **delete_kwargs: Any
    ) -> None:
        """Delete nodes by id, those of them that meet the filters, or all that meet the filters."""
        condition = make_filter(filters)
        if condition is None:
            self._kb.delete(node_ids or ())
        else:
            self._kb.delete(filter=_restrict(condition, {_NODE_ID: node_ids} if node_ids else None))

    def get_nodes(self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None) -> list[BaseNode]:
        """Return nodes by id, those of them that meet the filters, or all that meet the filters."""
        return self._list_nodes(make_filter(filters), node_ids)

    def clear(self) -> None:
        """Delete every node."""
        self._kb.delete(filter={_NODE_ID: {"exists": True}})

    def query(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        """Return the best nodes. Without an embedding and a text, return the nodes that meet the filters."""
        if query.mode not in _MODES:
            raise ValueError(
                f"pair has no query mode {query.mode.value}; it has {', '.join(mode.value for mode in _MODES)}"
            )
        condition = make_filter(query.filters)
        if query.doc_ids:  # LlamaIndex sends an empty list for no restriction
            condition = _restrict(condition, {"ref_doc_id": query.doc_ids})
        if query.node_ids:
            condition = _restrict(condition, {_NODE_ID: query.node_ids})
        if query.query_embedding is None and not query.query_str:
            nodes = self._list_nodes(condition, None, query.similarity_top_k)
            return VectorStoreQueryResult(
                nodes=nodes, similarities=[1.0] * len(nodes), ids=[each.node_id for each in nodes]
            )
        hits = _read_or(lambda: self._search(query, condition), ())
        return VectorStoreQueryResult(
            nodes=[self._make_node(hit) for hit in hits],
            similarities=[_score(hit, query.mode) for hit in hits],
            ids=[hit.document_id for hit in hits],
        )

    def _search(self, query: VectorStoreQuery, condition: Condition | None) -> Sequence[Hit]:
        vector = None if query.query_embedding is None else _normalise(query.query_embedding)
        mode, limit = _MODES[query.mode], query.similarity_top_k
        if mode == "hybrid":
            mode = {0.0: "keyword", 1.0: "vector"}.get(0.5 if query.alpha is None else query.alpha, mode)
            limit = query.hybrid_top_k or limit
        if mode == "vector" and query.mode != VectorStoreQueryMode.MMR:
            if vector is None:
                raise ValueError(f"the query mode {query.mode.value} needs an embedding")
            return self._kb.search_vector(vector, limit=limit, filter=condition).passages
        if not query.query_str:
            raise ValueError(f"the query mode {query.mode.value} needs a text")
        diversity = 0.0
        if query.mode == VectorStoreQueryMode.MMR:
            diversity = min(1.0 - (0.5 if query.mmr_threshold is None else query.mmr_threshold), 0.999)
        options = SearchOptions(allow_weak=True, vector=vector, diversity=diversity)
        return self._kb.search(query.query_str, limit=limit, mode=mode, filter=condition, options=options).passages

    def _list_nodes(
        self, condition: Condition | None, node_ids: list[str] | None, limit: int | None = None
    ) -> list[BaseNode]:
        nodes: list[BaseNode] = []
        after: str | None = ""
        while after is not None and (limit is None or len(nodes) < limit):
            most = _PAGE if limit is None else min(_PAGE, limit - len(nodes))
            read = functools.partial(self._kb.documents, after=after, limit=most, filter=condition, ids=node_ids)
            page = _read_or(read, None)
            if page is None:
                break
            nodes += [metadata_dict_to_node(dict(stored.metadata), text=stored.text) for stored in page]
            after = page.next
        return nodes

    def _make_node(self, hit: Hit) -> BaseNode:
        node = metadata_dict_to_node(dict(hit.metadata), text=hit.text)
        node.metadata["citation"] = hit.cite(self._kb.kb_id)
        for excluded in (node.excluded_embed_metadata_keys, node.excluded_llm_metadata_keys):
            excluded.append("citation")
        return node


def _make_document(node: BaseNode) -> Document:
    metadata = node_to_metadata_dict(node, remove_text=True)
    return Document(
        id=node.node_id,
        text=node.get_content(metadata_mode=MetadataMode.NONE),
        metadata={**metadata, _NODE_ID: node.node_id},
        vector=_normalise(node.get_embedding()),
    )


def _normalise(vector: Sequence[float]) -> list[float]:
    """Return a vector of length 1: then the nearest vectors have the largest cosine."""
    numbers = np.asarray(vector, np.float64)
    length = float(np.linalg.norm(numbers))
    return (numbers / length).tolist() if length else numbers.tolist()


def _restrict(condition: Condition | None, more: dict[str, list[str]] | None) -> Condition | None:
    """Return a filter that also holds a key to a list of values."""
    if more is None:
        return condition
    return more if condition is None else {"$and": [condition, more]}


def _score(hit: Hit, mode: VectorStoreQueryMode) -> float:
    """Return the cosine of a hit by vector, else the probability of its relevance."""
    if _MODES[mode] == "vector" and hit.distance is not None:
        return 1.0 - hit.distance**2 / 2.0
    return hit.score


def _read_or(read: Callable[[], _Found], nothing: _Found) -> _Found:
    """Return what is read, or nothing from a KB without any document."""
    try:
        return read()
    except errors.PairError as fault:
        if fault.code != errors.KB_UNINITIALISED:
            raise
        return nothing
