"""Ranking of candidates: one score from keywords, vectors and the graph.

hybrid = (1 - w) · K / Kmax + w · V
    K      BM25 of the row; Kmax, the best of the query
    V      max(0, (f² - d²) / (f² - n²)): d, the row's distance; n and f, the nearest and the farthest of the rows that
           are nearest to the query. For vectors of length 1 this is their cosine, stretched over that range
    w      the embedder's weight for the query; 0 if there is no vector, 1 if no keyword is found
graph = a · hybrid + (1 - a) · G
    G      the higher one of two scores between 0 and 1: of the walk over entities, and of the best hit that names the
           row's document, by title or link; a, the share of the hybrid score

The probability that a candidate is relevant compares between queries and modes:
ln(p / (1 - p)) = base + Σ coefficient · part, each part from 0 to 1:
    coverage   the share of the query's words that the row holds, by their weights in BM25: rare words weigh more, and
               words that occur nowhere in the KB are missing
    nearness   (c - u) / (1 - u): c, the cosine of row and query; u, the usual one, the mean of the 12 nearest rows
    standing   the ranking score of the row as a share of the best one of the query
    agreement  the lower one of K / Kmax and V: high if words and meaning both choose the row

benchmarks/scores.py fits the coefficients and prints how reliable they are on sets that were left out of the fit.

Invariants
    The order of the ranking stays: no candidate is more probable than one that ranks above it.
    The probability of a candidate depends neither on the layout of the shards nor on how many hits are wanted.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from pair.engine.format.columns import Header
from pair.engine.format.graph_index import entity_hash
from pair.engine.format.shard import SearchFile
from pair.engine.query.graph import (
    GraphShard,
    NamedRows,
    Seed,
    Spread,
    find_linked_entities,
    find_named_rows,
    is_subject,
    require_graph,
    walk_graph,
)
from pair.engine.query.retrieve import Candidates, Distances, Floats, SearchRequest
from pair.engine.query.shard_access import Rows, ShardAccess, by_shard
from pair.text.entity_rules import list_subjects
from pair.values import SearchMode

_REACHED_ROWS = 50
"""Number of the strongest rows of the walk that become candidates."""
_MANY_TIES = 200
"""Maximum number of rows with equal scores to read. Of more rows, only the first by id of each shard are read."""
_STOP_WORDS_SHARE = 0.3
"""The weight of stop words as evidence, for a query without other words."""
MORE_ALIKE = 10
"""Number of rows after the last hit to compare with the hits, to find copies."""
_NAMES_NOTHING = "the question names no entity"


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
        """Return V of the formula for these distances."""
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


@dataclass(frozen=True, eq=False)
class Ranking:
    """Candidates with their scores, and the parts of each score."""

    mode: SearchMode
    candidates: Candidates
    scores: Floats
    parts: Mapping[str, Floats]
    """The components of the scores, by name."""
    reason: str = ""
    """Why `adaptive` used the graph, or did not."""
    names_known: bool = False
    """Whether the question names an entity of the graph."""
    evidence: Mapping[str, Floats] = field(default_factory=dict)
    """The components of the probabilities, by name."""
    probabilities: Floats = field(default_factory=lambda: np.empty(0))
    """The probability that each candidate is relevant."""


def rank(access: ShardAccess, request: SearchRequest, candidates: Candidates, first: Candidates) -> Ranking:
    """Score candidates. `first`: the candidates of the first retrieval, which set the scale for wider ones.

    Raises E204 in mode `graph`.
    """
    scale = make_scale(request.vector_weight, candidates.keyword, first.near_distances)
    if request.mode == "vector":
        scores = np.asarray(1.0 / (1.0 + candidates.distances.astype(np.float64)), np.float64)
        ranking = Ranking("vector", candidates, scores, {})
    elif request.mode == "keyword":
        keyword = scale.keyword(candidates.keyword)
        ranking = Ranking("keyword", candidates, keyword, {"keyword": keyword})
    else:
        ranking = _rank_hybrid(scale, candidates)
        if request.mode != "hybrid":
            ranking = _rank_with_graph(access, request, scale, ranking)
    evidence = _gather_evidence(request, scale, ranking, first.near_distances)
    return replace(ranking, evidence=evidence, probabilities=estimate_probabilities(ranking.scores, evidence))


def _rank_hybrid(scale: Scale, candidates: Candidates) -> Ranking:
    keyword, vector = scale.keyword(candidates.keyword), scale.vector(candidates.distances)
    parts = {"keyword": keyword, "vector": vector, "weight": np.full(len(candidates), scale.weight)}
    scores = np.asarray((1.0 - scale.weight) * keyword + scale.weight * vector, np.float64)
    return Ranking("hybrid", candidates, scores, parts)


def _gather_evidence(request: SearchRequest, scale: Scale, ranking: Ranking, near: Distances) -> dict[str, Floats]:
    candidates, parts = ranking.candidates, ranking.parts
    evidence: dict[str, Floats] = {}
    if scale.best_keyword > 0 and request.words is not None and candidates.keywords is not None:
        share = 1.0 if candidates.keywords.is_telling else _STOP_WORDS_SHARE
        evidence["coverage"] = np.minimum(candidates.held / candidates.keywords.ideal, 1.0) * share
    if scale.weight > 0:
        evidence["nearness"] = compute_nearness(candidates.distances, near)
    if len(evidence) == 2:
        evidence["agreement"] = np.minimum(parts["keyword"], parts["vector"])
    return {**evidence, "standing": compute_standing(ranking.scores)}


# ── the graph ──────────────────────────────────────────────────────────────────────────────────────


def _rank_with_graph(access: ShardAccess, request: SearchRequest, scale: Scale, hybrid: Ranking) -> Ranking:
    """Add graph scores. Raises E204 in mode `graph`; `adaptive` returns the hybrid ranking with a reason instead."""
    parameters, named = request.options.graph, request.names
    if request.mode == "adaptive" and not named and any("graph" in shard.files for shard in access.shards):
        return replace(hybrid, reason=_NAMES_NOTHING)  # Check before graphs are fetched.
    graphs = access.graph_shards()
    if request.mode == "graph":
        missing = [shard.key("rows") for shard in access.shards if "graph" not in shard.files]
        require_graph(access.routing.published.manifest.kb_id, missing, len(access.shards))
        access.refuse_without(graphs)
    positions, shards = list(graphs), list(graphs.values())
    linked = find_linked_entities(shards, named, parameters.most_common)
    reason = ""
    if request.mode == "adaptive":
        # A name of several words, or the title of a document, shows what the question is about.
        telling = [name for name in sorted(linked) if " " in name or is_subject(shards, name)]
        if not telling:
            return replace(hybrid, reason=_explain_no_graph(shards, named, linked))
        reason = f"the question names {', '.join(telling)}"
    candidates = hybrid.candidates
    best = best_rows(access, candidates.shards, candidates.rows, hybrid.scores, parameters.seeds)
    starts = [row for row in best if row.score > 0 and row.shard in graphs]
    headers = [row.header for row in starts]
    subjects = [list_subjects(header.id, header.title, header.url) for header in headers]
    seeds = [
        Seed(positions.index(row.shard), row.row, row.score / best[0].score, frozenset(map(entity_hash, names)))
        for row, names in zip(starts, subjects, strict=True)
    ]
    reached = walk_graph(shards, seeds, named, parameters)
    about = find_named_rows(shards, seeds, named, parameters)
    numbers = np.array(positions, np.int64)
    reached, about = (
        replace(reached, shards=numbers[reached.shards]),
        replace(about, shards=numbers[about.shards]),
    )
    return replace(_join(access, request, scale, hybrid, reached, about), reason=reason, names_known=bool(linked))


def _join(
    access: ShardAccess, request: SearchRequest, scale: Scale, hybrid: Ranking, reached: Spread, about: NamedRows
) -> Ranking:
    """Return the candidates, the strongest rows of the walk and the named rows, each with hybrid and graph scores."""
    most = max(_REACHED_ROWS, 2 * request.limit)
    strong = _find_allowed(access, reached.shards, reached.rows)
    strong[strong] = reached.scores[strong] >= _least_of_best(reached.scores[strong], most)
    named = _find_allowed(access, about.shards, about.rows)
    shards = np.concatenate([reached.shards[strong], about.shards[named]])
    rows = np.concatenate([reached.rows[strong], about.rows[named]])
    # Rows that the graph adds do not change the scale.
    again = _rank_hybrid(scale, _add_rows(access, request, hybrid.candidates, shards, rows))
    keys = _number_rows(again.candidates.shards, again.candidates.rows)
    graph = np.zeros(len(keys))
    places, is_here = _find_places(keys, _number_rows(reached.shards, reached.rows))
    graph[places] = reached.scores[is_here]
    places, is_here = _find_places(keys, _number_rows(about.shards, about.rows))
    # Of the rows of a subject, the one that suits the question best gets the full score, the others a share.
    best = np.zeros(int(about.subjects.max(initial=0)) + 1)
    np.maximum.at(best, about.subjects[is_here], again.scores[places])
    best = best[about.subjects[is_here]]
    share = np.divide(again.scores[places], best, out=np.ones(len(places)), where=best > 0)
    np.maximum.at(graph, places, about.strengths[is_here] * share)
    alpha = request.options.graph.alpha
    scores = np.asarray(alpha * again.scores + (1.0 - alpha) * graph, np.float64)
    return Ranking("graph", again.candidates, scores, {**again.parts, "hybrid": again.scores, "graph": graph})


def _find_allowed(access: ShardAccess, shards: Rows, rows: Rows) -> npt.NDArray[np.bool_]:
    """Return a flag for each row: whether it meets the conditions of the query."""
    allowed = np.ones(len(rows), np.bool_)
    for position in np.unique(shards).tolist():
        own, selection = shards == position, access.allowed_rows(position)
        if selection is not None:
            allowed[own] = selection[rows[own]]
    return allowed


def _add_rows(
    access: ShardAccess, request: SearchRequest, candidates: Candidates, shards: Rows, rows: Rows
) -> Candidates:
    """Return the candidates together with more rows, in the order of shards and rows. Only new rows are scored."""
    is_new = ~np.isin(_number_rows(shards, rows), _number_rows(candidates.shards, candidates.rows))
    nothing = replace(candidates, shards=shards[:0], rows=rows[:0], distances=candidates.distances[:0])
    added = nothing.add_rows(access, request, shards[is_new], rows[is_new])
    together = [candidates, added]
    order = np.argsort(np.concatenate([_number_rows(part.shards, part.rows) for part in together]))
    return replace(
        candidates,
        shards=np.concatenate([part.shards for part in together])[order],
        rows=np.concatenate([part.rows for part in together])[order],
        keyword=np.concatenate([part.keyword for part in together])[order],
        held=np.concatenate([part.held for part in together])[order],
        distances=np.concatenate([part.distances for part in together])[order],
    )


def _number_rows(shards: Rows, rows: Rows) -> Rows:
    """Return one number for each place, ascending by shard and row."""
    return np.asarray((shards << 32) | rows, np.int64)


def _find_places(keys: Rows, wanted: Rows) -> tuple[Rows, npt.NDArray[np.bool_]]:
    """Return the places of the wanted numbers in the keys, and a flag for each wanted number: whether it is a key."""
    if not len(keys):
        return keys, np.zeros(len(wanted), np.bool_)
    places = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    is_here = keys[places] == wanted
    return places[is_here], is_here


def _explain_no_graph(shards: Sequence[GraphShard], named: Sequence[str], linked: Collection[str]) -> str:
    if not shards:
        return "there is no graph"
    if not named:
        return _NAMES_NOTHING
    if not linked:
        return f"unknown or too common in the graph: {', '.join(named)}"
    return f"no document is about {', '.join(sorted(linked))}"


# ── the best ───────────────────────────────────────────────────────────────────────────────────────


@dataclass(eq=False, slots=True)
class RankedRow:
    """A candidate."""

    number: int
    shard: int
    row: int
    score: float
    search: SearchFile
    _header: Header | None = None

    @property
    def header(self) -> Header:
        """The header of its document, read when it is needed."""
        if self._header is None:
            self._header = self.search.header(int(self.search.doc_of_row[self.row]))
        return self._header


def best_rows(
    access: ShardAccess, shards: Rows, rows: Rows, scores: npt.NDArray[np.floating], limit: int
) -> list[RankedRow]:
    """Return the best rows in order, with all ties of the last one."""
    if limit <= 0:
        return []
    least = _least_of_best(scores, limit)
    chosen = np.flatnonzero(scores >= least)
    if len(chosen) > limit + _MANY_TIES:
        tied, better = np.flatnonzero(scores == least), np.flatnonzero(scores > least)
        # No more than this many of one shard can be among the first by id.
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
            best.append(RankedRow(number, position, row, score, search))
    best.sort(key=lambda row: -row.score)
    for begin, end in _find_ties(best):
        # Chunks of one document lie in their order.
        best[begin:end] = sorted(best[begin:end], key=lambda row: (row.header.id, row.row))
    return best


def _find_ties(rows: Sequence[RankedRow]) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each run of equal scores."""
    begin = 0
    for end in range(1, len(rows) + 1):
        if end == len(rows) or rows[end].score != rows[begin].score:
            if end - begin > 1:
                yield begin, end
            begin = end


