"""Read what is no prose: code, JSON, settings, tables and logs.

Invariants
    Time is linear in the text: a pattern either always matches where it starts, or is bounded.
"""

import csv
import json
import re
from collections import Counter
from collections.abc import Iterator
from itertools import islice

from pair.ai.summaries.outline import Outline, OutlinePart, first_sentences, is_licence
from pair.text.characters import on_one_line

_MAX_PARTS = 300
_MAX_COMMENT_LINES = 400

_LINE_COMMENT = re.compile(r"(?:///?!?|#{1,3}(?![!\[])|--|;{1,4}|%{1,3}|REM |dnl )\s{0,20}")
_BLOCK_COMMENTS = (("/*", "*/"), ('"""', '"""'), ("'''", "'''"), ("<!--", "-->"), ("(*", "*)"), ("{-", "-}"))
_COMMENT_EDGE = " \t*!/#=-─━═"
_IDLE_COMMENT = re.compile(r"-\*-|vim?:|eslint|pylint|noqa|type:|coding[:=]|@ts-|prettier|\+build|go:build|region\b")
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

_JSON_TOKEN = re.compile(r'"((?:[^"\\]|\\.)*+)"?|([{}\[\]])|(:)', re.DOTALL)
_NAMES_OF_TITLE = ("title", "name", "$id", "id")
_NAMES_OF_LEAD = ("description", "summary", "abstract", "$comment")

_SETTING = re.compile(
    r"^( {0,2})([\"']?)([A-Za-z_$][\w$. /-]{0,60})\2[ \t]{0,20}[:=](?:[ \t]{1,20}(.{0,300}))?", re.MULTILINE
)
_TABLE_NAME = re.compile(r"^()\[{1,2}([^\[\]\n]{1,80})\]", re.MULTILINE)

_MOMENT = re.compile(
    r"\W{0,3}(\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d(?::\d\d)?|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d"
    r"|\d\d?/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d:\d\d)[\d.,:+Z-]{0,20}\W{0,3}"
)
_NUMBER = re.compile(r"\b(?=\w{0,40}\d)[\w.-]{1,60}")


def read_code(text: str) -> Outline:
    found = _DEFINITION.findall(text) or _ASSIGNMENT.findall(text)
    # What is private says least about what a file is for.
    parts = [
        OutlinePart(name, (2 if indent else 1) + 2 * name.startswith("_")) for indent, name in islice(found, 2_000)
    ]
    return Outline(
        lead=first_sentences(list(_comments(text)), most=1),
        parts=_distinct(parts),
        parts_label="Defines",
        body=_without_licence(text).replace("self.", "").replace("this.", ""),
        ignored=_KEYWORDS,
    )


def read_json(text: str) -> Outline:
    """By its strings and brackets alone, so that half a document or a million brackets are read as well."""
    keys: dict[str, int] = {}
    values: dict[str, str] = {}
    strings: list[str] = []
    depth = 0
    key = ""
    for string, bracket, colon in _JSON_TOKEN.findall(text):
        if bracket:
            depth += 1 if bracket in "{[" else -1
            key = ""
        elif colon:
            key = strings.pop() if strings else ""
            keys[key] = min(depth, keys.get(key, depth))
        else:
            strings.append(string[:500])
            values.setdefault(key, string[:500])
            key = ""
    level = min(keys.values(), default=0)
    parts = [OutlinePart(_unescaped(name), found - level + 1) for name, found in keys.items() if name]
    highest = [part for part in parts if part.level == 1]
    # One or two keys are only the wrapping.
    shown = highest if len(highest) > 2 else [part for part in parts if part.level <= 3]
    return Outline(
        title=_first_of(values, _NAMES_OF_TITLE),
        lead=first_sentences([found] if (found := _first_of(values, _NAMES_OF_LEAD)) else []),
        parts=_distinct(shown),
        parts_label="Keys",
        body="\n".join(_unescaped(value) for value in strings),
    )


