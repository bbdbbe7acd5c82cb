"""A walk over the graph of documents and entities, for a query.

A query spreads from its first hits and its own entities: personalised PageRank. A walker starts at a seed. With
probability `decay` it continues: from a chunk to an entity that the chunk mentions, from an entity to a chunk that
mentions it or along an edge. Otherwise it returns to a seed. The rows that it meets often are related to the seeds.

Invariants
    The same seeds give the same scores, to the last bit, whatever shards hold the rows: addends are rounded to
    multiples of one power of two first, so that the order of summing does not matter.
    Rows of deleted documents do not count and lead nowhere.
"""

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pair import errors
from pair.engine.format.graph_index import GraphIndex, Hashes, Numbers, entity_hash
from pair.text.entity_rules import TITLE_WEIGHT, TOGETHER
from pair.values import GraphParameters

Floats = npt.NDArray[np.float64]
_Mentions = tuple[Numbers, Numbers, npt.NDArray[np.float32]]
"""For each mention the position of its row, the entity and the weight."""

_STEPS = 10
"""Number of steps. After ten, less than a fifth of the possible change is left, and the order is stable."""
_EDGE_SHARE = 0.3
"""The share that an entity with edges passes along them; chunks get the rest."""
_LEAST_COMMON = 20
"""Number of mentions up to which an entity is not common, even in a small KB."""
_MOST_NAMED_ROWS = 200
"""Maximum number of rows of named documents to score for a query."""
_UNIT = 2.0**48
_WEIGHT_UNIT = 2.0**20
_NO_NUMBERS: Numbers = np.empty(0, np.int64)
_NO_FLOATS: Floats = np.empty(0)


class Seed(NamedTuple):
    """A hit to start from."""

    shard: int
    """Position of its shard among the shards of the walk."""
    row: int
    score: float = 1.0
    """Its score as a share of the best one."""
    subjects: frozenset[int] = frozenset()
    """The hashes of the entities that lead to its document."""


@dataclass(eq=False)
class GraphShard:
    """The graph of one shard and its live rows. It is kept as long as the manifest, because it caches counts."""

    file: GraphIndex
    live: npt.NDArray[np.bool_] | None = None

    @functools.cached_property
    def live_rows(self) -> int:
        return self.file.rows if self.live is None else int(np.count_nonzero(self.live))

    @functools.cached_property
    def frequencies(self) -> Numbers:
        """The number of live rows that name each entity."""
        starts: Numbers = self.file.entity_starts.astype(np.int64)
        if self.live is None:
            return starts[1:] - starts[:-1]
        passed = np.concatenate([[0], np.cumsum(self.live[self.file.entity_rows])]).astype(np.int64)
        return passed[starts[1:]] - passed[starts[:-1]]

    def only_live(self, rows: Numbers) -> Numbers:
        return rows if self.live is None else rows[self.live[rows]]


@dataclass(frozen=True, eq=False)
class Spread:
    """The rows that the walk met, with scores; the highest is 1.

    A score is the square root of how often the walk meets the row. The frequency falls by a factor with each hop, and
    rows two hops away should count too.
    """

    shards: Numbers
    rows: Numbers
    scores: Floats


def require_graph(kb_id: str, missing: Sequence[str], total: int) -> None:
    """Raise E204 with the shards that have no graph."""
    if missing or not total:
        raise errors.graph_unavailable(kb_id, missing, total)


def find_linked_entities(shards: Sequence[GraphShard], names: Sequence[str], most_common: float) -> dict[str, int]:
    """Return the known entities that are not too common, each with the number of rows that name it."""
    counts = count_rows(shards, hash_names(names)).tolist()
    limit = _most_rows(shards, most_common)
    return {name: count for name, count in zip(names, counts, strict=True) if 0 < count <= limit}


def is_subject(shards: Sequence[GraphShard], name: str) -> bool:
    """Return whether this entity is a subject of a live document."""
    wanted = hash_names([name])
    return any(len(shard.only_live(shard.file.rows_about(wanted)[1])) for shard in shards)


