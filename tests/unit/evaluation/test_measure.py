"""Figures of rankings compared with hand-computed values, and the searches that measure a KB."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pair import errors
from pair.evaluation import measure as metrics
from pair.evaluation.measure import JudgedQuery, measure, measure_all
from pair.testing.clock import ManualClock
from pair.values import Hit, Hits, SearchOptions

GRADES = {"a": 3.0, "b": 2.0, "c": 1.0}


@pytest.mark.parametrize(
    ("ranking", "k", "expected"),
    [
        (["a", "b", "c"], 10, 1.0),
        (["x", "y"], 10, 0.0),
        ([], 10, 0.0),
        # 3 / log2(2) and 1 / log2(4), of 3 + 2 / log2(3) + 1 / 2
        (["a", "x", "c"], 10, (3 + 0.5) / (3 + 2 / math.log2(3) + 0.5)),
        # Only two ranks count, and the best two are a and b.
        (["c", "a", "b"], 2, (1 + 3 / math.log2(3)) / (3 + 2 / math.log2(3))),
        (["x", "a"], 1, 0.0),
    ],
)
def test_ndcg_is_the_discounted_gain_out_of_the_best_there_is(ranking: list[str], k: int, expected: float) -> None:
    assert metrics.ndcg(ranking, GRADES, k) == pytest.approx(expected)


def test_ndcg_of_a_known_example() -> None:
    # Grades 3 2 3 0 1 2 in this order: gain 6.861 of 7.141.
    grades = {"1": 3.0, "2": 2.0, "3": 3.0, "5": 1.0, "6": 2.0}
    assert metrics.ndcg(["1", "2", "3", "4", "5", "6"], grades, 6) == pytest.approx(0.961, abs=5e-4)


@pytest.mark.parametrize(
    ("ranking", "k", "expected"),
    [(["a", "x", "b"], 10, 2 / 3), (["a", "x", "b"], 1, 1 / 3), (["x"], 10, 0.0), (["c", "b", "a"], 3, 1.0)],
)
def test_recall_is_the_share_that_was_found(ranking: list[str], k: int, expected: float) -> None:
    assert metrics.recall(ranking, GRADES, k) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("ranking", "k", "expected"),
    [(["c"], 10, 1.0), (["x", "y", "c", "a"], 10, 1 / 3), (["x", "a"], 1, 0.0), ([], 9, 0)],
)
def test_the_reciprocal_rank_is_that_of_the_first_relevant_document(
    ranking: list[str], k: int, expected: float
) -> None:
    assert metrics.reciprocal_rank(ranking, GRADES, k) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("count", "percent", "expected"), [(1, 50, 1), (4, 50, 2), (5, 50, 3), (100, 99, 99), (200, 99, 198), (3, 99, 3)]
)
def test_a_percentile_is_one_of_the_values(count: int, percent: int, expected: int) -> None:
    assert metrics.percentile(list(range(count, 0, -1)), percent) == expected


RANKINGS = st.permutations("abcdefgh").flatmap(lambda ids: st.integers(0, 8).map(lambda count: ids[:count]))
GRADED = st.dictionaries(st.sampled_from("abcdefgh"), st.floats(0.01, 100), min_size=1)


@settings(deadline=None)
@given(RANKINGS, GRADED, st.integers(1, 10))
def test_every_figure_lies_between_nothing_and_all(ranking: list[str], grades: dict[str, float], k: int) -> None:
    for figure in (metrics.ndcg, metrics.recall, metrics.reciprocal_rank):
        assert 0.0 <= figure(ranking, grades, k) <= 1.0 + 1e-12


@settings(deadline=None)
@given(GRADED, st.integers(1, 10))
def test_the_best_order_gets_everything(grades: dict[str, float], k: int) -> None:
    best = sorted(grades, key=lambda name: -grades[name])
    assert metrics.ndcg(best, grades, k) == pytest.approx(1.0)
    assert metrics.reciprocal_rank(best, grades, k) == 1.0
    assert metrics.recall(best, grades, len(grades)) == 1.0


@settings(deadline=None)
@given(st.permutations("abcdefgh"), GRADED, st.integers(1, 10), st.integers(0, 6))
def test_moving_a_better_document_up_never_harms(
    ranking: list[str], grades: dict[str, float], k: int, place: int
) -> None:
    better = list(ranking)
    if grades.get(better[place + 1], 0) > grades.get(better[place], 0):
        better[place], better[place + 1] = better[place + 1], better[place]
    for figure in (metrics.ndcg, metrics.recall, metrics.reciprocal_rank):
        assert figure(better, grades, k) >= figure(ranking, grades, k) - 1e-12


# ── measuring a KB ─────────────────────────────────────────────────────────────────────────────────


class FixedKb:
    """A KB that answers every query with the same chunks. A search takes one millisecond for each requested chunk."""

    def __init__(self, clock: ManualClock, chunks: list[str], *, is_partial: bool = False) -> None:
        self.asked: list[int] = []
        self._clock = clock
        self._chunks = chunks
        self._is_partial = is_partial

    def search(self, query: str, *, limit: int, mode: str, options: SearchOptions | None = None) -> Hits:
        if mode == "graph":
            raise errors.no_such_document("kb", "graph")
        self.asked.append(limit)
        self._clock.advance(limit / 1000)
        hits = [Hit(name, "", "", "", "", 0.0, None, {}, 0, 0) for name in self._chunks[:limit]]
        return Hits(tuple(hits), manifest_version=1, shards_asked=1, partial=self._is_partial)


QUERIES = [JudgedQuery("first?", {"d1": 1.0}), JudgedQuery("second?", {"d0": 1.0, "gone": 1.0})]


def test_a_document_ranks_where_its_best_chunk_does() -> None:
    clock = ManualClock()
    figures = measure(FixedKb(clock, ["d0", "d0", "d0", "d1", "d0"]), QUERIES, "vector", clock=clock)
    assert figures.mrr_at_10 == pytest.approx((1 / 2 + 1) / 2)
    assert figures.recall_at_10 == figures.recall_at_100 == pytest.approx((1 + 1 / 2) / 2)


def test_more_chunks_are_asked_for_until_there_are_a_hundred_documents() -> None:
    clock = ManualClock()
    deep = FixedKb(clock, ["d0"] * 700 + [f"d{number}" for number in range(200)])
    assert measure(deep, QUERIES, "vector", clock=clock).recall_at_100 == pytest.approx((1 + 1 / 2) / 2)
    assert deep.asked == [10, *[10, 200, 400, 800] * 2]


def test_a_measurement_of_a_small_kb_ends() -> None:
    clock = ManualClock()
    small = FixedKb(clock, ["d0", "d1"])
    measure(small, QUERIES, "vector", clock=clock)
    assert max(small.asked) == 400


def test_the_time_is_that_of_a_search_for_ten() -> None:
    clock = ManualClock()
    figures = measure(FixedKb(clock, ["d0"]), QUERIES, "vector", clock=clock)
    assert figures.p50_ms == pytest.approx(10)
    assert figures.p99_ms == pytest.approx(10)


def test_answers_that_lack_a_shard_are_counted() -> None:
    clock = ManualClock()
    assert measure(FixedKb(clock, ["d0"], is_partial=True), QUERIES, "vector", clock=clock).partial == 2


def test_a_mode_without_data_is_left_out_unless_it_is_the_only_one() -> None:
    clock = ManualClock()
    kb = FixedKb(clock, ["d0"])
    measured = measure_all(kb, QUERIES, ["graph", "vector"], clock=clock)
    assert list(measured.modes) == ["vector"]
    assert measured.unavailable["graph"].code == "E214"
    with pytest.raises(errors.NotFoundError):
        measure_all(kb, QUERIES, ["graph"], clock=clock)
