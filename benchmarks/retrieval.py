"""How fast is hybrid search, compared with other embedded engines?

    python benchmarks/retrieval.py [--documents N] [--texts FILE.jsonl] [--tables NAME ...] [--only NAME ...]

Every engine stores the same chunks with the same vectors. A new process then asks it the same questions for ten texts,
one after another. The time includes the vector of the question, made by the embedder of pair. Texts come from a file of
JSON lines (title, text), or are random words with natural frequencies. Questions are words of a stored text: a phrase
in a sentence, or one to three rare words. Peers are installed by `make bench`.
"""

import argparse
import collections
import itertools
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from engine import in_a_process

if TYPE_CHECKING:
    from pair import KnowledgeBase, Settings

HITS = 10
QUERIES = 200
WARMING = 50
MOST_CHUNKS = 100_000
CHUNK_BYTES = 500
DIMENSION = 256
BATCH = 1000
CORES = 2
NEAR, WORDED = 200, 100
"""Numbers of candidates by vector and by words, for peers whose lists are joined here; equal to those of pair."""
MODES = ("hybrid", "keyword", "vector", "graph", "adaptive")
STARTS = 5


# ── data ───────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Text:
    title: str
    text: str


@dataclass(frozen=True)
class Piece:
    """A chunk as pair cuts it. Peers store the same one."""

    document: int
    found_by: str
    """The text with its title, for keyword search."""


@dataclass(frozen=True)
class Data:
    texts: Sequence[Text]
    pieces: Sequence[Piece]
    vectors: Any


@dataclass(frozen=True)
class Question:
    text: str
    document: int
    """The document that its words are from."""


def texts_in(path: Path) -> Iterator[Text]:
    with path.open(encoding="utf-8") as stream:
        for line in stream:
            value = json.loads(line)
            yield Text(value.get("title", ""), value["text"])


def made_up_texts() -> Iterator[Text]:
    """Yield texts of about one chunk. The n-th word is 1/n times as frequent as the first; every tenth is a name."""
    rng = np.random.default_rng(1)
    syllables = [first + second for first in "bdfgklmnprstvz" for second in ("a", "e", "i", "o", "u", "an", "er")]
    lengths = np.minimum(1 + np.log2(np.arange(1, 50_001)) / 5, 4).astype(int)
    words = ["".join(rng.choice(syllables, length)) for length in lengths.tolist()]
    words = [word.capitalize() if number % 10 == 9 else word for number, word in enumerate(words)]
    shares = 1 / np.arange(1, len(words) + 1)
    ends = np.cumsum(shares / shares.sum())
    while True:
        numbers = np.searchsorted(ends, rng.random((BATCH, 75))).clip(max=len(words) - 1)
        for row in numbers.tolist():
            chosen = [words[number] for number in row]
            yield Text(" ".join(chosen[:3]), ". ".join(" ".join(chosen[at : at + 12]) for at in range(3, 75, 12)) + ".")


def data_of(texts: Iterable[Text]) -> Data:
    from pair.ai.wordllama import WordLlamaEmbedder
    from pair.engine.write.chunking import format_for_embedding, split

    used: list[Text] = []
    pieces: list[Piece] = []
    for text in texts:
        chunks = split(text.text, CHUNK_BYTES)
        if len(pieces) + len(chunks) > MOST_CHUNKS:
            break
        pieces += [Piece(len(used), format_for_embedding(text.title, chunk)) for chunk in chunks]
        used.append(text)
    embedder = WordLlamaEmbedder()
    blocks = [pieces[begin : begin + BATCH] for begin in range(0, len(pieces), BATCH)]
    vectors = np.concatenate([embedder.embed([piece.found_by for piece in block]) for block in blocks])
    return Data(used, pieces, vectors)


def questions_on(data: Data) -> list[Question]:
    """Return questions. Every second one is a sentence."""
    rng = np.random.default_rng(2)
    rows_with = collections.Counter(word for piece in data.pieces for word in set(words_of(piece.found_by)))
    questions: list[Question] = []
    for number in rng.permutation(len(data.pieces)).tolist():
        piece = data.pieces[number]
        words = words_of(piece.found_by)
        if len(words) < 12:
            continue
        if len(questions) % 2:
            begin = int(rng.integers(len(words) - 7))
            text = f"What is known about {' '.join(words[begin : begin + 7])}?"
        else:
            rare = sorted(dict.fromkeys(words), key=lambda word: rows_with[word])
            text = " ".join(rare[: int(rng.integers(1, 4))])
        questions.append(Question(text, piece.document))
        if len(questions) == QUERIES + WARMING:
            break
    return questions


