"""The vector index of a shard, against a look at every row."""

import numpy as np
import numpy.typing as npt
import pytest

from pair.engine.vectors import (
    ANN_MIN_ROWS,
    Grouping,
    Selection,
    VectorIndex,
    Vectors,
    centroids_of,
    encode,
    exact_distances,
    squares_of,
)

DIMENSION = 32


def clustered(rows: int, *, clusters: int = 40, seed: int = 1) -> Vectors:
    """Always around the same centres."""
    centers = np.random.default_rng(0).normal(size=(clusters, DIMENSION))
    dice = np.random.default_rng(seed)
    vectors = centers[dice.integers(clusters, size=rows)] + 0.3 * dice.normal(size=(rows, DIMENSION))
    unit: Vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    return unit


def index_of(vectors: Vectors) -> VectorIndex:
    return VectorIndex(vectors, squares_of(vectors), encode(vectors))


@pytest.fixture(scope="module")
def many() -> tuple[Vectors, VectorIndex]:
    vectors = clustered(6000)
    return vectors, index_of(vectors)


def nearest_by_hand(vectors: Vectors, query: Vectors, limit: int, allowed: Selection | None) -> list[tuple[float, int]]:
    """Every allowed row that is as near as the last that is wanted."""
    distances = np.sqrt(((vectors.astype(np.float64) - query.astype(np.float64)) ** 2).sum(axis=1)).astype(np.float32)
    ranked = sorted((float(distances[row]), row) for row in range(len(vectors)) if allowed is None or allowed[row])
    return [each for each in ranked if each[0] <= ranked[min(limit, len(ranked)) - 1][0]] if ranked else []


def found_exactly(
    index: VectorIndex, query: Vectors, limit: int, allowed: Selection | None = None
) -> list[tuple[float, int]]:
    distances, rows = index.nearest(query, limit, allowed=allowed, exact=True)
    ranked = sorted(zip(distances.tolist(), rows.tolist(), strict=True))
    return [each for each in ranked if each[0] <= ranked[min(limit, len(ranked)) - 1][0]] if ranked else []


@pytest.mark.parametrize("limit", [1, 2, 10, 500, 501])
def test_an_exact_search_is_a_look_at_every_row(limit: int) -> None:
    vectors = clustered(500)
    index = index_of(vectors)
    for query in clustered(5, seed=2):
        assert found_exactly(index, query, limit) == nearest_by_hand(vectors, query, limit, None)


@pytest.mark.parametrize("limit", [1, 3, 7, 20])
def test_an_exact_search_leaves_out_no_tie_and_no_duplicate(limit: int) -> None:
    dice = np.random.default_rng(3)
    vectors = dice.integers(-1, 2, size=(300, 4)).astype(np.float32)  # 81 places for 300 rows
    index = index_of(vectors)
    for query in dice.integers(-1, 2, size=(20, 4)).astype(np.float32):
        assert found_exactly(index, query, limit) == nearest_by_hand(vectors, query, limit, None)


def test_an_exact_search_sees_differences_that_fast_arithmetic_loses() -> None:
    """Long vectors that lie close together: their squares cancel out."""
    dice = np.random.default_rng(4)
    vectors = (1000 + 0.01 * dice.normal(size=(400, 8))).astype(np.float32)
    index = index_of(vectors)
    for query in vectors[:10]:
        assert found_exactly(index, query, 5) == nearest_by_hand(vectors, query, 5, None)


def test_an_exact_search_of_a_large_shard_does_not_trust_the_index(many: tuple[Vectors, VectorIndex]) -> None:
    vectors, index = many
    for query in clustered(5, seed=5):
        assert found_exactly(index, query, 10) == nearest_by_hand(vectors, query, 10, None)


def test_the_distance_of_two_vectors_does_not_depend_on_their_place() -> None:
    vectors = clustered(1000)
    query = clustered(1, seed=6)[0]
    whole = exact_distances(vectors, query)
    for size in (1, 3, 64, 999):
        parts = [exact_distances(vectors[begin : begin + size], query) for begin in range(0, len(vectors), size)]
        assert np.concatenate(parts).tobytes() == whole.tobytes()


def recall(vectors: Vectors, index: VectorIndex, allowed: Selection | None) -> float:
    shares = []
    for query in clustered(100, seed=7):
        expected = {row for _, row in nearest_by_hand_fast(vectors, query, 10, allowed)}
        distances, rows = index.nearest(query, 10, allowed=allowed, exact=False)
        best = rows[np.argsort(distances, kind="stable")[:10]]
        assert allowed is None or allowed[rows].all()
        shares.append(len(expected & set(best.tolist())) / len(expected))
    return float(np.mean(shares))


def nearest_by_hand_fast(
    vectors: Vectors, query: Vectors, limit: int, allowed: Selection | None
) -> list[tuple[float, int]]:
    rows = np.arange(len(vectors)) if allowed is None else np.flatnonzero(allowed)
    distances = exact_distances(vectors[rows], query)
    return [(float(distances[each]), int(rows[each])) for each in np.argsort(distances, kind="stable")[:limit]]


def test_the_index_finds_nearly_all_neighbours(many: tuple[Vectors, VectorIndex]) -> None:
    assert recall(*many, None) >= 0.95


