"""Markdown as plain lines for a terminal."""

import re
import textwrap
from collections.abc import Iterable

from pair.text.markdown import TextBlock, read_blocks

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
