"""Read Markdown, reStructuredText, AsciiDoc, HTML and plain text: title, first sentences, headings and body.

Invariants
    Time is linear in the text: a pattern either excludes the character it starts with from its inside, or is bounded.
"""

import html
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from pair.text.characters import join_lines

_MAX_LINES = 20_000
_MAX_FRONT_MATTER_CHARACTERS = 10_000
_MAX_HEADING_CHARACTERS = 120

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
_LIST_ITEM = re.compile(r"(?:[-*+•·]|\d{1,3}[.)])\s+")
_NOISE = re.compile(
    r"\.\. |:[\w -]{1,30}:(?:\s|$)|\[[^\]]{1,100}\]:|[|\s:+=-]*$|[\W_]*$|(?:import|export) .*from |\{%|\{\{|:::|!!! |%%"
)
_RULER = frozenset("=-~^\"'#*+.:_`")
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
_SENTENCE_END = re.compile(r"(?<=[.!?…])[\"')\]\u201d\u2019]{0,3}\s+|(?<=[。\uff01\uff1f])")
_ABBREVIATION = re.compile(
    r"(?:^|[\s(])(?:[A-Z]|e\.g|i\.e|cf|vs|etc|approx|no|fig|dr|mr|mrs|st|ca|resp|z\.B|bzw)\.$", re.IGNORECASE
)
_LEAD_CHARACTERS = 2_000


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
    ignored: frozenset[str] = frozenset()
    """Words that say nothing in this kind of source."""


def is_licence(paragraph: str) -> bool:
    beginning = paragraph[:_LEAD_CHARACTERS].lower()
    return beginning.startswith(_AUTHOR_MARKS) or any(mark in beginning for mark in _LICENCE_MARKS)


def _split_sentences(paragraph: str) -> list[str]:
    """Split the beginning of a paragraph; a full stop after an abbreviation ends no sentence."""
    sentences: list[str] = []
    for piece in _SENTENCE_END.split(join_lines(paragraph[:_LEAD_CHARACTERS])):
        if sentences and (_ABBREVIATION.search(sentences[-1][-10:]) or piece[:1].islower()):
            sentences[-1] = f"{sentences[-1]} {piece}"
        elif piece.strip():
            sentences.append(piece.strip())
    return sentences


def first_sentences(paragraphs: Sequence[str], *, most: int = 3) -> list[str]:
    """Pass over the licence unless there is nothing else, and over a sentence that only announces a list."""
    telling = [paragraph for paragraph in paragraphs[:50] if not is_licence(paragraph)] or paragraphs
    sentences = [sentence for paragraph in telling[:most] for sentence in _split_sentences(paragraph)]
    return [sentence for sentence in sentences if not sentence.endswith((":", "\uff1a"))] or sentences


@dataclass
class _Page:
    """What the lines of a page come to. Lists, tables and quotations are a lead only when there are no sentences."""

    headings: list[OutlinePart] = field(default_factory=list)
    sentences: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    open: list[str] = field(default_factory=list)
    open_is_other: bool = False

    def add(self, line: str, *, is_other: bool) -> None:
        if self.open and is_other:
            self.close()
        self.open_is_other = is_other if not self.open else self.open_is_other
        self.open.append(line)

    def close(self) -> None:
        if self.open:
            paragraph = join_lines(" ".join(self.open))
            (self.others if self.open_is_other else self.sentences).append(paragraph)
            self.open = []

    def add_heading(self, name: str, level: int) -> None:
        self.close()
        name = join_lines(name[:_MAX_HEADING_CHARACTERS]).strip("*_: ")
        if name:
            self.headings.append(OutlinePart(name, level))


def read_prose(text: str) -> Outline:
    fields, text = _split_front_matter(text)
    kept = "\n".join(_outside_fences(text))
    if not kept.strip():
        kept = text.replace("```", "").replace("~~~", "")
    marked = _MARKED.findall(kept)
    page = _read_lines(_drop_inline_markup(kept).split("\n"))
    title = next((fields[name] for name in ("title", "subject", "name") if name in fields), "")
    return _build_outline(page, title, fields.get("description") or fields.get("summary", ""), marked)


def read_html(text: str) -> Outline:
    marked = [html.unescape(code) for code in _HTML_CODE.findall(text)]
    title = _HTML_TITLE.search(text)
    description = _HTML_DESCRIPTION.search(text)
    content = _HTML_CONTENT.search(description[0]) if description else None
    # A line end means nothing in HTML; a tag does.
    flat = join_lines(_drop_hidden_elements(text))
    for pattern, layout in _HTML_LAYOUT:
        flat = pattern.sub(layout, flat)
    page = _read_lines(_drop_inline_markup(flat).split("\n"))
    return _build_outline(
        page,
        join_lines(html.unescape(title[1])) if title else "",
        join_lines(html.unescape(content[1] or content[2])) if content else "",
        marked,
    )


