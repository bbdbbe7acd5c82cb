"""Split texts into the terms that keyword search counts, and parse queries.

Invariants
    Each piece of a text between blanks is analysed separately: a term never depends on its neighbours.
    Terms depend on the text and its language alone, so two shards, or a text and a query, agree on them.
    Words have positions and count for the length of a text; extra terms (whole compounds, parts of camelCase) do not.
"""

import functools
import itertools
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import Stemmer

from pair.text.languages import STOP_WORDS, find_language, stem_word
from pair.values import Hit

VERSION = 1
"""The version that each index stores: terms of different versions cannot be compared."""

_LONGEST_WORD = 64
_LONGEST_WHOLE = 200
_CACHED_PIECE = 48
"""Maximum length of a cached piece; longer ones seldom occur again."""


# Scripts without spaces between words: Thai, Lao, Myanmar, Khmer, Kana, Han; and Hangul, whose words carry particles.
_DENSE = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\u1100-\u11ff\u3130-\u318f\uac00-\ud7af\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
)
_JOINT = r"[-_./\\:@+#&=?%~,|]{1,3}"
_IS_JOINED = re.compile(_JOINT).search
_CONTRACTION = r"(?:['\u2019](?i:s|t|re|ve|ll|d|m)(?![^\W_]))?"


_COMPOUND = rf"(?:(?<![.@#\w])[.@#])?(?:WORD)(?:{_JOINT}(?:WORD))*(?:\+\+(?!\w)|#(?!\w))?"
_ASCII_WORD = rf"[A-Za-z0-9]+{_CONTRACTION}"

_ASCII = re.compile(_COMPOUND.replace("WORD", _ASCII_WORD))
_ASCII_WORDS = re.compile(_ASCII_WORD)


class _Scripts(NamedTuple):
    """Patterns for text in any script."""

    any: re.Pattern[str]
    words: re.Pattern[str]
    clusters: re.Pattern[str]


