"""Updates of packages with an index over HTTP: killed during transfers, and two at once."""

import os
import signal
import subprocess
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from support.clocks import CHANGED, Origin, Subscription, hits_of, installed_from, put_up, shards_in, sizes_in
from support.command import Workplace, read_files
from support.server import Received, Server

QUERY = "the sun and its dials"
_MOST_SECONDS = 60


def span_of(package: Path, is_wanted: Callable[[str], bool]) -> range:
    """Return the byte range of the first such file in the archive."""
    with zipfile.ZipFile(package) as opened:
        entries = sorted(opened.infolist(), key=lambda each: each.header_offset)
        ends = [each.header_offset for each in entries[1:]] + [opened.start_dir]
    found = next(number for number, each in enumerate(entries) if is_wanted(each.filename))
    return range(entries[found].header_offset, ends[found])


class Executioner:
    """A server that kills a process when it requests the bytes of a span."""

    def __init__(self, span: range) -> None:
        self._span = span
        self._process: subprocess.Popen[str] | None = None
        self._is_told = threading.Event()
        self.has_struck = threading.Event()

    def watch(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self._is_told.set()

    def __call__(self, received: Received) -> None:
        start, _, last = received.headers.get("Range", "").removeprefix("bytes=").partition("-")
        if not start or not (int(start) < self._span.stop and self._span.start <= int(last)):
            return
        assert self._is_told.wait(_MOST_SECONDS)
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGKILL)
        self.has_struck.set()


@pytest.mark.parametrize("at", ["a new shard", "its text"])
def test_an_update_that_is_killed_during_a_download_changes_nothing_and_the_next_one_finishes(
    origin: Origin, elsewhere: Workplace, server: Server, at: str
) -> None:
    first = origin.package("1.0.0")
    installed_from(elsewhere, server, first)
    before, files_before = hits_of(elsewhere, QUERY, "--exact"), read_files(elsewhere.target)
    second = origin.package("1.1.0", **CHANGED)
    new = shards_in(second) - shards_in(first)
    span = span_of(second, lambda name: bool(set(name.split("/")) & new) if at == "a new shard" else name in CHANGED)
    executioner = Executioner(span)
    put_up(server, second, before_body=executioner)
    running = elsewhere.start("update")
    executioner.watch(running)
    running.communicate(timeout=_MOST_SECONDS)
    assert executioner.has_struck.is_set()
    assert running.returncode == -signal.SIGKILL
    assert hits_of(elsewhere, QUERY, "--exact") == before
    assert read_files(elsewhere.target) == files_before
    put_up(server, second)
    server.sent_bytes.clear()
    assert elsewhere.pair("update", "--json").json["version"] == "1.1.0"
    assert server.sent_bytes["/clocks.zip"] <= 1.2 * sizes_in(second, new) + 40_000
    assert hits_of(elsewhere, QUERY, "--exact") == origin.search(QUERY, "clocks", "--exact")
    assert not [each for each in elsewhere.cache.rglob("*") if "staging" in each.name or "ranges" in each.name]


def test_two_updates_from_a_feed_at_once_fetch_once_and_make_one_version(subscription: Subscription) -> None:
    subscription.install_and_publish()
    origin, elsewhere, server = subscription.origin, subscription.elsewhere, subscription.server
    readers = threading.Semaphore(0)

    def wait_for_both(received: Received) -> None:
        """Hold back all parts until both clients have requested the latest release."""
        for _ in range(2):
            assert readers.acquire(timeout=_MOST_SECONDS)
        readers.release(2)

    server.pages["/kbs/releases.json"].before_body = lambda received: readers.release()
    server.pages["/kbs/clocks-1.1.0.zip"].before_body = wait_for_both
    running = [elsewhere.start("update", "--json") for _ in range(2)]
    told = [each.communicate(timeout=_MOST_SECONDS) for each in running]
    assert [each.returncode for each in running] == [0, 0], told
    listed = elsewhere.pair("versions", "--json").json["versions"]
    assert [each["label"] for each in listed] == ["clocks 1.1.0", "clocks 1.0.0"]
    archives = [origin.dist / f"clocks-{version}.zip" for version in ("1.0.0", "1.1.0")]
    new = shards_in(archives[1]) - shards_in(archives[0])
    assert server.sent_bytes["/kbs/clocks-1.1.0.zip"] <= 1.2 * sizes_in(archives[1], new) + 40_000
    assert hits_of(elsewhere, QUERY, "--exact") == origin.search(QUERY, "clocks", "--exact")
    assert read_files(elsewhere.target) == read_files(origin.folder)
