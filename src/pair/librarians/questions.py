"""The kind of a question, its content words, and the form of statements that answer it; small talk and follow-ups.

The rules are few and general. They use the first words of a question, in English and a few other languages, and the
form of a statement: a number, a name, a date, a command. A question that no rule matches has the kind "any".
"""

import difflib
import functools
import math
import re
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from pair.text.evidence import QuotableBlock
from pair.text.languages import COMPOUNDING, LINKS, STOP_WORDS
from pair.text.tokenizer import analyse, analyse_all, fold, parse_query, stem, stem_words, terms

# ── kinds ──────────────────────────────────────────────────────────────────────────────────────────

_ABOUT_TIME = "year|version|release|date|day|month|time|century"
_ABOUT_COUNTS = (
    "number|port|size|limit|count|status|code|amount|maximum|minimum|percentage|length|depth|width|range|memory"
)
_ABOUT_COMMANDS = "command|option|flag|switch|statement|tool|program|utility|keyword|parameter|syntax"
_VERBS = "is|are|was|were|do|does|did|can|could|may|must|should|shall|has|have|had|will|would"


class _AnyOf(NamedTuple):
    """Patterns of which one must match."""

    patterns: Sequence[str]
    flags: re.RegexFlag = re.IGNORECASE

    def compile(self) -> re.Pattern[str]:
        return _compile("|".join(self.patterns), self.flags)


@functools.cache
def _compile(pattern: str, flags: re.RegexFlag = re.IGNORECASE) -> re.Pattern[str]:
    """Compile a pattern with the first question that needs it; all of them would take as long as a search."""
    return re.compile(pattern, flags)


_ASKS: Mapping[str, _AnyOf] = {
    "comparison": _AnyOf(
        [r"\b(?:differences?|differs?|distinguish\w*|versus|vs|compared?)\b", r"\b(?:unterschied\w*|diff[ée]ren\w+)\b"]
    ),
    "why": _AnyOf([r"\bwhy\b", r"\bwhat (?:is|are) the reasons?\b", r"\b(?:warum|weshalb|pourquoi|por qu[eé])\b"]),
    "date": _AnyOf(
        [
            r"\bwhen (?:was|were|did|does|do|is|will)\b",
            rf"\b(?:what|which) (?:\w+ ){{0,2}}(?:{_ABOUT_TIME})\b",
            r"\b(?:wann|quand|cu[aá]ndo)\b",
        ]
    ),
    "number": _AnyOf(
        [
            r"\bhow (?:many|much|long|far|often|old|large|big|wide|deep|high|fast|small|short)\b",
            rf"\b(?:what|which)\b[^?]*?\b(?:{_ABOUT_COUNTS})\b",
            r"\bwhat(?:'s| is) the (?:longest|largest|biggest|smallest|shortest|highest|lowest)\b",
            r"\b(?:wie viele?|combien|cu[aá]nt[oa]s?)\b",
        ]
    ),
    "command": _AnyOf([rf"\b(?:what|which|what's)\b (?:\w+ ){{0,3}}(?:{_ABOUT_COMMANDS})s?\b"]),
    "how-to": _AnyOf(
        [
            r"\bhow (?:do|does|can|could|should|would|to|must|might)\b|\bhow is (?:it|this|that) \w+",
            r"\bwhat (?:do|can|could|should|must) (?:I|we|you|one) (?:do|enter|run|type|write)\b",
            r"\b(?:wie kann|wie mache?|comment|c[oó]mo(?! se llam))\b",
        ]
    ),
    "definition": _AnyOf(
        [r"^\W*(?:so )?(?:what(?:'s| is| are| does| do)|define|was ist|qu'est-ce|qu[eé] es)\b(?! the name)"]
    ),
    "yes-no": _AnyOf([rf"^\W*(?:{_VERBS})\b(?! you\b)"]),
    "name": _AnyOf(
        [r"\b(?:who|whose|whom|which|where|name|called)\b", r"\bwhat \w", r"\b(?:wer|qui|qu[eé]|welche\w*|quel\w*)\b"]
    ),
}
"""Patterns of the questions of each kind; the first that matches counts."""

