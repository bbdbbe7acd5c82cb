"""The vector index of a shard: build, map, search under a selection of rows.

Invariants
    A distance does not depend on where its row lies: the same two vectors are equally far apart, to the last bit.
    An exact search leaves out no row that is as near as those it returns.
"""

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import faiss as typed_faiss
import numpy as np
import numpy.typing as npt

faiss: Any = typed_faiss
"""Its stubs are incomplete."""

Vectors = npt.NDArray[np.float32]
Distances = npt.NDArray[np.float32]
RowNumbers = npt.NDArray[np.int64]
Selection = npt.NDArray[np.bool_]

ANN_MIN_ROWS = 2048
"""Below this, reading every row is as fast as an index."""
_CODE_BITS = 4
_CODE_BLOCK = 32
"""Rows whose codes lie together."""
_MORE_CANDIDATES = 130
_CANDIDATES_PER_HIT = 2
"""Rows that are taken by their codes, to be ranked by their numbers: so many for each hit, and so many more."""
_CODE_ROUNDS = 6
_CODE_SAMPLE = 128
"""Vectors for each value of a code that are enough to choose the values by."""
_EXACT_SHARE = 0.1
"""Where fewer of the rows than this may be returned, a look at each of them is faster than sorting out the others."""
_DEVIATIONS = 3.0
"""By so many times its usual error a code may place a row too far away before the row is overlooked."""
_ROUNDING = 1e-4
"""More than float32 loses in a sum of products, for vectors of length 1."""


def compute_distances(vectors: Vectors, query: Vectors) -> Distances:
    """Return Euclidean distances, summed in float64, row by row, in an order that only the dimension decides."""
    difference = np.subtract(vectors, query, dtype=np.float64)
    difference *= difference
    distances: Distances = np.sqrt(difference.sum(axis=1)).astype(np.float32)
    return distances


def compute_squares(vectors: Vectors) -> npt.NDArray[np.float32]:
    squares: npt.NDArray[np.float32] = np.einsum("ij,ij->i", vectors, vectors, dtype=np.float32)
    return squares


@dataclass(frozen=True, eq=False)
class Codes:
    """Each vector in four bits for two of its numbers: few enough bytes that all of them are looked at."""

    index: npt.NDArray[np.uint8]
    """As faiss writes it."""
    error: npt.NDArray[np.float32]
    """One number: the mean square of the distance between a vector and what its code stands for."""

    def check(self, rows: int, dimension: int) -> None:
        """Raises ValueError for all but the index that `encode` makes of so many vectors.

        The reader of faiss trusts what it reads: it maps files that an index names, and reads beyond its own bytes.
        So everything but the numbers of centroids and codes has to be, byte for byte, what it would write.
        """
        begin, centroids_bytes, middle, codes_bytes = _codes_layout(rows, dimension)
        centroids_end = len(begin) + centroids_bytes
        is_expected = (
            self.index.size == centroids_end + len(middle) + codes_bytes
            and self.index[: len(begin)].tobytes() == begin
            and self.index[centroids_end : centroids_end + len(middle)].tobytes() == middle
        )
        if not is_expected:
            raise ValueError("its codes are of another kind or number than its vectors")
        if self.error.size != 1 or not 0 <= float(self.error[0]) < math.inf:
            raise ValueError("the error of its codes is no number")


def _code_parts(dimension: int) -> int:
    return dimension // 2 if dimension % 2 == 0 else dimension


