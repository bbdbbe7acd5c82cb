"""What a worker does with a part of a load: prepare it, build its shards, upload them.

Not here
    Publishing: building.py, in the one process that has all parts.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from pair import files
from pair.blobs.contract import BlobStore
from pair.clock import Clock, to_timestamp
from pair.engine.build_records import BuildRecords
from pair.engine.contract import BuiltPart, Part
from pair.engine.policy import EnginePolicy
from pair.engine.preparation import Preparation
from pair.engine.stored_documents import store_form
from pair.engine.writing import cut_shards


@dataclass(frozen=True, slots=True)
class PartBuilder:
    kb_id: str
    policy: EnginePolicy
    store: BlobStore
    preparation: Preparation
    clock: Clock
    new_id: Callable[[], str]
    scratch: Path
    """A folder where there is room for shards, which others may use too."""

    def build(self, part: Part) -> BuiltPart:
        """Raises ModelError, E206, E010, E305."""
        dimension = self.preparation.embedding.dimension
        prepared = self.preparation.prepared(part.batch, part.batch.documents, part.hashes)
        documents = store_form(list(prepared.values()), dimension)
        prepared.clear()
        with files.storage_errors(), files.scratch_folder(self.scratch) as folder:
            built = cut_shards(folder, self.kb_id, documents, self.new_id(), self.policy)
            created_at = to_timestamp(self.clock.now())
            shards = tuple(replace(each.ref, created_at=created_at) for each in built)
            record = BuildRecords(self.store, self.kb_id, self.new_id).announce(part.key, shards, dimension)
            for each in built:
                for role, path in each.paths.items():
                    self.store.upload(each.ref.key(role), path)
        return BuiltPart(part.number, record, shards)
