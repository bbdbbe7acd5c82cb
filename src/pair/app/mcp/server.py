"""Tools and resources as a server of the official SDK.

Invariants
    A tool that fails gives a result that says so; a resource that fails is an error of the protocol.
    A bug is logged and reported, and does not end the server.
"""

import functools
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pydantic_core
from mcp.server.caching import CacheHint
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListToolsResult,
    PaginatedRequestParams,
    ReadResourceRequestParams,
    ReadResourceResult,
    Resource,
    ResourceTemplate,
    TextContent,
    TextResourceContents,
    ToolAnnotations,
)
from mcp_types import Tool as ListedTool

from pair import __version__, errors
from pair.app.kb_access import KbAccess
from pair.app.mcp.rules import Address, cut, take_fitting
from pair.app.mcp.tools import META, TOOLS, ToolError, most_bytes

logger = logging.getLogger("pair.mcp")

_Context = ServerRequestContext[Any, Any]
_Result = TypeVar("_Result")
_INSTRUCTIONS = (
    "Knowledge bases of documents. search finds passages, fetch reads a document, ask answers with sources. "
    "Cite what you use by its url."
)
_BUG = "A bug in pair. The log has it"
_TOOLS_SECONDS, _LIST_SECONDS, _READ_SECONDS = 300, 30, 30
_JSON, _PLAIN, _MARKDOWN = "application/json", "text/plain", "text/markdown"
_KBS_AT_A_TIME = 100
_DOCUMENTS_AT_A_TIME = 200
_NO_LIMIT_BYTES = 2**62


def make_server(new_access: Callable[[], KbAccess]) -> Server[Any]:
    """Return a server for one caller, who sees only what it may use. `new_access` is called for each request."""
    handlers = _Handlers(new_access)
    return Server(
        "pair",
        version=__version__,
        instructions=_INSTRUCTIONS,
        cache_hints={
            "tools/list": CacheHint(_TOOLS_SECONDS * 1000, "private"),
            "resources/list": CacheHint(_LIST_SECONDS * 1000, "private"),
            "resources/templates/list": CacheHint(_TOOLS_SECONDS * 1000, "public"),
            "resources/read": CacheHint(_READ_SECONDS * 1000, "private"),
        },
        get_tool_input_schema=lambda name: _list_tool(name).input_schema if name in TOOLS else None,
        on_list_tools=handlers.list_tools,
        on_call_tool=handlers.call_tool,
        on_list_resources=handlers.list_resources,
        on_list_resource_templates=handlers.list_templates,
        on_read_resource=handlers.read_resource,
    )


def http_application(access: KbAccess) -> Callable[[Any, Any, Any], Awaitable[None]]:
    """Return an ASGI application for one message. Its caller has checked the origin, the credentials and the size."""

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        manager = StreamableHTTPSessionManager(
            make_server(lambda: access), json_response=True, stateless=True, max_request_body_size=_NO_LIMIT_BYTES
        )
        async with manager.run():
            await manager.handle_request(scope, receive, send)

    return answer


