"""The embedder without a model: near texts, and stable vectors."""

import hashlib

import numpy as np
import pytest

from pair.ai.ngram import NgramEmbedder
from pair.text.characters import ENGLISH

SENTENCES = ["Leap seconds are added by the IERS.", "Größe und Höhe", "数据库系统", "42", "", "the of and", "…"]
DIGEST = "2ecfb043bbc860c2"


def near(left: str, right: str) -> float:
    vectors = NgramEmbedder().embed([left, right])
    return float(vectors[0] @ vectors[1])


def test_a_vector_without_numbers_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one number: 0"):
        NgramEmbedder(0)


@pytest.mark.parametrize("text", ["", " \n", "…!?", "___", "\u0301", "\ud800"])
def test_a_text_without_a_letter_or_a_digit_gives_zeros(text: str) -> None:
    assert not NgramEmbedder().embed([text]).any()


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("Leap second", "leap   SECOND"),
        ("leap-second!", "(leap) second"),
        ("the leap second of a year", "leap second a"),
        ("snake_case", "snake case"),
        ("caf\u00e9", "cafe\u0301"),
        ("\uff21\uff22\uff23", "abc"),
    ],
)
def test_case_spaces_punctuation_and_stop_words_make_no_difference(left: str, right: str) -> None:
    assert near(left, right) == pytest.approx(1)


def test_a_text_of_stop_words_alone_is_embedded_by_them() -> None:
    assert {"the", "of", "and"} <= ENGLISH
    assert near("the of", "of the") == pytest.approx(1)
    assert near("the of", "and") < 0.5


def test_forms_of_a_word_are_nearer_than_other_words() -> None:
    assert near("synchronisation", "synchronise") > 0.5
    assert abs(near("synchronisation", "elephant")) < 0.2
    assert near("leap second", "the leap seconds were added") > near("leap second", "the days were counted")


def test_chinese_is_found_by_a_part_of_a_sentence() -> None:
    assert near("数据库系统", "这是一个数据库系统的例子") > 0.15
    assert abs(near("数据库系统", "今天天气很好我们去公园")) < 0.1


def test_signs_are_independent_of_places() -> None:
    """Check signs: with the low bits of FNV alone, all even places would have one sign and all odd places the other."""
    sums = np.sign(NgramEmbedder(64).embed([f"{number:x}" for number in range(4_000)]))
    assert abs(float(sums[:, ::2].mean())) < 0.1
    assert abs(float(sums[:, 1::2].mean())) < 0.1


def test_a_long_run_of_letters_is_read_as_several_words() -> None:
    assert near("x" * 64 + "y" * 64, f"{'x' * 64} {'y' * 64}") == pytest.approx(1)


def test_vectors_are_the_same_bits_on_every_machine() -> None:
    assert digest(NgramEmbedder().embed(SENTENCES).astype("<f4").tobytes()) == DIGEST


def digest(vectors: bytes) -> str:
    return hashlib.sha256(vectors).hexdigest()[:16]


def test_more_words_than_are_remembered_change_no_vector() -> None:
    embedder = NgramEmbedder()
    first = embedder.embed(SENTENCES)
    embedder.embed([" ".join(f"w{number}" for number in range(start, start + 30_000)) for start in (0, 30_000, 60_000)])
    assert len(embedder._memory._young) + len(embedder._memory._old) <= 1 << 16
    assert np.array_equal(embedder.embed(SENTENCES), first)


def test_a_word_in_use_is_kept_when_others_are_forgotten() -> None:
    embedder = NgramEmbedder()
    for start in range(0, 140_000, 20_000):
        embedder.embed(["kept", " ".join(f"w{number}" for number in range(start, start + 20_000))])
    assert embedder._memory.recall(["kept"])[1] == []
    assert embedder._memory.recall(["w0"])[1] == ["w0"]
