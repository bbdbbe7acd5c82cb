"""Filters of documents by metadata: their syntax, and the stored values.

Metadata is stored as rows (key, text, number), one for each value. A condition holds if one row has its key and passes
all checks of one alternative. A filter is a condition, or filters combined by `and`, `or` and `not`.

Invariants
    Integers beyond 2**53 are not exact as DOUBLE, so their rows also have the digits as text. Equality compares digits;
    ranges compare DOUBLE.
    A filter has at most MAX_CONDITIONS conditions, MAX_VALUES values and MAX_DEPTH levels.
    A filter is not access control: it only narrows a search.
"""

import datetime
import json
import math
import re
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Literal, cast, get_args

from pair import errors

Row = tuple[str, str | None, float | None]
StoredValue = tuple[str | None, float | None]
"""A stored value: a text, a number, or both for a large integer."""
Bound = Literal["gt", "gte", "lt", "lte"]
TextCheck = Literal["prefix", "substring", "substring_ignore_case"]
Operator = Literal["equals"] | TextCheck | Bound

_BOUNDS: Mapping[str, Bound] = {">": "gt", ">=": "gte", "<": "lt", "<=": "lte"}
_COMBINATIONS: Mapping[str, Literal["and", "or", "not"]] = {"$and": "and", "$or": "or", "$not": "not"}
_NAMES = "eq, ne, in, not_in, contains, exists, prefix, substring, substring_ignore_case, gt, gte, lt, lte"
_ASSIGNMENT = re.compile(r"(!?)([^=<>!][^=<>]*?)(!=|>=|<=|=|>|<)(.*)", re.DOTALL)
_EXISTENCE = re.compile(r"(!?)([^=<>!][^=<>]*)\?")
_NUMBER = re.compile(r"[+-]?(?:[0-9]{1,4000}(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")
_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]+")
MAX_CONDITIONS = 100
MAX_VALUES = 2_000
"""Maximum number of values of all conditions together."""
MAX_DEPTH = 12
"""Maximum nesting depth of filters."""
_NOTHING: StoredValue = None, None
_LARGEST_EXACT = 2**53
_LARGEST_SHOWN_BITS = 10_000
_MAX_SHOWN_CHARACTERS = 80


