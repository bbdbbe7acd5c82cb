"""Shard files, read with plain DuckDB."""

import json
from pathlib import Path

import duckdb
import numpy as np
import pytest

from pair.engine.format.columns import Header, PreparedDocument, StoredDocuments, build_columns, hash_id
from pair.engine.format.shard import open_ids, open_rows, open_search
from pair.engine.format.shard_builder import BuiltShard, build_shard
from pair.files import hash_file
from pair.values import Chunk, GraphRows

DIMENSION = 4
GRAPH = GraphRows(
    (("Ada", 1.0, 0), ("Charles", 0.5, 1)),
    (("Ada", "Charles", "wrote to", 2.0, 1),),
)


def stored() -> StoredDocuments:
    return build_columns(
        [
            PreparedDocument(
                Header(
                    "notes/ä.md", "sync", "Äpfel", "https://x.example", {"year": 2024, "tags": ["a", "b"]}, "ab" * 16
                ),
                "Äpfel und Birnen",
                (Chunk("Äpfel", 0, 5), Chunk("Birnen", 10, 16)),
                np.array([[1, 0, 0, 0], [0, 1, 0, 0]], np.float32),
                GRAPH,
            ),
            PreparedDocument(Header("empty", "ingest", "", "", {}, "cd" * 16), "", (), np.empty((0, 4), np.float32)),
            PreparedDocument(
                Header("odd \ud800", "ingest", "", "", {}, "ef" * 16),
                "nul \0, quote ', half \udfff",
                (Chunk("nul \0, quote ', half \udfff", 0, 23),),
                np.array([[0, 0, 1, 0]], np.float32),
            ),
        ],
        DIMENSION,
    )


@pytest.fixture
def built(tmp_path: Path) -> BuiltShard:
    return build_shard(tmp_path / "it's here", "default", stored(), commit_id="commit-1", run="")


def rows_of(built: BuiltShard, sql: str) -> list[tuple[object, ...]]:
    """Read rows with a plain DuckDB that may load no extension."""
    options: dict[str, str | bool | int | float | list[str]] = {
        "autoload_known_extensions": False,
        "autoinstall_known_extensions": False,
    }
    with duckdb.connect(str(built.paths["rows"]), read_only=True, config=options) as connection:
        return connection.execute(sql).fetchall()


@pytest.mark.rule("engine-2")
def test_the_tables_are_those_of_the_specification(built: BuiltShard) -> None:
    tables = {name for (name,) in rows_of(built, "SELECT table_name FROM duckdb_tables()")}
    assert tables >= {"docs", "chunks", "entities", "edges", "doc_entities"}


def test_documents_and_chunks_are_rows(built: BuiltShard) -> None:
    assert rows_of(built, "SELECT doc, id, owner, title, url, text, metadata, content_hash FROM docs ORDER BY doc") == [
        (0, "notes/ä.md", "sync", "Äpfel", "https://x.example", "Äpfel und Birnen",
         json.dumps({"year": 2024, "tags": ["a", "b"]}), "ab" * 16),
        (1, "empty", "ingest", "", "", "", "{}", "cd" * 16),
        (2, "odd ?", "ingest", "", "", "nul \0, quote ', half ���", "{}", "ef" * 16),
    ]  # fmt: skip
    assert rows_of(built, "SELECT id, doc_id, number, start_at, end_at FROM chunks ORDER BY ALL") == [
        ("notes/ä.md#0", "notes/ä.md", 0, 0, 5),
        ("notes/ä.md#1", "notes/ä.md", 1, 10, 16),
        ("odd ?#0", "odd ?", 0, 0, 23),
    ]


@pytest.mark.rule("engine-2")
def test_the_graph_is_rows_with_the_columns_of_the_specification(built: BuiltShard) -> None:
    assert rows_of(built, "SELECT id, name FROM entities ORDER BY id") == [("Ada", "Ada"), ("Charles", "Charles")]
    assert rows_of(built, "SELECT src, dst, weight, rel_type, chunk_id FROM edges") == [
        ("Ada", "Charles", 2.0, "wrote to", "notes/ä.md#1")
    ]
    assert rows_of(built, "SELECT doc_id, entity_id, weight, chunk_id FROM doc_entities ORDER BY entity_id") == [
        ("notes/ä.md", "Ada", 1.0, "notes/ä.md#0"),
        ("notes/ä.md", "Charles", 0.5, "notes/ä.md#1"),
    ]
    assert open_rows(built.ref, built.paths["rows"]).graphs() == {0: GRAPH}


