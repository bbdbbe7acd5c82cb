"""Small talk, and follow-up questions that refer to an earlier question."""

import re
from collections.abc import Sequence

from pair.librarians.questions import SCAFFOLD_WORDS
from pair.text.languages import STOP_WORDS
from pair.text.tokenizer import analyse, fold, parse_query, stem_words, terms

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
