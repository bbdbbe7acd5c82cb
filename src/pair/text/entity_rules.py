"""Find entities and edges by rules: names, acronyms, codes, dates, numbers, quoted titles.

Invariants
    The same chunks give the same graph. A canonical name depends on the name alone, so all shards agree on it.
    The time is linear in the length of the text, and a chunk has a bounded number of entities and edges.
"""

import bisect
import functools
import itertools
import math
import posixpath
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import unquote, urljoin, urlsplit

from pair.text.characters import CAPITAL, ENGLISH, UNTELLING
from pair.values import GraphRows

NAME = "text-1"
"""The name of these rules. It changes when the same text would get another graph."""
TOGETHER = "together"
"""The kind of an edge between entities of one chunk."""
ALIAS = "alias"
"""The kind of an edge between an acronym and its long form."""

MOST_ENTITIES = 16
"""Maximum number of entities of a chunk. A paragraph names fewer, and a list of names tells little about each."""
MOST_EDGES = 3
"""Maximum number of edges of a chunk, between its strongest entities. Mentions show the others."""
MOST_TITLE_WORDS = 8
"""Maximum length of a title that is an entity. A longer title is a sentence."""
_STRONGEST = 3
_MOST_NAME_WORDS = 8
_MOST_NAME_CHARACTERS = 80
_MOST_CHUNK_CHARACTERS = 20_000

_NAME_WEIGHT = 1.0
_CODE_WEIGHT = 1.0
_QUOTED_WEIGHT = 1.0
_WORD_WEIGHT = 0.8
_DATE_WEIGHT = 0.5
_PART_WEIGHT = 0.4
_UNSURE_WEIGHT = 0.3
"""The weight of a word that may be capitalised only because it begins a sentence."""
_NUMBER_WEIGHT = 0.3
TITLE_WEIGHT = 2.0
"""The weight that the title of a document adds to its mention in each chunk."""

_LETTER = r"[^\W\u2e80-\U0003ffff]"
"""A letter of a script that separates words by spaces."""
# The capital comes before the look-behind, so that the search jumps from capital to capital.
_FIRST = rf"[{CAPITAL}](?<!{_LETTER}.)(?<![.-].)"
_REST = rf"(?:{_LETTER}|-(?={_LETTER}))*+(?:['\u2019][{CAPITAL}]{_LETTER}*+)?"
_SHORTENED = rf"(?:\.[{CAPITAL}])*+\.|(?:r|rs|s|t|rof|en|ov|ol)\.(?= [{CAPITAL}])"
_PART = rf"(?:{_SHORTENED}|{_REST})"
_JOINT = r"(?:(?:of|the|de|la|le|du|des|del|di|da|van|von|der|den|el|al|bin|&) ){0,2}"
_BETWEEN_PARTS = re.compile(r" of (?:the )?")
_JOINED = re.compile(r" (?:of|the|de) |\d$")
"""Names whose last word alone means something else."""
_CODE = re.compile(
    r"--?[A-Za-z][\w-]+"  # --no-kb
    r"|(?:\.{0,2}/)?\w[\w.@-]*(?:/[\w.@-]+)+"  # src/main.c
    r"|[A-Za-z_]\w*(?:(?:::|\.)[A-Za-z_]\w+)+(?:\(\))?"  # std::vector
    r"|[A-Za-z]+-?\d[\w.-]*"  # E0432
    r"|[A-Za-z]\w*_\w+|_\w+"  # foo_bar
    r"|[A-Za-z][a-z]+[A-Z]\w*",  # camelCase
    re.ASCII,
)
_NUMBER = re.compile(r"\d[\d.,]*\d", re.ASCII)
_MONTH_LIST = """
january february march april may june july august september october november december
januar februar märz april mai juni juli august september oktober november dezember
"""
_MONTHS = dict(zip(_MONTH_LIST.split(), [*range(1, 13)] * 2, strict=True))
_MONTH_NAMES = "|".join(sorted(map(str.title, _MONTHS)))
_MONTH = re.compile(rf"(?:{_MONTH_NAMES}),? \d")
_DATE = re.compile(
    rf"(?:(?<!\w)(\d{{1,2}})(?:st|nd|rd|th|\.)? )?({_MONTH_NAMES})(?: (\d{{1,2}})(?:st|nd|rd|th)?)?,? (\d{{4}})(?!\w)"
)
_QUOTED = re.compile(
    r"(?<!\w)[\"\u201c\u201e\u00ab]([^\"\u201c\u201d\u201e\u00bb\n]{2,60})[\"\u201d\u201c\u00bb]"
    r"|[\u300a\u300c\u300e]([^\u300b\u300d\u300f\n]{2,60})[\u300b\u300d\u300f]|``([^`'\n]{2,60})''"
)
_QUOTES = re.compile(r"[\"\u201c\u201e\u00ab\u300a\u300c\u300e]|``")
_ACRONYM = re.compile(rf"\(([{CAPITAL}][{CAPITAL}\d]{{1,9}})s?\)")
_LONG_FORM_WORD = re.compile(r"[^\W\d_]+")
_SKIPPED_INITIALS = frozenset({"of", "and", "the", "for", "in", "on", "de", "la", "der", "und", "für"})

