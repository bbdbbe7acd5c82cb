"""Queries over one KB: by vector, by keyword, by both, and along the graph; hits in the same order whatever the layout.

Invariants
    A query sees one manifest. When garbage collection took a shard from under it, it starts over with the current one.
    The vector of a query is compared only with vectors of the embedder that made it.
    Hits are ordered by score, then document, then chunk.
Not here
    From candidates to passages: answering.py. Which shards are asked for a vector: vector_search.py.
"""

from dataclasses import replace
from typing import Protocol

import numpy as np

from pair import errors
from pair.ai.contract import Reranker
from pair.clock import Clock
from pair.engine.format.array_file import RangeError
from pair.engine.format.manifest import Manifest
from pair.engine.format.vectors import Vectors
from pair.engine.query.ranking import Ranker, best_named, hits_of
from pair.engine.query.request import EmbeddedRequest, Hits, Limits, SearchRequest
from pair.engine.query.shard_access import FetchDeadlines, ShardAccess, ShardReader, ShardRouting
from pair.engine.query.vector_search import VectorQuery, VectorSearch
from pair.engine.settings import EngineSettings
from pair.engine.storage.manifest_store import ManifestStore, StoredManifest
from pair.engine.storage.shard_cache import ShardMissingError
from pair.values import Hit

_TRIES_AFTER_COLLECTION = 5


def reranked(hits: Hits, query: SearchRequest, reranker: Reranker) -> Hits:
    """By what a reranker makes of their texts; the first ones."""
    scores = reranker.scores(query.text, [hit.text for hit in hits])
    order = sorted(range(len(hits)), key=lambda number: (-scores[number], number))[: max(query.limit, 0)]
    return replace(hits, found=tuple(_rescored(hits[number], float(scores[number])) for number in order))


def _rescored(hit: Hit, score: float) -> Hit:
    explanation = None if hit.explanation is None else {**hit.explanation, "reranker": score}
    return replace(hit, score=score, explanation=explanation)


class Search:
    def __init__(self, publication: ManifestStore, reader: ShardReader, policy: EngineSettings, clock: Clock) -> None:
        self._publication = publication
        self._reader = reader
        self._policy = policy
        self._clock = clock
        self._view: ShardRouting | None = None

    def nearest(self, vector: Vectors, embedder: str, limit: int, narrowing: Limits) -> Hits:
        """Chunks by distance alone. Raises E201, E303, E304, E205, E206, E215; E207 when no shard could be asked."""

        def answer(reading: ShardAccess) -> Hits:
            _check_vector(vector, embedder, reading.view.published.manifest)
            asked = VectorQuery(vector, limit, narrowing.max_distance, narrowing.exact)
            near = VectorSearch(reading, self._policy, asked).nearest()
            named = best_named(reading, near.shards, near.rows, -near.distances, limit)[:limit]
            found = (each.search.hit(each.row, -each.score, each.header, 1.0 / (1.0 - each.score)) for each in named)
            return hits_of(reading, tuple(found), near.asked)

        return self._answered(answer, narrowing)

    def find(self, query: EmbeddedRequest, published: StoredManifest | None = None) -> Hits:
        """Passages that answer a text. Raises as `nearest` does, and E204 in mode `graph` for want of a graph.

        `published`: the manifest, if it was just read.
        """

        def answer(reading: ShardAccess) -> Hits:
            if query.vector is not None:
                _check_vector(query.vector, query.embedder, reading.view.published.manifest)
            return Ranker(reading, self._policy, query).hits()

        return self._answered(answer, query.asked.narrowing, published)

    def _answered(self, answer: "_SearchFunction", narrowing: Limits, published: StoredManifest | None = None) -> Hits:
        for _ in range(_TRIES_AFTER_COLLECTION):
            published = published or self._publication.required()
            try:
                return self._answered_by(answer, published, narrowing)
            except ShardMissingError:
                # Collected while we were about to ask it: then another manifest is there by now.
                before, published = published, self._publication.required()
                if before.version == published.version:
                    break
        patience = FetchDeadlines(in_pieces=False, skips_missing=True)
        return answer(self._reading(self._publication.required(), narrowing, patience))

    def _answered_by(self, answer: "_SearchFunction", published: StoredManifest, narrowing: Limits) -> Hits:
        """What is wrong with a piece may be right in the whole file; and if not, that can be told."""
        try:
            return answer(self._reading(published, narrowing, FetchDeadlines()))
        except RangeError:
            return answer(self._reading(published, narrowing, FetchDeadlines(in_pieces=False)))

    def _reading(self, published: StoredManifest, narrowing: Limits, patience: FetchDeadlines) -> ShardAccess:
        view = self._view
        if view is None or view.published.version != published.version:
            view = self._view = ShardRouting(published)
            if not self._publication.is_past:  # there is no former one, and the current one is somebody else's
                self._reader.cache.keep_only(published.manifest.folders)
        now = self._clock.monotonic()
        return ShardAccess(view, self._reader, narrowing.condition, now, patience)


class _SearchFunction(Protocol):
    def __call__(self, reading: ShardAccess) -> Hits: ...


def _check_vector(vector: Vectors, embedder: str, manifest: Manifest) -> None:
    """By the very manifest that is asked: another may have come since the vector was made, with another embedder."""
    if embedder != manifest.embedder:
        raise errors.embedder_differs(manifest.kb_id, manifest.embedder, embedder)
    if vector.shape != (manifest.dimension,):
        raise errors.vector_size_differs(manifest.kb_id, manifest.dimension, vector.shape[-1] if vector.ndim else 0)
    if not np.isfinite(vector).all():
        raise errors.query_invalid("the vector holds something that is not a number")
