"""Assertions about the errors of pair."""

import contextlib
from collections.abc import Callable, Iterator

import pytest

from pair.errors import PairError


@contextlib.contextmanager
def raises_code(code: str, kind: type[PairError] = PairError) -> Iterator[pytest.ExceptionInfo[PairError]]:
    """Assert that the block raises an error of this kind with this code."""
    with pytest.raises(kind) as caught:
        yield caught
    assert caught.value.code == code, caught.value


def code_of(act: Callable[[], object]) -> str:
    """Return the code of the error that a call raises."""
    with pytest.raises(PairError) as caught:
        act()
    return caught.value.code
