"""Assistants, by the Model Context Protocol: KBs as one caller may use them, and the route `/mcp`.

Invariants
    Who asks is what the credentials say, for every call of a tool as for every other request.
    The SDK is loaded with the first request that needs it.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pair.app.http import ask, ingest, rag, schemas
from pair.app.http.context import RequestCall, Service
from pair.auth import rules
from pair.auth.rules import SCOPES
from pair.engine.query.documents import StoredDocument
from pair.engine.query.request import Hits
from pair.kb.open import DEFAULT_KB
from pair.librarians.contract import Response
from pair.values import Document

if TYPE_CHECKING:
    from pair.app.mcp.contract import Library, SearchCall

Receive = Callable[[], Awaitable[Any]]


@dataclass(frozen=True)
class CallersLibrary:
    """What a caller may use, by the same ways as on the other routes."""

    service: Service
    call: RequestCall

    @property
    def may_write(self) -> bool:
        is_allowed = SCOPES.index(self.call.principal.scope) >= SCOPES.index("write")
        return self.service.policy.mcp_write and is_allowed

    @property
    def result_tokens(self) -> int:
        return self.service.policy.mcp_result_tokens

    def named(self, kb: str) -> str:
        """Whoever may use one KB only need not name it. Raises E603."""
        mine = self.call.principal.kbs
        return self.call.use_kb(kb or (next(iter(mine)) if mine is not None and len(mine) == 1 else DEFAULT_KB))

    async def search(self, kb: str, wanted: "SearchCall") -> Hits:
        asked = schemas.QueryRequest(
            wanted.query,
            kb,
            wanted.limit,
            search_mode=wanted.mode,
            filter=wanted.filter or None,
            at=wanted.at or None,
        )
        return (await rag.found(self.service, kb, asked))[0]

    async def document(self, kb: str, document_id: str, at: str) -> StoredDocument:
        return await rag.document(self.service, kb, document_id, at or None)

    async def documents(self, kb: str, after: str, limit: int) -> list[StoredDocument]:
        return await self.service.reading(lambda: self.service.kbs.get(kb).documents(after=after, limit=limit))

    async def ask(self, kb: str, query: str) -> Response:
        named = self.named(kb)
        asked = schemas.AskRequest(query, kb_id=named if kb or not self.call.principal.sees_all else "")
        return await ask.response_to(self.service, self.call, asked)

    async def kbs(self) -> list[dict[str, Any]]:
        return await rag.usable_kbs(self.service, self.call.principal)

    async def ingest(self, kb: str, documents: Sequence[Document]) -> dict[str, Any]:
        rules.check_scope(self.call.principal, "write")
        given = [
            schemas.DocumentIn(each.text, each.id or None, each.title, each.url, dict(each.metadata))
            for each in documents
        ]
        return await ingest.stored(self.service, self.call, kb, given)

    async def delete(self, kb: str, document_id: str) -> dict[str, Any]:
        rules.check_scope(self.call.principal, "write")
        return await rag.deleted(self.service, kb, document_id)

    def note(self, *, tool: str = "", error: str = "") -> None:
        told = {"tool": tool, "error": error}
        self.call.told.update({key: value for key, value in told.items() if value})


async def answer_assistant(service: Service, call: RequestCall) -> "_Exchange":
    """One message of the protocol, and its answer as JSON: nothing is kept between them."""
    body = await call.incoming.query(service.policy)
    library = CallersLibrary(service, call)
    return _Exchange(await service.reading(lambda: _application(library)), body)


def _application(library: "Library") -> Any:
    from pair.app.mcp.stateless import application  # noqa: PLC0415 - loads the SDK

    return application(library)


@dataclass(frozen=True)
class _Exchange:
    """What the SDK makes of a request whose body was read already."""

    application: Any
    body: bytes

    async def __call__(self, scope: Any, receive: Receive, send: Any) -> None:
        is_given = False

        async def given_again() -> Any:
            nonlocal is_given
            if is_given:
                return await receive()
            is_given = True
            return {"type": "http.request", "body": self.body, "more_body": False}

        await self.application(scope, given_again, send)
