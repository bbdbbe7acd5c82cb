"""A cross-encoder that fastembed knows, which it fetches with its first use."""

import threading
from collections.abc import Sequence

import loguru
from fastembed.rerank.cross_encoder import TextCrossEncoder

from pair import errors
from pair.text.characters import clip, encodable, on_one_line

_MAX_REASON_CHARACTERS = 300
_HINTS = ("The first use of a model fetches it: try again with a network", "Or unset engine.reranker_model")


class FastembedReranker:
    """Raises E401 for a model that it does not know, E301 when one cannot be fetched."""

    def __init__(self, model: str) -> None:
        known = [str(each["model"]) for each in TextCrossEncoder.list_supported_models()]
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
        return list(self._loaded().rerank(encodable(query), [encodable(text) for text in texts]))

    def _loaded(self) -> TextCrossEncoder:
        with self._loading:
            if self._model is None:
                # It reports every attempt on the terminal; what matters of that is in our error.
                loguru.logger.disable("fastembed")
                try:
                    self._model = TextCrossEncoder(self._name)
                except (ValueError, OSError, RuntimeError) as fault:
                    reason = clip(on_one_line(str(fault)), _MAX_REASON_CHARACTERS)
                    hints = [
                        "The first use of a model fetches it: try again with a network",
                        "Unset engine.reranker_model",
                    ]
                    raise errors.model_unreachable(self._name, reason, hints=hints) from fault
            return self._model
