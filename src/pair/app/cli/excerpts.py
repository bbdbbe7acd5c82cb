"""Markdown as plain lines, and excerpts around the matches."""

import re
import shutil
import textwrap
from collections.abc import Iterable

from pair.app import render
from pair.text.markdown import TextBlock, read_blocks

_MOST_COLUMNS = 100
_CODE_SPAN = re.compile(r"(`+)(.+?)\1")
_LINK = re.compile(r"(?<!`)!?\[((?:`+[^`]+`+|[^\[\]`])*)\]\([^()\s]*(?:\s[^()]*)?\)(?!`)")
"""A link. Its text may contain code, as in [`pair sync`](sync.md); `[a](b)` inside code is not a link."""
_EMPHASIS = re.compile(r"(?<![\w*\\])(\*{1,3})(?=\S)(.+?)(?<=\S)\1(?![\w*])|(?<!\w)_(?=[^\s_])([^_]+?)(?<=\S)_(?!\w)")
_ESCAPE = re.compile(r"\\([\\`*_{}\[\]()#+.!|<>-])")
_STREAMED_MARK = re.compile(r"\*\*|`+|^(?:#{1,6} |> ?)", re.MULTILINE)


def strip_inline(text: str) -> str:
    """Remove the marks of links, code and emphasis from a line of Markdown."""
    text = _LINK.sub(r"\1", text)
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


def format_markdown(text: str, indent: str = "") -> list[str]:
    """Return the text as wrapped lines without marks, with blank lines between its blocks; skip front matter."""
    lines: list[str] = []
    before = ""
    for block in [*read_blocks(text)]:
        kind = block.kind.removeprefix("table ")
        added = [] if kind == "front matter" else _format_block(text, block, indent)
        if added and lines and not (kind == before == "item" or {kind, before} <= {"head", "row"}):
            lines.append("")
        lines += added
        before = kind
    return lines


def _format_block(text: str, block: TextBlock, indent: str) -> list[str]:
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
    width = min(shutil.get_terminal_size((_MOST_COLUMNS, 0)).columns, _MOST_COLUMNS)
    return textwrap.wrap(plain, width, initial_indent=indent + mark, subsequent_indent=rest)


def match_words(words: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern that finds these words in a text."""
    choices = "|".join(sorted({re.escape(word) for word in words if word}, key=len, reverse=True))
    return re.compile(rf"(?<!\w)(?:{choices or '(?!)'})(?!\w)", re.IGNORECASE)


def match_text(text: str) -> re.Pattern[str]:
    """Return a pattern that finds the words of Markdown in formatted lines, wherever the lines break."""
    words = " ".join(format_markdown(text)).split()
    return re.compile(r"\s+".join(map(re.escape, words)) or "(?!)")


def cut_excerpt(text: str, pattern: re.Pattern[str], indent: str, most_lines: int) -> list[render.SafeLine]:
    """Return the lines of Markdown that hold the most matches, with the matches bold on a terminal."""
    lines = [line for line in format_markdown(text, indent) if line]
    joined, place = "\n".join(lines), 0
    spans = [match.span() for match in pattern.finditer(joined)]
    styled, weights = [], []
    for line in lines:
        inside = [
            (max(start - place, 0), min(end - place, len(line)))
            for start, end in spans
            if start < place + len(line) and end > place
        ]
        styled.append(_style_spans(line, inside))
        weights.append(sum(end - start for start, end in inside))
        place += len(line) + 1
    starts = range(max(1, len(lines) - most_lines + 1))
    start = max(starts, key=lambda begin: (sum(weights[begin : begin + most_lines]), -begin))
    shown = styled[start : start + most_lines]
    before = [render.join_line(indent, "…")] if start else []
    after = [render.join_line(indent, "…")] if start + most_lines < len(lines) else []
    return [*before, *shown, *after]


def _style_spans(line: str, spans: Iterable[tuple[int, int]]) -> render.SafeLine:
    parts: list[render.Line] = []
    place = 0
    for start, end in spans:
        parts += [line[place:start], render.style(line[start:end])]
        place = end
    return render.join_line(*parts, line[place:])
