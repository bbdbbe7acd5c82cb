"""Whatever the metadata and the filter: the database and plain Python choose the same documents."""

from collections.abc import Iterator
from typing import Any

import duckdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pair.engine.filters import Filter, flatten_metadata, parse_assignments, parse_filter
from support.filters import matches

KEYS = st.sampled_from(["a", "b", "a.b"])
TEXTS = st.sampled_from(["", "a", "ab", "b", "1", "true", "é", "数", "\U0001f600", "\uffff", "a\0b"]) | st.text(
    max_size=3
)
WHOLE = st.integers(-3, 3) | st.integers(2**53 - 2, 2**53 + 3) | st.integers(-(10**330), 10**330)
NUMBERS = WHOLE | st.floats(allow_nan=False) | st.sampled_from([0.5, -0.0, 2.0**53, 2.0**60, 1e300])
SCALARS = TEXTS | NUMBERS | st.booleans()
METADATA = st.dictionaries(
    KEYS,
    st.recursive(
        SCALARS | st.none(),
        lambda below: st.lists(below, max_size=3) | st.dictionaries(KEYS, below, max_size=2),
        max_leaves=5,
    ),
    max_size=3,
)


def ranges(bounds: st.SearchStrategy[Any], *names: str) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(st.sampled_from(names), bounds, min_size=1, max_size=3)


BOUNDS = ("gt", "gte", "lt", "lte")
WANTED = SCALARS | st.lists(SCALARS, min_size=1, max_size=4) | ranges(NUMBERS, *BOUNDS)
FILTERS = st.dictionaries(KEYS, WANTED | ranges(TEXTS, *BOUNDS, "prefix"), max_size=2).map(parse_filter)
ASSIGNMENTS = st.lists(
    st.sampled_from(
        ["a=1", "a=ab|1|true", "b=a*", "a>=1", "a<3", "b=9007199254740993", "a.b<=2", "a=1.0|b*", "b>0.25"]
    ),
    max_size=3,
).map(parse_assignments)


@pytest.fixture(scope="module")
def database() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE doc_metadata (doc INTEGER, key VARCHAR, text VARCHAR, number DOUBLE)")
        yield connection


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(METADATA, min_size=1, max_size=4), FILTERS | ASSIGNMENTS)
def test_the_database_and_plain_python_agree(
    database: duckdb.DuckDBPyConnection, documents: list[dict[str, Any]], chosen: Filter
) -> None:
    rows = [(doc, *row) for doc, metadata in enumerate(documents) for row in flatten_metadata(metadata)]
    database.execute("DELETE FROM doc_metadata")
    if rows:
        database.executemany("INSERT INTO doc_metadata VALUES (?, ?, ?, ?)", rows)
    sql, parameters = chosen.to_sql()
    query = f"SELECT doc FROM range({len(documents)}) AS docs(doc) WHERE {sql} ORDER BY doc"
    docs = [doc for (doc,) in database.execute(query, parameters).fetchall()]
    assert docs == [doc for doc, metadata in enumerate(documents) if matches(chosen, metadata)]


@given(KEYS, SCALARS, SCALARS)
def test_equal_is_what_python_calls_equal(key: str, stored: Any, wanted: Any) -> None:
    """But for true and false, which are the texts of these names."""
    left, right = (str(value).lower() if isinstance(value, bool) else value for value in (stored, wanted))
    assert matches(parse_filter({key: wanted}), {key: stored}) == (left == right)


@given(KEYS, SCALARS)
def test_a_document_is_found_by_each_of_its_values(key: str, value: Any) -> None:
    assert matches(parse_filter({key: value}), {key: ["other", [value]]})
    assert matches(parse_filter({f"in.{key}": [value, "another"]}), {"in": {key: value}})


@given(FILTERS)
def test_a_filter_can_be_a_key(chosen: Filter) -> None:
    assert {chosen: 1}[Filter(chosen.conditions)] == 1
