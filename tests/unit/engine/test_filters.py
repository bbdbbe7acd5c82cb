"""Filters: their syntax, their matches, and refusals."""

import datetime
import json
import math
from typing import Any

import numpy as np
import pytest

from pair.engine.filters import MAX_CONDITIONS, MAX_DEPTH, Filter, flatten_metadata, parse_assignments, parse_filter
from pair.engine.format.metadata_index import MetadataIndex
from pair.errors import UsageError
from support.filters import matches

OPERATORS = "eq, ne, in, not_in, contains, exists, prefix, substring, substring_ignore_case, gt, gte, lt, lte"
LARGE = 2**53 + 1

DOCUMENTS: list[dict[str, Any]] = [
    {"year": 2024, "lang": "de", "path": "docs/a.md"},
    {"year": 2020.5, "lang": "en", "path": "wiki/b.md", "draft": True},
    {"year": "2024", "lang": ["de", "fr"], "draft": False},
    {"year": [2010, 2030], "author": {"name": "Ada", "born": 1815}},
    {"year": LARGE, "lang": "", "draft": None},
    {"year": LARGE - 1, "date": "2024-05-01"},
    {},
]


INDEX = MetadataIndex.build([flatten_metadata(metadata) for metadata in DOCUMENTS])


def found(chosen: Filter) -> list[int]:
    """Return the documents that the masks choose, after comparing them with plain Python."""
    docs: list[int] = np.flatnonzero(INDEX.select(chosen)).tolist()
    assert docs == [doc for doc, metadata in enumerate(DOCUMENTS) if matches(chosen, metadata)]
    return docs


@pytest.mark.parametrize(
    ("value", "docs"),
    [
        ({}, [0, 1, 2, 3, 4, 5, 6]),
        ({"year": 2024}, [0]),
        ({"year": 2024.0}, [0]),
        ({"year": "2024"}, [2]),
        ({"year": 2030}, [3]),
        ({"year": LARGE}, [4]),
        ({"year": LARGE - 1}, [5]),
        ({"year": float(2**53)}, [5]),
        ({"year": LARGE + 1}, []),
        ({"year": str(LARGE)}, []),
        ({"year": [2024, LARGE, "2024", 2020.5]}, [0, 1, 2, 4]),
        ({"lang": "de"}, [0, 2]),
        ({"lang": ["en", "fr"]}, [1, 2]),
        ({"lang": ""}, [4]),
        ({"draft": True}, [1]),
        ({"draft": "false"}, [2]),
        ({"author.name": "Ada"}, [3]),
        ({"author.born": {"lt": 1900}}, [3]),
        ({"year": {"gte": 2020.5, "lt": 2025}}, [0, 1]),
        ({"year": {"gt": 2010, "lt": 2030}}, [0, 1]),
        ({"year": {"gt": 2024}}, [3, 4, 5]),
        ({"year": {"gt": LARGE}}, []),
        ({"year": {"gte": LARGE}}, [4, 5]),
        ({"year": {"lte": -math.inf}}, []),
        ({"lang": {"gt": "de", "lte": "fr"}}, [1, 2]),
        ({"date": {"gte": "2024", "lt": "2025"}}, [5]),
        ({"date": datetime.date(2024, 5, 1)}, [5]),
        ({"path": {"prefix": "docs/"}}, [0]),
        ({"path": {"prefix": ""}}, [0, 1]),
        ({"path": {"prefix": "docs/", "gt": "docs/b"}}, []),
        ({"year": {"prefix": "20"}}, [2]),
        ({"path": {"substring": "ocs/"}}, [0]),
        ({"path": {"substring": "OCS/"}}, []),
        ({"path": {"substring_ignore_case": "OCS/"}}, [0]),
        ({"path": {"substring": ""}}, [0, 1]),
        ({"year": {"substring": "02"}}, [2]),
        ({"$not": {"path": {"substring": "ocs"}}, "path": {"exists": True}}, [1]),
        ({"year": 2024, "lang": "de"}, [0]),
        ({"year": 2024, "lang": "en"}, []),
        ({"nothing": 1}, []),
        ({"lang": {"ne": "de"}}, [1, 3, 4, 5, 6]),
        ({"lang": {"eq": "de"}}, [0, 2]),
        ({"year": {"ne": LARGE}}, [0, 1, 2, 3, 5, 6]),
        ({"lang": {"in": ["en", "fr"]}}, [1, 2]),
        ({"lang": {"not_in": ["en", "fr"]}}, [0, 3, 4, 5, 6]),
        ({"lang": {"$nin": ["en", "fr"]}, "year": {"$exists": True}}, [0, 3, 4, 5]),
        ({"year": {"gte": 2020, "ne": 2024}}, [1, 3, 4, 5]),
        ({"lang": {"contains": "fr"}}, [2]),
        ({"lang": {"contains": ["fr", "de"]}}, [2]),
        ({"lang": {"contains": ["fr", "en"]}}, []),
        ({"draft": {"exists": True}}, [1, 2]),
        ({"draft": {"exists": False}}, [0, 3, 4, 5, 6]),
        ({"author": {"exists": True}}, [3]),
        ({"auth": {"exists": True}}, []),
        ({"author.name": {"exists": False}, "lang": {"exists": False}}, [5, 6]),
        ({"$or": [{"lang": "en"}, {"year": LARGE}]}, [1, 4]),
        ({"$or": [{"lang": "en", "draft": False}, {"year": {"lt": 2011}}]}, [3]),
        ({"$and": [{"lang": "de"}, {"lang": "fr"}]}, [2]),
        ({"$not": {"lang": "de", "year": 2024}}, [1, 2, 3, 4, 5, 6]),
        ({"$not": {"$or": [{"lang": {"exists": True}}, {"date": {"exists": True}}]}}, [3, 6]),
        ({"$not": {"$not": {"lang": "de"}}, "year": "2024"}, [2]),
        ({"$not": {}}, []),
        ({"$or": [{"nothing": 1}, {}]}, [0, 1, 2, 3, 4, 5, 6]),
    ],
)
def test_a_filter_finds(value: dict[str, Any], docs: list[int]) -> None:
    assert found(parse_filter(value)) == docs


