"""Commands that are killed at any moment, and many commands at once."""

import random
import signal
import time
from pathlib import Path

import pytest

from support.command import Workplace, read_files, write_files
from support.kbs import SMALL_KB, SMALL_KB_BYTES, many_files, zip_of, zip_of_size
from support.prepared import PREPARED
from support.server import Server

PARTS = 5
MOMENTS = 10
"""Kills of each part: fifty in total, spread over test workers."""


def run_timed(workplace: Workplace, *arguments: str) -> float:
    began = time.monotonic()
    assert workplace.pair(*arguments).status == 0
    return time.monotonic() - began


def run_killed(workplace: Workplace, after_seconds: float, *arguments: str) -> bool:
    """Send SIGKILL after a delay. Return whether the process was still running."""
    with PREPARED.started(arguments, workplace.folder, workplace.environment) as copy:
        return copy.wait(after_seconds) is None and copy.kill() == -signal.SIGKILL


def leftovers(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob(".*staging*"))


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.rule("source-14")
def test_an_install_killed_at_any_moment_leaves_nothing_half_there(
    workplace: Workplace, server: Server, part: int
) -> None:
    files = many_files(150, version="one")
    url = server.add("/kb.zip", zip_of(files | {"data.bin": random.Random(1).randbytes(3_000_000)}))
    duration = run_timed(workplace, "install", "warm", "--source", url)
    expected = read_files(workplace.folder / "warm")
    dice = random.Random(420 + part)
    killed = 0
    for moment in range(MOMENTS):
        workplace.environment["PAIR_KB_CACHE_DIR"] = str(workplace.cache / str(moment // 5))
        cache = workplace.cache / str(moment // 5)
        target = f"target-{moment}"
        killed += run_killed(workplace, dice.uniform(0, duration), "install", target, "--source", url)
        if (workplace.folder / target).exists():
            assert read_files(workplace.folder / target) == expected
        for entry in cache.glob("[!.]*"):
            assert len(read_files(entry)) == len(expected) + 1, "a cache entry that exists is whole, with its note"
        workplace.pair("install", target, "--source", url, PAIR_KB_CACHE_DIR=str(cache)).succeeds()
        assert read_files(workplace.folder / target) == expected
        assert leftovers(workplace.folder) == []
    assert killed


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.rule("source-18")
def test_an_update_killed_at_any_moment_leaves_the_old_state_or_the_new(workplace: Workplace, part: int) -> None:
    versions = [many_files(200, version="one"), many_files(150, version="two") | {"extra/page.md": "extra"}]
    states = []
    for number, files in enumerate(versions):
        write_files(workplace.folder / f"kb-{number}", files)
        states.append(read_files(workplace.folder / f"kb-{number}") | {"own.md": b"own"})
    workplace.pair("install", "--source", "./kb-0")
    write_files(workplace.target, {"own.md": "own"})
    duration = run_timed(workplace, "update", "--source", "./kb-1")
    assert read_files(workplace.target) == states[1]
    dice = random.Random(430 + part)
    killed = 0
    for moment in range(MOMENTS):
        source = f"./kb-{moment % 2}"
        killed += run_killed(workplace, dice.uniform(0, duration), "update", "--source", source)
        assert read_files(workplace.target) in states
        if moment % 5 == 4:
            workplace.pair("update", "--source", source).succeeds()
            assert read_files(workplace.target) == states[moment % 2]
            assert workplace.pair("verify", workplace.target).status == 0
            assert leftovers(workplace.target.parent) == []
    assert killed


@pytest.mark.rule("source-25")
def test_eight_processes_fetch_one_url_once(workplace: Workplace, server: Server) -> None:
    archive = zip_of_size(2_000_000)
    url = server.add("/kb.zip", archive)
    running = [workplace.start("install", f"target-{number}", "--source", url) for number in range(8)]
    ended = [process.communicate(timeout=120) for process in running]
    assert [process.returncode for process in running] == [0] * 8, ended
    assert server.sent_bytes["/kb.zip"] == len(archive)
    for number in range(8):
        assert read_files(workplace.folder / f"target-{number}")["README.md"] == b"# Large\n"


@pytest.mark.rule("source-25")
def test_eight_processes_install_into_one_target_one_after_the_other(workplace: Workplace) -> None:
    write_files(workplace.folder / "kb", SMALL_KB)
    running = [workplace.start("install", "--source", "./kb") for _ in range(8)]
    for process in running:
        process.communicate(timeout=120)
    assert [process.returncode for process in running] == [0] * 8
    assert read_files(workplace.target) == SMALL_KB_BYTES
    assert leftovers(workplace.target.parent) == []


def test_a_killed_fetch_does_not_keep_the_others_waiting(workplace: Workplace, server: Server) -> None:
    archive = zip_of_size(3_000_000)
    url = server.add("/kb.zip", archive)
    run_killed(workplace, 0.05, "install", "one", "--source", url)
    assert workplace.pair("install", "two", "--source", url).status == 0
