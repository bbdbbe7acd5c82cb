"""Vectors from any OpenAI-compatible server: in batches, several requests at once, every reply checked.

Not here
    Retries, and what a fault means: openai_connection.py.
"""

import hashlib
import json
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import openai

from pair import errors
from pair.ai.contract import Vectors
from pair.ai.openai_connection import ModelConnection, ModelFault
from pair.ai.prompts import ModelSettings
from pair.text.characters import encodable

# Servers differ in what they take at once: so much is taken by all that we know.
_TEXTS_IN_A_REQUEST = 32
_CHARACTERS_IN_A_REQUEST = 60_000
_REQUESTS_AT_ONCE = 4
# A model that cannot take so much of a text is of no use.
_LEAST_CHARACTERS = 200
_PROBE = "How many numbers has a vector?"


@dataclass(frozen=True)
class OpenAiEmbedderOptions:
    dimension: int = 0
    """Asked of the server and expected of every reply; 0: what the first reply has is expected of the others."""
    query_prefix: str = ""
    document_prefix: str = ""


class OpenAiEmbedder:
    """May be used from several threads at once. Raises E301 without an answer, E302 for one that is of no use."""

    def __init__(self, policy: ModelSettings, options: OpenAiEmbedderOptions | None = None) -> None:
        self._model = policy.model
        self._options = options or OpenAiEmbedderOptions()
        self._connection = ModelConnection(policy)
        self._known_dimension = self._options.dimension
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        """Vectors of texts with another prefix, or of another length, are not to be mixed with these."""
        parts = ["openai", self._model]
        if self._options.dimension:
            parts.append(str(self._options.dimension))
        if self._options.document_prefix:
            parts.append(hashlib.sha256(self._options.document_prefix.encode()).hexdigest()[:8])
        return "-".join(parts)

    @property
    def dimension(self) -> int:
        if not self._known_dimension:
            self._ask([_PROBE])
        return self._known_dimension

    @property
    def hybrid_weight(self) -> float:
        return 0.4

    def close(self) -> None:
        self._connection.close()

    def fit(self, query: str) -> float:
        return 1.0

    def embed(self, texts: Sequence[str]) -> Vectors:
        return self._embed(texts, self._options.document_prefix)

    def embed_queries(self, texts: Sequence[str]) -> Vectors:
        return self._embed(texts, self._options.query_prefix)

    def _embed(self, texts: Sequence[str], prefix: str) -> Vectors:
        telling = [number for number, text in enumerate(texts) if text.strip()]
        batches = _batches([prefix + encodable(texts[number]) for number in telling])
        if len(batches) > 1:
            with ThreadPoolExecutor(_REQUESTS_AT_ONCE) as pool:
                replies = list(pool.map(self._ask, batches))
        else:
            replies = [self._ask(batch) for batch in batches]
        vectors: Vectors = np.zeros((len(texts), self.dimension), dtype=np.float32)
        if replies:
            vectors[telling] = np.concatenate(replies)
        return vectors

    def _ask(self, batch: Sequence[str]) -> Vectors:
        """A row of length 1 for each text. What the server finds too long is halved: the batch, then its one text."""
        try:
            body = self._connection.ask(lambda client: self._request(client, batch))
        except ModelFault as caught:
            fault = caught
        else:
            return self._read(body, len(batch))
        smaller = _halves(batch) if fault.is_too_long else []
        if not smaller:
            raise self._refusal(fault) from fault
        return np.concatenate([self._ask(half) for half in smaller])

    def _request(self, client: openai.OpenAI, batch: Sequence[str]) -> str:
        return client.embeddings.with_raw_response.create(
            model=self._model,
            input=list(batch),
            encoding_format="float",
            dimensions=self._options.dimension or openai.omit,
        ).text

    def _read(self, body: str, count: int) -> Vectors:
        found = _vectors_in(body, count)
        if isinstance(found, str):
            raise self._unusable(found)
        with self._lock:
            self._known_dimension = self._known_dimension or found.shape[1]
        if found.shape[1] != self._known_dimension:
            raise self._unusable(f"its vectors have {found.shape[1]} numbers, {self._known_dimension} were expected")
        lengths = np.sqrt(np.add.reduce(np.square(found), axis=1, keepdims=True))
        vectors: Vectors = (found / np.where(lengths > 0, lengths, 1)).astype(np.float32)
        return vectors

    def _refusal(self, fault: ModelFault) -> errors.ModelError:
        if fault.is_about_the_text:
            return self._unusable(fault.reason)
        return errors.model_unreachable(
            self._connection.address,
            fault.reason,
            hints=[
                "Check engine.embedding_url, or ai.base_url, and that the server runs",
                "Use an embedder that needs no server: engine.embedder: static",
            ],
        )

    def _unusable(self, reason: str) -> errors.ModelError:
        return errors.model_reply_unusable(
            self._connection.address,
            f"{reason} (model {self._model})",
            hints=["Try another model with engine.embedding_model"],
        )


def _batches(texts: Sequence[str]) -> list[list[str]]:
    batches: list[list[str]] = []
    characters = 0
    for text in texts:
        characters += len(text)
        if not batches or len(batches[-1]) == _TEXTS_IN_A_REQUEST or characters > _CHARACTERS_IN_A_REQUEST:
            batches.append([])
            characters = len(text)
        batches[-1].append(text)
    return batches


def _halves(batch: Sequence[str]) -> list[Sequence[str]]:
    """None when less would not help. Of a single text, the beginning speaks for the whole."""
    middle = len(batch) // 2
    if middle:
        return [batch[:middle], batch[middle:]]
    half = batch[0][: len(batch[0]) // 2]
    return [[half]] if len(half) >= _LEAST_CHARACTERS else []


def _vectors_in(body: str, count: int) -> "np.ndarray | str":
    """A row for each text, in double precision; or why there is none."""
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        return "the answer is not JSON"
    entries = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        return "the answer is no list of vectors"
    # Some servers leave out the index, and keep the order.
    by_index: dict[Any, Any] = {entry.get("index", at): entry.get("embedding") for at, entry in enumerate(entries)}
    if set(by_index) != set(range(count)) or len(entries) != count:
        return f"the answer has {len(entries)} vectors, or wrong places for them, for {count} texts"
    try:
        vectors = np.array([by_index[at] for at in range(count)], dtype=np.float64)
    except (TypeError, ValueError):
        return "the vectors are not a table of numbers"
    if vectors.ndim != 2 or vectors.shape[1] == 0:
        return "the vectors are not a table of numbers"
    if not np.isfinite(vectors).all():
        return "a vector has a number that is not finite"
    return vectors
