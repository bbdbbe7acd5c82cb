"""How scores of keywords, vectors and the graph become one: the only formula, pure.

hybrid = (1 - w) · K / Kmax + w · V
    K      BM25 of the row; Kmax, the best of the query
    V      max(0, (f² - d²) / (f² - n²)): d, the row's distance; n and f, the nearest and the farthest of the rows that
           are nearest to the query. For vectors of length 1 this is their cosine, stretched over that range
    w      the embedder's weight for the query; 0 when there is no vector to go by, 1 when no keyword is found
graph = a · hybrid + (1 - a) · G
    G      of the walk over entities, between 0 and 1; a, the share of the hybrid score
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Scale:
    """Of one query."""

    weight: float
    best_keyword: float
    nearest: float
    farthest: float

    def keyword(self, scores: Floats) -> Floats:
        """K / Kmax."""
        if self.best_keyword <= 0:
            return np.zeros(len(scores))
        return np.asarray(np.maximum(scores, 0.0) / self.best_keyword, np.float64)

    def vector(self, distances: npt.NDArray[np.float32]) -> Floats:
        """V."""
        span = self.farthest**2 - self.nearest**2
        if span <= 0:
            return np.asarray(distances <= self.nearest, np.float64)
        stretched = (self.farthest**2 - distances.astype(np.float64) ** 2) / span
        return np.asarray(np.maximum(stretched, 0.0), np.float64)

    def hybrid(self, keyword: Floats, vector: Floats) -> Floats:
        return np.asarray((1.0 - self.weight) * keyword + self.weight * vector, np.float64)


def scale_of(weight: float, keyword_scores: Floats, near: npt.NDArray[np.float32]) -> Scale:
    """`near`: distances of the rows that are nearest to the query."""
    best = float(keyword_scores.max(initial=0.0))
    if not len(near):
        return Scale(0.0, best, 0.0, 0.0)
    return Scale(weight if best > 0 else 1.0, best, float(near.min()), float(near.max()))


def with_graph(hybrid: Floats, graph: Floats, share: float) -> Floats:
    """`share`: of the hybrid score."""
    return np.asarray(share * hybrid + (1.0 - share) * graph, np.float64)
