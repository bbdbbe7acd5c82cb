"""A KB on a folder, through hard times: real files, real threads, real processes."""

import dataclasses
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

import pair
from pair.engine.filters import parse_filter
from pair.engine.policy import EnginePolicy
from pair.engine.stored_graphs import GraphRows
from pair.errors import PairError
from pair.kb import KnowledgeBase
from pair.values import Document
from support.engine_parts import (
    DIMENSION,
    MANY_SHARDS,
    CountingEmbedder,
    Ground,
    all_ids,
    counted,
    flip_a_bit,
    ids_of,
    numbered,
    placed,
    random_vectors,
    truncate,
)

TESTS = Path(__file__).parents[1]


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return Ground(tmp_path)


@pytest.fixture
def many(tmp_path: Path) -> Ground:
    """With settings under which a few documents become many shards."""
    return Ground(tmp_path, **MANY_SHARDS)


def code_of(act: Callable[[], object]) -> str:
    with pytest.raises(PairError) as caught:
        act()
    return caught.value.code


def manifest_of(ground: Ground, kb_id: str = "default") -> dict[str, Any]:
    blob = ground.blobs().get(f"{kb_id}.duckdb.manifest.json")
    assert blob is not None
    value: dict[str, Any] = json.loads(blob.data)
    return value


def folders_of(ground: Ground) -> set[str]:
    return {blob.key.rpartition("/")[0] for blob in ground.blobs().list("default.duckdb.shards/")}


def live_folders_of(ground: Ground) -> set[str]:
    return {shard["key"] for shard in manifest_of(ground)["shards"]}


# ── damage ─────────────────────────────────────────────────────────────────────────────────────────


DAMAGES: dict[str, Callable[[Path], None]] = {"truncated": truncate, "flipped": flip_a_bit, "missing": Path.unlink}
damaged = pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())


def everything(kb: KnowledgeBase) -> list[tuple[str, str, float | None]]:
    """All documents, by a search that needs each of a shard's files."""
    hits = kb.search("rivers and bridges", limit=1000, filter={"number": {"gte": 0}}, exact=True)
    assert not hits.partial
    return [(hit.document_id, hit.text, hit.distance) for hit in hits]


@damaged
@pytest.mark.rule("engine-1")
@pytest.mark.rule("engine-21")
def test_a_file_that_is_damaged_in_the_cache_is_fetched_again(many: Ground, damage: Callable[[Path], None]) -> None:
    with many.open() as kb:
        kb.upsert(numbered(30))
        expected, listed = everything(kb), all_ids(kb)
    assert len(expected) == 30
    for suffix in (".search", ".ids", ".duckdb"):
        for path in many.cached_files(suffix):
            damage(path)
    with many.open() as kb:
        assert everything(kb) == expected
        assert all_ids(kb) == listed
        stats = kb.stats()
        assert stats is not None
        assert stats.cache["misses"] >= 3


def test_stamps_of_the_cache_that_are_damaged_do_no_harm(many: Ground) -> None:
    with many.open() as kb:
        kb.upsert(numbered(30))
        expected = everything(kb)
    for number, path in enumerate(many.cached_files(".ok")):
        path.write_bytes([b"", b"\xff\xff", b"1 2 3\n"][number % 3])
    with many.open() as kb:
        assert everything(kb) == expected


def spoil_one_shard(ground: Ground, damage: Callable[[Path], None], suffix: str) -> str:
    """In the store, with nothing of it in the cache; the key of the shard's folder."""
    path = ground.stored_files(suffix)[0]
    damage(path)
    for cached in [path for path in ground.cache.rglob("*") if path.is_file()]:
        cached.unlink()
    return path.parent.name


@damaged
def test_when_the_only_shard_is_damaged_in_the_store_the_error_names_it(
    ground: Ground, damage: Callable[[Path], None]
) -> None:
    with ground.open() as kb:
        kb.upsert(numbered(3))
    spoilt = spoil_one_shard(ground, damage, ".search")
    with ground.open() as kb, pytest.raises(PairError) as caught:
        kb.search("rivers")
    assert caught.value.code == "E207"
    assert caught.value.exit_status == 5
    assert spoilt in caught.value.message
    assert ".search" in caught.value.message
    assert caught.value.hints


