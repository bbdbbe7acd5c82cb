"""Filters of documents by their metadata: how they are written, how values are stored, and their SQL.

A document is stored as rows (key, text, number), one for each value in its metadata. A condition holds if one row has
its key and passes all checks of one alternative; a filter, if all its conditions hold.

Invariants
    Whole numbers beyond 2**53 are not exact as DOUBLE, so their rows have their digits as text beside the number: equal
    means equal digits, and no number without them equals one with them. Ranges compare them as DOUBLE all the same.
    A filter has at most MAX_CONDITIONS conditions and MAX_VALUES values, and is one pass over the rows of a shard.
Not here
    Who may see what: a filter narrows a search and protects nothing.
"""

import datetime
import math
import re
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Literal

from pair import errors

Row = tuple[str, str | None, float | None]
_Value = tuple[str | None, float | None]
"""A value as it is stored: a text, a number, or a large whole number as both."""
Operator = Literal["equals", "gt", "gte", "lt", "lte", "prefix"]

_SIGNS: Mapping[Operator, str] = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}
_OPERATORS: Mapping[str, Operator] = dict(zip(_SIGNS.values(), _SIGNS, strict=True))
_ASSIGNMENT = re.compile(r"([^=<>]+)(>=|<=|=|>|<)(.*)", re.DOTALL)
_NUMBER = re.compile(r"[+-]?(?:[0-9]{1,4000}(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")
_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]+")
MAX_CONDITIONS = 100
MAX_VALUES = 2_000
"""Of all conditions together."""
_MEETING_ALL = "doc IN (SELECT doc FROM doc_metadata GROUP BY doc HAVING {})"
_FEW_VALUES = 3
_SEPARATOR = "\x1f"
_ANY_TEXT = "number IS NULL AND list_contains(string_split(?, chr(31)), text)"
_ANY_NUMBER = "text IS NULL AND list_contains(string_split(?, chr(31))::DOUBLE[], number)"
_NOTHING: _Value = None, None
_LARGEST_EXACT = 2**53
_LARGEST_SHOWN_BITS = 10_000
_MAX_SHOWN_CHARACTERS = 80


@dataclass(frozen=True, slots=True)
class Check:
    """A check of one stored value. Bounds and prefixes of texts pass no number, and the other way round."""

    operator: Operator
    text: str | None
    number: float | None

    def to_sql(self) -> tuple[str, list[Any]]:
        if self.operator == "equals":
            parts = [("text", self.text), ("number", self.number)]
            words = [f"{column} IS NULL" if value is None else f"{column} = ?" for column, value in parts]
            return " AND ".join(words), [value for _, value in parts if value is not None]
        if self.operator == "prefix":
            return "number IS NULL AND starts_with(text, ?)", [self.text]
        if self.number is not None:
            return f"number {_SIGNS[self.operator]} ?", [self.number]
        return f"number IS NULL AND text {_SIGNS[self.operator]} ?", [self.text]


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition that holds if one value of `key` passes all checks of one alternative."""

    key: str
    alternatives: tuple[tuple[Check, ...], ...]

    def to_sql(self) -> tuple[str, list[Any]]:
        """Return an aggregate over the rows of one document, with its parameters."""
        equal = [checks[0] for checks in self.alternatives if len(checks) == 1 and checks[0].operator == "equals"]
        texts = {check: check.text for check in equal if check.text is not None and check.number is None}
        texts = {check: text for check, text in texts.items() if _SEPARATOR not in text}
        numbers = {check: repr(check.number) for check in equal if check.text is None}
        words: list[str] = []
        parameters: list[Any] = []
        listed: set[Check] = set()
        # DuckDB takes a tenth of a millisecond for each parameter or element of one, so many values are one text. With
        # `= ANY` each list would become a join.
        for sql, values in ((_ANY_TEXT, texts), (_ANY_NUMBER, numbers)):
            if len(values) > _FEW_VALUES:
                words.append(sql)
                parameters.append(_SEPARATOR.join(values.values()))
                listed.update(values)
        for checks in self.alternatives:
            if listed.isdisjoint(checks):
                parts = [check.to_sql() for check in checks]
                words.append(" AND ".join(sql for sql, _ in parts))
                parameters += [parameter for _, some in parts for parameter in some]
        any_of = " OR ".join(f"({word})" for word in words)
        return f"bool_or(CASE WHEN key = ? THEN {any_of} END)", [self.key, *parameters]


@dataclass(frozen=True, slots=True)
class Filter:
    """All conditions must hold. The same conditions make the same filter, in whatever order they were given."""

    conditions: tuple[Condition, ...] = ()

    @property
    def values(self) -> int:
        """Count the values of all conditions."""
        return sum(len(checks) for condition in self.conditions for checks in condition.alternatives)

    def to_sql(self) -> tuple[str, list[Any]]:
        """Return an expression about `doc`, with its parameters, for `doc_metadata(doc, key, text, number)`."""
        if not self.conditions:
            return "TRUE", []
        parts = [condition.to_sql() for condition in self.conditions]
        all_of = " AND ".join(sql for sql, _ in parts)
        return _MEETING_ALL.format(all_of), [value for _, values in parts for value in values]


# ── stored values ──────────────────────────────────────────────────────────────────────────────────


def flatten_metadata(metadata: Mapping[str, Any]) -> tuple[Row, ...]:
    """Return the rows (key, text, number) that are stored.

    Keys of mappings inside mappings are joined by dots, and each element of a list is a row. True and false are texts.
    None and NaN have no row. A large whole number has its digits as text, also where it was given as a float.
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
        # The order of a set differs from run to run.
        yield from _rows(key, sorted(value, key=repr))
    elif value is not None and (stored := _to_value(value) or (_storable(str(value)), None)) != _NOTHING:
        yield _storable(key), *stored


