"""Choose the block to quote: the one that answers a question best. No model is used.

The score of a block sums its features: content words in it and around it, nearness in meaning, the form of an answer,
and the score of its passage.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from pair.librarians.questions import STRICT, AskedQuestion, mend_slips, understand
from pair.librarians.relevance import TextEmbedder
from pair.text.evidence import QuotableBlock, TermReader
from pair.text.languages import find_language
from pair.values import Hit

QUOTABLE = 10
"""Maximum number of passages to quote from."""
_RANK_COST = 0.01
"""The penalty for each rank when passages are chosen, as a share of the question's words."""
MOST_BLOCKS = 80
"""Maximum number of blocks of a passage."""
_FITTED = 48
"""Maximum number of blocks whose form is checked: those that hold most of the question."""
_MEASURED = 16
"""Maximum number of blocks to embed, because an embedder may be slow."""
_MOST_PASSAGES = 3
_BEGINNING = 50
_NAMING = frozenset({"name", "command"})
"""Kinds of questions whose answer may be the heading above a block."""
_NEARLY_AS_GOOD = 1.0
"""Maximum score difference of a second block that is quoted with the first."""

WEIGHTS: Mapping[str, float] = {
    "text": 3.0,
    "quote": 2.5,
    "around": 3.0,
    "meaning": 4.0,
    "form": 3.0,
    "strict": 3.0,
    "heading": 2.0,
    "answers": 2.3,
    "keyword": 2.0,
    "vector": 1.0,
    "known": 1.5,
    "row": 1.2,
    "thin": -2.0,
}
"""The weight of each feature of a block. Features are from 0 to 1: the share of the content words that the statement
and its term hold (text), the quoted text holds (quote), and only its headings and title hold (around); nearness in
meaning; the form of an answer, counted again for questions that need that form (strict); the likeness of its heading to
the question, and the same for what opens the text under it (answers); the scores of its passage by words (keyword) and
by meaning (vector); the share of the content words that its passage holds (known); whether it is a row of a table, or
only points to other text (thin).
"""
_CLEAR_LEAD = 3.0
"""The score difference between the best block and the blocks of other documents at which the lead is 1."""
_MANY_WORDS = 6


@dataclass(frozen=True, slots=True)
class Quote:
    """A block of a passage, and its features."""

    passage: int
    """The index of its passage."""
    text: str
    """The block as Markdown."""
    features: Mapping[str, float]
    context: str = field(repr=False)
    """The text with its title and heading, to embed."""
    beginning: str = field(repr=False)
    """How its own statement begins, without the context that it needs."""

    @property
    def worth(self) -> float:
        return sum(WEIGHTS[name] * value for name, value in self.features.items())


@dataclass(frozen=True, slots=True)
class QuoteRanking:
    """The blocks that may answer a question, best first."""

    questions: Sequence[AskedQuestion]
    """The question, analysed in the language of each passage."""
    quotes: list[Quote]
    passages: Sequence[Hit]
    terms: Sequence[frozenset[str]]
    """The terms of each passage with its title."""

    def choose_answer(self) -> list[Quote]:
        """Return the best block, and a second one that is nearly as good if the question asks for two things."""
        best, *others = self.quotes
        least = best.worth - _NEARLY_AS_GOOD
        second = next((quote for quote in others if quote.worth >= least and _adds(quote, best)), None)
        return [best] if second is None else [best, second]

    def choose_passages(self) -> list[Quote]:
        """Return the best block of each of the best passages, and a second one that is nearly as good."""
        blocks: dict[int, list[Quote]] = {}
        for quote in self.quotes:
            best, *others = blocks.setdefault(quote.passage, [quote])
            if not others and quote.worth >= best.worth - _NEARLY_AS_GOOD and _adds(quote, best):
                blocks[quote.passage].append(quote)
        shown = list(blocks.values())[:_MOST_PASSAGES]
        return [replace(best, text="\n\n".join([best.text, *(each.text for each in rest)])) for best, *rest in shown]

    def describe_best(self) -> dict[str, float]:
        """Return the features for the confidence. Requires at least one block."""
        best = self.quotes[0]
        hit, question = self.passages[best.passage], self.questions[best.passage]
        others = [quote.worth for quote in self.quotes if self.passages[quote.passage].document_id != hit.document_id]
        lead = (best.worth - max(others, default=0.0)) / _CLEAR_LEAD
        held = sum(word.share_in(self.terms[best.passage]) for word in question.words)
        words = min(held, _MANY_WORDS) / _MANY_WORDS
        if question.kind == "definition":  # It has few words, for any question.
            words = max(words, best.features["form"])
        return {
            "coverage": best.features["quote"],
            "around": best.features["around"],
            "known": best.features["known"],
            "meaning": best.features["meaning"],
            "form": best.features["form"],
            "answers": best.features["answers"],
            "lead": max(0.0, min(lead, 1.0)),
            "agreement": min(best.features["keyword"], best.features["vector"]),
            "words": words,
            "brief": float(question.kind != "how-to"),
        }


