"""DuckDB connections, loaded when rows are first written or filtered: most searches never need them.

Invariants
    A rows file may be hostile. It is data: nothing in it is executed, and it reaches no other file.
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
"""For our own files, which have to be attached."""
_READING: _Config = {**_WRITING, "enable_external_access": False, "memory_limit": "1GB"}

Tables = Mapping[str, Mapping[str, str]]
"""The type of each column of each table."""

_OTHER_ENTRIES = """
SELECT 'the view ' || view_name FROM duckdb_views() WHERE NOT internal
UNION ALL SELECT 'the macro ' || function_name FROM duckdb_functions() WHERE NOT internal
UNION ALL SELECT 'the sequence ' || sequence_name FROM duckdb_sequences()
UNION ALL SELECT 'the index ' || index_name FROM duckdb_indexes()
UNION ALL SELECT 'the type ' || type_name FROM duckdb_types() WHERE NOT internal
UNION ALL SELECT 'the schema ' || schema_name FROM duckdb_schemas() WHERE NOT internal AND schema_name <> 'main'
LIMIT 1
"""


def open_database(path: Path, tables: Tables) -> "duckdb.DuckDBPyConnection":
    """Open a file for reading. Raises FileNotFoundError; ValueError for one that holds anything but these tables."""
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
        raise ValueError(_first_line(fault)) from fault
    return connection


def _check_tables(connection: "duckdb.DuckDBPyConnection", tables: Tables) -> None:
    """Refuse other tables. A column that is computed, or has a default, a constraint or another type, differs."""
    if (entry := connection.execute(_OTHER_ENTRIES).fetchone()) is not None:
        raise ValueError(f"it holds more than tables: {entry[0]}")
    statements = connection.execute("SELECT table_name, sql FROM duckdb_tables()").fetchall()
    if sorted(name for name, _ in statements) != sorted(tables):
        raise ValueError("it holds other tables than those of a shard")
    for name, statement in statements:
        columns = ", ".join(f"{_name_pattern(column)} {kind}" for column, kind in tables[name].items())
        if re.fullmatch(rf"CREATE TABLE {_name_pattern(name)}\({columns}\);", statement) is None:
            raise ValueError(f"the table {name} has other columns than that of a shard")


def _name_pattern(name: str) -> str:
    """Match a name with or without quotes: DuckDB quotes names that are words of SQL."""
    return f'(?:{name}|"{name}")'


@contextlib.contextmanager
def query_errors(key: str) -> Iterator[None]:
    """Raise E207 for rows that turn out damaged while they are read. `key`: of their file."""
    import duckdb  # noqa: PLC0415 - see above

    try:
        yield
    except (duckdb.InterruptException, duckdb.ParserException, duckdb.BinderException):
        raise  # a fault of the query
    except duckdb.Error as fault:
        raise errors.stored_data_damaged(key, f"it cannot be read: {_first_line(fault)}") from fault


def _first_line(fault: Exception) -> str:
    return str(fault).partition("\n")[0]


def open_memory() -> "duckdb.DuckDBPyConnection":
    import duckdb  # noqa: PLC0415 - see above

    return duckdb.connect(":memory:", config=_WRITING)


@contextlib.contextmanager
def file_errors(path: Path) -> Iterator[None]:
    """Raise OSError for a disk that DuckDB finds full or broken."""
    import duckdb  # noqa: PLC0415 - see above

    try:
        yield
    except duckdb.IOException as fault:
        number = errno.ENOSPC if os.strerror(errno.ENOSPC) in str(fault) else errno.EIO
        raise OSError(number, os.strerror(number), str(path)) from fault
