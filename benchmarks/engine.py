"""How fast and how exact is the engine, compared with other embedded engines?

    python benchmarks/engine.py [--documents N] [--large N] [--texts FILE.jsonl] [--only NAME ...]

Every engine runs in a separate process, stores the same vectors and texts, and answers the same queries for ten texts.
Vectors are clustered, like those of real texts. With --texts, they are made by the embedder of pair from the texts in a
file of JSON lines. Recall is measured against an exhaustive search. Peers are installed by `make bench`.
"""

import argparse
import itertools
import json
import math
import multiprocessing
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from pair import Document, KnowledgeBase, Settings

DIMENSION = 384
HITS = 10
QUERIES = 300
BATCH = 1000
CLUSTERS = 500
SPREAD = 0.9
TEXT = (
    "Words that stand for a passage of some five hundred characters, which a reader would want to see with the hit. "
    * 4
)


# ── data ───────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Data:
    vectors: Any
    queries: Any

    def text(self, number: int) -> str:
        return f"{number} {TEXT}"


def clustered(count: int, seed: int = 1) -> Data:
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(CLUSTERS, DIMENSION)).astype(np.float32)
    vectors = np.empty((count + QUERIES, DIMENSION), np.float32)
    for begin in range(0, len(vectors), 50_000):
        block = vectors[begin : begin + 50_000]
        block[:] = centres[rng.integers(0, CLUSTERS, len(block))]
        block += SPREAD * rng.standard_normal(block.shape, dtype=np.float32)
        block /= np.linalg.norm(block, axis=1, keepdims=True)
    return Data(vectors[:count], vectors[count:])


def embedded(path: Path, count: int, scratch: Path) -> Data:
    """Return the vectors of the texts in a file of JSON lines, made by the default embedder.

    The embedder runs in a separate process, because the threads of its libraries do not survive later forks.
    """
    scratch.mkdir()
    in_a_process(_embed, path, count + QUERIES, scratch / "vectors.npy")
    vectors = np.load(scratch / "vectors.npy")
    order = np.random.default_rng(1).permutation(len(vectors))
    return Data(vectors[order[QUERIES:]], vectors[order[:QUERIES]])


def _embed(path: Path, count: int, saved: Path) -> dict[str, float]:
    from pair.ai.wordllama import WordLlamaEmbedder

    with path.open(encoding="utf-8") as stream:
        values = [json.loads(line) for line in itertools.islice(stream, count)]
    np.save(saved, WordLlamaEmbedder().embed([f"{value.get('title', '')} {value['text']}"[:500] for value in values]))
    return {}


def true_neighbours(data: Data, allowed: Any = None) -> list[set[int]]:
    """Return the exact neighbours with all ties of the last one: copies of a text are right in any order."""
    squares = np.einsum("ij,ij->i", data.vectors, data.vectors)
    found = []
    for query in data.queries:
        distances = squares - 2 * (data.vectors @ query)
        if allowed is not None:
            distances = np.where(allowed, distances, np.inf)
        farthest = np.partition(distances, HITS - 1)[HITS - 1]
        found.append(set(np.flatnonzero(distances <= farthest + 1e-5).tolist()))
    return found


# ── engines ────────────────────────────────────────────────────────────────────────────────────────


class Pair:
    def __init__(self, folder: Path, dimension: int) -> None:
        self.kb = pair_kb(folder, EMBEDDING_DIMENSION=dimension)

    def add_all(self, data: Data) -> None:
        self.kb.upsert(documents_of(data))

    def ask(self, query: Any) -> list[tuple[int, str]]:
        return [(int(hit.document_id), hit.text) for hit in self.kb.search_vector(query, limit=HITS)]


class Chroma:
    def __init__(self, folder: Path, dimension: int) -> None:
        import chromadb

        client = chromadb.PersistentClient(str(folder), settings=chromadb.Settings(anonymized_telemetry=False))
        self._collection = client.get_or_create_collection("bench", metadata={"hnsw:space": "l2"})

    def add(self, begin: int, vectors: Any, texts: Sequence[str]) -> None:
        ids = [str(begin + number) for number in range(len(texts))]
        self._collection.add(ids=ids, embeddings=vectors, documents=list(texts))

    def finish(self) -> None:
        pass

    def ask(self, query: Any) -> list[tuple[int, str]]:
        found: Any = self._collection.query(query_embeddings=[query], n_results=HITS, include=["documents"])
        return [(int(name), text) for name, text in zip(found["ids"][0], found["documents"][0], strict=True)]


