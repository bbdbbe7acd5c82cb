"""Embedders and cross-encoders of fastembed, which downloads a model on first use."""

import functools
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import fastembed
import loguru
import numpy as np
from fastembed.rerank.cross_encoder import TextCrossEncoder

from pair import errors
from pair.ai.contract import Vectors
from pair.text.characters import clip, join_lines, replace_surrogates

DEFAULT_MODEL = "BAAI/bge-small-en-v1.5"
_MOST_SUGGESTIONS = 8
_MAX_REASON_CHARACTERS = 300
_TRY_AGAIN = "The first use of a model downloads it: try again with a network"
_LOAD_FAULTS = (ValueError, OSError, RuntimeError)

_Model = TypeVar("_Model")


def _load_model(name: str, load: Callable[[], _Model], hint: str) -> _Model:
    """Load a model. Raises E301."""
    # fastembed logs every attempt to the terminal; our error has the reason.
    loguru.logger.disable("fastembed")
    try:
        return load()
    except _LOAD_FAULTS as fault:
        reason = clip(join_lines(str(fault)), _MAX_REASON_CHARACTERS)
        raise errors.model_unreachable(name, reason, hints=[_TRY_AGAIN, hint]) from fault


class FastembedEmbedder:
    """An embedder of fastembed. Raises E401 for an unknown model, E301 if a model cannot be downloaded.

    `is_offline`: use only models that were downloaded before.
    """

    hybrid_weight = 0.4

    def __init__(self, model: str = "", *, threads: int = 1, is_offline: bool = False) -> None:
        self._model_name = model or DEFAULT_MODEL
        self._threads = threads
        self._is_offline = is_offline
        self._loading = threading.Lock()
        self._model: fastembed.TextEmbedding | None = None
        try:
            self.dimension = fastembed.TextEmbedding.get_embedding_size(self._model_name)
        except ValueError as fault:
            known = [str(entry["model"]) for entry in fastembed.TextEmbedding.list_supported_models()]
            word = self._model_name.rpartition("/")[2].partition("-")[0].lower()
            similar = [name for name in known if word in name.lower()] or known
            raise errors.settings_invalid(
                "engine.embedding_model",
                f"fastembed knows no model {self._model_name!r}",
                hints=[f"For example: {', '.join(similar[:_MOST_SUGGESTIONS])}"],
            ) from fault
        self.name = f"fastembed-{self._model_name}-{self.dimension}"

    def fit(self, query: str) -> float:
        return 1.0

    def embed(self, texts: Sequence[str]) -> Vectors:
        return self._embed(texts, lambda model, batch: model.passage_embed(batch))

    def embed_queries(self, texts: Sequence[str]) -> Vectors:
        return self._embed(texts, lambda model, batch: model.query_embed(batch))

    def _embed(
        self,
        texts: Sequence[str],
        ask: Callable[[fastembed.TextEmbedding, list[str]], Iterable[np.ndarray]],
    ) -> Vectors:
        vectors: Vectors = np.zeros((len(texts), self.dimension), dtype=np.float32)
        for number, text in enumerate(texts):
            if text.strip():
                # Embed one text at a time, because the other texts of a batch would change the vector.
                (row,) = ask(self._get_model(), [replace_surrogates(text)])
                wide = np.asarray(row, dtype=np.float64)
                vectors[number] = wide / (np.sqrt(np.add.reduce(np.square(wide))) or 1.0)
        return vectors

    def _get_model(self) -> fastembed.TextEmbedding:
        with self._loading:
            if self._model is None:
                hint = "Use an embedder that needs none: engine.embedder: static"
                self._model = _load_model(self._model_name, self._load, hint)
            return self._model

    def _load(self) -> fastembed.TextEmbedding:
        try:  # A downloaded model must not need a network.
            return fastembed.TextEmbedding(self._model_name, threads=self._threads, local_files_only=True)
        except _LOAD_FAULTS:
            if self._is_offline:
                raise RuntimeError("It was never downloaded, and downloads are disabled") from None
        return fastembed.TextEmbedding(self._model_name, threads=self._threads)


class FastembedReranker:
    """A cross-encoder of fastembed. Raises E401 for an unknown model, E301 if a model cannot be downloaded."""

    def __init__(self, model: str) -> None:
        known = [str(entry["model"]) for entry in TextCrossEncoder.list_supported_models()]
        if model not in known:
            raise errors.settings_invalid(
                "engine.reranker_model",
                f"fastembed knows no cross-encoder {model!r}",
                hints=[f"It knows: {', '.join(known)}"],
            )
        self._name = model
        self._loading = threading.Lock()
        self._model: TextCrossEncoder | None = None

    def scores(self, query: str, texts: Sequence[str]) -> Sequence[float]:
        if not texts:
            return []
        with self._loading:
            if self._model is None:
                load = functools.partial(TextCrossEncoder, self._name)
                self._model = _load_model(self._name, load, "Unset engine.reranker_model")
        return list(self._model.rerank(replace_surrogates(query), [replace_surrogates(text) for text in texts]))
