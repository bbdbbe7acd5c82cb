"""The vector index of a shard: build, map, search under a selection of rows.

Invariants
    A distance does not depend on where its row lies: the same two vectors are equally far apart, to the last bit.
    An exact search leaves out no row that is as near as those it returns.
"""

from collections.abc import Sequence
from typing import Any

import faiss as typed_faiss
import numpy as np
import numpy.typing as npt

faiss: Any = typed_faiss
"""Its stubs know half of what it has."""

Vectors = npt.NDArray[np.float32]
Distances = npt.NDArray[np.float32]
RowNumbers = npt.NDArray[np.int64]
Selection = npt.NDArray[np.bool_]

ANN_MIN_ROWS = 2048
"""Below this, looking at every row is as fast as an index."""
_LINKS = 24
_BUILD_EFFORT = 48
_SEARCH_EFFORT = 64
_EXACT_SHARE = 0.05
"""An index that may return only so few of its rows finds them more slowly than a look at each of them."""
_ROUNDING = 1e-4
"""More than float32 loses in a sum of products, for vectors of length 1."""


def exact_distances(vectors: Vectors, query: Vectors) -> Distances:
    """Euclidean. Summed in float64, row by row, in an order that only the dimension decides."""
    difference = vectors.astype(np.float64) - query.astype(np.float64)
    distances: Distances = np.sqrt((difference * difference).sum(axis=1)).astype(np.float32)
    return distances


def squares_of(vectors: Vectors) -> npt.NDArray[np.float32]:
    squares: npt.NDArray[np.float32] = np.einsum("ij,ij->i", vectors, vectors, dtype=np.float32)
    return squares


def build_index(vectors: Vectors) -> npt.NDArray[np.uint8] | None:
    """The graph of near neighbours over one byte for each number, as bytes; None where it is not worth it."""
    rows, dimension = vectors.shape
    if rows < ANN_MIN_ROWS:
        return None
    index = faiss.IndexHNSWSQ(dimension, faiss.ScalarQuantizer.QT_8bit, _LINKS)
    index.hnsw.efConstruction = _BUILD_EFFORT
    contiguous = np.ascontiguousarray(vectors)
    index.train(contiguous)
    index.add(contiguous)
    serialized: npt.NDArray[np.uint8] = faiss.serialize_index(index)
    return serialized


