"""Runs at every tick, with a manual clock that a wait advances."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from pair import errors
from pair.sync.scheduling import Ticker
from pair.testing.clock import ManualClock
from support.sync_parts import Project, nothing

TICK_SECONDS = 300.0


class Rounds:
    """Scripted runs that take some time, and waits that advance the clock. It ends after the last run."""

    def __init__(self, seconds: Sequence[float], faults: dict[int, Exception] | None = None) -> None:
        self.clock = ManualClock()
        self._seconds = list(seconds)
        self._faults = faults or {}
        self.starts: list[float] = []
        self.waits: list[float] = []

    def run(self) -> None:
        number = len(self.starts)
        self.starts.append(self.clock.monotonic() - 1000.0)
        self.clock.advance(self._seconds[number])
        if number in self._faults:
            raise self._faults[number]

    def wait(self, seconds: float) -> bool:
        self.waits.append(seconds)
        self.clock.advance(seconds)
        return len(self.starts) == len(self._seconds)

    def ticker(self, on_error: Callable[[Exception], None] = nothing) -> Ticker:
        return Ticker(self.run, self.wait, on_error, self.clock, TICK_SECONDS)


@pytest.mark.parametrize(
    ("durations", "starts"),
    [
        ([0, 0, 0], [0, 300, 600]),
        ([10, 200, 299], [0, 300, 600]),
        ([300, 0, 0], [0, 300, 600]),
        ([450, 0, 0], [0, 450, 750]),
        ([1000, 1000, 5], [0, 1000, 2000]),
    ],
    ids=["instant runs", "runs shorter than a tick", "as long as a tick", "one longer run", "all longer"],
)
@pytest.mark.rule("sync-7")
def test_runs_begin_at_once_and_then_every_tick_from_start_to_start(
    durations: list[float], starts: list[float]
) -> None:
    rounds = Rounds(durations)
    rounds.ticker().loop()
    assert rounds.starts == starts
    assert all(0 <= seconds <= TICK_SECONDS for seconds in rounds.waits)


@pytest.mark.rule("sync-8")
def test_a_tick_that_finds_another_run_is_skipped_and_the_next_one_comes() -> None:
    rounds = Rounds([0, 0, 0], {1: errors.sync_running("process 7")})
    faults: list[Exception] = []
    ticker = rounds.ticker(faults.append)
    ticker.loop()
    assert rounds.starts == [0, 300, 600]
    assert (ticker.runs, ticker.skipped) == (2, 1)
    assert faults == []


@pytest.mark.parametrize(
    "fault",
    [
        errors.sync_state_unreadable("state", "damaged", "aside"),
        errors.storage_failed("state", "no space left on the disk"),
        ZeroDivisionError("a bug"),
    ],
    ids=["damaged state", "full disk", "a bug"],
)
@pytest.mark.rule("sync-7")
def test_a_run_that_fails_is_reported_and_the_next_one_comes(fault: Exception) -> None:
    rounds = Rounds([0, 0, 0], {0: fault})
    faults: list[Exception] = []
    ticker = rounds.ticker(faults.append)
    ticker.loop()
    assert rounds.starts == [0, 300, 600]
    assert (ticker.runs, ticker.skipped) == (2, 0)
    assert faults == [fault]


@pytest.mark.rule("sync-7")
def test_a_wait_that_ends_early_starts_the_next_run_early() -> None:
    clock = ManualClock()
    starts: list[float] = []

    def wait(seconds: float) -> bool:
        clock.advance(min(seconds, 20))
        return len(starts) == 3

    Ticker(lambda: starts.append(clock.monotonic() - 1000), wait, nothing, clock, TICK_SECONDS).loop()
    assert starts == [0, 20, 40]


@pytest.mark.rule("sync-6")
def test_a_long_first_run_blocks_no_other(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write("a.md", "text")
    is_summarising, may_go_on = threading.Event(), threading.Event()

    def wait_in_the_model(_: str) -> None:
        is_summarising.set()
        assert may_go_on.wait(60)

    project.summariser.on_call = wait_in_the_model
    ticker = Ticker(lambda: project.sync_run().run(wait=False), lambda _: True, nothing, project.clock, TICK_SECONDS)
    background = threading.Thread(target=ticker.loop)
    background.start()
    assert is_summarising.wait(60)
    assert ticker.runs == 0, "we are here while the first run is still under way"
    may_go_on.set()
    background.join(60)
    assert ticker.runs == 1
    assert "a.md" in project.index
