"""Fit the probability of relevance on judged sets, and check it on sets that are left out of the fit.

    python benchmarks/scores.py FOLDER [--embedder NAME] [--set NAME ...] [--queries N]

FOLDER has judged sets, each a folder in the format of `pair eval`. Each KB is asked its own questions, questions of the
other sets (foreign: nothing is relevant) and gibberish. Own questions have the same total weight as the others, and all
sets have equal weights. Sets with the same first part of the name (xquad_en, xquad_de) have the same documents: they
are not foreign to each other, and all are left out when one of them is checked.

It prints the coefficients of `pair/engine/query/ranking.py` as fitted on all sets; for each set left out, how often
hits with a score in a given range are relevant; and how many questions of each kind have any result.
"""

import argparse
import itertools
import random
import string
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pair.engine.query.ranking import BY_MEANING, BY_WORDS, BY_WORDS_AND_MEANING, Coefficients
from pair.evaluation.measure import JudgedSet, is_judged_set, read_judged_set
from pair.kb.kb import KnowledgeBase
from pair.kb.open import temporary_kb
from pair.settings import Settings
from pair.values import SearchOptions

HITS = 10
FOREIGN = 50
"""Number of questions of each other set."""
GIBBERISH = 100
LIMITS = (0.0, 0.05, 0.2, 0.4, 0.6, 0.8, 1.0)
FITS: dict[str, tuple[str, ...]] = {
    "hybrid": ("standing", "coverage", "nearness", "agreement"),
    "keyword": ("standing", "coverage"),
    "vector": ("standing", "nearness"),
}
CURRENT = {"hybrid": BY_WORDS_AND_MEANING, "keyword": BY_WORDS, "vector": BY_MEANING}
NAMES = {"hybrid": "BY_WORDS_AND_MEANING", "keyword": "BY_WORDS", "vector": "BY_MEANING"}


@dataclass(frozen=True)
class Question:
    kind: str
    """The kind: own, foreign or gibberish."""
    text: str
    relevant: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Answer:
    """The hits of one question in one mode, best first."""

    set: str
    mode: str
    kind: str
    parts: np.ndarray
    """The parts of the scores: a row for each hit."""
    is_relevant: np.ndarray
    has_results: bool
    """Whether the search returns hits, or reports no results."""


def family(name: str) -> str:
    return name.split("_", maxsplit=1)[0]


def gibberish(generator: random.Random) -> str:
    """Return a few words of random letters."""
    lengths = [generator.randint(3, 7) for _ in range(generator.randint(1, 4))]
    return " ".join("".join(generator.choices(string.ascii_lowercase, k=length)) for length in lengths)


def questions(judged: JudgedSet, others: Sequence[JudgedSet], most: int) -> list[Question]:
    generator = random.Random(judged.name)
    relevant: dict[str, set[str]] = {}
    for judgement in judged.judgements:
        relevant.setdefault(judgement.query_id, set()).add(judgement.document_id)
    own = [Question("own", judged.queries[name], frozenset(ids)) for name, ids in relevant.items()]
    asked = generator.sample(own, min(most, len(own)))
    for other in others:
        if family(other.name) != family(judged.name):
            texts = list(other.queries.values())
            asked += [Question("foreign", text) for text in generator.sample(texts, min(FOREIGN, len(texts)))]
    return asked + [Question("gibberish", gibberish(generator)) for _ in range(GIBBERISH)]


def answers(kb: KnowledgeBase, name: str, asked: Sequence[Question]) -> Iterator[Answer]:
    options = SearchOptions(allow_weak=True)
    for mode, parts in FITS.items():
        for question in asked:
            hits = kb.search(question.text, mode=mode, limit=HITS, explain=True)
            has_results = bool(hits)
            if hits.near_misses:
                hits = kb.search(question.text, mode=mode, limit=HITS, explain=True, options=options)
            explanations: list[Any] = [hit.explanation for hit in hits]
            # A query of a mode may lack a part, such as the coverage of words that occur nowhere.
            if hits and not all(part in explanations[0] for part in parts):
                explanations = []
            yield Answer(
                name,
                mode,
                question.kind,
                np.array([[1.0, *(why[part] for part in parts)] for why in explanations]).reshape(-1, len(parts) + 1),
                np.array([hit.document_id in question.relevant for hit in hits][: len(explanations)], float),
                has_results,
            )