@dataclass(frozen=True, slots=True)
class Check:
    """A check of one stored value. Bounds, prefixes and substrings that are texts match only texts."""

    operator: Operator
    text: str | None
    number: float | None


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition that holds if one value of `key` passes all checks of one alternative.

    An alternative without checks holds if the key, or a key below it, has a value.
    """

    key: str
    alternatives: frozenset[frozenset[Check]]


@dataclass(frozen=True, slots=True)
class Combination:
    """A combination of filters: all must hold, one must hold, or the single one must not hold."""

    operator: Literal["and", "or", "not"]
    parts: frozenset["Filter"]


Filter = Condition | Combination
"""Filters that differ only in the order or repetition of their parts are equal."""
EXISTS: frozenset[frozenset[Check]] = frozenset([frozenset()])
"""The alternatives of a condition that holds for any value."""


def count_values(condition: Filter) -> int:
    """Count the values of all conditions."""
    if isinstance(condition, Combination):
        return sum(map(count_values, condition.parts))
    return sum(map(len, condition.alternatives))


def _count_conditions(condition: Filter) -> int:
    return sum(map(_count_conditions, condition.parts)) if isinstance(condition, Combination) else 1


# ── stored values ──────────────────────────────────────────────────────────────────────────────────


def flatten_metadata(metadata: Mapping[str, Any]) -> tuple[Row, ...]:
    """Return the rows (key, text, number) to store.

    Nested keys are joined by dots, and each element of a list is a row. True and false are strings. None and NaN have
    no row. A large integer has its digits as text, even if it is a float.
    """
    return tuple(_rows("", metadata))


def _rows(key: str, value: Any) -> Iterator[Row]:
    if isinstance(value, Mapping):
        for name, below in value.items():
            yield from _rows(f"{key}.{name}" if key else str(name), below)
    elif isinstance(value, list | tuple):
        for element in value:
            yield from _rows(key, element)
    elif isinstance(value, AbstractSet):
        # Sorted, because the order of a set differs between runs.
        yield from _rows(key, sorted(value, key=repr))
    elif value is not None and (stored := _to_value(value) or (_storable(str(value)), None)) != _NOTHING:
        yield _storable(key), *stored


def _to_value(value: Any) -> StoredValue | None:
    """Return the stored value; `_NOTHING` for NaN; None if it is not a text, number, boolean or date."""
    if isinstance(value, str):
        return _storable(value), None
    if isinstance(value, bool):
        return ("true" if value else "false"), None
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat(), None
    if isinstance(value, Integral):
        return _to_whole_value(int(value))
    if isinstance(value, Real):
        number = float(value)
        if math.isnan(number):
            return _NOTHING
        return _to_whole_value(int(number)) if number.is_integer() else (None, number)
    return None


def _to_whole_value(number: int) -> StoredValue:
    if abs(number) <= _LARGEST_EXACT:
        return None, float(number)
    # Python limits the length of decimal integers.
    digits = str(number) if number.bit_length() < _LARGEST_SHOWN_BITS else hex(number)
    try:
        return digits, float(number)
    except OverflowError:
        return digits, math.inf if number > 0 else -math.inf


def _storable(text: str) -> str:
    """Replace lone surrogates, which DuckDB cannot store."""
    return text if text.isascii() else text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


# ── Python and JSON syntax ─────────────────────────────────────────────────────────────────────────


def parse_filter(value: Mapping[str, Any]) -> Filter:
    """Parse conditions that must all hold, each on a key of the metadata.

    `{"year": 2024}`, `{"year": [2023, 2024]}`, `{"year": {"gte": 2020}}`, `{"$or": [{"lang": "de"}, {"year": 2024}]}`.
    Raises UsageError, E211.
    """
    return _check_size(_Parser().parse(value))


class _Parser:
    """A parser of one filter. It stops at the first condition beyond the limit: the input may be long."""

    def __init__(self) -> None:
        self._conditions = 0

    def parse(self, value: Any, depth: int = 1) -> Filter:
        if not isinstance(value, Mapping):
            raise _filter_error(value, "a filter must be a mapping of keys to values")
        if depth > MAX_DEPTH:
            raise _filter_error(value, f"filters can be nested at most {MAX_DEPTH} levels deep")
        # An empty filter counts too, so that the limit bounds the work.
        self._count(sum(key not in _COMBINATIONS for key in value) if value else 1)
        return _combine("and", [self._parse_item(key, wanted, depth) for key, wanted in value.items()])

    def _parse_item(self, key: Any, wanted: Any, depth: int) -> Filter:
        if key == "$not":
            return negate(self.parse(wanted, depth + 1))
        if key in _COMBINATIONS:
            if not isinstance(wanted, list | tuple) or not wanted:
                raise _filter_error({key: wanted}, f"{key} has a list of filters")
            return _combine(_COMBINATIONS[key], [self.parse(part, depth + 1) for part in wanted])
        if not isinstance(key, str) or not key:
            raise _filter_error({key: wanted}, "a key must be a non-empty string")
        return _parse_condition(key, wanted)

    def _count(self, more: int) -> None:
        self._conditions += more
        _check_counts(self._conditions, 0)


def _parse_condition(key: str, wanted: Any) -> Filter:
    """Parse a value, a list of alternative values, or operators that must all hold."""
    if not isinstance(wanted, Mapping):
        return _equal_to_any(key, wanted, {key: wanted})
    if not wanted:
        raise _filter_error({key: wanted}, f"it must have at least one of {_NAMES}")
    parts: list[Filter] = []
    checks: list[Check] = []
    for name, operand in wanted.items():
        # The filters of LangChain, Chroma and Pinecone write `$gte` and `$nin`.
        operator = name.removeprefix("$") if isinstance(name, str) else name
        if operator in get_args(Bound):
            checks.append(_parse_bound(cast("Bound", operator), operand, {key: wanted}))
        elif operator in get_args(TextCheck):
            if not isinstance(operand, str):
                raise _filter_error({key: wanted}, f"a {operator.partition('_')[0]} must be a string")
            checks.append(Check(cast("TextCheck", operator), _storable(operand), None))
        elif operator in _OPERATORS:
            parts.append(_OPERATORS[operator](key, operand, {key: wanted}))
        else:
            hint = f"; a value inside another has the key {key}.{name}" if isinstance(name, str) else ""
            raise _filter_error({key: wanted}, f"unknown operator: {_clip(_show(name))}{hint}")
    if checks:
        parts.append(_make_condition(key, [_check_kinds(checks, {key: wanted})]))
    return _combine("and", parts)


def _equal_to_any(key: str, wanted: Any, shown: Any) -> Filter:
    return _make_condition(key, [{_equal_to(value, shown)} for value in _list_values(wanted, shown)])


def _equal_to_all(key: str, wanted: Any, shown: Any) -> Filter:
    return _combine("and", [_equal_to_any(key, [value], shown) for value in _list_values(wanted, shown)])


def _equal_to_none(key: str, wanted: Any, shown: Any) -> Filter:
    return negate(_equal_to_any(key, wanted, shown))


def _list_values(wanted: Any, shown: Any) -> Sequence[Any] | AbstractSet[Any]:
    values = wanted if isinstance(wanted, list | tuple | AbstractSet) else [wanted]
    if not values:
        raise _filter_error(shown, "an empty list matches no value")
    _check_counts(0, len(values))
    return values


def _exist(key: str, wanted: Any, shown: Any) -> Filter:
    if not isinstance(wanted, bool):
        raise _filter_error(shown, f"exists must be true or false: {_clip(_show(wanted))}")
    condition = Condition(_storable(key), EXISTS)
    return condition if wanted else negate(condition)


_OPERATORS: Mapping[str, Callable[[str, Any, Any], Filter]] = {
    "eq": _equal_to_any,
    "in": _equal_to_any,
    "contains": _equal_to_all,
    "ne": _equal_to_none,
    "not_in": _equal_to_none,
    "nin": _equal_to_none,
    "exists": _exist,
}


def _equal_to(value: Any, shown: Any) -> Check:
    stored = _to_value(value)
    if stored is None or stored == _NOTHING:
        raise _filter_error(shown, f"a value must be a string, a number, true or false: {_clip(_show(value))}")
    return Check("equals", *stored)


def _parse_bound(operator: Bound, value: Any, shown: Any) -> Check:
    stored = None if isinstance(value, bool) else _to_value(value)
    if stored is None or stored == _NOTHING:
        raise _filter_error(shown, f"a bound must be a number or a string: {_clip(_show(value))}")
    text, number = stored
    return Check(operator, text if number is None else None, number)


def _check_kinds(checks: Sequence[Check], shown: Any) -> Sequence[Check]:
    if len({check.number is None for check in checks}) > 1:
        raise _filter_error(shown, "the bounds of a range must all be numbers or all be strings")
    return checks


# ── command-line syntax ────────────────────────────────────────────────────────────────────────────


def parse_assignments(assignments: Sequence[str]) -> Filter:
    """Parse conditions that must all hold. Several bounds of one key make one range.

    `lang=de`, `lang=de|en`, `status!=draft`, `path=docs/*`, `year>=2020`, `author?`, `!author?`, `{"$or": [...]}`.
    `year=2024` matches text and number, `year>=2020` numbers, `date>=2020-01-01` texts. Raises UsageError, E211.
    """
    _check_counts(len(assignments), sum(assignment.count("|") for assignment in assignments))
    parts: list[Filter] = []
    ranges: dict[str, list[Check]] = {}
    for assignment in assignments:
        if assignment.lstrip().startswith("{"):
            parts.append(_parse_json(assignment))
            continue
        is_negated, key, sign, value = _split_assignment(assignment)
        if sign in _BOUNDS:
            number = _read_number(value)
            check = _parse_bound(_BOUNDS[sign], value if number is None else number, assignment)
            if not is_negated:
                ranges.setdefault(key, []).append(check)
                continue
            condition = _make_condition(key, [{check}])
        elif sign == "?":
            condition = Condition(_storable(key), EXISTS)
        else:
            written = [_parse_value(text.strip(), assignment) for text in value.split("|")]
            condition = _make_condition(key, [{check} for checks in written for check in checks])
        parts.append(negate(condition) if is_negated != (sign == "!=") else condition)
    shown = " ".join(assignments)
    parts += [_make_condition(key, [_check_kinds(checks, shown)]) for key, checks in ranges.items()]
    return _check_size(_combine("and", parts))


def _parse_json(text: str) -> Filter:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as fault:
        raise _filter_error(text, f"it is not valid JSON: {fault}") from fault
    return _Parser().parse(value)


def _split_assignment(assignment: str) -> tuple[bool, str, str, str]:
    """Return whether the condition begins with `!`, its key, its operator, and the value."""
    if (match := _ASSIGNMENT.fullmatch(assignment.strip())) is not None:
        negation, key, sign, value = (part.strip() for part in match.groups())
    elif (match := _EXISTENCE.fullmatch(assignment.strip())) is not None:
        (negation, key), sign, value = (part.strip() for part in match.groups()), "?", "?"
    else:
        negation, key, sign, value = "", "", "", ""
    if not key:
        raise _filter_error(assignment, "it has no key, or none of = != >= <= > < ?")
    if not value:
        raise _filter_error(assignment, "the value is missing")
    return bool(negation), key, sign, value


def _parse_value(text: str, assignment: str) -> list[Check]:
    """Return the checks for one value between `|`: a prefix, or a text and, if it is one, a number."""
    if not text:
        raise _filter_error(assignment, "the value is missing")
    if text.endswith("*"):
        return [Check("prefix", _storable(text[:-1]), None)]
    number = _read_number(text)
    meant = [text] if number is None else [text, number]
    return [_equal_to(value, assignment) for value in meant]


def _read_number(text: str) -> int | float | None:
    if not _NUMBER.fullmatch(text):
        return None
    number = int(text) if _WHOLE_NUMBER.fullmatch(text) else float(text)
    return number if isinstance(number, int) or math.isfinite(number) else None


# ── shared ─────────────────────────────────────────────────────────────────────────────────────────


def negate(condition: Filter) -> Filter:
    if isinstance(condition, Combination) and condition.operator == "not":
        [positive] = condition.parts
        return positive
    return Combination("not", frozenset([condition]))


def _combine(operator: Literal["and", "or", "not"], parts: Iterable[Filter]) -> Filter:
    unique = frozenset(parts)
    return next(iter(unique)) if len(unique) == 1 else Combination(operator, unique)


def _make_condition(key: str, alternatives: Iterable[Iterable[Check]]) -> Condition:
    return Condition(_storable(key), frozenset(map(frozenset, alternatives)))


def _check_size(condition: Filter) -> Filter:
    _check_counts(_count_conditions(condition), count_values(condition))
    return condition


def _check_counts(conditions: int, values: int) -> None:
    """Raise E211 for too many conditions or values."""
    for count, most, things, hint in (
        (conditions, MAX_CONDITIONS, "conditions", "several values of one key are one condition"),
        (values, MAX_VALUES, "values", "the values of all conditions count together"),
    ):
        if count > most:
            raise errors.filter_invalid(f"with {count:,} {things}: at most {most:,} are allowed", hint)


def _filter_error(value: Any, reason: str) -> errors.UsageError:
    return errors.filter_invalid(_clip(value if isinstance(value, str) else _show(value)), reason)


def _show(value: Any) -> str:
    """Return the beginning of the representation of a value, even of a large or deep one."""
    shortened = reprlib.Repr()
    shortened.maxlevel = 10
    shortened.maxdict = shortened.maxlist = shortened.maxtuple = shortened.maxset = _MAX_SHOWN_CHARACTERS
    shortened.maxstring = shortened.maxother = 4 * _MAX_SHOWN_CHARACTERS
    try:
        return shortened.repr(value)
    except ValueError:  # an integer with too many digits
        return type(value).__name__


def _clip(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN_CHARACTERS else text[: _MAX_SHOWN_CHARACTERS - 1] + "…"