def walk_graph(
    shards: Sequence[GraphShard], seeds: Sequence[Seed], question: Sequence[str], parameters: GraphParameters
) -> Spread:
    """Walk from seeds, best first, and from the entities of a question, by their canonical names."""
    known = find_linked_entities(shards, question, parameters.most_common)
    chosen = seeds[: parameters.seeds]
    start_entities = np.array(sorted(map(entity_hash, known)), np.uint64)
    region = _Region(shards, parameters)
    for seed in chosen:
        live = shards[seed.shard].live
        region.reached[seed.shard][seed.row] = live is None or live[seed.row]
    link_names = [_find_link_names(shards, seed) for seed in chosen]
    region.reach(_merge_hashes([start_entities, *link_names]))
    for _ in range(parameters.hops - 1):
        region.reach(np.empty(0, np.uint64))
    links = region.links(start_entities, dict(zip(chosen, link_names, strict=True)))
    row_starts, entity_starts = _starts(links, chosen, known, parameters.question_share)
    scores = _walk(links, row_starts, entity_starts, parameters.decay)
    met = np.flatnonzero(scores > 0)
    strongest = scores[met].max() if len(met) else 1.0
    return Spread(links.shards[met], links.rows[met], np.sqrt(scores[met] / strongest))


@dataclass(frozen=True, eq=False)
class NamedRows:
    """Rows of documents that the question or a seed names by title or by link."""

    shards: Numbers
    rows: Numbers
    subjects: Numbers
    """The number of the subject that leads to each row."""
    strengths: Floats
    """The score of the best seed that names the subject; 1 if the question names it."""


def find_named_rows(
    shards: Sequence[GraphShard], seeds: Sequence[Seed], question: Sequence[str], parameters: GraphParameters
) -> NamedRows:
    """Return the rows of documents that the question or a seed names; of too many, keep subjects with few rows."""
    strengths: dict[int, float] = {}
    for seed in seeds[: parameters.seeds]:
        file = shards[seed.shard].file
        for entity in file.hashes[file.mentions_in(np.array([seed.row]))[1]].tolist():
            if entity not in seed.subjects:
                strengths[entity] = max(seed.score, strengths.get(entity, 0.0))
    strengths.update((entity_hash(name), 1.0) for name in question)
    named = np.array(sorted(strengths), np.uint64)
    counts = count_rows(shards, named)
    named = named[(counts > 0) & (counts <= _most_rows(shards, parameters.most_common))]
    found = [(_NO_NUMBERS, _NO_NUMBERS, _NO_NUMBERS)]
    for place, shard in enumerate(shards):
        subjects, rows = shard.file.rows_about(named)
        if shard.live is not None:
            subjects, rows = subjects[shard.live[rows]], rows[shard.live[rows]]
        found.append((np.full(len(rows), place), rows, subjects))
    places, rows, subjects = map(np.concatenate, zip(*found, strict=True))
    sizes = np.bincount(subjects, minlength=len(named))
    order = np.lexsort((named, sizes))
    is_kept = np.zeros(len(named), np.bool_)
    is_kept[order[np.cumsum(sizes[order]) <= _MOST_NAMED_ROWS]] = True
    kept = is_kept[subjects]
    values = np.array([strengths[entity] for entity in named.tolist()])
    return NamedRows(places[kept], rows[kept], subjects[kept], values[subjects[kept]])


def _find_link_names(shards: Sequence[GraphShard], seed: Seed) -> Hashes:
    """Return the subjects of a seed that it does not mention itself."""
    file = shards[seed.shard].file
    mentioned = file.hashes[file.mentions_in(np.array([seed.row]))[1]].tolist()
    return np.array(sorted(seed.subjects.difference(mentioned)), np.uint64)


# ── the part of the graph to walk ────────────────────────────────────────────────────────────────────────


def hash_names(names: Sequence[str]) -> Hashes:
    return np.array([entity_hash(name) for name in names], np.uint64)


def _most_rows(shards: Sequence[GraphShard], most_common: float) -> int:
    return max(_LEAST_COMMON, math.floor(most_common * sum(shard.live_rows for shard in shards)))


