"""Choose what to quote: the block of the found passages that answers a question best. No model is asked.

Each block is weighed by what speaks for it: the telling words that it holds, those of its headings and title, its
nearness in meaning, whether it has the form of an answer to such a question, and the evidence for its passage.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from pair.librarians.questions import AskedQuestion, classify, mend_slips, understand
from pair.librarians.relevance import TextEmbedder
from pair.text.evidence import QuotableBlock, read_quotable
from pair.text.languages import find_language
from pair.values import Hit

QUOTABLE = 8
"""Passages that are quoted from."""
MOST_BLOCKS = 80
"""Blocks of a passage that may be quoted."""
_MEASURED = 24
"""Blocks whose meaning is looked at: a model that makes vectors may be slow."""
_MOST_PASSAGES = 3
_NEARLY_AS_GOOD = 0.6
"""How much less a second block may be worth to be quoted beside the first."""

WEIGHTS: Mapping[str, float] = {
    "text": 3.0,
    "quote": 2.5,
    "around": 3.0,
    "meaning": 4.0,
    "form": 3.0,
    "heading": 2.0,
    "answers": 2.3,
    "keyword": 2.0,
    "row": 1.2,
    "thin": -1.0,
}
"""What each feature of a block is worth. Each is from 0 to 1: the share of the telling words that the statement and its
term hold (text), the quoted text holds (quote), and only its headings and title hold (around); nearness in meaning; the
form of an answer; the likeness of its heading to the question, and the same for what opens the text under it (answers);
the score of its passage by words (keyword); whether it is a row of a table, or only points to what says more (thin).
"""
_CLEAR_LEAD = 3.0
"""By how much more the best block is worth than any of another document, where the lead is as clear as can be."""
_MANY_WORDS = 6


@dataclass(frozen=True, slots=True)
class Quote:
    """A block of a passage, and what speaks for it."""

    passage: int
    """The index of its passage."""
    text: str
    """Markdown."""
    features: Mapping[str, float]
    context: str = field(repr=False)
    """The text with its title and heading, whose meaning is measured."""

    @property
    def worth(self) -> float:
        return sum(WEIGHTS[name] * value for name, value in self.features.items())


@dataclass(frozen=True, slots=True)
class QuoteRanking:
    """The blocks that may answer a question, best first."""

    questions: Sequence[AskedQuestion]
    """The question in the language of each passage that is quoted from."""
    quotes: list[Quote]
    passages: Sequence[Hit]
    terms: Sequence[frozenset[str]]
    """Of each passage that is quoted from, with its title."""

    def choose_answer(self) -> list[Quote]:
        """Return the best block; with another one that is nearly as good, where the question asks for two things."""
        best, *others = self.quotes
        least = best.worth - _NEARLY_AS_GOOD
        second = next((quote for quote in others if quote.worth >= least and _adds(quote, best)), None)
        return [best] if second is None else [best, second]

    def choose_passages(self) -> list[Quote]:
        """Return the best block of each of the best passages, with another one of it that is nearly as good."""
        blocks: dict[int, list[Quote]] = {}
        for quote in self.quotes:
            best, *others = blocks.setdefault(quote.passage, [quote])
            if not others and quote.worth >= best.worth - _NEARLY_AS_GOOD and _adds(quote, best):
                blocks[quote.passage].append(quote)
        shown = list(blocks.values())[:_MOST_PASSAGES]
        return [replace(best, text="\n\n".join([best.text, *(each.text for each in rest)])) for best, *rest in shown]

    def describe_best(self) -> dict[str, float]:
        """Return the features that confidence is made of. There is a block."""
        best = self.quotes[0]
        hit, question = self.passages[best.passage], self.questions[best.passage]
        others = [quote.worth for quote in self.quotes if self.passages[quote.passage].document_id != hit.document_id]
        lead = (best.worth - max(others, default=0.0)) / _CLEAR_LEAD
        words = min(len(question.words), _MANY_WORDS) / _MANY_WORDS
        if question.kind == "definition":  # it has few words, whatever is asked
            words = max(words, best.features["form"])
        return {
            "coverage": best.features["quote"],
            "around": best.features["around"],
            "known": question.count_known(self.terms[best.passage]),
            "meaning": best.features["meaning"],
            "form": best.features["form"],
            "lead": max(0.0, min(lead, 1.0)),
            "agreement": min(best.features["keyword"], read_score(hit, "vector")),
            "words": words,
        }


def read_score(hit: Hit, name: str) -> float:
    """Return one of the scores that a hit's own is made of; 0 where there is none."""
    score = (hit.explanation or {}).get(name, 0.0)
    return float(score) if isinstance(score, int | float) else 0.0


def _adds(quote: Quote, best: Quote) -> bool:
    """Return whether a block says something that the best one does not."""
    return quote.text not in best.text and best.text not in quote.text


def rank_quotes(
    query: str, passages: Sequence[Hit], weights: Mapping[str, float], embedder: TextEmbedder
) -> QuoteRanking:
    """Rank the blocks of the first passages. `weights`: what each term of the question weighs in the KB."""
    texts = [
        (f"{hit.title} {hit.document_id}", hit.text, find_language(hit.metadata, hit.text))
        for hit in passages[:QUOTABLE]
    ]
    kinds = {classify(query, language) for *_, language in texts}
    read = read_quotable(texts, MOST_BLOCKS, steps=not kinds.isdisjoint({"how-to", "command"}))
    asked = {}
    for language in {passage.language for passage in read}:
        held = frozenset().union(*(passage.terms for passage in read if passage.language == language))
        asked[language] = mend_slips(understand(query, weights, language), held)
    questions = [asked[passage.language] for passage in read]
    likeness: dict[tuple[str, frozenset[str]], float] = {}
    quotes = [
        _weigh(question, block, index, passages[index], likeness)
        for index, (question, passage) in enumerate(zip(questions, read, strict=True))
        for block in passage.blocks
    ]
    measured = sorted(quotes, key=lambda quote: -quote.worth)[:_MEASURED]
    meanings = embedder.compare(query, [quote.context for quote in measured])
    ranked = [
        replace(quote, features={**quote.features, "meaning": max(meaning, 0.0)})
        for quote, meaning in zip(measured, meanings, strict=True)
    ]
    best_first = sorted(ranked, key=lambda quote: -quote.worth)
    return QuoteRanking(questions, best_first, passages, [passage.terms for passage in read])


def _weigh(
    question: AskedQuestion,
    block: QuotableBlock,
    index: int,
    hit: Hit,
    likeness: dict[tuple[str, frozenset[str]], float],
) -> Quote:
    """Return a block with all features but its meaning. `likeness` keeps that of headings."""
    evidence, heading = block.evidence, (question.language, block.heading_terms)
    if heading not in likeness:
        likeness[heading] = question.likeness(block.heading_terms)
    covered = question.coverage(block.shown_terms)
    features = {
        "text": question.coverage(block.statement_terms),
        "quote": covered,
        "around": question.coverage(block.shown_terms | block.around_terms) - covered,
        "form": question.fit(block),
        "heading": likeness[heading],
        "answers": likeness[heading] * evidence.opening,
        "keyword": read_score(hit, "keyword"),
        "row": float(evidence.kind == "row"),
        "thin": float(block.is_thin),
    }
    name = evidence.headings[-1] if evidence.headings else ""
    return Quote(index, block.shown, features, f"{hit.title or hit.document_id} / {name} / {block.shown}")
