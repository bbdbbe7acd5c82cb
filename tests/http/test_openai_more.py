"""The Responses and Embeddings API with the official `openai` package, and answers that stream as a model writes."""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import openai
import pytest

from support.model_server import Answer, ModelServer
from support.served import Keyed, Served, error_of

WRITTEN = "Roll back with the command make rollback. [1] Deploy on Tuesdays. [1]"


def client_of(server: Served, key: str = "none") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0, timeout=60)


@pytest.fixture
def client(plain: Served) -> Iterator[openai.OpenAI]:
    with client_of(plain) as made:
        yield made


@pytest.fixture(scope="module")
def model() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory, model: ModelServer) -> Iterator[Served]:
    """Return a server with a language model."""
    folder = tmp_path_factory.mktemp("written") / "project"
    folder.mkdir()
    variables = {
        "PAIR__AI__BASE_URL": model.url,
        "PAIR__AI__MODEL": "any",
        "PAIR__AI__RETRIES": "0",
        "PAIR__SERVER__SYNC": "false",
    }
    with Served(folder, **variables) as server:
        server.ingest({"deploy.md": "# Deploying\n\nDeploy on Tuesdays. Roll back with the command make rollback."})
        yield server


# ── streams ────────────────────────────────────────────────────────────────────────────────────────


def test_a_completion_streams_while_the_model_still_writes(written: Served, model: ModelServer):
    answer = Answer(text=WRITTEN, held_after=6)
    model.answers.append(answer)
    messages: Any = [{"role": "user", "content": "How do I roll back?"}]
    with client_of(written) as client:
        stream = client.chat.completions.create(model="default", messages=messages, stream=True)
        begun = ""
        while "command" not in begun:  # the model waits for this test to read so far
            begun += next(stream).choices[0].delta.content or ""
        assert "Tuesdays" not in begun
        answer.release.set()
        chunks = list(stream)
    text = begun + "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text.startswith(WRITTEN)
    assert text.count("make rollback") == 1
    assert "Sources:" in text
    assert chunks[-1].model_extra is not None
    assert chunks[-1].model_extra["sources"]


def test_citations_are_numbered_while_they_are_written(written: Served, model: ModelServer):
    """The model cites by the number of the passage, and the answer by the number of the source."""
    written.ingest({"other.md": "# Carpets\n\nTo roll back a carpet, start from the left."})
    model.answers.append(Answer(text="Roll back with make rollback. [2]\n\nA carpet rolls from the left. [1]"))
    messages: Any = [{"role": "user", "content": "How do I roll back?"}]
    with client_of(written) as client:
        stream = client.chat.completions.create(model="default", messages=messages, stream=True)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
    assert 0 < text.index("[1]") < text.index("[2]")


def test_a_stream_that_the_check_changes_ends_with_the_checked_answer(written: Served, model: ModelServer):
    model.answers.append(Answer(text="Roll back with the command make rollback in 1987 and 2044. [1] Goodbye."))
    messages: Any = [{"role": "user", "content": "How do I roll back?"}]
    with client_of(written) as client:
        stream = client.chat.completions.create(model="default", messages=messages, stream=True)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
    unchecked, checked = text.split("The checked answer:")
    assert "1987" in unchecked
    assert "\n\n> " in checked
    assert "oll back" in checked
    assert "1987" not in checked


# ── the Responses API ──────────────────────────────────────────────────────────────────────────────


def test_a_response_has_the_answer_and_its_sources(client: openai.OpenAI):
    response = client.responses.create(model="pair", input="How do I roll back?", instructions="Be short.")
    assert "make rollback" in response.output_text
    assert (response.status, response.model, response.instructions) == ("completed", "pair", "Be short.")
    assert response.model_extra is not None
    assert response.model_extra["sources"][0]["name"]
    assert response.usage is not None
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens


def test_a_response_streams_the_same_text(client: openai.OpenAI):
    whole = client.responses.create(model="pair", input="How do I roll back?")
    with client.responses.stream(model="pair", input="How do I roll back?") as stream:
        events = list(stream)
        final = stream.get_final_response()
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == final.output_text == whole.output_text
    assert events[0].type == "response.created"
    assert events[-1].type == "response.completed"
    numbers = [event.sequence_number for event in events if hasattr(event, "sequence_number")]
    assert all(first < second for first, second in itertools.pairwise(numbers))


def test_a_response_streams_while_the_model_still_writes(written: Served, model: ModelServer):
    answer = Answer(text=WRITTEN, held_after=6)
    model.answers.append(answer)
    with client_of(written) as client:
        begun = ""
        events = client.responses.create(model="default", input="How do I roll back?", stream=True)
        for event in events:
            if event.type == "response.output_text.delta":
                begun += event.delta
            if "command" in begun:
                break
        assert "Tuesdays" not in begun
        answer.release.set()
        rest = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert (begun + "".join(rest)).startswith(WRITTEN)


def test_a_conversation_is_understood_in_a_response(client: openai.OpenAI):
    turns: Any = [
        {"role": "user", "content": [{"type": "input_text", "text": "How do I roll back?"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "With a command. [1]"}]},
        {"role": "user", "content": "And why is that so?"},
    ]
    assert "make rollback" in client.responses.create(model="default", input=turns).output_text


@pytest.mark.parametrize(
    ("more", "parameter"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "input.0.content.0.type",
        ),
    ],
)
def test_an_unsupported_option_of_a_response_is_refused_by_name(
    client: openai.OpenAI, more: dict[str, Any], parameter: str
):
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(**{"model": "pair", "input": "Why?", **more})
    assert caught.value.param == parameter


def test_a_short_response_is_cut_and_says_so(client: openai.OpenAI):
    response = client.responses.create(model="pair", input="How do I roll back?", max_output_tokens=2)
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"


# ── embeddings ─────────────────────────────────────────────────────────────────────────────────────


def test_embeddings_are_those_of_the_kb(client: openai.OpenAI):
    made = client.embeddings.create(
        model="pair", input=["roll back a release", "lunch is at one", "rolled back releases"]
    )
    assert [item.index for item in made.data] == [0, 1, 2]
    vectors = np.array([item.embedding for item in made.data])
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-3)
    assert vectors[0] @ vectors[2] > vectors[0] @ vectors[1]
    plain = client.embeddings.create(model=made.model, input="roll back a release", encoding_format="float")
    assert np.allclose(plain.data[0].embedding, vectors[0], atol=1e-6)


def test_embeddings_of_another_model_or_nothing_are_refused(plain: Served, client: openai.OpenAI):
    with pytest.raises(openai.NotFoundError, match="pair"):
        client.embeddings.create(model="text-embedding-3-small", input="x")
    assert error_of(plain.post("/v1/embeddings", {"input": []})) == (400, "E601")
    assert error_of(plain.post("/v1/embeddings", {"input": ""})) == (400, "E601")
    assert error_of(plain.post("/v1/embeddings", {"input": [1, 2]})) == (400, "E601")
    assert error_of(plain.post("/v1/embeddings", {"input": "x", "dimensions": 7})) == (400, "E601")


def test_a_model_that_the_caller_may_not_ask_does_not_exist_for_responses(keyed: Keyed):
    key = keyed.key("read", "mine")
    refused = keyed.server.post("/v1/responses", {"model": "default", "input": "Why?"}, key=key)
    assert error_of(refused) == (404, "E605")
