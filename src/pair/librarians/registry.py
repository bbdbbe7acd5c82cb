"""Name → librarian and its card.

Invariants
    A registry does not change: who is in it is decided when it is made.
"""

import functools
import inspect
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from pair import errors
from pair.clock import Clock, SystemClock
from pair.librarians.circuit_breaker import CircuitBreaker
from pair.librarians.contract import Delegate, LibrarianInfo, Response, User
from pair.librarians.rules import Permissions, is_number
from pair.librarians.settings import LibrariansSettings

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_MAX_REMEMBERED = 256

Function: TypeAlias = Callable[..., Awaitable[Response]]
"""A `Librarian`, or one that leaves out the context."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A librarian, and under which terms it is asked."""

    librarian: Function
    card: LibrarianInfo | None = None
    """None: the name is the id, the description is what its docstring says."""
    permissions: Permissions = field(default_factory=Permissions)
    timeout_seconds: float | None = None
    """Its own limit; that of the question counts besides."""
    delegates_to: tuple[str, ...] | None = None
    """Whom it may ask; None for everybody."""


@dataclass(frozen=True, slots=True)
class RegisteredLibrarian:
    """An entry in its place: all that is needed to ask."""

    card: LibrarianInfo
    entry: Entry
    breaker: CircuitBreaker
    gets_context: str
    """How: "positional", "keyword", or "" for a librarian that takes the question only."""


class Registry:
    """Librarians by id. Used from several threads at once."""

    def __init__(
        self,
        librarians: Mapping[str, Function | Entry],
        *,
        policy: LibrariansSettings | None = None,
        clock: Clock | None = None,
        request_ids: Callable[[], str] | None = None,
    ) -> None:
        self.policy = policy or LibrariansSettings()
        self.clock = clock or SystemClock()
        self.request_ids = request_ids or functools.partial(secrets.token_hex, 16)
        self._desks = {
            librarian_id: self._desk(librarian_id, given if isinstance(given, Entry) else Entry(given))
            for librarian_id, given in librarians.items()
        }
        self._delegates: dict[tuple[object, ...], tuple[Delegate, ...]] = {}

    def __contains__(self, librarian_id: object) -> bool:
        return librarian_id in self._desks

    def __len__(self) -> int:
        return len(self._desks)

    def desk(self, librarian_id: str) -> RegisteredLibrarian:
        """Raises KeyError."""
        return self._desks[librarian_id]

    def cards(self) -> tuple[LibrarianInfo, ...]:
        return tuple(desk.card for desk in self._desks.values())

    def breakers(self) -> Mapping[str, str]:
        """The state of each: closed, open, half-open."""
        return {librarian_id: desk.breaker.state for librarian_id, desk in self._desks.items()}

    def allows(self, user: User | None, librarian_id: str) -> bool:
        desk = self._desks[librarian_id]
        return desk.entry.permissions.allow(user, desk.card.team)

    def delegates_for(
        self, user: User | None, visited: Sequence[str], delegates_to: tuple[str, ...] | None = None
    ) -> tuple[Delegate, ...]:
        """Whom somebody may ask in the name of a user: not those who were asked before."""
        known = self._permitted(user, delegates_to)
        return tuple(delegate for delegate in known if delegate.id not in visited)

    def _permitted(self, user: User | None, delegates_to: tuple[str, ...] | None) -> tuple[Delegate, ...]:
        key = (None if user is None else (user.teams, user.roles), delegates_to)
        found = self._delegates.get(key)
        if found is None:
            found = tuple(
                _as_delegate(desk.card)
                for librarian_id, desk in self._desks.items()
                if (delegates_to is None or librarian_id in delegates_to) and self.allows(user, librarian_id)
            )
            if len(self._delegates) >= _MAX_REMEMBERED:
                self._delegates.clear()
            self._delegates[key] = found
        return found

    def _desk(self, librarian_id: str, entry: Entry) -> RegisteredLibrarian:
        where = f"librarians.{librarian_id}"
        if not isinstance(librarian_id, str) or not _ID.fullmatch(librarian_id):
            raise errors.settings_invalid(
                where, "an id is made of letters, digits, '.', '_' and '-', and begins with a letter or a digit"
            )
        if not callable(entry.librarian):
            raise errors.settings_invalid(where, "a librarian is an async function of a question and a context")
        seconds = entry.timeout_seconds
        if seconds is not None and not (is_number(seconds) and seconds > 0):
            raise errors.settings_invalid(where, "the timeout is a number of seconds above 0")
        if entry.delegates_to is not None:
            entry = replace(entry, delegates_to=tuple(entry.delegates_to))
        card = replace(entry.card or _card_of(entry.librarian), id=librarian_id)
        if not card.name:
            card = replace(card, name=librarian_id)
        return RegisteredLibrarian(
            card, entry, CircuitBreaker(self.policy, self.clock), _way_of_context(entry.librarian)
        )


def _card_of(librarian: Function) -> LibrarianInfo:
    """What a function says about itself: the first line of its docstring."""
    text = inspect.getdoc(librarian) if inspect.isroutine(librarian) else inspect.getdoc(type(librarian))
    return LibrarianInfo("", description=(text or "").strip().partition("\n")[0])


def _as_delegate(card: LibrarianInfo) -> Delegate:
    return Delegate(card.id, card.name, card.description, card.capabilities, card.endpoint)


def _way_of_context(librarian: Function) -> str:
    """A librarian may leave out the context."""
    try:
        parameters = inspect.signature(librarian).parameters.values()
    except (TypeError, ValueError):
        return "positional"
    places = [each for each in parameters if each.kind in {each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD}]
    if len(places) >= 2 or any(each.kind == each.VAR_POSITIONAL for each in parameters):
        return "positional"
    named = any(each.kind == each.VAR_KEYWORD or each.name == "context" for each in parameters)
    return "keyword" if named else ""
