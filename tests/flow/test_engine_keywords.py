"""The keywords of documents after writes, deletions and compactions."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pair.engine.format.manifest import Manifest, from_bytes
from pair.engine.query.bm25 import KeywordSearch
from pair.engine.query.postings import KeywordPart
from pair.engine.storage.shard_cache import ShardCache
from pair.testing.clock import ManualClock
from pair.text.tokenizer import parse_query
from pair.values import Document
from support.engine_parts import MANY_SHARDS, Ground, numbered, read_blob
from support.errors import raises_code

MANIFEST = "default.duckdb.manifest.json"


def manifest_of(ground: Ground) -> Manifest:
    return from_bytes(read_blob(ground.blobs(), MANIFEST), MANIFEST)


def found(ground: Ground, query: str) -> dict[str, float]:
    """Return the keyword score of every document that is found."""
    shards = manifest_of(ground).shards
    cache = ShardCache(ground.blobs(), ground.cache, ManualClock())
    opened = [cache.open(shard) for shard in shards]
    parts = []
    for shard, each in zip(shards, opened, strict=True):
        search = each.search(0.0)
        live = None if shard.tombstones is None else ~shard.tombstones[search.doc_of_row]
        parts.append(KeywordPart(each.keywords(), live, search.row_fields))
    asked = KeywordSearch(parse_query(query), parts)
    scores: dict[str, float] = {}
    for position, (values, rows) in asked.best_together(range(len(parts)), 1000, lambda _: None).items():
        search = opened[position].search(0.0)
        for score, row in zip(values.tolist(), rows.tolist(), strict=True):
            scores[search.header(int(search.doc_of_row[row])).id] = score
    return scores


def without_keywords(ground: Ground) -> None:
    """Return the KB as written by a release without keyword search."""
    value = json.loads(read_blob(ground.blobs(), MANIFEST))
    for name in ("content_sha256", "made_by"):
        del value[name]
    for shard in value["shards"]:
        del shard["files"]["keywords"]
    ground.blobs().put(MANIFEST, json.dumps(value).encode())
    for path in [*ground.stored_files(".keywords"), *ground.cached_files(".keywords")]:
        path.unlink()


QUERIES = ["item7", "rivers", "text about item3 -bridges", '"text number 5"', "ite* number", "zebra titled"]


@pytest.mark.rule("engine-24")
def test_scores_are_the_same_after_any_way_to_the_same_documents(tmp_path: Path) -> None:
    documents = [*numbered(24), Document("named", "Nothing else.", title="Zebra titled")]
    one = Ground(tmp_path / "one")
    one.fill(documents)
    many = Ground(tmp_path / "many", **MANY_SHARDS)
    with many.open() as kb:
        kb.upsert([*numbered(16, begin=18), Document("doc-0001", "item7 item7 was another text")])
        kb.upsert(documents[:13])
        kb.upsert(documents[13:])
        kb.delete([each.id for each in numbered(16, begin=18) if each.id not in {other.id for other in documents}])
    assert len(manifest_of(many).shards) > 3
    before = {query: found(one, query) for query in QUERIES}
    assert all(before.values())
    assert {query: found(many, query) for query in QUERIES} == before
    with many.open() as kb:
        kb.maintenance.compact(everything=True)
    assert {query: found(many, query) for query in QUERIES} == before


def test_shards_without_keywords_find_nothing_until_they_are_compacted(many: Ground) -> None:
    many.fill(numbered(24))
    expected = {query: found(many, query) for query in QUERIES[:5]}
    without_keywords(many)
    assert found(many, "item7") == {}
    with many.open() as kb:
        assert kb.search("item7", exact=True), "what else they hold is found as ever"
        assert kb.maintenance.compact().reason == "keywords_missing"
        assert kb.maintenance.compact().reason == "no_compaction_debt"
    assert {query: found(many, query) for query in QUERIES[:5]} == expected


def test_a_write_takes_up_shards_without_keywords(ground: Ground) -> None:
    for begin in range(8):
        ground.fill(numbered(1, begin=begin))
        if begin == 3:
            without_keywords(ground)
    assert len(manifest_of(ground).shards) == 1
    assert len(found(ground, "text number")) == 8


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


@pytest.mark.parametrize("damage", [flip, cut, Path.unlink])
def test_damaged_keywords_are_fetched_again_or_named(ground: Ground, damage: Callable[[Path], None]) -> None:
    ground.fill(numbered(5))
    expected = found(ground, "number")
    [cached] = ground.cached_files(".keywords")
    damage(cached)
    assert found(ground, "number") == expected
    [cached], [stored] = ground.cached_files(".keywords"), ground.stored_files(".keywords")
    cached.unlink()
    flip(stored)
    with raises_code("E207"):
        found(ground, "number")


def test_the_number_of_rows_is_that_of_the_vectors(many: Ground) -> None:
    with many.open() as kb:
        vector = np.ones(16).tolist()
        kb.upsert(
            [*numbered(20), Document("empty", "", vector=vector), Document("placed", "at a place", vector=vector)]
        )
    cache = ShardCache(many.blobs(), many.cache, ManualClock())
    for shard in manifest_of(many).shards:
        index = cache.open(shard).keywords()
        assert index is not None
        assert index.count == shard.rows
