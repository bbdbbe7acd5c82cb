"""The files of one shard, opened: each is what its kind of file should be, and of this very shard. All raise E207.

Invariants
    What comes out of here leads nowhere: every number in it is a place that is there.
"""

from collections.abc import Callable
from pathlib import Path

from pair.engine.format.damage import damage_errors
from pair.engine.format.graph_index import GraphIndex
from pair.engine.format.keyword_index import KeywordIndex
from pair.engine.format.manifest import FileRole, ShardRef
from pair.engine.format.range_file import RangeFile
from pair.engine.format.shard import IdFile, RowsFile, SearchFile


def open_search(ref: ShardRef, path: Path, pieces: RangeFile | None = None) -> SearchFile:
    with damage_errors(ref.key("search")):
        search = SearchFile(path, pieces)
        _check(len(search.docs), ref.documents, "documents")
        _check(len(search.chunks), ref.rows, "chunks")
        _check(search.vectors.shape[1], ref.centroids.shape[1], "dimensions")
        return search


def open_ids(ref: ShardRef, path: Path) -> IdFile:
    with damage_errors(ref.key("ids")):
        ids = IdFile(path)
        _check(ids.count, ref.documents, "documents")
        return ids


def open_rows(ref: ShardRef, path: Path) -> RowsFile:
    with damage_errors(ref.key("rows")):
        return RowsFile(path, ref.documents, ref.size_bytes)


def open_keywords(ref: ShardRef, path: Path) -> KeywordIndex:
    with damage_errors(ref.key("keywords")):
        keywords = KeywordIndex(path)
        _check(keywords.count, ref.rows, "chunks")
        return keywords


def open_graph(ref: ShardRef, path: Path) -> GraphIndex:
    with damage_errors(ref.key("graph")):
        graph = GraphIndex(path)
        _check(graph.rows, ref.rows, "chunks")
        return graph


OPENERS: dict[FileRole, Callable[[ShardRef, Path], object]] = {
    "rows": open_rows,
    "search": open_search,
    "ids": open_ids,
    "keywords": open_keywords,
    "graph": open_graph,
}


def _check(found: int, expected: int, things: str) -> None:
    if found != expected:
        raise ValueError(f"it holds another number of {things} than the manifest says")
