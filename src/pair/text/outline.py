"""Read what a source is about: title, first sentences, headings or names, and the words of its body.

Invariants
    Time is linear in the text: a pattern either excludes the character it starts with from its inside, or is bounded.
"""

import html
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from pair.text.characters import join_lines
from pair.text.markdown import TextBlock, read_blocks
from pair.text.sentences import find_sentences

_MAX_LINES = 20_000
_MAX_HEADING_CHARACTERS = 120
_MAX_NAMES = 300
_LEAD_CHARACTERS = 2_000

_FRONT_MATTER_FIELD = re.compile(
    r"^(title|subject|name|description|summary)\s{0,3}[:=]\s{0,3}(\S.{0,300})$", re.IGNORECASE
)
_HEADERS = re.compile(r"(?:[A-Z][\w-]{1,40}: [^\n]*+\n(?:[ \t][^\n]*+\n)*+){3,}+(?=\n)")
_MARKED = re.compile(r"`+([^`\n]*+)`+")
_TARGET = r"(?:\((?:[^()\n]|\([^()\n]{0,200}\)){0,500}+\)|\[[^\[\]\n]{0,100}\])"
_INLINE_TAGS = "a|abbr|b|code|em|i|kbd|mark|s|small|span|strong|sub|sup|tt|u|var"
_INLINE = (
    # Images are mostly badges.
    (re.compile(rf"!\[[^\[\]\n]{{0,300}}\]{_TARGET}"), ""),
    (re.compile(rf"\[\s{{0,3}}\]{_TARGET}"), ""),
    (re.compile(rf"\[([^\[\]\n]{{1,300}})\]{_TARGET}"), r"\1"),
    (re.compile(r":[\w-]{1,30}:`([^`<\n]{1,200})(?:<[^`\n]{0,200}>)?`"), r"\1"),
    (re.compile(r"`([^`<\n]{0,200}[^`<\s])\s{0,5}<[^`\n]{1,300}>`__?"), r"\1"),
    (re.compile(rf"</?(?:{_INLINE_TAGS})(?:\s[^<>\n]{{0,500}})?>", re.IGNORECASE), ""),
    (re.compile(r"<[A-Za-z/!?][^<>\n]{0,500}>"), " "),
    (re.compile(r"https?://[^\s<>\"')\]]{1,500}"), ""),
    # What stands before is looked at last: an expression that starts with a character is found faster.
    (re.compile(r"\*(?<![\w*]\*)\*{0,2}([^\s*][^*\n]{0,300})\*{1,3}"), r"\1"),
    (re.compile(r"_(?<!\w_)([^_\n]{1,300})_(?!\w)"), r"\1"),
    (re.compile(r"__(?<!\w__)([^_\n]{1,300})__(?!\w)"), r"\1"),
    (re.compile(r"\[[ xX]\] |\[\^\w{1,20}\]|~~|\\(?=[*_#`\[\]|<>-])"), ""),
)
# Directives of reStructuredText and of templates, references, imports.
_NOISE = re.compile(
    r"^[ \t]{0,20}(?:\.\. |:[\w -]{1,30}:(?=\s)|\[[^\]\n]{1,100}\]:|(?:import|export) .{0,200}from |\{%|\{\{"
    r"|:::|!!! |%%)[^\n]*+",
    re.MULTILINE,
)
_ASCIIDOC_HEADING = re.compile(r"^={1,6}(?= \S)", re.MULTILINE)
_BOILERPLATE = frozenset(
    {
        "acknowledgements", "acknowledgments", "bibliography", "contents", "further reading", "in this article",
        "index", "license", "licence", "navigation", "on this page", "references", "related pages", "see also",
        "table of contents", "toc",
    }
)  # fmt: skip
_HIDDEN_ELEMENT = re.compile(r"<(script|style|noscript|template|svg|nav|footer|head)\b", re.IGNORECASE)
_HTML_TITLE = re.compile(r"<title[^<>]{0,200}>([^<]{1,300})", re.IGNORECASE)
_HTML_DESCRIPTION = re.compile(r"<meta\s[^<>]{0,200}?name=[\"']description[\"'][^<>]{0,500}", re.IGNORECASE)
_HTML_CONTENT = re.compile(r"content=\"([^\"]{1,400})\"|content='([^']{1,400})'", re.IGNORECASE)
_HTML_CODE = re.compile(r"<(?:code|kbd|tt)(?:\s[^<>]{0,200})?>([^<]{1,60})</", re.IGNORECASE)
_HTML_LAYOUT: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    (re.compile(r"<h([1-6])(?:\s[^<>]{0,500})?>", re.IGNORECASE), lambda tag: "\n\n" + "#" * int(tag[1]) + " "),
    (re.compile(r"<(?:li|dt|dd)\b[^<>]{0,500}>", re.IGNORECASE), "\n\n- "),
    (re.compile(r"</?(?:td|th)\b[^<>]{0,500}>", re.IGNORECASE), " | "),
    (
        re.compile(
            r"</?(?:p|div|br|hr|h[1-6]|ul|ol|dl|tr|table|section|article|main|header|aside|pre|blockquote|title"
            r"|body|head|form|figure)\b[^<>]{0,500}>",
            re.IGNORECASE,
        ),
        "\n\n",
    ),
)
_LICENCE_MARKS = (
    "copyright", "©", "(c) 19", "(c) 20", "spdx-", "licensed under", "licenced under", "all rights reserved",
    "permission is hereby granted", "redistribution and use", "without warranty", "public license", "apache license",
)  # fmt: skip
_AUTHOR_MARKS = ("author:", "authors:", "maintainer:")


