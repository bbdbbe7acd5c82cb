"""Split texts into the terms that keyword search counts, and parse queries.

Invariants
    Each piece of a text between blanks is analysed by itself: what a term is never depends on its neighbours.
    A term is a function of the text alone, so two shards, or a text and a query, agree on it.
    Words have places and count for the length of a text; extra terms (whole compounds, parts of camelCase) do not.
"""

import functools
import itertools
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import Stemmer

from pair.text.characters import QUERY_STOP_WORDS

VERSION = 1
"""Goes into each index: terms of two versions cannot be compared."""

_LONGEST_WORD = 64
_LONGEST_WHOLE = 200
_CACHED_PIECE = 48
"""Longer ones seldom come again."""


def _ranges(characters: Iterable[int]) -> str:
    """Return the inside of a character class."""
    ranges: list[list[int]] = []
    for character in characters:
        if ranges and character == ranges[-1][1] + 1:
            ranges[-1][1] = character
        else:
            ranges.append([character, character])
    return "".join(f"{chr(first)}-{chr(last)}" for first, last in ranges)


# Scripts without spaces between words: Thai, Lao, Myanmar, Khmer, Kana, Han; and Hangul, whose words carry particles.
_DENSE = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\u1100-\u11ff\u3130-\u318f\uac00-\ud7af\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
)
_JOINT = r"[-_./\\:@+#&=?%~,|]{1,3}"
_CONTRACTION = r"(?:['\u2019](?:s|t|re|ve|ll|d|m)(?![^\W_]))?"


_COMPOUND = rf"(?:(?<![.@#\w])[.@#])?(?:WORD)(?:{_JOINT}(?:WORD))*(?:\+\+(?!\w)|#(?!\w))?"
_ASCII_WORD = rf"[A-Za-z0-9]+{_CONTRACTION}"

_ASCII = re.compile(_COMPOUND.replace("WORD", _ASCII_WORD), re.IGNORECASE)
_ASCII_WORDS = re.compile(_ASCII_WORD, re.IGNORECASE)


class _Scripts(NamedTuple):
    """Patterns for text in any script."""

    any: re.Pattern[str]
    words: re.Pattern[str]
    clusters: re.Pattern[str]


@functools.cache
def _scripts() -> _Scripts:
    """Compile the patterns with the first text that needs them: it takes as long as a whole search."""
    # Vowel signs and accents are no letters for `re`. Those of living scripts lie in these two stretches.
    marks = _ranges(
        code for code in (*range(0x300, 0x1E00), *range(0xA800, 0xAC00)) if unicodedata.category(chr(code))[0] == "M"
    )
    word = rf"(?:[^\W_{_DENSE}]|[{marks}])+{_CONTRACTION}"
    cluster = f"[{_DENSE}][{marks}\u200c\u200d]*"
    return _Scripts(
        re.compile(rf"(?P<dense>(?:{cluster})+)|" + _COMPOUND.replace("WORD", word), re.IGNORECASE),
        re.compile(word, re.IGNORECASE),
        re.compile(cluster),
    )


_HUMPS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_STRONG_JOINT = re.compile(r"[/\\:@#&=?%~,|]+")
_BEHIND = ".,;:!?)]}\"'*"
_BEFORE = "([{\"'*"
_PIECE = re.compile(r"\S+")
# Accents of European scripts, and the vowel points that Hebrew and Arabic are mostly written without.
_OPTIONAL_MARKS = re.compile("[\u0300-\u036f\u0591-\u05c7\u0610-\u061a\u0640\u064b-\u065f\u0670]")
_STEMMABLE = re.compile(r"[a-z']{3,}").fullmatch

_stemmer = Stemmer.Stemmer("english", 0)


class Word(NamedTuple):
    """A stretch of a piece, and what it counts as."""

    start: int
    end: int
    term: str
    """Empty when there are only extra ones."""
    form: str
    """How the term was written, but for case and accents."""
    extras: tuple[str, ...]


class Analysed(NamedTuple):
    """What a piece of text between blanks counts as."""

    terms: tuple[str, ...]
    extras: tuple[str, ...]
    forms: tuple[tuple[str, str], ...]
    """A word as written and its term, where they differ."""


def analyse(piece: str) -> Analysed:
    return _analyse_cached(piece) if len(piece) <= _CACHED_PIECE else _analyse(piece)


def terms(text: str) -> list[str]:
    """Return all terms of a text, in their order; extra terms follow the word that they belong to."""
    pieces = map(analyse, text.split())
    return [term for piece in pieces for term in (*piece.terms, *piece.extras)]


