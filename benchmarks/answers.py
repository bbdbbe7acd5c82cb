"""Is an answer that claims to be sure right more often than one that does not?

    python benchmarks/answers.py FOLDER [--embedder NAME] [--set NAME ...] [--limit-queries N]

FOLDER holds judged sets, each a folder as `pair eval` takes it. Each question is asked of a shelf without a language
model, with default settings. An answer is right when its first source is a document that was judged relevant. Besides,
each KB is asked questions of the other sets, which it cannot answer: an honest shelf says so, or is not sure.
"""

import argparse
import asyncio
import dataclasses
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pair.evaluation.measure import JudgedSet, is_judged_set, read_judged_set
from pair.kb.kb import KnowledgeBase
from pair.kb.open import temporary_kb
from pair.librarians.kb_librarian import KbLibrarian
from pair.settings import Settings

FOREIGN = 40
"""Questions from each other set."""
BANDS = ((0.8, 1.01, "≥ 0.8"), (0.5, 0.8, "0.5 – 0.8"), (0.0, 0.5, "< 0.5"))


@dataclass(frozen=True)
class Answered:
    confidence: float
    is_right: bool
    is_refused: bool


async def ask_all(kb: KnowledgeBase, questions: Sequence[tuple[str, frozenset[str]]]) -> list[Answered]:
    """`questions`: each with the documents that answer it."""
    shelf = KbLibrarian(kb.collection)
    found = []
    for text, relevant in questions:
        response = await shelf(text)
        if response.error is not None:
            raise RuntimeError(response.error.message)
        first = response.sources[0].provenance if response.sources else None
        found.append(
            Answered(
                response.confidence or 0.0,
                first is not None and first.document_id in relevant,
                bool(response.metadata.get("nothingRelevant")),
            )
        )
    return found


def questions_of(judged: JudgedSet, limit: int | None) -> list[tuple[str, frozenset[str]]]:
    ids = frozenset(document.id for document in judged.documents())
    queries = judged.select(ids, limit=limit).queries
    return [(each.text, frozenset(name for name, grade in each.grades.items() if grade > 0)) for each in queries]


def rows(name: str, own: Sequence[Answered], foreign: Sequence[Answered]) -> Iterator[str]:
    cells = []
    for least, below, _ in BANDS:
        band = [each for each in own if least <= each.confidence < below and not each.is_refused]
        right = sum(each.is_right for each in band)
        cells.append(f"{right / len(band):.2f} of {len(band)}" if band else "–")
    refused = sum(each.is_refused for each in own) / len(own)
    wrong = sum(each.is_refused for each in foreign) / len(foreign) if foreign else 0.0
    sure = sum(each.confidence >= BANDS[0][0] for each in foreign) / len(foreign) if foreign else 0.0
    yield f"| {name} | {' | '.join(cells)} | {refused:.0%} | {wrong:.0%} | {sure:.1%} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--embedder", default=Settings().engine.embedder)
    parser.add_argument("--set", nargs="+", dest="sets", help="only these")
    parser.add_argument("--limit-queries", type=int, help="only the first of each set, for a quick look")
    given: Any = parser.parse_args()
    folders = [path for path in sorted(given.folder.iterdir()) if is_judged_set(path)]
    folders = [path for path in folders if given.sets is None or path.name in given.sets]
    if not folders:
        parser.error(f"no judged sets in {given.folder}")
    asked = {path.name: questions_of(read_judged_set(path), given.limit_queries) for path in folders}
    settings = Settings(engine=dataclasses.replace(Settings().engine, embedder=given.embedder))
    print(f"### {given.embedder}: share of right answers, by confidence\n")
    heads = [f"confidence {label}" for _, _, label in BANDS]
    print(f"| set | {' | '.join(heads)} | not answered | foreign questions not answered | foreign ≥ 0.8 |")
    print("|---|---|---|---|---|---|---|", flush=True)
    everything: list[Answered] = []
    everything_foreign: list[Answered] = []
    for path in folders:
        others = [
            (text, frozenset[str]())
            for name, questions in asked.items()
            if name != path.name
            for text, _ in questions[:: max(1, len(questions) // FOREIGN)][:FOREIGN]
        ]
        with temporary_kb(settings) as kb:
            kb.upsert(read_judged_set(path).documents())
            own, foreign = asyncio.run(ask_all(kb, asked[path.name])), asyncio.run(ask_all(kb, others))
        everything += own
        everything_foreign += foreign
        print("\n".join(rows(path.name, own, foreign)), flush=True)
    print("\n".join(rows("all", everything, everything_foreign)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
