"""Tests that every embedder must pass.

Name a class `Test…`, make it inherit from `EmbedderSuite`, and give it the fixture `embedder`. Its scope may be the
session if it loads slowly.
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from pair.ai.contract import Embedder, Vectors

TEXTS = (
    "Water boils at a hundred degrees at sea level.",
    "The castle has a moat, two towers and a drawbridge.",
    "def rollback(release: str) -> None: ...  # error E0432, see --no-kb",
    "Übergrößenträger fahren im Sommer nach Südtirol.",
    "水在一百度沸腾。",
    "lunch",
)
ODD_TEXTS = {
    "half of a character": "before \ud83d after",
    "other half first": "\udc00\ud800",
    "emoji": "👩‍👩‍👧 🙂🙃 🇩🇪",
    "right to left": "مرحبا بالعالم שלום עולם",
    "marks on letters": "Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤̞͉͚̯̞̠͍A̴̵̜̰͔ͫ͗͢L̠ͨͧͩ͘G̴̻͈͍͔̹̑͗̎̅͛́Ǫ̵̹̻̝̳͂̌̌͘",
    "controls": "\x00\x01\x07\x1b[31m red",
    "invisible": "\u200b\u200e\ufeff",
    "punctuation": "?! … --- ;",
    "markers of models": "<s> </s> <unk> [CLS] [SEP] [MASK] <|endoftext|> ▁",
    "code with indentation": "if a:\n\n    if b:\n\t\treturn  c\r\n",
    "ten kilobytes": "a long tale of rivers " * 470,
    "one long word": "x" * 10_000,
    "unwritten space": "\u00a0\u3000\u2029",
}
BLANK_TEXTS = ("", " ", "\n\n\t ")


class EmbedderSuite:
    """The tests of an embedder. The same text must have exactly the same vector in every batch."""

    def test_the_embedder_has_a_name_and_a_size(self, embedder: Embedder) -> None:
        assert embedder.name == embedder.name.strip() != ""
        assert embedder.name.isprintable()
        assert embedder.dimension == embedder.dimension > 0

    def test_hybrid_weight_is_a_share(self, embedder: Embedder) -> None:
        assert 0 <= embedder.hybrid_weight <= 1

    def test_texts_become_rows_of_length_1(self, embedder: Embedder) -> None:
        for vectors in (embedder.embed(TEXTS), embedder.embed_queries(TEXTS)):
            assert vectors.dtype == np.float32
            assert vectors.shape == (len(TEXTS), embedder.dimension)
            assert _lengths(vectors) == pytest.approx(np.ones(len(TEXTS)), abs=1e-5)

    def test_no_texts_give_no_rows(self, embedder: Embedder) -> None:
        assert embedder.embed([]).shape == embedder.embed_queries([]).shape == (0, embedder.dimension)

    def test_blank_text_is_a_row_of_zeros(self, embedder: Embedder) -> None:
        mixed = embedder.embed([BLANK_TEXTS[0], TEXTS[0], *BLANK_TEXTS[1:]])
        assert _lengths(mixed) == pytest.approx([0, 1, 0, 0], abs=1e-5)
        assert not embedder.embed(BLANK_TEXTS).any()
        assert not embedder.embed_queries(BLANK_TEXTS).any()

    def test_a_text_has_the_same_vector_in_every_batch(self, embedder: Embedder) -> None:
        alone = np.concatenate([embedder.embed([text]) for text in TEXTS])
        crowd = [*TEXTS, *(f"{text} {number}" for number in range(5) for text in TEXTS)]
        assert np.array_equal(embedder.embed(TEXTS), alone)
        assert np.array_equal(embedder.embed(TEXTS[::-1])[::-1], alone)
        assert np.array_equal(embedder.embed(crowd)[: len(TEXTS)], alone)

    def test_different_texts_are_different_vectors(self, embedder: Embedder) -> None:
        vectors = embedder.embed(TEXTS)
        assert len(np.unique(vectors.round(4), axis=0)) == len(TEXTS)

    def test_a_text_is_nearest_to_one_about_the_same_topic(self, embedder: Embedder) -> None:
        (query,) = embedder.embed_queries(["towers of the castle"])
        assert int(np.argmax(embedder.embed(TEXTS) @ query)) == 1

    @pytest.mark.parametrize("text", ODD_TEXTS.values(), ids=ODD_TEXTS.keys())
    def test_an_odd_text_gives_a_finite_row(self, embedder: Embedder, text: str) -> None:
        vectors = embedder.embed([TEXTS[0], text])
        assert vectors.shape == (2, embedder.dimension)
        assert np.isfinite(vectors).all()
        assert min(abs(_lengths(vectors)[1] - whole) for whole in (0, 1)) < 1e-5
        assert np.array_equal(vectors[1], embedder.embed([text])[0])

    def test_threads_can_share_the_embedder(self, embedder: Embedder) -> None:
        batches = [[f"{text} {number}" for text in TEXTS] for number in range(4)]
        expected = [embedder.embed(batch) for batch in batches]
        with ThreadPoolExecutor(3) as pool:
            vectors = list(pool.map(embedder.embed, batches))
        assert np.array_equal(np.stack(vectors), np.stack(expected))


def _lengths(vectors: Vectors) -> np.ndarray:
    return np.asarray(np.sqrt(np.square(vectors, dtype=np.float64).sum(axis=1)))
