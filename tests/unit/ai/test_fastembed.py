"""Errors for models that fastembed does not know or cannot load."""

import pytest

from pair.ai.fastembed import FastembedEmbedder
from pair.errors import PairError


def test_an_unknown_model_is_refused_with_similar_ones() -> None:
    with pytest.raises(PairError) as caught:
        FastembedEmbedder("bge-tiny")
    assert caught.value.code == "E401"
    assert "BAAI/bge-small-en-v1.5" in caught.value.hints[0]


def test_a_model_that_was_never_fetched_is_refused_offline(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FASTEMBED_CACHE_PATH", str(tmp_path))
    with pytest.raises(PairError) as caught:
        FastembedEmbedder(is_offline=True).embed(["word"])
    assert (caught.value.code, caught.value.message) == ("E301", "Cannot reach the model BAAI/bge-small-en-v1.5.")
    assert "engine.embedder: static" in caught.value.hints[1]
    assert capfd.readouterr().err == ""
