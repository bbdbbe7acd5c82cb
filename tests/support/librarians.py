"""Working and faulty librarians of every kind, and a function to ask them."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from pair.librarians import Context, Registry, Response, ask
from pair.librarians.rules import fault_of
from pair.librarians.settings import LibrariansSettings

Function = Callable[..., Awaitable[Any]]


def answering(text: str, *, confidence: float = 0.9) -> Function:
    async def librarian(query: str, context: Context | None = None) -> Response:
        return Response(answer=text, confidence=confidence)

    return librarian


def returning(value: Any) -> Function:
    async def librarian(query: str, context: Context | None = None) -> Any:
        return value

    return librarian


def raising(fault: BaseException) -> Function:
    async def librarian(query: str, context: Context | None = None) -> Response:
        raise fault

    return librarian


async def hanging(query: str, context: Context | None = None) -> Response:
    await asyncio.Event().wait()
    raise AssertionError


class Recorder:
    """A librarian that answers, and records its arguments."""

    def __init__(self, response: Response | None = None) -> None:
        self.response = response or Response(answer="Noted.", confidence=0.9)
        self.queries: list[str] = []
        self.contexts: list[Context] = []

    async def __call__(self, query: str, context: Context | None = None) -> Response:
        assert context is not None
        self.queries.append(query)
        self.contexts.append(context)
        return self.response


def asked(
    librarians: Mapping[str, Any] | Registry,
    librarian_id: str,
    query: str = "When is lunch?",
    context: Context | None = None,
    *,
    timeout: float | None = None,
    policy: LibrariansSettings | None = None,
) -> Response:
    registry = librarians if isinstance(librarians, Registry) else Registry(librarians, policy=policy)
    response = asyncio.run(ask(registry, librarian_id, query, context, timeout=timeout))
    assert fault_of(response) is None
    return response


def code(response: Response) -> str | None:
    return None if response.error is None else str(response.error.code)