def fit(answered: Sequence[Answer]) -> np.ndarray:
    """Fit a logistic regression by Newton's method. Hits of own questions weigh as much as all others."""
    sizes = Counter[tuple[str, bool]]()
    for each in answered:
        sizes[each.set, each.kind == "own"] += len(each.parts)
    weights = [np.full(len(each.parts), 1.0 / max(sizes[each.set, each.kind == "own"], 1)) for each in answered]
    x, w = np.concatenate([each.parts for each in answered]), np.concatenate(weights)
    y = np.concatenate([each.is_relevant for each in answered])
    ridge = 1e-3 * np.diag([0.0, *np.ones(x.shape[1] - 1)])
    b = np.zeros(x.shape[1])
    for _ in range(50):
        p = 1.0 / (1.0 + np.exp(-x @ b))
        b += np.linalg.solve((x * (w * p * (1 - p))[:, None]).T @ x + ridge, x.T @ (w * (y - p)) - ridge @ b)
    return b


def predict(answer: Answer, b: np.ndarray) -> np.ndarray:
    """Return probabilities as the engine does: none is higher than the one above it."""
    return np.minimum.accumulate(1.0 / (1.0 + np.exp(-answer.parts @ b)))


def reliability(answered: Sequence[Answer], b: np.ndarray) -> str:
    """Return the cells of a row: hits and their relevant share for each range, and the calibration error."""
    p = np.concatenate([predict(each, b) for each in answered])
    y = np.concatenate([each.is_relevant for each in answered])
    cells, error = [], 0.0
    for low, high in itertools.pairwise(LIMITS):
        own = (p >= low) & ((p < high) | (high == 1.0))
        cells.append(f"{y[own].mean():.2f} ({own.sum()})" if own.any() else "–")
        error += abs(p[own].sum() - y[own].sum()) / max(len(p), 1)
    return f"{' | '.join(cells)} | {error:.3f}"


def report(mode: str, answered: Sequence[Answer]) -> Iterator[str]:
    fitted = fit(answered)
    values = ", ".join(
        f"{name}={value:.2f}" for name, value in zip(("base", *FITS[mode]), fitted.tolist(), strict=True)
    )
    yield f"{NAMES[mode]} = Coefficients({values})"
    current: Coefficients = CURRENT[mode]
    used = np.array([current.base, *(getattr(current, name) for name in FITS[mode])])
    if abs(fitted - used).max() >= 0.01:
        yield f"the engine has {current}"
    ranges = [f"{low:g}–{high:g}" for low, high in itertools.pairwise(LIMITS)]
    yield f"\n| left out, {mode} | {' | '.join(ranges)} | error |\n|---|{'---|' * (len(ranges) + 1)}"
    for name in dict.fromkeys(each.set for each in answered):
        left = [each for each in answered if each.set == name]
        others = [each for each in answered if family(each.set) != family(name)]
        yield f"| {name} | {reliability(left, fit(others))} |"


def shares(answered: Sequence[Answer]) -> Iterator[str]:
    yield "\n| questions with any result | hybrid | keyword | vector |\n|---|---|---|---|"
    for name in dict.fromkeys(each.set for each in answered):
        for kind in ("own", "foreign", "gibberish"):
            cells = []
            for mode in FITS:
                has = [each.has_results for each in answered if (each.set, each.kind, each.mode) == (name, kind, mode)]
                cells.append(f"{sum(has)} of {len(has)}")
            yield f"| {name}, {kind} | {' | '.join(cells)} |"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--embedder", default="static")
    parser.add_argument("--set", nargs="+", dest="sets", help="only these")
    parser.add_argument("--queries", type=int, default=150, help="own questions of each set")
    given: Any = parser.parse_args(arguments)
    folders = [path for path in sorted(given.folder.iterdir()) if is_judged_set(path)]
    sets = [read_judged_set(path) for path in folders if given.sets is None or path.name in given.sets]
    if len({family(judged.name) for judged in sets}) < 2:
        parser.error(f"two judged sets or more are needed in {given.folder}")
    engine = replace(Settings().engine, embedder=given.embedder)
    answered: list[Answer] = []
    for judged in sets:
        with temporary_kb(Settings(engine=engine)) as kb:
            kb.upsert(judged.stored_documents())
            answered += answers(kb, judged.name, questions(judged, sets, given.queries))
        print(f"{judged.name}: asked", file=sys.stderr)
    for mode in FITS:
        asked = [each for each in answered if each.mode == mode]
        print("\n".join(report(mode, asked)), end="\n\n")
    print("\n".join(shares(answered)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