def read_settings(text: str) -> Outline:
    """YAML, TOML, INI and their like."""
    values: dict[str, str] = {}
    parts = [OutlinePart(name.strip()) for _, name in _TABLE_NAME.findall(text)]
    has_tables = bool(parts)
    for indent, _, name, value in _SETTING.findall(text):
        values.setdefault(name.lower(), value.strip().strip("\"'|>"))
        parts.append(OutlinePart(name.strip(), 2 if indent or has_tables else 1))
    title = _first_of(values, _NAMES_OF_TITLE)
    lead = _first_of(values, _NAMES_OF_LEAD)
    return Outline(
        title=title,
        lead=first_sentences([lead] if lead else list(_comments(text))),
        parts=_distinct(parts),
        parts_label="Keys",
        body=text,
    )


def read_table(text: str) -> Outline:
    header, _, rows = text.partition("\n")
    delimiter = max(",;\t|", key=header.count)
    try:
        columns = next(csv.reader([header[:10_000]], delimiter=delimiter), [])
    except csv.Error:
        columns = [header[:200]]
    names = [on_one_line(column) for column in columns[:_MAX_PARTS]]
    return Outline(
        parts=_distinct([OutlinePart(name) for name in names if name]),
        parts_label="Columns",
        body=rows.replace(delimiter, " ; "),
    )


def read_log(text: str, last_line: str) -> Outline:
    messages = Counter(
        _NUMBER.sub("#", _MOMENT.sub("", line, count=1)[:200]).strip() for line in islice(text.splitlines(), 5_000)
    )
    first = _MOMENT.match(text)
    last = _MOMENT.match(last_line)
    period = f" from {first[1]}" + (f" to {last[1]}" if last and last[1] != first[1] else "") if first else ""
    parts = [OutlinePart(on_one_line(message)[:80]) for message, _ in messages.most_common(20) if message]
    return Outline(title=f"Log{period}", parts=_distinct(parts), parts_label="Messages", body=text)


def is_log(text: str) -> bool:
    lines = [line for line in islice(text[:5_000].splitlines(), 10) if line.strip()]
    return len(lines) > 2 and sum(_MOMENT.match(line) is not None for line in lines) * 2 > len(lines)


def _comments(text: str) -> Iterator[str]:
    """The comments near the top, each as a paragraph without its marks; those for tools are left out."""
    paragraph: list[str] = []
    closing = ""
    for line in islice(text.splitlines(), _MAX_COMMENT_LINES):
        said, closing = _comment_of(line.strip()[:1_000], closing)
        if said:
            if not _IDLE_COMMENT.search(said):
                paragraph.append(said)
        elif paragraph:
            yield " ".join(paragraph)
            paragraph = []
    if paragraph:
        yield " ".join(paragraph)


def _without_licence(text: str) -> str:
    """Without the comment at the very top, if it is one: its terms are those of a thousand other files."""
    closing = ""
    size = 0
    for line in islice(text.splitlines(keepends=True), _MAX_COMMENT_LINES):
        said, closing = _comment_of(line.strip()[:1_000], closing)
        if not said and not closing and size:
            break
        size += len(line)
    return text[size:] if is_licence(text[:size]) else text


def _comment_of(stripped: str, closing: str) -> tuple[str, str]:
    """What a line says as a comment, and the mark that ends the comment it leaves open."""
    if not closing:
        opened = next((pair for pair in _BLOCK_COMMENTS if stripped.startswith(pair[0])), None)
        if opened is None:
            found = _LINE_COMMENT.match(stripped)
            return (stripped[found.end() :].strip(_COMMENT_EDGE) if found else "", "")
        stripped, closing = stripped[len(opened[0]) :], opened[1]
    said, closed, _ = stripped.partition(closing)
    return said.strip(_COMMENT_EDGE), "" if closed else closing


def _distinct(parts: list[OutlinePart]) -> list[OutlinePart]:
    levels: dict[str, int] = {}
    for part in parts:
        levels[part.name] = min(part.level, levels.get(part.name, part.level))
    return [OutlinePart(name, level) for name, level in islice(levels.items(), _MAX_PARTS)]


def _first_of(values: dict[str, str], names: tuple[str, ...]) -> str:
    return next((on_one_line(_unescaped(values[name])) for name in names if values.get(name)), "")


def _unescaped(string: str) -> str:
    if "\\" not in string:
        return string
    try:
        return str(json.loads(f'"{string}"', strict=False))
    except ValueError:
        return string