def count_rows(shards: Sequence[GraphShard], hashes: Hashes) -> Numbers:
    """Count the live rows of all shards that name each of these entities."""
    return _sum_frequencies(shards, [shard.file.find(hashes) for shard in shards], len(hashes))


def _sum_frequencies(shards: Sequence[GraphShard], numbers: Sequence[Numbers], count: int) -> Numbers:
    """Count the live rows of all shards that name each entity. `numbers`: the numbers of the entities in each shard."""
    counts = np.zeros(count, np.int64)
    for shard, own in zip(shards, numbers, strict=True):
        is_here = own >= 0
        counts[is_here] += shard.frequencies[own[is_here]]
    return counts


@dataclass(frozen=True, eq=False)
class _Links:
    """The part of the graph that is walked. Rows and entities are numbered by their places in it."""

    shards: Numbers
    rows: Numbers
    entities: Hashes
    link_rows: Numbers
    link_entities: Numbers
    weights: Floats
    own_weights: Floats
    """The weight of the entities that only this row names. From these entities, the walk returns to the row."""
    edge_sources: Numbers
    edge_targets: Numbers
    edge_weights: Floats


class _Region:
    """Rows that can be reached, hop by hop."""

    def __init__(self, shards: Sequence[GraphShard], parameters: GraphParameters) -> None:
        self._shards = shards
        self._parameters = parameters
        self._limit = _most_rows(shards, parameters.most_common)
        self.reached = [np.zeros(shard.file.rows, np.bool_) for shard in shards]
        self._followed = np.empty(0, np.uint64)

    def reach(self, entities: Hashes) -> None:
        """Make one hop over these entities and all entities of the reached rows, rare entities first."""
        rows = [np.flatnonzero(reached) for reached in self.reached]
        mentions = [shard.file.mentions_in(own) for shard, own in zip(self._shards, rows, strict=True)]
        wanted = _merge_hashes([entities, *self._list_mentioned(mentions)])
        wanted = wanted[_places(self._followed, wanted) < 0]
        counts = count_rows(self._shards, wanted)
        telling = self._find_telling(wanted, counts, entities)
        wanted, counts = wanted[telling], counts[telling]
        order = np.lexsort((wanted, counts))
        wanted = wanted[order][np.cumsum(counts[order]) <= self._parameters.most_links]
        self._followed = _merge_hashes([self._followed, wanted])
        for shard, reached in zip(self._shards, self.reached, strict=True):
            places = shard.file.find(wanted)
            reached[shard.only_live(shard.file.rows_of(places[places >= 0])[1])] = True

    def _find_telling(self, entities: Hashes, counts: Numbers, given: Hashes) -> npt.NDArray[np.bool_]:
        """Return a flag for each entity: whether it leads to other rows. Entities that too many rows name do not."""
        is_known = (counts > 1) | ((counts == 1) & (_places(given, entities) >= 0))
        return np.asarray(is_known & (counts <= self._limit), np.bool_)

    def _list_mentioned(self, mentions: Sequence[_Mentions]) -> list[Hashes]:
        """Return the distinct entities of mentions, for each shard."""
        found = []
        for shard, (_, entities, _) in zip(self._shards, mentions, strict=True):
            # With one shard, the entities that only one row names are known. They are the majority, and are left
            # out later.
            is_shared = shard.frequencies[entities] > 1 if len(self._shards) == 1 else slice(None)
            ordered = np.sort(entities[is_shared])
            is_first = np.concatenate([[True], ordered[1:] != ordered[:-1]])[: len(ordered)]
            found.append(shard.file.hashes[ordered[is_first]])
        return found

    def links(self, start_entities: Hashes, link_names: Mapping[Seed, Hashes]) -> _Links:
        """Return all mentions in the reached rows, except mentions of entities that are too common.

        `link_names`: the names that other documents use for a seed in links; they count as its mentions.
        """
        rows = [np.flatnonzero(reached) for reached in self.reached]
        mentions = [shard.file.mentions_in(own) for shard, own in zip(self._shards, rows, strict=True)]
        kept_always = _merge_hashes([start_entities, *link_names.values()])
        entities = _merge_hashes([kept_always, *self._list_mentioned(mentions)])
        numbers = [shard.file.find(entities) for shard in self._shards]
        counts = _sum_frequencies(self._shards, numbers, len(entities))
        telling = self._find_telling(entities, counts, kept_always)
        is_single = (counts == 1) & ~telling
        entities, counts = entities[telling], counts[telling]
        rarity = np.log1p(sum(shard.live_rows for shard in self._shards) / counts)
        links = [(_NO_NUMBERS, _NO_NUMBERS, _NO_FLOATS)]
        edges = [(_NO_NUMBERS, _NO_NUMBERS, _NO_FLOATS)]
        own_weights, begin = [_NO_FLOATS], 0
        own_rarity = math.log1p(sum(shard.live_rows for shard in self._shards))
        for shard, own, found, all_numbers in zip(self._shards, rows, mentions, numbers, strict=True):
            here = all_numbers[telling]
            # The place of each entity of the shard; -1 for others, and -2 for entities that only one row names.
            place = np.full(len(shard.file.hashes), -1, np.int64)
            if len(self._shards) == 1:
                place[found[1][shard.frequencies[found[1]] == 1]] = -2
            else:
                place[all_numbers[is_single & (all_numbers >= 0)]] = -2
            place[here[here >= 0]] = np.flatnonzero(here >= 0)
            which, mentioned, strength = found
            met = place[mentioned]
            kept, is_own = met >= 0, met == -2
            own_strengths = _round(strength[is_own] * own_rarity, _WEIGHT_UNIT)
            own_weights.append(_sums(which[is_own], own_strengths, len(own)))
            strengths = _round(strength[kept] * rarity[met[kept]], _WEIGHT_UNIT)
            links.append((begin + which[kept], met[kept], strengths))
            edges += self._find_edges(shard, place, here[here >= 0])
            begin += len(own)
        links += self._link_seeds(link_names, rows, entities, rarity)
        shards = np.repeat(np.arange(len(rows)), [len(own) for own in rows])
        link_rows, link_entities, weights = map(np.concatenate, zip(*links, strict=True))
        sources, targets, edge_weights = map(np.concatenate, zip(*edges, strict=True))
        return _Links(
            shards=shards,
            rows=np.concatenate([_NO_NUMBERS, *rows]),
            entities=entities,
            link_rows=link_rows,
            link_entities=link_entities,
            weights=weights,
            own_weights=np.concatenate(own_weights),
            edge_sources=sources,
            edge_targets=targets,
            edge_weights=edge_weights,
        )

    def _link_seeds(
        self, link_names: Mapping[Seed, Hashes], rows: Sequence[Numbers], entities: Hashes, rarity: Floats
    ) -> Iterator[tuple[Numbers, Numbers, Floats]]:
        """Yield links between the seeds and the names that other documents use for them in links."""
        begins = np.cumsum([0, *map(len, rows)])
        for seed, names in link_names.items():
            places = _places(entities, names)
            places = places[places >= 0]
            if len(places) and self.reached[seed.shard][seed.row]:
                number = begins[seed.shard] + np.searchsorted(rows[seed.shard], seed.row)
                yield np.full(len(places), number), places, _round(TITLE_WEIGHT * rarity[places], _WEIGHT_UNIT)

    def _find_edges(
        self, shard: GraphShard, place: Numbers, entities: Numbers
    ) -> list[tuple[Numbers, Numbers, Floats]]:
        """Return the edges of a shard between entities that have a place, in both directions."""
        is_followed = np.array([self._follows(kind) for kind in shard.file.kinds], np.bool_)
        if not is_followed.any():
            return []
        edges = shard.file.relations_at(entities)
        if self._follows(TOGETHER):
            edges = np.concatenate([edges, shard.file.together])
        sources, targets = place[edges["source"]], place[edges["target"]]
        kept = is_followed[edges["kind"]] & (sources >= 0) & (targets >= 0) & (sources != targets)
        if shard.live is not None:
            kept &= shard.live[edges["row"]]
        weights = _round(edges["weight"][kept], _WEIGHT_UNIT)
        return [(sources[kept], targets[kept], weights), (targets[kept], sources[kept], weights)]

    def _follows(self, kind: str) -> bool:
        asked = self._parameters.edge_types
        return kind != TOGETHER if asked is None else kind in asked


