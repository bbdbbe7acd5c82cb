"""Columns of documents to store in a shard: texts, chunks, vectors, keyword counts and graphs."""

import contextlib
import hashlib
import itertools
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from pair.engine.format.array_file import MOST_VALUES, load_json
from pair.text import tokenizer
from pair.text.languages import LANGUAGES
from pair.values import NO_GRAPH, NO_GRAPH_YET, Chunk, Document, GraphRows, convert_json, parse_json

Numbers = npt.NDArray[np.int64]
Identities = npt.NDArray[np.uint64]
"""Hashes of document ids: rows of two numbers."""

TITLE_WEIGHT = 3
"""Number of times that a title word counts in each row of its document, in frequencies and row lengths."""

SCHEMA: Mapping[str, str] = {
    "docs": "doc INTEGER, id VARCHAR, owner VARCHAR, title VARCHAR, url VARCHAR, text VARCHAR, metadata VARCHAR, "
    "content_hash VARCHAR",
    "chunks": "id VARCHAR, doc INTEGER, doc_id VARCHAR, number INTEGER, start_at INTEGER, end_at INTEGER",
    "doc_metadata": "doc INTEGER, key VARCHAR, text VARCHAR, number DOUBLE",
    "entities": "id VARCHAR, name VARCHAR",
    "edges": "src VARCHAR, dst VARCHAR, weight DOUBLE, rel_type VARCHAR, chunk_id VARCHAR, doc INTEGER, "
    "chunk_number INTEGER",
    "doc_entities": "doc_id VARCHAR, entity_id VARCHAR, weight DOUBLE, chunk_id VARCHAR, doc INTEGER, "
    "chunk_number INTEGER",
    "shard": "commit_id VARCHAR, storage_version VARCHAR",
}
"""The columns of each DuckDB table, with their types."""


_PIECES_AT_ONCE = 1 << 17
"""Number of pieces of text whose terms are counted together: counting needs about 100 bytes for each."""


class RowText(NamedTuple):
    text: str
    title: str = ""
    context: str = ""
    """Headings above the text, which count like the text."""
    language: str = "en"
    """The language of the document, which determines the stems."""


@dataclass(frozen=True, eq=False)
class KeywordRows:
    words: Sequence[bytes]
    starts: Numbers
    """The start of each row in `terms`, and the end of the last."""
    terms: npt.NDArray[np.uint32]
    counts: npt.NDArray[np.uint32]
    lengths: npt.NDArray[np.uint32]
    """The length of each row, in words."""
    forms: Sequence[tuple[bytes, int]]
    """Written words that differ from their term, ascending, each with the number of the term."""
    languages: npt.NDArray[np.uint8]
    """The language of each row, as a position in LANGUAGES."""

    @property
    def count(self) -> int:
        return len(self.lengths)

    def pick(self, rows: Numbers) -> "KeywordRows":
        """Return only these rows, in this order."""
        if len(rows) == self.count and np.array_equal(rows, np.arange(self.count)):
            return self
        which, places = gather_entries(self.starts, rows)
        kept, terms = np.unique(self.terms[places], return_inverse=True)
        new_number = dict(zip(kept.tolist(), itertools.count()))
        return KeywordRows(
            [self.words[term] for term in new_number],
            make_starts(np.bincount(which, minlength=len(rows))),
            terms.astype(np.uint32),
            self.counts[places],
            self.lengths[rows],
            [(form, new_number[term]) for form, term in self.forms if term in new_number],
            self.languages[rows],
        )


def empty_rows(count: int) -> KeywordRows:
    """Return rows without words."""
    nothing = np.empty(0, np.uint32)
    starts, lengths, languages = np.zeros(count + 1, np.int64), np.zeros(count, np.uint32), np.zeros(count, np.uint8)
    return KeywordRows((), starts, nothing, nothing, lengths, (), languages)


def make_starts(sizes: npt.ArrayLike) -> Numbers:
    """Return the start of each of consecutive ranges of these sizes, and the end of the last."""
    return np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])