def words_of(text: str) -> list[str]:
    return re.findall(r"\w+", text)


# ── engines ────────────────────────────────────────────────────────────────────────────────────────


class Pair:
    def __init__(self, folder: Path) -> None:
        self._kb = opened(folder)

    def fill(self, data: Data) -> None:
        self._kb.upsert(documents_of(data))

    def ask(self, question: str, mode: str = "hybrid") -> list[tuple[int, str]]:
        """Return the hits, and the other documents that have the same text: pair folds copies into one hit."""
        return [
            (int(document), hit.text)
            for hit in self._kb.search(question, limit=HITS, mode=mode)
            for document in (hit.document_id, *(other.document_id for other in hit.also_in))
        ]


class Asked:
    """A question as a vector, and as words for the peers."""

    def __init__(self) -> None:
        from pair.ai.wordllama import WordLlamaEmbedder
        from pair.text.characters import STOP_WORDS

        self._embedder = WordLlamaEmbedder()
        self._common = STOP_WORDS
        self.weight = self._embedder.hybrid_weight

    def vector(self, question: str) -> Any:
        return self._embedder.embed_queries([question])[0]

    def words(self, question: str) -> list[str]:
        """Return the words of a question, without those that occur in every text."""
        return [word for word in words_of(question) if word.lower() not in self._common] or words_of(question)


def joined(worded: dict[int, float], distances: dict[int, float], weight: float) -> list[int]:
    """Return the best of two lists by the weighted sum of their scores, each scaled to its range."""
    best = max(worded.values(), default=0.0)
    near, far = min(distances.values(), default=0.0), max(distances.values(), default=0.0)
    scores = {number: (1 - weight) * score / best for number, score in worded.items() if best > 0}
    for number, distance in distances.items():
        value = (far - distance) / (far - near) if far > near else 1.0
        scores[number] = scores.get(number, 0.0) + weight * value
    return sorted(scores, key=lambda number: -scores[number])[:HITS]


class Lance:
    """LanceDB with its hybrid search and its default fusion."""

    def __init__(self, folder: Path) -> None:
        import lancedb
        from lancedb.rerankers import RRFReranker

        self._db = lancedb.connect(str(folder))
        self._table: Any = self._db.open_table("bench") if "bench" in self._db.list_tables().tables else None
        self._asked = Asked()
        self._reranker = RRFReranker()

    def fill(self, data: Data) -> None:
        from lancedb.index import FTS, HnswSq

        for begin in range(0, len(data.pieces), BATCH):
            block = data.pieces[begin : begin + BATCH]
            rows = [
                {"document": piece.document, "vector": vector, "text": piece.found_by}
                for piece, vector in zip(block, data.vectors[begin : begin + BATCH], strict=True)
            ]
            if self._table is None:
                self._table = self._db.create_table("bench", rows)
            else:
                self._table.add(rows)
        self._table.optimize()
        self._table.create_index("vector", config=HnswSq(distance_type="l2"))
        self._table.create_index("text", config=FTS())

    def ask(self, question: str) -> list[tuple[int, str]]:
        search = self._table.search(query_type="hybrid").vector(self._asked.vector(question))
        search = search.text(" ".join(self._asked.words(question))).rerank(self._reranker)
        return [(row["document"], row["text"]) for row in search.limit(HITS).to_list()]