def _merge_hashes(parts: Sequence[Hashes]) -> Hashes:
    """Return the distinct hashes, sorted. np.unique is several times slower here."""
    if len(parts) == 2 and not len(parts[0]):
        return parts[1]
    together = np.sort(np.concatenate(parts))
    return together[np.concatenate([[True], together[1:] != together[:-1]])] if len(together) else together


def _places(entities: Hashes, hashes: Hashes) -> Numbers:
    if not len(entities):
        return np.full(len(hashes), -1, np.int64)
    places = np.minimum(np.searchsorted(entities, hashes), len(entities) - 1)
    return np.where(entities[places] == hashes, places, -1)


# ── walking ────────────────────────────────────────────────────────────────────────────────────────


def _starts(
    links: _Links, seeds: Sequence[Seed], known: dict[str, int], question_share: float
) -> tuple[Floats, Floats]:
    """Return the start weights of rows and entities: hits by rank, and rare entities before common ones."""
    rows, entities = np.zeros(len(links.rows)), np.zeros(len(links.entities))
    ranked = []
    for rank, seed in enumerate(seeds, 1):
        numbers = np.flatnonzero((links.shards == seed.shard) & (links.rows == seed.row))
        ranked += [(number, 1.0 / rank) for number in numbers.tolist()]
    hits, names = math.fsum(weight for _, weight in ranked), math.fsum(1 / count for count in known.values())
    share = 0.0 if not names else question_share if hits else 1.0
    for number, weight in ranked:
        rows[number] += (1 - share) * weight / hits
    for name, count in known.items():
        entities[_places(links.entities, np.array([entity_hash(name)], np.uint64))[0]] += share / count / names
    return rows, entities


