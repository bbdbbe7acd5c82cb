"""All routes in one table: who handles them, who may use them, and what is told about them."""

import functools
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pair import errors
from pair.app.http import ask, examples, health, ingest, mcp, openai_api, openapi, page, rag, schemas, sync, versions
from pair.app.http.context import RequestCall, Service, answer
from pair.app.http.conversation import ChatRequest
from pair.auth.rules import Scope

Handler = Callable[[Service, RequestCall], Awaitable[Any]]


@dataclass(frozen=True)
class Operation:
    method: str
    path: str
    """With `{id}` where the address has a value."""
    handler: Handler
    summary: str
    scope: Scope | None
    """None: for everybody."""
    answers: Mapping[str, Any]
    """Media type → example of what is answered with 200."""
    body: type[Any] | None = None
    parameters: type[Any] | None = None
    errors: tuple[int, ...] = ()
    """Statuses besides those that every route may have."""
    body_example: Any = None
    is_body_needed: bool = True
    takes_key: bool = False
    """Whether it is done once for each Idempotency-Key."""

    @property
    def route(self) -> str:
        return f"{self.method} {self.path}"


_JSON = "application/json"
_LINES = "application/x-ndjson"
_TEXT = "text/plain"

OPERATIONS: tuple[Operation, ...] = (
    Operation("GET", "/healthz", health.healthz, "Whether the process answers", None, {_JSON: {"status": "ok"}}),
    Operation(
        "GET", "/readyz", health.readyz, "Whether it can do its work", None, {_JSON: {"status": "ready"}}, errors=(503,)
    ),
    Operation(
        "POST",
        "/rag/ingest",
        ingest.ingest,
        "Add or replace documents",
        "write",
        {_JSON: examples.INGESTED, _LINES: examples.INGESTED_LINES},
        schemas.IngestRequest,
        schemas.IngestParameters,
        (409, 413, 503),
        examples.INGEST,
        takes_key=True,
    ),
    Operation(
        "POST",
        "/rag/query",
        rag.query,
        "Find passages",
        "read",
        {_JSON: examples.FOUND},
        schemas.QueryRequest,
        errors=(404, 413, 503),
        body_example=examples.QUERY,
    ),
    Operation("GET", "/rag/kbs", rag.list_kbs, "Knowledge bases", "read", {_JSON: examples.KBS}, errors=(503,)),
    Operation(
        "GET",
        "/rag/docs",
        rag.list_documents,
        "Stored documents by id",
        "read",
        {_JSON: examples.DOCUMENTS},
        parameters=schemas.ListParameters,
        errors=(503,),
    ),
    Operation(
        "GET",
        "/rag/docs/{id}",
        rag.get_document,
        "A document with its text",
        "read",
        {_JSON: examples.DOCUMENT},
        parameters=schemas.DocumentParameters,
        errors=(404, 503),
    ),
    Operation(
        "DELETE",
        "/rag/docs/{id}",
        rag.delete_document,
        "Delete a document",
        "write",
        {_JSON: examples.DELETED},
        parameters=schemas.KbParameters,
        errors=(404, 409, 503),
    ),
    Operation(
        "GET",
        "/rag/graph",
        rag.graph,
        "The graph around a document or an entity",
        "read",
        {_JSON: examples.GRAPH},
        parameters=schemas.GraphQuery,
        errors=(404, 503),
    ),
    Operation(
        "GET",
        "/rag/versions",
        versions.list_versions,
        "Versions that can be gone back to, the newest first",
        "read",
        {_JSON: examples.VERSIONS},
        parameters=schemas.KbParameters,
        errors=(503,),
    ),
    Operation(
        "GET",
        "/rag/diff",
        versions.diff,
        "Documents that differ between two versions",
        "read",
        {_JSON: examples.DIFF},
        parameters=schemas.DiffParameters,
        errors=(404, 503),
    ),
    Operation(
        "POST",
        "/rag/rollback",
        versions.roll_back,
        "Make an earlier version the current one",
        "admin",
        {_JSON: examples.ROLLED_BACK},
        schemas.RollbackRequest,
        errors=(404, 409, 413, 503),
        body_example=examples.ROLL_BACK,
        takes_key=True,
    ),
    Operation(
        "POST",
        "/rag/compact",
        rag.compact,
        "Merge and re-cluster shards",
        "admin",
        {_JSON: examples.COMPACTED},
        schemas.CompactRequest,
        errors=(409, 413, 503),
        body_example={"kb_id": "default"},
        is_body_needed=False,
    ),
    Operation(
        "POST",
        "/rag/gc",
        rag.collect,
        "Delete shards that no manifest names",
        "admin",
        {_JSON: examples.COLLECTED},
        schemas.GcRequest,
        errors=(409, 413, 503),
        body_example={"kb_id": "default", "grace_seconds": 120},
        is_body_needed=False,
    ),
    Operation(
        "POST",
        "/cache/sweep",
        rag.sweep,
        "Evict fetched shards that are too old or too many",
        "admin",
        {_JSON: examples.SWEPT},
        schemas.SweepRequest,
        errors=(413, 503),
        body_example={},
        is_body_needed=False,
    ),
    Operation(
        "GET",
        "/librarians",
        ask.list_librarians,
        "Who can be asked",
        "read",
        {_JSON: examples.LIBRARIANS},
        errors=(503,),
    ),
    Operation(
        "POST",
        "/librarians/{id}/ask",
        ask.ask_librarian,
        "Ask one librarian",
        "read",
        {_JSON: examples.RESPONSE, "text/event-stream": examples.EVENTS},
        schemas.AskRequest,
        errors=(404, 413, 503),
        body_example=examples.QUESTION,
    ),
    Operation(
        "POST",
        "/ask",
        ask.ask,
        "Ask whoever is asked first, or the shelf of a knowledge base",
        "read",
        {_JSON: examples.RESPONSE, "text/event-stream": examples.EVENTS},
        schemas.AskRequest,
        errors=(404, 413, 503),
        body_example=examples.QUESTION,
    ),
    Operation(
        "GET",
        "/sync",
        health.sync_state,
        "How each synced source stands, and why",
        "read",
        {_JSON: examples.SYNC},
        parameters=schemas.SyncParameters,
        errors=(503,),
    ),
    Operation(
        "POST",
        "/sync",
        sync.sync,
        "Bring the index and the knowledge base in line with files and links",
        "admin",
        {_JSON: examples.SYNCED},
        schemas.SyncRequest,
        errors=(409, 413, 503),
        body_example={"wait": True},
        is_body_needed=False,
    ),
    Operation(
        "GET",
        "/v1/models",
        openai_api.list_models,
        "Librarians, as models for chat clients",
        "read",
        {_JSON: examples.MODELS},
        errors=(503,),
    ),
    Operation(
        "GET",
        "/v1/models/{id}",
        openai_api.get_model,
        "One librarian, as a model",
        "read",
        {_JSON: examples.MODEL},
        errors=(404, 503),
    ),
    Operation(
        "POST",
        "/v1/chat/completions",
        openai_api.complete,
        "Ask a librarian, as chat clients do",
        "read",
        {_JSON: examples.COMPLETION, "text/event-stream": examples.CHUNKS},
        ChatRequest,
        errors=(404, 413, 503),
        body_example=examples.CHAT,
    ),
    Operation(
        "GET", "/metrics", health.metrics, "Figures for Prometheus", "read", {_TEXT: examples.PROMETHEUS}, errors=(503,)
    ),
    Operation(
        "GET", "/metrics/app", health.app_metrics, "Figures as JSON", "read", {_JSON: examples.FIGURES}, errors=(503,)
    ),
    Operation(
        "GET",
        "/metrics/cache",
        health.cache_metrics,
        "Figures of shards and their cache, as OpenMetrics",
        "read",
        {"application/openmetrics-text": examples.OPENMETRICS},
        errors=(503,),
    ),
)


