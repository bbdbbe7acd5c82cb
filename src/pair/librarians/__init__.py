"""Who answers? Librarians: answers with sources and confidence, and hand-over that always ends."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pair.librarians.contract import (
    Budget,
    Citation,
    Context,
    Delegate,
    DelegateRequest,
    ErrorCode,
    ErrorInfo,
    Librarian,
    LibrarianInfo,
    Provenance,
    Response,
    TraceContext,
    User,
)
from pair.librarians.rules import Permissions

if TYPE_CHECKING:
    from pair.librarians.dispatch import ask
    from pair.librarians.registry import Entry, Registry

# Whoever only speaks of librarians does not wait for asyncio.
_PLACES = {"ask": "dispatch", "Entry": "registry", "Registry": "registry"}

__all__ = [
    "Budget",
    "Citation",
    "Context",
    "Delegate",
    "DelegateRequest",
    "Entry",
    "ErrorCode",
    "ErrorInfo",
    "Librarian",
    "LibrarianInfo",
    "Permissions",
    "Provenance",
    "Registry",
    "Response",
    "TraceContext",
    "User",
    "ask",
]


def __getattr__(name: str) -> Any:
    place = _PLACES.get(name)
    if place is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{place}"), name)
