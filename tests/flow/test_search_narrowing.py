"""Limits and filters of a search: too few documents, ties, rare or no matches, and a maximum distance."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pair.kb.kb import KnowledgeBase
from pair.values import MODES, Document, SearchMode, SearchOptions
from support.engine_parts import Ground, ids_of, numbered, random_vectors, stats_of

MANY = 3000
QUERY = "What is known of Newtown?"
"""A query in every mode. Its entity is in every document, or in every hundredth."""

every_mode = pytest.mark.parametrize("mode", MODES)
fusing_modes = pytest.mark.parametrize("mode", ["hybrid", "graph", "adaptive"])


def crowd() -> list[Document]:
    """Return documents, each with a different text and vector."""
    return [
        Document(
            f"doc-{number:04}",
            f"Known as number {number}{' of Newtown' if number % 100 == 0 else ''}.",
            metadata={"number": number, "rest": number % 1000},
            vector=vector.tolist(),
        )
        for number, vector in enumerate(random_vectors(MANY))
    ]


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KnowledgeBase]:
    ground = Ground(
        tmp_path_factory.mktemp("many"),
        graph="text",
        shard_trigger_vector_rows=1000,
        max_vector_rows_per_shard=400,
        ingest_batch_documents=MANY,
    )
    with ground.open() as kb:
        kb.upsert(crowd())
        assert stats_of(kb).shards > 6
        yield kb


@every_mode
@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.rule("engine-15")
def test_a_filter_that_leaves_one_in_thousands_finds_it(many: KnowledgeBase, mode: SearchMode, exact: bool) -> None:
    for number in (0, 1234, 2999):
        found = many.search(QUERY, mode=mode, filter={"number": number}, exact=exact)
        assert ids_of(found) == [f"doc-{number:04}"]


@every_mode
def test_a_filter_that_leaves_some_finds_them_all_and_no_other(many: KnowledgeBase, mode: SearchMode) -> None:
    few = many.search(QUERY, mode=mode, filter={"rest": 345}, limit=50)
    assert sorted(ids_of(few)) == ["doc-0345", "doc-1345", "doc-2345"]
    more = many.search(QUERY, mode=mode, filter={"number": {"gte": 2500}}, limit=MANY)
    assert sorted(ids_of(more)) == [f"doc-{number}" for number in range(2500, 3000)]
    best = many.search(QUERY, mode=mode, filter={"number": {"gte": 2500}}, limit=7)
    assert len(best) == 7
    assert all(hit.metadata["number"] >= 2500 for hit in best)


@every_mode
def test_a_filter_that_leaves_none_finds_none(many: KnowledgeBase, mode: SearchMode) -> None:
    found = many.search(QUERY, mode=mode, filter={"number": -1}, limit=50)
    assert (len(found), found.partial) == (0, False)


@every_mode
def test_the_words_of_a_filtered_query_need_not_be_where_it_looks(many: KnowledgeBase, mode: SearchMode) -> None:
    found = ids_of(many.search("Newtown", mode=mode, filter={"rest": 345}, limit=50))
    assert sorted(found) == ([] if mode == "keyword" else ["doc-0345", "doc-1345", "doc-2345"])


@every_mode
@pytest.mark.parametrize("limit", [MANY, 2**40])
def test_more_than_there_are_is_all_there_are(many: KnowledgeBase, mode: SearchMode, limit: int) -> None:
    found = ids_of(many.search(QUERY, mode=mode, limit=limit))
    assert len(found) == len(set(found)) == MANY


@every_mode
def test_the_first_hits_are_the_same_however_many_are_wanted(many: KnowledgeBase, mode: SearchMode) -> None:
    few, more = (ids_of(many.search(QUERY, mode=mode, exact=True, limit=limit)) for limit in (5, 40))
    assert more[:5] == few


# ── ties ───────────────────────────────────────────────────────────────────────────────────────────

SAME = "The bridge over the Rhine at Oldtown is closed."


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KnowledgeBase]:
    """Return a KB with equal texts in several shards, stored unordered."""
    ground = Ground(
        tmp_path_factory.mktemp("tied"),
        embedder="static",
        embedding_dimension=0,
        graph="text",
        ingest_batch_documents=4,
        compaction_enabled=False,
    )
    with ground.open() as kb:
        kb.upsert([Document(name, SAME, title=name.upper(), url=f"https://example.org/{name}") for name in "fbdgac"])
        kb.upsert([Document("e", "the  BRIDGE over the Rhine\nat Oldtown is closed. "), *numbered(6)])
        yield kb


@every_mode
def test_equal_texts_are_one_hit_that_names_all_places(tied: KnowledgeBase, mode: SearchMode) -> None:
    found = tied.search(SAME, mode=mode, limit=3)
    assert len([hit for hit in found if "Rhine" in hit.text]) == 1
    places = [found[0].document_id, *(other.document_id for other in found[0].also_in)]
    assert sorted(places) == list("abcdefg")
    assert {other.url for other in found[0].also_in if other.document_id != "e"} <= {
        f"https://example.org/{name}" for name in "abcdfg"
    }
    for other in found[0].also_in:
        own = tied.document(other.document_id).text[other.start : other.end]
        assert " ".join(own.split()).casefold() == SAME.casefold()


def test_equals_are_in_the_order_of_their_ids(tmp_path: Path) -> None:
    with Ground(tmp_path, graph="text", ingest_batch_documents=3, compaction_enabled=False).open() as kb:
        # Different texts with equally many, equally rare words at the same place.
        kb.upsert([Document(f"{name}", f"zebra {name}{name}", vector=[1.0, *[0.0] * 15]) for name in "hcagebdf"])
        for mode in MODES:
            for limit in (3, 8):
                found = kb.search("zebra", mode=mode, limit=limit)
                assert ids_of(found) == list("abcdefgh")[:limit], mode
                assert len({hit.score for hit in found}) == 1 or mode in {"graph", "adaptive"}


# ── near enough ────────────────────────────────────────────────────────────────────────────────────


@fusing_modes
@pytest.mark.rule("engine-14")
def test_rows_at_the_maximum_distance_are_not_found(many: KnowledgeBase, mode: SearchMode) -> None:
    nearest = many.search(QUERY, mode="vector", exact=True, limit=40)
    distances = [hit.distance for hit in nearest if hit.distance is not None]
    found = many.search(QUERY, mode=mode, limit=MANY, exact=True, options=SearchOptions(max_distance=distances[20]))
    assert sorted(ids_of(found)) == sorted(ids_of(nearest)[:20])
    assert all(hit.distance is not None and hit.distance < distances[20] for hit in found)


@fusing_modes
def test_nothing_is_nearer_than_nothing(many: KnowledgeBase, mode: SearchMode) -> None:
    for limit in (0.0, -1.0, 1e-9):
        assert len(many.search(QUERY, mode=mode, options=SearchOptions(max_distance=limit))) == 0


@fusing_modes
def test_copies_within_the_maximum_distance_are_one_hit_and_end_the_search(tmp_path: Path, mode: SearchMode) -> None:
    near, far = [1.0, *[0.0] * 15], [-1.0, *[0.0] * 15]
    with Ground(tmp_path, graph="text").open() as kb:
        kb.upsert([Document(f"copy-{number}", "Newtown is old.", vector=near) for number in range(12)])
        kb.upsert([Document(f"far-{number}", f"Newtown is {number}.", vector=far) for number in range(300)])
        options = SearchOptions(max_distance=1.9, vector=near)
        assert len(kb.search("Newtown", mode=mode, limit=5, options=options)) == 1


# ── what comes and goes ────────────────────────────────────────────────────────────────────────────


def test_every_mode_answers_of_what_is_stored_now(tmp_path: Path) -> None:
    with Ground(tmp_path, graph="text").open() as kb:
        kb.upsert([Document(f"doc-{number}", f"Newtown was seen by witness{number}.") for number in range(6)])
        kb.delete(["doc-0", "doc-1"])
        kb.upsert([Document("doc-2", "nothing was seen"), Document("doc-9", "Newtown was seen by witness9.")])
        for mode in MODES:
            found = ids_of(kb.search("Newtown", mode=mode, limit=50))
            assert {"doc-3", "doc-4", "doc-5", "doc-9"} <= set(found)
            assert {"doc-0", "doc-1"}.isdisjoint(found)
            assert ("doc-2" in found) == (mode != "keyword")
        kb.delete([f"doc-{number}" for number in range(10)])
        assert all(len(kb.search("Newtown", mode=mode)) == 0 for mode in ("hybrid", "keyword", "vector", "adaptive"))


@every_mode
def test_a_text_that_is_stored_everywhere_does_not_crowd_out_the_others(tmp_path: Path, mode: SearchMode) -> None:
    same = [Document(f"copy-{number:03}", "Sold without any warranty.") for number in range(250)]
    others = [
        Document(f"page-{number}", f"What a warranty means in chapter {number} of the book") for number in range(9)
    ]
    with Ground(tmp_path, graph="text").open() as kb:
        kb.upsert([*same, *others])
        found = kb.search("sold without warranty", mode=mode, limit=4)
    assert found[0].document_id == "copy-000"
    assert [other.document_id for other in found[0].also_in] == [each.id for each in same[1:21]]
    assert found[0].also_in_count == 249
    assert [hit.document_id.partition("-")[0] for hit in found] == ["copy", "page", "page", "page"]
