"""An embedder without a model: hashes of the words of a text, and of pieces of its words.

A word between `<` and `>`, and each run of three to six characters in that, is a feature. A feature has two hashes: one
selects a number of the vector, the other a sign, +1 or -1. Texts that share words or forms of words are near.

Invariants
    All counts are integers until the last division, so a vector is bit by bit the same on every machine.
    The cache of words is bounded, and changes only the speed.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from pair.ai.caching_embedder import LruCache
from pair.ai.contract import Vectors
from pair.text.characters import ENGLISH

DEFAULT_DIMENSION = 384

_Hashes = npt.NDArray[np.uint64]
_Places = npt.NDArray[np.intp]

_WORD = re.compile(r"[^\W_]+")
_ASCII_WORDS = "".join(chr(code).lower() if chr(code).isalnum() else " " for code in range(128))
# A longer run of letters is split, which bounds the work and the memory for each word.
_LONGEST_WORD = 64
_SHORTEST_PIECE = 3
_LONGEST_PIECE = 6

# FNV-1a over code points instead of bytes; both are the same for ASCII.
_PRIME = np.uint64(0x100000001B3)
_PLACE_SEED = np.uint64(0xCBF29CE484222325)
_SIGN_SEED = np.uint64(0x84222325CBF29CE4)
_MIX_SHIFT = np.uint64(33)
_MIX_FACTORS = (np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53))

_REMEMBERED_WORDS = 1 << 16
_WORDS_AT_ONCE = 1 << 12


class NgramEmbedder:
    """The embedder. A text without a letter or digit has zeros; stop words count only in a text without other words."""

    hybrid_weight = 0.2

    def __init__(self, dimension: int = DEFAULT_DIMENSION) -> None:
        if dimension < 1:
            raise ValueError(f"a vector needs at least one number: {dimension}")
        self.name = f"ngram-{dimension}-v1"
        self.dimension = dimension
        self._memory: LruCache[_Places] = LruCache(_REMEMBERED_WORDS)

    def fit(self, query: str) -> float:
        return 1.0

    def embed(self, texts: Sequence[str]) -> Vectors:
        read = [_split_words(text) for text in texts]
        places, unknown = self._memory.recall(set().union(*read))
        for portion in _split_portions(unknown):
            places.update(zip(portion, _hash_places(portion, self.dimension), strict=True))
        self._memory.remember(places, unknown)
        counts = np.zeros((len(texts), 2 * self.dimension), dtype=np.int64)
        for number, words in enumerate(read):
            for portion in _split_portions(words):
                features = np.concatenate([places[word] for word in portion])
                counts[number] += np.bincount(features, minlength=2 * self.dimension)
        sums = counts[:, : self.dimension] - counts[:, self.dimension :]
        # The mean is not needed: the sums are scaled to length 1.
        lengths = np.sqrt(np.einsum("ij,ij->i", sums, sums).astype(np.float64))
        vectors: Vectors = (sums / np.maximum(lengths, 1)[:, np.newaxis]).astype(np.float32)
        return vectors

    def embed_queries(self, texts: Sequence[str]) -> Vectors:
        return self.embed(texts)


def _split_words(text: str) -> list[str]:
    if text.isascii():
        words = text.translate(_ASCII_WORDS).split()
    else:
        # One form of each letter: accents may be combining marks, and Latin letters may be full-width.
        words = _WORD.findall(unicodedata.normalize("NFKC", text).lower())
    if max(map(len, words), default=0) > _LONGEST_WORD:
        words = [word[at : at + _LONGEST_WORD] for word in words for at in range(0, len(word), _LONGEST_WORD)]
    return [word for word in words if word not in ENGLISH] or words


def _split_portions(words: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(words), _WORDS_AT_ONCE):
        yield words[start : start + _WORDS_AT_ONCE]


def _hash_places(words: Sequence[str], dimension: int) -> list[_Places]:
    """Return for each word the places of its features: below `dimension` for +1, above for -1."""
    wrapped = [f"<{word}>" for word in words]
    joined = "".join(wrapped).encode("utf-32-le", "surrogatepass")
    letters = np.frombuffer(joined, dtype=np.dtype("<u4")).astype(np.uint64)
    lengths = np.array([len(word) for word in wrapped], dtype=np.intp)
    ends = np.cumsum(lengths)
    place_hashes, owners = _features(letters, lengths, ends, _PLACE_SEED)
    sign_hashes, _ = _features(letters, lengths, ends, _SIGN_SEED)
    places = (_mix(place_hashes) % np.uint64(dimension)).astype(np.intp)
    places += dimension * (_mix(sign_hashes) & np.uint64(1)).astype(np.intp)
    by_word = places[np.argsort(owners, kind="stable")]
    borders = np.cumsum(np.bincount(owners, minlength=len(words)))[:-1]
    # Copy the arrays: a view would keep the whole portion in memory.
    return [part.copy() for part in np.split(by_word, borders)]


def _features(letters: _Hashes, lengths: _Places, ends: _Places, seed: np.uint64) -> tuple[_Hashes, _Places]:
    """Return the hash of every feature, and the number of its word."""
    owner_of_letter = np.repeat(np.arange(len(lengths), dtype=np.intp), lengths)
    starts = np.arange(len(letters), dtype=np.intp)
    rolling = np.full(len(letters), seed, dtype=np.uint64)
    hashes: list[_Hashes] = []
    owners: list[_Places] = []
    for size in range(1, _LONGEST_PIECE + 1):
        is_inside = starts + size <= ends[owner_of_letter[starts]]
        starts, rolling = starts[is_inside], rolling[is_inside]
        rolling = (rolling ^ letters[starts + size - 1]) * _PRIME
        if size >= _SHORTEST_PIECE:
            hashes.append(rolling)
            owners.append(owner_of_letter[starts])
    whole, begins = np.full(len(lengths), seed, dtype=np.uint64), ends - lengths
    for size in range(int(lengths.max())):
        longer = np.flatnonzero(lengths > size)
        whole[longer] = (whole[longer] ^ letters[begins[longer] + size]) * _PRIME
    hashes.append(whole)
    owners.append(np.arange(len(lengths), dtype=np.intp))
    return np.concatenate(hashes), np.concatenate(owners)


def _mix(hashes: _Hashes) -> _Hashes:
    """Mix the bits: low bits of FNV depend only on low bits of the letters, and would relate place and sign."""
    for factor in _MIX_FACTORS:
        hashes = (hashes ^ (hashes >> _MIX_SHIFT)) * factor
    return hashes ^ (hashes >> _MIX_SHIFT)
