"""Shared fixtures: a project folder for the real command, and the servers that it contacts."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.register_assert_rewrite("pair.testing")  # must come before any import of the module

from support.canary import guard_folder  # noqa: E402
from support.clocks import Origin, Subscription  # noqa: E402
from support.command import Workplace  # noqa: E402
from support.minisign import PASSWORD, Keys, make_keys  # noqa: E402
from support.model_server import ModelServer  # noqa: E402
from support.s3_server import S3Server, running_s3  # noqa: E402
from support.server import Server  # noqa: E402


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the notes of tests that passed: `record_property("note", …)`."""
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            if name == "note" and report.when == "call":
                terminalreporter.write_line(value)


@pytest.fixture
def workplace(tmp_path: Path) -> Workplace:
    return Workplace(tmp_path)


@pytest.fixture
def canary(tmp_path: Path) -> Iterator[Path]:
    """Return a folder outside the project; the test fails if it changes."""
    yield from guard_folder(tmp_path / "canary")


@pytest.fixture
def origin(tmp_path: Path) -> Origin:
    return Origin(tmp_path / "origin")


@pytest.fixture
def elsewhere(tmp_path: Path) -> Workplace:
    """Return a workplace with its own home and cache, which stands for another machine."""
    return Workplace(tmp_path / "elsewhere")


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        yield running


@pytest.fixture
def subscription(origin: Origin, elsewhere: Workplace, server: Server) -> Subscription:
    return Subscription(origin, elsewhere, server)


@pytest.fixture
def model() -> Iterator[ModelServer]:
    with ModelServer() as running:
        yield running


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """Return the S3 server of this test process; each test has its own prefix in the bucket."""
    with running_s3(tmp_path_factory.mktemp("s3")) as running:
        yield running


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return make_keys(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return make_keys(tmp_path_factory.mktemp("others"))


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return make_keys(tmp_path_factory.mktemp("encrypted"), password=PASSWORD)
