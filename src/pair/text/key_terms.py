"""Find the distinctive words of a text: names and codes first, then frequent words.

Invariants
    The same text gives the same terms in the same order.
    The regular expression engine counts words; Python looks at distinct ones only.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pair.text.characters import CAPITAL, IDEOGRAPHS, KATAKANA, LETTER, STOP_WORDS, UNTELLING, WIDE

_MAX_TERM_CHARACTERS = 40
_MAX_MARKED_CHARACTERS = 30
_MAX_WIDE_CHARACTERS = 20_000
_MAX_CHARACTERS = 100_000

_TOKEN = re.compile(rf"--?[A-Za-z][\w-]*+|/?[{LETTER}]++(?:[-.:/'\u2019+@][{LETTER}]++)*+")
_LABEL = re.compile(rf"\b([{CAPITAL}][\w.-]{{1,20}}) (\d+(?:\.\w{{1,8}}){{0,3}})(?![\w-])")
_NAME = re.compile(rf"\b[{CAPITAL}][\w\u2019'-]{{1,25}}(?: [{CAPITAL}][\w-]{{1,25}}){{1,3}}")
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


@dataclass(frozen=True)
class Terms:
    """Both lists begin with the best."""

    names: list[str]
    """Codes, labels, proper names and dates, as they are written."""
    topics: list[str]
    """Words that are used often or look rare, in small letters."""


def find_key_terms(body: str, marked: Sequence[str]) -> Terms:
    """`marked`: what the author set apart as code."""
    body = body[:_MAX_CHARACTERS]
    has_wide = not body.isascii() and WIDE.search(body) is not None
    tokens = Counter(_TOKEN.findall(WIDE.sub(_keep_hangul, body) if has_wide else body))
    words: dict[str, int] = {}
    others: dict[str, int] = {}
    for token, count in tokens.items():
        (words if token.isalpha() and token.islower() else others)[token] = count
    candidates = _TermCandidates()
    _offer_marked(candidates, marked)
    # Where all is in capitals, capitals say nothing.
    if sum(token.isupper() for token in others) * 2 <= len(tokens):
        _offer_names(candidates, body, others)
    _offer_codes(candidates, others)
    _add_words(words, others)
    runs: list[str] = []
    if has_wide:
        candidates.offer_all(Counter(_KATAKANA_RUN.findall(body)), _PROPER_NOUN_WEIGHT)
        runs = _find_repeated_runs(body[:_MAX_WIDE_CHARACTERS])
    return Terms(candidates.rank(), [*runs, *_rank_words(words)])


class _TermCandidates:
    """A term that is offered twice keeps its higher score and its first place."""

    def __init__(self) -> None:
        self._scores: dict[str, float] = {}

    def offer(self, term: str, weight: float, count: int) -> None:
        if 1 < len(term) <= _MAX_TERM_CHARACTERS:
            score = weight * (1 + math.log2(count))
            self._scores[term] = max(score, self._scores.get(term, 0))

    def offer_all(self, counts: Mapping[str, int], weight: float) -> None:
        for term, count in counts.items():
            self.offer(term, weight, count)

    def rank(self) -> list[str]:
        # sorted() is stable, so what comes first in the text wins a tie.
        return sorted(self._scores, key=lambda term: -self._scores[term])


def _offer_marked(candidates: _TermCandidates, marked: Sequence[str]) -> None:
    for code, count in Counter(marked).items():
        term = " ".join(code.split())
        if len(term) > _MAX_MARKED_CHARACTERS or "<" in term or not _LETTERS.search(term):
            continue
        # A whole command or expression is an example; a word or two are a name.
        weight = _MARKED_WEIGHT if term.count(" ") < 2 else _DATE_WEIGHT
        candidates.offer(term, weight, count)


def _offer_names(candidates: _TermCandidates, body: str, tokens: dict[str, int]) -> None:
    """Offer labels such as `RFC 3339`, names of several words, acronyms, and words with a capital in a sentence."""
    starts = Counter(_SENTENCE_START.findall(body))
    inside = {token: count - starts[token] for token, count in tokens.items() if token[0].isupper()}
    labels = Counter(
        (word, number) for word, number in _LABEL.findall(body) if _is_telling(word) and inside.get(word, 0) > 0
    )
    for (word, number), count in labels.items():
        candidates.offer(f"{word} {number}", _LABEL_WEIGHT, count)
        inside[word] -= count
    candidates.offer_all(Counter(_trim_names(_NAME.findall(body), inside)), _NAME_WEIGHT)
    for token, count in inside.items():
        word = _drop_possessive(token)
        if count > 0 and word.isalpha() and _is_telling(word):
            is_acronym = word.isupper() and len(word) <= 8
            candidates.offer(word, _ACRONYM_WEIGHT if is_acronym else _PROPER_NOUN_WEIGHT, count)


def _offer_codes(candidates: _TermCandidates, tokens: Mapping[str, int]) -> None:
    for token, count in tokens.items():
        if token.isalpha() and (token.istitle() or token.isupper()):
            continue
        if _DATE.match(token):
            candidates.offer(token, _DATE_WEIGHT, count)
        elif _CODE.search(token, 0, _MAX_TERM_CHARACTERS) and not _ORDINAL.match(token) and not _is_random(token):
            candidates.offer(_drop_possessive(token), _CODE_WEIGHT, count)


def _is_random(token: str) -> bool:
    """Return whether this is a hash or a key: nobody looks for them, and some are secret."""
    run = _UNBROKEN.search(token, 0, _MAX_TERM_CHARACTERS)
    return run is not None and sum(character.isdigit() for character in run[0]) >= _RANDOM_DIGITS


def _add_words(words: dict[str, int], tokens: Mapping[str, int]) -> None:
    """Add words with capitals or hyphens; the others are there already."""
    for token, count in tokens.items():
        word = token.casefold() if token.isalpha() else _drop_possessive(token).casefold()
        if word.isalpha() or (word[0].isalpha() and not _NOT_IN_WORDS.search(word)):
            words[word] = words.get(word, 0) + count


def _is_telling(word: str) -> bool:
    return word.casefold() not in UNTELLING


def _trim_names(names: Iterable[str], inside: Mapping[str, int]) -> Iterator[str]:
    """Leave out a first word that only begins sentences: `The Linux Kernel` is no name."""
    for name in names:
        words = name.split(" ")
        while words and (inside.get(words[0], 0) <= 0 or words[0].casefold() in STOP_WORDS):
            words.pop(0)
        if len(words) > 1:
            yield " ".join(words)


def _drop_possessive(token: str) -> str:
    return token[:-2] if token.endswith(("'s", "\u2019s")) else token


def _rank_words(counts: dict[str, int]) -> list[str]:
    _fold_plurals(counts)
    words = [
        word
        for word in counts
        if word not in UNTELLING and (4 <= len(word) <= _MAX_TERM_CHARACTERS or _is_short_word(word))
    ]
    return sorted(words, key=lambda word: -counts[word] * min(len(word), 12))


def _is_short_word(word: str) -> bool:
    """Below four letters Latin, Greek and Cyrillic words are mostly grammar; those of other scripts are not."""
    return 2 <= len(word) < 4 and max(word) > "\u0530"


def _fold_plurals(counts: dict[str, int]) -> None:
    for word in [word for word in counts if word.endswith("s")]:
        for single in (word[:-1], word[:-2]):
            if single in counts:
                counts[single] += counts.pop(word)
                break


def _keep_hangul(run: re.Match[str]) -> str:
    return run[0] if "\uac00" <= run[0][0] <= "\ud7a3" else " "


def _find_repeated_runs(text: str) -> list[str]:
    """Return two to four ideographs that come again, without those inside a longer one that was chosen."""
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