def gather_entries(starts: npt.NDArray[Any], keys: Numbers) -> tuple[Numbers, Numbers]:
    """Return for each entry of these keys the position of its key in `keys`, and the position of the entry.

    `starts`: the first entry of each key, and the end of the last.
    """
    return expand_ranges(starts[keys].astype(np.int64), starts[keys + 1].astype(np.int64))


def expand_ranges(begins: Numbers, ends: Numbers) -> tuple[Numbers, Numbers]:
    """Return for each number in these ranges the position of its range, and the number."""
    counts = ends - begins
    own_starts = make_starts(counts)
    return np.repeat(np.arange(len(counts)), counts), np.repeat(begins - own_starts[:-1], counts) + np.arange(
        own_starts[-1]
    )


def concatenate_rows(parts: Sequence[KeywordRows]) -> KeywordRows:
    parts = [part for part in parts if part.count]
    if len(parts) < 2:
        return parts[0] if parts else empty_rows(0)
    words = sorted(set().union(*(part.words for part in parts)))
    number = dict(zip(words, itertools.count()))
    renumbered = [np.array([number[word] for word in part.words], np.uint32)[part.terms] for part in parts]
    forms = {(form, number[part.words[term]]) for part in parts for form, term in part.forms}
    return KeywordRows(
        words,
        make_starts(np.concatenate([np.diff(part.starts) for part in parts])),
        np.concatenate(renumbered),
        np.concatenate([part.counts for part in parts]),
        np.concatenate([part.lengths for part in parts]),
        sorted(forms),
        np.concatenate([part.languages for part in parts]),
    )


def _number_keys() -> defaultdict[Any, int]:
    """Return a dictionary that gives each new key the next number."""
    return defaultdict(itertools.count().__next__)


def count_terms(texts: Iterable[RowText]) -> KeywordRows:
    """Count the terms of each row. Analyse each distinct piece of text once."""
    next_number = itertools.count().__next__
    pieces: defaultdict[str, defaultdict[str, int]] = defaultdict(lambda: defaultdict(next_number))
    blocks: list[tuple[npt.NDArray[np.uint32], list[int]]] = []
    places: list[int] = []
    sizes: list[int] = []
    languages: list[int] = []
    for row in texts:
        in_row = f"{row.context} {row.text}".split() + row.title.split() * TITLE_WEIGHT
        places += map(pieces[row.language].__getitem__, in_row)
        sizes.append(len(in_row))
        languages.append(LANGUAGES.index(row.language))
        if len(places) >= _PIECES_AT_ONCE:
            blocks.append((np.array(places, np.uint32), sizes))
            places, sizes = [], []
    blocks.append((np.array(places, np.uint32), sizes))
    words, forms, starts, terms, word_counts = _analyse_pieces(pieces)
    counted: list[tuple[npt.NDArray[Any], ...]] = []
    for block, own_sizes in blocks:
        row_of = np.repeat(np.arange(len(own_sizes)), own_sizes)
        which, entries = gather_entries(starts, block.astype(np.int64))
        # One number for row and term.
        keys, counts = np.unique(row_of[which] * len(words) + terms[entries], return_counts=True)
        rows = keys // max(len(words), 1)
        row_sizes = np.bincount(rows, minlength=len(own_sizes))
        lengths = np.bincount(row_of, word_counts[block], len(own_sizes)).astype(np.uint32)
        counted.append((row_sizes, (keys - rows * len(words)).astype(np.uint32), counts.astype(np.uint32), lengths))
    row_sizes, own_terms, counts, lengths = map(np.concatenate, zip(*counted, strict=True))
    return KeywordRows(words, make_starts(row_sizes), own_terms, counts, lengths, forms, np.array(languages, np.uint8))


