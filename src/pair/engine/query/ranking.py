"""One query, from its candidates to the passages that answer it.

Not here
    What a score is: fusion.py. Which manifest is asked: search.py.
"""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pair.engine.format.shard import SearchFile
from pair.engine.format.stored_documents import Header
from pair.engine.query import fusion, passages
from pair.engine.query.graph_walk import (
    GraphShard,
    Seed,
    Spread,
    linked_entities,
    require_graph,
    spread,
    strong_rows,
)
from pair.engine.query.request import EmbeddedRequest, Hits
from pair.engine.query.retrieve import Candidates, RetrievalRequest, Retriever
from pair.engine.query.shard_access import ShardAccess, by_shard
from pair.engine.settings import EngineSettings
from pair.text import tokenizer
from pair.text.entity_rules import TITLE_WEIGHT, find_question_entities, title_entity
from pair.values import Hit, SearchMode

_DIVERSE_CHOICES = 4
"""Candidates for each hit, when hits are to be unlike each other."""
_REACHED_ROWS = 200
"""Of the rows that the walk meets, so many of the strongest become candidates."""
_MORE_ROWS = 4
"""Times as many candidates, when those that there are make too few passages."""
_MOST_ROWS = 4000
"""Rows that are looked at one by one for a query, or ten for each hit: texts that differ by case or whitespace only."""
_MANY_TIES = 200
"""Of more rows that are equally good, only the first by id of each shard are looked at."""
_MORE_ALIKE = 10
"""Rows behind the last hit that are looked at for what says the same as a hit."""
_NAMES_NOTHING = "the question names nothing"
_LONGEST_PASSAGE = 6000
"""In characters: neighbours are merged up to here."""


