"""The caching embedder: order, batches, invalid replies, and the cache of queries."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from pair.ai.caching_embedder import CachingEmbedder
from pair.ai.contract import Embedder
from pair.ai.ngram import NgramEmbedder
from pair.errors import ModelError


class LengthEmbedder:
    """An embedder of text lengths that records its calls. `spoil` can change its replies."""

    name = "length-2"
    dimension = 2
    hybrid_weight = 0.25

    def __init__(self, spoil: Callable[[Any], Any] = lambda reply: reply) -> None:
        self.asked: list[list[str]] = []
        self._spoil = spoil

    def fit(self, query: str) -> float:
        return 1.0

    def embed(self, texts: Sequence[str]) -> Any:
        self.asked.append(list(texts))
        return self._spoil(np.array([[len(text), 1] for text in texts], dtype=np.float32))

    def embed_queries(self, texts: Sequence[str]) -> Any:
        return self.embed(texts)


def test_it_has_the_name_the_dimension_and_the_weight_of_its_embedder() -> None:
    embedder: Embedder = NgramEmbedder(16)
    embedding = CachingEmbedder(embedder)
    assert (embedding.name, embedding.dimension, embedding.weight_of("a question")) == ("ngram-16-v1", 16, 0.2)


def test_texts_are_embedded_in_batches_and_keep_their_order() -> None:
    embedder = LengthEmbedder()
    vectors = CachingEmbedder(embedder, batch_size=2).embed_all(["a", "bbb", "", "cc", "dddd"])
    assert vectors[:, 0].tolist() == [1, 3, 0, 2, 4]
    assert embedder.asked == [["a", "bbb"], ["", "cc"], ["dddd"]]


def test_no_texts_ask_nothing() -> None:
    embedder = LengthEmbedder()
    assert CachingEmbedder(embedder).embed_all([]).shape == (0, 2)
    assert embedder.asked == []


def test_vectors_are_of_single_precision_whatever_the_embedder_returns() -> None:
    assert CachingEmbedder(LengthEmbedder(lambda reply: reply.astype(np.float64))).embed_all(["a"]).dtype == np.float32
    assert CachingEmbedder(LengthEmbedder(lambda reply: reply.tolist())).embed_all(["a"]).tolist() == [[1, 1]]


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda reply: reply[:-1], "the vectors have the shape (1, 2), (2, 2) was expected"),
        (lambda reply: reply[:, :1], "the vectors have the shape (2, 1), (2, 2) was expected"),
        (lambda reply: reply.ravel(), "the vectors have the shape (4,), (2, 2) was expected"),
        (lambda reply: reply * np.nan, "a vector has a number that is not finite"),
        (lambda reply: reply + np.inf, "a vector has a number that is not finite"),
        (lambda reply: reply.astype(np.float64) * 1e300, "a vector has a number that is not finite"),
        (lambda reply: [[1.0], [1.0, 2.0]], "the vectors are not a table of numbers"),
        (lambda reply: [["a", "b"], ["c", "d"]], "the vectors are not a table of numbers"),
    ],
)
def test_a_reply_of_no_use_is_an_error(spoil: Callable[[Any], Any], reason: str) -> None:
    with pytest.raises(ModelError) as raised:
        CachingEmbedder(LengthEmbedder(spoil)).embed_all(["a", "b"])
    assert (raised.value.code, raised.value.details["reason"]) == ("E302", reason)
    assert raised.value.message == "Cannot use the reply of the model length-2."


def test_a_query_is_one_row() -> None:
    assert CachingEmbedder(LengthEmbedder()).embed_query("abc").tolist() == [3, 1]
    with pytest.raises(ModelError):
        CachingEmbedder(LengthEmbedder(lambda reply: reply[:0])).embed_query("abc")


def test_the_same_query_is_embedded_once() -> None:
    embedder = LengthEmbedder()
    embedding = CachingEmbedder(embedder)
    assert embedding.embed_query("a") is embedding.embed_query("a")
    assert embedder.asked == [["a"]]


def test_a_cached_vector_cannot_be_spoilt() -> None:
    with pytest.raises(ValueError, match="read-only"):
        CachingEmbedder(LengthEmbedder()).embed_query("a")[0] = 7


def test_the_query_that_was_asked_least_recently_is_forgotten() -> None:
    embedder = LengthEmbedder()
    embedding = CachingEmbedder(embedder, cache_size=2)
    for query in ["a", "b", "a", "c", "a", "b"]:
        embedding.embed_query(query)
    assert embedder.asked == [["a"], ["b"], ["c"], ["b"]]


def test_a_cache_of_size_zero_keeps_nothing() -> None:
    embedder = LengthEmbedder()
    embedding = CachingEmbedder(embedder, cache_size=0)
    assert embedding.embed_query("a").tolist() == embedding.embed_query("a").tolist()
    assert len(embedder.asked) == 2


def test_threads_share_the_cache() -> None:
    embedding = CachingEmbedder(NgramEmbedder(), cache_size=5)
    queries = [f"query {number % 11}" for number in range(500)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(embedding.embed_query, queries))
    assert np.array_equal(np.stack(found), embedding.embed_all(queries))
    assert embedding._embed_query.cache_info().currsize == 5
