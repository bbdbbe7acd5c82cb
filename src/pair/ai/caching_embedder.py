"""Any embedder, used with care: texts in batches, replies checked, the vectors of recent queries kept."""

import threading
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from pair import errors
from pair.ai.contract import Embedder, Vectors

DEFAULT_BATCH_SIZE = 256
DEFAULT_CACHE_SIZE = 1024


class CachingEmbedder:
    """Used from several threads at once, as the embedder is. Raises ModelError, E302 for a reply of no use."""

    def __init__(
        self, embedder: Embedder, batch_size: int = DEFAULT_BATCH_SIZE, cache_size: int = DEFAULT_CACHE_SIZE
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"a batch has at least one text: {batch_size}")
        self._embedder = embedder
        self._batch_size = batch_size
        self._cache_size = cache_size
        self._cache: OrderedDict[str, Vectors] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        return self._embedder.name

    @property
    def dimension(self) -> int:
        return self._embedder.dimension

    def weight_of(self, query: str) -> float:
        """How much the vector of this query counts in hybrid search."""
        return self._embedder.hybrid_weight * self._embedder.fit(query)

    def embed_all(self, texts: Sequence[str]) -> Vectors:
        """One row for each text, in their order."""
        vectors = np.empty((len(texts), self.dimension), dtype=np.float32)
        for start in range(0, len(texts), self._batch_size):
            batch = texts[start : start + self._batch_size]
            vectors[start : start + len(batch)] = self._checked(self._embedder.embed(batch), len(batch))
        return vectors

    def embed_query(self, text: str) -> Vectors:
        """One row, which cannot be written to: it is shared with whoever asks the same."""
        with self._lock:
            if text in self._cache:
                self._cache.move_to_end(text)
                return self._cache[text]
        # Not under the lock: a model may take seconds. Two who ask the same at once both ask the model.
        vector: Vectors = self._checked(self._embedder.embed_queries([text]), 1)[0].copy()
        vector.setflags(write=False)
        with self._lock:
            self._cache[text] = vector
            self._cache.move_to_end(text)
            while len(self._cache) > self._cache_size:
                self._cache.popitem(last=False)
        return vector

    def _checked(self, reply: Vectors, count: int) -> Vectors:
        try:
            with np.errstate(over="ignore"):
                vectors: Vectors = np.asarray(reply, dtype=np.float32)
        except (TypeError, ValueError) as error:
            raise errors.model_reply_unusable(self.name, "the vectors are not a table of numbers") from error
        expected = (count, self.dimension)
        if vectors.shape != expected:
            raise errors.model_reply_unusable(
                self.name, f"the vectors have the shape {vectors.shape}, {expected} was expected"
            )
        if not np.isfinite(vectors).all():
            raise errors.model_reply_unusable(self.name, "a vector has a number that is not finite")
        return vectors
