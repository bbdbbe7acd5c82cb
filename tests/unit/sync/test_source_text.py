"""Decoding of bytes and hashing of texts, as tables."""

import hashlib

import pytest

from pair.reading.contract import UnreadableDocument
from pair.reading.reader import read
from pair.sync import source_text


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        pytest.param(b"", "", id="empty"),
        pytest.param(b"plain", "plain", id="ASCII"),
        pytest.param("für alle · 你好 · 🙂".encode(), "für alle · 你好 · 🙂", id="UTF-8"),
        pytest.param(b"\xef\xbb\xbfwith a mark", "with a mark", id="a byte order mark is dropped"),
        pytest.param(b"\xef\xbb\xbf", "", id="only a byte order mark"),
        pytest.param(b"a\x00b", "a\x00b", id="NUL is a character of UTF-8"),
    ],
)
@pytest.mark.rule("sync-11")
def test_what_decodes_as_utf8_is_text(content: bytes, expected: str) -> None:
    assert read(content, "notes.md").text == expected


RUSSIAN = "Съешь ещё этих мягких французских булок, да выпей же чаю. Это обычный русский текст."
JAPANESE = "これは日本語の文章です。文字コードの判定を確かめるために書きました。"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        pytest.param(b"caf\xe9", "café", id="Latin-1"),
        pytest.param("größe".encode("utf-16"), "größe", id="UTF-16"),
        pytest.param("größer als gedacht".encode("utf-16-le"), "größer als gedacht", id="UTF-16 without a mark"),
        pytest.param("größe".encode("utf-32"), "größe", id="UTF-32"),
        pytest.param(RUSSIAN.encode("cp1251"), RUSSIAN, id="Cyrillic"),
        pytest.param(JAPANESE.encode("shift_jis"), JAPANESE, id="Japanese"),
    ],
)
def test_text_in_another_charset_is_read(content: bytes, expected: str) -> None:
    assert read(content, "notes.md").text == expected


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        pytest.param(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "not text in any known charset", id="PNG"),
        pytest.param(b"\x1f\x8b\x08\0\0\0\0\0\2\3\xf3\xc9", "a compressed file", id="gzip"),
        pytest.param(bytes(range(256)) * 20, "not text in any known charset", id="every byte"),
        pytest.param(b"\xff\xfe\0\1", "not text in any known charset", id="hardly UTF-16"),
        pytest.param(b"PK\3\4\x14\0\0\0\x08\0\xff\xfe", "a compressed file", id="zip"),
        pytest.param(b"\x1f\x8b\x08\0" * 20, "a compressed file", id="gzip like UTF-16"),
    ],
)
def test_what_is_not_text_is_refused(content: bytes, reason: str) -> None:
    with pytest.raises(UnreadableDocument, match=reason):
        read(content, "notes.md")


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        pytest.param("", "", id="empty"),
        pytest.param("one", "one", id="a line"),
        pytest.param("one\n", "one", id="final line end"),
        pytest.param("one\r\ntwo\r\n", "one\ntwo", id="CRLF"),
        pytest.param("one\rtwo\r", "one\ntwo", id="CR"),
        pytest.param("one\r\n\r\ntwo", "one\n\ntwo", id="CRLF is one line end"),
        pytest.param("one  \ntwo\t \n", "one\ntwo", id="space at line ends"),
        pytest.param("  one\n\ttwo", "  one\n\ttwo", id="indentation stays"),
        pytest.param("\n \n\t\none\n \n\n", "one", id="blank lines around"),
        pytest.param("one\n\n\n two", "one\n\n\n two", id="blank lines inside stay"),
        pytest.param(" \n\t\r\n ", "", id="nothing but blank lines"),
    ],
)
@pytest.mark.rule("sync-45")
@pytest.mark.rule("sync-46")
def test_text_is_normalised_before_it_is_hashed(raw: str, expected: str) -> None:
    assert source_text.normalise(raw) == expected
    assert source_text.normalise(expected) == expected
    assert source_text.content_hash(raw) == hashlib.sha256(expected.encode()).hexdigest()


@pytest.mark.rule("sync-45")
def test_texts_that_differ_in_more_than_white_space_have_other_hashes() -> None:
    texts = ["", "a", "A", "a b", "a  b", " a", "a\nb", "a\n\nb", "ä"]
    assert len({source_text.content_hash(each) for each in texts}) == len(texts)


def test_a_text_that_no_file_can_hold_still_has_a_hash() -> None:
    assert len(source_text.content_hash("half an emoji: \ud83d")) == 64