class VectorIndex:
    """Rows of a shard by nearness. `index`: what `build_index` made, still in the mapped file."""

    def __init__(self, vectors: Vectors, squares: npt.NDArray[np.float32], index: npt.NDArray[np.uint8] | None) -> None:
        self._vectors = vectors
        self._squares = squares
        self._bytes = index
        self._index: Any = None
        if index is not None:
            # faiss reads from the mapping itself, so that opening costs no copy; self._bytes keeps it alive.
            self._reader = faiss.ZeroCopyIOReader(faiss.swig_ptr(index), index.size)
            self._index = faiss.read_index(self._reader)

    def nearest(
        self, query: Vectors, limit: int, *, allowed: Selection | None, exact: bool
    ) -> tuple[Distances, RowNumbers]:
        """At least the `limit` nearest rows, when there are so many; more where several are equally near."""
        count = len(self._vectors) if allowed is None else int(np.count_nonzero(allowed))
        if count == 0 or limit <= 0:
            return np.empty(0, np.float32), np.empty(0, np.int64)
        is_few = count <= max(limit, ANN_MIN_ROWS, int(len(self._vectors) * _EXACT_SHARE))
        if exact or self._index is None or is_few:
            rows = self._near_enough(query, min(limit, count), allowed)
        else:
            rows = self._approximate(query, min(limit, count), allowed)
        return exact_distances(self._vectors[rows], query), rows

    def _near_enough(self, query: Vectors, limit: int, allowed: Selection | None) -> RowNumbers:
        """By fast arithmetic, with a margin for its rounding."""
        if allowed is None:
            rows, vectors, squares = None, self._vectors, self._squares
        else:
            rows = np.flatnonzero(allowed)
            vectors, squares = self._vectors[rows], self._squares[rows]
        rough = squares - 2 * (vectors @ query)
        if limit < len(rough):
            margin = _ROUNDING * (float(query @ query) + float(squares.max()))
            chosen = np.flatnonzero(rough <= np.partition(rough, limit - 1)[limit - 1] + margin)
        else:
            chosen = np.arange(len(rough))
        return chosen if rows is None else rows[chosen]

    def _approximate(self, query: Vectors, limit: int, allowed: Selection | None) -> RowNumbers:
        """Some more than wanted, by their bytes; the caller ranks them by their numbers."""
        wanted = min(limit + max(limit // 2, 10), len(self._vectors))
        parameters = faiss.SearchParametersHNSW(efSearch=max(_SEARCH_EFFORT, wanted))
        if allowed is not None:
            bits = np.packbits(allowed, bitorder="little")
            selector = faiss.IDSelectorBitmap(len(bits), faiss.swig_ptr(bits))
            parameters = faiss.SearchParametersHNSW(efSearch=max(_SEARCH_EFFORT, wanted), sel=selector)
        _, found = self._index.search(query[None, :], wanted, params=parameters)
        rows: RowNumbers = found[0][found[0] >= 0]
        return rows


# ── groups of near vectors ─────────────────────────────────────────────────────────────────────────

_SAMPLE_PER_GROUP = 64
_ROUNDS = 10
_SLACK = 1.3
"""How much larger than the average a group may become."""
_BLOCK_ROWS = 8192
_CHOICES = 8
_CLUSTERS_PER_GROUP = 64
_MOST_CLUSTERS = 2048
_LEAST_SAMPLE_PER_CLUSTER = 8
_PACKING_SLACK = 1.15
_SAMPLE_PER_CLUSTER = 40
"""Vectors that are enough to find a cluster by."""


def sample_size(groups: int) -> int:
    """How many vectors `Grouping` wants to see."""
    return _SAMPLE_PER_CLUSTER * min(groups * _CLUSTERS_PER_GROUP, _MOST_CLUSTERS)


class Grouping:
    """Groups of about equal weight, of vectors that are near to each other; given out piece by piece.

    Vectors belong to small clusters, and clusters to groups: a group's border then goes between clusters, where few
    vectors are, and not through them.
    """

    def __init__(self, sample: Vectors, groups: int, weight: int) -> None:
        groups = min(groups, len(sample))  # k-means refuses more groups than there are vectors
        clusters = min(groups * _CLUSTERS_PER_GROUP, _MOST_CLUSTERS, len(sample) // _LEAST_SAMPLE_PER_CLUSTER)
        self._means = _means(sample, max(groups, clusters))
        members = np.bincount(_nearest(self._means, sample, 1)[0][:, 0], minlength=len(self._means))
        self._group_of_cluster = _packed(self._means, members, groups)
        self._room = np.full(groups, _SLACK * weight / groups)

    def assign(self, vectors: Vectors, weights: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The group of each: that of its nearest cluster whose group has room; those who care most choose first."""
        clusters, eagerness = _nearest(self._means, vectors, _CHOICES)
        return _given_out(self._group_of_cluster[clusters], eagerness, weights, self._room)


def _packed(means: Vectors, members: npt.NDArray[np.int64], groups: int) -> npt.NDArray[np.int64]:
    """The group of each cluster: near ones together, and about as many vectors in each."""
    if len(means) == groups:
        return np.arange(groups)
    choices, eagerness = _nearest(_means(means, groups), means, _CHOICES)
    return _given_out(choices, eagerness, members, np.full(groups, _PACKING_SLACK * members.sum() / groups))


def _given_out(
    choices: npt.NDArray[np.int64],
    eagerness: npt.NDArray[np.float32],
    weights: npt.NDArray[np.int64],
    room: npt.NDArray[np.float64],
) -> npt.NDArray[np.int64]:
    """One of the choices of each, as long as there is room; `room` becomes less."""
    given = np.empty(len(choices), np.int64)
    for number in np.argsort(-eagerness, kind="stable"):
        weight = weights[number]
        chosen = next((each for each in choices[number] if room[each] >= weight), int(np.argmax(room)))
        given[number] = chosen
        room[chosen] -= weight
    return given


def _nearest(means: Vectors, vectors: Vectors, count: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """The nearest means of each vector, and by how much it prefers the first to the second."""
    choices = min(len(means), count)
    nearest = np.empty((len(vectors), choices), np.int64)
    eagerness = np.zeros(len(vectors), np.float32)
    flat = faiss.IndexFlatL2(means.shape[1])
    flat.add(np.ascontiguousarray(means))
    for begin in range(0, len(vectors), _BLOCK_ROWS):
        block = np.ascontiguousarray(vectors[begin : begin + _BLOCK_ROWS])
        distance, nearest[begin : begin + len(block)] = flat.search(block, choices)
        if choices > 1:
            eagerness[begin : begin + len(block)] = distance[:, 1] - distance[:, 0]
    return nearest, eagerness


def _means(vectors: Vectors, groups: int) -> Vectors:
    sample = vectors
    if len(vectors) > groups * _SAMPLE_PER_GROUP:
        step = len(vectors) / (groups * _SAMPLE_PER_GROUP)
        sample = vectors[(np.arange(groups * _SAMPLE_PER_GROUP) * step).astype(np.int64)]
    kmeans = faiss.Kmeans(
        vectors.shape[1], groups, niter=_ROUNDS, seed=1, min_points_per_centroid=1, max_points_per_centroid=10**9
    )
    kmeans.train(np.ascontiguousarray(sample))
    means: Vectors = kmeans.centroids
    return means


def centroids_of(vectors: Vectors, most: int) -> tuple[Vectors, Sequence[float]]:
    """A few means that stand for these vectors, each with the distance of the farthest that is nearest to it."""
    if not len(vectors):
        return np.empty((0, vectors.shape[1]), np.float32), ()
    count = max(1, min(most, len(vectors) // 256))
    # float16 is what the manifest keeps: radii must hold for the rounded means.
    exact_means = vectors.mean(axis=0, keepdims=True) if count == 1 else _means(vectors, count)
    means = exact_means.astype(np.float16).astype(np.float32)
    flat = faiss.IndexFlatL2(vectors.shape[1])
    flat.add(np.ascontiguousarray(means))
    radii = np.zeros(len(means), np.float32)
    for begin in range(0, len(vectors), _BLOCK_ROWS):
        squared, owner = flat.search(np.ascontiguousarray(vectors[begin : begin + _BLOCK_ROWS]), 1)
        np.maximum.at(radii, owner[:, 0], np.sqrt(np.maximum(squared[:, 0], 0)))
    return means, [float(radius) for radius in radii]
