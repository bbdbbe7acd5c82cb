"""One shard, read-only: its mapped search file, its id directory, its rows in DuckDB.

Invariants
    Nothing here writes. What a shard hands out stays valid for as long as somebody holds it.
"""

import functools
import json
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pair.engine.database import open_rows
from pair.engine.filters import Filter
from pair.engine.keyword_rows import empty_rows
from pair.engine.pack import Pack
from pair.engine.pieces import Pieces, Span
from pair.engine.stored_documents import Header, StoredDocuments
from pair.engine.stored_graphs import GraphRows, StoredGraphs
from pair.engine.vectors import Codes, VectorIndex, Vectors
from pair.engine.workspace import chunk_id
from pair.values import Hit

if TYPE_CHECKING:
    import duckdb

_REMEMBERED_FILTERS = 64
_SHORT_BYTES = 65_536
"""Documents of which everything is fetched, where a passage is wanted."""


def spans_of_places(pack: Pack) -> list[Span]:
    """Where the documents and chunks of a search file are told."""
    return [pack.span("docs"), pack.span("chunks")]


def span_of_index(pack: Pack) -> Span:
    """Everything but the texts, which come last."""
    return 0, pack.span("texts")[0]


def spans_of_vectors(pack: Pack, rows: npt.NDArray[np.int64]) -> list[Span]:
    begin, end = pack.span("vectors")
    size = (end - begin) // max(len(pack.array("vectors")), 1)
    return [(begin + row * size, begin + (row + 1) * size) for row in rows.tolist()]


