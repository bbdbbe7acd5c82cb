"""Any model that fastembed knows, which it fetches with its first use."""

import threading
from collections.abc import Callable, Iterable, Sequence

import fastembed
import loguru
import numpy as np

from pair import errors
from pair.ai.contract import Vectors
from pair.text.characters import clip, encodable, on_one_line

DEFAULT_MODEL = "BAAI/bge-small-en-v1.5"
_MOST_SUGGESTIONS = 8
_MAX_REASON_CHARACTERS = 300


class FastembedEmbedder:
    """Loaded with the first text. Raises E401 for a model that it does not know, E301 when one cannot be fetched.

    `is_offline`: only what was fetched before is used.
    """

    def __init__(self, model: str = "", *, threads: int = 1, is_offline: bool = False) -> None:
        self._model_name = model or DEFAULT_MODEL
        self._threads = threads
        self._is_offline = is_offline
        self._loading = threading.Lock()
        self._model: fastembed.TextEmbedding | None = None
        try:
            self._dimension = fastembed.TextEmbedding.get_embedding_size(self._model_name)
        except ValueError as fault:
            raise _unknown_model(self._model_name) from fault

    @property
    def name(self) -> str:
        return f"fastembed-{self._model_name}-{self._dimension}"

    @property
    def dimension(self) -> int:
        return self._dimension

    @property
    def hybrid_weight(self) -> float:
        return 0.4

    def fit(self, query: str) -> float:
        return 1.0

    def embed(self, texts: Sequence[str]) -> Vectors:
        return self._embed(texts, lambda model, some: model.passage_embed(some))

    def embed_queries(self, texts: Sequence[str]) -> Vectors:
        return self._embed(texts, lambda model, some: model.query_embed(some))

    def _embed(
        self,
        texts: Sequence[str],
        ask: Callable[[fastembed.TextEmbedding, list[str]], Iterable[np.ndarray]],
    ) -> Vectors:
        vectors: Vectors = np.zeros((len(texts), self._dimension), dtype=np.float32)
        telling = [number for number, text in enumerate(texts) if text.strip()]
        if not telling:
            return vectors
        model = self._loaded()
        for number in telling:
            # By itself: what stands beside it in a batch would change the last digits, and with some models more.
            (found,) = ask(model, [encodable(texts[number])])
            wide = np.asarray(found, dtype=np.float64)
            vectors[number] = wide / (np.sqrt(np.add.reduce(np.square(wide))) or 1.0)
        return vectors

    def _loaded(self) -> fastembed.TextEmbedding:
        with self._loading:
            if self._model is None:
                # It reports every attempt on the terminal; what matters of that is in our error.
                loguru.logger.disable("fastembed")
                self._model = self._fetched_before() or self._fetch()
            return self._model

    def _fetched_before(self) -> fastembed.TextEmbedding | None:
        """Tried first: a model that is there must not need a network."""
        try:
            return fastembed.TextEmbedding(self._model_name, threads=self._threads, local_files_only=True)
        except (ValueError, OSError, RuntimeError):
            return None

    def _fetch(self) -> fastembed.TextEmbedding:
        if self._is_offline:
            raise self._unreachable("It was never fetched, and fetching is switched off")
        try:
            return fastembed.TextEmbedding(self._model_name, threads=self._threads)
        except (ValueError, OSError, RuntimeError) as fault:
            reason = clip(on_one_line(str(fault)), _MAX_REASON_CHARACTERS)
            raise self._unreachable(reason) from fault

    def _unreachable(self, reason: str) -> errors.ModelError:
        return errors.model_unreachable(
            self._model_name,
            reason,
            hints=[
                "The first use of a model fetches it: try again with a network",
                "Use an embedder that needs none: engine.embedder: static",
            ],
        )


def _unknown_model(name: str) -> errors.UsageError:
    known = [str(each["model"]) for each in fastembed.TextEmbedding.list_supported_models()]
    word = name.rpartition("/")[2].partition("-")[0].lower()
    similar = [each for each in known if word in each.lower()] or known
    return errors.settings_invalid(
        "engine.embedding_model",
        f"fastembed knows no model {name!r}",
        hints=[f"For example: {', '.join(similar[:_MOST_SUGGESTIONS])}"],
    )
