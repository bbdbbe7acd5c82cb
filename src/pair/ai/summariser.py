"""Describe a source without a model: its title, its parts, and the terms by which people look for it.

Invariants
    Time is linear in the text: a pattern either always matches where it starts, or is bounded.
"""

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import PurePosixPath

from pair.ai.markup import Outline, OutlinePart, first_sentences, is_licence, read_html, read_prose
from pair.text.characters import WIDE, clip, drop_unprintable, join_lines
from pair.text.key_terms import find_key_terms

MAX_LINE_CHARACTERS = 200
_MAX_CHARACTERS = 200_000
_MAX_TITLE_CHARACTERS = 120
_PARTS_CHARACTERS = MAX_LINE_CHARACTERS - 10
_FEWEST_PARTS = 3
_MAX_PARTS = 300
_MAX_NAMES = 2_000
_MAX_COMMENT_LINES = 400
_SHORT_TERM_CHARACTERS = 4

_CODE_SUFFIX_LIST = """
    .bash .bat .c .cc .clj .cpp .cs .css .cxx .dart .el .erl .ex .exs .f90 .fish .fs .go .gradle .graphql .groovy .h
    .hpp .hs .java .jl .js .jsx .kt .kts .less .lisp .lua .m .mjs .ml .mm .nim .nix .php .pl .pm .proto .ps1 .py .pyi
    .r .rb .rkt .rs .scala .scm .scss .sh .sol .sql .svelte .swift .tcl .tf .thrift .ts .tsx .v .vb .vhd .vim .vue .zig
    .zsh
"""
_CODE_SUFFIXES = frozenset(_CODE_SUFFIX_LIST.split())
_CODE_NAMES = frozenset({"dockerfile", "makefile", "gnumakefile", "justfile", "rakefile", "jenkinsfile", "vagrantfile"})
_JSON_SUFFIXES = frozenset({".json", ".jsonl", ".ndjson", ".geojson", ".jsonc", ".json5", ".webmanifest", ".ipynb"})
_SETTINGS_SUFFIXES = frozenset(
    {".yaml", ".yml", ".toml", ".ini", ".cfg", ".conf", ".properties", ".env", ".service", ".lock"}
)
_TABLE_SUFFIXES = frozenset({".csv", ".tsv", ".psv"})
_HTML_SUFFIXES = frozenset({".html", ".htm", ".xhtml", ".xml", ".rss", ".atom", ".svg", ".plist"})
_PROSE_SUFFIXES = frozenset({".md", ".markdown", ".mdx", ".rst", ".adoc", ".asciidoc", ".org", ".tex", ".qmd"})
_HTML_START = re.compile(r"<(?:!doctype|html|\?xml|head|body|svg|rss|feed)\b", re.IGNORECASE)
_JSON_START = re.compile(r"\{\s{0,200}[\"}]|\[\s{0,200}[\"{]")
_WORD = re.compile(r"\w+")


class ExtractiveSummariser:
    """Needs no model and no network. The same text gives the same lines."""

    model_calls = 0

    def summarise(self, source_id: str, text: str) -> str:
        """Return up to four lines of at most 200 characters each."""
        text = drop_unprintable(text.lstrip("\ufeff \t\r\n\f\v")[:_MAX_CHARACTERS])
        if not text.strip():
            return ""
        return "\n".join(_write_lines(_read(source_id, text))) or clip(join_lines(text[:2_000]), MAX_LINE_CHARACTERS)


def _read(source_id: str, text: str) -> Outline:
    # Of an address the path, of a path all: only an address has something after a question mark.
    path = source_id.partition("?")[0].partition("#")[0] if "://" in source_id else source_id
    name = PurePosixPath(path.lower())
    suffix = name.suffix
    if suffix in _PROSE_SUFFIXES:
        return read_prose(text)
    if suffix in _CODE_SUFFIXES or name.name in _CODE_NAMES:
        return _read_code(text)
    if suffix in _TABLE_SUFFIXES:
        return _read_table(text)
    if suffix in _SETTINGS_SUFFIXES | _JSON_SUFFIXES or _JSON_START.match(text):
        return _read_keys(text)
    if text.startswith("#!"):
        return _read_code(text)
    # A page from the web may be HTML, or what another program has made of it.
    if _HTML_START.match(text) or (suffix in _HTML_SUFFIXES and text.startswith("<")):
        return read_html(text)
    return read_prose(text)