@damaged
@pytest.mark.rule("engine-21")
def test_the_other_shards_answer_and_say_that_the_answer_is_partial(
    many: Ground, damage: Callable[[Path], None]
) -> None:
    with many.open() as kb:
        kb.upsert(numbered(30))
        whole = ids_of(kb.search("rivers", limit=1000, exact=True))
    spoilt = spoil_one_shard(many, damage, ".search")
    with many.open() as kb:
        hits = kb.search("rivers", limit=1000, exact=True)
    assert hits.partial
    assert len(hits.faults) == 1
    assert spoilt in hits.faults[0]
    assert 0 < len(hits) < len(whole)
    assert ids_of(hits) == [name for name in whole if name in set(ids_of(hits))]


@damaged
def test_a_filter_that_cannot_be_asked_of_a_shard_makes_a_partial_answer(
    many: Ground, damage: Callable[[Path], None]
) -> None:
    with many.open() as kb:
        kb.upsert(numbered(30))
    spoilt = spoil_one_shard(many, damage, ".duckdb")
    with many.open() as kb:
        hits = kb.search("rivers", limit=1000, filter={"odd": True})
        assert hits.partial
        assert spoilt in hits.faults[0]
        assert 0 < len(hits) < 15
        assert not kb.search("rivers", limit=1000).partial, "what needs no rows does not miss them"


@damaged
def test_listing_getting_and_writing_name_a_shard_whose_ids_are_lost(
    ground: Ground, damage: Callable[[Path], None]
) -> None:
    with ground.open() as kb:
        kb.upsert(numbered(3))
    spoilt = spoil_one_shard(ground, damage, ".ids")
    with ground.open() as kb:
        attempts: list[Callable[[], object]] = [
            kb.documents,
            lambda: kb.document("doc-0001"),
            lambda: kb.upsert(numbered(4)),
            lambda: kb.delete(["doc-0001"]),
            lambda: kb.delete(owner="ingest"),
        ]
        for attempt in attempts:
            with pytest.raises(PairError) as caught:
                attempt()
            assert caught.value.code == "E207"
            assert spoilt in caught.value.message
        assert len(kb.search("rivers", limit=10)) == 3, "what needs no ids does not miss them"


@damaged
def test_compaction_of_a_damaged_shard_publishes_nothing(many: Ground, damage: Callable[[Path], None]) -> None:
    with many.open() as kb:
        kb.upsert(numbered(30))
        kb.delete(["doc-0003"])
    before = manifest_of(many)["version"]
    spoil_one_shard(many, damage, ".search")
    with many.open() as kb:
        assert code_of(lambda: kb.compact(everything=True)) == "E207"
    assert manifest_of(many)["version"] == before


def test_a_shard_that_was_put_back_answers_again(ground: Ground) -> None:
    with ground.open() as kb:
        kb.upsert(numbered(3))
    path = ground.stored_files(".search")[0]
    content = path.read_bytes()
    spoil_one_shard(ground, flip_a_bit, ".search")
    with ground.open() as kb:
        assert code_of(lambda: kb.search("rivers")) == "E207"
        path.write_bytes(content)
        assert len(kb.search("rivers", limit=10)) == 3


def test_a_manifest_that_is_damaged_is_an_error_that_names_it(ground: Ground) -> None:
    with ground.open() as kb:
        kb.upsert(numbered(3))
    blobs = ground.blobs()
    blobs.put("default.duckdb.manifest.json", b"{}")
    with ground.open() as kb:
        for act in (lambda: kb.search("rivers"), kb.stats, lambda: kb.upsert(numbered(1)), kb.collect):
            with pytest.raises(PairError) as caught:
                act()
            assert caught.value.code == "E207"
            assert "default.duckdb.manifest.json" in caught.value.message


# ── odd documents ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.rule("engine-3")
def test_a_kb_that_nobody_wrote_to_is_not_initialised(ground: Ground) -> None:
    with ground.open() as kb:
        assert kb.stats() is None
        acts: list[Callable[[], object]] = [
            lambda: kb.search("rivers"),
            kb.documents,
            lambda: kb.document("a"),
            lambda: kb.delete(["a"]),
            kb.compact,
            kb.collect,
        ]
        for act in acts:
            assert code_of(act) == "E201"
    assert not ground.store.exists(), "looking makes nothing"


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
            stats = kb.stats()
            assert stats is not None
            assert (stats.documents, stats.shards) == (0, 0)
            assert len(kb.search("rivers")) == 0
            assert len(kb.search("rivers", exact=True, filter={"odd": True})) == 0
            assert kb.documents() == []
            assert code_of(lambda: kb.document("doc-0001")) == "E214"
            assert kb.delete(owner="ingest").deleted == 0
            assert kb.compact(everything=True).reason == "no_compaction_debt"
            kb.collect(grace_seconds=0)
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
        kb.compact(everything=True)
        assert all_ids(kb) == ["large", "larger", "small"]


