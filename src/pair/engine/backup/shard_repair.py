"""Verification of the files of a shard, copies of damaged files, and rebuilds of a shard from its other files.

What a rebuild needs    where it comes from
texts, headers, chunks  .search, .duckdb
vectors                 .search; else the texts are embedded again
graphs                  .graph, .duckdb; else they are made again
keywords                .keywords; else they are made again
Invariants
    Nothing here writes to the store. Files to verify are not read through the cache.
    All documents, even deleted ones, keep their numbers, so the tombstones of every manifest stay valid.
"""

import itertools
import shutil
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pair import errors, files
from pair.blobs.contract import BlobStore
from pair.engine.backup.export import read_document
from pair.engine.format.columns import (
    NO_GRAPHS,
    Header,
    PreparedDocument,
    StoredDocuments,
    StoredGraphs,
    build_columns,
    build_graph_columns,
)
from pair.engine.format.manifest import FileRole, ShardRef, file_name, shards_prefix
from pair.engine.format.shard import OPENERS, open_graph, open_keywords, open_rows, open_search
from pair.engine.settings import EngineSettings
from pair.engine.storage.shard_cache import ShardCache
from pair.engine.write.prepare import Preparation, embed_chunks, restore_chunks
from pair.text.entity_rules import DocumentText
from pair.values import GraphRows

_PACKAGED_SHARDS = ".pair-index/shards/"


@dataclass(frozen=True, eq=False)
class VerifiedShard:
    ref: ShardRef
    sound: Mapping[FileRole, Path]
    """Local copies of the undamaged files."""
    faults: Mapping[FileRole, str]
    """The faults of the other files."""
    is_as_written: bool
    """Whether every file has the hash in the manifest. If so, a faulty file was written damaged, and no copy helps."""


def verify_shard(ref: ShardRef, store: BlobStore, folder: Path) -> VerifiedShard:
    """Download all files of a shard to `folder`, compare their hashes, and open them. Raises E206, E010."""
    folder.mkdir(parents=True)
    sound: dict[FileRole, Path] = {}
    faults: dict[FileRole, str] = {}
    for role, expected in ref.files.items():
        path = folder / file_name(ref.shard_id, role)
        if not store.download(ref.key(role), path):
            faults[role] = "it is missing"
        elif (size := path.stat().st_size) != expected.size_bytes:
            faults[role] = f"it has {size:,} bytes instead of {expected.size_bytes:,}"
        elif files.hash_file(path) != expected.sha256:
            faults[role] = "its SHA-256 is not the one in the manifest"
        else:
            sound[role] = path
    is_as_written = not faults
    for role, path in list(sound.items()):
        try:
            OPENERS[role](ref, path)
        except errors.DataError as fault:  # The file was written damaged, or belongs to another shard.
            faults[role] = str(fault.details["reason"])
            del sound[role]
    return VerifiedShard(ref, sound, faults, is_as_written)


class Replicas:
    """The sources of copies of shard files: the cache, packages and other shards."""

    def __init__(self, kb_id: str, cache: ShardCache, store: BlobStore, archives: Sequence[Path]) -> None:
        """Open the packages. Raises E003, E225 for an archive that cannot be read."""
        self._kb_id = kb_id
        self._cache = cache
        self._store = store
        self._archives = [(path, _list_entries(path)) for path in archives]

    def find(self, ref: ShardRef, role: FileRole, folder: Path) -> tuple[Path, str] | None:
        """Return a file with the right SHA-256, and its origin. `folder`: for copies. Raises E206, E010."""
        target = folder / f"spare-{file_name(ref.shard_id, role)}"
        for path, origin in self._candidates(ref, role, target):
            with files.storage_errors():
                if files.hash_file(path) == ref.files[role].sha256:
                    return path, origin
            target.unlink(missing_ok=True)
        return None

    def _candidates(self, ref: ShardRef, role: FileRole, target: Path) -> Iterator[tuple[Path, str]]:
        cached = self._cache.place(ref) / file_name(ref.shard_id, role)
        if cached.is_file():
            yield cached, "the local cache"
        suffix, size = target.suffix, ref.files[role].size_bytes
        for archive, entries in self._archives:
            for entry in entries:
                if entry.file_size == size and entry.filename.endswith(suffix) and _unpack(archive, entry, target):
                    yield target, str(archive)
        for info in list(self._store.list(shards_prefix(self._kb_id))):
            is_other = info.key != ref.key(role) and info.size_bytes == size and info.key.endswith(suffix)
            if is_other and self._store.download(info.key, target):
                yield target, "another shard of this knowledge base"


def _list_entries(path: Path) -> list[zipfile.ZipInfo]:
    if not path.is_file():
        raise errors.source_path_missing(str(path))
    try:
        with files.storage_errors(), zipfile.ZipFile(path) as archive:
            return [entry for entry in archive.infolist() if entry.filename.startswith(_PACKAGED_SHARDS)]
    except zipfile.BadZipFile as fault:
        raise errors.export_not_understood(str(path), "it is not a zip") from fault