_BRACKETS = re.compile(r"\s*[(\[][^)\]]*[)\]]")
_MARKS = re.compile("[\u0300-\u036f]")
_DOTTED = re.compile(r"\b([^\W\d_])\.")
_POSSESSIVE = re.compile(r"['\u2019]s?\b(?!\w)")
_OUTSIDE = " \t\r\n.,;:!?'\"\u2018\u2019\u201c\u201d\u201e\u00ab\u00bb()[]{}*`"
_OPENING = re.compile(r"^(?:(?:the|a|an|der|die|das|les?|la|el|los|mr|mrs|ms|dr|prof)\.? )+(?=\S)")
_SENTENCE_ENDS = frozenset(".!?:\u2026\n\u3002")


@functools.cache
def _name_pattern() -> re.Pattern[str]:
    """Compile the pattern when it is first needed: that takes as long as a whole search."""
    return re.compile(rf"{_FIRST}{_PART}(?: {_JOINT}[{CAPITAL}]{_PART})*(?: \d++(?:\.\d++)*(?!\w))?")


@dataclass(frozen=True, slots=True)
class DocumentText:
    """The input for the graph of a document."""

    title: str
    chunks: Sequence[str]
    id: str = ""
    url: str = ""


class Grapher(Protocol):
    """A maker of the graphs of documents that come without one."""

    @property
    def name(self) -> str:
        """A name that changes when the same documents would get other graphs."""

    def graphs_of(self, documents: Sequence[DocumentText]) -> list[GraphRows]: ...


class TextGrapher:
    """A grapher that uses these rules."""

    name = NAME

    def graphs_of(self, documents: Sequence[DocumentText]) -> list[GraphRows]:
        return [build_graph(document.title, document.chunks) for document in documents]


# ── names ──────────────────────────────────────────────────────────────────────────────────────────


@functools.lru_cache(maxsize=1 << 16)
def canonical_name(name: str) -> str:
    """Return a name without case, accents, articles, possessives, dots of initials and common plural endings."""
    if not name.isascii():
        name = _MARKS.sub("", unicodedata.normalize("NFKD", name))
        name = unicodedata.normalize("NFKC", name).replace("\u2019", "'")
    if "'" in name:
        name = _POSSESSIVE.sub("", name)
    words = name.strip(_OUTSIDE).split()
    if not words:
        return ""
    if words[-1].endswith("s") and words[-1][:-1].isupper():
        words[-1] = words[-1][:-1]  # GPUs
    words = " ".join(words).casefold().split(" ")
    words[-1] = _singular(words[-1])
    name = _OPENING.sub("", " ".join(words), count=1)
    return (_DOTTED.sub(r"\1", name) if "." in name else name)[:_MOST_NAME_CHARACTERS].strip()


def _singular(word: str) -> str:
    """Return a word without a plural ending. The result is a key and need not be a word."""
    if len(word) < 4 or not word.endswith("s") or word.endswith(("ss", "us", "is", "as", "os")):
        return word
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    return word[:-2] if word.endswith(("ches", "shes", "xes", "sses", "zes")) else word[:-1]


@functools.lru_cache(maxsize=1 << 10)
def title_entity(title: str) -> str:
    """Return the entity that a document with this title is about; "" for none or for a sentence."""
    plain = _BRACKETS.sub("", title) if "(" in title or "[" in title else title
    if len(plain.split()) > MOST_TITLE_WORDS or len(plain) > _MOST_NAME_CHARACTERS:
        return ""
    return canonical_name(plain)


# ── one document ───────────────────────────────────────────────────────────────────────────────────


