"""Preparation of documents for storing: check, hash, cut, embed and analyse."""

import contextlib
import gc
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from pair import errors
from pair.ai.caching_embedder import CachingEmbedder
from pair.engine.format.columns import Header, PreparedDocument, RowText, count_terms, hash_content
from pair.engine.settings import Chunker, EngineSettings
from pair.engine.storage.manifest_store import StoredManifest
from pair.engine.write.chunking import Range, add_contexts, format_for_embedding, split
from pair.text.entity_rules import LINK_WEIGHT, DocumentText, Grapher, find_links
from pair.text.languages import find_language
from pair.values import NO_GRAPH, NO_GRAPH_YET, Chunk, Document, GraphRows

_MOST_ID_CHARACTERS = 4096
_DOCUMENT_BYTES = 200
"""Estimated bytes of a document in addition to its text."""
_PART_BYTES = 2 << 20
"""Size of the documents that are cut and embedded together: this needs several times their memory for a moment."""

_Item = TypeVar("_Item")
_CutDocument = tuple[Document, tuple[Chunk, ...], npt.NDArray[np.float32], GraphRows]
"""A document with its chunks, their vectors and its graph."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Documents of one owner, without duplicate ids."""

    documents: Sequence[Document]
    owner: str
    chunk_size_bytes: int
    graphs: Mapping[str, GraphRows]
    """The graphs of documents that come with one, by document id."""
    revisions: Mapping[str, str]
    """The caller's name for the content of a document, by document id. Other documents are hashed whole."""


def estimate_bytes(document: Document) -> int:
    """Estimate the bytes of a document."""
    texts = (document.text, document.title, document.url)
    size = sum(len(text) if text.isascii() else len(text.encode(errors="surrogatepass")) for text in texts)
    return size + _DOCUMENT_BYTES + 4 * (0 if document.vector is None else len(document.vector))


def split_batches(documents: Iterable[Document], most: int, most_bytes: int) -> Iterator[list[Document]]:
    """Split documents into batches, in order. A document larger than `most_bytes` is its own batch."""
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
        if len(batch) == most:  # Yield at once: the next item may come late.
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


