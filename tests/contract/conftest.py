"""Servers for the contract tests."""

from collections.abc import Iterator

import pytest

from support.command import Workplace
from support.page_server import PageServer
from support.redis_server import RedisServer, running_redis
from support.s3_server import S3Server


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with running_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def server() -> Iterator[PageServer]:
    with PageServer() as running:
        yield running


@pytest.fixture
def at_bucket(workplace: Workplace, s3: S3Server) -> Workplace:
    """Return a workplace whose engine stores its shards in a bucket."""
    workplace.environment |= s3.variables()
    return workplace
