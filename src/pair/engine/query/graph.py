"""The graph of documents and entities: walk it for a query, and show the part around a document or an entity.

A query spreads from its first hits and its own entities: personalised PageRank. A walker starts at a seed, goes on with
probability `decay`, from a chunk to an entity that it mentions, from an entity to a chunk that mentions it or along an
edge, and else starts anew. What it meets often is what the seeds lead to.
Invariants
    The same seeds give the same scores, to the last bit, whatever shards the rows lie in: what is summed is rounded to
    multiples of one power of two first, so that the order of summing does not matter.
    Rows of documents that are gone neither pass anything on nor count.
    Showing a part is bounded work: so many chunks are read, and so many entities, edges and documents are returned.
"""

import functools
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from pair import errors
from pair.engine.format.graph_index import GraphIndex, Hashes, Numbers, entity_hash
from pair.engine.format.manifest import Manifest
from pair.engine.format.shard import SearchFile
from pair.engine.storage.shard_cache import ShardCache
from pair.text.entity_rules import TOGETHER, canonical_name
from pair.values import GraphParameters

Floats = npt.NDArray[np.float64]

_STEPS = 10
"""After ten steps less than a fifth of what could still change is left, and the order has settled."""
_EDGE_SHARE = 0.3
"""Of an entity that has edges, so much goes along them, and the rest to chunks."""
_LEAST_COMMON = 20
"""In a small KB, so many mentions are not many."""
_UNIT = 2.0**48
_WEIGHT_UNIT = 2.0**20
_NO_NUMBERS: Numbers = np.empty(0, np.int64)
_NO_FLOATS: Floats = np.empty(0)


Seed = tuple[int, int]
"""A hit to start from: the place of its shard among those that are walked, and its row."""


@dataclass(eq=False)
class GraphShard:
    """The graph of one shard and its live rows; kept as long as a manifest is, since it caches counts."""

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
    """Rows that the walk met, by place of their shard and row, and how strongly: the strongest has 1.

    The score is the root of how often a row is met: with each hop that falls by a factor, and the second is wanted too.
    """

    shards: Numbers
    rows: Numbers
    scores: Floats


def require_graph(kb_id: str, missing: Sequence[str], total: int) -> None:
    """Raises E204 that names the shards without a graph."""
    if missing or not total:
        raise errors.graph_unavailable(kb_id, missing, total)


def find_linked_entities(shards: Sequence[GraphShard], names: Sequence[str], most_common: float) -> dict[str, int]:
    """Return the entities that are neither unknown nor too common, with the number of rows that name them."""
    hashes = np.array([entity_hash(name) for name in names], np.uint64)
    counts = _count_rows(shards, hashes).tolist()
    limit = _most_rows(shards, most_common)
    return {name: count for name, count in zip(names, counts, strict=True) if 0 < count <= limit}


def find_strong_rows(shards: Sequence[GraphShard], entity: str, least_weight: float) -> list[tuple[int, int]]:
    """Return shard (by place) and row of the live rows that name an entity so strongly."""
    places: list[tuple[int, int]] = []
    for place, shard in enumerate(shards):
        number = int(shard.file.find(np.array([entity_hash(entity)], np.uint64))[0])
        if number >= 0:
            rows = shard.only_live(shard.file.rows_of(np.array([number]))[1])
            which, mentioned, weights = shard.file.mentions_in(rows)
            strong = (mentioned == number) & (weights >= least_weight)
            places += [(place, row) for row in rows[which[strong]].tolist()]
    return places


def walk_graph(
    shards: Sequence[GraphShard], seeds: Sequence[Seed], question: Sequence[str], parameters: GraphParameters
) -> Spread:
    """Walk from seeds, best first, and from the entities of a question, by their canonical names."""
    known = find_linked_entities(shards, question, parameters.most_common)
    chosen = seeds[: parameters.seeds]
    start_entities = np.array(sorted(map(entity_hash, known)), np.uint64)
    region = _Region(shards, parameters)
    for place, row in chosen:
        live = shards[place].live
        region.reached[place][row] = live is None or live[row]
    region.reach(start_entities)
    for _ in range(parameters.hops - 1):
        region.reach(np.empty(0, np.uint64))
    links = region.links(start_entities)
    row_starts, entity_starts = _starts(links, chosen, known, parameters.question_share)
    scores = _walk(links, row_starts, entity_starts, parameters.decay)
    met = np.flatnonzero(scores > 0)
    strongest = scores[met].max() if len(met) else 1.0
    return Spread(links.shards[met], links.rows[met], np.sqrt(scores[met] / strongest))


# ── which part of the graph ────────────────────────────────────────────────────────────────────────


def _most_rows(shards: Sequence[GraphShard], most_common: float) -> int:
    return max(_LEAST_COMMON, math.floor(most_common * sum(shard.live_rows for shard in shards)))


