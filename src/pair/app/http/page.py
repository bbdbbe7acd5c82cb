"""The page at `/` and its files, with a content security policy that allows nothing else.

The page holds no data, so it needs no credentials: it is a client of the other routes.
"""

import functools
import hashlib
from dataclasses import dataclass
from importlib import resources

from starlette.responses import Response

from pair import errors
from pair.app.http.context import HttpRequest, Operation

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
class _PageFile:
    content: bytes
    kind: str
    etag: str


@functools.cache
def _read_files() -> dict[str, _PageFile]:
    """Read all files once, by name."""
    files = {}
    for entry in resources.files("pair.app.ui").iterdir():
        kind = _KINDS.get("." + entry.name.rpartition(".")[2])
        if kind is not None:
            content = entry.read_bytes()
            files[entry.name] = _PageFile(content, kind, f'"{hashlib.sha256(content).hexdigest()[:32]}"')
    return files


@Operation("GET /", None)
async def index(request: HttpRequest) -> Response:
    return _send(_read_files()[_INDEX], request)


@Operation("GET /ui/{id}", None)
async def asset(request: HttpRequest) -> Response:
    """Raises E604 for everything that is not one of the files, however it is written."""
    file = _read_files().get(request.path_value)
    if file is None or request.path_value == _INDEX:
        raise errors.no_such_route(request.scope["path"])
    return _send(file, request)


def _send(file: _PageFile, request: HttpRequest) -> Response:
    """A browser keeps the file, and asks each time whether it is still the same."""
    headers = {"ETag": file.etag, "Cache-Control": "no-cache", "Content-Security-Policy": "; ".join(_DIRECTIVES)}
    known = {tag.strip().removeprefix("W/") for tag in request.header(b"if-none-match").split(",")}
    if file.etag in known or "*" in known:
        return Response(status_code=304, headers=headers)
    return Response(file.content, headers={**headers, "Content-Type": file.kind})
