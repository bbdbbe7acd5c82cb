"""Files, folders and JSON lines as documents for the engine."""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pair import errors, files
from pair.sync import source_text
from pair.sync.contract import Documents, UnreadableDocument
from pair.sync.discover import find_files
from pair.sync.source_text import FileTextReader
from pair.values import Document

_JSON_LINES = frozenset({".jsonl", ".ndjson"})
_STANDARD_INPUT = "-"


class DocumentLoader:
    """Documents one by one, in the order of their paths. `on_skip` hears of files that hold no text, and why."""

    def __init__(self, documents: Documents | None, on_skip: Callable[[str, str], None]) -> None:
        self._documents = documents
        self._on_skip = on_skip

    def read(self, paths: Sequence[str]) -> Iterator[Document]:
        """Raises E003 for a path that is not there, before anything is read; E213 for a line that is no document."""
        for path in paths:
            if path != _STANDARD_INPUT and not Path(path).exists():
                raise errors.source_path_missing(path)
        return self._all(paths)

    def _all(self, paths: Sequence[str]) -> Iterator[Document]:
        for path in paths:
            if path == _STANDARD_INPUT:
                yield from _lines_of(sys.stdin.buffer, "standard input")
            elif Path(path).is_dir():
                with files.storage_errors():
                    found = find_files(Path(path))
                for name in sorted(found.files):
                    yield from self._file(Path(path) / name, skips_blank=True)
            else:
                yield from self._file(Path(path), skips_blank=False)

    def _file(self, path: Path, *, skips_blank: bool) -> Iterator[Document]:
        """`skips_blank`: a file without text is skipped; otherwise it is refused where it is stored (E213)."""
        if path.suffix.lower() in _JSON_LINES:
            with files.storage_errors(), path.open("rb") as stream:
                yield from _lines_of(stream, str(path))
            return
        try:
            with files.storage_errors():
                content = FileTextReader(path.parent, 0, self._documents).text_of_any_size(path.name)
        except UnreadableDocument as fault:
            self._on_skip(str(path), str(fault))
            return
        if skips_blank and not content.strip():
            self._on_skip(str(path), "it holds no text")
            return
        yield Document(id=path.as_posix(), text=content, title=source_text.find_title(content) or path.name)


def _lines_of(stream: Any, name: str) -> Iterator[Document]:
    for number, line in enumerate(stream, 1):
        if line.strip():
            yield _document_of(line, f"{name}:{number}")


def _document_of(line: bytes, where: str) -> Document:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as fault:
        raise errors.document_invalid(where, "the line is not JSON") from fault
    if not isinstance(value, dict):
        raise errors.document_invalid(where, "the line is not a JSON object")
    unknown = value.keys() - {"id", "text", "title", "url", "metadata", "vector"}
    if unknown:
        raise errors.document_invalid(where, f"unknown fields: {', '.join(sorted(unknown))}")
    for field, kinds in (("id", str), ("text", str), ("title", str), ("url", str), ("metadata", dict)):
        if not isinstance(value.get(field, kinds()), kinds):
            raise errors.document_invalid(where, f"{field} is not {'an object' if kinds is dict else 'a text'}")
    if "id" not in value or "text" not in value:
        raise errors.document_invalid(where, "id and text are needed")
    vector = value.get("vector")
    if vector is not None and not (isinstance(vector, list) and all(isinstance(each, int | float) for each in vector)):
        raise errors.document_invalid(where, "vector is not a list of numbers")
    return Document(
        id=value["id"],
        text=value["text"],
        title=value.get("title", ""),
        url=value.get("url", ""),
        metadata=value.get("metadata", {}),
        vector=vector,
    )
