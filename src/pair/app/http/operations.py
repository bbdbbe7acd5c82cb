"""All routes in one table: who handles them, who may use them, and what is told about them."""

import functools
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pair import request_errors
from pair.access.rules import Scope
from pair.app.http import (
    asking,
    assistants,
    completions,
    ingest,
    openapi,
    page,
    rag,
    samples,
    shapes,
    state,
    sync_run,
    versions,
)
from pair.app.http.conversation import ChatRequest
from pair.app.http.service import Call, Service, answer

Handler = Callable[[Service, Call], Awaitable[Any]]


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
    Operation("GET", "/healthz", state.healthz, "Whether the process answers", None, {_JSON: {"status": "ok"}}),
    Operation(
        "GET", "/readyz", state.readyz, "Whether it can do its work", None, {_JSON: {"status": "ready"}}, errors=(503,)
    ),
    Operation(
        "POST",
        "/rag/ingest",
        ingest.ingest,
        "Add or replace documents",
        "write",
        {_JSON: samples.INGESTED, _LINES: samples.INGESTED_LINES},
        shapes.IngestRequest,
        shapes.IngestParameters,
        (409, 413, 503),
        samples.INGEST,
        takes_key=True,
    ),
    Operation(
        "POST",
        "/rag/query",
        rag.query,
        "Find passages",
        "read",
        {_JSON: samples.FOUND},
        shapes.QueryRequest,
        errors=(404, 413, 503),
        body_example=samples.QUERY,
    ),
    Operation("GET", "/rag/kbs", rag.list_kbs, "Knowledge bases", "read", {_JSON: samples.KBS}, errors=(503,)),
    Operation(
        "GET",
        "/rag/docs",
        rag.list_documents,
        "Stored documents by id",
        "read",
        {_JSON: samples.DOCUMENTS},
        parameters=shapes.ListParameters,
        errors=(503,),
    ),
    Operation(
        "GET",
        "/rag/docs/{id}",
        rag.get_document,
        "A document with its text",
        "read",
        {_JSON: samples.DOCUMENT},
        parameters=shapes.DocumentParameters,
        errors=(404, 503),
    ),
    Operation(
        "DELETE",
        "/rag/docs/{id}",
        rag.delete_document,
        "Delete a document",
        "write",
        {_JSON: samples.DELETED},
        parameters=shapes.KbParameters,
        errors=(404, 409, 503),
    ),
    Operation(
        "GET",
        "/rag/graph",
        rag.graph,
        "The graph around a document or an entity",
        "read",
        {_JSON: samples.GRAPH},
        parameters=shapes.GraphParameters,
        errors=(404, 503),
    ),
    Operation(
        "GET",
        "/rag/versions",
        versions.list_versions,
        "Versions that can be gone back to, the newest first",
        "read",
        {_JSON: samples.VERSIONS},
        parameters=shapes.KbParameters,
        errors=(503,),
    ),
    Operation(
        "GET",
        "/rag/diff",
        versions.diff,
        "Documents that differ between two versions",
        "read",
        {_JSON: samples.DIFF},
        parameters=shapes.DiffParameters,
        errors=(404, 503),
    ),
    Operation(
        "POST",
        "/rag/rollback",
        versions.roll_back,
        "Make an earlier version the current one",
        "admin",
        {_JSON: samples.ROLLED_BACK},
        shapes.RollbackRequest,
        errors=(404, 409, 413, 503),
        body_example=samples.ROLL_BACK,
        takes_key=True,
    ),
    Operation(
        "POST",
        "/rag/compact",
        rag.compact,
        "Merge and re-cluster shards",
        "admin",
        {_JSON: samples.COMPACTED},
        shapes.CompactRequest,
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
        {_JSON: samples.COLLECTED},
        shapes.GcRequest,
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
        {_JSON: samples.SWEPT},
        shapes.SweepRequest,
        errors=(413, 503),
        body_example={},
        is_body_needed=False,
    ),
    Operation(
        "GET",
        "/librarians",
        asking.list_librarians,
        "Who can be asked",
        "read",
        {_JSON: samples.LIBRARIANS},
        errors=(503,),
    ),
    Operation(
        "POST",
        "/librarians/{id}/ask",
        asking.ask_librarian,
        "Ask one librarian",
        "read",
        {_JSON: samples.RESPONSE, "text/event-stream": samples.EVENTS},
        shapes.AskRequest,
        errors=(404, 413, 503),
        body_example=samples.QUESTION,
    ),
    Operation(
        "POST",
        "/ask",
        asking.ask,
        "Ask whoever is asked first, or the shelf of a knowledge base",
        "read",
        {_JSON: samples.RESPONSE, "text/event-stream": samples.EVENTS},
        shapes.AskRequest,
        errors=(404, 413, 503),
        body_example=samples.QUESTION,
    ),
    Operation(
        "GET",
        "/sync",
        state.sync_state,
        "How each synced source stands, and why",
        "read",
        {_JSON: samples.SYNC},
        parameters=shapes.SyncParameters,
        errors=(503,),
    ),
    Operation(
        "POST",
        "/sync",
        sync_run.sync,
        "Bring the index and the knowledge base in line with files and links",
        "admin",
        {_JSON: samples.SYNCED},
        shapes.SyncRequest,
        errors=(409, 413, 503),
        body_example={"wait": True},
        is_body_needed=False,
    ),
    Operation(
        "GET",
        "/v1/models",
        completions.list_models,
        "Librarians, as models for chat clients",
        "read",
        {_JSON: samples.MODELS},
        errors=(503,),
    ),
    Operation(
        "GET",
        "/v1/models/{id}",
        completions.get_model,
        "One librarian, as a model",
        "read",
        {_JSON: samples.MODEL},
        errors=(404, 503),
    ),
    Operation(
        "POST",
        "/v1/chat/completions",
        completions.complete,
        "Ask a librarian, as chat clients do",
        "read",
        {_JSON: samples.COMPLETION, "text/event-stream": samples.CHUNKS},
        ChatRequest,
        errors=(404, 413, 503),
        body_example=samples.CHAT,
    ),
    Operation(
        "GET", "/metrics", state.metrics, "Figures for Prometheus", "read", {_TEXT: samples.PROMETHEUS}, errors=(503,)
    ),
    Operation(
        "GET", "/metrics/app", state.app_metrics, "Figures as JSON", "read", {_JSON: samples.FIGURES}, errors=(503,)
    ),
    Operation(
        "GET",
        "/metrics/cache",
        state.cache_metrics,
        "Figures of shards and their cache, as OpenMetrics",
        "read",
        {"application/openmetrics-text": samples.OPENMETRICS},
        errors=(503,),
    ),
)


async def _document(_service: Service, _call: Call) -> Any:
    return answer(_described())


_DESCRIBED = (
    *OPERATIONS,
    Operation("GET", "/openapi.json", _document, "All of this, as OpenAPI", None, {_JSON: {"openapi": "3.1.0"}}),
)
_ALL = (
    *_DESCRIBED,
    # What is sent there and answered is another protocol's business, and told by that.
    Operation("POST", "/mcp", assistants.answer_assistant, "For assistants, by the Model Context Protocol", "read", {}),
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
        raise request_errors.no_such_route(path)
    operation = methods.get("GET" if method == "HEAD" else method)
    if operation is None:
        raise request_errors.method_not_allowed(method, ", ".join(sorted(methods)))
    return operation, value