@functools.cache
def _scripts() -> _Scripts:
    """Compile the patterns when the first text needs them: that takes as long as a whole search."""
    # Vowel signs and accents are not letters for `re`. Those of living scripts are in these two ranges.
    letters = map(chr, (*range(0x300, 0x1E00), *range(0xA800, 0xAC00)))
    marks = "".join(letter for letter in letters if unicodedata.category(letter)[0] == "M")
    word = rf"(?:[^\W_{_DENSE}]|[{marks}])+{_CONTRACTION}"
    cluster = f"[{_DENSE}][{marks}\u200c\u200d]*"
    return _Scripts(
        re.compile(rf"(?P<dense>(?:{cluster})+)|" + _COMPOUND.replace("WORD", word)),
        re.compile(word),
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
    """A part of a piece, and its terms."""

    start: int
    end: int
    term: str
    """The term; empty if there are only extra terms."""
    form: str
    """The word as written, without case and accents."""
    extras: tuple[str, ...]


class Analysed(NamedTuple):
    """The terms of a piece of text between blanks."""

    terms: tuple[str, ...]
    extras: tuple[str, ...]
    forms: tuple[tuple[str, str], ...]
    """Pairs of a word as written and its term, where they differ."""


def analyse(piece: str, language: str = "en") -> Analysed:
    """Return the terms of a piece of text without blanks."""
    return _analyse_cached(piece, language) if len(piece) <= _CACHED_PIECE else _analyse(piece, language)


def analyse_all(pieces: Iterable[str], language: str = "en") -> list[Analysed]:
    """Return the terms of each piece of text."""
    return [analyse(piece, language) for piece in pieces]


def terms(text: str, language: str = "en") -> list[str]:
    """Return all terms of a text in order; extra terms follow their piece."""
    pieces = (analyse(piece, language) for piece in text.split())
    return [term for piece in pieces for term in (*piece.terms, *piece.extras)]


def find_words(query: str, texts: Iterable[str]) -> list[frozenset[str]]:
    """Return the terms of a question that each text contains."""
    asked = parse_query(query).terms.keys()
    return [frozenset(asked & set(terms(text))) for text in texts]


def _analyse(piece: str, language: str) -> Analysed:
    core = piece.rstrip(_BEHIND).lstrip(_BEFORE)
    if core.isascii():
        if len(core) <= _LONGEST_WORD and _is_plain(core):
            # A shortcut for nine of ten words, which many pieces share.
            return _analyse_plain(core.lower(), language)
        if piece.isascii():
            return _analyse_ascii(piece, language)
    return _join_words(list(_words_of(piece, language)))


@functools.lru_cache(maxsize=1 << 15)
def _analyse_plain(form: str, language: str) -> Analysed:
    term = stem(form, language)
    return Analysed((term,), (), ((form, term),) if form != term else ())


def _analyse_ascii(piece: str, language: str) -> Analysed:
    """Return what `_words_of` finds in a piece of ASCII, without the places of words."""
    terms: list[str] = []
    extras: list[str] = []
    forms: set[tuple[str, str]] = set()
    for whole in _ASCII.findall(piece):
        covered = 0
        for part in _ASCII_WORDS.findall(whole):
            form, term, humps = _analyse_part(part, language)
            covered += len(part)
            terms.append(term)
            extras += humps
            if form != term:
                forms.add((form, term))
        if covered < len(whole) <= _LONGEST_WHOLE:
            extras += dict.fromkeys(_wholes(whole.lower()))
    return Analysed(tuple(terms), tuple(extras), tuple(sorted(forms)))


def _join_words(words: Sequence[Word]) -> Analysed:
    return Analysed(
        tuple(word.term for word in words if word.term),
        tuple(extra for word in words for extra in word.extras),
        tuple(sorted({(word.form, word.term) for word in words if word.form != word.term})),
    )


_analyse_cached = functools.lru_cache(maxsize=1 << 16)(_analyse)


def _words_of(piece: str, language: str = "en") -> Iterator[Word]:
    if piece.isascii():
        for match in _ASCII.finditer(piece):
            yield from _split_compound(match, language)
        return
    for match in _scripts().any.finditer(piece):
        yield from _split_dense(match) if match["dense"] else _split_compound(match, language)


def _split_dense(run: re.Match[str]) -> Iterator[Word]:
    """Yield pairs of neighbouring characters as words, and single characters as extra terms for short queries."""
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


def _split_compound(compound: re.Match[str], language: str) -> Iterator[Word]:
    """Yield the words of a compound, then the compound as extra terms."""
    begin, end = compound.span()
    covered = 0
    pattern = _ASCII_WORDS if compound.string.isascii() else _scripts().words
    for part in pattern.finditer(compound.string, begin, end):
        covered += part.end() - part.start()
        form, term, humps = _analyse_part(part[0], language)
        yield Word(part.start(), part.end(), term, form, humps)
    if covered < end - begin <= _LONGEST_WHOLE:
        yield Word(begin, end, "", "", tuple(dict.fromkeys(_wholes(fold(compound[0])))))


@functools.lru_cache(maxsize=1 << 15)
def _analyse_part(part: str, language: str) -> tuple[str, str, tuple[str, ...]]:
    """Return the form, the term and the extra terms of a word of a compound."""
    form = fold(part)[:_LONGEST_WORD]
    term = stem(form if language == "en" else part[:_LONGEST_WORD], language)
    return form, term, tuple(_humps(part, language))


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
    """Return whether a word has only letters or only digits, and no camelCase."""
    return word.isdigit() or (word.isalpha() and (word.islower() or word.istitle() or word.isupper()))


def _humps(word: str, language: str) -> Iterator[str]:
    """Yield the parts of camelCase and of mixed letters and digits."""
    if len(word) > _LONGEST_WORD or not (word.isascii() and word.isalnum()) or _is_plain(word):
        return
    parts = _HUMPS.findall(word)
    if len(parts) > 1:
        yield from (stem(part.casefold(), language) for part in parts)


def fold(word: str) -> str:
    """Return a word without case and accents, and with one spelling for each character."""
    if word.isascii():
        return word.lower()
    plain = unicodedata.normalize("NFKD", word).casefold().replace("\u2019", "'")
    return unicodedata.normalize("NFKC", _OPTIONAL_MARKS.sub("", plain)).replace(" ", "")


def stem(word: str, language: str = "en") -> str:
    """Return the term of a word. English stems the folded word; other languages stem it with accents, then fold it."""
    if language == "en":
        return str(_stemmer.stemWord(word)) if _STEMMABLE(word) else word
    return fold(stem_word(word, language))


@functools.cache
def stem_words(words: str, language: str = "en") -> frozenset[str]:
    """Return the terms of words that are separated by spaces."""
    return frozenset(stem(word, language) for word in words.split())


# ── queries ────────────────────────────────────────────────────────────────────────────────────────

_QUOTES = str.maketrans(dict.fromkeys("\u201c\u201d\u201e\u201f\u00ab\u00bb\uff02", '"'))
_ASKED = re.compile(r'(?P<minus>(?<!\S)-)?"(?P<phrase>[^"]*)"|(?P<without>(?<!\S)-(?=[^\W\d_]))?(?P<piece>[^\s"]+)')
_WORDS_BESIDE_STRICT_PHRASES = 3
"""Maximum number of words outside quotes for required phrases. A longer query is a question that quotes something."""

Phrase = tuple[str, ...]
"""A phrase: terms that follow each other."""


SECONDARY = 0.5
"""The weight of terms that are not words of the query: compounds, parts of words and corrections; and of stop words."""


@dataclass(frozen=True, slots=True)
class KeywordQuery:
    """The words that a query asks for and excludes."""

    terms: Mapping[str, float]
    """English terms, any of which may match, and the weight of each: how often it is asked for."""
    prefixes: tuple[str, ...] = ()
    phrases: tuple[Phrase, ...] = ()
    excluded: tuple[Phrase, ...] = ()
    """Phrases of one term or more that a hit must not hold."""
    is_strict: bool = True
    """Whether a hit must hold the phrases; otherwise they add to its score."""
    is_telling: bool = True
    """Whether any of the terms is not a stop word."""
    stop_words: Mapping[str, float] = field(default_factory=dict)
    """Terms that add to the score of a row, but do not find it."""
    written: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The words of the query as written, by term."""
    variants: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The terms of a word in the languages of the KB, by its English term; empty if all documents are English."""

    @property
    def is_empty(self) -> bool:
        return not self.terms and not self.prefixes


def parse_query(query: str) -> KeywordQuery:
    """Parse a query. Anything that is not an operator is text."""
    beside: list[str] = []
    prefixes: dict[str, None] = {}
    phrases: dict[Phrase, None] = {}
    excluded: dict[Phrase, None] = {}
    written: dict[str, dict[str, None]] = {}
    for match in _ASKED.finditer(query.translate(_QUOTES)):
        text = match["piece"] if match["phrase"] is None else match["phrase"]
        if match["minus"] or match["without"]:
            excluded[_to_phrase(text)] = None
        elif match["phrase"] is not None:
            phrases[_to_phrase(text)] = None
        elif prefix := _prefix(text):
            prefixes[prefix] = None
        else:
            beside.append(text)
        for piece in text.split():
            for term, word in _find_written(piece):
                written.setdefault(term, {})[word] = None
    phrases.pop((), None)
    excluded.pop((), None)
    counted: defaultdict[str, float] = defaultdict(float, Counter(term for phrase in phrases for term in phrase))
    telling = [piece for piece in beside if not _is_stop_word(piece)]
    is_telling = bool(telling or counted or prefixes)
    # A query of stop words alone asks for them.
    _add_weights(counted, telling if is_telling else beside)
    stop_words: defaultdict[str, float] = defaultdict(float)
    if is_telling:
        _add_weights(stop_words, filter(_is_stop_word, beside))
    is_strict = not phrases or sum(len(_to_phrase(piece)) for piece in beside) <= _WORDS_BESIDE_STRICT_PHRASES
    return KeywordQuery(
        dict(counted),
        tuple(prefixes),
        tuple(phrases),
        tuple(excluded),
        is_strict,
        is_telling,
        {term: SECONDARY * weight for term, weight in stop_words.items() if term not in counted},
        {term: tuple(words) for term, words in written.items()},
    )


def _find_written(piece: str) -> Iterable[tuple[str, str]]:
    """Return the terms of a piece, each with its word as written."""
    analysed = analyse(piece)
    if len(analysed.terms) == 1 and not analysed.extras:  # most pieces are one word
        return ((analysed.terms[0], piece.rstrip(_BEHIND).lstrip(_BEFORE)),)
    return ((word.term, piece[word.start : word.end]) for word in _words_of(piece) if word.term)


def _add_weights(weights: defaultdict[str, float], pieces: Iterable[str]) -> None:
    """Add the terms of these pieces. Extra terms repeat a part of the piece, and weigh less."""
    for piece in map(analyse, pieces):
        for term in piece.terms:
            weights[term] += 1.0
        for term in piece.extras:
            weights[term] += SECONDARY


def adapt_query(query: KeywordQuery, languages: Collection[str]) -> KeywordQuery:
    """Return the query in these languages: with their terms for its words, and without their stop words.

    A query of English documents alone needs no change.
    """
    variants = {
        term: tuple(sorted({stem(fold(word) if code == "en" else word, code) for word in words for code in languages}))
        for term, words in query.written.items()
    }
    quoted = {term for phrase in query.phrases for term in phrase}
    asked: dict[str, float] = {}
    stop_words = dict(query.stop_words)
    for term, weight in query.terms.items():
        words = query.written.get(term, ())
        if words and term not in quoted and all(_is_stop_word(word, languages) for word in words):
            stop_words[term] = SECONDARY * weight
        else:
            asked[term] = weight
    if not asked and not query.prefixes:
        return replace(query, variants=variants, is_telling=False)
    return replace(query, terms=asked, stop_words=stop_words, variants=variants)


def is_compound(term: str) -> bool:
    """Return whether a term joins several words, as `a/b.py` does."""
    return _IS_JOINED(term) is not None


def _prefix(piece: str) -> str:
    """Return the prefix of `piece*`; "" for any other piece."""
    prefix = fold(piece[:-1].strip("*-'([{"))[:_LONGEST_WHOLE] if piece.endswith("*") else ""
    return prefix if any(map(str.isalnum, prefix)) else ""


def _is_stop_word(piece: str, languages: Iterable[str] = ("en",)) -> bool:
    """Return whether a piece is a stop word. `IT` and `WHO` in capitals are not."""
    word = piece.strip(_BEHIND + _BEFORE)
    if len(word) > 1 and word.isupper():
        return False
    return any(word.lower() in STOP_WORDS[code] for code in languages)


def _to_phrase(text: str) -> Phrase:
    return tuple(term for piece in text.split() for term in analyse(piece).terms)


def holds_phrase(text: str, phrase: Phrase) -> bool:
    return f" {' '.join(phrase)} " in f" {' '.join(_to_phrase(text))} "


def highlight(hits: Iterable[Hit], query: KeywordQuery, corrections: Sequence[str]) -> tuple[Hit, ...]:
    """Return the hits with the places of the query's words, each in the language of its document.

    `corrections`: words of the KB that are searched instead of misspelled ones.
    """
    return tuple(
        replace(hit, highlights=find_highlights(hit.text, query, find_language(hit.metadata, hit.text), corrections))
        for hit in hits
    )


def find_highlights(
    text: str, query: KeywordQuery, language: str = "en", corrections: Sequence[str] = ()
) -> tuple[tuple[int, int], ...]:
    """Return start and end of each word that the query asks for, ascending, without overlap."""
    if language != "en":
        query = adapt_query(query, {language})
    asked = [form for term in query.terms for form in query.variants.get(term, (term,))]
    asked += [form for word in corrections for form in (word, stem(word, language))]
    query = replace(query, terms=dict.fromkeys(asked, 1.0))
    ranges: list[tuple[int, int]] = []
    for start, end in sorted(_find_words(text, query, language)):
        if ranges and start < ranges[-1][1]:
            ranges[-1] = (ranges[-1][0], max(ranges[-1][1], end))
        else:
            ranges.append((start, end))
    return tuple(ranges)


def _find_words(text: str, query: KeywordQuery, language: str) -> Iterator[tuple[int, int]]:
    for match in _PIECE.finditer(text):
        # The terms of pieces are cached; the places of words are computed only where needed.
        piece, begin = analyse(match[0], language), match.start()
        if _is_asked((*piece.terms, *piece.extras), (form for form, _ in piece.forms), query):
            for word in _words_of(match[0], language):
                if _is_asked((word.term, *word.extras), (word.form,), query):
                    yield begin + word.start, begin + word.end


def _is_asked(counted: Sequence[str], forms: Iterable[str], query: KeywordQuery) -> bool:
    """Return whether a query asks for any of these terms, or for a prefix of them or of their forms."""
    if any(term in query.terms for term in counted):
        return True
    return bool(query.prefixes) and any(term.startswith(query.prefixes) for term in (*counted, *forms))
