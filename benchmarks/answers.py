"""Are answers without a model right, and is their confidence calibrated?

    python benchmarks/answers.py [--questions FILE] [--material NAME] [--sets FOLDER] [--fit]

Asks the questions of a file of a KB of documentation (documentation.py), with default settings and no language model. A
question has a pattern that a right answer matches; those without a pattern cannot be answered by the KB. The quoted
answer counts, or the first block if only passages are shown. 200 lines of gibberish and greetings are asked too.

`--material other` asks a KB of other packages, which answer `other_questions.jsonl`. In `fresh_questions.jsonl` each
question names its material: one half asks the default material, the other half asks `--material third`.

Weights and coefficients were fitted on the questions of all files but `fresh_questions.jsonl`, which is held out.
`--fit` prints the weights of blocks for `quotes.py`, and the coefficients for `confidence.py`, which are also fitted on
two thirds of the judged sets in FOLDER. Each set is a folder in the format of `pair eval`. `--fit` reports the figures
of a cross-validation, in which all questions about a document are left out together. `--sets` reports how often the
first source of an answer is judged relevant, and how often questions of other sets get no answer.
"""

import argparse
import asyncio
import dataclasses
import itertools
import json
import random
import re
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from documentation import MATERIALS, read_documentation
from pair.evaluation.measure import is_judged_set, read_judged_set
from pair.kb.kb import KnowledgeBase
from pair.kb.open import open_kb, temporary_kb
from pair.librarians.confidence import ANSWER_FROM, COEFFICIENTS, NOTHING_BELOW, estimate_confidence
from pair.librarians.kb_librarian import KbLibrarian
from pair.librarians.quotes import WEIGHTS, QuoteRanking
from pair.settings import Settings

QUESTIONS = Path(__file__).parent / "questions.jsonl"
FITTED = {
    "documentation": ["questions", "held_out_questions", "unseen_questions", "blind_questions"],
    "other": ["other_questions"],
}
"""The files of questions that are used for the fits, by material."""
FOREIGN = 40
"""Number of questions from each other judged set."""
BANDS = (0.0, 0.15, 0.3, 0.5, 0.65, 0.8, 1.01)
SURE = 0.8
OUTCOME_BANDS = (0.0, NOTHING_BELOW, ANSWER_FROM, SURE, 1.01)
"""Limits of confidence: nothing, passages, answers, confident answers."""
UNANSWERABLE = frozenset({"plausible", "off-topic"})
_GREETINGS = """hi|hello there|good morning|hey, how are you?|thanks a lot!|who are you?|what can you do?|bye|ok|help
what is this about?|what do you know?|are you there?|thank you very much|good evening everyone|is anybody there?
tell me a joke|what is in this knowledge base?|hello! who are you and what can you do?|please help me"""
GREETINGS = re.split(r"[|\n]", _GREETINGS)
SYLLABLES = ("ka", "lo", "mi", "zu", "ter", "vop", "rin", "sha", "dun", "bek", "ool", "ish", "gra", "fen")
FOLDS = 5
BLOCK_PENALTY, PENALTY = 1.0, 2.0
JUDGED_SHARE = 0.5
"""The weight of all judged sets in the fit, relative to the questions about documentation."""


@dataclass(frozen=True)
class Asked:
    """A question and its answer."""

    question: str
    kind: str
    outcome: str
    confidence: float
    is_right: bool
    answer: str
    is_right_quoted: bool
    """Whether the best blocks are right, for any outcome. The confidence is fitted to this."""
    features: dict[str, float]
    ranking: QuoteRanking | None
    is_right_block: list[bool]
    """Whether each block of the ranking is right. If any is from a document named with the question, only those are."""
    seconds: float
    weight: float = 1.0


def read_questions(path: Path) -> list[dict[str, Any]]:
    return list(map(json.loads, path.read_text().splitlines()))


def find_fold(question: dict[str, Any]) -> int:
    """Return the part of the cross-validation: the same for all questions about a document."""
    return zlib.crc32(question.get("documents", [question["question"]])[0].encode()) % FOLDS


