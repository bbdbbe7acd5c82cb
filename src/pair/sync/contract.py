"""Protocols that you may implement: the source of pages, and observers of a run."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from pair.reading.contract import Reading


@dataclass(frozen=True)
class FetchedPage:
    reading: Reading
    etag: str | None
    last_modified: str | None
    size_bytes: int
    validated_at: str | None = None
    """The origin that gave the validators, if redirects led to another one."""


class NotModified:
    """The result for HTTP 304."""


class Pages(Protocol):
    def fetch(
        self, url: str, *, etag: str | None, last_modified: str | None, validated_at: str | None = None
    ) -> FetchedPage | NotModified:
        """Send one conditional request. Raises PageFault of pair.network. Called from several threads at once."""


@runtime_checkable
class SyncObserver(Protocol):
    """An observer of the messages and the progress of a sync."""

    def say(self, text: str) -> None:
        """Show a message to the user."""

    def planned(self, total: int, phase: str = "reading") -> None:
        """Note the number of sources that a phase works on: "reading", then "storing"."""

    def finished(self, source_id: str) -> None:
        """Note that one of these sources is read and saved, or stored."""
