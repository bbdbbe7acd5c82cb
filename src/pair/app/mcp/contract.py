"""What tools and resources need: knowledge bases, as one caller may use them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from pair.engine.query.documents import StoredDocument
from pair.engine.query.request import Hits
from pair.librarians.contract import Response
from pair.values import DEFAULT_MODE, Document, SearchMode


@dataclass(frozen=True)
class SearchCall:
    """A search."""

    query: str
    limit: int
    mode: SearchMode = DEFAULT_MODE
    filter: dict[str, Any] = field(default_factory=dict)
    at: str = ""
    """The version that is searched; "" for the current one."""


class Library(Protocol):
    """For one caller: what it may not use raises E603. "" for a KB is the one that is used where none is named."""

    @property
    def may_write(self) -> bool: ...

    @property
    def result_tokens(self) -> int:
        """How long results may be."""
        ...

    def named(self, kb: str) -> str:
        """The name of a KB. Raises E603."""
        ...

    async def search(self, kb: str, wanted: SearchCall) -> Hits:
        """Raises E218."""
        ...

    async def document(self, kb: str, document_id: str, at: str) -> StoredDocument:
        """As it was in a version, or as it is with "". Raises E214, E218."""
        ...

    async def documents(self, kb: str, after: str, limit: int) -> list[StoredDocument]:
        """By id, from the first behind `after`."""
        ...

    async def ask(self, kb: str, query: str) -> Response: ...

    async def kbs(self) -> list[dict[str, Any]]:
        """Figures of each, by name."""
        ...

    async def ingest(self, kb: str, documents: Sequence[Document]) -> dict[str, Any]:
        """Documents without an id get one."""
        ...

    async def delete(self, kb: str, document_id: str) -> dict[str, Any]:
        """Raises E214."""
        ...

    def note(self, *, tool: str = "", error: str = "") -> None:
        """For the log: which tool, and the code of what went wrong."""
        ...
