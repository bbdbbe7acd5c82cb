"""Filters in plain Python, to compare the database with."""

import operator
from collections.abc import Callable, Mapping
from typing import Any

from pair.engine.filters import Check, Filter, flatten_metadata

_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "gt": operator.gt,
    "gte": operator.ge,
    "lt": operator.lt,
    "lte": operator.le,
    "prefix": str.startswith,
}


def matches(condition: Filter, metadata: Mapping[str, Any]) -> bool:
    """Tell whether a document with this metadata meets all conditions of a filter."""
    rows = flatten_metadata(metadata)
    return all(
        any(
            key == one.key and all(_passes(check, text, number) for check in checks)
            for key, text, number in rows
            for checks in one.alternatives
        )
        for one in condition.conditions
    )


def _passes(check: Check, text: str | None, number: float | None) -> bool:
    if check.operator == "equals":
        return (text, number) == (check.text, check.number)
    compare = _COMPARISONS[check.operator]
    if check.number is not None:
        return number is not None and compare(number, check.number)
    if check.text is None or text is None or number is not None:
        return False
    return compare(text, check.text)
