"""Ingest: read files, folders and JSON lines as documents, and store them, with workers for large loads."""

import dataclasses
import importlib.util
import itertools
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pair import errors, files
from pair.kb.open import OBJECT_STORES, cores, open_kb, open_reader
from pair.reading.contract import UnreadableDocument
from pair.reading.process import read_ahead
from pair.settings import Settings
from pair.sync.discover import find_files
from pair.sync.source_text import make_document
from pair.values import Document

if TYPE_CHECKING:
    from pair.engine.write.bulk_load import BuildProgress
    from pair.engine.write.writer import WriteReport
    from pair.kb.runners import ProcessRunner, RayRunner

RunnerKind = Literal["local", "ray"]
_WORTH_WORKERS_BYTES = 4 << 20
"""Minimum size of a load with several processes. A smaller load would take longer (docs/decisions/0021-large-loads.md).
"""
_JSON_LINES = frozenset({".jsonl", ".ndjson"})
_STANDARD_INPUT = "-"
_NO_TEXT = "it holds no text"
_FIELDS = {"id": str, "text": str, "title": str, "url": str, "metadata": dict}


# ── reading documents ──────────────────────────────────────────────────────────────────────────────


def read_documents(paths: Sequence[str], on_skip: Callable[[str, str], None]) -> Iterator[Document]:
    """Read files, folders and JSON lines as documents, in the order of their paths.

    `on_skip` is called with each file that has no text, and the reason. Raises E003 for a missing path before anything
    is read; E213 for a line that is not a document.
    """
    for path in paths:
        if path != _STANDARD_INPUT and not Path(path).exists():
            raise errors.source_path_missing(path)
    return itertools.chain.from_iterable(_read_path(path, on_skip) for path in paths)


def _read_path(path: str, on_skip: Callable[[str, str], None]) -> Iterator[Document]:
    if path == _STANDARD_INPUT:
        yield from _read_lines(sys.stdin.buffer, "standard input")
    elif Path(path).is_dir():
        with files.storage_errors():
            listing = find_files(Path(path))
        names = [Path(path) / name for name in sorted(listing.files)]
        for name, read in zip(names, read_ahead(_read_file, names), strict=True):
            yield from _list_documents(name, read, on_skip)
    else:
        read = _read_file(Path(path))
        if isinstance(read, UnreadableDocument) and str(read) == _NO_TEXT:
            read = Document(id=Path(path).as_posix(), text="")  # A file that the caller named is refused with E213.
        yield from _list_documents(Path(path), read, on_skip)


def read_document(content: bytes, name: str, content_type: str = "", charset: str | None = None) -> Document:
    """Return an uploaded file as a document whose id is its name. Raises UnreadableDocument."""
    reading = open_reader().read(content, name, content_type, charset)
    if not reading.text.strip():
        raise UnreadableDocument(_NO_TEXT)
    return dataclasses.replace(make_document(name, reading), metadata=reading.metadata)


def _read_file(path: Path) -> Document | UnreadableDocument | None:
    """Return a file as a document, or the reason why it is skipped; None for JSON lines, which are read one by one."""
    if path.suffix.lower() in _JSON_LINES:
        return None
    try:
        with files.storage_errors():
            return dataclasses.replace(read_document(path.read_bytes(), path.name), id=path.as_posix())
    except UnreadableDocument as fault:
        return fault


def _list_documents(
    path: Path, read: Document | UnreadableDocument | None, on_skip: Callable[[str, str], None]
) -> Iterator[Document]:
    if read is None:
        with files.storage_errors(), path.open("rb") as stream:
            yield from _read_lines(stream, str(path))
    elif isinstance(read, UnreadableDocument):
        on_skip(str(path), str(read))
    else:
        yield read


def _read_lines(stream: Any, name: str) -> Iterator[Document]:
    for number, line in enumerate(stream, 1):
        if line.strip():
            yield _parse_document(line, f"{name}:{number}")