def build_graph(title: str, chunks: Sequence[str]) -> GraphRows:
    """Return the mentions and edges of one document. Its title is an entity of each of its chunks."""
    about = title_entity(title)
    reading = _TextScan()
    named_in_title = reading.weights_of(title) if title and not about else {}
    mentions: list[tuple[str, float, int]] = []
    edges: list[tuple[str, str, str, float, int]] = []
    for number, text in enumerate(chunks):
        weights = reading.weights_of(text)
        for name, weight in named_in_title.items():
            weights[name] = weights.get(name, 0.0) + weight
        if about:
            weights[about] = weights.get(about, 0.0) + TITLE_WEIGHT
        best = sorted(weights.items(), key=lambda item: (-item[1], item[0]))[:MOST_ENTITIES]
        mentions += [(name, round(weight, 3), number) for name, weight in best]
        edges += [(source, target, kind, weight, number) for source, target, kind, weight in reading.edges(best)]
    return GraphRows(tuple(mentions), tuple(edges))


def find_question_entities(question: str) -> tuple[str, ...]:
    """Return the canonical names in a question, each once."""
    return tuple(_TextScan().weights_of(question))


class _TextScan:
    """The state of reading one document: a short form refers to the full name introduced before it."""

    def __init__(self) -> None:
        self._by_last_word: dict[str, str] = {}
        self._aliases: dict[str, str] = {}

    def weights_of(self, text: str) -> dict[str, float]:
        """Return the weight of each entity in a text. It grows with the logarithm of the number of mentions."""
        text = text[:_MOST_CHUNK_CHARACTERS]
        if "(" in text:
            self._learn_acronyms(text)
        counts: dict[str, int] = {}
        strongest: dict[str, float] = {}
        for occurrence, weight in _find_occurrences(text):
            name = self._by_last_word.get(occurrence, occurrence)
            if " " in name and name not in counts and not _JOINED.search(name):
                self._by_last_word.setdefault(name.rpartition(" ")[2], name)
            counts[name] = counts.get(name, 0) + 1
            if strongest.get(name, 0.0) < weight:
                strongest[name] = weight
        for short in self._aliases.keys() & counts.keys():
            other = self._aliases[short]
            counts[other] = max(counts.get(other, 0), counts[short])
            strongest[other] = max(strongest.get(other, 0.0), strongest[short])
        strongest.pop("", None)
        return {name: weight * (1 + math.log2(counts[name])) for name, weight in strongest.items()}

    def edges(self, best: Sequence[tuple[str, float]]) -> Iterator[tuple[str, str, str, float]]:
        """Yield edges between the strongest entities, heavier if both are strong and the chunk names few others."""
        for (first, one), (second, two) in itertools.combinations(best[:_STRONGEST], 2):
            yield first, second, TOGETHER, round(math.sqrt(one * two / len(best)), 3)
        if self._aliases:
            present = {name for name, _ in best}
            for short in sorted(self._aliases.keys() & present):
                if self._aliases[short] in present and len(short) < len(self._aliases[short]):
                    yield short, self._aliases[short], ALIAS, 1.0

    def _learn_acronyms(self, text: str) -> None:
        """Learn acronyms from text such as `World Health Organization (WHO)`."""
        for match in _ACRONYM.finditer(text):
            before = text[max(0, match.start() - 120) : match.start()]
            long_form = _long_form(before, match[1])
            if long_form:
                short = canonical_name(match[1])
                self._aliases[short], self._aliases[long_form] = long_form, short


def _long_form(before: str, acronym: str) -> str:
    """Return the words before an acronym whose initials form it; "" if there are none."""
    letters = [letter for letter in acronym.casefold() if letter.isalpha()]
    words = list(_LONG_FORM_WORD.finditer(before))
    while words and letters:
        word = words.pop()
        initial = word[0][0].casefold()
        if initial == letters[-1]:
            letters.pop()
        elif word[0].casefold() not in _SKIPPED_INITIALS:
            return ""
    return canonical_name(before[word.start() :]) if not letters and len(acronym) > 1 else ""


# ── one text ───────────────────────────────────────────────────────────────────────────────────────


def _find_occurrences(text: str) -> list[tuple[str, float]]:
    occurrences: list[tuple[str, float]] = []
    if not text.isupper():  # In a text of capitals, they do not mark names.
        for name in _name_pattern().finditer(text):
            occurrences += _in_name(name[0], _is_beginning(text, name.start()))
    # A quick check skips plain words, which are most of them.
    for word in text.split():
        if not (word.isalpha() and (word.islower() or word.istitle())):
            occurrences += _in_word(word)
    if _MONTH.search(text):
        occurrences += map(_date, _DATE.finditer(text))
    if _QUOTES.search(text):
        occurrences += map(_in_quotes, _QUOTED.finditer(text))
    return occurrences


