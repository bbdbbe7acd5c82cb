"""The manifest: its JSON, what follows what, and which files are refused."""

import datetime
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pair.engine.manifest import (
    SCHEMA_VERSION,
    DroppedShard,
    Manifest,
    ShardFile,
    ShardRef,
    from_bytes,
    lease_name,
    manifest_key,
    no_manifest,
    shards_prefix,
    to_bytes,
)
from pair.errors import DataError

GOLDEN = Path(__file__).parents[2] / "golden" / "manifest-v1.json"
NOON = datetime.datetime(2024, 5, 1, 12, tzinfo=datetime.UTC)


def shard(name: str = "a", *, documents: int = 10, gone: tuple[int, ...] = (), run: str = "") -> ShardRef:
    ref = ShardRef(
        shard_id="shard-00000",
        folder=f"default.duckdb.shards/{name}",
        files={
            "rows": ShardFile(1000, f"{name}1"),
            "search": ShardFile(200, f"{name}2"),
            "ids": ShardFile(30, f"{name}3"),
        },
        rows=3 * documents,
        documents=documents,
        run=run,
        centroids=np.array([[0.5, -0.25, 1, 0], [2, 0, 0, 0.125]], np.float32),
        radii=(0.75, 1.5),
        graph_available=bool(run),
        created_at="2024-05-01T12:00:00+00:00",
    )
    return ref.without(gone) if gone else ref


def manifest() -> Manifest:
    """What the golden file of schema 1 holds."""
    return Manifest(
        kb_id="default",
        number=7,
        commit_id="commit-7",
        created_at="2024-05-01T12:00:00+00:00",
        embedder="ngram-4-v1",
        dimension=4,
        shards=(shard("a"), shard("b", documents=20, gone=(0, 3, 19), run="run-b")),
        dropped=(DroppedShard("default.duckdb.shards/c", "2024-05-01T11:00:00+00:00"),),
        collections=2,
        recent_commits=("commit-6", "commit-5"),
    )


def values_of(value: Manifest) -> dict[str, Any]:
    """Everything that a manifest says, ready for comparing."""
    plain = {name: item for name, item in vars(value).items() if name != "shards"}
    plain["shards"] = [
        vars(each)
        | {
            "centroids": each.centroids.tolist(),
            "tombstones": None if each.tombstones is None else each.tombstones.tolist(),
        }
        for each in value.shards
    ]
    return plain


def test_a_manifest_survives_its_json() -> None:
    assert values_of(from_bytes(to_bytes(manifest()), "key")) == values_of(manifest())


def test_the_manifest_of_schema_1_opens_for_ever() -> None:
    assert values_of(from_bytes(GOLDEN.read_bytes(), "key")) == values_of(manifest())


def test_an_empty_manifest_survives_its_json() -> None:
    empty = no_manifest("default", "ngram-4-v1", 4)
    assert values_of(from_bytes(to_bytes(empty), "key")) == values_of(empty)


def test_the_json_has_what_the_specification_names() -> None:
    value = json.loads(to_bytes(manifest()))
    assert value["schema_version"] == SCHEMA_VERSION
    assert value["layout"] == "duckdb_shard_files"
    assert (value["version"], value["parent_version"], value["documents"]) == (7, 6, 27)
    assert value["shards"][1].keys() >= {
        "shard_id", "key", "files", "vector_rows", "documents", "centroids", "radii", "graph_available",
        "tombstone_count", "tombstones", "created_at",
    }  # fmt: skip


@pytest.mark.rule("engine-1")
def test_keys_in_the_store_are_those_of_the_specification() -> None:
    assert manifest_key("a") == "a.duckdb.manifest.json"
    assert shards_prefix("a") == "a.duckdb.shards/"
    assert lease_name("a") == "a.duckdb"
    assert shard("x").key("rows") == "default.duckdb.shards/x/shard-00000.duckdb"


