"""DuckDB, loaded with the first shard whose rows are written or asked: most searches never need it."""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import duckdb

_ONE_THREAD: dict[str, str | bool | int | float | list[str]] = {"threads": 1}


def open_rows(path: Path) -> "duckdb.DuckDBPyConnection":
    """For reading. Raises FileNotFoundError."""
    import duckdb  # noqa: PLC0415 - see above

    try:
        return duckdb.connect(str(path), read_only=True, config=_ONE_THREAD)
    except duckdb.IOException as fault:
        if not path.exists():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path)) from fault
        raise


def open_memory() -> "duckdb.DuckDBPyConnection":
    import duckdb  # noqa: PLC0415 - see above

    return duckdb.connect(":memory:", config=_ONE_THREAD)


@contextlib.contextmanager
def file_errors(path: Path) -> Iterator[None]:
    """What DuckDB says of a disk that is full or broken, as everybody else says it: OSError."""
    import duckdb  # noqa: PLC0415 - see above

    try:
        yield
    except duckdb.IOException as fault:
        number = errno.ENOSPC if os.strerror(errno.ENOSPC) in str(fault) else errno.EIO
        raise OSError(number, os.strerror(number), str(path)) from fault
