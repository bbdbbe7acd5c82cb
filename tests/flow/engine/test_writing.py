"""Storing, replacing and deleting documents, and the cost of these writes."""

import dataclasses
from pathlib import Path

import pytest

import pair
from pair.values import Document
from support.engine_parts import CountingEmbedder, Ground, all_ids, ids_of, numbered, stats_of


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


def test_unchanged_texts_are_not_embedded_again(many: Ground) -> None:
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


def test_the_last_document_with_an_id_in_a_batch_is_stored(ground: Ground) -> None:
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
        assert stats_of(kb).documents == len(all_ids(kb))


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
        stats = stats_of(kb)
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
