"""Re-embedding: build new shards with the vectors of another embedder, and publish them with one manifest.

The steps, as `on_step` reports them before they begin: embed (each batch), upload (each file), uploaded, lease, read,
swap, swapped, re-embedded.
Invariants
    All shards of a manifest have one embedder: embedder, dimension and all shards change in one swap.
    Texts, chunks, keywords, graphs, owners and content hashes do not change.
    Embedding needs no lease. At the end, the new shards include concurrent writes and deletions.
    A journal keeps the vectors until the swap, so an interrupted run can be resumed. Its key is the hash of the text
    alone, so a document that moves to another shard keeps its vector. A truncated or damaged record is ignored.
    A rollback to another embedder during the run ends it (E236). After any other rollback, the run continues.
"""

import contextlib
import functools
import hashlib
import logging
import os
import re
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pair import errors, files
from pair.ai.caching_embedder import DEFAULT_BATCH_SIZE, CachingEmbedder
from pair.clock import to_timestamp
from pair.engine import rules
from pair.engine.format.columns import NO_GRAPHS, StoredDocuments, concatenate
from pair.engine.format.manifest import Manifest, ShardRef
from pair.engine.format.shard import SearchFile
from pair.engine.format.shard_builder import build_shard, rebuild_shard
from pair.engine.format.vectors import Grouping, Vectors, sample_size
from pair.engine.maintenance.compaction import (
    Group,
    Output,
    apply_late_deletes,
    are_whole_in,
    assign_groups,
    count_live_bytes,
    take_evenly,
)
from pair.engine.storage.shard_cache import ShardMissingError
from pair.engine.write.chunking import add_contexts, format_for_embedding
from pair.engine.write.commit import Change, EngineContext, commit_under, evict_dropped, refuse_lost_shard
from pair.engine.write.writer import Numbers, live_numbers, pick_documents, scratch_folder

logger = logging.getLogger(__name__)

RecordNumbers = npt.NDArray[np.int64]

_ROUNDS = 12
_START_OVER = frozenset({errors.MANIFEST_CHANGED, errors.LEASE_LOST})
"""Conflicts after which a retry can use the shards that were built."""
_BLOCK_ROWS = 1024
"""Number of rows whose texts are in memory at once."""
_NAMED = 10
_BYTES_OF_A_NUMBER = 5.6
"""Bytes in the store for one number of a vector and its code."""
_KEY_BYTES = 16
_FILE_NAME = re.compile(r"[0-9a-f]{32}\.vectors")
_MOST_RECENT = 1 << 16
"""Maximum number of new keys in a dictionary before they are merged into the sorted keys."""


# ── the journal of vectors ─────────────────────────────────────────────────────────────────────────


def hash_text(text: str) -> bytes:
    return hashlib.sha256(text.encode(errors="surrogatepass")).digest()[:_KEY_BYTES]


