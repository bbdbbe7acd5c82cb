"""Metadata filters of LlamaIndex as filters of pair."""

from collections.abc import Callable, Mapping
from typing import Any

from llama_index.core.vector_stores.types import FilterCondition, FilterOperator, MetadataFilter, MetadataFilters

Condition = dict[str, Any]

_NAMES = {
    FilterOperator.EQ: "eq",
    FilterOperator.NE: "ne",
    FilterOperator.GT: "gt",
    FilterOperator.GTE: "gte",
    FilterOperator.LT: "lt",
    FilterOperator.LTE: "lte",
    FilterOperator.CONTAINS: "contains",
    FilterOperator.TEXT_MATCH: "substring",
    FilterOperator.TEXT_MATCH_INSENSITIVE: "substring_ignore_case",
}
_LISTS: Mapping[FilterOperator, tuple[str, bool]] = {
    FilterOperator.IN: ("in", False),
    FilterOperator.ANY: ("in", False),
    FilterOperator.ALL: ("contains", True),
    FilterOperator.NIN: ("not_in", True),
}
"""Operators with a list: their names, and whether an empty list matches every document."""
_COMBINATIONS: Mapping[FilterCondition, Callable[[list[Condition]], Condition]] = {
    FilterCondition.AND: lambda parts: {"$and": parts},
    FilterCondition.OR: lambda parts: {"$or": parts},
    FilterCondition.NOT: lambda parts: {"$not": {"$or": parts}},
}


def make_filter(filters: MetadataFilters | None) -> Condition | None:
    """Return the filter of pair. Raises ValueError for a value that does not fit its operator."""
    if filters is None or not filters.filters:
        return None
    parts = [
        _make_condition(each) if isinstance(each, MetadataFilter) else make_filter(each) for each in filters.filters
    ]
    kept = [part for part in parts if part]
    return _COMBINATIONS[filters.condition or FilterCondition.AND](kept) if kept else None


def _make_condition(given: MetadataFilter) -> Condition:
    key, value = given.key, given.value
    if given.operator == FilterOperator.IS_EMPTY:
        return {"$or": [{key: {"exists": False}}, {key: ""}]}
    if given.operator in _LISTS:
        name, matches_all = _LISTS[given.operator]
        if not isinstance(value, list):
            raise ValueError(f"the operator {given.operator.value} needs a list: {value!r}")
        # Every document has the key or lacks it, and none does both.
        both = [{key: {"exists": True}}, {key: {"exists": False}}]
        return {key: {name: value}} if value else {"$or" if matches_all else "$and": both}
    if value is None:
        if given.operator not in (FilterOperator.EQ, FilterOperator.NE):
            raise ValueError(f"the operator {given.operator.value} needs a value")
        return {key: {"exists": given.operator == FilterOperator.NE}}
    return {key: {_NAMES[given.operator]: value}}
