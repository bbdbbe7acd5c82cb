"""Untrusted text, escaped for display."""

import sys
import unicodedata

import pytest

from pair.app.render import escape_json, escape_line, escape_text

HARMLESS = [
    "plain words, [brackets] and \\backslashes",
    "Größe, naïve, Ελλάδα, 日本語, עברית, العربية",
    "👩‍👩‍👧 and ❤️",
    "می‌خواهم",
    "क्‍ष",
    "soft\u00adhyphen and a\u00a0space",
]


@pytest.mark.parametrize("text", HARMLESS)
def test_words_of_any_language_are_unchanged(text: str) -> None:
    assert escape_line(text) == text
    assert escape_text(text) == text


def test_no_control_character_and_no_surrogate_is_left() -> None:
    every = "".join(map(chr, range(sys.maxunicode + 1)))
    left = {unicodedata.category(character) for character in escape_line(every)}
    assert not left & {"Cc", "Cs", "Zl", "Zp"}
    assert {character for character in escape_text(every) if unicodedata.category(character) == "Cc"} == {"\t", "\n"}


@pytest.mark.parametrize(
    "character",
    "\u061c\u200b\u200c\u200d\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2060\u2066\u2067\u2068\u2069\ufeff",
)
def test_characters_that_hide_in_a_name_are_shown(character: str) -> None:
    shown = character.encode("unicode_escape").decode()
    assert escape_line(f"pay{character}pal") == f"pay{shown}pal"
    assert escape_text(f"pay{character}pal") == f"pay{shown}pal"


def test_only_one_joiner_follows_a_letter() -> None:
    assert escape_line("é\u200d\u200d\u200d") == "é\u200d\\u200d\\u200d"


def test_a_line_stays_one_line() -> None:
    assert escape_line("a\nb\tc\r\nd") == r"a\nb\tc\r\nd"


def test_a_text_keeps_its_lines_and_tabs() -> None:
    assert escape_text("a\nb\tc\r\nd\re") == "a\nb\tc\nd\\re"


def test_json_has_no_control_character_at_all() -> None:
    assert escape_json('"a\x7fb"') == r'"a\u007fb"'