@pytest.mark.parametrize(
    ("assignments", "docs"),
    [
        ([], [0, 1, 2, 3, 4, 5, 6]),
        (["year=2024"], [0, 2]),
        (["year=2024.0"], [0]),
        (["year = 2024 "], [0, 2]),
        ([f"year={LARGE}"], [4]),
        (["year=2020.5|2030"], [1, 3]),
        (["lang=de|en"], [0, 1, 2]),
        (["draft=true"], [1]),
        (["draft=false"], [2]),
        (["path=docs/*"], [0]),
        (["path=docs/*|wiki/*"], [0, 1]),
        (["path=*"], [0, 1]),
        (["year>=2020.5", "year<2025"], [0, 1]),
        (["year>2010", "year<2030"], [0, 1]),
        (["year<=2010"], [3]),
        (["year<1e3"], []),
        (["date>=2024-01-01", "date<2025-01-01"], [5]),
        (["author.born=1815", "year>=2030"], [3]),
        (["year=2024", "lang=fr"], [2]),
        (["year=nan|inf|1e999|1_0|" + "9" * 5_000], []),
        (["lang!=de"], [1, 3, 4, 5, 6]),
        (["lang!=de|en"], [3, 4, 5, 6]),
        (["lang != de", "year?"], [1, 3, 4, 5]),
        (["path!=docs/*", "path?"], [1]),
        (["draft?"], [1, 2]),
        (["!draft?", "lang ?"], [0, 4]),
        (["!year>=2020", "year?"], [2]),
        (["!lang=de"], [1, 3, 4, 5, 6]),
        (["!lang!=de"], [0, 2]),
        (['{"$or": [{"lang": "en"}, {"year": {"lt": 2011}}]}', "draft?"], [1]),
        ([' {"lang": "de"}', "year=2024"], [0, 2]),
    ],
)
def test_a_filter_of_the_command_line_finds(assignments: list[str], docs: list[int]) -> None:
    assert found(parse_assignments(assignments)) == docs


def test_a_value_may_hold_the_signs_that_come_before_it() -> None:
    assert parse_assignments(["formula=a=b<c"]) == parse_filter({"formula": "a=b<c"})


def test_thousands_of_values_are_accepted() -> None:
    assert found(parse_filter({"year": [*range(2_000, 3_000), *map(str, range(2_000, 3_000))]})) == [0, 2, 3]


def test_filters_that_say_the_same_are_the_same_key() -> None:
    one = parse_filter({"year": [2024, 2023, 2024], "lang": "de", "size": {"gt": 1, "lt": 2}})
    two = parse_filter({"size": {"lt": 2.0, "gt": 1}, "lang": ["de"], "year": (2023.0, 2024)})
    assert one == two
    assert len({one, two, parse_filter({"lang": "de"})}) == 2