_TIMES = "(?:milli|micro)?(?:second|minute|hour|day|week|month|year)s?|times"
_NUMBER_WORDS = "two|three|four|five|six|seven|eight|nine|ten|twelve|twenty|hundred|thousand|million"
_COUNTED = rf"\A(?s:(?=.*(?:\d|\b(?:one|every|each|{_NUMBER_WORDS})\b)).*)"
"""A statement with a number somewhere."""
_OPTION = r"(?<![\w-])--?[A-Za-z]"
_CALL = r"\w\([1-8]?\)"
_FORMS: Mapping[str, _AnyOf] = {
    "comparison": _AnyOf(
        [
            r"\b(?:whereas|while|unlike|differences?|differs?|but|instead|rather|compared|than|both|however|versus)\b",
            r"\b(?:on the other hand|in contrast|other|same|only)\b",
        ]
    ),
    "why": _AnyOf(
        [
            r"\b(?:because|since|as a result|therefore|reasons?|in order to|due to|so that|otherwise|thus)\b",
            r"\bmeans? that\b|\bto (?:avoid|ensure|prevent|allow|make)\b|\b(?:allows?|causes?|would|if)\b",
        ]
    ),
    "date": _AnyOf(
        [
            r"\b(?:1[5-9]|20)\d\d\b|\b\d{1,2}:\d\d\b|\b\d+ o'clock",
            r"\b(?:[Ss]ince|[Ii]n|[Ff]rom|[Uu]ntil|[Vv]ersion|[Rr]elease|Python)\s+v?\d+(?:\.\d+)+",
            r"\b(?:January|February|March|April|May|June|July|August|September|October|November|December)\b",
            r"\b(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)days?\b",
        ],
        re.NOFLAG,
    ),
    "number": _AnyOf([r"\d", rf"\b(?:{_NUMBER_WORDS}|twice|unlimited)\b"]),
    "command": _AnyOf(
        ["`[^`]+`", _OPTION, r"\b[A-Z]{4,}\b", r"\\[a-z]+\b", _CALL, r"^\$ ", r"\A[\w-]+ [-\u2014] "], re.MULTILINE
    ),
    "how-to": _AnyOf(
        ["`[^`]+`", "```", r"^(?:[-*]|\d+\.) ", _OPTION, _CALL, r"\b[Tt]o \w+.{0,80}\buse\b"], re.MULTILINE
    ),
    "name": _AnyOf(
        [r"(?<=[\w,;:] )[A-Z][\w.-]+", "`[^`]+`", r"\b\w+[._/(]\w*", r"\*\*[^*]+\*\*", r"\b[A-Z]{2,}\b"], re.NOFLAG
    ),
    "yes-no": _AnyOf(
        [
            r"\b(?:not|no|never|cannot|only|always|yes|unless|by default|enabled|disabled|allowed|possible)\b",
            r"\b(?:can|may|must|should|is|are|does)\b|n['\u2019]t\b",
        ]
    ),
}
"""Patterns of statements that can answer a question of each kind."""
STRICT = frozenset({"date", "number", "definition"})
"""Kinds of questions that only a statement of the right form can answer."""


