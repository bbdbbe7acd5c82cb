"""Untrusted rows files: only tables of data are accepted."""

import contextlib
from pathlib import Path

import duckdb
import pytest

from pair.engine.format.columns import SCHEMA
from pair.engine.format.duckdb_io import open_database
from support.hostile_shards import change_rows, make_ground, read_manifest

CHANGES = {
    "a view": "ALTER TABLE docs RENAME TO hidden; CREATE VIEW docs AS SELECT * FROM hidden",
    "a view beside the tables": "CREATE VIEW more AS SELECT content FROM read_blob('/etc/hostname')",
    "a macro": "CREATE MACRO starts_with(a, b) AS (SELECT true FROM read_text('/etc/hostname'))",
    "a macro that is a table": "CREATE MACRO anything() AS TABLE SELECT * FROM glob('/*')",
    "an attached database": "ATTACH ':memory:' AS other; CREATE TABLE other.docs AS FROM docs; "
    "ALTER TABLE docs RENAME TO hidden; CREATE VIEW docs AS SELECT * FROM other.docs",
    "a generated column": "ALTER TABLE shard RENAME TO hidden; CREATE TABLE shard(commit_id VARCHAR, storage_version "
    "VARCHAR GENERATED ALWAYS AS (commit_id || 'x')); DROP TABLE hidden",
    "a default": "ALTER TABLE shard ALTER storage_version SET DEFAULT 'x'",
    "a constraint": "ALTER TABLE shard ALTER commit_id SET NOT NULL",
    "another type": "ALTER TABLE docs ALTER text TYPE BLOB USING encode(text)",
    "an enumeration": "CREATE TYPE kinds AS ENUM ('a')",
    "a sequence": "CREATE SEQUENCE numbers",
    "an index": "CREATE INDEX by_doc ON docs(doc)",
    "another schema": "CREATE SCHEMA more; CREATE TABLE more.docs(doc INTEGER)",
    "another table": "CREATE TABLE more(doc INTEGER)",
    "another column": "ALTER TABLE docs ADD COLUMN more INTEGER",
    "a column whose name looks like two": "ALTER TABLE shard RENAME TO hidden; CREATE TABLE shard("
    '"commit_id VARCHAR, storage_version" VARCHAR); DROP TABLE hidden',
    "a table less": "DROP TABLE entities",
}


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    ground = make_ground(tmp_path_factory.mktemp("rows"))
    [shard] = read_manifest(ground).shards
    return (ground.store / shard.key("rows")).read_bytes()


def opened(folder: Path, content: bytes) -> duckdb.DuckDBPyConnection:
    path = folder / "rows.duckdb"
    path.write_bytes(content)
    return open_database(path, SCHEMA)


def test_the_rows_of_a_shard_are_opened(tmp_path: Path, rows: bytes) -> None:
    with contextlib.closing(opened(tmp_path, rows)) as connection:
        assert connection.execute("SELECT count(*) FROM docs").fetchone() == (25,)


@pytest.mark.parametrize("statements", CHANGES.values(), ids=CHANGES)
def test_rows_with_anything_but_the_tables_of_a_shard_are_refused(tmp_path: Path, rows: bytes, statements: str) -> None:
    with pytest.raises(ValueError, match=r"it contains|its tables|the table"):
        opened(tmp_path, change_rows(rows, tmp_path, statements))


@pytest.mark.parametrize("place", [0, 8, 16, 40, 4096, 8192])
def test_rows_with_a_corrupted_header_are_refused(tmp_path: Path, rows: bytes, place: int) -> None:
    """Damage both headers, because DuckDB falls back to the second one."""
    changed = bytearray(rows)
    changed[place : place + 64] = b"\x5a" * 64
    if place >= 4096:
        changed[4096 : 4096 + 64] = changed[8192 : 8192 + 64] = b"\x5a" * 64
    with pytest.raises(ValueError):
        opened(tmp_path, bytes(changed)).execute("SELECT count(*) FROM docs")


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM read_text('{0}')",
        "SELECT * FROM read_blob('{0}')",
        "SELECT * FROM read_csv('{0}')",
        "SELECT * FROM glob('{0}*')",
        "SELECT * FROM sniff_csv('{0}')",
        "SELECT * FROM read_json('{0}')",
        "SELECT * FROM read_csv('http://127.0.0.1:9/x')",
        "COPY docs TO '{0}'",
        "EXPORT DATABASE '{0}'",
        "ATTACH '{0}' AS other",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET enable_external_access = true",
        "SET temp_directory = '{0}'",
        "SET memory_limit = '90GB'",
    ],
)
def test_a_connection_that_reads_rows_reaches_nothing_else(tmp_path: Path, rows: bytes, statement: str) -> None:
    secret = tmp_path / "secret"
    secret.write_text("a,b\n1,2\n")
    with contextlib.closing(opened(tmp_path, rows)) as connection, pytest.raises(duckdb.Error):
        connection.execute(statement.format(secret))
    assert secret.read_text() == "a,b\n1,2\n"