class Sqlite:
    """SQLite with FTS5 and sqlite-vec, summed in Python."""

    def __init__(self, folder: Path) -> None:
        import apsw
        import sqlite_vec

        folder.mkdir(parents=True, exist_ok=True)
        self._asked = Asked()
        self._db = apsw.Connection(str(folder / "bench.sqlite"))
        self._db.enable_load_extension(True)
        self._db.load_extension(sqlite_vec.loadable_path())
        self._db.execute(f"CREATE VIRTUAL TABLE IF NOT EXISTS vectors USING vec0(vector float[{DIMENSION}])")
        self._db.execute("CREATE VIRTUAL TABLE IF NOT EXISTS words USING fts5(text, tokenize='porter unicode61')")
        self._db.execute("CREATE TABLE IF NOT EXISTS documents (number INTEGER PRIMARY KEY, document INTEGER)")

    def fill(self, data: Data) -> None:
        with self._db:
            numbered = list(enumerate(data.pieces, 1))
            self._db.executemany(
                "INSERT INTO vectors (rowid, vector) VALUES (?, ?)",
                ((number, vector.tobytes()) for number, vector in enumerate(data.vectors, 1)),
            )
            self._db.executemany(
                "INSERT INTO words (rowid, text) VALUES (?, ?)", ((number, each.found_by) for number, each in numbered)
            )
            self._db.executemany(
                "INSERT INTO documents VALUES (?, ?)", ((number, each.document) for number, each in numbered)
            )
        self._db.execute("INSERT INTO words (words) VALUES ('optimize')")

    def ask(self, question: str) -> list[tuple[int, str]]:
        wanted = " OR ".join(f'"{word}"' for word in self._asked.words(question))
        worded = self._db.execute(
            "SELECT rowid, -rank FROM words WHERE words MATCH ? ORDER BY rank LIMIT ?", (wanted, WORDED)
        )
        near = self._db.execute(
            "SELECT rowid, distance FROM vectors WHERE vector MATCH ? AND k = ?",
            (self._asked.vector(question).tobytes(), NEAR),
        )
        return [
            found
            for number in joined(dict(worded), dict(near), self._asked.weight)
            for found in self._db.execute(
                "SELECT document, text FROM documents JOIN words ON words.rowid = number WHERE number = ?", (number,)
            )
        ]


class ChromaWithWords:
    """Chroma and bm25s, summed in Python."""

    def __init__(self, folder: Path) -> None:
        import bm25s
        import chromadb

        self._bm25s: Any = bm25s
        self._place = folder / "words"
        self._asked = Asked()
        client = chromadb.PersistentClient(str(folder), settings=chromadb.Settings(anonymized_telemetry=False))
        self._collection = client.get_or_create_collection("bench", metadata={"hnsw:space": "l2"})
        self._words: Any = bm25s.BM25.load(self._place) if self._place.exists() else None

    def _tokens(self, texts: Sequence[str]) -> Any:
        import Stemmer

        stemmer = Stemmer.Stemmer("english")
        return self._bm25s.tokenize(list(texts), stopwords="en", stemmer=stemmer, show_progress=False)

    def fill(self, data: Data) -> None:
        for begin in range(0, len(data.pieces), BATCH):
            block = data.pieces[begin : begin + BATCH]
            self._collection.add(
                ids=[str(begin + number) for number in range(len(block))],
                embeddings=data.vectors[begin : begin + BATCH],
                documents=[piece.found_by for piece in block],
                metadatas=[{"document": piece.document} for piece in block],
            )
        self._words = self._bm25s.BM25()
        self._words.index(self._tokens([piece.found_by for piece in data.pieces]), show_progress=False)
        self._words.save(self._place)

    def ask(self, question: str) -> list[tuple[int, str]]:
        tokens = self._tokens([question])
        rows, scores = self._words.retrieve(tokens, k=WORDED, show_progress=False)
        worded = dict(zip(rows[0].tolist(), scores[0].tolist(), strict=True))
        near: Any = self._collection.query(
            query_embeddings=[self._asked.vector(question)], n_results=NEAR, include=["distances"]
        )
        distances = dict(zip(map(int, near["ids"][0]), near["distances"][0], strict=True))
        best = joined(worded, distances, self._asked.weight)
        found: Any = self._collection.get(ids=[str(number) for number in best], include=["documents", "metadatas"])
        return [
            (int(metadata["document"]), text)
            for metadata, text in zip(found["metadatas"], found["documents"], strict=True)
        ]


