"""The MCP servers, built with the official SDK: one that only reads, and one that also writes.

Invariants
    A failed tool returns a result with an error. A resource that cannot be read is an error of the protocol.
    A bug is logged and reported, and does not end the server.
    `pair mcp` writes only messages of the protocol to standard output.
    A stream of notifications (`subscriptions/listen`) names only resources that the caller may read. The versions of
    its KBs are checked every few seconds. The number of streams is limited. A server that stops ends them.
"""

import asyncio
import contextlib
import functools
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pydantic
import pydantic_core
from mcp.server.caching import CacheHint
from mcp.server.context import ServerRequestContext
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError, UnexpectedToolError
from mcp.server.mcpserver.tools import Tool
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    ResourcesListChanged,
    ResourceUpdated,
)
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    CallToolResult,
    InputRequiredResult,
    ListResourcesResult,
    PaginatedRequestParams,
    ReadResourceRequestParams,
    ReadResourceResult,
    Resource,
    ResourceTemplate,
    SubscriptionFilter,
    SubscriptionsListenRequestParams,
    SubscriptionsListenResult,
    TextContent,
    TextResourceContents,
    ToolAnnotations,
)

from pair import __version__, errors
from pair.app.kb_access import KbAccess, KbService, first_problem
from pair.app.mcp import tools
from pair.app.mcp.tools import Address, KbToolError, cut, most_bytes, take_fitting
from pair.auth.rules import ANYBODY, Principal, covers
from pair.kb.kb import KnowledgeBase
from pair.settings import Settings
from pair.values import check_kb_id

logger = logging.getLogger("pair.mcp")

_Context = ServerRequestContext[Any, Any]
_Result = TypeVar("_Result")
_INSTRUCTIONS = (
    "Knowledge bases of documents. search finds passages, fetch reads a document, ask answers with sources. "
    "Cite each source by its url."
)
_BUG = "Internal error. The log has the details"
_TOOLS_SECONDS, _LIST_SECONDS, _READ_SECONDS = 300, 30, 30
_JSON, _PLAIN, _MARKDOWN = "application/json", "text/plain", "text/markdown"
_KBS_AT_A_TIME = 100
_DOCUMENTS_AT_A_TIME = 200
_NO_LIMIT_BYTES = 2**62
_POLL_SECONDS = 0.02

_new_access: ContextVar[Callable[[], KbAccess]] = ContextVar("new_access")
"""Returns the access of the caller, for each request on a connection."""


async def answer_http(access: KbAccess, scope: Any, receive: Any, send: Any) -> None:
    """Answer one message over ASGI. The caller has checked the origin, the credentials and the size."""
    _new_access.set(lambda: access)
    manager = _choose_server(access).new_http_manager()
    async with manager.run():
        await manager.handle_request(scope, receive, send)


def _choose_server(access: KbAccess) -> "KbServer":
    """Return the server with the tools that the caller may use."""
    return _make_server(may_write=access.service.settings.server.mcp_write and covers(access.principal.scope, "write"))


@functools.cache
def _make_server(*, may_write: bool) -> "KbServer":
    reads = ToolAnnotations(read_only_hint=True, open_world_hint=False)
    writes = ToolAnnotations(read_only_hint=False, destructive_hint=True, open_world_hint=False)
    reading = [
        _make_tool(tools.search, reads),
        _make_tool(tools.fetch, reads),
        _make_tool(tools.ask, ToolAnnotations(read_only_hint=True)),
        _make_tool(tools.list_kbs, reads),
        _make_tool(tools.feedback, ToolAnnotations(read_only_hint=False, destructive_hint=False)),
    ]
    writing = [
        _make_tool(tools.ingest, writes),
        _make_tool(tools.delete, writes.model_copy(update={"idempotent_hint": True})),
    ]
    return KbServer(reading + writing if may_write else reading, hidden=() if may_write else writing)


