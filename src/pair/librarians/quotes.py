"""Choose the block to quote: the one that answers a question best. No model is used.

The score of a block sums its features: content words in it and around it, nearness in meaning, the form of an answer,
and the score of its passage.
"""

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pair.librarians.questions import STRICT, AskedQuestion, mend_slips, understand
from pair.librarians.relevance import TextEmbedder
from pair.text.evidence import QuotableBlock, TermReader
from pair.text.languages import find_language
from pair.values import Hit

QUOTABLE = 13
"""Maximum number of passages to quote from."""
_RANK_COST = 0.01
"""The penalty for each rank when passages are chosen, as a share of the question's words."""
MOST_BLOCKS = 80
"""Maximum number of blocks of a passage."""
_FITTED = 64
"""Maximum number of blocks whose form is checked: those that hold most of the question."""
_MEASURED = 24
"""Maximum number of blocks to embed, because an embedder may be slow."""
_MOST_PASSAGES, _BLOCKS_OF_PASSAGE = 3, 2
"""Maximum number of passages without a claim, and of the blocks of each."""
_BEGINNING = 50
_NAMING = frozenset({"name", "command"})
"""Kinds of questions whose answer may be the heading above a block."""
_NEARLY_AS_GOOD = 2.5
"""Maximum difference of the score of a further block that is quoted with the best one."""
_MOST_BLOCKS_QUOTED, _MOST_PASSAGES_QUOTED, _MOST_QUOTED = 4, 2, 1000
"""Maximum number of blocks, of their passages, and of the characters of the blocks, in one answer."""

WEIGHTS: Mapping[str, float] = {
    "text": 3.14,
    "quote": 2.32,
    "around": 1.22,
    "near": 0.6,
    "rare": 2.18,
    "words": 1.92,
    "meaning": 4.14,
    "form": 1.55,
    "strict": 2.67,
    "steps": 1.58,
    "heading": 1.78,
    "title": 1.18,
    "name": 2.9,
    "keyword": 1.22,
    "known": 1.85,
    "standing": 0.76,
    "row": 0.66,
    "code": -0.33,
    "thin": -0.05,
}
"""The weight of each feature of a block in the log-odds that it is right; `benchmarks/answers.py --fit` fits them.

Features are from 0 to 1. Shares of the content words: those that the statement and its term hold (text), the quoted
text holds (quote), only its headings and title hold (around), only the blocks beside it hold (near), its passage holds
(known); around, where rare words count much more (rare). The number of content words that the quoted text holds
(words). Nearness in meaning. The form of an answer, counted again for questions that need that form (strict). Code, in
the answer to a how-to (steps). The likeness to the question of its heading, of the title and of the id of its document
(name). The score of its passage by words (keyword), and its score as a share of the best one (standing). Whether it is
a row of a table, is code, or only points to other text (thin).
"""
_CLEAR_LEAD = 3.0
"""The score difference between the best block and the blocks of other passages at which the lead is 1."""


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
        """Return the best block, with further ones that are nearly as good."""
        return _gather(self.quotes)

    def choose_passages(self) -> list[Quote]:
        """Return the best block of each of the best passages, with a second one that is nearly as good."""
        blocks: dict[int, list[Quote]] = {}
        for quote in self.quotes:
            blocks.setdefault(quote.passage, []).append(quote)
        shown = map(_gather, list(blocks.values())[:_MOST_PASSAGES])
        return [replace(own[0], text="\n\n".join(each.text for each in own[:_BLOCKS_OF_PASSAGE])) for own in shown]

    def describe_best(self) -> dict[str, float]:
        """Return the features for the confidence. Requires at least one block."""
        best = self.quotes[0]
        hit, question = self.passages[best.passage], self.questions[best.passage]
        others = (quote.worth for quote in self.quotes if quote.passage != best.passage)
        lead = (best.worth - max(others, default=0.0)) / _CLEAR_LEAD
        likely = [math.exp(quote.worth - best.worth) for quote in self.quotes]
        words = question.count_words(self.terms[best.passage])
        if question.kind == "definition":  # It has few words, for any question.
            words = max(words, best.features["form"])
        return {
            "coverage": best.features["quote"],
            "known": best.features["known"],
            "meaning": best.features["meaning"],
            "form": best.features["form"],
            "share": sum(likely[:_MOST_BLOCKS_QUOTED]) / sum(likely),
            "lead": max(0.0, min(lead, 1.0)),
            "agreement": min(best.features["keyword"], read_score(hit, "vector")),
            "words": words,
            "brief": float(question.kind != "how-to"),
        }


def read_score(hit: Hit, name: str) -> float:
    """Return one part of the score of a hit; 0 if it has none."""
    score = (hit.explanation or {}).get(name, 0.0)
    return float(score) if isinstance(score, int | float) else 0.0


