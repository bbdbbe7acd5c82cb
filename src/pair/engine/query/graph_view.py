"""The part of the graph around a document or an entity, for display.

Invariants
    The work is bounded: the numbers of chunks, entities, edges and documents have limits.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

import numpy as np

from pair.engine.format.graph_index import GraphIndex, Hashes, Numbers, entity_hash
from pair.engine.format.manifest import Manifest
from pair.engine.format.shard import SearchFile
from pair.engine.query.graph import GraphShard, count_rows, hash_names, require_graph
from pair.engine.storage.shard_cache import ShardCache
from pair.text.entity_rules import TITLE_WEIGHT, TOGETHER, canonical_name, list_subjects

MOST_CHUNKS = 500
"""Maximum number of chunks to read around one entity or document, in each shard."""
_EDGES_PER_ENTITY = 3


@dataclass(frozen=True, slots=True)
class NamedEntity:
    name: str
    weight: float
    """The total weight of its mentions in these chunks."""
    chunks: int
    """Number of chunks of the whole KB that name it."""


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
    """The graph of one manifest. Raises E204 if no shard has a graph. Entities are identified by their hashes."""

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
        header = self._searches[position].header(doc)
        names = list_subjects(header.id, header.title, header.url)
        return self._around({position: rows}, limit, subjects=names, without=(position, doc))

    def around_entity(self, name: str, limit: int) -> Neighbourhood:
        # The name of a link is its own canonical name.
        wanted = hash_names([name, canonical_name(name)])
        wanted = wanted[:1] if count_rows(list(self._graphs.values()), wanted)[0] else wanted[1:]
        rows = {position: rows for position, graph in self._graphs.items() for _, rows in _find_rows(graph, wanted)}
        return self._around(rows, limit, first=int(wanted[0]))

    def _around(
        self,
        rows: dict[int, Numbers],
        limit: int,
        *,
        first: int | None = None,
        subjects: Sequence[str] = (),
        without: tuple[int, int] | None = None,
    ) -> Neighbourhood:
        """Return the neighbourhood of these rows.

        `first`: the entity to list first; `without`: a document to omit; `subjects`: names in links to the document.
        """
        names: dict[int, str] = {}
        weights: defaultdict[int, float] = defaultdict(float)
        together: defaultdict[tuple[int, int], float] = defaultdict(float)
        for position, own_rows in rows.items():
            for mentions in _read_mentions(self._graphs[position].file, own_rows, names):
                for entity, weight in mentions.items():
                    weights[entity] += weight
                for one, other in combinations(sorted(mentions), 2):
                    together[one, other] += min(mentions[one], mentions[other])
        linked = count_rows(list(self._graphs.values()), hash_names(subjects)).tolist()
        for name in (name for name, count in zip(subjects, linked, strict=True) if count):
            names.setdefault(entity_hash(name), name)
            weights.setdefault(entity_hash(name), TITLE_WEIGHT)
        naming_chunks = count_rows(list(self._graphs.values()), np.array(list(weights), np.uint64))
        counts = dict(zip(weights, naming_chunks.tolist(), strict=True))

        def strength(entity: int) -> tuple[bool, float, int]:
            """Return the sort key: rare entities come before entities that many chunks name."""
            return entity != first, -weights[entity] / math.log2(2 + counts[entity]), entity

        # A number alone tells a reader nothing, though it can connect chunks in a search.
        shown = (entity for entity in weights if entity == first or any(map(str.isalpha, names[entity])))
        chosen = sorted(shown, key=strength)[:limit]
        documents = self._list_documents([first] if first is not None else chosen, chosen, names, limit, without)
        return Neighbourhood(
            tuple(NamedEntity(names[entity], weights[entity], counts[entity]) for entity in chosen),
            self._list_edges(chosen, names, together),
            tuple(sorted(documents, key=lambda document: (-document.weight, document.id))),
        )

    def _list_edges(
        self, chosen: list[int], names: dict[int, str], together: dict[tuple[int, int], float]
    ) -> tuple[EntityEdge, ...]:
        """Return the relations between the chosen entities, or "together" for two without a relation."""
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
        self, asked: list[int], chosen: list[int], names: dict[int, str], limit: int, without: tuple[int, int] | None
    ) -> list[NamingDocument]:
        """Return the documents that name one of the entities, each with all chosen entities that it names."""
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
        for weight, position, doc, ordered in naming[:limit]:
            header = self._searches[position].header(doc)
            documents.append(
                NamingDocument(header.id, header.title, weight, tuple(names[entity] for entity in ordered))
            )
        return documents


def _find_rows(graph: GraphShard, entities: Hashes) -> Iterator[tuple[int, Numbers]]:
    """Yield the place in the list of each entity of this shard, and some live rows that name it or are about it."""
    for place, number in enumerate(graph.file.find(entities).tolist()):
        rows = graph.file.rows_about(entities[place : place + 1])[1][:MOST_CHUNKS]
        if number >= 0:
            rows = np.union1d(rows, graph.file.rows_of(np.array([number]))[1][:MOST_CHUNKS])
        if len(rows):
            yield place, graph.only_live(rows)


def _read_mentions(file: GraphIndex, rows: Numbers, names: dict[int, str]) -> Iterator[dict[int, float]]:
    """Return the entities of each row with their weights, and add their names to `names`."""
    places, entities, weights = file.mentions_in(rows)
    by_row: defaultdict[int, dict[int, float]] = defaultdict(dict)
    for place, number, weight in zip(places.tolist(), entities.tolist(), weights.tolist(), strict=True):
        entity = int(file.hashes[number])
        if entity not in names:
            names[entity] = file.name(number)
        by_row[place][entity] = weight
    return iter(by_row.values())
