"""The files of one shard, open for reading: search file, id directory, rows in DuckDB.

Invariants
    Nothing here writes. Returned arrays stay valid as long as they are referenced.
    The openers check every offset and index in a file, and raise E207 for one that is out of range.
"""

import bisect
import functools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pair.engine.format.array_file import (
    ArrayFile,
    RangeFile,
    Span,
    check_below,
    check_utf8,
    damage_errors,
    load_json,
    make_damage_error,
)
from pair.engine.format.columns import (
    CHUNK_TYPE,
    DOC_TYPE,
    ID_TYPE,
    SCHEMA,
    Header,
    StoredDocuments,
    StoredGraphs,
    empty_rows,
)
from pair.engine.format.duckdb_io import open_database, query_errors
from pair.engine.format.graph_index import GraphIndex
from pair.engine.format.keyword_index import KeywordIndex
from pair.engine.format.manifest import FileRole, ShardRef
from pair.engine.format.metadata_index import MetadataIndex
from pair.engine.format.vectors import Codes, VectorIndex, Vectors
from pair.values import GraphRows, Hit, convert_json

if TYPE_CHECKING:
    import duckdb

_SHORT_BYTES = 65_536
"""Maximum size of a document that is fetched whole for a passage."""


def spans_of_places(pack: ArrayFile) -> list[Span]:
    """Return the spans of the tables of documents and chunks."""
    return [pack.span("docs"), pack.span("chunks")]


def span_of_index(pack: ArrayFile) -> Span:
    """Return the span of everything before the texts."""
    return 0, pack.span("texts")[0]


def spans_of_vectors(pack: ArrayFile, rows: npt.NDArray[np.int64]) -> list[Span]:
    begin, end = pack.span("vectors")
    size = (end - begin) // max(len(pack.array("vectors", "<f4", dimensions=2)), 1)
    return [(begin + row * size, begin + (row + 1) * size) for row in rows.tolist()]