def make_gibberish() -> list[str]:
    """Return 200 lines: greetings in several spellings, random letters, and syllables that look like words."""
    chance = random.Random(19)
    lines = [
        chance.choice([str.lower, str.upper, str.title])(each) + mark for each in GREETINGS for mark in ("", " :-)")
    ]
    letters = "abcdefghijklmnopqrstuvwxyz"
    while len(lines) < 200:
        parts: Sequence[str] = letters if len(lines) % 2 else SYLLABLES
        words = ("".join(chance.choices(parts, k=chance.randint(2, 8))) for _ in range(chance.randint(1, 6)))
        lines.append(" ".join(words) + chance.choice(["", "?"]))
    return lines


IsRight = Callable[[str, str], bool]
"""A function that judges an answer and its first document."""


def ask_all(kb: KnowledgeBase, questions: Iterable[tuple[str, str, IsRight, Collection[str]]]) -> list[Asked]:
    """Ask all questions.

    `questions`: each with its kind, the function that judges an answer, and the documents that answer it, if known.
    """
    librarian = KbLibrarian(kb.collection)
    asked = []
    for text, kind, is_right, documents in questions:
        began_at = time.perf_counter()
        response = asyncio.run(librarian(text))
        seconds = time.perf_counter() - began_at
        if response.error is not None:
            raise RuntimeError(response.error.message)
        outcome, answer = response.metadata["outcome"], response.answer or ""
        first = response.sources[0].provenance if response.sources else None
        shown = answer if outcome == "answer" else [*answer.split("\n\n"), ""][1]
        findings = librarian.find(text)
        ranking = findings.ranking
        quotes = ranking.choose_answer() if ranking else []
        blocks = [(quote.text, findings.hits[quote.passage].document_id) for quote in ranking.quotes] if ranking else []
        right = [is_right(*block) for block in blocks]
        named = [right_block and name in documents for right_block, (_, name) in zip(right, blocks, strict=True)]
        asked.append(
            Asked(
                text,
                kind,
                outcome,
                response.confidence or 0.0,
                outcome != "nothing" and is_right(shown, first.document_id if first else ""),
                answer,
                is_right(" ".join(quote.text for quote in quotes), blocks[0][1] if blocks else ""),
                ranking.describe_best() if ranking else {},
                ranking,
                named if any(named) else right,
                seconds,
            )
        )
    return asked


def match_pattern(pattern: str | None) -> IsRight:
    def is_right(shown: str, _: str) -> bool:
        plain = " ".join(re.sub(r"\n>|[`*]", lambda mark: " " * (mark[0][0] == "\n"), shown).split())
        return pattern is not None and re.search(pattern, plain) is not None

    return is_right


def open_documentation(folder: Path, material: str) -> KnowledgeBase:
    """Return the KB of the material; create it in the folder if it is missing."""
    folder = folder if material == MATERIALS[0] else folder / material
    documents = read_documentation(folder / "texts.jsonl", material)
    engine = dataclasses.replace(
        Settings().engine, store=str(folder / "kb" / "store"), cache_dir=str(folder / "kb" / "cache")
    )
    is_made = (folder / "kb" / "store").exists()
    kb = open_kb("documentation", settings=Settings(engine=engine))
    if not is_made:
        kb.upsert(documents)
    return kb


# ── figures ────────────────────────────────────────────────────────────────────────────────────────


def auroc(right: Sequence[float], wrong: Sequence[float]) -> float:
    """Return the probability that a right answer has a higher confidence than a wrong one."""
    pairs = [(a > b) + 0.5 * (a == b) for a in right for b in wrong]
    return sum(pairs) / len(pairs) if pairs else float("nan")


def split_bands(asked: Sequence[Asked], limits: Sequence[float]) -> Iterator[tuple[str, list[Asked]]]:
    for low, high in itertools.pairwise(limits):
        band = [each for each in asked if low <= each.confidence < high]
        if band:
            yield f"{low:.2f} – {min(high, 1):.2f}", band


