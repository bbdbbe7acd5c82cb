"""HTML elements as Markdown: headings, paragraphs, lists, definitions, tables, code.

Invariants
    The walk is iterative, so deep nesting needs no stack.
    Every text in the element is written once, in page order.
"""

import itertools
import re
from collections.abc import Callable
from typing import Any, ClassVar

from selectolax.lexbor import LexborNode

from pair.reading.tables import format_table

LONGEST_HEADING = 180
"""Maximum length of a heading, in characters. A longer one is written as a paragraph."""
_DEEPEST_INDENT = 12
_MOST_COLUMNS = 100
_LONGEST_HEADER = 200
"""In characters. A table of one row with a longer cell arranges a page."""
_LONGEST_REPEATED = 80
_LINE_BREAK = "\0"
_TEXT = "-text"
_BLOCKS_LIST = """
    address article aside body caption center details dialog dir div fieldset figcaption figure footer form header
    hgroup html legend main nav noframes noscript p section summary tbody td tfoot th thead tr
"""
_BLOCKS = frozenset(_BLOCKS_LIST.split())
_CODE = frozenset({"code", "kbd", "samp", "tt"})
_BREAKS = frozenset({"br", "dd", "div", "dt", "li", "p", "td", "th", "tr"})
_UNSEEN_LIST = """
    head iframe img input link meta object option rp rt script select style svg template
"""
_UNSEEN = frozenset(_UNSEEN_LIST.split())
_LANGUAGE = re.compile(r"(?:^|\s)(?:language|lang|highlight)-([A-Za-z0-9+#-]{1,20})")
_NO_LANGUAGES = frozenset({"default", "none", "notranslate", "plaintext", "text"})
# At the beginning of a paragraph, Markdown would interpret these as marks.
_MARK = re.compile(r"(?=#{1,6}\s|>|[-+*]\s|\d{1,9}[.)]\s|```|~~~|\||(?:=+|-+)$)")
_ORDINAL = re.compile(r"st|nd|rd|th|\W.*|")
PERMALINK = re.compile(r"\s*[¶§🔗]+\s*$")
_FENCES = re.compile(r"^\s*(`{3,})", re.MULTILINE)


def write_markdown(element: LexborNode) -> str:
    """Return the visible content of an element as Markdown."""
    writer = _MarkdownWriter()
    stack: list[tuple[LexborNode, str]] = []
    writer.enter(element, element.tag or "")
    node = element.child
    while True:
        if node is None:
            if not stack:
                break
            parent, tag = stack.pop()
            writer.leave(tag)
            node = parent.next
            continue
        tag = node.tag or ""
        if tag == _TEXT:
            writer.add_text(node.text_content or "")
        elif writer.enter(node, tag):
            child = node.child
            if child is not None:
                stack.append((node, tag))
                node = child
                continue
            writer.leave(tag)
        node = node.next
    writer.leave(element.tag or "")
    writer.flush()
    return "\n".join(writer.lines)


def read_line(element: LexborNode) -> str:
    """Return the text of an element on one line."""
    pieces: list[str] = []
    for node in element.traverse(include_text=True):
        if node.is_text_node:
            pieces.append(node.text_content or "")
        elif node.tag in _BREAKS:
            pieces.append(" ")
    return " ".join("".join(pieces).split())


def format_code(text: str, language: str = "") -> str:
    """Return text as a fenced block. The fence is longer than any fence in the text."""
    longest = max((len(marks) for marks in _FENCES.findall(text)), default=2)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


