"""The vector index of a shard: building, mapping, and search in all or selected rows.

Invariants
    The distance of two vectors does not depend on their rows: it is equal to the last bit.
    An exact search returns every row that is as near as the last one that it returns.
"""

import functools
import itertools
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Vectors = npt.NDArray[np.float32]
Distances = npt.NDArray[np.float32]
RowNumbers = npt.NDArray[np.int64]
Selection = npt.NDArray[np.bool_]

ANN_MIN_ROWS = 2048
"""Minimum number of rows for an index. With fewer, reading every row is as fast."""
_CODE_BITS = 4
_CODE_BLOCK = 32
"""Number of rows in one block of codes."""
_MORE_CANDIDATES = 130
_CANDIDATES_PER_HIT = 2
"""Number of candidates by code, to rank by their vectors: a factor for each hit, and a constant."""
_INDEXES_SHARE = 3
"""Factor for the candidates of several indexes together, whose codes differ in their errors."""
_CODE_ROUNDS = 6
_CODE_SAMPLE = 128
"""Number of training vectors for each value of a code."""
_EXACT_SHARE = 0.1
"""Share of allowed rows below which reading each allowed row is faster than filtering candidates."""
_DEVIATIONS = 3.0
"""Number of standard deviations of the code error within which no row is missed."""
_ROUNDING = 1e-4
"""Upper bound of the float32 rounding error of a sum of products, for vectors of length 1."""


def compute_distances(vectors: Vectors, query: Vectors) -> Distances:
    """Return Euclidean distances, summed in float64 in an order that depends only on the dimension."""
    difference = np.subtract(vectors, query, dtype=np.float64)
    difference *= difference
    distances: Distances = np.sqrt(difference.sum(axis=1)).astype(np.float32)
    return distances


def compute_squares(vectors: Vectors) -> npt.NDArray[np.float32]:
    squares: npt.NDArray[np.float32] = np.einsum("ij,ij->i", vectors, vectors, dtype=np.float32)
    return squares


@dataclass(frozen=True, eq=False)
class Codes:
    """Product-quantized vectors: four bits for two numbers, so small that a search scans all codes."""

    index: npt.NDArray[np.uint8]
    """The serialized faiss index."""
    error: npt.NDArray[np.float32]
    """One number: the mean squared distance between a vector and its decoded code."""

    def check(self, rows: int, dimension: int) -> None:
        """Raise ValueError unless `encode` could have made this index of vectors of this shape.

        The reader of faiss trusts its input: it maps files that an index names, and reads beyond the end. So every
        byte except centroids and codes must be what faiss would write.
        """
        begin, centroids_bytes, middle, codes_bytes = _codes_layout(rows, dimension)
        centroids_end = len(begin) + centroids_bytes
        is_expected = (
            self.index.size == centroids_end + len(middle) + codes_bytes
            and self.index[: len(begin)].tobytes() == begin
            and self.index[centroids_end : centroids_end + len(middle)].tobytes() == middle
        )
        if not is_expected:
            raise ValueError("its codes do not match its vectors")
        if self.error.size != 1 or not 0 <= float(self.error[0]) < math.inf:
            raise ValueError("the error of its codes is not a finite number")


def _code_parts(dimension: int) -> int:
    return dimension // 2 if dimension % 2 == 0 else dimension


