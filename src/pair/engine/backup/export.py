"""Export all live documents of a KB, as one manifest has them, into one file.

Invariants
    The file shows one state of the KB: before the first line its shards are held open, or all lines are on disk.
    No more than one document is in memory, and no more of the cache is held than it may take.
"""

import contextlib
import heapq
import itertools
import mmap
import struct
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from pair.engine.backup.export_format import LinesHeader, format_document, open_target, write_lines
from pair.engine.format.columns import PreparedDocument, StoredGraphs
from pair.engine.format.graph_index import GraphIndex
from pair.engine.format.manifest import Manifest, ShardRef
from pair.engine.format.shard import ListedDocument, SearchFile
from pair.engine.settings import EngineSettings
from pair.engine.storage.shard_cache import OpenShard, ShardCache
from pair.engine.write.prepare import restore_chunks
from pair.engine.write.writer import live_mask
from pair.values import NO_GRAPH, GraphRows

_SIZES = struct.Struct("<II")
"""Bytes of an id, and of the line that follows it."""


@dataclass(frozen=True, slots=True)
class ExportReport:
    kb_id: str
    documents: int
    chunks: int
    manifest_version: int
    embedder: str
    sha256: str
    """Hash of all lines but the last."""


@dataclass(frozen=True, slots=True)
class ExportOptions:
    vectors: bool
    on_progress: Callable[[int, int], None]
    """Called with the number of documents that are done, and of all documents."""


def count_export_bytes(shard: ShardRef) -> int:
    """Count the bytes of the files that an export reads of a shard."""
    is_older = shard.graph_available and "graph" not in shard.files
    return sum(file.size_bytes for role, file in shard.files.items() if role != "rows" or is_older)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One state of a KB."""

    manifest: Manifest
    chunks: int
    """The number of live chunks."""
    lines: Iterator[bytes]
    """The lines of all documents by id."""


def hold_snapshot(manifest: Manifest, cache: ShardCache, settings: EngineSettings, options: ExportOptions) -> Snapshot:
    """Hold all shards open, whole. Raises ShardMissingError, E205, E206, E207, E010."""
    shards = [_HeldShard(shard, cache.open(shard), settings) for shard in manifest.shards]

    def read_lines() -> Iterator[bytes]:
        streams = [zip(shard.list_documents(), itertools.repeat(shard)) for shard in shards]
        for number, (listed, shard) in enumerate(heapq.merge(*streams, key=lambda entry: entry[0].id), 1):
            yield format_document(shard.read_document(listed), has_vectors=options.vectors)
            options.on_progress(number, manifest.documents)

    return Snapshot(manifest, sum(shard.live_chunks for shard in shards), read_lines())


def spool_snapshot(
    manifest: Manifest, cache: ShardCache, settings: EngineSettings, folder: Path, options: ExportOptions
) -> Snapshot:
    """Write the lines to disk, shard after shard: for a cache that does not hold all shards at once.

    `folder`: for the lines; it has to exist for as long as they are read.
    Raises ShardMissingError, E205 when the cache does not hold one shard, E206, E207, E010.
    """
    path, ends, chunks = folder / "lines", [0], 0
    done = itertools.count(1)
    with path.open("xb") as spool:
        for ref in manifest.shards:
            chunks += _spool_shard(
                _HeldShard(ref, cache.open(ref), settings),
                spool,
                has_vectors=options.vectors,
                on_line=lambda: options.on_progress(next(done), manifest.documents),
            )
            ends.append(spool.tell())
    return Snapshot(manifest, chunks, _merge_spool(path, ends))


def _spool_shard(shard: "_HeldShard", spool: BinaryIO, *, has_vectors: bool, on_line: Callable[[], None]) -> int:
    """Write the lines of a shard; return the number of its chunks. The caller keeps no reference: the next shard is
    opened when this one may be evicted.
    """
    for listed in shard.list_documents():
        name = listed.id.encode(errors="surrogatepass")
        line = format_document(shard.read_document(listed), has_vectors=has_vectors)
        spool.write(_SIZES.pack(len(name), len(line)) + name + line)
        on_line()
    return shard.live_chunks


def _merge_spool(path: Path, ends: Sequence[int]) -> Iterator[bytes]:
    """Yield the lines by id. `ends`: where the lines of each shard end; the first is 0."""
    if not ends[-1]:
        return
    with (
        path.open("rb") as spool,
        mmap.mmap(spool.fileno(), 0, access=mmap.ACCESS_READ) as content,
        contextlib.ExitStack() as streams,
    ):
        # Bytes of UTF-8 sort as their characters do.
        merged = heapq.merge(
            *(
                streams.enter_context(contextlib.closing(_read_spool(content, begin, end)))
                for begin, end in itertools.pairwise(ends)
            ),
            key=lambda entry: entry[0],
        )
        for _, line in merged:
            yield line


def _read_spool(content: mmap.mmap, begin: int, end: int) -> Generator[tuple[bytes, bytes]]:
    """Yield ids and lines."""
    while begin < end:
        name_bytes, line_bytes = _SIZES.unpack_from(content, begin)
        begin += _SIZES.size
        name = content[begin : begin + name_bytes]
        begin += name_bytes
        yield name, content[begin : begin + line_bytes]
        begin += line_bytes


class _HeldShard:
    def __init__(self, ref: ShardRef, opened: OpenShard, settings: EngineSettings) -> None:
        self._ref = ref
        self._opened = opened  # keeps its files from being evicted
        self._settings = settings
        self._ids = opened.ids()
        self._search: SearchFile = opened.search(0.0)
        self._keywords = opened.keywords()
        graph = opened.graph()
        self._graphs: GraphIndex | StoredGraphs = opened.stored_graphs() if graph is None else graph

    @property
    def live_chunks(self) -> int:
        return int(live_mask(self._ref)[self._search.doc_of_row].sum())

    def list_documents(self) -> Iterator[ListedDocument]:
        live = live_mask(self._ref)
        return (listed for listed in self._ids.after("") if live[listed.doc])

    def read_document(self, listed: ListedDocument) -> PreparedDocument:
        search, doc = self._search, listed.doc
        header, text, rows = search.header(doc), search.text(doc), search.rows_of_document(doc)
        ranges: list[Any] = list(zip(*(search.chunks[name][rows].tolist() for name in ("start", "end")), strict=True))
        lengths = None if self._keywords is None else self._keywords.lengths[rows].tolist()
        chunks = restore_chunks(text, header.title, ranges, lengths, self._settings)
        return PreparedDocument(header, text, chunks, search.vectors[rows], self._graph(doc, rows))

    def _graph(self, doc: int, rows: slice) -> GraphRows:
        if not self._ref.graph_available:
            return NO_GRAPH
        if isinstance(self._graphs, GraphIndex):
            return self._graphs.read_graph(rows)
        return self._graphs.get(doc, GraphRows((), ()))


def export_documents(snapshot: Snapshot, target: Path | BinaryIO, options: ExportOptions) -> ExportReport:
    """Raises E010. A file appears whole or not at all."""
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
    with open_target(target) as stream:
        documents, digest = write_lines(stream, header, snapshot.lines)
    return ExportReport(manifest.kb_id, documents, header.chunks, manifest.number, manifest.embedder, digest)
