"""The route `/mcp`: one message of the Model Context Protocol, and its answer."""

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from pair.app.http.access import Reader
from pair.app.kb_access import KbAccess

router = APIRouter()


class _McpResponse(Response):
    """The answer that an ASGI application gives to a body that was read already."""

    def __init__(self, application: Callable[[Any, Any, Any], Awaitable[None]], body: bytes) -> None:
        super().__init__()
        self._application = application
        self._messages = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def receive_body() -> Any:
            return next(self._messages, None) or await receive()

        await self._application(scope, receive_body, send)


@router.post("/mcp", include_in_schema=False)
async def answer_message(request: Reader) -> Response:
    """Answer as JSON. Nothing is kept between messages, and each one is checked against its credentials."""
    body = await request.query_body()
    return _McpResponse(await request.service.read(lambda: _load_application(request.access)), body)


def _load_application(access: KbAccess) -> Callable[[Any, Any, Any], Awaitable[None]]:
    from pair.app.mcp.server import http_application  # noqa: PLC0415 - loads the SDK with the first request

    return http_application(access)
