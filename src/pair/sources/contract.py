"""The events of a source, and the protocol to read a source."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True)
class Item:
    """A document of the source, new or changed."""

    id: str
    """The id. It is unique within the source, and does not change with the document."""
    content: bytes
    name: str = ""
    """The name of its file, or the last part of its URL. The suffix determines how the content is read."""
    content_type: str = ""
    charset: str | None = None
    title: str = ""
    """A title that replaces the one in the content, unless it is empty."""
    url: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)
    """Metadata to add to that of the content. On a conflict, this value counts."""


@dataclass(frozen=True)
class Unchanged:
    """A document that did not change since the source last reported it."""

    id: str


@dataclass(frozen=True)
class Deleted:
    """A document that the source no longer has."""

    id: str


@dataclass(frozen=True)
class Failed:
    """A document that cannot be read now; its stored version is kept."""

    id: str
    reason: str


@dataclass(frozen=True)
class Cursor:
    """The position of the next read, as a JSON value. It is saved once all events before it are applied."""

    value: Any


@dataclass(frozen=True)
class Complete:
    """The end of a complete read: documents that the source did not report are deleted."""


Event = Item | Unchanged | Deleted | Failed | Cursor | Complete


class SourceFault(Exception):  # noqa: N818 - the reason why a source could not be read to its end
    """A failed read, with the reason as message. Events before it count; documents that were not reported are kept."""


class Source(Protocol):
    def read(self, cursor: Any) -> Iterator[Event]:
        """Yield the changes since the cursor of the last read; None for the first read. Raises SourceFault."""
