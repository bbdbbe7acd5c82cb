"""Updates and rollbacks of packages with an index, with concurrent readers and kills."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.command import Workplace, read_files, write_files

READERS = 8
KILLS = 8
NAMES = [f"room-{number:02}" for number in range(24)]
READER = """
import json, pathlib, sys
from pair import Settings
from pair.kb.open import open_kb

stop = pathlib.Path(sys.argv[1])
seen, faults, reads = set(), [], 0
with open_kb(settings=Settings.load()) as kb:
    print("ready", flush=True)
    while not stop.exists():
        try:
            hits = kb.search("which colour is the room", limit=40, exact=True)
        except Exception as fault:
            faults.append(repr(fault))
            break
        found = {word for hit in hits for word in ("red", "green") if word in hit.text}
        reads += 1
        seen |= found
        if len(found) != 1 or len(hits) != 24 or hits.partial:
            faults.append([sorted(found), len(hits), hits.partial])
print(json.dumps({"reads": reads, "seen": sorted(seen), "faults": faults[:3]}))
"""


def rooms(colour: str) -> dict[str, str | bytes]:
    return {f"{name}.md": f"The colour of {name} is {colour}, say those who live there.\n" for name in NAMES}


@pytest.fixture
def packages(tmp_path: Path) -> dict[str, Path]:
    """Return two versions in which every document differs."""
    origin = Workplace(tmp_path / "origin")
    origin.environment |= {
        "PAIR__ENGINE__SHARD_TRIGGER_VECTOR_ROWS": "8",
        "PAIR__ENGINE__MAX_VECTOR_ROWS_PER_SHARD": "4",
    }
    made = {}
    for version, colour in (("1.0.0", "red"), ("2.0.0", "green")):
        write_files(origin.folder / "rooms", rooms(colour))
        made[version] = origin.folder / f"rooms-{version}.zip"
        origin.pair("package", "rooms", "-o", made[version], "--version", version, "--with-index").succeeds()
    return made


@contextmanager
def readers(workplace: Workplace, count: int) -> Iterator[list[dict[str, object]]]:
    """Run processes that search until the block ends. The yielded list then has their results."""
    stop = workplace.folder / "stop"
    started = [
        subprocess.Popen(
            [sys.executable, "-c", READER, str(stop)],
            cwd=workplace.folder,
            env=workplace.environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(count)
    ]
    told: list[dict[str, object]] = []
    try:
        for each in started:
            assert each.stdout is not None
            assert each.stdout.readline() == "ready\n"
        yield told
    finally:
        stop.touch()
        for each in started:
            stdout, _ = each.communicate(timeout=60)
            if each.returncode == 0:
                told.append(json.loads(stdout))
        stop.unlink()


def test_readers_see_one_version_or_the_other_while_it_is_updated_and_rolled_back(
    workplace: Workplace, packages: dict[str, Path]
) -> None:
    assert workplace.pair("install", "--offline", "--source", packages["1.0.0"]).status == 0
    with readers(workplace, READERS) as told:
        for _ in range(3):
            assert workplace.pair("update", "--offline", "--source", packages["2.0.0"]).status == 0
            assert workplace.pair("rollback", "1.0.0").status == 0
            assert workplace.pair("rollback", "2.0.0").status == 0
            assert workplace.pair("update", "--offline", "--source", packages["1.0.0"]).status == 0
    assert len(told) == READERS
    assert [each["faults"] for each in told] == [[]] * READERS
    assert {colour for each in told for colour in each["seen"]} == {"red", "green"}  # type: ignore[attr-defined]


def test_an_update_that_is_killed_leaves_one_version_and_the_next_one_finishes(
    workplace: Workplace, packages: dict[str, Path]
) -> None:
    assert workplace.pair("install", "--offline", "--source", packages["1.0.0"]).status == 0
    dice, struck = random.Random(9), 0
    versions = [("2.0.0", "green"), ("1.0.0", "red")]
    for number in range(KILLS):
        version, colour = versions[number % 2]
        running = workplace.start("update", "--offline", "--source", packages[version])
        threading.Event().wait(dice.uniform(0.3, 0.8))
        if running.poll() is None:
            os.kill(running.pid, signal.SIGKILL)
            struck += 1
        running.communicate()
        found = workplace.pair("search", "which colour is the room", "-k", "40", "--exact", "--json").json
        seen = {word for hit in found["results"] for word in ("red", "green") if word in hit["content"]}
        assert (len(seen), len(found["results"]), found["partial"]) == (1, len(NAMES), False)
        assert workplace.pair("update", "--offline", "--source", packages[version]).status == 0
        assert read_files(workplace.target) == {name: str(text).encode() for name, text in rooms(colour).items()}
        found = workplace.pair("search", "which colour is the room", "-k", "40", "--exact", "--json").json
        assert all(colour in hit["content"] for hit in found["results"])
        assert len(found["results"]) == len(NAMES)
    assert struck >= 2, "kills that come too late show nothing"


def test_two_updates_at_once_leave_one_version(workplace: Workplace, packages: dict[str, Path]) -> None:
    assert workplace.pair("install", "--offline", "--source", packages["1.0.0"]).status == 0
    running = [workplace.start("update", "--offline", "--source", packages[version]) for version in ("2.0.0", "1.0.0")]
    for each in running:
        each.communicate(timeout=60)
    assert [each.returncode for each in running] == [0, 0]
    found = workplace.pair("search", "which colour is the room", "-k", "40", "--exact", "--json").json
    seen = {word for hit in found["results"] for word in ("red", "green") if word in hit["content"]}
    on_disk = {word for text in read_files(workplace.target).values() for word in (b"red", b"green") if word in text}
    assert ({word.encode() for word in seen}, len(found["results"])) == (on_disk, len(NAMES))