def _to_value(value: Any) -> _Value | None:
    """Return `_NOTHING` for NaN, and None for a value that is neither text, number, truth nor date."""
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


def _to_whole_value(number: int) -> _Value:
    if abs(number) <= _LARGEST_EXACT:
        return None, float(number)
    # Python writes no decimal digits beyond some thousand.
    digits = str(number) if number.bit_length() < _LARGEST_SHOWN_BITS else hex(number)
    try:
        return digits, float(number)
    except OverflowError:
        return digits, math.inf if number > 0 else -math.inf


def _storable(text: str) -> str:
    """Replace halves of surrogate pairs, which UTF-8, and so DuckDB, cannot store."""
    return text if text.isascii() else text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


# ── as it is written in Python and JSON ────────────────────────────────────────────────────────────


def parse_filter(value: Mapping[str, Any]) -> Filter:
    """Parse `{"year": 2024}`, `{"year": [2023, 2024]}`, `{"year": {"gte": 2020}}`, `{"path": {"prefix": "docs/"}}`.

    Raises UsageError, E211.
    """
    if not isinstance(value, Mapping):
        raise _filter_error(value, "a filter is a mapping of keys to values")
    _check_counts(len(value), 0)
    return _make_filter(_condition(key, wanted) for key, wanted in value.items())


def _condition(key: Any, wanted: Any) -> Condition:
    if not isinstance(key, str) or not key:
        raise _filter_error({key: wanted}, "a key is a text that is not empty")
    shown = {key: wanted}
    if isinstance(wanted, Mapping):
        return Condition(_storable(key), (_checks(key, wanted),))
    values = wanted if isinstance(wanted, list | tuple | AbstractSet) else [wanted]
    if not values:
        raise _filter_error(shown, "no value is in an empty list")
    _check_counts(0, len(values))
    return _make_condition(key, [(_equal_to(value, shown),) for value in values])


def _equal_to(value: Any, shown: Any) -> Check:
    stored = _to_value(value)
    if stored is None or stored == _NOTHING:
        raise _filter_error(shown, f"a value is a text, a number, true or false: {_clip(_show(value))}")
    return Check("equals", *stored)


def _checks(key: str, wanted: Mapping[Any, Any]) -> tuple[Check, ...]:
    """Parse a range or a prefix."""
    if not wanted:
        raise _filter_error({key: wanted}, "a range has at least one of gt, gte, lt, lte, prefix")
    checks: list[Check] = []
    for name, bound in wanted.items():
        if name == "prefix" and isinstance(bound, str):
            checks.append(Check("prefix", _storable(bound), None))
        elif name == "prefix":
            raise _filter_error({key: wanted}, "a prefix is a text")
        elif name in _SIGNS:
            checks.append(_bound(name, bound, {key: wanted}))
        else:
            hint = f"; a value inside another has the key {key}.{name}" if isinstance(name, str) else ""
            raise _filter_error({key: wanted}, f"unknown operator: {_clip(_show(name))}{hint}")
    return _check_kinds(checks, {key: wanted})


