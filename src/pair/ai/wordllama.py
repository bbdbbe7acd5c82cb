"""The default embedder: the mean of token vectors from the package wordllama.

Its weights and tokens are read as data. The vectors are equal to those of its own code.
Invariants
    No code of the package is imported, and nothing is downloaded.
    The tokens of each text are summed alone and in order: a vector does not depend on other texts.
    The cache of words is bounded, and changes only the speed.
    Both tokenizers return the same tokens. The one in Python serves the first queries of a process: the library takes
    70 ms to load the file.
"""

import array
import functools
import itertools
import re
import threading
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt

from pair import errors
from pair.ai.caching_embedder import BundledFile, LruCache, open_mapped, rate_tokens
from pair.ai.contract import Vectors
from pair.text.characters import SURROGATE
from pair.values import parse_json

if TYPE_CHECKING:
    import tokenizers

DIMENSION = 256
# The weights are the same in many versions; the installed files are checked.
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
# A safetensors file begins with the length of its header, and the header. The SHA-256 fixes both.
_HEADER_BYTES = 8 + 88

_TOKEN_BYTES = 2
# The character for a space. No token crosses the start of a word or the end of a line: a text is split there, and each
# piece is tokenized alone.
_SPACE = "\u2581"
_PIECE = re.compile(f"{_SPACE}+[^{_SPACE}\n]*|\n[^{_SPACE}\n]*")
_LONGEST_REMEMBERED = 32
_REMEMBERED_PIECES = 1 << 17
_TOKENS_AT_ONCE = 1 << 12
_MANY_TEXTS = 32
_MANY_PIECES = 256
"""The largest number of unknown pieces that Python tokenizes; for more, the library is loaded."""

_Table = npt.NDArray[np.float16] | npt.NDArray[np.float32]


@dataclass(eq=False)
class WordLlamaEmbedder:
    """The embedder, loaded with the first text. Raises E305 if a file of the model is missing or differs."""

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
        # The mean is not needed: the sums are scaled to length 1.
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
        if len(unknown) > _MANY_PIECES:
            model.load_library()
        for piece in unknown:
            tokens[piece] = model.tokens_of(piece)
        self._memory.remember(tokens, [piece for piece in unknown if len(piece) <= _LONGEST_REMEMBERED])
        return tokens


class _TokenFile(msgspec.Struct):
    """The part of the tokenizer file that Python reads."""

    class Model(msgspec.Struct):
        vocab: dict[str, int]

    model: Model


@dataclass
class _WordLlamaModel:
    description: bytes
    """The tokenizer file."""
    halves: npt.NDArray[np.float16]
    """The vector of each token, mapped from the file."""
    floats: npt.NDArray[np.float32] | None = None
    library: "tokenizers.models.Model | None" = None

    def table(self, texts: int) -> _Table:
        """Return the vectors; for many texts as floats, which need memory but are added six times as fast."""
        if self.floats is None and texts >= _MANY_TEXTS:
            self.floats = self.halves.astype(np.float32)
        return self.halves if self.floats is None else self.floats

    def tokens_of(self, piece: str) -> bytes:
        written = piece if piece.startswith((_SPACE, "\n")) else _SPACE + piece
        # In Python, the time grows with the square of the length, and runs of spaces are merged in a different order.
        if self.library is None and len(written) <= _LONGEST_REMEMBERED and _SPACE not in written[1:]:
            ids = _merge_tokens(written, self._vocabulary)
        else:
            ids = [token.id for token in self.load_library().tokenize(written)]
        return array.array("H", ids).tobytes()

    def load_library(self) -> "tokenizers.models.Model":
        """Return the tokenizer of the library, which is faster for many pieces. Raises E305."""
        if self.library is None:
            from tokenizers import Tokenizer  # noqa: PLC0415 - see the invariants

            try:
                self.library = Tokenizer.from_buffer(self.description).model
            except ValueError as fault:
                reason = "the installed version of tokenizers cannot read it"
                raise errors.model_file_unusable(_TOKENS.path, reason, _REQUIREMENT) from fault
        return self.library

    @functools.cached_property
    def _vocabulary(self) -> dict[str, int]:
        return parse_json(self.description, _TokenFile).model.vocab


def _merge_tokens(text: str, vocabulary: Mapping[str, int]) -> list[int]:
    """Return the tokens of a short text by byte-pair encoding.

    The file lists every pair of tokens that form a token, by the numbers of the token, the first and the second one.
    """
    parts: list[str] = []
    for character in text:  # a character without a token is spelled in bytes
        parts += [character] if character in vocabulary else [f"<0x{byte:02X}>" for byte in character.encode()]
    while True:
        pairs = [
            (vocabulary[left + right], vocabulary[left], vocabulary[right], place)
            for place, (left, right) in enumerate(itertools.pairwise(parts))
            if left + right in vocabulary
        ]
        if not pairs:
            return [vocabulary[part] for part in parts]
        place = min(pairs)[-1]
        parts[place : place + 2] = ["".join(parts[place : place + 2])]


def _load() -> _WordLlamaModel:
    weights = open_mapped(_WEIGHTS)
    halves = np.frombuffer(weights, dtype=np.dtype("<f2"), offset=_HEADER_BYTES)
    with open_mapped(_TOKENS) as description:
        return _WordLlamaModel(description[:], halves.reshape(_VOCABULARY_SIZE, DIMENSION))


def read_token_table() -> tuple[list[str], npt.NDArray[np.float16]]:
    """Return the tokens in the order of their ids, and the vector of each. Raises E305."""
    model = _load()
    numbers = parse_json(model.description, _TokenFile).model.vocab
    return sorted(numbers, key=numbers.__getitem__), model.halves


def count_tokens(texts: Sequence[str]) -> npt.NDArray[np.int64]:
    """Return how often each token occurs in these texts, by id. Raises E305."""
    library = _load().load_library()
    counts = np.zeros(_VOCABULARY_SIZE, np.int64)
    for piece, count in Counter(piece for text in texts for piece in _pieces(text)).items():
        written = piece if piece.startswith((_SPACE, "\n")) else _SPACE + piece
        for token in library.tokenize(written):
            counts[token.id] += count
    return counts


def _pieces(text: str) -> list[str]:
    """Return the pieces of a text; none for a blank text. A piece includes the spaces before it, if several."""
    if not text.strip():
        return []
    if not text.isascii():
        text = SURROGATE.sub("\ufffd", text)
    spaced = text.replace("\n", " \n")
    if _SPACE not in spaced and "  " not in spaced and spaced[0] != " ":
        return spaced.split(" ")
    written = _SPACE + text.replace(" ", _SPACE)
    return [piece[1:] if piece[0] == _SPACE and piece[1:2] != _SPACE else piece for piece in _PIECE.findall(written)]