def _walk(links: _Links, row_starts: Floats, entity_starts: Floats, decay: float) -> Floats:
    """Return how often the walk meets each row."""
    rows, entities = len(links.rows), len(links.entities)
    of_row = _sums(links.link_rows, links.weights, rows) + links.own_weights
    of_entity = _sums(links.link_entities, links.weights, entities)
    of_edges = _sums(links.edge_sources, links.edge_weights, entities)
    edge_share = np.where(of_edges > 0, np.where(of_entity > 0, _EDGE_SHARE, 1.0), 0.0)
    to_own = np.divide(links.own_weights, of_row, out=np.zeros(rows), where=of_row > 0)
    to_entity = links.weights / of_row[links.link_rows]
    to_row = links.weights / of_entity[links.link_entities] * (1 - edge_share)[links.link_entities]
    along = links.edge_weights / of_edges[links.edge_sources] * edge_share[links.edge_sources]
    # Count in units in which all addends are whole numbers.
    at_rows, at_entities = row_starts, entity_starts = row_starts * _UNIT, entity_starts * _UNIT
    at_own = np.zeros(rows)
    for _ in range(_STEPS):
        passed = _sums(links.link_rows, np.rint(at_entities[links.link_entities] * to_row), rows) + np.rint(at_own)
        handed = _sums(links.link_entities, np.rint(at_rows[links.link_rows] * to_entity), entities)
        if len(along):
            handed += _sums(links.edge_targets, np.rint(at_entities[links.edge_sources] * along), entities)
        at_own = decay * np.rint(at_rows * to_own)
        at_rows = (1 - decay) * row_starts + decay * passed
        at_entities = (1 - decay) * entity_starts + decay * handed
    return at_rows / _UNIT


def _sums(places: Numbers, values: Floats, count: int) -> Floats:
    return np.asarray(np.bincount(places, weights=values, minlength=count), np.float64)


def _round(values: npt.NDArray[np.floating], unit: float) -> Floats:
    """Round to multiples of 1/unit: their sums are exact as long as they stay below 2^53/unit."""
    return np.asarray(np.rint(values.astype(np.float64) * unit) / unit, np.float64)