def test_a_bound_on_the_distance_hides_nothing_that_is_within_it(many: tuple[Vectors, VectorIndex]) -> None:
    """Neither where the query shares what a code leaves out, nor where it lies elsewhere."""
    vectors, index = many
    own, elsewhere = clustered(100, seed=7), clustered(100, clusters=400, seed=9)
    for query in (*own, *elsewhere):
        expected = nearest_by_hand_fast(vectors, query, 10, None)
        unbounded = set(index.nearest(query, 10, allowed=None, exact=False)[1].tolist())
        _, rows = index.nearest(query, 10, allowed=None, exact=False, within=expected[-1][0])
        assert {row for _, row in expected} & unbounded <= set(rows.tolist())


@pytest.mark.parametrize("share", [0.9, 0.5])
def test_the_index_finds_nearly_all_neighbours_among_those_allowed(
    many: tuple[Vectors, VectorIndex], share: float
) -> None:
    allowed = np.random.default_rng(8).random(len(many[0])) < share
    assert recall(*many, allowed) >= 0.95


@pytest.mark.parametrize("count", [1, 5, 30])
def test_a_selection_of_few_rows_is_searched_exactly(many: tuple[Vectors, VectorIndex], count: int) -> None:
    vectors, index = many
    allowed = np.zeros(len(vectors), np.bool_)
    allowed[np.random.default_rng(9).choice(len(vectors), count, replace=False)] = True
    for query in clustered(5, seed=10):
        distances, rows = index.nearest(query, 10, allowed=allowed, exact=False)
        ranked = sorted(zip(distances.tolist(), rows.tolist(), strict=True))[:10]
        assert ranked == nearest_by_hand_fast(vectors, query, 10, allowed)


def test_a_selection_holds_for_exact_searches_too() -> None:
    vectors = clustered(300)
    allowed = np.arange(300) % 3 == 0
    query = clustered(1, seed=11)[0]
    assert found_exactly(index_of(vectors), query, 10, allowed) == nearest_by_hand(vectors, query, 10, allowed)


@pytest.mark.parametrize("limit", [0, -1])
def test_nothing_wanted_is_nothing_found(limit: int) -> None:
    vectors = clustered(10)
    _, rows = index_of(vectors).nearest(vectors[0], limit, allowed=None, exact=True)
    assert rows.tolist() == []


def test_nothing_is_found_where_nothing_is_or_may_be() -> None:
    empty = np.empty((0, DIMENSION), np.float32)
    query = clustered(1)[0]
    assert index_of(empty).nearest(query, 5, allowed=None, exact=False)[1].tolist() == []
    vectors = clustered(10)
    assert index_of(vectors).nearest(query, 5, allowed=np.zeros(10, np.bool_), exact=True)[1].tolist() == []


def test_a_small_shard_has_no_index() -> None:
    assert encode(clustered(ANN_MIN_ROWS - 1)) is None


# ── groups ─────────────────────────────────────────────────────────────────────────────────────────


def weights_of(groups: npt.NDArray[np.int64], weights: npt.NDArray[np.int64]) -> list[int]:
    return [int(weight) for weight in np.bincount(groups, weights=weights)]


def test_no_group_has_twice_the_average_weight_and_each_holds_what_is_near() -> None:
    vectors = clustered(2000, clusters=8)
    weights = np.ones(2000, np.int64)
    groups = Grouping(vectors, 8, 2000).assign(vectors, weights)
    assert max(weights_of(groups, weights)) <= 2 * 2000 / 8 + 1
    within = np.mean(
        [np.linalg.norm(vectors[groups == g] - vectors[groups == g].mean(0), axis=1).mean() for g in range(8)]
    )
    overall = np.linalg.norm(vectors - vectors.mean(0), axis=1).mean()
    assert within < 0.9 * overall


def test_more_groups_than_vectors_are_as_many_as_vectors() -> None:
    vectors = clustered(3)
    groups = Grouping(vectors, 10, 30).assign(vectors, np.full(3, 10, np.int64))
    assert len(groups) == 3


def test_equal_vectors_are_spread_over_the_groups() -> None:
    vectors = np.ones((100, DIMENSION), np.float32)
    weights = np.ones(100, np.int64)
    groups = Grouping(vectors, 4, 100).assign(vectors, weights)
    assert max(weights_of(groups, weights)) <= 51


def test_every_vector_lies_within_the_radius_of_a_centroid() -> None:
    vectors = clustered(3000)
    centroids, radii = centroids_of(vectors, 8)
    assert 1 < len(centroids) <= 8
    assert centroids.tobytes() == centroids.astype(np.float16).astype(np.float32).tobytes(), (
        "as the manifest keeps them"
    )
    distances = np.sqrt(((vectors[:, None, :].astype(np.float64) - centroids[None]) ** 2).sum(axis=2))
    assert (distances <= np.array(radii) + 1e-4).any(axis=1).all()


def test_no_vectors_have_no_centroid() -> None:
    centroids, radii = centroids_of(np.empty((0, DIMENSION), np.float32), 8)
    assert centroids.shape == (0, DIMENSION)
    assert list(radii) == []
