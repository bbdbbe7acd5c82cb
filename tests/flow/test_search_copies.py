"""A text that is stored very often: the places that a search names and counts, and its cost."""

import cProfile
import json
import pstats
from collections.abc import Sequence
from pathlib import Path

import pytest

from pair.kb.kb import KnowledgeBase
from pair.values import Document, Hits, SearchMode
from support.engine_parts import Ground, stats_of

FEW, MANY = 1_000, 8_000
TEXT = "The standard leap smear is linear, from noon to noon, and every server applies it."
QUESTION = "leap smear linear noon"
MODES: Sequence[SearchMode] = ("hybrid", "keyword", "vector", "adaptive")


def copies(count: int) -> list[Document]:
    """Return many documents with one text, unordered, and a few others."""
    numbers = [number * 7919 % count for number in range(count)]
    others = [Document(f"other-{number:03}", f"A leap second, smear {number}, river {number}.") for number in range(60)]
    return [Document(f"copy-{number:06}", TEXT) for number in numbers] + others


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Ground]:
    grounds = {}
    for count in (FEW, MANY):
        grounds[count] = Ground(tmp_path_factory.mktemp("crowded"), compaction_enabled=False)
        grounds[count].fill(copies(count))
    return grounds


def calls_of(kb: KnowledgeBase, mode: SearchMode, limit: int) -> tuple[Hits, int]:
    """Return the hits and the number of function calls, which is the same on a busy machine."""
    kb.search(QUESTION, mode=mode, limit=limit)  # opens files
    profile = cProfile.Profile()
    found = profile.runcall(kb.search, QUESTION, mode=mode, limit=limit)
    return found, pstats.Stats(profile).total_calls  # type: ignore[attr-defined]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("limit", [1, 5, 50])
def test_a_search_costs_about_the_same_whether_a_text_is_stored_often_or_very_often(
    crowded: dict[int, Ground], mode: SearchMode, limit: int
) -> None:
    with crowded[FEW].open() as few, crowded[MANY].open() as many:
        _, calls_few = calls_of(few, mode, limit)
        found, calls_many = calls_of(many, mode, limit)
    assert calls_many < 2 * calls_few + 3_000
    assert len(found) == limit
    assert found[0].text == TEXT
    assert len({hit.text for hit in found}) == limit


@pytest.mark.parametrize("mode", MODES)
def test_a_hit_names_twenty_other_places_and_counts_the_rest(crowded: dict[int, Ground], mode: SearchMode) -> None:
    with crowded[MANY].open() as kb:
        best = kb.search(QUESTION, mode=mode, limit=5)[0]
    assert len(best.also_in) == 20
    assert len({other.document_id for other in best.also_in} | {best.document_id}) == 21
    assert best.also_in_count == MANY - 1
    told = best.to_json()
    assert told["also_in_count"] == MANY - 1
    assert len(json.dumps(told)) < 10_000


def test_equally_good_copies_are_named_in_order_of_their_ids_in_every_layout(
    crowded: dict[int, Ground], tmp_path: Path
) -> None:
    """Compare one shard that has all copies with many shards that have a few each."""
    with crowded[MANY].open() as kb:
        one = kb.search(QUESTION, mode="keyword", limit=5)
    ground = Ground(tmp_path, ingest_batch_documents=2_000, compaction_enabled=False)
    with ground.open() as kb:
        kb.upsert(copies(MANY))
        assert stats_of(kb).shards > 1
        several = kb.search(QUESTION, mode="keyword", limit=5)
    assert [hit.to_json() for hit in one] == [hit.to_json() for hit in several]
    assert [one[0].document_id, *(other.document_id for other in one[0].also_in)] == [
        f"copy-{number:06}" for number in range(21)
    ]


def test_copies_that_a_filter_or_a_deletion_leaves_out_are_not_counted(tmp_path: Path) -> None:
    same = [Document(f"copy-{number:03}", TEXT, metadata={"odd": number % 2}) for number in range(300)]
    with Ground(tmp_path).open() as kb:
        kb.upsert([*same, Document("other", "A leap second in another text.", metadata={"odd": 1})])
        kb.delete([each.id for each in same[:100]])
        assert kb.search(QUESTION, limit=3)[0].also_in_count == 199
        found = kb.search(QUESTION, limit=3, filter={"odd": 1})
        assert [hit.document_id for hit in found] == ["copy-101", "other"]
        assert found[0].also_in_count == 99


def test_texts_that_differ_in_case_only_are_looked_at_up_to_a_bound(tmp_path: Path) -> None:
    def variant(number: int) -> str:
        letters = [letter.upper() if number >> place & 1 else letter for place, letter in enumerate(TEXT[4:20])]
        return TEXT[:4] + "".join(letters) + TEXT[20:]

    with Ground(tmp_path, compaction_enabled=False).open() as kb:
        kb.upsert([Document(f"variant-{number:05}", variant(number)) for number in range(6_000)])
        found, calls = calls_of(kb, "hybrid", 5)
    assert len(found) == 1
    assert 4_000 <= found[0].also_in_count < 6_000
    assert calls < 1_500_000