class _Arguments(pydantic.BaseModel):
    """Base of all arguments: refuses unknown arguments, and values that are not strict JSON."""

    model_config = pydantic.ConfigDict(extra="forbid", allow_inf_nan=False)

    @pydantic.model_validator(mode="before")
    @classmethod
    def _check_json(cls, value: Any) -> Any:
        try:
            written = pydantic_core.to_json(value, inf_nan_mode="constants")
            return pydantic_core.from_json(written, allow_inf_nan=False)
        except ValueError as fault:
            message = "the arguments are nested too deeply, or not JSON"
            raise pydantic_core.PydanticCustomError("json", message) from fault


def _make_tool(function: Callable[..., Any], annotations: ToolAnnotations) -> Tool:
    """Return a function as a tool, described by its docstring, its parameters and its result."""
    tool = Tool.from_function(function, annotations=annotations)
    metadata = tool.fn_metadata
    metadata.arg_model = type(metadata.arg_model.__name__, (_Arguments, metadata.arg_model), {})
    # Unknown arguments are refused. The schema does not say so: assistants pay for every token.
    tool.parameters = _simplify(metadata.arg_model.model_json_schema())
    # Results have every field that they do not describe as a note, so the schema need not require any.
    metadata.output_schema = {**_simplify(metadata.output_schema)}
    metadata.output_schema.pop("required", None)
    return tool


