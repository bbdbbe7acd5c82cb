"""Vectors from a real server with faults."""

import json
import socket
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pair.ai.ngram import NgramEmbedder
from pair.ai.openai import OpenAiEmbedder, OpenAiEmbedderOptions
from pair.ai.prompts import ModelSettings
from pair.errors import ModelError
from support.model_server import EMBEDDING_DIMENSION, NOT_JSON, Answer, ModelServer

KEY = "sk-very-secret-0123456789"
BUSY = Answer(429, headers={"Retry-After": "0"})
EXPECTED = NgramEmbedder(EMBEDDING_DIMENSION)


@pytest.fixture
def policy(model: ModelServer) -> ModelSettings:
    return ModelSettings(model.url, "tiny", KEY, timeout_seconds=10, retries=2, retry_wait_seconds=0.01)


@pytest.fixture
def embedder(policy: ModelSettings) -> Iterator[OpenAiEmbedder]:
    made = OpenAiEmbedder(policy)
    yield made
    made.close()


def data(*vectors: Any) -> Answer:
    entries = [{"index": at, "embedding": vector} for at, vector in enumerate(vectors)]
    return Answer(body=json.dumps({"data": entries}))


def error_of(embedder: OpenAiEmbedder, *texts: str) -> ModelError:
    with pytest.raises(ModelError) as caught:
        embedder.embed(texts or ["some text"])
    assert KEY not in str(caught.value.to_json())
    return caught.value


def test_vectors_are_put_in_the_order_of_the_texts_and_made_of_length_1(
    model: ModelServer, embedder: OpenAiEmbedder
) -> None:
    texts = ["cats sleep", "dogs bark", "birds sing"]
    assert embedder.embed(texts) == pytest.approx(EXPECTED.embed(texts), abs=1e-6)
    (request,) = model.requests
    assert (request["model"], request["input"], request["encoding_format"]) == ("tiny", texts, "float")
    assert "dimensions" not in request
    assert model.paths == ["/v1/embeddings"]
    assert model.headers[0]["Authorization"] == f"Bearer {KEY}"


def test_many_texts_are_asked_for_in_several_requests(model: ModelServer, embedder: OpenAiEmbedder) -> None:
    texts = [f"text number {number}" for number in range(100)]
    assert embedder.embed(texts) == pytest.approx(EXPECTED.embed(texts), abs=1e-6)
    assert sorted(len(request["input"]) for request in model.requests) == [4, 32, 32, 32]


def test_long_texts_are_fewer_in_a_request(model: ModelServer, embedder: OpenAiEmbedder) -> None:
    embedder.embed(["long " * 5_000] * 5)
    assert sorted(len(request["input"]) for request in model.requests) == [1, 2, 2]


def test_blank_texts_are_not_sent(model: ModelServer, embedder: OpenAiEmbedder) -> None:
    embedder.embed(["", "word", " \n"])
    assert [request["input"] for request in model.requests] == [["word"]]


def test_the_first_reply_says_how_many_numbers_a_vector_has(model: ModelServer, embedder: OpenAiEmbedder) -> None:
    embedder.embed(["word"])
    assert embedder.dimension == EMBEDDING_DIMENSION
    assert model.calls == 1
    assert embedder.name == "openai-tiny"
    model.answers.append(data([1.0, 0.0]))
    error = error_of(embedder)
    assert (error.code, "2 numbers, 64 were expected" in error.explanation) == ("E302", True)


def test_a_configured_size_is_asked_for_and_expected(model: ModelServer, policy: ModelSettings) -> None:
    embedder = OpenAiEmbedder(policy, OpenAiEmbedderOptions(dimension=16))
    assert (embedder.name, embedder.dimension, model.calls) == ("openai-tiny-16", 16, 0)
    assert embedder.embed(["word"]).shape == (1, 16)
    assert model.requests[0]["dimensions"] == 16
    model.answers.append(data([1.0, 0.0]))
    assert error_of(embedder).code == "E302"
    embedder.close()


def test_prefixes_tell_queries_from_documents(model: ModelServer, policy: ModelSettings) -> None:
    embedder = OpenAiEmbedder(policy, OpenAiEmbedderOptions(query_prefix="query: ", document_prefix="passage: "))
    embedder.embed(["cats"])
    embedder.embed_queries(["cats"])
    embedder.close()
    assert [request["input"] for request in model.requests] == [["passage: cats"], ["query: cats"]]
    other = OpenAiEmbedder(policy, OpenAiEmbedderOptions(document_prefix="text: "))
    assert len({embedder.name, other.name, "openai-tiny"}) == 3
    other.close()