class Lance:
    def __init__(self, folder: Path, dimension: int) -> None:
        os.environ["LANCE_LOG"] = "error"
        import lancedb

        self._db = lancedb.connect(str(folder))
        self._table: Any = self._db.open_table("bench") if "bench" in self._db.list_tables().tables else None

    def add(self, begin: int, vectors: Any, texts: Sequence[str]) -> None:
        rows = [
            {"number": begin + number, "vector": vector, "text": text}
            for number, (vector, text) in enumerate(zip(vectors, texts, strict=True))
        ]
        if self._table is None:
            self._table = self._db.create_table("bench", rows)
        else:
            self._table.add(rows)

    def finish(self) -> None:
        from lancedb.index import HnswSq

        self._table.create_index("vector", config=HnswSq(distance_type="l2"))

    def ask(self, query: Any) -> list[tuple[int, str]]:
        found = (
            self._table.search(query)
            .limit(HITS)
            .nprobes(20)
            .refine_factor(4)
            .select(["number", "text", "_distance"])
            .to_list()
        )
        return [(row["number"], row["text"]) for row in found]


class SqliteVec:
    def __init__(self, folder: Path, dimension: int) -> None:
        import apsw
        import sqlite_vec

        folder.mkdir(parents=True, exist_ok=True)
        self._db = apsw.Connection(str(folder / "bench.sqlite"))
        self._db.enable_load_extension(True)
        self._db.load_extension(sqlite_vec.loadable_path())
        self._db.execute(f"CREATE VIRTUAL TABLE IF NOT EXISTS vectors USING vec0(vector float[{dimension}])")
        self._db.execute("CREATE TABLE IF NOT EXISTS texts (number INTEGER PRIMARY KEY, text TEXT)")

    def add(self, begin: int, vectors: Any, texts: Sequence[str]) -> None:
        numbered = range(begin + 1, begin + 1 + len(texts))
        with self._db:
            self._db.executemany(
                "INSERT INTO vectors (rowid, vector) VALUES (?, ?)",
                ((number, vector.tobytes()) for number, vector in zip(numbered, vectors, strict=True)),
            )
            self._db.executemany("INSERT INTO texts VALUES (?, ?)", zip(numbered, texts, strict=True))

    def finish(self) -> None:
        pass

    def ask(self, query: Any) -> list[tuple[int, str]]:
        rows = self._db.execute(
            "SELECT t.number, t.text FROM (SELECT rowid FROM vectors WHERE vector MATCH ? AND k = ?) v"
            " JOIN texts t ON t.number = v.rowid",
            (query.tobytes(), HITS),
        )
        return [(number - 1, text) for number, text in rows]


class Qdrant:
    def __init__(self, folder: Path, dimension: int) -> None:
        from qdrant_client import QdrantClient, models

        self._models = models
        self._client = QdrantClient(path=str(folder))
        if not self._client.collection_exists("bench"):
            parameters = models.VectorParams(size=dimension, distance=models.Distance.EUCLID)
            self._client.create_collection("bench", vectors_config=parameters)

    def add(self, begin: int, vectors: Any, texts: Sequence[str]) -> None:
        points = [
            self._models.PointStruct(id=begin + number, vector=vector.tolist(), payload={"text": text})
            for number, (vector, text) in enumerate(zip(vectors, texts, strict=True))
        ]
        self._client.upsert("bench", points)

    def finish(self) -> None:
        pass

    def ask(self, query: Any) -> list[tuple[int, str]]:
        found = self._client.query_points("bench", query=query, limit=HITS, with_payload=True).points
        return [(int(point.id), (point.payload or {})["text"]) for point in found]