@pytest.mark.parametrize("text", ["", " \n\t ", "\ufeff", "\0"])
def test_a_document_that_says_nothing_is_stored_all_the_same(ground: Ground, text: str) -> None:
    with ground.open() as kb:
        assert kb.upsert([Document("blank", text, metadata={"kind": "blank"})]).added == 1
        assert kb.document("blank").text == text
        assert kb.upsert([Document("blank", text, metadata={"kind": "blank"})]).unchanged == 1
        kb.search("anything")
        kb.upsert(numbered(3))
        kb.compact(everything=True)
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
            kb.compact(everything=True)
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
        assert kb.stats() is None


def test_metadata_of_every_kind_comes_back_as_it_was(ground: Ground) -> None:
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
def test_vectors_of_another_size_are_refused(tmp_path: Path) -> None:
    ground = Ground(tmp_path, embedding_dimension=384)
    wide = random_vectors(2, 768)
    with ground.open() as kb:
        assert code_of(lambda: kb.upsert([placed("a", wide[0])])) == "E303"
        assert kb.stats() is None
        kb.upsert([placed("a", random_vectors(1, 384)[0])])
        assert code_of(lambda: kb.upsert([placed("b", wide[1])])) == "E303"
        assert code_of(lambda: kb.search_vector(wide[0])) == "E303"
        assert code_of(lambda: kb.search_vector([])) == "E303"
        assert code_of(lambda: kb.search_vector([float("nan")] * 384)) == "E215"
        assert all_ids(kb) == ["a"]


@pytest.mark.rule("engine-20")
def test_another_embedder_is_refused_and_told_which_one_it_should_be(ground: Ground) -> None:
    with ground.open() as kb:
        kb.upsert(numbered(2))
    for other in (CountingEmbedder(name="another-v1"), CountingEmbedder(dimension=32)):
        with ground.open(embedder=other) as kb:
            for act in (lambda: kb.upsert(numbered(3)), lambda: kb.search("rivers")):
                with pytest.raises(PairError) as caught:
                    act()
                assert caught.value.code == "E304"
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
        lower.collect(grace_seconds=0)
        assert upper.document("a").text == "upper"
        assert ids_of(upper.search("upper")) == ["a"]


# ── writing ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.rule("engine-9")
def test_a_batch_that_is_stored_already_costs_nothing(many: Ground) -> None:
    embedder = CountingEmbedder()
    with many.open(embedder=embedder) as kb:
        first = kb.upsert(numbered(30))
    embedder.texts.clear()
    files = sorted(many.store.rglob("*"))
    with many.open(embedder=embedder) as kb:
        again = kb.upsert(numbered(30))
    assert (again.added, again.replaced, again.unchanged, again.chunks) == (0, 0, 30, 0)
    assert again.manifest_version == first.manifest_version
    assert embedder.texts == []
    assert sorted(many.store.rglob("*")) == files


def test_only_what_changed_is_embedded(many: Ground) -> None:
    embedder = CountingEmbedder()
    with many.open(embedder=embedder) as kb:
        kb.upsert(numbered(30))
        embedder.texts.clear()
        changed = dataclasses.replace(numbered(30)[17], text="another text")
        report = kb.upsert([*numbered(17), changed, *numbered(12, begin=18)])
        assert (report.replaced, report.unchanged) == (1, 29)
        assert embedder.texts == ["Title 17\n\nanother text"]
        assert kb.document("doc-0017").text == "another text"


@pytest.mark.rule("engine-11")
def test_a_document_that_is_replaced_leaves_no_chunk_behind(ground: Ground) -> None:
    long = ". ".join(f"Sentence about whales number {number}" for number in range(60))
    with ground.open() as kb:
        kb.upsert([Document("a", long), Document("b", "Whales too")])
        assert kb.document("a").chunks > 3
        report = kb.upsert([Document("a", "Nothing but deserts")])
        assert (report.added, report.replaced) == (0, 1)
        hits = kb.search("whales", limit=100, exact=True, mode="vector")
        assert sorted(ids_of(hits)) == ["a", "b"]
        assert {hit.document_id: hit.text for hit in hits}["a"] == "Nothing but deserts"
        assert kb.document("a").chunks == 1


def test_of_one_id_twice_in_a_batch_the_last_is_stored(ground: Ground) -> None:
    with ground.open() as kb:
        kb.upsert([Document("a", "first"), Document("a", "second")])
        assert kb.document("a").text == "second"
        assert len(kb.search("first second", limit=10, exact=True)) == 1


