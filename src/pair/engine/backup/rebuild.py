"""The documents of a shard from those of its files that are left: the others hold the same, laid out differently.

What is needed          where it is
texts, headers, chunks  .search, .duckdb
vectors                 .search, also those blocks of a damaged one that are sound; else they are made anew
graphs                  .graph, .duckdb; else they are made anew
keywords                .keywords; else they are made anew
Invariants
    Documents keep their numbers, also those that are gone: every manifest's tombstones stay true.
"""

import functools
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pair.engine.format.array_file import BLOCK_BYTES, ArrayFile, RangeOutline, sound_blocks
from pair.engine.format.columns import (
    NO_GRAPHS,
    Header,
    KeywordRows,
    PreparedDocument,
    RowText,
    StoredDocuments,
    StoredGraphs,
    Vectors,
    build_columns,
    build_graph_columns,
    count_terms,
)
from pair.engine.format.keyword_index import KeywordIndex
from pair.engine.format.manifest import FileRole, ShardRef
from pair.engine.format.shard import SearchFile, open_graph, open_keywords, open_rows, open_search, spans_of_vectors
from pair.engine.settings import EngineSettings
from pair.engine.write.chunking import embedded_text
from pair.engine.write.prepare import Preparation
from pair.engine.write.stored_chunks import stored_chunks
from pair.text.entity_rules import DocumentText
from pair.values import Chunk