async def _document(_service: Service, _call: RequestCall) -> Any:
    return answer(_described())


_DESCRIBED = (
    *OPERATIONS,
    Operation("GET", "/openapi.json", _document, "All of this, as OpenAPI", None, {_JSON: {"openapi": "3.1.0"}}),
)
_ALL = (
    *_DESCRIBED,
    # What is sent there and answered is another protocol's business, and told by that.
    Operation("POST", "/mcp", mcp.answer_assistant, "For assistants, by the Model Context Protocol", "read", {}),
    # For people.
    Operation("GET", "/", page.index, "The page", None, {}),
    Operation("GET", "/ui/{id}", page.asset, "What the page is made of", None, {}),
)


@functools.cache
def _described() -> dict[str, Any]:
    return openapi.document(_DESCRIBED)


_EXACT: dict[str, dict[str, Operation]] = {}
_WITH_VALUE: list[tuple[re.Pattern[str], dict[str, Operation]]] = []


def _enter(operation: Operation) -> None:
    if "{id}" not in operation.path:
        _EXACT.setdefault(operation.path, {})[operation.method] = operation
        return
    pattern = re.compile(re.escape(operation.path).replace(r"\{id\}", "(.+)"), re.DOTALL)
    for known, methods in _WITH_VALUE:
        if known == pattern:
            methods[operation.method] = operation
            return
    _WITH_VALUE.append((pattern, {operation.method: operation}))


for _operation in _ALL:
    _enter(_operation)


def matched(method: str, path: str) -> tuple[Operation, str]:
    """What an address leads to, and the value in it. Raises E604, E606."""
    methods, value = _EXACT.get(path), ""
    if methods is None:
        found = ((pattern.fullmatch(path), known) for pattern, known in _WITH_VALUE)
        match, methods = next(((match, known) for match, known in found if match), (None, None))
        value = match[1] if match else ""
    if methods is None:
        raise errors.no_such_route(path)
    operation = methods.get("GET" if method == "HEAD" else method)
    if operation is None:
        raise errors.method_not_allowed(method, ", ".join(sorted(methods)))
    return operation, value
