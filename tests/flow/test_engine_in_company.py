"""A store that loses answers while other processes change the KB: callers still get true results.

Each test is a history that the simulation in tests/property found.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from pair import errors
from pair.blobs.contract import BlobStore
from pair.blobs.local import MemoryStore
from pair.engine.settings import EngineSettings
from pair.engine.write.writer import WriteReport
from pair.kb.kb import KnowledgeBase
from pair.kb.open import open_kb
from pair.settings import Settings
from pair.testing.clock import ManualClock
from pair.testing.faulty_store import Fault, FaultyStore
from pair.values import Document
from support.errors import raises_code

WRITES = 40


def opened(store: BlobStore) -> KnowledgeBase:
    policy = EngineSettings(embedder="ngram", ingest_batch_documents=2, keep_versions=0)
    return open_kb(store=store, settings=Settings(engine=policy))


def document(name: str) -> Document:
    return Document(name, f"text of {name}", vector=[1.0] * 384)


class Trap:
    """A plan that calls a function at the first request of a kind."""

    def __init__(self, operation: str, key_part: str) -> None:
        self._awaited = (operation, key_part)
        self.faults: Iterator[Fault] = iter(())
        self.is_set = False

    def __call__(self, operation: str, key: str) -> Fault:
        if self.is_set and operation == self._awaited[0] and self._awaited[1] in key:
            self.is_set = False
            self.spring()
        return next(self.faults, "none") if "manifest" in key else "none"

    def spring(self) -> None:
        """Call the function, between two requests."""


def test_listing_knows_what_is_gone_from_each_of_several_shards() -> None:
    with opened(MemoryStore(ManualClock())) as kb:
        for name in ("a", "b", "c"):
            kb.upsert([document(name), document(name * 2)])
        kb.delete(ids=["a", "bb"])
        assert [each.id for each in kb.documents()] == ["aa", "b", "c", "cc"]


@pytest.mark.rule("engine-7")
def test_write_that_was_refused_because_it_came_twice_is_unknown_when_it_cannot_be_read_back() -> None:
    plan = Trap("", "")
    with opened(FaultyStore(MemoryStore(ManualClock()), plan)) as kb:
        kb.upsert([document("a")])
        plan.faults = iter(["none", "none", "twice", "before"])
        with raises_code("E208", errors.ConflictError):
            kb.upsert([document("b")])
        assert [each.id for each in kb.documents()] == ["a", "b"]


@pytest.mark.parametrize("call", ["documents", "document", "upsert"])
def test_a_reader_finds_documents_while_they_are_moved_and_collected(call: str) -> None:
    memory = MemoryStore(ManualClock())
    plan = Trap("download", ".ids")
    with opened(memory) as other, opened(FaultyStore(memory, plan)) as kb:
        other.upsert([document("a"), document("b")])
        other.delete(ids=["a"])

        def collect() -> None:
            other.maintenance.compact(everything=True)
            assert other.maintenance.collect(grace_seconds=0).deleted_shards == 1

        plan.spring = collect  # type: ignore[method-assign]
        plan.is_set = True
        if call == "documents":
            assert [each.id for each in kb.documents()] == ["b"]
        elif call == "document":
            assert kb.document("b").text == "text of b"
        else:
            assert kb.upsert([document("b")]).unchanged == 1
        assert not plan.is_set


def test_ingest_of_several_batches_does_not_fail_for_the_compaction_after_it() -> None:
    plan = Trap("", "")
    names = [f"d{number}" for number in range(4)]
    reports: list[WriteReport] = []

    def lose_the_request_after_the_last(report: WriteReport) -> None:
        reports.append(report)
        plan.faults = iter(["before"] if len(reports) == 2 else [])

    with opened(FaultyStore(MemoryStore(ManualClock()), plan)) as kb:
        done = kb.upsert([document(name) for name in names], on_batch=lose_the_request_after_the_last)
        assert next(plan.faults, "none") == "none"
        assert done.added == len(names)
        assert [each.id for each in kb.documents()] == names


def test_files_that_stay_open_do_not_grow_with_the_number_of_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with opened(MemoryStore(ManualClock())) as kb:
        counts = []
        for number in range(WRITES):
            kb.upsert([document(f"d{number}")])
            counts.append(len(os.listdir("/proc/self/fd")))
        stats = kb.stats()
    assert stats.documents == WRITES
    assert counts[-1] - counts[0] < WRITES
