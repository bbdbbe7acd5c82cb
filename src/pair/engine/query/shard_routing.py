"""What can be worked out once for each manifest: which shards are near to what, and which of their rows are live."""

import numpy as np

from pair.engine import rules
from pair.engine.format.graph_index import GraphIndex
from pair.engine.format.shard import SearchFile
from pair.engine.format.vectors import Selection, Vectors
from pair.engine.query.graph_walk import GraphShard
from pair.engine.storage.manifest_store import StoredManifest


class ShardRouting:
    def __init__(self, published: StoredManifest) -> None:
        self.published = published
        self.shards = published.manifest.shards
        ranked = [position for position, shard in enumerate(self.shards) if shard.run and len(shard.centroids)]
        counts = [len(self.shards[position].centroids) for position in ranked]
        self._ranked = np.array(ranked, np.int64)
        self._starts = np.cumsum([0, *counts])[:-1] if ranked else np.empty(0, np.int64)
        dimension = published.manifest.dimension
        self._centroids = (
            np.concatenate([self.shards[position].centroids for position in ranked])
            if ranked
            else np.empty((0, dimension), np.float32)
        )
        self._squares = np.einsum("ij,ij->i", self._centroids, self._centroids)
        self._radii = np.array([radius for position in ranked for radius in self.shards[position].radii], np.float32)
        self._live: dict[int, Selection] = {}
        self._graphs: dict[int, GraphShard] = {}

    def ranked(self, query: Vectors) -> dict[str, list[rules.Ranked]]:
        """The shards of each run, with how near they are."""
        by_run: dict[str, list[rules.Ranked]] = {}
        if len(self._ranked):
            squared = self._squares - 2 * (self._centroids @ query) + query @ query
            distances = np.sqrt(np.maximum(squared, 0))
            nearest = np.minimum.reduceat(distances, self._starts)
            least = np.minimum.reduceat(np.maximum(distances - self._radii, 0), self._starts)
            for position, near, bound in zip(self._ranked.tolist(), nearest.tolist(), least.tolist(), strict=True):
                run = self.shards[position].run
                by_run.setdefault(run, []).append(rules.Ranked(position, near, bound))
        return by_run

    def live_rows(self, position: int, search: SearchFile) -> Selection | None:
        """Rows whose document is not gone; None for all of them. The same object each time."""
        tombstones = self.shards[position].tombstones
        if tombstones is None:
            return None
        live = self._live.get(position)
        if live is None:
            live = self._live[position] = ~tombstones[search.doc_of_row]
        return live

    def graph_shard(self, position: int, file: GraphIndex, live: Selection | None) -> GraphShard:
        """Kept as long as the shard's file is the same: it remembers what it counted."""
        kept = self._graphs.get(position)
        if kept is None or kept.file is not file:
            kept = self._graphs[position] = GraphShard(file, live)
        return kept
