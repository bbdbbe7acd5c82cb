"""Text to chunks: a whole section where it fits, else its blocks, and what is too long by its separators.

Invariants
    A chunk is `text[start:end]` of the text that was given, has no whitespace around it, and fits the size.
    Every character but whitespace is in exactly one chunk, and chunks stand in the order of the text.
    A chunk lies within one section, with what is below it; only sections too short to be found by share one.
    The context of a chunk holds of all of it: the headings above it that are not in it.
    A text without headings and blocks is cut as the seed's chunker cuts it.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from pair.engine.settings import Chunker
from pair.engine.write.text_splitter import Range, TextSplitter, next_visible
from pair.text.markdown import Block, Heading, Structure, parse_structure
from pair.values import Chunk

DEFAULT_SIZE_BYTES = 500

# Less than about two sentences is hardly found by what it says; where chunks are small anyhow, less than a quarter.
_TINY_BYTES = 200
_TINY_PART = 4
# A context is there to help the chunk, not to outweigh it. The headings nearest to the chunk say most.
_LONGEST_CONTEXT = 240
_STEP = " > "


def split(text: str, size_bytes: int = DEFAULT_SIZE_BYTES, chunker: Chunker = "structure") -> tuple[Chunk, ...]:
    """Chunks of at most `size_bytes` of UTF-8, without overlap; none for a blank text."""
    if chunker == "seed":
        return tuple(
            Chunk(text[start:end], start, end) for start, end in TextSplitter(text, size_bytes).pieces(0, len(text))
        )
    packed = _Packing(text, size_bytes, parse_structure(text)).pieces()
    return tuple(Chunk(text[each.start : each.end], each.start, each.end, each.context) for each in packed)


def embedded_text(title: str, chunk: Chunk) -> str:
    """What a chunk is found by: the title of its document and its context stand before its text, each said once."""
    is_said = title in {*chunk.context.split(_STEP), chunk.text.partition("\n")[0].strip("# \t\r")}
    above = [each for each in ("" if is_said else title, chunk.context) if each]
    return "\n".join(above) + "\n\n" + chunk.text if above else chunk.text


def cut_again(text: str, places: Sequence[Range], size_bytes: int, chunker: Chunker) -> tuple[Chunk, ...]:
    """The chunks of a text that was cut at these places, each with its context, whatever size they were cut to."""
    if chunker == "seed":
        return tuple(Chunk(text[start:end], start, end) for start, end in places)
    chunks = split(text, size_bytes, chunker)
    if [(each.start, each.end) for each in chunks] == list(places):
        return chunks
    contexts = _contexts_at(text, [start for start, _ in places])
    return tuple(
        Chunk(text[start:end], start, end, context) for (start, end), context in zip(places, contexts, strict=True)
    )


def _contexts_at(text: str, starts: Sequence[int]) -> list[str]:
    """The headings above each of these places, in ascending order, but for the one that begins there."""
    headings = parse_structure(text).headings
    path: list[tuple[int, str]] = []
    number = 0
    contexts: list[str] = []
    for start in starts:
        while number < len(headings) and headings[number].start < start:
            heading = headings[number]
            path = [each for each in path if each[0] < heading.level]
            path += [(heading.level, heading.title)] if heading.title else []
            number += 1
        begun = headings[number].level if number < len(headings) and headings[number].start == start else None
        contexts.append(_context([each for each in path if begun is None or each[0] < begun]))
    return contexts


class _Section(NamedTuple):
    """A heading and what follows up to the next one. The first has no heading, and may be blank."""

    start: int
    body: int
    """Where its text begins, after the heading."""
    end: int
    level: int
    title: str
    next: int
    """The number of the section that follows this one and all below it."""


class _Piece(NamedTuple):
    start: int
    end: int
    level: int
    """Sections of this level and below have the same headings above them as this piece has."""
    context: str
    is_bare: bool = False
    """It is nothing but headings."""


class _Packing:
    """One text on its way into chunks, section by section.

    What is tiny waits for the section that follows, if that has the same headings above it; else it joins what stands
    before it, if there is room; else it is a chunk of its own.
    """

    def __init__(self, text: str, size_bytes: int, structure: Structure) -> None:
        self._text = text
        self._size_bytes = size_bytes
        self._tiny_bytes = min(size_bytes // _TINY_PART, _TINY_BYTES)
        self._sections = _sections(text, structure.headings)
        self._cutter = TextSplitter(text, size_bytes, list(self._whole(structure.blocks)))
        self._path: list[tuple[int, str]] = []
        """Level and title of the headings above."""
        self._pieces: list[_Piece] = []
        self._waiting: _Piece | None = None

    def pieces(self) -> list[_Piece]:
        number = 0
        while number < len(self._sections):
            number = self._pack(number)
        self._settle()
        return self._pieces

    def _pack(self, number: int) -> int:
        """Section `number`, with all below it if that fits; the number of the section to go on with."""
        section = self._sections[number]
        while self._path and self._path[-1][0] >= section.level:
            self._path.pop()
        if self._waiting and section.level < self._waiting.level:
            self._settle()
        is_bare = section.next == number + 1 and self._is_bare(section)
        end = self._sections[section.next - 1].end
        begun = self._begun(section, end, is_bare=is_bare)
        if self._fits(begun):
            self._add(begun)
            return section.next
        if (
            self._waiting
            and not self._waiting.is_bare
            and _is_fitting(self._text, section.start, end, self._size_bytes)
        ):
            self._settle()
            self._add(self._begun(section, end, is_bare=is_bare))
            return section.next
        self._pack_body(section)
        return number + 1

    def _pack_body(self, section: _Section) -> None:
        begun = self._begun(section, section.end, is_bare=self._is_bare(section))
        is_after_headings = self._waiting is None or self._waiting.is_bare
        self._waiting = None
        if section.title:
            self._path.append((section.level, section.title))
        if self._fits(begun):
            self._add(begun)
            return
        # A chunk of nothing but headings would be found for what others say.
        after = section.body if is_after_headings and section.body > section.start else 0
        inside = _context(self._path)
        for start, end in self._cutter.pieces(begun.start, begun.end, after=after):
            self._settle()
            if start == begun.start:
                self._add(begun._replace(end=end))
            else:
                self._add(_Piece(start, end, section.level + 1, inside))

    def _begun(self, section: _Section, end: int, *, is_bare: bool) -> _Piece:
        """The section up to this end, together with what waits for it."""
        waiting = self._waiting
        if waiting is None:
            return _Piece(section.start, end, section.level, _context(self._path), is_bare)
        return _Piece(waiting.start, end, waiting.level, waiting.context, waiting.is_bare and is_bare)

    def _add(self, piece: _Piece) -> None:
        if piece.start == piece.end:
            return
        if self._fits(piece, self._tiny_bytes - 1):
            self._waiting = piece
        else:
            self._waiting = None
            self._pieces.append(piece)

    def _settle(self) -> None:
        """What waits waits no longer."""
        waiting, self._waiting = self._waiting, None
        if waiting is None:
            return
        if self._pieces and self._pieces[-1].level <= waiting.level:
            joined = self._pieces[-1]._replace(end=waiting.end)
            if self._fits(joined):
                self._pieces[-1] = joined
                return
        self._pieces.append(waiting)

    def _is_bare(self, section: _Section) -> bool:
        return section.body >= section.end and section.end > section.start

    def _fits(self, piece: _Piece, size_bytes: int | None = None) -> bool:
        return _is_fitting(self._text, piece.start, piece.end, self._size_bytes if size_bytes is None else size_bytes)

    def _whole(self, blocks: Iterable[Block]) -> Iterator[Range]:
        """The largest of the blocks and their parts that fit."""
        for block in blocks:
            if _is_fitting(self._text, block.start, block.end, self._size_bytes):
                yield block.start, block.end
            else:
                yield from self._whole(block.parts)


def _sections(text: str, headings: Sequence[Heading]) -> list[_Section]:
    """All of the text; headings below others are between the section of these and its `next`."""
    starts = [next_visible(text, 0), *(each.start for each in headings), len(text)]
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
            body = next_visible(text, heading.end)
            sections.append(_Section(start, body, end, heading.level, heading.title, following[number]))
    return sections


def _context(path: Sequence[tuple[int, str]]) -> str:
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
