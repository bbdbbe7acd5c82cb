"""`kill -9` at every step of a write, a compaction and a collection; the remaining KB equals a plain dictionary."""

import hashlib
import itertools
import os
import random
import signal
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pair.blobs.local import LocalStore
from pair.engine.format.manifest import from_bytes, manifest_key, shards_prefix, versions_prefix
from pair.kb.kb import KnowledgeBase
from pair.kb.open import open_kb
from support.engine_parts import read_blob
from support.engine_worker import (
    Call,
    Job,
    Workers,
    acknowledged,
    documents_of,
    read_log,
    settings_of,
    text_of,
)

KB = "kb"
ROUNDS = 20
NUMBERS = itertools.count()
NAMES = [f"page-{number}" for number in range(12)]
# How often a step comes at most in one round, that is, up to which of its occurrences the kill is drawn.
WRITE_STEPS = {
    "lease": 3,
    "read": 3,
    "workspace": 2,
    "upload": 6,
    "uploaded": 2,
    "copy": 3,
    "swap": 3,
    "swapped": 3,
    "released": 2,
}
CARE_STEPS = {"compacted": 1, "listing": 1, "condemned": 1, "deleting": 4, "collected": 1}

Model = dict[str, tuple[float, ...]]
"""The vector of each document, by id."""


class Ground:
    """A KB in a folder, and its expected content."""

    def __init__(self, folder: Path, seed: int, keep_versions: int = 0) -> None:
        """`keep_versions`: the setting of the killed writers; the reader that checks afterwards keeps none."""
        self.folder = folder
        self.options: dict[str, Any] = {"store": str(folder / "store"), "cache_dir": str(folder / "cache")}
        self.keep_versions = keep_versions
        self.store = LocalStore(folder / "store")
        self.dice = random.Random(seed)
        self.model: Model = {}

    def open(self) -> KnowledgeBase:
        return open_kb(KB, settings=settings_of(self.options))

    def vectors(self, names: list[str]) -> Model:
        return {name: tuple(float(self.dice.randrange(4)) for _ in range(8)) for name in names}

    def calls(self) -> list[Call]:
        """Return calls in random order: new documents, replacements, deletions, a compaction and a collection."""
        made: list[Call] = [
            ("upsert", self.vectors(self.dice.sample(NAMES, 2))),
            ("delete", self.dice.sample(NAMES, 3)),
            ("upsert", self.vectors(self.dice.sample(NAMES, 3))),
            ("compact", None),
            ("collect", 0),
        ]
        self.dice.shuffle(made)
        # A KB without a manifest is empty for a reader, and missing for a delete.
        made.sort(key=lambda each: not self.model and each[0] != "upsert")
        return made


def applied(model: Model, calls: list[Call]) -> Model:
    after = dict(model)
    for name, argument in calls:
        if name == "upsert":
            after.update(argument)
        if name == "delete":
            for each in argument:
                after.pop(each, None)
    return after


def state_of(kb: KnowledgeBase) -> Model:
    """Return the listed documents; {} before the first write."""
    if not kb.stats().manifest_version:
        return {}
    stored = kb.documents(limit=1000)
    assert [each.id for each in stored] == sorted({each.id for each in stored}), "each once, in order"
    vectors = {each.id: tuple(float(part) for part in each.text.partition("[")[2][:-1].split(",")) for each in stored}
    assert {each.id: each.text for each in stored} == {name: text_of(name, vectors[name]) for name in vectors}
    return vectors


def assert_search_agrees(kb: KnowledgeBase, model: Model) -> None:
    asked = np.array([1, 0, 2, 0, 3, 0, 1, 1], np.float32)
    expected = sorted(
        (float(np.linalg.norm(np.array(vector, np.float32) - asked)), name) for name, vector in model.items()
    )
    for exact in (True, False):
        hits = kb.search_vector(asked, limit=1000, exact=exact)
        assert not hits.partial
        assert [hit.document_id for hit in hits] == [name for _, name in expected]
        assert [hit.text for hit in hits] == [text_of(name, model[name]) for _, name in expected]
        assert [hit.distance for hit in hits] == pytest.approx([distance for distance, _ in expected])


