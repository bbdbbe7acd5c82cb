"""Documents checked, hashed, cut, embedded and analysed: all that is made of them before they are stored.

Not here
    Whether they are stored already, and storing them: writing.py, building.py.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pair import errors
from pair.ai.caching_embedder import CachingEmbedder
from pair.engine.format.columns import Header, PreparedDocument, PreparedKeywords, RowText, count_terms, hash_content
from pair.engine.settings import Chunker
from pair.engine.storage.manifest_store import StoredManifest
from pair.engine.write import chunking
from pair.engine.write.chunking import embedded_text
from pair.text.entity_rules import DocumentText, Grapher
from pair.values import NO_GRAPH, Chunk, Document, GraphRows

_MOST_ID_CHARACTERS = 4096
_DOCUMENT_BYTES = 200
"""What a document takes besides its text."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Documents of one owner, each id once."""

    documents: Sequence[Document]
    owner: str
    chunk_size_bytes: int
    graphs: Mapping[str, GraphRows]
    """By document id."""
    revisions: Mapping[str, str]
    """What the caller knows a document's content by, by document id; for others, all of the document is hashed."""


def size_of(document: Document) -> int:
    """About how many bytes it takes."""
    texts = (document.text, document.title, document.url)
    size = sum(len(each) if each.isascii() else len(each.encode(errors="surrogatepass")) for each in texts)
    return size + _DOCUMENT_BYTES + 4 * (0 if document.vector is None else len(document.vector))


def in_batches(documents: Iterable[Document], most: int, most_bytes: int) -> Iterator[list[Document]]:
    """In their order; a document that is larger than a batch may be is one by itself."""
    batch: list[Document] = []
    size = 0
    for document in documents:
        own = size_of(document)
        if batch and size + own > most_bytes:
            yield batch
            batch, size = [], 0
        batch.append(document)
        size += own
        if len(batch) == most:  # at once: the next document may be long in coming
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


class Preparation:
    def __init__(
        self, kb_id: str, chunker: Chunker, embedding: CachingEmbedder, grapher: Grapher | None = None
    ) -> None:
        """`grapher` makes the graphs of documents that come without one."""
        self._kb_id = kb_id
        self._chunker: Chunker = chunker
        self._grapher = grapher
        self.embedding = embedding

    def made_with(self, before: StoredManifest | None) -> str:
        """What vectors and graphs are made with: what was made with something else is not the same.

        A KB whose vectors were made anew goes on with the name that its hashes were made with.
        """
        name = self._hashed_as(before)
        return name if self._grapher is None else f"{name} {self._grapher.name}"

    def _hashed_as(self, before: StoredManifest | None) -> str:
        if before is None or before.manifest.embedder != self.embedding.name:
            return self.embedding.name
        return before.manifest.hashing_embedder

    def checked_hashes(self, batch: Batch, before: StoredManifest | None) -> dict[str, str]:
        """The content hash of each document, by id. Raises E213, E303 for what cannot be stored."""
        hashes: dict[str, str] = {}
        cut = cutting(self._chunker, batch.chunk_size_bytes)
        made_with = self.made_with(before)
        for document in batch.documents:
            check_document(document)
            if document.vector is not None and len(document.vector) != self.embedding.dimension:
                raise errors.vector_size_differs(self._kb_id, self.embedding.dimension, len(document.vector))
            if (revision := batch.revisions.get(document.id)) is not None:
                hashes[document.id] = revised_hash(revision, batch.owner, made_with, cut)
            else:
                graph = batch.graphs.get(document.id)
                name = self._hashed_as(before) if graph else made_with
                hashes[document.id] = hash_content(document, batch.owner, f"{name} {cut} {_graph_text(graph)}")
        return hashes

    def prepared(
        self, batch: Batch, documents: Sequence[Document], hashes: Mapping[str, str]
    ) -> dict[str, PreparedDocument]:
        """These documents of the batch, by id, cut, embedded and analysed."""
        cut = {each.id: _chunks_of(each, batch.chunk_size_bytes, self._chunker) for each in documents}
        texts = [
            embedded_text(each.title, chunk) for each in documents if each.vector is None for chunk in cut[each.id]
        ]
        vectors = self.embedding.embed_all(texts) if texts else np.empty((0, self.embedding.dimension), np.float32)
        keywords = count_terms(
            RowText(chunk.text, each.title, chunk.context) for each in documents for chunk in cut[each.id]
        )
        graphs = self._graphs_of(batch, documents, cut)
        done: dict[str, PreparedDocument] = {}
        begin = first = 0
        for each in documents:
            chunks = cut[each.id]
            if each.vector is None:
                own = vectors[begin : begin + len(chunks)]
                begin += len(chunks)
            else:
                own = np.asarray(each.vector, dtype=np.float32)[None, :]
            graph = graphs.get(each.id, NO_GRAPH)
            content = hashes[each.id] if graph.is_complete else _hash_incomplete(hashes[each.id])
            header = Header(each.id, batch.owner, each.title, each.url, each.metadata, content)
            own_keywords = PreparedKeywords(keywords, first)
            first += len(chunks)
            done[each.id] = PreparedDocument(header, each.text, chunks, own, graph, own_keywords)
        return done

    @property
    def makes_graphs(self) -> bool:
        return self._grapher is not None

    def graphs_of(self, texts: Sequence[DocumentText]) -> Sequence[GraphRows]:
        """Anew, of texts that are stored; only where graphs are made at all."""
        if self._grapher is None:
            raise ValueError("no graphs are made here")
        return self._grapher.graphs_of(texts)

    def _graphs_of(
        self, batch: Batch, documents: Sequence[Document], cut: Mapping[str, Sequence[Chunk]]
    ) -> Mapping[str, GraphRows]:
        if self._grapher is None:
            return batch.graphs
        bare = [each for each in documents if each.id not in batch.graphs]
        made = self._grapher.graphs_of(
            [DocumentText(each.title, [chunk.text for chunk in cut[each.id]]) for each in bare]
        )
        return {**batch.graphs, **{each.id: graph for each, graph in zip(bare, made, strict=True)}}


