"""Vectors of another embedder for all that is stored: built beside the live shards, and swapped in with one manifest.

The steps, each of which may be the last, as `on_step` tells them just before they begin: embed (each batch), upload
(each file), uploaded, lease, read, swap, swapped, re-embedded.
Invariants
    A manifest names shards of one embedder only: embedder, dimension and all shards change in one swap.
    Texts, chunks, keywords, graphs, owners and content hashes stay as they are.
    The long part needs no lease. At the end, what others wrote and deleted meanwhile is in the new shards too.
    What was embedded is kept until the swap: an interrupted run goes on where it stopped.
    A KB that is rolled back meanwhile to what has another embedder stays so; any other roll-back is only taken up.
"""

import logging
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pair import errors
from pair.ai.caching_embedder import DEFAULT_BATCH_SIZE, CachingEmbedder
from pair.blobs.leases import HeldLease
from pair.clock import to_timestamp
from pair.engine import rules
from pair.engine.format.columns import NO_GRAPHS, StoredDocuments, concatenate
from pair.engine.format.manifest import Manifest, ShardRef
from pair.engine.format.shard import SearchFile
from pair.engine.format.shard_builder import build_shard, rebuild_shard
from pair.engine.format.vectors import Grouping, sample_size
from pair.engine.maintenance.compaction import Group, Output, are_whole_in, live_numbers, sampled, with_late_deletes
from pair.engine.storage.manifest_store import StoredManifest
from pair.engine.storage.shard_cache import ShardMissingError
from pair.engine.write.chunking import cut_again, embedded_text
from pair.engine.write.vector_journal import RecordNumbers, VectorJournal, kept_path, kept_vectors, key_of
from pair.engine.write.writer import EngineContext, forget_dropped, picked_documents, scratch_folder

logger = logging.getLogger(__name__)

_ROUNDS = 12
_START_OVER = frozenset({errors.MANIFEST_CHANGED, errors.LEASE_LOST})
"""Somebody else was faster, or may have been: what was made is as good for another attempt."""
_BLOCK_ROWS = 1024
"""Rows whose texts are in memory at once."""
_NAMED = 10
_BYTES_OF_A_NUMBER = 5.6
"""That one number of each vector takes in the store, with its part of the code."""


@dataclass(frozen=True, slots=True)
class ReembedReport:
    """What a re-embedding did, or what one would do."""

    embedder_before: str
    embedder: str
    dimension: int
    documents: int
    chunks: int
    embedded: int = 0
    """Texts that the embedder was given; a text that stands in several chunks is given once."""
    characters: int = 0
    """Of these texts."""
    kept: int = 0
    """Chunks whose text was embedded before: by a run that was interrupted, or for another chunk."""
    shards: int = 0
    """With new vectors."""
    rounds: int = 0
    """How often what others had written meanwhile was taken up."""
    manifest_version: int = 0
    changed: bool = False
    """False for one that was only planned, and for a KB that has vectors of this embedder already."""


@dataclass(frozen=True, slots=True)
class _Made:
    """A new shard, with how often garbage had been collected before it was uploaded."""

    output: Output
    collections: int


@dataclass
class _ReembedCounts:
    embedded: int = 0
    characters: int = 0
    kept: int = 0
    rows: int = 0


