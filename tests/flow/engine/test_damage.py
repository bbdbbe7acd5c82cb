"""Damaged files are detected, and never used for an answer."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pair.kb.kb import KnowledgeBase
from support.engine_parts import (
    Ground,
    all_ids,
    flip_a_bit,
    ids_of,
    live_folders_of,
    manifest_of,
    numbered,
    stats_of,
    truncate,
)
from support.errors import code_of, raises_code

DAMAGES: dict[str, Callable[[Path], None]] = {"truncated": truncate, "flipped": flip_a_bit, "missing": Path.unlink}
damaged = pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())


def everything(kb: KnowledgeBase) -> list[tuple[str, str, float | None]]:
    """Return all documents with a search that needs every file of a shard."""
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
        assert stats_of(kb).cache["misses"] >= 3


def test_stamps_of_the_cache_that_are_damaged_do_no_harm(many: Ground) -> None:
    with many.open() as kb:
        kb.upsert(numbered(30))
        expected = everything(kb)
    for number, path in enumerate(many.cached_files(".ok")):
        path.write_bytes([b"", b"\xff\xff", b"1 2 3\n"][number % 3])
    with many.open() as kb:
        assert everything(kb) == expected


def spoil_one_shard(ground: Ground, damage: Callable[[Path], None], suffix: str) -> str:
    """Damage a shard that queries read, in the store, and empty the cache. Return the key of the shard's folder."""
    live = {folder.rpartition("/")[2] for folder in live_folders_of(ground)}
    path = next(path for path in ground.stored_files(suffix) if path.parent.name in live)
    damage(path)
    for cached in [path for path in ground.cache.rglob("*") if path.is_file()]:
        cached.unlink()
    return path.parent.name


@damaged
def test_when_the_only_shard_is_damaged_in_the_store_the_error_names_it(
    ground: Ground, damage: Callable[[Path], None]
) -> None:
    ground.fill(numbered(3))
    spoilt = spoil_one_shard(ground, damage, ".search")
    with ground.open() as kb, raises_code("E207") as caught:
        kb.search("rivers")
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
        whole = ids_of(kb.search("rivers", limit=1000, filter={"number": {"gte": 0}}))
    spoilt = spoil_one_shard(many, damage, ".ids")
    with many.open() as kb:
        hits = kb.search("rivers", limit=1000, filter={"number": {"gte": 0}})
        assert hits.partial
        assert spoilt in hits.faults[0]
        assert 0 < len(hits) < len(whole) == 30
        assert not kb.search("rivers", limit=1000).partial, "what needs no metadata does not miss it"


@damaged
def test_listing_getting_and_writing_name_a_shard_whose_ids_are_lost(
    ground: Ground, damage: Callable[[Path], None]
) -> None:
    ground.fill(numbered(3))
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
            with raises_code("E207") as caught:
                attempt()
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
        assert code_of(lambda: kb.maintenance.compact(everything=True)) == "E207"
    assert manifest_of(many)["version"] == before


def test_a_shard_that_was_put_back_answers_again(ground: Ground) -> None:
    ground.fill(numbered(3))
    path = ground.stored_files(".search")[0]
    content = path.read_bytes()
    spoil_one_shard(ground, flip_a_bit, ".search")
    with ground.open() as kb:
        assert code_of(lambda: kb.search("rivers")) == "E207"
        path.write_bytes(content)
        assert len(kb.search("rivers", limit=10)) == 3


def test_a_manifest_that_is_damaged_is_an_error_that_names_it(ground: Ground) -> None:
    ground.fill(numbered(3))
    blobs = ground.blobs()
    blobs.put("default.duckdb.manifest.json", b"{}")
    with ground.open() as kb:
        for act in (lambda: kb.search("rivers"), kb.stats, lambda: kb.upsert(numbered(1)), kb.maintenance.collect):
            with raises_code("E207") as caught:
                act()
            assert "default.duckdb.manifest.json" in caught.value.message
