"""Rank candidates: one score of keywords, vectors and the graph.

hybrid = (1 - w) · K / Kmax + w · V
    K      BM25 of the row; Kmax, the best of the query
    V      max(0, (f² - d²) / (f² - n²)): d, the row's distance; n and f, the nearest and the farthest of the rows that
           are nearest to the query. For vectors of length 1 this is their cosine, stretched over that range
    w      the embedder's weight for the query; 0 when there is no vector to go by, 1 when no keyword is found
graph = a · hybrid + (1 - a) · G
    G      of the walk over entities, between 0 and 1; a, the share of the hybrid score
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pair.engine.format.columns import Header
from pair.engine.format.shard import SearchFile
from pair.engine.query.graph import (
    GraphShard,
    Spread,
    find_linked_entities,
    find_strong_rows,
    require_graph,
    walk_graph,
)
from pair.engine.query.retrieve import Candidates, Distances, Floats, SearchRequest
from pair.engine.query.shard_access import Rows, ShardAccess, by_shard
from pair.text.entity_rules import TITLE_WEIGHT, find_question_entities, title_entity
from pair.values import SearchMode

_REACHED_ROWS = 200
"""So many of the strongest rows that the walk meets become candidates."""
_MANY_TIES = 200
"""Of more rows that are equally good, only the first by id of each shard are looked at."""
MORE_ALIKE = 10
"""Rows behind the last hit that are compared with the hits, to name copies."""
_NAMES_NOTHING = "the question names nothing"


@dataclass(frozen=True, slots=True)
class Scale:
    """The range of keyword scores and distances of one query."""

    weight: float
    best_keyword: float
    nearest: float
    farthest: float

    def keyword(self, scores: Floats) -> Floats:
        """Return K / Kmax."""
        if self.best_keyword <= 0:
            return np.zeros(len(scores))
        return np.asarray(np.maximum(scores, 0.0) / self.best_keyword, np.float64)

    def vector(self, distances: Distances) -> Floats:
        """Return V."""
        span = self.farthest**2 - self.nearest**2
        if span <= 0:
            return np.asarray(distances <= self.nearest, np.float64)
        stretched = (self.farthest**2 - distances.astype(np.float64) ** 2) / span
        return np.asarray(np.maximum(stretched, 0.0), np.float64)


def make_scale(weight: float, keyword_scores: Floats, near: Distances) -> Scale:
    """Return the scale of a query. `near`: distances of the rows that are nearest to it."""
    best = float(keyword_scores.max(initial=0.0))
    if not len(near):
        return Scale(0.0, best, 0.0, 0.0)
    return Scale(weight if best > 0 else 1.0, best, float(near.min()), float(near.max()))


def add_graph_scores(hybrid: Floats, graph: Floats, share: float) -> Floats:
    """Return scores of which the hybrid score has this share."""
    return np.asarray(share * hybrid + (1.0 - share) * graph, np.float64)


@dataclass(frozen=True, eq=False)
class Ranking:
    """Candidates with their scores, and the parts of each score."""

    mode: SearchMode
    candidates: Candidates
    scores: Floats
    parts: Mapping[str, Floats]
    reason: str = ""
    """Why `adaptive` used the graph, or did not."""


def rank(access: ShardAccess, request: SearchRequest, candidates: Candidates, first: Candidates) -> Ranking:
    """Score candidates. `first`: the first that were retrieved; a wider search does not move their scale.

    Raises E204 in mode `graph`.
    """
    mode = request.mode
    if mode == "vector":
        scores = np.asarray(1.0 / (1.0 + candidates.distances.astype(np.float64)), np.float64)
        return Ranking("vector", candidates, scores, {})
    scale = make_scale(request.vector_weight, candidates.keyword, first.near_distances)
    if mode == "keyword":
        keyword = scale.keyword(candidates.keyword)
        return Ranking("keyword", candidates, keyword, {"keyword": keyword})
    hybrid = _rank_hybrid(scale, candidates)
    return hybrid if mode == "hybrid" else _rank_with_graph(access, request, scale, hybrid)


def _rank_hybrid(scale: Scale, candidates: Candidates) -> Ranking:
    keyword, vector = scale.keyword(candidates.keyword), scale.vector(candidates.distances)
    parts = {"keyword": keyword, "vector": vector, "weight": np.full(len(candidates), scale.weight)}
    scores = np.asarray((1.0 - scale.weight) * keyword + scale.weight * vector, np.float64)
    return Ranking("hybrid", candidates, scores, parts)


# ── the graph ──────────────────────────────────────────────────────────────────────────────────────


def _rank_with_graph(access: ShardAccess, request: SearchRequest, scale: Scale, hybrid: Ranking) -> Ranking:
    """Raises E204 in mode `graph`; `adaptive` does without a graph, or without asking it, and says why."""
    parameters, named = request.options.graph, find_question_entities(request.text)
    if request.mode == "adaptive" and not named and any("graph" in shard.files for shard in access.shards):
        return replace(hybrid, reason=_NAMES_NOTHING)  # before graphs are fetched
    graphs = access.graph_shards()
    if request.mode == "graph":
        missing = [shard.key("rows") for shard in access.shards if "graph" not in shard.files]
        require_graph(access.routing.published.manifest.kb_id, missing, len(access.shards))
        access.refuse_without(graphs)
    positions, shards = list(graphs), list(graphs.values())
    linked = find_linked_entities(shards, named, parameters.most_common)
    reason = ""
    if request.mode == "adaptive":
        telling = [name for name in sorted(linked) if _is_telling(access, name, positions, shards)]
        if not telling:
            return replace(hybrid, reason=_explain_no_graph(shards, named, linked))
        reason = f"the question names {', '.join(telling)}"
    candidates = hybrid.candidates
    best = best_rows(access, candidates.shards, candidates.rows, hybrid.scores, parameters.seeds)
    seeds = [(positions.index(row.shard), row.row) for row in best if row.score > 0 and row.shard in graphs]
    reached = walk_graph(shards, seeds, named, parameters)
    if len(reached.shards):
        reached = replace(reached, shards=np.array(positions, np.int64)[reached.shards])
    return replace(_join(access, request, scale, hybrid, reached), reason=reason)


def _is_telling(access: ShardAccess, name: str, positions: Sequence[int], shards: Sequence[GraphShard]) -> bool:
    """Tell whether a question that names this is likely to be about it, and does not just mention it.

    It is when it gives the whole name, of several words, or when a document has it for its title.
    """
    if " " in name:
        return True
    for place, row in find_strong_rows(shards, name, TITLE_WEIGHT):
        search = access.search(positions[place])
        if search is not None and title_entity(search.header(int(search.doc_of_row[row])).title) == name:
            return True
    return False


def _join(access: ShardAccess, request: SearchRequest, scale: Scale, hybrid: Ranking, reached: Spread) -> Ranking:
    """Return the candidates and the strongest rows that the walk met, with hybrid and graph scores of each."""
    shards, rows = reached.shards, reached.rows
    allowed = np.ones(len(rows), np.bool_)
    for position in np.unique(shards).tolist():
        own, selection = shards == position, access.allowed_rows(position)
        if selection is not None:
            allowed[own] = selection[rows[own]]
    most = max(_REACHED_ROWS, 2 * request.limit)
    chosen = allowed & (reached.scores >= _least_of_best(reached.scores[allowed], most))
    # The scale is that of the candidates before: rows that the graph adds do not move it.
    again = _rank_hybrid(scale, hybrid.candidates.add_rows(access, request, shards[chosen], rows[chosen]))
    strength = dict(zip(zip(shards.tolist(), rows.tolist(), strict=True), reached.scores.tolist(), strict=True))
    places = zip(again.candidates.shards.tolist(), again.candidates.rows.tolist(), strict=True)
    graph = np.array([strength.get(place, 0.0) for place in places])
    scores = add_graph_scores(again.scores, graph, request.options.graph.alpha)
    return Ranking("graph", again.candidates, scores, {**again.parts, "hybrid": again.scores, "graph": graph})


def _explain_no_graph(shards: Sequence[GraphShard], named: Sequence[str], linked: Collection[str]) -> str:
    if not shards:
        return "there is no graph"
    if not named:
        return _NAMES_NOTHING
    if not linked:
        return f"nothing is known of {', '.join(named)}, or too much"
    return f"no document is about {', '.join(sorted(linked))}"


# ── the best ───────────────────────────────────────────────────────────────────────────────────────


class RankedRow(NamedTuple):
    """A candidate, and the document that it is of."""

    number: int
    shard: int
    row: int
    score: float
    search: SearchFile
    header: Header


def best_rows(
    access: ShardAccess, shards: Rows, rows: Rows, scores: npt.NDArray[np.floating], limit: int
) -> list[RankedRow]:
    """Return the best rows in order; more of them where several are as good as the last one."""
    if limit <= 0:
        return []
    least = _least_of_best(scores, limit)
    chosen = np.flatnonzero(scores >= least)
    if len(chosen) > limit + _MANY_TIES:
        tied, better = np.flatnonzero(scores == least), np.flatnonzero(scores > least)
        # So many of each shard are enough.
        by_id = [
            numbers[np.isin(rows[numbers], access.first_by_id(position, rows[numbers], limit + MORE_ALIKE))]
            for position, numbers in by_shard(shards[tied], tied).items()
        ]
        chosen = np.concatenate([better, *by_id])
    access.fetch_rows(by_shard(shards[chosen], rows[chosen]), texts=True)
    best = []
    places = zip(chosen.tolist(), shards[chosen].tolist(), rows[chosen].tolist(), scores[chosen].tolist(), strict=True)
    for number, position, row, score in places:
        search = access.search(position)
        if search is not None:
            header = search.header(int(search.doc_of_row[row]))
            best.append(RankedRow(number, position, row, score, search, header))
    # Chunks of one document lie in their order.
    best.sort(key=lambda row: (-row.score, row.header.id, row.row))
    return best


def count_whole_ties(scores: npt.NDArray[np.floating], most: int) -> int:
    """Return how many of the best are at most this many, without cutting rows that are equally good apart."""
    return int(np.count_nonzero(scores > _least_of_best(scores, most + 1)))


def _least_of_best(scores: npt.NDArray[np.floating], limit: int) -> float:
    if len(scores) <= limit:
        return -math.inf
    return float(np.partition(scores, len(scores) - limit)[len(scores) - limit])
