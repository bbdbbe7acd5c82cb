"""Descriptions of sources without a model: title, parts and search terms.

Invariants
    Time is linear in the text: a pattern always matches at its start, or is bounded.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePosixPath

from pair.text.characters import WIDE, clip, drop_unprintable, join_lines
from pair.text.outline import Outline, OutlinePart, find_key_terms, read_code, read_html, read_prose

MAX_LINE_CHARACTERS = 200
_MAX_CHARACTERS = 200_000
_MAX_TITLE_CHARACTERS = 120
_PARTS_CHARACTERS = MAX_LINE_CHARACTERS - 10
_FEWEST_PARTS = 3
_SHORT_TERM_CHARACTERS = 4

_CODE_SUFFIX_LIST = """
    .bash .bat .c .cc .cfg .clj .conf .cpp .cs .css .cxx .dart .el .env .erl .ex .exs .f90 .fish .fs .geojson .go
    .gradle .graphql .groovy .h .hpp .hs .ini .ipynb .java .jl .js .json .json5 .jsonc .jsonl .jsx .kt .kts .less .lisp
    .lock .lua .m .mjs .ml .mm .ndjson .nim .nix .php .pl .pm .properties .proto .ps1 .py .pyi .r .rb .rkt .rs .scala
    .scm .scss .service .sh .sol .sql .svelte .swift .tcl .tf .thrift .toml .ts .tsx .v .vb .vhd .vim .vue
    .webmanifest .yaml .yml .zig .zsh
"""
_CODE_SUFFIXES = frozenset(_CODE_SUFFIX_LIST.split())
_CODE_NAMES = frozenset({"dockerfile", "makefile", "gnumakefile", "justfile", "rakefile", "jenkinsfile", "vagrantfile"})
_HTML_SUFFIXES = frozenset({".html", ".htm", ".xhtml", ".xml", ".rss", ".atom", ".svg", ".plist"})
_HTML_START = re.compile(r"<(?:!doctype|html|\?xml|head|body|svg|rss|feed)\b", re.IGNORECASE)
_WORD = re.compile(r"\w+")


class ExtractiveSummariser:
    """A summariser without a model and network. The same text gives the same lines."""

    model_calls = 0

    def summarise(self, source_id: str, text: str) -> str:
        """Return up to four lines of at most 200 characters each."""
        text = drop_unprintable(text.lstrip("\ufeff \t\r\n\f\v")[:_MAX_CHARACTERS])
        if not text.strip():
            return ""
        return "\n".join(_write_lines(_read(source_id, text))) or clip(join_lines(text[:2_000]), MAX_LINE_CHARACTERS)


def _read(source_id: str, text: str) -> Outline:
    # Only an address has a query and a fragment.
    path = source_id.partition("?")[0].partition("#")[0] if "://" in source_id else source_id
    name = PurePosixPath(path.lower())
    suffix = name.suffix
    if suffix in _CODE_SUFFIXES or name.name in _CODE_NAMES or text.startswith(("#!", '{"')):
        return read_code(text)
    # A page from the web may be HTML, or text that was extracted from it.
    if _HTML_START.match(text) or (suffix in _HTML_SUFFIXES and text.startswith("<")):
        return read_html(text)
    return read_prose(text)


def _write_lines(outline: Outline) -> list[str]:
    lines = [_write_first_line(outline), _join(f"{outline.parts_label}: ", _choose_parts(outline.parts))]
    names, topics = find_key_terms(outline.body, outline.marked)
    lines.append(_join("Mentions: ", _drop_shown(names, "\n".join(lines))))
    lines.append(_join("Topics: ", _drop_shown(topics, "\n".join(lines))))
    return [line for line in lines if line]


def _write_first_line(outline: Outline) -> str:
    """Return the title, and as many complete sentences as fit."""
    line = clip(join_lines(outline.title), _MAX_TITLE_CHARACTERS)
    for sentence in outline.lead:
        after = sentence[len(line) : len(line) + 1]
        is_repeated = sentence.casefold().startswith(line.casefold()) and (not after.isalnum() or WIDE.match(after))
        longer = sentence if not line or is_repeated else f"{line}{_stop_after(line)}{sentence}"
        if len(longer) > MAX_LINE_CHARACTERS:
            # A sentence is cut only if there is no other.
            return line if len(line) > _MAX_TITLE_CHARACTERS else clip(longer, MAX_LINE_CHARACTERS)
        line = longer
    return line


def _stop_after(text: str) -> str:
    if WIDE.match(text[-1]):
        return "。"
    if text[-1] in "。\uff01\uff1f":
        return ""
    return " " if text[-1] in ".!?…" else ". "


def _choose_parts(parts: Sequence[OutlinePart]) -> list[str]:
    """Return all names if they fit, else those of higher levels, else some of the whole source."""
    levels = sorted({part.level for part in parts}, reverse=True)
    names: list[str] = []
    for lowest in levels:
        higher = list(dict.fromkeys(clip(join_lines(part.name), 80) for part in parts if part.level <= lowest))
        if names and len(higher) < _FEWEST_PARTS:
            break
        names = higher
        if sum(len(name) + 2 for name in names) <= _PARTS_CHARACTERS:
            return names
    # The mean length is a good enough estimate.
    count = len(names) * _PARTS_CHARACTERS // max(1, sum(len(name) + 2 for name in names))
    return [names[index * len(names) // count] for index in range(count)]


def _drop_shown(terms: Iterable[str], shown: str) -> Iterator[str]:
    """Drop terms that are already shown, or are part of an earlier term."""
    seen = shown.casefold()
    words = set(_WORD.findall(seen))
    for term in terms:
        folded = term.casefold()
        # A short term is part of many words by chance.
        if folded in words or (len(folded) > _SHORT_TERM_CHARACTERS and folded in seen):
            continue
        seen += "\n" + folded
        words.update(_WORD.findall(folded))
        yield term


def _join(label: str, terms: Iterable[str]) -> str:
    """Return as many terms as fit on a line; skip a term that is too long, and try shorter ones."""
    line = ""
    for term in terms:
        longer = f"{line}; {term}" if line else label + term
        if len(longer) <= MAX_LINE_CHARACTERS:
            line = longer
        elif len(line) > MAX_LINE_CHARACTERS - 20:
            break
    return line
