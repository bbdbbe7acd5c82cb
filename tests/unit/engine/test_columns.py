"""Documents in columns: selecting, joining, and cutting at the right bytes."""

import json
from typing import Any

import numpy as np
import pytest

from pair.engine.format.columns import (
    Header,
    PreparedDocument,
    StoredDocuments,
    build_columns,
    concatenate,
    hash_content,
    hash_id,
)
from pair.engine.write import chunking
from pair.values import NO_GRAPH, Chunk, Document, GraphRows

DIMENSION = 4
GRAPH = GraphRows((("Ada", 1.0, 0),), (("Ada", "Charles", "wrote to", 2.0, 0),))


def prepared(
    name: str, text: str, chunks: tuple[Chunk, ...] | None = None, graph: GraphRows = NO_GRAPH
) -> PreparedDocument:
    cut = chunking.split(text, 50) if chunks is None else chunks
    vectors = np.full((len(cut), DIMENSION), float(len(name)), np.float32)
    return PreparedDocument(Header(name, "ingest", "", "", {}, "00" * 16), text, cut, vectors, graph)


def described(documents: StoredDocuments) -> list[tuple[str, list[str], GraphRows | None]]:
    """Return each document with its chunks, read as a query reads them."""
    found = []
    for number in range(documents.count):
        content = documents.texts[number]
        own = documents.chunks[documents.chunks["doc"] == number]
        pieces = [content[row["start_byte"] : row["end_byte"]].decode(errors="surrogatepass") for row in own]
        text = content.decode(errors="surrogatepass")
        assert pieces == [text[row["start"] : row["end"]] for row in own], "bytes and characters agree"
        found.append((Header.from_bytes(documents.headers[number]).id, pieces, documents.graphs.get(number)))
    assert len(documents.vectors) == len(documents.chunks)
    assert np.all(np.diff(documents.chunks["doc"].astype(int)) >= 0), "chunks are in the order of their documents"
    return found


TEXTS = [
    "plain words",
    "",
    "Grüße aus Köln. " * 10,
    "日本語の文章。" * 20,
    "mixed ascii and 🎈 balloons 🎈 " * 8,
    "half of a pair \ud83c and on, " * 6,
    "  \n\n led by blanks \n\n and followed by them \n ",
]


@pytest.mark.parametrize("text", TEXTS)
def test_chunks_are_found_at_their_bytes(text: str) -> None:
    cut = chunking.split(text, 50)
    found = described(build_columns([prepared("a", text)], DIMENSION))
    assert found == [("a", [chunk.text for chunk in cut], None)]


def all_of_them() -> StoredDocuments:
    documents = [prepared(f"doc-{number}", text) for number, text in enumerate(TEXTS)]
    documents[3] = prepared("doc-3", TEXTS[3], graph=GRAPH)
    return build_columns(documents, DIMENSION)


@pytest.mark.parametrize("numbers", [[], [0], [1], [6], [0, 3, 5], list(range(7))])
def test_picked_documents_keep_their_chunks_vectors_and_graphs(numbers: list[int]) -> None:
    whole = all_of_them()
    picked = whole.pick(np.array(numbers, np.int64))
    assert described(picked) == [described(whole)[number] for number in numbers]
    expected = np.concatenate(
        [whole.vectors[whole.chunks["doc"] == number] for number in numbers] or [whole.vectors[:0]]
    )
    assert picked.vectors.tolist() == expected.tolist()


def test_picking_changes_nothing_in_what_was_picked_from() -> None:
    whole = all_of_them()
    before = whole.chunks.copy()
    whole.pick(np.array([2, 4], np.int64))
    assert whole.chunks.tobytes() == before.tobytes()


def test_documents_put_together_are_those_of_the_parts() -> None:
    whole = all_of_them()
    parts = [whole.pick(np.array(numbers, np.int64)) for numbers in ([0, 1], [], [2], [3, 4, 5, 6])]
    together = concatenate(parts, DIMENSION)
    assert described(together) == described(whole)
    assert together.vectors.tolist() == whole.vectors.tolist()


def test_nothing_put_together_is_nothing() -> None:
    for nothing in (concatenate([], DIMENSION), build_columns([], DIMENSION)):
        assert (nothing.count, nothing.chunks.shape, nothing.vectors.shape) == (0, (0,), (0, DIMENSION))


def test_a_document_without_chunks_has_a_place_among_its_like() -> None:
    documents = build_columns([prepared("a", ""), prepared("bb", "words")], DIMENSION)
    assert documents.mean_vectors().tolist() == [[0.0] * 4, [2.0] * 4]
    assert documents.chunk_counts().tolist() == [0, 1]


@pytest.mark.parametrize("name", ["a", "notes/ä.md", "日本", "\ud800", "x" * 1000, "a\nb", 'quo"te'])
def test_a_header_survives_its_bytes(name: str) -> None:
    header = Header(name, "öwner", f"title {name}", "https://x.example/ä", {"key": [1, name, None]}, "00" * 16)
    assert Header.from_bytes(header.to_bytes()) == header
    assert len(hash_id(name)) == 16


@pytest.mark.parametrize("metadata", [{}, {"key": [1.5, "ä", None]}])
@pytest.mark.parametrize("name", ["a", "\ud800", "a\nb\x00\x7f", 'quo"te\\', "{}%s"])
def test_a_header_is_the_json_that_earlier_releases_wrote(name: str, metadata: dict[str, object]) -> None:
    header = Header(name, "owner", name, "https://x.example/ä", metadata, "00" * 16)
    fields = {key: getattr(header, key) for key in ("id", "owner", "title", "url", "metadata")}
    written = json.dumps({**fields, "hash": "00" * 16}, ensure_ascii=False, separators=(",", ":"))
    assert header.to_bytes() == written.encode(errors="surrogatepass")


DOCUMENT = Document("a", "text", "title", "url", {"year": 2024, "lang": "de"})


@pytest.mark.parametrize(
    "other",
    [
        Document("b", "text", "title", "url", DOCUMENT.metadata),
        Document("a", "texts", "title", "url", DOCUMENT.metadata),
        Document("a", "text", "titles", "url", DOCUMENT.metadata),
        Document("a", "text", "title", "urls", DOCUMENT.metadata),
        Document("a", "text", "title", "url", {"year": 2024, "lang": "en"}),
        Document("a", "text", "titleu", "rl", DOCUMENT.metadata),
        Document("a", "text", "title", "url", DOCUMENT.metadata, vector=[1.0, 0.0]),
    ],
)
def test_another_document_has_another_hash(other: Document) -> None:
    assert hash_content(other, "ingest", "way") != hash_content(DOCUMENT, "ingest", "way")


def test_the_hash_is_of_the_content_and_not_of_its_order() -> None:
    turned: dict[str, Any] = dict(reversed(list(DOCUMENT.metadata.items())))
    same = Document("a", "text", "title", "url", turned)
    assert hash_content(same, "ingest", "way") == hash_content(DOCUMENT, "ingest", "way")
    assert hash_content(DOCUMENT, "sync", "way") != hash_content(DOCUMENT, "ingest", "way")
    assert hash_content(DOCUMENT, "ingest", "other way") != hash_content(DOCUMENT, "ingest", "way")
