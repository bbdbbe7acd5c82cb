"""Imports of exports into a KB: with the exported chunks and vectors, or with texts cut and embedded again.

Invariants
    The whole file is verified before the first document is stored, and one swap publishes all documents.
    If the file has vectors of this KB's embedder, nothing is embedded: chunks, vectors, graphs, owners and content
    hashes are kept.
    A document that is already stored is not written again.
    If an import is interrupted, the next one finds the shards that it built, as a bulk load does.
"""

import hashlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from pair import errors
from pair.clock import to_timestamp
from pair.engine.backup.export import DocumentLines, LinesHeader
from pair.engine.format.columns import PreparedDocument, build_columns, hash_id
from pair.engine.format.manifest import Manifest, ShardRef, no_manifest
from pair.engine.storage.manifest_store import PendingShards, StoredManifest
from pair.engine.storage.shard_cache import ShardMissingError
from pair.engine.write.bulk_load import Built, deduplicate, require_records
from pair.engine.write.commit import Change, EngineContext, next_manifest, next_moment, refuse_lost_shard
from pair.engine.write.prepare import Batch, Preparation, embed_chunks, split_by_size
from pair.engine.write.writer import Writer, WriteReport, cut_shards, find_stored, refuse_other_embedder, scratch_folder
from pair.values import Document

_TRIES = 5
_NAMED = 10
_DOCUMENT_BYTES = 200
"""Estimated bytes of a document in addition to its text and vectors."""


class _OutdatedError(Exception):
    """A stored document changed during the import, so the import has to compare again."""


