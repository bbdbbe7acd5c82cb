"""Unusual documents: empty, huge, or without words."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pair.values import Document
from support.engine_parts import (
    DIMENSION,
    CountingEmbedder,
    Ground,
    all_ids,
    ids_of,
    numbered,
    placed,
    random_vectors,
    stats_of,
)
from support.errors import code_of, raises_code


@pytest.mark.rule("engine-3")
def test_a_kb_without_any_write_is_not_initialised(ground: Ground) -> None:
    with ground.open() as kb:
        assert kb.stats().manifest_version == 0
        acts: list[Callable[[], object]] = [
            lambda: kb.search("rivers"),
            kb.documents,
            lambda: kb.document("a"),
            kb.maintenance.compact,
            kb.maintenance.collect,
        ]
        for act in acts:
            assert code_of(act) == "E201"
    assert not ground.store.exists(), "looking makes nothing"


def test_nothing_is_counted_or_deleted_before_the_first_write(ground: Ground) -> None:
    with ground.open() as kb:
        stats = kb.stats()
        assert (stats.documents, stats.chunks, stats.shards, stats.size_bytes) == (0, 0, 0, 0)
        assert (kb.count(), kb.count(filter={"lang": "de"}), kb.facets("lang")) == (0, 0, [])
        assert kb.existing_ids(["a"]) == frozenset()
        deletions = kb.delete(["a"]), kb.delete(owner="ingest"), kb.delete(filter={"lang": "de"})
        assert [(report.deleted, report.manifest_version) for report in deletions] == [(0, 0)] * 3
    assert not ground.store.exists(), "looking makes nothing"


def test_documents_are_read_by_ids_with_their_vectors(ground: Ground) -> None:
    vectors = random_vectors(3, DIMENSION)
    with ground.open() as kb:
        kb.upsert([placed(name, vector) for name, vector in zip("abc", vectors, strict=True)])
        kb.upsert([Document("long", "\n\n".join(f"Paragraph {n} " + "words " * 300 for n in range(9)))])
        page = kb.documents(ids=["c", "a", "missing", "long"], vectors=True)
        assert [document.id for document in page] == ["a", "c", "long"]
        assert np.allclose([document.vector or [] for document in page[:2]], [vectors[0], vectors[2]], atol=1e-6)
        assert page[2].vector is None, "several chunks have several vectors"
        assert kb.documents(ids=[]) == []
        assert [document.vector for document in kb.documents(ids=["a"])] == [None]
        first = kb.documents(ids=["c", "a"], limit=1)
        assert ([document.id for document in first], first.next) == (["a"], "a")
        assert [document.id for document in kb.documents(ids=["c", "a"], after="a")] == ["c"]


@pytest.mark.parametrize("by", ["ids", "owner", "filter"])
@pytest.mark.rule("engine-16")
def test_a_kb_without_documents_stays_usable(many: Ground, by: str) -> None:
    with many.open() as kb:
        kb.upsert(numbered(20))
        deleted = {
            "ids": lambda: kb.delete([each.id for each in numbered(20)]),
            "owner": lambda: kb.delete(owner="ingest"),
            "filter": lambda: kb.delete(filter={"number": {"gte": 0}}),
        }[by]()
        assert deleted.deleted == 20
        for _ in range(2):
            stats = stats_of(kb)
            assert (stats.documents, stats.shards) == (0, 0)
            assert len(kb.search("rivers")) == 0
            assert len(kb.search("rivers", exact=True, filter={"odd": True})) == 0
            assert kb.documents() == []
            assert code_of(lambda: kb.document("doc-0001")) == "E214"
            assert kb.delete(owner="ingest").deleted == 0
            assert kb.maintenance.compact(everything=True).reason == "no_compaction_debt"
            kb.maintenance.collect(grace_seconds=0)
        assert many.stored_files(".search") == []
        assert kb.upsert(numbered(5)).added == 5
        assert len(kb.search("rivers", limit=10)) == 5


def test_a_document_of_five_megabytes_is_stored_and_found(tmp_path: Path) -> None:
    words = " ".join(f"word{number % 9973}" for number in range(620_000))
    needle = "The needle is a purple hippopotamus. " * 12
    text = f"{words[:2_500_000]}\n\n{needle}\n\n{words[2_500_000:5_000_000]}"
    with Ground(tmp_path, embedding_dimension=128).open() as kb:
        report = kb.upsert([Document("large", text), *numbered(3)])
        assert report.added == 4
        hit = kb.search("a purple hippopotamus", limit=1)[0]
        assert hit.document_id == "large"
        assert "purple hippopotamus" in hit.text
        assert text[hit.start : hit.end] == hit.text
        assert kb.document("large").text == text
        assert kb.document("large").chunks > 10_000


def test_one_document_that_is_more_than_a_shard_should_hold_is_stored(many: Ground) -> None:
    text = " ".join(f"word{number}" for number in range(2000))
    with many.open() as kb:
        kb.upsert([Document("large", text)])
        kb.upsert([Document("larger", text + text), Document("small", "word1")])
        assert kb.document("larger").text == text + text
        kb.maintenance.compact(everything=True)
        assert all_ids(kb) == ["large", "larger", "small"]


@pytest.mark.parametrize("text", ["", " \n\t ", "\ufeff", "\0"])
def test_a_document_that_says_nothing_is_stored_if_it_can_be_found(ground: Ground, text: str) -> None:
    """A text of invisible characters, or one with an empty vector."""
    blank = Document("blank", text, metadata={"kind": "blank"}, vector=None if text.strip() else [1.0] * DIMENSION)
    with ground.open() as kb:
        assert kb.upsert([blank]).added == 1
        assert kb.document("blank").text == text
        assert kb.upsert([blank]).unchanged == 1
        kb.search("anything")
        kb.upsert(numbered(3))
        kb.maintenance.compact(everything=True)
        assert kb.document("blank").text == text
        assert kb.delete(filter={"kind": "blank"}).deleted == 1


ODD_IDS = [
    "a/b/c.md", "/", "//", "../../etc/passwd", "C:\\x", "ä", "日本語", "🎈", "é", "e\u0301", "a b", " ", "a\nb", "a\0b",
    "'; DROP TABLE docs; --", '"', "%2F", "a#0", "a", "A", "\ud800", "\ud801", "x" * 1000, "x" * 999 + "y", ".", "..",
]  # fmt: skip


def test_ids_may_hold_anything(many: Ground) -> None:
    documents = [Document(name, f"Text of number {number}") for number, name in enumerate(ODD_IDS)]
    with many.open() as kb:
        assert kb.upsert(documents).added == len(ODD_IDS)
        assert kb.upsert(documents).unchanged == len(ODD_IDS)
        for _ in range(2):
            assert [kb.document(each.id).text for each in documents] == [each.text for each in documents]
            assert all_ids(kb) == sorted(ODD_IDS)
            assert sorted(ids_of(kb.search("text", limit=100, exact=True))) == sorted(ODD_IDS)
            kb.maintenance.compact(everything=True)
        for name in ODD_IDS:
            assert kb.delete([name]).deleted == 1
        assert kb.documents() == []


@pytest.mark.parametrize(
    "document",
    [
        Document("", "text"),
        Document("x" * 5000, "text"),
        Document("a", "text", metadata={"at": float("nan")}),
        Document("a", "text", metadata={"at": {1, 2}}),
        Document("a", "text", metadata={1: "a", "b": 2}),  # type: ignore[dict-item]
        Document("a", "text", vector=[float("nan")] * DIMENSION),
        Document("a", "text", vector=[1e300] * DIMENSION),
    ],
)
def test_a_document_that_cannot_be_stored_takes_its_batch_with_it(ground: Ground, document: Document) -> None:
    with ground.open() as kb:
        assert code_of(lambda: kb.upsert([*numbered(2), document])) == "E213"
        assert kb.stats().manifest_version == 0


def test_metadata_of_every_kind_is_returned_unchanged(ground: Ground) -> None:
    metadata = {
        "none": None,
        "yes": True,
        "large": 10**400,
        "list": [1, "two", {"three": 3}],
        "ü": "\ud800",
        "": "empty",
    }
    with ground.open() as kb:
        kb.upsert([Document("a", "text", metadata=metadata)])
        assert kb.document("a").metadata == metadata
        assert ids_of(kb.search("text", filter={"list.three": 3})) == ["a"]


@pytest.mark.rule("engine-20")
def test_vectors_of_the_wrong_size_are_refused(tmp_path: Path) -> None:
    ground = Ground(tmp_path, embedding_dimension=384)
    wide = random_vectors(2, 768)
    with ground.open() as kb:
        assert code_of(lambda: kb.upsert([placed("a", wide[0])])) == "E303"
        assert kb.stats().manifest_version == 0
        kb.upsert([placed("a", random_vectors(1, 384)[0])])
        assert code_of(lambda: kb.upsert([placed("b", wide[1])])) == "E303"
        assert code_of(lambda: kb.search_vector(wide[0])) == "E303"
        assert code_of(lambda: kb.search_vector([])) == "E303"
        assert code_of(lambda: kb.search_vector([float("nan")] * 384)) == "E215"
        assert all_ids(kb) == ["a"]


@pytest.mark.rule("engine-20")
def test_another_embedder_is_refused_and_the_right_one_is_named(ground: Ground) -> None:
    ground.fill(numbered(2))
    for other in (CountingEmbedder(name="another-v1"), CountingEmbedder(dimension=32)):
        with ground.open(embedder=other) as kb:
            for act in (lambda: kb.upsert(numbered(3)), lambda: kb.search("rivers")):
                with raises_code("E304") as caught:
                    act()
                assert "ngram-16-v1" in str(caught.value.to_json())
            assert other.texts == []


def test_a_given_vector_is_not_embedded(ground: Ground) -> None:
    embedder = CountingEmbedder()
    vectors = random_vectors(3)
    with ground.open(embedder=embedder) as kb:
        kb.upsert([placed(name, vector) for name, vector in zip("abc", vectors, strict=True)])
        hits = kb.search_vector(vectors[1], limit=1)
        assert (hits[0].document_id, hits[0].distance, hits[0].score) == ("b", 0.0, 1.0)
    assert embedder.texts == []


def test_kbs_whose_names_differ_in_case_are_two_kbs(ground: Ground) -> None:
    with ground.open("Notes") as upper, ground.open("notes") as lower:
        upper.upsert([Document("a", "upper")])
        assert code_of(lambda: lower.search("upper")) == "E201"
        lower.upsert([Document("a", "lower")])
        lower.delete(["a"])
        lower.maintenance.collect(grace_seconds=0)
        assert upper.document("a").text == "upper"
        assert ids_of(upper.search("upper")) == ["a"]