def assert_store_holds_what_is_named(store: LocalStore) -> None:
    manifest = from_bytes(read_blob(store, manifest_key(KB)), manifest_key(KB))
    named = {shard.key(role): shard.files[role].sha256 for shard in manifest.shards for role in shard.files}
    found = {info.key: store.get(info.key) for info in store.list(shards_prefix(KB))}
    assert {key: hashlib.sha256(each.data).hexdigest() for key, each in found.items() if each} == named
    assert all(info.key.endswith(f"-{manifest.commit_id}.json") for info in store.list(versions_prefix(KB)))


def assert_versions_can_be_read(ground: Ground, kb: KnowledgeBase) -> None:
    for version in kb.versions.list()[1:]:
        with open_kb(KB, settings=settings_of(ground.options), at=version.number) as then:
            assert len(state_of(then)) == version.documents


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Return a folder in memory if possible, which is faster; a killed process leaves the same files there."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else tmp_path) as name:
        yield Path(name)


def files_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*")) if folder.exists() else []


def strike(ground: Ground, workers: Workers, at: tuple[str, int] | None, after_seconds: float = 0.0) -> bool:
    """Kill a process at a step or after a time, and check the remaining KB. Return whether the kill took effect."""
    calls = ground.calls()
    log = ground.folder / f"log-{next(NUMBERS)}"
    options = ground.options | {"keep_versions": ground.keep_versions}
    pid = workers.start(Job(KB, options, calls, str(log), at=(*at, signal.SIGKILL) if at else None))
    if at is None:
        threading.Event().wait(after_seconds)
        os.kill(pid, signal.SIGKILL)
    ended = workers.wait(pid)
    assert ended in {0, -signal.SIGKILL}
    assert [each.error for each in read_log(log) if each.error] == []
    done = acknowledged(log)
    assert ended == -signal.SIGKILL or done == len(calls)
    possible = [applied(ground.model, calls[:count]) for count in range(done, min(done + 1, len(calls)) + 1)]
    with ground.open() as kb:
        found = state_of(kb)
        assert found in possible, "all that was acknowledged, and nothing by halves"
        if found:
            assert_search_agrees(kb, found)
            assert_versions_can_be_read(ground, kb)
        if done < len(calls) and calls[done][0] == "upsert" and found == possible[-1]:
            assert kb.upsert(documents_of(calls[done][1])).unchanged == len(calls[done][1]), (
                "what did land costs nothing"
            )
        after = ground.vectors(ground.dice.sample(NAMES, 2))
        written = kb.upsert(documents_of(after))
        assert written.conflicts == 0, "a dead process delays no other"
        ground.model = found | after
        kb.maintenance.collect(grace_seconds=0)
        assert_store_holds_what_is_named(ground.store)
        assert state_of(kb) == ground.model
        assert_search_agrees(kb, ground.model)
    assert files_below(ground.folder / "cache-scratch") == []
    return ended == -signal.SIGKILL


@pytest.mark.parametrize("step", [*WRITE_STEPS, *CARE_STEPS])
@pytest.mark.rule("engine-5")
def test_kill_at_this_step_loses_nothing_that_was_acknowledged(step: str, folder: Path, workers: Workers) -> None:
    steps: Mapping[str, int] = WRITE_STEPS | CARE_STEPS
    ground = Ground(folder, seed=sum(step.encode()), keep_versions=2 if step in {"copy", "swap", "swapped"} else 0)
    struck = sum(strike(ground, workers, (step, ground.dice.randrange(steps[step]) + 1)) for _ in range(ROUNDS))
    assert struck >= ROUNDS // 2, "a step that hardly ever comes shows little"


def test_kill_at_any_moment_loses_nothing_that_was_acknowledged(folder: Path, workers: Workers) -> None:
    ground = Ground(folder, seed=46, keep_versions=2)
    began = time.monotonic()
    strike(ground, workers, ("no such step", 1))
    longest_seconds = time.monotonic() - began
    for _ in range(ROUNDS):
        strike(ground, workers, None, ground.dice.uniform(0, longest_seconds))