class SearchFile:
    """Vectors, chunks and texts. Its methods raise E207 for damage that opening does not find."""

    def __init__(self, pack: ArrayFile, key: str, pieces: RangeFile | None = None) -> None:
        """Check the file. `key`: content hash of the shard and name of the file. Raises ValueError for any other file.

        `pieces`: a file that is fetched by ranges. Then every method may fetch, and raise RangeError.
        """
        self._pieces = pieces
        self._pack = pack
        self._key = key
        self.name = key.partition("/")[0]
        """The content hash of the shard."""
        if pieces is not None:
            pieces.want(spans_of_places(pack))
        self.chunks = pack.array("chunks", CHUNK_TYPE)
        self.vectors: Vectors = pack.array("vectors", "<f4", dimensions=2, length=len(self.chunks))
        """All vectors. In a file that is fetched by ranges, use `row_vectors`."""
        self.docs = pack.array("docs", DOC_TYPE)
        self._all_texts = pack.bytes("texts")
        self.doc_of_row: npt.NDArray[np.uint32] = np.ascontiguousarray(self.chunks["doc"])
        _check_documents(self.docs, self.chunks, len(self._all_texts))
        if pieces is None:
            self._read_codes()

    @functools.cached_property
    def index(self) -> VectorIndex:
        if self._pieces is not None:
            self._pieces.want([span_of_index(self._pack)])
        with damage_errors(self._key):
            squares = self._pack.array("squares", "<f4", length=len(self.vectors))
            return VectorIndex(self.vectors, squares, self._read_codes())

    def _read_codes(self) -> Codes | None:
        if "codes" not in self._pack:
            return None
        codes = Codes(self._pack.array("codes", "|u1"), self._pack.array("code_error", "<f4"))
        codes.check(*self.vectors.shape)
        return codes

    def row_vectors(self, rows: npt.NDArray[np.int64]) -> Vectors:
        if self._pieces is not None:
            self._pieces.want(spans_of_vectors(self._pack, rows))
        return self.vectors.take(rows, axis=0)

    def spans_of_texts(self, rows: npt.NDArray[np.int64]) -> list[Span]:
        """Return the spans of the headers and texts of these rows."""
        first, _ = self._pack.span("texts")
        spans: list[Span] = []
        for row in rows.tolist():
            doc, start_byte, end_byte, _, _ = self.chunks[row].item()
            begin, header_size, text_size, _ = self.docs[doc].item()
            begin, text = first + begin, first + begin + header_size
            if text_size <= _SHORT_BYTES:  # Include neighbours, which may join the passage.
                spans.append((begin, text + text_size))
            else:
                spans += [(begin, text), (text + start_byte, text + end_byte)]
        return spans

    def header(self, doc: int) -> Header:
        begin, header_size, _, _ = self.docs[doc].item()
        content = self._texts(begin, begin + header_size)
        try:
            return Header.from_bytes(content)
        except ValueError as fault:
            raise make_damage_error(self._key, fault) from fault

    def _texts(self, begin: int, end: int) -> memoryview:
        if self._pieces is not None:
            first, _ = self._pack.span("texts")
            self._pieces.want([(first + begin, first + end)])
        return self._all_texts[begin:end]

    def _decode(self, content: memoryview) -> str:
        try:
            return str(content, "utf-8", "surrogatepass")
        except ValueError as fault:
            raise make_damage_error(self._key, fault) from fault

    def text(self, doc: int) -> str:
        return self._decode(self._text_bytes(doc))

    def hit(self, row: int, distance: float | None, header: Header, score: float) -> Hit:
        """Return a row as a hit. The metadata of a document with pages also has the `page` of the row."""
        doc, start_byte, end_byte, start, end = self.chunks[row].item()
        begin, header_size, _, first_row = self.docs[doc].item()
        begin += header_size
        metadata = header.metadata
        if "pages" in metadata:
            before = self._texts(begin, begin + start_byte)
            metadata = {**metadata, "page": bytes(before).count(b"\f") + 1}
        return Hit(
            document_id=header.id,
            chunk_id=f"{header.id}#{row - first_row}",
            title=header.title,
            url=header.url,
            text=self._decode(self._texts(begin + start_byte, begin + end_byte)),
            score=score,
            distance=distance,
            metadata=metadata,
            start=start,
            end=end,
            shard=self.name,
        )

    def rows_with_text(self, content: bytes) -> npt.NDArray[np.int64]:
        """Return the rows with exactly this text. Only texts of the same length are read."""
        chunks = self.chunks
        rows = np.flatnonzero(chunks["end_byte"] - chunks["start_byte"] == len(content))
        docs = self.docs[self.doc_of_row[rows]]
        begins = docs["offset"].astype(np.int64) + docs["header_size"] + chunks["start_byte"][rows]
        texts, size = self._all_texts, len(content)
        if self._pieces is not None and len(begins):
            first, _ = self._pack.span("texts")
            ordered = np.sort(begins)
            # Join spans that are close together.
            groups = np.split(ordered, np.flatnonzero(np.diff(ordered) > _SHORT_BYTES) + 1)
            self._pieces.want([(first + int(group[0]), first + int(group[-1]) + size) for group in groups])
        return rows[[bytes(texts[begin : begin + size]) == content for begin in begins.tolist()]]

    def documents(self, numbers: npt.NDArray[np.int64], graphs: StoredGraphs) -> StoredDocuments:
        """Return these documents as columns for another shard, without keywords. Raises E207.

        `graphs`: the graphs of all documents of this shard.
        """
        headers, texts = [], []
        for number in numbers.tolist():
            self.header(number)  # Raises E207.
            begin, header_size, _, _ = self.docs[number].item()
            headers.append(bytes(self._all_texts[begin : begin + header_size]))
            places = self.chunks[self.rows_of_document(number)]
            with damage_errors(self._key):
                check_utf8("texts", self._text_bytes(number), np.append(places["start_byte"], places["end_byte"]))
            texts.append(bytes(self._text_bytes(number)))
        new_number = np.full(len(self.docs), -1, np.int64)
        new_number[numbers] = np.arange(len(numbers))
        rows = self.rows_of(numbers)
        chunks = self.chunks[rows]
        chunks["doc"] = new_number[chunks["doc"]]
        keywords = empty_rows(len(rows))
        return StoredDocuments(headers, texts, chunks, self.vectors[rows], graphs.pick(new_number), keywords)

    def rows_of(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the rows of these documents, in ascending order."""
        chosen = np.zeros(len(self.docs), np.bool_)
        chosen[numbers] = True
        return np.flatnonzero(chosen[self.doc_of_row])

    def rows_of_document(self, doc: int) -> slice:
        first = int(self.docs[doc]["first_chunk"])
        end = int(self.docs[doc + 1]["first_chunk"]) if doc + 1 < len(self.docs) else len(self.chunks)
        return slice(first, end)

    def no_rows(self) -> npt.NDArray[np.bool_]:
        return np.zeros(len(self.chunks), np.bool_)

    def row_fields(self, row: int) -> tuple[str, str]:
        """Return the text of a row and the title of its document."""
        return self.row_text(row), self.header(int(self.doc_of_row[row])).title

    def row_text(self, row: int) -> str:
        doc, start_byte, end_byte, _, _ = self.chunks[row].item()
        begin, header_size, _, _ = self.docs[doc].item()
        begin += header_size
        return self._decode(self._texts(begin + start_byte, begin + end_byte))

    def _text_bytes(self, doc: int) -> memoryview:
        begin, header_size, text_size, _ = self.docs[doc].item()
        return self._texts(begin + header_size, begin + header_size + text_size)


def _check_documents(docs: npt.NDArray[Any], chunks: npt.NDArray[Any], texts_size: int) -> None:
    """Raise ValueError for documents with gaps or overlaps, and for chunks outside their documents."""
    sizes = docs["header_size"].astype(np.uint64) + docs["text_size"]
    ends = np.cumsum(sizes, dtype=np.uint64)
    if (int(ends[-1]) if len(docs) else 0) != texts_size or not np.array_equal(docs["offset"], ends - sizes):
        raise ValueError("the texts of documents do not follow each other")
    check_below("chunks", chunks["doc"], len(docs))
    counts = np.bincount(chunks["doc"], minlength=len(docs))
    if not np.array_equal(docs["first_chunk"], np.cumsum(counts) - counts):
        raise ValueError("the chunks of documents do not follow each other")
    owners = chunks["doc"]
    is_next = owners[1:] == owners[:-1]
    for start, end in (("start_byte", "end_byte"), ("start", "end")):
        is_within = (chunks[start] <= chunks[end]) & (chunks[end] <= docs["text_size"][owners])
        is_behind = chunks[start][1:] >= chunks[end][:-1]
        if not is_within.all() or bool((is_next & ~is_behind).any()) or bool((owners[1:] < owners[:-1]).any()):
            raise ValueError("a chunk is not within its document")


@dataclass(frozen=True, slots=True)
class ListedDocument:
    """A document in the id directory."""

    id: str
    owner: str
    content_hash: str
    doc: int


class IdFile:
    """The ids of a shard's documents."""

    def __init__(self, pack: ArrayFile) -> None:
        """Check the file. Raises ValueError if it is not an id directory."""
        self._lines = pack.array("lines", ID_TYPE)
        self._order = pack.array("order", "<u4", length=len(self._lines))
        self._names = pack.bytes("names")
        self._owners = convert_json(load_json(pack.bytes("owners")), list[str])
        self._prefixes = np.ascontiguousarray(self._lines["prefix"])
        # Each document must have one line, and each line one position in the order and its own name.
        count = len(self._lines)
        for name, numbers in (("lines", self._lines["doc"]), ("order", self._order)):
            check_below(name, numbers, count)
            if count and int(np.bincount(numbers).min()) != 1:
                raise ValueError(f"the section {name} names something twice")
        check_below("lines", self._lines["owner"], len(self._owners))
        begins, sizes = self._lines["id_offset"], self._lines["id_size"].astype(np.uint64)
        check_below("lines", begins, len(self._names) + 1)
        check_below("lines", begins + sizes, len(self._names) + 1)
        if int(sizes.sum()) != len(self._names):
            raise ValueError("the section names has the wrong size for its names")
        check_utf8("names", self._names, np.concatenate([begins, begins + sizes]))
        self.metadata = MetadataIndex.read(pack, count)
        """The metadata of the documents; None in a file that was written without it."""

    @property
    def count(self) -> int:
        return len(self._lines)

    def find(self, identities: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """Return the line of each identity (a row of two numbers); -1 for an unknown one."""
        lines = np.full(len(identities), -1, np.int64)
        first = self._prefixes.searchsorted(identities[:, 0])
        # Most shards have none of the ids: `take` clips the places behind the end.
        if not len(lines) or not len(self._lines):
            return lines
        if not (self._prefixes.take(first, mode="clip") == identities[:, 0]).any():
            return lines
        # Two ids may share the first half of their hash. For three, the chance is negligible.
        for places in (first, first + 1):
            inside = np.flatnonzero(places < len(self._lines))
            entries, wanted = self._lines[places[inside]], identities[inside]
            same = inside[(entries["prefix"] == wanted[:, 0]) & (entries["rest"] == wanted[:, 1])]
            lines[same] = places[same]
        return lines

    def identities(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
        """Return the identity of every document (a row of two numbers), and its number."""
        both = np.stack([self._prefixes, self._lines["rest"]], axis=1)
        return both, self._lines["doc"].astype(np.int64)

    def ranks(self) -> npt.NDArray[np.int64]:
        """Return the rank of each document, by number, in the order of ids."""
        ranks = np.empty(len(self._order), np.int64)
        ranks[self._lines["doc"][self._order]] = np.arange(len(self._order))
        return ranks

    def find_lines(self, wanted: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
        """Return the lines of the wanted documents. `wanted`: a flag for each document."""
        return np.flatnonzero(wanted[self._lines["doc"]])

    def hashes_at(self, lines: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
        """Return the identities and the content hashes of lines: a row of two numbers for each."""
        entries = self._lines[lines]
        identities = np.stack([entries["prefix"], entries["rest"]], axis=1)
        return identities, np.ascontiguousarray(entries["hash"]).view("<u8").reshape(-1, 2)

    def numbers_at(self, lines: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return self._lines["doc"][lines].astype(np.int64)

    def read_line(self, line: int) -> ListedDocument:
        entry = self._lines[line]
        begin = int(entry["id_offset"])
        name = bytes(self._names[begin : begin + int(entry["id_size"])]).decode(errors="surrogatepass")
        return ListedDocument(name, self._owners[int(entry["owner"])], bytes(entry["hash"]).hex(), int(entry["doc"]))

    def after(self, document_id: str, wanted: npt.NDArray[np.bool_] | None = None) -> Iterator[ListedDocument]:
        """Yield the documents after this id, in the order of ids. `wanted`: a flag for each document."""
        first = bisect.bisect_right(self._order, document_id, key=lambda line: self.read_line(int(line)).id)
        lines = self._order[first:]
        return map(self.read_line, lines if wanted is None else lines[wanted[self._lines["doc"][lines]]])

    def numbers_of_owner(self, owner: str) -> npt.NDArray[np.int64]:
        if owner not in self._owners:
            return np.empty(0, np.int64)
        chosen = self._lines["owner"] == self._owners.index(owner)
        return np.sort(self._lines["doc"][chosen]).astype(np.int64)


class RowsFile:
    """The tables of a shard. Its methods raise E207 for damage that opening does not find."""

    def __init__(self, connection: "duckdb.DuckDBPyConnection", key: str, documents: int, shard_bytes: int) -> None:
        """Open the tables. `shard_bytes`: size of all files of the shard, which limits every table. Raises ValueError,
        E207.
        """
        self._connection = connection
        self._key = key
        self._documents = documents
        self._shard_bytes = shard_bytes
        self._lock = threading.Lock()
        with query_errors(self._key):
            self._check_sizes()

    def _check_sizes(self) -> None:
        """Raise ValueError for a table that is too long: equal rows are small on disk, and may exceed all memory."""
        numbers = self._cursor().execute("SELECT count(*), count(doc), min(doc), max(doc) FROM docs").fetchone()
        expected = (0, 0, None, None) if not self._documents else (self._documents,) * 2 + (0, self._documents - 1)
        if numbers != expected:
            raise ValueError("its number of documents is not the one in the manifest")
        for table in SCHEMA:
            count = self._cursor().execute(f"SELECT count(*) FROM {table}").fetchone()  # noqa: S608 - our own names
            if count is None or count[0] > self._shard_bytes:
                raise ValueError(f"the table {table} has more rows than the shard has bytes")

    def documents(self) -> list[tuple[Header, str, list[tuple[int, int]]]]:
        """Return the header, the text and the ranges of the chunks of each document, by number."""
        cursor = self._cursor()
        with query_errors(self._key), damage_errors(self._key):
            self._refuse_any("docs", "id IS NULL OR title IS NULL OR url IS NULL OR text IS NULL OR metadata IS NULL")
            self._refuse_any("chunks", "number IS NULL OR start_at IS NULL OR end_at IS NULL OR NOT start_at <= end_at")
            self._refuse_any("chunks", "start_at < 0")
            sizes = cursor.execute("SELECT sum(strlen(text) + strlen(metadata)) FROM docs").fetchone()
            if sizes is None or (sizes[0] or 0) > self._shard_bytes:
                raise ValueError("its texts are longer than the shard")
            rows = cursor.execute(
                "SELECT id, owner, title, url, metadata, content_hash, text FROM docs ORDER BY doc"
            ).fetchall()
            places: list[list[tuple[int, int]]] = [[] for _ in rows]
            for doc, start, end in cursor.execute(
                "SELECT doc, start_at, end_at FROM chunks ORDER BY doc, number"
            ).fetchall():
                if end > len(rows[doc][-1]):
                    raise ValueError("a chunk is not within the text of its document")
                places[doc].append((start, end))
            documents = []
            for doc, (own, owner, title, url, metadata, content_hash, text) in enumerate(rows):
                header = Header(own, owner, title, url, load_json(metadata.encode()), content_hash)
                documents.append((Header.from_bytes(header.to_bytes()), text, places[doc]))  # This checks the fields.
            return documents

    def graphs(self) -> dict[int, GraphRows]:
        """Return the graph of each document that has one, by number."""
        cursor = self._cursor()
        with query_errors(self._key), damage_errors(self._key):
            self._refuse_any("doc_entities", "entity_id IS NULL OR chunk_number IS NULL OR NOT isfinite(weight)")
            self._refuse_any("edges", "src IS NULL OR dst IS NULL OR rel_type IS NULL OR NOT isfinite(weight)")
            for table in ("doc_entities", "edges"):
                self._refuse_any(table, "weight IS NULL OR chunk_number IS NULL OR chunk_number < 0")
            mentions = cursor.execute(
                """SELECT doc, entity_id, weight, chunk_number FROM doc_entities
                   ORDER BY doc, chunk_number, entity_id, weight"""
            ).fetchall()
            edges = cursor.execute(
                """SELECT doc, src, dst, rel_type, weight, chunk_number FROM edges
                   ORDER BY doc, chunk_number, src, dst, rel_type, weight"""
            ).fetchall()
        graphs: dict[int, tuple[list[Any], list[Any]]] = {}
        for doc, *mention in mentions:
            graphs.setdefault(doc, ([], []))[0].append(tuple(mention))
        for doc, *edge in edges:
            graphs.setdefault(doc, ([], []))[1].append(tuple(edge))
        return {doc: GraphRows(tuple(rows[0]), tuple(rows[1])) for doc, rows in graphs.items()}

    def _refuse_any(self, table: str, condition: str) -> None:
        """Raise ValueError if a row of the table meets this condition, or belongs to no document."""
        where = f"doc IS NULL OR doc < 0 OR doc >= {self._documents} OR {condition}"
        if self._cursor().execute(f"SELECT 1 FROM {table} WHERE {where} LIMIT 1").fetchone() is not None:  # noqa: S608
            raise ValueError(f"a row of the table {table} is invalid")

    def _cursor(self) -> "duckdb.DuckDBPyConnection":
        with self._lock:
            return self._connection.cursor()


def open_search(ref: ShardRef, path: Path, pieces: RangeFile | None = None) -> SearchFile:
    """Open the search file of a shard. All openers raise E207 for a file that is damaged or of another shard."""
    with damage_errors(ref.key("search")):
        pack = ArrayFile.open(path) if pieces is None else pieces.pack
        search = SearchFile(pack, _name_file(path), pieces)
        _check(len(search.docs), ref.documents, "documents")
        _check(len(search.chunks), ref.rows, "chunks")
        _check(search.vectors.shape[1], ref.centroids.shape[1], "dimensions")
        return search


def open_ids(ref: ShardRef, path: Path) -> IdFile:
    with damage_errors(ref.key("ids")):
        ids = IdFile(ArrayFile.open(path))
        _check(ids.count, ref.documents, "documents")
        return ids


def open_rows(ref: ShardRef, path: Path) -> RowsFile:
    with damage_errors(ref.key("rows")):
        return RowsFile(open_database(path, SCHEMA), _name_file(path), ref.documents, ref.size_bytes)


def open_keywords(ref: ShardRef, path: Path) -> KeywordIndex:
    with damage_errors(ref.key("keywords")):
        keywords = KeywordIndex(ArrayFile.open(path))
        _check(keywords.count, ref.rows, "chunks")
        return keywords


def open_graph(ref: ShardRef, path: Path) -> GraphIndex:
    with damage_errors(ref.key("graph")):
        graph = GraphIndex(ArrayFile.open(path))
        _check(graph.rows, ref.rows, "chunks")
        return graph


OPENERS: dict[FileRole, Callable[[ShardRef, Path], object]] = {
    "rows": open_rows,
    "search": open_search,
    "ids": open_ids,
    "keywords": open_keywords,
    "graph": open_graph,
}


def _name_file(path: Path) -> str:
    """Return the content hash of the shard, which is the name of its folder, and the name of the file."""
    return f"{path.parent.name}/{path.name}"


def _check(count: int, expected: int, things: str) -> None:
    if count != expected:
        raise ValueError(f"its number of {things} is not the one in the manifest")