class Tantivy:
    """Tantivy: keyword search by BM25 with English stems, in Rust."""

    def __init__(self, folder: Path) -> None:
        import tantivy

        self._tantivy: Any = tantivy
        self._asked = Asked()
        fields = tantivy.SchemaBuilder()
        fields.add_integer_field("document", stored=True)
        fields.add_text_field("text", stored=True, tokenizer_name="en_stem", index_option="freq")
        folder.mkdir(parents=True, exist_ok=True)
        self._index = tantivy.Index(fields.build(), path=str(folder))
        self._searcher = self._index.searcher()

    def fill(self, data: Data) -> None:
        writer = self._index.writer(num_threads=1)
        for piece in data.pieces:
            writer.add_document(self._tantivy.Document(document=piece.document, text=piece.found_by))
        writer.commit()
        writer.wait_merging_threads()

    def ask(self, question: str) -> list[tuple[int, str]]:
        query, _ = self._index.parse_query_lenient(" ".join(self._asked.words(question)), ["text"])
        found = self._searcher.search(query, HITS, count=False).hits
        documents = (self._searcher.doc(place).to_dict() for _, place in found)
        return [(each["document"][0], each["text"][0]) for each in documents]


ENGINES: dict[str, Any] = {
    "pair": Pair,
    "LanceDB hybrid": Lance,
    "SQLite FTS5 + sqlite-vec": Sqlite,
    "Chroma + bm25s": ChromaWithWords,
    "tantivy, words only": Tantivy,
}


def opened(folder: Path, graph: str = "text") -> "KnowledgeBase":
    """Open a KB with default settings, except its place and the size of its chunks."""
    import pair

    return pair.open("bench", settings=settings_of(folder, graph))


def settings_of(folder: Path, graph: str) -> "Settings":
    import pair

    given = {"STORE": folder / "store", "CACHE_DIR": folder / "cache", "CHUNK_SIZE_BYTES": CHUNK_BYTES, "GRAPH": graph}
    variables = {f"PAIR__ENGINE__{key}": str(value) for key, value in given.items()}
    return pair.Settings.load(environment=variables)


def documents_of(data: Data) -> Iterator[Any]:
    from pair import Document

    for number, text in enumerate(data.texts):
        yield Document(id=str(number), title=text.title, text=text.text)


# ── asking ─────────────────────────────────────────────────────────────────────────────────────────


def filled(name: str, folder: Path, data: Data) -> dict[str, float]:
    began = time.perf_counter()
    ENGINES[name](folder).fill(data)
    return {"seconds": time.perf_counter() - began}


def resident_mb() -> float:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) / 1000


def served(name: str, folder: Path, questions: Sequence[Question], mode: str) -> dict[str, float]:
    """Measure queries in a new process."""
    before = resident_mb()
    engine = ENGINES[name](folder)
    more = {"mode": mode} if isinstance(engine, Pair) else {}
    for question in questions[:WARMING]:
        engine.ask(question.text, **more)
    seconds, worked, right = [], [], 0
    for question in questions[WARMING:]:
        began, worked_before = time.perf_counter(), time.process_time()
        found = engine.ask(question.text, **more)
        worked.append(time.process_time() - worked_before)
        seconds.append(time.perf_counter() - began)
        right += question.document in {number for number, _ in found}
    return {
        "p50_ms": float(np.percentile(seconds, 50)) * 1000,
        "p99_ms": float(np.percentile(seconds, 99)) * 1000,
        "qps": len(seconds) / sum(seconds),
        "cpu_ms": float(np.percentile(worked, 50)) * 1000,
        "right": right / len(seconds),
        "memory_mb": resident_mb(),
        "grown_mb": resident_mb() - before,
    }


def in_a_new_program(*arguments: str) -> dict[str, float]:
    """Run this program again in a new process."""
    command = [sys.executable, __file__, "--serve", *arguments]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def serve(name: str, folder: str, mode: str) -> None:
    """Ask all questions in this mode, or only one to time the first query of a process."""
    path = Path(folder) / "questions.json"
    questions = [Question(**each) for each in json.loads(path.read_text(encoding="utf-8"))]
    place = place_of(name, Path(folder))
    if mode == "first":
        assert ENGINES[name](place).ask(questions[1].text)
        print(json.dumps({}))
    else:
        print(json.dumps(served(name, place, questions, mode)))


def place_of(name: str, folder: Path) -> Path:
    return folder / re.sub(r"\W+", "-", name)


