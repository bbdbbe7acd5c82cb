"""Markdown: its structure of headings, blocks, paragraphs, items, rows and sentences, and its text as plain lines.

Invariants
    Headings and blocks follow the order of the text and do not overlap. All other text is prose.
    The time is linear in the length of the text: a parsed block is not parsed again.
"""

import re
import textwrap
from collections.abc import Iterable, Iterator
from typing import ClassVar, NamedTuple

LONGEST_HEADING = 200
"""Maximum length of a heading, in characters. A longer one is treated as a paragraph."""

_INDENT = r"(?P<indent> {0,3}+)"
_LINE_END = r"(?=\r?\n|\Z)"
_FENCE = r"`{3,}+(?=[^`\n]*+(?:\n|\Z))|~{3,}+"
_MARKER = r"(?:[-*+]|\d{1,9}+[.)])"
_CODE_LINE = r"(?: {4}|\t)[ \t]*+[^\s]"
_MARK = (
    rf"{_INDENT}(?:"
    rf"(?P<hashes>\#{{1,6}}+(?=[ \t\r\n]|\Z))"
    rf"|(?P<fence>{_FENCE})"
    rf"|(?P<quote>>)"
    rf"|(?P<list>{_MARKER}(?=[ \t]))"
    rf"|(?P<underline>(?:=++|-++|\^{{3,}}+)[ \t]*+{_LINE_END})"
    rf"|(?P<table>[|:-][-:| \t]*+{_LINE_END})"
    rf"|(?P<code>[ \t]*+\r?\n(?={_CODE_LINE}))"
    r")"
)
_FIRST_MARK = re.compile(_MARK)
# Searching for a plain newline is much faster than looking at each place for the beginning of a line.
_NEXT_MARK = re.compile(rf"\n{_MARK}")
_FENCE_END = re.compile(rf"\n {{0,3}}+(`{{3,}}+|~{{3,}}+)[ \t]*+{_LINE_END}")
_INDENTED_FENCE_END = re.compile(rf"\n[ \t]*+(`{{3,}}+|~{{3,}}+)[ \t]*+{_LINE_END}")
_FRONT_MATTER = re.compile(rf"(---|\+\+\+)[ \t]*+\r?\n(?=[^\n]*[:=])(?:[^\n]*+\n)*?(?:\1|\.\.\.)[ \t]*+{_LINE_END}")
_QUOTE_LINES = re.compile(r"(?: {0,3}+>[^\n]*+(?:\n|\Z))++")
_QUOTE_GAP = re.compile(r"\n {0,3}+>[ \t>]*+\r?(?=\n)")
_TABLE_LINES = re.compile(r"(?:[^\n|]*+\|[^\n]*+(?:\n|\Z))*+")
_CODE_LINES = re.compile(rf"(?:{_CODE_LINE}[^\n]*+(?:\n|\Z)|(?:[ \t]*+\r?\n)++(?={_CODE_LINE}))++")
_LIST_LINE = re.compile(
    rf"(?P<indent>[ \t]*+)(?:(?P<blank>\r?(?:\n|\Z))|(?P<fence>{_FENCE})|(?P<marker>{_MARKER}(?=[ \t\r\n]|\Z))"
    r"|(?P<mark>\#{1,6}+(?=[ \t\r\n]|\Z)|>|-++[ \t]*+(?=\r?\n|\Z))|)(?:[ \t]++(?P<inner>`{3,}+(?=[^`\n]*+\n)|~{3,}+))?+"
)
_BULLET = re.compile(r"\s*[•·]\s+")
_ITEM = re.compile(r"\s*(?:[-*+•·]|\d{1,9}[.)])\s+|\s*>[\s>]*")
_LAST_BLANK_LINE = re.compile(r"(?s:.*)\n[ \t\r]*\n")
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
# Common levels of reStructuredText; the first two are those of Markdown.
_UNDERLINED = {"=": 1, "-": 2, "~": 3, "^": 4}


class Heading(NamedTuple):
    start: int
    end: int
    """The end of its last line."""
    level: int
    title: str
    """The text of the heading without marks."""


