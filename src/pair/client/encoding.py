"""JSON of requests to a server, and of its responses."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import httpx2
import numpy as np

from pair import errors, values
from pair.client.connection import Json, Result, encode_json
from pair.engine.maintenance.versions import DocumentChanges
from pair.engine.query.documents import StoredDocument
from pair.engine.write.writer import WriteReport
from pair.values import Document, Hits, convert_json

Conditions = Mapping[str, Any] | Sequence[str]

_BATCH_DOCUMENTS = 1000
_BATCH_BYTES = 4_000_000
_IDS_AT_ONCE = 200
"""Maximum number of ids in one request. Even long ids then fit into its body."""


def encode_selection(owner: str | None, conditions: Conditions | None) -> dict[str, str]:
    """Return the query parameters that select documents. Raises E238."""
    values.check_text("owner", owner, optional=True)
    values.check_filter(conditions)
    parameters = {} if owner is None else {"owner": owner}
    if conditions:
        parameters["filter"] = encode_json(encode_filter(conditions)).decode()
    return parameters


def encode_filter(conditions: Conditions) -> Any:
    return dict(conditions) if isinstance(conditions, Mapping) else list(conditions)


def encode_vector(vector: Sequence[float] | np.ndarray) -> list[float]:
    """Return a vector as a list of floats for JSON. Raises E238."""
    try:
        return [float(number) for number in vector]
    except (TypeError, ValueError) as fault:
        raise errors.argument_invalid("vector", "a list of numbers", vector) from fault


def split_ids(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    """Split ids into batches, one for each request."""
    return (ids[begin : begin + _IDS_AT_ONCE] for begin in range(0, len(ids), _IDS_AT_ONCE))


def unless_empty(read: Callable[[], Result], nothing: Result) -> Result:
    """Return the result of `read`, or `nothing` if the KB was never written."""
    try:
        return read()
    except errors.PairError as fault:
        if fault.code != errors.KB_UNINITIALISED:
            raise
        return nothing


def read_events(response: httpx2.Response) -> Iterator[tuple[str, bytes]]:
    """Yield name and data of server-sent events. Only a line feed ends a line: a text may contain other line ends."""
    rest, name = b"", ""
    for block in response.iter_bytes():
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            if line.startswith(b"event: "):
                name = line.removeprefix(b"event: ").decode()
            elif line.startswith(b"data: "):
                yield name, line.removeprefix(b"data: ")


def split_batches(documents: Iterable[Document]) -> Iterator[list[bytes]]:
    lines: list[bytes] = []
    size = 0
    for document in documents:
        line = _encode_document(document)
        if lines and (len(lines) == _BATCH_DOCUMENTS or size + len(line) > _BATCH_BYTES):
            yield lines
            lines, size = [], 0
        lines.append(line)
        size += len(line)
    if lines:
        yield lines


def _encode_document(document: Document) -> bytes:
    """Encode a document as JSON. Raises E213."""
    if not document.id:
        raise errors.document_invalid(document.id, "its id is empty")
    if document.vector is None and not document.text.strip():
        raise errors.document_invalid(document.id, "its text is blank")
    optional: Json = {"title": document.title, "url": document.url, "metadata": dict(document.metadata)}
    optional["vector"] = None if document.vector is None else encode_vector(document.vector)
    value = {"id": document.id, "text": document.text} | {name: item for name, item in optional.items() if item}
    try:
        return encode_json(value)
    except errors.UsageError as fault:
        raise errors.document_invalid(document.id, "it cannot be encoded as JSON") from fault


def decode_as(kind: type[Result]) -> Callable[[Json], Result]:
    """Return a decoder that ignores unknown keys."""
    return lambda value: convert_json(value, kind)


def decode_hits(value: Json) -> Hits:
    """Decode hits. The server sends neither the searched shards nor the weights of words."""
    hits = [
        {
            "also_in_count": len(hit["also_in"]),
            **hit,
            "document_id": hit["id"],
            "text": hit["content"],
            "also_in": [{**place, "document_id": place["id"]} for place in hit["also_in"]],
        }
        for hit in value["results"]
    ]
    return convert_json({**value, "passages": hits, "shards_asked": 0}, Hits)


def decode_page(value: Json) -> tuple[list[StoredDocument], str | None]:
    """Return the documents of a page, and the `after` of the next page."""
    return convert_json((value["documents"], value["next"]), tuple[list[StoredDocument], str | None])


def decode_ingestion(value: Json) -> WriteReport:
    return WriteReport(
        added=value["ingested_docs"] - value["replaced_docs"],
        replaced=value["replaced_docs"],
        unchanged=value["unchanged_docs"],
        chunks=value["ingested_chunks"],
        manifest_version=value["manifest_version"],
    )


def decode_changes(value: Json) -> tuple[DocumentChanges, str | None]:
    """Return the changes of a page, and the `after` of the next page."""
    added, removed, changed = (
        tuple(document["id"] for document in value["documents"] if document["change"] == change)
        for change in ("added", "removed", "changed")
    )
    return DocumentChanges(value["kb_id"], value["a"], value["b"], added, removed, changed), value["next"]