def test_another_owner_takes_a_document_over(ground: Ground) -> None:
    with ground.open() as kb:
        kb.upsert([Document("a", "text")], owner="one")
        assert kb.upsert([Document("a", "text")], owner="two").replaced == 1
        assert kb.delete(owner="one").deleted == 0
        assert kb.delete(owner="two").deleted == 1


def test_deletes_by_id_owner_and_filter_take_what_they_name(many: Ground) -> None:
    with many.open() as kb:
        kb.upsert(numbered(20))
        kb.upsert(numbered(10, begin=20), owner="other")
        assert kb.delete(["doc-0003", "doc-0003", "nobody"]).deleted == 1
        assert kb.delete(["doc-0003"]).deleted == 0
        assert kb.delete(owner="other").deleted == 10
        assert kb.delete(filter={"subject": "castles"}).deleted == 4
        assert kb.delete(filter=["number>=15", "odd=true"]).deleted == 2
        gone = {3, *range(20, 30), *(2, 7, 12, 17), *(15, 19)}
        assert all_ids(kb) == [each.id for each in numbered(30) if each.metadata["number"] not in gone]
        assert sorted(ids_of(kb.search("text", limit=100, exact=True))) == all_ids(kb)
        stats = kb.stats()
        assert stats is not None
        assert stats.documents == len(all_ids(kb))


def test_deleting_nothing_in_particular_deletes_nothing(ground: Ground) -> None:
    with ground.open() as kb:
        version = kb.upsert(numbered(3)).manifest_version
        for report in (
            kb.delete(),
            kb.delete([]),
            kb.delete(filter={}),
            kb.delete(filter=[]),
            kb.delete(owner="nobody"),
        ):
            assert (report.deleted, report.manifest_version) == (0, version)
        assert len(kb.documents()) == 3


def test_many_small_writes_keep_shards_few(many: Ground) -> None:
    ground = many.with_policy(shard_trigger_vector_rows=150_000)
    with ground.open() as kb:
        for number in range(40):
            kb.upsert(numbered(1, begin=number))
        stats = kb.stats()
        assert stats is not None
        assert stats.documents == 40
        assert stats.shards <= 16
        assert all_ids(kb) == [each.id for each in numbered(40)]


def test_a_kb_is_opened_by_its_public_name(tmp_path: Path) -> None:
    settings = Ground(tmp_path).settings
    with pair.open("notes", store=str(tmp_path / "elsewhere"), settings=settings) as kb:
        assert isinstance(kb, pair.KnowledgeBase)
        kb.upsert([pair.Document("a", "A castle has a moat", url="https://x.example", metadata={"year": 2024})])
        [hit] = kb.search("castle moat", filter={"year": 2024})
        assert isinstance(hit, pair.Hit)
        assert (hit.document_id, hit.text, hit.start, hit.end) == ("a", "A castle has a moat", 0, 19)
    assert (tmp_path / "elsewhere").is_dir()
    assert not (tmp_path / "store").exists()


# ── reading ────────────────────────────────────────────────────────────────────────────────────────


FILTERS: list[dict[str, Any]] = [
    {"number": 17},
    {"number": [3, 33, 999]},
    {"number": {"gte": 10, "lt": 13}},
    {"subject": "castles"},
    {"subject": {"prefix": "e"}},
    {"odd": True},
    {"odd": True, "number": {"lt": 30}},
    {"number": {"gte": 0}},
    {"number": -1},
    {"nothing": "there"},
]


@pytest.mark.parametrize("conditions", FILTERS, ids=str)
@pytest.mark.parametrize("exact", [True, False], ids=["exact", "routed"])
@pytest.mark.rule("engine-15")
def test_a_filter_finds_exactly_what_it_names(filtered: KnowledgeBase, conditions: dict[str, Any], exact: bool) -> None:
    chosen = parse_filter(conditions)
    expected = [each.id for each in numbered(60) if chosen.matches(each.metadata)]
    hits = filtered.search("item17 about castles", limit=100, filter=conditions, exact=exact)
    assert sorted(ids_of(hits)) == expected
    nearest = filtered.search("item17 about castles", limit=3, filter=conditions, exact=exact)
    assert ids_of(nearest) == ids_of(hits)[:3]


@pytest.fixture(scope="module")
def filtered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KnowledgeBase]:
    """Sixty documents in many more shards than a query asks."""
    few = {"query_shard_fanout": 1, "query_shard_fanout_adaptive_max": 2, "small_kb_max_shards": 1}
    ground = Ground(tmp_path_factory.mktemp("filtered"), **MANY_SHARDS, **few)
    with ground.open() as kb:
        kb.upsert(numbered(60))
        kb.compact(everything=True)
        stats = kb.stats()
        assert stats is not None
        assert stats.shards > 6
        yield kb