def _parse_document(line: bytes, where: str) -> Document:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as fault:
        raise errors.document_invalid(where, "the line is not JSON") from fault
    if not isinstance(value, dict):
        raise errors.document_invalid(where, "the line is not a JSON object")
    unknown = value.keys() - {*_FIELDS, "vector"}
    if unknown:
        raise errors.document_invalid(where, f"unknown fields: {', '.join(sorted(unknown))}")
    for field, kind in _FIELDS.items():
        if not isinstance(value.get(field, kind()), kind):
            raise errors.document_invalid(where, f"{field} is not {'an object' if kind is dict else 'a string'}")
    if "id" not in value or "text" not in value:
        raise errors.document_invalid(where, "id and text are required")
    vector = value.get("vector")
    if vector is not None and not (isinstance(vector, list) and all(isinstance(item, int | float) for item in vector)):
        raise errors.document_invalid(where, "vector is not a list of numbers")
    return Document(**value)


# ── storing documents ───────────────────────────────────────────────────────────────────────────────────


@dataclasses.dataclass(frozen=True)
class Ingestion:
    runner: Literal["auto", "plain", "local", "ray"]
    workers: int
    """Number of workers; 0 for the setting."""
    chunk_size: int | None
    on_progress: "Callable[[BuildProgress], None]"


def ingest(kb_id: str, documents: Iterator[Document], settings: Settings, how: Ingestion) -> "WriteReport":
    """Store documents; with workers if requested, or by default if the load is large."""
    from pair.engine.write.bulk_load import BuildProgress  # noqa: PLC0415 - loads the engine

    kind, stored = how.runner, 0
    if kind == "auto":
        is_large, documents = _is_large(documents, settings)
        kind = "local" if is_large else "plain"

    def note_batch(report: "WriteReport") -> None:
        nonlocal stored
        stored += report.added + report.replaced + report.unchanged
        how.on_progress(BuildProgress(stored, stored, 1))

    with open_kb(kb_id, settings=settings) as kb:
        if kind == "plain":
            return kb.upsert(documents, chunk_size=how.chunk_size, on_batch=note_batch)
        with runner(kind, kb_id, settings, how.workers) as workers:
            return kb.maintenance.build(documents, workers, chunk_size=how.chunk_size, on_progress=how.on_progress)


def _is_large(documents: Iterator[Document], settings: Settings) -> tuple[bool, Iterator[Document]]:
    """Return whether the load is large, and all documents, some of which were read to find out."""
    from pair.engine.write.prepare import estimate_bytes  # noqa: PLC0415 - loads the engine

    if (settings.engine.build_workers or cores()) == 1 or settings.engine.store == "memory:":
        return False, documents
    read: list[Document] = []
    size = 0
    for document in documents:
        read.append(document)
        size += estimate_bytes(document)
        if size > _WORTH_WORKERS_BYTES:
            return True, itertools.chain(read, documents)
    return False, iter(read)


def runner(kind: RunnerKind, kb_id: str, settings: Settings, workers: int = 0) -> "ProcessRunner | RayRunner":
    """Return the runner as a context manager. `workers`: 0 for the setting. Raises E401."""
    from pair.kb.runners import ProcessRunner, RayRunner, Setup  # noqa: PLC0415 - only where they are used

    engine = settings.engine
    if engine.store == "memory:":
        raise errors.settings_invalid("engine.store", "other processes cannot write to a store in memory")
    store = engine.store if engine.store.startswith(OBJECT_STORES) else str(files.expand_path(engine.store).absolute())
    cache = str(files.expand_path(engine.cache_dir).absolute())
    placed = dataclasses.replace(settings, engine=dataclasses.replace(engine, store=store, cache_dir=cache))
    count = workers or engine.build_workers
    if kind == "local":
        return ProcessRunner(Setup(kb_id, placed, cache), count or cores(), engine.build_attempts)
    if importlib.util.find_spec("ray") is None:
        raise errors.settings_invalid("--runner", "ray needs an extra", hints=["pip install 'pair-kb[ray]'"])
    return RayRunner(Setup(kb_id, placed, "" if engine.ray_address else cache), count, engine.build_attempts)
