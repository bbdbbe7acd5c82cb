"""The route `/mcp`: one message of the Model Context Protocol, and its answer."""

from collections.abc import Awaitable, Callable
from typing import Any

from pair.app.http.context import HttpRequest, Operation
from pair.app.kb_access import KbAccess

Application = Callable[[Any, Any, Any], Awaitable[None]]


@Operation("POST /mcp", "read")
async def answer_message(request: HttpRequest) -> Application:
    """Answer as JSON. Nothing is kept between messages, and each one is checked against its credentials."""
    body = await request.query_body()
    application = await request.service.read(lambda: _load_application(request.access))

    async def send_answer(scope: Any, receive: Any, send: Any) -> None:
        messages = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def receive_body() -> Any:
            return next(messages, None) or await receive()

        await application(scope, receive_body, send)

    return send_answer


def _load_application(access: KbAccess) -> Application:
    from pair.app.mcp.server import http_application  # noqa: PLC0415 - loads the SDK with the first request

    return http_application(access)
