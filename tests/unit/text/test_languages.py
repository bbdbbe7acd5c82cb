"""Languages of texts, and edit distances."""

# ruff: noqa: RUF001 - letters of other alphabets look like Latin ones

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pair.text.languages import (
    _WORD,
    LANGUAGES,
    STOP_WORDS,
    _find_words,
    allow_edits,
    count_edits,
    find_language,
    stem_word,
)


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("en", "The town is known for its museums, which are visited by tourists."),
        ("de", "Die Stadt ist für ihre Museen bekannt, die von vielen Touristen besucht werden."),
        ("fr", "La ville est connue pour ses musées, qui sont visités par les touristes."),
        ("es", "La ciudad es conocida por sus museos, que son visitados por los turistas."),
        ("it", "La città è nota per i suoi musei, che sono visitati dai turisti."),
        ("pt", "A cidade é conhecida pelos seus museus e não tem muitas indústrias."),
        ("nl", "De stad is bekend om haar musea, die door veel toeristen worden bezocht."),
        ("sv", "Staden är känd för sina museer, som besöks av många turister."),
        ("da", "Byen er kendt for sine museer, der bliver besøgt af mange turister."),
        ("no", "Byen er kjent for sine museer, som blir besøkt av mange turister."),
        ("fi", "Kaupunki on tunnettu museoistaan, jotka ovat myös hyvin suosittuja ja kauniita."),
        ("ru", "Город известен своими музеями, которые посещают туристы из всех стран."),
        ("pl", "Miasto jest znane z muzeów, które są odwiedzane przez turystów."),
        ("tr", "Şehir bu müzeler ile ünlüdür ve her yıl çok sayıda turist için bir merkezdir."),
        ("el", "Η πόλη είναι γνωστή για τα μουσεία της που έχει."),
        ("en", "def main(): return os.path.join(a, b)  # de la"),
        ("en", "北京是中华人民共和国的首都"),
        ("en", "Goethe, Schiller, Lessing"),
        ("en", ""),
    ],
)
def test_stop_words_tell_the_language(language: str, text: str) -> None:
    assert find_language({}, text) == language


@pytest.mark.parametrize(
    ("metadata", "language"),
    [
        ({"lang": "de"}, "de"),
        ({"language": "pt-BR"}, "pt"),
        ({"language": "Swedish"}, "sv"),
        ({"lang": "nb_NO"}, "no"),
        ({"lang": "tlh"}, "en"),
        ({"lang": 7}, "en"),
    ],
)
def test_metadata_names_the_language(metadata: dict[str, object], language: str) -> None:
    assert find_language(metadata, "It is the language of the metadata that counts for this text.") == language


def test_every_language_has_stop_words_and_a_stemmer() -> None:
    assert set(LANGUAGES) == set(STOP_WORDS)
    assert all(stem_word("Katalog", language) for language in LANGUAGES)


def plainly(first: str, second: str) -> int:
    """Return the edit distance by its definition."""
    if not first or not second:
        return len(first) + len(second)
    counts = [
        plainly(first[1:], second) + 1,
        plainly(first, second[1:]) + 1,
        plainly(first[1:], second[1:]) + (first[0] != second[0]),
    ]
    if first[:2] == second[1::-1] and len(first) > 1 and len(second) > 1:
        counts.append(plainly(first[2:], second[2:]) + 1)
    return min(counts)


words = st.text("abé", max_size=4)


@settings(max_examples=50, deadline=None)
@given(word=words, others=st.lists(words, max_size=4))
def test_edits_are_counted_by_their_definition(word: str, others: list[str]) -> None:
    assert count_edits(word, others) == [plainly(word, other) for other in others]


def test_long_words_may_have_more_edits() -> None:
    assert [allow_edits(word) for word in ("cats", "boats", "castles", "building", "utf8enc")] == [0, 1, 1, 2, 0]


@given(text=st.text(st.characters(max_codepoint=127)) | st.text())
def test_the_words_of_ascii_are_those_of_the_pattern(text: str) -> None:
    assert _find_words(text) == _WORD.findall(text)