def test_a_search_that_wants_much_asks_on_until_it_has_it(filtered: KnowledgeBase) -> None:
    assert filtered.search("castles", limit=2, mode="vector").shards_asked <= 3
    assert len(filtered.search("castles", limit=60)) == 60


def test_documents_are_listed_page_by_page_over_shards(many: Ground) -> None:
    with many.open() as kb:
        kb.upsert(reversed(numbered(30)))
        kb.upsert(numbered(5, begin=30), owner="other")
        kb.delete(["doc-0004", "doc-0029"])
        expected = [each.id for each in numbered(35) if each.id not in {"doc-0004", "doc-0029"}]
        for page in (1, 2, 7, 33, 100):
            assert all_ids(kb, page) == expected
        assert [each.id for each in kb.documents(owner="other")] == expected[-5:]
        assert [each.id for each in kb.documents(owner="other", after="doc-0032", limit=1)] == ["doc-0033"]
        for listed in kb.documents():
            assert listed == kb.document(listed.id)
            original = numbered(35)[int(listed.id[-4:])]
            assert (listed.text, listed.title, listed.metadata) == (original.text, original.title, original.metadata)


@pytest.mark.rule("engine-14")
def test_by_distance_means_strictly_nearer(many: Ground) -> None:
    on_a_line = [placed(f"at-{number:02}", [float(number), *[0.0] * (DIMENSION - 1)]) for number in range(30)]
    origin = [0.0] * DIMENSION
    with many.open() as kb:
        kb.upsert(on_a_line)
        for exact in (True, False):
            assert ids_of(kb.search_vector(origin, limit=100, max_distance=3.0, exact=exact)) == [
                "at-00",
                "at-01",
                "at-02",
            ]
        assert ids_of(kb.search_by_distance(origin, 3.0)) == ["at-00", "at-01", "at-02"]
        assert len(kb.search_by_distance(origin, np.nextafter(np.float32(3), np.float32(4)).item())) == 4
        assert len(kb.search_by_distance(origin, 100.0)) == 30
        assert ids_of(kb.search_by_distance([29.0, *origin[1:]], 1.5)) == ["at-29", "at-28"]
        for nothing in (0.0, -1.0):
            assert len(kb.search_by_distance(origin, nothing)) == 0
        assert len(kb.search_vector(origin, limit=0)) == 0
        assert len(kb.search_vector(origin, limit=2, max_distance=5.0)) == 2


@pytest.mark.rule("engine-13")
def test_hits_that_are_equally_near_come_in_the_order_of_their_names(many: Ground) -> None:
    with many.open() as kb:
        kb.upsert([placed(f"twin-{number:02}", [1.0] * DIMENSION) for number in reversed(range(30))])
        for limit in (1, 5, 29):
            hits = kb.search_vector([1.0] * DIMENSION, limit=limit, exact=True)
            assert ids_of(hits) == [f"twin-{number:02}" for number in range(limit)]


@pytest.mark.rule("engine-3")
def test_an_unchanged_manifest_is_not_read_again(many: Ground) -> None:
    with many.open() as kb:
        kb.upsert(numbered(30))
    store, requests = counted(many.blobs())
    with many.open(store=store) as kb:
        kb.search("rivers", exact=True)
        requests.counts.clear()
        for _ in range(5):
            kb.search("rivers", exact=True)
        assert requests.counts == {"get_if_changed": 5}
        kb.stats()
        kb.documents(limit=1)
        assert set(requests.counts) <= {"get_if_changed", "download"}
        with many.open() as other:
            other.upsert(numbered(1, begin=30))
        assert ids_of(kb.search("item30", limit=1)) == ["doc-0030"], "what another one wrote is seen at once"


def test_a_cold_query_fetches_only_what_it_searches(many: Ground) -> None:
    with many.open() as kb:
        kb.upsert(numbered(30))
    store, requests = counted(many.blobs())
    with many.open(store=store) as kb:
        kb.search("rivers", exact=True, mode="vector")
        stats = kb.stats()
        assert stats is not None
        assert requests.counts["download"] == stats.shards
        kb.search("rivers", exact=True)
        assert requests.counts["download"] == 2 * stats.shards, "and their keywords"


# ── care ───────────────────────────────────────────────────────────────────────────────────────────


