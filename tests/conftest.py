"""A workplace for the real command, and a server for it to talk to."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.command import Workplace
from support.server import Server


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """What tests that passed want to be read: `record_property("told", …)`."""
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            if name == "told" and report.when == "call":
                terminalreporter.write_line(value)


@pytest.fixture
def workplace(tmp_path: Path) -> Workplace:
    return Workplace(tmp_path)


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        yield running
