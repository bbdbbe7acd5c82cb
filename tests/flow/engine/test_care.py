"""Compaction and garbage collection."""

from collections.abc import Mapping, Sequence
from typing import Any

import duckdb
import pytest

from pair.engine.write.prepare import Batch, split_batches
from pair.engine.write.writer import WriteReport
from pair.kb.kb import KnowledgeBase
from pair.values import Document, GraphRows
from support.engine_parts import Ground, all_ids, folders_of, ids_of, live_folders_of, manifest_of, numbered, stats_of


def graph_rows(ground: Ground) -> tuple[set[tuple[Any, ...]], set[tuple[Any, ...]]]:
    """Return mentions and edges of all live shards, read with plain DuckDB."""
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


def upsert_with_graphs(
    kb: KnowledgeBase, documents: Sequence[Document], graphs: Mapping[str, GraphRows]
) -> WriteReport:
    """Upsert in batches, like `upsert`."""
    core = kb._core
    settings = core.context.settings
    report = WriteReport()
    for part in split_batches(documents, settings.ingest_batch_documents, settings.ingest_batch_bytes):
        report = core.writer.upsert(Batch(part, "ingest", settings.chunk_bytes, graphs, {}))
    return core.compact_debt(report)


@pytest.mark.rule("engine-17")
def test_compaction_keeps_answers_and_graphs_and_drops_deleted_documents(many: Ground) -> None:
    documents = numbered(40)
    graphs = {
        each.id: GraphRows((("Ada", 1.0, 0), (each.id, 0.5, 0)), (("Ada", each.id, "knows", 2.0, 0),))
        for each in documents[::2]
    }
    with many.open() as kb:
        upsert_with_graphs(kb, documents, graphs)
        kb.delete([each.id for each in documents[:10]])
        kept = documents[10:]
        expected_mentions = {
            (each.id, entity, weight, f"{each.id}#0")
            for each in kept[::2]
            for entity, weight in (("Ada", 1.0), (each.id, 0.5))
        }
        expected_edges = {("Ada", each.id, 2.0, "knows", f"{each.id}#0") for each in kept[::2]}
        before = [(hit.chunk_id, hit.distance) for hit in kb.search("castles", limit=100, exact=True)]
        report = kb.maintenance.compact(everything=True)
        assert report.reason == "size_tier"
        assert report.documents == 30
        stats = stats_of(kb)
        assert (stats.documents, stats.deleted_documents) == (30, 0)
        assert [(hit.chunk_id, hit.distance) for hit in kb.search("castles", limit=100, exact=True)] == before
        assert all_ids(kb) == [each.id for each in kept]
        assert graph_rows(many) == (expected_mentions, expected_edges)
        assert {shard["graph_available"] for shard in manifest_of(many)["shards"]} >= {True}
        kb.upsert(numbered(8, begin=40))
        kb.maintenance.compact(everything=True)
        assert graph_rows(many) == (expected_mentions, expected_edges), "also when it is done again"
        assert kb.upsert(kept[1::2]).unchanged == 15


@pytest.mark.rule("engine-11")
def test_a_document_that_is_replaced_loses_its_graph(ground: Ground) -> None:
    graph = GraphRows((("Ada", 1.0, 0),), ())
    with ground.open() as kb:
        upsert_with_graphs(kb, [Document("a", "Ada")], {"a": graph})
        assert upsert_with_graphs(kb, [Document("a", "Ada")], {"a": graph}).unchanged == 1
        assert kb.upsert([Document("a", "Ada")]).replaced == 1
        kb.maintenance.compact(everything=True)
        assert graph_rows(ground) == (set(), set())


def test_tombstones_above_the_ratio_are_compacted_away_in_place(many: Ground) -> None:
    with many.open() as kb:
        kb.upsert(numbered(30))
        kb.maintenance.compact(everything=True)
        runs = {shard["run"] for shard in manifest_of(many)["shards"]}
        kb.delete([f"doc-{number:04}" for number in range(12)])
        assert kb.maintenance.compact().reason == "tombstone_pressure"
        assert {shard["run"] for shard in manifest_of(many)["shards"]} == runs, "a shard stays in its clustering"
        assert all_ids(kb) == [each.id for each in numbered(18, begin=12)]
        assert kb.maintenance.compact().reason == "no_compaction_debt"


@pytest.mark.rule("engine-18")
def test_garbage_collection_removes_what_no_manifest_names_and_nothing_else(many: Ground) -> None:
    with many.open() as kb:
        kb.upsert(numbered(30))
        kb.maintenance.compact(everything=True)
        blobs = many.blobs()
        blobs.put("default.duckdb.shards/orphan/shard-00000.search", b"left by a lost swap")
        blobs.put("other.duckdb.shards/theirs/shard-00000.search", b"of another KB")
        blobs.put("default.duckdb.shards.txt", b"of a stranger")
        before, live = folders_of(many), live_folders_of(many)
        assert live < before
        waiting = kb.maintenance.collect(grace_seconds=3600)
        assert (waiting.deleted_shards, waiting.kept_shards) == (0, len(before - live))
        assert folders_of(many) == before, "its time has not come"
        done = kb.maintenance.collect(grace_seconds=0)
        assert (done.deleted_shards, done.kept_shards) == (len(before - live), 0)
        assert done.deleted_bytes > 0
        assert folders_of(many) == live
        assert {blob.key for blob in blobs.list("other.")} == {"other.duckdb.shards/theirs/shard-00000.search"}
        assert blobs.get("default.duckdb.shards.txt") is not None
        assert manifest_of(many)["dropped"] == []
        version = manifest_of(many)["version"]
        assert kb.maintenance.collect(grace_seconds=0).deleted_shards == 0
        assert manifest_of(many)["version"] == version, "nothing to do, nothing published"
    with many.open() as kb:
        assert all_ids(kb) == [each.id for each in numbered(30)]


def test_a_reader_of_an_old_manifest_continues_with_the_new_one_after_a_collection(many: Ground) -> None:
    with many.open() as kb:
        kb.upsert(numbered(30))
        kb.maintenance.compact(everything=True)
    with many.open() as reader, many.open() as writer:
        expected = ids_of(reader.search("castles", limit=100, exact=True))
        writer.maintenance.compact(everything=True)
        writer.upsert(numbered(1, begin=30))
        writer.delete(["doc-0030"])
        writer.maintenance.compact(everything=True)
        writer.maintenance.collect(grace_seconds=0)
        assert ids_of(reader.search("castles", limit=100, exact=True)) == expected
        assert all_ids(reader) == sorted(expected)
