"""Rules for results: how much of them fits, where a text is cut, and the addresses of documents."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import parse_qsl, quote, unquote

import pydantic_core

from pair import errors

_Value = TypeVar("_Value")

BYTES_PER_TOKEN = 3
"""Tokenizers make fewer tokens of a text than a third of its bytes, whatever its language."""
_SCHEME = "kb://"
_WORD_CHARACTERS = 80


def json_size(value: Any) -> int:
    """Return the bytes of a value as JSON."""
    return len(pydantic_core.to_json(value))


def cut(text: str, most_bytes: int) -> str:
    """Return the longest beginning that fits as JSON, up to a space if there is one nearby."""
    if len(text) <= most_bytes and json_size(text) <= most_bytes:
        return text
    fits, too_long = 0, min(len(text), most_bytes) + 1
    while too_long - fits > 1:
        middle = (fits + too_long) // 2
        if json_size(text[:middle]) <= most_bytes:
            fits = middle
        else:
            too_long = middle
    space = text.rfind(" ", max(1, fits - _WORD_CHARACTERS), fits)
    return text[: space if space > 0 else fits]


def cut_evenly(texts: Sequence[str], most_bytes: int) -> list[str]:
    """Fit texts into so many bytes: short ones whole, long ones cut to the same length."""
    sizes = [json_size(text) for text in texts]
    left, share = most_bytes, most_bytes
    for place, size in enumerate(sorted(sizes)):
        share = left // (len(sizes) - place)
        if size > share:
            break
        left -= size
    return [text if size <= share else cut(text, share) for text, size in zip(texts, sizes, strict=True)]


def take_fitting(values: Sequence[_Value], most_bytes: int) -> list[_Value]:
    """Return the first values, as many as fit as a list."""
    kept: list[_Value] = []
    size = 2
    for value in values:
        size += json_size(value) + 1
        if size > most_bytes:
            break
        kept.append(value)
    return kept


@dataclass(frozen=True)
class Address:
    """`kb://handbook/guides%2Fdeploy.md?offset=9000`, or `kb://handbook?after=clocks.md` for a list of documents.

    `at`: the version that a document is of.
    """

    kb: str
    document_id: str = ""
    offset: int = 0
    after: str = ""
    at: str = ""

    def __str__(self) -> str:
        base = f"{_SCHEME}{quote(self.kb, safe='')}"
        if self.document_id:
            base += f"/{quote(self.document_id, safe='')}"
        named = {"at": quote(self.at, safe=""), "offset": self.offset, "after": quote(self.after, safe="")}
        more = "&".join(f"{name}={value}" for name, value in named.items() if value)
        return f"{base}?{more}" if more else base

    @staticmethod
    def parse(text: str) -> "Address":
        """Raises E601."""
        place, _, more = text.removeprefix(_SCHEME).partition("?")
        kb, _, document_id = place.partition("/")
        given = dict(parse_qsl(more, keep_blank_values=True))
        offset = given.get("offset", "0")
        is_offset = offset.isascii() and offset.isdigit() and len(offset) <= 18
        known = {"offset", "after"} | ({"at"} if document_id else set())
        if not is_address(text) or not kb or given.keys() - known or not is_offset:
            raise errors.request_invalid(
                "not the address of a document", hints=["kb://KB/ID, with ID percent-encoded, as search gives it"]
            )
        return Address(unquote(kb), unquote(document_id), int(offset), given.get("after", ""), given.get("at", ""))


def is_address(text: str) -> bool:
    return text.startswith(_SCHEME)
