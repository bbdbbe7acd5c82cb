"""Pages of other sites: those that are named may call, and are told so; all others may not."""

from starlette.responses import Response

from pair.app.http.context import RequestCall

_METHODS = "GET, POST, DELETE"
_HEADERS = (
    "Accept, Authorization, Content-Type, Idempotency-Key, MCP-Protocol-Version, Traceparent, X-KB-ID, X-Request-ID"
)
_READABLE = b"idempotent-replayed, retry-after, x-kb-id, x-request-id"
_REMEMBERED_SECONDS = "600"


class CrossOrigin:
    def __init__(self, origins: str) -> None:
        """`origins`: with commas between; empty for none."""
        self._allowed = frozenset(each.strip().rstrip("/").lower() for each in origins.split(",") if each.strip())

    def allows(self, origin: str) -> bool:
        return origin.lower() in self._allowed

    def preflight(self, call: RequestCall) -> Response | None:
        """The answer to a browser that asks whether it may ask; None if this is something else."""
        is_asked = call.scope["method"] == "OPTIONS" and call.header(b"access-control-request-method")
        if not is_asked or not self.allows(call.header(b"origin")):
            return None
        headers = {
            "Access-Control-Allow-Methods": _METHODS,
            "Access-Control-Allow-Headers": _HEADERS,
            "Access-Control-Max-Age": _REMEMBERED_SECONDS,
        }
        return Response(status_code=204, headers=headers)

    def headers(self, call: RequestCall) -> list[tuple[bytes, bytes]]:
        """That let the page read the answer. Credentials are sent by the page, never by the browser for it."""
        if not self._allowed:
            return []
        origin = call.headers.get(b"origin", b"")
        if not self.allows(origin.decode("latin-1")):
            return [(b"vary", b"Origin")]
        return [
            (b"vary", b"Origin"),
            (b"access-control-allow-origin", origin),
            (b"access-control-expose-headers", _READABLE),
        ]
