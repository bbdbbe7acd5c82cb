"""Outline a source: title, first sentences, headings or names, and distinctive words.

Invariants
    Time is linear in the text: a pattern either does not match its first character again, or is bounded.
"""

import html
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from pair.text.characters import CAPITAL, IDEOGRAPHS, KATAKANA, LETTER, STOP_WORDS, UNTELLING, WIDE, join_lines
from pair.text.markdown import TextBlock, find_sentences, read_blocks

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
    # The look-behind follows the character, because a pattern that starts with a character is found faster.
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
    """The first informative sentences."""
    parts: Sequence[OutlinePart] = ()
    parts_label: str = "Sections"
    body: str = ""
    """Plain text; each line begins a new sentence."""
    marked: Sequence[str] = ()
    """Text that the author marked as code."""


def _is_licence(paragraph: str) -> bool:
    beginning = paragraph[:_LEAD_CHARACTERS].lower()
    return beginning.startswith(_AUTHOR_MARKS) or any(mark in beginning for mark in _LICENCE_MARKS)


def _first_sentences(paragraphs: Sequence[str], *, most: int = 3) -> list[str]:
    """Return the first sentences, without licences and introductions of lists unless there is nothing else."""
    telling = [paragraph for paragraph in paragraphs[:50] if not _is_licence(paragraph)] or paragraphs
    sentences = []
    for paragraph in telling[:most]:
        text = join_lines(paragraph[:_LEAD_CHARACTERS])
        sentences += [text[start:end].strip() for start, end in find_sentences(text, 0, len(text))]
    return [sentence for sentence in sentences if not sentence.endswith((":", "\uff1a"))] or sentences


def read_prose(text: str) -> Outline:
    """Read Markdown, reStructuredText, AsciiDoc and plain text."""
    fields: dict[str, str] = {}
    if headers := _HEADERS.match(text, 0, 10_000):  # The header of a mail or a package.
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
    # In HTML, tags separate blocks and line ends do not.
    flat = join_lines(_drop_hidden_elements(text))
    for pattern, layout in _HTML_LAYOUT:
        flat = pattern.sub(layout, flat)
    return _read_page(_drop_inline_markup(flat), fields, marked)


def _read_page(text: str, fields: dict[str, str], marked: Sequence[str]) -> Outline:
    """Outline a page. Lists and tables are the lead only if there is no prose; code only if there is nothing else."""
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
        # The page has a title in addition to the one in its front matter.
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
    """Mark short lines without a full stop as headings if an empty or indented line follows them."""
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
    # If half of the lines are like that, the text is a list or a poem.
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
        # Private names say least about the purpose of a file.
        levels.setdefault(name, (2 if indent else 1) + 2 * name.startswith("_"))
    return Outline(
        lead=_first_sentences(comments, most=1),
        parts=[OutlinePart(name, level) for name, level in islice(levels.items(), _MAX_NAMES)],
        parts_label="Names",
        body="\n".join(comments) or text,
    )


def _read_comments(text: str) -> Iterator[str]:
    """Yield each run of comments as a paragraph without marks. Comments for tools are left out."""
    paragraph: list[str] = []
    for line in [*text.splitlines()[:_MAX_LINES], ""]:
        match = _COMMENT.match(line[:1_000])
        comment = match[1].strip(_COMMENT_EDGE) if match else ""
        if comment and not _TOOL_COMMENT.search(comment):
            paragraph.append(comment)
        elif paragraph and not comment:
            yield " ".join(paragraph)
            paragraph = []


# ── key terms ──────────────────────────────────────────────────────────────────────────────────────

_MAX_TERM_CHARACTERS = 40
_MAX_MARKED_CHARACTERS = 30
_MAX_WIDE_CHARACTERS = 20_000
_MAX_TERM_TEXT = 100_000

