"""Filters in plain Python, to compare masks with."""

import operator
from collections.abc import Callable, Mapping
from typing import Any

from pair.engine.filters import EXISTS, Check, Combination, Filter, Row, flatten_metadata

_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "gt": operator.gt,
    "gte": operator.ge,
    "lt": operator.lt,
    "lte": operator.le,
    "prefix": str.startswith,
    "substring": operator.contains,
    "substring_ignore_case": lambda text, wanted: wanted.casefold() in text.casefold(),
}


def matches(condition: Filter, metadata: Mapping[str, Any]) -> bool:
    """Return whether a document with this metadata meets a filter."""
    return _holds(condition, flatten_metadata(metadata))


def _holds(condition: Filter, rows: tuple[Row, ...]) -> bool:
    if isinstance(condition, Combination):
        parts = [_holds(part, rows) for part in condition.parts]
        return {"and": all(parts), "or": any(parts), "not": not all(parts)}[condition.operator]
    if condition.alternatives == EXISTS:
        return any(f"{key}.".startswith(f"{condition.key}.") for key, _, _ in rows)
    return any(
        key == condition.key and all(_passes(check, text, number) for check in checks)
        for key, text, number in rows
        for checks in condition.alternatives
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