@pytest.mark.parametrize("answers", [[BUSY], [Answer(500, body="oh no"), BUSY]])
def test_a_request_is_tried_again(model: ModelServer, embedder: OpenAiEmbedder, answers: list[Answer]) -> None:
    model.answers += answers
    assert embedder.embed(["word"]) == pytest.approx(EXPECTED.embed(["word"]), abs=1e-6)
    assert model.calls == len(answers) + 1


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (NOT_JSON, "not JSON"),
        (Answer(body="[]"), "not a list of vectors"),
        (Answer(body='{"data": [1]}'), "not a list of vectors"),
        (data(), "0 vectors"),
        (data([1.0], [2.0]), "2 vectors"),
        (Answer(body='{"data": [{"index": 1, "embedding": [1.0]}]}'), "wrong places"),
        (Answer(body='{"data": [{"index": 0}]}'), "not a table"),
        (data([]), "not a table"),
        (data("AAAA"), "not a table"),
        (data([1.0, None]), "not finite"),
        (Answer(body='{"data": [{"index": 0, "embedding": [NaN, 1.0]}]}'), "not finite"),
        (Answer(422, body="what is this?"), "HTTP 422"),
    ],
)
def test_a_reply_of_no_use_is_refused(
    model: ModelServer, embedder: OpenAiEmbedder, answer: Answer, reason: str
) -> None:
    model.answers.append(answer)
    error = error_of(embedder)
    assert (error.code, reason in error.explanation) == ("E302", True), error.explanation
    assert "engine.embedding_model" in error.hints[0]


def test_a_missing_vector_in_the_middle_is_refused(model: ModelServer, embedder: OpenAiEmbedder) -> None:
    entries = [{"index": at, "embedding": [1.0, 2.0]} for at in (0, 2)]
    model.answers.append(Answer(body=json.dumps({"data": entries})))
    assert error_of(embedder, "a", "b", "c").code == "E302"


def test_replies_without_places_keep_their_order(model: ModelServer, embedder: OpenAiEmbedder) -> None:
    model.answers.append(Answer(body='{"data": [{"embedding": [2.0, 0]}, {"embedding": [0, 3.0]}]}'))
    assert embedder.embed(["a", "b"]).tolist() == [[1, 0], [0, 1]]


def test_a_text_that_is_too_long_is_sent_in_halves(model: ModelServer, embedder: OpenAiEmbedder) -> None:
    model.context_characters = 900
    texts = [f"{number} " + "word " * 80 for number in range(5)]
    assert embedder.embed(texts) == pytest.approx(EXPECTED.embed(texts), abs=1e-6)
    long = "river " * 1_000
    assert embedder.embed([long]) == pytest.approx(EXPECTED.embed([long[:750]]), abs=1e-6)
    model.context_characters = 10
    assert error_of(embedder, long).code == "E302"


@pytest.mark.parametrize("status", [401, 404])
def test_a_closed_door_is_a_model_that_cannot_be_reached(
    model: ModelServer, embedder: OpenAiEmbedder, status: int
) -> None:
    model.answers.append(Answer(status, body=f"no, {KEY}"))
    assert error_of(embedder).code == "E301"
    assert model.calls == 1


def test_a_missing_server_is_reported_with_a_hint(model: ModelServer, policy: ModelSettings) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    embedder = OpenAiEmbedder(replace(policy, base_url=address, retries=0))
    error = error_of(embedder, *[f"text {number}" for number in range(100)])
    assert error.code == "E301"
    assert "engine.embedding_url" in error.hints[0]
    with pytest.raises(ModelError):
        _ = embedder.dimension
    embedder.close()


def test_a_server_that_does_not_answer_in_time_is_unreachable(model: ModelServer, policy: ModelSettings) -> None:
    model.answers.append(Answer(delay_seconds=30))
    embedder = OpenAiEmbedder(replace(policy, timeout_seconds=0.2, retries=0))
    error = error_of(embedder)
    assert (error.code, error.explanation) == ("E301", "No answer within 0.2s.")
    embedder.close()


def test_a_vector_of_zeros_stays_one(model: ModelServer, embedder: OpenAiEmbedder) -> None:
    model.answers.append(data([0.0, 0.0]))
    assert np.array_equal(embedder.embed(["word"]), np.zeros((1, 2)))