# ── lines ──────────────────────────────────────────────────────────────────────────────────────────


def _write_lines(outline: Outline) -> list[str]:
    lines = [_write_first_line(outline), _join(f"{outline.parts_label}: ", _choose_parts(outline.parts))]
    terms = find_key_terms(outline.body, outline.marked, outline.ignored)
    lines.append(_join("Mentions: ", _drop_shown(terms.names, "\n".join(lines))))
    lines.append(_join("Topics: ", _drop_shown(terms.topics, "\n".join(lines))))
    return [line for line in lines if line]


def _write_first_line(outline: Outline) -> str:
    """Return the title, and as many whole sentences as fit."""
    line = clip(join_lines(outline.title), _MAX_TITLE_CHARACTERS)
    for sentence in outline.lead:
        is_line_in_it = not line or _begins_with(sentence, line)
        longer = sentence if is_line_in_it else f"{line}{_stop_after(line)}{sentence}"
        if len(longer) > MAX_LINE_CHARACTERS:
            # A long sentence is cut only if there is no other.
            return line if len(line) > _MAX_TITLE_CHARACTERS else clip(longer, MAX_LINE_CHARACTERS)
        line = longer
    return line


def _begins_with(sentence: str, title: str) -> bool:
    after = sentence[len(title) : len(title) + 1]
    return sentence.casefold().startswith(title.casefold()) and (not after.isalnum() or bool(WIDE.match(after)))


def _stop_after(text: str) -> str:
    if WIDE.match(text[-1]):
        return "。"
    if text[-1] in "。\uff01\uff1f":
        return ""
    return " " if text[-1] in ".!?…" else ". "


