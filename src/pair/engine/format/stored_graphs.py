"""Graphs of documents in columns: picked and put together without looking at mentions one by one.

Invariants
    A mention and an edge belong to a chunk of their document: those of a chunk that is not there are left out.
    Weights have single precision from the beginning on, so that every copy of one says the same.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pair.values import GraphRows

MENTION_TYPE = np.dtype([("doc", "<u4"), ("chunk", "<u4"), ("entity", "<u4"), ("weight", "<f4")])
EDGE_TYPE = np.dtype(
    [("doc", "<u4"), ("chunk", "<u4"), ("source", "<u4"), ("target", "<u4"), ("kind", "<u4"), ("weight", "<f4")]
)
"""`chunk` is its number in the document, `kind` one in the same vocabulary as entities."""


@dataclass(frozen=True, eq=False)
class StoredGraphs(Mapping[int, GraphRows]):
    """Of those documents that have one, by number. Mentions and edges lie in the order of documents and chunks."""

    names: Sequence[str]
    """Entities and kinds of edges, each once."""
    mentions: npt.NDArray[Any]
    edges: npt.NDArray[Any]
    is_made: bool = True
    """Whether anybody looked for entities, even if there are none."""

    def __getitem__(self, doc: int) -> GraphRows:
        mentions, edges = _of(self.mentions, doc), _of(self.edges, doc)
        if not len(mentions) and not len(edges):
            raise KeyError(doc)
        named = self.names
        return GraphRows(
            tuple((named[entity], weight, chunk) for _, chunk, entity, weight in mentions.tolist()),
            tuple(
                (named[source], named[target], named[kind], weight, chunk)
                for _, chunk, source, target, kind, weight in edges.tolist()
            ),
        )

    def __iter__(self) -> Iterator[int]:
        return iter(np.union1d(self.mentions["doc"], self.edges["doc"]).tolist())

    def __len__(self) -> int:
        return len(np.union1d(self.mentions["doc"], self.edges["doc"]))

    def pick(self, new_number: npt.NDArray[np.int64]) -> "StoredGraphs":
        """Of the documents whose new number is not negative; these must be in the order of the old ones."""
        kept = []
        for rows in (self.mentions, self.edges):
            numbers = new_number[rows["doc"]]
            chosen = rows[numbers >= 0]
            chosen["doc"] = numbers[numbers >= 0]
            kept.append(chosen)
        return StoredGraphs(self.names, kept[0], kept[1], self.is_made)


def _of(rows: npt.NDArray[Any], doc: int) -> npt.NDArray[Any]:
    begin, end = np.searchsorted(rows["doc"], [doc, doc + 1])
    return rows[begin:end]


def _renamed(
    mentions: npt.NDArray[Any], edges: npt.NDArray[Any], place: npt.NDArray[np.uint32]
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    mentions, edges = mentions.copy(), edges.copy()
    mentions["entity"] = place[mentions["entity"]]
    for column in ("source", "target", "kind"):
        edges[column] = place[edges[column]]
    return mentions, edges


NO_GRAPHS = StoredGraphs((), np.empty(0, MENTION_TYPE), np.empty(0, EDGE_TYPE), is_made=False)


def concatenate_graphs(parts: Sequence[tuple[int, StoredGraphs]]) -> StoredGraphs:
    """Each with the number that its first document gets."""
    numbers: dict[str, int] = {}
    mentions, edges = [NO_GRAPHS.mentions], [NO_GRAPHS.edges]
    for first, part in parts:
        place = np.array([numbers.setdefault(name, len(numbers)) for name in part.names], np.uint32)
        renamed = _renamed(part.mentions, part.edges, place)
        for rows in renamed:
            rows["doc"] += first
        mentions.append(renamed[0])
        edges.append(renamed[1])
    is_made = any(part.is_made for _, part in parts)
    return StoredGraphs(list(numbers), np.concatenate(mentions), np.concatenate(edges), is_made)


def graphs_in_columns(graphs: Mapping[int, GraphRows], chunk_counts: Sequence[int]) -> StoredGraphs:
    """`graphs` by number of the document, `chunk_counts` of every document."""
    numbers: dict[str, int] = {}

    def number(name: str) -> int:
        return numbers.setdefault(name, len(numbers))

    mentions: list[tuple[int, int, int, float]] = []
    edges: list[tuple[int, int, int, int, int, float]] = []
    for doc in sorted(graphs):
        count = chunk_counts[doc]
        mentions += [
            (doc, chunk, number(entity), weight) for entity, weight, chunk in graphs[doc].mentions if chunk < count
        ]
        edges += [
            (doc, chunk, number(source), number(target), number(kind), weight)
            for source, target, kind, weight, chunk in graphs[doc].edges
            if chunk < count
        ]
    return StoredGraphs(
        list(numbers), _in_order(np.array(mentions, MENTION_TYPE)), _in_order(np.array(edges, EDGE_TYPE)), bool(graphs)
    )


def _in_order(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return rows[np.lexsort((rows["chunk"], rows["doc"]))]
