"""The file of an export: documents as JSON lines, with their chunks, graphs and vectors.

The lines are a header, one line for each document by id, and a trailer: the number of documents and the SHA-256 of all
lines before it.
Invariants
    The same documents make the same bytes, however they are spread over shards.
    A file is checked to be whole and unchanged before any document of it is used.
    A file of a newer format is refused.
"""

import base64
import contextlib
import gzip
import hashlib
import itertools
import json
import math
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

import numpy as np

from pair import errors, files
from pair.engine.format.checks import load_json
from pair.engine.format.columns import Header, PreparedDocument, Vectors
from pair.values import NO_GRAPH, Chunk, GraphRows

FORMAT = "pair-documents"
FORMAT_VERSION = 1
_MOST_LINE_BYTES = 1 << 27
_MOST_RATIO = 100
_FREE_BYTES = 1 << 24
"""How much a packed file may grow: so many times over, and by so many bytes. Texts grow 3 to 20 times."""
_HASH_BYTES = 16
_GZIP, _ZIP = b"\x1f\x8b", b"PK"

ExportKind = Literal["documents", "shards"]


@dataclass(frozen=True, slots=True)
class LinesHeader:
    """The first line, which describes all others."""

    kb_id: str
    embedder: str
    dimension: int
    hashed_as: str
    """The embedder that content hashes name, where it is not `embedder`."""
    documents: int
    chunks: int
    manifest_version: int
    has_vectors: bool

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "kb_id": self.kb_id,
            "manifest_version": self.manifest_version,
            "embedder": self.embedder,
            "dimension": self.dimension,
            "hashed_as": self.hashed_as,
            "documents": self.documents,
            "chunks": self.chunks,
            "vectors": self.has_vectors,
        }


def detect_export_kind(path: Path) -> ExportKind:
    """Detect the kind of an export by its first bytes, whatever its name. Raises E003, E010, E225."""
    if not path.is_file():
        raise errors.source_path_missing(str(path))
    with files.storage_errors(), path.open("rb") as stream:
        beginning = stream.read(2)
    if beginning == _ZIP:
        return "shards"
    if beginning == _GZIP or beginning[:1] == b"{":
        return "documents"
    raise errors.export_not_understood(str(path), "it is neither JSON lines nor a zip")


# ── writing ────────────────────────────────────────────────────────────────────────────────────────


def write_lines(stream: BinaryIO, header: LinesHeader, lines: Iterable[bytes]) -> tuple[int, str]:
    """Write the lines of an export; return the number of documents and the SHA-256 of all lines but the last."""
    digest = hashlib.sha256()
    documents = -1
    for line in itertools.chain([_to_line(header.to_json())], lines):
        digest.update(line)
        stream.write(line)
        documents += 1
    stream.write(_to_line({"end": {"documents": documents, "sha256": digest.hexdigest()}}))
    return documents, digest.hexdigest()


@contextlib.contextmanager
def open_target(target: Path | BinaryIO) -> Iterator[BinaryIO]:
    """Open a file that appears when the block ends without an error, packed if its name ends in .gz; or a stream."""
    if not isinstance(target, Path):
        yield target
        return
    with files.storage_errors():
        path = files.resolve_parent(target)
        files.remove_half_written(path)
        with files.replace_file(path) as stream:
            if target.suffix == ".gz":
                with gzip.GzipFile("", "wb", fileobj=stream, mtime=0) as packed:
                    yield cast("BinaryIO", packed)
            else:
                yield stream


def _to_line(value: dict[str, Any]) -> bytes:
    line = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        return line.encode() + b"\n"
    except UnicodeEncodeError:  # a lone surrogate
        return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def format_document(document: PreparedDocument, *, has_vectors: bool) -> bytes:
    """Return the line of a document."""
    header, graph = document.header, document.graph
    value = {
        "id": header.id,
        "title": header.title,
        "url": header.url,
        "owner": header.owner,
        "metadata": header.metadata,
        "content_hash": header.content_hash,
        "text": document.text,
        "chunks": [
            {
                "start": chunk.start,
                "end": chunk.end,
                **({"context": chunk.context} if chunk.context else {}),
                **({"vector": base64.b64encode(vector.astype("<f4").tobytes()).decode()} if has_vectors else {}),
            }
            for chunk, vector in zip(document.chunks, document.vectors, strict=True)
        ],
        **({} if graph is NO_GRAPH else {"graph": {"mentions": graph.mentions, "edges": graph.edges}}),
    }
    return _to_line(value)


# ── reading ────────────────────────────────────────────────────────────────────────────────────────


