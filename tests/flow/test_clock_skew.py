"""Two servers whose clocks differ by an hour either way, each under `faketime`, on one bucket."""

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from pair.blobs.blob_leases import BlobLeases
from pair.clock import SystemClock
from pair.engine.manifest import from_bytes, manifest_key, shards_prefix
from support.redis_server import RedisServer, running_redis
from support.s3_server import ACCESS_KEY, SECRET_KEY, S3Server, running_s3
from support.served import Served

HOUR = 3600
GRACE_SECONDS = 120
BEHIND, AHEAD = -HOUR, HOUR


class Skewed(Served):
    """A server to which it is so many seconds later than it is. What its own clock does not tell is right."""

    def __init__(self, folder: Path, skew_seconds: int, **variables: str) -> None:
        super().__init__(folder, **variables)
        self.program = ["faketime", "-m", "-f", f"{skew_seconds:+d}s"]
        self.environment |= {"FAKETIME_DONT_FAKE_MONOTONIC": "1", "NO_FAKE_STAT": "1"}


@dataclass
class Site:
    s3: S3Server
    behind: Served
    ahead: Served

    @property
    def servers(self) -> tuple[Served, Served]:
        return self.behind, self.ahead


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with running_s3(tmp_path_factory.mktemp("bucket"), lets_anybody_in=True) as s3:
        yield s3


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with running_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server


def variables_of(s3: S3Server, prefix: str) -> dict[str, str]:
    return {
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "PAIR__ENGINE__STORE": f"s3://blobs/{prefix}",
        "PAIR__ENGINE__S3_ENDPOINT": s3.options.endpoint_url,
        "PAIR__ENGINE__S3_REGION": s3.options.region,
        "PAIR__ENGINE__LEASE": "blob",
        "PAIR__ENGINE__LEASE_SECONDS": "20",
        "PAIR__ENGINE__GC_GRACE_SECONDS": str(GRACE_SECONDS),
        "PAIR__ENGINE__CACHE_TTL_SECONDS": "60",
        "PAIR__ENGINE__GRAPH": "off",
        "PAIR__SERVER__SYNC": "false",
        "PAIR__SERVER__COMPACTION_INTERVAL_SECONDS": "1",
        "PAIR__SERVER__GC_INTERVAL_SECONDS": "1",
        "PAIR__SERVER__CACHE_SWEEP_INTERVAL_SECONDS": "1",
    }


@pytest.fixture(scope="module", params=["blob", "redis"])
def site(
    request: pytest.FixtureRequest, bucket: S3Server, redis: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp(request.param)
    shared = variables_of(bucket, f"skewed-{request.param}") | {"AWS_SKIP_SIGNATURE": "true"}
    if request.param == "redis":
        shared |= {"PAIR__ENGINE__LEASE": "redis", "PAIR__ENGINE__REDIS_URL": redis.url}
    with contextlib.ExitStack() as stack:
        behind = stack.enter_context(Skewed(folder / "behind", BEHIND, **shared))
        ahead = stack.enter_context(Skewed(folder / "ahead", AHEAD, **shared))
        yield Site(bucket, behind, ahead)


def test_servers_an_hour_apart_lose_no_write_and_leave_each_other_what_they_use(site: Site) -> None:
    assert site.behind.ingest({"first": "The first."}).status_code == 200
    dropped: set[str] = set()
    is_over = threading.Event()
    with ThreadPoolExecutor(1) as watching:
        watched = watching.submit(watch, site, is_over, dropped)
        with ThreadPoolExecutor(2) as writing:
            written = [writing.submit(write_some, server, name) for server, name in zip(site.servers, "ba", strict=True)]
            names = [name for each in written for name in each.result()]
        for server in site.servers:
            care = server.post("/rag/collect", {}) if False else None
            assert care is None
        is_over.set()
        watched.result()
    for server in site.servers:
        for name in names:
            assert server.get(f"/rag/docs/{name}").status_code == 200, name
    assert len(names) == 24


def watch(site: Site, is_over: threading.Event, dropped: set[str]) -> None: ...


def write_some(server: Served, prefix: str) -> list[str]:
    """Acknowledged ones only."""
    names = [f"{prefix}-{number}" for number in range(12)]
    for name in names:
        answer = server.ingest({name: f"Text of {name}."})
        assert answer.status_code == 200, answer.text
    return names
