"""Files as text: which of them are sources, and why the others are not."""  # sync-11

import os
from dataclasses import dataclass
from pathlib import Path

from pair.sync import text
from pair.sync.contract import Documents, UnreadableDocument
from pair.sync.rules import FileSeen

DOCUMENT_SUFFIXES = frozenset({".pdf", ".docx", ".html", ".htm"})
_NEEDS_DOCUMENTS = frozenset({".pdf", ".docx"})
_TOO_LARGE = "larger than"


@dataclass(frozen=True)
class FileTextReader:
    """`documents` is None when its extra is not installed."""

    folder: Path
    max_bytes: int
    documents: Documents | None

    def text_of(self, path: str, seen: FileSeen) -> str:
        """Raises UnreadableDocument for a file that is no source, with the reason; OSError."""
        if seen.size_bytes > self.max_bytes:
            raise UnreadableDocument(f"{_TOO_LARGE} {self.max_bytes:,} bytes")
        return self.text_of_any_size(path)

    def text_of_any_size(self, path: str) -> str:
        """Raises as `text_of` does."""
        suffix = _suffix_of(path)
        if suffix in DOCUMENT_SUFFIXES and self.documents is not None:
            return self.documents.text_of(self.folder / path)
        if suffix in _NEEDS_DOCUMENTS:
            raise UnreadableDocument(_document_reason(path))
        decoded = text.decode((self.folder / path).read_bytes())
        if decoded is None:
            raise UnreadableDocument("not UTF-8 text")
        return decoded

    def may_read_now(self, path: str, reason: str, size_bytes: int) -> bool:
        """What was no source may be one now: the extra was installed, the limit raised."""
        if reason == _document_reason(path):
            return self.documents is not None
        return reason.startswith(_TOO_LARGE) and size_bytes <= self.max_bytes


def _suffix_of(path: str) -> str:
    return os.path.splitext(path)[1].lower()  # noqa: PTH122 - no Path for each of 20,000 files


def _document_reason(path: str) -> str:
    return f"{_suffix_of(path)} files need an extra: pip install 'pair-kb[documents]'"
