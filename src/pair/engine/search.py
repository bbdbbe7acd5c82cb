"""Queries over one KB: by vector, by keyword, by both, and along the graph; hits in the same order whatever the layout.

Invariants
    A query sees one manifest. When garbage collection took a shard from under it, it starts over with the current one.
    Hits are ordered by score, then document, then chunk.
Not here
    What a score is: fusion.py. Which shards are asked for a vector: vector_search.py.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from pair import errors
from pair.ai.contract import Reranker
from pair.clock import Clock
from pair.engine import analysis, fusion, passages
from pair.engine.candidates import Candidates, Gathering, Wanted
from pair.engine.extraction import TITLE_WEIGHT, question_entities, title_entity
from pair.engine.filters import Filter
from pair.engine.graph_search import (
    GraphShard,
    Seed,
    Spread,
    linked_entities,
    require_graph,
    spread,
    strong_rows,
)
from pair.engine.manifest import Manifest
from pair.engine.policy import EnginePolicy
from pair.engine.publication import Publication, Published
from pair.engine.reading import Reading, ShardReader
from pair.engine.shard import SearchFile
from pair.engine.shard_cache import ShardCache, ShardMissingError
from pair.engine.stored_documents import Header
from pair.engine.vector_search import VectorQuery, VectorSearch
from pair.engine.vectors import Vectors
from pair.engine.view import View
from pair.values import GraphParameters, Hit, SearchMode

_TRIES_AFTER_COLLECTION = 5
_DIVERSE_CHOICES = 4
"""Candidates for each hit, when hits are to be unlike each other."""
_REACHED_ROWS = 200
"""Of the rows that the walk meets, so many of the strongest become candidates."""
_MORE_ROWS = 4
"""Times as many candidates, when those that there are make too few passages."""
_MORE_ALIKE = 10
"""Rows behind the last hit that are looked at for what says the same as a hit."""
_LONGEST_PASSAGE = 6000
"""In characters: neighbours are merged up to here."""


@dataclass(frozen=True, slots=True)
class Hits:
    """What a search found, best first; a sequence of hits that also says how far it can be trusted."""

    found: tuple[Hit, ...]
    manifest_version: int
    shards_asked: int
    partial: bool = False
    """Some shards could not be asked."""
    faults: tuple[str, ...] = ()
    """Which, and why."""
    mode_used: SearchMode = "vector"
    reason: str = ""
    """Why `adaptive` went the way it went."""
    term_weights: Mapping[str, float] = field(default_factory=dict)
    """What each word of the query counts in this KB: the rarer, the more. Empty where words do not count."""

    def __iter__(self) -> Iterator[Hit]:
        return iter(self.found)

    def __len__(self) -> int:
        return len(self.found)

    def __getitem__(self, position: int) -> Hit:
        return self.found[position]


@dataclass(frozen=True, slots=True)
class Narrowing:
    """What a hit must be, besides being good."""

    condition: Filter | None = None
    max_distance: float | None = None
    """Strictly nearer than this."""
    exact: bool = False
    """Ask every row of every shard."""


@dataclass(frozen=True, slots=True)
class TextQuery:
    text: str
    limit: int
    mode: SearchMode = "hybrid"
    narrowing: Narrowing = field(default_factory=Narrowing)
    graph: GraphParameters = field(default_factory=GraphParameters)
    diversity: float = 0.0
    """How much being unlike the hits before counts: 0 for not at all, below 1."""
    explain: bool = False
    highlights: bool = False
    """Say what matched: takes about as long as everything else together."""


@dataclass(frozen=True, slots=True)
class Query:
    """A text with its vector."""

    asked: TextQuery
    vector: Vectors | None
    """None in mode `keyword`."""
    vector_weight: float
    """Of the vector in a hybrid score."""


def reranked(hits: Hits, query: TextQuery, reranker: Reranker) -> Hits:
    """By what a reranker makes of their texts; the first ones."""
    scores = reranker.scores(query.text, [hit.text for hit in hits])
    order = sorted(range(len(hits)), key=lambda number: (-scores[number], number))[: max(query.limit, 0)]
    return replace(hits, found=tuple(_rescored(hits[number], float(scores[number])) for number in order))


def _rescored(hit: Hit, score: float) -> Hit:
    explanation = None if hit.explanation is None else {**hit.explanation, "reranker": score}
    return replace(hit, score=score, explanation=explanation)


class Search:
    def __init__(self, publication: Publication, cache: ShardCache, policy: EnginePolicy, clock: Clock) -> None:
        self._publication = publication
        self._reader = ShardReader(cache, policy.query_shard_parallelism)
        self._policy = policy
        self._clock = clock
        self._view: View | None = None

    def close(self) -> None:
        self._reader.close()

    def nearest(self, vector: Vectors, limit: int, narrowing: Narrowing) -> Hits:
        """Chunks by distance alone. Raises E201, E303, E205, E206, E215; E207 when no shard at all could be asked."""

        def answer(reading: Reading) -> Hits:
            _check_vector(vector, reading.view.published.manifest)
            asked = VectorQuery(vector, limit, narrowing.max_distance, narrowing.exact)
            near = VectorSearch(reading, self._policy, asked).nearest()
            named = _named(reading, near.shards, near.rows, -near.distances, limit)[:limit]
            found = (each.search.hit(each.row, -each.score, each.header, 1.0 / (1.0 - each.score)) for each in named)
            return _hits(reading, tuple(found), near.asked)

        return self._answered(answer, narrowing)

    def find(self, query: Query) -> Hits:
        """Passages that answer a text. Raises as `nearest` does, and E204 in mode `graph` for want of a graph."""

        def answer(reading: Reading) -> Hits:
            if query.vector is not None:
                _check_vector(query.vector, reading.view.published.manifest)
            return _Answering(reading, self._policy, query).hits()

        return self._answered(answer, query.asked.narrowing)

    def _answered(self, answer: "_Answer", narrowing: Narrowing) -> Hits:
        for _ in range(_TRIES_AFTER_COLLECTION):
            published = self._publication.required()
            try:
                return answer(self._reading(published, narrowing, skips_missing=False))
            except ShardMissingError:
                # Collected while we were about to ask it: then another manifest is there by now.
                if self._publication.required().version == published.version:
                    break
        return answer(self._reading(self._publication.required(), narrowing, skips_missing=True))

    def _reading(self, published: Published, narrowing: Narrowing, *, skips_missing: bool) -> Reading:
        view = self._view
        if view is None or view.published.version != published.version:
            view = self._view = View(published)
            self._reader.cache.keep_only({shard.folder for shard in published.manifest.shards})
        now = self._clock.monotonic()
        return Reading(view, self._reader, narrowing.condition, now, skips_missing=skips_missing)


class _Answer(Protocol):
    def __call__(self, reading: Reading) -> Hits: ...


class _Answering:
    """One query, from its candidates to the passages."""

    def __init__(self, reading: Reading, policy: EnginePolicy, query: Query) -> None:
        self._reading = reading
        self._policy = policy
        self._query = query.asked
        self._vector = query.vector
        self._vector_weight = query.vector_weight
        self._words = analysis.parse(query.asked.text) if query.asked.mode != "vector" else None
        self._gathering = self._gathered(max(query.asked.limit, 0))

    def hits(self) -> Hits:
        while True:
            ranking = self._ranked(self._gathering.all())
            if self._query.mode in {"graph", "adaptive"}:
                ranking = self._with_graph(ranking)
            found, rows = self._passages(ranking), len(ranking.found)
            # Where a text is stored a thousand times, the best rows are all one passage, and others have to be found.
            if len(found) >= self._query.limit or rows < self._query.limit or self._gathering.is_complete:
                break
            self._gathering = self._gathered(_MORE_ROWS * rows)
        asked = self._gathering.shards_asked if self._query.mode == "vector" else len(self._reading.view.shards)
        return replace(_hits(self._reading, found, asked, ranking), term_weights=dict(self._gathering.term_weights))

    def _gathered(self, limit: int) -> Gathering:
        narrowing = self._query.narrowing
        wanted = Wanted(limit, narrowing.max_distance, narrowing.exact)
        return Gathering(self._reading, self._policy, wanted, self._vector, self._words)

    # Scores

    def _ranked(self, found: Candidates) -> "_Ranking":
        query = self._query
        if query.mode == "vector":
            scores = np.asarray(1.0 / (1.0 + found.distances.astype(np.float64)), np.float64)
            return _Ranking("vector", found, scores, {})
        scale = self._gathering.scale(self._vector_weight, found)
        if query.mode == "keyword":
            keyword = scale.keyword(found.keyword)
            return _Ranking("keyword", found, keyword, {"keyword": keyword})
        return _hybrid(scale, found)

    def _with_graph(self, hybrid: "_Ranking") -> "_Ranking":
        """Raises E204 in mode `graph`; `adaptive` does without a graph, or without asking it, and says why."""
        query, view = self._query, self._reading.view
        by_position = self._reading.graph_shards()
        if query.mode == "graph":
            missing = [shard.key("rows") for shard in view.shards if "graph" not in shard.files]
            require_graph(view.published.manifest.kb_id, missing, len(view.shards))
            self._reading.refuse_without(by_position)
        positions, shards = list(by_position), list(by_position.values())
        named = question_entities(query.text)
        linked = linked_entities(shards, named, query.graph.most_common)
        reason = ""
        if query.mode == "adaptive":
            telling = [name for name in sorted(linked) if self._is_telling(name, positions, shards)]
            if not telling:
                return replace(hybrid, reason=_why_not(shards, named, linked))
            reason = f"the question names {', '.join(telling)}"
        places = {position: place for place, position in enumerate(positions)}
        best = _named(self._reading, hybrid.found.shards, hybrid.found.rows, hybrid.scores, query.graph.seeds)
        seeds = [
            Seed(places[each.shard], each.row, each.score) for each in best if each.score > 0 and each.shard in places
        ]
        reached = spread(shards, seeds[: query.graph.seeds], named, query.graph)
        return replace(self._joined(hybrid, reached, np.array(positions, np.int64)), reason=reason)

    def _is_telling(self, name: str, positions: Sequence[int], shards: Sequence[GraphShard]) -> bool:
        """Whether a question that names this is likely to be about the thing, and not just to mention it.

        It is, when it gives the whole name, of several words, or when a document has it for its title.
        """
        if " " in name:
            return True
        for place, row in strong_rows(shards, name, TITLE_WEIGHT):
            search = self._reading.search(positions[place])
            if search is not None and title_entity(search.header(int(search.doc_of_row[row])).title) == name:
                return True
        return False

    def _joined(self, hybrid: "_Ranking", reached: Spread, positions: npt.NDArray[np.int64]) -> "_Ranking":
        """Hybrid and graph scores of all that either found."""
        shards, rows = positions[reached.shards] if len(reached.shards) else reached.shards, reached.rows
        allowed = self._is_allowed(shards, rows)
        strong = reached.scores >= _least_of_best(reached.scores[allowed], self._most_reached())
        chosen = allowed & strong
        found = self._gathering.valued(
            np.concatenate([hybrid.found.shards, shards[chosen]]), np.concatenate([hybrid.found.rows, rows[chosen]])
        )
        # By the scale of the candidates that there were first: what the graph adds does not move it.
        again = _hybrid(self._gathering.scale(self._vector_weight, hybrid.found), found)
        strength = dict(zip(zip(shards.tolist(), rows.tolist(), strict=True), reached.scores.tolist(), strict=True))
        places = zip(found.shards.tolist(), found.rows.tolist(), strict=True)
        graph = np.array([strength.get(each, 0.0) for each in places])
        scores = fusion.with_graph(again.scores, graph, self._query.graph.alpha)
        return _Ranking("graph", found, scores, {**again.parts, "hybrid": again.scores, "graph": graph})

    def _most_reached(self) -> int:
        return max(_REACHED_ROWS, 2 * self._query.limit)

    def _is_allowed(self, shards: npt.NDArray[np.int64], rows: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        allowed = np.ones(len(rows), np.bool_)
        for position in np.unique(shards).tolist():
            own = shards == position
            selection = self._reading.allowed(position)
            if selection is not None:
                allowed[own] = selection[rows[own]]
        return allowed

    # Passages

    def _passages(self, ranking: "_Ranking") -> tuple[Hit, ...]:
        """As many as are wanted, if there are: where rows become one passage, the next rows fill up."""
        query, found = self._query, ranking.found
        wanted = limit = max(query.limit, 0)
        best: list[_Named] = []
        made: dict[int, Hit] = {}
        while True:
            taken = wanted if not query.diversity else wanted * _DIVERSE_CHOICES
            if not best or len(best) < min(taken, len(found)):  # ties may have brought as many before
                more = max(taken, _whole_ties(ranking.scores, taken + _MORE_ALIKE))
                best = _named(self._reading, found.shards, found.rows, ranking.scores, more)
            named = best[:taken] if not query.diversity else self._diverse(best[:taken], wanted)
            rows = {each.header.id: each for each in named}
            made.update((each.number, self._hit(each, ranking)) for each in named if each.number not in made)
            hits = [made[each.number] for each in named]

            def text_of(hit: Hit, start: int, end: int, rows: Mapping[str, _Named] = rows) -> str:
                return rows[hit.document_id].search.slice_of(rows[hit.document_id].row, start, end)

            together = passages.fold_duplicates(
                passages.merge_neighbours(hits, text_of, most_characters=_LONGEST_PASSAGE)
            )[:limit]
            if len(together) == limit or wanted >= len(found):
                return _with_more_alike(together, named, best)
            wanted *= 2

    def _diverse(self, named: Sequence["_Named"], limit: int) -> list["_Named"]:
        if not named:
            return []
        vectors = np.stack([each.search.vectors[each.row] for each in named])
        order = passages.diversified([each.score for each in named], vectors, limit, 1.0 - self._query.diversity)
        return [named[number] for number in order]

    def _hit(self, each: "_Named", ranking: "_Ranking") -> Hit:
        distance = float(ranking.found.distances[each.number])
        hit = each.search.hit(each.row, None if math.isnan(distance) else distance, each.header, each.score)
        graph = ranking.parts.get("graph")
        if graph is None and not (self._query.highlights or self._query.explain):
            return hit
        marks = analysis.highlights(hit.text, self._words) if self._query.highlights and self._words else ()
        return replace(
            hit,
            graph_score=None if graph is None else float(graph[each.number]),
            highlights=marks,
            explanation=self._explanation(each.number, ranking) if self._query.explain else None,
        )

    def _explanation(self, number: int, ranking: "_Ranking") -> dict[str, float | str]:
        told: dict[str, float | str] = {"mode": ranking.mode, "score": float(ranking.scores[number])}
        told.update({name: float(values[number]) for name, values in ranking.parts.items()})
        if "keyword" in ranking.parts:
            told["bm25"] = float(ranking.found.keyword[number])
        if "graph" in ranking.parts:
            told["alpha"] = self._query.graph.alpha
        return told


@dataclass(frozen=True, eq=False)
class _Ranking:
    """Candidates with their scores, and what these are made of."""

    mode: SearchMode
    found: Candidates
    scores: fusion.Floats
    parts: Mapping[str, fusion.Floats]
    reason: str = ""


def _hybrid(scale: fusion.Scale, found: Candidates) -> _Ranking:
    keyword, vector = scale.keyword(found.keyword), scale.vector(found.distances)
    parts = {"keyword": keyword, "vector": vector, "weight": np.full(len(found), scale.weight)}
    return _Ranking("hybrid", found, scale.hybrid(keyword, vector), parts)


class _Named(NamedTuple):
    """A candidate, and the document that it is of."""

    number: int
    shard: int
    row: int
    score: float
    search: SearchFile
    header: Header


def _named(
    reading: Reading,
    shards: npt.NDArray[np.int64],
    rows: npt.NDArray[np.int64],
    scores: npt.NDArray[np.floating],
    limit: int,
) -> list[_Named]:
    """The best, in their order; more of them where several are as good as the last one."""
    chosen = np.flatnonzero(scores >= _least_of_best(scores, limit)) if limit > 0 else np.empty(0, np.int64)
    named = []
    places = zip(chosen.tolist(), shards[chosen].tolist(), rows[chosen].tolist(), scores[chosen].tolist(), strict=True)
    for number, position, row, score in places:
        search = reading.search(position)
        if search is not None:
            header = search.header(int(search.doc_of_row[row]))
            named.append(_Named(number, position, row, score, search, header))
    # Chunks of one document lie in their order.
    named.sort(key=lambda each: (-each.score, each.header.id, each.row))
    return named


def _with_more_alike(hits: Sequence[Hit], named: Sequence[_Named], best: Sequence[_Named]) -> tuple[Hit, ...]:
    """The hits, which also name those of the next best rows that say the same."""
    shown = {each.number for each in named}
    others = [each for each in best if each.number not in shown][:_MORE_ALIKE]
    alike = [each.search.hit(each.row, None, each.header, each.score) for each in others]
    return passages.fold_duplicates([*hits, *alike])[: len(hits)]


def _least_of_best(scores: npt.NDArray[np.floating], limit: int) -> float:
    if len(scores) <= limit:
        return -math.inf
    return float(np.partition(scores, len(scores) - limit)[len(scores) - limit])


def _whole_ties(scores: npt.NDArray[np.floating], most: int) -> int:
    """How many of the best are no more than this, without some of those that are as good as each other."""
    return int(np.count_nonzero(scores > _least_of_best(scores, most + 1)))


def _why_not(shards: Sequence[GraphShard], named: Sequence[str], linked: Collection[str]) -> str:
    if not shards:
        return "there is no graph"
    if not named:
        return "the question names nothing"
    if not linked:
        return f"nothing is known of {', '.join(named)}, or too much"
    return f"no document is about {', '.join(sorted(linked))}"


def _hits(reading: Reading, found: tuple[Hit, ...], asked: int, ranking: _Ranking | None = None) -> Hits:
    """Raises E207 when faults have left nothing that could answer."""
    mode: SearchMode = "vector" if ranking is None else ranking.mode
    reading.refuse_without(reading.is_any_left(needs_keywords=mode == "keyword"))
    faults = tuple(f"{key}: {reason}" for key, reason in reading.faults.items())
    number = reading.view.published.manifest.number
    return Hits(found, number, asked, bool(faults), faults, mode, "" if ranking is None else ranking.reason)


def _check_vector(vector: Vectors, manifest: Manifest) -> None:
    if vector.shape != (manifest.dimension,):
        raise errors.vector_size_differs(manifest.kb_id, manifest.dimension, vector.shape[-1] if vector.ndim else 0)
    if not np.isfinite(vector).all():
        raise errors.query_invalid("the vector holds something that is not a number")
