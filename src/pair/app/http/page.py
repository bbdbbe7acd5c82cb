"""The page at `/` and the files that it is made of: these and no others, with a policy that lets nothing else in.

Invariants
    The page holds no data, so everybody may load it; what it shows it asks for like any other client.
"""

import functools
import hashlib
from dataclasses import dataclass
from importlib import resources

from starlette.responses import Response

from pair import errors
from pair.app.http.context import RequestCall, Service

_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_INDEX = "index.html"
_DIRECTIVES = (
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "connect-src 'self'",
    "img-src 'self'",
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
    # Text never becomes markup or code, whatever the scripts of the page do with it.
    "require-trusted-types-for 'script'",
    "trusted-types 'none'",
)


@dataclass(frozen=True)
class _File:
    content: bytes
    kind: str
    etag: str


@functools.cache
def _files() -> dict[str, _File]:
    """All there are, by name; read once."""
    found = {}
    for entry in resources.files("pair.app.ui").iterdir():
        kind = _KINDS.get("." + entry.name.rpartition(".")[2])
        if kind is not None:
            content = entry.read_bytes()
            found[entry.name] = _File(content, kind, f'"{hashlib.sha256(content).hexdigest()[:32]}"')
    return found


async def index(_service: Service, call: RequestCall) -> Response:
    return _answered(_files()[_INDEX], call)


async def asset(_service: Service, call: RequestCall) -> Response:
    """Raises E604 for everything that is not one of the files, however it is written."""
    file = _files().get(call.path_value)
    if file is None or call.path_value == _INDEX:
        raise errors.no_such_route(call.scope["path"])
    return _answered(file, call)


def _answered(file: _File, call: RequestCall) -> Response:
    """A browser keeps it, and asks each time whether it is still the same."""
    headers = {"ETag": file.etag, "Cache-Control": "no-cache", "Content-Security-Policy": "; ".join(_DIRECTIVES)}
    known = {each.strip().removeprefix("W/") for each in call.header(b"if-none-match").split(",")}
    if file.etag in known or "*" in known:
        return Response(status_code=304, headers=headers)
    return Response(file.content, headers={**headers, "Content-Type": file.kind})