def _analyse_pieces(
    pieces: Mapping[str, Mapping[str, int]],
) -> tuple[list[bytes], list[tuple[bytes, int]], Numbers, Numbers, Numbers]:
    """Return the sorted terms and forms; and by number of a piece the start of its terms, these terms, and its words.

    `pieces`: the numbers of pieces, by language and piece.
    """
    number_of = _number_keys()
    flat: list[int] = []
    sizes: list[tuple[int, int]] = []
    written: set[tuple[str, str]] = set()
    for language, own in pieces.items():
        for piece in map(tokenizer.analyse, own, itertools.repeat(language)):
            flat += map(number_of.__getitem__, piece.terms + piece.extras)
            sizes.append((len(piece.terms) + len(piece.extras), len(piece.terms)))
            written.update(piece.forms)
    encoded = [term.encode(errors="surrogatepass") for term in number_of]
    order = sorted(range(len(encoded)), key=encoded.__getitem__)
    final = np.empty(len(encoded), np.int64)
    final[order] = np.arange(len(encoded))
    final_number = dict(zip(number_of, final.tolist(), strict=True))
    forms = sorted({(form.encode(errors="surrogatepass"), final_number[term]) for form, term in written})
    # Pieces are numbered in the order of rows, and were analysed by language.
    by_number = np.argsort(np.array([number for own in pieces.values() for number in own.values()], np.int64))
    entry_counts, word_counts = np.array(sizes, np.int64).reshape(-1, 2).T
    entries = gather_entries(make_starts(entry_counts), by_number)[1]
    terms = final[np.array(flat, np.int64)[entries]]
    return (
        [encoded[number] for number in order],
        forms,
        make_starts(entry_counts[by_number]),
        terms,
        word_counts[by_number],
    )


MENTION_TYPE = np.dtype([("doc", "<u4"), ("chunk", "<u4"), ("entity", "<u4"), ("weight", "<f4")])
EDGE_TYPE = np.dtype(
    [("doc", "<u4"), ("chunk", "<u4"), ("source", "<u4"), ("target", "<u4"), ("kind", "<u4"), ("weight", "<f4")]
)
"""A mention or edge. `chunk` is the number of the chunk in its document. `kind` is a position in `names`."""


@dataclass(frozen=True, eq=False)
class StoredGraphs(Mapping[int, GraphRows]):
    """The graphs of documents, by number. Mentions and edges are ordered by document and chunk.

    Each mention or edge belongs to a chunk. Weights have single precision, so that all copies are equal.
    """

    names: Sequence[str]
    """Names of entities and of kinds of edges, without duplicates."""
    mentions: npt.NDArray[Any]
    edges: npt.NDArray[Any]
    is_made: bool = True
    """Whether entities were extracted, even if none was found."""

    def __getitem__(self, doc: int) -> GraphRows:
        mentions, edges = _pick_document(self.mentions, doc), _pick_document(self.edges, doc)
        if not len(mentions) and not len(edges):
            raise KeyError(doc)
        named = self.names
        return GraphRows(
            tuple((named[entity], weight, chunk) for _, chunk, entity, weight in mentions.tolist()),
            tuple(
                (named[source], named[target], named[kind], weight, chunk)
                for _, chunk, source, target, kind, weight in edges.tolist()
            ),
        )

    def __iter__(self) -> Iterator[int]:
        return iter(np.union1d(self.mentions["doc"], self.edges["doc"]).tolist())

    def __len__(self) -> int:
        return len(np.union1d(self.mentions["doc"], self.edges["doc"]))

    def pick(self, new_number: npt.NDArray[np.int64]) -> "StoredGraphs":
        """Return the graphs of documents whose new number is not negative. The order does not change."""
        kept = []
        for rows in (self.mentions, self.edges):
            numbers = new_number[rows["doc"]]
            chosen = rows[numbers >= 0]
            chosen["doc"] = numbers[numbers >= 0]
            kept.append(chosen)
        return StoredGraphs(self.names, kept[0], kept[1], self.is_made)


def _pick_document(rows: npt.NDArray[Any], doc: int) -> npt.NDArray[Any]:
    begin, end = np.searchsorted(rows["doc"], [doc, doc + 1])
    return rows[begin:end]


NO_GRAPHS = StoredGraphs((), np.empty(0, MENTION_TYPE), np.empty(0, EDGE_TYPE), is_made=False)