@pytest.mark.rule("engine-2")
def test_no_extension_is_installed_for_it(tmp_path: Path, built: BuiltShard) -> None:
    """DuckDB includes everything that is needed."""
    loaded = rows_of(built, "SELECT extension_name FROM duckdb_extensions() WHERE loaded AND install_path LIKE '/%'")
    assert loaded == []


def test_the_reference_says_what_was_built(built: BuiltShard) -> None:
    ref = built.ref
    assert (ref.rows, ref.documents, ref.graph_available, ref.live_documents) == (3, 3, True, 3)
    assert set(ref.files) == {"rows", "search", "ids", "keywords", "graph"}
    for role in ref.files:
        assert ref.files[role].sha256 == hash_file(built.paths[role])
        assert ref.files[role].size_bytes == built.paths[role].stat().st_size
    assert sorted(path.name for path in built.paths["rows"].parent.iterdir()) == [
        "shard-00000.duckdb",
        "shard-00000.graph",
        "shard-00000.ids",
        "shard-00000.keywords",
        "shard-00000.search",
    ]


def test_no_two_attempts_make_the_same_shard(tmp_path: Path, built: BuiltShard) -> None:
    other = build_shard(tmp_path / "other", "default", stored(), commit_id="commit-2", run="")
    assert other.ref.folder != built.ref.folder


def test_a_shard_is_small_when_little_is_in_it(built: BuiltShard) -> None:
    assert built.ref.size_bytes < 300_000


def test_what_queries_read_is_what_was_stored(built: BuiltShard) -> None:
    search = open_search(built.ref, built.paths["search"])
    assert [search.header(number).id for number in range(3)] == ["notes/ä.md", "empty", "odd \ud800"]
    assert search.text(2) == "nul \0, quote ', half \udfff"
    hit = search.hit(1, 0.0, search.header(0), 1.0)
    assert (hit.chunk_id, hit.text, hit.start, hit.end, hit.score) == ("notes/ä.md#1", "Birnen", 10, 16, 1.0)


def test_the_id_directory_finds_and_lists(built: BuiltShard) -> None:
    directory = open_ids(built.ref, built.paths["ids"])
    names = ["odd \ud800", "nobody", "empty", "notes/ä.md"]
    lines = directory.find(np.array([np.frombuffer(hash_id(name), "<u8") for name in names], "<u8"))
    assert lines[1] == -1
    assert [directory.read_line(int(line)).id for line in lines if line >= 0] == ["odd \ud800", "empty", "notes/ä.md"]
    assert [each.id for each in directory.after("")] == ["empty", "notes/ä.md", "odd \ud800"]
    assert [each.id for each in directory.after("empty")] == ["notes/ä.md", "odd \ud800"]
    assert [each.content_hash[:2] for each in directory.after("f")] == ["ab", "ef"]
    assert directory.numbers_of_owner("ingest").tolist() == [1, 2]
    assert directory.numbers_of_owner("nobody").tolist() == []


def test_an_empty_shard_can_be_built_and_read(tmp_path: Path) -> None:
    built = build_shard(tmp_path, "default", build_columns([], DIMENSION), commit_id="commit", run="")
    assert list(open_ids(built.ref, built.paths["ids"]).after("")) == []
    assert len(open_search(built.ref, built.paths["search"]).vectors) == 0


def test_graphs_of_documents_whose_ids_look_alike_in_utf8_stay_apart(tmp_path: Path) -> None:
    documents = [
        PreparedDocument(
            Header(name, "ingest", "", "", {}, "00" * 16), "text", (Chunk("text", 0, 4),),
            np.ones((1, DIMENSION), np.float32), GraphRows(((f"entity {number}", 1.0, 0),)),
        )
        for number, name in enumerate(["odd \ud800", "odd \ud801"])
    ]  # fmt: skip
    built = build_shard(tmp_path, "default", build_columns(documents, DIMENSION), commit_id="commit", run="")
    assert open_rows(built.ref, built.paths["rows"]).graphs() == {
        0: documents[0].graph,
        1: documents[1].graph,
    }