class Block(NamedTuple):
    """A range that belongs together: a list, a piece of code, a table, a quotation, front matter."""

    start: int
    end: int
    parts: "tuple[Block, ...]" = ()
    """Parts to keep whole when the block has to be split."""
    kind: str = ""
    """The group name of its first mark, or "front matter"."""


class TextBlock(NamedTuple):
    """A unit of text: a paragraph, an item, a row or the like."""

    kind: str
    """One of heading, paragraph, item, table head, row, code, front matter."""
    start: int
    end: int
    level: int = 0
    """The level of a heading; 0 for other kinds."""


class Structure(NamedTuple):
    headings: list[Heading]
    blocks: list[Block]


def parse_structure(text: str) -> Structure:
    reader = _BlockReader(text)
    place = 0
    if front := _FRONT_MATTER.match(text):
        place = reader.take(0, front.end(), kind="front matter")
    mark = _FIRST_MARK.match(text) if place == 0 else None
    mark = mark or _NEXT_MARK.search(text, place)
    while mark is not None:
        mark = _NEXT_MARK.search(text, reader.read(mark))
    return Structure(reader.headings, reader.blocks)


def read_blocks(text: str) -> Iterator[TextBlock]:
    """Yield headings, paragraphs, items of lists, lines of quotations, rows of tables and code, without marks."""
    structure = parse_structure(text)
    place = 0
    parts: list[Heading | Block] = [*structure.headings, *structure.blocks]
    for part in sorted(parts, key=lambda part: part.start):
        yield from _read_lines(text, place, part.start)
        if isinstance(part, Heading):
            yield TextBlock("heading", part.start, part.end, part.level)
        elif part.kind == "fence":
            yield _strip_fences(text, part)
        elif part.kind == "front matter":
            yield TextBlock(part.kind, part.start, part.end)
        elif part.kind == "table":
            head, *rows = _read_lines(text, part.start, part.end, is_table=True)
            yield head._replace(kind="table head")
            yield from rows
        elif part.kind == "list":
            yield from _read_list(text, part)
        else:
            yield from _read_lines(text, part.start, part.end, has_items=True)
        place = part.end
    yield from _read_lines(text, place, len(text))


def _read_list(text: str, block: Block) -> Iterator[TextBlock]:
    place = block.start
    for fence in [fence for item in block.parts for fence in item.parts]:
        yield from _read_lines(text, place, fence.start, has_items=True)
        yield _strip_fences(text, fence)
        place = fence.end
    yield from _read_lines(text, place, block.end, has_items=True)


def _strip_fences(text: str, block: Block) -> TextBlock:
    first = text.find("\n", block.start, block.end) + 1 or block.end
    last = text.rfind("\n", first, block.end) + 1 or first
    is_closed = text[last : block.end].strip()[:3] in {"```", "~~~"}
    return TextBlock("code", first, last if is_closed else block.end)


def _read_lines(
    text: str, start: int, end: int, *, has_items: bool = False, is_table: bool = False
) -> Iterator[TextBlock]:
    """Yield the paragraphs, items and rows between two places. A row is one line; an item may have several."""
    kind, begin = "", start
    while start < end:
        newline = text.find("\n", start, end)
        stop = end if newline < 0 else newline + 1
        line = text[start:stop]
        is_row = is_table or line.lstrip().startswith("|")
        mark = _ITEM.match(line) if has_items else _BULLET.match(line)
        is_blank = not any(map(str.isalnum, line))
        if kind and (is_blank or is_row or mark):
            yield TextBlock(kind, begin, start)
            kind = ""
        if is_row and not is_blank:
            yield TextBlock("row", start, stop)
        elif not is_blank and not kind:
            kind, begin = ("item", start + mark.end()) if mark else ("paragraph", start)
        start = stop
    if kind:
        yield TextBlock(kind, begin, end)