class BareFaiss:
    """A bare faiss index in memory, without texts: the lower limit."""

    def __init__(self, folder: Path, dimension: int) -> None:
        import faiss as typed_faiss

        self._faiss: Any = typed_faiss
        self._dimension = dimension
        self._index: Any = None

    def add(self, begin: int, vectors: Any, texts: Sequence[str]) -> None:
        if self._index is None:
            self._index = self._faiss.IndexHNSWFlat(self._dimension, 32)
            self._index.hnsw.efSearch = 128  # a lower value does not reach the recall of the others
        self._index.add(np.ascontiguousarray(vectors))

    def finish(self) -> None:
        pass

    def ask(self, query: Any) -> list[tuple[int, str]]:
        _, found = self._index.search(query[None, :], HITS)
        return [(int(number), "") for number in found[0]]


PEERS: dict[str, Any] = {
    "pair": Pair,
    "Chroma": Chroma,
    "LanceDB": Lance,
    "sqlite-vec": SqliteVec,
    "Qdrant local": Qdrant,
    "bare faiss, no texts": BareFaiss,
}
WITHOUT_INDEX = {"sqlite-vec", "Qdrant local"}
"""Engines that scan every vector: adding is cheap for them, and searching expensive."""
SLOW = {"Qdrant local": 20_000}
"""The largest number of documents for slow engines."""


def pair_settings(folder: Path, **policy: Any) -> "Settings":
    from pair import Settings

    places = {
        "STORE": folder / "store",
        "CACHE_DIR": folder / "cache",
        "EMBEDDER": "ngram",
        "EMBEDDING_DIMENSION": DIMENSION,
        "GRAPH": "off",
        **policy,
    }
    return Settings.load(environment={f"PAIR__ENGINE__{key.upper()}": str(value) for key, value in places.items()})


def pair_kb(folder: Path, **policy: Any) -> "KnowledgeBase":
    import pair

    return pair.open("bench", settings=pair_settings(folder, **policy))


def documents_of(data: Data) -> "Iterator[Document]":
    from pair import Document

    for number, vector in enumerate(data.vectors):
        yield Document(id=str(number), text=data.text(number), vector=vector)


# ── measuring ──────────────────────────────────────────────────────────────────────────────────────


def asked(ask: Callable[[Any], list[tuple[int, str]]], data: Data, truth: Sequence[set[int]]) -> dict[str, float]:
    for query in data.queries:  # warm up: each engine has done its one-time work
        ask(query)
    seconds, right = [], 0
    for query, expected in zip(data.queries, truth, strict=True):
        began = time.perf_counter()
        found = ask(query)
        seconds.append(time.perf_counter() - began)
        right += min(HITS, len(expected & {number for number, _ in found}))
    return {
        "p50_ms": float(np.percentile(seconds, 50)) * 1000,
        "p99_ms": float(np.percentile(seconds, 99)) * 1000,
        "qps": len(seconds) / sum(seconds),
        "recall": right / (HITS * len(truth)),
    }


def measure_one(name: str, folder: Path, data: Data, truth: Sequence[set[int]]) -> dict[str, float]:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    engine = PEERS[name](folder, data.vectors.shape[1])
    began = time.perf_counter()
    if isinstance(engine, Pair):
        engine.add_all(data)
    else:
        for begin in range(0, len(data.vectors), BATCH):
            block = data.vectors[begin : begin + BATCH]
            engine.add(begin, block, [data.text(begin + number) for number in range(len(block))])
        engine.finish()
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    figures = asked(engine.ask, data, truth)
    return {"ingest_s": seconds, "docs_s": len(data.vectors) / seconds, "peak_mb": (peak - before) / 1000, **figures}


def in_a_process(work: Callable[..., dict[str, float]], *arguments: Any) -> dict[str, float]:
    """Run the work in a forked process, so that engines share only the data."""
    context = multiprocessing.get_context("fork")
    answers: Any = context.SimpleQueue()
    child = context.Process(target=lambda: answers.put(work(*arguments)))
    child.start()
    child.join()
    if child.exitcode != 0:
        raise RuntimeError(f"a benchmark ended with {child.exitcode}")
    figures: dict[str, float] = answers.get()
    return figures