def cutting(chunker: Chunker, chunk_size_bytes: int) -> str:
    """How documents are cut, as their content hashes know it."""
    return f"{chunker} {chunk_size_bytes}"


def revised_hash(revision: str, owner: str, made_with: str, cutting: str) -> str:
    """The content hash of a document whose content its owner knows by a revision."""
    return hashlib.sha256(f"{revision}\0{owner}\0{made_with}\0{cutting}".encode()).hexdigest()[:32]


def _hash_incomplete(content: str) -> str:
    """Return the content hash of a document without its whole graph: the next write of it is a change."""
    return hashlib.sha256(f"incomplete graph\0{content}".encode()).hexdigest()[:32]


def _graph_text(graph: GraphRows | None) -> str:
    return json.dumps([graph.mentions, graph.edges]) if graph else ""


def check_document(document: Document) -> None:
    """Raises E213 for a document that cannot be stored."""
    if not document.id or len(document.id) > _MOST_ID_CHARACTERS:
        reason = "its id is empty" if not document.id else f"its id is longer than {_MOST_ID_CHARACTERS:,} characters"
        raise errors.document_invalid(document.id, reason)
    try:
        json.dumps(dict(document.metadata), allow_nan=False, sort_keys=True)
    except (TypeError, ValueError) as fault:
        raise errors.document_invalid(document.id, f"its metadata cannot be written as JSON: {fault}") from fault
    try:
        with np.errstate(over="ignore"):
            is_finite = document.vector is None or np.isfinite(np.asarray(document.vector, dtype=np.float32)).all()
    except (TypeError, ValueError) as fault:
        raise errors.document_invalid(document.id, "its vector is not a list of numbers") from fault
    if not is_finite:
        raise errors.document_invalid(document.id, "its vector holds something that is not a number")


def _chunks_of(document: Document, size_bytes: int, chunker: Chunker) -> tuple[Chunk, ...]:
    if document.vector is not None:
        return (Chunk(document.text, 0, len(document.text)),)
    return chunking.split(document.text, size_bytes, chunker)
