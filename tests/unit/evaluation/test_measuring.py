"""What is asked of a KB to measure it, and what is made of its answers."""

import pytest

from pair import errors
from pair.engine.query.request import Hits
from pair.evaluation.judged_set import JudgedQuery
from pair.evaluation.measure import measure, measure_all
from pair.testing.clock import ManualClock
from pair.values import Hit


class FixedKb:
    """Answers every query with the same chunks; a search takes a millisecond for each that is asked for."""

    def __init__(self, clock: ManualClock, chunks: list[str], *, is_partial: bool = False) -> None:
        self.asked: list[int] = []
        self._clock = clock
        self._chunks = chunks
        self._is_partial = is_partial

    def search(self, query: str, *, limit: int, mode: str) -> Hits:
        if mode == "graph":
            raise errors.no_such_document("shelf", "graph")
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


def test_a_kb_with_few_documents_is_not_asked_for_ever() -> None:
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
    shelf = FixedKb(clock, ["d0"])
    measured = measure_all(shelf, QUERIES, ["graph", "vector"], clock=clock)
    assert list(measured.modes) == ["vector"]
    assert measured.unavailable["graph"].code == "E214"
    with pytest.raises(errors.NotFoundError):
        measure_all(shelf, QUERIES, ["graph"], clock=clock)