class _BlockReader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._done = 0
        """The end of the last heading or block."""
        self.headings: list[Heading] = []
        self.blocks: list[Block] = []

    def read(self, mark: re.Match[str]) -> int:
        """Parse the block that starts at the mark, and return where to continue: at or before the end of a line."""
        return self._READERS[mark.lastgroup or ""](self, mark)

    def _read_heading(self, mark: re.Match[str]) -> int:
        end = self._line_end(mark.end())
        if end - mark.end() > LONGEST_HEADING:
            return end
        title = self._text[mark.end() : end].strip()
        without_closing = title.rstrip("#")
        if without_closing != title and (not without_closing or without_closing[-1].isspace()):
            title = without_closing.rstrip()
        return self._take_heading(mark.start("hashes"), end, len(mark["hashes"]), title)

    def _read_underline(self, mark: re.Match[str]) -> int:
        line = mark.start("indent")
        above = self._paragraph_above(line)
        marks = mark["underline"].rstrip()
        if above is None or (marks[0] not in "=-" and len(marks) < self._line_width(above, line)):
            return mark.end()
        return self._take_underlined(above, line, mark.end(), marks[0])

    def _read_fence(self, mark: re.Match[str]) -> int:
        line, marks = mark.start("indent"), mark["fence"]
        if marks[0] == "~" and self._line_end(mark.end()) == mark.end():
            above = self._paragraph_above(line)
            if above is not None and len(marks) >= self._line_width(above, line):
                return self._take_underlined(above, line, mark.end(), "~")
        return self.take(line, _fence_end(self._text, mark.end(), marks, _FENCE_END), kind="fence")

    def _read_quote(self, mark: re.Match[str]) -> int:
        line = mark.start("indent")
        lines = _QUOTE_LINES.match(self._text, line)
        end = lines.end() if lines else mark.end()
        starts = [line, *(gap.end() + 1 for gap in _QUOTE_GAP.finditer(self._text, line, end))]
        ends = [*starts[1:], end]
        parts = tuple(map(self._trim, starts, ends)) if len(starts) > 1 else ()
        return self.take(line, end, parts, "quote")

    def _read_list(self, mark: re.Match[str]) -> int:
        line, marker = mark.start("indent"), mark["list"]
        # A number such as a year starts a list only at the start of a paragraph.
        if marker[0].isdigit() and marker[:-1] != "1" and self._paragraph_above(line) is not None:
            return mark.end()
        end, items = _ListReader(self._text).read(line)
        return self.take(line, end, items, "list")

    def _read_table(self, mark: re.Match[str]) -> int:
        text, line = self._text, mark.start("indent")
        header = text.rfind("\n", 0, max(line - 1, 0)) + 1
        is_table = "|" in mark["table"] and "-" in mark["table"] and header >= self._done
        if not is_table or text.find("|", header, line) < 0:
            return mark.end()
        rows = _TABLE_LINES.match(text, line)
        return self.take(header, rows.end() if rows else mark.end(), kind="table")

    def _read_code(self, mark: re.Match[str]) -> int:
        lines = _CODE_LINES.match(self._text, mark.end())
        return self.take(mark.end(), lines.end() if lines else mark.end(), kind="code")

    _READERS: ClassVar = {
        "hashes": _read_heading,
        "fence": _read_fence,
        "quote": _read_quote,
        "list": _read_list,
        "underline": _read_underline,
        "table": _read_table,
        "code": _read_code,
    }

    def take(self, start: int, end: int, parts: tuple[Block, ...] = (), kind: str = "") -> int:
        block = self._trim(start, end)
        if block.start < block.end:
            self.blocks.append(Block(block.start, block.end, parts, kind))
        # The newline that ends the block is also the start of the next mark.
        self._done = end - 1 if end > start and self._text[end - 1] == "\n" else end
        return self._done

    def _take_heading(self, start: int, end: int, level: int, title: str) -> int:
        self.headings.append(Heading(start, end, level, _plain(title)))
        self._done = end
        return end

    def _take_underlined(self, above: int, line: int, end: int, sign: str) -> int:
        lines = [row.strip() for row in self._text[above:line].splitlines()]
        # A title may have a line above it as well as below it.
        title = " ".join(row for row in lines if row.strip("=-~^"))
        if not title:
            return end
        return self._take_heading(above, end, _UNDERLINED[sign], title)

    def _trim(self, start: int, end: int) -> Block:
        content = self._text[start:end]
        visible = content.strip()
        first = start + len(content) - len(content.lstrip())
        return Block(first, first + len(visible))

    def _line_end(self, place: int) -> int:
        end = self._text.find("\n", place)
        return len(self._text) if end < 0 else end

    def _line_width(self, above: int, line: int) -> int:
        """Return the width of the last line of the paragraph."""
        return len(self._text[above : line - 1].rpartition("\n")[2].strip())

    def _paragraph_above(self, line: int) -> int | None:
        """Return the start of the paragraph just before this line; None if there is none or it is too long."""
        first = max(self._done, line - 1 - LONGEST_HEADING)
        window = self._text[first : max(line - 1, first)]
        if window.rpartition("\n")[2].strip() == "":
            return None
        if blank := _LAST_BLANK_LINE.match(window):
            begin = blank.end()
        elif first == self._done:
            begin = 0
        else:
            return None
        return first + begin + len(window[begin:]) - len(window[begin:].lstrip())