def _simplify(schema: Any, definitions: Mapping[str, Any] | None = None) -> Any:
    """Drop titles, length limits and empty defaults from a schema: assistants pay for every token."""
    if isinstance(schema, list):
        return [_simplify(item, definitions) for item in schema]
    if not isinstance(schema, dict):
        return schema
    definitions = definitions or schema.get("$defs", {})
    if "$ref" in schema:
        return _simplify(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    if "anyOf" in schema:
        return {"type": [option["type"] for option in schema["anyOf"]]}
    left_out = {"$defs", "additionalProperties", "maxLength", "minLength", "minItems", "maxItems", "minimum"}
    if isinstance(schema.get("title"), str):
        left_out.add("title")
    if schema.get("default") in ("", {}, 0):
        left_out.add("default")
    return {key: _simplify(value, definitions) for key, value in schema.items() if key not in left_out}


class KbServer(MCPServer[Any]):
    """A server with tools. `hidden`: tools that the caller may not use, which are not listed."""

    def __init__(self, shown: list[Tool], hidden: Iterable[Tool]) -> None:
        handler = logging.NullHandler()
        logging.root.addHandler(handler)  # Without one, MCPServer sets up logging for the whole process.
        super().__init__(
            "pair",
            version=__version__,
            instructions=_INSTRUCTIONS,
            tools=shown,
            cache_hints={
                "tools/list": CacheHint(_TOOLS_SECONDS * 1000, "private"),
                "resources/list": CacheHint(_LIST_SECONDS * 1000, "private"),
                "resources/templates/list": CacheHint(_TOOLS_SECONDS * 1000, "public"),
                "resources/read": CacheHint(_READ_SECONDS * 1000, "private"),
            },
            subscriptions=False,
        )
        logging.root.removeHandler(handler)
        self._subscriptions_of_kbs = KbSubscriptions()
        self._shown, self._hidden = {tool.name for tool in shown}, {tool.name for tool in hidden}
        # MCPServer lists all resources on one page and returns each in one part.
        server = self._lowlevel_server
        server.add_request_handler("resources/list", PaginatedRequestParams, self._list_resource_page)
        server.add_request_handler("resources/read", ReadResourceRequestParams, self._read_resource_parts)
        server.add_request_handler("subscriptions/listen", SubscriptionsListenRequestParams, self._listen)

    def new_http_manager(self) -> StreamableHTTPSessionManager:
        return StreamableHTTPSessionManager(
            self._lowlevel_server, json_response=True, stateless=True, max_request_body_size=_NO_LIMIT_BYTES
        )

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Context[Any, Any] | None = None
    ) -> CallToolResult | InputRequiredResult:
        """Return the result of a tool as structured content and as text. Errors are results too."""
        access = _new_access.get()()
        tools.CALLER.set(access)
        if name not in self._shown | self._hidden:
            raise MCPError(INVALID_PARAMS, f"Unknown tool: {name[:100]}")
        access.log_fields["tool"] = name
        if name in self._hidden:
            hints = ["pair mcp --allow-write", "Set server.mcp_write: true, and use credentials with the scope write"]
            return _refuse(access, errors.not_allowed("writing", hints=hints))
        try:
            result = await super().call_tool(name, arguments, context)
        except ToolError as fault:
            cause = fault.__cause__
            if isinstance(cause, pydantic.ValidationError) and not isinstance(fault, UnexpectedToolError):
                cause = errors.request_invalid(first_problem(cause))
            return _refuse(access, cause)
        if isinstance(result, CallToolResult):
            # Some clients read only structured content, others only text.
            result.content = [_format_text(result.structured_content)]
        return result

    async def list_resource_templates(self) -> list[ResourceTemplate]:
        return [
            ResourceTemplate(uri_template="kb://{kb}/{id}", name="document", description="The text of a document"),
            ResourceTemplate(
                uri_template="kb://{kb}", name="documents", description="A list of documents of a knowledge base"
            ),
        ]

    async def _list_resource_page(self, _context: _Context, asked: PaginatedRequestParams) -> ListResourcesResult:
        """List the KBs that the caller may use, sorted by name."""
        access, after = _new_access.get()(), asked.cursor or ""
        kbs = [kb for kb in await _attempt(access, access.list_kbs()) if kb["kb_id"] > after]
        shown = [
            Resource(
                uri=str(Address(kb["kb_id"])),
                name=kb["kb_id"],
                description=f"A list of {kb['documents']:,} documents",
                mime_type=_JSON,
            )
            for kb in kbs[:_KBS_AT_A_TIME]
        ]
        return ListResourcesResult(resources=shown, next_cursor=shown[-1].name if len(kbs) > len(shown) else None)

    async def _listen(self, context: _Context, asked: SubscriptionsListenRequestParams) -> SubscriptionsListenResult:
        access = _new_access.get()()
        access.log_fields["tool"] = "subscriptions/listen"
        return await _attempt(access, self._subscriptions_of_kbs.listen(access, context, asked))

    async def _read_resource_parts(self, _context: _Context, asked: ReadResourceRequestParams) -> ReadResourceResult:
        access = _new_access.get()()
        access.log_fields["tool"] = "resources/read"
        contents = await _attempt(access, _read_resource(access, str(asked.uri)))
        return ReadResourceResult(contents=[*contents])


async def _read_resource(access: KbAccess, uri: str) -> list[TextResourceContents]:
    """Return a list of documents, or the text of a document. Raises E201, E214, E601, E603."""
    address = Address.parse(uri)
    access.use_kb(address.kb)
    if not address.document_id:
        text = await _list_documents(access, address)
        return [TextResourceContents(uri=uri, mime_type=_JSON, text=text)]
    document = await access.read_document(address.kb, address.document_id, address.at or None)
    text = cut(document.text[address.offset :], most_bytes(access))
    end = address.offset + len(text)
    kind = _MARKDOWN if document.id.lower().endswith((".md", ".markdown")) else _PLAIN
    contents = [TextResourceContents(uri=uri, mime_type=kind, text=text)]
    if end < len(document.text):
        following = str(Address(address.kb, document.id, end, at=address.at))
        note = f"Characters {address.offset} to {end} of {len(document.text)}. The rest is at {following}"
        contents.append(TextResourceContents(uri=following, mime_type=_PLAIN, text=note))
    return contents