@dataclass(eq=False)
class Importer:
    """One import. Used once."""

    context: EngineContext
    writer: Writer
    preparation: Preparation
    records: PendingShards
    on_progress: Callable[[int, int], None]
    """Called with the number of finished documents and of all documents. Reading and building count half each."""
    _unchanged: dict[bytes, bytes] = field(default_factory=dict)
    """Content hashes of the documents that the KB and the file have in common, by identity."""

    def run(self, file: DocumentLines, *, replace_all: bool = False, embed: bool = False) -> WriteReport:
        """Import a file. `replace_all`: delete all other documents. `embed`: cut and embed texts again.

        Raises E224, E225, E226, E307, E304, E303, and the errors of a bulk load.
        """
        begun_with = self.context.manifests.current()
        self.writer = self.writer.since(begun_with.manifest.number if begun_with is not None else 0)
        header = file.header
        if header.embedder != self.preparation.embedding.name and not embed:
            raise errors.export_of_another_embedder(str(file.path), header.embedder, self.preparation.embedding.name)
        file.verify()
        if embed or not header.has_vectors:
            self._refuse_textless(file, embed=embed)
        for attempt in range(1, _TRIES + 1):
            before = self.context.manifests.read_for_write()
            try:
                return self._import(file, before, replace_all=replace_all, embed=embed)
            except _OutdatedError:
                pass
            except ShardMissingError as fault:
                refuse_lost_shard(self.context, before, fault)
            self.context.pause(attempt)
        raise errors.manifest_changed(self.context.kb_id)

    def _import(
        self, file: DocumentLines, before: StoredManifest | None, *, replace_all: bool, embed: bool
    ) -> WriteReport:
        origin = self._describe_origin(file.header, before, embed=embed)
        if before is not None and not replace_all:
            refuse_other_embedder(before.manifest, origin.embedder, origin.dimension)
        self._unchanged = {}
        built: list[Built] = []
        read = done = 0
        most_bytes = self.context.settings.build_part_bytes

        def count_bytes(document: PreparedDocument) -> int:
            nonlocal read
            read += 1
            self.on_progress((read + done) // 2, file.header.documents)
            return len(document.text.encode(errors="surrogatepass")) + document.vectors.nbytes + _DOCUMENT_BYTES

        for number, batch in enumerate(split_by_size(file.documents(), count_bytes, sys.maxsize, most_bytes)):
            hashes = {document.header.id: document.header.content_hash for document in batch}
            if embed:
                for own in self._split_by_owner(batch):
                    hashes |= self.preparation.hash_documents(own, before)
            changed = self._find_changed(batch, hashes, before, origin)
            if changed:
                built.append(self._build(number, changed, hashes, file.header, embed=embed))
            done += len(batch)
            self.on_progress((read + done) // 2, file.header.documents)
        report = self._publish(built, origin, replace_all=replace_all)
        for part in built:
            self.records.forget(part.record)
        return report

    def _describe_origin(self, header: LinesHeader, before: StoredManifest | None, *, embed: bool) -> Manifest:
        """Return an empty manifest with the embedder of the new vectors and of the content hashes."""
        if not embed:
            origin = no_manifest(self.context.kb_id, header.embedder, header.dimension)
            return replace(origin, hashed_as=header.hashed_as)
        origin = self.writer.empty_manifest()
        is_same = before is not None and before.manifest.embedder == origin.embedder
        return replace(origin, hashed_as=before.manifest.hashed_as) if before and is_same else origin

    def _refuse_textless(self, file: DocumentLines, *, embed: bool) -> None:
        """Raise E307 for documents that came with a vector and have no text to embed."""
        ids = [
            document.header.id
            for document in file.documents()
            if document.chunks and not (document.text if embed else document.text + document.header.title).strip()
        ]
        if ids:
            raise errors.documents_without_text(self.context.kb_id, ids[:_NAMED], len(ids))

    def _find_changed(
        self,
        batch: Sequence[PreparedDocument],
        hashes: Mapping[str, str],
        before: StoredManifest | None,
        origin: Manifest,
    ) -> list[PreparedDocument]:
        """Return the new and changed documents of the file, and note the others as unchanged."""
        if before is None or before.manifest.embedder != origin.embedder:
            return list(batch)
        stored = find_stored(before.manifest, self.context.cache, [document.header.id for document in batch])
        changed: list[PreparedDocument] = []
        for document in batch:
            name = document.header.id
            if name in stored and stored[name].content_hash == hashes[name]:
                self._unchanged[hash_id(name)] = bytes.fromhex(hashes[name])
            else:
                changed.append(document)
        return changed

    def _split_by_owner(self, documents: Sequence[PreparedDocument]) -> list[Batch]:
        by_owner: dict[str, list[Document]] = {}
        for document in documents:
            header = document.header
            by_owner.setdefault(header.owner, []).append(
                Document(header.id, document.text, header.title, header.url, header.metadata)
            )
        size = self.context.settings.chunk_bytes
        return [Batch(own, owner, size, {}, {}) for owner, own in by_owner.items()]

    def _build(
        self,
        number: int,
        changed: Sequence[PreparedDocument],
        hashes: Mapping[str, str],
        header: LinesHeader,
        *,
        embed: bool,
    ) -> Built:
        """Build and upload the shards of a part, unless an earlier run did."""
        context = self.context
        # The same part of the same file has the same key in the next run.
        models = f"import {header.embedder} {header.has_vectors} {self.preparation.embedding.name}"
        digest = hashlib.sha256(models.encode())
        for document in changed:
            digest.update(hash_id(document.header.id) + bytes.fromhex(hashes[document.header.id]))
            digest.update(document.vectors.astype("<f4").tobytes())
        key = digest.hexdigest()[:40]
        earlier = self.records.find(key)
        if earlier is not None:
            return Built(number, *earlier)
        prepared = list(changed)
        if embed:
            by_id: dict[str, PreparedDocument] = {}
            for batch in self._split_by_owner(changed):
                by_id |= self.preparation.prepare(batch, batch.documents, hashes)
            prepared = [by_id[document.header.id] for document in changed]
        elif not header.has_vectors:
            prepared = embed_chunks(self.preparation.embedding, changed)
        dimension = self.preparation.embedding.dimension if embed else header.dimension
        with scratch_folder(context.cache) as folder:
            documents = build_columns(prepared, dimension)
            shards = cut_shards(folder, context.kb_id, documents, context.new_id(), context.settings)
            created_at = to_timestamp(context.clock.now())
            refs = tuple(replace(shard.ref, created_at=created_at) for shard in shards)
            record = self.records.announce(key, refs, dimension)
            context.manifests.upload(shards)
        return Built(number, record, refs)

    def _publish(self, built: Sequence[Built], origin: Manifest, *, replace_all: bool) -> WriteReport:
        cache, commit_id = self.context.cache, self.context.new_id()
        fresh = deduplicate(built, cache, self.context.kb_id)

        def change(manifest: Manifest) -> Change[WriteReport]:
            require_records(self.records, built, manifest)
            if not replace_all:
                refuse_other_embedder(manifest, origin.embedder, origin.dimension)
            kept, replaced = fresh.remove_from(manifest.shards, cache)
            added = fresh.missing_in(manifest)
            deleted = 0
            if replace_all:
                # Another import may have published some of the new shards already.
                folders = {shard.folder for shard in fresh.shards}
                own = [shard for shard in fresh.shards if shard not in added]
                others = [shard for shard in manifest.shards if shard.folder not in folders]
                unchanged = self._keep_unchanged(others, manifest, origin)
                deleted = _count_live(others) - _count_live(unchanged) - replaced
                kept = [*unchanged, *own]
            report = WriteReport(
                added=len(fresh.identities) - replaced,
                replaced=replaced,
                unchanged=len(self._unchanged),
                deleted=deleted,
                chunks=fresh.chunks,
            )
            if not (added or deleted or (replace_all and manifest.embedder != origin.embedder)):
                return Change(None, report)
            shards = [*kept, *added]
            if not replace_all:
                return Change(next_manifest(self.context, manifest, shards, "import", commit_id), report)
            moment = next_moment(self.context, manifest, shards)
            return Change(manifest.make_imported(commit_id, moment, shards, origin), report)

        return self.writer.write(change, empty=origin)

    def _keep_unchanged(self, shards: Sequence[ShardRef], manifest: Manifest, origin: Manifest) -> list[ShardRef]:
        """Return these shards without the documents that the file lacks."""
        if not self._unchanged:
            return []
        if manifest.embedder != origin.embedder:
            raise _OutdatedError
        identities = np.frombuffer(b"".join(self._unchanged.keys()), "<u8").reshape(-1, 2)
        hashes = np.frombuffer(b"".join(self._unchanged.values()), "<u8").reshape(-1, 2)
        kept: list[ShardRef] = []
        for shard in shards:
            directory = self.context.cache.open(shard).ids()
            lines = directory.find(identities)
            here = np.flatnonzero(lines >= 0)
            same = here[(directory.hashes_at(lines[here])[1] == hashes[here]).all(axis=1)]
            gone = np.setdiff1d(np.arange(shard.documents), directory.numbers_at(lines[same]))
            kept.append(shard.without(gone))
        if _count_live(kept) != len(hashes):
            raise _OutdatedError
        return [shard for shard in kept if shard.live_documents]


def _count_live(shards: Sequence[ShardRef]) -> int:
    return sum(shard.live_documents for shard in shards)