_UNITS = (
    (
        r"\bhow (?:long|often|old)\b|\btimeout\b",
        rf"\d\s*(?:ms|s|min|h|d)\b|\b(?:daily|hourly|weekly|monthly|yearly)\b|{_COUNTED}\b(?:{_TIMES})\b",
    ),
    (
        r"\bhow (?:large|big|wide|much memory)\b|\bsize\b",
        r"\d[\s-]*(?:bits?|bytes?|[kMGT]i?B?|(?:kilo|mega|giga|tera)bytes?|characters|digits|pages)\b",
    ),
    (r"\bport\b", r"\b\d{2,5}\b"),
)
"""Patterns of the words around a requested number."""
_FACETS = (
    (
        r"\bdefault|\bunless\b|\b(?:if|when) (?:no|not|none|i|nothing|you)\b|\bnormal|\bnot given\b|\bby itself\b",
        r"\bdefault|\bnormally\b|\bunless\b|\bif (?:no|not|omitted)\b|\bwithout\b|\bimplied\b",
    ),
    (
        r"\bsince (?:which|what|when)\b|\bintroduced?\b|\badded\b|\bfirst (?:version|release)\b|\bappear",
        r"\bnew in\b|\badded\b|\bintroduced\b|\bsince\b|\bfirst\b",
    ),
    (
        r"\bat most\b|\bmaximum\b|\blongest\b|\blargest\b|\blimit|\bhow (?:large|big|many|long)\b.*\b(?:can|may)\b",
        r"\blimit|\bmax|\bat most\b|\bup to\b|\bexceed|\bupper\b|\bless than\b|\brange",
    ),
    (r"\b(?:option|flag|switch)\b", _OPTION),
)
"""Pairs of patterns, of questions and of their answers: defaults, beginnings, limits, options."""
_NO_QUANTITY = re.compile(
    r"\b(?:version|python|release|section|chapter|table|figure|pep|rfc)s?[ :#]*\d[\w.]*|\(\d\)|\[\d+\]"
    r"|\b[^\W\d]+[-_]?\d\w*|^\d+\. ",
    re.IGNORECASE | re.MULTILINE,
)
"""Digits that are no quantity: versions, numbers of sections and items, parts of names."""
_SAME = 0.6
"""Minimum likeness of a term to the question for the statement after it to be the definition."""

# ── other languages ────────────────────────────────────────────────────────────────────────────────