def concatenate_graphs(parts: Sequence[tuple[int, StoredGraphs]]) -> StoredGraphs:
    """Join graphs. `parts`: the new number of the first document, and the graphs."""
    numbers = _number_keys()
    mentions, edges = [NO_GRAPHS.mentions], [NO_GRAPHS.edges]
    for first, part in parts:
        place = np.array([numbers[name] for name in part.names], np.uint32)
        mentions.append(part.mentions.copy())
        mentions[-1]["doc"] += first
        mentions[-1]["entity"] = place[part.mentions["entity"]]
        edges.append(part.edges.copy())
        edges[-1]["doc"] += first
        for column in ("source", "target", "kind"):
            edges[-1][column] = place[part.edges[column]]
    is_made = any(part.is_made for _, part in parts)
    return StoredGraphs(list(numbers), np.concatenate(mentions), np.concatenate(edges), is_made)


def build_graph_columns(graphs: Mapping[int, GraphRows], chunk_counts: Sequence[int]) -> StoredGraphs:
    """Build columns of graphs, by document number. `chunk_counts`: number of chunks of each document."""
    numbers = _number_keys()
    mentions: list[tuple[int, int, int, float]] = []
    edges: list[tuple[int, int, int, int, int, float]] = []
    for doc in sorted(graphs):
        count = chunk_counts[doc]
        mentions += [
            (doc, chunk, numbers[entity], weight) for entity, weight, chunk in graphs[doc].mentions if chunk < count
        ]
        edges += [
            (doc, chunk, numbers[source], numbers[target], numbers[kind], weight)
            for source, target, kind, weight, chunk in graphs[doc].edges
            if chunk < count
        ]
    mention_rows, edge_rows = np.array(mentions, MENTION_TYPE), np.array(edges, EDGE_TYPE)
    return StoredGraphs(
        names=list(numbers),
        mentions=mention_rows[np.lexsort((mention_rows["chunk"], mention_rows["doc"]))],
        edges=edge_rows[np.lexsort((edge_rows["chunk"], edge_rows["doc"]))],
        is_made=bool(graphs),
    )


Vectors = npt.NDArray[np.float32]

ID_TYPE = np.dtype(
    [
        ("prefix", "<u8"),
        ("rest", "<u8"),
        ("doc", "<u4"),
        ("owner", "<u4"),
        ("id_offset", "<u8"),
        ("id_size", "<u4"),
        ("hash", "V16"),
    ]
)
"""A line of the id directory. `prefix` and `rest` are the halves of the id's hash; `hash` is the content hash."""
DOC_TYPE = np.dtype([("offset", "<u8"), ("header_size", "<u4"), ("text_size", "<u4"), ("first_chunk", "<u4")])
"""The place of a document's header, which its text follows. `first_chunk` is the row of its first chunk."""
CHUNK_TYPE = np.dtype([("doc", "<u4"), ("start_byte", "<u4"), ("end_byte", "<u4"), ("start", "<u4"), ("end", "<u4")])
"""The place of a chunk in the text of its document. `start` and `end` count characters."""


class Header(msgspec.Struct, frozen=True):
    """A document without its text and vectors."""

    id: str
    owner: str
    title: str
    url: str
    metadata: Mapping[str, Any]
    content_hash: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}\Z")] = msgspec.field(name="hash")

    def to_bytes(self) -> bytes:
        texts = map(_quote_json, (self.id, self.owner, self.title, self.url, self.content_hash))
        metadata = json.dumps(self.metadata, ensure_ascii=False, separators=(",", ":")) if self.metadata else "{}"
        return (_HEADER % (*itertools.islice(texts, 4), metadata, *texts)).encode(errors="surrogatepass")

    @staticmethod
    def from_bytes(content: bytes | memoryview) -> "Header":
        """Parse a header. Raises ValueError."""
        if len(content) <= MOST_VALUES:
            # Lone surrogates, NaN and infinity may be stored although they are not JSON.
            with contextlib.suppress(msgspec.MsgspecError, UnicodeError, RecursionError):
                return parse_json(content, Header)
        return convert_json(load_json(content), Header)


_HEADER = '{"id":%s,"owner":%s,"title":%s,"url":%s,"metadata":%s,"hash":%s}'
_quote_json = json.encoder.encode_basestring


def hash_id(document_id: str) -> bytes:
    """Return the identity of a document: 16 bytes of the hash of its id."""
    return hashlib.sha256(document_id.encode(errors="surrogatepass")).digest()[:16]