class Reembedder:
    """One run."""

    def __init__(
        self,
        parts: EngineContext,
        embedding: CachingEmbedder,
        on_progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        """`on_progress`: chunks that were looked after, and all of them as far as known."""
        self._parts = parts
        self._embedding = embedding
        self._on_progress = on_progress
        self._tally = _ReembedCounts()
        self._total = 0
        self._begun_with: Manifest | None = None
        self._made: list[_Made] = []
        self._places: dict[str, RecordNumbers] = {}
        """By folder of a shard: for each of its rows the record with its vector; -1 for what is gone."""

    def plan(self) -> ReembedReport:
        """What a run would do now; nothing is written. Raises E201, E206, E207, E307."""
        manifest = self._parts.publication.require().manifest
        if manifest.embedder == self._embedding.name:
            return self._report(manifest, manifest)
        self._refuse_textless(manifest.shards)
        name, dimension = self._embedding.name, self._embedding.dimension
        kept = VectorJournal(kept_path(self._folder, name, dimension), dimension)
        self._total = manifest.rows
        keys, sizes = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
        for shard in manifest.shards:
            search = self._parts.cache.open(shard).search(0.0)
            for rows, texts in self._blocks(search, live_numbers(shard)):
                named = [key_of(text) for text in texts]
                missing = np.flatnonzero(kept.find(named) < 0)
                keys.append(np.array([int.from_bytes(named[each][:8], "little") for each in missing], np.uint64))
                sizes.append(np.array([len(texts[each]) for each in missing], np.int64))
                self._tally.rows += len(rows)
                self._on_progress(self._tally.rows, self._total)
        distinct, first = np.unique(np.concatenate(keys), return_index=True)
        self._tally.embedded = len(distinct)
        self._tally.characters = int(np.concatenate(sizes)[first].sum())
        self._tally.kept = self._tally.rows - len(distinct)
        return self._report(manifest, manifest)

    def run(self) -> ReembedReport:
        """Raises E201, E206, E207, E236, E307, E308, ModelError; E202, E203, E208, E210 after all attempts."""
        before = self._parts.publication.require_for_write().manifest
        name, dimension = self._embedding.name, self._embedding.dimension
        if before.embedder == name:
            return self._report(before, before)
        self._begun_with = before
        with kept_vectors(self._folder, name, dimension, on_busy=self._refuse_company) as kept:
            published, rounds = self._in_rounds(kept)
        self._parts.on_step("re-embedded")
        forget_dropped(self._parts)
        return replace(self._report(before, published.manifest), rounds=rounds, changed=True)

    @property
    def _folder(self) -> Path:
        return self._parts.cache.unfinished / self._parts.kb_id

    def _refuse_company(self, holder: str) -> None:
        raise errors.reembedding_running(self._parts.kb_id, holder)

    def _report(self, before: Manifest, after: Manifest) -> ReembedReport:
        return ReembedReport(
            embedder_before=before.embedder,
            embedder=self._embedding.name,
            dimension=self._embedding.dimension,
            documents=after.documents,
            chunks=after.rows,
            embedded=self._tally.embedded,
            characters=self._tally.characters,
            kept=self._tally.kept,
            shards=len(after.shards),
            manifest_version=after.number,
        )

    # One round after another

    def _in_rounds(self, kept: VectorJournal) -> tuple[StoredManifest, int]:
        """Each round takes up what was written during the one before, which is less each time."""
        for number in range(1, _ROUNDS + 1):
            before = self._parts.publication.require()
            try:
                self._make_up_for(before.manifest, kept)
                published = self._publish_when_free(kept, is_last_round=number == _ROUNDS)
                if published is not None:
                    return published, number
            except errors.ConflictError as fault:
                if fault.code not in _START_OVER:
                    raise
                self._parts.pause(number)
            except ShardMissingError as fault:
                if self._parts.publication.require().version == before.version:
                    raise errors.stored_data_damaged(str(fault), "it is not in the store any more") from fault
            logger.info("re-embedding what was written meanwhile", extra={"kb": self._parts.kb_id, "round": number})
        raise errors.manifest_changed(self._parts.kb_id)

    def _publish_when_free(self, kept: VectorJournal, *, is_last_round: bool) -> StoredManifest | None:
        """Waits for the lease as a writer does. None when others wrote so much that another round is due."""
        with self._parts.hold_lease() as lease:
            return self._publish(kept, lease, is_last_round=is_last_round)

    def _publish(self, kept: VectorJournal, lease: HeldLease, *, is_last_round: bool) -> StoredManifest | None:
        parts = self._parts
        parts.on_step("read")
        now = parts.publication.require()
        if now.manifest.embedder == self._embedding.name:
            return now  # somebody else did the same
        if not rules.may_finish_under_lease(self._missing(now.manifest), is_last_round=is_last_round):
            return None
        self._make_up_for(now.manifest, kept)
        current = {shard.folder: shard for shard in now.manifest.shards}
        shards = [with_late_deletes(each.output, current) for each in self._made]
        name, dimension = self._embedding.name, self._embedding.dimension
        after = now.manifest.make_reembedded(parts.new_id(), parts.publication.now(), shards, name, dimension)
        lease.check()
        published = parts.publication.swap(now, after)
        parts.on_step("swapped")
        return published

    def _usable(self, manifest: Manifest) -> list[_Made]:
        """What was uploaded before garbage was collected may be gone, and its name is not to be used again.

        And all is made anew when a shard holds again what was deleted from it: what was embedded is kept.
        """
        usable = [each for each in self._made if each.collections == manifest.collections]
        outputs = [each.output for each in usable]
        made_of = {folder for output in outputs for folder, _ in output.origins}
        is_whole = are_whole_in(outputs, [shard for shard in manifest.shards if shard.folder in made_of])
        return usable if is_whole else []

    def _missing(self, manifest: Manifest) -> list[ShardRef]:
        """Shards whose documents are not in a new one that is still there for sure."""
        made_of = {folder for each in self._usable(manifest) for folder, _ in each.output.origins}
        return [shard for shard in manifest.shards if shard.folder not in made_of and shard.live_documents]

    def _refuse_undoing(self, manifest: Manifest) -> None:
        """Raises E236: somebody wants the embedder of then, and those who ask have it."""
        begun_with = self._begun_with or manifest
        if manifest.rolled_back > begun_with.number and manifest.embedder != begun_with.embedder:
            raise errors.rolled_back_meanwhile(manifest.kb_id, begun_with.number, manifest.rolled_back)

    def _make_up_for(self, manifest: Manifest, kept: VectorJournal) -> None:
        self._refuse_undoing(manifest)
        missing = self._missing(manifest)
        self._made = self._usable(manifest)
        self._refuse_textless(missing)
        self._total = self._tally.rows + sum(shard.live_rows for shard in missing)
        for shard in missing:
            self._embed(shard, kept)
        outputs = self._build_all(missing, manifest.dimension, kept)
        self._made += [_Made(each, manifest.collections) for each in outputs]

    # Vectors

    def _refuse_textless(self, shards: Iterable[ShardRef]) -> None:
        """Raises E307 for documents whose vectors came with them, and which say nothing of their own."""
        found: list[str] = []
        count = 0
        for shard in shards:
            search = self._parts.cache.open(shard).search(0.0)
            for doc in live_numbers(shard).tolist():
                if search.document_vectors(doc).any() and not (
                    search.text(doc).strip() or search.header(doc).title.strip()
                ):
                    count += 1
                    found += [search.header(doc).id] if len(found) < _NAMED else []
        if count:
            raise errors.documents_without_text(self._parts.kb_id, found, count)

    def _embed(self, shard: ShardRef, kept: VectorJournal) -> None:
        search = self._parts.cache.open(shard).search(0.0)
        places = np.full(len(search.chunks), -1, np.int64)
        for rows, texts in self._blocks(search, live_numbers(shard)):
            places[rows] = self._recorded(texts, kept)
            self._tally.rows += len(rows)
            self._on_progress(self._tally.rows, max(self._total, self._tally.rows))
        self._places[shard.folder] = places

    def _recorded(self, texts: Sequence[str], kept: VectorJournal) -> RecordNumbers:
        """The records of these texts; those that have none are embedded."""
        keys = [key_of(text) for text in texts]
        found = kept.find(keys)
        unknown = {keys[number]: texts[number] for number in np.flatnonzero(found < 0).tolist()}
        self._tally.kept += len(texts) - len(unknown)
        if not unknown:
            return found
        names, wanted = list(unknown), list(unknown.values())
        for begin in range(0, len(names), DEFAULT_BATCH_SIZE):
            some = wanted[begin : begin + DEFAULT_BATCH_SIZE]
            self._parts.on_step("embed")
            kept.append(names[begin : begin + DEFAULT_BATCH_SIZE], self._embedding.embed_all(some))
            self._tally.embedded += len(some)
            self._tally.characters += sum(map(len, some))
            self._on_progress(self._tally.rows + begin + len(some), max(self._total, self._tally.rows + len(texts)))
        return kept.find(keys)

    def _blocks(
        self, search: SearchFile, numbers: npt.NDArray[np.int64]
    ) -> Iterator[tuple[npt.NDArray[np.int64], list[str]]]:
        """What the chunks of these documents are found by, with their rows, some at a time."""
        rows: list[int] = []
        texts: list[str] = []
        for doc in numbers.tolist():
            own = search.rows_of_document(doc)
            places = list(zip(*(search.chunks[name][own].tolist() for name in ("start", "end")), strict=True))
            policy, title = self._parts.policy, search.header(doc).title
            chunks = cut_again(search.text(doc), places, policy.chunk_bytes, policy.chunker)
            rows += range(own.start, own.stop)
            texts += [embedded_text(title, chunk) for chunk in chunks]
            if len(rows) >= _BLOCK_ROWS:
                yield np.array(rows, np.int64), texts
                rows, texts = [], []
        if rows:
            yield np.array(rows, np.int64), texts

    # Shards

    def _build_all(self, shards: Sequence[ShardRef], dimension: int, kept: VectorJournal) -> list[Output]:
        """`dimension`: of the vectors that they have."""
        outputs: list[Output] = []
        commit_id = self._parts.new_id()
        with scratch_folder(self._parts.cache) as folder:
            for together in rules.group_for_reembedding(shards):
                for group in self._groups(together, dimension, kept):
                    number = len(outputs)
                    outputs.append(self._build(folder / str(number), group, (commit_id, number), kept))
        return outputs

    def _groups(self, shards: Sequence[ShardRef], dimension: int, kept: VectorJournal) -> list[Group]:
        rows = sum(shard.live_rows for shard in shards)
        live_bytes = sum(round(shard.size_bytes * (1 - shard.tombstone_ratio)) for shard in shards)
        wider_bytes = round(rows * (self._embedding.dimension - dimension) * _BYTES_OF_A_NUMBER)
        count = rules.count_cuts(rows, max(live_bytes + wider_bytes, 0), self._parts.policy)
        if count == 1:
            return [Group("", [(shard, live_numbers(shard)) for shard in shards])]
        return self._clustered(shards, count, kept)

    def _clustered(self, shards: Sequence[ShardRef], count: int, kept: VectorJournal) -> list[Group]:
        """By the new vectors; shard by shard, so that no more than one is in memory."""
        per_shard = max(1, sample_size(count) // len(shards))
        known = [self._places[shard.folder] for shard in shards]
        sample = np.concatenate([kept.vectors(sampled(places[places >= 0], per_shard)) for places in known])
        grouping = Grouping(sample, count, sum(shard.live_rows for shard in shards))
        run = self._parts.new_id()
        groups = [Group(run) for _ in range(count)]
        for shard in shards:
            numbers = live_numbers(shard)
            documents = self._parts.cache.open(shard).search(0.0).documents(numbers, NO_GRAPHS)
            documents = self._with_vectors(documents, shard, numbers, kept)
            chosen = grouping.assign(documents.mean_vectors(), documents.chunk_counts())
            for group in np.unique(chosen):
                groups[group].members.append((shard, numbers[chosen == group]))
        return [group for group in groups if group.members]

    def _build(self, folder: Path, group: Group, name: tuple[str, int], kept: VectorJournal) -> Output:
        """`name`: of the attempt, and the number of the shard in it."""
        parts, (commit_id, number) = self._parts, name
        first, numbers = group.members[0]
        if len(group.members) == 1 and not group.run and len(numbers) == first.documents:
            opened = parts.cache.open(first)
            documents = opened.search(0.0).documents(numbers, NO_GRAPHS)
            documents = self._with_vectors(documents, first, numbers, kept)
            built = rebuild_shard(folder, parts.kb_id, first, documents, opened.path, commit_id)
        else:
            documents = concatenate(
                [
                    self._with_vectors(picked_documents(shard, some, parts.cache), shard, some, kept)
                    for shard, some in group.members
                ],
                self._embedding.dimension,
            )
            built = build_shard(folder, parts.kb_id, documents, commit_id=commit_id, run=group.run, number=number)
        parts.publication.upload([built])
        shutil.rmtree(folder)
        ref = replace(built.ref, created_at=to_timestamp(parts.clock.now()))
        return Output(ref, tuple((shard.folder, some) for shard, some in group.members))

    def _with_vectors(
        self, documents: StoredDocuments, shard: ShardRef, numbers: npt.NDArray[np.int64], kept: VectorJournal
    ) -> StoredDocuments:
        rows = self._parts.cache.open(shard).search(0.0).rows_of(numbers)
        return replace(documents, vectors=kept.vectors(self._places[shard.folder][rows]))
