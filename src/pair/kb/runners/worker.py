"""What a worker of a bulk load does, wherever it runs."""

import dataclasses
import gc
import os
import tempfile
from pathlib import Path

from pair import errors, files
from pair.ai.caching_embedder import CachingEmbedder
from pair.clock import SystemClock
from pair.engine.storage.shard_cache import ShardCache
from pair.engine.write.bulk_load import Built, PartBuilder, Task
from pair.engine.write.prepare import Preparation
from pair.kb.open import blob_store, choose_embedder, grapher, new_id
from pair.settings import Settings

_SHARED_CACHE = Path(os.path.realpath(tempfile.gettempdir())) / f"pair-cache-{os.getuid()}"
_IDLE_SECONDS = 3600.0
"""How long shards of earlier loads stay on the machine of a worker."""


@dataclasses.dataclass(frozen=True)
class Setup:
    """What a worker has to know. It is sent between processes."""

    kb_id: str
    settings: Settings
    """With absolute paths: a worker may run in another folder."""
    cache: str
    """Folder for shards. Empty for a temporary one on the machine of the worker."""


def make_part_builder(setup: Setup) -> PartBuilder:
    """Return a builder that uses one thread: there are as many workers as cores."""
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
    with files.storage_errors(), files.open_folder(_SHARED_CACHE, make=True) as descriptor:
        if os.fstat(descriptor).st_uid != os.getuid():
            raise files.foreign_file(_SHARED_CACHE)
        os.fchmod(descriptor, 0o700)
    return _SHARED_CACHE


def build_part(task: Task, builder: PartBuilder) -> Built | errors.PairError:
    """Build one part, and close the shards that were opened for it: the driver evicts merged ones."""
    gc.disable()  # searching millions of small values for cycles takes a tenth of the time
    try:
        return builder.build(task)
    except errors.PairError as fault:
        return fault
    finally:
        builder.cache.close()
        gc.enable()
        gc.collect()
