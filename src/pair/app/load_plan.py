"""What load a server is given."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Plan:
    seconds: float
    connections: int
    rate: float = 0.0
    """Requests a second, whether answers come or not; 0 for as many as are answered."""


@dataclass(frozen=True, slots=True)
class Asking:
    kb_id: str
    plan: Plan
    file: str | None = None
    """Lines of text, or of JSON with `text` or `query`; None for queries made of the titles of documents."""
    is_unique: bool = False
    """Each query differs from all others, so that none is answered from memory."""
