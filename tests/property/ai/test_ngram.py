"""For any text, hashing many words at once equals hashing one feature at a time."""

import math
import re
import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pair.ai.ngram import NgramEmbedder
from pair.text.characters import ENGLISH

DIMENSION = 24
EMBEDDER = NgramEmbedder(DIMENSION)
WORDS = st.sampled_from(["leap", "Second", "the", "of", "a1", "größe", "数据库", "x" * 150, "Ⅷ", "-", "_", "\n", " "])
TEXTS = st.lists(WORDS, max_size=12).map(" ".join) | st.text(max_size=40)


def hash_of(feature: str, seed: int) -> int:
    value = seed
    for letter in feature:
        value = (value ^ ord(letter)) * 0x100000001B3 % 2**64
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        value = (value ^ value >> 33) * factor % 2**64
    return value ^ value >> 33


def embed_plainly(text: str) -> list[float]:
    words = re.findall(r"[^\W_]+", unicodedata.normalize("NFKC", text).lower())
    words = [word[at : at + 64] for word in words for at in range(0, len(word), 64)]
    sums = [0] * DIMENSION
    for word in [word for word in words if word not in ENGLISH] or words:
        wrapped = f"<{word}>"
        pieces = [wrapped[at : at + size] for size in (3, 4, 5, 6) for at in range(len(wrapped) - size + 1)]
        for feature in [wrapped, *pieces]:
            sign = -1 if hash_of(feature, 0x84222325CBF29CE4) % 2 else 1
            sums[hash_of(feature, 0xCBF29CE484222325) % DIMENSION] += sign
    length = math.sqrt(sum(number * number for number in sums))
    return [number / length if length else 0.0 for number in sums]


@given(st.lists(TEXTS, max_size=4))
def test_vectors_are_those_of_the_plain_way(texts: list[str]) -> None:
    vectors = EMBEDDER.embed(texts)
    assert vectors.shape == (len(texts), DIMENSION)
    for text, vector in zip(texts, vectors, strict=True):
        assert vector.tolist() == pytest.approx(embed_plainly(text), abs=1e-6)


@given(TEXTS)
def test_a_vector_has_length_one_or_is_all_zeros(text: str) -> None:
    (vector,) = EMBEDDER.embed([text])
    assert np.isfinite(vector).all()
    assert not vector.any() or float(np.linalg.norm(vector)) == pytest.approx(1)