def _count_rows(shards: Sequence[GraphShard], hashes: Hashes) -> Numbers:
    """Count the live rows of all shards that name each of these entities."""
    counts = np.zeros(len(hashes), np.int64)
    for shard in shards:
        numbers = shard.file.find(hashes)
        is_here = numbers >= 0
        counts[is_here] += shard.frequencies[numbers[is_here]]
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
        self._limit = _most_rows(shards, parameters.most_common)
        self.reached = [np.zeros(shard.file.rows, np.bool_) for shard in shards]
        self._followed = np.empty(0, np.uint64)

    def reach(self, entities: Hashes) -> None:
        """Make one hop over these entities and all that the rows so far name, rare ones first."""
        wanted = _merge_hashes([entities, *self._list_mentioned()])
        wanted = wanted[_places(self._followed, wanted) < 0]
        counts = _count_rows(self._shards, wanted)
        telling = (counts > 0) & (counts <= self._limit)
        wanted, counts = wanted[telling], counts[telling]
        order = np.lexsort((wanted, counts))
        wanted = wanted[order][np.cumsum(counts[order]) <= self._parameters.most_links]
        self._followed = _merge_hashes([self._followed, wanted])
        for shard, reached in zip(self._shards, self.reached, strict=True):
            places = shard.file.find(wanted)
            reached[shard.only_live(shard.file.rows_of(places[places >= 0])[1])] = True

    def _list_mentioned(self) -> list[Hashes]:
        """Return the entities that the rows so far name, for each shard."""
        mentioned = []
        for shard, reached in zip(self._shards, self.reached, strict=True):
            marked = np.zeros(len(shard.file.hashes), np.bool_)
            marked[shard.file.mentions_in(np.flatnonzero(reached))[1]] = True
            mentioned.append(shard.file.hashes[marked])
        return mentioned

    def links(self, start_entities: Hashes) -> _Links:
        """Return all mentions in the rows that were reached, but those of entities that are too common."""
        entities = _merge_hashes([start_entities, *self._list_mentioned()])
        counts = _count_rows(self._shards, entities)
        telling = (counts > 0) & (counts <= self._limit)
        entities, counts = entities[telling], counts[telling]
        rarity = np.log1p(sum(shard.live_rows for shard in self._shards) / counts)
        rows = [np.flatnonzero(reached) for reached in self.reached]
        links = [(_NO_NUMBERS, _NO_NUMBERS, _NO_FLOATS)]
        edges = [(_NO_NUMBERS, _NO_NUMBERS, _NO_FLOATS)]
        begin = 0
        for shard, own in zip(self._shards, rows, strict=True):
            here = shard.file.find(entities)
            place = np.full(len(shard.file.hashes), -1, np.int64)  # of each entity of the shard; -1 for others
            place[here[here >= 0]] = np.flatnonzero(here >= 0)
            which, mentioned, strength = shard.file.mentions_in(own)
            met = place[mentioned]
            kept = met >= 0
            strengths = _round(strength[kept] * rarity[met[kept]], _WEIGHT_UNIT)
            links.append((begin + which[kept], met[kept], strengths))
            edges += self._find_edges(shard, place)
            begin += len(own)
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
            edge_sources=sources,
            edge_targets=targets,
            edge_weights=edge_weights,
        )

    def _find_edges(self, shard: GraphShard, place: Numbers) -> list[tuple[Numbers, Numbers, Floats]]:
        """Return the edges of a shard between the entities that have a place, in both directions."""
        kinds = [number for number, kind in enumerate(shard.file.kinds) if self._follows(kind)]
        if not kinds:
            return []
        edges = shard.file.relations_at(np.flatnonzero(place >= 0))
        if self._follows(TOGETHER):
            edges = np.concatenate([edges, shard.file.together])
        sources, targets = place[edges["source"]], place[edges["target"]]
        kept = np.isin(edges["kind"], kinds) & (sources >= 0) & (targets >= 0) & (sources != targets)
        if shard.live is not None:
            kept &= shard.live[edges["row"]]
        weights = _round(edges["weight"][kept], _WEIGHT_UNIT)
        return [(sources[kept], targets[kept], weights), (targets[kept], sources[kept], weights)]

    def _follows(self, kind: str) -> bool:
        asked = self._parameters.edge_types
        return kind != TOGETHER if asked is None else kind in asked