def compare(folder: Path, data: Data, title: str, only: Sequence[str]) -> None:
    print(f"\n## {title}: {len(data.vectors):,} documents, {HITS} hits with their texts, one thread\n")
    print("| engine | p50 ms | p99 ms | queries/s | recall@10 | ingest documents/s | memory MB |")
    print("|---|---|---|---|---|---|---|", flush=True)
    truth = true_neighbours(data)
    for name in PEERS:
        if only and name not in only:
            continue
        count = min(SLOW.get(name, len(data.vectors)), len(data.vectors))
        used = data if count == len(data.vectors) else Data(data.vectors[:count], data.queries)
        expected = truth if used is data else true_neighbours(used)
        figures = in_a_process(measure_one, name, folder / name.replace(" ", "-"), used, expected)
        label = name if used is data else f"{name} ({count:,} documents)"
        label += ", no index" if name in WITHOUT_INDEX else ""
        print(
            f"| {label} | {figures['p50_ms']:.2f} | {figures['p99_ms']:.2f} | {figures['qps']:,.0f} "
            f"| {figures['recall']:.3f} | {figures['docs_s']:,.0f} | {figures['peak_mb']:,.0f} |",
            flush=True,
        )


# ── from a cold start ──────────────────────────────────────────────────────────────────────────────

FIRST_ANSWER = """
import sys
sys.path.insert(0, {here!r})
import numpy as np
import engine
from pathlib import Path
query = np.load({query!r})
found = engine.PEERS[{name!r}](Path({folder!r}), len(query)).ask(query)
assert len(found) == engine.HITS, found
"""


def cold(folder: Path, data: Data, only: Sequence[str]) -> None:
    print("\n## Cold: from the start of the process to the first answer\n")
    print("| engine | seconds |")
    print("|---|---|", flush=True)
    np.save(folder / "query.npy", data.queries[0])
    for name in PEERS:
        place = folder / name.replace(" ", "-")
        if name.startswith("bare") or (only and name not in only) or not place.exists():
            continue
        here, query = str(Path(__file__).parent), str(folder / "query.npy")
        script = FIRST_ANSWER.format(here=here, name=name, folder=str(place), query=query)
        seconds = []
        for _ in range(5):
            began = time.perf_counter()
            subprocess.run([sys.executable, "-c", script], check=True, stdout=subprocess.DEVNULL)
            seconds.append(time.perf_counter() - began)
        print(f"| {name} | {sorted(seconds)[2]:.2f} |", flush=True)


FIRST_ANSWER_FROM_S3 = """
import sys
sys.path.insert(0, {here!r})
import numpy as np
import engine
from pathlib import Path
with engine.pair_kb(Path({folder!r}), **{policy!r}) as kb:
    assert len(kb.search_vector(np.load({query!r}), limit=engine.HITS)) == engine.HITS
    stats = kb.stats()
print(stats.cache["bytes_fetched"] / stats.size_bytes)
"""


def cold_from_s3(folder: Path, data: Data) -> dict[str, float]:
    """Measure a cold start with the KB on a local S3 server and an empty cache."""
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
    from pair.blobs.local import LocalStore
    from support.s3_server import ACCESS_KEY, SECRET_KEY, running_s3

    folder.mkdir()
    np.save(folder / "query.npy", data.queries[0])
    with running_s3(folder) as server:
        os.environ.update(AWS_ACCESS_KEY_ID=ACCESS_KEY, AWS_SECRET_ACCESS_KEY=SECRET_KEY)
        policy = {
            "STORE": "s3://blobs/bench",
            "S3_ENDPOINT": server.options.endpoint_url,
            "S3_REGION": server.options.region,
        }
        with pair_kb(folder / "local") as kb:
            kb.upsert(documents_of(data))
            kb.maintenance.collect(grace_seconds=0)
        local, remote = LocalStore(folder / "local" / "store"), server.store("bench")
        for entry in local.list(""):
            blob = local.get(entry.key)
            assert blob is not None
            remote.put(entry.key, blob.data)
        script = FIRST_ANSWER_FROM_S3.format(
            here=str(Path(__file__).parent), folder=str(folder), policy=policy, query=str(folder / "query.npy")
        )
        seconds, share = [], ""
        for _ in range(3):
            shutil.rmtree(folder / "cache", ignore_errors=True)
            began = time.perf_counter()
            share = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
            seconds.append(time.perf_counter() - began)
    return {"seconds": sorted(seconds)[1], "share": float(share)}