def _codes_layout(rows: int, dimension: int) -> tuple[bytes, int, bytes, int]:
    """Return the layout of an IndexPQFastScan: bytes before the centroids, their size, bytes after, code size."""
    parts, values = _code_parts(dimension), 1 << _CODE_BITS
    # Type; dimension, rows, two unused numbers, is trained, L2; quantizer; length of the centroids.
    begin = struct.pack("<4siqqq?i", b"IPfs", dimension, rows, 1 << 20, 1 << 20, True, 1)
    begin += struct.pack("<QQQQ", dimension, parts, _CODE_BITS, dimension * values)
    padded_rows = -(-rows // _CODE_BLOCK) * _CODE_BLOCK
    padded_parts = parts + parts % 2
    codes_bytes = padded_rows * padded_parts * _CODE_BITS // 8
    middle = struct.pack("<iiiQQQ", 0, _CODE_BLOCK, 0, padded_rows, padded_parts, codes_bytes)
    return begin, dimension * values * 4, middle, codes_bytes


@functools.cache
def _load_faiss() -> Any:
    """Return the library, whose stubs are incomplete. Small shards do not need it, and it takes 70 ms to load."""
    import faiss  # noqa: PLC0415 - see above

    return faiss


def _use_one_thread() -> Any:
    """Return faiss, limited to one thread: its threads wait in busy loops, up to 100 times slower on busy cores."""
    faiss = _load_faiss()
    faiss.omp_set_num_threads(1)
    return faiss


def encode(vectors: Vectors) -> Codes | None:
    """Return the codes of these vectors; None if there are too few."""
    rows, dimension = vectors.shape
    if rows < ANN_MIN_ROWS:
        return None
    faiss = _use_one_thread()
    index = faiss.IndexPQFastScan(dimension, _code_parts(dimension), _CODE_BITS)
    index.pq.cp.niter = _CODE_ROUNDS
    index.pq.cp.max_points_per_centroid = _CODE_SAMPLE
    contiguous = np.ascontiguousarray(vectors)
    index.train(contiguous)
    index.add(contiguous)
    sample = contiguous[:: max(1, rows // ANN_MIN_ROWS)]
    residue = sample - index.pq.decode(index.pq.compute_codes(sample))
    return Codes(faiss.serialize_index(index), np.array([compute_squares(residue).mean()], np.float32))


def quantize(vectors: Vectors, parts: int) -> tuple[Vectors, npt.NDArray[np.uint8]]:
    """Return 256 values for each part of the vectors, and a code of `parts` bytes for each row."""
    faiss = _use_one_thread()
    quantizer = faiss.ProductQuantizer(vectors.shape[1], parts, 8)
    quantizer.cp.min_points_per_centroid = 1  # Otherwise faiss warns on standard error; the values are the same.
    contiguous = np.ascontiguousarray(vectors)
    quantizer.train(contiguous)
    values: Vectors = faiss.vector_to_array(quantizer.centroids).reshape(parts, 256, -1)
    return values, quantizer.compute_codes(contiguous)


class VectorIndex:
    """Nearest-neighbour search in the rows of a shard. `codes`: the result of `encode`, in the mapped file."""

    def __init__(self, vectors: Vectors, squares: npt.NDArray[np.float32], codes: Codes | None) -> None:
        self._vectors = vectors
        self._squares = squares
        self._codes = codes
        if codes is not None:
            faiss = _load_faiss()
            # faiss reads the mapping without a copy; self._codes keeps it open.
            self._reader = faiss.ZeroCopyIOReader(faiss.swig_ptr(codes.index), codes.index.size)
            self._index: Any = faiss.read_index(self._reader)
            self._error = float(codes.error[0])

    def estimate(
        self, query: Vectors, limit: int, *, allowed: Selection | None, exact: bool, within: float | None
    ) -> "Estimates":
        """Return rows that may be among the `limit` nearest, for `rank_nearest`, which omits rows not `within`."""
        count = len(self._vectors) if allowed is None else int(np.count_nonzero(allowed))
        if count == 0 or limit <= 0:
            return Estimates(self, np.empty(0, np.int64), None)
        is_few = count <= max(limit, ANN_MIN_ROWS, int(len(self._vectors) * _EXACT_SHARE))
        if exact or self._codes is None or is_few:
            every = None if allowed is None else np.flatnonzero(allowed)
            vectors, squares = self._vectors, self._squares
            if every is not None:  # take() is three times as fast as [rows].
                vectors, squares = vectors.take(every, axis=0), squares.take(every)
            # Not `vectors @ query`: BLAS would use a thread for each core, and wait for those that are busy.
            rough = squares - 2 * np.vecdot(vectors, query)
            chosen = _near_enough(rough, float(squares.max()), query, min(limit, count), within)
            return Estimates(self, chosen if every is None else every[chosen], None)
        rows, squared = self._by_codes(query, min(limit, count), allowed, within)
        return Estimates(self, rows, squared)

    def read(self, rows: RowNumbers) -> Vectors:
        """Return the vectors of these rows."""
        return self._vectors.take(rows, axis=0)

    def estimate_rows(self, rows: RowNumbers, query: Vectors) -> tuple[npt.NDArray[np.float32], float]:
        """Return |v|² - 2 · v · query for the vector v of each row, by float32 arithmetic, and the largest |v|²."""
        squares = self._squares.take(rows)
        if self._codes is None:
            products = np.vecdot(self.read(rows), query)
        else:  # This does not copy the vectors.
            faiss, products = _use_one_thread(), np.empty(len(rows), np.float32)
            pointers = map(faiss.swig_ptr, (products, query, self._vectors, rows))
            faiss.fvec_inner_products_by_idx(*pointers, len(query), 1, len(rows))
        return squares - 2 * products, float(squares.max(initial=0.0))

    def _by_codes(
        self, query: Vectors, limit: int, allowed: Selection | None, within: float | None
    ) -> tuple[RowNumbers, Distances]:
        """Return more rows than wanted, with their squared distances by code."""
        wanted = limit * _CANDIDATES_PER_HIT + _MORE_CANDIDATES
        if allowed is None:
            return self._candidates(query, wanted, within)
        # Some candidates are not allowed, so more are needed.
        wanted = math.ceil(wanted * len(allowed) / np.count_nonzero(allowed))
        while True:
            candidates, squared = self._candidates(query, wanted, within)
            chosen = allowed[candidates]
            rows: RowNumbers = candidates[chosen]
            if len(rows) >= limit or len(candidates) < wanted or wanted >= len(self._vectors):
                return rows, squared[chosen]
            wanted *= 4

    def _candidates(self, query: Vectors, wanted: int, within: float | None) -> tuple[RowNumbers, Distances]:
        count = min(wanted, len(self._vectors))
        squared, rows = np.empty(count, np.float32), np.empty(count, np.int64)
        # Skip the checks of the Python wrapper, which take as long as 1,000 rows.
        faiss = _load_faiss()
        self._index.search_c(1, faiss.swig_ptr(query), count, faiss.swig_ptr(squared), faiss.swig_ptr(rows))
        chosen = rows >= 0
        if within is not None:
            # A decoded vector is farther from the query than the vector by at most the code error, if the query is in
            # the same cluster; else, on average, it is nearer by as much.
            deviation = 2 * within * math.sqrt(self._error / len(query))
            chosen &= squared <= within * within + self._error + _DEVIATIONS * deviation
        return rows[chosen], squared[chosen]


class Estimates(NamedTuple):
    """Rows of one index that may be among the nearest."""

    source: VectorIndex
    rows: RowNumbers
    squared: Distances | None
    """Their squared distances by code; None if they were chosen by their vectors."""


def rank_nearest(
    found: Sequence[Estimates], query: Vectors, limit: int, within: float | None
) -> tuple[npt.NDArray[np.int64], RowNumbers, Distances]:
    """Return the nearest rows of several indexes together: the numbers of their indexes, the rows, their distances."""
    most = _INDEXES_SHARE * (limit * _CANDIDATES_PER_HIT + _MORE_CANDIDATES)
    by_code = [part.squared for part in found if part.squared is not None]
    last = math.inf
    if sum(map(len, by_code)) > most:
        last = float(np.partition(np.concatenate(by_code), most - 1)[most - 1])
    kept = [part.rows if part.squared is None else part.rows[part.squared <= last] for part in found]
    rough = [part.source.estimate_rows(rows, query) for part, rows in zip(found, kept, strict=True)]
    largest = max(square for _, square in rough)
    chosen = _near_enough(np.concatenate([values for values, _ in rough]), largest, query, limit, within)
    rows = np.concatenate(kept)[chosen]
    borders = chosen.searchsorted([0, *itertools.accumulate(map(len, kept))])
    numbers = np.arange(len(found)).repeat(np.diff(borders))
    near = [part.source.read(rows[begin:end]) for part, begin, end in zip(found, borders, borders[1:], strict=False)]
    return numbers, rows, compute_distances(np.concatenate(near), query)


def _near_enough(
    rough: npt.NDArray[np.float32], largest: float, query: Vectors, limit: int, within: float | None
) -> RowNumbers:
    """Return the places of the nearest vectors, with a margin for rounding.

    `rough`: |v|² - 2 · v · query for each vector v, by float32 arithmetic. `largest`: the largest |v|².
    """
    own_square = float(query @ query)
    farthest = math.inf if within is None else within * within - own_square
    if 0 < limit < len(rough):
        farthest = min(farthest, float(np.partition(rough, limit - 1)[limit - 1]))
    return np.flatnonzero(rough <= farthest + _ROUNDING * (own_square + largest))


# ── groups of near vectors ─────────────────────────────────────────────────────────────────────────

_SAMPLE_PER_GROUP = 64
_ROUNDS = 10
_SLACK = 2.0
"""Maximum weight of a group, as a multiple of the average."""
_BLOCK_ROWS = 8192
_CHOICES = 8
_CLUSTERS_PER_GROUP = 64
_MOST_CLUSTERS = 2048
_LEAST_SAMPLE_PER_CLUSTER = 8
_PACKING_SLACK = 2.0
_SAMPLE_PER_CLUSTER = 40
"""Number of training vectors for each cluster."""


def sample_size(groups: int) -> int:
    """Return the size of the sample that `Grouping` needs."""
    return _SAMPLE_PER_CLUSTER * min(groups * _CLUSTERS_PER_GROUP, _MOST_CLUSTERS)


class Grouping:
    """Groups of near vectors with about equal weights. Vectors are assigned in parts.

    Vectors belong to small clusters, and clusters to groups, so that the borders of groups lie between clusters.
    """

    def __init__(self, sample: Vectors, groups: int, weight: int) -> None:
        groups = min(groups, len(sample))  # k-means refuses more groups than vectors.
        clusters = min(groups * _CLUSTERS_PER_GROUP, _MOST_CLUSTERS, len(sample) // _LEAST_SAMPLE_PER_CLUSTER)
        self._means = _means(sample, max(groups, clusters))
        members = np.bincount(_nearest(self._means, sample, 1)[0][:, 0], minlength=len(self._means))
        self._group_of_cluster = np.arange(groups)
        if len(self._means) != groups:  # Put near clusters into groups with about equal numbers of vectors.
            choices, squared = _nearest(_means(self._means, groups), self._means, _CHOICES)
            room = np.full(groups, _PACKING_SLACK * members.sum() / groups)
            self._group_of_cluster = _assign(choices, squared, members, room)
        self._room = np.full(groups, _SLACK * weight / groups)

    def assign(self, vectors: Vectors, weights: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the group of each vector: that of its nearest cluster with room."""
        clusters, squared = _nearest(self._means, vectors, _CHOICES)
        return _assign(self._group_of_cluster[clusters], squared, weights, self._room)


def _assign(
    choices: npt.NDArray[np.int64], squared: Distances, weights: npt.NDArray[np.int64], room: npt.NDArray[np.float64]
) -> npt.NDArray[np.int64]:
    """Return the first of the choices of each vector that has room, and reduce `room`.

    `squared`: squared distances to the choices. Vectors with the clearest first choice come first.
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
    """Return the nearest means of each vector, and their squared distances."""
    choices = min(len(means), count)
    faiss = _use_one_thread()
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
    faiss = _use_one_thread()
    kmeans = faiss.Kmeans(
        vectors.shape[1], groups, niter=_ROUNDS, seed=1, min_points_per_centroid=1, max_points_per_centroid=10**9
    )
    kmeans.train(np.ascontiguousarray(sample))
    means: Vectors = kmeans.centroids
    return means


def find_centroids(vectors: Vectors, most: int) -> tuple[Vectors, Sequence[float]]:
    """Return a few means of these vectors, and for each the distance of its farthest vector."""
    if not len(vectors):
        return np.empty((0, vectors.shape[1]), np.float32), ()
    count = max(1, min(most, len(vectors) // 256))
    # The manifest stores float16, so the radii must apply to the rounded means.
    exact_means = vectors.mean(axis=0, keepdims=True) if count == 1 else _means(vectors, count)
    means = exact_means.astype(np.float16).astype(np.float32)
    owner, squared = _nearest(means, vectors, 1)
    radii = np.zeros(len(means), np.float32)
    np.maximum.at(radii, owner[:, 0], np.sqrt(np.maximum(squared[:, 0], 0)))
    return means, [float(radius) for radius in radii]
