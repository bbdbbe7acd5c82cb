"""Spread from the first hits and the question's own entities over chunks and entities: personalised PageRank.

A walker starts at a seed, goes on with probability `decay`, from a chunk to an entity that it mentions, from an entity
to a chunk that mentions it or along an edge, and else starts anew. What it meets often is what the seeds lead to.
Invariants
    The same seeds give the same scores, to the last bit, whatever shards the rows lie in: what is summed is rounded to
    multiples of one power of two first, so that the order of summing does not matter.
    Rows of documents that are gone neither pass anything on nor count.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pair import errors
from pair.engine.extraction import TOGETHER
from pair.engine.graph_file import GraphFile, Hashes, Numbers, entity_hash

Floats = npt.NDArray[np.float64]

_STEPS = 10
"""After ten steps less than a fifth of what could still change is left, and the order has settled."""
_EDGE_SHARE = 0.3
"""Of an entity that has edges, so much goes along them, and the rest to chunks."""
_LEAST_COMMON = 20
"""In a small KB, so many mentions are not many."""
_UNIT = 2.0**48
_WEIGHT_UNIT = 2.0**20


@dataclass(frozen=True, slots=True)
class GraphParameters:
    """How far and along what a search spreads."""

    hops: int = 1
    """How many times from chunks over their entities to other chunks."""
    alpha: float = 0.6
    """The share of the hybrid score in the final one; the rest is the graph's."""
    decay: float = 0.85
    """The probability of going on, at each step."""
    edge_types: tuple[str, ...] | None = None
    """Kinds of edges to go along; None for all but mere co-occurrence, which mentions say already."""
    seeds: int = 5
    """How many hits to start from."""
    question_share: float = 0.5
    """Of the starts, so many are at the question's own entities, if it names any that are known."""
    most_common: float = 0.05
    """An entity that is in more than this share of the chunks tells nothing."""
    most_links: int = 6_000
    """Mentions that are followed at most in one hop, those of rare entities first."""


@dataclass(frozen=True, slots=True)
class Seed:
    """A hit to start from."""

    shard: int
    """Its place among the shards that are asked."""
    row: int
    score: float


class GraphShard:
    """One shard, with which of its rows are live; kept as long as a manifest is, since it remembers counts."""

    def __init__(self, file: GraphFile, live: npt.NDArray[np.bool_] | None = None) -> None:
        self.file = file
        self.live = live

    @functools.cached_property
    def live_rows(self) -> int:
        return self.file.rows if self.live is None else int(np.count_nonzero(self.live))

    @functools.cached_property
    def frequencies(self) -> Numbers:
        """In how many live rows each entity is."""
        starts: Numbers = self.file.entity_starts.astype(np.int64)
        if self.live is None:
            return starts[1:] - starts[:-1]
        passed = np.concatenate([[0], np.cumsum(self.live[self.file.entity_rows])]).astype(np.int64)
        return passed[starts[1:]] - passed[starts[:-1]]

    def only_live(self, rows: Numbers) -> Numbers:
        return rows if self.live is None else rows[self.live[rows]]


@dataclass(frozen=True, eq=False)
class Spread:
    """Rows that were reached, by place of their shard and row, and how strongly: the strongest has 1.

    The score is the root of how often a row is met: with each hop that falls by a factor, and the second is wanted too.
    """

    shards: Numbers
    rows: Numbers
    scores: Floats
    known_entities: tuple[str, ...]
    """Those of the question that the KB links to anything."""


def require_graph(kb_id: str, missing: Sequence[str], total: int) -> None:
    """Raises E204 that names the shards without a graph."""
    if missing or not total:
        raise errors.graph_unavailable(kb_id, missing, total)


def linked_entities(shards: Sequence[GraphShard], names: Sequence[str], most_common: float) -> dict[str, int]:
    """Those of these entities that tell something, with the number of rows that mention them."""
    hashes = np.array([entity_hash(name) for name in names], np.uint64)
    counts = _frequencies(shards, hashes).tolist()
    limit = _limit(shards, most_common)
    return {name: count for name, count in zip(names, counts, strict=True) if 0 < count <= limit}


def spread(
    shards: Sequence[GraphShard], seeds: Sequence[Seed], question: Sequence[str], parameters: GraphParameters
) -> Spread:
    """`seeds` best first; `question`: canonical names (`extraction.question_entities`)."""
    known = linked_entities(shards, question, parameters.most_common)
    chosen = list(seeds[: parameters.seeds])
    start_entities = np.array(sorted(map(entity_hash, known)), np.uint64)
    region = _Region(shards, parameters)
    region.add_rows([(each.shard, each.row) for each in chosen])
    region.reach(start_entities)
    for _ in range(parameters.hops - 1):
        region.reach(np.empty(0, np.uint64))
    links = region.links(start_entities)
    row_starts, entity_starts = _starts(links, chosen, known, parameters.question_share)
    scores = _walk(links, row_starts, entity_starts, parameters.decay)
    met = np.flatnonzero(scores > 0)
    strongest = scores[met].max() if len(met) else 1.0
    return Spread(links.shards[met], links.rows[met], np.sqrt(scores[met] / strongest), tuple(known))