def read_score(hit: Hit, name: str) -> float:
    """Return one part of the score of a hit; 0 if it has none."""
    score = (hit.explanation or {}).get(name, 0.0)
    return float(score) if isinstance(score, int | float) else 0.0


def _adds(quote: Quote, best: Quote) -> bool:
    """Return whether a block adds something to the best one: neither holds the statement of the other."""
    return quote.beginning not in best.text and best.beginning not in quote.text


def rank_quotes(
    query: str, passages: Sequence[Hit], weights: Mapping[str, float], embedder: TextEmbedder
) -> QuoteRanking:
    """Rank the blocks of the passages that hold most of the question.

    `weights`: the weight of each term of the question in the KB.
    """
    readers: dict[str, TermReader] = {}
    languages: dict[str, str] = {}
    texts, terms = [], []
    for hit in passages:
        language = languages.get(hit.document_id) or find_language(hit.metadata, hit.text)
        languages[hit.document_id] = language
        title, reader = f"{hit.title} {hit.document_id}", readers.setdefault(language, TermReader(language))
        texts.append((title, hit.text, reader))
        terms.append(reader.find(title) | reader.find(hit.text))
    asked = {}
    for language in readers:
        held = frozenset().union(
            *(own for own, (*_, reader) in zip(terms, texts, strict=True) if reader.language == language)
        )
        asked[language] = mend_slips(understand(query, weights, language), held)
    questions = [asked[reader.language] for *_, reader in texts]
    known = [question.count_known(held) for question, held in zip(questions, terms, strict=True)]
    steps = any(question.kind in {"how-to", "command"} for question in asked.values())
    terms_of = {language: question.terms for language, question in asked.items()}
    weighers = {language: _Weigher(question) for language, question in asked.items()}
    blocks = [
        (index, block)
        for index in _choose_quotable(known)
        for title, text, reader in [texts[index]]
        for block in reader.read_quotable(
            title, text, terms_of[reader.language], MOST_BLOCKS, steps=steps, names=questions[index].kind in _NAMING
        )
    ]
    covering = sorted(
        (
            weighers[questions[index].language].weigh(block, index, passages[index], known[index])
            for index, block in blocks
        ),
        key=lambda pair: -pair[0].worth,
    )[:_FITTED]
    quotes = [weighers[questions[quote.passage].language].add_form(quote, block) for quote, block in covering]
    measured = sorted(quotes, key=lambda quote: -quote.worth)[:_MEASURED]
    meanings = embedder.compare(query, [quote.context for quote in measured])
    ranked = [
        replace(quote, features={**quote.features, "meaning": max(meaning, 0.0)})
        for quote, meaning in zip(measured, meanings, strict=True)
    ]
    best_first = sorted(ranked, key=lambda quote: -quote.worth)
    return QuoteRanking(questions, best_first, passages, terms)


def _choose_quotable(known: Sequence[float]) -> list[int]:
    """Return the indexes of the passages to quote from, ascending: those with most words of the question."""
    values = [share - _RANK_COST * rank for rank, share in enumerate(known)]
    return sorted(sorted(range(len(values)), key=lambda index: -values[index])[:QUOTABLE])


class _Weigher:
    """A scorer of blocks for one question. It caches scores by set of terms, because most blocks share terms."""

    def __init__(self, question: AskedQuestion) -> None:
        self._question = question
        self._cover = functools.cache(question.coverage)
        self._liken = functools.cache(question.likeness)

    def weigh(self, block: QuotableBlock, index: int, hit: Hit, known: float) -> tuple[Quote, QuotableBlock]:
        """Return a block with the features that come from its words and its passage."""
        evidence, shown = block.evidence, block.shown_terms
        covered, heading = self._cover(shown), self._liken(block.heading_terms)
        features = {
            "text": self._cover(block.statement_terms),
            "quote": covered,
            "around": self._cover(shown | block.around_terms) - covered,
            "heading": heading,
            "answers": heading * evidence.opening,
            "keyword": read_score(hit, "keyword"),
            "vector": read_score(hit, "vector"),
            "known": known,
            "row": float(evidence.kind == "row"),
        }
        name = evidence.headings[-1] if evidence.headings else ""
        context = f"{hit.title or hit.document_id} / {name} / {block.shown}"
        return Quote(index, block.shown, features, context, evidence.quote[:_BEGINNING]), block

    def add_form(self, quote: Quote, block: QuotableBlock) -> Quote:
        """Return a block with the features that come from its form."""
        kind, fit = self._question.kind, self._question.fit(block)
        strict = 0.0
        if kind in STRICT:
            strict = fit if kind == "definition" else float(fit > 0)
        return replace(quote, features={**quote.features, "form": fit, "strict": strict, "thin": float(block.is_thin)})