class Ranker:
    """One query, from its candidates to the passages."""

    def __init__(self, reading: ShardAccess, policy: EngineSettings, query: EmbeddedRequest) -> None:
        self._reading = reading
        self._policy = policy
        self._query = query.asked
        self._vector = query.vector
        self._vector_weight = query.vector_weight
        self._words = tokenizer.parse_query(query.asked.text) if query.asked.mode != "vector" else None
        self._gathering = self._first_gathering = self._gathered(max(query.asked.limit, 0))
        self._copies: Counter[str] = Counter()
        """How many rows with this text were set aside, for it is stored very often."""
        self._crowding: dict[str, list[_Named]] = {}
        """Rows that crowd out others by saying the same; by text."""
        self._kept: dict[str, int] = {}

    def hits(self) -> Hits:
        limit = max(self._query.limit, 0)
        while True:
            ranking = self._ranked(self._gathering.all())
            if self._query.mode in {"graph", "adaptive"}:
                ranking = self._with_graph(ranking)
            found, rows = self._passages(ranking), len(ranking.found)
            # Where a text is stored a thousand times, the best rows are all one passage, and others have to be found.
            if len(found) >= self._query.limit or rows < self._query.limit:
                break
            if self._crowding:
                self._set_copies_aside()
            elif self._gathering.is_complete or rows >= self._most_rows:
                break
            else:
                limit = _MORE_ROWS * rows
            self._gathering = self._gathered(limit)
        found = self._counted(found)
        asked = self._gathering.shards_asked if self._query.mode == "vector" else len(self._reading.view.shards)
        found = self._highlighted(found)
        return replace(hits_of(self._reading, found, asked, ranking), term_weights=dict(self._gathering.term_weights))

    def _gathered(self, limit: int) -> Retriever:
        narrowing = self._query.narrowing
        wanted = RetrievalRequest(limit, narrowing.max_distance, narrowing.exact)
        return Retriever(self._reading, self._policy, wanted, self._vector, self._words)

    @property
    def _most_rows(self) -> int:
        return max(_MOST_ROWS, 10 * self._query.limit)

    # Texts that are stored very often

    def _note_crowding(self, named: Sequence["_Named"], made: Mapping[int, Hit]) -> None:
        """Find out which texts more rows have than a passage names, since copies were last set aside."""
        by_text: dict[str, list[_Named]] = {}
        for each in named:
            by_text.setdefault(made[each.number].text, []).append(each)
        most = passages.MOST_ALSO_IN
        self._crowding = {text: rows for text, rows in by_text.items() if len(rows) > self._kept.get(text, 0) + most}

    def _set_copies_aside(self) -> None:
        for text, rows in self._crowding.items():
            kept = by_shard(np.array([each.shard for each in rows]), np.array([each.row for each in rows]))
            self._copies[text] += self._reading.set_aside(text, kept)
            self._kept[text] = len(rows)
        self._crowding = {}

    def _counted(self, found: tuple[Hit, ...]) -> tuple[Hit, ...]:
        """With the copies that were set aside. Of a passage of several rows, that of the most frequent one counts."""
        more = [max((n for text, n in self._copies.items() if text in hit.text), default=0) for hit in found]
        return tuple(replace(hit, also_in_count=hit.also_in_count + n) for hit, n in zip(found, more, strict=True))

    # Scores

    def _ranked(self, found: Candidates) -> "_Ranking":
        query = self._query
        if query.mode == "vector":
            scores = np.asarray(1.0 / (1.0 + found.distances.astype(np.float64)), np.float64)
            return _Ranking("vector", found, scores, {})
        scale = self._first_gathering.scale(self._vector_weight, found)
        if query.mode == "keyword":
            keyword = scale.keyword(found.keyword)
            return _Ranking("keyword", found, keyword, {"keyword": keyword})
        return _hybrid(scale, found)

    def _with_graph(self, hybrid: "_Ranking") -> "_Ranking":
        """Raises E204 in mode `graph`; `adaptive` does without a graph, or without asking it, and says why."""
        query, view = self._query, self._reading.view
        named = find_question_entities(query.text)
        if query.mode == "adaptive" and not named and any("graph" in shard.files for shard in view.shards):
            return replace(hybrid, reason=_NAMES_NOTHING)  # before graphs are fetched
        by_position = self._reading.graph_shards()
        if query.mode == "graph":
            missing = [shard.key("rows") for shard in view.shards if "graph" not in shard.files]
            require_graph(view.published.manifest.kb_id, missing, len(view.shards))
            self._reading.refuse_without(by_position)
        positions, shards = list(by_position), list(by_position.values())
        linked = linked_entities(shards, named, query.graph.most_common)
        reason = ""
        if query.mode == "adaptive":
            telling = [name for name in sorted(linked) if self._is_telling(name, positions, shards)]
            if not telling:
                return replace(hybrid, reason=_why_not(shards, named, linked))
            reason = f"the question names {', '.join(telling)}"
        places = {position: place for place, position in enumerate(positions)}
        best = best_named(self._reading, hybrid.found.shards, hybrid.found.rows, hybrid.scores, query.graph.seeds)
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
        again = _hybrid(self._first_gathering.scale(self._vector_weight, hybrid.found), found)
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
                best = best_named(self._reading, found.shards, found.rows, ranking.scores, more)
            named = best[:taken] if not query.diversity else self._diverse(best[:taken], wanted)
            rows = {each.header.id: each for each in named}
            made.update((each.number, self._hit(each, ranking)) for each in named if each.number not in made)
            hits = [made[each.number] for each in named]

            def text_of(hit: Hit, start: int, end: int, rows: Mapping[str, _Named] = rows) -> str:
                return rows[hit.document_id].search.slice_of(rows[hit.document_id].row, start, end)

            together = passages.fold_duplicates(
                passages.merge_neighbours(hits, text_of, most_characters=_LONGEST_PASSAGE)
            )[:limit]
            if len(together) < limit:
                self._note_crowding(named, made)
            if len(together) == limit or self._crowding or wanted >= min(len(found), self._most_rows):
                return _with_more_alike(together, named, best)
            wanted *= 2

    def _highlighted(self, found: tuple[Hit, ...]) -> tuple[Hit, ...]:
        """At the end: many more are looked at than are shown."""
        words = self._words
        if words is None or not self._query.highlights:
            return found
        return tuple(replace(hit, highlights=tokenizer.find_highlights(hit.text, words)) for hit in found)

    def _diverse(self, named: Sequence["_Named"], limit: int) -> list["_Named"]:
        if not named:
            return []
        vectors = np.concatenate([each.search.row_vectors(np.array([each.row])) for each in named])
        order = passages.diversified([each.score for each in named], vectors, limit, 1.0 - self._query.diversity)
        return [named[number] for number in order]

    def _hit(self, each: "_Named", ranking: "_Ranking") -> Hit:
        distance = float(ranking.found.distances[each.number])
        hit = each.search.hit(each.row, None if math.isnan(distance) else distance, each.header, each.score)
        graph = ranking.parts.get("graph")
        if graph is None and not self._query.explain:
            return hit
        return replace(
            hit,
            graph_score=None if graph is None else float(graph[each.number]),
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


def best_named(
    reading: ShardAccess,
    shards: npt.NDArray[np.int64],
    rows: npt.NDArray[np.int64],
    scores: npt.NDArray[np.floating],
    limit: int,
) -> list[_Named]:
    """The best, in their order; more of them where several are as good as the last one."""
    if limit <= 0:
        return []
    least = _least_of_best(scores, limit)
    chosen = np.flatnonzero(scores >= least)
    if len(chosen) > limit + _MANY_TIES:
        tied, better = np.flatnonzero(scores == least), np.flatnonzero(scores > least)
        chosen = np.concatenate([better, _first_by_id(reading, shards, rows, tied, limit + _MORE_ALIKE)])
    reading.fetch_rows(by_shard(shards[chosen], rows[chosen]), texts=True)
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


def _first_by_id(
    reading: ShardAccess,
    shards: npt.NDArray[np.int64],
    rows: npt.NDArray[np.int64],
    tied: npt.NDArray[np.int64],
    count: int,
) -> npt.NDArray[np.int64]:
    """Return numbers of candidates among those that are equally good: so many of each shard, which are enough."""
    kept = []
    for position in np.unique(shards[tied]).tolist():
        own = tied[shards[tied] == position]
        kept.append(own[np.isin(rows[own], reading.first_by_id(position, rows[own], count))])
    return np.concatenate(kept)


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
        return _NAMES_NOTHING
    if not linked:
        return f"nothing is known of {', '.join(named)}, or too much"
    return f"no document is about {', '.join(sorted(linked))}"


def hits_of(reading: ShardAccess, found: tuple[Hit, ...], asked: int, ranking: _Ranking | None = None) -> Hits:
    """Raises E207 when faults have left nothing that could answer."""
    mode: SearchMode = "vector" if ranking is None else ranking.mode
    reading.refuse_without(reading.is_any_left(needs_keywords=mode == "keyword"))
    faults = tuple(f"{key}: {reason}" for key, reason in reading.faults.items())
    manifest = reading.view.published.manifest
    return Hits(
        found,
        manifest.number,
        asked,
        bool(faults),
        faults,
        mode,
        "" if ranking is None else ranking.reason,
        manifest.commit_id,
        manifest.embedder,
    )