def _choose_parts(parts: Sequence[OutlinePart]) -> list[str]:
    """Return all if they fit, else those of the higher levels, else some from the whole source."""
    levels = sorted({part.level for part in parts}, reverse=True)
    names: list[str] = []
    for lowest in levels:
        higher = list(dict.fromkeys(clip(join_lines(part.name), 80) for part in parts if part.level <= lowest))
        if names and len(higher) < _FEWEST_PARTS:
            break
        names = higher
        if sum(len(name) + 2 for name in names) <= _PARTS_CHARACTERS:
            return names
    # All lengths are alike enough to reckon with their mean.
    count = len(names) * _PARTS_CHARACTERS // max(1, sum(len(name) + 2 for name in names))
    return [names[index * len(names) // count] for index in range(count)]


def _drop_shown(terms: Iterable[str], shown: str) -> Iterator[str]:
    """Leave out terms that are shown already, or are part of one before them."""
    seen = shown.casefold()
    words = set(_WORD.findall(seen))
    for term in terms:
        folded = term.casefold()
        # A short one is in many words by chance.
        if folded in words or (len(folded) > _SHORT_TERM_CHARACTERS and folded in seen):
            continue
        seen += "\n" + folded
        words.update(_WORD.findall(folded))
        yield term


def _join(label: str, terms: Iterable[str]) -> str:
    """Return as many terms as fit on a line; one that is too long gives way to a shorter one after it."""
    line = ""
    for term in terms:
        longer = f"{line}; {term}" if line else label + term
        if len(longer) <= MAX_LINE_CHARACTERS:
            line = longer
        elif len(line) > MAX_LINE_CHARACTERS - 20:
            break
    return line


# ── code and data ──────────────────────────────────────────────────────────────────────────────────

_LINE_COMMENT = re.compile(r"(?:///?!?|#{1,3}(?![!\[])|--|;{1,4}|%{1,3}|REM |dnl )\s{0,20}")
_BLOCK_COMMENTS = (("/*", "*/"), ('"""', '"""'), ("'''", "'''"), ("<!--", "-->"), ("(*", "*)"), ("{-", "-}"))
_COMMENT_EDGE = " \t*!/#=-─━═"
_TOOL_COMMENT = re.compile(r"-\*-|vim?:|eslint|pylint|noqa|type:|coding[:=]|@ts-|prettier|\+build|go:build|region\b")
_MODIFIERS = (
    "export|default|declare|public|private|protected|internal|static|final|abstract|async|unsafe|extern|inline|const"
    r"|sealed|data|open|override|virtual|partial|pub|pub\(\w{1,20}\)|typedef|local"
)
_DEFINITION = re.compile(
    rf"^([ \t]{{0,8}})(?:(?:{_MODIFIERS})[ \t]{{1,4}}){{0,5}}"
    r"(?:def|class|function\*?|func|fn|fun|struct|enum|union|interface|trait|module|namespace|type|protocol|record"
    r"|object|macro_rules!|sub|proc|procedure|contract|message|service|rpc|resource|variable"
    r"|create[ \t](?:or[ \t]replace[ \t])?(?:table|view|function|index|type|procedure|trigger)"
    r"(?:[ \t]if[ \t]not[ \t]exists)?)"
    r"[ \t]{1,4}(?:\([^()\n]{0,80}\)[ \t]{0,4})?[\"'`]?([A-Za-z_$][\w$.]{1,60})"
    # A sentence in a comment may begin with such a word too.
    r"(?=[\"'`]?[ \t]{0,4}(?:[({:<\[=;,\"]|$|extends|implements|is\b|as\b|struct|interface|where))",
    re.MULTILINE | re.IGNORECASE,
)
_ASSIGNMENT = re.compile(
    r"^()(?:export[ \t]{1,4})?(?:(?:const|let|var|val|static)[ \t]{1,4})?([A-Za-z_$][\w$]{2,60})"
    r"[ \t]{0,4}(?:=(?!=)|:=|\(\)[ \t]*\{|:(?=\s))",
    re.MULTILINE,
)
_KEYWORD_LIST = """
    abstract args async await bool boolean break byte case catch char class const continue default elif else elseif
    endif enum except export extends extern false final finally float foreach from func function global implements
    import include inline instanceof interface internal isinstance kwargs lambda module mutable namespace none null
    object override package pass print private protected public raise readonly require return returns self short signed
    sizeof static string struct super switch template this throw throws trait true tuple typedef typeof undefined union
    unsigned using virtual void volatile where while yield assert delete list dict begin create select table exists
"""
_KEYWORDS = frozenset(_KEYWORD_LIST.split())
_KEY = re.compile(
    r"(?:^([ \t]{0,16})|[{,][ \t]{0,4}(?=\"))([\"']?)([A-Za-z_$][\w$. /-]{0,60})\2[ \t]{0,20}[:=]", re.MULTILINE
)
_TABLE_NAME = re.compile(r"^\[{1,2}([^\[\]\n]{1,80})\]", re.MULTILINE)
_VALUE = (
    r"(?:^|[{{,])[ \t]{{0,4}}[\"']?{}[\"']?[ \t]{{0,20}}[:=][ \t]{{0,20}}(?:\"([^\"\n]{{1,300}})|([^\"{{\n]{{1,300}}))"
)
_TITLES = [re.compile(_VALUE.format(name), re.MULTILINE | re.IGNORECASE) for name in ("title", "name")]
_LEADS = [re.compile(_VALUE.format(name), re.MULTILINE | re.IGNORECASE) for name in ("description", "summary")]


def _read_code(text: str) -> Outline:
    names = _DEFINITION.findall(text) or _ASSIGNMENT.findall(text)
    # What is private says least about what a file is for.
    parts = [OutlinePart(name, (2 if indent else 1) + 2 * name.startswith("_")) for indent, name in names[:_MAX_NAMES]]
    return Outline(
        lead=first_sentences(list(_read_comments(text)), most=1),
        parts=_merge_parts(parts),
        parts_label="Defines",
        body=_drop_licence(text).replace("self.", "").replace("this.", ""),
        ignored=_KEYWORDS,
    )


def _read_keys(text: str) -> Outline:
    """Read YAML, TOML, INI, JSON and their like, also half of one."""
    tables = [OutlinePart(name.strip()) for name in _TABLE_NAME.findall(text)]
    keys = [(len(indent), name.strip()) for indent, _, name in islice(_KEY.findall(text), _MAX_NAMES)]
    outer = min((indent for indent, _ in keys), default=0)
    parts = [OutlinePart(name, 2 if indent > outer or tables else 1) for indent, name in keys if indent <= outer + 2]
    lead = _find_value(text, _LEADS)
    return Outline(
        title=_find_value(text, _TITLES),
        lead=first_sentences([lead] if lead else list(_read_comments(text))),
        parts=_merge_parts([*tables, *parts]),
        parts_label="Keys",
        body=text,
    )


def _find_value(text: str, patterns: Iterable[re.Pattern[str]]) -> str:
    matches = (pattern.search(text) for pattern in patterns)
    return next((join_lines(match[1] or match[2]).strip("'|>, ") for match in matches if match), "")


def _read_table(text: str) -> Outline:
    header, _, rows = text.partition("\n")
    delimiter = max(",;\t|", key=header.count)
    try:
        columns = next(csv.reader([header[:10_000]], delimiter=delimiter), [])
    except csv.Error:
        columns = [header[:200]]
    names = [join_lines(column) for column in columns[:_MAX_PARTS]]
    return Outline(
        parts=_merge_parts([OutlinePart(name) for name in names if name]),
        parts_label="Columns",
        body=rows.replace(delimiter, " ; "),
    )


def _read_comments(text: str) -> Iterator[str]:
    """Yield the comments near the top, each as a paragraph without its marks; leave out those for tools."""
    paragraph: list[str] = []
    closing = ""
    for line in [*text.splitlines()[:_MAX_COMMENT_LINES], ""]:
        comment, closing = _read_comment(line.strip()[:1_000], closing)
        if comment:
            if not _TOOL_COMMENT.search(comment):
                paragraph.append(comment)
        elif paragraph:
            yield " ".join(paragraph)
            paragraph = []


def _drop_licence(text: str) -> str:
    """Leave out the comment at the very top, if it is a licence: its terms are those of a thousand other files."""
    closing = ""
    size = 0
    for line in text.splitlines(keepends=True)[:_MAX_COMMENT_LINES]:
        comment, closing = _read_comment(line.strip()[:1_000], closing)
        if not comment and not closing and size:
            break
        size += len(line)
    return text[size:] if is_licence(text[:size]) else text


def _read_comment(stripped: str, closing: str) -> tuple[str, str]:
    """Return what a line says as a comment, and the mark that ends the comment it leaves open."""
    if not closing:
        marks = next((pair for pair in _BLOCK_COMMENTS if stripped.startswith(pair[0])), None)
        if marks is None:
            match = _LINE_COMMENT.match(stripped)
            return (stripped[match.end() :].strip(_COMMENT_EDGE) if match else "", "")
        stripped, closing = stripped[len(marks[0]) :], marks[1]
    comment, end, _ = stripped.partition(closing)
    return comment.strip(_COMMENT_EDGE), "" if end else closing


def _merge_parts(parts: Iterable[OutlinePart]) -> list[OutlinePart]:
    """Return each name once, with its highest level."""
    levels: dict[str, int] = {}
    for part in parts:
        levels[part.name] = min(part.level, levels.get(part.name, part.level))
    return [OutlinePart(name, level) for name, level in islice(levels.items(), _MAX_PARTS)]
