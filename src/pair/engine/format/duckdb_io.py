"""DuckDB connections. DuckDB is imported when rows are first written or filtered, because most searches do not need it.

Invariants
    A rows file may be hostile. Nothing in it is executed, and it cannot reach other files.
"""

import contextlib
import errno
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pair import errors

if TYPE_CHECKING:
    import duckdb

_Config = dict[str, str | bool | int | float | list[str]]

_WRITING: _Config = {
    "threads": 1,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "allow_community_extensions": False,
    "python_enable_replacements": False,
    "lock_configuration": True,
}
"""Settings for writing our own files, which must be attached."""
_READING: _Config = {**_WRITING, "enable_external_access": False, "memory_limit": "1GB"}

_OTHER_ENTRIES = """
SELECT 'the view ' || view_name FROM duckdb_views() WHERE NOT internal
UNION ALL SELECT 'the macro ' || function_name FROM duckdb_functions() WHERE NOT internal
UNION ALL SELECT 'the sequence ' || sequence_name FROM duckdb_sequences()
UNION ALL SELECT 'the index ' || index_name FROM duckdb_indexes()
UNION ALL SELECT 'the type ' || type_name FROM duckdb_types() WHERE NOT internal
UNION ALL SELECT 'the schema ' || schema_name FROM duckdb_schemas() WHERE NOT internal AND schema_name <> 'main'
LIMIT 1
"""


def open_database(path: Path, tables: Mapping[str, str]) -> "duckdb.DuckDBPyConnection":
    """Open a file for reading. Raises FileNotFoundError; ValueError unless it has exactly these tables and columns."""
    import duckdb  # noqa: PLC0415 - see above

    try:
        connection = duckdb.connect(str(path), read_only=True, config=_READING)
        try:
            _check_tables(connection, tables)
        except BaseException:
            connection.close()
            raise
    except duckdb.Error as fault:
        if not path.exists():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path)) from fault
        raise ValueError(str(fault).partition("\n")[0]) from fault
    return connection


def _check_tables(connection: "duckdb.DuckDBPyConnection", tables: Mapping[str, str]) -> None:
    """Raise ValueError for other tables, and for columns with a different type, a default or a constraint."""
    if (entry := connection.execute(_OTHER_ENTRIES).fetchone()) is not None:
        raise ValueError(f"it contains more than tables: {entry[0]}")
    statements = connection.execute("SELECT table_name, sql FROM duckdb_tables()").fetchall()
    if sorted(name for name, _ in statements) != sorted(tables):
        raise ValueError("its tables are not those of a shard")
    for name, statement in statements:
        expected = (column.split() for column in tables[name].split(", "))
        columns = ", ".join(f"{_name_pattern(column)} {kind}" for column, kind in expected)
        if re.fullmatch(rf"CREATE TABLE {_name_pattern(name)}\({columns}\);", statement) is None:
            raise ValueError(f"the columns of the table {name} are not those of a shard")


def _name_pattern(name: str) -> str:
    """Return a pattern for a name with or without quotes, because DuckDB quotes SQL keywords."""
    return f'(?:{name}|"{name}")'


@contextlib.contextmanager
def query_errors(key: str) -> Iterator[None]:
    """Raise E207 for damage that a query finds. `key`: the key of the file."""
    import duckdb  # noqa: PLC0415 - see above

    try:
        yield
    except (duckdb.InterruptException, duckdb.ParserException, duckdb.BinderException):
        raise  # The query is wrong, not the file.
    except duckdb.Error as fault:
        reason = str(fault).partition("\n")[0]
        raise errors.stored_data_damaged(key, f"it cannot be read: {reason}") from fault


def open_memory() -> "duckdb.DuckDBPyConnection":
    import duckdb  # noqa: PLC0415 - see above

    return duckdb.connect(":memory:", config=_WRITING)


@contextlib.contextmanager
def file_errors(path: Path) -> Iterator[None]:
    """Raise OSError if DuckDB cannot write to the disk."""
    import duckdb  # noqa: PLC0415 - see above

    try:
        yield
    except duckdb.IOException as fault:
        number = errno.ENOSPC if os.strerror(errno.ENOSPC) in str(fault) else errno.EIO
        raise OSError(number, os.strerror(number), str(path)) from fault
