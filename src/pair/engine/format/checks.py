"""Checks of what a stored file holds: bounded JSON, array sections, and one error for all damage."""

import contextlib
import json
import re
import struct
from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from pair import errors

_Value = TypeVar("_Value")

MOST_VALUES = 2_000_000
"""In one text. An empty list takes 3 bytes of JSON and 64 of memory, so the length of a text is no bound."""
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"?', re.DOTALL)


def load_json(content: bytes | memoryview) -> Any:
    """Parse UTF-8 text, with lone surrogates. Raises ValueError, also for values that are too many or too deep."""
    _refuse_many_values(content)
    try:
        return json.loads(str(content, "utf-8", "surrogatepass"))
    except RecursionError as fault:
        raise ValueError("its values are nested too deeply") from fault


def decode_json(content: bytes | msgspec.Raw, kind: type[_Value]) -> _Value:
    """Parse UTF-8 text into values of this kind. Raises ValueError, also for values that are too many or too deep."""
    _refuse_many_values(memoryview(content))
    try:
        return msgspec.json.decode(content, type=kind)
    except RecursionError as fault:
        raise ValueError("its values are nested too deeply") from fault


def _refuse_many_values(content: bytes | memoryview) -> None:
    if len(content) > MOST_VALUES:
        content = bytes(content)
        if _count_values(content) > MOST_VALUES and _count_values(_STRING.sub(b"", content)) > MOST_VALUES:
            raise ValueError(f"it holds more than {MOST_VALUES:,} values")


def _count_values(content: bytes) -> int:
    """Count what begins a value; commas and brackets inside strings count too."""
    return content.count(b",") + content.count(b"[") + content.count(b"{")


@contextlib.contextmanager
def damage_errors(key: str) -> Iterator[None]:
    """Raise E207 for every error that a damaged file causes in its reader. `key`: of the file."""
    try:
        yield
    except errors.PairError:
        raise
    except (ValueError, LookupError, TypeError, ArithmeticError, RuntimeError, struct.error) as fault:
        raise make_damage_error(key, fault) from fault


def make_damage_error(key: str, fault: Exception) -> errors.DataError:
    """Return E207, for code in which `damage_errors` takes too long."""
    return errors.stored_data_damaged(key, f"it cannot be read: {fault}")


def check_length(name: str, values: npt.NDArray[Any], length: int) -> None:
    if len(values) != length:
        raise ValueError(f"the section {name} has another length than those beside it")


def check_below(name: str, values: npt.NDArray[Any], limit: int) -> None:
    """Refuse unsigned numbers that are no index of a list of this length."""
    if len(values) and int(values.max()) >= limit:
        raise ValueError(f"the section {name} names what is not there")


def check_starts(name: str, starts: npt.NDArray[Any], keys: int, entries: int) -> None:
    """Refuse an array that does not tell where the entries of each key begin, and where the last ones end."""
    check_length(name, starts, keys + 1)
    if int(starts[0]) != 0 or int(starts[-1]) != entries or bool((starts[1:] < starts[:-1]).any()):
        raise ValueError(f"the section {name} is not in order")


def check_utf8(name: str, content: memoryview, cuts: npt.NDArray[Any]) -> None:
    """Refuse bytes that are not text, or are cut within a character."""
    str(content, "utf-8", "surrogatepass")
    inner = cuts[cuts < len(content)]
    if bool((np.frombuffer(content, np.uint8)[inner] & 0xC0 == 0x80).any()):
        raise ValueError(f"the section {name} is cut within a character")
