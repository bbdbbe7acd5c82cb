"""Chunks of texts: whole sections if they fit, else blocks, paragraphs, lines, sentences, words, characters.

Invariants
    A chunk is `text[start:end]`, has no whitespace at its ends, and fits the size.
    Every character except whitespace is in exactly one chunk. Chunks have the order of the text.
    A chunk lies within one section and its subsections; only very short sections share a chunk.
    The context of a chunk is the headings above it that are not in it. It applies to the whole chunk.
    Two neighbours within a section do not fit into one chunk, unless a block was kept whole.
    A text without headings and blocks is cut as the `seed` chunker cuts it.
    The time is linear in the length of the text: each step reads one window of the size.
"""

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from pair.engine.settings import Chunker
from pair.text.markdown import Block, Heading, Structure, parse_structure
from pair.values import Chunk

_TINY_BYTES = 200
_TINY_PART = 4
"""Minimum size of a piece on its own, in bytes, or as a share of a small chunk size."""
_LONGEST_CONTEXT = 240
"""Maximum length of a context, so that it does not outweigh the chunk. The nearest headings are kept."""
_STEP = " > "

Range = tuple[int, int]
"""Start and end, in characters of the text."""

_LEAST_SIZE_BYTES = 4
"""Maximum size of a character in UTF-8."""

_LINE_END = r"[\r\n]"
# A period inside 3.14 or example.com does not end a sentence; 。 needs no space after it.
_SENTENCE_END = (
    r"[.!?\u2026][\"')\]\u2019\u201d\u00bb]*(?=\s)|[\u3002\uff01\uff1f\uff61][\"')\]\u2019\u201d\u300d\u300f\uff09]*"
)
# Each level also ends where earlier levels end, so that its pieces lie inside theirs.
_LEVELS = (r"\n\s*\n", _LINE_END, f"{_SENTENCE_END}|{_LINE_END}", rf"{_SENTENCE_END}|\s+")
_FIRST_END = tuple(re.compile(level) for level in _LEVELS)
_LAST_END = tuple(re.compile(f"(?s:.*)(?:{level})") for level in _LEVELS)
_LINES = 1
"""The last level that needs the end of a line."""
_VISIBLE = re.compile(r"\S")

_LONGEST_CLUSTER = 32
"""Maximum number of characters of one visible letter. Unicode's stream-safe format allows 30 marks on a character."""
_VIRAMA = 9
"""Combining class of the marks that bind two consonants of an Indic script."""


def split(text: str, size_bytes: int = 500, chunker: Chunker = "structure") -> tuple[Chunk, ...]:
    """Cut a text into chunks of at most `size_bytes` of UTF-8, without overlap. A blank text has none."""
    if chunker == "seed":
        ranges = _Splitter(text, size_bytes).split(0, len(text))
        return tuple(Chunk(text[start:end], start, end) for start, end in ranges)
    pieces = _Packer(text, size_bytes, parse_structure(text)).pack()
    return tuple(Chunk(text[piece.start : piece.end], piece.start, piece.end, piece.context) for piece in pieces)


def format_for_embedding(title: str, chunk: Chunk) -> str:
    """Return the text to embed for a chunk: document title, context and text, without a repeated title."""
    is_repeated = title in {*chunk.context.split(_STEP), chunk.text.partition("\n")[0].strip("# \t\r")}
    above = [line for line in ("" if is_repeated else title, chunk.context) if line]
    return "\n".join(above) + "\n\n" + chunk.text if above else chunk.text


def add_contexts(text: str, ranges: Sequence[Range], size_bytes: int, chunker: Chunker) -> tuple[Chunk, ...]:
    """Return the chunks at these ranges of a text, each with its context, for any chunk size."""
    if chunker == "seed":
        return tuple(Chunk(text[start:end], start, end) for start, end in ranges)
    chunks = split(text, size_bytes, chunker)
    if [(chunk.start, chunk.end) for chunk in chunks] == list(ranges):
        return chunks
    contexts = _find_contexts(text, [start for start, _ in ranges])
    return tuple(
        Chunk(text[start:end], start, end, context) for (start, end), context in zip(ranges, contexts, strict=True)
    )


