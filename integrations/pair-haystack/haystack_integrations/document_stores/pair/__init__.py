"""PairDocumentStore: documents of Haystack in a KB of `pair`."""

from haystack_integrations.document_stores.pair.document_store import PairDocumentStore

__all__ = ["PairDocumentStore"]
