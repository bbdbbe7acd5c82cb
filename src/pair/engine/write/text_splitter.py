"""Where a text is cut: after as many whole paragraphs as fit, else lines, sentences, words, and characters at last.

Invariants
    A piece is a range of the text that was given, has no whitespace around it, and fits the size.
    Every character but whitespace is in exactly one piece, and pieces stand in the order of the text.
    Two neighbours would not fit into one piece, unless what belongs together was kept together.
    The time is linear in the length of the text, whatever is in it: each step looks at one window of the size.
Not here
    What belongs together in a text with headings, lists and code: structure.py.
"""

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterator, Sequence

Range = tuple[int, int]
"""Start and end, in characters of the text."""

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
_LINES = 1
"""The last level that needs the end of a line."""
_VISIBLE = re.compile(r"\S")

# Unicode's stream-safe format allows 30 marks on one character; more is not writing.
_LONGEST_CLUSTER = 32
_JOINER = "\u200d"
# The class of the marks that bind two consonants of an Indian script.
_VIRAMA = 9


class TextSplitter:
    """Cuts a text into pieces of at most `size_bytes` of UTF-8. `whole`: ranges that fit and stay whole, ascending."""

    def __init__(self, text: str, size_bytes: int, whole: Sequence[Range] = ()) -> None:
        if size_bytes < LEAST_SIZE_BYTES:
            raise ValueError(f"a chunk must have room for one character, {LEAST_SIZE_BYTES} bytes: {size_bytes}")
        self._text = text
        self._size_bytes = size_bytes
        self._whole_starts = [start for start, _ in whole]
        self._whole_ends = [end for _, end in whole]

    def pieces(self, begin: int, end: int, *, after: int = 0) -> Iterator[Range]:
        """Of `text[begin:end]`, without overlap. The first one is cut `after` this place, if that can be."""
        start = next_visible(self._text, begin)
        while start < end:
            cut = self._cut_after(start, end, after)
            yield start, start + len(self._text[start:cut].rstrip())
            start = next_visible(self._text, cut)

    def _cut_after(self, start: int, end: int, after: int) -> int:
        """Where the piece that begins at `start` ends: before the first part that has no room in it.

        A part is one that stays whole, or a paragraph, if it fits into a piece; else its lines are parts, and so on.
        """
        limit = reach(self._text, start, self._size_bytes)
        # Whitespace at the limit takes no room, and may be the end of a part.
        seen = next_visible(self._text, limit)
        if seen >= end:
            return end
        floor = after if start < after < limit else start
        low = self._last_boundary(limit)
        if low > floor and self._stays_whole(low):
            return low
        return self._cut_between(max(low, floor), floor, limit, end)

    def _last_boundary(self, limit: int) -> int:
        """Up to the limit, the last place where something that stays whole begins or ends; 0 without any."""
        number = bisect_right(self._whole_starts, limit) - 1
        if number < 0:
            return 0
        end = self._whole_ends[number]
        return end if end <= limit else self._whole_starts[number]

    def _stays_whole(self, place: int) -> bool:
        number = bisect_right(self._whole_starts, place) - 1
        return number >= 0 and self._whole_starts[number] == place

    def _cut_between(self, low: int, floor: int, limit: int, end: int) -> int:
        """After `floor`; a part ends at `low` and none of those that stay whole is between it and the limit."""
        text = self._text
        seen = next_visible(text, limit)
        begin = next_visible(text, low) if low > floor else floor
        has_lines = text.find("\n", low, seen) >= 0 or text.find("\r", low, seen) >= 0
        for level, (last_end, first_end) in enumerate(zip(_LAST_END, _FIRST_END, strict=True)):
            if has_lines or level > _LINES:
                found = last_end.match(text, low, seen)
                if found is not None:
                    begin = next_visible(text, found.end())
            if begin > floor and (begin >= limit or self._is_part_fitting(begin, end, first_end)):
                return begin
        return begin if begin > floor else _between_clusters(text, floor, limit)

    def _is_part_fitting(self, begin: int, end: int, first_end: re.Pattern[str]) -> bool:
        """Whether the part that begins at `begin`, up to its first end, has room in a piece of its own."""
        seen = next_visible(self._text, reach(self._text, begin, self._size_bytes))
        if seen >= end or first_end.search(self._text, begin, seen) is not None:
            return True
        number = bisect_right(self._whole_starts, begin)
        return number < len(self._whole_starts) and self._whole_starts[number] <= seen


def reach(text: str, start: int, size_bytes: int) -> int:
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


def next_visible(text: str, start: int) -> int:
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