def count_whole_ties(scores: npt.NDArray[np.floating], most: int) -> int:
    """Return the largest number of best rows, up to `most`, that does not separate rows with equal scores."""
    return int(np.count_nonzero(scores > _least_of_best(scores, most + 1)))


def _least_of_best(scores: npt.NDArray[np.floating], limit: int) -> float:
    if len(scores) <= limit:
        return -math.inf
    return float(np.partition(scores, len(scores) - limit)[len(scores) - limit])


# ── probabilities ──────────────────────────────────────────────────────────────────────────────────


LEAST = 0.02
"""Minimum probability of the best result, for a query by words and meaning."""
LEAST_WITHOUT_WORDS = 0.25
"""The same minimum, for a query without any word that occurs in the KB: only its vector counts."""
_USUAL_ROWS = 12
"""Number of nearest rows whose mean is the usual nearness; every vector search finds this many."""
_UNKNOWN_ROWS = 2
"""Number of rows with cosine 0 to add to the mean, because a small KB has too few rows."""


@dataclass(frozen=True, slots=True)
class Coefficients:
    """One fit: for queries with words and a vector, with words alone, or with a vector alone."""

    base: float
    standing: float
    coverage: float = 0.0
    nearness: float = 0.0
    agreement: float = 0.0


BY_WORDS_AND_MEANING = Coefficients(base=-6.82, standing=1.95, coverage=4.13, nearness=1.98, agreement=2.39)
BY_WORDS = Coefficients(base=-7.45, standing=4.14, coverage=4.64)
BY_MEANING = Coefficients(base=-4.92, standing=0.92, nearness=9.23)


