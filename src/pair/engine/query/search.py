"""Search one KB by vector, by keyword, by both and along the graph: retrieve, rank, make passages.

Invariants
    A query sees one manifest. If garbage collection removes a shard meanwhile, it starts again with the current one.
    The vector of a query is compared only with vectors of the embedder that made it.
    Hits are ordered by score, then document, then chunk, whatever the layout of the shards.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from pair import errors
from pair.ai.contract import Reranker
from pair.clock import Clock
from pair.engine.format.array_file import RangeError
from pair.engine.format.manifest import Manifest
from pair.engine.format.vectors import Vectors
from pair.engine.query.passages import PassageBuilder
from pair.engine.query.ranking import best_rows, rank
from pair.engine.query.request import Hits, SearchRequest
from pair.engine.query.retrieve import VectorSearch, retrieve
from pair.engine.query.shard_access import ShardAccess, ShardReader, ShardRouting
from pair.engine.settings import EngineSettings
from pair.engine.storage.manifest_store import ManifestStore, StoredManifest
from pair.engine.storage.shard_cache import ShardMissingError
from pair.text.tokenizer import find_highlights
from pair.values import Hit, SearchMode

_TRIES_AFTER_COLLECTION = 5
_MORE_ROWS = 4
"""Times as many candidates, when those that there are make too few passages."""
_MOST_ROWS = 4000
"""Rows that are looked at one by one for a query, or ten for each hit: texts that differ by case or whitespace only."""

_Answer = Callable[[ShardAccess], Hits]


@dataclass
class Search:
    """Searches the manifests of one KB. Used from several threads at once."""

    manifests: ManifestStore
    reader: ShardReader
    settings: EngineSettings
    clock: Clock
    _routing: ShardRouting | None = None

    def nearest(self, request: SearchRequest) -> Hits:
        """Find chunks by distance alone. Raises E201, E303, E304, E205, E206, E215; E207 if no shard can be asked."""

        def answer(access: ShardAccess) -> Hits:
            vector = _check_vector(request, access.routing.published.manifest)
            search = VectorSearch(access, self.settings, request, vector, request.limit)
            shards, rows, distances = search.nearest()
            best = best_rows(access, shards, rows, -distances, request.limit)[: request.limit]
            hits = (row.search.hit(row.row, -row.score, row.header, 1.0 / (1.0 - row.score)) for row in best)
            return _make_hits(access, tuple(hits), search.shards_asked, "vector")

        return self._answer(answer, request)

    def find(self, request: SearchRequest, published: StoredManifest | None = None) -> Hits:
        """Find passages that answer a text. Raises as `nearest` does, and E204 in mode `graph` without a graph.

        `published`: the manifest, if it was just read.
        """

        def answer(access: ShardAccess) -> Hits:
            if request.vector is None:
                return _find_passages(access, self.settings, request)
            has_vector = _check_vector(request, access.routing.published.manifest).any()
            return _find_passages(access, self.settings, request if has_vector else replace(request, vector=None))

        hits = self._answer(answer, request, published)
        if request.words is None or not request.highlights:
            return hits
        marked = list(hits.passages)  # at the end: many more rows are looked at than are shown
        for number, hit in enumerate(marked):
            marked[number] = replace(hit, highlights=find_highlights(hit.text, request.words))
        return replace(hits, passages=tuple(marked))

    def _answer(self, answer: _Answer, request: SearchRequest, published: StoredManifest | None = None) -> Hits:
        for _ in range(_TRIES_AFTER_COLLECTION):
            published = published or self.manifests.require()
            routing = self._route(published)
            try:
                try:
                    return answer(self._access(routing, request))
                except RangeError:  # the whole file may be right; if not, it tells what is wrong
                    return answer(self._access(routing, request, in_pieces=False))
            except ShardMissingError:
                # Collected just before it was read: then another manifest is there by now.
                before, published = published, self.manifests.require()
                if before.version == published.version:
                    break
        routing = self._route(self.manifests.require())
        return answer(self._access(routing, request, in_pieces=False, skips_missing=True))

    def _access(
        self, routing: ShardRouting, request: SearchRequest, *, in_pieces: bool = True, skips_missing: bool = False
    ) -> ShardAccess:
        now = self.clock.monotonic()
        return ShardAccess(routing, self.reader, request.condition, now, in_pieces, skips_missing)

    def _route(self, published: StoredManifest) -> ShardRouting:
        routing = self._routing
        if routing is None or routing.published.version != published.version:
            routing = self._routing = ShardRouting(published)
            if not self.manifests.is_past:  # a past version has no former one, and does not own the current one
                self.reader.cache.keep_only(published.manifest.folders)
        return routing


def _find_passages(access: ShardAccess, settings: EngineSettings, request: SearchRequest) -> Hits:
    limit, most_rows = max(request.limit, 0), max(_MOST_ROWS, 10 * request.limit)
    passages = PassageBuilder(access, request, most_rows)
    candidates = first = retrieve(access, settings, request, limit)
    while True:
        ranking = rank(access, request, candidates, first)
        hits, rows = passages.build(ranking), len(ranking.candidates)
        # Where a text is stored a thousand times, the best rows are all one passage, and others have to be found.
        if len(hits) >= request.limit or rows < request.limit:
            break
        if passages.crowding:
            passages.set_copies_aside()
        elif candidates.is_complete or rows >= most_rows:
            break
        else:
            limit = _MORE_ROWS * rows
        candidates = retrieve(access, settings, request, limit)
    asked = candidates.shards_asked if request.mode == "vector" else len(access.shards)
    weights = dict(candidates.keywords.weights) if candidates.keywords is not None else {}
    made = _make_hits(access, passages.count_copies(hits), asked, ranking.mode)
    return replace(made, reason=ranking.reason, term_weights=weights)


def _make_hits(access: ShardAccess, hits: tuple[Hit, ...], asked: int, mode: SearchMode) -> Hits:
    """Raises E207 when faults have left nothing that could answer."""
    access.refuse_without(access.can_answer(needs_keywords=mode == "keyword"))
    manifest = access.routing.published.manifest
    return Hits(
        passages=hits,
        manifest_version=manifest.number,
        shards_asked=asked,
        partial=bool(access.faults),
        faults=tuple(f"{key}: {reason}" for key, reason in access.faults.items()),
        mode_used=mode,
        commit_id=manifest.commit_id,
        embedder=manifest.embedder,
    )


def _check_vector(request: SearchRequest, manifest: Manifest) -> Vectors:
    """Return the vector. Check it by the manifest that is asked: another may have come since it was made."""
    vector = np.empty(0, np.float32) if request.vector is None else request.vector
    if request.embedder != manifest.embedder:
        raise errors.embedder_differs(manifest.kb_id, manifest.embedder, request.embedder)
    if vector.shape != (manifest.dimension,):
        raise errors.vector_size_differs(manifest.kb_id, manifest.dimension, vector.shape[-1] if vector.ndim else 0)
    if not np.isfinite(vector).all():
        raise errors.query_invalid("the vector holds something that is not a number")
    return vector


def rerank(hits: Hits, query: str, limit: int, reranker: Reranker) -> Hits:
    """Order hits by the scores that a reranker gives their texts, and keep as many as are wanted."""
    scores = reranker.scores(query, [hit.text for hit in hits])
    passages = []
    for number in sorted(range(len(hits)), key=lambda number: (-scores[number], number))[: max(limit, 0)]:
        hit, score = hits[number], float(scores[number])
        explanation = None if hit.explanation is None else {**hit.explanation, "reranker": score}
        passages.append(replace(hit, score=score, explanation=explanation))
    return replace(hits, passages=tuple(passages))
