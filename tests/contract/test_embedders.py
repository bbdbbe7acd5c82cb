"""The embedder suite, run on every embedder: real models, and a real server."""

import json
from collections.abc import Iterator

import fastembed
import pytest

from pair.ai import minilm as minilm_files
from pair.ai.caching_embedder import open_mapped
from pair.ai.contract import Embedder
from pair.ai.fastembed import FastembedEmbedder
from pair.ai.minilm import MiniLmEmbedder
from pair.ai.ngram import NgramEmbedder
from pair.ai.openai import OpenAiEmbedder
from pair.ai.prompts import ModelSettings
from pair.ai.wordllama import WordLlamaEmbedder
from pair.testing.embedder_suite import EmbedderSuite
from support.model_server import ModelServer


@pytest.fixture(scope="module")
def static() -> Embedder:
    return WordLlamaEmbedder()


@pytest.fixture(scope="module")
def minilm() -> Embedder:
    return MiniLmEmbedder(threads=2)


@pytest.fixture(scope="module")
def with_fastembed(tmp_path_factory: pytest.TempPathFactory) -> Embedder:
    """Return the only local model, in the folder layout of fastembed."""
    folder = tmp_path_factory.mktemp("model")
    (folder / "model.onnx").write_bytes(open_mapped(minilm_files._MODEL)[:])
    (folder / "tokenizer.json").write_bytes(open_mapped(minilm_files._TOKENS)[:])
    (folder / "config.json").write_text(json.dumps({"pad_token_id": 0}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 256, "pad_token": "[PAD]"}))
    (folder / "special_tokens_map.json").write_text("{}")
    name = "sentence-transformers/all-MiniLM-L6-v2"
    made = FastembedEmbedder(name)
    made._model = fastembed.TextEmbedding(name, threads=1, specific_model_path=str(folder))
    return made


class TestStatic(EmbedderSuite):
    @pytest.fixture
    def embedder(self, static: Embedder) -> Embedder:
        return static


class TestMiniLm(EmbedderSuite):
    @pytest.fixture
    def embedder(self, minilm: Embedder) -> Embedder:
        return minilm


@pytest.mark.rule("engine-31")
class TestNgram(EmbedderSuite):
    @pytest.fixture
    def embedder(self) -> Embedder:
        return NgramEmbedder()


@pytest.mark.rule("engine-31")
class TestOpenAi(EmbedderSuite):
    @pytest.fixture
    def embedder(self) -> Iterator[Embedder]:
        with ModelServer() as server:
            made = OpenAiEmbedder(ModelSettings(server.url, "tiny"))
            yield made
            made.close()


class TestFastembed(EmbedderSuite):
    @pytest.fixture
    def embedder(self, with_fastembed: Embedder) -> Embedder:
        return with_fastembed
