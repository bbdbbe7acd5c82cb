"""Prepare documents for storing: check, hash, cut, embed and analyse them."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from pair import errors
from pair.ai.caching_embedder import CachingEmbedder
from pair.engine.format.columns import Header, PreparedDocument, RowText, count_terms, hash_content
from pair.engine.settings import Chunker, EngineSettings
from pair.engine.storage.manifest_store import StoredManifest
from pair.engine.write.chunking import Range, add_contexts, format_for_embedding, split
from pair.text.entity_rules import DocumentText, Grapher
from pair.values import NO_GRAPH, Chunk, Document, GraphRows

_MOST_ID_CHARACTERS = 4096
_DOCUMENT_BYTES = 200
"""What a document takes besides its text."""

_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class Batch:
    """Documents of one owner, each id once."""

    documents: Sequence[Document]
    owner: str
    chunk_size_bytes: int
    graphs: Mapping[str, GraphRows]
    """By document id."""
    revisions: Mapping[str, str]
    """What the caller knows a document's content by, by document id; other documents are hashed whole."""


def estimate_bytes(document: Document) -> int:
    """Estimate how many bytes a document takes."""
    texts = (document.text, document.title, document.url)
    size = sum(len(text) if text.isascii() else len(text.encode(errors="surrogatepass")) for text in texts)
    return size + _DOCUMENT_BYTES + 4 * (0 if document.vector is None else len(document.vector))


def split_batches(documents: Iterable[Document], most: int, most_bytes: int) -> Iterator[list[Document]]:
    """Split documents into batches, in their order. A document larger than `most_bytes` is a batch by itself."""
    return split_by_size(documents, estimate_bytes, most, most_bytes)


def split_by_size(
    items: Iterable[_Item], measure: Callable[[_Item], int], most: int, most_bytes: int
) -> Iterator[list[_Item]]:
    batch: list[_Item] = []
    size = 0
    for item in items:
        item_bytes = measure(item)
        if batch and size + item_bytes > most_bytes:
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += item_bytes
        if len(batch) == most:  # at once: the next item may be long in coming
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

    def name_models(self, before: StoredManifest | None) -> str:
        """Name the embedder and the grapher, as content hashes do: with another one, a document counts as changed."""
        name = self._hashing_embedder(before)
        return name if self._grapher is None else f"{name} {self._grapher.name}"

    def _hashing_embedder(self, before: StoredManifest | None) -> str:
        """Name the embedder that content hashes name: a re-embedded KB keeps the one that its hashes were made with."""
        if before is None or before.manifest.embedder != self.embedding.name:
            return self.embedding.name
        return before.manifest.hashing_embedder

    def hash_documents(self, batch: Batch, before: StoredManifest | None) -> dict[str, str]:
        """Return the content hash of each document, by id. Raises E213, E303 for what cannot be stored."""
        hashes: dict[str, str] = {}
        chunking = describe_chunking(self._chunker, batch.chunk_size_bytes)
        models = self.name_models(before)
        for document in batch.documents:
            check_document(document)
            if document.vector is not None and len(document.vector) != self.embedding.dimension:
                raise errors.vector_size_differs(self._kb_id, self.embedding.dimension, len(document.vector))
            if (revision := batch.revisions.get(document.id)) is not None:
                hashes[document.id] = hash_revision(revision, batch.owner, models, chunking)
                continue
            graph = batch.graphs.get(document.id)
            name = self._hashing_embedder(before) if graph else models
            graph_text = json.dumps([graph.mentions, graph.edges]) if graph else ""
            hashes[document.id] = hash_content(document, batch.owner, f"{name} {chunking} {graph_text}")
        return hashes

    def prepare(
        self, batch: Batch, documents: Sequence[Document], hashes: Mapping[str, str]
    ) -> dict[str, PreparedDocument]:
        """Cut, embed and analyse these documents of the batch; return them by id."""
        chunks = {document.id: self._cut(document, batch.chunk_size_bytes) for document in documents}
        texts = [
            format_for_embedding(document.title, chunk)
            for document in documents
            if document.vector is None
            for chunk in chunks[document.id]
        ]
        vectors = self.embedding.embed_all(texts) if texts else np.empty((0, self.embedding.dimension), np.float32)
        keywords = count_terms(
            RowText(chunk.text, document.title, chunk.context)
            for document in documents
            for chunk in chunks[document.id]
        )
        graphs = self._make_missing_graphs(batch, documents, chunks)
        prepared: dict[str, PreparedDocument] = {}
        first_vector = first_row = 0
        for document in documents:
            own = chunks[document.id]
            if document.vector is None:
                own_vectors = vectors[first_vector : first_vector + len(own)]
                first_vector += len(own)
            else:
                own_vectors = np.asarray(document.vector, dtype=np.float32)[None, :]
            graph = graphs.get(document.id, NO_GRAPH)
            content = hashes[document.id] if graph.is_complete else _hash_incomplete(hashes[document.id])
            header = Header(document.id, batch.owner, document.title, document.url, document.metadata, content)
            prepared[document.id] = PreparedDocument(
                header, document.text, own, own_vectors, graph, keywords, first_row
            )
            first_row += len(own)
        return prepared

    def _cut(self, document: Document, size_bytes: int) -> tuple[Chunk, ...]:
        if document.vector is not None:
            return (Chunk(document.text, 0, len(document.text)),)
        return split(document.text, size_bytes, self._chunker)

    @property
    def makes_graphs(self) -> bool:
        return self._grapher is not None

    def make_graphs(self, texts: Sequence[DocumentText]) -> Sequence[GraphRows]:
        """Make the graphs of stored texts again; only where graphs are made at all."""
        if self._grapher is None:
            raise ValueError("no graphs are made here")
        return self._grapher.graphs_of(texts)

    def _make_missing_graphs(
        self, batch: Batch, documents: Sequence[Document], chunks: Mapping[str, Sequence[Chunk]]
    ) -> Mapping[str, GraphRows]:
        if self._grapher is None:
            return batch.graphs
        bare = [document for document in documents if document.id not in batch.graphs]
        graphs = self._grapher.graphs_of(
            [DocumentText(document.title, [chunk.text for chunk in chunks[document.id]]) for document in bare]
        )
        return {**batch.graphs, **{document.id: graph for document, graph in zip(bare, graphs, strict=True)}}


