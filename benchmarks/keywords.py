"""Is keyword search at least as good as plain BM25?

    python benchmarks/keywords.py FOLDER [--set NAME ...] [--questions N]

FOLDER has judged sets, each a folder in the format of `pair eval`. Each set is stored with default settings and
searched in mode `keyword`. For comparison, bm25s (k1 = 1.5, b = 0.75, Snowball stems and stop words of the set's
language) ranks whole documents, title and text. The figures are nDCG@10, and how often a document is first, or among
the first ten, for eight of its words. `make bench` installs bm25s.
"""

import argparse
import itertools
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pair.evaluation.measure import Grades, is_judged_set, ndcg, read_judged_set
from pair.kb.open import temporary_kb
from pair.settings import Settings
from pair.text.languages import LANGUAGES, STOP_WORDS, find_language
from pair.values import Document

HITS = 10
WORDS = 8
LEAST_WORDS = 12
SLACK = 0.002
NAMES = {"de": "german", "fr": "french", "es": "spanish", "it": "italian", "pt": "portuguese", "nl": "dutch"}

Ask = Callable[[str], Sequence[str]]
"""A function that returns the ids of the documents for a question, best first."""


def bm25s_of(documents: Sequence[Document]) -> Ask:
    import bm25s
    import Stemmer

    languages = [find_language(document.metadata, document.text) for document in documents]
    language = max(LANGUAGES, key=languages.count)
    how: dict[str, Any] = {
        "stopwords": "en" if language == "en" else sorted(STOP_WORDS[language]),
        "stemmer": Stemmer.Stemmer(NAMES.get(language, "english")),
        "show_progress": False,
    }
    index = bm25s.BM25(k1=1.5, b=0.75)
    texts = [f"{document.title} {document.text}" for document in documents]
    index.index(bm25s.tokenize(texts, **how), show_progress=False)

    def ask(question: str) -> list[str]:
        rows, scores = index.retrieve(bm25s.tokenize([question], **how), k=HITS, show_progress=False)
        return [documents[row].id for row, score in zip(rows[0], scores[0], strict=True) if score > 0]

    return ask


def random_words(documents: Sequence[Document], count: int) -> list[tuple[str, str]]:
    """Return questions of random words, each with the id of the document that the words are from."""
    random = np.random.default_rng(5)
    questions: list[tuple[str, str]] = []
    for number in random.permutation(len(documents)).tolist():
        document = documents[number]
        words = list(dict.fromkeys(re.findall(r"\w+", f"{document.title} {document.text}")))
        if len(words) >= LEAST_WORDS:
            questions.append((" ".join(random.permutation(words)[:WORDS].tolist()), document.id))
        if len(questions) == count:
            break
    return questions


def measured(ask: Ask, judged: Sequence[tuple[str, Grades]], words: Sequence[tuple[str, str]]) -> list[float]:
    """Return nDCG@10, and the shares of documents that are first and among the first ten for their words."""
    rankings = [(ask(question)[:HITS], own) for question, own in words]
    return [
        float(np.mean([ndcg(ask(question), grades, HITS) for question, grades in judged])),
        float(np.mean([ranking[:1] == [own] for ranking, own in rankings])),
        float(np.mean([own in ranking for ranking, own in rankings])),
    ]


def compare(folder: Path, count: int) -> bool:
    """Print the row of a set, and return whether keyword search is at least as good as bm25s."""
    read = read_judged_set(folder)
    documents = list(read.stored_documents())
    queries = read.select(frozenset(document.id for document in read.documents())).queries
    judged = [(query.text, query.grades) for query in queries]
    words = random_words(documents, count)
    plain = measured(bm25s_of(documents), judged, words)
    with temporary_kb(Settings.load(environment={"PAIR__ENGINE__GRAPH": "off"})) as kb:
        kb.upsert(documents)

        def ask(question: str) -> list[str]:
            hits = kb.search(question, limit=HITS, mode="keyword")
            # Copies of a text make one hit.
            copies = [(hit.document_id, *(other.document_id for other in hit.also_in)) for hit in hits]
            return list(dict.fromkeys(itertools.chain.from_iterable(copies)))

        own = measured(ask, judged, words)
    cells = [f"{value:.4f} | {other:.4f}" for value, other in zip(own, plain, strict=True)]
    print(f"| {read.name} | {' | '.join(cells)} |", flush=True)
    return own[0] >= plain[0] - SLACK


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--set", nargs="*", default=[], help="sets to measure")
    parser.add_argument("--questions", type=int, default=600, help="questions of random words per set")
    given = parser.parse_args()
    print("| set | nDCG@10 | bm25s | first | bm25s | among ten | bm25s |")
    print("|---|---|---|---|---|---|---|", flush=True)
    folders = [folder for folder in sorted(given.folder.iterdir()) if is_judged_set(folder)]
    held = [compare(folder, given.questions) for folder in folders if not given.set or folder.name in given.set]
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