def fused(hybrid: Floats, graph: Floats, alpha: float) -> Floats:
    """The final score, of two that are both between 0 and 1."""
    return alpha * hybrid + (1 - alpha) * graph


# ── which part of the graph ────────────────────────────────────────────────────────────────────────


def _limit(shards: Sequence[GraphShard], most_common: float) -> int:
    return max(_LEAST_COMMON, math.floor(most_common * sum(each.live_rows for each in shards)))


def _frequencies(shards: Sequence[GraphShard], hashes: Hashes) -> Numbers:
    """In how many live rows of all shards each of these entities is."""
    counts = np.zeros(len(hashes), np.int64)
    for shard in shards:
        places = shard.file.find(hashes)
        found = places >= 0
        counts[found] += shard.frequencies[places[found]]
    return counts


@dataclass(frozen=True, eq=False)
class _Links:
    """The part of the graph that is walked. Rows and entities have places in it."""

    shards: Numbers
    rows: Numbers
    entities: Hashes
    link_rows: Numbers
    link_entities: Numbers
    weights: Floats
    edge_sources: Numbers
    edge_targets: Numbers
    edge_weights: Floats


class _Region:
    """Rows that can be reached, hop by hop."""

    def __init__(self, shards: Sequence[GraphShard], parameters: GraphParameters) -> None:
        self._shards = shards
        self._parameters = parameters
        self._limit = _limit(shards, parameters.most_common)
        self._rows = [np.empty(0, np.int64) for _ in shards]
        self._followed = np.empty(0, np.uint64)

    def add_rows(self, rows: Sequence[tuple[int, int]]) -> None:
        for number, shard in enumerate(self._shards):
            own = np.array([row for position, row in rows if position == number], np.int64)
            self._rows[number] = np.union1d(self._rows[number], shard.only_live(own))

    def reach(self, entities: Hashes) -> None:
        """One hop: over these entities and all that the rows so far mention, rare ones first."""
        wanted = np.setdiff1d(np.union1d(entities, self._mentioned()), self._followed, assume_unique=True)
        counts = _frequencies(self._shards, wanted)
        telling = (counts > 0) & (counts <= self._limit)
        wanted, counts = wanted[telling], counts[telling]
        order = np.lexsort((wanted, counts))
        wanted = wanted[order][np.cumsum(counts[order]) <= self._parameters.most_links]
        self._followed = np.union1d(self._followed, wanted)
        for number, shard in enumerate(self._shards):
            places = shard.file.find(wanted)
            rows = shard.file.rows_of(places[places >= 0])[1]
            self._rows[number] = np.union1d(self._rows[number], shard.only_live(rows))

    def _mentioned(self) -> Hashes:
        found = [
            shard.file.hashes[shard.file.mentions_in(rows)[1]]
            for shard, rows in zip(self._shards, self._rows, strict=True)
        ]
        return np.unique(np.concatenate([np.empty(0, np.uint64), *found]))

    def links(self, start_entities: Hashes) -> _Links:
        """All mentions in the rows that were reached, but those of entities that tell nothing."""
        entities = np.union1d(self._mentioned(), start_entities)
        counts = _frequencies(self._shards, entities)
        telling = (counts > 0) & (counts <= self._limit)
        entities, counts = entities[telling], counts[telling]
        total = sum(each.live_rows for each in self._shards)
        rarity = np.log1p(total / counts)
        rows: list[Numbers] = []
        places: list[Numbers] = []
        weights: list[Floats] = []
        begin = 0
        for shard, own in zip(self._shards, self._rows, strict=True):
            which, mentioned, strength = shard.file.mentions_in(own)
            place = _places(entities, shard.file.hashes[mentioned])
            kept = place >= 0
            rows.append(begin + which[kept])
            places.append(place[kept])
            weights.append(_rounded(strength[kept] * rarity[place[kept]], _WEIGHT_UNIT))
            begin += len(own)
        sources, targets, strengths = self._edges(entities)
        return _Links(
            shards=np.repeat(np.arange(len(self._rows)), [len(each) for each in self._rows]),
            rows=np.concatenate([np.empty(0, np.int64), *self._rows]),
            entities=entities,
            link_rows=np.concatenate([np.empty(0, np.int64), *rows]),
            link_entities=np.concatenate([np.empty(0, np.int64), *places]),
            weights=np.concatenate([np.empty(0), *weights]),
            edge_sources=sources,
            edge_targets=targets,
            edge_weights=strengths,
        )

    def _edges(self, entities: Hashes) -> tuple[Numbers, Numbers, Floats]:
        """Between these entities, in both directions."""
        sources, targets, weights = [np.empty(0, np.int64)], [np.empty(0, np.int64)], [np.empty(0)]
        for shard in self._shards:
            kinds = [number for number, kind in enumerate(shard.file.kinds) if self._follows(kind)]
            if not kinds:
                continue
            here = shard.file.find(entities)
            edges = shard.file.edges_at(here[here >= 0])
            edges = edges[np.isin(edges["kind"], kinds)]
            if shard.live is not None:
                edges = edges[shard.live[edges["row"]]]
            begin = _places(entities, shard.file.hashes[edges["source"]])
            end = _places(entities, shard.file.hashes[edges["target"]])
            kept = (begin >= 0) & (end >= 0) & (begin != end)
            sources += [begin[kept], end[kept]]
            targets += [end[kept], begin[kept]]
            weights += [_rounded(edges["weight"][kept], _WEIGHT_UNIT)] * 2
        return np.concatenate(sources), np.concatenate(targets), np.concatenate(weights)

    def _follows(self, kind: str) -> bool:
        asked = self._parameters.edge_types
        return kind != TOGETHER if asked is None else kind in asked


