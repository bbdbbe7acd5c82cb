"""Tests that every librarian must pass: the five that the specification demands.

Name a class `Test…`, make it inherit from `LibrarianSuite`, and give it the fixture `case`: a librarian, and a question
of each kind. Omit the question of a kind that does not apply, such as a slow one.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from pair.clock import SystemClock
from pair.librarians.contract import Context, Delegate, Librarian, Response
from pair.librarians.dispatch import ask
from pair.librarians.registry import Registry
from pair.librarians.rules import fault_of

SHORT_SECONDS = 0.2
PATIENCE_SECONDS = 2.0
"""A margin for a busy machine. A librarian that ignores its limit takes far longer."""


@dataclass(frozen=True)
class LibrarianCase:
    """A librarian and questions for it."""

    librarian: Librarian
    answered: str
    """A question that the librarian answers."""
    failing: str = ""
    """A question that it answers with an error."""
    handed_over: str = ""
    """A question that it delegates to one of `colleagues`."""
    slow: str = ""
    """A question that takes longer than the suite waits, unless it is cancelled."""
    colleagues: tuple[str, ...] = ()
    context: Context = field(default_factory=Context)


class LibrarianSuite:
    """The tests of a librarian. Every response must be valid, and nothing may be raised."""

    def test_happy_path_a_question_is_answered(self, case: LibrarianCase) -> None:
        response = _ask(case, case.answered)
        assert response.error is None
        assert (response.answer or "").strip() or response.delegates
        again = asyncio.run(ask(_registry(case), "it", case.answered, case.context))
        assert again.error is None
        assert (again.answer or "").strip()

    def test_error_handling_what_goes_wrong_is_a_response(self, case: LibrarianCase) -> None:
        if case.failing:
            response = _ask(case, case.failing)
            assert response.error is not None
            assert response.error.message.strip()
        for odd in ("?", "\u200b", "a" * 5_000, "'; DROP TABLE docs; --", "\ud83d"):
            _ask(case, odd)

    def test_delegation_is_to_a_colleague_who_may_be_asked(self, case: LibrarianCase) -> None:
        response = _ask(case, case.handed_over or case.answered)
        assert bool(response.delegates) or not case.handed_over
        for request in response.delegates:
            assert request.to in case.colleagues
        if case.handed_over:
            followed = asyncio.run(ask(_registry(case), "it", case.handed_over, case.context))
            assert followed.error is None
            assert followed.metadata["delegated"] is True
            alone = asyncio.run(ask(Registry({"it": case.librarian}), "it", case.handed_over, case.context))
            assert fault_of(alone) is None

    def test_timeout_of_the_context_is_respected(self, case: LibrarianCase) -> None:
        clock = SystemClock()
        began_at = clock.monotonic()
        limit = Context(timeout_ms=int(SHORT_SECONDS * 1000), ai=case.context.ai)
        response = asyncio.run(ask(_registry(case), "it", case.slow or case.answered, limit))
        assert clock.monotonic() - began_at < SHORT_SECONDS + PATIENCE_SECONDS
        assert fault_of(response) is None
        if case.slow:
            assert response.error is not None or response.partial

    def test_no_ai_is_needed(self, case: LibrarianCase) -> None:
        for context in (None, Context()):
            response: Any = asyncio.run(_call(case.librarian, case.answered, context))
            assert fault_of(response) is None
            assert response.error is None or case.context != Context()


def _ask(case: LibrarianCase, query: str) -> Response:
    """Ask the librarian directly, without dispatch."""
    known = tuple(Delegate(name, name) for name in case.colleagues)
    given = Context(
        user=case.context.user,
        ai=case.context.ai,
        available_delegates=known,
        metadata=case.context.metadata,
        timeout_ms=30_000,
    )
    response = asyncio.run(_call(case.librarian, query, given))
    assert fault_of(response) is None, query
    return response


async def _call(librarian: Librarian, query: str, context: Context | None) -> Response:
    return await librarian(query, context)


def _registry(case: LibrarianCase) -> Registry:
    return Registry({"it": case.librarian, **dict.fromkeys(case.colleagues, _colleague)})


async def _colleague(query: str, _context: Context | None = None) -> Response:
    return Response(answer=f"A colleague about: {query}", confidence=0.9)