class _ListReader:
    """A reader of one list: its items, and the fenced code inside them."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._starts: list[int] = []
        self._fences: list[list[Block]] = []
        """The fenced code of each item."""

    def read(self, line: int) -> tuple[int, tuple[Block, ...]]:
        """Return the end of the list that begins with this line, and its items."""
        text = self._text
        end, is_after_blank, first_width = line, False, 0
        while line < len(text) and (match := _LIST_LINE.match(text, line)) is not None:
            if match["blank"] is not None:
                is_after_blank, line = True, match.end("blank")
                continue
            width = len(match["indent"].expandtabs(4))
            if not self._starts:
                first_width = width
            if match["marker"] and width <= first_width + 1:
                self._starts.append(line + len(match["indent"]))
                self._fences.append([])
            elif width < 2 and (is_after_blank or match["mark"] or match["fence"]):
                break
            if marks := match["fence"] or match["inner"]:
                close = _fence_end(text, match.end(), marks, _INDENTED_FENCE_END)
                begin = line + len(match["indent"])
                self._fences[-1].append(Block(begin, begin + len(text[begin:close].rstrip())))
                line = close
            newline = text.find("\n", max(line, match.end()))
            end = len(text) if newline < 0 else newline
            is_after_blank, line = False, end + 1
        return end, self._items(end)

    def _items(self, end: int) -> tuple[Block, ...]:
        ends = [*self._starts[1:], end]
        return tuple(
            Block(start, start + len(self._text[start:stop].rstrip()), tuple(fences))
            for start, stop, fences in zip(self._starts, ends, self._fences, strict=True)
        )


def _fence_end(text: str, place: int, marks: str, closing: re.Pattern[str]) -> int:
    """Return the end of a fenced block; without a closing fence, it is the end of the text."""
    for match in closing.finditer(text, place):
        if match[1][0] == marks[0] and len(match[1]) >= len(marks):
            return match.end()
    return len(text)


def _plain(title: str) -> str:
    """Remove marks inside the line, and join lines."""
    return " ".join(_LINK.sub(r"\1", title).replace("`", "").replace("**", "").split())


# ── sentences ──────────────────────────────────────────────────────────────────────────────────────

_SHORTEST_WORDS = 3
"""Minimum number of words in a statement."""

_DENSE_END = "。\uff01\uff1f"
_END = re.compile(r"[.!?]+[\"'\u201d\u2019)\]]{0,2}\s+(?=[\"'\u201c\u2018(\[`*_]{0,3}[^\W_a-z])|[" + _DENSE_END + r"]+")
# A full stop after these does not end a sentence.
_ABBREVIATION = re.compile(
    r"(?:\b(?:e\.g|i\.e|cf|vs|etc|approx|ca|no|fig|figs|eq|sec|ch|vol|pp?|dr|mr|mrs|ms|prof|st|inc|ltd|jr|sr|al)|\b[A-Z])\.\s*$",
    re.IGNORECASE,
)
_ADDRESS = re.compile(r"\[[^\]]*\]\([^)]*\)|https?://\S+")


def is_statement(text: str) -> bool:
    """Return whether a text is a statement: more than links or one or two words."""
    words = _ADDRESS.sub("", text).split()
    return len(words) >= _SHORTEST_WORDS or any(mark in text for mark in _DENSE_END)


def find_sentences(passage: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each sentence of a paragraph; abbreviations do not end a sentence."""
    begin = start
    for stop in _END.finditer(passage, start, end):
        if not _ABBREVIATION.search(passage, begin, stop.end()):
            yield begin, stop.end()
            begin = stop.end()
    if passage[begin:end].strip():
        yield begin, end


