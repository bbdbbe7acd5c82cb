"""The settings of librarians: how long, how deep and how much one question may cost."""

from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Ge, Gt, Le

from pair.values import LONGEST_WAIT_SECONDS

Positive = Annotated[int, Gt(0)]
Seconds = Annotated[float, Gt(0), Le(LONGEST_WAIT_SECONDS)]


@dataclass(frozen=True)
class LibrariansSettings:
    """How long, how deep and how much one question may cost, and when a librarian is left in peace."""

    entries: tuple[Any, ...] = ()
    """Who can be asked besides the KB itself: a list of librarians; `librarians` may be that list itself"""
    timeout_seconds: Seconds = 30.0
    """How long a question may take, with everybody who is asked, when nobody says otherwise"""
    max_depth: Annotated[int, Ge(0), Le(100)] = 5
    """How often a question may be handed on before somebody must answer"""
    max_calls: Positive = 50
    """Librarians that may be asked for one question, all together"""
    max_tokens: Positive = 200_000
    """Tokens that models may read and write for one question, all together; about 4 characters are one"""
    max_query_characters: Positive = 20_000
    """A longer question is refused"""
    breaker_window_seconds: Seconds = 60.0
    """How far back failures of a librarian are counted"""
    breaker_min_calls: Positive = 20
    """With fewer calls in that time a librarian is asked whatever happened"""
    breaker_failure_ratio: Annotated[float, Gt(0), Le(1)] = 0.5
    """From this share of failures on, a librarian is not asked for a while"""
    breaker_open_seconds: Seconds = 60.0
    """How long it is not asked"""
    breaker_successes: Positive = 5
    """How many answers in a row make it trusted again"""