def graph_rows(ground: Ground) -> tuple[set[tuple[Any, ...]], set[tuple[Any, ...]]]:
    """Mentions and edges of all live shards, as plain DuckDB reads them."""
    mentions: set[tuple[Any, ...]] = set()
    edges: set[tuple[Any, ...]] = set()
    for shard in manifest_of(ground)["shards"]:
        name = shard["key"].rpartition("/")[2]
        [path] = [path for path in ground.stored_files(".duckdb") if path.parent.name == name]
        copy = ground.folder / f"{name}.copy"
        copy.write_bytes(path.read_bytes())
        with duckdb.connect(str(copy), read_only=True) as connection:
            mentions |= set(
                connection.execute("SELECT doc_id, entity_id, weight, chunk_id FROM doc_entities").fetchall()
            )
            edges |= set(connection.execute("SELECT src, dst, weight, rel_type, chunk_id FROM edges").fetchall())
    return mentions, edges


@pytest.mark.rule("engine-17")
def test_compaction_keeps_answers_and_graphs_and_drops_what_is_gone(many: Ground) -> None:
    documents = numbered(40)
    graphs = {
        each.id: GraphRows((("Ada", 1.0, 0), (each.id, 0.5, 0)), (("Ada", each.id, "knows", 2.0, 0),))
        for each in documents[::2]
    }
    with many.open() as kb:
        kb._engine.upsert(documents, owner="ingest", graphs=graphs)
        kb.delete([each.id for each in documents[:10]])
        kept = documents[10:]
        expected_mentions = {
            (each.id, entity, weight, f"{each.id}#0")
            for each in kept[::2]
            for entity, weight in (("Ada", 1.0), (each.id, 0.5))
        }
        expected_edges = {("Ada", each.id, 2.0, "knows", f"{each.id}#0") for each in kept[::2]}
        before = [(hit.chunk_id, hit.distance) for hit in kb.search("castles", limit=100, exact=True)]
        report = kb.compact(everything=True)
        assert report.reason == "size_tier"
        assert report.documents == 30
        stats = kb.stats()
        assert stats is not None
        assert (stats.documents, stats.deleted_documents) == (30, 0)
        assert [(hit.chunk_id, hit.distance) for hit in kb.search("castles", limit=100, exact=True)] == before
        assert all_ids(kb) == [each.id for each in kept]
        assert graph_rows(many) == (expected_mentions, expected_edges)
        assert {shard["graph_available"] for shard in manifest_of(many)["shards"]} >= {True}
        kb.upsert(numbered(8, begin=40))
        kb.compact(everything=True)
        assert graph_rows(many) == (expected_mentions, expected_edges), "also when it is done again"
        assert kb.upsert(kept[1::2]).unchanged == 15


@pytest.mark.rule("engine-11")
def test_a_document_that_is_replaced_loses_its_graph(ground: Ground) -> None:
    graph = GraphRows((("Ada", 1.0, 0),), ())
    with ground.open() as kb:
        kb._engine.upsert([Document("a", "Ada")], owner="ingest", graphs={"a": graph})
        assert kb._engine.upsert([Document("a", "Ada")], owner="ingest", graphs={"a": graph}).unchanged == 1
        assert kb.upsert([Document("a", "Ada")]).replaced == 1
        kb.compact(everything=True)
        assert graph_rows(ground) == (set(), set())


def test_tombstones_above_the_ratio_are_compacted_away_in_place(many: Ground) -> None:
    with many.open() as kb:
        kb.upsert(numbered(30))
        kb.compact(everything=True)
        runs = {shard["run"] for shard in manifest_of(many)["shards"]}
        kb.delete([f"doc-{number:04}" for number in range(12)])
        assert kb.compact().reason == "tombstone_pressure"
        assert {shard["run"] for shard in manifest_of(many)["shards"]} == runs, "a shard stays in its clustering"
        assert all_ids(kb) == [each.id for each in numbered(18, begin=12)]
        assert kb.compact().reason == "no_compaction_debt"


