"""Adjacent hits, equal hits, and similar hits."""

import numpy as np
import pytest

from pair.engine.query.search import diversify, fold_duplicates, merge_neighbours
from pair.values import Hit

TEXT = "Alpha beta.\n\nGamma delta.\n\nEpsilon zeta."


def hit(start: int, end: int, score: float, *, document: str = "a") -> Hit:
    return Hit(document, f"{document}#{start}", "Title", "", TEXT[start:end], score, None, {}, start, end)


def read(found: Hit, start: int, end: int) -> str:
    return TEXT[start:end]


def test_hits_with_text_between_them_stay_apart() -> None:
    hits = (hit(0, 11, 0.9), hit(27, 40, 0.8))
    assert merge_neighbours(hits, read) == hits
    assert [each.text for each in merge_neighbours(hits, read, most_gap=20)] == [TEXT]


def test_overlapping_hits_say_everything_once() -> None:
    merged = merge_neighbours([hit(6, 25, 0.5), hit(0, 11, 0.4), hit(13, 18, 0.3)], read)
    assert [each.text for each in merged] == ["Alpha beta.\n\nGamma delta."]


def test_the_same_text_in_two_documents_is_one_hit_with_both_citations() -> None:
    again = hit(0, 11, 0.5, document="b")
    folded = fold_duplicates([hit(0, 11, 0.9), hit(13, 25, 0.8), again])
    assert [(each.document_id, each.start) for each in folded] == [("a", 0), ("a", 13)]
    assert folded[0].to_json()["also_in"] == [
        {"id": "b", "chunk_id": "b#0", "title": "Title", "url": "", "start": 0, "end": 11}
    ]
    assert folded[1].also_in == ()


def test_case_and_whitespace_make_no_difference() -> None:
    loud = Hit("b", "b#0", "", "", "ALPHA\n beta. ", 0.1, None, {}, 0, 13)
    assert len(fold_duplicates([hit(0, 11, 0.9), loud])) == 1


VECTORS = np.array([[1, 0], [1, 0.01], [0, 1], [0, 0]], np.float32)


def test_diversity_prefers_what_is_unlike_the_hits_before() -> None:
    scores = [0.9, 0.89, 0.5, 0.4]
    assert diversify(scores, VECTORS, 4, 1.0) == [0, 1, 2, 3]
    assert diversify(scores, VECTORS, 2, 0.5) == [0, 2]
    assert diversify(scores, VECTORS, 10, 0.5) == [0, 2, 3, 1]


@pytest.mark.parametrize("limit", [-1, 0])
def test_nothing_is_chosen_when_nothing_is_wanted(limit: int) -> None:
    assert diversify([0.5] * 4, VECTORS, limit, 0.5) == []
    assert diversify([], np.empty((0, 2), np.float32), 3, 0.5) == []


def test_of_equals_the_first_is_chosen_first() -> None:
    assert diversify([0.5] * 3, np.ones((3, 2), np.float32), 3, 0.5) == [0, 1, 2]