def calibration_error(asked: Sequence[Asked], limits: Sequence[float]) -> float:
    """Return the mean distance between the confidence of a band and its share of right answers."""
    bands = (band for _, band in split_bands(asked, limits))
    return sum(abs(sum(each.confidence - each.is_right for each in band)) for band in bands) / len(asked)


def separate(asked: Sequence[Asked]) -> float:
    return auroc(
        [each.confidence for each in asked if each.is_right], [each.confidence for each in asked if not each.is_right]
    )


def report(name: str, asked: Sequence[Asked]) -> None:
    others = [each for each in asked if each.kind in UNANSWERABLE]
    answerable = [each for each in asked if each.kind not in UNANSWERABLE]
    shown = [each for each in asked if each.outcome != "nothing"]
    right = sum(each.is_right for each in answerable)
    sure = [each for each in asked if each.confidence >= SURE]
    wrong = sum(not each.is_right for each in sure)
    refused = sum(each.outcome != "answer" for each in others)
    milliseconds = 1000 * sum(each.seconds for each in asked) / len(asked)
    print(f"\n### {name}: {len(answerable)} answerable and {len(others)} unanswerable questions\n")
    print(f"| | |\n|---|---|\n| right in what is shown, of the answerable | {right / len(answerable):.0%} ({right}) |")
    print(
        f"| wrong at confidence ≥ {SURE}, of all | {wrong / len(asked):.1%} ({wrong} of {len(sure)} that are so sure) |"
    )
    print(f"| refused or passages without a claim, of the unanswerable | {refused / len(others):.0%} ({refused}) |")
    print(f"| AUROC of confidence, right against wrong: all questions | {separate(asked):.2f} |")
    print(f"| the same, where anything is shown | {separate(shown):.2f} |")
    for limits in (OUTCOME_BANDS, BANDS):
        error = calibration_error(asked, limits)
        print(f"| expected calibration error, {len(limits) - 1} bands of confidence | {error:.3f} |")
    print(f"| time for a question | {milliseconds:.0f} ms |")
    print("\n| outcome | answerable | right | unanswerable |\n|---|---|---|---|")
    for outcome in ("answer", "passages", "nothing"):
        own = [each for each in answerable if each.outcome == outcome]
        foreign = sum(each.outcome == outcome for each in others)
        print(f"| {outcome} | {len(own)} | {sum(each.is_right for each in own)} | {foreign} |")
    print("\n| confidence | questions | mean | right |\n|---|---|---|---|")
    for label, band in split_bands(asked, BANDS):
        mean, share = np.mean([each.confidence for each in band]), np.mean([each.is_right for each in band])
        print(f"| {label} | {len(band)} | {mean:.2f} | {share:.2f} |")
    print("\n| kind | questions | right |\n|---|---|---|")
    for kind in sorted({each.kind for each in answerable}):
        own = [each for each in answerable if each.kind == kind]
        print(f"| {kind} | {len(own)} | {sum(each.is_right for each in own)} |")


# ── judged sets ────────────────────────────────────────────────────────────────────────────────────


