"""A builder of the files of one shard in a scratch folder: the rows in DuckDB, and the files that queries map."""

import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt

from pair.engine.filters import Row, flatten_metadata
from pair.engine.format import vectors as vector_index
from pair.engine.format.array_file import ShardFile, write_arrays
from pair.engine.format.columns import DOC_TYPE, ID_TYPE, SCHEMA, Header, StoredDocuments, hash_ids
from pair.engine.format.duckdb_io import file_errors, open_memory
from pair.engine.format.graph_index import graph_sections
from pair.engine.format.keyword_index import write_keywords
from pair.engine.format.manifest import FileRole, ShardRef, file_name, hash_files, shards_prefix
from pair.engine.format.metadata_index import MetadataIndex
from pair.files import hash_file
from pair.text.entity_rules import list_subjects

if TYPE_CHECKING:
    import duckdb

MOST_CENTROIDS = 32

_Value = str | int | float | None
_Row = tuple[_Value, ...]
_TABLES = "".join(f"CREATE TABLE {table} ({columns});" for table, columns in SCHEMA.items())
_STORAGE_VERSION = "v1.2.0"
"""The oldest version of DuckDB that can read our shards."""
_BLOCK_SIZE = 16384
"""The smallest block size, so that a shard with one document does not take half a megabyte."""


@dataclass(frozen=True, slots=True)
class BuiltShard:
    ref: ShardRef
    paths: dict[FileRole, Path]


def build_shard(
    folder: Path, kb_id: str, documents: StoredDocuments, *, commit_id: str, run: str, number: int = 0
) -> BuiltShard:
    """Build a shard. Its rows contain `commit_id`, so that two attempts to write never make the same shard.

    So garbage collection can delete the shards of a failed attempt without harm to a later one.
    """
    shard_id = f"shard-{number:05}"
    folder.mkdir(parents=True, exist_ok=True)
    headers = [Header.from_bytes(header) for header in documents.headers]
    values = [flatten_metadata(header.metadata) for header in headers]
    roles: tuple[FileRole, ...] = ("rows", "search", "ids", "keywords")
    if documents.graphs.is_made:
        roles = (*roles, "graph")
    paths = {role: folder / file_name(shard_id, role) for role in roles}
    with ThreadPoolExecutor(1) as pool:
        # faiss and DuckDB seldom need the interpreter, and run on two cores. A small shard is not worth a thread.
        is_large = len(documents.chunks) >= vector_index.ANN_MIN_ROWS
        search = pool.submit(_write_search, paths["search"], documents) if is_large else None
        with file_errors(paths["rows"]):
            _write_rows(paths["rows"], documents, headers, values, commit_id)
        written: dict[FileRole, ShardFile] = {
            "rows": ShardFile(paths["rows"].stat().st_size, hash_file(paths["rows"])),
            "search": search.result() if search is not None else _write_search(paths["search"], documents),
            "ids": _write_ids(paths["ids"], headers, values),
            "keywords": write_keywords(paths["keywords"], documents.keywords, paths["search"]),
        }
    if "graph" in paths:
        subjects = [list_subjects(header.id, header.title, header.url) for header in headers]
        sections = graph_sections(documents.graphs, _first_chunks(documents), len(documents.chunks), subjects)
        written["graph"] = write_arrays(paths["graph"], sections)
    centroids, radii = vector_index.find_centroids(documents.vectors, MOST_CENTROIDS if run else 1)
    ref = ShardRef(
        shard_id=shard_id,
        folder=shards_prefix(kb_id) + hash_files(written),
        files=written,
        rows=len(documents.chunks),
        documents=documents.count,
        run=run,
        centroids=centroids,
        radii=tuple(radii),
        graph_available="graph" in paths,
        created_at="",
    )
    return BuiltShard(ref, paths)


