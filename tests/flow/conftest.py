"""A folder with KBs, and worker processes that write to them. Workers start once per test module."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.engine_parts import MANY_SHARDS, Ground
from support.engine_worker import Workers, running_workers
from support.redis_server import RedisServer, running_redis


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return Ground(tmp_path)


@pytest.fixture
def many(tmp_path: Path) -> Ground:
    """Return settings under which a few documents become many shards."""
    return Ground(tmp_path, **MANY_SHARDS)


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with running_workers() as running:
        yield running


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with running_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server
