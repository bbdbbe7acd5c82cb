"""Figures of rankings, against numbers worked out by hand."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pair.evaluation import measure

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
    assert measure.ndcg(ranking, GRADES, k) == pytest.approx(expected)


def test_ndcg_of_a_known_example() -> None:
    # Grades 3 2 3 0 1 2 in this order: gain 6.861 of 7.141.
    grades = {"1": 3.0, "2": 2.0, "3": 3.0, "5": 1.0, "6": 2.0}
    assert measure.ndcg(["1", "2", "3", "4", "5", "6"], grades, 6) == pytest.approx(0.961, abs=5e-4)


@pytest.mark.parametrize(
    ("ranking", "k", "expected"),
    [(["a", "x", "b"], 10, 2 / 3), (["a", "x", "b"], 1, 1 / 3), (["x"], 10, 0.0), (["c", "b", "a"], 3, 1.0)],
)
def test_recall_is_the_share_that_was_found(ranking: list[str], k: int, expected: float) -> None:
    assert measure.recall(ranking, GRADES, k) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("ranking", "k", "expected"),
    [(["c"], 10, 1.0), (["x", "y", "c", "a"], 10, 1 / 3), (["x", "a"], 1, 0.0), ([], 9, 0)],
)
def test_the_reciprocal_rank_is_that_of_the_first_relevant_document(
    ranking: list[str], k: int, expected: float
) -> None:
    assert measure.reciprocal_rank(ranking, GRADES, k) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("count", "percent", "expected"), [(1, 50, 1), (4, 50, 2), (5, 50, 3), (100, 99, 99), (200, 99, 198), (3, 99, 3)]
)
def test_a_percentile_is_one_of_the_values(count: int, percent: int, expected: int) -> None:
    assert measure.percentile(list(range(count, 0, -1)), percent) == expected


RANKINGS = st.permutations("abcdefgh").flatmap(lambda ids: st.integers(0, 8).map(lambda count: ids[:count]))
GRADED = st.dictionaries(st.sampled_from("abcdefgh"), st.floats(0.01, 100), min_size=1)


@settings(deadline=None)
@given(RANKINGS, GRADED, st.integers(1, 10))
def test_every_figure_lies_between_nothing_and_all(ranking: list[str], grades: dict[str, float], k: int) -> None:
    for figure in (measure.ndcg, measure.recall, measure.reciprocal_rank):
        assert 0.0 <= figure(ranking, grades, k) <= 1.0 + 1e-12


@settings(deadline=None)
@given(GRADED, st.integers(1, 10))
def test_the_best_order_gets_everything(grades: dict[str, float], k: int) -> None:
    best = sorted(grades, key=lambda name: -grades[name])
    assert measure.ndcg(best, grades, k) == pytest.approx(1.0)
    assert measure.reciprocal_rank(best, grades, k) == 1.0
    assert measure.recall(best, grades, len(grades)) == 1.0


@settings(deadline=None)
@given(st.permutations("abcdefgh"), GRADED, st.integers(1, 10), st.integers(0, 6))
def test_moving_a_better_document_up_never_harms(
    ranking: list[str], grades: dict[str, float], k: int, place: int
) -> None:
    better = list(ranking)
    if grades.get(better[place + 1], 0) > grades.get(better[place], 0):
        better[place], better[place + 1] = better[place + 1], better[place]
    for figure in (measure.ndcg, measure.recall, measure.reciprocal_rank):
        assert figure(better, grades, k) >= figure(ranking, grades, k) - 1e-12
