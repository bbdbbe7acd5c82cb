"""The manifest: its JSON, its successors, and refused files."""

import base64
import datetime
import hashlib
import json
import tracemalloc
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from pair.engine.format.array_file import ShardFile
from pair.engine.format.manifest import (
    SCHEMA_VERSION,
    Cause,
    DroppedShard,
    Manifest,
    ShardRef,
    from_bytes,
    hash_files,
    lease_name,
    manifest_key,
    no_manifest,
    shards_prefix,
    to_bytes,
    version_in_key,
    version_key,
    versions_prefix,
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
    """Return the manifest in the golden file of schema 1."""
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
    """Return all values of a manifest in a comparable form."""
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
    assert (value["chunks"], value["total_size_bytes"]) == (81, 2460)
    assert value["shards"][1].keys() >= {
        "shard_id", "key", "files", "vector_rows", "documents", "centroids", "radii", "graph_available",
        "tombstone_count", "tombstones", "created_at",
    }  # fmt: skip


def test_a_manifest_is_written_as_it_ever_was() -> None:
    fresh = replace(manifest(), shards=(shard("a"),))  # zlib may pack in more than one way
    expected = GOLDEN.read_bytes().decode()
    written = to_bytes(fresh).decode()
    assert written.partition('"documents"')[0] == expected.partition('"documents"')[0]
    assert written.endswith("}\n")
    assert written.count("\n") == 1
    named = to_bytes(replace(manifest(), embedder="modèle"))
    assert "modèle".encode() in named, "as text, and not as escapes"


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


_, WORN = json.loads(GOLDEN.read_bytes())["shards"]


def with_shard(**changes: Any) -> bytes:
    return changed(shards=[WORN | changes])


def packed(content: bytes) -> str:
    return base64.b64encode(zlib.compress(content)).decode()


@pytest.mark.parametrize(
    "content",
    [
        b"[" * 100_000,
        GOLDEN.read_bytes()[:-30],
        changed(layout="something_else"),
        changed(kb_id="\ud800"),
        changed(version=2**53 + 1),
        changed(embedder={"name": "ngram", "dimension": 0}),
        changed(dropped=[{"key": "../c", "dropped_at": "2024-05-01T11:00:00+00:00"}]),
        changed(dropped=[{"key": "c", "dropped_at": "yesterday"}]),
        changed(dropped=[{"key": "c", "dropped_at": "2024-05-01T11:00:00"}]),
        with_shard(centroids="AAAA"),
        with_shard(centroids="?" + WORN["centroids"]),
        with_shard(radii=[0.5]),
        with_shard(shard_id="a/b"),
        with_shard(key="default.duckdb.shards/../b"),
        with_shard(documents=61),
        with_shard(vector_rows=2**28 + 1),
        with_shard(files={}),
        with_shard(tombstones="bm90IHpsaWI="),
        with_shard(tombstones="?"),
        with_shard(tombstones=packed(b"")),
        with_shard(tombstones=packed(b"12")),
        with_shard(tombstones=packed(b"1234")),
        with_shard(tombstones="?" + WORN["tombstones"]),
    ],
    ids=lambda content: f"{len(content)} bytes",
)
def test_a_damaged_manifest_is_refused_when_it_is_read(content: bytes) -> None:
    with pytest.raises(DataError) as caught:
        from_bytes(content, "default.duckdb.manifest.json")
    assert caught.value.code == "E207"
    assert caught.value.details["key"] == "default.duckdb.manifest.json"


def test_a_manifest_that_cannot_be_read_says_so() -> None:
    with pytest.raises(DataError) as caught:
        from_bytes(b"{}", "key")
    assert caught.value.explanation == "It is not a readable manifest."


def test_a_list_that_unpacks_to_more_than_memory_holds_is_not_unpacked() -> None:
    content = with_shard(tombstones=packed(b"\0" * 50_000_000))
    tracemalloc.start()
    try:
        with pytest.raises(DataError):
            from_bytes(content, "key")
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("documents", [1, 7, 8, 9, 16, 17])
def test_any_number_of_documents_may_be_gone(documents: int) -> None:
    before = replace(manifest(), shards=(shard("a", documents=documents, gone=(documents - 1,)),))
    [after] = from_bytes(to_bytes(before), "key").shards
    assert after.tombstones is not None
    assert after.tombstones.tolist() == [number == documents - 1 for number in range(documents)]


def test_a_re_embedded_kb_remembers_the_embedder_of_its_hashes() -> None:
    before = manifest()
    after = before.make_reembedded("commit-8", NOON, [shard("d")], "other", 8)
    assert (after.embedder, after.dimension, after.number, after.commit_id) == ("other", 8, 8, "commit-8")
    assert (before.hashing_embedder, after.hashing_embedder) == ("ngram-4-v1", "ngram-4-v1")
    assert [each.folder for each in after.shards] == ["default.duckdb.shards/d"]
    again = after.make_reembedded("commit-9", NOON, (), "third", 4)
    assert json.loads(to_bytes(again))["embedder"] == {"name": "third", "dimension": 4, "hashed_as": "ngram-4-v1"}
    assert from_bytes(to_bytes(again), "key").hashed_as == "ngram-4-v1"
    back = again.make_reembedded("commit-10", NOON, (), "ngram-4-v1", 4)
    assert json.loads(to_bytes(back))["embedder"] == {"name": "ngram-4-v1", "dimension": 4}


def test_the_greatest_numbers_are_read() -> None:
    assert from_bytes(changed(version=2**53, collections=0), "key").number == 2**53
    [shard] = from_bytes(with_shard(vector_rows=2**28, documents=20), "key").shards
    assert shard.rows == 2**28
    [full] = from_bytes(with_shard(vector_rows=20, graph_available=True), "key").shards
    assert (full.rows, full.documents, full.graph_available) == (20, 20, True)
    assert full.tombstones is not None
    assert (full.tombstones.dtype.name, full.centroids.dtype.name) == ("bool", "float32")


def test_the_first_write_builds_on_nothing() -> None:
    nothing = no_manifest("default", "ngram-4-v1", 4)
    assert values_of(nothing) == {
        "kb_id": "default",
        "number": 0,
        "commit_id": "",
        "created_at": "",
        "embedder": "ngram-4-v1",
        "dimension": 4,
        "shards": [],
        "dropped": (),
        "collections": 0,
        "recent_commits": (),
        "made_by": "",
        "label": "",
        "index_sha256": "",
        "restored": 0,
        "rolled_back": 0,
        "hashed_as": "",
    }
    first = nothing.make_next("commit-1", NOON, [])
    assert (first.number, first.recent_commits, first.created_at) == (1, (), "2024-05-01T12:00:00+00:00")
    assert not first.holds_commit("")


def test_times_are_written_in_utc() -> None:
    there = NOON.astimezone(datetime.timezone(datetime.timedelta(hours=5, minutes=30)))
    after = manifest().make_next("commit-8", there, [])
    assert after.created_at == "2024-05-01T12:00:00+00:00"
    assert {each.dropped_at for each in after.dropped[1:]} == {"2024-05-01T12:00:00+00:00"}


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
    assert worn.without([]).gone == 3
    assert worn.gone == 3, "a shard is not changed"
    assert worn.size_bytes == 1230


def test_each_manifest_follows_the_one_before() -> None:
    before = manifest()
    after = before.make_next("commit-8", NOON, [before.shards[1], shard("d")])
    assert (after.number, after.commit_id) == (8, "commit-8")
    assert after.recent_commits == ("commit-7", "commit-6", "commit-5")
    assert [each.folder for each in after.dropped] == ["default.duckdb.shards/c", "default.duckdb.shards/a"]
    assert all(after.holds_commit(each) for each in ("commit-8", "commit-7", "commit-6"))
    assert not after.holds_commit("commit-4")


def test_a_shard_without_live_documents_leaves_the_manifest() -> None:
    after = manifest().make_next("commit-8", NOON, [shard("a", documents=2, gone=(0, 1))])
    assert after.shards == ()
    assert {each.folder for each in after.dropped} == {f"default.duckdb.shards/{name}" for name in "abc"}


def test_a_collection_forgets_what_it_took() -> None:
    after = manifest().make_collected("commit-8", NOON, frozenset({"default.duckdb.shards/c"}))
    assert (after.dropped, after.collections) == ((), 3)
    assert (after.commit_id, after.number, len(after.shards)) == ("commit-8", 8, 2)


def test_a_collection_that_takes_nothing_may_forget_what_was_dropped() -> None:
    dropped = frozenset({"default.duckdb.shards/c"})
    after = manifest().make_collected("commit-8", NOON, frozenset(), dropped)
    assert (after.dropped, after.collections) == ((), 2), "what others are building is still there"


def test_a_copy_lists_everything_except_shards_that_wait_for_collection() -> None:
    before = manifest()
    assert before.dropped
    assert values_of(before.make_copy()) == values_of(before) | {"dropped": ()}


def test_the_list_of_commits_stays_short() -> None:
    current = no_manifest("default", "ngram-4-v1", 4)
    for number in range(200):
        current = current.make_next(f"commit-{number}", NOON, [])
    assert len(current.recent_commits) == 64
    assert current.holds_commit("commit-199")


# ── versions ───────────────────────────────────────────────────────────────────────────────────────


def test_a_version_is_found_by_its_number_and_its_commit() -> None:
    key = version_key("default", 42, "0a1b")
    assert key == "default.duckdb.history/0000000042-0a1b.json"
    assert key.startswith(versions_prefix("default"))
    assert version_in_key(key) == (42, "0a1b")


@pytest.mark.parametrize(
    "name", ["readme.txt", "42.json", "x-0a.json", "-0a.json", "\uff14\uff12-0a.json", "-1-0a.json", "4 2-0a.json"]
)
def test_what_is_not_a_version_is_not_taken_for_one(name: str) -> None:
    assert version_in_key(versions_prefix("default") + name) is None


def test_what_made_a_manifest_and_what_it_brought_survives_its_json() -> None:
    made = replace(
        manifest(),
        made_by="install",
        label="handbook 1.0.0",
        index_sha256="0a1b",
        restored=3,
        rolled_back=7,
        shards=(replace(shard("a"), origin="handbook"),),
    )
    assert values_of(from_bytes(to_bytes(made), "key")) == values_of(made)
    value = json.loads(to_bytes(made))
    assert (value["made_by"], value["label"], value["restored_version"]) == ("install", "handbook 1.0.0", 3)
    assert value["rolled_back_version"] == 7
    assert (value["index_sha256"], value["shards"][0]["origin"]) == ("0a1b", "handbook")


def test_what_is_not_so_is_not_written() -> None:
    value = json.loads(to_bytes(manifest()))
    assert value.keys() & {"label", "index_sha256", "restored_version", "rolled_back_version"} == set()
    assert "origin" not in value["shards"][0]
    assert value["made_by"] == ""


def test_a_cause_that_a_later_pair_knows_is_none() -> None:
    value = json.loads(to_bytes(replace(manifest(), made_by="upsert")))
    del value["content_sha256"]
    content = json.dumps(value | {"made_by": "dream"}, separators=(",", ":")).encode()[:-1]
    seal = hashlib.sha256(content).hexdigest()
    assert from_bytes(content + f',"content_sha256":"{seal}"}}\n'.encode(), "key").made_by == ""


def test_some_causes_change_no_document() -> None:
    causes = [cause for cause in ("", *get_args(Cause)) if replace(manifest(), made_by=cause).is_rearranged]
    assert causes == ["compact", "collect", "release", "repair"]


def test_each_manifest_says_what_made_it() -> None:
    before = replace(manifest(), made_by="import")
    shards = list(before.shards)
    assert before.make_next("c", NOON, shards).made_by == "upsert"
    assert before.make_next("c", NOON, shards, "delete").made_by == "delete"
    assert before.make_collected("c", NOON, frozenset()).made_by == "collect"
    assert before.make_reembedded("c", NOON, shards, "other", 8).made_by == "reembed"
    assert before.make_released("c", NOON).made_by == "release"
    assert before.make_rolled_back(manifest(), "c", NOON).made_by == "rollback"


def test_going_back_names_all_that_was_named_then() -> None:
    past = replace(
        manifest(), embedder="past", dimension=8, hashed_as="older", label="handbook 1.0.0", index_sha256="0a"
    )
    now = replace(
        manifest(),
        number=9,
        commit_id="commit-9",
        shards=(shard("d"),),
        dropped=(DroppedShard(shard("a").folder, "2024-05-01T11:00:00+00:00"),),
        label="handbook 2.0.0",
        index_sha256="1b",
    )
    back = now.make_rolled_back(past, "commit-10", NOON)
    assert back.folders == past.folders == {shard("a").folder, shard("b").folder}
    assert (back.embedder, back.dimension, back.hashed_as) == ("past", 8, "older")
    assert (back.label, back.index_sha256, back.restored) == ("handbook 1.0.0", "0a", 7)
    assert (back.number, back.commit_id, back.recent_commits[0]) == (10, "commit-10", "commit-9")
    assert back.created_at == "2024-05-01T12:00:00+00:00"
    # What is named again is not waiting to be collected, and what is named no longer is.
    assert [each.folder for each in back.dropped] == [shard("d").folder]


def test_a_label_goes_with_the_first_document_that_changes_and_what_was_installed_stays_known() -> None:
    before = replace(manifest(), label="handbook 1.0.0", index_sha256="0a")
    shards = list(before.shards)
    labels = {cause: before.make_next("c", NOON, shards, cause).label for cause in get_args(Cause)}
    assert {cause for cause, label in labels.items() if not label} == {"upsert", "delete", "import"}
    after = before.make_next("c", NOON, shards, "upsert")
    assert after.index_sha256 == "0a"
    assert values_of(from_bytes(to_bytes(after), "key")) == values_of(after)


def test_what_was_rolled_back_stays_so_until_it_is_released() -> None:
    back = manifest().make_rolled_back(replace(manifest(), number=3), "commit-8", NOON)
    after = back.make_next("commit-9", NOON, list(back.shards))
    assert (after.restored, after.rolled_back) == (3, 8)
    free = after.make_released("commit-10", NOON)
    assert free.rolled_back == 8, "what began before it would undo it still"
    assert (free.restored, free.number, free.commit_id, free.folders) == (0, 10, "commit-10", back.folders)


def test_an_import_takes_the_place_of_everything() -> None:
    origin = replace(no_manifest("default", "other", 8), hashed_as="older")
    before = replace(manifest(), label="handbook 1.0.0", index_sha256="0a", restored=3)
    after = before.make_imported("commit-8", NOON, [shard("d")], origin)
    assert (after.made_by, after.embedder, after.dimension, after.hashed_as) == ("import", "other", 8, "older")
    assert (after.number, after.folders) == (8, frozenset({shard("d").folder}))
    assert (after.label, after.index_sha256, after.restored) == ("", "", 0)


def test_a_shard_is_called_by_its_files() -> None:
    files = shard("a").files
    lines = "rows a1 1000\nsearch a2 200\nids a3 30\n"
    assert hash_files(files) == hashlib.sha256(lines.encode()).hexdigest()


def test_a_manifest_shows_the_documents_that_were_deleted_after_its_shard_was_written_once() -> None:
    before = manifest()
    assert [each.gone for each in from_bytes(to_bytes(before), "key").shards] == [each.gone for each in before.shards]
    after = replace(before, shards=tuple(each.without([each.documents - 1]) for each in before.shards))
    read = from_bytes(to_bytes(after), "key")
    assert [each.gone for each in read.shards] == [each.gone for each in after.shards]
    assert to_bytes(read) == to_bytes(after)  # a new object of the same shard has the same JSON
