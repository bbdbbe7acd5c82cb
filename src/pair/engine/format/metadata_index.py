"""The metadata of a shard's documents as arrays, and the masks of documents that meet a filter.

Each value is a row (document, text, number). The rows are ordered by key, so that a condition reads one slice. Texts
and keys are numbers in a list of names in the order of their UTF-8, so that a range of texts is a range of numbers.

Invariants
    A row with a text and a number is an integer beyond 2**53: its text has the digits.
"""

import bisect
import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pair import clock
from pair.engine.filters import EXISTS, Check, Condition, Filter, Row, StoredValue, count_values
from pair.engine.format.array_file import ArrayFile, Section, check_below, check_utf8
from pair.engine.format.columns import make_starts

Mask = npt.NDArray[np.bool_]

_VALUE_TYPE = np.dtype([("doc", "<u4"), ("text", "<u4"), ("number", "<f8")])
"""A row. `text` is 0 for no text, else the number of its name plus 1. `number` is NaN for no number."""
_REMEMBERED_FILTERS = 64
_MOST_REMEMBERED_VALUES = 100
"""Maximum number of values of a filter whose mask is cached. Caching longer filters costs too much memory."""


@dataclass(frozen=True, eq=False)
class MetadataIndex:
    documents: int
    names: bytes | memoryview
    name_starts: npt.NDArray[np.uint64]
    keys: npt.NDArray[np.uint32]
    """The names that are keys, ascending."""
    key_starts: npt.NDArray[np.uint32]
    """The first row of each key, and the end of the last."""
    values: npt.NDArray[Any]

    @staticmethod
    def build(rows: Sequence[Sequence[Row]]) -> "MetadataIndex":
        """Build the index of documents from their stored values, by number of the document."""
        keys, texts, numbers = zip(*itertools.chain.from_iterable(rows), strict=True) if any(rows) else ((), (), ())
        names = sorted({*keys, *texts} - {None})
        number_of: dict[str | None, int] = {None: -1, **dict(zip(names, itertools.count()))}
        key_of_row = np.fromiter(map(number_of.__getitem__, keys), np.uint32, len(keys))
        values = np.empty(len(keys), _VALUE_TYPE)
        values["doc"] = np.repeat(np.arange(len(rows)), [len(own) for own in rows])
        values["text"] = np.fromiter(map(number_of.__getitem__, texts), np.int64, len(keys)) + 1
        values["number"] = np.array(numbers, np.float64)  # None becomes NaN.
        distinct, counts = np.unique(key_of_row, return_counts=True)
        encoded = [name.encode() for name in names]
        return MetadataIndex(
            len(rows),
            b"".join(encoded),
            make_starts([len(name) for name in encoded]).astype(np.uint64),
            distinct,
            make_starts(counts).astype(np.uint32),
            values[np.argsort(key_of_row, kind="stable")],
        )

    def sections(self) -> dict[str, Section]:
        return {
            "metadata_names": [bytes(self.names)],
            "metadata_name_starts": self.name_starts,
            "metadata_keys": self.keys,
            "metadata_key_starts": self.key_starts,
            "metadata_values": self.values,
        }

    @staticmethod
    def read(pack: ArrayFile, documents: int) -> "MetadataIndex | None":
        """Read the sections; None if the file was written without them. Raises ValueError."""
        if "metadata_values" not in pack:
            return None
        names = pack.bytes("metadata_names")
        starts = pack.starts("metadata_name_starts", "<u8", keys=None, entries=len(names))
        count = len(starts) - 1
        check_utf8("metadata_names", names, starts)
        keys = pack.array("metadata_keys", "<u4", below=count)
        values = pack.array("metadata_values", _VALUE_TYPE)
        key_starts = pack.starts("metadata_key_starts", "<u4", keys=len(keys), entries=len(values))
        check_below("metadata_values", values["doc"], documents)
        check_below("metadata_values", values["text"], count + 1)
        return MetadataIndex(documents, names, starts, keys, key_starts, values)

    @functools.cached_property
    def _select_cached(self) -> "functools._lru_cache_wrapper[Mask]":
        return functools.lru_cache(maxsize=_REMEMBERED_FILTERS)(self._select)

    def select(self, condition: Filter) -> Mask:
        """Return a flag for each document: whether it meets the condition. Raises E609 after a cancellation."""
        is_short = count_values(condition) <= _MOST_REMEMBERED_VALUES
        return self._select_cached(condition) if is_short else self._select(condition)

    def _select(self, condition: Filter) -> Mask:
        clock.check_cancelled()
        if isinstance(condition, Condition):
            chosen = np.zeros(self.documents, np.bool_)
            ranges = [self._rows_of_key(condition.key)]
            if condition.alternatives == EXISTS:  # Keys below it count too.
                first, last = self._find_prefix(f"{condition.key}.".encode())
                ranges.append(tuple(self.key_starts[np.searchsorted(self.keys, [first, last])].tolist()))
            for begin, end in ranges:
                if begin < end:
                    rows = self.values[begin:end]
                    chosen[rows["doc"][self._pass(rows, condition)]] = True
            return chosen
        masks = [self._select(part) for part in condition.parts]
        if condition.operator == "not":
            return ~masks[0]
        combine = np.logical_and if condition.operator == "and" else np.logical_or
        return functools.reduce(combine, masks, np.full(self.documents, condition.operator == "and"))

    def count(self, key: str, chosen: Mask) -> dict[StoredValue, int]:
        """Return each distinct value of a key, with the number of chosen documents that have it."""
        rows = self.values[slice(*self._rows_of_key(key))]
        rows = rows[chosen[rows["doc"]]]
        # One number for each pair of text and number, then one for each document with that pair.
        _, numbers = np.unique(rows["number"].copy().view("<u8"), return_inverse=True)
        pairs = rows["text"].astype(np.int64) * (len(rows) + 1) + numbers
        _, firsts, which = np.unique(pairs, return_index=True, return_inverse=True)
        holders = np.unique(which * max(self.documents, 1) + rows["doc"])
        counts = np.bincount(holders // max(self.documents, 1), minlength=len(firsts))
        return {
            (
                str(self._name(text - 1), "utf-8") if text else None,
                None if np.isnan(number) else number,
            ): count
            for (_, text, number), count in zip(rows[firsts].tolist(), counts.tolist(), strict=True)
        }

    def _rows_of_key(self, key: str) -> tuple[int, int]:
        name = self._find_name(key.encode())
        place = int(np.searchsorted(self.keys, name)) if name >= 0 else len(self.keys)
        if place == len(self.keys) or self.keys[place] != name:
            return 0, 0
        return int(self.key_starts[place]), int(self.key_starts[place + 1])

    def _pass(self, rows: npt.NDArray[Any], condition: Condition) -> Mask:
        """Return a flag for each row: whether it passes all checks of one alternative."""
        texts, numbers = np.ascontiguousarray(rows["text"]), np.ascontiguousarray(rows["number"])
        has_number = ~np.isnan(numbers)
        passed = np.zeros(len(rows), np.bool_)
        equal: list[Check] = []
        for checks in condition.alternatives:
            if any(check.operator == "equals" for check in checks):  # It is the only check of its alternative.
                equal += checks
            else:
                masks = (self._compare(check, texts, numbers, has_number) for check in checks)
                passed |= functools.reduce(np.logical_and, masks, np.ones(len(rows), np.bool_))
        # The digits of a large integer determine its number.
        for is_large, flags in ((False, ~has_number), (True, has_number)):
            names = [check.text for check in equal if check.text is not None and (check.number is not None) == is_large]
            found = [self._find_name(name.encode()) + 1 for name in names]
            passed |= _is_any_of(texts, [number for number in found if number]) & flags
        plain = [check.number for check in equal if check.text is None]
        passed |= _is_any_of(numbers, plain) & (texts == 0)
        return passed

    def _compare(
        self, check: Check, texts: npt.NDArray[np.uint32], numbers: npt.NDArray[np.float64], has_number: Mask
    ) -> Mask:
        """Compare with a bound, a prefix or a substring: numbers with a number, texts with a text."""
        if check.number is not None:
            compare = {"gt": np.greater, "gte": np.greater_equal, "lt": np.less, "lte": np.less_equal}[check.operator]
            return compare(numbers, check.number)
        if check.operator in {"substring", "substring_ignore_case"}:
            return self._hold(check, texts, ~has_number)
        bound = (check.text or "").encode()
        first, end = 0, len(self.name_starts) - 1
        if check.operator == "prefix":
            first, end = self._find_prefix(bound)
        elif check.operator in {"gt", "gte"}:
            first = self._bisect(bound, is_after=check.operator == "gt")
        else:
            end = self._bisect(bound, is_after=check.operator == "lte")
        return (texts > first) & (texts <= end) & ~has_number

    def _hold(self, check: Check, texts: npt.NDArray[np.uint32], is_text: Mask) -> Mask:
        """Return a flag for each row: whether its text contains the substring. Each distinct text is read once."""
        distinct, which = np.unique(np.where(is_text, texts, 0), return_inverse=True)
        names = (str(self._name(number - 1), "utf-8") if number else None for number in distinct.tolist())
        fold = str.casefold if check.operator == "substring_ignore_case" else str
        wanted = fold(check.text or "")
        return np.array([name is not None and wanted in fold(name) for name in names], np.bool_)[which]

    # Names

    def _name(self, number: int) -> bytes:
        return bytes(self.names[int(self.name_starts[number]) : int(self.name_starts[number + 1])])

    def _bisect(self, name: bytes, *, is_after: bool = False, size: int | None = None) -> int:
        """Return the place of a name in the order. `size`: the number of bytes to compare."""
        find = bisect.bisect_right if is_after else bisect.bisect_left
        return find(range(len(self.name_starts) - 1), name, key=lambda number: self._name(number)[:size])

    def _find_prefix(self, prefix: bytes) -> tuple[int, int]:
        """Return the range of names with this prefix."""
        return self._bisect(prefix), self._bisect(prefix, is_after=True, size=len(prefix))

    def _find_name(self, name: bytes) -> int:
        """Return the number of a name; -1 for an unknown one."""
        place = self._bisect(name)
        return place if place < len(self.name_starts) - 1 and self._name(place) == name else -1


def _is_any_of(values: npt.NDArray[Any], wanted: Sequence[Any]) -> Mask:
    if len(wanted) < 2:  # This is much faster than `isin`.
        return np.equal(values, wanted[0]) if wanted else np.zeros(len(values), np.bool_)
    return np.isin(values, wanted)
