"""Tools and resources as a server of the official SDK: requests in, results and errors out.

Invariants
    What goes wrong in a tool is a result that says so; what goes wrong with a resource is an error of the protocol.
    A bug is logged and told, and ends nothing.
"""

import functools
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pydantic_core
from mcp.server.caching import CacheHint
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
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
    Tool,
    ToolAnnotations,
)

from pair import __version__, errors
from pair.app.mcp import resources, tools
from pair.app.mcp.contract import Library

logger = logging.getLogger("pair.mcp")

_Context = ServerRequestContext[Any, Any]
_Result = TypeVar("_Result")
_INSTRUCTIONS = (
    "Knowledge bases of documents. search finds passages, fetch reads a document, ask answers with sources. "
    "Cite what you use by its url."
)
_BUG = "A bug in pair. The log has it"
_TOOLS_SECONDS, _LIST_SECONDS, _READ_SECONDS = 300, 30, 30


def server_for(library: Callable[[], Library]) -> Server[Any]:
    """As one caller sees it: what others may do is not in it. `library` is called for each request."""
    face = _Face(library)
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
        get_tool_input_schema=lambda name: tools.BY_NAME[name].input_schema() if name in tools.BY_NAME else None,
        on_list_tools=face.list_tools,
        on_call_tool=face.call_tool,
        on_list_resources=face.list_resources,
        on_list_resource_templates=face.list_templates,
        on_read_resource=face.read_resource,
    )


class _Face:
    """The requests of the protocol."""

    def __init__(self, library: Callable[[], Library]) -> None:
        self._library = library

    async def list_tools(self, _context: _Context, _asked: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=[_described(each.name) for each in tools.usable(self._library())])

    async def call_tool(self, _context: _Context, asked: CallToolRequestParams) -> CallToolResult:
        tool = tools.BY_NAME.get(asked.name)
        if tool is None:
            raise MCPError(INVALID_PARAMS, f"Unknown tool: {asked.name[:100]}")
        library = self._library()
        library.note(tool=tool.name)
        try:
            result = await tool.answer(library, asked.arguments or {})
        except errors.PairError as fault:
            result = tools.refused(fault)
        except Exception:  # the boundary of the tools
            logger.exception("a bug", extra={"tool": tool.name})
            result = tools.Refused({"code": "INTERNAL_ERROR", "message": _BUG, "recoverable": False})
        if isinstance(result, tools.Refused):
            library.note(error=str(result.error["code"]))
            return CallToolResult(content=[_text({"error": result.error})], is_error=True)
        meta = result.pop(tools.META, None)
        # Twice: for clients that know structured results, and for those that pass on nothing but text.
        text = _text(result)
        return CallToolResult(content=[text], structured_content=pydantic_core.from_json(text.text), _meta=meta)

    async def list_resources(self, _context: _Context, asked: PaginatedRequestParams | None) -> ListResourcesResult:
        after = asked.cursor if asked and asked.cursor else ""
        library = self._library()
        known, following = await _attempted(library, resources.listed(library, after))
        shown = [
            Resource(uri=each.uri, name=each.name, description=each.description, mime_type=resources.JSON)
            for each in known
        ]
        return ListResourcesResult(resources=shown, next_cursor=following)

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
        library = self._library()
        library.note(tool="resources/read")
        parts = await _attempted(library, resources.read(library, str(asked.uri)))
        contents = [TextResourceContents(uri=each.uri, mime_type=each.media_type, text=each.text) for each in parts]
        return ReadResourceResult(contents=list(contents))


async def _attempted(library: Library, work: Awaitable[_Result]) -> _Result:
    try:
        return await work
    except errors.PairError as fault:
        library.note(error=fault.code)
        told = tools.refused(fault).error
        is_theirs = isinstance(fault, errors.UsageError | errors.NotFoundError | errors.AccessError)
        raise MCPError(INVALID_PARAMS if is_theirs else INTERNAL_ERROR, told["message"], told) from fault
    except Exception as bug:  # the boundary of the resources
        logger.exception("a bug")
        raise MCPError(INTERNAL_ERROR, _BUG) from bug


@functools.cache
def _described(name: str) -> Tool:
    tool = tools.BY_NAME[name]
    return Tool(
        name=tool.name,
        description=tool.description,
        input_schema=tool.input_schema(),
        output_schema=tool.result,
        annotations=ToolAnnotations.model_validate(tool.hints),
    )


def _text(value: Any) -> TextContent:
    return TextContent(text=pydantic_core.to_json(value).decode())