def _codes_layout(rows: int, dimension: int) -> tuple[bytes, int, bytes, int]:
    """Return how faiss writes an IndexPQFastScan: bytes before the centroids, their size, bytes after, code size."""
    parts, values = _code_parts(dimension), 1 << _CODE_BITS
    # Type; dimension, rows, two numbers without a meaning, is trained, L2; quantizer; length of the centroids.
    begin = struct.pack("<4siqqq?i", b"IPfs", dimension, rows, 1 << 20, 1 << 20, True, 1)
    begin += struct.pack("<QQQQ", dimension, parts, _CODE_BITS, dimension * values)
    padded_rows = -(-rows // _CODE_BLOCK) * _CODE_BLOCK
    padded_parts = parts + parts % 2
    codes_bytes = padded_rows * padded_parts * _CODE_BITS // 8
    middle = struct.pack("<iiiQQQ", 0, _CODE_BLOCK, 0, padded_rows, padded_parts, codes_bytes)
    return begin, dimension * values * 4, middle, codes_bytes


def _use_one_thread() -> None:
    """Keep faiss in this thread: its own threads wait for each other in a busy loop after every small step.

    Where they do not have a core each, that takes up to a hundred times as long. Processes build shards side by side.
    """
    faiss.omp_set_num_threads(1)


def encode(vectors: Vectors) -> Codes | None:
    """Return codes of these vectors; None where they are too few."""
    rows, dimension = vectors.shape
    if rows < ANN_MIN_ROWS:
        return None
    _use_one_thread()
    index = faiss.IndexPQFastScan(dimension, _code_parts(dimension), _CODE_BITS)
    index.pq.cp.niter = _CODE_ROUNDS
    index.pq.cp.max_points_per_centroid = _CODE_SAMPLE
    contiguous = np.ascontiguousarray(vectors)
    index.train(contiguous)
    index.add(contiguous)
    sample = contiguous[:: max(1, rows // ANN_MIN_ROWS)]
    residue = sample - index.pq.decode(index.pq.compute_codes(sample))
    return Codes(faiss.serialize_index(index), np.array([compute_squares(residue).mean()], np.float32))


class VectorIndex:
    """Rows of a shard by nearness. `codes`: what `encode` made, still in the mapped file."""

    def __init__(self, vectors: Vectors, squares: npt.NDArray[np.float32], codes: Codes | None) -> None:
        self._vectors = vectors
        self._squares = squares
        self._codes = codes
        if codes is not None:
            # faiss reads from the mapping itself, so that opening costs no copy; self._codes keeps it alive.
            self._reader = faiss.ZeroCopyIOReader(faiss.swig_ptr(codes.index), codes.index.size)
            self._index: Any = faiss.read_index(self._reader)
            self._error = float(codes.error[0])

    def nearest(
        self, query: Vectors, limit: int, *, allowed: Selection | None, exact: bool, within: float | None = None
    ) -> tuple[Distances, RowNumbers]:
        """Return at least the `limit` nearest rows, when there are so many; more where several are equally near.

        `within`: rows that are farther away than this may be left out.
        """
        count = len(self._vectors) if allowed is None else int(np.count_nonzero(allowed))
        if count == 0 or limit <= 0:
            return np.empty(0, np.float32), np.empty(0, np.int64)
        is_few = count <= max(limit, ANN_MIN_ROWS, int(len(self._vectors) * _EXACT_SHARE))
        if exact or self._codes is None or is_few:
            every = None if allowed is None else np.flatnonzero(allowed)
            rows = self._near_enough(query, min(limit, count), every, within)
        else:
            rows = self._by_codes(query, min(limit, count), allowed, within)
            if len(rows):
                rows = self._near_enough(query, limit, rows, within)
        return compute_distances(self._vectors.take(rows, axis=0), query), rows

    def _near_enough(self, query: Vectors, limit: int, rows: RowNumbers | None, within: float | None) -> RowNumbers:
        """Return the nearest of these rows, or of all, by fast arithmetic, with a margin for its rounding."""
        if rows is None:
            vectors, squares = self._vectors, self._squares
        else:
            # take() is three times as fast as [rows].
            vectors, squares = self._vectors.take(rows, axis=0), self._squares.take(rows)
        rough = squares - 2 * (vectors @ query)
        own_square = float(query @ query)
        farthest = math.inf if within is None else within * within - own_square
        if limit < len(rough):
            farthest = min(farthest, float(np.partition(rough, limit - 1)[limit - 1]))
        chosen = np.flatnonzero(rough <= farthest + _ROUNDING * (own_square + float(squares.max())))
        return chosen if rows is None else rows[chosen]

    def _by_codes(self, query: Vectors, limit: int, allowed: Selection | None, within: float | None) -> RowNumbers:
        """Return more rows than wanted; the caller ranks them by their vectors."""
        wanted = limit * _CANDIDATES_PER_HIT + _MORE_CANDIDATES
        if allowed is None:
            return self._candidates(query, wanted, within)
        # Rows that are not allowed come with the others, and have to be sorted out.
        wanted = math.ceil(wanted * len(allowed) / np.count_nonzero(allowed))
        while True:
            candidates = self._candidates(query, wanted, within)
            rows: RowNumbers = candidates[allowed[candidates]]
            if len(rows) >= limit or len(candidates) < wanted or wanted >= len(self._vectors):
                return rows
            wanted *= 4

    def _candidates(self, query: Vectors, wanted: int, within: float | None) -> RowNumbers:
        count = min(wanted, len(self._vectors))
        squared, rows = np.empty(count, np.float32), np.empty(count, np.int64)
        # Past the checks of its Python wrapper, which take as long as a thousand rows.
        self._index.search_c(1, faiss.swig_ptr(query), count, faiss.swig_ptr(squared), faiss.swig_ptr(rows))
        if within is None:
            return rows[rows >= 0]
        # What a code stands for is farther away than its vector by the code's error at most: so it is where the query
        # shares what the code leaves out, as one from the same cluster does; else it is nearer by as much, on average.
        deviation = 2 * within * math.sqrt(self._error / len(query))
        return rows[(rows >= 0) & (squared <= within * within + self._error + _DEVIATIONS * deviation)]


# ── groups of near vectors ─────────────────────────────────────────────────────────────────────────

_SAMPLE_PER_GROUP = 64
_ROUNDS = 10
_SLACK = 2.0
"""How much larger than the average a group may become."""
_BLOCK_ROWS = 8192
_CHOICES = 8
_CLUSTERS_PER_GROUP = 64
_MOST_CLUSTERS = 2048
_LEAST_SAMPLE_PER_CLUSTER = 8
_PACKING_SLACK = 2.0
_SAMPLE_PER_CLUSTER = 40
"""Vectors that are enough to find a cluster by."""


def sample_size(groups: int) -> int:
    """Return how many vectors `Grouping` needs as a sample."""
    return _SAMPLE_PER_CLUSTER * min(groups * _CLUSTERS_PER_GROUP, _MOST_CLUSTERS)


class Grouping:
    """Groups of near vectors of about equal weight, assigned part by part.

    Vectors belong to small clusters, and clusters to groups: a group's border then goes between clusters, where few
    vectors are, and not through them.
    """

    def __init__(self, sample: Vectors, groups: int, weight: int) -> None:
        groups = min(groups, len(sample))  # k-means refuses more groups than there are vectors
        clusters = min(groups * _CLUSTERS_PER_GROUP, _MOST_CLUSTERS, len(sample) // _LEAST_SAMPLE_PER_CLUSTER)
        self._means = _means(sample, max(groups, clusters))
        members = np.bincount(_nearest(self._means, sample, 1)[0][:, 0], minlength=len(self._means))
        self._group_of_cluster = _pack_clusters(self._means, members, groups)
        self._room = np.full(groups, _SLACK * weight / groups)

    def assign(self, vectors: Vectors, weights: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the group of each vector: that of its nearest cluster with room. The most eager choose first."""
        clusters, squared = _nearest(self._means, vectors, _CHOICES)
        return _assign(self._group_of_cluster[clusters], squared, weights, self._room)


def _pack_clusters(means: Vectors, members: npt.NDArray[np.int64], groups: int) -> npt.NDArray[np.int64]:
    """Return the group of each cluster: near ones together, and about as many vectors in each."""
    if len(means) == groups:
        return np.arange(groups)
    choices, squared = _nearest(_means(means, groups), means, _CHOICES)
    return _assign(choices, squared, members, np.full(groups, _PACKING_SLACK * members.sum() / groups))


def _assign(
    choices: npt.NDArray[np.int64],
    squared: Distances,
    weights: npt.NDArray[np.int64],
    room: npt.NDArray[np.float64],
) -> npt.NDArray[np.int64]:
    """Return one of the choices of each, as long as there is room. Changes `room`.

    `squared`: the distances to the choices. Those choose first that prefer their first choice to the second most.
    """
    groups = np.empty(len(choices), np.int64)
    eagerness = squared[:, min(1, squared.shape[1] - 1)] - squared[:, 0]
    for number in np.argsort(-eagerness, kind="stable"):
        weight = weights[number]
        chosen = next((group for group in choices[number] if room[group] >= weight), int(np.argmax(room)))
        groups[number] = chosen
        room[chosen] -= weight
    return groups


def _nearest(means: Vectors, vectors: Vectors, count: int) -> tuple[npt.NDArray[np.int64], Distances]:
    """Return the nearest means of each vector, and the squared distances to them."""
    choices = min(len(means), count)
    _use_one_thread()
    nearest = np.empty((len(vectors), choices), np.int64)
    squared = np.empty((len(vectors), choices), np.float32)
    flat = faiss.IndexFlatL2(means.shape[1])
    flat.add(np.ascontiguousarray(means))
    for begin in range(0, len(vectors), _BLOCK_ROWS):
        block = np.ascontiguousarray(vectors[begin : begin + _BLOCK_ROWS])
        squared[begin : begin + len(block)], nearest[begin : begin + len(block)] = flat.search(block, choices)
    return nearest, squared


def _means(vectors: Vectors, groups: int) -> Vectors:
    sample = vectors
    if len(vectors) > groups * _SAMPLE_PER_GROUP:
        step = len(vectors) / (groups * _SAMPLE_PER_GROUP)
        sample = vectors[(np.arange(groups * _SAMPLE_PER_GROUP) * step).astype(np.int64)]
    _use_one_thread()
    kmeans = faiss.Kmeans(
        vectors.shape[1], groups, niter=_ROUNDS, seed=1, min_points_per_centroid=1, max_points_per_centroid=10**9
    )
    kmeans.train(np.ascontiguousarray(sample))
    means: Vectors = kmeans.centroids
    return means


def find_centroids(vectors: Vectors, most: int) -> tuple[Vectors, Sequence[float]]:
    """Return a few means of these vectors, each with the distance of the farthest vector that is nearest to it."""
    if not len(vectors):
        return np.empty((0, vectors.shape[1]), np.float32), ()
    count = max(1, min(most, len(vectors) // 256))
    # float16 is what the manifest keeps: radii must hold for the rounded means.
    exact_means = vectors.mean(axis=0, keepdims=True) if count == 1 else _means(vectors, count)
    means = exact_means.astype(np.float16).astype(np.float32)
    owner, squared = _nearest(means, vectors, 1)
    radii = np.zeros(len(means), np.float32)
    np.maximum.at(radii, owner[:, 0], np.sqrt(np.maximum(squared[:, 0], 0)))
    return means, [float(radius) for radius in radii]
