"""A workplace for the real command, and a server for it to talk to."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.command import Workplace
from support.server import Server


@pytest.fixture
def workplace(tmp_path: Path) -> Workplace:
    return Workplace(tmp_path)


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        yield running