class _MarkdownWriter:
    """A writer that receives elements and texts in page order, and collects lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._inline: list[str] = []
        """Pieces of the current paragraph."""
        self._lead = ""
        """The term at the beginning of the next paragraph, which defines it."""
        self._prefixes: list[tuple[str, str]] = []
        """Prefixes of the enclosing list items and quotations: for their next line, and for the lines after it."""
        self._is_after_item = False
        self._begins_quote = False
        self._counters: list[int | None] = []
        """The next number of each enclosing list; None for a bullet list."""
        self._terms: list[str] = []
        self._signatures: list[str] = []
        self._heading_level = 1
        self._signature_levels: list[bool] = []
        """Whether each enclosing definition belongs to a signature."""

    # Text

    def add_text(self, text: str) -> None:
        self._inline.append(text)

    def flush(self) -> None:
        """End the current paragraph."""
        if not self._inline:
            return
        text = "".join(self._inline)
        self._inline.clear()
        if text.isspace() or not (text := text.replace("``", "")):
            return
        lead, self._lead = self._lead, ""
        lines = [" ".join(line.split()) for line in (lead + text).split(_LINE_BREAK)]
        lines = [_MARK.sub("\\\\", line, count=1) if _MARK.match(line) else line for line in lines if line]
        self._emit(lines)

    def _flush_lead(self) -> None:
        """Write a term whose definition does not begin with a paragraph."""
        self.flush()
        if self._lead:
            lead, self._lead = self._lead, ""
            self._emit([lead.rstrip()])

    def _emit(self, lines: list[str]) -> None:
        """Write a block. A blank line comes before it, except inside a tight list."""
        is_item = any(first != rest for first, rest in self._prefixes)
        above, self._begins_quote = self._prefixes[:-1] if self._begins_quote else self._prefixes, False
        rest = "".join(prefix for _, prefix in above)
        if self.lines and not (is_item and self._is_after_item):
            self.lines.append(rest.rstrip())
        for line in lines:
            first = "".join(prefix for prefix, _ in self._prefixes)
            self.lines.append((first + line).rstrip())
            self._prefixes = [(prefix, prefix) for _, prefix in self._prefixes]
        self._is_after_item = is_item

    # Elements

    def enter(self, node: LexborNode, tag: str) -> bool:
        """Begin an element; return whether to enter its children."""
        if tag in _UNSEEN:
            return False
        if tag in _CODE:
            return self._add_code(node)
        if tag in _BLOCKS:
            self.flush()
            return True
        begin = self._BEGINNINGS.get(tag)
        return True if begin is None else bool(begin(self, node))

    def leave(self, tag: str) -> None:
        if tag in _BLOCKS:
            self.flush()
        elif (end := self._ENDS.get(tag)) is not None:
            end(self)

    def _add_code(self, node: LexborNode) -> bool:
        raw = node.text()
        code = " ".join(raw.split())
        if not code or "`" in code:
            self._inline.append(raw)
        else:
            before, after = raw[:1].isspace() * " ", raw[-1:].isspace() * " "
            self._inline.append(f"{before}`{code}`{after}")
        return False

    def _add_break(self, _node: LexborNode) -> bool:
        self._inline.append(_LINE_BREAK)
        return False

    def _add_math(self, node: LexborNode) -> bool:
        annotation = node.css_first("annotation[encoding='application/x-tex']")
        formula = node.attributes.get("alttext") or (annotation.text() if annotation else read_line(node))
        self._inline.append(f" {formula} ")
        return False

    def _add_power(self, node: LexborNode) -> bool:
        """Write superscripts with a sign, such as `2^10`: without it, the number would change."""
        is_power = self._inline and self._inline[-1][-1:].isdigit() and not _ORDINAL.fullmatch(node.text().strip())
        if is_power:
            self._inline.append("^")
        return True

    def _begin_heading(self, node: LexborNode) -> bool:
        self._flush_lead()
        level = int((node.tag or "h6")[1])
        title = PERMALINK.sub("", read_line(node))
        line = f"{'#' * level} {title}"
        if title and not self._prefixes and len(title) <= LONGEST_HEADING:
            self._heading_level = level
            if self.lines[-1:] != [line]:  # Some pages repeat their title.
                self._emit([line])
        elif title:
            self._inline.append(title)
            self.flush()
        return False

    def _begin_code_block(self, node: LexborNode) -> bool:
        # Some generators write line ends and blanks as elements and entities.
        for line_break in node.css("br"):
            line_break.replace_with("\n")
        text = node.text().replace("\xa0", " ").strip("\n").rstrip()
        self._flush_lead()
        if text:
            self._emit(format_code(text, _find_language(node)).split("\n"))
        return False

    def _begin_table(self, node: LexborNode) -> bool:
        """Write a data table; a layout table is entered like any block."""
        self._flush_lead()
        is_layout = any(found.mem_id != node.mem_id for found in node.css("table, h1, h2, h3, h4, pre"))
        if is_layout or node.attributes.get("role") == "presentation":
            return True
        rows = _read_rows(node)
        if not rows or max(map(len, rows)) < 2 or (len(rows) == 1 and max(map(len, rows[0])) > _LONGEST_HEADER):
            return True
        caption = node.css_first("caption")
        if caption is not None and (title := read_line(caption)):
            self._inline.append(title)
            self.flush()
        self._emit(format_table(rows[0], rows[1:]).split("\n"))
        return False

    # Lists

    def _begin_list(self, node: LexborNode) -> bool:
        self._flush_lead()
        start = node.attributes.get("start") or ""
        first = int(start) if start.isdecimal() and len(start) < 7 else 1
        self._counters.append(first if node.tag == "ol" else None)
        return True

    def _end_list(self) -> None:
        self.flush()
        if self._counters:
            self._counters.pop()

    def _begin_item(self, _node: LexborNode) -> bool:
        self._flush_lead()
        marker, number = "- ", self._counters[-1] if self._counters else None
        if number is not None:
            marker = f"{number}. "
            self._counters[-1] = number + 1
        self._push_item(marker)
        return True

    def _push_item(self, marker: str) -> None:
        is_shown = len(self._prefixes) < _DEEPEST_INDENT
        self._prefixes.append((marker, " " * len(marker)) if is_shown else ("", ""))

    def _end_item(self) -> None:
        self._flush_lead()
        if self._prefixes:
            self._prefixes.pop()

    def _begin_quote(self, _node: LexborNode) -> bool:
        self._flush_lead()
        self._prefixes.append(("> ", "> ") if len(self._prefixes) < _DEEPEST_INDENT else ("", ""))
        self._begins_quote = True
        return True

    # Definitions

    def _begin_term(self, node: LexborNode) -> bool:
        self._flush_lead()
        term = PERMALINK.sub("", read_line(node))
        is_signature = "sig" in (node.attributes.get("class") or "").split() and not self._prefixes
        if term:
            (self._signatures if is_signature else self._terms).append(term)
        return False

    def _begin_definition(self, _node: LexborNode) -> bool:
        self._flush_lead()
        signatures, terms = self._take_terms()
        self._signature_levels.append(bool(signatures))
        if signatures:
            self._write_signatures(signatures)
        else:
            self._push_item("- ")
            term = ", ".join(terms)
            self._lead = f"{term} " if term.endswith(":") else f"{term}: " if term else ""
        return True

    def _end_definition(self) -> None:
        self._flush_lead()
        if self._signature_levels and not self._signature_levels.pop() and self._prefixes:
            self._prefixes.pop()

    def _end_definitions(self) -> None:
        """Write terms that have no definition."""
        self._flush_lead()
        signatures, terms = self._take_terms()
        if signatures:
            self._write_signatures(signatures)
        for term in terms:
            self._push_item("- ")
            self._emit([term])
            self._prefixes.pop()

    def _take_terms(self) -> tuple[list[str], list[str]]:
        taken = self._signatures, self._terms
        self._signatures, self._terms = [], []
        return taken

    def _write_signatures(self, signatures: list[str]) -> None:
        """Write the name of a function, class or option as a heading, so that a search by name finds its text."""
        level = min(self._heading_level + 1 + sum(self._signature_levels[:-1]), 6)
        first, *others = signatures
        if len(first) > LONGEST_HEADING:
            others = signatures
            first = f"{first.partition('(')[0][: LONGEST_HEADING - 3]}(…)"
        self._emit([f"{'#' * level} {first}"])
        if others:
            self._emit(format_code("\n".join(others)).split("\n"))

    _BEGINNINGS: ClassVar[dict[str, Callable[["_MarkdownWriter", Any], bool]]] = {
        **dict.fromkeys(("h1", "h2", "h3", "h4", "h5", "h6"), _begin_heading),
        **dict.fromkeys(("pre", "listing", "xmp"), _begin_code_block),
        **dict.fromkeys(("ul", "menu", "ol"), _begin_list),
        "li": _begin_item,
        "dt": _begin_term,
        "dd": _begin_definition,
        "blockquote": _begin_quote,
        "table": _begin_table,
        "math": _add_math,
        "sup": _add_power,
        "br": _add_break,
    }
    _ENDS: ClassVar[dict[str, Callable[["_MarkdownWriter"], None]]] = {
        **dict.fromkeys(("ul", "menu", "ol"), _end_list),
        **dict.fromkeys(("li", "blockquote"), _end_item),
        "dd": _end_definition,
        "dl": _end_definitions,
        "table": flush,
    }


def _find_language(node: LexborNode) -> str:
    """Return the language of a piece of code, from the classes of the elements around it."""
    candidates = [node.child, node, node.parent, node.parent.parent if node.parent else None]
    for candidate in candidates:
        if candidate is not None and candidate.is_element_node:
            match = _LANGUAGE.search(candidate.attributes.get("class") or "")
            if match is not None and match[1] not in _NO_LANGUAGES:
                return match[1]
    return ""


def _read_rows(table: LexborNode) -> list[list[str]]:
    """Return the cells of each row. A cell that spans rows is repeated, and a short one that spans columns."""
    rows: list[list[str]] = []
    below: dict[int, tuple[int, str]] = {}
    for row in table.css("tr"):
        cells: list[str] = []
        for cell in row.iter():
            if cell.tag not in {"td", "th"}:
                continue
            _fill_spanned(cells, below)
            text = read_line(cell)
            height = _read_span(cell, "rowspan")
            for number in range(_read_span(cell, "colspan")):
                shown = text if number == 0 or len(text) <= _LONGEST_REPEATED else ""
                if height > 1:
                    below[len(cells)] = (height - 1, shown)
                cells.append(shown)
        _fill_spanned(cells, below)
        if any(cells):
            rows.append(cells[:_MOST_COLUMNS])
    # Columns of pictures have no text in any row.
    used = [any(column) for column in itertools.zip_longest(*rows, fillvalue="")]
    return rows if all(used) else [list(itertools.compress(cells, used)) for cells in rows]


def _fill_spanned(cells: list[str], below: dict[int, tuple[int, str]]) -> None:
    """Add the cells of earlier rows that span into this row."""
    while len(cells) in below:
        height, text = below.pop(len(cells))
        if height > 1:
            below[len(cells)] = (height - 1, text)
        cells.append(text)


def _read_span(cell: LexborNode, name: str) -> int:
    value = cell.attributes.get(name) or "1"
    return min(max(int(value), 1), _MOST_COLUMNS) if value.isdecimal() and len(value) < 5 else 1
