"""Documents as a shard keeps them: a header, a text, chunks and their vectors; gathered, picked and put together."""

import hashlib
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pair.engine.format.bounded_json import load_json
from pair.engine.format.keyword_rows import KeywordRows, RowText, concatenate_rows, rows_of
from pair.engine.format.stored_graphs import StoredGraphs, concatenate_graphs, graphs_in_columns
from pair.values import NO_GRAPH, NO_GRAPH_YET, Chunk, Document, GraphRows

Vectors = npt.NDArray[np.float32]

CHUNK_TYPE = np.dtype([("doc", "<u4"), ("start_byte", "<u4"), ("end_byte", "<u4"), ("start", "<u4"), ("end", "<u4")])
"""`start` and `end` count characters of the text, as people and Python do."""

_CONTENT_HASH = re.compile("[0-9a-f]{32}")

IdentityHash = bytes
"""16 bytes that stand for the id of a document."""


@dataclass(frozen=True, slots=True)
class Header:
    """Everything about a document but its text and vectors."""

    id: str
    owner: str
    title: str
    url: str
    metadata: Mapping[str, Any]
    content_hash: str

    def to_bytes(self) -> bytes:
        value = {
            "id": self.id,
            "owner": self.owner,
            "title": self.title,
            "url": self.url,
            "metadata": self.metadata,
            "hash": self.content_hash,
        }
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(errors="surrogatepass")

    @staticmethod
    def from_bytes(content: bytes | memoryview) -> "Header":
        """Raises ValueError."""
        value = load_json(content)
        try:
            own, owner, title, url = value["id"], value["owner"], value["title"], value["url"]
            metadata, content_hash = value["metadata"], value["hash"]
        except (KeyError, TypeError, IndexError) as fault:
            raise ValueError("what it says of a document cannot be") from fault
        is_text = type(own) is type(owner) is type(title) is type(url) is type(content_hash) is str
        if not is_text or type(metadata) is not dict or _CONTENT_HASH.fullmatch(content_hash) is None:
            raise ValueError("what it says of a document cannot be")
        return Header(own, owner, title, url, metadata, content_hash)


def identity(document_id: str) -> IdentityHash:
    return hashlib.sha256(document_id.encode(errors="surrogatepass")).digest()[:16]


def content_hash(document: Document, owner: str, chunking: str) -> str:
    """Changes when anything that is stored of the document would change. `chunking`: how it is cut and embedded."""
    digest = hashlib.sha256()
    fields = [document.id, owner, document.title, document.url, document.text, chunking]
    fields.append(json.dumps(document.metadata, sort_keys=True, ensure_ascii=False, default=str))
    for each in fields:
        content = each.encode(errors="surrogatepass")
        digest.update(len(content).to_bytes(8, "little") + content)
    if document.vector is not None:
        digest.update(np.asarray(document.vector, dtype="<f4").tobytes())
    return digest.hexdigest()[:32]


@dataclass(frozen=True, eq=False)
class StoredDocuments:
    """Documents in columns, in the order of their numbers; chunks follow each other in the same order."""

    headers: Sequence[bytes]
    texts: Sequence[bytes]
    chunks: npt.NDArray[Any]
    vectors: Vectors
    graphs: StoredGraphs
    keywords: KeywordRows
    """Of the chunks."""

    @property
    def count(self) -> int:
        return len(self.headers)

    @property
    def size_bytes(self) -> int:
        """About what a shard of them takes in the store."""
        texts = sum(map(len, self.texts)) + sum(map(len, self.headers))
        return 2 * texts + round(self.vectors.nbytes * 1.4) + 4 * len(self.keywords.terms)

    def chunk_counts(self) -> npt.NDArray[np.int64]:
        return np.bincount(self.chunks["doc"], minlength=self.count).astype(np.int64)

    def pick(self, numbers: npt.NDArray[np.int64]) -> "StoredDocuments":
        """Only these documents, in ascending order of `numbers`, numbered anew."""
        new_number = np.full(self.count, -1, np.int64)
        new_number[numbers] = np.arange(len(numbers))
        rows = np.flatnonzero(new_number[self.chunks["doc"]] >= 0)
        chunks = self.chunks[rows]
        chunks["doc"] = new_number[chunks["doc"]]
        return StoredDocuments(
            [self.headers[number] for number in numbers],
            [self.texts[number] for number in numbers],
            chunks,
            self.vectors[rows],
            self.graphs.pick(new_number),
            self.keywords.pick(rows),
        )

    def analysed(self) -> "StoredDocuments":
        """With keywords, made of the texts."""
        titles = [Header.from_bytes(each).title for each in self.headers]
        places = zip(*(self.chunks[name].tolist() for name in ("doc", "start_byte", "end_byte")), strict=True)
        texts = (
            RowText(self.texts[doc][start:end].decode(errors="surrogatepass"), titles[doc])
            for doc, start, end in places
        )
        return replace(self, keywords=rows_of(texts))

    def mean_vectors(self) -> Vectors:
        """One vector for each document, by which it is put beside its like."""
        means = np.zeros((self.count, self.vectors.shape[1]), np.float32)
        np.add.at(means, self.chunks["doc"], self.vectors)
        means /= np.maximum(self.chunk_counts(), 1)[:, None].astype(np.float32)
        return means


