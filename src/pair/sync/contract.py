"""What you may implement: the sources of pages and documents, and observers of a run."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True)
class FetchedPage:
    text: str
    etag: str | None
    last_modified: str | None
    size_bytes: int
    validated_at: str | None = None
    """The origin that gave the validators, if redirects led to another one."""


class NotModified:
    """HTTP 304."""


class Pages(Protocol):
    def fetch(
        self, url: str, *, etag: str | None, last_modified: str | None, validated_at: str | None = None
    ) -> FetchedPage | NotModified:
        """One conditional request; raises PageFault of pair.network. Called from several threads at once."""
        ...


class UnreadableDocument(Exception):  # noqa: N818 - the reason why a file is skipped, or a page failed
    """The message says why. `is_passing`: the document is not at fault, and may be readable next time."""

    def __init__(self, reason: str, *, is_passing: bool = False) -> None:
        super().__init__(reason)
        self.is_passing = is_passing


class Documents(Protocol):
    def text_of(self, path: Path) -> str:
        """Text of a file that is no plain text; raises UnreadableDocument."""
        ...


class SyncObserver(Protocol):
    def say(self, text: str) -> None:
        """Show a message to the user."""
        ...

    def planned(self, total: int) -> None:
        """Note the number of sources that the run works on."""
        ...

    def finished(self, source_id: str) -> None:
        """Note that one of these sources is done, and saved."""
        ...