@contextlib.contextmanager
def pause_gc() -> Iterator[None]:
    """Pause the search for cycles: among millions of new strings and tuples it takes a tenth of a write or more."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@dataclass(eq=False)
class Preparation:
    kb_id: str
    chunker: Chunker
    embedding: CachingEmbedder
    grapher: Grapher | None = None
    """A maker of the graphs of documents that come without one."""

    def name_models(self, before: StoredManifest | None) -> str:
        """Return the names of embedder and grapher for content hashes: another model changes every hash."""
        name = self._hashing_embedder(before)
        return name if self.grapher is None else f"{name} {self.grapher.name}"

    def _hashing_embedder(self, before: StoredManifest | None) -> str:
        """Return the embedder that content hashes name. A re-embedding does not change it."""
        if before is None or before.manifest.embedder != self.embedding.name:
            return self.embedding.name
        return before.manifest.hashing_embedder

    def hash_documents(self, batch: Batch, before: StoredManifest | None) -> dict[str, str]:
        """Return the content hash of each document, by id. Raises E213, E303 for a document that cannot be stored."""
        hashes: dict[str, str] = {}
        chunking = describe_chunking(self.chunker, batch.chunk_size_bytes)
        models = self.name_models(before)
        for document in batch.documents:
            check_document(document)
            if document.vector is not None and len(document.vector) != self.embedding.dimension:
                raise errors.vector_size_differs(self.kb_id, self.embedding.dimension, len(document.vector))
            if (revision := batch.revisions.get(document.id)) is not None:
                hashes[document.id] = hash_revision(revision, batch.owner, models, chunking)
                continue
            graph = batch.graphs.get(document.id)
            name = self._hashing_embedder(before) if graph else models
            graph_text = json.dumps([graph.mentions, graph.edges]) if graph else ""
            hashes[document.id] = hash_content(document, batch.owner, f"{name} {chunking} {graph_text}")
        return hashes

    @pause_gc()
    def prepare(
        self, batch: Batch, documents: Sequence[Document], hashes: Mapping[str, str]
    ) -> dict[str, PreparedDocument]:
        """Cut, embed and analyse these documents of the batch; return them by id."""
        cut: list[_CutDocument] = []
        keywords = count_terms(self._cut_documents(batch, documents, cut))
        prepared: dict[str, PreparedDocument] = {}
        first_row = 0
        for document, chunks, vectors, graph in cut:
            content = hashes[document.id]
            if not graph.is_complete:  # Use another hash, so that the next write of the document is a change.
                content = hashlib.sha256(f"incomplete graph\0{content}".encode()).hexdigest()[:32]
            header = Header(document.id, batch.owner, document.title, document.url, document.metadata, content)
            prepared[document.id] = PreparedDocument(header, document.text, chunks, vectors, graph, keywords, first_row)
            first_row += len(chunks)
        return prepared

    def _cut_documents(
        self, batch: Batch, documents: Sequence[Document], cut: list["_CutDocument"]
    ) -> Iterator[RowText]:
        """Cut and embed the documents, a part at a time, and add them to `cut`. Yield the text of each chunk."""
        for part in split_batches(documents, len(documents), _PART_BYTES):
            chunks: dict[str, tuple[Chunk, ...]] = {}
            for document in part:
                chunks[document.id] = (Chunk(document.text, 0, len(document.text)),)
                if document.vector is None:
                    chunks[document.id] = split(document.text, batch.chunk_size_bytes, self.chunker)
            texts = [
                format_for_embedding(document.title, chunk)
                for document in part
                if document.vector is None
                for chunk in chunks[document.id]
            ]
            vectors = self.embedding.embed_all(texts) if texts else np.empty((0, self.embedding.dimension), np.float32)
            graphs = self._make_missing_graphs(batch, part, chunks)
            first = 0
            for document in part:
                own = chunks[document.id]
                if document.vector is None:
                    own_vectors = vectors[first : first + len(own)]
                    first += len(own)
                else:
                    own_vectors = np.asarray(document.vector, dtype=np.float32)[None, :]
                cut.append((document, own, own_vectors, graphs.get(document.id, NO_GRAPH)))
                language = find_language(document.metadata, document.text)
                for chunk in own:
                    yield RowText(chunk.text, document.title, chunk.context, language)

    def _make_missing_graphs(
        self, batch: Batch, documents: Sequence[Document], chunks: Mapping[str, Sequence[Chunk]]
    ) -> Mapping[str, GraphRows]:
        if self.grapher is None:
            return batch.graphs
        bare = [
            DocumentText(document.title, [chunk.text for chunk in chunks[document.id]], document.id, document.url)
            for document in documents
            if document.id not in batch.graphs
        ]
        return {**batch.graphs, **dict(zip([document.id for document in bare], self.make_graphs(bare), strict=True))}

    def make_graphs(self, documents: Sequence[DocumentText]) -> list[GraphRows]:
        """Return a graph of the entities and links of each document; NO_GRAPH without a grapher."""
        if self.grapher is None:
            return [NO_GRAPH] * len(documents)
        graphs = self.grapher.graphs_of(documents)
        return [_add_links(graph, document) for graph, document in zip(graphs, documents, strict=True)]


def _add_links(graph: GraphRows, document: DocumentText) -> GraphRows:
    """Return a graph with a mention of each document that a chunk links to."""
    links = find_links(document.id, document.title, document.url, document.chunks)
    if graph is NO_GRAPH or graph is NO_GRAPH_YET or not any(links):
        return graph
    named = {(name, chunk) for name, _, chunk in graph.mentions}
    added = [(name, LINK_WEIGHT, chunk) for chunk, names in enumerate(links) for name in names]
    return replace(graph, mentions=(*graph.mentions, *(each for each in added if (each[0], each[2]) not in named)))


def describe_chunking(chunker: Chunker, chunk_size_bytes: int) -> str:
    """Return the part of content hashes that describes how documents are cut."""
    return f"{chunker} {chunk_size_bytes}"


def hash_revision(revision: str, owner: str, models: str, chunking: str) -> str:
    """Return the content hash of a document whose owner names its content by a revision."""
    return hashlib.sha256(f"{revision}\0{owner}\0{models}\0{chunking}".encode()).hexdigest()[:32]


def check_document(document: Document) -> None:
    """Raise E213 for a document that cannot be stored."""
    if not document.id or len(document.id) > _MOST_ID_CHARACTERS:
        reason = "its id is empty" if not document.id else f"its id is longer than {_MOST_ID_CHARACTERS:,} characters"
        raise errors.document_invalid(document.id, reason)
    try:
        if document.metadata:
            json.dumps(dict(document.metadata), allow_nan=False, sort_keys=True)
    except (TypeError, ValueError) as fault:
        raise errors.document_invalid(document.id, f"its metadata cannot be written as JSON: {fault}") from fault
    if document.vector is None:
        return
    try:
        with np.errstate(over="ignore"):
            is_finite = np.isfinite(np.asarray(document.vector, dtype=np.float32)).all()
    except (TypeError, ValueError) as fault:
        raise errors.document_invalid(document.id, "its vector is not a list of numbers") from fault
    if not is_finite:
        raise errors.document_invalid(document.id, "its vector contains a value that is not a number")


def embed_chunks(embedding: CachingEmbedder, documents: Sequence[PreparedDocument]) -> list[PreparedDocument]:
    """Return the documents with vectors for their chunks."""
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
    """Return the chunks of a stored document, each with its indexed context.

    `lengths`: words of each chunk in the keyword index; None without an index. The document may have been stored
    under other settings. The length of one chunk with a context shows whether contexts were indexed.
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
