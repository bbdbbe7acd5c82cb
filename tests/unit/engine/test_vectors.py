"""The vector index of a shard, compared with a scan of every row."""

import itertools
from pathlib import Path
from typing import Any

import faiss as typed_faiss
import numpy as np
import numpy.typing as npt
import pytest

from pair.engine.format.vectors import (
    ANN_MIN_ROWS,
    Codes,
    Grouping,
    Selection,
    VectorIndex,
    Vectors,
    compute_distances,
    compute_squares,
    encode,
    find_centroids,
    quantize,
    rank_nearest,
)

DIMENSION = 32
faiss: Any = typed_faiss


def clustered(rows: int, *, clusters: int = 40, seed: int = 1) -> Vectors:
    """Return vectors around fixed centres."""
    centers = np.random.default_rng(0).normal(size=(clusters, DIMENSION))
    dice = np.random.default_rng(seed)
    vectors = centers[dice.integers(clusters, size=rows)] + 0.3 * dice.normal(size=(rows, DIMENSION))
    unit: Vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    return unit


def index_of(vectors: Vectors) -> VectorIndex:
    return VectorIndex(vectors, compute_squares(vectors), encode(vectors))


def find_nearest(
    index: VectorIndex,
    query: Vectors,
    limit: int,
    *,
    allowed: Selection | None,
    exact: bool,
    within: float | None = None,
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Return the nearest rows of one index, with their distances."""
    found = index.estimate(query, limit, allowed=allowed, exact=exact, within=within)
    _, rows, distances = rank_nearest([found], query, limit, within)
    return distances, rows


@pytest.fixture(scope="module")
def many() -> tuple[Vectors, VectorIndex]:
    vectors = clustered(6000)
    return vectors, index_of(vectors)


def nearest_by_hand(vectors: Vectors, query: Vectors, limit: int, allowed: Selection | None) -> list[tuple[float, int]]:
    """Return the nearest allowed rows by a scan, with all ties of the last one."""
    distances = np.sqrt(((vectors.astype(np.float64) - query.astype(np.float64)) ** 2).sum(axis=1)).astype(np.float32)
    ranked = sorted((float(distances[row]), row) for row in range(len(vectors)) if allowed is None or allowed[row])
    return [each for each in ranked if each[0] <= ranked[min(limit, len(ranked)) - 1][0]] if ranked else []


def found_exactly(
    index: VectorIndex, query: Vectors, limit: int, allowed: Selection | None = None
) -> list[tuple[float, int]]:
    distances, rows = find_nearest(index, query, limit, allowed=allowed, exact=True)
    ranked = sorted(zip(distances.tolist(), rows.tolist(), strict=True))
    return [each for each in ranked if each[0] <= ranked[min(limit, len(ranked)) - 1][0]] if ranked else []


def tied(rows: int, *, seed: int) -> Vectors:
    """Return rows with only 81 distinct vectors."""
    return np.random.default_rng(seed).integers(-1, 2, size=(rows, 4)).astype(np.float32)


def long_and_near(rows: int) -> Vectors:
    """Return long vectors that are close together, whose squares cancel out in float32 arithmetic."""
    return (1000 + 0.01 * np.random.default_rng(4).normal(size=(rows, 8))).astype(np.float32)


@pytest.mark.parametrize(
    ("vectors", "queries", "limits"),
    [
        pytest.param(clustered(500), clustered(5, seed=2), [1, 2, 10, 500, 501], id="clustered"),
        pytest.param(tied(300, seed=3), tied(20, seed=4), [1, 3, 7, 20], id="ties and duplicates"),
        pytest.param(long_and_near(400), long_and_near(400)[:10], [5], id="long vectors that are near"),
        pytest.param(clustered(6000), clustered(5, seed=5), [10], id="a shard with an index"),
    ],
)
def test_an_exact_search_is_a_look_at_every_row(vectors: Vectors, queries: Vectors, limits: list[int]) -> None:
    index = index_of(vectors)
    for query, limit in itertools.product(queries, limits):
        assert found_exactly(index, query, limit) == nearest_by_hand(vectors, query, limit, None)


def test_the_distance_of_two_vectors_does_not_depend_on_their_place() -> None:
    vectors = clustered(1000)
    query = clustered(1, seed=6)[0]
    whole = compute_distances(vectors, query)
    for size in (1, 3, 64, 999):
        parts = [compute_distances(vectors[begin : begin + size], query) for begin in range(0, len(vectors), size)]
        assert np.concatenate(parts).tobytes() == whole.tobytes()


def recall(vectors: Vectors, index: VectorIndex, allowed: Selection | None) -> float:
    shares = []
    for query in clustered(100, seed=7):
        expected = {row for _, row in nearest_by_hand_fast(vectors, query, 10, allowed)}
        distances, rows = find_nearest(index, query, 10, allowed=allowed, exact=False)
        best = rows[np.argsort(distances, kind="stable")[:10]]
        assert allowed is None or allowed[rows].all()
        shares.append(len(expected & set(best.tolist())) / len(expected))
    return float(np.mean(shares))


def nearest_by_hand_fast(
    vectors: Vectors, query: Vectors, limit: int, allowed: Selection | None
) -> list[tuple[float, int]]:
    rows = np.arange(len(vectors)) if allowed is None else np.flatnonzero(allowed)
    distances = compute_distances(vectors[rows], query)
    return [(float(distances[each]), int(rows[each])) for each in np.argsort(distances, kind="stable")[:limit]]


def test_the_index_finds_nearly_all_neighbours(many: tuple[Vectors, VectorIndex]) -> None:
    assert recall(*many, None) >= 0.95


def test_a_bound_on_the_distance_hides_nothing_that_is_within_it(many: tuple[Vectors, VectorIndex]) -> None:
    """This holds for queries in the same cluster as the vectors and for distant ones."""
    vectors, index = many
    own, elsewhere = clustered(100, seed=7), clustered(100, clusters=400, seed=9)
    for query in (*own, *elsewhere):
        expected = nearest_by_hand_fast(vectors, query, 10, None)
        unbounded = set(find_nearest(index, query, 10, allowed=None, exact=False)[1].tolist())
        _, rows = find_nearest(index, query, 10, allowed=None, exact=False, within=expected[-1][0])
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
        distances, rows = find_nearest(index, query, 10, allowed=allowed, exact=False)
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
    _, rows = find_nearest(index_of(vectors), vectors[0], limit, allowed=None, exact=True)
    assert rows.tolist() == []


def test_nothing_is_found_where_nothing_is_or_may_be() -> None:
    empty = np.empty((0, DIMENSION), np.float32)
    query = clustered(1)[0]
    assert find_nearest(index_of(empty), query, 5, allowed=None, exact=False)[1].tolist() == []
    vectors = clustered(10)
    assert find_nearest(index_of(vectors), query, 5, allowed=np.zeros(10, np.bool_), exact=True)[1].tolist() == []


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
    centroids, radii = find_centroids(vectors, 8)
    assert 1 < len(centroids) <= 8
    assert centroids.tobytes() == centroids.astype(np.float16).astype(np.float32).tobytes(), (
        "as the manifest keeps them"
    )
    distances = np.sqrt(((vectors[:, None, :].astype(np.float64) - centroids[None]) ** 2).sum(axis=2))
    assert (distances <= np.array(radii) + 1e-4).any(axis=1).all()


def test_no_vectors_have_no_centroid() -> None:
    centroids, radii = find_centroids(np.empty((0, DIMENSION), np.float32), 8)
    assert centroids.shape == (0, DIMENSION)
    assert list(radii) == []


# ── untrusted codes ────────────────────────────────────────────────────────────────────────────────


def written(index: Any) -> npt.NDArray[np.uint8]:
    content: npt.NDArray[np.uint8] = faiss.serialize_index(index)
    return content


KINDS = [
    "Flat", "IVF4,Flat", "HNSW8", "HNSW8,SQ8", "LSH", "PQ4", "PQ4x4", "SQ8", "SQ4", "IVF4,PQ4", "IVF4,SQ8", "PCA8,Flat",
    "IVF4,PQ4x4fs", "PQ4,RFlat", "NSG8,Flat", "RR16,Flat", "L2norm,Flat",
    "ITQ8,LSH", "IVF4_HNSW8,Flat", "PQ8x4fs",
]  # fmt: skip


@pytest.fixture(scope="module")
def coded() -> tuple[Vectors, Codes]:
    vectors = clustered(ANN_MIN_ROWS + 5)
    codes = encode(vectors)
    assert codes is not None
    codes.check(*vectors.shape)
    return vectors, codes


@pytest.mark.parametrize("kind", KINDS)
def test_codes_of_a_different_kind_of_index_are_refused(coded: tuple[Vectors, Codes], kind: str) -> None:
    vectors, codes = coded
    faiss.omp_set_num_threads(1)
    index = faiss.index_factory(DIMENSION, kind)
    index.train(vectors[:600])
    index.add(vectors[:600])
    with pytest.raises(ValueError, match="do not match"):
        Codes(written(index), codes.error).check(*vectors.shape)


def test_codes_that_map_a_file_are_refused(coded: tuple[Vectors, Codes], tmp_path: Path) -> None:
    vectors, codes = coded
    index = faiss.index_factory(DIMENSION, "IVF4,Flat")
    index.train(vectors[:600])
    lists = faiss.OnDiskInvertedLists(4, index.code_size, str(tmp_path / "lists"))
    index.replace_invlists(lists)
    index.add(vectors[:600])
    with pytest.raises(ValueError, match="do not match"):
        Codes(written(index), codes.error).check(*vectors.shape)


@pytest.mark.parametrize("binary", ["BFlat", "BIVF4", "BHNSW8"])
def test_codes_of_a_binary_index_are_refused(coded: tuple[Vectors, Codes], binary: str) -> None:
    vectors, codes = coded
    index = faiss.index_binary_factory(DIMENSION, binary)
    content = faiss.serialize_index_binary(index)
    with pytest.raises(ValueError, match="do not match"):
        Codes(content, codes.error).check(*vectors.shape)


def test_codes_that_were_cut_off_or_lie_about_their_size_are_refused(coded: tuple[Vectors, Codes]) -> None:
    vectors, codes = coded
    rows, dimension = vectors.shape
    for size in (0, 4, 40, 100, codes.index.size // 2, codes.index.size - 1):
        with pytest.raises(ValueError, match="do not match"):
            Codes(codes.index[:size], codes.error).check(rows, dimension)
    for expected in ((rows + 1, dimension), (rows, dimension + 2), (rows - 31, dimension)):
        with pytest.raises(ValueError, match="do not match"):
            codes.check(*expected)
    middle = codes.index.size - (rows + 31) // 32 * 32 * dimension // 4 - 36
    for place in (*range(69), *range(middle, middle + 36)):
        changed = codes.index.copy()
        changed[place] ^= 0x41
        with pytest.raises(ValueError, match="do not match"):
            Codes(changed, codes.error).check(rows, dimension)


@pytest.mark.parametrize("error", [[], [1.0, 2.0], [-1.0], [np.nan], [np.inf]])
def test_codes_without_an_error_that_can_be_are_refused(coded: tuple[Vectors, Codes], error: list[float]) -> None:
    vectors, codes = coded
    with pytest.raises(ValueError, match="not a finite number"):
        Codes(codes.index, np.array(error, np.float32)).check(*vectors.shape)


def test_any_centroids_and_codes_are_searched_without_leaving_the_rows(coded: tuple[Vectors, Codes]) -> None:
    vectors, codes = coded
    dice = np.random.default_rng(0)
    for value in (0, 255, 127):
        changed = codes.index.copy()
        changed[69 : 69 + DIMENSION * 64] = value  # NaN, zero, huge
        changed[-4000:] = dice.integers(256, size=4000)
        index = VectorIndex(vectors, compute_squares(vectors), Codes(changed, codes.error))
        for within in (None, 0.5, 1e9):
            _, rows = find_nearest(index, vectors[0], 10, allowed=None, exact=False, within=within)
            assert ((rows >= 0) & (rows < len(vectors))).all()


def test_few_vectors_are_quantized_without_a_warning_of_the_library(capfd: pytest.CaptureFixture[str]) -> None:
    vectors = np.random.default_rng(0).standard_normal((300, 8), np.float32)
    values, codes = quantize(vectors, 2)
    assert (values.shape, codes.shape) == ((2, 256, 4), (300, 2))
    assert capfd.readouterr() == ("", "")