def ask_judged(folder: Path, limit: int) -> dict[str, tuple[list[Asked], list[Asked]]]:
    """Return the answers for each set: to its own questions, and to those of other sets."""
    judged = {path.name: read_judged_set(path) for path in sorted(folder.iterdir()) if is_judged_set(path)}
    queries = {
        name: each.select(frozenset(document.id for document in each.documents()), limit=limit).queries
        for name, each in judged.items()
    }
    answered = {}
    for name, each in judged.items():
        own = [
            (
                query.text,
                "judged",
                match_document(frozenset(key for key, grade in query.grades.items() if grade > 0)),
                (),
            )
            for query in queries[name]
        ]
        foreign = [
            (query.text, "off-topic", match_document(frozenset()), ())
            for other, others in queries.items()
            if other != name
            for query in others[:: max(1, len(others) // FOREIGN)][:FOREIGN]
        ]
        with temporary_kb(Settings()) as kb:
            kb.upsert(each.documents())
            answered[name] = ask_all(kb, own), ask_all(kb, foreign)
    return answered


def match_document(relevant: frozenset[str]) -> IsRight:
    return lambda _, document_id: document_id in relevant


def report_judged(answered: dict[str, tuple[list[Asked], list[Asked]]]) -> None:
    print("\n| set | ≥ 0.8 | 0.5 – 0.8 | < 0.5 | nothing | foreign answered | foreign ≥ 0.8 |")
    print("|---|---|---|---|---|---|---|")
    for name, (own, foreign) in answered.items():
        cells = []
        for low, high in ((SURE, 1.01), (0.5, SURE), (0.0, 0.5)):
            band = [each for each in own if low <= each.confidence < high and each.outcome != "nothing"]
            cells.append(f"{np.mean([each.is_right for each in band]):.2f} of {len(band)}" if band else "–")
        nothing = np.mean([each.outcome == "nothing" for each in own])
        answers = np.mean([each.outcome == "answer" for each in foreign]) if foreign else 0.0
        sure = np.mean([each.confidence >= SURE for each in foreign]) if foreign else 0.0
        print(f"| {name} | {' | '.join(cells)} | {nothing:.0%} | {answers:.0%} | {sure:.1%} |")


# ── fitting ────────────────────────────────────────────────────────────────────────────────────────


def fit(asked: Sequence[Asked]) -> dict[str, float]:
    """Return the coefficients of a logistic regression, by Newton's method with a small penalty."""
    names = [name for name in COEFFICIENTS if name != "constant"]
    usable = [each for each in asked if each.features]
    rows = np.array([[1.0, *(each.features[name] for name in names)] for each in usable])
    right = np.array([each.is_right_quoted for each in usable], float)
    weights = np.array([each.weight for each in usable])
    found = np.zeros(len(names) + 1)
    penalty = np.diag([0.0] + [PENALTY] * len(names))
    for _ in range(50):
        likely = 1 / (1 + np.exp(-rows @ found))
        slope = rows.T @ (weights * (right - likely)) - penalty @ found
        bend = (rows * (weights * likely * (1 - likely))[:, None]).T @ rows + penalty
        found = found + np.linalg.solve(bend, slope)
    return dict(zip(["constant", *names], np.round(found, 2).tolist(), strict=True))


def weigh_judged(judged: dict[str, tuple[list[Asked], list[Asked]]], count: int) -> list[Asked]:
    """Return two thirds of the judged questions. Their total weight is JUDGED_SHARE of `count`."""
    weighed = []
    for own, foreign in judged.values():
        part = [each for number, each in enumerate([*own, *foreign]) if number % 3]
        weight = JUDGED_SHARE * count / len(part) / len(judged)
        weighed += [dataclasses.replace(each, weight=weight) for each in part]
    return weighed


def fit_blocks(asked: Sequence[Asked]) -> dict[str, float]:
    """Return the weights of blocks: the right ones become likely among all blocks of their question."""
    names = list(WEIGHTS)
    usable = [
        (np.array([[quote.features[name] for name in names] for quote in each.ranking.quotes]), each.is_right_block)
        for each in asked
        if each.ranking and any(each.is_right_block) and not all(each.is_right_block)
    ]
    found = np.array([WEIGHTS[name] for name in names])
    for _ in range(25):
        slope, bend = -BLOCK_PENALTY * found, np.diag(np.full(len(names), BLOCK_PENALTY))
        for rows, right in usable:
            likely = np.exp(rows @ found - (rows @ found).max())
            likely /= likely.sum()
            expected = likely @ rows
            slope += (likely * right) @ rows / (likely @ right) - expected
            bend += (rows * likely[:, None]).T @ rows - np.outer(expected, expected)
        found = found + np.linalg.solve(bend, slope)
    return dict(zip(names, np.round(found, 2).tolist(), strict=True))


def report_blocks(asked: Sequence[Asked], folds: Sequence[int]) -> None:
    """Print how often the best blocks are right, by the weights in use and by weights fitted without the fold."""
    fitted = [
        fit_blocks([each for each, own in zip(asked, folds, strict=True) if own != fold]) for fold in range(FOLDS)
    ]
    print("\n| weights of blocks | best block right | any of the best four |\n|---|---|---|")
    for name, choices in (("in use", [WEIGHTS] * FOLDS), ("fitted without the fold", fitted)):
        counts = [0, 0]
        for each, fold in zip(asked, folds, strict=True):
            quotes = each.ranking.quotes if each.ranking else []
            worth = [-sum(weight * quote.features[key] for key, weight in choices[fold].items()) for quote in quotes]
            right = [each.is_right_block[number] for number in np.argsort(worth, kind="stable")]
            counts = [counts[0] + any(right[:1]), counts[1] + any(right[:4])]
        print(f"| {name} | {counts[0]} | {counts[1]} |")


def cross_validate(asked: Sequence[Asked], folds: Sequence[int], others: Sequence[Asked]) -> list[Asked]:
    """Return the questions with the confidence from coefficients that were fitted without their fold."""
    judged = []
    for fold in range(FOLDS):
        coefficients = fit([*(each for each, own in zip(asked, folds, strict=True) if own != fold), *others])
        for each, own in zip(asked, folds, strict=True):
            if own == fold:
                confidence = estimate_confidence(each.features, coefficients) if each.features else 0.0
                is_right = each.is_right_quoted and confidence >= NOTHING_BELOW
                outcome = "nothing" if confidence < NOTHING_BELOW else "passages"
                if confidence >= ANSWER_FROM:
                    outcome = "answer"
                judged.append(dataclasses.replace(each, confidence=confidence, is_right=is_right, outcome=outcome))
    return judged


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=Path, default=QUESTIONS, help="a file of questions")
    parser.add_argument("--material", choices=MATERIALS, default=MATERIALS[0], help="what is asked")
    parser.add_argument(
        "--cache", type=Path, default=Path(tempfile.gettempdir(), "pair-answers"), help="keeps the texts and the KB"
    )
    parser.add_argument("--sets", type=Path, help="a folder of judged sets")
    parser.add_argument("--limit-queries", type=int, default=300, help="of each judged set")
    parser.add_argument("--fit", action="store_true", help="print coefficients")
    parser.add_argument("--verbose", action="store_true", help="print every answer")
    given: Any = parser.parse_args()
    asked, gibberish, folds = [], [], []
    for material in MATERIALS if given.fit else [given.material]:
        files = [QUESTIONS.with_stem(name) for name in FITTED.get(material, [])] if given.fit else [given.questions]
        questions = [
            each for file in files for each in read_questions(file) if each.get("material", material) == material
        ]
        if not questions:
            continue
        folds += [find_fold(each) for each in questions]
        with open_documentation(given.cache, material) as kb:
            asked += ask_all(
                kb,
                [
                    (each["question"], each["kind"], match_pattern(each.get("right")), each.get("documents", ()))
                    for each in questions
                ],
            )
            gibberish = ask_all(kb, [(line, "gibberish", match_pattern(None), ()) for line in make_gibberish()])
    for each in asked if given.verbose else ():
        verdict = "right" if each.is_right else "wrong"
        print(f"\n{each.question}\n{each.outcome} {each.confidence} {verdict}\n{each.answer}")
    report("all questions" if given.fit else given.questions.stem, asked)
    counts = Counter(each.outcome for each in gibberish)
    answered, shown = counts["answer"], counts["passages"]
    print(f"\nGibberish and greetings: {answered} answers and {shown} times passages in {len(gibberish)}")
    judged = ask_judged(given.sets, given.limit_queries) if given.sets else {}
    if judged:
        report_judged(judged)
    if given.fit:
        others = [*gibberish[:: len(gibberish) // 20], *weigh_judged(judged, len(asked))]
        report("coefficients fitted without the documents", cross_validate(asked, folds, others))
        report_blocks(asked, folds)
        print(f"\n{json.dumps(fit_blocks(asked), indent=4)}\n{json.dumps(fit([*asked, *others]), indent=4)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