def changed(**changes: Any) -> bytes:
    return json.dumps(json.loads(GOLDEN.read_bytes()) | changes).encode()


def test_a_manifest_of_a_newer_schema_is_refused_and_says_so() -> None:
    with pytest.raises(DataError) as caught:
        from_bytes(changed(schema_version=SCHEMA_VERSION + 1), "default.duckdb.manifest.json")
    assert caught.value.code == "E207"
    assert "default.duckdb.manifest.json" in caught.value.message
    assert "newer than this pair" in caught.value.explanation


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"{}",
        b"\xff\xfe",
        GOLDEN.read_bytes()[:-30],
        changed(layout="something_else"),
        changed(schema_version="one"),
        changed(shards=[{}]),
        changed(shards=[json.loads(GOLDEN.read_bytes())["shards"][0] | {"centroids": "AAAA"}]),
        changed(shards=[json.loads(GOLDEN.read_bytes())["shards"][0] | {"tombstones": "bm90IHpsaWI="}]),
        changed(shards=[json.loads(GOLDEN.read_bytes())["shards"][0] | {"tombstones": "?"}]),
        changed(embedder=None),
    ],
    ids=lambda content: f"{len(content)} bytes",
)
def test_a_damaged_manifest_is_refused(content: bytes) -> None:
    with pytest.raises(DataError) as caught:
        from_bytes(content, "key")
    assert caught.value.code == "E207"


def test_a_manifest_with_any_byte_changed_is_refused() -> None:
    content = to_bytes(manifest())
    for place in range(len(content)):
        for bit in (1, 4, 128):
            damaged = bytearray(content)
            damaged[place] ^= bit
            with pytest.raises(DataError) as caught:
                from_bytes(bytes(damaged), "key")
            assert caught.value.code == "E207"


def test_a_shard_that_has_keywords_keeps_them() -> None:
    before = shard("k")
    before = replace(before, files={**before.files, "keywords": ShardFile(5, "k4")})
    [after] = from_bytes(to_bytes(replace(manifest(), shards=(before,))), "key").shards
    assert after.files == before.files


def test_a_shard_counts_what_is_left_of_it() -> None:
    worn = shard(documents=20, gone=(0, 3, 19))
    assert (worn.gone, worn.live_documents, worn.live_rows, worn.tombstone_ratio) == (3, 17, 51, 0.15)
    assert worn.without([3, 4]).gone == 4
    assert worn.gone == 3, "a shard is not changed"
    assert worn.size_bytes == 1230


def test_each_manifest_follows_the_one_before() -> None:
    before = manifest()
    after = before.succeeded_by("commit-8", NOON, [before.shards[1], shard("d")])
    assert (after.number, after.commit_id) == (8, "commit-8")
    assert after.recent_commits == ("commit-7", "commit-6", "commit-5")
    assert [each.folder for each in after.dropped] == ["default.duckdb.shards/c", "default.duckdb.shards/a"]
    assert all(after.holds_commit(each) for each in ("commit-8", "commit-7", "commit-6"))
    assert not after.holds_commit("commit-4")


def test_a_shard_without_live_documents_is_named_no_longer() -> None:
    after = manifest().succeeded_by("commit-8", NOON, [shard("a", documents=2, gone=(0, 1))])
    assert after.shards == ()
    assert {each.folder for each in after.dropped} == {f"default.duckdb.shards/{name}" for name in "abc"}


def test_a_collection_forgets_what_it_took() -> None:
    after = manifest().after_collection("commit-8", NOON, frozenset({"default.duckdb.shards/c"}))
    assert (after.dropped, after.collections) == ((), 3)


def test_the_list_of_commits_stays_short() -> None:
    current = no_manifest("default", "ngram-4-v1", 4)
    for number in range(200):
        current = current.succeeded_by(f"commit-{number}", NOON, [])
    assert len(current.recent_commits) == 64
    assert current.holds_commit("commit-199")
