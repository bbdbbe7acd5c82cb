"""The official client of the Model Context Protocol, over either transport."""

import asyncio
import functools
import importlib.util
import json
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import httpx2
import jsonschema
import tokenizers
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult, TextContent, Tool

from support.command import PAIR

_Result = TypeVar("_Result")
Work = Callable[[Client], Awaitable[_Result]]
MODES = ("legacy", "2026-07-28")
"""Modes of the client: with a handshake, as before 2026, and without."""


def over_http(url: str, work: Work[_Result], *, key: str = "", mode: str = "auto") -> _Result:
    async def talk() -> _Result:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        async with httpx2.AsyncClient(headers=headers, timeout=60) as connection:
            transport = streamable_http_client(f"{url}/mcp", http_client=connection)
            async with Client(transport, mode=mode, cache=None) as client:
                return await work(client)

    return asyncio.run(talk())


def over_stdio(
    folder: Path,
    environment: dict[str, str],
    work: Work[_Result],
    *,
    command: Sequence[str] = (*PAIR, "mcp"),
    mode: str = "auto",
) -> _Result:
    async def talk() -> _Result:
        started = StdioServerParameters(command=command[0], args=[*command[1:]], env=environment, cwd=str(folder))
        async with Client(started, mode=mode, cache=None) as client:
            return await work(client)

    return asyncio.run(talk())


def text_of(result: CallToolResult) -> str:
    assert len(result.content) == 1
    assert isinstance(result.content[0], TextContent)
    return result.content[0].text


async def called(client: Client, name: str, **arguments: Any) -> Any:
    """Call a tool; check that text and structure agree and match its schema."""
    result = await client.call_tool(name, arguments)
    assert not result.is_error, text_of(result)
    assert json.loads(text_of(result)) == result.structured_content
    schemas = {tool.name: tool.output_schema for tool in (await client.list_tools()).tools}
    jsonschema.validate(result.structured_content, schemas[name] or {})
    return result.structured_content


async def refusal(client: Client, name: str, **arguments: Any) -> dict[str, Any]:
    result = await client.call_tool(name, arguments)
    assert result.is_error
    assert result.structured_content is None
    error: dict[str, Any] = json.loads(text_of(result))["error"]
    assert error["message"]
    return error


def checked_tools(tools: Sequence[Tool]) -> list[str]:
    """Return the names of the tools. Check that each schema is valid and that the descriptions are short."""
    for tool in tools:
        assert tool.description
        for schema in (tool.input_schema, tool.output_schema or {}):
            jsonschema.Draft202012Validator.check_schema(schema)
            assert schema["type"] == "object"
    written = json.dumps([tool.model_dump(by_alias=True, exclude_none=True) for tool in tools], ensure_ascii=False)
    assert tokens_in(written) <= 1500
    return [tool.name for tool in tools]


def tokens_in(text: str) -> int:
    return len(_tokenizer().encode(text).ids)


@functools.cache
def _tokenizer() -> tokenizers.Tokenizer:
    found = importlib.util.find_spec("wordllama")
    assert found is not None
    assert found.origin is not None
    folder = Path(found.origin).parent / "tokenizers"
    return tokenizers.Tokenizer.from_file(str(folder / "l2_supercat_tokenizer_config.json"))
