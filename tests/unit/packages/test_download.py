"""Files that are read in ranges: received bytes are not requested again."""

import contextlib
import random
from collections.abc import Iterator

import pytest

from pair.clock import SystemClock
from pair.kb.installer import SilentObserver
from pair.network import RetryPolicy
from pair.packages.download import RangedFile, open_ranges
from pair.web.http_client import HttpClient
from support.server import Server

CONTENT = random.Random(5).randbytes(100_000)
TAIL = len(CONTENT) - 32 * 1024


@pytest.fixture
def opened(server: Server) -> Iterator[RangedFile]:
    web = HttpClient(timeout_seconds=30, retry_policy=RetryPolicy(0, 0), clock=SystemClock())
    with contextlib.closing(web):
        found = open_ranges(web, server.add("/kb.zip", CONTENT, checksum=False), SilentObserver())
        assert found is not None
        server.received.clear()
        yield found


@pytest.mark.parametrize(
    ("start", "length", "asked"),
    [
        (0, 10, ["bytes=0-9"]),
        (TAIL - 10, 10, [f"bytes={TAIL - 10}-{TAIL - 1}"]),
        (TAIL - 10, 5000, [f"bytes={TAIL - 10}-{TAIL - 1}"]),
        (50_000, 50_000, [f"bytes=50000-{TAIL - 1}"]),
        (TAIL, 5000, []),
        (TAIL + 7, 5, []),
        (len(CONTENT), 0, []),
        (12, 0, []),
    ],
)
def test_a_read_requests_only_the_bytes_before_the_end(
    opened: RangedFile, server: Server, start: int, length: int, asked: list[str]
) -> None:
    assert opened.read(start, length) == CONTENT[start : start + length]
    assert [each.headers["Range"] for each in server.received] == asked