@pytest.mark.rule("engine-18")
def test_garbage_collection_removes_what_no_manifest_names_and_nothing_else(many: Ground) -> None:
    with many.open() as kb:
        kb.upsert(numbered(30))
        kb.compact(everything=True)
        blobs = many.blobs()
        blobs.put("default.duckdb.shards/orphan/shard-00000.search", b"left by a lost swap")
        blobs.put("other.duckdb.shards/theirs/shard-00000.search", b"of another KB")
        blobs.put("default.duckdb.shards.txt", b"of a stranger")
        before, live = folders_of(many), live_folders_of(many)
        assert live < before
        waiting = kb.collect(grace_seconds=3600)
        assert (waiting.deleted_shards, waiting.kept_shards) == (0, len(before - live))
        assert folders_of(many) == before, "its time has not come"
        done = kb.collect(grace_seconds=0)
        assert (done.deleted_shards, done.kept_shards) == (len(before - live), 0)
        assert done.deleted_bytes > 0
        assert folders_of(many) == live
        assert {blob.key for blob in blobs.list("other.")} == {"other.duckdb.shards/theirs/shard-00000.search"}
        assert blobs.get("default.duckdb.shards.txt") is not None
        assert manifest_of(many)["dropped"] == []
        version = manifest_of(many)["version"]
        assert kb.collect(grace_seconds=0).deleted_shards == 0
        assert manifest_of(many)["version"] == version, "nothing to do, nothing published"
    with many.open() as kb:
        assert all_ids(kb) == [each.id for each in numbered(30)]


def test_a_reader_of_an_old_manifest_goes_on_with_the_new_one_after_a_collection(many: Ground) -> None:
    with many.open() as kb:
        kb.upsert(numbered(30))
        kb.compact(everything=True)
    with many.open() as reader, many.open() as writer:
        expected = ids_of(reader.search("castles", limit=100, exact=True))
        writer.compact(everything=True)
        writer.upsert(numbered(1, begin=30))
        writer.delete(["doc-0030"])
        writer.compact(everything=True)
        writer.collect(grace_seconds=0)
        assert ids_of(reader.search("castles", limit=100, exact=True)) == expected
        assert all_ids(reader) == sorted(expected)


# ── the cache ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.rule("engine-19")
def test_a_budget_smaller_than_one_shard_cannot_be_met(ground: Ground) -> None:
    with ground.open() as kb:
        kb.upsert(numbered(3))
    tight = ground.with_policy(cache_max_bytes=100)
    with tight.open() as kb, pytest.raises(PairError) as caught:
        kb.search("rivers")
    assert caught.value.code == "E205"
    assert caught.value.exit_status == 3
    assert caught.value.hints


