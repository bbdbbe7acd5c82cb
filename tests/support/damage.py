"""Generators of damaged JSON, as disks, editors and attackers make it; and limits for the code that reads it."""

import contextlib
import copy
import json
import os
import resource
import time
from collections.abc import Callable, Iterator
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from pair import errors

IS_NIGHTLY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"
_MOST_CPU_SECONDS = 10
_MOST_GROWTH_KIB = 512 * 1024


def tried(quick: int, nightly: int) -> settings:
    """Set the number of examples: by default, and with `HYPOTHESIS_PROFILE=nightly`."""
    return settings(
        max_examples=nightly if IS_NIGHTLY else quick,
        deadline=None,
        derandomize=not IS_NIGHTLY,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """Check that the block stays within its CPU time and memory, regardless of the load of the machine."""
    began, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert time.process_time() - began < _MOST_CPU_SECONDS
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < _MOST_GROWTH_KIB


def refusal(act: Callable[[], object]) -> errors.PairError | None:
    """Return the PairError that an action raises; None if it succeeds. Any other exception is a bug in pair."""
    try:
        act()
    except errors.PairError as fault:
        json.dumps(fault.to_json()).encode()
        return fault
    return None


_DEEP = 100_000
_RAW = [
    b"NaN",
    b"-Infinity",
    b"1e999",
    b"-0.0",
    b"9" * 5000,
    b"[" * _DEEP + b"]" * _DEEP,
    b"[" * 400 + b"]" * 400,
    b'{"a":' * 900 + b"1" + b"}" * 900,
    b'"\\ud800"',
    b'"\\u0000"',
    b'"\xff\xfe"',
    b"",
    b"tru",
    b'"unfinished',
]
"""JSON texts that `json.dumps` would not write."""
_HOSTILE: list[Any] = [
    None, True, False, 0, -1, 1, 7, 2**31, 2**63, 2**64, 10**12, 10**30, -(10**30), 0.5, -0.25, 1e300, 5e-324,
    "", " ", "\0", "a\nb", "../../x", "/etc/passwd", "C:\\x", "\ud800", "é", "𝄞", "x" * 20_000, "NaN", "7", "null",
    "2024-05-01T12:00:00", "2024-13-45T99:99:99Z", "AAAA", "eJwDAAAAAAE=",
    [], {}, [[]], [None], {"": None}, [1, 2, 3], {"a": {"b": [1]}}, ["x"] * 200,
]  # fmt: skip
_MARK = "~raw-{}~"


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Yield every container in the value with each of its keys."""
    found: list[tuple[Any, Any]] = []
    waiting = [value]
    while waiting:
        container = waiting.pop()
        if isinstance(container, dict | list):
            keys = list(container) if isinstance(container, dict) else list(range(len(container)))
            found += [(container, key) for key in keys]
            waiting += [container[key] for key in keys]
    return found


def _edit(draw: st.DrawFn, value: Any, raw: list[bytes]) -> Any:
    """Return the value with one structural change, or unchanged if no change is possible."""
    places = _places(value)
    if not places or draw(st.integers(0, 40)) == 0:
        return copy.deepcopy(draw(st.sampled_from(_HOSTILE)))
    container, key = draw(st.sampled_from(places))
    kind = draw(st.sampled_from(["drop", "retype", "retype", "raw", "wrap", "rename", "swap", "double", "number"]))
    if kind == "drop":
        del container[key]
    elif kind == "raw":
        raw.append(draw(st.sampled_from(_RAW)))
        container[key] = _MARK.format(len(raw) - 1)
    elif kind == "wrap":
        container[key] = draw(st.sampled_from([[container[key]], {"value": container[key]}, str(container[key])]))
    elif kind == "rename" and isinstance(container, dict):
        container[draw(st.sampled_from(["", "x" * 5000, "\0", "../x", "\ud800", f"{key} "]))] = container.pop(key)
    elif kind == "swap":
        other, place = draw(st.sampled_from(places))
        container[key], other[place] = copy.deepcopy(other[place]), copy.deepcopy(container[key])
    elif kind == "double" and isinstance(container, list):
        container.insert(key, copy.deepcopy(container[key]))
    elif kind == "number":
        container[key] = draw(st.integers() | st.floats() | st.text(max_size=20))
    else:
        container[key] = copy.deepcopy(draw(st.sampled_from(_HOSTILE)))
    return value


def _spoil(draw: st.DrawFn, content: bytes) -> bytes:
    """Return the bytes with one random change."""
    place = draw(st.integers(0, len(content)))
    kind = draw(st.sampled_from(["flip", "cut", "behead", "insert", "remove", "utf-16", "bom", "twice", "nothing"]))
    if kind == "flip" and content:
        place = min(place, len(content) - 1)
        return content[:place] + bytes([content[place] ^ (1 << draw(st.integers(0, 7)))]) + content[place + 1 :]
    if kind == "insert":
        return content[:place] + draw(st.binary(min_size=1, max_size=8)) + content[place:]
    if kind == "utf-16":
        return content.decode("utf-8", "replace").encode("utf-16")
    return {
        "cut": content[:place],
        "behead": content[place:],
        "remove": content[:place] + content[place + draw(st.integers(1, 20)) :],
        "bom": b"\xef\xbb\xbf" + content,
        "twice": content + content,
    }.get(kind, content)


@st.composite
def damaged_values(draw: st.DrawFn, valid: Any) -> Any:
    """Draw a JSON value with a few structural changes."""
    value = copy.deepcopy(valid)
    for _ in range(draw(st.integers(1, 3))):
        value = _edit(draw, value, [])
    return value


@st.composite
def damaged_json(draw: st.DrawFn, valid: Any) -> bytes:
    """Draw JSON text with changes of its structure, its bytes or both; sometimes arbitrary bytes."""
    way = draw(st.sampled_from(["structure"] * 6 + ["both", "bytes", "bytes", "anything"]))
    if way == "anything":
        return draw(st.binary(max_size=200))
    value, raw = copy.deepcopy(valid), list[bytes]()
    if way != "bytes":
        for _ in range(draw(st.integers(1, 3))):
            value = _edit(draw, value, raw)
    content = json.dumps(value, ensure_ascii=draw(st.booleans())).encode("utf-8", "surrogatepass")
    for number, token in enumerate(raw):
        content = content.replace(json.dumps(_MARK.format(number)).encode(), token)
    return content if way == "structure" else _spoil(draw, content)