async def _list_documents(access: KbAccess, address: Address) -> str:
    documents = await access.read(
        address.kb, address.at or None, lambda kb: kb.documents(after=address.after, limit=_DOCUMENTS_AT_A_TIME)
    )
    entries = [
        {"uri": str(Address(address.kb, document.id, at=address.at)), "title": document.title or document.id}
        for document in documents
    ]
    shown = take_fitting(entries, most_bytes(access))
    is_all = len(shown) == len(documents) < _DOCUMENTS_AT_A_TIME
    following = (
        None if is_all or not shown else str(Address(address.kb, after=documents[len(shown) - 1].id, at=address.at))
    )
    return pydantic_core.to_json({"kb": address.kb, "documents": shown, "next": following}).decode()


async def _attempt(access: KbAccess, work: Awaitable[_Result]) -> _Result:
    """Return the result of work on a resource. Raise its errors as errors of the protocol."""
    try:
        return await work
    except errors.PairError as fault:
        access.log_fields["error"] = fault.code
        error = KbToolError(fault.to_public_json()["error"]).error
        is_theirs = isinstance(fault, errors.UsageError | errors.NotFoundError | errors.AccessError)
        raise MCPError(INVALID_PARAMS if is_theirs else INTERNAL_ERROR, error["message"], error) from fault
    except Exception as bug:  # the boundary of the resources
        logger.exception("unhandled error")
        raise MCPError(INTERNAL_ERROR, _BUG) from bug


def _refuse(access: KbAccess, fault: BaseException | None) -> CallToolResult:
    """Return an error as the result of a tool."""
    if isinstance(fault, errors.PairError):
        fault = KbToolError(fault.to_public_json()["error"])
    if not isinstance(fault, KbToolError):
        logger.error("unhandled error", extra={"tool": access.log_fields["tool"]}, exc_info=fault)
        fault = KbToolError({"code": "INTERNAL_ERROR", "message": _BUG, "recoverable": False})
    access.log_fields["error"] = str(fault.error["code"])
    return CallToolResult(content=[_format_text({"error": fault.error})], is_error=True)


def _format_text(value: Any) -> TextContent:
    return TextContent(text=pydantic_core.to_json(value).decode())


# ── standard input and output ─────────────────────────────────────────────────────────────────────────


def serve_stdio(settings: Settings, kbs: Sequence[str]) -> int:
    """Serve until the end of the input or a signal, and return the exit status. Raises E212.

    `kbs`: the KBs that the client may use; empty for all.
    """
    for kb_id in kbs:
        check_kb_id(kb_id)
    principal = Principal("local", "admin", frozenset(kbs), user=False) if kbs else ANYBODY
    asyncio.run(_serve_local(KbService(settings), principal))
    return 0


async def _serve_local(service: KbService, principal: Principal) -> None:
    is_cut_off = await _exchange_until_signal(service, principal)
    service.stop()
    deadline = service.clock.monotonic() + service.settings.server.stop_seconds
    while service.is_busy and service.clock.monotonic() < deadline:  # noqa: ASYNC110 - threads set no event
        await asyncio.sleep(_POLL_SECONDS)
    is_cut_off |= service.is_busy
    service.close(0)
    if is_cut_off:
        # A normal exit would wait for the thread that reads the input.
        logging.shutdown()
        sys.stderr.flush()
        os._exit(0)


async def _exchange_until_signal(service: KbService, principal: Principal) -> bool:
    """Exchange messages. Return True after a signal: then a thread still reads the input."""
    loop = asyncio.get_running_loop()
    signalled = loop.create_future()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signalled.cancel)
    _new_access.set(lambda: KbAccess(service, principal))
    exchanging = asyncio.ensure_future(_choose_server(KbAccess(service, principal)).run_stdio_async())
    await asyncio.wait([exchanging, signalled], return_when=asyncio.FIRST_COMPLETED)
    if not exchanging.done():
        exchanging.cancel()
        return True
    exchanging.result()
    return False