# ── plain lines ────────────────────────────────────────────────────────────────────────────────────

_CODE_SPAN = re.compile(r"(`+)(.+?)\1")
_INLINE_LINK = re.compile(r"(?<!`)!?\[((?:`+[^`]+`+|[^\[\]`])*)\]\([^()\s]*(?:\s[^()]*)?\)(?!`)")
"""A link. Its text may contain code, as in [`pair sync`](sync.md); `[a](b)` inside code is not a link."""
_EMPHASIS = re.compile(r"(?<![\w*\\])(\*{1,3})(?=\S)(.+?)(?<=\S)\1(?![\w*])|(?<!\w)_(?=[^\s_])([^_]+?)(?<=\S)_(?!\w)")
_ESCAPE = re.compile(r"\\([\\`*_{}\[\]()#+.!|<>-])")
_STREAMED_MARK = re.compile(r"\*\*|`+|^(?:#{1,6} |> ?)", re.MULTILINE)


def strip_inline(text: str) -> str:
    """Remove the marks of links, code and emphasis from a line of Markdown."""
    text = _INLINE_LINK.sub(r"\1", text)
    parts, place = [], 0
    for span in _CODE_SPAN.finditer(text):
        parts += [_strip_prose(text[place : span.start()]), span[2].strip()]
        place = span.end()
    return "".join([*parts, _strip_prose(text[place:])])


def _strip_prose(text: str) -> str:
    text = _EMPHASIS.sub(lambda match: match[2] or match[3], text)
    return _ESCAPE.sub(r"\1", text)


def strip_streamed(text: str) -> str:
    """Remove marks from an incomplete text. More text only appends to the result."""
    return _STREAMED_MARK.sub("", text.rstrip("*`#> \n"))


def format_passages(texts: Iterable[str], columns: int, indent: str) -> list[list[str]]:
    """Return each text as `format_markdown` does, without blank lines."""
    return [[line for line in format_markdown(text, columns, indent) if line] for text in texts]


def format_markdown(text: str, columns: int, indent: str = "") -> list[str]:
    """Return the text as wrapped lines without marks, with blank lines between its blocks; skip front matter."""
    lines: list[str] = []
    before = ""
    for block in [*read_blocks(text)]:
        kind = block.kind.removeprefix("table ")
        added = [] if kind == "front matter" else _format_block(text, block, columns, indent)
        if added and lines and not (kind == before == "item" or {kind, before} <= {"head", "row"}):
            lines.append("")
        lines += added
        before = kind
    return lines


def _format_block(text: str, block: TextBlock, columns: int, indent: str) -> list[str]:
    content, mark = text[block.start : block.end], ""
    if block.kind == "code":
        return [f"{indent}    {line}".rstrip() for line in textwrap.dedent(content).rstrip().splitlines()]
    if block.kind == "heading":
        content = content.strip().partition("\n")[0].strip("# ")
    elif block.kind in {"table head", "row"}:
        content = " · ".join(filter(None, map(str.strip, content.split("|"))))
    elif block.kind == "item":
        mark = text[text.rfind("\n", 0, block.start) + 1 : block.start].replace(">", " ")
        mark = re.sub(r"[-*+·](?=\s)", "•", mark)
    plain, rest = strip_inline(" ".join(content.split())), indent + " " * len(mark)
    return textwrap.wrap(plain, columns, initial_indent=indent + mark, subsequent_indent=rest)
