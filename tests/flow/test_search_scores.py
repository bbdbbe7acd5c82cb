"""Scores: probabilities that fall with the rank, compare across queries, and may be too low for any result."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from pair.kb.kb import KnowledgeBase
from pair.values import MODES, Document, Hits, SearchMode, SearchOptions
from support.engine_parts import Ground, random_vectors

TOPICS = {
    "leap": "A leap second is added to clocks when the rotation of the Earth falls behind atomic time.",
    "smear": "Some time servers smear the leap second over a day, so that no clock has to stop.",
    "zones": "Railways introduced time zones, because every town had kept its own solar time before.",
    "tides": "Tides slow down the rotation of the Earth, and the days become longer over the centuries.",
    "bread": "Bread rises because yeast makes carbon dioxide from the sugar in the dough.",
    "roses": "Roses are pruned in early spring, above an outward-facing bud.",
    "pumps": "A pump must never run dry, or its seal breaks within minutes.",
    "whales": "Blue whales sing at such low frequencies that they hear each other across an ocean.",
    "bridge": "The bridge over the Rhine was closed after an inspection found cracks in a pillar.",
    "北京": "北京是中华人民共和国的首都, 也是全国的政治和文化中心。",
}
STATIC = {"embedder": "static", "embedding_dimension": 0, "graph": "text"}
GIBBERISH = ("asdf qwer zxcv", "xqzzt", "blorf wibbit snarg", "zzyzx_qqq.vvv", "ghjkl?")
every_mode = pytest.mark.parametrize("mode", MODES)


def topics() -> list[Document]:
    return [Document(name, text, metadata={"topic": name}) for name, text in TOPICS.items()]


@pytest.fixture(scope="module")
def kb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KnowledgeBase]:
    with Ground(tmp_path_factory.mktemp("topics"), **STATIC).open() as opened:
        opened.upsert(topics())
        yield opened


def scores_of(hits: Hits) -> list[float]:
    return [hit.score for hit in hits]


@every_mode
@pytest.mark.parametrize("query", GIBBERISH)
def test_gibberish_has_no_results(kb: KnowledgeBase, query: str, mode: SearchMode) -> None:
    found = kb.search(query, mode=mode)
    assert len(found) == 0
    if mode != "keyword":  # keywords find nothing that could come near
        assert found.near_misses == 5
        assert "the best scores 0." in found.reason
        weak = kb.search(query, mode=mode, options=SearchOptions(allow_weak=True))
        assert len(weak) == 5
        assert max(scores_of(weak)) < 0.25


@every_mode
@pytest.mark.parametrize("query", ["leap", "rotation of the Earth", "yeast", "北京", "首都"])
def test_a_word_that_occurs_has_results(kb: KnowledgeBase, query: str, mode: SearchMode) -> None:
    found = kb.search(query, mode=mode)
    assert found
    assert found.near_misses == 0


@every_mode
def test_scores_fall_with_the_rank_and_do_not_depend_on_how_many_are_wanted(
    kb: KnowledgeBase, mode: SearchMode
) -> None:
    for query in ("leap second", "why do days become longer?", "the Rhine bridge", "pump seal"):
        found = scores_of(kb.search(query, mode=mode, limit=20))
        assert all(0.0 < later <= earlier < 1.0 for earlier, later in itertools.pairwise(found))
        assert scores_of(kb.search(query, mode=mode, limit=2)) == found[:2]


@pytest.mark.parametrize("mode", ["hybrid", "keyword", "graph", "adaptive"])
def test_scores_compare_across_queries(kb: KnowledgeBase, mode: SearchMode) -> None:
    whole, half, little = (
        scores_of(kb.search(query, mode=mode))[0]
        for query in ("roses pruned in spring", "roses carved from granite", "annual granite exports via Earth orbit")
    )
    assert whole > 0.5 > half > little


def test_words_that_occur_nowhere_lower_a_score(kb: KnowledgeBase) -> None:
    scores = [scores_of(kb.search(f"whales {' '.join(['xqzzt', 'blorf', 'snarg'][:n])}"))[0] for n in range(4)]
    assert scores == sorted(scores, reverse=True)
    assert scores[0] > 0.5
    assert scores[3] < 0.25


def test_a_compound_that_occurs_nowhere_is_not_missing(kb: KnowledgeBase) -> None:
    apart, joined = (kb.search(query, mode="keyword", explain=True)[0] for query in ("leap second", "leap-second"))
    assert [(hit.explanation or {})["coverage"] for hit in (apart, joined)] == [1.0, 1.0]


def test_stop_words_alone_are_weak_evidence(kb: KnowledgeBase) -> None:
    for mode in ("hybrid", "keyword"):
        common, telling = (scores_of(kb.search(query, mode=mode))[0] for query in ("the of and", "yeast"))
        assert common < 0.4 < telling


@every_mode
@pytest.mark.parametrize("query", ["leap second", "roses in spring", "asdf qwer zxcv", "why do days become longer?"])
def test_scores_do_not_depend_on_the_layout(tmp_path: Path, query: str, mode: SearchMode) -> None:
    answers = []
    for rows in (1000, 2):
        ground = Ground(tmp_path / str(rows), **STATIC, shard_trigger_vector_rows=rows, max_vector_rows_per_shard=rows)
        with ground.open() as kb:
            kb.upsert([*topics(), Document("gone", "leap yeast roses asdf")])
            kb.delete(["gone"])
            for _ in range(2):
                hits = kb.search(query, mode=mode, exact=True, explain=True)
                answers.append(([hit.to_json() for hit in hits], hits.reason, hits.near_misses))
                kb.maintenance.compact(everything=True)
    assert all(answer == answers[0] for answer in answers)


@every_mode
def test_a_filter_that_leaves_one_row_returns_it_although_the_words_are_elsewhere(
    kb: KnowledgeBase, mode: SearchMode
) -> None:
    for query in ("leap second", "asdf qwer zxcv"):
        found = kb.search(query, mode=mode, filter={"topic": "bread"})
        assert [hit.document_id for hit in found] == ([] if mode == "keyword" else ["bread"])
        assert all(score < 0.25 for score in scores_of(found))


@every_mode
def test_a_kb_of_one_document_tells_a_question_from_gibberish(tmp_path: Path, mode: SearchMode) -> None:
    with Ground(tmp_path, **STATIC).open() as kb:
        kb.upsert(topics()[:1])
        [hit] = kb.search("leap second", mode=mode)
        assert hit.score > 0.25
        assert len(kb.search("asdf qwer zxcv", mode=mode)) == 0


@every_mode
def test_a_query_of_ten_thousand_words_is_scored(kb: KnowledgeBase, mode: SearchMode) -> None:
    unknown = " ".join(f"w{number}x" for number in range(10_000))
    options = SearchOptions(allow_weak=True)
    assert all(0.0 <= score < 0.25 for score in scores_of(kb.search(unknown, mode=mode, options=options)))
    assert len(kb.search(unknown, mode=mode)) == 0
    assert scores_of(kb.search(" ".join(TOPICS.values()) * 20, mode=mode))


@every_mode
def test_texts_without_any_word_have_no_results(tmp_path: Path, mode: SearchMode) -> None:
    with Ground(tmp_path, **STATIC).open() as kb:
        kb.upsert([Document("dots", "... !!! ???"), Document("more", "--- *** ---")])
        for query in ("leap second", "!!!"):
            assert all(0.0 <= score <= 1.0 for score in scores_of(kb.search(query, mode=mode)))


def test_a_search_by_vector_returns_what_is_nearest_however_far(tmp_path: Path) -> None:
    [vector] = random_vectors(1)
    with Ground(tmp_path).open() as kb:
        kb.upsert([Document("far", "far away", vector=vector.tolist())])
        [hit] = kb.search_vector(-vector)
        assert hit.distance is not None
        assert hit.score == pytest.approx(1 / (1 + hit.distance))


@every_mode
def test_a_distance_that_the_caller_gives_decides_alone(kb: KnowledgeBase, mode: SearchMode) -> None:
    found = kb.search("asdf qwer zxcv", mode=mode, options=SearchOptions(max_distance=2.0))
    assert len(found) == (0 if mode == "keyword" else 5)