def concatenate(parts: Sequence[StoredDocuments], dimension: int) -> StoredDocuments:
    headers: list[bytes] = []
    texts: list[bytes] = []
    chunks, vectors, graphs = [], [], []
    for part in parts:
        numbered = part.chunks.copy()
        numbered["doc"] += len(headers)
        graphs.append((len(headers), part.graphs))
        chunks.append(numbered)
        vectors.append(part.vectors)
        headers += part.headers
        texts += part.texts
    all_chunks = np.concatenate(chunks) if chunks else np.empty(0, CHUNK_TYPE)
    all_vectors = np.concatenate(vectors) if vectors else np.empty((0, dimension), np.float32)
    keywords = concatenate_rows([part.keywords for part in parts])
    return StoredDocuments(headers, texts, all_chunks, all_vectors, concatenate_graphs(graphs), keywords)


@dataclass(frozen=True, slots=True)
class PreparedKeywords:
    """Of the chunks of one document, among those that were analysed together."""

    rows: KeywordRows
    first: int


@dataclass(frozen=True, slots=True)
class PreparedDocument:
    """Ready to be stored."""

    header: Header
    text: str
    chunks: tuple[Chunk, ...]
    vectors: Vectors
    graph: GraphRows = NO_GRAPH
    keywords: PreparedKeywords | None = None
    """None: it is analysed when it is stored."""


def _keywords_of(documents: Sequence[PreparedDocument]) -> KeywordRows:
    found: list[KeywordRows] = []
    for _, group in itertools.groupby(documents, key=lambda each: each.keywords and id(each.keywords.rows)):
        together = list(group)
        if together[0].keywords is None:
            found.append(
                rows_of(
                    RowText(chunk.text, each.header.title, chunk.context) for each in together for chunk in each.chunks
                )
            )
            continue
        firsts = [(each.keywords.first if each.keywords else 0, len(each.chunks)) for each in together]
        rows = [np.arange(first, first + count) for first, count in firsts]
        found.append(together[0].keywords.rows.pick(np.concatenate(rows)))
    return concatenate_rows(found)


def store_form(documents: Sequence[PreparedDocument], dimension: int) -> StoredDocuments:
    headers, texts, rows, vectors, counts, graphs = [], [], [], [], [], {}
    for number, document in enumerate(documents):
        content = document.text.encode(errors="surrogatepass")
        headers.append(document.header.to_bytes())
        texts.append(content)
        is_ascii = len(content) == len(document.text)
        begin_byte, begin = 0, 0
        for chunk in document.chunks:
            if is_ascii:
                start_byte, end_byte = chunk.start, chunk.end
            else:
                start_byte = begin_byte + len(document.text[begin : chunk.start].encode(errors="surrogatepass"))
                end_byte = start_byte + len(chunk.text.encode(errors="surrogatepass"))
                begin_byte, begin = end_byte, chunk.end
            rows.append((number, start_byte, end_byte, chunk.start, chunk.end))
        vectors.append(document.vectors)
        counts.append(len(document.chunks))
        if document.graph is not NO_GRAPH and document.graph is not NO_GRAPH_YET:
            graphs[number] = document.graph
    return StoredDocuments(
        headers,
        texts,
        np.array(rows, CHUNK_TYPE),
        np.concatenate(vectors) if vectors else np.empty((0, dimension), np.float32),
        graphs_in_columns(graphs, counts),
        _keywords_of(documents),
    )
