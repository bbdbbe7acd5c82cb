"""How well does `hybrid` combine words and vectors, compared with simple formulas on the same candidates?

    python benchmarks/fusion.py FOLDER [--embedder NAME] [--set NAME ...] [--limit-queries N]

FOLDER has judged sets, each a folder in the format of `pair eval`. One search per query returns the 300 best passages
with their BM25 scores and cosines. Every formula ranks these passages. It prints nDCG@10 of each set and the mean:

    rank        1 / (60 + rank by words) + 1 / (60 + rank by vector)
    z           (1 - w) · z-score among the 100 best by words + w · z-score among the 200 nearest; w as in `hybrid`
    sum, lists  ½ · each list scaled from its lowest to its highest; 0 for a passage that is not in the list
    sum, w      the same with the weight of the embedder
    sum, KB     ½ · each value scaled from the lowest to the highest of the whole KB
"""

import argparse
import dataclasses
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pair.evaluation.measure import JudgedQuery, is_judged_set, mean, ndcg, read_judged_set
from pair.kb.kb import KnowledgeBase
from pair.kb.open import choose_embedder, temporary_kb
from pair.settings import Settings
from pair.values import SearchOptions

DEPTH = 300
BY_WORDS, NEAREST = 100, 200
"""The lengths of both lists in the engine."""
RANK_OFFSET = 60


@dataclasses.dataclass(frozen=True)
class Found:
    """The candidates of one query, in the order of `hybrid`."""

    documents: list[str]
    hybrid: np.ndarray
    bm25: np.ndarray
    cosine: np.ndarray
    lowest_cosine: float
    """The lowest cosine of any passage in the KB."""
    weight: float


def ranks(values: np.ndarray) -> np.ndarray:
    return np.argsort(np.argsort(-values, kind="stable"), kind="stable")


def scaled(values: np.ndarray, length: int) -> np.ndarray:
    listed = ranks(values) < length
    low, high = values[listed].min(), values[listed].max()
    return np.asarray(np.where(listed, (values - low) / (high - low) if high > low else 1.0, 0.0))


def z_scores(values: np.ndarray, length: int) -> np.ndarray:
    listed = values[ranks(values) < length]
    return np.asarray((values - listed.mean()) / max(listed.std(), 1e-9))


def by_rank(found: Found) -> np.ndarray:
    words = np.where(found.bm25 > 0, 1 / (RANK_OFFSET + ranks(found.bm25)), 0.0)
    return words + 1 / (RANK_OFFSET + ranks(found.cosine))


def by_z(found: Found) -> np.ndarray:
    return (1 - found.weight) * z_scores(found.bm25, BY_WORDS) + found.weight * z_scores(found.cosine, NEAREST)


def by_lists(found: Found, weight: float) -> np.ndarray:
    words = scaled(found.bm25, min(BY_WORDS, max(int(np.count_nonzero(found.bm25)), 1)))
    return (1 - weight) * words + weight * scaled(found.cosine, NEAREST)


def by_range(found: Found) -> np.ndarray:
    words = found.bm25 / max(found.bm25.max(), 1e-9)
    return np.asarray(
        words + (found.cosine - found.lowest_cosine) / max(found.cosine.max() - found.lowest_cosine, 1e-9)
    )


FORMULAS: dict[str, Callable[[Found], np.ndarray]] = {
    "keyword": lambda found: found.bm25,
    "vector": lambda found: found.cosine,
    "rank": by_rank,
    "z": by_z,
    "sum, lists": lambda found: by_lists(found, 0.5),
    "sum, w": lambda found: by_lists(found, found.weight),
    "sum, KB": by_range,
    "hybrid": lambda found: found.hybrid,
}


def find(kb: KnowledgeBase, query: str, vector: np.ndarray) -> Found | None:
    hits = kb.search(query, limit=DEPTH, explain=True, options=SearchOptions(allow_weak=True))
    why: list[Any] = [hit.explanation for hit in hits]
    if not hits or hits[0].distance is None:
        return None
    # The row farthest from a vector is the nearest to its opposite.
    opposite = kb.search_vector(-vector, limit=1, exact=True)[0].distance or 0.0
    return Found(
        [hit.document_id for hit in hits],
        np.array([each["raw"] for each in why]),
        np.array([each["bm25"] for each in why]),
        1 - np.array([hit.distance for hit in hits]) ** 2 / 2,
        opposite**2 / 2 - 1,
        why[0]["weight"],
    )


def measured(kb: KnowledgeBase, queries: Sequence[JudgedQuery], vectors: np.ndarray) -> list[float]:
    """Return the nDCG@10 of each formula."""
    figures: list[list[float]] = [[] for _ in FORMULAS]
    for query, vector in zip(queries, vectors, strict=True):
        found = find(kb, query.text, vector)
        for formula, values in zip(FORMULAS.values(), figures, strict=True):
            order = [] if found is None else np.argsort(-formula(found), kind="stable").tolist()
            ranking = list(dict.fromkeys(found.documents[place] for place in order)) if found else []
            values.append(ndcg(ranking, query.grades, 10))
    return [mean(values) for values in figures]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--embedder", default="static")
    parser.add_argument("--set", nargs="+", dest="sets", help="only these")
    parser.add_argument("--limit-queries", type=int, help="only the first of each set, for a quick look")
    given: Any = parser.parse_args(arguments)
    folders = [path for path in sorted(given.folder.iterdir()) if is_judged_set(path)]
    folders = [path for path in folders if given.sets is None or path.name in given.sets]
    if not folders:
        parser.error(f"no judged sets in {given.folder}")
    settings = Settings(engine=dataclasses.replace(Settings().engine, embedder=given.embedder))
    embedder = choose_embedder(settings)
    print(f"| set | {' | '.join(FORMULAS)} |\n|---|{'---|' * len(FORMULAS)}", flush=True)
    results = []
    for path in folders:
        judged = read_judged_set(path)
        queries = judged.select({document.id for document in judged.documents()}, limit=given.limit_queries).queries
        with temporary_kb(settings) as kb:
            kb.upsert(judged.stored_documents())
            results.append(measured(kb, queries, embedder.embed_queries([query.text for query in queries])))
        print(f"| {path.name} | {' | '.join(f'{value:.4f}' for value in results[-1])} |", flush=True)
    means = [mean(column) for column in zip(*results, strict=True)]
    print(f"| mean | {' | '.join(f'{value:.4f}' for value in means)} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