def _gather(quotes: Sequence[Quote]) -> list[Quote]:
    """Return the first block, with those that are nearly as good and add to it."""
    chosen = [quotes[0]]
    for quote in quotes[1:]:
        more = [*chosen, quote]
        if len(more) > _MOST_BLOCKS_QUOTED or quote.worth < quotes[0].worth - _NEARLY_AS_GOOD:
            break
        is_short = sum(len(each.text) for each in more) <= _MOST_QUOTED
        has_room = len({each.passage for each in more}) <= _MOST_PASSAGES_QUOTED
        if is_short and has_room and all(_adds(quote, each) for each in chosen):
            chosen = more
    return chosen


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
    weighers = {language: _Weigher(question) for language, question in asked.items()}
    covering = _weigh_blocks(passages, texts, questions, known, weighers)
    covering = sorted(covering, key=lambda pair: -pair[0].worth)[:_FITTED]
    quotes = [weighers[questions[quote.passage].language].add_form(quote, block) for quote, block in covering]
    measured = sorted(quotes, key=lambda quote: -quote.worth)[:_MEASURED]
    meanings = embedder.compare(query, [quote.context for quote in measured])
    ranked = [
        replace(quote, features={**quote.features, "meaning": max(meaning, 0.0)})
        for quote, meaning in zip(measured, meanings, strict=True)
    ]
    best_first = sorted(ranked, key=lambda quote: -quote.worth)
    return QuoteRanking(questions, best_first, passages, terms)


def _weigh_blocks(
    passages: Sequence[Hit],
    texts: Sequence[tuple[str, str, TermReader]],
    questions: Sequence[AskedQuestion],
    known: Sequence[float],
    weighers: Mapping[str, "_Weigher"],
) -> list[tuple[Quote, QuotableBlock]]:
    """Return the blocks of the passages to quote from, each with its features but those of its form and meaning.

    `texts`: the title, text and reader of each passage. `known`: the share of the question's words that each holds.
    """
    steps = any(question.kind in {"how-to", "command"} for question in questions)
    asked = [(question.terms, question.kind in _NAMING) for question in questions]
    read = [
        (
            index,
            hit,
            reader.find(hit.title),
            reader.find(hit.document_id),
            reader.read_quotable(title, text, terms, MOST_BLOCKS, steps=steps, names=may_be_name),
        )
        for index in _choose_quotable(known)
        for hit, (title, text, reader), (terms, may_be_name) in [(passages[index], texts[index], asked[index])]
    ]
    most_probable = max((hit.score for hit in passages), default=0.0) or 1.0
    weighed: list[tuple[Quote, QuotableBlock]] = []
    for index, hit, title_terms, id_terms, blocks in read:
        shared = {
            "title": questions[index].likeness(title_terms),
            "name": questions[index].likeness(id_terms),
            "keyword": read_score(hit, "keyword"),
            "known": known[index],
            "standing": hit.score / most_probable,
        }
        weighed += weighers[questions[index].language].weigh_all(blocks, index, hit, shared)
    return weighed


def _choose_quotable(known: Sequence[float]) -> list[int]:
    """Return the indexes of the passages to quote from, ascending: those with most words of the question."""
    values = [share - _RANK_COST * rank for rank, share in enumerate(known)]
    return sorted(sorted(range(len(values)), key=lambda index: -values[index])[:QUOTABLE])


class _Weigher:
    """A scorer of blocks for one question. It caches scores by set of terms, because most blocks share terms."""

    def __init__(self, question: AskedQuestion) -> None:
        self._question = question
        self._cover = functools.cache(question.coverage)
        self._count_known = functools.cache(question.count_known)
        self._count_words = functools.cache(question.count_words)
        self._liken = functools.cache(question.likeness)

    def weigh_all(
        self, blocks: Sequence[QuotableBlock], index: int, hit: Hit, shared: Mapping[str, float]
    ) -> Iterator[tuple[Quote, QuotableBlock]]:
        """Yield the blocks of a passage, with the features that come from their words and those of the passage."""
        for before, block, behind in zip([None, *blocks], blocks, [*blocks[1:], None], strict=False):
            evidence, shown = block.evidence, block.shown_terms
            beside = [each for each in (before, behind) if each and each.evidence.headings == evidence.headings]
            covered, known = self._cover(shown), self._count_known(shown)
            features = {
                **shared,
                "text": self._cover(block.statement_terms),
                "quote": covered,
                "around": self._cover(shown | block.around_terms) - covered,
                "near": self._cover(shown.union(*(each.shown_terms for each in beside))) - covered,
                "rare": self._count_known(shown | block.around_terms) - known,
                "words": self._count_words(shown),
                "heading": self._liken(block.heading_terms),
                "row": float(evidence.kind == "row"),
                "code": float(evidence.kind == "code"),
            }
            name = evidence.headings[-1] if evidence.headings else ""
            context = f"{hit.title or hit.document_id} / {name} / {block.shown}"
            yield Quote(index, block.shown, features, context, evidence.quote[:_BEGINNING]), block

    def add_form(self, quote: Quote, block: QuotableBlock) -> Quote:
        """Return a block with the features that come from its form."""
        kind, fit = self._question.kind, self._question.fit(block)
        strict = 0.0
        if kind in STRICT:
            strict = fit if kind == "definition" else float(fit > 0)
        steps = float(kind == "how-to" and "```" in block.shown)
        added = {"form": fit, "strict": strict, "steps": steps, "thin": float(block.is_thin)}
        return replace(quote, features={**quote.features, **added})