@functools.lru_cache(maxsize=1 << 16)
def _in_word(word: str) -> tuple[tuple[str, float], ...]:
    """Return the code or number in a word, with its weight."""
    word = word.strip(_OUTSIDE)
    if word.isalpha() and (word.islower() or word.istitle() or word.isupper()):
        return ()
    if _NUMBER.fullmatch(word):
        number = word.replace(",", "")
        return ((number, _NUMBER_WEIGHT),) if len(number) > 2 else ()
    if 2 < len(word) <= _MOST_NAME_CHARACTERS and _CODE.fullmatch(word):
        return ((word.casefold(), _CODE_WEIGHT),)
    return ()


def _in_quotes(match: re.Match[str]) -> tuple[str, float]:
    quoted = match[1] or match[2] or match[3]
    name = canonical_name(quoted) if quoted.count(" ") < _MOST_NAME_WORDS else ""
    return name, _QUOTED_WEIGHT


def _date(match: re.Match[str]) -> tuple[str, float]:
    day = match[1] or match[3]
    month = f"{int(match[4])}-{_MONTHS[match[2].casefold()]:02}"
    return f"{month}-{int(day):02}" if day else month, _DATE_WEIGHT


def _is_beginning(text: str, start: int) -> bool:
    """Return whether a sentence, a line or a quotation begins here."""
    before = text[max(0, start - 3) : start].rstrip(" \t\"'\u201c\u201e\u2018(*_#-")
    return not before or before[-1] in _SENTENCE_ENDS


@functools.lru_cache(maxsize=1 << 16)
def _in_name(run: str, is_beginning: bool) -> tuple[tuple[str, float], ...]:
    words = run.split(" ")
    while words and (not words[0].isupper() or len(words[0]) == 1) and words[0].casefold() in ENGLISH:
        words.pop(0)
        is_beginning = False
    if not words or len(words) > _MOST_NAME_WORDS or words[0].isdigit() or _is_common(words):
        return ()
    if len(words) == 1:
        word = canonical_name(words[0])
        if len(word) < 2 or word.isdigit():
            return ()
        is_unsure = is_beginning and not words[0].isupper()
        return ((word, _UNSURE_WEIGHT if is_unsure else _WORD_WEIGHT),)
    whole = " ".join(words)
    parts = _BETWEEN_PARTS.split(whole)
    if len(parts) > 1:
        return (canonical_name(whole), _NAME_WEIGHT), (canonical_name(parts[-1]), _PART_WEIGHT)
    return ((canonical_name(whole), _NAME_WEIGHT),)


def _is_common(words: Sequence[str]) -> bool:
    """Return whether this is a day, a month, or a stop word at the beginning of a sentence."""
    first = words[0].casefold()
    return (
        (first in UNTELLING or first in _MONTHS) and not words[0].isupper() and (len(words) == 1 or words[1].isdigit())
    )


# ── links between documents ────────────────────────────────────────────────────────────────────────

MOST_LINKS = 16
"""Maximum number of links of a chunk. A longer list is a table of contents, which tells little about each target."""
LINK_WEIGHT = 1.0
"""The weight of a link as a mention of its target: that of a full name."""
_MOST_CHARACTERS = 500
"""Maximum length of a target; longer ones are not links to documents."""

_MAYBE = re.compile(r"\]\(|\]\[|\[\[|\]:")
_CODE_SPAN = re.compile(
    r"^ {0,3}(`{3,}+|~{3,}+)[^\n]*+(?:\n(?! {0,3}\1)[^\n]*+)*+(?:\n[^\n]*+)?+|(?<!`)(`++)(?!`)[^`\n]*+\2(?!`)",
    re.MULTILINE,
)
_LINK = re.compile(
    r"\[\[(?P<wiki>[^\[\]|\n]{1,200})(?:\|[^\[\]\n]{0,200})?\]\]"
    r"|(?P<image>!?)\[(?P<text>[^\[\]\n]{0,500})\]"
    r"(?:\([ \t]*(?:<(?P<marked>[^<>\n]{1,500})>|(?P<plain>[^()<>\n]{1,500}(?:\([^()\n]{0,200}\)[^()\n]{0,200})?))"
    r"[^()\n]{0,200}\)|\[(?P<reference>[^\[\]\n]{0,500})\])?"
)
_DEFINITION = re.compile(r"^ {0,3}\[([^\[\]\n]{1,500})\]:[ \t]*(?:<([^<>\n]{1,500})>|(\S{1,500}))", re.MULTILINE)
_TITLE = re.compile(r"""[ \t]+(?:"[^"\n]*"|'[^'\n]*')[ \t]*$""")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)
_WEB = re.compile(r"https?://", re.IGNORECASE)
_ENDING = re.compile(r"\.(?:md|markdown|mdx|html?|rst|txt)$")
_FOLDER_PAGE = re.compile(r"(?<=/)(?:index|readme)$")
"""The page that a link to a folder leads to."""


