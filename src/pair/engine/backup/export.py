"""Exports of all live documents of one version of a KB to a file of JSON lines, and a reader of such files.

The lines are a header; one line for each document, ordered by id, with its chunks, graph and vectors; and a trailer
with the number of documents and the SHA-256 of all lines before it.
Invariants
    The file is one state of the KB: before the first line is written, all shards are open or all lines are on disk.
    One document is in memory at a time, and the cache stays within its limit.
    The same documents make the same bytes, however they are divided into shards.
    A file is verified before any document of it is used. A file of a newer format is refused.
"""

import base64
import contextlib
import gzip
import hashlib
import heapq
import itertools
import json
import mmap
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal, cast

import msgspec
import numpy as np
import numpy.typing as npt

from pair import errors, files
from pair.engine.format.array_file import load_json
from pair.engine.format.columns import Header, PreparedDocument, Vectors
from pair.engine.format.manifest import Manifest, ShardRef
from pair.engine.format.shard import ListedDocument, SearchFile
from pair.engine.settings import EngineSettings
from pair.engine.write.commit import EngineContext
from pair.engine.write.prepare import restore_chunks
from pair.engine.write.writer import list_live, live_mask, scratch_folder
from pair.values import NO_GRAPH, Chunk, GraphRows, convert_json

FORMAT: Literal["pair-documents"] = "pair-documents"
FORMAT_VERSION = 1
_MOST_LINE_BYTES = 1 << 27
_MOST_RATIO = 100
_FREE_BYTES = 1 << 24
"""Maximum unpacked size of a compressed file: a multiple of its size, plus a constant. Texts grow 3 to 20 times."""
_GZIP = b"\x1f\x8b"

