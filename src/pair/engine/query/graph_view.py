"""The part of the graph around a document or an entity, for people to look at: what is named, and what else names it.

Invariants
    The work is bounded: so many chunks are looked at, and so many entities, edges and documents are told.
    Rows of documents that are gone do not count.
Not here
    Searching along the graph: graph_search.py.
"""

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from pair.engine.format.graph_index import GraphIndex, Hashes, Numbers, entity_hash
from pair.engine.format.manifest import Manifest
from pair.engine.format.shard import SearchFile
from pair.engine.query.graph_walk import require_graph
from pair.engine.storage.shard_cache import ShardCache
from pair.text.entity_rules import TOGETHER, canonical_name

MOST_CHUNKS = 500
"""That are looked at around one thing, in each shard."""
_EDGES_PER_ENTITY = 3


@dataclass(frozen=True, slots=True)
class NamedEntity:
    name: str
    weight: float
    """How strongly it is named here, all chunks together."""
    chunks: int
    """That name it, in the whole KB."""


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
    """Those of the neighbourhood that it names, strongest first."""


@dataclass(frozen=True, slots=True)
class Neighbourhood:
    """Strongest first, each."""

    entities: tuple[NamedEntity, ...]
    edges: tuple[EntityEdge, ...]
    documents: tuple[NamingDocument, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "entities": [{"name": e.name, "weight": round(e.weight, 4), "chunks": e.chunks} for e in self.entities],
            "edges": [
                {"source": e.source, "target": e.target, "kind": e.kind, "weight": round(e.weight, 4)}
                for e in self.edges
            ],
            "documents": [
                {"id": d.id, "title": d.title, "weight": round(d.weight, 4), "entities": list(d.entities)}
                for d in self.documents
            ],
        }


@dataclass(frozen=True, eq=False)
class _ShardGraph:
    """One shard that has a graph."""

    file: GraphIndex
    search: SearchFile
    live: Any
    """Which rows are; None for all."""

    def only_live(self, rows: Numbers) -> Numbers:
        return rows if self.live is None else rows[self.live[rows]]

    def chunks_naming(self, number: int) -> int:
        begin, end = int(self.file.entity_starts[number]), int(self.file.entity_starts[number + 1])
        return end - begin if self.live is None else int(np.count_nonzero(self.live[self.file.entity_rows[begin:end]]))

    def rows_naming(self, hashes: Hashes) -> Iterator[tuple[int, Numbers]]:
        """For each of these entities that is here: its place in the list, and some live rows that name it."""
        for place, number in enumerate(self.file.find(hashes).tolist()):
            if number >= 0:
                yield place, self.only_live(self.file.rows_of(np.array([number]))[1][:MOST_CHUNKS])