def compute_nearness(distances: npt.NDArray[np.float32], near: npt.NDArray[np.float32]) -> Floats:
    """Return the nearness of rows. `near`: ascending distances of the nearest rows."""
    cosines = _to_cosines(near[:_USUAL_ROWS])
    usual = max(float(cosines.sum()), 0.0) / (len(cosines) + _UNKNOWN_ROWS)
    return np.asarray(np.clip((_to_cosines(distances) - usual) / (1.0 - usual), 0.0, 1.0), np.float64)


def _to_cosines(distances: npt.NDArray[np.float32]) -> Floats:
    """Return the cosines of vectors of length 1."""
    return np.asarray(1.0 - distances.astype(np.float64) ** 2 / 2.0, np.float64)


def compute_standing(scores: Floats) -> Floats:
    best = float(scores.max(initial=0.0))
    return np.asarray(scores / best, np.float64) if best > 0 else np.zeros(len(scores))


def estimate_probabilities(scores: Floats, parts: dict[str, Floats]) -> Floats:
    """Return a probability for each candidate. `scores`: of the ranking, whose order it keeps."""
    fit = BY_WORDS_AND_MEANING if "agreement" in parts else BY_WORDS if "coverage" in parts else BY_MEANING
    logit = np.full(len(scores), fit.base)
    for name, values in parts.items():
        logit += getattr(fit, name) * values
    probabilities = 1.0 / (1.0 + np.exp(-logit))
    order = np.argsort(-scores, kind="stable")
    # Candidates with equal scores get the lowest probability of any of them: their order is not known here.
    ranked, falling = -scores[order], np.minimum.accumulate(probabilities[order])
    last_equal = np.searchsorted(ranked, ranked, side="right") - 1
    probabilities[order] = falling[last_equal]
    return np.asarray(probabilities, np.float64)
