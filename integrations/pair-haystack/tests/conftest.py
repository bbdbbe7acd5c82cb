"""An empty document store, in this process and on a server."""

import uuid
from collections.abc import Iterator

import pytest

from haystack_integrations.document_stores.pair import PairDocumentStore
from pair.settings import Settings


@pytest.fixture(params=["local", "server"])
def store(request: pytest.FixtureRequest, settings: dict[str, str], dimension: int) -> Iterator[PairDocumentStore]:
    name = f"kb-{uuid.uuid4().hex}"
    place = (
        {"settings": Settings.load(environment=settings)}
        if request.param == "local"
        else {"url": request.getfixturevalue("url")}
    )
    store = PairDocumentStore(name, embedding_dimension=dimension, **place)
    yield store
    store.close()