class VectorJournal:
    """Vectors of one embedder. Only one process may append: see `_open_journal`. Reading does not change the file."""

    def __init__(self, path: Path, dimension: int) -> None:
        self._path = path
        self._type = np.dtype([("key", f"S{_KEY_BYTES}"), ("vector", "<f4", (dimension,)), ("check", "<u4")])
        self._count = _count_sound(path, self._type)
        self._is_trimmed = False
        self._recent: dict[bytes, int] = {}
        self._sort()

    def find(self, keys: Sequence[bytes]) -> RecordNumbers:
        """Return the number of the record of each key; -1 for an unknown key."""
        wanted = np.array(keys, f"S{_KEY_BYTES}")
        numbers = np.full(len(keys), -1, np.int64)
        if len(self._keys):
            places = np.minimum(np.searchsorted(self._keys, wanted), len(self._keys) - 1)
            is_here = self._keys[places] == wanted
            numbers[is_here] = self._numbers[places[is_here]]
        if self._recent:
            for place in np.flatnonzero(numbers < 0).tolist():
                numbers[place] = self._recent.get(keys[place], -1)
        return numbers

    def append(self, keys: Sequence[bytes], vectors: Vectors) -> None:
        """Append records to the file."""
        records = np.zeros(len(keys), self._type)
        records["key"], records["vector"] = keys, vectors
        records["check"] = _compute_checks(records)
        with files.storage_errors():
            descriptor = files.open_file(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            try:
                if not self._is_trimmed:
                    os.ftruncate(descriptor, self._count * self._type.itemsize)
                    self._is_trimmed = True
                files.write_all(descriptor, records.tobytes())
            finally:
                os.close(descriptor)
        for key in keys:
            self._recent[key] = self._count
            self._count += 1
        if len(self._recent) >= _MOST_RECENT:
            self._sort()

    def vectors(self, numbers: RecordNumbers) -> Vectors:
        """Return the vectors of these records, in this order."""
        if not len(numbers):
            return np.empty((0, self._type["vector"].shape[0]), np.float32)
        vectors: Vectors = self._map()["vector"][numbers].astype(np.float32)
        return vectors

    def _map(self) -> npt.NDArray[Any]:
        return np.memmap(self._path, self._type, mode="r", shape=(self._count,))

    def _sort(self) -> None:
        keys = np.array(self._map()["key"]) if self._count else np.empty(0, f"S{_KEY_BYTES}")
        self._numbers = np.argsort(keys, kind="stable")
        self._keys = keys[self._numbers]
        self._recent.clear()


def _journal_path(folder: Path, embedder: str, dimension: int) -> Path:
    return folder / f"{hashlib.sha256(f'{embedder} {dimension}'.encode()).hexdigest()[:32]}.vectors"


@contextlib.contextmanager
def _open_journal(
    folder: Path, embedder: str, dimension: int, *, on_busy: Callable[[str], None]
) -> Iterator[VectorJournal]:
    """Open the journal of one KB; delete it if the block succeeds. `on_busy`: gets the lock holder, and raises."""
    with files.storage_errors(), files.exclusive_lock(folder / "lock", on_wait=on_busy):
        yield VectorJournal(_journal_path(folder, embedder, dimension), dimension)
        for name in filter(_FILE_NAME.fullmatch, files.list_folder(folder)):
            files.unlink(folder / name, missing_ok=True)  # Also delete journals of abandoned runs with other embedders.


def _compute_checks(records: npt.NDArray[Any]) -> list[int]:
    """Return the checksum of each record, over all except its last four bytes."""
    content, size = memoryview(records.tobytes()), records.dtype.itemsize
    return [zlib.crc32(content[begin : begin + size - 4]) for begin in range(0, len(content), size)]


def _count_sound(path: Path, kind: "np.dtype[Any]") -> int:
    """Count the records before the first damaged or truncated one."""
    if not path.exists():
        return 0
    count, sound = path.stat().st_size // kind.itemsize, 0
    mapped = np.memmap(path, kind, mode="r", shape=(count,)) if count else np.empty(0, kind)
    for begin in range(0, count, _MOST_RECENT):
        block = np.array(mapped[begin : begin + _MOST_RECENT])
        damaged = np.flatnonzero(block["check"] != np.array(_compute_checks(block), np.uint32))
        sound += int(damaged[0]) if len(damaged) else len(block)
        if len(damaged):
            break
    return sound


# ── the run ─────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class ReembedReport:
    """The result of a re-embedding, or of its plan."""

    embedder_before: str
    embedder: str
    dimension: int
    documents: int
    chunks: int
    embedded: int = 0
    """Number of embedded texts. A text that several chunks share counts once."""
    characters: int = 0
    """Number of characters of the embedded texts."""
    kept: int = 0
    """Number of chunks whose text was already embedded, by an interrupted run or for another chunk."""
    shards: int = 0
    """Number of shards with new vectors."""
    rounds: int = 0
    """Number of rounds to catch up with other writers."""
    manifest_version: int = 0
    changed: bool = False
    """False for a plan, and for a KB that already has vectors of this embedder."""


@dataclass(eq=False)
class Reembedder:
    """One re-embedding run."""

    context: EngineContext
    embedding: CachingEmbedder
    on_progress: Callable[[int, int], None]
    """Called with the number of chunks that are done, and of all known chunks."""
    _embedded: int = 0
    _characters: int = 0
    _kept: int = 0
    _rows: int = 0
    _total: int = 0
    _begun_with: Manifest | None = None
    _outputs: list[Output] = field(default_factory=list)
    _records: dict[str, RecordNumbers] = field(default_factory=dict)
    """The journal record of each row, by folder of the shard; -1 for deleted rows."""

    def plan(self) -> ReembedReport:
        """Report what a run would do. Write nothing. Raises E201, E206, E207, E307."""
        manifest = self.context.manifests.require().manifest
        if manifest.embedder == self.embedding.name:
            return self._report(manifest, manifest)
        self._refuse_textless(manifest.shards)
        dimension = self.embedding.dimension
        journal = VectorJournal(_journal_path(self._folder, self.embedding.name, dimension), dimension)
        keys, sizes = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
        for shard in manifest.shards:
            for rows, texts in self._read_blocks(shard):
                hashes = [hash_text(text) for text in texts]
                missing = np.flatnonzero(journal.find(hashes) < 0).tolist()
                keys.append(np.array([int.from_bytes(hashes[number][:8], "little") for number in missing], np.uint64))
                sizes.append(np.array([len(texts[number]) for number in missing], np.int64))
                self._rows += len(rows)
                self.on_progress(self._rows, manifest.rows)
        distinct, first = np.unique(np.concatenate(keys), return_index=True)
        self._embedded = len(distinct)
        self._characters = int(np.concatenate(sizes)[first].sum())
        self._kept = self._rows - len(distinct)
        return self._report(manifest, manifest)

    def run(self) -> ReembedReport:
        """Re-embed the KB. Raises E201, E206, E207, E236, E307, E308, ModelError; E202, E203, E208, E210."""
        before = self.context.manifests.require_for_write().manifest
        name, dimension = self.embedding.name, self.embedding.dimension
        if before.embedder == name:
            return self._report(before, before)
        self._begun_with = before

        def refuse_second_run(holder: str) -> None:
            raise errors.reembedding_running(self.context.kb_id, holder)

        with _open_journal(self._folder, name, dimension, on_busy=refuse_second_run) as journal:
            published, rounds = self._run_rounds(journal)
        self.context.on_step("re-embedded")
        evict_dropped(self.context)
        return replace(self._report(before, published), rounds=rounds, changed=True)

    @property
    def _folder(self) -> Path:
        return self.context.cache.unfinished / self.context.kb_id

    def _report(self, before: Manifest, after: Manifest) -> ReembedReport:
        return ReembedReport(
            embedder_before=before.embedder,
            embedder=self.embedding.name,
            dimension=self.embedding.dimension,
            documents=after.documents,
            chunks=after.rows,
            embedded=self._embedded,
            characters=self._characters,
            kept=self._kept,
            shards=len(after.shards),
            manifest_version=after.number,
        )

    def _run_rounds(self, journal: VectorJournal) -> tuple[Manifest, int]:
        """Embed in rounds. Each round embeds the documents that other writers stored during the previous round."""
        context = self.context
        for number in range(1, _ROUNDS + 1):
            before = context.manifests.require()
            try:
                self._catch_up(before.manifest, journal)
                finish = functools.partial(self._finish, journal=journal, is_last_round=number == _ROUNDS)
                with context.hold_lease() as lease:
                    committed = commit_under(lease, context, finish)
                if committed.result:
                    return committed.manifest, number
            except errors.ConflictError as fault:
                if fault.code not in _START_OVER:
                    raise
                context.pause(number)
            except ShardMissingError as fault:
                refuse_lost_shard(context, before, fault)
            logger.info("re-embedding concurrent writes", extra={"kb": context.kb_id, "round": number})
        raise errors.manifest_changed(context.kb_id)

    def _finish(self, manifest: Manifest, journal: VectorJournal, *, is_last_round: bool) -> Change[bool]:
        """Return the change that ends the run, with result False if other writers stored too much to finish now."""
        if manifest.embedder == self.embedding.name:
            return Change(None, result=True)  # Another run did the same.
        if not rules.may_finish_under_lease(self._find_missing(manifest), is_last_round=is_last_round):
            return Change(None, result=False)
        self._catch_up(manifest, journal)
        current = {shard.folder: shard for shard in manifest.shards}
        shards = [apply_late_deletes(output, current) for output in self._outputs]
        name, dimension = self.embedding.name, self.embedding.dimension
        commit_id, now = self.context.new_id(), self.context.manifests.now()
        return Change(manifest.make_reembedded(commit_id, now, shards, name, dimension), result=True)

    def _find_usable(self, manifest: Manifest) -> list[Output]:
        """Return the new shards that certainly exist and have all live documents of their sources.

        A shard that was uploaded before a garbage collection may be deleted. If deleted documents of a source came
        back, all shards are built again, with the vectors in the journal.
        """
        usable = [output for output in self._outputs if output.collections == manifest.collections]
        done = {shard.folder for output in usable for shard, _ in output.members}
        is_whole = are_whole_in(usable, [shard for shard in manifest.shards if shard.folder in done])
        return usable if is_whole else []

    def _find_missing(self, manifest: Manifest) -> list[ShardRef]:
        """Return the live shards whose documents are in no usable new shard."""
        done = {shard.folder for output in self._find_usable(manifest) for shard, _ in output.members}
        return [shard for shard in manifest.shards if shard.folder not in done and shard.live_documents]

    def _catch_up(self, manifest: Manifest, journal: VectorJournal) -> None:
        """Build new shards for the remaining documents. Raises E236 after a rollback to another embedder."""
        begun_with = self._begun_with or manifest
        if manifest.rolled_back > begun_with.number and manifest.embedder != begun_with.embedder:
            raise errors.rolled_back_meanwhile(manifest.kb_id, begun_with.number, manifest.rolled_back)
        missing = self._find_missing(manifest)
        self._outputs = self._find_usable(manifest)
        self._refuse_textless(missing)
        self._total = self._rows + sum(shard.live_rows for shard in missing)
        for shard in missing:
            self._embed(shard, journal)
        outputs: list[Output] = []
        commit_id = self.context.new_id()
        with scratch_folder(self.context.cache) as folder:
            for run in rules.group_for_reembedding(missing):
                for group in self._group(run, manifest.dimension, journal):
                    ref = self._build(folder / str(len(outputs)), group, (commit_id, len(outputs)), journal)
                    outputs.append(Output(ref, group.members, manifest.collections))
        self._outputs += outputs

    def _refuse_textless(self, shards: Iterable[ShardRef]) -> None:
        """Raise E307 for documents that came with a vector and have no text to embed."""
        ids: list[str] = []
        for shard in shards:
            search = self.context.cache.open(shard).search(0.0)
            ids += [
                search.header(doc).id
                for doc in live_numbers(shard).tolist()
                if search.vectors[search.rows_of_document(doc)].any()
                and not (search.text(doc).strip() or search.header(doc).title.strip())
            ]
        if ids:
            raise errors.documents_without_text(self.context.kb_id, ids[:_NAMED], len(ids))

    def _embed(self, shard: ShardRef, journal: VectorJournal) -> None:
        records = np.full(len(self.context.cache.open(shard).search(0.0).chunks), -1, np.int64)
        for rows, texts in self._read_blocks(shard):
            records[rows] = self._find_records(texts, journal)
            self._rows += len(rows)
            self.on_progress(self._rows, max(self._total, self._rows))
        self._records[shard.folder] = records

    def _find_records(self, texts: Sequence[str], journal: VectorJournal) -> RecordNumbers:
        """Return the journal records of these texts. Embed the texts that have none."""
        keys = [hash_text(text) for text in texts]
        records = journal.find(keys)
        unknown = {keys[number]: texts[number] for number in np.flatnonzero(records < 0).tolist()}
        self._kept += len(texts) - len(unknown)
        if not unknown:
            return records
        new_keys, new_texts = list(unknown), list(unknown.values())
        for begin in range(0, len(new_keys), DEFAULT_BATCH_SIZE):
            batch = new_texts[begin : begin + DEFAULT_BATCH_SIZE]
            self.context.on_step("embed")
            journal.append(new_keys[begin : begin + DEFAULT_BATCH_SIZE], self.embedding.embed_all(batch))
            self._embedded += len(batch)
            self._characters += sum(map(len, batch))
            self.on_progress(self._rows + begin + len(batch), max(self._total, self._rows + len(texts)))
        return journal.find(keys)

    def _read_blocks(self, shard: ShardRef) -> Iterator[tuple[Numbers, list[str]]]:
        """Yield blocks of rows of live documents, with the texts to embed."""
        settings = self.context.settings
        search: SearchFile = self.context.cache.open(shard).search(0.0)
        rows: list[int] = []
        texts: list[str] = []
        for doc in live_numbers(shard).tolist():
            own = search.rows_of_document(doc)
            ranges = list(zip(*(search.chunks[name][own].tolist() for name in ("start", "end")), strict=True))
            chunks = add_contexts(search.text(doc), ranges, settings.chunk_bytes, settings.chunker)
            title = search.header(doc).title
            rows += range(own.start, own.stop)
            texts += [format_for_embedding(title, chunk) for chunk in chunks]
            if len(rows) >= _BLOCK_ROWS:
                yield np.array(rows, np.int64), texts
                rows, texts = [], []
        if rows:
            yield np.array(rows, np.int64), texts

    def _group(self, shards: Sequence[ShardRef], dimension: int, journal: VectorJournal) -> list[Group]:
        """Cluster the documents by their new vectors. `dimension`: the size of the old vectors."""
        members = [(shard, live_numbers(shard)) for shard in shards]
        rows = sum(shard.live_rows for shard in shards)
        wider_bytes = round(rows * (self.embedding.dimension - dimension) * _BYTES_OF_A_NUMBER)
        live_bytes = max(count_live_bytes(shards) + wider_bytes, 0)
        count = rules.count_cuts(rows, live_bytes, self.context.settings)
        if count == 1:
            return [Group("", members)]
        per_shard = max(1, sample_size(count) // len(shards))
        records = [self._records[shard.folder] for shard in shards]
        sample = np.concatenate([journal.vectors(take_evenly(own[own >= 0], per_shard)) for own in records])
        documents = (self._read_documents(shard, numbers, journal) for shard, numbers in members)
        return assign_groups(members, documents, Grouping(sample, count, rows), self.context.new_id())

    def _build(self, folder: Path, group: Group, name: tuple[str, int], journal: VectorJournal) -> ShardRef:
        """Build and upload a shard. `name`: the commit id of the attempt, and the number of the shard in it."""
        context, (commit_id, number) = self.context, name
        first, numbers = group.members[0]
        if len(group.members) == 1 and not group.run and len(numbers) == first.documents:
            documents = self._read_documents(first, numbers, journal)
            built = rebuild_shard(folder, context.kb_id, first, documents, context.cache.open(first).path, commit_id)
        else:
            picked = [
                self._with_vectors(pick_documents(shard, numbers, context.cache), shard, numbers, journal)
                for shard, numbers in group.members
            ]
            documents = concatenate(picked, self.embedding.dimension)
            built = build_shard(folder, context.kb_id, documents, commit_id=commit_id, run=group.run, number=number)
        context.manifests.upload([built])
        shutil.rmtree(folder)
        return replace(built.ref, created_at=to_timestamp(context.clock.now()))

    def _read_documents(self, shard: ShardRef, numbers: Numbers, journal: VectorJournal) -> StoredDocuments:
        """Read documents without graphs and keywords, with their new vectors."""
        documents = self.context.cache.open(shard).search(0.0).documents(numbers, NO_GRAPHS)
        return self._with_vectors(documents, shard, numbers, journal)

    def _with_vectors(
        self, documents: StoredDocuments, shard: ShardRef, numbers: Numbers, journal: VectorJournal
    ) -> StoredDocuments:
        rows = self.context.cache.open(shard).search(0.0).rows_of(numbers)
        return replace(documents, vectors=journal.vectors(self._records[shard.folder][rows]))