@dataclass(frozen=True)
class OutlinePart:
    """A heading, a key, a column, a definition. `level` 1 is the highest."""

    name: str
    level: int = 1


@dataclass(frozen=True)
class Outline:
    title: str = ""
    lead: Sequence[str] = ()
    """The first sentences that say something."""
    parts: Sequence[OutlinePart] = ()
    parts_label: str = "Sections"
    body: str = ""
    """Plain text; what stands on a line of its own is a new sentence."""
    marked: Sequence[str] = ()
    """What the author set apart as code."""


def _is_licence(paragraph: str) -> bool:
    beginning = paragraph[:_LEAD_CHARACTERS].lower()
    return beginning.startswith(_AUTHOR_MARKS) or any(mark in beginning for mark in _LICENCE_MARKS)


def _first_sentences(paragraphs: Sequence[str], *, most: int = 3) -> list[str]:
    """Pass over the licence unless there is nothing else, and over a sentence that only announces a list."""
    telling = [paragraph for paragraph in paragraphs[:50] if not _is_licence(paragraph)] or paragraphs
    sentences = []
    for paragraph in telling[:most]:
        text = join_lines(paragraph[:_LEAD_CHARACTERS])
        sentences += [text[start:end].strip() for start, end in find_sentences(text, 0, len(text))]
    return [sentence for sentence in sentences if not sentence.endswith((":", "\uff1a"))] or sentences


def read_prose(text: str) -> Outline:
    """Read Markdown, reStructuredText, AsciiDoc and plain text."""
    fields: dict[str, str] = {}
    if headers := _HEADERS.match(text, 0, 10_000):  # of a mail or a package
        fields, text = _read_fields(headers[0]), text[headers.end() :]
    said = "\n".join(text[block.start : block.end] for block in read_blocks(text) if block.kind != "code")
    plain = _NOISE.sub("", _drop_inline_markup(text))
    plain = _ASCIIDOC_HEADING.sub(lambda marks: "#" * len(marks[0]), plain)
    return _read_page(plain, fields, _MARKED.findall(said))


def read_html(text: str) -> Outline:
    title = _HTML_TITLE.search(text)
    description = _HTML_DESCRIPTION.search(text)
    content = _HTML_CONTENT.search(description[0]) if description else None
    fields = {
        "title": join_lines(html.unescape(title[1])) if title else "",
        "description": join_lines(html.unescape(content[1] or content[2])) if content else "",
    }
    marked = [html.unescape(code) for code in _HTML_CODE.findall(text)]
    # A line end means nothing in HTML; a tag does.
    flat = join_lines(_drop_hidden_elements(text))
    for pattern, layout in _HTML_LAYOUT:
        flat = pattern.sub(layout, flat)
    return _read_page(_drop_inline_markup(flat), fields, marked)


def _read_page(text: str, fields: dict[str, str], marked: Sequence[str]) -> Outline:
    """Lists, tables and quotations are a lead only when there are no sentences; code only when there is nothing."""
    headings: list[OutlinePart] = []
    prose: list[str] = []
    others: list[str] = []
    code: list[str] = []
    lists = {"paragraph": prose, "item": others, "table head": others, "row": others, "code": code}
    blocks = list(islice(read_blocks(text), _MAX_LINES))
    if not any(block.kind == "heading" for block in blocks):
        blocks = _find_plain_headings(text, blocks)
    for block in blocks:
        content = text[block.start : block.end]
        if block.kind == "front matter":
            fields = _read_fields(content)
        elif block.kind != "heading":
            if block.kind in {"table head", "row"}:
                content = " ; ".join(map(str.strip, content.strip("| \n").split("|")))
            lists[block.kind].append(join_lines(content.replace("`", "")))
        elif name := _strip_heading(content):
            headings.append(OutlinePart(name, block.level))
    if not prose and not others and not headings:
        prose = code
    title = fields.get("title") or fields.get("subject") or fields.get("name", "")
    announced = [fields.get("description") or fields.get("summary", "")]
    if headings and (not title or title.casefold().startswith(headings[0].name.casefold()[:40])):
        title, headings = headings[0].name, headings[1:]
    elif headings and all(part.level > headings[0].level for part in headings[1:]):
        # The title of the page itself, beside the one in its front matter.
        announced, headings = [headings[0].name, *announced], headings[1:]
    names = {title, *(part.name for part in headings)}
    said = [paragraph for paragraph in prose if paragraph not in names]
    lead = [paragraph for paragraph in said if len(paragraph) > 20] or said or others
    return Outline(
        title=title,
        lead=_first_sentences([paragraph for paragraph in (*announced, *lead) if paragraph]),
        parts=[part for part in headings if part.name.casefold() not in _BOILERPLATE],
        body="\n".join([*prose, *others]),
        marked=marked,
    )


