"""PairVectorStore: a vector store of LlamaIndex on a KB of `pair`."""

from llama_index.vector_stores.pair.base import PairVectorStore
from llama_index.vector_stores.pair.filters import make_filter

__all__ = ["PairVectorStore", "make_filter"]