class _Handlers:
    """The requests of the protocol."""

    def __init__(self, new_access: Callable[[], KbAccess]) -> None:
        self._new_access = new_access

    async def list_tools(self, _context: _Context, _asked: PaginatedRequestParams | None) -> ListToolsResult:
        access = self._new_access()
        return ListToolsResult(tools=[_list_tool(name) for name, tool in TOOLS.items() if tool.is_usable(access)])

    async def call_tool(self, _context: _Context, asked: CallToolRequestParams) -> CallToolResult:
        tool = TOOLS.get(asked.name)
        if tool is None:
            raise MCPError(INVALID_PARAMS, f"Unknown tool: {asked.name[:100]}")
        access = self._new_access()
        access.log_fields["tool"] = tool.name
        try:
            result = await tool.run(access, asked.arguments or {})
        except ToolError as fault:
            return _refuse(access, fault)
        except errors.PairError as fault:
            return _refuse(access, ToolError(fault.to_public_json()["error"]))
        except Exception:  # the boundary of the tools
            logger.exception("a bug", extra={"tool": tool.name})
            return _refuse(access, ToolError({"code": "INTERNAL_ERROR", "message": _BUG, "recoverable": False}))
        meta = result.pop(META, None)
        # Twice: for clients that know structured results, and for those that pass on nothing but text.
        text = _format_text(result)
        return CallToolResult(content=[text], structured_content=pydantic_core.from_json(text.text), _meta=meta)

    async def list_resources(self, _context: _Context, asked: PaginatedRequestParams | None) -> ListResourcesResult:
        """List KBs by name."""
        access = self._new_access()
        after = asked.cursor if asked and asked.cursor else ""
        kbs = [kb for kb in await _attempt(access, access.list_kbs()) if kb["kb_id"] > after]
        shown = [
            Resource(
                uri=str(Address(kb["kb_id"])),
                name=kb["kb_id"],
                description=f"{kb['documents']} documents, as a list",
                mime_type=_JSON,
            )
            for kb in kbs[:_KBS_AT_A_TIME]
        ]
        return ListResourcesResult(resources=shown, next_cursor=shown[-1].name if len(kbs) > len(shown) else None)

    async def list_templates(
        self, _context: _Context, _asked: PaginatedRequestParams | None
    ) -> ListResourceTemplatesResult:
        document = ResourceTemplate(
            uri_template="kb://{kb}/{id}", name="document", description="The text of a document, by its id"
        )
        documents = ResourceTemplate(
            uri_template="kb://{kb}", name="documents", description="The documents of a knowledge base"
        )
        return ListResourceTemplatesResult(resource_templates=[document, documents])

    async def read_resource(self, _context: _Context, asked: ReadResourceRequestParams) -> ReadResourceResult:
        access = self._new_access()
        access.log_fields["tool"] = "resources/read"
        contents = await _attempt(access, _read_resource(access, str(asked.uri)))
        return ReadResourceResult(contents=[*contents])


async def _read_resource(access: KbAccess, uri: str) -> list[TextResourceContents]:
    """Raises E201, E214, E601, E603."""
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
    documents = await access.list_documents(address.kb, address.after, _DOCUMENTS_AT_A_TIME)
    entries = [
        {"uri": str(Address(address.kb, document.id)), "title": document.title or document.id} for document in documents
    ]
    shown = take_fitting(entries, most_bytes(access))
    is_all = len(shown) == len(documents) < _DOCUMENTS_AT_A_TIME
    following = None if is_all or not shown else str(Address(address.kb, after=documents[len(shown) - 1].id))
    return pydantic_core.to_json({"kb": address.kb, "documents": shown, "next": following}).decode()


async def _attempt(access: KbAccess, work: Awaitable[_Result]) -> _Result:
    try:
        return await work
    except errors.PairError as fault:
        access.log_fields["error"] = fault.code
        error = ToolError(fault.to_public_json()["error"]).error
        is_theirs = isinstance(fault, errors.UsageError | errors.NotFoundError | errors.AccessError)
        raise MCPError(INVALID_PARAMS if is_theirs else INTERNAL_ERROR, error["message"], error) from fault
    except Exception as bug:  # the boundary of the resources
        logger.exception("a bug")
        raise MCPError(INTERNAL_ERROR, _BUG) from bug


def _refuse(access: KbAccess, fault: ToolError) -> CallToolResult:
    access.log_fields["error"] = str(fault.error["code"])
    return CallToolResult(content=[_format_text({"error": fault.error})], is_error=True)


@functools.cache
def _list_tool(name: str) -> ListedTool:
    tool = TOOLS[name]
    return ListedTool(
        name=tool.name,
        description=tool.description,
        input_schema=tool.input_schema(),
        output_schema=tool.result,
        annotations=ToolAnnotations.model_validate(tool.hints),
    )


def _format_text(value: Any) -> TextContent:
    return TextContent(text=pydantic_core.to_json(value).decode())
