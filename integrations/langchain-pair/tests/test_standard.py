"""The standard suites of langchain-tests, on a local KB and on a server."""

from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.indexing.base import DocumentIndex
from langchain_core.retrievers import BaseRetriever
from langchain_core.vectorstores import VectorStore
from langchain_tests.integration_tests.indexer import AsyncDocumentIndexTestSuite, DocumentIndexerTestSuite
from langchain_tests.integration_tests.retrievers import RetrieversIntegrationTests
from langchain_tests.integration_tests.vectorstores import VectorStoreIntegrationTests

from langchain_pair import PairDocumentIndex, PairRetriever, PairVectorStore


class TestVectorStore(VectorStoreIntegrationTests):
    @pytest.fixture
    def vectorstore(self, kb) -> VectorStore:
        return PairVectorStore(kb, self.get_embeddings())


class TestHybridVectorStore(VectorStoreIntegrationTests):
    @pytest.fixture
    def vectorstore(self, kb) -> VectorStore:
        return PairVectorStore(kb, self.get_embeddings(), mode="hybrid")


class TestDocumentIndex(DocumentIndexerTestSuite):
    @pytest.fixture
    def index(self, kb) -> DocumentIndex:
        return PairDocumentIndex(kb=kb)


class TestAsyncDocumentIndex(AsyncDocumentIndexTestSuite):
    @pytest.fixture
    def index(self, kb) -> DocumentIndex:
        return PairDocumentIndex(kb=kb)


class TestRetriever(RetrieversIntegrationTests):
    @pytest.fixture(autouse=True)
    def filled(self, kb) -> None:
        texts = [f"Lunch on day {number} is soup." for number in range(5)]
        PairDocumentIndex(kb=kb).upsert([Document(id=text, page_content=text) for text in texts])
        self.kb = kb

    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        return PairRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"kb": self.kb}

    @property
    def retriever_query_example(self) -> str:
        return "lunch soup"