def _merge_hashes(parts: Sequence[Hashes]) -> Hashes:
    """Return the distinct hashes, sorted. For numbers that all differ, np.unique is several times slower."""
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
    """Return where the walk starts: hits by rank, since scores lie close together; rare entities before common."""
    rows, entities = np.zeros(len(links.rows)), np.zeros(len(links.entities))
    ranked = []
    for rank, (shard, row) in enumerate(seeds, 1):
        numbers = np.flatnonzero((links.shards == shard) & (links.rows == row))
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
    of_row = _sums(links.link_rows, links.weights, rows)
    of_entity = _sums(links.link_entities, links.weights, entities)
    of_edges = _sums(links.edge_sources, links.edge_weights, entities)
    edge_share = np.where(of_edges > 0, np.where(of_entity > 0, _EDGE_SHARE, 1.0), 0.0)
    to_entity = links.weights / of_row[links.link_rows]
    to_row = links.weights / of_entity[links.link_entities] * (1 - edge_share)[links.link_entities]
    along = links.edge_weights / of_edges[links.edge_sources] * edge_share[links.edge_sources]
    at_rows, at_entities = row_starts, entity_starts
    for _ in range(_STEPS):
        passed = _sums(links.link_rows, _round(at_entities[links.link_entities] * to_row, _UNIT), rows)
        handed = _sums(links.link_entities, _round(at_rows[links.link_rows] * to_entity, _UNIT), entities)
        if len(along):
            handed += _sums(links.edge_targets, _round(at_entities[links.edge_sources] * along, _UNIT), entities)
        at_rows = (1 - decay) * row_starts + decay * passed
        at_entities = (1 - decay) * entity_starts + decay * handed
    return at_rows


def _sums(places: Numbers, values: Floats, count: int) -> Floats:
    return np.asarray(np.bincount(places, weights=values, minlength=count), np.float64)


def _round(values: npt.NDArray[np.floating], unit: float) -> Floats:
    """Round to multiples of 1/unit: their sums are exact as long as they stay below 2^53/unit."""
    return np.asarray(np.rint(values.astype(np.float64) * unit) / unit, np.float64)


MOST_CHUNKS = 500
"""Read around one entity or document, in each shard."""
_EDGES_PER_ENTITY = 3


@dataclass(frozen=True, slots=True)
class NamedEntity:
    name: str
    weight: float
    """How strongly these chunks name it."""
    chunks: int
    """Chunks of the whole KB that name it."""


@dataclass(frozen=True, slots=True)
class EntityEdge:
    source: str
    target: str
    kind: str
    weight: float


@dataclass(frozen=True, slots=True)
class NamingDocument:
    id: str
    title: str
    weight: float
    entities: tuple[str, ...]
    """Entities of the neighbourhood that it names, strongest first."""


@dataclass(frozen=True, slots=True)
class Neighbourhood:
    """Entities, edges and documents, each strongest first."""

    entities: tuple[NamedEntity, ...]
    edges: tuple[EntityEdge, ...]
    documents: tuple[NamingDocument, ...]

    def to_json(self) -> dict[str, Any]:
        parts: dict[str, Sequence[NamedEntity | EntityEdge | NamingDocument]]
        parts = {"entities": self.entities, "edges": self.edges, "documents": self.documents}
        return {
            name: [asdict(part) | {"weight": round(part.weight, 4)} for part in listed]
            for name, listed in parts.items()
        }