def find_words(query: str, texts: Iterable[str]) -> list[frozenset[str]]:
    """Return the words of a question that each text contains, as keyword search counts them."""
    asked = parse_query(query).terms.keys()
    return [frozenset(asked & set(terms(text))) for text in texts]


def _analyse(piece: str) -> Analysed:
    core = piece.rstrip(_BEHIND).lstrip(_BEFORE)
    if core.isascii() and len(core) <= _LONGEST_WORD and _is_plain(core):
        # Nine of ten words, on a short way.
        form = core.lower()
        term = stem(form)
        return Analysed((term,), (), ((form, term),) if form != term else ())
    words = list(_words_of(piece))
    return Analysed(
        tuple(word.term for word in words if word.term),
        tuple(extra for word in words for extra in word.extras),
        tuple(sorted({(word.form, word.term) for word in words if word.form != word.term})),
    )


_analyse_cached = functools.lru_cache(maxsize=1 << 17)(_analyse)


def _words_of(piece: str) -> Iterator[Word]:
    if piece.isascii():
        for match in _ASCII.finditer(piece):
            yield from _split_compound(match)
        return
    for match in _scripts().any.finditer(piece):
        yield from _split_dense(match) if match["dense"] else _split_compound(match)


def _split_dense(run: re.Match[str]) -> Iterator[Word]:
    """Yield each two neighbours as a word; each by itself is an extra term, for queries of one character."""
    matches = _scripts().clusters.finditer(run.string, *run.span())
    clusters = [(match.start(), match.end(), fold(match[0])) for match in matches]
    if len(clusters) == 1:
        start, end, form = clusters[0]
        yield Word(start, end, form, form, ())
        return
    for (start, _, first), (_, end, second) in itertools.pairwise(clusters):
        yield Word(start, end, first + second, first + second, ())
    for start, end, form in clusters:
        yield Word(start, end, "", "", (form,))


def _split_compound(compound: re.Match[str]) -> Iterator[Word]:
    """Yield the words, and behind them what they are together."""
    begin, end = compound.span()
    covered = 0
    pattern = _ASCII_WORDS if compound.string.isascii() else _scripts().words
    for part in pattern.finditer(compound.string, begin, end):
        form = fold(part[0])[:_LONGEST_WORD]
        covered += part.end() - part.start()
        yield Word(part.start(), part.end(), stem(form), form, tuple(_humps(part[0])))
    if covered < end - begin <= _LONGEST_WHOLE:
        yield Word(begin, end, "", "", tuple(dict.fromkeys(_wholes(fold(compound[0])))))


def _wholes(whole: str) -> Iterator[str]:
    """Yield a compound, and the compounds inside it: `b_c.py` and `b_c` of `a/b_c.py`."""
    yield whole
    if whole[0] == "v" and whole[1:2].isdigit():
        yield whole[1:]
    if "," in whole and whole.replace(",", "").isdigit():
        yield whole.replace(",", "")
    segments = _STRONG_JOINT.split(whole)
    for segment in segments if len(segments) > 1 else ():
        if not segment.isalnum() and any(map(str.isalnum, segment)):
            yield segment.strip(".-+")
    if "." in whole:
        for segment in segments:
            yield from (part for part in segment.split(".") if ("_" in part or "-" in part) and part != whole)


def _is_plain(word: str) -> bool:
    """Letters or digits only, and no camelCase."""
    return word.isdigit() or (word.isalpha() and (word.islower() or word.istitle() or word.isupper()))


def _humps(word: str) -> Iterator[str]:
    """Yield the parts of camelCase, and of letters and digits that are written together."""
    if len(word) > _LONGEST_WORD or not (word.isascii() and word.isalnum()) or _is_plain(word):
        return
    parts = _HUMPS.findall(word)
    if len(parts) > 1:
        yield from (stem(part.casefold()) for part in parts)


def fold(word: str) -> str:
    """Remove case, accents and the many ways to write one character."""
    if word.isascii():
        return word.lower()
    plain = unicodedata.normalize("NFKD", word).casefold().replace("\u2019", "'")
    return unicodedata.normalize("NFKC", _OPTIONAL_MARKS.sub("", plain)).replace(" ", "")


def stem(form: str) -> str:
    return str(_stemmer.stemWord(form)) if _STEMMABLE(form) else form


# ── queries ────────────────────────────────────────────────────────────────────────────────────────