def compare(folder: Path, data: Data, only: Sequence[str]) -> None:
    questions = [{"text": each.text, "document": each.document} for each in questions_on(data)]
    (folder / "questions.json").write_text(json.dumps(questions), encoding="utf-8")
    print(f"\n## Words and meaning together: {len(data.pieces):,} chunks of {len(data.texts):,} documents\n")
    print(f"The question is embedded, {HITS} hits come with their texts; warm, one question after the other.\n")
    print("| engine | p50 ms | p99 ms | queries/s | CPU ms, p50 | its text found | memory MB | p50 / first |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    first = 0.0
    for name in ENGINES:
        if only and name not in only:
            continue
        in_a_process(filled, name, place_of(name, folder), data)
        for mode in MODES if name == "pair" else MODES[:1]:
            figures = in_a_new_program(name, str(folder), mode)
            first = first or figures["p50_ms"]
            print(
                f"| {name}{f', {mode}' if name == 'pair' else ''} | {figures['p50_ms']:.2f} | {figures['p99_ms']:.2f} "
                f"| {figures['qps']:,.0f} | {figures['cpu_ms']:.2f} | {figures['right']:.0%} "
                f"| {figures['memory_mb']:,.0f} (+{figures['grown_mb']:,.0f}) | {figures['p50_ms'] / first:.2f} |",
                flush=True,
            )


def start(folder: Path, only: Sequence[str]) -> None:
    print("\n## From the start of the process to the first hybrid hit\n")
    print("| engine | seconds |")
    print("|---|---|", flush=True)
    for name in ENGINES:
        if not place_of(name, folder).exists() or (only and name not in only):
            continue
        seconds = []
        for _ in range(STARTS):
            began = time.perf_counter()
            in_a_new_program(name, str(folder), "first")
            seconds.append(time.perf_counter() - began)
        print(f"| {name} | {float(np.median(seconds)):.2f} |", flush=True)


# ── storing ────────────────────────────────────────────────────────────────────────────────────────


def embedded(data: Data) -> dict[str, float]:
    from pair.ai.wordllama import WordLlamaEmbedder

    embedder = WordLlamaEmbedder()
    embedder.embed(["what is there to load"])
    texts = [piece.found_by for piece in data.pieces]
    began = time.perf_counter()
    with ThreadPoolExecutor(CORES) as pool:
        list(pool.map(embedder.embed, (texts[begin : begin + BATCH] for begin in range(0, len(texts), BATCH))))
    return {"seconds": time.perf_counter() - began}


def stored(folder: Path, data: Data, graph: str) -> dict[str, float]:
    with opened(folder, graph) as kb:
        began = time.perf_counter()
        kb.upsert(documents_of(data))
        return {"seconds": time.perf_counter() - began}


def ingest(folder: Path, data: Data) -> None:
    print("\n## Storing texts: cut, embed, index\n")
    print("| | seconds | chunks/s | of the embedder alone |")
    print("|---|---|---|---|", flush=True)
    alone = in_a_process(embedded, data)["seconds"]
    seconds = {f"the embedder alone, {CORES} threads": alone}
    for graph in ("off", "text"):
        seconds[f"pair, graph {graph}"] = in_a_process(stored, folder / f"graph-{graph}", data, graph)["seconds"]
    for name, each in seconds.items():
        print(f"| {name} | {each:.1f} | {len(data.pieces) / each:,.0f} | {alone / each:.2f} |", flush=True)
    without, with_graph = itertools.islice(seconds.values(), 1, 3)
    print(f"\nthe graph makes it {with_graph / without:.2f} times as long", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--documents", type=int, help="fewer, for a quick look")
    parser.add_argument("--texts", type=Path, help="JSON lines with title and text")
    parser.add_argument("--only", nargs="*", default=[], help="engines to compare")
    parser.add_argument("--tables", nargs="*", default=["compare", "start", "ingest"])
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(*given.serve)
        return
    texts = texts_in(given.texts) if given.texts else made_up_texts()
    data = data_of(itertools.islice(texts, given.documents))
    with tempfile.TemporaryDirectory(prefix="pair-bench-") as name:
        folder = Path(name)
        if "compare" in given.tables:
            compare(folder, data, given.only)
        if "start" in given.tables:
            start(folder, given.only)
        if "ingest" in given.tables:
            ingest(folder, data)


if __name__ == "__main__":
    main()
