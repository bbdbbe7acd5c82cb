"""Text to chunks: as many whole paragraphs as fit, else lines, sentences, words, and characters as the last resort.

Invariants
    A chunk is `text[start:end]` of the text that was given, has no whitespace around it, and fits the size.
    Every character but whitespace is in exactly one chunk, and chunks stand in the order of the text.
    Two neighbours would not fit into one chunk, unless characters that belong together were kept together.
    The time is linear in the length of the text, whatever is in it: each step looks at one window of the size.
"""

import re
import unicodedata

from pair.values import Chunk

DEFAULT_SIZE_BYTES = 500
LEAST_SIZE_BYTES = 4
"""The largest character of UTF-8."""

_PARAGRAPH_END = r"\n\s*\n"
_LINE_END = r"[\r\n]"
# A period inside 3.14 or example.com ends nothing; 。 needs no space after it.
_SENTENCE_END = (
    r"[.!?\u2026][\"')\]\u2019\u201d\u00bb]*(?=\s)|[\u3002\uff01\uff1f\uff61][\"')\]\u2019\u201d\u300d\u300f\uff09]*"
)
_WORD_END = r"\s+"
# Each level also ends where the ones before it end, so that its pieces lie inside theirs.
_LEVELS = (_PARAGRAPH_END, _LINE_END, f"{_SENTENCE_END}|{_LINE_END}", f"{_SENTENCE_END}|{_WORD_END}")
_FIRST_END = tuple(re.compile(level) for level in _LEVELS)
_LAST_END = tuple(re.compile(f"(?s:.*)(?:{level})") for level in _LEVELS)
_VISIBLE = re.compile(r"\S")

# Unicode's stream-safe format allows 30 marks on one character; more is not writing.
_LONGEST_CLUSTER = 32
_JOINER = "\u200d"
# The class of the marks that bind two consonants of an Indian script.
_VIRAMA = 9


def split(text: str, size_bytes: int = DEFAULT_SIZE_BYTES) -> tuple[Chunk, ...]:
    """Chunks of at most `size_bytes` of UTF-8, without overlap; none for a blank text."""
    if size_bytes < LEAST_SIZE_BYTES:
        raise ValueError(f"a chunk must have room for one character, {LEAST_SIZE_BYTES} bytes: {size_bytes}")
    chunks: list[Chunk] = []
    start = _next_visible(text, 0)
    while start < len(text):
        cut = _cut_after(text, start, size_bytes)
        piece = text[start:cut].rstrip()
        chunks.append(Chunk(piece, start, start + len(piece)))
        start = _next_visible(text, cut)
    return tuple(chunks)


def _cut_after(text: str, start: int, size_bytes: int) -> int:
    """Where the chunk that begins at `start` ends: before the first piece that has no room in it.

    A piece is a paragraph, if it fits into a chunk; else its lines are pieces, and so on.
    """
    limit = _reach(text, start, size_bytes)
    # Whitespace at the limit takes no room, and may be the end of a piece.
    seen = _next_visible(text, limit)
    if seen == len(text):
        return seen
    begin = start
    for last_end, first_end in zip(_LAST_END, _FIRST_END, strict=True):
        found = last_end.match(text, start, seen)
        if found is None:
            continue
        begin = _next_visible(text, found.end())
        if begin >= limit or _is_piece_fitting(text, begin, first_end, size_bytes):
            return begin
    return begin if begin > start else _between_clusters(text, start, limit)


def _is_piece_fitting(text: str, begin: int, first_end: re.Pattern[str], size_bytes: int) -> bool:
    """Whether the piece that begins at `begin`, up to its first end, has room in a chunk of its own."""
    seen = _next_visible(text, _reach(text, begin, size_bytes))
    return seen == len(text) or first_end.search(text, begin, seen) is not None


def _reach(text: str, start: int, size_bytes: int) -> int:
    """The end of the longest piece from `start` on that fits, in characters."""
    window = text[start : start + size_bytes]
    if window.isascii():
        return start + len(window)
    # Half of a surrogate pair cannot be written as UTF-8, but must not stop anybody.
    encoded = window.encode("utf-8", "surrogatepass")
    if len(encoded) <= size_bytes:
        return start + len(window)
    end = size_bytes
    while encoded[end] & 0xC0 == 0x80:
        end -= 1
    return start + len(encoded[:end].decode("utf-8", "surrogatepass"))


def _next_visible(text: str, start: int) -> int:
    found = _VISIBLE.search(text, start)
    return found.start() if found else len(text)


def _between_clusters(text: str, start: int, limit: int) -> int:
    """The last place up to `limit` that does not part a letter from its marks, or `limit` if there is none near."""
    for cut in range(limit, max(start, limit - _LONGEST_CLUSTER), -1):
        if not _is_joined(text, cut):
            return cut
    return limit


def _is_joined(text: str, cut: int) -> bool:
    before, after = text[cut - 1], text[cut]
    if after < "\u0300":
        return False
    return (
        unicodedata.category(after).startswith("M")
        or _JOINER in {before, after}
        or unicodedata.combining(before) == _VIRAMA
        or "\U0001f3fb" <= after <= "\U0001f3ff"  # the colour of the hand before it
        or "\U000e0020" <= after <= "\U000e007f"  # the letters of a regional flag
        or "\u1160" <= after <= "\u11ff"  # the vowel or the end of a Korean syllable
        or ("\ud800" <= before <= "\udbff" and "\udc00" <= after <= "\udfff")
        or _is_inside_flag(text, cut)
    )


def _is_inside_flag(text: str, cut: int) -> bool:
    """A flag is two letters of its own alphabet: whether an odd number of them stands before the cut."""
    if not _is_flag_letter(text[cut]):
        return False
    first = cut
    while first > 0 and cut - first < _LONGEST_CLUSTER and _is_flag_letter(text[first - 1]):
        first -= 1
    return (cut - first) % 2 == 1


def _is_flag_letter(character: str) -> bool:
    return "\U0001f1e6" <= character <= "\U0001f1ff"