_QUOTES = str.maketrans(dict.fromkeys("\u201c\u201d\u201e\u201f\u00ab\u00bb\uff02", '"'))
_ASKED = re.compile(r'(?P<minus>(?<!\S)-)?"(?P<phrase>[^"]*)"|(?P<without>(?<!\S)-(?=[^\W\d_]))?(?P<piece>[^\s"]+)')
_WORDS_BESIDE_STRICT_PHRASES = 3
"""With more it is a question that quotes something, and its answer may well be where the quotation is not."""


Phrase = tuple[str, ...]
"""Terms that follow each other."""


@dataclass(frozen=True, slots=True)
class KeywordQuery:
    """What a query asks of the words of a text."""

    terms: Mapping[str, int]
    """Any of them; how often each was asked for."""
    prefixes: tuple[str, ...] = ()
    phrases: tuple[Phrase, ...] = ()
    excluded: tuple[Phrase, ...] = ()
    """What must not be there: phrases, of one term or more."""
    is_strict: bool = True
    """Whether the phrases must be there; else they count extra."""

    @property
    def is_empty(self) -> bool:
        return not self.terms and not self.prefixes


def parse_query(query: str) -> KeywordQuery:
    """Parse any query: what is no operator is text."""
    beside: list[str] = []
    prefixes: dict[str, None] = {}
    phrases: dict[Phrase, None] = {}
    excluded: dict[Phrase, None] = {}
    for match in _ASKED.finditer(query.translate(_QUOTES)):
        text = match["piece"] if match["phrase"] is None else match["phrase"]
        phrase = _to_phrase(text)
        if match["minus"] or match["without"]:
            excluded[phrase] = None
        elif match["phrase"] is not None:
            phrases[phrase] = None
        elif prefix := _prefix(text):
            prefixes[prefix] = None
        else:
            beside.append(text)
    phrases.pop((), None)
    excluded.pop((), None)
    counted = Counter(term for phrase in phrases for term in phrase)
    telling = [piece for piece in beside if not _is_stop_word(piece)]
    # Of a query that has nothing else, the stop words are what is asked for.
    counted.update(terms(" ".join(telling if telling or counted or prefixes else beside)))
    is_strict = sum(len(_to_phrase(piece)) for piece in beside) <= _WORDS_BESIDE_STRICT_PHRASES
    return KeywordQuery(dict(counted), tuple(prefixes), tuple(phrases), tuple(excluded), is_strict)


def _prefix(piece: str) -> str:
    """Return the prefix of `piece*`; empty for others."""
    prefix = fold(piece[:-1].strip("*-'([{"))[:_LONGEST_WHOLE] if piece.endswith("*") else ""
    return prefix if any(map(str.isalnum, prefix)) else ""


def _is_stop_word(piece: str) -> bool:
    """Return whether a word says next to nothing about a text. `IT` and `WHO` in capitals do."""
    word = piece.strip(_BEHIND + _BEFORE)
    return word.lower() in QUERY_STOP_WORDS and (len(word) == 1 or not word.isupper())


def _to_phrase(text: str) -> Phrase:
    return tuple(term for piece in text.split() for term in analyse(piece).terms)


def holds_phrase(text: str, phrase: Phrase) -> bool:
    return f" {' '.join(phrase)} " in f" {' '.join(_to_phrase(text))} "


def find_highlights(text: str, query: KeywordQuery) -> tuple[tuple[int, int], ...]:
    """Return where the words stand that the query asked for, from the first on, without overlap."""
    ranges: list[tuple[int, int]] = []
    for start, end in sorted(_find_words(text, query)):
        if ranges and start < ranges[-1][1]:
            ranges[-1] = (ranges[-1][0], max(ranges[-1][1], end))
        else:
            ranges.append((start, end))
    return tuple(ranges)


def _find_words(text: str, query: KeywordQuery) -> Iterator[tuple[int, int]]:
    for match in _PIECE.finditer(text):
        # What pieces count as is cached; where their words begin and end is worked out for few of them only.
        if _may_be_asked(analyse(match[0]), query):
            begin = match.start()
            yield from (
                (begin + word.start, begin + word.end) for word in _words_of(match[0]) if _is_asked(word, query)
            )


def _may_be_asked(piece: Analysed, query: KeywordQuery) -> bool:
    if any(term in query.terms for term in piece.terms) or any(term in query.terms for term in piece.extras):
        return True
    if not query.prefixes:
        return False
    counted = (*piece.terms, *piece.extras, *(form for form, _ in piece.forms))
    return any(term.startswith(query.prefixes) for term in counted)


def _is_asked(word: Word, query: KeywordQuery) -> bool:
    counted = (word.term, *word.extras)
    if any(term in query.terms for term in counted):
        return True
    return bool(query.prefixes) and any(term.startswith(query.prefixes) for term in (word.form, *counted))
