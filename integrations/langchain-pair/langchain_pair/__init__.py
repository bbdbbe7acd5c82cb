"""Knowledge bases of `pair` for LangChain: a retriever, a vector store and a document index."""

from langchain_pair.document_index import PairDocumentIndex
from langchain_pair.retriever import PairRetriever
from langchain_pair.vector_store import PairVectorStore

__all__ = ["PairDocumentIndex", "PairRetriever", "PairVectorStore"]
