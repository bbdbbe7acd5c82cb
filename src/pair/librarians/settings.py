"""The settings of librarians: limits of one question and the circuit breaker."""

from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Ge, Gt, Le

from pair.values import LONGEST_WAIT_SECONDS

Positive = Annotated[int, Gt(0)]
Seconds = Annotated[float, Gt(0), Le(LONGEST_WAIT_SECONDS)]


@dataclass(frozen=True)
class LibrariansSettings:
    """Settings of librarians: the limits of one question, and the circuit breaker."""

    entries: tuple[Any, ...] = ()
    """List of librarians in addition to those of the knowledge bases. `librarians` itself can be this list."""
    timeout_seconds: Seconds = 30.0
    """Maximum time for a question, including delegations, unless the request sets another."""
    max_depth: Annotated[int, Ge(0), Le(100)] = 5
    """Maximum number of times a question is delegated."""
    max_calls: Positive = 50
    """Maximum number of librarian calls for one question."""
    max_tokens: Positive = 200_000
    """Maximum number of model tokens, read and written, for one question. A token is about 4 characters."""
    max_query_characters: Positive = 20_000
    """Maximum length of a question."""
    breaker_window_seconds: Seconds = 60.0
    """Time window in which the circuit breaker counts failures of a librarian."""
    breaker_min_calls: Positive = 20
    """Minimum number of calls in the window before the breaker can open."""
    breaker_failure_ratio: Annotated[float, Gt(0), Le(1)] = 0.5
    """Open the breaker at this share of failed calls."""
    breaker_open_seconds: Seconds = 60.0
    """Time that the breaker stays open before it tries the librarian again."""
    breaker_successes: Positive = 5
    """Number of successful calls in a row that close the breaker."""
    receipt_key: str = ""
    """Minisign secret key that signs receipts of answers. PAIR_SIGN_PASSWORD is its password."""