_TOKEN = re.compile(rf"--?[A-Za-z][\w-]*+|/?[{LETTER}]++(?:[-.:/'\u2019+@][{LETTER}]++)*+")
_LABEL = re.compile(rf"\b([{CAPITAL}][\w.-]{{1,20}}) (\d+(?:\.\w{{1,8}}){{0,3}})(?![\w-])")
_PROPER_NAME = re.compile(rf"\b[{CAPITAL}][\w\u2019'-]{{1,25}}(?: [{CAPITAL}][\w-]{{1,25}}){{1,3}}")
_SENTENCE_START = re.compile(
    rf"(?:^|[.!?:;…]['\")\]\u201d\u2019]?[ \t]+)[\"'(\[\u201c\u2018]?([{CAPITAL}][\w\u2019'-]{{0,40}})",
    re.MULTILINE,
)
_CODE = re.compile(r"[^\W\d_][A-Za-z]*\d|\d[^\W\d_]{2}|\w[_@]\w|[a-z][A-Z]|\w::\w|^--|^/|\w\.[a-z]{2}")
_NOT_IN_WORDS = re.compile(r"[\d_./:@+]")
_LETTERS = re.compile(r"[^\W\d_]{2}")
_ORDINAL = re.compile(r"\d+(?:st|nd|rd|th)$")
_UNBROKEN = re.compile(r"[A-Za-z0-9]{20,}")
_RANDOM_DIGITS = 4
_DATE = re.compile(r"(?:1[0-9]|20)\d\d(?:-\d\d-\d\d)?$")
_IDEOGRAPH_RUN = re.compile(f"[{IDEOGRAPHS}]{{2,}}")
_KATAKANA_RUN = re.compile(f"[{KATAKANA}]{{3,}}")

_MARKED_WEIGHT = 3.0
_CODE_WEIGHT = 2.5
_LABEL_WEIGHT = 2.5
_NAME_WEIGHT = 2.0
_ACRONYM_WEIGHT = 2.0
_PROPER_NOUN_WEIGHT = 1.5
_DATE_WEIGHT = 1.0


_Offer = tuple[str, float, int]
"""A term, the weight of its kind, and how often it occurs."""


