"""Conversion between documents of LangChain and of pair."""

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from langchain_core.documents import Document

from pair import errors
from pair.client import RemoteKnowledgeBase
from pair.engine.query.documents import StoredDocument
from pair.kb.kb import KnowledgeBase
from pair.values import Document as PairDocument
from pair.values import Hit

Kb = KnowledgeBase | RemoteKnowledgeBase
"""What `pair.open` or `pair.connect` returns."""
_Found = TypeVar("_Found")


def make_cited(kb_id: str, hit: Hit) -> Document:
    """Return a hit as a document whose id is the citation id of the passage."""
    metadata = {
        **hit.metadata,
        "source": hit.url or hit.document_id,
        "title": hit.title,
        "document_id": hit.document_id,
        "kb": kb_id,
        "start": hit.start,
        "end": hit.end,
        "score": hit.score,
    }
    return Document(id=hit.cite(kb_id), page_content=hit.text, metadata=metadata)


def make_plain(stored: StoredDocument | Hit) -> Document:
    """Return what was stored, as it was given: content, metadata and id."""
    name = stored.document_id if isinstance(stored, Hit) else stored.id
    return Document(id=name, page_content=stored.text, metadata=dict(stored.metadata))


def make_stored(document: Document, vector: Sequence[float] | None = None) -> PairDocument:
    """Return the document to store. Its title and URL are those in the metadata."""
    title, source = document.metadata.get("title"), document.metadata.get("source")
    return PairDocument(
        id=document.id or str(uuid.uuid4()),
        text=document.page_content,
        title=title if isinstance(title, str) else "",
        url=source if isinstance(source, str) and "://" in source else "",
        metadata=document.metadata,
        vector=None if vector is None else normalise(vector),
    )


def normalise(vector: Sequence[float]) -> list[float]:
    """Return a vector of length 1: then the nearest vectors have the largest cosine."""
    numbers = np.asarray(vector, np.float64)
    length = float(np.linalg.norm(numbers))
    return (numbers / length).tolist() if length else numbers.tolist()


def fetch(kb: Kb, ids: Iterable[str]) -> list[Document]:
    """Return the stored documents with these ids, in this order."""
    wanted = list(dict.fromkeys(ids))
    stored = read_or(lambda: kb.documents(ids=wanted, limit=max(len(wanted), 1)), [])
    found: Mapping[str, Any] = {document.id: document for document in stored}
    return [make_plain(found[name]) for name in wanted if name in found]


def read_or(read: Callable[[], _Found], nothing: _Found) -> _Found:
    """Return what is read, or nothing from a KB without any document."""
    try:
        return read()
    except errors.PairError as fault:
        if fault.code != errors.KB_UNINITIALISED:
            raise
        return nothing
