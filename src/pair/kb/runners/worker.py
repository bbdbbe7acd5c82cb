"""What a worker of a large load works with, wherever it runs."""

import dataclasses
import gc
import os
import tempfile
from pathlib import Path

from pair import errors, files, folders
from pair.ai.caching_embedder import CachingEmbedder
from pair.clock import SystemClock
from pair.engine.storage.shard_cache import ShardCache
from pair.engine.write.bulk_runner import Built, Task
from pair.engine.write.bulk_worker import PartBuilder
from pair.engine.write.prepare import Preparation
from pair.kb.open import blob_store, choose_embedder, grapher, new_id
from pair.settings import Settings

_SHARED_CACHE = Path(os.path.realpath(tempfile.gettempdir())) / f"pair-cache-{os.getuid()}"
_IDLE_SECONDS = 3600.0
"""After which what an earlier build left on the machine of a worker goes."""


@dataclasses.dataclass(frozen=True)
class Setup:
    """What a worker has to know. Travels between processes."""

    kb_id: str
    settings: Settings
    """Whose places are absolute: a worker may have been started elsewhere."""
    cache: str
    """Folder for shards. Empty for one among the temporary files of the machine that the worker is on."""


def part_builder(setup: Setup) -> PartBuilder:
    """In a worker: everything on one thread, for there are as many workers as cores."""
    settings, clock = setup.settings, SystemClock()
    embedding = CachingEmbedder(choose_embedder(settings, threads=1))
    store = blob_store(settings.engine.store, settings, clock)
    folder = Path(setup.cache) if setup.cache else _open_shared_cache()
    cache = ShardCache(store, folder, clock, ttl_seconds=0 if setup.cache else _IDLE_SECONDS)
    cache.keep_within_limits()
    return PartBuilder(
        setup.kb_id,
        settings.engine,
        store,
        Preparation(setup.kb_id, settings.engine.chunker, embedding, grapher(settings)),
        clock,
        new_id,
        cache,
    )


def _open_shared_cache() -> Path:
    """Return a folder for shards among the temporary files that no other user can write to. Raises E026."""
    with files.storage_errors(), folders.open_folder(_SHARED_CACHE, make=True) as descriptor:
        if os.fstat(descriptor).st_uid != os.getuid():
            raise folders.foreign_file(_SHARED_CACHE)
        os.fchmod(descriptor, 0o700)
    return _SHARED_CACHE


def answer_to(task: Task, builder: PartBuilder) -> Built | errors.PairError:
    """What was opened for it is closed again: whoever publishes a merge evicts what was merged."""
    gc.disable()  # millions of small values in no cycles: to look for some, again and again, takes a tenth of the time
    try:
        return builder.build(task)
    except errors.PairError as fault:
        return fault
    finally:
        builder.cache.close()
        gc.enable()
        gc.collect()
