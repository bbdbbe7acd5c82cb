"""The differences between two versions of a KB do not depend on its shards."""

import itertools
import random
from pathlib import Path

import pytest

from pair.engine.maintenance.versions import DocumentChanges
from pair.errors import NotFoundError
from pair.kb.kb import KnowledgeBase
from pair.values import Document
from support.engine_parts import MANY_SHARDS, Ground, MirroredEmbedder, counted
from support.errors import raises_code


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return Ground(tmp_path, keep_versions=100)


def page(number: int, word: str) -> Document:
    return Document(id=f"page-{number:02}", text=f"Page {number} is about {word}. " * 3, metadata={"word": word})


def texts(kb: KnowledgeBase) -> dict[str, str]:
    return {each.id: each.text for each in kb.documents(limit=1000)}


def expected_changes(before: dict[str, str], after: dict[str, str]) -> tuple[list[str], list[str], list[str]]:
    changed = [name for name in before.keys() & after.keys() if before[name] != after[name]]
    return sorted(after.keys() - before.keys()), sorted(before.keys() - after.keys()), sorted(changed)


def found(changes: DocumentChanges) -> tuple[list[str], list[str], list[str]]:
    return list(changes.added), list(changes.removed), list(changes.changed)


@pytest.mark.parametrize("seed", range(2))
def test_any_two_versions_differ_in_what_their_documents_differ(tmp_path: Path, seed: int) -> None:
    choice = random.Random(seed)
    states: dict[int, dict[str, str]] = {}
    with Ground(tmp_path, keep_versions=100, **MANY_SHARDS).open() as kb:
        kb.upsert([page(number, "water") for number in range(20)])
        for step in range(12):
            numbers = choice.sample(range(30), choice.randint(1, 5))
            act = choice.choice(["store", "store", "delete", "compact", "roll back"])
            if act == "store":
                kb.upsert([page(number, choice.choice(["wind", "fire", f"stone {step}"])) for number in numbers])
            elif act == "delete":
                kb.delete([f"page-{number:02}" for number in numbers])
            elif act == "compact":
                kb.maintenance.compact(everything=True)
            elif states:
                kb.versions.rollback(choice.choice(list(states)))
            states[kb.version()[0]] = texts(kb)
        for before, after in itertools.product(states, states):
            comparison = kb.versions.compare(before, after)
            assert (comparison.changes.before, comparison.changes.after) == (before, after)
            assert found(comparison.changes) == expected_changes(states[before], states[after])
            for name in itertools.chain(*found(comparison.changes)):
                assert comparison.texts(name) == (states[before].get(name), states[after].get(name))


def test_the_current_version_is_the_other_side_unless_one_is_named(ground: Ground) -> None:
    with ground.open() as kb:
        kb.upsert([page(1, "water")])
        kb.upsert([page(1, "fire"), page(2, "wind")])
        assert found(kb.versions.diff(1)) == (["page-02"], [], ["page-01"])
        assert found(kb.versions.diff("current", 1)) == ([], ["page-02"], ["page-01"])
        assert not kb.versions.diff(2, "current")
        with raises_code("E218", NotFoundError):
            kb.versions.diff(1, "9")
    with ground.open("other") as kb, raises_code("E201", NotFoundError):
        kb.versions.diff(1)


def test_other_vectors_other_shards_and_other_chunks_are_not_a_change(ground: Ground) -> None:
    with ground.open() as kb:
        kb.upsert([page(number, "water") for number in range(9)])
        kb.maintenance.compact(everything=True)
    with ground.open(embedder=MirroredEmbedder()) as kb:
        kb.maintenance.reembed()
        assert not kb.versions.diff(1)
        assert kb.upsert([page(number, "water") for number in range(9)], chunk_size=60).replaced == 9
        assert not kb.versions.diff(1)
        kb.upsert([page(3, "fire")], chunk_size=60)
        assert found(kb.versions.diff(1)) == ([], [], ["page-03"])


def test_a_document_whose_title_or_metadata_is_another_is_changed(ground: Ground) -> None:
    with ground.open() as kb:
        kb.upsert([Document("a", "The same text.", title="One"), Document("b", "The same text.", metadata={"year": 1})])
        kb.upsert([Document("a", "The same text.", title="Two"), Document("b", "The same text.", metadata={"year": 2})])
        assert found(kb.versions.diff(1)) == ([], [], ["a", "b"])


def test_equal_files_are_not_fetched(ground: Ground, tmp_path: Path) -> None:
    with ground.open() as kb:
        for number in range(6):
            kb.upsert([page(number, "water")])
        kb.upsert([page(2, "fire")])
    store, requests = counted(ground.blobs())
    with Ground(tmp_path / "elsewhere").open(store=store) as kb:
        fetched = requests.counts["download"]
        assert found(kb.versions.diff(6, 7)) == ([], [], ["page-02"])
        assert requests.counts["download"] - fetched == 4  # an id directory and a text of each side
        assert not kb.versions.diff(7, 7)
        assert requests.counts["download"] - fetched == 4