def _bound(operator: Operator, value: Any, shown: Any) -> Check:
    stored = None if isinstance(value, bool) else _to_value(value)
    if stored is None or stored == _NOTHING:
        raise _filter_error(shown, f"a bound is a number or a text: {_clip(_show(value))}")
    text, number = stored
    return Check(operator, text if number is None else None, number)


def _check_kinds(checks: Sequence[Check], shown: Any) -> tuple[Check, ...]:
    if len({check.number is None for check in checks}) > 1:
        raise _filter_error(shown, "the bounds of a range are all numbers or all texts")
    return tuple(sorted(set(checks), key=repr))


# ── as it is written on the command line ───────────────────────────────────────────────────────────


def parse_assignments(assignments: Sequence[str]) -> Filter:
    """Parse `lang=de`, `lang=de|en`, `path=docs/*`, `year>=2020` and the like. Bounds of one key make one range.

    `year=2024` is the text and the number; `year>=2020` is about numbers, `date>=2020-01-01` about texts.
    Raises UsageError, E211.
    """
    _check_counts(len(assignments), sum(assignment.count("|") for assignment in assignments))
    conditions: list[Condition] = []
    ranges: dict[str, list[Check]] = {}
    for assignment in assignments:
        match = _ASSIGNMENT.fullmatch(assignment)
        key, sign, value = (part.strip() for part in match.groups()) if match else ("", "", "")
        if not key:
            raise _filter_error(assignment, "it has no key, or none of = >= <= > <")
        if sign == "=":
            written = [_parse_value(text.strip(), assignment) for text in value.split("|")]
            conditions.append(_make_condition(key, [alternative for some in written for alternative in some]))
        elif value:
            bound = _read_number(value)
            ranges.setdefault(key, []).append(
                _bound(_OPERATORS[sign], value if bound is None else bound, assignment),
            )
        else:
            raise _filter_error(assignment, "the value is missing")
    shown = " ".join(assignments)
    conditions += [Condition(_storable(key), (_check_kinds(checks, shown),)) for key, checks in ranges.items()]
    return _make_filter(conditions)


def _parse_value(text: str, assignment: str) -> list[tuple[Check, ...]]:
    """Return what a value between `|` may mean: the beginning of a text, or a text, or a number."""
    if not text:
        raise _filter_error(assignment, "the value is missing")
    if text.endswith("*"):
        return [(Check("prefix", _storable(text[:-1]), None),)]
    number = _read_number(text)
    meant = [text] if number is None else [text, number]
    return [(_equal_to(value, assignment),) for value in meant]


def _read_number(text: str) -> int | float | None:
    if not _NUMBER.fullmatch(text):
        return None
    number = int(text) if _WHOLE_NUMBER.fullmatch(text) else float(text)
    return number if isinstance(number, int) or math.isfinite(number) else None


# ── both ───────────────────────────────────────────────────────────────────────────────────────────


def _make_condition(key: str, alternatives: Sequence[tuple[Check, ...]]) -> Condition:
    return Condition(_storable(key), tuple(sorted(set(alternatives), key=repr)))


def _make_filter(conditions: Iterator[Condition] | Sequence[Condition]) -> Filter:
    made = Filter(tuple(sorted(set(conditions), key=repr)))
    _check_counts(len(made.conditions), made.values)
    return made


def _check_counts(conditions: int, values: int) -> None:
    """Raises E211."""
    if conditions > MAX_CONDITIONS:
        raise errors.filter_invalid(
            f"it has {conditions:,} conditions, and at most {MAX_CONDITIONS} are allowed",
            "several values of one key are one condition",
        )
    if values > MAX_VALUES:
        raise errors.filter_invalid(
            f"it has {values:,} values, and at most {MAX_VALUES:,} are allowed",
            "the values of all conditions count together",
        )


def _filter_error(value: Any, reason: str) -> errors.UsageError:
    return errors.filter_invalid(_clip(value if isinstance(value, str) else _show(value)), reason)


def _show(value: Any) -> str:
    """Show the beginning of a value, however large or deep it is."""
    shortened = reprlib.Repr()
    shortened.maxlevel = 10
    shortened.maxdict = shortened.maxlist = shortened.maxtuple = shortened.maxset = _MAX_SHOWN_CHARACTERS
    shortened.maxstring = shortened.maxother = 4 * _MAX_SHOWN_CHARACTERS
    try:
        return shortened.repr(value)
    except ValueError:  # an integer with more digits than Python writes
        return type(value).__name__


def _clip(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN_CHARACTERS else text[: _MAX_SHOWN_CHARACTERS - 1] + "…"
