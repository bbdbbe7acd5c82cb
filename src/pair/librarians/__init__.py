"""Librarians: answers with sources and confidence, and delegation that always ends."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
    from pair.librarians.dispatch import ask
    from pair.librarians.registry import Entry, Registry
    from pair.librarians.rules import Permissions

# Loaded late, so that reading settings does not import asyncio and the dispatcher.
_PLACES = {"ask": "dispatch", "Entry": "registry", "Registry": "registry", "Permissions": "rules"}
_ELSE = "contract"

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
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PLACES.get(name, _ELSE)}"), name)