_TABLES: Mapping[str, str] = {
    "de": r"""
why        warum|weshalb|wieso|wozu
date       wann|(?:welche[mns]|was für ein) (?:\w+ )?(?:jahr|datum|tag|monat|version|jahrhundert)\w*
number     wie ?viele?n?|wie (?:lange?|hoch|groß|oft|alt|weit|schwer|tief|breit|schnell)
how-to     wie (?:kann|können|könnte|mach\w*|soll\w*|muss|müssen|lässt|lassen|geht|\w+ (?:ich|man|wir|du))
definition was (?:ist|sind|bedeute[nt]|heißt)|definiere
name       wer|wen|wem|wessen|was|wo|wohin|woher|worin|wodurch|wie (?:heiß\w+|hieß\w*|laute\w+|nenn\w+)
comparing  während|anders|unterschied\w*|aber|sondern|hingegen|dagegen|statt|im gegensatz|beide
causing    weil|denn|da|deshalb|daher|damit|dadurch|wegen|aufgrund|grund|gründe|sodass|um .{1,80} zu
counting   zwei|drei|vier|fünf|sechs|sieben|acht|neun|zehn|elf|zwölf|zwanzig|hundert|tausend|million\w*|doppelt
framing    wann wozu wieso weshalb lange oft groß heißt hieß heißen lautet lautete nennt nannte genannt bedeutet
framing    laut erklären zeigen finden brauchen möglich verwendet verwenden benutzt unterschied grund meisten leute
framing    ding art erste name namen
""",
    "fr": r"""
why        pourquoi
date       quand|quel(?:le)?s? (?:\w+ )?(?:année|date|jour|mois|version|siècle)
number     combien|quelle? (?:est la )?(?:taille|longueur|hauteur|durée|quantité|nombre)
how-to     comment
definition qu['\u2019]est-ce|c['\u2019]est quoi|que signifie|définis
name       qui|que|qu['\u2019]\w+|où|quel\w*|quoi|lequel|laquelle
comparing  tandis|alors que|mais|contrairement|différen\w+|plutôt|au lieu|les deux
causing    parce|car|puisque|donc|afin|pour que|grâce|raisons?|à cause|en raison
counting   deux|trois|quatre|cinq|six|sept|huit|neuf|dix|onze|douze|vingt|cent|mille|millions?|double
framing    longtemps souvent grand appelle appelé nommé nom signifie selon expliquer montrer trouver possible
framing    utilisé utiliser différence raison plupart gens chose manière première premier
""",
    "es": r"""
why        por qu[eé]
date       cu[aá]ndo|qu[eé] (?:\w+ )?(?:año|fecha|día|mes|versión|siglo)
number     cu[aá]nt[oa]s?|qu[eé] (?:tamaño|longitud|altura|cantidad|número)
how-to     c[oó]mo (?:puedo|puede|se(?! llam)|debo|hago|hacer|\w+[oa]r)
definition qu[eé] (?:es|son|significa)|define
name       qui[eé]n(?:es)?|qu[eé]|d[oó]nde|cu[aá]l(?:es)?|c[oó]mo se llam\w+
comparing  mientras|pero|sino|diferenci\w+|en cambio|en lugar|ambos
causing    porque|ya que|debido|por eso|para que|gracias|razón|razones|a causa
counting   dos|tres|cuatro|cinco|seis|siete|ocho|nueve|diez|once|doce|veinte|cien|mil|mill[oó]n(?:es)?|doble
framing    largo menudo grande llama llamado nombre significa según explicar mostrar encontrar posible usado usar
framing    diferencia razón mayoría gente cosa manera primera primero
""",
    "it": r"""
why        perch[eéè]
date       quando|(?:che|quale) (?:\w+ )?(?:anno|data|giorno|mese|versione|secolo)
number     quant[oaie]|(?:che|quale) (?:dimensione|lunghezza|altezza|quantità|numero)
how-to     come (?:posso|si(?! chiam)|devo|faccio|fare|\w+[aei]re)
definition (?:che )?cos['\u2019]è|(?:che )?cosa (?:è|sono|significa)|definisci
name       chi|che|cosa|dove|quale?|quali|come si chiam\w+
comparing  mentre|ma|invece|differen\w+|al contrario|piuttosto|entrambi
causing    perché|poiché|quindi|affinché|grazie|motiv[oi]|a causa|dovuto
counting   due|tre|quattro|cinque|sei|sette|otto|nove|dieci|undici|dodici|venti|cento|mille|mila|milion[ei]|doppio
framing    lungo spesso grande chiama chiamato nome significa secondo spiegare mostrare trovare possibile usato
framing    usare differenza motivo maggior gente cosa modo prima primo
""",
    "pt": r"""
why        por ?qu[eê]
date       quando|(?:que|qual) (?:\w+ )?(?:ano|data|dia|mês|versão|século)
number     quant[oa]s?|(?:que|qual) (?:tamanho|comprimento|altura|quantidade|número)
how-to     como (?:posso|se(?! cham)|devo|faço|fazer|\w+[aei]r)
definition (?:o )?que (?:é|são|significa)|defina
name       quem|que|onde|qual|quais|como se cham\w+
comparing  enquanto|mas|diferen\w+|em vez|ao contrário|ambos
causing    porque|pois|devido|portanto|para que|graças|razão|razões|por causa
counting   dois|duas|três|quatro|cinco|seis|sete|oito|nove|dez|onze|doze|vinte|cem|mil|milh(?:ão|ões)|dobro
framing    longo frequência grande chama chamado nome significa segundo explicar mostrar encontrar possível usado
framing    usar diferença razão maioria gente coisa maneira primeira primeiro
""",
    "nl": r"""
why        waarom
date       wanneer|welke? (?:\w+ )?(?:jaar|datum|dag|maand|versie|eeuw)
number     hoeveel|hoe (?:lang|hoog|groot|vaak|oud|ver|zwaar|diep|breed|snel)
how-to     hoe (?:kan|kun|moet|maak|doe|werkt)|hoe \w+ (?:ik|je|men|we)
definition wat (?:is|zijn|betekent)|definieer
name       wie|wiens|wat|waar|welke?|hoe heet\w*
comparing  terwijl|maar|verschil\w*|daarentegen|in plaats|beide
causing    omdat|doordat|want|daarom|dus|zodat|vanwege|reden|redenen|dankzij
counting   twee|drie|vier|vijf|zes|zeven|acht|negen|tien|elf|twaalf|twintig|honderd|duizend|miljoen|dubbel
framing    lang vaak groot heet heette noemt genoemd naam betekent volgens uitleggen tonen vinden mogelijk gebruikt
framing    gebruiken verschil reden meeste mensen ding manier eerste
""",
}
"""For each language: how questions of each kind are asked, the words of statements that compare, give a cause or count,
and the words that only frame a question.
"""
_FORM_ROWS: Mapping[str, str] = {"comparison": "comparing", "why": "causing", "number": "counting"}