# ── subscriptions ──────────────────────────────────────────────────────────────────────────────────

_CHECK_SECONDS = 2.0
_CHECKS_PER_LIST = 15
"""The list of KBs is checked less often: it lists the whole store."""
_MOST_STREAMS = 256
_MOST_ADDRESSES = 100


class KbSubscriptions:
    """The open streams of a server."""

    def __init__(self) -> None:
        self._streams = 0

    async def listen(
        self, access: KbAccess, context: ServerRequestContext, asked: SubscriptionsListenRequestParams
    ) -> SubscriptionsListenResult:
        """Serve one stream until the client or the server ends it. Raises E601, E603."""
        uris = asked.notifications.resource_subscriptions or ()
        if len(uris) > _MOST_ADDRESSES:
            raise errors.request_invalid(f"at most {_MOST_ADDRESSES} resources")
        for uri in uris:
            access.use_kb(Address.parse(uri).kb)
        if self._streams >= _MOST_STREAMS:
            raise MCPError(INTERNAL_ERROR, "Too many open streams")
        bus = InMemorySubscriptionBus()
        handler = ListenHandler(bus)
        watch = _KbWatch(access, {uri: Address.parse(uri) for uri in uris})
        await access.service.read(watch.find_changes)  # report changes from now on
        self._streams += 1
        watching = asyncio.ensure_future(_tell_changes(watch, asked.notifications, bus, handler))
        try:
            return await handler(context, asked)
        finally:
            self._streams -= 1
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching


async def _tell_changes(
    watch: "_KbWatch", asked: SubscriptionFilter, bus: InMemorySubscriptionBus, handler: ListenHandler
) -> None:
    """Publish an event for each resource that changes and, if the client wants it, for new and deleted KBs."""
    access = watch.access
    names = await _list_names(access) if asked.resources_list_changed else []
    checks = 0
    while not access.service.is_stopping:
        await asyncio.sleep(_CHECK_SECONDS)
        checks += 1
        for uri in await access.service.read(watch.find_changes):
            await bus.publish(ResourceUpdated(uri))
        if asked.resources_list_changed and checks % _CHECKS_PER_LIST == 0:
            listed = await _list_names(access)
            if listed != names:
                await bus.publish(ResourcesListChanged())
            names = listed
    handler.close()


@dataclass
class _KbWatch:
    """The last seen versions of some KBs, and the documents in them that a client watches."""

    access: KbAccess
    addresses: Mapping[str, Address]
    _versions: dict[str, str] = field(default_factory=dict)
    _contents: dict[str, str] = field(default_factory=dict)

    def find_changes(self) -> list[str]:
        """Return the addresses whose resources changed since the last call. An unchanged KB is not read."""
        names = dict.fromkeys(address.kb for address in self.addresses.values())
        versions = {kb: self._read(kb, lambda opened: opened.version()[1]) for kb in names}
        changed = []
        for uri, address in self.addresses.items():
            if address.at or versions[address.kb] == self._versions.get(address.kb):
                continue
            content = versions[address.kb]
            if address.document_id:
                content = self._read(address.kb, functools.partial(_read_hash, address.document_id))
            if self._contents.get(uri) != content:
                changed.append(uri)
            self._contents[uri] = content
        self._versions = versions
        return changed

    def _read(self, kb: str, work: Callable[[KnowledgeBase], str]) -> str:
        """Return the result of the work; "" for a KB or a document that does not exist."""
        try:
            return self.access.service.kbs.read(kb, None, work)
        except errors.NotFoundError:
            return ""


def _read_hash(document_id: str, kb: KnowledgeBase) -> str:
    return kb.document(document_id).content_hash


async def _list_names(access: KbAccess) -> list[str]:
    stored = await access.service.read(access.service.kbs.list_stored)
    return [name for name in stored if access.may_use(name)]
