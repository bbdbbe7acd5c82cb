"""The result of reading a document, and the error for a document that is refused."""

from dataclasses import dataclass, field
from typing import Any, Protocol

OLE_MAGIC = bytes.fromhex("d0cf11e0a1b11ae1")
"""The first bytes of old and of encrypted Office files."""
OCR_CPU_SECONDS = 600
"""Time and memory for OCR of a document, in addition to the limits of its conversion."""
OCR_MEMORY_BYTES = 1_000_000_000


@dataclass(frozen=True)
class Reading:
    """The text of a document as Markdown, its title and its metadata."""

    text: str
    """The text. Pages of a PDF are separated by a form feed."""
    title: str = ""
    """The title; empty if the document has none. The caller then uses the file name."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """Metadata: JSON values that filters can use."""


class UnreadableDocument(Exception):  # noqa: N818 - the reason why a file is skipped, or a page failed
    """A document that cannot be read; the message has the reason. `is_passing`: it may be readable next time."""

    def __init__(self, reason: str, *, is_passing: bool = False) -> None:
        super().__init__(reason)
        self.is_passing = is_passing


class Reader(Protocol):
    def read(self, content: bytes, name: str, content_type: str = "", charset: str | None = None) -> Reading:
        """Read a document. Raises UnreadableDocument. Called from several threads at once."""