class ShardRebuilder:
    def __init__(
        self,
        ref: ShardRef,
        sound: Mapping[FileRole, Path],
        damaged: Mapping[FileRole, Path],
        policy: EngineSettings,
        preparation: Preparation,
        embedder: str,
    ) -> None:
        """`sound` and `damaged`: files that are here. `embedder`: of the vectors that the shard has."""
        self._ref = ref
        self._sound = sound
        self._damaged = damaged
        self._policy = policy
        self._preparation = preparation
        self._embedder = embedder

    @property
    def remedy(self) -> str:
        """Empty when it cannot be done."""
        lost = self._lost_vectors
        can_embed = self._preparation.embedding.name == self._embedder
        has_texts = "search" in self._sound or ("rows" in self._sound and (can_embed or not lost))
        has_graph = not self._ref.graph_available or bool({"graph", "rows"} & self._sound.keys())
        if not has_texts or not (has_graph or self._preparation.makes_graphs):
            return ""
        anew = [f"{lost:,} of {self._ref.rows:,} vectors"] if lost else []
        anew += [] if has_graph else ["graphs"]
        made = f", with {' and '.join(anew)} made anew" if anew else ""
        return f"the other files of the shard{made}"

    @property
    def makes_vectors(self) -> bool:
        return self._lost_vectors > 0

    @property
    def _lost_vectors(self) -> int:
        return 0 if "search" in self._sound else int(np.count_nonzero(~self._salvaged[1]))

    @functools.cached_property
    def _salvaged(self) -> tuple[Vectors, npt.NDArray[np.bool_]]:
        """Vectors of a damaged file, and which of them are sound."""
        vectors = np.zeros((self._ref.rows, self._ref.centroids.shape[1]), np.float32)
        known = np.zeros(self._ref.rows, np.bool_)
        path, outline = self._damaged.get("search"), self._outline
        if path is None or outline is None or not len(vectors):
            return vectors, known
        blocks = sound_blocks(path, outline)
        pack = self._laid_out(path, outline)
        try:
            stored = pack.array("vectors", "<f4", dimensions=2) if pack is not None else vectors[:0]
        except ValueError:
            return vectors, known
        if pack is None or stored.shape != vectors.shape:
            return vectors, known
        for row, (begin, end) in enumerate(spans_of_vectors(pack, np.arange(len(known)))):
            known[row] = bool(blocks[begin // BLOCK_BYTES : -(-end // BLOCK_BYTES)].all())
        vectors[known] = stored[known]
        return vectors, known

    def _laid_out(self, path: Path, outline: RangeOutline) -> ArrayFile | None:
        """A damaged file, with its sections where they should be. None when the outline is of another file.

        Of vectors that were made anew since, the keyword file knows nothing.
        """
        size = self._ref.files["search"].size_bytes
        if len(outline.hashes) != -(-size // BLOCK_BYTES):
            return None
        whole = path.with_suffix(".salvaged")
        shutil.copyfile(path, whole)
        with whole.open("r+b") as stream:
            stream.truncate(size)
            stream.write(outline.head)
        try:
            return ArrayFile(whole)
        except ValueError:
            return None

    @property
    def _outline(self) -> RangeOutline | None:
        return open_keywords(self._ref, self._sound["keywords"]).search_outline if "keywords" in self._sound else None

    def documents(self) -> StoredDocuments:
        """All of them, by number. Raises ModelError."""
        stored = self._from_search() if "search" in self._sound else self._from_rows()
        return replace(stored, graphs=self._graphs(stored))

    def _lengths(self) -> list[int] | None:
        index = self._keywords()
        return None if index is None else index.lengths.tolist()

    def _keywords(self) -> KeywordIndex | None:
        index = open_keywords(self._ref, self._sound["keywords"]) if "keywords" in self._sound else None
        return index if index is not None and index.is_current else None

    def _from_search(self) -> StoredDocuments:
        search = open_search(self._ref, self._sound["search"])
        documents = search.documents(np.arange(len(search.docs)), NO_GRAPHS)
        index = self._keywords()
        if index is not None:
            return replace(documents, keywords=index.read_rows(np.arange(index.count)))
        return replace(documents, keywords=self._analysed(search))

    def _analysed(self, search: SearchFile) -> KeywordRows:
        texts: list[RowText] = []
        for doc in range(len(search.docs)):
            title, rows = search.header(doc).title, search.rows_of_document(doc)
            places = list(zip(search.chunks["start"][rows].tolist(), search.chunks["end"][rows].tolist(), strict=True))
            chunks = stored_chunks(search.text(doc), title, places, None, self._policy)
            texts += [RowText(chunk.text, title, chunk.context) for chunk in chunks]
        return count_terms(texts)

    def _from_rows(self) -> StoredDocuments:
        rows = open_rows(self._ref, self._sound["rows"])
        lengths, index = self._lengths(), self._keywords()
        found: list[tuple[Header, str, tuple[Chunk, ...]]] = []
        begin = 0
        for header, text, places in rows.documents():
            own = None if lengths is None else lengths[begin : begin + len(places)]
            begin += len(places)
            found.append((header, text, stored_chunks(text, header.title, places, own, self._policy)))
        vectors, known = self._salvaged
        lost = np.flatnonzero(~known)
        if len(lost):
            texts = [embedded_text(header.title, chunk) for header, _, chunks in found for chunk in chunks]
            vectors[lost] = self._preparation.embedding.embed_all([texts[row] for row in lost.tolist()])
        prepared: list[PreparedDocument] = []
        begin = 0
        for header, text, chunks in found:
            prepared.append(PreparedDocument(header, text, chunks, vectors[begin : begin + len(chunks)]))
            begin += len(chunks)
        stored = build_columns(prepared, vectors.shape[1])
        return stored if index is None else replace(stored, keywords=index.read_rows(np.arange(index.count)))

    def _graphs(self, stored: StoredDocuments) -> StoredGraphs:
        if not self._ref.graph_available:
            return NO_GRAPHS
        counts = stored.chunk_counts()
        if "graph" in self._sound:
            first_chunks = np.cumsum(counts) - counts
            graph = open_graph(self._ref, self._sound["graph"])
            return graph.graphs(stored.chunks["doc"].astype(np.uint32), first_chunks)
        if "rows" in self._sound:
            made = open_rows(self._ref, self._sound["rows"]).graphs()
        else:
            made = dict(enumerate(self._preparation.graphs_of(_texts_of(stored))))
        return replace(build_graph_columns(made, counts.tolist()), is_made=True)


def _texts_of(stored: StoredDocuments) -> list[DocumentText]:
    texts: list[list[str]] = [[] for _ in range(stored.count)]
    for doc, begin, end in zip(
        *(stored.chunks[name].tolist() for name in ("doc", "start_byte", "end_byte")), strict=True
    ):
        texts[doc].append(stored.texts[doc][begin:end].decode(errors="surrogatepass"))
    titles = [Header.from_bytes(each).title for each in stored.headers]
    return [DocumentText(title, own) for title, own in zip(titles, texts, strict=True)]