@pytest.mark.rule("engine-19")
def test_a_sweep_keeps_to_the_budget_by_last_use(many: Ground) -> None:
    with many.open() as kb:
        kb.upsert(numbered(30))
        kb.search("rivers", limit=100, exact=True)
        whole = kb.sweep().kept_bytes
    half = many.with_policy(cache_max_bytes=whole // 2)
    with half.open() as kb:
        report = kb.sweep()
        assert report.evicted_size > 0
        assert report.kept_bytes <= whole // 2
        assert report.freed_bytes + report.kept_bytes == whole
        assert sum(path.stat().st_size for path in half.cache.rglob("*") if path.is_file()) == report.kept_bytes
        assert all_ids(kb) == [each.id for each in numbered(30)], "one shard after the other fits"
        assert code_of(lambda: kb.search("rivers", limit=100, exact=True)) == "E205", "a query holds what it asked"


def test_what_is_in_use_stays_and_others_go_in_its_place(many: Ground) -> None:
    with many.open() as kb:
        kb.upsert(numbered(30))
        kb.search("rivers", limit=100, exact=True)
        whole = kb.sweep().kept_bytes
        shard = max(kb._engine._parts.publication.required().manifest.shards, key=lambda each: each.size_bytes)
    with many.open() as reader:
        held = reader._engine._parts.cache.open(shard)
        held.search(0.0)
        folder = many.cache / shard.folder.rpartition("/")[2]
        for path in folder.iterdir():
            os.utime(path, (1_000_000, 1_000_000))  # the first that would have to go
        with many.with_policy(cache_max_bytes=whole - 1).open() as kb:
            report = kb.sweep()
            assert report.evicted_size >= 1
            assert report.kept_bytes < whole
            assert folder.exists()
        with many.with_policy(cache_max_bytes=1).open() as kb:
            assert code_of(kb.sweep) == "E205"
            assert [path.name for path in many.cache.iterdir()] == [folder.name]
        del held


def test_what_nobody_asked_for_long_is_evicted(many: Ground) -> None:
    with many.open() as kb:
        kb.upsert(numbered(30))
        kb.search("rivers", limit=100, exact=True)
    for path in many.cache.rglob("*"):
        os.utime(path, (1_000_000, 1_000_000))
    with many.with_policy(cache_ttl_seconds=3600.0).open() as kb:
        report = kb.sweep()
        assert report.evicted_ttl > 0
        assert report.kept_bytes == 0
        assert len(kb.search("rivers", limit=100, exact=True)) == 30


def cached_names(ground: Ground) -> set[str]:
    return {path.name for path in ground.cache.iterdir()}


def test_what_no_manifest_names_any_more_does_not_stay_in_the_cache(many: Ground) -> None:
    with many.open() as writer, many.open() as reader:
        for number in range(20):
            writer.upsert(numbered(1, begin=number))
            assert len(reader.search("rivers", limit=100, exact=True)) == number + 1
        live = {folder.rpartition("/")[2] for folder in live_folders_of(many)}
        assert cached_names(many) <= live
        writer.compact(everything=True)
        assert len(reader.search("rivers", limit=100, exact=True)) == 20
        assert cached_names(many) == {folder.rpartition("/")[2] for folder in live_folders_of(many)}
        kept = cached_names(many)
    assert cached_names(many) == kept, "what is closed is kept for the next time"


def test_a_stray_file_in_the_cache_does_no_harm(ground: Ground) -> None:
    with ground.open() as kb:
        kb.upsert(numbered(3))
        kb.search("rivers")
        (ground.cache / ".DS_Store").write_bytes(b"stray")
        stats = kb.stats()
        assert stats is not None
        assert stats.cache["size_bytes"] > 0
        kb.sweep()
        assert (ground.cache / ".DS_Store").exists()


@pytest.mark.rule("engine-19")
def test_eviction_under_eight_readers_hurts_none_of_them(many: Ground) -> None:
    """Everything that is not in use at the moment is too old."""
    with many.open() as kb:
        kb.upsert(numbered(30))
        expected = ids_of(kb.search("castles", limit=100, exact=True))
    faults: list[BaseException] = []
    done = threading.Event()
    answers: list[list[str]] = []

    with many.with_policy(cache_ttl_seconds=0.000001).open() as kb:

        def read() -> None:
            try:
                for number in range(15):
                    answers.append(ids_of(kb.search("castles", limit=100, exact=True)))
                    assert kb.document(f"doc-{number:04}").id == f"doc-{number:04}"
            except BaseException as fault:  # noqa: BLE001 - told by the assertion below
                faults.append(fault)

        def sweep() -> None:
            try:
                while not done.is_set():
                    kb.sweep()
            except BaseException as fault:  # noqa: BLE001
                faults.append(fault)

        readers = [threading.Thread(target=read) for _ in range(8)]
        sweeper = threading.Thread(target=sweep)
        for thread in (*readers, sweeper):
            thread.start()
        for thread in readers:
            thread.join()
        done.set()
        sweeper.join()
    assert faults == []
    assert answers == [expected] * (8 * 15)


READER = """
import sys
from pathlib import Path
from support.engine_parts import MANY_SHARDS, Ground, ids_of

ground = Ground(Path(sys.argv[1]), **MANY_SHARDS, cache_ttl_seconds=0.000001)
expected = sys.argv[2].split(",")
print("ready", flush=True)
sys.stdin.readline()
for number in range(int(sys.argv[3])):
    with ground.open() as kb:
        assert ids_of(kb.search("castles", limit=100, exact=True)) == expected
        kb.sweep()
        assert ids_of(kb.search("castles", limit=100, exact=True)) == expected
print("done", flush=True)
"""


def test_eviction_under_readers_in_other_processes_hurts_none_of_them(many: Ground) -> None:
    with many.open() as kb:
        kb.upsert(numbered(30))
        expected = ids_of(kb.search("castles", limit=100, exact=True))
    command = [sys.executable, "-c", READER, str(many.folder), ",".join(expected), "15"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])}
    readers = [
        subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    for reader in readers:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "ready\n"
    outcomes = []
    for reader in readers:
        assert reader.stdin is not None
        reader.stdin.write("\n")
        reader.stdin.flush()
    for reader in readers:
        stdout, stderr = reader.communicate(timeout=120)
        outcomes.append((reader.returncode, stdout, stderr))
    assert [(status, stdout) for status, stdout, _ in outcomes] == [(0, "done\n")] * 2, outcomes


@pytest.mark.rule("engine-23")
def test_what_an_older_layout_left_goes_with_the_first_publication(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    for name in ("old.duckdb", "old.snapshot.json", "other.duckdb"):
        (store / name).write_bytes(b"of an older layout")
    policy = EnginePolicy(store=str(store), cache_dir=str(tmp_path / "cache"), embedder="ngram")
    with pair.open("old", settings=pair.Settings(engine=policy)) as kb:
        kb.upsert([Document(id="a", text="first")])
    assert (store / "other.duckdb").exists()
    assert not (store / "old.duckdb").exists()
    assert not (store / "old.snapshot.json").exists()
