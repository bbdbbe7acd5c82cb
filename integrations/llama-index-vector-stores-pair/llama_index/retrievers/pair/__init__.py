"""PairRetriever: passages of a KB of `pair` for LlamaIndex."""

from llama_index.retrievers.pair.base import PairRetriever

__all__ = ["PairRetriever"]
