"""Librarians by name, each with its permissions, limits and circuit breaker.

Invariants
    A registry is immutable.
"""

import functools
import inspect
import re
import secrets
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from pair import errors
from pair.clock import Clock, SystemClock
from pair.librarians.contract import Delegate, ErrorCode, LibrarianInfo, Response, User
from pair.librarians.rules import Permissions, is_number
from pair.librarians.settings import LibrariansSettings

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_MAX_CACHED = 256

Function: TypeAlias = Callable[..., Awaitable[Response]]
"""A `Librarian`; the context parameter is optional."""


FAILURES = frozenset(
    {
        ErrorCode.INTERNAL_ERROR,
        ErrorCode.TIMEOUT,
        ErrorCode.SERVICE_UNAVAILABLE,
        ErrorCode.DATA_SOURCE_ERROR,
        ErrorCode.AI_UNAVAILABLE,
        ErrorCode.DELEGATION_FAILED,
    }
)
"""The codes, raised or returned, that count as failures of the librarian. Errors of the caller do not count."""


class CircuitBreaker:
    """A circuit breaker: closed, open or half-open.

    An open breaker becomes half-open after a pause. Then successes close it, and one failure opens it again.
    Safe to use from several threads.
    """

    def __init__(self, settings: LibrariansSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._calls: deque[tuple[float, bool]] = deque()
        self._failures = 0
        self._open_until: float | None = None
        self._successes = 0
        self._lock = threading.Lock()

    @property
    def state(self) -> str:
        with self._lock:
            return self._state(self._clock.monotonic())

    def refusal(self) -> Response | None:
        """Return an error while the breaker is open; None when the librarian may be asked."""
        with self._lock:
            if self._open_until is None:
                return None
            seconds = self._open_until - self._clock.monotonic()
        if seconds <= 0:
            return None
        return Response.failing(
            ErrorCode.SERVICE_UNAVAILABLE,
            "The librarian failed too often recently, so its circuit breaker is open",
            recoverable=True,
            suggestion="Try again later, or ask another librarian",
            details={"retryAfter": max(1, round(seconds))},
        )

    def note(self, response: Response) -> None:
        """Count a response of the librarian as success or failure."""
        failed = response.error is not None and response.error.code in FAILURES
        with self._lock:
            now = self._clock.monotonic()
            state = self._state(now)
            if state == "closed":
                self._count(now, failed=failed)
            elif state == "half-open" and failed:
                self._open(now)
            elif state == "half-open":
                self._successes += 1
                if self._successes >= self._settings.breaker_successes:
                    self._open_until = None
            # A call that began before the breaker opened says nothing new.

    def _state(self, now: float) -> str:
        if self._open_until is None:
            return "closed"
        return "open" if now < self._open_until else "half-open"

    def _count(self, now: float, *, failed: bool) -> None:
        calls, settings = self._calls, self._settings
        calls.append((now, failed))
        self._failures += failed
        while calls[0][0] <= now - settings.breaker_window_seconds:
            self._failures -= calls.popleft()[1]
        if (
            failed
            and len(calls) >= settings.breaker_min_calls
            and self._failures >= settings.breaker_failure_ratio * len(calls)
        ):
            self._open(now)

    def _open(self, now: float) -> None:
        self._open_until = now + self._settings.breaker_open_seconds
        self._successes = 0
        self._calls.clear()
        self._failures = 0


@dataclass(frozen=True, slots=True)
class Entry:
    """A librarian with its card, permissions and limits."""

    librarian: Function
    card: LibrarianInfo | None = None
    """The card; None to use the id as name, and the first line of the docstring as description."""
    permissions: Permissions = field(default_factory=Permissions)
    timeout_seconds: float | None = None
    """The time limit of this librarian. The limit of the question applies too."""
    delegates_to: tuple[str, ...] | None = None
    """The librarians that it may ask; None for all."""


@dataclass(frozen=True, slots=True)
class RegisteredLibrarian:
    """An entry that is ready to be asked."""

    card: LibrarianInfo
    entry: Entry
    breaker: CircuitBreaker
    gets_context: str
    """The way to pass the context: "positional", "keyword", or "" if it takes only the question."""


class Registry:
    """Librarians by id. Safe to use from several threads."""

    def __init__(
        self,
        librarians: Mapping[str, Function | Entry],
        *,
        policy: LibrariansSettings | None = None,
        clock: Clock | None = None,
        request_ids: Callable[[], str] | None = None,
    ) -> None:
        self.settings = policy or LibrariansSettings()
        self.request_ids = request_ids or functools.partial(secrets.token_hex, 16)
        clock = clock or SystemClock()
        self._librarians: dict[str, RegisteredLibrarian] = {}
        for librarian_id, given in librarians.items():
            entry = _check_entry(librarian_id, given if isinstance(given, Entry) else Entry(given))
            card = entry.card or _describe(entry.librarian)
            self._librarians[librarian_id] = RegisteredLibrarian(
                replace(card, id=librarian_id, name=card.name or librarian_id),
                entry,
                CircuitBreaker(self.settings, clock),
                _find_context_parameter(entry.librarian),
            )
        self._delegates: dict[tuple[object, ...], tuple[Delegate, ...]] = {}

    def __contains__(self, librarian_id: object) -> bool:
        return librarian_id in self._librarians

    def __len__(self) -> int:
        return len(self._librarians)

    def __getitem__(self, librarian_id: str) -> RegisteredLibrarian:
        """Return a librarian by id. Raises KeyError."""
        return self._librarians[librarian_id]

    def cards(self) -> tuple[LibrarianInfo, ...]:
        return tuple(librarian.card for librarian in self._librarians.values())

    def breakers(self) -> Mapping[str, str]:
        """Return the state of each circuit breaker: closed, open, half-open."""
        return {librarian_id: librarian.breaker.state for librarian_id, librarian in self._librarians.items()}

    def allows(self, user: User | None, librarian_id: str) -> bool:
        librarian = self._librarians[librarian_id]
        return librarian.entry.permissions.allow(user, librarian.card.team)

    def delegates_for(
        self, user: User | None, visited: Sequence[str], delegates_to: tuple[str, ...] | None = None
    ) -> tuple[Delegate, ...]:
        """Return the librarians that may be asked for a user, without those in `visited`."""
        key = (None if user is None else (user.teams, user.roles), delegates_to)
        permitted = self._delegates.get(key)
        if permitted is None:
            cards = [
                card
                for card in self.cards()
                if (delegates_to is None or card.id in delegates_to) and self.allows(user, card.id)
            ]
            permitted = tuple(
                Delegate(card.id, card.name, card.description, card.capabilities, card.endpoint) for card in cards
            )
            if len(self._delegates) >= _MAX_CACHED:
                self._delegates.clear()
            self._delegates[key] = permitted
        return tuple(delegate for delegate in permitted if delegate.id not in visited)


def _check_entry(librarian_id: str, entry: Entry) -> Entry:
    where = f"librarians.{librarian_id}"
    if not isinstance(librarian_id, str) or not _ID.fullmatch(librarian_id):
        raise errors.settings_invalid(
            where, "an id must consist of letters, digits, '.', '_' and '-', and begin with a letter or a digit"
        )
    if not callable(entry.librarian):
        raise errors.settings_invalid(where, "a librarian must be an async function of a question and a context")
    seconds = entry.timeout_seconds
    if seconds is not None and not (is_number(seconds) and seconds > 0):
        raise errors.settings_invalid(where, "the timeout must be a number of seconds above 0")
    return entry if entry.delegates_to is None else replace(entry, delegates_to=tuple(entry.delegates_to))


def _describe(librarian: Function) -> LibrarianInfo:
    """Return a card with the first line of the docstring."""
    text = inspect.getdoc(librarian) if inspect.isroutine(librarian) else inspect.getdoc(type(librarian))
    return LibrarianInfo("", description=(text or "").strip().partition("\n")[0])


def _find_context_parameter(librarian: Function) -> str:
    try:
        parameters = inspect.signature(librarian).parameters.values()
    except (TypeError, ValueError):
        return "positional"
    positional = {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}
    kinds = [parameter.kind for parameter in parameters]
    if sum(kind in positional for kind in kinds) >= 2 or inspect.Parameter.VAR_POSITIONAL in kinds:
        return "positional"
    is_named = inspect.Parameter.VAR_KEYWORD in kinds or any(parameter.name == "context" for parameter in parameters)
    return "keyword" if is_named else ""