def find_key_terms(body: str, marked: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return names and words, each best first. `marked`: text that the author marked as code.

    Names are codes, labels, proper names and dates, as written. Words are frequent or long ones, in lower case.
    """
    body = body[:_MAX_TERM_TEXT]
    has_wide = not body.isascii() and WIDE.search(body) is not None
    # The regular expression engine counts words; Python looks at distinct ones only.
    tokens = Counter(_TOKEN.findall(WIDE.sub(_keep_hangul, body) if has_wide else body))
    words: dict[str, int] = {}
    others: dict[str, int] = {}
    for token, count in tokens.items():
        (words if token.isalpha() and token.islower() else others)[token] = count
    offers = list(_find_marked(marked))
    # In a text of capitals, they do not mark names.
    if sum(token.isupper() for token in others) * 2 <= len(tokens):
        offers += _find_names(body, others)
    offers += _find_codes(others)
    runs: list[str] = []
    if has_wide:
        offers += [(run, _PROPER_NOUN_WEIGHT, count) for run, count in Counter(_KATAKANA_RUN.findall(body)).items()]
        runs = _find_repeated_runs(body[:_MAX_WIDE_CHARACTERS])
    scores: dict[str, float] = {}
    for term, weight, count in offers:
        if 1 < len(term) <= _MAX_TERM_CHARACTERS:
            scores[term] = max(weight * (1 + math.log2(count)), scores.get(term, 0))
    # sorted() is stable, so the first in the text wins a tie.
    return sorted(scores, key=lambda term: -scores[term]), [*runs, *_rank_words(words, others)]


def _find_marked(marked: Sequence[str]) -> Iterator[_Offer]:
    for code, count in Counter(marked).items():
        term = " ".join(code.split())
        if len(term) > _MAX_MARKED_CHARACTERS or "<" in term or not _LETTERS.search(term):
            continue
        # One or two words are a name; a longer command or expression is an example.
        yield term, _MARKED_WEIGHT if term.count(" ") < 2 else _DATE_WEIGHT, count


def _find_names(body: str, tokens: dict[str, int]) -> Iterator[_Offer]:
    """Yield labels such as `RFC 3339`, names of several words, acronyms, and capitalised words inside sentences."""
    starts = Counter(_SENTENCE_START.findall(body))
    inside = {token: count - starts[token] for token, count in tokens.items() if token[0].isupper()}
    labels = Counter(
        (word, number) for word, number in _LABEL.findall(body) if _is_telling(word) and inside.get(word, 0) > 0
    )
    for (word, number), count in labels.items():
        yield f"{word} {number}", _LABEL_WEIGHT, count
        inside[word] -= count
    for name, count in Counter(_trim_names(_PROPER_NAME.findall(body), inside)).items():
        yield name, _NAME_WEIGHT, count
    for token, count in inside.items():
        word = _drop_possessive(token)
        if count > 0 and word.isalpha() and _is_telling(word):
            is_acronym = word.isupper() and len(word) <= 8
            yield word, _ACRONYM_WEIGHT if is_acronym else _PROPER_NOUN_WEIGHT, count


def _find_codes(tokens: Mapping[str, int]) -> Iterator[_Offer]:
    for token, count in tokens.items():
        if token.isalpha() and (token.istitle() or token.isupper()):
            continue
        if _DATE.match(token):
            yield token, _DATE_WEIGHT, count
        elif _CODE.search(token, 0, _MAX_TERM_CHARACTERS) and not _ORDINAL.match(token) and not _is_random(token):
            yield _drop_possessive(token), _CODE_WEIGHT, count


def _is_random(token: str) -> bool:
    """Return whether a token is a hash or a key: users do not search for them, and some are secret."""
    run = _UNBROKEN.search(token, 0, _MAX_TERM_CHARACTERS)
    return run is not None and sum(character.isdigit() for character in run[0]) >= _RANDOM_DIGITS


def _is_telling(word: str) -> bool:
    return word.casefold() not in UNTELLING


def _trim_names(names: Iterable[str], inside: Mapping[str, int]) -> Iterator[str]:
    """Yield names without first words that only begin sentences, such as `The` of `The Linux Kernel`."""
    for name in names:
        words = name.split(" ")
        while words and (inside.get(words[0], 0) <= 0 or words[0].casefold() in STOP_WORDS):
            words.pop(0)
        if len(words) > 1:
            yield " ".join(words)


def _drop_possessive(token: str) -> str:
    return token[:-2] if token.endswith(("'s", "\u2019s")) else token


def _rank_words(counts: dict[str, int], tokens: Mapping[str, int]) -> list[str]:
    """Return words, the best first. `counts`: lower-case words, to which those with capitals or hyphens are added."""
    for token, count in tokens.items():
        word = token.casefold() if token.isalpha() else _drop_possessive(token).casefold()
        if word.isalpha() or (word[0].isalpha() and not _NOT_IN_WORDS.search(word)):
            counts[word] = counts.get(word, 0) + count
    for word in [word for word in counts if word.endswith("s")]:
        for single in (word[:-1], word[:-2]):  # the plural counts with its singular
            if single in counts:
                counts[single] += counts.pop(word)
                break
    words = [
        word
        for word in counts
        if word not in UNTELLING
        # Most short words of Latin, Greek and Cyrillic script say nothing.
        and (4 <= len(word) <= _MAX_TERM_CHARACTERS or (2 <= len(word) < 4 and max(word) > "\u0530"))
    ]
    return sorted(words, key=lambda word: -counts[word] * min(len(word), 12))


def _keep_hangul(run: re.Match[str]) -> str:
    return run[0] if "\uac00" <= run[0][0] <= "\ud7a3" else " "


def _find_repeated_runs(text: str) -> list[str]:
    """Return repeated runs of two to four ideographs that neither contain a better one nor are part of it."""
    counts: Counter[str] = Counter()
    for run in _IDEOGRAPH_RUN.findall(text):
        for size in (2, 3, 4):
            counts.update(run[start : start + size] for start in range(len(run) - size + 1))
    repeated = sorted(
        (run for run, count in counts.items() if count > 1), key=lambda run: -(counts[run] - 1) * len(run)
    )
    chosen: list[str] = []
    for run in repeated[:200]:
        if not any(run in other or other in run for other in chosen):
            chosen.append(run)
    return chosen