_Name = Annotated[str, msgspec.Meta(pattern="^[^\ud800-\udfff]*$")]
"""A text without characters that a manifest cannot store."""
_Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]
_Weight = Annotated[float, msgspec.Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
"""A finite number."""


class LinesHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The first line, which describes all others, with its fields in the order of the file."""

    format: Literal["pair-documents"] = FORMAT
    format_version: int = FORMAT_VERSION
    kb_id: _Name
    manifest_version: _Count
    embedder: _Name
    dimension: Annotated[int, msgspec.Meta(ge=1, lt=1 << 32)]
    hashed_as: _Name
    """The embedder that content hashes name, if it is not `embedder`."""
    documents: _Count
    chunks: _Count
    has_vectors: bool = msgspec.field(name="vectors")


class _ChunkLine(msgspec.Struct):
    start: _Count
    end: _Count
    context: str = ""
    vector: str = ""


class _GraphLine(msgspec.Struct):
    mentions: tuple[tuple[str, _Weight, _Count], ...]
    edges: tuple[tuple[str, str, str, _Weight, _Count], ...]


class _DocumentLine(msgspec.Struct):
    id: Annotated[str, msgspec.Meta(min_length=1)]
    title: str
    url: str
    owner: str
    metadata: dict[str, Any]
    content_hash: Annotated[str, msgspec.Meta(pattern="^[0-9a-fA-F]{32}\\Z")]
    text: str
    chunks: list[_ChunkLine]
    graph: _GraphLine | msgspec.UnsetType = msgspec.UNSET


@contextlib.contextmanager
def open_target(target: Path | BinaryIO) -> Iterator[BinaryIO]:
    """Yield the stream, or a stream to a file that appears if the block succeeds. Compress a file named `.gz`."""
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
    except UnicodeEncodeError:  # The text has a lone surrogate.
        return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def format_document(document: PreparedDocument, *, has_vectors: bool) -> bytes:
    """Return a document as a line of the export."""
    header, graph = document.header, document.graph
    names = ("id", "title", "url", "owner", "metadata", "content_hash")
    value: dict[str, Any] = {name: getattr(header, name) for name in names}
    value |= {"text": document.text, "chunks": []}
    for chunk, vector in zip(document.chunks, document.vectors, strict=True):
        entry: dict[str, Any] = {"start": chunk.start, "end": chunk.end}
        if chunk.context:
            entry["context"] = chunk.context
        if has_vectors:
            entry["vector"] = base64.b64encode(vector.astype("<f4").tobytes()).decode()
        value["chunks"].append(entry)
    if graph is not NO_GRAPH:
        value["graph"] = {"mentions": graph.mentions, "edges": graph.edges}
    return _to_line(value)


@dataclass(frozen=True, slots=True)
class DocumentLines:
    """An exported file. Its methods raise E224, E225; E003 and E010 for a file that cannot be read."""

    path: Path
    header: LinesHeader

    def verify(self) -> None:
        """Check that the file is complete and unchanged."""
        digest = hashlib.sha256()
        count, last = -1, b""
        for line in _read_lines(self.path):
            if last:
                digest.update(last)
                count += 1
            last = line
        try:
            end = load_json(last)["end"]
            trailer = end["documents"], end["sha256"]
        except (ValueError, KeyError, TypeError) as fault:
            raise errors.export_damaged(str(self.path), "its last line is missing: the file is truncated") from fault
        if trailer != (count, digest.hexdigest()):
            raise errors.export_damaged(str(self.path), "its SHA-256 differs from the one at its end")
        if count != self.header.documents:
            raise errors.export_damaged(str(self.path), "its number of documents differs from the stated one")

    def documents(self) -> Iterator[PreparedDocument]:
        """Yield the documents in the order of ids; without vectors if the file has none."""
        before = ""
        lines = _read_lines(self.path)
        next(lines, b"")
        for number in range(2, self.header.documents + 2):
            try:
                document = _parse_document(next(lines, b""), self.header)
            except ValueError as fault:
                reason = f"line {number} is not a document: {fault}"
                raise errors.export_not_understood(str(self.path), reason) from fault
            if document.header.id <= before:
                reason = f"line {number}: documents are not in the order of their ids"
                raise errors.export_not_understood(str(self.path), reason)
            before = document.header.id
            yield document


def open_export(path: Path) -> DocumentLines:
    """Read the first line of an export. Raises E224, E225, E003, E010."""
    try:
        value = load_json(next(_read_lines(path), b""))
        if value["format"] == FORMAT and value["format_version"] > FORMAT_VERSION:
            version = value["format_version"]
            raise errors.export_not_understood(str(path), f"it has format {version}, which is newer than this pair")
        return DocumentLines(path, convert_json(value, LinesHeader))
    except (ValueError, KeyError, TypeError) as fault:
        if isinstance(fault, errors.PairError):
            raise
        raise errors.export_not_understood(str(path), "its first line is not that of an export") from fault


def _read_lines(path: Path) -> Iterator[bytes]:
    if not path.is_file():
        raise errors.source_path_missing(str(path))
    with files.storage_errors(), path.open("rb") as raw:
        is_packed = raw.read(2) == _GZIP
        raw.seek(0)
        stream: Any = gzip.GzipFile(fileobj=raw) if is_packed else raw
        left = _MOST_RATIO * path.stat().st_size + _FREE_BYTES
        reason = ""
        try:
            while line := stream.readline(min(_MOST_LINE_BYTES, left)):
                left -= len(line)
                if len(line) == _MOST_LINE_BYTES:
                    reason = f"a line is longer than {_MOST_LINE_BYTES:,} bytes"
                elif left <= 0:
                    reason = f"it unpacks to more than {_MOST_RATIO} times its size"
                if reason:
                    raise errors.export_not_understood(str(path), reason)
                yield line
        except (EOFError, zlib.error, gzip.BadGzipFile) as fault:
            raise errors.export_damaged(str(path), "its compressed data is truncated or damaged") from fault


def _parse_document(line: bytes, header: LinesHeader) -> PreparedDocument:
    """Parse the line of a document. Raises ValueError."""
    value = convert_json(load_json(line), _DocumentLine)
    json.dumps(value.metadata, allow_nan=False)
    chunks: list[Chunk] = []
    begin = 0
    for chunk in value.chunks:
        if not begin <= chunk.start <= chunk.end <= len(value.text):
            raise ValueError("a chunk is not within the text")
        chunks.append(Chunk(value.text[chunk.start : chunk.end], chunk.start, chunk.end, chunk.context))
        begin = chunk.end
    vectors: Vectors = np.empty((0, header.dimension), np.float32)
    if header.has_vectors and chunks:
        packed = [base64.b64decode(chunk.vector, validate=True) for chunk in value.chunks]
        if any(len(vector) != 4 * header.dimension for vector in packed):
            raise ValueError("a vector has a wrong size")
        vectors = np.frombuffer(b"".join(packed), "<f4").astype(np.float32).reshape(-1, header.dimension)
        if not np.isfinite(vectors).all():
            raise ValueError("a vector has a value that is not a finite number")
    graph = NO_GRAPH if value.graph is msgspec.UNSET else GraphRows(value.graph.mentions, value.graph.edges)
    own_header = Header(value.id, value.owner, value.title, value.url, value.metadata, value.content_hash)
    return PreparedDocument(own_header, value.text, tuple(chunks), vectors, graph)


@dataclass(frozen=True, slots=True)
class ExportReport:
    kb_id: str
    documents: int
    chunks: int
    manifest_version: int
    embedder: str
    sha256: str
    """Hash of all lines except the last."""


@dataclass(frozen=True, slots=True)
class ExportOptions:
    vectors: bool
    on_progress: Callable[[int, int], None]
    """Called with the number of exported documents, and of all documents."""


def count_export_bytes(shard: ShardRef) -> int:
    """Count the bytes of the files of a shard that an export reads."""
    return sum(file.size_bytes for role, file in shard.files.items() if role != "rows")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One state of a KB."""

    manifest: Manifest
    chunks: int
    """The number of live chunks."""
    lines: Iterator[bytes]
    """The lines of all documents, in the order of ids."""


def take_snapshot(
    manifest: Manifest, context: EngineContext, options: ExportOptions, cleanup: contextlib.ExitStack
) -> Snapshot:
    """Open all shards; or write the lines to disk if the cache cannot hold all shards at once.

    `cleanup`: close it after the last line.
    Raises ShardMissingError, E205 if the cache cannot hold one shard, E206, E207, E010.
    """
    if not context.cache.may_hold(sum(map(count_export_bytes, manifest.shards))):
        folder = cleanup.enter_context(scratch_folder(context.cache))
        return _spool_snapshot(manifest, context, folder, options)
    shards = [_HeldShard(shard, context) for shard in manifest.shards]

    def read_lines() -> Iterator[bytes]:
        streams = [zip(shard.list_documents(), itertools.repeat(shard)) for shard in shards]
        for number, (listed, shard) in enumerate(heapq.merge(*streams, key=lambda entry: entry[0].id), 1):
            yield format_document(shard.read_document(listed), has_vectors=options.vectors)
            options.on_progress(number, manifest.documents)

    return Snapshot(manifest, sum(shard.live_chunks for shard in shards), read_lines())


def _spool_snapshot(manifest: Manifest, context: EngineContext, folder: Path, options: ExportOptions) -> Snapshot:
    """Write the lines to disk, one shard after another."""
    path, ends, chunks = folder / "lines", [0], 0
    done = itertools.count(1)
    with path.open("xb") as spool:
        for ref in manifest.shards:
            shard = _HeldShard(ref, context)
            for listed in shard.list_documents():
                spool.write(json.dumps(listed.id).encode() + b"\n")
                spool.write(format_document(shard.read_document(listed), has_vectors=options.vectors))
                options.on_progress(next(done), manifest.documents)
            chunks += shard.live_chunks
            ends.append(spool.tell())
            del shard  # It may be evicted now.
    return Snapshot(manifest, chunks, _merge_spool(path, ends))


def _merge_spool(path: Path, ends: Sequence[int]) -> Iterator[bytes]:
    """Yield the lines in the order of ids. `ends`: 0, and the end of the lines of each shard."""
    if not ends[-1]:
        return
    with path.open("rb") as spool, mmap.mmap(spool.fileno(), 0, access=mmap.ACCESS_READ) as content:

        def read_shard(begin: int, end: int) -> Iterator[tuple[str, int, int]]:
            """Yield each id, and the start and the end of its line."""
            while begin < end:
                middle = content.find(b"\n", begin) + 1
                behind = content.find(b"\n", middle) + 1
                yield json.loads(content[begin:middle]), middle, behind
                begin = behind

        shards = (read_shard(begin, end) for begin, end in itertools.pairwise(ends))
        for _, begin, end in heapq.merge(*shards):
            yield content[begin:end]


class _HeldShard:
    def __init__(self, ref: ShardRef, context: EngineContext) -> None:
        self._ref = ref
        self._opened = opened = context.cache.open(ref)  # The reference prevents eviction.
        self._settings = context.settings
        self._ids = opened.ids()
        self._search: SearchFile = opened.search(0.0)
        self._keywords = opened.keywords()
        self._graph = opened.graph()

    @property
    def live_chunks(self) -> int:
        return int(live_mask(self._ref)[self._search.doc_of_row].sum())

    def list_documents(self) -> Iterator[ListedDocument]:
        return list_live(self._ref, self._ids)

    def read_document(self, listed: ListedDocument) -> PreparedDocument:
        lengths = None if self._keywords is None else self._keywords.lengths
        document = read_document(self._search, listed.doc, lengths, self._settings)
        if self._graph is None:
            return document
        return replace(document, graph=self._graph.read_graph(self._search.rows_of_document(listed.doc)))


def read_document(
    search: SearchFile, doc: int, lengths: npt.NDArray[np.uint32] | None, settings: EngineSettings
) -> PreparedDocument:
    """Return a document of a shard, without its graph. `lengths`: words in each row, if they are indexed."""
    header, text, rows = search.header(doc), search.text(doc), search.rows_of_document(doc)
    ranges: list[Any] = list(zip(*(search.chunks[name][rows].tolist() for name in ("start", "end")), strict=True))
    own_lengths = None if lengths is None else lengths[rows].tolist()
    chunks = restore_chunks(text, header.title, ranges, own_lengths, settings)
    return PreparedDocument(header, text, chunks, search.vectors[rows])


def export_documents(snapshot: Snapshot, target: Path | BinaryIO, options: ExportOptions) -> ExportReport:
    """Write an export. A file appears complete or not at all. Raises E010."""
    manifest = snapshot.manifest
    header = LinesHeader(
        kb_id=manifest.kb_id,
        embedder=manifest.embedder,
        dimension=manifest.dimension,
        hashed_as=manifest.hashed_as,
        documents=manifest.documents,
        chunks=snapshot.chunks,
        manifest_version=manifest.number,
        has_vectors=options.vectors,
    )
    digest, documents = hashlib.sha256(), -1
    with open_target(target) as stream:
        for line in itertools.chain([_to_line(msgspec.to_builtins(header))], snapshot.lines):
            digest.update(line)
            stream.write(line)
            documents += 1
        sha256 = digest.hexdigest()
        stream.write(_to_line({"end": {"documents": documents, "sha256": sha256}}))
    return ExportReport(manifest.kb_id, documents, header.chunks, manifest.number, manifest.embedder, sha256)
