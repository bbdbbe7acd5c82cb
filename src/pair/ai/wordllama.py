"""The default embedder: the mean of vectors of tokens, which come inside the package wordllama.

Its weights and the table of its tokens are read as data. The vectors are those that its own code gives.

Invariants
    No code of the package is imported, and nothing is ever downloaded.
    A text is added up by itself and in its own order, so that its vector does not depend on its company.
    What is remembered of words changes the speed only, and stays within a bound.
"""

import functools
import re
import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import tokenizers

from pair import errors
from pair.ai.caching_embedder import BundledFile, LruCache, open_mapped, rate_tokens
from pair.ai.contract import Vectors
from pair.text.characters import SURROGATE

DIMENSION = 256
# The weights are the same in many versions; the files are checked, whichever is installed.
_REQUIREMENT = "wordllama>=0.4,<0.5"
_WEIGHTS = BundledFile(
    "wordllama",
    "weights/l2_supercat_256.safetensors",
    "64b47a2dc493cb8e85944076601189739852d7b64e0e1eedcb1937a251cd9fd5",
    _REQUIREMENT,
)
_TOKENS = BundledFile(
    "wordllama",
    "tokenizers/l2_supercat_tokenizer_config.json",
    "93248f2a9ec36c7b35f700a033d5f36228aae48db61aee31007fa49062cdeb68",
    _REQUIREMENT,
)
_VOCABULARY_SIZE = 32_000
# A safetensors file begins with the length of its header, and its header. Both are known with the SHA-256.
_HEADER_BYTES = 8 + 88

# What stands for a space. No token goes on beyond one that follows something else, nor beyond the end of a line: a text
# may be cut there, and each piece be looked up by itself.
_TOKEN_BYTES = 2
_SPACE = "\u2581"
_PIECE = re.compile(f"{_SPACE}+[^{_SPACE}\n]*|\n[^{_SPACE}\n]*")
_LONGEST_REMEMBERED = 32
_REMEMBERED_PIECES = 1 << 17
_TOKENS_AT_ONCE = 1 << 12
_MANY_TEXTS = 32

_Table = npt.NDArray[np.float16] | npt.NDArray[np.float32]


@dataclass(eq=False)
class WordLlamaEmbedder:
    """Loaded with the first text. Raises E305 when the files of the model are not there, or are others."""

    name = f"static-wordllama-l2_supercat-{DIMENSION}-{_WEIGHTS.sha256[:8]}"
    dimension = DIMENSION
    hybrid_weight = 0.2

    _loading: threading.Lock = field(default_factory=threading.Lock)
    _model: "_WordLlamaModel | None" = None
    _memory: LruCache[bytes] = field(default_factory=functools.partial(LruCache, _REMEMBERED_PIECES))

    def fit(self, query: str) -> float:
        pieces = _pieces(query)
        tokens = self._tokens_of(self._get_model(), set(pieces))
        size_bytes = sum(len(tokens[piece]) for piece in pieces)
        return rate_tokens(query, size_bytes // _TOKEN_BYTES)

    def embed(self, texts: Sequence[str]) -> Vectors:
        model = self._get_model()
        read = [_pieces(text) for text in texts]
        tokens = self._tokens_of(model, set().union(*read))
        table = model.table(len(texts))
        sums = np.zeros((len(texts), DIMENSION), dtype=np.float32)
        for number, pieces in enumerate(read):
            ids = np.frombuffer(b"".join(map(tokens.__getitem__, pieces)), dtype=np.uint16)
            for start in range(0, len(ids), _TOKENS_AT_ONCE):
                rows = table.take(ids[start : start + _TOKENS_AT_ONCE], axis=0).astype(np.float32, copy=False)
                sums[number] += np.add.reduce(rows, axis=0)
        # The sums need no dividing by the number of tokens: making the length 1 would undo it.
        lengths = np.sqrt(np.add.reduce(np.square(sums, dtype=np.float64), axis=1, keepdims=True))
        vectors: Vectors = (sums / np.where(lengths > 0, lengths, 1)).astype(np.float32)
        return vectors

    def embed_queries(self, texts: Sequence[str]) -> Vectors:
        return self.embed(texts)

    def _get_model(self) -> "_WordLlamaModel":
        with self._loading:
            if self._model is None:
                self._model = _load()
            return self._model

    def _tokens_of(self, model: "_WordLlamaModel", pieces: Collection[str]) -> dict[str, bytes]:
        tokens, unknown = self._memory.recall(pieces)
        for piece in unknown:
            tokens[piece] = model.tokens_of(piece)
        self._memory.remember(tokens, [piece for piece in unknown if len(piece) <= _LONGEST_REMEMBERED])
        return tokens


@dataclass
class _WordLlamaModel:
    tokenizer: tokenizers.models.Model
    halves: npt.NDArray[np.float16]
    """The vector of each token, as it is in the file."""
    floats: npt.NDArray[np.float32] | None = None

    def table(self, texts: int) -> _Table:
        """Return wide numbers for many texts: they are added six times as fast, but take memory of our own."""
        if self.floats is None and texts >= _MANY_TEXTS:
            self.floats = self.halves.astype(np.float32)
        return self.halves if self.floats is None else self.floats

    def tokens_of(self, piece: str) -> bytes:
        written = piece if piece.startswith((_SPACE, "\n")) else _SPACE + piece
        ids = [token.id for token in self.tokenizer.tokenize(written)]
        return np.array(ids, dtype=np.uint16).tobytes()


def _load() -> _WordLlamaModel:
    weights = open_mapped(_WEIGHTS)
    halves = np.frombuffer(weights, dtype=np.dtype("<f2"), offset=_HEADER_BYTES)
    with open_mapped(_TOKENS) as description:
        try:
            model = tokenizers.Tokenizer.from_buffer(description[:]).model
        except ValueError as fault:
            reason = "the installed version of tokenizers cannot read it"
            raise errors.model_file_unusable(_TOKENS.path, reason, _REQUIREMENT) from fault
    return _WordLlamaModel(model, halves.reshape(_VOCABULARY_SIZE, DIMENSION))


def _pieces(text: str) -> list[str]:
    """Return nothing for a blank text. A piece begins with the space before it; a single one is left out."""
    if not text.strip():
        return []
    if not text.isascii():
        text = SURROGATE.sub("\ufffd", text)
    spaced = text.replace("\n", " \n")
    if _SPACE not in spaced and "  " not in spaced and spaced[0] != " ":
        return spaced.split(" ")
    written = _SPACE + text.replace(" ", _SPACE)
    return [piece[1:] if piece[0] == _SPACE and piece[1:2] != _SPACE else piece for piece in _PIECE.findall(written)]