def rebuild_shard(
    folder: Path,
    kb_id: str,
    shard: ShardRef,
    documents: StoredDocuments,
    unchanged: Callable[[FileRole], Path],
    commit_id: str,
) -> BuiltShard:
    """Build a copy of a shard with the vectors of `documents`. Only the search file changes.

    `unchanged` returns the path of any other file. The search file contains `commit_id`, as rows do in `build_shard`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / file_name(shard.shard_id, "search")
    files = {**shard.files, "search": _write_search(path, documents, made_by=commit_id)}
    centroids, radii = vector_index.find_centroids(documents.vectors, 1)
    ref = replace(
        shard,
        folder=shards_prefix(kb_id) + hash_files(files),
        files=files,
        run="",
        centroids=centroids,
        radii=tuple(radii),
    )
    return BuiltShard(ref, {role: path if role == "search" else unchanged(role) for role in files})


_idle: defaultdict[int, list["duckdb.DuckDBPyConnection"]] = defaultdict(list)
"""Unused in-memory databases, by process. Opening one takes as long as building a small shard."""


def _write_rows(
    path: Path, documents: StoredDocuments, headers: Sequence[Header], values: Sequence[Sequence[Row]], commit_id: str
) -> None:
    idle = _idle[os.getpid()]
    try:
        connection = idle.pop()
    except IndexError:
        connection = open_memory()
    try:
        options = f"BLOCK_SIZE {_BLOCK_SIZE}, STORAGE_VERSION '{_STORAGE_VERSION}'"
        connection.execute(f"ATTACH {_quote(path)} AS shard_file ({options})")
        connection.execute("USE shard_file")
        connection.execute("BEGIN")
        connection.execute(_TABLES)
        connection.execute("INSERT INTO shard VALUES (?, ?)", [commit_id, _STORAGE_VERSION])
        scratch = path.with_suffix(".rows")
        texts = (content.decode(errors="replace") for content in documents.texts)
        metadata = (json.dumps(header.metadata, ensure_ascii=False) if header.metadata else "{}" for header in headers)
        rows = (
            (doc, header.id, header.owner, header.title, header.url, text, value, header.content_hash)
            for doc, (header, text, value) in enumerate(zip(headers, texts, metadata, strict=True))
        )
        _insert(connection, scratch, "docs", rows)
        flat = ((doc, *row) for doc, own in enumerate(values) for row in own)
        _insert(connection, scratch, "doc_metadata", flat)
        owners = documents.chunks["doc"].astype(np.int64)
        numbers = np.arange(len(owners)) - _first_chunks(documents)[owners]
        places = {**_split_columns(documents.chunks), "number": numbers}
        _insert_columns(connection, {"chunk_places": places}, _CHUNK_ROWS)
        if graphs := documents.graphs:
            # Pass one text: for each string in an array, DuckDB checks whether pandas is installed.
            connection.execute(_GRAPH_NAMES, [json.dumps([_replace_surrogates(name) for name in graphs.names])])
            columns = {"graph_mentions": _split_columns(graphs.mentions), "graph_edges": _split_columns(graphs.edges)}
            _insert_columns(connection, columns, _GRAPH_ROWS)
        connection.execute("COMMIT")
        connection.execute("USE memory")
        connection.execute("DETACH shard_file")  # This writes everything to the file.
    except BaseException:
        connection.close()
        raise
    idle.append(connection)


_encoder = msgspec.json.Encoder()


def _quote(path: Path) -> str:
    return "'" + str(path).replace("'", "''") + "'"


def _insert(connection: "duckdb.DuckDBPyConnection", scratch: Path, table: str, rows: Iterable[_Row]) -> None:
    """Insert rows through a file of JSON lines, which is 50 times faster than passing Python values."""
    columns, longest = dict(column.split() for column in SCHEMA[table].split(", ")), 0
    with scratch.open("wb") as stream:
        for row in rows:
            named = dict(zip(columns, row, strict=True))
            try:
                line = _encoder.encode(named)
            except UnicodeEncodeError:
                line = _encoder.encode({name: _replace_surrogates(value) for name, value in named.items()})
            longest = max(longest, len(line))
            stream.write(line + b"\n")
    if longest:
        types = ", ".join(f"{name}: '{kind}'" for name, kind in columns.items())
        reading = f"read_json({_quote(scratch)}, format='newline_delimited', columns={{{types}}}"
        limit = 2 * longest + 1024
        connection.execute(f"INSERT INTO {table} SELECT * FROM {reading}, maximum_object_size={limit})")  # noqa: S608
    scratch.unlink()


def _replace_surrogates(value: _Value) -> _Value:
    """Replace lone surrogates, which UTF-8 cannot hold."""
    return value.encode(errors="replace").decode() if isinstance(value, str) and not value.isascii() else value


def _insert_columns(
    connection: "duckdb.DuckDBPyConnection", columns: Mapping[str, dict[str, npt.NDArray[Any]]], statements: str
) -> None:
    """Run statements that read these columns of numbers as tables."""
    for name, column in columns.items():
        connection.register(name, column)
    connection.execute(statements)
    for name in columns:
        connection.unregister(name)


def _split_columns(rows: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
    return {name: np.ascontiguousarray(rows[name]) for name in rows.dtype.names or ()}


_CHUNK_ROWS = """
INSERT INTO chunks
    SELECT d.id || '#' || p.number, p.doc, d.id, p.number, p.start, p."end" FROM chunk_places p
    JOIN docs d ON d.doc = p.doc ORDER BY p.doc, p.number;
