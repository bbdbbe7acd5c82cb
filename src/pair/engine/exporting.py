"""All live documents of a KB into one file, as one manifest has them.

Invariants
    What is written is one state of the KB: its shards are held open before the first line, so nobody takes them away.
    No more than one document is in memory.
"""

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from pair.engine.document_lines import LinesHeader, LineWriter, written_lines
from pair.engine.graph_file import GraphFile
from pair.engine.manifest import Manifest, ShardRef
from pair.engine.policy import EnginePolicy
from pair.engine.shard import Listed, SearchFile
from pair.engine.shard_cache import OpenShard, ShardCache
from pair.engine.stored_chunks import stored_chunks
from pair.engine.stored_documents import PreparedDocument
from pair.engine.stored_graphs import NO_GRAPH, GraphRows, StoredGraphs


@dataclass(frozen=True, slots=True)
class ExportReport:
    kb_id: str
    documents: int
    chunks: int
    manifest_version: int
    embedder: str
    sha256: str
    """Of all lines but the last, or of the manifest that is in the file."""
    shards: int = 0
    """That the file has as they are; 0 for one of documents."""


class Snapshot:
    """The shards of one manifest, whole and held open. Raises ShardMissingError, E205, E206, E207, E010."""

    def __init__(self, manifest: Manifest, cache: ShardCache, policy: EnginePolicy) -> None:
        self.manifest = manifest
        self._shards = [_HeldShard(shard, cache.open(shard), policy) for shard in manifest.shards]

    @property
    def chunks(self) -> int:
        return sum(shard.live_chunks() for shard in self._shards)

    def documents(self) -> Iterator[PreparedDocument]:
        """By id."""
        streams = [self._listed_in(position) for position in range(len(self._shards))]
        for listed, position in heapq.merge(*streams, key=lambda each: each[0].id):
            yield self._shards[position].document(listed)

    def _listed_in(self, position: int) -> Iterator[tuple[Listed, int]]:
        for listed in self._shards[position].listed():
            yield listed, position


class _HeldShard:
    def __init__(self, ref: ShardRef, opened: OpenShard, policy: EnginePolicy) -> None:
        self._ref = ref
        self._opened = opened  # keeps its files from being evicted
        self._policy = policy
        self._ids = opened.ids()
        self._search: SearchFile = opened.search(0.0)
        self._keywords = opened.keywords()
        graph = opened.graph()
        self._graphs: GraphFile | StoredGraphs = opened.stored_graphs() if graph is None else graph

    def live_chunks(self) -> int:
        gone = self._ref.tombstones
        return len(self._search.chunks) if gone is None else int((~gone[self._search.doc_of_row]).sum())

    def listed(self) -> Iterator[Listed]:
        for listed in self._ids.after(""):
            if self._ref.tombstones is None or not self._ref.tombstones[listed.doc]:
                yield listed

    def document(self, listed: Listed) -> PreparedDocument:
        search, doc = self._search, listed.doc
        header, text, rows = search.header(doc), search.text(doc), search.rows_of_document(doc)
        places: list[Any] = list(zip(*(search.chunks[name][rows].tolist() for name in ("start", "end")), strict=True))
        lengths = None if self._keywords is None else self._keywords.lengths[rows].tolist()
        chunks = stored_chunks(text, header.title, places, lengths, self._policy)
        return PreparedDocument(header, text, chunks, search.vectors[rows], self._graph(doc, rows))

    def _graph(self, doc: int, rows: slice) -> GraphRows:
        if not self._ref.graph_available:
            return NO_GRAPH
        if isinstance(self._graphs, GraphFile):
            return self._graphs.graph_of(rows)
        return self._graphs.get(doc, GraphRows((), ()))


def export_documents(
    snapshot: Snapshot, target: Path | BinaryIO, *, vectors: bool, on_progress: Callable[[int, int], None]
) -> ExportReport:
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
        has_vectors=vectors,
    )
    with written_lines(target) as stream:
        writer = LineWriter(stream, header)
        for document in snapshot.documents():
            writer.write(document)
            on_progress(writer.documents, header.documents)
        digest = writer.end()
    return ExportReport(manifest.kb_id, writer.documents, header.chunks, manifest.number, manifest.embedder, digest)
