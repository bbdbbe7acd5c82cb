"""What a source reports when it is read, and how a source is read."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True)
class Item:
    """A document of the source, new or changed."""

    id: str
    """Unique within the source. It stays the same when the document changes."""
    content: bytes
    name: str = ""
    """Of its file, or the last part of its address. Its suffix says how the content is read."""
    content_type: str = ""
    charset: str | None = None
    title: str = ""
    """Replaces the title in the content, unless it is empty."""
    url: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)
    """Added to the metadata in the content; on a conflict, this value counts."""


@dataclass(frozen=True)
class Unchanged:
    """A document that is as the source reported it before."""

    id: str


@dataclass(frozen=True)
class Deleted:
    """A document that the source no longer has."""

    id: str


@dataclass(frozen=True)
class Failed:
    """A document that cannot be read now; what was stored of it stays."""

    id: str
    reason: str


@dataclass(frozen=True)
class Cursor:
    """Where to continue: a JSON value that the next read gets. It counts if the read is applied up to here."""

    value: Any


@dataclass(frozen=True)
class Complete:
    """The source has reported all of its documents: those that it did not mention are deleted."""


Event = Item | Unchanged | Deleted | Failed | Cursor | Complete


class SourceFault(Exception):  # noqa: N818 - the reason why a source could not be read to its end
    """The message says why. Events before it count; documents that were not mentioned stay."""


class Source(Protocol):
    def read(self, cursor: Any) -> Iterator[Event]:
        """Yield what changed since the cursor of the last read; None for the first. Raises SourceFault."""
        ...