def test_combined_filters_that_say_the_same_are_the_same_key() -> None:
    one = parse_filter({"$or": [{"a": 1}, {"b": {"ne": 2}}, {"a": 1.0}]})
    assert one == parse_assignments(['{"$or": [{"$not": {"b": 2}}, {"a": {"eq": 1}}]}'])
    assert parse_filter({"$and": [{"a": 1}, {"$or": [{"b": 2}]}]}) == parse_filter({"b": 2, "a": [1]})


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ([("year", 2024)], "a filter must be a mapping of keys to values"),
        ({"": 1}, "a key must be a non-empty string"),
        ({1: 1}, "a key must be a non-empty string"),
        ({"year": None}, "a value must be a string, a number, true or false: None"),
        ({"year": math.nan}, "a value must be a string, a number, true or false: nan"),
        ({"year": [2024, [2023]]}, "a value must be a string, a number, true or false: [2023]"),
        ({"year": b"2024"}, "a value must be a string, a number, true or false: b'2024'"),
        ({"year": []}, "an empty list matches no value"),
        ({"year": {}}, f"it must have at least one of {OPERATORS}"),
        ({"author": {"name": "Ada"}}, "unknown operator: 'name'; a value inside another has the key author.name"),
        ({"year": {1: 2}}, "unknown operator: 1"),
        ({"year": {"gt": True}}, "a bound must be a number or a string: True"),
        ({"year": {"gt": None}}, "a bound must be a number or a string: None"),
        ({"year": {"gt": math.nan}}, "a bound must be a number or a string: nan"),
        ({"year": {"gt": [1]}}, "a bound must be a number or a string: [1]"),
        ({"year": {"gt": 1, "lt": "2"}}, "the bounds of a range must all be numbers or all be strings"),
        ({"year": {"gt": 1, "prefix": "2"}}, "the bounds of a range must all be numbers or all be strings"),
        ({"year": {"prefix": 2}}, "a prefix must be a string"),
        ({"year": {"substring_ignore_case": 2}}, "a substring must be a string"),
        ({"year": {"not_in": []}}, "an empty list matches no value"),
        ({"year": {"exists": 1}}, "exists must be true or false: 1"),
        ({"year": {"ne": None}}, "a value must be a string, a number, true or false: None"),
        ({"$or": []}, "$or has a list of filters"),
        ({"$and": {"a": 1}}, "$and has a list of filters"),
        ({"$not": [{"a": 1}]}, "a filter must be a mapping of keys to values"),
    ],
)
def test_a_bad_filter_is_refused(value: Any, reason: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse_filter(value)
    assert (raised.value.code, raised.value.details["reason"]) == ("E211", reason)
    wrong = value.get("$not", value) if isinstance(value, dict) else value
    assert raised.value.message == f"Cannot use the filter {wrong!r}."


@pytest.mark.parametrize(
    ("assignments", "reason"),
    [
        (["year"], "it has no key, or none of = != >= <= > < ?"),
        (["=2024"], "it has no key, or none of = != >= <= > < ?"),
        ([" =2024"], "it has no key, or none of = != >= <= > < ?"),
        ([""], "it has no key, or none of = != >= <= > < ?"),
        (["year="], "the value is missing"),
        (["year>="], "the value is missing"),
        (["lang=de|"], "the value is missing"),
        (["!=2024"], "it has no key, or none of = != >= <= > < ?"),
        (["year!="], "the value is missing"),
        (['{"year": 2024'], "it is not valid JSON: Expecting ',' delimiter: line 1 column 14 (char 13)"),
        (["year>2020", "year<x"], "the bounds of a range must all be numbers or all be strings"),
    ],
)
def test_a_bad_filter_of_the_command_line_is_refused(assignments: list[str], reason: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse_assignments(assignments)
    assert (raised.value.code, raised.value.details["reason"]) == ("E211", reason)
    assert raised.value.message == f"Cannot use the filter {' '.join(assignments)}."


def test_a_long_filter_is_cut_in_the_message() -> None:
    with pytest.raises(UsageError) as raised:
        parse_filter({"year": [["x" * 1_000]]})
    assert len(raised.value.message) < 120
    assert len(raised.value.explanation) < 140


# ── stored values ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        ("text", [("text", None)]),
        ("", [("", None)]),
        (True, [("true", None)]),
        (7, [(None, 7.0)]),
        (-0.0, [(None, 0.0)]),
        (2.5, [(None, 2.5)]),
        (np.int64(7), [(None, 7.0)]),
        (np.float32(0.5), [(None, 0.5)]),
        (2**53, [(None, 2.0**53)]),
        (-(2**53) - 1, [("-9007199254740993", -(2.0**53))]),
        (2.0**60, [("1152921504606846976", 2.0**60)]),
        (10**400, [("1" + "0" * 400, math.inf)]),
        (math.inf, [(None, math.inf)]),
        (math.nan, []),
        (None, []),
        ([], []),
        ([1, ["a", None], (2,)], [(None, 1.0), ("a", None), (None, 2.0)]),
        (frozenset("a"), [("a", None)]),
        (datetime.datetime(2024, 5, 1, 12, tzinfo=datetime.UTC), [("2024-05-01T12:00:00+00:00", None)]),
        (1j, [("1j", None)]),
        ("\ud800", [("\ufffd\ufffd\ufffd", None)]),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_a_value_is_stored_as(value: Any, stored: list[tuple[str | None, float | None]]) -> None:
    assert flatten_metadata({"key": value}) == tuple(("key", *row) for row in stored)
    assert all(math.copysign(1, number) == 1 for _, number in stored if number == 0)


def test_a_number_that_python_does_not_write_in_digits_is_stored_and_found() -> None:
    assert flatten_metadata({"key": -(2**20_000)}) == (("key", "-0x1" + "0" * 5_000, -math.inf),)
    assert matches(parse_filter({"key": -(2**20_000)}), {"key": -(2**20_000)})


def test_the_values_of_a_set_are_stored_in_one_order() -> None:
    assert flatten_metadata({"key": set("cab")}) == (("key", "a", None), ("key", "b", None), ("key", "c", None))


def test_keys_inside_keys_are_joined_by_dots() -> None:
    metadata = {"a": {"b": {"c": 1}, "d": [{"e": "x"}, {"e": "y"}]}, "f": {}, 7: "seven"}
    assert flatten_metadata(metadata) == (  # type: ignore[arg-type]
        ("a.b.c", None, 1.0),
        ("a.d.e", "x", None),
        ("a.d.e", "y", None),
        ("7", "seven", None),
    )


# ── limits ─────────────────────────────────────────────────────────────────────────────────────────


def test_as_many_conditions_as_are_allowed_are_accepted() -> None:
    conditions = {f"key-{number}": number for number in range(MAX_CONDITIONS)}
    assert found(parse_filter(conditions)) == []
    assert found(parse_filter({"$or": [{key: value} for key, value in conditions.items()]})) == []
    assert found(parse_assignments(["year>=2024", "lang=de|fr", "path=docs/*"])) == [0]


def test_a_long_list_of_odd_values_finds_what_each_of_them_finds() -> None:
    odd = ["", "a\x1fb", "de", math.inf, -0.0, 0.1 + 0.2, 2020.5, LARGE, LARGE - 1, True]
    padding = [f"no-{number}" for number in range(30)] + [number + 0.5 for number in range(30)]
    for key in ("year", "lang", "draft"):
        alone = {doc for value in odd for doc in found(parse_filter({key: value}))}
        assert set(found(parse_filter({key: [*odd, *padding]}))) == alone


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({f"key-{number}": 1 for number in range(101)}, "with 101 conditions: at most 100 are allowed"),
        ({"year": list(range(2_001))}, "with 2,001 values: at most 2,000 are allowed"),
        ({f"key-{number}": list(range(30)) for number in range(100)}, "with 3,000 values: at most 2,000 are allowed"),
    ],
)
def test_a_filter_beyond_the_limits_is_refused_with_the_number(value: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse_filter(value)
    assert (raised.value.code, raised.value.message) == ("E211", f"Cannot use the filter {message}.")


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {"a": 1}
    for _ in range(depth - 1):
        value = {"$or": [value, {"b": 1}]}
    return value


def test_a_filter_may_be_nested_but_not_too_deeply() -> None:
    assert found(parse_filter(nested(MAX_DEPTH))) == []
    for value in (nested(MAX_DEPTH + 1), nested(400)):
        for given in (value, [json.dumps(value)]):
            with pytest.raises(UsageError) as raised:
                parse_assignments(given) if isinstance(given, list) else parse_filter(given)
            assert raised.value.details["reason"] == "filters can be nested at most 12 levels deep"
    with pytest.raises(UsageError) as raised:
        parse_assignments(['{"$not":' * 100_000])
    assert raised.value.code == "E211"


def test_the_conditions_of_all_levels_count_together() -> None:
    many: list[dict[str, int]] = [{f"key-{number}": 1} for number in range(101)]
    for parts in (many, [dict[str, int]()] * 101):
        with pytest.raises(UsageError, match="with 101 conditions"):
            parse_filter({"$not": {"$or": parts}})


def test_too_many_assignments_and_alternatives_are_refused_too() -> None:
    for assignments in ([f"key-{number}=1" for number in range(101)], ["year=" + "|".join(map(str, range(1_500)))]):
        with pytest.raises(UsageError, match="are allowed"):
            parse_assignments(assignments)


def test_a_value_of_any_depth_and_size_is_refused_with_a_short_message() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    for value in (deep, [["x" * 100] * 1_000_000], [-(2**20_000), []]):
        with pytest.raises(UsageError) as raised:
            parse_filter({"year": [value]})
        assert len(raised.value.message) < 120