class SearchFile:
    """Vectors, chunks and texts."""

    def __init__(self, path: Path, pieces: Pieces | None = None) -> None:
        """`pieces`: of a file that is not here as a whole. Then everything here may fetch, and raise PieceError."""
        self._pieces = pieces
        self._pack = pack = Pack(path) if pieces is None else pieces.pack
        self.name = path.parent.name
        """The content hash, by which its folder is called."""
        if pieces is not None:
            pieces.want(spans_of_places(pack))
        self.vectors: Vectors = pack.array("vectors")
        """All of them; in a file that is read in pieces, ask for `row_vectors`."""
        self.chunks = pack.array("chunks")
        self.docs = pack.array("docs")
        self._all_texts = pack.bytes("texts")
        self.doc_of_row: npt.NDArray[np.uint32] = np.ascontiguousarray(self.chunks["doc"])

    @functools.cached_property
    def index(self) -> VectorIndex:
        if self._pieces is not None:
            self._pieces.want([span_of_index(self._pack)])
        codes = Codes(self._pack.array("codes"), self._pack.array("code_error")) if "codes" in self._pack else None
        return VectorIndex(self.vectors, self._pack.array("squares"), codes)

    def row_vectors(self, rows: npt.NDArray[np.int64]) -> Vectors:
        if self._pieces is not None:
            self._pieces.want(spans_of_vectors(self._pack, rows))
        return self.vectors.take(rows, axis=0)

    def spans_of_texts(self, rows: npt.NDArray[np.int64]) -> list[Span]:
        """Bytes of the file that it takes to show these rows."""
        first, _ = self._pack.span("texts")
        spans: list[Span] = []
        for row in rows.tolist():
            doc, start_byte, end_byte, _, _ = self.chunks[row].item()
            begin, header_size, text_size, _ = self.docs[doc].item()
            begin, text = first + begin, first + begin + header_size
            if text_size <= _SHORT_BYTES:  # neighbours, which may become one passage, are within
                spans.append((begin, text + text_size))
            else:
                spans += [(begin, text), (text + start_byte, text + end_byte)]
        return spans

    def header(self, doc: int) -> Header:
        begin, header_size, _, _ = self.docs[doc].item()
        return Header.from_bytes(self._texts(begin, begin + header_size))

    def _texts(self, begin: int, end: int) -> memoryview:
        if self._pieces is not None:
            first, _ = self._pack.span("texts")
            self._pieces.want([(first + begin, first + end)])
        return self._all_texts[begin:end]

    def text(self, doc: int) -> str:
        return bytes(self._text_bytes(doc)).decode(errors="surrogatepass")

    def slice_of(self, row: int, start: int, end: int) -> str:
        """These characters of the text of the row's document."""
        return self.text(int(self.doc_of_row[row]))[start:end]

    def hit(self, row: int, distance: float | None, header: Header, score: float) -> Hit:
        """`header`: of the row's document."""
        doc, start_byte, end_byte, start, end = self.chunks[row].item()
        begin, header_size, _, first_row = self.docs[doc].item()
        begin += header_size
        return Hit(
            document_id=header.id,
            chunk_id=chunk_id(header.id, row - first_row),
            title=header.title,
            url=header.url,
            text=str(self._texts(begin + start_byte, begin + end_byte), "utf-8", "surrogatepass"),
            score=score,
            distance=distance,
            metadata=header.metadata,
            start=start,
            end=end,
            shard=self.name,
        )

    def documents(self, numbers: npt.NDArray[np.int64], graphs: StoredGraphs) -> StoredDocuments:
        """These documents of a whole file, but for their keywords, as another shard can take them up.

        `graphs`: of all documents of this shard.
        """
        everything = StoredDocuments(
            _Slices(self._all_texts, self.docs["offset"], self.docs["header_size"]),
            _Slices(self._all_texts, self.docs["offset"] + self.docs["header_size"], self.docs["text_size"]),
            self.chunks,
            self.vectors,
            graphs,
            empty_rows(len(self.chunks)),
        )
        return everything.pick(numbers)

    def rows_of(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Of these documents, in ascending order."""
        chosen = np.zeros(len(self.docs), np.bool_)
        chosen[numbers] = True
        return np.flatnonzero(chosen[self.doc_of_row])

    def rows_of_document(self, doc: int) -> slice:
        first = int(self.docs[doc]["first_chunk"])
        end = int(self.docs[doc + 1]["first_chunk"]) if doc + 1 < len(self.docs) else len(self.chunks)
        return slice(first, end)

    def vectors_of(self, doc: int) -> Vectors:
        return self.vectors[self.rows_of_document(doc)]

    def no_rows(self) -> npt.NDArray[np.bool_]:
        return np.zeros(len(self.chunks), np.bool_)

    def fields_of(self, row: int) -> tuple[str, str]:
        """The texts that a row is found by: its own, and the title of its document."""
        chunk = self.chunks[row]
        doc = int(chunk["doc"])
        begin = int(self.docs[doc]["offset"]) + int(self.docs[doc]["header_size"])
        content = self._texts(begin + int(chunk["start_byte"]), begin + int(chunk["end_byte"]))
        return bytes(content).decode(errors="surrogatepass"), self.header(doc).title

    def _text_bytes(self, doc: int) -> memoryview:
        begin, header_size, text_size, _ = self.docs[doc].item()
        return self._texts(begin + header_size, begin + header_size + text_size)


@dataclass(frozen=True, eq=False)
class _Slices(Sequence[bytes]):
    """Pieces of a mapped file, copied when they are asked for."""

    content: memoryview
    offsets: npt.NDArray[Any]
    sizes: npt.NDArray[Any]

    def __len__(self) -> int:
        return len(self.offsets)

    def __getitem__(self, number: Any) -> Any:
        begin = int(self.offsets[number])
        return bytes(self.content[begin : begin + int(self.sizes[number])])


@dataclass(frozen=True, slots=True)
class Listed:
    """A document, as the id directory knows it."""

    id: str
    owner: str
    content_hash: str
    doc: int


class IdFile:
    """Which documents a shard holds, without opening anything else of it."""

    def __init__(self, path: Path) -> None:
        pack = Pack(path)
        self._lines = pack.array("lines")
        self._order = pack.array("order")
        self._names = pack.bytes("names")
        self._owners: list[str] = json.loads(bytes(pack.bytes("owners")).decode(errors="surrogatepass"))
        self._prefixes = np.ascontiguousarray(self._lines["prefix"])

    def find(self, identities: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """The line of each identity (a row of two numbers); -1 for those that are not here."""
        found = np.full(len(identities), -1, np.int64)
        places = np.searchsorted(self._prefixes, identities[:, 0])
        # Two ids may share the first half of their hash; three do not in any KB that fits on this planet.
        for step in (0, 1):
            places_here = places + step
            inside = places_here < len(self._lines)
            lines = self._lines[np.minimum(places_here, max(len(self._lines) - 1, 0))] if len(self._lines) else None
            if lines is None:
                return found
            same = inside & (lines["prefix"] == identities[:, 0]) & (lines["rest"] == identities[:, 1])
            found[same] = places_here[same]
        return found

    def identities(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
        """Of every document (a row of two numbers), and its number."""
        both = np.stack([self._prefixes, self._lines["rest"]], axis=1)
        return both, self._lines["doc"].astype(np.int64)

    def lines_of(self, wanted: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
        """Of documents that are marked, by their numbers."""
        return np.flatnonzero(wanted[self._lines["doc"]])

    def hashes_at(self, lines: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
        """Identities, and content hashes: a row of two numbers for each."""
        entries = self._lines[lines]
        identities = np.stack([entries["prefix"], entries["rest"]], axis=1)
        return identities, np.ascontiguousarray(entries["hash"]).view("<u8").reshape(-1, 2)

    def numbers_at(self, lines: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return self._lines["doc"][lines].astype(np.int64)

    def listed(self, line: int) -> Listed:
        entry = self._lines[line]
        begin = int(entry["id_offset"])
        name = bytes(self._names[begin : begin + int(entry["id_size"])]).decode(errors="surrogatepass")
        return Listed(name, self._owners[int(entry["owner"])], bytes(entry["hash"]).hex(), int(entry["doc"]))

    def after(self, document_id: str) -> Iterator[Listed]:
        """Documents by id, from the first that comes after this one."""
        low, high = 0, len(self._order)
        while low < high:
            middle = (low + high) // 2
            if self.listed(int(self._order[middle])).id <= document_id:
                low = middle + 1
            else:
                high = middle
        for position in range(low, len(self._order)):
            yield self.listed(int(self._order[position]))

    def numbers_of_owner(self, owner: str) -> npt.NDArray[np.int64]:
        if owner not in self._owners:
            return np.empty(0, np.int64)
        chosen = self._lines["owner"] == self._owners.index(owner)
        return np.sort(self._lines["doc"][chosen]).astype(np.int64)

    def owner_of(self, line: int) -> str:
        return self._owners[int(self._lines[line]["owner"])]


class RowsFile:
    """The shard's tables, kept open; each question has a cursor of its own."""

    def __init__(self, path: Path, documents: int) -> None:
        self._documents = documents
        self._lock = threading.Lock()
        self._connection = open_rows(path)
        self.selected = functools.lru_cache(maxsize=_REMEMBERED_FILTERS)(self._selected)

    def _selected(self, condition: Filter) -> npt.NDArray[np.bool_]:
        """Which documents meet the condition, by number."""
        where, parameters = condition.to_sql()
        found = self._cursor().execute(f"SELECT doc FROM docs WHERE {where}", parameters).fetchnumpy()["doc"]  # noqa: S608
        chosen = np.zeros(self._documents, np.bool_)
        chosen[np.asarray(found, dtype=np.int64)] = True
        return chosen

    def documents(self) -> list[tuple[Header, str, list[tuple[int, int]]]]:
        """Header, text and places of chunks of each document, by number."""
        cursor = self._cursor()
        found = cursor.execute(
            "SELECT id, owner, title, url, metadata, content_hash, text FROM docs ORDER BY doc"
        ).fetchall()
        places: list[list[tuple[int, int]]] = [[] for _ in found]
        for doc, start, end in cursor.execute(
            "SELECT doc, start_at, end_at FROM chunks ORDER BY doc, number"
        ).fetchall():
            places[doc].append((start, end))
        return [
            (Header(own, owner, title, url, json.loads(metadata), content_hash), text, places[doc])
            for doc, (own, owner, title, url, metadata, content_hash, text) in enumerate(found)
        ]

    def graphs(self) -> dict[int, GraphRows]:
        """Of each document that has one, by number."""
        cursor = self._cursor()
        mentions = cursor.execute(
            """SELECT doc, entity_id, weight, chunk_number FROM doc_entities
               ORDER BY doc, chunk_number, entity_id, weight"""
        ).fetchall()
        edges = cursor.execute(
            """SELECT doc, src, dst, rel_type, weight, chunk_number FROM edges
               ORDER BY doc, chunk_number, src, dst, rel_type, weight"""
        ).fetchall()
        found: dict[int, tuple[list[Any], list[Any]]] = {}
        for doc, *mention in mentions:
            found.setdefault(doc, ([], []))[0].append(tuple(mention))
        for doc, *edge in edges:
            found.setdefault(doc, ([], []))[1].append(tuple(edge))
        return {doc: GraphRows(tuple(rows[0]), tuple(rows[1])) for doc, rows in found.items()}

    def _cursor(self) -> "duckdb.DuckDBPyConnection":
        with self._lock:
            return self._connection.cursor()