# ── growth, fan-out, wear ──────────────────────────────────────────────────────────────────────────


def grown(folder: Path, data: Data) -> dict[str, float]:
    from pair import Document

    kb = pair_kb(folder)
    began = time.perf_counter()
    kb.upsert(documents_of(data))
    ingest = time.perf_counter() - began
    figures = asked(Asking(kb), data, true_neighbours(data))
    writes = []
    for number in range(9):
        began = time.perf_counter()
        kb.upsert([Document(id=f"single-{number}", text=data.text(number), vector=data.queries[number])])
        writes.append(time.perf_counter() - began)
    stats = kb.stats()
    assert stats is not None
    raw = data.vectors.nbytes + len(data.vectors) * len(data.text(0))
    return {
        "ingest_s": ingest,
        "write_ms": float(np.median(writes)) * 1000,
        "storage": stats.size_bytes / raw,
        "shards": stats.shards,
        **figures,
    }


@dataclass(frozen=True)
class Asking:
    kb: "KnowledgeBase"

    def __call__(self, query: Any) -> list[tuple[int, str]]:
        return [
            (int(hit.document_id) if hit.document_id.isdigit() else -1, hit.text)
            for hit in self.kb.search_vector(query, limit=HITS)
        ]


def growth(folder: Path, sizes: Sequence[int]) -> None:
    print("\n## Growth\n")
    print("| documents | shards | p50 ms | recall@10 | one write ms | ingest documents/s | storage / raw |")
    print("|---|---|---|---|---|---|---|", flush=True)
    measured = {}
    for size in sizes:
        data = clustered(size)
        measured[size] = figures = in_a_process(grown, folder / f"grown-{size}", data)
        print(
            f"| {size:,} | {figures['shards']:.0f} | {figures['p50_ms']:.2f} | {figures['recall']:.3f} "
            f"| {figures['write_ms']:.1f} | {size / figures['ingest_s']:,.0f} | {figures['storage']:.2f} |",
            flush=True,
        )
        shutil.rmtree(folder / f"grown-{size}")
    small, large = min(sizes), max(sizes)
    for name, key in (("p50", "p50_ms"), ("one write", "write_ms"), ("ingest", "ingest_s")):
        ratio = measured[large][key] / measured[small][key]
        exponent = math.log(ratio) / math.log(large / small)
        print(f"\n{name} from {small:,} to {large:,}: {ratio:.2f} x, exponent {exponent:.2f}", flush=True)


def worn(folder: Path, data: Data) -> dict[str, float]:
    """Measure recall after each kind of change to a KB."""
    kb = pair_kb(folder, COMPACTION_ENABLED=False)
    kb.upsert(documents_of(data))
    truth = true_neighbours(data)
    measured = {"ingest": asked(Asking(kb), data, truth)["recall"]}
    kb.maintenance.compact(everything=True)
    measured["compaction"] = asked(Asking(kb), data, truth)["recall"]
    gone = np.arange(len(data.vectors)) % 10 < 3
    kb.delete([str(number) for number in np.flatnonzero(gone)])
    truth = true_neighbours(data, ~gone)
    measured["deleting 30 %"] = asked(Asking(kb), data, truth)["recall"]
    kb.close()
    kb = pair_kb(folder, COMPACTION_ENABLED=False)
    measured["a restart"] = asked(Asking(kb), data, truth)["recall"]
    return measured


def fan_out(folder: Path, data: Data) -> dict[str, float]:
    """Measure queries of a KB with many shards from a process with an empty cache."""
    small = {"SHARD_TRIGGER_BYTES": 4_000_000, "TARGET_SHARD_BYTES": 8_000_000}
    with pair_kb(folder, **small) as kb:
        kb.upsert(documents_of(data))
        kb.maintenance.compact(everything=True)
        recall = asked(Asking(kb), data, true_neighbours(data))["recall"]
        stats = kb.stats()
    assert stats is not None
    shares = []
    for query in data.queries[:20]:
        shutil.rmtree(folder / "cache")
        with pair_kb(folder, **small) as fresh:
            fresh.search_vector(query, limit=HITS)
            after = fresh.stats()
            assert after is not None
            shares.append(after.cache["bytes_fetched"] / after.size_bytes)
    return {"shards": stats.shards, "recall": recall, "share": float(np.median(shares))}


