"""Who answers? Librarians: answers with sources and confidence, and hand-over that always ends."""

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

__all__ = [
    "Budget",
    "Citation",
    "Context",
    "Delegate",
    "DelegateRequest",
    "ErrorCode",
    "ErrorInfo",
    "Librarian",
    "LibrarianInfo",
    "Provenance",
    "Response",
    "TraceContext",
    "User",
]
