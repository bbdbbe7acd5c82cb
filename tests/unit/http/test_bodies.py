"""The number of JSON values in a body, counted without parsing it."""

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pair import errors
from pair.app.http import context, schemas

VALUES = st.recursive(
    st.none() | st.integers() | st.text(alphabet='a"\\,[{é'),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(alphabet='b"\\,[{'), inner),
    max_leaves=30,
)


def containers_and_commas(value: Any) -> int:
    """Return an upper bound of the number of values, less one."""
    if isinstance(value, dict):
        return 1 + max(len(value) - 1, 0) + sum(map(containers_and_commas, value.values()))
    if isinstance(value, list):
        return 1 + max(len(value) - 1, 0) + sum(map(containers_and_commas, value))
    return 0


@given(VALUES, st.booleans(), st.integers(1, 9))
def test_signs_in_texts_do_not_count_wherever_a_slice_ends(value: Any, is_ascii: bool, slice_bytes: int):
    body = json.dumps(value, ensure_ascii=is_ascii).encode()
    assert context.count_values(body, slice_bytes=slice_bytes) == containers_and_commas(value)


@pytest.mark.parametrize("piece", [b"[", b"0,", b"{},", b'"",'])
def test_a_text_of_too_many_values_is_refused(piece: bytes):
    with pytest.raises(errors.UsageError, match="more than 1,000,000 values") as raised:
        context.check_values(b"[" + piece * 1_200_000)
    assert raised.value.code == "E607"


def test_a_text_that_is_long_and_has_few_values_is_not_refused():
    context.check_values(b'{"documents": [{"text": "' + b'a, [b], {c} \\" ' * 3_000_000 + b'"}]}')


@pytest.mark.parametrize(
    ("shape", "body"),
    [
        (schemas.QueryRequest, b'{"query": "x", "filter": [' + b"[]," * 300_000 + b"0]}"),
        (
            schemas.QueryRequest,
            b'{"query": "x", ' + b", ".join(b'"k%d": 1' % number for number in range(80_000)) + b"}",
        ),
        (schemas.IngestRequest, b'{"documents": [' + b"1," * 300_000 + b"0]}"),
    ],
    ids=["filter", "unknown keys", "documents"],
)
def test_many_wrong_values_are_refused_without_a_problem_for_each(shape: type[Any], body: bytes) -> None:
    """The description of a problem takes a thousand times the memory of the wrong value."""
    tracemalloc.start()
    with pytest.raises(errors.UsageError) as caught:
        schemas.read(shape, body)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert caught.value.code == "E601"
    assert len(caught.value.message) < 500
    assert peak < 60_000_000
