"""Two servers whose clocks are an hour slow and an hour fast, on one bucket."""

import contextlib
import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from pair.blobs.leases import BlobLeases
from pair.clock import SystemClock
from pair.engine.format.manifest import from_bytes, lease_name, manifest_key, shards_prefix
from support import skewed_serve
from support.engine_parts import read_blob
from support.s3_server import S3Server
from support.served import Served

HOUR = 3600
KB = "default"
VARIABLES = {
    "PAIR__ENGINE__LEASE": "blob",
    "PAIR__ENGINE__WRITE_ATTEMPTS": "4",
    "PAIR__ENGINE__CACHE_TTL_SECONDS": "60",
    "PAIR__ENGINE__GRAPH": "off",
    "PAIR__SERVER__SYNC": "false",
}


def skewed(folder: Path, skew_seconds: int, **variables: str) -> Served:
    """Run a server whose clock is this many seconds ahead."""
    server = Served(folder, **variables)
    server.program = [skewed_serve.__file__, str(skew_seconds)]
    return server


@dataclass
class Site:
    s3: S3Server
    slow: Served
    fast: Served

    def stored(self) -> set[str]:
        """Return the folders of shards in the bucket."""
        return {each.key.rpartition("/")[0] for each in self.s3.store("skewed").list(shards_prefix(KB))}

    def dropped(self) -> set[str]:
        """Return the folders that the manifest has dropped and readers may still use."""
        blob = read_blob(self.s3.store("skewed"), manifest_key(KB))
        return {each.folder for each in from_bytes(blob, "manifest").dropped}


@pytest.fixture(scope="module")
def site(s3: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    variables = s3.variables("skewed") | VARIABLES
    with contextlib.ExitStack() as stack:
        slow = stack.enter_context(skewed(folder / "slow", -HOUR, **variables))
        fast = stack.enter_context(skewed(folder / "fast", HOUR, **variables))
        assert slow.ingest({"first": "The first."}).status_code == 200
        yield Site(s3, slow, fast)


def written(server: Served, prefix: str) -> list[str]:
    """Write one document at a time, wait for other writers, and return the acknowledged names."""
    names = [f"{prefix}-{number}" for number in range(10)]
    for name in names:
        answers = (server.ingest({name: f"Text of {name}."}) for _ in range(20))
        answer = next(each for each in answers if each.status_code != 409)
        assert answer.status_code == 200, answer.text
    return names


def test_no_write_is_lost_and_no_shard_is_taken_that_readers_may_use(site: Site) -> None:
    with ThreadPoolExecutor(2) as pool:
        names = list(itertools.chain(*pool.map(written, (site.slow, site.fast), ("slow", "fast"))))
    assert site.dropped(), "writes have merged shards"
    for compacting, collecting in ((site.slow, site.fast), (site.fast, site.slow)):
        assert compacting.ingest({"last": f"Before {compacting.url} compacts."}).status_code == 200
        assert compacting.post("/rag/compact", {"everything": True}).status_code == 200
        dropped = site.dropped()
        for server in (collecting, compacting):
            assert server.post("/rag/gc", {}).status_code == 200
        assert dropped <= site.stored(), "the grace period was cut short"
        assert collecting.post("/cache/sweep", {}).status_code == 200
        for server in (site.slow, site.fast):
            found = server.post("/rag/query", {"query": "text", "search_mode": "keyword", "k": 50}).json()["results"]
            assert {each["id"] for each in found} >= set(names)
    assert all(
        server.get(f"/rag/docs/{name}").status_code == 200 for server in (site.slow, site.fast) for name in names
    )


def test_no_lease_is_taken_from_its_holder(site: Site) -> None:
    tokens = (f"token-{number}" for number in itertools.count())
    leases = BlobLeases(site.s3.store("skewed"), holder="a holder", new_token=tokens.__next__, clock=SystemClock())
    lease = leases.acquire(lease_name(KB), seconds=60)
    try:
        for server in (site.slow, site.fast):
            refused = server.ingest({"stolen": "Written without a lease."})
            assert refused.status_code == 409
            assert (refused.json()["error"]["code"], "a holder" in refused.text) == ("E203", True)
        lease = leases.renew(lease, seconds=60)
    finally:
        leases.release(lease)
    assert all(server.ingest({"after": f"By {server.url}."}).status_code == 200 for server in (site.slow, site.fast))