def _places(entities: Hashes, hashes: Hashes) -> Numbers:
    if not len(entities):
        return np.full(len(hashes), -1, np.int64)
    places = np.minimum(np.searchsorted(entities, hashes), len(entities) - 1)
    return np.where(entities[places] == hashes, places, -1)


# ── walking ────────────────────────────────────────────────────────────────────────────────────────


def _starts(
    links: _Links, seeds: Sequence[Seed], known: dict[str, int], question_share: float
) -> tuple[Floats, Floats]:
    """Where the walker starts: hits by rank, for their scores lie close together; rare entities more than common."""
    rows, entities = np.zeros(len(links.rows)), np.zeros(len(links.entities))
    place = {key: number for number, key in enumerate(zip(links.shards.tolist(), links.rows.tolist(), strict=True))}
    ranked = [
        (place[each.shard, each.row], 1.0 / rank)
        for rank, each in enumerate(seeds, 1)
        if (each.shard, each.row) in place
    ]
    hits, names = math.fsum(weight for _, weight in ranked), math.fsum(1 / count for count in known.values())
    share = 0.0 if not names else question_share if hits else 1.0
    for number, weight in ranked:
        rows[number] += (1 - share) * weight / hits
    for name, count in known.items():
        entities[_places(links.entities, np.array([entity_hash(name)], np.uint64))[0]] += share / count / names
    return rows, entities


def _walk(links: _Links, row_starts: Floats, entity_starts: Floats, decay: float) -> Floats:
    """How often each row is met."""
    rows, entities = len(links.rows), len(links.entities)
    of_row = _sums(links.link_rows, links.weights, rows)
    of_entity = _sums(links.link_entities, links.weights, entities)
    of_edges = _sums(links.edge_sources, links.edge_weights, entities)
    edge_share = np.where(of_edges > 0, np.where(of_entity > 0, _EDGE_SHARE, 1.0), 0.0)
    to_entity = links.weights / of_row[links.link_rows]
    to_row = links.weights / of_entity[links.link_entities] * (1 - edge_share)[links.link_entities]
    along = links.edge_weights / of_edges[links.edge_sources] * edge_share[links.edge_sources]
    at_rows, at_entities = row_starts, entity_starts
    for _ in range(_STEPS):
        passed = _sums(links.link_rows, _rounded(at_entities[links.link_entities] * to_row, _UNIT), rows)
        handed = _sums(links.link_entities, _rounded(at_rows[links.link_rows] * to_entity, _UNIT), entities)
        if len(along):
            handed += _sums(links.edge_targets, _rounded(at_entities[links.edge_sources] * along, _UNIT), entities)
        at_rows = (1 - decay) * row_starts + decay * passed
        at_entities = (1 - decay) * entity_starts + decay * handed
    return at_rows


def _sums(places: Numbers, values: Floats, count: int) -> Floats:
    return np.asarray(np.bincount(places, weights=values, minlength=count), np.float64)


def _rounded(values: npt.NDArray[np.floating], unit: float) -> Floats:
    """To multiples of 1/unit: sums of these are exact as long as they stay below 2^53/unit."""
    return np.asarray(np.rint(values.astype(np.float64) * unit) / unit, np.float64)