FILTERS: dict[str, Any] = {
    "none": None,
    "half": {"half": "a"},
    "range of 90 %": {"share": {"gte": 10}},
    "or, not, exists": {"$or": [{"share": {"lt": 5}}, {"$not": {"half": "a"}}], "nothing": {"exists": False}},
    "2,000 values": {"number": list(range(0, 20_000, 10))},
    "1 %": {"share": 7},
    "one document": {"number": 77},
}


def filtered(folder: Path, data: Data) -> dict[str, float]:
    """Return the median milliseconds of a search with each filter, measured in turns, and of the first filtered one."""
    from pair import Document

    with pair_kb(folder) as kb:
        kb.upsert(
            Document(str(number), data.text(number), vector=vector, metadata=metadata)
            for number, vector in enumerate(data.vectors)
            for metadata in [
                {"number": number, "half": "ab"[number % 2], "share": number % 100, "path": f"{number}.md"}
            ]
        )
        kb.search_vector(data.queries[0], limit=HITS)
    with pair_kb(folder) as kb:
        kb.search_vector(data.queries[0], limit=HITS)
        began = time.perf_counter()
        kb.search_vector(data.queries[0], limit=HITS, filter=FILTERS["half"])
        first = time.perf_counter() - began
        seconds: dict[str, list[float]] = {name: [] for name in FILTERS}
        for query in data.queries:
            for name, condition in FILTERS.items():
                began = time.perf_counter()
                kb.search_vector(query, limit=HITS, filter=condition)
                seconds[name].append(time.perf_counter() - began)
    return {"first": first * 1000, **{name: float(np.median(taken)) * 1000 for name, taken in seconds.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--large", type=int, default=1_000_000, help="largest KB of the growth table")
    parser.add_argument("--texts", type=Path, help="JSON lines with title and text, for vectors of real texts")
    parser.add_argument("--only", nargs="*", default=[], help="engines to compare")
    parser.add_argument("--tables", nargs="*", default=["compare", "cold", "growth", "wear", "fan-out", "filters"])
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pair-bench-") as name:
        folder = Path(name)
        data = clustered(given.documents)
        if "compare" in given.tables:
            compare(folder, data, "Clustered vectors", given.only)
        if "cold" in given.tables:
            cold(folder, data, given.only)
            figures = in_a_process(cold_from_s3, folder / "s3", data)
            print(
                f"\npair, KB on S3, nothing fetched before: {figures['seconds']:.2f} s, "
                f"{figures['share']:.0%} of the KB fetched",
                flush=True,
            )
        if given.texts:
            texts = embedded(given.texts, given.documents, folder / "texts")
            compare(folder / "texts", texts, "Vectors of real texts", given.only)
        if "wear" in given.tables:
            measured = in_a_process(worn, folder / "worn", data)
            told = ", ".join(f"{recall:.3f} after {event}" for event, recall in measured.items())
            print(f"\nrecall@10 of {given.documents:,}: {told}", flush=True)
        if "fan-out" in given.tables:
            figures = in_a_process(fan_out, folder / "fan-out", data)
            print(
                f"\nfan-out over {figures['shards']:.0f} shards: recall@10 {figures['recall']:.3f}, "
                f"a cold query fetches {figures['share']:.0%} of the KB",
                flush=True,
            )
        if "filters" in given.tables:
            figures = in_a_process(filtered, folder / "filtered", data)
            print(f"\n## Filters: {given.documents:,} documents, {HITS} hits\n")
            print("| filter | p50 ms | of no filter |")
            print("|---|---|---|")
            for label in FILTERS:
                print(f"| {label} | {figures[label]:.2f} | {figures[label] / figures['none']:.2f} |")
            print(f"\nfirst search with a filter: {figures['first']:.1f} ms", flush=True)
        if "growth" in given.tables:
            growth(folder, [size for size in (1_000, 10_000, 100_000, given.large) if size <= given.large])


if __name__ == "__main__":
    main()
