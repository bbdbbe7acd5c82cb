"""Searches, lists and filters."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pair.engine.filters import parse_filter
from pair.kb.kb import KnowledgeBase
from support.engine_parts import DIMENSION, MANY_SHARDS, Ground, all_ids, counted, ids_of, numbered, placed, stats_of
from support.filters import matches

FILTERS: list[dict[str, Any]] = [
    {"number": 17},
    {"number": [3, 33, 999]},
    {"number": {"gte": 10, "lt": 13}},
    {"subject": "castles"},
    {"subject": {"prefix": "e"}},
    {"odd": True},
    {"odd": True, "number": {"lt": 30}},
    {"number": {"gte": 0}},
    {"number": -1},
    {"nothing": "there"},
]


@pytest.mark.parametrize("conditions", FILTERS, ids=str)
@pytest.mark.parametrize("exact", [True, False], ids=["exact", "routed"])
@pytest.mark.rule("engine-15")
def test_a_filter_finds_exactly_what_it_names(filtered: KnowledgeBase, conditions: dict[str, Any], exact: bool) -> None:
    chosen = parse_filter(conditions)
    expected = [each.id for each in numbered(60) if matches(chosen, each.metadata)]
    hits = filtered.search("item17 about castles", limit=100, filter=conditions, exact=exact)
    assert sorted(ids_of(hits)) == expected
    nearest = filtered.search("item17 about castles", limit=3, filter=conditions, exact=exact)
    assert ids_of(nearest) == ids_of(hits)[:3]


@pytest.fixture(scope="module")
def filtered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KnowledgeBase]:
    """Return sixty documents in more shards than a query searches."""
    few = {"query_shard_fanout": 1, "query_shard_fanout_adaptive_max": 2, "small_kb_max_shards": 1}
    ground = Ground(tmp_path_factory.mktemp("filtered"), **MANY_SHARDS, **few)
    with ground.open() as kb:
        kb.upsert(numbered(60))
        kb.maintenance.compact(everything=True)
        assert stats_of(kb).shards > 6
        yield kb


def test_a_search_that_wants_much_asks_on_until_it_has_it(filtered: KnowledgeBase) -> None:
    assert filtered.search("castles", limit=2, mode="vector").shards_asked <= 3
    assert len(filtered.search("castles", limit=60)) == 60


def test_documents_are_listed_page_by_page_over_shards(many: Ground) -> None:
    with many.open() as kb:
        kb.upsert(reversed(numbered(30)))
        kb.upsert(numbered(5, begin=30), owner="other")
        kb.delete(["doc-0004", "doc-0029"])
        expected = [each.id for each in numbered(35) if each.id not in {"doc-0004", "doc-0029"}]
        for page in (1, 2, 7, 33, 100):
            assert all_ids(kb, page) == expected
        assert [each.id for each in kb.documents(owner="other")] == expected[-5:]
        assert [each.id for each in kb.documents(owner="other", after="doc-0032", limit=1)] == ["doc-0033"]
        for listed in kb.documents():
            assert listed == kb.document(listed.id)
            original = numbered(35)[int(listed.id[-4:])]
            assert (listed.text, listed.title, listed.metadata) == (original.text, original.title, original.metadata)


@pytest.mark.rule("engine-14")
def test_a_maximum_distance_excludes_rows_at_that_distance(many: Ground) -> None:
    on_a_line = [placed(f"at-{number:02}", [float(number), *[0.0] * (DIMENSION - 1)]) for number in range(30)]
    origin = [0.0] * DIMENSION
    with many.open() as kb:
        kb.upsert(on_a_line)
        for exact in (True, False):
            assert ids_of(kb.search_vector(origin, limit=100, max_distance=3.0, exact=exact)) == [
                "at-00",
                "at-01",
                "at-02",
            ]
        above = np.nextafter(np.float32(3), np.float32(4)).item()
        for distance, count in ((above, 4), (100.0, 30), (0.0, 0), (-1.0, 0)):
            assert len(kb.search_vector(origin, limit=100, max_distance=distance)) == count
        assert ids_of(kb.search_vector([29.0, *origin[1:]], max_distance=1.5)) == ["at-29", "at-28"]
        assert len(kb.search_vector(origin, limit=0)) == 0
        assert len(kb.search_vector(origin, limit=2, max_distance=5.0)) == 2


@pytest.mark.rule("engine-13")
def test_hits_that_are_equally_near_come_in_the_order_of_their_names(many: Ground) -> None:
    with many.open() as kb:
        kb.upsert([placed(f"twin-{number:02}", [1.0] * DIMENSION) for number in reversed(range(30))])
        for limit in (1, 5, 29):
            hits = kb.search_vector([1.0] * DIMENSION, limit=limit, exact=True)
            assert ids_of(hits) == [f"twin-{number:02}" for number in range(limit)]


@pytest.mark.rule("engine-3")
def test_an_unchanged_manifest_is_not_read_again(many: Ground) -> None:
    many.fill(numbered(30))
    store, requests = counted(many.blobs())
    with many.open(store=store) as kb:
        kb.search("rivers", exact=True)
        requests.counts.clear()
        for _ in range(5):
            kb.search("rivers", exact=True)
        assert requests.counts == {"get_if_changed": 5}
        kb.stats()
        kb.documents(limit=1)
        assert set(requests.counts) <= {"get_if_changed", "download"}
        many.fill(numbered(1, begin=30))
        assert ids_of(kb.search("item30", limit=1)) == ["doc-0030"], "what another one wrote is seen at once"


def test_a_cold_query_fetches_only_what_it_searches(many: Ground) -> None:
    many.fill(numbered(30))
    store, requests = counted(many.blobs())
    with many.open(store=store) as kb:
        kb.search("rivers", exact=True, mode="vector")
        stats = stats_of(kb)
        assert requests.counts["download"] == stats.shards
        kb.search("rivers", exact=True)
        assert requests.counts["download"] == 2 * stats.shards, "and their keywords"


@pytest.mark.rule("engine-12")
def test_the_four_nearest_shards_of_a_clustering_are_always_asked(tmp_path: Path) -> None:
    """This also holds for clusters so far apart that only the nearest seems relevant."""
    dice = np.random.default_rng(7)
    centres = np.eye(DIMENSION)[:8] * 10.0
    documents = [
        placed(f"doc-{cluster}-{number}", (centres[cluster] + dice.normal(0, 0.1, DIMENSION)).tolist())
        for cluster in range(8)
        for number in range(5)
    ]
    ground = Ground(tmp_path, **MANY_SHARDS, query_shard_fanout_adaptive_max=4)
    with ground.open() as kb:
        kb.upsert(documents)
        kb.maintenance.compact(everything=True)
        assert stats_of(kb).shards >= 8
        assert kb.search_vector(centres[3].tolist(), limit=2).shards_asked == 4