class _LanguageRules(NamedTuple):
    patterns: Mapping[str, re.Pattern[str]]
    """The patterns, by the name of the row."""
    framing: str
    """The words that only frame a question."""


@functools.cache
def _read_rules(language: str) -> _LanguageRules:
    """Return the additional rules of a language; none for English and languages without a table."""
    rows = [row.split(maxsplit=1) for row in _TABLES.get(language, "").strip().splitlines()]
    framing = " ".join(words for name, words in rows if name == "framing")
    beginnings = {"definition": r"^\W*"}
    patterns = {name: _compile(rf"{beginnings.get(name, '')}\b(?:{row})\b") for name, row in rows if name != "framing"}
    return _LanguageRules(patterns, framing)


# ── words ──────────────────────────────────────────────────────────────────────────────────────────

SCAFFOLD_WORDS = """
many much long often large big wide deep call called name named mean means exact exactly actual actually normal normally
unless otherwise told tell given please explain describe show find get make want need happen happens something anything
possible use used using work works know difference differences differ between compared compare versus reason after most
least people thing things way ways first also like zwischen kann wie viele haben wird quel quelle avec
"""
"""Words that only frame a question."""
_FRAME_WORDS = "command option flag switch statement tool program module version number default day month year date"
"""Words for the kind of thing that is asked for; an answer often shows the thing instead."""
_SCAFFOLD_SHARE, _FRAME_SHARE = 0.25, 0.4
"""The weight of these words."""
_NEAR = 0.82
"""Minimum likeness of two words for one to be a misspelling of the other."""
_SLIP_CHARACTERS = 5
_MANY_WORDS = 6
_LEAST_PART = 4
"""Minimum number of letters of a part of a compound."""


class TellingWord(NamedTuple):
    """A word of a question that carries its topic."""

    terms: tuple[str, ...]
    """The terms of its parts, as keyword search counts them."""
    wholes: tuple[str, ...]
    """Other terms, each of which stands for the whole word."""
    weight: float

    def share_in(self, held: Collection[str]) -> float:
        """Return the share of the word that is among these terms."""
        if any(whole in held for whole in self.wholes):
            return 1.0
        return sum(term in held for term in self.terms) / len(self.terms)


class AskedQuestion(NamedTuple):
    text: str
    kind: str
    words: tuple[TellingWord, ...]
    language: str
    """The language in which the words of the question were analysed."""

    def coverage(self, held: Collection[str]) -> float:
        """Return the share of the content words that are among these terms; rare words count somewhat more."""
        total = sum(math.sqrt(word.weight) for word in self.words)
        return sum(math.sqrt(word.weight) * word.share_in(held) for word in self.words) / total if total else 0.0

    def count_known(self, held: Collection[str]) -> float:
        """Return the share of the content words among these terms; rare words count much more than in `coverage`."""
        total = sum(word.weight for word in self.words)
        return sum(word.weight * word.share_in(held) for word in self.words) / total if total else 0.0

    def count_words(self, held: Collection[str]) -> float:
        """Return the number of content words among these terms, as a share of many: from 0 to 1."""
        return min(sum(word.share_in(held) for word in self.words), _MANY_WORDS) / _MANY_WORDS

    def likeness(self, name: frozenset[str]) -> float:
        """Return how well a heading or a defined term matches the question, from 0 to 1. `name`: its terms."""
        named = name - _stop_terms(self.language)
        precision = len(named & self.terms) / len(named) if named else 0.0
        recall = self.coverage(named)
        return 2 * precision * recall / (precision + recall) if precision + recall else 0.0

    def fit(self, block: QuotableBlock) -> float:
        """Return how far a block has the form of an answer to a question of this kind, from 0 to 1."""
        if self.kind == "definition":
            return self._find_definition(block)
        statement = block.shown
        form = _FORMS[self.kind].compile() if self.kind in _FORMS else None
        if self.kind == "number":
            statement = _NO_QUANTITY.sub(" ", statement)
            form = next((_compile(unit) for asked, unit in _UNITS if _compile(asked).search(self.text)), form)
        own = _read_rules(self.language).patterns.get(_FORM_ROWS.get(self.kind, ""))
        fits = float(form is None or self._has_form(form, statement) or bool(own and own.search(statement)))
        if not fits and self.kind in STRICT:
            return 0.0
        answers = [said for asked, said in _FACETS if _compile(asked).search(self.text)]
        facets = [bool(_compile(said).search(statement)) for said in answers]
        return (fits + sum(facets)) / (1 + len(facets))

    def _has_form(self, form: re.Pattern[str], statement: str) -> bool:
        if self.kind == "name":  # A name that the question does not contain already.
            asked = self.text.casefold()
            return any(name[0].casefold().strip("`*") not in asked for name in form.finditer(statement))
        return bool(form.search(statement))

    def _find_definition(self, block: QuotableBlock) -> float:
        own = block.evidence
        named = self._liken(own.term)
        if named >= _SAME:
            return named**2 / (1 + own.behind_term)  # The first statement after a term defines it.
        return self._liken(own.find_subject(self.language)) ** 2

    def _liken(self, name: str) -> float:
        return self.likeness(frozenset(terms(name, self.language))) if name else 0.0

    @property
    def terms(self) -> frozenset[str]:
        """The terms of all its words."""
        return frozenset(term for word in self.words for term in (*word.terms, *word.wholes))


