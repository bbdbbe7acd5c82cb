"""A sync that receives one or two signals at every step of a save, with real processes.

`HYPOTHESIS_PROFILE=nightly` sends 200 rounds of them instead of 40.
"""

import itertools
import json
import os
import signal
from pathlib import Path

import pytest

from pair.sync import store
from pair.sync.state import format_index
from support.prepared import PREPARED

ROUNDS = 200 if os.environ.get("HYPOTHESIS_PROFILE") == "nightly" else 40
FILES = 30

# Sends a signal to itself before the n-th step that touches a file of the project, in any thread, and optionally
# another one before the next step.
STEPS = """
import os, signal, sys, threading

step, numbers, home = int(sys.argv[1]), [int(number) for number in sys.argv[2].split(",") if number], sys.argv[3]
taken, lock = 0, threading.Lock()
log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

def strike(event, arguments):
    global taken
    if event not in {"open", "os.rename", "os.remove", "os.listdir", "os.scandir"}:
        return
    name = str(arguments[0])  # relative where it is opened below a descriptor
    if not name.startswith(home) and (os.path.isabs(name) or "index" not in name):
        return
    with lock:
        taken += 1
        position = taken - step
    if 0 <= position < len(numbers):
        os.kill(os.getpid(), numbers[position])

signal.signal(signal.SIGINT, signal.default_int_handler)
"""

LIBRARY = (
    STEPS
    + """
from pathlib import Path
from pair.clock import SystemClock
from pair.sync.discover import SyncPaths
from pair.sync.rules import SyncSettings
from pair.reading.process import ReaderProcesses
from pair.sync.run import SyncDependencies, SyncRun

class Summariser:
    model_calls = 0
    def summarise(self, source_id, text):
        return f"About {source_id}."

class Observer:
    def say(self, text): pass
    def planned(self, total): pass
    def finished(self, source_id): os.write(log, f"{source_id}\\n".encode())

home = os.path.abspath(home)
places = SyncPaths(*(Path(home).parent / "knowledge", Path(home) / "links.txt"),
                *(Path(home) / name for name in ("index.txt", "index-cache.json", "web-cache")))
sys.addaudithook(strike)
try:
    parts = SyncDependencies(Summariser, None, ReaderProcesses(), SystemClock(), Observer())
    SyncRun(SyncSettings(), places, parts).run()
except KeyboardInterrupt:
    os._exit(130)
finally:
    step = 10**9
    os.write(log, f"steps {taken}\\n".encode())
"""
)

COMMAND = (
    STEPS
    + """
from pair.app.cli.entry import main

sys.addaudithook(strike)
status = main(sys.argv[4:])
step = 10**9
os.write(log, f"steps {taken}\\n".encode())
sys.exit(status)
"""
)


class Round:
    """A process in a separate project."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / ".pair"
        self.home.mkdir(parents=True)
        (folder / "knowledge").mkdir()
        for number in range(FILES):
            (folder / "knowledge" / f"{number}.md").write_text(f"# Page {number}\n\nText of page {number}.\n")

    def run(self, program: str, step: int, numbers: tuple[int, ...], *arguments: str) -> int:
        given = [str(step), ",".join(map(str, numbers)), str(self.home), *arguments]
        environment = dict(os.environ) | {
            "PAIR__KB__SOURCES_DIR": str(self.folder / "knowledge"),
            "PAIR__KB__INDEX_PATH": str(self.home / "index.txt"),
            "PAIR__KB__INDEX_CACHE_PATH": str(self.home / "index-cache.json"),
            "PAIR__ENGINE__EMBEDDER": "ngram",
        }
        with PREPARED.started(["-c", program, *given], self.folder, environment) as copy:
            status = copy.wait()
            assert status is not None, copy.printed
            assert "Traceback" not in copy.printed[1], copy.printed
            return status

    @property
    def log(self) -> list[str]:
        log = self.folder / "log"
        return log.read_text().splitlines() if log.exists() else []

    @property
    def steps(self) -> int:
        return next(int(line.split()[1]) for line in self.log if line.startswith("steps "))

    def check(self) -> set[str]:
        """Check that both files have one state and the save left no other file. Return the sources in the state."""
        names = {path.name for path in self.home.iterdir() if path.is_file()}
        left = {name for name in names if name.endswith(".tmp") or ".journal-" in name}
        assert not left
        cache = self.home / "index-cache.json"
        if not cache.exists():
            assert not (self.home / "index.txt").exists()
            return set()
        sources = json.loads(cache.read_bytes())["sources"]
        assert format_index(sources).encode() == (self.home / "index.txt").read_bytes()
        assert sources == store.read(cache).state.sources
        return set(sources)


once_and_twice = [
    (signal.SIGINT,),
    (signal.SIGTERM,),
    (signal.SIGINT, signal.SIGINT),
    (signal.SIGTERM, signal.SIGTERM),
]


@pytest.mark.rule("sync-49")
def test_a_signal_at_any_step_of_a_run_cuts_no_save_short_and_loses_no_finished_work(tmp_path: Path) -> None:
    whole = Round(tmp_path / "whole")
    assert whole.run(LIBRARY, 10**9, ()) == 0
    assert len(whole.check()) == FILES
    steps = whole.steps
    assert steps >= 12, "a save opens two files, renames them, and removes a journal"
    struck = 0
    rounds = itertools.product(range(1, steps + 1), once_and_twice)
    for number, (step, numbers) in enumerate(itertools.islice(itertools.cycle(rounds), 0, ROUNDS * 7, 7)):
        place = Round(tmp_path / f"round-{number}")
        status = place.run(LIBRARY, step, numbers)
        assert status in {0, 130, -signal.SIGTERM}
        known = place.check()
        assert {line for line in place.log if not line.startswith("steps ")} <= known
        struck += status != 0
        assert place.run(LIBRARY, 10**9, ()) == 0
        assert len(place.check()) == FILES
    assert struck > ROUNDS / 2


@pytest.mark.rule("sync-49")
@pytest.mark.parametrize("numbers", once_and_twice, ids=lambda numbers: " ".join(number.name for number in numbers))
@pytest.mark.parametrize("arguments", [("sync",), ("sync", "--watch")], ids=" ".join)
def test_a_command_that_gets_a_signal_during_a_save_ends_with_all_of_it_saved(
    tmp_path: Path, numbers: tuple[signal.Signals, ...], arguments: tuple[str, ...]
) -> None:
    struck = 0
    for step in range(8, 20, 3):
        place = Round(tmp_path / f"step-{step}")
        status = place.run(COMMAND, step, numbers, *arguments)
        assert status in ({0, 130} if arguments[1:] else {130}), "two signals may arrive as one"
        struck += bool(place.check())
    assert struck