def hash_ids(ids: Iterable[str]) -> Identities:
    return np.frombuffer(bytearray(b"".join(map(hash_id, ids))), "<u8").reshape(-1, 2)


def hash_content(document: Document, owner: str, chunking: str) -> str:
    """Hash all stored fields of a document. `chunking`: how the document is cut and embedded."""
    digest = hashlib.sha256()
    fields = [document.id, owner, document.title, document.url, document.text, chunking]
    is_bare = not document.metadata
    fields.append("{}" if is_bare else json.dumps(document.metadata, sort_keys=True, ensure_ascii=False, default=str))
    for field in fields:
        content = field.encode(errors="surrogatepass")
        digest.update(len(content).to_bytes(8, "little") + content)
    if document.vector is not None:
        digest.update(np.asarray(document.vector, dtype="<f4").tobytes())
    return digest.hexdigest()[:32]


@dataclass(frozen=True, eq=False)
class StoredDocuments:
    """Documents in columns, in the order of their numbers. Chunks have the same order."""

    headers: Sequence[bytes]
    texts: Sequence[bytes]
    chunks: npt.NDArray[Any]
    vectors: Vectors
    graphs: StoredGraphs
    keywords: KeywordRows
    """The terms of the chunks."""

    @property
    def count(self) -> int:
        return len(self.headers)

    @property
    def size_bytes(self) -> int:
        """Estimated size of a shard of these documents."""
        texts = sum(map(len, self.texts)) + sum(map(len, self.headers))
        return 2 * texts + round(self.vectors.nbytes * 1.4) + 4 * len(self.keywords.terms)

    def chunk_counts(self) -> npt.NDArray[np.int64]:
        return np.bincount(self.chunks["doc"], minlength=self.count).astype(np.int64)

    def pick(self, numbers: npt.NDArray[np.int64]) -> "StoredDocuments":
        """Return these documents with new numbers. `numbers` ascends."""
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

    def add_keywords(self) -> "StoredDocuments":
        """Return the documents with keywords counted from their texts."""
        titles = [Header.from_bytes(header).title for header in self.headers]
        places = zip(*(self.chunks[name].tolist() for name in ("doc", "start_byte", "end_byte")), strict=True)
        texts = (
            RowText(self.texts[doc][start:end].decode(errors="surrogatepass"), titles[doc])
            for doc, start, end in places
        )
        return replace(self, keywords=count_terms(texts))

    def mean_vectors(self) -> Vectors:
        """Return the mean vector of each document, for clustering."""
        means = np.zeros((self.count, self.vectors.shape[1]), np.float32)
        np.add.at(means, self.chunks["doc"], self.vectors)
        means /= np.maximum(self.chunk_counts(), 1)[:, None].astype(np.float32)
        return means


def concatenate(parts: Sequence[StoredDocuments], dimension: int) -> StoredDocuments:
    if len(parts) == 1:
        return parts[0]
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
class PreparedDocument:
    """A document that is ready to store."""

    header: Header
    text: str
    chunks: tuple[Chunk, ...]
    vectors: Vectors
    graph: GraphRows = NO_GRAPH
    keywords: KeywordRows | None = None
    """Rows of several documents that were analysed together; None to analyse the document when it is stored."""
    first_row: int = 0
    """The first row of this document in `keywords`."""


def _build_keywords(documents: Sequence[PreparedDocument]) -> KeywordRows:
    parts: list[KeywordRows] = []
    for _, group in itertools.groupby(documents, key=lambda document: id(document.keywords)):
        together = list(group)
        keywords = together[0].keywords
        if keywords is None:
            parts.append(
                count_terms(
                    RowText(chunk.text, document.header.title, chunk.context)
                    for document in together
                    for chunk in document.chunks
                )
            )
            continue
        rows = [np.arange(document.first_row, document.first_row + len(document.chunks)) for document in together]
        parts.append(keywords.pick(np.concatenate(rows)))
    return concatenate_rows(parts)


def build_columns(documents: Sequence[PreparedDocument], dimension: int) -> StoredDocuments:
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
        build_graph_columns(graphs, counts),
        _build_keywords(documents),
    )