def list_subjects(document_id: str, title: str, url: str) -> list[str]:
    """Return the entities that lead to a document: the subject of its title, and its names in links."""
    names = [title_entity(title), _wiki_name(title)]
    names += [_web_name(address) for address in (document_id, url) if _WEB.match(address)]
    if not _WEB.match(document_id):
        names += [_path_name(document_id), _wiki_name(document_id), _wiki_name(posixpath.basename(document_id))]
    return [name for name in dict.fromkeys(names) if name]


def find_links(document_id: str, title: str, url: str, chunks: Sequence[str]) -> list[list[str]]:
    """Return the names of the documents that each chunk links to, in order, each once. Code has no links."""
    links: list[list[str]] = [[] for _ in chunks]
    text = "\n".join(chunks)
    if not _MAYBE.search(text):
        return links
    text = _CODE_SPAN.sub(lambda code: " " * len(code[0]), text)
    ends = list(itertools.accumulate(len(chunk) + 1 for chunk in chunks))
    own = frozenset(list_subjects(document_id, title, url))
    for place, target, is_wiki in _find_targets(text):
        found = links[bisect.bisect_right(ends, place)]
        for name in [_wiki_name(target)] if is_wiki else _target_names(target, document_id, url):
            if name and name not in own and name not in found and len(found) < MOST_LINKS:
                found.append(name)
    return links


def _find_targets(text: str) -> Iterator[tuple[int, str, bool]]:
    """Yield the place and the target of each link, and whether it is a wiki link."""
    defined: dict[str, str] = {}
    for definition in _DEFINITION.finditer(text):
        defined.setdefault(" ".join(definition[1].casefold().split()), definition[2] or definition[3])
    for link in _LINK.finditer(text):
        if link["wiki"]:
            yield link.start(), link["wiki"], True
        elif link["marked"] or link["plain"]:
            if not link["image"]:
                yield link.start(), link["marked"] or _TITLE.sub("", link["plain"]), False
        elif defined:
            target = defined.get(" ".join((link["reference"] or link["text"]).casefold().split()))
            if target and not link["image"]:
                yield link.start(), target, False


def _target_names(target: str, document_id: str, url: str) -> list[str]:
    """Return the names of a target that is relative to the path of the document and to its address."""
    target = target.strip()
    if _WEB.match(target):
        return [_web_name(target)]
    if not target or target.startswith("#") or _SCHEME.match(target):
        return []
    names = [_web_name(urljoin(base, target)) for base in (document_id, url) if _WEB.match(base)]
    if not _WEB.match(document_id):
        path = unquote(re.split(r"[?#]", target, maxsplit=1)[0])
        names.append(_path_name(posixpath.join(posixpath.dirname(f"/{document_id}"), path)))
    return names


def _path_name(path: str) -> str:
    """Return the name of a path from the root of the KB."""
    plain = posixpath.normpath(f"/{path.strip('/')}").casefold()
    return _FOLDER_PAGE.sub("", _ENDING.sub("", plain)).rstrip("/") or "/" if len(plain) <= _MOST_CHARACTERS else ""


def _web_name(address: str) -> str:
    try:
        parts = urlsplit(address)
    except ValueError:
        return ""
    query = f"?{parts.query}" if parts.query else ""
    return f"https://{parts.netloc}{_path_name(unquote(parts.path))}{query}".casefold()


def _wiki_name(target: str) -> str:
    """Return the name of a document in wiki links, which may use spaces, `-` or `_` between words."""
    plain = _ENDING.sub("", target.partition("#")[0].strip().casefold())
    words = re.sub(r"[\s_-]+", " ", plain).strip()
    return f"[[{words}]]" if words and len(words) <= _MOST_CHARACTERS else ""
