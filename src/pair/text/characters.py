"""Characters: letters of every script, token estimates, and characters that no index should hold."""

import re

IDEOGRAPHS = "\u3005\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
KATAKANA = "\u30a1-\u30fa\u30fc-\u30ff"
WIDE = re.compile(f"[{IDEOGRAPHS}\u3041-\u30ff\uac00-\ud7a3]+")
"""Runs of Chinese, Japanese and Korean writing."""

# `\w` leaves out the vowel signs without which words of these scripts fall apart: Hebrew, Arabic, India, Thai to Khmer.
LETTER = (
    r"\w\u0300-\u036f\u0591-\u05c7\u0610-\u061a\u064b-\u065f\u0900-\u0963\u0966-\u0dff"
    r"\u0e00-\u0fff\u1000-\u1049\u1780-\u17d3\u200c\u200d"
)
CAPITAL = "A-Z\u00c0-\u00d6\u00d8-\u00de\u0391-\u03a9\u0410-\u042f"

_LATIN_CHARACTERS_PER_TOKEN = 4
# Controls but for tab and line ends; marks that reorder or hide text; halves of characters, which cannot be written.
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\u00ad\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff]"
)
_SURROGATE = re.compile("[\ud800-\udfff]")


def estimate_tokens(text: str) -> int:
    """Count about one for four Latin characters, two of other alphabets, or one of Chinese, Japanese or Korean."""
    if text.isascii():
        return -(-len(text) // _LATIN_CHARACTERS_PER_TOKEN)
    others = WIDE.sub("", text)
    size_bytes = len(others.encode("utf-8", "surrogatepass"))
    return len(text) - len(others) + -(-size_bytes // _LATIN_CHARACTERS_PER_TOKEN)


def drop_unprintable(text: str) -> str:
    """Remove control and invisible characters, and replace surrogates."""
    return replace_surrogates(_UNPRINTABLE.sub("", text))


def replace_surrogates(text: str) -> str:
    """Return a text that can be written as UTF-8."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def join_lines(text: str) -> str:
    return " ".join(text.split())


def clip(text: str, limit: int) -> str:
    """Cut to at most `limit` characters, between words where there are any."""
    if len(text) <= limit:
        return text
    cut = text[: limit - 1]
    at_word = cut.rpartition(" ")[0]
    return (at_word if len(at_word) > limit // 2 else cut).rstrip(" ,;:.(\u2013—-") + "…"