def _find_contexts(text: str, starts: Sequence[int]) -> list[str]:
    """Return the headings above each of these ascending offsets, without a heading that begins there."""
    headings = parse_structure(text).headings
    path: list[tuple[int, str]] = []
    number = 0
    contexts: list[str] = []
    for start in starts:
        while number < len(headings) and headings[number].start < start:
            heading = headings[number]
            path = [above for above in path if above[0] < heading.level]
            path += [(heading.level, heading.title)] if heading.title else []
            number += 1
        level = headings[number].level if number < len(headings) and headings[number].start == start else None
        contexts.append(_join_titles([above for above in path if level is None or above[0] < level]))
    return contexts


class _Section(NamedTuple):
    """A heading and the text up to the next heading. The first section has no heading and may be blank."""

    start: int
    body: int
    """Start of the text after the heading."""
    end: int
    level: int
    title: str
    next: int
    """Number of the section that follows this section and all its subsections."""


class _Piece(NamedTuple):
    start: int
    end: int
    level: int
    """Sections of this level and deeper have the same headings above them as this piece."""
    context: str
    is_bare: bool = False
    """Whether the piece consists of headings only."""


class _Packer:
    """A packer of the sections of one text into pieces.

    A tiny piece waits for the next section, if both have the same headings above them. Else it joins the previous
    piece, if there is room. Else it stays alone.
    """

    def __init__(self, text: str, size_bytes: int, structure: Structure) -> None:
        self._text = text
        self._size_bytes = size_bytes
        self._tiny_bytes = min(size_bytes // _TINY_PART, _TINY_BYTES)
        self._sections = _find_sections(text, structure.headings)
        self._splitter = _Splitter(text, size_bytes, list(self._find_whole(structure.blocks)))
        self._path: list[tuple[int, str]] = []
        """Level and title of the headings above the current section."""
        self._pieces: list[_Piece] = []
        self._waiting: _Piece | None = None

    def pack(self) -> list[_Piece]:
        number = 0
        while number < len(self._sections):
            number = self._pack_section(number)
        self._settle()
        return self._pieces

    def _pack_section(self, number: int) -> int:
        """Pack a section, with its subsections if all fit; return the number of the next section to pack."""
        section = self._sections[number]
        while self._path and self._path[-1][0] >= section.level:
            self._path.pop()
        if self._waiting and section.level < self._waiting.level:
            self._settle()
        is_bare = section.next == number + 1 and _is_bare(section)
        end = self._sections[section.next - 1].end
        piece = self._extend_waiting(section, end, is_bare=is_bare)
        if self._fits(piece.start, piece.end):
            self._add(piece)
            return section.next
        if self._waiting and not self._waiting.is_bare and self._fits(section.start, end):
            self._settle()
            self._add(self._extend_waiting(section, end, is_bare=is_bare))
            return section.next
        self._pack_body(section)
        return number + 1

    def _pack_body(self, section: _Section) -> None:
        piece = self._extend_waiting(section, section.end, is_bare=_is_bare(section))
        is_after_headings = self._waiting is None or self._waiting.is_bare
        self._waiting = None
        if section.title:
            self._path.append((section.level, section.title))
        if self._fits(piece.start, piece.end):
            self._add(piece)
            return
        # Cut after the heading: a chunk of headings alone would match queries that other chunks answer.
        after = section.body if is_after_headings and section.body > section.start else 0
        context = _join_titles(self._path)
        for start, end in self._splitter.split(piece.start, piece.end, after=after):
            self._settle()
            if start == piece.start:
                self._add(piece._replace(end=end))
            else:
                self._add(_Piece(start, end, section.level + 1, context))

    def _extend_waiting(self, section: _Section, end: int, *, is_bare: bool) -> _Piece:
        """Return the piece from the waiting piece, if any, or from the start of the section, to this end."""
        waiting = self._waiting
        if waiting is None:
            return _Piece(section.start, end, section.level, _join_titles(self._path), is_bare)
        return _Piece(waiting.start, end, waiting.level, waiting.context, waiting.is_bare and is_bare)

    def _add(self, piece: _Piece) -> None:
        if piece.start == piece.end:
            return
        if _is_fitting(self._text, piece.start, piece.end, self._tiny_bytes - 1):
            self._waiting = piece
        else:
            self._waiting = None
            self._pieces.append(piece)

    def _settle(self) -> None:
        """Add the waiting piece to the previous piece, or as a piece."""
        waiting, self._waiting = self._waiting, None
        if waiting is None:
            return
        if self._pieces and self._pieces[-1].level <= waiting.level:
            joined = self._pieces[-1]._replace(end=waiting.end)
            if self._fits(joined.start, joined.end):
                self._pieces[-1] = joined
                return
        self._pieces.append(waiting)

    def _fits(self, start: int, end: int) -> bool:
        return _is_fitting(self._text, start, end, self._size_bytes)

    def _find_whole(self, blocks: Iterable[Block]) -> Iterator[Range]:
        """Yield the largest blocks, or parts of blocks, that fit."""
        for block in blocks:
            if self._fits(block.start, block.end):
                yield block.start, block.end
            else:
                yield from self._find_whole(block.parts)


def _is_bare(section: _Section) -> bool:
    return section.body >= section.end and section.end > section.start


def _find_sections(text: str, headings: Sequence[Heading]) -> list[_Section]:
    """Divide the text into sections. The subsections of a section come before its `next`."""
    starts = [_next_visible(text, 0), *(heading.start for heading in headings), len(text)]
    following = [len(headings) + 1] * (len(headings) + 1)
    open_numbers: list[int] = []
    for number, heading in enumerate(headings, start=1):
        while open_numbers and headings[open_numbers[-1] - 1].level >= heading.level:
            following[open_numbers.pop()] = number
        open_numbers.append(number)
    sections = []
    for number in range(len(headings) + 1):
        start, stop = starts[number], starts[number + 1]
        end = start + len(text[start:stop].rstrip())
        if number == 0:
            sections.append(_Section(start, start, end, 0, "", following[0]))
        else:
            heading = headings[number - 1]
            body = _next_visible(text, heading.end)
            sections.append(_Section(start, body, end, heading.level, heading.title, following[number]))
    return sections


def _join_titles(path: Sequence[tuple[int, str]]) -> str:
    joined = ""
    for _, title in reversed(path):
        longer = f"{title}{_STEP}{joined}" if joined else title
        if len(longer) > _LONGEST_CONTEXT:
            break
        joined = longer
    return joined


def _is_fitting(text: str, start: int, end: int, size_bytes: int) -> bool:
    if end - start > size_bytes:
        return False
    piece = text[start:end]
    return piece.isascii() or len(piece.encode("utf-8", "surrogatepass")) <= size_bytes


# ── splitting at separators ────────────────────────────────────────────────────────────────────────


class _Splitter:
    """A splitter of a text into ranges of at most `size_bytes` of UTF-8. `whole`: ascending ranges that stay whole."""

    def __init__(self, text: str, size_bytes: int, whole: Sequence[Range] = ()) -> None:
        if size_bytes < _LEAST_SIZE_BYTES:
            raise ValueError(f"a chunk must have room for one character, {_LEAST_SIZE_BYTES} bytes: {size_bytes}")
        self._text = text
        self._size_bytes = size_bytes
        self._whole_starts = [start for start, _ in whole]
        self._whole_ends = [end for _, end in whole]

    def split(self, begin: int, end: int, *, after: int = 0) -> Iterator[Range]:
        """Cut `text[begin:end]` without overlap. The first cut comes after the offset `after`, if possible."""
        start = _next_visible(self._text, begin)
        while start < end:
            cut = self._cut_after(start, end, after)
            yield start, start + len(self._text[start:cut].rstrip())
            start = _next_visible(self._text, cut)

    def _cut_after(self, start: int, end: int, after: int) -> int:
        """Return the end of the range that begins at `start`: before the first part that does not fit into it.

        A part is a range that stays whole, or a paragraph that fits; else its lines are parts, and so on.
        """
        limit = _reach(self._text, start, self._size_bytes)
        if _next_visible(self._text, limit) >= end:
            return end
        floor = after if start < after < limit else start
        low = 0
        number = bisect_right(self._whole_starts, limit) - 1
        if number >= 0:
            low = self._whole_ends[number]
            if low > limit:
                low = self._whole_starts[number]
                if low > floor:
                    return low
        return self._cut_between(max(low, floor), floor, limit, end)

    def _cut_between(self, low: int, floor: int, limit: int, end: int) -> int:
        """Return a cut after `floor`. A part ends at `low`, and no whole range lies between `low` and the limit."""
        text = self._text
        seen = _next_visible(text, limit)  # Whitespace at the limit needs no room, and may end a part.
        begin = _next_visible(text, low) if low > floor else floor
        has_lines = text.find("\n", low, seen) >= 0 or text.find("\r", low, seen) >= 0
        for level, (last_end, first_end) in enumerate(zip(_LAST_END, _FIRST_END, strict=True)):
            if has_lines or level > _LINES:
                match = last_end.match(text, low, seen)
                if match is not None:
                    begin = _next_visible(text, match.end())
            if begin > floor and (begin >= limit or self._is_part_fitting(begin, end, first_end)):
                return begin
        if begin > floor:
            return begin
        # Split no letter from its marks, unless the limit is far from the next letter.
        cuts = range(limit, max(floor, limit - _LONGEST_CLUSTER), -1)
        return next((cut for cut in cuts if not _is_joined(text, cut)), limit)

    def _is_part_fitting(self, begin: int, end: int, first_end: re.Pattern[str]) -> bool:
        """Return whether the part from `begin` to its first end fits into one range."""
        seen = _next_visible(self._text, _reach(self._text, begin, self._size_bytes))
        if seen >= end or first_end.search(self._text, begin, seen) is not None:
            return True
        number = bisect_right(self._whole_starts, begin)
        return number < len(self._whole_starts) and self._whole_starts[number] <= seen


def _reach(text: str, start: int, size_bytes: int) -> int:
    """Return the end of the longest range from `start` that fits, in characters."""
    window = text[start : start + size_bytes]
    if window.isascii():
        return start + len(window)
    encoded = window.encode("utf-8", "surrogatepass")
    if len(encoded) <= size_bytes:
        return start + len(window)
    end = size_bytes
    while encoded[end] & 0xC0 == 0x80:
        end -= 1
    return start + len(encoded[:end].decode("utf-8", "surrogatepass"))


def _next_visible(text: str, start: int) -> int:
    match = _VISIBLE.search(text, start)
    return match.start() if match else len(text)


def _is_joined(text: str, cut: int) -> bool:
    before, after = text[cut - 1], text[cut]
    if after < "\u0300":
        return False
    return (
        unicodedata.category(after).startswith("M")
        or "\u200d" in {before, after}  # the zero-width joiner
        or unicodedata.combining(before) == _VIRAMA
        or "\U0001f3fb" <= after <= "\U0001f3ff"  # skin tones
        or "\U000e0020" <= after <= "\U000e007f"  # letters of a regional flag
        or "\u1160" <= after <= "\u11ff"  # vowels and ends of Korean syllables
        or ("\ud800" <= before <= "\udbff" and "\udc00" <= after <= "\udfff")
        or _is_inside_flag(text, cut)
    )


def _is_inside_flag(text: str, cut: int) -> bool:
    """Return whether an odd number of flag letters precedes the cut. A flag is two letters."""
    if not _is_flag_letter(text[cut]):
        return False
    first = cut
    while first > 0 and cut - first < _LONGEST_CLUSTER and _is_flag_letter(text[first - 1]):
        first -= 1
    return (cut - first) % 2 == 1


def _is_flag_letter(character: str) -> bool:
    return "\U0001f1e6" <= character <= "\U0001f1ff"
