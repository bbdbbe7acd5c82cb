"""Three retrievers on a KB of `pair`: by words, by vector, and by both."""

from haystack_integrations.components.retrievers.pair.retrievers import (
    PairBM25Retriever,
    PairEmbeddingRetriever,
    PairHybridRetriever,
)

__all__ = ["PairBM25Retriever", "PairEmbeddingRetriever", "PairHybridRetriever"]