class GraphView:
    """The graph of a KB, by one manifest. Raises E204 when no shard has one."""

    def __init__(self, manifest: Manifest, cache: ShardCache, now: float) -> None:
        self._parts: dict[int, _ShardGraph] = {}
        for position, shard in enumerate(manifest.shards):
            opened = cache.open(shard)
            file = opened.graph()
            if file is not None:
                search = opened.search(now)
                live = None if shard.tombstones is None else ~shard.tombstones[search.doc_of_row]
                self._parts[position] = _ShardGraph(file, search, live)
        if not self._parts:
            require_graph(manifest.kb_id, [shard.folder for shard in manifest.shards], len(manifest.shards))

    def around_document(self, position: int, doc: int, limit: int) -> Neighbourhood:
        part = self._parts.get(position)
        if part is None:
            return Neighbourhood((), (), ())
        rows = part.search.rows_of(np.array([doc]))[:MOST_CHUNKS]
        return self._around({position: rows}, limit, without=(position, doc))

    def around_entity(self, name: str, limit: int) -> Neighbourhood:
        wanted = np.array([entity_hash(canonical_name(name))], np.uint64)
        rows = {position: rows for position, part in self._parts.items() for _, rows in part.rows_naming(wanted)}
        return self._around(rows, limit, first=int(wanted[0]))

    def _around(
        self, rows: dict[int, Numbers], limit: int, *, first: int | None = None, without: tuple[int, int] | None = None
    ) -> Neighbourhood:
        names: dict[int, str] = {}
        weights: defaultdict[int, float] = defaultdict(float)
        together: defaultdict[tuple[int, int], float] = defaultdict(float)
        for position, own in rows.items():
            for named in _named_in(self._parts[position].file, own, names):
                for each, weight in named.items():
                    weights[each] += weight
                for one, other in combinations(sorted(named), 2):
                    together[one, other] += min(named[one], named[other])
        counts = self._chunks_naming(list(weights))
        chosen = _chosen(weights, counts, limit, first)
        documents = self._documents([first] if first is not None else chosen, chosen, names, without)
        return Neighbourhood(
            tuple(NamedEntity(names[each], weights[each], counts[each]) for each in chosen),
            self._edges(chosen, names, together),
            tuple(sorted(documents, key=lambda each: (-each.weight, each.id))[:limit]),
        )

    def _chunks_naming(self, hashes: list[int]) -> dict[int, int]:
        counts = dict.fromkeys(hashes, 0)
        for part in self._parts.values():
            places = part.file.find(np.array(hashes, np.uint64)).tolist()
            for each, number in zip(hashes, places, strict=True):
                counts[each] += part.chunks_naming(number) if number >= 0 else 0
        return counts

    def _edges(
        self, chosen: list[int], names: dict[int, str], together: dict[tuple[int, int], float]
    ) -> tuple[EntityEdge, ...]:
        """What the documents say of them, and where it is no more than that, that they stand together."""
        wanted = set(chosen)
        found: defaultdict[tuple[int, int, str], float] = defaultdict(float)
        for part in self._parts.values():
            numbers = part.file.find(np.array(chosen, np.uint64))
            for edge in part.file.relations_at(numbers[numbers >= 0]):
                source, target = int(part.file.hashes[edge["source"]]), int(part.file.hashes[edge["target"]])
                is_live = part.live is None or bool(part.live[edge["row"]])
                if is_live and source != target and {source, target} <= wanted:
                    found[source, target, part.file.kinds[edge["kind"]]] += float(edge["weight"])
        joined = {frozenset((source, target)) for source, target, _ in found}
        for (one, other), weight in together.items():
            if {one, other} <= wanted and frozenset((one, other)) not in joined:
                found[one, other, TOGETHER] += weight
        edges = [EntityEdge(names[one], names[other], kind, weight) for (one, other, kind), weight in found.items()]
        edges.sort(key=lambda each: (-each.weight, each.source, each.target, each.kind))
        return tuple(edges[: _EDGES_PER_ENTITY * max(len(chosen), 1)])

    def _documents(
        self, asked: list[int], chosen: list[int], names: dict[int, str], without: tuple[int, int] | None
    ) -> list[NamingDocument]:
        """Those that name what is asked for, with all of the chosen ones that they name."""
        hashes, found = np.array(chosen, np.uint64), []
        for position, part in self._parts.items():
            naming: defaultdict[int, set[int]] = defaultdict(set)
            for place, rows in part.rows_naming(hashes):
                for doc in part.search.doc_of_row[rows].tolist():
                    naming[doc].add(chosen[place])
            for doc, named in naming.items():
                if (position, doc) != without and not named.isdisjoint(asked):
                    found.append((position, doc, sorted(named, key=chosen.index)))
        found.sort(key=lambda each: -_closeness(each[2], chosen))
        told = []
        for position, doc, named_here in found[: len(chosen)]:
            header = self._parts[position].search.header(doc)
            weight = _closeness(named_here, chosen)
            told.append(NamingDocument(header.id, header.title, weight, tuple(names[each] for each in named_here)))
        return told


def _named_in(file: GraphIndex, rows: Numbers, names: dict[int, str]) -> Iterator[dict[int, float]]:
    """For each row, the entities that it names with their weights; their names are entered."""
    which, entities, weights = file.mentions_in(rows)
    by_row: defaultdict[int, dict[int, float]] = defaultdict(dict)
    for row, number, weight in zip(which.tolist(), entities.tolist(), weights.tolist(), strict=True):
        each = int(file.hashes[number])
        if each not in names:
            names[each] = file.name(number)
        by_row[row][each] = weight
    return iter(by_row.values())


def _chosen(weights: dict[int, float], counts: dict[int, int], limit: int, first: int | None) -> list[int]:
    """The strongest: what is rare tells more than what everybody names. The one that is asked about leads."""

    def strength(each: int) -> tuple[bool, float, int]:
        return each != first, -weights[each] / math.log2(2 + counts[each]), each

    return sorted(weights, key=strength)[:limit]


def _closeness(named: list[int], chosen: list[int]) -> float:
    """Of a document: what is strong counts more than what is weak."""
    return math.fsum(1 / (1 + chosen.index(each)) for each in named)