def describe_chunking(chunker: Chunker, chunk_size_bytes: int) -> str:
    """Describe how documents are cut, as content hashes know it."""
    return f"{chunker} {chunk_size_bytes}"


def hash_revision(revision: str, owner: str, models: str, chunking: str) -> str:
    """Return the content hash of a document whose content its owner knows by a revision."""
    return hashlib.sha256(f"{revision}\0{owner}\0{models}\0{chunking}".encode()).hexdigest()[:32]


def _hash_incomplete(content: str) -> str:
    """Return the content hash of a document without its whole graph: the next write of it is a change."""
    return hashlib.sha256(f"incomplete graph\0{content}".encode()).hexdigest()[:32]


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


def embed_chunks(embedding: CachingEmbedder, documents: Sequence[PreparedDocument]) -> list[PreparedDocument]:
    """Return documents with the vectors of their chunks."""
    texts = [format_for_embedding(document.header.title, chunk) for document in documents for chunk in document.chunks]
    if not texts:
        return list(documents)
    vectors = embedding.embed_all(texts)
    ends = np.cumsum([len(document.chunks) for document in documents]).tolist()
    return [
        replace(document, vectors=vectors[end - len(document.chunks) : end])
        for document, end in zip(documents, ends, strict=True)
    ]


def restore_chunks(
    text: str, title: str, ranges: Sequence[Range], lengths: Sequence[int] | None, settings: EngineSettings
) -> tuple[Chunk, ...]:
    """Return the chunks of a stored document, each with the context that it was indexed with.

    `lengths`: in words, as the keyword index counts them; None without an index. The document may have been stored
    under other settings: the length of one chunk with a context shows whether contexts were indexed.
    """
    if lengths is None:
        return add_contexts(text, ranges, settings.chunk_bytes, settings.chunker)
    chunks = add_contexts(text, ranges, settings.chunk_bytes, "structure")
    sample = next((number for number, chunk in enumerate(chunks) if chunk.context), None)
    if sample is None:
        return chunks
    indexed = count_terms([RowText(chunks[sample].text, title, chunks[sample].context)])
    if int(indexed.lengths[0]) == int(lengths[sample]):
        return chunks
    return tuple(replace(chunk, context="") for chunk in chunks)
