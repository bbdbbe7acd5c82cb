"""Describe a source by rules alone: its title, its parts, and the terms by which people look for it.

Not here
    Reading markup: prose.py. Reading code, data and logs: formats.py. Choosing terms: terms.py.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePosixPath

from pair.ai.summaries.data_files import is_log, read_code, read_json, read_log, read_settings, read_table
from pair.ai.summaries.markup import read_html, read_prose
from pair.ai.summaries.outline import Outline, OutlinePart
from pair.text.characters import WIDE, clip, on_one_line, printable
from pair.text.key_terms import terms_of

MAX_LINE_CHARACTERS = 200
_MAX_CHARACTERS = 200_000
_MAX_TITLE_CHARACTERS = 120
_PARTS_CHARACTERS = MAX_LINE_CHARACTERS - 10
_FEWEST_PARTS = 3

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
_SHORT_TERM_CHARACTERS = 4


class ExtractiveSummariser:
    """Needs no model and no network. The same text gives the same lines."""

    model_calls = 0

    def summarise(self, source_id: str, text: str) -> str:
        """Up to four lines of at most 200 characters each."""
        text = text.lstrip("\ufeff \t\r\n\f\v")
        beginning = printable(text[:_MAX_CHARACTERS])
        if not beginning.strip():
            return ""
        last_line = text[-1_000:].rstrip().rpartition("\n")[2]
        outline = _read(source_id, beginning, last_line)
        return "\n".join(_lines_of(outline)) or clip(on_one_line(beginning[:2_000]), MAX_LINE_CHARACTERS)


def _read(source_id: str, text: str, last_line: str) -> Outline:
    # Of an address the path, of a path all: only an address has something after a question mark.
    path = source_id.partition("?")[0].partition("#")[0] if "://" in source_id else source_id
    name = PurePosixPath(path.lower())
    suffix = name.suffix
    if suffix in _PROSE_SUFFIXES:
        return read_prose(text)
    if suffix in _CODE_SUFFIXES or name.name in _CODE_NAMES:
        return read_code(text)
    if suffix in _SETTINGS_SUFFIXES:
        return read_settings(text)
    if suffix in _TABLE_SUFFIXES:
        return read_table(text)
    return _read_by_look(suffix, text, last_line)


def _read_by_look(suffix: str, text: str, last_line: str) -> Outline:
    if suffix in _JSON_SUFFIXES or _JSON_START.match(text):
        return read_json(text)
    if suffix == ".log" or is_log(text):
        return read_log(text, last_line)
    if text.startswith("#!"):
        return read_code(text)
    # A page from the web may be HTML, or what another program has made of it.
    if _HTML_START.match(text) or (suffix in _HTML_SUFFIXES and text.startswith("<")):
        return read_html(text)
    return read_prose(text)


def _lines_of(outline: Outline) -> list[str]:
    lines = [_first_line(outline)]
    lines.append(_joined(f"{outline.parts_label}: ", _chosen_parts(outline.parts)))
    terms = terms_of(outline.body, outline.marked, outline.ignored)
    lines.append(_joined("Mentions: ", _unseen(terms.names, "\n".join(lines))))
    lines.append(_joined("Topics: ", _unseen(terms.topics, "\n".join(lines))))
    return [line for line in lines if line]


def _first_line(outline: Outline) -> str:
    """The title, and as many whole sentences as fit."""
    line = clip(on_one_line(outline.title), _MAX_TITLE_CHARACTERS)
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


def _chosen_parts(parts: Sequence[OutlinePart]) -> list[str]:
    """All if they fit, else those of the higher levels, else some from the whole source."""
    levels = sorted({part.level for part in parts}, reverse=True)
    names: list[str] = []
    for lowest in levels:
        higher = list(dict.fromkeys(clip(on_one_line(part.name), 80) for part in parts if part.level <= lowest))
        if names and len(higher) < _FEWEST_PARTS:
            break
        names = higher
        if sum(len(name) + 2 for name in names) <= _PARTS_CHARACTERS:
            return names
    # All lengths are alike enough to reckon with their mean.
    count = len(names) * _PARTS_CHARACTERS // max(1, sum(len(name) + 2 for name in names))
    return [names[index * len(names) // count] for index in range(count)]


def _unseen(terms: Iterable[str], shown: str) -> Iterator[str]:
    """Without those that are shown already, or are part of one before them."""
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


def _joined(label: str, terms: Iterable[str]) -> str:
    """As many as fit on a line; one that is too long gives way to a shorter one after it."""
    line = ""
    for term in terms:
        longer = f"{line}; {term}" if line else label + term
        if len(longer) <= MAX_LINE_CHARACTERS:
            line = longer
        elif len(line) > MAX_LINE_CHARACTERS - 20:
            break
    return line
