"""Filters of Haystack as filters of pair."""

import datetime
from collections.abc import Callable, Mapping
from typing import Any

from haystack.errors import FilterError

Condition = dict[str, Any]

_BOUNDS = {">": "gt", ">=": "gte", "<": "lt", "<=": "lte"}
_COMBINATIONS: Mapping[str, Callable[[list[Condition]], Condition]] = {
    "AND": lambda parts: {"$and": parts},
    "OR": lambda parts: {"$or": parts},
    "NOT": lambda parts: {"$not": {"$and": parts}},
}


def make_filter(filters: Mapping[str, Any] | None) -> Condition | None:
    """Return the filter of pair. Raises FilterError for a filter that Haystack does not define."""
    if not filters:
        return None
    if not isinstance(filters, Mapping):
        raise FilterError(f"a filter is a dictionary: {filters!r}")
    return _make_comparison(filters) if "field" in filters else _make_combination(filters)


def _make_combination(filters: Mapping[str, Any]) -> Condition:
    operator, conditions = _require(filters, "operator"), _require(filters, "conditions")
    if operator not in _COMBINATIONS:
        raise FilterError(f"unknown logical operator: {operator}")
    if not isinstance(conditions, list) or not conditions:
        raise FilterError(f"conditions are a list: {conditions!r}")
    return _COMBINATIONS[operator]([make_filter(condition) or {} for condition in conditions])


def _make_comparison(filters: Mapping[str, Any]) -> Condition:
    operator, value = _require(filters, "operator"), _require(filters, "value")
    key = str(filters["field"]).removeprefix("meta.")
    if operator in ("==", "!="):
        if value is None:
            return {key: {"exists": operator == "!="}}
        return {key: {"eq" if operator == "==" else "ne": value}}
    if operator in ("in", "not in"):
        if not isinstance(value, list):
            raise FilterError(f"the operator {operator} needs a list: {value!r}")
        return _make_list(key, operator, value)
    if operator not in _BOUNDS:
        raise FilterError(f"unknown operator: {operator}")
    if value is None:  # nothing is above or below nothing
        return {"$and": [{key: {"exists": True}}, {key: {"exists": False}}]}
    return {key: {_BOUNDS[operator]: _check_bound(operator, value)}}


def _make_list(key: str, operator: str, values: list[Any]) -> Condition:
    parts: list[Condition] = []
    if known := [value for value in values if value is not None]:
        parts.append({key: {"in": known}})
    if len(known) < len(values):
        parts.append({key: {"exists": False}})
    if not parts:
        parts = [{"$and": [{key: {"exists": True}}, {key: {"exists": False}}]}]
    listed: Condition = {"$or": parts}
    return listed if operator == "in" else {"$not": listed}


def _check_bound(operator: str, value: Any) -> Any:
    """Return a number or a date. Raises FilterError: other texts and lists have no order in Haystack."""
    if isinstance(value, int | float | datetime.date) and not isinstance(value, bool):
        return value
    if isinstance(value, str):
        try:
            datetime.datetime.fromisoformat(value)
        except ValueError as fault:
            raise FilterError(f"the operator {operator} compares numbers and ISO dates, not {value!r}") from fault
        return value
    raise FilterError(f"the operator {operator} compares numbers and ISO dates, not {value!r}")


def _require(filters: Mapping[str, Any], name: str) -> Any:
    if name not in filters:
        raise FilterError(f"the key {name!r} is missing in {dict(filters)!r}")
    return filters[name]
