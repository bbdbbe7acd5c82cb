"""Storing documents, by workers where that is wanted or worth it; and who the workers are."""

import dataclasses
import importlib.util
import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Literal

from pair import errors, files
from pair.kb.open import OBJECT_STORES, cores, open_kb
from pair.settings import Settings
from pair.values import Document

if TYPE_CHECKING:
    from pair.engine.write.bulk_load import BuildProgress
    from pair.engine.write.writer import WriteReport
    from pair.kb.runners.processes import ProcessRunner
    from pair.kb.runners.ray import RayRunner

RunnerKind = Literal["local", "ray"]
_WORTH_WORKERS_BYTES = 4 << 20
"""Of documents: with fewer, processes take longer to start than they save (docs/decisions/0021-large-loads.md)."""


@dataclasses.dataclass(frozen=True)
class Ingestion:
    runner: Literal["auto", "plain", "local", "ray"]
    workers: int
    """0 for what the settings say."""
    chunk_size: int | None
    on_progress: "Callable[[BuildProgress], None]"


def runner(kind: RunnerKind, kb_id: str, settings: Settings, workers: int = 0) -> "ProcessRunner | RayRunner":
    """A context manager. `workers`: 0 for what the settings say. Raises E401."""
    from pair.kb.runners.worker import Setup  # noqa: PLC0415 - loads the engine

    engine = settings.engine
    if engine.store == "memory:":
        raise errors.settings_invalid("engine.store", "what is in the memory of one process cannot be built by others")
    store = engine.store if engine.store.startswith(OBJECT_STORES) else str(files.expanded(engine.store).absolute())
    cache = files.expanded(engine.cache_dir).absolute()
    placed = dataclasses.replace(settings, engine=dataclasses.replace(engine, store=store, cache_dir=str(cache)))
    count = workers or engine.build_workers or cores()
    if kind == "local":
        from pair.kb.runners.processes import ProcessRunner  # noqa: PLC0415 - see the package's first lines

        return ProcessRunner(Setup(kb_id, placed, str(cache)), count, engine.build_attempts)
    if importlib.util.find_spec("ray") is None:
        raise errors.settings_invalid("--runner", "ray needs an extra", hints=["pip install 'pair-kb[ray]'"])
    from pair.kb.runners.ray import RayRunner  # noqa: PLC0415

    shared = "" if engine.ray_address else str(cache)
    return RayRunner(Setup(kb_id, placed, shared), workers or engine.build_workers, engine.build_attempts)


def ingest(kb_id: str, documents: Iterator[Document], settings: Settings, how: Ingestion) -> "WriteReport":
    """By workers where they are wanted, or where nobody said and they pay for themselves."""
    kind = how.runner
    if kind == "auto":
        is_large, documents = _is_large(documents, settings)
        kind = "local" if is_large else "plain"
    with open_kb(kb_id, settings=settings) as kb:
        if kind == "plain":
            return kb.upsert(documents, chunk_size=how.chunk_size, on_batch=_counting(how.on_progress))
        with runner(kind, kb_id, settings, how.workers) as workers:
            return kb.build(documents, workers, chunk_size=how.chunk_size, on_progress=how.on_progress)


def _is_large(documents: Iterator[Document], settings: Settings) -> tuple[bool, Iterator[Document]]:
    """Whether several processes would pay for themselves; and the documents, of which some were read to find out."""
    from pair.engine.write.prepare import size_of  # noqa: PLC0415 - see the package's first lines

    if (settings.engine.build_workers or cores()) == 1 or settings.engine.store == "memory:":
        return False, documents
    read: list[Document] = []
    size = 0
    for document in documents:
        read.append(document)
        size += size_of(document)
        if size > _WORTH_WORKERS_BYTES:
            return True, itertools.chain(read, documents)
    return False, iter(read)


def _counting(on_progress: "Callable[[BuildProgress], None]") -> "Callable[[WriteReport], None]":
    from pair.engine.write.bulk_load import BuildProgress  # noqa: PLC0415 - see the package's first lines

    stored = 0

    def note(report: "WriteReport") -> None:
        nonlocal stored
        stored += report.added + report.replaced + report.unchanged
        on_progress(BuildProgress(stored, stored, 1))

    return note
