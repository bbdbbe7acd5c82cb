"""What a worker does: prepare a part of a load, or merge shards; build what comes of it, and upload it.

Not here
    Publishing: building.py and compaction.py, in the one process that has everything.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pair import errors
from pair.blobs.contract import BlobStore
from pair.clock import Clock, to_timestamp
from pair.engine.format.columns import build_columns
from pair.engine.format.shard_builder import BuiltShard
from pair.engine.settings import EngineSettings
from pair.engine.storage.pending_shards import PendingShards
from pair.engine.storage.shard_cache import ShardCache, ShardMissingError
from pair.engine.write.bulk_runner import BuildPart, Built, Task
from pair.engine.write.prepare import Preparation
from pair.engine.write.writer import cut_shards, merged_shard, scratch_folder


@dataclass(frozen=True, slots=True)
class PartBuilder:
    kb_id: str
    policy: EngineSettings
    store: BlobStore
    preparation: Preparation
    clock: Clock
    new_id: Callable[[], str]
    cache: ShardCache

    def build(self, task: Task) -> Built:
        """Raises ModelError, E202, E206, E010, E305."""
        with scratch_folder(self.cache) as folder:
            if isinstance(task, BuildPart):
                return self._uploaded(task.number, task.key, self._shards_of(folder, task))
            try:
                merged = merged_shard(folder, self.kb_id, task, self.cache)
            except ShardMissingError as fault:
                raise errors.manifest_changed(self.kb_id) from fault
            return self._uploaded(task.number, f"{task.commit_id}-{task.number}", [merged])

    def _shards_of(self, folder: Path, part: BuildPart) -> list[BuiltShard]:
        prepared = self.preparation.prepared(part.batch, part.batch.documents, part.hashes)
        documents = build_columns(list(prepared.values()), self.preparation.embedding.dimension)
        prepared.clear()
        return cut_shards(folder, self.kb_id, documents, self.new_id(), self.policy)

    def _uploaded(self, number: int, key: str, built: Sequence[BuiltShard]) -> Built:
        created_at = to_timestamp(self.clock.now())
        shards = tuple(replace(each.ref, created_at=created_at) for each in built)
        records = PendingShards(self.store, self.kb_id, self.new_id)
        record = records.announce(key, shards, self.preparation.embedding.dimension)
        for each in built:
            for role, path in each.paths.items():
                self.store.upload(each.ref.key(role), path)
        return Built(number, record, shards)


@dataclass(frozen=True, slots=True)
class LocalRunner:
    """Builds one part after another in this process and thread."""

    builder: PartBuilder
    workers: int = 1

    def expect_work(self) -> None:
        pass

    def built(self, tasks: Iterator[Task]) -> Iterator[Built]:
        return map(self.builder.build, tasks)