def classify(query: str, language: str = "en") -> str:
    """Return the kind of a question about a text in this language. The question may be in English."""
    own = _read_rules(language).patterns
    asks = ((kind, pattern) for kind, asked in _ASKS.items() for pattern in (own.get(kind), asked.compile()))
    return next((kind for kind, pattern in asks if pattern is not None and pattern.search(query)), "any")


def understand(query: str, weights: Mapping[str, float], language: str = "en") -> AskedQuestion:
    """Return the question with the terms that its words have in a language.

    `weights`: the weight of each English term of the question in the KB; other terms are ignored.
    """
    words, framing = [], _read_rules(language).framing
    scaffold, frame, own_scaffold = stem_words(SCAFFOLD_WORDS), stem_words(_FRAME_WORDS), stem_words(framing, language)
    pieces = list(dict.fromkeys(query.split()))
    for analysed, translated in zip(analyse_all(pieces), analyse_all(pieces, language), strict=True):
        own = translated if len(translated.terms) == len(analysed.terms) else analysed  # A stem may be empty.
        terms = {term: near for term, near in zip(analysed.terms, own.terms, strict=True) if term in weights}
        if not terms:
            continue
        weight = max(weights[term] for term in terms)
        if scaffold.issuperset(terms) or own_scaffold.issuperset(terms.values()):
            weight *= _SCAFFOLD_SHARE
        elif frame.issuperset(terms):
            weight *= _FRAME_SHARE
        parts = tuple(dict.fromkeys(terms.values()))
        wholes = tuple(extra for extra in own.extras if len(parts) > 1 or len(extra) > len(parts[0]))
        words.append(TellingWord(parts, wholes, weight))
    return AskedQuestion(query, classify(query, language), tuple(words), language)


@functools.cache
def _stop_terms(language: str) -> frozenset[str]:
    return STOP_WORDS["en"] if language == "en" else stem_words(" ".join(STOP_WORDS[language]), language)


def mend_slips(question: AskedQuestion, vocabulary: frozenset[str]) -> AskedQuestion:
    """Replace a word that no passage contains by a nearly equal word of the passages, or by the parts of a compound."""
    return question._replace(words=tuple(_mend(word, vocabulary, question.language) for word in question.words))