def _read_fields(front_matter: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    for line in front_matter.splitlines():
        if match := _FRONT_MATTER_FIELD.match(line):
            fields.setdefault(match[1].lower(), match[2].strip().strip("\"'[]|>").strip())
    return fields


def _drop_inline_markup(text: str) -> str:
    text = _drop_comments(text)
    for pattern, replacement in _INLINE:
        text = pattern.sub(replacement, text)
    return html.unescape(text)


def _drop_comments(text: str) -> str:
    kept = []
    rest = text
    while True:
        before, opening, after = rest.partition("<!--")
        kept.append(before)
        _, closing, rest = after.partition("-->")
        if not opening or not closing:
            return " ".join(kept)


def _drop_hidden_elements(text: str) -> str:
    kept = []
    position = 0
    text = _drop_comments(text)
    while start := _HIDDEN_ELEMENT.search(text, position):
        end = re.compile(f"</{start[1]}[^<>]{{0,50}}>?", re.IGNORECASE).search(text, start.end())
        if end is None:
            break
        kept.append(text[position : start.start()])
        position = end.end()
    kept.append(text[position:])
    return " ".join(kept)


def _strip_heading(content: str) -> str:
    lines = [line.strip("#=*_:` \t") for line in content[: 3 * _MAX_HEADING_CHARACTERS].splitlines()]
    name = join_lines(" ".join(line for line in lines if any(map(str.isalnum, line))))
    return name[:_MAX_HEADING_CHARACTERS].replace("`", "")


def _find_plain_headings(text: str, blocks: Sequence[TextBlock]) -> list[TextBlock]:
    """Find headings of plain text: short, after an empty line, before an empty or indented one, without a full stop."""
    read: list[TextBlock] = []
    for block in blocks:
        first, _, rest = text[block.start : block.end].partition("\n")
        is_alone = not rest.strip() or rest[0].isspace()
        is_heading = block.kind == "paragraph" and is_alone and len(first) <= 60 and first[:1].isalnum()
        if not is_heading or first.rstrip()[-1] in ".,;:!?。":
            read.append(block)
            continue
        end = block.start + len(first)
        read.append(TextBlock("heading", block.start, end, 1))
        if rest.strip():
            read.append(TextBlock("paragraph", end, block.end))
    # Where every other line is like that, it is a list or a poem.
    count = sum(block.kind == "heading" for block in read)
    return read if count * 2 <= sum(bool(line.strip()) for line in text.split("\n")) + 1 else list(blocks)


# ── code and data ──────────────────────────────────────────────────────────────────────────────────

_COMMENT = re.compile(r"[ \t]{0,40}(?:#{1,4}(?![!\[])|//+!?|/?\*++(?![\w/])|--|;+|%+|\"\"\"|'''|<!--)[ \t]*+([^\n]*+)")
_COMMENT_EDGE = " \t*!/#=-─━═\"'>"
_TOOL_COMMENT = re.compile(r"-\*-|vim?:|eslint|pylint|noqa|type:|coding[:=]|@ts-|prettier|\+build|go:build|region\b")
_NAME = re.compile(
    r"(?:^([ \t]{0,4})(?:[A-Za-z]{1,20}[ \t]{1,4}){0,5}|[{,][ \t]{0,4}(?=\"))"
    r"[\"'\[(]{0,2}([A-Za-z_$][\w$.-]{1,60})[\"'\])]{0,2}[ \t]{0,4}(?:[:=({]|$)",
    re.MULTILINE,
)


def read_code(text: str) -> Outline:
    """Read code, settings and data: the first comment, the names at the beginning of lines, the words of comments."""
    comments = [comment for comment in _read_comments(text) if not _is_licence(comment)]
    levels: dict[str, int] = {}
    for indent, name in _NAME.findall(text):
        # What is private says least about what a file is for.
        levels.setdefault(name, (2 if indent else 1) + 2 * name.startswith("_"))
    return Outline(
        lead=_first_sentences(comments, most=1),
        parts=[OutlinePart(name, level) for name, level in islice(levels.items(), _MAX_NAMES)],
        parts_label="Names",
        body="\n".join(comments) or text,
    )


def _read_comments(text: str) -> Iterator[str]:
    """Yield each run of comments as a paragraph without marks; leave out those for tools."""
    paragraph: list[str] = []
    for line in [*text.splitlines()[:_MAX_LINES], ""]:
        match = _COMMENT.match(line[:1_000])
        comment = match[1].strip(_COMMENT_EDGE) if match else ""
        if comment and not _TOOL_COMMENT.search(comment):
            paragraph.append(comment)
        elif paragraph and not comment:
            yield " ".join(paragraph)
            paragraph = []
