"""Processes that write to a KB, started once for each module of tests."""

from collections.abc import Iterator

import pytest

from support.engine_worker import Workers, running_workers


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with running_workers() as running:
        yield running