def _build_outline(page: _Page, title: str, description: str, marked: Sequence[str]) -> Outline:
    headings = page.headings
    announced = [description] if description else []
    if headings and (not title or _is_same_title(headings[0].name, title)):
        title, headings = headings[0].name, headings[1:]
    elif headings and all(part.level > headings[0].level for part in headings[1:]):
        # The title of the page itself, beside the one in its front matter.
        announced, headings = [headings[0].name, *announced], headings[1:]
    names = {title, *(part.name for part in headings)}
    said = [paragraph for paragraph in page.sentences if paragraph not in names]
    paragraphs = [paragraph for paragraph in said if len(paragraph) > 20] or said or page.others
    return Outline(
        title=title,
        lead=first_sentences([*announced, *paragraphs]),
        parts=[part for part in headings if part.name.casefold() not in _BOILERPLATE],
        body="\n".join([*page.sentences, *page.others]),
        marked=marked,
    )


def _is_same_title(heading: str, title: str) -> bool:
    """Compare beginnings: the title of a page often adds the name of the site."""
    return title.casefold().startswith(heading.casefold()[:40])


def _split_front_matter(text: str) -> tuple[dict[str, str], str]:
    """YAML, TOML, or the headers of a mail or a package."""
    fence = text[:3]
    if fence in {"---", "+++"} and text[3:4] in {"\n", "\r"}:
        end = text.find(f"\n{fence}", 3, _MAX_FRONT_MATTER_CHARACTERS)
        return (_read_fields(text[3:end]), text[end + 4 :]) if end > 0 else ({}, text)
    if headers := _HEADERS.match(text, 0, _MAX_FRONT_MATTER_CHARACTERS):
        return _read_fields(headers[0]), text[headers.end() :]
    return {}, text


def _read_fields(front_matter: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    for line in front_matter.splitlines():
        if match := _FRONT_MATTER_FIELD.match(line):
            fields.setdefault(match[1].lower(), match[2].strip().strip("\"'[]|>").strip())
    return fields


def _outside_fences(text: str) -> Iterator[str]:
    fence = ""
    for line in islice(text.splitlines(), _MAX_LINES):
        start = line.lstrip()[:3]
        if fence:
            fence = "" if start == fence else fence
        elif start in {"```", "~~~"}:
            fence = start
            yield ""
        else:
            yield line


def _drop_inline_markup(text: str) -> str:
    text = _drop_comments(text)
    for pattern, replacement in _INLINE:
        text = pattern.sub(replacement, text)
    return html.unescape(text).replace("`", "")


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


def _read_lines(lines: Sequence[str]) -> _Page:
    page = _read_page(lines, frozenset())
    if page.headings:
        return page
    headings = frozenset(_find_plain_headings(lines))
    return _read_page(lines, headings) if headings else page


def _read_page(lines: Sequence[str], headings: frozenset[str]) -> _Page:
    page = _Page()
    for line in lines:
        if line in headings:
            page.add_heading(line, 1)
        else:
            _read_line(page, line)
    page.close()
    return page


def _read_line(page: _Page, line: str) -> None:
    stripped = line.strip()
    if not stripped:
        page.close()
    elif _is_ruler(stripped):
        _underline(page, stripped)
    elif level := _heading_level(stripped):
        page.add_heading(stripped[level:].strip(stripped[0] + " "), level)
    elif _NOISE.match(stripped):
        page.close()
    elif stripped.startswith("|") or stripped.count(" | ") > 1:
        page.add(" ; ".join(cell.strip() for cell in stripped.strip("|").split("|")), is_other=True)
    elif mark := _LIST_ITEM.match(stripped):
        page.add(stripped[mark.end() :], is_other=True)
    else:
        page.add(stripped.lstrip("> "), is_other=stripped.startswith(">"))


def _is_ruler(stripped: str) -> bool:
    return 3 <= len(stripped) <= 200 and stripped[0] in _RULER and stripped == stripped[0] * len(stripped)


def _underline(page: _Page, ruler: str) -> None:
    """Make a single short line above a ruler a heading; elsewhere a ruler only separates."""
    if len(page.open) == 1 and not page.open_is_other and len(page.open[0]) <= _MAX_HEADING_CHARACTERS:
        name = page.open.pop()
        page.add_heading(name, 1 if ruler[0] in "=#" else 2)
    page.close()


def _heading_level(stripped: str) -> int:
    """`## Name` of Markdown and `== Name` of AsciiDoc and wikis."""
    mark = stripped[0]
    if mark not in "#=":
        return 0
    level = len(stripped[:7]) - len(stripped[:7].lstrip(mark))
    return level if level <= 6 and stripped[level : level + 1].isspace() else 0


def _find_plain_headings(lines: Sequence[str]) -> list[str]:
    """Find headings of plain text: short, after an empty line, before an empty or indented one, without a full stop."""
    headings = []
    for before, line, after in zip(["", *lines], lines, [*lines[1:], ""], strict=False):
        if not line or line[0].isspace() or before.strip() or len(line) > 60:
            continue
        if (not after.strip() or after[:1].isspace()) and line[0].isalnum() and line.rstrip()[-1] not in ".,;:!?。":
            headings.append(line)
    # Where every other line is like that, it is a list or a poem.
    return headings if len(headings) * 2 <= sum(1 for line in lines if line.strip()) + 1 else []