def _unpack(path: Path, entry: zipfile.ZipInfo, target: Path) -> bool:
    """Unpack an entry. Return False if it is damaged."""
    try:
        with (
            files.storage_errors(),
            zipfile.ZipFile(path) as archive,
            archive.open(entry) as source,
            target.open("wb") as sink,
        ):
            shutil.copyfileobj(source, sink, files.CHUNK_BYTES)
    except (zipfile.BadZipFile, zlib.error, EOFError):
        target.unlink(missing_ok=True)
        return False
    return True


@dataclass(frozen=True)
class ShardRebuilder:
    """A builder of the documents of a shard from its undamaged files."""

    ref: ShardRef
    sound: Mapping[FileRole, Path]
    settings: EngineSettings
    preparation: Preparation
    embedder: str
    """The embedder of the shard's vectors."""

    @property
    def makes_vectors(self) -> bool:
        return "search" not in self.sound and self.ref.rows > 0

    @property
    def remedy(self) -> str:
        """A text that names the files to rebuild the shard from; empty if that is not possible."""
        can_embed = self.preparation.embedding.name == self.embedder
        has_texts = "search" in self.sound or ("rows" in self.sound and (can_embed or not self.makes_vectors))
        has_graph = not self.ref.graph_available or bool({"graph", "rows"} & self.sound.keys())
        if not has_texts or not (has_graph or self.preparation.grapher):
            return ""
        made = [f"{self.ref.rows:,} of {self.ref.rows:,} vectors"] if self.makes_vectors else []
        made += [] if has_graph else ["graphs"]
        rebuilt = f", with {' and '.join(made)} rebuilt" if made else ""
        return f"the other files of the shard{rebuilt}"

    def documents(self) -> StoredDocuments:
        """Return all documents of the shard. Raises ModelError if texts must be embedded and the model fails."""
        index = open_keywords(self.ref, self.sound["keywords"]) if "keywords" in self.sound else None
        index = index if index is not None and index.is_current else None  # Without an index, count words again.
        lengths = None if index is None else index.lengths
        if "search" in self.sound:
            search = open_search(self.ref, self.sound["search"])
            documents = [read_document(search, doc, lengths, self.settings) for doc in range(len(search.docs))]
        else:
            documents = embed_chunks(self.preparation.embedding, self._read_rows(lengths))
        if index is not None:
            keywords = index.read_rows(np.arange(index.count))
            first_rows = itertools.accumulate((len(document.chunks) for document in documents), initial=0)
            documents = [
                replace(document, keywords=keywords, first_row=first_row)
                for document, first_row in zip(documents, first_rows, strict=False)
            ]
        stored = build_columns(documents, self.ref.centroids.shape[1])
        return replace(stored, graphs=self._read_graphs(stored))

    def _read_rows(self, lengths: npt.NDArray[np.uint32] | None) -> list[PreparedDocument]:
        documents: list[PreparedDocument] = []
        begin = 0
        for header, text, ranges in open_rows(self.ref, self.sound["rows"]).documents():
            own = None if lengths is None else lengths[begin : begin + len(ranges)].tolist()
            begin += len(ranges)
            chunks = restore_chunks(text, header.title, ranges, own, self.settings)
            no_vectors = np.empty((0, self.ref.centroids.shape[1]), np.float32)
            documents.append(PreparedDocument(header, text, chunks, no_vectors))
        return documents

    def _read_graphs(self, stored: StoredDocuments) -> StoredGraphs:
        if not self.ref.graph_available:
            return NO_GRAPHS
        counts = stored.chunk_counts()
        if "graph" in self.sound:
            first_chunks = np.cumsum(counts) - counts
            graph = open_graph(self.ref, self.sound["graph"])
            return graph.graphs(stored.chunks["doc"].astype(np.uint32), first_chunks)
        graphs: Mapping[int, GraphRows] = {}
        if "rows" in self.sound:
            graphs = open_rows(self.ref, self.sound["rows"]).graphs()
        elif self.preparation.grapher is not None:
            graphs = dict(enumerate(self.preparation.make_graphs(_read_texts(stored))))
        return replace(build_graph_columns(graphs, counts.tolist()), is_made=True)


def _read_texts(stored: StoredDocuments) -> list[DocumentText]:
    texts: list[list[str]] = [[] for _ in range(stored.count)]
    for doc, begin, end in zip(
        *(stored.chunks[name].tolist() for name in ("doc", "start_byte", "end_byte")), strict=True
    ):
        texts[doc].append(stored.texts[doc][begin:end].decode(errors="surrogatepass"))
    headers = map(Header.from_bytes, stored.headers)
    return [DocumentText(header.title, own, header.id, header.url) for header, own in zip(headers, texts, strict=True)]
