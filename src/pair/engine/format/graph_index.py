"""The graph file of a shard: links between chunks and entities, in both directions, edges, and subjects of documents.

Entities are ordered by the hash of their name, so that shards can be compared without reading names.
Invariants
    Deleted documents are included; the caller skips their rows.
"""

import functools
import hashlib
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pair.engine.format.array_file import ArrayFile, Section, check_below, check_utf8, load_json
from pair.engine.format.columns import EDGE_TYPE, MENTION_TYPE, StoredGraphs, expand_ranges, gather_entries, make_starts
from pair.text.entity_rules import TOGETHER
from pair.values import GraphRows, convert_json

Numbers = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]

_LINK_TYPE = np.dtype([("row", "<u4"), ("source", "<u4"), ("target", "<u4"), ("kind", "<u4"), ("weight", "<f4")])


def entity_hash(name: str) -> int:
    """Return a 64-bit hash. With ten million entities, the chance of a collision is 1 in 370,000."""
    digest = hashlib.blake2b(name.encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def graph_sections(
    graphs: StoredGraphs, first_chunks: Numbers, rows: int, subjects: Sequence[Sequence[str]] = ()
) -> dict[str, Section]:
    """Return the sections of the graph file of a shard.

    `first_chunks`: the first row of each document. `subjects`: the entities that lead to each document.
    """
    used = np.unique(np.concatenate([graphs.mentions["entity"], graphs.edges["source"], graphs.edges["target"]]))
    hashes = np.array([entity_hash(graphs.names[entity]) for entity in used.tolist()], np.uint64)
    order = np.argsort(hashes)
    place = np.zeros(len(graphs.names), np.uint32)
    place[used[order]] = np.arange(len(used), dtype=np.uint32)
    names = [graphs.names[entity].encode(errors="surrogatepass") for entity in used[order].tolist()]

    mention_rows = first_chunks[graphs.mentions["doc"]] + graphs.mentions["chunk"]
    entities = place[graphs.mentions["entity"]]
    by_row, by_entity = np.lexsort((entities, mention_rows)), np.lexsort((mention_rows, entities))
    kinds = [graphs.names[kind] for kind in np.unique(graphs.edges["kind"]).tolist()]
    edges = np.zeros(len(graphs.edges), _LINK_TYPE)
    edges["row"] = first_chunks[graphs.edges["doc"]] + graphs.edges["chunk"]
    edges["source"], edges["target"] = place[graphs.edges["source"]], place[graphs.edges["target"]]
    edges["kind"] = np.unique(graphs.edges["kind"], return_inverse=True)[1]
    edges["weight"] = graphs.edges["weight"]
    is_mere = edges["kind"] == kinds.index(TOGETHER) if TOGETHER in kinds else np.zeros(len(edges), np.bool_)
    edges = edges[np.lexsort((edges["source"], is_mere))]
    related = edges[: np.count_nonzero(~is_mere)]

    subject_hashes = np.array([entity_hash(name) for own in subjects for name in own], np.uint64)
    docs, starts = np.repeat(np.arange(len(subjects)), list(map(len, subjects))), np.append(first_chunks, rows)
    by_hash = np.lexsort((docs, subject_hashes))
    return {
        "hashes": hashes[order],
        "name_starts": make_starts([len(name) for name in names]).astype(np.uint64),
        "row_starts": _starts(mention_rows, rows),
        "row_entities": entities[by_row],
        "row_weights": graphs.mentions["weight"][by_row],
        "entity_starts": _starts(entities, len(used)),
        "entity_rows": mention_rows[by_entity].astype(np.uint32),
        "edges": edges,
        "edge_starts": _starts(related["source"], len(used)),
        "edges_by_target": np.argsort(related["target"], kind="stable").astype(np.uint32),
        "edge_target_starts": _starts(related["target"], len(used)),
        "kinds": [json.dumps(kinds, ensure_ascii=False).encode(errors="surrogatepass")],
        "names": names,
        # The hashes of all subjects, ascending, and the first row and the end of the document of each.
        "subject_hashes": subject_hashes[by_hash],
        "subject_rows": np.stack([starts[docs[by_hash]], starts[docs[by_hash] + 1]], axis=1).astype(np.uint32),
    }


def _starts(keys: npt.NDArray[Any], count: int) -> npt.NDArray[np.uint32]:
    """Return the first entry of each key, in sorted order, and the end of the last."""
    return make_starts(np.bincount(keys.astype(np.int64), minlength=count)).astype(np.uint32)


class GraphIndex:
    """The mapped graph of a shard."""

    def __init__(self, pack: ArrayFile) -> None:
        """Check all indexes that a query follows. Raises ValueError for a file that is not a graph."""
        self.hashes: Hashes = pack.array("hashes", "<u8")
        entities = len(self.hashes)
        self.row_entities = pack.array("row_entities", "<u4", below=entities)
        mentions = len(self.row_entities)
        self.row_weights = pack.array("row_weights", "<f4", length=mentions)
        self.row_starts = pack.starts("row_starts", "<u4", keys=None, entries=mentions)
        self.entity_rows = pack.array("entity_rows", "<u4", length=mentions, below=self.rows)
        self.entity_starts = pack.starts("entity_starts", "<u4", keys=entities, entries=mentions)
        self.kinds = convert_json(load_json(pack.bytes("kinds")), tuple[str, ...])
        self.edges = pack.array("edges", _LINK_TYPE)
        limits = {"row": self.rows, "source": entities, "target": entities, "kind": len(self.kinds)}
        for column, limit in limits.items():
            check_below("edges", self.edges[column], limit)
        self._edges_by_target = pack.array("edges_by_target", "<u4")
        related = len(self._edges_by_target)
        check_below("edges_by_target", self._edges_by_target, related)
        if related > len(self.edges):
            raise ValueError("the section edges_by_target has more entries than edges")
        self._edge_starts = pack.starts("edge_starts", "<u4", keys=entities, entries=related)
        self._edge_target_starts = pack.starts("edge_target_starts", "<u4", keys=entities, entries=related)
        if not (np.isfinite(self.row_weights).all() and np.isfinite(self.edges["weight"]).all()):
            raise ValueError("a weight is not a number")
        self._subject_hashes, self._subject_rows = np.empty(0, np.uint64), np.empty((0, 2), np.uint32)
        if "subject_hashes" in pack:  # Graphs of older versions have no subjects.
            self._subject_hashes = pack.array("subject_hashes", "<u8")
            self._subject_rows = pack.array("subject_rows", "<u4", dimensions=2, length=len(self._subject_hashes))
            if self._subject_rows.shape[1] != 2:
                raise ValueError("the section subject_rows has the wrong type")
            if bool((self._subject_rows[:, :1] > self._subject_rows[:, 1:]).any()):
                raise ValueError("the section subject_rows is not in order")
            check_below("subject_rows", self._subject_rows[:, 1], self.rows + 1)
        self._names = pack.bytes("names")
        self._name_starts = pack.starts("name_starts", "<u8", keys=entities, entries=len(self._names))
        check_utf8("names", self._names, self._name_starts)

    @property
    def rows(self) -> int:
        return len(self.row_starts) - 1

    def name(self, entity: int) -> str:
        begin, end = int(self._name_starts[entity]), int(self._name_starts[entity + 1])
        return bytes(self._names[begin:end]).decode(errors="surrogatepass")

    def find(self, hashes: Hashes) -> Numbers:
        """Return the number of each entity; -1 for an unknown one."""
        if not len(self.hashes):
            return np.full(len(hashes), -1, np.int64)
        places = np.minimum(np.searchsorted(self.hashes, hashes), len(self.hashes) - 1)
        return np.where(self.hashes[places] == hashes, places, -1)

    def rows_of(self, entities: Numbers) -> tuple[Numbers, Numbers]:
        """Return for each mention of these entities the position of the entity in the list, and the row."""
        which, places = gather_entries(self.entity_starts, entities)
        return which, self.entity_rows[places].astype(np.int64)

    def mentions_in(self, rows: Numbers) -> tuple[Numbers, Numbers, npt.NDArray[np.float32]]:
        """Return for each mention in these rows the position of the row in the list, the entity and the weight."""
        which, places = gather_entries(self.row_starts, rows)
        return which, self.row_entities[places].astype(np.int64), self.row_weights[places]

    def rows_about(self, hashes: Hashes) -> tuple[Numbers, Numbers]:
        """Return for each row of documents with these subjects the position of the subject in the list, and the row."""
        begins, ends = (np.searchsorted(self._subject_hashes, hashes, side) for side in ("left", "right"))
        which, places = expand_ranges(begins, ends)
        documents, rows = expand_ranges(*self._subject_rows[places].astype(np.int64).T)
        return which[documents], rows

    def relations_at(self, entities: Numbers) -> npt.NDArray[Any]:
        """Return the edges at these entities, except co-occurrence edges."""
        chosen = np.zeros(len(self._edges_by_target), np.bool_)
        chosen[gather_entries(self._edge_starts, entities)[1]] = True
        chosen[self._edges_by_target[gather_entries(self._edge_target_starts, entities)[1]]] = True
        edges: npt.NDArray[Any] = self.edges[np.flatnonzero(chosen)]
        return edges

    @property
    def together(self) -> npt.NDArray[Any]:
        """The co-occurrence edges. There are many, and they are rarely needed."""
        edges: npt.NDArray[Any] = self.edges[len(self._edges_by_target) :]
        return edges

    def graphs(self, doc_of_row: npt.NDArray[np.uint32], first_chunks: npt.NDArray[Any]) -> StoredGraphs:
        """Return the graphs as columns for another shard."""
        mentions = np.zeros(len(self.row_entities), MENTION_TYPE)
        rows = gather_entries(self.row_starts, np.arange(self.rows))[0]
        mentions["doc"], mentions["chunk"] = doc_of_row[rows], rows - first_chunks[doc_of_row[rows]]
        mentions["entity"], mentions["weight"] = self.row_entities, self.row_weights
        ordered = self.edges[self._edges_by_row]
        edges = np.zeros(len(ordered), EDGE_TYPE)
        docs = doc_of_row[ordered["row"]]
        edges["doc"], edges["chunk"] = docs, ordered["row"] - first_chunks[docs]
        for column in ("source", "target", "weight"):
            edges[column] = ordered[column]
        edges["kind"] = ordered["kind"] + len(self.hashes)
        names = [*map(self.name, range(len(self.hashes))), *self.kinds]
        return StoredGraphs(names, mentions, edges)

    def read_graph(self, rows: slice) -> GraphRows:
        """Return the graph of the document with these rows, without reading others."""
        mentions: list[tuple[str, float, int]] = []
        edges: list[tuple[str, str, str, float, int]] = []
        for number, row in enumerate(range(rows.start, rows.stop)):
            begin, end = int(self.row_starts[row]), int(self.row_starts[row + 1])
            named = zip(self.row_entities[begin:end].tolist(), self.row_weights[begin:end].tolist(), strict=True)
            mentions += [(self.name(entity), weight, number) for entity, weight in named]
            begin, end = np.searchsorted(self._edge_rows, [row, row + 1])
            for edge in self.edges[self._edges_by_row[begin:end]].tolist():
                _, source, target, kind, weight = edge
                edges.append((self.name(source), self.name(target), self.kinds[kind], weight, number))
        return GraphRows(tuple(mentions), tuple(edges))

    @functools.cached_property
    def _edges_by_row(self) -> npt.NDArray[np.uint32]:
        order = np.lexsort((self.edges["target"], self.edges["source"], self.edges["row"]))
        return order.astype(np.uint32)

    @functools.cached_property
    def _edge_rows(self) -> npt.NDArray[np.uint32]:
        rows: npt.NDArray[np.uint32] = self.edges["row"][self._edges_by_row]
        return rows