"""
_GRAPH_NAMES = """
CREATE TEMP TABLE graph_names AS
    SELECT unnest(names) AS name, generate_subscripts(names, 1) - 1 AS number
    FROM (SELECT from_json(?, '["VARCHAR"]') AS names);
"""
_GRAPH_ROWS = """
INSERT INTO doc_entities
    SELECT c.doc_id, n.name, m.weight, c.id, m.doc, m.chunk FROM graph_mentions m
    JOIN chunks c ON c.doc = m.doc AND c.number = m.chunk
    JOIN graph_names n ON n.number = m.entity;
INSERT INTO edges
    SELECT s.name, t.name, e.weight, k.name, c.id, e.doc, e.chunk FROM graph_edges e
    JOIN chunks c ON c.doc = e.doc AND c.number = e.chunk
    JOIN graph_names s ON s.number = e.source
    JOIN graph_names t ON t.number = e.target
    JOIN graph_names k ON k.number = e.kind;
INSERT INTO entities
    SELECT DISTINCT name, name FROM graph_names
    WHERE number IN (SELECT entity FROM graph_mentions)
       OR number IN (SELECT source FROM graph_edges) OR number IN (SELECT target FROM graph_edges)
    ORDER BY name;
DROP TABLE graph_names;
"""


def _first_chunks(documents: StoredDocuments) -> npt.NDArray[np.int64]:
    counts = documents.chunk_counts()
    return np.cumsum(counts) - counts


def _write_search(path: Path, documents: StoredDocuments, made_by: str = "") -> ShardFile:
    docs = np.zeros(documents.count, DOC_TYPE)
    docs["header_size"] = [len(header) for header in documents.headers]
    docs["text_size"] = [len(text) for text in documents.texts]
    sizes = docs["header_size"].astype(np.uint64) + docs["text_size"]
    docs["offset"] = np.cumsum(sizes) - sizes
    docs["first_chunk"] = _first_chunks(documents)
    pieces = [piece for pair in zip(documents.headers, documents.texts, strict=True) for piece in pair]
    codes = vector_index.encode(documents.vectors)
    return write_arrays(
        path,
        {
            "docs": docs,
            "chunks": documents.chunks,
            "vectors": documents.vectors,
            "squares": vector_index.compute_squares(documents.vectors),
            **({"codes": codes.index, "code_error": codes.error} if codes is not None else {}),
            "texts": pieces,
            **({"made_by": [made_by.encode()]} if made_by else {}),
        },
    )


def _write_ids(path: Path, headers: Sequence[Header], values: Sequence[Sequence[Row]]) -> ShardFile:
    """Write the id directory, sorted by hash for lookups, with a second order for lists, and the metadata."""
    names = [header.id.encode(errors="surrogatepass") for header in headers]
    owners = sorted({header.owner for header in headers})
    owner_numbers = {owner: number for number, owner in enumerate(owners)}
    lines = np.zeros(len(headers), ID_TYPE)
    lines["prefix"], lines["rest"] = hash_ids(header.id for header in headers).T
    lines["doc"] = np.arange(len(headers))
    lines["owner"] = [owner_numbers[header.owner] for header in headers]
    lines["id_size"] = [len(name) for name in names]
    sizes = lines["id_size"].astype(np.uint64)
    lines["id_offset"] = np.cumsum(sizes) - sizes
    lines["hash"] = np.array([bytes.fromhex(header.content_hash) for header in headers], "V16")
    lines = np.sort(lines, order=["prefix", "rest"])
    by_name = sorted(range(len(headers)), key=lambda number: headers[number].id)
    place = np.empty(len(headers), np.uint32)
    place[lines["doc"]] = np.arange(len(headers), dtype=np.uint32)
    return write_arrays(
        path,
        {
            "lines": lines,
            "order": place[by_name] if by_name else np.empty(0, np.uint32),
            "owners": [json.dumps(owners, ensure_ascii=False).encode(errors="surrogatepass")],
            "names": names,
            **MetadataIndex.build(values).sections(),
        },
    )
