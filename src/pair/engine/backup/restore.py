"""Documents of an export into a KB: as they were, or cut and embedded anew; visible all at once.

Invariants
    The whole file is verified before the first of it is stored, and one swap publishes all of it.
    With vectors of this KB's embedder nothing is embedded: chunks, vectors, graphs, owners and content hashes are kept.
    What is stored as it is costs nothing.
    Interrupted, the same import finds what it has built, as a build does (build_records.py).
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from pair import errors
from pair.blobs.contract import BlobStore
from pair.blobs.leases import HeldLease
from pair.clock import to_timestamp
from pair.engine.backup.export_format import DocumentLines, LinesHeader
from pair.engine.format.columns import PreparedDocument, build_columns, hash_id
from pair.engine.format.manifest import Manifest, ShardRef, no_manifest
from pair.engine.storage.manifest_store import StoredManifest
from pair.engine.storage.pending_shards import PendingShards
from pair.engine.storage.shard_cache import ShardMissingError
from pair.engine.write.bulk_load import placed_shards, without_documents
from pair.engine.write.bulk_runner import Built
from pair.engine.write.chunking import embedded_text
from pair.engine.write.prepare import Batch, Preparation
from pair.engine.write.writer import EngineContext, Writer, WriteReport, cut_shards, find_stored, scratch_folder
from pair.values import Document

_TRIES = 5
_NAMED = 10
_DOCUMENT_BYTES = 200
"""What a document takes besides its text and vectors."""


class _OutdatedError(Exception):
    """What was found stored as it is, is so no longer: it has to be looked at again."""


@dataclass
class _ImportedIds:
    """Documents that are stored as the file has them."""

    identities: list[bytes] = field(default_factory=list)
    hashes: list[bytes] = field(default_factory=list)

    def arrays(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
        """A row of two numbers for each."""
        identities = np.frombuffer(b"".join(self.identities), "<u8").reshape(-1, 2)
        return identities, np.frombuffer(b"".join(self.hashes), "<u8").reshape(-1, 2)


class Importer:
    """One import. Used once."""

    def __init__(
        self,
        parts: EngineContext,
        store: BlobStore,
        writer: Writer,
        preparation: Preparation,
        on_progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        """`on_progress`: documents that are built or stored already, and all of them."""
        self._parts = parts
        self._writer = writer
        self._preparation = preparation
        self._embedding = preparation.embedding
        self._records = PendingShards(store, parts.kb_id, parts.new_id)
        self._on_progress = on_progress
        self._unchanged = _ImportedIds()

    def run(self, file: DocumentLines, *, replace_all: bool = False, embed: bool = False) -> WriteReport:
        """`replace_all`: the KB becomes exactly the file. `embed`: cut and embed texts anew.

        Raises E224, E225, E226, E307, E304, E303; and what a build raises.
        """
        begun_with = self._parts.publication.current()
        self._writer = self._writer.since(begun_with.manifest.number if begun_with is not None else 0)
        header = file.header
        if header.embedder != self._embedding.name and not embed:
            raise errors.export_of_another_embedder(
                str(file.path), header.embedder, self._embedding.name, is_shards=False
            )
        file.verify()
        if embed or not header.has_vectors:
            self._refuse_textless(file, embed=embed)
        for attempt in range(1, _TRIES + 1):
            before = self._parts.publication.read_for_write()
            try:
                return self._attempt(file, before, replace_all=replace_all, embed=embed)
            except _OutdatedError:
                pass
            except ShardMissingError as fault:
                if before is not None and self._parts.publication.require().version == before.version:
                    raise errors.stored_data_damaged(str(fault), "it is not in the store any more") from fault
            self._parts.pause(attempt)
        raise errors.manifest_changed(self._parts.kb_id)

    def _attempt(
        self, file: DocumentLines, before: StoredManifest | None, *, replace_all: bool, embed: bool
    ) -> WriteReport:
        origin = self._origin(file.header, before, embed=embed)
        if before is not None and not replace_all:
            _check_same(before.manifest, origin)
        self._unchanged = _ImportedIds()
        built: list[Built] = []
        done = 0
        for number, given in enumerate(self._batches(file)):
            hashes = (
                self._hashes(given, before) if embed else {each.header.id: each.header.content_hash for each in given}
            )
            changed = self._changed(given, hashes, before, origin)
            if changed:
                built.append(self._built(number, changed, hashes, file.header, embed=embed))
            done += len(given)
            self._on_progress(done, file.header.documents)
        report = self._published(built, origin, replace_all=replace_all)
        for part in built:
            self._records.forget(part.record)
        return report

    def _origin(self, header: LinesHeader, before: StoredManifest | None, *, embed: bool) -> Manifest:
        """Names the embedder whose vectors will be stored, and the one that content hashes name."""
        if not embed:
            origin = no_manifest(self._parts.kb_id, header.embedder, header.dimension)
            return replace(origin, hashed_as=header.hashed_as)
        origin = no_manifest(self._parts.kb_id, self._embedding.name, self._embedding.dimension)
        is_same = before is not None and before.manifest.embedder == origin.embedder
        return replace(origin, hashed_as=before.manifest.hashed_as) if before and is_same else origin

    def _refuse_textless(self, file: DocumentLines, *, embed: bool) -> None:
        """Raises E307 for documents whose vectors came with them, and of which no others can be made."""
        found: list[str] = []
        count = 0
        for each in file.documents():
            said = each.text if embed else each.text + each.header.title
            if each.chunks and not said.strip():
                count += 1
                found += [each.header.id] if len(found) < _NAMED else []
        if count:
            raise errors.documents_without_text(self._parts.kb_id, found, count)

    # What is to be stored

    def _batches(self, file: DocumentLines) -> Iterator[list[PreparedDocument]]:
        batch: list[PreparedDocument] = []
        size = 0
        for document in file.documents():
            own = len(document.text.encode(errors="surrogatepass")) + document.vectors.nbytes + _DOCUMENT_BYTES
            if batch and size + own > self._parts.policy.build_part_bytes:
                yield batch
                batch, size = [], 0
            batch.append(document)
            size += own
        if batch:
            yield batch

    def _changed(
        self,
        given: Sequence[PreparedDocument],
        hashes: Mapping[str, str],
        before: StoredManifest | None,
        origin: Manifest,
    ) -> list[PreparedDocument]:
        if before is None or before.manifest.embedder != origin.embedder:
            return list(given)
        stored = find_stored(before.manifest, self._parts.cache, [each.header.id for each in given])
        changed: list[PreparedDocument] = []
        for each in given:
            own = each.header.id
            if own in stored and stored[own].content_hash == hashes[own]:
                self._unchanged.identities.append(hash_id(own))
                self._unchanged.hashes.append(bytes.fromhex(hashes[own]))
            else:
                changed.append(each)
        return changed

    def _batches_by_owner(self, given: Sequence[PreparedDocument]) -> list[Batch]:
        by_owner: dict[str, list[Document]] = {}
        for each in given:
            header = each.header
            by_owner.setdefault(header.owner, []).append(
                Document(header.id, each.text, header.title, header.url, header.metadata)
            )
        size = self._parts.policy.chunk_bytes
        return [Batch(documents, owner, size, {}, {}) for owner, documents in by_owner.items()]

    def _hashes(self, given: Sequence[PreparedDocument], before: StoredManifest | None) -> dict[str, str]:
        hashes: dict[str, str] = {}
        for batch in self._batches_by_owner(given):
            hashes |= self._preparation.checked_hashes(batch, before)
        return hashes

    # Building

    def _built(
        self,
        number: int,
        changed: Sequence[PreparedDocument],
        hashes: Mapping[str, str],
        header: LinesHeader,
        *,
        embed: bool,
    ) -> Built:
        parts = self._parts
        key = _key_of(changed, hashes, header, self._embedding.name)
        found = self._records.find(key)
        if found is not None:
            return Built(number, found.key, found.shards)
        ready = self._prepared(changed, hashes) if embed else self._with_vectors(changed, header)
        dimension = self._embedding.dimension if embed else header.dimension
        with scratch_folder(parts.cache) as folder:
            shards = cut_shards(folder, parts.kb_id, build_columns(ready, dimension), parts.new_id(), parts.policy)
            created_at = to_timestamp(parts.clock.now())
            refs = tuple(replace(each.ref, created_at=created_at) for each in shards)
            record = self._records.announce(key, refs, dimension)
            parts.publication.upload(shards)
        return Built(number, record, refs)

    def _prepared(self, changed: Sequence[PreparedDocument], hashes: Mapping[str, str]) -> list[PreparedDocument]:
        prepared: dict[str, PreparedDocument] = {}
        for batch in self._batches_by_owner(changed):
            prepared |= self._preparation.prepared(batch, batch.documents, hashes)
        return [prepared[each.header.id] for each in changed]

    def _with_vectors(self, changed: Sequence[PreparedDocument], header: LinesHeader) -> list[PreparedDocument]:
        """As the file has them, cut as they were; embedded where the file has no vectors."""
        if header.has_vectors:
            return list(changed)
        texts = [embedded_text(each.header.title, chunk) for each in changed for chunk in each.chunks]
        vectors = self._embedding.embed_all(texts) if texts else np.empty((0, header.dimension), np.float32)
        ready: list[PreparedDocument] = []
        begin = 0
        for each in changed:
            ready.append(replace(each, vectors=vectors[begin : begin + len(each.chunks)]))
            begin += len(each.chunks)
        return ready

    # Publishing

    def _published(self, built: Sequence[Built], origin: Manifest, *, replace_all: bool) -> WriteReport:
        shards = [shard for part in built for shard in part.shards]
        try:
            placed = placed_shards(shards, self._parts.cache) if shards else None
        except ShardMissingError as fault:
            raise errors.build_lost(self._parts.kb_id) from fault
        commit_id = self._parts.new_id()

        def attempt(lease: HeldLease, before: StoredManifest | None) -> WriteReport:
            manifest = before.manifest if before else origin
            self._require(built, manifest)
            if before is not None and not replace_all:
                _check_same(manifest, origin)
            kept, replaced = list(manifest.shards), 0
            if placed is not None:
                kept, replaced = without_documents(manifest, placed, self._parts.cache)
            deleted = 0
            fresh = [shard for shard in (placed.shards if placed else ()) if shard.folder not in manifest.folders]
            if replace_all:
                # Somebody else may have published the same meanwhile.
                own = [shard for shard in (placed.shards if placed else ()) if shard.folder in manifest.folders]
                others = [shard for shard in manifest.shards if shard.folder not in {each.folder for each in own}]
                kept = self._only_unchanged(others, manifest, origin)
                deleted = _live(others) - _live(kept) - replaced
                kept += own
            number = manifest.number
            if fresh or deleted or (replace_all and manifest.embedder != origin.embedder):
                number = self._swap(lease, before, [*kept, *fresh], commit_id, origin, replace_all=replace_all)
            return WriteReport(
                added=(len(placed.identities) if placed else 0) - replaced,
                replaced=replaced,
                unchanged=len(self._unchanged.hashes),
                deleted=deleted,
                chunks=sum(shard.rows for shard in shards),
                manifest_version=number,
            )

        return self._writer.retried(attempt)

    def _swap(
        self,
        lease: HeldLease,
        before: StoredManifest | None,
        shards: Sequence[ShardRef],
        commit_id: str,
        origin: Manifest,
        *,
        replace_all: bool,
    ) -> int:
        manifest = before.manifest if before else origin
        now = self._writer.moment_for(manifest, shards)
        if replace_all:
            after = manifest.make_imported(commit_id, now, shards, origin)
        else:
            after = manifest.make_next(commit_id, now, shards, "import")
        return self._writer.publish(lease, before, after).manifest.number

    def _require(self, built: Sequence[Built], manifest: Manifest) -> None:
        """Raises E217 when garbage collection may have taken what is to be published."""
        known = {shard.folder for shard in manifest.shards}
        for part in built:
            if not self._records.is_in_order(part.record) and not {each.folder for each in part.shards} <= known:
                raise errors.build_lost(self._parts.kb_id)

    def _only_unchanged(self, shards: Sequence[ShardRef], manifest: Manifest, origin: Manifest) -> list[ShardRef]:
        """These shards of the manifest, with nothing in them but what the file has too."""
        if manifest.embedder != origin.embedder or not self._unchanged.hashes:
            if self._unchanged.hashes:
                raise _OutdatedError
            return []
        identities, hashes = self._unchanged.arrays()
        kept: list[ShardRef] = []
        for shard in shards:
            directory = self._parts.cache.open(shard).ids()
            lines = directory.find(identities)
            here = np.flatnonzero(lines >= 0)
            same = here[(directory.hashes_at(lines[here])[1] == hashes[here]).all(axis=1)]
            gone = np.ones(shard.documents, np.bool_)
            gone[directory.numbers_at(lines[same])] = False
            kept.append(shard.without(np.flatnonzero(gone)) if gone.any() else shard)
        if _live(kept) != len(hashes):
            raise _OutdatedError
        return [each for each in kept if each.live_documents]


def _live(shards: Sequence[ShardRef]) -> int:
    return sum(each.live_documents for each in shards)


def _check_same(manifest: Manifest, origin: Manifest) -> None:
    """Raises E303, E304."""
    if manifest.embedder != origin.embedder:
        raise errors.embedder_differs(manifest.kb_id, manifest.embedder, origin.embedder)
    if manifest.dimension != origin.dimension:
        raise errors.vector_size_differs(manifest.kb_id, manifest.dimension, origin.dimension)


def _key_of(changed: Sequence[PreparedDocument], hashes: Mapping[str, str], header: LinesHeader, embedder: str) -> str:
    """Of what is stored: the same part of the same file has the same one in the next run."""
    digest = hashlib.sha256(f"import {header.embedder} {header.has_vectors} {embedder}".encode())
    for each in changed:
        digest.update(hash_id(each.header.id) + bytes.fromhex(hashes[each.header.id]))
        digest.update(each.vectors.astype("<f4").tobytes())
    return digest.hexdigest()[:40]
