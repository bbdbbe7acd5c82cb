"""Decode bytes to text: by the declared charset, by a charset in the content, else by a guess."""

import codecs
import contextlib
import re
from collections.abc import Iterator

import charset_normalizer

from pair.reading.contract import UnreadableDocument

NOT_TEXT = "not text in any known charset"
_PACKED = "a compressed file; unpack it to add the documents in it"
_PACKED_MAGICS = (b"\x1f\x8b\x08", b"PK\x03\x04", b"BZh", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd", b"7z\xbc\xaf\x27\x1c")
"""The first bytes of gzip, zip, bzip2, xz, Zstandard and 7z."""
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # UTF-32 comes first, because its mark begins with that of UTF-16.
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_WIDE = frozenset({"utf-16", "utf-32"})
_HEAD_BYTES = 4096
_NAMED_IN_HEAD = re.compile(
    rb"""<meta[^>]*?charset\s*=\s*["']?\s*([\w.:-]+)|^\s*<\?xml[^>]*?encoding\s*=\s*["']([\w.:-]+)""", re.IGNORECASE
)
# Python's codecs of these names are not for documents, and some are slow on hostile input.
_NO_CHARSETS = frozenset({"idna", "punycode", "raw-unicode-escape", "undefined", "unicode-escape", "utf-7"})
_SAMPLE_BYTES = 64_000
# Characters that no text file contains: controls other than tab, line ends, form feed and escape.
_BINARY = re.compile(rb"[\x00-\x08\x0b\x0e-\x1a\x1c-\x1f\x7f]")
_LEAST_GUESSED_BYTES = 16
_SHORT_WESTERN = re.compile(rb"(?=(?:.*?[A-Za-z]){3})(?:[ -~\s]{2,}[\x91-\x94\xc0-\xff]{1,2})+[ -~\s]*", re.DOTALL)
"""Texts with fewer bytes are read as Western if they match, and refused otherwise."""


def decode(content: bytes, *, charset: str | None = None, is_markup: bool = False, allow_nul: bool = False) -> str:
    """Decode a document without its byte order mark. Raises UnreadableDocument for bytes that are not text.

    `charset`: the charset that a server declared. `is_markup`: HTML or XML, which may name its charset itself.
    `allow_nul`: accept UTF-8 even if it contains NUL.
    """
    for name in (charset, *_list_own_charsets(content, is_markup=is_markup), "utf-8"):
        text = _decode_strictly(content, name) if name else None
        if text is not None and (name == charset or name not in _WIDE or _is_plausible(text)):
            return text
    if not content.startswith(_PACKED_MAGICS) and (text := _decode_unmarked_utf16(content)):
        return text
    if allow_nul:
        with contextlib.suppress(UnicodeDecodeError):
            return content.decode("utf-8-sig")
    if charset and (codec := _find_codec(charset)):
        # A few broken bytes are more likely than a server that declares the wrong charset.
        return content.decode(codec, errors="replace").removeprefix("\ufeff")
    return _guess(content)


def _is_plausible(text: str) -> bool:
    """Return whether decoded wide characters look like text: almost any bytes after a mark can be decoded."""
    sample = text[:_SAMPLE_BYTES]
    return len(text) >= 3 and all(character.isprintable() or character.isspace() for character in sample)


def _guess(content: bytes) -> str:
    if _BINARY.search(content):
        raise UnreadableDocument(_PACKED if content.startswith(_PACKED_MAGICS) else NOT_TEXT)
    if len(content) < _LEAST_GUESSED_BYTES:
        if _SHORT_WESTERN.fullmatch(content):
            return content.decode("cp1252")
        raise UnreadableDocument(NOT_TEXT)
    # The end of the sample may cut a character of several bytes, so guess from whole lines.
    sample = content[:_SAMPLE_BYTES]
    sample = sample[: sample.rfind(b"\n") + 1] or sample
    guess = charset_normalizer.from_bytes(sample).best()
    text = _decode_strictly(content, guess.encoding) if guess is not None else None
    if text is None:
        text = _decode_strictly(content, "cp1252")
    if text is None:
        raise UnreadableDocument(NOT_TEXT)
    return text


def _decode_unmarked_utf16(content: bytes) -> str | None:
    """Decode UTF-16 without a mark: in text of most scripts every other byte of many characters is zero."""
    sample = content[:_SAMPLE_BYTES]
    if len(content) % 2 or len(content) < _LEAST_GUESSED_BYTES:
        return None
    for offset, codec in ((1, "utf-16-le"), (0, "utf-16-be")):
        zeros = sample[offset::2].count(0)
        if zeros * 4 >= len(sample) and sample[1 - offset :: 2].count(0) == 0:
            return _decode_strictly(content, codec)
    return None


def _list_own_charsets(content: bytes, *, is_markup: bool) -> Iterator[str]:
    yield from (name for mark, name in _MARKS if content.startswith(mark))
    if is_markup:
        for by_meta, by_xml in _NAMED_IN_HEAD.findall(content[:_HEAD_BYTES]):
            yield (by_meta or by_xml).decode("ascii", "replace")


def _decode_strictly(content: bytes, charset: str) -> str | None:
    """Decode bytes in this charset; None if they are not valid, or contain NUL."""
    codec = _find_codec(charset)
    if codec is None:
        return None
    try:
        text = content.decode(codec)
    except UnicodeError:
        return None
    return None if "\0" in text else text.removeprefix("\ufeff")


def _find_codec(charset: str) -> str | None:
    """Return Python's name of the charset; None if Python does not know it."""
    try:
        name = codecs.lookup(charset).name
        b"-".decode(name, errors="ignore")  # This refuses codecs that do not produce text, such as zip.
    except (LookupError, ValueError):
        return None
    if name.replace("_", "-") in _NO_CHARSETS:
        return None
    # On the web, Latin-1 means its superset Windows-1252, as in browsers.
    return "cp1252" if name == "iso8859-1" else name