class GraphView:
    """The graph of a KB, by one manifest. Raises E204 when no shard has one. Entities go by their hashes."""

    def __init__(self, manifest: Manifest, cache: ShardCache, now: float) -> None:
        self._graphs: dict[int, GraphShard] = {}
        self._searches: dict[int, SearchFile] = {}
        for position, shard in enumerate(manifest.shards):
            opened = cache.open(shard)
            file = opened.graph()
            if file is not None:
                search = self._searches[position] = opened.search(now)
                live = None if shard.tombstones is None else ~shard.tombstones[search.doc_of_row]
                self._graphs[position] = GraphShard(file, live)
        if not self._graphs:
            require_graph(manifest.kb_id, [shard.folder for shard in manifest.shards], len(manifest.shards))

    def around_document(self, position: int, doc: int, limit: int) -> Neighbourhood:
        if position not in self._graphs:
            return Neighbourhood((), (), ())
        rows = self._searches[position].rows_of(np.array([doc]))[:MOST_CHUNKS]
        return self._around({position: rows}, limit, without=(position, doc))

    def around_entity(self, name: str, limit: int) -> Neighbourhood:
        wanted = np.array([entity_hash(canonical_name(name))], np.uint64)
        rows = {position: rows for position, graph in self._graphs.items() for _, rows in _find_rows(graph, wanted)}
        return self._around(rows, limit, first=int(wanted[0]))

    def _around(
        self, rows: dict[int, Numbers], limit: int, *, first: int | None = None, without: tuple[int, int] | None = None
    ) -> Neighbourhood:
        """Return the neighbourhood of these rows. `first`: the entity that leads; `without`: a document."""
        names: dict[int, str] = {}
        weights: defaultdict[int, float] = defaultdict(float)
        together: defaultdict[tuple[int, int], float] = defaultdict(float)
        for position, own_rows in rows.items():
            for mentions in _read_mentions(self._graphs[position].file, own_rows, names):
                for entity, weight in mentions.items():
                    weights[entity] += weight
                for one, other in combinations(sorted(mentions), 2):
                    together[one, other] += min(mentions[one], mentions[other])
        naming_chunks = _count_rows(list(self._graphs.values()), np.array(list(weights), np.uint64))
        counts = dict(zip(weights, naming_chunks.tolist(), strict=True))

        def strength(entity: int) -> tuple[bool, float, int]:
            """A rare entity tells more than one that many chunks name."""
            return entity != first, -weights[entity] / math.log2(2 + counts[entity]), entity

        chosen = sorted(weights, key=strength)[:limit]
        documents = self._list_documents([first] if first is not None else chosen, chosen, names, without)
        return Neighbourhood(
            tuple(NamedEntity(names[entity], weights[entity], counts[entity]) for entity in chosen),
            self._list_edges(chosen, names, together),
            tuple(sorted(documents, key=lambda document: (-document.weight, document.id))[:limit]),
        )

    def _list_edges(
        self, chosen: list[int], names: dict[int, str], together: dict[tuple[int, int], float]
    ) -> tuple[EntityEdge, ...]:
        """Return what documents say of two entities; where they say nothing, that both occur together."""
        wanted = set(chosen)
        weights: defaultdict[tuple[int, int, str], float] = defaultdict(float)
        for graph in self._graphs.values():
            file = graph.file
            numbers = file.find(np.array(chosen, np.uint64))
            for edge in file.relations_at(numbers[numbers >= 0]):
                source, target = int(file.hashes[edge["source"]]), int(file.hashes[edge["target"]])
                is_live = graph.live is None or bool(graph.live[edge["row"]])
                if is_live and source != target and {source, target} <= wanted:
                    weights[source, target, file.kinds[edge["kind"]]] += float(edge["weight"])
        related = {frozenset((source, target)) for source, target, _ in weights}
        for (one, other), weight in together.items():
            if {one, other} <= wanted and frozenset((one, other)) not in related:
                weights[one, other, TOGETHER] += weight
        edges = [EntityEdge(names[one], names[other], kind, weight) for (one, other, kind), weight in weights.items()]
        edges.sort(key=lambda edge: (-edge.weight, edge.source, edge.target, edge.kind))
        return tuple(edges[: _EDGES_PER_ENTITY * max(len(chosen), 1)])

    def _list_documents(
        self, asked: list[int], chosen: list[int], names: dict[int, str], without: tuple[int, int] | None
    ) -> list[NamingDocument]:
        """Return the documents that name an asked entity, with all of the chosen ones that they name."""
        hashes, naming = np.array(chosen, np.uint64), []
        for position, graph in self._graphs.items():
            by_doc: defaultdict[int, set[int]] = defaultdict(set)
            for place, rows in _find_rows(graph, hashes):
                for doc in self._searches[position].doc_of_row[rows].tolist():
                    by_doc[doc].add(chosen[place])
            for doc, entities in by_doc.items():
                if (position, doc) != without and not entities.isdisjoint(asked):
                    # A strong entity counts more than a weak one.
                    weight = math.fsum(1 / (1 + chosen.index(entity)) for entity in entities)
                    naming.append((weight, position, doc, sorted(entities, key=chosen.index)))
        naming.sort(key=lambda entry: -entry[0])
        documents = []
        for weight, position, doc, ordered in naming[: len(chosen)]:
            header = self._searches[position].header(doc)
            documents.append(
                NamingDocument(header.id, header.title, weight, tuple(names[entity] for entity in ordered))
            )
        return documents


def _find_rows(graph: GraphShard, entities: Hashes) -> Iterator[tuple[int, Numbers]]:
    """Yield the place in the list of each entity that is here, and some live rows that name it."""
    for place, number in enumerate(graph.file.find(entities).tolist()):
        if number >= 0:
            yield place, graph.only_live(graph.file.rows_of(np.array([number]))[1][:MOST_CHUNKS])


def _read_mentions(file: GraphIndex, rows: Numbers, names: dict[int, str]) -> Iterator[dict[int, float]]:
    """Yield the entities of each row with their weights, and enter their names."""
    places, entities, weights = file.mentions_in(rows)
    by_row: defaultdict[int, dict[int, float]] = defaultdict(dict)
    for place, number, weight in zip(places.tolist(), entities.tolist(), weights.tolist(), strict=True):
        entity = int(file.hashes[number])
        if entity not in names:
            names[entity] = file.name(number)
        by_row[place][entity] = weight
    return iter(by_row.values())
