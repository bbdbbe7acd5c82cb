"""Vectors from an OpenAI-compatible server: in batches, several requests at once, every reply checked."""

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
from pair.ai.openai import ModelConnection, ModelFault
from pair.ai.prompts import ModelSettings
from pair.text.characters import replace_surrogates

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
    """Requested from the server and expected in every reply; 0: expect that of the first reply."""
    query_prefix: str = ""
    document_prefix: str = ""


class OpenAiEmbedder:
    """May be used from several threads at once. Raises E301 without an answer, E302 for an unusable one."""

    hybrid_weight = 0.4

    def __init__(self, settings: ModelSettings, options: OpenAiEmbedderOptions | None = None) -> None:
        self._model = settings.model
        self._options = options or OpenAiEmbedderOptions()
        self._connection = ModelConnection(settings)
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

    def close(self) -> None:
        self._connection.close()

    def fit(self, query: str) -> float:
        return 1.0

    def embed(self, texts: Sequence[str]) -> Vectors:
        return self._embed(texts, self._options.document_prefix)

    def embed_queries(self, texts: Sequence[str]) -> Vectors:
        return self._embed(texts, self._options.query_prefix)

    def _embed(self, texts: Sequence[str], prefix: str) -> Vectors:
        numbers = [number for number, text in enumerate(texts) if text.strip()]
        batches = _split_batches([prefix + replace_surrogates(texts[number]) for number in numbers])
        if len(batches) > 1:
            with ThreadPoolExecutor(_REQUESTS_AT_ONCE) as pool:
                replies = list(pool.map(self._ask, batches))
        else:
            replies = [self._ask(batch) for batch in batches]
        vectors: Vectors = np.zeros((len(texts), self.dimension), dtype=np.float32)
        if replies:
            vectors[numbers] = np.concatenate(replies)
        return vectors

    def _ask(self, batch: Sequence[str]) -> Vectors:
        """Return a row of length 1 for each text. Halve what is too long for the server: the batch, then its text."""
        try:
            body = self._connection.ask(lambda client: self._request(client, batch))
        except ModelFault as caught:
            fault = caught
        else:
            return self._read(body, len(batch))
        smaller = _halve(batch) if fault.is_too_long else []
        if smaller:
            return np.concatenate([self._ask(half) for half in smaller])
        if fault.is_about_the_text:
            raise self._unusable(fault.reason) from fault
        raise errors.model_unreachable(
            self._connection.address,
            fault.reason,
            hints=[
                "Check engine.embedding_url, or ai.base_url, and that the server runs",
                "Use an embedder that needs no server: engine.embedder: static",
            ],
        ) from fault

    def _request(self, client: openai.OpenAI, batch: Sequence[str]) -> str:
        return client.embeddings.with_raw_response.create(
            model=self._model,
            input=list(batch),
            encoding_format="float",
            dimensions=self._options.dimension or openai.omit,
        ).text

    def _read(self, body: str, count: int) -> Vectors:
        try:
            rows = _parse_vectors(body, count)
        except ValueError as fault:
            raise self._unusable(str(fault)) from fault
        with self._lock:
            self._known_dimension = self._known_dimension or rows.shape[1]
        if rows.shape[1] != self._known_dimension:
            raise self._unusable(f"its vectors have {rows.shape[1]} numbers, {self._known_dimension} were expected")
        lengths = np.sqrt(np.add.reduce(np.square(rows), axis=1, keepdims=True))
        vectors: Vectors = (rows / np.where(lengths > 0, lengths, 1)).astype(np.float32)
        return vectors

    def _unusable(self, reason: str) -> errors.ModelError:
        return errors.model_reply_unusable(
            self._connection.address,
            f"{reason} (model {self._model})",
            hints=["Try another model with engine.embedding_model"],
        )


def _split_batches(texts: Sequence[str]) -> list[list[str]]:
    batches: list[list[str]] = []
    characters = 0
    for text in texts:
        characters += len(text)
        if not batches or len(batches[-1]) == _TEXTS_IN_A_REQUEST or characters > _CHARACTERS_IN_A_REQUEST:
            batches.append([])
            characters = len(text)
        batches[-1].append(text)
    return batches


def _halve(batch: Sequence[str]) -> list[Sequence[str]]:
    """Return nothing when less would not help. The beginning of a single text speaks for the whole."""
    middle = len(batch) // 2
    if middle:
        return [batch[:middle], batch[middle:]]
    half = batch[0][: len(batch[0]) // 2]
    return [[half]] if len(half) >= _LEAST_CHARACTERS else []


def _parse_vectors(body: str, count: int) -> np.ndarray:
    """Return a row for each text, in double precision. Raises ValueError, which says why there is none."""
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        raise ValueError("the answer is not JSON") from None
    entries = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError("the answer is no list of vectors")
    # Some servers leave out the index, and keep the order.
    by_index: dict[Any, Any] = {entry.get("index", at): entry.get("embedding") for at, entry in enumerate(entries)}
    if set(by_index) != set(range(count)) or len(entries) != count:
        raise ValueError(f"the answer has {len(entries)} vectors, or wrong places for them, for {count} texts")
    try:
        vectors = np.array([by_index[at] for at in range(count)], dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError("the vectors are not a table of numbers") from None
    if vectors.ndim != 2 or vectors.shape[1] == 0:
        raise ValueError("the vectors are not a table of numbers")
    if not np.isfinite(vectors).all():
        raise ValueError("a vector has a number that is not finite")
    return vectors