class DocumentLines:
    """An exported file. Raises E224, E225; E003 and E010 for a file that cannot be read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.header = self._read_header(next(self._lines(), b""))

    def verify(self) -> None:
        """Check that the file is, byte for byte, what was written."""
        digest = hashlib.sha256()
        count, last = -1, b""
        for line in self._lines():
            if last:
                digest.update(last)
                count += 1
            last = line
        trailer = self._read_trailer(last)
        if trailer is None:
            raise self._damage("its last line is missing: it was cut off")
        if trailer != (count, digest.hexdigest()):
            raise self._damage("its SHA-256 is not the one that it ends with")
        if count != self.header.documents:
            raise self._damage("it holds another number of documents than it says")

    def documents(self) -> Iterator[PreparedDocument]:
        """Read the documents by id; without vectors where the file has none."""
        before = ""
        lines = self._lines()
        next(lines, b"")
        for number in range(self.header.documents):
            document = self._read_document(next(lines, b""), f"line {number + 2}")
            if document.header.id <= before:
                raise self._not_understood(f"line {number + 2}: documents are not in the order of their ids")
            before = document.header.id
            yield document

    def _lines(self) -> Iterator[bytes]:
        if not self.path.is_file():
            raise errors.source_path_missing(str(self.path))
        with files.storage_errors(), self.path.open("rb") as raw:
            is_packed = raw.read(2) == _GZIP
            raw.seek(0)
            stream: Any = gzip.GzipFile(fileobj=raw) if is_packed else raw
            left = _MOST_RATIO * self.path.stat().st_size + _FREE_BYTES
            try:
                while line := stream.readline(min(_MOST_LINE_BYTES, left)):
                    if len(line) == _MOST_LINE_BYTES:
                        raise self._not_understood(f"a line is longer than {_MOST_LINE_BYTES:,} bytes")
                    left -= len(line)
                    if left <= 0:
                        raise self._not_understood(f"it unpacks to more than {_MOST_RATIO} times its size")
                    yield line
            except (EOFError, zlib.error, gzip.BadGzipFile) as fault:
                raise self._damage("it cannot be unpacked to its end") from fault

    def _read_header(self, line: bytes) -> LinesHeader:
        try:
            value = load_json(line)
            if not isinstance(value, dict) or value.get("format") != FORMAT:
                raise self._not_understood("its first line is not that of an export")
            if value["format_version"] > FORMAT_VERSION:
                raise self._not_understood(f"it has format {value['format_version']}, which is newer than this pair")
            return LinesHeader(
                kb_id=_name(value["kb_id"]),
                embedder=_name(value["embedder"]),
                dimension=_count(value["dimension"], 1),
                hashed_as=_name(value["hashed_as"]),
                documents=_count(value["documents"]),
                chunks=_count(value["chunks"]),
                manifest_version=_count(value["manifest_version"]),
                has_vectors=value["vectors"] is True,
            )
        except (ValueError, KeyError, TypeError, RecursionError) as fault:
            if isinstance(fault, errors.PairError):
                raise
            raise self._not_understood("its first line is not that of an export") from fault

    def _read_trailer(self, line: bytes) -> tuple[int, str] | None:
        try:
            value = load_json(line)["end"]
            return value["documents"], value["sha256"]
        except (ValueError, KeyError, TypeError, RecursionError):
            return None

    def _read_document(self, line: bytes, where: str) -> PreparedDocument:
        try:
            return _document_from_json(load_json(line), self.header)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as fault:
            raise self._not_understood(f"{where} is not a document: {fault}") from fault

    def _damage(self, reason: str) -> errors.DataError:
        return errors.export_damaged(str(self.path), reason)

    def _not_understood(self, reason: str) -> errors.UsageError:
        return errors.export_not_understood(str(self.path), reason)


def _document_from_json(value: Any, header: LinesHeader) -> PreparedDocument:
    text, metadata = _text(value["text"]), value["metadata"]
    content_hash = _text(value["content_hash"])
    if len(bytes.fromhex(content_hash)) != _HASH_BYTES or not isinstance(metadata, dict) or not value["id"]:
        raise ValueError("id, metadata or content hash cannot be")
    json.dumps(metadata, allow_nan=False)
    own_header = Header(
        _text(value["id"]), _text(value["owner"]), _text(value["title"]), _text(value["url"]), metadata, content_hash
    )
    chunks = _chunks_from_json(value["chunks"], text)
    vectors = np.empty((0, header.dimension), np.float32)
    if header.has_vectors and chunks:
        vectors = np.stack([_vector_from_text(chunk["vector"], header.dimension) for chunk in value["chunks"]])
    graph = _graph_from_json(value["graph"]) if "graph" in value else NO_GRAPH
    return PreparedDocument(own_header, text, chunks, vectors, graph)


def _chunks_from_json(values: Sequence[Any], text: str) -> tuple[Chunk, ...]:
    chunks: list[Chunk] = []
    begin = 0
    for value in values:
        start, end = _count(value["start"]), _count(value["end"])
        if not begin <= start <= end <= len(text):
            raise ValueError("a chunk is not within the text")
        chunks.append(Chunk(text[start:end], start, end, _text(value.get("context", ""))))
        begin = end
    return tuple(chunks)


def _vector_from_text(text: str, dimension: int) -> Vectors:
    vector = np.frombuffer(base64.b64decode(text, validate=True), "<f4").astype(np.float32)
    if len(vector) != dimension or not np.isfinite(vector).all():
        raise ValueError("a vector cannot be")
    return vector


def _graph_from_json(value: Any) -> GraphRows:
    return GraphRows(
        tuple((_text(name), _weight(weight), _count(chunk)) for name, weight, chunk in value["mentions"]),
        tuple(
            (_text(source), _text(target), _text(kind), _weight(weight), _count(chunk))
            for source, target, kind, weight, chunk in value["edges"]
        ),
    )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"no text: {value!r:.40}")
    return value


def _name(value: Any) -> str:
    """Return a text that a manifest can hold."""
    _text(value).encode()
    return str(value)


def _count(value: Any, least: int = 0) -> int:
    if type(value) is not int or not least <= value < 1 << 32:
        raise ValueError(f"no count: {value!r:.40}")
    return value


def _weight(value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise ValueError(f"no weight: {value!r:.40}")
    return float(value)