def _mend(word: TellingWord, vocabulary: frozenset[str], language: str) -> TellingWord:
    own = word.terms[0]
    if len(word.terms) > 1 or len(own) < _SLIP_CHARACTERS or word.share_in(vocabulary):
        return word
    for place in range(_LEAST_PART, len(own) - _LEAST_PART + 1) if language in COMPOUNDING else ():
        firsts = {stem(own[:place].removesuffix(link), language) for link in LINKS} & vocabulary
        if firsts and own[place:] in vocabulary:
            return word._replace(terms=(max(firsts, key=len), own[place:]))
    near = [term for term in vocabulary if term[:1] == own[:1] and abs(len(term) - len(own)) <= 2]
    matches = difflib.get_close_matches(own, near, 1, _NEAR)
    return word._replace(terms=(matches[0],)) if matches else word


# ── small talk and follow-up questions ─────────────────────────────────────────────────────────────

_PHATIC_WORDS = """
hi hello hey hallo howdy bonjour hola ciao greetings welcome yo good nice great cool wow morning day afternoon evening
night guten tag morgen abend thanks thank thx danke merci bye goodbye see cheers ok okay yes no please test testing ping
help start sorry lol haha hmm how's what's going everyone everybody anybody anyone somebody there team friend dear sir
madam today lot very much again bot robot human assistant librarian ai real name meet made built tell joke yourself ask
know topics subjects documents contents inside kb knowledge base library
"""
_PHATIC = frozenset(_PHATIC_WORDS.split())
"""Words that greet, thank, or ask about the KB itself."""
_WORD = re.compile(r"[^\W_]+(?:['\u2019]\w+)?")
_REFERS = re.compile(
    r"\b(?:it|its|they|them|their|he|she|him|his|hers?|the (?:same|former|latter|other))\b"
    r"|\b(?:this|that|these|those|ones?)"
    r"(?=\W*(?:$|[?.,;!]|(?:is|are|was|were|do|does|did|can|could|will|would|work|mean|happen|not|so|too|instead)\b))",
    re.IGNORECASE,
)
_GOES_ON = re.compile(
    r"\W*(?:and|but|so|or|also|then|what about|how about|what if|why not|for example|really|since when)\b",
    re.IGNORECASE,
)
_MOST_CARRIED = 8
"""Maximum number of words of the earlier question that complete a follow-up."""
_FEW_WORDS = 4
"""Maximum number of content words of a follow-up. A question with more is complete."""


def is_small_talk(query: str) -> bool:
    """Return whether the text only greets, thanks, or asks about the KB itself."""
    words = _read_words(query)
    return bool(words) and all(word in _PHATIC or word in STOP_WORDS["en"] for word in words)


def complete_follow_up(query: str, earlier: Sequence[str]) -> str:
    """Return a question that can be understood alone. `earlier`: the questions before it, oldest first.

    A question that refers back ("and why is that?"), or has no content words, gets those of the earlier question.
    """
    if not earlier or _greets(query):
        return query
    standing = ""
    for asked in (*earlier, query):
        if _greets(asked):
            continue
        known = set(terms(asked))
        carried = _find_telling(standing) if _is_follow_up(asked) else []
        added = [word for word in carried if not known.issuperset(terms(word))]
        standing = " ".join([asked.strip(), *added[:_MOST_CARRIED]])
    return standing


def _greets(query: str) -> bool:
    return not _PHATIC.isdisjoint(_read_words(query)) and is_small_talk(query)


def _is_follow_up(query: str) -> bool:
    telling = _find_telling(query)
    return not telling or (len(telling) <= _FEW_WORDS and bool(_GOES_ON.match(query) or _REFERS.search(query)))


def _read_words(query: str) -> list[str]:
    """Return the words in lower case; `IT` and `WHO` in capitals are names and are not changed."""
    words = _WORD.findall(query.lower() if query.isupper() else query)
    return [word if len(word) > 1 and word.isupper() else word.lower().replace("\u2019", "'") for word in words]


def _find_telling(query: str) -> list[str]:
    """Return the words of a question that carry its topic."""
    asked = parse_query(query).terms
    pieces = dict.fromkeys(piece.strip(".,;:!?()\"'") for piece in query.split())
    return [
        piece
        for piece in pieces
        if fold(piece) not in STOP_WORDS["en"]
        and any(term in asked and term not in stem_words(SCAFFOLD_WORDS) for term in analyse(piece).terms)
    ]
