"""One message over HTTP: any version of the protocol, answered as JSON, with nothing kept."""

from collections.abc import Awaitable, Callable
from typing import Any

from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

from pair.app.mcp.contract import Library
from pair.app.mcp.server import server_for

_NO_LIMIT_BYTES = 2**62
"""Whoever calls has read the body, and no more than it takes."""


def application(library: Library) -> Callable[[Any, Any, Any], Awaitable[None]]:
    """For one request: origins, credentials and sizes are checked by whoever lets it in."""

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        manager = StreamableHTTPSessionManager(
            server_for(lambda: library), json_response=True, stateless=True, max_request_body_size=_NO_LIMIT_BYTES
        )
        async with manager.run():
            await manager.handle_request(scope, receive, send)

    return answer
