"""The suites of haystack.testing, base and extended, sync and async, on a local KB and on a server."""

import pytest
from haystack.dataclasses import Document
from haystack.document_stores.errors import DuplicateDocumentError
from haystack.document_stores.types import DuplicatePolicy
from haystack.testing import document_store as suites
from haystack.testing import document_store_async as async_suites

from haystack_integrations.document_stores.pair import PairDocumentStore


def compare(received: list[Document], expected: list[Document]) -> None:
    """Documents come in the order of ids, and a vector has 32 bits for each number."""
    received, expected = sorted(received, key=lambda each: each.id), sorted(expected, key=lambda each: each.id)
    assert len(received) == len(expected)
    for mine, theirs in zip(received, expected, strict=True):
        first, second = mine.to_dict(flatten=False), theirs.to_dict(flatten=False)
        vectors = first.pop("embedding"), second.pop("embedding")
        assert first == second
        assert vectors[0] == (vectors[1] and pytest.approx(vectors[1], rel=1e-5, abs=1e-6))


class TestDocumentStore(
    suites.DocumentStoreBaseExtendedTests,
    suites.CountDocumentsByFilterTest,
    suites.CountUniqueMetadataByFilterTest,
    suites.GetMetadataFieldsInfoTest,
    suites.GetMetadataFieldMinMaxTest,
    suites.GetMetadataFieldUniqueValuesTest,
):
    assert_documents_are_equal = staticmethod(compare)

    @pytest.fixture
    def document_store(self, store: PairDocumentStore) -> PairDocumentStore:
        return store

    def test_write_documents(self, document_store: PairDocumentStore) -> None:
        documents = [Document(id="1", content="first"), Document(id="2", content="second")]
        assert document_store.write_documents(documents) == 2
        with pytest.raises(DuplicateDocumentError):
            document_store.write_documents(documents[:1], policy=DuplicatePolicy.NONE)
        compare(document_store.filter_documents(), documents)


class TestAsyncDocumentStore(
    async_suites.CountDocumentsAsyncTest,
    async_suites.CountDocumentsByFilterAsyncTest,
    async_suites.CountUniqueMetadataByFilterAsyncTest,
    async_suites.DeleteAllAsyncTest,
    async_suites.DeleteByFilterAsyncTest,
    async_suites.DeleteDocumentsAsyncTest,
    async_suites.FilterDocumentsAsyncTest,
    async_suites.GetMetadataFieldsInfoAsyncTest,
    async_suites.GetMetadataFieldMinMaxAsyncTest,
    async_suites.GetMetadataFieldUniqueValuesAsyncTest,
    async_suites.UpdateByFilterAsyncTest,
    async_suites.WriteDocumentsAsyncTest,
):
    assert_documents_are_equal = staticmethod(compare)

    @pytest.fixture
    def document_store(self, store: PairDocumentStore) -> PairDocumentStore:
        return store

    async def test_write_documents_async(self, document_store: PairDocumentStore) -> None:
        documents = [Document(id="1", content="first"), Document(id="2", content="second")]
        assert await document_store.write_documents_async(documents) == 2
        with pytest.raises(DuplicateDocumentError):
            await document_store.write_documents_async(documents[:1])
        compare(await document_store.filter_documents_async(), documents)
